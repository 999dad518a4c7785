/* SPDX-License-Identifier: MIT */
/* fail.h: how a failure starts: logged once where it happens, with details, then passed on as a
 * status.
 *
 * Owns    the calling thread's last detail, for the reply to whoever asked.
 * Thread  any; details are per thread.
 * Uses    log, status.   Used by everything in daemon.
 */
#ifndef DAEMON_BASE_FAIL_H
#define DAEMON_BASE_FAIL_H

#include "proto/status.h"

/* Logs "doing: NAME: details (file:line)" and returns the status. `doing` is a string literal. */
#define FAIL(name, doing, ...) fail_status(ZERO_##name, "" doing, __FILE__, __LINE__, __VA_ARGS__)

/* The same for a request that is refused: a client's mistake is worth a debug line only. */
#define REFUSE(name, doing, ...) fail_refuse(ZERO_##name, "" doing, __VA_ARGS__)

/* Goes to out: when a call fails. The only macro that hides a jump. */
#define TRY(s, call)             \
    do {                         \
        (s) = (call);            \
        if ((s).code != ZERO_OK) \
            goto out;            \
    } while (0)

__attribute__((format(printf, 5, 6))) zero_status
fail_status(zero_code code, const char *doing, const char *file, int line, const char *format, ...);
__attribute__((format(printf, 3, 4))) zero_status fail_refuse(zero_code code, const char *doing,
                                                              const char *format, ...);

/* The details of the calling thread's last FAIL or REFUSE; "" if none. */
const char *fail_detail(void);

#endif
