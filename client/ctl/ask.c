/* SPDX-License-Identifier: MIT */
#include "client/ctl/ask.h"

void ask_ranks(struct rpc *rpc, const struct group *group, uint32_t count,
               const struct question *question, struct rpc_answer *answers)
{
    struct rpc_call *calls[ZERO_MAX_WORLD];

    for (uint32_t i = 0; i < count; i++)
        calls[i] = rpc_start(rpc, group_socket(group, group->ranks[i]).text, question->method,
                             question->request, question->deadline_ms);
    for (uint32_t i = 0; i < count; i++)
        rpc_wait(calls[i], &answers[i]);
}
