/* SPDX-License-Identifier: MIT */
/* Saving a running group: an observer's connection to rank 0's daemon that asks for one save. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/checkpoint.h"
#include "client/client.h"
#include "daemon/store/error.h"
#include "proto/config.h"

enum { BEGIN_MS = 60000, SAVE_MS = 3600000, ANSWER_MS = 10000 };

struct zero_saving {
    zero_client *client;
    bool ended;
    zero_status status;      /* how, */
    struct zero_path path;   /* with what, */
    struct zero_detail text; /* or why not */
};

static uint32_t capped(uint32_t deadline_ms)
{
    return deadline_ms < CLIENT_MAX_DEADLINE_MS ? deadline_ms : CLIENT_MAX_DEADLINE_MS;
}

/* ---- where ----------------------------------------------------------------------------------- */

/* The socket of rank 0 stands beside that of any rank. "": no socket is named, as attaching says.
 */
static zero_status find_rank_0(const char *socket, struct zero_path *out,
                               struct zero_detail *detail)
{
    if (socket == NULL)
        socket = getenv("ZERO_SOCKET");
    out->text[0] = '\0';
    if (socket == NULL || socket[0] == '\0')
        return zero_success();
    const char *name = strrchr(socket, '/');
    int folder = name == NULL ? 0 : (int)(name + 1 - socket);
    int bytes = snprintf(out->text, sizeof out->text, "%.*srank-0.sock", folder, socket);
    if (bytes < 0 || (size_t)bytes >= sizeof out->text)
        return store_refuse(detail, ZERO_INVALID_ARGUMENT, "the socket's path is too long");
    return zero_success();
}

/* An absolute path: the daemon has a folder of its own. */
static zero_status find_dir(const char *dir, struct zero_path *out, struct zero_detail *detail)
{
    char here[ZERO_PATH_BYTES] = "";

    out->text[0] = '\0';
    if (dir == NULL)
        return zero_success();
    if (dir[0] == '\0')
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "dir is empty: name a folder, or NULL for the config's");
    if (dir[0] != '/' && getcwd(here, sizeof here) == NULL)
        return store_refuse_errno(detail, "the current folder cannot be found");
    int bytes =
        snprintf(out->text, sizeof out->text, "%s%s%s", here, dir[0] != '/' ? "/" : "", dir);
    if (bytes < 0 || bytes >= ZERO_CONFIG_MAX_PATH)
        return store_refuse(detail, ZERO_INVALID_ARGUMENT,
                            "dir has %d bytes as an absolute path, at most %d", bytes,
                            ZERO_CONFIG_MAX_PATH - 1);
    return zero_success();
}

/* ---- what the daemon says ------------------------------------------------------------------- */

static void end(zero_saving *saving, zero_status s, const char *text)
{
    saving->ended = true;
    saving->status = s;
    snprintf(saving->text.text, sizeof saving->text.text, "%s", text);
}

/* DEADLINE: nothing came. */
static zero_status await_frame(const zero_saving *saving, int64_t until)
{
    for (;;) {
        int64_t left = until - client_now_ms();
        struct pollfd poll_fd = { .fd = saving->client->socket, .events = POLLIN };
        int ready = poll(&poll_fd, 1, left > 0 ? (int)left : 0);
        if (ready > 0)
            return zero_success();
        if (ready == 0 && left <= 0)
            return (zero_status){ ZERO_DEADLINE, "wait for save" };
        if (ready < 0 && errno != EINTR)
            return (zero_status){ ZERO_SYSTEM, "wait for save" };
    }
}

static void take_end(zero_saving *saving, const Zero__V1__SaveEnded *ended)
{
    if (ended->path.len == 0) {
        end(saving, (zero_status){ ZERO_PROTOCOL, "wait for save" },
            "rank 0's daemon says that it saved, but not what");
        return;
    }
    memcpy(saving->path.text, ended->path.data, ended->path.len); /* the frame's cap fits */
    end(saving, zero_success(), "");
}

