/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_group.h"

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_front.h"
#include "deploy/zerorun_output.h"
#include "deploy/zerorun_ready.h"
#include "deploy/zerorun_restart.h"
#include "deploy/zerorun_tree.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    /* How long after a trainer's failure a daemon's death may still show itself as its cause. */
    SETTLE_MS = 300,
    KILLED_MS = 10000, /* for the end of a process that was sent SIGKILL */
    READER_MS = 3000   /* for a slow reader when somebody wants us gone: below front's patience */
};

enum phase { STARTING, RUNNING, SETTLING, STOPPING_TRAINERS, STOPPING_DAEMONS, OVER };

struct group {
    struct plan *plan;
    struct output output;
    struct child *daemons, *trainers; /* one of each per rank */
    int *ready_fds;                   /* where the daemon of each rank says READY */
    struct pollfd *polled;
    uint32_t world;
    uint32_t made; /* how many ranks of the arrays are initialised */
    int signals, lifeline;
    enum phase phase;
    int64_t deadline_ms; /* of the phase */
    bool killed;         /* the phase's processes were sent SIGKILL */
    bool orphaned;       /* the front process is dead */
    bool hurried;        /* asked twice to end */
    int code;
    int stop_signal; /* that a user sent, 0 if none did */
};

static void enter(struct group *group, enum phase phase, int64_t limit_ms)
{
    group->phase = phase;
    group->deadline_ms = now_ms() + limit_ms;
    group->killed = false;
}

/* Begins the end, unless it has begun. Trainers get `signal`. */
static void stop(struct group *group, int code, int signal)
{
    if (group->phase >= STOPPING_TRAINERS)
        return;
    group->code = code;
    children_signal(group->trainers, group->world, signal);
    /* A stopped process must run to act on it. */
    children_signal(group->trainers, group->world, SIGCONT);
    enter(group, STOPPING_TRAINERS, (int64_t)group->plan->options->grace_s * 1000);
}

/* ---- starting ---------------------------------------------------------------------------- */

static void begin_running(struct group *group)
{

    enter(group, RUNNING, 0);
    if (group->plan->options->daemons_only) {
        start_say_how(group->plan, &group->output);
        return;
    }
    if (start_limits_threads(group->plan))
        output_say(&group->output, "OMP_NUM_THREADS is not set: trainers get 1");
    group->plan->master_port = start_free_port();
    if (group->plan->master_port == 0) {
        output_say(&group->output, "no free port for MASTER_PORT: %s", strerror(errno));
        stop(group, EXIT_SYSTEM, SIGTERM);
        return;
    }
    for (uint32_t r = 0; r < group->world && group->phase == RUNNING; r++)
        if (!start_trainer(group->plan, &group->trainers[r], &group->output))
            stop(group, EXIT_SYSTEM, SIGTERM);
}

static void check_ready(struct group *group)
{
    uint32_t ready = 0;

    for (uint32_t r = 0; r < group->world; r++)
        ready += group->daemons[r].ready;
    if (ready == group->world) {
        begin_running(group);
    } else if (now_ms() >= group->deadline_ms) {
        for (uint32_t r = 0; r < group->world; r++) {
            if (group->daemons[r].ready)
                continue;
            output_say(&group->output, "zerod %u did not get ready within %u s (--ready-timeout)",
                       r, group->plan->options->ready_s);
            child_say_last_lines(&group->daemons[r], &group->output);
        }
        stop(group, EXIT_NOT_READY, SIGTERM);
    }
}

/* ---- ends of children -------------------------------------------------------------------- */

static void daemon_ended(struct group *group, const struct child *daemon, int status)
{
    bool in_order = daemon->succeeded;
    char how[96];

    child_describe(status, how, sizeof how);
    switch (group->phase) {
    case STARTING:
        output_say(&group->output, "zerod %u %s before it was ready", daemon->rank, how);
        child_say_last_lines(daemon, &group->output);
        stop(group, EXIT_NOT_READY, SIGTERM);
        break;
    case RUNNING:
    case SETTLING:
        if (in_order && group->plan->options->daemons_only) {
            if (children_running(group->daemons, group->world) == 0)
                stop(group, 0, SIGTERM);
            break;
        }
        if (in_order)
            output_say(&group->output, "zerod %u was told to end: ending the group", daemon->rank);
        else
            output_say(&group->output, "zerod %u %s while the group was running: ending the group",
                       daemon->rank, how);
        stop(group, in_order ? EXIT_SHUT_DOWN : EXIT_DAEMON_DIED, SIGTERM);
        break;
    case STOPPING_TRAINERS:
    case STOPPING_DAEMONS:
    case OVER:
        if (in_order || group->killed)
            break;
        output_say(&group->output, "zerod %u %s while the group was ending", daemon->rank, how);
        if (group->stop_signal == 0 && group->code < EXIT_DAEMON_DIED)
            group->code = EXIT_DAEMON_DIED;
        break;
    }
}

