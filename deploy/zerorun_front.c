/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_front.h"

#include "deploy/zerorun_tree.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILL_LIMIT_MS = 10000 };

void front_signals(sigset_t *out)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD };

    sigemptyset(out);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaddset(out, signals[i]);
}

/* Passes signals on until the group's process is gone; returns its wait status. */
static int wait_for(pid_t group)
{
    sigset_t signals;
    int status;

    front_signals(&signals);
    for (;;) {
        siginfo_t info;
        if (sigwaitinfo(&signals, &info) < 0)
            continue;
        if (info.si_signo != SIGCHLD) {
            kill(group, info.si_signo);
            continue;
        }
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            if (pid == group)
                return status;
    }
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
    if (pipe2(lifeline, O_CLOEXEC) == 0 && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0)
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
    int status = wait_for(group);
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    warnx("its group process was killed by signal %d (%s): ending the group", WTERMSIG(status),
          strsignal(WTERMSIG(status)));
    tree_kill(KILL_LIMIT_MS);
    folder_remove(plan->folder);
    return EXIT_SYSTEM;
}
