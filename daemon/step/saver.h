/* SPDX-License-Identifier: MIT */
/* saver.h: the thread that does what of a save takes time: memory, files, commit.
 *
 * Owns    its thread and the memory of the copy.
 * Thread  saver_*: the worker. `notify` is called on the saver's thread after every change.
 * Order   LOOK first, if the model was kept. For each save PREPARE, then the worker fills the copy,
 *         BEGIN (rank 0), WRITE, COMMIT (rank 0); DROP at any time. One order at a time: the next
 *         when the last has ended, but LOOK and DROP, which keep their turn.
 * Fails   state FAILED, with a text; the next PREPARE starts anew.
 * Uses    store, shard, claim, recall.   Used by save, lead.
 */
#ifndef DAEMON_STEP_SAVER_H
#define DAEMON_STEP_SAVER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "daemon/shard/shard.h"
#include "daemon/step/journal.h"
#include "daemon/step/stats.h"
#include "daemon/store/lock.h"
#include "daemon/store/save.h"

struct saver;

enum saver_order { SAVER_LOOK, SAVER_PREPARE, SAVER_BEGIN, SAVER_WRITE, SAVER_COMMIT, SAVER_DROP };
enum saver_state { SAVER_IDLE, SAVER_BUSY, SAVER_DONE, SAVER_FAILED };

/* What of a rank is copied: whole shards, one kind of state after the other. */
enum { SAVER_REGIONS = 5 };
struct saver_region {
    enum zero_arena arena;
    enum store_state state;
    unsigned char *base;
    size_t bytes;
};

enum { SAVER_KNOWN = 2 };

/* Set by the worker before the order that needs it. */
struct saver_job {
    struct stats *stats;          /* LOOK: of the engine, where status finds what it has seen */
    uint64_t step;                /* LOOK: of the state that was kept */
    const char *dir;              /* BEGIN: of the checkpoints */
    struct store_lock *claim;     /* LOOK, BEGIN: of zerod.checkpoint.dir, lent */
    const char *path;             /* WRITE, COMMIT: of the unfinished one */
    struct journal_record record; /* of the step that was copied */
    unsigned char blob[ZERO_RING_MAX_BLOB];
    uint32_t keep; /* COMMIT: newest that stay; 0: all */
    /* BEGIN: saves of this very state, "": none; one of them that is there will do. */
    char known[SAVER_KNOWN][STORE_ID_CHARS + 1];
};

zero_status saver_create(const struct shard *shard, int description, void (*notify)(void *context),
                         void *context, struct saver **out);
void saver_destroy(struct saver *saver); /* waits; NULL is a no-op */

struct saver_job *saver_job(struct saver *saver);
void saver_order(struct saver *saver, enum saver_order order);
enum saver_state saver_state(const struct saver *saver);
/* Of DONE: the path (BEGIN, COMMIT); of FAILED: why. */
const char *saver_text(const struct saver *saver);
/* Of BEGIN: it is in zerod.checkpoint.dir, whatever its folder was called. */
bool saver_own(const struct saver *saver);
/* Of BEGIN: a known one is there, complete, and is the text. */
bool saver_found(const struct saver *saver);
/* Bytes of memory and files that it has filled so far: grows as long as it goes on. */
uint64_t saver_moved(const struct saver *saver);
/* Bytes written, of how many. */
void saver_progress(const struct saver *saver, uint64_t *out_done, uint64_t *out_total);

/* Where the copy goes; there from PREPARE's end until the next DROP. */
const struct saver_region *saver_regions(const struct saver *saver, uint32_t *out_count);

#endif
