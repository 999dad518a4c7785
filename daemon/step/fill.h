/* SPDX-License-Identifier: MIT */
/* fill.h: initial values, from every rank's trainer or from rank 0's.
 *
 * Values come in fp32 through a staging arena, each tensor from its first element on. With rank 0
 * as the source every other rank takes each piece out of rank 0's staging before the next is asked
 * for. At the end replicas are made equal to their owners' shards, whatever the trainers gave.
 *
 * Thread  the worker.
 * Uses    engine, calls, update.   Used by calls, restore, worker.
 */
#ifndef DAEMON_STEP_FILL_H
#define DAEMON_STEP_FILL_H

#include "daemon/step/engine.h"

void fill_from(struct engine *e, const struct zero_ring_entry *entry);  /* FILL_FROM */
void fill_piece(struct engine *e, const struct zero_ring_entry *entry); /* FILL */
void fill_end(struct engine *e, const struct zero_ring_entry *entry);   /* FILL_END */

/* Writes weights [run) of a layer's flat vector, in fp32, to the places of them that this rank has.
 */
void fill_write(struct engine *e, uint32_t layer, struct zero_range run, const float *values);

/* A new trainer fills from the start, unless the last one had ended. */
void fill_restart(struct engine *e);

/* The group meets again: a filling that was on its way begins anew. */
void fill_forget(struct engine *e);
/* Goes on with what the peers have; true if anything changed. */
bool fill_pass(struct engine *e);

#endif
