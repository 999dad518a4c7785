/* SPDX-License-Identifier: MIT */
/* The listener, the tick, and the engine's events. */
#include "daemon/session/session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/base/process.h"
#include "daemon/session/client.h"
#include "daemon/session/saves.h"

enum { ACCEPT_AT_ONCE = 16 };

static void on_listen(uv_poll_t *poll, int status, int events);

/* Out of fds the listener would be readable for ever: it rests until the next tick. */
static void pause_listener(struct sessions *sessions)
{
    uv_poll_stop(&sessions->listen_poll);
    sessions->listener_pauses = true;
    sessions_start_tick(sessions);
}

/* False when there is nobody to accept for now. */
static bool accept_one(struct sessions *sessions)
{
    int fd = accept4(sessions->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd >= 0) {
        if (zero_failed(client_accept(sessions, fd)))
            close(fd);
        return true;
    }
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        LOG_LIMITED(1, WARNING, "accept: %s: trying again every %d ms", strerror(errno),
                    SESSIONS_TICK_MS);
        pause_listener(sessions);
    }
    return false;
}

static void on_listen(uv_poll_t *poll, int status, int events)
{
    (void)events;
    for (int n = 0; n < ACCEPT_AT_ONCE && status >= 0; n++)
        if (!accept_one(poll->data))
            return;
}

static void on_tick(uv_timer_t *timer)
{
    struct sessions *sessions = timer->data;
    bool needed = false;

    if (sessions->listener_pauses) {
        sessions->listener_pauses = false;
        uv_poll_start(&sessions->listen_poll, UV_READABLE, on_listen);
    }
    client_next_turn(sessions);
    versions_expire(sessions, clock_ns());
    for (struct client *c = sessions->clients; c != NULL; c = c->next)
        needed = needed || c->state == WAITING || c->reads == READS_SOON;
    if (!needed && !sessions->listener_pauses) {
        uv_timer_stop(timer);
        sessions->tick_runs = false;
    }
}

void sessions_start_tick(struct sessions *sessions)
{
    if (sessions->tick_runs || sessions->closing)
        return;
    sessions->tick_runs = true;
    uv_timer_start(&sessions->tick, on_tick, SESSIONS_TICK_MS, SESSIONS_TICK_MS);
}

static zero_status listen_on(struct sessions *sessions)
{
    const struct sessions_options *o = &sessions->options;
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int bytes =
        snprintf(address.sun_path, sizeof address.sun_path, "%s/rank-%u.sock", o->dir, o->rank);

    if (bytes < 0 || (size_t)bytes >= sizeof address.sun_path)
        return FAIL(INVALID_ARGUMENT, "listen for trainers",
                    "%s/rank-%u.sock is longer than the %zu bytes of a socket path: use a shorter "
                    "runtime folder",
                    o->dir, o->rank, sizeof address.sun_path - 1);
    memcpy(sessions->path, address.sun_path, sizeof address.sun_path);
    unlink(address.sun_path); /* main holds the rank's lock: whoever made it is dead */
    sessions->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sessions->listener < 0 ||
        bind(sessions->listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(sessions->listener, SOMAXCONN) != 0)
        return FAIL(SYSTEM, "listen for trainers", "%s: %s", address.sun_path, strerror(errno));
    return zero_success();
}

zero_status sessions_open(const struct sessions_options *options, struct sessions **out)
{
    zero_status s;
    struct sessions *sessions = calloc(1, sizeof *sessions);

    if (sessions == NULL)
        return FAIL(NO_MEMORY, "open sessions", "%zu bytes", sizeof *sessions);
    sessions->options = *options;
    sessions->listener = sessions->old_pidfd = -1;
    sessions->next_token = 1;
    TRY(s, listen_on(sessions));
    int error = uv_poll_init(options->loop, &sessions->listen_poll, sessions->listener);
    if (error != 0) {
        s = FAIL(SYSTEM, "open sessions", "poll: %s", uv_strerror(error));
        goto out;
    }
    uv_timer_init(options->loop, &sessions->tick);
    sessions->listen_poll.data = sessions->tick.data = sessions;
    sessions->open_handles = 2;
    uv_poll_start(&sessions->listen_poll, UV_READABLE, on_listen);
    *out = sessions;
    sessions = NULL;
out:
    if (sessions != NULL && sessions->listener >= 0)
        close(sessions->listener);
    free(sessions);
    return s;
}

