/* SPDX-License-Identifier: MIT */
/* zerorun_overrides.h: a config with some of its keys replaced.
 *
 * Owns    nothing beyond a call.
 * Fails   false, after a line on stderr that names the file or the override.
 * Uses    yajl.   Used by zerorun's main.
 */
#ifndef DEPLOY_ZERORUN_OVERRIDES_H
#define DEPLOY_ZERORUN_OVERRIDES_H

#include <stdbool.h>
#include <stddef.h>

/* Writes `base`, changed by `overrides` ("path.to.key=value") in their order, to the new file
 * `to`. Objects on the way to a key are made if they are missing. */
bool overrides_apply(const char *base, const char *const *overrides, size_t count, const char *to);

#endif
