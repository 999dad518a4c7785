/* SPDX-License-Identifier: MIT */
/* zerorun_ready.h: the socket on which one daemon says READY=1, as services tell systemd.
 *
 * Owns    nothing; the fd is the caller's. One socket per daemon, so that it is known who speaks.
 * Fails   -1 and errno.
 * Used by group.
 */
#ifndef DEPLOY_ZERORUN_READY_H
#define DEPLOY_ZERORUN_READY_H

#include <stdbool.h>

int ready_open(const char *path);
/* Reads what has come; true if READY=1 was in it. fds that come along are dropped. */
bool ready_take(int fd);

#endif
