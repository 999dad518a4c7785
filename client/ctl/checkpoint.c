/* SPDX-License-Identifier: MIT */
/* zeroctl checkpoint list|verify|prune ... */
#include "client/ctl/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/layout.h"

enum { OPTION_KEEP = 'k', OPTION_DRY_RUN = 'n', OPTION_JSON = 1000 };

/* ---- the subcommands ---- */

static const struct argp_option list_options[] = {
    { "json", OPTION_JSON, NULL, 0, "as JSON", 0 },
    { 0 },
};

static const struct argp_option prune_options[] = {
    { "keep", OPTION_KEEP, "K", 0, "the newest K complete checkpoints stay (needed)", 0 },
    { "dry-run", OPTION_DRY_RUN, NULL, 0, "say what would go, remove nothing", 0 },
    { 0 },
};

static const struct subcommand {
    const char *name, *arguments;
    int (*run)(const struct checkpoint_options *o);
    unsigned least, most; /* words */
    const struct argp_option *options;
    const char *doc;
} subcommands[] = {
    { "list", "DIR", checkpoint_list, 1, 1, list_options,
      "Lists the checkpoints in DIR by step: complete or not, and why; the data is not read." },
    { "verify", "PATH", checkpoint_verify, 1, 1, list_options,
      "Reads every byte of the checkpoint PATH (DIR/step-N) and compares it with its checksum; "
      "counts inf and nan in the weights, which are no damage.\vExit code 1 when anything "
      "differs." },
    { "prune", "DIR", checkpoint_prune, 1, 1, prune_options,
      "Removes all but the newest K complete checkpoints in DIR, and what saves that died have "
      "left." },
};
enum { SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

/* ---- their options ---- */

static error_t take_word(struct checkpoint_options *o, char *word, struct argp_state *state)
{
    if (o->count == o->most)
        argp_error(state, "'%s' is one argument too many", word);
    o->words[o->count++] = word;
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct checkpoint_options *o = state->input;
    char *end = NULL;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = o->common;
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case OPTION_DRY_RUN:
        o->dry_run = true;
        return 0;
    case OPTION_KEEP: {
        unsigned long keep = strtoul(argument, &end, 10);
        if (*argument < '1' || *argument > '9' || *end != '\0' || keep > 1000000)
            argp_error(state, "--keep is a whole number from 1 on, not '%s'", argument);
        o->keep = (uint32_t)keep;
        return 0;
    }
    case ARGP_KEY_ARG:
        return take_word(o, argument, state);
    case ARGP_KEY_END:
        if (o->count < o->least)
            argp_error(state, "an argument is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = { { &common_argp, 0, NULL, 1 }, { 0 } };

static int run(const struct subcommand *command, int argc, char **argv, struct common *common)
{
    struct checkpoint_options o = {
        .common = common,
        .least = command->least,
        .most = command->most,
        .words = calloc((size_t)argc + 1, sizeof *o.words),
    };
    const struct argp parser = {
        command->options, parse, command->arguments, command->doc, children, NULL, NULL
    };
    char name[64];

    if (o.words == NULL)
        return complain(EXIT_IO, "no memory");
    snprintf(name, sizeof name, "zeroctl checkpoint %s", command->name);
    argv[0] = name;
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = command->run(&o);
    free(o.words);
    return code;
}

/* ---- which one ---- */

struct choice {
    struct common *common;
    const struct subcommand *command;
    int argc;
    char **argv;
};

static error_t choose(int key, char *argument, struct argp_state *state)
{
    struct choice *choice = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = choice->common;
        return 0;
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < SUBCOMMANDS; i++)
            if (strcmp(subcommands[i].name, argument) == 0)
                choice->command = &subcommands[i];
        if (choice->command == NULL)
            argp_error(state, "'%s' is not a subcommand: list, verify or prune", argument);
        choice->argc = state->argc - state->next + 1;
        choice->argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a subcommand is needed: list, verify or prune");
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    .parser = choose,
    .children = children,
    .args_doc = "SUBCOMMAND ...",
    .doc = "Looks after checkpoints on disk; no daemon is needed.\v"
           "Subcommands (each has its own --help):\n"
           "  list DIR       what is there, complete or not\n"
           "  verify PATH    compare every byte with its checksum\n"
           "  prune DIR      remove all but the newest",
};

int command_checkpoint(int argc, char **argv, struct common *common)
{
    struct choice choice = { .common = common };

    argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &choice);
    return run(choice.command, choice.argc, choice.argv, common);
}

int checkpoint_complain(zero_status s, const struct zero_detail *detail)
{
    bool bad = s.code == ZERO_CORRUPT || s.code == ZERO_VERSION || s.code == ZERO_TOO_LARGE ||
               s.code == ZERO_INVALID_STATE || s.code == ZERO_INVALID_ARGUMENT ||
               s.code == ZERO_MISMATCH || s.code == ZERO_CONFIG || s.code == ZERO_UNSUPPORTED;

    return complain(bad ? EXIT_BAD : EXIT_IO, "%s: %s", zero_code_name(s.code), detail->text);
}
