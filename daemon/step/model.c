/* SPDX-License-Identifier: MIT */
#include "daemon/step/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/calls.h"
#include "daemon/step/claim.h"
#include "daemon/step/fill.h"
#include "daemon/step/finish.h"
#include "daemon/step/fold.h"
#include "daemon/step/keep.h"
#include "daemon/step/phases.h"
#include "daemon/step/restore.h"
#include "daemon/step/save.h"
#include "daemon/step/version.h"
#include "daemon/step/wait.h"

/* ---- own state ------------------------------------------------------------------------------ */

static zero_status make_tables(struct engine *e)
{
    const struct zero_layout *layout = e->shard->layout;

    e->folds = calloc(layout->layer_count, sizeof *e->folds);
    e->open = calloc(layout->layer_count, sizeof *e->open);
    e->windows = calloc(layout->layer_count, sizeof *e->windows);
    e->fill_progress = calloc(layout->tensor_count, sizeof *e->fill_progress);
    if (!e->folds || !e->open || !e->windows || !e->fill_progress)
        return FAIL(NO_MEMORY, "prepare model", "for %u layers", layout->layer_count);
    return window_map_init(&e->window_map, e->shard->plan.bytes[ZERO_ARENA_window],
                           layout->layer_count);
}

static void start_board(struct engine *e)
{
    e->board = e->shard->arena[ZERO_ARENA_board].base;
    e->layers = board_layers(e->board);
    e->norms = board_norms(e->board, e->shard->layout->layer_count);
    e->board->version = BOARD_VERSION;
    e->board->magic = BOARD_MAGIC;
}

/* A new journal, or the one that was kept. */
static zero_status start_journal(struct engine *e, bool kept)
{
    void *base = e->shard->arena[ZERO_ARENA_journal].base;
    const struct journal_head identity = { .rank = e->options.rank,
                                           .world = e->options.world,
                                           .model = e->shard->hash };

    if (kept)
        return journal_open(&e->journal, base, &identity, &e->record);
    scaler_init(&e->record.scaler, &e->shard->config);
    e->record.loss_scale = e->record.scaler.scale;
    journal_init(&e->journal, base, &identity, &e->record);
    return zero_success();
}

/* What a trainer sees, from what was kept. */
static void start_state(struct engine *e)
{
    const struct journal_record *record = &e->record;
    uint64_t attempt = board_load(&e->board->attempt); /* the board outlives its daemon too */

    e->epoch = record->epoch;
    e->attempt = attempt > record->attempt ? attempt : record->attempt;
    e->step = record->step;
    e->updates = record->updates;
    e->skipped_in_row = (uint32_t)record->skipped_in_row;
    e->loss_scale = record->loss_scale;
    e->scaler = record->scaler;
    atomic_store(&e->board->applied, record->step);
    stats_set(&e->stats.step, e->step);
    stats_set(&e->stats.updates, e->updates);
    stats_set_double(&e->stats.loss_scale, e->loss_scale);
    stats_set_double(&e->stats.lr, e->shard->config.lr);
}

/* ---- meeting -------------------------------------------------------------------------------- */

/* What of the board would be taken for news in the next group. */
static void calm_board(struct engine *e)
{
    atomic_store(&e->board->trainer_pid, e->trainer_pid);
    atomic_store(&e->board->daemon_pid, (uint64_t)getpid());
    atomic_store(&e->board->beat, clock_ns());
    atomic_store(&e->board->leaving, 0);
    atomic_store(&e->board->listening, 0);
    atomic_store(&e->board->finishing, 0);
    fill_forget(e);
    save_drop(e, "a daemon of the group was lost meanwhile");
}

static void on_wait(void *context, uint32_t missing)
{
    struct engine *e = context;
    uint64_t now = clock_ns();

    e->missing = missing;
    stats_set(&e->stats.beat, now);
    finish_meeting(e, missing);
    atomic_store_explicit(&e->board->beat, now, memory_order_relaxed);
    if (e->attached)
        calls_expire(e, now);
    stats_set(&e->stats.waiting, WAIT_PEER);
    stats_set(&e->stats.waiting_rank, missing);
}

/* The loop's thread looks at it, for the peers' fds. */
static void set_comm(struct engine *e, struct comm *comm)
{
    pthread_mutex_lock(&e->mail.lock);
    e->comm = comm;
    pthread_mutex_unlock(&e->mail.lock);
}

static zero_status join(struct engine *e, uint32_t deadline_ms)
{
    struct comm_group group = {
        .rank = e->options.rank,
        .world = e->options.world,
        .standing = { .epoch = e->epoch,
                      .attempt = e->attempt,
                      .step = e->record.step,
                      .prepared = e->record.prepared,
                      .filled = e->record.filled,
                      .submissions = atomic_load(&e->board->submissions),
                      .decision = e->record.decision },
        .listener = e->options.peer_listener,
        .dir = e->options.dir,
        .text = e->shard->text,
        .arenas = e->shard->arena,
        .bell = &e->bell_buf,
        .deadline_ms = deadline_ms,
        .on_wait = on_wait,
        .context = e,
    };

    struct comm *comm = NULL;
    memcpy(group.standing.origin, e->journal.head->origin, COMM_ORIGIN_BYTES);
    zero_status s = e->options.comm->join(&group, e->device, &comm);

    if (!zero_failed(s))
        set_comm(e, comm);
    return s;
}

