/* SPDX-License-Identifier: MIT */
/* door.h: a listening Unix socket that lets in its own user and root, and that no flood closes.
 *
 * gRPC's own listener (1.51) never accepts again after one EMFILE; this one pauses and goes on. It
 * also leaves a quarter of the process's descriptors to others: they are given out lowest first, so
 * a high number means that few are left.
 *
 * Owns    the socket and its name, two handles of the loop.
 * Thread  the loop's.
 * Order   door_close, then the loop runs until on_closed; the memory is the caller's.
 * Fails   INVALID_ARGUMENT, BUSY, SYSTEM.
 * Uses    base.   Used by control.
 */
#ifndef DAEMON_CONTROL_DOOR_H
#define DAEMON_CONTROL_DOOR_H

#include <sys/un.h>
#include <uv.h>

#include "proto/status.h"

struct door {
    uv_poll_t poll;
    uv_timer_t pause;
    int fd;
    int descriptors; /* connections get numbers below this */
    int handles;     /* not yet closed */
    struct sockaddr_un address;
    void (*on_guest)(void *context, int fd); /* takes the fd: non-blocking, close-on-exec */
    void (*on_closed)(void *context);
    void *context;
};

/* Fill on_guest, on_closed and context before. On failure nothing is left. */
zero_status door_open(struct door *door, uv_loop_t *loop, const char *path);

/* Stops letting in and removes the socket. */
void door_close(struct door *door);

#endif
