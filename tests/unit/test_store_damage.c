/* SPDX-License-Identifier: MIT */
/* No flipped bit, no missing byte and no exchanged file of a checkpoint goes unseen. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/store_sample.h"

enum { FILES = 5, FLIPS = 10000 };

static const char *const names[FILES] = { "manifest.json", "rank-0.json", "rank-1.json",
                                          "rank-0.safetensors", "rank-1.safetensors" };

static char dir[PATH_MAX], paths[2][PATH_MAX];
static uint64_t random_state = 88172645463325252u;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void make(int which, uint64_t step)
{
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(sample_tiny_layout(2, ZERO_BF16, &layout)));
    const struct sample sample = { layout, sample_states(ZERO_BF16), 3, step };
    CHECK(!zero_failed(sample_save(&sample, dir, paths[which], &detail)));
    zero_layout_destroy(layout);
}

static bool seen(const char *path)
{
    struct store *store = NULL;
    struct store_findings findings = { .problems = 0 };
    struct zero_detail detail = { "" };
    zero_status s = store_open(path, &store, &detail);

    if (!zero_failed(s))
        s = store_verify(store, NULL, &findings, &detail);
    store_close(store);
    CHECK(!zero_failed(s) || detail.text[0] != '\0');
    return zero_failed(s) || findings.problems > 0;
}

/* What may be whole is not passed over. */
static bool unread(const char *path)
{
    struct store *store = NULL;
    struct zero_detail detail = { "" };
    bool out = store_unread(store_open(path, &store, &detail));

    store_close(store);
    return out;
}

static char *path_of(int which, int file, char out[2 * PATH_MAX])
{
    snprintf(out, (size_t)2 * PATH_MAX, "%s/%s", paths[which], names[file]);
    return out;
}

/* ---- flips ---- */

static uint64_t sizes[FILES];
static int fds[FILES];

static void flip(int file, uint64_t at, unsigned bit)
{
    unsigned char byte = 0;

    if (pread(fds[file], &byte, 1, (off_t)at) != 1)
        abort();
    byte ^= (unsigned char)(1u << bit);
    if (pwrite(fds[file], &byte, 1, (off_t)at) != 1)
        abort();
}

static uint64_t try_flip(int file, uint64_t at)
{
    unsigned bit = (unsigned)(next_random() % 8);

    flip(file, at, bit);
    bool found = seen(paths[0]);
    flip(file, at, bit);
    if (!found)
        fprintf(stderr, "bit %u of byte %llu of %s: not seen\n", bit, (unsigned long long)at,
                names[file]);
    return !found;
}

static void flips(void)
{
    uint64_t missed = 0, tried = 0;
    char path[2 * PATH_MAX];

    for (int f = 0; f < FILES; f++) {
        struct stat what;
        fds[f] = open(path_of(0, f, path), O_RDWR);
        if (fds[f] < 0 || fstat(fds[f], &what) != 0)
            abort();
        sizes[f] = (uint64_t)what.st_size;
        /* every page once */
        for (uint64_t at = 0; at < sizes[f]; at += 4096, tried++) {
            uint64_t left = sizes[f] - at;
            missed += try_flip(f, at + next_random() % (left < 4096 ? left : 4096));
        }
    }
    for (int i = 0; i < FLIPS; i++, tried++) {
        int file = (int)(next_random() % FILES);
        missed += try_flip(file, next_random() % sizes[file]);
    }
    for (int f = 0; f < FILES; f++)
        close(fds[f]);
    printf("%llu bits flipped, %llu not seen\n", (unsigned long long)tried,
           (unsigned long long)missed);
    CHECK(missed == 0);
    CHECK(!seen(paths[0]));
}

/* ---- lengths ---- */

