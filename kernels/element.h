/* SPDX-License-Identifier: MIT */
/* element.h: what is done to one element, written once for every instruction set and for CUDA.
 *
 * One rounding for each written operation: fma is explicit, and the including file is compiled
 * without contraction.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   never.
 * Uses    kernel_set.h.   Used by kernels/cpu and kernels/cuda.
 */
#ifndef ZERO_KERNELS_ELEMENT_H
#define ZERO_KERNELS_ELEMENT_H

#include "kernels/kernel_set.h"

#include <string.h>

#ifdef __CUDACC__
#define ELEMENT_FN static __device__ __forceinline__
#define element_fma(a, b, c) __fmaf_rn((a), (b), (c))
#define element_sqrt(a) __fsqrt_rn(a)
#define element_bits(x) __float_as_uint(x)
#define element_float(u) __uint_as_float(u)
#else
#define ELEMENT_FN static inline __attribute__((always_inline))
#define element_fma(a, b, c) __builtin_fmaf((a), (b), (c))
#define element_sqrt(a) __builtin_sqrtf(a)

ELEMENT_FN uint32_t element_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

ELEMENT_FN float element_float(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}
#endif

enum { ELEMENT_SIGN_SHIFT = 31 };
#define ELEMENT_MAGNITUDE 0x7fffffffu
#define ELEMENT_SIGN 0x80000000u
#define ELEMENT_INFINITY 0x7f800000u

ELEMENT_FN float bf16_to_float(uint16_t h)
{
    return element_float((uint32_t)h << 16);
}

/* Round to nearest even, denormals too; every NaN becomes 0x7fc0. */
ELEMENT_FN uint16_t bf16_from_float(float x)
{
    const uint32_t u = element_bits(x);
    const uint32_t nearest = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;

    return (uint16_t)((u & ELEMENT_MAGNITUDE) > ELEMENT_INFINITY ? 0x7fc0u : nearest);
}

/* Without a multiplication, which would take an assist for fp32 denormals. */
ELEMENT_FN float fp16_to_float(uint16_t h)
{
    const uint32_t a = ((uint32_t)h & 0x7fffu) << 13;
    const float normal = element_float(a + (a < 0x0f800000u ? 0x38000000u : 0x70000000u));
    const float denormal = element_float(a + 0x38800000u) - 0x1p-14f;
    const uint32_t u = element_bits(a < 0x00800000u ? denormal : normal);

    return element_float(u | ((uint32_t)h & 0x8000u) << 16);
}

/* Round to nearest even, denormals too; every NaN becomes 0x7e00. Adding 0.5, whose last place is
 * 2^-24, rounds to the grid of fp16's denormals. */
ELEMENT_FN uint16_t fp16_from_float(float x)
{
    const uint32_t u = element_bits(x), a = u & ELEMENT_MAGNITUDE;
    const uint32_t normal = (a - 0x38000000u + 0xfffu + (a >> 13 & 1u)) >> 13;
    const uint32_t denormal = element_bits(element_float(a) + 0.5f) - 0x3f000000u;
    uint32_t h = a < 0x38800000u ? denormal : normal;

    h = a >= 0x477ff000u ? 0x7c00u : h;
    h |= u >> 16 & 0x8000u;
    return (uint16_t)(a > ELEMENT_INFINITY ? 0x7e00u : h);
}

/* torch.lerp(m, g, weight): from the nearer end. */
ELEMENT_FN float adam_moment1(float m, float g, float weight)
{
    const float d = g - m;

    return weight < 0.5f ? element_fma(weight, d, m) : element_fma(weight - 1.0f, d, g);
}

ELEMENT_FN float adam_moment2(float v, float g, const struct adam_constants *k)
{
    return element_fma(k->one_minus_beta2 * g, g, v * k->beta2);
}

/* torch.maximum: NaN from either side. */
ELEMENT_FN float adam_larger(float a, float b)
{
    return a > b || a != a ? a : b;
}

ELEMENT_FN float adam_parameter(float p, float m, float v, const struct adam_constants *k)
{
    const float d = element_sqrt(v) / k->root_bias2 + k->eps;

    return p + k->step_size * m / d;
}

struct sgd_element {
    float p, buf;
};

ELEMENT_FN struct sgd_element sgd_update(struct sgd_element e, float g, const struct sgd_op *op)
{
    g = op->weight_decay != 0.0f ? element_fma(e.p, op->weight_decay, g) : g;
    if (op->buf) {
        const float next = element_fma(g, op->one_minus_dampening, e.buf * op->momentum);

        e.buf = op->first ? g : next;
        g = op->nesterov ? element_fma(e.buf, op->momentum, g) : e.buf;
    }
    e.p = element_fma(g, -op->lr, e.p);
    return e;
}

#endif
