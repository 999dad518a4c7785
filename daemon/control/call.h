/* SPDX-License-Identifier: MIT */
/* call.h: one gRPC call on the server, from its arrival to the end of its answer.
 *
 * Each call is at most two chains of batches in gRPC's hands: "closed", which tells when the peer
 * is done, and receive, hand over to the loop, answer. The call is freed when both have ended.
 *
 * Owns    the call's handle and request.
 * Thread  call_on_event: the queue's; call_answer: the loop's; the rest either.
 * Order   call_arm, events, then one call_answer for each hand-over.
 * Uses    base.   Used by control.
 */
#ifndef DAEMON_CONTROL_CALL_H
#define DAEMON_CONTROL_CALL_H

#include <grpc/grpc.h>
#include <protobuf-c/protobuf-c.h>

#include "proto/status.h"

struct call;

/* Who arms calls; each function is called on the queue's thread. */
struct call_owner {
    void *context;
    grpc_server *server;
    grpc_completion_queue *queue;
    void (*arrived)(void *context);                     /* arm another one */
    void (*received)(void *context, struct call *call); /* answer it on the loop */
    void (*answered)(void *context, void *mark);        /* the answer is on its way */
    void (*ended)(void *context);                       /* the memory is gone; any thread */
};

/* Waits for a call; false when the server is closed or there is no memory. The owner is borrowed.
 */
bool call_arm(const struct call_owner *owner);

/* What came out of the completion queue. */
void call_on_event(void *tag, bool ok);

/* For the loop's list of calls that wait for an answer. */
struct call *call_next(const struct call *call);
void call_set_next(struct call *call, struct call *next);

/* True when the call is for this method: "/zero.v1.Control/Status". */
bool call_is(const struct call *call, const char *method);

/* The request, to be freed with protobuf_c_message_free_unpacked; NULL when it is not one. */
ProtobufCMessage *call_request(const struct call *call, const ProtobufCMessageDescriptor *type);

/* Answers OK with the reply, or with a code and a text. The call is not the caller's any more. */
struct call_answer {
    const ProtobufCMessage *reply; /* with code GRPC_STATUS_OK */
    grpc_status_code code;
    const char *text;
    void *mark; /* given to owner->answered */
};
void call_answer(struct call *call, const struct call_answer *answer);

#endif
