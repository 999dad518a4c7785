/* SPDX-License-Identifier: MIT */
#include "daemon/store/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "daemon/store/error.h"
#include "daemon/store/folder.h"

enum { SEAL_BYTES = 51, SUM_CHARS = 32, CHUNK = 1 << 16 };

static void seal_text(XXH128_hash_t sum, char out[SEAL_BYTES + 1])
{
    snprintf(out, SEAL_BYTES + 1, ",\n\"checksum\": \"%016" PRIx64 "%016" PRIx64 "\"\n}\n",
             (uint64_t)sum.high64, (uint64_t)sum.low64);
}

/* ---- writing ---- */

/* Of the stream: what passes is summed. */
static ssize_t on_write(void *cookie, const char *text, size_t bytes)
{
    struct store_sealed *sealed = cookie;

    XXH3_128bits_update(sealed->state, text, bytes);
    if (store_write_all(sealed->fd, text, bytes))
        return (ssize_t)bytes;
    sealed->error = errno;
    return 0;
}

zero_status store_sealed_create(int folder, const char *name, struct store_sealed *out,
                                struct zero_detail *out_detail)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;

    *out = (struct store_sealed){ .name = name };
    out->fd = openat(folder, name, flags, 0600);
    if (out->fd < 0)
        return store_refuse_errno(out_detail, "%s cannot be made", name);
    out->state = XXH3_createState();
    if (out->state != NULL) {
        XXH3_128bits_reset(out->state);
        out->to = fopencookie(out, "w", (cookie_io_functions_t){ .write = on_write });
    }
    if (out->to != NULL)
        return zero_success();
    store_sealed_abandon(out);
    return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory to write %s", name);
}

/* fsync is repeated when interrupted: it did nothing then. close is not: the fd is gone. */
static int sync_and_close(int fd)
{
    int error = 0;

    while (fsync(fd) != 0) {
        if (errno != EINTR) {
            error = errno;
            break;
        }
    }
    if (close(fd) != 0 && errno != EINTR && error == 0)
        error = errno;
    return error;
}

zero_status store_sealed_finish(struct store_sealed *sealed, struct zero_detail *out_detail)
{
    char seal[SEAL_BYTES + 1];
    bool bad = fflush(sealed->to) != 0 || ferror(sealed->to);

    seal_text(XXH3_128bits_digest(sealed->state), seal);
    if (!bad && !store_write_all(sealed->fd, seal, SEAL_BYTES)) {
        bad = true;
        sealed->error = errno;
    }
    int error = sync_and_close(sealed->fd);
    sealed->fd = -1;
    if (bad)
        error = sealed->error != 0 ? sealed->error : EIO;
    store_sealed_abandon(sealed);
    errno = error;
    return error == 0 ? zero_success()
                      : store_refuse_errno(out_detail, "%s cannot be written", sealed->name);
}

void store_sealed_abandon(struct store_sealed *sealed)
{
    if (sealed->to != NULL)
        fclose(sealed->to);
    if (sealed->fd >= 0)
        close(sealed->fd);
    XXH3_freeState(sealed->state);
    sealed->to = NULL;
    sealed->state = NULL;
    sealed->fd = -1;
}

/* ---- reading ---- */

zero_status store_file_open(int folder, const char *name, struct store_file *out,
                            struct zero_detail *out_detail)
{
    /* a pipe in a file's place must not block us */
    int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat what;

    if (fd < 0 && errno != ENXIO) /* a socket's */
        return store_refuse_errno(out_detail, "%s cannot be opened", name);
    if (fd >= 0 && fstat(fd, &what) != 0) {
        zero_status s = store_refuse_errno(out_detail, "%s cannot be looked at", name);
        close(fd);
        return s;
    }
    if (fd < 0 || !S_ISREG(what.st_mode)) {
        if (fd >= 0)
            close(fd);
        return store_refuse(out_detail, ZERO_CORRUPT, "%s is not a regular file", name);
    }
    *out = (struct store_file){ fd, name, (uint64_t)what.st_size };
    return zero_success();
}

void store_file_close(struct store_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

zero_status store_file_read(const struct store_file *file, uint64_t offset, size_t bytes, void *to,
                            struct zero_detail *out_detail)
{
    unsigned char *at = to;

    while (bytes > 0) {
        ssize_t got = pread(file->fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return store_refuse_errno(out_detail, "%s cannot be read at byte %" PRIu64, file->name,
                                      offset);
        if (got == 0)
            return store_refuse(out_detail, ZERO_CORRUPT, "%s ends at byte %" PRIu64, file->name,
                                offset);
        at += got;
        offset += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return zero_success();
}

static zero_status sum_file(const struct store_file *file, XXH3_state_t *state,
                            struct zero_detail *detail)
{
    char chunk[CHUNK], seal[SEAL_BYTES + 1];
    uint64_t covered = file->bytes - SEAL_BYTES;

    for (uint64_t at = 0, take; at < covered; at += take) {
        take = covered - at < CHUNK ? covered - at : CHUNK;
        zero_status s = store_file_read(file, at, take, chunk, detail);
        if (zero_failed(s))
            return s;
        XXH3_128bits_update(state, chunk, take);
    }
    zero_status s = store_file_read(file, covered, SEAL_BYTES, chunk, detail);
    if (zero_failed(s))
        return s;
    seal_text(XXH3_128bits_digest(state), seal);
    if (memcmp(seal, chunk, SEAL_BYTES) != 0)
        return store_refuse(detail, ZERO_CORRUPT,
                            "%s does not match its checksum: it was damaged or changed",
                            file->name);
    XXH3_128bits_update(state, chunk, SEAL_BYTES);
    return zero_success();
}

zero_status store_sealed_check(const struct store_file *file, struct store_sum *out_sum,
                               struct zero_detail *out_detail)
{
    if (file->bytes < SEAL_BYTES)
        return store_refuse(out_detail, ZERO_CORRUPT,
                            "%s has only %" PRIu64 " bytes: it was cut off", file->name,
                            file->bytes);
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory to read %s", file->name);
    XXH3_128bits_reset(state);
    zero_status s = sum_file(file, state, out_detail);
    if (!zero_failed(s)) {
        XXH128_hash_t sum = XXH3_128bits_digest(state);
        snprintf(out_sum->text, sizeof out_sum->text, "%016" PRIx64 "%016" PRIx64,
                 (uint64_t)sum.high64, (uint64_t)sum.low64);
    }
    XXH3_freeState(state);
    return s;
}
