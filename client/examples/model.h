/* SPDX-License-Identifier: MIT */
/* model.h: a small GPT in fp32, run layer by layer so that weights need be there only meanwhile.
 *
 * Pre-norm blocks, learned positions, a head of its own, tanh-GELU, biases everywhere but the head.
 *
 *     model_input;  model_forward(embed), (block 0) ... (head);
 *     model_loss;   model_backward(head) ... (block 0), (embed)
 *
 * Owns    the activations that backward needs. Tokens, weights and gradients are the caller's.
 * Thread  one at a time.
 * Fails   model_create returns NULL when there is no memory.
 * Uses    layers, ops.   Used by gpt.
 */
#ifndef EXAMPLES_MODEL_H
#define EXAMPLES_MODEL_H

#include "client/examples/layers.h"

struct model;

struct model *model_create(const struct gpt_shape *shape, size_t most_sequences);
void model_destroy(struct model *model);

/* tokens[sequences][seq], below VOCABULARY; borrowed until the last call about them. */
void model_input(struct model *model, const uint8_t *tokens, size_t sequences);

/* w[t] are tensor t's weights, g[t] where its gradients go (written, not added to). */
void model_forward(struct model *model, uint32_t layer, const float *const *w);
void model_backward(struct model *model, uint32_t layer, const float *const *w, float *const *g);

/* The mean cross-entropy of the sequences; backward will be of scale times that mean. */
double model_loss(struct model *model, const uint8_t *target, double scale);

/* VOCABULARY logits of a position of sequence 0; not after model_loss. */
const float *model_logits(const struct model *model, size_t position);

#endif
