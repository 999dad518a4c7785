/* SPDX-License-Identifier: MIT */
/* The model: sent to the daemon or received from it, then mapped. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/client.h"
#include "proto/config.h"

enum {
    FRAME_TENSORS = 100,            /* fit in a frame whatever their names and shapes */
    REGISTER_MS = 24 * 3600 * 1000, /* the daemon has the deadline: the config's, not known here */
};

static zero_status send_layer(zero_client *client, const struct zero_layer_spec *layer,
                              uint32_t index)
{
    Zero__V1__Tensor tensors[FRAME_TENSORS], *pointers[FRAME_TENSORS];
    zero_status s = zero_success();

    for (size_t t = 0; t < layer->tensor_count && !zero_failed(s);) {
        Zero__V1__RegisterTensors message = ZERO__V1__REGISTER_TENSORS__INIT;
        message.layer = index;
        message.layer_name = (char *)(uintptr_t)layer->name;
        message.tensors = pointers;
        for (; t < layer->tensor_count && message.n_tensors < FRAME_TENSORS; t++) {
            Zero__V1__Tensor *to = &tensors[message.n_tensors];
            zero__v1__tensor__init(to);
            to->name = (char *)(uintptr_t)layer->tensors[t].name;
            to->shape = (uint64_t *)(uintptr_t)layer->tensors[t].shape;
            to->n_shape = layer->tensors[t].dims;
            to->lr_scale = layer->tensors[t].lr_scale;
            to->weight_decay = layer->tensors[t].weight_decay;
            pointers[message.n_tensors++] = to;
        }
        s = client_send(client, ZERO_FRAME_REGISTER_TENSORS, &message.base);
    }
    return s;
}

/* The layout is checked here before anything is sent: a mistake costs no round trip. */
static zero_status send_model(zero_client *client, const struct zero_model_spec *model)
{
    Zero__V1__RegisterConfig config = ZERO__V1__REGISTER_CONFIG__INIT;
    Zero__V1__RegisterEnd end = ZERO__V1__REGISTER_END__INIT;
    struct zero_detail detail = { "" };
    struct zero_layout *layout = NULL;

    const struct zero_layout_spec spec = { model->layers, model->layer_count, client->world,
                                           ZERO_FP32 };
    zero_status s = zero_layout_create(&spec, &layout, &detail);
    zero_layout_destroy(layout);
    if (zero_failed(s))
        return client_fail(client, s.code, s.doing, "%s", detail.text);
    if (model->config == NULL)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "register model",
                           "the model comes without a config");
    if (model->config_bytes > ZERO_CONFIG_MAX_BYTES)
        return client_fail(client, ZERO_TOO_LARGE, "register model",
                           "the config has %zu bytes, at most %d", model->config_bytes,
                           ZERO_CONFIG_MAX_BYTES);
    config.json.data = (uint8_t *)(uintptr_t)model->config;
    config.json.len = model->config_bytes;
    s = client_send(client, ZERO_FRAME_REGISTER_CONFIG, &config.base);
    for (size_t l = 0; l < model->layer_count && !zero_failed(s); l++) {
        s = send_layer(client, &model->layers[l], (uint32_t)l);
        end.layers++;
        end.tensors += (uint32_t)model->layers[l].tensor_count;
    }
    return zero_failed(s) ? s : client_send(client, ZERO_FRAME_REGISTER_END, &end.base);
}

/* ---- a model that comes from the daemon ----------------------------------------------------- */

struct received {
    struct zero_layer_spec *layers;
    size_t layer_count;
    struct zero_frame *frames; /* own the names and shapes */
    size_t frame_count, room;
    struct zero_tensor_spec *tensors;
    size_t tensor_count;
};

static zero_status keep_frame(zero_client *client, struct received *received,
                              const struct zero_frame *frame)
{
    const Zero__V1__RegisterTensors *message = (const Zero__V1__RegisterTensors *)frame->message;

    if (received->frame_count == received->room) {
        size_t room = received->room ? received->room * 2 : 16;
        struct zero_frame *frames = realloc(received->frames, room * sizeof *frames);
        if (frames == NULL)
            return client_fail(client, ZERO_NO_MEMORY, "receive model", "%zu frames", room);
        received->frames = frames;
        received->room = room;
    }
    received->frames[received->frame_count++] = *frame;
    received->tensor_count += message->n_tensors;
    if (message->n_tensors == 0)
        return client_fail(client, ZERO_PROTOCOL, "receive model", "a frame without tensors came");
    if (message->layer == received->layer_count)
        received->layer_count++;
    else if ((size_t)message->layer + 1 != received->layer_count)
        return client_fail(client, ZERO_PROTOCOL, "receive model",
                           "a part of layer %" PRIu32 " came after %zu layers", message->layer,
                           received->layer_count);
    if (received->layer_count > ZERO_MAX_LAYERS || received->tensor_count > ZERO_MAX_TENSORS)
        return client_fail(client, ZERO_TOO_LARGE, "receive model", "the model has too many parts");
    return zero_success();
}

