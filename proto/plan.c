/* SPDX-License-Identifier: MIT */
#include "proto/plan.h"

#include <inttypes.h>
#include <stdio.h>

const char *const zero_arena_names[ZERO_ARENA_COUNT] = {
#define ARENA(name, what) #name,
    ZERO_ARENAS(ARENA)
#undef ARENA
};

const char *const zero_arena_what[ZERO_ARENA_COUNT] = {
#define ARENA(name, what) what,
    ZERO_ARENAS(ARENA)
#undef ARENA
};

/* What the sizes depend on: of a layout, or of a number of parameters alone. */
struct model_size {
    uint64_t flat, shard; /* elements of all layers: whole, and of one rank */
    uint64_t largest;     /* elements of the largest layer; 0: not known */
    uint64_t layers, world;
    bool exact; /* round to pages, as arenas are */
};

static const uint64_t most_bytes = INT64_MAX;

static uint64_t pages(uint64_t bytes)
{
    return (bytes + ZERO_PAGE_BYTES - 1) / ZERO_PAGE_BYTES * ZERO_PAGE_BYTES;
}

/* An arena of `elements` elements of `each` bytes. */
static void put(struct zero_plan *plan, enum zero_arena arena, uint64_t each, bool sharded,
                const struct model_size *size)
{
    uint64_t bytes = each * (sharded ? size->shard : size->flat);

    plan->bytes[arena] = size->exact ? pages(bytes) : bytes;
    if (sharded && size->world > 1)
        snprintf(plan->formula[arena], sizeof plan->formula[arena],
                 "%" PRIu64 " B x %" PRIu64 " / %" PRIu64, each, size->flat, size->world);
    else
        snprintf(plan->formula[arena], sizeof plan->formula[arena], "%" PRIu64 " B x %" PRIu64,
                 each, size->flat);
}

static void plan_window(struct zero_plan *plan, const struct zero_config *config,
                        const struct model_size *size)
{
    uint64_t each = zero_dtype_bytes(config->grad_dtype);

    if (config->stage < 2) {
        put(plan, ZERO_ARENA_window, each, /* sharded= */ false, size);
        return;
    }
    uint64_t factor = config->overlap_comm ? 2 : 1;
    uint64_t bucket = config->reduce_bucket_elements > size->flat / factor
                          ? size->flat
                          : config->reduce_bucket_elements * factor;
    uint64_t least = 2 * size->largest; /* one is written while the other is reduced */
    uint64_t elements = bucket > least ? bucket : least;
    if (elements > size->flat)
        elements = size->flat;
    plan->bytes[ZERO_ARENA_window] = size->exact ? pages(each * elements) : each * elements;
    bool layer = bucket < size->flat && least > bucket;
    snprintf(plan->formula[ZERO_ARENA_window], sizeof plan->formula[ZERO_ARENA_window],
             "%" PRIu64 " B x min(%" PRIu64 ", %s%s %" PRIu64 ")", each, size->flat,
             layer || factor == 2 ? "2 x " : "", layer ? "largest layer" : "bucket",
             layer ? size->largest : config->reduce_bucket_elements);
}

static void plan_state(struct zero_plan *plan, const struct zero_config *config,
                       const struct model_size *size)
{
    bool sharded = config->stage != 0, adam = config->optimizer != ZERO_SGD;

    put(plan, ZERO_ARENA_param, zero_dtype_bytes(config->param_dtype), config->stage == 3, size);
    if (config->param_dtype != ZERO_FP32)
        put(plan, ZERO_ARENA_master, sizeof(float), sharded, size);
    if (adam || config->momentum != 0)
        put(plan, ZERO_ARENA_moment1, sizeof(float), sharded, size);
    if (adam)
        put(plan, ZERO_ARENA_moment2, sizeof(float), sharded, size);
    if (adam && config->amsgrad)
        put(plan, ZERO_ARENA_max_moment2, sizeof(float), sharded, size);
    put(plan, ZERO_ARENA_grad, sizeof(float), sharded, size);
}

static zero_status plan(const struct model_size *size, const struct zero_config *config,
                        struct zero_plan *out, struct zero_detail *detail)
{
    struct zero_plan made = { .total = 0 };

