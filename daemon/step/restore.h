/* SPDX-License-Identifier: MIT */
/* restore.h: the state of a new model, from a checkpoint on disk.
 *
 * Each rank reads what its own arenas hold, by tensor names and elements, whatever world, stage,
 * layers and parameter type wrote it. Its journal then says what it would say if the group had made
 * the checkpoint's step and lost its daemons: the meeting and all that follows is that of model.h.
 * That record is the last thing written, and the arenas are lodged after it: a daemon that dies
 * before leaves nothing, and its successor begins anew.
 *
 *   the checkpoint has     the optimizer needs    moments
 *   none                   any                    zero, and updates count from 0
 *   any                    none                   dropped
 *   Adam's                 Adam's                 read; amsgrad's maximum is dropped, or zero
 *   SGD's momentum         SGD's momentum         read
 *   SGD's momentum         Adam's, or reverse     refused: they mean different things
 *
 * Thread  the worker.
 * Fails   what the store fails with; MISMATCH for another model, or moments of another optimizer;
 *         INVALID_STATE when the registration is given up meanwhile.
 * Uses    choose, engine, fill, store.   Used by model.
 */
#ifndef DAEMON_STEP_RESTORE_H
#define DAEMON_STEP_RESTORE_H

#include "daemon/step/engine.h"

/* Of new arenas and a new journal: fills them from the checkpoint that was asked for, else from the
 * newest of zerod.checkpoint.dir. Success without a change when there is none to take. */
zero_status restore_model(struct engine *e);

#endif
