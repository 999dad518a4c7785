/* SPDX-License-Identifier: MIT */
#include "daemon/step/read.h"

#include <inttypes.h>

#include "daemon/step/calls.h"

/* Arenas by enum zero_state: master, moment1, moment2, max_moment2, param. */
static enum zero_arena arena_of(const struct engine *e, uint64_t state)
{
    switch (state) {
    case 0:
        return shard_master(e->shard);
    case 1:
        return ZERO_ARENA_moment1;
    case 2:
        return ZERO_ARENA_moment2;
    case 3:
        return ZERO_ARENA_max_moment2;
    case 4:
        return ZERO_ARENA_param;
    default:
        return ZERO_ARENA_COUNT;
    }
}

/* Copies a run of a layer's flat vector, from whichever ranks have its parts. */
static void copy_run(struct engine *e, enum zero_arena arena, uint32_t layer, struct zero_range run,
                     float *to)
{
    enum kernel_dtype dtype =
        arena == ZERO_ARENA_param ? (enum kernel_dtype)e->shard->config.param_dtype : KERNEL_FP32;

    for (uint64_t at = run.begin; at < run.end;) {
        uint64_t end;
        uint32_t rank = shard_holder(e->shard, arena, layer, at, &end);
        end = end < run.end ? end : run.end;
        const struct shard_view view = { arena, rank, e->comm->peers[rank].arena[arena] };
        const void *from = shard_at(e->shard, &view, layer, at);
        e->device->kernels->widen(to + (at - run.begin), from, dtype, end - at);
        at = end;
    }
}

void read_state(struct engine *e, const struct zero_ring_entry *entry)
{
    const struct zero_layer *layer = &e->shard->layout->layers[entry->layer];
    uint64_t index = entry->arg[0] & UINT32_MAX, offset = entry->arg[1], count = entry->arg[2];
    uint64_t staging = entry->arg[3];
    enum zero_arena arena = arena_of(e, entry->arg[0] >> 32);

    if (e->phase != PHASE_COLLECTING) {
        calls_refuse(e, entry->slot, ZERO_STEP_PENDING,
                     "state is read between steps: wait for the step first");
        return;
    }
    if (arena == ZERO_ARENA_COUNT || e->shard->arena[arena].bytes == 0) {
        calls_refuse(e, entry->slot, ZERO_NOT_FOUND,
                     "this optimizer and precision have no such state");
        return;
    }
    uint64_t known = index < layer->tensor_count ? index : 0;
    const struct zero_tensor *tensor = &e->shard->layout->tensors[layer->first_tensor + known];
    if (index >= layer->tensor_count || count > tensor->count || offset > tensor->count - count ||
        count > ZERO_STAGING_BYTES / sizeof(float) || staging % sizeof(float) != 0 ||
        staging > ZERO_STAGING_BYTES - count * sizeof(float)) {
        calls_refuse(e, entry->slot, ZERO_INVALID_ARGUMENT,
                     "no elements %" PRIu64 " + %" PRIu64 " of tensor %" PRIu64 " of layer %s",
                     offset, count, index, layer->name);
        return;
    }
    struct zero_range run = { tensor->offset + offset, tensor->offset + offset + count };
    copy_run(e, arena, entry->layer, run,
             (float *)((char *)e->shard->arena[ZERO_ARENA_staging].base + staging));
    calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
}
