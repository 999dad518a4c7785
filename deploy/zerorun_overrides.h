/* SPDX-License-Identifier: MIT */
/* zerorun_overrides.h: a config with some of its keys replaced, checked as the daemon will.
 *
 * Owns    nothing beyond a call.
 * Fails   false, after a line on stderr that names the override, or the original file and the line
 *         in it: nobody but us has seen the merged one.
 * Uses    edit, proto/config.h, yajl.   Used by zerorun's main.
 */
#ifndef DEPLOY_ZERORUN_OVERRIDES_H
#define DEPLOY_ZERORUN_OVERRIDES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct overrides {
    const char *const *texts; /* "path.to.key=value"; the later ones win */
    size_t count;
    uint32_t world; /* that the config is for */
};

/* Writes `base`, changed by the overrides in their order, to the new file `to` (NULL: only checks
 * it). Objects on the way to a key are made if they are missing. */
bool overrides_apply(const char *base, const struct overrides *overrides, const char *to);

#endif
