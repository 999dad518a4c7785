/* SPDX-License-Identifier: MIT */
#include "daemon/store/replace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/error.h"
#include "daemon/store/folder.h"
#include "daemon/store/ranks.h"

enum { TRIES = 10 /* of a name that somebody gives and takes meanwhile */ };

/* ---- the same state ------------------------------------------------------------------------- */

static bool same_rank(const struct store_record *a, const struct store_record *b)
{
    return a->header_bytes == b->header_bytes && a->file_bytes == b->file_bytes &&
           a->sum_count == b->sum_count && a->blob_bytes == b->blob_bytes &&
           memcmp(a->sums, b->sums, a->sum_count * sizeof *a->sums) == 0 &&
           memcmp(a->blob, b->blob, a->blob_bytes) == 0;
}

static bool same_layout(const struct zero_layout *a, const struct zero_layout *b)
{
    char *one = zero_layout_text(a), *other = zero_layout_text(b);
    bool same = a->world == b->world && a->dtype == b->dtype && one != NULL && other != NULL &&
                strcmp(one, other) == 0;

    free(one);
    free(other);
    return same;
}

/* All that a training goes on from; the config is not. */
static bool same_state(const struct store *a, const struct store *b)
{
    const struct store_manifest *m = &a->manifest, *n = &b->manifest;
    bool same =
        m->step == n->step && m->updates == n->updates && m->skipped_in_row == n->skipped_in_row &&
        m->states == n->states && m->scaler.scale == n->scaler.scale &&
        m->scaler.hysteresis_left == n->scaler.hysteresis_left &&
        m->scaler.iteration == n->scaler.iteration &&
        m->scaler.last_overflow == n->scaler.last_overflow && same_layout(m->layout, n->layout);

    for (uint32_t r = 0; same && r < m->world; r++)
        same = same_rank(&a->ranks[r].record, &b->ranks[r].record);
    return same;
}

/* By their checksums. A link, and what cannot be looked at, is not the same. */
static bool are_same(int fd, const char *dir, const char *name, const char *last)
{
    char path[PATH_MAX], other[PATH_MAX];
    struct store *a = NULL, *b = NULL;
    struct zero_detail ignored;
    struct stat what;

    bool same = fstatat(fd, last, &what, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(what.st_mode) &&
                snprintf(path, sizeof path, "%s/%s", dir, name) < PATH_MAX &&
                snprintf(other, sizeof other, "%s/%s", dir, last) < PATH_MAX &&
                !zero_failed(store_open(path, &a, &ignored)) &&
                !zero_failed(store_open(other, &b, &ignored)) && same_state(a, b);
    store_close(a);
    store_close(b);
    return same;
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Where the file system cannot refuse to replace, what is there is looked for. */
static bool rename_to(int fd, const char *from, const char *to)
{
    struct stat what;

    if (renameat2(fd, from, fd, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS)
        return false;
    if (fstatat(fd, to, &what, AT_SYMLINK_NOFOLLOW) == 0)
        errno = EEXIST;
    else if (errno == ENOENT)
        return renameat(fd, from, fd, to) == 0;
    return false;
}

/* To the first name that is free. */
static bool set_aside(int fd, const char *from, uint64_t step, char out[STORE_ASIDE_BYTES])
{
    for (uint32_t k = 1; k != 0; k++) {
        snprintf(out, STORE_ASIDE_BYTES, "step-%" PRIu64 ".replaced-%" PRIu32, step, k);
        if (rename_to(fd, from, out))
            return true;
        if (errno != EEXIST)
            return false;
    }
    return false;
}

/* Afterwards `aside` names what was `last`. */
static bool exchange(int fd, uint64_t step, char aside[STORE_ASIDE_BYTES], const char *last)
{
    char old[STORE_ASIDE_BYTES];

    if (renameat2(fd, aside, fd, last, RENAME_EXCHANGE) == 0)
        return true;
    if ((errno != EINVAL && errno != ENOSYS) || !set_aside(fd, last, step, old))
        return false;
    if (!rename_to(fd, aside, last)) {
        int error = errno;
        rename_to(fd, old, last);
        errno = error;
        return false;
    }
    memcpy(aside, old, sizeof old);
    return true;
}

/* On failure `name` is what it was. */
static bool take(int fd, const char *name, uint64_t step, const char *last,
                 char aside[STORE_ASIDE_BYTES])
{
    for (int i = 0; i < TRIES; i++) {
        aside[0] = '\0';
        if (rename_to(fd, name, last))
            return true;
        if (errno != EEXIST || !set_aside(fd, name, step, aside))
            break;
        if (exchange(fd, step, aside, last))
            return true;
        int error = errno;
        rename_to(fd, aside, name);
        errno = error;
        if (error != ENOENT) /* else it is gone meanwhile */
            break;
    }
    aside[0] = '\0';
    return false;
}

/* ---- all of it ------------------------------------------------------------------------------ */

zero_status store_take_name(const char *dir, const char *name, uint64_t step,
                            char out_aside[STORE_ASIDE_BYTES], struct zero_detail *out_detail)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct zero_detail ignored;
    struct stat what;
    char last[32];
    zero_status s;

    out_aside[0] = '\0';
    if (fd < 0)
        return store_refuse_errno(out_detail, "%s cannot be opened", dir);
    snprintf(last, sizeof last, "step-%" PRIu64, step);
    bool same = are_same(fd, dir, name, last);
    if (take(fd, name, step, last, out_aside))
        s = store_sync(fd, dir, out_detail);
    else
        s = store_refuse_errno(out_detail, "%s cannot be renamed to %s", name, last);
    if (!zero_failed(s) && same && out_aside[0] != '\0') {
        store_folder_discard(fd, out_aside, step, &ignored);
        if (fstatat(fd, out_aside, &what, AT_SYMLINK_NOFOLLOW) != 0)
            out_aside[0] = '\0';
    }
    close(fd);
    return s;
}
