/* SPDX-License-Identifier: MIT */
/* Reads the rows of config.def: which keys there are, and what each may be. */
#include "proto/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/config_keys.h"

const struct config_row config_rows[] = {
#define KEY(name, path, type, fallback, min, max, help) \
    { path, ROW_KEY, TYPE_##type, CONFIG_##name, fallback, min, max, help },
#define ONLY(path, value, help) { path, ROW_ONLY, TYPE_ANY, CONFIG_KEYS, value, 0, 0, help },
#define NO_EFFECT(path, reason) { path, ROW_NO_EFFECT, TYPE_ANY, CONFIG_KEYS, NULL, 0, 0, reason },
#define OFF(path, instead) { path, ROW_OFF, TYPE_ANY, CONFIG_KEYS, NULL, 0, 0, instead },
#include "proto/config.def"
#undef KEY
#undef ONLY
#undef NO_EFFECT
#undef OFF
};
const size_t config_row_count = sizeof config_rows / sizeof *config_rows;

zero_status config_refuse(struct zero_detail *detail, zero_code code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail->text, sizeof detail->text, format, args);
    va_end(args);
    return (zero_status){ code, "read config" };
}

/* ---- which key is it
 * ------------------------------------------------------------------------------ */

static const struct config_row *find_row(const char *path)
{
    for (size_t i = 0; i < config_row_count; i++)
        if (strcmp(config_rows[i].path, path) == 0)
            return &config_rows[i];
    return NULL;
}

/* Is it a section that rows lie in? */
static bool is_section(const char *path)
{
    size_t bytes = strlen(path);

    for (size_t i = 0; i < config_row_count; i++)
        if (strncmp(config_rows[i].path, path, bytes) == 0 && config_rows[i].path[bytes] == '.')
            return true;
    return false;
}

/* Levenshtein's distance, of names that are not long. */
static size_t distance(const char *a, const char *b)
{
    enum { MOST = 80 };
    size_t row[MOST + 1], n = strnlen(b, MOST);

    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0' && i <= MOST; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t change = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            size_t least = row[j - 1] < row[j] ? row[j - 1] + 1 : row[j] + 1;
            row[j] = change < least ? change : least;
        }
    }
    return row[n];
}

/* How unlike two names are; a beginning of the other is nearly the same. */
static size_t unlike(const char *a, const char *b)
{
    size_t i = 0;

    while (a[i] != '\0' && a[i] == b[i])
        i++;
    if (i > 3 && (a[i] == '\0' || b[i] == '\0'))
        return a[i] == b[i] ? 0 : 1;
    return distance(a, b);
}

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* The beginning of a row's path that has as many parts as `like`. */
static void same_depth(const char *row, const char *like, char *to)
{
    size_t bytes = strcspn(row, ".");

    for (; (like = strchr(like, '.')) != NULL && row[bytes] == '.'; like++)
        bytes += 1 + strcspn(row + bytes + 1, ".");
    snprintf(to, CONFIG_MAX_PATH, "%.*s", (int)bytes, row);
}

/* The known key or section that is most like `path`: at its level, or of the same name elsewhere.
 */
static void nearest(const char *path, char *best)
{
    size_t least = SIZE_MAX;

    for (size_t i = 0; i < config_row_count; i++) {
        char level[CONFIG_MAX_PATH];
        same_depth(config_rows[i].path, path, level);
        size_t here = unlike(path, level);
        size_t elsewhere = unlike(last_part(path), last_part(config_rows[i].path)) + 1;
        size_t far = here < elsewhere ? here : elsewhere;
        if (far >= least)
            continue;
        least = far;
        snprintf(best, CONFIG_MAX_PATH, "%s", here <= elsewhere ? level : config_rows[i].path);
    }
}

/* ---- values
 * -------------------------------------------------------------------------------------- */

static const char *type_name(enum config_type type)
{
    static const char *const names[] = { "true or false", "a whole number", "a number",
                                         "a text",        "two numbers",    "a value" };
    return names[type];
}

