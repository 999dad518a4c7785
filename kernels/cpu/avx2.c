/* SPDX-License-Identifier: MIT */
/* avx2.c: the kernels for AVX2 with FMA. */
#include "kernels/cpu/body.h"

/* The builtin counts a feature only where the system saves its registers. */
static bool usable(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct kernel_set kernels_avx2 = KERNEL_TABLE("avx2");
