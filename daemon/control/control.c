/* SPDX-License-Identifier: MIT */
/* One thread sits in gRPC's completion queue and only moves calls along; every request is handed to
 * the loop's thread, which knows the state and answers (starting a batch is thread-safe).
 *
 * The end, in this order: the door closes; the server is told to shut down and cancels its calls;
 * the loop goes on answering what was handed to it; when the server is down and the last call is
 * gone the queue is shut; it drains, its thread ends, the loop joins it and takes the rest down. A
 * batch that is started on a queue that was shut earlier would abort the process. */
#include "daemon/control/control.h"

#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/control/call.h"
#include "daemon/control/door.h"
#include "daemon/control/order.h"

enum {
    ARMED_CALLS = 4,
    MOST_REQUEST_BYTES = 64 * 1024,
    MOST_STREAMS = 64,       /* calls at once on a connection */
    IDLE_MS = 5 * 60 * 1000, /* a connection without calls is closed after that */
    LINGER_MS = 50, /* a client acknowledges the answer on a connection that the end closes */
};

struct control {
    struct control_source source;
    uv_async_t wake;
    uv_timer_t linger;
    struct door door;
    grpc_server *server;
    grpc_completion_queue *queue;
    struct call_owner owner;
    pthread_t thread;
    void (*on_closed)(void *context);
    void *closed_context;
    int open;        /* wake, linger, door; the loop's */
    bool closing;    /* written by the loop with the lock */
    bool threadless; /* the thread could not be had */

    pthread_mutex_t lock; /* guards what follows */
    struct call *first, *last;
    unsigned calls;   /* armed or alive */
    unsigned unarmed; /* could not be armed for want of memory */
    bool shutdown_answered, server_down, queue_shut, thread_ended;
};

/* Addresses that mean something: the tag of the server's end, the mark of a shutdown's answer. */
static char server_down_tag, shutdown_mark;

/* ---- the queue's thread ---- */

/* With the lock held. */
static void arm(struct control *control)
{
    if (control->closing)
        return;
    if (call_arm(&control->owner))
        control->calls++;
    else
        control->unarmed++;
}

/* With the lock held. Nothing may be started on the queue after it was shut. */
static void shut_queue_if_idle(struct control *control)
{
    if (!control->server_down || control->calls > 0 || control->queue_shut)
        return;
    control->queue_shut = true;
    grpc_completion_queue_shutdown(control->queue);
}

static void on_arrived(void *context)
{
    struct control *control = context;

    pthread_mutex_lock(&control->lock);
    arm(control);
    pthread_mutex_unlock(&control->lock);
}

static void on_received(void *context, struct call *call)
{
    struct control *control = context;

    pthread_mutex_lock(&control->lock);
    call_set_next(call, NULL);
    if (control->last != NULL)
        call_set_next(control->last, call);
    else
        control->first = call;
    control->last = call;
    uv_async_send(&control->wake);
    pthread_mutex_unlock(&control->lock);
}

static void on_answered(void *context, void *mark)
{
    struct control *control = context;

    if (mark != &shutdown_mark)
        return;
    pthread_mutex_lock(&control->lock);
    control->shutdown_answered = true;
    uv_async_send(&control->wake);
    pthread_mutex_unlock(&control->lock);
}

static void on_ended(void *context)
{
    struct control *control = context;

    pthread_mutex_lock(&control->lock);
    control->calls--;
    if (control->unarmed > 0) {
        control->unarmed--;
        arm(control);
    }
    shut_queue_if_idle(control);
    pthread_mutex_unlock(&control->lock);
}

static void on_server_down(struct control *control)
{
    pthread_mutex_lock(&control->lock);
    control->server_down = true;
    shut_queue_if_idle(control);
    pthread_mutex_unlock(&control->lock);
}

