/* SPDX-License-Identifier: MIT */
#include "proto/bell.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

void zero_bell_ring(struct zero_bell *bell, bool urgent)
{
    atomic_fetch_add(&bell->count, 1);
    uint32_t asleep = atomic_load(&bell->asleep);
    if (asleep == ZERO_BELL_ASLEEP || (urgent && asleep == ZERO_BELL_NAPPING))
        syscall(SYS_futex, &bell->count, FUTEX_WAKE, 1, NULL, NULL, 0);
}
