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

enum {
    SPINS = 300,     /* looks at the answer before sleeping: about 10 us */
    LOOK_MS = 200,   /* how often a sleeper looks whether the daemon still lives */
    GRACE_MS = 5000, /* beyond the daemon's own deadline */
    STATE_BITS = 3,
    GENERATION_STEP = 4,
};

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static zero_status daemon_gone(zero_client *client)
{
    atomic_store(&client->lost, true);
    return client_fail(client, ZERO_DAEMON_LOST, "call daemon",
                       "the daemon of rank %u is gone or has closed this session: attach again",
                       client->rank);
}

/* The socket tells of life and death; frames are not read here. */
static bool alive(zero_client *client)
{
    struct pollfd poll_fd = { .fd = client->socket, .events = POLLRDHUP };

    if (atomic_load(&client->lost))
        return false;
    return poll(&poll_fd, 1, 0) == 0 || (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0;
}

/* Waking a thread on an idle core costs the caller up to 30 us on a virtual machine: what nobody
 * waits for does not interrupt a nap. */
static void ring_bell(zero_client *client, bool urgent)
{
    atomic_fetch_add(&client->bell->count, 1);
    uint32_t asleep = atomic_load(&client->bell->asleep);
    if (asleep == ZERO_BELL_ASLEEP || (urgent && asleep == ZERO_BELL_NAPPING))
        syscall(SYS_futex, &client->bell->count, FUTEX_WAKE, 1, NULL, NULL, 0);
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

/* Claims the next free entry. A full ring means that the daemon is behind: it is woken and waited
 * for. */
static zero_status claim_entry(zero_client *client, uint32_t *out_position)
{
    int64_t end = 0;

    for (;;) {
        enum claim claim = try_claim(client->ring, out_position);
        if (claim == CLAIMED)
            return zero_success();
        if (claim == TAKEN)
            continue;
        ring_bell(client, /* urgent= */ true);
        if (!alive(client))
            return daemon_gone(client);
        if (end == 0)
            end = now_ms() + client->deadline_ms + GRACE_MS;
        if (now_ms() > end)
            return client_fail(
                client, ZERO_DAEMON_SILENT, "call daemon",
                "the daemon of rank %u has not read its ring for %u ms: is it stopped?",
                client->rank, client->deadline_ms + GRACE_MS);
        sched_yield();
    }
}

static zero_status push(zero_client *client, const struct call *call, uint32_t slot, bool bell)
{
    uint32_t position = 0;
    if (atomic_load_explicit(&client->ring->alive, memory_order_relaxed) == 0 ||
        atomic_load_explicit(&client->lost, memory_order_relaxed))
        return daemon_gone(client);
    zero_status s = claim_entry(client, &position);
    if (zero_failed(s))
        return s;
    struct zero_ring_entry *entry = &client->ring->entries[position % ZERO_RING_ENTRIES];
    entry->call = (uint16_t)call->call;
    entry->slot = (uint16_t)slot;
    entry->layer = call->layer;
    entry->attempt = atomic_load_explicit(&client->attempt, memory_order_relaxed);
    memcpy(entry->arg, call->arg, sizeof entry->arg);
    atomic_store_explicit(&entry->turn, position + 1, memory_order_release);
    if (bell)
        ring_bell(client, slot != ZERO_RING_NO_SLOT);
    return zero_success();
}

zero_status ring_post(zero_client *client, const struct call *call, bool bell)
{
    return push(client, call, ZERO_RING_NO_SLOT, bell);
}

/* ---- slots ---------------------------------------------------------------------------------- */

static void free_slot(struct zero_ring_slot *slot, uint32_t state)
{
    atomic_store(&slot->state, (state & ~(uint32_t)STATE_BITS) | ZERO_SLOT_FREE);
}

zero_status ring_begin(zero_client *client, const struct call *call, zero_op *out)
{
    for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++) {
        struct zero_ring_slot *slot = &client->ring->slots[i];
        uint32_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);
        uint32_t claimed = (state & ~(uint32_t)STATE_BITS) + GENERATION_STEP + ZERO_SLOT_PENDING;
        if ((state & STATE_BITS) != ZERO_SLOT_FREE ||
            !atomic_compare_exchange_strong(&slot->state, &state, claimed))
            continue;
        client->waiting[i] =
            (struct waiting){ call->call, call->layer, claimed >> 2, call->arg[3], call->arg[2] };
        zero_status s = push(client, call, i, /* bell= */ true);
        if (zero_failed(s)) {
            free_slot(slot, claimed);
            return s;
        }
        *out = (zero_op){ i, claimed >> 2 };
        return s;
    }
    return client_fail(client, ZERO_BUSY, "call daemon",
                       "%d calls are begun already: wait for some first", ZERO_RING_SLOTS);
}

/* Sleeps until the state changes, or it is time to look around. */
static void sleep_on(struct zero_ring_slot *slot, uint32_t state)
{
    static const struct timespec most = { .tv_sec = 0, .tv_nsec = LOOK_MS * 1000000L };

    if ((state & STATE_BITS) == ZERO_SLOT_PENDING) {
        uint32_t sleeping = (state & ~(uint32_t)STATE_BITS) | ZERO_SLOT_SLEEPING;
        if (!atomic_compare_exchange_strong(&slot->state, &state, sleeping))
            return;
        state = sleeping;
    }
    syscall(SYS_futex, &slot->state, FUTEX_WAIT, state, &most, NULL, 0);
}

static zero_status wait_done(zero_client *client, struct zero_ring_slot *slot, uint32_t generation)
{
    int64_t end = now_ms() + client->deadline_ms + GRACE_MS;

    for (uint32_t spins = 0;; spins++) {
        uint32_t state = atomic_load(&slot->state);
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
        if (!alive(client))
            return daemon_gone(client);
        if (now_ms() > end)
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
    zero_status s = wait_done(client, slot, op.generation);
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
