/* SPDX-License-Identifier: MIT */
/* models.h: a model's description as it grows, layer by layer and tensor by tensor.
 *
 * Owns    copies of all names and shapes.
 * Thread  one.
 * Fails   TOO_LARGE over the layout's caps, NO_MEMORY.
 * Uses    layout.   Used by manifest, libzeroclient.
 */
#ifndef DAEMON_STORE_MODELS_H
#define DAEMON_STORE_MODELS_H

#include "proto/layout.h"

struct store_model {
    struct zero_layer_spec *layers;
    struct zero_tensor_spec *tensors;
    size_t layer_count, tensor_count, layer_room, tensor_room;
    char *names; /* one after another */
    size_t name_bytes, name_room;
    size_t *layer_names, *tensor_names; /* where each begins in names */
    uint64_t *shapes;
    size_t shape_count, shape_room;
};

/* Each adds one more, empty; its name follows by the next. */
zero_status store_model_layer(struct store_model *model, struct zero_detail *out_detail);
zero_status store_model_tensor(struct store_model *model, struct zero_detail *out_detail);
/* Of the last tensor, or of the last layer while that has none. */
zero_status store_model_name(struct store_model *model, const char *name, bool of_tensor,
                             struct zero_detail *out_detail);
zero_status store_model_size(struct store_model *model, uint64_t size,
                             struct zero_detail *out_detail);

/* Lays it out; the model may be deinited afterwards. */
zero_status store_model_layout(struct store_model *model, uint32_t world, zero_dtype dtype,
                               struct zero_layout **out, struct zero_detail *out_detail);
/* The same model for another world or dtype. */
zero_status store_layout_again(const struct zero_layout *layout, uint32_t world, zero_dtype dtype,
                               struct zero_layout **out, struct zero_detail *out_detail);
void store_model_deinit(struct store_model *model);

#endif
