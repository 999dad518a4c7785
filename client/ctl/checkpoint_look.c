/* SPDX-License-Identifier: MIT */
/* zeroctl checkpoint list, verify, prune */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/ctl/checkpoint.h"
#include "client/ctl/meter.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/writer.h"
#include "client/zerocheckpoint.h"
#include "daemon/store/catalogue.h"

/* ---- list ---- */

static struct text time_text(uint64_t seconds)
{
    struct text out = { "-" };
    time_t when = (time_t)seconds;
    struct tm parts;

    if (seconds != 0 && localtime_r(&when, &parts) != NULL)
        strftime(out.text, sizeof out.text, "%Y-%m-%d %H:%M:%S", &parts);
    return out;
}

static const char *state_of(const struct store_entry *entry)
{
    return entry->unread                   ? "unreadable"
           : entry->kind == STORE_REPLACED ? "set aside"
                                           : "incomplete";
}

static void print_entry(struct table *table, const struct store_entry *entry)
{
    enum table_style style = entry->complete ? TABLE_PLAIN : entry->busy ? TABLE_DIM : TABLE_LOUD;

    table_cell(table, style, "%s", entry->name);
    table_cell(table, style, "%s", time_text(entry->time).text);
    table_cell(table, style, "%s", entry->complete ? text_bytes(entry->bytes).text : "-");
    if (entry->complete)
        table_cell(table, style, "%" PRIu32, entry->world);
    else
        table_cell(table, style, "-");
    if (entry->complete)
        table_cell(table, style, "complete");
    else
        table_cell(table, style, "%s: %s", state_of(entry), entry->why);
}

static bool print_list(const struct store_list *list)
{
    struct table table = { .columns = 5, .last_left = true };

    table_cell(&table, TABLE_DIM, "checkpoint");
    table_cell(&table, TABLE_DIM, "time");
    table_cell(&table, TABLE_DIM, "size");
    table_cell(&table, TABLE_DIM, "ranks");
    table_cell(&table, TABLE_DIM, "state");
    for (size_t i = 0; i < list->count; i++)
        print_entry(&table, &list->entries[i]);
    bool good = table_print(&table, stdout, table_colour());
    table_deinit(&table);
    return good;
}

static bool write_list(const struct store_list *list)
{
    struct writer *w = writer_open(stdout);

    writer_begin(w, '[');
    for (size_t i = 0; i < list->count; i++) {
        const struct store_entry *entry = &list->entries[i];
        writer_begin(w, '{');
        writer_key(w, "name");
        writer_text(w, entry->name);
        writer_key(w, "step");
        writer_count(w, entry->step);
        writer_key(w, "complete");
        writer_truth(w, entry->complete);
        writer_key(w, "busy");
        writer_truth(w, entry->busy);
        writer_key(w, "unread");
        writer_truth(w, entry->unread);
        if (!entry->complete) {
            writer_key(w, "why");
            writer_text(w, entry->why);
        } else {
            writer_key(w, "time");
            writer_count(w, entry->time);
            writer_key(w, "bytes");
            writer_count(w, entry->bytes);
            writer_key(w, "world");
            writer_count(w, entry->world);
        }
        writer_end(w, '}');
    }
    writer_end(w, ']');
    return writer_close(w);
}

static bool any_unread(const struct store_list *list)
{
    bool any = false;

    for (size_t i = 0; i < list->count; i++)
        any = any || list->entries[i].unread;
    return any;
}

/* Where a folder of them was meant. */
static int refuse_checkpoint(const char *path)
{
    struct store_list inside = { .count = 0 };
    struct zero_detail ignored;
    uint64_t step;

    if (store_folder_named(path, &step) == STORE_FOREIGN)
        return EXIT_GOOD;
    bool holds = zero_failed(store_list(path, &inside, &ignored)) || inside.count > 0;
    store_list_deinit(&inside);
    if (holds)
        return EXIT_GOOD;
    return complain(EXIT_USAGE,
                    "%s is one checkpoint: give the folder it is in, or try zeroctl checkpoint "
                    "verify %s",
                    path, path);
}

