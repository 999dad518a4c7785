/* SPDX-License-Identifier: MIT */
/* settings.h: what zerod's command line says.
 *
 * Owns    nothing: texts are the command line's and the environment's.
 * Thread  any.
 * Fails   a wrong command line ends the process with EX_USAGE, and a line that says why.
 * Uses    log, layout.   Used by main, place.
 */
#ifndef DAEMON_SETTINGS_H
#define DAEMON_SETTINGS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/log.h"

struct settings {
    uint32_t rank, world;
    const char *dir;
    const char *restore;
    const char *can_take; /* answer whether this program could go on, and end; NULL: be a daemon */
    bool weights_only;
    enum log_level level;
};

void settings_read(struct settings *settings, int argc, char **argv);

#endif
