/* SPDX-License-Identifier: MIT */
#include "daemon/step/phases.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/step/calls.h"
#include "daemon/step/decide.h"
#include "daemon/step/fold.h"
#include "daemon/step/grant.h"
#include "daemon/step/keep.h"
#include "daemon/step/save.h"
#include "daemon/step/update.h"
#include "daemon/step/version.h"

#define MOST_LR 1e15 /* the config's bound: more is not finite in fp32 before long */

/* ---- the trainer asks ----------------------------------------------------------------------- */

/* Copies the arguments out of the trainer's reach before anything looks at them. */
static bool take_arguments(struct engine *e, uint32_t slot)
{
    const struct zero_ring_step *from = &e->ring->step;
    uint64_t other = 1 - e->record.blob_current;
    uint32_t blob_bytes = from->blob_bytes, scalar_count = from->scalar_count;
    struct board_vote vote = { .lr = from->lr, .scalar_count = scalar_count };

    if (blob_bytes > ZERO_RING_MAX_BLOB || scalar_count > ZERO_RING_SCALARS) {
        calls_refuse(e, slot, ZERO_TOO_LARGE,
                     "step with a blob of %u bytes and %u scalars: at most %d and %d", blob_bytes,
                     scalar_count, ZERO_RING_MAX_BLOB, ZERO_RING_SCALARS);
        return false;
    }
    if (isnan(vote.lr))
        vote.lr = e->shard->config.lr;
    if (!(vote.lr >= 0 && vote.lr <= MOST_LR)) {
        calls_refuse(e, slot, ZERO_INVALID_ARGUMENT,
                     "learning rate %g: must be finite and not "
                     "negative, or NAN for the config's",
                     vote.lr);
        return false;
    }
    memcpy(e->journal.blobs[other], from->blob, blob_bytes);
    e->record.blob_bytes[other] = blob_bytes;
    for (uint32_t i = 0; i < scalar_count; i++) {
        memcpy(vote.scalars[i].name, from->scalars[i].name, BOARD_SCALAR_NAME);
        vote.scalars[i].name[BOARD_SCALAR_NAME - 1] = '\0';
        vote.scalars[i].value = from->scalars[i].value;
    }
    e->vote = vote;
    return true;
}

void phases_ask(struct engine *e, const struct zero_ring_entry *entry)
{
    if (calls_find(e, ZERO_CALL_STEP) != ZERO_RING_NO_SLOT) {
        calls_refuse(e, entry->slot, ZERO_STEP_PENDING, "another thread is in zero_step already");
        return;
    }
    if (e->deferred.status.code != ZERO_OK) {
        calls_refuse(e, entry->slot, e->deferred.status.code, "%s", e->deferred.text);
        e->deferred.status.code = ZERO_OK;
        return;
    }
    if (e->phase == PHASE_COLLECTING) { /* otherwise it was asked before: wait on */
        if (!take_arguments(e, entry->slot))
            return;
        e->asked_ns = clock_ns();
        e->phase = PHASE_SUMMING;
        atomic_store(&e->ring->resident, 0);
        atomic_store(&e->board->asked, e->attempt);
        stats_set(&e->stats.state, STATE_STEPPING);
        engine_wake_peers(e);
    }
    calls_defer(e, entry);
}

/* ---- outcomes ------------------------------------------------------------------------------- */

void phases_begin(struct engine *e)
{
    e->phase = PHASE_COLLECTING;
    e->step_began_ns = clock_ns();
    e->step_gathered = e->step_reduced = 0;
    fold_reset(e);
    grant_reset(e);
    stats_set(&e->stats.state, e->filled ? STATE_READY : STATE_FILLING);
    stats_set(&e->stats.attempt, e->attempt);
    atomic_store(&e->board->attempt, e->attempt);
    atomic_store(&e->ring->attempt, e->attempt);
    atomic_store(&e->ring->resident, e->filled && e->attached ? 1 : 0);
    if (e->options.rank != 0)
        e->comm->ops->wake(e->comm, 0); /* it decides only when all are in the same attempt */
}

static void end_attempt(struct engine *e)
{
    e->attempt++;
    e->deferred.status.code = ZERO_OK;
    phases_begin(e);
    if (e->detaching) {
        e->detaching = false;
        engine_post(e, ENGINE_DETACHED, e->detach_token, zero_success());
    }
}

void phases_drop(struct engine *e, zero_code code, const char *text)
{
    keep_dropped(e);
    end_attempt(e);
    uint32_t slot = calls_find(e, ZERO_CALL_STEP);
    if (slot != ZERO_RING_NO_SLOT)
        calls_answer(e, slot, code, 0, text);
    calls_answer_attempt(e, ZERO_STEP_ABORTED, text);
}

