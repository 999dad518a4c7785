/* SPDX-License-Identifier: MIT */
#include "daemon/step/finish.h"

#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/lead.h"
#include "daemon/step/mail.h"
#include "daemon/step/save.h"

#define MS UINT64_C(1000000)

static const uint64_t STALL_NS = 20000 * MS; /* a slow disk, busy with others, moves something */
static const uint64_t SILENT_NS = 2000 * MS; /* workers beat every 50 ms */
static const uint64_t SAY_NS = 10000 * MS;   /* between two lines that say what is waited for */
static const uint64_t TOGETHER_NS =
    2000 * MS;                               /* between the signals to the first and last rank; and
                                                until one that was told alone is there again */
static const uint64_t SYNC_BYTES_MS = 50000; /* slow disks that have to write their cache back */

/* ---- what there is to save ------------------------------------------------------------------ */

/* The last step that the group decided, whether or not this rank has made it. */
static uint64_t last_step(const struct engine *e)
{
    return e->record.decision.step > e->step ? e->record.decision.step : e->step;
}

/* A state that was part of a group, and has a folder to be saved in. */
static bool saves(const struct engine *e)
{
    return e->shard != NULL && e->shard->config.checkpoint_dir[0] != '\0' && e->record.filled &&
           e->epoch != 0;
}

/* It is to be saved; only rank 0 knows whether it is already. */
static bool wanted(const struct engine *e)
{
    return saves(e) && (e->options.rank != 0 || e->save.last_step != last_step(e));
}

/* ---- patience ------------------------------------------------------------------------------- */

static uint64_t stall_ns(const struct engine *e)
{
    uint64_t deadline = e->shard->config.deadline_ms * MS;
    return deadline < STALL_NS ? deadline : STALL_NS;
}

static bool silent(const struct engine *e, uint32_t rank, uint64_t now)
{
    return rank != e->options.rank && board_load(&engine_board(e, rank)->beat) + SILENT_NS < now;
}

/* Who does not go on: one that shows no sign of life, else one that has not done its part. */
static uint32_t behind(const struct engine *e, uint64_t now)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (silent(e, r, now))
            return r;
    return save_behind(e);
}

/* How long nothing may move. Rank 0's error is the one to read: the others wait a little longer. */
static uint64_t patience_ns(const struct engine *e, uint32_t rank, uint64_t now)
{
    const struct board_head *board = engine_board(e, rank);
    uint64_t limit = stall_ns(e), total = board_load(&board->save_total);

    if (!silent(e, rank, now) && total != 0 && board_load(&board->save_written) >= total)
        limit += total / SYNC_BYTES_MS * MS;
    return e->options.rank == 0 ? limit : limit + limit / 4;
}

/* Another number whenever something has moved anywhere. */
static uint64_t movement(const struct engine *e)
{
    uint64_t sum = e->step + board_load(&engine_board(e, 0)->save_order);

    for (uint32_t r = 0; r < e->options.world; r++) {
        const struct board_head *board = engine_board(e, r);
        sum = sum * 31 + board_load(&board->save_said);
        sum = sum * 31 + board_load(&board->save_moved);
        sum = sum * 31 + board_load(&board->applied);
    }
    return sum;
}

/* ---- what people are told ------------------------------------------------------------------- */

struct doing {
    char text[192];
};

static struct doing describe(const struct engine *e, uint32_t rank, uint64_t now)
{
    const struct board_head *board = engine_board(e, rank);
    double total = (double)board_load(&board->save_total);
    double done = (double)board_load(&board->save_written);
    double unit = total < 1e9 ? 1e6 : 1e9;
    struct doing doing;
    int at = total > 0 ? snprintf(doing.text, sizeof doing.text, "%.1f of %.1f %s", done / unit,
                                  total / unit, total < 1e9 ? "MB" : "GB")
                       : snprintf(doing.text, sizeof doing.text, "its part is not begun");

    if (silent(e, rank, now))
        snprintf(doing.text + at, sizeof doing.text - (size_t)at,
                 ", and its daemon (pid %" PRIu64 ") shows no sign of life: is it stopped?",
                 board_load(&board->daemon_pid));
    return doing;
}

/* A line every now and then, from one rank. */
static bool time_to_say(struct engine *e, uint64_t now)
{
    uint64_t every = SAY_NS < stall_ns(e) / 2 ? SAY_NS : stall_ns(e) / 2;

    if (now - e->finish.said_ns < every)
        return false;
    e->finish.said_ns = now;
    return true;
}

static void give_up(struct engine *e, uint32_t rank, uint64_t now)
{
    double seconds = (double)(now - e->finish.moved_ns) * 1e-9;

    if (!wanted(e)) { /* but another save, that somebody asked for */
        FAIL(DEADLINE, "save checkpoint", "rank %u has not gone on for %.0f s: %s", rank, seconds,
             describe(e, rank, now).text);
        return;
    }
    e->finish.unsaved = true;
    FAIL(DEADLINE, "save checkpoint",
         "the last step, %" PRIu64 ", is not saved in %s: rank %u has not gone on for %.0f s: %s",
         last_step(e), e->shard->config.checkpoint_dir, rank, seconds, describe(e, rank, now).text);
}

/* ---- with a group --------------------------------------------------------------------------- */

