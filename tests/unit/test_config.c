/* SPDX-License-Identifier: MIT */
/* A config means what DeepSpeed means by it, and its texts say where each value comes from.
 *
 * The batch vectors come from executing DeepSpeed's own inference (commit edaa7221); where it
 * rounds, zerod refuses. Defaults are those of its source at that commit.
 */
#include <stdlib.h>

#include "proto/config_keys.h"
#include "tests/unit/check.h"

static struct zero_detail detail;

#define ADAMW "\"optimizer\":{\"type\":\"AdamW\"}"
#define PLAIN "\"train_batch_size\":8," ADAMW

static zero_status parse(const char *text, uint32_t world, struct zero_config *out)
{
    memset(&detail, 0, sizeof detail);
    zero_status s = zero_config_parse(text, strlen(text), world, out, &detail);
    CHECK(!zero_failed(s) || detail.text[0] != '\0');
    return s;
}

/* Parses what must be right; prints why it is not. */
static struct zero_config accept(const char *text)
{
    struct zero_config config = { .world = 0 };

    if (zero_failed(parse(text, 2, &config))) {
        check_failures++;
        fprintf(stderr, "%s\n  gave %s\n", text, detail.text);
    }
    return config;
}

/* (train, micro, accumulation, world) -> the same resolved; 0 is "not given". With an error, the
 * numbers that it must show. */
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
    { { 0, 0, 2 }, 2, { 0 }, "line 4: gradient_accumulation_steps alone does not say" },
    { { 0, 0, 0 }, 2, { 0 }, "the batch size is missing: add train_batch_size" },
    { { 33, 17, 2 },
      2,
      { 0 },
      "line 2: train_batch_size 33 is not train_micro_batch_size_per_gpu 17 x "
      "gradient_accumulation_steps 2 x world size 2 (-n or --world)" },
    { { 32, 18, 1 }, 2, { 0 }, "size_per_gpu 18 x gradient_accumulation_steps 1 x world size 2" },
    { { 33, 0, 0 },
      2,
      { 0 },
      "line 2: train_batch_size 33 is not train_micro_batch_size_per_gpu 16 (inferred, rounded "
      "down) x gradient_accumulation_steps 1 (default) x world size 2 (-n or --world)" },
    { { 30, 4, 0 },
      4,
      { 0 },
      "train_batch_size 30 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 1 "
      "(inferred, rounded down) x world size 4" },
    { { 7, 0, 2 }, 2, { 0 }, "size_per_gpu 1 (inferred, rounded down) x gradient_accumulation" },
    { { 1, 0, 0 }, 2, { 0 }, "size_per_gpu 0 (inferred, rounded down) x gradient_accumulation" },
    { { 1000000000, 1, 0 },
      UINT32_MAX,
      { 0 },
      "steps 0 (inferred, rounded down) x world size 42949" },
    { { 0, 1000000000, 65534 }, 100000, { 0 }, "is more than 1e18" },
    { { 1, 1000000000, 65534 }, UINT32_MAX, { 0 }, "train_batch_size 1 is not" },
    /* the product is 2^64 + 4 */
    { { 4, 968973220, 49477 }, 384773, { 0 }, "train_batch_size 4 is not" },
};

static void check_batches(void)
{
    static const char *const names[] = { "train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps" };

    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
        const struct batch *b = &batches[i];
        struct zero_config config;
        char text[400] = "{\n";
        for (int k = 0; k < 3; k++) {
            size_t at = strlen(text);
            if (b->given[k] != 0)
                snprintf(text + at, sizeof text - at, "\"%s\":%u,\n", names[k], b->given[k]);
            else
                snprintf(text + at, sizeof text - at, "\n");
        }
        snprintf(text + strlen(text), sizeof text - strlen(text), ADAMW "}");
        zero_status s = parse(text, b->world, &config);
        CHECK(zero_failed(s) == (b->error != NULL));
        if (b->error != NULL)
            CHECK_CONTAINS(detail.text, b->error);
        else if (!zero_failed(s))
            CHECK(config.train_batch == b->wanted[0] && config.micro_batch == b->wanted[1] &&
                  config.accumulation == b->wanted[2] && config.world == b->world);
    }
    struct zero_config config;
    CHECK(parse("{" PLAIN "}", 0, &config).code == ZERO_INVALID_ARGUMENT);
}

