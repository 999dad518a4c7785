/* SPDX-License-Identifier: MIT */
/* Whatever world, stage and dtype wrote a checkpoint, any range of any tensor's state comes back as
 * it was. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/store_sample.h"

static char dir[PATH_MAX];

static uint64_t next_random(void)
{
    static uint64_t state = 88172645463325252u;

    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void check_span(struct store *store, const struct store_span *span, uint64_t step)
{
    zero_dtype dtype = store_state_dtype(store_facts(store)->info.layout->dtype, span->state);
    float *values = malloc((span->count + 1) * sizeof *values);
    unsigned char *raw = malloc(4 * (span->count + 1));
    struct zero_detail detail = { "" };
    uint64_t bad = 0;

    CHECK(!zero_failed(store_read_fp32(store, span, values, &detail)));
    CHECK(!zero_failed(store_read(store, span, raw, &detail)));
    for (uint64_t i = 0; i < span->count; i++) {
        float want = sample_value(span->state, span->tensor, span->first + i, step), wide = want;
        uint16_t narrow[2];
        sample_put(dtype == ZERO_FP32 ? (void *)&wide : (void *)narrow, dtype, 0, want);
        const void *bits = dtype == ZERO_FP32 ? (const void *)&wide : (const void *)narrow;
        bad += values[i] != want;
        bad += memcmp(raw + i * zero_dtype_bytes(dtype), bits, zero_dtype_bytes(dtype)) != 0;
    }
    CHECK(bad == 0);
    free(values);
    free(raw);
}

static void check_state(struct store *store, const struct sample *sample, uint32_t tensor,
                        enum store_state state)
{
    uint64_t count = sample->layout->tensors[tensor].count;
    const struct store_span all = { state, tensor, 0, count };

    check_span(store, &all, sample->step);
    for (int i = 0; i < 5; i++) {
        uint64_t first = next_random() % (count + 1);
        const struct store_span some = { state, tensor, first,
                                         next_random() % (count - first + 1) };
        check_span(store, &some, sample->step);
    }
}

static void check_values(struct store *store, const struct sample *sample)
{
    for (uint32_t t = 0; t < sample->layout->tensor_count; t++)
        for (enum store_state s = 0; s < STORE_STATES; s++)
            if (STORE_HAS(sample->states, s))
                check_state(store, sample, t, s);
}

static void check_facts(struct store *store, const struct sample *sample)
{
    const struct store_facts *facts = store_facts(store);
    const struct store_info *info = &facts->info;

    CHECK(info->step == sample->step && info->updates == sample->step + 1);
    CHECK(info->skipped_in_row == 2 && info->stage == sample->stage);
    CHECK(info->scaler.scale == 65536.5 && info->scaler.hysteresis_left == 2);
    CHECK(info->scaler.iteration == -7 && info->scaler.last_overflow == INT64_MIN + 1);
    CHECK(facts->states == sample->states);
    CHECK(info->config_bytes == sizeof sample_config - 1);
    CHECK(memcmp(info->config, sample_config, sizeof sample_config) == 0);
    char *text = zero_layout_text(info->layout), *want = zero_layout_text(sample->layout);
    CHECK(text != NULL && want != NULL && strcmp(text, want) == 0);
    CHECK(info->layout->world == sample->layout->world);
    free(text);
    free(want);
    for (uint32_t r = 0; r < info->layout->world; r++) {
        char blob[32];
        size_t bytes = 0;
        int wanted = snprintf(blob, sizeof blob, "rank %" PRIu32 " blob", r);
        const void *got = store_blob(store, r, &bytes);
        CHECK(bytes == (size_t)wanted && memcmp(got, blob, bytes) == 0);
    }
}

static void round_trip(uint32_t world, uint32_t stage, zero_dtype dtype, uint64_t step)
{
    struct zero_layout *layout = NULL;
    struct store *store = NULL;
    struct store_findings findings;
    struct zero_detail detail = { "" };
    char path[PATH_MAX];

    CHECK(!zero_failed(sample_layout(world, dtype, &layout)));
    const struct sample sample = { layout, sample_states(dtype), stage, step };
    zero_status s = sample_save(&sample, dir, path, &detail);
    if (!zero_failed(s))
        s = store_open(path, &store, &detail);
    if (zero_failed(s)) {
        CHECK_CONTAINS(detail.text, "no failure was expected");
    } else {
        check_facts(store, &sample);
        check_values(store, &sample);
        CHECK(!zero_failed(store_verify(store, NULL, &findings, &detail)));
        CHECK(findings.problems == 0 && findings.nonfinite == 0);
        CHECK(findings.bytes == store_facts(store)->bytes);
    }
    store_close(store);
    zero_layout_destroy(layout);
}

/* What cannot be read says so, and reads nothing. */
static void refusals(void)
{
    struct store *store = NULL;
    struct zero_detail detail = { "" };
    char *path = NULL;
    float value = 7;

    CHECK(!zero_failed(store_newest(dir, &path, &detail)));
    CHECK(!zero_failed(store_open(path, &store, &detail)));
    const struct store_span spans[] = {
        { STORE_MASTER, 0, 1517, 1 },
        { STORE_MASTER, 0, UINT64_MAX, 2 },
        { STORE_MASTER, 6, 0, 1 },
        { STORE_STATES, 0, 0, 1 },
    };
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++)
        CHECK(store_read_fp32(store, &spans[i], &value, &detail).code == ZERO_INVALID_ARGUMENT);
    CHECK(value == 7);
    store_close(store);
    free(path);
}

