/* SPDX-License-Identifier: MIT */
/* A connection's life: accept, hello, turn, frames, end. */
#include "daemon/session/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/base/process.h"
#include "daemon/session/saves.h"
#include "proto/ring.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

enum {
    FRAMES_AT_ONCE = 16,
    COMINGS = 100, /* of trainers that the log tells of: more than ranks and their restarts make */
};

static void on_readable(uv_poll_t *poll, int status, int events);

struct client *client_find(const struct sessions *sessions, uint64_t token)
{
    for (struct client *c = sessions->clients; c != NULL; c = c->next)
        if (c->token == token && c->state != CLOSING)
            return c;
    return NULL;
}

/* ---- end ------------------------------------------------------------------------------------ */

static bool process_gone(int pidfd)
{
    struct pollfd poll_fd = { .fd = pidfd, .events = POLLIN };
    return pidfd < 0 || poll(&poll_fd, 1, 0) > 0;
}

static void on_client_handle_closed(uv_handle_t *handle)
{
    struct client *client = handle->data;
    struct sessions *sessions = client->sessions;

    if (--client->open_handles > 0)
        return;
    struct client **at = &sessions->clients;
    while (*at != client)
        at = &(*at)->next;
    *at = client->next;
    sessions->client_count--;
    close(client->socket);
    if (client->pidfd >= 0)
        close(client->pidfd);
    draft_clear(&client->draft);
    free(client);
    sessions_handle_closed(sessions);
}

/* The rank is free again once the engine says so and the process is gone. */
static void leave_rank(struct client *client)
{
    struct sessions *sessions = client->sessions;

    sessions->trainer = NULL;
    if (client->state == JOINING)
        engine_cancel_register(sessions->options.engine);
    if (sessions->old_pidfd >= 0)
        close(sessions->old_pidfd);
    sessions->old_pidfd = client->pidfd;
    sessions->old_pid = client->pid;
    client->pidfd = -1;
    if (client->state != ATTACHING && client->state != ATTACHED)
        return;
    sessions->leaving = true;
    sessions->leaving_token = client->token;
    engine_detach(sessions->options.engine, client->token);
}

void client_close(struct client *client)
{
    struct sessions *sessions = client->sessions;

    if (client->state == CLOSING)
        return;
    uv_poll_stop(&client->poll);
    uv_close((uv_handle_t *)&client->poll, on_client_handle_closed);
    if (client->pidfd >= 0) {
        uv_poll_stop(&client->pid_poll);
        uv_close((uv_handle_t *)&client->pid_poll, on_client_handle_closed);
    }
    versions_leave(client);
    if (sessions->trainer == client) {
        LOG_LIMITED(COMINGS, INFO, "trainer pid %u left", client->pid);
        leave_rank(client);
    }
    client->state = CLOSING;
    client_next_turn(sessions);
}

/* ---- talk ----------------------------------------------------------------------------------- */

void client_send(struct client *client, enum zero_frame_type type, const void *message,
                 const struct zero_frame_fds *fds)
{
    zero_status s = zero_frame_send(client->socket, type, message, fds, /* deadline_ms= */ 0);

    if (zero_failed(s)) {
        LOG_LIMITED(1, WARNING, "pid %u does not take its answers: %s", client->pid,
                    zero_code_text(s.code));
        client_close(client);
    }
}

void client_refuse(struct client *client, zero_status s)
{
    char text[ZERO_DETAIL_BYTES];
    Zero__V1__Error error = ZERO__V1__ERROR__INIT;

    memcpy(text, fail_detail(), sizeof text);
    /* a frame's strings are whole UTF-8 without control characters; a cut text may be neither */
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
            *c = '?';
    error.code = (uint32_t)s.code;
    error.text = text;
    client_send(client, ZERO_FRAME_ERROR, &error.base, NULL);
}

static void welcome(struct client *client)
{
    struct sessions *sessions = client->sessions;
    Zero__V1__Welcome message = ZERO__V1__WELCOME__INIT;

    message.protocol = ZERO_PROTOCOL_VERSION;
    message.rank = sessions->options.rank;
    message.world = sessions->options.world;
    message.registered = sessions->model == MODEL_JOINED;
    client->state = WELCOMED;
    if (client->role == ROLE_TRAINER) {
        sessions->trainer = client;
        LOG_LIMITED(COMINGS, INFO, "trainer pid %u attached", client->pid);
    }
    client_send(client, ZERO_FRAME_WELCOME, &message.base, NULL);
}

