/* SPDX-License-Identifier: MIT */
/* place.h: a daemon's place in the runtime folder: one process a rank and folder.
 *
 * Owns    the folder's path and the lock, which goes with the process, however it ends.
 * Thread  one.
 * Fails   SYSTEM, PERMISSION (somebody else may write to the folder), BUSY (another daemon).
 * Uses    base.   Used by main.
 */
#ifndef DAEMON_PLACE_H
#define DAEMON_PLACE_H

#include <stdint.h>

#include "proto/status.h"

struct place {
    char *dir; /* absolute: zeroctl finds it in the kernel's list of sockets */
    uint32_t rank;
    int lock; /* -1: none */
};

/* Makes the folder if need be. */
zero_status place_take(struct place *place, const char *dir, uint32_t rank);
/* For a successor in this process. */
void place_leave(struct place *place);
/* Removes this rank's sockets and lock. */
void place_clear(struct place *place);

#endif
