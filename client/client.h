/* SPDX-License-Identifier: MIT */
/* client.h: what the files of libzeroclient share.
 *
 * Owns    see each field.
 * Thread  as zeroclient.h; what several threads use at once is atomic.
 * Uses    zeroclient.h, frame, layout, ring.   Used by client only; not installed.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <stdatomic.h>

#include "client/zeroclient.h"
#include "proto/frame.h"
#include "proto/layout.h"
#include "proto/ring.h"
#include "proto/zero/v1/session.pb-c.h"

/* A mapped memory object; base NULL: none. */
struct mapping {
    void *base;
    size_t bytes;
};

struct zero_client {
    int socket;
    enum zero_role role;
    uint32_t rank, world;
    struct zero_client_info info;
    uint32_t deadline_ms; /* of every wait, as the daemon's config says */

    struct zero_layout *layout; /* NULL until registered */
    struct mapping ring_map, bell_map, window_map, staging_map, param_map;
    struct zero_ring *ring;
    struct zero_bell *bell;
    unsigned char *params;    /* the gathered model: layer l at flat_offset elements */
    unsigned char *window;    /* the gradient window arena */
    unsigned char *blob;      /* of the last committed step; room for ZERO_MAX_BLOB */
    _Atomic uint64_t attempt; /* the one this trainer computes for */
    atomic_bool lost;         /* the daemon is gone, or what it says makes no sense any more */
    atomic_bool step_asked;   /* a step was asked for and its outcome is not known yet */
    struct waiting {
        enum zero_ring_call call;
        uint32_t layer, generation;
        uint64_t offset, count; /* of a read */
    } waiting[ZERO_RING_SLOTS]; /* what each begun call was about; the claimer's */
    uint64_t read_places;       /* of begun reads in staging, a bit each */
};

/* Longer deadlines are cut to this, a day: they still fit in an int when something is added. */
enum { CLIENT_MAX_DEADLINE_MS = 24 * 3600 * 1000 };

/* ---- errors (error.c) ---- */

/* Keeps the text for zero_error_text, and returns the status. */
__attribute__((format(printf, 4, 5))) zero_status
client_fail(const zero_client *client, zero_code code, const char *doing, const char *format, ...);

/* INVALID_ARGUMENT when a pointer that a call cannot do without is NULL. */
zero_status client_need(const zero_client *client, const void *pointer, const char *name);

/* ---- ring.c ---- */

/* What goes into an entry. */
struct call {
    enum zero_ring_call call;
    uint32_t layer;
    uint64_t arg[4];
};

/* A call without an answer; `ring_bell` when the daemon has something to do now. */
zero_status ring_post(zero_client *client, const struct call *call, bool ring_bell);
zero_status ring_begin(zero_client *client, const struct call *call, zero_op *out);
/* Waits for the answer to an op of this call; out_value may be NULL. Frees the slot if one came:
 * without, the daemon may still write to it. */
zero_status ring_wait(zero_client *client, zero_op op, enum zero_ring_call call,
                      uint64_t *out_value);

/* STEP_PENDING while a step's outcome is not known; STEP_ABORTED, once, when the group has dropped
 * the attempt this trainer computes for. */
zero_status ring_check_attempt(zero_client *client);

/* ---- mapping.c ---- */

/* Maps what came with REGISTERED. On failure nothing stays mapped. */
zero_status mapping_open(zero_client *client, const struct zero_frame *registered);
void mapping_close(zero_client *client);

/* ---- attach.c ---- */

/* Sends a frame, waiting for room as long as the daemon's deadline. */
zero_status client_send(zero_client *client, enum zero_frame_type type, const void *message);
/* Receives one frame of any type but ERROR, which becomes its status. A session in which no answer
 * came, or a broken one, is lost: a later answer would be taken for that of another question. */
zero_status client_hear(zero_client *client, size_t fds, int deadline_ms, struct zero_frame *out);
/* The same, and of that type. */
zero_status client_receive(zero_client *client, enum zero_frame_type type, size_t fds,
                           int deadline_ms, struct zero_frame *out);

/* ---- model.c ---- */

zero_status model_check_layer(const zero_client *client, uint32_t layer);

#endif
