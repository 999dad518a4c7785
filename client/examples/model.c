/* SPDX-License-Identifier: MIT */
#include "client/examples/model.h"

#include <stdlib.h>
#include <string.h>

#include "client/examples/ops.h"

struct block {
    float *in, *middle;   /* the residual stream before attention, and before the part after it */
    float *up, *up_slope; /* inside that part: activations, and gelu's derivative */
    struct norm norm1, norm2;
    struct attention attention;
};

struct model {
    struct gpt_shape shape;
    float *memory; /* all that follows */
    struct block *block;
    float *stream; /* after the last block */
    struct norm norm;
    float *logits;
    float *d_stream, *d_branch, *d_inner, *d_weight; /* gradients on their way back */

    const uint8_t *tokens;
    size_t sequences, rows; /* rows: positions of all sequences */
};

/* Takes the next count floats of base, which is NULL while sizes are being added up. */
static float *take(float *base, size_t *used, size_t count)
{
    float *p = base == NULL ? NULL : base + *used;

    *used += (count + 15) / 16 * 16; /* a cache line */
    return p;
}

static struct norm take_norm(float *base, size_t *used, size_t rows, size_t width)
{
    return (struct norm){ .out = take(base, used, rows * width),
                          .hat = take(base, used, rows * width),
                          .rstd = take(base, used, rows) };
}

static size_t lay_out(struct model *m, size_t sequences)
{
    const size_t seq = m->shape.seq, c = m->shape.width, heads = m->shape.heads;
    const size_t n = sequences * seq;
    float *base = m->memory;
    size_t used = 0;

    for (size_t l = 0; l < m->shape.layers; l++) {
        struct block *b = &m->block[l];
        b->in = take(base, &used, n * c);
        b->norm1 = take_norm(base, &used, n, c);
        b->attention = (struct attention){ .seq = seq,
                                           .heads = heads,
                                           .size = c / heads,
                                           .qkv = take(base, &used, n * 3 * c),
                                           .weight = take(base, &used, n * heads * seq),
                                           .mix = take(base, &used, n * c) };
        b->middle = take(base, &used, n * c);
        b->norm2 = take_norm(base, &used, n, c);
        b->up = take(base, &used, n * 4 * c);
        b->up_slope = take(base, &used, n * 4 * c);
    }
    m->stream = take(base, &used, n * c);
    m->norm = take_norm(base, &used, n, c);
    m->logits = take(base, &used, n * VOCABULARY);
    m->d_stream = take(base, &used, n * c);
    m->d_branch = take(base, &used, n * c);
    m->d_inner = take(base, &used, n * 4 * c);
    m->d_weight = take(base, &used, seq * seq);
    return used;
}

struct model *model_create(const struct gpt_shape *shape, size_t most_sequences)
{
    struct model *m = calloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    m->shape = *shape;
    m->block = calloc(shape->layers, sizeof *m->block);
    if (m->block == NULL)
        goto out;
    m->memory = aligned_alloc(64, lay_out(m, most_sequences) * sizeof *m->memory);
    if (m->memory == NULL)
        goto out;
    lay_out(m, most_sequences);
    return m;
out:
    model_destroy(m);
    return NULL;
}

void model_destroy(struct model *model)
{
    if (model == NULL)
        return;
    free(model->block);
    free(model->memory);
    free(model);
}

void model_input(struct model *m, const uint8_t *tokens, size_t sequences)
{
    m->tokens = tokens;
    m->sequences = sequences;
    m->rows = sequences * m->shape.seq;
}

/* The residual stream that comes in at block i, or leaves the last one. */
static float *stream(struct model *m, size_t i)
{
    return i < m->shape.layers ? m->block[i].in : m->stream;
}

/* ---- embeddings ------------------------------------------------------------------------------ */

static void embed_forward(struct model *m, const float *const *w)
{
    const size_t c = m->shape.width;

    for (size_t i = 0; i < m->rows; i++) {
        float *x = stream(m, 0) + i * c;
        memcpy(x, w[WTE] + m->tokens[i] * c, c * sizeof *x);
        add(x, w[WPE] + i % m->shape.seq * c, c);
    }
}

