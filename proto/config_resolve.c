/* SPDX-License-Identifier: MIT */
/* What the keys mean together: the batch triangle, precision, optimizer. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "proto/config_keys.h"

#define VALUE(name) (&values->of[CONFIG_##name])
#define GIVEN(name) config_given(values, CONFIG_##name)

/* ---- batch ---- */

struct batch {
    uint64_t train, micro, accumulation, world;
};

/* Shows all three numbers and where each comes from: what was inferred says so. */
static zero_status refuse_batch(const struct config_values *values, const struct batch *b,
                                struct zero_detail *detail)
{
    static const char rounded[] = " (inferred, rounded down)";
    const char *micro = GIVEN(micro_batch) ? "" : rounded;
    const char *accumulation = GIVEN(accumulation)  ? ""
                               : GIVEN(micro_batch) ? rounded
                                                    : " (default)";

    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: train_batch_size %" PRIu64
                         " is not train_micro_batch_size_per_gpu %" PRIu64
                         "%s x gradient_accumulation_steps %" PRIu64 "%s x world size %" PRIu64
                         " (-n or --world): change one so that the product is exact",
                         VALUE(train_batch)->line, b->train, b->micro, micro, b->accumulation,
                         accumulation, b->world);
}

static zero_status refuse_no_batch(const struct config_values *values, struct zero_detail *detail)
{
    static const char add[] = "add train_batch_size (samples of a step, over all ranks) or "
                              "train_micro_batch_size_per_gpu";

    if (!GIVEN(accumulation))
        return config_refuse(detail, ZERO_CONFIG, "the batch size is missing: %s", add);
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: gradient_accumulation_steps alone does not say the batch size: "
                         "%s",
                         VALUE(accumulation)->line, add);
}

/* What is not given. Two factors fit in 64 bits: a batch has at most 1e9, a world 2^32. */
static void infer_batch(const struct config_values *values, struct batch *b)
{
    if (!GIVEN(accumulation))
        b->accumulation =
            GIVEN(train_batch) && GIVEN(micro_batch) ? b->train / (b->micro * b->world) : 1;
    if (!GIVEN(micro_batch))
        b->micro = b->train / (b->accumulation * b->world);
    if (!GIVEN(train_batch))
        b->train = b->micro * b->accumulation * b->world;
}

static zero_status resolve_batch(const struct config_values *values, struct zero_config *out,
                                 struct zero_detail *detail)
{
    struct batch b = { .train = (uint64_t)VALUE(train_batch)->number,
                       .micro = (uint64_t)VALUE(micro_batch)->number,
                       .accumulation = (uint64_t)VALUE(accumulation)->number,
                       .world = out->world };

    if (!GIVEN(train_batch) && !GIVEN(micro_batch))
        return refuse_no_batch(values, detail);
    infer_batch(values, &b);
    bool overflows = (double)b.micro * (double)b.accumulation * (double)b.world > 1e18;
    if (!GIVEN(train_batch) && overflows)
        return config_refuse(detail, ZERO_TOO_LARGE,
                             "line %u: train_micro_batch_size_per_gpu %" PRIu64
                             " x gradient_accumulation_steps %" PRIu64 " x world size %" PRIu64
                             " (-n or --world) is more than 1e18",
                             VALUE(micro_batch)->line, b.micro, b.accumulation, b.world);
    if (overflows || b.train != b.micro * b.accumulation * b.world)
        return refuse_batch(values, &b, detail);
    out->train_batch = b.train;
    out->micro_batch = b.micro;
    out->accumulation = b.accumulation;
    return zero_success();
}

/* ---- precision ---- */

static zero_status resolve_dtype(const struct config_values *values, struct zero_config *out,
                                 struct zero_detail *detail)
{
    const struct config_value *wire = VALUE(communication_data_type);
    bool bf16 = VALUE(bf16)->flag || VALUE(bfloat16)->flag;

    if (VALUE(fp16)->flag && bf16)
        return config_refuse(
            detail, ZERO_CONFIG, "line %u: fp16 and bf16 (line %u) are both enabled: enable one",
            VALUE(fp16)->line, GIVEN(bf16) ? VALUE(bf16)->line : VALUE(bfloat16)->line);
    out->param_dtype = VALUE(fp16)->flag ? ZERO_FP16 : bf16 ? ZERO_BF16 : ZERO_FP32;
    out->grad_dtype = out->param_dtype;
    if (wire->line == 0)
        return zero_success();
    for (int d = 0; d < ZERO_DTYPES; d++) {
        if (strcasecmp(wire->text, zero_dtype_name((zero_dtype)d)) == 0) {
            out->grad_dtype = (zero_dtype)d;
            return zero_success();
        }
    }
    return config_refuse(
        detail, ZERO_CONFIG,
        "line %u: communication_data_type is \"%s\": it must be fp32, bf16 or fp16", wire->line,
        wire->text);
}

