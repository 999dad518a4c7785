/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_front.h"

#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_tree.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    KILL_LIMIT_MS = 10000,
    /* What the group may take beyond its two graces, and after it was asked twice. */
    SLACK_MS = 5000,
    HURRIED_MS = 2000
};

/* The end that a user asked for. */
struct ending {
    int signal; /* 0: none was asked for */
    bool hurried;
    int64_t asked_ms, deadline_ms;
    const struct words *words;
};

void front_signals(sigset_t *out)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD };

    struct sigaction hangup;

    sigemptyset(out);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(out, signals[i]);
    /* nohup's wish: what is blocked would be heard although it is ignored */
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN)
        sigdelset(out, SIGHUP);
}

/* To the group's process, which must run to act on it. */
static void pass_on(pid_t group, int signal, int64_t grace_ms, struct ending *ending)
{
    int64_t now = now_ms();
    bool ends = signal != SIGUSR1 && signal != SIGUSR2;

    if (ends)
        kill(group, SIGCONT); /* first, so that it does not undo a stop that follows the signal */
    kill(group, signal);
    if (!ends)
        return;
    bool first = ending->signal == 0;
    if (first)
        *ending = (struct ending){ .signal = signal,
                                   .asked_ms = now,
                                   .deadline_ms = now + 2 * grace_ms + SLACK_MS,
                                   .words = ending->words };
    else if (ending->deadline_ms > now + HURRIED_MS)
        ending->deadline_ms = now + HURRIED_MS;
    ending->hurried = !first;
}

static int64_t deadline_of(const struct ending *ending)
{
    int64_t patience = atomic_load(&ending->words->patience_ms) + SLACK_MS;

    return ending->hurried || patience < ending->deadline_ms ? ending->deadline_ms : patience;
}

/* Waits for a signal, at most until the ending's deadline; 0 if that has come. */
static int next_signal(const struct ending *ending)
{
    sigset_t signals;

    front_signals(&signals);
    for (;;) {
        int64_t left = deadline_of(ending) - now_ms();
        struct timespec wait = { .tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000 };
        if (ending->signal != 0 && left <= 0)
            return 0;
        int signal = sigtimedwait(&signals, NULL, ending->signal != 0 ? &wait : NULL);
        if (signal > 0)
            return signal;
    }
}

/* Passes signals on until the group's process is gone and *out_status is its wait status. False:
 * somebody asked for the end, and it did not come in time. */
static bool wait_for(pid_t group, uint32_t grace_s, struct ending *ending, int *out_status)
{
    for (int signal; (signal = next_signal(ending)) != 0;) {
        if (signal != SIGCHLD) {
            pass_on(group, signal, (int64_t)grace_s * 1000, ending);
            continue;
        }
        for (pid_t pid; (pid = waitpid(-1, out_status, WNOHANG)) > 0;)
            if (pid == group)
                return true;
    }
    return false;
}

int front_run(struct plan *plan)
{
    sigset_t signals;
    int lifeline[2];

    front_signals(&signals);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTOU, SIG_IGN); /* the group's process writes from the terminal's background */
    pid_t group = -1;
    plan->words =
        mmap(NULL, sizeof *plan->words, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (plan->words != MAP_FAILED && pipe2(lifeline, O_CLOEXEC) == 0 &&
        prctl(PR_SET_CHILD_SUBREAPER, 1) == 0)
        group = fork();
    if (group < 0) {
        warn("cannot start the group's process");
        folder_remove(plan->folder);
        return EXIT_SYSTEM;
    }
    if (group == 0) {
        close(lifeline[1]);
        setpgid(0, 0); /* a terminal's Ctrl-C reaches it through the front only */
        prctl(PR_SET_NAME, "zerorun-group");
        return group_run(plan, lifeline[0]);
    }
    close(lifeline[0]);
    struct ending ending = { .words = plan->words };
    int status, code = EXIT_SYSTEM;
    if (!wait_for(group, plan->options->grace_s, &ending, &status)) {
        warnx("%s: its group process %d did not end the group within %.1f s: killing everything",
              strsignal(ending.signal), (int)group, (double)(now_ms() - ending.asked_ms) / 1000);
        code = EXIT_SIGNALLED + ending.signal;
    } else if (WIFEXITED(status)) {
        return WEXITSTATUS(status);
    } else {
        warnx("its group process was killed by signal %d (%s): ending the group", WTERMSIG(status),
              strsignal(WTERMSIG(status)));
    }
    if (atomic_load(&plan->words->unsaved)) {
        warnx("the last step was not saved, unless its daemons have just done so: what is there: "
              "zeroctl checkpoint list");
        code = EXIT_NOT_SAVED;
    }
    tree_kill(KILL_LIMIT_MS);
    folder_remove(plan->folder);
    return code;
}