static zero_status receive_frames(zero_client *client, struct received *received)
{
    for (;;) {
        struct zero_frame frame;
        zero_status s = client_hear(client, 0, (int)client->deadline_ms, &frame);
        if (zero_failed(s))
            return s;
        if (frame.type == ZERO_FRAME_REGISTER_TENSORS) {
            s = keep_frame(client, received, &frame);
            if (!zero_failed(s))
                continue;
            atomic_store(&client->lost, true); /* the rest of the model is not read */
            return s;
        }
        if (frame.type != ZERO_FRAME_MODEL_END)
            s = client_fail(client, ZERO_PROTOCOL, "receive model", "frame type %d came",
                            (int)frame.type);
        zero_frame_release(&frame);
        return s;
    }
}

static zero_status build_specs(zero_client *client, struct received *received)
{
    size_t next = 0;

    received->layers = calloc(received->layer_count + 1, sizeof *received->layers);
    received->tensors = calloc(received->tensor_count + 1, sizeof *received->tensors);
    if (received->layers == NULL || received->tensors == NULL)
        return client_fail(client, ZERO_NO_MEMORY, "receive model", "%zu tensors",
                           received->tensor_count);
    for (size_t f = 0; f < received->frame_count; f++) {
        const Zero__V1__RegisterTensors *message =
            (const Zero__V1__RegisterTensors *)received->frames[f].message;
        struct zero_layer_spec *layer = &received->layers[message->layer];
        layer->name = message->layer_name;
        for (size_t t = 0; t < message->n_tensors; t++, next++) {
            const Zero__V1__Tensor *from = message->tensors[t];
            if (layer->tensor_count++ == 0)
                layer->tensors = &received->tensors[next];
            received->tensors[next] =
                (struct zero_tensor_spec){ .name = from->name,
                                           .shape = from->shape,
                                           .dims = (uint32_t)from->n_shape,
                                           .lr_scale = from->lr_scale,
                                           .weight_decay = from->weight_decay };
        }
    }
    return zero_success();
}

static void free_received(struct received *received)
{
    for (size_t f = 0; f < received->frame_count; f++)
        zero_frame_release(&received->frames[f]);
    free(received->frames);
    free(received->layers);
    free(received->tensors);
}

/* ---- registered ----------------------------------------------------------------------------- */

static zero_status take_numbers(zero_client *client, const Zero__V1__Registered *message)
{
    struct zero_client_info *info = &client->info;

    if (message->stage > 3 || message->param_dtype >= ZERO_DTYPES ||
        message->grad_dtype >= ZERO_DTYPES)
        return client_fail(client, ZERO_PROTOCOL, "register model",
                           "the daemon answered with a stage or dtype that does not exist");
    info->stage = message->stage;
    info->param_dtype = (zero_dtype)message->param_dtype;
    info->grad_dtype = (zero_dtype)message->grad_dtype;
    info->epoch = message->epoch;
    info->step = message->step;
    info->updates = message->updates;
    info->filled = message->filled;
    info->lr = message->lr;
    info->loss_scale = message->loss_scale;
    info->train_batch = message->train_batch;
    info->micro_batch = message->micro_batch;
    info->accumulation = message->accumulation;
    client->model = message->model;
    client->deadline_ms = message->deadline_ms < CLIENT_MAX_DEADLINE_MS ? message->deadline_ms
                                                                        : CLIENT_MAX_DEADLINE_MS;
    atomic_store(&client->attempt, message->attempt);
    if (client->blob == NULL)
        client->blob = malloc(ZERO_MAX_BLOB); /* now: a step allocates nothing */
    if (client->blob == NULL)
        return client_fail(client, ZERO_NO_MEMORY, "register model", "%d bytes", ZERO_MAX_BLOB);
    if (message->blob.len > 0)
        memcpy(client->blob, message->blob.data, message->blob.len);
    info->blob_bytes = message->blob.len;
    return zero_success();
}

static zero_status lay_out(zero_client *client, const struct zero_layer_spec *layers, size_t count)
{
    struct zero_detail detail = { "" };
    const struct zero_layout_spec spec = { layers, count, client->world, client->info.param_dtype };
    zero_status s = zero_layout_create(&spec, &client->layout, &detail);

    if (zero_failed(s))
        return client_fail(client, s.code, s.doing, "%s", detail.text);
    client->info.layer_count = client->layout->layer_count;
    return s;
}

static void forget_layout(zero_client *client)
{
    zero_layout_destroy(client->layout);
    client->layout = NULL;
    client->info.layer_count = 0;
}

static zero_status finish(zero_client *client, const struct zero_layer_spec *layers, size_t count)
{
    struct zero_frame frame;
    zero_status s =
        client_receive(client, ZERO_FRAME_REGISTERED, ZERO_FRAME_MAX_FDS, REGISTER_MS, &frame);

    if (zero_failed(s))
        return s;
    s = take_numbers(client, (const Zero__V1__Registered *)frame.message);
    if (!zero_failed(s))
        s = lay_out(client, layers, count);
    if (!zero_failed(s))
        s = mapping_open(client, &frame);
    if (zero_failed(s)) {
        forget_layout(client);
        atomic_store(&client->lost, true); /* the daemon holds us to be attached */
    }
    zero_frame_release(&frame);
    return s;
}

