/* SPDX-License-Identifier: MIT */
/* The calls of a step. */
#include <math.h>
#include <string.h>

#include "client/client.h"
#include "proto/text.h"

static zero_status check_trainer(const zero_client *client, uint32_t layer)
{
    zero_status s = model_check_layer(client, layer);
    if (zero_failed(s))
        return s;
    if (client->role != ZERO_TRAINER)
        return client_fail(client, ZERO_PERMISSION, "train", "an observer only reads versions");
    return s;
}

static zero_status check_begin(const zero_client *client, uint32_t layer, const zero_op *out)
{
    zero_status s = check_trainer(client, layer);

    return zero_failed(s) ? s : client_need(client, out, "out");
}

static const void *layer_params(const zero_client *client, uint32_t layer)
{
    return client->params +
           client->layout->layers[layer].flat_offset * zero_dtype_bytes(client->info.param_dtype);
}

/* ---- gather --------------------------------------------------------------------------------- */

zero_status zero_gather_begin(zero_client *client, uint32_t layer, zero_op *out)
{
    const struct call call = { .call = ZERO_CALL_GATHER, .layer = layer };
    zero_status s = check_begin(client, layer, out);

    return zero_failed(s) ? s : ring_begin(client, &call, out);
}

zero_status zero_gather_wait(zero_client *client, zero_op op, const void **out)
{
    uint32_t layer = op.slot < ZERO_RING_SLOTS ? client->waiting[op.slot].layer : 0;
    zero_status s = client_need(client, out, "out");

    if (!zero_failed(s))
        s = ring_wait(client, op, ZERO_CALL_GATHER, NULL);
    if (!zero_failed(s))
        *out = layer_params(client, layer);
    return s;
}

/* A resident layer is mapped and stable: the daemon is only told, so that it can count. */
zero_status zero_gather(zero_client *client, uint32_t layer, const void **out)
{
    const struct call call = { .call = ZERO_CALL_GATHER, .layer = layer };
    zero_status s = model_check_layer(client, layer);
    zero_op op;

    if (!zero_failed(s))
        s = client_need(client, out, "out");
    if (zero_failed(s))
        return s;
    if (client->role == ZERO_OBSERVER) {
        if (client->params == NULL)
            return client_fail(client, ZERO_INVALID_STATE, "gather",
                               "an observer gathers from a version: zero_version_open first");
        *out = layer_params(client, layer);
        return s;
    }
    if (atomic_load_explicit(&client->ring->resident, memory_order_acquire) != 0) {
        s = ring_post(client, &call, /* ring_bell= */ false);
        if (!zero_failed(s))
            *out = layer_params(client, layer);
        return s;
    }
    s = ring_begin(client, &call, &op);
    return zero_failed(s) ? s : zero_gather_wait(client, op, out);
}

zero_status zero_prefetch(zero_client *client, uint32_t layer)
{
    const struct call call = { .call = ZERO_CALL_PREFETCH, .layer = layer };
    zero_status s = check_trainer(client, layer);

    return zero_failed(s) ? s : ring_post(client, &call, /* ring_bell= */ false);
}

zero_status zero_release(zero_client *client, uint32_t layer)
{
    const struct call call = { .call = ZERO_CALL_RELEASE, .layer = layer };
    zero_status s = model_check_layer(client, layer);

    if (zero_failed(s) || client->role == ZERO_OBSERVER)
        return s;
    return ring_post(client, &call, /* ring_bell= */ false);
}

/* ---- gradients ------------------------------------------------------------------------------ */

zero_status zero_window_begin(zero_client *client, uint32_t layer, zero_op *out)
{
    const struct call call = { .call = ZERO_CALL_WINDOW, .layer = layer };
    zero_status s = check_begin(client, layer, out);

    if (!zero_failed(s))
        s = ring_check_attempt(client);
    return zero_failed(s) ? s : ring_begin(client, &call, out);
}

