/* SPDX-License-Identifier: MIT */
/* save.h: writing a checkpoint.
 *
 *   DIR/step-<n>.partial-<pid>-<id>/   while it is written; renamed to DIR/step-<n> at the end
 *     rank-<r>.safetensors             what rank r owns (geometry.h)
 *     rank-<r>.json                    its blob, and the sums of its blocks (part.h)
 *     manifest.json                    written last (manifest.h)
 *
 * One rank begins and commits; every rank, that one too, joins by the folder's path and writes its
 * part. Everything is on the disk (fsync) before the name that says so. Whatever happens, DIR has
 * the checkpoints it had before, and this one whole or not at all; a step-<n> that was there, whole
 * or not, is set aside (replace.h). While somebody writes a folder
 * it holds a shared flock on it: what can be locked exclusively was left by a save that died.
 *
 * Owns    a save: its folder's fd and lock. Memory in regions is borrowed and must not change.
 * Thread  calls block; a save is one thread's.
 * Order   begin · join, write_part, leave (each rank) · commit or abandon.
 * Fails   INVALID_STATE when cancelled; IO, PERMISSION, NOT_FOUND, TOO_LARGE, NO_MEMORY.
 *         The detail says what, where, and what to do.
 * Uses    geometry, liburing.   Used by daemon.
 */
#ifndef DAEMON_STORE_SAVE_H
#define DAEMON_STORE_SAVE_H

#include <limits.h>
#include <stdatomic.h>

#include "daemon/store/geometry.h"

enum {
    STORE_ID_CHARS = 16,
    STORE_MOST_BLOB = 65536,
    STORE_MOST_CONFIG = 65536,
    STORE_ASIDE_BYTES = 64,
};

struct store_save {
    char path[PATH_MAX]; /* of the partial folder: what the other ranks join */
    char id[STORE_ID_CHARS + 1];
    uint64_t step;
    int fd;                        /* -1: none */
    char aside[STORE_ASIDE_BYTES]; /* of commit: what step-<n> is called now that was there; "" */
};

/* INVALID_STATE when DIR has something of that step's name, for who does not want to replace it. */
zero_status store_check_free(const char *dir, uint64_t step, struct zero_detail *out_detail);

/* Makes DIR if need be, and the partial folder in it. */
zero_status store_begin(const char *dir, uint64_t step, struct store_save *out,
                        struct zero_detail *out_detail);
/* path: the .path of the rank that began. */
zero_status store_join(const char *path, struct store_save *out, struct zero_detail *out_detail);
/* Gives the fd and its lock back; the folder stays. NULL and a save that was left are no-ops. */
void store_leave(struct store_save *save);

/* ---- a rank's part ---- */

struct store_piece {
    const void *base; /* page-aligned */
    size_t bytes;     /* a multiple of 4096 */
};

/* Fills `to` with the region's bytes from `offset` on; for what is not in memory. Called for
 * ascending offsets without gaps, by one thread at a time. */
typedef zero_status store_source(void *context, uint64_t offset, size_t bytes, void *to,
                                 struct zero_detail *out_detail);

/* One state of the rank's shards, in the order of an arena; either pieces or a source. The sum of
 * the pieces is store_region_bytes. */
struct store_region {
    enum store_state state;
    const struct store_piece *pieces;
    size_t piece_count;
    store_source *source;
    void *context;
};

/* Looked at while a part is written, and set, by any thread. */
struct store_progress {
    _Atomic uint64_t bytes; /* grows */
    atomic_bool cancel;     /* set: the writing ends with INVALID_STATE */
};

struct store_part {
    uint32_t rank;
    const struct zero_layout *layout;
    const struct store_region *regions; /* in the order of enum store_state */
    size_t region_count;
    const void *blob;
    size_t blob_bytes;
};

/* How a part was written: io_uring or, where the kernel does not let us, threads; past the page
 * cache or, where the file system has no O_DIRECT, through it. */
enum store_engine { STORE_IO_URING, STORE_THREADS };

struct store_written {
    enum store_engine engine;
    bool direct;
    uint64_t bytes;
};

extern const char *const store_engine_names[2];

/* Replaces what an earlier try left of this rank. progress may be NULL. */
zero_status store_write_part(const struct store_save *save, const struct store_part *part,
                             struct store_progress *progress, struct store_written *out,
                             struct zero_detail *out_detail);

/* ---- the end ---- */

/* What a successor needs of the dynamic loss scale; the rest is in the config. */
struct store_scaler {
    double scale;
    uint32_t hysteresis_left;
    int64_t iteration, last_overflow;
};

struct store_info {
    const struct zero_layout *layout;
    uint32_t stage;
    uint64_t step, updates, skipped_in_row;
    struct store_scaler scaler;
    const char *config; /* the text as registered; may be empty */
    size_t config_bytes;
};

/* Checks that every part is there, whole, and of this save; then makes it a checkpoint. On success
 * out_path is its path, and the save is left. Of a step that was there save->aside says what it is
 * called now, on failure too; "" when it is gone, as it had the same state. */
zero_status store_commit(struct store_save *save, const struct store_info *info,
                         char out_path[PATH_MAX], struct zero_detail *out_detail);

/* Removes the partial folder and leaves. */
zero_status store_abandon(struct store_save *save, struct zero_detail *out_detail);

#endif
