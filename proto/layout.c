/* SPDX-License-Identifier: MIT */
#include "proto/layout.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/text.h"

/* Elements of a model: far from overflow when multiplied by any element size and by a world. */
static const uint64_t most_elements = UINT64_C(1) << 50;

__attribute__((format(printf, 3, 4))) static zero_status
refuse(struct zero_detail *detail, zero_code code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(detail->text, sizeof detail->text, format, args);
    va_end(args);
    return (zero_status){ code, "lay out model" };
}

static uint64_t round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

/* A shard is whole norm chunks, whole pages and whole alignment units, whatever the dtype. */
static uint64_t shard_unit(zero_dtype dtype)
{
    uint64_t page = ZERO_PAGE_BYTES / zero_dtype_bytes(dtype);
    return page > ZERO_NORM_CHUNK ? page : (uint64_t)ZERO_NORM_CHUNK;
}

static bool name_allowed(const char *name)
{
    return name != NULL && name[0] != '\0' && zero_text_printable(name, ZERO_MAX_NAME);
}

static zero_status count_tensor(const struct zero_tensor_spec *spec, struct zero_tensor *tensor,
                                struct zero_detail *detail)
{
    if (spec->dims > ZERO_MAX_DIMS)
        return refuse(detail, ZERO_TOO_LARGE, "tensor %s has %" PRIu32 " dimensions, at most %d",
                      spec->name, spec->dims, ZERO_MAX_DIMS);
    if (spec->dims > 0 && spec->shape == NULL)
        return refuse(detail, ZERO_INVALID_ARGUMENT,
                      "tensor %s has %" PRIu32 " dimensions, but its shape is NULL", spec->name,
                      spec->dims);
    tensor->dims = spec->dims;
    tensor->count = 1;
    for (uint32_t d = 0; d < spec->dims; d++) {
        uint64_t size = spec->shape[d];
        if (size == 0)
            return refuse(detail, ZERO_INVALID_ARGUMENT,
                          "dimension %" PRIu32 " of tensor %s is 0: leave empty tensors out", d,
                          spec->name);
        if (size > most_elements / tensor->count)
            return refuse(detail, ZERO_TOO_LARGE,
                          "the sizes of tensor %s multiply to more than 2^50 elements", spec->name);
        tensor->shape[d] = size;
        tensor->count *= size;
    }
    if (!isfinite(spec->lr_scale) || spec->lr_scale < 0)
        return refuse(detail, ZERO_INVALID_ARGUMENT,
                      "lr_scale of tensor %s is %g: it must be finite and not negative", spec->name,
                      spec->lr_scale);
    if (!isnan(spec->weight_decay) && !(isfinite(spec->weight_decay) && spec->weight_decay >= 0))
        return refuse(
            detail, ZERO_INVALID_ARGUMENT,
            "weight_decay of tensor %s is %g: it must be NaN (the config's), or finite and "
            "not negative",
            spec->name, spec->weight_decay);
    return zero_success();
}

static zero_status add_tensor(const struct zero_tensor_spec *spec, uint32_t layer,
                              struct zero_tensor *tensor, struct zero_detail *detail)
{
    if (!name_allowed(spec->name))
        return refuse(detail, ZERO_INVALID_ARGUMENT,
                      "a tensor of layer %" PRIu32
                      " has a name that is empty, longer than %d bytes, "
                      "or is not UTF-8 without control characters",
                      layer, ZERO_MAX_NAME);
    zero_status s = count_tensor(spec, tensor, detail);
    if (zero_failed(s))
        return s;
    tensor->layer = layer;
    tensor->lr_scale = spec->lr_scale;
    tensor->weight_decay = spec->weight_decay;
    tensor->name = strdup(spec->name);
    if (tensor->name == NULL)
        return refuse(detail, ZERO_NO_MEMORY, "no memory for the name of tensor %s", spec->name);
    return s;
}

static zero_status add_layer(struct zero_layout *layout, const struct zero_layer_spec *spec,
                             struct zero_detail *detail)
{
    uint32_t index = layout->layer_count;
    struct zero_layer *layer = &layout->layers[index];
    uint64_t end = 0;

