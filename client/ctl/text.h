/* SPDX-License-Identifier: MIT */
/* text.h: numbers as people write and read them.
 *
 * Owns    nothing: a text is a value.
 * Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_TEXT_H
#define CLIENT_CTL_TEXT_H

#include <stdbool.h>
#include <stdint.h>

struct text {
    char text[32];
};

struct text text_bytes(uint64_t bytes);     /* "1.50 GiB"; exact below 1 KiB */
struct text text_gigabytes(uint64_t bytes); /* "1.61 GB": of 10^9, as papers have it */
struct text text_seconds(double seconds);   /* "25.1 ms"; "-" when negative or not a number */
struct text text_real(double value);        /* six digits */

/* "7.5e9", "7.5B", "350M", "120576": a whole number from 1 to 2^63 - 1. */
enum text_count { TEXT_COUNT, TEXT_TOO_LARGE, TEXT_NO_COUNT };
enum text_count text_parse_count(const char *text, uint64_t *out);

#endif
