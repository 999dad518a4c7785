/* SPDX-License-Identifier: MIT */
#include "client/ctl/writer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_gen.h>

struct writer {
    yajl_gen gen;
    FILE *to;
    bool failed;
};

static void print(void *context, const char *text, size_t bytes)
{
    fwrite(text, 1, bytes, context);
}

static void check(struct writer *writer, yajl_gen_status status)
{
    if (status != yajl_gen_status_ok && status != yajl_gen_generation_complete)
        writer->failed = true;
}

struct writer *writer_open(FILE *to)
{
    struct writer *writer = calloc(1, sizeof *writer);

    if (writer == NULL)
        return NULL;
    writer->to = to;
    writer->gen = yajl_gen_alloc(NULL);
    if (writer->gen == NULL) {
        free(writer);
        return NULL;
    }
    yajl_gen_config(writer->gen, yajl_gen_beautify, 1);
    yajl_gen_config(writer->gen, yajl_gen_indent_string, "  ");
    yajl_gen_config(writer->gen, yajl_gen_validate_utf8, 1);
    yajl_gen_config(writer->gen, yajl_gen_print_callback, print, to);
    return writer;
}

bool writer_close(struct writer *writer)
{
    if (writer == NULL)
        return false;
    bool good = !writer->failed;
    yajl_gen_free(writer->gen);
    free(writer);
    return good;
}

/* Text that is not UTF-8 (a daemon passes on what a trainer called its numbers) is shown in ASCII.
 */
void writer_text(struct writer *writer, const char *text)
{
    char plain[256];
    size_t bytes = strlen(text);

    if (writer == NULL)
        return;
    yajl_gen_status status = yajl_gen_string(writer->gen, (const unsigned char *)text, bytes);
    if (status == yajl_gen_invalid_string) {
        bytes = bytes < sizeof plain ? bytes : sizeof plain;
        for (size_t i = 0; i < bytes; i++)
            plain[i] = '?';
        for (size_t i = 0; i < bytes; i++)
            if ((unsigned char)text[i] < 128)
                plain[i] = text[i];
        status = yajl_gen_string(writer->gen, (const unsigned char *)plain, bytes);
    }
    check(writer, status);
}

void writer_key(struct writer *writer, const char *key)
{
    writer_text(writer, key);
}

static void number(struct writer *writer, const char *text)
{
    check(writer, yajl_gen_number(writer->gen, text, strlen(text)));
}

void writer_count(struct writer *writer, uint64_t count)
{
    char text[32];

    if (writer == NULL)
        return;
    snprintf(text, sizeof text, "%" PRIu64, count);
    number(writer, text);
}

void writer_real(struct writer *writer, double value)
{
    char text[40];

    if (writer == NULL)
        return;
    if (!isfinite(value)) {
        check(writer, yajl_gen_null(writer->gen));
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    number(writer, text);
}

void writer_truth(struct writer *writer, bool truth)
{
    if (writer != NULL)
        check(writer, yajl_gen_bool(writer->gen, truth));
}

void writer_begin(struct writer *writer, char kind)
{
    if (writer != NULL)
        check(writer,
              kind == '{' ? yajl_gen_map_open(writer->gen) : yajl_gen_array_open(writer->gen));
}

void writer_end(struct writer *writer, char kind)
{
    if (writer != NULL)
        check(writer,
              kind == '}' ? yajl_gen_map_close(writer->gen) : yajl_gen_array_close(writer->gen));
}
