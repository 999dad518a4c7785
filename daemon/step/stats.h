/* SPDX-License-Identifier: MIT */
/* stats.h: numbers that the worker counts and others read while it runs.
 *
 * Owns    nothing.
 * Thread  the worker writes, anybody reads; each number is whole, a set of them need not be of one
 *         instant.
 * Uses    nothing.   Used by step, main.
 */
#ifndef DAEMON_STEP_STATS_H
#define DAEMON_STEP_STATS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { STATS_SCALARS = 8, STATS_NAME_WORDS = 4 };

/* What a rank is doing. The texts are in report.c. */
enum stats_state {
    STATE_EMPTY,
    STATE_JOINING,
    STATE_RESTORING,
    STATE_FILLING,
    STATE_READY,
    STATE_STEPPING,
    STATE_LOST
};

struct stats {
    _Atomic uint64_t state, epoch, step, updates, skipped_in_row, attempt;
    _Atomic uint64_t gathered_bytes, reduced_bytes;           /* since start */
    _Atomic uint64_t last_gathered_bytes, last_reduced_bytes; /* of the last step */
    _Atomic uint64_t last_step_ns;                       /* CLOCK_MONOTONIC of its end; 0: none */
    _Atomic uint64_t beat;                               /* CLOCK_MONOTONIC: the worker is there */
    _Atomic uint64_t waiting, waiting_rank, waiting_pid; /* enum wait_for, and whom for */
    _Atomic uint64_t step_time, forward_backward_time, parameter_update_time; /* doubles, seconds */
    _Atomic uint64_t loss_scale, grad_norm, lr;                               /* doubles */
    _Atomic uint64_t saved_step, saved_ns;   /* rank 0: of the last checkpoint; 0: none yet */
    _Atomic uint64_t save_failed;            /* rank 0: the last save made none */
    _Atomic uint64_t save_bytes, save_total; /* of this rank's part of the save on its way */
    _Atomic uint64_t scalar_count;
    _Atomic uint64_t scalar_names[STATS_SCALARS][STATS_NAME_WORDS];
    _Atomic uint64_t scalars[STATS_SCALARS]; /* doubles */
};

static inline void stats_set(_Atomic uint64_t *to, uint64_t value)
{
    atomic_store_explicit(to, value, memory_order_relaxed);
}

static inline void stats_add(_Atomic uint64_t *to, uint64_t value)
{
    stats_set(to, atomic_load_explicit(to, memory_order_relaxed) + value);
}

static inline uint64_t stats_get(const _Atomic uint64_t *from)
{
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)from, memory_order_relaxed);
}

static inline void stats_set_double(_Atomic uint64_t *to, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    stats_set(to, bits);
}

static inline double stats_get_double(const _Atomic uint64_t *from)
{
    uint64_t bits = stats_get(from);
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

#endif
