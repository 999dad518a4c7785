/* SPDX-License-Identifier: MIT */
/* zerod: one rank's daemon. Wires the folders together and decides nothing. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sysexits.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/base/notify.h"
#include "daemon/control/control.h"
#include "daemon/place.h"
#include "daemon/report.h"
#include "daemon/session/session.h"
#include "daemon/settings.h"
#include "daemon/shard/description.h"
#include "daemon/signals.h"
#include "daemon/store/catalogue.h"
#include "daemon/upgrade.h"

enum { REMEMBERED = 16 };

struct daemon {
    struct settings settings;
    uv_loop_t loop;
    uv_async_t events;
    struct signals signals;
    uv_timer_t patience; /* while it saves before it ends */
    struct device *device;
    struct engine *engine;
    struct sessions *sessions;
    struct control *control;
    struct report report;
    struct notify_fd *kept; /* what the holder gave back, until it is taken */
    struct upgrade upgrade;
    uint64_t started_ns;
    char program[PATH_MAX]; /* what to execute when this one is to be replaced */
    char **argv;
    int exit_code;
    bool forget;          /* the holder shall forget the arenas */
    char *checkpoint_dir; /* of the model that was kept; NULL: none */
    struct place place;
    bool stopping, closing, signalled;
    uint64_t saves; /* that people asked for; the last few are remembered */
    struct asked_save {
        uint64_t id;
        bool running, good;
        char text[BOARD_PATH];
    } save[REMEMBERED];
};

enum { RECOVERY_TOKEN = 0 }; /* no client has it */
/* Told to end, it may still save, and asks the holder every second for ten more: as long as its
 * worker, which gives up when nothing moves, is there. */
enum { PATIENCE_MS = 1000, WORKER_MS = 20000 };
#define PATIENCE "EXTEND_TIMEOUT_USEC=10000000"

/* ---- stop ----------------------------------------------------------------------------------- */

static void close_rest(struct daemon *daemon)
{
    if (daemon->sessions != NULL || daemon->control != NULL)
        return;
    uv_close((uv_handle_t *)&daemon->events, NULL);
}

static void on_sessions_closed(void *context)
{
    struct daemon *daemon = context;

    daemon->sessions = NULL;
    close_rest(daemon);
}

static void on_control_closed(void *context)
{
    struct daemon *daemon = context;

    daemon->control = NULL;
    close_rest(daemon);
}

/* The state is saved where that is wanted: everything may go. */
static void close_all(struct daemon *daemon)
{
    if (daemon->closing)
        return;
    daemon->closing = true;
    uv_close((uv_handle_t *)&daemon->patience, NULL);
    upgrade_close(&daemon->upgrade);
    control_close(daemon->control, on_control_closed, daemon);
    sessions_close(daemon->sessions, on_sessions_closed, daemon);
}

static void ask_for_patience(uv_timer_t *timer)
{
    const struct daemon *daemon = timer->data;
    uint64_t beat = stats_get(&engine_stats(daemon->engine)->beat);

    if (clock_ns() - beat < WORKER_MS * UINT64_C(1000000))
        notify_say(PATIENCE);
}

static void stop(void *context)
{
    struct daemon *daemon = context;

    if (daemon->stopping)
        return;
    daemon->stopping = true;
    LOG_INFO("ending");
    notify_say("STOPPING=1\n" PATIENCE);
    uv_timer_start(&daemon->patience, ask_for_patience, PATIENCE_MS, PATIENCE_MS);
    engine_finish(daemon->engine, /* now= */ false); /* ENGINE_FINISHED goes on */
}

/* A signal may mean a restart, by which nothing is lost; this is somebody's wish. */
static void end_for_good(void *context)
{
    struct daemon *daemon = context;

    daemon->forget = true;
    if (!daemon->stopping)
        sessions_farewell(daemon->sessions);
    stop(daemon);
}

static void on_signal(void *context, int number)
{
    struct daemon *daemon = context;

    LOG_INFO("signal %d", number);
    if (daemon->signalled)
        engine_finish(daemon->engine, /* now= */ true); /* somebody has no patience */
    daemon->signalled = true; /* the first one after a shutdown by RPC is its holder's */
    stop(daemon);
}