zero_status zero_window_wait(zero_client *client, zero_op op, void **out)
{
    uint32_t layer = op.slot < ZERO_RING_SLOTS ? client->waiting[op.slot].layer : 0;
    uint64_t offset = 0;
    zero_status s = client_need(client, out, "out");

    if (!zero_failed(s))
        s = ring_wait(client, op, ZERO_CALL_WINDOW, &offset);
    if (zero_failed(s))
        return s;
    uint64_t each = zero_dtype_bytes(client->info.grad_dtype);
    uint64_t bytes = client->layout->layers[layer].flat * each;
    if (bytes > client->window_map.bytes || offset > client->window_map.bytes - bytes ||
        offset % each != 0)
        return client_fail(client, ZERO_PROTOCOL, "get window", "the daemon gave a place outside");
    *out = client->window + offset;
    return s;
}

zero_status zero_window(zero_client *client, uint32_t layer, void **out)
{
    zero_op op;
    zero_status s = client_need(client, out, "out");

    if (!zero_failed(s))
        s = zero_window_begin(client, layer, &op);
    return zero_failed(s) ? s : zero_window_wait(client, op, out);
}

zero_status zero_submit(zero_client *client, uint32_t layer)
{
    const struct call call = { .call = ZERO_CALL_SUBMIT, .layer = layer };
    zero_status s = check_trainer(client, layer);

    if (!zero_failed(s))
        s = ring_check_attempt(client);
    return zero_failed(s) ? s : ring_post(client, &call, /* ring_bell= */ true);
}

zero_status zero_submit_begin(zero_client *client, uint32_t layer, zero_op *out)
{
    const struct call call = { .call = ZERO_CALL_SUBMIT, .layer = layer };
    zero_status s = check_begin(client, layer, out);

    if (!zero_failed(s))
        s = ring_check_attempt(client);
    return zero_failed(s) ? s : ring_begin(client, &call, out);
}

zero_status zero_submit_wait(zero_client *client, zero_op op)
{
    return ring_wait(client, op, ZERO_CALL_SUBMIT, NULL);
}

/* ---- step ----------------------------------------------------------------------------------- */

/* Names go by value to every rank and into status: a text each, no two alike. */
static zero_status check_scalars(const zero_client *client, const struct zero_step_args *args)
{
    for (size_t i = 0; i < args->scalar_count; i++) {
        const char *name = args->scalars[i].name;
        size_t bytes = strnlen(name, sizeof args->scalars[i].name);
        if (bytes == 0 || bytes > ZERO_MAX_SCALAR_NAME ||
            !zero_text_printable(name, ZERO_MAX_SCALAR_NAME))
            return client_fail(client, ZERO_INVALID_ARGUMENT, "step",
                               "the name of scalar %zu is not 1 to %d bytes of UTF-8 with a NUL", i,
                               ZERO_MAX_SCALAR_NAME);
        for (size_t before = 0; before < i; before++)
            if (strcmp(args->scalars[before].name, name) == 0)
                return client_fail(client, ZERO_INVALID_ARGUMENT, "step",
                                   "scalars %zu and %zu are both named %s", before, i, name);
    }
    return zero_success();
}

static zero_status put_arguments(zero_client *client, const struct zero_step_args *args)
{
    struct zero_ring_step *to = &client->ring->step;

    to->lr = NAN;
    to->blob_bytes = to->scalar_count = 0;
    if (args == NULL)
        return zero_success();
    if (args->blob == NULL && args->blob_bytes > 0)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "step",
                           "blob_bytes is %zu, but blob is NULL", args->blob_bytes);
    if (args->blob_bytes > ZERO_MAX_BLOB || args->scalar_count > ZERO_MAX_SCALARS)
        return client_fail(client, ZERO_TOO_LARGE, "step",
                           "a blob of %zu bytes and %zu scalars: at most %d and %d",
                           args->blob_bytes, args->scalar_count, ZERO_MAX_BLOB, ZERO_MAX_SCALARS);
    if (args->scalars == NULL && args->scalar_count > 0)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "step",
                           "scalar_count is %zu, but scalars is NULL", args->scalar_count);
    zero_status s = check_scalars(client, args);
    if (zero_failed(s))
        return s;
    to->lr = args->lr;
    if (args->blob != NULL) {
        memcpy(to->blob, args->blob, args->blob_bytes);
        to->blob_bytes = (uint32_t)args->blob_bytes;
    }
    for (size_t i = 0; i < args->scalar_count; i++) {
        memcpy(to->scalars[i].name, args->scalars[i].name, sizeof to->scalars[i].name);
        to->scalars[i].value = args->scalars[i].value;
    }
    to->scalar_count = (uint32_t)args->scalar_count;
    return zero_success();
}

