/* SPDX-License-Identifier: MIT */
/* fold.h: summing submitted gradients into this rank's shards.
 *
 * The sum of a layer is a left fold over (k, rank): first submissions of rank 0, 1, ... N-1, then
 * second ones, ... whatever the order of arrival; so it has the same bits at every stage and in
 * every run. A rank that asked for its step without a k-th submission is left out.
 *
 * Usually a layer's k-th submissions are folded in one pass when the last is there. When a trainer
 * is out of windows its peers also fold incomplete ones, as far as the order allows: that is why
 * ranks may submit in different orders with few windows.
 *
 * Thread  the worker.
 * Uses    engine, calls.   Used by the files of daemon/step.
 */
#ifndef DAEMON_STEP_FOLD_H
#define DAEMON_STEP_FOLD_H

#include "daemon/step/engine.h"

/* The SUBMIT call. */
void fold_submit(struct engine *e, const struct zero_ring_entry *entry);
/* Folds what is ready; true if anything was. */
bool fold_pass(struct engine *e);
/* Every rank has asked: folds the rest; layers without gradients become zero. */
void fold_finish(struct engine *e);
/* A new attempt: forgets all sums. */
void fold_reset(struct engine *e);
/* A new group: its order logs are read from where they stand. */
void fold_forget(struct engine *e);

#endif
