/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_options.h"

#include "proto/layout.h"

#include <argp.h>
#include <err.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* glibc looks for it by name, so it must not be hidden. */
__attribute__((visibility("default"))) const char *argp_program_version = "zerorun " ZEROD_VERSION;

enum long_option {
    KEY_RUNTIME_DIR = 256,
    KEY_MAX_RESTARTS,
    KEY_MAX_DAEMON_RESTARTS,
    KEY_RESTART_DELAY,
    KEY_DAEMONS_ONLY,
    KEY_NO_PREFIX,
    KEY_GRACE,
    KEY_READY_TIMEOUT,
    KEY_RESTORE,
    KEY_WEIGHTS_ONLY,
    KEY_ZEROD
};

_Static_assert(ZERO_MAX_WORLD == 128, "the help of -n says 128");

static const struct argp_option table[] = {
    { NULL, 'n', "N", 0, "Start N daemons and N trainers (1 to 128)", 0 },
    { "config", 'c', "FILE", 0, "The trainers' config; ZERO_CONFIG if not given", 0 },
    { NULL, 'o', "KEY=VALUE", 0,
      "Override a key of the config by its dotted path, such as zero_optimization.stage=2; the "
      "value "
      "is JSON, or text if it is not. May be repeated, the last one wins",
      0 },
    { "runtime-dir", KEY_RUNTIME_DIR, "DIR", 0,
      "Where the group's sockets are; ZERO_RUNTIME_DIR if not given, else a fresh folder", 0 },
    { "max-restarts", KEY_MAX_RESTARTS, "K", 0,
      "Restart the trainer of a rank up to K times when it fails (0)", 0 },
    { "max-daemon-restarts", KEY_MAX_DAEMON_RESTARTS, "K", 0,
      "Restart daemons that die up to K times in all (100): they go on with the memory of those "
      "that "
      "died, and trainers wait for them. With 0, a daemon's death ends the group",
      0 },
    { "restart-delay", KEY_RESTART_DELAY, "SECONDS", 0,
      "The longest wait before a restart (5). A trainer that ran for over 10 s starts again at "
      "once, a daemon that ran for over 1 s too, others after 0.1 s, and twice as long with each "
      "failure in a row",
      0 },
    { "daemons-only", KEY_DAEMONS_ONLY, NULL, 0,
      "Start no trainers: print how they find their daemons, run until stopped", 0 },
    { "no-prefix", KEY_NO_PREFIX, NULL, 0, "Pass lines on without [trainer 0] before them", 0 },
    { "grace", KEY_GRACE, "SECONDS", 0,
      "How long processes may take to end before they are killed (10). Daemons that save the last "
      "step take as long as bytes move",
      0 },
    { "ready-timeout", KEY_READY_TIMEOUT, "SECONDS", 0,
      "How long a daemon may take to get ready (30). At the start the group ends if one takes "
      "longer; "
      "later, when it has a model, it is killed and started again",
      0 },
    { "restore", KEY_RESTORE, "PATH", 0,
      "Start from this checkpoint, or from the newest complete one in the folder PATH, with any N, "
      "stage and dtype. Without it: from the newest in the config's zerod.checkpoint.dir, if there "
      "is one",
      0 },
    { "weights-only", KEY_WEIGHTS_ONLY, NULL, 0,
      "With --restore: take the weights as initial values; training begins at step 0", 0 },
    { "zerod", KEY_ZEROD, "PATH", 0,
      "The daemon to start; ZEROD if not given, else the one beside zerorun, else from PATH", 0 },
    { NULL, 0, NULL, 0, NULL, 0 }
};

static const char description[] =
    "Starts a group of zerod daemons on this host and a trainer for each of them, and leaves "
    "nothing "
    "behind when it ends, however it ends."
    "\v"
    "Trainers get RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, "
    "RESTART_COUNT, ZERO_SOCKET, ZERO_RUNTIME_DIR and, if there is a config, ZERO_CONFIG.\n"
    "\n"
    "Without --config, overrides apply to the config that lies beside the trainer's program under "
    "its name (gpt.json beside gpt).\n"
    "\n"
    "SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the trainers and end the run; a second "
    "one "
    "kills what is left, and loses a last step that is not saved yet. So does zerorun when its own "
    "second process has not ended the group after twice the grace and 5 seconds, or 5 seconds "
    "after "
    "the time that saving daemons asked for. SIGUSR1 and SIGUSR2 are passed on.\n"
    "\n"
    "Exit codes:\n"
    "  0      every trainer ended with 0 (--daemons-only: the daemons were stopped)\n"
    "  1-63   the exit code of the trainer that failed\n"
    "  64     wrong command line, config or program\n"
    "  70     a daemon died, and could not be restarted\n"
    "  71     a daemon did not get ready\n"
    "  72     a trainer was killed by a signal, or its exit code was above 63\n"
    "  73     the runtime folder cannot be used\n"
    "  74     the system refused something (stdout is on a full disk, say), or zerorun's own "
    "process was killed\n"
    "  75     a daemon was told to end (zeroctl shutdown) while trainers ran\n"
    "  76     the last step was to be saved (zerod.checkpoint.dir) and was not, whatever else\n"
    "         happened\n"
    "  128+S  signal S ended the run";

