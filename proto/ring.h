/* SPDX-License-Identifier: MIT */
/* ring.h: the memory a trainer and its daemon share: calls without system calls.
 *
 *   trainer                                          daemon
 *   claims a slot, writes an entry, rings ─────────► copies the entry, does it
 *   sleeps on the slot's state if it must ◄───────── writes the slot's answer, wakes
 *
 * Entries are a bounded queue of several producers and one consumer: entry i is free for turn t
 * when its `turn` is i + t * ZERO_RING_ENTRIES, and full when it is one more. Calls that need no
 * answer (a gather of a resident layer, a release, a submit) use ZERO_RING_NO_SLOT.
 *
 * All of it is writable by the trainer, so the daemon copies an entry before it looks at it, keeps
 * its own positions, and never believes a number here.
 *
 * Owns    nothing: a layout of shared pages.
 * Thread  as the atomics say.
 * Uses    model.   Used by client, daemon/step, daemon/session.
 */
#ifndef ZERO_RING_H
#define ZERO_RING_H

#include <stdatomic.h>
#include <stdint.h>

enum {
    ZERO_PROTOCOL_VERSION = 1,
    ZERO_RING_ENTRIES = 1024, /* a power of two */
    ZERO_RING_SLOTS = 64,
    ZERO_RING_NO_SLOT = 0xffff,
    ZERO_RING_TEXT = 384,
    ZERO_RING_MAX_BLOB = 65536,
    ZERO_RING_SCALARS = 8,
    ZERO_RING_SCALAR_NAME = 32,
};

enum zero_ring_call {
    ZERO_CALL_GATHER,    /* layer; answer: resident */
    ZERO_CALL_PREFETCH,  /* layer */
    ZERO_CALL_RELEASE,   /* layer */
    ZERO_CALL_WINDOW,    /* layer; answer: value[0] = byte offset in the window arena */
    ZERO_CALL_SUBMIT,    /* layer; answer, if asked for, when every rank has reduced it */
    ZERO_CALL_STEP,      /* arguments in zero_ring.step; answer in zero_ring.step and the slot */
    ZERO_CALL_FILL_FROM, /* arg[0] = enum zero_fill_source */
    ZERO_CALL_FILL,      /* layer; arg = tensor, offset, count, staging offset: fp32 in staging */
    ZERO_CALL_FILL_END,
    ZERO_CALL_READ, /* layer; arg = tensor | state << 32, offset, count, staging offset */
    ZERO_CALLS
};

struct zero_ring_entry {
    _Atomic uint32_t turn;
    uint16_t call, slot;
    uint32_t layer;
    uint32_t reserved;
    uint64_t attempt; /* the attempt the caller believes in */
    uint64_t arg[4];
    uint64_t padding;
};

/* A slot's state: bits 0-1 below, the rest a generation that the client counts. */
enum { ZERO_SLOT_FREE = 0, ZERO_SLOT_PENDING = 1, ZERO_SLOT_SLEEPING = 2, ZERO_SLOT_DONE = 3 };

struct zero_ring_slot {
    _Atomic uint32_t state; /* a futex */
    uint32_t code;          /* zero_code */
    uint64_t value[2];
    char text[ZERO_RING_TEXT];
};

struct zero_ring_scalar {
    char name[ZERO_RING_SCALAR_NAME];
    double value;
};

struct zero_ring_step {
    /* arguments */
    double lr;
    uint32_t blob_bytes, scalar_count;
    struct zero_ring_scalar scalars[ZERO_RING_SCALARS];
    uint8_t blob[ZERO_RING_MAX_BLOB];
    /* result */
    uint64_t step, updates;
    uint32_t outcome, skipped_in_row;
    double grad_norm, used_lr, loss_scale;
    double means[ZERO_RING_SCALARS];
};

struct zero_ring {
    /* written by the daemon, read by the trainer */
    _Atomic uint64_t attempt; /* counts steps begun or aborted: a call for another one is refused */
    _Atomic uint32_t resident; /* gathers need no answer: parameters are mapped and stable */
    _Atomic uint32_t alive;    /* 0: the daemon has closed this session */
    uint8_t padding0[48];
    /* written by the trainer */
    _Atomic uint32_t tail;
    uint8_t padding1[60];
    struct zero_ring_entry entries[ZERO_RING_ENTRIES];
    struct zero_ring_slot slots[ZERO_RING_SLOTS];
    struct zero_ring_step step;
};

_Static_assert(sizeof(struct zero_ring_entry) == 64, "an entry is a cache line");

/* What wakes a daemon's worker; shared with its trainer and its peers. */
enum {
    ZERO_BELL_AWAKE,
    ZERO_BELL_ASLEEP, /* must be woken */
    ZERO_BELL_NAPPING /* looks by itself in a moment: woken only for what somebody waits for */
};

struct zero_bell {
    _Atomic uint32_t count; /* a futex: one more a ring */
    _Atomic uint32_t asleep;
};

#endif
