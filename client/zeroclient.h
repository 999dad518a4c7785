/* SPDX-License-Identifier: MIT */
/* zeroclient.h: a trainer's side of zerod.
 *
 * A trainer attaches to the daemon of its rank, registers its model (or matches the one that is
 * there), fills initial values if the model has none, and then, step after step: gathers layers,
 * computes, submits gradients, steps. The state lives in the daemons: a trainer that dies is
 * replaced by one that attaches and goes on from the last committed step.
 *
 *     zero_attach(NULL, &client, &detail);
 *     zero_register(client, &model);
 *     if (!zero_client_info(client)->filled) {
 *         for every tensor: zero_fill;
 *         zero_fill_end(client);
 *     }
 *     for (;;) {
 *         for each layer: zero_gather, forward, zero_release;
 *         for each layer backwards: zero_gather, zero_window, write gradients, zero_submit,
 *             zero_release;
 *         if (zero_step(client, &args, &result).code == ZERO_STEP_ABORTED)
 *             repeat this step;
 *     }
 *     zero_detach(client);
 *
 * Checkpoints are in zerocheckpoint.h.
 *
 * Owns    a zero_client owns its socket and mappings; every window pointer dies with it.
 * Thread  gather, prefetch, release, window, submit and their waits may be called from any
 *         threads at once. Everything else on one client: one thread at a time, and not during
 *         those.
 * Order   of layers is free, and may differ between ranks. After zero_step has begun, no gather,
 *         window or submit until it returned.
 * Fork    windows are not there in a forked child: reading one is SIGSEGV. Only the process that
 *         attached may use a client.
 * Fails   every call returns a zero_status; zero_error_text has the sentence. A pointer that may be
 *         NULL is said to be; any other that is gets INVALID_ARGUMENT (but the client itself, which
 *         must be one). STEP_ABORTED means that the group dropped the step in progress: repeat it,
 *         nothing else is lost. It is told once: a trainer with several threads stops them all
 *         before it repeats the step. zero_fill says it when the filling has to begin anew.
 *         A daemon that dies is waited for, for as long as the config's deadline: calls go on with
 *         its successor, all pointers stay good, and what belongs to a step that was lost says
 *         STEP_ABORTED. DAEMON_LOST: it did not come back, or was shut down.
 *         The library never logs, never exits, handles no signals, has no global state.
 * Uses    status, model.
 */
#ifndef ZEROCLIENT_H
#define ZEROCLIENT_H

#include "proto/model.h"
#include "proto/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct zero_client zero_client;

/* Goes up when a struct or a call of the installed headers changes so that a program built with the
 * old ones would be wrong. Programs that bind at run time compare zero_abi with what they know. */
enum { ZERO_ABI = 1 };
ZERO_API uint32_t zero_abi(void);
/* Of the library, "0.1.0". */
ZERO_API const char *zero_version(void);

enum {
    ZERO_MAX_BLOB = 65536,    /* bytes of a rank's blob */
    ZERO_MAX_SCALARS = 8,     /* named scalars a step */
    ZERO_MAX_SCALAR_NAME = 31 /* bytes, without the NUL */
};

/* A call that was begun and not yet waited for. At most 48 at once; each must be waited for, by the
 * wait of its own pair. */
typedef struct zero_op {
    uint32_t slot, generation;
} zero_op;

/* ---- attach ---------------------------------------------------------------------------------- */

enum zero_role { ZERO_TRAINER, ZERO_OBSERVER };

struct zero_attach_options {
    const char *socket;   /* path; NULL: the environment variable ZERO_SOCKET */
    enum zero_role role;  /* default ZERO_TRAINER; an observer reads versions only, see below */
    uint32_t deadline_ms; /* until the daemon is there and its last trainer is gone; 0: 60000 */
    /* NULL, or called every 50 ms by each thread that waits in a call on this client. True: the
     * call returns INTERRUPTED. After zero_step call it again to wait on; after anything else only
     * zero_detach is left. It must not call the library. */
    bool (*interrupted)(void *context);
    void *context;
};

/* Connects. options may be NULL. On failure *out is untouched and *out_detail (or NULL) explains.
 * BUSY: the rank has a trainer, or the last one's process still lives and may write its windows. */
ZERO_API zero_status zero_attach(const struct zero_attach_options *options, zero_client **out,
                                 struct zero_detail *out_detail);

/* Leaves and unmaps everything; a step in progress is aborted for the group. NULL is a no-op. */
ZERO_API void zero_detach(zero_client *client);

/* The sentence about the calling thread's last failed call on this client; valid until its next. */
ZERO_API const char *zero_error_text(const zero_client *client);

/* ---- the model ------------------------------------------------------------------------------- */

/* Fill every field of a tensor's spec (model.h): zeroes mean lr_scale 0, so it would never learn,
 * and weight_decay 0. */
