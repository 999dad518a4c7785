/* SPDX-License-Identifier: MIT */
/* standing.h: where every rank of a group stands, asked of all of them at once, and shown.
 *
 * Owns    the replies, until standing_deinit.
 * Thread  one.
 * Fails   a rank that does not answer has a sentence instead of a reply.
 * Uses    rpc, group, table, writer.   Used by the status command and plan.
 */
#ifndef CLIENT_CTL_STANDING_H
#define CLIENT_CTL_STANDING_H

#include <stdbool.h>
#include <stdio.h>

#include "client/ctl/group.h"
#include "client/ctl/rpc.h"
#include "proto/zero/v1/control.pb-c.h"

struct standing_rank {
    uint32_t rank;
    enum rpc_end end;
    Zero__V1__StatusReply *reply; /* NULL: text says why */
    char text[256];
};

struct standing {
    const struct group *group;
    uint32_t count; /* ranks with a socket, and those that must be there by what others say */
    struct standing_rank ranks[ZERO_MAX_WORLD];
    const Zero__V1__StatusReply *first; /* of the lowest rank that answered; NULL: none did */
};

/* Asks the ranks of the group; waits at most deadline_ms. */
void standing_ask(struct standing *standing, struct rpc *rpc, const struct group *group,
                  unsigned deadline_ms);
void standing_deinit(struct standing *standing);

/* Every rank answers, none is lost, all memory is as planned. */
bool standing_good(const struct standing *standing);

/* "ready", "lost", ... of a reply, else "gone", "silent", "refused". */
const char *standing_word(const struct standing_rank *rank);

/* False without memory. */
bool standing_print(const struct standing *standing, FILE *to, bool colour);
bool standing_write(const struct standing *standing, FILE *to); /* JSON */

#endif
