/* SPDX-License-Identifier: MIT */
/* probe: a trainer whose gradients are known numbers, for tests.
 *
 * Sample j of a step is micro-step k (from 1) of rank r with j = (k - 1) * world + r: the same
 * samples whatever the world size. With mix(x) one step of splitmix64 from state x, element i of
 * tensor t has the gradient g = (mix(mix(seed + s*2^40 + j*2^24 + t*2^8) + i) >> 40) / 2^23 - 1 at
 * step s, rounded to the gradient dtype after multiplication by the loss scale; weights start as w
 * = ((mix(mix(seed) + t*2^40 + i) >> 40) / 2^23 - 1) * 0.1. A reference computes the same numbers
 * without zerod. Prints one JSON object a step, and at the end writes all state as raw floats.
 */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/zerocheckpoint.h"
#include "tests/integration/sum.h"

enum { MAX_LAYERS = 256, MAX_TENSORS = 1024 };

static struct settings {
    const char *layers, *config, *dump, *order, *inject, *save;
    uint64_t steps, seed;
    int micro, skip_layer, skip_rank, more_rank, states;
    bool fill_rank_0, fill_stops, no_model, quiet, decay_split, sums;
    double lr;
} settings = { .layers = "a:3x5,7;b:1000",
               .steps = 5,
               .seed = 1,
               .micro = 0,
               .skip_layer = -1,
               .skip_rank = -1,
               .more_rank = -1,
               .order = "back",
               .lr = NAN };

static zero_client *client;
static struct zero_detail detail;
static struct zero_layer_spec layers[MAX_LAYERS];
static struct zero_tensor_spec tensors[MAX_TENSORS];
static uint64_t shapes[MAX_TENSORS][ZERO_MAX_DIMS];
static uint32_t layer_count, tensor_count;

static void die(const char *what, zero_status s)
{
    fprintf(stderr, "probe: %s: %s: %s\n", what, zero_code_name(s.code),
            client ? zero_error_text(client) : detail.text);
    printf("{\"error\":\"%s\",\"what\":\"%s\"}\n", zero_code_name(s.code), what);
    exit(10);
}

static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

static float unit(uint64_t u)
{
    return (float)(u >> 40) / 8388608.0f - 1;
}

/* ---- the model ------------------------------------------------------------------------------ */

/* One tensor of the layer that is being read; "3x5". */
static void add_tensor(struct zero_layer_spec *layer, const char *shape)
{
    struct zero_tensor_spec *tensor = &tensors[tensor_count];
    char name[300];

    snprintf(name, sizeof name, "%s.%zu", layer->name, layer->tensor_count);
    *tensor = (struct zero_tensor_spec){
        .name = strdup(name), .shape = shapes[tensor_count], .lr_scale = 1, .weight_decay = NAN
    };
    for (const char *at = shape; *at != '\0' && tensor->dims < ZERO_MAX_DIMS;) {
        char *end;
        shapes[tensor_count][tensor->dims++] = strtoull(at, &end, 10);
        at = end + (*end == 'x');
    }
    if (settings.decay_split && tensor->dims == 1) {
        tensor->weight_decay = 0;
        tensor->lr_scale = 0.5;
    }
    tensor_count++;
    layer->tensor_count++;
}

/* "name:3x5,7;name:1000": layers of tensors. */
static void parse_layers(const char *text)
{
    char *copy = strdup(text), *outer = NULL;

    for (char *part = strtok_r(copy, ";", &outer); part; part = strtok_r(NULL, ";", &outer)) {
        char *inner = NULL, *shape;
        struct zero_layer_spec *layer = &layers[layer_count++];
        layer->name = strdup(strtok_r(part, ":", &inner));
        layer->tensors = &tensors[tensor_count];
        while ((shape = strtok_r(NULL, ",", &inner)) != NULL)
            add_tensor(layer, shape);
    }
    free(copy);
}

