/* SPDX-License-Identifier: MIT */
#include "daemon/store/trial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/folder.h"

#define TRIAL_NAME ".zerod-trial" /* no checkpoint: lists and prunes do not see it */

static zero_status write_file(int folder, const char *dir, struct zero_detail *detail)
{
    static const char text[] = "zerod looks whether it can save here\n";
    zero_status s;
    int fd = openat(folder, "new", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

    if (fd < 0)
        return store_refuse_errno(detail, "no file can be made in %s", dir);
    if (!store_write_all(fd, text, sizeof text - 1))
        s = store_refuse_errno(detail, "no file can be written in %s", dir);
    else
        s = store_sync(fd, dir, detail);
    if (close(fd) != 0 && errno != EINTR && !zero_failed(s))
        s = store_refuse_errno(detail, "no file can be written in %s", dir);
    if (!zero_failed(s) && renameat(folder, "new", folder, "whole") != 0)
        s = store_refuse_errno(detail, "no file can be renamed in %s", dir);
    return s;
}

static zero_status use_folder(int parent, const char *dir, struct zero_detail *detail)
{
    int folder = openat(parent, TRIAL_NAME, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (folder < 0)
        return store_refuse_errno(detail, "%s/" TRIAL_NAME " cannot be opened", dir);
    zero_status s = write_file(folder, dir, detail);
    if (!zero_failed(s))
        s = store_sync(folder, dir, detail);
    close(folder);
    return s;
}

zero_status store_try(const char *dir, struct zero_detail *out_detail)
{
    struct zero_detail ignored = { "" };
    int parent = -1;
    zero_status s;

    TRY(s, store_make_dir(dir, out_detail));
    parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) {
        s = store_refuse_errno(out_detail, "%s cannot be opened", dir);
        goto out;
    }
    store_folder_remove(parent, TRIAL_NAME, &ignored); /* of one that died */
    if (mkdirat(parent, TRIAL_NAME, 0700) != 0) {
        s = store_refuse_errno(out_detail, "no folder can be made in %s", dir);
        goto out;
    }
    s = use_folder(parent, dir, out_detail);
    zero_status removed =
        store_folder_remove(parent, TRIAL_NAME, zero_failed(s) ? &ignored : out_detail);
    s = zero_failed(s) ? s : removed;
out:
    if (parent >= 0)
        close(parent);
    return s;
}