/* ---- events --------------------------------------------------------------------------------- */

/* What to go on from when the state in memory is lost. */
static void name_checkpoint(const struct daemon *daemon)
{
    struct zero_detail detail = { "" };
    char *path = NULL;

    if (daemon->checkpoint_dir == NULL || daemon->checkpoint_dir[0] == '\0')
        LOG_ERROR("what was kept cannot be used, and the config has no zerod.checkpoint.dir: start "
                  "the group anew, from a checkpoint with --restore if there is one");
    else if (zero_failed(store_newest(daemon->checkpoint_dir, &path, &detail)))
        LOG_ERROR("what was kept cannot be used, and %s: start the group anew", detail.text);
    else
        LOG_ERROR("what was kept cannot be used: start the group anew; it goes on from %s", path);
    free(path);
}

/* A model that cannot be taken back is not to be tried again: nothing would be different. */
static void check_recovery(struct daemon *daemon, const struct engine_event *event)
{
    if (event->kind != ENGINE_JOINED || event->token != RECOVERY_TOKEN)
        return;
    free(daemon->kept);
    daemon->kept = NULL;
    if (!zero_failed(event->status))
        return;
    bool hopeless = event->status.code == ZERO_CORRUPT || event->status.code == ZERO_VERSION;
    if (hopeless)
        name_checkpoint(daemon);
    else if (daemon->stopping) /* ENGINE_FINISHED says whether anything is lost by it */
        return;
    daemon->exit_code = hopeless ? EX_CONFIG : 1;
    stop(daemon);
}

/* The successor in this process has its arenas as if a holder had kept them. Trainers see their
 * connection end, and find it. */
static void replace(struct daemon *daemon)
{
    struct notify_fd legacy[SHARD_LEGACY];
    size_t count = engine_legacy(daemon->engine, legacy);

    LOG_INFO("going on as %s", daemon->program);
    notify_say("RELOADING=1");
    place_leave(&daemon->place); /* the successor takes it; nobody else is started meanwhile */
    if (!zero_failed(notify_hand_over(legacy, count))) {
        const char *why = "it was changed after it was tried: ask again";
        if (!upgrade_is_changed(&daemon->upgrade)) {
            execv(daemon->program, daemon->argv);
            why = strerror(errno);
        }
        LOG_ERROR("cannot become %s: %s: going on as before", daemon->program, why);
        setenv(UPGRADE_FAILED, why, 1);
        setenv(UPGRADE_PROGRAM, daemon->program, 1); /* whoever starts this one did not say it */
        execv("/proc/self/exe", daemon->argv);
    }
    LOG_ERROR("cannot be replaced: %s: the holder has to start it", strerror(errno));
    _exit(1);
}

/* NULL: forgotten, or of another daemon. */
static struct asked_save *find_save(struct daemon *daemon, uint64_t id)
{
    struct asked_save *save = &daemon->save[id % REMEMBERED];
    return id != 0 && save->id == id ? save : NULL;
}

static uint64_t on_save(void *context, const char *dir)
{
    struct daemon *daemon = context;
    uint64_t id = ++daemon->saves;

    daemon->save[id % REMEMBERED] = (struct asked_save){ .id = id, .running = true };
    engine_save(daemon->engine, dir, id);
    return id;
}

static void on_save_status(void *context, uint64_t id, Zero__V1__SaveStatusReply *reply)
{
    struct daemon *daemon = context;
    const struct stats *stats = engine_stats(daemon->engine);
    struct asked_save *save = find_save(daemon, id);

    if (save == NULL) {
        reply->text = (char *)(uintptr_t) "the daemon was restarted since: what it had begun to "
                                          "save is lost, try again";
        return;
    }
    reply->text = save->text;
    reply->running = save->running;
    reply->good = save->good;
    reply->bytes = stats_get(&stats->save_bytes);
    reply->total = stats_get(&stats->save_total);
}

static void end_save(struct daemon *daemon, const struct engine_event *event)
{
    struct asked_save *save = find_save(daemon, event->token);

    if (save == NULL)
        return;
    save->running = false;
    save->good = !zero_failed(event->status);
    snprintf(save->text, sizeof save->text, "%s", event->text);
}

