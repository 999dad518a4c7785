/* SPDX-License-Identifier: MIT */
#include "daemon/report.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/clock.h"
#include "daemon/session/versions.h"
#include "daemon/step/wait.h"

static const char *const state_names[] = { "empty", "joining",  "restoring", "filling",
                                           "ready", "stepping", "lost" };

/* The size that the kernel knows, not the one that was asked for. */
static uint64_t measured(const struct device_buf *buf)
{
    struct stat stat;

    if (buf->bytes == 0 || fstat(buf->read_fd, &stat) != 0)
        return 0;
    return (uint64_t)stat.st_size;
}

static void report_arenas(struct report *report, const struct shard *shard,
                          Zero__V1__StatusReply *reply)
{
    for (int a = 0; a < ZERO_ARENA_COUNT; a++) {
        Zero__V1__Arena *arena = &report->arenas[a];
        zero__v1__arena__init(arena);
        arena->name = (char *)(uintptr_t)zero_arena_names[a];
        arena->bytes = measured(&shard->arena[a]);
        arena->planned = shard->plan.bytes[a];
        arena->formula = (char *)(uintptr_t)shard->plan.formula[a];
        report->arena_list[a] = arena;
    }
    reply->arenas = report->arena_list;
    reply->n_arenas = ZERO_ARENA_COUNT;
    reply->stage = shard->config.stage;
    reply->param_dtype = (char *)(uintptr_t)zero_dtype_name(shard->config.param_dtype);
    reply->params = shard->layout->count;
}

static void count_versions(const struct sessions *sessions, Zero__V1__StatusReply *reply)
{
    const struct zero_versions_plan plan = sessions_versions_plan(sessions);
    const struct version *versions;

    reply->versions = sessions_versions(sessions, &versions);
    for (uint32_t i = 0; i < reply->versions; i++)
        reply->version_bytes += measured(&versions[i].buf);
    reply->versions_planned = plan.total;
}

static void report_scalars(struct report *report, const struct stats *stats,
                           Zero__V1__StatusReply *reply)
{
    reply->n_scalars = stats_get(&stats->scalar_count);
    for (size_t i = 0; i < reply->n_scalars; i++) {
        uint64_t words[STATS_NAME_WORDS];
        for (int w = 0; w < STATS_NAME_WORDS; w++)
            words[w] = stats_get(&stats->scalar_names[i][w]);
        memcpy(report->names[i], words, sizeof words);
        report->names[i][sizeof words] = '\0';
        zero__v1__scalar__init(&report->scalars[i]);
        report->scalars[i].name = report->names[i];
        report->scalars[i].value = stats_get_double(&stats->scalars[i]);
        report->scalar_list[i] = &report->scalars[i];
    }
    reply->scalars = report->scalar_list;
}

static void report_numbers(const struct stats *stats, Zero__V1__StatusReply *reply)
{
    uint64_t last = stats_get(&stats->last_step_ns);

    reply->epoch = stats_get(&stats->epoch);
    reply->step = stats_get(&stats->step);
    reply->updates = stats_get(&stats->updates);
    reply->skipped_in_row = (uint32_t)stats_get(&stats->skipped_in_row);
    reply->gathered_bytes = stats_get(&stats->gathered_bytes);
    reply->reduced_bytes = stats_get(&stats->reduced_bytes);
    reply->last_gathered_bytes = stats_get(&stats->last_gathered_bytes);
    reply->last_reduced_bytes = stats_get(&stats->last_reduced_bytes);
    reply->step_time = stats_get_double(&stats->step_time);
    reply->forward_backward_time = stats_get_double(&stats->forward_backward_time);
    reply->parameter_update_time = stats_get_double(&stats->parameter_update_time);
    reply->loss_scale = stats_get_double(&stats->loss_scale);
    reply->grad_norm = stats_get_double(&stats->grad_norm);
    reply->lr = stats_get_double(&stats->lr);
    reply->last_step_age = last == 0 ? -1 : (double)(clock_ns() - last) * 1e-9;
}

