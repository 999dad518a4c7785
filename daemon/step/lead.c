/* SPDX-License-Identifier: MIT */
#include "daemon/step/lead.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/step/save.h"
#include "daemon/step/saver.h"

static void give_order(struct engine *e, enum order order)
{
    atomic_store(&e->board->save_order, SAVE_WORD(e->save.lead_id, order));
    engine_wake_peers(e);
}

/* True when every rank said `what` of this save, or a later word; *out_failed: who failed. */
static bool all_said(const struct engine *e, enum save_said what, uint32_t *out_failed)
{
    bool all = true;

    *out_failed = e->options.world;
    for (uint32_t r = 0; r < e->options.world; r++) {
        uint64_t word = board_load_ordered(&engine_board(e, r)->save_said);
        bool of_this = SAVE_ID(word) == e->save.lead_id;
        if (of_this && SAVE_WHAT(word) == SAID_FAILED)
            *out_failed = r;
        all = all && of_this && SAVE_WHAT(word) >= (uint64_t)what;
    }
    return all;
}

/* The holder need not wait for anything now. */
static void say_saved(const struct engine *e, const char *path)
{
    double seconds = (double)(clock_ns() - e->save.last_ns) * 1e-9;
    uint64_t bytes = 0;
    char text[64];

    for (uint32_t r = 0; r < e->options.world; r++)
        bytes += board_load(&engine_board(e, r)->save_total);
    if (saver_found(e->save.saver))
        LOG_INFO("saved step %" PRIu64 ": %s was whole already", e->board->save_step, path);
    else
        LOG_INFO("saved step %" PRIu64 ": %s (%.3f GB, %.1f s)", e->board->save_step, path,
                 (double)bytes * 1e-9, seconds);
    snprintf(text, sizeof text, "X_ZERO_SAVED=%" PRIu64, e->board->save_step);
    notify_say(text);
}

/* Whoever failed has logged why; the text says it again, for who reads only the end. */
static void end_save(struct engine *e, zero_status s, const char *text)
{
    if (e->save.token == SAVE_FINAL && !zero_failed(s))
        say_saved(e, text);
    e->save.lead = LEAD_NONE;
    give_order(e, ORDER_NONE);
    stats_set(&e->stats.save_failed, zero_failed(s));
    if (e->save.token == SAVE_FINAL)
        return;
    if (e->save.token != SAVE_PERIODIC)
        engine_post_text(e, ENGINE_SAVED, e->save.token, s, text);
    else if (zero_failed(s))
        LOG_WARNING("no periodic checkpoint: %s%s", text,
                    e->finish.told ? "" : ": the next one is tried when it is due");
}

static bool fail_save(struct engine *e, uint32_t rank)
{
    char text[sizeof e->board->save_text];

    memcpy(text, engine_board(e, rank)->save_text, sizeof text);
    text[sizeof text - 1] = '\0';
    zero_status s = REFUSE(IO, "save checkpoint", "rank %u: %s", rank, text);
    snprintf(e->save.why, sizeof e->save.why, "%s", fail_detail());
    end_save(e, s, fail_detail());
    return true;
}

/* Whoever saves twice is not to know that the ranks drop the first one after its end. */
static bool lead_prepare(struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (SAVE_WHAT(board_load_ordered(&engine_board(e, r)->save_said)) != SAID_NONE)
            return false;
    e->save.lead = LEAD_PREPARE;
    give_order(e, ORDER_PREPARE);
    return true;
}

/* A step is decided, and not whole yet. */
static bool between_steps(const struct engine *e)
{
    return e->phase >= PHASE_APPLIED || board_load(&e->board->decided) == e->attempt;
}

static bool lead_copy(struct engine *e)
{
    if (e->step < e->save.target || between_steps(e))
        return false;
    e->board->save_step = e->step;
    e->save.lead = LEAD_COPY;
    give_order(e, ORDER_COPY);
    return true;
}

static void end_saved(struct engine *e)
{
    if (saver_own(e->save.saver))
        e->save.last_step = e->board->save_step;
    stats_set(&e->stats.saved_step, e->board->save_step);
    stats_set(&e->stats.saved_ns, clock_ns());
    end_save(e, zero_success(), saver_text(e->save.saver));
}

/* Saves of the step that is to be saved: the one that this board, which outlives its daemon, says
 * was on its way when somebody died, and the one that the model began with. */
