/* SPDX-License-Identifier: MIT */
/* geometry.h: where every byte of a rank's file stands. It follows from the layout, the rank and
 * the states that are kept, so a reader takes no offset from a file.
 *
 *   rank-<r>.safetensors   | header, spaces to 4 KiB | region | region | ...
 *   a region               one state: the rank's shard of layer 0, of layer 1, ...
 *
 * A region is a whole number of pages. To other programs the file is plain safetensors: a tensor's
 * part in a region is named "<state>/<tensor>" with shape [elements], and "@<first element>" behind
 * that when it is not the whole tensor or when the tensor's own name has an '@'; what lies between
 * is "~pad/<k>", of bytes.
 *
 * The file is summed (XXH3-64) in blocks of 1 MiB from its first byte on, the header included.
 *
 * Owns    nothing; a header is the caller's.
 * Thread  any.
 * Fails   TOO_LARGE, NO_MEMORY.
 * Uses    layout.   Used by store.
 */
#ifndef DAEMON_STORE_GEOMETRY_H
#define DAEMON_STORE_GEOMETRY_H

#include <stdio.h>

#include "proto/layout.h"

enum store_state {
    STORE_PARAM, /* in the parameter dtype; not kept where that is fp32: then it is the master */
    STORE_MASTER,
    STORE_MOMENT1,
    STORE_MOMENT2,
    STORE_MAX_MOMENT2,
    STORE_STATES
};

extern const char *const store_state_names[STORE_STATES];

enum {
    STORE_FORMAT = 1,
    STORE_BLOCK_BYTES = 1 << 20,
    STORE_MOST_HEADER_BYTES = 100000000, /* safetensors' own limit */
};

#define STORE_HAS(states, state) (((states) >> (state)) & 1u)

/* Which states can stand together: the master, and param only where it differs from it. */
bool store_states_allowed(zero_dtype dtype, uint32_t states);

zero_dtype store_state_dtype(zero_dtype param_dtype, enum store_state state);
uint64_t store_region_bytes(const struct zero_layout *layout, enum store_state state);
/* From the end of the header. */
uint64_t store_region_offset(const struct zero_layout *layout, uint32_t states,
                             enum store_state state);
/* Of all regions. */
uint64_t store_data_bytes(const struct zero_layout *layout, uint32_t states);

struct store_header {
    unsigned char *bytes; /* page-aligned; free() */
    size_t count;         /* a multiple of 4096 */
};
zero_status store_header_create(const struct zero_layout *layout, uint32_t rank, uint32_t states,
                                struct store_header *out, struct zero_detail *out_detail);

/* The text in quotes, as JSON. */
void store_quote(FILE *to, const char *text, size_t bytes);

#endif
