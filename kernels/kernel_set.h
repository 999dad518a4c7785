/* SPDX-License-Identifier: MIT */
/* kernel_set.h: the arithmetic of a training step, one table an instruction set.
 *
 * Every set gives the same bits for the same input: IEEE fp32, round to nearest even, explicit fma,
 * no contraction, denormals kept. Orders and constants are those of PyTorch's AdamW in the lerp
 * form (torch >= 2) and torch.optim.SGD.
 *
 * Owns    nothing; pointers are borrowed for the call and may not overlap unless said.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    nothing.   Used by device, step.
 */
#ifndef ZERO_KERNEL_SET_H
#define ZERO_KERNEL_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers of zero_dtype. */
enum kernel_dtype { KERNEL_FP32 = 0, KERNEL_BF16 = 1, KERNEL_FP16 = 2 };
enum { KERNEL_NORM_CHUNK = 1024, KERNEL_MAX_SOURCES = 128 };

/* What one Adam step does to every element; by adam_constants(). */
struct adam_constants {
    float decay_multiply;  /* AdamW: (float)(1 - lr * wd) */
    float decay_add;       /* Adam L2: (float)wd, added as g = fma(p, wd, g); 0: not at all */
    float one_minus_beta1; /* o1 */
    float beta2, one_minus_beta2;
    float step_size;  /* -(lr / bc1) */
    float root_bias2; /* sqrt(bc2) */
    float eps;
    bool decoupled; /* AdamW */
};

/* t counts applied steps from 1. Computed in double, rounded once (numerics: PyTorch). */
struct adam_constants adam_constants(double lr, double beta1, double beta2, double eps,
                                     double weight_decay, bool decoupled, uint64_t t);

/* p, m, v (and v_max, or NULL) are updated in place; g is read only and multiplied by factor first
 * (one rounding; 1 keeps every bit). narrow (or NULL) gets p rounded to narrow_dtype. */
struct adam_op {
    float *p, *m, *v, *v_max;
    const float *g;
    void *narrow;
    enum kernel_dtype narrow_dtype;
    size_t count;
    float factor;
    struct adam_constants k;
};

/* torch.optim.SGD: g += wd p; buf = first ? g : mu buf + (1 - dampening) g; nesterov: g += mu buf,
 * otherwise g = buf; p -= lr g. Each sum with a product is one fma. Without momentum buf is NULL;
 * the first step does not read it. */
struct sgd_op {
    float *p, *buf;
    const float *g;
    void *narrow;
    enum kernel_dtype narrow_dtype;
    size_t count;
    float factor;
    float lr, weight_decay, momentum, one_minus_dampening;
    bool nesterov, first;
};

/* sum[i] = ((sum[i] + source 0) + source 1) + ...  in order, in fp32; without `accumulate` the sum
 * starts with source 0, and an aligned one goes past the caches. source_count is 1 to
 * KERNEL_MAX_SOURCES. squares (or NULL) gets square_sum of the sums: count is a multiple of
 * KERNEL_NORM_CHUNK then. */
struct reduce_op {
    float *sum;
    double *squares;
    const void *const *sources;
    uint32_t source_count;
    enum kernel_dtype dtype;
    size_t count;
    bool accumulate;
};

struct kernel_set {
    const char *name; /* "scalar", "avx2", "avx512" */
    bool (*usable)(void);
    void (*reduce)(const struct reduce_op *op);
    /* out[c] = sum of squares of the 1024 elements of chunk c, in double: 8 lanes left to right,
     * then
     * ((0+1)+(2+3))+((4+5)+(6+7)). Not finite exactly if an element is not. */
    void (*square_sum)(const float *x, size_t chunk_count, double *out);
    void (*adam)(const struct adam_op *op);
    void (*sgd)(const struct sgd_op *op);
    /* Round to nearest even; NaN becomes 0x7fc0 in bf16 and 0x7e00 in fp16. For fp32 a copy. */
    void (*narrow)(void *to, enum kernel_dtype dtype, const float *from, size_t count);
    void (*widen)(float *to, const void *from, enum kernel_dtype dtype, size_t count);
    /* memcpy for many bytes that are not read soon: past the caches. */
    void (*copy)(void *to, const void *from, size_t bytes);
};

extern const struct kernel_set kernels_scalar, kernels_avx2, kernels_avx512;

/* The fastest set this CPU can run, or the one named by `forced` (NULL: none forced). NULL if the
 * forced one does not exist or cannot run here; known names are in *out_names. */
const struct kernel_set *kernel_set_find(const char *forced, const char **out_names);

/* Whether the calling thread rounds to nearest and keeps denormals (no FTZ, no DAZ). Every kernel
 * relies on it; a library that was built for speed may have changed it. */
bool kernel_float_mode_ok(void);

#ifdef __cplusplus
}
#endif

#endif