static void *move_calls(void *context)
{
    struct control *control = context;
    const gpr_timespec forever = gpr_inf_future(GPR_CLOCK_REALTIME);

    for (;;) {
        grpc_event event = grpc_completion_queue_next(control->queue, forever, NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            break;
        if (event.type == GRPC_QUEUE_TIMEOUT)
            continue;
        if (event.tag == &server_down_tag)
            on_server_down(control);
        else
            call_on_event(event.tag, event.success);
    }
    pthread_mutex_lock(&control->lock);
    control->thread_ended = true;
    uv_async_send(&control->wake);
    pthread_mutex_unlock(&control->lock);
    return NULL;
}

/* ---- the loop's thread ---- */

static void answer_status(struct control *control, struct call *call,
                          const ProtobufCMessage *request)
{
    (void)request;
    Zero__V1__StatusReply reply = ZERO__V1__STATUS_REPLY__INIT;

    control->source.status(control->source.context, &reply);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static void answer_model(struct control *control, struct call *call,
                         const ProtobufCMessage *request)
{
    (void)request;
    Zero__V1__ModelReply reply = ZERO__V1__MODEL_REPLY__INIT;

    control->source.model(control->source.context, &reply);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static void answer_versions(struct control *control, struct call *call,
                            const ProtobufCMessage *request)
{
    (void)request;
    Zero__V1__VersionsReply reply = ZERO__V1__VERSIONS_REPLY__INIT;

    control->source.versions(control->source.context, &reply);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static void answer_shutdown(struct control *control, struct call *call,
                            const ProtobufCMessage *request)
{
    (void)request;
    Zero__V1__ShutdownReply reply = ZERO__V1__SHUTDOWN_REPLY__INIT;

    (void)control;
    LOG_INFO("control: asked to end");
    call_answer(call, &(struct call_answer){ .reply = &reply.base, .mark = &shutdown_mark });
}

static void answer_save(struct control *control, struct call *call, const ProtobufCMessage *request)
{
    const char *dir = ((const Zero__V1__SaveRequest *)request)->dir;
    Zero__V1__SaveReply reply = ZERO__V1__SAVE_REPLY__INIT;

    LOG_LIMITED(20, INFO, "control: asked to save a checkpoint");
    reply.id = control->source.save(control->source.context, dir);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static void answer_save_status(struct control *control, struct call *call,
                               const ProtobufCMessage *request)
{
    uint64_t id = ((const Zero__V1__SaveStatusRequest *)request)->id;
    Zero__V1__SaveStatusReply reply = ZERO__V1__SAVE_STATUS_REPLY__INIT;

    control->source.save_status(control->source.context, id, &reply);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static void answer_upgrade(struct control *control, struct call *call,
                           const ProtobufCMessage *request)
{
    Zero__V1__UpgradeReply reply = ZERO__V1__UPGRADE_REPLY__INIT;

    control->source.upgrade(control->source.context, (const Zero__V1__UpgradeRequest *)request,
                            &reply);
    call_answer(call, &(struct call_answer){ .reply = &reply.base });
}

static const struct route {
    const char *method;
    const ProtobufCMessageDescriptor *request;
    void (*answer)(struct control *control, struct call *call, const ProtobufCMessage *request);
} routes[] = {
    { "/zero.v1.Control/Status", &zero__v1__status_request__descriptor, answer_status },
    { "/zero.v1.Control/Model", &zero__v1__model_request__descriptor, answer_model },
    { "/zero.v1.Control/Versions", &zero__v1__versions_request__descriptor, answer_versions },
    { "/zero.v1.Control/Shutdown", &zero__v1__shutdown_request__descriptor, answer_shutdown },
    { "/zero.v1.Control/Save", &zero__v1__save_request__descriptor, answer_save },
    { "/zero.v1.Control/SaveStatus", &zero__v1__save_status_request__descriptor,
      answer_save_status },
    { "/zero.v1.Control/Upgrade", &zero__v1__upgrade_request__descriptor, answer_upgrade },
};

static void refuse(struct call *call, grpc_status_code code, const char *text)
{
    call_answer(call, &(struct call_answer){ .code = code, .text = text });
}

static void answer(struct control *control, struct call *call)
{
    const struct route *route = NULL;

    for (size_t i = 0; i < sizeof routes / sizeof *routes && route == NULL; i++)
        if (call_is(call, routes[i].method))
            route = &routes[i];
    if (route == NULL) {
        refuse(call, GRPC_STATUS_UNIMPLEMENTED,
               "zero.v1.Control has the methods Status, Model, Versions, Save, SaveStatus, Upgrade "
               "and "
               "Shutdown");
        return;
    }
    if (control->closing) {
        refuse(call, GRPC_STATUS_UNAVAILABLE, "the daemon is ending");
        return;
    }
    ProtobufCMessage *request = call_request(call, route->request);
    if (request == NULL) {
        refuse(call, GRPC_STATUS_INVALID_ARGUMENT, "the request is not the method's message");
        return;
    }
    route->answer(control, call, request);
    protobuf_c_message_free_unpacked(request, NULL);
}

static void finish_close(struct control *control)
{
    void (*on_closed)(void *context) = control->on_closed;
    void *context = control->closed_context;

    if (--control->open > 0)
        return;
    grpc_shutdown_blocking();
    pthread_mutex_destroy(&control->lock);
    free(control);
    on_closed(context);
}

static void on_handle_closed(uv_handle_t *handle)
{
    finish_close(handle->data);
}

static void on_door_closed(void *context)
{
    finish_close(context);
}

static void on_lingered(uv_timer_t *timer)
{
    struct control *control = timer->data;

    control->source.shutdown(control->source.context); /* may call control_close */
}

static void on_wake(uv_async_t *wake)
{
    struct control *control = wake->data;

    pthread_mutex_lock(&control->lock);
    struct call *call = control->first;
    bool shutdown = control->shutdown_answered, ended = control->thread_ended;
    control->first = control->last = NULL;
    control->shutdown_answered = false;
    pthread_mutex_unlock(&control->lock);
    while (call != NULL) {
        struct call *next = call_next(call); /* an answered call may be gone */
        answer(control, call);
        call = next;
    }
    if (shutdown && !control->closing)
        uv_timer_start(&control->linger, on_lingered, LINGER_MS, /* repeat= */ 0);
    if (!ended)
        return;
    if (!control->threadless)
        pthread_join(control->thread, NULL);
    grpc_server_destroy(control->server);
    grpc_completion_queue_destroy(control->queue);
    uv_close((uv_handle_t *)&control->wake, on_handle_closed);
}

static void on_guest(void *context, int fd)
{
    struct control *control = context;
    grpc_server_credentials *insecure = grpc_insecure_server_credentials_create();

    grpc_server_add_channel_from_fd(control->server, fd, insecure);
    grpc_server_credentials_release(insecure);
}

/* ---- start and end ---- */

/* gRPC tells of its peers' mistakes, which are worth a debug line only. */
static void on_grpc_log(gpr_log_func_args *line)
{
    LOG_DEBUG("gRPC: %s", line->message);
}

static grpc_server *create_server(void)
{
    static char request_bytes[] = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH,
                streams[] = GRPC_ARG_MAX_CONCURRENT_STREAMS,
                idle[] = GRPC_ARG_MAX_CONNECTION_IDLE_MS;
    grpc_arg limits[] = {
        { GRPC_ARG_INTEGER, request_bytes, { .integer = MOST_REQUEST_BYTES } },
        { GRPC_ARG_INTEGER, streams, { .integer = MOST_STREAMS } },
        { GRPC_ARG_INTEGER, idle, { .integer = IDLE_MS } },
    };
    const grpc_channel_args args = { sizeof limits / sizeof *limits, limits };

    return grpc_server_create(&args, NULL);
}

/* Before the thread runs: the calls that wait to arrive go with the server and the queue. */
static void start_serving(struct control *control)
{
    control->queue = grpc_completion_queue_create_for_next(NULL);
    control->server = create_server();
    grpc_server_register_completion_queue(control->server, control->queue, NULL);
    grpc_server_start(control->server);
    control->owner = (struct call_owner){ .context = control,
                                          .server = control->server,
                                          .queue = control->queue,
                                          .arrived = on_arrived,
                                          .received = on_received,
                                          .answered = on_answered,
                                          .ended = on_ended };
    pthread_mutex_lock(&control->lock);
    for (int i = 0; i < ARMED_CALLS; i++)
        arm(control);
    pthread_mutex_unlock(&control->lock);
}

static void on_abandoned(void *context)
{
    (void)context;
}

zero_status control_open(uv_loop_t *loop, const char *path, const struct control_source *source,
                         struct control **out)
{
    struct control *control = calloc(1, sizeof *control);
    zero_status s;

    if (control == NULL)
        return FAIL(NO_MEMORY, "open control service", "%zu bytes", sizeof *control);
    control->source = *source;
    control->door =
        (struct door){ .on_guest = on_guest, .on_closed = on_door_closed, .context = control };
    s = door_open(&control->door, loop, path);
    if (zero_failed(s)) {
        free(control);
        return s;
    }
    gpr_set_log_function(on_grpc_log);
    grpc_init();
    pthread_mutex_init(&control->lock, NULL);
    uv_timer_init(loop, &control->linger);
    int failed = uv_async_init(loop, &control->wake, on_wake);
    control->wake.data = control->linger.data = control;
    control->open = 3;
    if (failed != 0) {
        control->open--;
        control->on_closed = on_abandoned;
        uv_close((uv_handle_t *)&control->linger, on_handle_closed);
        door_close(&control->door);
        return FAIL(SYSTEM, "open control service", "wake-up: %s", uv_strerror(failed));
    }
    start_serving(control);
    failed = pthread_create(&control->thread, NULL, move_calls, control);
    if (failed != 0) { /* the loop ends what was begun; nobody was let in yet */
        control->threadless = true;
        control_close(control, on_abandoned, NULL);
        move_calls(control);
        return FAIL(SYSTEM, "open control service", "thread: %s", strerror(failed));
    }
    *out = control;
    return zero_success();
}

void control_close(struct control *control, void (*on_closed)(void *context), void *context)
{
    control->on_closed = on_closed;
    control->closed_context = context;
    pthread_mutex_lock(&control->lock);
    control->closing = true;
    pthread_mutex_unlock(&control->lock);
    uv_close((uv_handle_t *)&control->linger, on_handle_closed);
    door_close(&control->door);
    order_release(&server_down_tag);
    grpc_server_shutdown_and_notify(control->server, control->queue, &server_down_tag);
    grpc_server_cancel_all_calls(control->server);
}
