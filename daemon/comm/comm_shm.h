/* SPDX-License-Identifier: MIT */
/* comm_shm.h: the parts of the shm backend: meeting the peers, and working on their memory.
 *
 * Owns    each peer's socket and mappings.
 * Thread  the step worker.
 * Fails   as comm.h.
 * Uses    comm.   Used by comm_shm, shm_join, shm_greet.
 */
#ifndef DAEMON_COMM_COMM_SHM_H
#define DAEMON_COMM_COMM_SHM_H

#include "daemon/comm/comm.h"

/* Arenas of a peer, then its bell. */
enum { SHM_MAPPINGS = ZERO_ARENA_COUNT + 1 };

struct shm_peer {
    int socket, param_fd; /* -1: none */
    struct comm_standing standing;
    struct {
        void *base;
        size_t bytes;
    } mapped[SHM_MAPPINGS];
};

struct shm_comm {
    struct comm base;
    struct shm_peer *links; /* world of them; this rank's is unused */
};

/* Listens on DIR/rank-R.peer; a stale socket of a dead daemon is replaced. */
zero_status shm_listen(const char *dir, uint32_t rank, int *out_listener);

/* Meets every peer: links[r] has a socket and mappings of everything r brought. */
zero_status shm_meet(const struct comm_group *group, struct shm_comm *shm);

void shm_cancel(bool cancelled);

#endif