int checkpoint_list(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    struct store_list list = { .count = 0 };
    int code = refuse_checkpoint(o->words[0]);

    if (code != EXIT_GOOD)
        return code;
    zero_status s = store_list(o->words[0], &list, &detail);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    bool good = true;
    if (o->json)
        good = write_list(&list);
    else if (list.count == 0)
        printf("%s has no checkpoints\n", o->words[0]);
    else
        good = print_list(&list);
    bool unread = any_unread(&list);
    store_list_deinit(&list);
    if (!good)
        return complain(EXIT_IO, "no memory");
    return unread ? EXIT_IO : EXIT_GOOD;
}

/* ---- verify ---- */

/* The first problems; a disk that is broken has more than anybody reads. */
struct problems {
    char *texts[100];
    size_t count;
};

static void keep_problem(void *context, const char *text)
{
    struct problems *problems = context;

    if (problems->count < sizeof problems->texts / sizeof *problems->texts)
        problems->texts[problems->count++] = strdup(text);
}

static void print_findings(const char *path, const struct zero_verified *findings,
                           const struct problems *problems)
{
    for (size_t i = 0; i < problems->count; i++)
        printf("%s\n", problems->texts[i] != NULL ? problems->texts[i] : "(no memory to say)");
    if (findings->problems > problems->count)
        printf("... and %" PRIu64 " more\n", findings->problems - problems->count);
    if (findings->nonfinite > 0)
        printf("%" PRIu64 " weights are inf or nan, as they were when they were saved\n",
               findings->nonfinite);
    if (findings->problems == 0)
        printf("%s: all %" PRIu64 " bytes are what was written\n", path, findings->bytes);
    else
        printf("%s: %" PRIu64 " problem%s in %" PRIu64 " bytes: restore another checkpoint\n", path,
               findings->problems, findings->problems == 1 ? "" : "s", findings->bytes);
}

static bool write_findings(const struct zero_verified *findings, const struct problems *problems)
{
    struct writer *w = writer_open(stdout);

    writer_begin(w, '{');
    writer_key(w, "bytes");
    writer_count(w, findings->bytes);
    writer_key(w, "nonfinite");
    writer_count(w, findings->nonfinite);
    writer_key(w, "problem_count");
    writer_count(w, findings->problems);
    writer_key(w, "problems");
    writer_begin(w, '[');
    for (size_t i = 0; i < problems->count; i++)
        writer_text(w, problems->texts[i] != NULL ? problems->texts[i] : "");
    writer_end(w, ']');
    writer_end(w, '}');
    return writer_close(w);
}

int checkpoint_verify(const struct checkpoint_options *o)
{
    struct zero_verified findings = { .bytes = 0 };
    struct problems problems = { .count = 0 };
    struct zero_detail detail = { "" };
    struct meter meter;
    const struct zero_verify_watch watch = { &meter.progress, keep_problem, &problems };
    bool good = true;

    meter_begin(&meter, "verify");
    zero_status s = zero_checkpoint_verify(o->words[0], &watch, &findings, &detail);
    meter_end(&meter);
    bool done = !zero_failed(s) || s.code == ZERO_CORRUPT; /* which is what was asked for */
    if (done && o->json)
        good = write_findings(&findings, &problems);
    else if (done)
        print_findings(o->words[0], &findings, &problems);
    for (size_t i = 0; i < problems.count; i++)
        free(problems.texts[i]);
    if (!done)
        return checkpoint_refuse(o->words[0], s, &detail);
    if (!good)
        return complain(EXIT_IO, "no memory");
    return findings.problems == 0 ? EXIT_GOOD : EXIT_BAD;
}

/* ---- prune ---- */

static int announce(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    struct store_list list = { .count = 0 };
    zero_status s = store_list(o->words[0], &list, &detail);

    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    for (size_t i = 0; i < list.count; i++)
        if (store_is_stale(&list, i, o->keep, UINT64_MAX))
            printf("would remove %s\n", list.entries[i].name);
    store_list_deinit(&list);
    return EXIT_GOOD;
}

int checkpoint_prune(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    uint64_t removed = 0;

    if (o->keep == 0)
        return complain(EXIT_USAGE, "how many checkpoints stay? --keep K");
    int code = refuse_checkpoint(o->words[0]);
    if (code != EXIT_GOOD)
        return code;
    if (o->dry_run)
        return announce(o);
    zero_status s = store_prune(o->words[0], o->keep, UINT64_MAX, &removed, &detail);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    printf("%" PRIu64 " removed\n", removed);
    return EXIT_GOOD;
}
