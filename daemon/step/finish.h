/* SPDX-License-Identifier: MIT */
/* finish.h: the end of a daemon that was told to end: the last step is saved first, where the
 * config has a folder for checkpoints.
 *
 * Rank 0 saves (save.h), the others serve it until it leaves. Patience follows progress: as long as
 * bytes of the save move on any rank, everybody waits, however long that takes. When none has moved
 * for 20 s (or zerod.wait_timeout_seconds, if that is shorter) the save is given up, with an error
 * that names the rank that does not go on. A rank that has written everything and waits for its
 * disk has a second more for every 50 MB. A daemon that dies meanwhile is waited for as long, and
 * the save begins anew when the group has met again.
 *
 * Thread  the worker.
 * Fails   ENGINE_FINISHED says whether the last step should have been saved and is not.
 * Uses    engine, mail, save.   Used by worker, model.
 */
#ifndef DAEMON_STEP_FINISH_H
#define DAEMON_STEP_FINISH_H

#include "daemon/step/engine.h"

/* The daemon is told to end; `now`: without a save. */
void finish_tell(struct engine *e, bool now);
/* Posts ENGINE_FINISHED when nothing is left to save, or cannot be. */
void finish_pass(struct engine *e);

/* The group is about to be left, since a rank is gone. */
void finish_part(struct engine *e);
/* Called in a meeting every few milliseconds: ends it when there is nothing to meet for. */
void finish_meeting(struct engine *e, uint32_t missing);
void finish_met(struct engine *e);
void finish_not_met(struct engine *e);

#endif
