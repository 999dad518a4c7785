/* SPDX-License-Identifier: MIT */
/* ops.h: the pieces of the network, forward and backward; every matrix product is BLAS's.
 *
 * d_x is the gradient of the loss with respect to x. Parameters come in pairs, as they stand in a
 * layer: w[0] the matrix (or gains), w[1] the biases; g[0] and g[1] are their gradients, which are
 * written, not added to.
 *
 * Owns    nothing.
 * Thread  any: plain arithmetic, in the same order each time.
 * Fails   never.
 * Uses    cblas.   Used by model.
 */
#ifndef EXAMPLES_OPS_H
#define EXAMPLES_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A matrix that is read: rows of cols floats, stride floats apart; turned: its transpose is meant.
 */
struct view {
    const float *at;
    size_t rows, cols, stride;
    bool turned;
};

static inline struct view view(const float *at, size_t rows, size_t cols)
{
    return (struct view){ .at = at, .rows = rows, .cols = cols, .stride = cols };
}

static inline struct view turned(struct view v)
{
    v.turned = !v.turned;
    return v;
}

/* out = scale * a b, rows of out stride floats apart. */
void multiply(float *out, size_t stride, float scale, struct view a, struct view b);

void add(float *to, const float *from, size_t count);

/* out[in.rows][outs] = in w[0] + w[1] */
void linear_forward(float *out, struct view in, const float *const w[2], size_t outs);
/* d_in and g, from what came in, d_out and the matrix. */
void linear_backward(float *d_in, float *const g[2], struct view in, struct view d_out,
                     const float *w);

/* Layer normalisation, eps 1e-5. hat: the normalised input; rstd: 1 / standard deviation of a row.
 */
struct norm {
    float *out, *hat, *rstd;
};
void norm_forward(const struct norm *norm, struct view in, const float *const w[2]);
/* Adds to d_in. */
void norm_backward(float *d_in, float *const g[2], const struct norm *norm, struct view d_out,
                   const float *gain);

/* In place: x becomes gelu(x), in its tanh form; slope gets the derivative. */
void gelu_forward(float *x, float *slope, size_t count);

/* Causal attention of several heads. qkv: [sequence][position][q k v][head][size];
 * weight: [sequence][head][query][key]; mix: [sequence][position][head][size]. */
struct attention {
    size_t seq, heads, size;
    float *qkv, *weight, *mix;
};
void attention_forward(const struct attention *a, size_t sequences);
/* d_weight: room for one head's weights. */
void attention_backward(float *d_qkv, const float *d_mix, const struct attention *a,
                        size_t sequences, float *d_weight);

/* The mean cross-entropy of rows of logits; these become the gradient of scale times that mean. */
double cross_entropy(float *logits, const uint8_t *target, size_t rows, size_t cols, double scale);

#endif
