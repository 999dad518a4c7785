/* SPDX-License-Identifier: MIT */
#include "daemon/session/versions.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/session/client.h"

static struct device *device_of(const struct sessions *sessions)
{
    return engine_shard(sessions->options.engine)->device;
}

static uint64_t last_step(const struct sessions *sessions)
{
    return stats_get(&engine_stats(sessions->options.engine)->step);
}

struct zero_versions_plan sessions_versions_plan(const struct sessions *sessions)
{
    const struct shard *shard = engine_shard(sessions->options.engine);

    return zero_plan_versions(shard->layout->flat_total, &shard->config);
}

/* ---- what is kept --------------------------------------------------------------------------- */

static struct version *find(struct versions *versions, uint64_t step)
{
    for (uint32_t i = 0; i < versions->count; i++)
        if (versions->kept[i].step == step)
            return &versions->kept[i];
    return NULL;
}

static void drop(struct sessions *sessions, struct version *version)
{
    struct versions *versions = &sessions->versions;
    struct device *device = device_of(sessions);
    const struct version *end = &versions->kept[--versions->count];

    device->ops->free(device, &version->buf);
    for (; version < end; version++)
        version[0] = version[1];
}

/* Lets the oldest that nobody reads go, if there must be room for one more. */
static zero_status make_room(struct sessions *sessions)
{
    struct versions *versions = &sessions->versions;
    struct zero_versions_plan plan = sessions_versions_plan(sessions);

    if (plan.count == 0)
        return REFUSE(TOO_LARGE, "make version",
                      "a version has %" PRIu64 " bytes, zerod.versions.max_bytes allows %" PRIu64
                      ": raise it",
                      plan.each, engine_shard(sessions->options.engine)->config.versions_max_bytes);
    while (versions->count >= plan.count) {
        uint32_t oldest = 0;
        while (oldest < versions->count && versions->kept[oldest].readers > 0)
            oldest++;
        if (oldest == versions->count)
            return REFUSE(BUSY, "make version",
                          "all %" PRIu64
                          " versions that rank %u may keep are being read: close one, or raise %s",
                          plan.count, sessions->options.rank,
                          plan.count < engine_shard(sessions->options.engine)->config.versions_keep
                              ? "zerod.versions.max_bytes"
                              : "zerod.versions.keep");
        drop(sessions, &versions->kept[oldest]);
    }
    return zero_success();
}

/* ---- who waits ------------------------------------------------------------------------------ */

static void give(struct client *client, struct version *version)
{
    const struct zero_frame_fds fds = { &version->buf.read_fd, 1 };
    Zero__V1__VersionOpened message = ZERO__V1__VERSION_OPENED__INIT;

    message.step = version->step;
    client->reads = READS_VERSION;
    client->version = version->step;
    version->readers++;
    client_send(client, ZERO_FRAME_VERSION_OPENED, &message.base, &fds);
}

static void refuse_waiting(struct sessions *sessions, zero_status s, const char *detail)
{
    char text[ZERO_DETAIL_BYTES];

    snprintf(text, sizeof text, "%s", detail);
    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        if (c->reads != READS_SOON)
            continue;
        c->reads = READS_NOTHING;
        client_refuse(c, fail_refuse(s.code, s.doing, "%s", text));
    }
}

/* ---- making one ----------------------------------------------------------------------------- */

/* On a thread of libuv's pool. */
static void allocate(uv_work_t *work)
{
    struct sessions *sessions = work->data;
    struct device *device = device_of(sessions);
    struct versions *versions = &sessions->versions;
    zero_status s = device->ops->check_room(device, versions->draft.bytes);

    if (!zero_failed(s))
        s = device->ops->draft(device, "version", versions->draft.bytes, &versions->draft.buf);
    versions->draft.status = s;
    snprintf(versions->draft.text, sizeof versions->draft.text,
             "a version of %zu bytes has no room: %s", versions->draft.bytes,
             zero_failed(s) ? fail_detail() : "");
}

static void on_allocated(uv_work_t *work, int status)
{
    struct sessions *sessions = work->data;
    struct versions *versions = &sessions->versions;
    struct device *device = device_of(sessions);
    zero_status s = versions->draft.status;

    (void)status; /* nothing cancels it */
    sessions->open_handles--;
    if (sessions->closing) {
        device->ops->free(device, &versions->draft.buf);
        sessions_handle_closed(sessions);
        return;
    }
    versions->making = zero_failed(s) ? MAKING_NOTHING : MAKING_COPY;
    if (zero_failed(s))
        refuse_waiting(sessions, s, versions->draft.text);
    else
        engine_copy(sessions->options.engine, &versions->draft.buf);
    memset(&versions->draft, 0, sizeof versions->draft);
}

static zero_status make(struct sessions *sessions)
{
    struct versions *versions = &sessions->versions;

    if (versions->making != MAKING_NOTHING)
        return zero_success();
    zero_status s = make_room(sessions);
    if (zero_failed(s))
        return s;
    versions->making = MAKING_MEMORY;
    versions->draft.bytes = (size_t)sessions_versions_plan(sessions).each;
    versions->work.data = sessions;
    sessions->open_handles++;
    uv_queue_work(sessions->options.loop, &versions->work, allocate, on_allocated);
    return s;
}

/* Steps do not come twice: two versions are never of the same one, unless a second was asked for
 * in the moment in which the first was made. */
static struct version *keep(struct sessions *sessions, const struct device_buf *buf, uint64_t step)
{
    struct versions *versions = &sessions->versions;
    struct device *device = device_of(sessions);
    struct version *same = find(versions, step);
    struct device_buf copy = *buf;

