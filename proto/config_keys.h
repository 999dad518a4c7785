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

enum { CONFIG_MAX_PATH = 256, CONFIG_MAX_TEXT = ZERO_CONFIG_MAX_PATH };

enum config_name {
#define KEY(name, ...) CONFIG_##name,
#include "proto/config.def"
    CONFIG_KEYS
};

/* How many rows there are: one char each. */
enum {
    CONFIG_ROWS = sizeof((const char[]){
#define KEY(...) 0,
#define ONLY(...) 0,
#define NO_EFFECT(...) 0,
#define OFF(...) 0,
#include "proto/config.def"
    })
};

enum config_kind { ROW_KEY, ROW_ONLY, ROW_NO_EFFECT, ROW_OFF };
enum config_type { TYPE_FLAG, TYPE_COUNT, TYPE_NUMBER, TYPE_TEXT, TYPE_PAIR, TYPE_LIST, TYPE_ANY };

struct config_row {
    const char *path;
    enum config_kind kind;
    enum config_type type;
    enum config_name name; /* of a KEY */
    const char *value;     /* JSON: a KEY's default or NULL, an ONLY's value; an OFF's keys */
    double min, max;
    const char *help; /* or reason, or what to do instead */
};

extern const struct config_row config_rows[CONFIG_ROWS];

struct config_value {
    unsigned line; /* where; 0: not there, the default holds */
    bool flag;
    double number, second;
    char text[CONFIG_MAX_TEXT];
};

struct config_values {
    struct config_value of[CONFIG_KEYS];
    unsigned no_effect[CONFIG_ROWS]; /* lines of the NO_EFFECT rows that are there, 0 of the rest */
};

/* The values that a text gives, and the defaults of the rest. */
zero_status config_read(const char *text, size_t bytes, struct config_values *values,
                        struct zero_detail *detail);

/* What they mean together for a group of world ranks. */
zero_status config_resolve(const struct config_values *values, uint32_t world,
                           struct zero_config *out, struct zero_detail *detail);

/* Why a key does nothing beside the others of a resolved config; NULL if it does something. */
const char *config_idle(const struct zero_config *config, enum config_name name);

bool config_find_optimizer(const char *type, enum zero_optimizer *out);

static inline bool config_given(const struct config_values *values, enum config_name name)
{
    return values->of[name].line != 0;
}

__attribute__((format(printf, 3, 4))) zero_status
config_refuse(struct zero_detail *detail, zero_code code, const char *format, ...);

#endif
