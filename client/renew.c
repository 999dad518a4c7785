/* SPDX-License-Identifier: MIT */
/* A session whose daemon died is taken up with its successor: for a trainer, same memory, same
 * places; an observer keeps its version, of which the successor knows nothing.
 *
 * Calls go on in the new session. What belongs to the attempt that was lost is answered by the new
 * daemon with STEP_ABORTED, since it names the old attempt; a step that was asked for is found in
 * the result that the daemon leaves in the ring, if it was committed.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"

bool session_enter(zero_client *client)
{
    atomic_fetch_add(&client->users, 1);
    if (!atomic_load(&client->lost))
        return true;
    session_leave(client);
    return false;
}

void session_leave(zero_client *client)
{
    atomic_fetch_sub(&client->users, 1);
}

/* A daemon that ends for good says so; its socket is not read otherwise. */
static zero_status last_words(zero_client *client)
{
    struct zero_detail detail = { "" };
    struct zero_frame frame;
    zero_status s = zero_frame_receive(client->socket, 0, /* deadline_ms= */ 0, &frame, &detail);

    if (zero_failed(s))
        return zero_success();
    if (frame.type == ZERO_FRAME_ERROR) {
        const Zero__V1__Error *error = (const Zero__V1__Error *)frame.message;
        atomic_store(&client->ended, true);
        s = client_fail(client, ZERO_DAEMON_LOST, "call daemon", "%s", error->text);
    }
    zero_frame_release(&frame);
    return s;
}

/* Checked against what this client was built on. */
static zero_status check_same(zero_client *client, const Zero__V1__Registered *message)
{
    const struct zero_client_info *info = &client->info;

    if (message->stage != info->stage || message->param_dtype != (uint32_t)info->param_dtype ||
        message->grad_dtype != (uint32_t)info->grad_dtype || message->layers != info->layer_count ||
        (client->role == ZERO_TRAINER && message->window_bytes != client->window_map.bytes))
        return client_fail(client, ZERO_MISMATCH, "attach again",
                           "the daemon that came back on rank %u has another model", client->rank);
    return zero_success();
}

static zero_status register_again(zero_client *client)
{
    Zero__V1__RegisterEnd again = ZERO__V1__REGISTER_END__INIT;
    struct zero_frame frame;

    again.model = client->model;
    zero_status s = client_send(client, ZERO_FRAME_REGISTER_END, &again.base);
    if (!zero_failed(s))
        s = client_receive(client, ZERO_FRAME_REGISTERED, ZERO_FRAME_MAX_FDS,
                           (int)client->deadline_ms, &frame);
    if (zero_failed(s))
        return s;
    s = check_same(client, (const Zero__V1__Registered *)frame.message);
    if (!zero_failed(s))
        s = mapping_renew(client, &frame);
    if (!zero_failed(s))
        client->info.epoch = ((const Zero__V1__Registered *)frame.message)->epoch;
    zero_frame_release(&frame);
    return s;
}

/* The new ring counts on where the old one stopped, so that no op is taken for one of before. */
static void renew_slots(zero_client *client)
{
    for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++)
        atomic_store(&client->ring->slots[i].state, client->waiting[i].generation << 2);
}

/* A trainer is welcomed when the group is together again; an observer at once, and the daemon may
 * not know its model yet. */
static bool try_again(const zero_client *client, zero_status s)
{
    static const struct timespec pause = { .tv_sec = 0, .tv_nsec = 20 * 1000000L };

    if (client->role == ZERO_TRAINER || s.code != ZERO_INVALID_STATE)
        return s.code == ZERO_DAEMON_LOST || s.code == ZERO_BUSY;
    nanosleep(&pause, NULL);
    return true;
}

static zero_status renew(zero_client *client)
{
    int64_t end = client_now_ms() + client->deadline_ms;
    zero_status s = last_words(client);

    if (zero_failed(s))
        return s;
    while (atomic_load(&client->users) != 0) /* no call sleeps between enter and leave */
        sched_yield();
    do {
        s = session_connect(client, end);
        if (!zero_failed(s))
            s = register_again(client);
    } while (try_again(client, s) && client_now_ms() < end);
    if (zero_failed(s))
        return s;
    if (client->role == ZERO_TRAINER)
        renew_slots(client);
    atomic_fetch_add(&client->session, 1);
    atomic_store(&client->lost, false);
    return s;
}

zero_status session_renew(zero_client *client)
{
    zero_status s = zero_success();

    if (client->layout == NULL || atomic_load(&client->ended))
        return client_fail(client, ZERO_DAEMON_LOST, "call daemon",
                           "the daemon of rank %" PRIu32 " is gone or has closed this session: "
                           "attach again",
                           client->rank);
    pthread_mutex_lock(&client->renewing);
    if (atomic_load(&client->lost))
        s = renew(client);
    if (s.code == ZERO_DEADLINE || s.code == ZERO_DAEMON_SILENT || s.code == ZERO_BUSY)
        s = client_fail(client, ZERO_DAEMON_LOST, "call daemon",
                        "the daemon of rank %" PRIu32 " is gone and was not back within %" PRIu32
                        " ms: start it, then attach again",
                        client->rank, client->deadline_ms);
    pthread_mutex_unlock(&client->renewing);
    return s;
}
