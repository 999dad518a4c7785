/* SPDX-License-Identifier: MIT */
/* control.h: gRPC for people and tools: service zero.v1.Control on one Unix socket.
 *
 * The socket is accepted by libuv, the peer's uid is checked (own uid or root), and the connection
 * is adopted by gRPC; so a flood of connections cannot stop the listener for good (see the file).
 *
 * Owns    its listener, the gRPC server, one completion-queue thread.
 * Thread  created, closed and called back on the loop's thread.
 * Order   control_close before the loop ends; the loop must run until on_closed.
 * Fails   SYSTEM, IO, NO_MEMORY at start; a bad call costs its sender an error.
 * Uses    base, the generated messages.   Used by main.
 */
#ifndef DAEMON_CONTROL_CONTROL_H
#define DAEMON_CONTROL_CONTROL_H

#include <uv.h>

#include "proto/status.h"
#include "proto/zero/v1/control.pb-c.h"

struct control;

/* What the service answers with; every function is called on the loop's thread. */
struct control_source {
    void *context;
    /* Fills a reply that was initialised. What it points to must stay valid until the next call of
     * the same function. */
    void (*status)(void *context, Zero__V1__StatusReply *reply);
    void (*model)(void *context, Zero__V1__ModelReply *reply);
    void (*versions)(void *context, Zero__V1__VersionsReply *reply);
    /* Begins a save into a folder ("": the config's) and gives its number; then how that save
     * stands.
     */
    uint64_t (*save)(void *context, const char *dir);
    void (*save_status)(void *context, uint64_t id, Zero__V1__SaveStatusReply *reply);
    /* The program shall be tried, or replaced after the next step or now; answered before it is. */
    void (*upgrade)(void *context, const Zero__V1__UpgradeRequest *request,
                    Zero__V1__UpgradeReply *reply);
    /* A shutdown was asked for and answered. */
    void (*shutdown)(void *context);
};

zero_status control_open(uv_loop_t *loop, const char *path, const struct control_source *source,
                         struct control **out);

/* Stops listening, cancels calls, and calls on_closed on the loop when everything is gone; the
 * control is freed before. */
void control_close(struct control *control, void (*on_closed)(void *context), void *context);

#endif
