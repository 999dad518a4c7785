/* SPDX-License-Identifier: MIT */
#include "daemon/step/mail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "proto/bell.h"

/* ---- both ways ------------------------------------------------------------------------------ */

void engine_post(struct engine *e, enum engine_event_kind kind, uint64_t token, zero_status status)
{
    engine_post_text(e, kind, token, status, zero_failed(status) ? fail_detail() : "");
}

void engine_post_text(struct engine *e, enum engine_event_kind kind, uint64_t token,
                      zero_status status, const char *text)
{
    struct mail *mail = &e->mail;

    pthread_mutex_lock(&mail->lock);
    if (mail->event_count < ENGINE_MAIL) {
        struct engine_event *event =
            &mail->events[(mail->event_head + mail->event_count++) % ENGINE_MAIL];
        *event = (struct engine_event){ .kind = kind, .token = token, .status = status };
        snprintf(event->text, sizeof event->text, "%s", text);
    } else {
        LOG_ERROR("an event was lost: the loop does not read them");
    }
    pthread_mutex_unlock(&mail->lock);
    e->options.notify(e->options.context);
}

bool engine_next_event(struct engine *e, struct engine_event *out)
{
    struct mail *mail = &e->mail;

    pthread_mutex_lock(&mail->lock);
    bool any = mail->event_count > 0;
    if (any) {
        *out = mail->events[mail->event_head];
        mail->event_head = (mail->event_head + 1) % ENGINE_MAIL;
        mail->event_count--;
    }
    pthread_mutex_unlock(&mail->lock);
    return any;
}

void mail_drop(struct engine *e, struct command *command)
{
    if (command->kind == COMMAND_COPY)
        e->device->ops->free(e->device, &command->buf);
    free(command->dir);
    if (command->kind != COMMAND_REGISTER)
        return;
    zero_layout_destroy(command->model.layout);
    if (command->model.description >= 0)
        close(command->model.description);
}

void mail_send(struct engine *e, struct command *command)
{
    struct mail *mail = &e->mail;

    pthread_mutex_lock(&mail->lock);
    if (mail->command_count < ENGINE_MAIL) {
        mail->commands[(mail->command_head + mail->command_count++) % ENGINE_MAIL] = *command;
    } else {
        LOG_ERROR("a command was lost: the worker does not read them");
        mail_drop(e, command);
    }
    atomic_store(&mail->commands_wait, true);
    pthread_mutex_unlock(&mail->lock);
    zero_bell_ring(e->bell, /* urgent= */ true);
}

bool mail_take(struct engine *e, struct command *out)
{
    struct mail *mail = &e->mail;

    if (!atomic_load(&mail->commands_wait))
        return false;
    pthread_mutex_lock(&mail->lock);
    bool any = mail->command_count > 0;
    if (any) {
        *out = mail->commands[mail->command_head];
        mail->command_head = (mail->command_head + 1) % ENGINE_MAIL;
        mail->command_count--;
    }
    atomic_store(&mail->commands_wait, mail->command_count > 0);
    pthread_mutex_unlock(&mail->lock);
    return any;
}

/* ---- the loop's commands -------------------------------------------------------------------- */

void engine_register(struct engine *e, const struct engine_model *model, uint64_t token)
{
    struct command command = { .kind = COMMAND_REGISTER, .token = token, .model = *model };

    pthread_mutex_lock(&e->mail.lock);
    e->mail.registering = true;
    e->mail.given_up = false;
    pthread_mutex_unlock(&e->mail.lock);
    mail_send(e, &command);
}

void engine_cancel_register(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    if (e->mail.registering) {
        e->mail.given_up = true;
        e->options.comm->cancel(true);
    }
    pthread_mutex_unlock(&e->mail.lock);
}

void mail_registered(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    e->mail.registering = false;
    e->options.comm->cancel(e->mail.ending);
    pthread_mutex_unlock(&e->mail.lock);
}

void mail_end_meetings(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    e->mail.ending = true;
    e->options.comm->cancel(true);
    pthread_mutex_unlock(&e->mail.lock);
}

void mail_end(struct engine *e)
{
    struct command stop = { .kind = COMMAND_STOP };

    mail_end_meetings(e);
    mail_send(e, &stop);
}

void engine_finish(struct engine *e, bool now)
{
    struct command command = { .kind = COMMAND_FINISH, .now = now };

    pthread_mutex_lock(&e->mail.lock);
    e->mail.finishing = true;
    pthread_mutex_unlock(&e->mail.lock);
    if (now)
        mail_end_meetings(e);
    mail_send(e, &command);
}

bool mail_finishing(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    bool finishing = e->mail.finishing;
    pthread_mutex_unlock(&e->mail.lock);
    return finishing;
}

bool mail_ending(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    bool ending = e->mail.ending;
    pthread_mutex_unlock(&e->mail.lock);
    return ending;
}

bool mail_given_up(struct engine *e)
{
    pthread_mutex_lock(&e->mail.lock);
    bool given_up = e->mail.given_up || e->mail.finishing || e->mail.ending;
    pthread_mutex_unlock(&e->mail.lock);
    return given_up;
}

void engine_attach(struct engine *e, uint32_t pid, uint64_t token)
{
    struct command command = { .kind = COMMAND_ATTACH, .token = token, .pid = pid };
    mail_send(e, &command);
}

void engine_detach(struct engine *e, uint64_t token)
{
    struct command command = { .kind = COMMAND_DETACH, .token = token };
    mail_send(e, &command);
}

void engine_copy(struct engine *e, const struct device_buf *buf)
{
    struct command command = { .kind = COMMAND_COPY, .buf = *buf };
    mail_send(e, &command);
}

void engine_take_copy(struct engine *e, struct device_buf *out, uint64_t *out_step)
{
    pthread_mutex_lock(&e->mail.lock);
    *out = e->mail.copied;
    *out_step = e->mail.copied_step;
    memset(&e->mail.copied, 0, sizeof e->mail.copied);
    pthread_mutex_unlock(&e->mail.lock);
}

void engine_save(struct engine *e, const char *dir, uint64_t token)
{
    struct command command = { .kind = COMMAND_SAVE, .token = token, .dir = strdup(dir) };

    if (command.dir == NULL)
        engine_post(e, ENGINE_SAVED, token, FAIL(NO_MEMORY, "save checkpoint", "%s", dir));
    else
        mail_send(e, &command);
}

void engine_upgrade(struct engine *e, bool now)
{
    struct command command = { .kind = COMMAND_UPGRADE, .now = now };
    mail_send(e, &command);
}
