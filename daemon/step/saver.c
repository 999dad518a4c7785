/* SPDX-License-Identifier: MIT */
#include "daemon/step/saver.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/shard/description.h"
#include "daemon/step/claim.h"
#include "daemon/step/recall.h"
#include "daemon/store/catalogue.h"
#include "daemon/store/store.h"

struct saver {
    const struct shard *shard; /* borrowed, as is the description's fd */
    int description;
    void (*notify)(void *context);
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum saver_order order;
    bool ordered, looking, dropping, stopping;
    atomic_int state;
    char text[PATH_MAX]; /* published by state */
    struct saver_job job;
    unsigned char *memory; /* NULL: none */
    size_t bytes;
    struct saver_region regions[SAVER_REGIONS];
    uint32_t region_count;
    struct store_progress progress;
    struct store_save folder; /* rank 0's, while open */
    bool open;
    bool found, own;          /* published by state */
    _Atomic uint64_t touched; /* bytes of memory, ever */
};

enum { TOUCH_BYTES = 1 << 20 }; /* memory that is made resident between two words of it */

/* ---- memory --------------------------------------------------------------------------------- */

static void add_region(struct saver *saver, enum zero_arena arena, enum store_state state,
                       zero_dtype dtype)
{
    struct saver_region *region = &saver->regions[saver->region_count];

    if (saver->shard->arena[arena].bytes == 0)
        return;
    *region = (struct saver_region){ .arena = arena, .state = state };
    region->bytes = saver->shard->layout->shard_total * zero_dtype_bytes(dtype);
    saver->bytes += region->bytes;
    saver->region_count++;
}

static void list_regions(struct saver *saver)
{
    zero_dtype dtype = saver->shard->config.param_dtype;

    if (dtype != ZERO_FP32)
        add_region(saver, ZERO_ARENA_param, STORE_PARAM, dtype);
    add_region(saver, shard_master(saver->shard), STORE_MASTER, ZERO_FP32);
    add_region(saver, ZERO_ARENA_moment1, STORE_MOMENT1, ZERO_FP32);
    add_region(saver, ZERO_ARENA_moment2, STORE_MOMENT2, ZERO_FP32);
    add_region(saver, ZERO_ARENA_max_moment2, STORE_MAX_MOMENT2, ZERO_FP32);
}

