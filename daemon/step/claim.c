/* SPDX-License-Identifier: MIT */
#include "daemon/step/claim.h"

#include <time.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/mail.h"
#include "daemon/store/trial.h"

enum {
    PATIENCE_MS = 2000, /* a process that was killed still has its lock for a moment */
    PAUSE_MS = 20
};

static zero_status take_patiently(struct engine *e, struct zero_detail *detail)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = PAUSE_MS * 1000000L };
    uint64_t until = clock_ns() + PATIENCE_MS * UINT64_C(1000000);
    zero_status s;

    for (;;) {
        s = store_lock_take(&e->claim, e->shard->config.checkpoint_dir, detail);
        if (s.code != ZERO_BUSY || clock_ns() >= until || mail_given_up(e))
            return s;
        nanosleep(&pause, NULL);
    }
}

zero_status claim_take(struct engine *e, bool kept)
{
    const char *dir = e->shard->config.checkpoint_dir;
    struct zero_detail detail = { "" };

    if (e->options.rank != 0 || dir[0] == '\0')
        return zero_success();
    zero_status s = take_patiently(e, &detail);
    if (s.code == ZERO_UNSUPPORTED) {
        LOG_WARNING("%s: nothing keeps another group from saving there too", detail.text);
        s = zero_success();
    }
    if (!zero_failed(s) && !kept)
        s = store_try(dir, &detail);
    if (!zero_failed(s))
        return s;
    if (!kept)
        return fail_status(s.code, "use zerod.checkpoint.dir", __FILE__, __LINE__, "%s",
                           detail.text);
    LOG_WARNING("the training goes on, but cannot save now: %s", detail.text);
    return zero_success();
}

void claim_give(struct engine *e)
{
    store_lock_give(&e->claim);
}
