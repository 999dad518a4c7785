/* SPDX-License-Identifier: MIT */
#include "daemon/store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/folder.h"
#include "daemon/store/ranks.h"
#include "kernels/element.h"

enum { AHEAD_BYTES = 8 << 20 };

/* ---- opening ---- */

static zero_status check_record(const struct store_manifest *manifest,
                                const struct store_record *record, struct zero_detail *detail)
{
    if (strcmp(record->self.text, manifest->parts[record->rank].text) != 0 ||
        strcmp(record->id, manifest->id) != 0 || record->step != manifest->step ||
        record->states != manifest->states)
        return store_refuse(detail, ZERO_CORRUPT,
                            "rank-%" PRIu32 ".json is not the one that " STORE_MANIFEST
                            " knows: it is of another save, or was changed",
                            record->rank);
    return zero_success();
}

static zero_status open_rank(struct store *store, int folder, uint32_t rank,
                             struct zero_detail *detail)
{
    struct store_rank *r = &store->ranks[rank];
    zero_status s = store_record_read(folder, store->manifest.layout, rank, &r->record, detail);

    r->name = store_part_name(rank, "safetensors");
    if (!zero_failed(s))
        s = check_record(&store->manifest, &r->record, detail);
    if (!zero_failed(s))
        s = store_file_open(folder, r->name.text, &r->file, detail);
    if (s.code == ZERO_NOT_FOUND)
        s.code = ZERO_CORRUPT; /* the manifest knows it: a part was lost */
    if (zero_failed(s))
        return s;
    if (r->file.bytes != r->record.file_bytes)
        return store_refuse(detail, ZERO_CORRUPT, "%s has %" PRIu64 " bytes instead of %" PRIu64,
                            r->name.text, r->file.bytes, r->record.file_bytes);
    posix_fadvise(r->file.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return s;
}

static void state_facts(struct store *store)
{
    const struct store_manifest *m = &store->manifest;

    store->facts = (struct store_facts){
        .info = { m->layout, m->stage, m->step, m->updates, m->skipped_in_row, m->scaler, m->config,
                  m->config_bytes },
        .states = m->states,
        .time = m->time,
        .zerod = m->zerod,
        .id = m->id,
    };
    for (uint32_t r = 0; r < m->world; r++)
        store->facts.bytes += store->ranks[r].record.file_bytes;
}

static zero_status open_ranks(struct store *store, int folder, struct zero_detail *detail)
{
    uint32_t world = store->manifest.world;
    zero_status s = zero_success();

    store->ranks = calloc(world, sizeof *store->ranks);
    store->block = aligned_alloc(ZERO_PAGE_BYTES, STORE_BLOCK_BYTES);
    if (store->ranks == NULL || store->block == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory to read %" PRIu32 " ranks", world);
    for (uint32_t r = 0; r < world; r++)
        store->ranks[r].file.fd = -1;
    for (uint32_t r = 0; r < world && !zero_failed(s); r++)
        s = open_rank(store, folder, r, detail);
    return s;
}

/* A file where a checkpoint should be, or a link to one that is not there now. */
static zero_status refuse_folder(const char *path, struct zero_detail *detail)
{
    int error = errno;
    struct stat what;
    uint64_t step;

    if (error == ENOENT && lstat(path, &what) == 0 && S_ISLNK(what.st_mode))
        return store_refuse(detail, ZERO_IO,
                            "%s is a symbolic link to what is not there: is it mounted?", path);
    errno = error;
    zero_status s = store_refuse_errno(detail, "%s cannot be opened", path);
    if (error == ENOTDIR && store_folder_named(path, &step) == STORE_STEP)
        s.code = ZERO_CORRUPT;
    return s;
}

zero_status store_open(const char *path, struct store **out, struct zero_detail *out_detail)
{
    struct store *store = calloc(1, sizeof *store);
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct zero_detail why = { "" };
    uint64_t step;
    zero_status s;

    if (folder < 0) {
        s = refuse_folder(path, out_detail);
        goto out;
    }
    if (store == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory to read %s", path);
        goto out;
    }
    store->block_index = UINT64_MAX;
    s = store_manifest_read(folder, &store->manifest, &why);
    if (s.code == ZERO_NOT_FOUND && store_folder_named(path, &step) == STORE_STEP)
        s.code = ZERO_CORRUPT;
    if (!zero_failed(s))
        s = open_ranks(store, folder, &why);
    if (zero_failed(s)) {
        s = store_refuse(out_detail, s.code, "%.200s: %.300s", path, why.text);
        goto out;
    }
    state_facts(store);
    *out = store;
    store = NULL;
out:
    store_close(store);
    if (folder >= 0)
        close(folder);
    return s;
}

bool store_unread(zero_status s)
{
    return zero_failed(s) && s.code != ZERO_NOT_FOUND && s.code != ZERO_CORRUPT &&
           s.code != ZERO_TOO_LARGE && s.code != ZERO_INVALID_ARGUMENT;
}

void store_close(struct store *store)
{
    if (store == NULL)
        return;
    for (uint32_t r = 0; store->ranks != NULL && r < store->manifest.world; r++) {
        store_record_deinit(&store->ranks[r].record);
        store_file_close(&store->ranks[r].file);
    }
    free(store->ranks);
    free(store->block);
    store_manifest_deinit(&store->manifest);
    free(store);
}

const struct store_facts *store_facts(const struct store *store)
{
    return &store->facts;
}

const void *store_blob(const struct store *store, uint32_t rank, size_t *out_bytes)
{
    *out_bytes = store->ranks[rank].record.blob_bytes;
    return store->ranks[rank].record.blob;
}

/* ---- blocks ---- */

size_t store_block_bytes(const struct store_record *record, uint64_t index)
{
    uint64_t left = record->file_bytes - index * STORE_BLOCK_BYTES;

    return left < STORE_BLOCK_BYTES ? (size_t)left : STORE_BLOCK_BYTES;
}

zero_status store_load_block(struct store *store, uint32_t rank, uint64_t index, void *to,
                             struct zero_detail *out_detail)
{
    const struct store_rank *r = &store->ranks[rank];
    uint64_t offset = index * STORE_BLOCK_BYTES;
    size_t bytes = store_block_bytes(&r->record, index);

    /* the kernel's own reading ahead (some 100 KiB) leaves a disk idle most of the time */
    posix_fadvise(r->file.fd, (off_t)offset + STORE_BLOCK_BYTES, AHEAD_BYTES, POSIX_FADV_WILLNEED);
    zero_status s = store_file_read(&r->file, offset, bytes, to, out_detail);

    if (!zero_failed(s) && XXH3_64bits(to, bytes) != r->record.sums[index])
        return store_refuse(out_detail, ZERO_CORRUPT,
                            "%s: bytes %" PRIu64 " to %" PRIu64
                            " do not match their checksum: they were damaged or changed",
                            r->name.text, offset, offset + bytes - 1);
    return s;
}

/* A block in the buffer. */
static zero_status hold_block(struct store *store, uint32_t rank, uint64_t index,
                              struct zero_detail *detail)
{
    if (store->block_rank == rank && store->block_index == index)
        return zero_success();
    store->block_index = UINT64_MAX;
    zero_status s = store_load_block(store, rank, index, store->block, detail);
    if (!zero_failed(s)) {
        store->block_rank = rank;
        store->block_index = index;
    }
    return s;
}

zero_status store_load_bytes(struct store *store, uint32_t rank, struct zero_range bytes, void *out,
                             struct zero_detail *out_detail)
{
    const struct store_record *record = &store->ranks[rank].record;
    unsigned char *to = out;

    while (bytes.begin < bytes.end) {
        uint64_t index = bytes.begin / STORE_BLOCK_BYTES, within = bytes.begin % STORE_BLOCK_BYTES;
        size_t all = store_block_bytes(record, index), take = all - within;
        zero_status s;
        if (bytes.end - bytes.begin < take)
            take = (size_t)(bytes.end - bytes.begin);
        if (take == all) {
            s = store_load_block(store, rank, index, to, out_detail); /* straight to its place */
        } else {
            s = hold_block(store, rank, index, out_detail);
            if (!zero_failed(s))
                memcpy(to, store->block + within, take);
        }
        if (zero_failed(s))
            return s;
        to += take;
        bytes.begin += take;
    }
    return zero_success();
}

/* ---- spans ---- */

static zero_status check_span(const struct store *store, const struct store_span *span,
                              struct zero_detail *detail)
{
    const struct zero_layout *layout = store->manifest.layout;

    if (span->state >= STORE_STATES || !STORE_HAS(store->manifest.states, span->state))
        return store_refuse(
            detail, ZERO_INVALID_ARGUMENT, "the checkpoint does not have the state %s",
            span->state < STORE_STATES ? store_state_names[span->state] : "that was asked for");
    if (span->tensor >= layout->tensor_count)
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "tensor %" PRIu32 " of a model with %" PRIu32, span->tensor,
                            layout->tensor_count);
    uint64_t count = layout->tensors[span->tensor].count;
    if (span->first > count || span->count > count - span->first)
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "%" PRIu64 " elements from %" PRIu64
                            " on of %.200s, which has %" PRIu64,
                            span->count, span->first, layout->tensors[span->tensor].name, count);
    return zero_success();
}

