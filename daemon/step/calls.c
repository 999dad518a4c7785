/* SPDX-License-Identifier: MIT */
#include "daemon/step/calls.h"

#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/fill.h"
#include "daemon/step/fold.h"
#include "daemon/step/grant.h"
#include "daemon/step/phases.h"
#include "daemon/step/read.h"
#include "daemon/step/wait.h"

enum { DRAIN_AT_ONCE = 256 }; /* then the group's work gets its turn */

enum {
    NEEDS_LAYER = 1,
    NEEDS_SLOT = 2,
    NEEDS_VALUES = 4, /* initial values are in */
    OF_ATTEMPT = 8    /* belongs to the attempt it names */
};

static void handle_gather(struct engine *e, const struct zero_ring_entry *entry);
static void handle_prefetch(struct engine *e, const struct zero_ring_entry *entry);
static void handle_release(struct engine *e, const struct zero_ring_entry *entry);

static const struct route {
    void (*handle)(struct engine *e, const struct zero_ring_entry *entry);
    unsigned needs;
} routes[ZERO_CALLS] = {
    [ZERO_CALL_GATHER] = { handle_gather, NEEDS_LAYER | NEEDS_VALUES },
    [ZERO_CALL_PREFETCH] = { handle_prefetch, NEEDS_LAYER },
    [ZERO_CALL_RELEASE] = { handle_release, NEEDS_LAYER },
    [ZERO_CALL_WINDOW] = { grant_window, NEEDS_LAYER | NEEDS_SLOT | NEEDS_VALUES | OF_ATTEMPT },
    [ZERO_CALL_SUBMIT] = { fold_submit, NEEDS_LAYER | NEEDS_VALUES | OF_ATTEMPT },
    [ZERO_CALL_STEP] = { phases_ask, NEEDS_SLOT | NEEDS_VALUES | OF_ATTEMPT },
    [ZERO_CALL_FILL_FROM] = { fill_from, NEEDS_SLOT },
    [ZERO_CALL_FILL] = { fill_piece, NEEDS_LAYER | NEEDS_SLOT | OF_ATTEMPT },
    [ZERO_CALL_FILL_END] = { fill_end, NEEDS_SLOT | OF_ATTEMPT },
    [ZERO_CALL_READ] = { read_state, NEEDS_LAYER | NEEDS_SLOT | NEEDS_VALUES },
};

