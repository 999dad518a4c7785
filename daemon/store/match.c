/* SPDX-License-Identifier: MIT */
#include "daemon/store/match.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"

enum { LIST_BYTES = 300, SHAPE_BYTES = 192 }; /* the rest of the detail is the caller's */

struct matching {
    const struct store_match *match;
    const struct zero_tensor **names; /* of `have`, sorted */
    bool *used;                       /* a tensor of `have` each */
    char list[LIST_BYTES];
    size_t bytes;
    uint64_t told, untold; /* in the list, and what had no room there */
};

__attribute__((format(printf, 2, 3))) static void differ(struct matching *m, const char *format,
                                                         ...)
{
    char text[ZERO_DETAIL_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (m->match->tell != NULL)
        m->match->tell(m->match->context, text);
    size_t bytes = strlen(text), gap = m->told > 0 ? 2 : 0;
    if (m->untold > 0 || m->bytes + gap + bytes >= sizeof m->list) {
        m->untold++;
        return;
    }
    snprintf(m->list + m->bytes, sizeof m->list - m->bytes, "%s%s", gap ? "; " : "", text);
    m->bytes += gap + bytes;
    m->told++;
}

static int compare(const void *a, const void *b)
{
    const struct zero_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static const struct zero_tensor *find(const struct matching *m, const struct zero_tensor *want)
{
    const struct zero_tensor **found =
        bsearch(&want, m->names, m->match->have->tensor_count, sizeof *m->names, compare);
    return found == NULL ? NULL : *found;
}

/* "[3,4]", cut where there is no room. */
static void print_shape(const struct zero_tensor *tensor, char out[SHAPE_BYTES])
{
    size_t at = (size_t)snprintf(out, SHAPE_BYTES, "[");

    for (uint32_t d = 0; d < tensor->dims; d++)
        at += (size_t)snprintf(out + at, SHAPE_BYTES - at, "%s%" PRIu64, d ? "," : "",
                               tensor->shape[d]);
    snprintf(out + at, SHAPE_BYTES - at, "]");
}
_Static_assert(ZERO_MAX_DIMS * 21 + 3 <= SHAPE_BYTES, "every shape has room");

static bool same_shape(const struct zero_tensor *a, const struct zero_tensor *b)
{
    return a->dims == b->dims && memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) == 0;
}

static void match_tensor(struct matching *m, uint32_t t, uint32_t *out)
{
    const struct zero_layout *have = m->match->have;
    const struct zero_tensor *want = &m->match->want->tensors[t];
    const struct zero_tensor *found = find(m, want);
    char there[SHAPE_BYTES], here[SHAPE_BYTES];

    print_shape(want, here);
    if (found == NULL) {
        differ(m, "%.255s %s is not in the checkpoint", want->name, here);
        return;
    }
    out[t] = (uint32_t)(found - have->tensors);
    m->used[out[t]] = true;
    if (same_shape(found, want))
        return;
    print_shape(found, there);
    differ(m, "%.100s is %s in the checkpoint and %s in the model", want->name, there, here);
}

static void tell_unused(struct matching *m)
{
    const struct zero_layout *have = m->match->have;
    char shape[SHAPE_BYTES];

    for (uint32_t t = 0; t < have->tensor_count; t++) {
        if (m->used[t])
            continue;
        print_shape(&have->tensors[t], shape);
        differ(m, "%.255s %s is not in the model", have->tensors[t].name, shape);
    }
}

static zero_status verdict(const struct matching *m, struct zero_detail *detail)
{
    if (m->told + m->untold == 0)
        return zero_success();
    if (m->untold == 0)
        return store_refuse(detail, ZERO_MISMATCH, "it is of another model: %s", m->list);
    return store_refuse(detail, ZERO_MISMATCH,
                        "it is of another model: %s%sand %" PRIu64 " more differences", m->list,
                        m->told > 0 ? "; " : "", m->untold);
}

zero_status store_match(const struct store_match *match, uint32_t *out,
                        struct zero_detail *out_detail)
{
    const struct zero_layout *have = match->have;
    struct matching m = { .match = match };
    zero_status s;

    m.names = malloc((have->tensor_count + 1) * sizeof *m.names);
    m.used = calloc(have->tensor_count + 1, sizeof *m.used);
    if (m.names == NULL || m.used == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory to match %" PRIu32 " tensors",
                         have->tensor_count);
        goto out;
    }
    for (uint32_t t = 0; t < have->tensor_count; t++)
        m.names[t] = &have->tensors[t];
    qsort(m.names, have->tensor_count, sizeof *m.names, compare);
    for (uint32_t t = 0; t < match->want->tensor_count; t++)
        match_tensor(&m, t, out);
    tell_unused(&m);
    s = verdict(&m, out_detail);
out:
    free(m.names);
    free(m.used);
    return s;
}
