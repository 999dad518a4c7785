/* SPDX-License-Identifier: MIT */
#include "daemon/store/parse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

#include "daemon/store/error.h"

enum { CHUNK = 1 << 16 };

struct parser {
    const struct store_text *from;
    store_taker *taker;
    void *context;
    unsigned depth;
    bool list[STORE_MOST_DEPTH]; /* the container at that depth is one */
    char key[STORE_MOST_KEY + 1];
    zero_status status;
    struct zero_detail *detail;
};

static int give(struct parser *p, enum store_value_type type, const char *text, size_t bytes)
{
    bool in_list = p->depth > 0 && p->list[p->depth - 1];
    const struct store_value value = { type, p->depth, in_list ? "" : p->key, text, bytes };

    p->status = p->taker(p->context, &value, p->detail);
    return !zero_failed(p->status);
}

static int on_null(void *context)
{
    return give(context, STORE_WORD, "null", 4);
}

static int on_bool(void *context, int truth)
{
    return give(context, STORE_WORD, truth ? "true" : "false", truth ? 4 : 5);
}

static int on_number(void *context, const char *text, size_t bytes)
{
    return give(context, STORE_NUMBER, text, bytes);
}

static int on_text(void *context, const unsigned char *text, size_t bytes)
{
    return give(context, STORE_TEXT, (const char *)text, bytes);
}

static int on_key(void *context, const unsigned char *text, size_t bytes)
{
    struct parser *p = context;

    if (bytes > STORE_MOST_KEY || memchr(text, '\0', bytes) != NULL) {
        p->status =
            store_refuse(p->detail, ZERO_TOO_LARGE, "%s: a key has more than %d bytes, or a NUL",
                         p->from->file->name, STORE_MOST_KEY);
        return 0;
    }
    memcpy(p->key, text, bytes);
    p->key[bytes] = '\0';
    return 1;
}

static int on_open(struct parser *p, enum store_value_type type)
{
    if (!give(p, type, "", 0))
        return 0;
    if (p->depth == STORE_MOST_DEPTH) {
        p->status = store_refuse(p->detail, ZERO_TOO_LARGE, "%s nests more than %d deep",
                                 p->from->file->name, STORE_MOST_DEPTH);
        return 0;
    }
    p->list[p->depth++] = type == STORE_LIST;
    p->key[0] = '\0';
    return 1;
}

static int on_open_object(void *context)
{
    return on_open(context, STORE_OBJECT);
}

static int on_open_list(void *context)
{
    return on_open(context, STORE_LIST);
}

static int on_close(void *context)
{
    struct parser *p = context;

    p->depth--;
    p->key[0] = '\0';
    return give(p, STORE_CLOSE, "", 0);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_bool,
    .yajl_number = on_number,
    .yajl_string = on_text,
    .yajl_start_map = on_open_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_close,
    .yajl_start_array = on_open_list,
    .yajl_end_array = on_close,
};

static zero_status feed(struct parser *p, yajl_handle yajl)
{
    const struct store_text *from = p->from;
    unsigned char chunk[CHUNK];
    yajl_status result = yajl_status_ok;

    for (uint64_t at = 0, take; at < from->bytes && result == yajl_status_ok; at += take) {
        take = from->bytes - at < CHUNK ? from->bytes - at : CHUNK;
        zero_status s = store_file_read(from->file, from->offset + at, take, chunk, p->detail);
        if (zero_failed(s))
            return s;
        result = yajl_parse(yajl, chunk, take);
    }
    if (result == yajl_status_ok)
        result = yajl_complete_parse(yajl);
    if (zero_failed(p->status))
        return p->status;
    if (result != yajl_status_ok)
        return store_refuse(p->detail, ZERO_CORRUPT, "%s is not JSON", from->file->name);
    return zero_success();
}

zero_status store_parse(const struct store_text *text, store_taker *taker, void *context,
                        struct zero_detail *out_detail)
{
    struct parser p = { .from = text, .taker = taker, .context = context, .detail = out_detail };
    yajl_handle yajl = yajl_alloc(&callbacks, NULL, &p);

    if (yajl == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory to read %s", text->file->name);
    zero_status s = feed(&p, yajl);
    yajl_free(yajl);
    return s;
}

/* ---- what takers share ---- */

bool store_value_is(const struct store_value *value, const char *text)
{
    return value->type == STORE_TEXT && strlen(text) == value->bytes &&
           memcmp(text, value->text, value->bytes) == 0;
}

zero_status store_take_count(const struct store_value *value, uint64_t most, uint64_t *out,
                             struct zero_detail *out_detail)
{
    uint64_t count = 0;
    bool good = value->type == STORE_NUMBER && value->bytes <= 20;

    for (size_t i = 0; i < value->bytes && good; i++) {
        unsigned digit = (unsigned char)value->text[i] - (unsigned)'0';
        good = digit <= 9 && !__builtin_mul_overflow(count, 10, &count) &&
               !__builtin_add_overflow(count, digit, &count);
    }
    if (!good || count > most)
        return store_refuse(out_detail, ZERO_CORRUPT,
                            "\"%s\" is not a whole number from 0 to %" PRIu64, value->key, most);
    *out = count;
    return zero_success();
}

zero_status store_take_real(const struct store_value *value, double *out,
                            struct zero_detail *out_detail)
{
    char text[64], *end = text;

    if (value->type == STORE_NUMBER && value->bytes < sizeof text) {
        memcpy(text, value->text, value->bytes);
        text[value->bytes] = '\0';
        *out = strtod(text, &end);
    }
    if (end == text || *end != '\0' || !isfinite(*out))
        return store_refuse(out_detail, ZERO_CORRUPT, "\"%s\" is not a number", value->key);
    return zero_success();
}

zero_status store_take_text(const struct store_value *value, char *out, size_t room,
                            struct zero_detail *out_detail)
{
    if (value->type != STORE_TEXT || value->bytes >= room ||
        memchr(value->text, '\0', value->bytes) != NULL)
        return store_refuse(out_detail, ZERO_CORRUPT,
                            "\"%s\" is not a text of at most %zu bytes without NUL", value->key,
                            room - 1);
    memcpy(out, value->text, value->bytes);
    out[value->bytes] = '\0';
    return zero_success();
}
