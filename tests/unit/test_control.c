/* SPDX-License-Identifier: MIT */
/* The control service answers every well-formed call, refuses the others, and ends cleanly under
 * load. */
#include <errno.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/door.h"
#include "tests/unit/check.h"

static char folder[] = "/tmp/zctl-XXXXXX";

/* ---- a server with something to say ---- */

struct server {
    uv_loop_t loop;
    uv_async_t stop;
    uv_signal_t signals[2];
    struct control *control;
    pthread_t thread;
    atomic_int shutdowns, upgrades, closed;
    uint32_t rank, world;
    const char *mode;
};

static char *text(const char *literal)
{
    return (char *)(uintptr_t)literal;
}

static void on_status(void *context, Zero__V1__StatusReply *reply)
{
    static Zero__V1__Arena param = ZERO__V1__ARENA__INIT, grad = ZERO__V1__ARENA__INIT,
                           *arenas[] = { &param, &grad };
    static Zero__V1__Scalar loss = ZERO__V1__SCALAR__INIT, *scalars[] = { &loss };
    struct server *server = context;
    bool lost = strcmp(server->mode, "lost") == 0, differs = strcmp(server->mode, "differs") == 0;

    param.name = text("param");
    param.bytes = param.planned = 8192;
    grad.name = text("grad");
    grad.bytes = differs ? 12288 : 16384;
    grad.planned = 16384;
    loss.name = text("loss");
    loss.value = 4.868776;
    reply->rank = server->rank;
    reply->world = server->world;
    reply->state = text(lost ? "lost" : "ready");
    reply->step = 41;
    reply->stage = 3;
    reply->param_dtype = text("bf16");
    reply->pid = (uint32_t)getpid();
    reply->n_arenas = 2;
    reply->arenas = arenas;
    reply->n_scalars = 1;
    reply->scalars = scalars;
    reply->gathered_bytes = UINT64_C(1) << 53;
    reply->grad_norm = NAN;
    reply->loss_scale = 65536;
    reply->step_time = 0.25;
    reply->last_step_age = 1.5;
    reply->version = text("0.0.0");
    reply->kernels = text("scalar");
    reply->waiting_for = text("");
    reply->versions = 2;
    reply->version_bytes = 16384;
    reply->versions_planned = 32768;
}

static void on_model(void *context, Zero__V1__ModelReply *reply)
{
    (void)context;
    reply->layout = text("layer a\n  tensor a.w [2,3]\n");
    reply->config = text("zero_optimization.stage = 3\n");
}

static void on_versions(void *context, Zero__V1__VersionsReply *reply)
{
    static Zero__V1__Version one = ZERO__V1__VERSION__INIT, two = ZERO__V1__VERSION__INIT,
                             *versions[] = { &one, &two };
    const struct server *server = context;

    one.step = 40;
    one.bytes = two.bytes = 8192;
    one.readers = 3;
    one.age = 0.25;
    two.step = 41;
    reply->rank = server->rank;
    reply->n_versions = 2;
    reply->versions = versions;
}

static void on_closed(void *context)
{
    struct server *server = context;

    server->closed++;
    uv_close((uv_handle_t *)&server->stop, NULL);
    for (int i = 0; i < 2; i++)
        uv_close((uv_handle_t *)&server->signals[i], NULL);
}

static void end(struct server *server)
{
    struct control *control = server->control;

    server->control = NULL;
    if (control != NULL)
        control_close(control, on_closed, server);
}

static uint64_t on_save(void *context, const char *dir)
{
    (void)context;
    return strcmp(dir, "/ckpt") == 0 ? 17 : 0;
}

static void on_save_status(void *context, uint64_t id, Zero__V1__SaveStatusReply *reply)
{
    (void)context;
    reply->running = id == 17;
    reply->text = text("/ckpt/step-1");
    reply->bytes = 5;
    reply->total = 9;
}

static void on_upgrade(void *context, const Zero__V1__UpgradeRequest *request,
                       Zero__V1__UpgradeReply *reply)
{
    struct server *server = context;

    server->upgrades += request->now ? 100 : 1;
    reply->refused = request->check;
    reply->text = text("why");
}

static void on_shutdown(void *context)
{
    struct server *server = context;

    server->shutdowns++;
    end(server);
}

