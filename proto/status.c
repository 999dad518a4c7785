/* SPDX-License-Identifier: MIT */
#include "proto/status.h"

#include <stddef.h>

static const struct row {
    uint32_t number;
    enum zero_scope scope;
    const char *name, *text;
} rows[] = {
    { 0, ZERO_SCOPE_NONE, "OK", "success" },
#define CODE(name, number, scope, text) { (number), ZERO_SCOPE_##scope, #name, text },
#include "proto/codes.def"
#undef CODE
};

static const struct row *find(uint32_t number)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].number == number)
            return &rows[i];
    return NULL;
}

const char *zero_code_name(zero_code code)
{
    const struct row *row = find((uint32_t)code);
    return row ? row->name : "UNKNOWN";
}

const char *zero_code_text(zero_code code)
{
    const struct row *row = find((uint32_t)code);
    return row ? row->text : "a code this version does not know";
}

enum zero_scope zero_code_scope(zero_code code)
{
    const struct row *row = find((uint32_t)code);
    return row ? row->scope : ZERO_SCOPE_SESSION;
}

bool zero_code_known(uint32_t number)
{
    return find(number) != NULL;
}