static void name_known(const struct engine *e, struct saver_job *job)
{
    uint64_t step = 0;
    int end = 0;

    memset(job->known, 0, sizeof job->known);
    if (e->save.token != SAVE_FINAL)
        return;
    if (e->board->own_step == e->step)
        memcpy(job->known[0], e->board->own_save, STORE_ID_CHARS);
    if (sscanf(e->journal.head->origin, "step %" SCNu64 " of save %16[0-9a-f]%n", &step,
               job->known[1], &end) != 2 ||
        step != e->step || e->journal.head->origin[end] != '\0')
        job->known[1][0] = '\0';
}

/* Before it can have its name: whoever comes after this daemon shall know it. */
static void note_own(struct engine *e)
{
    struct board_head *board = e->board;
    const char *id = strrchr(board->save_path, '-');

    if (!saver_own(e->save.saver) || id == NULL || strlen(id + 1) != STORE_ID_CHARS)
        return;
    board->own_step = UINT64_MAX;
    atomic_signal_fence(memory_order_seq_cst);
    memcpy(board->own_save, id + 1, STORE_ID_CHARS);
    atomic_signal_fence(memory_order_seq_cst);
    board->own_step = board->save_step;
}

static bool lead_write(struct engine *e)
{
    struct saver_job *job = saver_job(e->save.saver);

    if (saver_state(e->save.saver) == SAVER_BUSY)
        return false;
    if (e->save.lead == LEAD_COPY) { /* everybody has: training goes on */
        job->dir = e->save.dir;
        job->claim = &e->claim;
        name_known(e, job);
        e->save.lead = LEAD_BEGIN;
        saver_order(e->save.saver, SAVER_BEGIN);
        return true;
    }
    if (saver_state(e->save.saver) == SAVER_FAILED) {
        save_failed(e, saver_text(e->save.saver));
        return true;
    }
    if (saver_found(e->save.saver)) {
        end_saved(e);
        return true;
    }
    snprintf(e->board->save_path, sizeof e->board->save_path, "%s", saver_text(e->save.saver));
    note_own(e);
    e->save.lead = LEAD_WRITE;
    give_order(e, ORDER_WRITE);
    return true;
}

static bool lead_commit(struct engine *e)
{
    enum saver_state state = saver_state(e->save.saver);

    if (e->save.lead == LEAD_WRITE) {
        saver_job(e->save.saver)->keep =
            e->save.token >= SAVE_FINAL ? e->shard->config.checkpoint_keep : 0;
        e->save.lead = LEAD_COMMIT;
        saver_order(e->save.saver, SAVER_COMMIT);
        return true;
    }
    if (state == SAVER_BUSY)
        return false;
    if (state == SAVER_FAILED) {
        zero_status s = REFUSE(IO, "save checkpoint", "rank 0: %s", saver_text(e->save.saver));
        snprintf(e->save.why, sizeof e->save.why, "%s", fail_detail());
        end_save(e, s, fail_detail());
        return true;
    }
    if (e->save.token != SAVE_FINAL)
        LOG_INFO("checkpoint %s: training waited %.3f s for rank 0's copy",
                 saver_text(e->save.saver), (double)e->save.copy_ns * 1e-9);
    end_saved(e);
    return true;
}

bool lead_pass(struct engine *e)
{
    static const enum save_said wanted[] = { [LEAD_PREPARE] = SAID_READY,
                                             [LEAD_COPY] = SAID_COPIED,
                                             [LEAD_BEGIN] = SAID_COPIED,
                                             [LEAD_WRITE] = SAID_WRITTEN,
                                             [LEAD_COMMIT] = SAID_WRITTEN };
    uint32_t failed;

    if (e->save.lead == LEAD_NONE)
        return false;
    if (e->save.lead == LEAD_CLEAR)
        return lead_prepare(e);
    bool all = all_said(e, wanted[e->save.lead], &failed);
    if (failed < e->options.world)
        return fail_save(e, failed);
    if (!all)
        return false;
    switch (e->save.lead) {
    case LEAD_PREPARE:
        return lead_copy(e);
    case LEAD_COPY:
    case LEAD_BEGIN:
        return lead_write(e);
    case LEAD_WRITE:
    case LEAD_COMMIT:
        return lead_commit(e);
    case LEAD_NONE:
    case LEAD_CLEAR:
        break;
    }
    return false;
}

