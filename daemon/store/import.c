/* SPDX-License-Identifier: MIT */
#include "daemon/store/import.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/models.h"

/* ---- a model from names ---- */

/* Bytes of a name that are its layer's. */
static size_t layer_part(const char *name)
{
    const char *dot = strrchr(name, '.');

    for (const char *part = name; part != NULL; part = strchr(part, '.')) {
        part += *part == '.';
        size_t digits = strspn(part, "0123456789");
        if (digits > 0 && (part[digits] == '.' || part[digits] == '\0'))
            return (size_t)(part - name) + digits;
    }
    return dot == NULL ? strlen(name) : (size_t)(dot - name);
}

static zero_status add_tensor(struct store_model *model, const struct store_tensor *tensor,
                              struct zero_detail *detail)
{
    zero_status s;

    TRY(s, store_model_tensor(model, detail));
    TRY(s, store_model_name(model, tensor->name, true, detail));
    for (uint32_t d = 0; d < tensor->dims; d++)
        TRY(s, store_model_size(model, tensor->shape[d], detail));
out:
    return s;
}

/* The tensors of one layer need not stand together in the files: they are taken from the first on.
 */
static zero_status add_layer(struct store_model *model, const struct store_tensors *tensors,
                             size_t first, bool *taken, struct zero_detail *detail)
{
    const char *name = tensors->tensors[first].name;
    size_t bytes = layer_part(name);
    char layer[STORE_MOST_KEY + 1];
    zero_status s;

    memcpy(layer, name, bytes);
    layer[bytes] = '\0';
    TRY(s, store_model_layer(model, detail));
    TRY(s, store_model_name(model, layer, false, detail));
    for (size_t t = first; t < tensors->count; t++) {
        const struct store_tensor *tensor = &tensors->tensors[t];
        if (taken[t] || layer_part(tensor->name) != bytes ||
            memcmp(tensor->name, layer, bytes) != 0)
            continue;
        taken[t] = true;
        TRY(s, add_tensor(model, tensor, detail));
    }
out:
    return s;
}

zero_status store_import_layout(const struct store_tensors *tensors, struct zero_layout **out,
                                struct zero_detail *out_detail)
{
    struct store_model model = { .layers = NULL };
    bool *taken = calloc(tensors->count + 1, sizeof *taken);
    zero_status s = zero_success();

    if (taken == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for %zu tensors",
                            tensors->count);
    for (size_t t = 0; t < tensors->count && !zero_failed(s); t++)
        if (!taken[t])
            s = add_layer(&model, tensors, t, taken, out_detail);
    if (!zero_failed(s))
        s = store_model_layout(&model, 1, ZERO_FP32, out, out_detail);
    store_model_deinit(&model);
    free(taken);
    return s;
}

/* ---- the import ---- */

struct importing {
    const struct store_tensors *tensors;
    const struct zero_layout *layout;
    const struct store_tensor **from; /* for each tensor of the layout */
    uint32_t next;                    /* tensor of the layout that is not behind us */
};

static zero_status match(struct importing *i, struct zero_detail *detail)
{
    for (uint32_t t = 0; t < i->layout->tensor_count; t++) {
        const struct zero_tensor *want = &i->layout->tensors[t];
        const struct store_tensor *have = store_tensors_find(i->tensors, want->name);
        if (have == NULL)
            return store_refuse(detail, ZERO_MISMATCH, "no file has the model's tensor %.200s",
                                want->name);
        if (have->dims != want->dims ||
            memcmp(have->shape, want->shape, want->dims * sizeof *want->shape) != 0)
            return store_refuse(detail, ZERO_MISMATCH,
                                "tensor %.200s has another shape in %.200s than in the model",
                                want->name, i->tensors->files[have->file].path);
        i->from[t] = have;
    }
    return zero_success();
}

/* One tensor's elements that lie in [at, at + count) of the whole vector; the rest stays 0. */
static zero_status fill_from(const struct importing *i, uint32_t tensor, struct zero_range want,
                             float *to, struct zero_detail *detail)
{
    const struct zero_tensor *t = &i->layout->tensors[tensor];
    uint64_t start = i->layout->layers[t->layer].flat_offset + t->offset;
    uint64_t begin = start < want.begin ? want.begin : start;
    uint64_t end = start + t->count > want.end ? want.end : start + t->count;

    if (begin >= end)
        return zero_success();
    const struct zero_range elements = { begin - start, end - start };
    return store_tensors_read(i->tensors, i->from[tensor], elements, to + (begin - want.begin),
                              detail);
}

/* The store_source of the master. */
static zero_status fill(void *context, uint64_t offset, size_t bytes, void *to,
                        struct zero_detail *detail)
{
    struct importing *i = context;
    const struct zero_range want = { offset / 4, (offset + bytes) / 4 };
    zero_status s = zero_success();

    memset(to, 0, bytes);
    for (uint32_t t = i->next; t < i->layout->tensor_count && !zero_failed(s); t++) {
        const struct zero_tensor *tensor = &i->layout->tensors[t];
        uint64_t start = i->layout->layers[tensor->layer].flat_offset + tensor->offset;
        if (start >= want.end)
            break;
        s = fill_from(i, t, want, to, detail);
        if (start + tensor->count <= want.end)
            i->next = t + 1;
    }
    return s;
}

static zero_status write_all(struct importing *i, struct store_save *save,
                             struct store_progress *progress, char out_path[PATH_MAX],
                             struct zero_detail *detail)
{
    const struct store_region region = { STORE_MASTER, NULL, 0, fill, i };
    const struct store_part part = { 0, i->layout, &region, 1, "", 0 };
    const struct store_info info = { .layout = i->layout, .config = "" };
    struct store_written written;
    zero_status s = store_write_part(save, &part, progress, &written, detail);

    return zero_failed(s) ? s : store_commit(save, &info, out_path, detail);
}

zero_status store_import(const struct store_tensors *tensors, const struct zero_layout *layout,
                         const char *dir, struct store_imported *out,
                         struct zero_detail *out_detail)
{
    struct importing i = { .tensors = tensors, .layout = layout };
    struct zero_detail second;
    struct store_save save = { .fd = -1 };
    zero_status s;

    i.from = calloc(layout->tensor_count, sizeof *i.from);
    if (i.from == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for %" PRIu32 " tensors",
                            layout->tensor_count);
    TRY(s, match(&i, out_detail));
    TRY(s, store_check_free(dir, 0, out_detail));
    TRY(s, store_begin(dir, 0, &save, out_detail));
    s = write_all(&i, &save, out->progress, out->path, out_detail);
    if (zero_failed(s))
        store_abandon(&save, &second);
    out->unused = tensors->count - layout->tensor_count;
out:
    free(i.from);
    return s;
}
