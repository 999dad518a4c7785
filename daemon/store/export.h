/* SPDX-License-Identifier: MIT */
/* export.h: a checkpoint's weights as other programs want them: Hugging Face's safetensors, with
 * each tensor whole, by its name and in its shape, from the fp32 master.
 *
 *   OUT/model.safetensors                          or, with more than max_shard bytes,
 *   OUT/model-00001-of-0000N.safetensors, ...  and OUT/model.safetensors.index.json
 *
 * A tensor is never split; the order is the model's. Files get their names when all are on the
 * disk, the index last. Memory is bounded: some MiB, and the names.
 *
 * Thread  one.
 * Fails   INVALID_STATE when a file of that name is there, CORRUPT, IO, NO_MEMORY.
 * Uses    store.   Used by libzeroclient.
 */
#ifndef DAEMON_STORE_EXPORT_H
#define DAEMON_STORE_EXPORT_H

#include "daemon/store/store.h"

struct store_export {
    const char *dir;                 /* made if need be */
    zero_dtype dtype;                /* bf16 and fp16 are rounded to nearest even */
    uint64_t max_shard;              /* bytes of tensors in a file; 0: one file */
    struct store_progress *progress; /* may be NULL */
};

struct store_exported {
    uint32_t files;
    uint64_t bytes; /* of tensors */
};

zero_status store_export(struct store *store, const struct store_export *options,
                         struct store_exported *out, struct zero_detail *out_detail);

#endif
