/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_holder.h"

#include "deploy/zerorun_clock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    TEXT_BYTES = 4096,
    MESSAGE_FDS = 253, /* SCM_MAX_FD: the kernel sends no more at once */
    MOST_EXTEND_MS = 3600000,
};

struct message {
    char text[TEXT_BYTES];
    int fds[MESSAGE_FDS];
    size_t count;
    pid_t sender;
    bool cut;  /* the text is longer */
    bool lost; /* there were more fds than this process may open */
};

/* What a text asks for, one assignment a line. */
struct tags {
    enum holder_news news; /* the last */
    bool store, remove, barrier, stopping, saved;
    int64_t extend_ms;                  /* 0: not asked for */
    const char *name, *save_dir, *step; /* NULL: none */
};

bool holder_open(struct holder *holder, const char *path, uint32_t rank)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const int on = 1;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    holder->rank = rank;
    holder->fd = -1;
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
    } else if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0) {
        memcpy(address.sun_path, path, strlen(path) + 1);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0) {
            holder->fd = fd;
            return true;
        }
    }
    int error = errno;
    if (fd >= 0)
        close(fd);
    errno = error;
    return false;
}

void holder_forget(struct holder *holder)
{
    for (size_t i = 0; i < holder->count; i++) {
        close(holder->kept[i].fd);
        free(holder->kept[i].name);
    }
    holder->count = 0;
}

void holder_close(struct holder *holder)
{
    holder_forget(holder);
    free(holder->save_dir);
    holder->save_dir = NULL;
    if (holder->fd >= 0)
        close(holder->fd);
    holder->fd = -1;
}

/* ---- receiving -------------------------------------------------------------------------- */

static void unpack(struct msghdr *header, struct message *message)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        struct ucred sender;
        if (c->cmsg_level != SOL_SOCKET)
            continue;
        if (c->cmsg_type == SCM_RIGHTS) {
            message->count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(message->fds, CMSG_DATA(c), message->count * sizeof(int));
        } else if (c->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&sender, CMSG_DATA(c), sizeof sender);
            message->sender = sender.pid;
        }
    }
}

static bool receive(int fd, struct message *message)
{
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MESSAGE_FDS * sizeof(int))];
    } control;
    struct iovec part = { message->text, sizeof message->text - 1 };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control
    };
    ssize_t n;

    do
        n = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return false;
    message->text[n] = '\0';
    message->count = 0;
    message->sender = 0;
    message->cut = (header.msg_flags & MSG_TRUNC) != 0;
    message->lost = (header.msg_flags & MSG_CTRUNC) != 0;
    unpack(&header, message);
    return true;
}

/* What follows NAME= in the line; NULL if it is another name's. */
static const char *value_of(const char *line, const char *name)
{
    size_t length = strlen(name);
    return strncmp(line, name, length) == 0 ? line + length : NULL;
}

/* Cuts the text apart. */
static void parse(struct message *message, struct tags *out)
{
    memset(out, 0, sizeof *out);
    for (char *rest = message->text, *line; (line = strsep(&rest, "\n")) != NULL;) {
        if (strcmp(line, "READY=1") == 0)
            out->news = HOLDER_READY;
        if (strcmp(line, "RELOADING=1") == 0)
            out->news = HOLDER_RELOADING;
        out->store = out->store || strcmp(line, "FDSTORE=1") == 0;
        out->remove = out->remove || strcmp(line, "FDSTOREREMOVE=1") == 0;
        out->barrier = out->barrier || strcmp(line, "BARRIER=1") == 0;
        out->stopping = out->stopping || strcmp(line, "STOPPING=1") == 0;
        out->saved = out->saved || value_of(line, "X_ZERO_SAVED=") != NULL;
        const char *value;
        if ((value = value_of(line, "FDNAME=")) != NULL)
            out->name = value;
        if ((value = value_of(line, "X_ZERO_SAVE=")) != NULL)
            out->save_dir = value;
        if ((value = value_of(line, "X_ZERO_SAVING=")) != NULL)
            out->step = value;
        if ((value = value_of(line, "EXTEND_TIMEOUT_USEC=")) != NULL)
            out->extend_ms = strtoll(value, NULL, 10) / 1000;
    }
}

/* ---- keeping ---------------------------------------------------------------------------- */

