/* SPDX-License-Identifier: MIT */
#include "daemon/step/save.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/step/lead.h"
#include "daemon/step/saver.h"

enum { SLICE_BYTES = 32 << 20 };

static enum order order_of(const struct engine *e)
{
    return (enum order)SAVE_WHAT(board_load(&engine_board(e, 0)->save_order));
}

static void say(struct engine *e, enum save_said what)
{
    e->save.said = what;
    save_count(e);
    atomic_store(&e->board->save_said, SAVE_WORD(e->save.id, what));
    if (e->options.rank != 0)
        e->comm->ops->wake(e->comm, 0);
}

void save_failed(struct engine *e, const char *why)
{
    snprintf(e->board->save_text, sizeof e->board->save_text, "%s", why);
    say(e, SAID_FAILED);
}

static void on_saver(void *context)
{
    engine_ring(context);
}

/* ---- every rank ----------------------------------------------------------------------------- */

/* This rank's shard of a layer. */
static size_t copy_layer(struct engine *e, const struct saver_region *region, uint32_t l)
{
    const struct zero_layer *layer = &e->shard->layout->layers[l];
    size_t each = region->bytes / e->shard->layout->shard_total;
    struct zero_range own = shard_of_rank(e->shard, e->options.rank, l);
    size_t bytes = (size_t)layer->shard * each;

    e->device->kernels->copy(region->base + layer->shard_offset * each,
                             shard_own(e->shard, region->arena, l, own.begin), bytes);
    return bytes;
}

/* Copies some; true when all is copied. Between two slices the trainer is served. */
static bool copy_slice(struct engine *e)
{
    uint32_t count = 0;
    const struct saver_region *regions = saver_regions(e->save.saver, &count);
    uint64_t begun = clock_ns();

    for (size_t copied = 0; e->save.region < count && copied < SLICE_BYTES;) {
        size_t bytes = copy_layer(e, &regions[e->save.region], e->save.layer);
        copied += bytes;
        e->save.copied += bytes;
        if (++e->save.layer < e->shard->layout->layer_count)
            continue;
        e->save.layer = 0;
        e->save.region++;
    }
    e->save.copy_ns += clock_ns() - begun;
    save_count(e);
    return e->save.region == count;
}

static bool copy_state(struct engine *e)
{
    struct saver_job *job = saver_job(e->save.saver);
    const struct journal_record *record = &e->record;

    if (!copy_slice(e))
        return true;
    job->record = *record;
    memcpy(job->blob, e->journal.blobs[record->blob_current],
           record->blob_bytes[record->blob_current]);
    say(e, SAID_COPIED);
    return true;
}

static bool start(struct engine *e, uint64_t id)
{
    zero_status s = zero_success();

    e->save.id = id;
    e->save.said = SAID_NONE;
    e->save.region = e->save.layer = 0;
    e->save.copy_ns = 0;
    if (e->save.saver == NULL)
        s = saver_create(e->shard, e->description, on_saver, e, &e->save.saver);
    if (zero_failed(s)) {
        save_failed(e, fail_detail());
        return true;
    }
    saver_order(e->save.saver, SAVER_PREPARE);
    return true;
}

static bool write_part(struct engine *e)
{
    struct saver_job *job = saver_job(e->save.saver);

    snprintf(e->save.path, sizeof e->save.path, "%s", engine_board(e, 0)->save_path);
    job->path = e->save.path;
    e->save.writing = true;
    saver_order(e->save.saver, SAVER_WRITE);
    return true;
}

/* Does what rank 0's order asks of every rank. */
static bool follow_order(struct engine *e)
{
    uint64_t word = board_load(&engine_board(e, 0)->save_order);
    enum order order = (enum order)SAVE_WHAT(word);

    if (order == ORDER_PREPARE && SAVE_ID(word) != e->save.id)
        return start(e, SAVE_ID(word));
    if (e->save.said == SAID_FAILED || SAVE_ID(word) != e->save.id || e->save.saver == NULL)
        return false;
    enum saver_state state = saver_state(e->save.saver);
    if (state == SAVER_BUSY)
        return false;
    if (state == SAVER_FAILED) {
        save_failed(e, saver_text(e->save.saver));
        return true;
    }
    if (e->save.said == SAID_NONE) {
        say(e, SAID_READY);
        return true;
    }
    if (order == ORDER_COPY && e->save.said == SAID_READY && e->phase < PHASE_APPLIED &&
        e->step == engine_board(e, 0)->save_step)
        return copy_state(e);
    if (order != ORDER_WRITE || e->save.said != SAID_COPIED)
        return false;
    if (!e->save.writing)
        return write_part(e);
    say(e, SAID_WRITTEN);
    return true;
}

