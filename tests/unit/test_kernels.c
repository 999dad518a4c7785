/* SPDX-License-Identifier: MIT */
/* Every kernel set gives the known answers: AdamW's vector, PyTorch's own steps, the conversion
 * tables, sums and norms in their written order. */
#include "kernels/kernel_set.h"
#include "tests/data/torch_steps.h"
#include "tests/unit/check.h"

#include <inttypes.h>
#include <math.h>
#ifdef __SSE2__
#include <xmmintrin.h>
#endif

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

static bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static void expect(const char *set, const char *what, const float *have, const uint32_t *want,
                   size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (bits_of(have[i]) == want[i])
            continue;
        fprintf(stderr, "%s: %s: element %zu is %08" PRIx32 ", not %08" PRIx32 "\n", set, what, i,
                bits_of(have[i]), want[i]);
        CHECK(false);
    }
}

/* Equal to PyTorch 1.13 in the lerp form and to exact rational arithmetic. v of the last element
 * is a denormal after the first step: FTZ or DAZ would lose it. */
static void adamw_vector(const struct kernel_set *set)
{
    static const float start[6] = { 1, -.5f, .25f, 1e-3f, 0, 3 };
    static const float g[3][6] = { { .1f, -.2f, .3f, 1e-4f, 0, -1e-20f },
                                   { -.05f, -.2f, .01f, 1e-4f, 0, 2 },
                                   { .7f, .125f, -.3f, -1e-4f, 1e-30f, 2 } };
    static const uint32_t p_want[3][6] = {
        { 0x3f7fbdcf, 0xbeff7c46, 0x3e7ef933, 0x33c18000, 0x00000000, 0x403fff82 },
        { 0x3f7fabb3, 0xbefef88c, 0x3e7e427e, 0xba830c0e, 0x00000000, 0x403ff2d3 },
        { 0x3f7f7f93, 0xbefebd1a, 0x3e7e54ca, 0xbaa561da, 0x9536b8c6, 0x403fe444 }
    };
    static const uint32_t m_want[6] = { 0x3d96bb99, 0xbcb1c434, 0xbb9d4953,
                                        0x36ee3c88, 0x0c01ceb3, 0x3ec28f5c };
    static const uint32_t v_want[6] = { 0x3a03b8b2, 0x38c849e2, 0x393ca8e9,
                                        0x2e03cf3b, 0x00000000, 0x3c0301a8 };
    float p[6], m[6] = { 0 }, v[6] = { 0 };

    memcpy(p, start, sizeof p);
    for (uint64_t t = 1; t <= 3; t++) {
        const struct adam_op op = { .p = p,
                                    .m = m,
                                    .v = v,
                                    .g = g[t - 1],
                                    .count = 6,
                                    .factor = 1,
                                    .k = adam_constants(1e-3, .9, .999, 1e-8, .01, true, t) };

        set->adam(&op);
        expect(set->name, "AdamW p", p, p_want[t - 1], 6);
        if (t == 1)
            CHECK(bits_of(v[5]) == 0x00000047);
    }
    expect(set->name, "AdamW m", m, m_want, 6);
    expect(set->name, "AdamW v", v, v_want, 6);
}

struct torch_run {
    float p[TORCH_COUNT], g[TORCH_COUNT], state[3][TORCH_COUNT];
};

static void torch_adam_step(const struct kernel_set *set, const struct torch_case *c,
                            struct torch_run *r, uint64_t t)
{
    const struct adam_op op = { .p = r->p,
                                .m = r->state[0],
                                .v = r->state[1],
                                .v_max = c->amsgrad ? r->state[2] : NULL,
                                .g = r->g,
                                .count = TORCH_COUNT,
                                .factor = 1,
                                .k = adam_constants(c->lr, c->beta1, c->beta2, c->eps,
                                                    c->weight_decay, c->decoupled, t) };

    set->adam(&op);
}

static void torch_sgd_step(const struct kernel_set *set, const struct torch_case *c,
                           struct torch_run *r, uint64_t t)
{
    const struct sgd_op op = { .p = r->p,
                               .buf = c->momentum > 0 ? r->state[0] : NULL,
                               .g = r->g,
                               .count = TORCH_COUNT,
                               .factor = 1,
                               .lr = (float)c->lr,
                               .weight_decay = (float)c->weight_decay,
                               .momentum = (float)c->momentum,
                               .one_minus_dampening = (float)(1 - c->dampening),
                               .nesterov = c->nesterov,
                               .first = t == 1 };

    set->sgd(&op);
}

