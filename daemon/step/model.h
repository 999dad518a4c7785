/* SPDX-License-Identifier: MIT */
/* model.h: a worker gets its model: arenas, journal, tables, board, and the group; and gets a new
 * group when a rank was lost.
 *
 * When ranks meet, each says how far it is (struct comm_standing). The new epoch is one more than
 * any of theirs, and so is the first attempt. Rank 0's last decision is the group's: who has not
 * made that step rolls forward, whatever is only prepared is dropped, and any other difference is
 * an error, since it cannot come from deaths.
 *
 * Thread  the worker.
 * Fails   model_join: everything is undone; the reason is in the event. model_meet: no group.
 *         CORRUPT: the ranks' states do not belong together.
 * Uses    engine, comm, shard, keep, restore.   Used by worker.
 */
#ifndef DAEMON_STEP_MODEL_H
#define DAEMON_STEP_MODEL_H

#include "daemon/step/engine.h"

/* Takes the model over. */
zero_status model_join(struct engine *e, struct engine_model *model);
/* Leaves the group and joins the next one, however long that takes. */
zero_status model_meet(struct engine *e);
void model_leave(struct engine *e);

#endif
