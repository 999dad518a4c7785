/* SPDX-License-Identifier: MIT */
#include "daemon/store/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char doing[] = "store checkpoint";

/* Names may come from a hostile file: what a terminal would obey becomes '?'. */
static void defuse(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || (unsigned char)*text >= 0x7f)
            *text = '?';
}

zero_status store_refuse(struct zero_detail *detail, zero_code code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail->text, sizeof detail->text, format, args);
    va_end(args);
    defuse(detail->text);
    return (zero_status){ code, doing };
}

static zero_code code_of(int error)
{
    switch (error) {
    case ENOENT:
        return ZERO_NOT_FOUND;
    case EACCES:
    case EPERM:
    case ELOOP: /* what it leads to may be whole, or another's */
        return ZERO_PERMISSION;
    case ENOMEM:
        return ZERO_NO_MEMORY;
    default:
        return ZERO_IO;
    }
}

static const char *text_of(int error)
{
    switch (error) {
    case ELOOP:
        return "a symbolic link, which is never followed: put what it leads to in its place";
    case EFBIG:
        return "File too large for a limit (ulimit -f) or for the file system";
    default:
        return strerror(error);
    }
}

zero_status store_refuse_errno(struct zero_detail *detail, const char *format, ...)
{
    int error = errno;
    va_list args;

    va_start(args, format);
    int bytes = vsnprintf(detail->text, sizeof detail->text, format, args);
    va_end(args);
    if (bytes >= 0 && (size_t)bytes < sizeof detail->text)
        snprintf(detail->text + bytes, sizeof detail->text - (size_t)bytes, ": %s", text_of(error));
    defuse(detail->text);
    return (zero_status){ code_of(error), doing };
}
