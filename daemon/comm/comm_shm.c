/* SPDX-License-Identifier: MIT */
/* The shm backend: peers on one host read each other's arenas in place. */
#include "daemon/comm/comm_shm.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "proto/bell.h"

enum { FETCH_LARGE = 64 << 10 }; /* bytes: more do not stay in L2 until they are read */

static struct shm_comm *shm_of(struct comm *comm)
{
    return (struct shm_comm *)comm;
}

static void shm_leave(struct comm *comm)
{
    struct shm_comm *shm = shm_of(comm);

    if (comm == NULL)
        return;
    for (uint32_t r = 0; shm->links && r < comm->world; r++) {
        struct shm_peer *link = &shm->links[r];
        for (int m = 0; m < SHM_MAPPINGS; m++)
            if (link->mapped[m].base != NULL)
                munmap(link->mapped[m].base, link->mapped[m].bytes);
        if (link->param_fd >= 0)
            close(link->param_fd);
        if (link->socket >= 0)
            close(link->socket);
    }
    free(shm->links);
    free(comm->peers);
    free(shm);
}

static void own_view(const struct comm_group *group, struct comm_peer *view)
{
    view->board = group->arenas[ZERO_ARENA_board].base;
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        view->arena[a] = group->arenas[a].base;
    view->bell = group->bell->base;
    view->standing = group->standing;
    view->param_fd = group->arenas[ZERO_ARENA_param].read_fd;
}

static void peer_view(const struct shm_peer *link, struct comm_peer *view)
{
    view->board = link->mapped[ZERO_ARENA_board].base;
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        view->arena[a] = link->mapped[a].base;
    view->bell = link->mapped[ZERO_ARENA_COUNT].base;
    view->standing = link->standing;
    view->param_fd = link->param_fd;
}

static zero_status shm_join(const struct comm_group *group, struct device *device,
                            struct comm **out)
{
    zero_status s;
    struct shm_comm *shm = calloc(1, sizeof *shm);

    if (shm == NULL) {
        s = FAIL(NO_MEMORY, "join group", "%zu bytes", sizeof *shm);
        goto out;
    }
    shm->base = (struct comm){ &comm_shm, device, group->rank, group->world, NULL };
    shm->base.peers = calloc(group->world, sizeof *shm->base.peers);
    shm->links = calloc(group->world, sizeof *shm->links);
    if (shm->links == NULL || shm->base.peers == NULL) {
        s = FAIL(NO_MEMORY, "join group", "for %u ranks", group->world);
        goto out;
    }
    for (uint32_t r = 0; r < group->world; r++)
        shm->links[r].socket = shm->links[r].param_fd = -1;
    TRY(s, shm_meet(group, shm));
    for (uint32_t r = 0; r < group->world; r++) {
        if (r == group->rank)
            own_view(group, &shm->base.peers[r]);
        else
            peer_view(&shm->links[r], &shm->base.peers[r]);
    }
    *out = &shm->base;
    shm = NULL;
out:
    shm_leave(shm ? &shm->base : NULL);
    return s;
}

static void shm_wake(struct comm *comm, uint32_t rank)
{
    zero_bell_ring(comm->peers[rank].bell, /* urgent= */ true);
}

static void shm_reduce(struct comm *comm, const struct comm_reduce *op)
{
    const struct reduce_op kernel = {
        .sum = op->sum,
        .squares = op->squares,
        .sources = op->sources,
        .source_count = op->source_count,
        .dtype = (enum kernel_dtype)op->dtype,
        .count = op->count,
        .accumulate = op->accumulate,
    };

    comm->device->kernels->reduce(&kernel);
}

static void shm_fetch(struct comm *comm, void *to, const void *source, size_t bytes)
{
    if (bytes < FETCH_LARGE)
        memcpy(to, source, bytes);
    else
        comm->device->kernels->copy(to, source, bytes);
}

static zero_status shm_check(struct comm *comm)
{
    struct shm_comm *shm = shm_of(comm);

    for (uint32_t r = 0; r < comm->world; r++) {
        if (r == comm->rank)
            continue;
        struct pollfd poll_fd = { .fd = shm->links[r].socket, .events = 0 };
        if (poll(&poll_fd, 1, 0) <= 0)
            continue;
        if (atomic_load((_Atomic uint64_t *)&comm->peers[r].board->leaving) != 0)
            return REFUSE(PEER_LOST, "watch peers",
                          "the daemon of rank %u was told to end: the group waits for it", r);
        return FAIL(PEER_LOST, "watch peers",
                    "the daemon of rank %u is gone: the group waits for its successor", r);
    }
    return zero_success();
}

const struct comm_ops comm_shm = {
    .name = "shm",
    .device_memory = false,
    .across_hosts = false,
    .listen = shm_listen,
    .join = shm_join,
    .leave = shm_leave,
    .cancel = shm_cancel,
    .wake = shm_wake,
    .reduce = shm_reduce,
    .fetch = shm_fetch,
    .check = shm_check,
};
