/* SPDX-License-Identifier: MIT */
#include "client/examples/convert.h"

#include <stdbool.h>
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* bf16 is the upper half of fp32. */
static float from_bf16(uint16_t half)
{
    return float_of((uint32_t)half << 16);
}

static uint16_t to_bf16(float value)
{
    const uint32_t bits = bits_of(value), nearest = bits + 0x7fff + (bits >> 16 & 1);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;

    return (uint16_t)((nan ? bits | 0x400000 : nearest) >> 16);
}

/* fp16 has 5 bits of exponent with a bias of 15, fp32 has 8 with 127. Multiplying by a power of two
 * moves the exponent, denormals included. */
static float from_fp16(uint16_t half)
{
    const uint32_t sign = (half & 0x8000u) << 16, rest = (half & 0x7fffu) << 13;
    const bool finite = (half & 0x7c00) != 0x7c00;

    return float_of(sign | (finite ? bits_of(float_of(rest) * 0x1p112f) : rest | 0x7f800000));
}

static uint16_t to_fp16(float value)
{
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    uint32_t half;

    if (size > 0x7f800000)
        half = 0x7e00;
    else if (size >= 0x477ff000) /* 65520 and more round to infinity */
        half = 0x7c00;
    else if (size < 0x38800000) /* below 2^-14: adding 1/2 leaves multiples of 2^-24, rounded */
        half = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    else
        half = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    return (uint16_t)(sign | half);
}

void convert_to_float(float *restrict out, const void *restrict from, zero_dtype dtype,
                      size_t count)
{
    const uint16_t *half = from;

    if (dtype == ZERO_FP32)
        memcpy(out, from, count * sizeof *out);
    for (size_t i = 0; dtype == ZERO_BF16 && i < count; i++)
        out[i] = from_bf16(half[i]);
    for (size_t i = 0; dtype == ZERO_FP16 && i < count; i++)
        out[i] = from_fp16(half[i]);
}

void convert_from_float(void *restrict out, const float *restrict from, zero_dtype dtype,
                        size_t count)
{
    uint16_t *half = out;

    if (dtype == ZERO_FP32)
        memcpy(out, from, count * sizeof *from);
    for (size_t i = 0; dtype == ZERO_BF16 && i < count; i++)
        half[i] = to_bf16(from[i]);
    for (size_t i = 0; dtype == ZERO_FP16 && i < count; i++)
        half[i] = to_fp16(from[i]);
}
