/* SPDX-License-Identifier: MIT */
/* version.h: a copy of the whole model's parameters, of one committed step.
 *
 * Nobody overwrites a parameter of the committed step before rank 0 decides the next one, and it
 * does not decide without this rank's vote. So from a step's commit until its own vote a rank may
 * copy what it likes, its peers' shards included. It copies a little each round, so that the
 * trainer is served meanwhile, and what is left before it votes.
 *
 * Thread  the worker.
 * Fails   INVALID_STATE without initial values, PEER_LOST when the group is: by ENGINE_COPIED.
 * Uses    engine.   Used by worker, phases, model.
 */
#ifndef DAEMON_STEP_VERSION_H
#define DAEMON_STEP_VERSION_H

#include "daemon/step/engine.h"

/* Takes buf over: the parameters are to be copied into it. */
void version_begin(struct engine *e, const struct device_buf *buf);
/* Copies a little if it may; true if it did. */
bool version_pass(struct engine *e);
/* Before the vote: what was begun is ended. */
void version_finish(struct engine *e);
/* The peers' memory is about to go: what was begun begins anew with the next group. */
void version_restart(struct engine *e);
/* There will be no next group. */
void version_lose(struct engine *e);
/* Wakes the loop when the config wants a version of this many steps. */
void version_due(struct engine *e);

#endif
