/* SPDX-License-Identifier: MIT */
/* zerorun_front.h: the process that the user started, which only passes signals on and waits.
 *
 * Two processes so that one of them is always left to clean up: when the front is killed, the
 * group's end of the lifeline hangs up and it ends everything; when the group is killed, its
 * children die with it, what they had started becomes the front's, and the front ends that. When
 * the group is asked to end and does not (it may be stopped), the front kills it and does the same.
 *
 * Owns    the lifeline.
 * Uses    group, folder, tree, clock.   Used by zerorun's main.
 */
#ifndef DEPLOY_ZERORUN_FRONT_H
#define DEPLOY_ZERORUN_FRONT_H

#include "deploy/zerorun_group.h"

#include <signal.h>

/* The signals both processes block and read: what is passed on, and SIGCHLD. */
void front_signals(sigset_t *out);
/* Returns zerorun's exit code, in both processes. */
int front_run(struct plan *plan);

#endif
