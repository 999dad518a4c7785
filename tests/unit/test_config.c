/* SPDX-License-Identifier: MIT */
/* A config means what DeepSpeed's documentation says, and every mistake is refused with line and
 * path.
 *
 * The batch vectors come from executing DeepSpeed's own inference (commit edaa7221); where it
 * rounds, zerod refuses.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "proto/config_keys.h"
#include "tests/unit/check.h"

static struct zero_detail detail;

#define REST ",\"optimizer\":{\"type\":\"AdamW\"}"

static zero_status parse(const char *text, uint32_t world, struct zero_config *out)
{
    memset(&detail, 0, sizeof detail);
    return zero_config_parse(text, strlen(text), world, out, &detail);
}

static const struct mistake {
    const char *text;
    zero_code code;
    const char *parts[3];
} mistakes[] = {
    { "", ZERO_CONFIG, { "line 1" } },
    { "{\n\"train_batch_size\": 8,\n}", ZERO_CONFIG, { "line 3", "column" } },
    { "{\"train_batch_size\": 8 // a comment\n}", ZERO_CONFIG, { "line 1", "comment" } },
    { "{\"train_batch_size\": 8} {}", ZERO_CONFIG, { "line 1", "trailing" } },
    { "[1, 2]", ZERO_CONFIG, { "line 1", "an object, not a list" } },
    { "{\"train_batch_size\": 8,\n\"train_batch_size\": 8" REST "}",
      ZERO_CONFIG,
      { "line 2", "train_batch_size", "line 1 already" } },
    { "{\"optimizer\": {\"type\": \"SGD\",\n \"type\": \"Adam\"}}",
      ZERO_CONFIG,
      { "line 2", "\"type\"" } },
    { "{\"train_batch_size\": 8,\n\n \"optmizer\": {}}",
      ZERO_CONFIG,
      { "line 3", "optmizer", "optimizer" } },
    { "{\"zero_optimization\": {\"stge\": 1}}",
      ZERO_CONFIG,
      { "zero_optimization.stge", "zero_optimization.stage" } },
    { "{\"stage\": 1}", ZERO_CONFIG, { "the key stage", "zero_optimization.stage" } },
    { "{\"zerod\": {\"wait_timeout\": 1}}",
      ZERO_CONFIG,
      { "zerod.wait_timeout", "zerod.wait_timeout_seconds" } },
    { "{\"train_batch_size\": \"auto\"}", ZERO_CONFIG, { "train_batch_size is \"auto\"" } },
    { "{\"fp16\": {\"enabled\": \"auto\"}}", ZERO_CONFIG, { "fp16.enabled is \"auto\"" } },
    { "{\"train_batch_size\": \"8\"}", ZERO_CONFIG, { "a whole number, not a text" } },
    { "{\"train_batch_size\": 8.5}", ZERO_CONFIG, { "a whole number" } },
    { "{\"train_batch_size\": 0}", ZERO_CONFIG, { "out of range" } },
    { "{\"train_batch_size\": -8}", ZERO_CONFIG, { "out of range" } },
    { "{\"train_batch_size\": 1e999}", ZERO_CONFIG, { "too large" } },
    { "{\"zero_optimization\": {\"stage\": 4}}", ZERO_CONFIG, { "out of range: 0 to 3" } },
    { "{\"zero_optimization\": 3}", ZERO_CONFIG, { "must be an object" } },
    { "{\"optimizer\": {\"params\": {\"betas\": [0.9]}}}", ZERO_CONFIG, { "two numbers" } },
    { "{\"optimizer\": {\"params\": {\"betas\": [0.9, 1.0]}}}", ZERO_CONFIG, { "out of range" } },
    { "{\"optimizer\": {\"params\": {\"lr\": -1}}}", ZERO_CONFIG, { "optimizer.params.lr" } },
    { "{\"train_batch_size\": 8}", ZERO_CONFIG, { "no optimizer" } },
    { "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Lamb\"}}",
      ZERO_UNSUPPORTED,
      { "Lamb", "Adam, AdamW or SGD" } },
    { "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"momentum\": "
      "1}}}",
      ZERO_CONFIG,
      { "momentum is not a parameter of Adam" } },
    { "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"betas\": [0, "
      "0]}}}",
      ZERO_CONFIG,
      { "betas is not a parameter of SGD" } },
    { "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": "
      "true}}}",
      ZERO_CONFIG,
      { "nesterov needs momentum" } },
    { "{\"train_batch_size\": 8, \"fp16\": {\"enabled\": true}, \"bf16\": {\"enabled\": true}" REST
      "}",
      ZERO_CONFIG,
      { "fp16 and bf16" } },
    { "{\"train_batch_size\": 8, \"communication_data_type\": \"fp8\"" REST "}",
      ZERO_CONFIG,
      { "fp32, bf16 or fp16" } },
    { "{\"scheduler\": {\"type\": \"WarmupLR\"}}", ZERO_UNSUPPORTED, { "scheduler", "zero_step" } },
    { "{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\"}}}",
      ZERO_UNSUPPORTED,
      { "offload_optimizer.device", "not supported yet" } },
    { "{\"zero_optimization\": {\"zero_quantized_weights\": true}}",
      ZERO_UNSUPPORTED,
      { "ZeRO++" } },
    { "{\"optimizer\": {\"params\": {\"max_grad_norm\": 1.0}}}",
      ZERO_UNSUPPORTED,
      { "gradient_clipping" } },
    { "{\"gradient_allreduce_op\": \"sum\"}", ZERO_UNSUPPORTED, { "averaged" } },
    { "{\"zerod\": {\"device\": \"cuda\"}}", ZERO_UNSUPPORTED, { "zerod.device" } },
    { "{\"train_batch_size\": 8, \"x\\u0000y\": 1}", ZERO_CONFIG, { "\\u0000" } },
    { "{\"train_batch_size\": 8, \"\xff\": 1}", ZERO_CONFIG, { "line 1" } },
};

static void check_mistakes(void)
{
    struct zero_config config;

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const struct mistake *m = &mistakes[i];
        zero_status s = parse(m->text, 2, &config);
        if (s.code != m->code)
            fprintf(stderr, "%s\n  gave %s: %s\n", m->text, zero_code_name(s.code), detail.text);
        CHECK(s.code == m->code);
        for (int p = 0; p < 3 && m->parts[p] != NULL; p++)
            CHECK_CONTAINS(detail.text, m->parts[p]);
    }
}

/* (train, micro, accumulation, world) -> the same resolved; 0 is "not given", a first 0 result an
 * error whose detail has the text. */
