/* SPDX-License-Identifier: MIT */
/* How the ranks of one host meet: a SOCK_SEQPACKET connection for each pair, made by the higher
 * rank.
 *
 * Each side sends a hello that carries the fds of what it brings, and, once it has every peer's
 * hello, a ready. A rank has joined when it has every peer's ready: so a peer that gave up half-way
 * is noticed by its closed connection, and met again when it comes back. That is watched for to the
 * end: a peer that is ready may join, lose another, and want to meet this rank again.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/comm/comm_shm.h"
#include "daemon/comm/shm_greet.h"

enum { TICK_MS = 20 }; /* between tries to connect, and looks at cancel */

struct meeting {
    const struct comm_group *group;
    struct shm_comm *shm;
    int text_fd;
    uint64_t deadline;
    struct state {
        bool said_hello, got_hello, said_ready, got_ready;
    } * states;
    int strangers[ZERO_MAX_WORLD]; /* accepted, hello not read yet */
    uint32_t stranger_count;
};

static atomic_bool join_cancelled;

void shm_cancel(bool cancelled)
{
    atomic_store(&join_cancelled, cancelled);
}

static zero_status peer_address(const char *dir, uint32_t rank, struct sockaddr_un *out)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    int bytes = snprintf(out->sun_path, sizeof out->sun_path, "%s/rank-%u.peer", dir, rank);
    if (bytes < 0 || (size_t)bytes >= sizeof out->sun_path)
        return FAIL(INVALID_ARGUMENT, "name peer socket",
                    "%s/rank-%u.peer is longer than the %zu bytes of a socket path: use a shorter "
                    "runtime folder",
                    dir, rank, sizeof out->sun_path - 1);
    return zero_success();
}

zero_status shm_listen(const char *dir, uint32_t rank, int *out_listener)
{
    struct sockaddr_un address;
    zero_status s = peer_address(dir, rank, &address);
    if (zero_failed(s))
        return s;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return FAIL(SYSTEM, "listen for peers", "socket: %s", strerror(errno));
    unlink(address.sun_path); /* the caller holds the rank's lock: whoever made it is dead */
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        chmod(address.sun_path, 0600) != 0 || listen(fd, ZERO_MAX_WORLD) != 0) {
        s = FAIL(SYSTEM, "listen for peers", "%s: %s", address.sun_path, strerror(errno));
        close(fd);
        return s;
    }
    *out_listener = fd;
    return zero_success();
}

static void drop_link(struct meeting *meeting, uint32_t rank)
{
    struct shm_peer *link = &meeting->shm->links[rank];

    for (int m = 0; m < SHM_MAPPINGS; m++) {
        if (link->mapped[m].base != NULL)
            munmap(link->mapped[m].base, link->mapped[m].bytes);
        link->mapped[m].base = NULL;
    }
    if (link->param_fd >= 0)
        close(link->param_fd);
    if (link->socket >= 0)
        close(link->socket);
    link->socket = link->param_fd = -1;
    memset(&meeting->states[rank], 0, sizeof meeting->states[rank]);
}

/* Is it from a rank of this group that may say so over this socket? Ranks above ours call us. */
static bool is_ours(const struct meeting *meeting, int socket, const struct greet_message *hello)
{
    const struct comm_group *group = meeting->group;

    return hello->world == group->world && hello->rank < group->world &&
           (hello->rank > group->rank ||
            (hello->rank < group->rank && meeting->shm->links[hello->rank].socket == socket));
}

/* Takes a hello: its sender becomes links[rank], whose socket it came over. */
static zero_status take_hello(struct meeting *meeting, int socket,
                              const struct greet_message *hello, const int *fds, int count)
{
    const struct comm_group *group = meeting->group;
    zero_status s;

    if (hello->kind != GREET_HELLO || count < 2)
        return REFUSE(PROTOCOL, "meet peers", "a message of kind %u with %d fds", hello->kind,
                      count);
    if (!is_ours(meeting, socket, hello))
        return REFUSE(
            INVALID_ARGUMENT, "meet peers",
            "a daemon that says it is rank %u of %u wants to join rank %u of %u: start every "
            "zerod of the folder with the same --world and its own --rank",
            hello->rank, hello->world, group->rank, group->world);
    if (meeting->shm->links[hello->rank].socket != socket) {
        drop_link(meeting, hello->rank);
        meeting->shm->links[hello->rank].socket = socket;
    }
    TRY(s, greet_compare(meeting->group, hello, fds[0]));
    TRY(s, greet_map(&meeting->shm->links[hello->rank], hello, fds, count));
    meeting->shm->links[hello->rank].standing = hello->standing;
    meeting->states[hello->rank].got_hello = true;
out:
    return s;
}

