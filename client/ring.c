/* SPDX-License-Identifier: MIT */
/* Calls through shared memory: see proto/ring.h for the protocol. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "proto/bell.h"

enum {
    SPINS = 300,     /* looks at the answer before sleeping: about 10 us */
    GRACE_MS = 5000, /* beyond the daemon's own deadline */
    STATE_BITS = 3,
    GENERATION_STEP = 4,
};

/* The socket tells of life and death; frames are not read here. Within a session only. */
static bool alive(zero_client *client)
{
    struct pollfd poll_fd = { .fd = client->socket, .events = POLLRDHUP };

    if (poll(&poll_fd, 1, 0) == 0 || (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0)
        return true;
    atomic_store(&client->lost, true);
    return false;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* ---- entries -------------------------------------------------------------------------------- */

enum claim { CLAIMED, TAKEN, FULL };

/* Tries to claim the next entry. TAKEN: another thread was quicker, and the tail has moved. An
 * entry that the tail still names and that is not free is waited for, whatever its turn says. */
static enum claim try_claim(struct zero_ring *ring, uint32_t *out_position)
{
    uint32_t position = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t turn = atomic_load_explicit(&ring->entries[position % ZERO_RING_ENTRIES].turn,
                                         memory_order_acquire);

    *out_position = position;
    if (turn == position)
        return atomic_compare_exchange_weak(&ring->tail, &position, position + 1) ? CLAIMED : TAKEN;
    return atomic_load_explicit(&ring->tail, memory_order_relaxed) == position ? FULL : TAKEN;
}

static zero_status silent(zero_client *client)
{
    return client_fail(client, ZERO_DAEMON_SILENT, "call daemon",
                       "the daemon of rank %u has not read its ring for %u ms: is it stopped?",
                       client->rank, client->deadline_ms + GRACE_MS);
}

static void fill_entry(zero_client *client, uint32_t position, const struct call *call,
                       uint32_t slot)
{
    struct zero_ring_entry *entry = &client->ring->entries[position % ZERO_RING_ENTRIES];

    entry->call = (uint16_t)call->call;
    entry->slot = (uint16_t)slot;
    entry->layer = call->layer;
    entry->attempt = atomic_load_explicit(&client->attempt, memory_order_relaxed);
    memcpy(entry->arg, call->arg, sizeof entry->arg);
    atomic_store_explicit(&entry->turn, position + 1, memory_order_release);
}

/* FULL: the daemon is behind, or gone. */
static enum claim try_push(zero_client *client, const struct call *call, uint32_t slot)
{
    uint32_t position = 0;
    enum claim claim;

    if (atomic_load_explicit(&client->ring->alive, memory_order_relaxed) == 0) {
        atomic_store(&client->lost, true);
        return FULL;
    }
    do
        claim = try_claim(client->ring, &position);
    while (claim == TAKEN);
    if (claim == CLAIMED)
        fill_entry(client, position, call, slot);
    else if (alive(client))
        zero_bell_ring(client->bell, /* urgent= */ true);
    return claim;
}

/* A full ring means that the daemon is behind: it is woken and waited for. An entry of a session
 * that is lost meanwhile is lost with it. */
static zero_status push(zero_client *client, const struct call *call, uint32_t slot, bool bell)
{
    for (int64_t end = 0;;) {
        if (!session_enter(client))
            return (zero_status){ ZERO_DAEMON_LOST, "call daemon" };
        enum claim claim = try_push(client, call, slot);
        if (claim == CLAIMED && bell)
            zero_bell_ring(client->bell, slot != ZERO_RING_NO_SLOT);
        session_leave(client);
        if (claim == CLAIMED)
            return zero_success();
        if (end == 0)
            end = client_now_ms() + client->deadline_ms + GRACE_MS;
        if (client_now_ms() > end)
            return silent(client);
        sched_yield();
        zero_status s = client_interrupted(client);
        if (zero_failed(s))
            return s;
    }
}

zero_status ring_post(zero_client *client, const struct call *call, bool bell)
{
    for (;;) {
        zero_status s = push(client, call, ZERO_RING_NO_SLOT, bell);
        if (s.code != ZERO_DAEMON_LOST)
            return s;
        s = session_renew(client);
        if (zero_failed(s))
            return s;
    }
}

/* ---- slots ---------------------------------------------------------------------------------- */

static void free_slot(struct zero_ring_slot *slot, uint32_t state)
{
    atomic_store(&slot->state, (state & ~(uint32_t)STATE_BITS) | ZERO_SLOT_FREE);
}

/* A free slot of this session, or ZERO_RING_SLOTS. */
static uint32_t claim_slot(zero_client *client, const struct call *call)
{
    for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++) {
        struct zero_ring_slot *slot = &client->ring->slots[i];
        uint32_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);
        uint32_t claimed = (state & ~(uint32_t)STATE_BITS) + GENERATION_STEP + ZERO_SLOT_PENDING;
        if ((state & STATE_BITS) != ZERO_SLOT_FREE ||
            !atomic_compare_exchange_strong(&slot->state, &state, claimed))
            continue;
        client->waiting[i] = (struct waiting){ .call = call->call,
                                               .layer = call->layer,
                                               .generation = claimed >> 2,
                                               .session = atomic_load(&client->session),
                                               .offset = call->arg[3],
                                               .count = call->arg[2],
                                               .tensor = call->arg[0],
                                               .first = call->arg[1] };
        return i;
    }
    return ZERO_RING_SLOTS;
}

