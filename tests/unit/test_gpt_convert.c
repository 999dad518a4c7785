/* SPDX-License-Identifier: MIT */
/* The example's 16-bit formats are exact when widened, and rounded to nearest even when narrowed.
 *
 * bf16: bit patterns computed with exact arithmetic. fp16: what vcvtps2ph gives.
 */
#include <math.h>

#include "client/examples/convert.h"
#include "tests/unit/check.h"

static uint16_t narrow(uint32_t bits, zero_dtype dtype)
{
    float value;
    uint16_t half;

    memcpy(&value, &bits, sizeof value);
    convert_from_float(&half, &value, dtype, 1);
    return half;
}

static uint16_t fp16(double value)
{
    const float f = (float)value;
    uint16_t half;

    convert_from_float(&half, &f, ZERO_FP16, 1);
    return half;
}

static void test_bf16(void)
{
    static const uint32_t want[][2] = {
        { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 }, { 0x3f808001, 0x3f81 },
        { 0x00400000, 0x0040 }, { 0x007fffff, 0x0080 }, { 0x00000001, 0x0000 },
        { 0x00800000, 0x0080 }, { 0x7f7f7fff, 0x7f7f }, { 0x7f7f8000, 0x7f80 },
        { 0x7f7fffff, 0x7f80 }, { 0xff800000, 0xff80 }, { 0x80000000, 0x8000 },
    };

    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        CHECK(narrow(want[i][0], ZERO_BF16) == want[i][1]);
    CHECK((narrow(0x7f800001, ZERO_BF16) & 0x7fff) > 0x7f80);
    CHECK((narrow(0xffc00001, ZERO_BF16) & 0x7fff) > 0x7f80);
}

static void test_fp16(void)
{
    CHECK(fp16(6e-8) == 0x0001);
    CHECK(fp16(0x1p-25) == 0x0000);
    CHECK(fp16(0x1p-25 * 1.0001) == 0x0001);
    CHECK(fp16(0x3p-25) == 0x0002);
    CHECK(fp16(65519.99) == 0x7bff);
    CHECK(fp16(65520) == 0x7c00);
    CHECK(fp16(-1e9) == 0xfc00);
    CHECK(fp16(1 + 0x1p-11) == 0x3c00);
    CHECK(fp16(1 + 0x3p-11) == 0x3c02);
    CHECK(fp16(-0x1p-14) == 0x8400);
    CHECK(narrow(0x38800000 - 1, ZERO_FP16) == 0x0400);
    CHECK((narrow(0x7f800001, ZERO_FP16) & 0x7fff) > 0x7c00);
}

/* The value of a finite fp16 pattern, from its definition. */
static double fp16_value(unsigned pattern)
{
    const unsigned exponent = pattern >> 10 & 31, fraction = pattern & 1023;
    const double size =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, (int)exponent - 25);

    return (pattern & 0x8000) != 0 ? -size : size;
}

/* All patterns: widened as defined, and back to what they were. */
static void test_round_trip(zero_dtype dtype, unsigned infinity)
{
    for (unsigned pattern = 0; pattern < 65536; pattern++) {
        const uint16_t half = (uint16_t)pattern;
        uint16_t back;
        float value;
        convert_to_float(&value, &half, dtype, 1);
        convert_from_float(&back, &value, dtype, 1);
        if ((pattern & 0x7fff) > infinity) {
            CHECK(isnan(value) && (back & 0x7fffu) > infinity);
            continue;
        }
        CHECK(back == half);
        CHECK((pattern & 0x7fff) != infinity || isinf(value));
        if (dtype == ZERO_FP16 && (pattern & 0x7fff) != infinity)
            CHECK((double)value == fp16_value(pattern));
    }
}

int main(void)
{
    test_bf16();
    test_fp16();
    test_round_trip(ZERO_BF16, 0x7f80);
    test_round_trip(ZERO_FP16, 0x7c00);
    return check_done();
}