static uint32_t parse_count(struct argp_state *state, const char *name, const char *text,
                            uint32_t least, uint32_t largest)
{
    char *end;

    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || value < least ||
        value > largest)
        argp_error(state, "%s must be a whole number from %u to %u, not \"%s\"", name, least,
                   largest, text);
    return (uint32_t)value;
}

static void add_override(struct argp_state *state, struct options *options, const char *text)
{
    const char *equals = strchr(text, '=');

    if (equals == NULL || equals == text || text[0] == '.' || equals[-1] == '.' ||
        memmem(text, (size_t)(equals - text), "..", 2) != NULL)
        argp_error(state, "-o needs path.to.key=value, not \"%s\"", text);
    options->overrides[options->override_count++] = text;
}

/* Absolute: a daemon may be started again from another folder. */
static char *find_restore(struct argp_state *state, const char *text)
{
    char *path = realpath(text, NULL);

    if (path == NULL)
        argp_error(state, "--restore %s: %s", text, strerror(errno));
    return path;
}

static void check(struct argp_state *state, const struct options *options)
{
    if (options->world == 0)
        argp_error(state, "say with -n how many ranks to start, at least 1");
    if (options->daemons_only && options->trainer != NULL)
        argp_error(state, "--daemons-only starts no trainer: leave \"%s\" out",
                   options->trainer[0]);
    if (!options->daemons_only && options->trainer == NULL)
        argp_error(state, "name the trainer to start after --, or say --daemons-only");
    if (options->weights_only && options->restore == NULL)
        argp_error(state, "--weights-only needs a checkpoint: --restore PATH");
    if (options->daemons_only && options->max_restarts > 0)
        argp_error(state, "--daemons-only starts no trainer, so --max-restarts has no meaning");
    if (options->daemons_only && options->override_count > 0 && options->config == NULL)
        argp_error(state, "with --daemons-only, -o needs a --config to change");
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct options *options = state->input;

    switch (key) {
    case 'n':
        options->world = parse_count(state, "-n", argument, 1, ZERO_MAX_WORLD);
        break;
    case 'c':
        options->config = argument;
        break;
    case 'o':
        add_override(state, options, argument);
        break;
    case KEY_RUNTIME_DIR:
        options->runtime_dir = argument;
        break;
    case KEY_MAX_RESTARTS:
        options->max_restarts = parse_count(state, "--max-restarts", argument, 0, 1000000);
        break;
    case KEY_MAX_DAEMON_RESTARTS:
        options->max_daemon_restarts =
            parse_count(state, "--max-daemon-restarts", argument, 0, 1000000);
        break;
    case KEY_RESTART_DELAY:
        options->restart_delay_s = parse_count(state, "--restart-delay", argument, 0, 86400);
        break;
    case KEY_DAEMONS_ONLY:
        options->daemons_only = true;
        break;
    case KEY_NO_PREFIX:
        options->prefix = false;
        break;
    case KEY_GRACE:
        options->grace_s = parse_count(state, "--grace", argument, 0, 86400);
        break;
    case KEY_READY_TIMEOUT:
        options->ready_s = parse_count(state, "--ready-timeout", argument, 0, 86400);
        break;
    case KEY_RESTORE:
        free(options->restore);
        options->restore = find_restore(state, argument);
        break;
    case KEY_WEIGHTS_ONLY:
        options->weights_only = true;
        break;
    case KEY_ZEROD:
        options->zerod = argument;
        break;
    case ARGP_KEY_ARG:
        options->trainer = state->argv + state->next - 1;
        state->next = state->argc;
        break;
    case ARGP_KEY_END:
        check(state, options);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* An empty variable is an unset one. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value != NULL && value[0] != '\0' ? value : NULL;
}

void options_parse(int argc, char **argv, struct options *out)
{
    static const struct argp argp = {
        .options = table,
        .parser = parse,
        .args_doc = "-- TRAINER [ARGUMENT...]\n--daemons-only",
        .doc = description,
    };
    struct options options = {
        .max_daemon_restarts = DAEMON_RESTARTS,
        .restart_delay_s = RESTART_DELAY_SECONDS,
        .grace_s = GRACE_SECONDS,
        .ready_s = READY_SECONDS,
        .prefix = true,
        .config = variable("ZERO_CONFIG"),
        .runtime_dir = variable("ZERO_RUNTIME_DIR"),
        .zerod = variable("ZEROD"),
        .overrides = calloc((size_t)argc, sizeof *options.overrides),
    };

    if (options.overrides == NULL)
        errx(EXIT_SYSTEM, "no memory for the command line");
    argp_err_exit_status = EXIT_USAGE;
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &options);
    *out = options;
}

void options_deinit(struct options *options)
{
    free(options->overrides);
    free(options->restore);
}
