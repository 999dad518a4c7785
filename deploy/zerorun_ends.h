/* SPDX-License-Identifier: MIT */
/* zerorun_ends.h: what the end of a child means for its group.
 *
 * Owns    nothing.
 * Thread  one.
 * Fails   the group's phase and exit code say it, after a line of output.
 * Uses    phase, restart.   Used by group.
 */
#ifndef DEPLOY_ZERORUN_ENDS_H
#define DEPLOY_ZERORUN_ENDS_H

#include "deploy/zerorun_phase.h"

/* For a trainer that failed: plans its next start, with a line that says `how`; false if no restart
 * is left. */
bool ends_replace(struct group *group, struct child *trainer, const char *how);
/* For all that have ended since. */
void ends_reap(struct group *group);

#endif
