/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_overrides.h"

#include "deploy/zerorun_edit.h"
#include "proto/config.h"
#include "proto/json.h"

#include <ctype.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yajl/yajl_tree.h>

enum { CONFIG_LARGEST_BYTES = 1 << 20 };

/* The overrides on their way into a config. */
struct merge {
    const char *base; /* its name and its text */
    char *base_text;
    const struct overrides *overrides;
    char **values;                  /* of each override, as JSON on one line */
    struct edit_place *places;      /* of each in the merged text */
    struct edit_place *tried;       /* the same, of an attempt without some */
    bool *told, *culprit, *scratch; /* of each: its mistake is told already; it makes this one */
    struct zero_detail detail;      /* what is wrong with the merged text */
};

/* ---- files ---- */

static char *read_file(const char *path, size_t *out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = malloc(CONFIG_LARGEST_BYTES + 1);
    size_t used = 0;
    ssize_t n = -1;

    while (fd >= 0 && text != NULL && used <= CONFIG_LARGEST_BYTES &&
           (n = read(fd, text + used, CONFIG_LARGEST_BYTES + 1 - used)) > 0)
        used += (size_t)n;
    if (n < 0 || used > CONFIG_LARGEST_BYTES) {
        warnx("cannot read the config %s: %s", path,
              n < 0 ? strerror(errno) : "it is larger than 1 MiB");
        free(text);
        text = NULL;
    } else {
        text[used] = '\0';
        *out_bytes = used;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t length = strlen(text);
    bool ok = fd >= 0 && write(fd, text, length) == (ssize_t)length;

    if (!ok)
        warn("cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* ---- messages ---- */

/* Splits "line 7: what" into the line (0: none is named) and what. */
static const char *split_line(const char *detail, unsigned *out_line)
{
    int skip = 0;

    if (sscanf(detail, "line %u: %n", out_line, &skip) != 1 || skip == 0)
        *out_line = 0;
    return detail + skip;
}

/* "line 7, column 3: ..." of the base, or a sentence about the whole of it. */
static void complain_base(const char *base, const char *detail)
{
    warnx("%s%s %s", base, strncmp(detail, "line ", 5) == 0 ? "," : ":", detail);
}

/* Is a key of that path, a section of it or a key in it spoken of? Its last part may be enough. */
static bool mentions(const char *detail, const char *path, size_t bytes)
{
    const char *last = memrchr(path, '.', bytes);
    size_t last_bytes = last != NULL ? bytes - (size_t)(last + 1 - path) : bytes;

    for (const char *at = detail; *at != '\0';) {
        size_t length = 0;
        while (isalnum((unsigned char)at[length]) || at[length] == '_' ||
               (at[length] == '.' && isalnum((unsigned char)at[length + 1])))
            length++;
        size_t common = length < bytes ? length : bytes;
        bool same = length > 0 && memcmp(at, path, common) == 0 &&
                    (length == bytes || (length < bytes ? path : at)[common] == '.');
        if (same || (last != NULL && length == last_bytes && memcmp(at, last + 1, length) == 0))
            return true;
        at += length > 0 ? length : 1;
    }
    return false;
}

/* ---- merging ---- */

/* The value of an override as JSON on one line: what is not JSON is a text. */
static char *read_value(const char *override)
{
    const char *literal = strchr(override, '=') + 1;
    char error[256];
    struct zero_detail detail = { .text = "no memory" };
    unsigned line;
    struct json *json = NULL;
    yajl_val tree = literal[0] != '\0' ? yajl_tree_parse(literal, error, sizeof error) : NULL;
    char *value = tree != NULL ? strdup(literal) : edit_quote(literal, strlen(literal));

    yajl_tree_free(tree);
    if (value == NULL || zero_failed(json_parse(value, strlen(value), &json, &detail))) {
        warnx("-o %s: %s", override, split_line(detail.text, &line));
        free(value);
        return NULL;
    }
    json_free(json);
    for (char *at = value; (at = strchr(at, '\n')) != NULL;)
        *at = ' ';
    return value;
}

static bool same_path(const char *one, const char *other)
{
    size_t bytes = strcspn(one, "=");

    return bytes == strcspn(other, "=") && memcmp(one, other, bytes) == 0;
}

/* The base with all overrides but those that are `left_out`. NULL: *out_failed is the one that
 * cannot be applied, and its place says why. */
static char *merge_text(const struct merge *m, const bool *left_out, struct edit_place *places,
                        size_t *out_failed)
{
    char *text = strdup(m->base_text);

    for (size_t i = 0; text != NULL && i < m->overrides->count; i++) {
        if (left_out[i])
            continue;
        char *next = edit_set(text, m->overrides->texts[i], m->values[i], &places[i]);
        free(text);
        text = next;
        *out_failed = i;
    }
    return text;
}

static bool check(const struct merge *m, const char *text, struct zero_detail *detail)
{
    struct zero_config config;

    *detail = (struct zero_detail){ .text = "no memory" };
    return !zero_failed(
        zero_config_parse(text, strlen(text), m->overrides->world, &config, detail));
}

/* ---- whose mistake it is ---- */

/* All overrides of that one's path: the earlier ones have no effect. */
static void leave_out(const struct merge *m, size_t index, bool *left_out, bool out)
{
    for (size_t i = 0; i < m->overrides->count; i++)
        if (same_path(m->overrides->texts[i], m->overrides->texts[index]))
            left_out[i] = out;
}

enum outcome { WELL, SAME, OTHER };

/* What is wrong when these are left out, against what is wrong now. */
static enum outcome try_without(const struct merge *m, const bool *left_out)
{
    struct zero_detail detail;
    size_t failed;
    char *text = merge_text(m, left_out, m->tried, &failed);
    bool well = text != NULL && check(m, text, &detail);
    bool same = text != NULL && !well && strcmp(detail.text, m->detail.text) == 0;

    free(text);
    return well ? WELL : same ? SAME : OTHER;
}

/* Sets culprit[i] for the overrides that make the mistake, and returns how many do. First, those
 * are left out without which it stays, one after the other: two that make the same one do not
 * excuse each other. Of the rest, it is an override's if all is well without it, or if something
 * else is wrong then and the message speaks of its key. */
static size_t find_culprits(struct merge *m)
{
    size_t count = m->overrides->count, found = 0;
    bool *left_out = m->scratch, *culprit = m->culprit;

    memcpy(left_out, m->told, count * sizeof *left_out);
    memset(culprit, 0, count * sizeof *culprit);
    for (size_t i = 0; i < count; i++) {
        if (left_out[i])
            continue;
        leave_out(m, i, left_out, /* out= */ true);
        if (try_without(m, left_out) != SAME)
            leave_out(m, i, left_out, /* out= */ false);
    }
    for (size_t i = count; i-- > 0;) {
        const char *override = m->overrides->texts[i];
        if (left_out[i])
            continue;
        leave_out(m, i, left_out, /* out= */ true);
        enum outcome without = try_without(m, left_out);
        leave_out(m, i, left_out, /* out= */ false);
        bool shadowed = false;
        for (size_t later = i + 1; later < count; later++)
            shadowed = shadowed || same_path(m->overrides->texts[later], override);
        culprit[i] = !shadowed && (without == WELL ||
                                   mentions(m->detail.text, override, strcspn(override, "=")));
        found += culprit[i];
    }
    return found;
}

static bool is_in_base(const struct merge *m, size_t index)
{
    struct edit_place place;
    char *text = edit_set(m->base_text, m->overrides->texts[index], m->values[index], &place);
    bool found = text != NULL && !place.made;

    free(text);
    return found;
}

/* "-o fp16.enabled=true -o bf16.enabled=true: train.json, line 4: ..." The line is left out where
 * an override made it. */
static void name_culprits(const struct merge *m)
{
    unsigned line;
    const char *what = split_line(m->detail.text, &line);
    bool made = false;
    char *culprits = NULL;
    size_t bytes, count = 0;
    FILE *to = open_memstream(&culprits, &bytes);

    for (size_t i = 0; to != NULL && i < m->overrides->count; i++) {
        if (!m->culprit[i])
            continue;
        fprintf(to, "%s-o %s", count++ > 0 ? " " : "", m->overrides->texts[i]);
        made = made || (m->places[i].line == line && !is_in_base(m, i));
    }
    if (to == NULL || fclose(to) != 0)
        complain_base(m->base, m->detail.text);
    else if (line == 0 || made)
        warnx("%s: %s", culprits, what);
    else
        warnx("%s: %s, line %u: %s", culprits, m->base, line, what);
    free(culprits);
}

/* Speaks it of a key whose override was told of? Without that one, something may be missing. */
static bool mentions_told(const struct merge *m)
{
    bool found = false;

    for (size_t i = 0; i < m->overrides->count; i++)
        found = found || (m->told[i] && mentions(m->detail.text, m->overrides->texts[i],
                                                 strcspn(m->overrides->texts[i], "=")));
    return found;
}

/* Names one mistake after the other, each with who made it. */
static void complain(struct merge *m)
{
    size_t failed;
    char *text = NULL;

    if (find_culprits(m) == 0) {
        complain_base(m->base, m->detail.text);
        return;
    }
    do {
        name_culprits(m);
        for (size_t i = 0; i < m->overrides->count; i++)
            if (m->culprit[i])
                leave_out(m, i, m->told, /* out= */ true);
        free(text);
        text = merge_text(m, m->told, m->places, &failed);
    } while (text != NULL && !check(m, text, &m->detail) && !mentions_told(m) &&
             find_culprits(m) > 0);
    free(text);
}

static void complain_blocked(const struct merge *m, size_t index)
{
    const struct edit_place *place = &m->places[index];
    const char *override = m->overrides->texts[index];

    if (!place->blocked)
        warnx("no memory for the config");
    else if (place->blocker == 0)
        warnx("-o %s: %s is not an object, it has no keys to set", override, m->base);
    else
        warnx("-o %s: \"%.*s\" is not an object, it has no keys to set", override,
              (int)place->blocker, override);
}

/* ---- all of it ---- */

static bool open_merge(struct merge *m)
{
    struct zero_detail detail = { .text = "no memory" };
    struct json *json = NULL;
    size_t bytes = 0;

    m->base_text = read_file(m->base, &bytes);
    if (m->base_text == NULL)
        return false;
    if (zero_failed(json_parse(m->base_text, bytes, &json, &detail))) {
        complain_base(m->base, detail.text);
        return false;
    }
    json_free(json);
    size_t count = m->overrides->count + 1; /* there may be none */
    m->values = calloc(count, sizeof *m->values);
    m->places = calloc(count, sizeof *m->places);
    m->tried = calloc(count, sizeof *m->tried);
    m->told = calloc(count, sizeof *m->told);
    m->culprit = calloc(count, sizeof *m->culprit);
    m->scratch = calloc(count, sizeof *m->scratch);
    if (m->values == NULL || m->places == NULL || m->tried == NULL || m->told == NULL ||
        m->culprit == NULL || m->scratch == NULL) {
        warnx("no memory for %zu overrides", m->overrides->count);
        return false;
    }
    for (size_t i = 0; i < m->overrides->count; i++) {
        m->values[i] = read_value(m->overrides->texts[i]);
        if (m->values[i] == NULL)
            return false;
    }
    return true;
}

static void close_merge(struct merge *m)
{
    for (size_t i = 0; m->values != NULL && i < m->overrides->count; i++)
        free(m->values[i]);
    free(m->values);
    free(m->places);
    free(m->tried);
    free(m->told);
    free(m->culprit);
    free(m->scratch);
    free(m->base_text);
}

bool overrides_apply(const char *base, const struct overrides *overrides, const char *to)
{
    struct merge m = { .base = base, .overrides = overrides };
    char *text = NULL;
    size_t failed = 0;
    bool ok = false;

    if (!open_merge(&m))
        goto out;
    text = merge_text(&m, m.told, m.places, &failed); /* nothing is told yet */
    if (text == NULL)
        complain_blocked(&m, failed);
    else if (!check(&m, text, &m.detail))
        complain(&m);
    else
        ok = to == NULL || write_file(to, text);
out:
    free(text);
    close_merge(&m);
    return ok;
}
