/* SPDX-License-Identifier: MIT */
#include "client/ctl/rpc.h"

#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <grpc/support/log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/zero/v1/control.pb-c.h"

const struct rpc_method rpc_status = { "/zero.v1.Control/Status",
                                       &zero__v1__status_request__descriptor,
                                       &zero__v1__status_reply__descriptor };
const struct rpc_method rpc_versions = { "/zero.v1.Control/Versions",
                                         &zero__v1__versions_request__descriptor,
                                         &zero__v1__versions_reply__descriptor };
const struct rpc_method rpc_shutdown = { "/zero.v1.Control/Shutdown",
                                         &zero__v1__shutdown_request__descriptor,
                                         &zero__v1__shutdown_reply__descriptor };
const struct rpc_method rpc_save = { "/zero.v1.Control/Save", &zero__v1__save_request__descriptor,
                                     &zero__v1__save_reply__descriptor };
const struct rpc_method rpc_save_status = { "/zero.v1.Control/SaveStatus",
                                            &zero__v1__save_status_request__descriptor,
                                            &zero__v1__save_status_reply__descriptor };
const struct rpc_method rpc_upgrade = { "/zero.v1.Control/Upgrade",
                                        &zero__v1__upgrade_request__descriptor,
                                        &zero__v1__upgrade_reply__descriptor };

enum { MOST_SOCKET_BYTES = 108 };

struct rpc {
    grpc_completion_queue *queue;
};

struct rpc_call {
    struct rpc *rpc;
    char socket[MOST_SOCKET_BYTES];
    const struct rpc_method *method;
    grpc_channel *channel;
    grpc_call *handle;
    grpc_byte_buffer *reply;
    grpc_metadata_array first, trailing;
    grpc_status_code code;
    grpc_slice details;
};

/* The commands say themselves what went wrong. */
static void drop_line(gpr_log_func_args *line)
{
    (void)line;
}

struct rpc *rpc_open(void)
{
    struct rpc *rpc = calloc(1, sizeof *rpc);

    if (rpc == NULL)
        return NULL;
    gpr_set_log_function(drop_line);
    grpc_init();
    rpc->queue = grpc_completion_queue_create_for_pluck(NULL);
    return rpc;
}

void rpc_close(struct rpc *rpc)
{
    const gpr_timespec forever = gpr_inf_future(GPR_CLOCK_REALTIME);

    if (rpc == NULL)
        return;
    grpc_completion_queue_shutdown(rpc->queue);
    while (grpc_completion_queue_pluck(rpc->queue, NULL, forever, NULL).type != GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(rpc->queue);
    grpc_shutdown_blocking();
    free(rpc);
}

/* The target is a URI: everything that could mean something in it is escaped. */
static void write_target(char *to, const char *socket)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/";

    to += sprintf(to, "unix:");
    for (; *socket != '\0'; socket++) {
        if (strchr(plain, *socket) != NULL)
            *to++ = *socket;
        else
            to += sprintf(to, "%%%02X", (unsigned)(unsigned char)*socket);
    }
    *to = '\0';
}

static void begin(struct rpc_call *call, const ProtobufCMessage *message)
{
    size_t bytes = message != NULL ? protobuf_c_message_get_packed_size(message) : 0;
    grpc_slice packed = grpc_slice_malloc(bytes);
    if (bytes > 0)
        protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(packed));
    grpc_byte_buffer *request = grpc_raw_byte_buffer_create(&packed, 1);
    grpc_slice_unref(packed);
    grpc_op ops[6] = {
        { .op = GRPC_OP_SEND_INITIAL_METADATA },  { .op = GRPC_OP_SEND_MESSAGE },
        { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT }, { .op = GRPC_OP_RECV_INITIAL_METADATA },
        { .op = GRPC_OP_RECV_MESSAGE },           { .op = GRPC_OP_RECV_STATUS_ON_CLIENT }
    };

    ops[1].data.send_message.send_message = request;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &call->first;
    ops[4].data.recv_message.recv_message = &call->reply;
    ops[5].data.recv_status_on_client.trailing_metadata = &call->trailing;
    ops[5].data.recv_status_on_client.status = &call->code;
    ops[5].data.recv_status_on_client.status_details = &call->details;
    grpc_call_error e = grpc_call_start_batch(call->handle, ops, 6, call, NULL);
    GPR_ASSERT(e == GRPC_CALL_OK); /* only a wrong batch is refused */
    grpc_byte_buffer_destroy(request);
}

