/* SPDX-License-Identifier: MIT */
/* Observers: versions are asked for on the socket, mapped, and given back. */
#include <inttypes.h>

#include "client/client.h"

enum { LATE_MS = 5000 }; /* the daemon keeps the deadline; it may be this late to say so */

static zero_status check_observer(const zero_client *client)
{
    if (client->role == ZERO_OBSERVER && client->layout != NULL)
        return zero_success();
    return client_fail(client, ZERO_INVALID_STATE, "use versions",
                       "attach as ZERO_OBSERVER and zero_register first");
}

static zero_status ask_once(zero_client *client, enum zero_frame_type type, const void *message,
                            struct zero_frame *out)
{
    enum zero_frame_type wanted =
        type == ZERO_FRAME_VERSION_LIST ? ZERO_FRAME_VERSION_STEPS : ZERO_FRAME_VERSION_OPENED;
    zero_status s = client_send(client, type, message);

    if (!zero_failed(s))
        s = client_receive(client, wanted, 1, (int)client->deadline_ms + LATE_MS, out);
    if (s.code == ZERO_DAEMON_LOST && !atomic_load(&client->lost)) { /* it said so: for good */
        atomic_store(&client->ended, true);
        atomic_store(&client->lost, true);
    }
    return s;
}

/* Asks the daemon, or its successor. */
static zero_status ask(zero_client *client, enum zero_frame_type type, const void *message,
                       struct zero_frame *out)
{
    int64_t end = client_now_ms() + client->deadline_ms;
    zero_status s;

    do {
        s = atomic_load(&client->lost) ? session_renew(client) : zero_success();
        if (!zero_failed(s))
            s = ask_once(client, type, message, out);
    } while (s.code == ZERO_DAEMON_LOST && !atomic_load(&client->ended) && client_now_ms() < end);
    return s;
}

zero_status zero_version_open(zero_client *client, uint64_t step, uint64_t *out_step)
{
    Zero__V1__VersionOpen message = ZERO__V1__VERSION_OPEN__INIT;
    struct zero_frame frame;
    zero_status s = check_observer(client);

    if (!zero_failed(s) && client->params != NULL)
        s = client_fail(client, ZERO_INVALID_STATE, "open version",
                        "the version of step %" PRIu64 " is open: zero_version_close first",
                        client->info.step);
    if (zero_failed(s))
        return s;
    message.step = step;
    s = ask(client, ZERO_FRAME_VERSION_OPEN, &message.base, &frame);
    if (zero_failed(s))
        return s;
    if (frame.fd_count == 1)
        s = mapping_version(client, frame.fds[0]);
    else
        s = client_fail(client, ZERO_PROTOCOL, "open version", "it came without its memory");
    if (zero_failed(s)) {
        atomic_store(&client->lost, true); /* the daemon holds it to be open */
    } else {
        client->version_session = atomic_load(&client->session);
        client->info.step = ((const Zero__V1__VersionOpened *)frame.message)->step;
        if (out_step != NULL)
            *out_step = client->info.step;
    }
    zero_frame_release(&frame);
    return s;
}

zero_status zero_version_close(zero_client *client)
{
    Zero__V1__VersionClose message = ZERO__V1__VERSION_CLOSE__INIT;
    struct zero_frame frame;
    zero_status s = check_observer(client);

    if (!zero_failed(s) && client->params == NULL)
        s = client_fail(client, ZERO_INVALID_STATE, "close version", "no version is open");
    if (zero_failed(s))
        return s;
    mapping_unversion(client);
    if (atomic_load(&client->lost) || client->version_session != atomic_load(&client->session))
        return s; /* the daemon that knew of it is gone */
    s = ask_once(client, ZERO_FRAME_VERSION_CLOSE, &message.base, &frame);
    if (s.code == ZERO_DAEMON_LOST)
        return zero_success();
    if (!zero_failed(s))
        zero_frame_release(&frame);
    return s;
}

zero_status zero_versions(zero_client *client, uint64_t *steps, size_t capacity, size_t *out_count)
{
    Zero__V1__VersionList message = ZERO__V1__VERSION_LIST__INIT;
    struct zero_frame frame;
    zero_status s = check_observer(client);

    if (!zero_failed(s))
        s = client_need(client, out_count, "out_count");
    if (!zero_failed(s) && capacity > 0)
        s = client_need(client, steps, "steps");
    if (!zero_failed(s))
        s = ask(client, ZERO_FRAME_VERSION_LIST, &message.base, &frame);
    if (zero_failed(s))
        return s;
    const Zero__V1__VersionSteps *answer = (const Zero__V1__VersionSteps *)frame.message;
    for (size_t i = 0; i < answer->n_steps && i < capacity; i++)
        steps[i] = answer->steps[i];
    *out_count = answer->n_steps;
    zero_frame_release(&frame);
    return s;
}
