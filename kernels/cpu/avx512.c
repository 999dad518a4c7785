/* SPDX-License-Identifier: MIT */
/* avx512.c: the kernels for AVX-512. */
#include "kernels/cpu/body.h"

/* The builtin counts a feature only where the system saves its registers. */
static bool usable(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
}

const struct kernel_set kernels_avx512 = KERNEL_TABLE("avx512");
