/* SPDX-License-Identifier: MIT */
/* notify.h: talking to who started the daemon: systemd, or zerorun, by the protocol of sd_notify.
 *
 * The holder keeps fds by name while the daemon is dead, and gives them back in LISTEN_FDS. Without
 * NOTIFY_SOCKET there is no holder: everything here does nothing, and says so where it matters.
 *
 * Owns    nothing; fds are borrowed, those of notify_take become the caller's.
 * Thread  any.
 * Fails   SYSTEM when the holder cannot be reached, DEADLINE when it does not answer.
 * Uses    fail, log.   Used by shard, step, main.
 */
#ifndef DAEMON_BASE_NOTIFY_H
#define DAEMON_BASE_NOTIFY_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/status.h"

/* Is there somebody to talk to? */
bool notify_held(void);

/* "READY=1", "STOPPING=1", ... A failure is logged, nothing more. */
void notify_say(const char *text);

/* Lodges a copy of fd under a name of at most 255 letters, digits, '-' and '.'. A name may be
 * lodged once: remove it before it is replaced. */
zero_status notify_store(const char *name, int fd);
zero_status notify_remove(const char *name);

/* Returns when the holder has handled everything that was said before. */
zero_status notify_barrier(int deadline_ms);

/* An fd that was kept. */
struct notify_fd {
    const char *name; /* valid as long as the list */
    int fd;
};

/* What the holder gave back at the start of this process; the fds are close-on-exec from now on.
 * *out is to be freed; the environment's LISTEN_* are unset, so a second call finds nothing. */
zero_status notify_take(struct notify_fd **out, size_t *out_count);

/* Could `count` fds be handed over? SYSTEM when the limit of open files is too low. */
zero_status notify_can_hand_over(size_t count);

/* Gives fds to the program that this process is about to execute, as a holder would. It takes the
 * places of others from fd 3 on: if the program cannot be executed, the process can only end. */
zero_status notify_hand_over(const struct notify_fd *list, size_t count);

#endif
