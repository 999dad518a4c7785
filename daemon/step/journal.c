/* SPDX-License-Identifier: MIT */
#include "daemon/step/journal.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/base/fail.h"

#define JOURNAL_MAGIC UINT64_C(0x5a45524f4a4f5552)

enum { PAGE = 4096 };

static uint64_t head_sum(const struct journal_head *head)
{
    return XXH3_64bits(head, offsetof(struct journal_head, checksum));
}

static uint64_t record_sum(const struct journal_record *record)
{
    return XXH3_64bits(record, offsetof(struct journal_record, checksum));
}

/* Never 0, which says that there is nothing. */
static uint64_t pair_sum(uint64_t first, uint64_t second)
{
    const uint64_t pair[2] = { first, second };

    return XXH3_64bits(pair, sizeof pair) | 1;
}

/* The sum of what is begun and done every microsecond: a few multiplications (splitmix64's). */
static uint64_t chunk_sum(uint64_t update, uint64_t chunk)
{
    uint64_t z = update * UINT64_C(0x9e3779b97f4a7c15) + chunk;

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z >> 32) | 1; /* never 0, which says that there is nothing */
}

/* Which no other chunk or update has, and no mark that lost a bit. 0: nothing yet. */
static uint64_t mark(uint64_t update, uint64_t chunk)
{
    return chunk_sum(update, chunk) << 32 | chunk;
}

static uint64_t chunk_of(uint64_t word)
{
    return word & UINT32_MAX;
}

static bool marks(uint64_t word, uint64_t update)
{
    return word == mark(update, chunk_of(word));
}

static void place(struct journal *journal, void *base)
{
    unsigned char *at = base;

    journal->head = base;
    journal->records[0] = (struct journal_record *)(at + PAGE);
    journal->records[1] = (struct journal_record *)(at + 2 * (size_t)PAGE);
    journal->blobs[0] = at + 3 * (size_t)PAGE;
    journal->blobs[1] = journal->blobs[0] + ZERO_RING_MAX_BLOB;
    journal->undo = journal->blobs[1] + ZERO_RING_MAX_BLOB;
}

static void write_identity(struct journal_head *head, const struct journal_head *identity)
{
    head->magic = JOURNAL_MAGIC;
    head->version = JOURNAL_VERSION;
    head->rank = identity->rank;
    head->world = identity->world;
    head->model = identity->model;
    head->checksum = head_sum(head);
}

void journal_init(struct journal *journal, void *base, const struct journal_head *identity,
                  struct journal_record *first)
{
    place(journal, base);
    write_identity(journal->head, identity);
    journal_set_origin(journal, "");
    journal_write(journal, first);
}

static zero_status check_identity(const struct journal_head *head,
                                  const struct journal_head *wanted)
{
    if (head->magic != JOURNAL_MAGIC)
        return FAIL(CORRUPT, "open journal",
                    "this is no journal of zerod: its first word is %#" PRIx64, head->magic);
    if (head->version != JOURNAL_VERSION)
        return FAIL(VERSION, "open journal",
                    "the state in memory was written by a zerod with journal version %" PRIu64
                    ", this one has version %d: start the version that wrote it, or restore a "
                    "checkpoint",
                    head->version, JOURNAL_VERSION);
    if (head->checksum != head_sum(head))
        return FAIL(CORRUPT, "open journal", "its head does not check out");
    if (head->rank != wanted->rank || head->world != wanted->world)
        return FAIL(CORRUPT, "open journal",
                    "it belongs to rank %" PRIu64 " of %" PRIu64 ", not to rank %" PRIu64
                    " of %" PRIu64,
                    head->rank, head->world, wanted->rank, wanted->world);
    if (head->model != wanted->model)
        return FAIL(CORRUPT, "open journal",
                    "it belongs to another model or config (hash %016" PRIx64 ", not %016" PRIx64
                    ")",
                    head->model, wanted->model);
    return zero_success();
}

static zero_status check_trainer(const struct journal_head *head)
{
    uint64_t pid = atomic_load(&head->trainer_pid), start = atomic_load(&head->trainer_start);
    uint64_t sum = atomic_load(&head->trainer_sum);

    if (sum != 0 && sum != pair_sum(pid, start))
        return FAIL(CORRUPT, "open journal",
                    "its last trainer (pid %" PRIu64 ") does not check out", pid);
    return zero_success();
}

static zero_status check_head(const struct journal_head *head, const struct journal_head *wanted)
{
    zero_status s;

    TRY(s, check_identity(head, wanted));
    if (head->origin_sum != XXH3_64bits(head->origin, sizeof head->origin))
        s = FAIL(CORRUPT, "open journal", "the checkpoint it began with does not check out");
    else
        s = check_trainer(head);
out:
    return s;
}

/* Of this update, or the one before: nothing older, and nothing newer, is there. */
static zero_status check_mark(const char *name, uint64_t word, uint64_t update)
{
    if (word == 0 || marks(word, update) || marks(word, update - 1))
        return zero_success();
    return FAIL(CORRUPT, "open journal",
                "the chunk %" PRIu64 " that it names as %s is of no update up to %" PRIu64,
                chunk_of(word), name, update);
}

