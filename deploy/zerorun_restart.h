/* SPDX-License-Identifier: MIT */
/* zerorun_restart.h: when a trainer that failed, or a daemon that died, starts again.
 *
 * At once if it had lived; else after a delay that doubles with every such failure in a row, so
 * that what cannot start does not fill the log and the host with its attempts.
 *
 * Owns    nothing.
 * Thread  one.
 * Uses    child, clock.   Used by daemons and group.
 */
#ifndef DEPLOY_ZERORUN_RESTART_H
#define DEPLOY_ZERORUN_RESTART_H

#include "deploy/zerorun_child.h"

/* Sets delay_ms and restart_ms. */
void restart_plan(struct child *child, uint32_t largest_delay_ms);
/* When the next of them is to start again; 0: none is. */
int64_t restart_next_ms(const struct child *children, uint32_t count);

#endif
