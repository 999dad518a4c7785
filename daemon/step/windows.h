/* SPDX-License-Identifier: MIT */
/* windows.h: which bytes of the window arena are in use: first fit over a sorted list.
 *
 * Owns    its list.
 * Thread  the worker.
 * Fails   NO_MEMORY at init only: there is one range a layer at most.
 * Uses    base.   Used by step.
 */
#ifndef DAEMON_STEP_WINDOWS_H
#define DAEMON_STEP_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/status.h"

struct window_map {
    uint64_t bytes; /* of the arena */
    uint32_t count, capacity;
    struct window_range {
        uint64_t offset, bytes;
    } * used; /* by offset */
};

zero_status window_map_init(struct window_map *map, uint64_t bytes, uint32_t layers);
void window_map_deinit(struct window_map *map);
bool window_map_take(struct window_map *map, uint64_t bytes, uint64_t *out_offset);
void window_map_give(struct window_map *map, uint64_t offset);
void window_map_clear(struct window_map *map);

#endif
