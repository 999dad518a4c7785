/* SPDX-License-Identifier: MIT */
/* The example's network has the golden losses of its first steps, the gradient that differences of
 * the loss show, and does not see bytes that come later.
 *
 * Golden losses: two float64 programs of ours, C and PyTorch's autograd, that agree in 12 digits;
 * fp32 stays within 2e-6 of them for ten steps. The update here is AdamW in double.
 */
#include <math.h>
#include <stdlib.h>

#include "client/examples/layers.h"
#include "client/examples/model.h"
#include "client/examples/text.h"
#include "tests/unit/check.h"

enum { MOST_LAYERS = 4, STEPS = 50 };

struct tensor {
    const char *name;
    size_t count;
    float *w, *g;
    double *p, *m, *v; /* the weights and their moments */
};

struct trained {
    struct layers *layers;
    struct model *model;
    struct tensor tensor[MOST_LAYERS * MOST_TENSORS];
    size_t tensors;
    const float *w[MOST_LAYERS][MOST_TENSORS];
    float *g[MOST_LAYERS][MOST_TENSORS];
};

static struct trained *create(struct gpt_shape shape, size_t sequences)
{
    struct trained *s = calloc(1, sizeof *s);
    uint64_t stream = 42;

    s->layers = layers_create(&shape);
    s->model = model_create(&shape, sequences);
    for (size_t l = 0; l < s->layers->count; l++)
        for (size_t t = 0; t < s->layers->spec[l].tensor_count; t++) {
            struct tensor *x = &s->tensor[s->tensors++];
            x->name = s->layers->spec[l].tensors[t].name;
            x->count = layers_elements(&s->layers->spec[l].tensors[t]);
            s->w[l][t] = x->w = calloc(x->count, sizeof *x->w);
            s->g[l][t] = x->g = calloc(x->count, sizeof *x->g);
            x->p = calloc(x->count, sizeof *x->p);
            x->m = calloc(x->count, sizeof *x->m);
            x->v = calloc(x->count, sizeof *x->v);
            layers_first_values(s->layers, l, t, &stream, x->w);
            for (size_t i = 0; i < x->count; i++)
                x->p[i] = (double)x->w[i];
        }
    return s;
}

static void destroy(struct trained *s)
{
    for (size_t k = 0; k < s->tensors; k++) {
        struct tensor *x = &s->tensor[k];
        free(x->w);
        free(x->g);
        free(x->p);
        free(x->m);
        free(x->v);
    }
    model_destroy(s->model);
    layers_destroy(s->layers);
    free(s);
}

static void forward(struct trained *s, const uint8_t *in, size_t sequences)
{
    model_input(s->model, in, sequences);
    for (size_t k = 0; k < s->layers->count; k++) {
        uint32_t l = layers_forward(s->layers, k);
        model_forward(s->model, l, s->w[l]);
    }
}

static double gradient(struct trained *s, const struct batch *batch, size_t sequences, double scale)
{
    forward(s, batch->in, sequences);
    double loss = model_loss(s->model, batch->target, scale);
    for (size_t k = s->layers->count; k-- > 0;) {
        uint32_t l = layers_forward(s->layers, k);
        model_backward(s->model, l, s->w[l], s->g[l]);
    }
    return loss;
}

static double norm(const struct tensor *x)
{
    double sum = 0;

    for (size_t i = 0; i < x->count; i++)
        sum += (double)x->g[i] * (double)x->g[i];
    return sqrt(sum);
}

static void adamw(struct tensor *x, int step)
{
    const double lr = 3e-3, b1 = .9, b2 = .999, c1 = 1 - pow(b1, step), c2 = 1 - pow(b2, step);

    for (size_t i = 0; i < x->count; i++) {
        const double g = (double)x->g[i];
        x->m[i] += (1 - b1) * (g - x->m[i]);
        x->v[i] = b2 * x->v[i] + (1 - b2) * g * g;
        x->p[i] = x->p[i] * (1 - lr * .01) - lr / c1 * x->m[i] / (sqrt(x->v[i] / c2) + 1e-8);
        x->w[i] = (float)x->p[i];
    }
}

