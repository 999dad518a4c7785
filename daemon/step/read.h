/* SPDX-License-Identifier: MIT */
/* read.h: state of the last committed step, in model order, as fp32.
 *
 * Thread  the worker.
 * Uses    engine, calls.   Used by calls.
 */
#ifndef DAEMON_STEP_READ_H
#define DAEMON_STEP_READ_H

#include "daemon/step/engine.h"

void read_state(struct engine *e, const struct zero_ring_entry *entry); /* READ */

#endif
