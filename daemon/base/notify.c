/* SPDX-License-Identifier: MIT */
#include "daemon/base/notify.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"

enum {
    FIRST_FD = 3,    /* SD_LISTEN_FDS_START */
    MOST_FDS = 1024, /* more is no list of ours */
    MOST_NAME = 255,
    HIGH_FD = 2048, /* above every fd that a daemon has */
};

static const char *socket_path(void)
{
    const char *path = getenv("NOTIFY_SOCKET");
    return path != NULL && *path != '\0' ? path : NULL;
}

bool notify_held(void)
{
    return socket_path() != NULL;
}

/* One datagram, with at most one fd (-1: none). */
static zero_status send_text(const char *text, int fd)
{
    const char *path = socket_path();
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    char control[CMSG_SPACE(sizeof fd)] = { 0 };
    struct iovec part = { (char *)(uintptr_t)text, strlen(text) };

    if (path == NULL)
        return zero_success();
    if (strlen(path) >= sizeof address.sun_path)
        return FAIL(INVALID_ARGUMENT, "tell holder", "NOTIFY_SOCKET %s is too long", path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    struct msghdr header = { .msg_name = &address,
                             .msg_namelen =
                                 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path)),
                             .msg_iov = &part,
                             .msg_iovlen = 1 };
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    if (fd >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    int out = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (out < 0)
        return FAIL(SYSTEM, "tell holder", "socket: %s", strerror(errno));
    ssize_t sent;
    do
        sent = sendmsg(out, &header, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    int error = errno;
    close(out);
    if (sent < 0)
        return FAIL(SYSTEM, "tell holder", "NOTIFY_SOCKET %s: %s", path, strerror(error));
    return zero_success();
}

void notify_say(const char *text)
{
    send_text(text, -1); /* the reason is logged */
}

zero_status notify_store(const char *name, int fd)
{
    char text[MOST_NAME + 64];
    int bytes = snprintf(text, sizeof text, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s\n", name);

    if (bytes < 0 || (size_t)bytes >= sizeof text)
        return FAIL(INVALID_ARGUMENT, "lodge fd", "the name %s is too long", name);
    return send_text(text, fd);
}

zero_status notify_remove(const char *name)
{
    char text[MOST_NAME + 64];
    int bytes = snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s\n", name);

    if (bytes < 0 || (size_t)bytes >= sizeof text)
        return FAIL(INVALID_ARGUMENT, "take fd back", "the name %s is too long", name);
    return send_text(text, -1);
}

/* The holder closes its end of a pipe when it comes to it. */
zero_status notify_barrier(int deadline_ms)
{
    int ends[2];

    if (!notify_held())
        return zero_success();
    if (pipe2(ends, O_CLOEXEC) != 0)
        return FAIL(SYSTEM, "wait for holder", "pipe: %s", strerror(errno));
    zero_status s = send_text("BARRIER=1", ends[1]);
    close(ends[1]);
    struct pollfd poll_fd = { .fd = ends[0] };
    int ready = zero_failed(s) ? 0 : poll(&poll_fd, 1, deadline_ms);
    close(ends[0]);
    if (!zero_failed(s) && ready <= 0)
        s = FAIL(DEADLINE, "wait for holder", "no answer to BARRIER=1 in %d ms", deadline_ms);
    return s;
}

/* ---- what was kept -------------------------------------------------------------------------- */

static unsigned long number_of(const char *variable)
{
    const char *text = getenv(variable);
    char *end = NULL;

    if (text == NULL || *text < '0' || *text > '9')
        return 0;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    return errno == 0 && *end == '\0' ? value : 0;
}

/* Cuts the names apart in a copy that follows the list in its allocation. */
static void name_fds(struct notify_fd *list, size_t count, char *names)
{
    for (size_t i = 0; i < count; i++) {
        char *name = names != NULL ? strsep(&names, ":") : NULL;
        list[i] = (struct notify_fd){ name != NULL ? name : "", FIRST_FD + (int)i };
    }
}

zero_status notify_take(struct notify_fd **out, size_t *out_count)
{
    unsigned long count = number_of("LISTEN_FDS"), pid = number_of("LISTEN_PID");
    const char *names = getenv("LISTEN_FDNAMES");

    *out = NULL;
    *out_count = 0;
    if (count == 0 || pid != (unsigned long)getpid())
        return zero_success();
    if (count > MOST_FDS)
        return FAIL(TOO_LARGE, "take fds back", "LISTEN_FDS=%lu: at most %d", count, MOST_FDS);
    for (unsigned long i = 0; i < count; i++) {
        int fd = FIRST_FD + (int)i;
        if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0)
            return FAIL(SYSTEM, "take fds back", "fd %d of LISTEN_FDS=%lu: %s", fd, count,
                        strerror(errno));
    }
    size_t bytes = names != NULL ? strlen(names) + 1 : 0;
    struct notify_fd *list = malloc(count * sizeof *list + bytes);
    if (list == NULL)
        return FAIL(NO_MEMORY, "take fds back", "%lu fds", count);
    char *copy = bytes > 0 ? memcpy((char *)(list + count), names, bytes) : NULL;
    name_fds(list, count, copy);
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDNAMES");
    *out = list;
    *out_count = count;
    return zero_success();
}

/* ---- handing over --------------------------------------------------------------------------- */

static zero_status set_environment(const struct notify_fd *list, size_t count)
{
    char number[32], *names = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&names, &bytes);

    for (size_t i = 0; to != NULL && i < count; i++)
        fprintf(to, "%s%s", i ? ":" : "", list[i].name);
    bool bad =
        to == NULL || ferror(to) || fclose(to) != 0 || setenv("LISTEN_FDNAMES", names, 1) != 0;
    free(names);
    snprintf(number, sizeof number, "%zu", count);
    bad = bad || setenv("LISTEN_FDS", number, 1) != 0;
    snprintf(number, sizeof number, "%ld", (long)getpid());
    if (bad || setenv("LISTEN_PID", number, 1) != 0)
        return FAIL(NO_MEMORY, "hand over", "%zu fds", count);
    return zero_success();
}

zero_status notify_can_hand_over(size_t count)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur < HIGH_FD + count)
        return FAIL(SYSTEM, "hand over", "raise the limit of open files (ulimit -n) to %zu",
                    HIGH_FD + count);
    return zero_success();
}

zero_status notify_hand_over(const struct notify_fd *list, size_t count)
{
    zero_status s = set_environment(list, count);

    for (size_t i = 0; i < count && !zero_failed(s); i++) /* first out of the way of each other */
        if (fcntl(list[i].fd, F_DUPFD, HIGH_FD + (int)i) != HIGH_FD + (int)i)
            s = FAIL(SYSTEM, "hand over", "%s: %s", list[i].name, strerror(errno));
    for (size_t i = 0; i < count && !zero_failed(s); i++) {
        if (dup2(HIGH_FD + (int)i, FIRST_FD + (int)i) < 0)
            s = FAIL(SYSTEM, "hand over", "%s: %s", list[i].name, strerror(errno));
        close(HIGH_FD + (int)i);
    }
    return s;
}
