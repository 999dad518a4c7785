/* SPDX-License-Identifier: MIT */
#include "daemon/step/model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/phases.h"

enum { BOARD_VERSION = 1, FIRST_EPOCH = 1 };

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
    atomic_store(&e->board->trainer_pid, e->trainer_pid);
    atomic_store(&e->board->daemon_pid, (uint64_t)getpid());
    atomic_store(&e->board->beat, clock_ns());
}

static void start_state(struct engine *e)
{
    e->attempt = 1;
    e->step = e->updates = 0;
    e->skipped_in_row = 0;
    e->filled = e->fill_asked = false;
    e->fill_source = 0;
    e->blob_bytes[0] = e->blob_bytes[1] = 0;
    memset(e->seen, 0, sizeof e->seen);
    scaler_init(&e->scaler, &e->shard->config);
    e->loss_scale = e->scaler.scale;
    stats_set(&e->stats.epoch, e->epoch);
    stats_set_double(&e->stats.loss_scale, e->loss_scale);
    stats_set_double(&e->stats.lr, e->shard->config.lr);
}

zero_status model_join(struct engine *e, struct zero_layout *layout,
                       const struct zero_config *config)
{
    zero_status s;

    stats_set(&e->stats.state, STATE_JOINING);
    TRY(s, shard_create(e->device, e->options.rank, layout, config, &e->shard));
    TRY(s, make_tables(e));
    start_board(e);
    const struct comm_group group = {
        .rank = e->options.rank,
        .world = e->options.world,
        .epoch = FIRST_EPOCH,
        .listener = e->options.peer_listener,
        .dir = e->options.dir,
        .text = e->shard->text,
        .arenas = e->shard->arena,
        .bell = &e->bell_buf,
        .deadline_ms = config->deadline_ms,
    };
    TRY(s, e->options.comm->join(&group, e->device, &e->comm));
    e->epoch = FIRST_EPOCH;
    start_state(e);
    phases_begin(e);
    LOG_INFO("joined epoch %d as rank %u of %u", FIRST_EPOCH, group.rank, group.world);
out:
    if (zero_failed(s))
        model_leave(e);
    return s;
}

void model_leave(struct engine *e)
{
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
    shard_destroy(e->shard);
    e->shard = NULL;
    stats_set(&e->stats.state, STATE_EMPTY);
}
