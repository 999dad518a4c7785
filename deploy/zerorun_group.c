/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_group.h"

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_daemons.h"
#include "deploy/zerorun_front.h"
#include "deploy/zerorun_output.h"
#include "deploy/zerorun_restart.h"
#include "deploy/zerorun_tree.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

enum {
    /* How long after a trainer's failure a daemon's death may still show itself as its cause. */
    SETTLE_MS = 300,
    SAVE_MS = 10000,   /* before a daemon that is to save has to ask for more, whatever the grace */
    KILLED_MS = 10000, /* for the end of a process that was sent SIGKILL */
    READER_MS = 3000   /* for a slow reader when somebody wants us gone: below front's patience */
};

enum phase { STARTING, RUNNING, SETTLING, STOPPING_TRAINERS, STOPPING_DAEMONS, OVER };

struct group {
    struct plan *plan;
    struct output output;
    struct daemons daemons;
    struct child *trainers; /* one per rank */
    struct pollfd *polled;
    uint32_t world;
    uint32_t made; /* how many trainers are initialised */
    int signals, lifeline;
    enum phase phase;
    int64_t deadline_ms; /* of the phase */
    bool killed;         /* the phase's processes were sent SIGKILL */
    bool orphaned;       /* the front process is dead */
    bool hurried;        /* asked twice to end */
    int code;
    int stop_signal; /* that a user sent, 0 if none did */
    bool warned;     /* what a second one would do */
    bool died;       /* a daemon has, while the group ends, */
    bool hopeless;   /* without whom the last step cannot be saved */
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
    if (group->plan->options->daemons_only)
        start_say_how(group->plan, &group->output);
    else if (!start_trainers(group->plan, group->trainers, &group->output))
        stop(group, EXIT_SYSTEM, SIGTERM);
}

/* Successors are watched as the first ones are. */
static void watch_daemons(struct group *group)
{
    if (group->phase != STARTING)
        daemons_kill_late(&group->daemons);
    if (group->phase == STARTING && daemons_late(&group->daemons))
        stop(group, EXIT_NOT_READY, SIGTERM);
    else if (!daemons_start_due(&group->daemons))
        stop(group, EXIT_SYSTEM, SIGTERM);
    else if (group->phase == STARTING && daemons_ready(&group->daemons))
        begin_running(group);
}

/* ---- ends of children -------------------------------------------------------------------- */

static void daemon_failed(struct group *group, const struct child *daemon, const char *how)
{
    output_say(&group->output, "zerod %u %s before it was ready", daemon->rank, how);
    child_say_last_lines(daemon, &group->output);
    stop(group, EXIT_NOT_READY, SIGTERM);
}

static void daemon_shut_down(struct group *group, const struct child *daemon)
{
    const struct child *all = group->daemons.children;

    if (!group->plan->options->daemons_only) {
        output_say(&group->output, "zerod %u was told to end: ending the group", daemon->rank);
        stop(group, EXIT_SHUT_DOWN, SIGTERM);
    } else if (children_running(all, group->world) == 0 &&
               restart_next_ms(all, group->world) == 0) {
        stop(group, 0, SIGTERM);
    }
}

/* While the group runs its successor goes on, unless it says (EX_CONFIG) that none can. */
static void daemon_died(struct group *group, struct child *daemon, int status, const char *how)
{
    uint32_t largest = group->plan->options->max_daemon_restarts;

    if (WIFEXITED(status) && WEXITSTATUS(status) == EX_CONFIG) {
        output_say(&group->output,
                   "zerod %u %s: what was kept for it is refused, and would be again: ending the "
                   "group",
                   daemon->rank, how);
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == EX_IOERR &&
               group->daemons.holders[daemon->rank].stopping) {
        output_say(&group->output,
                   "zerod %u was told to end, and could not save the last step: ending the group",
                   daemon->rank);
        stop(group, EXIT_NOT_SAVED, SIGTERM);
        return;
    } else if (group->phase == SETTLING && group->daemons.restarts < largest &&
               daemons_save(&group->daemons) != SAVE_WANTED) {
        /* Trainers outlive such a death: the failure was their own. */
        output_say(&group->output, "zerod %u %s while the group was ending", daemon->rank, how);
        return;
    } else if (daemons_replace(&group->daemons, daemon, how)) {
        return;
    } else {
        output_say(&group->output,
                   "zerod %u %s while the group was running, with no restart left "
                   "(--max-daemon-restarts %u): ending the group",
                   daemon->rank, how, largest);
    }
    child_say_last_lines(daemon, &group->output);
    group->hopeless = daemons_save(&group->daemons) == SAVE_WANTED;
    stop(group, EXIT_DAEMON_DIED, SIGTERM);
}