    /* no arena has more than 4 bytes an element, and there are fewer than 16 */
    if (size->flat > most_bytes / 64 || size->layers > most_bytes / 128) {
        snprintf(detail->text, sizeof detail->text,
                 "a model of %" PRIu64 " elements does not fit in 63 bits of bytes", size->flat);
        return (zero_status){ ZERO_TOO_LARGE, "plan memory" };
    }
    plan_state(&made, config, size);
    plan_window(&made, config, size);
    uint64_t chunks = size->shard / ZERO_NORM_CHUNK;
    made.bytes[ZERO_ARENA_board] = pages(ZERO_PAGE_BYTES + size->layers * 64 + chunks * 8);
    snprintf(made.formula[ZERO_ARENA_board], sizeof made.formula[0],
             "4096 + 64 x %" PRIu64 " layers + 8 x %" PRIu64 " chunks", size->layers, chunks);
    made.bytes[ZERO_ARENA_staging] = ZERO_STAGING_BYTES;
    snprintf(made.formula[ZERO_ARENA_staging], sizeof made.formula[0], "%d", ZERO_STAGING_BYTES);
    made.bytes[ZERO_ARENA_journal] = ZERO_JOURNAL_BYTES;
    snprintf(made.formula[ZERO_ARENA_journal], sizeof made.formula[0], "%d", ZERO_JOURNAL_BYTES);
    for (int a = 0; a < ZERO_ARENA_COUNT; a++)
        made.total += made.bytes[a];
    *out = made;
    return zero_success();
}

zero_status zero_plan_layout(const struct zero_layout *layout, const struct zero_config *config,
                             struct zero_plan *out, struct zero_detail *out_detail)
{
    const struct model_size size = { .flat = layout->flat_total,
                                     .shard = layout->shard_total,
                                     .largest = layout->largest_flat,
                                     .layers = layout->layer_count,
                                     .world = layout->world,
                                     .exact = true };

    return plan(&size, config, out, out_detail);
}

zero_status zero_plan_count(uint64_t params, const struct zero_config *config,
                            struct zero_plan *out, struct zero_detail *out_detail)
{
    const struct model_size size = { .flat = params,
                                     .shard =
                                         params / config->world + (params % config->world != 0),
                                     .largest = 0,
                                     .layers = 0,
                                     .world = config->world,
                                     .exact = false };

    return plan(&size, config, out, out_detail);
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;

    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

struct zero_versions_plan zero_plan_versions(uint64_t elements, const struct zero_config *config)
{
    struct zero_versions_plan versions = {
        .each = times(zero_dtype_bytes(config->param_dtype), elements),
        .count = config->versions_keep,
    };
    uint64_t most = config->versions_max_bytes;

    if (most != 0 && most / versions.each < versions.count)
        versions.count = most / versions.each;
    versions.total = times(versions.each, versions.count);
    return versions;
}

uint64_t zero_plan_copy(uint64_t elements, const struct zero_config *config)
{
    bool adam = config->optimizer != ZERO_SGD;
    uint64_t states = 1U + (adam || config->momentum != 0) + adam + (adam && config->amsgrad);
    size_t param = config->param_dtype == ZERO_FP32 ? 0 : zero_dtype_bytes(config->param_dtype);

    return times(states * sizeof(float) + param, elements);
}

/* others: elements of the other ranks' shards, flat * (N-1)/N */
static struct zero_traffic count_traffic(uint64_t others, const struct zero_config *config)
{
    uint64_t params = times(zero_dtype_bytes(config->param_dtype), others);
    uint64_t gradients = times(zero_dtype_bytes(config->grad_dtype), others);
    struct zero_traffic traffic = { .reduced = times(config->accumulation, gradients) };

    if (config->stage == 0)
        traffic.reduced = plus(traffic.reduced, times(sizeof(float), others));
    else if (config->stage < 3)
        traffic.gathered = params;
    else
        traffic.gathered = times(times(config->accumulation, 2), params);
    return traffic;
}

struct zero_traffic zero_plan_traffic(const struct zero_layout *layout,
                                      const struct zero_config *config)
{
    return count_traffic(times(layout->shard_total, layout->world - 1), config);
}

struct zero_traffic zero_plan_traffic_count(uint64_t params, const struct zero_config *config)
{
    uint64_t shard = params / config->world + (params % config->world != 0);

    return count_traffic(times(shard, config->world - 1), config);
}

uint64_t zero_plan_paper(uint64_t params, const struct zero_config *config)
{
    enum { PARAM = 2, GRADIENT = 2, OPTIMIZER = 12 };
    uint64_t whole = config->stage < 2 ? PARAM + GRADIENT : config->stage == 2 ? PARAM : 0;
    uint64_t divided = PARAM + GRADIENT + OPTIMIZER - whole;

    if (config->stage == 0)
        return times(PARAM + GRADIENT + OPTIMIZER, params);
    uint64_t bytes = times(divided, params);
    uint64_t share = bytes / config->world + (bytes % config->world != 0);
    return plus(times(whole, params), share);
}
