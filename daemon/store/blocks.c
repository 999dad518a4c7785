/* SPDX-License-Identifier: MIT */
#include "daemon/store/blocks.h"

#define XXH_STATIC_LINKING_ONLY /* a state on the stack */
#include <xxhash.h>

#include "daemon/store/error.h"

/* The part of a stretch that fits, as a piece. */
static zero_status add_piece(struct store_job *job, struct store_block *block,
                             struct zero_detail *detail)
{
    const struct store_stretch *stretch = &job->stretches[job->stretch];
    uint64_t left = stretch->bytes - job->within;
    size_t room = STORE_BLOCK_BYTES - block->bytes, bytes = left < room ? (size_t)left : room;
    unsigned char *at = NULL;

    if (stretch->base != NULL) {
        at = (unsigned char *)(uintptr_t)stretch->base + job->within;
    } else {
        at = block->buffer + block->bytes;
        zero_status s = stretch->source(stretch->context, job->within, bytes, at, detail);
        if (zero_failed(s))
            return s;
    }
    block->pieces[block->count++] = (struct iovec){ at, bytes };
    block->bytes += bytes;
    job->within += bytes;
    if (job->within == stretch->bytes) {
        job->stretch++;
        job->within = 0;
    }
    return zero_success();
}

zero_status store_next_block(struct store_job *job, struct store_block *out, bool *out_more,
                             struct zero_detail *out_detail)
{
    *out_more = false;
    if (job->progress != NULL && atomic_load(&job->progress->cancel))
        return store_refuse(out_detail, ZERO_INVALID_STATE, "%s: the save was cancelled",
                            job->name);
    out->index = job->next;
    out->offset = job->next * STORE_BLOCK_BYTES;
    out->bytes = 0;
    out->count = out->first = 0;
    while (out->bytes < STORE_BLOCK_BYTES && job->stretch < job->stretch_count) {
        zero_status s = add_piece(job, out, out_detail);
        if (zero_failed(s))
            return s;
    }
    job->next++;
    *out_more = out->bytes > 0;
    return zero_success();
}

void store_sum_block(struct store_job *job, const struct store_block *block)
{
    XXH3_state_t state;

    if (block->count == 1) {
        job->sums[block->index] = XXH3_64bits(block->pieces[0].iov_base, block->bytes);
        return;
    }
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset(&state);
    for (unsigned p = 0; p < block->count; p++)
        XXH3_64bits_update(&state, block->pieces[p].iov_base, block->pieces[p].iov_len);
    job->sums[block->index] = XXH3_64bits_digest(&state);
}

size_t store_shorten_block(struct store_block *block, size_t written)
{
    /* O_DIRECT goes on at a page only; a disk that fills up may stop within one */
    size_t pages = written / ZERO_PAGE_BYTES * ZERO_PAGE_BYTES, left = pages;

    while (left > 0) {
        struct iovec *piece = &block->pieces[block->first];
        size_t bytes = piece->iov_len < left ? piece->iov_len : left;
        piece->iov_base = (unsigned char *)piece->iov_base + bytes;
        piece->iov_len -= bytes;
        left -= bytes;
        block->first += piece->iov_len == 0;
    }
    block->offset += pages;
    block->bytes -= pages;
    return pages;
}
