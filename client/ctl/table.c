/* SPDX-License-Identifier: MIT */
#include "client/ctl/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CELL_BYTES = 160, MOST_COLUMNS = 16 };

struct table_cell {
    enum table_style style;
    char text[CELL_BYTES];
};

void table_deinit(struct table *table)
{
    free(table->cells);
    table->cells = NULL;
    table->count = table->room = 0;
}

void table_cell(struct table *table, enum table_style style, const char *format, ...)
{
    va_list args;

    if (table->count == table->room) {
        size_t room = table->room ? 2 * table->room : 64;
        struct table_cell *cells = realloc(table->cells, room * sizeof *cells);
        if (cells == NULL) {
            table->failed = true;
            return;
        }
        table->cells = cells;
        table->room = room;
    }
    struct table_cell *cell = &table->cells[table->count++];
    cell->style = style;
    va_start(args, format);
    vsnprintf(cell->text, sizeof cell->text, format, args);
    va_end(args);
    for (char *c = cell->text; *c != '\0'; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
}

bool table_colour(void)
{
    const char *no = getenv("NO_COLOR"), *terminal = getenv("TERM");

    return isatty(STDOUT_FILENO) && (no == NULL || *no == '\0') &&
           (terminal == NULL || strcmp(terminal, "dumb") != 0);
}

const char *table_begin(enum table_style style, bool colour)
{
    static const char *const begins[] = { "", "\033[2m", "\033[32m", "\033[1;31m" };

    return colour ? begins[style] : "";
}

const char *table_end(bool colour)
{
    return colour ? "\033[0m" : "";
}

static void print_cell(const struct table *table, size_t index, size_t width, bool colour, FILE *to)
{
    const struct table_cell *cell = &table->cells[index];
    size_t column = index % table->columns;
    bool last = column + 1 == table->columns;
    bool left = column == 0 || (last && table->last_left);
    int pad = (int)(width - strlen(cell->text));

    if (!left)
        fprintf(to, "%*s", pad, "");
    fprintf(to, "%s%s%s", table_begin(cell->style, colour), cell->text,
            cell->style == TABLE_PLAIN ? "" : table_end(colour));
    if (left && !last)
        fprintf(to, "%*s", pad, "");
    fputs(last ? "\n" : "  ", to);
}

bool table_print(const struct table *table, FILE *to, bool colour)
{
    size_t widths[MOST_COLUMNS] = { 0 };

    if (table->failed)
        return false;
    for (size_t i = 0; i < table->count; i++) {
        size_t width = strlen(table->cells[i].text);
        if (width > widths[i % table->columns])
            widths[i % table->columns] = width;
    }
    for (size_t i = 0; i < table->count; i++)
        print_cell(table, i, widths[i % table->columns], colour, to);
    return true;
}
