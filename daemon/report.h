/* SPDX-License-Identifier: MIT */
/* report.h: what the control service answers, put together from the daemon's parts.
 *
 * Owns    the arrays and texts that a reply points to, until the next reply of the same kind.
 * Thread  the loop's.
 * Uses    session, step, control.   Used by main.
 */
#ifndef DAEMON_REPORT_H
#define DAEMON_REPORT_H

#include "daemon/session/session.h"
#include "daemon/upgrade.h"
#include "proto/zero/v1/control.pb-c.h"

struct report {
    Zero__V1__Arena arenas[ZERO_ARENA_COUNT], *arena_list[ZERO_ARENA_COUNT];
    Zero__V1__Scalar scalars[STATS_SCALARS], *scalar_list[STATS_SCALARS];
    char names[STATS_SCALARS][STATS_NAME_WORDS * 8 + 1];
    char waiting[512];
    char *layout, *config;
    Zero__V1__Version versions[ZERO_MAX_VERSIONS], *version_list[ZERO_MAX_VERSIONS];
};

struct report_source {
    uint32_t rank, world;
    const struct device *device;
    const struct engine *engine;
    const struct sessions *sessions; /* NULL while the daemon ends */
    const struct upgrade *upgrade;
    uint64_t started_ns;
};

void report_status(struct report *report, const struct report_source *source,
                   Zero__V1__StatusReply *reply);
void report_model(struct report *report, const struct sessions *sessions,
                  const struct engine *engine, Zero__V1__ModelReply *reply);
void report_versions(struct report *report, const struct report_source *source,
                     Zero__V1__VersionsReply *reply);
void report_deinit(struct report *report);

#endif
