/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_group.h"

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_ends.h"
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
#include <unistd.h>

enum {
    KILLED_MS = 10000, /* for the end of a process that was sent SIGKILL */
    READER_MS = 3000   /* for a slow reader when somebody wants us gone: below front's patience */
};

/* ---- starting ---------------------------------------------------------------------------- */

static void begin_running(struct group *group)
{
    group_enter(group, RUNNING, 0);
    if (group->plan->options->daemons_only)
        start_say_how(group->plan, &group->output);
    else if (!start_trainers(group->plan, group->trainers, &group->output))
        group_stop(group, EXIT_SYSTEM, SIGTERM);
}

/* Successors are watched as the first ones are. */
static void watch_daemons(struct group *group)
{
    if (group->phase == STARTING && daemons_late(&group->daemons)) {
        group_stop(group, EXIT_NOT_READY, SIGTERM);
        return;
    }
    daemons_kill_late(&group->daemons);
    if (!daemons_start_due(&group->daemons))
        group_stop(group, EXIT_SYSTEM, SIGTERM);
    else if (group->phase == STARTING && daemons_ready(&group->daemons))
        begin_running(group);
}

static void restart_trainers(struct group *group)
{
    for (uint32_t r = 0; r < group->world && group->phase == RUNNING; r++) {
        struct child *trainer = &group->trainers[r];
        if (trainer->restart_ms == 0 || trainer->restart_ms > now_ms() ||
            start_trainer(group->plan, trainer, &group->output))
            continue;
        trainer->started_ms = now_ms(); /* its program may be there again in a moment */
        if (!ends_replace(group, trainer, "could not be started"))
            group_stop(group, EXIT_SYSTEM, SIGTERM);
    }
}

/* ---- signals, time, poll ----------------------------------------------------------------- */

static void take_signal(struct group *group, int signal)
{
    switch (signal) {
    case SIGCHLD:
        ends_reap(group);
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
        group_stop(group, wanted ? 0 : EXIT_SIGNALLED + signal, signal);
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
        group_stop(group, code, SIGTERM);
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
        atomic_store(&group->plan->words->patience_ms, group->deadline_ms);
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
    group_enter(group, STOPPING_DAEMONS, group->hurried ? 0 : grace_ms);
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
            output_say(&group->output, "%s %u %s: killing it", child_name(children[r].kind), r,
                       group->hurried ? "has not ended yet, and a second signal came"
                                      : "does not end");
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
            group_stop(group, 0, SIGTERM);
        break;
    case SETTLING:
        if (now_ms() >= group->deadline_ms)
            group_stop(group, group->code, SIGTERM);
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
    atomic_store(&group->plan->words->unsaved, daemons_save(&group->daemons) == SAVE_WANTED);
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
    group_enter(&group, STARTING, 0);
    if (!daemons_start(&group.daemons))
        group_stop(&group, EXIT_SYSTEM, SIGTERM);
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
