/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_folder.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char lock_name[] = "zerorun.lock";

char *folder_file(const struct folder *folder, const char *format, ...)
{
    char name[NAME_MAX + 1], *path = NULL;
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    if (n < 0 || (size_t)n >= sizeof name || asprintf(&path, "%s/%s", folder->path, name) < 0) {
        warnx("no memory for a path in %s", folder->path);
        return NULL;
    }
    return path;
}

/* "rank-12.sock" and the like, and the config with overrides. */
static bool is_ours(const char *name)
{
    if (strncmp(name, "rank-", 5) != 0)
        return strcmp(name, "config.json") == 0;
    size_t digits = strspn(name + 5, "0123456789");
    return digits > 0 && name[5 + digits] == '.';
}

/* True if some process accepts connections there: only a refusal shows that nobody does. */
static bool answers(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool alive = false;

    if (fd >= 0 && strlen(path) < sizeof address.sun_path) {
        memcpy(address.sun_path, path, strlen(path) + 1);
        alive = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ||
                (errno != ECONNREFUSED && errno != ENOENT);
    }
    if (fd >= 0)
        close(fd);
    return alive;
}

/* Removes the group's files; with `look`, stops at a socket that is in use. */
static bool sweep(const struct folder *folder, bool look)
{
    DIR *dir = opendir(folder->path);
    bool ok = true;

    for (struct dirent *entry; ok && dir != NULL && (entry = readdir(dir)) != NULL;) {
        char *path = is_ours(entry->d_name) ? folder_file(folder, "%s", entry->d_name) : NULL;
        struct stat st;

        if (path == NULL || lstat(path, &st) != 0) {
            free(path);
            continue;
        }
        if (look && S_ISSOCK(st.st_mode) && answers(path)) {
            warnx("a daemon listens on %s: stop it, or use another --runtime-dir", path);
            ok = false;
        } else if (unlink(path) != 0) {
            warn("cannot remove %s", path);
            ok = !look;
        }
        free(path);
    }
    if (dir != NULL)
        closedir(dir);
    return ok;
}

static void complain_locked(const struct folder *folder, int fd)
{
    char pid[32] = "";
    ssize_t n = pread(fd, pid, sizeof pid - 1, 0);

    pid[n > 0 ? strcspn(pid, "\n") : 0] = '\0';
    warnx("the group of zerorun process %s runs in %s: stop it, or use another --runtime-dir", pid,
          folder->path);
}

static bool lock(struct folder *folder)
{
    char *path = folder_file(folder, "%s", lock_name);
    struct stat ours, there;
    bool ok = false;

    while (path != NULL) {
        int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0) {
            warn("the runtime folder %s cannot be used: %s", folder->path, lock_name);
            break;
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            complain_locked(folder, fd);
            close(fd);
            break;
        }
        /* Whoever held it before may have removed the file after we opened it. */
        if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino) {
            folder->lock_fd = fd;
            ok = ftruncate(fd, 0) == 0 && dprintf(fd, "%d\n", (int)getpid()) > 0;
            if (!ok)
                warn("cannot write %s", path);
            break;
        }
        close(fd);
    }
    free(path);
    return ok;
}

static bool make_fresh(struct folder *folder)
{
    const char *base = getenv("XDG_RUNTIME_DIR");
    struct stat st;

    if (base == NULL || base[0] != '/' || stat(base, &st) != 0 || !S_ISDIR(st.st_mode))
        base = "/tmp";
    if (asprintf(&folder->path, "%s/zero-%d-XXXXXX", base, (int)getpid()) < 0) {
        folder->path = NULL;
        warnx("no memory for the runtime folder's path");
        return false;
    }
    if (mkdtemp(folder->path) == NULL) {
        warn("cannot make a runtime folder in %s: name another with --runtime-dir", base);
        return false;
    }
    folder->created = folder->fresh = true;
    return true;
}

/* A folder that others can write to would let them put their sockets in place of ours. */
static bool take_given(const char *given, struct folder *folder)
{
    struct stat st;

    folder->created = mkdir(given, 0700) == 0;
    if (!folder->created && errno != EEXIST) {
        warn("cannot make the runtime folder %s", given);
        return false;
    }
    if (stat(given, &st) != 0 || !S_ISDIR(st.st_mode)) {
        warnx("the runtime folder %s is not a folder", given);
        return false;
    }
    if (st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
        /* Nobody should be led to close /tmp. */
        bool shared = st.st_uid != geteuid() || (st.st_mode & (S_ISVTX | S_IWOTH)) != 0;
        warnx("the runtime folder %s must be yours, and nobody else may write to it: %s", given,
              shared ? "it is shared, so make one of your own (mkdir -m 700 DIR) and name that"
                     : "chmod 700 it, or name another");
        return false;
    }
    if (access(given, W_OK | X_OK) != 0) {
        warn("the runtime folder %s is not writable", given);
        return false;
    }
    folder->path = realpath(given, NULL);
    if (folder->path == NULL)
        warn("%s", given);
    return folder->path != NULL;
}

static bool fits(const struct folder *folder, uint32_t world)
{
    size_t room = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;
    int name = snprintf(NULL, 0, "/rank-%u.control", world - 1);

    if (strlen(folder->path) + (size_t)name <= room)
        return true;
    warnx("the runtime folder %s is too long: socket paths have at most %zu bytes, so it may have "
          "%zu; name a shorter one with --runtime-dir",
          folder->path, room, room - (size_t)name);
    return false;
}

bool folder_open(const char *given, uint32_t world, struct folder *out)
{
    struct folder folder = { .lock_fd = -1 };
    bool locked = false;
    bool ok =
        (given != NULL ? take_given(given, &folder) : make_fresh(&folder)) && fits(&folder, world);

    if (ok)
        locked = lock(&folder);
    if (locked && sweep(&folder, /* look= */ true)) {
        *out = folder;
        return true;
    }
    if (locked) { /* the daemons that answered keep their files */
        char *path = folder_file(&folder, "%s", lock_name);
        if (path != NULL)
            unlink(path);
        free(path);
    }
    if (folder.created && folder.path != NULL)
        rmdir(folder.path);
    else if (folder.created && given != NULL)
        rmdir(given);
    folder_deinit(&folder);
    return false;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    remove(path);
    return 0;
}

void folder_remove(const struct folder *folder)
{
    if (folder->fresh) {
        nftw(folder->path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
        return;
    }
    sweep(folder, /* look= */ false);
    char *path = folder_file(folder, "%s", lock_name);
    if (path != NULL)
        unlink(path);
    free(path);
    if (folder->created && rmdir(folder->path) != 0)
        warn("the runtime folder %s stays", folder->path);
}

void folder_deinit(struct folder *folder)
{
    if (folder->lock_fd >= 0)
        close(folder->lock_fd);
    free(folder->path);
    folder->lock_fd = -1;
    folder->path = NULL;
}
