/* SPDX-License-Identifier: MIT */
#include "daemon/step/restore.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/choose.h"
#include "daemon/step/fill.h"
#include "daemon/step/mail.h"
#include "daemon/step/recall.h"
#include "daemon/store/match.h"
#include "daemon/store/store.h"

enum {
    BLOCK = 4 << 20 >> 2, /* elements read at once: 4 MiB */
    MOST_TOLD = 100,      /* differences of a model that are logged */
};

_Static_assert((int)STORE_MOST_BLOB <= (int)ZERO_RING_MAX_BLOB,
               "the journal has room for a saved blob");

struct restore {
    struct engine *e;
    const char *path;
    struct store *store;
    const struct store_facts *facts;
    uint32_t *from;       /* the checkpoint's tensor of each of the model's */
    float *values;        /* BLOCK of them */
    uint32_t moments;     /* states to read, as bits */
    bool updates_from_0;  /* the moments begin */
    uint64_t bytes, told; /* read; differences logged */
};

static zero_status fail_of(const struct restore *r, zero_status s, const char *detail)
{
    return fail_status(s.code, "restore", __FILE__, __LINE__, "%.200s: %s", r->path, detail);
}

static zero_status fail_data(const struct restore *r, zero_status s, const char *detail)
{
    struct zero_detail text;

    snprintf(text.text, sizeof text.text, "%.150s: %.150s", r->path, detail);
    return choose_fail(r->path, s, text.text);
}

/* What every rank finds out is said once. */
#define SAY(r, ...)                    \
    do {                               \
        if ((r)->e->options.rank == 0) \
            LOG_INFO(__VA_ARGS__);     \
    } while (0)

/* ---- does it fit ---------------------------------------------------------------------------- */

static void tell_difference(void *context, const char *text)
{
    struct restore *r = context;

    if (r->e->options.rank == 0 && r->told++ < MOST_TOLD)
        LOG_ERROR("restore: %s: %s", r->path, text);
}

static zero_status match(struct restore *r)
{
    const struct zero_layout *want = r->e->shard->layout;
    const struct store_match match = { r->facts->info.layout, want, tell_difference, r };
    struct zero_detail detail = { "" };

    r->from = calloc(want->tensor_count, sizeof *r->from);
    if (r->from == NULL)
        return FAIL(NO_MEMORY, "restore", "for %u tensors", want->tensor_count);
    zero_status s = store_match(&match, r->from, &detail);
    return zero_failed(s) ? fail_of(r, s, detail.text) : s;
}

enum {
    NO_MOMENTS = 0,
    MOMENTUM = 1 << STORE_MOMENT1,
    ADAM = MOMENTUM | 1 << STORE_MOMENT2,
    AMSGRAD = ADAM | 1 << STORE_MAX_MOMENT2,
};

static const struct {
    enum store_state state;
    enum zero_arena arena;
} moment_arenas[] = { { STORE_MOMENT1, ZERO_ARENA_moment1 },
                      { STORE_MOMENT2, ZERO_ARENA_moment2 },
                      { STORE_MAX_MOMENT2, ZERO_ARENA_max_moment2 } };
enum { MOMENTS = sizeof moment_arenas / sizeof *moment_arenas };

static const char *moments_name(uint32_t moments)
{
    return moments == AMSGRAD    ? "Adam's moments with amsgrad's maximum"
           : moments == ADAM     ? "Adam's moments"
           : moments == MOMENTUM ? "SGD's momentum"
                                 : "no moments";
}

static uint32_t moments_needed(const struct shard *shard)
{
    uint32_t needed = 0;

    for (int i = 0; i < MOMENTS; i++)
        if (shard->arena[moment_arenas[i].arena].bytes != 0)
            needed |= 1u << moment_arenas[i].state;
    return needed;
}

/* Which moments are read: the table in restore.h. */
static zero_status plan_moments(struct restore *r)
{
    uint32_t have = r->facts->states & AMSGRAD, need = moments_needed(r->e->shard);

    if (have != NO_MOMENTS && have != MOMENTUM && have != ADAM && have != AMSGRAD)
        return FAIL(CORRUPT, "restore", "%.200s: its moments are of no optimizer", r->path);
    if (have != NO_MOMENTS && need != NO_MOMENTS && (have == MOMENTUM) != (need == MOMENTUM))
        return FAIL(MISMATCH, "restore",
                    "%.200s has %s, and this optimizer needs %s, which mean something else: take "
                    "the weights alone with --weights-only, or the optimizer that it was saved "
                    "with",
                    r->path, moments_name(have), moments_name(need));
    r->moments = have & need;
    r->updates_from_0 = have == NO_MOMENTS && need != NO_MOMENTS;
    if (have != need)
        SAY(r, "the checkpoint has %s, this optimizer needs %s: %s", moments_name(have),
            moments_name(need),
            r->updates_from_0    ? "they begin at zero, and updates count from 0"
            : need == NO_MOMENTS ? "they are dropped"
            : have == AMSGRAD    ? "the maximum is dropped"
                                 : "the maximum begins at zero");
    return zero_success();
}

