/* SPDX-License-Identifier: MIT */
/* lead.h: rank 0's part in a save: it begins one, orders (save.h), and brings it to its end.
 *
 * Thread  the worker.
 * Fails   ENGINE_SAVED says how a save ended, with the path or the reason.
 * Uses    engine, save, saver.   Used by save, worker, decide, finish.
 */
#ifndef DAEMON_STEP_LEAD_H
#define DAEMON_STEP_LEAD_H

#include "daemon/step/engine.h"

/* The tokens of saves that nobody asked for: one that was due, and the one before the end. */
#define SAVE_PERIODIC UINT64_MAX
#define SAVE_FINAL (UINT64_MAX - 1)

/* Begins a save into `dir` ("": the config's) of the next step that is committed from `target` on
 * (0: of the last one), answered with ENGINE_SAVED of this token. */
void lead_begin(struct engine *e, const char *dir, uint64_t target, uint64_t token);
/* Goes on; true if anything changed. */
bool lead_pass(struct engine *e);
/* Nothing may be decided: a rank still copies, or this one was told to end. */
bool lead_holds(const struct engine *e);
/* The group is left: what was begun has failed. */
void lead_drop(struct engine *e, const char *why);
/* Told to end: true while the last step is still to be saved; begins that once. */
bool lead_last(struct engine *e);

#endif
