/* SPDX-License-Identifier: MIT */
/* log.h: one line an event on stderr, in a form that journald and people read.
 *
 * Owns    the prefix that names this rank.
 * Thread  any; a line is one write.
 * Fails   never: a line that cannot be written is lost.
 * Uses    nothing.   Used by everything in daemon.
 */
#ifndef DAEMON_BASE_LOG_H
#define DAEMON_BASE_LOG_H

#include <stdint.h>

/* The numbers are syslog's: under systemd a line starts with <n>. */
enum log_level {
    LOG_ERROR_LEVEL = 3,
    LOG_WARNING_LEVEL = 4,
    LOG_INFO_LEVEL = 6,
    LOG_DEBUG_LEVEL = 7
};

/* Lines say "zerod[rank]", unless ZERO_LOG_NAMED is 1; lines above `level` are dropped. */
void log_init(uint32_t rank, enum log_level level);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

/* How often a line is written that somebody outside can cause as often as he likes. */
enum { LOG_LIMIT_SECONDS = 10 };

struct log_limit {
    uint64_t until_ns; /* of the window: LOG_LIMIT_SECONDS from its first line on */
    unsigned written;  /* in it */
    uint64_t held;     /* not written since the last that was */
};

/* Writes the first `most` lines of a window and counts the others; the first of a later window says
 * how many they were. */
__attribute__((format(printf, 4, 5))) void
log_limited(struct log_limit *limit, unsigned most, enum log_level level, const char *format, ...);

/* The same, with a limit of its own at each place. */
#define LOG_LIMITED(most, level, ...)                                 \
    do {                                                              \
        static struct log_limit limit_;                               \
        log_limited(&limit_, most, LOG_##level##_LEVEL, __VA_ARGS__); \
    } while (0)

#define LOG_ERROR(...) log_line(LOG_ERROR_LEVEL, __VA_ARGS__)
#define LOG_WARNING(...) log_line(LOG_WARNING_LEVEL, __VA_ARGS__)
#define LOG_INFO(...) log_line(LOG_INFO_LEVEL, __VA_ARGS__)
#define LOG_DEBUG(...) log_line(LOG_DEBUG_LEVEL, __VA_ARGS__)

#endif
