/* SPDX-License-Identifier: MIT */
/* zeroctl versions */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "client/ctl/ask.h"
#include "client/ctl/commands.h"
#include "client/ctl/group.h"
#include "client/ctl/rpc.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/writer.h"
#include "proto/zero/v1/control.pb-c.h"

enum { OPTION_JSON = 'j', ANSWER_MS = 2000 };

struct versions_options {
    struct common *common;
    bool json;
};

static const struct argp_option options[] = { { "json", OPTION_JSON, NULL, 0, "as JSON", 0 },
                                              { 0 } };

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct versions_options *o = state->input;

    switch (key) {
    case OPTION_JSON:
        o->json = true;
        return 0;
    default:
        return common_parse(key, argument, state);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse,
    .children = common_children,
    .doc = "Shows the versions that every rank keeps: copies of the parameters of one step, which "
           "observers read while training goes on.\vExit code 1 when a rank does not answer.",
};

static const Zero__V1__VersionsReply *reply_of(const struct rpc_answer *answer)
{
    return (const Zero__V1__VersionsReply *)answer->reply;
}

static bool print(const struct group *group, const struct rpc_answer *answers)
{
    static const char *const words[] = { "rank", "step", "bytes", "", "readers", "age" };
    enum { COLUMNS = sizeof words / sizeof *words };
    struct table table = { .columns = COLUMNS };

    for (size_t i = 0; i < COLUMNS; i++)
        table_cell(&table, TABLE_DIM, "%s", words[i]);
    for (uint32_t r = 0; r < group->count; r++) {
        const Zero__V1__VersionsReply *reply = reply_of(&answers[r]);
        for (size_t i = 0; reply != NULL && i < reply->n_versions; i++) {
            const Zero__V1__Version *version = reply->versions[i];
            table_cell(&table, TABLE_PLAIN, "%" PRIu32, group->ranks[r]);
            table_cell(&table, TABLE_PLAIN, "%" PRIu64, version->step);
            table_cell(&table, TABLE_PLAIN, "%" PRIu64, version->bytes);
            table_cell(&table, TABLE_PLAIN, "%s", text_bytes(version->bytes).text);
            table_cell(&table, version->readers ? TABLE_GOOD : TABLE_DIM, "%" PRIu32,
                       version->readers);
            table_cell(&table, TABLE_PLAIN, "%s", text_seconds(version->age).text);
        }
    }
    bool good = table_print(&table, stdout, table_colour());
    table_deinit(&table);
    return good;
}

static void write_rank(struct writer *w, uint32_t rank, const struct rpc_answer *answer)
{
    const Zero__V1__VersionsReply *reply = reply_of(answer);

    writer_begin(w, '{');
    writer_key(w, "rank");
    writer_count(w, rank);
    if (reply == NULL) {
        writer_key(w, "error");
        writer_text(w, answer->text);
        writer_end(w, '}');
        return;
    }
    writer_key(w, "versions");
    writer_begin(w, '[');
    for (size_t i = 0; i < reply->n_versions; i++) {
        writer_begin(w, '{');
        writer_key(w, "step");
        writer_count(w, reply->versions[i]->step);
        writer_key(w, "bytes");
        writer_count(w, reply->versions[i]->bytes);
        writer_key(w, "readers");
        writer_count(w, reply->versions[i]->readers);
        writer_key(w, "age");
        writer_real(w, reply->versions[i]->age);
        writer_end(w, '}');
    }
    writer_end(w, ']');
    writer_end(w, '}');
}

static bool write(const struct group *group, const struct rpc_answer *answers)
{
    struct writer *w = writer_open(stdout);

    writer_begin(w, '{');
    writer_key(w, "runtime_dir");
    writer_text(w, group->dir);
    writer_key(w, "ranks");
    writer_begin(w, '[');
    for (uint32_t r = 0; r < group->count; r++)
        write_rank(w, group->ranks[r], &answers[r]);
    writer_end(w, ']');
    writer_end(w, '}');
    return writer_close(w);
}

int command_versions(int argc, char **argv, struct common *common)
{
    struct versions_options o = { .common = common };
    const struct question question = { &rpc_versions, NULL, ANSWER_MS };
    struct rpc_answer answers[ZERO_MAX_WORLD];
    struct group group;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = group_find(common->runtime_dir, &group);
    if (code != EXIT_GOOD)
        return code;
    struct rpc *rpc = rpc_open();
    if (rpc == NULL)
        return complain(EXIT_IO, "no memory");
    ask_ranks(rpc, &group, group.count, &question, answers);
    for (uint32_t r = 0; r < group.count; r++)
        if (answers[r].reply == NULL)
            code = complain(EXIT_BAD, "rank %" PRIu32 ": %s", group.ranks[r], answers[r].text);
    if (!(o.json ? write(&group, answers) : print(&group, answers)))
        code = complain(EXIT_IO, "no memory");
    for (uint32_t r = 0; r < group.count; r++)
        if (answers[r].reply != NULL)
            protobuf_c_message_free_unpacked(answers[r].reply, NULL);
    rpc_close(rpc);
    return code;
}
