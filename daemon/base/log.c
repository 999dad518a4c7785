/* SPDX-License-Identifier: MIT */
#include "daemon/base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/clock.h"

enum { LINE_BYTES = 1200 };

static enum log_level log_most = LOG_INFO_LEVEL;
static bool log_journal;
static char log_name[24];
static pthread_mutex_t limits = PTHREAD_MUTEX_INITIALIZER;

void log_init(uint32_t rank, enum log_level level)
{
    log_most = level;
    log_journal = getenv("JOURNAL_STREAM") != NULL;
    /* zerorun puts the name before each line itself */
    const char *named = getenv("ZERO_LOG_NAMED");
    log_name[0] = '\0';
    if (named == NULL || strcmp(named, "1") != 0)
        snprintf(log_name, sizeof log_name, "zerod[%u] ", rank);
}

static int write_prefix(char *line, enum log_level level)
{
    struct timespec now;
    struct tm parts;

    if (log_journal) /* journald stamps the time itself */
        return snprintf(line, LINE_BYTES, "<%d>%s", (int)level, log_name);
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    const char *word = level <= LOG_ERROR_LEVEL     ? "error "
                       : level == LOG_WARNING_LEVEL ? "warning "
                                                    : "";
    return snprintf(line, LINE_BYTES, "%02d:%02d:%02d.%03ld %s%s", parts.tm_hour, parts.tm_min,
                    parts.tm_sec, now.tv_nsec / 1000000, log_name, word);
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

/* False: it is counted only. *out_held were so before it. */
static bool may_write(struct log_limit *limit, unsigned most, uint64_t *out_held)
{
    uint64_t now = clock_ns();

    pthread_mutex_lock(&limits);
    if (now >= limit->until_ns) {
        limit->until_ns = now + (uint64_t)LOG_LIMIT_SECONDS * 1000000000u;
        limit->written = 0;
    }
    bool may = limit->written < most;
    *out_held = limit->held;
    limit->written += may;
    limit->held = may ? 0 : limit->held + 1;
    pthread_mutex_unlock(&limits);
    return may;
}

void log_limited(struct log_limit *limit, unsigned most, enum log_level level, const char *format,
                 ...)
{
    char text[LINE_BYTES];
    uint64_t held = 0;
    va_list args;

    if (level > log_most || !may_write(limit, most, &held))
        return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (held > 0)
        log_line(level, "%s (and %" PRIu64 " such lines before it were not written)", text, held);
    else
        log_line(level, "%s", text);
}
