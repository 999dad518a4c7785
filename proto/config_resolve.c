/* SPDX-License-Identifier: MIT */
/* What the keys mean together: the batch triangle, precision, optimizer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "proto/config_keys.h"

#define VALUE(name) (&values->of[CONFIG_##name])

/* ---- batch
 * --------------------------------------------------------------------------------------- */

struct batch {
    uint64_t train, micro, accumulation, world;
    bool train_known, micro_known, accumulation_known;
};

/* Shows all three numbers and where each comes from: none is ever rounded. */
static zero_status refuse_batch(const struct config_values *values, const struct batch *b,
                                const char *why, struct zero_detail *detail)
{
    char parts[3][96];
    const struct config_value *given[3] = { VALUE(train_batch), VALUE(micro_batch),
                                            VALUE(accumulation) };
    const uint64_t numbers[3] = { b->train, b->micro, b->accumulation };
    const bool known[3] = { b->train_known, b->micro_known, b->accumulation_known };
    unsigned line = 1;

    for (int i = 0; i < 3; i++) {
        if (given[i]->set) {
            snprintf(parts[i], sizeof parts[i], "%" PRIu64 " (line %u)", numbers[i],
                     given[i]->line);
            line = given[i]->line;
        } else if (known[i]) {
            snprintf(parts[i], sizeof parts[i], "%" PRIu64 " (inferred)", numbers[i]);
        } else {
            snprintf(parts[i], sizeof parts[i], "unknown (not given)");
        }
    }
    return config_refuse(
        detail, ZERO_CONFIG,
        "line %u: %s: train_batch_size %s, train_micro_batch_size_per_gpu %s, "
        "gradient_accumulation_steps %s, world size %" PRIu64
        " (zerod --world); train_batch_size must be the product of the other three",
        line, why, parts[0], parts[1], parts[2], b->world);
}

/* Infers what is not given, where it divides. */
static zero_status infer_batch(const struct config_values *values, struct batch *b,
                               struct zero_detail *detail)
{
    if (!b->train_known && !b->micro_known)
        return refuse_batch(values, b,
                            "train_batch_size or train_micro_batch_size_per_gpu is needed", detail);
    if (!b->accumulation_known && !(b->train_known && b->micro_known)) {
        b->accumulation = 1;
        b->accumulation_known = true;
    }
    if (!b->train_known) {
        b->train = b->micro * b->accumulation * b->world;
        b->train_known = true;
        return zero_success();
    }
    uint64_t others = (b->micro_known ? b->micro : b->accumulation) * b->world;
    if (b->micro_known && b->accumulation_known)
        return zero_success();
    if (b->train % others != 0)
        return refuse_batch(values, b, "the batch does not divide", detail);
    if (b->micro_known)
        b->accumulation = b->train / others;
    else
        b->micro = b->train / others;
    b->micro_known = b->accumulation_known = true;
    return zero_success();
}

static zero_status resolve_batch(const struct config_values *values, struct zero_config *out,
                                 struct zero_detail *detail)
{
    struct batch b = { .train = (uint64_t)VALUE(train_batch)->number,
                       .micro = (uint64_t)VALUE(micro_batch)->number,
                       .accumulation = (uint64_t)VALUE(accumulation)->number,
                       .world = out->world,
                       .train_known = VALUE(train_batch)->set,
                       .micro_known = VALUE(micro_batch)->set,
                       .accumulation_known = VALUE(accumulation)->set };
    zero_status s = infer_batch(values, &b, detail);

    if (zero_failed(s))
        return s;
    if ((double)b.micro * (double)b.accumulation * (double)b.world > 9e18 ||
        b.train != b.micro * b.accumulation * b.world)
        return refuse_batch(values, &b, "the batch does not fit", detail);
    out->train_batch = b.train;
    out->micro_batch = b.micro;
    out->accumulation = b.accumulation;
    return s;
}

/* ---- precision
 * ------------------------------------------------------------------------------------ */

static zero_status resolve_dtype(const struct config_values *values, struct zero_config *out,
                                 struct zero_detail *detail)
{
    const struct config_value *wire = VALUE(communication_data_type);
    bool bf16 = VALUE(bf16)->flag || VALUE(bfloat16)->flag;

    if (VALUE(fp16)->flag && bf16)
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: fp16 and bf16 are both enabled: enable one",
                             VALUE(fp16)->line);
    out->param_dtype = VALUE(fp16)->flag ? ZERO_FP16 : bf16 ? ZERO_BF16 : ZERO_FP32;
    out->grad_dtype = out->param_dtype;
    if (!wire->set)
        return zero_success();
    for (int d = 0; d < ZERO_DTYPES; d++) {
        if (strcmp(wire->text, zero_dtype_name((zero_dtype)d)) == 0) {
            out->grad_dtype = (zero_dtype)d;
            return zero_success();
        }
    }
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: communication_data_type is \"%s\": fp32, bf16 or fp16",
                         wire->line, wire->text);
}

static void resolve_scale(const struct config_values *values, struct zero_config *out)
{
    out->loss_scale_dynamic = VALUE(loss_scale)->number == 0;
    out->loss_scale_initial = out->loss_scale_dynamic
                                  ? ldexp(1, (int)VALUE(initial_scale_power)->number)
                                  : VALUE(loss_scale)->number;
    out->loss_scale_min = VALUE(min_loss_scale)->number;
    out->loss_scale_window = (uint32_t)VALUE(loss_scale_window)->number;
    out->loss_scale_hysteresis = (uint32_t)VALUE(hysteresis)->number;
    out->loss_scale_consecutive = VALUE(consecutive_hysteresis)->flag;
}

