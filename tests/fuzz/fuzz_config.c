/* SPDX-License-Identifier: MIT */
/* No text makes the config parser read or write where it must not, or accept what is no config. */
#include <stdint.h>
#include <stdlib.h>

#include "proto/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct zero_config config;
    struct zero_detail detail = { "" };
    char *text = NULL;
    zero_status s = zero_config_parse((const char *)data, size, 2, &config, &detail);

    if (zero_failed(s) && detail.text[0] == '\0')
        abort(); /* every refusal says why */
    if (!zero_failed(s) &&
        config.train_batch != config.micro_batch * config.accumulation * config.world)
        abort();
    if (!zero_failed(s) !=
        !zero_failed(zero_config_explain((const char *)data, size, 2, &text, &detail)))
        abort(); /* both read the same */
    free(text);
    return 0;
}