struct zero_model_spec {
    const struct zero_layer_spec *layers;
    size_t layer_count;
    const char *config; /* DeepSpeed's JSON */
    size_t config_bytes;
};

/* Registers the model, or checks that it equals the registered one, and maps it. Returns when every
 * rank's trainer has registered the same. model NULL: attach to whatever is registered.
 * MISMATCH (model or config differs from the registered one), CONFLICT (from another rank's),
 * CONFIG, UNSUPPORTED, NO_MEMORY. */
ZERO_API zero_status zero_register(zero_client *client, const struct zero_model_spec *model);

struct zero_client_info {
    uint32_t rank, world, stage;
    zero_dtype param_dtype, grad_dtype;
    uint64_t epoch;
    uint64_t step;     /* committed steps, skipped ones included */
    uint64_t updates;  /* of these, applied */
    bool filled;       /* initial values are in */
    double lr;         /* of the config */
    double loss_scale; /* multiply the loss by it before backward; 1 unless fp16 */
    uint64_t train_batch, micro_batch, accumulation;
    uint32_t layer_count;
    size_t blob_bytes; /* of the last committed step's blob of this rank */
};

/* Borrowed; up to date after attach, register and every step. */
ZERO_API const struct zero_client_info *zero_client_info(const zero_client *client);

/* What a layer and a tensor are, however the model came here; names and shapes are borrowed and
 * live as long as the client. */
struct zero_layer_info {
    const char *name;
    uint32_t tensor_count;
    uint64_t elements; /* of its window: tensors and what lies between them */
};
struct zero_tensor_info {
    const char *name;
    const uint64_t *shape; /* dims sizes */
    uint32_t dims;
    uint64_t offset, count; /* where it stands in the layer's windows, in elements */
};
ZERO_API zero_status zero_layer_describe(const zero_client *client, uint32_t layer,
                                         struct zero_layer_info *out);
ZERO_API zero_status zero_tensor_describe(const zero_client *client, uint32_t layer,
                                          uint32_t tensor, struct zero_tensor_info *out);

/* Where tensor `tensor` of layer `layer` stands in the layer's windows, in elements. */
ZERO_API zero_status zero_tensor_place(const zero_client *client, uint32_t layer, uint32_t tensor,
                                       uint64_t *out_offset, uint64_t *out_count);

/* This rank's blob of the last committed step: up to `capacity` bytes; *out_bytes is its size. */
ZERO_API zero_status zero_blob(const zero_client *client, void *to, size_t capacity,
                               size_t *out_bytes);

/* ---- initial values and state --------------------------------------------------------------- */

enum zero_fill_source {
    ZERO_FILL_EVERY_RANK, /* every rank fills the same values, each daemon keeps its part */
    ZERO_FILL_RANK_0      /* rank 0's trainer fills, the other ranks only call zero_fill_end */
};

/* Elements of a tensor. */
struct zero_span {
    uint32_t layer, tensor; /* numbers in the model, and in the layer */
    uint64_t offset, count;
};

/* span->count fp32 values of a tensor; a tensor is filled in order, from element 0 on. STEP_ABORTED
 * from this or the next two: a daemon died; begin again, with the same values, if zero_client_info
 * still says that none are in. INVALID_STATE: they are, or another thread fills. */
ZERO_API zero_status zero_fill(zero_client *client, const struct zero_span *span,
                               const float *values);
/* Chooses the source; before the first zero_fill. Default ZERO_FILL_EVERY_RANK. */
ZERO_API zero_status zero_fill_from(zero_client *client, enum zero_fill_source source);
/* Returns when every rank has its values. INVALID_STATE names a tensor that was not filled. */
ZERO_API zero_status zero_fill_end(zero_client *client);

enum zero_state { ZERO_MASTER, ZERO_MOMENT1, ZERO_MOMENT2, ZERO_MAX_MOMENT2, ZERO_PARAM };

/* span->count elements of a tensor's state as fp32, of the last committed step. Moments that the
 * optimizer does not have: NOT_FOUND. */
ZERO_API zero_status zero_read(zero_client *client, enum zero_state state,
                               const struct zero_span *span, float *to);
ZERO_API zero_status zero_read_begin(zero_client *client, enum zero_state state,
                                     const struct zero_span *span, zero_op *out);
ZERO_API zero_status zero_read_wait(zero_client *client, zero_op op, float *to, uint64_t count);

/* ---- a step --------------------------------------------------------------------------------- */

/* *out is the layer's flat vector in the parameter dtype, read-only, stable until the step ends:
 * tensor t stands at zero_tensor_place elements. Writing to it is SIGSEGV. */
