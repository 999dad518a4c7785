/* SPDX-License-Identifier: MIT */
/* body.h: the kernels as loops the compiler vectorises. scalar.c, avx2.c and avx512.c include it,
 * each compiled for its instruction set, and make a table of it.
 *
 * Work goes in blocks that stay in the L1 cache, so memory is touched once.
 *
 * Owns    nothing.
 * Thread  any number at once on disjoint outputs.
 * Fails   never.
 * Uses    adam.h, sgd.h, convert.h.   Used by scalar.c, avx2.c, avx512.c.
 */
#ifndef ZERO_KERNELS_CPU_BODY_H
#define ZERO_KERNELS_CPU_BODY_H

#include "kernels/cpu/adam.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/sgd.h"

enum { SUM_BLOCK = 512, LANES = 8, CHUNKS_AT_ONCE = 4 };

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

/* Memory is touched once: the sum of a block stays in L1 while the sources pass. */
static void reduce(const struct reduce_op *op)
{
    const size_t width = op->dtype == KERNEL_FP32 ? sizeof(float) : sizeof(uint16_t);

    for (size_t at = 0; at < op->count; at += SUM_BLOCK) {
        const size_t n = op->count - at < SUM_BLOCK ? op->count - at : SUM_BLOCK;
        float *sum = op->sum + at;
        uint32_t source = 0;

        if (!op->accumulate)
            widen_all(sum, (const char *)op->sources[source++] + at * width, op->dtype, n);
        for (; source < op->source_count; source++)
            add_some(sum, (const char *)op->sources[source] + at * width, op->dtype, n);
    }
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

#define KERNEL_TABLE(text)                                                            \
    {                                                                                 \
        .name = (text), .usable = usable, .reduce = reduce, .square_sum = square_sum, \
        .adam = adam, .sgd = sgd, .narrow = narrow_all, .widen = widen_all            \
    }

#endif