static uint64_t elements(uint32_t tensor)
{
    uint64_t count = 1;

    for (uint32_t d = 0; d < tensors[tensor].dims; d++)
        count *= shapes[tensor][d];
    return count;
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    char *text = malloc(65536);

    if (file == NULL || text == NULL) {
        perror(path);
        exit(2);
    }
    *bytes = fread(text, 1, 65536, file);
    fclose(file);
    return text;
}

static zero_status fill(void)
{
    zero_status s = zero_success();
    uint32_t t = 0;
    const struct zero_client_info *info = zero_client_info(client);

    if (settings.fill_rank_0)
        s = zero_fill_from(client, ZERO_FILL_RANK_0);
    for (uint32_t l = 0; l < layer_count; l++) {
        for (uint32_t i = 0; i < layers[l].tensor_count && !zero_failed(s); i++, t++) {
            uint64_t count = elements(t);
            const struct zero_span span = { l, i, 0, count };
            float *values = malloc(count * sizeof *values);
            for (uint64_t n = 0; n < count; n++)
                values[n] = unit(mix(mix(settings.seed) + ((uint64_t)t << 40) + n)) * 0.1f;
            if (!settings.fill_rank_0 || info->rank == 0)
                s = zero_fill(client, &span, values);
            free(values);
        }
    }
    if (settings.fill_stops && !zero_failed(s))
        raise(SIGSTOP);
    return zero_failed(s) ? s : zero_fill_end(client);
}

static void begin(void)
{
    if (settings.fill_stops && !zero_client_info(client)->filled)
        raise(SIGSTOP);
    while (!zero_client_info(client)->filled) {
        zero_status s = fill();
        if (zero_failed(s) && s.code != ZERO_STEP_ABORTED)
            die("fill", s);
    }
}

/* ---- gradients ------------------------------------------------------------------------------ */

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if (isnan(x))
        return 0x7fc0;
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static uint16_t to_fp16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    float size = fabsf(x);
    uint32_t u;

    if (isnan(x))
        return 0x7e00;
    if (size >= 65520)
        return sign | 0x7c00;
    if (size < 0x1p-14f) /* denormal: units of 2^-24 */
        return (uint16_t)(sign | (uint16_t)lrintf(size * 0x1p24f));
    memcpy(&u, &size, sizeof u);
    u += 0xfff + ((u >> 13) & 1);
    return (uint16_t)(sign | (uint16_t)((u >> 13) - (112u << 10)));
}

static void put(void *window, zero_dtype dtype, uint64_t at, float g)
{
    if (dtype == ZERO_FP32)
        ((float *)window)[at] = g;
    else
        ((uint16_t *)window)[at] = dtype == ZERO_BF16 ? to_bf16(g) : to_fp16(g);
}

/* "STEP:RANK:inf" puts one non-finite value into the gradients of a step. */
static float injected(uint64_t step, uint32_t rank, float g)
{
    unsigned long long at;
    unsigned who;
    char what[8];

    if (settings.inject && sscanf(settings.inject, "%llu:%u:%7s", &at, &who, what) == 3 &&
        at == step && who == rank)
        return strcmp(what, "inf") == 0 ? INFINITY : NAN;
    return g;
}

static zero_status submit(uint32_t layer, uint64_t step, uint64_t micro)
{
    const struct zero_client_info *info = zero_client_info(client);
    void *window = NULL;
    zero_status s = zero_window(client, layer, &window);
    uint32_t first = 0;

    if (zero_failed(s))
        return s;
    for (uint32_t l = 0; l < layer; l++)
        first += (uint32_t)layers[l].tensor_count;
    for (uint32_t i = 0; i < layers[layer].tensor_count; i++) {
        uint64_t offset = 0, count = 0;
        s = zero_tensor_place(client, layer, i, &offset, &count);
        if (zero_failed(s))
            return s;
        uint64_t sample = (micro - 1) * info->world + info->rank;
        uint64_t base =
            settings.seed + (step << 40) + (sample << 24) + ((uint64_t)(first + i) << 8);
        for (uint64_t n = 0; n < count; n++) {
            float g = unit(mix(mix(base) + n)) * (float)info->loss_scale;
            put(window, info->grad_dtype, offset + n,
                n == count - 1 ? injected(step, info->rank, g) : g);
        }
    }
    return zero_submit(client, layer);
}