static uint64_t inode_of(const char *name)
{
    struct stat what = { .st_ino = 0 };
    char path[2 * PATH_MAX];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return lstat(path, &what) == 0 ? what.st_ino : 0;
}

/* Saves step 77 of so many ranks; what had the name is `aside` then, "": gone. */
static void save_again(uint32_t world, const char *aside)
{
    struct zero_layout *layout = NULL;
    struct store *store = NULL;
    struct store_findings findings = { .problems = 1 };
    struct zero_detail detail = { "" };
    char path[PATH_MAX], left[PATH_MAX + 64];
    uint64_t before = inode_of("step-77");

    CHECK(!zero_failed(sample_layout(world, ZERO_FP32, &layout)));
    const struct sample sample = { layout, sample_states(ZERO_FP32), 3, 77 };
    CHECK(!zero_failed(sample_save(&sample, dir, path, &detail)));
    CHECK(!zero_failed(store_open(path, &store, &detail)));
    CHECK(!zero_failed(store_verify(store, NULL, &findings, &detail)) && findings.problems == 0);
    CHECK(store_facts(store)->info.layout->world == world && before != inode_of("step-77"));
    CHECK(aside[0] == '\0' || inode_of(aside) == before);
    store_close(store);
    zero_layout_destroy(layout);
    snprintf(left, sizeof left, "ls '%s' | grep -q -e partial -e removing", dir);
    CHECK(system(left) != 0);
}

static void damage(const char *path)
{
    int fd = open(path, O_WRONLY);

    CHECK(fd >= 0 && pwrite(fd, "!!!!", 4, 5000) == 4);
    close(fd);
}

/* A save's result gets its name, whatever has it; that is set aside, unless it is the same. */
static void taken_steps(void)
{
    char path[PATH_MAX + 32], target[PATH_MAX + 32];

    save_again(2, "");
    snprintf(path, sizeof path, "%s/step-77/rank-1.safetensors", dir);
    damage(path); /* by its checksums it is the same: what stays is what was written now */
    save_again(2, "");
    CHECK(inode_of("step-77.replaced-1") == 0);
    CHECK(truncate(path, 4096) == 0);
    save_again(2, "step-77.replaced-1");
    save_again(3, "step-77.replaced-2");
    snprintf(path, sizeof path, "%s/step-77", dir);
    snprintf(target, sizeof target, "%s/step-77.replaced-9", dir);
    CHECK(rename(path, target) == 0 && symlink(target, path) == 0); /* to the very same */
    save_again(3, "step-77.replaced-3");
    CHECK(rename(path, target) != 0 && inode_of("step-77.replaced-9") != 0); /* not touched */
    snprintf(target, sizeof target, "%s/step-77.replaced-4", dir);
    CHECK(rename(path, target) == 0);
    close(open(path, O_WRONLY | O_CREAT, 0600));
    save_again(3, "step-77.replaced-5");
    CHECK(inode_of("step-77.replaced-6") == 0);
    snprintf(target, sizeof target, "%s/step-77.replaced-6", dir);
    CHECK(rename(path, target) == 0 && mkdir(path, 0700) == 0);
    save_again(3, "step-77.replaced-7");
}

