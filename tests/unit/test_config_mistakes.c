/* SPDX-License-Identifier: MIT */
/* Every mistake in a config is refused with its code, line, path and what to write instead. */
#include <stdlib.h>

#include "proto/config.h"
#include "tests/unit/check.h"

#define ADAMW "\"optimizer\":{\"type\":\"AdamW\"}"
#define PLAIN "\"train_batch_size\":8," ADAMW
/* a config that is right but for more keys */
#define WITH(keys) "{" PLAIN ",\n" keys "}"
#define ZERO(keys) WITH("\"zero_optimization\":{" keys "}")
#define FP16(keys) WITH("\"fp16\":{\"enabled\":true," keys "}")
#define OPTIMIZER(type, params) \
    "{\"train_batch_size\":8,\n\"optimizer\":{\"type\":\"" type "\",\n\"params\":{" params "}}}"

struct mistake {
    const char *text;
    zero_code code;
    const char *parts[3];
};

/* ---- the text ---- */

static const struct mistake texts[] = {
    { "", ZERO_CONFIG, { "line 1: the text is empty" } },
    { "{\n\"train_batch_size\": 8,\n}", ZERO_CONFIG, { "line 3, column 1: a comma before }" } },
    { "{\"train_batch_size\": 8 // a comment\n}", ZERO_CONFIG, { "line 1", "comment" } },
    { "{\"train_batch_size\": 8} {}", ZERO_CONFIG, { "line 1, column 25: trailing" } },
    { "\xef\xbb\xbf{\"train_batch_size\": 8}", ZERO_CONFIG, { "byte order mark" } },
    { "{\"train_batch_size\": NaN}", ZERO_CONFIG, { "line 1, column 22", "no NaN" } },
    { "{\"train_batch_size\": -Infinity}", ZERO_CONFIG, { "line 1, column 2" } },
    { "[1, 2]", ZERO_CONFIG, { "line 1: a config is an object, not a list" } },
    { "3", ZERO_CONFIG, { "line 1: a config is an object, not a number" } },
    { "{\"train_batch_size\": 8,\n\"train_batch_size\": 8}",
      ZERO_CONFIG,
      { "line 2: \"train_batch_size\" is given again; it is on line 1 already" } },
    { "{\"optimizer\": {\"type\": \"SGD\",\n \"type\": \"Adam\"}}",
      ZERO_CONFIG,
      { "line 2: \"type\" is given again; it is on line 1" } },
    { "{\"train_batch_size\": 8, \"x\\u0000y\": 1}", ZERO_CONFIG, { "line 1", "\\u0000" } },
    { "{\"train_batch_size\": 8, \"\xff\": 1}", ZERO_CONFIG, { "line 1, column 26", "UTF-8" } },
    { "{\"train_batch_size\": 1e999}", ZERO_CONFIG, { "line 1: 1e999 is too large" } },
};

/* ---- which key ---- */

static const struct mistake keys[] = {
    { WITH("\n\"optmizer\":{}"),
      ZERO_CONFIG,
      { "line 3: the key optmizer is unknown", "is optimizer" } },
    { WITH("\"zero_optimisation\":{}"),
      ZERO_CONFIG,
      { "line 2", "nearest known one is zero_optimization" } },
    { WITH("\"zero_optimization\":{\n\"stge\":1}"),
      ZERO_CONFIG,
      { "line 3: the key zero_optimization.stge", "is zero_optimization.stage" } },
    { WITH("\"stage\":1"), ZERO_CONFIG, { "the key stage is", "is zero_optimization.stage" } },
    { WITH("\"betas\":[0,0]"), ZERO_CONFIG, { "is optimizer.params.betas" } },
    { WITH("\"zerod\":{\"wait_timeout\":1}"),
      ZERO_CONFIG,
      { "zerod.wait_timeout is unknown", "is zerod.wait_timeout_seconds" } },
    { ZERO("\"offload_optimizer\":{\"devcie\":\"none\"}"),
      ZERO_CONFIG,
      { "zero_optimization.offload_optimizer.devcie", "offload_optimizer.device" } },
    { OPTIMIZER("AdamW", "\"beta\":[0.9,0.99]"),
      ZERO_CONFIG,
      { "line 3", "is optimizer.params.betas" } },
    { WITH("\"flops_profiler\":{\"enabled\":false,\"profile_stop\":1}"),
      ZERO_CONFIG,
      { "flops_profiler.profile_stop is unknown", "profile_step" } },
    { WITH("\"zero_optimization.stage\":1"),
      ZERO_CONFIG,
      { "\"zero_optimization.stage\" is unknown: sections are nested" } },
    { WITH("\"\":1"), ZERO_CONFIG, { "line 2", "is unknown" } },
    { WITH("\"fp16\":{\"\":1}"), ZERO_CONFIG, { "line 2", "is unknown" } },
    { WITH("\"\\u00e9t\\u00e9\":1"), ZERO_CONFIG, { "line 2: the key ??t?? is unknown" } },
};

