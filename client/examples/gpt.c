/* SPDX-License-Identifier: MIT */
/* gpt: trains a small GPT on a text, and shows how a trainer uses zerod.
 *
 * The daemons hold the model. This program attaches to the daemon of its rank and repeats: gather a
 * layer, compute with it, release it; on the way back also write its gradients into a window and
 * submit them; then step. It keeps nothing that a crash could lose: started again, it goes on from
 * the last committed step.
 *
 *     main -> train -> train_step -> forward, backward -> zero_step
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/examples/convert.h"
#include "client/examples/layers.h"
#include "client/examples/model.h"
#include "client/examples/options.h"
#include "client/examples/report.h"
#include "client/examples/state.h"
#include "client/examples/text.h"
#include "client/zeroclient.h"

/* Returns the status of a call that failed. */
#define TRY(call)                    \
    do {                             \
        zero_status tried_ = (call); \
        if (zero_failed(tried_))     \
            return tried_;           \
    } while (0)

enum { HELD_OUT = 1000000, HELD_OUT_SEQUENCES = 16 }; /* batches that no training comes to */

/* Committed with each step and given back to whoever attaches next. */
struct position {
    uint64_t batch; /* the next one */
};

struct trainer {
    struct options options;
    struct text text;
    struct layers *layers;
    zero_client *client;
    const struct zero_client_info *info; /* the client keeps it up to date */

    struct model *model;
    float *weights, *gradients; /* a layer in fp32, where its windows are not */
    struct batch batch;
    struct position position;
    bool stepped; /* there was something left to do */
    double loss;  /* of the last step, the mean over the ranks */
};

/* ---- one layer ------------------------------------------------------------------------------- */

/* Gathers a layer; w[t] are tensor t's weights in fp32, until the release. */
static zero_status gather(struct trainer *t, uint32_t layer, const float **w)
{
    const zero_dtype dtype = t->info->param_dtype;
    const void *window;

    TRY(zero_gather(t->client, layer, &window));
    for (uint32_t k = 0; k < t->layers->spec[layer].tensor_count; k++) {
        uint64_t offset, count;
        TRY(zero_tensor_place(t->client, layer, k, &offset, &count));
        w[k] = dtype == ZERO_FP32 ? (const float *)window + offset : t->weights + offset;
        if (dtype != ZERO_FP32)
            convert_to_float(t->weights + offset, (const uint16_t *)window + offset, dtype, count);
    }
    return zero_success();
}

static zero_status forward_layer(struct trainer *t, uint32_t layer)
{
    const float *w[MOST_TENSORS];

    TRY(gather(t, layer, w));
    model_forward(t->model, layer, w);
    return zero_release(t->client, layer);
}

/* Gradients of 16 bits are computed in fp32 and rounded into the window. */
static zero_status backward_layer(struct trainer *t, uint32_t layer)
{
    const zero_dtype dtype = t->info->grad_dtype;
    const float *w[MOST_TENSORS];
    float *g[MOST_TENSORS];
    uint64_t offset = 0, count = 0;
    void *window;

    TRY(gather(t, layer, w));
    TRY(zero_window(t->client, layer, &window));
    for (uint32_t k = 0; k < t->layers->spec[layer].tensor_count; k++) {
        TRY(zero_tensor_place(t->client, layer, k, &offset, &count));
        g[k] = (dtype == ZERO_FP32 ? (float *)window : t->gradients) + offset;
    }
    model_backward(t->model, layer, w, g);
    if (dtype != ZERO_FP32) /* up to the end of the last tensor */
        convert_from_float(window, t->gradients, dtype, offset + count);
    TRY(zero_submit(t->client, layer));
    return zero_release(t->client, layer);
}

/* ---- a step ---------------------------------------------------------------------------------- */

static zero_status forward(struct trainer *t, size_t sequences)
{
    model_input(t->model, t->batch.in, sequences);
    for (size_t k = 0; k < t->layers->count; k++) {
        if (k + 1 < t->layers->count)
            TRY(zero_prefetch(t->client, layers_forward(t->layers, k + 1)));
        TRY(forward_layer(t, layers_forward(t->layers, k)));
    }
    return zero_success();
}

static zero_status backward(struct trainer *t)
{
    for (size_t k = t->layers->count; k-- > 0;) {
        if (k > 0)
            TRY(zero_prefetch(t->client, layers_forward(t->layers, k - 1)));
        TRY(backward_layer(t, layers_forward(t->layers, k)));
    }
    return zero_success();
}

