/* SPDX-License-Identifier: MIT */
/* The worker thread: takes commands, goes round its work, sleeps on the bell. */
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/calls.h"
#include "daemon/step/engine.h"
#include "daemon/step/fill.h"
#include "daemon/step/finish.h"
#include "daemon/step/fold.h"
#include "daemon/step/grant.h"
#include "daemon/step/keep.h"
#include "daemon/step/lead.h"
#include "daemon/step/mail.h"
#include "daemon/step/model.h"
#include "daemon/step/phases.h"
#include "daemon/step/save.h"
#include "daemon/step/version.h"
#include "daemon/step/wait.h"

enum {
    TICK_NS = 50 * 1000 * 1000, /* deadlines and lost peers are looked at this often */
    NAP_NS = 200 * 1000,        /* between looks while the trainer writes a gradient, */
    NAPS_NS = 50 * 1000 * 1000, /* for as long after it said something */
    SPIN_ROUNDS = 200,          /* of a whole pass, while a step is on its way and cores are free */
};

/* ---- peers ---------------------------------------------------------------------------------- */

void engine_wake_peers(struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (r != e->options.rank)
            e->comm->ops->wake(e->comm, r);
}

void engine_wake_listeners(struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (r != e->options.rank && board_load_ordered(&engine_board(e, r)->listening) != 0)
            e->comm->ops->wake(e->comm, r);
}

/* ---- commands ------------------------------------------------------------------------------- */

/* A group that has just met may still be making its last step: until it is whole, nobody may read a
 * parameter. */
static bool must_wait(struct engine *e, const struct command *command)
{
    if (e->phase == PHASE_COLLECTING || e->lost)
        return false;
    e->attach = *command;
    e->attach_waits = true;
    return true;
}

static void do_attach(struct engine *e, const struct command *command)
{
    struct zero_ring *ring = e->ring;
    size_t blob_bytes = (size_t)e->record.blob_bytes[e->record.blob_current];

    memset(ring, 0, sizeof *ring);
    for (uint32_t i = 0; i < ZERO_RING_ENTRIES; i++)
        atomic_store_explicit(&ring->entries[i].turn, i, memory_order_relaxed);
    atomic_store(&ring->attempt, e->attempt);
    atomic_store(&ring->alive, 1);
    atomic_store(&ring->resident, e->filled ? 1 : 0);
    memset(e->pending, 0, sizeof e->pending);
    e->pending_count = 0;
    e->head = 0;
    e->broken = false;
    e->deferred.status.code = ZERO_OK;
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++)
        e->windows[l].gathers = 0;
    fill_restart(e);
    e->attached = true;
    e->trainer_pid = command->pid;
    e->trainer_token = command->token;
    atomic_store(&e->board->trainer_pid, command->pid);
    keep_trainer(e, command->pid);
    if (e->record.step != 0)
        phases_leave_result(e, &e->record.decision);
    memcpy(ring->step.blob, e->journal.blobs[e->record.blob_current], blob_bytes);
    ring->step.blob_bytes = (uint32_t)blob_bytes;
    memcpy(e->entry_blob, e->journal.blobs[e->record.blob_current], blob_bytes);
    e->entry = (struct engine_entry){ .attempt = e->attempt,
                                      .epoch = e->epoch,
                                      .step = e->step,
                                      .updates = e->updates,
                                      .filled = e->filled,
                                      .loss_scale = e->loss_scale,
                                      .blob_bytes = blob_bytes,
                                      .blob = e->entry_blob };
    engine_post(e, ENGINE_ATTACHED, command->token, zero_success());
}

static void do_detach(struct engine *e, const struct command *command)
{
    if (e->attach_waits && e->attach.token == command->token)
        e->attach_waits = false;
    if (!e->attached || e->shard == NULL) {
        engine_post(e, ENGINE_DETACHED, command->token, zero_success());
        return;
    }
    if (e->comm != NULL) /* else the group meets again, and nothing of the attempt is left */
        calls_drain(e);  /* what a live trainer had said before it left counts */
    e->attached = false;
    memset(e->pending, 0, sizeof e->pending);
    e->pending_count = 0;
    e->trainer_pid = 0;
    atomic_store(&e->board->trainer_pid, 0);
    atomic_store(&e->ring->alive, 0);
    e->detach_token = command->token;
    if (e->lost || !phases_abandon(e))
        engine_post(e, ENGINE_DETACHED, command->token, zero_success());
    else
        e->detaching = true; /* the outcome of what it had begun comes first */
}

