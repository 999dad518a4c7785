/* SPDX-License-Identifier: MIT */
/* replace.h: a folder that is whole gets the name of its step, whatever has that name already.
 *
 * What has it is set aside, under a name that no start takes and no clean-up removes. Two renames:
 *
 *     step-30.partial-...   to    step-30.replaced-1      the new one: it is no longer cleaned up
 *     step-30.replaced-1   with   step-30                 both at once (RENAME_EXCHANGE)
 *
 * At every instant there is a step-30, and who dies in between leaves both folders whole. Where the
 * file system cannot exchange names, the old one gets the next free name, then the new one its own:
 * only in between there is no step-30. A folder with the very same state is removed in the end.
 *
 * Owns    nothing.
 * Thread  any; several may do it in one folder.
 * Fails   IO, PERMISSION: the name is as it was, or, if that is what failed, not on the disk yet.
 * Uses    folder, ranks.   Used by save.
 */
#ifndef DAEMON_STORE_REPLACE_H
#define DAEMON_STORE_REPLACE_H

#include "daemon/store/save.h"

/* dir/name, which is on the disk, becomes dir/step-<n>. out_aside: the name in dir of what had that
 * one; "" when nothing had, or the same state. It is set on failure too. */
zero_status store_take_name(const char *dir, const char *name, uint64_t step,
                            char out_aside[STORE_ASIDE_BYTES], struct zero_detail *out_detail);

#endif
