/* SPDX-License-Identifier: MIT */
/* phases.h: an attempt from the trainer's step call to its outcome. See engine.h for the phases.
 *
 * Nothing of the committed step is overwritten before rank 0's decision is seen; after it every
 * rank goes forward. A rank that has voted never gives up on its own.
 *
 * Thread  the worker.
 * Uses    engine, calls, fold, grant, decide, update.   Used by worker, calls.
 */
#ifndef DAEMON_STEP_PHASES_H
#define DAEMON_STEP_PHASES_H

#include "daemon/step/engine.h"

/* The STEP call. */
void phases_ask(struct engine *e, const struct zero_ring_entry *entry);
/* Goes on as far as the peers allow; true if anything changed. */
bool phases_pass(struct engine *e);
/* The trainer is gone: true when what it had begun needs an outcome first. */
bool phases_abandon(struct engine *e);
/* Begins the attempt e->attempt. */
void phases_begin(struct engine *e);

#endif
