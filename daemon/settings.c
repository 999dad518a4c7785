/* SPDX-License-Identifier: MIT */
#include "daemon/settings.h"

#include <argp.h>
#include <stdlib.h>

#include "proto/layout.h"

__attribute__((visibility("default"))) const char *argp_program_version = "zerod " ZEROD_VERSION;

enum {
    OPTION_RANK = 'r',
    OPTION_WORLD = 'w',
    OPTION_DIR = 'd',
    OPTION_VERBOSE = 'v',
    OPTION_RESTORE = 256,
    OPTION_WEIGHTS_ONLY,
    OPTION_CAN_TAKE
};

static const struct argp_option options[] = {
    { "rank", OPTION_RANK, "R", 0, "this daemon's rank, 0 to N-1", 0 },
    { "world", OPTION_WORLD, "N", 0, "daemons in the group", 0 },
    { "runtime-dir", OPTION_DIR, "DIR", 0,
      "folder of the group's sockets, the same for every rank (default $ZERO_RUNTIME_DIR)", 0 },
    { "restore", OPTION_RESTORE, "PATH", 0,
      "a model that is new starts from this checkpoint, or from the newest complete one in the "
      "folder PATH (default: the newest in the config's zerod.checkpoint.dir)",
      0 },
    { "weights-only", OPTION_WEIGHTS_ONLY, NULL, 0,
      "with --restore: the weights are the initial values of a training that begins at step 0", 0 },
    { "can-take", OPTION_CAN_TAKE, "FORMATS", 0,
      "only say by the exit code (0, or 78 with a reason) whether this program could go on from a "
      "state in these formats, with the model on stdin: for an upgrade",
      0 },
    { "verbose", OPTION_VERBOSE, NULL, 0, "log refused requests too", 0 },
    { 0 },
};

static uint32_t parse_number(struct argp_state *state, const char *text, const char *what)
{
    char *end = NULL;
    unsigned long value = strtoul(text, &end, 10);

    if (*text < '0' || *text > '9' || *end != '\0' || value > ZERO_MAX_WORLD)
        argp_error(state, "%s is a number up to %d, not '%s'", what, ZERO_MAX_WORLD, text);
    return (uint32_t)value;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    struct settings *settings = state->input;

    switch (key) {
    case OPTION_RANK:
        settings->rank = parse_number(state, argument, "--rank");
        return 0;
    case OPTION_WORLD:
        settings->world = parse_number(state, argument, "--world");
        return 0;
    case OPTION_DIR:
        settings->dir = argument;
        return 0;
    case OPTION_RESTORE:
        settings->restore = argument;
        return 0;
    case OPTION_WEIGHTS_ONLY:
        settings->weights_only = true;
        return 0;
    case OPTION_CAN_TAKE:
        settings->can_take = argument;
        return 0;
    case OPTION_VERBOSE:
        settings->level = LOG_DEBUG_LEVEL;
        return 0;
    case ARGP_KEY_END:
        if (settings->can_take != NULL && settings->world != 0)
            return 0;
        if (settings->world == 0 || settings->rank >= settings->world)
            argp_error(state, "--world N (1 to %d) and --rank R (0 to N-1) are needed",
                       ZERO_MAX_WORLD);
        if (settings->dir == NULL)
            argp_error(state, "--runtime-dir DIR is needed (or ZERO_RUNTIME_DIR)");
        if (settings->weights_only && settings->restore == NULL)
            argp_error(state, "--weights-only needs a checkpoint: --restore PATH");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse_option,
    .doc = "Owns one rank's shard of a model: reduces gradients, updates, keeps the state.\v"
           "Listens in DIR on rank-R.sock (trainers), rank-R.control (gRPC) and rank-R.peer (other "
           "ranks). Tells NOTIFY_SOCKET when it is ready. SIGTERM ends it in good order. "
           "ZERO_KERNELS=scalar|avx2|avx512 forces the instruction set.",
};

void settings_read(struct settings *settings, int argc, char **argv)
{
    *settings = (struct settings){ .rank = UINT32_MAX,
                                   .dir = getenv("ZERO_RUNTIME_DIR"),
                                   .level = LOG_INFO_LEVEL };
    argp_parse(&parser, argc, argv, 0, NULL, settings);
}
