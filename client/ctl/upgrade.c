/* SPDX-License-Identifier: MIT */
/* zeroctl upgrade: every daemon becomes the program that is installed now, with its state. */
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#include "client/ctl/ask.h"
#include "client/ctl/commands.h"
#include "client/ctl/group.h"
#include "client/ctl/standing.h"

enum { OPTION_NOW = 'n', OPTION_DEADLINE = 't', ANSWER_MS = 5000, LOOK_MS = 50 };

struct upgrade_options {
    struct common *common;
    bool now;
    unsigned deadline_s;
};

static const struct argp_option options[] = {
    { "now", OPTION_NOW, NULL, 0, "do not wait for a step to end: it is dropped, and repeated", 0 },
    { "deadline", OPTION_DEADLINE, "SECONDS", 0, "how long it may take (600)", 0 },
    { 0 },
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct upgrade_options *o = state->input;

    switch (key) {
    case OPTION_NOW:
        o->now = true;
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
    .doc = "Replaces the program of every daemon by the one that is installed now, between two "
           "steps. The state stays where it is; trainers notice a pause. A program that does not "
           "know this state's format refuses it, and the old one can be started again.\vExit code "
           "0 when the group has met again, 1 when it has not by the deadline.",
};

/* The group meets again in a new epoch, in which every rank answers. */
static bool met_again(struct rpc *rpc, const struct group *group, uint64_t epoch, uint32_t world)
{
    struct standing *standing = calloc(1, sizeof *standing);
    uint32_t back = 0;

    if (standing == NULL)
        return false;
    standing_ask(standing, rpc, group, ANSWER_MS);
    for (uint32_t i = 0; i < standing->count; i++)
        back += standing->ranks[i].reply != NULL && standing->ranks[i].reply->epoch > epoch;
    standing_deinit(standing);
    free(standing);
    return back == world;
}

static int wait_until_back(struct rpc *rpc, const struct group *group, uint64_t epoch,
                           const struct upgrade_options *o, uint32_t world)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = LOOK_MS * 1000000L };
    struct timespec now, end;

    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += o->deadline_s;
    do {
        if (met_again(rpc, group, epoch, world)) {
            printf("%" PRIu32 " daemons were replaced\n", world);
            return finish_output(EXIT_GOOD);
        }
        nanosleep(&pause, NULL);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec);
    return complain(EXIT_BAD, "the group has not met again in %u s: see zeroctl status",
                    o->deadline_s);
}

/* Without trainers there is no step to wait for. */
static bool idle(const struct standing *standing)
{
    for (uint32_t i = 0; i < standing->count; i++)
        if (standing->ranks[i].reply->trainer_pid != 0)
            return false;
    return true;
}

static int ask(struct rpc *rpc, const struct group *group, bool now)
{
    Zero__V1__UpgradeRequest request = ZERO__V1__UPGRADE_REQUEST__INIT;
    const struct question question = { &rpc_upgrade, &request.base, ANSWER_MS };
    struct rpc_answer answers[ZERO_MAX_WORLD];
    uint32_t count = now ? group->count : 1; /* rank 0 alone */
    int code = EXIT_GOOD;

    request.now = now;
    ask_ranks(rpc, group, count, &question, answers);
    for (uint32_t i = 0; i < count; i++) {
        if (answers[i].end != RPC_ANSWERED)
            code = complain(EXIT_BAD, "rank %" PRIu32 ": %s", group->ranks[i], answers[i].text);
        else
            protobuf_c_message_free_unpacked(answers[i].reply, NULL);
    }
    return code;
}

static int upgrade(struct rpc *rpc, const struct group *group, const struct upgrade_options *o)
{
    struct standing *standing = calloc(1, sizeof *standing);
    uint64_t epoch = 0;
    int code;

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    standing_ask(standing, rpc, group, ANSWER_MS);
    if (!standing_good(standing)) {
        code = complain(EXIT_BAD, "the group is not well: see zeroctl status");
        goto out;
    }
    epoch = standing->first->epoch;
    if (epoch == 0) {
        code = complain(EXIT_BAD, "the group has no model yet: restart the daemons instead");
        goto out;
    }
    code = ask(rpc, group, o->now || idle(standing));
    if (code == EXIT_GOOD)
        code = wait_until_back(rpc, group, epoch, o, standing->count);
out:
    standing_deinit(standing);
    free(standing);
    return code;
}

int command_upgrade(int argc, char **argv, struct common *common)
{
    struct upgrade_options o = { .common = common, .deadline_s = 600 };
    struct group group;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = group_find(common->runtime_dir, &group);
    if (code != EXIT_GOOD)
        return code;
    struct rpc *rpc = rpc_open();
    if (rpc == NULL)
        return complain(EXIT_IO, "no memory");
    code = upgrade(rpc, &group, &o);
    rpc_close(rpc);
    return code;
}
