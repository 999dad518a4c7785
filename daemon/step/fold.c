/* SPDX-License-Identifier: MIT */
#include "daemon/step/fold.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/step/calls.h"
#include "daemon/step/grant.h"

enum { BLOCK = 8 * ZERO_NORM_CHUNK }; /* elements: sums of a block stay in L1/L2 for its norm */

/* ---- own submissions ------------------------------------------------------------------------ */

/* Is every other rank's k-th submission there, or known never to come? Then the peers can fold. */
static bool completes(const struct engine *e, uint32_t layer, uint32_t k)
{
    for (uint32_t r = 0; r < e->options.world; r++) {
        const struct board_head *board = engine_board(e, r);
        if (board_load_ordered(&board_layers(board)[layer].submitted) <
                BOARD_WORD(e->attempt, k, 0) &&
            board_load_ordered(&board->asked) != e->attempt)
            return false;
    }
    return true;
}

/* Entry n of the log is layer order[n % layers]. A reader has read every entry before it can have
 * folded the layer's last submission, and until then the layer is not submitted again: so an entry
 * is not overwritten before all have read it. */
static void publish(struct engine *e, uint32_t layer, const struct layer_window *window)
{
    uint64_t n = atomic_load_explicit(&e->board->submissions, memory_order_relaxed);

    e->layers[layer].window_offset = window->offset;
    e->layers[n % e->shard->layout->layer_count].order = layer;
    atomic_store(&e->board->submissions, n + 1);
    atomic_store(&e->layers[layer].submitted, BOARD_WORD(e->attempt, window->k, 0));
}

static bool under_pressure(const struct engine *e)
{
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load_ordered(&engine_board(e, r)->pressure) == e->attempt)
            return true;
    return false;
}

void fold_submit(struct engine *e, const struct zero_ring_entry *entry)
{
    const char *name = e->shard->layout->layers[entry->layer].name;
    struct layer_window *window = grant_layer(e, entry->layer);

    if (e->phase != PHASE_COLLECTING) {
        calls_refuse(e, entry->slot, ZERO_STEP_PENDING,
                     "submit of layer %s while a step is on its way: wait for the step first",
                     name);
        return;
    }
    if (window->state != WINDOW_HELD) {
        calls_refuse(e, entry->slot, ZERO_INVALID_STATE,
                     "submit of layer %s without its gradient window: zero_window first", name);
        return;
    }
    if (window->k == BOARD_MAX_K) {
        calls_refuse(e, entry->slot, ZERO_TOO_LARGE,
                     "layer %s was submitted %d times in one step: call zero_step", name,
                     BOARD_MAX_K);
        return;
    }
    window->k++;
    window->state = WINDOW_SUBMITTED;
    e->held--;
    publish(e, entry->layer, window);
    if (entry->slot != ZERO_RING_NO_SLOT) {
        calls_defer(e, entry)->k = window->k;
        atomic_store(&e->board->listening, 1);
    }
    if (completes(e, entry->layer, window->k) || under_pressure(e))
        engine_wake_peers(e);
}

/* ---- everybody's submissions ---------------------------------------------------------------- */

static struct fold *fold_of(struct engine *e, uint32_t layer)
{
    struct fold *fold = &e->folds[layer];

    if (fold->attempt != e->attempt)
        *fold = (struct fold){ .attempt = e->attempt, .k = 1, .open = fold->open };
    return fold;
}

static void open_layer(struct engine *e, uint32_t layer)
{
    struct fold *fold = fold_of(e, layer);

    if (fold->open)
        return;
    fold->open = true;
    e->open[e->open_count++] = layer;
}

/* Reads what is new in every rank's order log. */
static void read_logs(struct engine *e)
{
    uint32_t layer_count = e->shard->layout->layer_count;

    for (uint32_t r = 0; r < e->options.world; r++) {
        const struct board_head *board = engine_board(e, r);
        uint64_t last = board_load(&board->submissions);
        for (; e->seen[r] < last; e->seen[r]++) {
            uint64_t layer = board_layers(board)[e->seen[r] % layer_count].order;
            if (layer < layer_count)
                open_layer(e, (uint32_t)layer);
        }
    }
}

struct gathered {
    const unsigned char *windows[ZERO_MAX_WORLD]; /* of the layer, whole */
    uint32_t count;
    uint32_t next;     /* the first rank that is not known; world if all are */
    uint64_t received; /* how many come from peers */
};

static struct gathered gather_sources(const struct engine *e, uint32_t layer,
                                      const struct fold *fold)
{
    struct gathered found = { .next = fold->rank };

    for (; found.next < e->options.world; found.next++) {
        const struct comm_peer *peer = &e->comm->peers[found.next];
        const struct board_layer *from = &board_layers(peer->board)[layer];
        /* asked first: a rank that has asked submits nothing more */
        bool final = board_load_ordered(&peer->board->asked) == e->attempt;
        uint64_t submitted = board_load_ordered(&from->submitted);
        if (submitted >= BOARD_WORD(e->attempt, fold->k, 0) &&
            BOARD_WORD_ATTEMPT(submitted) == e->attempt) {
            found.windows[found.count++] = peer->arena[ZERO_ARENA_window] + from->window_offset;
            found.received += found.next != e->options.rank;
        } else if (!final) {
            break;
        }
    }
    return found;
}