ZERO_API zero_status zero_gather(zero_client *client, uint32_t layer, const void **out);
ZERO_API zero_status zero_gather_begin(zero_client *client, uint32_t layer, zero_op *out);
ZERO_API zero_status zero_gather_wait(zero_client *client, zero_op op, const void **out);
/* A hint that the layer will be gathered soon. */
ZERO_API zero_status zero_prefetch(zero_client *client, uint32_t layer);
ZERO_API zero_status zero_release(zero_client *client, uint32_t layer);

/* *out is where to write the layer's gradients, in the gradient dtype, same places as the
 * parameters; what lies between tensors is ignored. Contents are undefined: write every element of
 * every tensor. Blocks while all windows are in use. fp16: gradients of loss * loss_scale. */
ZERO_API zero_status zero_window(zero_client *client, uint32_t layer, void **out);
ZERO_API zero_status zero_window_begin(zero_client *client, uint32_t layer, zero_op *out);
ZERO_API zero_status zero_window_wait(zero_client *client, zero_op op, void **out);

/* Does not wait: what is wrong with it (a layer without its window) is told once, by the next
 * zero_step, which then has not begun: call it again to go on without that submission.
 *
 * Hands the window over; do not touch it again. A layer is submitted once a micro-step. The sum of
 * all submissions is divided by world size x gradient_accumulation_steps, however many there were:
 * a layer that is not submitted counts as zero, and one that is submitted more often counts more.
 * The wait of the pair returns when every rank has reduced it. */
ZERO_API zero_status zero_submit(zero_client *client, uint32_t layer);
ZERO_API zero_status zero_submit_begin(zero_client *client, uint32_t layer, zero_op *out);
ZERO_API zero_status zero_submit_wait(zero_client *client, zero_op op);

struct zero_scalar {
    char name[ZERO_MAX_SCALAR_NAME + 1]; /* UTF-8, not empty, no two alike */
    double value;
};

struct zero_step_args {
    double lr;        /* NAN: the config's; every rank must give the same. 0, as in a zeroed struct,
                         is a step that changes no parameter (moments and counters go on) */
    const void *blob; /* committed with the step, comes back on attach; NULL: none */
    size_t blob_bytes;
    const struct zero_scalar *scalars; /* the same names on every rank */
    size_t scalar_count;
};

enum zero_step_outcome {
    ZERO_STEP_APPLIED,
    ZERO_STEP_SKIPPED_OVERFLOW, /* fp16: non-finite gradients, the loss scale took note */
    ZERO_STEP_SKIPPED_NONFINITE /* any other precision */
};

struct zero_step_result {
    uint64_t step, updates; /* after this one */
    enum zero_step_outcome outcome;
    uint32_t skipped_in_row;
    double grad_norm;  /* of the mean gradient, unscaled, before clipping; may be inf or nan */
    double lr;         /* used */
    double loss_scale; /* for the next backward */
    double scalars[ZERO_MAX_SCALARS]; /* the mean over the ranks, added in rank order */
};

/* One optimizer update of the group, over everything submitted since the last. args may be NULL.
 * DEADLINE names the rank that is missing; the step is still on its way: call again to wait on (the
 * arguments of the first call count, and until it has ended windows say STEP_PENDING). */
ZERO_API zero_status zero_step(zero_client *client, const struct zero_step_args *args,
                               struct zero_step_result *out);
ZERO_API zero_status zero_step_begin(zero_client *client, const struct zero_step_args *args,
                                     zero_op *out);
ZERO_API zero_status zero_step_wait(zero_client *client, zero_op op, struct zero_step_result *out);

/* ---- observers ------------------------------------------------------------------------------ */

/* An observer reads versions: copies of all parameters as they were after one step, which nobody
 * can change, while training goes on. Its daemon keeps zerod.versions.keep of them at most.
 *
 * The version is mapped as a whole until zero_version_close, and in between zero_gather and
 * zero_read of ZERO_PARAM read it; outside they say INVALID_STATE. The next one may be mapped
 * elsewhere: gather again. One that is open stays readable when its daemon dies; the daemon's
 * successor has no versions, and the next call here finds it by itself.
 *
 * step: ZERO_LATEST for the last committed step, of which a version is made unless there is one; or
 * that of a version that is kept (zero_versions, or zerod.versions.every_steps makes them).
 * *out_step (or NULL) is the step it is of, as is zero_client_info's from then on. NOT_FOUND names
 * the steps there are; BUSY: as many as the daemon may keep are being read. */
#define ZERO_LATEST UINT64_MAX
ZERO_API zero_status zero_version_open(zero_client *client, uint64_t step, uint64_t *out_step);
ZERO_API zero_status zero_version_close(zero_client *client);

/* The steps of the kept versions, ascending: *out_count of them, of which `capacity` are written.
 */
ZERO_API zero_status zero_versions(zero_client *client, uint64_t *steps, size_t capacity,
                                   size_t *out_count);

#ifdef __cplusplus
}
#endif

#endif
