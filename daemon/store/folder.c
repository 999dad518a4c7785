/* SPDX-License-Identifier: MIT */
#include "daemon/store/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/error.h"

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

enum store_folder_kind store_folder_parse(const char *name, uint64_t *out_step)
{
    char again[32], *end = NULL;

    if (!begins(name, "step-") || name[5] < '0' || name[5] > '9')
        return STORE_FOREIGN;
    errno = 0;
    uint64_t step = strtoull(name + 5, &end, 10);
    int bytes = snprintf(again, sizeof again, "step-%" PRIu64, step);
    if (errno != 0 || end != name + bytes || !begins(name, again))
        return STORE_FOREIGN; /* too large, or with zeros in front: not written by us */
    enum store_folder_kind kind = *end == '\0'                ? STORE_STEP
                                  : begins(end, ".partial-")  ? STORE_PARTIAL
                                  : begins(end, ".removing-") ? STORE_REMOVING
                                  : begins(end, ".replaced-") ? STORE_REPLACED
                                                              : STORE_FOREIGN;
    if (kind != STORE_FOREIGN)
        *out_step = step;
    return kind;
}

enum store_folder_kind store_folder_named(const char *path, uint64_t *out_step)
{
    char *whole = realpath(path, NULL);
    const char *slash = whole != NULL ? strrchr(whole, '/') : NULL;
    enum store_folder_kind kind =
        slash != NULL ? store_folder_parse(slash + 1, out_step) : STORE_FOREIGN;

    free(whole);
    return kind;
}

zero_status store_make_dir(const char *dir, struct zero_detail *out_detail)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/", dir) >= PATH_MAX - 80)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        struct stat what;
        *slash = '\0';
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return store_refuse_errno(out_detail, "%s cannot be made", path);
        if (stat(path, &what) != 0)
            return store_refuse_errno(out_detail, "%s cannot be used as a folder", path);
        if (!S_ISDIR(what.st_mode)) {
            errno = ENOTDIR;
            return store_refuse_errno(out_detail, "%s cannot be used as a folder", path);
        }
        *slash = '/';
    }
    return zero_success();
}

zero_status store_sync(int fd, const char *what, struct zero_detail *out_detail)
{
    while (fsync(fd) != 0)
        if (errno != EINTR)
            return store_refuse_errno(out_detail, "%s cannot be brought to the disk", what);
    return zero_success();
}

bool store_write_all(int fd, const void *bytes, size_t count)
{
    const char *at = bytes;

    while (count > 0) {
        ssize_t wrote = write(fd, at, count);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        at += wrote;
        count -= (size_t)wrote;
    }
    return true;
}

zero_status store_random_id(char out[17], struct zero_detail *out_detail)
{
    uint64_t random = 0;

    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return store_refuse_errno(out_detail, "no random number can be had");
    snprintf(out, 17, "%016" PRIx64, random);
    return zero_success();
}

static zero_status remove_files(DIR *folder, const char *name, struct zero_detail *detail)
{
    struct dirent *entry;

    while (errno = 0, (entry = readdir(folder)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(folder), entry->d_name, 0) != 0 && errno != ENOENT)
            return store_refuse_errno(detail, "%s/%s cannot be removed", name, entry->d_name);
    }
    return errno == 0 ? zero_success() : store_refuse_errno(detail, "%s cannot be read", name);
}

zero_status store_folder_remove(int dir, const char *name, struct zero_detail *out_detail)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;

    if (folder == NULL) {
        zero_status s = store_refuse_errno(out_detail, "%s cannot be opened", name);
        if (fd >= 0)
            close(fd);
        return s;
    }
    zero_status s = remove_files(folder, name, out_detail);
    closedir(folder);
    if (zero_failed(s))
        return s;
    if (unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return store_refuse_errno(out_detail, "%s cannot be removed", name);
    return store_sync(dir, "the folder of the checkpoints", out_detail);
}

zero_status store_folder_discard(int dir, const char *name, uint64_t step,
                                 struct zero_detail *out_detail)
{
    char id[17], hidden[64];
    zero_status s = store_random_id(id, out_detail);

    if (zero_failed(s))
        return s;
    snprintf(hidden, sizeof hidden, "step-%" PRIu64 ".removing-%s", step, id);
    if (renameat(dir, name, dir, hidden) != 0)
        return store_refuse_errno(out_detail, "%s cannot be renamed", name);
    s = store_sync(dir, "the folder of the checkpoints", out_detail);
    return zero_failed(s) ? s : store_folder_remove(dir, hidden, out_detail);
}
