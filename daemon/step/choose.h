/* SPDX-License-Identifier: MIT */
/* choose.h: which checkpoint a new model begins with.
 *
 * What was asked for (--restore), a checkpoint or the newest complete one of a folder; else the
 * newest of the config's zerod.checkpoint.dir. Newer ones that are not complete are passed over
 * with a warning, but not one that could not be looked at. A folder of the config without any is a
 * new start; one in which all are damaged is not.
 *
 * Owns    nothing; a path is the caller's to free.
 * Thread  the worker.
 * Fails   NOT_FOUND, CORRUPT when all are damaged, IO for one that could not be looked at, and
 *         what the store fails with.
 * Uses    engine, store.   Used by restore.
 */
#ifndef DAEMON_STEP_CHOOSE_H
#define DAEMON_STEP_CHOOSE_H

#include "daemon/step/engine.h"

/* *out_path stays NULL when there is none to take. */
zero_status choose_checkpoint(const struct engine *e, char **out_path);

/* Warns when the folder that the run saves to has checkpoints of steps after the one it begins at:
 * they, and not its own, would be the newest. */
void choose_warn(const struct engine *e, uint64_t step);

/* Fails with why a checkpoint cannot be read, and with what to do: which one to take in its place.
 * Nothing goes back to an older one by itself: somebody shall know that steps are lost. */
zero_status choose_fail(const char *path, zero_status s, const char *why);

/* Is it in the folder that the run saves to, by the name that a save gives it? */
bool choose_is_own(const struct engine *e, const char *path);

#endif
