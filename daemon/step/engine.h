/* SPDX-License-Identifier: MIT */
/* engine.h: the state of a rank's step worker, shared by the files of this folder.
 *
 * An attempt goes through the phases below; board.h says what the ranks tell each other meanwhile.
 *
 *   COLLECTING  the trainer computes and submits; layers are folded as soon as every rank has
 *               submitted them
 *   SUMMING     the trainer asked for the step: what is missing counts as zero once all have asked
 *   SHARING     stage 0: every rank fetches the sums of the others
 *   VOTED       waits for rank 0's decision
 *   APPLIED     own shards are updated; waits for the others', fetches them at stages 1 and 2
 *
 * A group that lost a rank meets again (model.h) and begins with APPLIED, of the last decision.
 *
 * Owns    see each field.
 * Thread  the worker, but for mail (its lock) and stats.
 * Uses    step.   Used by the files of daemon/step.
 */
#ifndef DAEMON_STEP_ENGINE_H
#define DAEMON_STEP_ENGINE_H

#include <pthread.h>
#include <stddef.h>

#include "daemon/step/journal.h"
#include "daemon/step/scaler.h"
#include "daemon/step/step.h"
#include "daemon/step/windows.h"
#include "daemon/store/lock.h"
#include "proto/ring.h"

enum phase { PHASE_COLLECTING, PHASE_SUMMING, PHASE_SHARING, PHASE_VOTED, PHASE_APPLIED };

/* How far a layer's sum is in this attempt: everything before (k, rank) is in. */
struct fold {
    uint64_t attempt; /* of what follows; another one: nothing is folded yet */
    uint32_t k, rank;
    bool any;  /* the sum holds something */
    bool open; /* in the list of layers to look at */
};

/* A call that waits for its answer. */
struct pending {
    bool used;
    enum zero_ring_call call;
    uint32_t layer;
    uint64_t k;        /* SUBMIT: which submission */
    uint64_t deadline; /* ns */
};

/* A layer's gradient window, as this rank's trainer sees it. */
enum window_state { WINDOW_FREE, WINDOW_HELD, WINDOW_SUBMITTED };
struct layer_window {
    enum window_state state;
    uint64_t attempt; /* in which it was granted */
    uint64_t offset;  /* bytes in the window arena */
    uint32_t k;       /* submissions in this attempt */
    uint32_t gathers; /* gathered and not released */
};

struct command {
    enum {
        COMMAND_REGISTER,
        COMMAND_ATTACH,
        COMMAND_DETACH,
        COMMAND_COPY,
        COMMAND_SAVE,
        COMMAND_UPGRADE,
        COMMAND_FINISH,
        COMMAND_STOP
    } kind;
    uint64_t token;
    struct engine_model model; /* REGISTER: layout and description are owned */
    uint32_t pid;
    bool now;              /* UPGRADE, FINISH */
    struct device_buf buf; /* COPY: owned */
    char *dir;             /* SAVE: owned */
};

/* A checkpoint on its way: see save.h. */
enum save_said { SAID_NONE, SAID_READY, SAID_COPIED, SAID_WRITTEN, SAID_FAILED };

struct save {
    struct saver *saver; /* NULL until the first one */
    uint64_t id;         /* of the last that this rank took part in */
    enum save_said said; /* of it */
    bool writing;
    bool told_folder;       /* the holder knows where the last step is to be saved */
    uint32_t region, layer; /* everything before this place is copied */
    uint64_t copy_ns;
    uint64_t copied; /* bytes, ever */
    char path[BOARD_PATH];
    /* rank 0 */
    enum {
        LEAD_NONE,
        LEAD_CLEAR, /* the last one is still being dropped */
        LEAD_PREPARE,
        LEAD_COPY,
        LEAD_BEGIN,
        LEAD_WRITE,
        LEAD_COMMIT
    } lead;
    uint64_t lead_id, count, token;
    uint64_t target;    /* the step to save; 0: any */
    uint64_t last_step; /* that is saved in the config's folder, as far as this process knows */
    uint64_t begun_ns;
    uint64_t last_ns;          /* when the last step's was begun */
    bool finished;             /* the last step's save was begun */
    char why[BOARD_TEXT + 32]; /* that one failed */
    char dir[ZERO_CONFIG_MAX_PATH];
};

/* The end of a daemon that was told to end: see finish.h. */
struct finish {
    bool told, hurried, over;
    uint64_t told_ns, met_ns; /* when it was told, and when the group last met */
    uint64_t moved_ns;        /* when the save was last seen to go on */
    uint64_t moved;           /* what was seen then */
    uint64_t said_ns;         /* when a line last said what is waited for */
    bool peer_left;           /* a peer ended in good order: it comes back soon, or not at all */
    bool unsaved;             /* given up, and logged */
};

enum { ENGINE_MAIL = 64 };

