/* SPDX-License-Identifier: MIT */
/* The resolved config as text: for people, with the origin of each value, and for comparing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "proto/config_keys.h"

enum { VALUE_BYTES = CONFIG_MAX_TEXT + 8, DOUBLE_BYTES = 32 };

/* The shortest decimal that is read back as the same double: equal texts are equal numbers. */
static const char *shortest(double value, char *to)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(to, DOUBLE_BYTES, "%.*g", digits, value);
        if (strtod(to, NULL) == value)
            break;
    }
    return to;
}

/* The value of a key that is a number; false for any other. */
static bool format_number(const struct zero_config *c, enum config_name name, char *to)
{
    const struct {
        enum config_name name;
        double value;
    } numbers[] = {
        { CONFIG_train_batch, (double)c->train_batch },
        { CONFIG_micro_batch, (double)c->micro_batch },
        { CONFIG_accumulation, (double)c->accumulation },
        { CONFIG_gradient_clipping, c->gradient_clipping },
        { CONFIG_lr, c->lr },
        { CONFIG_eps, c->eps },
        { CONFIG_weight_decay, c->weight_decay },
        { CONFIG_momentum, c->momentum },
        { CONFIG_dampening, c->dampening },
        { CONFIG_loss_scale, c->loss_scale_dynamic ? 0 : c->loss_scale_initial },
        { CONFIG_min_loss_scale, c->loss_scale_min },
        { CONFIG_loss_scale_window, c->loss_scale_window },
        { CONFIG_hysteresis, c->loss_scale_hysteresis },
        { CONFIG_stage, c->stage },
        { CONFIG_reduce_bucket, (double)c->reduce_bucket_elements },
        { CONFIG_wait_timeout, c->deadline_ms / 1000.0 },
        { CONFIG_max_skipped, c->max_skipped_steps },
        { CONFIG_versions_keep, c->versions_keep },
        { CONFIG_versions_max_bytes, (double)c->versions_max_bytes },
        { CONFIG_versions_every, c->versions_every },
        { CONFIG_checkpoint_steps, (double)c->checkpoint_steps },
        { CONFIG_checkpoint_minutes, c->checkpoint_minutes },
        { CONFIG_checkpoint_keep, c->checkpoint_keep },
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].name == name)
            return shortest(numbers[i].value, to) != NULL;
    return false;
}

/* A key's value as it was resolved; false for keys that another one stands for. */
static bool format_resolved(const struct zero_config *c, enum config_name name, char *to)
{
    static const char *const optimizers[] = { "Adam", "AdamW", "SGD" };
    char one[DOUBLE_BYTES], other[DOUBLE_BYTES];
    const struct {
        enum config_name name;
        bool value;
    } flags[] = {
        { CONFIG_adam_w_mode, c->optimizer == ZERO_ADAMW },
        { CONFIG_amsgrad, c->amsgrad },
        { CONFIG_nesterov, c->nesterov },
        { CONFIG_fp16, c->param_dtype == ZERO_FP16 },
        { CONFIG_bf16, c->param_dtype == ZERO_BF16 },
        { CONFIG_consecutive_hysteresis, c->loss_scale_consecutive },
        { CONFIG_overlap_comm, c->overlap_comm },
    };

    if (format_number(c, name, to))
        return true;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].name == name)
            return snprintf(to, VALUE_BYTES, "%s", flags[i].value ? "true" : "false") > 0;
    if (name == CONFIG_optimizer)
        return snprintf(to, VALUE_BYTES, "%s", optimizers[c->optimizer]) > 0;
    if (name == CONFIG_checkpoint_dir)
        return snprintf(to, VALUE_BYTES, "\"%s\"", c->checkpoint_dir) > 0;
    if (name == CONFIG_betas)
        return snprintf(to, VALUE_BYTES, "[%s, %s]", shortest(c->beta1, one),
                        shortest(c->beta2, other)) > 0;
    if (name == CONFIG_communication_data_type)
        return snprintf(to, VALUE_BYTES, "%s", zero_dtype_name(c->grad_dtype)) > 0;
    if (name == CONFIG_initial_scale_power)
        return c->loss_scale_dynamic &&
               snprintf(to, VALUE_BYTES, "%g", log2(c->loss_scale_initial)) > 0;
    return false;
}

