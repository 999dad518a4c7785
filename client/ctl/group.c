/* SPDX-License-Identifier: MIT */
#include "client/ctl/group.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/commands.h"

enum {
    MOST_GROUPS = 32,
    LISTENS = 1 << 16, /* __SO_ACCEPTCON in the flags of /proc/net/unix */
};

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

static int compare_dirs(const void *a, const void *b)
{
    return strcmp(a, b);
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

/* A line of /proc/net/unix: "slot: references protocol flags type state inode path". */
enum { UNIX_WORDS = 7 };

/* Cuts DIR out of a line about a socket that listens at DIR/rank-R.control; NULL: another line. */
static char *control_dir(char *line)
{
    char *flags = NULL, *at = line;

    for (int word = 0; word < UNIX_WORDS; word++) {
        at += strspn(at, " ");
        if (word == 3)
            flags = at;
        at += strcspn(at, " \n");
    }
    at += strspn(at, " ");
    at[strcspn(at, "\n")] = '\0';
    char *slash = strrchr(at, '/');
    if (*at != '/' || slash == NULL || rank_of(slash + 1) < 0 ||
        (strtoul(flags, NULL, 16) & LISTENS) == 0)
        return NULL;
    struct stat stat;
    if (lstat(at, &stat) != 0 || !S_ISSOCK(stat.st_mode) || stat.st_uid != geteuid())
        return NULL;
    *slash = '\0';
    return at;
}

static void add_dir(struct found *found, const char *dir)
{
    for (int i = 0; i < found->count; i++)
        if (strcmp(found->dirs[i], dir) == 0)
            return;
    size_t bytes = strlen(dir) + 1;
    if (found->count < MOST_GROUPS && bytes <= sizeof *found->dirs)
        memcpy(found->dirs[found->count++], dir, bytes);
}

/* Every group of this user whose daemons listen, wherever its folder is: the kernel knows. */
static int search(struct found *found)
{
    FILE *sockets = fopen("/proc/net/unix", "re");
    char *line = NULL;
    size_t room = 0;

    if (sockets == NULL)
        return complain(EXIT_IO, "/proc/net/unix: %s: name the folder with --runtime-dir",
                        strerror(errno));
    while (getline(&line, &room, sockets) > 0) {
        const char *dir = control_dir(line);
        if (dir != NULL)
            add_dir(found, dir);
    }
    free(line);
    fclose(sockets);
    qsort(found->dirs, (size_t)found->count, sizeof *found->dirs, compare_dirs);
    return EXIT_GOOD;
}

static int find_only(struct group *out)
{
    struct found *found = calloc(1, sizeof *found);

    if (found == NULL)
        return complain(EXIT_IO, "no memory");
    int code = search(found);
    if (code == EXIT_GOOD && found->count == 0) {
        code = complain(EXIT_GROUP,
                        "no group of yours is running: name its folder with --runtime-dir");
    } else if (code == EXIT_GOOD && found->count > 1) {
        code = complain(EXIT_GROUP, "several groups are running; name one with --runtime-dir:");
        for (int i = 0; i < found->count; i++)
            fprintf(stderr, "  %s\n", found->dirs[i]);
    } else if (code == EXIT_GOOD) {
        memcpy(out->dir, found->dirs[0], sizeof out->dir);
        group_scan(out);
    }
    free(found);
    return code;
}

int group_find(const char *given, struct group *out)
{
    const char *dir = given != NULL ? given : getenv("ZERO_RUNTIME_DIR");
    struct stat status;

    if (given != NULL && *given == '\0')
        return complain(EXIT_USAGE, "--runtime-dir is empty: name the group's folder");
    if (dir == NULL || *dir == '\0')
        return find_only(out);
    if (strlen(dir) >= sizeof out->dir)
        return complain(EXIT_USAGE, "the runtime folder's name is too long");
    memcpy(out->dir, dir, strlen(dir) + 1);
    if (stat(dir, &status) == 0 && !S_ISDIR(status.st_mode))
        return complain(EXIT_GROUP, "no group in %s: it is not a folder", dir);
    if (access(dir, R_OK | X_OK) != 0)
        return complain(EXIT_GROUP, "no group in %s: %s", dir, strerror(errno));
    group_scan(out);
    if (out->count == 0)
        return complain(EXIT_GROUP, "no group in %s: there is no rank-*.control", dir);
    return EXIT_GOOD;
}
