/* SPDX-License-Identifier: MIT */
/* zeroctl plan */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/commands.h"
#include "client/ctl/file.h"
#include "client/ctl/forecast.h"
#include "client/ctl/layers.h"
#include "client/ctl/standing.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/writer.h"

enum {
    OPTION_PARAMS = 'p',
    OPTION_LAYERS = 'l',
    OPTION_WORLD = 'w',
    OPTION_CONFIG = 'c',
    OPTION_JSON = 'j',
    OPTION_STAGE = 's',
    OPTION_DTYPE = 't',
    OPTION_OPTIMIZER = 'o',
    OPTION_MOMENTUM = 'm',
    OPTION_ACCUMULATION = 'a',
    MOST_LAYERS_BYTES = 16 << 20,
    MOST_WORLD = 1 << 20, /* a daemon takes ZERO_MAX_WORLD; a layout says so itself */
};

struct plan_options {
    struct common *common;
    const char *layers, *config;
    uint64_t params, accumulation;
    uint32_t world, stage;
    const char *dtype, *optimizer;
    double momentum;
    bool json, world_given;
    const char *detailed; /* the last option that a config would give */
};

static const struct argp_option options[] = {
    { NULL, 0, NULL, 0, "The model; without one, that of the running group:", 1 },
    { "params", OPTION_PARAMS, "COUNT", 0, "number of parameters: 7.5e9, 7.5B, 350M, 120576", 1 },
    { "layers", OPTION_LAYERS, "FILE", 0,
      "JSON list of layers: [{\"name\":..., \"tensors\":[{\"name\":..., \"shape\":[...]}]}]; exact "
      "to "
      "the byte",
      1 },
    { NULL, 0, NULL, 0, "The group:", 2 },
    { "world", OPTION_WORLD, "N", 0, "ranks (1)", 2 },
    { "config", OPTION_CONFIG, "FILE", 0, "config that gives all that follows", 2 },
    { "stage", OPTION_STAGE, "S", 0, "0 to 3 (3)", 2 },
    { "dtype", OPTION_DTYPE, "TYPE", 0, "of parameters and gradients: fp32, bf16 or fp16 (bf16)",
      2 },
    { "optimizer", OPTION_OPTIMIZER, "NAME", 0, "adam, adamw or sgd (adamw)", 2 },
    { "momentum", OPTION_MOMENTUM, "M", 0, "of sgd (0: without)", 2 },
    { "accumulation", OPTION_ACCUMULATION, "A", 0, "micro-steps a step (1)", 2 },
    { NULL, 0, NULL, 0, "Output:", 3 },
    { "json", OPTION_JSON, NULL, 0, "as JSON, in bytes", 3 },
    { 0 },
};

static uint64_t parse_whole(struct argp_state *state, const char *text, uint64_t least,
                            uint64_t most)
{
    char *end = NULL;

    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < least || value > most)
        argp_error(state, "'%s' is not a whole number from %" PRIu64 " to %" PRIu64, text, least,
                   most);
    return value;
}

static const char *one_of(struct argp_state *state, const char *text, const char *const *words)
{
    for (const char *const *word = words; *word != NULL; word++)
        if (strcasecmp(text, *word) == 0)
            return *word;
    argp_error(state, "'%s' is not %s, %s or %s", text, words[0], words[1], words[2]);
    return NULL;
}

