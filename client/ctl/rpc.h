/* SPDX-License-Identifier: MIT */
/* rpc.h: unary gRPC calls over Unix sockets, many at once, each with a deadline.
 *
 * Owns    gRPC's library state and one completion queue; a call until rpc_wait.
 * Thread  one.
 * Order   rpc_open, rpc_start any number of times, rpc_wait for each, rpc_close. Signals that the
 *         program wants to see itself are blocked before, since gRPC starts threads.
 * Fails   an answer says why it is none.
 * Uses    the generated messages.   Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_RPC_H
#define CLIENT_CTL_RPC_H

#include <protobuf-c/protobuf-c.h>

struct rpc;
struct rpc_call;

enum rpc_end {
    RPC_ANSWERED,
    RPC_GONE,    /* nobody listens, or the connection broke */
    RPC_SILENT,  /* no answer before the deadline */
    RPC_REFUSED, /* the daemon answered with an error */
};

struct rpc_answer {
    enum rpc_end end;
    ProtobufCMessage *reply; /* when ANSWERED; free with protobuf_c_message_free_unpacked */
    char text[256];          /* otherwise: why */
};

struct rpc *rpc_open(void);
void rpc_close(struct rpc *rpc);

/* What is called: "/zero.v1.Control/Status" with its messages. */
struct rpc_method {
    const char *name;
    const ProtobufCMessageDescriptor *request, *reply;
};
extern const struct rpc_method rpc_status, rpc_versions, rpc_save, rpc_save_status, rpc_shutdown,
    rpc_upgrade;

/* Sends a request (NULL: an empty one), which is read before this returns, to the daemon that
 * listens on socket. */
struct rpc_call *rpc_start(struct rpc *rpc, const char *socket, const struct rpc_method *method,
                           const ProtobufCMessage *request, unsigned deadline_ms);
void rpc_wait(struct rpc_call *call, struct rpc_answer *out);

#endif
