/* SPDX-License-Identifier: MIT */
/* comm.h: the ranks of one group: who is there, what they published, and moving bytes between them.
 *
 * Owns    its sockets and its mappings of the peers' arenas; never the arenas of this rank.
 * Thread  the step worker; cancel() from any thread.
 * Order   none: a rank takes from its peers what their boards say is there.
 * Fails   PEER_LOST ends the group: leave, then join the next one. CONFLICT when the ranks do not
 *         have the same model and config, with the first difference.
 * Uses    base, device, kernels.   Used by step.
 */
#ifndef DAEMON_COMM_COMM_H
#define DAEMON_COMM_COMM_H

#include "daemon/comm/board.h"
#include "daemon/device/device.h"
#include "proto/plan.h"
#include "proto/ring.h"
#include "proto/status.h"

struct comm;

enum { COMM_ORIGIN_BYTES = 80 };

/* How far a rank is, as it tells the others when they meet. */
struct comm_standing {
    uint64_t epoch, attempt; /* the last it knows */
    uint64_t step;           /* the last whose update is whole in what it updates */
    uint64_t prepared;       /* the step whose summed gradients it keeps and voted for; 0: none */
    uint64_t filled;         /* it has all its initial values */
    uint64_t submissions;    /* written to its order log */
    struct board_decision decision; /* the last it knows */
    char origin[COMM_ORIGIN_BYTES]; /* the checkpoint it began with; "": none */
};

/* What a rank brings to the group. Everything is borrowed until leave. */
struct comm_group {
    uint32_t rank, world;
    struct comm_standing standing;
    int listener;                    /* of this rank's peer socket */
    const char *dir;                 /* where the peers' sockets are */
    const char *text;                /* model and config: must be equal on every rank */
    const struct device_buf *arenas; /* ZERO_ARENA_COUNT of them */
    const struct device_buf *bell;
    uint32_t deadline_ms; /* 0: waits as long as it takes */
    /* Called every few milliseconds while ranks are missing; `missing` is the first of them. */
    void (*on_wait)(void *context, uint32_t missing);
    void *context;
};

/* A rank as its peers see it; this rank's own entry points at its own memory. */
struct comm_peer {
    const struct board_head *board;
    const unsigned char *arena[ZERO_ARENA_COUNT]; /* NULL: absent */
    struct zero_bell *bell;
    struct comm_standing standing; /* when it joined */
    int param_fd;                  /* read-only, of the parameter arena: for trainers */
};

/* Sums a run of gradients: the run of each source, in order, into sum; squares (or NULL) as in
 * struct reduce_op. */
struct comm_reduce {
    float *sum;
    double *squares;
    const void *const *sources;
    uint32_t source_count;
    zero_dtype dtype;
    size_t count;
    bool accumulate;
};

struct comm_ops {
    const char *name;
    bool device_memory, across_hosts; /* capabilities */
    zero_status (*listen)(const char *dir, uint32_t rank, int *out_listener);
    zero_status (*join)(const struct comm_group *group, struct device *device, struct comm **out);
    void (*leave)(struct comm *comm); /* NULL is a no-op */
    /* Ends a join that waits, and every later one until it is called with false. */
    void (*cancel)(bool cancelled);
    void (*wake)(struct comm *comm, uint32_t rank);
    void (*reduce)(struct comm *comm, const struct comm_reduce *op);
    /* Copies from the memory of a peer. */
    void (*fetch)(struct comm *comm, void *to, const void *source, size_t bytes);
    /* PEER_LOST if a rank is gone. */
    zero_status (*check)(struct comm *comm);
};

/* Base of every backend's comm. */
struct comm {
    const struct comm_ops *ops;
    struct device *device;
    uint32_t rank, world;
    struct comm_peer *peers; /* world of them */
};

const struct comm_ops *comm_find(const char *name);

extern const struct comm_ops comm_shm;

#endif