static double *norms_at(const struct engine *e, uint32_t layer, uint64_t index)
{
    const struct zero_layer *l = &e->shard->layout->layers[layer];
    uint64_t local = l->shard_offset + index - e->options.rank * l->shard;

    return e->norms + local / ZERO_NORM_CHUNK;
}

/* Sums the tensors' elements in a block and the squares of its chunks; what lies between the
 * tensors is not the trainer's, and zero. A block inside of one tensor is done in one pass. */
static void sum_block(struct engine *e, uint32_t layer, struct zero_range block,
                      const struct gathered *from, bool accumulate)
{
    size_t grad_bytes = zero_dtype_bytes(e->shard->config.grad_dtype);
    double *squares = norms_at(e, layer, block.begin);
    const void *sources[ZERO_MAX_WORLD];
    struct zero_segment segment;
    bool whole = false;
    uint32_t cursor = 0;

    while (zero_layout_segment(e->shard->layout, layer, block, &cursor, &segment)) {
        for (uint32_t i = 0; i < from->count; i++)
            sources[i] = from->windows[i] + segment.begin * grad_bytes;
        whole = segment.begin == block.begin && segment.end == block.end;
        const struct comm_reduce op = {
            .sum = shard_own(e->shard, ZERO_ARENA_grad, layer, segment.begin),
            .squares = whole ? squares : NULL,
            .sources = sources,
            .source_count = from->count,
            .dtype = e->shard->config.grad_dtype,
            .count = segment.end - segment.begin,
            .accumulate = accumulate,
        };
        e->comm->ops->reduce(e->comm, &op);
    }
    if (!whole)
        e->device->kernels->square_sum(shard_own(e->shard, ZERO_ARENA_grad, layer, block.begin),
                                       (block.end - block.begin) / ZERO_NORM_CHUNK, squares);
}

static void sum_layer(struct engine *e, uint32_t layer, const struct gathered *from,
                      bool accumulate)
{
    struct zero_range own = shard_of_rank(e->shard, e->options.rank, layer);
    const struct zero_layer *l = &e->shard->layout->layers[layer];

    for (uint64_t at = own.begin; at < own.end; at += BLOCK) {
        calls_drain(e); /* the own trainer must not wait for a layer's worth of sums */
        struct zero_range block = { at, at + BLOCK < own.end ? at + BLOCK : own.end };
        sum_block(e, layer, block, from, accumulate);
    }
    e->step_reduced += from->received * l->shard * zero_dtype_bytes(e->shard->config.grad_dtype);
}

/* Folds what is there of a layer. `eager`: also when a later rank is missing. */
static bool fold_layer(struct engine *e, uint32_t layer, bool eager)
{
    struct fold *fold = fold_of(e, layer);
    bool any = false;

    for (;;) {
        struct gathered from = gather_sources(e, layer, fold);
        bool complete = from.next == e->options.world;
        if (from.count == 0 && (!complete || fold->rank == 0))
            break; /* nothing new, or nobody has a k-th */
        if (!complete && !eager)
            break;
        if (from.count > 0) {
            sum_layer(e, layer, &from, fold->any);
            fold->any = true;
        }
        fold->rank = complete ? 0 : from.next;
        fold->k += complete;
        atomic_store(&e->layers[layer].folded, BOARD_WORD(e->attempt, fold->k, fold->rank));
        engine_wake_listeners(e);
        any = true;
    }
    return any;
}

/* Does some rank have a submission that is not folded yet? */
static bool has_more(const struct engine *e, uint32_t layer)
{
    const struct fold *fold = &e->folds[layer];

    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load(&board_layers(engine_board(e, r))[layer].submitted) >=
            BOARD_WORD(e->attempt, fold->k, 0))
            return true;
    return fold->rank != 0;
}

bool fold_pass(struct engine *e)
{
    bool any = false;

    if (e->phase > PHASE_SUMMING)
        return false;
    read_logs(e);
    if (e->open_count == 0)
        return false;
    bool eager = under_pressure(e);
    for (uint32_t i = 0; i < e->open_count;) {
        uint32_t layer = e->open[i];
        any = fold_layer(e, layer, eager) || any;
        if (has_more(e, layer)) {
            i++;
        } else {
            e->folds[layer].open = false;
            e->open[i] = e->open[--e->open_count];
        }
    }
    return any;
}

static void clear_layer(struct engine *e, uint32_t layer)
{
    struct zero_range own = shard_of_rank(e->shard, e->options.rank, layer);

    memset(shard_own(e->shard, ZERO_ARENA_grad, layer, own.begin), 0,
           (own.end - own.begin) * sizeof(float));
    memset(norms_at(e, layer, own.begin), 0,
           (own.end - own.begin) / ZERO_NORM_CHUNK * sizeof(double));
}

void fold_finish(struct engine *e)
{
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++) {
        fold_of(e, l);
        fold_layer(e, l, /* eager= */ false);
        if (!e->folds[l].any)
            clear_layer(e, l);
    }
}

void fold_forget(struct engine *e)
{
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++)
        e->folds[l].open = false;
    e->open_count = 0;
}

/* A peer may be in this attempt already, and its log may have been read: those layers stay open. */
void fold_reset(struct engine *e)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < e->open_count; i++) {
        struct fold *fold = fold_of(e, e->open[i]);
        fold->open = has_more(e, e->open[i]);
        if (fold->open)
            e->open[kept++] = e->open[i];
    }
    e->open_count = kept;
}