/* ---- types and ranges ---- */

static const struct mistake values[] = {
    { WITH("\"zerod\":{\"checkpoint\":{\"dir\":\"here\"}}"),
      ZERO_CONFIG,
      { "line 2: zerod.checkpoint.dir must be an absolute path" } },
    { WITH("\"zerod\":{\"checkpoint\":{\"every_steps\":5}}"),
      ZERO_CONFIG,
      { "periodic checkpoints need a folder" } },
    { WITH("\"zerod\":{\"checkpoint\":{\"dir\":\"/a\\nb\"}}"),
      ZERO_CONFIG,
      { "line 2: a text has a control character in it" } },
    { OPTIMIZER("Adam", "\"eps\":1e-50"), ZERO_CONFIG, { "line 3", "eps 1e-50 is 0 in fp32" } },
    { "{\"train_batch_size\": \"8\"}",
      ZERO_CONFIG,
      { "line 1: train_batch_size must be a whole number, not a text: write it without quotes" } },
    { "{\"train_batch_size\": 8.5}", ZERO_CONFIG, { "must be a whole number, not 8.5" } },
    { "{\"train_batch_size\": 0}",
      ZERO_CONFIG,
      { "train_batch_size is 0: it must be at least 1 and at most 1000000000" } },
    { "{\"train_batch_size\": -8}", ZERO_CONFIG, { "train_batch_size is -8: it must be" } },
    { "{\"train_batch_size\": 1e10}", ZERO_CONFIG, { "train_batch_size is 1e10: it must be" } },
    { "{\"train_micro_batch_size_per_gpu\": 0}", ZERO_CONFIG, { "at least 1" } },
    { "{\"gradient_accumulation_steps\": 0}", ZERO_CONFIG, { "at least 1" } },
    { WITH("\"gradient_clipping\":true"), ZERO_CONFIG, { "a number, not true or false" } },
    { WITH("\"gradient_clipping\":null"), ZERO_CONFIG, { "not null: leave the key out" } },
    { ZERO("\"stage\":4"), ZERO_CONFIG, { "stage is 4: it must be at least 0 and at most 3" } },
    { ZERO("\"stage\":true"), ZERO_CONFIG, { "stage must be a whole number" } },
    { ZERO("\"overlap_comm\":1"), ZERO_CONFIG, { "overlap_comm must be true or false, not 1" } },
    { ZERO("\"contiguous_gradients\":\"yes\""),
      ZERO_CONFIG,
      { "must be true or false, not a text" } },
    { ZERO("\"reduce_bucket_size\":0"), ZERO_CONFIG, { "at least 1" } },
    { WITH("\"zero_optimization\":3"), ZERO_CONFIG, { "must be an object, not a number" } },
    { WITH("\"bf16\":true"), ZERO_CONFIG, { "bf16 must be an object" } },
    { WITH("\"fp16\":[]"), ZERO_CONFIG, { "fp16 must be an object, not a list" } },
    { OPTIMIZER("Adam", "\"betas\":[0.9]"),
      ZERO_CONFIG,
      { "line 3", "two numbers, as in [0.9, 0.999]" } },
    { OPTIMIZER("Adam", "\"betas\":[0.9,0.9,0.9]"), ZERO_CONFIG, { "two numbers" } },
    { OPTIMIZER("Adam", "\"betas\":[0.9,\"auto\"]"), ZERO_CONFIG, { "two numbers" } },
    { OPTIMIZER("Adam", "\"betas\":[0.9,1.0]"),
      ZERO_CONFIG,
      { "betas is 1.0: it must be at least 0 and below 1" } },
    { OPTIMIZER("Adam", "\"betas\":[-0.1,0.9]"), ZERO_CONFIG, { "betas is -0.1" } },
    { OPTIMIZER("Adam", "\"lr\":-1"), ZERO_CONFIG, { "optimizer.params.lr is -1" } },
    { OPTIMIZER("Adam", "\"lr\":null"),
      ZERO_CONFIG,
      { "optimizer.params.lr must be a number, not null" } },
    { OPTIMIZER("Adam", "\"eps\":-1e-8"), ZERO_CONFIG, { "optimizer.params.eps is -1e-8" } },
    { OPTIMIZER("Adam", "\"weight_decay\":-0.1"), ZERO_CONFIG, { "weight_decay is -0.1" } },
    { OPTIMIZER("SGD", "\"momentum\":-0.9"), ZERO_CONFIG, { "momentum is -0.9" } },
    { FP16("\"loss_scale\":-1"), ZERO_CONFIG, { "fp16.loss_scale is -1" } },
    { FP16("\"loss_scale\":true"), ZERO_CONFIG, { "fp16.loss_scale must be a number" } },
    { FP16("\"loss_scale_window\":0"), ZERO_CONFIG, { "fp16.loss_scale_window is 0" } },
    { FP16("\"min_loss_scale\":0"),
      ZERO_CONFIG,
      { "fp16.min_loss_scale is 0: it must be above 0" } },
    { FP16("\"hysteresis\":0"), ZERO_CONFIG, { "fp16.hysteresis is 0" } },
    { FP16("\"initial_scale_power\":101"), ZERO_CONFIG, { "initial_scale_power is 101" } },
    { WITH("\"zerod\":{\"wait_timeout_seconds\":0}"),
      ZERO_CONFIG,
      { "wait_timeout_seconds is 0" } },
    { WITH("\"zerod\":{\"max_skipped_steps\":-1}"), ZERO_CONFIG, { "max_skipped_steps is -1" } },
};

