/* SPDX-License-Identifier: MIT */
/* How the ranks of one host meet: a SOCK_SEQPACKET connection for each pair, made by the higher
 * rank.
 *
 * Each side sends a hello that carries the fds of what it brings, and, once it has every peer's
 * hello, a ready. A rank has joined when it has every peer's ready: so a peer that gave up half-way
 * is noticed by its closed connection, and met again when it comes back.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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

enum {
    PEER_PROTOCOL = 1,
    TICK_MS = 20,                     /* between tries to connect, and looks at cancel */
    HELLO_FDS = 2 + ZERO_ARENA_COUNT, /* text, bell, then the arenas that exist */
    MAX_TEXT = 64 << 20,
};

enum message_kind { HELLO = 1, READY = 2 };

struct message {
    char magic[4]; /* "ZRPM" */
    uint32_t protocol, kind, rank, world;
    uint32_t arenas; /* bit a: arena a exists and its fd is here */
    uint64_t text_bytes;
    uint64_t arena_bytes[ZERO_ARENA_COUNT];
};

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

/* The model's and config's text, where peers can read it. */
static zero_status put_text(const char *text, int *out_fd)
{
    size_t bytes = strlen(text), done = 0;
    int fd = memfd_create("zero-text", MFD_CLOEXEC);

    if (fd < 0)
        return FAIL(SYSTEM, "share model text", "memfd_create: %s", strerror(errno));
    while (done < bytes) {
        ssize_t n = write(fd, text + done, bytes - done);
        if (n < 0) {
            zero_status s = FAIL(NO_MEMORY, "share model text", "write: %s", strerror(errno));
            close(fd);
            return s;
        }
        done += (size_t)n;
    }
    *out_fd = fd;
    return zero_success();
}

static zero_status say(const struct meeting *meeting, int socket, enum message_kind kind)
{
    const struct comm_group *group = meeting->group;
    struct message message = { .magic = "ZRPM",
                               .protocol = PEER_PROTOCOL,
                               .kind = kind,
                               .rank = group->rank,
                               .world = group->world,
                               .text_bytes = strlen(group->text) };
    int fds[HELLO_FDS] = { meeting->text_fd, group->bell->fd };
    int count = 2;
    char control[CMSG_SPACE(sizeof fds)] = { 0 };
    struct iovec part = { &message, sizeof message };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

    for (int a = 0; a < ZERO_ARENA_COUNT; a++) {
        message.arena_bytes[a] = group->arenas[a].bytes;
        if (group->arenas[a].bytes == 0)
            continue;
        message.arenas |= 1u << a;
        fds[count++] = group->arenas[a].read_fd;
    }
    if (kind == HELLO) {
        size_t fd_bytes = (size_t)count * sizeof(int);
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(fd_bytes);
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&header);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(cmsg), fds, fd_bytes);
    }
    if (sendmsg(socket, &header, MSG_NOSIGNAL) != (ssize_t)sizeof message)
        return REFUSE(PEER_LOST, "greet peer", "%s", strerror(errno));
    return zero_success();
}