/* It takes the save with it, unless its successor goes on; exit codes say that none can. */
static void daemon_ended_late(struct group *group, struct child *daemon, int status,
                              const char *how)
{
    bool wanted = daemons_save(&group->daemons) == SAVE_WANTED;
    bool gave_up =
        WIFEXITED(status) && (WEXITSTATUS(status) == EX_IOERR || WEXITSTATUS(status) == EX_CONFIG);
    bool killed = group->phase != STOPPING_TRAINERS && group->killed;

    if (daemon->succeeded || killed)
        return;
    group->died = true;
    if (group->daemons.dismissed && WIFSIGNALED(status))
        return; /* a successor that was not ready to be told */
    if (wanted && !gave_up && !group->hurried && !group->hopeless &&
        daemons_replace(&group->daemons, daemon, how)) {
        int64_t until = daemon->restart_ms + SAVE_MS;
        group->deadline_ms = until > group->deadline_ms ? until : group->deadline_ms;
        return;
    }
    output_say(&group->output, "zerod %u %s while the group was ending%s", daemon->rank, how,
               wanted && !gave_up && !group->hurried ? ", with no restart left" : "");
    group->hopeless = wanted;
    if (daemons_save(&group->daemons) == SAVE_NONE && group->stop_signal == 0 &&
        group->code < EXIT_DAEMON_DIED)
        group->code = EXIT_DAEMON_DIED;
}