/* ---- "auto" ---- */

static const struct mistake autos[] = {
    { "{\"train_batch_size\": \"auto\"}",
      ZERO_CONFIG,
      { "line 1: train_batch_size is \"auto\": write its value" } },
    { "{\"train_micro_batch_size_per_gpu\": \"auto\"}", ZERO_CONFIG, { "is \"auto\"" } },
    { WITH("\"gradient_accumulation_steps\":\"auto\""), ZERO_CONFIG, { "line 2", "is \"auto\"" } },
    { WITH("\"fp16\":{\"enabled\":\"auto\"}"), ZERO_CONFIG, { "fp16.enabled is \"auto\"" } },
    { WITH("\"fp16\":\"auto\""), ZERO_CONFIG, { "fp16 is \"auto\"" } },
    { ZERO("\"reduce_bucket_size\":\"auto\""), ZERO_CONFIG, { "reduce_bucket_size is \"auto\"" } },
    { ZERO("\"stage3_prefetch_bucket_size\":\"auto\""), ZERO_CONFIG, { "is \"auto\"" } },
    { OPTIMIZER("auto", ""), ZERO_CONFIG, { "line 2: optimizer.type is \"auto\"" } },
    { OPTIMIZER("AdamW", "\"lr\":\"auto\""), ZERO_CONFIG, { "optimizer.params.lr is \"auto\"" } },
    { WITH("\"tensorboard\":{\"enabled\":\"auto\"}"),
      ZERO_CONFIG,
      { "tensorboard.enabled is \"auto\"" } },
    { WITH("\"scheduler\":\"auto\""), ZERO_CONFIG, { "scheduler is \"auto\"" } },
};

/* ---- keys that do not go together ---- */