/* The options that a config gives as well. */
static error_t parse_detail(int key, char *argument, struct argp_state *state)
{
    static const char *const dtypes[] = { "fp32", "bf16", "fp16", NULL }, *const optimizers[] = {
        "Adam", "AdamW", "SGD", NULL
    };
    struct plan_options *o = state->input;
    char *end = NULL;

    switch (key) {
    case OPTION_STAGE:
        o->stage = (uint32_t)parse_whole(state, argument, 0, 3);
        o->detailed = "--stage";
        return 0;
    case OPTION_DTYPE:
        o->dtype = one_of(state, argument, dtypes);
        o->detailed = "--dtype";
        return 0;
    case OPTION_OPTIMIZER:
        o->optimizer = one_of(state, argument, optimizers);
        o->detailed = "--optimizer";
        return 0;
    case OPTION_MOMENTUM:
        o->momentum = strtod(argument, &end);
        if (end == argument || *end != '\0' || !(o->momentum >= 0 && o->momentum < 1))
            argp_error(state, "--momentum is a number from 0 to 1, not '%s'", argument);
        o->detailed = "--momentum";
        return 0;
    case OPTION_ACCUMULATION:
        o->accumulation = parse_whole(state, argument, 1, 1000000);
        o->detailed = "--accumulation";
        return 0;
    default:
        return common_parse(key, argument, state);
    }
}

static void parse_params(struct argp_state *state, const char *text, uint64_t *out)
{
    switch (text_parse_count(text, out)) {
    case TEXT_COUNT:
        return;
    case TEXT_TOO_LARGE:
        argp_error(state, "--params %s is too many: their bytes do not fit in 63 bits", text);
        return;
    case TEXT_NO_COUNT:
        argp_error(state,
                   "--params is a whole number such as 7.5e9, 7.5B, 350M or 120576, not '%s'",
                   text);
    }
}

static void check_options(const struct plan_options *o, struct argp_state *state)
{
    bool model = o->params != 0 || o->layers != NULL;

    if (o->params != 0 && o->layers != NULL)
        argp_error(state, "--params or --layers, not both");
    if (o->config != NULL && o->detailed != NULL)
        argp_error(state, "--config gives what %s says: leave one of them out", o->detailed);
    if (!model && (o->config != NULL || o->detailed != NULL || o->world_given))
        argp_error(state, "a model is needed: --params COUNT or --layers FILE (without any option "
                          "the plan of the running group is shown)");
    if (o->momentum != 0 && strcmp(o->optimizer, "SGD") != 0)
        argp_error(state, "--momentum is for --optimizer sgd");
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct plan_options *o = state->input;

    switch (key) {
    case OPTION_PARAMS:
        parse_params(state, argument, &o->params);
        return 0;
    case OPTION_LAYERS:
        o->layers = argument;
        return 0;
    case OPTION_WORLD:
        o->world = (uint32_t)parse_whole(state, argument, 1, MOST_WORLD);
        o->world_given = true;
        return 0;
    case OPTION_CONFIG:
        o->config = argument;
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': plan takes options only", argument);
        return EINVAL;
    case ARGP_KEY_END:
        check_options(o, state);
        return 0;
    default:
        return parse_detail(key, argument, state);
    }
}

static const struct argp_child children[] = { { &common_argp, 0, NULL, 4 }, { 0 } };

static const struct argp parser = {
    .options = options,
    .parser = parse,
    .children = children,
    .doc = "Shows the memory of a rank, component by component with the formula, and what it moves "
           "in a step.\vWith --layers the numbers are those that a daemon allocates, to the byte; "
           "with --params alone, the same formulas without padding. The ZeRO paper's formula for "
           "mixed precision and Adam stands beside them.",
};

/* The options as the config that would say them, so that the defaults are the config's. */
static int make_config(const struct plan_options *o, struct zero_config *out)
{
    struct zero_detail detail = { "" };
    char text[512], momentum[64] = "";
    bool half = strcmp(o->dtype, "fp32") != 0;

    if (o->momentum != 0)
        snprintf(momentum, sizeof momentum, "\"momentum\": %.17g", o->momentum);
    int bytes = snprintf(text, sizeof text,
                         "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": "
                         "%" PRIu64 ", \"optimizer\": {\"type\": \"%s\", \"params\": {%s}}, "
                         "\"zero_optimization\": {\"stage\": %u}%s%s%s}",
                         o->accumulation, o->optimizer, momentum, o->stage, half ? ", \"" : "",
                         half ? o->dtype : "", half ? "\": {\"enabled\": true}" : "");
    zero_status s = zero_config_parse(text, (size_t)bytes, o->world, out, &detail);
    if (zero_failed(s))
        return complain(EXIT_BAD, "%s: %s", zero_code_name(s.code), detail.text);
    return EXIT_GOOD;
}