/* The group's batch is divided among the ranks, and a rank's part among its micro-steps. */
static zero_status train_step(struct trainer *t, struct zero_step_result *out)
{
    const size_t micro = t->info->micro_batch, micro_steps = t->info->accumulation;
    const size_t first = t->info->rank * micro_steps * micro;
    const struct position next = { .batch = t->position.batch + 1 };
    struct zero_scalar loss = { .name = "loss" };

    for (size_t k = 0; k < micro_steps; k++) {
        text_batch(&t->text, t->position.batch, first + k * micro, micro, &t->batch);
        TRY(forward(t, micro));
        loss.value += model_loss(t->model, t->batch.target, t->info->loss_scale);
        TRY(backward(t));
    }
    loss.value /= (double)micro_steps;
    const struct zero_step_args args = { .lr = NAN, /* the config's */
                                         .blob = &next,
                                         .blob_bytes = sizeof next,
                                         .scalars = &loss,
                                         .scalar_count = 1 };
    TRY(zero_step(t->client, &args, out));
    t->position = next;
    t->loss = out->scalars[0];
    t->stepped = true;
    return zero_success();
}

static zero_status train(struct trainer *t, struct report *report)
{
    while (t->info->step < t->options.steps) {
        const double loss_scale = t->info->loss_scale;
        struct zero_step_result result;
        zero_status s = train_step(t, &result);
        if (s.code == ZERO_STEP_ABORTED) /* some trainer died: nothing has changed, do it again */
            continue;
        TRY(s);
        if (t->info->rank == 0 && !report_step(report, &result, loss_scale))
            return (zero_status){ ZERO_IO, "write log" };
    }
    return zero_success();
}

/* ---- after training: rank 0 alone ------------------------------------------------------------ */

/* The sum of the losses of a batch's sequences. */
static zero_status evaluate_batch(struct trainer *t, uint64_t step, double *sum)
{
    const size_t most = t->info->micro_batch;

    for (size_t b = 0; b < HELD_OUT_SEQUENCES; b += most) {
        const size_t count = HELD_OUT_SEQUENCES - b < most ? HELD_OUT_SEQUENCES - b : most;
        text_batch(&t->text, step, b, count, &t->batch);
        TRY(forward(t, count));
        *sum += model_loss(t->model, t->batch.target, 1) * (double)count;
    }
    return zero_success();
}

static zero_status evaluate(struct trainer *t, double *out)
{
    double sum = 0;

    for (uint64_t i = 0; i < t->options.eval; i++)
        TRY(evaluate_batch(t, HELD_OUT + i, &sum));
    *out = sum / (double)(t->options.eval * HELD_OUT_SEQUENCES);
    return zero_success();
}

/* Draws a token, at a temperature of 0.8. */
static uint8_t draw(const float *logits, uint64_t *state)
{
    double weight[VOCABULARY], sum = 0;

    for (int i = 0; i < VOCABULARY; i++)
        sum += weight[i] = exp((double)logits[i] / 0.8);
    double left = (double)(splitmix64(state) >> 11) * 0x1p-53 * sum;
    for (uint8_t i = 0; i + 1 < VOCABULARY; i++)
        if ((left -= weight[i]) < 0)
            return i;
    return VOCABULARY - 1;
}

/* The model sees the last bytes that fit; what stands behind them does not matter to it. */
static zero_status sample(struct trainer *t)
{
    const size_t seq = t->options.shape.seq;
    uint64_t state = t->options.seed;
    size_t length = 1;
    uint8_t *in = t->batch.in;

    memset(in, '\n', seq);
    for (uint64_t i = 0; i < t->options.sample; i++) {
        TRY(forward(t, 1));
        const uint8_t token = draw(model_logits(t->model, length - 1), &state);
        putchar(token == '\n' || (token >= ' ' && token <= '~') ? token : '?');
        if (length == seq)
            memmove(in, in + 1, --length);
        in[length++] = token;
    }
    putchar('\n');
    return zero_success();
}

static zero_status finish(struct trainer *t)
{
    double held_out = NAN;
    char sha256[STATE_HEX];

    if (t->options.eval > 0)
        TRY(evaluate(t, &held_out));
    if (t->options.sample > 0)
        TRY(sample(t));
    TRY(state_hash(t->client, t->layers, sha256));
    printf("weights sha256=%s step=%" PRIu64, sha256, t->info->step);
    if (t->stepped)
        printf(" loss=%.12f", t->loss);
    if (t->options.eval > 0)
        printf(" heldout=%.12f", held_out);
    putchar('\n');
    return zero_success();
}