static void embed_backward(struct model *m, float *const *g)
{
    const size_t c = m->shape.width;

    memset(g[WTE], 0, VOCABULARY * c * sizeof(float));
    memset(g[WPE], 0, m->shape.seq * c * sizeof(float));
    for (size_t i = 0; i < m->rows; i++) {
        add(g[WTE] + m->tokens[i] * c, m->d_stream + i * c, c);
        add(g[WPE] + i % m->shape.seq * c, m->d_stream + i * c, c);
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static void block_forward(struct model *m, size_t i, const float *const *w)
{
    const size_t n = m->rows, c = m->shape.width;
    const struct block *b = &m->block[i];
    float *out = stream(m, i + 1);

    norm_forward(&b->norm1, view(b->in, n, c), w + LN1_G);
    linear_forward(b->attention.qkv, view(b->norm1.out, n, c), w + W_QKV, 3 * c);
    attention_forward(&b->attention, m->sequences);
    linear_forward(b->middle, view(b->attention.mix, n, c), w + W_O, c);
    add(b->middle, b->in, n * c);

    norm_forward(&b->norm2, view(b->middle, n, c), w + LN2_G);
    linear_forward(b->up, view(b->norm2.out, n, c), w + W_1, 4 * c);
    gelu_forward(b->up, b->up_slope, n * 4 * c);
    linear_forward(out, view(b->up, n, 4 * c), w + W_2, c);
    add(out, b->middle, n * c);
}

/* d_stream comes in as the gradient of the block's output and leaves as that of its input. */
static void block_backward(struct model *m, size_t i, const float *const *w, float *const *g)
{
    const size_t n = m->rows, c = m->shape.width;
    const struct block *b = &m->block[i];
    const struct view d_stream = view(m->d_stream, n, c), d_branch = view(m->d_branch, n, c);

    linear_backward(m->d_inner, g + W_2, view(b->up, n, 4 * c), d_stream, w[W_2]);
    for (size_t k = 0; k < n * 4 * c; k++)
        m->d_inner[k] *= b->up_slope[k];
    linear_backward(m->d_branch, g + W_1, view(b->norm2.out, n, c), view(m->d_inner, n, 4 * c),
                    w[W_1]);
    norm_backward(m->d_stream, g + LN2_G, &b->norm2, d_branch, w[LN2_G]);

    linear_backward(m->d_branch, g + W_O, view(b->attention.mix, n, c), d_stream, w[W_O]);
    attention_backward(m->d_inner, m->d_branch, &b->attention, m->sequences, m->d_weight);
    linear_backward(m->d_branch, g + W_QKV, view(b->norm1.out, n, c), view(m->d_inner, n, 3 * c),
                    w[W_QKV]);
    norm_backward(m->d_stream, g + LN1_G, &b->norm1, d_branch, w[LN1_G]);
}

/* ---- head ------------------------------------------------------------------------------------ */

/* A row of the head belongs to a token: logits = norm head^T. */
static void head_forward(struct model *m, const float *const *w)
{
    const size_t n = m->rows, c = m->shape.width;

    norm_forward(&m->norm, view(m->stream, n, c), w + LNF_G);
    multiply(m->logits, VOCABULARY, 1, view(m->norm.out, n, c),
             turned(view(w[W_HEAD], VOCABULARY, c)));
}

static void head_backward(struct model *m, const float *const *w, float *const *g)
{
    const size_t n = m->rows, c = m->shape.width;
    const struct view d_logits = view(m->logits, n, VOCABULARY);

    multiply(g[W_HEAD], c, 1, turned(d_logits), view(m->norm.out, n, c));
    multiply(m->d_branch, c, 1, d_logits, view(w[W_HEAD], VOCABULARY, c));
    memset(m->d_stream, 0, n * c * sizeof *m->d_stream);
    norm_backward(m->d_stream, g + LNF_G, &m->norm, view(m->d_branch, n, c), w[LNF_G]);
}

/* ---- all ------------------------------------------------------------------------------------- */

void model_forward(struct model *m, uint32_t layer, const float *const *w)
{
    if (layer == EMBED)
        embed_forward(m, w);
    else if (layer == HEAD)
        head_forward(m, w);
    else
        block_forward(m, layer - BLOCK0, w);
}

void model_backward(struct model *m, uint32_t layer, const float *const *w, float *const *g)
{
    if (layer == EMBED)
        embed_backward(m, g);
    else if (layer == HEAD)
        head_backward(m, w, g);
    else
        block_backward(m, layer - BLOCK0, w, g);
}

double model_loss(struct model *m, const uint8_t *target, double scale)
{
    return cross_entropy(m->logits, target, m->rows, VOCABULARY, scale);
}

const float *model_logits(const struct model *m, size_t position)
{
    return m->logits + position * VOCABULARY;
}