/* The next frame until then, which is the caller's unless it said how the save ended. */
static zero_status hear(zero_saving *saving, int64_t until, struct zero_frame *out)
{
    zero_client *client = saving->client;
    zero_status s = await_frame(saving, until);

    if (zero_failed(s))
        return s;
    s = client_hear(client, 0, ANSWER_MS, out);
    if (s.code == ZERO_DAEMON_LOST) {
        end(saving, s,
            "rank 0's daemon ended before it said how the save did: look whether the checkpoint is "
            "there, or save again");
    } else if (zero_failed(s)) {
        end(saving, s, zero_error_text(client));
    } else if (out->type == ZERO_FRAME_SAVE_ENDED) {
        take_end(saving, (const Zero__V1__SaveEnded *)out->message);
    } else if (out->type != ZERO_FRAME_SAVE_LOOK) {
        end(saving, (zero_status){ ZERO_PROTOCOL, "wait for save" },
            "rank 0's daemon sent a frame that is no answer to a save");
    }
    if (!zero_failed(s) && saving->ended)
        zero_frame_release(out);
    return saving->ended ? saving->status : s;
}

static zero_status outcome(const zero_saving *saving, struct zero_path *out_path,
                           struct zero_detail *detail)
{
    if (zero_failed(saving->status))
        *detail = saving->text;
    else if (out_path != NULL)
        *out_path = saving->path;
    return saving->status;
}

static zero_status not_yet(zero_status s, uint32_t deadline_ms, struct zero_detail *detail)
{
    if (s.code == ZERO_DEADLINE)
        store_refuse(detail, s.code,
                     "the save has not ended within %" PRIu32
                     " ms: wait again; zeroctl status tells what the group does",
                     deadline_ms);
    else
        store_refuse(detail, s.code, "poll on the socket of rank 0's daemon failed");
    return s;
}

/* The daemon's answer also shows that it has read what was sent before. */
static zero_status look(zero_saving *saving, int64_t until, Zero__V1__SaveLook *out)
{
    Zero__V1__SaveLook message = ZERO__V1__SAVE_LOOK__INIT;
    struct zero_frame frame;
    int64_t left = until - client_now_ms();

    zero__v1__save_look__init(out);
    /* a daemon that is gone may have said how the save ended, or hear() says that it is gone */
    (void)zero_frame_send(saving->client->socket, ZERO_FRAME_SAVE_LOOK, &message.base, NULL,
                          left > 0 ? (int)left : 0);
    zero_status s = hear(saving, until, &frame);
    if (saving->ended)
        return zero_success(); /* wait tells */
    if (zero_failed(s))
        return s;
    out->bytes = ((const Zero__V1__SaveLook *)frame.message)->bytes;
    out->total = ((const Zero__V1__SaveLook *)frame.message)->total;
    zero_frame_release(&frame);
    return s;
}

/* ---- begin, leave ---------------------------------------------------------------------------- */

/* Returns when the daemon has taken it: what it has not read is lost with this process. */
static zero_status ask(zero_saving *saving, const char *dir, int64_t until,
                       struct zero_detail *detail)
{
    Zero__V1__SaveBegin message = ZERO__V1__SAVE_BEGIN__INIT;
    Zero__V1__SaveLook ignored;

    message.dir.data = (uint8_t *)(uintptr_t)dir;
    message.dir.len = strlen(dir);
    zero_status s = client_send(saving->client, ZERO_FRAME_SAVE_BEGIN, &message.base);
    if (zero_failed(s))
        return store_refuse(detail, s.code, "%s", zero_error_text(saving->client));
    s = look(saving, until, &ignored);
    return zero_failed(s) ? store_refuse(detail, ZERO_DAEMON_SILENT,
                                         "rank 0's daemon does not answer: is it stopped?")
                          : s;
}

