/* SPDX-License-Identifier: MIT */
#include "client/ctl/standing.h"

#include <math.h>
#include <string.h>

#include "client/ctl/ask.h"
#include "client/ctl/writer.h"

static void take(struct standing_rank *rank, const struct rpc_answer *answer)
{
    rank->end = answer->end;
    rank->reply = (Zero__V1__StatusReply *)answer->reply;
    memcpy(rank->text, answer->text, sizeof rank->text);
}

/* Ranks that are missing by what the others say about the size of the group. */
static void add_missing(struct standing *standing)
{
    uint32_t world = standing->first != NULL ? standing->first->world : 0;

    for (uint32_t r = 0; r < world && r < ZERO_MAX_WORLD; r++) {
        uint32_t at = 0;
        while (at < standing->count && standing->ranks[at].rank < r)
            at++;
        if ((at < standing->count && standing->ranks[at].rank == r) ||
            standing->count == ZERO_MAX_WORLD)
            continue;
        memmove(&standing->ranks[at + 1], &standing->ranks[at],
                (standing->count - at) * sizeof *standing->ranks);
        standing->ranks[at] =
            (struct standing_rank){ .rank = r, .end = RPC_GONE, .text = "it has no socket" };
        standing->count++;
    }
}

void standing_ask(struct standing *standing, struct rpc *rpc, const struct group *group,
                  unsigned deadline_ms)
{
    const struct question question = { &rpc_status, NULL, deadline_ms };
    struct rpc_answer answers[ZERO_MAX_WORLD];

    *standing = (struct standing){ .group = group, .count = group->count };
    ask_ranks(rpc, group, group->count, &question, answers);
    for (uint32_t i = 0; i < group->count; i++) {
        standing->ranks[i].rank = group->ranks[i];
        take(&standing->ranks[i], &answers[i]);
        if (standing->first == NULL)
            standing->first = standing->ranks[i].reply;
    }
    add_missing(standing);
}

void standing_deinit(struct standing *standing)
{
    for (uint32_t i = 0; i < standing->count; i++)
        if (standing->ranks[i].reply != NULL)
            zero__v1__status_reply__free_unpacked(standing->ranks[i].reply, NULL);
    standing->count = 0;
    standing->first = NULL;
}

static bool as_planned(const Zero__V1__StatusReply *reply)
{
    for (size_t a = 0; a < reply->n_arenas; a++)
        if (reply->arenas[a]->bytes != reply->arenas[a]->planned)
            return false;
    return true;
}

bool standing_good(const struct standing *standing)
{
    for (uint32_t i = 0; i < standing->count; i++) {
        const struct standing_rank *rank = &standing->ranks[i];
        if (rank->reply == NULL || strcmp(rank->reply->state, "lost") == 0 ||
            !as_planned(rank->reply))
            return false;
    }
    return standing->count > 0;
}

const char *standing_word(const struct standing_rank *rank)
{
    static const char *const words[] = {
        [RPC_GONE] = "gone", [RPC_SILENT] = "silent", [RPC_REFUSED] = "refused"
    };

    return rank->reply != NULL ? rank->reply->state : words[rank->end];
}

/* ---- JSON ---- */

static void write_arenas(struct writer *w, const Zero__V1__StatusReply *reply)
{
    writer_key(w, "arenas");
    writer_begin(w, '{');
    for (size_t a = 0; a < reply->n_arenas; a++) {
        writer_key(w, reply->arenas[a]->name);
        writer_begin(w, '{');
        writer_key(w, "bytes");
        writer_count(w, reply->arenas[a]->bytes);
        writer_key(w, "planned");
        writer_count(w, reply->arenas[a]->planned);
        writer_end(w, '}');
    }
    writer_end(w, '}');
}

static void write_counts(struct writer *w, const Zero__V1__StatusReply *reply)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        { "epoch", reply->epoch },
        { "step", reply->step },
        { "updates", reply->updates },
        { "skipped_in_row", reply->skipped_in_row },
        { "stage", reply->stage },
        { "world", reply->world },
        { "params", reply->params },
        { "pid", reply->pid },
        { "trainer_pid", reply->trainer_pid },
        { "observers", reply->observers },
        { "versions", reply->versions },
        { "version_bytes", reply->version_bytes },
        { "versions_planned", reply->versions_planned },
    };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        writer_key(w, counts[i].key);
        writer_count(w, counts[i].value);
    }
}