static void say_differences(const struct restore *r)
{
    const struct store_info *info = &r->facts->info;
    const struct shard *shard = r->e->shard;

    if (info->layout->world != r->e->options.world || info->stage != shard->config.stage ||
        info->layout->dtype != shard->config.param_dtype)
        SAY(r,
            "saved at world size %u, stage %u, in %s; restored at world size %u, stage %u, in %s",
            info->layout->world, info->stage, zero_dtype_name(info->layout->dtype),
            r->e->options.world, shard->config.stage, zero_dtype_name(shard->config.param_dtype));
}

/* ---- reading -------------------------------------------------------------------------------- */

/* A run of a tensor, in pieces that are small enough to give up between two. Moments go straight to
 * their place. */
static zero_status read_run(struct restore *r, const struct zero_segment *run,
                            enum store_state state, enum zero_arena arena)
{
    const struct shard *shard = r->e->shard;
    uint32_t tensor = r->from[run->tensor - shard->layout->tensors];
    struct zero_detail detail = { "" };

    for (uint64_t at = run->begin; at < run->end; at += BLOCK) {
        struct zero_range piece = { at, run->end - at < BLOCK ? run->end : at + BLOCK };
        const struct store_span span = { state, tensor, at - run->tensor->offset,
                                         piece.end - piece.begin };
        bool weights = state == STORE_MASTER;
        float *to = weights ? r->values : shard_own(shard, arena, run->layer, at);
        if (mail_given_up(r->e))
            return REFUSE(INVALID_STATE, "restore", "the daemon is ending, or the trainer left");
        zero_status s = store_read_fp32(r->store, &span, to, &detail);
        if (zero_failed(s))
            return fail_data(r, s, detail.text);
        if (weights)
            fill_write(r->e, run->layer, piece, r->values);
        r->bytes += span.count * sizeof *to;
    }
    return zero_success();
}

/* All places of a state that this rank has. */
static zero_status read_state(struct restore *r, enum store_state state, enum zero_arena arena)
{
    const struct shard *shard = r->e->shard;
    zero_status s = zero_success();

    for (uint32_t l = 0; l < shard->layout->layer_count; l++) {
        struct zero_range range = shard_of_rank(shard, shard->rank, l);
        struct zero_segment run;
        uint32_t cursor = 0;
        if (shard_replicated(shard, arena))
            range = (struct zero_range){ 0, shard->layout->layers[l].flat };
        while (zero_layout_segment(shard->layout, l, range, &cursor, &run))
            TRY(s, read_run(r, &run, state, arena));
    }
out:
    return s;
}

/* Parameters of 16 bits are made from the master, as the update does. */
static zero_status read_states(struct restore *r)
{
    zero_status s;

    r->values = malloc(BLOCK * sizeof *r->values);
    if (r->values == NULL)
        return FAIL(NO_MEMORY, "restore", "%zu bytes", BLOCK * sizeof *r->values);
    TRY(s, read_state(r, STORE_MASTER, ZERO_ARENA_param));
    for (int i = 0; i < MOMENTS; i++)
        if (STORE_HAS(r->moments, moment_arenas[i].state))
            TRY(s, read_state(r, moment_arenas[i].state, moment_arenas[i].arena));
out:
    return s;
}

/* ---- the record ----------------------------------------------------------------------------- */

/* A loss scale that was moved goes on; the config is the new one's. Scale 0: none was saved. */
static zero_status take_scaler(const struct restore *r)
{
    const struct store_scaler *from = &r->facts->info.scaler;
    struct scaler *to = &r->e->record.scaler;

    if (!to->dynamic || r->facts->info.layout->dtype != ZERO_FP16 || from->scale == 0)
        return zero_success();
    if (!isfinite(from->scale) || from->scale < 0 || from->hysteresis_left == 0 ||
        from->iteration < 0 || from->last_overflow < -1 || from->last_overflow > from->iteration)
        return FAIL(CORRUPT, "restore", "%.200s: its loss scale %g makes no sense", r->path,
                    from->scale);
    to->scale = from->scale > to->min ? from->scale : to->min;
    to->hysteresis_left =
        from->hysteresis_left < to->hysteresis ? from->hysteresis_left : to->hysteresis;
    to->iteration = from->iteration;
    to->last_overflow = from->last_overflow;
    return zero_success();
}

