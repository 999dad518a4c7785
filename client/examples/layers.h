/* SPDX-License-Identifier: MIT */
/* layers.h: the tensors of the model, in order: as zerod is told of them, and their first values.
 *
 * What is gathered together is a layer: the embeddings, the head with the norm before it, and each
 * block. The head stands second; forward goes embeddings, blocks, head: layers_forward().
 *
 * Owns    struct layers owns the texts and shapes that its specs point to.
 * Thread  any: constant once made.
 * Fails   layers_create returns NULL when there is no memory.
 * Uses    proto/model.   Used by gpt, model, state.
 */
#ifndef EXAMPLES_LAYERS_H
#define EXAMPLES_LAYERS_H

#include <stdint.h>
#include <stdio.h>

#include "proto/model.h"

enum { VOCABULARY = 128 }; /* one token a byte of ASCII */

struct gpt_shape {
    size_t seq, width, layers, heads;
};

/* Layers, and the tensors in each. */
enum { EMBED, HEAD, BLOCK0 };
enum { WTE, WPE };
enum { W_HEAD, LNF_G, LNF_B };
enum { LN1_G, LN1_B, W_QKV, B_QKV, W_O, B_O, LN2_G, LN2_B, W_1, B_1, W_2, B_2, MOST_TENSORS };

struct layers {
    struct zero_layer_spec *spec;
    size_t count;
    struct layer *owned;
};

struct layers *layers_create(const struct gpt_shape *shape);
void layers_destroy(struct layers *layers);

/* The layer that is k-th in forward. */
static inline uint32_t layers_forward(const struct layers *layers, size_t k)
{
    if (k == 0)
        return EMBED;
    return k + 1 == layers->count ? HEAD : BLOCK0 + (uint32_t)k - 1;
}

uint64_t layers_elements(const struct zero_tensor_spec *tensor);

/* The next number of the stream whose state this is. */
uint64_t splitmix64(uint64_t *state);

/* First values: matrices are uniform with standard deviation 0.02, drawn from one stream in model
 * order; gains are 1 and biases 0. */
void layers_first_values(const struct layers *layers, size_t layer, size_t tensor, uint64_t *state,
                         float *out);

/* JSON for `zeroctl plan --layers`. */
void layers_print(const struct layers *layers, FILE *to);

#endif
