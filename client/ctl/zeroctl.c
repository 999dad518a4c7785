/* SPDX-License-Identifier: MIT */
/* zeroctl: what people ask of a group of daemons. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/commands.h"

__attribute__((visibility("default"))) const char *argp_program_version = "zeroctl " ZEROD_VERSION;

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv, struct common *common);
} commands[] = {
    { "status", command_status },         { "plan", command_plan },
    { "config", command_config },         { "versions", command_versions },
    { "checkpoint", command_checkpoint }, { "upgrade", command_upgrade },
    { "shutdown", command_shutdown },
};

int complain(enum exits code, const char *format, ...)
{
    va_list args;

    fputs("zeroctl: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return (int)code;
}

int finish_output(int code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return complain(EXIT_IO, "the output could not be written: %s", strerror(errno));
}

static const struct argp_option common_options[] = {
    { "runtime-dir", 'd', "DIR", 0,
      "folder of the group's sockets (default $ZERO_RUNTIME_DIR, else your only running group)",
      0 },
    { 0 },
};

static error_t parse_common(int key, char *argument, struct argp_state *state)
{
    struct common *common = state->input;

    if (key != 'd')
        return ARGP_ERR_UNKNOWN;
    common->runtime_dir = argument;
    return 0;
}

const struct argp common_argp = { .options = common_options, .parser = parse_common };

const struct argp_child common_children[] = { { &common_argp, 0, NULL, 0 }, { 0 } };

error_t common_parse(int key, char *argument, struct argp_state *state)
{
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = *(struct common **)state->input;
        return 0;
    case ARGP_KEY_ARG: /* the name is "zeroctl COMMAND" */
        argp_error(state, "'%s': %s takes no arguments", argument, strrchr(state->name, ' ') + 1);
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

unsigned parse_whole_seconds(const char *argument, struct argp_state *state)
{
    char *end = NULL;
    unsigned long seconds = strtoul(argument, &end, 10);

    if (*argument < '0' || *argument > '9' || *end != '\0' || seconds > 86400)
        argp_error(state, "'%s' is not a number of seconds up to 86400", argument);
    return (unsigned)seconds;
}

struct invocation {
    struct common common;
    const struct command *command;
    int argc;
    char **argv;
};

static error_t parse_main(int key, char *argument, struct argp_state *state)
{
    struct invocation *invocation = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &invocation->common;
        return 0;
    case ARGP_KEY_ARG:
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
            if (strcmp(commands[i].name, argument) == 0)
                invocation->command = &commands[i];
        if (invocation->command == NULL)
            argp_error(state,
                       "'%s' is not a command: status, plan, config, versions, checkpoint, upgrade "
                       "or shutdown",
                       argument);
        invocation->argc = state->argc - state->next + 1;
        invocation->argv = &state->argv[state->next - 1];
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(
            state,
            "a command is needed: status, plan, config, versions, checkpoint, upgrade or shutdown");
        return EINVAL;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {
    .children = common_children,
    .parser = parse_main,
    .args_doc = "COMMAND [OPTION...]",
    .doc = "Shows and steers a group of zerod daemons.\v"
           "Commands (each has its own --help):\n"
           "  status         where every rank stands, its memory and its last step\n"
           "  plan           memory and traffic of a rank, by formula\n"
           "  config FILE    what a config means, key by key; or why it is not accepted\n"
           "  versions       the copies of the parameters that observers read\n"
           "  checkpoint     checkpoints: save, list, verify, prune, export, import\n"
           "  upgrade        replace the daemons' program, the state stays\n"
           "  shutdown       end every daemon of the group in good order\n\n"
           "Exit codes:\n"
           "  0  all is well\n"
           "  1  the answer is bad: a rank is lost, silent or gone, memory differs from the plan, "
           "the\n"
           "     config is not accepted, a daemon did not end, a checkpoint is damaged\n"
           "  2  the command line is wrong\n"
           "  3  no group was found, or several: name one with --runtime-dir\n"
           "  4  a file could not be read, or the output not written",
};

int main(int argc, char **argv)
{
    struct invocation invocation = { .argc = 0 };
    char name[64];

    argp_err_exit_status = EXIT_USAGE;
    signal(SIGXFSZ, SIG_IGN); /* over ulimit -f: whoever writes is told, and says it */
    argp_parse(&parser, argc, argv, ARGP_IN_ORDER, NULL, &invocation);
    snprintf(name, sizeof name, "zeroctl %s", invocation.command->name);
    invocation.argv[0] = name;
    return finish_output(
        invocation.command->run(invocation.argc, invocation.argv, &invocation.common));
}
