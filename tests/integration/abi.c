/* SPDX-License-Identifier: MIT */
/* abi: prints what the installed headers say, as JSON, for what binds to the library at run time:
 * the size of each struct, the place and size of each of its members, and the constants. */
#include <stddef.h>
#include <stdio.h>

#include "client/zerocheckpoint.h"
#include "client/zeroclient.h"

#define BEGIN(name) \
    printf("%s\"%s\": {\"\": [%zu, 0]", first++ ? ",\n" : "", #name, sizeof(struct name))
#define FIELD(name, field)                                                    \
    printf(", \"%s\": [%zu, %zu]", #field, sizeof(((struct name *)0)->field), \
           offsetof(struct name, field))
#define NUMBER(name) printf(",\n\"%s\": %lld", #name, (long long)(name))

static int first;

static void print_model(void)
{
    BEGIN(zero_tensor_spec);
    FIELD(zero_tensor_spec, name);
    FIELD(zero_tensor_spec, shape);
    FIELD(zero_tensor_spec, dims);
    FIELD(zero_tensor_spec, lr_scale);
    FIELD(zero_tensor_spec, weight_decay);
    printf("}");
    BEGIN(zero_layer_spec);
    FIELD(zero_layer_spec, name);
    FIELD(zero_layer_spec, tensors);
    FIELD(zero_layer_spec, tensor_count);
    printf("}");
    BEGIN(zero_model_spec);
    FIELD(zero_model_spec, layers);
    FIELD(zero_model_spec, layer_count);
    FIELD(zero_model_spec, config);
    FIELD(zero_model_spec, config_bytes);
    printf("}");
    BEGIN(zero_layer_info);
    FIELD(zero_layer_info, name);
    FIELD(zero_layer_info, tensor_count);
    FIELD(zero_layer_info, elements);
    printf("}");
    BEGIN(zero_tensor_info);
    FIELD(zero_tensor_info, name);
    FIELD(zero_tensor_info, shape);
    FIELD(zero_tensor_info, dims);
    FIELD(zero_tensor_info, offset);
    FIELD(zero_tensor_info, count);
    printf("}");
    BEGIN(zero_span);
    FIELD(zero_span, layer);
    FIELD(zero_span, tensor);
    FIELD(zero_span, offset);
    FIELD(zero_span, count);
    printf("}");
}

static void print_session(void)
{
    BEGIN(zero_detail);
    FIELD(zero_detail, text);
    printf("}");
    BEGIN(zero_attach_options);
    FIELD(zero_attach_options, socket);
    FIELD(zero_attach_options, role);
    FIELD(zero_attach_options, deadline_ms);
    FIELD(zero_attach_options, interrupted);
    FIELD(zero_attach_options, context);
    printf("}");
    BEGIN(zero_client_info);
    FIELD(zero_client_info, rank);
    FIELD(zero_client_info, world);
    FIELD(zero_client_info, stage);
    FIELD(zero_client_info, param_dtype);
    FIELD(zero_client_info, grad_dtype);
    FIELD(zero_client_info, epoch);
    FIELD(zero_client_info, step);
    FIELD(zero_client_info, updates);
    FIELD(zero_client_info, filled);
    FIELD(zero_client_info, lr);
    FIELD(zero_client_info, loss_scale);
    FIELD(zero_client_info, train_batch);
    FIELD(zero_client_info, micro_batch);
    FIELD(zero_client_info, accumulation);
    FIELD(zero_client_info, layer_count);
    FIELD(zero_client_info, blob_bytes);
    printf("}");
}

static void print_step(void)
{
    BEGIN(zero_scalar);
    FIELD(zero_scalar, name);
    FIELD(zero_scalar, value);
    printf("}");
    BEGIN(zero_step_args);
    FIELD(zero_step_args, lr);
    FIELD(zero_step_args, blob);
    FIELD(zero_step_args, blob_bytes);
    FIELD(zero_step_args, scalars);
    FIELD(zero_step_args, scalar_count);
    printf("}");
    BEGIN(zero_step_result);
    FIELD(zero_step_result, step);
    FIELD(zero_step_result, updates);
    FIELD(zero_step_result, outcome);
    FIELD(zero_step_result, skipped_in_row);
    FIELD(zero_step_result, grad_norm);
    FIELD(zero_step_result, lr);
    FIELD(zero_step_result, loss_scale);
    FIELD(zero_step_result, scalars);
    printf("}");
}

static void print_checkpoints(void)
{
    BEGIN(zero_path);
    FIELD(zero_path, text);
    printf("}");
    BEGIN(zero_save_options);
    FIELD(zero_save_options, socket);
    FIELD(zero_save_options, dir);
    FIELD(zero_save_options, deadline_ms);
    printf("}");
}

int main(void)
{
    printf("{");
    print_model();
    print_session();
    print_step();
    print_checkpoints();
    NUMBER(ZERO_ABI);
    NUMBER(ZERO_MAX_BLOB);
    NUMBER(ZERO_MAX_SCALARS);
    NUMBER(ZERO_MAX_SCALAR_NAME);
    NUMBER(ZERO_MAX_NAME);
    NUMBER(ZERO_TRAINER);
    NUMBER(ZERO_OBSERVER);
    NUMBER(ZERO_FP32);
    NUMBER(ZERO_BF16);
    NUMBER(ZERO_FP16);
    NUMBER(ZERO_FILL_EVERY_RANK);
    NUMBER(ZERO_FILL_RANK_0);
    NUMBER(ZERO_MASTER);
    NUMBER(ZERO_MOMENT1);
    NUMBER(ZERO_MOMENT2);
    NUMBER(ZERO_MAX_MOMENT2);
    NUMBER(ZERO_PARAM);
    NUMBER(ZERO_STEP_APPLIED);
    NUMBER(ZERO_STEP_SKIPPED_OVERFLOW);
    NUMBER(ZERO_STEP_SKIPPED_NONFINITE);
    printf("}\n");
    return 0;
}
