/* SPDX-License-Identifier: MIT */
#include "daemon/step/update.h"

#include <math.h>
#include <string.h>

/* What an update needs that does not change from chunk to chunk of a tensor. */
struct constants {
    const struct zero_tensor *tensor; /* of which they are */
    double lr, decay;
    struct adam_constants adam;
};

static void prepare(const struct zero_config *config, const struct board_decision *decision,
                    const struct zero_tensor *tensor, struct constants *k)
{
    double lr = decision->lr * tensor->lr_scale;
    double decay = isnan(tensor->weight_decay) ? config->weight_decay : tensor->weight_decay;
    bool same = k->tensor != NULL && lr == k->lr && decay == k->decay;

    k->tensor = tensor;
    if (same)
        return;
    k->lr = lr;
    k->decay = decay;
    if (config->optimizer != ZERO_SGD)
        k->adam = adam_constants(lr, config->beta1, config->beta2, config->eps, decay,
                                 config->optimizer == ZERO_ADAMW, decision->updates);
}

static float *state_at(const struct engine *e, enum zero_arena arena, uint32_t layer,
                       uint64_t index)
{
    if (e->shard->arena[arena].bytes == 0)
        return NULL;
    return shard_own(e->shard, arena, layer, index);
}

static void *narrow_at(const struct engine *e, uint32_t layer, uint64_t index)
{
    if (e->shard->config.param_dtype == ZERO_FP32)
        return NULL;
    return shard_own(e->shard, ZERO_ARENA_param, layer, index);
}

static void step_adam(const struct engine *e, const struct board_decision *decision,
                      const struct constants *k, const struct zero_segment *run)
{
    uint32_t layer = run->layer;
    const struct adam_op op = {
        .p = state_at(e, shard_master(e->shard), layer, run->begin),
        .m = state_at(e, ZERO_ARENA_moment1, layer, run->begin),
        .v = state_at(e, ZERO_ARENA_moment2, layer, run->begin),
        .v_max = state_at(e, ZERO_ARENA_max_moment2, layer, run->begin),
        .g = state_at(e, ZERO_ARENA_grad, layer, run->begin),
        .narrow = narrow_at(e, layer, run->begin),
        .narrow_dtype = (enum kernel_dtype)e->shard->config.param_dtype,
        .count = run->end - run->begin,
        .factor = (float)decision->factor,
        .k = k->adam,
    };

    e->device->kernels->adam(&op);
}

static void step_sgd(const struct engine *e, const struct board_decision *decision,
                     const struct constants *k, const struct zero_segment *run)
{
    const struct zero_config *config = &e->shard->config;
    uint32_t layer = run->layer;
    const struct sgd_op op = {
        .p = state_at(e, shard_master(e->shard), layer, run->begin),
        .buf = state_at(e, ZERO_ARENA_moment1, layer, run->begin),
        .g = state_at(e, ZERO_ARENA_grad, layer, run->begin),
        .narrow = narrow_at(e, layer, run->begin),
        .narrow_dtype = (enum kernel_dtype)config->param_dtype,
        .count = run->end - run->begin,
        .factor = (float)decision->factor,
        .lr = (float)k->lr,
        .weight_decay = (float)k->decay,
        .momentum = (float)config->momentum,
        .one_minus_dampening = (float)(1 - config->dampening),
        .nesterov = config->nesterov,
        .first = decision->updates == 1,
    };

    e->device->kernels->sgd(&op);
}

/* The tensors' elements of a chunk. */
static void step_chunk(const struct engine *e, const struct board_decision *decision,
                       struct constants *k, uint32_t layer, struct zero_range chunk)
{
    const struct zero_config *config = &e->shard->config;
    struct zero_segment run;
    uint32_t cursor = 0;

    while (zero_layout_segment(e->shard->layout, layer, chunk, &cursor, &run)) {
        if (run.tensor != k->tensor)
            prepare(config, decision, run.tensor, k);
        if (config->optimizer == ZERO_SGD)
            step_sgd(e, decision, k, &run);
        else
            step_adam(e, decision, k, &run);
    }
}

/* Copies a chunk's state to the undo slot, or from there. */
static void copy_undo(struct engine *e, uint32_t layer, struct zero_range chunk, bool back)
{
    const enum zero_arena arenas[JOURNAL_STATES] = { shard_master(e->shard), ZERO_ARENA_moment1,
                                                     ZERO_ARENA_moment2, ZERO_ARENA_max_moment2 };
    size_t bytes = (size_t)(chunk.end - chunk.begin) * sizeof(float);

    for (int i = 0; i < JOURNAL_STATES; i++) {
        void *state = state_at(e, arenas[i], layer, chunk.begin);
        void *slot = e->journal.undo + (size_t)i * JOURNAL_CHUNK * sizeof(float);
        if (state != NULL)
            memcpy(back ? state : slot, back ? slot : state, bytes);
    }
}

/* The numbered chunks of an update; some may be done already, by a daemon that died. */
struct pass {
    uint64_t chunk; /* the next */
    struct journal_progress before;
    struct constants k;
};

static void pass_chunk(struct engine *e, struct pass *pass, uint32_t layer, struct zero_range chunk)
{
    const struct board_decision *decision = &e->record.decision;
    uint64_t number = pass->chunk++;

    if (number < pass->before.done)
        return;
    copy_undo(e, layer, chunk,
              /* back= */ number == pass->before.done && pass->before.in_flight);
    journal_begin_chunk(&e->journal, decision->updates, number);
    step_chunk(e, decision, &pass->k, layer, chunk);
    journal_end_chunk(&e->journal, decision->updates, number);
}

void update_apply(struct engine *e)
{
    struct pass pass = { .before = journal_progress(&e->journal, e->record.decision.updates) };

    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++) {
        struct zero_range range = shard_updated(e->shard, l);
        for (uint64_t at = range.begin; at < range.end; at += JOURNAL_CHUNK) {
            uint64_t end = at + JOURNAL_CHUNK < range.end ? at + JOURNAL_CHUNK : range.end;
            pass_chunk(e, &pass, l, (struct zero_range){ at, end });
        }
    }
}

uint64_t update_fetch(struct engine *e, enum zero_arena arena)
{
    uint64_t moved = 0;

    for (uint32_t r = 0; r < e->options.world; r++) {
        if (r == e->options.rank)
            continue;
        const struct shard_view from = { arena, r, e->comm->peers[r].arena[arena] };
        for (uint32_t l = 0; l < e->shard->layout->layer_count; l++) {
            struct zero_range range = shard_of_rank(e->shard, r, l);
            char *to = shard_own(e->shard, arena, l, range.begin);
            size_t bytes = (size_t)((char *)shard_own(e->shard, arena, l, range.end) - to);
            e->comm->ops->fetch(e->comm, to, shard_at(e->shard, &from, l, range.begin), bytes);
            moved += bytes;
        }
    }
    return moved;
}
