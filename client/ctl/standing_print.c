/* SPDX-License-Identifier: MIT */
/* The standing of a group for people: what is wrong first, then ranks, last step, memory. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "client/ctl/standing.h"
#include "client/ctl/table.h"
#include "client/ctl/text.h"

enum { MOST_ARENAS = 12 };

static void print_head(const struct standing *standing, FILE *to)
{
    const Zero__V1__StatusReply *first = standing->first;

    fprintf(to, "group in %s", standing->group->dir);
    if (first != NULL) {
        fprintf(to, ": world %u", first->world);
        if (first->n_arenas > 0)
            fprintf(to, ", stage %u, %s, %" PRIu64 " parameters", first->stage, first->param_dtype,
                    first->params);
        fprintf(to, ", zerod %s", first->version);
    }
    fputs("\n\n", to);
}

static void complain_of_rank(const struct standing_rank *rank, FILE *to)
{
    const Zero__V1__StatusReply *reply = rank->reply;

    if (reply == NULL) {
        fprintf(to, "! rank %u is %s: %s\n", rank->rank, standing_word(rank), rank->text);
        return;
    }
    if (strcmp(reply->state, "lost") == 0)
        fprintf(to, "! rank %u is lost\n", rank->rank);
    for (size_t a = 0; a < reply->n_arenas; a++)
        if (reply->arenas[a]->bytes != reply->arenas[a]->planned)
            fprintf(to, "! rank %u, arena %s: %" PRIu64 " bytes, planned %" PRIu64 "\n", rank->rank,
                    reply->arenas[a]->name, reply->arenas[a]->bytes, reply->arenas[a]->planned);
}

static void print_complaints(const struct standing *standing, FILE *to, bool colour)
{
    if (standing_good(standing))
        return;
    fputs(table_begin(TABLE_LOUD, colour), to);
    for (uint32_t i = 0; i < standing->count; i++)
        complain_of_rank(&standing->ranks[i], to);
    fprintf(to, "%s\n", table_end(colour));
}

static enum table_style style_of(const struct standing_rank *rank)
{
    if (rank->reply == NULL || strcmp(rank->reply->state, "lost") == 0)
        return TABLE_LOUD;
    return strcmp(rank->reply->state, "ready") == 0 || strcmp(rank->reply->state, "stepping") == 0
               ? TABLE_GOOD
               : TABLE_PLAIN;
}

static void head(struct table *table, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        table_cell(table, TABLE_DIM, "%s", words[i]);
}

static void blanks(struct table *table, size_t count)
{
    while (count-- > 0)
        table_cell(table, TABLE_DIM, "-");
}

static void trainer_cell(struct table *table, const Zero__V1__StatusReply *reply)
{
    char observers[32] = "";

    if (reply->observers > 0)
        snprintf(observers, sizeof observers, " +%u obs.", reply->observers);
    if (reply->trainer_pid != 0)
        table_cell(table, TABLE_PLAIN, "%u%s", reply->trainer_pid, observers);
    else
        table_cell(table, TABLE_DIM, "none%s", observers);
}

static bool print_ranks(const struct standing *standing, FILE *to, bool colour)
{
    static const char *const words[] = { "rank",     "state",   "epoch",
                                         "step",     "stage",   "world",
                                         "daemon",   "trainer", "age of last step",
                                         "waits for" };
    enum { COLUMNS = sizeof words / sizeof *words };
    struct table table = { .columns = COLUMNS, .last_left = true };

    head(&table, words, COLUMNS);
    for (uint32_t i = 0; i < standing->count; i++) {
        const struct standing_rank *rank = &standing->ranks[i];
        const Zero__V1__StatusReply *reply = rank->reply;
        table_cell(&table, TABLE_PLAIN, "%u", rank->rank);
        table_cell(&table, style_of(rank), "%s", standing_word(rank));
        if (reply == NULL) {
            blanks(&table, COLUMNS - 2);
            continue;
        }
        table_cell(&table, TABLE_PLAIN, "%" PRIu64, reply->epoch);
        table_cell(&table, TABLE_PLAIN, "%" PRIu64, reply->step);
        if (reply->n_arenas > 0)
            table_cell(&table, TABLE_PLAIN, "%u", reply->stage);
        else
            blanks(&table, 1);
        table_cell(&table, TABLE_PLAIN, "%u", reply->world);
        table_cell(&table, TABLE_PLAIN, "%u", reply->pid);
        trainer_cell(&table, reply);
        table_cell(&table, TABLE_PLAIN, "%s", text_seconds(reply->last_step_age).text);
        table_cell(&table, TABLE_PLAIN, "%s", *reply->waiting_for ? reply->waiting_for : "-");
    }
    bool good = table_print(&table, to, colour);
    table_deinit(&table);
    return good;
}

static bool print_last_step(const struct standing *standing, FILE *to, bool colour)
{
    static const char *const words[] = { "rank",
                                         "step_time",
                                         "forward_backward_time",
                                         "parameter_update_time",
                                         "gathered",
                                         "reduced",
                                         "loss scale",
                                         "grad norm",
                                         "skipped" };
    enum { COLUMNS = sizeof words / sizeof *words };
    struct table table = { .columns = COLUMNS };

    fputs("\nlast step\n", to);
    head(&table, words, COLUMNS);
    for (uint32_t i = 0; i < standing->count; i++) {
        const Zero__V1__StatusReply *reply = standing->ranks[i].reply;
        table_cell(&table, TABLE_PLAIN, "%u", standing->ranks[i].rank);
        if (reply == NULL || reply->last_step_age < 0) {
            blanks(&table, COLUMNS - 1);
            continue;
        }
        table_cell(&table, TABLE_PLAIN, "%s", text_seconds(reply->step_time).text);
        table_cell(&table, TABLE_PLAIN, "%s", text_seconds(reply->forward_backward_time).text);
        table_cell(&table, TABLE_PLAIN, "%s", text_seconds(reply->parameter_update_time).text);
        table_cell(&table, TABLE_PLAIN, "%s", text_bytes(reply->last_gathered_bytes).text);
        table_cell(&table, TABLE_PLAIN, "%s", text_bytes(reply->last_reduced_bytes).text);
        table_cell(&table, TABLE_PLAIN, "%s", text_real(reply->loss_scale).text);
        table_cell(&table, isfinite(reply->grad_norm) ? TABLE_PLAIN : TABLE_LOUD, "%s",
                   text_real(reply->grad_norm).text);
        table_cell(&table, reply->skipped_in_row ? TABLE_LOUD : TABLE_PLAIN, "%u",
                   reply->skipped_in_row);
    }
    bool good = table_print(&table, to, colour);
    table_deinit(&table);
    return good;
}

static void print_scalars(const struct standing *standing, FILE *to)
{
    const Zero__V1__StatusReply *first = standing->first;

    for (size_t i = 0; first != NULL && i < first->n_scalars; i++) {
        struct table cell = { .columns = 1 }; /* for its care about control characters */
        table_cell(&cell, TABLE_PLAIN, "%s %.9g", first->scalars[i]->name,
                   first->scalars[i]->value);
        table_print(&cell, to, false);
        table_deinit(&cell);
    }
}