static zero_status begin_once(zero_client *client, const struct call *call, zero_op *out)
{
    if (!session_enter(client))
        return (zero_status){ ZERO_DAEMON_LOST, "call daemon" };
    uint32_t slot = claim_slot(client, call);
    session_leave(client);
    if (slot == ZERO_RING_SLOTS)
        return client_fail(client, ZERO_BUSY, "call daemon",
                           "%d calls are begun already: wait for some first", ZERO_RING_SLOTS);
    *out = (zero_op){ slot, client->waiting[slot].generation };
    zero_status s = push(client, call, slot, /* bell= */ true);
    if (zero_failed(s) && s.code != ZERO_DAEMON_LOST)
        free_slot(&client->ring->slots[slot], out->generation << 2);
    return s;
}

zero_status ring_begin(zero_client *client, const struct call *call, zero_op *out)
{
    for (;;) {
        zero_status s = begin_once(client, call, out);
        if (s.code != ZERO_DAEMON_LOST)
            return s;
        s = session_renew(client);
        if (zero_failed(s))
            return s;
    }
}

/* Sleeps until the state changes, or it is time to look around. */
static void sleep_on(struct zero_ring_slot *slot, uint32_t state)
{
    static const struct timespec most = { .tv_sec = 0, .tv_nsec = CLIENT_LOOK_MS * 1000000L };

    if ((state & STATE_BITS) == ZERO_SLOT_PENDING) {
        uint32_t sleeping = (state & ~(uint32_t)STATE_BITS) | ZERO_SLOT_SLEEPING;
        if (!atomic_compare_exchange_strong(&slot->state, &state, sleeping))
            return;
        state = sleeping;
    }
    syscall(SYS_futex, &slot->state, FUTEX_WAIT, state, &most, NULL, 0);
}

/* Is the session the one in which the op was begun? Looks at the socket, now and then. */
static bool same_session(zero_client *client, uint32_t session)
{
    if (!session_enter(client))
        return false;
    bool same = atomic_load(&client->session) == session && alive(client);
    session_leave(client);
    return same;
}

