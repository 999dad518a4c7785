/* SPDX-License-Identifier: MIT */
#include "daemon/store/save.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/folder.h"
#include "daemon/store/part.h"
#include "daemon/store/store.h"
#include "daemon/store/stream.h"

const char *const store_engine_names[2] = { "io_uring", "threads" };

/* ---- begin, join, leave ---- */

zero_status store_check_free(const char *dir, uint64_t step, struct zero_detail *out_detail)
{
    struct zero_detail why = { "" };
    struct store *store = NULL;
    struct stat what;
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/step-%" PRIu64, dir, step) >= PATH_MAX)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    if (lstat(path, &what) != 0)
        return errno == ENOENT ? zero_success()
                               : store_refuse_errno(out_detail, "%s cannot be looked at", path);
    zero_status s = store_open(path, &store, &why);
    store_close(store);
    if (zero_failed(s))
        return store_refuse(out_detail, ZERO_INVALID_STATE,
                            "%.160s is there, but is no complete checkpoint (%.200s): move it away",
                            path, why.text);
    return store_refuse(out_detail, ZERO_INVALID_STATE,
                        "%.200s is there already, complete: nothing was written", path);
}

static zero_status open_folder(const char *path, struct store_save *save,
                               struct zero_detail *detail)
{
    save->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (save->fd < 0)
        return store_refuse_errno(detail, "%s cannot be opened", path);
    if (flock(save->fd, LOCK_SH | LOCK_NB) == 0)
        return zero_success();
    zero_status s = store_refuse_errno(detail, "%s cannot be locked", path);
    store_leave(save);
    return s;
}

zero_status store_begin(const char *dir, uint64_t step, struct store_save *out,
                        struct zero_detail *out_detail)
{
    struct store_save save = { .step = step, .fd = -1 };
    zero_status s;

    TRY(s, store_make_dir(dir, out_detail));
    TRY(s, store_random_id(save.id, out_detail));
    if (snprintf(save.path, sizeof save.path, "%s/step-%" PRIu64 ".partial-%d-%s", dir, step,
                 (int)getpid(), save.id) >= PATH_MAX)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    if (mkdir(save.path, 0700) != 0)
        return store_refuse_errno(out_detail, "%s cannot be made", save.path);
    s = open_folder(save.path, &save, out_detail);
    if (zero_failed(s))
        rmdir(save.path);
    else
        *out = save;
out:
    return s;
}

zero_status store_join(const char *path, struct store_save *out, struct zero_detail *out_detail)
{
    struct store_save save = { .fd = -1 };
    const char *name = strrchr(path, '/'), *id = strrchr(path, '-');

    name = name == NULL ? path : name + 1;
    if (strlen(path) >= sizeof save.path || store_folder_parse(name, &save.step) != STORE_PARTIAL ||
        id == NULL || strlen(id + 1) != STORE_ID_CHARS)
        return store_refuse(out_detail, ZERO_INVALID_ARGUMENT,
                            "%.200s is not the folder of a save that is on its way", path);
    memcpy(save.path, path, strlen(path) + 1);
    memcpy(save.id, id + 1, STORE_ID_CHARS + 1);
    zero_status s = open_folder(path, &save, out_detail);
    if (!zero_failed(s))
        *out = save;
    return s;
}

void store_leave(struct store_save *save)
{
    if (save == NULL || save->fd < 0)
        return;
    close(save->fd);
    save->fd = -1;
}

/* ---- a part ---- */

static zero_status check_part(const struct store_part *part, struct zero_detail *detail)
{
    if (part->rank >= part->layout->world)
        return store_refuse(detail, ZERO_INVALID_ARGUMENT, "rank %" PRIu32 " of %" PRIu32,
                            part->rank, part->layout->world);
    if (part->blob_bytes > STORE_MOST_BLOB)
        return store_refuse(detail, ZERO_TOO_LARGE, "a blob of %zu bytes, at most %d",
                            part->blob_bytes, STORE_MOST_BLOB);
    return zero_success();
}

static zero_status check_region(const struct store_part *part, const struct store_region *region,
                                struct zero_detail *detail)
{
    uint64_t want = store_region_bytes(part->layout, region->state), bytes = 0;
    bool whole = true;

    for (size_t p = 0; p < region->piece_count; p++) {
        bytes += region->pieces[p].bytes;
        whole &= region->pieces[p].bytes % ZERO_PAGE_BYTES == 0 && region->pieces[p].base != NULL &&
                 (uintptr_t)region->pieces[p].base % ZERO_PAGE_BYTES == 0;
    }
    if (region->source == NULL && (!whole || bytes != want))
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "the pieces of %s are not whole pages, or have %" PRIu64
                            " bytes instead of %" PRIu64,
                            store_state_names[region->state], bytes, want);
    return zero_success();
}

