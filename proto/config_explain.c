/* SPDX-License-Identifier: MIT */
/* The resolved config as text: for people, with the origin of each value, and for comparing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/config_keys.h"

enum { VALUE_BYTES = 96 };

static void write_flag(char *to, bool value)
{
    snprintf(to, VALUE_BYTES, "%s", value ? "true" : "false");
}

/* A key's value as it was resolved; false for keys that another one stands for. */
static bool format_resolved(const struct zero_config *c, enum config_name name, char *to)
{
    static const char *const optimizers[] = { "Adam", "AdamW", "SGD" };
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
        { CONFIG_observer_hold, c->observer_hold_ms },
        { CONFIG_max_skipped, c->max_skipped_steps },
    };
    const struct {
        enum config_name name;
        bool value;
    } flags[] = {
        { CONFIG_amsgrad, c->amsgrad },
        { CONFIG_nesterov, c->nesterov },
        { CONFIG_fp16, c->param_dtype == ZERO_FP16 },
        { CONFIG_bf16, c->param_dtype == ZERO_BF16 },
        { CONFIG_consecutive_hysteresis, c->loss_scale_consecutive },
        { CONFIG_overlap_comm, c->overlap_comm },
    };

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].name == name)
            return snprintf(to, VALUE_BYTES, "%.17g", numbers[i].value) > 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (flags[i].name == name) {
            write_flag(to, flags[i].value);
            return true;
        }
    }
    if (name == CONFIG_optimizer)
        return snprintf(to, VALUE_BYTES, "%s", optimizers[c->optimizer]) > 0;
    if (name == CONFIG_betas)
        return snprintf(to, VALUE_BYTES, "[%.17g, %.17g]", c->beta1, c->beta2) > 0;
    if (name == CONFIG_communication_data_type)
        return snprintf(to, VALUE_BYTES, "%s", zero_dtype_name(c->grad_dtype)) > 0;
    if (name == CONFIG_initial_scale_power)
        return c->loss_scale_dynamic &&
               snprintf(to, VALUE_BYTES, "%g", log2(c->loss_scale_initial)) > 0;
    return false;
}

/* Keys of the family that the optimizer is not of, and of a loss scale that is not used. */
static bool matters(const struct zero_config *c, const char *path)
{
    static const char *const adam[] = { "betas", "eps", "amsgrad" };
    static const char *const sgd[] = { "momentum", "dampening", "nesterov" };
    const char *name = strrchr(path, '.') ? strrchr(path, '.') + 1 : path;

    for (int i = 0; i < 3; i++)
        if (strcmp(name, c->optimizer == ZERO_SGD ? adam[i] : sgd[i]) == 0)
            return false;
    if (strncmp(path, "fp16.", 5) == 0 && strcmp(path, "fp16.enabled") != 0)
        return c->param_dtype == ZERO_FP16;
    return true;
}

static void write_rows(FILE *to, const struct zero_config *config,
                       const struct config_values *values)
{
    for (size_t i = 0; i < config_row_count; i++) {
        const struct config_row *row = &config_rows[i];
        char text[VALUE_BYTES];
        if (row->kind != ROW_KEY || !matters(config, row->path) ||
            !format_resolved(config, row->name, text))
            continue;
        fprintf(to, "%s = %s", row->path, text);
        if (values == NULL)
            fprintf(to, "\n");
        else if (values->of[row->name].line != 0)
            fprintf(to, "   (line %u)\n", values->of[row->name].line);
        else
            fprintf(to, "   (%s)\n", row->fallback ? "default" : "inferred");
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
    write_rows(to, &config, &values);
    if (values.no_effect_count > 0)
        fprintf(to, "\nno effect here:\n");
    for (size_t i = 0; i < values.no_effect_count; i++)
        fprintf(to, "%s   (line %u): %s\n", values.no_effect[i].row->path, values.no_effect[i].line,
                values.no_effect[i].row->help);
    made = finish(to, &made);
    if (made == NULL)
        return config_refuse(out_detail, ZERO_NO_MEMORY, "no memory for the text");
    *out = made;
    return s;
}
