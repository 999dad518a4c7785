/* SPDX-License-Identifier: MIT */
/* step.h: the step worker of a rank, as the rest of the daemon sees it.
 *
 * One thread does everything that touches state: it reads the trainer's ring, sums gradients,
 * votes, updates. The loop's thread sends it commands and takes events back.
 *
 * Owns    the worker thread, the bell and ring memory; with a model, the shard and the comm.
 * Thread  all functions: the loop's thread. `notify` is called on the worker's.
 * Order   a command's event carries its token; commands of one token are answered in order.
 * Fails   by events; see the kinds below.
 * Uses    base, device, comm, shard, kernels.   Used by session, control, main.
 */
#ifndef DAEMON_STEP_STEP_H
#define DAEMON_STEP_STEP_H

#include "daemon/comm/comm.h"
#include "daemon/shard/shard.h"
#include "daemon/step/stats.h"

struct engine;

struct engine_options {
    uint32_t rank, world;
    const char *dir;
    struct device *device;
    const struct comm_ops *comm;
    int peer_listener;
    const char
        *restore; /* a checkpoint, or a folder of them, for a new model; NULL: none is asked for */
    bool weights_only;             /* of it, as initial values */
    void (*notify)(void *context); /* events are waiting: called on the worker's thread */
    void *context;
};

enum engine_event_kind {
    ENGINE_JOINED,   /* of engine_register: every rank has the model; or the reason why not */
    ENGINE_ATTACHED, /* of engine_attach: the trainer may use the ring now */
    ENGINE_DETACHED, /* of engine_detach: what the trainer had begun is decided or dropped */
    ENGINE_COPIED,   /* of engine_copy: take it with engine_take_copy, also when it failed */
    ENGINE_BROKEN,   /* the trainer broke the ring's protocol: end its session */
    ENGINE_SAVED,    /* of engine_save: the checkpoint's path, or the reason why there is none */
    ENGINE_FINISHED, /* of engine_finish; failed: the last step should be saved, and is not */
    ENGINE_FROZEN,   /* of engine_upgrade: nothing moves any more, the process may be replaced */
    ENGINE_LOST,     /* the group is lost; every call fails from now on */
};

struct engine_event {
    enum engine_event_kind kind;
    uint64_t token;
    zero_status status;
    char text[BOARD_PATH]; /* why it failed; SAVED: or the path */
};

/* What a trainer has to know when it attaches. Valid from ENGINE_ATTACHED until the next command.
 */
struct engine_entry {
    uint64_t attempt, epoch, step, updates;
    bool filled;
    double loss_scale;
    size_t blob_bytes;
    const unsigned char *blob;
};

zero_status engine_create(const struct engine_options *options, struct engine **out);
/* Ends the worker and gives all memory back. NULL is a no-op. */
void engine_destroy(struct engine *engine);

/* A model to register, with what was kept of it. */
struct engine_model {
    struct zero_layout *layout; /* taken over */
    struct zero_config config;
    int description;              /* description.h; taken over */
    const struct notify_fd *kept; /* arenas of a daemon that died; NULL: new ones. Lent until
                                     ENGINE_JOINED */
    size_t kept_count;
};

/* Registers a model: creates or takes back the arenas, lodges them, and joins the group. */
void engine_register(struct engine *engine, const struct engine_model *model, uint64_t token);
/* Ends a registration that waits for other ranks; nothing once it has ended. */
void engine_cancel_register(struct engine *engine);
void engine_attach(struct engine *engine, uint32_t pid, uint64_t token);
void engine_detach(struct engine *engine, uint64_t token);
/* Saves a checkpoint of the group into a folder (absolute; "": the config's), which is made if it
 * is not there. Rank 0 only. The last committed step is saved, whether or not there are trainers.
 */
void engine_save(struct engine *engine, const char *dir, uint64_t token);
/* The daemon is told to end: the last step is saved first where the config says so, as long as that
 * goes on, and no group is met for anything else. Again with `now`: nothing is waited for. */
void engine_finish(struct engine *engine, bool now);
/* Asks for this process to be replaced by another that goes on: after the next step, whose trainers
 * get their answer from the successor (ask rank 0, for all), or now, which drops the step in
 * progress. */
void engine_upgrade(struct engine *engine, bool now);
/* What the successor needs, once frozen: see shard_legacy. 0: there is no model. */
size_t engine_legacy(const struct engine *engine, struct notify_fd *out);
/* The checkpoint that the registered model began with, in words; "": none. */
const char *engine_origin(const struct engine *engine);
/* The process that trained with the arenas that were taken back; *out_pid 0: none. */
void engine_last_trainer(const struct engine *engine, uint32_t *out_pid, uint64_t *out_start);
/* The group ends for good: the holder shall forget the arenas. */
void engine_forget(struct engine *engine);

/* Copies the gathered parameters of the last committed step, in the flat order of the model, into
 * `buf`, a draft of their size that is taken over. One at a time. */
void engine_copy(struct engine *engine, const struct device_buf *buf);
/* Gives it back, with the step that it is of. */
void engine_take_copy(struct engine *engine, struct device_buf *out, uint64_t *out_step);

bool engine_next_event(struct engine *engine, struct engine_event *out);

/* Of the registered model, from its ENGINE_JOINED on; NULL before. */
const struct shard *engine_shard(const struct engine *engine);
const struct engine_entry *engine_entry(const struct engine *engine);
/* Read-only fd of a rank's parameter arena, -1 while the group meets again. Borrowed. */
int engine_param_fd(struct engine *engine, uint32_t rank);
const struct device_buf *engine_ring(const struct engine *engine);
const struct device_buf *engine_bell(const struct engine *engine);
const struct stats *engine_stats(const struct engine *engine);

#endif
