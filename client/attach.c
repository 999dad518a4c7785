/* SPDX-License-Identifier: MIT */
/* Finding the daemon, and leaving it. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"

enum { DEFAULT_DEADLINE_MS = 60000, RETRY_MS = 20 };

uint32_t zero_abi(void)
{
    return ZERO_ABI;
}

const char *zero_version(void)
{
    return ZEROD_VERSION;
}

int64_t client_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static zero_status find_socket(const char *path, struct sockaddr_un *out)
{
    if (path == NULL)
        path = getenv("ZERO_SOCKET");
    if (path == NULL || *path == '\0')
        return client_fail(
            NULL, ZERO_INVALID_ARGUMENT, "attach",
            "no socket is named: start the trainer with zerorun, or set ZERO_SOCKET to "
            "the daemon's rank-R.sock");
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (strlen(path) >= sizeof out->sun_path)
        return client_fail(
            NULL, ZERO_INVALID_ARGUMENT, "attach",
            "the socket path has %zu bytes, at most %zu: use a shorter runtime folder",
            strlen(path), sizeof out->sun_path - 1);
    memcpy(out->sun_path, path, strlen(path));
    return zero_success();
}

/* What connect() says of a path at which no daemon will ever listen; success if one may yet. To it,
 * a file that is no socket is one that nobody listens on. */
static zero_status check_path(const char *path, int error)
{
    static const char advice[] = "name the rank-R.sock in the group's folder, with ZERO_SOCKET or "
                                 "in the options";
    struct stat st;

    switch (error) {
    case ECONNREFUSED:
        if (stat(path, &st) != 0 || S_ISSOCK(st.st_mode))
            break;
        return client_fail(NULL, ZERO_INVALID_ARGUMENT, "attach",
                           "%s is a %s, not a daemon's socket: %s", path,
                           S_ISDIR(st.st_mode) ? "folder" : "file", advice);
    case EPROTOTYPE:
        return client_fail(NULL, ZERO_INVALID_ARGUMENT, "attach",
                           "%s is a socket, but not one for trainers: %s", path, advice);
    case EACCES:
    case EPERM:
        return client_fail(NULL, ZERO_PERMISSION, "attach",
                           "%s: %s: run the trainer as the user that runs zerod", path,
                           strerror(error));
    case ENOENT:
    case EAGAIN:
    case EINTR:
        break;
    default:
        return client_fail(NULL, ZERO_SYSTEM, "attach", "%s: %s: %s", path, strerror(error),
                           advice);
    }
    return zero_success();
}

/* The daemon may not listen yet, or its queue may be full for a moment: a socket that blocks would
 * wait for room for ever if the daemon is stopped. */
static zero_status connect_until(zero_client *client, int64_t end)
{
    const struct sockaddr_un *address = &client->address;
    static const struct timespec pause = { .tv_sec = 0, .tv_nsec = RETRY_MS * 1000000L };

    for (;;) {
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
            return client_fail(NULL, ZERO_SYSTEM, "attach", "socket: %s", strerror(errno));
        if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0) {
            client->socket = fd;
            return zero_success();
        }
        int error = errno;
        close(fd);
        zero_status s = check_path(address->sun_path, error);
        if (!zero_failed(s))
            s = client_interrupted(client);
        if (zero_failed(s))
            return s;
        if (client_now_ms() > end)
            return client_fail(NULL, ZERO_DEADLINE, "attach", "%s: %s: is zerod running?",
                               address->sun_path, strerror(error));
        nanosleep(&pause, NULL);
    }
}

zero_status client_check(zero_client *client)
{
    if (!atomic_load(&client->lost))
        return zero_success();
    return client_fail(client, ZERO_DAEMON_LOST, "ask daemon",
                       "the daemon of rank %" PRIu32 " is gone or has closed this session: attach "
                       "again",
                       client->rank);
}

zero_status client_send(zero_client *client, enum zero_frame_type type, const void *message)
{
    zero_status s = zero_frame_send(client->socket, type, message, NULL, (int)client->deadline_ms);
    if (s.code == ZERO_TOO_LARGE)
        return client_fail(client, s.code, "ask daemon", "a part of the model is over 64 KiB");
    if (!zero_failed(s))
        return s;
    atomic_store(&client->lost, true);
    if (s.code == ZERO_DEADLINE)
        return client_fail(client, ZERO_DAEMON_SILENT, "ask daemon",
                           "the daemon of rank %" PRIu32 " read nothing for %" PRIu32
                           " ms: is it stopped?",
                           client->rank, client->deadline_ms);
    return client_fail(client, s.code, "ask daemon",
                       "the daemon of rank %" PRIu32 " has closed this session: attach again",
                       client->rank);
}

/* Returns when there is something to read, the time is over, or the caller wants no more. */
static zero_status wait_for_frame(zero_client *client, int deadline_ms)
{
    struct pollfd poll_fd = { .fd = client->socket, .events = POLLIN };
    int64_t end = client_now_ms() + deadline_ms;
    zero_status s = zero_success();

    while (!zero_failed(s) && poll(&poll_fd, 1, CLIENT_LOOK_MS) == 0 && client_now_ms() < end)
        s = client_interrupted(client);
    return s;
}

