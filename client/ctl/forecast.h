/* SPDX-License-Identifier: MIT */
/* forecast.h: what zeroctl plan shows: memory and traffic of a rank, for people and as JSON.
 *
 * Owns    nothing: plain data.
 * Uses    plan, config, table, writer.   Used by the plan command.
 */
#ifndef CLIENT_CTL_FORECAST_H
#define CLIENT_CTL_FORECAST_H

#include <stdio.h>

#include "client/ctl/table.h"
#include "proto/plan.h"

struct forecast {
    uint64_t params;
    struct zero_config config;
    struct zero_plan plan;
    uint64_t paper; /* bytes by the ZeRO paper's formula */
    struct zero_versions_plan versions;
    uint64_t copy; /* while a checkpoint is saved */
    struct zero_traffic traffic;
    char moved[2][96]; /* formulas of gathered and reduced */
    char copies[96];   /* of versions */
};

/* Fills paper and the formulas from the rest. */
void forecast_complete(struct forecast *forecast);

/* One row of a table of memory, and its head: component, formula, bytes, and what it holds. */
struct forecast_row {
    const char *name, *formula, *what;
    uint64_t bytes;
};
void forecast_head(struct table *table);
void forecast_row(struct table *table, const struct forecast_row *row, enum table_style style);
/* What the formula of the window means, where it has a bound. */
void forecast_explain(uint32_t stage, FILE *to, bool colour);

/* False without memory. */
bool forecast_print(const struct forecast *forecast, FILE *to, bool colour);
bool forecast_write(const struct forecast *forecast, FILE *to); /* JSON */

#endif
