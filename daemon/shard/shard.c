/* SPDX-License-Identifier: MIT */
#include "daemon/shard/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"

enum { HOLDER_MS = 10000 }; /* for the holder to take what it is given */

static zero_status join_texts(struct shard *shard)
{
    zero_status s = zero_success();
    char *layout = zero_layout_text(shard->layout);
    char *config = zero_config_text(&shard->config);

    int bytes = -1;
    if (layout != NULL && config != NULL)
        bytes = asprintf(&shard->text, "%s%s", layout, config);
    if (bytes < 0) {
        shard->text = NULL;
        s = FAIL(NO_MEMORY, "describe model", "%u tensors", shard->layout->tensor_count);
    } else {
        shard->hash = XXH3_64bits(shard->text, (size_t)bytes);
    }
    free(layout);
    free(config);
    return s;
}

static zero_status adopt(struct shard *shard, const struct shard_spec *spec, enum zero_arena arena)
{
    const char *name = zero_arena_names[arena];

    for (size_t i = 0; i < spec->kept_count; i++)
        if (strcmp(spec->kept[i].name, name) == 0)
            return shard->device->ops->adopt(shard->device, name, spec->kept[i].fd,
                                             shard->plan.bytes[arena], &shard->arena[arena]);
    return FAIL(CORRUPT, "adopt arenas", "the holder did not keep %s", name);
}

static zero_status adopt_all(struct shard *shard, const struct shard_spec *spec)
{
    zero_status s = zero_success();

    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        if (shard->plan.bytes[a] != 0)
            TRY(s, adopt(shard, spec, (enum zero_arena)a));
    LOG_INFO("took back %" PRIu64 " parameters, %u layers: %" PRIu64 " bytes", shard->layout->count,
             shard->layout->layer_count, shard->plan.total);
out:
    return s;
}

static zero_status allocate(struct shard *shard)
{
    const struct device_ops *ops = shard->device->ops;
    zero_status s;

    TRY(s, ops->check_room(shard->device, shard->plan.total));
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        if (shard->plan.bytes[a] != 0)
            TRY(s, ops->alloc(shard->device, zero_arena_names[a], shard->plan.bytes[a],
                              &shard->arena[a]));
    LOG_INFO("%" PRIu64 " parameters, %u layers, stage %u, %s: %" PRIu64 " bytes",
             shard->layout->count, shard->layout->layer_count, shard->config.stage,
             zero_dtype_name(shard->config.param_dtype), shard->plan.total);
out:
    return s;
}

zero_status shard_create(struct device *device, const struct shard_spec *spec, struct shard **out)
{
    zero_status s;
    struct zero_detail detail;
    struct shard *shard = calloc(1, sizeof *shard);

    if (shard == NULL) {
        zero_layout_destroy(spec->layout);
        return FAIL(NO_MEMORY, "create shard", "%zu bytes", sizeof *shard);
    }
    shard->device = device;
    shard->rank = spec->rank;
    shard->layout = spec->layout;
    shard->config = *spec->config;
    s = zero_plan_layout(spec->layout, spec->config, &shard->plan, &detail);
    if (zero_failed(s)) {
        s = fail_refuse(s.code, "plan memory", "%s", detail.text);
        goto out;
    }
    TRY(s, join_texts(shard));
    TRY(s, spec->kept != NULL ? adopt_all(shard, spec) : allocate(shard));
    *out = shard;
    shard = NULL;
out:
    shard_destroy(shard);
    return s;
}

void shard_destroy(struct shard *shard)
{
    if (shard == NULL)
        return;
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        shard->device->ops->free(shard->device, &shard->arena[a]);
    zero_layout_destroy(shard->layout);
    free(shard->text);
    free(shard);
}

size_t shard_legacy(const struct shard *shard, int description, struct notify_fd *out)
{
    size_t count = 0;

    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        if (shard->arena[a].bytes != 0)
            out[count++] = (struct notify_fd){ zero_arena_names[a], shard->arena[a].fd };
    out[count++] = (struct notify_fd){ SHARD_DESCRIPTION, description };
    return count;
}

zero_status shard_lodge(const struct shard *shard, int description)
{
    struct notify_fd legacy[SHARD_LEGACY];
    size_t count = shard_legacy(shard, description, legacy);
    zero_status s;

    for (size_t i = 0; i < count; i++)
        TRY(s, notify_store(legacy[i].name, legacy[i].fd));
    TRY(s, notify_barrier(HOLDER_MS));
out:
    return s;
}

void shard_dislodge(const struct shard *shard)
{
    struct notify_fd legacy[SHARD_LEGACY];

    for (size_t i = shard_legacy(shard, -1, legacy); i-- > 0;)
        notify_remove(legacy[i].name);
}

bool shard_replicated(const struct shard *shard, enum zero_arena arena)
{
    if (arena == ZERO_ARENA_param)
        return shard->config.stage < 3;
    return shard->config.stage == 0;
}

enum zero_arena shard_master(const struct shard *shard)
{
    return shard->config.param_dtype == ZERO_FP32 ? ZERO_ARENA_param : ZERO_ARENA_master;
}

static size_t element_bytes(const struct shard *shard, enum zero_arena arena)
{
    return arena == ZERO_ARENA_param ? zero_dtype_bytes(shard->config.param_dtype) : sizeof(float);
}

void *shard_at(const struct shard *shard, const struct shard_view *view, uint32_t layer,
               uint64_t index)
{
    const struct zero_layer *l = &shard->layout->layers[layer];
    uint64_t element = shard_replicated(shard, view->arena)
                           ? l->flat_offset + index
                           : l->shard_offset + index - view->rank * l->shard;

    return (char *)(uintptr_t)view->base + element * element_bytes(shard, view->arena);
}

uint32_t shard_holder(const struct shard *shard, enum zero_arena arena, uint32_t layer,
                      uint64_t index, uint64_t *out_end)
{
    const struct zero_layer *l = &shard->layout->layers[layer];
    bool whole = shard_replicated(shard, arena);

    *out_end = whole ? l->flat : (index / l->shard + 1) * l->shard;
    return whole ? shard->rank : (uint32_t)(index / l->shard);
}

void *shard_own(const struct shard *shard, enum zero_arena arena, uint32_t layer, uint64_t index)
{
    const struct shard_view own = { arena, shard->rank, shard->arena[arena].base };

    return shard_at(shard, &own, layer, index);
}

struct zero_range shard_of_rank(const struct shard *shard, uint32_t rank, uint32_t layer)
{
    uint64_t share = shard->layout->layers[layer].shard;
    return (struct zero_range){ rank * share, (rank + 1) * share };
}

struct zero_range shard_updated(const struct shard *shard, uint32_t layer)
{
    if (shard->config.stage == 0)
        return (struct zero_range){ 0, shard->layout->layers[layer].flat };
    return shard_of_rank(shard, shard->rank, layer);
}
