/* SPDX-License-Identifier: MIT */
/* grant.h: lending gradient windows to the trainer, and taking them back when every rank has read
 * them.
 *
 * At stages 0 and 1 every layer has a place of its own; at stages 2 and 3 a bounded arena is
 * shared.
 *
 * Thread  the worker.
 * Uses    engine, calls.   Used by the files of daemon/step.
 */
#ifndef DAEMON_STEP_GRANT_H
#define DAEMON_STEP_GRANT_H

#include "daemon/step/engine.h"

/* The WINDOW call. */
void grant_window(struct engine *e, const struct zero_ring_entry *entry);
/* Takes back what is read, answers who waits for it; true if anything changed. */
bool grant_pass(struct engine *e);
/* Forgets all windows: the attempt is over, or the trainer is gone. */
void grant_reset(struct engine *e);
/* The layer's window in this attempt. */
struct layer_window *grant_layer(struct engine *e, uint32_t layer);

#endif