/* What is made by hand does not replace anything. */
static void refused_steps(void)
{
    struct zero_detail detail = { "" };

    CHECK(store_check_free(dir, 1, &detail).code == ZERO_INVALID_STATE);
    CHECK_CONTAINS(detail.text, "there already, complete");
    CHECK(!zero_failed(store_check_free(dir, 4711, &detail)));
}

/* A commit needs every part, of this save and of this step. */
static void missing_parts(void)
{
    struct zero_layout *layout = NULL;
    struct store_save save;
    struct zero_detail detail = { "" };
    char path[PATH_MAX], partial[PATH_MAX];

    CHECK(!zero_failed(sample_layout(2, ZERO_FP32, &layout)));
    const struct sample sample = { layout, sample_states(ZERO_FP32), 3, 1000 };
    struct store_info info = { .layout = layout, .step = 1000, .config = "" };
    CHECK(!zero_failed(store_begin(dir, 1000, &save, &detail)));
    memcpy(partial, save.path, sizeof partial);
    CHECK(!zero_failed(sample_write_part(&sample, &save, 0, &detail)));
    CHECK(store_commit(&save, &info, path, &detail).code == ZERO_NOT_FOUND);
    CHECK_CONTAINS(detail.text, "rank-1.json");
    memset(save.id, 'f', STORE_ID_CHARS); /* as a rank of another save would write it */
    CHECK(!zero_failed(sample_write_part(&sample, &save, 1, &detail)));
    memcpy(save.id, strrchr(save.path, '-') + 1, STORE_ID_CHARS);
    CHECK(store_commit(&save, &info, path, &detail).code == ZERO_CORRUPT);
    CHECK_CONTAINS(detail.text, "another save");
    info.step = 999;
    CHECK(store_commit(&save, &info, path, &detail).code == ZERO_INVALID_ARGUMENT);
    info.step = 1000;
    CHECK(!zero_failed(sample_write_part(&sample, &save, 1, &detail)));
    CHECK(!zero_failed(store_commit(&save, &info, path, &detail)));
    CHECK(access(partial, F_OK) != 0 && access(path, F_OK) == 0);
    zero_layout_destroy(layout);
}

static void cancelled(void)
{
    struct zero_layout *layout = NULL;
    struct store_save save;
    struct store_written written;
    struct store_progress progress = { .bytes = 0 };
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(sample_layout(1, ZERO_FP32, &layout)));
    unsigned char *master = sample_flat(layout, STORE_MASTER, 0);
    const struct store_piece piece = { master, store_region_bytes(layout, STORE_MASTER) };
    const struct store_region region = { STORE_MASTER, &piece, 1, NULL, NULL };
    const struct store_part part = { 0, layout, &region, 1, NULL, 0 };
    CHECK(!zero_failed(store_begin(dir, 2000, &save, &detail)));
    atomic_store(&progress.cancel, true);
    CHECK(store_write_part(&save, &part, &progress, &written, &detail).code == ZERO_INVALID_STATE);
    CHECK_CONTAINS(detail.text, "cancelled");
    const struct store_piece odd = { master, piece.bytes - 512 };
    struct store_part bad = part;
    const struct store_region short_region = { STORE_MASTER, &odd, 1, NULL, NULL };
    bad.regions = &short_region;
    CHECK(store_write_part(&save, &bad, NULL, &written, &detail).code == ZERO_INVALID_ARGUMENT);
    CHECK(!zero_failed(store_abandon(&save, &detail)));
    CHECK(access(save.path, F_OK) != 0);
    free(master);
    zero_layout_destroy(layout);
}

int main(void)
{
    static const uint32_t worlds[] = { 1, 2, 3, 8 };
    uint64_t step = 0;

    sample_dir(dir);
    for (size_t w = 0; w < sizeof worlds / sizeof *worlds; w++)
        for (int dtype = 0; dtype < ZERO_DTYPES; dtype++)
            for (uint32_t stage = 0; stage <= 3; stage += 3)
                round_trip(worlds[w], stage, (zero_dtype)dtype, ++step);
    refusals();
    taken_steps();
    refused_steps();
    missing_parts();
    cancelled();
    sample_remove(dir);
    return check_done();
}
