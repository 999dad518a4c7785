/* SPDX-License-Identifier: MIT */
/* config.h: DeepSpeed's JSON, read strictly, resolved to what the daemon does.
 *
 * Every key is a row of config.def. A key that is unknown, of the wrong type, given twice, known to
 * DeepSpeed but not supported here, or in conflict with another is an error whose detail names
 * line, path, and what to write instead.
 *
 * Owns    nothing: the struct is plain data.
 * Thread  any.
 * Fails   CONFIG, UNSUPPORTED, TOO_LARGE, NO_MEMORY; INVALID_ARGUMENT for a world of 0.
 * Uses    status, model.   Used by plan, zeroctl, daemon.
 */
#ifndef ZERO_CONFIG_H
#define ZERO_CONFIG_H

#include <stddef.h>

#include "proto/model.h"
#include "proto/status.h"

enum { ZERO_CONFIG_MAX_BYTES = 60 * 1024, ZERO_CONFIG_MAX_PATH = 1024, ZERO_MAX_VERSIONS = 64 };

enum zero_optimizer { ZERO_ADAM, ZERO_ADAMW, ZERO_SGD };

struct zero_config {
    /* train_batch == micro_batch * accumulation * world, always */
    uint64_t train_batch, micro_batch, accumulation;
    uint32_t world;
    uint32_t stage; /* 0 to 3 */
    zero_dtype param_dtype;
    zero_dtype grad_dtype; /* of the gradients that trainers submit: communication_data_type */

    enum zero_optimizer optimizer; /* ADAM: decay added to the gradient; ADAMW: decoupled */
    double lr, beta1, beta2, eps, weight_decay;
    double momentum, dampening; /* SGD */
    bool nesterov, amsgrad;

    double gradient_clipping; /* 0: off */

    bool loss_scale_dynamic;   /* fp16 only; otherwise the scale is 1 for ever */
    double loss_scale_initial; /* also the static scale */
    double loss_scale_min;
    uint32_t loss_scale_window, loss_scale_hysteresis;
    bool loss_scale_consecutive;

    uint64_t reduce_bucket_elements; /* bound of the gradient windows at stages 2 and 3; else 0 */
    bool overlap_comm;               /* doubles that bound */

    /* section "zerod" */
    uint32_t deadline_ms;                      /* of every wait */
    uint32_t max_skipped_steps;                /* in a row, then TOO_MANY_SKIPS; 0: never */
    uint32_t versions_keep;                    /* at most, 1 to ZERO_MAX_VERSIONS */
    uint32_t versions_every;                   /* steps; 0: only when an observer asks */
    uint64_t versions_max_bytes;               /* together; 0: no bound */
    char checkpoint_dir[ZERO_CONFIG_MAX_PATH]; /* absolute; empty: no periodic checkpoints */
    uint64_t checkpoint_steps;                 /* between two; 0: not by steps */
    double checkpoint_minutes;                 /* 0: not by time */
    uint32_t checkpoint_keep;                  /* newest that stay; 0: all */
};

/* Parses text (need not end in NUL) for a group of world ranks. */
zero_status zero_config_parse(const char *text, size_t bytes, uint32_t world,
                              struct zero_config *out, struct zero_detail *out_detail);

/* The resolved config as text, one line "path = value   origin" a key, where origin is "line N",
 * "default" or "inferred from ..."; then the keys that have no effect here, each with its reason.
 * malloc'd into *out. */
zero_status zero_config_explain(const char *text, size_t bytes, uint32_t world, char **out,
                                struct zero_detail *out_detail);

/* The resolved config as canonical text, one line "path = value" a key: equal texts are equal
 * configs, the first different line is the difference to show. malloc'd, NULL without memory. */
char *zero_config_text(const struct zero_config *config);

#endif
