/* SPDX-License-Identifier: MIT */
/* zeroctl checkpoint SUBCOMMAND */
#include "client/ctl/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/text.h"
#include "daemon/store/catalogue.h"

enum {
    OPTION_KEEP = 'k',
    OPTION_DRY_RUN = 'n',
    OPTION_OUT = 'o',
    OPTION_MODEL = 'm',
    OPTION_JSON = 1000,
    OPTION_DTYPE,
    OPTION_MAX_SHARD,
};

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

static const struct argp_option export_options[] = {
    { "dtype", OPTION_DTYPE, "DTYPE", 0, "fp32 (default), bf16 or fp16", 0 },
    { "max-shard-size", OPTION_MAX_SHARD, "SIZE", 0,
      "most bytes of tensors in a file, such as 5GB or 500MB (default: one file)", 0 },
    { 0 },
};

static const struct argp_option import_options[] = {
    { "out", OPTION_OUT, "DIR", 0, "the checkpoint becomes DIR/step-0 (needed)", 0 },
    { "model", OPTION_MODEL, "MODEL", 0,
      "layers and tensors in order: a checkpoint, or a JSON file as zeroctl plan --layers reads",
      0 },
    { 0 },
};

static const struct subcommand {
    const char *name, *arguments;
    int (*run)(const struct checkpoint_options *o);
    unsigned least, most; /* words */
    const struct argp_option *options;
    const char *doc;
} subcommands[] = {
    { "save", "[DIR]", checkpoint_save, 0, 1, NULL,
      "Saves the last committed step of the running group as DIR/step-N, and prints that path. "
      "Without DIR it is the config's zerod.checkpoint.dir. Training waits only for a copy in "
      "memory; no trainer is needed.\vAnother step-N that is there is set aside as "
      "DIR/step-N.replaced-K. Exit code 1 when there is no checkpoint: the reason is "
      "printed, and what was in DIR is as it was." },
    { "list", "DIR", checkpoint_list, 1, 1, list_options,
      "Lists the checkpoints in DIR by step: complete or not, and why; the data is not read.\vExit "
      "code 4 when one of them could not be looked at." },
    { "verify", "PATH", checkpoint_verify, 1, 1, list_options,
      "Reads every byte of the checkpoint PATH (DIR/step-N) and compares it with its checksum; "
      "counts inf and nan in the weights, which are no damage.\vExit code 1 when anything "
      "differs or is missing." },
    { "prune", "DIR", checkpoint_prune, 1, 1, prune_options,
      "Removes all but the newest K complete checkpoints in DIR, and what saves that died have "
      "left." },
    { "export", "PATH OUT", checkpoint_export, 2, 2, export_options,
      "Writes the weights of the checkpoint PATH to the folder OUT, as Hugging Face's "
      "model.safetensors: each tensor whole, from the fp32 master." },
    { "import", "FILE...", checkpoint_import, 1, UINT_MAX, import_options,
      "Makes a checkpoint from safetensors files, or folders of them, with fp32, bf16, fp16 or "
      "fp64 "
      "weights: step 0, one rank, master weights and no optimizer state.\vWithout --model a "
      "tensor's layer is its name up to the first part that is a number, and layers stand in the "
      "files' order." },
};
enum { SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

/* ---- their options ---- */

static zero_dtype parse_dtype(const char *text, struct argp_state *state)
{
    for (int d = 0; d < ZERO_DTYPES; d++)
        if (strcmp(text, zero_dtype_name((zero_dtype)d)) == 0)
            return (zero_dtype)d;
    argp_error(state, "--dtype is fp32, bf16 or fp16, not '%s'", text);
    return ZERO_FP32;
}

/* "5GB", "500MB", "1048576": powers of 1000, as Hugging Face counts. */
static uint64_t parse_size(const char *text, struct argp_state *state)
{
    char number[32];
    size_t bytes = strlen(text);
    uint64_t size = 0;

    bytes -= bytes > 0 && text[bytes - 1] == 'B';
    if (bytes < sizeof number) {
        memcpy(number, text, bytes);
        number[bytes] = '\0';
    }
    /* what counts parameters calls 10^9 a billion */
    if (bytes > 0 && bytes < sizeof number && number[bytes - 1] == 'G')
        number[bytes - 1] = 'B';
    if (bytes >= sizeof number || text_parse_count(number, &size) != TEXT_COUNT)
        argp_error(state, "--max-shard-size is a size such as 5GB or 500MB, not '%s'", text);
    return size;
}

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
    case OPTION_OUT:
        o->out = argument;
        return 0;
    case OPTION_MODEL:
        o->model = argument;
        return 0;
    case OPTION_DTYPE:
        o->dtype = parse_dtype(argument, state);
        return 0;
    case OPTION_MAX_SHARD:
        o->max_shard = parse_size(argument, state);
        return 0;
    case ARGP_KEY_ARG:
        return take_word(o, argument, state);
    case ARGP_KEY_END:
        if (o->count < o->least)
            argp_error(state, "an argument is missing");
        return 0;
    default:
        return common_parse(key, argument, state);
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
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < SUBCOMMANDS; i++)
            if (strcmp(subcommands[i].name, argument) == 0)
                choice->command = &subcommands[i];
        if (choice->command == NULL)
            argp_error(state,
                       "'%s' is not a subcommand: save, list, verify, prune, export or import",
                       argument);
        choice->argc = state->argc - state->next + 1;
        choice->argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a subcommand is needed: save, list, verify, prune, export or import");
        return EINVAL;
    default:
        return common_parse(key, argument, state);
    }
}

static const struct argp parser = {
    .parser = choose,
    .children = children,
    .args_doc = "SUBCOMMAND ...",
    .doc = "Saves checkpoints, and looks after those on disk, for which no daemon is needed.\v"
           "Subcommands (each has its own --help):\n"
           "  save [DIR]     a checkpoint of the running group\n"
           "  list DIR       what is there, complete or not\n"
           "  verify PATH    compare every byte with its checksum\n"
           "  prune DIR      remove all but the newest\n"
           "  export PATH    the weights as Hugging Face's safetensors\n"
           "  import FILE    a checkpoint from such files",
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

int checkpoint_refuse(const char *path, zero_status s, const struct zero_detail *detail)
{
    struct zero_detail ignored;
    char *newest = NULL;

    if (s.code != ZERO_NOT_FOUND || zero_failed(store_newest(path, &newest, &ignored)))
        return checkpoint_complain(s, detail);
    int code = complain(EXIT_USAGE, "%s is a folder of checkpoints: give one of them, such as %s",
                        path, newest);
    free(newest);
    return code;
}