static void torch_steps(const struct kernel_set *set, const struct torch_case *c)
{
    struct torch_run r = { 0 };

    memcpy(r.p, torch_start, sizeof r.p);
    for (uint64_t t = 1; t <= TORCH_STEPS; t++) {
        memcpy(r.g, torch_gradients[t - 1], sizeof r.g);
        if (c->sgd)
            torch_sgd_step(set, c, &r, t);
        else
            torch_adam_step(set, c, &r, t);
    }
    expect(set->name, c->name, r.p, c->p, TORCH_COUNT);
    for (int i = 0; i < 3; i++)
        expect(set->name, c->name, r.state[i], c->state[i], TORCH_COUNT);
}

struct conversion {
    uint32_t from;
    uint16_t to;
};

static const struct conversion to_bf16[] = {
    { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 }, { 0x00400000, 0x0040 },
    { 0x007fffff, 0x0080 }, { 0x00000001, 0x0000 }, { 0x00800000, 0x0080 }, { 0x7f7f7fff, 0x7f7f },
    { 0x7f7f8000, 0x7f80 }, { 0x7f7fffff, 0x7f80 }, { 0x7f800001, 0x7fc0 }, { 0xffc00001, 0x7fc0 },
    { 0x7f800000, 0x7f80 }, { 0xff800000, 0xff80 }, { 0x80000000, 0x8000 }, { 0xffffffff, 0x7fc0 },
};

/* 6e-8; 2^-25, a tie; just above it; 65519.99; 65520; the smallest normal and what rounds up to it;
 * a tie to odd; infinities, zeros and NaN. */
static const struct conversion to_fp16[] = {
    { 0x3380d959, 0x0001 }, { 0x33000000, 0x0000 }, { 0x33000347, 0x0001 }, { 0x477feffd, 0x7bff },
    { 0x477ff000, 0x7c00 }, { 0x38800000, 0x0400 }, { 0x387fffff, 0x0400 }, { 0x3f803000, 0x3c02 },
    { 0x7f800000, 0x7c00 }, { 0xff800000, 0xfc00 }, { 0x80000000, 0x8000 }, { 0xc0490fdb, 0xc248 },
    { 0x7fc00000, 0x7e00 }, { 0xff800001, 0x7e00 }, { 0x00000001, 0x0000 }, { 0xb3c00000, 0x8002 },
};

static void narrow_table(const struct kernel_set *set, enum kernel_dtype dtype,
                         const struct conversion *table)
{
    float from[16];
    uint16_t to[16];

    for (int i = 0; i < 16; i++)
        from[i] = float_of(table[i].from);
    set->narrow(to, dtype, from, 16);
    for (int i = 0; i < 16; i++) {
        if (to[i] != table[i].to)
            fprintf(stderr, "%s: %08" PRIx32 " became %04x\n", set->name, table[i].from, to[i]);
        CHECK(to[i] == table[i].to);
    }
}

/* By ldexp, from the fields of the format. */
static float half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, mantissa = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;

    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexpf((float)mantissa, -24);
    return sign * ldexpf((float)(mantissa + 1024), exponent - 25);
}

static void every_half(const struct kernel_set *set)
{
    static uint16_t half[65536], back[65536];
    static float wide[65536];
    bool exact = true, returns = true;

    for (uint32_t i = 0; i < 65536; i++)
        half[i] = (uint16_t)i;
    set->widen(wide, half, KERNEL_FP16, 65536);
    set->narrow(back, KERNEL_FP16, wide, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        const float want = half_value((uint16_t)i);

        exact &= isnan(want) ? isnan(wide[i]) : bits_of(wide[i]) == bits_of(want);
        returns &= back[i] == (isnan(want) ? 0x7e00 : i);
    }
    CHECK(exact);
    CHECK(returns);
    set->widen(wide, half, KERNEL_BF16, 65536);
    set->narrow(back, KERNEL_BF16, wide, 65536);
    exact = returns = true;
    for (uint32_t i = 0; i < 65536; i++) {
        exact &= bits_of(wide[i]) == i << 16;
        returns &= back[i] == (isnan(float_of(i << 16)) ? 0x7fc0 : i);
    }
    CHECK(exact);
    CHECK(returns);
}

/* Halfway between neighbours goes to the even one, a little less or more to the nearer. */
static void fp16_between(const struct kernel_set *set)
{
    bool nearest = true;

    for (uint32_t h = 0; h < 0x7bff; h++) {
        const float low = half_value((uint16_t)h), high = half_value((uint16_t)(h + 1));
        const float middle = low / 2 + high / 2;
        const float from[3] = { nextafterf(middle, 0), middle, nextafterf(middle, INFINITY) };
        uint16_t to[3];

        set->narrow(to, KERNEL_FP16, from, 3);
        nearest &= to[0] == h && to[1] == h + (h & 1) && to[2] == h + 1;
    }
    CHECK(nearest);
}

