/* SPDX-License-Identifier: MIT */
/* session.h: trainers and observers of this rank, on their Unix socket.
 *
 * One trainer at a time. A trainer's successor is welcomed when the last one's process is gone (it
 * could still write to its windows) and what it had begun is decided.
 *
 * Owns    the listener and every client's socket and pidfd.
 * Thread  the loop's.
 * Order   sessions_close before the loop ends; the loop runs until on_closed.
 * Fails   SYSTEM at start; a client's mistake costs it an error, a broken frame its connection.
 * Uses    base, shard, step, frame.   Used by main.
 */
#ifndef DAEMON_SESSION_SESSION_H
#define DAEMON_SESSION_SESSION_H

#include <uv.h>

#include "daemon/step/step.h"

struct sessions;
struct version;

struct sessions_options {
    uv_loop_t *loop;
    const char *dir;
    uint32_t rank, world;
    struct engine *engine;
};

zero_status sessions_open(const struct sessions_options *options, struct sessions **out);
void sessions_close(struct sessions *sessions, void (*on_closed)(void *context), void *context);

/* The engine takes a model back that a dead daemon had (token 0): nobody is welcomed before its
 * ENGINE_JOINED. */
void sessions_recover(struct sessions *sessions);

/* Tells every client that no successor will come: otherwise they wait for one. */
void sessions_farewell(struct sessions *sessions);

/* An event of the engine. */
void sessions_event(struct sessions *sessions, const struct engine_event *event);

/* The worker may have committed a step: time for a version, perhaps. */
void sessions_stepped(struct sessions *sessions);

/* For status. */
bool sessions_joined(const struct sessions *sessions); /* a model is there: engine_shard is valid */
uint32_t sessions_trainer_pid(const struct sessions *sessions); /* 0: none */
uint32_t sessions_observers(const struct sessions *sessions);
/* The versions that are kept, by step; valid until the loop goes on. */
uint32_t sessions_versions(const struct sessions *sessions, const struct version **out);
struct zero_versions_plan sessions_versions_plan(const struct sessions *sessions);

#endif
