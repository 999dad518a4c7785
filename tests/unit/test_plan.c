/* SPDX-License-Identifier: MIT */
/* A plan's bytes are those worked out by hand from the rules, and the paper's are the paper's. */
#include <math.h>
#include <stdlib.h>

#include "proto/plan.h"
#include "tests/unit/check.h"

static struct zero_detail detail;

static struct zero_config config_of(uint32_t world, uint32_t stage, zero_dtype dtype)
{
    return (struct zero_config){ .accumulation = 1,
                                 .world = world,
                                 .stage = stage,
                                 .param_dtype = dtype,
                                 .grad_dtype = dtype,
                                 .optimizer = ZERO_ADAM,
                                 .reduce_bucket_elements = 500000000 };
}

/* Two layers: 3 and 600 elements (the second tensor starts at 256, so 856), and 5000. */
static struct zero_layout *two_layers(uint32_t world, zero_dtype dtype)
{
    static const uint64_t three[] = { 3 }, matrix[] = { 2, 300 }, vector[] = { 5000 };
    const struct zero_tensor_spec first[] = {
        { .name = "a", .shape = three, .dims = 1, .lr_scale = 1, .weight_decay = NAN },
        { .name = "b", .shape = matrix, .dims = 2, .lr_scale = 1, .weight_decay = NAN },
    };
    const struct zero_tensor_spec second[] = {
        { .name = "c", .shape = vector, .dims = 1, .lr_scale = 1, .weight_decay = NAN },
    };
    const struct zero_layer_spec layers[] = { { "one", first, 2 }, { "two", second, 1 } };
    const struct zero_layout_spec spec = { layers, 2, world, dtype };
    struct zero_layout *layout = NULL;

