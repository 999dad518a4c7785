/* SPDX-License-Identifier: MIT */
/* config_keys.h: the keys of config.def as a table, and what a text gave them.
 *
 * Owns    nothing.
 * Thread  any.
 * Fails   as config.h.
 * Uses    json.   Used by config, config_resolve, config_explain.
 */
#ifndef ZERO_CONFIG_KEYS_H
#define ZERO_CONFIG_KEYS_H

#include "proto/config.h"
#include "proto/json.h"

enum { CONFIG_MAX_PATH = 256, CONFIG_MAX_NO_EFFECT = 128, CONFIG_MAX_TEXT = 64 };

enum config_name {
#define KEY(name, path, type, fallback, min, max, help) CONFIG_##name,
#define ONLY(path, value, help)
#define NO_EFFECT(path, reason)
#define OFF(path, instead)
#include "proto/config.def"
#undef KEY
#undef ONLY
#undef NO_EFFECT
#undef OFF
    CONFIG_KEYS
};

enum config_kind { ROW_KEY, ROW_ONLY, ROW_NO_EFFECT, ROW_OFF };
enum config_type { TYPE_FLAG, TYPE_COUNT, TYPE_NUMBER, TYPE_TEXT, TYPE_PAIR, TYPE_ANY };

struct config_row {
    const char *path;
    enum config_kind kind;
    enum config_type type;
    enum config_name name; /* of a KEY */
    const char *fallback;  /* JSON: a KEY's default or NULL, an ONLY's value */
    double min, max;
    const char *help; /* or reason, or what to do instead */
};

extern const struct config_row config_rows[];
extern const size_t config_row_count;

struct config_value {
    bool set;      /* by the text */
    unsigned line; /* where; 0: not there */
    bool flag;
    double number, second;
    char text[CONFIG_MAX_TEXT];
};

struct config_no_effect {
    const struct config_row *row;
    unsigned line;
};

struct config_values {
    struct config_value of[CONFIG_KEYS];
    struct config_no_effect no_effect[CONFIG_MAX_NO_EFFECT];
    size_t no_effect_count;
};

/* The values that a text gives, and the defaults of the rest. */
zero_status config_read(const char *text, size_t bytes, struct config_values *values,
                        struct zero_detail *detail);

/* What they mean together for a group of world ranks. */
zero_status config_resolve(const struct config_values *values, uint32_t world,
                           struct zero_config *out, struct zero_detail *detail);

__attribute__((format(printf, 3, 4))) zero_status
config_refuse(struct zero_detail *detail, zero_code code, const char *format, ...);

#endif