struct mail {
    pthread_mutex_t lock;
    struct command commands[ENGINE_MAIL];
    uint32_t command_head, command_count;
    struct engine_event events[ENGINE_MAIL];
    uint32_t event_head, event_count;
    struct device_buf copied; /* a version, until the loop takes it; owned */
    uint64_t copied_step;
    atomic_bool commands_wait; /* so that the worker need not take the lock to look */
    bool registering;          /* a registration is on its way, which may be cancelled, */
    bool given_up;             /* and was */
    bool finishing;            /* told to end: a group is met only for a save */
    bool ending;               /* no group is met any more */
};

struct engine {
    struct engine_options options;
    struct device *device;
    pthread_t thread;
    struct mail mail;
    struct device_buf bell_buf, ring_buf;
    struct zero_bell *bell;
    struct zero_ring *ring;
    bool stopping;

    /* the model and the group; NULL until registered */
    struct shard *shard;
    struct comm *comm; /* also NULL while a group that lost a rank meets again */
    uint32_t missing;  /* then: the first rank that is not back */
    struct journal journal;
    struct journal_record record; /* what the journal's newest says */
    int description;              /* of the model; -1: none */
    bool lodged;                  /* the holder has the arenas */
    struct store_lock claim;      /* rank 0: of zerod.checkpoint.dir */
    bool upgrade_wanted;          /* rank 0: the next decision says so */
    bool frozen;                  /* this process is about to be replaced: nothing moves */
    struct board_head *board;     /* own */
    struct board_layer *layers;   /* own */
    double *norms;                /* own */
    uint64_t epoch;
    bool lost;

    /* the attempt */
    uint64_t attempt;
    enum phase phase;
    uint64_t step, updates;
    uint32_t skipped_in_row;
    double loss_scale;
    struct scaler scaler; /* rank 0 decides with it */
    struct fold *folds;   /* a layer each */
    uint32_t *open;       /* layers to look at */
    uint32_t open_count;
    uint64_t seen[ZERO_MAX_WORLD]; /* entries read of each rank's order log */
    struct board_vote vote;        /* own, as the trainer asked */

    /* the trainer */
    bool attached;
    uint32_t trainer_pid;
    uint64_t trainer_token, detach_token;
    bool attach_waits; /* until the last step is whole on every rank: */
    struct command attach;
    bool detaching; /* waits for the outcome of a step that the trainer had asked for */
    bool broken;    /* its ring is not looked at any more */
    uint32_t head;  /* next ring entry */
    struct pending pending[ZERO_RING_SLOTS];
    uint32_t pending_count;
    struct layer_window *windows; /* a layer each */
    uint32_t held;                /* of them are with the trainer */
    uint64_t heard_ns;            /* last time that the trainer said something */
    struct window_map window_map;
    struct engine_event deferred; /* of a call without answer; told by the step */

    /* initial values */
    bool filled;
    uint64_t *fill_progress; /* elements of each tensor */
    uint64_t fill_source;    /* 1 + enum zero_fill_source; 0: none chosen */
    bool fill_asked;         /* the trainer called fill_end */

    /* a version on its way */
    struct {
        struct device_buf buf; /* owned */
        enum { COPY_NONE, COPY_WAITS, COPY_RUNS } state;
        uint64_t step;
        uint32_t layer; /* everything before this place is in */
        uint64_t index;
    } copy;

    struct save save;
    struct finish finish;

    struct engine_entry entry; /* written at attach only, as is what it points to */
    unsigned char entry_blob[ZERO_RING_MAX_BLOB];

    struct stats stats;
    uint64_t step_began_ns, asked_ns;
    uint64_t step_gathered, step_reduced;
    uint64_t next_tick_ns;
};

static inline const struct board_head *engine_board(const struct engine *e, uint32_t rank)
{
    return e->comm->peers[rank].board;
}

static inline uint64_t board_load(const _Atomic uint64_t *word)
{
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)word, memory_order_acquire);
}

/* Sequentially consistent: pairs of these order "I am there" against "is everybody?". */
static inline uint64_t board_load_ordered(const _Atomic uint64_t *word)
{
    return atomic_load((_Atomic uint64_t *)(uintptr_t)word);
}

/* The first rank whose board has less than `least` in the word at that offset; world if none has.
 */
static inline uint32_t engine_behind(const struct engine *e, size_t word_offset, uint64_t least)
{
    for (uint32_t r = 0; r < e->options.world; r++) {
        const char *board = (const char *)engine_board(e, r);
        if (board_load((const _Atomic uint64_t *)(board + word_offset)) < least)
            return r;
    }
    return e->options.world;
}

/* The first rank that is not as far as this attempt in a word of board_head. */
#define ENGINE_BEHIND(e, word) engine_behind((e), offsetof(struct board_head, word), (e)->attempt)

void engine_wake_peers(struct engine *e);
/* Wakes those that said they are listening. */
void engine_wake_listeners(struct engine *e);
void engine_post(struct engine *e, enum engine_event_kind kind, uint64_t token, zero_status status);
void engine_post_text(struct engine *e, enum engine_event_kind kind, uint64_t token,
                      zero_status status, const char *text);

#endif