static void check_defaults(void)
{
    struct zero_config c = accept("{" PLAIN "}");

    CHECK(c.stage == 0 && c.param_dtype == ZERO_FP32 && c.grad_dtype == ZERO_FP32);
    CHECK(c.optimizer == ZERO_ADAMW && c.lr == 1e-3 && c.beta1 == 0.9 && c.beta2 == 0.999);
    CHECK(c.eps == 1e-8 && c.weight_decay == 0.01 && !c.amsgrad);
    CHECK(c.gradient_clipping == 1.0 && !c.loss_scale_dynamic && c.loss_scale_initial == 1);
    CHECK(c.deadline_ms == 300000 && c.max_skipped_steps == 0);
    CHECK(c.versions_keep == 2 && c.versions_max_bytes == 0 && c.versions_every == 0);

    c = accept("{" PLAIN ",\"fp16\":{\"enabled\":true}}");
    CHECK(c.param_dtype == ZERO_FP16 && c.grad_dtype == ZERO_FP16);
    CHECK(c.loss_scale_dynamic && c.loss_scale_initial == 65536 && c.loss_scale_window == 1000);
    CHECK(c.loss_scale_hysteresis == 2 && c.loss_scale_min == 1 && !c.loss_scale_consecutive);
    c = accept("{" PLAIN ",\"fp16\":{\"loss_scale\":0}}");
    CHECK(c.param_dtype == ZERO_FP32); /* a section alone enables nothing */

    c = accept("{" PLAIN ",\"zero_optimization\":{\"stage\":2}}");
    CHECK(c.stage == 2 && c.reduce_bucket_elements == 500000000 && !c.overlap_comm);
    c = accept("{" PLAIN ",\"zero_optimization\":{\"stage\":3}}");
    CHECK(c.stage == 3 && c.reduce_bucket_elements == 500000000 && c.overlap_comm);
    c = accept("{" PLAIN ",\"zero_optimization\":{\"stage\":3,\"overlap_comm\":false}}");
    CHECK(!c.overlap_comm);
    CHECK(accept("{" PLAIN ",\"zero_optimization\":true}").stage == 1);
    CHECK(accept("{" PLAIN ",\"zero_optimization\":false}").stage == 0);
    CHECK(accept("{" PLAIN ",\"gradient_clipping\":0}").gradient_clipping == 0);
    CHECK(accept("{" PLAIN ",\"gradient_clipping\":-1}").gradient_clipping == 0);
    CHECK(accept("{" PLAIN ",\"zerod\":{\"wait_timeout_seconds\":0.0015}}").deadline_ms == 2);
}

static struct zero_config accept_optimizer(const char *section)
{
    char text[400];

    snprintf(text, sizeof text, "{\"train_batch_size\":8,\"optimizer\":%s}", section);
    return accept(text);
}

static void check_optimizers(void)
{
    struct zero_config c = accept_optimizer("{\"type\":\"adam\"}");

    CHECK(c.optimizer == ZERO_ADAMW && c.weight_decay == 0); /* DeepSpeed's Adam */
    c = accept_optimizer("{\"type\":\"Adam\",\"params\":{\"adam_w_mode\":false}}");
    CHECK(c.optimizer == ZERO_ADAM && c.weight_decay == 0);
    c = accept_optimizer(
        "{\"type\":\"ADAMW\",\"params\":{\"adam_w_mode\":true,\"betas\":[0.8,0.95],"
        "\"eps\":1e-6,\"lr\":2,\"amsgrad\":true,\"weight_decay\":0}}");
    CHECK(c.optimizer == ZERO_ADAMW && c.weight_decay == 0 && c.beta1 == 0.8 && c.beta2 == 0.95);
    CHECK(c.eps == 1e-6 && c.lr == 2 && c.amsgrad);
    c = accept_optimizer("{\"type\":\"SGD\"}");
    CHECK(c.optimizer == ZERO_SGD && c.lr == 1e-3 && c.momentum == 0 && c.dampening == 0);
    CHECK(c.weight_decay == 0 && !c.nesterov);
    c = accept_optimizer("{\"type\":\"SGD\",\"params\":{\"momentum\":0.9,\"dampening\":0.5,"
                         "\"maximize\":false,\"foreach\":null,\"fused\":true}}");
    CHECK(c.momentum == 0.9 && c.dampening == 0.5);
    accept_optimizer("{\"type\":\"Adam\",\"params\":{\"torch_adam\":true,\"bias_correction\":true,"
                     "\"max_grad_norm\":null,\"capturable\":false,\"differentiable\":false}}");
}

