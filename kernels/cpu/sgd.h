/* SPDX-License-Identifier: MIT */
/* sgd.h: SGD with momentum over blocks.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    convert.h, limits.h, stream.h.   Used by body.h.
 */
#ifndef ZERO_KERNELS_CPU_SGD_H
#define ZERO_KERNELS_CPU_SGD_H

#include "kernels/cpu/convert.h"
#include "kernels/cpu/limits.h"
#include "kernels/cpu/stream.h"

static struct lift_limits sgd_limits(const struct sgd_op *op)
{
    const bool usual = within(op->lr, 0, 0x1p5) && within(op->weight_decay, 0, 0x1p5) &&
                       within(op->momentum, 0, 0x1p5) &&
                       within(op->one_minus_dampening, 0, 0x1p5) && within(op->factor, 0, 0x1p60);

    return usual ? limits_of(0x1p30, op->factor) : (struct lift_limits){ 0 };
}

ELEMENT_FN bool sgd_wants_lift(const struct sgd_op *b, const struct lift_limits *l, size_t n)
{
    const bool tiny = smallest_in(b->p, ELEMENT_MAGNITUDE, n) < l->tiny ||
                      smallest_in(b->g, ELEMENT_MAGNITUDE, n) < l->tiny_gradient ||
                      (b->buf && smallest_in(b->buf, ELEMENT_MAGNITUDE, n) < l->tiny);

    return tiny && all_below(b->p, ELEMENT_MAGNITUDE, l->huge, n) &&
           all_below(b->g, ELEMENT_MAGNITUDE, l->huge_gradient, n) &&
           (b->buf == NULL || all_below(b->buf, ELEMENT_MAGNITUDE, l->huge, n));
}

ELEMENT_FN void sgd_plain(const struct sgd_op *block, size_t n)
{
    const struct sgd_op b = *block;

    EACH_ELEMENT
    for (size_t i = 0; i < n; i++) {
        const struct sgd_element e =
            sgd_update((struct sgd_element){ .p = b.p[i], .buf = b.buf ? b.buf[i] : 0.0f },
                       b.g[i] * b.factor, &b);

        b.p[i] = e.p;
        if (b.buf)
            b.buf[i] = e.buf;
    }
}

ELEMENT_FN void sgd_lifted(const struct sgd_op *block, size_t n)
{
    const struct sgd_op b = *block;

    EACH_ELEMENT
    for (size_t i = 0; i < n; i++) {
        const float p = lifted_from(b.p[i]);
        float g = lifted_multiply(b.factor, lifted_from(b.g[i]));

        g = b.weight_decay != 0.0f ? lifted_fma(b.weight_decay, p, g) : g;
        if (b.buf) {
            const float kept = lifted_multiply(b.momentum, lifted_from(b.buf[i]));
            const float buf = b.first ? g : lifted_fma(b.one_minus_dampening, g, kept);

            b.buf[i] = lifted_to(buf);
            g = b.nesterov ? lifted_fma(b.momentum, buf, g) : buf;
        }
        b.p[i] = lifted_to(lifted_fma(-b.lr, g, p));
    }
}

/* The first step does not read buf, which may hold anything. */
ELEMENT_FN void sgd_run(const struct sgd_op *op, bool momentum)
{
    const struct lift_limits limits = sgd_limits(op);

    for (size_t at = 0; at < op->count; at += BLOCK) {
        const size_t n = op->count - at < BLOCK ? op->count - at : BLOCK;
        struct sgd_op b = *op;

        b.p += at;
        b.g += at;
        b.buf = momentum ? op->buf + at : NULL;
        prefetch_some(b.p, BLOCK * sizeof *b.p);
        prefetch_some(b.g, BLOCK * sizeof *b.g);
        if (b.buf)
            prefetch_some(b.buf, BLOCK * sizeof *b.buf);
        if (b.buf && b.first)
            memset(b.buf, 0, n * sizeof *b.buf);
        if (sgd_wants_lift(&b, &limits, n))
            sgd_lifted(&b, n);
        else
            sgd_plain(&b, n);
        if (op->narrow)
            narrow_some(narrow_at(op->narrow, op->narrow_dtype, at), op->narrow_dtype, b.p, n);
    }
}

static void sgd(const struct sgd_op *op)
{
    if (op->buf)
        sgd_run(op, true);
    else
        sgd_run(op, false);
}

#endif
