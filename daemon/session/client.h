/* SPDX-License-Identifier: MIT */
/* client.h: one connection, and the rank-wide state that connections share.
 *
 *   FRESH ─hello─► WAITING (its turn) ─► WELCOMED ─register─► JOINING (other ranks) ─► ATTACHING
 *                                            ▲────── error ──────┘                        │
 *                                        observers: WELCOMED ─► ATTACHED ◄────────────────┘
 *
 * Owns    as session.h.
 * Thread  the loop's.
 * Uses    session.   Used by the files of daemon/session.
 */
#ifndef DAEMON_SESSION_CLIENT_H
#define DAEMON_SESSION_CLIENT_H

#include "daemon/session/session.h"
#include "daemon/session/versions.h"
#include "proto/frame.h"
#include "proto/zero/v1/session.pb-c.h"

enum {
    SESSIONS_MAX = 48,        /* connections at once */
    SESSIONS_TICK_MS = 50,    /* while somebody waits for its turn */
    SESSIONS_TURN_MS = 30000, /* for the last trainer's process to go, once its step is decided */
    FRAME_TENSORS = 100,      /* of a REGISTER_TENSORS frame: fits whatever their names */
};

enum client_state {
    FRESH,
    WAITING,
    WELCOMED,
    JOINING,
    SENDING_MODEL,
    ATTACHING,
    ATTACHED,
    CLOSING
};
enum client_role { ROLE_TRAINER = 0, ROLE_OBSERVER = 1 }; /* enum zero_role */

/* A model as it comes in, piece by piece. */
struct draft {
    char *config;
    size_t config_bytes;
    struct draft_tensor {
        char *name;
        uint64_t shape[ZERO_MAX_DIMS];
        uint32_t dims, layer;
        double lr_scale, weight_decay;
    } * tensors;
    size_t tensor_count, tensor_room;
    char **layers;
    size_t layer_count, layer_room;
};

struct client {
    struct sessions *sessions;
    struct client *next;
    uint64_t token;
    enum client_state state;
    enum client_role role;
    int socket, pidfd; /* pidfd -1: not to be had */
    uint32_t pid;
    uint64_t deadline_ns; /* WAITING, READS_SOON */
    uv_poll_t poll, pid_poll;
    int open_handles;
    bool saves;                                              /* an observer: see saves.h */
    enum { READS_NOTHING, READS_SOON, READS_VERSION } reads; /* an observer */
    uint64_t version;      /* SOON: the earliest step that will do; VERSION: its step */
    uint32_t sent_tensors; /* SENDING_MODEL */
    struct draft draft;
};

struct sessions {
    struct sessions_options options;
    int listener;
    uv_poll_t listen_poll;
    uv_timer_t tick; /* clients that wait, and the listener after it ran out of fds */
    bool tick_runs, listener_pauses;
    struct versions versions;
    char path[128];
    struct client *clients;
    uint32_t client_count;
    uint64_t next_token;
    struct client *trainer; /* has the rank, from its welcome on */
    bool leaving;           /* the engine has not said DETACHED yet */
    uint64_t leaving_token;
    int old_pidfd; /* the last trainer's, while it may live; -1: gone */
    uint32_t old_pid;
    enum { MODEL_NONE, MODEL_JOINING, MODEL_JOINED } model;
    bool closing;
    int open_handles;
    void (*on_closed)(void *context);
    void *context;
};

/* client.c */
zero_status client_accept(struct sessions *sessions, int socket);
void client_close(struct client *client);
void client_send(struct client *client, enum zero_frame_type type, const void *message,
                 const struct zero_frame_fds *fds);
/* Answers with an ERROR frame that says what the last FAIL or REFUSE said. */
void client_refuse(struct client *client, zero_status s);
/* Asks for another poll direction. */
void client_watch(struct client *client, bool writable);
struct client *client_find(const struct sessions *sessions, uint64_t token);
/* Welcomes whoever waits, if the rank is free now. */
void client_next_turn(struct sessions *sessions);
void sessions_start_tick(struct sessions *sessions);
void sessions_handle_closed(struct sessions *sessions);

/* register.c */
void register_config(struct client *client, const Zero__V1__RegisterConfig *message);
void register_tensors(struct client *client, const Zero__V1__RegisterTensors *message);
void register_end(struct client *client, const Zero__V1__RegisterEnd *message);
void register_joined(struct client *client, const struct engine_event *event);
void draft_clear(struct draft *draft);

/* reply.c */
void reply_begin(struct client *client, bool with_model);
void reply_go_on(struct client *client);
void reply_registered(struct client *client);

#endif
