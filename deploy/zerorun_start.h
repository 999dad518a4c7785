/* SPDX-License-Identifier: MIT */
/* zerorun_start.h: what a group is made of, and how one daemon or trainer is started: its command
 * line and its environment.
 *
 * Owns    nothing; a plan borrows all it names.
 * Thread  one.
 * Fails   as child_start.
 * Uses    options, folder, child, holder.   Used by daemons and group.
 */
#ifndef DEPLOY_ZERORUN_START_H
#define DEPLOY_ZERORUN_START_H

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_folder.h"
#include "deploy/zerorun_holder.h"
#include "deploy/zerorun_options.h"

/* What the group's process says to the front, in memory that both have. */
struct words {
    _Atomic int64_t patience_ms; /* the end may take until then, since daemons save; 0: not said */
    _Atomic bool unsaved;        /* there is a last step to save, and it is not saved yet */
};

struct plan {
    const struct options *options;
    const struct folder *folder;
    const char *zerod;    /* the programs' files */
    const char *trainer;  /* NULL with --daemons-only */
    const char *config;   /* absolute, NULL if trainers have their own */
    uint16_t master_port; /* 0 until trainers start */
    struct words *words;
};

/* With all that is kept for it. */
bool start_daemon(const struct plan *plan, struct child *daemon, const struct holder *holder,
                  struct output *output);
/* The first of each rank; chooses what they have in common. */
bool start_trainers(struct plan *plan, struct child *trainers, struct output *output);
bool start_trainer(const struct plan *plan, struct child *trainer, struct output *output);
/* For people who start trainers themselves: a line of variables for each rank, on stdout. */
void start_say_how(const struct plan *plan, struct output *output);

#endif
