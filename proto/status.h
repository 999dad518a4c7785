/* SPDX-License-Identifier: MIT */
/* status.h: the one type every fallible call returns, and the texts of its codes.
 *
 * Owns    nothing; all texts are static.
 * Thread  any.
 * Fails   never.
 * Uses    codes.def.   Used by everything, and by programs that use libzeroclient.
 */
#ifndef ZERO_STATUS_H
#define ZERO_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_API __attribute__((visibility("default")))

typedef enum zero_code {
    ZERO_OK = 0,
#define CODE(name, number, scope, text) ZERO_##name = (number),
#include "proto/codes.def"
#undef CODE
} zero_code;

/* What must be made anew before a retry can help. */
enum zero_scope {
    ZERO_SCOPE_NONE,
    ZERO_SCOPE_REQUEST,
    ZERO_SCOPE_SESSION,
    ZERO_SCOPE_GROUP,
    ZERO_SCOPE_NODE
};

typedef struct zero_status {
    zero_code code;
    const char *doing; /* what was being done: a string literal */
} zero_status;

/* Room for the sentence that says what, where and what to do; always ends in a NUL. */
enum { ZERO_DETAIL_BYTES = 512 };
struct zero_detail {
    char text[ZERO_DETAIL_BYTES];
};

static inline zero_status zero_success(void)
{
    zero_status s = { ZERO_OK, "" };
    return s;
}

static inline bool zero_failed(zero_status s)
{
    return s.code != ZERO_OK;
}

/* "STEP_ABORTED", or "UNKNOWN" for a number that is not in codes.def. */
ZERO_API const char *zero_code_name(zero_code code);
/* The sentence of codes.def. */
ZERO_API const char *zero_code_text(zero_code code);
ZERO_API enum zero_scope zero_code_scope(zero_code code);
/* True for numbers in codes.def (and 0): the check for a code that came from outside. */
ZERO_API bool zero_code_known(uint32_t number);

#ifdef __cplusplus
}
#endif

#endif