static void trainer_failed(struct group *group, struct child *trainer, int status)
{
    uint32_t largest = group->plan->options->max_restarts;
    char how[96];

    child_describe(status, how, sizeof how);
    if (group->phase == RUNNING && trainer->restarts < largest) {
        trainer->restarts++;
        restart_plan(trainer, group->plan->options->restart_delay_s * 1000);
        output_say(&group->output, "trainer %u %s: restart %u of %u in %.1f s", trainer->rank, how,
                   trainer->restarts, largest, trainer->delay_ms / 1000.0);
        return;
    }
    if (group->phase != RUNNING) {
        if (group->stop_signal == 0 && !WIFSIGNALED(status))
            output_say(&group->output, "trainer %u %s", trainer->rank, how);
        return;
    }
    output_say(&group->output,
               "trainer %u %s, with no restart left (--max-restarts %u): ending the "
               "group",
               trainer->rank, how, largest);
    group->code = WIFEXITED(status) && WEXITSTATUS(status) <= EXIT_TRAINER_LARGEST
                      ? WEXITSTATUS(status)
                      : EXIT_TRAINER_FAILED;
    enter(group, SETTLING, SETTLE_MS);
}

static void restart_trainers(struct group *group)
{
    for (uint32_t r = 0; r < group->world && group->phase == RUNNING; r++) {
        struct child *trainer = &group->trainers[r];
        if (trainer->restart_ms != 0 && trainer->restart_ms <= now_ms() &&
            !start_trainer(group->plan, trainer, &group->output))
            stop(group, EXIT_SYSTEM, SIGTERM);
    }
}

static bool reap_one(struct group *group, struct child *children, pid_t pid)
{
    for (uint32_t r = 0; r < group->world; r++) {
        struct child *child = &children[r];
        if (child->pid != pid)
            continue;
        int status = child_reap(child, &group->output);
        if (child->kind == CHILD_DAEMON)
            daemon_ended(group, child, status);
        else if (!child->succeeded)
            trainer_failed(group, child, status);
        return true;
    }
    return false;
}

/* Daemons first: their death is the cause of their trainers'. What is neither was left to us by a
 * child that had started it. */
static void reap(struct group *group)
{
    for (uint32_t r = 0; r < group->world; r++) {
        siginfo_t daemon = { 0 };
        pid_t pid = group->daemons[r].pid;
        if (pid > 0 && waitid(P_PID, (id_t)pid, &daemon, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            daemon.si_pid == pid)
            reap_one(group, group->daemons, pid);
    }
    for (;;) {
        siginfo_t any = { 0 };
        if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) != 0 || any.si_pid == 0)
            break;
        if (!reap_one(group, group->daemons, any.si_pid) &&
            !reap_one(group, group->trainers, any.si_pid))
            waitpid(any.si_pid, NULL, 0);
    }
}

/* ---- signals, time, poll ----------------------------------------------------------------- */

static void take_signal(struct group *group, int signal)
{
    switch (signal) {
    case SIGCHLD:
        reap(group);
        break;
    case SIGUSR1:
    case SIGUSR2:
        children_signal(group->trainers, group->world, signal);
        break;
    default:
        if (group->stop_signal != 0) {
            group->hurried = true;
            group->deadline_ms = 0;
            break;
        }
        group->stop_signal = signal;
        output_say(&group->output, "%s: ending the group", strsignal(signal));
        if (group->phase >= STOPPING_TRAINERS)
            break;
        bool wanted = group->plan->options->daemons_only && group->phase == RUNNING &&
                      (signal == SIGINT || signal == SIGTERM);
        stop(group, wanted ? 0 : EXIT_SIGNALLED + signal, signal);
        break;
    }
}

/* Writes what can be written. What stdout does not take is lost: the run ends, and its exit code
 * says so even if all else went well. */
