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

/* e: whose registration may be cancelled meanwhile; NULL: none. */
static zero_status take_patiently(struct engine *e, struct store_lock *lock, const char *dir,
                                  struct zero_detail *detail)
{
    const struct timespec pause = { .tv_sec = 0, .tv_nsec = PAUSE_MS * 1000000L };
    uint64_t until = clock_ns() + PATIENCE_MS * UINT64_C(1000000);
    zero_status s;

    for (;;) {
        s = store_lock_take(lock, dir, detail);
        if (s.code != ZERO_BUSY || clock_ns() >= until || (e != NULL && mail_given_up(e)))
            break;
        nanosleep(&pause, NULL);
    }
    if (s.code != ZERO_UNSUPPORTED)
        return s;
    LOG_WARNING("%s: nothing keeps another group from saving there too", detail->text);
    return zero_success();
}

zero_status claim_take(struct engine *e)
{
    const char *dir = e->shard->config.checkpoint_dir;
    struct zero_detail detail = { "" };

    if (e->options.rank != 0 || dir[0] == '\0')
        return zero_success();
    zero_status s = take_patiently(e, &e->claim, dir, &detail);
    if (!zero_failed(s))
        s = store_try(dir, &detail);
    return zero_failed(s) ? fail_status(s.code, "use zerod.checkpoint.dir", __FILE__, __LINE__,
                                        "%s", detail.text)
                          : s;
}

void claim_again(struct store_lock *lock, const char *dir)
{
    struct zero_detail detail = { "" };

    if (zero_failed(take_patiently(NULL, lock, dir, &detail)))
        LOG_WARNING("the training goes on, but cannot save now: %s", detail.text);
}

void claim_give(struct engine *e)
{
    store_lock_give(&e->claim);
}
