/* SPDX-License-Identifier: MIT */
#include "daemon/step/fill.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/step/calls.h"
#include "daemon/step/keep.h"
#include "daemon/step/phases.h"
#include "daemon/step/update.h"

enum { SOURCE_EVERY_RANK = 1, SOURCE_RANK_0 = 2 }; /* 1 + enum zero_fill_source */

void fill_write(struct engine *e, uint32_t layer, struct zero_range run, const float *values)
{
    enum zero_arena arenas[2] = { shard_master(e->shard), ZERO_ARENA_param };

    for (int i = 0; i < 2; i++) {
        enum zero_arena arena = arenas[i];
        struct zero_range own = shard_of_rank(e->shard, e->options.rank, layer);
        uint64_t begin = run.begin, end = run.end;
        if (!shard_replicated(e->shard, arena)) {
            begin = begin > own.begin ? begin : own.begin;
            end = end < own.end ? end : own.end;
        }
        if (begin >= end)
            continue;
        enum kernel_dtype dtype = arena == ZERO_ARENA_param
                                      ? (enum kernel_dtype)e->shard->config.param_dtype
                                      : KERNEL_FP32;
        e->device->kernels->narrow(shard_own(e->shard, arena, layer, begin), dtype,
                                   values + (begin - run.begin), end - begin);
    }
}

static void take_piece(struct engine *e, const struct board_fill *piece, const void *staging)
{
    const struct zero_tensor *tensor = &e->shard->layout->tensors[piece->tensor];
    struct zero_range run = { tensor->offset + piece->offset,
                              tensor->offset + piece->offset + piece->count };

    fill_write(e, tensor->layer, run,
               (const float *)((const char *)staging + piece->staging_offset));
    e->fill_progress[piece->tensor] = piece->offset + piece->count;
}

static bool piece_fits(const struct engine *e, const struct board_fill *piece)
{
    if (piece->tensor >= e->shard->layout->tensor_count)
        return false;
    const struct zero_tensor *tensor = &e->shard->layout->tensors[piece->tensor];
    return piece->count <= tensor->count && piece->offset <= tensor->count - piece->count &&
           piece->count <= ZERO_STAGING_BYTES / sizeof(float) &&
           piece->staging_offset <= ZERO_STAGING_BYTES - piece->count * sizeof(float) &&
           piece->staging_offset % sizeof(float) == 0;
}

/* This rank's values are in. A trainer that does not know it gives them again: its predecessor gave
 * them, or the answer to its own zero_fill_end died with a daemon. */
static bool late(const struct engine *e)
{
    return e->filled || atomic_load(&e->board->fill_ended) != 0;
}

void fill_from(struct engine *e, const struct zero_ring_entry *entry)
{
    if (entry->arg[0] > 1) {
        calls_refuse(e, entry->slot, ZERO_INVALID_ARGUMENT, "no such source of initial values");
        return;
    }
    if (!late(e))
        e->fill_source = entry->arg[0] + 1;
    calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
}

void fill_piece(struct engine *e, const struct zero_ring_entry *entry)
{
    const struct zero_layer *layer = &e->shard->layout->layers[entry->layer];
    struct board_fill piece = { layer->first_tensor + entry->arg[0], entry->arg[1], entry->arg[2],
                                entry->arg[3] };

    if (late(e)) {
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
        return;
    }
    if (e->fill_source == 0)
        e->fill_source = SOURCE_EVERY_RANK;
    if (e->fill_asked || calls_find(e, ZERO_CALL_FILL) != ZERO_RING_NO_SLOT) {
        calls_refuse(e, entry->slot, ZERO_INVALID_STATE,
                     "another zero_fill or zero_fill_end of this trainer is on its way");
        return;
    }
    if (e->fill_source == SOURCE_RANK_0 && e->options.rank != 0) {
        calls_refuse(e, entry->slot, ZERO_INVALID_STATE,
                     "rank %u may not fill: rank 0 was chosen as the source", e->options.rank);
        return;
    }
    if (entry->arg[0] >= layer->tensor_count || !piece_fits(e, &piece)) {
        calls_refuse(e, entry->slot, ZERO_INVALID_ARGUMENT,
                     "no elements %" PRIu64 " + %" PRIu64 " of tensor %" PRIu64 " of layer %s",
                     entry->arg[1], entry->arg[2], entry->arg[0], layer->name);
        return;
    }
    if (piece.offset != 0 && piece.offset != e->fill_progress[piece.tensor]) {
        calls_refuse(e, entry->slot, ZERO_INVALID_ARGUMENT,
                     "tensor %s is filled up to element %" PRIu64 ", not %" PRIu64
                     ": fill in order",
                     e->shard->layout->tensors[piece.tensor].name, e->fill_progress[piece.tensor],
                     piece.offset);
        return;
    }
    take_piece(e, &piece, e->shard->arena[ZERO_ARENA_staging].base);
    if (e->fill_source == SOURCE_EVERY_RANK || e->options.world == 1) {
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
        return;
    }
    calls_defer(e, entry);
    e->board->fill = piece;
    atomic_store(&e->board->fill_sent, atomic_load(&e->board->fill_sent) + 1);
    engine_wake_peers(e);
}

/* The first tensor that is not complete; NULL if all are. */
static const struct zero_tensor *unfilled(const struct engine *e)
{
    for (uint32_t t = 0; t < e->shard->layout->tensor_count; t++)
        if (e->fill_progress[t] != e->shard->layout->tensors[t].count)
            return &e->shard->layout->tensors[t];
    return NULL;
}

