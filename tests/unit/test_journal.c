/* SPDX-License-Identifier: MIT */
/* A daemon that dies at any byte of a record's writing, again and again, loses no record that was
 * named the newest. What a damaged journal says is either what it said before, or an error that
 * names the damage: every bit of everything but the undo slot's content is flipped. */
#include <stddef.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/journal.h"
#include "tests/unit/check.h"

enum { PAGE = 4096, BLOB = 40 };

static unsigned char memory[ZERO_JOURNAL_BYTES], whole[ZERO_JOURNAL_BYTES];
static const struct journal_head identity = { .rank = 1, .world = 4, .model = 77 };

static void write_step(struct journal *journal, struct journal_record *record, uint64_t step)
{
    uint64_t other = 1 - record->blob_current;

    memset(journal->blobs[other], (int)step, BLOB);
    record->blob_bytes[other] = BLOB;
    record->blob_current = other;
    record->step = record->updates = record->decision.step = record->decision.updates = step;
    journal_write(journal, record);
}

static void start(struct journal *journal, struct journal_record *record)
{
    memset(memory, 0, sizeof memory);
    memset(record, 0, sizeof *record);
    journal_init(journal, memory, &identity, record);
    for (uint64_t step = 1; step <= 3; step++)
        write_step(journal, record, step);
}

static uint64_t open_step(struct journal *journal, struct journal_record *record)
{
    zero_status s = journal_open(journal, memory, &identity, record);

    CHECK(!zero_failed(s));
    return zero_failed(s) ? 0 : record->step;
}

/* ---- deaths --------------------------------------------------------------------------------- */

/* As if the daemon had died when `bytes` of the next record were written; all of them and one more:
 * when it is whole, and not named. The record is of `step`. */
static void die_writing(size_t bytes, uint64_t step)
{
    struct journal journal;
    struct journal_record record;
    uint64_t before = open_step(&journal, &record), newest = journal.head->newest;
    size_t slot = (size_t)((unsigned char *)journal.records[(newest + 1) % 2] - memory);

    record.epoch++;
    record.step = step;
    memcpy(whole, memory, sizeof memory);
    journal_write(&journal, &record);
    CHECK(record.sequence == newest + 1 && before <= step);
    if (bytes < sizeof record)
        memcpy(memory + slot + bytes, whole + slot + bytes, sizeof record - bytes);
    if (bytes <= sizeof record)
        journal.head->newest = newest;
}

static void check_deaths(void)
{
    struct journal journal;
    struct journal_record record;

    for (size_t first = 0; first <= sizeof record + 1; first += 8) {
        for (size_t second = 0; second <= sizeof record + 1; second += 8) {
            start(&journal, &record);
            die_writing(first, 4);
            uint64_t told = open_step(&journal, &record);
            CHECK(told == 4 || (told == 3 && first <= sizeof record));
            die_writing(second, told + 1); /* the successor, which told the others of `told` */
            uint64_t again = open_step(&journal, &record);
            CHECK(again == told || again == told + 1);
            if (check_failures)
                return;
        }
    }
}

/* ---- damage --------------------------------------------------------------------------------- */

/* What a successor does next depends on these. */
struct standing {
    struct journal_record record;
    struct journal_progress progress;
    uint64_t pid, start;
    char origin[COMM_ORIGIN_BYTES];
    unsigned char blobs[2][BLOB];
};

/* False: there was an error, whose text fail_detail() has. */
static bool look(struct standing *out)
{
    struct journal journal;

    memset(out, 0, sizeof *out);
    if (zero_failed(journal_open(&journal, memory, &identity, &out->record)))
        return false;
    out->progress = journal_progress(&journal, out->record.decision.updates);
    journal_trainer(&journal, &out->pid, &out->start);
    memcpy(out->origin, journal.head->origin, sizeof out->origin);
    for (uint64_t b = 0; b < 2; b++) /* the other one is free while nothing is prepared */
        if (b == out->record.blob_current || out->record.prepared != 0)
            memcpy(out->blobs[b], journal.blobs[b], BLOB);
    return true;
}

static bool same(const struct standing *a, const struct standing *b)
{
    return a->record.checksum == b->record.checksum && /* of a whole record */
           a->progress.done == b->progress.done && a->progress.in_flight == b->progress.in_flight &&
           a->pid == b->pid && a->start == b->start &&
           memcmp(a->origin, b->origin, sizeof a->origin) == 0 &&
           memcmp(a->blobs, b->blobs, sizeof a->blobs) == 0;
}

/* Flips every bit of a piece of the journal; returns how many flips were no error. */
static size_t unnoticed(const void *piece, size_t bytes)
{
    unsigned char *at = (unsigned char *)(uintptr_t)piece;
    struct standing before, after;
    size_t count = 0;

    CHECK(look(&before));
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        memcpy(whole, memory, PAGE); /* opening writes there */
        at[bit / 8] ^= (unsigned char)(1u << bit % 8);
        bool opened = look(&after);
        memcpy(memory, whole, PAGE);
        if (at - memory >= PAGE)
            at[bit / 8] ^= (unsigned char)(1u << bit % 8);
        count += opened;
        if (opened && !same(&before, &after)) {
            fprintf(stderr, "byte %td, bit %zu: another state, and no error\n",
                    at - memory + (ptrdiff_t)bit / 8, bit % 8);
            check_failures++;
        }
    }
    return count;
}

/* Only a bit of `newest` may go unnoticed: then it is as if the daemon had died just before it
 * named the record. */