static void flush(struct group *group)
{
    output_flush(&group->output);
    int error = output_take_error(&group->output);
    int code = error == EPIPE ? EXIT_SIGNALLED + SIGPIPE : EXIT_SYSTEM;
    if (error == 0)
        return;
    if (error == EPIPE) {
        take_signal(group, SIGPIPE);
    } else {
        output_say(&group->output, "cannot write to stdout: %s", strerror(error));
        stop(group, code, SIGTERM);
    }
    if (group->code == 0)
        group->code = code;
    output_flush(&group->output);
}

/* Kills what has not ended in time; true if the phase's processes are gone or beyond our power. */
static bool stopped(struct group *group, const struct child *children)
{
    if (children_running(children, group->world) == 0)
        return true;
    if (now_ms() < group->deadline_ms)
        return false;
    if (group->killed)
        return true;
    for (uint32_t r = 0; r < group->world; r++)
        if (children[r].pid > 0)
            output_say(&group->output, "%s %u does not end: killing it",
                       child_name(children[r].kind), r);
    children_signal(children, group->world, SIGKILL);
    group->killed = true;
    group->deadline_ms = now_ms() + KILLED_MS;
    return false;
}

static void advance(struct group *group)
{
    switch (group->phase) {
    case STARTING:
        check_ready(group);
        break;
    case RUNNING:
        restart_trainers(group);
        if (!group->plan->options->daemons_only &&
            children_running(group->trainers, group->world) == 0 &&
            restart_next_ms(group->trainers, group->world) == 0)
            stop(group, 0, SIGTERM);
        break;
    case SETTLING:
        if (now_ms() >= group->deadline_ms)
            stop(group, group->code, SIGTERM);
        break;
    case STOPPING_TRAINERS:
        if (!stopped(group, group->trainers))
            break;
        children_signal(group->daemons, group->world, SIGTERM);
        children_signal(group->daemons, group->world, SIGCONT);
        enter(group, STOPPING_DAEMONS,
              group->hurried ? 0 : (int64_t)group->plan->options->grace_s * 1000);
        break;
    case STOPPING_DAEMONS:
        if (stopped(group, group->daemons))
            group->phase = OVER;
        break;
    case OVER:
        break;
    }
}

static void watch(struct group *group, nfds_t *count, int fd, short events)
{
    group->polled[(*count)++] = (struct pollfd){ .fd = fd, .events = events };
}

/* Entries of fd -1 are skipped by poll() and keep the places. */
static nfds_t watch_all(struct group *group)
{
    bool listen = !output_congested(&group->output);
    nfds_t count = 0;

    watch(group, &count, group->signals, POLLIN);
    watch(group, &count, group->lifeline, POLLIN);
    watch(group, &count, output_pending(&group->output, SINK_STDOUT) ? STDOUT_FILENO : -1, POLLOUT);
    watch(group, &count, output_pending(&group->output, SINK_STDERR) ? STDERR_FILENO : -1, POLLOUT);
    for (uint32_t r = 0; r < group->world; r++) {
        watch(group, &count, group->phase == STARTING ? group->ready_fds[r] : -1, POLLIN);
        watch(group, &count, listen ? group->daemons[r].out.fd : -1, POLLIN);
        watch(group, &count, listen ? group->daemons[r].err.fd : -1, POLLIN);
        watch(group, &count, listen ? group->trainers[r].out.fd : -1, POLLIN);
        watch(group, &count, listen ? group->trainers[r].err.fd : -1, POLLIN);
    }
    return count;
}

static void handle_rank(struct group *group, uint32_t rank, const struct pollfd *polled)
{
    struct child *daemon = &group->daemons[rank], *trainer = &group->trainers[rank];
    struct stream *streams[] = { &daemon->out, &daemon->err, &trainer->out, &trainer->err };

    if (polled[0].revents != 0 && ready_take(group->ready_fds[rank]))
        daemon->ready = true;
    for (size_t i = 0; i < 4; i++)
        if (polled[1 + i].revents != 0)
            stream_read(&group->output, streams[i]);
}

/* One round: waits for something to happen, or for the phase's deadline. */
static void turn(struct group *group)
{
    int timeout = -1;
    int64_t deadline_ms = group->phase == RUNNING ? restart_next_ms(group->trainers, group->world)
                                                  : group->deadline_ms;

    if (group->phase != RUNNING || deadline_ms != 0) {
        int64_t left = deadline_ms - now_ms();
        timeout = left < 0 ? 0 : left > 1000 ? 1000 : (int)left + 1;
    }
    nfds_t count = watch_all(group);
    if (poll(group->polled, count, timeout) < 0)
        return;
    /* Output before signals, so that a child's last words come before the word of its end. */
    for (uint32_t r = 0; r < group->world; r++)
        handle_rank(group, r, &group->polled[4 + (size_t)r * 5]);
    flush(group);
    struct signalfd_siginfo info;
    while (read(group->signals, &info, sizeof info) == sizeof info)
        take_signal(group, (int)info.ssi_signo);
    if (group->polled[1].revents != 0) {
        group->orphaned = true;
        group->phase = OVER;
    }
}

