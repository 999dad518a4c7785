/* SPDX-License-Identifier: MIT */
/* ranks.h: an open checkpoint: the ranks' files, read block by block against their sums.
 *
 * Owns    everything in a store.
 * Thread  one at a time.
 * Fails   CORRUPT with file and bytes, IO.
 * Uses    manifest, part.   Used by store, verify.
 */
#ifndef DAEMON_STORE_RANKS_H
#define DAEMON_STORE_RANKS_H

#include "daemon/store/manifest.h"
#include "daemon/store/part.h"
#include "daemon/store/store.h"

struct store_rank {
    struct store_record record;
    struct store_name name;
    struct store_file file; /* fd -1: not open */
};

struct store {
    struct store_manifest manifest;
    struct store_facts facts;
    struct store_rank *ranks;
    unsigned char *block; /* the last one read, */
    uint32_t block_rank;  /* of this rank, */
    uint64_t block_index; /* and this one of its blocks; UINT64_MAX: none */
};

/* Bytes of a block of a rank's file: the last is shorter. */
size_t store_block_bytes(const struct store_record *record, uint64_t index);

/* Reads a block into `to` and compares its sum. */
zero_status store_load_block(struct store *store, uint32_t rank, uint64_t index, void *to,
                             struct zero_detail *out_detail);

/* Bytes of a rank's file, from the blocks that hold them. */
zero_status store_load_bytes(struct store *store, uint32_t rank, struct zero_range bytes, void *out,
                             struct zero_detail *out_detail);

#endif