static uint32_t nth_layer(uint32_t n, uint64_t step, uint32_t rank)
{
    if (strcmp(settings.order, "cross") == 0) /* opposite orders on odd and even ranks */
        return rank % 2 ? n : layer_count - 1 - n;
    if (strcmp(settings.order, "shift") == 0)
        return (n + (uint32_t)step + rank) % layer_count;
    return layer_count - 1 - n;
}

static bool skipped(uint32_t layer, uint32_t rank)
{
    return (int)layer == settings.skip_layer &&
           (settings.skip_rank < 0 || settings.skip_rank == (int)rank);
}

static zero_status micro_step(uint64_t step, uint64_t micro)
{
    uint32_t rank = zero_client_info(client)->rank;
    zero_status s = zero_success();

    for (uint32_t n = 0; n < layer_count && !zero_failed(s); n++) {
        uint32_t layer = nth_layer(n, step, rank);
        const void *weights;
        s = zero_gather(client, layer, &weights);
        if (!zero_failed(s) && !skipped(layer, rank))
            s = submit(layer, step, micro);
        if (!zero_failed(s))
            s = zero_release(client, layer);
    }
    return s;
}

static zero_status one_step(uint64_t step, struct zero_step_result *result)
{
    const struct zero_client_info *info = zero_client_info(client);
    int micros = settings.micro ? settings.micro : (int)info->accumulation;
    zero_status s = zero_success();

    if ((int)info->rank == settings.more_rank)
        micros++;
    for (int k = 1; k <= micros && !zero_failed(s); k++)
        s = micro_step(step, (uint64_t)k);
    if (zero_failed(s))
        return s;
    struct zero_scalar scalar = { "loss", (double)step + info->rank };
    struct zero_step_args args = { .lr = settings.lr,
                                   .blob = &step,
                                   .blob_bytes = sizeof step,
                                   .scalars = &scalar,
                                   .scalar_count = 1 };
    return zero_step(client, &args, result);
}

/* ---- output --------------------------------------------------------------------------------- */

/* A tensor's state as floats, which the caller frees; zeros where there is none. */
static float *read_tensor(enum zero_state state, uint32_t layer, uint32_t tensor, uint64_t *count)
{
    struct zero_span span = { .layer = layer, .tensor = tensor };
    uint64_t offset;

    zero_tensor_place(client, layer, tensor, &offset, &span.count);
    float *values = calloc(span.count, sizeof *values);
    zero_status s = zero_read(client, state, &span, values);
    if (zero_failed(s) && s.code != ZERO_NOT_FOUND)
        die("read", s);
    *count = span.count;
    return values;
}

static void dump_tensor(FILE *file, enum zero_state state, uint32_t layer, uint32_t tensor)
{
    uint64_t count;
    float *values = read_tensor(state, layer, tensor, &count);

    fwrite(values, sizeof *values, count, file);
    free(values);
}

static void dump(const char *path)
{
    FILE *file = fopen(path, "wb");

    if (file == NULL) {
        perror(path);
        exit(2);
    }
    for (int state = ZERO_MASTER; state <= ZERO_PARAM; state++)
        for (uint32_t l = 0; l < layer_count; l++)
            for (uint32_t i = 0; i < layers[l].tensor_count; i++)
                dump_tensor(file, (enum zero_state)state, l, i);
    fclose(file);
}

/* Of the parameters after the last step. */
static void print_sum(void)
{
    zero_status s = zero_success();
    uint64_t sum = sum_params(client, &s);

    if (zero_failed(s))
        die("sum", s);
    printf("{\"after\":%" PRIu64 ",\"sum\":\"%016" PRIx64 "\"}\n", zero_client_info(client)->step,
           sum);
}

