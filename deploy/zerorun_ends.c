/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_ends.h"

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_restart.h"

#include <signal.h>
#include <sys/wait.h>
#include <sysexits.h>

/* How long after a trainer's failure a daemon's death may still show itself as its cause. */
enum { SETTLE_MS = 300 };

static void daemon_failed(struct group *group, const struct child *daemon, const char *how)
{
    output_say(&group->output, "zerod %u %s before it was ready", daemon->rank, how);
    child_say_last_lines(daemon, &group->output);
    group_stop(group, EXIT_NOT_READY, SIGTERM);
}

/* Somebody's wish, which the others may not have heard of. One that was told alone is needed once
 * more where the last step is to be saved; after `zeroctl shutdown` nothing is kept for it. */
static void daemon_shut_down(struct group *group, struct child *daemon)
{
    bool alone = group->plan->options->daemons_only;

    output_say(&group->output, "zerod %u was told to end: ending the group", daemon->rank);
    if (daemons_save(&group->daemons) == SAVE_WANTED &&
        group->daemons.holders[daemon->rank].count > 0)
        daemons_replace(&group->daemons, daemon, "has to save the last step first");
    group_stop(group, alone ? 0 : EXIT_SHUT_DOWN, SIGTERM);
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
        group_stop(group, EXIT_NOT_SAVED, SIGTERM);
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
    group_stop(group, EXIT_DAEMON_DIED, SIGTERM);
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
    } else if (group->phase == STARTING && !daemon->served) {
        daemon_failed(group, daemon, how);
    } else if (daemon->succeeded) {
        daemon_shut_down(group, daemon);
    } else {
        daemon_died(group, daemon, status, how);
    }
}

bool ends_replace(struct group *group, struct child *trainer, const char *how)
{
    uint32_t largest = group->plan->options->max_restarts;

    if (trainer->restarts >= largest)
        return false;
    trainer->restarts++;
    restart_plan(trainer, group->plan->options->restart_delay_s * 1000);
    output_say(&group->output, "trainer %u %s: restart %u of %u in %.1f s", trainer->rank, how,
               trainer->restarts, largest, trainer->delay_ms / 1000.0);
    return true;
}

static void trainer_failed(struct group *group, struct child *trainer, int status)
{
    uint32_t largest = group->plan->options->max_restarts;
    char how[96];

    child_describe(status, how, sizeof how);
    if (group->phase == RUNNING && daemons_told(&group->daemons)) {
        output_say(&group->output, "trainer %u %s: the daemons were told to end: ending the group",
                   trainer->rank, how);
        group_stop(group, EXIT_SHUT_DOWN, SIGTERM);
        return;
    }
    if (group->phase == RUNNING && ends_replace(group, trainer, how))
        return;
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
    group_enter(group, SETTLING, SETTLE_MS);
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
void ends_reap(struct group *group)
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