static bool in_range(const struct config_row *row, double value)
{
    return value >= row->min && value <= row->max;
}

static bool has_type(const struct config_row *row, const struct json *json)
{
    switch (row->type) {
    case TYPE_FLAG:
        return json->type == JSON_BOOL;
    case TYPE_COUNT:
        return json->type == JSON_NUMBER && json->number == floor(json->number);
    case TYPE_NUMBER:
        return json->type == JSON_NUMBER;
    case TYPE_TEXT:
        return json->type == JSON_TEXT;
    case TYPE_PAIR:
        return json->type == JSON_ARRAY && json->first && json->first->type == JSON_NUMBER &&
               json->first->next && json->first->next->type == JSON_NUMBER &&
               !json->first->next->next;
    case TYPE_ANY:
        break;
    }
    return true;
}

static zero_status take_value(const struct config_row *row, const struct json *json,
                              struct config_values *values, struct zero_detail *detail)
{
    struct config_value *value = &values->of[row->name];

    if (!has_type(row, json))
        return config_refuse(detail, ZERO_CONFIG, "line %u: %s must be %s, not %s", json->line,
                             row->path, type_name(row->type), json_type_name(json->type));
    value->line = json->line;
    value->set = true;
    value->flag = json->truth;
    value->number = row->type == TYPE_PAIR ? json->first->number : json->number;
    value->second = row->type == TYPE_PAIR ? json->first->next->number : 0;
    if (row->type == TYPE_TEXT)
        snprintf(value->text, sizeof value->text, "%s", json->text);
    bool numeric = row->type == TYPE_COUNT || row->type == TYPE_NUMBER || row->type == TYPE_PAIR;
    if (numeric && (!in_range(row, value->number) ||
                    (row->type == TYPE_PAIR && !in_range(row, value->second))))
        return config_refuse(detail, ZERO_CONFIG, "line %u: %s is out of range: %g to %g",
                             json->line, row->path, row->min, row->max);
    return zero_success();
}

/* Is it the one value of an ONLY row? null means that the key must not be there. */
static bool is_value(const struct json *json, const char *wanted)
{
    switch (json->type) {
    case JSON_NULL:
        return true; /* DeepSpeed's "not given" */
    case JSON_BOOL:
        return strcmp(wanted, json->truth ? "true" : "false") == 0;
    case JSON_NUMBER:
        return json->number == strtod(wanted, NULL) && wanted[0] != '"' && wanted[0] != 'n';
    case JSON_TEXT:
        return wanted[0] == '"' && strlen(wanted) == strlen(json->text) + 2 &&
               strncmp(wanted + 1, json->text, strlen(json->text)) == 0;
    default:
        return false;
    }
}

static zero_status take_row(const struct config_row *row, const struct json *json,
                            struct config_values *values, struct zero_detail *detail)
{
    const struct json *enabled = json_member(json, "enabled");

    switch (row->kind) {
    case ROW_KEY:
        if (json->type == JSON_NULL)
            return zero_success(); /* as if it were not there: what DeepSpeed does */
        return take_value(row, json, values, detail);
    case ROW_ONLY:
        if (is_value(json, row->fallback))
            return zero_success();
        if (strcmp(row->fallback, "null") == 0)
            return config_refuse(detail, ZERO_UNSUPPORTED, "line %u: %s is not supported: %s",
                                 json->line, row->path, row->help);
        return config_refuse(detail, ZERO_UNSUPPORTED, "line %u: %s is supported as %s only: %s",
                             json->line, row->path, row->fallback, row->help);
    case ROW_NO_EFFECT:
        if (values->no_effect_count < CONFIG_MAX_NO_EFFECT)
            values->no_effect[values->no_effect_count++] =
                (struct config_no_effect){ row, json->line };
        return zero_success();
    case ROW_OFF:
        if (json->type == JSON_NULL || (json->type == JSON_BOOL && !json->truth) ||
            (enabled && enabled->type == JSON_BOOL && !enabled->truth))
            return zero_success();
        return config_refuse(detail, ZERO_UNSUPPORTED,
                             "line %u: %s is DeepSpeed's and not supported here: %s; remove it, or "
                             "set \"enabled\": false",
                             json->line, row->path, row->help);
    }
    return zero_success();
}