static char *read_file(const char *name)
{
    char path[1000];
    char *text = calloc(1, ZERO_CONFIG_MAX_BYTES);
    int folder = (int)(strrchr(__FILE__, '/') - __FILE__);

    snprintf(path, sizeof path, "%.*s/../data/config/%s", folder, __FILE__, name);
    FILE *from = fopen(path, "r");
    if (from == NULL || fread(text, 1, ZERO_CONFIG_MAX_BYTES - 1, from) == 0) {
        check_failures++;
        fprintf(stderr, "%s cannot be read\n", path);
    }
    if (from != NULL)
        fclose(from);
    return text;
}

/* Configs as people have them. */
static void check_usual(void)
{
    char *text = read_file("finetune_stage2_fp16.json");
    struct zero_config c = accept(text);
    free(text);
    CHECK(c.train_batch == 64 && c.micro_batch == 8 && c.accumulation == 4 && c.stage == 2);
    CHECK(c.param_dtype == ZERO_FP16 && c.loss_scale_dynamic && c.loss_scale_initial == 65536);
    CHECK(c.reduce_bucket_elements == 200000000 && c.overlap_comm && c.weight_decay == 3e-7);

    text = read_file("pretrain_stage3_bf16.json");
    c = accept(text);
    free(text);
    CHECK(c.train_batch == 64 && c.stage == 3 && c.param_dtype == ZERO_BF16);
    CHECK(c.grad_dtype == ZERO_FP32 && c.optimizer == ZERO_ADAMW && c.weight_decay == 0.1);
    CHECK(c.reduce_bucket_elements == 500000000 && c.deadline_ms == 60000);
    CHECK(c.versions_keep == 4 && c.versions_every == 500 && c.max_skipped_steps == 20);

    text = read_file("sgd.json");
    c = accept(text);
    free(text);
    CHECK(c.optimizer == ZERO_SGD && c.nesterov && c.momentum == 0.9 && c.weight_decay == 5e-4);
    CHECK(c.stage == 1 && c.param_dtype == ZERO_BF16 && c.micro_batch == 128);

    text = read_file("static_scale.json");
    c = accept(text);
    free(text);
    CHECK(!c.loss_scale_dynamic && c.loss_scale_initial == 128 && c.amsgrad);
    CHECK(c.gradient_clipping == 0);
}

static void check_explain(void)
{
    static const char text[] =
        "{\"train_batch_size\":8,\n\"zero_optimization\":{\"stage\":1,\n\"contiguous_gradients\":"
        "true,\n\"reduce_bucket_size\":5e8},\n\"optimizer\":{\"type\":\"Adam\"},\n\"fp16\":{"
        "\"enabled\":false,\n\"hysteresis\":2}}";
    static const char *const parts[] = {
        "world = 2   (zerod --world)\n",
        "train_batch_size = 8   (line 1)\n",
        "per_gpu = 4   (inferred from train_batch_size / (gradient_accumulation_steps x world))",
        "gradient_accumulation_steps = 1   (default)\n",
        "communication_data_type = fp32   (inferred from the dtype of the parameters)\n",
        "zero_optimization.stage = 1   (line 2)\n",
        "optimizer.type = AdamW   (line 5: \"Adam\", with adam_w_mode true)\n",
        "optimizer.params.adam_w_mode = true   (default)\n",
        "optimizer.params.lr = 0.001",
        "optimizer.params.weight_decay = 0   (default of Adam)\n",
        "fp16.enabled = false   (line 6)\n",
        "\nno effect here:\n",
        "zero_optimization.contiguous_gradients   (line 3): ",
        "zero_optimization.reduce_bucket_size   (line 4): gradient windows are bounded at stages",
        "fp16.hysteresis   (line 7): fp16 is not enabled\n",
    };
    char *explained = NULL;

    zero_status s = zero_config_explain(text, strlen(text), 2, &explained, &detail);
    CHECK(!zero_failed(s) && explained != NULL);
    for (size_t i = 0; explained != NULL && i < sizeof parts / sizeof *parts; i++)
        CHECK_CONTAINS(explained, parts[i]);
    free(explained);
    explained = NULL;
    s = zero_config_explain("{}", 2, 2, &explained, &detail);
    CHECK(s.code == ZERO_CONFIG && explained == NULL);
}