void calls_break(struct engine *e, const char *format, ...)
{
    char text[ZERO_DETAIL_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    e->broken = true;
    LOG_LIMITED(1, WARNING, "read ring: %s", text);
    engine_post(e, ENGINE_BROKEN, e->trainer_token, REFUSE(PROTOCOL, "read ring", "%s", text));
}

void calls_answer(struct engine *e, uint32_t slot, zero_code code, uint64_t value, const char *text)
{
    struct zero_ring_slot *to = &e->ring->slots[slot];

    if (e->pending[slot].used) {
        e->pending[slot].used = false;
        e->pending_count--;
    }
    to->code = (uint32_t)code;
    to->value[0] = value;
    snprintf(to->text, sizeof to->text, "%s", text ? text : "");
    uint32_t before = atomic_fetch_or(&to->state, (uint32_t)ZERO_SLOT_DONE);
    if ((before & 3) == ZERO_SLOT_SLEEPING)
        syscall(SYS_futex, &to->state, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void calls_refuse(struct engine *e, uint32_t slot, zero_code code, const char *format, ...)
{
    char text[ZERO_RING_TEXT];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (slot != ZERO_RING_NO_SLOT) {
        calls_answer(e, slot, code, 0, text);
        return;
    }
    if (e->deferred.status.code == ZERO_OK) { /* the step tells the first one */
        e->deferred.status = (zero_status){ code, "one-way call" };
        snprintf(e->deferred.text, sizeof e->deferred.text, "%s", text);
    }
}

struct pending *calls_defer(struct engine *e, const struct zero_ring_entry *entry)
{
    struct pending *pending = &e->pending[entry->slot];

    *pending = (struct pending){
        .used = true,
        .call = (enum zero_ring_call)entry->call,
        .layer = entry->layer,
        .deadline = clock_ns() + (uint64_t)e->shard->config.deadline_ms * 1000000,
    };
    e->pending_count++;
    return pending;
}

uint32_t calls_find(const struct engine *e, enum zero_ring_call call)
{
    for (uint32_t slot = 0; e->pending_count && slot < ZERO_RING_SLOTS; slot++)
        if (e->pending[slot].used && e->pending[slot].call == call)
            return slot;
    return ZERO_RING_NO_SLOT;
}

void calls_answer_attempt(struct engine *e, zero_code code, const char *text)
{
    for (uint32_t slot = 0; e->pending_count && slot < ZERO_RING_SLOTS; slot++)
        if (e->pending[slot].used && (routes[e->pending[slot].call].needs & OF_ATTEMPT))
            calls_answer(e, slot, code, 0, text);
}

void calls_answer_all(struct engine *e, zero_code code, const char *text)
{
    for (uint32_t slot = 0; e->pending_count && slot < ZERO_RING_SLOTS; slot++)
        if (e->pending[slot].used)
            calls_answer(e, slot, code, 0, text);
}

void calls_expire(struct engine *e, uint64_t now)
{
    char text[ZERO_RING_TEXT];

    for (uint32_t slot = 0; e->pending_count && slot < ZERO_RING_SLOTS; slot++) {
        if (!e->pending[slot].used || e->pending[slot].deadline > now)
            continue;
        struct wait_reason reason = wait_for_call(e, &e->pending[slot]);
        wait_text(&reason, e->shard ? e->shard->layout : NULL, text, sizeof text);
        calls_answer(e, slot, ZERO_DEADLINE, 0, text);
    }
}

/* Bytes count once for each time a layer that was not gathered is: that is what moves where a
 * gather copies. */
static void handle_gather(struct engine *e, const struct zero_ring_entry *entry)
{
    const struct zero_layer *layer = &e->shard->layout->layers[entry->layer];

    if (e->phase != PHASE_COLLECTING && entry->slot != ZERO_RING_NO_SLOT) {
        calls_refuse(e, entry->slot, ZERO_STEP_PENDING,
                     "gather of layer %s while a step is on its way: wait for the step first",
                     layer->name);
        return;
    }
    if (e->windows[entry->layer].gathers++ == 0 && e->shard->config.stage == 3)
        e->step_gathered += layer->shard * (layer->flat / layer->shard - 1) *
                            zero_dtype_bytes(e->shard->config.param_dtype);
    if (entry->slot != ZERO_RING_NO_SLOT)
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
}

/* Every layer is mapped at attach on one host: there is nothing to fetch ahead. */
static void handle_prefetch(struct engine *e, const struct zero_ring_entry *entry)
{
    if (entry->slot != ZERO_RING_NO_SLOT)
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
}

static void handle_release(struct engine *e, const struct zero_ring_entry *entry)
{
    if (e->windows[entry->layer].gathers > 0)
        e->windows[entry->layer].gathers--;
    if (entry->slot != ZERO_RING_NO_SLOT)
        calls_answer(e, entry->slot, ZERO_OK, 0, NULL);
}

/* False: the entry has been dealt with. */
static bool allowed(struct engine *e, const struct zero_ring_entry *entry)
{
    unsigned needs = routes[entry->call].needs;

    if ((needs & NEEDS_LAYER) && entry->layer >= e->shard->layout->layer_count) {
        calls_refuse(e, entry->slot, ZERO_INVALID_ARGUMENT, "layer %u: the model has %u",
                     entry->layer, e->shard->layout->layer_count);
        return false;
    }
    if (e->lost) {
        calls_refuse(
            e, entry->slot, ZERO_PEER_LOST,
            "the daemons of the group do not belong together any more: see their logs, and "
            "restore the newest checkpoint");
        return false;
    }
    if ((needs & NEEDS_VALUES) && !e->filled) {
        calls_refuse(e, entry->slot, ZERO_INVALID_STATE,
                     "the model has no initial values yet: zero_fill and zero_fill_end first");
        return false;
    }
    if ((needs & OF_ATTEMPT) && entry->attempt != e->attempt) {
        if (entry->slot != ZERO_RING_NO_SLOT)
            calls_answer(e, entry->slot, ZERO_STEP_ABORTED, 0,
                         "the group dropped the step in progress: repeat it");
        return false;
    }
    return true;
}

static void dispatch(struct engine *e, const struct zero_ring_entry *entry)
{
    if (entry->call >= ZERO_CALLS) {
        calls_break(e, "call %u does not exist", entry->call);
        return;
    }
    bool with_slot = entry->slot != ZERO_RING_NO_SLOT;
    if (with_slot && (entry->slot >= ZERO_RING_SLOTS || e->pending[entry->slot].used)) {
        calls_break(e, "slot %u is not free", entry->slot);
        return;
    }
    if (!with_slot && (routes[entry->call].needs & NEEDS_SLOT)) {
        calls_break(e, "call %u came without a slot", entry->call);
        return;
    }
    if (allowed(e, entry))
        routes[entry->call].handle(e, entry);
}

bool calls_drain(struct engine *e)
{
    bool any = false;

    for (int n = 0; n < DRAIN_AT_ONCE && e->attached && !e->broken; n++) {
        struct zero_ring_entry *from = &e->ring->entries[e->head % ZERO_RING_ENTRIES];
        uint32_t turn = atomic_load_explicit(&from->turn, memory_order_acquire);
        if (turn == e->head)
            break;
        if (turn != e->head + 1) {
            calls_break(e, "entry %u says turn %u", e->head, turn);
            break;
        }
        struct zero_ring_entry entry = { .call = from->call,
                                         .slot = from->slot,
                                         .layer = from->layer,
                                         .attempt = from->attempt,
                                         .arg = { from->arg[0], from->arg[1], from->arg[2],
                                                  from->arg[3] } };
        atomic_store_explicit(&from->turn, e->head + ZERO_RING_ENTRIES, memory_order_release);
        e->head++;
        any = true;
        e->heard_ns = clock_ns();
        dispatch(e, &entry);
    }
    return any;
}
