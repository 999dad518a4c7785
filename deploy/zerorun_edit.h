/* SPDX-License-Identifier: MIT */
/* zerorun_edit.h: one key of a JSON text set in place: all other bytes stay, and every line keeps
 * its number, so that a message about the result is right about the original.
 *
 * Owns    nothing; what is returned is the caller's to free.
 * Fails   NULL, silently: the place says why.
 * Uses    proto/json.h.   Used by overrides.
 */
#ifndef DEPLOY_ZERORUN_EDIT_H
#define DEPLOY_ZERORUN_EDIT_H

#include <stdbool.h>
#include <stddef.h>

struct edit_place {
    unsigned line;  /* where the key's value now begins */
    bool made;      /* the key was not there */
    bool blocked;   /* a value on the way to it is not an object; */
    size_t blocker; /* that many bytes of the path lead to it */
};

/* Sets the key at `path` ("a.b.c", ended by '=' or NUL) to `value`, JSON on one line. Objects on
 * the way are made if they are missing. `text` is valid JSON. */
char *edit_set(const char *text, const char *path, const char *value, struct edit_place *out);
/* `bytes` of text as a JSON string. */
char *edit_quote(const char *text, size_t bytes);

#endif
