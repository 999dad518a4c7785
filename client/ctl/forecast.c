/* SPDX-License-Identifier: MIT */
#include "client/ctl/forecast.h"

#include <inttypes.h>

#include "client/ctl/table.h"
#include "client/ctl/text.h"
#include "client/ctl/writer.h"

static const char *optimizer_name(const struct zero_config *config)
{
    static const char *const names[] = {
        [ZERO_ADAM] = "adam", [ZERO_ADAMW] = "adamw", [ZERO_SGD] = "sgd"
    };
    return names[config->optimizer];
}

/* The traffic as zero_plan_traffic counts it; P is the padded number of elements. */
static void write_moved(struct forecast *f)
{
    const struct zero_config *c = &f->config;
    unsigned others = c->world - 1;
    size_t param = zero_dtype_bytes(c->param_dtype), grad = zero_dtype_bytes(c->grad_dtype);
    char *gathered = f->moved[0], *reduced = f->moved[1];

    if (c->stage == 0)
        snprintf(gathered, sizeof f->moved[0], "0");
    else if (c->stage < 3)
        snprintf(gathered, sizeof f->moved[0], "%zu B x P x %u/%u", param, others, c->world);
    else
        snprintf(gathered, sizeof f->moved[0], "%" PRIu64 " x 2 x %zu B x P x %u/%u",
                 c->accumulation, param, others, c->world);
    snprintf(reduced, sizeof f->moved[1], "(%" PRIu64 " x %zu%s) B x P x %u/%u", c->accumulation,
             grad, c->stage == 0 ? " + 4" : "", others, c->world);
}

static const char *paper_formula(uint32_t stage)
{
    static const char *const formulas[] = { "(2 + 2 + 12) B x N", "(2 + 2) B x N + 12 B x N / W",
                                            "2 B x N + (2 + 12) B x N / W",
                                            "(2 + 2 + 12) B x N / W" };
    return formulas[stage];
}

void forecast_complete(struct forecast *forecast)
{
    forecast->paper = zero_plan_paper(forecast->params, &forecast->config);
    write_moved(forecast);
    snprintf(forecast->copies, sizeof forecast->copies, "up to %" PRIu64 " x %" PRIu64 " B",
             forecast->versions.count, forecast->versions.each);
}

void forecast_head(struct table *table)
{
    static const char *const words[] = { "component", "formula", "bytes", "", "what it holds" };

    for (int i = 0; i < 5; i++)
        table_cell(table, TABLE_DIM, "%s", words[i]);
}

void forecast_row(struct table *table, const struct forecast_row *row, enum table_style style)
{
    table_cell(table, style, "%s", row->name);
    table_cell(table, TABLE_PLAIN, "%s", row->formula);
    table_cell(table, style, "%" PRIu64, row->bytes);
    table_cell(table, style, "%s", text_bytes(row->bytes).text);
    table_cell(table, TABLE_DIM, "%s", row->what);
}

void forecast_explain(uint32_t stage, FILE *to, bool colour)
{
    if (stage < 2)
        return;
    fprintf(
        to,
        "\n%swindow: the bucket is zero_optimization.reduce_bucket_size, in elements. With "
        "overlap_comm, which stage 3 has\nunless it is told otherwise, there are two: one is "
        "written while the other is reduced. There is always\nroom for the largest layer twice, "
        "and never for more than the model.%s\n",
        table_begin(TABLE_DIM, colour), table_end(colour));
}

#define ROW(...) (&(const struct forecast_row){ __VA_ARGS__ })

static void print_arenas(const struct forecast *f, struct table *table)
{
    forecast_head(table);
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        forecast_row(table,
                     ROW(zero_arena_names[a], f->plan.bytes[a] ? f->plan.formula[a] : "none",
                         zero_arena_what[a], f->plan.bytes[a]),
                     TABLE_PLAIN);
    forecast_row(table, ROW("total", "", "", f->plan.total), TABLE_GOOD);
}

