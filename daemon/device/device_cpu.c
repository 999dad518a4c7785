/* SPDX-License-Identifier: MIT */
/* The CPU backend: an arena is a memfd, allocated in full and sealed before anybody else sees it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/device/device.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif

static zero_status cpu_open(const char *kernels, struct device **out)
{
    const char *known = NULL;
    const struct kernel_set *set = kernel_set_find(kernels, &known);

    if (set == NULL)
        return FAIL(UNSUPPORTED, "open cpu device",
                    "ZERO_KERNELS=%s is unknown or cannot run on this CPU; known: %s", kernels,
                    known);
    if (!kernel_float_mode_ok())
        return FAIL(
            SYSTEM, "open cpu device",
            "the process flushes denormals or does not round to nearest: start zerod without "
            "libraries that change the floating-point mode");
    struct device *device = calloc(1, sizeof *device);
    if (device == NULL)
        return FAIL(NO_MEMORY, "open cpu device", "%zu bytes", sizeof *device);
    device->ops = &device_cpu;
    device->kernels = set;
    *out = device;
    return zero_success();
}

static void cpu_close(struct device *device)
{
    free(device);
}

static int create_memfd(const char *name)
{
    char full[32];

    snprintf(full, sizeof full, "zero-%s", name);
    int fd = memfd_create(full, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
        fd = memfd_create(full, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

/* Faults every page in now: the first step must not pay for it. Older kernels have no populate. */
static void touch(struct device_buf *buf)
{
#ifdef MADV_POPULATE_WRITE
    if (madvise(buf->base, buf->bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t at = 0; at < buf->bytes; at += 4096)
        ((volatile char *)buf->base)[at] = 0;
}

static zero_status open_read_only(struct device_buf *buf)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/self/fd/%d", buf->fd);
    buf->read_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (buf->read_fd < 0)
        return FAIL(SYSTEM, "open arena read-only", "%s: %s (is /proc mounted?)", buf->name,
                    strerror(errno));
    return zero_success();
}

static zero_status map(struct device_buf *buf)
{
    void *base = mmap(NULL, buf->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, buf->fd, 0);

    if (base == MAP_FAILED)
        return FAIL(NO_MEMORY, "map arena", "%s of %zu bytes: %s", buf->name, buf->bytes,
                    strerror(errno));
    madvise(base, buf->bytes, MADV_HUGEPAGE); /* where the host allows it; nothing lost if not */
    buf->base = base;
    return zero_success();
}

static void cpu_free(struct device *device, struct device_buf *buf)
{
    (void)device;
    if (buf->bytes == 0)
        return;
    if (buf->base != NULL)
        munmap(buf->base, buf->bytes);
    if (buf->fd >= 0)
        close(buf->fd);
    if (buf->read_fd >= 0)
        close(buf->read_fd);
    memset(buf, 0, sizeof *buf);
}

static zero_status create(const char *name, size_t bytes, int seals, struct device_buf *out)
{
    zero_status s;
    struct device_buf buf = { .fd = -1, .read_fd = -1, .bytes = bytes };

    snprintf(buf.name, sizeof buf.name, "%s", name);
    buf.fd = create_memfd(name);
    if (buf.fd < 0) {
        s = FAIL(SYSTEM, "create arena", "%s: memfd_create: %s", name, strerror(errno));
        goto out;
    }
    if (fchmod(buf.fd, 0600) != 0) {
        s = FAIL(SYSTEM, "create arena", "%s: fchmod: %s", name, strerror(errno));
        goto out;
    }
    int error = posix_fallocate(buf.fd, 0, (off_t)bytes);
    if (error != 0) {
        s = FAIL(NO_MEMORY, "create arena", "%s of %zu bytes: %s%s", name, bytes, strerror(error),
                 error == EFBIG ? ": raise the limit of file sizes, which counts for memory too "
                                  "(ulimit -f, or LimitFSIZE= of a unit)"
                                : "");
        goto out;
    }
    if (fcntl(buf.fd, F_ADD_SEALS, seals) != 0) {
        s = FAIL(SYSTEM, "create arena", "%s: seal: %s", name, strerror(errno));
        goto out;
    }
    TRY(s, open_read_only(&buf));
    TRY(s, map(&buf));
    touch(&buf);
    *out = buf;
    memset(&buf, 0, sizeof buf);
out:
    cpu_free(NULL, &buf);
    return s;
}

