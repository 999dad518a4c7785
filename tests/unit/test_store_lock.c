/* SPDX-License-Identifier: MIT */
/* A folder of checkpoints is one group's at a time, and one that cannot be written is found out. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/lock.h"
#include "daemon/store/trial.h"
#include "tests/unit/store_sample.h"

static char dir[PATH_MAX], deep[PATH_MAX + 16], name[PATH_MAX + 32];
static struct zero_detail detail;

static bool takes(struct store_lock *lock)
{
    return !zero_failed(store_lock_take(lock, deep, &detail));
}

static void taking(void)
{
    struct store_lock one, other, none;

    store_lock_init(&one, "/run/one");
    store_lock_init(&other, "/run/other");
    store_lock_init(&none, "/run/none");
    CHECK(!zero_failed(store_lock_check(&none, deep, &detail))); /* not even there */
    CHECK(takes(&one) && takes(&one));
    CHECK(store_lock_take(&other, deep, &detail).code == ZERO_BUSY && other.fd == -1);
    CHECK_CONTAINS(detail.text, "/run/one)");
    CHECK_CONTAINS(detail.text, "zerod.checkpoint.dir of its own");
    CHECK(store_lock_check(&none, deep, &detail).code == ZERO_BUSY);
    CHECK_CONTAINS(detail.text, "another folder");
    CHECK(!zero_failed(store_lock_check(&one, deep, &detail)));
    close(open(name, O_RDONLY)); /* which would give up a lock of the process */
    CHECK(store_lock_check(&none, deep, &detail).code == ZERO_BUSY);
    store_lock_give(&one);
    store_lock_give(&one);
    CHECK(!zero_failed(store_lock_check(&none, deep, &detail)));
    CHECK(takes(&other));
    CHECK(store_lock_take(&one, deep, &detail).code == ZERO_BUSY);
    CHECK_CONTAINS(detail.text, "/run/other)");

    CHECK(unlink(name) == 0); /* what the other has guards nothing any more */
    CHECK(takes(&one));
    CHECK(store_lock_take(&other, deep, &detail).code == ZERO_BUSY && other.fd >= 0);
    CHECK_CONTAINS(detail.text, "/run/one)");
    store_lock_give(&one);
    CHECK(takes(&other));
    store_lock_give(&other);
    CHECK(unlink(name) == 0 && symlink("/dev/null", name) == 0);
    CHECK(store_lock_take(&one, deep, &detail).code == ZERO_PERMISSION && one.fd == -1);
    CHECK(unlink(name) == 0);
}

static void trying(void)
{
    char left[2 * PATH_MAX];

    CHECK(!zero_failed(store_try(deep, &detail)));
    CHECK(rmdir(deep) == 0); /* nothing is left */
    CHECK(!zero_failed(store_try(deep, &detail)));
    snprintf(left, sizeof left, "%s/.zerod-trial", deep); /* of one that died */
    CHECK(mkdir(left, 0700) == 0);
    CHECK(!zero_failed(store_try(deep, &detail)));
    CHECK(rmdir(deep) == 0);
    close(open(deep, O_WRONLY | O_CREAT, 0600));
    CHECK(store_try(deep, &detail).code == ZERO_IO);
    CHECK_CONTAINS(detail.text, "/in/it cannot be used as a folder: Not a directory");
    CHECK(unlink(deep) == 0);
    CHECK(store_try("/proc/nowhere", &detail).code == ZERO_NOT_FOUND);
    CHECK_CONTAINS(detail.text, "/proc/nowhere");
    CHECK(zero_failed(store_try("/proc", &detail)));
    CHECK_CONTAINS(detail.text, "no folder can be made in /proc");
}

int main(void)
{
    sample_dir(dir);
    snprintf(deep, sizeof deep, "%s/in/it", dir);
    snprintf(name, sizeof name, "%s/.zerod-lock", deep);
    taking();
    trying();
    snprintf(deep, sizeof deep, "%s/in", dir);
    CHECK(rmdir(deep) == 0);
    CHECK(rmdir(dir) == 0);
    return check_done();
}
