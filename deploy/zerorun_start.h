/* SPDX-License-Identifier: MIT */
/* zerorun_start.h: what a group is made of, and how one daemon or trainer is started: its command
 * line and its environment.
 *
 * Owns    nothing; a plan borrows all it names.
 * Thread  one.
 * Fails   as child_start.
 * Uses    options, folder, child.   Used by group.
 */
#ifndef DEPLOY_ZERORUN_START_H
#define DEPLOY_ZERORUN_START_H

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_folder.h"
#include "deploy/zerorun_options.h"

struct plan {
    const struct options *options;
    const struct folder *folder;
    const char *zerod;   /* the programs' files */
    const char *trainer; /* NULL with --daemons-only */
    const char *config;  /* absolute, NULL if trainers have their own */
    uint16_t master_port;
};

bool start_daemon(const struct plan *plan, struct child *daemon, struct output *output);
bool start_trainer(const struct plan *plan, struct child *trainer, struct output *output);
/* True if trainers are told to use one OpenMP thread each: several share the host, and the user
 * did not say otherwise. */
bool start_limits_threads(const struct plan *plan);
/* A TCP port that is free now; 0 and errno if there is none. */
uint16_t start_free_port(void);
/* For people who start trainers themselves: a line of variables for each rank, on stdout. */
void start_say_how(const struct plan *plan, struct output *output);

#endif
