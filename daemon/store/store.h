/* SPDX-License-Identifier: MIT */
/* store.h: reading a checkpoint.
 *
 * Opening reads and checks the manifest and every rank's record, and the size of every file; states
 * are read by tensor and element range, whatever world and stage wrote them, and every byte that is
 * handed out was compared with the sum of its block. No offset or size is taken from a file without
 * being checked, no symbolic link below the checkpoint's folder is followed.
 *
 * Owns    the store: its fds, tables and one block's buffer.
 * Thread  one at a time.
 * Fails   NOT_FOUND, CORRUPT for what is missing in it or does not check out, PERMISSION for
 *         a symbolic link in it, VERSION, TOO_LARGE, IO, NO_MEMORY, and INVALID_ARGUMENT for ranges
 *         that do not exist. The detail names file and bytes.
 * Uses    manifest, part.   Used by daemon, libzeroclient, zeroctl.
 */
#ifndef DAEMON_STORE_STORE_H
#define DAEMON_STORE_STORE_H

#include "daemon/store/save.h"

struct store;

/* path: of the checkpoint itself, DIR/step-<n>. */
zero_status store_open(const char *path, struct store **out, struct zero_detail *out_detail);
void store_close(struct store *store); /* NULL is a no-op */

/* Of what opening or reading failed with: it says nothing about the checkpoint, which could not be
 * looked at; it is neither missing, nor cut short or damaged. */
bool store_unread(zero_status s);

/* What was saved; lives as long as the store. The layout is that of the world that wrote it. */
struct store_facts {
    struct store_info info;
    uint32_t states;
    uint64_t time;     /* seconds since 1970 */
    const char *zerod; /* version that wrote it */
    const char *id;    /* of the save: no other has it, wherever its folder is */
    uint64_t bytes;    /* of all ranks' safetensors files */
};
const struct store_facts *store_facts(const struct store *store);

/* The blob that rank of the old world committed. */
const void *store_blob(const struct store *store, uint32_t rank, size_t *out_bytes);

/* Elements of one tensor's state. */
struct store_span {
    enum store_state state;
    uint32_t tensor; /* in the layout */
    uint64_t first, count;
};

/* As they are kept: store_state_dtype of the layout's dtype. */
zero_status store_read(struct store *store, const struct store_span *span, void *out,
                       struct zero_detail *out_detail);
/* As fp32, which holds each of them exactly. */
zero_status store_read_fp32(struct store *store, const struct store_span *span, float *out,
                            struct zero_detail *out_detail);

/* ---- checking everything ---- */

struct store_problem {
    const char *file; /* "rank-0.safetensors" */
    const char *text; /* what is wrong, with the bytes */
};

struct store_findings {
    uint64_t bytes;    /* looked at */
    uint64_t problems; /* 0: every byte is what was written */
    uint64_t
        nonfinite; /* elements of param and master that are inf or nan: no problem of the disk */
};

/* Who is told while it goes on; members may be NULL. */
struct store_watch {
    struct store_progress *progress;
    void (*problem)(void *context, const struct store_problem *problem);
    void *context;
};

/* Compares every byte of every file with its sum, and the headers with what they must be. Fails
 * only when it cannot go on; what it finds goes to the watch. */
zero_status store_verify(struct store *store, const struct store_watch *watch,
                         struct store_findings *out, struct zero_detail *out_detail);

#endif
