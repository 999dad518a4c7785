/* SPDX-License-Identifier: MIT */
#include "proto/text.h"

#include <stdint.h>
#include <string.h>

/* Bytes of the UTF-8 character at s, 0 if it is not one (or a control character). */
static size_t character(const unsigned char *s)
{
    if (*s < 0x80)
        return *s >= 0x20 && *s != 0x7f;
    size_t more = *s >= 0xf0 ? 3 : *s >= 0xe0 ? 2 : 1;
    uint32_t value = *s & (0x3fu >> more);
    if (*s < 0xc2 || *s > 0xf4)
        return 0;
    for (size_t i = 1; i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        value = value << 6 | (s[i] & 0x3fu);
    }
    static const uint32_t least[4] = { 0, 0x80, 0x800, 0x10000 };
    bool surrogate = value >= 0xd800 && value < 0xe000;
    return value < least[more] || value > 0x10ffff || surrogate || value < 0xa0 ? 0 : more + 1;
}

bool zero_text_printable(const char *text, size_t most)
{
    const unsigned char *s = (const unsigned char *)text;

    if (strlen(text) > most)
        return false;
    while (*s != '\0') {
        size_t bytes = character(s);
        if (bytes == 0)
            return false;
        s += bytes;
    }
    return true;
}