static void do_command(struct engine *e, const struct command *command)
{
    switch (command->kind) {
    case COMMAND_REGISTER: {
        struct engine_model model = command->model;
        zero_status s = model_join(e, &model);
        mail_registered(e);
        engine_post(e, ENGINE_JOINED, command->token, s);
        break;
    }
    case COMMAND_ATTACH:
        if (!must_wait(e, command))
            do_attach(e, command);
        break;
    case COMMAND_DETACH:
        do_detach(e, command);
        break;
    case COMMAND_COPY:
        version_begin(e, &command->buf);
        break;
    case COMMAND_SAVE:
        lead_begin(e, command->dir, /* target= */ 0, command->token);
        free(command->dir);
        break;
    case COMMAND_FINISH:
        finish_tell(e, command->now);
        break;
    case COMMAND_UPGRADE:
        e->upgrade_wanted = true;
        if (command->now) {
            e->frozen = true;
            engine_post(e, ENGINE_FROZEN, 0, zero_success());
        }
        break;
    case COMMAND_STOP:
        if (e->board != NULL)
            atomic_store(&e->board->leaving, 1);
        e->stopping = true;
        break;
    }
}

/* ---- the round ------------------------------------------------------------------------------ */

static void lose_group(struct engine *e, zero_status s)
{
    e->lost = true;
    if (e->attach_waits) {
        e->attach_waits = false;
        do_attach(e, &e->attach);
    }
    stats_set(&e->stats.state, STATE_LOST);
    version_lose(e);
    if (e->attached)
        calls_answer_all(e, ZERO_PEER_LOST, fail_detail());
    if (e->detaching) {
        e->detaching = false;
        engine_post(e, ENGINE_DETACHED, e->detach_token, zero_success());
    }
    engine_post(e, ENGINE_LOST, 0, s);
}

/* A rank is gone: so is this epoch. */
static void meet_again(struct engine *e)
{
    finish_part(e);
    if (!mail_ending(e))
        LOG_INFO("epoch %" PRIu64 " is over: the group meets again", e->epoch);
    zero_status s = model_meet(e);
    if (zero_failed(s) && !mail_ending(e)) /* trainers wait for the successor of one that ends */
        lose_group(e, s);
}

static void tick(struct engine *e, uint64_t now)
{
    if (now < e->next_tick_ns)
        return;
    e->next_tick_ns = now + TICK_NS;
    stats_set(&e->stats.beat, now);
    if (e->lost)
        return;
    atomic_store_explicit(&e->board->beat, now, memory_order_relaxed);
    zero_status s = e->comm->ops->check(e->comm);
    if (zero_failed(s)) {
        meet_again(e);
        return;
    }
    if (e->attached)
        calls_expire(e, now);
    save_count(e);
    struct wait_reason reason = wait_for_step(e);
    stats_set(&e->stats.waiting_rank, reason.rank);
    stats_set(&e->stats.waiting_pid, reason.pid);
    stats_set(&e->stats.waiting, reason.what);
}

/* A group that met again looks whether its last step is whole everywhere, of which this trainer was
 * told before: what it says meanwhile belongs to the next attempt, and is heard then. */
static bool between_told_and_whole(const struct engine *e)
{
    return e->phase == PHASE_APPLIED && e->step == e->record.decision.step;
}

/* Everything that can be done now; true if anything was. */
static bool work(struct engine *e)
{
    struct command command;
    bool any = mail_take(e, &command);

    if (any)
        do_command(e, &command);
    finish_pass(e);
    if (e->frozen)
        return any;
    if (e->lost && e->shard != NULL)
        any = calls_drain(e) || any;
    if (e->comm == NULL || e->lost)
        return any;
    if (!between_told_and_whole(e))
        any = calls_drain(e) || any;
    any = fill_pass(e) || any;
    any = fold_pass(e) || any;
    any = grant_pass(e) || any;
    any = phases_pass(e) || any;
    if (e->attach_waits && e->phase == PHASE_COLLECTING) {
        e->attach_waits = false;
        do_attach(e, &e->attach);
        any = true;
    }
    any = version_pass(e) || any;
    any = save_pass(e) || any;
    tick(e, clock_ns());
    return any;
}

/* A submission will come soon, and need not wake this thread. */
static bool naps(const struct engine *e)
{
    return e->attached && e->held > 0 && e->phase == PHASE_COLLECTING &&
           clock_ns() - e->heard_ns < NAPS_NS;
}

