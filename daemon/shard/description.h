/* SPDX-License-Identifier: MIT */
/* description.h: the registered model and config in a memory object, from which a daemon's
 * successor knows what the arenas that were kept hold.
 *
 *   head | config, JSON as the trainer brought it | layers, each with its tensors
 *
 * Numbers are of this machine: it never leaves it.
 *
 * Owns    nothing; an fd that is given out is the caller's.
 * Thread  any.
 * Fails   CORRUPT for anything that does not check out, VERSION for another zerod's.
 * Uses    base, layout, config.   Used by session, main.
 */
#ifndef DAEMON_SHARD_DESCRIPTION_H
#define DAEMON_SHARD_DESCRIPTION_H

#include "proto/config.h"
#include "proto/layout.h"

enum { DESCRIPTION_VERSION = 1 };

/* A sealed memfd. */
zero_status description_write(const struct zero_layout *layout, const char *config,
                              size_t config_bytes, int *out_fd);

/* The layout of a group of `world` ranks, to be destroyed. */
zero_status description_read(int fd, uint32_t world, struct zero_layout **out_layout,
                             struct zero_config *out_config);

/* The config's text as the trainer brought it; malloc'd, not terminated. */
zero_status description_config(int fd, char **out, size_t *out_bytes);

#endif
