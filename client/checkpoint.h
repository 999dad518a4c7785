/* SPDX-License-Identifier: MIT */
/* checkpoint.h: what the files of libzeroclient that make zerocheckpoint.h share.
 *
 * Owns    nothing.
 * Thread  any.
 * Uses    zerocheckpoint.h, store.   Used by client, zeroctl; not installed.
 */
#ifndef CLIENT_CHECKPOINT_H
#define CLIENT_CHECKPOINT_H

#include "client/zerocheckpoint.h"
#include "daemon/store/save.h"

struct zero_progress {
    struct store_progress store;
    _Atomic uint64_t total; /* bytes; 0: not known yet */
};

/* Counts from 0; NULL is a no-op. The store's part of it, for store's calls. */
struct store_progress *checkpoint_progress(zero_progress *progress, uint64_t total);

/* INVALID_ARGUMENT when a pointer that a call cannot do without is NULL. */
zero_status checkpoint_need(const void *pointer, const char *name, struct zero_detail *detail);

#endif
