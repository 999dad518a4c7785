/* SPDX-License-Identifier: MIT */
#include "client/ctl/group.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/ctl/commands.h"

enum { MOST_GROUPS = 32 };

/* What a search found. */
struct found {
    char dirs[MOST_GROUPS][PATH_MAX];
    int count;
};

struct group_path group_socket(const struct group *group, uint32_t rank)
{
    struct group_path path;

    snprintf(path.text, sizeof path.text, "%s/rank-%u.control", group->dir, rank);
    return path;
}

static int compare_ranks(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return (left > right) - (left < right);
}

/* The R of "rank-R.control", or -1. */
static long rank_of(const char *name)
{
    char *end = NULL;

    if (strncmp(name, "rank-", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    long rank = strtol(name + 5, &end, 10);
    return rank < ZERO_MAX_WORLD && strcmp(end, ".control") == 0 ? rank : -1;
}

void group_scan(struct group *group)
{
    DIR *dir = opendir(group->dir);
    const struct dirent *entry;

    group->count = 0;
    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL && group->count < ZERO_MAX_WORLD) {
        long rank = rank_of(entry->d_name);
        if (rank >= 0)
            group->ranks[group->count++] = (uint32_t)rank;
    }
    closedir(dir);
    qsort(group->ranks, group->count, sizeof *group->ranks, compare_ranks);
}

static bool listens(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(path) >= sizeof address.sun_path)
        return false;
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    bool alive = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
    close(fd);
    return alive;
}

/* A group runs when one of its daemons listens. */
static bool runs(struct group *group)
{
    group_scan(group);
    for (uint32_t i = 0; i < group->count; i++)
        if (listens(group_socket(group, group->ranks[i]).text))
            return true;
    return false;
}

static void search(const char *base, struct found *found)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;
    struct group group;
    struct stat stat;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL && found->count < MOST_GROUPS) {
        int bytes = snprintf(group.dir, sizeof group.dir, "%s/%s", base, entry->d_name);
        if (strncmp(entry->d_name, "zero-", 5) != 0 || bytes < 0 ||
            (size_t)bytes >= sizeof group.dir)
            continue;
        if (lstat(group.dir, &stat) != 0 || !S_ISDIR(stat.st_mode) || stat.st_uid != geteuid() ||
            !runs(&group))
            continue;
        memcpy(found->dirs[found->count++], group.dir, sizeof group.dir);
    }
    closedir(dir);
}

static int find_only(struct group *out)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct found *found = calloc(1, sizeof *found);
    int code = EXIT_GOOD;

    if (found == NULL)
        return complain(EXIT_IO, "no memory");
    if (runtime != NULL && *runtime != '\0' && strcmp(runtime, "/tmp") != 0)
        search(runtime, found);
    search("/tmp", found);
    if (found->count == 0) {
        code = complain(EXIT_GROUP,
                        "no group of yours is running: name its folder with --runtime-dir");
    } else if (found->count > 1) {
        code = complain(EXIT_GROUP, "several groups are running; name one with --runtime-dir:");
        for (int i = 0; i < found->count; i++)
            fprintf(stderr, "  %s\n", found->dirs[i]);
    } else {
        memcpy(out->dir, found->dirs[0], sizeof out->dir);
        group_scan(out);
    }
    free(found);
    return code;
}

int group_find(const char *given, struct group *out)
{
    const char *dir = given != NULL ? given : getenv("ZERO_RUNTIME_DIR");

    if (dir == NULL || *dir == '\0')
        return find_only(out);
    if (strlen(dir) >= sizeof out->dir)
        return complain(EXIT_USAGE, "the runtime folder's name is too long");
    memcpy(out->dir, dir, strlen(dir) + 1);
    if (access(dir, R_OK | X_OK) != 0)
        return complain(EXIT_GROUP, "no group in %s: %s", dir, strerror(errno));
    group_scan(out);
    if (out->count == 0)
        return complain(EXIT_GROUP, "no group in %s: there is no rank-*.control", dir);
    return EXIT_GOOD;
}
