/* SPDX-License-Identifier: MIT */
/* catalogue.h: the checkpoints of a folder.
 *
 * Owns    a list: its entries.
 * Thread  any.
 * Fails   NOT_FOUND, IO, PERMISSION, NO_MEMORY.
 * Uses    folder, store.   Used by daemon, libzeroclient, zeroctl.
 */
#ifndef DAEMON_STORE_CATALOGUE_H
#define DAEMON_STORE_CATALOGUE_H

#include <stddef.h>

#include "daemon/store/folder.h"

struct store_entry {
    char *name; /* in the folder: "step-100" */
    enum store_folder_kind kind;
    uint64_t step;
    bool complete; /* manifest, records and sizes check out; the data is verify's */
    bool busy;     /* somebody is writing it */
    bool unread;   /* it could not be looked at: neither is known */
    char *why;     /* not complete; NULL otherwise */
    uint64_t time, bytes;
    uint32_t world;
};

struct store_list {
    struct store_entry *entries; /* by step; of one step, what is complete first */
    size_t count, room;
};

zero_status store_list(const char *dir, struct store_list *out, struct zero_detail *out_detail);
void store_list_deinit(struct store_list *list);

/* The complete checkpoint of the highest step; malloc'd path. NOT_FOUND when there is none. IO when
 * one of a higher step could not be looked at: it may be the newest. */
zero_status store_newest(const char *dir, char **out_path, struct zero_detail *out_detail);

/* The same; `passed`, unless NULL, is told of every folder of a higher step that is none, last of
 * the one that could not be looked at. */
struct store_seek {
    const char *dir;
    uint64_t before; /* of the steps below this one; 0: of all */
    void (*passed)(void *context, const struct store_entry *entry);
    void *context;
};
zero_status store_seek(const struct store_seek *what, char **out_path,
                       struct zero_detail *out_detail);

/* What goes: all but the `keep` newest complete checkpoints (at least 1), and what saves and
 * removals left that died. Other folders stay, what was set aside too, and what is incomplete for
 * another reason. What could not be looked at stays, and does not count; nor do checkpoints of
 * steps after `last`, which are of another timeline than the save of that one (UINT64_MAX: none).
 */
bool store_is_stale(const struct store_list *list, size_t entry, uint32_t keep, uint64_t last);

/* Removes what is stale; a checkpoint is renamed first, so that it is whole or gone. *out_removed
 * counts. */
zero_status store_prune(const char *dir, uint32_t keep, uint64_t last, uint64_t *out_removed,
                        struct zero_detail *out_detail);

#endif
