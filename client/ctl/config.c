/* SPDX-License-Identifier: MIT */
/* zeroctl config [check] FILE */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/commands.h"
#include "client/ctl/file.h"
#include "proto/config.h"
#include "proto/layout.h"

struct config_options {
    struct common *common;
    const char *words[2];
    unsigned count;
    uint32_t world;
};

static const struct argp_option options[] = {
    { "world", 'w', "N", 0, "for a group of N ranks (1)", 0 },
    { 0 },
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct config_options *o = state->input;
    char *end = NULL;

    switch (key) {
    case 'w': {
        unsigned long world = strtoul(argument, &end, 10);
        if (*argument < '1' || *argument > '9' || *end != '\0' || world > ZERO_MAX_WORLD)
            argp_error(state, "--world is a number from 1 to %d, not '%s'", ZERO_MAX_WORLD,
                       argument);
        o->world = (uint32_t)world;
        return 0;
    }
    case ARGP_KEY_ARG:
        if (o->count == 2)
            argp_error(state, "one FILE, not more");
        o->words[o->count++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (o->count == 2 && strcmp(o->words[0], "check") != 0)
            argp_error(state, "one FILE, not more");
        if (o->count == 0 || (o->count == 1 && strcmp(o->words[0], "check") == 0))
            argp_error(state, "a FILE is needed, or - for standard input");
        return 0;
    default:
        return common_parse(key, argument, state);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse,
    .children = common_children,
    .args_doc = "[check] FILE",
    .doc =
        "Shows every key of a config as the daemons will read it, where its value comes from, and "
        "the keys that have no effect.\vExit code 0 when it is accepted, 1 when not, with line, "
        "key and what to write instead.",
};

int command_config(int argc, char **argv, struct common *common)
{
    struct config_options o = { .common = common, .world = 1 };
    struct zero_detail detail = { "" };
    char *text = NULL, *explained = NULL;
    size_t bytes = 0;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    const char *name = o.words[o.count - 1];
    int code = file_read(name, ZERO_CONFIG_MAX_BYTES, &text, &bytes);
    if (code != EXIT_GOOD)
        return code;
    zero_status s = zero_config_explain(text, bytes, o.world, &explained, &detail);
    if (zero_failed(s))
        code = complain(s.code == ZERO_NO_MEMORY ? EXIT_IO : EXIT_BAD, "%s: %s: %s", name,
                        zero_code_name(s.code), detail.text);
    else
        fputs(explained, stdout);
    free(explained);
    free(text);
    return code;
}