bool forecast_print(const struct forecast *f, FILE *to, bool colour)
{
    const struct zero_config *c = &f->config;
    struct table table = { .columns = 5, .last_left = true };

    fprintf(to,
            "%" PRIu64 " parameters (N), world %u (W), stage %u, %s, %s, accumulation %" PRIu64
            "\n\nmemory of a rank\n",
            f->params, c->world, c->stage, zero_dtype_name(c->param_dtype), optimizer_name(c),
            c->accumulation);
    print_arenas(f, &table);
    forecast_row(&table,
                 ROW("versions", f->copies, "besides, at most: copies that observers read",
                     f->versions.total),
                 TABLE_PLAIN);
    forecast_row(
        &table,
        ROW("checkpoint", "its shards' states", "besides, while one is saved: a copy", f->copy),
        TABLE_PLAIN);
    forecast_row(&table,
                 ROW("ZeRO paper", paper_formula(c->stage), "mixed precision, Adam; for comparison",
                     f->paper),
                 TABLE_DIM);
    table_cell(&table, TABLE_DIM, "traffic");
    for (int i = 0; i < 4; i++)
        table_cell(&table, TABLE_DIM, "%s", i == 3 ? "of a rank and step; P: N with padding" : "");
    forecast_row(&table, ROW("gathered", f->moved[0], "parameters", f->traffic.gathered),
                 TABLE_PLAIN);
    forecast_row(&table, ROW("reduced", f->moved[1], "gradients", f->traffic.reduced), TABLE_PLAIN);
    bool good = table_print(&table, to, colour);
    table_deinit(&table);
    forecast_explain(c->stage, to, colour);
    return good;
}

static void write_pair(struct writer *w, const char *key, uint64_t value)
{
    writer_key(w, key);
    writer_count(w, value);
}

static void write_model(struct writer *w, const struct forecast *f)
{
    write_pair(w, "params", f->params);
    write_pair(w, "world", f->config.world);
    write_pair(w, "stage", f->config.stage);
    write_pair(w, "accumulation", f->config.accumulation);
    writer_key(w, "dtype");
    writer_text(w, zero_dtype_name(f->config.param_dtype));
    writer_key(w, "optimizer");
    writer_text(w, optimizer_name(&f->config));
}

bool forecast_write(const struct forecast *f, FILE *to)
{
    struct writer *w = writer_open(to);

    writer_begin(w, '{');
    write_model(w, f);
    writer_key(w, "per_rank");
    writer_begin(w, '{');
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        write_pair(w, zero_arena_names[a], f->plan.bytes[a]);
    write_pair(w, "total", f->plan.total);
    writer_end(w, '}');
    writer_key(w, "formula");
    writer_begin(w, '{');
    for (int a = 0; a < ZERO_ARENA_COUNT; a++) {
        writer_key(w, zero_arena_names[a]);
        writer_text(w, f->plan.bytes[a] ? f->plan.formula[a] : "0");
    }
    writer_key(w, "gathered");
    writer_text(w, f->moved[0]);
    writer_key(w, "reduced");
    writer_text(w, f->moved[1]);
    writer_end(w, '}');
    writer_key(w, "versions");
    writer_begin(w, '{');
    write_pair(w, "each", f->versions.each);
    write_pair(w, "most", f->versions.count);
    writer_end(w, '}');
    write_pair(w, "checkpoint_copy", f->copy);
    writer_key(w, "paper");
    writer_begin(w, '{');
    write_pair(w, "total", f->paper);
    writer_key(w, "formula");
    writer_text(w, paper_formula(f->config.stage));
    writer_end(w, '}');
    writer_key(w, "traffic");
    writer_begin(w, '{');
    write_pair(w, "gathered", f->traffic.gathered);
    write_pair(w, "reduced", f->traffic.reduced);
    writer_end(w, '}');
    writer_end(w, '}');
    return writer_close(w);
}
