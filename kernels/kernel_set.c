/* SPDX-License-Identifier: MIT */
#include "kernels/kernel_set.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Fastest first. */
static const struct kernel_set *const sets[] = {
#ifdef KERNELS_X86
    &kernels_avx512,
    &kernels_avx2,
#endif
    &kernels_scalar,
};

#ifdef KERNELS_X86
static const char set_names[] = "avx512, avx2, scalar";
#else
static const char set_names[] = "scalar";
#endif

const struct kernel_set *kernel_set_find(const char *forced, const char **out_names)
{
    if (out_names)
        *out_names = set_names;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if ((forced == NULL || strcmp(forced, sets[i]->name) == 0) && sets[i]->usable())
            return sets[i];
    return NULL;
}

/* The optimizer's own seven numbers, each named at the call. */
/* NOLINTNEXTLINE(readability-function-size) */
struct adam_constants adam_constants(double lr, double beta1, double beta2, double eps,
                                     double weight_decay, bool decoupled, uint64_t t)
{
    const double bias1 = 1 - pow(beta1, (double)t), bias2 = 1 - pow(beta2, (double)t);

    return (struct adam_constants){
        .decay_multiply = decoupled ? (float)(1 - lr * weight_decay) : 1.0f,
        .decay_add = decoupled ? 0.0f : (float)weight_decay,
        .one_minus_beta1 = (float)(1 - beta1),
        .beta2 = (float)beta2,
        .one_minus_beta2 = (float)(1 - beta2),
        .step_size = (float)-(lr / bias1),
        .root_bias2 = (float)sqrt(bias2),
        .eps = (float)eps,
        .decoupled = decoupled,
    };
}

/* By what it does, so that it holds on every CPU (fegetround() asks the x87 unit on x86): a
 * denormal that is made and one that is read; a tie to even above 1, and one below -1. */
bool kernel_float_mode_ok(void)
{
    volatile float smallest_normal = FLT_MIN, denormal = FLT_TRUE_MIN, half = 0.5f, many = 0x1p23f;
    volatile float one = 1.0f, tie = 0x3p-24f;
    volatile float made = smallest_normal * half, read = denormal * many;
    volatile float above = one + tie, below = -one - tie;

    return made != 0.0f && read == smallest_normal && above == 1.0f + 0x1p-22f &&
           below == -1.0f - 0x1p-22f;
}