static zero_status answer_hello(struct meeting *meeting, uint32_t rank)
{
    if (meeting->states[rank].said_hello)
        return zero_success();
    meeting->states[rank].said_hello = true;
    return greet_say(meeting->group, meeting->text_fd, meeting->shm->links[rank].socket,
                     GREET_HELLO);
}

/* Ranks above ours connect to us; the first message says which one it is. */
static void accept_strangers(struct meeting *meeting)
{
    static struct log_limit refused;

    for (int i = 0; i < ZERO_MAX_WORLD; i++) {
        int fd = accept4(meeting->group->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct ucred peer = { .uid = (uid_t)-1 };
        socklen_t bytes = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
            (peer.uid != geteuid() && peer.uid != 0)) {
            log_limited(&refused, 1, LOG_WARNING_LEVEL, "refused a peer connection of uid %u",
                        peer.uid);
            close(fd);
            continue;
        }
        if (meeting->stranger_count == ZERO_MAX_WORLD) { /* one that says nothing makes room */
            close(meeting->strangers[0]);
            meeting->strangers[0] = meeting->strangers[--meeting->stranger_count];
        }
        meeting->strangers[meeting->stranger_count++] = fd;
    }
}

static bool readable(int fd)
{
    struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
    return poll(&poll_fd, 1, 0) > 0;
}

static void close_fds(const int *fds, int count)
{
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* Who does not belong to this group cannot end a meeting: what the ranks keep would be lost by it.
 * Only where they meet for the first time, and trainers wait, is a daemon of another version, group
 * or model an error that people have to hear of; ranks that meet again did agree. */
static bool turns_away(const struct meeting *meeting, zero_status s)
{
    static struct log_limit limit;
    bool foreign = s.code == ZERO_VERSION || s.code == ZERO_INVALID_ARGUMENT ||
                   s.code == ZERO_CONFLICT || s.code == ZERO_CORRUPT;

    if (s.code != ZERO_PROTOCOL && !(foreign && meeting->group->deadline_ms == 0))
        return false;
    log_limited(&limit, 1, LOG_WARNING_LEVEL, "turned away on rank-%u.peer: %s",
                meeting->group->rank, fail_detail());
    return true;
}

/* True when the stranger is known now, or gone; its place in the list is free. */
static zero_status meet_stranger(struct meeting *meeting, int fd, bool *out_settled)
{
    struct greet_message hello;
    int fds[GREET_FDS], count = 0;

    *out_settled = readable(fd);
    if (!*out_settled)
        return zero_success();
    zero_status s = greet_hear(fd, &hello, fds, &count);
    if (s.code == ZERO_PEER_LOST) {
        close(fd);
        return zero_success();
    }
    if (!zero_failed(s))
        s = take_hello(meeting, fd, &hello, fds, count);
    close_fds(fds, count);
    uint32_t rank = 0;
    while (rank < meeting->group->world && meeting->shm->links[rank].socket != fd)
        rank++;
    bool away = turns_away(meeting, s);
    if (rank == meeting->group->world) {
        close(fd);
        return away ? zero_success() : s;
    }
    /* the other side must see our hello even when we differ: it has to say so to its trainer */
    zero_status answered = answer_hello(meeting, rank);
    if (away || (!zero_failed(s) && zero_failed(answered)))
        drop_link(meeting, rank);
    return away ? zero_success() : s;
}

static zero_status meet_strangers(struct meeting *meeting)
{
    accept_strangers(meeting);
    for (uint32_t i = 0; i < meeting->stranger_count;) {
        bool settled = false;
        zero_status s = meet_stranger(meeting, meeting->strangers[i], &settled);
        if (settled)
            meeting->strangers[i] = meeting->strangers[--meeting->stranger_count];
        else
            i++;
        if (zero_failed(s))
            return s;
    }
    return zero_success();
}

/* Connects to a rank below ours, if it is listening by now. */
static zero_status call_peer(struct meeting *meeting, uint32_t rank)
{
    struct sockaddr_un address;
    zero_status s = peer_address(meeting->group->dir, rank, &address);
    if (zero_failed(s))
        return s;
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return FAIL(SYSTEM, "call peer", "socket: %s", strerror(errno));
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        int error = errno;
        close(fd);
        if (error == ENOENT || error == ECONNREFUSED || error == EAGAIN)
            return zero_success(); /* not yet: tried again at the next tick */
        return FAIL(SYSTEM, "call peer", "%s: %s", address.sun_path, strerror(error));
    }
    meeting->shm->links[rank].socket = fd;
    if (zero_failed(answer_hello(meeting, rank)))
        drop_link(meeting, rank);
    return zero_success();
}

