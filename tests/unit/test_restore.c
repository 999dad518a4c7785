/* SPDX-License-Identifier: MIT */
/* A checkpoint of any world, type and stage fills the arenas of every rank of any other, to the
 * bit: every value is looked at. The engines here have no group: a restore needs none. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/base/log.h"
#include "daemon/step/restore.h"
#include "tests/unit/store_sample.h"

enum { STEP = 7 };

static char dir[PATH_MAX];
static struct device *device;

static const char *const dtype_keys[] = { "", ", \"bf16\": {\"enabled\": true}",
                                          ", \"fp16\": {\"enabled\": true, \"loss_scale\": 128}",
                                          ", \"fp16\": {\"enabled\": true}" };

#define ADAMW "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.5}}"
#define AMSGRAD "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.5, \"amsgrad\": true}}"
#define MOMENTUM "{\"type\": \"SGD\", \"params\": {\"lr\": 0.5, \"momentum\": 0.9}}"
#define PLAIN "{\"type\": \"SGD\", \"params\": {\"lr\": 0.5}}"

/* What is restored, into what. */
struct target {
    const char *path;
    uint32_t world, stage;
    zero_dtype dtype;
    const char *optimizer;
    bool weights_only, dynamic; /* loss scale */
    bool grouped;               /* other layers, in another order */
    const char *folder;         /* zerod.checkpoint.dir, in dir; NULL: none */
};

/* ---- an engine without a thread ---- */

static struct zero_layout *grouped_layout(uint32_t world, zero_dtype dtype)
{
    struct zero_layout *plain = NULL, *out = NULL;
    struct zero_tensor_spec tensors[6];
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(sample_layout(world, dtype, &plain)));
    for (uint32_t t = 0; t < plain->tensor_count; t++) {
        const struct zero_tensor *from = &plain->tensors[plain->tensor_count - 1 - t];
        tensors[t] = (struct zero_tensor_spec){ from->name, from->shape, from->dims, 1, NAN };
    }
    const struct zero_layer_spec layers[] = { { "x", tensors, 1 }, { "y", tensors + 1, 5 } };
    const struct zero_layout_spec spec = { layers, 2, world, dtype };
    CHECK(!zero_failed(zero_layout_create(&spec, &out, &detail)));
    zero_layout_destroy(plain);
    return out;
}

static struct engine *make(const struct target *target, uint32_t rank)
{
    struct engine *e = calloc(1, sizeof *e);
    struct zero_config config;
    struct zero_detail detail = { "" };
    struct zero_layout *layout = NULL;
    char text[2 * PATH_MAX];

    if (e == NULL)
        abort();
    int bytes =
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": %s, "
                 "\"zero_optimization\": {\"stage\": %u}%s, "
                 "\"zerod\": {\"checkpoint\": {\"dir\": \"%s%s\"}}}",
                 target->optimizer, target->stage, dtype_keys[(int)target->dtype + target->dynamic],
                 target->folder != NULL ? dir : "", target->folder != NULL ? target->folder : "");
    if (zero_failed(zero_config_parse(text, (size_t)bytes, target->world, &config, &detail)))
        fprintf(stderr, "%s: %s\n", text, detail.text), abort();
    if (target->grouped)
        layout = grouped_layout(target->world, target->dtype);
    else
        CHECK(!zero_failed(sample_layout(target->world, target->dtype, &layout)));
    const struct shard_spec spec = { .rank = rank, .layout = layout, .config = &config };
    if (zero_failed(shard_create(device, &spec, &e->shard)))
        abort();
    e->device = device;
    e->options = (struct engine_options){ .rank = rank,
                                          .world = target->world,
                                          .restore = target->path,
                                          .weights_only = target->weights_only };
    pthread_mutex_init(&e->mail.lock, NULL);
    const struct journal_head identity = { .rank = rank, .world = target->world };
    scaler_init(&e->record.scaler, &config);
    e->record.loss_scale = e->record.scaler.scale;
    journal_init(&e->journal, e->shard->arena[ZERO_ARENA_journal].base, &identity, &e->record);
    return e;
}

