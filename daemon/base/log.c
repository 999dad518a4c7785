/* SPDX-License-Identifier: MIT */
#include "daemon/base/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1200 };

static uint32_t log_rank;
static enum log_level log_most = LOG_INFO_LEVEL;
static bool log_journal;

void log_init(uint32_t rank, enum log_level level)
{
    log_rank = rank;
    log_most = level;
    log_journal = getenv("JOURNAL_STREAM") != NULL;
}

static int write_prefix(char *line, enum log_level level)
{
    struct timespec now;
    struct tm parts;

    if (log_journal) /* journald stamps the time itself */
        return snprintf(line, LINE_BYTES, "<%d>zerod[%u] ", (int)level, log_rank);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    const char *word = level <= LOG_ERROR_LEVEL     ? "error "
                       : level == LOG_WARNING_LEVEL ? "warning "
                                                    : "";
    return snprintf(line, LINE_BYTES, "%02d:%02d:%02d.%03ld zerod[%u] %s", parts.tm_hour,
                    parts.tm_min, parts.tm_sec, now.tv_nsec / 1000000, log_rank, word);
}

void log_line(enum log_level level, const char *format, ...)
{
    char line[LINE_BYTES];
    va_list args;

    if (level > log_most)
        return;
    int used = write_prefix(line, level);
    va_start(args, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    va_end(args);
    if (more < 0)
        return;
    used += more;
    if (used > LINE_BYTES - 2)
        used = LINE_BYTES - 2;
    line[used++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)used) < 0)
        return; /* nobody is left to tell */
}