/* DAEMON_LOST: the op's session is. */
static zero_status wait_done(zero_client *client, struct zero_ring_slot *slot, uint32_t session,
                             uint32_t generation)
{
    int64_t end = client_now_ms() + client->deadline_ms + GRACE_MS;

    for (uint32_t spins = 0;; spins++) {
        uint32_t state = atomic_load(&slot->state);
        if (atomic_load(&client->session) != session)
            return (zero_status){ ZERO_DAEMON_LOST, "wait" };
        if (state >> 2 != generation || (state & STATE_BITS) == ZERO_SLOT_FREE)
            return client_fail(client, ZERO_INVALID_ARGUMENT, "wait",
                               "this call was waited for already");
        if ((state & STATE_BITS) == ZERO_SLOT_DONE)
            return zero_success();
        if (spins < SPINS) {
            relax();
            continue;
        }
        sleep_on(slot, state);
        if ((atomic_load(&slot->state) & STATE_BITS) == ZERO_SLOT_DONE)
            continue;
        if (!same_session(client, session))
            return (zero_status){ ZERO_DAEMON_LOST, "wait" };
        zero_status s = client_interrupted(client);
        if (zero_failed(s))
            return s;
        if (client_now_ms() > end)
            return client_fail(client, ZERO_DAEMON_SILENT, "wait",
                               "the daemon of rank %u gave no answer for %u ms: is it stopped?",
                               client->rank, client->deadline_ms + GRACE_MS);
    }
}

static zero_status read_answer(zero_client *client, const struct zero_ring_slot *slot,
                               uint64_t *out_value)
{
    char text[ZERO_RING_TEXT];

    if (out_value != NULL)
        *out_value = slot->value[0];
    if (slot->code == ZERO_OK)
        return zero_success();
    memcpy(text, slot->text, sizeof text);
    text[sizeof text - 1] = '\0';
    zero_code code = zero_code_known(slot->code) ? (zero_code)slot->code : ZERO_PROTOCOL;
    if (code == ZERO_STEP_ABORTED)
        atomic_store(&client->attempt, atomic_load(&client->ring->attempt));
    return client_fail(client, code, "call daemon", "%s", text);
}

/* An op went down with its session: renews it, if no other thread did. */
static zero_status lost_op(zero_client *client, uint32_t session, enum zero_ring_call call)
{
    if (atomic_load(&client->session) == session) {
        zero_status s = session_renew(client);
        if (zero_failed(s))
            return s;
    }
    if (call != ZERO_CALL_READ) /* which is no part of the attempt: whoever asks next is told */
        atomic_store(&client->attempt, atomic_load(&client->ring->attempt));
    return client_fail(client, ZERO_STEP_ABORTED, "call daemon",
                       "the daemon of rank %u died and is back: repeat the step", client->rank);
}

zero_status ring_wait(zero_client *client, zero_op op, enum zero_ring_call call,
                      uint64_t *out_value)
{
    if (op.slot >= ZERO_RING_SLOTS || client->ring == NULL)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "wait",
                           "this is not a call that was begun");
    if (client->waiting[op.slot].generation == op.generation &&
        client->waiting[op.slot].call != call)
        return client_fail(client, ZERO_INVALID_ARGUMENT, "wait",
                           "this op was begun by another kind of call: wait for it with the "
                           "wait of its own pair");
    struct zero_ring_slot *slot = &client->ring->slots[op.slot];
    uint32_t session = client->waiting[op.slot].generation == op.generation
                           ? client->waiting[op.slot].session
                           : atomic_load(&client->session);
    zero_status s = wait_done(client, slot, session, op.generation);
    if (s.code == ZERO_DAEMON_LOST)
        return lost_op(client, session, call);
    if (zero_failed(s)) /* the slot stays taken: its answer may still come */
        return s;
    s = read_answer(client, slot, out_value);
    free_slot(slot, op.generation << 2);
    return s;
}

zero_status ring_check_attempt(zero_client *client)
{
    uint64_t theirs = atomic_load_explicit(&client->ring->attempt, memory_order_acquire);

    if (atomic_load_explicit(&client->step_asked, memory_order_relaxed))
        return client_fail(client, ZERO_STEP_PENDING, "call daemon",
                           "the last zero_step has not ended: call it again to wait on");
    if (theirs == atomic_load_explicit(&client->attempt, memory_order_relaxed))
        return zero_success();
    atomic_store(&client->attempt, theirs);
    return client_fail(client, ZERO_STEP_ABORTED, "call daemon",
                       "the group dropped the step in progress: repeat it");
}
