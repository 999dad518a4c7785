/* SPDX-License-Identifier: MIT */
/* zerorun_tree.h: ends every process below this one, also those that left their session.
 *
 * Owns    nothing. The caller is a child subreaper, has one thread and blocks SIGCHLD.
 * Fails   false, after a line on stderr that names the process which does not die.
 * Used by zerorun's front and group.
 */
#ifndef DEPLOY_ZERORUN_TREE_H
#define DEPLOY_ZERORUN_TREE_H

#include <stdbool.h>

/* Kills and reaps until there are no children, for at most limit_ms. */
bool tree_kill(int limit_ms);

#endif
