/* SPDX-License-Identifier: MIT */
/* Reads the rows of config.def: which keys there are, and what each may be. */
#include "proto/config.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config_keys.h"
#include "proto/text.h"

#define ABOVE_0 DBL_TRUE_MIN
#define BELOW_1 (1 - DBL_EPSILON / 2)

const struct config_row config_rows[CONFIG_ROWS] = {
#define KEY(name, path, type, fallback, min, max, help) \
    { path, ROW_KEY, TYPE_##type, CONFIG_##name, fallback, min, max, help },
#define ONLY(path, value, help) { path, ROW_ONLY, TYPE_ANY, CONFIG_KEYS, value, 0, 0, help },
#define NO_EFFECT(path, type, reason) \
    { path, ROW_NO_EFFECT, TYPE_##type, CONFIG_KEYS, NULL, -DBL_MAX, DBL_MAX, reason },
#define OFF(path, keys, instead) { path, ROW_OFF, TYPE_ANY, CONFIG_KEYS, keys, 0, 0, instead },
#include "proto/config.def"
};

static const struct {
    const char *path, *other, *what;
} both_rows[] = {
#define BOTH(path, other, what) { path, other, what },
#include "proto/config.def"
};

zero_status config_refuse(struct zero_detail *detail, zero_code code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    json_describe(detail, format, args);
    va_end(args);
    return (zero_status){ code, "read config" };
}

/* ---- which key is it ---- */

static const struct config_row *find_row(const char *path)
{
    for (size_t i = 0; i < CONFIG_ROWS; i++)
        if (strcmp(config_rows[i].path, path) == 0)
            return &config_rows[i];
    return NULL;
}

/* Is it a section that rows lie in? */
static bool is_section(const char *path)
{
    size_t bytes = strlen(path);

    for (size_t i = 0; i < CONFIG_ROWS; i++)
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

    for (size_t i = 0; i < CONFIG_ROWS; i++) {
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

/* ---- values ---- */

static const char *type_name(enum config_type type)
{
    static const char *const names[] = { "true or false", "a whole number", "a number", "a text",
                                         "two numbers",   "a list",         "a value" };
    return names[type];
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
    case TYPE_LIST:
        return json->type == JSON_ARRAY;
    case TYPE_ANY:
        break;
    }
    return true;
}

static zero_status refuse_type(const struct config_row *row, const struct json *json,
                               struct zero_detail *detail)
{
    bool unquoted = row->type == TYPE_FLAG || row->type == TYPE_COUNT || row->type == TYPE_NUMBER;
    const char *hint = "";

    if (json->type == JSON_NULL && row->value != NULL)
        hint = ": leave the key out for its default";
    else if (json->type == JSON_TEXT && unquoted)
        hint = ": write it without quotes";
    if (row->type == TYPE_PAIR && json->type == JSON_ARRAY)
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: %s must be two numbers, as in [0.9, 0.999]", json->line,
                             row->path);
    return config_refuse(detail, ZERO_CONFIG, "line %u: %s must be %s, not %.60s%s", json->line,
                         row->path, type_name(row->type),
                         json->type == JSON_NUMBER ? json->text : json_type_name(json->type), hint);
}

static zero_status check_range(const struct config_row *row, const struct json *json,
                               struct zero_detail *detail)
{
    char least[40] = "above 0", most[40] = "below 1";

    if (json->type != JSON_NUMBER || (json->number >= row->min && json->number <= row->max))
        return zero_success();
    if (row->min != ABOVE_0)
        snprintf(least, sizeof least, "at least %.15g", row->min);
    if (row->max != BELOW_1)
        snprintf(most, sizeof most, "at most %.15g", row->max);
    return config_refuse(detail, ZERO_CONFIG, "line %u: %s is %.60s: it must be %s and %s",
                         json->line, row->path, json->text, least, most);
}

/* Type and range of a KEY or NO_EFFECT. */
static zero_status check_value(const struct config_row *row, const struct json *json,
                               struct zero_detail *detail)
{
    if (!has_type(row, json))
        return refuse_type(row, json, detail);
    if (row->type != TYPE_PAIR)
        return check_range(row, json, detail);
    zero_status s = check_range(row, json->first, detail);
    return zero_failed(s) ? s : check_range(row, json->first->next, detail);
}

static zero_status take_value(const struct config_row *row, const struct json *json,
                              struct config_values *values, struct zero_detail *detail)
{
    struct config_value *value = &values->of[row->name];
    zero_status s = check_value(row, json, detail);

    if (zero_failed(s))
        return s;
    value->line = json->line;
    value->flag = json->truth;
    value->number = row->type == TYPE_PAIR ? json->first->number : json->number;
    value->second = row->type == TYPE_PAIR ? json->first->next->number : 0;
    if (row->type != TYPE_TEXT)
        return s;
    if (!zero_text_printable(json->text, sizeof value->text - 1))
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: %s must be UTF-8 without control characters, of at most %zu "
                             "bytes",
                             json->line, row->path, sizeof value->text - 1);
    memcpy(value->text, json->text, strlen(json->text) + 1);
    return s;
}

/* Is it the one value of an ONLY row? */
static bool is_value(const struct json *json, const char *wanted)
{
    switch (json->type) {
    case JSON_NULL:
        return true; /* DeepSpeed's "not given" */
    case JSON_BOOL:
        return strcmp(wanted, json->truth ? "true" : "false") == 0;
    case JSON_NUMBER:
        return strchr("-0123456789", wanted[0]) && json->number == strtod(wanted, NULL);
    case JSON_TEXT:
        return wanted[0] == '"' && strlen(wanted) == strlen(json->text) + 2 &&
               strncmp(wanted + 1, json->text, strlen(json->text)) == 0;
    case JSON_OBJECT:
    case JSON_ARRAY:
        break;
    }
    return false;
}

static zero_status take_only(const struct config_row *row, const struct json *json,
                             struct zero_detail *detail)
{
    if (is_value(json, row->value))
        return zero_success();
    if (strcmp(row->value, "null") == 0)
        return config_refuse(detail, ZERO_UNSUPPORTED,
                             "line %u: %s is known to DeepSpeed but not supported here: %s; remove "
                             "it",
                             json->line, row->path, row->help);
    return config_refuse(detail, ZERO_UNSUPPORTED,
                         "line %u: %s is known to DeepSpeed but supported here as %s only: %s; "
                         "write that or remove it",
                         json->line, row->path, row->value, row->help);
}

/* ---- the tree ---- */

static zero_status refuse_auto(const struct json *json, const char *path,
                               struct zero_detail *detail)
{
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: %.150s is \"auto\": write its value (what fills these in must "
                         "run before), or leave the key out for the default",
                         json->line, path);
}

