/* SPDX-License-Identifier: MIT */
#include "daemon/step/decide.h"

#include <math.h>
#include <string.h>

#include "daemon/step/keep.h"
#include "daemon/step/lead.h"

static void publish(struct engine *e, const struct board_decision *decision)
{
    if (decision->outcome == BOARD_APPLY || decision->outcome == BOARD_SKIP)
        keep_decision(e, decision); /* before anybody can act on it */
    e->board->decision = *decision;
    atomic_store(&e->board->decided, e->attempt);
    engine_wake_peers(e);
}

/* One decision is kept, so no rank may be behind it by more than one. */
static bool all_in_attempt(const struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&engine_board(e, r)->attempt) != e->attempt)
            return false;
    return true;
}

static bool abort_wanted(const struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&engine_board(e, r)->abort_wanted) == e->attempt)
            return true;
    return false;
}

static bool all_voted(const struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&engine_board(e, r)->voted) != e->attempt)
            return false;
    return true;
}

static bool votes_agree(const struct engine *e, struct board_decision *decision)
{
    const struct board_vote *first = &engine_board(e, 0)->vote;

    for (uint32_t r = 1; r < e->options.world; r++) {
        const struct board_vote *vote = &engine_board(e, r)->vote;
        decision->rank = r;
        decision->scalar = BOARD_SCALARS;
        if (vote->lr != first->lr)
            return false;
        decision->scalar = 0;
        if (vote->scalar_count != first->scalar_count)
            return false;
        for (; decision->scalar < vote->scalar_count; decision->scalar++)
            if (strcmp(vote->scalars[decision->scalar].name,
                       first->scalars[decision->scalar].name) != 0)
                return false;
    }
    return true;
}

/* The sum of squares of the group's summed gradients: partials of a fixed grid, added in order of
 * the flat index; so it is the same for every world size and stage. */
static double square_sum(const struct engine *e)
{
    const struct zero_layout *layout = e->shard->layout;
    double total = 0;

    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        for (uint32_t r = 0; r < e->options.world; r++) {
            const double *partial = board_norms(engine_board(e, r), layout->layer_count) +
                                    layer->shard_offset / ZERO_NORM_CHUNK;
            for (uint64_t c = 0; c < layer->shard / ZERO_NORM_CHUNK; c++)
                total += partial[c];
        }
    }
    return total;
}

static void average_scalars(const struct engine *e, struct board_decision *decision)
{
    for (uint64_t i = 0; i < engine_board(e, 0)->vote.scalar_count; i++) {
        double sum = 0;
        for (uint32_t r = 0; r < e->options.world; r++)
            sum += engine_board(e, r)->vote.scalars[i].value;
        decision->means[i] = sum / e->options.world;
    }
}

static void decide_step(struct engine *e, struct board_decision *decision)
{
    const struct zero_config *config = &e->shard->config;
    double total = square_sum(e);
    /* the mean over ranks and micro-steps, unscaled by the scale that backward used */
    double inverse =
        1 / ((double)e->options.world * (double)config->accumulation * e->scaler.scale);
    bool finite = isfinite(total);

    decision->grad_norm = sqrt(total) * inverse;
    decision->factor = inverse;
    if (config->gradient_clipping > 0) {
        double clip = config->gradient_clipping / (decision->grad_norm + 1e-6);
        if (clip < 1)
            decision->factor = inverse * clip;
    }
    decision->outcome = finite ? BOARD_APPLY : BOARD_SKIP;
    decision->exhausted = scaler_update(&e->scaler, !finite);
    decision->step = e->step + 1;
    decision->updates = e->updates + finite;
    decision->skipped_in_row = finite ? 0 : e->skipped_in_row + 1;
    decision->lr = engine_board(e, 0)->vote.lr;
    decision->next_scale = e->scaler.scale;
    decision->upgrade = e->upgrade_wanted;
    average_scalars(e, decision);
}

bool decide_pass(struct engine *e)
{
    struct board_decision decision = { .outcome = BOARD_ABORT };

    if (atomic_load_explicit(&e->board->decided, memory_order_relaxed) == e->attempt ||
        !all_in_attempt(e))
        return false;
    if (abort_wanted(e)) {
        publish(e, &decision);
        return true;
    }
    if (lead_holds(e) || !all_voted(e))
        return false;
    if (votes_agree(e, &decision))
        decide_step(e, &decision);
    else
        decision.outcome = BOARD_DISAGREE;
    publish(e, &decision);
    return true;
}
