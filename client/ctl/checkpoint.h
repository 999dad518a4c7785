/* SPDX-License-Identifier: MIT */
/* checkpoint.h: what the subcommands of zeroctl checkpoint share.
 *
 * Thread  one.
 * Fails   as commands do (commands.h).
 * Uses    store.   Used by zeroctl checkpoint.
 */
#ifndef CLIENT_CTL_CHECKPOINT_H
#define CLIENT_CTL_CHECKPOINT_H

#include "client/ctl/commands.h"
#include "proto/model.h"
#include "proto/status.h"

struct checkpoint_options {
    struct common *common;
    char **words; /* what is no option, in order */
    unsigned count, least, most;
    bool json, dry_run;
    uint32_t keep;      /* 0: not given */
    zero_dtype dtype;   /* of an export */
    uint64_t max_shard; /* bytes */
    const char *out;    /* NULL: not given */
    const char *model;
};

int checkpoint_save(const struct checkpoint_options *o);
int checkpoint_list(const struct checkpoint_options *o);
int checkpoint_verify(const struct checkpoint_options *o);
int checkpoint_prune(const struct checkpoint_options *o);
int checkpoint_export(const struct checkpoint_options *o);
int checkpoint_import(const struct checkpoint_options *o);

/* Says what failed; EXIT_BAD when what was read is not good, EXIT_IO when it could not be read. */
int checkpoint_complain(zero_status s, const struct zero_detail *detail);

/* The same of a path that may be a folder of checkpoints, where one of them was meant. */
int checkpoint_refuse(const char *path, zero_status s, const struct zero_detail *detail);

#endif