/* Chunks are begun and done in turns. */
static zero_status check_marks(const struct journal_head *head, uint64_t update)
{
    uint64_t begun = atomic_load(&head->begun), done = atomic_load(&head->done);
    zero_status s;

    TRY(s, check_mark("begun", begun, update));
    TRY(s, check_mark("done", done, update));
    bool begins = marks(begun, update), ends = marks(done, update);
    uint64_t from = ends ? chunk_of(done) : 0;
    bool fits = begins ? chunk_of(begun) == from || chunk_of(begun) + 1 == from
                       : !ends && (begun == 0) == (done == 0) &&
                             chunk_of(begun) + (begun != 0) == chunk_of(done);
    if (!fits)
        s = FAIL(CORRUPT, "open journal",
                 "of update %" PRIu64 " chunk %" PRIu64 " was begun and %" PRIu64
                 " are done, which cannot be",
                 update, chunk_of(begun), chunk_of(done));
out:
    return s;
}

static bool blob_whole(const struct journal *journal, const struct journal_record *record, int b)
{
    return record->blob_bytes[b] <= ZERO_RING_MAX_BLOB &&
           XXH3_64bits(journal->blobs[b], record->blob_bytes[b]) == record->blob_hash[b];
}

/* The committed blob must be whole; the other one only while its step is prepared. */
static bool record_whole(const struct journal *journal, const struct journal_record *record)
{
    if (record->checksum != record_sum(record) || record->blob_current > 1)
        return false;
    int current = (int)record->blob_current;
    return blob_whole(journal, record, current) &&
           (record->prepared == 0 || blob_whole(journal, record, 1 - current));
}

/* The newest record is taken, or none is. */
static zero_status find_newest(const struct journal *journal, struct journal_record *out)
{
    uint64_t newest = atomic_load(&journal->head->newest);
    const struct journal_record *best = NULL;

    for (int i = 0; i < 2; i++) {
        const struct journal_record *record = journal->records[i];
        bool newer = best == NULL || record->sequence > best->sequence;
        if (record_whole(journal, record) && newer)
            best = record;
    }
    if (best == NULL)
        return FAIL(CORRUPT, "open journal", "neither of its two records checks out");
    if (best->sequence < newest)
        return FAIL(CORRUPT, "open journal",
                    "its newest record %" PRIu64 " does not check out; the one of before would set "
                    "this rank back",
                    newest);
    if (best->sequence > newest + 1)
        return FAIL(CORRUPT, "open journal",
                    "it names %" PRIu64 " as its newest record, and has record %" PRIu64, newest,
                    best->sequence);
    *out = *best;
    return zero_success();
}

zero_status journal_open(struct journal *journal, void *base, const struct journal_head *identity,
                         struct journal_record *out)
{
    zero_status s;

    place(journal, base);
    TRY(s, check_head(journal->head, identity));
    TRY(s, find_newest(journal, out));
    TRY(s, check_marks(journal->head, out->decision.updates));
    atomic_store(&journal->head->newest, out->sequence); /* it may have died before */
out:
    return s;
}

void journal_write(struct journal *journal, struct journal_record *record)
{
    record->sequence = atomic_load_explicit(&journal->head->newest, memory_order_relaxed) + 1;
    for (int b = 0; b < 2; b++)
        record->blob_hash[b] = XXH3_64bits(journal->blobs[b], record->blob_bytes[b]);
    record->checksum = record_sum(record);
    memcpy(journal->records[record->sequence % 2], record, sizeof *record);
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store(&journal->head->newest, record->sequence);
}

struct journal_progress journal_progress(const struct journal *journal, uint64_t update)
{
    uint64_t done = atomic_load(&journal->head->done);
    struct journal_progress progress = { .done = marks(done, update) ? chunk_of(done) : 0 };

    progress.in_flight = atomic_load(&journal->head->begun) == mark(update, progress.done);
    return progress;
}

void journal_begin_chunk(struct journal *journal, uint64_t update, uint64_t chunk)
{
    atomic_store_explicit(&journal->head->begun, mark(update, chunk), memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

void journal_end_chunk(struct journal *journal, uint64_t update, uint64_t chunk)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&journal->head->done, mark(update, chunk + 1), memory_order_release);
}

void journal_set_trainer(struct journal *journal, uint64_t pid, uint64_t start)
{
    struct journal_head *head = journal->head;

    if (atomic_load(&head->trainer_sum) == pair_sum(pid, start))
        return;                          /* it never left: no instant without a name to fence */
    atomic_store(&head->trainer_sum, 0); /* three words do not change in one instant */
    atomic_store(&head->trainer_pid, pid);
    atomic_store(&head->trainer_start, start);
    atomic_store(&head->trainer_sum, pair_sum(pid, start));
}

void journal_trainer(const struct journal *journal, uint64_t *out_pid, uint64_t *out_start)
{
    bool any = atomic_load(&journal->head->trainer_sum) != 0;

    *out_pid = any ? atomic_load(&journal->head->trainer_pid) : 0;
    *out_start = any ? atomic_load(&journal->head->trainer_start) : 0;
}

void journal_set_origin(struct journal *journal, const char *origin)
{
    struct journal_head *head = journal->head;

    memset(head->origin, 0, sizeof head->origin);
    memcpy(head->origin, origin, strnlen(origin, sizeof head->origin - 1));
    head->origin_sum = XXH3_64bits(head->origin, sizeof head->origin);
}