struct rpc_call *rpc_start(struct rpc *rpc, const char *socket, const struct rpc_method *method,
                           const ProtobufCMessage *request, unsigned deadline_ms)
{
    struct rpc_call *call = calloc(1, sizeof *call);
    char target[sizeof "unix:" + (size_t)3 * MOST_SOCKET_BYTES];

    if (call == NULL || strlen(socket) >= MOST_SOCKET_BYTES) {
        free(call);
        return NULL;
    }
    write_target(target, socket);
    memcpy(call->socket, socket, strlen(socket) + 1);
    call->rpc = rpc;
    call->method = method;
    call->details = grpc_empty_slice();
    grpc_metadata_array_init(&call->first);
    grpc_metadata_array_init(&call->trailing);
    grpc_channel_credentials *insecure = grpc_insecure_credentials_create();
    call->channel = grpc_channel_create(target, insecure, NULL);
    grpc_channel_credentials_release(insecure);
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(deadline_ms, GPR_TIMESPAN));
    call->handle =
        grpc_channel_create_call(call->channel, NULL, GRPC_PROPAGATE_DEFAULTS, rpc->queue,
                                 grpc_slice_from_static_string(method->name), NULL, deadline, NULL);
    begin(call, request);
    return call;
}

static ProtobufCMessage *unpack(const struct rpc_call *call)
{
    grpc_byte_buffer_reader reader;

    if (call->reply == NULL || !grpc_byte_buffer_reader_init(&reader, call->reply))
        return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    ProtobufCMessage *reply = protobuf_c_message_unpack(
        call->method->reply, NULL, GRPC_SLICE_LENGTH(slice), GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return reply;
}

/* gRPC speaks of its own addresses: what the socket itself says is plainer. */
static void explain_gone(const char *socket_path, struct rpc_answer *out)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return;
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    int error = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    close(fd);
    if (error == 0 || error == EAGAIN)
        snprintf(out->text, sizeof out->text,
                 "the connection to %s broke off: its daemon was started again, or lets nobody in",
                 socket_path);
    else if (error == ECONNREFUSED)
        snprintf(out->text, sizeof out->text,
                 "no process listens on %s: its daemon is dead, or is only starting", socket_path);
    else
        snprintf(out->text, sizeof out->text, "%s: %s", socket_path, strerror(error));
}

static void read_answer(const struct rpc_call *call, struct rpc_answer *out)
{
    char *details = grpc_slice_to_c_string(call->details);

    *out = (struct rpc_answer){ .end = RPC_REFUSED };
    if (call->code == GRPC_STATUS_OK) {
        out->reply = unpack(call);
        out->end = out->reply != NULL ? RPC_ANSWERED : RPC_REFUSED;
        snprintf(out->text, sizeof out->text, "its answer is not a %s", call->method->reply->name);
    } else if (call->code == GRPC_STATUS_DEADLINE_EXCEEDED) {
        out->end = RPC_SILENT;
        snprintf(out->text, sizeof out->text, "no answer before the deadline");
    } else {
        snprintf(out->text, sizeof out->text, "%s", details);
        if (call->code == GRPC_STATUS_UNAVAILABLE || call->code == GRPC_STATUS_CANCELLED) {
            out->end = RPC_GONE;
            explain_gone(call->socket, out);
        }
    }
    gpr_free(details);
}

void rpc_wait(struct rpc_call *call, struct rpc_answer *out)
{
    if (call == NULL) {
        *out = (struct rpc_answer){ .end = RPC_REFUSED };
        snprintf(out->text, sizeof out->text, "no memory, or its socket's path is too long");
        return;
    }
    grpc_completion_queue_pluck(call->rpc->queue, call, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    read_answer(call, out);
    if (call->reply != NULL)
        grpc_byte_buffer_destroy(call->reply);
    grpc_metadata_array_destroy(&call->first);
    grpc_metadata_array_destroy(&call->trailing);
    grpc_slice_unref(call->details);
    grpc_call_unref(call->handle);
    grpc_channel_destroy(call->channel);
    free(call);
}
