/* SPDX-License-Identifier: MIT */
#include "daemon/step/choose.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/store/catalogue.h"
#include "daemon/store/store.h"

/* Of what every rank sees, rank 0 tells: if another sees something else, they do not meet. */
struct search {
    const struct engine *e;
    const char *dir;
    uint64_t damaged;      /* checkpoints that were whole once */
    char unread[PATH_MAX]; /* the one that could not be looked at; "": none */
};

static void pass_over(void *context, const struct store_entry *entry)
{
    struct search *search = context;

    if (entry->unread && entry->kind == STORE_STEP) { /* the search ends */
        snprintf(search->unread, sizeof search->unread, "%s/%s", search->dir, entry->name);
        return;
    }
    search->damaged += entry->kind == STORE_STEP;
    if (search->e->options.rank == 0)
        LOG_WARNING("passing over %s/%s: %s", search->dir, entry->name, entry->why);
}

/* What to do about a checkpoint that cannot be read, to go behind the reason. Nothing goes back to
 * an older one by itself: somebody shall know that steps are lost. */
static void advise(const char *path, bool unread, struct zero_detail *out)
{
    char *whole = realpath(path, NULL), *slash = whole != NULL ? strrchr(whole, '/') : NULL;
    struct zero_detail why = { "" };
    zero_status s = { ZERO_NOT_FOUND, "restore" };
    char *older = NULL, name[44];
    uint64_t step = 0;

    out->text[0] = '\0';
    if (slash == NULL || store_folder_parse(slash + 1, &step) != STORE_STEP)
        goto out;
    *slash = '\0';
    snprintf(name, sizeof name, "%s", slash + 1);
    const char *first = unread ? ". Make it readable and start again" : "";
    const struct store_seek seek = { .dir = whole, .before = step };
    if (step > 0)
        s = store_seek(&seek, &older, &why);
    if (!zero_failed(s))
        snprintf(out->text, sizeof out->text,
                 "%s. Move %s away, or start from the newest complete one before it: "
                 "--restore %.250s",
                 first, name, older);
    else if (s.code == ZERO_NOT_FOUND)
        snprintf(out->text, sizeof out->text,
                 "%s. There is no complete one before it in its folder: restore another one, or "
                 "move %s away to start anew",
                 first, name);
    else
        snprintf(out->text, sizeof out->text,
                 "%s. Move %s away; which one before it is complete is not known: %.200s", first,
                 name, why.text);
out:
    free(older);
    free(whole);
}

zero_status choose_fail(const char *path, zero_status s, const char *why)
{
    struct zero_detail advice = { "" };

    if (s.code == ZERO_CORRUPT || store_unread(s))
        advise(path, store_unread(s), &advice);
    return fail_status(s.code, "restore", __FILE__, __LINE__, "%.300s%s", why, advice.text);
}

/* The newest of a folder. Where `optional`, no checkpoint is no error, but damaged ones are. */
static zero_status find_newest(const struct engine *e, const char *dir, bool optional,
                               char **out_path)
{
    struct search search = { e, dir, 0, "" };
    const struct store_seek seek = { .dir = dir, .passed = pass_over, .context = &search };
    struct zero_detail detail = { "" };
    zero_status s = store_seek(&seek, out_path, &detail);

    if (s.code == ZERO_NOT_FOUND && optional && search.damaged == 0) {
        if (e->options.rank == 0)
            LOG_INFO("%s has no checkpoint yet: the model starts anew", dir);
        return zero_success();
    }
    if (s.code == ZERO_NOT_FOUND && search.damaged > 0)
        return FAIL(CORRUPT, "restore",
                    "none of the %" PRIu64 " checkpoints in %s is whole (zeroctl checkpoint list "
                    "says why): move them away to start anew",
                    search.damaged, dir);
    if (zero_failed(s) && search.unread[0] != '\0')
        return choose_fail(search.unread, s, detail.text);
    if (zero_failed(s))
        return fail_status(s.code, "restore", __FILE__, __LINE__, "%s", detail.text);
    return s;
}

/* By its name too, so that a checkpoint without its manifest is not taken for a folder of them. */
static bool is_checkpoint(const char *path)
{
    char manifest[PATH_MAX];
    uint64_t step;
    bool named = store_folder_named(path, &step) != STORE_FOREIGN;

    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    return named || access(manifest, F_OK) == 0;
}

zero_status choose_checkpoint(const struct engine *e, char **out_path)
{
    const char *given = e->options.restore, *dir = e->shard->config.checkpoint_dir;

    if (given == NULL)
        return dir[0] != '\0' ? find_newest(e, dir, /* optional= */ true, out_path)
                              : zero_success();
    if (!is_checkpoint(given))
        return find_newest(e, given, /* optional= */ false, out_path);
    *out_path = strdup(given);
    return *out_path != NULL ? zero_success() : FAIL(NO_MEMORY, "restore", "for a path");
}

void choose_warn(const struct engine *e, uint64_t step)
{
    const char *dir = e->shard->config.checkpoint_dir;
    struct zero_detail detail = { "" };
    uint64_t newest = 0;
    char *path = NULL;

    if (dir[0] == '\0' || e->options.rank != 0)
        return;
    zero_status s = store_newest(dir, &path, &detail);
    if (store_unread(s))
        LOG_WARNING("%s: a start without --restore ends with that", detail.text);
    if (zero_failed(s))
        return;
    store_folder_parse(strrchr(path, '/') + 1, &newest);
    if (newest > step)
        LOG_WARNING("%s has a checkpoint of step %" PRIu64 ", and this run begins at step %" PRIu64
                    ": a start without --restore would take that one. Where this run saves a step "
                    "that is there, its own gets the name, and the old one becomes "
                    "step-<n>.replaced-<k>. Give this run a zerod.checkpoint.dir of its own to "
                    "keep the two apart",
                    dir, newest, step);
    free(path);
}

bool choose_is_own(const struct engine *e, const char *path)
{
    const char *dir = e->shard->config.checkpoint_dir;
    char *whole = realpath(path, NULL), *own = dir[0] != '\0' ? realpath(dir, NULL) : NULL;
    char *slash = whole != NULL ? strrchr(whole, '/') : NULL;
    uint64_t step;
    bool named = slash != NULL && store_folder_parse(slash + 1, &step) == STORE_STEP;

    if (slash != NULL)
        *slash = '\0';
    bool same = named && own != NULL && strcmp(whole, own) == 0;
    free(whole);
    free(own);
    return same;
}