static int description_of(const struct daemon *daemon)
{
    struct notify_fd legacy[SHARD_LEGACY];
    size_t count = daemon->sessions != NULL && sessions_joined(daemon->sessions)
                       ? engine_legacy(daemon->engine, legacy)
                       : 0;

    return count > 0 ? legacy[count - 1].fd : -1;
}

static void on_upgrade(void *context, const Zero__V1__UpgradeRequest *request,
                       Zero__V1__UpgradeReply *reply)
{
    struct daemon *daemon = context;
    bool done = request->check ? upgrade_check(&daemon->upgrade, description_of(daemon),
                                               daemon->settings.world)
                               : upgrade_go(&daemon->upgrade, request->now);

    reply->refused = !done;
    reply->text = daemon->upgrade.text;
    if (!done || request->check)
        return;
    LOG_INFO("to be replaced %s", request->now ? "now" : "after the next step");
    engine_upgrade(daemon->engine, request->now);
}

static void on_events(uv_async_t *async)
{
    struct daemon *daemon = async->data;
    struct engine_event event;

    while (engine_next_event(daemon->engine, &event)) {
        check_recovery(daemon, &event);
        if (event.kind == ENGINE_FROZEN && !daemon->stopping)
            replace(daemon);
        if (event.kind == ENGINE_SAVED)
            end_save(daemon, &event);
        if (event.kind == ENGINE_FINISHED && zero_failed(event.status) && daemon->exit_code == 0)
            daemon->exit_code = EX_IOERR;
        if (event.kind == ENGINE_FINISHED)
            close_all(daemon);
        if (daemon->sessions != NULL && (!daemon->stopping || event.kind == ENGINE_SAVED))
            sessions_event(daemon->sessions, &event);
    }
    if (daemon->sessions != NULL && !daemon->stopping)
        sessions_stepped(daemon->sessions);
}

static void wake_loop(void *context)
{
    struct daemon *daemon = context;
    uv_async_send(&daemon->events);
}

static struct report_source source_of(const struct daemon *daemon)
{
    return (struct report_source){ .rank = daemon->settings.rank,
                                   .world = daemon->settings.world,
                                   .device = daemon->device,
                                   .engine = daemon->engine,
                                   .sessions = daemon->sessions,
                                   .upgrade = &daemon->upgrade,
                                   .started_ns = daemon->started_ns };
}

static void on_status(void *context, Zero__V1__StatusReply *reply)
{
    struct daemon *daemon = context;
    const struct report_source source = source_of(daemon);

    report_status(&daemon->report, &source, reply);
}

static void on_versions(void *context, Zero__V1__VersionsReply *reply)
{
    struct daemon *daemon = context;
    const struct report_source source = source_of(daemon);

    report_versions(&daemon->report, &source, reply);
}

static void on_model(void *context, Zero__V1__ModelReply *reply)
{
    struct daemon *daemon = context;
    report_model(&daemon->report, daemon->sessions, daemon->engine, reply);
}

/* Takes back what a dead daemon had; what is not complete was never used, and is given up. */
static zero_status recover(struct daemon *daemon)
{
    const struct settings *settings = &daemon->settings;
    struct engine_model model = { .description = -1 };
    size_t count = 0;
    zero_status s;

    TRY(s, notify_take(&daemon->kept, &count));
    for (size_t i = 0; i < count; i++)
        if (strcmp(daemon->kept[i].name, SHARD_DESCRIPTION) == 0)
            model.description = daemon->kept[i].fd;
    if (model.description < 0) {
        for (size_t i = 0; i < count; i++) {
            notify_remove(daemon->kept[i].name);
            close(daemon->kept[i].fd);
        }
        return s;
    }
    model.kept = daemon->kept;
    model.kept_count = count;
    s = description_read(model.description, settings->world, &model.layout, &model.config);
    if (zero_failed(s)) {
        daemon->exit_code = EX_CONFIG;
        return s;
    }
    daemon->checkpoint_dir = strdup(model.config.checkpoint_dir);
    sessions_recover(daemon->sessions);
    engine_register(daemon->engine, &model, RECOVERY_TOKEN);
out:
    return s;
}

