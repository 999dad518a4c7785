/* SPDX-License-Identifier: MIT */
#include "daemon/store/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/error.h"
#include "daemon/store/folder.h"

#define LOCK_NAME ".zerod-lock"

enum { MOST_TRIES = 100 /* of a file that somebody removes again and again */ };

void store_lock_init(struct store_lock *lock, const char *runtime_dir)
{
    char host[65] = "";

    gethostname(host, sizeof host - 1);
    *lock = (struct store_lock){ .fd = -1 };
    snprintf(lock->who, sizeof lock->who, "pid %d on %s, of the group in %.150s", (int)getpid(),
             host, runtime_dir);
}

static zero_status path_of(const char *dir, char path[PATH_MAX], struct zero_detail *detail)
{
    if (snprintf(path, PATH_MAX, "%s/" LOCK_NAME, dir) >= PATH_MAX)
        return store_refuse(detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    return zero_success();
}

static bool is_file(int fd, const char *path)
{
    struct stat open, named;

    return fd >= 0 && fstat(fd, &open) == 0 && stat(path, &named) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

/* ---- what the fcntl says -------------------------------------------------------------------- */

static zero_status refuse_busy(int fd, const char *dir, const char *advice,
                               struct zero_detail *detail)
{
    char who[sizeof((struct store_lock *)0)->who] = "";
    ssize_t bytes = pread(fd, who, sizeof who - 1, 0);

    who[bytes > 0 ? strcspn(who, "\n") : 0] = '\0';
    return store_refuse(detail, ZERO_BUSY, "%.120s is where another group saves (%s): %s", dir,
                        who[0] != '\0' ? who : "which has not said who it is", advice);
}

static zero_status refuse_lock(const char *path, struct zero_detail *detail)
{
    bool none = errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL;
    zero_status s = store_refuse_errno(detail, "%s cannot be locked", path);

    return none ? (zero_status){ ZERO_UNSUPPORTED, s.doing } : s;
}

/* ---- taking --------------------------------------------------------------------------------- */

/* A disk that is full must not cost the lock: then the error of the others says less. */
static void say_who(const struct store_lock *lock, int fd)
{
    char line[sizeof lock->who + 1];
    int bytes = snprintf(line, sizeof line, "%s\n", lock->who);

    if (ftruncate(fd, 0) == 0)
        (void)!pwrite(fd, line, (size_t)bytes, 0);
}

/* *out_again: another file has the name by now. */
static zero_status try_once(struct store_lock *lock, const char *dir, const char *path,
                            bool *out_again, struct zero_detail *detail)
{
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    zero_status s;

    *out_again = false;
    if (fd < 0)
        return store_refuse_errno(detail, "%s cannot be opened to write", path);
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
        *out_again = !is_file(fd, path);
        if (*out_again) {
            close(fd);
            return zero_success();
        }
        store_lock_give(lock);
        say_who(lock, fd);
        lock->fd = fd;
        return zero_success();
    }
    if (errno == EAGAIN || errno == EACCES)
        s = refuse_busy(fd, dir,
                        "give this run a zerod.checkpoint.dir of its own, or end that group first",
                        detail);
    else
        s = refuse_lock(path, detail);
    close(fd);
    return s;
}

zero_status store_lock_take(struct store_lock *lock, const char *dir,
                            struct zero_detail *out_detail)
{
    char path[PATH_MAX];
    bool again = true;
    zero_status s = path_of(dir, path, out_detail);

    if (zero_failed(s) || is_file(lock->fd, path))
        return s;
    s = store_make_dir(dir, out_detail);
    for (int i = 0; i < MOST_TRIES && again && !zero_failed(s); i++)
        s = try_once(lock, dir, path, &again, out_detail);
    if (!zero_failed(s) && again)
        return store_refuse(out_detail, ZERO_IO, "%s is removed again and again", path);
    return s;
}

zero_status store_lock_check(const struct store_lock *own, const char *dir,
                             struct zero_detail *out_detail)
{
    struct flock whole = { .l_type = F_RDLCK, .l_whence = SEEK_SET };
    char path[PATH_MAX];
    zero_status s = path_of(dir, path, out_detail);

    if (zero_failed(s) || is_file(own->fd, path))
        return s;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? zero_success() /* no group has ever been there */
                   : store_refuse_errno(out_detail, "%s cannot be opened", path);
    if (fcntl(fd, F_OFD_GETLK, &whole) != 0)
        s = refuse_lock(path, out_detail);
    else if (whole.l_type != F_UNLCK)
        s = refuse_busy(fd, dir, "save into another folder", out_detail);
    close(fd);
    return s;
}

void store_lock_give(struct store_lock *lock)
{
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = -1;
}