static const Zero__V1__StatusReply *first_with_arenas(const struct standing *standing)
{
    for (uint32_t i = 0; i < standing->count; i++)
        if (standing->ranks[i].reply != NULL && standing->ranks[i].reply->n_arenas > 0)
            return standing->ranks[i].reply;
    return NULL;
}

static void memory_row(struct table *table, const struct standing_rank *rank, size_t arenas)
{
    const Zero__V1__StatusReply *reply = rank->reply;
    uint64_t total = 0;
    bool differs = false;

    table_cell(table, TABLE_PLAIN, "%u", rank->rank);
    if (reply == NULL || reply->n_arenas < arenas) {
        blanks(table, arenas + 3);
        return;
    }
    for (size_t a = 0; a < arenas; a++) {
        const Zero__V1__Arena *arena = reply->arenas[a];
        bool wrong = arena->bytes != arena->planned;
        if (arena->bytes == 0 && !wrong)
            blanks(table, 1);
        else
            table_cell(table, wrong ? TABLE_LOUD : TABLE_PLAIN, "%s%s",
                       text_bytes(arena->bytes).text, wrong ? " !" : "");
        total += arena->bytes;
        differs = differs || wrong;
    }
    table_cell(table, TABLE_PLAIN, "%s", text_bytes(total).text);
    table_cell(table, differs ? TABLE_LOUD : TABLE_GOOD, differs ? "DIFFERS" : "as planned");
    table_cell(table, reply->versions != 0 ? TABLE_PLAIN : TABLE_DIM, "%u: %s of %s",
               reply->versions, text_bytes(reply->version_bytes).text,
               text_bytes(reply->versions_planned).text);
}

