/* SPDX-License-Identifier: MIT */
/* layout.h: where every element of a model stands, the same on every rank and in every tool.
 *
 * A layer's tensors stand in order in its flat vector, each at a multiple of 256 elements; the
 * vector is padded so that it splits into world equal shards, each a multiple of 256 elements and
 * of 4 KiB in the parameter dtype. Elements between tensors and after the last stay zero.
 *
 *   flat vector of a layer     | tensor 0 |..| tensor 1 |....| tensor 2 |.......|
 *   shards (world = 4)         |    rank 0     |    rank 1     |  rank 2  ...
 *
 * A sharded arena holds the rank's shard of layer 0, then of layer 1, ... (shard_offset); a
 * replicated one holds the whole flat vectors one after another (flat_offset).
 *
 * Owns    names and tables; freed by zero_layout_destroy.
 * Thread  immutable once created.
 * Fails   INVALID_ARGUMENT, TOO_LARGE, NO_MEMORY, with the layer and tensor in the detail.
 * Uses    status, model.   Used by config, plan, client, daemon.
 */
#ifndef ZERO_LAYOUT_H
#define ZERO_LAYOUT_H

#include "proto/model.h"
#include "proto/status.h"

enum {
    ZERO_TENSOR_ALIGN = 256, /* elements; so block-quantised state never straddles a tensor */
    ZERO_PAGE_BYTES = 4096,
    ZERO_NORM_CHUNK = 1024, /* elements of the fixed grid of the gradient norm; divides a shard */
    ZERO_MAX_WORLD = 128,
    ZERO_MAX_LAYERS = 65536,
    ZERO_MAX_TENSORS = 1 << 20,
};

struct zero_tensor {
    char *name;
    uint32_t layer;
    uint32_t dims;
    uint64_t shape[ZERO_MAX_DIMS];
    uint64_t count;  /* elements */
    uint64_t offset; /* elements from the start of the layer's flat vector */
    double lr_scale;
    double weight_decay; /* NAN: the config's */
};

struct zero_layer {
    char *name;
    uint32_t first_tensor, tensor_count; /* in zero_layout.tensors */
    uint64_t count;                      /* elements of its tensors, without padding */
    uint64_t shard;                      /* elements of one rank's shard */
    uint64_t flat;                       /* shard * world */
    uint64_t shard_offset;               /* elements: sum of the shards before */
    uint64_t flat_offset;                /* elements: sum of the flats before */
};

struct zero_layout {
    uint32_t world;
    zero_dtype dtype; /* of the parameters */
    uint32_t layer_count, tensor_count;
    struct zero_layer *layers;
    struct zero_tensor *tensors;
    uint64_t count;        /* elements of all tensors: the model's parameters */
    uint64_t shard_total;  /* elements of one rank's shards */
    uint64_t flat_total;   /* shard_total * world */
    uint64_t largest_flat; /* elements of the largest layer's flat vector */
};

/* What a layout is made of; borrowed. */
struct zero_layout_spec {
    const struct zero_layer_spec *layers;
    size_t layer_count;
    uint32_t world;
    zero_dtype dtype; /* of the parameters */
};

zero_status zero_layout_create(const struct zero_layout_spec *spec, struct zero_layout **out,
                               struct zero_detail *out_detail);
void zero_layout_destroy(struct zero_layout *layout);

/* Elements of a layer's flat vector. */
struct zero_range {
    uint64_t begin, end;
};

/* A run of elements of one tensor inside a range of a layer's flat vector. */
struct zero_segment {
    const struct zero_tensor *tensor;
    uint32_t layer;
    uint64_t begin, end; /* elements of the flat vector, begin < end */
};

/* Walks the tensors of a layer that lie within a range of its flat vector, in order. Start with
 * *cursor = 0; false when there are no more. Padding is never part of a segment. */
bool zero_layout_segment(const struct zero_layout *layout, uint32_t layer, struct zero_range within,
                         uint32_t *cursor, struct zero_segment *out);

/* The model as text, one line a layer and one a tensor, independent of world and dtype: equal texts
 * are equal models, and the first different line is the difference to show. malloc'd, NULL without
 * memory. */
char *zero_layout_text(const struct zero_layout *layout);

#endif
