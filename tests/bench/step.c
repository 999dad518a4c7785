/* SPDX-License-Identifier: MIT */
/* step: what a trainer waits for zerod, without a model in the way.
 *
 * The trainer of each rank gathers and releases every layer as forward and backward would, writes
 * each gradient window once, submits, steps. Writing the window stands for backward and is not
 * counted; there is no other computation behind which anything could hide. Rank 0 prints one JSON
 * object: medians over the steps, latencies in ns over all calls.
 */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/zeroclient.h"

enum { LAYERS = 24, WARMUP = 2, MAX_CALLS = 1 << 20 };

static struct settings {
    uint64_t params, steps;
    bool times, first;
} settings = { 27000000, 8, false, false };

static zero_client *client;
static struct zero_detail detail;

/* Latencies of one kind of call. */
struct series {
    double *ns;
    size_t count;
};

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void must(zero_status s, const char *what)
{
    if (!zero_failed(s))
        return;
    fprintf(stderr, "%s: %s: %s\n", what, zero_code_name(s.code),
            client ? zero_error_text(client) : detail.text);
    exit(10);
}

static int compare(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double percentile(struct series *series, double share)
{
    if (series->count == 0)
        return NAN;
    qsort(series->ns, series->count, sizeof *series->ns, compare);
    return series->ns[(size_t)((double)(series->count - 1) * share)];
}

static void note(struct series *series, double ns)
{
    if (series->count < MAX_CALLS)
        series->ns[series->count++] = ns;
}

/* LAYERS layers of equal size, each a matrix and a vector. */
static void register_model(void)
{
    static char names[LAYERS][3][16];
    static uint64_t shapes[LAYERS][2][2];
    static struct zero_tensor_spec tensors[LAYERS][2];
    static struct zero_layer_spec layers[LAYERS];
    static char text[65536];
    uint64_t rows = settings.params / LAYERS / 1024;
    FILE *file = fopen(getenv("ZERO_CONFIG") ? getenv("ZERO_CONFIG") : "", "r");

    if (file == NULL) {
        fprintf(stderr, "ZERO_CONFIG does not name a config\n");
        exit(2);
    }
    size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    for (int l = 0; l < LAYERS; l++) {
        for (int t = 0; t < 3; t++)
            snprintf(names[l][t], sizeof names[l][t], "%c%d", "lwb"[t], l);
        shapes[l][0][0] = rows;
        shapes[l][0][1] = shapes[l][1][0] = 1024;
        tensors[l][0] = (struct zero_tensor_spec){ names[l][1], shapes[l][0], 2, 1, NAN };
        tensors[l][1] = (struct zero_tensor_spec){ names[l][2], shapes[l][1], 1, 1, NAN };
        layers[l] = (struct zero_layer_spec){ names[l][0], tensors[l], 2 };
    }
    struct zero_model_spec model = { layers, LAYERS, text, bytes };
    must(zero_register(client, &model), "register");
}

static void fill(void)
{
    uint64_t rows = settings.params / LAYERS / 1024, count = rows * 1024;
    float *values = malloc(count * sizeof *values);

    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)(i % 1009) * 1e-3f - 0.5f;
    for (uint32_t l = 0; l < LAYERS; l++) {
        const struct zero_span matrix = { l, 0, 0, count }, vector = { l, 1, 0, 1024 };
        must(zero_fill(client, &matrix, values), "fill");
        must(zero_fill(client, &vector, values), "fill");
    }
    must(zero_fill_end(client), "fill_end");
    free(values);
}

/* Writes a window as backward would: every element once, ordinary numbers. */
static void write_gradients(void *window, uint32_t layer)
{
    bool wide = zero_client_info(client)->grad_dtype == ZERO_FP32;

    for (uint32_t t = 0; t < 2; t++) {
        uint64_t offset, count;
        must(zero_tensor_place(client, layer, t, &offset, &count), "place");
        for (uint64_t i = 0; i < count; i++) {
            if (wide)
                ((float *)window)[offset + i] = (float)(i & 1023) * 1e-6f;
            else
                ((uint16_t *)window)[offset + i] = (uint16_t)(0x3800 + (i & 255));
        }
    }
}

