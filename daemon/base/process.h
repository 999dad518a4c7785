/* SPDX-License-Identifier: MIT */
/* process.h: telling one process from another that has its pid later.
 *
 * Thread  any.
 * Uses    nothing.   Used by step, session.
 */
#ifndef DAEMON_BASE_PROCESS_H
#define DAEMON_BASE_PROCESS_H

#include <stdint.h>

/* When the process was started, in clock ticks since boot (proc(5), stat, field 22); 0: no such
 * process. */
uint64_t process_start(uint32_t pid);

/* A pidfd, close-on-exec; -1: no such process, or a kernel without. */
int process_open(uint32_t pid);

#endif
