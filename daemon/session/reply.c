/* SPDX-License-Identifier: MIT */
/* What a client gets when it has registered: the model if it brought none, numbers, and fds. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/base/fail.h"
#include "daemon/session/client.h"

static void ask_for_ring(struct client *client)
{
    client_watch(client, /* writable= */ false);
    if (client->role == ROLE_OBSERVER) {
        reply_registered(client);
        return;
    }
    client->state = ATTACHING;
    engine_attach(client->sessions->options.engine, client->pid, client->token);
}

void reply_begin(struct client *client, bool with_model)
{
    if (!with_model) {
        ask_for_ring(client);
        return;
    }
    client->state = SENDING_MODEL;
    client->sent_tensors = 0;
    client_watch(client, /* writable= */ true);
}

/* One frame each time the socket has room: a client that does not read costs nothing. */
void reply_go_on(struct client *client)
{
    const struct zero_layout *layout = engine_shard(client->sessions->options.engine)->layout;
    Zero__V1__Tensor tensors[FRAME_TENSORS], *pointers[FRAME_TENSORS];
    Zero__V1__RegisterTensors message = ZERO__V1__REGISTER_TENSORS__INIT;

    if (client->sent_tensors == layout->tensor_count) {
        Zero__V1__ModelEnd end = ZERO__V1__MODEL_END__INIT;
        end.layers = layout->layer_count;
        client_send(client, ZERO_FRAME_MODEL_END, &end.base, NULL);
        if (client->state != CLOSING)
            ask_for_ring(client);
        return;
    }
    const struct zero_tensor *first = &layout->tensors[client->sent_tensors];
    const struct zero_layer *layer = &layout->layers[first->layer];
    uint32_t end = layer->first_tensor + layer->tensor_count;
    message.layer = first->layer;
    message.layer_name = layer->name;
    message.tensors = pointers;
    for (; message.n_tensors < FRAME_TENSORS && client->sent_tensors < end;
         client->sent_tensors++) {
        const struct zero_tensor *from = &layout->tensors[client->sent_tensors];
        Zero__V1__Tensor *to = &tensors[message.n_tensors];
        zero__v1__tensor__init(to);
        to->name = from->name;
        to->n_shape = from->dims;
        to->shape = (uint64_t *)(uintptr_t)from->shape;
        to->lr_scale = from->lr_scale;
        to->weight_decay = from->weight_decay;
        pointers[message.n_tensors++] = to;
    }
    client_send(client, ZERO_FRAME_REGISTER_TENSORS, &message.base, NULL);
}

static void fill_numbers(const struct client *client, const struct engine_entry *entry,
                         Zero__V1__Registered *to)
{
    const struct sessions *sessions = client->sessions;
    const struct shard *shard = engine_shard(sessions->options.engine);
    const struct stats *stats = engine_stats(sessions->options.engine);

    to->stage = shard->config.stage;
    to->param_dtype = shard->config.param_dtype;
    to->grad_dtype = shard->config.grad_dtype;
    to->lr = shard->config.lr;
    to->train_batch = shard->config.train_batch;
    to->micro_batch = shard->config.micro_batch;
    to->accumulation = shard->config.accumulation;
    to->deadline_ms = shard->config.deadline_ms;
    to->window_bytes = shard->plan.bytes[ZERO_ARENA_window];
    to->param_bytes = shard->plan.bytes[ZERO_ARENA_param];
    to->layers = shard->layout->layer_count;
    to->model = shard->hash;
    to->epoch = stats_get(&stats->epoch);
    to->step = stats_get(&stats->step);
    to->updates = stats_get(&stats->updates);
    to->loss_scale = stats_get_double(&stats->loss_scale);
    to->filled = true; /* an observer is told when it opens a version */
    if (entry == NULL)
        return;
    to->attempt = entry->attempt;
    to->epoch = entry->epoch;
    to->step = entry->step;
    to->updates = entry->updates;
    to->filled = entry->filled;
    to->loss_scale = entry->loss_scale;
    to->blob.data = (uint8_t *)(uintptr_t)entry->blob;
    to->blob.len = entry->blob_bytes;
}

void reply_registered(struct client *client)
{
    struct engine *engine = client->sessions->options.engine;
    const struct shard *shard = engine_shard(engine);
    Zero__V1__Registered message = ZERO__V1__REGISTERED__INIT;
    int fds[ZERO_FRAME_MAX_FDS];
    struct zero_frame_fds list = { fds, 0 };

    client->state = ATTACHED;
    if (client->role == ROLE_OBSERVER) {
        fill_numbers(client, NULL, &message);
        client_send(client, ZERO_FRAME_REGISTERED, &message.base, NULL);
        return;
    }
    fill_numbers(client, engine_entry(engine), &message);
    fds[list.count++] = engine_ring(engine)->fd;
    fds[list.count++] = engine_bell(engine)->fd;
    fds[list.count++] = shard->arena[ZERO_ARENA_window].fd;
    fds[list.count++] = shard->arena[ZERO_ARENA_staging].fd;
    uint32_t first = shard->config.stage == 3 ? 0 : client->sessions->options.rank;
    uint32_t last = shard->config.stage == 3 ? client->sessions->options.world : first + 1;
    for (uint32_t r = first; r < last; r++)
        fds[list.count++] = engine_param_fd(engine, r);
    client_send(client, ZERO_FRAME_REGISTERED, &message.base, &list);
}
