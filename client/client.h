/* SPDX-License-Identifier: MIT */
/* client.h: what the files of libzeroclient share.
 *
 * Owns    see each field.
 * Thread  as zeroclient.h; what several threads use at once is atomic.
 * Uses    zeroclient.h, frame, layout, ring.   Used by client only; not installed.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/un.h>

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
    struct sockaddr_un address; /* of the daemon's socket */
    enum zero_role role;
    bool (*interrupted)(void *context); /* NULL: waits are not */
    void *context;
    uint32_t rank, world;
    struct zero_client_info info;
    uint32_t deadline_ms; /* of every wait, as the daemon's config says */
    uint64_t model;       /* the daemon's hash of the model and config */

    struct zero_layout *layout; /* NULL until registered */
    struct mapping ring_map, bell_map, window_map, staging_map, param_map;
    struct zero_ring *ring;
    struct zero_bell *bell;
    unsigned char *params;    /* the gathered model: layer l at flat_offset elements; an observer's
                                 open version, or NULL */
    unsigned char *window;    /* the gradient window arena */
    unsigned char *blob;      /* of the last committed step; room for ZERO_MAX_BLOB */
    _Atomic uint64_t attempt; /* the one this trainer computes for */
    atomic_bool lost;         /* the daemon is gone, or what it says makes no sense any more */
    atomic_bool ended;        /* and no other will come */
    atomic_uint users;        /* threads between enter and leave */
    atomic_uint session;      /* counts renewals */
    uint32_t version_session; /* in which the open version was opened */
    pthread_mutex_t renewing;
    atomic_bool step_asked; /* a step was asked for and its outcome is not known yet */
    bool step_left;         /* and the wait for step_op was given up */
    zero_op step_op;
    struct waiting {
        enum zero_ring_call call;
        uint32_t layer, generation, session;
        uint64_t offset, count, tensor, first; /* of a read: arg[3], [2], [0], [1] of its call */
    } waiting[ZERO_RING_SLOTS];                /* what each begun call was about; the claimer's */
    uint64_t read_places;                      /* of begun reads in staging, a bit each */
};

/* Longer deadlines are cut to this, a day: they still fit in an int when something is added. */
enum { CLIENT_MAX_DEADLINE_MS = 24 * 3600 * 1000 };

/* ---- errors (error.c) ---- */

/* Keeps the text for zero_error_text, and returns the status. */
__attribute__((format(printf, 4, 5))) zero_status
client_fail(const zero_client *client, zero_code code, const char *doing, const char *format, ...);

/* INTERRUPTED when the caller does not want to wait longer. */
zero_status client_interrupted(const zero_client *client);
enum { CLIENT_LOOK_MS = 50 }; /* how often a wait asks */

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

/* ---- renew.c ---- */

/* Between the two the ring stays the one it is, for calls that do not sleep. False: the session is
 * lost, renew it first. */
bool session_enter(zero_client *client);
void session_leave(zero_client *client);

/* Takes a lost session up with the daemon's successor; OK also when another thread just has. */
zero_status session_renew(zero_client *client);

/* ---- mapping.c ---- */

/* Maps what came with REGISTERED. On failure nothing stays mapped. */
zero_status mapping_open(zero_client *client, const struct zero_frame *registered);
/* Maps the same things of a new session over what is mapped: every pointer stays good. */
zero_status mapping_renew(zero_client *client, const struct zero_frame *registered);
void mapping_close(zero_client *client);
/* Maps a version, or takes it away. */
zero_status mapping_version(zero_client *client, int fd);
void mapping_unversion(zero_client *client);

/* ---- attach.c ---- */

int64_t client_now_ms(void);

/* Connects and greets, until `end`; the socket that was there is closed. */
zero_status session_connect(zero_client *client, int64_t end);

/* DAEMON_LOST when the session is. */
zero_status client_check(zero_client *client);
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