static bool is_auto(const struct json *json)
{
    return json->type == JSON_TEXT && strcmp(json->text, "auto") == 0;
}

static zero_status refuse_unknown(const struct json *json, const char *path,
                                  struct zero_detail *detail)
{
    char best[CONFIG_MAX_PATH] = "";

    if (strchr(json->key, '.') != NULL)
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: the key \"%.150s\" is unknown: sections are nested, as "
                             "{\"zero_optimization\": {\"stage\": 1}}",
                             json->line, json->key);
    nearest(path, best);
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: the key %.150s is unknown; the nearest known one is %.150s",
                         json->line, path, best);
}

/* Is key among the words? `*` at their end is any. */
static bool has_word(const char *words, const char *key)
{
    size_t bytes = strlen(key);

    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (*at == '*' || (word == bytes && strncmp(at, key, bytes) == 0))
            return true;
        at += word;
    }
    return false;
}

/* A section that is off: its keys do nothing, but must be some that DeepSpeed knows. */
static zero_status check_off(const struct config_row *row, const struct json *section,
                             struct zero_detail *detail)
{
    for (const struct json *child = section->first; child != NULL; child = child->next) {
        char path[CONFIG_MAX_PATH];
        snprintf(path, sizeof path, "%s.%s", row->path, child->key);
        if (!has_word(row->value, child->key))
            return config_refuse(detail, ZERO_CONFIG,
                                 "line %u: the key %.150s is unknown; known there: %s", child->line,
                                 path, row->value);
        if (is_auto(child))
            return refuse_auto(child, path, detail);
    }
    return zero_success();
}

static zero_status take_off(const struct config_row *row, const struct json *json,
                            struct zero_detail *detail)
{
    char key[CONFIG_MAX_PATH];

