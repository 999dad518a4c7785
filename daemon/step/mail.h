/* SPDX-License-Identifier: MIT */
/* mail.h: commands from the loop's thread to the worker, events back; step.h has the functions by
 * which the loop sends and reads.
 *
 * Owns    a command that is on its way, until it is taken.
 * Thread  any; the lock is the mail's.
 * Fails   never: a box that overflows is a bug, and logged.
 * Uses    engine.   Used by worker.
 */
#ifndef DAEMON_STEP_MAIL_H
#define DAEMON_STEP_MAIL_H

#include "daemon/step/engine.h"

void mail_send(struct engine *e, struct command *command);
bool mail_take(struct engine *e, struct command *out);
/* Frees what a command that nobody carries out owns. */
void mail_drop(struct engine *e, struct command *command);

/* The registration has ended: a cancel that comes too late must not end a later meeting. */
void mail_registered(struct engine *e);
/* Is the registration that is on its way to be ended? */
bool mail_given_up(struct engine *e);
/* Sends STOP, and ends a meeting that the worker is in. */
void mail_end(struct engine *e);
/* Ends a meeting that the worker is in, and every later one. */
void mail_end_meetings(struct engine *e);
bool mail_ending(struct engine *e);
/* Is the daemon told to end? Known in a meeting, in which no command is taken. */
bool mail_finishing(struct engine *e);

#endif
