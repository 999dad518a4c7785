/* SPDX-License-Identifier: MIT */
#include "daemon/step/observe.h"

#include <inttypes.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"

/* No step is being decided or applied anywhere, nor can be without seeing our hold. */
static bool between_steps(const struct engine *e)
{
    if (board_load_ordered(&engine_board(e, 0)->deciding) == e->attempt)
        return false;
    for (uint32_t r = 0; r < e->options.world; r++)
        if (board_load_ordered(&engine_board(e, r)->attempt) != e->attempt)
            return false;
    return true;
}

static bool try_hold(struct engine *e, uint64_t now)
{
    if (e->hold_attempt != e->attempt) {
        e->hold_attempt = e->attempt;
        e->hold_limit = now + (uint64_t)e->shard->config.observer_hold_ms * 1000000;
    }
    if (now >= e->hold_limit)
        return false;
    atomic_store(&e->board->hold_until, e->hold_limit);
    if (between_steps(e))
        return true;
    if (e->observers == 0)
        atomic_store(&e->board->hold_until, 0);
    return false;
}

void observe_begin(struct engine *e, uint64_t token)
{
    if (!e->filled || e->lost) {
        engine_post(e, ENGINE_OBSERVED, token,
                    REFUSE(INVALID_STATE, "observe", "%s",
                           e->lost ? "the group is lost"
                                   : "the model has no initial values yet: try again later"));
        return;
    }
    if (e->observe_wait_count == ENGINE_MAIL) {
        engine_post(e, ENGINE_OBSERVED, token,
                    REFUSE(BUSY, "observe", "%d observers wait already", ENGINE_MAIL));
        return;
    }
    uint32_t n = e->observe_wait_count++;
    e->observe_wait[n].token = token;
    e->observe_wait[n].deadline = clock_ns() + (uint64_t)e->shard->config.deadline_ms * 1000000;
}

void observe_end(struct engine *e, uint64_t token)
{
    bool late = e->hold_attempt != e->attempt || clock_ns() >= e->hold_limit;

    if (e->observers > 0)
        e->observers--;
    if (e->observers == 0) {
        atomic_store(&e->board->hold_until, 0);
        e->comm->ops->wake(e->comm, 0);
    }
    engine_post(
        e, ENGINE_OBSERVED, token,
        late ? REFUSE(DEADLINE, "observe",
                      "the step was held off for %" PRIu32
                      " ms (zerod.observer_hold_ms) and went on: what was read may be of two "
                      "steps",
                      e->shard->config.observer_hold_ms)
             : zero_success());
}

bool observe_pass(struct engine *e, uint64_t now)
{
    bool any = false;

    for (uint32_t i = 0; i < e->observe_wait_count;) {
        zero_status s;
        if (try_hold(e, now)) {
            e->observers++;
            s = zero_success();
        } else if (now > e->observe_wait[i].deadline) {
            s = REFUSE(DEADLINE, "observe", "no moment between two steps came in %" PRIu32 " ms",
                       e->shard->config.deadline_ms);
        } else {
            i++;
            continue;
        }
        engine_post(e, ENGINE_OBSERVED, e->observe_wait[i].token, s);
        e->observe_wait[i] = e->observe_wait[--e->observe_wait_count];
        any = true;
    }
    return any;
}