/* A blob is its rank's: of another world there is none. */
static void take_blob(const struct restore *r)
{
    struct journal_record *record = &r->e->record;
    uint32_t world = r->facts->info.layout->world;
    size_t bytes = 0;

    if (world == r->e->options.world) {
        const void *blob = store_blob(r->store, r->e->options.rank, &bytes);
        if (bytes > 0)
            memcpy(r->e->journal.blobs[record->blob_current], blob, bytes);
        record->blob_bytes[record->blob_current] = bytes;
        return;
    }
    for (uint32_t k = 0; k < world && bytes == 0; k++)
        store_blob(r->store, k, &bytes);
    if (bytes > 0)
        SAY(r,
            "the trainers' blobs are dropped: they are of %u ranks. Trainers go on by the step's "
            "number",
            world);
}

static zero_status take_progress(const struct restore *r)
{
    const struct store_info *info = &r->facts->info;
    struct journal_record *record = &r->e->record;
    zero_status s;

    TRY(s, take_scaler(r));
    take_blob(r);
    record->step = record->replicas = info->step;
    record->updates = r->updates_from_0 ? 0 : info->updates;
    record->skipped_in_row = info->skipped_in_row;
    record->loss_scale = record->scaler.scale;
    if (info->step > 0)
        record->decision =
            (struct board_decision){ .outcome = info->skipped_in_row ? BOARD_SKIP : BOARD_APPLY,
                                     .step = info->step,
                                     .updates = record->updates,
                                     .skipped_in_row = info->skipped_in_row,
                                     .lr = r->e->shard->config.lr,
                                     .next_scale = record->loss_scale };
    if (choose_is_own(r->e, r->path)) {
        r->e->save.last_step = info->step; /* it need not be saved again */
        recall_note(&r->e->stats, r->facts);
    }
out:
    return s;
}

/* What ranks compare when they meet; the same wherever the folder is. */
static zero_status take_origin(const struct restore *r)
{
    char origin[COMM_ORIGIN_BYTES];
    const char *id = r->facts->id;

    if (strlen(id) != STORE_ID_CHARS || strspn(id, "0123456789abcdef") != STORE_ID_CHARS)
        return FAIL(CORRUPT, "restore", "%.200s: the save's name in it is none", r->path);
    snprintf(origin, sizeof origin, "step %" PRIu64 " of save %s%s", r->facts->info.step, id,
             r->e->options.weights_only ? ", weights only" : "");
    journal_set_origin(&r->e->journal, origin);
    return zero_success();
}

static zero_status write_record(struct restore *r)
{
    zero_status s;

    if (!r->e->options.weights_only)
        TRY(s, take_progress(r));
    TRY(s, take_origin(r));
    r->e->record.filled = 1;
    journal_write(&r->e->journal, &r->e->record);
out:
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------ */

static zero_status take(struct restore *r)
{
    zero_status s;

    TRY(s, match(r));
    if (!r->e->options.weights_only)
        TRY(s, plan_moments(r));
    say_differences(r);
    choose_warn(r->e, r->e->options.weights_only ? 0 : r->facts->info.step);
    TRY(s, read_states(r));
    TRY(s, write_record(r));
out:
    return s;
}

static zero_status restore_from(struct engine *e, const char *path)
{
    struct restore r = { .e = e, .path = path };
    struct zero_detail detail = { "" };
    uint64_t began = clock_ns();

    stats_set(&e->stats.state, STATE_RESTORING);
    zero_status s = store_open(path, &r.store, &detail);
    if (zero_failed(s))
        return choose_fail(path, s, detail.text);
    r.facts = store_facts(r.store);
    LOG_INFO("restoring %s of step %" PRIu64 " from %s",
             e->options.weights_only ? "the weights" : "the state", r.facts->info.step, path);
    s = take(&r);
    if (!zero_failed(s))
        LOG_INFO("restored: %" PRIu64 " bytes read in %.3f s", r.bytes,
                 (double)(clock_ns() - began) * 1e-9);
    store_close(r.store);
    free(r.from);
    free(r.values);
    stats_set(&e->stats.state, STATE_JOINING);
    return s;
}

zero_status restore_model(struct engine *e)
{
    char *path = NULL;
    zero_status s = choose_checkpoint(e, &path);

    if (!zero_failed(s) && path != NULL)
        s = restore_from(e, path);
    free(path);
    return s;
}
