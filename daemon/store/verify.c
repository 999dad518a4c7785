/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"
#include "daemon/store/ranks.h"
#include "daemon/store/store.h"
#include "kernels/element.h"

struct search {
    struct store *store;
    const struct store_watch *watch;
    struct store_findings *findings;
    unsigned char *buffer; /* a block */
};

static void report(struct search *search, uint32_t rank, const struct zero_detail *what)
{
    struct store_name name = store_part_name(rank, "safetensors");
    const struct store_problem problem = { name.text, what->text };

    search->findings->problems++;
    if (search->watch != NULL && search->watch->problem != NULL)
        search->watch->problem(search->watch->context, &problem);
}

static bool is_nonfinite(const unsigned char *at, zero_dtype dtype)
{
    uint16_t half;
    uint32_t whole;

    if (dtype == ZERO_FP32) {
        memcpy(&whole, at, sizeof whole);
        return (whole & ELEMENT_INFINITY) == ELEMENT_INFINITY;
    }
    uint16_t infinity = dtype == ZERO_BF16 ? 0x7f80 : 0x7c00;
    memcpy(&half, at, sizeof half);
    return (half & infinity) == infinity;
}

/* inf and nan of a region within a block, whose bytes are [start, start + bytes) of the file. */
static uint64_t count_nonfinite(const struct search *search, const struct store_record *record,
                                uint64_t start, size_t bytes, enum store_state state)
{
    const struct zero_layout *layout = search->store->manifest.layout;
    zero_dtype dtype = store_state_dtype(layout->dtype, state);
    size_t size = zero_dtype_bytes(dtype);
    uint64_t begin = record->header_bytes + store_region_offset(layout, record->states, state);
    uint64_t end = begin + store_region_bytes(layout, state), count = 0;

    begin = begin < start ? start : begin;
    end = end > start + bytes ? start + bytes : end;
    for (uint64_t at = begin; at < end; at += size)
        count += is_nonfinite(search->buffer + (at - start), dtype);
    return count;
}

static zero_status look_at_block(struct search *search, uint32_t rank, uint64_t index,
                                 struct zero_detail *detail)
{
    const struct store_record *record = &search->store->ranks[rank].record;
    size_t bytes = store_block_bytes(record, index);
    zero_status s = store_load_block(search->store, rank, index, search->buffer, detail);

    /* unreadable or not what was written: the rest is worth looking at all the same */
    if (zero_failed(s))
        report(search, rank, detail);
    for (enum store_state k = STORE_PARAM; k <= STORE_MASTER && !zero_failed(s); k++)
        if (STORE_HAS(record->states, k))
            search->findings->nonfinite +=
                count_nonfinite(search, record, index * STORE_BLOCK_BYTES, bytes, k);
    search->findings->bytes += bytes;
    if (search->watch == NULL || search->watch->progress == NULL)
        return zero_success();
    atomic_fetch_add(&search->watch->progress->bytes, bytes);
    if (atomic_load(&search->watch->progress->cancel))
        return store_refuse(detail, ZERO_INVALID_STATE, "the check was cancelled");
    return zero_success();
}

/* What other programs read a rank's file by must say what we go by. */
static zero_status look_at_header(struct search *search, uint32_t rank, struct zero_detail *detail)
{
    struct store *store = search->store;
    const struct store_record *record = &store->ranks[rank].record;
    struct store_header header;
    zero_status s =
        store_header_create(store->manifest.layout, rank, record->states, &header, detail);

    if (zero_failed(s))
        return s;
    bool same = header.count == record->header_bytes;
    for (uint64_t at = 0, take; at < header.count && same; at += take) {
        struct zero_detail ignored; /* a block that does not match its sum is reported as such */
        take = header.count - at < STORE_BLOCK_BYTES ? header.count - at : STORE_BLOCK_BYTES;
        struct zero_range bytes = { at, at + take };
        if (!zero_failed(store_load_bytes(store, rank, bytes, search->buffer, &ignored)))
            same = memcmp(search->buffer, header.bytes + at, take) == 0;
    }
    free(header.bytes);
    if (!same) {
        store_refuse(detail, ZERO_CORRUPT,
                     "rank-%" PRIu32 ".safetensors: its header does not name what is in it", rank);
        report(search, rank, detail);
    }
    return s;
}

zero_status store_verify(struct store *store, const struct store_watch *watch,
                         struct store_findings *out, struct zero_detail *out_detail)
{
    struct search search = { .store = store, .watch = watch, .findings = out };
    zero_status s = zero_success();

    *out = (struct store_findings){ .bytes = 0 };
    search.buffer = aligned_alloc(ZERO_PAGE_BYTES, STORE_BLOCK_BYTES);
    if (search.buffer == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a block");
    for (uint32_t r = 0; r < store->manifest.world && !zero_failed(s); r++) {
        uint64_t blocks = store->ranks[r].record.sum_count;
        for (uint64_t b = 0; b < blocks && !zero_failed(s); b++)
            s = look_at_block(&search, r, b, out_detail);
        if (!zero_failed(s))
            s = look_at_header(&search, r, out_detail);
    }
    free(search.buffer);
    return s;
}
