/* SPDX-License-Identifier: MIT */
/* layers.h: a model's layers from JSON: [{"name": ..., "tensors": [{"name": ..., "shape":
 * [...]}]}].
 *
 * Owns    what the specs point to; layers_deinit gives it back.
 * Fails   CONFIG, NO_MEMORY, with the line in the detail.
 * Uses    json, model.   Used by zeroctl plan.
 */
#ifndef CLIENT_CTL_LAYERS_H
#define CLIENT_CTL_LAYERS_H

#include <stddef.h>

#include "proto/model.h"
#include "proto/status.h"

struct json;

struct layers {
    struct zero_layer_spec *specs;
    size_t count;
    struct json *tree; /* names point into it */
};

zero_status layers_read(const char *text, size_t bytes, struct layers *out,
                        struct zero_detail *out_detail);
void layers_deinit(struct layers *layers);

#endif