static const struct batch {
    unsigned given[3], world, wanted[3];
    const char *error;
} batches[] = {
    { { 32, 16, 1 }, 2, { 32, 16, 1 }, NULL },
    { { 32, 16, 0 }, 2, { 32, 16, 1 }, NULL },
    { { 32, 0, 2 }, 2, { 32, 8, 2 }, NULL },
    { { 0, 8, 2 }, 2, { 32, 8, 2 }, NULL },
    { { 32, 0, 0 }, 2, { 32, 16, 1 }, NULL },
    { { 0, 8, 0 }, 2, { 16, 8, 1 }, NULL },
    { { 0, 0, 2 }, 2, { 0 }, "train_batch_size or train_micro_batch_size_per_gpu is needed" },
    { { 0, 0, 0 }, 2, { 0 }, "train_batch_size or train_micro_batch_size_per_gpu is needed" },
    { { 33, 17, 2 }, 2, { 0 }, "train_batch_size 33 (line 1), train_micro_batch_size_per_gpu 17" },
    { { 32, 18, 1 }, 2, { 0 }, "gradient_accumulation_steps 1 (line 1), world size 2" },
    { { 33, 0, 0 },
      2,
      { 0 },
      "train_micro_batch_size_per_gpu unknown (not given), "
      "gradient_accumulation_steps 1 (inferred)" },
    { { 30, 4, 0 }, 4, { 0 }, "gradient_accumulation_steps unknown (not given), world size 4" },
    { { 7, 0, 2 }, 2, { 0 }, "the batch does not divide" },
    { { 1, 0, 0 }, 2, { 0 }, "the batch does not divide" },
};

static void check_batches(void)
{
    static const char *const names[] = { "train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps" };

    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const struct batch *b = &batches[i];
        struct zero_config config;
        char text[400] = "{\"optimizer\":{\"type\":\"AdamW\"}";
        for (int k = 0; k < 3; k++)
            if (b->given[k] != 0)
                sprintf(text + strlen(text), ",\"%s\":%u", names[k], b->given[k]);
        strcat(text, "}");
        zero_status s = parse(text, b->world, &config);
        CHECK(zero_failed(s) == (b->error != NULL));
        if (b->error != NULL)
            CHECK_CONTAINS(detail.text, b->error);
        else
            CHECK(config.train_batch == b->wanted[0] && config.micro_batch == b->wanted[1] &&
                  config.accumulation == b->wanted[2]);
    }
}

