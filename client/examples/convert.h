/* SPDX-License-Identifier: MIT */
/* convert.h: the 16-bit formats to fp32, exactly, and back, rounded to nearest even.
 *
 * NaN stays NaN, and what is too large becomes infinite: zerod then skips the step.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   never.
 * Uses    proto/model.   Used by gpt.
 */
#ifndef EXAMPLES_CONVERT_H
#define EXAMPLES_CONVERT_H

#include "proto/model.h"

void convert_to_float(float *out, const void *from, zero_dtype dtype, size_t count);
void convert_from_float(void *out, const float *from, zero_dtype dtype, size_t count);

#endif
