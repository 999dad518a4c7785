/* SPDX-License-Identifier: MIT */
#include "client/ctl/text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text text_bytes(uint64_t bytes)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    struct text out;
    double value = (double)bytes / 1024;
    int unit = 0;

    if (bytes < 1024) {
        snprintf(out.text, sizeof out.text, "%" PRIu64 " B", bytes);
        return out;
    }
    for (; value >= 1023.995 && unit < 5; unit++)
        value /= 1024;
    snprintf(out.text, sizeof out.text, "%.2f %s", value, units[unit]);
    return out;
}

struct text text_gigabytes(uint64_t bytes)
{
    struct text out;

    snprintf(out.text, sizeof out.text, "%.4g GB", (double)bytes * 1e-9);
    return out;
}

struct text text_seconds(double seconds)
{
    struct text out;

    if (!(seconds >= 0))
        snprintf(out.text, sizeof out.text, "-");
    else if (seconds < 1e-3)
        snprintf(out.text, sizeof out.text, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(out.text, sizeof out.text, "%.3g ms", seconds * 1e3);
    else if (seconds < 120)
        snprintf(out.text, sizeof out.text, "%.1f s", seconds);
    else
        snprintf(out.text, sizeof out.text, "%.0f min", seconds / 60);
    return out;
}

struct text text_real(double value)
{
    struct text out;

    snprintf(out.text, sizeof out.text, "%.6g", value);
    return out;
}

/* What a unit letter multiplies with; 0: not one. */
static long double unit_of(const char *end)
{
    static const char letters[] = "KMBT";
    static const long double factors[] = { 1e3L, 1e6L, 1e9L, 1e12L };

    if (*end == '\0')
        return 1;
    for (int i = 0; i < 4; i++)
        if ((*end == letters[i] || *end == letters[i] + 32) && end[1] == '\0')
            return factors[i];
    return 0;
}

enum text_count text_parse_count(const char *text, uint64_t *out)
{
    char *end = NULL;

    /* strtold would take blanks, signs, hexadecimals and names */
    if (*text < '0' || *text > '9' || strpbrk(text, "xX") != NULL)
        return TEXT_NO_COUNT;
    errno = 0;
    long double value = strtold(text, &end);
    value = roundl(value * unit_of(end) * 1e6L) / 1e6L; /* 7.1B is not exact in binary */
    if (value >= 0x1p63L)
        return TEXT_TOO_LARGE;
    if (errno != 0 || value < 1 || floorl(value) != value)
        return TEXT_NO_COUNT;
    *out = (uint64_t)value;
    return TEXT_COUNT;
}