static zero_status check_begin(const struct engine *e, const char *dir)
{
    if (e->options.rank != 0)
        return REFUSE(INVALID_ARGUMENT, "save checkpoint", "rank 0 saves: ask it");
    if (e->comm == NULL || e->lost || !e->filled)
        return REFUSE(INVALID_STATE, "save checkpoint",
                      "there is nothing to save: the group has no model, no initial values, or "
                      "lost a rank");
    if (e->save.lead != LEAD_NONE)
        return REFUSE(BUSY, "save checkpoint", "another save is on its way, into %s", e->save.dir);
    if (dir[0] == '\0')
        return REFUSE(INVALID_ARGUMENT, "save checkpoint",
                      "no folder was given, and the config has no zerod.checkpoint.dir");
    if (dir[0] != '/' || strlen(dir) >= sizeof e->save.dir)
        return REFUSE(INVALID_ARGUMENT, "save checkpoint",
                      "the folder must be an absolute path of less than %zu bytes",
                      sizeof e->save.dir);
    return zero_success();
}

void lead_begin(struct engine *e, const char *dir, uint64_t target, uint64_t token)
{
    if (dir[0] == '\0' && e->shard != NULL)
        dir = e->shard->config.checkpoint_dir;
    zero_status s = check_begin(e, dir);

    if (zero_failed(s)) {
        if (token == SAVE_FINAL)
            snprintf(e->save.why, sizeof e->save.why, "%s", fail_detail());
        else if (token != SAVE_PERIODIC)
            engine_post(e, ENGINE_SAVED, token, s);
        else
            LOG_WARNING("no periodic checkpoint at step %" PRIu64 ": %s",
                        target != 0 ? target : e->step, fail_detail());
        return;
    }
    snprintf(e->save.dir, sizeof e->save.dir, "%s", dir);
    e->save.target = target;
    e->save.token = token;
    e->save.lead = LEAD_CLEAR;
    e->save.lead_id = e->epoch << 16 | (++e->save.count & 0xffff); /* other than any before */
    e->save.begun_ns = clock_ns();
    save_count(e);
    lead_prepare(e);
}

bool lead_holds(const struct engine *e)
{
    bool prepares = e->save.lead == LEAD_CLEAR || e->save.lead == LEAD_PREPARE;
    if (e->finish.told) /* the last step is the last one: whatever is not decided yet is dropped */
        return true;
    return e->save.lead == LEAD_COPY || (prepares && e->save.target == e->step);
}

void lead_drop(struct engine *e, const char *why)
{
    e->save.finished = false;
    if (e->save.lead == LEAD_NONE)
        return;
    e->save.lead = LEAD_NONE;
    if (e->save.token == SAVE_FINAL && e->finish.over)
        return; /* and said what became of it */
    if (e->save.token == SAVE_FINAL)
        LOG_WARNING("the last step's save begins again when the group is whole: %s", why);
    else if (e->save.token == SAVE_PERIODIC)
        (void)FAIL(PEER_LOST, "save checkpoint", "%s", why);
    else
        engine_post(e, ENGINE_SAVED, e->save.token, FAIL(PEER_LOST, "save checkpoint", "%s", why));
}

/* A save that was due, of the step that is the last now. */
static bool is_last(const struct engine *e)
{
    return e->save.token == SAVE_PERIODIC && e->save.target <= e->step &&
           (e->save.lead < LEAD_COPY || e->board->save_step == e->step);
}

static void say_last(struct engine *e)
{
    char text[64];

    LOG_INFO("saving step %" PRIu64 " to %s", e->step, e->shard->config.checkpoint_dir);
    snprintf(text, sizeof text, "X_ZERO_SAVING=%" PRIu64, e->step);
    notify_say(text);
    e->save.finished = true;
    e->save.why[0] = '\0';
    e->save.last_ns = clock_ns();
}

bool lead_last(struct engine *e)
{
    bool leads = e->save.lead != LEAD_NONE;

    if (between_steps(e)) /* the last one is the one that is on its way */
        return true;
    if (leads && is_last(e)) {
        e->save.token = SAVE_FINAL;
        say_last(e);
    }
    if (leads && e->save.target <= e->step)
        return true;
    if (e->save.finished || e->save.last_step == e->step)
        return false;
    if (leads)
        end_save(e, zero_success(), ""); /* of a step that may never come */
    say_last(e);
    lead_begin(e, e->shard->config.checkpoint_dir, /* target= */ 0, SAVE_FINAL);
    return e->save.lead != LEAD_NONE;
}