static void report_saves(const struct stats *stats, Zero__V1__StatusReply *reply)
{
    uint64_t last = stats_get(&stats->saved_ns);

    reply->saved_step = stats_get(&stats->saved_step);
    reply->saved_age = last == 0 ? -1 : (double)(clock_ns() - last) * 1e-9;
    reply->save_failed = stats_get(&stats->save_failed) != 0;
    reply->saving_bytes = stats_get(&stats->save_bytes);
    reply->saving_total = stats_get(&stats->save_total);
}

void report_status(struct report *report, const struct report_source *source,
                   Zero__V1__StatusReply *reply)
{
    const struct stats *stats = engine_stats(source->engine);
    bool joined = source->sessions != NULL && sessions_joined(source->sessions);
    uint64_t state = stats_get(&stats->state);

    reply->rank = source->rank;
    reply->world = source->world;
    reply->pid = (uint32_t)getpid();
    reply->version = (char *)(uintptr_t)ZEROD_VERSION;
    reply->kernels = (char *)(uintptr_t)source->device->kernels->name;
    reply->state = (char *)(uintptr_t)(state <= STATE_LOST ? state_names[state] : "unknown");
    reply->param_dtype = reply->restored = (char *)(uintptr_t) "";
    report_numbers(stats, reply);
    report_scalars(report, stats, reply);
    report_saves(stats, reply);
    if (joined) {
        report_arenas(report, engine_shard(source->engine), reply);
        count_versions(source->sessions, reply);
        reply->restored = (char *)(uintptr_t)engine_origin(source->engine);
    }
    if (source->sessions != NULL) {
        reply->trainer_pid = sessions_trainer_pid(source->sessions);
        reply->observers = sessions_observers(source->sessions);
    }
    struct wait_reason reason = { .what = (enum wait_for)stats_get(&stats->waiting),
                                  .rank = (uint32_t)stats_get(&stats->waiting_rank),
                                  .pid = (uint32_t)stats_get(&stats->waiting_pid),
                                  .step = reply->step };
    wait_text(&reason, NULL, report->waiting, sizeof report->waiting);
    reply->waiting_for = report->waiting;
    reply->uptime = (double)(clock_ns() - source->started_ns) * 1e-9;
    reply->upgrade = (char *)(uintptr_t)upgrade_word(source->upgrade);
    reply->upgrade_text = (char *)(uintptr_t)source->upgrade->text;
}

void report_model(struct report *report, const struct sessions *sessions,
                  const struct engine *engine, Zero__V1__ModelReply *reply)
{
    static char none[] = "";

    report_deinit(report);
    reply->layout = reply->config = none;
    if (sessions == NULL || !sessions_joined(sessions))
        return;
    const struct shard *shard = engine_shard(engine);
    report->layout = zero_layout_text(shard->layout);
    report->config = zero_config_text(&shard->config);
    if (report->layout != NULL)
        reply->layout = report->layout;
    if (report->config != NULL)
        reply->config = report->config;
}

void report_versions(struct report *report, const struct report_source *source,
                     Zero__V1__VersionsReply *reply)
{
    const struct version *versions;

    reply->rank = source->rank;
    if (source->sessions == NULL)
        return;
    reply->n_versions = sessions_versions(source->sessions, &versions);
    reply->versions = report->version_list;
    for (size_t i = 0; i < reply->n_versions; i++) {
        Zero__V1__Version *to = &report->versions[i];
        zero__v1__version__init(to);
        to->step = versions[i].step;
        to->bytes = measured(&versions[i].buf);
        to->readers = versions[i].readers;
        to->age = (double)(clock_ns() - versions[i].made_ns) * 1e-9;
        report->version_list[i] = to;
    }
}

void report_deinit(struct report *report)
{
    free(report->layout);
    free(report->config);
    report->layout = report->config = NULL;
}
