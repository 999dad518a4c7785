/* SPDX-License-Identifier: MIT */
/* zerorun_child.h: one daemon or trainer: its start, its environment, its end.
 *
 * Owns    the process and its output streams. A child leads a process group of its own and dies
 *         with the process that started it.
 * Thread  one, the only one: children are made by fork.
 * Fails   false, after a line of output that says which child and why.
 * Uses    output, clock.   Used by group.
 */
#ifndef DEPLOY_ZERORUN_CHILD_H
#define DEPLOY_ZERORUN_CHILD_H

#include "deploy/zerorun_output.h"

#include <stdint.h>
#include <sys/types.h>

enum child_kind { CHILD_DAEMON, CHILD_TRAINER };

struct child {
    enum child_kind kind;
    uint32_t rank;
    pid_t pid; /* 0: not running */
    bool ready;
    bool served;    /* a daemon that was ready once: it may hold a model */
    bool succeeded; /* ended with 0 */
    bool told;      /* to end: a second time would mean that nobody has patience */
    uint32_t restarts;
    int64_t started_ms, restart_ms; /* when it last started, and is to start again (0: is not) */
    uint32_t delay_ms;              /* before its last restart */
    struct stream out, err;
};

/* What a child is born with, under construction: zerorun's variables, changed, and fds. */
struct environment {
    char **vars; /* NULL-terminated */
    size_t count, capacity;
    bool failed; /* memory ran out on the way */
    int *fds;    /* become 3, 4, ... in the child, and LISTEN_PID its pid; borrowed */
    size_t fd_count;
};

void environment_init(struct environment *environment);
void environment_deinit(struct environment *environment);
/* "NAME=value"; replaces a NAME that is there. */
__attribute__((format(printf, 2, 3))) void environment_set(struct environment *environment,
                                                           const char *format, ...);
void environment_unset(struct environment *environment, const char *name);
/* LISTEN_FDS and what belongs to it; `names` has one for each fd, with colons between them. */
void environment_pass(struct environment *environment, int *fds, size_t count, const char *names);

bool child_init(struct child *child, enum child_kind kind, uint32_t rank);
void child_deinit(struct child *child);
const char *child_name(enum child_kind kind);
bool child_start(struct child *child, struct output *output, const char *program, char *const *argv,
                 const struct environment *environment);
/* To the child and what it started in its group. */
void child_signal(const struct child *child, int signal);
void children_signal(const struct child *children, uint32_t count, int signal);
uint32_t children_running(const struct child *children, uint32_t count);
/* Call for a pid that waitid() showed without reaping: kills what is left of its group, reaps it,
 * prints its last words. Returns the wait status. */
int child_reap(struct child *child, struct output *output);
/* Prints what is still in its pipes, and closes them. */
void child_finish(struct child *child, struct output *output);
/* The last lines of both its streams, as lines of zerorun's. */
void child_say_last_lines(const struct child *child, struct output *output);
/* "ended with exit code 3", "was killed by signal 9 (Killed)". */
void child_describe(int status, char *text, size_t size);

#endif
