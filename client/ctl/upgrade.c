/* SPDX-License-Identifier: MIT */
/* zeroctl upgrade: every daemon becomes the program that is installed now, with its state. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/commands.h"
#include "client/ctl/group.h"
#include "client/ctl/standing.h"

enum {
    OPTION_NOW = 'n',
    OPTION_DEADLINE = 't',
    ANSWER_MS = 5000,
    LOOK_MS = 50,
    TELL_S = 10, /* a line while it is waited */
    GONE_S = 15  /* nobody answers: a holder starts one again sooner */
};

#define LOGS "see zerorun's output, or journalctl -u 'zerod@*'"

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
           "steps. The state stays where it is; trainers notice a pause. Every daemon tries the "
           "program first: if it cannot be started, or does not know this state's format, all go "
           "on as they are. An upgrade that waits for a step goes on when this command ends; "
           "'upgrade --now' takes it up.\vExit code 0 when every rank runs it and the group has "
           "met again; 1 "
           "when it was refused, or they have not by the deadline.",
};

/* What is asked of the daemons, and since when. */
struct change {
    struct rpc *rpc;
    struct group group;
    const struct upgrade_options *o;
    uint32_t world;
    uint64_t epoch;               /* before it */
    struct timespec asked;        /* last */
    double told_s, last_answer_s; /* since then: the last line, the last answer of a rank */
};

static double seconds_since(const struct timespec *then)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) * 1e-9;
}

static void pause_a_little(void)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = LOOK_MS * 1000000L };
    nanosleep(&pause, NULL);
}

/* Sends the same to the first `count` ranks; what they refuse is told. One that was told to become
 * another program may have done so before its answer was through: whether it did is seen later. */
static int ask(struct change *change, uint32_t count, bool check)
{
    Zero__V1__UpgradeRequest request = ZERO__V1__UPGRADE_REQUEST__INIT;
    const struct question question = { &rpc_upgrade, &request.base, ANSWER_MS };
    struct rpc_answer answers[ZERO_MAX_WORLD];
    int code = EXIT_GOOD;

    request.now = !check && change->o->now;
    request.check = check;
    clock_gettime(CLOCK_MONOTONIC, &change->asked);
    ask_ranks(change->rpc, &change->group, count, &question, answers);
    for (uint32_t i = 0; i < count; i++) {
        const Zero__V1__UpgradeReply *reply = (Zero__V1__UpgradeReply *)answers[i].reply;
        if (answers[i].end == RPC_GONE && !check)
            continue;
        if (answers[i].end != RPC_ANSWERED)
            code =
                complain(EXIT_BAD, "rank %" PRIu32 ": %s", change->group.ranks[i], answers[i].text);
        else if (reply->refused)
            code = complain(EXIT_BAD, "rank %" PRIu32 ": %s", change->group.ranks[i], reply->text);
        if (answers[i].end == RPC_ANSWERED)
            protobuf_c_message_free_unpacked(answers[i].reply, NULL);
    }
    return code;
}

/* ---- first: can the new program go on from here? --------------------------------------------- */

enum tried { TRYING, TRIED, NOT_TO_BE };

/* All are waited for: one that still tries it would not take another wish. */
static enum tried look_at_trial(const struct standing *standing)
{
    enum tried end = TRIED;

    for (uint32_t i = 0; i < standing->count; i++) {
        const Zero__V1__StatusReply *reply = standing->ranks[i].reply;
        if (reply != NULL && strcmp(reply->upgrade, "checking") == 0)
            return TRYING;
    }
    for (uint32_t i = 0; i < standing->count; i++) {
        const struct standing_rank *rank = &standing->ranks[i];
        if (rank->reply != NULL && strcmp(rank->reply->upgrade, "checked") == 0)
            continue;
        complain(EXIT_BAD, "rank %" PRIu32 ": %s", rank->rank,
                 rank->reply == NULL                            ? rank->text
                 : strcmp(rank->reply->upgrade, "refused") == 0 ? rank->reply->upgrade_text
                                                                : "it was restarted meanwhile");
        end = NOT_TO_BE;
    }
    return end;
}

static int try_program(struct change *change)
{
    struct standing *standing = malloc(sizeof *standing);
    enum tried end = TRYING;

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    if (ask(change, change->group.count, true) != EXIT_GOOD) {
        free(standing);
        return EXIT_BAD; /* somebody else's may be under way */
    }
    while (end == TRYING) {
        pause_a_little(); /* a daemon gives up on it after 10 s */
        standing_ask(standing, change->rpc, &change->group, ANSWER_MS);
        end = look_at_trial(standing);
        standing_deinit(standing);
    }
    free(standing);
    if (end == NOT_TO_BE)
        return complain(EXIT_BAD, "not upgraded: every daemon goes on as it is");
    return EXIT_GOOD;
}

/* ---- then: has every rank become it? ----------------------------------------------------------
 */

/* Of a program that was started since, in a group that has met since. */
static bool is_back(const struct change *change, const struct standing_rank *rank, double elapsed_s)
{
    return rank->reply != NULL && rank->reply->uptime < elapsed_s &&
           rank->reply->epoch > change->epoch;
}

