/* SPDX-License-Identifier: MIT */
/* shm_greet.h: what two daemons of one host say to each other when they meet, and making sense of
 * it: a hello with the fds of what a rank brings, then a ready.
 *
 * Owns    nothing: fds that came with a message are the caller's to close; mappings are the link's.
 * Thread  the step worker.
 * Fails   PEER_LOST when the other side is gone, VERSION when it speaks another protocol, PROTOCOL
 *         for what makes no sense, CONFLICT for another model or config.
 * Uses    comm_shm.   Used by shm_join.
 */
#ifndef DAEMON_COMM_SHM_GREET_H
#define DAEMON_COMM_SHM_GREET_H

#include "daemon/comm/comm_shm.h"

enum {
    GREET_PROTOCOL = 3,
    GREET_FDS = 2 + ZERO_ARENA_COUNT, /* text, bell, then the arenas that exist */
};

enum greet_kind { GREET_HELLO = 1, GREET_READY = 2 };

struct greet_message {
    char magic[4]; /* "ZRPM" */
    uint32_t protocol, kind, rank, world;
    uint32_t arenas; /* bit a: arena a exists and its fd is here */
    uint64_t text_bytes;
    uint64_t arena_bytes[ZERO_ARENA_COUNT];
    struct comm_standing standing;
};

/* The model's and config's text, where peers can read it. */
zero_status greet_put_text(const char *text, int *out_fd);

/* Sends a message; a hello carries text_fd, the bell and the arenas. */
zero_status greet_say(const struct comm_group *group, int text_fd, int socket,
                      enum greet_kind kind);

/* Reads one message and at most GREET_FDS fds, of which there are *out_count also on failure:
 * VERSION and PROTOCOL are not logged. */
zero_status greet_hear(int socket, struct greet_message *out, int *fds, int *out_count);

/* CONFLICT names the first line in which the hello's text differs from this rank's, CORRUPT the
 * checkpoints, if the two ranks began with different ones. */
zero_status greet_compare(const struct comm_group *group, const struct greet_message *hello,
                          int fd);

/* Maps what came with a hello: fds as they came. What is mapped when it fails stays the link's. */
zero_status greet_map(struct shm_peer *link, const struct greet_message *hello, const int *fds,
                      int count);

#endif