/* Where a value that no line gives comes from. */
static void write_origin(FILE *to, const struct zero_config *c, const struct config_values *values,
                         const struct config_row *row)
{
    bool both =
        config_given(values, CONFIG_train_batch) && config_given(values, CONFIG_micro_batch);

    switch (row->name) {
    case CONFIG_train_batch:
        fprintf(to, "inferred from train_micro_batch_size_per_gpu x gradient_accumulation_steps x "
                    "world");
        break;
    case CONFIG_micro_batch:
        fprintf(to, "inferred from train_batch_size / (gradient_accumulation_steps x world)");
        break;
    case CONFIG_accumulation:
        fprintf(to, both ? "inferred from train_batch_size / (train_micro_batch_size_per_gpu x "
                           "world)"
                         : "default");
        break;
    case CONFIG_communication_data_type:
        fprintf(to, "inferred from the dtype of the parameters");
        break;
    case CONFIG_weight_decay:
        fprintf(to, "default of %s", values->of[CONFIG_optimizer].text);
        break;
    case CONFIG_overlap_comm:
        fprintf(to, "default at stage %u", c->stage);
        break;
    default:
        fprintf(to, "default");
    }
}

static void write_line(FILE *to, const struct zero_config *c, const struct config_values *values,
                       const struct config_row *row)
{
    const struct config_value *value = &values->of[row->name];
    unsigned bfloat16 = values->of[CONFIG_bfloat16].line;

    fprintf(to, "   (");
    if (row->name == CONFIG_optimizer && c->optimizer == ZERO_ADAMW &&
        strcasecmp(value->text, "AdamW") != 0)
        fprintf(to, "line %u: \"%s\", with adam_w_mode true", value->line, value->text);
    else if (row->name == CONFIG_bf16 && bfloat16 != 0)
        fprintf(to, "line %u: bfloat16", bfloat16);
    else if (value->line != 0)
        fprintf(to, "line %u", value->line);
    else
        write_origin(to, c, values, row);
    fprintf(to, ")");
}

/* values: NULL to leave the origins out, and what another key stands for. */
static void write_rows(FILE *to, const struct zero_config *config,
                       const struct config_values *values)
{
    for (size_t i = 0; i < CONFIG_ROWS; i++) {
        const struct config_row *row = &config_rows[i];
        char text[VALUE_BYTES];
        if (row->kind != ROW_KEY || config_idle(config, row->name) != NULL ||
            (values == NULL && row->name == CONFIG_adam_w_mode) ||
            !format_resolved(config, row->name, text))
            continue;
        fprintf(to, "%s = %s", row->path, text);
        if (values != NULL)
            write_line(to, config, values, row);
        fprintf(to, "\n");
    }
}

/* The keys that are there and do nothing. */
static void write_no_effect(FILE *to, const struct zero_config *config,
                            const struct config_values *values)
{
    const char *title = "\nno effect here:\n";

    for (size_t i = 0; i < CONFIG_ROWS; i++) {
        const struct config_row *row = &config_rows[i];
        const char *why = row->kind == ROW_KEY ? config_idle(config, row->name) : row->help;
        unsigned line = row->kind == ROW_KEY ? values->of[row->name].line : values->no_effect[i];
        if (line == 0 || why == NULL)
            continue;
        fprintf(to, "%s%s   (line %u): %s\n", title, row->path, line, why);
        title = "";
    }
}

static char *finish(FILE *to, char **text)
{
    if (ferror(to) | fclose(to)) {
        free(*text);
        return NULL;
    }
    return *text;
}

char *zero_config_text(const struct zero_config *config)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);

    if (to == NULL)
        return NULL;
    fprintf(to, "world = %u\n", config->world);
    write_rows(to, config, NULL);
    return finish(to, &text);
}

zero_status zero_config_explain(const char *text, size_t bytes, uint32_t world, char **out,
                                struct zero_detail *out_detail)
{
    struct config_values values;
    struct zero_config config;
    char *made = NULL;
    size_t made_bytes = 0;
    zero_status s = config_read(text, bytes, &values, out_detail);
    if (!zero_failed(s))
        s = config_resolve(&values, world, &config, out_detail);
    if (zero_failed(s))
        return s;
    FILE *to = open_memstream(&made, &made_bytes);
    if (to == NULL)
        return config_refuse(out_detail, ZERO_NO_MEMORY, "no memory for the text");
    fprintf(to, "world = %u   (zerod --world)\n", config.world);
    write_rows(to, &config, &values);
    write_no_effect(to, &config, &values);
    made = finish(to, &made);
    if (made == NULL)
        return config_refuse(out_detail, ZERO_NO_MEMORY, "no memory for the text");
    *out = made;
    return s;
}
