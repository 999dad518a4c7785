/* SPDX-License-Identifier: MIT */
/* model.h: how a trainer describes its model: an ordered list of layers of named tensors.
 *
 * Owns    nothing: everything a spec points to is borrowed for the call that takes it.
 * Thread  any: plain data.
 * Uses    nothing.   Used by layout, client, daemon, and programs that use libzeroclient.
 */
#ifndef ZERO_MODEL_H
#define ZERO_MODEL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of parameters and gradients. The numbers are on the wire. */
typedef enum zero_dtype { ZERO_FP32 = 0, ZERO_BF16 = 1, ZERO_FP16 = 2 } zero_dtype;
enum { ZERO_DTYPES = 3 };

enum {
    ZERO_MAX_DIMS = 8,
    ZERO_MAX_NAME = 255, /* bytes of a layer's or tensor's name, without the NUL */
};

/* A tensor: row-major, in the parameter dtype of the config. */
struct zero_tensor_spec {
    const char *name;      /* unique in the model; UTF-8 without control characters */
    const uint64_t *shape; /* dims sizes, each at least 1 */
    uint32_t dims;         /* 0 (a scalar) to ZERO_MAX_DIMS */
    double lr_scale;       /* multiplies the step's learning rate: 1 is usual; 0, as in a zeroed
                              struct, freezes the tensor: no step changes it, though its
                              moments and its part of the gradient's norm go on */
    double weight_decay;   /* NAN: the config's; 0: none */
};

/* A layer: what is gathered, submitted and released as one. */
struct zero_layer_spec {
    const char *name;
    const struct zero_tensor_spec *tensors;
    size_t tensor_count; /* at least 1 */
};

static inline size_t zero_dtype_bytes(zero_dtype dtype)
{
    return dtype == ZERO_FP32 ? 4 : 2;
}

static inline const char *zero_dtype_name(zero_dtype dtype)
{
    static const char *const names[ZERO_DTYPES] = { "fp32", "bf16", "fp16" };
    return names[dtype];
}

#ifdef __cplusplus
}
#endif

#endif
