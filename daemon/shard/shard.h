/* SPDX-License-Identifier: MIT */
/* shard.h: which bytes of a model this rank owns, and where they are.
 *
 * A place is (layer, index), index counting elements of the layer's flat vector. Replicated arenas
 * hold every place, sharded ones only those of their rank.
 *
 * Owns    the arenas, the layout and the texts it was given.
 * Thread  immutable once created; the memory belongs to the step worker.
 * Fails   NO_MEMORY, TOO_LARGE: nothing is left behind.
 * Uses    base, device.   Used by step, session.
 */
#ifndef DAEMON_SHARD_SHARD_H
#define DAEMON_SHARD_SHARD_H

#include "daemon/base/notify.h"
#include "daemon/device/device.h"
#include "proto/plan.h"

#define SHARD_DESCRIPTION "model" /* the holder's name for it */

struct shard {
    struct device *device; /* borrowed */
    uint32_t rank;
    struct zero_layout *layout;
    struct zero_config config;
    struct zero_plan plan;
    char *text;    /* layout, then config: equal on every rank */
    uint64_t hash; /* of it */
    struct device_buf arena[ZERO_ARENA_COUNT];
};

/* What a shard is made from. */
struct shard_spec {
    uint32_t rank;
    struct zero_layout *layout; /* taken over, also on failure */
    const struct zero_config *config;
    const struct notify_fd *kept; /* arenas that outlived a daemon, by name; NULL: new ones */
    size_t kept_count;
};

/* Adopts kept arenas, whose fds are closed if that fails; CORRUPT when one is missing. */
zero_status shard_create(struct device *device, const struct shard_spec *spec, struct shard **out);

/* What a successor needs, by name: every arena, then the model's description. At most SHARD_LEGACY
 * of them. */
enum { SHARD_LEGACY = ZERO_ARENA_COUNT + 1 };
size_t shard_legacy(const struct shard *shard, int description, struct notify_fd *out);

/* Lodges every arena, and then the model's description, with the holder, so that whoever finds the
 * description finds all. */
zero_status shard_lodge(const struct shard *shard, int description);
/* The reverse, description first. */
void shard_dislodge(const struct shard *shard);
void shard_destroy(struct shard *shard); /* NULL is a no-op */

/* Does every rank hold all of it? Otherwise its shards only. */
bool shard_replicated(const struct shard *shard, enum zero_arena arena);

/* Where fp32 weights are: the master arena, or the parameters themselves when they are fp32. */
enum zero_arena shard_master(const struct shard *shard);

/* A rank's arena, as it is mapped here. */
struct shard_view {
    enum zero_arena arena;
    uint32_t rank;
    const void *base;
};

/* Address of a place in it. */
void *shard_at(const struct shard *shard, const struct shard_view *view, uint32_t layer,
               uint64_t index);
/* The rank in whose arena this one looks a place up, and where that rank's part of the layer ends.
 */
uint32_t shard_holder(const struct shard *shard, enum zero_arena arena, uint32_t layer,
                      uint64_t index, uint64_t *out_end);
/* The same in this rank's own arena. */
void *shard_own(const struct shard *shard, enum zero_arena arena, uint32_t layer, uint64_t index);

/* The places of a layer that this rank's optimizer updates: all at stage 0, its shard otherwise. */
struct zero_range shard_updated(const struct shard *shard, uint32_t layer);
/* The places whose gradients this rank sums: its shard. */
struct zero_range shard_of_rank(const struct shard *shard, uint32_t rank, uint32_t layer);

#endif
