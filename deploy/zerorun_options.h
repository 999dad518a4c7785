/* SPDX-License-Identifier: MIT */
/* zerorun_options.h: the command line of zerorun, and the exit codes it promises.
 *
 * Owns    the list of overrides and the path to restore; the other texts are main's argv or the
 * environment's. Thread  main. Fails   a wrong command line ends the process with EXIT_USAGE and a
 * sentence. Uses    argp, proto/layout.h.   Used by every part of zerorun.
 */
#ifndef DEPLOY_ZERORUN_OPTIONS_H
#define DEPLOY_ZERORUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* 1 to 63 is the exit code of the trainer that failed, 128 + S says that signal S ended the run. */
enum zerorun_exit {
    EXIT_TRAINER_LARGEST = 63, /* a trainer's code above it would be mistaken for one of these */
    EXIT_USAGE = 64,
    EXIT_DAEMON_DIED = 70,
    EXIT_NOT_READY = 71,
    EXIT_TRAINER_FAILED = 72,
    EXIT_FOLDER = 73,
    EXIT_SYSTEM = 74,
    EXIT_SHUT_DOWN = 75,
    EXIT_NOT_SAVED = 76,
    EXIT_SIGNALLED = 128
};

enum { GRACE_SECONDS = 10, DAEMON_RESTARTS = 100, RESTART_DELAY_SECONDS = 5, READY_SECONDS = 30 };

struct options {
    uint32_t world;
    uint32_t max_restarts;        /* of each rank's trainer */
    uint32_t max_daemon_restarts; /* of all daemons together */
    uint32_t restart_delay_s;     /* the longest wait before a restart */
    uint32_t grace_s;
    uint32_t ready_s;
    bool daemons_only;
    bool prefix;
    const char *config;      /* NULL: none was named */
    const char *runtime_dir; /* NULL: a fresh one */
    const char *zerod;       /* NULL: look for it */
    char *restore;           /* absolute; NULL: nothing is asked for */
    bool weights_only;       /* of it */
    const char **overrides;  /* "path.to.key=value" */
    size_t override_count;
    char **trainer; /* NULL-terminated; NULL with daemons_only */
};

void options_parse(int argc, char **argv, struct options *out);
void options_deinit(struct options *options);

#endif
