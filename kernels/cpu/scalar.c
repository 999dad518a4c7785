/* SPDX-License-Identifier: MIT */
/* scalar.c: the kernels for any CPU. Where it has no fma of its own, libm's is exact. */
#include "kernels/cpu/body.h"

static bool usable(void)
{
    return true;
}

const struct kernel_set kernels_scalar = KERNEL_TABLE("scalar");