static void abort_attempt(struct engine *e, const struct board_decision *decision)
{
    char text[ZERO_RING_TEXT] = "a trainer of the group was lost: repeat the step";
    zero_code code = ZERO_STEP_ABORTED;

    if (decision->outcome == BOARD_DISAGREE) {
        code = ZERO_CONFLICT;
        if (decision->scalar == BOARD_SCALARS)
            snprintf(text, sizeof text,
                     "rank %" PRIu64
                     " asked for another learning rate than rank 0: every rank must "
                     "give the same; the step was dropped",
                     decision->rank);
        else
            snprintf(text, sizeof text,
                     "rank %" PRIu64 " gave other scalars than rank 0 (at number %" PRIu64
                     "): every rank must give the same names; the step was dropped",
                     decision->rank, decision->scalar);
    }
    LOG_INFO("step %" PRIu64 " dropped: %s", e->step, text);
    phases_drop(e, code, text);
}

static void count_step(struct engine *e, const struct board_decision *decision)
{
    struct stats *stats = &e->stats;
    uint64_t now = clock_ns();

    stats_set(&stats->step, decision->step);
    stats_set(&stats->updates, decision->updates);
    stats_set(&stats->skipped_in_row, decision->skipped_in_row);
    stats_add(&stats->gathered_bytes, e->step_gathered);
    stats_add(&stats->reduced_bytes, e->step_reduced);
    stats_set(&stats->last_gathered_bytes, e->step_gathered);
    stats_set(&stats->last_reduced_bytes, e->step_reduced);
    stats_set_double(&stats->step_time, (double)(now - e->step_began_ns) * 1e-9);
    stats_set_double(&stats->forward_backward_time,
                     (double)(e->asked_ns - e->step_began_ns) * 1e-9);
    stats_set_double(&stats->parameter_update_time, (double)(now - e->asked_ns) * 1e-9);
    stats_set_double(&stats->loss_scale, decision->next_scale);
    stats_set_double(&stats->grad_norm, decision->grad_norm);
    stats_set_double(&stats->lr, decision->lr);
    for (uint32_t i = 0; i < e->vote.scalar_count; i++) {
        uint64_t words[STATS_NAME_WORDS];
        memcpy(words, e->vote.scalars[i].name, sizeof words);
        for (int w = 0; w < STATS_NAME_WORDS; w++)
            stats_set(&stats->scalar_names[i][w], words[w]);
        stats_set_double(&stats->scalars[i], decision->means[i]);
    }
    stats_set(&stats->scalar_count, e->vote.scalar_count);
    stats_set(&stats->last_step_ns, now);
}

void phases_leave_result(struct engine *e, const struct board_decision *decision)
{
    struct zero_ring_step *to = &e->ring->step;

    to->step = decision->step;
    to->updates = decision->updates;
    to->outcome = decision->outcome == BOARD_APPLY            ? 0
                  : e->shard->config.param_dtype == ZERO_FP16 ? 1
                                                              : 2;
    to->skipped_in_row = (uint32_t)decision->skipped_in_row;
    to->grad_norm = decision->grad_norm;
    to->used_lr = decision->lr;
    to->loss_scale = decision->next_scale;
    memcpy(to->means, decision->means, sizeof to->means);
}

static void answer_step(struct engine *e, const struct board_decision *decision)
{
    uint32_t slot = calls_find(e, ZERO_CALL_STEP);
    uint32_t limit = e->shard->config.max_skipped_steps;

    phases_leave_result(e, decision);
    if (slot == ZERO_RING_NO_SLOT)
        return;
    if (decision->exhausted)
        calls_refuse(e, slot, ZERO_SCALE_EXHAUSTED,
                     "gradients of step %" PRIu64
                     " overflow at the smallest loss scale %g: the model "
                     "or the data has inf or nan, or fp16 is too small for it; state is intact",
                     decision->step - 1, e->shard->config.loss_scale_min);
    else if (limit != 0 && decision->skipped_in_row >= limit)
        calls_refuse(e, slot, ZERO_TOO_MANY_SKIPS,
                     "%" PRIu64 " steps in a row had inf or nan gradients "
                     "(zerod.max_skipped_steps); state is intact",
                     decision->skipped_in_row);
    else
        calls_answer(e, slot, ZERO_OK, 0, NULL);
}

