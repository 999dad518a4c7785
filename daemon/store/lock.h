/* SPDX-License-Identifier: MIT */
/* lock.h: a folder of checkpoints is one group's.
 *
 * Two groups that save into one folder prune each other's checkpoints, and a later start takes
 * either's. So a group that saves there holds a lock on DIR/.zerod-lock, in which it says who it
 * is. Whoever only reads needs none. The file stays: removing it would let two hold the lock.
 *
 * It is a lock of the open file description (F_OFD_SETLK): the kernel gives it back however the
 * process ends, no other fd of the file can lose it, and over NFS it is the server's, so that it
 * holds among all hosts. A flock would too, but for a group on the server's own host.
 *
 * Owns    a lock that is held: its fd.
 * Thread  one at a time.
 * Fails   BUSY: the detail says who holds it, and what to do. UNSUPPORTED: no locks in this file
 *         system. Else as folder.
 * Uses    error, folder.   Used by daemon.
 */
#ifndef DAEMON_STORE_LOCK_H
#define DAEMON_STORE_LOCK_H

#include "proto/status.h"

struct store_lock {
    int fd;        /* -1: not held */
    char who[256]; /* one line for the error of the others */
};

/* Not held; runtime_dir: of the group that asks. */
void store_lock_init(struct store_lock *lock, const char *runtime_dir);

/* Makes DIR if need be and takes its lock, unless that is held already. A lock whose file was
 * removed meanwhile guards nothing: it is taken anew. */
zero_status store_lock_take(struct store_lock *lock, const char *dir,
                            struct zero_detail *out_detail);
/* BUSY when another than `own`, which need not be held, has DIR. */
zero_status store_lock_check(const struct store_lock *own, const char *dir,
                             struct zero_detail *out_detail);
void store_lock_give(struct store_lock *lock); /* not held: no-op */

#endif