static void on_stop(uv_async_t *stop)
{
    end(stop->data);
}

static void on_signal(uv_signal_t *handle, int number)
{
    (void)number;
    end(handle->data);
}

static zero_status server_open(struct server *server, const char *path)
{
    const struct control_source source = { .context = server,
                                           .status = on_status,
                                           .model = on_model,
                                           .versions = on_versions,
                                           .save = on_save,
                                           .save_status = on_save_status,
                                           .upgrade = on_upgrade,
                                           .shutdown = on_shutdown };

    uv_loop_init(&server->loop);
    uv_async_init(&server->loop, &server->stop, on_stop);
    server->stop.data = server;
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&server->loop, &server->signals[i]);
        server->signals[i].data = server;
    }
    return control_open(&server->loop, path, &source, &server->control);
}

static void *run_loop(void *context)
{
    struct server *server = context;

    uv_run(&server->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void server_start(struct server *server, const char *path)
{
    *server = (struct server){ .world = 1, .mode = "ready" };
    CHECK(!zero_failed(server_open(server, path)));
    CHECK(pthread_create(&server->thread, NULL, run_loop, server) == 0);
}

static void server_join(struct server *server)
{
    pthread_join(server->thread, NULL);
    CHECK(server->closed == 1);
    CHECK(uv_loop_close(&server->loop) == 0);
}

/* ---- a client ---- */

struct client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
};

static void client_open(struct client *client, const char *path)
{
    char target[160];
    grpc_channel_credentials *insecure = grpc_insecure_credentials_create();

    snprintf(target, sizeof target, "unix:%s", path);
    client->queue = grpc_completion_queue_create_for_pluck(NULL);
    client->channel = grpc_channel_create(target, insecure, NULL);
    grpc_channel_credentials_release(insecure);
}

static void client_close(struct client *client)
{
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    while (grpc_completion_queue_pluck(client->queue, NULL, gpr_inf_past(GPR_CLOCK_REALTIME), NULL)
               .type != GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(client->queue);
}

static size_t take(grpc_byte_buffer *buffer, uint8_t *out, size_t room)
{
    grpc_byte_buffer_reader reader;

    if (buffer == NULL || !grpc_byte_buffer_reader_init(&reader, buffer))
        return 0;
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    size_t bytes = GRPC_SLICE_LENGTH(slice) < room ? GRPC_SLICE_LENGTH(slice) : room;
    memcpy(out, GRPC_SLICE_START_PTR(slice), bytes);
    grpc_slice_unref(slice);
    grpc_byte_buffer_reader_destroy(&reader);
    return bytes;
}

/* A unary call with any bytes as its message. */
struct exchange {
    const char *method;
    size_t request_bytes;
    const uint8_t *request;
    uint8_t reply[4096];
    size_t reply_bytes;
};

static grpc_status_code call(struct client *client, struct exchange *x)
{
    static const uint8_t nothing[1];
    gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(60, GPR_TIMESPAN));
    grpc_slice method = grpc_slice_from_static_string(x->method);
    grpc_slice request = grpc_slice_from_copied_buffer(
        (const char *)(x->request ? x->request : nothing), x->request_bytes);
    grpc_byte_buffer *send = grpc_raw_byte_buffer_create(&request, 1), *receive = NULL;
    grpc_call *handle = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS,
                                                 client->queue, method, NULL, deadline, NULL);
    grpc_metadata_array first, trailing;
    grpc_status_code code = GRPC_STATUS_UNKNOWN;
    grpc_slice details = grpc_empty_slice();
    grpc_op ops[6] = {
        { .op = GRPC_OP_SEND_INITIAL_METADATA },  { .op = GRPC_OP_SEND_MESSAGE },
        { .op = GRPC_OP_SEND_CLOSE_FROM_CLIENT }, { .op = GRPC_OP_RECV_INITIAL_METADATA },
        { .op = GRPC_OP_RECV_MESSAGE },           { .op = GRPC_OP_RECV_STATUS_ON_CLIENT }
    };

    grpc_metadata_array_init(&first);
    grpc_metadata_array_init(&trailing);
    ops[1].data.send_message.send_message = send;
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &first;
    ops[4].data.recv_message.recv_message = &receive;
    ops[5].data.recv_status_on_client.trailing_metadata = &trailing;
    ops[5].data.recv_status_on_client.status = &code;
    ops[5].data.recv_status_on_client.status_details = &details;
    CHECK(grpc_call_start_batch(handle, ops, 6, x, NULL) == GRPC_CALL_OK);
    grpc_completion_queue_pluck(client->queue, x, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    x->reply_bytes = take(receive, x->reply, sizeof x->reply);
    grpc_byte_buffer_destroy(send);
    if (receive != NULL)
        grpc_byte_buffer_destroy(receive);
    grpc_slice_unref(request);
    grpc_slice_unref(details);
    grpc_metadata_array_destroy(&first);
    grpc_metadata_array_destroy(&trailing);
    grpc_call_unref(handle);
    return code;
}

static grpc_status_code call_empty(struct client *client, const char *method)
{
    struct exchange x = { .method = method };

    return call(client, &x);
}

/* ---- what is tested ---- */

static void check_answers(struct client *client)
{
    struct exchange x = { .method = "/zero.v1.Control/Status" };

    CHECK(call(client, &x) == GRPC_STATUS_OK);
    Zero__V1__StatusReply *status = zero__v1__status_reply__unpack(NULL, x.reply_bytes, x.reply);
    CHECK(status != NULL && status->step == 41 && status->n_arenas == 2 &&
          strcmp(status->arenas[1]->name, "grad") == 0 && status->arenas[1]->bytes == 16384 &&
          status->gathered_bytes == UINT64_C(9007199254740992) && isnan(status->grad_norm));
    zero__v1__status_reply__free_unpacked(status, NULL);
    x = (struct exchange){ .method = "/zero.v1.Control/Model" };
    CHECK(call(client, &x) == GRPC_STATUS_OK);
    Zero__V1__ModelReply *model = zero__v1__model_reply__unpack(NULL, x.reply_bytes, x.reply);
    CHECK(model != NULL && strncmp(model->layout, "layer a\n", 8) == 0);
    zero__v1__model_reply__free_unpacked(model, NULL);
}

static void check_saves(struct client *client)
{
    static const uint8_t dir[] = { 0x0a, 5, '/', 'c', 'k', 'p', 't' }, id[] = { 0x08, 17 };
    struct exchange x = { .method = "/zero.v1.Control/Save",
                          .request = dir,
                          .request_bytes = sizeof dir };

    CHECK(call(client, &x) == GRPC_STATUS_OK);
    CHECK(x.reply_bytes == sizeof id && memcmp(x.reply, id, sizeof id) == 0);
    x = (struct exchange){ .method = "/zero.v1.Control/SaveStatus",
                           .request = id,
                           .request_bytes = sizeof id };
    CHECK(call(client, &x) == GRPC_STATUS_OK);
    Zero__V1__SaveStatusReply *status =
        zero__v1__save_status_reply__unpack(NULL, x.reply_bytes, x.reply);
    CHECK(status != NULL && status->running && !status->good && status->bytes == 5 &&
          status->total == 9 && strcmp(status->text, "/ckpt/step-1") == 0);
    zero__v1__save_status_reply__free_unpacked(status, NULL);
}

static void check_refusals(struct client *client)
{
    static const uint8_t garbage[] = { 0x0f, 0xff, 0xff, 0xff }, unknown[] = { 0xa0, 0x1f, 7 };
    uint8_t *large = calloc(1, 70000);
    struct exchange x = { .method = "/zero.v1.Control/Status",
                          .request = garbage,
                          .request_bytes = sizeof garbage };

    CHECK(call(client, &x) == GRPC_STATUS_INVALID_ARGUMENT);
    x.request = unknown; /* field 500: what a newer client may send */
    x.request_bytes = sizeof unknown;
    CHECK(call(client, &x) == GRPC_STATUS_OK);
    x.request = large;
    x.request_bytes = 70000;
    CHECK(call(client, &x) == GRPC_STATUS_RESOURCE_EXHAUSTED);
    CHECK(call_empty(client, "/zero.v1.Control/Nope") == GRPC_STATUS_UNIMPLEMENTED);
    CHECK(call_empty(client, "/zero.v1.Control/Status/") == GRPC_STATUS_UNIMPLEMENTED);
    CHECK(call_empty(client, "/") == GRPC_STATUS_UNIMPLEMENTED);
    free(large);
}

static int knock(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path, path, strlen(path) + 1);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Bytes that are not HTTP/2, and HTTP/2 that goes wrong after a good start; then hang up, or not.
 */
static void check_garbage(struct client *client, const char *path)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint32_t random = 12345; /* minstd */
    int held[32], count = 0;

    for (int i = 0; i < 64; i++) {
        uint8_t bytes[512];
        int fd = knock(path);
        CHECK(fd >= 0);
        for (size_t b = 0; b < sizeof bytes; b++) {
            random = (uint32_t)((uint64_t)random * 48271 % 2147483647);
            bytes[b] = (uint8_t)(random >> 8);
        }
        if (i % 4 != 0)
            memcpy(bytes, preface, sizeof preface - 1);
        if (i % 4 == 2) /* an empty SETTINGS frame first */
            memcpy(bytes + sizeof preface - 1, "\0\0\0\4\0\0\0\0\0", 9);
        CHECK(send(fd, bytes, i % 4 == 3 ? sizeof preface - 1 : sizeof bytes, MSG_NOSIGNAL) > 0);
        if (i % 2 != 0)
            held[count++] = fd;
        else
            close(fd);
    }
    check_answers(client);
    while (count > 0)
        close(held[--count]);
}