zero_status client_hear(zero_client *client, size_t fds, int deadline_ms, struct zero_frame *out)
{
    struct zero_detail detail = { "" };
    int64_t start = client_now_ms();
    zero_status s = zero_success();

    if (client->interrupted != NULL)
        s = wait_for_frame(client, deadline_ms);
    if (zero_failed(s)) {
        atomic_store(&client->lost, true);
        return s;
    }
    int left = deadline_ms - (int)(client_now_ms() - start);
    s = zero_frame_receive(client->socket, fds, left > 0 ? left : 0, out, &detail);
    if (zero_failed(s))
        atomic_store(&client->lost, true);
    if (s.code == ZERO_DEADLINE)
        return client_fail(client, ZERO_DAEMON_SILENT, "hear daemon",
                           "the daemon of rank %" PRIu32 " did not answer in %d ms: is it stopped?",
                           client->rank, deadline_ms);
    if (zero_failed(s))
        return client_fail(client, s.code, "hear daemon", "%s", detail.text);
    if (out->type != ZERO_FRAME_ERROR)
        return s;
    const Zero__V1__Error *error = (const Zero__V1__Error *)out->message;
    zero_code code = error->code == ZERO_OK ? ZERO_PROTOCOL : (zero_code)error->code;
    s = client_fail(client, code, "ask daemon", "%s", error->text);
    zero_frame_release(out);
    return s;
}

zero_status client_receive(zero_client *client, enum zero_frame_type type, size_t fds,
                           int deadline_ms, struct zero_frame *out)
{
    zero_status s = client_hear(client, fds, deadline_ms, out);

    if (zero_failed(s) || out->type == type)
        return s;
    atomic_store(&client->lost, true);
    s = client_fail(client, ZERO_PROTOCOL, "hear daemon", "frame type %d came, not %d",
                    (int)out->type, (int)type);
    zero_frame_release(out);
    return s;
}

static zero_status greet(zero_client *client, int deadline_ms)
{
    Zero__V1__Hello hello = ZERO__V1__HELLO__INIT;
    struct zero_frame frame;

    hello.protocol = ZERO_PROTOCOL_VERSION;
    hello.role = (uint32_t)client->role;
    zero_status s = client_send(client, ZERO_FRAME_HELLO, &hello.base);
    if (zero_failed(s))
        return s;
    s = client_receive(client, ZERO_FRAME_WELCOME, 0, deadline_ms, &frame);
    if (zero_failed(s))
        return s;
    const Zero__V1__Welcome *welcome = (const Zero__V1__Welcome *)frame.message;
    client->rank = client->info.rank = welcome->rank;
    client->world = client->info.world = welcome->world;
    if (welcome->protocol != ZERO_PROTOCOL_VERSION)
        s = client_fail(client, ZERO_VERSION, "attach",
                        "the daemon speaks protocol %" PRIu32 ", this library %d: install the same "
                        "version of both",
                        welcome->protocol, ZERO_PROTOCOL_VERSION);
    else if (welcome->world == 0 || welcome->world > ZERO_MAX_WORLD ||
             welcome->rank >= welcome->world)
        s = client_fail(client, ZERO_PROTOCOL, "attach",
                        "the daemon says it is rank %" PRIu32 " of %" PRIu32, welcome->rank,
                        welcome->world);
    zero_frame_release(&frame);
    return s;
}

/* A daemon that dies while it greets is looked for again. */
zero_status session_connect(zero_client *client, int64_t end)
{
    zero_status s;

    do {
        if (client->socket >= 0)
            close(client->socket);
        client->socket = -1;
        s = connect_until(client, end);
        if (zero_failed(s))
            return s;
        int64_t left = end - client_now_ms();
        s = greet(client, left > 0 ? (int)left : 1);
    } while (s.code == ZERO_DAEMON_LOST && client_now_ms() < end);
    return s;
}

static zero_status check_options(const struct zero_attach_options *options, zero_client **out)
{
    zero_status s = client_need(NULL, out, "out");

    if (!zero_failed(s) && options->role != ZERO_TRAINER && options->role != ZERO_OBSERVER)
        s = client_fail(NULL, ZERO_INVALID_ARGUMENT, "attach",
                        "role %d is neither ZERO_TRAINER nor ZERO_OBSERVER", (int)options->role);
    return s;
}

zero_status zero_attach(const struct zero_attach_options *options, zero_client **out,
                        struct zero_detail *out_detail)
{
    static const struct zero_attach_options defaults = { .role = ZERO_TRAINER };
    struct sockaddr_un address;
    zero_client *client = NULL;

    if (options == NULL)
        options = &defaults;
    uint32_t limit = options->deadline_ms ? options->deadline_ms : DEFAULT_DEADLINE_MS;
    if (limit > CLIENT_MAX_DEADLINE_MS)
        limit = CLIENT_MAX_DEADLINE_MS;
    int64_t end = client_now_ms() + limit;
    zero_status s = find_socket(options->socket, &address);
    if (!zero_failed(s))
        s = check_options(options, out);
    if (zero_failed(s))
        goto out;
    client = calloc(1, sizeof *client);
    if (client == NULL) {
        s = client_fail(NULL, ZERO_NO_MEMORY, "attach", "%zu bytes", sizeof *client);
        goto out;
    }
    client->socket = -1;
    client->address = address;
    client->role = options->role;
    client->interrupted = options->interrupted;
    client->context = options->context;
    client->deadline_ms = limit;
    pthread_mutex_init(&client->renewing, NULL);
    s = session_connect(client, end);
    if (zero_failed(s))
        goto out;
    *out = client;
    return s;
out:
    if (out_detail != NULL) {
        const char *text = zero_error_text(client);
        snprintf(out_detail->text, sizeof out_detail->text, "%s",
                 *text ? text : zero_error_text(NULL));
    }
    zero_detach(client);
    return s;
}

void zero_detach(zero_client *client)
{
    if (client == NULL)
        return;
    mapping_close(client);
    zero_layout_destroy(client->layout);
    free(client->blob);
    if (client->socket >= 0)
        close(client->socket);
    pthread_mutex_destroy(&client->renewing);
    free(client);
}

const struct zero_client_info *zero_client_info(const zero_client *client)
{
    return &client->info;
}
