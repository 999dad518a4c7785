/* SPDX-License-Identifier: MIT */
/* Checkpoints on the disk: list, prune, verify. */
#include "client/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/store/catalogue.h"
#include "daemon/store/error.h"
#include "daemon/store/store.h"

zero_status checkpoint_need(const void *pointer, const char *name, struct zero_detail *detail)
{
    if (pointer != NULL)
        return zero_success();
    return store_refuse(detail, ZERO_INVALID_ARGUMENT, "%s is NULL", name);
}

/* ---- progress ------------------------------------------------------------------------------- */

zero_status zero_progress_create(zero_progress **out)
{
    if (out == NULL)
        return (zero_status){ ZERO_INVALID_ARGUMENT, "create progress" };
    zero_progress *progress = calloc(1, sizeof *progress);
    if (progress == NULL)
        return (zero_status){ ZERO_NO_MEMORY, "create progress" };
    *out = progress;
    return zero_success();
}

void zero_progress_destroy(zero_progress *progress)
{
    free(progress);
}

void zero_progress_look(const zero_progress *progress, uint64_t *out_bytes, uint64_t *out_total)
{
    zero_progress *p = (zero_progress *)(uintptr_t)progress; /* C11's loads take no const */

    *out_total = atomic_load(&p->total);
    *out_bytes = atomic_load(&p->store.bytes);
    if (*out_total != 0 && *out_bytes > *out_total)
        *out_bytes = *out_total; /* what is written has headers too */
}

void zero_progress_cancel(zero_progress *progress)
{
    atomic_store(&progress->store.cancel, true);
}

struct store_progress *checkpoint_progress(zero_progress *progress, uint64_t total)
{
    if (progress == NULL)
        return NULL;
    atomic_store(&progress->store.bytes, 0);
    atomic_store(&progress->total, total);
    return &progress->store;
}

/* ---- list, prune ---------------------------------------------------------------------------- */

/* The texts change hands. */
static void take_entry(struct zero_checkpoint *to, struct store_entry *from)
{
    *to = (struct zero_checkpoint){ .name = from->name,
                                    .step = from->step,
                                    .complete = from->complete,
                                    .busy = from->busy,
                                    .unread = from->unread,
                                    .why = from->why };
    if (from->complete) {
        to->time = from->time;
        to->bytes = from->bytes;
        to->world = from->world;
    }
    from->name = from->why = NULL;
}

zero_status zero_checkpoint_list(const char *dir, struct zero_checkpoints *out,
                                 struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    struct store_list list = { .count = 0 };
    zero_status s = checkpoint_need(dir, "dir", detail);

    if (!zero_failed(s))
        s = checkpoint_need(out, "out", detail);
    if (!zero_failed(s))
        s = store_list(dir, &list, detail);
    if (zero_failed(s))
        return s;
    struct zero_checkpoint *entries = calloc(list.count + 1, sizeof *entries);
    if (entries == NULL)
        s = store_refuse(detail, ZERO_NO_MEMORY, "no memory for %zu checkpoints", list.count);
    else
        *out = (struct zero_checkpoints){ entries, list.count };
    for (size_t i = 0; i < list.count && entries != NULL; i++)
        take_entry(&entries[i], &list.entries[i]);
    store_list_deinit(&list);
    return s;
}

void zero_checkpoint_list_deinit(struct zero_checkpoints *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free((char *)(uintptr_t)list->entries[i].name);
        free((char *)(uintptr_t)list->entries[i].why);
    }
    free(list->entries);
    *list = (struct zero_checkpoints){ NULL, 0 };
}

zero_status zero_checkpoint_prune(const char *dir, uint32_t keep, uint64_t *out_removed,
                                  struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    uint64_t removed = 0;
    zero_status s = checkpoint_need(dir, "dir", detail);

    if (!zero_failed(s))
        s = store_prune(dir, keep, UINT64_MAX, &removed, detail);
    if (out_removed != NULL)
        *out_removed = removed;
    return s;
}

/* ---- verify --------------------------------------------------------------------------------- */

struct verifying {
    const struct zero_verify_watch *watch;
    struct zero_detail first; /* problem */
    bool any;
};

static void on_problem(void *context, const struct store_problem *problem)
{
    struct verifying *v = context;

    if (!v->any)
        snprintf(v->first.text, sizeof v->first.text, "%s", problem->text);
    v->any = true;
    if (v->watch != NULL && v->watch->problem != NULL)
        v->watch->problem(v->watch->context, problem->text);
}

static zero_status verify(const char *path, struct verifying *v, struct store_findings *findings,
                          struct zero_detail *detail)
{
    struct store *store = NULL;
    zero_status s = store_open(path, &store, detail);

    if (s.code == ZERO_CORRUPT) { /* what cannot even be opened is one problem */
        on_problem(v, &(struct store_problem){ path, detail->text });
        findings->problems = 1;
        return zero_success();
    }
    if (zero_failed(s))
        return s;
    const struct store_watch watch = { checkpoint_progress(v->watch != NULL ? v->watch->progress
                                                                            : NULL,
                                                           store_facts(store)->bytes),
                                       on_problem, v };
    s = store_verify(store, &watch, findings, detail);
    store_close(store);
    return s;
}

zero_status zero_checkpoint_verify(const char *path, const struct zero_verify_watch *watch,
                                   struct zero_verified *out, struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    struct verifying v = { .watch = watch };
    struct store_findings findings = { .bytes = 0 };
    zero_status s = checkpoint_need(path, "path", detail);

    if (!zero_failed(s))
        s = verify(path, &v, &findings, detail);
    if (zero_failed(s))
        return s;
    if (out != NULL)
        *out = (struct zero_verified){ findings.bytes, findings.problems, findings.nonfinite };
    return v.any ? store_refuse(detail, ZERO_CORRUPT, "%s", v.first.text) : s;
}
