/* SPDX-License-Identifier: MIT */
/* A model comes in piece by piece, is checked, and registered or matched. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/session/client.h"
#include "daemon/shard/description.h"

void draft_clear(struct draft *draft)
{
    for (size_t t = 0; t < draft->tensor_count; t++)
        free(draft->tensors[t].name);
    for (size_t l = 0; l < draft->layer_count; l++)
        free(draft->layers[l]);
    free(draft->tensors);
    free(draft->layers);
    free(draft->config);
    memset(draft, 0, sizeof *draft);
}

/* Room for one more; NULL without memory, and then nothing changed. */
static void *grow(void *items, size_t count, size_t *room, size_t bytes)
{
    if (count < *room)
        return items;
    size_t more = *room ? *room * 2 : 64;
    void *bigger = realloc(items, more * bytes);
    if (bigger != NULL)
        *room = more;
    return bigger;
}

static zero_status out_of_memory(void)
{
    return FAIL(NO_MEMORY, "register model", "for a trainer's model");
}

static bool may_register(struct client *client)
{
    if (client->state == WELCOMED)
        return true;
    client_refuse(client, REFUSE(INVALID_STATE, "register model",
                                 "a model is registered after attach, once"));
    return false;
}

void register_config(struct client *client, const Zero__V1__RegisterConfig *message)
{
    if (!may_register(client))
        return;
    draft_clear(&client->draft);
    client->draft.config = malloc(message->json.len + 1);
    if (client->draft.config == NULL) {
        client_refuse(client, out_of_memory());
        return;
    }
    if (message->json.len > 0)
        memcpy(client->draft.config, message->json.data, message->json.len);
    client->draft.config_bytes = message->json.len;
}

static zero_status add_layer(struct draft *draft, const char *name)
{
    if (draft->layer_count >= ZERO_MAX_LAYERS)
        return REFUSE(TOO_LARGE, "register model", "more than %d layers", ZERO_MAX_LAYERS);
    char **layers = grow(draft->layers, draft->layer_count, &draft->layer_room, sizeof *layers);
    if (layers == NULL)
        return out_of_memory();
    draft->layers = layers;
    char *copy = strdup(name);
    if (copy == NULL)
        return out_of_memory();
    draft->layers[draft->layer_count++] = copy;
    return zero_success();
}

static zero_status add_tensor(struct draft *draft, const Zero__V1__Tensor *message)
{
    if (draft->tensor_count >= ZERO_MAX_TENSORS)
        return REFUSE(TOO_LARGE, "register model", "more than %d tensors", ZERO_MAX_TENSORS);
    struct draft_tensor *tensors =
        grow(draft->tensors, draft->tensor_count, &draft->tensor_room, sizeof *tensors);
    if (tensors == NULL)
        return out_of_memory();
    draft->tensors = tensors;
    struct draft_tensor *tensor = &tensors[draft->tensor_count];
    *tensor = (struct draft_tensor){ .dims = (uint32_t)message->n_shape,
                                     .layer = (uint32_t)draft->layer_count - 1,
                                     .lr_scale = message->lr_scale,
                                     .weight_decay = message->weight_decay };
    if (message->n_shape > ZERO_MAX_DIMS)
        return REFUSE(TOO_LARGE, "register model", "tensor %s has %zu dimensions, at most %d",
                      message->name, message->n_shape, ZERO_MAX_DIMS);
    for (size_t d = 0; d < message->n_shape; d++)
        tensor->shape[d] = message->shape[d];
    tensor->name = strdup(message->name);
    if (tensor->name == NULL)
        return out_of_memory();
    draft->tensor_count++;
    return zero_success();
}

void register_tensors(struct client *client, const Zero__V1__RegisterTensors *message)
{
    struct draft *draft = &client->draft;
    zero_status s = zero_success();

    if (!may_register(client))
        return;
    if (message->layer == draft->layer_count)
        s = add_layer(draft, message->layer_name);
    else if (message->layer + 1 != draft->layer_count)
        s = REFUSE(PROTOCOL, "register model", "layer %u came after layer %zu", message->layer,
                   draft->layer_count - 1);
    for (size_t t = 0; t < message->n_tensors && !zero_failed(s); t++)
        s = add_tensor(draft, message->tensors[t]);
    if (zero_failed(s)) {
        client_refuse(client, s);
        draft_clear(draft);
    }
}

static zero_status lay_out(const struct draft *draft, uint32_t world, zero_dtype dtype,
                           struct zero_layout **out)
{
    struct zero_layer_spec *layers = calloc(draft->layer_count + 1, sizeof *layers);
    struct zero_tensor_spec *tensors = calloc(draft->tensor_count + 1, sizeof *tensors);
    struct zero_detail detail = { "" };
    zero_status s;

    if (layers == NULL || tensors == NULL) {
        s = out_of_memory();
        goto out;
    }
    for (size_t l = 0; l < draft->layer_count; l++)
        layers[l].name = draft->layers[l];
    for (size_t t = 0; t < draft->tensor_count; t++) {
        const struct draft_tensor *from = &draft->tensors[t];
        struct zero_layer_spec *layer = &layers[from->layer];
        tensors[t] = (struct zero_tensor_spec){ .name = from->name,
                                                .shape = from->shape,
                                                .dims = from->dims,
                                                .lr_scale = from->lr_scale,
                                                .weight_decay = from->weight_decay };
        if (layer->tensor_count++ == 0)
            layer->tensors = &tensors[t];
    }
    const struct zero_layout_spec spec = { layers, draft->layer_count, world, dtype };
    s = zero_layout_create(&spec, out, &detail);
    if (zero_failed(s))
        s = fail_refuse(s.code, s.doing, "%s", detail.text);
out:
    free(layers);
    free(tensors);
    return s;
}

