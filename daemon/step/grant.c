/* SPDX-License-Identifier: MIT */
#include "daemon/step/grant.h"

#include "daemon/step/calls.h"

static bool recycled(const struct engine *e)
{
    return e->shard->config.stage >= 2;
}

static uint64_t window_bytes(const struct engine *e, uint32_t layer)
{
    return e->shard->layout->layers[layer].flat * zero_dtype_bytes(e->shard->config.grad_dtype);
}

struct layer_window *grant_layer(struct engine *e, uint32_t layer)
{
    struct layer_window *window = &e->windows[layer];

    if (window->attempt != e->attempt) {
        window->attempt = e->attempt;
        window->state = WINDOW_FREE;
        window->k = 0;
    }
    return window;
}

/* Has every rank folded this rank's last submission of the layer? */
static bool consumed(const struct engine *e, uint32_t layer, uint32_t k)
{
    uint64_t word = BOARD_WORD(e->attempt, k, e->options.rank);

    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load_ordered(&board_layers(engine_board(e, r))[layer].folded) <= word)
            return false;
    return true;
}

/* Takes the window of a layer back if it can be. */
static bool reclaim(struct engine *e, uint32_t layer)
{
    struct layer_window *window = grant_layer(e, layer);

    if (window->state != WINDOW_SUBMITTED || !consumed(e, layer, window->k))
        return false;
    window->state = WINDOW_FREE;
    if (recycled(e))
        window_map_give(&e->window_map, window->offset);
    return true;
}

static bool try_grant(struct engine *e, uint32_t slot, uint32_t layer)
{
    struct layer_window *window = grant_layer(e, layer);

    if (window->state == WINDOW_SUBMITTED)
        return false;
    if (window->state == WINDOW_FREE) {
        uint64_t offset = e->shard->layout->layers[layer].flat_offset *
                          zero_dtype_bytes(e->shard->config.grad_dtype);
        if (recycled(e) && !window_map_take(&e->window_map, window_bytes(e, layer), &offset))
            return false;
        window->offset = offset;
        window->state = WINDOW_HELD;
        e->held++;
    }
    calls_answer(e, slot, ZERO_OK, window->offset, NULL);
    return true;
}

/* Tells the peers that this rank's trainer is stuck: they then fold what they can, in order,
 * instead of waiting until all of a layer is there. */
static void set_pressure(struct engine *e, bool stuck)
{
    uint64_t wanted = stuck ? e->attempt : 0;

    if (atomic_load_explicit(&e->board->pressure, memory_order_relaxed) == wanted)
        return;
    atomic_store(&e->board->pressure, wanted);
    if (stuck)
        engine_wake_peers(e);
}

void grant_window(struct engine *e, const struct zero_ring_entry *entry)
{
    if (e->phase != PHASE_COLLECTING) {
        calls_refuse(e, entry->slot, ZERO_STEP_PENDING,
                     "window of layer %s while a step is on its way: wait for the step first",
                     e->shard->layout->layers[entry->layer].name);
        return;
    }
    reclaim(e, entry->layer);
    if (try_grant(e, entry->slot, entry->layer))
        return;
    calls_defer(e, entry);
    atomic_store(&e->board->listening, 1);
}

/* Answers the calls that can be; true if some wait on. */
static bool serve_waiting(struct engine *e, bool *changed)
{
    bool waiting = false, stuck = false;

    for (uint32_t slot = 0; e->pending_count && slot < ZERO_RING_SLOTS; slot++) {
        const struct pending *pending = &e->pending[slot];
        if (!pending->used)
            continue;
        bool done = false;
        if (pending->call == ZERO_CALL_WINDOW) {
            done = try_grant(e, slot, pending->layer);
            stuck = stuck || !done;
        } else if (pending->call == ZERO_CALL_SUBMIT) {
            const struct layer_window *window = grant_layer(e, pending->layer);
            done = window->k > pending->k || window->state != WINDOW_SUBMITTED;
            if (done)
                calls_answer(e, slot, ZERO_OK, 0, NULL);
        } else {
            continue;
        }
        *changed = *changed || done;
        waiting = waiting || !done;
    }
    set_pressure(e, stuck);
    return waiting;
}

bool grant_pass(struct engine *e)
{
    bool changed = false;

    if (e->pending_count == 0 || e->phase != PHASE_COLLECTING)
        return false;
    if (calls_find(e, ZERO_CALL_WINDOW) == ZERO_RING_NO_SLOT &&
        calls_find(e, ZERO_CALL_SUBMIT) == ZERO_RING_NO_SLOT)
        return false;
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++)
        changed = reclaim(e, l) || changed;
    bool waiting = serve_waiting(e, &changed);
    atomic_store(&e->board->listening, waiting ? 1 : 0);
    return changed;
}

void grant_reset(struct engine *e)
{
    window_map_clear(&e->window_map);
    e->held = 0;
    for (uint32_t l = 0; l < e->shard->layout->layer_count; l++)
        e->windows[l].state = WINDOW_FREE;
    atomic_store(&e->board->pressure, 0);
    atomic_store(&e->board->listening, 0);
}
