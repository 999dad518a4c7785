/* SPDX-License-Identifier: MIT */
/* decide.h: rank 0 decides the group's step: apply, skip or abort; clip, loss scale, means.
 *
 * Thread  the worker of rank 0.
 * Uses    engine.   Used by phases.
 */
#ifndef DAEMON_STEP_DECIDE_H
#define DAEMON_STEP_DECIDE_H

#include "daemon/step/engine.h"

/* Publishes the decision of the attempt if it can be made; true if it was. */
bool decide_pass(struct engine *e);

#endif
