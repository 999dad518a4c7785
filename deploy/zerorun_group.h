/* SPDX-License-Identifier: MIT */
/* zerorun_group.h: the life of one group, from the first daemon's start to the last one's end.
 *
 * Owns    the trainers, the daemons and what is kept for them, the output of all.
 * Thread  one: a poll() loop over signals, pipes and sockets.
 * Order   a daemon that dies while the group runs is started again with what was kept for it;
 *         trainers are stopped before daemons, so that they can still finish a step.
 * Fails   its result is zerorun's exit code; every failure is a line on stderr.
 * Uses    phase, ends, start, child, daemons, restart, output, tree.   Used by front.
 */
#ifndef DEPLOY_ZERORUN_GROUP_H
#define DEPLOY_ZERORUN_GROUP_H

#include "deploy/zerorun_start.h"

/* `lifeline` ends (POLLHUP) when the front process dies. The caller blocks the signals of
 * front.h. Removes the folder's contents before it returns. */
int group_run(struct plan *plan, int lifeline);

#endif