    snprintf(key, sizeof key, "%.*s", (int)strcspn(row->value, " "), row->value);
    const struct json *on = json_member(json, key);
    bool off = on == NULL ? key[0] != '\0' : on->type == JSON_BOOL && !on->truth;
    if (json->type == JSON_OBJECT && (off || json->first == NULL || (on && is_auto(on))))
        return check_off(row, json, detail);
    if (json->type == JSON_NULL || (json->type == JSON_BOOL && !json->truth))
        return zero_success();
    return config_refuse(detail, ZERO_UNSUPPORTED,
                         "line %u: %s is known to DeepSpeed but not supported here: %s; remove "
                         "it%s%s%s",
                         json->line, row->path, row->help, key[0] ? ", or set \"" : "", key,
                         key[0] ? "\": false" : "");
}

static zero_status take_row(const struct config_row *row, const struct json *json,
                            struct config_values *values, struct zero_detail *detail)
{
    zero_status s = zero_success();

    switch (row->kind) {
    case ROW_KEY:
        /* null where DeepSpeed's default is null: as if it were not there */
        return json->type == JSON_NULL && row->value == NULL
                   ? s
                   : take_value(row, json, values, detail);
    case ROW_ONLY:
        return take_only(row, json, detail);
    case ROW_NO_EFFECT:
        values->no_effect[row - config_rows] = json->line;
        return json->type == JSON_NULL ? s : check_value(row, json, detail);
    case ROW_OFF:
        return take_off(row, json, detail);
    }
    return s;
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
            (struct config_value){ .line = json->line, .number = json->truth };
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
        else if (strchr(child->key, '.') != NULL || (row == NULL && !is_section(path)))
            s = refuse_unknown(child, path, detail);
        else if (is_auto(child))
            s = refuse_auto(child, path, detail);
        else if (row != NULL)
            s = take_row(row, child, values, detail);
        else
            s = take_section(child, path, values, detail);
    }
    return s;
}

/* ---- all ---- */

static const struct json *find_path(const struct json *root, const char *path)
{
    while (root != NULL && *path != '\0') {
        char key[CONFIG_MAX_PATH];
        size_t bytes = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)bytes, path);
        root = json_member(root, key);
        path += bytes + (path[bytes] == '.');
    }
    return root;
}

/* What must be said before single keys are looked at: an optimizer that is not supported has
 * parameters of its own, and each of two names of one thing is known. */
static zero_status check_whole(const struct json *root, struct zero_detail *detail)
{
    const struct json *type = find_path(root, "optimizer.type");
    enum zero_optimizer optimizer;

    if (root->type != JSON_OBJECT)
        return config_refuse(detail, ZERO_CONFIG, "line %u: a config is an object, not %s",
                             root->line, json_type_name(root->type));
    for (size_t i = 0; i < sizeof both_rows / sizeof *both_rows; i++) {
        const struct json *one = find_path(root, both_rows[i].path);
        const struct json *other = find_path(root, both_rows[i].other);
        if (one != NULL && other != NULL)
            return config_refuse(
                detail, ZERO_CONFIG, "line %u: %s and %s (line %u) are both given: %s; keep one",
                one->line, both_rows[i].path, both_rows[i].other, other->line, both_rows[i].what);
    }
    if (type != NULL && type->type == JSON_TEXT && !is_auto(type) &&
        !config_find_optimizer(type->text, &optimizer))
        return config_refuse(
            detail, ZERO_UNSUPPORTED,
            "line %u: optimizer.type \"%.60s\" is not supported: write Adam, AdamW "
            "or SGD",
            type->line, type->text);
    return zero_success();
}

static zero_status take_defaults(struct config_values *values, struct zero_detail *detail)
{
    zero_status s = zero_success();

    for (size_t i = 0; i < CONFIG_ROWS && !zero_failed(s); i++) {
        const struct config_row *row = &config_rows[i];
        struct json *json = NULL;
        if (row->kind != ROW_KEY || row->value == NULL || config_given(values, row->name))
            continue;
        s = json_parse(row->value, strlen(row->value), &json, detail);
        if (!zero_failed(s))
            s = take_value(row, json, values, detail);
        values->of[row->name].line = 0;
        json_free(json);
    }
    return s;
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
    s = check_whole(json, detail);
    if (!zero_failed(s))
        s = take_object(json, "", values, detail);
    json_free(json);
    return zero_failed(s) ? s : take_defaults(values, detail);
}
