/* SPDX-License-Identifier: MIT */
/* convert.h: between fp32 and the 16-bit formats, and how every loop here is written.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    element.h.   Used by body.h, adam.h, sgd.h.
 */
#ifndef ZERO_KERNELS_CPU_CONVERT_H
#define ZERO_KERNELS_CPU_CONVERT_H

#include "kernels/element.h"

/* The iterations are independent: the pointers of an op do not overlap. */
#define EACH_ELEMENT _Pragma("omp simd")

ELEMENT_FN void narrow_some(void *to, enum kernel_dtype dtype, const float *from, size_t n)
{
    uint16_t *half = to;

    if (dtype == KERNEL_BF16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            half[i] = bf16_from_float(from[i]);
    } else if (dtype == KERNEL_FP16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            half[i] = fp16_from_float(from[i]);
    } else {
        memcpy(to, from, n * sizeof *from);
    }
}

/* A 16-bit copy may follow the masters element by element; an fp32 one is their copy. */
ELEMENT_FN void *narrow_at(void *narrow, enum kernel_dtype dtype, size_t i)
{
    return (char *)narrow + i * (dtype == KERNEL_FP32 ? sizeof(float) : sizeof(uint16_t));
}

static void narrow_all(void *to, enum kernel_dtype dtype, const float *from, size_t count)
{
    if (count)
        narrow_some(to, dtype, from, count);
}

ELEMENT_FN void widen_some(float *to, const void *from, enum kernel_dtype dtype, size_t n)
{
    const uint16_t *half = from;

    if (dtype == KERNEL_BF16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            to[i] = bf16_to_float(half[i]);
    } else if (dtype == KERNEL_FP16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            to[i] = fp16_to_float(half[i]);
    } else {
        memcpy(to, from, n * sizeof *to);
    }
}

static void widen_all(float *to, const void *from, enum kernel_dtype dtype, size_t count)
{
    if (count)
        widen_some(to, from, dtype, count);
}

#endif
