/* SPDX-License-Identifier: MIT */
/* match.h: which tensor of a checkpoint is which of a model: by its name, whatever layer it is in
 * and in whatever order. All of the one must be in the other, in the same shape.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   MISMATCH with the differences, as many as the detail has room for; NO_MEMORY.
 * Uses    layout, error.   Used by daemon.
 */
#ifndef DAEMON_STORE_MATCH_H
#define DAEMON_STORE_MATCH_H

#include "proto/layout.h"

struct store_match {
    const struct zero_layout *have, *want; /* the checkpoint's, the model's */
    /* Told each difference, one sentence; NULL: nobody. */
    void (*tell)(void *context, const char *text);
    void *context;
};

/* out[t] is the number in `have` of tensor t of `want`; of want->tensor_count. */
zero_status store_match(const struct store_match *match, uint32_t *out,
                        struct zero_detail *out_detail);

#endif