static const struct mistake conflicts[] = {
    { "{\"train_batch_size\": 8}",
      ZERO_CONFIG,
      { "optimizer.type is missing: add \"optimizer\"" } },
    { "{\"train_batch_size\": 8, \"optimizer\": {}}",
      ZERO_CONFIG,
      { "optimizer.type is missing" } },
    { OPTIMIZER("AdamW", "\"momentum\":0.9"),
      ZERO_CONFIG,
      { "line 3", "momentum is not a parameter of AdamW" } },
    { OPTIMIZER("SGD", "\"betas\":[0,0]"), ZERO_CONFIG, { "betas is not a parameter of SGD" } },
    { OPTIMIZER("SGD", "\"amsgrad\":false"), ZERO_CONFIG, { "amsgrad is not a parameter of SGD" } },
    { OPTIMIZER("SGD", "\"adam_w_mode\":true"), ZERO_CONFIG, { "adam_w_mode is not a parameter" } },
    { OPTIMIZER("SGD", "\"nesterov\":true"), ZERO_CONFIG, { "line 3: nesterov needs momentum" } },
    { OPTIMIZER("SGD", "\"nesterov\":true,\"momentum\":0.9,\"dampening\":0.1"),
      ZERO_CONFIG,
      { "nesterov needs momentum above 0 and dampening 0" } },
    { OPTIMIZER("AdamW", "\"adam_w_mode\":false"),
      ZERO_CONFIG,
      { "line 3: optimizer.params.adam_w_mode false contradicts", "AdamW (line 2)" } },
    { WITH("\"fp16\":{\"enabled\":true},\n\"bf16\":{\"enabled\":true}"),
      ZERO_CONFIG,
      { "line 2: fp16 and bf16 (line 3) are both enabled" } },
    { WITH("\"bf16\":{\"enabled\":true},\n\"bfloat16\":{\"enabled\":true}"),
      ZERO_CONFIG,
      { "line 2: bf16 and bfloat16 (line 3) are both given" } },
    { ZERO("\"cpu_offload\":false,\"offload_optimizer\":{\"device\":\"none\"}"),
      ZERO_CONFIG,
      { "old name" } },
    { FP16("\"initial_scale_power\":2,\"min_loss_scale\":8"),
      ZERO_CONFIG,
      { "fp16.min_loss_scale 8 is above the first loss scale" } },
    { WITH("\"communication_data_type\":\"fp8\""),
      ZERO_CONFIG,
      { "line 2: communication_data_type is \"fp8\": it must be fp32, bf16 or fp16" } },
};

/* ---- what DeepSpeed has and zerod has not ---- */

static const struct mistake unsupported[] = {
    { OPTIMIZER("Lamb", ""),
      ZERO_UNSUPPORTED,
      { "line 2: optimizer.type \"Lamb\"", "Adam, AdamW or SGD" } },
    { OPTIMIZER("OneBitAdam", "\"freeze_step\":400,\"cuda_aware\":false"),
      ZERO_UNSUPPORTED,
      { "\"OneBitAdam\" is not supported" } },
    { OPTIMIZER("AdamW", "\"max_grad_norm\":1.0"),
      ZERO_UNSUPPORTED,
      { "line 3", "use gradient_clipping" } },
    { OPTIMIZER("AdamW", "\"bias_correction\":false"),
      ZERO_UNSUPPORTED,
      { "bias_correction", "as true only" } },
    { OPTIMIZER("AdamW", "\"maximize\":true"), ZERO_UNSUPPORTED, { "optimizer.params.maximize" } },
    { WITH("\"gradient_allreduce_op\":\"sum\""),
      ZERO_UNSUPPORTED,
      { "line 2", "as \"mean\" only" } },
    { WITH("\"data_types\":{\"grad_accum_dtype\":\"bf16\"}"),
      ZERO_UNSUPPORTED,
      { "accumulated in fp32" } },
    { WITH("\"sparse_gradients\":true"), ZERO_UNSUPPORTED, { "sparse_gradients" } },
    { FP16("\"fp16_master_weights_and_grads\":true"),
      ZERO_UNSUPPORTED,
      { "master weights are fp32" } },
    { WITH("\"bf16\":{\"check_grad_overflow\":false}"),
      ZERO_UNSUPPORTED,
      { "in every precision" } },
    { ZERO("\"offload_optimizer\":{\"device\":\"cpu\"}"),
      ZERO_UNSUPPORTED,
      { "line 2: zero_optimization.offload_optimizer.device", "as \"none\" only" } },
    { ZERO("\"offload_param\":{\"device\":\"nvme\"}"),
      ZERO_UNSUPPORTED,
      { "offload_param.device" } },
    { ZERO("\"cpu_offload\":true"), ZERO_UNSUPPORTED, { "zero_optimization.cpu_offload" } },
    { ZERO("\"zero_quantized_weights\":true"),
      ZERO_UNSUPPORTED,
      { "ZeRO++ is not supported yet" } },
    { ZERO("\"zero_hpz_partition_size\":8"), ZERO_UNSUPPORTED, { "as 1 only" } },
    { ZERO("\"zeropp_loco_param\":{\"err_beta\":0.8}"), ZERO_UNSUPPORTED, { "zeropp_loco_param" } },
    { ZERO("\"mics_shard_size\":2"), ZERO_UNSUPPORTED, { "MiCS" } },
    { ZERO("\"zenflow\":{\"topk_ratio\":0.1,\"select_interval\":\"auto\"}"),
      ZERO_UNSUPPORTED,
      { "ZenFlow" } },
    { ZERO("\"ignore_unused_parameters\":false"), ZERO_UNSUPPORTED, { "counts as zero" } },
    { WITH("\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{}}"),
      ZERO_UNSUPPORTED,
      { "line 2: scheduler is known to DeepSpeed", "zero_step", "remove it" } },
    { WITH("\"tensorboard\":{\"enabled\":true}"), ZERO_UNSUPPORTED, { "set \"enabled\": false" } },
    { WITH("\"activation_checkpointing\":{\"cpu_checkpointing\":true}"),
      ZERO_UNSUPPORTED,
      { "is the trainer's" } },
    { WITH("\"elasticity\":{\"enabled\":true}"), ZERO_UNSUPPORTED, { "elasticity" } },
    { WITH("\"amp\":{\"enabled\":true,\"opt_level\":\"O1\"}"),
      ZERO_UNSUPPORTED,
      { "use fp16 or bf16" } },
    { WITH("\"sparse_attention\":{\"mode\":\"fixed\"}"), ZERO_UNSUPPORTED, { "sparse_attention" } },
    { WITH("\"checkpoint\":{\"load_universal\":true}"), ZERO_UNSUPPORTED, { "checkpoints" } },
    { WITH("\"sequence_parallel_size\":2"), ZERO_UNSUPPORTED, { "sequence_parallel_size" } },
    { WITH("\"zerod\":{\"device\":\"cuda\"}"), ZERO_UNSUPPORTED, { "zerod.device", "\"cpu\"" } },
    { WITH("\"zerod\":{\"comm\":\"nccl\"}"), ZERO_UNSUPPORTED, { "zerod.comm", "\"shm\"" } },
};

