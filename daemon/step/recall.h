/* SPDX-License-Identifier: MIT */
/* recall.h: the last checkpoint, for the status of a daemon that did not save it itself.
 *
 * Thread  the saver's, or the worker's where there is no saver yet.
 * Fails   never: who finds none knows of none.
 * Uses    stats, shard, store.   Used by saver, restore.
 */
#ifndef DAEMON_STEP_RECALL_H
#define DAEMON_STEP_RECALL_H

#include "daemon/shard/shard.h"
#include "daemon/step/stats.h"
#include "daemon/store/store.h"

/* Of a model that was kept, on rank 0: the newest complete one in zerod.checkpoint.dir that is not
 * after its step, if it is of this model and config. That is too little to say that it holds this
 * very state: the last step is saved nevertheless. */
void recall_saved(const struct shard *shard, int description, uint64_t step, struct stats *stats);
/* Of one that is in zerod.checkpoint.dir. */
void recall_note(struct stats *stats, const struct store_facts *facts);

#endif
