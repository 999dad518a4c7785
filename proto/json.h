/* SPDX-License-Identifier: MIT */
/* json.h: a JSON text as a small tree in which every key and value knows its line; yajl parses.
 *
 * Strict: no comments, no trailing commas, UTF-8, no key twice, no control characters (escaped or
 * not), no number that a double cannot hold, nothing after the end.
 *
 * Owns    the tree; json_free gives it back.
 * Thread  any; numbers are read in the process's LC_NUMERIC, which must be C.
 * Fails   CONFIG, with line and column in the detail; TOO_LARGE over the caps; NO_MEMORY.
 * Uses    status, yajl.   Used by config, zeroctl.
 */
#ifndef ZERO_JSON_H
#define ZERO_JSON_H

#include <stdarg.h>
#include <stddef.h>

#include "proto/status.h"

/* No config nests deeper than 5; the nodes of 64 KiB of the shortest values. */
enum { JSON_MAX_DEPTH = 32, JSON_MAX_NODES = 65536 };

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_OBJECT, JSON_ARRAY };

struct json {
    enum json_type type;
    unsigned line;      /* of the key, or of the value where it has none; from 1 */
    char *key;          /* in an object; NULL otherwise */
    bool truth;         /* BOOL */
    double number;      /* NUMBER */
    char *text;         /* TEXT: without NUL; NUMBER: as it was written */
    struct json *first; /* OBJECT, ARRAY: children */
    struct json *next;  /* sibling */
};

zero_status json_parse(const char *text, size_t bytes, struct json **out,
                       struct zero_detail *out_detail);
void json_free(struct json *json); /* NULL is a no-op */

/* The member of that name; NULL if there is none or json is no object. */
const struct json *json_member(const struct json *json, const char *key);

/* "a number", "true or false", ... */
const char *json_type_name(enum json_type type);

/* Writes a detail that may quote what a text had in it: bytes outside ASCII become '?', since a
 * quote may have been cut inside a character. */
void json_describe(struct zero_detail *detail, const char *format, va_list args);

#endif
