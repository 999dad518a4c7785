/* SPDX-License-Identifier: MIT */
/* zerorun_daemons.h: the daemons of a group, what is kept for them, and when they start again.
 *
 * Owns    the children and their holders; borrows the plan and the output.
 * Thread  one.
 * Fails   false, after a line of output that says which daemon and why.
 * Uses    child, clock, holder, restart, start.   Used by group.
 */
#ifndef DEPLOY_ZERORUN_DAEMONS_H
#define DEPLOY_ZERORUN_DAEMONS_H

#include "deploy/zerorun_start.h"

/* Of the last step, which daemons save before they end where the config says so. */
enum save { SAVE_NONE, SAVE_WANTED, SAVE_DONE };

struct daemons {
    const struct plan *plan;
    struct output *output;
    struct child *children; /* one per rank, as the holders */
    struct holder *holders;
    uint32_t made;     /* how many of each are initialised */
    uint32_t restarts; /* of all of them */
    bool ending;       /* they were told to end; successors are, as soon as they are ready */
    bool dismissed;    /* and told again: there is nothing to wait for */
};

bool daemons_open(struct daemons *daemons, const struct plan *plan, struct output *output);
void daemons_close(struct daemons *daemons);
bool daemons_start(struct daemons *daemons);
/* Does what this rank's daemon has said. */
void daemons_hear(struct daemons *daemons, uint32_t rank);
bool daemons_ready(const struct daemons *daemons);
/* True if one that was never ready has had its time, after a line for each that has. */
bool daemons_late(const struct daemons *daemons);
/* Of the others, which hold a model: they are killed, and so tried again. */
void daemons_kill_late(struct daemons *daemons);
/* For one that ended and can be tried again: plans that, with a line that says `how` it ended, or
 * returns false if no restart is left. */
bool daemons_replace(struct daemons *daemons, struct child *daemon, const char *how);
/* Starts those whose time has come; one that cannot be started waits for its next time, or returns
 * false if no restart is left. */
bool daemons_start_due(struct daemons *daemons);
/* Until when (now_ms) the end of one may take, as it asked; 0: none did. */
int64_t daemons_patience_ms(const struct daemons *daemons);
/* When the next of them is to start again, or is late; 0: none. */
int64_t daemons_next_ms(const struct daemons *daemons);
/* Tells them to end, and those that are started from now on. */
void daemons_end(struct daemons *daemons);
/* The save is done, or cannot be: nothing is started again, and they are told to wait for nothing.
 */
void daemons_dismiss(struct daemons *daemons);
/* Was one told to end by somebody else? */
bool daemons_told(const struct daemons *daemons);
enum save daemons_save(const struct daemons *daemons);
/* The folder and the step of the save, for people; "" for what is not known. */
const char *daemons_save_dir(const struct daemons *daemons);
const char *daemons_save_step(const struct daemons *daemons);
/* Closes what is kept for them: there will be no successors. */
void daemons_forget(struct daemons *daemons);

#endif
