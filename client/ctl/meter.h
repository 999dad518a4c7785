/* SPDX-License-Identifier: MIT */
/* meter.h: one line on stderr that says how far a long piece of work is, and how fast; only where
 * stderr is a terminal.
 *
 * Owns    its thread between begin and end.
 * Thread  begin and end by one; the progress is grown by the worker.
 * Fails   never: without a thread there is no line.
 * Uses    libzeroclient's progress.   Used by zeroctl checkpoint.
 */
#ifndef CLIENT_CTL_METER_H
#define CLIENT_CTL_METER_H

#include <pthread.h>

#include "client/checkpoint.h"

struct meter {
    zero_progress progress; /* nothing is shown until it has a total */
    const char *what;
    pthread_t thread;
    bool running;
    atomic_bool stop;
};

void meter_begin(struct meter *meter, const char *what);
void meter_end(struct meter *meter);

#endif
