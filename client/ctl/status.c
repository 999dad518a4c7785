/* SPDX-License-Identifier: MIT */
/* zeroctl status */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/commands.h"
#include "client/ctl/standing.h"
#include "client/ctl/table.h"

enum { OPTION_WATCH = 'w', OPTION_JSON = 'j', OPTION_DEADLINE = 't' };

struct status_options {
    struct common *common;
    bool json, watch;
    double every, deadline; /* seconds */
};

static const struct argp_option options[] = {
    { "watch", OPTION_WATCH, "SECONDS", OPTION_ARG_OPTIONAL,
      "show it again every SECONDS (1), until interrupted; the exit code is that of the last time",
      0 },
    { "json", OPTION_JSON, NULL, 0, "as JSON", 0 },
    { "deadline", OPTION_DEADLINE, "SECONDS", 0, "how long a rank may take to answer (2)", 0 },
    { 0 },
};

static double parse_seconds(struct argp_state *state, const char *text)
{
    char *end = NULL;
    double seconds = strtod(text, &end);

    if (end == text || *end != '\0' || !(seconds >= 0.05 && seconds <= 86400))
        argp_error(state, "'%s' is not a number of seconds from 0.05 to 86400", text);
    return seconds;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct status_options *o = state->input;

    switch (key) {
    case OPTION_WATCH:
        o->watch = true;
        o->every = argument != NULL ? parse_seconds(state, argument) : 1;
        return 0;
    case OPTION_JSON:
        o->json = true;
        return 0;
    case OPTION_DEADLINE:
        o->deadline = parse_seconds(state, argument);
        return 0;
    case ARGP_KEY_ARG: /* "--watch 5", as people write it */
        if (!o->watch || state->arg_num > 0)
            argp_error(state, "'%s': status takes no arguments", argument);
        o->every = parse_seconds(state, argument);
        return 0;
    default:
        return common_parse(key, argument, state);
    }
}

static const struct argp parser = {
    .options = options,
    .parser = parse,
    .children = common_children,
    .doc =
        "Shows where every rank of the group stands, its memory against the plan, and its last "
        "step.\vA rank whose daemon does not listen is gone, one that does not answer in time is "
        "silent; either makes the exit code 1, as do a lost rank and memory that differs from "
        "the plan. Colour only on a terminal, and not with NO_COLOR set.",
};

static int show(const struct status_options *o, struct rpc *rpc, const struct group *group)
{
    struct standing *standing = malloc(sizeof *standing);

    if (standing == NULL)
        return complain(EXIT_IO, "no memory");
    standing_ask(standing, rpc, group, (unsigned)(o->deadline * 1000));
    bool shown = o->json ? standing_write(standing, stdout)
                         : standing_print(standing, stdout, table_colour());
    int code = standing_good(standing) ? EXIT_GOOD : EXIT_BAD;
    standing_deinit(standing);
    free(standing);
    return shown ? code : complain(EXIT_IO, "no memory");
}

static bool wait_or_stop(const sigset_t *stops, double seconds)
{
    struct timespec time = { .tv_sec = (time_t)seconds };

    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    return sigtimedwait(stops, NULL, &time) > 0;
}

/* A terminal keeps what it showed before: the frames have a screen of their own. */
static int watch(const struct status_options *o, struct rpc *rpc, struct group *group,
                 const sigset_t *stops)
{
    bool screen = isatty(STDOUT_FILENO) && !o->json;
    int code;

    if (screen)
        fputs("\033[?1049h", stdout);
    do {
        group_scan(group);
        if (screen)
            fputs("\033[H\033[2J", stdout);
        code = show(o, rpc, group);
        if (!screen && !o->json)
            putchar('\n');
        code = finish_output(code);
    } while (code != EXIT_IO && !wait_or_stop(stops, o->every));
    if (screen)
        fputs("\033[?1049l", stdout);
    return code;
}

int command_status(int argc, char **argv, struct common *common)
{
    struct status_options o = { .common = common, .deadline = 2 };
    struct group group;
    sigset_t stops;

    argp_parse(&parser, argc, argv, 0, NULL, &o);
    int code = group_find(common->runtime_dir, &group);
    if (code != EXIT_GOOD)
        return code;
    sigemptyset(&stops);
    sigaddset(&stops, SIGINT);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGHUP);
    if (o.watch)
        sigprocmask(SIG_BLOCK, &stops, NULL); /* before gRPC's threads, which inherit it */
    struct rpc *rpc = rpc_open();
    if (rpc == NULL)
        return complain(EXIT_IO, "no memory");
    code = o.watch ? watch(&o, rpc, &group, &stops) : show(&o, rpc, &group);
    rpc_close(rpc);
    return code;
}