    if (same != NULL) {
        device->ops->free(device, &copy);
        return same;
    }
    versions->kept[versions->count] =
        (struct version){ .buf = copy, .step = step, .made_ns = clock_ns() };
    return &versions->kept[versions->count++];
}

/* Those who asked after the copy was made need another. */
static void serve_waiting(struct sessions *sessions, struct version *version)
{
    bool more = false;

    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        if (c->reads == READS_SOON && c->version <= version->step)
            give(c, version);
        more = more || c->reads == READS_SOON;
    }
    zero_status s = more ? make(sessions) : zero_success();
    if (zero_failed(s))
        refuse_waiting(sessions, s, fail_detail());
}

void versions_copied(struct sessions *sessions, const struct engine_event *event)
{
    struct device *device = device_of(sessions);
    struct device_buf buf;
    uint64_t step;
    zero_status s = event->status;
    const char *text = event->text;

    engine_take_copy(sessions->options.engine, &buf, &step);
    sessions->versions.making = MAKING_NOTHING;
    if (!zero_failed(s)) {
        s = device->ops->freeze(device, &buf);
        text = fail_detail();
    }
    if (zero_failed(s)) {
        device->ops->free(device, &buf);
        refuse_waiting(sessions, s, text);
        return;
    }
    serve_waiting(sessions, keep(sessions, &buf, step));
}

void sessions_stepped(struct sessions *sessions)
{
    struct versions *versions = &sessions->versions;

    if (sessions->model != MODEL_JOINED)
        return;
    uint32_t every = engine_shard(sessions->options.engine)->config.versions_every;
    uint64_t step = last_step(sessions);
    if (every == 0 || step / every == versions->due)
        return;
    versions->due = step / every;
    if (find(versions, step) == NULL && zero_failed(make(sessions)))
        LOG_DEBUG("no version of step %" PRIu64, step); /* all are being read */
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool may_ask(struct client *client)
{
    if (client->role == ROLE_OBSERVER && client->state == ATTACHED)
        return true;
    client_refuse(client, REFUSE(INVALID_STATE, "use versions",
                                 "versions are for observers that have registered"));
    return false;
}

static zero_status not_found(const struct sessions *sessions, uint64_t step)
{
    const struct versions *versions = &sessions->versions;
    char list[256] = "none: open ZERO_LATEST";
    size_t used = 0;

    for (uint32_t i = 0; i < versions->count && used < sizeof list; i++)
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%" PRIu64, i ? ", " : "",
                                 versions->kept[i].step);
    return REFUSE(NOT_FOUND, "open version",
                  "rank %u keeps no version of step %" PRIu64 "; those that it keeps: %s",
                  sessions->options.rank, step, list);
}

void versions_open(struct client *client, const Zero__V1__VersionOpen *message)
{
    struct sessions *sessions = client->sessions;
    bool latest = message->step == UINT64_MAX;
    uint64_t step = latest ? last_step(sessions) : message->step;

    if (!may_ask(client))
        return;
    if (client->reads != READS_NOTHING) {
        client_refuse(client, REFUSE(INVALID_STATE, "open version",
                                     "a version is open: close it before another"));
        return;
    }
    struct version *version = find(&sessions->versions, step);
    if (version != NULL) {
        give(client, version);
        return;
    }
    zero_status s = latest ? make(sessions) : not_found(sessions, step);
    if (zero_failed(s)) {
        client_refuse(client, s);
        return;
    }
    client->reads = READS_SOON;
    client->version = step;
    client->deadline_ns =
        clock_ns() + (uint64_t)engine_shard(sessions->options.engine)->config.deadline_ms * 1000000;
    sessions_start_tick(sessions);
}

void versions_leave(struct client *client)
{
    struct version *version = find(&client->sessions->versions, client->version);

    if (client->reads == READS_VERSION)
        version->readers--;
    client->reads = READS_NOTHING;
}

void versions_close(struct client *client)
{
    Zero__V1__VersionOpened message = ZERO__V1__VERSION_OPENED__INIT;

    if (!may_ask(client))
        return;
    if (client->reads != READS_VERSION) {
        client_refuse(client, REFUSE(INVALID_STATE, "close version", "no version is open"));
        return;
    }
    message.step = client->version;
    versions_leave(client);
    client_send(client, ZERO_FRAME_VERSION_OPENED, &message.base, NULL);
}

void versions_list(struct client *client)
{
    const struct versions *versions = &client->sessions->versions;
    Zero__V1__VersionSteps message = ZERO__V1__VERSION_STEPS__INIT;
    uint64_t steps[ZERO_MAX_VERSIONS];

    if (!may_ask(client))
        return;
    for (uint32_t i = 0; i < versions->count; i++)
        steps[i] = versions->kept[i].step;
    message.steps = steps;
    message.n_steps = versions->count;
    client_send(client, ZERO_FRAME_VERSION_STEPS, &message.base, NULL);
}

void versions_expire(struct sessions *sessions, uint64_t now)
{
    for (struct client *c = sessions->clients, *next; c != NULL; c = next) {
        next = c->next;
        if (c->reads != READS_SOON || now < c->deadline_ns)
            continue;
        c->reads = READS_NOTHING;
        client_refuse(c, REFUSE(DEADLINE, "open version",
                                "the parameters could not be copied by the deadline: zeroctl "
                                "status tells what rank %u waits for",
                                sessions->options.rank));
    }
}

void versions_deinit(struct sessions *sessions)
{
    while (sessions->versions.count > 0)
        drop(sessions, &sessions->versions.kept[sessions->versions.count - 1]);
}

/* ---- for status ----------------------------------------------------------------------------- */

uint32_t sessions_versions(const struct sessions *sessions, const struct version **out)
{
    *out = sessions->versions.kept;
    return sessions->versions.count;
}
