/* SPDX-License-Identifier: MIT */
/* The daemon's memory in this process: ring, bell, windows, and the gathered model side by side. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/client.h"

enum { FD_RING, FD_BELL, FD_WINDOW, FD_STAGING, FD_PARAM };

/* Large enough, and sealed so that it stays so: a mapping of it can never be SIGBUS. */
static zero_status check_memory(zero_client *client, int fd, uint64_t least, const char *what)
{
    struct stat stat;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return client_fail(client, ZERO_PROTOCOL, "map memory",
                           "the daemon's %s is not a memfd that is sealed against shrinking", what);
    if (fstat(fd, &stat) != 0 || stat.st_size < 0 || (uint64_t)stat.st_size < least)
        return client_fail(client, ZERO_PROTOCOL, "map memory",
                           "the daemon's %s is smaller than the %llu bytes it must have", what,
                           (unsigned long long)least);
    return zero_success();
}

static uint64_t pages(uint64_t bytes)
{
    return (bytes + ZERO_PAGE_BYTES - 1) / ZERO_PAGE_BYTES * ZERO_PAGE_BYTES;
}

static zero_status map_whole(zero_client *client, int fd, uint64_t bytes, const char *what,
                             struct mapping *out)
{
    zero_status s = check_memory(client, fd, bytes, what);
    if (zero_failed(s))
        return s;
    int fixed = out->base != NULL ? MAP_FIXED : 0; /* the daemon's successor has the same memory */
    if (fixed && bytes != out->bytes)
        return client_fail(client, ZERO_PROTOCOL, "map memory", "%s has another size than before",
                           what);
    void *base = mmap(out->base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, fd, 0);
    if (base == MAP_FAILED)
        return client_fail(client, ZERO_NO_MEMORY, "map memory", "%s: %s", what, strerror(errno));
    madvise(base, bytes, MADV_DONTFORK); /* a child that trainers fork must not write here */
    *out = (struct mapping){ base, bytes };
    return s;
}

/* Stage 3: shard l of rank r's arena stands at its place in the flat vector of layer l. */
static zero_status map_shards(zero_client *client, const int *fds)
{
    uint64_t each = zero_dtype_bytes(client->info.param_dtype);
    unsigned char *base = client->param_map.base;

    for (uint32_t r = 0; r < client->world; r++) {
        zero_status s =
            check_memory(client, fds[r], client->layout->shard_total * each, "parameter arena");
        if (zero_failed(s))
            return s;
        for (uint32_t l = 0; l < client->layout->layer_count; l++) {
            const struct zero_layer *layer = &client->layout->layers[l];
            void *at = base + (layer->flat_offset + r * layer->shard) * each;
            if (mmap(at, layer->shard * each, PROT_READ, MAP_SHARED | MAP_FIXED, fds[r],
                     (off_t)(layer->shard_offset * each)) == MAP_FAILED)
                return client_fail(client, ZERO_NO_MEMORY, "map parameters",
                                   "layer %s of rank %u: %s (vm.max_map_count must allow layers x "
                                   "ranks mappings)",
                                   layer->name, r, strerror(errno));
        }
    }
    return zero_success();
}

static zero_status map_params(zero_client *client, const int *fds)
{
    uint64_t bytes = client->layout->flat_total * zero_dtype_bytes(client->info.param_dtype);
    bool sharded = client->info.stage == 3;
    zero_status s = zero_success();

    if (!sharded)
        s = check_memory(client, fds[0], bytes, "parameter arena");
    if (zero_failed(s))
        return s;
    int fixed = client->param_map.base != NULL ? MAP_FIXED : 0;
    void *base = client->param_map.base;
    if (!sharded)
        base = mmap(base, bytes, PROT_READ, MAP_SHARED | fixed, fds[0], 0);
    else if (!fixed)
        base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return client_fail(client, ZERO_NO_MEMORY, "map parameters", "%llu bytes: %s",
                           (unsigned long long)bytes, strerror(errno));
    client->param_map = (struct mapping){ base, bytes };
    if (sharded)
        s = map_shards(client, fds);
    madvise(base, bytes, MADV_DONTFORK);
    client->params = base;
    return s;
}

static zero_status map_trainer(zero_client *client, const struct zero_frame *frame)
{
    const Zero__V1__Registered *message = (const Zero__V1__Registered *)frame->message;
    const struct {
        int fd;
        uint64_t bytes;
        const char *what;
        struct mapping *to;
    } parts[] = {
        { FD_RING, pages(sizeof(struct zero_ring)), "ring", &client->ring_map },
        { FD_BELL, ZERO_PAGE_BYTES, "bell", &client->bell_map },
        { FD_WINDOW, message->window_bytes, "gradient window", &client->window_map },
        { FD_STAGING, 1 << 20, "staging", &client->staging_map },
    };

    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        zero_status s =
            map_whole(client, frame->fds[parts[i].fd], parts[i].bytes, parts[i].what, parts[i].to);
        if (zero_failed(s))
            return s;
    }
    client->ring = client->ring_map.base;
    client->bell = client->bell_map.base;
    client->window = client->window_map.base;
    return zero_success();
}

static zero_status map_all(zero_client *client, const struct zero_frame *frame)
{
    bool trainer = client->role == ZERO_TRAINER;
    size_t wanted = trainer ? FD_PARAM + (client->info.stage == 3 ? client->world : 1) : 0;

    if (frame->fd_count != wanted)
        return client_fail(client, ZERO_PROTOCOL, "map memory", "the daemon sent %zu fds, not %zu",
                           frame->fd_count, wanted);
    zero_status s = trainer ? map_trainer(client, frame) : zero_success();
    return zero_failed(s) || !trainer ? s : map_params(client, frame->fds + FD_PARAM);
}

zero_status mapping_open(zero_client *client, const struct zero_frame *frame)
{
    zero_status s = map_all(client, frame);

    if (zero_failed(s))
        mapping_close(client);
    return s;
}

zero_status mapping_renew(zero_client *client, const struct zero_frame *frame)
{
    return map_all(client, frame);
}

static void unmap(struct mapping *mapping)
{
    if (mapping->base != NULL)
        munmap(mapping->base, mapping->bytes);
    *mapping = (struct mapping){ NULL, 0 };
}

zero_status mapping_version(zero_client *client, int fd)
{
    uint64_t bytes = client->layout->flat_total * zero_dtype_bytes(client->info.param_dtype);
    zero_status s = check_memory(client, fd, bytes, "version");

    if (zero_failed(s))
        return s;
    if ((fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE) == 0)
        return client_fail(client, ZERO_PROTOCOL, "map version",
                           "the daemon's version is not sealed against writing");
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return client_fail(client, ZERO_NO_MEMORY, "map version", "%llu bytes: %s",
                           (unsigned long long)bytes, strerror(errno));
    madvise(base, bytes, MADV_DONTFORK);
    client->param_map = (struct mapping){ base, bytes };
    client->params = base;
    return s;
}

void mapping_unversion(zero_client *client)
{
    unmap(&client->param_map);
    client->params = NULL;
}

void mapping_close(zero_client *client)
{
    unmap(&client->ring_map);
    unmap(&client->bell_map);
    unmap(&client->window_map);
    unmap(&client->staging_map);
    unmap(&client->param_map);
    client->ring = NULL;
    client->bell = NULL;
    client->window = NULL;
    client->params = NULL;
}
