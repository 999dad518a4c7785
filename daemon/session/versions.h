/* SPDX-License-Identifier: MIT */
/* versions.h: the versions that this rank keeps, and which observer reads which.
 *
 * A version is made in three steps: memory, on a thread of its own, since the kernel has to zero
 * it; the copy, by the engine's worker; then it is frozen. One is made at a time, for all who wait.
 *
 * Owns    the versions' memory, but for one that the engine is copying into.
 * Thread  the loop's.
 * Fails   BUSY when as many versions as the config allows are being read.
 * Uses    client.   Used by the files of daemon/session.
 */
#ifndef DAEMON_SESSION_VERSIONS_H
#define DAEMON_SESSION_VERSIONS_H

#include <uv.h>

#include "daemon/step/step.h"
#include "proto/zero/v1/session.pb-c.h"

struct client;
struct sessions;

struct version {
    struct device_buf buf; /* frozen */
    uint64_t step, made_ns;
    uint32_t readers;
};

struct versions {
    struct version kept[ZERO_MAX_VERSIONS]; /* by step */
    uint32_t count;
    enum { MAKING_NOTHING, MAKING_MEMORY, MAKING_COPY } making;
    uv_work_t work;
    struct {
        size_t bytes;
        struct device_buf buf;
        zero_status status;
        char text[ZERO_DETAIL_BYTES];
    } draft;      /* MAKING_MEMORY: the work's */
    uint64_t due; /* the multiple of zerod.versions.every_steps that was made last */
};

void versions_open(struct client *client, const Zero__V1__VersionOpen *message);
void versions_close(struct client *client);
void versions_list(struct client *client);
/* The client goes: so does what it reads or waits for. */
void versions_leave(struct client *client);
/* Refuses those who have waited too long. */
void versions_expire(struct sessions *sessions, uint64_t now);
/* ENGINE_COPIED. */
void versions_copied(struct sessions *sessions, const struct engine_event *event);
void versions_deinit(struct sessions *sessions);

#endif