static void drop(struct engine *e)
{
    shard_destroy(e->shard);
    pthread_mutex_destroy(&e->mail.lock);
    free(e);
}

/* ---- every value ---- */

static float value_at(const struct engine *e, enum zero_arena arena, uint32_t layer, uint64_t index)
{
    const void *at = shard_own(e->shard, arena, layer, index);
    zero_dtype dtype = arena == ZERO_ARENA_param ? e->shard->config.param_dtype : ZERO_FP32;
    uint16_t half;

    if (dtype == ZERO_FP32)
        return *(const float *)at;
    memcpy(&half, at, sizeof half);
    return dtype == ZERO_BF16 ? bf16_to_float(half) : fp16_to_float(half);
}

/* The number that the sample's rule knows a tensor by. */
static uint32_t sample_tensor(const struct zero_layout *sample, const char *name)
{
    uint32_t t = 0;

    while (strcmp(sample->tensors[t].name, name) != 0)
        t++;
    return t;
}

/* state STORE_STATES: all is zero. */
static uint64_t count_wrong(const struct engine *e, enum zero_arena arena,
                            const struct zero_segment *run, uint32_t tensor, enum store_state state)
{
    uint64_t wrong = 0;

    for (uint64_t i = run->begin; i < run->end; i++) {
        uint64_t element = i - run->tensor->offset;
        float want = state == STORE_STATES ? 0 : sample_value(state, tensor, element, STEP);
        wrong += value_at(e, arena, run->layer, i) != want;
    }
    return wrong;
}

static void check_arena(const struct engine *e, enum zero_arena arena, enum store_state state)
{
    const struct shard *shard = e->shard;
    struct zero_layout *sample = NULL;
    uint64_t wrong = 0;

    if (shard->arena[arena].bytes == 0)
        return;
    CHECK(!zero_failed(sample_layout(1, ZERO_FP32, &sample)));
    for (uint32_t l = 0; l < shard->layout->layer_count; l++) {
        struct zero_range range = shard_of_rank(shard, shard->rank, l);
        uint32_t cursor = 0;
        struct zero_segment run;
        if (shard_replicated(shard, arena))
            range = (struct zero_range){ 0, shard->layout->layers[l].flat };
        while (zero_layout_segment(shard->layout, l, range, &cursor, &run))
            wrong += count_wrong(e, arena, &run, sample_tensor(sample, run.tensor->name), state);
    }
    if (wrong != 0)
        fprintf(stderr, "%s: %" PRIu64 " values are wrong\n", zero_arena_names[arena], wrong);
    CHECK(wrong == 0);
    zero_layout_destroy(sample);
}

static void check_weights(const struct engine *e)
{
    check_arena(e, ZERO_ARENA_param, STORE_MASTER);
    check_arena(e, ZERO_ARENA_master, STORE_MASTER);
}

static void check_moments(const struct engine *e, bool read, bool maximum_read)
{
    check_arena(e, ZERO_ARENA_moment1, read ? STORE_MOMENT1 : STORE_STATES);
    check_arena(e, ZERO_ARENA_moment2, read ? STORE_MOMENT2 : STORE_STATES);
    check_arena(e, ZERO_ARENA_max_moment2, maximum_read ? STORE_MAX_MOMENT2 : STORE_STATES);
}

static void check_record(const struct engine *e, bool blob)
{
    const struct journal_record *record = &e->record;
    const struct journal_head identity = { .rank = e->options.rank, .world = e->options.world };
    struct journal journal;
    struct journal_record again;
    char want[32] = "";

    if (blob)
        snprintf(want, sizeof want, "rank %u blob", e->options.rank);
    CHECK(record->filled == 1 && record->step == STEP && record->replicas == STEP);
    CHECK(record->updates == STEP + 1 && record->skipped_in_row == 2 && record->prepared == 0);
    CHECK(record->decision.step == STEP && record->decision.updates == STEP + 1);
    CHECK(record->decision.outcome == BOARD_SKIP && record->decision.skipped_in_row == 2);
    CHECK(record->decision.next_scale == record->loss_scale);
    CHECK(record->blob_bytes[record->blob_current] == strlen(want));
    CHECK(memcmp(e->journal.blobs[record->blob_current], want, strlen(want)) == 0);
    CHECK_CONTAINS(e->journal.head->origin, "step 7 of save ");
    CHECK(!zero_failed(
        journal_open(&journal, e->shard->arena[ZERO_ARENA_journal].base, &identity, &again)));
    CHECK(again.checksum == record->checksum);
}

