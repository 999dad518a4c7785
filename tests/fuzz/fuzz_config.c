/* SPDX-License-Identifier: MIT */
/* No text makes the config parser read or write where it must not, or accept what is no config. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact)
{
    if (!fact)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *json = (const char *)data;
    struct zero_config config = { .world = 0 };
    struct zero_detail detail = { "" };
    char *text = NULL;
    zero_status s = zero_config_parse(json, size, 2, &config, &detail);

    if (zero_failed(s)) {
        demand(detail.text[0] != '\0' && config.world == 0);
        for (const char *at = detail.text; *at != '\0'; at++)
            demand(*at >= ' ' && *at < 0x7f); /* safe on a terminal */
    } else {
        demand(config.train_batch == config.micro_batch * config.accumulation * 2);
        demand(config.stage <= 3 && config.loss_scale_min <= config.loss_scale_initial);
        text = zero_config_text(&config);
        demand(text != NULL && strstr(text, "world = 2\n") == text);
        free(text);
        text = NULL;
    }
    demand(zero_config_explain(json, size, 2, &text, &detail).code == s.code);
    demand((text == NULL) == zero_failed(s));
    free(text);
    return 0;
}