static void tell_progress(struct change *change, const struct standing *standing, double elapsed_s)
{
    if (elapsed_s - change->told_s < TELL_S)
        return;
    change->told_s = elapsed_s;
    for (uint32_t i = 0; i < standing->count; i++) {
        const struct standing_rank *rank = &standing->ranks[i];
        if (is_back(change, rank, elapsed_s))
            continue;
        if (rank->reply == NULL)
            complain(EXIT_BAD, "%.0f s: rank %" PRIu32 " is %s: %s", elapsed_s, rank->rank,
                     standing_word(rank), rank->text);
        else
            complain(EXIT_BAD, "%.0f s: rank %" PRIu32 " is %s at step %" PRIu64 "%s%s", elapsed_s,
                     rank->rank, standing_word(rank), rank->reply->step,
                     *rank->reply->waiting_for ? " and waits for " : "", rank->reply->waiting_for);
    }
}

static int say_done(const struct standing *standing)
{
    int code = EXIT_GOOD;

    for (uint32_t i = 0; i < standing->count; i++)
        if (strcmp(standing->ranks[i].reply->upgrade, "refused") == 0)
            code = complain(EXIT_BAD, "rank %" PRIu32 " goes on as it was: %s",
                            standing->ranks[i].rank, standing->ranks[i].reply->upgrade_text);
    if (code != EXIT_GOOD)
        return code;
    printf("%" PRIu32 " daemons were replaced: zerod %s, step %" PRIu64 "\n", standing->count,
           standing->first->version, standing->first->step);
    return finish_output(EXIT_GOOD);
}

/* -1: not yet. */
static int look_at_group(struct change *change, const struct standing *standing)
{
    double elapsed_s = seconds_since(&change->asked);
    uint32_t back = 0, answer = 0;

    for (uint32_t i = 0; i < standing->count; i++) {
        back += is_back(change, &standing->ranks[i], elapsed_s);
        answer += standing->ranks[i].end != RPC_GONE;
    }
    if (back == change->world)
        return say_done(standing);
    if (answer > 0)
        change->last_answer_s = elapsed_s;
    if (access(change->group.dir, F_OK) != 0)
        return complain(EXIT_BAD, "the group has ended: " LOGS);
    if (elapsed_s - change->last_answer_s > GONE_S)
        return complain(EXIT_BAD,
                        "no daemon has answered for %d s: the group has ended, or the "
                        "new program fails again and again (the model is kept: install "
                        "one that works): " LOGS,
                        GONE_S);
    if (elapsed_s > change->o->deadline_s)
        return complain(EXIT_BAD,
                        "the group has not met again in %u s: see zeroctl status; daemons that "
                        "were not replaced yet will be after their next step",
                        change->o->deadline_s);
    tell_progress(change, standing, elapsed_s);
    return -1;
}

static int wait_until_back(struct change *change)
{
    struct standing *standing = malloc(sizeof *standing);
    int code = -1;

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    while (code < 0) {
        standing_ask(standing, change->rpc, &change->group, ANSWER_MS);
        code = look_at_group(change, standing);
        standing_deinit(standing);
        if (code < 0)
            pause_a_little();
    }
    free(standing);
    return code;
}

/* One that was tried, and waits for a step: there is nothing to try again. */
static bool under_way(const struct standing *standing)
{
    return strcmp(standing->first->upgrade, "waiting") == 0;
}

/* Without trainers there is no step to wait for. */
static bool idle(const struct standing *standing)
{
    for (uint32_t i = 0; i < standing->count; i++)
        if (standing->ranks[i].reply->trainer_pid != 0)
            return false;
    return true;
}

/* Fills in what is true before the change. */
static int look_before(struct change *change, bool *out_idle, bool *out_under_way)
{
    struct standing *standing = malloc(sizeof *standing);
    int code = EXIT_GOOD;

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    standing_ask(standing, change->rpc, &change->group, ANSWER_MS);
    if (!standing_good(standing))
        code = complain(EXIT_BAD, "the group is not well: see zeroctl status");
    else if (standing->first->epoch == 0)
        code = complain(EXIT_BAD, "the group has no model yet: restart the daemons instead");
    if (code == EXIT_GOOD) {
        change->epoch = standing->first->epoch;
        change->world = standing->count;
        *out_idle = idle(standing);
        *out_under_way = under_way(standing);
    }
    standing_deinit(standing);
    free(standing);
    return code;
}

static int upgrade(struct change *change, struct upgrade_options *o)
{
    bool no_step = false, waits = false;
    int code = look_before(change, &no_step, &waits);

    o->now = o->now || no_step;
    if (code == EXIT_GOOD && !(waits && o->now))
        code = try_program(change);
    if (code == EXIT_GOOD)
        code = ask(change, o->now ? change->group.count : 1 /* rank 0 alone */, false);
    return code == EXIT_GOOD ? wait_until_back(change) : code;
}

int command_upgrade(int argc, char **argv, struct common *common)
{
    struct upgrade_options o = { .common = common, .deadline_s = 600 };
    struct change change = { .o = &o };

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = group_find(common->runtime_dir, &change.group);
    if (code != EXIT_GOOD)
        return code;
    change.rpc = rpc_open();
    if (change.rpc == NULL)
        return complain(EXIT_IO, "no memory");
    code = upgrade(&change, &o);
    rpc_close(change.rpc);
    return code;
}
