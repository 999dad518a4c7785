/* SPDX-License-Identifier: MIT */
/* plan.h: the bytes of every arena of one rank, as the daemon allocates them.
 *
 * The daemon takes its sizes from here and zeroctl plan prints them, so the two cannot differ.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   TOO_LARGE when a size passes 63 bits.
 * Uses    layout, config.   Used by zeroctl, daemon.
 */
#ifndef ZERO_PLAN_H
#define ZERO_PLAN_H

#include "proto/config.h"
#include "proto/layout.h"

/* The arenas of a rank, in the order of the enum below. ARENA(name, what it holds). */
#define ZERO_ARENAS(ARENA)                                                        \
    ARENA(param, "parameters as trainers see them")                               \
    ARENA(master, "fp32 master weights; none where the parameters are fp32")      \
    ARENA(moment1, "first moment, or SGD's momentum")                             \
    ARENA(moment2, "second moment")                                               \
    ARENA(max_moment2, "largest second moment, amsgrad only")                     \
    ARENA(grad, "fp32 sums of the submitted gradients")                           \
    ARENA(window, "gradients while the trainer writes and the ranks reduce them") \
    ARENA(board, "this rank's progress, votes and norm partials, read by peers")  \
    ARENA(staging, "initial values in, state out")                                \
    ARENA(journal, "what a daemon's successor goes on from")

enum zero_arena {
#define ARENA(name, what) ZERO_ARENA_##name,
    ZERO_ARENAS(ARENA)
#undef ARENA
        ZERO_ARENA_COUNT
};

extern const char *const zero_arena_names[ZERO_ARENA_COUNT];
extern const char *const zero_arena_what[ZERO_ARENA_COUNT];

struct zero_plan {
    uint64_t bytes[ZERO_ARENA_COUNT];   /* page multiples; 0: the arena does not exist */
    char formula[ZERO_ARENA_COUNT][80]; /* "2 B x 120576 / 2", for people */
    uint64_t total;
};

enum {
    ZERO_STAGING_BYTES = 1 << 20,
    ZERO_JOURNAL_BYTES = 3 * 4096 + 2 * 65536 + 4 * 2048, /* head, records, blobs, undo slot */
};

/* For a model with a layout: exact. */
zero_status zero_plan_layout(const struct zero_layout *layout, const struct zero_config *config,
                             struct zero_plan *out, struct zero_detail *out_detail);

/* For a number of parameters without a layer list: the same formulas without padding. */
zero_status zero_plan_count(uint64_t params, const struct zero_config *config,
                            struct zero_plan *out, struct zero_detail *out_detail);

/* A rank's versions: the bytes of one, how many it keeps at most, and the bytes of those. Made when
 * somebody asks, so they are no part of the plan's total. elements: flat_total of a layout, or a
 * number of parameters. */
struct zero_versions_plan {
    uint64_t each, count, total;
};
struct zero_versions_plan zero_plan_versions(uint64_t elements, const struct zero_config *config);

/* Bytes of the copy that a rank writes to the disk from, while a checkpoint is saved: its shards of
 * all that is kept. elements: shard_total of a layout. Over 64 bits: UINT64_MAX. */
uint64_t zero_plan_copy(uint64_t elements, const struct zero_config *config);

/* Bytes a rank moves to or from its peers in one step of `accumulation` micro-steps in which every
 * layer is submitted each time and, at stage 3, gathered twice each time: the table of the design
 * with the ring factor (world-1)/world. */
struct zero_traffic {
    uint64_t gathered, reduced;
};
struct zero_traffic zero_plan_traffic(const struct zero_layout *layout,
                                      const struct zero_config *config);

/* The same for a number of parameters without a layer list. Over 64 bits: UINT64_MAX. */
struct zero_traffic zero_plan_traffic_count(uint64_t params, const struct zero_config *config);

/* Bytes of the model states of one rank by the ZeRO paper's formula: 2 for the parameter, 2 for its
 * gradient, 12 for Adam in fp32, each divided by the world from its stage on; rounded up. */
uint64_t zero_plan_paper(uint64_t params, const struct zero_config *config);

#endif