/* Every rank's step is rank 0's decision, or the one before with the gradients for it. */
static zero_status check_steps(const struct engine *e)
{
    const struct comm_peer *peers = e->comm->peers;
    uint64_t decided = peers[0].standing.decision.step;

    for (uint32_t r = 0; r < e->options.world; r++) {
        const struct comm_standing *standing = &peers[r].standing;
        if (standing->step == decided ||
            (standing->step + 1 == decided && standing->prepared == decided))
            continue;
        return FAIL(CORRUPT, "meet peers",
                    "rank %u is at step %" PRIu64 " (gradients kept for step %" PRIu64
                    "), and rank 0 decided step %" PRIu64 ": their states do not belong together; "
                    "restore the newest checkpoint",
                    r, standing->step, standing->prepared, decided);
    }
    return zero_success();
}

static void agree(struct engine *e)
{
    bool filled = true;

    for (uint32_t r = 0; r < e->options.world; r++) {
        const struct comm_standing *standing = &e->comm->peers[r].standing;
        e->epoch = standing->epoch > e->epoch ? standing->epoch : e->epoch;
        e->attempt = standing->attempt > e->attempt ? standing->attempt : e->attempt;
        e->seen[r] = standing->submissions;
        filled = filled && standing->filled != 0;
    }
    e->epoch++;
    e->attempt++;
    e->filled = filled;
    fold_forget(e);
    stats_set(&e->stats.epoch, e->epoch);
    keep_joined(e);
}

/* Begins the first attempt, or ends the last step. */
static void begin(struct engine *e)
{
    const struct board_decision decision = e->comm->peers[0].standing.decision;

    if (decision.step == 0) {
        phases_drop(e, ZERO_STEP_ABORTED, "a daemon of the group was lost: repeat the step");
        calls_answer_all(e, ZERO_STEP_ABORTED, "a daemon of the group was lost: begin again");
        return;
    }
    if (e->record.step < decision.step)
        keep_decision(e, &decision);
    phases_roll(e);
}

static zero_status enter(struct engine *e, uint32_t deadline_ms)
{
    zero_status s;

    calm_board(e);
    TRY(s, join(e, deadline_ms));
    TRY(s, check_steps(e));
    agree(e);
    begin(e);
    finish_met(e);
    LOG_INFO("joined epoch %" PRIu64 " as rank %u of %u at step %" PRIu64, e->epoch,
             e->options.rank, e->options.world, e->step);
out:
    if (zero_failed(s))
        finish_not_met(e);
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static zero_status lodge(struct engine *e, const struct engine_model *model)
{
    if (model->kept != NULL) {
        e->lodged = true;
        return zero_success();
    }
    e->lodged = notify_held();
    if (e->lodged)
        return shard_lodge(e->shard, e->description);
    LOG_WARNING("nobody holds the arenas (no NOTIFY_SOCKET): they will not outlive this daemon");
    return zero_success();
}

static zero_status build(struct engine *e, struct engine_model *model)
{
    const struct shard_spec spec = { .rank = e->options.rank,
                                     .layout = model->layout,
                                     .config = &model->config,
                                     .kept = model->kept,
                                     .kept_count = model->kept_count };
    zero_status s;

    model->layout = NULL;
    e->description = model->description;
    TRY(s, shard_create(e->device, &spec, &e->shard));
    TRY(s, make_tables(e));
    start_board(e);
    TRY(s, start_journal(e, model->kept != NULL));
    if (model->kept == NULL) {
        TRY(s, claim_take(e));
        TRY(s, restore_model(e));
    } else if (e->options.restore != NULL) {
        LOG_INFO("--restore is ignored: the state in memory is newer");
    }
    start_state(e);
    s = lodge(e, model);
out:
    return s;
}

/* The others may need as long as this rank did, to read a checkpoint. */
static uint32_t patience_ms(const struct engine_model *model, uint64_t began)
{
    uint64_t most = model->config.deadline_ms + (clock_ns() - began) / 1000000;

    return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

zero_status model_join(struct engine *e, struct engine_model *model)
{
    bool kept = model->kept != NULL;
    uint64_t began = clock_ns();
    zero_status s;

    stats_set(&e->stats.state, STATE_JOINING);
    TRY(s, build(e, model));
    if (kept)
        save_look(e);
    s = enter(e, kept ? 0 : patience_ms(model, began));
out:
    zero_layout_destroy(model->layout);
    if (zero_failed(s) && !kept && e->lodged)
        shard_dislodge(e->shard);
    if (zero_failed(s))
        model_leave(e);
    return s;
}

zero_status model_meet(struct engine *e)
{
    struct comm *comm = e->comm;

    stats_set(&e->stats.state, STATE_JOINING);
    version_restart(e);
    set_comm(e, NULL);
    comm->ops->leave(comm);
    return enter(e, /* deadline_ms= */ 0);
}

void model_leave(struct engine *e)
{
    save_destroy(e);
    claim_give(e);
    if (e->comm != NULL)
        e->comm->ops->leave(e->comm);
    e->comm = NULL;
    window_map_deinit(&e->window_map);
    free(e->folds);
    free(e->open);
    free(e->windows);
    free(e->fill_progress);
    e->folds = NULL;
    e->open = NULL;
    e->windows = NULL;
    e->fill_progress = NULL;
    e->board = NULL;
    e->layers = NULL;
    e->norms = NULL;
    e->lodged = false;
    if (e->description >= 0)
        close(e->description);
    e->description = -1;
    memset(&e->record, 0, sizeof e->record);
    memset(e->seen, 0, sizeof e->seen);
    shard_destroy(e->shard);
    e->shard = NULL;
    stats_set(&e->stats.state, STATE_EMPTY);
}