static void sleep_on_bell(struct engine *e, uint32_t count)
{
    bool nap = naps(e);
    const struct timespec most = { .tv_sec = 0, .tv_nsec = nap ? NAP_NS : TICK_NS };

    atomic_store(&e->bell->asleep, nap ? ZERO_BELL_NAPPING : ZERO_BELL_ASLEEP);
    if (!work(e))
        syscall(SYS_futex, &e->bell->count, FUTEX_WAIT, count, &most, NULL, 0);
    atomic_store(&e->bell->asleep, ZERO_BELL_AWAKE);
}

static void *run(void *argument)
{
    struct engine *e = argument;
    struct sched_param batch = { 0 };
    uint32_t rounds = sysconf(_SC_NPROCESSORS_ONLN) >= (long)e->options.world ? SPIN_ROUNDS : 0;

    /* A batch thread does not push the trainer that wakes it off its core. */
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &batch);
    for (uint32_t idle = 0; !e->stopping;) {
        uint32_t count = atomic_load(&e->bell->count);
        if (work(e)) {
            idle = 0;
            continue;
        }
        if (e->phase != PHASE_COLLECTING && idle++ < rounds)
            continue;
        sleep_on_bell(e, count);
        idle = 0;
    }
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes)
{
    return (bytes + ZERO_PAGE_BYTES - 1) / ZERO_PAGE_BYTES * ZERO_PAGE_BYTES;
}

static void free_engine(struct engine *e)
{
    if (e == NULL)
        return;
    e->device->ops->free(e->device, &e->copy.buf);
    e->device->ops->free(e->device, &e->mail.copied);
    e->device->ops->free(e->device, &e->bell_buf);
    e->device->ops->free(e->device, &e->ring_buf);
    pthread_mutex_destroy(&e->mail.lock);
    free(e);
}

zero_status engine_create(const struct engine_options *options, struct engine **out)
{
    zero_status s;
    struct engine *e = calloc(1, sizeof *e);

    if (e == NULL)
        return FAIL(NO_MEMORY, "create worker", "%zu bytes", sizeof *e);
    e->options = *options;
    e->description = -1;
    store_lock_init(&e->claim, options->dir);
    e->device = options->device;
    pthread_mutex_init(&e->mail.lock, NULL);
    TRY(s, e->device->ops->alloc(e->device, "bell", ZERO_PAGE_BYTES, &e->bell_buf));
    TRY(s, e->device->ops->alloc(e->device, "ring", whole_pages(sizeof(struct zero_ring)),
                                 &e->ring_buf));
    e->bell = e->bell_buf.base;
    e->ring = e->ring_buf.base;
    int error = pthread_create(&e->thread, NULL, run, e);
    if (error != 0) {
        s = FAIL(SYSTEM, "create worker", "thread: %s", strerror(error));
        goto out;
    }
    *out = e;
    e = NULL;
out:
    free_engine(e);
    return s;
}

void engine_destroy(struct engine *e)
{
    if (e == NULL)
        return;
    mail_end(e);
    pthread_join(e->thread, NULL);
    struct command left;
    while (mail_take(e, &left))
        mail_drop(e, &left);
    model_leave(e);
    free_engine(e);
}

size_t engine_legacy(const struct engine *e, struct notify_fd *out)
{
    return e->shard != NULL ? shard_legacy(e->shard, e->description, out) : 0;
}

const char *engine_origin(const struct engine *e)
{
    return e->journal.head->origin;
}

void engine_last_trainer(const struct engine *e, uint32_t *out_pid, uint64_t *out_start)
{
    uint64_t pid;

    journal_trainer(&e->journal, &pid, out_start);
    *out_pid = (uint32_t)pid;
}

void engine_forget(struct engine *e)
{
    if (e->shard != NULL && e->lodged)
        shard_dislodge(e->shard);
}

const struct shard *engine_shard(const struct engine *e)
{
    return e->shard;
}

const struct engine_entry *engine_entry(const struct engine *e)
{
    return &e->entry;
}

int engine_param_fd(struct engine *e, uint32_t rank)
{
    pthread_mutex_lock(&e->mail.lock);
    int fd = e->comm != NULL ? e->comm->peers[rank].param_fd : -1;
    pthread_mutex_unlock(&e->mail.lock);
    return fd;
}

const struct device_buf *engine_ring(const struct engine *e)
{
    return &e->ring_buf;
}

const struct device_buf *engine_bell(const struct engine *e)
{
    return &e->bell_buf;
}

const struct stats *engine_stats(const struct engine *e)
{
    return &e->stats;
}
