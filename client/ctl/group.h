/* SPDX-License-Identifier: MIT */
/* group.h: which folder holds the group's sockets, and which ranks have one there.
 *
 * Owns    nothing: plain data.
 * Fails   after a line on stderr, with the exit code.
 * Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_GROUP_H
#define CLIENT_CTL_GROUP_H

#include <limits.h>
#include <stdint.h>

#include "proto/layout.h"

struct group {
    char dir[PATH_MAX];
    uint32_t count;
    uint32_t ranks[ZERO_MAX_WORLD]; /* ascending */
};

/* given: --runtime-dir or NULL. EXIT_GOOD: there is at least one socket, alive or not. */
int group_find(const char *given, struct group *out);

/* Looks again which sockets there are. */
void group_scan(struct group *group);

/* "DIR/rank-R.control" */
struct group_path {
    char text[PATH_MAX + 32];
};
struct group_path group_socket(const struct group *group, uint32_t rank);

#endif