/* One step; the time that was spent in zerod's calls, ns. */
static double one_step(struct series *gathers, struct series *submits)
{
    double waited = 0, start;
    const void *weights;
    void *window;

    for (uint32_t l = 0; l < LAYERS; l++) {
        start = now_ns();
        must(zero_gather(client, l, &weights), "gather");
        double ns = now_ns() - start;
        note(gathers, ns);
        must(zero_release(client, l), "release");
        waited += now_ns() - start;
    }
    for (uint32_t l = LAYERS; l-- > 0;) {
        start = now_ns();
        must(zero_gather(client, l, &weights), "gather");
        note(gathers, now_ns() - start);
        must(zero_window(client, l, &window), "window");
        waited += now_ns() - start;
        write_gradients(window, l);
        start = now_ns();
        must(zero_submit(client, l), "submit");
        note(submits, now_ns() - start);
        must(zero_release(client, l), "release");
        waited += now_ns() - start;
    }
    struct zero_step_result result;
    start = now_ns();
    must(zero_step(client, NULL, &result), "step");
    return waited + now_ns() - start;
}

/* For whoever started this process, and will kill it. */
static void say_first(void)
{
    const void *weights;

    must(zero_gather(client, 0, &weights), "gather");
    printf("first %.0f\n", now_ns());
    fflush(stdout);
    for (;;)
        pause();
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    (void)state;
    if (key == 'p')
        settings.params = strtoull(argument, NULL, 10);
    else if (key == 'n')
        settings.steps = strtoull(argument, NULL, 10);
    else if (key == 't')
        settings.times = true;
    else if (key == 'f')
        settings.first = true;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        { "params", 'p', "N", 0, "of the model", 0 },
        { "steps", 'n', "N", 0, "counted", 0 },
        { "times", 't', NULL, 0, "a line a step: its seconds", 0 },
        { "first", 'f', NULL, 0, "say when the first gather was done, then wait", 0 },
        { 0 }
    };
    static const struct argp parser = { .options = options, .parser = parse_option };
    struct series gathers = { calloc(MAX_CALLS, sizeof(double)), 0 };
    struct series submits = { calloc(MAX_CALLS, sizeof(double)), 0 };
    struct series waits = { calloc(MAX_CALLS, sizeof(double)), 0 };

    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    must(zero_attach(NULL, &client, &detail), "attach");
    register_model();
    if (!zero_client_info(client)->filled)
        fill();
    if (settings.first)
        say_first();
    for (uint64_t s = 0; s < settings.steps + WARMUP; s++) {
        double began = now_ns(), waited = one_step(&gathers, &submits);
        if (settings.times && zero_client_info(client)->rank == 0) {
            printf("step %" PRIu64 " %.6f\n", zero_client_info(client)->step,
                   (now_ns() - began) * 1e-9);
            fflush(stdout);
        }
        if (s + 1 == WARMUP)
            gathers.count = submits.count = 0;
        else if (s >= WARMUP)
            note(&waits, waited);
    }
    uint64_t rows = settings.params / LAYERS / 1024 + 1; /* of a layer, its vector included */
    double params = (double)(rows * 1024 * LAYERS);
    if (zero_client_info(client)->rank == 0)
        printf("{\"gather_p50\":%.0f,\"gather_p99\":%.0f,\"submit_p50\":%.0f,\"submit_p99\":%.0f,"
               "\"overhead\":%.4f,\"overhead_min\":%.4f}\n",
               percentile(&gathers, 0.5), percentile(&gathers, 0.99), percentile(&submits, 0.5),
               percentile(&submits, 0.99), percentile(&waits, 0.5) / params,
               percentile(&waits, 0) / params);
    zero_detach(client);
    free(gathers.ns);
    free(submits.ns);
    free(waits.ns);
    return 0;
}
