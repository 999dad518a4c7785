/* SPDX-License-Identifier: MIT */
/* observe.h: observers of this rank hold the next decision off, for a bounded time.
 *
 * A hold is a time on the board. It is set first and then checked against rank 0's `deciding`,
 * which rank 0 sets before it looks at the holds: so either sees the other. In one attempt all
 * holds of a rank together last at most observer_hold_ms; after that observers wait for the next
 * one.
 *
 * Thread  the worker.
 * Uses    engine.   Used by worker.
 */
#ifndef DAEMON_STEP_OBSERVE_H
#define DAEMON_STEP_OBSERVE_H

#include "daemon/step/engine.h"

void observe_begin(struct engine *e, uint64_t token);
void observe_end(struct engine *e, uint64_t token);
/* Grants and refuses what waits; true if anything changed. */
bool observe_pass(struct engine *e, uint64_t now);

#endif
