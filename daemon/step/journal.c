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
    journal_write(journal, first);
}

static zero_status check_head(const struct journal_head *head, const struct journal_head *identity)
{
    struct journal_head wanted = { .magic = 0 };

    if (head->magic != JOURNAL_MAGIC)
        return FAIL(CORRUPT, "open journal", "this is no journal of zerod");
    if (head->version != JOURNAL_VERSION)
        return FAIL(VERSION, "open journal",
                    "the state in memory was written by a zerod with journal version %" PRIu64
                    ", this one has version %d: start the version that wrote it, or restore a "
                    "checkpoint",
                    head->version, JOURNAL_VERSION);
    write_identity(&wanted, identity);
    if (head->checksum != head_sum(head))
        return FAIL(CORRUPT, "open journal", "its head does not check out");
    if (head->checksum != wanted.checksum)
        return FAIL(CORRUPT, "open journal",
                    "it belongs to rank %" PRIu64 " of %" PRIu64
                    " or to another model, not to rank %" PRIu64 " of %" PRIu64,
                    head->rank, head->world, identity->rank, identity->world);
    return zero_success();
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

zero_status journal_open(struct journal *journal, void *base, const struct journal_head *identity,
                         struct journal_record *out)
{
    const struct journal_record *best = NULL;

    place(journal, base);
    zero_status s = check_head(journal->head, identity);
    if (zero_failed(s))
        return s;
    for (int i = 0; i < 2; i++) {
        const struct journal_record *record = journal->records[i];
        bool newer = best == NULL || record->sequence > best->sequence;
        if (record_whole(journal, record) && newer)
            best = record;
    }
    if (best == NULL)
        return FAIL(CORRUPT, "open journal", "neither of its two records checks out");
    if (best->sequence < atomic_load(&journal->head->newest))
        return FAIL(CORRUPT, "open journal", "its newest record %" PRIu64 " does not check out",
                    atomic_load(&journal->head->newest));
    *out = *best;
    return zero_success();
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