zero_status store_read(struct store *store, const struct store_span *span, void *out,
                       struct zero_detail *out_detail)
{
    zero_status s = check_span(store, span, out_detail);

    if (zero_failed(s))
        return s;
    const struct zero_layout *layout = store->manifest.layout;
    const struct zero_tensor *tensor = &layout->tensors[span->tensor];
    const struct zero_layer *layer = &layout->layers[tensor->layer];
    uint64_t size = zero_dtype_bytes(store_state_dtype(layout->dtype, span->state));
    uint64_t region = store_region_offset(layout, store->manifest.states, span->state);
    uint64_t at = tensor->offset + span->first, end = at + span->count;
    unsigned char *to = out;

    while (at < end && !zero_failed(s)) {
        uint32_t rank = (uint32_t)(at / layer->shard);
        uint64_t within = at % layer->shard, run = layer->shard - within;
        if (end - at < run)
            run = end - at;
        uint64_t begin =
            store->ranks[rank].record.header_bytes + region + (layer->shard_offset + within) * size;
        struct zero_range bytes = { begin, begin + run * size };
        s = store_load_bytes(store, rank, bytes, to, out_detail);
        to += run * size;
        at += run;
    }
    return s;
}

zero_status store_read_fp32(struct store *store, const struct store_span *span, float *out,
                            struct zero_detail *out_detail)
{
    zero_dtype dtype = store_state_dtype(store->manifest.layout->dtype, span->state);

    if (dtype == ZERO_FP32)
        return store_read(store, span, out, out_detail);
    /* into the back half, then widened from the front: no element is overwritten before it is read
     */
    uint16_t *narrow = (uint16_t *)out + span->count;
    zero_status s = store_read(store, span, narrow, out_detail);
    for (uint64_t i = 0; i < span->count && !zero_failed(s); i++) {
        uint16_t half;
        memcpy(&half, (const unsigned char *)narrow + 2 * i, sizeof half);
        out[i] = dtype == ZERO_BF16 ? bf16_to_float(half) : fp16_to_float(half);
    }
    return s;
}