static bool print_memory(const struct standing *standing, FILE *to, bool colour)
{
    const Zero__V1__StatusReply *model = first_with_arenas(standing);

    if (model == NULL) {
        fputs("\nno model is registered\n", to);
        return true;
    }
    size_t arenas = model->n_arenas < MOST_ARENAS ? model->n_arenas : MOST_ARENAS;
    struct table table = { .columns = arenas + 4 };
    fputs("\nmemory\n", to);
    table_cell(&table, TABLE_DIM, "rank");
    for (size_t a = 0; a < arenas; a++)
        table_cell(&table, TABLE_DIM, "%s", model->arenas[a]->name);
    table_cell(&table, TABLE_DIM, "total");
    table_cell(&table, TABLE_DIM, "against plan");
    table_cell(&table, TABLE_DIM, "versions");
    for (uint32_t i = 0; i < standing->count; i++)
        memory_row(&table, &standing->ranks[i], arenas);
    bool good = table_print(&table, to, colour);
    table_deinit(&table);
    return good;
}

/* Rank 0 knows, since it leads. */
static void print_saves(const struct standing *standing, FILE *to, bool colour)
{
    const Zero__V1__StatusReply *lead =
        standing->ranks[0].rank == 0 ? standing->ranks[0].reply : NULL;

    if (lead == NULL || (lead->saved_age < 0 && !lead->save_failed && lead->saving_total == 0))
        return;
    fputs("\ncheckpoint: ", to);
    if (lead->saved_age >= 0)
        fprintf(to, "step %" PRIu64 ", %s ago", lead->saved_step,
                text_seconds(lead->saved_age).text);
    else
        fputs("none yet", to);
    if (lead->saving_total > 0)
        fprintf(to, ", saving %.0f %%",
                100 * (double)lead->saving_bytes / (double)lead->saving_total);
    if (lead->save_failed)
        fprintf(to, ", %sTHE LAST ONE FAILED%s: see the log of rank 0",
                table_begin(TABLE_LOUD, colour), table_end(colour));
    fputc('\n', to);
}

/* One that is on its way, or was refused. */
static void print_upgrades(const struct standing *standing, FILE *to)
{
    for (uint32_t i = 0; i < standing->count; i++) {
        const struct standing_rank *rank = &standing->ranks[i];
        const char *word = rank->reply != NULL ? rank->reply->upgrade : "";
        if (strcmp(word, "waiting") == 0)
            fprintf(to, "\nupgrade: rank %u waits for the end of a step\n", rank->rank);
        else if (strcmp(word, "refused") == 0)
            fprintf(to, "\nupgrade: rank %u refused it: %s\n", rank->rank,
                    rank->reply->upgrade_text);
    }
}

bool standing_print(const struct standing *standing, FILE *to, bool colour)
{
    print_head(standing, to);
    print_complaints(standing, to, colour);
    bool good = print_ranks(standing, to, colour);
    if (standing->first != NULL) {
        good = print_last_step(standing, to, colour) && good;
        print_scalars(standing, to);
        print_saves(standing, to, colour);
        print_upgrades(standing, to);
        good = print_memory(standing, to, colour) && good;
    }
    return good;
}
