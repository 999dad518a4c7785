/* SPDX-License-Identifier: MIT */
/* text.h: what a name or a message may look like, wherever it comes from.
 *
 * Thread  any.
 * Fails   never.
 * Uses    nothing.   Used by layout, frame, client.
 */
#ifndef ZERO_TEXT_H
#define ZERO_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Is it valid UTF-8 without control characters, of at most `most` bytes? */
bool zero_text_printable(const char *text, size_t most);

#endif