/* ---- the tree
 * ------------------------------------------------------------------------------------ */

static zero_status refuse_auto(const struct json *json, const char *path,
                               struct zero_detail *detail)
{
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: %s is \"auto\": write its value (a launcher that fills these in "
                         "must run first), or leave the key out for the default",
                         json->line, path);
}

static zero_status refuse_unknown(const struct json *json, const char *path,
                                  struct zero_detail *detail)
{
    char best[CONFIG_MAX_PATH] = "";

    nearest(path, best);
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: the key %.150s is unknown; the nearest known one is %.150s",
                         json->line, path, best);
}

static zero_status take_object(const struct json *object, const char *prefix,
                               struct config_values *values, struct zero_detail *detail);

/* A section: an object of more keys, or one of the short forms that DeepSpeed knows. */
static zero_status take_section(const struct json *json, const char *path,
                                struct config_values *values, struct zero_detail *detail)
{
    if (json->type == JSON_OBJECT)
        return take_object(json, path, values, detail);
    if (json->type == JSON_NULL)
        return zero_success();
    if (strcmp(path, "zero_optimization") == 0 && json->type == JSON_BOOL) {
        /* the oldest way to ask for stage 1 */
        values->of[CONFIG_stage] =
            (struct config_value){ .set = true, .line = json->line, .number = json->truth };
        return zero_success();
    }
    return config_refuse(detail, ZERO_CONFIG, "line %u: %s must be an object, not %s", json->line,
                         path, json_type_name(json->type));
}

static zero_status take_object(const struct json *object, const char *prefix,
                               struct config_values *values, struct zero_detail *detail)
{
    zero_status s = zero_success();

    for (const struct json *child = object->first; child && !zero_failed(s); child = child->next) {
        char path[CONFIG_MAX_PATH];
        int bytes = snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", child->key);
        const struct config_row *row = find_row(path);
        if (bytes < 0 || (size_t)bytes >= sizeof path)
            s = config_refuse(detail, ZERO_CONFIG, "line %u: the key \"%.60s...\" is unknown",
                              child->line, child->key);
        else if (row == NULL && !is_section(path))
            s = refuse_unknown(child, path, detail);
        else if (child->type == JSON_TEXT && strcmp(child->text, "auto") == 0)
            s = refuse_auto(child, path, detail);
        else if (row != NULL)
            s = take_row(row, child, values, detail);
        else
            s = take_section(child, path, values, detail);
    }
    return s;
}

static void take_defaults(struct config_values *values)
{
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        struct json *json = NULL;
        struct zero_detail detail;
        if (row->kind != ROW_KEY || row->fallback == NULL || values->of[row->name].set)
            continue;
        if (zero_failed(json_parse(row->fallback, strlen(row->fallback), &json, &detail)))
            continue; /* a row of ours that is no JSON: a test looks for it */
        take_value(row, json, values, &detail);
        values->of[row->name].line = 0;
        values->of[row->name].set = false;
        json_free(json);
    }
}

zero_status config_read(const char *text, size_t bytes, struct config_values *values,
                        struct zero_detail *detail)
{
    struct json *json = NULL;

    memset(values, 0, sizeof *values);
    if (bytes > ZERO_CONFIG_MAX_BYTES)
        return config_refuse(detail, ZERO_TOO_LARGE, "the config has %zu bytes, at most %d", bytes,
                             ZERO_CONFIG_MAX_BYTES);
    zero_status s = json_parse(text, bytes, &json, detail);
    if (zero_failed(s))
        return s;
    if (json->type != JSON_OBJECT)
        s = config_refuse(detail, ZERO_CONFIG, "line %u: a config is an object, not %s", json->line,
                          json_type_name(json->type));
    else
        s = take_object(json, "", values, detail);
    json_free(json);
    if (!zero_failed(s))
        take_defaults(values);
    return s;
}
