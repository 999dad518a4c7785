/* SPDX-License-Identifier: MIT */
/* sum.h: one number that tells a model's parameters from any others', for trainer and observer. */
#ifndef TESTS_INTEGRATION_SUM_H
#define TESTS_INTEGRATION_SUM_H

#include <string.h>

#include "client/zeroclient.h"

#define SUM_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t sum_bytes(uint64_t sum, const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t word;
        memcpy(&word, from + i, sizeof word);
        sum = (sum ^ word) * 0x100000001b3u;
    }
    return sum;
}

/* Of every tensor's bytes, in order; on failure *out_status says what failed. */
static inline uint64_t sum_params(zero_client *client, zero_status *out_status)
{
    const struct zero_client_info *info = zero_client_info(client);
    uint64_t sum = SUM_BEGIN, offset, count;
    size_t each = zero_dtype_bytes(info->param_dtype);

    for (uint32_t l = 0; l < info->layer_count; l++) {
        const void *weights = NULL;
        *out_status = zero_gather(client, l, &weights);
        if (zero_failed(*out_status))
            return 0;
        for (uint32_t t = 0; !zero_failed(zero_tensor_place(client, l, t, &offset, &count)); t++)
            sum = sum_bytes(sum, (const char *)weights + offset * each, count * each);
        *out_status = zero_release(client, l);
    }
    return sum;
}

#endif