/* What only fp16 has; equal for all other configs, so that these compare equal. */
static zero_status resolve_scale(const struct config_values *values, struct zero_config *out,
                                 struct zero_detail *detail)
{
    out->loss_scale_initial = out->loss_scale_min = 1;
    out->loss_scale_window = out->loss_scale_hysteresis = 1;
    if (out->param_dtype != ZERO_FP16)
        return zero_success();
    out->loss_scale_dynamic = VALUE(loss_scale)->number == 0;
    if (!out->loss_scale_dynamic) {
        out->loss_scale_initial = out->loss_scale_min = VALUE(loss_scale)->number;
        return zero_success();
    }
    out->loss_scale_initial = ldexp(1, (int)VALUE(initial_scale_power)->number);
    out->loss_scale_min = VALUE(min_loss_scale)->number;
    out->loss_scale_window = (uint32_t)VALUE(loss_scale_window)->number;
    out->loss_scale_hysteresis = (uint32_t)VALUE(hysteresis)->number;
    out->loss_scale_consecutive = VALUE(consecutive_hysteresis)->flag;
    if (out->loss_scale_min <= out->loss_scale_initial)
        return zero_success();
    unsigned line =
        GIVEN(min_loss_scale) ? VALUE(min_loss_scale)->line : VALUE(initial_scale_power)->line;
    return config_refuse(detail, ZERO_CONFIG,
                         "line %u: fp16.min_loss_scale %g is above the first loss scale, 2 to the "
                         "power fp16.initial_scale_power %g: lower the one or raise the other",
                         line, out->loss_scale_min, VALUE(initial_scale_power)->number);
}

/* ---- optimizer ---- */

bool config_find_optimizer(const char *type, enum zero_optimizer *out)
{
    static const struct {
        const char *name;
        enum zero_optimizer optimizer;
    } known[] = { { "Adam", ZERO_ADAM }, { "AdamW", ZERO_ADAMW }, { "SGD", ZERO_SGD } };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(known[i].name, type) == 0) {
            *out = known[i].optimizer;
            return true;
        }
    }
    return false;
}

/* A parameter of the other family would do nothing: that is a mistake. */
static zero_status check_family(const struct config_values *values, const struct zero_config *c,
                                struct zero_detail *detail)
{
    for (size_t i = 0; i < CONFIG_ROWS; i++) {
        const struct config_row *row = &config_rows[i];
        if (row->kind != ROW_KEY || !config_given(values, row->name) ||
            strncmp(row->path, "optimizer.params.", 17) != 0)
            continue;
        const char *why = config_idle(c, row->name);
        if (why != NULL)
            return config_refuse(detail, ZERO_CONFIG, "line %u: %s is not a parameter of %s: %s",
                                 values->of[row->name].line, row->path, VALUE(optimizer)->text,
                                 why);
    }
    if (c->nesterov && (c->momentum == 0 || c->dampening != 0))
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: nesterov needs momentum above 0 and dampening 0",
                             VALUE(nesterov)->line);
    return zero_success();
}

static zero_status resolve_optimizer(const struct config_values *values, struct zero_config *out,
                                     struct zero_detail *detail)
{
    const struct config_value *type = VALUE(optimizer), *mode = VALUE(adam_w_mode);

    if (type->line == 0 || !config_find_optimizer(type->text, &out->optimizer))
        return config_refuse(detail, ZERO_CONFIG,
                             "optimizer.type is missing: add \"optimizer\": {\"type\": \"AdamW\", "
                             "\"params\": {\"lr\": 1e-3}}, or Adam or SGD");
    bool named_adamw = out->optimizer == ZERO_ADAMW;
    if (named_adamw && !mode->flag)
        return config_refuse(detail, ZERO_CONFIG,
                             "line %u: optimizer.params.adam_w_mode false contradicts optimizer."
                             "type AdamW (line %u): write type Adam for decay in the gradient",
                             mode->line, type->line);
    /* DeepSpeed's "Adam" is AdamW unless it says otherwise */
    if (out->optimizer == ZERO_ADAM && mode->flag)
        out->optimizer = ZERO_ADAMW;
    out->lr = VALUE(lr)->number;
    out->weight_decay = GIVEN(weight_decay) ? VALUE(weight_decay)->number : named_adamw ? 0.01 : 0;
    if (out->optimizer == ZERO_SGD) {
        out->momentum = VALUE(momentum)->number;
        out->dampening = VALUE(dampening)->number;
        out->nesterov = VALUE(nesterov)->flag;
    } else {
        out->beta1 = VALUE(betas)->number;
        out->beta2 = VALUE(betas)->second;
        out->eps = VALUE(eps)->number;
        if (out->eps > 0 && (float)out->eps == 0)
            return config_refuse(
                detail, ZERO_CONFIG,
                "line %u: optimizer.params.eps %g is 0 in fp32, in which the update "
                "adds it: write 0, or at least 1e-45",
                VALUE(eps)->line, out->eps);
        out->amsgrad = VALUE(amsgrad)->flag;
    }
    return check_family(values, out, detail);
}

