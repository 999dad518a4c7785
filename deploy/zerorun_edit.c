/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_edit.h"

#include "proto/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A member of an object, or where a new one would go. */
struct member {
    bool found;
    bool empty; /* the object has no members at all */
    size_t start,
        end; /* of the value; both: behind the last value, where there is no such member */
};

/* ---- walking over valid JSON ---- */

static size_t past_blanks(const char *text, size_t at)
{
    return at + strspn(text + at, " \t\r\n");
}

static size_t past_string(const char *text, size_t at)
{
    for (at++; text[at] != '"' && text[at] != '\0';)
        at += text[at] == '\\' ? 2 : 1;
    return at + 1;
}

static size_t past_value(const char *text, size_t at)
{
    size_t depth = 0;

    do {
        if (text[at] == '"')
            at = past_string(text, at);
        else if (strchr("{[", text[at++]) != NULL)
            depth++;
        else if (strchr("}]", text[at - 1]) != NULL)
            depth--;
        else if (depth == 0)
            at += strcspn(text + at, " \t\r\n,]}");
    } while (depth > 0);
    return at;
}

/* A key may be spelled with escapes. */
static bool is_key(const char *token, size_t bytes, const char *key, size_t length)
{
    struct json *json = NULL;
    struct zero_detail detail;

    if (memchr(token, '\\', bytes) == NULL)
        return bytes == length + 2 && memcmp(token + 1, key, length) == 0;
    if (zero_failed(json_parse(token, bytes, &json, &detail)))
        return false;
    bool same = strlen(json->text) == length && memcmp(json->text, key, length) == 0;
    json_free(json);
    return same;
}

static struct member find(const char *text, size_t object, const char *key, size_t length)
{
    struct member member = { .empty = true, .start = object + 1, .end = object + 1 };
    size_t at = past_blanks(text, object + 1);

    while (text[at] == '"' && !member.found) {
        size_t key_end = past_string(text, at);
        member.empty = false;
        member.found = is_key(text + at, key_end - at, key, length);
        member.start = past_blanks(text, past_blanks(text, key_end) + 1); /* behind the colon */
        member.end = past_value(text, member.start);
        at = past_blanks(text, member.end);
        if (text[at] == ',')
            at = past_blanks(text, at + 1);
    }
    if (!member.found)
        member.start = member.end;
    return member;
}

/* ---- writing ---- */

static void write_string(FILE *to, const char *text, size_t bytes)
{
    fputc('"', to);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"' || text[i] == '\\')
            fprintf(to, "\\%c", text[i]);
        else if ((unsigned char)text[i] < 0x20)
            fprintf(to, "\\u%04x", text[i]);
        else
            fputc(text[i], to);
    }
    fputc('"', to);
}

/* The members that a path makes: "a": {"b": value}. */
static void write_members(FILE *to, const char *path, const char *value)
{
    int depth = 0;

    for (;; depth++) {
        size_t length = strcspn(path, ".=");
        write_string(to, path, length);
        fputs(": ", to);
        path += length;
        if (*path != '.')
            break;
        fputc('{', to);
        path++;
    }
    fputs(value, to);
    while (depth-- > 0)
        fputc('}', to);
}

/* `text` with what is in `member` replaced by `value`, or with the members of `path` in its place.
 */
static char *rewrite(const char *text, const struct member *member, const char *path,
                     const char *value)
{
    char *made = NULL;
    size_t bytes;
    FILE *to = open_memstream(&made, &bytes);

    if (to == NULL)
        return NULL;
    fwrite(text, 1, member->start, to);
    if (member->found) {
        fputs(value, to);
    } else {
        fputs(member->empty ? "" : ", ", to);
        write_members(to, path, value);
    }
    for (size_t i = member->start; i < member->end; i++)
        if (text[i] == '\n') /* what comes behind keeps its line */
            fputc('\n', to);
    fputs(text + member->end, to);
    bool failed = ferror(to) != 0;
    if (fclose(to) == 0 && !failed)
        return made;
    free(made);
    return NULL;
}

char *edit_quote(const char *text, size_t bytes)
{
    char *made = NULL;
    size_t size;
    FILE *to = open_memstream(&made, &size);

    if (to == NULL)
        return NULL;
    write_string(to, text, bytes);
    bool failed = ferror(to) != 0;
    if (fclose(to) == 0 && !failed)
        return made;
    free(made);
    return NULL;
}

char *edit_set(const char *text, const char *path, const char *value, struct edit_place *out)
{
    const char *key = path;
    struct member member = { .start = past_blanks(text, 0) };

    *out = (struct edit_place){ .line = 1 };
    for (bool last = false; !last;) {
        size_t length = strcspn(key, ".=");
        if (text[member.start] != '{') {
            out->blocked = true;
            out->blocker = (size_t)(key - path) - (key > path);
            return NULL;
        }
        member = find(text, member.start, key, length);
        last = !member.found || key[length] != '.';
        if (!last)
            key += length + 1;
    }
    for (size_t i = 0; i < member.start; i++)
        out->line += text[i] == '\n';
    out->made = !member.found;
    return rewrite(text, &member, key, value);
}
