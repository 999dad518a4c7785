/* SPDX-License-Identifier: MIT */
#include "daemon/session/saves.h"

#include <string.h>

#include "daemon/base/fail.h"
#include "daemon/session/client.h"

#define SAVE_MARK (UINT64_C(1) << 63)

void saves_begin(struct client *client, const Zero__V1__SaveBegin *message)
{
    char dir[ZERO_CONFIG_MAX_PATH] = ""; /* the frame's check has seen that it fits */

    bool greeted = client->state == WELCOMED || client->state == ATTACHED;
    if (client->role != ROLE_OBSERVER || !greeted || client->saves) {
        client_refuse(client, REFUSE(INVALID_STATE, "save checkpoint",
                                     "a save is for an observer, one at a time: use a connection "
                                     "of its own"));
        return;
    }
    if (message->dir.len > 0)
        memcpy(dir, message->dir.data, message->dir.len);
    client->saves = true;
    engine_save(client->sessions->options.engine, dir, client->token | SAVE_MARK);
}

void saves_look(struct client *client)
{
    const struct stats *stats = engine_stats(client->sessions->options.engine);
    Zero__V1__SaveLook message = ZERO__V1__SAVE_LOOK__INIT;

    if (!client->saves) {
        client_refuse(client, REFUSE(INVALID_STATE, "save checkpoint",
                                     "no save of this connection is on its way"));
        return;
    }
    message.bytes = stats_get(&stats->save_bytes);
    message.total = stats_get(&stats->save_total);
    client_send(client, ZERO_FRAME_SAVE_LOOK, &message.base, NULL);
}

void saves_ended(struct sessions *sessions, const struct engine_event *event)
{
    struct client *client = client_find(sessions, event->token & ~SAVE_MARK);
    Zero__V1__SaveEnded message = ZERO__V1__SAVE_ENDED__INIT;

    if ((event->token & SAVE_MARK) == 0 || client == NULL)
        return;
    client->saves = false;
    if (zero_failed(event->status)) {
        client_refuse(client,
                      fail_refuse(event->status.code, event->status.doing, "%s", event->text));
        return;
    }
    message.path.data = (uint8_t *)(uintptr_t)event->text;
    message.path.len = strlen(event->text);
    client_send(client, ZERO_FRAME_SAVE_ENDED, &message.base, NULL);
}