static void check_defaults(void)
{
    struct zero_config c;

    CHECK(!zero_failed(parse("{\"train_batch_size\":8" REST "}", 2, &c)));
    CHECK(c.stage == 0 && c.param_dtype == ZERO_FP32 && c.grad_dtype == ZERO_FP32);
    CHECK(c.optimizer == ZERO_ADAMW && c.lr == 1e-3 && c.beta1 == 0.9 && c.beta2 == 0.999);
    CHECK(c.eps == 1e-8 && c.weight_decay == 0.01 && !c.amsgrad);
    CHECK(c.gradient_clipping == 1.0 && c.reduce_bucket_elements == 500000000 && !c.overlap_comm);
    CHECK(c.loss_scale_dynamic && c.loss_scale_initial == 65536 && c.loss_scale_window == 1000);
    CHECK(c.loss_scale_hysteresis == 2 && c.loss_scale_min == 1 && !c.loss_scale_consecutive);
    CHECK(c.deadline_ms == 300000 && c.observer_hold_ms == 1000 && c.max_skipped_steps == 0);

    CHECK(!zero_failed(parse("{\"train_batch_size\":8,\"optimizer\":{\"type\":\"adam\"}}", 2, &c)));
    CHECK(c.optimizer == ZERO_ADAMW && c.weight_decay == 0); /* DeepSpeed's Adam */
    CHECK(
        !zero_failed(parse("{\"train_batch_size\":8,\"optimizer\":{\"type\":\"Adam\",\"params\":"
                           "{\"adam_w_mode\":false,\"weight_decay\":0.1}},\"gradient_clipping\":0,"
                           "\"zero_optimization\":{\"stage\":3},\"bf16\":{\"enabled\":true},"
                           "\"communication_data_type\":\"fp32\"}",
                           2, &c)));
    CHECK(c.optimizer == ZERO_ADAM && c.weight_decay == 0.1 && c.gradient_clipping == 0);
    CHECK(c.stage == 3 && c.overlap_comm && c.param_dtype == ZERO_BF16 &&
          c.grad_dtype == ZERO_FP32);
    CHECK(
        !zero_failed(parse("{\"train_batch_size\":8,\"zero_optimization\":true" REST "}", 2, &c)));
    CHECK(c.stage == 1);
    CHECK(!zero_failed(parse(
        "{\"train_batch_size\":8,\"fp16\":{\"enabled\":true,\"loss_scale\":128}" REST "}", 2, &c)));
    CHECK(c.param_dtype == ZERO_FP16 && !c.loss_scale_dynamic && c.loss_scale_initial == 128);
}

/* Configs as people have them. */
static void check_usual(void)
{
    static const char *const usual[] = {
        "{\"train_batch_size\": 16, \"gradient_accumulation_steps\": 2, \"gradient_clipping\": 1.0,"
        " \"steps_per_print\": 2000, \"wall_clock_breakdown\": false,"
        " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 3e-5, \"betas\": [0.8, 0.999],"
        " \"eps\": 1e-8, \"weight_decay\": 3e-7}},"
        " \"fp16\": {\"enabled\": true, \"loss_scale\": 0, \"loss_scale_window\": 1000,"
        " \"initial_scale_power\": 16, \"hysteresis\": 2, \"min_loss_scale\": 1},"
        " \"zero_optimization\": {\"stage\": 2, \"allgather_partitions\": true,"
        " \"allgather_bucket_size\": 2e8, \"overlap_comm\": true, \"reduce_scatter\": true,"
        " \"reduce_bucket_size\": 2e8, \"contiguous_gradients\": true}}",
        "{\"train_micro_batch_size_per_gpu\": 4, \"bf16\": {\"enabled\": true},"
        " \"fp16\": {\"enabled\": false}, \"tensorboard\": {\"enabled\": false},"
        " \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 1e-4, \"torch_adam\": true}},"
        " \"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"none\","
        " \"pin_memory\": true}, \"offload_param\": null, \"sub_group_size\": 1e9,"
        " \"stage3_prefetch_bucket_size\": 5e7, \"stage3_param_persistence_threshold\": 1e5,"
        " \"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 1e9,"
        " \"stage3_gather_16bit_weights_on_model_save\": true}}",
    };
    struct zero_config config;

    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        zero_status s = parse(usual[i], 2, &config);
        CHECK(!zero_failed(s));
        if (zero_failed(s))
            fprintf(stderr, "%s\n", detail.text);
    }
}

static void check_texts(void)
{
    static const char text[] = "{\"train_batch_size\":8,\n\"zero_optimization\":{\"stage\":2,\n"
                               "\"contiguous_gradients\":true}" REST "}";
    struct zero_config config;
    char *explained = NULL;

    CHECK(!zero_failed(zero_config_explain(text, strlen(text), 2, &explained, &detail)));
    CHECK_CONTAINS(explained, "train_batch_size = 8   (line 1)");
    CHECK_CONTAINS(explained, "train_micro_batch_size_per_gpu = 4   (inferred)");
    CHECK_CONTAINS(explained, "zero_optimization.stage = 2   (line 2)");
    CHECK_CONTAINS(explained, "optimizer.params.lr = 0.001");
    CHECK_CONTAINS(explained, "(default)");
    CHECK_CONTAINS(explained, "zero_optimization.contiguous_gradients   (line 3): ");
    free(explained);
    CHECK(!zero_failed(parse(text, 2, &config)));
    char *plain = zero_config_text(&config);
    CHECK_CONTAINS(plain, "zero_optimization.stage = 2\n");
    CHECK(strstr(plain, "line") == NULL);
    free(plain);
}

/* Every row's default is JSON of its own type and in its own range, and no path is there twice. */
static void check_table(void)
{
    for (size_t i = 0; i < config_row_count; i++) {
        struct json *json = NULL;
        const struct config_row *row = &config_rows[i];
        if (row->fallback != NULL)
            CHECK(!zero_failed(json_parse(row->fallback, strlen(row->fallback), &json, &detail)));
        json_free(json);
        for (size_t k = 0; k < i; k++)
            CHECK(strcmp(config_rows[k].path, row->path) != 0);
        CHECK(row->help != NULL && row->help[0] != '\0');
    }
}

int main(void)
{
    check_mistakes();
    check_batches();
    check_defaults();
    check_usual();
    check_texts();
    check_table();
    return check_done();
}
