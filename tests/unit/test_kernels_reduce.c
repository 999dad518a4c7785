/* SPDX-License-Identifier: MIT */
/* Every kernel set gives the sums of plain loops and, in the same pass, the squares of the plain
 * sum of squares, wherever the arrays lie, and its copy writes the bytes it is told and no other.
 */
#include "kernels/kernel_set.h"
#include "tests/unit/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { CHUNKS = 5, COUNT = CHUNKS * KERNEL_NORM_CHUNK, SOURCES = 5, GUARD = 64, WIDE = 4 };
enum { BYTES = (COUNT + GUARD) * WIDE };

static uint64_t state = 7;

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

/* Sign, five bits of exponent, ten of fraction. */
static float half_value(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    float x;

    if (exponent == 31)
        x = fraction ? NAN : INFINITY;
    else
        x = exponent ? ldexpf((float)(1024 + fraction), exponent - 25)
                     : ldexpf((float)fraction, -24);
    return h >> 15 ? -x : x;
}

static float value_at(const void *source, enum kernel_dtype dtype, size_t i)
{
    uint16_t half;
    float full;

    if (dtype == KERNEL_FP32) {
        memcpy(&full, (const char *)source + i * sizeof full, sizeof full);
        return full;
    }
    memcpy(&half, (const char *)source + i * sizeof half, sizeof half);
    return dtype == KERNEL_BF16 ? float_of((uint32_t)half << 16) : half_value(half);
}

static bool same(const void *have, const void *want, bool nan, size_t bytes)
{
    return nan || memcmp(have, want, bytes) == 0;
}

/* As they were declared to be: eight lanes of doubles from left to right, then in pairs. */
static double squares_of(const float *x)
{
    double lane[8] = { 0 };

    for (size_t i = 0; i < KERNEL_NORM_CHUNK; i++)
        lane[i % 8] += (double)x[i] * (double)x[i];
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

struct arrays {
    _Alignas(64) unsigned char source[SOURCES][BYTES];
    _Alignas(64) float sum[COUNT + GUARD];
    float before[COUNT + GUARD], want[COUNT];
    double squares[CHUNKS + 1];
};

static struct arrays a;

/* Mostly usual numbers, so that sums stay finite in most chunks; elsewhere any bits at all. */
static void fill(enum kernel_dtype dtype)
{
    const size_t width = dtype == KERNEL_FP32 ? 4 : 2;

    for (size_t s = 0; s < SOURCES; s++)
        for (size_t i = 0; i < BYTES / width; i++) {
            const bool any = i / KERNEL_NORM_CHUNK == 3;
            const uint64_t r = draw();
            const uint32_t full = (uint32_t)r & (any ? UINT32_MAX : 0xbfffffffu);
            const uint16_t half = (uint16_t)(full >> 16);

            if (dtype == KERNEL_FP32)
                memcpy(a.source[s] + i * width, &full, width);
            else
                memcpy(a.source[s] + i * width, &half, width);
        }
    for (size_t i = 0; i < COUNT + GUARD; i++)
        a.before[i] = float_of((uint32_t)draw() & 0xbfffffffu);
}

/* What one call must leave: sums, squares, and everything around them as it was. */
static bool as_declared(const struct reduce_op *op, size_t shift)
{
    const size_t chunks = op->squares ? op->count / KERNEL_NORM_CHUNK : 0;
    bool ok = true;

    for (size_t i = 0; i < op->count; i++) {
        uint32_t s = op->accumulate ? 0 : 1;
        float sum = op->accumulate ? a.before[shift + i] : value_at(op->sources[0], op->dtype, i);

        for (; s < op->source_count; s++)
            sum += value_at(op->sources[s], op->dtype, i);
        a.want[i] = sum;
        ok &= same(&op->sum[i], &sum, isnan(sum) && isnan(op->sum[i]), sizeof sum);
    }
    for (size_t i = 0; i < COUNT + GUARD; i++)
        if (i < shift || i >= shift + op->count)
            ok &= same(&a.sum[i], &a.before[i], false, sizeof(float));
    for (size_t c = 0; c <= CHUNKS; c++) {
        const double want = c < chunks ? squares_of(a.want + c * KERNEL_NORM_CHUNK) : -1;

        ok &= same(&a.squares[c], &want, isnan(want) && isnan(a.squares[c]), sizeof want);
    }
    return ok;
}

static bool reduces(const struct kernel_set *set, struct reduce_op op, size_t shift)
{
    const void *sources[SOURCES];

    for (size_t s = 0; s < SOURCES; s++)
        sources[s] = a.source[s] + (shift * s % 7) * (op.dtype == KERNEL_FP32 ? 4 : 2);
    memcpy(a.sum, a.before, sizeof a.sum);
    for (size_t c = 0; c <= CHUNKS; c++)
        a.squares[c] = -1;
    op.sum = a.sum + shift;
    op.sources = sources;
    set->reduce(&op);
    if (as_declared(&op, shift))
        return true;
    fprintf(stderr, "%s: dtype %d, %u sources, %zu elements, shift %zu%s%s\n", set->name,
            (int)op.dtype, op.source_count, op.count, shift, op.accumulate ? ", accumulating" : "",
            op.squares ? ", squares" : "");
    return false;
}

static void every_reduce(const struct kernel_set *set, enum kernel_dtype dtype)
{
    static const size_t counts[] = { COUNT, KERNEL_NORM_CHUNK, COUNT - 1, 65, 64, 63, 1, 0 };
    static const size_t shifts[] = { 0, 16, 1, 8, 13 };

    fill(dtype);
    for (uint32_t many = 1; many <= SOURCES; many++)
        for (size_t i = 0; i < 2 * sizeof counts / sizeof *counts; i++)
            for (size_t k = 0; k < sizeof shifts / sizeof *shifts; k++) {
                struct reduce_op op = { .source_count = many,
                                        .dtype = dtype,
                                        .count = counts[i / 2],
                                        .accumulate = i % 2 };

                CHECK(reduces(set, op, shifts[k]));
                op.squares = a.squares;
                if (op.count % KERNEL_NORM_CHUNK == 0)
                    CHECK(reduces(set, op, shifts[k]));
            }
}

static bool copies(const struct kernel_set *set, size_t to, size_t from, size_t bytes)
{
    unsigned char *have = a.source[0], *want = a.source[1], *out_of = a.source[2];

    memset(have, 0xa5, BYTES);
    memset(want, 0xa5, BYTES);
    memcpy(want + to, out_of + from, bytes);
    set->copy(have + to, out_of + from, bytes);
    return memcmp(have, want, BYTES) == 0;
}

static void every_copy(const struct kernel_set *set)
{
    static const size_t sizes[] = { 0, 1, 63, 64, 65, 127, 128, 4096, BYTES - 200 };
    bool ok = true;

    fill(KERNEL_FP32);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t to = 0; to < 130; to += 3)
            for (size_t from = 0; from < 130; from += 13)
                ok &= copies(set, to, from, sizes[i]);
    CHECK(ok);
}

int main(void)
{
    const char *const names[] = { "scalar", "avx2", "avx512" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kernel_set *set = kernel_set_find(names[i], NULL);

        if (set == NULL)
            continue;
        for (int dtype = KERNEL_FP32; dtype <= KERNEL_FP16; dtype++)
            every_reduce(set, (enum kernel_dtype)dtype);
        every_copy(set);
    }
    return check_done();
}
