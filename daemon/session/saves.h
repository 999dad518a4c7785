/* SPDX-License-Identifier: MIT */
/* saves.h: checkpoints that programs ask for on the trainers' socket.
 *
 * The engine's token of such a save is the client's, marked: whoever else asks the engine to save
 * has tokens without the mark. A client that leaves is not told; the save goes on.
 *
 * Owns    nothing.
 * Thread  the loop's.
 * Fails   what the engine refuses or fails with goes to the client.
 * Uses    client.   Used by the files of daemon/session.
 */
#ifndef DAEMON_SESSION_SAVES_H
#define DAEMON_SESSION_SAVES_H

#include "daemon/step/step.h"
#include "proto/zero/v1/session.pb-c.h"

struct client;
struct sessions;

void saves_begin(struct client *client, const Zero__V1__SaveBegin *message);
void saves_look(struct client *client);
/* ENGINE_SAVED, also of saves that are not ours. */
void saves_ended(struct sessions *sessions, const struct engine_event *event);

#endif
