/* SPDX-License-Identifier: MIT */
/* blocks.h: a rank's file cut into blocks of 1 MiB, each a list of page-aligned pieces of memory,
 * and the sum of each.
 *
 * Owns    nothing.
 * Thread  store_next_block under the caller's lock; store_sum_block any.
 * Fails   what a source fails with.
 * Uses    geometry, save.   Used by stream.
 */
#ifndef DAEMON_STORE_BLOCKS_H
#define DAEMON_STORE_BLOCKS_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "daemon/store/save.h"

enum { STORE_BLOCK_PIECES = STORE_BLOCK_BYTES / ZERO_PAGE_BYTES };

/* What is to be written, in order; base NULL: the source is asked. */
struct store_stretch {
    const unsigned char *base;
    uint64_t bytes; /* a multiple of 4096 */
    store_source *source;
    void *context;
};

/* One file's writing. */
struct store_job {
    int fd;
    const char *name; /* for errors */
    const struct store_stretch *stretches;
    size_t stretch_count;
    uint64_t bytes; /* of all stretches */
    uint64_t *sums; /* one a block */
    struct store_progress *progress;
    size_t stretch;  /* where the next block begins, */
    uint64_t within; /* and how far into that one */
    uint64_t next;   /* block */
};

struct store_block {
    uint64_t index, offset;
    size_t bytes;
    unsigned count, first; /* pieces, and the first that is not written whole */
    struct iovec pieces[STORE_BLOCK_PIECES];
    unsigned char *buffer; /* STORE_BLOCK_BYTES, for what a source gives; NULL if there is none */
};

/* False at the end. */
zero_status store_next_block(struct store_job *job, struct store_block *out, bool *out_more,
                             struct zero_detail *out_detail);
void store_sum_block(struct store_job *job, const struct store_block *block);

/* Takes bytes off the front that are written, whole pages of them; the bytes taken. */
size_t store_shorten_block(struct store_block *block, size_t written);

#endif
