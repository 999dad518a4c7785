/* SPDX-License-Identifier: MIT */
/* Which files store_tensors_open reads. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/store/error.h"
#include "daemon/store/safetensors.h"

#define INDEX "model.safetensors.index.json"
#define ENDING ".safetensors"

enum { MOST_FILES = 65536 };

/* One that is there already is not added again. */
static zero_status add_file(struct store_tensors *t, const char *folder, const char *name,
                            struct zero_detail *detail)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s%s%s", folder, *folder == '\0' ? "" : "/", name) >= PATH_MAX)
        return store_refuse(detail, ZERO_TOO_LARGE, "the path %.100s... is too long", name);
    for (size_t f = 0; f < t->file_count; f++)
        if (strcmp(t->files[f].path, path) == 0)
            return zero_success();
    if (t->file_count == MOST_FILES)
        return store_refuse(detail, ZERO_TOO_LARGE, "more than %d files", MOST_FILES);
    if (t->file_count == t->file_room) {
        size_t room = t->file_room == 0 ? 8 : t->file_room * 2;
        struct store_source_file *more = reallocarray(t->files, room, sizeof *more);
        if (more == NULL)
            return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %zu files", room);
        t->files = more;
        t->file_room = room;
    }
    struct store_source_file *file = &t->files[t->file_count];
    *file = (struct store_source_file){ .path = strdup(path), .file = { .fd = -1 } };
    if (file->path == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a path");
    t->file_count++;
    return zero_success();
}

/* ---- folders ---- */

struct index {
    struct store_tensors *tensors;
    const char *folder;
    bool in_map;
};

/* {"metadata": ..., "weight_map": {"<tensor>": "<file>", ...}} */
static zero_status take(void *context, const struct store_value *value, struct zero_detail *detail)
{
    struct index *index = context;
    char name[NAME_MAX + 1];

    if (value->depth == 1 && value->type != STORE_CLOSE)
        index->in_map = strcmp(value->key, "weight_map") == 0;
    if (value->depth != 2 || !index->in_map || value->type == STORE_CLOSE)
        return zero_success();
    zero_status s = store_take_text(value, name, sizeof name, detail);
    if (zero_failed(s))
        return s;
    if (strchr(name, '/') != NULL || name[0] == '.' || name[0] == '\0')
        return store_refuse(detail, ZERO_CORRUPT, INDEX " names the file %.100s, which is no name",
                            name);
    return add_file(index->tensors, index->folder, name, detail);
}

static int is_tensors(const struct dirent *entry)
{
    size_t bytes = strlen(entry->d_name), ending = strlen(ENDING);

    return bytes > ending && strcmp(entry->d_name + bytes - ending, ENDING) == 0;
}

static zero_status scan_folder(struct store_tensors *t, const char *folder,
                               struct zero_detail *detail)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_tensors, alphasort);
    zero_status s = zero_success();

    if (count < 0)
        return store_refuse_errno(detail, "%s cannot be read", folder);
    if (count == 0)
        s = store_refuse(detail, ZERO_NOT_FOUND, "%s has no *.safetensors", folder);
    for (int i = 0; i < count; i++) {
        if (!zero_failed(s))
            s = add_file(t, folder, entries[i]->d_name, detail);
        free(entries[i]);
    }
    free(entries);
    return s;
}

static zero_status add_folder(struct store_tensors *t, const char *folder,
                              struct zero_detail *detail)
{
    struct index index = { t, folder, false };
    struct store_file file = { .fd = -1 };
    char path[PATH_MAX];
    size_t before = t->file_count;

    if (snprintf(path, sizeof path, "%s/" INDEX, folder) >= PATH_MAX)
        return store_refuse(detail, ZERO_TOO_LARGE, "the path %.100s... is too long", folder);
    zero_status s = store_file_open(AT_FDCWD, path, &file, detail);
    if (s.code == ZERO_NOT_FOUND)
        return scan_folder(t, folder, detail);
    const struct store_text text = { &file, 0, file.bytes };
    if (!zero_failed(s))
        s = store_parse(&text, take, &index, detail);
    store_file_close(&file);
    if (!zero_failed(s) && t->file_count == before)
        s = store_refuse(detail, ZERO_CORRUPT, "%.200s names no file", path);
    return s;
}

/* ---- all of them ---- */

static int compare_names(const void *a, const void *b)
{
    const struct store_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static zero_status sort_names(struct store_tensors *t, struct zero_detail *detail)
{
    t->by_name = malloc((t->count + 1) * sizeof *t->by_name);
    if (t->by_name == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory to sort %zu names", t->count);
    for (size_t i = 0; i < t->count; i++)
        t->by_name[i] = &t->tensors[i];
    qsort(t->by_name, t->count, sizeof *t->by_name, compare_names);
    for (size_t i = 1; i < t->count; i++)
        if (strcmp(t->by_name[i - 1]->name, t->by_name[i]->name) == 0)
            return store_refuse(detail, ZERO_CORRUPT,
                                "tensor %.100s comes twice: in %.150s and in %.150s",
                                t->by_name[i]->name, t->files[t->by_name[i - 1]->file].path,
                                t->files[t->by_name[i]->file].path);
    return zero_success();
}

static zero_status open_all(struct store_tensors *t, char *const *paths, size_t count,
                            struct zero_detail *detail)
{
    zero_status s = zero_success();

    for (size_t p = 0; p < count && !zero_failed(s); p++) {
        struct stat what;
        if (stat(paths[p], &what) != 0)
            return store_refuse_errno(detail, "%s", paths[p]);
        s = S_ISDIR(what.st_mode) ? add_folder(t, paths[p], detail)
                                  : add_file(t, "", paths[p], detail);
    }
    for (uint32_t f = 0; f < t->file_count && !zero_failed(s); f++) {
        /* a link is fine here: people keep models in caches of links */
        char real[PATH_MAX];
        if (realpath(t->files[f].path, real) == NULL)
            return store_refuse_errno(detail, "%s", t->files[f].path);
        s = store_file_open(AT_FDCWD, real, &t->files[f].file, detail);
        t->files[f].file.name = t->files[f].path;
        if (!zero_failed(s))
            s = store_tensors_add(t, f, detail);
    }
    return zero_failed(s) ? s : sort_names(t, detail);
}

zero_status store_tensors_open(char *const *paths, size_t count, struct store_tensors *out,
                               struct zero_detail *out_detail)
{
    struct store_tensors tensors = { .count = 0 };
    zero_status s = open_all(&tensors, paths, count, out_detail);

    if (zero_failed(s))
        store_tensors_close(&tensors);
    else
        *out = tensors;
    return s;
}
