/* SPDX-License-Identifier: MIT */
/* part.h: rank-<r>.json, what is known about one rank's file: a sealed text (sealed.h).
 *
 *   {"format": 1, "rank": 0, "world": 2, "step": 7, "save": "<id>", "states": ["master", ...],
 *    "header_bytes": 4096, "file_bytes": 1052672, "block_bytes": 1048576,
 *    "blob": "<hexadecimal>", "blocks": "<16 digits of XXH3-64 for each block>",
 *    "checksum": ...}
 *
 * Owns    a record: its blob and sums.
 * Thread  any.
 * Fails   CORRUPT, VERSION, TOO_LARGE, IO, NO_MEMORY.
 * Uses    geometry, sealed, parse.   Used by store.
 */
#ifndef DAEMON_STORE_PART_H
#define DAEMON_STORE_PART_H

#include "daemon/store/save.h"
#include "daemon/store/sealed.h"

struct store_record {
    uint32_t rank, world;
    uint64_t step;
    char id[STORE_ID_CHARS + 1];
    uint32_t states;
    uint64_t header_bytes, file_bytes;
    unsigned char *blob;
    size_t blob_bytes;
    uint64_t *sums; /* one a block of the file */
    uint64_t sum_count;
    struct store_sum self; /* of the record's own text, once it was read */
};

struct store_name {
    char text[48];
};

struct store_name store_part_name(uint32_t rank, const char *ending); /* "rank-0.json" */

uint64_t store_blocks_of(uint64_t file_bytes);

zero_status store_record_write(int folder, const struct store_record *record,
                               struct zero_detail *out_detail);

/* Reads and checks a rank's record against the layout. */
zero_status store_record_read(int folder, const struct zero_layout *layout, uint32_t rank,
                              struct store_record *out, struct zero_detail *out_detail);
/* The parser alone, for a text whose seal was checked; out->rank is given, and the caller deinits
 * out whatever the status. */
zero_status store_record_parse(const struct store_file *file, const struct zero_layout *layout,
                               struct store_record *out, struct zero_detail *out_detail);
void store_record_deinit(struct store_record *record);

/* The list of states as JSON, and one of its members read. */
void store_write_states(FILE *to, uint32_t states);
struct store_value;
zero_status store_take_state(const struct store_value *value, uint32_t *states,
                             struct zero_detail *out_detail);

#endif
