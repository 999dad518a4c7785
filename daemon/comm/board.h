/* SPDX-License-Identifier: MIT */
/* board.h: what a rank tells the others, in memory of its own that they map read-only.
 *
 * Words are 64-bit and carry the attempt they belong to, so a reader can never take an old one for
 * a new one. An attempt is one try at a step: it ends in a decision (apply, skip or abort) and the
 * next has the next number.
 *
 *   | head (one page) | layer 0 | layer 1 | ... | norm partials of own shards, in layer order |
 *
 * Owns    nothing: a layout of shared pages.
 * Thread  the owner's worker writes; every worker reads. Plain fields are published by the release
 *         store of the word named beside them.
 * Uses    layout.   Used by comm, step.
 */
#ifndef DAEMON_COMM_BOARD_H
#define DAEMON_COMM_BOARD_H

#include <stdatomic.h>
#include <stdint.h>

#include "proto/layout.h"

enum {
    BOARD_VERSION = 5,
    BOARD_SCALARS = 8,
    BOARD_SCALAR_NAME = 32,
    BOARD_PATH = 1280,
    BOARD_TEXT = 384
};

enum board_outcome { BOARD_APPLY, BOARD_SKIP, BOARD_ABORT, BOARD_DISAGREE };

struct board_scalar {
    char name[BOARD_SCALAR_NAME];
    double value;
};

/* A rank's part of a step. Published by `voted`. */
struct board_vote {
    double lr;
    uint64_t scalar_count;
    struct board_scalar scalars[BOARD_SCALARS];
};

/* The group's decision, made by rank 0. Published by `decided`. */
struct board_decision {
    uint64_t outcome; /* enum board_outcome */
    uint64_t step;    /* committed steps after it */
    uint64_t updates; /* applied steps after it: Adam's t */
    uint64_t skipped_in_row;
    double factor;    /* every summed gradient is multiplied by it once */
    double grad_norm; /* of the mean gradient, unscaled */
    double lr;
    double next_scale;  /* loss scale of the next step */
    uint64_t upgrade;   /* after it every daemon gives its place to the program that is there now */
    uint64_t exhausted; /* overflow at the smallest loss scale */
    double means[BOARD_SCALARS];
    uint64_t rank;   /* DISAGREE: who differs from rank 0, */
    uint64_t scalar; /* and in which scalar's name; BOARD_SCALARS: in lr */
};

/* An initial-value piece that rank 0 has in its staging arena. Published by `fill_sent`. */
struct board_fill {
    uint64_t tensor, offset, count, staging_offset;
};

struct board_head {
    uint64_t magic, version;
    _Atomic uint64_t attempt; /* the one this rank is in */
    _Atomic uint64_t asked;   /* attempt whose step the trainer asked for: submissions are final */
    _Atomic uint64_t summed;  /* attempt whose gradients are all summed in own shards */
    _Atomic uint64_t voted;   /* attempt */
    _Atomic uint64_t applied; /* step whose update is whole in what this rank updates */
    _Atomic uint64_t abort_wanted; /* attempt whose trainer died before asking */
    _Atomic uint64_t decided;      /* rank 0: attempt */
    _Atomic uint64_t submissions;  /* entries ever written to the order log below */
    _Atomic uint64_t pressure;     /* attempt in which the trainer is out of windows */
    _Atomic uint64_t listening;    /* wants to be woken when a peer finishes a layer */
    _Atomic uint64_t trainer_pid;  /* 0: none; for messages only */
    _Atomic uint64_t daemon_pid;   /* for messages only */
    _Atomic uint64_t leaving;      /* the daemon was told to end */
    _Atomic uint64_t beat;         /* CLOCK_MONOTONIC ns of the owner's last tick */
    _Atomic uint64_t fill_source;  /* 1 + enum zero_fill_source, once known */
    _Atomic uint64_t fill_sent;    /* rank 0: pieces published */
    _Atomic uint64_t fill_taken;   /* pieces of rank 0 copied */
    _Atomic uint64_t fill_ended; /* own trainer said that it is done, and own shards are complete */
    _Atomic uint64_t fill_copied; /* replicas are equal to their owners' */
    _Atomic uint64_t save_order;  /* rank 0: see save.h */
    _Atomic uint64_t save_said;
    _Atomic uint64_t save_moved;   /* bytes allocated, copied and written: grows while it goes on */
    _Atomic uint64_t save_written; /* of its part, */
    _Atomic uint64_t save_total;   /* of how many */
    _Atomic uint64_t finishing;    /* told to end, and may still save */
    uint64_t save_step;            /* rank 0: published by save_order */
    uint64_t own_step;             /* rank 0: of the last save into zerod.checkpoint.dir */
    char own_save[24];             /* and its id: the folder there may be of another save */
    char save_path[BOARD_PATH];    /* rank 0: published by save_order */
    char save_text[BOARD_TEXT];    /* published by save_said */
    struct board_fill fill;
    struct board_vote vote;
    struct board_decision decision;
};

struct board_layer {
    _Atomic uint64_t
        submitted;           /* BOARD_WORD(attempt, k, 0): own trainer's k-th submission is there */
    uint64_t window_offset;  /* bytes in the window arena; published by `submitted` */
    _Atomic uint64_t folded; /* BOARD_WORD(attempt, k, r): own shard has summed everything before
                                the k-th submission of rank r */
    uint64_t order;          /* entry of the order log: layer numbers in order of submission;
                                published by `submissions` */
    uint64_t padding[4];
};

enum { BOARD_HEAD_BYTES = 4096 };
_Static_assert(sizeof(struct board_head) <= BOARD_HEAD_BYTES, "the head is one page");
_Static_assert(sizeof(struct board_layer) == 64, "a cache line a layer");

#define BOARD_MAGIC UINT64_C(0x5a45524f424f4152)

/* attempt: 40 bits, k: 16 bits, rank: 8 bits. Words of one attempt compare in order of (k, rank).
 */
#define BOARD_WORD(attempt, k, rank) \
    ((uint64_t)(attempt) << 24 | (uint64_t)(k) << 8 | (uint64_t)(rank))
#define BOARD_WORD_ATTEMPT(word) ((word) >> 24)
#define BOARD_WORD_K(word) ((word) >> 8 & 0xffff)
enum { BOARD_MAX_K = 0xfffe };

static inline struct board_layer *board_layers(const struct board_head *head)
{
    return (struct board_layer *)((char *)(uintptr_t)head + BOARD_HEAD_BYTES);
}

/* The partial of chunk 0 of layer 0; a layer's chunks start at shard_offset / ZERO_NORM_CHUNK. */
static inline double *board_norms(const struct board_head *head, uint32_t layer_count)
{
    return (double *)(board_layers(head) + layer_count);
}

#endif
