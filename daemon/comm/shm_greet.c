/* SPDX-License-Identifier: MIT */
#include "daemon/comm/shm_greet.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"

enum { MOST_TEXT = 64 << 20 };

/* The model's and config's text, where peers can read it. */
zero_status greet_put_text(const char *text, int *out_fd)
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

zero_status greet_say(const struct comm_group *group, int text_fd, int socket, enum greet_kind kind)
{
    struct greet_message message = { .magic = "ZRPM",
                                     .protocol = GREET_PROTOCOL,
                                     .kind = kind,
                                     .rank = group->rank,
                                     .world = group->world,
                                     .text_bytes = strlen(group->text),
                                     .standing = group->standing };
    int fds[GREET_FDS] = { text_fd, group->bell->fd };
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
    if (kind == GREET_HELLO) {
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

zero_status greet_hear(int socket, struct greet_message *out, int *fds, int *out_count)
{
    char control[CMSG_SPACE(sizeof(int) * GREET_FDS)];
    struct iovec part = { out, sizeof *out };
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control
    };
    ssize_t bytes = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);

    *out_count = bytes < 0 ? 0 : take_fds(&header, fds, GREET_FDS);
    if (bytes <= 0)
        return REFUSE(PEER_LOST, "hear peer", "%s", bytes == 0 ? "closed" : strerror(errno));
    if ((size_t)bytes < offsetof(struct greet_message, kind) || memcmp(out->magic, "ZRPM", 4) != 0)
        return REFUSE(PROTOCOL, "hear peer", "a message that is no daemon's");
    if (out->protocol != GREET_PROTOCOL)
        return REFUSE(
            VERSION, "hear peer",
            "another daemon speaks peer protocol %u, and this one %d: start the same version of "
            "zerod on every rank",
            out->protocol, GREET_PROTOCOL);
    if (bytes != (ssize_t)sizeof *out)
        return REFUSE(PROTOCOL, "hear peer", "a message of %zd bytes instead of %zu", bytes,
                      sizeof *out);
    out->standing.origin[COMM_ORIGIN_BYTES - 1] = '\0';
    return zero_success();
}

static zero_status map_one(int fd, size_t bytes, int protection, void **out)
{
    struct stat stat;

    if (fstat(fd, &stat) != 0 || stat.st_size != (off_t)bytes)
        return REFUSE(PROTOCOL, "map peer", "an arena of a peer does not have the size it said");
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

static const char *origin_of(const struct comm_standing *standing)
{
    return standing->origin[0] != '\0' ? standing->origin : "no checkpoint";
}

/* Ranks that read different checkpoints may be at the same step. */
static zero_status compare_origins(const struct comm_group *group,
                                   const struct greet_message *hello)
{
    bool mine_first = group->rank < hello->rank;
    const char *mine = origin_of(&group->standing), *theirs = origin_of(&hello->standing);

    if (strcmp(mine, theirs) == 0)
        return zero_success();
    return FAIL(CORRUPT, "meet peers",
                "rank %u began with %s, and rank %u with %s: start all ranks anew, with the same "
                "--restore",
                mine_first ? hello->rank : group->rank, mine_first ? theirs : mine,
                mine_first ? group->rank : hello->rank, mine_first ? mine : theirs);
}

zero_status greet_compare(const struct comm_group *group, const struct greet_message *hello, int fd)
{
    const char *mine = group->text;

    if (hello->text_bytes > MOST_TEXT)
        return REFUSE(PROTOCOL, "compare models", "a peer's model text has %" PRIu64 " bytes",
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
        s = report_difference(mine, theirs, group->rank, hello->rank);
    free(theirs);
    return zero_failed(s) ? s : compare_origins(group, hello);
}

zero_status greet_map(struct shm_peer *link, const struct greet_message *hello, const int *fds,
                      int count)
{
    zero_status s;
    int next = 1;

    if (count != 2 + __builtin_popcount(hello->arenas) || hello->arenas >> ZERO_ARENA_COUNT != 0 ||
        (hello->arenas >> ZERO_ARENA_board & 1) == 0) {
        s = REFUSE(PROTOCOL, "map peer", "rank %u sent %d fds", hello->rank, count);
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
    if (board->magic != BOARD_MAGIC || board->version != BOARD_VERSION)
        s = REFUSE(VERSION, "map peer", "rank %u has another board version", hello->rank);
out:
    return s;
}
