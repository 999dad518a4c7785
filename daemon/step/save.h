/* SPDX-License-Identifier: MIT */
/* save.h: a checkpoint of the whole group. Training waits only for a copy of the state in memory.
 *
 * Rank 0 leads by orders on its board; every rank says on its own board how far it is, and has a
 * saver thread for what takes time (saver.h).
 *
 *   order     what every rank does                                      then it says
 *   PREPARE   its saver gets memory for a copy                          READY
 *   COPY      the worker copies the state of step save_step; rank 0     COPIED
 *             decides nothing until all have
 *   WRITE     its saver writes its part into save_path                  WRITTEN
 *   NONE      whatever was begun is dropped                             NONE
 *
 * Rank 0's saver makes the folder before WRITE, and commits it when all have written. A rank that
 * fails says FAILED, and why; a group that loses a rank drops the save. The state is copied in any
 * phase before APPLIED: until then nothing of the committed step is overwritten, and that needs no
 * trainer. A periodic save begins a step early, so that memory is there when its step is committed.
 *
 * Thread  the worker.
 * Fails   a rank's failure is on its board; lead.h has the end of the whole.
 * Uses    engine, lead, saver.   Used by worker, model, phases, finish, lead.
 */
#ifndef DAEMON_STEP_SAVE_H
#define DAEMON_STEP_SAVE_H

#include "daemon/step/engine.h"

/* Words on the boards: the save's number, and what. */
#define SAVE_WORD(id, what) ((uint64_t)(id) << 8 | (uint64_t)(what))
#define SAVE_ID(word) ((word) >> 8)
#define SAVE_WHAT(word) ((word)&0xff)

enum order { ORDER_NONE, ORDER_PREPARE, ORDER_COPY, ORDER_WRITE };

/* A model that was kept: looks after zerod.checkpoint.dir without waiting for it. */
void save_look(struct engine *e);
/* A step was committed: begins a periodic save when one is due after the next. */
void save_committed(struct engine *e);
/* Goes on; true if anything changed. */
bool save_pass(struct engine *e);
/* The group is left: what was begun is dropped. */
void save_drop(struct engine *e, const char *why);
/* The rank that the save on its way waits for; rank 0 if there is none. */
uint32_t save_behind(const struct engine *e);

/* This rank cannot go on with it. */
void save_failed(struct engine *e, const char *why);
/* Tells status and the other ranks how much is written. */
void save_count(struct engine *e);
void save_destroy(struct engine *e);

#endif
