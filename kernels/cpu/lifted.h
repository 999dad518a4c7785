/* SPDX-License-Identifier: MIT */
/* lifted.h: IEEE fp32 arithmetic on values so small that the hardware would take a microcode assist
 * (about 100 cycles) for every multiplication, fma, division or root that meets a denormal.
 *
 * A value is carried as itself times 2^64, in a float: the smallest denormal is then 2^-85, and
 * what is normal, up to 2^60, still fits. fp32 rounds to multiples of 2^-149 below 2^-126, so here
 * to multiples of 2^-85 (the grid) below 2^-62. Adding a number whose last place is 2^-85 and
 * taking it away again does that; to round once only, it goes in as the addend of an fma. The sum
 * of two multiples of the grid is one, so + and - need nothing.
 *
 * Every function gives the bits of the plain operation, for finite values whose result is below
 * 2^62.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   never.
 * Uses    element.h.   Used by body.h.
 */
#ifndef ZERO_KERNELS_CPU_LIFTED_H
#define ZERO_KERNELS_CPU_LIFTED_H

#include "kernels/element.h"

#define LIFTED_UNIT 0x1p-62f         /* 2^-126, the smallest normal number */
#define LIFTED_HALF_STEP 0x1p-86f    /* half of 2^-149 */
#define LIFTED_SHIFT 0x20000000u     /* 64 in the exponent */
#define LIFTED_UNIT_BITS 0x20800000u /* LIFTED_UNIT's */

ELEMENT_FN float lifted_magnitude(float x)
{
    return element_float(element_bits(x) & ELEMENT_MAGNITUDE);
}

/* The magnitude of x, which is not negative, with the sign of s. */
ELEMENT_FN float lifted_sign(float x, float s)
{
    return element_float(element_bits(x) | (element_bits(s) & ELEMENT_SIGN));
}

/* As above, but a negative x turns the sign. */
ELEMENT_FN float lifted_sign_times(float x, float s)
{
    return element_float(element_bits(x) ^ (element_bits(s) & ELEMENT_SIGN));
}

/* Whether a magnitude is below a limit: as signed numbers, which every instruction set compares. */
ELEMENT_FN bool lifted_below(uint32_t magnitude, uint32_t limit)
{
    return (int32_t)magnitude < (int32_t)limit;
}

/* lifted_from and lifted_to, of a number that is not negative. */
ELEMENT_FN float lifted_from_positive(float x)
{
    const uint32_t u = element_bits(x);
    const bool denormal = lifted_below(u, 0x00800000u);
    const float up = element_float(u + (denormal ? LIFTED_UNIT_BITS : LIFTED_SHIFT));

    return up - (denormal ? LIFTED_UNIT : 0.0f);
}

ELEMENT_FN float lifted_to_positive(float x)
{
    const uint32_t u = element_bits(x);
    const uint32_t denormal = element_bits(x + LIFTED_UNIT) - LIFTED_UNIT_BITS;

    return element_float(lifted_below(u, LIFTED_UNIT_BITS) ? denormal : u - LIFTED_SHIFT);
}

ELEMENT_FN float lifted_from(float x)
{
    return lifted_sign(lifted_from_positive(lifted_magnitude(x)), x);
}

ELEMENT_FN float lifted_to(float x)
{
    return lifted_sign(lifted_to_positive(lifted_magnitude(x)), x);
}

/* What is added for rounding: nothing where the plain result is above the grid's end. */
ELEMENT_FN float lifted_unit(float plain)
{
    return lifted_magnitude(plain) < LIFTED_UNIT ? LIFTED_UNIT : 0.0f;
}

/* factor * x: x lifted, factor not. */
ELEMENT_FN float lifted_multiply(float factor, float x)
{
    const float plain = factor * x, unit = lifted_sign(LIFTED_UNIT, plain);
    const float grid = lifted_magnitude(element_fma(factor, x, unit) - unit);
    const float wanted = lifted_magnitude(plain);

    return lifted_sign(wanted < LIFTED_UNIT ? grid : wanted, plain);
}

/* The same where neither is negative. */
ELEMENT_FN float lifted_multiply_positive(float factor, float x)
{
    const float plain = factor * x;
    const float grid = element_fma(factor, x, LIFTED_UNIT) - LIFTED_UNIT;

    return plain < LIFTED_UNIT ? grid : plain;
}

/* factor * x + c: x and c lifted. The number added for rounding must keep c + number exact and the
 * whole sum between 2^-62 and 2^-61: it has the sign of the result, unless c has that sign too and
 * is the larger of the two. Where c >= 2^-38, a result below 2^-62 has at most 24 bits: the plain
 * one is exact. */
ELEMENT_FN float lifted_fma(float factor, float x, float c)
{
    const float plain = element_fma(factor, x, c), add = lifted_unit(plain);
    const bool against =
        (int32_t)(element_bits(plain) ^ element_bits(c)) >= 0 && lifted_magnitude(c) > LIFTED_UNIT;
    const float unit = lifted_sign_times(against ? -2.0f * add : add, plain);
    const float once = element_fma(factor, x, c + unit), after = plain + unit;
    const float grid = (lifted_magnitude(c) < 0x1p-38f ? once : after) - unit;

    return lifted_sign(lifted_magnitude(grid), plain);
}

/* factor * x + c where neither term is negative. */
ELEMENT_FN float lifted_fma_positive(float factor, float x, float c)
{
    const float plain = element_fma(factor, x, c);
    const float grid = element_fma(factor, x, c + LIFTED_UNIT) - LIFTED_UNIT;

    return plain < LIFTED_UNIT ? grid : plain;
}

/* x / by: x lifted, by an ordinary positive number. The quotient of 24 bits is rounded again to the
 * grid; that goes wrong only if it fell on the middle between two points while the exact one did
 * not, and there the sign of the remainder decides. */
ELEMENT_FN float lifted_divide(float x, float by)
{
    const float plain = x / by, unit = lifted_sign(lifted_unit(plain), plain);
    const float rest = element_fma(-0x1p32f * plain, by, 0x1p32f * x);
    const float grid = (plain + unit) - unit;
    const bool tie = lifted_magnitude(plain - grid) == LIFTED_HALF_STEP && rest != 0.0f;
    const float near = tie ? plain + lifted_sign(LIFTED_HALF_STEP, rest) : grid;

    return lifted_sign(lifted_magnitude(near), plain);
}

/* The root of a lifted number that is not negative, as an ordinary number: never a denormal. */
ELEMENT_FN float lifted_sqrt(float x)
{
    return element_sqrt(x) * 0x1p-32f;
}

#endif
