/* SPDX-License-Identifier: MIT */
#include "daemon/base/fail.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"

static _Thread_local char detail[ZERO_DETAIL_BYTES];

/* Folders of the build machine mean nothing to the reader of a log. */
static const char *short_name(const char *file)
{
    const char *inside = strstr(file, "daemon/");
    return inside ? inside : file;
}

zero_status fail_status(zero_code code, const char *doing, const char *file, int line,
                        const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    LOG_ERROR("%s: %s: %s (%s:%d)", doing, zero_code_name(code), detail, short_name(file), line);
    return (zero_status){ code, doing };
}

zero_status fail_refuse(zero_code code, const char *doing, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    LOG_DEBUG("refused: %s: %s: %s", doing, zero_code_name(code), detail);
    return (zero_status){ code, doing };
}

const char *fail_detail(void)
{
    return detail;
}
