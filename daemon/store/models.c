/* SPDX-License-Identifier: MIT */
#include "daemon/store/models.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"

/* Room for one more of `size` bytes each, by doubling. */
static bool grow(void **array, size_t count, size_t *room, size_t size)
{
    if (count < *room)
        return true;
    size_t more = *room == 0 ? 64 : *room * 2;
    void *bigger = reallocarray(*array, more, size);
    if (bigger == NULL)
        return false;
    *array = bigger;
    *room = more;
    return true;
}

static zero_status no_memory(const struct store_model *model, struct zero_detail *detail)
{
    return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a model with more than %zu tensors",
                        model->tensor_count);
}

static zero_status add_name(struct store_model *model, const char *name, size_t *out_at,
                            struct zero_detail *detail)
{
    size_t bytes = strlen(name) + 1;

    while (model->name_bytes + bytes > model->name_room)
        if (!grow((void **)&model->names, model->name_room, &model->name_room, 1))
            return no_memory(model, detail);
    *out_at = model->name_bytes;
    memcpy(model->names + model->name_bytes, name, bytes);
    model->name_bytes += bytes;
    return zero_success();
}

zero_status store_model_layer(struct store_model *model, struct zero_detail *out_detail)
{
    size_t room = model->layer_room;

    if (model->layer_count == ZERO_MAX_LAYERS)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "the model has more than %d layers",
                            ZERO_MAX_LAYERS);
    if (!grow((void **)&model->layer_names, model->layer_count, &room, sizeof(size_t)) ||
        !grow((void **)&model->layers, model->layer_count, &model->layer_room,
              sizeof *model->layers))
        return no_memory(model, out_detail);
    model->layer_names[model->layer_count] = SIZE_MAX;
    model->layers[model->layer_count++] = (struct zero_layer_spec){ .tensor_count = 0 };
    return zero_success();
}

zero_status store_model_tensor(struct store_model *model, struct zero_detail *out_detail)
{
    size_t room = model->tensor_room;

    if (model->tensor_count == ZERO_MAX_TENSORS)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "the model has more than %d tensors",
                            ZERO_MAX_TENSORS);
    if (!grow((void **)&model->tensor_names, model->tensor_count, &room, sizeof(size_t)) ||
        !grow((void **)&model->tensors, model->tensor_count, &model->tensor_room,
              sizeof *model->tensors))
        return no_memory(model, out_detail);
    model->tensor_names[model->tensor_count] = SIZE_MAX;
    model->tensors[model->tensor_count++] =
        (struct zero_tensor_spec){ .lr_scale = 1, .weight_decay = NAN };
    model->layers[model->layer_count - 1].tensor_count++;
    return zero_success();
}

zero_status store_model_name(struct store_model *model, const char *name, bool of_tensor,
                             struct zero_detail *out_detail)
{
    return add_name(model, name,
                    of_tensor ? &model->tensor_names[model->tensor_count - 1]
                              : &model->layer_names[model->layer_count - 1],
                    out_detail);
}

zero_status store_model_size(struct store_model *model, uint64_t size,
                             struct zero_detail *out_detail)
{
    struct zero_tensor_spec *tensor = &model->tensors[model->tensor_count - 1];

    if (tensor->dims == ZERO_MAX_DIMS)
        return store_refuse(out_detail, ZERO_TOO_LARGE, "a tensor has more than %d dimensions",
                            ZERO_MAX_DIMS);
    if (!grow((void **)&model->shapes, model->shape_count, &model->shape_room,
              sizeof *model->shapes))
        return no_memory(model, out_detail);
    model->shapes[model->shape_count++] = size;
    tensor->dims++;
    return zero_success();
}

/* The arrays have their place now: what the specs point to is known. */
static void connect(struct store_model *model)
{
    size_t tensor = 0, shape = 0;

    for (size_t t = 0; t < model->tensor_count; t++) {
        size_t name = model->tensor_names[t];
        model->tensors[t].name = name == SIZE_MAX ? NULL : model->names + name;
        model->tensors[t].shape = model->tensors[t].dims == 0 ? NULL : model->shapes + shape;
        shape += model->tensors[t].dims;
    }
    for (size_t l = 0; l < model->layer_count; l++) {
        size_t name = model->layer_names[l];
        model->layers[l].name = name == SIZE_MAX ? NULL : model->names + name;
        model->layers[l].tensors = model->tensors == NULL ? NULL : model->tensors + tensor;
        tensor += model->layers[l].tensor_count;
    }
}

zero_status store_model_layout(struct store_model *model, uint32_t world, zero_dtype dtype,
                               struct zero_layout **out, struct zero_detail *out_detail)
{
    connect(model);
    const struct zero_layout_spec spec = { model->layers, model->layer_count, world, dtype };
    return zero_layout_create(&spec, out, out_detail);
}

zero_status store_layout_again(const struct zero_layout *layout, uint32_t world, zero_dtype dtype,
                               struct zero_layout **out, struct zero_detail *out_detail)
{
    struct zero_tensor_spec *tensors = calloc(layout->tensor_count, sizeof *tensors);
    struct zero_layer_spec *layers = calloc(layout->layer_count, sizeof *layers);
    zero_status s;

    if (tensors == NULL || layers == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for %u tensors",
                         layout->tensor_count);
        goto out;
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const struct zero_tensor *tensor = &layout->tensors[t];
        tensors[t] = (struct zero_tensor_spec){ tensor->name, tensor->shape, tensor->dims,
                                                tensor->lr_scale, tensor->weight_decay };
    }
    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        layers[l] = (struct zero_layer_spec){ layer->name, tensors + layer->first_tensor,
                                              layer->tensor_count };
    }
    const struct zero_layout_spec spec = { layers, layout->layer_count, world, dtype };
    s = zero_layout_create(&spec, out, out_detail);
out:
    free(tensors);
    free(layers);
    return s;
}

void store_model_deinit(struct store_model *model)
{
    free(model->layers);
    free(model->tensors);
    free(model->names);
    free(model->layer_names);
    free(model->tensor_names);
    free(model->shapes);
    *model = (struct store_model){ .layers = NULL };
}