/* ---- optimizer
 * ------------------------------------------------------------------------------------ */

static zero_status find_optimizer(const struct config_values *values, struct zero_config *out,
                                  struct zero_detail *detail)
{
    static const struct {
        const char *name;
        enum zero_optimizer optimizer;
    } known[] = { { "Adam", ZERO_ADAM }, { "AdamW", ZERO_ADAMW }, { "SGD", ZERO_SGD } };
    const struct config_value *type = VALUE(optimizer);

    if (!type->set)
        return config_refuse(
            detail, ZERO_CONFIG,
            "the config names no optimizer: add \"optimizer\": {\"type\": \"AdamW\", "
            "\"params\": {\"lr\": ...}}");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(known[i].name, type->text) != 0)
            continue;
        out->optimizer = known[i].optimizer;
        /* DeepSpeed's "Adam" is AdamW unless it says otherwise */
        if (out->optimizer == ZERO_ADAM && VALUE(adam_w_mode)->flag)
            out->optimizer = ZERO_ADAMW;
        return zero_success();
    }
    return config_refuse(detail, ZERO_UNSUPPORTED,
                         "line %u: optimizer.type \"%s\" is not supported: Adam, AdamW or SGD",
                         type->line, type->text);
}

/* A parameter of the other family would do nothing: that is a mistake. */
static zero_status check_family(const struct config_values *values,
                                const struct zero_config *config, struct zero_detail *detail)
{
    static const enum config_name adam[] = { CONFIG_betas, CONFIG_eps, CONFIG_adam_w_mode,
                                             CONFIG_amsgrad };
    static const enum config_name sgd[] = { CONFIG_momentum, CONFIG_dampening, CONFIG_nesterov };
    bool is_sgd = config->optimizer == ZERO_SGD;
    const enum config_name *foreign = is_sgd ? adam : sgd;
    size_t count = is_sgd ? sizeof adam / sizeof *adam : sizeof sgd / sizeof *sgd;

    for (size_t i = 0; i < config_row_count; i++)
        for (size_t f = 0; f < count; f++)
            if (config_rows[i].kind == ROW_KEY && config_rows[i].name == foreign[f] &&
                values->of[foreign[f]].set)
                return config_refuse(detail, ZERO_CONFIG, "line %u: %s is not a parameter of %s",
                                     values->of[foreign[f]].line, config_rows[i].path,
                                     is_sgd ? "SGD" : "Adam");
    if (config->nesterov && (config->momentum == 0 || config->dampening != 0))
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: nesterov needs momentum above 0 and dampening 0",
                             VALUE(nesterov)->line);
    return zero_success();
}

static zero_status resolve_optimizer(const struct config_values *values, struct zero_config *out,
                                     struct zero_detail *detail)
{
    zero_status s = find_optimizer(values, out, detail);

    if (zero_failed(s))
        return s;
    out->lr = VALUE(lr)->number;
    out->beta1 = VALUE(betas)->number;
    out->beta2 = VALUE(betas)->second;
    out->eps = VALUE(eps)->number;
    bool named_adamw = strcasecmp(VALUE(optimizer)->text, "AdamW") == 0;
    out->weight_decay = VALUE(weight_decay)->set ? VALUE(weight_decay)->number
                        : named_adamw            ? 0.01
                                                 : 0;
    out->momentum = VALUE(momentum)->number;
    out->dampening = VALUE(dampening)->number;
    out->nesterov = VALUE(nesterov)->flag;
    out->amsgrad = VALUE(amsgrad)->flag;
    return check_family(values, out, detail);
}

/* ---- all
 * ----------------------------------------------------------------------------------------- */

zero_status config_resolve(const struct config_values *values, uint32_t world,
                           struct zero_config *out, struct zero_detail *detail)
{
    struct zero_config config = { .world = world };
    double clip = VALUE(gradient_clipping)->number;

    zero_status s = resolve_batch(values, &config, detail);
    if (!zero_failed(s))
        s = resolve_dtype(values, &config, detail);
    if (!zero_failed(s))
        s = resolve_optimizer(values, &config, detail);
    if (zero_failed(s))
        return s;
    resolve_scale(values, &config);
    config.stage = (uint32_t)VALUE(stage)->number;
    config.gradient_clipping = clip > 0 ? clip : 0;
    config.reduce_bucket_elements = (uint64_t)VALUE(reduce_bucket)->number;
    config.overlap_comm = VALUE(overlap_comm)->set ? VALUE(overlap_comm)->flag : config.stage == 3;
    config.deadline_ms = (uint32_t)ceil(VALUE(wait_timeout)->number * 1000);
    config.observer_hold_ms = (uint32_t)VALUE(observer_hold)->number;
    config.max_skipped_steps = (uint32_t)VALUE(max_skipped)->number;
    *out = config;
    return s;
}

zero_status zero_config_parse(const char *text, size_t bytes, uint32_t world,
                              struct zero_config *out, struct zero_detail *out_detail)
{
    struct config_values values;
    zero_status s = config_read(text, bytes, &values, out_detail);

    return zero_failed(s) ? s : config_resolve(&values, world, out, out_detail);
}
