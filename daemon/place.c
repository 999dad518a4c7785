/* SPDX-License-Identifier: MIT */
#include "daemon/place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"

/* Who can write to it can put a socket of his own in place of ours. Reading it does no harm: what
 * lies in it is closed itself. */
static zero_status check_folder(const char *dir)
{
    struct stat st;

    if (stat(dir, &st) != 0)
        return FAIL(SYSTEM, "check runtime folder", "%s: %s", dir, strerror(errno));
    if ((st.st_uid != geteuid() && st.st_uid != 0) || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return FAIL(PERMISSION, "check runtime folder",
                    "%s must be of uid %u, and nobody else may write to it: it is of uid %u with "
                    "mode %03o; make one with mkdir -m 700",
                    dir, (unsigned)geteuid(), (unsigned)st.st_uid, (unsigned)st.st_mode & 07777);
    return zero_success();
}

static zero_status make_folder(struct place *place, const char *dir)
{
    if (mkdir(dir, 0700) != 0 && errno != EEXIST)
        return FAIL(SYSTEM, "make runtime folder", "%s: %s", dir, strerror(errno));
    place->dir = realpath(dir, NULL);
    if (place->dir == NULL)
        return FAIL(SYSTEM, "find runtime folder", "%s: %s", dir, strerror(errno));
    return check_folder(place->dir);
}

static zero_status take_lock(struct place *place)
{
    char path[4096];
    int bytes = snprintf(path, sizeof path, "%s/rank-%u.lock", place->dir, place->rank);

    if (bytes < 0 || (size_t)bytes >= sizeof path)
        return FAIL(INVALID_ARGUMENT, "take lock", "the runtime folder's name is too long");
    place->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (place->lock < 0)
        return FAIL(SYSTEM, "take lock", "%s: %s: is the runtime folder writable?", path,
                    strerror(errno));
    if (flock(place->lock, LOCK_EX | LOCK_NB) != 0)
        return FAIL(BUSY, "take lock", "another zerod runs as rank %u in %s", place->rank,
                    place->dir);
    return zero_success();
}

zero_status place_take(struct place *place, const char *dir, uint32_t rank)
{
    zero_status s;

    *place = (struct place){ .rank = rank, .lock = -1 };
    TRY(s, make_folder(place, dir));
    TRY(s, take_lock(place));
out:
    return s;
}

void place_leave(struct place *place)
{
    close(place->lock);
    place->lock = -1;
}

void place_clear(struct place *place)
{
    static const char *const names[] = { "sock", "control", "peer", "lock" };
    char path[4096];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/rank-%u.%s", place->dir, place->rank, names[i]);
        unlink(path);
    }
    free(place->dir);
    place->dir = NULL;
}
