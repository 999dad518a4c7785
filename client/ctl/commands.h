/* SPDX-License-Identifier: MIT */
/* commands.h: zeroctl's subcommands, what they share, and its exit codes.
 *
 * Thread  one.
 * Fails   a command says on stderr what failed and returns the exit code.
 * Used by zeroctl's main and commands.
 */
#ifndef CLIENT_CTL_COMMANDS_H
#define CLIENT_CTL_COMMANDS_H

#include <argp.h>

enum exits {
    EXIT_GOOD = 0,
    EXIT_BAD = 1,   /* there is an answer, and it is bad */
    EXIT_USAGE = 2, /* the command line */
    EXIT_GROUP = 3, /* no group, or several */
    EXIT_IO = 4,    /* a file, memory, the output */
};

/* Options that may stand before the command or after it. */
struct common {
    const char *runtime_dir; /* NULL: search */
};
extern const struct argp common_argp; /* input: struct common */
extern const struct argp_child common_children[];

/* The keys that no command treats in its own way: gives its struct common to the options above, and
 * refuses arguments. The parser's input begins with a struct common *. */
error_t common_parse(int key, char *argument, struct argp_state *state);

/* Up to a day; anything else ends the program. */
unsigned parse_whole_seconds(const char *argument, struct argp_state *state);

/* argv[0] is "zeroctl status". */
int command_status(int argc, char **argv, struct common *common);
int command_plan(int argc, char **argv, struct common *common);
int command_config(int argc, char **argv, struct common *common);
int command_versions(int argc, char **argv, struct common *common);
int command_checkpoint(int argc, char **argv, struct common *common);
int command_upgrade(int argc, char **argv, struct common *common);
int command_shutdown(int argc, char **argv, struct common *common);

/* Says "zeroctl: ..." on stderr and returns code. */
__attribute__((format(printf, 2, 3))) int complain(enum exits code, const char *format, ...);

/* Flushes stdout; EXIT_IO when not everything could be written, else code. */
int finish_output(int code);

#endif
