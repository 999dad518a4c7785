/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_phase.h"

#include "deploy/zerorun_child.h"
#include "deploy/zerorun_clock.h"

#include <signal.h>

void group_enter(struct group *group, enum phase phase, int64_t limit_ms)
{
    group->phase = phase;
    group->deadline_ms = now_ms() + limit_ms;
    group->killed = false;
}

void group_stop(struct group *group, int code, int signal)
{
    if (group->phase >= STOPPING_TRAINERS)
        return;
    group->code = code;
    children_signal(group->trainers, group->world, signal);
    /* A stopped process must run to act on it. */
    children_signal(group->trainers, group->world, SIGCONT);
    group_enter(group, STOPPING_TRAINERS, (int64_t)group->plan->options->grace_s * 1000);
}
