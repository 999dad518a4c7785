/* SPDX-License-Identifier: MIT */
/* scaler.h: the dynamic loss scale, with DeepSpeed's algorithm and defaults.
 *
 * Source  the algorithm of DeepSpeed's DynamicLossScaler (overflow: spend hysteresis, then halve;
 *         clean: double after `window` steps since the last overflow or growth).
 * Owns    nothing.
 * Thread  the worker of rank 0.
 * Fails   never; `exhausted` tells of an overflow at the minimum.
 * Uses    config.   Used by step.
 */
#ifndef DAEMON_STEP_SCALER_H
#define DAEMON_STEP_SCALER_H

#include "proto/config.h"

struct scaler {
    bool dynamic, consecutive;
    double scale, min;
    uint32_t window, hysteresis, hysteresis_left;
    int64_t iteration, last_overflow;
};

void scaler_init(struct scaler *scaler, const struct zero_config *config);

/* Takes note of a step; true if it overflowed while the scale was at its minimum and may not fall.
 */
bool scaler_update(struct scaler *scaler, bool overflow);

#endif
