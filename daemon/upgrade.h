/* SPDX-License-Identifier: MIT */
/* upgrade.h: the daemon's program is tried before it is put in this one's place.
 *
 * The program that is installed now is started as `zerod --can-take FORMATS`, with the model on its
 * stdin: it ends with 0 and says UPGRADE_ANSWER and the formats if it could go on from this state.
 * Only after that may the group be told to stop; so a program that is missing, lacks a library,
 * hangs, is another one, or knows another format costs nothing.
 *
 *   idle | refused -- upgrade_check --> checking --> checked | refused
 *   checked -- upgrade_go --> waiting, until this process is replaced
 *
 * Owns    the process that is tried, its pipe and timer.
 * Thread  the loop's.
 * Order   upgrade_close, then the loop must run until all is closed.
 * Fails   a refusal has its reason in upgrade_text.
 * Uses    base, shard, journal's version.   Used by main.
 */
#ifndef DAEMON_UPGRADE_H
#define DAEMON_UPGRADE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <uv.h>

#include "daemon/shard/shard.h"

enum upgrade_state {
    UPGRADE_IDLE,
    UPGRADE_CHECKING,
    UPGRADE_CHECKED,
    UPGRADE_REFUSED,
    UPGRADE_WAITING,
};

struct upgrade {
    enum upgrade_state state;
    const char *program; /* borrowed */
    uv_loop_t *loop;
    uv_process_t process;
    uv_pipe_t words; /* what it says on stderr */
    uv_timer_t limit;
    struct stat file; /* that was tried */
    unsigned handles; /* that are not closed */
    uint64_t since_ns;
    char said[400]; /* its last words */
    size_t said_bytes;
    char text[640];
};

/* Environment of a process that is its own successor, since the new program could not be executed
 * after all: the reason. */
#define UPGRADE_FAILED "ZEROD_UPGRADE_FAILED"

/* Environment: the file that an upgrade executes, as who starts the daemon names it (zerorun does).
 */
#define UPGRADE_PROGRAM "ZEROD_PROGRAM"

/* The line of a program that can take the state; the formats follow. */
#define UPGRADE_ANSWER "zerod can take "

/* The file that an upgrade executes: UPGRADE_PROGRAM, else the one that execve was given for this
 * process. Its links are followed when it is executed, not now: they may point to the next version
 * by then. */
void upgrade_find(char out[PATH_MAX]);

void upgrade_init(struct upgrade *upgrade, uv_loop_t *loop, const char *program);

/* Begins to try the program for a model; false if an upgrade is under way, with the reason in
 * upgrade_text. `description`: the model's fd; -1: there is none, which is refused. */
bool upgrade_check(struct upgrade *upgrade, int description, uint32_t world);

/* From checked to waiting; false with the reason. With `now`, one that waits for a step is taken
 * up: it shall wait no longer. */
bool upgrade_go(struct upgrade *upgrade, bool now);

/* Is there another file than the one that was tried? */
bool upgrade_is_changed(const struct upgrade *upgrade);

/* "", "checking", "checked", "refused", "waiting" */
const char *upgrade_word(const struct upgrade *upgrade);

void upgrade_close(struct upgrade *upgrade);

/* --can-take: returns the exit code, 0 or EX_CONFIG; a line on stderr has the answer, or says why
 * not. */
int upgrade_can_take(const char *formats, uint32_t world);

#endif
