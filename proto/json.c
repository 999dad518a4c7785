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

void json_describe(struct zero_detail *detail, const char *format, va_list args)
{
    vsnprintf(detail->text, sizeof detail->text, format, args);
    for (char *at = detail->text; *at != '\0'; at++)
        if ((unsigned char)*at >= 0x80)
            *at = '?';
}

__attribute__((format(printf, 3, 4))) static int stop(struct builder *b, zero_code code,
                                                      const char *format, ...)
{
    va_list args;

    va_start(args, format);
    json_describe(b->detail, format, args);
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

/* The bytes of the UTF-8 character at text, or 0 if there is none. yajl checks what it reads, but
 * not what the escapes of lone surrogates make. */
static size_t character_bytes(const unsigned char *text, size_t left)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least; /* a shorter form would do for less */
    } forms[] = {
        { 0x80, 0x00, 0 }, { 0xe0, 0xc0, 0x80 }, { 0xf0, 0xe0, 0x800 }, { 0xf8, 0xf0, 0x10000 }
    };
    size_t form = 0;

    while (form < 4 && (text[0] & forms[form].mask) != forms[form].lead)
        form++;
    if (form == 4 || form + 1 > left)
        return 0;
    uint32_t point = text[0] & (unsigned char)~forms[form].mask;
    for (size_t i = 1; i <= form; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3f);
    }
    bool surrogate = point >= 0xd800 && point <= 0xdfff;
    return point < forms[form].least || point > 0x10ffff || surrogate ? 0 : form + 1;
}

/* What is wrong with a text, in words; NULL if nothing. */
static const char *bad_text(const unsigned char *text, size_t bytes)
{
    for (size_t i = 0, step; i < bytes; i += step) {
        if (text[i] == 0)
            return "\\u0000";
        bool high = text[i] == 0xc2 && i + 1 < bytes && text[i + 1] < 0xa0;
        if (text[i] < 0x20 || text[i] == 0x7f || high)
            return "a control character";
        step = character_bytes(text + i, bytes - i);
        if (step == 0)
            return "a character that is not Unicode";
    }
    return NULL;
}

static char *copy_text(struct builder *b, const unsigned char *text, size_t bytes)
{
    const char *bad = bad_text(text, bytes);
    char *copy = NULL;

    if (bad != NULL)
        stop(b, ZERO_CONFIG, "line %u: a text has %s in it: remove it", line_now(b), bad);
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
    errno = 0;
    node->number = strtod(node->text, NULL);
    if (errno == ERANGE)
        return stop(b, ZERO_CONFIG, "line %u: %.40s is too %s for a number", node->line, node->text,
                    isfinite(node->number) ? "small" : "large");
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

/* The end of what was written before the byte at `at`, blanks apart: a comma there is one too many.
 */
static bool after_comma(const char *text, size_t at)
{
    while (at > 0 && strchr(" \t\r\n", text[at - 1]) != NULL)
        at--;
    return at > 0 && text[at - 1] == ',';
}

/* yajl's sentence, or ours where it speaks to programmers. */
static const char *sentence(const char *yajls, const char *text, size_t at, size_t bytes)
{
    static const struct {
        const char *part, *ours;
    } better[] = {
        { "comment", "a comment, which JSON does not have: remove it" },
        { "premature EOF", "the text ends in the middle: a } or ] or a value is missing" },
        { "trailing garbage", "trailing text after the end" },
        { "invalid bytes in UTF8", "a text that is not UTF-8" },
        { "must be a string", "a key in double quotes is missing" },
    };

    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        return "a byte order mark: save the file as UTF-8 without one";
    if (at < bytes && (text[at] == 'N' || text[at] == 'I'))
        return "not a value of JSON, which has no NaN and no Infinity";
    if (at < bytes && strchr("}]", text[at]) != NULL && after_comma(text, at))
        return "a comma before } or ]: remove it";
    for (size_t i = 0; i < sizeof better / sizeof *better; i++)
        if (strstr(yajls, better[i].part) != NULL)
            return better[i].ours;
    const char *colon = strstr(yajls, "error: ");
    return colon != NULL ? colon + strlen("error: ") : yajls;
}

/* What yajl found wrong, and where. `at_end`: after the whole text, which is missing something. */
static void parse_error(struct builder *b, size_t bytes, bool at_end)
{
    unsigned char *error = yajl_get_error(b->parser, 0, NULL, 0);
    size_t at = yajl_get_bytes_consumed(b->parser); /* with what was wrong */
    size_t start = 0;
    unsigned line = 1;

    at = at_end ? bytes : at > 0 ? at - 1 : 0;
    for (size_t i = 0; i < at; i++) {
        if (b->text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    const char *what = error ? sentence((const char *)error, b->text, at, bytes) : "not JSON";
    stop(b, ZERO_CONFIG, "line %u, column %zu: %.*s", line, at - start + 1,
         (int)strcspn(what, "\n"), what);
    yajl_free_error(b->parser, error);
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
    bool at_end = result == yajl_status_ok;
    if (at_end)
        result = yajl_complete_parse(b.parser);
    if (result == yajl_status_error && b.root == NULL && at_end)
        stop(&b, ZERO_CONFIG, "line 1: the text is empty");
    else if (result == yajl_status_error)
        parse_error(&b, bytes, at_end);
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
