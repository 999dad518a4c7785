/* SPDX-License-Identifier: MIT */
/* signals.h: SIGTERM and SIGINT, read by the loop.
 *
 * They are blocked in every thread from the first line of main on and read from an fd, so that none
 * ends the process before it can act on it, or is lost: one that comes while the daemon starts, or
 * while it executes its successor, waits until the loop of whoever is there runs.
 *
 * Owns    an fd and its handle.
 * Thread  signals_block before there is a second thread; the rest on the loop's thread.
 * Fails   SYSTEM.
 * Uses    fail.   Used by main.
 */
#ifndef DAEMON_SIGNALS_H
#define DAEMON_SIGNALS_H

#include <uv.h>

#include "proto/status.h"

struct signals {
    void (*on_signal)(void *context, int number);
    void *context;
    uv_poll_t poll;
    int fd;
};

/* Threads that are made later inherit it; so does the program that this one executes. */
void signals_block(void);

/* Calls on_signal for each, which must be set with its context. The loop ends without waiting for
 * it. */
zero_status signals_open(struct signals *signals, uv_loop_t *loop);

/* The loop must run once more. Signals stay blocked. */
void signals_close(struct signals *signals);

#endif