    if (!name_allowed(spec->name))
        return refuse(detail, ZERO_INVALID_ARGUMENT,
                      "layer %" PRIu32 " has a name that is empty, longer than %d bytes, or is not "
                      "UTF-8 without control characters",
                      index, ZERO_MAX_NAME);
    if (spec->tensor_count == 0 || spec->tensors == NULL)
        return refuse(detail, ZERO_INVALID_ARGUMENT, "layer %s has no tensors", spec->name);
    layer->first_tensor = layout->tensor_count;
    layer->name = strdup(spec->name);
    layout->layer_count++;
    if (layer->name == NULL)
        return refuse(detail, ZERO_NO_MEMORY, "no memory for the name of layer %s", spec->name);
    for (size_t t = 0; t < spec->tensor_count; t++) {
        struct zero_tensor *tensor = &layout->tensors[layout->tensor_count];
        zero_status s = add_tensor(&spec->tensors[t], index, tensor, detail);
        if (zero_failed(s))
            return s;
        layout->tensor_count++;
        layer->tensor_count++;
        tensor->offset = round_up(end, ZERO_TENSOR_ALIGN);
        end = tensor->offset + tensor->count;
        layer->count += tensor->count;
        if (end > most_elements)
            return refuse(detail, ZERO_TOO_LARGE, "layer %s has more than 2^50 elements",
                          spec->name);
    }
    uint64_t share = (end + layout->world - 1) / layout->world;
    layer->shard = round_up(share, shard_unit(layout->dtype));
    layer->flat = layer->shard * layout->world;
    layer->shard_offset = layout->shard_total;
    layer->flat_offset = layout->flat_total;
    layout->shard_total += layer->shard;
    layout->flat_total += layer->flat;
    layout->count += layer->count;
    if (layer->flat > layout->largest_flat)
        layout->largest_flat = layer->flat;
    if (layout->flat_total > most_elements)
        return refuse(detail, ZERO_TOO_LARGE, "the model has more than 2^50 elements, at layer %s",
                      spec->name);
    return zero_success();
}

