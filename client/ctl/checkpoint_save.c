/* SPDX-License-Identifier: MIT */
/* zeroctl checkpoint save: rank 0 saves the whole group; this asks it, and watches. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/checkpoint.h"
#include "client/ctl/meter.h"
#include "proto/zero/v1/control.pb-c.h"

enum {
    ANSWER_MS = 10000,
    LOOK_MS = 50,
    MOST_SILENT = 600 /* looks: a daemon that was killed is back by then */
};

/* An absolute path: the daemon has a folder of its own. "": the config's. */
static int find_path(const char *dir, char path[PATH_MAX])
{
    char here[PATH_MAX];
    int bytes = 0;

    path[0] = '\0';
    if (dir == NULL)
        return EXIT_GOOD;
    if (getcwd(here, sizeof here) == NULL)
        return complain(EXIT_IO, "the current folder: %s", strerror(errno));
    if (dir[0] == '/')
        bytes = snprintf(path, PATH_MAX, "%s", dir);
    else if (dir[0] != '\0')
        bytes = snprintf(path, PATH_MAX, "%s/%s", here, dir);
    if (bytes <= 0 || bytes >= PATH_MAX)
        return complain(EXIT_USAGE, "'%s' is no folder to save into", dir);
    return EXIT_GOOD;
}

struct save_watch {
    struct rpc *rpc;
    struct group group; /* rank 0 alone */
    uint64_t id;
    struct meter meter;
    bool metered;
};

/* Asks rank 0; NULL when it does not answer, with the reason. */
static ProtobufCMessage *ask(struct save_watch *watch, const struct rpc_method *method,
                             const ProtobufCMessage *request, struct rpc_answer *answer)
{
    const struct question question = { method, request, ANSWER_MS };

    ask_ranks(watch->rpc, &watch->group, 1, &question, answer);
    return answer->end == RPC_ANSWERED ? answer->reply : NULL;
}

static int begin(struct save_watch *watch, char *path)
{
    Zero__V1__SaveRequest request = ZERO__V1__SAVE_REQUEST__INIT;
    struct rpc_answer answer;

    request.dir = path;
    ProtobufCMessage *reply = ask(watch, &rpc_save, &request.base, &answer);
    if (reply == NULL)
        return complain(EXIT_BAD, "rank 0: %s", answer.text);
    watch->id = ((const Zero__V1__SaveReply *)reply)->id;
    protobuf_c_message_free_unpacked(reply, NULL);
    return EXIT_GOOD;
}

static void show(struct save_watch *watch, const Zero__V1__SaveStatusReply *reply)
{
    if (reply->total == 0 || !reply->running)
        return;
    if (!watch->metered)
        meter_begin(&watch->meter, "saving rank 0's part");
    watch->metered = true;
    atomic_store(&watch->meter.progress.total, reply->total);
    atomic_store(&watch->meter.progress.store.bytes, reply->bytes);
}

/* True when it has ended; *out_code says how. */
static bool look(struct save_watch *watch, int *silent, int *out_code)
{
    Zero__V1__SaveStatusRequest request = ZERO__V1__SAVE_STATUS_REQUEST__INIT;
    struct rpc_answer answer;

    request.id = watch->id;
    ProtobufCMessage *message = ask(watch, &rpc_save_status, &request.base, &answer);
    if (message == NULL) {
        *out_code = EXIT_BAD;
        if (++*silent < MOST_SILENT)
            return false;
        complain(EXIT_BAD, "rank 0 does not answer any more: %s", answer.text);
        return true;
    }
    const Zero__V1__SaveStatusReply *reply = (const Zero__V1__SaveStatusReply *)message;
    bool ended = !reply->running;
    *silent = 0;
    show(watch, reply);
    if (ended && watch->metered)
        meter_end(&watch->meter);
    if (ended && reply->good)
        printf("%s\n", reply->text);
    else if (ended)
        *out_code = complain(EXIT_BAD, "%s", reply->text);
    protobuf_c_message_free_unpacked(message, NULL);
    return ended;
}

static int save(struct save_watch *watch, char *path)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = LOOK_MS * 1000000L };
    int silent = 0, code = begin(watch, path);

    if (code != EXIT_GOOD)
        return code;
    while (!look(watch, &silent, &code))
        nanosleep(&pause, NULL);
    return finish_output(code);
}

int checkpoint_save(const struct checkpoint_options *o)
{
    struct save_watch watch = { .rpc = NULL };
    char path[PATH_MAX];
    int code = find_path(o->count > 0 ? o->words[0] : NULL, path);

    if (code == EXIT_GOOD)
        code = group_find(o->common->runtime_dir, &watch.group);
    if (code != EXIT_GOOD)
        return code;
    watch.group.ranks[0] = 0;
    watch.group.count = 1;
    watch.rpc = rpc_open();
    if (watch.rpc == NULL)
        return complain(EXIT_IO, "no memory");
    code = save(&watch, path);
    rpc_close(watch.rpc);
    return code;
}
