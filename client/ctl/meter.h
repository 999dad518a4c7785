/* SPDX-License-Identifier: MIT */
/* meter.h: one line on stderr that says how far a long piece of work is, and how fast; only where
 * stderr is a terminal.
 *
 * Owns    its thread between begin and end.
 * Thread  begin and end by one; the progress is grown by the worker.
 * Fails   never: without a thread there is no line.
 * Uses    store's progress.   Used by zeroctl checkpoint.
 */
#ifndef CLIENT_CTL_METER_H
#define CLIENT_CTL_METER_H

#include <pthread.h>

#include "daemon/store/save.h"

struct meter {
    struct store_progress progress;
    const char *what;
    uint64_t total;
    pthread_t thread;
    bool running;
    atomic_bool stop;
};

void meter_begin(struct meter *meter, const char *what, uint64_t total_bytes);
void meter_end(struct meter *meter);

#endif
