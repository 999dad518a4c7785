/* SPDX-License-Identifier: MIT */
/* journal.h: what a rank must know to go on after its daemon died, in an arena that outlives it.
 *
 *   | head (a page) | record 0 | record 1 | blob 0 | blob 1 | undo slot |
 *
 * A record is everything about the rank that a step changes. It is written to the slot that is not
 * the newest, then gets its checksum: a death in the middle leaves the newest one as it was. The
 * newest whole record counts.
 *
 * The update of a step goes through numbered chunks. Before a chunk is changed in place its old
 * content is copied to the undo slot and `begun` names it; afterwards `done` counts it. Both carry
 * the number of the update they belong to, so nothing has to be reset. A chunk that was begun and
 * not done is put back as it was, and done again.
 *
 * kill -9 loses no store that was executed, and stores are executed in program order: so the order
 * of the compiler is all that has to be kept here (a signal fence), no flush and no barrier.
 *
 * Whatever decides how to go on has a sum over it and is checked when the journal is opened, so
 * that memory that lost a bit is an error, not another state. The newest record must be whole: the
 * one before it is never taken instead, since the group may have gone on from the newest. A record
 * that is whole and not named yet counts (nobody acted on it, and it may be acted on now: it is
 * named at once, so that the next one does not overwrite it). Not covered is what is as good as the
 * state itself, which has no sums either: the undo slot's content.
 *
 * Owns    nothing: a layout of an arena.
 * Thread  the worker.
 * Fails   CORRUPT when something does not check out, VERSION when another zerod wrote it: never a
 *         guess.
 * Uses    comm, fail.   Used by step.
 */
#ifndef DAEMON_STEP_JOURNAL_H
#define DAEMON_STEP_JOURNAL_H

#include "daemon/comm/comm.h"
#include "daemon/step/scaler.h"
#include "proto/plan.h"
#include "proto/ring.h"
#include "proto/status.h"

enum {
    JOURNAL_VERSION = 3,
    JOURNAL_STATES = 4,
    JOURNAL_CHUNK = 512 /* elements: what the kernel has asked ahead for */
};

struct journal_head {
    uint64_t magic, version;
    uint64_t rank, world;
    uint64_t model;                 /* hash of the model's and config's text */
    uint64_t checksum;              /* of the above */
    _Atomic uint64_t newest;        /* sequence of the newest record */
    _Atomic uint64_t begun, done;   /* marks: a chunk, and a sum of it and the update's number */
    _Atomic uint64_t trainer_pid;   /* the last trainer's, */
    _Atomic uint64_t trainer_start; /* and when it was started: pids come again */
    _Atomic uint64_t trainer_sum;   /* of both; 0: there is none */
    uint64_t origin_sum;
    char origin[COMM_ORIGIN_BYTES]; /* the checkpoint that the state began with; "": none */
};

struct journal_record {
    uint64_t sequence;
    uint64_t epoch;   /* last joined */
    uint64_t attempt; /* last begun */
    uint64_t filled;  /* initial values are in */
    uint64_t step;    /* the last whose update is whole in what this rank updates */
    uint64_t updates, skipped_in_row;
    uint64_t replicas; /* the last step whose parameters were fetched from all others */
    uint64_t prepared; /* the step whose summed gradients are kept and voted for; 0: none */
    uint64_t blob_current, blob_bytes[2];
    double loss_scale;
    struct scaler scaler;           /* rank 0's, after the last decision */
    struct board_vote vote;         /* of `prepared` */
    struct board_decision decision; /* the last this rank knows; .step 0: none yet */
    uint64_t blob_hash[2];
    uint64_t checksum; /* of all before it */
};

enum {
    JOURNAL_UNDO_BYTES = JOURNAL_STATES * JOURNAL_CHUNK * 4,
};
_Static_assert(3 * 4096 + 2 * ZERO_RING_MAX_BLOB + JOURNAL_UNDO_BYTES == ZERO_JOURNAL_BYTES,
               "the plan has a journal's size");
_Static_assert(sizeof(struct journal_record) <= 4096, "a record is a page");

struct journal {
    struct journal_head *head;
    struct journal_record *records[2];
    unsigned char *blobs[2];
    unsigned char *undo;
};

/* Starts a journal in zeroed memory, with its first record. */
void journal_init(struct journal *journal, void *base, const struct journal_head *identity,
                  struct journal_record *first);

/* Opens one that was kept, and gives its newest record. */
zero_status journal_open(struct journal *journal, void *base, const struct journal_head *identity,
                         struct journal_record *out);

/* Makes `record` the newest; sequence, hashes and checksum are set here. */
void journal_write(struct journal *journal, struct journal_record *record);

/* How far an update (decision.updates) is: chunks that are done, and whether the next one was begun
 * by a daemon that died. */
struct journal_progress {
    uint64_t done;
    bool in_flight;
};
struct journal_progress journal_progress(const struct journal *journal, uint64_t update);
/* The chunk's old content is in the undo slot: it is about to change. */
void journal_begin_chunk(struct journal *journal, uint64_t update, uint64_t chunk);
void journal_end_chunk(struct journal *journal, uint64_t update, uint64_t chunk);

/* The process that has the gradient windows; pid 0: none. */
void journal_set_trainer(struct journal *journal, uint64_t pid, uint64_t start);
void journal_trainer(const struct journal *journal, uint64_t *out_pid, uint64_t *out_start);

/* Before the arena can outlive its daemon; at most COMM_ORIGIN_BYTES with its NUL. */
void journal_set_origin(struct journal *journal, const char *origin);

#endif
