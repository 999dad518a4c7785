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

/* Lines say "zerod[rank]"; lines above `level` are dropped. */
void log_init(uint32_t rank, enum log_level level);

__attribute__((format(printf, 2, 3))) void log_line(enum log_level level, const char *format, ...);

#define LOG_ERROR(...) log_line(LOG_ERROR_LEVEL, __VA_ARGS__)
#define LOG_WARNING(...) log_line(LOG_WARNING_LEVEL, __VA_ARGS__)
#define LOG_INFO(...) log_line(LOG_INFO_LEVEL, __VA_ARGS__)
#define LOG_DEBUG(...) log_line(LOG_DEBUG_LEVEL, __VA_ARGS__)

#endif