static void check_flips(const struct journal *journal)
{
    const struct journal_head *head = journal->head;
    struct standing now;

    CHECK(look(&now));
    const struct journal_record *newest = journal->records[now.record.sequence % 2];
    const struct journal_record *older = journal->records[1 - now.record.sequence % 2];
    CHECK(unnoticed(head, offsetof(struct journal_head, newest)) == 0);
    CHECK(unnoticed(&head->newest, sizeof head->newest) <= 1);
    CHECK(unnoticed(&head->begun, sizeof head->begun) == 0);
    CHECK(unnoticed(&head->done, sizeof head->done) == 0);
    size_t trainer = unnoticed(&head->trainer_pid, sizeof(uint64_t)) +
                     unnoticed(&head->trainer_start, sizeof(uint64_t));
    CHECK(trainer == 0 || now.pid == 0);
    CHECK(unnoticed(&head->trainer_sum, sizeof head->trainer_sum) == 0);
    CHECK(unnoticed(&head->origin_sum, sizeof head->origin_sum) == 0);
    CHECK(unnoticed(head->origin, sizeof head->origin) == 0);
    CHECK(unnoticed(newest, sizeof *newest) == 0);
    CHECK(unnoticed(older, sizeof *older) == 8 * sizeof *older);
    CHECK(unnoticed(journal->blobs[now.record.blob_current], BLOB) == 0);
    CHECK(unnoticed(journal->blobs[1 - now.record.blob_current], BLOB) ==
          (now.record.prepared != 0 ? 0 : 8 * BLOB));
}

static void decide(struct journal *journal, struct journal_record *record, uint64_t step)
{
    record->prepared = record->decision.step = record->decision.updates = step;
    record->blob_bytes[1 - record->blob_current] = BLOB;
    journal_write(journal, record);
}

static void check_damage(void)
{
    struct journal journal;
    struct journal_record record;
    struct standing now;

    start(&journal, &record); /* steps without chunks: no marks yet, and no trainer */
    check_flips(&journal);
    journal_set_trainer(&journal, 4711, 815);
    journal_set_origin(&journal, "step 7 of save 0123");
    decide(&journal, &record, 4);
    check_flips(&journal);
    for (uint64_t chunk = 0; chunk < 3; chunk++) {
        journal_begin_chunk(&journal, 4, chunk);
        CHECK(look(&now) && now.progress.done == chunk && now.progress.in_flight);
        check_flips(&journal);
        journal_end_chunk(&journal, 4, chunk);
        CHECK(look(&now) && now.progress.done == chunk + 1 && !now.progress.in_flight);
        check_flips(&journal);
    }
    record.prepared = 0;
    write_step(&journal, &record, 4);
    check_flips(&journal);
    decide(&journal, &record, 5); /* its marks are of the update before */
    CHECK(look(&now) && now.progress.done == 0 && !now.progress.in_flight && now.pid == 4711);
    check_flips(&journal);
}

/* ---- what is said --------------------------------------------------------------------------- */

static void check_said(const struct journal_head *wanted, zero_code code, const char *text)
{
    struct journal journal;
    struct journal_record record;

    CHECK(journal_open(&journal, memory, wanted, &record).code == code);
    CHECK_CONTAINS(fail_detail(), text);
}

#define SPOIL(word, value, code, text)              \
    do {                                            \
        memcpy(whole, memory, sizeof memory);       \
        (word) = (value);                           \
        check_said(&identity, ZERO_##code, (text)); \
        memcpy(memory, whole, sizeof memory);       \
    } while (0)

static void check_texts(void)
{
    const struct journal_head rank = { .rank = 2, .world = 4, .model = 77 };
    const struct journal_head world = { .rank = 1, .world = 8, .model = 77 };
    const struct journal_head model = { .rank = 1, .world = 4, .model = 78 };
    struct journal journal;
    struct journal_record record;

    start(&journal, &record);
    journal_set_trainer(&journal, 4711, 815);
    journal_begin_chunk(&journal, 3, 0);
    check_said(&rank, ZERO_CORRUPT, "it belongs to rank 1 of 4, not to rank 2 of 4");
    check_said(&world, ZERO_CORRUPT, "it belongs to rank 1 of 4, not to rank 1 of 8");
    check_said(&model, ZERO_CORRUPT, "it belongs to another model or config");
    SPOIL(journal.head->magic, 1, CORRUPT, "this is no journal of zerod");
    SPOIL(journal.head->version, 99, VERSION, "journal version 99");
    SPOIL(journal.head->world, 5, CORRUPT, "its head does not check out");
    SPOIL(journal.head->newest, 5, CORRUPT, "its newest record 5 does not check out");
    SPOIL(journal.head->newest, 1, CORRUPT, "names 1 as its newest record, and has record 4");
    SPOIL(journal.head->begun, 9, CORRUPT, "the chunk 9 that it names as begun is of no update");
    SPOIL(journal.head->done, 8, CORRUPT, "the chunk 8 that it names as done is of no update");
    SPOIL(journal.head->trainer_pid, 12, CORRUPT, "its last trainer (pid 12)");
    SPOIL(journal.head->origin[0], 'x', CORRUPT, "the checkpoint it began with");
    SPOIL(journal.records[0]->step, 2, CORRUPT, "its newest record 4 does not check out");
    journal.records[1]->step = 0;
    SPOIL(journal.records[0]->step, 2, CORRUPT, "neither of its two records checks out");
    journal_begin_chunk(&journal, 3, 2);
    check_said(&identity, ZERO_CORRUPT, "of update 3 chunk 2 was begun and 0 are done");
}

int main(void)
{
    log_init(0, (enum log_level)0); /* thousands of errors are wanted */
    check_deaths();
    check_damage();
    check_texts();
    return check_done();
}