/* The step is done on every rank whose bytes this one's trainer can see. */
static void commit(struct engine *e)
{
    struct board_decision decision = e->record.decision;

    e->step = decision.step;
    e->updates = decision.updates;
    e->skipped_in_row = (uint32_t)decision.skipped_in_row;
    e->loss_scale = decision.next_scale;
    count_step(e, &decision);
    for (uint32_t slot; (slot = calls_find(e, ZERO_CALL_SUBMIT)) != ZERO_RING_NO_SLOT;)
        calls_answer(e, slot, ZERO_OK, 0, NULL);
    end_attempt(e);
    version_due(e);
    answer_step(e, &decision);
    calls_answer_attempt(e, ZERO_INVALID_STATE, "another thread ended the step");
    save_committed(e);
}

/* ---- the way there -------------------------------------------------------------------------- */

static void vote(struct engine *e)
{
    version_finish(e);
    keep_prepared(e);
    e->board->vote = e->vote;
    e->phase = PHASE_VOTED;
    atomic_store(&e->board->voted, e->attempt);
    if (e->options.rank != 0)
        e->comm->ops->wake(e->comm, 0);
}

static bool finish_sums(struct engine *e)
{
    if (ENGINE_BEHIND(e, asked) < e->options.world)
        return false;
    fold_finish(e);
    if (e->shard->config.stage != 0) {
        vote(e);
        return true;
    }
    e->phase = PHASE_SHARING;
    atomic_store(&e->board->summed, e->attempt);
    engine_wake_peers(e);
    return true;
}

static bool share_sums(struct engine *e)
{
    if (ENGINE_BEHIND(e, summed) < e->options.world)
        return false;
    e->step_reduced += update_fetch(e, ZERO_ARENA_grad);
    vote(e);
    return true;
}

/* The step is made; the successor of this process tells the trainer. */
static void freeze(struct engine *e)
{
    e->frozen = true;
    engine_post(e, ENGINE_FROZEN, 0, zero_success());
}

/* At stage 0 nobody sees another rank's bytes, and a skipped step changes none. */
static bool finish_update(struct engine *e)
{
    const struct board_decision *decision = &e->record.decision;
    uint32_t stage = e->shard->config.stage;
    bool fetches = (stage == 1 || stage == 2) && e->record.replicas < decision->step;

    if (decision->outcome == BOARD_APPLY) {
        if (stage != 0 && engine_behind(e, offsetof(struct board_head, applied), decision->step) <
                              e->options.world)
            return false;
        if (fetches)
            e->step_gathered += update_fetch(e, ZERO_ARENA_param);
    }
    if (fetches)
        keep_replicas(e);
    if (e->step < decision->step && decision->upgrade)
        freeze(e);
    else if (e->step < decision->step)
        commit(e);
    else
        phases_drop(e, ZERO_STEP_ABORTED, "a daemon of the group was lost: repeat the step");
    return true;
}

void phases_roll(struct engine *e)
{
    const struct board_decision *decision = &e->record.decision;

    if (e->record.step < decision->step) {
        if (decision->outcome == BOARD_APPLY)
            update_apply(e);
        keep_applied(e);
    }
    e->phase = PHASE_APPLIED;
    atomic_store(&e->board->applied, decision->step);
    if (e->shard->config.stage != 0)
        engine_wake_peers(e);
}

/* Rank 0's decision is there. */
static bool follow(struct engine *e)
{
    const struct board_decision *decision = &engine_board(e, 0)->decision;

    if (decision->outcome == BOARD_ABORT || decision->outcome == BOARD_DISAGREE) {
        struct board_decision copy = *decision;
        abort_attempt(e, &copy);
        return true;
    }
    if (e->options.rank != 0)
        keep_decision(e, decision);
    phases_roll(e);
    return true;
}

bool phases_pass(struct engine *e)
{
    if (e->phase == PHASE_APPLIED)
        return finish_update(e);
    if (e->options.rank == 0 && decide_pass(e))
        return true;
    if (board_load(&engine_board(e, 0)->decided) == e->attempt)
        return follow(e);
    if (e->phase == PHASE_SUMMING)
        return finish_sums(e);
    if (e->phase == PHASE_SHARING)
        return share_sums(e);
    return false;
}

bool phases_abandon(struct engine *e)
{
    bool submitted = false;

    if (e->comm == NULL)
        return true; /* the group meets again: that ends the attempt */
    if (e->phase != PHASE_COLLECTING)
        return true; /* it had asked: the step goes on without it */
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++)
        submitted = submitted || (e->windows[l].attempt == e->attempt && e->windows[l].k > 0);
    if (!submitted) {
        grant_reset(e);
        return false;
    }
    atomic_store(&e->board->abort_wanted, e->attempt);
    e->comm->ops->wake(e->comm, 0);
    return true;
}
