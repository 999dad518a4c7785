/* SPDX-License-Identifier: MIT */
#include "daemon/store/catalogue.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "daemon/store/error.h"
#include "daemon/store/store.h"

/* ---- listing ---- */

static void describe_step(const char *path, struct store_entry *entry)
{
    struct zero_detail why = { "" };
    struct store *store = NULL;
    zero_status s = store_open(path, &store, &why);
    size_t named = strlen(path); /* the reader knows of which it is */

    if (zero_failed(s)) {
        entry->unread = store_unread(s);
        bool again = strncmp(why.text, path, named) == 0 && why.text[named] == ':';
        entry->why = strdup(why.text + (again ? named + 2 : 0));
        return;
    }
    const struct store_facts *facts = store_facts(store);
    entry->time = facts->time;
    entry->bytes = facts->bytes;
    entry->world = facts->info.layout->world;
    entry->complete = facts->info.step == entry->step;
    if (!entry->complete)
        entry->why = strdup("its manifest is of another step: the folder was renamed");
    store_close(store);
}

/* Who writes a folder holds a lock on it. Where that cannot be known, somebody may. */
static void describe_begun(int dir, struct store_entry *entry)
{
    int fd = openat(dir, entry->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    bool gone = fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == ELOOP);
    bool locked = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    struct zero_detail why = { "" };

    if (fd < 0 && !gone)
        store_refuse_errno(&why, "%s cannot be opened", entry->name);
    else if (!gone && !locked && errno != EWOULDBLOCK)
        store_refuse_errno(&why, "%s cannot be locked", entry->name);
    entry->unread = why.text[0] != '\0';
    entry->busy = !gone && !locked && !entry->unread;
    entry->why = strdup(entry->unread                   ? why.text
                        : entry->busy                   ? "it is being written"
                        : entry->kind == STORE_REMOVING ? "its removal was cut short"
                                                        : "its save ended early");
    if (fd >= 0)
        close(fd);
}

static zero_status describe(const char *dir, int fd, struct store_entry *entry,
                            struct zero_detail *detail)
{
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/%s", dir, entry->name) >= PATH_MAX)
        return store_refuse(detail, ZERO_TOO_LARGE, "the path %.100s... is too long", dir);
    if (entry->kind == STORE_STEP)
        describe_step(path, entry);
    else if (entry->kind == STORE_REPLACED)
        entry->why = strdup("a later save has its name: no start takes it, and it stays until "
                            "somebody removes it");
    else
        describe_begun(fd, entry);
    if (!entry->complete && entry->why == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a list of %s", dir);
    return zero_success();
}

static zero_status add_entry(struct store_list *list, const char *name, struct zero_detail *detail)
{
    uint64_t step = 0;
    enum store_folder_kind kind = store_folder_parse(name, &step);

    if (kind == STORE_FOREIGN)
        return zero_success();
    if (list->count == list->room) {
        size_t room = list->room == 0 ? 16 : list->room * 2;
        struct store_entry *more = reallocarray(list->entries, room, sizeof *more);
        if (more == NULL)
            return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %zu entries", room);
        list->entries = more;
        list->room = room;
    }
    struct store_entry *entry = &list->entries[list->count];
    *entry = (struct store_entry){ .name = strdup(name), .kind = kind, .step = step };
    if (entry->name == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a name");
    list->count++;
    return zero_success();
}

static int compare(const void *a, const void *b)
{
    const struct store_entry *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return x->kind != y->kind ? (int)x->kind - (int)y->kind : strcmp(x->name, y->name);
}

static zero_status read_names(const char *dir, DIR *folder, struct store_list *list,
                              struct zero_detail *detail)
{
    struct dirent *entry;
    zero_status s = zero_success();

    while (errno = 0, !zero_failed(s) && (entry = readdir(folder)) != NULL)
        s = add_entry(list, entry->d_name, detail);
    if (!zero_failed(s) && errno != 0)
        s = store_refuse_errno(detail, "%s cannot be read", dir);
    if (list->count > 0)
        qsort(list->entries, list->count, sizeof *list->entries, compare);
    return s;
}

zero_status store_list(const char *dir, struct store_list *out, struct zero_detail *out_detail)
{
    struct store_list list = { .count = 0 };
    DIR *folder = opendir(dir);

    if (folder == NULL)
        return store_refuse_errno(out_detail, "%s cannot be opened", dir);
    zero_status s = read_names(dir, folder, &list, out_detail);
    for (size_t i = 0; i < list.count && !zero_failed(s); i++)
        s = describe(dir, dirfd(folder), &list.entries[i], out_detail);
    closedir(folder);
    if (zero_failed(s))
        store_list_deinit(&list);
    else
        *out = list;
    return s;
}

void store_list_deinit(struct store_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->entries[i].name);
        free(list->entries[i].why);
    }
    free(list->entries);
    *list = (struct store_list){ .count = 0 };
}