/* ---- all ---- */

const char *config_idle(const struct zero_config *config, enum config_name name)
{
    switch (name) {
    case CONFIG_loss_scale:
    case CONFIG_initial_scale_power:
    case CONFIG_loss_scale_window:
    case CONFIG_hysteresis:
    case CONFIG_consecutive_hysteresis:
    case CONFIG_min_loss_scale:
        if (config->param_dtype != ZERO_FP16)
            return "fp16 is not enabled";
        return config->loss_scale_dynamic || name == CONFIG_loss_scale ? NULL
                                                                       : "the loss scale is static";
    case CONFIG_reduce_bucket:
    case CONFIG_overlap_comm:
        return config->stage >= 2 ? NULL : "gradient windows are bounded at stages 2 and 3 only";
    case CONFIG_betas:
    case CONFIG_eps:
    case CONFIG_adam_w_mode:
    case CONFIG_amsgrad:
        return config->optimizer == ZERO_SGD ? "Adam and AdamW have it" : NULL;
    case CONFIG_momentum:
    case CONFIG_dampening:
    case CONFIG_nesterov:
        return config->optimizer == ZERO_SGD ? NULL : "SGD has it";
    default:
        return NULL;
    }
}

static void resolve_zero(const struct config_values *values, struct zero_config *out)
{
    out->stage = (uint32_t)VALUE(stage)->number;
    if (out->stage < 2)
        return; /* the window holds the whole model: no bound, so that these compare equal */
    out->reduce_bucket_elements = (uint64_t)VALUE(reduce_bucket)->number;
    out->overlap_comm = GIVEN(overlap_comm) ? VALUE(overlap_comm)->flag : out->stage == 3;
}

static zero_status resolve_checkpoint(const struct config_values *values, struct zero_config *out,
                                      struct zero_detail *detail)
{
    const struct config_value *dir = VALUE(checkpoint_dir);
    bool periodic = VALUE(checkpoint_steps)->number > 0 || VALUE(checkpoint_minutes)->number > 0;

    if (dir->text[0] != '\0' && dir->text[0] != '/')
        return config_refuse(
            detail, ZERO_CONFIG,
            "line %u: zerod.checkpoint.dir must be an absolute path, since daemons "
            "and trainers have folders of their own",
            dir->line);
    if (dir->text[0] == '\0' && periodic)
        return config_refuse(detail, ZERO_CONFIG,
                             "periodic checkpoints need a folder: give zerod.checkpoint.dir");
    memcpy(out->checkpoint_dir, dir->text, strlen(dir->text) + 1);
    out->checkpoint_steps = (uint64_t)VALUE(checkpoint_steps)->number;
    out->checkpoint_minutes = VALUE(checkpoint_minutes)->number;
    out->checkpoint_keep = (uint32_t)VALUE(checkpoint_keep)->number;
    return zero_success();
}

zero_status config_resolve(const struct config_values *values, uint32_t world,
                           struct zero_config *out, struct zero_detail *detail)
{
    struct zero_config config = { .world = world };
    double clip = VALUE(gradient_clipping)->number;

    if (world == 0)
        return config_refuse(detail, ZERO_INVALID_ARGUMENT, "the world size is 0");
    zero_status s = resolve_batch(values, &config, detail);
    if (!zero_failed(s))
        s = resolve_dtype(values, &config, detail);
    if (!zero_failed(s))
        s = resolve_scale(values, &config, detail);
    if (!zero_failed(s))
        s = resolve_optimizer(values, &config, detail);
    if (zero_failed(s))
        return s;
    resolve_zero(values, &config);
    config.gradient_clipping = clip > 0 ? clip : 0;
    config.deadline_ms = (uint32_t)ceil(VALUE(wait_timeout)->number * 1000);
    config.max_skipped_steps = (uint32_t)VALUE(max_skipped)->number;
    config.versions_keep = (uint32_t)VALUE(versions_keep)->number;
    config.versions_every = (uint32_t)VALUE(versions_every)->number;
    config.versions_max_bytes = (uint64_t)VALUE(versions_max_bytes)->number;
    s = resolve_checkpoint(values, &config, detail);
    if (!zero_failed(s))
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