static void daemon_ended(struct group *group, struct child *daemon, int status)
{
    char how[96];

    child_describe(status, how, sizeof how);
    if (group->phase >= STOPPING_TRAINERS) {
        daemon_ended_late(group, daemon, status, how);
    } else if (group->phase == STARTING && !daemon->ready && daemon->restarts == 0) {
        daemon_failed(group, daemon, how);
    } else if (daemon->succeeded) {
        daemon_shut_down(group, daemon);
    } else {
        daemon_died(group, daemon, status, how);
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
        if (child->kind == CHILD_DAEMON)
            daemons_hear(&group->daemons, r); /* its last words, too, are its own */
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
        pid_t pid = group->daemons.children[r].pid;
        if (pid > 0 && waitid(P_PID, (id_t)pid, &daemon, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            daemon.si_pid == pid)
            reap_one(group, group->daemons.children, pid);
    }
    for (;;) {
        siginfo_t any = { 0 };
        if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) != 0 || any.si_pid == 0)
            break;
        if (!reap_one(group, group->daemons.children, any.si_pid) &&
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

/* A daemon that saves the last step says that it takes its time; who asks twice has none to give.
 */
static void be_patient(struct group *group)
{
    int64_t until = daemons_patience_ms(&group->daemons);

    if (group->hurried || group->killed || group->daemons.dismissed)
        return;
    if (until > group->deadline_ms)
        group->deadline_ms = until;
    if (until != 0 || daemons_save(&group->daemons) == SAVE_WANTED)
        atomic_store(group->plan->patience_ms, group->deadline_ms);
}

/* A save that is done, or cannot be, is waited for no more; one that somebody may lose is named. */
static void mind_save(struct group *group)
{
    enum save save = daemons_save(&group->daemons);
    const char *step = daemons_save_step(&group->daemons);

    if (!group->daemons.dismissed && group->died && (save == SAVE_DONE || group->hopeless)) {
        int64_t until = now_ms() + (int64_t)group->plan->options->grace_s * 1000;
        daemons_dismiss(&group->daemons);
        if (group->hopeless && until < group->deadline_ms)
            group->deadline_ms = until;
    }
    if (save != SAVE_WANTED || group->hopeless || group->hurried || group->stop_signal == 0 ||
        group->warned || step[0] == '\0')
        return;
    output_say(&group->output, "the daemons save step %s: a second signal would lose it", step);
    group->warned = true;
}

/* The daemons are told to end. */
static void stop_daemons(struct group *group)
{
    int64_t grace_ms = (int64_t)group->plan->options->grace_s * 1000;
    bool saves = daemons_save(&group->daemons) == SAVE_WANTED;

    daemons_end(&group->daemons);
    if (saves && grace_ms < SAVE_MS) /* one that saves is not stuck */
        grace_ms = SAVE_MS;
    enter(group, STOPPING_DAEMONS, group->hurried ? 0 : grace_ms);
}

/* What dies while the group ends is started again only for what there is to save. */
static void restart_for_save(struct group *group)
{
    struct child *all = group->daemons.children;
    bool wanted = daemons_save(&group->daemons) == SAVE_WANTED && !group->hurried && !group->killed;

    for (uint32_t r = 0; !wanted && r < group->world; r++)
        all[r].restart_ms = 0;
    if (!daemons_start_due(&group->daemons))
        group->hopeless = true;
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
    case RUNNING:
        watch_daemons(group);
        restart_trainers(group);
        if (group->phase == RUNNING && !group->plan->options->daemons_only &&
            children_running(group->trainers, group->world) == 0 &&
            restart_next_ms(group->trainers, group->world) == 0)
            stop(group, 0, SIGTERM);
        break;
    case SETTLING:
        if (now_ms() >= group->deadline_ms)
            stop(group, group->code, SIGTERM);
        break;
    case STOPPING_TRAINERS:
        restart_for_save(group);
        if (stopped(group, group->trainers))
            stop_daemons(group);
        break;
    case STOPPING_DAEMONS:
        be_patient(group);
        mind_save(group);
        restart_for_save(group);
        if (stopped(group, group->daemons.children) &&
            restart_next_ms(group->daemons.children, group->world) == 0)
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
        const struct child *daemon = &group->daemons.children[r];
        watch(group, &count, group->daemons.holders[r].fd, POLLIN);
        watch(group, &count, listen ? daemon->out.fd : -1, POLLIN);
        watch(group, &count, listen ? daemon->err.fd : -1, POLLIN);
        watch(group, &count, listen ? group->trainers[r].out.fd : -1, POLLIN);
        watch(group, &count, listen ? group->trainers[r].err.fd : -1, POLLIN);
    }
    return count;
}

static void handle_rank(struct group *group, uint32_t rank, const struct pollfd *polled)
{
    struct child *daemon = &group->daemons.children[rank], *trainer = &group->trainers[rank];
    struct stream *streams[] = { &daemon->out, &daemon->err, &trainer->out, &trainer->err };

    if (polled[0].revents != 0)
        daemons_hear(&group->daemons, rank);
    for (size_t i = 0; i < 4; i++)
        if (polled[1 + i].revents != 0)
            stream_read(&group->output, streams[i]);
}

/* For how long nothing is due if nothing happens; -1: forever. */
static int patience_ms(const struct group *group)
{
    int64_t due = group->deadline_ms;

    if (group->phase == STARTING || group->phase == RUNNING) {
        int64_t daemon = daemons_next_ms(&group->daemons);
        due = restart_next_ms(group->trainers, group->world);
        due = due == 0 || (daemon != 0 && daemon < due) ? daemon : due;
        if (due == 0)
            return -1;
    } else {
        int64_t daemon = restart_next_ms(group->daemons.children, group->world);
        due = daemon != 0 && daemon < due ? daemon : due;
    }
    int64_t left = due - now_ms();
    return left < 0 ? 0 : left > 1000 ? 1000 : (int)left + 1;
}

/* One round: waits for something to happen, or to be due. */
static void turn(struct group *group)
{
    nfds_t count = watch_all(group);
    if (poll(group->polled, count, patience_ms(group)) < 0)
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

    group->trainers = calloc(group->world, sizeof *group->trainers);
    group->polled = calloc(4 + (size_t)group->world * 5, sizeof *group->polled);
    bool ok = group->trainers != NULL && group->polled != NULL;
    for (uint32_t r = 0; ok && r < group->world; r++) {
        ok = child_init(&group->trainers[r], CHILD_TRAINER, r);
        group->made = r + 1;
    }
    if (!ok)
        output_say(&group->output, "no memory for %u ranks", group->world);
    ok = ok && daemons_open(&group->daemons, group->plan, &group->output);
    front_signals(&signals);
    group->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    return ok && group->signals >= 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

/* Whoever ends it, and however: nobody is to believe that the last step is there when it is not. */
static void judge_save(struct group *group)
{
    const char *dir = daemons_save_dir(&group->daemons), *step = daemons_save_step(&group->daemons);

    if (daemons_save(&group->daemons) != SAVE_WANTED)
        return;
    output_say(&group->output,
               "the last step%s%s%s was not saved in %s; what is there: zeroctl checkpoint list %s",
               step[0] != '\0' ? ", " : "", step, step[0] != '\0' ? "," : "", dir, dir);
    if (group->code < EXIT_DAEMON_DIED)
        group->code = EXIT_NOT_SAVED;
}

/* Ends what is left, prints what is left: a child's child may have held a pipe until now. */
static void finish(struct group *group)
{
    tree_kill(KILLED_MS);
    daemons_forget(&group->daemons); /* a slow reader need not keep their memory */
    folder_remove(group->plan->folder);
    for (uint32_t r = 0; r < group->world; r++) {
        child_finish(&group->daemons.children[r], &group->output);
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
    daemons_close(&group->daemons);
    for (uint32_t r = 0; r < group->made; r++)
        child_deinit(&group->trainers[r]);
    if (group->signals >= 0)
        close(group->signals);
    free(group->trainers);
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
    enter(&group, STARTING, 0);
    if (!daemons_start(&group.daemons))
        stop(&group, EXIT_SYSTEM, SIGTERM);
    while (group.phase != OVER) {
        enum phase before = group.phase;
        advance(&group);
        if (group.phase == before) /* a new phase may be over before anything happens */
            turn(&group);
    }
    judge_save(&group);
    finish(&group);
    close_group(&group);
    return group.code;
}
