/* SPDX-License-Identifier: MIT */
/* update.h: the optimizer over this rank's places, and fetching what the others updated.
 *
 * Thread  the worker.
 * Uses    engine, kernels.   Used by phases, fill.
 */
#ifndef DAEMON_STEP_UPDATE_H
#define DAEMON_STEP_UPDATE_H

#include "daemon/step/engine.h"

/* Makes the decision of the journal. Goes on where a daemon died that had begun it. */
void update_apply(struct engine *e);

/* Copies every other rank's shards of a replicated arena into the own replica; bytes copied. */
uint64_t update_fetch(struct engine *e, enum zero_arena arena);

#endif