enum { SUMS = 1000, SOURCES = 5 };

static void sums(const struct kernel_set *set, enum kernel_dtype dtype)
{
    static float wide[SOURCES][SUMS], sum[SUMS], want[SUMS];
    static uint16_t half[SOURCES][SUMS];
    const void *from[SOURCES];
    uint32_t random = 1;

    for (int s = 0; s < SOURCES; s++) {
        for (int i = 0; i < SUMS; i++) {
            random = random * 1664525u + 1013904223u;
            wide[s][i] = ldexpf((float)(int32_t)random, -31 - (int)(random >> 8) % 12);
        }
        from[s] = wide[s];
        if (dtype != KERNEL_FP32) {
            set->narrow(half[s], dtype, wide[s], SUMS);
            set->widen(wide[s], half[s], dtype, SUMS);
            from[s] = half[s];
        }
    }
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        const struct reduce_op op = { .sum = sum,
                                      .sources = from,
                                      .source_count = SOURCES,
                                      .dtype = dtype,
                                      .count = SUMS,
                                      .accumulate = accumulate != 0 };

        for (int i = 0; i < SUMS; i++) {
            float x = accumulate ? sum[i] + wide[0][i] : wide[0][i];

            for (int s = 1; s < SOURCES; s++)
                x += wide[s][i];
            want[i] = x;
        }
        set->reduce(&op);
        CHECK(same_bits(sum, want, sizeof sum));
    }
}

/* A source of -0 stays -0, as nothing is added to it. */
static void one_source(const struct kernel_set *set)
{
    const float from[3] = { -0.0f, 1, float_of(1) };
    const void *sources[1] = { from };
    float sum[3] = { 7, 7, 7 };
    const struct reduce_op op = { .sum = sum, .sources = sources, .source_count = 1, .count = 3 };

    set->reduce(&op);
    CHECK(same_bits(sum, from, sizeof sum));
}

