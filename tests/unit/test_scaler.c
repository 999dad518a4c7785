/* SPDX-License-Identifier: MIT */
/* The loss scale follows DeepSpeed's traces, step by step.
 *
 * The traces were made by executing DeepSpeed's own DynamicLossScaler (commit edaa7221): scale, and
 * hysteresis left, after each step; x is an overflow.
 */
#include "daemon/step/scaler.h"
#include "tests/unit/check.h"

struct trace {
    double initial, min;
    uint32_t window, hysteresis;
    bool consecutive;
    const char *steps;
    double scales[16];
    uint32_t left[16]; /* 0: not told */
    bool stops;        /* the last step is an overflow at the minimum */
};

static const struct trace traces[] = {
    { 256,
      1,
      2,
      2,
      false,
      "..........",
      { 256, 256, 512, 512, 1024, 1024, 2048, 2048, 4096, 4096 },
      { 2, 2, 2, 2, 2, 2, 2, 2, 2, 2 },
      false },
    { 256, 1, 2, 1, false, "xxxxxxxxx", { 128, 64, 32, 16, 8, 4, 2, 1, 1 }, { 0 }, true },
    { 256,
      1,
      2,
      2,
      false,
      "xx...x...",
      { 256, 128, 128, 128, 256, 256, 256, 256, 512 },
      { 1, 1, 1, 1, 2, 1, 1, 1, 2 },
      false },
    { 256,
      1,
      2,
      2,
      true,
      "x.x.x.xx..",
      { 256, 256, 256, 256, 256, 256, 256, 128, 128, 128 },
      { 1, 2, 1, 2, 1, 2, 1, 1, 2, 2 },
      false },
    { 256,
      1,
      2,
      2,
      false,
      "x.x.x.xx..",
      { 256, 256, 128, 128, 64, 64, 32, 16, 16, 16 },
      { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 },
      false },
    { 4, 1, 1000, 2, false, "xxxx", { 4, 2, 1, 1 }, { 1, 1, 1, 1 }, true },
    { 65536,
      1,
      3,
      2,
      false,
      "...x.......x",
      { 65536, 65536, 65536, 65536, 65536, 65536, 65536, 131072, 131072, 131072, 262144, 262144 },
      { 2, 2, 2, 1, 1, 1, 1, 2, 2, 2, 2, 1 },
      false },
    { 256,
      1,
      2,
      1,
      false,
      "xx....x.....",
      { 128, 64, 64, 64, 128, 128, 64, 64, 64, 128, 128, 256 },
      { 0 },
      false },
    { 256,
      1,
      2,
      2,
      false,
      "xx....x.....",
      { 256, 128, 128, 128, 256, 256, 256, 256, 256, 512, 512, 1024 },
      { 0 },
      false },
    { 8, 1, 3, 2, false, ".........", { 8, 8, 8, 16, 16, 16, 32, 32, 32 }, { 0 }, false },
};

static void check_trace(const struct trace *trace)
{
    const struct zero_config config = { .param_dtype = ZERO_FP16,
                                        .loss_scale_dynamic = true,
                                        .loss_scale_initial = trace->initial,
                                        .loss_scale_min = trace->min,
                                        .loss_scale_window = trace->window,
                                        .loss_scale_hysteresis = trace->hysteresis,
                                        .loss_scale_consecutive = trace->consecutive };
    struct scaler scaler;
    size_t count = strlen(trace->steps);

    scaler_init(&scaler, &config);
    CHECK(scaler.scale == trace->initial);
    for (size_t i = 0; i < count; i++) {
        bool exhausted = scaler_update(&scaler, trace->steps[i] == 'x');
        CHECK(exhausted == (trace->stops && i == count - 1));
        CHECK(scaler.scale == trace->scales[i]);
        CHECK(trace->left[i] == 0 || scaler.hysteresis_left == trace->left[i]);
    }
}

static void check_fixed(void)
{
    struct zero_config config = { .param_dtype = ZERO_FP16, .loss_scale_initial = 128 };
    struct scaler scaler;

    scaler_init(&scaler, &config); /* static */
    CHECK(!scaler_update(&scaler, true) && scaler.scale == 128);
    config.param_dtype = ZERO_BF16;
    config.loss_scale_dynamic = true;
    scaler_init(&scaler, &config); /* bf16 has no scale */
    CHECK(!scaler_update(&scaler, true) && scaler.scale == 1);
}

int main(void)
{
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++)
        check_trace(&traces[i]);
    check_fixed();
    return check_done();
}
