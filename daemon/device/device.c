/* SPDX-License-Identifier: MIT */
#include "daemon/device/device.h"

#include <string.h>

static const struct device_ops *const backends[] = { &device_cpu };

const struct device_ops *device_find(const char *name)
{
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}
