/* SPDX-License-Identifier: MIT */
/* Window ranges never overlap, never leave the arena, and everything given back can be had again.
 */
#include "daemon/step/windows.h"

#include <stdlib.h>

#include "tests/unit/check.h"

enum { LAYERS = 40, BYTES = 100000 };

static void check_state(const struct window_map *map)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < map->count; i++) {
        CHECK(map->used[i].offset >= end);
        end = map->used[i].offset + map->used[i].bytes;
    }
    CHECK(end <= BYTES);
}

static void check_random(unsigned seed)
{
    struct window_map map;
    struct {
        uint64_t offset;
        int taken;
    } layers[LAYERS] = { 0 };

    CHECK(!zero_failed(window_map_init(&map, BYTES, LAYERS)));
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1103515245u + 12345u;
        unsigned l = seed >> 16 & 0xffff;
        uint64_t bytes = 1 + l % 9000;
        l %= LAYERS;
        if (layers[l].taken) {
            window_map_give(&map, layers[l].offset);
            layers[l].taken = 0;
        } else {
            layers[l].taken = window_map_take(&map, bytes, &layers[l].offset);
        }
        check_state(&map);
    }
    for (int l = 0; l < LAYERS; l++)
        if (layers[l].taken)
            window_map_give(&map, layers[l].offset);
    uint64_t offset = 1;
    CHECK(map.count == 0);
    CHECK(window_map_take(&map, BYTES, &offset) && offset == 0);
    CHECK(!window_map_take(&map, 1, &offset));
    window_map_deinit(&map);
}

int main(void)
{
    for (unsigned seed = 1; seed <= 5; seed++)
        check_random(seed);
    return check_done();
}