/* As systemd has it: names are passed on in one variable, with colons between them. */
static bool is_name(const char *name)
{
    size_t length = strlen(name);

    for (size_t i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] > '~' || name[i] == ':')
            return false;
    return length > 0 && length <= HOLDER_NAME_BYTES;
}

static bool check_name(const struct holder *holder, const char *name, struct output *output)
{
    if (is_name(name))
        return true;
    output_say(output,
               "zerod %u: FDNAME=%.*s is no name for a kept fd: it takes 1 to %d printable bytes "
               "without ':'; the request is refused",
               holder->rank, HOLDER_NAME_BYTES, name, HOLDER_NAME_BYTES);
    return false;
}

static void forget_name(struct holder *holder, const char *name)
{
    size_t left = 0;

    for (size_t i = 0; i < holder->count; i++) {
        struct kept *kept = &holder->kept[i];
        if (strcmp(kept->name, name) != 0) {
            holder->kept[left++] = *kept;
            continue;
        }
        close(kept->fd);
        free(kept->name);
    }
    holder->count = left;
}

/* Takes over the message's fds. */
static void keep(struct holder *holder, const char *name, struct message *message,
                 struct output *output)
{
    size_t taken = 0;

    while (taken < message->count && holder->count < HOLDER_FDS) {
        char *copy = strdup(name);
        if (copy == NULL)
            break;
        holder->kept[holder->count++] = (struct kept){ copy, message->fds[taken++] };
    }
    if (taken < message->count)
        output_say(output,
                   "zerod %u: %zu of %zu fds named %s are not kept: %s; they are lost when it ends",
                   holder->rank, message->count - taken, message->count, name,
                   holder->count < HOLDER_FDS ? "no memory" : "as many as can be are kept (512)");
    memmove(message->fds, message->fds + taken, (message->count - taken) * sizeof(int));
    message->count -= taken;
}

static void obey(struct holder *holder, struct message *message, const struct tags *tags,
                 struct output *output)
{
    const char *name = tags->name != NULL ? tags->name : "stored";

    if (message->lost && tags->store) /* a barrier has done its work without its fd */
        output_say(output,
                   "zerod %u: an fd that came with FDNAME=%s was lost: raise the limit of open "
                   "files (ulimit -n)",
                   holder->rank, name);
    if (tags->remove && tags->name == NULL)
        output_say(output, "zerod %u: FDSTOREREMOVE=1 without FDNAME= is refused", holder->rank);
    else if (tags->remove && check_name(holder, name, output))
        forget_name(holder, name);
    if (tags->store && check_name(holder, name, output))
        keep(holder, name, message, output);
    else if (message->count > 0 && !tags->store && !tags->barrier)
        output_say(output, "zerod %u: %zu fds came without FDSTORE=1: they are not kept",
                   holder->rank, message->count);
}

/* What it says of its end. */
static void note(struct holder *holder, const struct tags *tags)
{
    if (tags->extend_ms > 0 && tags->extend_ms <= MOST_EXTEND_MS)
        holder->patience_ms = now_ms() + tags->extend_ms;
    holder->stopping = holder->stopping || tags->stopping;
    holder->saved = holder->saved || tags->saved;
    if (tags->step != NULL)
        snprintf(holder->step, sizeof holder->step, "%s", tags->step);
    if (tags->save_dir != NULL) {
        free(holder->save_dir);
        holder->save_dir = strdup(tags->save_dir);
    }
}

enum holder_news holder_hear(struct holder *holder, pid_t daemon, struct output *output)
{
    struct message message;
    enum holder_news news = HOLDER_NOTHING;

    while (receive(holder->fd, &message)) {
        struct tags tags = { 0 };
        if (daemon == 0 || message.sender != daemon) {
            if (message.sender != holder->stranger)
                output_say(output, "process %d is not zerod %u: what it says to us is refused",
                           (int)message.sender, holder->rank);
            holder->stranger = message.sender;
        } else if (message.cut) {
            output_say(output, "zerod %u: a message of over %d bytes is refused", holder->rank,
                       TEXT_BYTES - 1);
        } else {
            parse(&message, &tags);
            obey(holder, &message, &tags, output);
            news = tags.news != HOLDER_NOTHING ? tags.news : news;
            note(holder, &tags);
        }
        for (size_t i = 0; i < message.count; i++) /* a barrier's, and what is not kept */
            close(message.fds[i]);
    }
    return news;
}