/* "call PATH": a client that calls without a pause until the service ends; success if it ended
 * well. */
static int call_until_refused(const char *path)
{
    struct client client;
    grpc_status_code code;

    grpc_init();
    client_open(&client, path);
    do {
        code = call_empty(&client, "/zero.v1.Control/Status");
    } while (code == GRPC_STATUS_OK);
    client_close(&client);
    grpc_shutdown_blocking();
    return code == GRPC_STATUS_UNAVAILABLE || code == GRPC_STATUS_CANCELLED ? check_done()
                                                                            : (int)code;
}

enum { CALLERS = 4, CALLS = 200 };

/* The loop ends while several clients call without a pause. They are processes: what gRPC does
 * between threads of one client is not what is tested. */
static void check_end_under_load(const char *path)
{
    char program[] = "test_control", word[] = "call",
         *arguments[] = { program, word, text(path), NULL };
    struct server server;
    struct client client;
    pid_t callers[CALLERS];
    int result;

    server_start(&server, path);
    for (int i = 0; i < CALLERS; i++)
        CHECK(posix_spawn(&callers[i], "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    client_open(&client, path);
    for (int i = 0; i < CALLS; i++)
        CHECK(call_empty(&client, "/zero.v1.Control/Status") == GRPC_STATUS_OK);
    uv_async_send(&server.stop);
    server_join(&server);
    for (int i = 0; i < CALLERS; i++)
        CHECK(waitpid(callers[i], &result, 0) == callers[i] && result == 0);
    CHECK(call_empty(&client, "/zero.v1.Control/Status") == GRPC_STATUS_UNAVAILABLE);
    client_close(&client);
    CHECK(server.shutdowns == 0);
}

static void check_service(const char *path)
{
    struct server server;
    struct client client;

    server_start(&server, path);
    client_open(&client, path);
    check_answers(&client);
    check_saves(&client);
    check_refusals(&client);
    check_garbage(&client, path);
    CHECK(call_empty(&client, "/zero.v1.Control/Shutdown") == GRPC_STATUS_OK);
    server_join(&server);
    CHECK(server.shutdowns == 1);
    CHECK(access(path, F_OK) != 0);
    client_close(&client);
}

/* ---- the door alone, on this thread ---- */

static int guests, doors_closed;

static void on_guest(void *context, int fd)
{
    (void)context;
    guests++;
    close(fd);
}

static void on_door_closed(void *context)
{
    (void)context;
    doors_closed++;
}

static int lowest_free(void)
{
    int fd = dup(STDERR_FILENO);

    close(fd);
    return fd;
}

/* The lowest free descriptor is the limit: accept fails, and goes on when there is room again. */
static void check_no_descriptors(uv_loop_t *loop, struct door *door, const char *path)
{
    struct rlimit before, none;
    int fd = knock(path);

    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    none = before;
    none.rlim_cur = (rlim_t)lowest_free();
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    uv_run(loop, UV_RUN_ONCE);
    CHECK(guests == 0);
    CHECK(!uv_is_active((uv_handle_t *)&door->poll));
    CHECK(uv_is_active((uv_handle_t *)&door->pause));
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    while (guests == 0)
        uv_run(loop, UV_RUN_ONCE);
    close(fd);
}

/* A high descriptor means that few are left: the guest has to go. */
static void check_reserve(uv_loop_t *loop, struct door *door, const char *path)
{
    int before = guests, descriptors = door->descriptors, fd = knock(path);
    char byte;

    door->descriptors = lowest_free();
    uv_run(loop, UV_RUN_ONCE);
    CHECK(guests == before);
    CHECK(recv(fd, &byte, 1, 0) == 0);
    close(fd);
    door->descriptors = descriptors;
}

static void check_stranger(uv_loop_t *loop, const char *path)
{
    int before = guests, result = 0;

    if (geteuid() != 0) {
        fputs("not root: strangers are not tried\n", stderr);
        return;
    }
    CHECK(chmod(folder, 0711) == 0 && chmod(path, 0666) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        int fd = knock(path);
        _exit(fd < 0 ? 3 : recv(fd, &byte, 1, 0) == 0 ? 0 : 4);
    }
    uv_run(loop, UV_RUN_ONCE);
    CHECK(waitpid(child, &result, 0) == child && result == 0);
    CHECK(guests == before);
    CHECK(chmod(folder, 0700) == 0);
}

static void check_paths(uv_loop_t *loop, const char *path)
{
    struct door door = { .on_guest = on_guest, .on_closed = on_door_closed };
    char long_path[200];

    memset(long_path, 'x', sizeof long_path);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = '\0';
    CHECK(door_open(&door, loop, long_path).code == ZERO_INVALID_ARGUMENT);
    CHECK(door_open(&door, loop, "/nowhere/at/all").code == ZERO_SYSTEM);
    FILE *file = fopen(path, "w");
    fclose(file);
    CHECK(door_open(&door, loop, path).code == ZERO_BUSY);
    CHECK(unlink(path) == 0);
}

static void check_door(const char *path)
{
    struct door door = { .on_guest = on_guest, .on_closed = on_door_closed };
    struct sockaddr_un stale = { .sun_family = AF_UNIX };
    struct stat stat_of;
    uv_loop_t loop;

    uv_loop_init(&loop);
    check_paths(&loop, path);
    memcpy(stale.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(fd, (struct sockaddr *)&stale, sizeof stale) == 0);
    close(fd);
    CHECK(!zero_failed(door_open(&door, &loop, path)));
    CHECK(stat(path, &stat_of) == 0 && (stat_of.st_mode & 0777) == 0600);
    check_no_descriptors(&loop, &door, path);
    check_reserve(&loop, &door, path);
    check_stranger(&loop, path);
    door_close(&door);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK(doors_closed == 1);
    CHECK(uv_loop_close(&loop) == 0);
    CHECK(access(path, F_OK) != 0);
}

/* "serve DIR RANK WORLD MODE": a daemon for tests of tools; MODE is ready, lost or differs. */
static int serve(char **arguments)
{
    struct server server = { .mode = arguments[3] };
    char path[108];

    server.rank = (uint32_t)strtoul(arguments[1], NULL, 10);
    server.world = (uint32_t)strtoul(arguments[2], NULL, 10);
    snprintf(path, sizeof path, "%s/rank-%u.control", arguments[0], server.rank);
    if (zero_failed(server_open(&server, path)))
        return 1;
    uv_signal_start(&server.signals[0], on_signal, SIGTERM);
    uv_signal_start(&server.signals[1], on_signal, SIGINT);
    puts("ready");
    fflush(stdout);
    run_loop(&server);
    return uv_loop_close(&server.loop) != 0;
}

int main(int argc, char **argv)
{
    char path[64];

    signal(SIGPIPE, SIG_IGN);
    if (argc == 6 && strcmp(argv[1], "serve") == 0)
        return serve(argv + 2);
    if (argc == 3 && strcmp(argv[1], "call") == 0)
        return call_until_refused(argv[2]);
    log_init(0, LOG_WARNING_LEVEL);
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/rank-0.control", folder);
    check_door(path);
    grpc_init();
    check_service(path);
    for (int i = 0; i < 5; i++)
        check_end_under_load(path);
    grpc_shutdown_blocking();
    CHECK(rmdir(folder) == 0);
    return check_done();
}
