/* SPDX-License-Identifier: MIT */
/* error.h: how store's failures are worded. Nothing is logged: the caller says it, in its own way.
 *
 * Owns    nothing.
 * Thread  any.
 * Uses    status.   Used by store.
 */
#ifndef DAEMON_STORE_ERROR_H
#define DAEMON_STORE_ERROR_H

#include "proto/status.h"

__attribute__((format(printf, 3, 4))) zero_status
store_refuse(struct zero_detail *detail, zero_code code, const char *format, ...);

/* The same with ": <text of errno>" at the end; NOT_FOUND for ENOENT, PERMISSION for EACCES,
 * EPERM and a symbolic link where a file should be, NO_MEMORY for ENOMEM, else IO. */
__attribute__((format(printf, 2, 3))) zero_status store_refuse_errno(struct zero_detail *detail,
                                                                     const char *format, ...);

#endif
