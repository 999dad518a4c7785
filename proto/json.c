/* SPDX-License-Identifier: MIT */
#include "proto/json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

struct builder {
    const char *text;
    yajl_handle parser;
    struct json *root;
    struct json *open[JSON_MAX_DEPTH], *last[JSON_MAX_DEPTH]; /* and the last child of each */
    int depth;
    int nodes;
    char *key; /* waits for its value */
    unsigned key_line;
    size_t counted; /* bytes whose lines are in `line` */
    unsigned line;
    zero_status status;
    struct zero_detail *detail;
};

__attribute__((format(printf, 3, 4))) static int stop(struct builder *b, zero_code code,
                                                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(b->detail->text, sizeof b->detail->text, format, args);
    va_end(args);
    b->status = (zero_status){ code, "read JSON" };
    return 0; /* yajl: cancel */
}

static unsigned line_now(struct builder *b)
{
    size_t at = yajl_get_bytes_consumed(b->parser);

    for (; b->counted < at; b->counted++)
        b->line += b->text[b->counted] == '\n';
    return b->line;
}

/* A copy of a text that has no NUL inside. */
static char *copy_text(struct builder *b, const unsigned char *text, size_t bytes)
{
    char *copy = NULL;

    if (memchr(text, '\0', bytes) != NULL)
        stop(b, ZERO_CONFIG, "line %u: a text has \\u0000 inside", line_now(b));
    else if ((copy = malloc(bytes + 1)) == NULL)
        stop(b, ZERO_NO_MEMORY, "no memory for %zu bytes", bytes + 1);
    if (copy != NULL) {
        memcpy(copy, text, bytes);
        copy[bytes] = '\0';
    }
    return copy;
}

/* Puts a new node where it belongs; NULL when that cannot be. */
static struct json *add(struct builder *b, enum json_type type)
{
    unsigned line = line_now(b);

    if (++b->nodes > JSON_MAX_NODES) {
        stop(b, ZERO_TOO_LARGE, "line %u: more than %d values", line, JSON_MAX_NODES);
        return NULL;
    }
    struct json *node = calloc(1, sizeof *node);
    if (node == NULL) {
        stop(b, ZERO_NO_MEMORY, "no memory for a value");
        return NULL;
    }
    node->type = type;
    node->line = b->key ? b->key_line : line;
    node->key = b->key;
    b->key = NULL;
    if (b->depth == 0) {
        b->root = node;
        return node;
    }
    struct json **last = &b->last[b->depth - 1];
    if (*last == NULL)
        b->open[b->depth - 1]->first = node;
    else
        (*last)->next = node;
    *last = node;
    return node;
}

static int on_null(void *context)
{
    return add(context, JSON_NULL) != NULL;
}

static int on_bool(void *context, int value)
{
    struct json *node = add(context, JSON_BOOL);

    if (node != NULL)
        node->truth = value != 0;
    return node != NULL;
}

static int on_number(void *context, const char *text, size_t bytes)
{
    struct builder *b = context;
    struct json *node = add(b, JSON_NUMBER);

    if (node == NULL || (node->text = copy_text(b, (const unsigned char *)text, bytes)) == NULL)
        return 0;
    node->number = strtod(node->text, NULL);
    if (!isfinite(node->number))
        return stop(b, ZERO_CONFIG, "line %u: %.40s is too large for a number", node->line,
                    node->text);
    return 1;
}

static int on_text(void *context, const unsigned char *text, size_t bytes)
{
    struct builder *b = context;
    struct json *node = add(b, JSON_TEXT);

    return node != NULL && (node->text = copy_text(b, text, bytes)) != NULL;
}

static int on_open(struct builder *b, enum json_type type)
{
    struct json *node = add(b, type);

    if (node == NULL)
        return 0;
    if (b->depth == JSON_MAX_DEPTH)
        return stop(b, ZERO_TOO_LARGE, "line %u: nested more than %d deep", node->line,
                    JSON_MAX_DEPTH);
    b->open[b->depth] = node;
    b->last[b->depth++] = NULL;
    return 1;
}

static int on_open_object(void *context)
{
    return on_open(context, JSON_OBJECT);
}

static int on_open_array(void *context)
{
    return on_open(context, JSON_ARRAY);
}

static int on_close(void *context)
{
    ((struct builder *)context)->depth--;
    return 1;
}

static int on_key(void *context, const unsigned char *text, size_t bytes)
{
    struct builder *b = context;

    b->key_line = line_now(b);
    b->key = copy_text(b, text, bytes);
    if (b->key == NULL)
        return 0;
    const struct json *twin = json_member(b->open[b->depth - 1], b->key);
    if (twin != NULL)
        return stop(b, ZERO_CONFIG, "line %u: \"%.60s\" is given again; it is on line %u already",
                    b->key_line, b->key, twin->line);
    return 1;
}

/* What yajl found wrong: its own sentence, with the place in lines and columns. */
static zero_status parse_error(struct builder *b, const char *text, size_t bytes)
{
    size_t at = yajl_get_bytes_consumed(b->parser);
    unsigned line = 1;
    size_t start = 0;

    at = at > bytes ? bytes : at;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    unsigned char *sentence = yajl_get_error(b->parser, 0, (const unsigned char *)text, bytes);
    int length = sentence ? (int)strcspn((char *)sentence, "\n") : 0;
    stop(b, ZERO_CONFIG, "line %u, column %zu: %.*s", line, at - start + 1, length,
         sentence ? (char *)sentence : "");
    yajl_free_error(b->parser, sentence);
    return b->status;
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_bool,
    .yajl_number = on_number,
    .yajl_string = on_text,
    .yajl_start_map = on_open_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_close,
    .yajl_start_array = on_open_array,
    .yajl_end_array = on_close,
};

zero_status json_parse(const char *text, size_t bytes, struct json **out,
                       struct zero_detail *out_detail)
{
    struct builder b = { .text = text, .line = 1, .detail = out_detail };

    b.parser = yajl_alloc(&callbacks, NULL, &b);
    if (b.parser == NULL)
        return (zero_status){ ZERO_NO_MEMORY, "read JSON" };
    yajl_status result = yajl_parse(b.parser, (const unsigned char *)text, bytes);
    if (result == yajl_status_ok)
        result = yajl_complete_parse(b.parser);
    if (result == yajl_status_error)
        parse_error(&b, text, bytes);
    if (!zero_failed(b.status) && b.root == NULL)
        stop(&b, ZERO_CONFIG, "line 1: the text is empty");
    yajl_free(b.parser);
    free(b.key);
    if (zero_failed(b.status))
        json_free(b.root);
    else
        *out = b.root;
    return b.status;
}

void json_free(struct json *json)
{
    while (json != NULL) {
        struct json *next = json->next;
        json_free(json->first);
        free(json->key);
        free(json->text);
        free(json);
        json = next;
    }
}

const struct json *json_member(const struct json *json, const char *key)
{
    if (json == NULL || json->type != JSON_OBJECT)
        return NULL;
    for (const struct json *child = json->first; child != NULL; child = child->next)
        if (child->key != NULL && strcmp(child->key, key) == 0)
            return child;
    return NULL;
}

const char *json_type_name(enum json_type type)
{
    static const char *const names[] = { "null",   "true or false", "a number",
                                         "a text", "an object",     "a list" };
    return names[type];
}
