/* SPDX-License-Identifier: MIT */
/* model.h: a worker gets its model: arenas, tables, board, and the group.
 *
 * Thread  the worker.
 * Fails   everything is undone; the reason is in the event.
 * Uses    engine, comm, shard.   Used by worker.
 */
#ifndef DAEMON_STEP_MODEL_H
#define DAEMON_STEP_MODEL_H

#include "daemon/step/engine.h"

/* Takes the layout over. */
zero_status model_join(struct engine *e, struct zero_layout *layout,
                       const struct zero_config *config);
void model_leave(struct engine *e);

#endif