static zero_status cpu_alloc(struct device *device, const char *name, size_t bytes,
                             struct device_buf *out)
{
    (void)device;
    return create(name, bytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, out);
}

static zero_status cpu_draft(struct device *device, const char *name, size_t bytes,
                             struct device_buf *out)
{
    (void)device;
    return create(name, bytes, F_SEAL_SHRINK | F_SEAL_GROW, out);
}

/* The kernel seals only what nobody has mapped for writing. */
static zero_status cpu_freeze(struct device *device, struct device_buf *buf)
{
    (void)device;
    munmap(buf->base, buf->bytes);
    buf->base = NULL;
    if (fcntl(buf->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) != 0)
        return FAIL(SYSTEM, "freeze memory", "%s: seal: %s", buf->name, strerror(errno));
    close(buf->fd);
    buf->fd = -1;
    return zero_success();
}

static zero_status check_kept(const char *name, int fd, size_t bytes)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct stat stat;

    if (fstat(fd, &stat) != 0 || (stat.st_mode & 0777) != 0600 || stat.st_uid != geteuid())
        return FAIL(CORRUPT, "adopt arena", "%s: what the holder kept is not ours", name);
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & wanted) != wanted)
        return FAIL(CORRUPT, "adopt arena", "%s: what the holder kept is not a sealed memfd", name);
    if (stat.st_size < 0 || (size_t)stat.st_size != bytes)
        return FAIL(CORRUPT, "adopt arena", "%s: what the holder kept has %jd bytes, not %zu", name,
                    (intmax_t)stat.st_size, bytes);
    return zero_success();
}

/* Its pages are there: they are mapped in as they are used. */
static zero_status cpu_adopt(struct device *device, const char *name, int fd, size_t bytes,
                             struct device_buf *out)
{
    zero_status s;
    struct device_buf buf = { .fd = fd, .read_fd = -1, .bytes = bytes };

    (void)device;
    snprintf(buf.name, sizeof buf.name, "%s", name);
    TRY(s, check_kept(name, fd, bytes));
    TRY(s, open_read_only(&buf));
    TRY(s, map(&buf));
    *out = buf;
    memset(&buf, 0, sizeof buf);
out:
    buf.fd = -1; /* the caller's when this failed */
    cpu_free(device, &buf);
    return s;
}

/* One number of a file such as a cgroup's memory.max; false when it is not a number. */
static bool read_number(const char *path, uint64_t *out)
{
    FILE *file = fopen(path, "re");
    bool found = file != NULL && fscanf(file, "%" SCNu64, out) == 1;

    if (file != NULL)
        fclose(file);
    return found;
}

static uint64_t available_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = 0, room = UINT64_MAX;

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            room = kib * 1024;
    if (file != NULL)
        fclose(file);
    return room;
}

/* What the memory controller of this process still allows; UINT64_MAX without a limit. */
static uint64_t cgroup_room(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[512], path[640];
    uint64_t most = 0, used = 0, room = UINT64_MAX;

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "0::", 3) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.max", line + 3);
        bool limited = read_number(path, &most);
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/memory.current", line + 3);
        if (limited && read_number(path, &used))
            room = most > used ? most - used : 0;
    }
    if (file != NULL)
        fclose(file);
    return room;
}

/* Shared memory that does not fit is not refused by the kernel: somebody is killed for it. */
static zero_status cpu_check_room(struct device *device, uint64_t bytes)
{
    uint64_t host = available_bytes(), group = cgroup_room();

    (void)device;
    if (bytes > host)
        return REFUSE(NO_MEMORY, "check memory",
                      "this rank needs %" PRIu64 " bytes and the host has %" PRIu64
                      " available: use more hosts, a higher ZeRO stage, or a smaller model",
                      bytes, host);
    if (bytes > group)
        return REFUSE(NO_MEMORY, "check memory",
                      "this rank needs %" PRIu64 " bytes and its cgroup allows %" PRIu64
                      " more: raise memory.max (systemd: MemoryMax=)",
                      bytes, group);
    return zero_success();
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .adopt = cpu_adopt,
    .draft = cpu_draft,
    .freeze = cpu_freeze,
    .free = cpu_free,
    .check_room = cpu_check_room,
};
