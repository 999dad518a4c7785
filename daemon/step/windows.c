/* SPDX-License-Identifier: MIT */
#include "daemon/step/windows.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/fail.h"

zero_status window_map_init(struct window_map *map, uint64_t bytes, uint32_t layers)
{
    *map = (struct window_map){ .bytes = bytes, .capacity = layers };
    map->used = calloc(layers, sizeof *map->used);
    if (map->used == NULL)
        return FAIL(NO_MEMORY, "map windows", "for %u layers", layers);
    return zero_success();
}

void window_map_deinit(struct window_map *map)
{
    free(map->used);
    *map = (struct window_map){ 0 };
}

bool window_map_take(struct window_map *map, uint64_t bytes, uint64_t *out_offset)
{
    uint64_t at = 0;
    uint32_t i = 0;

    for (; i < map->count && map->used[i].offset - at < bytes; i++)
        at = map->used[i].offset + map->used[i].bytes;
    if (map->count == map->capacity || bytes > map->bytes - at)
        return false;
    memmove(&map->used[i + 1], &map->used[i], (map->count - i) * sizeof *map->used);
    map->used[i] = (struct window_range){ at, bytes };
    map->count++;
    *out_offset = at;
    return true;
}

void window_map_give(struct window_map *map, uint64_t offset)
{
    for (uint32_t i = 0; i < map->count; i++) {
        if (map->used[i].offset != offset)
            continue;
        map->count--;
        memmove(&map->used[i], &map->used[i + 1], (map->count - i) * sizeof *map->used);
        return;
    }
}

void window_map_clear(struct window_map *map)
{
    map->count = 0;
}
