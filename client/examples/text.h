/* SPDX-License-Identifier: MIT */
/* text.h: a text as tokens, and batches drawn from it.
 *
 * Where a sequence begins depends on the step and its number alone: every rank finds its own part,
 * and a trainer that comes back continues with the number of the step.
 *
 * Owns    struct text owns its bytes; struct batch is the caller's.
 * Thread  any: constant once read.
 * Fails   false, with a sentence on stderr.
 * Uses    layers.   Used by gpt, options.
 */
#ifndef EXAMPLES_TEXT_H
#define EXAMPLES_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct text {
    uint8_t *bytes;
    size_t count;
};

/* A whole file. */
bool text_read(const char *path, struct text *out);
void text_free(struct text *text);

/* Bytes that are no ASCII become '?': each is a token below VOCABULARY. False if the text is too
 * short for sequences of seq. */
bool text_to_tokens(struct text *text, size_t seq);

/* in[sequences][seq], and the same moved on by one. */
struct batch {
    size_t seq;
    uint8_t *in, *target;
};

/* Sequences first to first + count - 1 of a step. */
void text_batch(const struct text *text, uint64_t step, size_t first, size_t count,
                const struct batch *out);

#endif