/* "STEP:RANK:DIR" has that rank's trainer save once the step is committed, and train on. */
static zero_saving *begin_save(uint64_t step)
{
    struct zero_save_options options = { 0 };
    zero_saving *saving = NULL;
    unsigned long long at;
    unsigned who;
    int used = 0;

    if (settings.save == NULL || sscanf(settings.save, "%llu:%u:%n", &at, &who, &used) != 2 ||
        used == 0 || at != step || who != zero_client_info(client)->rank)
        return NULL;
    options.dir = settings.save + used;
    zero_status s = zero_checkpoint_begin(&options, &saving, &detail);
    if (zero_failed(s)) {
        fprintf(stderr, "probe: save: %s: %s\n", zero_code_name(s.code), detail.text);
        exit(11);
    }
    return saving;
}

/* Prints it when it has ended; NULL then. */
static zero_saving *look_at_save(zero_saving *saving, uint32_t deadline_ms)
{
    struct zero_path path = { "" };

    if (saving == NULL)
        return NULL;
    zero_status s = zero_checkpoint_wait(saving, deadline_ms, &path, &detail);
    if (s.code == ZERO_DEADLINE && deadline_ms == 0)
        return saving;
    printf("{\"save\":\"%s\",\"path\":\"%s\",\"at\":%" PRIu64 "}\n", zero_code_name(s.code),
           path.text, zero_client_info(client)->step);
    zero_checkpoint_leave(saving);
    return NULL;
}

static uint64_t sum_states(void)
{
    uint64_t sum = SUM_BEGIN, count;

    for (int state = ZERO_MASTER; state <= ZERO_PARAM; state++)
        for (uint32_t l = 0; l < layer_count; l++)
            for (uint32_t i = 0; i < layers[l].tensor_count; i++) {
                float *values = read_tensor((enum zero_state)state, l, i, &count);
                sum = sum_bytes(sum, (const char *)values, count * sizeof *values);
                free(values);
            }
    return sum;
}

/* Of all state after the last step, which stays as it is however often it is read. */
static void print_states(void)
{
    uint64_t step = zero_client_info(client)->step, sum = sum_states();

    for (int n = 1; n < settings.states; n++)
        if (sum_states() != sum) {
            fprintf(stderr, "probe: state after step %" PRIu64 " differs when read again\n", step);
            exit(12);
        }
    printf("{\"after\":%" PRIu64 ",\"states\":\"%016" PRIx64 "\"}\n", step, sum);
}

static void train(void)
{
    struct zero_step_result result = { 0 };
    zero_saving *saving = NULL;

    while (zero_client_info(client)->step < settings.steps) {
        uint64_t step = zero_client_info(client)->step;
        zero_status s = one_step(step, &result);
        if (s.code == ZERO_STEP_ABORTED)
            continue;
        if (zero_failed(s))
            die("step", s);
        if (!settings.quiet)
            printf("{\"step\":%" PRIu64 ",\"updates\":%" PRIu64
                   ",\"outcome\":%d,\"grad_norm\":\"%a\",\"scale\":%.17g,\"mean\":%.17g}\n",
                   step, result.updates, (int)result.outcome, result.grad_norm, result.loss_scale,
                   result.scalars[0]);
        if (settings.sums)
            print_sum();
        if (settings.states > 0)
            print_states();
        saving = look_at_save(saving != NULL ? saving : begin_save(step + 1), 0);
        fflush(stdout);
    }
    look_at_save(saving, 60000);
}

