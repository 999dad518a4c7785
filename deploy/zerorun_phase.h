/* SPDX-License-Identifier: MIT */
/* zerorun_phase.h: where a group stands, and how it gets to its end.
 *
 *     STARTING ──► RUNNING ──► (SETTLING) ──► STOPPING_TRAINERS ──► STOPPING_DAEMONS ──► OVER
 *
 * Owns    what the group owns: see zerorun_group.h.
 * Thread  one.
 * Uses    child, daemons, output.   Used by ends and group.
 */
#ifndef DEPLOY_ZERORUN_PHASE_H
#define DEPLOY_ZERORUN_PHASE_H

#include "deploy/zerorun_daemons.h"
#include "deploy/zerorun_output.h"

/* Before a daemon that is to save has to ask for more time, whatever the grace. */
enum { SAVE_MS = 10000 };

enum phase { STARTING, RUNNING, SETTLING, STOPPING_TRAINERS, STOPPING_DAEMONS, OVER };

struct group {
    struct plan *plan;
    struct output output;
    struct daemons daemons;
    struct child *trainers; /* one per rank */
    struct pollfd *polled;
    uint32_t world;
    uint32_t made; /* how many trainers are initialised */
    int signals, lifeline;
    enum phase phase;
    int64_t deadline_ms; /* of the phase */
    bool killed;         /* the phase's processes were sent SIGKILL */
    bool orphaned;       /* the front process is dead */
    bool hurried;        /* asked twice to end */
    int code;
    int stop_signal; /* that a user sent, 0 if none did */
    bool warned;     /* what a second one would do */
    bool died;       /* a daemon has, while the group ends, */
    bool hopeless;   /* without whom the last step cannot be saved */
};

void group_enter(struct group *group, enum phase phase, int64_t limit_ms);
/* Begins the end, unless it has begun. Trainers get `signal`. */
void group_stop(struct group *group, int code, int signal);

#endif