static zero_status open_all(struct daemon *daemon)
{
    const struct settings *settings = &daemon->settings;
    struct engine_options engine = { .rank = settings->rank,
                                     .world = settings->world,
                                     .comm = comm_find("shm"),
                                     .restore = settings->restore,
                                     .weights_only = settings->weights_only,
                                     .notify = wake_loop,
                                     .context = daemon };
    const struct control_source source = { .context = daemon,
                                           .status = on_status,
                                           .model = on_model,
                                           .versions = on_versions,
                                           .save = on_save,
                                           .save_status = on_save_status,
                                           .upgrade = on_upgrade,
                                           .shutdown = end_for_good };
    char path[4096];
    zero_status s;

    TRY(s, place_take(&daemon->place, settings->dir, settings->rank));
    daemon->settings.dir = engine.dir = daemon->place.dir;
    TRY(s, device_cpu.open(getenv("ZERO_KERNELS"), &daemon->device));
    engine.device = daemon->device;
    TRY(s, engine.comm->listen(settings->dir, settings->rank, &engine.peer_listener));
    TRY(s, engine_create(&engine, &daemon->engine));
    const struct sessions_options sessions = { .loop = &daemon->loop,
                                               .dir = settings->dir,
                                               .rank = settings->rank,
                                               .world = settings->world,
                                               .engine = daemon->engine };
    TRY(s, sessions_open(&sessions, &daemon->sessions));
    TRY(s, recover(daemon));
    snprintf(path, sizeof path, "%s/rank-%u.control", settings->dir, settings->rank);
    TRY(s, control_open(&daemon->loop, path, &source, &daemon->control));
    daemon->signals = (struct signals){ .on_signal = on_signal, .context = daemon };
    TRY(s, signals_open(&daemon->signals, &daemon->loop));
out:
    return s;
}

static int run(struct daemon *daemon)
{
    uv_loop_init(&daemon->loop);
    uv_timer_init(&daemon->loop, &daemon->patience);
    daemon->patience.data = daemon;
    uv_async_init(&daemon->loop, &daemon->events, on_events);
    daemon->events.data = daemon;
    upgrade_init(&daemon->upgrade, &daemon->loop, daemon->program);
    if (zero_failed(open_all(daemon)))
        return daemon->exit_code ? daemon->exit_code : 1; /* the reason is logged; the kernel takes
                                                             back what was opened */
    LOG_INFO("rank %u of %u, kernels %s, in %s", daemon->settings.rank, daemon->settings.world,
             daemon->device->kernels->name, daemon->settings.dir);
    notify_say("READY=1");
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    if (daemon->forget)
        engine_forget(daemon->engine);
    engine_destroy(daemon->engine);
    daemon->device->ops->close(daemon->device);
    place_clear(&daemon->place);
    report_deinit(&daemon->report);
    free(daemon->checkpoint_dir);
    signals_close(&daemon->signals);
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    uv_loop_close(&daemon->loop);
    return daemon->exit_code;
}

/* Every peer costs a dozen files; too few would show late, and in libraries that abort by it. */
static bool raise_limit(uint32_t world)
{
    enum { BESIDE = 128, EACH = 16 };
    const rlim_t needed = BESIDE + (rlim_t)EACH * world;
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0)
        return true;
    if (files.rlim_max < needed) {
        LOG_ERROR("a world of %u needs %ju open files and %ju are allowed: raise the limit (ulimit "
                  "-n, or "
                  "LimitNOFILE= of a unit)",
                  world, (uintmax_t)needed, (uintmax_t)files.rlim_max);
        return false;
    }
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    return true;
}

int main(int argc, char **argv)
{
    struct daemon daemon = { .argv = argv, .started_ns = clock_ns() };

    upgrade_find(daemon.program);
    settings_read(&daemon.settings, argc, argv);
    if (daemon.settings.can_take != NULL)
        return upgrade_can_take(daemon.settings.can_take, daemon.settings.world);
    signals_block();
    log_init(daemon.settings.rank, daemon.settings.level);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* over ulimit -f: whoever writes is told, and says it */
    if (!raise_limit(daemon.settings.world))
        return EX_OSERR;
    return run(&daemon);
}
