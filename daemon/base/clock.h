/* SPDX-License-Identifier: MIT */
/* clock.h: the time that deadlines and measurements use.
 *
 * Thread  any.
 * Fails   never.
 * Uses    nothing.   Used by everything in daemon.
 */
#ifndef DAEMON_BASE_CLOCK_H
#define DAEMON_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds of CLOCK_MONOTONIC: a vDSO call, no system call. */
static inline uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