void sessions_handle_closed(struct sessions *sessions)
{
    if (!sessions->closing || sessions->open_handles > 0 || sessions->clients != NULL)
        return;
    close(sessions->listener);
    versions_deinit(sessions);
    if (sessions->old_pidfd >= 0)
        close(sessions->old_pidfd);
    unlink(sessions->path);
    void (*on_closed)(void *context) = sessions->on_closed;
    void *context = sessions->context;
    free(sessions);
    on_closed(context);
}

void sessions_farewell(struct sessions *sessions)
{
    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state != CLOSING && !c->saves) /* its save may yet end well */
            client_refuse(c, REFUSE(DAEMON_LOST, "serve client", "the group was shut down"));
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct sessions *sessions = handle->data;

    sessions->open_handles--;
    sessions_handle_closed(sessions);
}

void sessions_close(struct sessions *sessions, void (*on_closed)(void *context), void *context)
{
    sessions->closing = true;
    sessions->on_closed = on_closed;
    sessions->context = context;
    uv_poll_stop(&sessions->listen_poll);
    uv_close((uv_handle_t *)&sessions->listen_poll, on_handle_closed);
    uv_close((uv_handle_t *)&sessions->tick, on_handle_closed);
    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        client_close(c);
    }
}

void sessions_recover(struct sessions *sessions)
{
    sessions->model = MODEL_JOINING;
}

/* The last trainer of a dead daemon may still write to its windows. */
static void fence(struct sessions *sessions)
{
    uint64_t start;

    engine_last_trainer(sessions->options.engine, &sessions->old_pid, &start);
    if (sessions->old_pid == 0)
        return;
    sessions->old_pidfd = process_open(sessions->old_pid);
    if (sessions->old_pidfd >= 0 && process_start(sessions->old_pid) != start) {
        close(sessions->old_pidfd); /* another process has its pid by now */
        sessions->old_pidfd = -1;
    }
}

void sessions_event(struct sessions *sessions, const struct engine_event *event)
{
    struct client *client = client_find(sessions, event->token);

    switch (event->kind) {
    case ENGINE_JOINED:
        sessions->model = zero_failed(event->status) ? MODEL_NONE : MODEL_JOINED;
        if (event->token == 0 && !zero_failed(event->status))
            fence(sessions);
        client_next_turn(sessions);
        if (client != NULL)
            register_joined(client, event);
        break;
    case ENGINE_ATTACHED:
        if (client != NULL)
            reply_registered(client);
        break;
    case ENGINE_DETACHED:
        if (sessions->leaving_token == event->token)
            sessions->leaving = false;
        client_next_turn(sessions);
        break;
    case ENGINE_COPIED:
        versions_copied(sessions, event);
        break;
    case ENGINE_BROKEN:
        if (client != NULL) {
            client_refuse(client,
                          fail_refuse(ZERO_PROTOCOL, event->status.doing, "%s", event->text));
            client_close(client);
        }
        break;
    case ENGINE_SAVED:
        saves_ended(sessions, event);
        break;
    case ENGINE_FINISHED:
    case ENGINE_FROZEN:
    case ENGINE_LOST:
        break; /* every call is answered so; people see it in status */
    }
}

bool sessions_joined(const struct sessions *sessions)
{
    return sessions->model == MODEL_JOINED;
}

uint32_t sessions_trainer_pid(const struct sessions *sessions)
{
    return sessions->trainer ? sessions->trainer->pid : 0;
}

uint32_t sessions_observers(const struct sessions *sessions)
{
    uint32_t count = 0;

    for (const struct client *c = sessions->clients; c != NULL; c = c->next)
        count += c->role == ROLE_OBSERVER && c->state == ATTACHED;
    return count;
}
