/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_tree.h"

#include "deploy/zerorun_clock.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUND_MS = 5 };

/* 0 if the process is gone. The name in /proc/PID/stat may hold anything, so look behind its end.
 */
static pid_t parent_of(const char *pid)
{
    char path[64], text[512];
    int parent = 0;

    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *end = strrchr(text, ')');
    if (end != NULL && strlen(end) > 4)
        parent = (int)strtol(end + 4, NULL, 10);
    return parent;
}

/* Only children, whose pids cannot be used again before they are reaped: theirs become ours as they
 * die, and the next round finds them. Returns the last one killed, 0 if there was none. */
static pid_t kill_children(void)
{
    DIR *dir = opendir("/proc");
    pid_t last = 0;

    for (struct dirent *entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        if (parent_of(entry->d_name) != getpid())
            continue;
        last = (pid_t)strtol(entry->d_name, NULL, 10);
        kill(last, SIGKILL);
    }
    if (dir != NULL)
        closedir(dir);
    return last;
}

bool tree_kill(int limit_ms)
{
    int64_t deadline = now_ms() + limit_ms;
    struct timespec round = { .tv_nsec = ROUND_MS * 1000000L };
    sigset_t child;

    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    for (;;) {
        pid_t last = kill_children(), reaped;
        while ((reaped = waitpid(-1, NULL, WNOHANG)) > 0)
            continue;
        if (reaped < 0 && errno == ECHILD)
            return true;
        if (now_ms() > deadline) {
            warnx("process %d does not die, not even by SIGKILL: it is left behind", (int)last);
            return false;
        }
        sigtimedwait(&child, NULL, &round);
    }
}
