/* SPDX-License-Identifier: MIT */
/* adam.h: Adam and AdamW over blocks.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    convert.h, limits.h, stream.h.   Used by body.h.
 */
#ifndef ZERO_KERNELS_CPU_ADAM_H
#define ZERO_KERNELS_CPU_ADAM_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/limits.h"
#include "kernels/cpu/stream.h"

struct adam_block {
    float *p, *m, *v, *v_max;
    const float *g;
    float factor;
    struct adam_constants k;
};

/* What is lifted: nothing; the first moment; both moments; everything. */
enum adam_way { PLAIN, LIFT_MOMENT1, LIFT_MOMENTS, LIFT_ALL };

/* Impossible limits where a constant is out of the range that lifted.h counts on. */
static struct lift_limits adam_limits(const struct adam_op *op)
{
    const struct adam_constants *k = &op->k;
    const double step = fmax(fabs((double)k->step_size), 0x1p-100);
    const double growth = 4 * fmax(1, fabs((double)k->decay_add));
    const bool usual = within(k->one_minus_beta1, 0, 1) && within(k->beta2, 0, 1) &&
                       (k->one_minus_beta2 == 0.0f || within(k->one_minus_beta2, 0x1p-40, 1)) &&
                       within(k->root_bias2, 0x1p-40, 2) && within(k->eps, 0x1p-100, 0x1p20) &&
                       within(k->step_size, 0, 0x1p20) && within(k->decay_multiply, 0, 2) &&
                       within(k->decay_add, 0, 0x1p20) && within(op->factor, 0, 0x1p60) &&
                       k->one_minus_beta2 >= 0.0f && k->beta2 >= 0.0f && k->eps > 0.0f &&
                       k->root_bias2 > 0.0f;

    if (!usual)
        return (struct lift_limits){ 0 };
    return limits_of(fmin(0x1p30, 0x1p58 * (double)k->eps / step) / growth, op->factor);
}

static bool adam_may_lift(const struct adam_block *b, const struct lift_limits *l, size_t n)
{
    return all_below(b->p, ELEMENT_MAGNITUDE, l->huge, n) &&
           all_below(b->m, ELEMENT_MAGNITUDE, l->huge, n) &&
           all_below(b->v, UINT32_MAX, l->huge_moment2, n) &&
           all_below(b->g, ELEMENT_MAGNITUDE, l->huge_gradient, n) &&
           (b->v_max == NULL || all_below(b->v_max, UINT32_MAX, l->huge_moment2, n));
}

/* Rows without a gradient have denormal moments, parameters of usual size and g = 0: those need
 * not lift everything. With |p| > 2^-58 that keeps half of itself and eps >= 2^-40, whatever is
 * rounded to the grid in the update is at most 2^-86 and vanishes in p. */
ELEMENT_FN enum adam_way adam_way_of(const struct adam_block *b, const struct lift_limits *l,
                                     size_t n)
{
    const uint32_t p = smallest_in(b->p, ELEMENT_MAGNITUDE, n);
    const uint32_t m = smallest_in(b->m, ELEMENT_MAGNITUDE, n);
    const uint32_t v = smallest_in(b->v, UINT32_MAX, n);
    const uint32_t g = smallest_in(b->g, ELEMENT_MAGNITUDE, n);

    if (p >= l->tiny && m >= l->tiny && v >= l->tiny && g >= l->tiny_gradient)
        return PLAIN;
    if (!adam_may_lift(b, l, n))
        return PLAIN;
    if (b->v_max || b->k.decay_add != 0.0f || g < l->tiny_gradient || b->k.eps < 0x1p-40f ||
        b->k.decay_multiply < 0.5f || !all_above(b->p, limit_bits(0x1p-58), n))
        return LIFT_ALL;
    return v < l->tiny ? LIFT_MOMENTS : LIFT_MOMENT1;
}

ELEMENT_FN void adam_plain(const struct adam_block *b, bool l2, bool amsgrad, size_t n)
{
    const struct adam_constants k = b->k;
    const float factor = b->factor;
    const float *g_at = b->g;
    float *p_at = b->p, *m_at = b->m, *v_at = b->v, *v_max_at = b->v_max;

    EACH_ELEMENT
    for (size_t i = 0; i < n; i++) {
        float g = g_at[i] * factor;
        const float p = l2 ? p_at[i] : p_at[i] * k.decay_multiply;

        if (l2)
            g = element_fma(p, k.decay_add, g);
        const float m = adam_moment1(m_at[i], g, k.one_minus_beta1);
        const float v = adam_moment2(v_at[i], g, &k);
        float v_used = v;

        if (amsgrad)
            v_max_at[i] = v_used = adam_larger(v_max_at[i], v);
        m_at[i] = m;
        v_at[i] = v;
        p_at[i] = adam_parameter(p, m, v_used, &k);
    }
}

/* Below 2^-80 the square of a gradient is less than half a step of the grid: it changes nothing.
 * Taken out as bits, as the product with 2^-64 could be a denormal. */
ELEMENT_FN float lifted_moment2(float v, float g, const struct adam_constants *k)
{
    const uint32_t u = element_bits(g), a = u & ELEMENT_MAGNITUDE;
    const float counts = element_float(lifted_below(a, 0x37800000u) ? 0u : u - LIFTED_SHIFT);

    return lifted_fma_positive(k->one_minus_beta2 * counts, g,
                               lifted_multiply_positive(k->beta2, v));
}

