/* SPDX-License-Identifier: MIT */
/* zerorun_clock.h: the time that deadlines are counted in. Used by front, group, child,
 * holder, restart and tree. */
#ifndef DEPLOY_ZERORUN_CLOCK_H
#define DEPLOY_ZERORUN_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#endif
