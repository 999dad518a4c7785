/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_daemons.h"

#include "deploy/zerorun_clock.h"
#include "deploy/zerorun_restart.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static uint32_t world_of(const struct daemons *daemons)
{
    return daemons->plan->options->world;
}

static bool open_one(struct daemons *daemons, uint32_t rank)
{
    struct holder *holder = &daemons->holders[rank];

    holder->fd = -1;
    daemons->made = rank + 1;
    if (!child_init(&daemons->children[rank], CHILD_DAEMON, rank)) {
        output_say(daemons->output, "no memory for zerod %u", rank);
        return false;
    }
    char *path = folder_file(daemons->plan->folder, "rank-%u.notify", rank);
    bool ok = path != NULL && holder_open(holder, path, rank);
    if (!ok)
        output_say(daemons->output, "cannot open %s: %s", path != NULL ? path : "a socket",
                   strerror(errno));
    free(path);
    return ok;
}

bool daemons_open(struct daemons *daemons, const struct plan *plan, struct output *output)
{
    uint32_t world = plan->options->world;
    bool ok = true;

    *daemons = (struct daemons){ .plan = plan, .output = output };
    daemons->children = calloc(world, sizeof *daemons->children);
    daemons->holders = calloc(world, sizeof *daemons->holders);
    if (daemons->children == NULL || daemons->holders == NULL) {
        output_say(output, "no memory for %u daemons", world);
        return false;
    }
    for (uint32_t r = 0; ok && r < world; r++)
        ok = open_one(daemons, r);
    return ok;
}

void daemons_close(struct daemons *daemons)
{
    for (uint32_t r = 0; r < daemons->made; r++) {
        holder_close(&daemons->holders[r]);
        child_deinit(&daemons->children[r]);
    }
    free(daemons->children);
    free(daemons->holders);
}

static bool start(struct daemons *daemons, uint32_t rank)
{
    return start_daemon(daemons->plan, &daemons->children[rank], &daemons->holders[rank],
                        daemons->output);
}

bool daemons_start(struct daemons *daemons)
{
    bool ok = true;

    for (uint32_t r = 0; ok && r < world_of(daemons); r++)
        ok = start(daemons, r);
    return ok;
}

static void tell_to_end(struct child *daemon)
{
    if (!daemon->told)
        child_signal(daemon, SIGTERM);
    daemon->told = true;
    child_signal(daemon, SIGCONT); /* a stopped process must run to act on it */
}

void daemons_hear(struct daemons *daemons, uint32_t rank)
{
    struct child *daemon = &daemons->children[rank];

    switch (holder_hear(&daemons->holders[rank], daemon->pid, daemons->output)) {
    case HOLDER_READY:
        daemon->ready = daemon->served = true;
        if (daemons->ending || daemons->holders[rank].stopping)
            tell_to_end(daemon);
        break;
    case HOLDER_RELOADING: /* becomes another program: that has a start's time */
        daemon->ready = false;
        daemon->served = true;
        daemon->started_ms = now_ms();
        break;
    case HOLDER_NOTHING:
        break;
    }
}

void daemons_end(struct daemons *daemons)
{
    daemons->ending = true;
    for (uint32_t r = 0; r < world_of(daemons); r++) {
        struct child *daemon = &daemons->children[r];
        if (!daemon->ready && daemons->holders[r].count > 0)
            continue; /* it would die of it, before it could save what was kept for it */
        tell_to_end(daemon);
    }
}

void daemons_dismiss(struct daemons *daemons)
{
    const struct child *all = daemons->children;

    daemons->dismissed = true;
    for (uint32_t r = 0; r < world_of(daemons); r++)
        daemons->children[r].restart_ms = 0;
    children_signal(all, world_of(daemons), SIGTERM);
    children_signal(all, world_of(daemons), SIGINT); /* two of one kind may arrive as one */
}

bool daemons_told(const struct daemons *daemons)
{
    bool told = false;

    for (uint32_t r = 0; r < world_of(daemons); r++)
        told = told || daemons->holders[r].stopping;
    return told;
}

enum save daemons_save(const struct daemons *daemons)
{
    if (daemons_save_dir(daemons)[0] == '\0')
        return SAVE_NONE;
    /* Rank 0 ends with 0 if there was nothing left to save. */
    return daemons->holders[0].saved || daemons->children[0].succeeded ? SAVE_DONE : SAVE_WANTED;
}