/* Takes the fds out of a received header, at most `room`; what does not fit is closed. */
static int take_fds(struct msghdr *header, int *fds, int room)
{
    int count = 0;

    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c != NULL; c = CMSG_NXTHDR(header, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        int here = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + (size_t)i * sizeof fd, sizeof fd);
            if (count < room)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

/* Reads one message. PEER_LOST when the other side is gone or does not speak our protocol. */
static zero_status hear(int socket, struct message *out, int *fds, int *out_count)
{
    char control[CMSG_SPACE(sizeof(int) * HELLO_FDS)];
    struct iovec part = { out, sizeof *out };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    ssize_t bytes = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    *out_count = bytes < 0 ? 0 : take_fds(&header, fds, HELLO_FDS);
    if (bytes <= 0)
        return REFUSE(PEER_LOST, "hear peer", "%s", bytes == 0 ? "closed" : strerror(errno));
    if (bytes != (ssize_t)sizeof *out || memcmp(out->magic, "ZRPM", 4) != 0 ||
        out->protocol != PEER_PROTOCOL)
        return FAIL(
            VERSION, "hear peer",
            "another daemon does not speak peer protocol %d: start the same version of zerod "
            "on every rank",
            PEER_PROTOCOL);
    return zero_success();
}

static zero_status map_one(int fd, size_t bytes, int protection, void **out)
{
    struct stat stat;

    if (fstat(fd, &stat) != 0 || stat.st_size != (off_t)bytes)
        return FAIL(PROTOCOL, "map peer", "an arena of a peer does not have the size it said");
    void *base = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return FAIL(NO_MEMORY, "map peer", "%zu bytes: %s", bytes, strerror(errno));
    *out = base;
    return zero_success();
}

/* The first line in which two texts differ, for people. */
static zero_status report_difference(const char *mine, const char *theirs, uint32_t rank,
                                     uint32_t peer)
{
    while (*mine != '\0' && *theirs != '\0') {
        size_t a = strcspn(mine, "\n"), b = strcspn(theirs, "\n");
        if (a != b || memcmp(mine, theirs, a) != 0)
            break;
        mine += a + (mine[a] == '\n');
        theirs += b + (theirs[b] == '\n');
    }
    int a = (int)strcspn(mine, "\n"), b = (int)strcspn(theirs, "\n");
    while (a > 0 && *mine == ' ')
        mine++, a--;
    while (b > 0 && *theirs == ' ')
        theirs++, b--;
    return REFUSE(
        CONFLICT, "compare models",
        "rank %u has \"%.*s\" where rank %u has \"%.*s\": every rank must register the same "
        "model and config",
        rank, a < 160 ? a : 160, a ? mine : "nothing", peer, b < 160 ? b : 160,
        b ? theirs : "nothing");
}

static zero_status compare_text(const struct meeting *meeting, const struct message *hello, int fd)
{
    const char *mine = meeting->group->text;

    if (hello->text_bytes > MAX_TEXT)
        return FAIL(PROTOCOL, "compare models", "a peer's model text has %" PRIu64 " bytes",
                    hello->text_bytes);
    size_t bytes = (size_t)hello->text_bytes, done = 0;
    char *theirs = malloc(bytes + 1);
    if (theirs == NULL)
        return FAIL(NO_MEMORY, "compare models", "%zu bytes", bytes + 1);
    while (done < bytes) {
        ssize_t n = pread(fd, theirs + done, bytes - done, (off_t)done);
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    theirs[done] = '\0';
    zero_status s = zero_success();
    if (strcmp(mine, theirs) != 0)
        s = report_difference(mine, theirs, meeting->group->rank, hello->rank);
    free(theirs);
    return s;
}

static zero_status map_peer(struct shm_peer *link, const struct message *hello, const int *fds,
                            int count)
{
    zero_status s;
    int next = 1;

    if (count != 2 + __builtin_popcount(hello->arenas) || hello->arenas >> ZERO_ARENA_COUNT != 0 ||
        (hello->arenas >> ZERO_ARENA_board & 1) == 0) {
        s = FAIL(PROTOCOL, "map peer", "rank %u sent %d fds", hello->rank, count);
        goto out;
    }
    link->mapped[ZERO_ARENA_COUNT].bytes = ZERO_PAGE_BYTES;
    TRY(s, map_one(fds[next++], ZERO_PAGE_BYTES, PROT_READ | PROT_WRITE,
                   &link->mapped[ZERO_ARENA_COUNT].base));
    for (int a = 0; a < ZERO_ARENA_COUNT; a++) {
        if ((hello->arenas >> a & 1) == 0)
            continue;
        link->mapped[a].bytes = hello->arena_bytes[a];
        TRY(s, map_one(fds[next], hello->arena_bytes[a], PROT_READ, &link->mapped[a].base));
        if (a == ZERO_ARENA_param)
            link->param_fd = fcntl(fds[next], F_DUPFD_CLOEXEC, 0);
        next++;
    }
    if (link->param_fd < 0) {
        s = FAIL(SYSTEM, "map peer", "no fd of rank %u's parameters: %s", hello->rank,
                 strerror(errno));
        goto out;
    }
    const struct board_head *board = link->mapped[ZERO_ARENA_board].base;
    if (board->magic != BOARD_MAGIC || board->version != PEER_PROTOCOL)
        s = FAIL(VERSION, "map peer", "rank %u has another board version", hello->rank);
out:
    return s;
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

/* Takes a hello: its sender becomes links[rank], whose socket it came over. */
static zero_status take_hello(struct meeting *meeting, int socket, const struct message *hello,
                              const int *fds, int count)
{
    const struct comm_group *group = meeting->group;
    zero_status s;

    if (hello->kind != HELLO || count < 2 || hello->world != group->world ||
        hello->rank >= group->world || hello->rank == group->rank)
        return FAIL(
            CONFLICT, "meet peers",
            "a daemon that says it is rank %u of %u wants to join rank %u of %u: start every "
            "zerod of the folder with the same --world and its own --rank",
            hello->rank, hello->world, group->rank, group->world);
    if (meeting->shm->links[hello->rank].socket != socket) {
        drop_link(meeting, hello->rank);
        meeting->shm->links[hello->rank].socket = socket;
    }
    TRY(s, compare_text(meeting, hello, fds[0]));
    TRY(s, map_peer(&meeting->shm->links[hello->rank], hello, fds, count));
    meeting->states[hello->rank].got_hello = true;
out:
    return s;
}

static zero_status answer_hello(struct meeting *meeting, uint32_t rank)
{
    if (meeting->states[rank].said_hello)
        return zero_success();
    meeting->states[rank].said_hello = true;
    return say(meeting, meeting->shm->links[rank].socket, HELLO);
}

/* Ranks above ours connect to us; the first message says which one it is. */
static void accept_strangers(struct meeting *meeting)
{
    while (meeting->stranger_count < ZERO_MAX_WORLD) {
        int fd = accept4(meeting->group->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return;
        struct ucred peer;
        socklen_t bytes = sizeof peer;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 ||
            (peer.uid != geteuid() && peer.uid != 0)) {
            LOG_WARNING("refused a peer connection of uid %u", peer.uid);
            close(fd);
            continue;
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

/* True when the stranger is known now, or gone; its place in the list is free. */
static zero_status meet_stranger(struct meeting *meeting, int fd, bool *out_settled)
{
    struct message hello;
    int fds[HELLO_FDS], count = 0;

    *out_settled = readable(fd);
    if (!*out_settled)
        return zero_success();
    zero_status s = hear(fd, &hello, fds, &count);
    if (s.code == ZERO_PEER_LOST) {
        close(fd);
        return zero_success();
    }
    if (!zero_failed(s))
        s = take_hello(meeting, fd, &hello, fds, count);
    close_fds(fds, count);
    bool known = false;
    for (uint32_t r = 0; r < meeting->group->world; r++)
        known = known || meeting->shm->links[r].socket == fd;
    if (!known) {
        close(fd);
        return s;
    }
    /* the other side must see our hello even when we differ: it has to say so to its trainer */
    zero_status answered = answer_hello(meeting, hello.rank);
    if (!zero_failed(s) && zero_failed(answered))
        drop_link(meeting, hello.rank);
    return s;
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
    struct message message;
    int fds[HELLO_FDS], count = 0;
    zero_status s = zero_success();

    while (meeting->shm->links[rank].socket >= 0 && readable(meeting->shm->links[rank].socket)) {
        s = hear(meeting->shm->links[rank].socket, &message, fds, &count);
        if (s.code == ZERO_PEER_LOST) { /* it gave up: it may come back */
            drop_link(meeting, rank);
            return zero_success();
        }
        if (!zero_failed(s) && message.kind == READY)
            meeting->states[rank].got_ready = true;
        else if (!zero_failed(s))
            s = take_hello(meeting, meeting->shm->links[rank].socket, &message, fds, count);
        close_fds(fds, count);
        if (zero_failed(s) || meeting->states[rank].got_ready)
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
        if (zero_failed(say(meeting, meeting->shm->links[r].socket, READY)))
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
        if (meeting->shm->links[r].socket >= 0 && !meeting->states[r].got_ready)
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
        if (!zero_failed(s) && r != group->rank && !meeting->states[r].got_ready)
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
        if (clock_ns() > meeting->deadline)
            return REFUSE(DEADLINE, "meet peers",
                          "rank %u did not join within %u ms: is its trainer running, and did it "
                          "register its model?",
                          missing_rank(meeting), group->deadline_ms);
        wait_a_tick(meeting);
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
    TRY(s, put_text(group->text, &meeting.text_fd));
    TRY(s, meet_all(&meeting));
out:
    for (uint32_t i = 0; i < meeting.stranger_count; i++)
        close(meeting.strangers[i]);
    if (meeting.text_fd >= 0)
        close(meeting.text_fd);
    free(meeting.states);
    return s;
}
