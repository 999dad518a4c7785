/* SPDX-License-Identifier: MIT */
/* body.h: the kernels as loops the compiler vectorises. scalar.c, avx2.c and avx512.c include it,
 * each compiled for its instruction set, and make a table of it.
 *
 * Work goes in blocks that stay in the L1 cache, so memory is touched once.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    adam.h, sgd.h, convert.h, stream.h.   Used by scalar.c, avx2.c, avx512.c.
 */
#ifndef ZERO_KERNELS_CPU_BODY_H
#define ZERO_KERNELS_CPU_BODY_H

#include "kernels/cpu/adam.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/sgd.h"
#include "kernels/cpu/stream.h"

enum { SUM_BLOCK = 64, LANES = 8, CHUNKS_AT_ONCE = 4 };

/* ---- reduce ---- */

ELEMENT_FN void add_some(float *sum, const void *source, enum kernel_dtype dtype, size_t n)
{
    const uint16_t *half = source;
    const float *full = source;

    if (dtype == KERNEL_BF16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] += bf16_to_float(half[i]);
    } else if (dtype == KERNEL_FP16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] += fp16_to_float(half[i]);
    } else {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] += full[i];
    }
}

ELEMENT_FN void add_two(float *sum, const void *first, const void *second, enum kernel_dtype dtype,
                        size_t n)
{
    const uint16_t *half = first, *other_half = second;
    const float *full = first, *other_full = second;

    if (dtype == KERNEL_BF16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] = bf16_to_float(half[i]) + bf16_to_float(other_half[i]);
    } else if (dtype == KERNEL_FP16) {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] = fp16_to_float(half[i]) + fp16_to_float(other_half[i]);
    } else {
        EACH_ELEMENT
        for (size_t i = 0; i < n; i++)
            sum[i] = full[i] + other_full[i];
    }
}

/* The sums of n elements from `at` on; where they accumulate, sum holds what was there. */
ELEMENT_FN void sum_some(float *sum, const struct reduce_op *op, size_t at, size_t n)
{
    const size_t from = at * (op->dtype == KERNEL_FP32 ? sizeof(float) : sizeof(uint16_t));
    const char *first = (const char *)op->sources[0] + from;
    uint32_t source = 0;

    if (!op->accumulate && op->source_count > 1)
        add_two(sum, first, (const char *)op->sources[1] + from, op->dtype, n);
    else if (!op->accumulate)
        widen_some(sum, first, op->dtype, n);
    if (!op->accumulate)
        source = op->source_count > 1 ? 2 : 1;
    for (; source < op->source_count; source++)
        add_some(sum, (const char *)op->sources[source] + from, op->dtype, n);
}

/* ---- squares ---- */

/* What a chunk's squares come to, lane by lane. A product of two floats is exact in double. */
ELEMENT_FN void square_some(double *lane, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        EACH_ELEMENT
    for (size_t j = 0; j < LANES; j++) {
        const double one = (double)x[i + j];

        lane[j] += one * one;
    }
}

ELEMENT_FN double lanes_sum(const double *s)
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

ELEMENT_FN void prefetch_block(const struct reduce_op *op, size_t at, size_t n)
{
    const size_t width = op->dtype == KERNEL_FP32 ? sizeof(float) : sizeof(uint16_t);

    for (uint32_t source = 0; source < op->source_count; source++)
        prefetch_some((const char *)op->sources[source] + at * width, n * width);
}

/* Memory is touched once: a block stays in registers or L1 while the sources pass, and for its
 * squares. */
ELEMENT_FN void reduce_run(const struct reduce_op *op, bool stream)
{
    _Alignas(STREAM_LINE) float passing[SUM_BLOCK];
    double lane[LANES] = { 0 };
    size_t at = 0;

    for (; at + SUM_BLOCK <= op->count; at += SUM_BLOCK) {
        float *sum = stream ? passing : op->sum + at;

        prefetch_block(op, at, SUM_BLOCK);
        sum_some(sum, op, at, SUM_BLOCK);
        if (stream)
            stream_lines(op->sum + at, passing, sizeof passing);
        if (op->squares == NULL)
            continue;
        square_some(lane, sum, SUM_BLOCK);
        if ((at + SUM_BLOCK) % KERNEL_NORM_CHUNK == 0) {
            op->squares[at / KERNEL_NORM_CHUNK] = lanes_sum(lane);
            memset(lane, 0, sizeof lane);
        }
    }
    if (at < op->count)
        sum_some(op->sum + at, op, at, op->count - at);
    if (stream)
        stream_end();
}

static void reduce(const struct reduce_op *op)
{
    if (!op->accumulate && stream_possible(op->sum))
        reduce_run(op, true);
    else
        reduce_run(op, false);
}

/* ---- norm ---- */

/* Chunks side by side: one chain of additions would wait for itself. A product of two floats is
 * exact in double. */
ELEMENT_FN void square_sum_some(const float *x, size_t chunks, double *out)
{
    double lane[CHUNKS_AT_ONCE][LANES] = { { 0 } };

    for (size_t i = 0; i < KERNEL_NORM_CHUNK; i += LANES)
        for (size_t c = 0; c < chunks; c++)
            EACH_ELEMENT
    for (size_t j = 0; j < LANES; j++) {
        const double one = (double)x[c * KERNEL_NORM_CHUNK + i + j];

        lane[c][j] += one * one;
    }
    for (size_t c = 0; c < chunks; c++) {
        const double *s = lane[c];

        out[c] = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    }
}

static void square_sum(const float *x, size_t chunk_count, double *out)
{
    size_t c = 0;

    for (; c + CHUNKS_AT_ONCE <= chunk_count; c += CHUNKS_AT_ONCE)
        square_sum_some(x + c * KERNEL_NORM_CHUNK, CHUNKS_AT_ONCE, out + c);
    for (; c < chunk_count; c++)
        square_sum_some(x + c * KERNEL_NORM_CHUNK, 1, out + c);
}

#define KERNEL_TABLE(text)                                                                      \
    {                                                                                           \
        .name = (text), .usable = usable, .reduce = reduce, .square_sum = square_sum,           \
        .adam = adam, .sgd = sgd, .narrow = narrow_all, .widen = widen_all, .copy = stream_copy \
    }

#endif