static void test_golden(void)
{
    static const double want[] = { 4.868776661716, 4.546309118918, 4.335033038149, 4.178017961853,
                                   4.023259071741, 3.852949100191, 3.701857645326, 3.554303617332,
                                   3.472085104808, 3.422122583558 };
    struct trained *s = create((struct gpt_shape){ 64, 64, 2, 4 }, 16);
    struct batch batch = { 64, calloc(16, 64), calloc(16, 64) };
    struct text text;
    double worst = 0;

    if (!text_read(ZERO_TEST_DATA "/devils-dictionary.txt", &text))
        exit(2);
    CHECK(text_to_tokens(&text, 64));
    for (int step = 0; step < STEPS; step++) {
        text_batch(&text, (uint64_t)step, 0, 16, &batch);
        double loss = gradient(s, &batch, 16, 1);
        double squares = 0;
        for (size_t k = 0; k < s->tensors; k++)
            squares += pow(norm(&s->tensor[k]), 2);
        if (step == 0)
            CHECK(fabs(sqrt(squares) - 2.645575176328) < 2e-6);
        if (step < 10)
            worst = fmax(worst, fabs(loss - want[step]));
        if (step == 49)
            CHECK(fabs(loss - 2.802669) < 1.5e-5);
        for (size_t k = 0; k < s->tensors; k++)
            adamw(&s->tensor[k], step + 1);
    }
    printf("10 golden steps: at most %.2e away\n", worst);
    CHECK(worst < 2e-6);
    text_free(&text);
    free(batch.in);
    free(batch.target);
    destroy(s);
}

/* A model of odd sizes, with weights large enough that nothing is nearly linear. */
static struct trained *odd_model(struct batch *batch)
{
    struct trained *s = create((struct gpt_shape){ 7, 12, 2, 3 }, 3);
    uint64_t stream = 7;

    *batch = (struct batch){ 7, calloc(3, 7), calloc(3, 7) };
    for (size_t i = 0; i < 21; i++) {
        batch->in[i] = (uint8_t)(splitmix64(&stream) % VOCABULARY);
        batch->target[i] = (uint8_t)(splitmix64(&stream) % VOCABULARY);
    }
    for (size_t k = 0; k < s->tensors; k++)
        for (size_t i = 0; i < s->tensor[k].count; i++)
            s->tensor[k].w[i] += (float)((double)(splitmix64(&stream) >> 40) * 0x1p-23 - 1) * 0.5f;
    return s;
}

static void free_odd(struct trained *s, struct batch *batch)
{
    free(batch->in);
    free(batch->target);
    destroy(s);
}

/* The loss after a move along way, over the loss after a move back, as a slope. */
static double slope(struct trained *s, struct tensor *x, const float *way,
                    const struct batch *batch)
{
    const float reach = 2e-3f;
    float *was = malloc(x->count * sizeof *was);
    double loss[2];

    memcpy(was, x->w, x->count * sizeof *was);
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < x->count; i++)
            x->w[i] = was[i] + way[i] * (side == 0 ? reach : -reach);
        forward(s, batch->in, 3);
        loss[side] = model_loss(s->model, batch->target, 1);
    }
    memcpy(x->w, was, x->count * sizeof *was);
    free(was);
    return (loss[0] - loss[1]) / (2 * (double)reach);
}

/* Along a random direction in each tensor, the loss changes as the gradient says. */
static void test_differences(void)
{
    const double scale = 4;
    struct batch batch;
    struct trained *s = odd_model(&batch);
    uint64_t stream = 11;

    gradient(s, &batch, 3, scale);
    for (size_t k = 0; k < s->tensors; k++) {
        struct tensor *x = &s->tensor[k];
        float *way = calloc(x->count, sizeof *way);
        double expect = 0;
        for (size_t i = 0; i < x->count; i++) {
            way[i] = (splitmix64(&stream) & 1) != 0 ? 1 : -1;
            expect += (double)(x->g[i] * way[i]) / scale;
        }
        const double found = slope(s, x, way, &batch);
        if (!(fabs(found - expect) < 1e-3 + 5e-3 * norm(x) / scale)) {
            fprintf(stderr, "%s: differences %g, gradient %g\n", x->name, found, expect);
            check_failures++;
        }
        free(way);
    }
    free_odd(s, &batch);
}

static bool same(const float *a, const float *b)
{
    for (size_t i = 0; i < VOCABULARY; i++)
        if (a[i] < b[i] || a[i] > b[i])
            return false;
    return true;
}

static void test_causal(void)
{
    struct batch batch;
    struct trained *s = odd_model(&batch);
    float before[VOCABULARY];

    forward(s, batch.in, 1);
    memcpy(before, model_logits(s->model, 3), sizeof before);
    for (size_t i = 4; i < 7; i++)
        batch.in[i] ^= 1;
    forward(s, batch.in, 1);
    CHECK(same(before, model_logits(s->model, 3)));
    batch.in[2] ^= 1;
    forward(s, batch.in, 1);
    CHECK(!same(before, model_logits(s->model, 3)));
    free_odd(s, &batch);
}

int main(void)
{
    test_golden();
    test_differences();
    test_causal();
    return check_done();
}