static int read_config(const struct plan_options *o, struct zero_config *out)
{
    struct zero_detail detail = { "" };
    char *text = NULL;
    size_t bytes = 0;

    if (o->config == NULL)
        return make_config(o, out);
    int code = file_read(o->config, ZERO_CONFIG_MAX_BYTES, &text, &bytes);
    if (code != EXIT_GOOD)
        return code;
    zero_status s = zero_config_parse(text, bytes, o->world, out, &detail);
    free(text);
    if (zero_failed(s))
        return complain(EXIT_BAD, "%s: %s: %s", o->config, zero_code_name(s.code), detail.text);
    return EXIT_GOOD;
}

static zero_status plan_layers(const struct layers *layers, struct forecast *f,
                               struct zero_detail *detail)
{
    const struct zero_layout_spec spec = { layers->specs, layers->count, f->config.world,
                                           f->config.param_dtype };
    struct zero_layout *layout = NULL;
    zero_status s = zero_layout_create(&spec, &layout, detail);

    if (zero_failed(s))
        return s;
    f->params = layout->count;
    f->traffic = zero_plan_traffic(layout, &f->config);
    f->versions = zero_plan_versions(layout->flat_total, &f->config);
    f->copy = zero_plan_copy(layout->shard_total, &f->config);
    s = zero_plan_layout(layout, &f->config, &f->plan, detail);
    zero_layout_destroy(layout);
    return s;
}

static int forecast_layers(const struct plan_options *o, struct forecast *f)
{
    struct zero_detail detail = { "" };
    struct layers layers;
    char *text = NULL;
    size_t bytes = 0;
    int code = file_read(o->layers, MOST_LAYERS_BYTES, &text, &bytes);

    if (code != EXIT_GOOD)
        return code;
    zero_status s = layers_read(text, bytes, &layers, &detail);
    if (!zero_failed(s)) {
        s = plan_layers(&layers, f, &detail);
        layers_deinit(&layers);
    }
    free(text);
    if (zero_failed(s))
        return complain(EXIT_BAD, "%s: %s: %s", o->layers, zero_code_name(s.code), detail.text);
    return EXIT_GOOD;
}

static int forecast_count(const struct plan_options *o, struct forecast *f)
{
    struct zero_detail detail = { "" };

    f->params = o->params;
    f->traffic = zero_plan_traffic_count(o->params, &f->config);
    f->versions = zero_plan_versions(o->params, &f->config);
    f->copy = zero_plan_copy(o->params / f->config.world + (o->params % f->config.world != 0),
                             &f->config);
    zero_status s = zero_plan_count(o->params, &f->config, &f->plan, &detail);
    if (zero_failed(s))
        return complain(EXIT_BAD, "%s: %s", zero_code_name(s.code), detail.text);
    return EXIT_GOOD;
}

/* ---- of the running group ---- */

/* What an arena of that name holds; "" if this zeroctl is older than the daemon. */
static const char *what_of(const char *name)
{
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        if (strcmp(zero_arena_names[a], name) == 0)
            return zero_arena_what[a];
    return "";
}

