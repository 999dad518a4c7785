/* SPDX-License-Identifier: MIT */
/* import.h: a checkpoint of step 0 made from other people's weights: one rank, fp32, the master
 * alone. Its config is empty, its loss scale 0, and it has no moments: what it cannot know.
 *
 * Thread  one.
 * Fails   MISMATCH when a tensor of the model is not there or has another shape, and what reading
 *         and saving fail with.
 * Uses    safetensors, save.   Used by libzeroclient.
 */
#ifndef DAEMON_STORE_IMPORT_H
#define DAEMON_STORE_IMPORT_H

#include "daemon/store/safetensors.h"
#include "daemon/store/save.h"

/* The layout (world 1, fp32) of what the files have, in their order. A tensor's layer is its name
 * up to the first part that is a number ("model.layers.3" of "model.layers.3.mlp.up.weight"), or
 * without one, up to the last dot. */
zero_status store_import_layout(const struct store_tensors *tensors, struct zero_layout **out,
                                struct zero_detail *out_detail);

struct store_imported {
    struct store_progress *progress; /* given; may be NULL */
    char path[PATH_MAX];             /* of the checkpoint */
    size_t unused;                   /* tensors of the files that the model does not have */
};

/* layout: world 1, fp32. */
zero_status store_import(const struct store_tensors *tensors, const struct zero_layout *layout,
                         const char *dir, struct store_imported *out,
                         struct zero_detail *out_detail);

#endif
