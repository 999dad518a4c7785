/* SPDX-License-Identifier: MIT */
#include "daemon/step/wait.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/clock.h"

/* A worker beats every 50 ms; a long update or a machine short of memory takes a few beats away. */
static const uint64_t SILENT_NS = UINT64_C(2) * 1000 * 1000 * 1000;

/* `rank`: the first that is behind; world if none is, and what is left is this rank's own. */
static struct wait_reason about_rank(const struct engine *e, enum wait_for what, uint32_t rank)
{
    if (rank >= e->options.world)
        rank = e->options.rank;
    struct wait_reason reason = { .what = what, .rank = rank, .step = e->step };
    const struct board_head *board = engine_board(e, rank);
    reason.pid = (uint32_t)board_load(&board->trainer_pid);
    if (rank != e->options.rank && board_load(&board->beat) + SILENT_NS < clock_ns()) {
        reason.what = WAIT_SILENT;
        reason.pid = (uint32_t)board_load(&board->daemon_pid);
    } else if ((what == WAIT_TRAINER || what == WAIT_FILL) && reason.pid == 0) {
        reason.what = WAIT_NO_TRAINER;
    }
    return reason;
}

static struct wait_reason wait_for_decision(const struct engine *e)
{
    uint32_t rank = ENGINE_BEHIND(e, voted);

    if (rank < e->options.world)
        return about_rank(e, WAIT_VOTE, rank);
    return about_rank(e, WAIT_DECISION, 0);
}

/* No boards can be read: the group meets. */
static struct wait_reason lost_peer(const struct engine *e)
{
    return (struct wait_reason){ .what = e->shard != NULL ? WAIT_PEER : WAIT_NOTHING,
                                 .rank = e->missing,
                                 .step = e->step };
}

/* Of the own trainer's zero_fill_end. */
static struct wait_reason wait_for_filling(const struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&engine_board(e, r)->fill_ended) == 0)
            return about_rank(e, WAIT_FILL, r);
    return about_rank(e, WAIT_COPY, engine_behind(e, offsetof(struct board_head, fill_copied), 1));
}

struct wait_reason wait_for_step(const struct engine *e)
{
    uint32_t rank;

    if (e->comm == NULL)
        return lost_peer(e);
    switch (e->phase) {
    case PHASE_COLLECTING:
        if (e->fill_asked && !e->filled)
            return wait_for_filling(e);
        break;
    case PHASE_SUMMING:
        rank = ENGINE_BEHIND(e, asked);
        if (rank < e->options.world)
            return about_rank(e, WAIT_TRAINER, rank);
        return about_rank(e, WAIT_SUMS, e->options.rank);
    case PHASE_SHARING:
        return about_rank(e, WAIT_SUMS, ENGINE_BEHIND(e, summed));
    case PHASE_VOTED:
        rank = ENGINE_BEHIND(e, asked);
        return rank < e->options.world ? about_rank(e, WAIT_TRAINER, rank) : wait_for_decision(e);
    case PHASE_APPLIED:
        return about_rank(
            e, WAIT_UPDATE,
            engine_behind(e, offsetof(struct board_head, applied), e->record.decision.step));
    }
    return (struct wait_reason){ .what = WAIT_NOTHING };
}

/* The first rank that has not submitted a layer as often as this one; world if all have. */
static uint32_t behind_on_layer(const struct engine *e, uint32_t layer)
{
    uint64_t word = BOARD_WORD(e->attempt, e->windows[layer].k, 0);

    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&board_layers(engine_board(e, r))[layer].submitted) < word)
            return r;
    return e->options.world;
}

/* A layer of this rank that some other has not submitted as often. */
static struct wait_reason wait_for_submission(const struct engine *e)
{
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++) {
        const struct layer_window *window = &e->windows[l];
        if (window->state != WINDOW_SUBMITTED || window->attempt != e->attempt)
            continue;
        uint32_t rank = behind_on_layer(e, l);
        if (rank == e->options.world)
            continue;
        struct wait_reason reason = about_rank(e, WAIT_SUBMIT, rank);
        reason.layer = l;
        return reason;
    }
    return about_rank(e, WAIT_SUMS, e->options.rank);
}

struct wait_reason wait_for_call(const struct engine *e, const struct pending *pending)
{
    if (e->comm == NULL)
        return lost_peer(e);
    switch (pending->call) {
    case ZERO_CALL_STEP:
        return wait_for_step(e);
    case ZERO_CALL_WINDOW:
    case ZERO_CALL_SUBMIT:
        return wait_for_submission(e);
    default:
        return wait_for_filling(e);
    }
}

/* What is missing is a daemon, not a trainer. */
static void daemon_text(const struct wait_reason *reason, char *to, size_t bytes)
{
    if (reason->what == WAIT_PEER)
        snprintf(to, bytes,
                 "step %" PRIu64 ": the daemon of rank %u is gone or has not joined: the group "
                 "waits until it is back",
                 reason->step, reason->rank);
    else
        snprintf(to, bytes,
                 "step %" PRIu64 ": the daemon of rank %u (pid %u) shows no sign of life: it is "
                 "stopped, or its machine is overloaded",
                 reason->step, reason->rank, reason->pid);
}

void wait_text(const struct wait_reason *reason, const struct zero_layout *layout, char *to,
               size_t bytes)
{
    const char *layer =
        layout && reason->layer < layout->layer_count ? layout->layers[reason->layer].name : "?";
    unsigned rank = reason->rank, pid = reason->pid;

    switch (reason->what) {
    case WAIT_NOTHING:
        snprintf(to, bytes, "%s", "");
        break;
    case WAIT_NO_TRAINER:
        snprintf(to, bytes, "step %" PRIu64 ": rank %u has no trainer: start one", reason->step,
                 rank);
        break;
    case WAIT_TRAINER:
        snprintf(to, bytes,
                 "step %" PRIu64
                 ": the trainer of rank %u (pid %u) has not asked for the step: it is "
                 "computing, stopped or hung",
                 reason->step, rank, pid);
        break;
    case WAIT_SUBMIT:
        snprintf(
            to, bytes,
            "all gradient windows are in use: rank %u (trainer pid %u) has not submitted layer "
            "%s; raise zero_optimization.reduce_bucket_size if ranks submit in different orders",
            rank, pid, layer);
        break;
    case WAIT_SUMS:
        snprintf(to, bytes, "step %" PRIu64 ": rank %u is still reducing gradients", reason->step,
                 rank);
        break;
    case WAIT_VOTE:
        snprintf(to, bytes, "step %" PRIu64 ": rank %u has not voted", reason->step, rank);
        break;
    case WAIT_DECISION:
        snprintf(to, bytes, "step %" PRIu64 ": rank 0 has not decided", reason->step);
        break;
    case WAIT_UPDATE:
        snprintf(to, bytes, "step %" PRIu64 ": rank %u has not finished its update", reason->step,
                 rank);
        break;
    case WAIT_PEER:
    case WAIT_SILENT:
        daemon_text(reason, to, bytes);
        break;
    case WAIT_FILL:
        snprintf(to, bytes,
                 "rank %u (trainer pid %u) has not ended its initial values (zero_fill_end)", rank,
                 pid);
        break;
    case WAIT_COPY:
        snprintf(to, bytes, "rank %u has not copied the initial values that others own", rank);
        break;
    }
}
