/* SPDX-License-Identifier: MIT */
/* limits.h: which blocks go the lifted way.
 *
 * An update kernel looks at a block first: if it holds numbers near the denormals, and none so
 * large that lifted arithmetic would overflow, the block is done with lifted.h, which gives the
 * same bits without the assists.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    lifted.h.   Used by adam.h, sgd.h.
 */
#ifndef ZERO_KERNELS_CPU_LIMITS_H
#define ZERO_KERNELS_CPU_LIMITS_H

#include "kernels/cpu/lifted.h"

#include <math.h>

/* 64 elements are four AVX-512 registers of each array, and less than a row of any embedding. */
enum { BLOCK = 64 };

/* As bit patterns. tiny: what is smaller, and not zero, may give a denormal. huge: what is not
 * smaller might overflow when lifted; infinity and NaN are, and so is every negative second
 * moment. */
struct lift_limits {
    uint32_t tiny, tiny_gradient;
    uint32_t huge, huge_gradient, huge_moment2;
};

static uint32_t limit_bits(double x)
{
    return element_bits((float)fmin(fmax(x, 0x1p-120), 0x1p60));
}

static bool within(float x, double low, double high)
{
    return fabs((double)x) >= low && fabs((double)x) <= high;
}

/* `largest`: what a state and a gradient may reach. */
static struct lift_limits limits_of(double largest, float factor)
{
    const double per_gradient = 1 / fmax(fabs((double)factor), 0x1p-100);

    return (struct lift_limits){
        .tiny = limit_bits(0x1p-100),
        .tiny_gradient = limit_bits(0x1p-60 * per_gradient),
        .huge = limit_bits(largest),
        .huge_gradient = limit_bits(largest * per_gradient),
        .huge_moment2 = limit_bits(0x1p60),
    };
}

/* The smallest magnitude less one: a zero becomes the largest number. */
ELEMENT_FN uint32_t smallest_in(const float *x, uint32_t mask, size_t n)
{
    uint32_t least = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        const uint32_t less = (element_bits(x[i]) & mask) - 1;

        least = less < least ? less : least;
    }
    return least;
}

ELEMENT_FN bool all_below(const float *x, uint32_t mask, uint32_t limit, size_t n)
{
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t u = element_bits(x[i]) & mask;

        most = u > most ? u : most;
    }
    return most < limit;
}

ELEMENT_FN bool all_above(const float *x, uint32_t limit, size_t n)
{
    uint32_t least = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        const uint32_t u = element_bits(x[i]) & ELEMENT_MAGNITUDE;

        least = u < least ? u : least;
    }
    return least > limit;
}

#endif