/* For LIFT_MOMENT1 and LIFT_MOMENTS: p and g, with what becomes of them, need no rounding to the
 * grid, so a product with 2^64 lifts them. */
ELEMENT_FN void adam_lifted_moments(const struct adam_block *b, bool both, size_t n)
{
    const struct adam_constants k = b->k;
    const bool far = k.one_minus_beta1 >= 0.5f;
    const float weight = far ? k.one_minus_beta1 - 1.0f : k.one_minus_beta1, factor = b->factor;
    const float *g_at = b->g;
    float *p_at = b->p, *m_at = b->m, *v_at = b->v;

    EACH_ELEMENT
    for (size_t i = 0; i < n; i++) {
        const float g = g_at[i] * factor, up = g * 0x1p64f;
        const float p = p_at[i] * k.decay_multiply * 0x1p64f, old = lifted_from(m_at[i]);
        const float m = lifted_fma(weight, up - old, far ? up : old);
        float root;

        m_at[i] = lifted_to(m);
        if (both) {
            const float kept = lifted_multiply_positive(k.beta2, lifted_from_positive(v_at[i]));
            const float v = lifted_fma_positive(k.one_minus_beta2 * g, up, kept);

            v_at[i] = lifted_to_positive(v);
            root = lifted_sqrt(v);
        } else {
            const float v = adam_moment2(v_at[i], g, &k);

            v_at[i] = v;
            root = element_sqrt(v);
        }
        p_at[i] = (p + k.step_size * m / (root / k.root_bias2 + k.eps)) * 0x1p-64f;
    }
}

ELEMENT_FN void adam_lifted(const struct adam_block *b, bool l2, bool amsgrad, size_t n)
{
    const struct adam_constants k = b->k;
    const bool far = k.one_minus_beta1 >= 0.5f;
    const float weight = far ? k.one_minus_beta1 - 1.0f : k.one_minus_beta1, factor = b->factor;
    const float *g_at = b->g;
    float *p_at = b->p, *m_at = b->m, *v_at = b->v, *v_max_at = b->v_max;

    EACH_ELEMENT
    for (size_t i = 0; i < n; i++) {
        float g = lifted_multiply(factor, lifted_from(g_at[i]));
        float p = lifted_from(p_at[i]), m = lifted_from(m_at[i]);

        p = l2 ? p : lifted_multiply(k.decay_multiply, p);
        g = l2 ? lifted_fma(k.decay_add, p, g) : g;
        m = lifted_fma(weight, g - m, far ? g : m);
        m_at[i] = lifted_to(m);
        float v = lifted_moment2(lifted_from_positive(v_at[i]), g, &k);

        v_at[i] = lifted_to_positive(v);
        if (amsgrad) {
            v = adam_larger(lifted_from_positive(v_max_at[i]), v);
            v_max_at[i] = lifted_to_positive(v);
        }
        const float d = lifted_sqrt(v) / k.root_bias2 + k.eps;

        p_at[i] = lifted_to(p + lifted_divide(lifted_multiply(k.step_size, m), d));
    }
}

/* l2, amsgrad and n are constants of the compiled loops; n but for the last block. */
ELEMENT_FN void adam_block_run(const struct adam_block *b, const struct lift_limits *limits,
                               bool l2, bool amsgrad, size_t n)
{
    switch (adam_way_of(b, limits, n)) {
    case PLAIN:
        adam_plain(b, l2, amsgrad, n);
        break;
    case LIFT_MOMENT1:
        adam_lifted_moments(b, false, n);
        break;
    case LIFT_MOMENTS:
        adam_lifted_moments(b, true, n);
        break;
    case LIFT_ALL:
        adam_lifted(b, l2, amsgrad, n);
        break;
    }
}

/* All but the maximum, which few use. */
ELEMENT_FN void adam_prefetch(const struct adam_block *b)
{
    prefetch_some(b->p, BLOCK * sizeof *b->p);
    prefetch_some(b->m, BLOCK * sizeof *b->m);
    prefetch_some(b->v, BLOCK * sizeof *b->v);
    prefetch_some(b->g, BLOCK * sizeof *b->g);
}

ELEMENT_FN void adam_run(const struct adam_op *op, bool l2, bool amsgrad)
{
    const struct lift_limits limits = adam_limits(op);

    for (size_t at = 0; at < op->count; at += BLOCK) {
        const size_t n = op->count - at < BLOCK ? op->count - at : BLOCK;
        const struct adam_block b = { .p = op->p + at,
                                      .m = op->m + at,
                                      .v = op->v + at,
                                      .v_max = amsgrad ? op->v_max + at : NULL,
                                      .g = op->g + at,
                                      .factor = op->factor,
                                      .k = op->k };

        adam_prefetch(&b);
        if (n == BLOCK)
            adam_block_run(&b, &limits, l2, amsgrad, BLOCK);
        else
            adam_block_run(&b, &limits, l2, amsgrad, n);
        if (op->narrow)
            narrow_some(narrow_at(op->narrow, op->narrow_dtype, at), op->narrow_dtype, b.p, n);
    }
}

static void adam(const struct adam_op *op)
{
    const bool l2 = !op->k.decoupled && op->k.decay_add != 0.0f;

    if (l2 && op->v_max)
        adam_run(op, true, true);
    else if (l2)
        adam_run(op, true, false);
    else if (op->v_max)
        adam_run(op, false, true);
    else
        adam_run(op, false, false);
}

#endif