static bool forget_dropped(struct engine *e)
{
    if (e->save.said == SAID_NONE || order_of(e) != ORDER_NONE)
        return false;
    e->save.said = SAID_NONE;
    e->save.writing = false;
    atomic_store(&e->board->save_said, 0);
    if (e->options.rank != 0)
        e->comm->ops->wake(e->comm, 0); /* which may wait to begin the next */
    if (e->save.saver != NULL)
        saver_order(e->save.saver, SAVER_DROP);
    save_count(e); /* who looks at the next one must not see this one's numbers */
    return true;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* From now on there is something to save: the holder may have to say that it is lost. */
static void tell_folder(struct engine *e)
{
    char text[ZERO_CONFIG_MAX_PATH + 32];

    snprintf(text, sizeof text, "X_ZERO_SAVE=%s", e->shard->config.checkpoint_dir);
    for (char *at = text; (at = strchr(at, '\n')) != NULL;)
        *at = '?'; /* what follows would be another word of ours */
    notify_say(text);
    e->save.told_folder = true;
}

/* Its memory is there before the step that is to be saved is made: that one waits for the copy
 * alone. */
void save_committed(struct engine *e)
{
    const struct zero_config *config = &e->shard->config;
    uint64_t now = clock_ns(), every = config->checkpoint_steps;

    if (config->checkpoint_dir[0] == '\0')
        return;
    if (!e->save.told_folder)
        tell_folder(e);
    if (e->options.rank != 0)
        return;
    if (e->save.begun_ns == 0)
        e->save.begun_ns = now; /* minutes count from the first step on */
    bool by_steps = every != 0 && (e->step + 1) % every == 0;
    bool by_time = config->checkpoint_minutes > 0 &&
                   (double)(now - e->save.begun_ns) >= config->checkpoint_minutes * 60e9;
    if (by_steps || by_time)
        lead_begin(e, config->checkpoint_dir, by_steps ? e->step + 1 : 0, SAVE_PERIODIC);
}

void save_look(struct engine *e)
{
    if (e->options.rank != 0 || e->shard->config.checkpoint_dir[0] == '\0' ||
        zero_failed(saver_create(e->shard, e->description, on_saver, e, &e->save.saver)))
        return;
    struct saver_job *job = saver_job(e->save.saver);
    job->claim = &e->claim;
    job->stats = &e->stats;
    job->step = e->record.step;
    saver_order(e->save.saver, SAVER_LOOK);
}

bool save_pass(struct engine *e)
{
    bool any = e->options.rank == 0 && lead_pass(e);

    any = follow_order(e) || any;
    return forget_dropped(e) || any;
}

void save_drop(struct engine *e, const char *why)
{
    lead_drop(e, why);
    e->save.said = SAID_NONE;
    e->save.writing = false;
    atomic_store(&e->board->save_order, 0);
    atomic_store(&e->board->save_said, 0);
    if (e->save.saver != NULL)
        saver_order(e->save.saver, SAVER_DROP);
}

uint32_t save_behind(const struct engine *e)
{
    static const enum save_said wanted[] = {
        [ORDER_PREPARE] = SAID_READY, [ORDER_COPY] = SAID_COPIED, [ORDER_WRITE] = SAID_WRITTEN
    };
    uint64_t order = board_load(&engine_board(e, 0)->save_order);

    if (SAVE_WHAT(order) == ORDER_NONE || SAVE_WHAT(order) > ORDER_WRITE)
        return 0;
    for (uint32_t r = 0; r < e->options.world; r++) {
        uint64_t said = board_load(&engine_board(e, r)->save_said);
        if (SAVE_ID(said) != SAVE_ID(order) || SAVE_WHAT(said) < (uint64_t)wanted[SAVE_WHAT(order)])
            return r;
    }
    return 0;
}

void save_count(struct engine *e)
{
    uint64_t done = 0, total = 0;

    if (e->save.saver != NULL && e->save.said != SAID_NONE && e->save.lead != LEAD_CLEAR)
        saver_progress(e->save.saver, &done, &total);
    stats_set(&e->stats.save_bytes, done);
    stats_set(&e->stats.save_total, total);
    if (e->board == NULL)
        return;
    uint64_t moved = e->save.saver != NULL ? saver_moved(e->save.saver) : 0;
    atomic_store_explicit(&e->board->save_moved, moved + e->save.copied, memory_order_relaxed);
    atomic_store_explicit(&e->board->save_written, done, memory_order_relaxed);
    atomic_store_explicit(&e->board->save_total, total, memory_order_relaxed);
}

void save_destroy(struct engine *e)
{
    saver_destroy(e->save.saver);
    memset(&e->save, 0, sizeof e->save);
}
