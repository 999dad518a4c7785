/* SPDX-License-Identifier: MIT */
/* zerocheckpoint.h: checkpoints: saving a running group, and looking after what is on the disk.
 *
 * A checkpoint is a folder DIR/step-N: everything that the group needs to go on from step N. Saving
 * asks the daemon of rank 0, over a connection of its own: a trainer of any rank may save between
 * or during its steps, and so may a program that does not train. All else reads and writes files
 * alone, no daemon is needed, and any number of processes may do it at once, also while DIR is
 * saved into. zeroctl checkpoint does the same from a shell.
 *
 *     zero_checkpoint_begin(NULL, &saving, &detail);      ask, and go on training
 *     zero_checkpoint_wait(saving, 600000, &path, &detail);
 *     zero_checkpoint_leave(saving);
 *
 * Owns    what a call gives out is freed by the call that says so; pointers in options are borrowed
 *         for the call.
 * Thread  every call from any thread, and calls at once do not disturb each other; one zero_saving
 *         or list is one thread's at a time. A zero_progress is made for being looked at meanwhile.
 * Fails   every call returns a zero_status; out_detail gets the sentence, and may be NULL. *out is
 *         written on success only, but where it says otherwise. Any pointer that is not said to be
 *         optional: INVALID_ARGUMENT when NULL. NOT_FOUND, PERMISSION, IO, NO_MEMORY as the system
 *         says; CORRUPT, TOO_LARGE, VERSION for files that are not what they should be.
 *         The library never logs, never exits, handles no signals, has no global state.
 * Uses    status, model.
 */
#ifndef ZEROCHECKPOINT_H
#define ZEROCHECKPOINT_H

#include "proto/model.h"
#include "proto/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ZERO_PATH_BYTES = 4096 };
struct zero_path {
    char text[ZERO_PATH_BYTES]; /* ends in a NUL */
};

/* ---- saving a running group ------------------------------------------------------------------ */

typedef struct zero_saving zero_saving;

struct zero_save_options {
    const char *socket; /* of any daemon of the group; NULL: the environment variable ZERO_SOCKET */
    const char *dir;    /* becomes DIR/step-N; made if need be; NULL: zerod.checkpoint.dir of the
                           group's config */
    uint32_t deadline_ms; /* of the call; 0: a minute to begin, an hour for zero_checkpoint_save */
};

/* Asks rank 0 to save the last committed step. Returns once the daemon has been asked, at most
 * deadline_ms later; *out must be left in the end. options may be NULL. Training waits only for a
 * copy in memory. A save that was asked for goes on whether or not anybody waits for it. */
ZERO_API zero_status zero_checkpoint_begin(const struct zero_save_options *options,
                                           zero_saving **out, struct zero_detail *out_detail);

/* Waits until the save has ended; 0 looks only. DEADLINE: it has not; wait again, or leave.
 * *out_path (or NULL) is the checkpoint; another step-N that was there is step-N.replaced-K then.
 * Anything else but success: there is no new checkpoint, and what was in DIR is as it was.
 *   INVALID_STATE     the group has no model or no initial values yet, or lost a rank
 *   BUSY              another save is on its way: periodic ones count
 *   INVALID_ARGUMENT  no dir here, and none in the config
 *   IO                DIR cannot be written
 *   PEER_LOST         a daemon died meanwhile: save again
 *   DAEMON_LOST       rank 0's daemon ended meanwhile: only zero_checkpoint_list can tell
 * When it has ended, every further call says the same. */
ZERO_API zero_status zero_checkpoint_wait(zero_saving *saving, uint32_t deadline_ms,
                                          struct zero_path *out_path,
                                          struct zero_detail *out_detail);

/* How many bytes of rank 0's part are written, and of how many, as it was a moment ago; both 0
 * before it writes, and when the save has ended. The others write theirs at the same time. */
ZERO_API zero_status zero_checkpoint_look(zero_saving *saving, uint64_t *out_bytes,
                                          uint64_t *out_total, struct zero_detail *out_detail);

/* Frees it; the save goes on. NULL is a no-op. */
ZERO_API void zero_checkpoint_leave(zero_saving *saving);

/* The three in one: deadline_ms is that of all of it. DEADLINE: it may still be on its way. */
ZERO_API zero_status zero_checkpoint_save(const struct zero_save_options *options,
                                          struct zero_path *out_path,
                                          struct zero_detail *out_detail);

/* ---- how far a long call is ------------------------------------------------------------------ */

/* Given to one call at a time, which counts from 0; others look at it meanwhile, or cancel. */
typedef struct zero_progress zero_progress;

ZERO_API zero_status zero_progress_create(zero_progress **out);
/* Not while a call has it. NULL is a no-op. */
ZERO_API void zero_progress_destroy(zero_progress *progress);
/* Bytes done and to do; 0 to do: not known yet. */
ZERO_API void zero_progress_look(const zero_progress *progress, uint64_t *out_bytes,
                                 uint64_t *out_total);
