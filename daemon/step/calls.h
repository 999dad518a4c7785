/* SPDX-License-Identifier: MIT */
/* calls.h: what the trainer asks through the ring, and the answers.
 *
 * Owns    nothing.
 * Thread  the worker.
 * Fails   a bad call is answered, or ends the session (ENGINE_BROKEN) when it cannot be.
 * Uses    engine.   Used by the files of daemon/step.
 */
#ifndef DAEMON_STEP_CALLS_H
#define DAEMON_STEP_CALLS_H

#include "daemon/step/engine.h"

/* Takes what is in the ring; true if there was anything. */
bool calls_drain(struct engine *e);

/* Answers a slot. text may be NULL. */
void calls_answer(struct engine *e, uint32_t slot, zero_code code, uint64_t value,
                  const char *text);
__attribute__((format(printf, 4, 5))) void calls_refuse(struct engine *e, uint32_t slot,
                                                        zero_code code, const char *format, ...);

/* Remembers a call that is answered later. */
struct pending *calls_defer(struct engine *e, const struct zero_ring_entry *entry);

/* Answers every waiting call of the attempt (window, submit, step). */
void calls_answer_attempt(struct engine *e, zero_code code, const char *text);
/* Answers every waiting call. */
void calls_answer_all(struct engine *e, zero_code code, const char *text);
/* Answers calls whose deadline has passed. */
void calls_expire(struct engine *e, uint64_t now);

/* The slot of the waiting call of that kind; ZERO_RING_NO_SLOT if there is none. */
uint32_t calls_find(const struct engine *e, enum zero_ring_call call);

/* Ends the trainer's session: it broke the ring's protocol. */
__attribute__((format(printf, 2, 3))) void calls_break(struct engine *e, const char *format, ...);

#endif