static bool print_running(const Zero__V1__StatusReply *reply)
{
    struct table table = { .columns = 5, .last_left = true };
    struct forecast_row total = { "total", "", "", 0 };
    const struct forecast_row versions = { "versions", "up to",
                                           "besides, at most: copies that observers read",
                                           reply->versions_planned };

    printf("rank %u of %u: %" PRIu64 " parameters, stage %u, %s\n\n", reply->rank, reply->world,
           reply->params, reply->stage, reply->param_dtype);
    forecast_head(&table);
    for (size_t a = 0; a < reply->n_arenas; a++) {
        const Zero__V1__Arena *arena = reply->arenas[a];
        const struct forecast_row row = { arena->name, arena->planned ? arena->formula : "none",
                                          what_of(arena->name), arena->planned };
        forecast_row(&table, &row, TABLE_PLAIN);
        total.bytes += arena->planned;
    }
    forecast_row(&table, &total, TABLE_GOOD);
    forecast_row(&table, &versions, TABLE_PLAIN);
    bool good = table_print(&table, stdout, table_colour());
    table_deinit(&table);
    forecast_explain(reply->stage, stdout, table_colour());
    return good;
}

static bool write_running(const Zero__V1__StatusReply *reply)
{
    struct writer *w = writer_open(stdout);
    uint64_t total = 0;

    writer_begin(w, '{');
    writer_key(w, "params");
    writer_count(w, reply->params);
    writer_key(w, "world");
    writer_count(w, reply->world);
    writer_key(w, "stage");
    writer_count(w, reply->stage);
    writer_key(w, "dtype");
    writer_text(w, reply->param_dtype);
    writer_key(w, "per_rank");
    writer_begin(w, '{');
    for (size_t a = 0; a < reply->n_arenas; a++) {
        writer_key(w, reply->arenas[a]->name);
        writer_count(w, reply->arenas[a]->planned);
        total += reply->arenas[a]->planned;
    }
    writer_key(w, "total");
    writer_count(w, total);
    writer_end(w, '}');
    writer_key(w, "formula");
    writer_begin(w, '{');
    for (size_t a = 0; a < reply->n_arenas; a++) {
        writer_key(w, reply->arenas[a]->name);
        writer_text(w, reply->arenas[a]->planned ? reply->arenas[a]->formula : "0");
    }
    writer_end(w, '}');
    writer_key(w, "versions_planned");
    writer_count(w, reply->versions_planned);
    writer_end(w, '}');
    return writer_close(w);
}

static int show_running(const struct plan_options *o)
{
    enum { ANSWER_MS = 2000 };
    struct standing *standing = calloc(1, sizeof *standing);
    struct group group;
    struct rpc *rpc = NULL;

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    int code = group_find(o->common->runtime_dir, &group);
    if (code != EXIT_GOOD)
        goto out;
    rpc = rpc_open();
    if (rpc == NULL) {
        code = complain(EXIT_IO, "no memory");
        goto out;
    }
    standing_ask(standing, rpc, &group, ANSWER_MS);
    if (standing->first == NULL)
        code = complain(EXIT_BAD, "no daemon in %s answers", group.dir);
    else if (standing->first->n_arenas == 0)
        code = complain(EXIT_BAD, "no model is registered in %s", group.dir);
    else if (!(o->json ? write_running(standing->first) : print_running(standing->first)))
        code = complain(EXIT_IO, "no memory");
    standing_deinit(standing);
out:
    rpc_close(rpc);
    free(standing);
    return code;
}

int command_plan(int argc, char **argv, struct common *common)
{
    struct plan_options o = { .common = common,
                              .accumulation = 1,
                              .world = 1,
                              .stage = 3,
                              .dtype = "bf16",
                              .optimizer = "AdamW" };
    struct forecast f = { .params = 0 };

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    if (o.params == 0 && o.layers == NULL)
        return show_running(&o);
    int code = read_config(&o, &f.config);
    if (code == EXIT_GOOD)
        code = o.layers != NULL ? forecast_layers(&o, &f) : forecast_count(&o, &f);
    if (code != EXIT_GOOD)
        return code;
    forecast_complete(&f);
    if (!(o.json ? forecast_write(&f, stdout) : forecast_print(&f, stdout, table_colour())))
        return complain(EXIT_IO, "no memory");
    return EXIT_GOOD;
}