static char *text_of(const char *json)
{
    struct zero_config config = accept(json);
    char *text = zero_config_text(&config);

    CHECK(text != NULL);
    return text ? text : calloc(1, 1);
}

static void check_same(const char *one, const char *other, bool same)
{
    char *a = text_of(one), *b = text_of(other);

    if ((strcmp(a, b) == 0) != same) {
        check_failures++;
        fprintf(stderr, "%s and\n%s are %s:\n%s", one, other, same ? "not equal" : "equal", a);
    }
    free(a);
    free(b);
}

static void check_texts(void)
{
    char *text = text_of("{" PLAIN ",\"gradient_clipping\":0.1}");

    CHECK_CONTAINS(text, "world = 2\ntrain_batch_size = 8\n");
    CHECK_CONTAINS(text, "gradient_clipping = 0.1\n");
    CHECK(strstr(text, "line") == NULL && strstr(text, "default") == NULL);
    free(text);
    check_same("{" PLAIN "}", "{\"train_micro_batch_size_per_gpu\":4.0,\n" ADAMW "}", true);
    check_same("{" PLAIN "}", "{" PLAIN ",\"zero_optimization\":{\"reduce_bucket_size\":5}}", true);
    check_same("{" PLAIN "}", "{" PLAIN ",\"fp16\":{\"hysteresis\":7}}", true);
    check_same("{" PLAIN ",\"bf16\":{\"enabled\":true}}",
               "{" PLAIN ",\"bfloat16\":{\"enabled\":true}}", true);
    check_same("{" PLAIN "}",
               "{\"train_batch_size\":8,\"optimizer\":{\"type\":\"Adam\",\"params\":{"
               "\"weight_decay\":0.01}}}",
               true);
    check_same("{" PLAIN "}", "{\"train_batch_size\":8,\"optimizer\":{\"type\":\"Adam\"}}", false);
    check_same("{" PLAIN "}",
               "{\"train_batch_size\":8,\"optimizer\":{\"type\":\"SGD\",\"params\":{"
               "\"weight_decay\":0.01}}}",
               false);
    check_same("{" PLAIN "}", "{" PLAIN ",\"gradient_clipping\":1.0000000000000002}", false);
    check_same("{" PLAIN "}", "{" PLAIN ",\"zerod\":{\"max_skipped_steps\":1}}", false);
    check_same("{" PLAIN ",\"fp16\":{\"enabled\":true}}",
               "{" PLAIN ",\"fp16\":{\"enabled\":true,\"loss_scale\":65536}}", false);
    check_same("{" PLAIN ",\"zero_optimization\":{\"stage\":2}}",
               "{" PLAIN ",\"zero_optimization\":{\"stage\":2,\"reduce_bucket_size\":5}}", false);
}

/* Every row's default is JSON, no path is there twice, and none is a section too. */
static void check_table(void)
{
    for (size_t i = 0; i < CONFIG_ROWS; i++) {
        struct json *json = NULL;
        const struct config_row *row = &config_rows[i];
        size_t bytes = strlen(row->path);
        if (row->kind != ROW_OFF && row->value != NULL)
            CHECK(!zero_failed(json_parse(row->value, strlen(row->value), &json, &detail)));
        json_free(json);
        CHECK(row->kind != ROW_ONLY || row->value != NULL);
        for (size_t k = 0; k < CONFIG_ROWS; k++) {
            CHECK(k == i || strcmp(config_rows[k].path, row->path) != 0);
            CHECK(strncmp(config_rows[k].path, row->path, bytes) != 0 ||
                  config_rows[k].path[bytes] != '.');
        }
        CHECK(row->help != NULL && row->help[0] != '\0');
    }
}

int main(void)
{
    check_batches();
    check_defaults();
    check_optimizers();
    check_usual();
    check_explain();
    check_texts();
    check_table();
    return check_done();
}
