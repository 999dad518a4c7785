/* SPDX-License-Identifier: MIT */
/* keep.h: what a step leaves in the journal, in its order.
 *
 *   prepared   own gradients are summed: from here on only a decision or a new epoch may drop them
 *   decision   rank 0: before anybody can see it; the others: before they change a byte for it
 *   applied    what this rank updates is whole at the decision's step
 *   replicas   so are the parameters that others update
 *
 * Thread  the worker.
 * Fails   never: it is memory.
 * Uses    engine, journal.   Used by the files of daemon/step.
 */
#ifndef DAEMON_STEP_KEEP_H
#define DAEMON_STEP_KEEP_H

#include "daemon/step/engine.h"

void keep_joined(struct engine *e); /* epoch, attempt and filled */
void keep_filled(struct engine *e); /* own arenas have all their initial values */
void keep_prepared(struct engine *e);
void keep_dropped(struct engine *e); /* the attempt came to nothing */
void keep_decision(struct engine *e, const struct board_decision *decision);
void keep_applied(struct engine *e);
void keep_replicas(struct engine *e);
/* The trainer whose late writes are to be fenced. */
void keep_trainer(struct engine *e, uint32_t pid);

#endif
