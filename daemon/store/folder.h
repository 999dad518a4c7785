/* SPDX-License-Identifier: MIT */
/* folder.h: folders of checkpoints: their names, and how they vanish.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   IO, PERMISSION, NOT_FOUND.
 * Uses    error.   Used by save, replace, catalogue, lock, trial.
 */
#ifndef DAEMON_STORE_FOLDER_H
#define DAEMON_STORE_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

enum store_folder_kind {
    STORE_FOREIGN,  /* not ours */
    STORE_STEP,     /* step-<n> */
    STORE_PARTIAL,  /* step-<n>.partial-... */
    STORE_REMOVING, /* step-<n>.removing-... */
    STORE_REPLACED, /* step-<n>.replaced-<k>: another save has that step's name now (replace.h) */
};

/* What a name in DIR says; out_step is set unless it is foreign. */
enum store_folder_kind store_folder_parse(const char *name, uint64_t *out_step);

/* The same of a path to something that is there, however it is written. */
enum store_folder_kind store_folder_named(const char *path, uint64_t *out_step);

/* Removes a folder of files in `dir`, which must have no folder in it, and syncs dir. */
zero_status store_folder_remove(int dir, const char *name, struct zero_detail *out_detail);

/* The same of a checkpoint, or what was one: under another name first, so that it is there or not,
 * and a removal that is cut short is brought to its end by a prune. */
zero_status store_folder_discard(int dir, const char *name, uint64_t step,
                                 struct zero_detail *out_detail);

/* mkdir -p; fails too where something else than a folder has the name. */
zero_status store_make_dir(const char *dir, struct zero_detail *out_detail);

/* fsync, repeated when interrupted; `what` is for the error. */
zero_status store_sync(int fd, const char *what, struct zero_detail *out_detail);

/* write, until everything is; errno says why not. */
bool store_write_all(int fd, const void *bytes, size_t count);

/* Sixteen hexadecimal digits that nobody else has. */
zero_status store_random_id(char out[17], struct zero_detail *out_detail);

#endif
