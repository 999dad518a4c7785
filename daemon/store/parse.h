/* SPDX-License-Identifier: MIT */
/* parse.h: a JSON text of any size as a stream of values; yajl parses. For what a tree in memory
 * (proto/json.h) is too small for: a million tensors.
 *
 * Owns    nothing that outlives the call.
 * Thread  any.
 * Fails   CORRUPT for what is not JSON, TOO_LARGE when it nests too deep or a key is too long, IO,
 *         NO_MEMORY, and what the taker fails with.
 * Uses    error, yajl.   Used by manifest, part, safetensors.
 */
#ifndef DAEMON_STORE_PARSE_H
#define DAEMON_STORE_PARSE_H

#include <stddef.h>

#include "daemon/store/sealed.h"

enum { STORE_MOST_DEPTH = 8, STORE_MOST_KEY = 511 };

enum store_value_type {
    STORE_OBJECT, /* opens; values follow whose depth is one more, then CLOSE at this depth */
    STORE_LIST,
    STORE_CLOSE,
    STORE_TEXT,
    STORE_NUMBER, /* as it was written */
    STORE_WORD,   /* null, true, false */
};

struct store_value {
    enum store_value_type type;
    unsigned depth;  /* containers around it */
    const char *key; /* in an object; "" in a list */
    const char *text;
    size_t bytes; /* of text, which does not end in NUL */
};

typedef zero_status store_taker(void *context, const struct store_value *value,
                                struct zero_detail *out_detail);

/* Some bytes of a file. */
struct store_text {
    const struct store_file *file;
    uint64_t offset, bytes;
};

zero_status store_parse(const struct store_text *text, store_taker *taker, void *context,
                        struct zero_detail *out_detail);

/* ---- what takers share ---- */

/* Is the value text, and this one? */
bool store_value_is(const struct store_value *value, const char *text);

/* A whole number from 0 on, without sign or exponent; CORRUPT naming the key otherwise. */
zero_status store_take_count(const struct store_value *value, uint64_t most, uint64_t *out,
                             struct zero_detail *out_detail);
zero_status store_take_real(const struct store_value *value, double *out,
                            struct zero_detail *out_detail);
/* A text without NUL that fits; it ends in NUL then. */
zero_status store_take_text(const struct store_value *value, char *out, size_t room,
                            struct zero_detail *out_detail);

#endif