static bool rank_free(struct sessions *sessions, uint32_t pid)
{
    if (sessions->trainer != NULL || sessions->leaving)
        return false;
    if (sessions->model == MODEL_JOINING)
        return false; /* of a trainer that left meanwhile: its end comes in an event */
    if (sessions->old_pidfd >= 0 && pid != sessions->old_pid && !process_gone(sessions->old_pidfd))
        return false;
    if (sessions->old_pidfd >= 0)
        close(sessions->old_pidfd);
    sessions->old_pidfd = -1;
    return true;
}

/* Says whom the rank waits for. */
static void refuse_turn(struct client *client)
{
    const struct sessions *sessions = client->sessions;

    if (sessions->leaving)
        client_refuse(client,
                      REFUSE(BUSY, "attach",
                             "the step that the last trainer of rank %u (pid %u) had begun is not "
                             "decided: zeroctl status tells which rank is waited for",
                             sessions->options.rank, sessions->old_pid));
    else
        client_refuse(client, REFUSE(BUSY, "attach",
                                     "the last trainer of rank %u (pid %u) still lives: end that "
                                     "process",
                                     sessions->options.rank, sessions->old_pid));
}

void client_next_turn(struct sessions *sessions)
{
    uint64_t now = clock_ns();

    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state != WAITING || sessions->closing)
            continue;
        if (rank_free(sessions, c->pid)) {
            welcome(c);
        } else if (now > c->deadline_ns) {
            refuse_turn(c);
            client_close(c);
        }
    }
}

static void handle_hello(struct client *client, const Zero__V1__Hello *hello)
{
    struct sessions *sessions = client->sessions;

    if (client->state != FRESH || hello->role > ROLE_OBSERVER) {
        client_refuse(client, REFUSE(PROTOCOL, "attach", "hello twice, or for an unknown role"));
        client_close(client);
        return;
    }
    if (hello->protocol != ZERO_PROTOCOL_VERSION) {
        client_refuse(client, REFUSE(VERSION, "attach",
                                     "the client speaks protocol %u, this zerod %d: install the "
                                     "same version of both",
                                     hello->protocol, ZERO_PROTOCOL_VERSION));
        client_close(client);
        return;
    }
    client->role = (enum client_role)hello->role;
    if (client->role == ROLE_OBSERVER) {
        welcome(client);
        return;
    }
    if (sessions->trainer != NULL && process_gone(sessions->trainer->pidfd) &&
        sessions->trainer->pidfd >= 0)
        client_close(sessions->trainer); /* its end has not been read yet */
    if (sessions->trainer != NULL) {
        client_refuse(client, REFUSE(BUSY, "attach", "rank %u has a trainer already: pid %u",
                                     sessions->options.rank, sessions->trainer->pid));
        client_close(client);
        return;
    }
    client->state = WAITING;
    client->deadline_ns = clock_ns() + (uint64_t)SESSIONS_TURN_MS * 1000000;
    client_next_turn(sessions);
    if (client->state == WAITING)
        sessions_start_tick(sessions);
}

static void handle_frame(struct client *client, const struct zero_frame *frame)
{
    switch (frame->type) {
    case ZERO_FRAME_HELLO:
        handle_hello(client, (const Zero__V1__Hello *)frame->message);
        return;
    case ZERO_FRAME_REGISTER_CONFIG:
        register_config(client, (const Zero__V1__RegisterConfig *)frame->message);
        return;
    case ZERO_FRAME_REGISTER_TENSORS:
        register_tensors(client, (const Zero__V1__RegisterTensors *)frame->message);
        return;
    case ZERO_FRAME_REGISTER_END:
        register_end(client, (const Zero__V1__RegisterEnd *)frame->message);
        return;
    case ZERO_FRAME_VERSION_OPEN:
        versions_open(client, (const Zero__V1__VersionOpen *)frame->message);
        return;
    case ZERO_FRAME_VERSION_CLOSE:
        versions_close(client);
        return;
    case ZERO_FRAME_VERSION_LIST:
        versions_list(client);
        return;
    case ZERO_FRAME_SAVE_BEGIN:
        saves_begin(client, (const Zero__V1__SaveBegin *)frame->message);
        return;
    case ZERO_FRAME_SAVE_LOOK:
        saves_look(client);
        return;
    default:
        client_refuse(client, REFUSE(PROTOCOL, "read frame", "type %d is not for a daemon",
                                     (int)frame->type));
        client_close(client);
    }
}

