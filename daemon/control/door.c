/* SPDX-License-Identifier: MIT */
#include "daemon/control/door.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"

enum {
    BACKLOG = 128,
    PAUSE_MS = 100, /* without descriptors: the poll is level-triggered and would spin */
};

static void on_knock(uv_poll_t *poll, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    struct door *door = timer->data;

    uv_poll_start(&door->poll, UV_READABLE, on_knock);
}

static void pause_door(struct door *door)
{
    uv_poll_stop(&door->poll);
    uv_timer_start(&door->pause, on_pause_over, PAUSE_MS, /* repeat= */ 0);
}

static bool may_enter(int fd)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return false;
    if (peer.uid == geteuid() || peer.uid == 0)
        return true;
    LOG_LIMITED(1, WARNING,
                "control: uid %u (pid %d) was turned away: only uid %u and root may ask",
                (unsigned)peer.uid, (int)peer.pid, (unsigned)geteuid());
    return false;
}

static void on_knock(uv_poll_t *poll, int status, int events)
{
    static struct log_limit starved, broken;
    struct door *door = poll->data;

    (void)events;
    if (status < 0) {
        log_limited(&broken, 1, LOG_ERROR_LEVEL, "control: poll of %s: %s", door->address.sun_path,
                    uv_strerror(status));
        pause_door(door);
        return;
    }
    int fd = accept4(door->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_limited(&starved, 1, LOG_WARNING_LEVEL,
                        "control: accept: %s; trying again every %d ms", strerror(errno), PAUSE_MS);
            pause_door(door);
        }
        return;
    }
    if (fd >= door->descriptors || !may_enter(fd))
        close(fd);
    else
        door->on_guest(door->context, fd);
}

/* What a dead daemon left behind is removed; anything else is not ours to remove. */
static zero_status remove_stale(const char *path)
{
    struct stat stat;

    if (lstat(path, &stat) != 0)
        return zero_success();
    if (!S_ISSOCK(stat.st_mode))
        return FAIL(BUSY, "open control socket", "%s exists and is not a socket: move it away",
                    path);
    if (unlink(path) != 0)
        return FAIL(SYSTEM, "open control socket", "remove stale %s: %s", path, strerror(errno));
    return zero_success();
}

static zero_status listen_at(struct door *door, const char *path)
{
    struct sockaddr *address = (struct sockaddr *)&door->address;
    zero_status s;

    if (strlen(path) >= sizeof door->address.sun_path)
        return FAIL(INVALID_ARGUMENT, "open control socket",
                    "%s has more than %zu characters: use a shorter runtime folder", path,
                    sizeof door->address.sun_path - 1);
    door->address.sun_family = AF_UNIX;
    memcpy(door->address.sun_path, path, strlen(path) + 1);
    s = remove_stale(path);
    if (zero_failed(s))
        return s;
    door->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (door->fd < 0)
        return FAIL(SYSTEM, "open control socket", "socket: %s", strerror(errno));
    /* before bind, so that there is no moment with a wider mode */
    if (fchmod(door->fd, 0600) != 0 || bind(door->fd, address, sizeof door->address) != 0 ||
        listen(door->fd, BACKLOG) != 0) {
        s = FAIL(SYSTEM, "open control socket", "%s: %s", path, strerror(errno));
        close(door->fd);
        return s;
    }
    return zero_success();
}

zero_status door_open(struct door *door, uv_loop_t *loop, const char *path)
{
    struct rlimit files;
    zero_status s = listen_at(door, path);

    if (zero_failed(s))
        return s;
    door->descriptors = INT32_MAX;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < INT32_MAX)
        door->descriptors = (int)(files.rlim_cur - files.rlim_cur / 4);
    int failed = uv_poll_init(loop, &door->poll, door->fd);
    if (failed != 0) {
        s = FAIL(SYSTEM, "open control socket", "poll: %s", uv_strerror(failed));
        close(door->fd);
        unlink(path);
        return s;
    }
    uv_timer_init(loop, &door->pause);
    door->poll.data = door->pause.data = door;
    door->handles = 2;
    uv_poll_start(&door->poll, UV_READABLE, on_knock);
    return zero_success();
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct door *door = handle->data;

    if (--door->handles > 0)
        return;
    close(door->fd);
    door->on_closed(door->context);
}

void door_close(struct door *door)
{
    uv_poll_stop(&door->poll);
    unlink(door->address.sun_path);
    uv_close((uv_handle_t *)&door->poll, on_handle_closed);
    uv_close((uv_handle_t *)&door->pause, on_handle_closed);
}