/* Compares a text with the beginning of what is registered, and moves past it. */
static zero_status compare_text(const char *text, const char **have)
{
    for (const char *line = text; *line != '\0';) {
        size_t mine = strcspn(line, "\n"), theirs = strcspn(*have, "\n");
        if (mine != theirs || memcmp(line, *have, mine) != 0)
            return REFUSE(
                MISMATCH, "match model",
                "the trainer has \"%.*s\" where \"%.*s\" is registered: use the same model "
                "and config, or shut the group down to start another",
                mine < 150 ? (int)mine : 150, line, theirs < 150 ? (int)theirs : 150,
                theirs ? *have : "the end");
        line += mine + (line[mine] == '\n');
        *have += theirs + ((*have)[theirs] == '\n');
    }
    return zero_success();
}

/* Shows the first line in which a trainer's model or config differs from what is registered. */
static zero_status compare(const struct shard *shard, const struct zero_layout *layout,
                           const struct zero_config *config)
{
    char *model = zero_layout_text(layout), *settings = zero_config_text(config);
    const char *have = shard->text;
    zero_status s;

    if (model == NULL || settings == NULL) {
        s = out_of_memory();
        goto out;
    }
    TRY(s, compare_text(model, &have));
    TRY(s, compare_text(settings, &have));
    if (*have != '\0')
        s = REFUSE(MISMATCH, "match model", "the trainer lacks \"%.*s\", which is registered",
                   (int)strcspn(have, "\n"), have);
out:
    free(model);
    free(settings);
    return s;
}

static zero_status check_counts(const struct draft *draft, const Zero__V1__RegisterEnd *message)
{
    if (draft->config == NULL || message->layers != draft->layer_count ||
        message->tensors != draft->tensor_count)
        return REFUSE(PROTOCOL, "register model",
                      "%zu layers and %zu tensors came, %u and %u were announced, config %s",
                      draft->layer_count, draft->tensor_count, message->layers, message->tensors,
                      draft->config ? "came" : "did not come");
    return zero_success();
}

/* What the client described: registered as new, or compared with what is there. */
static zero_status register_draft(struct client *client, const Zero__V1__RegisterEnd *message)
{
    struct sessions *sessions = client->sessions;
    struct zero_layout *layout = NULL;
    struct zero_config config;
    struct zero_detail detail = { "" };
    zero_status s;

    TRY(s, check_counts(&client->draft, message));
    s = zero_config_parse(client->draft.config, client->draft.config_bytes, sessions->options.world,
                          &config, &detail);
    if (zero_failed(s)) {
        s = fail_refuse(s.code, s.doing, "%s", detail.text);
        goto out;
    }
    TRY(s, lay_out(&client->draft, sessions->options.world, config.param_dtype, &layout));
    if (sessions->model == MODEL_JOINED) {
        TRY(s, compare(engine_shard(sessions->options.engine), layout, &config));
        reply_begin(client, /* with_model= */ false);
        goto out;
    }
    struct engine_model model = { .config = config, .description = -1 };
    TRY(s, description_write(layout, client->draft.config, client->draft.config_bytes,
                             &model.description));
    model.layout = layout;
    layout = NULL;
    sessions->model = MODEL_JOINING;
    client->state = JOINING;
    engine_register(sessions->options.engine, &model, client->token);
out:
    zero_layout_destroy(layout);
    return s;
}

void register_end(struct client *client, const Zero__V1__RegisterEnd *message)
{
    zero_status s = zero_success();
    bool without_model = message->layers == 0 && message->tensors == 0;

    if (!may_register(client))
        return;
    if (client->role == ROLE_OBSERVER && !without_model)
        s = REFUSE(PERMISSION, "register model", "an observer brings no model");
    else if (without_model && client->sessions->model != MODEL_JOINED)
        s = REFUSE(INVALID_STATE, "register model",
                   "no model is registered on rank %u yet: start a trainer that brings one",
                   client->sessions->options.rank);
    else if (without_model && message->model != 0 &&
             message->model != engine_shard(client->sessions->options.engine)->hash)
        s = REFUSE(MISMATCH, "match model",
                   "another model is registered on rank %u than the client had: start it anew",
                   client->sessions->options.rank);
    else if (without_model)
        reply_begin(client, /* with_model= */ message->model == 0);
    else
        s = register_draft(client, message);
    draft_clear(&client->draft);
    if (zero_failed(s))
        client_refuse(client, s);
}

void register_joined(struct client *client, const struct engine_event *event)
{
    if (client->state != JOINING)
        return;
    client->state = WELCOMED;
    if (zero_failed(event->status)) {
        client_refuse(client,
                      fail_refuse(event->status.code, event->status.doing, "%s", event->text));
        return;
    }
    reply_begin(client, /* with_model= */ false);
}
