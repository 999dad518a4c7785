/* SPDX-License-Identifier: MIT */
/* recall.h: the last checkpoint, for a daemon that did not save it itself.
 *
 * Thread  the worker.
 * Fails   never: who finds none knows of none.
 * Uses    engine, store.   Used by model, restore.
 */
#ifndef DAEMON_STEP_RECALL_H
#define DAEMON_STEP_RECALL_H

#include "daemon/step/engine.h"
#include "daemon/store/store.h"

/* Of a model that was kept, on rank 0: the newest complete one in zerod.checkpoint.dir that is not
 * after its step, if it is of this model and config. */
void recall_saved(struct engine *e);
/* Tells status of one that is in zerod.checkpoint.dir. */
void recall_note(struct engine *e, const struct store_facts *facts);

#endif