/* Where an option's argument goes: one of the three. */
static const struct place {
    int key;
    const char **text;
    int *number;
    bool *flag;
} places[] = {
    { 'l', &settings.layers, NULL, NULL },     { 'c', &settings.config, NULL, NULL },
    { 'd', &settings.dump, NULL, NULL },       { 'o', &settings.order, NULL, NULL },
    { 'i', &settings.inject, NULL, NULL },     { 'v', &settings.save, NULL, NULL },
    { 'm', NULL, &settings.micro, NULL },      { 'x', NULL, &settings.skip_layer, NULL },
    { 'r', NULL, &settings.skip_rank, NULL },  { 'M', NULL, &settings.more_rank, NULL },
    { 'A', NULL, &settings.states, NULL },     { '0', NULL, NULL, &settings.fill_rank_0 },
    { 'N', NULL, NULL, &settings.no_model },   { 'q', NULL, NULL, &settings.quiet },
    { 'S', NULL, NULL, &settings.sums },       { 'D', NULL, NULL, &settings.decay_split },
    { 'F', NULL, NULL, &settings.fill_stops },
};

static bool set_place(int key, const char *argument)
{
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct place *place = &places[i];
        if (place->key != key)
            continue;
        if (place->text != NULL)
            *place->text = argument;
        else if (place->number != NULL)
            *place->number = atoi(argument);
        else
            *place->flag = true;
        return true;
    }
    return false;
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    (void)state;
    if (set_place(key, argument))
        return 0;
    switch (key) {
    case 'n':
        settings.steps = strtoull(argument, NULL, 10);
        return 0;
    case 's':
        settings.seed = strtoull(argument, NULL, 10);
        return 0;
    case 'L':
        settings.lr = atof(argument);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        { "layers", 'l', "SPEC", 0, "name:3x5,7;name:1000", 0 },
        { "config", 'c', "FILE", 0, "DeepSpeed JSON; default $ZERO_CONFIG", 0 },
        { "dump", 'd', "FILE", 0, "write master, moments, params as floats (rank 0)", 0 },
        { "order", 'o', "back|cross|shift", 0, "order of layers", 0 },
        { "inject", 'i', "STEP:RANK:inf|nan", 0, "a non-finite gradient", 0 },
        { "save", 'v', "STEP:RANK:DIR", 0, "this rank's trainer saves after the step", 0 },
        { "steps", 'n', "N", 0, "until this many steps are committed", 0 },
        { "seed", 's', "N", 0, "of weights and gradients", 0 },
        { "micro", 'm', "N", 0, "micro-steps; default the config's accumulation", 0 },
        { "skip-layer", 'x', "L", 0, "never submit it", 0 },
        { "skip-rank", 'r', "R", 0, "... on this rank only", 0 },
        { "more-rank", 'M', "R", 0, "this rank takes one micro-step more", 0 },
        { "lr", 'L', "X", 0, "learning rate", 0 },
        { "fill-rank-0", '0', NULL, 0, "initial values from rank 0 only", 0 },
        { "fill-stops", 'F', NULL, 0, "stop (SIGSTOP) before filling, and before its end", 0 },
        { "no-model", 'N', NULL, 0, "attach to what is registered", 0 },
        { "quiet", 'q', NULL, 0, "no line a step", 0 },
        { "sums", 'S', NULL, 0, "a line a step with a sum of the parameters after it", 0 },
        { "states", 'A', "N", 0, "a line a step with a sum of all state after it, read N times",
          0 },
        { "decay-split", 'D', NULL, 0, "1-D tensors: no decay, half the lr", 0 },
        { 0 },
    };
    static const struct argp parser = { .options = options, .parser = parse_option };
    size_t bytes = 0;
    zero_status s;

    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    parse_layers(settings.layers);
    if (zero_failed(s = zero_attach(NULL, &client, &detail)))
        die("attach", s);
    const char *path = settings.config ? settings.config : getenv("ZERO_CONFIG");
    char *config = settings.no_model || path == NULL ? NULL : read_file(path, &bytes);
    struct zero_model_spec model = { layers, layer_count, config, bytes };
    if (zero_failed(s = zero_register(client, settings.no_model ? NULL : &model)))
        die("register", s);
    begin();
    train();
    if (settings.dump && zero_client_info(client)->rank == 0)
        dump(settings.dump);
    zero_detach(client);
    free(config);
    return 0;
}
