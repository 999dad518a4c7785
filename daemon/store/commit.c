/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/folder.h"
#include "daemon/store/manifest.h"
#include "daemon/store/part.h"
#include "daemon/store/replace.h"
#include "daemon/store/save.h"

#define NEW_MANIFEST STORE_MANIFEST ".new"

/* A rank's file is there with the size its record says. */
static zero_status check_file(int folder, const struct store_record *record,
                              struct zero_detail *detail)
{
    struct store_name name = store_part_name(record->rank, "safetensors");
    struct store_file file = { .fd = -1 };
    zero_status s = store_file_open(folder, name.text, &file, detail);

    if (zero_failed(s))
        return s;
    store_file_close(&file);
    if (file.bytes != record->file_bytes)
        return store_refuse(detail, ZERO_CORRUPT,
                            "%s has %" PRIu64 " bytes instead of %" PRIu64 ": write the part again",
                            name.text, file.bytes, record->file_bytes);
    return s;
}

static zero_status check_record(const struct store_save *save, const struct store_record *record,
                                uint32_t states, struct zero_detail *detail)
{
    if (strcmp(record->id, save->id) != 0 || record->step != save->step)
        return store_refuse(detail, ZERO_CORRUPT,
                            "rank-%" PRIu32 ".json is of step %" PRIu64
                            " of another save: write the part again",
                            record->rank, record->step);
    if (record->states != states)
        return store_refuse(detail, ZERO_CONFLICT,
                            "rank-%" PRIu32 ".json has other states than rank-0.json",
                            record->rank);
    return check_file(save->fd, record, detail);
}

static zero_status gather_parts(const struct store_save *save, struct store_manifest *manifest,
                                struct zero_detail *detail)
{
    for (uint32_t r = 0; r < manifest->world; r++) {
        struct store_record record;
        zero_status s = store_record_read(save->fd, manifest->layout, r, &record, detail);
        if (zero_failed(s))
            return s;
        manifest->parts[r] = record.self;
        if (r == 0)
            manifest->states = record.states;
        s = check_record(save, &record, manifest->states, detail);
        store_record_deinit(&record);
        if (zero_failed(s))
            return s;
    }
    return zero_success();
}

/* Where the partial folder stands, and what it will be called. */
static zero_status split_path(const struct store_save *save, char dir[PATH_MAX],
                              const char **out_name, char out_path[PATH_MAX],
                              struct zero_detail *detail)
{
    const char *slash = strrchr(save->path, '/');

    *out_name = slash == NULL ? save->path : slash + 1;
    if (slash == NULL)
        snprintf(dir, PATH_MAX, ".");
    else
        snprintf(dir, PATH_MAX, "%.*s", slash == save->path ? 1 : (int)(slash - save->path),
                 save->path);
    if (snprintf(out_path, PATH_MAX, "%s/step-%" PRIu64, dir, save->step) >= PATH_MAX)
        return store_refuse(detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    return zero_success();
}

static zero_status publish(struct store_save *save, const struct store_manifest *manifest,
                           char out_path[PATH_MAX], struct zero_detail *detail)
{
    char dir[PATH_MAX], path[PATH_MAX];
    const char *name = NULL;
    zero_status s;

    TRY(s, split_path(save, dir, &name, path, detail));
    TRY(s, store_manifest_write(save->fd, NEW_MANIFEST, manifest, detail));
    TRY(s, store_sync(save->fd, save->path, detail));
    if (renameat(save->fd, NEW_MANIFEST, save->fd, STORE_MANIFEST) != 0) {
        s = store_refuse_errno(detail, "%s in %s cannot be renamed", NEW_MANIFEST, save->path);
        goto out;
    }
    TRY(s, store_sync(save->fd, save->path, detail));
    TRY(s, store_take_name(dir, name, save->step, save->aside, detail));
    memcpy(out_path, path, strlen(path) + 1);
out:
    return s;
}

zero_status store_commit(struct store_save *save, const struct store_info *info,
                         char out_path[PATH_MAX], struct zero_detail *out_detail)
{
    struct store_manifest manifest = {
        .zerod = ZEROD_VERSION,
        .time = (uint64_t)time(NULL),
        .step = info->step,
        .updates = info->updates,
        .skipped_in_row = info->skipped_in_row,
        .world = info->layout->world,
        .stage = info->stage,
        .dtype = info->layout->dtype,
        .scaler = info->scaler,
        .config = (char *)(uintptr_t)info->config,
        .config_bytes = info->config_bytes,
        .layout = (struct zero_layout *)(uintptr_t)info->layout,
        .parts = calloc(info->layout->world, sizeof(struct store_sum)),
    };
    zero_status s;

    if (manifest.parts == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a manifest");
    memcpy(manifest.id, save->id, sizeof manifest.id);
    if (info->step != save->step || info->config_bytes > STORE_MOST_CONFIG) {
        s = store_refuse(out_detail, ZERO_INVALID_ARGUMENT,
                         "the save is of step %" PRIu64 ", not %" PRIu64
                         ", or the config has %zu bytes, at most %d",
                         save->step, info->step, info->config_bytes, STORE_MOST_CONFIG);
        goto out;
    }
    TRY(s, gather_parts(save, &manifest, out_detail));
    TRY(s, publish(save, &manifest, out_path, out_detail));
    store_leave(save);
out:
    free(manifest.parts);
    return s;
}

zero_status store_abandon(struct store_save *save, struct zero_detail *out_detail)
{
    char dir[PATH_MAX], path[PATH_MAX];
    const char *name = NULL;
    zero_status s = split_path(save, dir, &name, path, out_detail);
    int fd = zero_failed(s) ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (!zero_failed(s) && fd < 0)
        s = store_refuse_errno(out_detail, "%s cannot be opened", dir);
    if (fd >= 0) {
        s = store_folder_remove(fd, name, out_detail);
        close(fd);
    }
    store_leave(save);
    return s;
}
