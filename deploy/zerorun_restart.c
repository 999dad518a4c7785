/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_restart.h"

#include "deploy/zerorun_clock.h"

/* What ran for longer did not fail at once. A daemon has little to do before it is there: its
 * successor is waited for, and is not to come late because several die one after the other. */
enum { TRAINER_LIVED_MS = 10000, DAEMON_LIVED_MS = 1000, FIRST_DELAY_MS = 100 };

void restart_plan(struct child *child, uint32_t largest_delay_ms)
{
    int64_t now = now_ms(), lived_ms = DAEMON_LIVED_MS;
    uint32_t delay_ms = child->delay_ms > 0 ? 2 * child->delay_ms : FIRST_DELAY_MS;

    if (child->kind == CHILD_TRAINER)
        lived_ms = TRAINER_LIVED_MS;
    if (now - child->started_ms > lived_ms)
        delay_ms = 0;
    child->delay_ms = delay_ms < largest_delay_ms ? delay_ms : largest_delay_ms;
    child->restart_ms = now + child->delay_ms;
}

int64_t restart_next_ms(const struct child *children, uint32_t count)
{
    int64_t next = 0;

    for (uint32_t r = 0; r < count; r++) {
        int64_t due = children[r].restart_ms;
        if (due != 0 && (next == 0 || due < next))
            next = due;
    }
    return next;
}