static void check(const struct mistake *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const struct mistake *m = &list[i];
        struct zero_config config = { .world = 77 };
        struct zero_detail detail = { "" };
        char *text = NULL;
        zero_status s = zero_config_parse(m->text, strlen(m->text), 2, &config, &detail);
        if (s.code != m->code)
            fprintf(stderr, "%s\n  gave %s: %s\n", m->text, zero_code_name(s.code), detail.text);
        CHECK(s.code == m->code);
        CHECK(config.world == 77); /* written on success only */
        for (int p = 0; p < 3 && m->parts[p] != NULL; p++)
            CHECK_CONTAINS(detail.text, m->parts[p]);
        CHECK(zero_config_explain(m->text, strlen(m->text), 2, &text, &detail).code == m->code);
        CHECK(text == NULL);
    }
}

#define CHECK_LIST(list) check(list, sizeof(list) / sizeof *(list))

static void check_size(void)
{
    char *text = malloc(ZERO_CONFIG_MAX_BYTES + 1);
    struct zero_config config;
    struct zero_detail detail;
    static const char json[] = "{" PLAIN "}";

    memset(text, ' ', ZERO_CONFIG_MAX_BYTES + 1);
    memcpy(text, json, sizeof json - 1);
    CHECK(!zero_failed(zero_config_parse(text, ZERO_CONFIG_MAX_BYTES, 2, &config, &detail)));
    CHECK(zero_config_parse(text, ZERO_CONFIG_MAX_BYTES + 1, 2, &config, &detail).code ==
          ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "61441 bytes, at most 61440");
    int bytes = snprintf(text, ZERO_CONFIG_MAX_BYTES, "{\"%060000d\":1}", 7);
    CHECK(zero_config_parse(text, (size_t)bytes, 2, &config, &detail).code == ZERO_CONFIG);
    CHECK_CONTAINS(detail.text, "line 1: the key \"0000");
    free(text);
}

int main(void)
{
    CHECK_LIST(texts);
    CHECK_LIST(keys);
    CHECK_LIST(values);
    CHECK_LIST(autos);
    CHECK_LIST(conflicts);
    CHECK_LIST(unsupported);
    check_size();
    return check_done();
}