/* ---- checkpoints ---- */

static char *save(uint32_t world, zero_dtype dtype, uint32_t states)
{
    static uint32_t number;
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };
    char folder[2 * PATH_MAX], path[PATH_MAX];

    snprintf(folder, sizeof folder, "%s/%u", dir, number++);
    CHECK(!zero_failed(sample_layout(world, dtype, &layout)));
    const struct sample sample = { layout, states, 3, STEP };
    CHECK(!zero_failed(sample_save(&sample, folder, path, &detail)));
    zero_layout_destroy(layout);
    return strdup(path);
}

static uint32_t with_param(zero_dtype dtype, uint32_t states)
{
    return states | (dtype == ZERO_FP32 ? 0 : 1u << STORE_PARAM);
}

/* ---- the tests ---- */

static void one(const struct target *target, uint32_t from_world)
{
    for (uint32_t rank = 0; rank < target->world; rank++) {
        struct engine *e = make(target, rank);
        CHECK(!zero_failed(restore_model(e)));
        check_weights(e);
        check_moments(e, true, true);
        check_record(e, from_world == target->world);
        drop(e);
    }
}

static void all_worlds(void)
{
    static const uint32_t worlds[] = { 1, 2, 3, 8 };
    enum { WORLDS = sizeof worlds / sizeof *worlds };
    uint32_t turn = 0;

    for (int from = 0; from < WORLDS; from++)
        for (int d = 0; d < ZERO_DTYPES; d++) {
            char *path = save(worlds[from], (zero_dtype)d, sample_states((zero_dtype)d));
            for (int to = 0; to < WORLDS; to++, turn++) {
                struct target target = { .path = path,
                                         .world = worlds[to],
                                         .stage = turn % 4,
                                         .dtype = (zero_dtype)(turn % ZERO_DTYPES),
                                         .optimizer = AMSGRAD,
                                         .grouped = turn % 2 };
                one(&target, worlds[from]);
                target.stage = (turn + 1) % 4;
                one(&target, worlds[from]);
            }
            free(path);
        }
}

static const uint32_t states_none = 1 << STORE_MASTER,
                      states_momentum = 1 << STORE_MASTER | 1 << STORE_MOMENT1,
                      states_adam = 1 << STORE_MASTER | 1 << STORE_MOMENT1 | 1 << STORE_MOMENT2,
                      states_amsgrad = 1 << STORE_MASTER | 1 << STORE_MOMENT1 | 1 << STORE_MOMENT2 |
                                       1 << STORE_MAX_MOMENT2;