static void write_reals(struct writer *w, const Zero__V1__StatusReply *reply)
{
    const struct {
        const char *key;
        double value;
    } reals[] = {
        { "step_time", reply->step_time },
        { "forward_backward_time", reply->forward_backward_time },
        { "parameter_update_time", reply->parameter_update_time },
        { "loss_scale", reply->loss_scale },
        { "grad_norm", reply->grad_norm },
        { "lr", reply->lr },
    };

    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++) {
        writer_key(w, reals[i].key);
        writer_real(w, reals[i].value);
    }
    writer_key(w, "last_step_age"); /* null: no step yet */
    writer_real(w, reply->last_step_age < 0 ? (double)NAN : reply->last_step_age);
    writer_key(w, "scalars");
    writer_begin(w, '{');
    for (size_t i = 0; i < reply->n_scalars; i++) {
        writer_key(w, reply->scalars[i]->name);
        writer_real(w, reply->scalars[i]->value);
    }
    writer_end(w, '}');
}

static void write_traffic(struct writer *w, const Zero__V1__StatusReply *reply)
{
    const struct {
        const char *key;
        uint64_t value;
    } counts[] = {
        { "gathered_bytes", reply->gathered_bytes },
        { "reduced_bytes", reply->reduced_bytes },
        { "last_gathered_bytes", reply->last_gathered_bytes },
        { "last_reduced_bytes", reply->last_reduced_bytes },
    };

    writer_key(w, "traffic");
    writer_begin(w, '{');
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        writer_key(w, counts[i].key);
        writer_count(w, counts[i].value);
    }
    writer_end(w, '}');
}

/* Of the group, as rank 0 knows it; null: no checkpoint yet. */
static void write_saves(struct writer *w, const Zero__V1__StatusReply *reply)
{
    bool any = reply->saved_age >= 0;

    writer_key(w, "checkpoint");
    writer_begin(w, '{');
    writer_key(w, "step");
    writer_real(w, any ? (double)reply->saved_step : (double)NAN);
    writer_key(w, "age");
    writer_real(w, any ? reply->saved_age : (double)NAN);
    writer_key(w, "failed");
    writer_truth(w, reply->save_failed);
    writer_key(w, "saving_bytes");
    writer_count(w, reply->saving_bytes);
    writer_key(w, "saving_total");
    writer_count(w, reply->saving_total);
    writer_end(w, '}');
}

static void write_rank(struct writer *w, const struct standing_rank *rank)
{
    writer_begin(w, '{');
    writer_key(w, "rank");
    writer_count(w, rank->rank);
    writer_key(w, "state");
    writer_text(w, standing_word(rank));
    if (rank->reply == NULL) {
        writer_key(w, "error");
        writer_text(w, rank->text);
    } else {
        write_counts(w, rank->reply);
        writer_key(w, "param_dtype");
        writer_text(w, rank->reply->param_dtype);
        write_arenas(w, rank->reply);
        write_traffic(w, rank->reply);
        write_reals(w, rank->reply);
        write_saves(w, rank->reply);
        writer_key(w, "restored");
        writer_text(w, rank->reply->restored);
        writer_key(w, "waiting_for");
        writer_text(w, rank->reply->waiting_for);
        writer_key(w, "uptime");
        writer_real(w, rank->reply->uptime);
        writer_key(w, "upgrade");
        writer_text(w, rank->reply->upgrade);
        writer_key(w, "upgrade_text");
        writer_text(w, rank->reply->upgrade_text);
        writer_key(w, "kernels");
        writer_text(w, rank->reply->kernels);
        writer_key(w, "version");
        writer_text(w, rank->reply->version);
    }
    writer_end(w, '}');
}

bool standing_write(const struct standing *standing, FILE *to)
{
    struct writer *w = writer_open(to);

    writer_begin(w, '{');
    writer_key(w, "runtime_dir");
    writer_text(w, standing->group->dir);
    writer_key(w, "good");
    writer_truth(w, standing_good(standing));
    writer_key(w, "ranks");
    writer_begin(w, '[');
    for (uint32_t i = 0; i < standing->count; i++)
        write_rank(w, &standing->ranks[i]);
    writer_end(w, ']');
    writer_end(w, '}');
    return writer_close(w);
}
