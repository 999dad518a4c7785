/* SPDX-License-Identifier: MIT */
/* ask.h: the same question to the ranks of a group, all at once.
 *
 * Owns    nothing: replies are the caller's.
 * Thread  one.
 * Fails   each answer says why it is none.
 * Uses    rpc, group.   Used by zeroctl's commands.
 */
#ifndef CLIENT_CTL_ASK_H
#define CLIENT_CTL_ASK_H

#include "client/ctl/group.h"
#include "client/ctl/rpc.h"

struct question {
    const struct rpc_method *method;
    const ProtobufCMessage *request; /* NULL: an empty one */
    unsigned deadline_ms;
};

/* Asks the first `count` ranks of the group; answers[i] is group->ranks[i]'s. */
void ask_ranks(struct rpc *rpc, const struct group *group, uint32_t count,
               const struct question *question, struct rpc_answer *answers);

#endif
