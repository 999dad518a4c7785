/* SPDX-License-Identifier: MIT */
#include "daemon/step/version.h"

#include <string.h>

#include "daemon/base/fail.h"

enum { COPY_AT_ONCE = 256 * 1024 }; /* bytes: the trainer waits for less than 0.1 ms */

static void end(struct engine *e, zero_status s)
{
    pthread_mutex_lock(&e->mail.lock);
    e->mail.copied = e->copy.buf;
    e->mail.copied_step = e->copy.step;
    pthread_mutex_unlock(&e->mail.lock);
    memset(&e->copy, 0, sizeof e->copy);
    engine_post(e, ENGINE_COPIED, 0, s);
}

void version_begin(struct engine *e, const struct device_buf *buf)
{
    e->copy.buf = *buf;
    e->copy.state = COPY_WAITS;
    if (e->lost)
        version_lose(e);
}

/* Copies on from the place it is at, within one rank's part of a layer; how much. */
static size_t copy_run(struct engine *e)
{
    const struct shard *shard = e->shard;
    const struct zero_layer *layer = &shard->layout->layers[e->copy.layer];
    size_t each = zero_dtype_bytes(shard->config.param_dtype);
    uint64_t at = e->copy.index, end;
    uint32_t rank = shard_holder(shard, ZERO_ARENA_param, e->copy.layer, at, &end);
    const struct shard_view from = { ZERO_ARENA_param, rank,
                                     e->comm->peers[rank].arena[ZERO_ARENA_param] };

    if (end - at > COPY_AT_ONCE / each)
        end = at + COPY_AT_ONCE / each;
    size_t bytes = (size_t)(end - at) * each;
    e->comm->ops->fetch(e->comm, (char *)e->copy.buf.base + (layer->flat_offset + at) * each,
                        shard_at(shard, &from, e->copy.layer, at), bytes);
    e->copy.index = end;
    if (end == layer->flat) {
        e->copy.index = 0;
        e->copy.layer++;
    }
    return bytes;
}

static void copy_some(struct engine *e, size_t most)
{
    uint32_t layers = e->shard->layout->layer_count;

    for (size_t done = 0; done < most && e->copy.layer < layers;)
        done += copy_run(e);
    if (e->copy.layer == layers)
        end(e, zero_success());
}

bool version_pass(struct engine *e)
{
    if (e->copy.state == COPY_NONE || e->phase >= PHASE_VOTED)
        return false;
    if (!e->filled) {
        end(e, REFUSE(INVALID_STATE, "make version",
                      "the model has no initial values yet: try again later"));
        return true;
    }
    if (e->copy.state == COPY_WAITS) {
        e->copy.state = COPY_RUNS;
        e->copy.step = e->step;
        e->copy.layer = 0;
        e->copy.index = 0;
    }
    copy_some(e, COPY_AT_ONCE);
    return true;
}

void version_finish(struct engine *e)
{
    if (e->copy.state == COPY_RUNS)
        copy_some(e, SIZE_MAX);
}

void version_restart(struct engine *e)
{
    if (e->copy.state == COPY_RUNS)
        e->copy.state = COPY_WAITS;
}

void version_lose(struct engine *e)
{
    if (e->copy.state != COPY_NONE)
        end(e, REFUSE(PEER_LOST, "make version", "the group is lost"));
}

void version_due(struct engine *e)
{
    uint32_t every = e->shard->config.versions_every;

    if (every != 0 && e->step % every == 0)
        e->options.notify(e->options.context);
}