zero_status zero_step_begin(zero_client *client, const struct zero_step_args *args, zero_op *out)
{
    const struct call call = { .call = ZERO_CALL_STEP };
    zero_status s = check_begin(client, 0, out);

    if (zero_failed(s))
        return s;
    if (!atomic_load(&client->step_asked)) { /* otherwise the daemon has the arguments already */
        s = ring_check_attempt(client);
        if (!zero_failed(s))
            s = put_arguments(client, args);
    } else if (client->step_left) { /* and its answer comes to the op of before */
        client->step_left = false;
        *out = client->step_op;
        return s;
    }
    return zero_failed(s) ? s : ring_begin(client, &call, out);
}

/* Where a step was made or skipped, the daemon is in the next attempt before it answers. */
static void take_result(zero_client *client, struct zero_step_result *out)
{
    const struct zero_ring_step *from = &client->ring->step;

    *out = (struct zero_step_result){ .step = from->step,
                                      .updates = from->updates,
                                      .outcome = (enum zero_step_outcome)from->outcome,
                                      .skipped_in_row = from->skipped_in_row,
                                      .grad_norm = from->grad_norm,
                                      .lr = from->used_lr,
                                      .loss_scale = from->loss_scale };
    memcpy(out->scalars, from->means, sizeof out->scalars);
    client->info.step = from->step;
    client->info.updates = from->updates;
    client->info.loss_scale = from->loss_scale;
    uint32_t blob_bytes = from->blob_bytes;
    client->info.blob_bytes = blob_bytes < ZERO_MAX_BLOB ? blob_bytes : ZERO_MAX_BLOB;
    memcpy(client->blob, from->blob, client->info.blob_bytes);
    atomic_store(&client->attempt, atomic_load(&client->ring->attempt));
}

zero_status zero_step_wait(zero_client *client, zero_op op, struct zero_step_result *out)
{
    zero_status s = client_need(client, out, "out");

    if (zero_failed(s))
        return s;
    s = ring_wait(client, op, ZERO_CALL_STEP, NULL);
    if (s.code == ZERO_INVALID_ARGUMENT) /* not a step's op: nothing is known about the step */
        return s;
    bool left = s.code == ZERO_DAEMON_SILENT || s.code == ZERO_INTERRUPTED;

    client->step_left = left;
    client->step_op = op;
    atomic_store(&client->step_asked,
                 left || s.code == ZERO_DEADLINE || s.code == ZERO_STEP_PENDING);
    /* A step that outlived its wait, or its daemon, may have been made. Then the daemon does not
     * know the attempt any more, but it has left the result. */
    if (s.code == ZERO_STEP_ABORTED && client->ring->step.step > client->info.step)
        s = zero_success();
    if (s.code == ZERO_OK || s.code == ZERO_SCALE_EXHAUSTED || s.code == ZERO_TOO_MANY_SKIPS)
        take_result(client, out);
    else if (s.code == ZERO_CONFLICT)
        atomic_store(&client->attempt, atomic_load(&client->ring->attempt));
    return s;
}

zero_status zero_step(zero_client *client, const struct zero_step_args *args,
                      struct zero_step_result *out)
{
    zero_op op;
    zero_status s = client_need(client, out, "out");

    if (!zero_failed(s))
        s = zero_step_begin(client, args, &op);
    return zero_failed(s) ? s : zero_step_wait(client, op, out);
}