/* For good: the call that has it, or gets it, ends soon with INVALID_STATE, and what it was making
 * is removed. */
ZERO_API void zero_progress_cancel(zero_progress *progress);

/* ---- what is there --------------------------------------------------------------------------- */

struct zero_checkpoint {
    const char *name; /* in DIR: "step-100"; "step-100.replaced-1": set aside by a later save */
    uint64_t step;
    bool complete;        /* everything that belongs to it is there; the data is verify's */
    bool busy;            /* somebody is writing it */
    bool unread;          /* it could not be looked at: neither is known */
    const char *why;      /* it is not complete, or not known to be; NULL when it is */
    uint64_t time, bytes; /* seconds since 1970, and of its data; 0 unless complete */
    uint32_t world;       /* ranks that saved it; 0 unless complete */
};

struct zero_checkpoints {
    struct zero_checkpoint *entries; /* by step; of one step, what is complete comes first */
    size_t count;
};

/* The checkpoints of a folder, and what unfinished ones left in it. */
ZERO_API zero_status zero_checkpoint_list(const char *dir, struct zero_checkpoints *out,
                                          struct zero_detail *out_detail);
/* Frees the entries and their texts. */
ZERO_API void zero_checkpoint_list_deinit(struct zero_checkpoints *list);

/* Removes all but the `keep` (at least 1) newest complete checkpoints, and what saves that died
 * have left. *out_removed (or NULL) counts, also on failure. */
ZERO_API zero_status zero_checkpoint_prune(const char *dir, uint32_t keep, uint64_t *out_removed,
                                           struct zero_detail *out_detail);

/* ---- verify ---------------------------------------------------------------------------------- */

/* What to tell while it goes on; every member may be NULL. */
struct zero_verify_watch {
    zero_progress *progress;
    void (*problem)(void *context, const char *text); /* called by the calling thread, once for
                                                         each; the text is lent */
    void *context;
};

struct zero_verified {
    uint64_t bytes;     /* looked at */
    uint64_t problems;  /* 0: every byte is what was written */
    uint64_t nonfinite; /* weights that are inf or nan, which is no damage */
};

/* Reads every byte of the checkpoint `path` (DIR/step-N) and compares it with its checksum. CORRUPT
 * when anything differs or is missing: then too *out (or NULL) says how much, and out_detail the
 * first. watch may be NULL. */
ZERO_API zero_status zero_checkpoint_verify(const char *path, const struct zero_verify_watch *watch,
                                            struct zero_verified *out,
                                            struct zero_detail *out_detail);

/* ---- other people's files -------------------------------------------------------------------- */

struct zero_export_options {
    const char *path;        /* of the checkpoint */
    const char *dir;         /* where to; made if need be */
    zero_dtype dtype;        /* ZERO_BF16 and ZERO_FP16 round to nearest even; default ZERO_FP32 */
    uint64_t max_file_bytes; /* of tensors in a file; 0: one file */
    zero_progress *progress; /* or NULL */
};

struct zero_exported {
    uint32_t files;
    uint64_t bytes; /* of tensors */
};

/* Writes the weights as Hugging Face has them: model.safetensors, or, where max_file_bytes asks for
 * more than one file, model-00001-of-0000N.safetensors and so on, and model.safetensors.index.json.
 * INVALID_STATE when such a file is there. out may be NULL. */
ZERO_API zero_status zero_checkpoint_export(const struct zero_export_options *options,
                                            struct zero_exported *out,
                                            struct zero_detail *out_detail);

struct zero_import_options {
    const char *const *files; /* safetensors files, or folders of them */
    size_t file_count;
    const char *dir; /* the checkpoint becomes DIR/step-0 */
    /* Which layers and tensors, in which order: those of another checkpoint, or these; or, with
     * neither, those of the files: a tensor's layer is its name up to the first part that is a
     * number, and layers stand in the files' order. */
    const char *model;                    /* path of a checkpoint; NULL: not so */
    const struct zero_layer_spec *layers; /* NULL: not so */
    size_t layer_count;
    zero_progress *progress; /* or NULL */
};

struct zero_imported {
    struct zero_path path; /* of the checkpoint */
    uint64_t parameters;
    uint32_t layers;
    size_t unused; /* tensors of the files that the model does not have */
};

/* Makes a checkpoint of one rank from fp32, bf16, fp16 or fp64 weights: step 0, master weights and
 * no optimizer state. MISMATCH: a tensor of the model is not there, or has another shape;
 * UNSUPPORTED: it is of another type; INVALID_STATE: DIR/step-0 is there. out may be NULL. */
ZERO_API zero_status zero_checkpoint_import(const struct zero_import_options *options,
                                            struct zero_imported *out,
                                            struct zero_detail *out_detail);

#ifdef __cplusplus
}
#endif

#endif
