/* SPDX-License-Identifier: MIT */
/* phases.h: an attempt from the trainer's step call to its outcome. See engine.h for the phases.
 *
 * Nothing of the committed step is overwritten before rank 0's decision is seen; after it every
 * rank goes forward. A rank that has voted never gives up on its own.
 *
 * Thread  the worker.
 * Uses    engine, calls, fold, grant, decide, update, version.   Used by worker, calls.
 */
#ifndef DAEMON_STEP_PHASES_H
#define DAEMON_STEP_PHASES_H

#include "daemon/step/engine.h"

/* The STEP call. */
void phases_ask(struct engine *e, const struct zero_ring_entry *entry);
/* Goes on as far as the peers allow; true if anything changed. */
bool phases_pass(struct engine *e);
/* The journal has the next decision: makes it, and waits for the others in APPLIED. */
void phases_roll(struct engine *e);
/* Leaves what the trainer is told about a step where it looks for it. */
void phases_leave_result(struct engine *e, const struct board_decision *decision);
/* The attempt comes to nothing; who waits for the step gets `code`. */
void phases_drop(struct engine *e, zero_code code, const char *text);
/* The trainer is gone: true when what it had begun needs an outcome first. */
bool phases_abandon(struct engine *e);
/* Begins the attempt e->attempt. */
void phases_begin(struct engine *e);

#endif