/* ---- before training ------------------------------------------------------------------------- */

/* What zerod keeps of this rank: how far it came, and with the first trainer the first weights. */
static zero_status take_up(struct trainer *t)
{
    size_t bytes = 0;

    while (!t->info->filled) {
        const zero_status s = state_fill(t->client, t->layers, t->options.seed);
        if (s.code != ZERO_STEP_ABORTED) /* a daemon died: fill again */
            TRY(s);
    }
    t->position.batch = t->info->step;
    if (t->info->blob_bytes == sizeof t->position)
        TRY(zero_blob(t->client, &t->position, sizeof t->position, &bytes));
    return zero_success();
}

static zero_status register_model(struct trainer *t)
{
    struct text config;

    if (!text_read(t->options.config, &config))
        return (zero_status){ ZERO_IO, "read config" };
    const struct zero_model_spec model = { .layers = t->layers->spec,
                                           .layer_count = t->layers->count,
                                           .config = (const char *)config.bytes,
                                           .config_bytes = config.count };
    zero_status s = zero_register(t->client, &model);
    text_free(&config);
    return s;
}

/* The micro-batch is known once the model is registered. */
static zero_status make_room(struct trainer *t)
{
    const size_t tokens = t->info->micro_batch * t->options.shape.seq;
    uint64_t most = 1, offset = 0, count = 0;

    for (uint32_t l = 0; l < t->layers->count; l++) {
        uint32_t last = (uint32_t)t->layers->spec[l].tensor_count - 1;
        TRY(zero_tensor_place(t->client, l, last, &offset, &count));
        most = offset + count > most ? offset + count : most;
    }
    t->model = model_create(&t->options.shape, t->info->micro_batch);
    t->weights = calloc(most, sizeof *t->weights);
    t->gradients = calloc(most, sizeof *t->gradients);
    t->batch = (struct batch){ t->options.shape.seq, calloc(tokens, 1), calloc(tokens, 1) };
    if (t->model == NULL || t->weights == NULL || t->gradients == NULL || t->batch.in == NULL ||
        t->batch.target == NULL)
        return (zero_status){ ZERO_NO_MEMORY, "make room for activations" };
    return zero_success();
}

static zero_status run(struct trainer *t)
{
    struct report report;

    TRY(register_model(t));
    TRY(make_room(t));
    TRY(take_up(t));
    if (!report_open(&report, t->info->rank == 0 ? t->options.log : NULL, t->info->step,
                     t->options.steps, t->info->train_batch * t->options.shape.seq))
        return (zero_status){ ZERO_IO, "open log" };
    zero_status s = train(t, &report);
    if (!report_close(&report) && !zero_failed(s))
        s = (zero_status){ ZERO_IO, "write log" };
    return zero_failed(s) || t->info->rank != 0 ? s : finish(t);
}

static void explain(const char *doing, zero_status s, const char *detail)
{
    fprintf(stderr, "gpt: %s: %s: %s\n", doing, zero_code_name(s.code),
            detail[0] != '\0' ? detail : zero_code_text(s.code));
}

int main(int argc, char **argv)
{
    struct trainer t = { .client = NULL };
    struct zero_detail detail = { "" };
    zero_status s = { ZERO_NO_MEMORY, "describe the model" };

    options_parse(&t.options, argc, argv);
    t.layers = layers_create(&t.options.shape);
    if (t.layers == NULL) {
        explain(s.doing, s, "");
    } else if (t.options.layers_json) {
        layers_print(t.layers, stdout);
        s = zero_success();
    } else if (text_read(t.options.text, &t.text) && text_to_tokens(&t.text, t.options.shape.seq)) {
        s = zero_attach(NULL, &t.client, &detail);
        if (zero_failed(s)) {
            explain(s.doing, s, detail.text);
        } else {
            t.info = zero_client_info(t.client);
            s = run(&t);
            if (zero_failed(s))
                explain(s.doing, s, zero_error_text(t.client));
        }
    }
    zero_detach(t.client);
    model_destroy(t.model);
    layers_destroy(t.layers);
    text_free(&t.text);
    free(t.weights);
    free(t.gradients);
    free(t.batch.in);
    free(t.batch.target);
    return zero_failed(s) || fflush(stdout) != 0;
}
