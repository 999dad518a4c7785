/* SPDX-License-Identifier: MIT */
/* claim.h: zerod.checkpoint.dir is this group's alone, and can be written.
 *
 * Rank 0 holds the folder's lock (store/lock.h) for as long as it has the model. A model that is
 * new starts only with it, and when what a save does was tried there. One that was kept goes on in
 * any case, since its state is worth more than the folder, and does not wait for it, since a file
 * system may hang: what is wrong is logged, and every save tries to take the lock again.
 *
 * Thread  the worker; the saver's while it saves into the folder.
 * Fails   BUSY when another group saves there, and what the store fails with.
 * Uses    engine, lock, trial.   Used by model, worker, saver.
 */
#ifndef DAEMON_STEP_CLAIM_H
#define DAEMON_STEP_CLAIM_H

#include "daemon/step/engine.h"

/* Of a model that is new, on rank 0. */
zero_status claim_take(struct engine *e);
/* Of one that was kept. */
void claim_again(struct store_lock *lock, const char *dir);
void claim_give(struct engine *e);

#endif
