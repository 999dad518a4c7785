/* SPDX-License-Identifier: MIT */
/* Every kernel set gives the bits of plain IEEE fp32 loops, whatever mix of zero, denormal, normal,
 * huge and not finite it is given. */
#include "kernels/cpu/lifted.h"
#include "tests/unit/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* COUNT leaves a tail that is no multiple of any vector. */
enum { COUNT = 64 * 256 + 37, ROUNDS = 40 };

static uint64_t state = 42;

static uint64_t draw(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

/* A magnitude with a biased exponent in [low, high]; few bits set one time in four. */
static uint32_t magnitude(uint32_t low, uint32_t high)
{
    const uint64_t r = draw();
    const uint32_t exponent = low + (uint32_t)(r >> 40) % (high - low + 1);
    uint32_t mantissa = (uint32_t)r & 0x7fffffu;

    if ((r >> 62) == 0)
        mantissa &= 0x7fffffu << (r >> 32) % 24;
    if ((r >> 62) == 1 && exponent == 0)
        mantissa >>= (r >> 32) % 24;
    return exponent << 23 | mantissa;
}

enum profile { DENORMAL, SMALL, USUAL, WEIGHTS, NONE, MIXED, ANY, PROFILES };

static float draw_float(enum profile profile)
{
    const uint32_t sign = (uint32_t)(draw() >> 63) << 31;

    switch (profile) {
    case DENORMAL:
        return float_of(sign | magnitude(0, 1));
    case SMALL:
        return draw() % 5 ? float_of(sign | magnitude(0, 40)) : float_of(sign);
    case USUAL:
        return draw() % 9 ? float_of(sign | magnitude(100, 128)) : float_of(sign);
    case WEIGHTS:
        return float_of(sign | magnitude(69, 105));
    case NONE:
        return float_of(sign);
    case MIXED:
        return draw() % 5 ? float_of(sign | magnitude(0, 150)) : float_of(sign);
    default:
        return float_of(sign | magnitude(0, 255));
    }
}

static void fill(float *x, bool positive)
{
    enum profile profile = USUAL;

    for (size_t i = 0; i < COUNT; i++) {
        if (i % 64 == 0)
            profile = (enum profile)(draw() % PROFILES);
        x[i] = draw_float(profile);
        if (positive)
            x[i] = fabsf(x[i]);
    }
}

static bool same(float a, float b)
{
    return bits_of(a) == bits_of(b) || (isnan(a) && isnan(b));
}

static void expect(const char *set, const char *what, const float *have, const float *want)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (same(have[i], want[i]))
            continue;
        fprintf(stderr, "%s: %s[%zu] is %08" PRIx32 ", not %08" PRIx32 "\n", set, what, i,
                bits_of(have[i]), bits_of(want[i]));
        CHECK(false);
        return;
    }
}

struct arrays {
    float p[COUNT], m[COUNT], v[COUNT], v_max[COUNT], g[COUNT];
    uint16_t narrow[COUNT];
};

static struct arrays given, want, have;

/* Moments and gradients that nearly cancel: the result has few bits left. */
static void cancel(const struct adam_constants *k, float factor)
{
    for (size_t i = 0; i < COUNT; i += i / 64 % 4 ? 64 : 7) {
        const float o1 = k->one_minus_beta1;
        float g = given.m[i] - given.m[i] / o1;

        if (k->decay_add != 0.0f)
            g = -given.p[i] * k->decay_add;
        given.g[i] = float_of(bits_of(g / factor) + (uint32_t)(draw() % 5) - 2u);
    }
}

static void adam_reference(struct arrays *a, const struct adam_op *op)
{
    const struct adam_constants k = op->k;

    for (size_t i = 0; i < COUNT; i++) {
        float g = a->g[i] * op->factor, p = a->p[i], m = a->m[i], v = a->v[i];

        if (k.decoupled)
            p *= k.decay_multiply;
        else if (k.decay_add != 0)
            g = fmaf(p, k.decay_add, g);
        if (k.one_minus_beta1 < 0.5f)
            m = fmaf(k.one_minus_beta1, g - m, m);
        else
            m = fmaf(k.one_minus_beta1 - 1, g - m, g);
        v = fmaf(k.one_minus_beta2 * g, g, v * k.beta2);
        a->m[i] = m;
        a->v[i] = v;
        if (op->v_max) {
            if (!isnan(a->v_max[i]) && !(a->v_max[i] > v))
                a->v_max[i] = v;
            v = a->v_max[i];
        }
        a->p[i] = p + k.step_size * m / (sqrtf(v) / k.root_bias2 + k.eps);
    }
}

