/* SPDX-License-Identifier: MIT */
/* zerorun_holder.h: the socket on which one daemon speaks to us as a service does to systemd, and
 * the fds that are kept for its successor.
 *
 * READY=1 and RELOADING=1 are told to the caller. FDSTORE=1 keeps the fds that come along under
 * FDNAME= ("stored" if there is none), beside others of that name; FDSTOREREMOVE=1 closes all of
 * that name; a BARRIER=1's fd is closed when everything before it is done. What is kept is not
 * watched for its end, whether FDPOLL=0 is said or not. EXTEND_TIMEOUT_USEC= says how long from now
 * the end may still take; STOPPING=1 that the daemon was told to end, which its successor must hear
 * too. What zerod says of the save before its end: X_ZERO_SAVE= the folder, once there is something
 * to save; X_ZERO_SAVING= the step, when rank 0 begins; X_ZERO_SAVED= when it is saved. All else
 * changes nothing: an exit code says how it ended.
 *
 * One socket per daemon. Only the process that was started as that daemon is heard, as with
 * systemd's NotifyAccess=main: what another one of the same user says is refused.
 *
 * Owns    the socket and what is kept.
 * Thread  one.
 * Fails   a line of output that says what was not kept, and why: the protocol has no answer.
 * Uses    output.   Used by start and daemons.
 */
#ifndef DEPLOY_ZERORUN_HOLDER_H
#define DEPLOY_ZERORUN_HOLDER_H

#include "deploy/zerorun_output.h"

#include <stdint.h>
#include <sys/types.h>

enum { HOLDER_FDS = 512, HOLDER_NAME_BYTES = 255 };

struct kept {
    char *name;
    int fd;
};

struct holder {
    uint32_t rank;
    int fd; /* the socket, -1: none */
    struct kept kept[HOLDER_FDS];
    size_t count;
    pid_t stranger;      /* who was refused last: said once */
    int64_t patience_ms; /* of CLOCK_MONOTONIC: until then its end may take; 0: not said */
    bool stopping;       /* it, or one before it, was told to end */
    char *save_dir;      /* where it would save the last step; NULL: nowhere */
    char step[24];       /* that it saves, as it says; "": none yet */
    bool saved;
};

/* False and errno if there is no socket. */
bool holder_open(struct holder *holder, const char *path, uint32_t rank);
void holder_close(struct holder *holder);
/* Closes what is kept. */
void holder_forget(struct holder *holder);
/* Does what has come from `daemon` (0: it is dead, and nobody is heard); the last of what it said
 * about itself. */
enum holder_news { HOLDER_NOTHING, HOLDER_READY, HOLDER_RELOADING };
enum holder_news holder_hear(struct holder *holder, pid_t daemon, struct output *output);

#endif
