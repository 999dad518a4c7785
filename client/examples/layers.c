/* SPDX-License-Identifier: MIT */
#include "client/examples/layers.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum size { NONE, VOCAB, SEQ, WIDTH, WIDTH_3, WIDTH_4 };

struct row {
    const char *name;
    enum size rows, cols; /* rows NONE: a vector */
    enum first { RANDOM, ONE, ZERO } first;
};

static const struct row embed_rows[] = {
    [WTE] = { "wte", VOCAB, WIDTH, RANDOM },
    [WPE] = { "wpe", SEQ, WIDTH, RANDOM },
};
static const struct row head_rows[] = {
    [W_HEAD] = { "head", VOCAB, WIDTH, RANDOM },
    [LNF_G] = { "lnf.g", NONE, WIDTH, ONE },
    [LNF_B] = { "lnf.b", NONE, WIDTH, ZERO },
};
static const struct row block_rows[] = {
    [LN1_G] = { "ln1.g", NONE, WIDTH, ONE },       [LN1_B] = { "ln1.b", NONE, WIDTH, ZERO },
    [W_QKV] = { "qkv.w", WIDTH, WIDTH_3, RANDOM }, [B_QKV] = { "qkv.b", NONE, WIDTH_3, ZERO },
    [W_O] = { "out.w", WIDTH, WIDTH, RANDOM },     [B_O] = { "out.b", NONE, WIDTH, ZERO },
    [LN2_G] = { "ln2.g", NONE, WIDTH, ONE },       [LN2_B] = { "ln2.b", NONE, WIDTH, ZERO },
    [W_1] = { "up.w", WIDTH, WIDTH_4, RANDOM },    [B_1] = { "up.b", NONE, WIDTH_4, ZERO },
    [W_2] = { "down.w", WIDTH_4, WIDTH, RANDOM },  [B_2] = { "down.b", NONE, WIDTH, ZERO },
};

/* What a spec points to. */
struct layer {
    const struct row *rows;
    char name[32], names[MOST_TENSORS][48];
    uint64_t shapes[MOST_TENSORS][2];
    struct zero_tensor_spec tensors[MOST_TENSORS];
};

static uint64_t size_of(const struct gpt_shape *shape, enum size size)
{
    switch (size) {
    case NONE:
        return 1;
    case VOCAB:
        return VOCABULARY;
    case SEQ:
        return shape->seq;
    case WIDTH:
        return shape->width;
    case WIDTH_3:
        return 3 * shape->width;
    case WIDTH_4:
        return 4 * shape->width;
    }
    return 0;
}

/* Tensor names are unique in the model: a block's begin with its own. */
static void describe(struct layer *layer, const struct gpt_shape *shape, const struct row *rows,
                     size_t count, const char *prefix)
{
    layer->rows = rows;
    for (size_t t = 0; t < count; t++) {
        const bool vector = rows[t].rows == NONE;
        snprintf(layer->names[t], sizeof layer->names[t], "%s%s", prefix, rows[t].name);
        layer->shapes[t][0] = size_of(shape, rows[t].rows);
        layer->shapes[t][1] = size_of(shape, rows[t].cols);
        layer->tensors[t] = (struct zero_tensor_spec){ .name = layer->names[t],
                                                       .shape = &layer->shapes[t][vector],
                                                       .dims = vector ? 1 : 2,
                                                       .lr_scale = 1,
                                                       .weight_decay = NAN };
    }
}

struct layers *layers_create(const struct gpt_shape *shape)
{
    struct layers *layers = calloc(1, sizeof *layers);

    if (layers == NULL)
        return NULL;
    layers->count = BLOCK0 + shape->layers;
    layers->spec = calloc(layers->count, sizeof *layers->spec);
    layers->owned = calloc(layers->count, sizeof *layers->owned);
    if (layers->spec == NULL || layers->owned == NULL) {
        layers_destroy(layers);
        return NULL;
    }
    for (size_t l = 0; l < layers->count; l++) {
        struct layer *layer = &layers->owned[l];
        size_t count = l == EMBED ? WPE + 1 : l == HEAD ? LNF_B + 1 : MOST_TENSORS;
        char prefix[32] = "";
        snprintf(layer->name, sizeof layer->name, "%s", l == EMBED ? "embed" : "head");
        if (l >= BLOCK0) {
            snprintf(layer->name, sizeof layer->name, "block%zu", l - BLOCK0);
            snprintf(prefix, sizeof prefix, "%zu.", l - BLOCK0);
        }
        describe(layer, shape,
                 l == EMBED  ? embed_rows
                 : l == HEAD ? head_rows
                             : block_rows,
                 count, prefix);
        layers->spec[l] = (struct zero_layer_spec){ layer->name, layer->tensors, count };
    }
    return layers;
}

void layers_destroy(struct layers *layers)
{
    if (layers == NULL)
        return;
    free(layers->spec);
    free(layers->owned);
    free(layers);
}

uint64_t layers_elements(const struct zero_tensor_spec *tensor)
{
    return tensor->dims == 1 ? tensor->shape[0] : tensor->shape[0] * tensor->shape[1];
}

uint64_t splitmix64(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15);

    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
}

void layers_first_values(const struct layers *layers, size_t layer, size_t tensor, uint64_t *state,
                         float *out)
{
    const enum first first = layers->owned[layer].rows[tensor].first;
    const uint64_t count = layers_elements(&layers->spec[layer].tensors[tensor]);
    const double bound = 0.02 * sqrt(3.0);

    for (uint64_t i = 0; i < count; i++) {
        if (first == RANDOM)
            out[i] = (float)(((double)(splitmix64(state) >> 40) * 0x1p-24 * 2 - 1) * bound);
        else
            out[i] = first == ONE ? 1 : 0;
    }
}

void layers_print(const struct layers *layers, FILE *to)
{
    for (size_t l = 0; l < layers->count; l++) {
        const struct zero_layer_spec *layer = &layers->spec[l];
        fprintf(to, "%s{\"name\":\"%s\",\"tensors\":[", l == 0 ? "[" : ",\n ", layer->name);
        for (size_t t = 0; t < layer->tensor_count; t++) {
            const struct zero_tensor_spec *tensor = &layer->tensors[t];
            fprintf(to, "%s{\"name\":\"%s\",\"shape\":[%" PRIu64, t == 0 ? "" : ",", tensor->name,
                    tensor->shape[0]);
            if (tensor->dims == 2)
                fprintf(to, ",%" PRIu64, tensor->shape[1]);
            fprintf(to, "]}");
        }
        fprintf(to, "]}");
    }
    fprintf(to, "]\n");
}
