/* SPDX-License-Identifier: MIT */
/* zerorun_paths.h: which files a command line means.
 *
 * Owns    nothing; what is returned is the caller's to free.
 * Fails   NULL, after a line on stderr that says where it looked.
 * Used by zerorun's main.
 */
#ifndef DEPLOY_ZERORUN_PATHS_H
#define DEPLOY_ZERORUN_PATHS_H

/* As a shell finds it: by PATH, unless the name has a slash. */
char *paths_program(const char *name);
/* The daemon: the one that was named, or the one that belongs to this zerorun. */
char *paths_zerod(const char *named);
/* Where a config beside a trainer's program, under its name, would be. NULL, silently: no memory,
 * or no such program. */
char *paths_beside(const char *program);
/* That config, which must be there. */
char *paths_default_config(const char *program);

#endif