static void cut(int file, off_t size)
{
    char path[2 * PATH_MAX], kept[2 * PATH_MAX + 8], command[6 * PATH_MAX];

    path_of(0, file, path);
    snprintf(kept, sizeof kept, "%s.kept", path);
    snprintf(command, sizeof command, "cp -p '%s' '%s'", path, kept);
    CHECK(system(command) == 0);
    CHECK(truncate(path, size) == 0);
    if (!seen(paths[0])) {
        fprintf(stderr, "%s cut to %lld bytes\n", names[file], (long long)size);
        CHECK(false);
    }
    CHECK(rename(kept, path) == 0);
}

static void lengths(void)
{
    for (int f = 0; f < FILES; f++) {
        off_t size = (off_t)sizes[f];
        const off_t cuts[] = { 0, 1, 50, 51, 52, size / 2, size - 4096, size - 1, size + 1 };
        for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
            if (cuts[i] >= 0)
                cut(f, cuts[i]);
    }
    CHECK(!seen(paths[0]));
}

/* ---- exchanges ---- */

static void exchange(const char *a, const char *b)
{
    CHECK(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0);
}

static void swaps(void)
{
    char a[2 * PATH_MAX], b[2 * PATH_MAX];

    for (int f = 1; f < FILES; f += 2) { /* of two ranks */
        exchange(path_of(0, f, a), path_of(0, f + 1, b));
        CHECK(seen(paths[0]));
        exchange(a, b);
    }
    exchange(path_of(0, 1, a), path_of(0, 2, b));
    exchange(path_of(0, 3, a), path_of(0, 4, b));
    CHECK(seen(paths[0]));
    exchange(a, b);
    exchange(path_of(0, 1, a), path_of(0, 2, b));
    for (int f = 0; f < FILES; f++) { /* of two checkpoints */
        exchange(path_of(0, f, a), path_of(1, f, b));
        CHECK(seen(paths[0]) && seen(paths[1]));
        exchange(a, b);
    }
    exchange(path_of(0, 1, a), path_of(1, 1, b)); /* record and data together */
    exchange(path_of(0, 3, a), path_of(1, 3, b));
    CHECK(seen(paths[0]) && seen(paths[1]));
    exchange(a, b);
    exchange(path_of(0, 1, a), path_of(1, 1, b));
    CHECK(!seen(paths[0]) && !seen(paths[1]));
}

/* ---- what is no file ---- */

static void strangers(void)
{
    char path[2 * PATH_MAX], kept[2 * PATH_MAX + 8];

    for (int f = 0; f < FILES; f++) {
        path_of(0, f, path);
        snprintf(kept, sizeof kept, "%s.kept", path);
        CHECK(rename(path, kept) == 0);
        CHECK(seen(paths[0])); /* missing */
        CHECK(symlink(kept, path) == 0);
        CHECK(seen(paths[0])); /* a link, even to the right bytes */
        CHECK(unread(paths[0]));
        CHECK(unlink(path) == 0 && mkfifo(path, 0600) == 0);
        CHECK(seen(paths[0]));
        CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
        CHECK(seen(paths[0]));
        CHECK(rmdir(path) == 0 && rename(kept, path) == 0);
    }
    CHECK(!seen(paths[0]));
    snprintf(kept, sizeof kept, "%s.kept", paths[0]);
    CHECK(rename(paths[0], kept) == 0 && symlink("nowhere", paths[0]) == 0);
    CHECK(unread(paths[0])); /* of a disk that is not mounted */
    CHECK(unlink(paths[0]) == 0 && rename(kept, paths[0]) == 0);
    CHECK(!seen(paths[0]));
}

int main(void)
{
    const char *seed = getenv("ZERO_TEST_SEED");

    if (seed != NULL)
        random_state = strtoull(seed, NULL, 10) | 1;
    sample_dir(dir);
    make(0, 1);
    make(1, 2);
    CHECK(!seen(paths[0]) && !seen(paths[1]));
    flips();
    lengths();
    swaps();
    strangers();
    sample_remove(dir);
    return check_done();
}