static void read_frames(struct client *client)
{
    static struct log_limit broken;

    for (int n = 0; n < FRAMES_AT_ONCE && client->state != CLOSING; n++) {
        struct zero_frame frame;
        struct zero_detail detail = { "" };
        zero_status s = zero_frame_receive(client->socket, /* fd_capacity= */ 0,
                                           /* deadline_ms= */ 0, &frame, &detail);
        if (s.code == ZERO_DEADLINE)
            return;
        if (s.code == ZERO_PROTOCOL) {
            log_limited(&broken, 1, LOG_WARNING_LEVEL, "pid %u sent a broken frame: %s",
                        client->pid, detail.text);
            client_refuse(client, fail_refuse(s.code, s.doing, "%s", detail.text));
        }
        if (zero_failed(s)) {
            client_close(client);
            return;
        }
        handle_frame(client, &frame);
        zero_frame_release(&frame);
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct client *client = poll->data;

    if (status < 0) {
        client_close(client);
        return;
    }
    if (events & UV_READABLE)
        read_frames(client);
    if ((events & UV_WRITABLE) && client->state == SENDING_MODEL)
        reply_go_on(client);
    if ((events & UV_DISCONNECT) && client->state != CLOSING && !(events & UV_READABLE))
        client_close(client);
}

void client_watch(struct client *client, bool writable)
{
    uv_poll_start(&client->poll, UV_READABLE | UV_DISCONNECT | (writable ? UV_WRITABLE : 0),
                  on_readable);
}

/* ---- beginning ------------------------------------------------------------------------------ */

/* A process that died while it still has children holds the socket open: its pidfd tells. */
static void on_process_gone(uv_poll_t *poll, int status, int events)
{
    struct client *client = poll->data;

    (void)status;
    (void)events;
    if (client->state != CLOSING)
        client_close(client);
}

static int open_pidfd(int socket, pid_t pid)
{
    int pidfd = -1;
    socklen_t bytes = sizeof pidfd;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &bytes) == 0)
        return pidfd;
    return process_open((uint32_t)pid); /* older kernels: a race with a reused pid */
}

/* It gets no answer, so the log must say it; but whoever is refused may come again at once. */
static zero_status turn_away(zero_status s)
{
    LOG_LIMITED(1, WARNING, "%s: %s", s.doing, fail_detail());
    return s;
}

static zero_status check_peer(struct sessions *sessions, int socket, struct ucred *out)
{
    socklen_t bytes = sizeof *out;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, out, &bytes) != 0)
        return FAIL(SYSTEM, "accept client", "SO_PEERCRED: %s", strerror(errno));
    if (out->uid != geteuid() && out->uid != 0)
        return turn_away(REFUSE(PERMISSION, "accept client",
                                "uid %u (pid %d) is neither %u nor root", out->uid, (int)out->pid,
                                geteuid()));
    if (sessions->client_count >= SESSIONS_MAX)
        return turn_away(REFUSE(BUSY, "accept client",
                                "pid %d was turned away: %d clients are connected already",
                                (int)out->pid, SESSIONS_MAX));
    return zero_success();
}

zero_status client_accept(struct sessions *sessions, int socket)
{
    struct ucred peer;
    zero_status s = check_peer(sessions, socket, &peer);
    if (zero_failed(s))
        return s;
    struct client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return FAIL(NO_MEMORY, "accept client", "%zu bytes", sizeof *client);
    client->sessions = sessions;
    client->token = sessions->next_token++;
    client->socket = socket;
    client->pid = (uint32_t)peer.pid;
    client->pidfd = open_pidfd(socket, peer.pid);
    if (uv_poll_init(sessions->options.loop, &client->poll, socket) != 0) {
        if (client->pidfd >= 0)
            close(client->pidfd);
        free(client);
        return FAIL(SYSTEM, "accept client", "poll");
    }
    client->open_handles = 1;
    client->poll.data = client->pid_poll.data = client;
    if (client->pidfd >= 0 &&
        uv_poll_init(sessions->options.loop, &client->pid_poll, client->pidfd) == 0) {
        client->open_handles++;
        uv_poll_start(&client->pid_poll, UV_READABLE, on_process_gone);
    } else if (client->pidfd >= 0) {
        close(client->pidfd);
        client->pidfd = -1;
    }
    client->next = sessions->clients;
    sessions->clients = client;
    sessions->client_count++;
    client_watch(client, /* writable= */ false);
    return zero_success();
}