/* ---- newest, prune ---- */

/* From the highest step down: a folder that nobody needs is not opened. */
static zero_status seek(const struct store_seek *seek, DIR *folder, struct store_list *list,
                        char **out_path, struct zero_detail *detail)
{
    zero_status s = read_names(seek->dir, folder, list, detail);

    for (size_t i = list->count; i-- > 0 && !zero_failed(s);) {
        struct store_entry *entry = &list->entries[i];
        if ((seek->before != 0 && entry->step >= seek->before) || entry->kind == STORE_REPLACED)
            continue;
        s = describe(seek->dir, dirfd(folder), entry, detail);
        if (zero_failed(s))
            return s;
        if (!entry->complete && seek->passed != NULL)
            seek->passed(seek->context, entry);
        if (entry->complete && asprintf(out_path, "%s/%s", seek->dir, entry->name) < 0)
            return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a path");
        if (entry->complete)
            return zero_success();
        if (entry->unread && entry->kind == STORE_STEP)
            return store_refuse(detail, ZERO_IO, "%.200s/%.40s: %.250s", seek->dir, entry->name,
                                entry->why);
    }
    if (zero_failed(s))
        return s;
    return store_refuse(detail, ZERO_NOT_FOUND,
                        "%.200s has no complete checkpoint (zeroctl checkpoint list says why)",
                        seek->dir);
}

zero_status store_seek(const struct store_seek *what, char **out_path,
                       struct zero_detail *out_detail)
{
    struct store_list list = { .count = 0 };
    DIR *folder = opendir(what->dir);

    if (folder == NULL)
        return store_refuse_errno(out_detail, "%.200s cannot be opened", what->dir);
    zero_status s = seek(what, folder, &list, out_path, out_detail);
    closedir(folder);
    store_list_deinit(&list);
    return s;
}

zero_status store_newest(const char *dir, char **out_path, struct zero_detail *out_detail)
{
    const struct store_seek what = { .dir = dir };

    return store_seek(&what, out_path, out_detail);
}

bool store_is_stale(const struct store_list *list, size_t entry, uint32_t keep, uint64_t last)
{
    const struct store_entry *e = &list->entries[entry];
    size_t newer = 0;

    if (e->kind != STORE_STEP)
        return e->kind != STORE_REPLACED && !e->busy && !e->unread;
    for (size_t i = entry + 1; i < list->count; i++)
        newer += list->entries[i].complete && list->entries[i].step <= last;
    return e->complete && e->step <= last && newer >= keep;
}

zero_status store_prune(const char *dir, uint32_t keep, uint64_t last, uint64_t *out_removed,
                        struct zero_detail *out_detail)
{
    struct store_list list = { .count = 0 };

    *out_removed = 0;
    if (keep == 0)
        return store_refuse(out_detail, ZERO_INVALID_ARGUMENT, "at least one checkpoint stays");
    zero_status s = store_list(dir, &list, out_detail);
    if (zero_failed(s))
        return s;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        s = store_refuse_errno(out_detail, "%s cannot be opened", dir);
    for (size_t i = 0; i < list.count && !zero_failed(s); i++) {
        if (!store_is_stale(&list, i, keep, last))
            continue;
        const struct store_entry *entry = &list.entries[i];
        s = entry->kind == STORE_STEP
                ? store_folder_discard(fd, entry->name, entry->step, out_detail)
                : store_folder_remove(fd, entry->name, out_detail);
        *out_removed += !zero_failed(s);
    }
    if (fd >= 0)
        close(fd);
    store_list_deinit(&list);
    return s;
}