static int compare_names(const void *a, const void *b)
{
    const struct zero_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static zero_status check_names(const struct zero_layout *layout, struct zero_detail *detail)
{
    zero_status s = zero_success();
    const struct zero_tensor **sorted = malloc((layout->tensor_count + 1) * sizeof *sorted);

    if (sorted == NULL)
        return refuse(detail, ZERO_NO_MEMORY, "no memory to compare %" PRIu32 " names",
                      layout->tensor_count);
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        sorted[t] = &layout->tensors[t];
    qsort(sorted, layout->tensor_count, sizeof *sorted, compare_names);
    for (uint32_t t = 1; t < layout->tensor_count; t++) {
        if (strcmp(sorted[t - 1]->name, sorted[t]->name) == 0) {
            s = refuse(detail, ZERO_INVALID_ARGUMENT,
                       "two tensors are named %s (layers %s and %s): names must be unique",
                       sorted[t]->name, layout->layers[sorted[t - 1]->layer].name,
                       layout->layers[sorted[t]->layer].name);
            break;
        }
    }
    free(sorted);
    return s;
}

static zero_status check_counts(const struct zero_layout_spec *spec, size_t *out_tensors,
                                struct zero_detail *detail)
{
    size_t layer_count = spec->layer_count;
    uint32_t world = spec->world;

    if (world == 0 || world > ZERO_MAX_WORLD)
        return refuse(detail, ZERO_INVALID_ARGUMENT, "world size %" PRIu32 " is not 1 to %d", world,
                      ZERO_MAX_WORLD);
    if (spec->layers == NULL || layer_count == 0 || layer_count > ZERO_MAX_LAYERS)
        return refuse(detail, ZERO_INVALID_ARGUMENT, "a model has 1 to %d layers, not %zu",
                      ZERO_MAX_LAYERS, layer_count);
    size_t tensors = 0;
    for (size_t l = 0; l < layer_count; l++) {
        if (spec->layers[l].tensor_count > (size_t)ZERO_MAX_TENSORS - tensors)
            return refuse(detail, ZERO_TOO_LARGE, "the model has more than %d tensors",
                          ZERO_MAX_TENSORS);
        tensors += spec->layers[l].tensor_count;
    }
    *out_tensors = tensors;
    return zero_success();
}

static struct zero_layout *allocate(const struct zero_layout_spec *spec, size_t tensors)
{
    struct zero_layout *layout = calloc(1, sizeof *layout);

    if (layout == NULL)
        return NULL;
    layout->world = spec->world;
    layout->dtype = spec->dtype;
    layout->layers = calloc(spec->layer_count, sizeof *layout->layers);
    layout->tensors = calloc(tensors + 1, sizeof *layout->tensors);
    if (layout->layers != NULL && layout->tensors != NULL)
        return layout;
    zero_layout_destroy(layout);
    return NULL;
}

zero_status zero_layout_create(const struct zero_layout_spec *spec, struct zero_layout **out,
                               struct zero_detail *out_detail)
{
    struct zero_layout *layout = NULL;
    size_t tensors = 0;
    zero_status s = check_counts(spec, &tensors, out_detail);

    if (zero_failed(s))
        goto out;
    layout = allocate(spec, tensors);
    if (layout == NULL) {
        s = refuse(out_detail, ZERO_NO_MEMORY, "no memory for %zu layers and %zu tensors",
                   spec->layer_count, tensors);
        goto out;
    }
    for (size_t l = 0; l < spec->layer_count && !zero_failed(s); l++)
        s = add_layer(layout, &spec->layers[l], out_detail);
    if (!zero_failed(s))
        s = check_names(layout, out_detail);
    if (zero_failed(s))
        goto out;
    *out = layout;
    layout = NULL;
out:
    zero_layout_destroy(layout);
    return s;
}

void zero_layout_destroy(struct zero_layout *layout)
{
    if (layout == NULL)
        return;
    for (uint32_t l = 0; layout->layers && l < layout->layer_count; l++)
        free(layout->layers[l].name);
    for (uint32_t t = 0; layout->tensors && t < layout->tensor_count; t++)
        free(layout->tensors[t].name);
    free(layout->layers);
    free(layout->tensors);
    free(layout);
}

/* The first tensor of a layer that ends after `begin`: they stand in order. */
static uint32_t first_after(const struct zero_tensor *tensors, uint32_t count, uint64_t begin)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (tensors[middle].offset + tensors[middle].count <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool zero_layout_segment(const struct zero_layout *layout, uint32_t layer, struct zero_range within,
                         uint32_t *cursor, struct zero_segment *out)
{
    const struct zero_layer *l = &layout->layers[layer];
    const struct zero_tensor *tensors = &layout->tensors[l->first_tensor];

    if (*cursor == 0)
        *cursor = first_after(tensors, l->tensor_count, within.begin);
    if (*cursor >= l->tensor_count || tensors[*cursor].offset >= within.end)
        return false;
    const struct zero_tensor *tensor = &tensors[*cursor];
    uint64_t last = tensor->offset + tensor->count;
    out->tensor = tensor;
    out->layer = layer;
    out->begin = tensor->offset > within.begin ? tensor->offset : within.begin;
    out->end = last < within.end ? last : within.end;
    *cursor += 1;
    return true;
}

static void write_tensor(FILE *to, const struct zero_tensor *tensor)
{
    fprintf(to, "  tensor %s [", tensor->name);
    for (uint32_t d = 0; d < tensor->dims; d++)
        fprintf(to, "%s%" PRIu64, d ? "," : "", tensor->shape[d]);
    fprintf(to, "]");
    if (tensor->lr_scale != 1)
        fprintf(to, " lr_scale %.17g", tensor->lr_scale);
    if (!isnan(tensor->weight_decay))
        fprintf(to, " weight_decay %.17g", tensor->weight_decay);
    fprintf(to, "\n");
}

char *zero_layout_text(const struct zero_layout *layout)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL)
        return NULL;
    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        fprintf(to, "layer %s\n", layer->name);
        for (uint32_t t = 0; t < layer->tensor_count; t++)
            write_tensor(to, &layout->tensors[layer->first_tensor + t]);
    }
    if (ferror(to) | fclose(to)) {
        free(text);
        return NULL;
    }
    return text;
}
