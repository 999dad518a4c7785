/* SPDX-License-Identifier: MIT */
/* file.h: a whole small file in memory.
 *
 * Owns    nothing: the text is the caller's, to be freed.
 * Fails   after a line on stderr, with the exit code.
 * Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_FILE_H
#define CLIENT_CTL_FILE_H

#include <stddef.h>

/* name "-": standard input. The text ends in a NUL that is not counted. */
int file_read(const char *name, size_t most_bytes, char **out, size_t *out_bytes);

#endif