/* ---- all of it --------------------------------------------------------------------------- */

static bool open_group(struct group *group)
{
    sigset_t signals;
    bool ok;

    group->daemons = calloc(group->world, sizeof *group->daemons);
    group->trainers = calloc(group->world, sizeof *group->trainers);
    group->ready_fds = malloc(group->world * sizeof *group->ready_fds);
    group->polled = calloc(4 + (size_t)group->world * 5, sizeof *group->polled);
    ok = group->daemons != NULL && group->trainers != NULL && group->ready_fds != NULL &&
         group->polled != NULL;
    for (uint32_t r = 0; ok && r < group->world; r++) {
        bool daemon = child_init(&group->daemons[r], CHILD_DAEMON, r);
        bool trainer = child_init(&group->trainers[r], CHILD_TRAINER, r);
        ok = daemon && trainer;
        group->ready_fds[r] = -1;
        group->made = r + 1;
    }
    if (!ok)
        output_say(&group->output, "no memory for %u ranks", group->world);
    for (uint32_t r = 0; ok && r < group->world; r++) {
        char *path = folder_file(group->plan->folder, "rank-%u.notify", r);
        group->ready_fds[r] = path != NULL ? ready_open(path) : -1;
        if (group->ready_fds[r] < 0)
            output_say(&group->output, "cannot open %s: %s", path, strerror(errno));
        ok = group->ready_fds[r] >= 0;
        free(path);
    }
    front_signals(&signals);
    group->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return ok && group->signals >= 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

/* Ends what is left, prints what is left: a child's child may have held a pipe until now. */
static void finish(struct group *group)
{

    tree_kill(KILLED_MS);
    folder_remove(group->plan->folder);
    for (uint32_t r = 0; r < group->world; r++) {
        child_finish(&group->daemons[r], &group->output);
        child_finish(&group->trainers[r], &group->output);
    }
    int64_t deadline_ms = now_ms() + READER_MS;
    flush(group);
    /* A slow reader has time, unless somebody wants us gone. */
    while (output_pending(&group->output, SINK_STDOUT) ||
           output_pending(&group->output, SINK_STDERR)) {
        struct signalfd_siginfo info;
        watch_all(group);
        if (poll(group->polled, 4, 1000) < 0 || group->orphaned || group->polled[1].revents != 0 ||
            (group->stop_signal != 0 && now_ms() > deadline_ms))
            break;
        while (read(group->signals, &info, sizeof info) == sizeof info)
            if (info.ssi_signo != SIGCHLD)
                group->stop_signal = (int)info.ssi_signo;
        flush(group);
    }
}

static void close_group(struct group *group)
{
    for (uint32_t r = 0; r < group->made; r++) {
        if (group->ready_fds[r] >= 0)
            close(group->ready_fds[r]);
        child_deinit(&group->daemons[r]);
        child_deinit(&group->trainers[r]);
    }
    if (group->signals >= 0)
        close(group->signals);
    free(group->daemons);
    free(group->trainers);
    free(group->ready_fds);
    free(group->polled);
    output_deinit(&group->output);
}

int group_run(struct plan *plan, int lifeline)
{
    struct group group = { .plan = plan,
                           .world = plan->options->world,
                           .lifeline = lifeline,
                           .signals = -1,
                           .code = EXIT_SYSTEM };

    output_init(&group.output, plan->options->prefix);
    if (!open_group(&group)) {
        output_flush(&group.output);
        folder_remove(plan->folder);
        close_group(&group);
        return EXIT_SYSTEM;
    }
    enter(&group, STARTING, (int64_t)plan->options->ready_s * 1000);
    for (uint32_t r = 0; r < group.world && group.phase == STARTING; r++)
        if (!start_daemon(plan, &group.daemons[r], &group.output))
            stop(&group, EXIT_SYSTEM, SIGTERM);
    while (group.phase != OVER) {
        enum phase before = group.phase;
        advance(&group);
        if (group.phase == before) /* a new phase may be over before anything happens */
            turn(&group);
    }
    finish(&group);
    int code = group.code;
    close_group(&group);
    return code;
}