/* Nothing has moved for too long; says what is waited for meanwhile. */
static bool stalled(struct engine *e, uint64_t now)
{
    struct finish *finish = &e->finish;
    uint64_t moved = movement(e);

    if (moved != finish->moved) {
        finish->moved = moved;
        finish->moved_ns = now;
    }
    uint32_t rank = behind(e, now);
    if (now - finish->moved_ns >= patience_ns(e, rank, now)) {
        give_up(e, rank, now);
        return true;
    }
    bool ours = e->options.rank == 0 || (rank == 0 && silent(e, 0, now));
    if (ours && time_to_say(e, now))
        LOG_INFO("waiting for rank %u to save step %" PRIu64 ": %s", rank, last_step(e),
                 describe(e, rank, now).text);
    return false;
}

/* Signals reach the ranks one after the other, and a successor when it is ready: the others wait
 * for rank 0 to hear of it too. */
static bool rank_0_goes_on(const struct engine *e, uint64_t now)
{
    const struct board_head *first = engine_board(e, 0);
    const struct finish *finish = &e->finish;
    bool met_again = finish->met_ns > finish->told_ns;

    if (board_load(&first->leaving) != 0)
        return false;
    if (board_load(&first->finishing) != 0)
        return true;
    return now - (met_again ? finish->met_ns : finish->told_ns) <
           (met_again ? stall_ns(e) : TOGETHER_NS);
}

static bool goes_on(struct engine *e, uint64_t now)
{
    if (!saves(e) || e->comm == NULL || e->lost || !e->filled)
        return false;
    atomic_store(&e->board->finishing, 1);
    if (stalled(e, now))
        return false;
    return e->options.rank == 0 ? lead_last(e) : rank_0_goes_on(e, now);
}

static zero_status outcome(struct engine *e)
{
    const char *why = e->save.why;

    if (e->finish.unsaved) /* and logged */
        return (zero_status){ ZERO_IO, "save checkpoint" };
    if (e->options.rank != 0 || !wanted(e))
        return zero_success();
    if (e->finish.hurried)
        why = "it was told to end at once";
    e->finish.unsaved = true;
    return FAIL(IO, "save checkpoint", "the last step, %" PRIu64 ", is not saved in %s%s%s",
                last_step(e), e->shard->config.checkpoint_dir, why[0] != '\0' ? ": " : "", why);
}

/* Not even for somebody without patience is this given up: it may have its name by now. */
static bool completes(const struct engine *e)
{
    return e->save.lead == LEAD_COMMIT && e->comm != NULL && !e->lost;
}

void finish_tell(struct engine *e, bool now)
{
    struct finish *finish = &e->finish;

    finish->hurried = finish->hurried || now;
    if (finish->told)
        return;
    finish->told = true;
    finish->told_ns = finish->moved_ns = finish->said_ns = clock_ns();
}

void finish_pass(struct engine *e)
{
    struct finish *finish = &e->finish;

    if (!finish->told || finish->over || (finish->hurried ? completes(e) : goes_on(e, clock_ns())))
        return;
    finish->over = true;
    zero_status s = outcome(e);
    mail_end_meetings(e);
    if (e->board != NULL) /* before anybody hears of it: who dies from now on is not missed */
        atomic_store(&e->board->leaving, 1);
    engine_post(e, ENGINE_FINISHED, 0, s);
}

/* ---- meeting again -------------------------------------------------------------------------- */

void finish_part(struct engine *e)
{
    e->finish.peer_left = false;
    for (uint32_t r = 0; r < e->options.world; r++)
        if (r != e->options.rank && board_load(&engine_board(e, r)->leaving) != 0)
            e->finish.peer_left = true;
    e->finish.moved_ns = 0; /* counts from when this rank is told, or from the meeting's begin */
}

void finish_meeting(struct engine *e, uint32_t missing)
{
    struct finish *finish = &e->finish;
    uint64_t now = clock_ns();

    if (!mail_finishing(e) || mail_ending(e))
        return;
    if (finish->moved_ns == 0)
        finish->moved_ns = finish->said_ns = now;
    bool left = finish->peer_left && now - finish->moved_ns >= TOGETHER_NS;
    if (!wanted(e) || left) {
        mail_end_meetings(e);
    } else if (now - finish->moved_ns >= stall_ns(e)) {
        finish->unsaved = true;
        FAIL(PEER_LOST, "save checkpoint",
             "the last step, %" PRIu64 ", is not saved in %s: the daemon of rank %u is gone, and "
             "did not come back for %.0f s",
             last_step(e), e->shard->config.checkpoint_dir, missing,
             (double)(now - finish->moved_ns) * 1e-9);
        mail_end_meetings(e);
    } else if (time_to_say(e, now)) {
        LOG_INFO("waiting for the daemon of rank %u to come back, to save step %" PRIu64, missing,
                 last_step(e));
    }
}

void finish_met(struct engine *e)
{
    e->finish.met_ns = e->finish.moved_ns = e->finish.said_ns = clock_ns();
}

/* What this rank kept may be given back before finish_pass can look at it. */
void finish_not_met(struct engine *e)
{
    if (!mail_finishing(e) || e->finish.unsaved || e->options.rank != 0 || !wanted(e))
        return;
    e->finish.unsaved = true;
    FAIL(PEER_LOST, "save checkpoint",
         "the last step, %" PRIu64 ", is not saved in %s: a daemon of the group is gone",
         last_step(e), e->shard->config.checkpoint_dir);
}
