/* SPDX-License-Identifier: MIT */
#include "client/examples/options.h"

#include <argp.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *argp_program_version = "gpt " ZEROD_VERSION;

enum { STEPS = 256, SEQ, WIDTH, LAYERS, HEADS, SEED, EVAL, SAMPLE, LOG, LAYERS_JSON };

static const struct argp_option table[] = {
    { "text", 't', "FILE", 0, "Learn from FILE (default: The Devil's Dictionary)", 0 },
    { "config", 'c', "FILE", 0,
      "Optimizer, precision, stage and batch (default: $ZERO_CONFIG, else gpt.json)", 0 },
    { "steps", STEPS, "N", 0, "Train until step N (default 300)", 0 },
    { "seq", SEQ, "N", 0, "Bytes in a sequence (default 64)", 1 },
    { "width", WIDTH, "N", 0, "Width of the model (default 64)", 1 },
    { "layers", LAYERS, "N", 0, "Blocks (default 2)", 1 },
    { "heads", HEADS, "N", 0, "Attention heads; must divide the width (default 4)", 1 },
    { "seed", SEED, "N", 0, "Of initial weights and samples (default 42)", 1 },
    { "log", LOG, "FILE", 0, "Rank 0 writes a JSON object a step to FILE", 2 },
    { "eval", EVAL, "N", 0, "In the end, the mean loss of N batches held out", 2 },
    { "sample", SAMPLE, "N", 0, "In the end, write N bytes drawn from the model", 2 },
    { "layers-json", LAYERS_JSON, NULL, 0, "Print the model for `zeroctl plan --layers`, and exit",
      2 },
    { 0 },
};

/* A file that lies in the program's own folder, or NULL. */
static const char *beside_program(const char *name, char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);

    if (length < 0 || length == PATH_MAX)
        return NULL;
    while (path[length - 1] != '/')
        length--;
    const size_t room = PATH_MAX - (size_t)length;
    if (snprintf(path + length, room, "%s", name) >= (int)room)
        return NULL;
    return access(path, R_OK) == 0 ? path : NULL;
}

static uint64_t number(const char *text, uint64_t least, uint64_t most, struct argp_state *state)
{
    char *end;

    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most)
        argp_error(state, "'%s': must be a number from %llu to %llu", text,
                   (unsigned long long)least, (unsigned long long)most);
    return value;
}

static void finish(struct options *o, struct argp_state *state)
{
    if (o->shape.width % o->shape.heads != 0)
        argp_error(state, "--width %zu cannot be divided among --heads %zu", o->shape.width,
                   o->shape.heads);
    if (o->layers_json)
        return;
    if (o->text == NULL)
        o->text = beside_program("devils-dictionary.txt", o->beside[0]);
    if (o->text == NULL)
        argp_error(state, "name the file to learn from with --text: the book that comes with this "
                          "program does not lie beside it");
    if (o->config == NULL)
        o->config = getenv("ZERO_CONFIG");
    if (o->config == NULL)
        o->config = beside_program("gpt.json", o->beside[1]);
    if (o->config == NULL)
        argp_error(state, "name the config with --config: no gpt.json lies beside this program");
}

static error_t parse(int key, char *value, struct argp_state *state)
{
    struct options *o = state->input;

    switch (key) {
    case 't':
        o->text = value;
        break;
    case 'c':
        o->config = value;
        break;
    case STEPS:
        o->steps = number(value, 0, UINT32_MAX, state);
        break;
    case SEQ:
        o->shape.seq = number(value, 1, 1 << 16, state);
        break;
    case WIDTH:
        o->shape.width = number(value, 1, 1 << 16, state);
        break;
    case LAYERS:
        o->shape.layers = number(value, 1, 1 << 12, state);
        break;
    case HEADS:
        o->shape.heads = number(value, 1, 1 << 12, state);
        break;
    case SEED:
        o->seed = number(value, 0, UINT64_MAX, state);
        break;
    case EVAL:
        o->eval = number(value, 0, 1 << 20, state);
        break;
    case SAMPLE:
        o->sample = number(value, 0, 1 << 20, state);
        break;
    case LOG:
        o->log = value;
        break;
    case LAYERS_JSON:
        o->layers_json = true;
        break;
    case ARGP_KEY_END:
        finish(o, state);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

void options_parse(struct options *options, int argc, char **argv)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .doc = "Trains a small GPT on a text, byte by byte: an example of zerod's client API. Runs "
               "under zerorun, which starts the daemons:\n\n  zerorun -n 2 -- gpt --steps 300",
    };

    *options = (struct options){ .shape = { .seq = 64, .width = 64, .layers = 2, .heads = 4 },
                                 .steps = 300,
                                 .seed = 42 };
    argp_parse(&argp, argc, argv, 0, NULL, options);
}
