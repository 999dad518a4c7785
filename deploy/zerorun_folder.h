/* SPDX-License-Identifier: MIT */
/* zerorun_folder.h: the runtime folder of one group: private, locked while the group lives, and
 * gone (or emptied of what is ours) afterwards.
 *
 * Owns    the folder's path and lock. The lock is held by every process that has lock_fd open.
 * Fails   false, after a line on stderr that says what to do.
 * Used by zerorun's main, front and group.
 */
#ifndef DEPLOY_ZERORUN_FOLDER_H
#define DEPLOY_ZERORUN_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

struct folder {
    char *path;   /* absolute */
    bool created; /* by us: it is removed at the end */
    bool fresh;   /* nobody else knows its name: removed with whatever is in it */
    int lock_fd;
};

/* `given` NULL: a fresh folder. Removes what a dead group left in a given one. */
bool folder_open(const char *given, uint32_t world, struct folder *out);
/* Removes the group's files, and the folder if it was created here. */
void folder_remove(const struct folder *folder);
void folder_deinit(struct folder *folder);

/* The path of a file in it, to be freed; NULL without memory. */
__attribute__((format(printf, 2, 3))) char *folder_file(const struct folder *folder,
                                                        const char *format, ...);

#endif
