/* SPDX-License-Identifier: MIT */
/* wait.h: whom or what a rank is waiting for, in words: for deadlines and for status.
 *
 * Thread  the worker finds out; the text may be made anywhere from the plain reason.
 * Uses    engine.   Used by calls, main.
 */
#ifndef DAEMON_STEP_WAIT_H
#define DAEMON_STEP_WAIT_H

#include "daemon/step/engine.h"

enum wait_for {
    WAIT_NOTHING,
    WAIT_NO_TRAINER, /* rank has none */
    WAIT_TRAINER,    /* rank's has not asked for the step */
    WAIT_SUBMIT,     /* rank has not submitted layer */
    WAIT_SUMS,
    WAIT_VOTE,
    WAIT_DECISION,
    WAIT_UPDATE,
    WAIT_FILL,   /* rank has not ended its initial values */
    WAIT_COPY,   /* rank has not copied what others own of them */
    WAIT_PEER,   /* the group lost rank */
    WAIT_SILENT, /* rank's daemon shows no sign of life */
};

struct wait_reason {
    enum wait_for what;
    uint32_t rank, layer;
    uint32_t pid;  /* of rank's trainer; SILENT: of its daemon */
    uint64_t step; /* being made */
};

struct wait_reason wait_for_step(const struct engine *e);
struct wait_reason wait_for_call(const struct engine *e, const struct pending *pending);
void wait_text(const struct wait_reason *reason, const struct zero_layout *layout, char *to,
               size_t bytes);

#endif