static void norms(const struct kernel_set *set)
{
    enum { CHUNKS = 7 };
    static float x[CHUNKS * KERNEL_NORM_CHUNK];
    double out[CHUNKS], want[CHUNKS];
    uint32_t random = 3;

    for (int i = 0; i < CHUNKS * KERNEL_NORM_CHUNK; i++) {
        random = random * 1664525u + 1013904223u;
        x[i] = float_of(random & 0xbfffffffu);
    }
    x[(size_t)3 * KERNEL_NORM_CHUNK] = 3e38f;
    for (size_t c = 0; c < CHUNKS; c++) {
        double s[8] = { 0 };

        for (size_t i = 0; i < KERNEL_NORM_CHUNK; i++)
            s[i % 8] += pow(x[c * KERNEL_NORM_CHUNK + i], 2);
        want[c] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
    set->square_sum(x, CHUNKS, out);
    CHECK(same_bits(out, want, sizeof out));
    x[KERNEL_NORM_CHUNK + 17] = NAN;
    x[KERNEL_NORM_CHUNK + 1023] = INFINITY;
    x[(size_t)6 * KERNEL_NORM_CHUNK + 5] = -INFINITY;
    set->square_sum(x, CHUNKS, out);
    for (size_t c = 0; c < CHUNKS; c++)
        CHECK((isfinite(out[c]) != 0) == (c != 1 && c != 6));
}

/* Each kind of copy the update makes, against the parameters it leaves; factor 0.5 on twice the
 * gradient changes nothing. */
static void copies(const struct kernel_set *set)
{
    enum { N = 200 };
    static const enum kernel_dtype dtypes[] = { KERNEL_FP32, KERNEL_BF16, KERNEL_FP16 };
    float first[N];

    for (int d = 0; d < 3; d++) {
        float p[N], m[N] = { 0 }, v[N] = { 0 }, g[N];
        uint32_t narrow[N], want[N] = { 0 };
        const struct adam_op op = { .p = p,
                                    .m = m,
                                    .v = v,
                                    .g = g,
                                    .narrow = narrow,
                                    .narrow_dtype = dtypes[d],
                                    .count = N,
                                    .factor = d ? 0.5f : 1.0f,
                                    .k = adam_constants(.1, .9, .999, 1e-8, 0, true, 1) };
        const size_t bytes = d ? N * sizeof(uint16_t) : N * sizeof(float);

        for (int i = 0; i < N; i++) {
            p[i] = (float)i * 0.01f;
            g[i] = (float)(i - 100) * (d ? 2e-3f : 1e-3f);
        }
        set->adam(&op);
        set->narrow(want, dtypes[d], p, N);
        CHECK(same_bits(narrow, want, bytes));
        if (d == 0)
            memcpy(first, p, sizeof first);
        CHECK(same_bits(first, p, sizeof first));
    }
}

/* What lr_scale 0 promises: parameters stay, moments go on. */
static void rate_of_zero(const struct kernel_set *set)
{
    static const float start[5] = { 1, -.5f, 3e-39f, 0, 1e30f }, g[5] = { 1, -2, .5f, 4, -1e30f };

    for (int kind = 0; kind < 3; kind++) {
        float p[5], m[5] = { 0 }, v[5] = { 0 };
        memcpy(p, start, sizeof p);
        for (uint64_t t = 1; t <= 3; t++) {
            const struct adam_op adam = { .p = p,
                                          .m = m,
                                          .v = v,
                                          .g = g,
                                          .count = 5,
                                          .factor = .5f,
                                          .k = adam_constants(0, .9, .999, 1e-8, .1,
                                                              /* decoupled= */ kind == 0, t) };
            const struct sgd_op sgd = { .p = p,
                                        .buf = m,
                                        .g = g,
                                        .count = 5,
                                        .factor = .5f,
                                        .weight_decay = .1f,
                                        .momentum = .9f,
                                        .one_minus_dampening = 1,
                                        .first = t == 1 };
            if (kind < 2)
                set->adam(&adam);
            else
                set->sgd(&sgd);
        }
        CHECK(same_bits(p, start, sizeof p));
        CHECK(fabsf(m[0]) > 0 && fabsf(m[4]) > 0);
    }
}

static void nothing_to_do(const struct kernel_set *set)
{
    const struct adam_op adam = { .factor = 1, .k = adam_constants(1, .9, .9, 1, 0, true, 1) };
    const struct sgd_op sgd = { .factor = 1 };
    const void *sources[1] = { NULL };
    const struct reduce_op reduce = { .sources = sources, .source_count = 1 };

    set->adam(&adam);
    set->sgd(&sgd);
    set->reduce(&reduce);
    set->square_sum(NULL, 0, NULL);
    set->narrow(NULL, KERNEL_FP32, NULL, 0);
    set->widen(NULL, NULL, KERNEL_FP32, 0);
}

static void finding(void)
{
    const char *names = NULL;
    const struct kernel_set *best = kernel_set_find(NULL, &names);

    CHECK(best && best->usable());
    CHECK_CONTAINS(names, "scalar");
    CHECK_CONTAINS(names, best->name);
    CHECK(kernel_set_find(best->name, NULL) == best);
    CHECK(kernel_set_find("scalar", NULL) == &kernels_scalar);
    CHECK(kernel_set_find("avx1024", &names) == NULL);
    CHECK(kernel_set_find("", &names) == NULL);
}

static void float_mode(void)
{
    CHECK(kernel_float_mode_ok());
#ifdef __SSE2__
    static const unsigned int wrong[] = { 0x8000, 0x0040, 0x8040, 0x2000, 0x4000, 0x6000 };
    const unsigned int right = _mm_getcsr();

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        _mm_setcsr(right | wrong[i]);
        const bool ok = kernel_float_mode_ok();

        _mm_setcsr(right);
        CHECK(!ok);
    }
    CHECK(kernel_float_mode_ok());
#endif
}

static void known_answers(const struct kernel_set *set)
{
    adamw_vector(set);
    for (size_t i = 0; i < sizeof torch_cases / sizeof *torch_cases; i++)
        torch_steps(set, &torch_cases[i]);
    narrow_table(set, KERNEL_BF16, to_bf16);
    narrow_table(set, KERNEL_FP16, to_fp16);
    every_half(set);
    fp16_between(set);
    sums(set, KERNEL_FP32);
    sums(set, KERNEL_BF16);
    sums(set, KERNEL_FP16);
    one_source(set);
    norms(set);
    copies(set);
    nothing_to_do(set);
    rate_of_zero(set);
}

int main(void)
{
    static const char *const names[] = { "scalar", "avx2", "avx512" };

    for (int i = 0; i < 3; i++) {
        const struct kernel_set *set = kernel_set_find(names[i], NULL);

        if (set)
            known_answers(set);
        else
            fprintf(stderr, "%s cannot run here: left out\n", names[i]);
    }
    finding();
    float_mode();
    return check_done();
}
