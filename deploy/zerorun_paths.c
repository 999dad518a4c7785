/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_paths.h"

#include <err.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_program(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* NULL if no folder of PATH has it. */
static char *search(const char *name)
{
    const char *folders = getenv("PATH");
    char path[PATH_MAX];

    while (folders != NULL && *folders != '\0') {
        size_t length = strcspn(folders, ":");
        int n =
            snprintf(path, sizeof path, "%.*s/%s", (int)length, length > 0 ? folders : ".", name);
        if (n > 0 && (size_t)n < sizeof path && is_program(path))
            return strdup(path);
        folders += length + (folders[length] == ':');
    }
    return NULL;
}

char *paths_program(const char *name)
{
    if (strchr(name, '/') != NULL) {
        if (is_program(name))
            return strdup(name);
        warnx("%s: %s", name, access(name, F_OK) != 0 ? strerror(errno) : "is not a program");
        return NULL;
    }
    char *found = search(name);
    if (found == NULL)
        warnx("%s: no folder of PATH has a program of this name", name);
    return found;
}

/* In the folder of `program`; NULL: there is none. Links of its name are not followed yet: an
 * upgrade finds what they point to by then. */
static char *zerod_beside(const char *program)
{
    static const char *const places[] = { "zerod", "../daemon/zerod" };
    const char *slash = strrchr(program, '/');
    char path[PATH_MAX];

    for (size_t i = 0; slash != NULL && i < sizeof places / sizeof places[0]; i++) {
        int n = snprintf(path, sizeof path, "%.*s/%s", (int)(slash - program), program, places[i]);
        if (n > 0 && (size_t)n < sizeof path && is_program(path))
            return i == 0 ? strdup(path) : realpath(path, NULL);
    }
    return NULL;
}

char *paths_zerod(const char *named)
{
    char self[PATH_MAX];

    if (named != NULL)
        return paths_program(named);
    const char *called = (const char *)getauxval(AT_EXECFN); /* by execve's words: a link is one */
    char *found = called != NULL ? zerod_beside(called) : NULL;
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    if (found == NULL)
        found = zerod_beside(self);
    if (found == NULL)
        found = search("zerod");
    if (found == NULL)
        warnx("zerod is neither beside zerorun (%s) nor in PATH: name it with --zerod", self);
    return found;
}

char *paths_beside(const char *program)
{
    char *real = realpath(program, NULL), *path = NULL;

    if (real == NULL)
        return NULL;
    char *dot = strrchr(real, '.');
    if (dot != NULL && dot > strrchr(real, '/') + 1)
        *dot = '\0';
    if (asprintf(&path, "%s.json", real) < 0)
        path = NULL;
    free(real);
    return path;
}

char *paths_default_config(const char *program)
{
    char *path = paths_beside(program);

    if (path == NULL) {
        warn("%s", program);
    } else if (access(path, R_OK) != 0) {
        warnx("-o needs a config to change, and %s cannot be read: give one with --config", path);
        free(path);
        path = NULL;
    }
    return path;
}
