/* SPDX-License-Identifier: MIT */
/* manifest.h: manifest.json, which makes a folder a checkpoint: a sealed text (sealed.h).
 *
 *   {"format": 1, "zerod": "0.1.0", "save": "<id>", "time": <seconds since 1970>, "step": 7,
 *    "updates": 7, "skipped_in_row": 0, "world": 2, "stage": 3, "dtype": "bf16",
 *    "states": ["param", "master", ...],
 *    "scaler": {"scale": 1, "hysteresis_left": 2, "iteration": 7, "last_overflow": -1},
 *    "config": "<the text that was registered>",
 *    "layers": [{"name": ..., "tensors": [{"name": ..., "shape": [...],
 *                "lr_scale": <unless 1>, "weight_decay": <unless the config's>}, ...]}, ...],
 *    "parts": ["<XXH3-128 of rank-0.json>", ...],
 *    "checksum": ...}
 *
 * Owns    a manifest: its layout, config and sums.
 * Thread  any.
 * Fails   CORRUPT, VERSION, TOO_LARGE, IO, NO_MEMORY, what the layout refuses.
 * Uses    sealed, parse, layout.   Used by store.
 */
#ifndef DAEMON_STORE_MANIFEST_H
#define DAEMON_STORE_MANIFEST_H

#include "daemon/store/save.h"
#include "daemon/store/sealed.h"

struct store_manifest {
    char zerod[32]; /* version */
    char id[STORE_ID_CHARS + 1];
    uint64_t time;
    uint64_t step, updates, skipped_in_row;
    uint32_t world, stage, states;
    zero_dtype dtype;
    struct store_scaler scaler;
    char *config; /* ends in a NUL */
    size_t config_bytes;
    struct zero_layout *layout;
    struct store_sum *parts; /* one a rank */
};

zero_status store_manifest_write(int folder, const char *name,
                                 const struct store_manifest *manifest,
                                 struct zero_detail *out_detail);
zero_status store_manifest_read(int folder, struct store_manifest *out,
                                struct zero_detail *out_detail);
void store_manifest_deinit(struct store_manifest *manifest);

/* The parser alone, for a text whose seal was checked. */
zero_status store_manifest_parse(const struct store_file *file, struct store_manifest *out,
                                 struct zero_detail *out_detail);

#define STORE_MANIFEST "manifest.json"

#endif