    CHECK(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    return layout;
}

/* bf16 and Adam. A shard of a layer is a multiple of 2048 elements (4096 bytes), so the flat
 * vectors of the layers have, with 1 rank, 2048 + 6144 elements; 2: 4096 + 8192; 3: 6144 + 6144; 8:
 * 16384 each. Master weights, moments and sums have 4 bytes an element each. */
static void check_arenas(void)
{
    static const struct {
        uint32_t world, stage;
        uint64_t param, four, window;
    } rows[] = {
        { 1, 0, 16384, 32768, 16384 },  { 1, 1, 16384, 32768, 16384 },
        { 1, 2, 16384, 32768, 16384 },  { 1, 3, 16384, 32768, 16384 },
        { 2, 0, 24576, 49152, 24576 },  { 2, 1, 24576, 24576, 24576 },
        { 2, 2, 24576, 24576, 24576 },  { 2, 3, 12288, 24576, 24576 },
        { 3, 0, 24576, 49152, 24576 },  { 3, 1, 24576, 16384, 24576 },
        { 3, 2, 24576, 16384, 24576 },  { 3, 3, 8192, 16384, 24576 },
        { 8, 0, 65536, 131072, 65536 }, { 8, 1, 65536, 16384, 65536 },
        { 8, 2, 65536, 16384, 65536 },  { 8, 3, 8192, 16384, 65536 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct zero_config config = config_of(rows[i].world, rows[i].stage, ZERO_BF16);
        struct zero_layout *layout = two_layers(rows[i].world, ZERO_BF16);
        struct zero_plan plan;
        CHECK(!zero_failed(zero_plan_layout(layout, &config, &plan, &detail)));
        CHECK(plan.bytes[ZERO_ARENA_param] == rows[i].param);
        CHECK(plan.bytes[ZERO_ARENA_master] == rows[i].four);
        CHECK(plan.bytes[ZERO_ARENA_moment1] == rows[i].four);
        CHECK(plan.bytes[ZERO_ARENA_moment2] == rows[i].four);
        CHECK(plan.bytes[ZERO_ARENA_max_moment2] == 0);
        CHECK(plan.bytes[ZERO_ARENA_grad] == rows[i].four);
        CHECK(plan.bytes[ZERO_ARENA_window] == rows[i].window);
        CHECK(plan.bytes[ZERO_ARENA_board] == 8192); /* 4096 + 2 x 64 + some norms */
        CHECK(plan.bytes[ZERO_ARENA_staging] == 1048576);
        CHECK(plan.total == rows[i].param + 4 * rows[i].four + rows[i].window + UINT64_C(1208320));
        zero_layout_destroy(layout);
    }
}

/* fp32 (multiples of 1024): 1024 + 5120 elements with one rank, which are their own masters. */
static void check_optimizers(void)
{
    struct zero_config config = config_of(1, 0, ZERO_FP32);
    struct zero_layout *layout = two_layers(1, ZERO_FP32);
    struct zero_plan plan;

    config.optimizer = ZERO_SGD;
    CHECK(!zero_failed(zero_plan_layout(layout, &config, &plan, &detail)));
    CHECK(plan.bytes[ZERO_ARENA_param] == 24576 && plan.bytes[ZERO_ARENA_master] == 0);
    CHECK(plan.bytes[ZERO_ARENA_moment1] == 0 && plan.bytes[ZERO_ARENA_moment2] == 0);
    CHECK(plan.bytes[ZERO_ARENA_grad] == 24576 && plan.bytes[ZERO_ARENA_window] == 24576);
    config.momentum = 0.9;
    CHECK(!zero_failed(zero_plan_layout(layout, &config, &plan, &detail)));
    CHECK(plan.bytes[ZERO_ARENA_moment1] == 24576 && plan.bytes[ZERO_ARENA_moment2] == 0);
    config.optimizer = ZERO_ADAMW;
    config.amsgrad = true;
    config.grad_dtype = ZERO_BF16;
    CHECK(!zero_failed(zero_plan_layout(layout, &config, &plan, &detail)));
    CHECK(plan.bytes[ZERO_ARENA_moment1] == 24576 && plan.bytes[ZERO_ARENA_moment2] == 24576 &&
          plan.bytes[ZERO_ARENA_max_moment2] == 24576);
    CHECK(plan.bytes[ZERO_ARENA_window] == 12288);
    zero_layout_destroy(layout);
}

static uint64_t window_bytes(const struct zero_layout *layout, uint64_t bucket, bool overlap)
{
    struct zero_config config = config_of(1, 2, ZERO_BF16);
    struct zero_plan plan;

    config.reduce_bucket_elements = bucket;
    config.overlap_comm = overlap;
    CHECK(!zero_failed(zero_plan_layout(layout, &config, &plan, &detail)));
    return plan.bytes[ZERO_ARENA_window];
}

/* Four layers of 2048 elements: room for two at least, for all at most. */
static void check_windows(void)
{
    static const uint64_t shape[] = { 2048 };
    struct zero_tensor_spec tensors[4];
    struct zero_layer_spec layers[4];
    static const char *const names[] = { "a", "b", "c", "d" };
    const struct zero_layout_spec spec = { layers, 4, 1, ZERO_BF16 };
    struct zero_layout *layout = NULL;

    for (int i = 0; i < 4; i++) {
        tensors[i] = (struct zero_tensor_spec){
            .name = names[i], .shape = shape, .dims = 1, .lr_scale = 1, .weight_decay = NAN
        };
        layers[i] = (struct zero_layer_spec){ names[i], &tensors[i], 1 };
    }
    CHECK(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    CHECK(window_bytes(layout, 1, false) == 8192);
    CHECK(window_bytes(layout, 3000, false) == 8192);
    CHECK(window_bytes(layout, 3000, true) == 12288); /* 6000 elements, rounded to pages */
    CHECK(window_bytes(layout, 5000, true) == 16384);
    CHECK(window_bytes(layout, UINT64_MAX / 2, true) == 16384);
    zero_layout_destroy(layout);
}

/* bf16, 2 ranks, 3 micro-steps: the other rank holds 6144 elements. */
static void check_traffic(void)
{
    static const uint64_t gathered[] = { 0, 12288, 12288, 73728 };
    static const uint64_t reduced[] = { 61440, 36864, 36864, 36864 };
    struct zero_layout *layout = two_layers(2, ZERO_BF16);

    for (uint32_t stage = 0; stage < 4; stage++) {
        struct zero_config config = config_of(2, stage, ZERO_BF16);
        config.accumulation = 3;
        struct zero_traffic traffic = zero_plan_traffic(layout, &config);
        CHECK(traffic.gathered == gathered[stage] && traffic.reduced == reduced[stage]);
        traffic = zero_plan_traffic_count(12287, &config); /* shares of 6144 */
        CHECK(traffic.gathered == gathered[stage] && traffic.reduced == reduced[stage]);
        config.accumulation = UINT64_C(1) << 40;
        traffic = zero_plan_traffic_count(UINT64_C(1) << 40, &config);
        CHECK(traffic.reduced == UINT64_MAX);
    }
    zero_layout_destroy(layout);
}

/* Table 1 of the ZeRO paper, in 10^9 bytes as printed there. */
static void check_paper(void)
{
    static const struct {
        uint32_t world;
        double small[3], middle[3], large[3]; /* 7.5 B, 128 B, 1 T; stages 1 to 3 */
    } rows[] = {
        { 4, { 52.5, 41.25, 30 }, { 896, 704, 512 }, { 7000, 5500, 4000 } },
        { 16, { 35.62, 21.56, 7.5 }, { 608, 368, 128 }, { 4750, 2875, 1000 } },
        { 64, { 31.41, 16.64, 1.88 }, { 536, 284, 32 }, { 4187.5, 2218.75, 250 } },
        { 256, { 30.35, 15.41, 0.47 }, { 518, 263, 8 }, { 4046.88, 2054.69, 62.5 } },
        { 1024, { 30.09, 15.10, 0.12 }, { 513.5, 257.75, 2 }, { 4011.7, 2013.7, 15.6 } },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (uint32_t stage = 1; stage < 4; stage++) {
            struct zero_config config = config_of(rows[i].world, stage, ZERO_BF16);
            double small = (double)zero_plan_paper(7500000000, &config) * 1e-9;
            double middle = (double)zero_plan_paper(128000000000, &config) * 1e-9;
            double large = (double)zero_plan_paper(1000000000000, &config) * 1e-9;
            CHECK(fabs(small - rows[i].small[stage - 1]) < 0.0051);
            CHECK(fabs(middle - rows[i].middle[stage - 1]) < 0.0051);
            CHECK(fabs(large - rows[i].large[stage - 1]) < 0.051);
        }
    }
    struct zero_config config = config_of(64, 0, ZERO_BF16);
    CHECK(zero_plan_paper(7500000000, &config) == UINT64_C(120000000000));
    config = config_of(3, 3, ZERO_BF16);
    CHECK(zero_plan_paper(1, &config) == 6); /* 16 / 3, rounded up */
}

static void check_counts(void)
{
    struct zero_config config = config_of(3, 3, ZERO_BF16);
    struct zero_plan plan;

    config.reduce_bucket_elements = 10;
    CHECK(!zero_failed(zero_plan_count(100, &config, &plan, &detail)));
    CHECK(plan.bytes[ZERO_ARENA_param] == 68 && plan.bytes[ZERO_ARENA_master] == 136); /* 34 each */
    CHECK(plan.bytes[ZERO_ARENA_window] == 20 && plan.bytes[ZERO_ARENA_board] == 4096);
    CHECK_CONTAINS(plan.formula[ZERO_ARENA_param], "2 B x 100 / 3");
    CHECK(zero_plan_count(INT64_MAX, &config, &plan, &detail).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "9223372036854775807 elements");
}

static void check_versions(void)
{
    struct zero_config config = config_of(3, 3, ZERO_BF16);

    config.versions_keep = 3;
    struct zero_versions_plan plan = zero_plan_versions(100, &config);
    CHECK(plan.each == 200 && plan.count == 3 && plan.total == 600);
    config.versions_max_bytes = 599;
    plan = zero_plan_versions(100, &config);
    CHECK(plan.count == 2 && plan.total == 400);
    config.versions_max_bytes = 199;
    CHECK(zero_plan_versions(100, &config).count == 0);
    config.versions_max_bytes = 0;
    plan = zero_plan_versions(UINT64_MAX, &config);
    CHECK(plan.each == UINT64_MAX && plan.total == UINT64_MAX);
}

int main(void)
{
    check_arenas();
    check_optimizers();
    check_windows();
    check_traffic();
    check_paper();
    check_counts();
    check_versions();
    return check_done();
}