const char *daemons_save_dir(const struct daemons *daemons)
{
    for (uint32_t r = 0; r < daemons->made; r++)
        if (daemons->holders[r].save_dir != NULL)
            return daemons->holders[r].save_dir;
    return "";
}

const char *daemons_save_step(const struct daemons *daemons)
{
    return daemons->made > 0 ? daemons->holders[0].step : "";
}

int64_t daemons_patience_ms(const struct daemons *daemons)
{
    int64_t most = 0;

    for (uint32_t r = 0; r < world_of(daemons); r++)
        if (daemons->children[r].pid > 0 && daemons->holders[r].patience_ms > most)
            most = daemons->holders[r].patience_ms;
    return most;
}

bool daemons_ready(const struct daemons *daemons)
{
    uint32_t ready = 0;

    for (uint32_t r = 0; r < world_of(daemons); r++)
        ready += daemons->children[r].ready;
    return ready == world_of(daemons);
}

/* When it is late; 0 if it cannot be. */
static int64_t late_ms(const struct daemons *daemons, const struct child *daemon)
{
    if (daemon->pid == 0 || daemon->ready)
        return 0;
    return daemon->started_ms + (int64_t)daemons->plan->options->ready_s * 1000;
}

static bool is_late(const struct daemons *daemons, const struct child *daemon)
{
    int64_t when = late_ms(daemons, daemon);
    return when != 0 && when <= now_ms();
}

static void say_late(const struct daemons *daemons, const struct child *daemon)
{
    output_say(daemons->output, "zerod %u did not get ready within %u s (--ready-timeout)",
               daemon->rank, daemons->plan->options->ready_s);
    child_say_last_lines(daemon, daemons->output);
}

bool daemons_late(const struct daemons *daemons)
{
    bool late = false;

    for (uint32_t r = 0; r < world_of(daemons); r++) {
        const struct child *daemon = &daemons->children[r];
        if (daemon->served || !is_late(daemons, daemon))
            continue;
        say_late(daemons, daemon);
        late = true;
    }
    return late;
}

void daemons_kill_late(struct daemons *daemons)
{
    for (uint32_t r = 0; r < world_of(daemons); r++) {
        struct child *daemon = &daemons->children[r];
        if (!is_late(daemons, daemon))
            continue;
        say_late(daemons, daemon);
        child_signal(daemon, SIGKILL);
        daemon->started_ms = now_ms(); /* its end comes as an event */
    }
}

bool daemons_replace(struct daemons *daemons, struct child *daemon, const char *how)
{
    const struct options *options = daemons->plan->options;

    if (daemons->restarts >= options->max_daemon_restarts)
        return false;
    daemons->restarts++;
    daemon->restarts++;
    daemon->ready = false;
    restart_plan(daemon, options->restart_delay_s * 1000);
    output_say(daemons->output, "zerod %u %s: restart %u of %u in %.1f s", daemon->rank, how,
               daemons->restarts, options->max_daemon_restarts, daemon->delay_ms / 1000.0);
    return true;
}

bool daemons_start_due(struct daemons *daemons)
{
    bool ok = true;

    for (uint32_t r = 0; ok && r < world_of(daemons); r++) {
        struct child *daemon = &daemons->children[r];
        if (daemon->restart_ms == 0 || daemon->restart_ms > now_ms())
            continue;
        ok = start(daemons, r);
        if (ok)
            continue;
        daemon->started_ms = now_ms(); /* it may be there again in a moment */
        ok = daemons_replace(daemons, daemon, "could not be started");
    }
    return ok;
}

int64_t daemons_next_ms(const struct daemons *daemons)
{
    int64_t next = restart_next_ms(daemons->children, world_of(daemons));

    for (uint32_t r = 0; r < world_of(daemons); r++) {
        int64_t when = late_ms(daemons, &daemons->children[r]);
        if (when != 0 && (next == 0 || when < next))
            next = when;
    }
    return next;
}

void daemons_forget(struct daemons *daemons)
{
    for (uint32_t r = 0; r < daemons->made; r++)
        holder_forget(&daemons->holders[r]);
}