/* The header, then every region; *out_states says which there are. */
static zero_status lay_out(const struct store_part *part, struct store_stretch *stretches,
                           size_t *out_count, uint32_t *out_states, struct zero_detail *detail)
{
    size_t count = 1; /* the header's comes when the states are known */
    uint32_t states = 0;

    for (size_t r = 0; r < part->region_count; r++) {
        const struct store_region *region = &part->regions[r];
        if (region->state >= STORE_STATES || states >> region->state != 0)
            return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                                "regions must stand in the order of their states");
        states |= 1u << region->state;
        zero_status s = check_region(part, region, detail);
        if (zero_failed(s))
            return s;
        if (region->source != NULL)
            stretches[count++] =
                (struct store_stretch){ .bytes = store_region_bytes(part->layout, region->state),
                                        .source = region->source,
                                        .context = region->context };
        for (size_t p = 0; region->source == NULL && p < region->piece_count; p++)
            stretches[count++] = (struct store_stretch){ .base = region->pieces[p].base,
                                                         .bytes = region->pieces[p].bytes };
    }
    if (!store_states_allowed(part->layout->dtype, states))
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "a part has a master, and a param only where parameters are not fp32");
    *out_count = count;
    *out_states = states;
    return zero_success();
}

/* A new file, past the page cache where the file system can. */
static zero_status make_file(int folder, struct store_job *job, bool *out_direct,
                             struct zero_detail *detail)
{
    const char *name = job->name;
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;

    if (unlinkat(folder, name, 0) != 0 && errno != ENOENT)
        return store_refuse_errno(detail, "%s cannot be replaced", name);
    *out_direct = true;
    int fd = openat(folder, name, flags | O_DIRECT, 0600);
    if (fd < 0 && errno == EINVAL) {
        /* some kernels have made the file by then */
        unlinkat(folder, name, 0);
        *out_direct = false;
        fd = openat(folder, name, flags, 0600);
    }
    if (fd < 0)
        return store_refuse_errno(detail, "%s cannot be made", name);
    /* a full disk is known now, and the file lies in one piece; not every file system can */
    int result = fallocate(fd, 0, 0, (off_t)job->bytes);
    while (result != 0 && errno == EINTR)
        result = fallocate(fd, 0, 0, (off_t)job->bytes);
    if (result != 0 && errno != EOPNOTSUPP) {
        zero_status s =
            store_refuse_errno(detail, "%s cannot have %" PRIu64 " bytes", name, job->bytes);
        close(fd);
        return s;
    }
    job->fd = fd;
    return zero_success();
}

static zero_status write_file(int folder, struct store_job *job, struct store_written *out,
                              struct zero_detail *detail)
{
    zero_status s = make_file(folder, job, &out->direct, detail);

    if (zero_failed(s))
        return s;
    s = store_stream(job, &out->engine, detail);
    if (!zero_failed(s))
        s = store_sync(job->fd, job->name, detail);
    if (close(job->fd) != 0 && errno != EINTR && !zero_failed(s))
        s = store_refuse_errno(detail, "%s cannot be closed", job->name);
    out->bytes = job->bytes;
    return s;
}

/* The file, then what is known about it. */
static zero_status write_files(int folder, struct store_job *job, struct store_record *record,
                               struct store_written *out, struct zero_detail *detail)
{
    struct store_name json = store_part_name(record->rank, "json");

    record->sum_count = store_blocks_of(record->file_bytes);
    record->sums = calloc(record->sum_count, sizeof *record->sums);
    if (record->sums == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %" PRIu64 " sums",
                            record->sum_count);
    job->sums = record->sums;
    /* what an earlier try left would not belong to the new file */
    if (unlinkat(folder, json.text, 0) != 0 && errno != ENOENT)
        return store_refuse_errno(detail, "%s cannot be replaced", json.text);
    zero_status s = write_file(folder, job, out, detail);
    return zero_failed(s) ? s : store_record_write(folder, record, detail);
}

static size_t most_stretches(const struct store_part *part)
{
    size_t count = 1;

    for (size_t r = 0; r < part->region_count; r++)
        count += 1 + part->regions[r].piece_count;
    return count;
}

zero_status store_write_part(const struct store_save *save, const struct store_part *part,
                             struct store_progress *progress, struct store_written *out,
                             struct zero_detail *out_detail)
{
    struct store_stretch *stretches = calloc(most_stretches(part), sizeof *stretches);
    struct store_header header = { .bytes = NULL };
    struct store_name name = store_part_name(part->rank, "safetensors");
    struct store_job job = {
        .fd = -1, .name = name.text, .stretches = stretches, .progress = progress
    };
    struct store_record record = { .rank = part->rank,
                                   .world = part->layout->world,
                                   .step = save->step,
                                   .blob = (unsigned char *)(uintptr_t)part->blob,
                                   .blob_bytes = part->blob_bytes };
    zero_status s;

    if (stretches == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a list of pieces");
        goto out;
    }
    memcpy(record.id, save->id, sizeof record.id);
    TRY(s, check_part(part, out_detail));
    TRY(s, lay_out(part, stretches, &job.stretch_count, &record.states, out_detail));
    TRY(s, store_header_create(part->layout, part->rank, record.states, &header, out_detail));
    stretches[0] = (struct store_stretch){ .base = header.bytes, .bytes = header.count };
    record.header_bytes = header.count;
    record.file_bytes = header.count + store_data_bytes(part->layout, record.states);
    job.bytes = record.file_bytes;
    TRY(s, write_files(save->fd, &job, &record, out, out_detail));
out:
    free(header.bytes);
    free(record.sums);
    free(stretches);
    return s;
}
