/* SPDX-License-Identifier: MIT */
/* device.h: where arenas live and which kernels work on them.
 *
 * Owns    a device owns nothing but itself; a device_buf owns its memory and fds.
 * Thread  any, one call at a time on one buf.
 * Fails   NO_MEMORY when memory cannot be had: at alloc, never later. CORRUPT when what shall be
 *         adopted is not such memory.
 * Uses    base, kernels.   Used by comm, shard, step.
 */
#ifndef DAEMON_DEVICE_DEVICE_H
#define DAEMON_DEVICE_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernel_set.h"
#include "proto/status.h"

/* One memory object. A zeroed struct is an absent one (bytes 0, fds to be ignored). */
struct device_buf {
    char name[16];
    void *base;
    size_t bytes;
    int fd;      /* read-write; kept by the owner, lent to whoever must write */
    int read_fd; /* a read-only re-open: handed to peers and trainers */
};

struct device {
    const struct device_ops *ops;
    const struct kernel_set *kernels;
};

struct device_ops {
    const char *name; /* as written in the config */
    zero_status (*open)(const char *kernels, struct device **out);
    void (*close)(struct device *device); /* NULL is a no-op */
    /* Zeroed, resident memory; bytes is a multiple of the page size. */
    zero_status (*alloc)(struct device *device, const char *name, size_t bytes,
                         struct device_buf *out);
    /* Memory of alloc that outlived its process: checked to be what alloc makes. Takes fd over when
     * it succeeds. */
    zero_status (*adopt)(struct device *device, const char *name, int fd, size_t bytes,
                         struct device_buf *out);
    /* As alloc, for memory that will be frozen. */
    zero_status (*draft)(struct device *device, const char *name, size_t bytes,
                         struct device_buf *out);
    /* From now on nobody can change a byte of a draft, whoever has a descriptor of it; it is not
     * mapped here any more, and read_fd is what is left of it. */
    zero_status (*freeze)(struct device *device, struct device_buf *buf);
    void (*free)(struct device *device,
                 struct device_buf *buf); /* absent: no-op; leaves it absent */
    /* Refuses, with numbers, what alloc could only be killed for. */
    zero_status (*check_room)(struct device *device, uint64_t bytes);
};

/* The backend of that name; NULL if there is none. */
const struct device_ops *device_find(const char *name);

extern const struct device_ops device_cpu;

#endif
