/* SPDX-License-Identifier: MIT */
/* table.h: cells that are lined up when they are printed, the first column by its left edge and the
 * others by their right, the last by its left again if the table says so.
 *
 * Owns    its cells.
 * Fails   without memory nothing is printed and table_print says so.
 * Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_TABLE_H
#define CLIENT_CTL_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum table_style { TABLE_PLAIN, TABLE_DIM, TABLE_GOOD, TABLE_LOUD };

struct table {
    size_t columns;
    bool last_left;
    size_t count, room;
    struct table_cell *cells;
    bool failed;
};

void table_deinit(struct table *table);

/* The next cell, row by row. Control characters become '?'. */
__attribute__((format(printf, 3, 4))) void table_cell(struct table *table, enum table_style style,
                                                      const char *format, ...);
bool table_print(const struct table *table, FILE *to, bool colour);

/* True when stdout is a terminal on which colour is wanted. */
bool table_colour(void);

/* The escape that begins a style, and the one that ends all; "" without colour. */
const char *table_begin(enum table_style style, bool colour);
const char *table_end(bool colour);

#endif
