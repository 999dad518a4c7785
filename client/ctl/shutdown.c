/* SPDX-License-Identifier: MIT */
/* zeroctl shutdown: asks every daemon to end and waits until its process has. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/commands.h"
#include "client/ctl/group.h"
#include "client/ctl/rpc.h"

enum { OPTION_YES = 'y', OPTION_DEADLINE = 't', ANSWER_MS = 5000 };

struct shutdown_options {
    struct common *common;
    bool yes;
    unsigned deadline_s;
};

static const struct argp_option options[] = {
    { "yes", OPTION_YES, NULL, 0, "do not ask whether it is meant", 0 },
    { "deadline", OPTION_DEADLINE, "SECONDS", 0, "how long the daemons may take to end (600)", 0 },
    { 0 },
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct shutdown_options *o = state->input;

    switch (key) {
    case OPTION_YES:
        o->yes = true;
        return 0;
    case OPTION_DEADLINE:
        o->deadline_s = parse_whole_seconds(argument, state);
        return 0;
    default:
        return common_parse(key, argument, state);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse,
    .children = common_children,
    .doc = "Ends every daemon of the group in good order. The state that they hold is lost with "
           "them; where the config has zerod.checkpoint.dir, the last step is saved there "
           "first: zerorun's exit code (76: it was not) and the log of rank 0 say whether it "
           "was.\vExit "
           "code 0 when all have ended, 1 when one has not by the deadline.",
};

struct ending {
    int process; /* pidfd; -1: there is no such process any more */
    bool alive;
};

/* A descriptor of the process that listens on the socket. */
static bool find_process(const char *path, struct ending *out)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct ucred peer = { .pid = 0 };
    socklen_t bytes = sizeof peer;

    *out = (struct ending){ .process = -1 };
    if (strlen(path) >= sizeof address.sun_path)
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0)
        out->process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    close(fd);
    out->alive = out->process >= 0;
    return out->alive;
}

static long left_ms(const struct timespec *end)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    long left = (end->tv_sec - now.tv_sec) * 1000 + (end->tv_nsec - now.tv_nsec) / 1000000;
    return left > 0 ? left : 0;
}

/* Waits for every process; returns how many go on. */
static uint32_t wait_all(const struct group *group, struct ending *endings, unsigned deadline_s)
{
    struct timespec end;
    uint32_t going = 0;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += deadline_s;
    for (uint32_t i = 0; i < group->count; i++) {
        struct pollfd process = { .fd = endings[i].process, .events = POLLIN };
        if (!endings[i].alive)
            continue;
        if (poll(&process, 1, (int)left_ms(&end)) == 1) {
            printf("rank %u has ended\n", group->ranks[i]);
        } else {
            complain(EXIT_BAD, "rank %u goes on after %u s", group->ranks[i], deadline_s);
            going++;
        }
        close(endings[i].process);
    }
    return going;
}

static int ask_all(const struct group *group, const struct shutdown_options *o)
{
    struct rpc_call *calls[ZERO_MAX_WORLD] = { NULL };
    struct ending endings[ZERO_MAX_WORLD];
    struct rpc_answer answer;
    int code = EXIT_GOOD;
    struct rpc *rpc = rpc_open();

    if (rpc == NULL)
        return complain(EXIT_IO, "no memory");
    for (uint32_t i = 0; i < group->count; i++) {
        struct group_path path = group_socket(group, group->ranks[i]);
        if (find_process(path.text, &endings[i]))
            calls[i] = rpc_start(rpc, path.text, &rpc_shutdown, NULL, ANSWER_MS);
        else
            printf("rank %u was gone already\n", group->ranks[i]);
    }
    for (uint32_t i = 0; i < group->count; i++) {
        if (!endings[i].alive)
            continue;
        rpc_wait(calls[i], &answer);
        if (answer.end == RPC_SILENT || answer.end == RPC_REFUSED)
            code = complain(EXIT_BAD, "rank %u does not end: %s", group->ranks[i], answer.text);
        if (answer.reply != NULL)
            protobuf_c_message_free_unpacked(answer.reply, NULL);
    }
    rpc_close(rpc);
    return wait_all(group, endings, o->deadline_s) == 0 ? code : EXIT_BAD;
}

static bool confirmed(const struct group *group)
{
    char line[16];

    printf("End %u daemon%s of the group in %s? What they hold is lost. [y/N] ", group->count,
           group->count == 1 ? "" : "s", group->dir);
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL && (line[0] == 'y' || line[0] == 'Y');
}

int command_shutdown(int argc, char **argv, struct common *common)
{
    struct shutdown_options o = { .common = common, .deadline_s = 600 };
    struct group group;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = group_find(common->runtime_dir, &group);
    if (code != EXIT_GOOD)
        return code;
    if (!o.yes && !isatty(STDIN_FILENO))
        return complain(EXIT_USAGE, "shutdown needs --yes where nobody can be asked");
    if (!o.yes && !confirmed(&group))
        return complain(EXIT_BAD, "nothing was ended");
    return ask_all(&group, &o);
}