static zero_status register_once(zero_client *client, const struct zero_model_spec *model)
{
    Zero__V1__RegisterEnd nothing = ZERO__V1__REGISTER_END__INIT;
    struct received received = { 0 };
    zero_status s;

    if (model != NULL) {
        s = send_model(client, model);
        return zero_failed(s) ? s : finish(client, model->layers, model->layer_count);
    }
    s = client_send(client, ZERO_FRAME_REGISTER_END, &nothing.base);
    if (!zero_failed(s))
        s = receive_frames(client, &received);
    if (!zero_failed(s))
        s = build_specs(client, &received);
    if (!zero_failed(s))
        s = finish(client, received.layers, received.layer_count);
    free_received(&received);
    return s;
}

/* A daemon that dies meanwhile is waited for: its successor has what was registered, or nothing.
 * The deadline counts from then: before, the daemon may have read a checkpoint for long. */
zero_status zero_register(zero_client *client, const struct zero_model_spec *model)
{
    if (client->layout != NULL)
        return client_fail(client, ZERO_INVALID_STATE, "register model",
                           "this client has registered its model already");
    zero_status s = client_check(client);
    if (!zero_failed(s))
        s = register_once(client, model);
    int64_t end = client_now_ms() + client->deadline_ms;
    while (s.code == ZERO_DAEMON_LOST && client_now_ms() < end) {
        s = session_connect(client, end);
        if (!zero_failed(s))
            s = register_once(client, model);
        if (!zero_failed(s))
            atomic_store(&client->lost, false);
    }
    return s;
}

zero_status model_check_layer(const zero_client *client, uint32_t layer)
{
    if (client->layout == NULL)
        return client_fail(client, ZERO_INVALID_STATE, "use model",
                           "no model yet: zero_register first");
    if (layer >= client->layout->layer_count)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "use model", "layer %u: the model has %u",
                           layer, client->layout->layer_count);
    return zero_success();
}

static zero_status find_tensor(const zero_client *client, uint32_t layer, uint32_t tensor,
                               const struct zero_tensor **out)
{
    zero_status s = model_check_layer(client, layer);
    if (zero_failed(s))
        return s;
    const struct zero_layer *l = &client->layout->layers[layer];
    if (tensor >= l->tensor_count)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "find tensor",
                           "tensor %u: layer %s has %u", tensor, l->name, l->tensor_count);
    *out = &client->layout->tensors[l->first_tensor + tensor];
    return s;
}

zero_status zero_tensor_place(const zero_client *client, uint32_t layer, uint32_t tensor,
                              uint64_t *out_offset, uint64_t *out_count)
{
    const struct zero_tensor *t = NULL;
    zero_status s = find_tensor(client, layer, tensor, &t);

    if (!zero_failed(s))
        s = client_need(client, out_offset, "out_offset");
    if (!zero_failed(s))
        s = client_need(client, out_count, "out_count");
    if (zero_failed(s) || t == NULL)
        return s;
    *out_offset = t->offset;
    *out_count = t->count;
    return s;
}

zero_status zero_tensor_describe(const zero_client *client, uint32_t layer, uint32_t tensor,
                                 struct zero_tensor_info *out)
{
    const struct zero_tensor *t = NULL;
    zero_status s = find_tensor(client, layer, tensor, &t);

    if (!zero_failed(s))
        s = client_need(client, out, "out");
    if (zero_failed(s) || t == NULL)
        return s;
    *out = (struct zero_tensor_info){ t->name, t->shape, t->dims, t->offset, t->count };
    return s;
}

zero_status zero_layer_describe(const zero_client *client, uint32_t layer,
                                struct zero_layer_info *out)
{
    zero_status s = model_check_layer(client, layer);

    if (!zero_failed(s))
        s = client_need(client, out, "out");
    if (zero_failed(s))
        return s;
    const struct zero_layer *l = &client->layout->layers[layer];
    *out = (struct zero_layer_info){ l->name, l->tensor_count, l->flat };
    return s;
}

zero_status zero_blob(const zero_client *client, void *to, size_t capacity, size_t *out_bytes)
{
    zero_status s = client_need(client, out_bytes, "out_bytes");

    if (!zero_failed(s) && capacity > 0)
        s = client_need(client, to, "to");
    if (zero_failed(s))
        return s;
    *out_bytes = client->info.blob_bytes;
    if (client->info.blob_bytes > capacity)
        return client_fail(client, ZERO_TOO_LARGE, "read blob",
                           "it has %zu bytes, there is room for "
                           "%zu",
                           client->info.blob_bytes, capacity);
    if (client->info.blob_bytes > 0)
        memcpy(to, client->blob, client->info.blob_bytes);
    return zero_success();
}