void fill_end(struct engine *e, const struct zero_ring_entry *entry)
{
    if (e->filled) {
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
        return;
    }
    if (e->fill_source == 0)
        e->fill_source = SOURCE_EVERY_RANK;
    bool ended = atomic_load(&e->board->fill_ended) != 0;
    const struct zero_tensor *missing = ended ? NULL : unfilled(e);
    if (missing != NULL && (e->fill_source == SOURCE_EVERY_RANK || e->options.rank == 0)) {
        calls_refuse(e, entry->slot, ZERO_INVALID_STATE,
                     "tensor %s of layer %s has %" PRIu64 " of its %" PRIu64
                     " initial values: zero_fill the rest",
                     missing->name, e->shard->layout->layers[missing->layer].name,
                     e->fill_progress[missing - e->shard->layout->tensors], missing->count);
        return;
    }
    e->fill_asked = true;
    if (!ended)
        atomic_store(&e->board->fill_source, e->fill_source);
    calls_defer(e, entry);
}

/* Another rank's piece. */
static bool take_from_rank_0(struct engine *e)
{
    const struct comm_peer *from = &e->comm->peers[0];
    uint64_t taken = atomic_load_explicit(&e->board->fill_taken, memory_order_relaxed);

    if (e->options.rank == 0 || board_load(&from->board->fill_sent) == taken)
        return false;
    struct board_fill piece = from->board->fill;
    if (piece_fits(e, &piece))
        take_piece(e, &piece, from->arena[ZERO_ARENA_staging]);
    atomic_store(&e->board->fill_taken, taken + 1);
    e->comm->ops->wake(e->comm, 0);
    return true;
}

static bool answer_piece(struct engine *e)
{
    uint32_t slot = calls_find(e, ZERO_CALL_FILL);

    if (slot == ZERO_RING_NO_SLOT)
        return false;
    for (uint32_t r = 1; r < e->options.world; r++)
        if (board_load(&engine_board(e, r)->fill_taken) != atomic_load(&e->board->fill_sent))
            return false;
    calls_answer(e, slot, ZERO_OK, 0, NULL);
    return true;
}

/* The own trainer has ended: own shards are complete once rank 0's values are in, if they come from
 * there. */
static bool end_own(struct engine *e)
{
    const struct board_head *first = engine_board(e, 0);
    uint32_t slot = calls_find(e, ZERO_CALL_FILL_END);

    if (!e->fill_asked || atomic_load(&e->board->fill_ended) != 0)
        return false;
    uint64_t source = board_load(&first->fill_source);
    if (source == 0)
        return false; /* rank 0 has not ended yet */
    if (source != e->fill_source) {
        e->fill_asked = false;
        if (slot != ZERO_RING_NO_SLOT)
            calls_refuse(e, slot, ZERO_CONFLICT,
                         "rank %u and rank 0 chose different sources of initial values "
                         "(zero_fill_from): choose the same",
                         e->options.rank);
        return true;
    }
    if (e->fill_source == SOURCE_RANK_0 && e->options.rank != 0 &&
        board_load(&first->fill_ended) == 0)
        return false;
    if (unfilled(e) != NULL)
        return false; /* the last pieces are still to be taken */
    atomic_store(&e->board->fill_ended, 1);
    engine_wake_peers(e);
    return true;
}

static bool copy_replicas(struct engine *e)
{
    if (atomic_load(&e->board->fill_copied) != 0 ||
        engine_behind(e, offsetof(struct board_head, fill_ended), 1) < e->options.world)
        return false;
    if (shard_replicated(e->shard, ZERO_ARENA_param))
        update_fetch(e, ZERO_ARENA_param);
    if (shard_replicated(e->shard, shard_master(e->shard)) &&
        shard_master(e->shard) != ZERO_ARENA_param)
        update_fetch(e, shard_master(e->shard));
    keep_filled(e);
    atomic_store(&e->board->fill_copied, 1);
    engine_wake_peers(e);
    return true;
}

static bool finish(struct engine *e)
{
    if (engine_behind(e, offsetof(struct board_head, fill_copied), 1) < e->options.world)
        return false;
    e->filled = true;
    LOG_INFO("initial values are in");
    phases_begin(e);
    uint32_t slot = calls_find(e, ZERO_CALL_FILL_END);
    if (slot != ZERO_RING_NO_SLOT)
        calls_answer(e, slot, ZERO_OK, 0, NULL);
    return true;
}

void fill_restart(struct engine *e)
{
    if (e->filled || atomic_load(&e->board->fill_ended) != 0)
        return;
    e->fill_asked = false;
    e->fill_source = 0;
}

void fill_forget(struct engine *e)
{
    e->fill_asked = false;
    e->fill_source = 0;
    memset(e->fill_progress, 0, e->shard->layout->tensor_count * sizeof *e->fill_progress);
    atomic_store(&e->board->fill_source, 0);
    atomic_store(&e->board->fill_sent, 0);
    atomic_store(&e->board->fill_taken, 0);
    atomic_store(&e->board->fill_ended, 0);
    atomic_store(&e->board->fill_copied, 0);
}

bool fill_pass(struct engine *e)
{
    if (e->filled)
        return false;
    return take_from_rank_0(e) || answer_piece(e) || end_own(e) || copy_replicas(e) || finish(e);
}