/* The table in restore.h. */
static void optimizers(void)
{
    const struct {
        uint32_t states;
        const char *optimizer;
        zero_code code;
        bool read, maximum_read, from_0;
    } cases[] = {
        { states_none, ADAMW, ZERO_OK, false, false, true },
        { states_none, MOMENTUM, ZERO_OK, false, false, true },
        { states_none, PLAIN, ZERO_OK, false, false, false },
        { states_momentum, PLAIN, ZERO_OK, false, false, false },
        { states_amsgrad, PLAIN, ZERO_OK, false, false, false },
        { states_adam, ADAMW, ZERO_OK, true, false, false },
        { states_amsgrad, ADAMW, ZERO_OK, true, false, false },
        { states_adam, AMSGRAD, ZERO_OK, true, false, false },
        { states_amsgrad, AMSGRAD, ZERO_OK, true, true, false },
        { states_momentum, MOMENTUM, ZERO_OK, true, false, false },
        { states_momentum, ADAMW, ZERO_MISMATCH, false, false, false },
        { states_adam, MOMENTUM, ZERO_MISMATCH, false, false, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = save(2, ZERO_BF16, with_param(ZERO_BF16, cases[i].states));
        struct target target = { .path = path,
                                 .world = 2,
                                 .stage = 1,
                                 .dtype = ZERO_BF16,
                                 .optimizer = cases[i].optimizer };
        struct engine *e = make(&target, 1);
        CHECK(restore_model(e).code == cases[i].code);
        if (cases[i].code == ZERO_OK) {
            check_weights(e);
            check_moments(e, cases[i].read, cases[i].maximum_read);
            CHECK(e->record.updates == (cases[i].from_0 ? 0 : STEP + 1));
            CHECK(e->record.decision.updates == e->record.updates && e->record.step == STEP);
        } else {
            CHECK(e->record.filled == 0 && e->record.step == 0);
            CHECK_CONTAINS(fail_detail(), "--weights-only");
        }
        drop(e);
        target.weights_only = true; /* always helps */
        e = make(&target, 1);
        CHECK(!zero_failed(restore_model(e)));
        check_weights(e);
        check_moments(e, false, false);
        CHECK(e->record.filled == 1 && e->record.step == 0 && e->record.updates == 0);
        CHECK(e->record.decision.step == 0 && e->record.blob_bytes[0] == 0);
        CHECK_CONTAINS(e->journal.head->origin, "weights only");
        drop(e);
        free(path);
    }
}

/* The sample's loss scale counts from below zero. */
static void nonsense_scale(void)
{
    char *path = save(1, ZERO_FP16, with_param(ZERO_FP16, states_adam));
    struct target target = {
        .path = path, .world = 1, .stage = 0, .dtype = ZERO_BF16, .optimizer = ADAMW
    };
    struct engine *e = make(&target, 0);

    CHECK(!zero_failed(restore_model(e))); /* not looked at */
    CHECK(e->record.loss_scale == 1);
    drop(e);
    target.dtype = ZERO_FP16;
    e = make(&target, 0);
    CHECK(!zero_failed(restore_model(e))); /* the config's is static */
    CHECK(e->record.loss_scale == 128 && e->record.decision.next_scale == 128);
    drop(e);
    target.dynamic = true;
    e = make(&target, 0);
    CHECK(restore_model(e).code == ZERO_CORRUPT && e->record.filled == 0);
    CHECK_CONTAINS(fail_detail(), "loss scale");
    drop(e);
    free(path);
}

static void given_up(void)
{
    char *path = save(1, ZERO_FP32, states_adam);
    const struct target target = { .path = path, .world = 1, .optimizer = ADAMW };
    struct engine *e = make(&target, 0);

    e->mail.given_up = true;
    CHECK(restore_model(e).code == ZERO_INVALID_STATE && e->record.filled == 0);
    drop(e);
    free(path);
}

/* Without --restore the config's folder decides. */
static void by_config(void)
{
    struct target target = { .world = 1, .stage = 2, .optimizer = AMSGRAD, .folder = "/new" };
    char *path = save(2, ZERO_FP32, states_amsgrad), *slash = strrchr(path, '/');
    char broken[2 * PATH_MAX];

    struct engine *e = make(&target, 0);
    CHECK(!zero_failed(restore_model(e)) && e->record.filled == 0);
    CHECK(e->journal.head->origin[0] == '\0');
    drop(e);
    *slash = '\0';
    target.folder = strrchr(path, '/');
    e = make(&target, 0);
    CHECK(!zero_failed(restore_model(e)));
    check_weights(e);
    check_moments(e, true, true);
    check_record(e, false);
    CHECK(e->save.last_step == STEP);
    drop(e);
    snprintf(broken, sizeof broken, "%s/step-7/manifest.json", path);
    CHECK(unlink(broken) == 0);
    e = make(&target, 0);
    CHECK(restore_model(e).code == ZERO_CORRUPT); /* there was one: nothing starts anew by itself */
    CHECK_CONTAINS(fail_detail(), "start anew");
    drop(e);
    free(path);
}

int main(void)
{
    log_init(0, LOG_ERROR_LEVEL);
    CHECK(!zero_failed(device_cpu.open(NULL, &device)));
    sample_dir(dir);
    all_worlds();
    optimizers();
    nonsense_scale();
    given_up();
    by_config();
    sample_remove(dir);
    device->ops->close(device);
    return check_done();
}
