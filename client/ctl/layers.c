/* SPDX-License-Identifier: MIT */
#include "client/ctl/layers.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json.h"

__attribute__((format(printf, 3, 4))) static zero_status
refuse(struct zero_detail *detail, const struct json *at, const char *format, ...)
{
    va_list args;
    int used = snprintf(detail->text, sizeof detail->text, "line %u: ", at->line);

    va_start(args, format);
    vsnprintf(detail->text + used, sizeof detail->text - (size_t)used, format, args);
    va_end(args);
    return (zero_status){ ZERO_CONFIG, "read layers" };
}

static zero_status no_memory(struct zero_detail *detail)
{
    snprintf(detail->text, sizeof detail->text, "no memory for the layers");
    return (zero_status){ ZERO_NO_MEMORY, "read layers" };
}

static size_t children(const struct json *json)
{
    size_t count = 0;

    for (const struct json *child = json->first; child != NULL; child = child->next)
        count++;
    return count;
}

/* The members of an object are "name" and another one, of that type. */
static zero_status look(const struct json *object, const char *other, enum json_type type,
                        struct zero_detail *detail)
{
    if (object->type != JSON_OBJECT)
        return refuse(detail, object, "an object with \"name\" and \"%s\" is expected, not %s",
                      other, json_type_name(object->type));
    for (const struct json *m = object->first; m != NULL; m = m->next)
        if (strcmp(m->key, "name") != 0 && strcmp(m->key, other) != 0)
            return refuse(detail, m, "unknown key \"%s\"; there are \"name\" and \"%s\"", m->key,
                          other);
    const struct json *name = json_member(object, "name"), *value = json_member(object, other);
    if (name == NULL || name->type != JSON_TEXT)
        return refuse(detail, object, "\"name\" must be a text");
    if (value == NULL || value->type != type)
        return refuse(detail, object, "\"%s\" must be %s", other, json_type_name(type));
    return zero_success();
}

static zero_status read_shape(const struct json *list, struct zero_tensor_spec *tensor,
                              struct zero_detail *detail)
{
    size_t dims = children(list), d = 0;

    if (dims > ZERO_MAX_DIMS)
        return refuse(detail, list, "a shape has at most %d dimensions, not %zu", ZERO_MAX_DIMS,
                      dims);
    uint64_t *shape = calloc(dims + 1, sizeof *shape);
    if (shape == NULL)
        return no_memory(detail);
    tensor->shape = shape;
    tensor->dims = (uint32_t)dims;
    for (const struct json *n = list->first; n != NULL; n = n->next) {
        if (n->type != JSON_NUMBER || !(n->number >= 1 && n->number < 0x1p53) ||
            floor(n->number) != n->number)
            return refuse(detail, n, "a dimension is a whole number from 1 to 2^53");
        shape[d++] = (uint64_t)n->number;
    }
    return zero_success();
}

static zero_status read_layer(const struct json *object, struct zero_layer_spec *layer,
                              struct zero_detail *detail)
{
    zero_status s = look(object, "tensors", JSON_ARRAY, detail);
    size_t t = 0;

    if (zero_failed(s))
        return s;
    const struct json *list = json_member(object, "tensors");
    struct zero_tensor_spec *tensors = calloc(children(list) + 1, sizeof *tensors);
    if (tensors == NULL)
        return no_memory(detail);
    layer->name = json_member(object, "name")->text;
    layer->tensors = tensors;
    layer->tensor_count = children(list);
    for (const struct json *item = list->first; item != NULL; item = item->next, t++) {
        s = look(item, "shape", JSON_ARRAY, detail);
        if (zero_failed(s))
            return s;
        tensors[t].name = json_member(item, "name")->text;
        tensors[t].lr_scale = 1;
        tensors[t].weight_decay = NAN;
        s = read_shape(json_member(item, "shape"), &tensors[t], detail);
        if (zero_failed(s))
            return s;
    }
    return zero_success();
}

zero_status layers_read(const char *text, size_t bytes, struct layers *out,
                        struct zero_detail *out_detail)
{
    struct layers made = { NULL, 0, NULL };
    zero_status s = json_parse(text, bytes, &made.tree, out_detail);

    if (zero_failed(s))
        goto out;
    if (made.tree->type != JSON_ARRAY) {
        s = refuse(out_detail, made.tree, "a list of layers is expected, not %s",
                   json_type_name(made.tree->type));
        goto out;
    }
    made.specs = calloc(children(made.tree) + 1, sizeof *made.specs);
    if (made.specs == NULL) {
        s = no_memory(out_detail);
        goto out;
    }
    for (const struct json *item = made.tree->first; item != NULL; item = item->next) {
        s = read_layer(item, &made.specs[made.count++], out_detail);
        if (zero_failed(s))
            goto out;
    }
    *out = made;
    made = (struct layers){ NULL, 0, NULL };
out:
    layers_deinit(&made);
    return s;
}

void layers_deinit(struct layers *layers)
{
    for (size_t l = 0; layers->specs != NULL && l < layers->count; l++) {
        for (size_t t = 0; t < layers->specs[l].tensor_count; t++)
            free((void *)(uintptr_t)layers->specs[l].tensors[t].shape);
        free((void *)(uintptr_t)layers->specs[l].tensors);
    }
    free(layers->specs);
    json_free(layers->tree);
    *layers = (struct layers){ NULL, 0, NULL };
}