static zero_status listen_to_peer(struct meeting *meeting, uint32_t rank)
{
    struct greet_message message;
    int fds[GREET_FDS], count = 0;
    zero_status s = zero_success();

    while (meeting->shm->links[rank].socket >= 0 && readable(meeting->shm->links[rank].socket)) {
        s = greet_hear(meeting->shm->links[rank].socket, &message, fds, &count);
        if (s.code == ZERO_PEER_LOST) { /* it gave up: it may come back */
            drop_link(meeting, rank);
            return zero_success();
        }
        if (!zero_failed(s) && message.rank != rank)
            s = REFUSE(PROTOCOL, "meet peers", "rank %u says that it is rank %u", rank,
                       message.rank);
        else if (!zero_failed(s) && message.kind == GREET_READY)
            meeting->states[rank].got_ready = true;
        else if (!zero_failed(s))
            s = take_hello(meeting, meeting->shm->links[rank].socket, &message, fds, count);
        close_fds(fds, count);
        if (turns_away(meeting, s)) {
            drop_link(meeting, rank);
            return zero_success();
        }
        if (zero_failed(s))
            return s;
    }
    return s;
}

/* Tells everybody once everybody's hello is here. */
static void say_ready(struct meeting *meeting)
{
    const struct comm_group *group = meeting->group;

    for (uint32_t r = 0; r < group->world; r++)
        if (r != group->rank && !meeting->states[r].got_hello)
            return;
    for (uint32_t r = 0; r < group->world; r++) {
        if (r == group->rank || meeting->states[r].said_ready)
            continue;
        meeting->states[r].said_ready = true;
        if (zero_failed(
                greet_say(group, meeting->text_fd, meeting->shm->links[r].socket, GREET_READY)))
            drop_link(meeting, r);
    }
}

/* The first rank that is not there yet; world when all are. */
static uint32_t missing_rank(const struct meeting *meeting)
{
    for (uint32_t r = 0; r < meeting->group->world; r++)
        if (r != meeting->group->rank &&
            !(meeting->states[r].got_ready && meeting->states[r].said_ready))
            return r;
    return meeting->group->world;
}

static void wait_a_tick(const struct meeting *meeting)
{
    struct pollfd fds[2 * ZERO_MAX_WORLD + 1];
    nfds_t count = 0;

    fds[count++] = (struct pollfd){ .fd = meeting->group->listener, .events = POLLIN };
    for (uint32_t i = 0; i < meeting->stranger_count; i++)
        fds[count++] = (struct pollfd){ .fd = meeting->strangers[i], .events = POLLIN };
    for (uint32_t r = 0; r < meeting->group->world; r++)
        if (meeting->shm->links[r].socket >= 0)
            fds[count++] = (struct pollfd){ .fd = meeting->shm->links[r].socket, .events = POLLIN };
    poll(fds, count, TICK_MS);
}

/* One look at everybody. */
static zero_status meet_once(struct meeting *meeting)
{
    const struct comm_group *group = meeting->group;
    zero_status s = meet_strangers(meeting);

    for (uint32_t r = 0; r < group->world && !zero_failed(s); r++) {
        if (r < group->rank && meeting->shm->links[r].socket < 0)
            s = call_peer(meeting, r);
        if (!zero_failed(s) && r != group->rank)
            s = listen_to_peer(meeting, r);
    }
    if (!zero_failed(s))
        say_ready(meeting);
    return s;
}

static zero_status meet_all(struct meeting *meeting)
{
    const struct comm_group *group = meeting->group;

    for (;;) {
        zero_status s = meet_once(meeting);
        if (zero_failed(s) || missing_rank(meeting) == group->world)
            return s;
        if (atomic_load(&join_cancelled))
            return REFUSE(INVALID_STATE, "meet peers", "the daemon is ending, or the trainer left");
        if (group->deadline_ms != 0 && clock_ns() > meeting->deadline)
            return REFUSE(DEADLINE, "meet peers",
                          "rank %u did not join within %u ms: is its trainer running, and did it "
                          "register its model?",
                          missing_rank(meeting), group->deadline_ms);
        wait_a_tick(meeting);
        if (group->on_wait != NULL)
            group->on_wait(group->context, missing_rank(meeting));
    }
}

zero_status shm_meet(const struct comm_group *group, struct shm_comm *shm)
{
    struct meeting meeting = { .group = group,
                               .shm = shm,
                               .text_fd = -1,
                               .deadline = clock_ns() + (uint64_t)group->deadline_ms * 1000000 };
    zero_status s;

    meeting.states = calloc(group->world, sizeof *meeting.states);
    if (meeting.states == NULL) {
        s = FAIL(NO_MEMORY, "meet peers", "for %u ranks", group->world);
        goto out;
    }
    TRY(s, greet_put_text(group->text, &meeting.text_fd));
    TRY(s, meet_all(&meeting));
out:
    for (uint32_t i = 0; i < meeting.stranger_count; i++)
        close(meeting.strangers[i]);
    if (meeting.text_fd >= 0)
        close(meeting.text_fd);
    free(meeting.states);
    return s;
}