zero_status zero_checkpoint_begin(const struct zero_save_options *options, zero_saving **out,
                                  struct zero_detail *out_detail)
{
    static const struct zero_save_options defaults = { NULL, NULL, 0 };
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    struct zero_path socket, dir;
    zero_saving *saving = NULL;
    zero_status s = checkpoint_need(out, "out", detail);

    if (options == NULL)
        options = &defaults;
    if (!zero_failed(s))
        s = find_rank_0(options->socket, &socket, detail);
    if (!zero_failed(s))
        s = find_dir(options->dir, &dir, detail);
    if (zero_failed(s))
        return s;
    saving = calloc(1, sizeof *saving);
    if (saving == NULL) {
        store_refuse(detail, ZERO_NO_MEMORY, "no memory for a save");
        return (zero_status){ ZERO_NO_MEMORY, "begin save" };
    }
    uint32_t limit = capped(options->deadline_ms != 0 ? options->deadline_ms : BEGIN_MS);
    int64_t until = client_now_ms() + limit;
    const struct zero_attach_options attach = { .socket =
                                                    socket.text[0] != '\0' ? socket.text : NULL,
                                                .role = ZERO_OBSERVER,
                                                .deadline_ms = limit };
    s = zero_attach(&attach, &saving->client, detail);
    if (!zero_failed(s))
        s = ask(saving, dir.text, until, detail);
    if (zero_failed(s))
        zero_checkpoint_leave(saving);
    else
        *out = saving;
    return s;
}

void zero_checkpoint_leave(zero_saving *saving)
{
    if (saving == NULL)
        return;
    zero_detach(saving->client);
    free(saving);
}

/* ---- wait, look ------------------------------------------------------------------------------ */

static zero_status wait_until(zero_saving *saving, int64_t until, struct zero_path *out_path,
                              struct zero_detail *detail)
{
    while (!saving->ended) {
        struct zero_frame frame;
        zero_status s = hear(saving, until, &frame);
        if (saving->ended)
            break;
        if (zero_failed(s))
            return s;
        zero_frame_release(&frame); /* an answer to an earlier look */
    }
    return outcome(saving, out_path, detail);
}

zero_status zero_checkpoint_wait(zero_saving *saving, uint32_t deadline_ms,
                                 struct zero_path *out_path, struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    zero_status s = checkpoint_need(saving, "saving", detail);

    if (zero_failed(s))
        return s;
    s = wait_until(saving, client_now_ms() + capped(deadline_ms), out_path, detail);
    return saving->ended ? s : not_yet(s, deadline_ms, detail);
}

zero_status zero_checkpoint_look(zero_saving *saving, uint64_t *out_bytes, uint64_t *out_total,
                                 struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    Zero__V1__SaveLook answer = ZERO__V1__SAVE_LOOK__INIT;
    zero_status s = checkpoint_need(saving, "saving", detail);

    if (!zero_failed(s))
        s = checkpoint_need(out_bytes, "out_bytes", detail);
    if (!zero_failed(s))
        s = checkpoint_need(out_total, "out_total", detail);
    if (zero_failed(s))
        return s;
    if (!saving->ended)
        s = look(saving, client_now_ms() + ANSWER_MS, &answer);
    if (zero_failed(s))
        return not_yet(s, ANSWER_MS, detail);
    *out_bytes = answer.bytes;
    *out_total = answer.total;
    return s;
}

/* ---- both ----------------------------------------------------------------------------------- */

zero_status zero_checkpoint_save(const struct zero_save_options *options,
                                 struct zero_path *out_path, struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    uint32_t limit = options != NULL && options->deadline_ms != 0 ? options->deadline_ms : SAVE_MS;
    int64_t until = client_now_ms() + capped(limit);
    zero_saving *saving = NULL;
    zero_status s = zero_checkpoint_begin(options, &saving, detail);

    if (zero_failed(s))
        return s;
    s = wait_until(saving, until, out_path, detail);
    if (!saving->ended)
        s = not_yet(s, limit, detail);
    zero_checkpoint_leave(saving);
    return s;
}
