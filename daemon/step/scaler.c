/* SPDX-License-Identifier: MIT */
#include "daemon/step/scaler.h"

void scaler_init(struct scaler *scaler, const struct zero_config *config)
{
    *scaler = (struct scaler){
        .dynamic = config->param_dtype == ZERO_FP16 && config->loss_scale_dynamic,
        .consecutive = config->loss_scale_consecutive,
        .scale = config->param_dtype == ZERO_FP16 ? config->loss_scale_initial : 1,
        .min = config->loss_scale_min,
        .window = config->loss_scale_window,
        .hysteresis = config->loss_scale_hysteresis,
        .hysteresis_left = config->loss_scale_hysteresis,
        .iteration = 0,
        .last_overflow = -1,
    };
}

static bool shrink(struct scaler *scaler)
{
    bool exhausted = false;

    if (scaler->hysteresis == 1 || scaler->hysteresis_left == 1) {
        exhausted = scaler->scale == scaler->min;
        scaler->scale = scaler->scale / 2 > scaler->min ? scaler->scale / 2 : scaler->min;
    } else {
        scaler->hysteresis_left--;
    }
    scaler->last_overflow = scaler->iteration;
    return exhausted;
}

static void grow(struct scaler *scaler)
{
    int64_t stable = scaler->iteration - scaler->last_overflow - 1;

    if (scaler->consecutive)
        scaler->hysteresis_left = scaler->hysteresis;
    if (stable > 0 && stable % scaler->window == 0) {
        if (!scaler->consecutive)
            scaler->hysteresis_left = scaler->hysteresis;
        scaler->scale *= 2;
    }
}

bool scaler_update(struct scaler *scaler, bool overflow)
{
    bool exhausted = false;

    if (!scaler->dynamic)
        return false;
    if (overflow)
        exhausted = shrink(scaler);
    else
        grow(scaler);
    scaler->iteration++;
    return exhausted;
}
