/* SPDX-License-Identifier: MIT */
/* A folder's list tells complete checkpoints from everything else; pruning takes only what may go.
 */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/store_sample.h"

static char dir[PATH_MAX];

static void make(uint64_t step)
{
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };
    char path[PATH_MAX];

    CHECK(!zero_failed(sample_layout(2, ZERO_FP32, &layout)));
    const struct sample sample = { layout, 1u << STORE_MASTER, 3, step };
    CHECK(!zero_failed(sample_save(&sample, dir, path, &detail)));
    zero_layout_destroy(layout);
}

static bool there(const char *name)
{
    char path[2 * PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

static void names(void)
{
    static const struct {
        const char *name;
        enum store_folder_kind kind;
        uint64_t step;
    } cases[] = {
        { "step-0", STORE_STEP, 0 },
        { "step-18446744073709551615", STORE_STEP, UINT64_MAX },
        { "step-18446744073709551616", STORE_FOREIGN, 0 },
        { "step-01", STORE_FOREIGN, 0 },
        { "step-+1", STORE_FOREIGN, 0 },
        { "step-", STORE_FOREIGN, 0 },
        { "step-1x", STORE_FOREIGN, 0 },
        { "step-7.partial-1-0123456789abcdef", STORE_PARTIAL, 7 },
        { "step-7.removing-0123456789abcdef", STORE_REMOVING, 7 },
        { "step-7.replaced-1", STORE_REPLACED, 7 },
        { "notes", STORE_FOREIGN, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t step = 0;
        CHECK(store_folder_parse(cases[i].name, &step) == cases[i].kind);
        CHECK(step == cases[i].step);
    }
}

/* step-1, 2, 10 complete; 20 empty; 3 a copy of another step; 40 set aside; a save that lives, one
 * that died. */
static void fill(struct store_save *living)
{
    struct store_save dead;
    struct zero_detail detail = { "" };
    char path[2 * PATH_MAX], from[2 * PATH_MAX];

    make(10);
    make(2);
    make(1);
    make(4);
    snprintf(from, sizeof from, "%s/step-4", dir);
    snprintf(path, sizeof path, "%s/step-3", dir);
    CHECK(rename(from, path) == 0);
    snprintf(path, sizeof path, "%s/step-20", dir);
    CHECK(mkdir(path, 0700) == 0);
    make(40);
    snprintf(from, sizeof from, "%s/step-40", dir);
    snprintf(path, sizeof path, "%s/step-40.replaced-1", dir);
    CHECK(rename(from, path) == 0);
    snprintf(path, sizeof path, "%s/notes", dir);
    CHECK(mkdir(path, 0700) == 0);
    CHECK(!zero_failed(store_begin(dir, 30, living, &detail)));
    CHECK(!zero_failed(store_begin(dir, 31, &dead, &detail)));
    store_leave(&dead);
}

static void listing(void)
{
    static const struct {
        uint64_t step;
        bool complete, busy;
        const char *why;
    } want[] = {
        { 1, true, false, NULL },
        { 2, true, false, NULL },
        { 3, false, false, "another step" },
        { 10, true, false, NULL },
        { 20, false, false, "manifest.json" },
        { 30, false, true, "being written" },
        { 31, false, false, "ended early" },
        { 40, false, false, "a later save has its name" },
    };
    enum { WANT = sizeof want / sizeof *want };
    struct store_list list = { .count = 0 };
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(store_list(dir, &list, &detail)));
    CHECK(list.count == WANT);
    for (size_t i = 0; i < list.count && i < WANT; i++) {
        const struct store_entry *entry = &list.entries[i];
        CHECK(entry->step == want[i].step && entry->complete == want[i].complete);
        CHECK(entry->busy == want[i].busy);
        if (want[i].why != NULL)
            CHECK_CONTAINS(entry->why, want[i].why);
        else
            CHECK(entry->why == NULL && entry->bytes > 0 && entry->world == 2 && entry->time > 0);
    }
    store_list_deinit(&list);
}

static void note_passed(void *context, const struct store_entry *entry)
{
    uint64_t *passed = context;

    CHECK(!entry->complete && entry->why != NULL);
    *passed = *passed * 100 + entry->step;
}

/* What is above the newest is told from the top down; what is below is not looked at. */
static void seeking(void)
{
    uint64_t passed = 0;
    const struct store_seek seek = { .dir = dir, .passed = note_passed, .context = &passed };
    const struct store_seek older = { .dir = dir, .before = 10 };
    struct zero_detail detail = { "" };
    char *path = NULL;

    CHECK(!zero_failed(store_seek(&seek, &path, &detail)));
    CHECK_CONTAINS(path, "/step-10");
    CHECK(passed == 313020);
    free(path);
    CHECK(!zero_failed(store_seek(&older, &path, &detail)));
    CHECK_CONTAINS(path, "/step-2");
    free(path);
}

/* ---- what cannot be looked at ---- */

/* Root may open everything: for a while the test is nobody. */
static void be_root(bool root)
{
    if (getuid() == 0)
        CHECK(seteuid(root ? 0 : 65534) == 0);
}

static void open_to_all(void)
{
    char command[PATH_MAX + 32];

    snprintf(command, sizeof command, "chmod -R a+rX '%s'", dir);
    CHECK(system(command) == 0);
}

/* The newest of three: it is not passed over, not counted, and not stale. */
static void check_unread(const char *what)
{
    struct store_list list = { .count = 0 };
    struct zero_detail detail = { "" };
    char *path = NULL;

    CHECK(store_newest(dir, &path, &detail).code == ZERO_IO && path == NULL);
    CHECK_CONTAINS(detail.text, what);
    CHECK_CONTAINS(detail.text, "/step-3: ");
    CHECK(!zero_failed(store_list(dir, &list, &detail)) && list.count == 3);
    CHECK(list.entries[0].complete && list.entries[1].complete);
    CHECK(!list.entries[2].complete && list.entries[2].unread);
    CHECK_CONTAINS(list.entries[2].why, what);
    CHECK(store_is_stale(&list, 0, 1, UINT64_MAX) && !store_is_stale(&list, 1, 1, UINT64_MAX));
    CHECK(!store_is_stale(&list, 2, 1, UINT64_MAX));
    store_list_deinit(&list);
}

static void no_permission(void)
{
    static const char *const names[] = { "", "manifest.json", "rank-1.json", "rank-1.safetensors" };
    char path[2 * PATH_MAX];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/step-3/%s", dir, names[i]);
        CHECK(chmod(path, 0) == 0);
        be_root(false);
        check_unread("cannot be opened: Permission denied");
        be_root(true);
        CHECK(chmod(path, 0755) == 0);
    }
}

/* With any number of fds it is the newest, or an error that says so. */
static void few_fds(void)
{
    struct rlimit before, few;
    struct zero_detail detail = { "" };
    char *path = NULL;
    int next = dup(0), refused = 0;

    close(next);
    CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few = before;
    for (few.rlim_cur = (rlim_t)next; path == NULL && few.rlim_cur < 100; few.rlim_cur++) {
        CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
        zero_status s = store_newest(dir, &path, &detail);
        refused += zero_failed(s);
        CHECK(!zero_failed(s) || s.code == ZERO_IO);
        if (zero_failed(s))
            CHECK_CONTAINS(detail.text, "Too many open files");
    }
    CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK(refused == 4); /* at the folder, step-3, its manifest, and the second rank's record */
    CHECK_CONTAINS(path != NULL ? path : "", "/step-3");
    free(path);
}

/* Somebody may be writing it. */
static void hidden_partial(void)
{
    struct store_list list = { .count = 0 };
    struct store_save begun = { .fd = -1 };
    struct zero_detail detail = { "" };
    char *path = NULL;

    CHECK(!zero_failed(store_begin(dir, 9, &begun, &detail)));
    store_leave(&begun);
    CHECK(chmod(begun.path, 0) == 0);
    be_root(false);
    CHECK(!zero_failed(store_list(dir, &list, &detail)) && list.count == 4);
    CHECK(list.entries[3].unread && !list.entries[3].busy &&
          !store_is_stale(&list, 3, 1, UINT64_MAX));
    CHECK_CONTAINS(list.entries[3].why, "Permission denied");
    CHECK(!zero_failed(store_newest(dir, &path, &detail))); /* it is none, whoever writes it */
    CHECK_CONTAINS(path, "/step-3");
    be_root(true);
    CHECK(chmod(begun.path, 0700) == 0);
    free(path);
    store_list_deinit(&list);
}

static void unread(void)
{
    sample_dir(dir);
    for (uint64_t step = 1; step <= 3; step++)
        make(step);
    open_to_all();
    no_permission();
    few_fds();
    hidden_partial();
    sample_remove(dir);
}

int main(void)
{
    struct store_save living = { .fd = -1 };
    struct zero_detail detail = { "" };
    uint64_t removed = 0;
    char *path = NULL;

    names();
    sample_dir(dir);
    CHECK(store_newest(dir, &path, &detail).code == ZERO_NOT_FOUND && path == NULL);
    fill(&living);
    listing();
    seeking();
    CHECK(!zero_failed(store_newest(dir, &path, &detail)));
    CHECK_CONTAINS(path, "/step-10");
    free(path);
    CHECK(store_prune(dir, 0, UINT64_MAX, &removed, &detail).code == ZERO_INVALID_ARGUMENT);
    CHECK(!zero_failed(store_prune(dir, 2, 2, &removed, &detail)));
    CHECK(removed == 1 && there("step-1") && there("step-2") && there("step-10")); /* the dead */
    CHECK(!zero_failed(store_prune(dir, 2, UINT64_MAX, &removed, &detail)));
    CHECK(removed == 1); /* step-1 */
    CHECK(!there("step-1") && there("step-2") && there("step-3") && there("step-10"));
    CHECK(there("step-20") && there("step-40.replaced-1") && there("notes") &&
          access(living.path, F_OK) == 0);
    CHECK(!zero_failed(store_prune(dir, 1, UINT64_MAX, &removed, &detail)) && removed == 1);
    CHECK(there("step-10") && !there("step-2"));
    CHECK(!zero_failed(store_abandon(&living, &detail)));
    sample_remove(dir);
    unread();
    return check_done();
}
