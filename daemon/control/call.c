/* SPDX-License-Identifier: MIT */
#include "daemon/control/call.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/control/order.h"

/* What a tag in the queue points to: several batches of a call may be in flight. */
struct event {
    struct call *call;
    void (*happened)(struct call *call, bool ok);
};

struct call {
    const struct call_owner *owner;
    struct event arrived, closed, received, answered;
    grpc_call *handle;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *request;
    int cancelled;
    atomic_int chains;
    void *mark;
    struct call *next;
};

static void destroy(struct call *call)
{
    if (call->request != NULL)
        grpc_byte_buffer_destroy(call->request);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->handle != NULL)
        grpc_call_unref(call->handle);
    free(call);
}

static void end_chains(struct call *call, int count)
{
    const struct call_owner *owner = call->owner;

    if (atomic_fetch_sub(&call->chains, count) != count)
        return;
    destroy(call);
    owner->ended(owner->context);
}

/* gRPC refuses a batch only when it is wrong; that costs this call and nothing else. False: its
 * chain has to be ended. */
static bool start(struct call *call, const grpc_op *ops, size_t count, struct event *event)
{
    grpc_call *handle = call->handle;

    order_release(event); /* once the batch is started the call may be gone */
    grpc_call_error e = grpc_call_start_batch(handle, ops, count, event, NULL);
    if (e == GRPC_CALL_OK)
        return true;
    LOG_ERROR("control: start batch: %s", grpc_call_error_to_string(e));
    grpc_call_cancel(handle, NULL);
    return false;
}

static void on_closed(struct call *call, bool ok)
{
    (void)ok;
    end_chains(call, 1);
}

static void on_received(struct call *call, bool ok)
{
    (void)ok; /* without a message the request is NULL */
    call->owner->received(call->owner->context, call);
}

static void on_answered(struct call *call, bool ok)
{
    (void)ok; /* the peer may be gone: what it asked for holds */
    call->owner->answered(call->owner->context, call->mark);
    end_chains(call, 1);
}

static void on_arrived(struct call *call, bool ok)
{
    const struct call_owner *owner = call->owner;
    grpc_op close = { .op = GRPC_OP_RECV_CLOSE_ON_SERVER };
    grpc_op receive = { .op = GRPC_OP_RECV_MESSAGE };

    if (!ok) { /* the server closes: there was no call */
        destroy(call);
        owner->ended(owner->context);
        return;
    }
    atomic_store(&call->chains, 2);
    close.data.recv_close_on_server.cancelled = &call->cancelled;
    receive.data.recv_message.recv_message = &call->request;
    owner->arrived(owner->context);
    if (!start(call, &close, 1, &call->closed))
        end_chains(call, 2);
    else if (!start(call, &receive, 1, &call->received))
        end_chains(call, 1);
}

bool call_arm(const struct call_owner *owner)
{
    struct call *call = calloc(1, sizeof *call);

    if (call == NULL)
        return false;
    call->owner = owner;
    call->arrived = (struct event){ call, on_arrived };
    call->closed = (struct event){ call, on_closed };
    call->received = (struct event){ call, on_received };
    call->answered = (struct event){ call, on_answered };
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    order_release(&call->arrived);
    if (grpc_server_request_call(owner->server, &call->handle, &call->details, &call->metadata,
                                 owner->queue, owner->queue, &call->arrived) == GRPC_CALL_OK)
        return true;
    destroy(call);
    return false;
}

void call_on_event(void *tag, bool ok)
{
    struct event *event = tag;

    order_acquire(tag);
    event->happened(event->call, ok);
}

struct call *call_next(const struct call *call)
{
    return call->next;
}

void call_set_next(struct call *call, struct call *next)
{
    call->next = next;
}

bool call_is(const struct call *call, const char *method)
{
    return grpc_slice_str_cmp(call->details.method, method) == 0;
}

ProtobufCMessage *call_request(const struct call *call, const ProtobufCMessageDescriptor *type)
{
    grpc_byte_buffer_reader reader;

    if (call->request == NULL || !grpc_byte_buffer_reader_init(&reader, call->request))
        return NULL;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, GRPC_SLICE_LENGTH(slice),
                                                          GRPC_SLICE_START_PTR(slice));
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return message;
}

static grpc_byte_buffer *pack(const ProtobufCMessage *message)
{
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));

    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *packed = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return packed;
}

void call_answer(struct call *call, const struct call_answer *answer)
{
    grpc_op ops[3] = { { .op = GRPC_OP_SEND_INITIAL_METADATA } };
    grpc_slice text = grpc_slice_from_copied_string(answer->text ? answer->text : "");
    grpc_byte_buffer *packed = NULL;
    size_t count = 1;

    call->mark = answer->mark;
    if (answer->code == GRPC_STATUS_OK) {
        packed = pack(answer->reply);
        ops[count].op = GRPC_OP_SEND_MESSAGE;
        ops[count++].data.send_message.send_message = packed;
    }
    ops[count].op = GRPC_OP_SEND_STATUS_FROM_SERVER;
    ops[count].data.send_status_from_server.status = answer->code;
    ops[count++].data.send_status_from_server.status_details = &text;
    if (!start(call, ops, count, &call->answered))
        end_chains(call, 1);
    grpc_slice_unref(text);
    if (packed != NULL)
        grpc_byte_buffer_destroy(packed); /* gRPC has its own references to the slices */
}