static uint16_t bf16_reference(float x)
{
    const uint32_t u = bits_of(x);

    return isnan(x) ? 0x7fc0 : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void run_adam(const struct kernel_set *set, struct adam_op op)
{
    bool narrow_ok = true;

    have = given;
    op.p = have.p;
    op.m = have.m;
    op.v = have.v;
    op.v_max = op.v_max ? have.v_max : NULL;
    op.g = have.g;
    op.narrow = have.narrow;
    op.narrow_dtype = KERNEL_BF16;
    op.count = COUNT;
    set->adam(&op);
    expect(set->name, "p", have.p, want.p);
    expect(set->name, "m", have.m, want.m);
    expect(set->name, "v", have.v, want.v);
    expect(set->name, "v_max", have.v_max, want.v_max);
    expect(set->name, "g", have.g, given.g);
    for (size_t i = 0; i < COUNT; i++)
        narrow_ok &= have.narrow[i] == bf16_reference(want.p[i]);
    CHECK(narrow_ok);
}

struct hyper {
    double lr, beta1, beta2, eps, decay;
    bool decoupled, amsgrad;
    float factor;
    uint64_t t;
};

/* Large eps makes quotients denormal, and powers of two make them fall between two; a decay of
 * nearly everything makes parameters denormal. */
static const struct hyper hypers[] = {
    { 1e-3, 0.9, 0.999, 1e-8, 0.01, true, false, 1, 3 },
    { 3e-4, 0.9, 0.95, 1e-8, 0, true, true, 0.125f, 1 },
    { 1e-3, 0.9, 0.999, 1e-8, 0.1, false, false, 0.3f, 1000 },
    { 1, 0.4, 0.9, 2, 0.5, false, true, 1, 2 },
    { 1, 0, 0.5, 1, 0.5, true, false, 3, 100000 },
    { 0.75, 0.9, 0.999, 3, 0, true, false, 1.5f, 100000 },
    { 0, 0.9, 0.999, 1e-8, 0.01, true, false, 1, 7 },
    { 1e-3, 0.9, 0.999, 0, 0.01, true, false, 1, 7 },
    { 1e6, 0.9, 0, 1e-30, 1e4, false, true, 1e-20f, 7 },
    { 0.75, 0.9, 0.999, 1e-8, 1.3333333333333333, true, false, 1, 100000 },
    { 1e-3, 0.9, 0.999, 1e-25, 0.01, true, false, 1, 100000 },
    { 1e-3, 1, 1, 1e-8, 0.01, true, false, 1e20f, 7 },
};

static void every_adam(const struct kernel_set *const *sets, size_t set_count)
{
    for (size_t h = 0; h < sizeof hypers / sizeof *hypers; h++) {
        const struct hyper *y = &hypers[h];
        const struct adam_op op = { .v_max = y->amsgrad ? want.v_max : NULL,
                                    .factor = y->factor,
                                    .k = adam_constants(y->lr, y->beta1, y->beta2, y->eps, y->decay,
                                                        y->decoupled, y->t) };

        fill(given.p, false);
        fill(given.m, false);
        fill(given.v, true);
        fill(given.v_max, true);
        fill(given.g, false);
        cancel(&op.k, op.factor);
        want = given;
        adam_reference(&want, &op);
        for (size_t s = 0; s < set_count; s++)
            run_adam(sets[s], op);
    }
}

static void sgd_reference(struct arrays *a, const struct sgd_op *op)
{
    for (size_t i = 0; i < COUNT; i++) {
        float g = a->g[i] * op->factor;

        if (op->weight_decay != 0)
            g = fmaf(a->p[i], op->weight_decay, g);
        if (op->buf && op->first)
            a->m[i] = g;
        else if (op->buf)
            a->m[i] = fmaf(g, op->one_minus_dampening, a->m[i] * op->momentum);
        if (op->buf)
            g = op->nesterov ? fmaf(a->m[i], op->momentum, g) : a->m[i];
        a->p[i] = fmaf(g, -op->lr, a->p[i]);
    }
}

static const struct sgd_op sgds[] = {
    { .factor = 1, .lr = 0.1f },
    { .factor = 0.5f,
      .lr = 0.1f,
      .weight_decay = 0.01f,
      .buf = have.m,
      .momentum = 0.9f,
      .one_minus_dampening = 1 },
    { .factor = 1,
      .lr = 0.5f,
      .weight_decay = 0.5f,
      .buf = have.m,
      .momentum = 0.75f,
      .one_minus_dampening = 0.5f,
      .nesterov = true },
    { .factor = 3,
      .lr = 0.3f,
      .buf = have.m,
      .momentum = 0.9f,
      .one_minus_dampening = 0.1f,
      .nesterov = true,
      .first = true },
};

static void every_sgd(const struct kernel_set *const *sets, size_t set_count)
{
    for (size_t k = 0; k < sizeof sgds / sizeof *sgds; k++) {
        struct sgd_op op = sgds[k];

        fill(given.p, false);
        fill(given.m, false);
        fill(given.g, false);
        want = given;
        sgd_reference(&want, &op);
        op.p = have.p;
        op.g = have.g;
        op.count = COUNT;
        for (size_t s = 0; s < set_count; s++) {
            have = given;
            sets[s]->sgd(&op);
            expect(sets[s]->name, "sgd p", have.p, want.p);
            expect(sets[s]->name, "sgd buf", have.m, want.m);
        }
    }
}

/* In [0, 2^28): what the lifted way is used for. */
static float draw_lifted(void)
{
    const uint64_t which = draw() % 3;
    const uint32_t most = which == 0 ? 1 : which == 1 ? 30 : 154;

    return float_of(magnitude(0, most) | (uint32_t)(draw() >> 63) << 31);
}

/* The lifted operations one by one, with addends that nearly cancel the product. */
static void lifted_is_plain(void)
{
    bool fma_ok = true, multiply_ok = true, divide_ok = true, sqrt_ok = true, there_and_back = true;

    for (int i = 0; i < 2000000; i++) {
        const float factor = float_of(magnitude(97, 127)), x = draw_lifted();
        const float up = lifted_from(x), by = float_of(magnitude(100, 140));
        float c = draw_lifted();

        if (i % 2 && fabsf(factor * x) > 0x1p-147f)
            c = float_of(bits_of(-factor * x) + (uint32_t)(draw() % 7) - 3u);
        there_and_back &= same(lifted_to(up), x) && up == ldexpf(x, 64);
        multiply_ok &= same(lifted_to(lifted_multiply(factor, up)), factor * x);
        fma_ok &= same(lifted_to(lifted_fma(factor, up, lifted_from(c))), fmaf(factor, x, c));
        fma_ok &= same(lifted_to(lifted_fma_positive(factor, fabsf(up), fabsf(lifted_from(c)))),
                       fmaf(factor, fabsf(x), fabsf(c)));
        divide_ok &= same(lifted_to(lifted_divide(up, by)), x / by);
        sqrt_ok &= same(lifted_sqrt(fabsf(up)), sqrtf(fabsf(x)));
    }
    CHECK(there_and_back);
    CHECK(multiply_ok);
    CHECK(fma_ok);
    CHECK(divide_ok);
    CHECK(sqrt_ok);
}

int main(void)
{
    const char *const names[] = { "scalar", "avx2", "avx512" };
    const struct kernel_set *sets[3];
    size_t set_count = 0;

    for (size_t i = 0; i < 3; i++) {
        const struct kernel_set *set = kernel_set_find(names[i], NULL);

        if (set)
            sets[set_count++] = set;
    }
    CHECK(set_count > 0);
    lifted_is_plain();
    for (int round = 0; round < ROUNDS; round++) {
        every_adam(sets, set_count);
        every_sgd(sets, set_count);
    }
    return check_done();
}