/* Resident before the worker copies: training waits for the copy alone. */
static zero_status prepare(struct saver *saver)
{
    const struct device_ops *ops = saver->shard->device->ops;

    atomic_store(&saver->progress.bytes, 0);
    if (saver->memory != NULL)
        return zero_success();
    zero_status s = ops->check_room(saver->shard->device, saver->bytes);
    if (zero_failed(s))
        return s;
    void *base =
        mmap(NULL, saver->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return FAIL(NO_MEMORY, "save checkpoint", "a copy of %zu bytes: %s", saver->bytes,
                    strerror(errno));
    saver->memory = base;
    madvise(base, saver->bytes, MADV_HUGEPAGE); /* where the host allows it */
    for (size_t at = 0; at < saver->bytes; at += 4096) {
        ((volatile unsigned char *)base)[at] = 0;
        if (at % TOUCH_BYTES == 0)
            atomic_fetch_add(&saver->touched, TOUCH_BYTES);
    }
    size_t at = 0;
    for (uint32_t i = 0; i < saver->region_count; i++) {
        saver->regions[i].base = saver->memory + at;
        at += saver->regions[i].bytes;
    }
    return zero_success();
}

static void give_back(struct saver *saver)
{
    struct zero_detail detail = { "" };

    if (saver->memory != NULL)
        munmap(saver->memory, saver->bytes);
    saver->memory = NULL;
    if (saver->open && zero_failed(store_abandon(&saver->folder, &detail)))
        LOG_WARNING("what was begun in %s stays: %s", saver->job.dir, detail.text);
    saver->open = false;
}

/* ---- files ---------------------------------------------------------------------------------- */
/* The store logs nothing. */
static zero_status say(zero_status s, const struct zero_detail *detail)
{
    return zero_failed(s)
               ? fail_status(s.code, "save checkpoint", __FILE__, __LINE__, "%s", detail->text)
               : s;
}

/* A daemon may have died, or lost a peer, after the last rename: what is there is of this state. */
static bool find_known(struct saver *saver)
{
    uint64_t step = saver->job.record.step;
    struct zero_detail detail = { "" };
    struct store *store = NULL;
    char path[PATH_MAX];
    bool found = false;

    if (snprintf(path, sizeof path, "%s/step-%" PRIu64, saver->job.dir, step) >= PATH_MAX ||
        zero_failed(store_open(path, &store, &detail)))
        return false;
    const struct store_facts *facts = store_facts(store);
    for (int i = 0; i < SAVER_KNOWN; i++)
        found = found || (facts->info.step == step && strcmp(facts->id, saver->job.known[i]) == 0);
    store_close(store);
    if (found)
        snprintf(saver->text, sizeof saver->text, "%s", path);
    return found;
}

/* The group's own folder may have been somebody else's when the daemon was started again, or have
 * been removed since. Of other folders, none where another group saves. */
static zero_status claim(struct saver *saver, struct zero_detail *detail)
{
    bool own = strcmp(saver->job.dir, saver->shard->config.checkpoint_dir) == 0;
    zero_status s = own ? store_lock_take(saver->job.claim, saver->job.dir, detail)
                        : store_lock_check(saver->job.claim, saver->job.dir, detail);

    return s.code == ZERO_UNSUPPORTED ? zero_success() : s; /* warned about at the start */
}

static bool is_own(const struct saver *saver)
{
    struct stat own, given;

    return stat(saver->shard->config.checkpoint_dir, &own) == 0 &&
           stat(saver->job.dir, &given) == 0 && own.st_dev == given.st_dev &&
           own.st_ino == given.st_ino;
}

static zero_status begin(struct saver *saver)
{
    struct zero_detail detail = { "" };
    zero_status s = zero_success();

    saver->own = is_own(saver);
    saver->found = find_known(saver);
    if (saver->found)
        return s;
    s = claim(saver, &detail);
    if (!zero_failed(s))
        s = store_begin(saver->job.dir, saver->job.record.step, &saver->folder, &detail);
    if (zero_failed(s))
        return say(s, &detail);
    saver->own = is_own(saver); /* if it was made now */
    saver->open = true;
    snprintf(saver->text, sizeof saver->text, "%s", saver->folder.path);
    if (strlen(saver->folder.path) >= BOARD_PATH)
        return FAIL(INVALID_ARGUMENT, "save checkpoint", "%s is longer than %d bytes",
                    saver->folder.path, BOARD_PATH - 1);
    return s;
}

static zero_status write_part(struct saver *saver)
{
    const struct journal_record *record = &saver->job.record;
    struct store_region regions[SAVER_REGIONS];
    struct store_piece pieces[SAVER_REGIONS];
    struct zero_detail detail = { "" };
    struct store_save save;
    struct store_written written = { .bytes = 0 };

    for (uint32_t i = 0; i < saver->region_count; i++) {
        pieces[i] = (struct store_piece){ saver->regions[i].base, saver->regions[i].bytes };
        regions[i] = (struct store_region){ .state = saver->regions[i].state,
                                            .pieces = &pieces[i],
                                            .piece_count = 1 };
    }
    const struct store_part part = { .rank = saver->shard->rank,
                                     .layout = saver->shard->layout,
                                     .regions = regions,
                                     .region_count = saver->region_count,
                                     .blob = saver->job.blob,
                                     .blob_bytes = record->blob_bytes[record->blob_current] };
    zero_status s = store_join(saver->job.path, &save, &detail);
    if (zero_failed(s))
        return say(s, &detail);
    uint64_t begun = clock_ns();
    s = store_write_part(&save, &part, &saver->progress, &written, &detail);
    store_leave(&save);
    if (zero_failed(s))
        return say(s, &detail);
    double seconds = (double)(clock_ns() - begun) * 1e-9;
    LOG_INFO("checkpoint of step %" PRIu64 ": wrote %" PRIu64 " bytes in %.2f s (%.2f GB/s), %s%s",
             record->step, written.bytes, seconds, (double)written.bytes / seconds * 1e-9,
             store_engine_names[written.engine],
             written.direct ? "" : ", through the page cache: no O_DIRECT here");
    return s;
}

static zero_status commit(struct saver *saver)
{
    const struct journal_record *record = &saver->job.record;
    struct store_info info = { .layout = saver->shard->layout,
                               .stage = saver->shard->config.stage,
                               .step = record->step,
                               .updates = record->updates,
                               .skipped_in_row = record->skipped_in_row,
                               .scaler = { record->loss_scale, record->scaler.hysteresis_left,
                                           record->scaler.iteration,
                                           record->scaler.last_overflow } };
    struct zero_detail detail = { "" };
    char path[PATH_MAX], *config = NULL;
    zero_status s = description_config(saver->description, &config, &info.config_bytes);

    if (zero_failed(s))
        return s;
    info.config = config;
    s = say(store_commit(&saver->folder, &info, path, &detail), &detail);
    free(config);
    if (saver->folder.aside[0] != '\0')
        LOG_WARNING("%s had another step-%" PRIu64 ": that is %s now, which no start takes and "
                    "which stays until somebody removes it",
                    saver->job.dir, record->step, saver->folder.aside);
    if (zero_failed(s))
        return s;
    saver->open = false;
    snprintf(saver->text, sizeof saver->text, "%s", path);
    return s;
}

/* The new one is whole: an old one that cannot be removed is no reason to call it failed. Those of
 * later steps are of an earlier timeline: they stay, and must not crowd the new one out. */
static void prune(struct saver *saver)
{
    struct zero_detail detail = { "" };
    uint64_t removed = 0;

    if (saver->job.keep == 0)
        return;
    if (zero_failed(store_prune(saver->job.dir, saver->job.keep, saver->job.record.step, &removed,
                                &detail)))
        LOG_WARNING("old checkpoints in %s stay: %s", saver->job.dir, detail.text);
    else if (removed > 0)
        LOG_INFO("removed %" PRIu64 " old checkpoint%s in %s", removed, removed == 1 ? "" : "s",
                 saver->job.dir);
}

/* ---- thread --------------------------------------------------------------------------------- */

static zero_status carry_out(struct saver *saver, enum saver_order order)
{
    zero_status s;

    switch (order) {
    case SAVER_LOOK: /* a file system that hangs holds nothing else up */
        claim_again(saver->job.claim, saver->shard->config.checkpoint_dir);
        recall_saved(saver->shard, saver->description, saver->job.step, saver->job.stats);
        return zero_success();
    case SAVER_PREPARE:
        return prepare(saver);
    case SAVER_BEGIN:
        return begin(saver);
    case SAVER_WRITE:
        return write_part(saver);
    case SAVER_COMMIT:
        s = commit(saver);
        if (!zero_failed(s))
            prune(saver);
        return s;
    case SAVER_DROP:
        give_back(saver);
        return zero_success();
    }
    return zero_success();
}

static void run_order(struct saver *saver, enum saver_order order)
{
    zero_status s = carry_out(saver, order);

    pthread_mutex_lock(&saver->lock);
    if (zero_failed(s))
        snprintf(saver->text, sizeof saver->text, "%s", fail_detail());
    saver->dropping = saver->dropping && order != SAVER_DROP;
    saver->looking = saver->looking && order != SAVER_LOOK;
    bool idle = order == SAVER_DROP || order == SAVER_LOOK;
    enum saver_state now = zero_failed(s) ? SAVER_FAILED : idle ? SAVER_IDLE : SAVER_DONE;
    if (!saver->ordered && !saver->looking &&
        !saver->dropping) /* otherwise the next one is waited for already */
        atomic_store(&saver->state, now);
    pthread_mutex_unlock(&saver->lock);
    saver->notify(saver->context);
}

static void *run(void *argument)
{
    struct saver *saver = argument;

    pthread_mutex_lock(&saver->lock);
    while (!saver->stopping) {
        if (!saver->ordered && !saver->looking && !saver->dropping) {
            pthread_cond_wait(&saver->changed, &saver->lock);
            continue;
        }
        enum saver_order order = saver->dropping  ? SAVER_DROP
                                 : saver->looking ? SAVER_LOOK
                                                  : saver->order;
        saver->ordered = saver->ordered && (saver->dropping || saver->looking);
        atomic_store(&saver->progress.cancel, false);
        pthread_mutex_unlock(&saver->lock);
        run_order(saver, order);
        pthread_mutex_lock(&saver->lock);
    }
    pthread_mutex_unlock(&saver->lock);
    give_back(saver);
    return NULL;
}

zero_status saver_create(const struct shard *shard, int description, void (*notify)(void *context),
                         void *context, struct saver **out)
{
    struct saver *saver = calloc(1, sizeof *saver);

    if (saver == NULL)
        return FAIL(NO_MEMORY, "save checkpoint", "%zu bytes", sizeof *saver);
    saver->shard = shard;
    saver->description = description;
    saver->notify = notify;
    saver->context = context;
    list_regions(saver);
    pthread_mutex_init(&saver->lock, NULL);
    pthread_cond_init(&saver->changed, NULL);
    int error = pthread_create(&saver->thread, NULL, run, saver);
    if (error != 0) {
        free(saver);
        return FAIL(SYSTEM, "save checkpoint", "thread: %s", strerror(error));
    }
    *out = saver;
    return zero_success();
}

void saver_destroy(struct saver *saver)
{
    if (saver == NULL)
        return;
    pthread_mutex_lock(&saver->lock);
    saver->stopping = true;
    atomic_store(&saver->progress.cancel, true);
    pthread_cond_signal(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
    pthread_join(saver->thread, NULL);
    pthread_cond_destroy(&saver->changed);
    pthread_mutex_destroy(&saver->lock);
    free(saver);
}

struct saver_job *saver_job(struct saver *saver)
{
    return &saver->job;
}

void saver_order(struct saver *saver, enum saver_order order)
{
    pthread_mutex_lock(&saver->lock);
    if (order == SAVER_DROP) {
        saver->dropping = true;
        saver->ordered = false;
        atomic_store(&saver->progress.cancel, true);
    } else if (order == SAVER_LOOK) {
        saver->looking = true; /* whatever is dropped */
    } else {
        saver->order = order;
        saver->ordered = true;
    }
    atomic_store(&saver->state, SAVER_BUSY);
    pthread_cond_signal(&saver->changed);
    pthread_mutex_unlock(&saver->lock);
}

enum saver_state saver_state(const struct saver *saver)
{
    return (enum saver_state)atomic_load((atomic_int *)(uintptr_t)&saver->state);
}

const char *saver_text(const struct saver *saver)
{
    return saver->text;
}

bool saver_own(const struct saver *saver)
{
    return saver->own;
}

bool saver_found(const struct saver *saver)
{
    return saver->found;
}

uint64_t saver_moved(const struct saver *saver)
{
    return atomic_load((_Atomic uint64_t *)(uintptr_t)&saver->touched) +
           atomic_load((_Atomic uint64_t *)(uintptr_t)&saver->progress.bytes);
}

void saver_progress(const struct saver *saver, uint64_t *out_done, uint64_t *out_total)
{
    uint64_t written = atomic_load((_Atomic uint64_t *)(uintptr_t)&saver->progress.bytes);

    *out_total = saver->bytes;
    *out_done = written < saver->bytes ? written : saver->bytes; /* the file has a header too */
}

const struct saver_region *saver_regions(const struct saver *saver, uint32_t *out_count)
{
    *out_count = saver->region_count;
    return saver->regions;
}
