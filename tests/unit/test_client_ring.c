/* SPDX-License-Identifier: MIT */
/* Every call that a trainer's threads make reaches the daemon once and in each thread's order, and
 * every answer reaches who waits for it, whether the ring is full, somebody sleeps, or one side
 * goes. */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>

#include "tests/unit/fake_daemon.h"

/* ---- the daemon's side of the ring, as its header describes it ---- */

/* Takes the next entry; false if there is none. */
static bool take_entry(struct fake *fake, struct zero_ring_entry *out)
{
    struct zero_ring_entry *from = &fake->ring->entries[fake->head % ZERO_RING_ENTRIES];

    if (atomic_load_explicit(&from->turn, memory_order_acquire) != fake->head + 1)
        return false;
    out->call = from->call;
    out->slot = from->slot;
    out->layer = from->layer;
    out->attempt = from->attempt;
    memcpy(out->arg, from->arg, sizeof out->arg);
    atomic_store_explicit(&from->turn, fake->head + ZERO_RING_ENTRIES, memory_order_release);
    fake->head++;
    return true;
}

/* Waits for the next entry, asleep on the bell as the protocol asks; false when the test is over.
 */
static bool await_entry(struct fake *fake, struct zero_ring_entry *out)
{
    static const struct timespec most = { .tv_sec = 0, .tv_nsec = 20000000 };

    for (;;) {
        if (take_entry(fake, out))
            return true;
        if (atomic_load(&fake->stop))
            return false;
        uint32_t count = atomic_load(&fake->bell->count);
        atomic_store(&fake->bell->asleep, 1);
        if (take_entry(fake, out)) {
            atomic_store(&fake->bell->asleep, 0);
            return true;
        }
        syscall(SYS_futex, &fake->bell->count, FUTEX_WAIT, count, &most, NULL, 0);
        atomic_store(&fake->bell->asleep, 0);
    }
}

static void answer(struct fake *fake, uint32_t slot, zero_code code, uint64_t value)
{
    struct zero_ring_slot *to = &fake->ring->slots[slot];

    to->code = (uint32_t)code;
    to->value[0] = value;
    snprintf(to->text, sizeof to->text, "code %d", (int)code);
    uint32_t before = atomic_fetch_or(&to->state, (uint32_t)ZERO_SLOT_DONE);
    if ((before & 3) == ZERO_SLOT_SLEEPING)
        syscall(SYS_futex, &to->state, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Until whoever waits on the slot sleeps. */
static void await_sleeper(struct fake *fake, uint32_t slot)
{
    while ((atomic_load(&fake->ring->slots[slot].state) & 3) != ZERO_SLOT_SLEEPING)
        sched_yield();
}

static zero_client *start(struct fake *fake)
{
    zero_client *client = NULL;
    struct zero_detail detail = { "" };

    fake_start(fake);
    CHECK(!zero_failed(fake_attach(fake, ZERO_TRAINER, &client, &detail)));
    CHECK(!zero_failed(fake_register(client)));
    return client;
}

static void finish(struct fake *fake, zero_client *client)
{
    fake_join(fake);
    zero_detach(client);
    fake_close(fake);
}

/* ---- entries ---- */

enum { PRODUCERS = 4, EACH = 20000, SHARE = LAYERS / PRODUCERS };

struct producer {
    zero_client *client;
    uint32_t number;
    pthread_t thread;
};

static void *produce(void *context)
{
    const struct producer *me = context;
    const void *weights;

    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t layer = me->number * SHARE + i % SHARE;
        zero_status s =
            i % 2 ? zero_release(me->client, layer) : zero_gather(me->client, layer, &weights);
        CHECK(!zero_failed(s));
    }
    return NULL;
}

/* Producer p's i-th entry names layer p * SHARE + i % SHARE. */
static void count_entries(struct fake *fake)
{
    uint32_t next[PRODUCERS] = { 0 }, wrong = 0;
    struct zero_ring_entry entry;

    for (uint32_t n = 0; n < PRODUCERS * EACH; n++) {
        while (!take_entry(fake, &entry))
            sched_yield();
        uint32_t who = entry.layer / SHARE, i = next[who]++;
        wrong += entry.layer % SHARE != i % SHARE || entry.slot != ZERO_RING_NO_SLOT ||
                 entry.attempt != 7 || entry.call != (i % 2 ? ZERO_CALL_RELEASE : ZERO_CALL_GATHER);
    }
    CHECK(wrong == 0);
    for (int p = 0; p < PRODUCERS; p++)
        CHECK(next[p] == EACH);
    CHECK(!take_entry(fake, &entry));
}

/* Nothing is read until the ring is full and a producer has rung for room. */
static void count_when_full(struct fake *fake)
{
    while (atomic_load(&fake->ring->tail) < ZERO_RING_ENTRIES ||
           atomic_load(&fake->bell->count) == 0)
        sched_yield();
    CHECK(atomic_load(&fake->ring->tail) == ZERO_RING_ENTRIES);
    count_entries(fake);
}

static void producers(void (*serve)(struct fake *fake))
{
    struct fake fake;
    struct producer all[PRODUCERS];

    fake_init(&fake);
    fake.serve = serve;
    zero_client *client = start(&fake);
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        all[p] = (struct producer){ .client = client, .number = p };
        CHECK(pthread_create(&all[p].thread, NULL, produce, &all[p]) == 0);
    }
    for (int p = 0; p < PRODUCERS; p++)
        pthread_join(all[p].thread, NULL);
    finish(&fake, client);
}

/* ---- slots ---- */

/* A window's place is its layer's in the flat vectors. */
static uint64_t place(uint32_t layer)
{
    return layer == 0 ? 0 : (BIG_FLAT + (uint64_t)(layer - 1) * UNIT) * 4;
}

static void answer_windows(struct fake *fake)
{
    struct zero_ring_entry entry;

    for (uint32_t n = 0; await_entry(fake, &entry); n++) {
        if (entry.slot == ZERO_RING_NO_SLOT)
            continue;
        if (n % 64 == 0)
            await_sleeper(fake, entry.slot);
        answer(fake, entry.slot, ZERO_OK, place(entry.layer));
    }
}

static void *ask_windows(void *context)
{
    const struct producer *me = context;
    void *first = NULL, *window = NULL;

    CHECK(!zero_failed(zero_window(me->client, 0, &first)));
    for (uint32_t i = 0; i < 2000; i++) {
        uint32_t layer = (me->number * SHARE + i) % LAYERS;
        CHECK(!zero_failed(zero_window(me->client, layer, &window)));
        CHECK((char *)window == (char *)first + place(layer));
        CHECK(!zero_failed(zero_submit(me->client, layer)));
    }
    return NULL;
}

static void answers_reach_who_asked(void)
{
    struct fake fake;
    struct producer all[PRODUCERS];

    fake_init(&fake);
    fake.serve = answer_windows;
    zero_client *client = start(&fake);
    for (uint32_t p = 0; p < PRODUCERS; p++) {
        all[p] = (struct producer){ .client = client, .number = p };
        CHECK(pthread_create(&all[p].thread, NULL, ask_windows, &all[p]) == 0);
    }
    for (int p = 0; p < PRODUCERS; p++)
        pthread_join(all[p].thread, NULL);
    finish(&fake, client);
}

/* Answers the last first, and only when every slot is taken. */
static void answer_backwards(struct fake *fake)
{
    struct zero_ring_entry entries[ZERO_RING_SLOTS];

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < ZERO_RING_SLOTS; i++)
            while (!await_entry(fake, &entries[i]))
                ;
        for (int i = ZERO_RING_SLOTS; i-- > 0;)
            answer(fake, entries[i].slot, ZERO_OK, place(entries[i].layer));
    }
}

static void begun_calls_are_limited_and_waited_for_once(void)
{
    struct fake fake;
    zero_op ops[ZERO_RING_SLOTS] = { { 0, 0 } }, one_more;
    void *first = NULL, *window = NULL;

    fake_init(&fake);
    fake.serve = answer_backwards;
    zero_client *client = start(&fake);
    for (int round = 0; round < 3; round++) {
        zero_op old = ops[5];
        for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++)
            CHECK(!zero_failed(zero_window_begin(client, i, &ops[i])));
        CHECK(round == 0 || zero_window_wait(client, old, &window).code == ZERO_INVALID_ARGUMENT);
        for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++) {
            CHECK(!zero_failed(zero_window_wait(client, ops[i], &window)));
            first = i == 0 ? window : first;
            CHECK((char *)window == (char *)first + place(i));
            CHECK(zero_window_wait(client, ops[i], &window).code == ZERO_INVALID_ARGUMENT);
        }
    }
    CHECK(zero_window_wait(client, (zero_op){ 64, 1 }, &window).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_submit_wait(client, (zero_op){ UINT32_MAX, 1 }).code == ZERO_INVALID_ARGUMENT);
    fake_join(&fake);
    fake_fresh_ring(&fake); /* nobody answers now */
    for (uint32_t i = 0; i < ZERO_RING_SLOTS; i++)
        CHECK(!zero_failed(zero_window_begin(client, i, &ops[i])));
    CHECK(zero_window_begin(client, 0, &one_more).code == ZERO_BUSY);
    zero_detach(client);
    fake_close(&fake);
}

/* Answers only sleepers, with codes and places that a daemon must not give. */
static void answer_badly(struct fake *fake)
{
    static const struct {
        uint32_t code;
        uint64_t value;
    } answers[] = { { ZERO_DEADLINE, 0 },
                    { 12345, 0 },
                    { ZERO_OK, FLAT_BYTES },
                    { ZERO_OK, UINT64_MAX - 4095 },
                    { ZERO_OK, FLAT_BYTES - 4096 + 4 },
                    { ZERO_OK, 2 },
                    { ZERO_OK, FLAT_BYTES - 4096 } };
    struct zero_ring_entry entry;

    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        while (!await_entry(fake, &entry))
            ;
        await_sleeper(fake, entry.slot);
        memset(fake->ring->slots[entry.slot].text, 'x', ZERO_RING_TEXT); /* no NUL */
        fake->ring->slots[entry.slot].code = answers[i].code;
        fake->ring->slots[entry.slot].value[0] = answers[i].value;
        atomic_fetch_or(&fake->ring->slots[entry.slot].state, (uint32_t)ZERO_SLOT_DONE);
        syscall(SYS_futex, &fake->ring->slots[entry.slot].state, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

static void bad_answers_are_refused(void)
{
    struct fake fake;
    void *window = NULL;

    fake_init(&fake);
    fake.serve = answer_badly;
    zero_client *client = start(&fake);
    CHECK(zero_window(client, 1, &window).code == ZERO_DEADLINE);
    CHECK(strlen(zero_error_text(client)) == ZERO_RING_TEXT - 1);
    for (int i = 0; i < 5; i++)
        CHECK(zero_window(client, 1, &window).code == ZERO_PROTOCOL);
    CHECK(window == NULL);
    CHECK(!zero_failed(zero_window(client, 1, &window)));
    CHECK(zero_window(client, LAYERS, &window).code == ZERO_INVALID_ARGUMENT);
    CHECK_CONTAINS(zero_error_text(client), "64");
    finish(&fake, client);
}

static void an_op_is_waited_for_by_its_own_pair(void)
{
    struct fake fake;
    struct zero_step_result result;
    const void *weights = NULL;
    void *window = NULL;
    float value;
    zero_op op;

    fake_init(&fake);
    fake.serve = answer_windows;
    zero_client *client = start(&fake);
    CHECK(!zero_failed(zero_submit_begin(client, 1, &op)));
    CHECK(zero_window_wait(client, op, &window).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_gather_wait(client, op, &weights).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_step_wait(client, op, &result).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_read_wait(client, op, &value, 1).code == ZERO_INVALID_ARGUMENT);
    CHECK_CONTAINS(zero_error_text(client), "its own pair");
    CHECK(!zero_failed(zero_submit_wait(client, op)));
    CHECK(window == NULL && weights == NULL);
    finish(&fake, client);
}

static void nothing_is_written_through_null(void)
{
    const struct zero_span span = { 1, 0, 0, 1 };
    struct fake fake;
    uint64_t number = 0;
    float value = 0;
    zero_op op = { 0, 0 };

    fake_init(&fake);
    fake.serve = answer_windows;
    CHECK(zero_attach(NULL, NULL, NULL).code == ZERO_INVALID_ARGUMENT);
    zero_client *client = start(&fake);
    const zero_status all[] = {
        zero_gather(client, 1, NULL),
        zero_gather_begin(client, 1, NULL),
        zero_gather_wait(client, op, NULL),
        zero_window(client, 1, NULL),
        zero_window_begin(client, 1, NULL),
        zero_window_wait(client, op, NULL),
        zero_submit_begin(client, 1, NULL),
        zero_step(client, NULL, NULL),
        zero_step_begin(client, NULL, NULL),
        zero_step_wait(client, op, NULL),
        zero_fill(client, NULL, &value),
        zero_fill(client, &span, NULL),
        zero_read(client, ZERO_MASTER, NULL, &value),
        zero_read(client, ZERO_MASTER, &span, NULL),
        zero_read_begin(client, ZERO_MASTER, &span, NULL),
        zero_read_wait(client, op, NULL, 1),
        zero_tensor_place(client, 1, 0, NULL, &number),
        zero_tensor_place(client, 1, 0, &number, NULL),
        zero_blob(client, &value, sizeof value, NULL),
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(all[i].code == ZERO_INVALID_ARGUMENT);
    CHECK_CONTAINS(zero_error_text(client), "NULL");
    finish(&fake, client);
}

static void scalars_have_names(void)
{
    static const struct zero_scalar none[] = { { "", 1 } },
                                    twice[] = { { "loss", 1 }, { "loss", 2 } },
                                    bytes[] = { { "caf\xe9", 1 } };
    struct zero_scalar endless[1] = { { "", 1 } };
    struct zero_step_result result;
    struct fake fake;

    memset(endless[0].name, 'x', sizeof endless[0].name);
    fake_init(&fake);
    fake.serve = answer_windows;
    zero_client *client = start(&fake);
    const struct {
        const struct zero_scalar *scalars;
        size_t count;
        const char *text;
    } cases[] = { { none, 1, "name of scalar 0" },
                  { twice, 2, "both named loss" },
                  { bytes, 1, "UTF-8" },
                  { endless, 1, "NUL" },
                  { NULL, 1, "scalars is NULL" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct zero_step_args args = { .lr = NAN,
                                             .scalars = cases[i].scalars,
                                             .scalar_count = cases[i].count };
        CHECK(zero_step(client, &args, &result).code == ZERO_INVALID_ARGUMENT);
        CHECK_CONTAINS(zero_error_text(client), cases[i].text);
    }
    finish(&fake, client);
}

/* ---- the end of a session ---- */

static void leave_a_sleeper(struct fake *fake)
{
    struct zero_ring_entry entry;

    while (!await_entry(fake, &entry))
        ;
    await_sleeper(fake, entry.slot);
} /* and the socket closes */

static void a_sleeper_hears_of_the_end(void)
{
    struct fake fake;
    void *window = NULL;
    const void *weights = NULL;
    struct zero_step_result result;

    fake_init(&fake);
    fake.registered.deadline_ms = 50;
    fake.serve = leave_a_sleeper;
    zero_client *client = start(&fake);
    CHECK(zero_window(client, 1, &window).code == ZERO_DAEMON_LOST);
    CHECK(zero_gather(client, 1, &weights).code == ZERO_DAEMON_LOST);
    CHECK(zero_submit(client, 1).code == ZERO_DAEMON_LOST);
    CHECK(zero_step(client, NULL, &result).code == ZERO_DAEMON_LOST);
    CHECK_CONTAINS(zero_error_text(client), "attach again");
    finish(&fake, client);
}

static void a_closed_session_takes_no_calls(void)
{
    struct fake fake;
    const void *weights = NULL;

    fake_init(&fake);
    fake.registered.deadline_ms = 50;
    fake.serve = answer_windows;
    zero_client *client = start(&fake);
    CHECK(!zero_failed(zero_gather(client, 1, &weights)));
    atomic_store(&fake.ring->alive, 0);
    CHECK(zero_gather(client, 1, &weights).code == ZERO_DAEMON_LOST);
    finish(&fake, client);
}

static void stay(struct fake *fake)
{
    while (!atomic_load(&fake->stop))
        sched_yield();
}

static void *wait_in_vain(void *context)
{
    void *window = NULL;

    CHECK(zero_window(context, 1, &window).code == ZERO_DAEMON_SILENT);
    return NULL;
}

/* Neither a call that is not answered nor an entry that never gets free is waited for for ever. */
static void a_stopped_daemon_is_named(void)
{
    struct fake fake;
    pthread_t thread;

    fake_init(&fake);
    fake.registered.deadline_ms = 1;
    fake.serve = stay;
    zero_client *client = start(&fake);
    CHECK(pthread_create(&thread, NULL, wait_in_vain, client) == 0);
    while (atomic_load(&fake.ring->tail) == 0)
        sched_yield();
    atomic_store(&fake.ring->entries[1].turn, 5); /* neither free, nor full, nor of another turn */
    CHECK(zero_release(client, 1).code == ZERO_DAEMON_SILENT);
    pthread_join(thread, NULL);
    CHECK_CONTAINS(zero_error_text(client), "stopped");
    finish(&fake, client);
}

/* ---- attempts and steps ---- */

static void an_aborted_attempt_is_told_once(void)
{
    struct fake fake;
    const void *weights = NULL;
    struct zero_ring_entry entry;

    fake_init(&fake);
    fake.serve = stay;
    zero_client *client = start(&fake);
    CHECK(!zero_failed(zero_submit(client, 1)));
    atomic_store(&fake.ring->attempt, 8);
    CHECK(!zero_failed(zero_gather(client, 1, &weights)));
    CHECK(zero_submit(client, 1).code == ZERO_STEP_ABORTED);
    CHECK(!zero_failed(zero_submit(client, 2)));
    const struct {
        uint32_t layer, attempt;
    } wanted[] = { { 1, 7 }, { 1, 7 }, { 2, 8 } };
    for (size_t i = 0; i < 3; i++) {
        bool taken = take_entry(&fake, &entry);
        CHECK(taken && entry.layer == wanted[i].layer && entry.attempt == wanted[i].attempt);
    }
    CHECK(!take_entry(&fake, &entry));
    finish(&fake, client);
}

static void put_result(struct fake *fake, uint64_t step)
{
    struct zero_ring_step *to = &fake->ring->step;

    to->step = step;
    to->updates = step - 1;
    to->outcome = ZERO_STEP_APPLIED;
    to->grad_norm = 2.5;
    to->used_lr = to->lr;
    to->loss_scale = 64;
    to->means[0] = to->scalars[0].value / 2;
    atomic_fetch_add(&fake->ring->attempt, 1);
}

/* One step is answered; one is not in time and ends before it is asked for again; one is aborted.
 */
static void step_thrice(struct fake *fake)
{
    struct zero_ring_entry entry;

    for (int n = 0; n < 4; n++) {
        while (!await_entry(fake, &entry))
            ;
        CHECK(entry.call == ZERO_CALL_STEP &&
              entry.attempt == (n < 3 ? 7u + (unsigned)(n > 0) : 9));
        if (n == 0) {
            put_result(fake, 4);
            answer(fake, entry.slot, ZERO_OK, 0);
        } else if (n == 1) {
            answer(fake, entry.slot, ZERO_DEADLINE, 0);
            put_result(fake, 5);
        } else {
            if (n == 3)
                atomic_fetch_add(&fake->ring->attempt, 1);
            answer(fake, entry.slot, ZERO_STEP_ABORTED, 0);
        }
    }
}

static bool blob_is(const zero_client *client, const char *text)
{
    char got[16] = "";
    size_t bytes = 99;

    return !zero_failed(zero_blob(client, got, sizeof got, &bytes)) && bytes == strlen(text) &&
           memcmp(got, text, bytes) == 0;
}

static void a_step_that_outlived_its_wait_is_not_lost(void)
{
    struct fake fake;
    struct zero_step_result result = { 0 };
    void *window = NULL;
    const struct zero_scalar scalars[] = { { "loss", 8 } };
    struct zero_step_args args = { 0.25, "four", 4, scalars, 1 };

    fake_init(&fake);
    fake.registered.blob.data = (uint8_t *)"three";
    fake.registered.blob.len = 5;
    fake.serve = step_thrice;
    zero_client *client = start(&fake);
    CHECK(zero_client_info(client)->step == 3 && blob_is(client, "three"));
    CHECK(!zero_failed(zero_step(client, &args, &result)));
    CHECK(result.step == 4 && result.updates == 3 && result.outcome == ZERO_STEP_APPLIED);
    CHECK(result.lr >= 0.25 && result.lr <= 0.25 && result.scalars[0] >= 4 &&
          result.scalars[0] <= 4);
    CHECK(zero_client_info(client)->step == 4 && blob_is(client, "four"));

    args.blob = "five";
    CHECK(zero_step(client, &args, &result).code == ZERO_DEADLINE);
    CHECK(zero_client_info(client)->step == 4 && blob_is(client, "four"));
    CHECK(zero_window(client, 1, &window).code == ZERO_STEP_PENDING);
    args.blob = "six!"; /* too late: the daemon has taken the first one's */
    CHECK(!zero_failed(zero_step(client, &args, &result)));
    CHECK(result.step == 5 && zero_client_info(client)->step == 5 && blob_is(client, "five"));

    CHECK(zero_step(client, NULL, &result).code == ZERO_STEP_ABORTED);
    CHECK(zero_client_info(client)->step == 5 && blob_is(client, "five"));
    args.blob = NULL;
    CHECK(zero_step(client, &args, &result).code == ZERO_INVALID_ARGUMENT);
    args = (struct zero_step_args){ .lr = NAN, .blob = "", .blob_bytes = ZERO_MAX_BLOB + 1 };
    CHECK(zero_step(client, &args, &result).code == ZERO_TOO_LARGE);
    finish(&fake, client);
}

/* ---- state ---- */

/* Keeps one tensor of BIG elements; reads give it back. */
static void keep_values(struct fake *fake)
{
    float *values = calloc(BIG, sizeof *values);
    struct zero_ring_entry entry;

    while (await_entry(fake, &entry)) {
        uint64_t offset = entry.arg[1], count = entry.arg[2], at = entry.arg[3];
        bool good = entry.layer == 0 && offset <= BIG && count <= BIG - offset && at <= STAGING &&
                    count * 4 <= STAGING - at;
        CHECK(good);
        if (good && entry.call == ZERO_CALL_FILL) {
            CHECK(entry.arg[0] == 0);
            memcpy(values + offset, fake->staging + at, count * sizeof *values);
        } else if (good) {
            CHECK(entry.call == ZERO_CALL_READ && entry.arg[0] == (uint64_t)ZERO_MOMENT2 << 32);
            memcpy(fake->staging + at, values + offset, count * sizeof *values);
        }
        answer(fake, entry.slot, ZERO_OK, 0);
    }
    free(values);
}

static void begun_reads_have_their_own_places(zero_client *client, const float *values)
{
    enum { BEGUN = 40, COUNT = 500 };
    zero_op ops[BEGUN];
    float got[COUNT];

    for (int round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < BEGUN; i++) {
            const struct zero_span span = { 0, 0, i * 1000, COUNT };
            CHECK(!zero_failed(zero_read_begin(client, ZERO_MOMENT2, &span, &ops[i])));
        }
        for (int i = BEGUN; i-- > 0;) {
            CHECK(!zero_failed(zero_read_wait(client, ops[i], got, COUNT)));
            CHECK(same(got, values + (size_t)i * 1000, sizeof got));
            CHECK(zero_read_wait(client, ops[i], got, COUNT).code == ZERO_INVALID_ARGUMENT);
        }
    }
}

/* Sleeps until the answer was given up, then answers to the op of before. */
static void step_once_left(struct fake *fake)
{
    struct zero_ring_entry entry, second;

    while (!await_entry(fake, &entry))
        ;
    while (atomic_load((atomic_int *)fake->context) < 2)
        sched_yield();
    CHECK(!take_entry(fake, &second));
    put_result(fake, 4);
    answer(fake, entry.slot, ZERO_OK, 0);
}

/* A step whose wait was given up is waited for again, and is not asked for twice. */
static void an_interrupted_step_goes_on(void)
{
    struct fake fake;
    struct zero_step_result result = { 0 };
    atomic_int looks;

    atomic_init(&looks, 0);
    fake_init(&fake);
    fake.serve = step_once_left;
    fake.interrupted = fake_second_look;
    fake.context = &looks;
    zero_client *client = start(&fake);
    CHECK(zero_step(client, NULL, &result).code == ZERO_INTERRUPTED);
    CHECK_CONTAINS(zero_error_text(client), "interrupted");
    CHECK(zero_submit(client, 1).code == ZERO_STEP_PENDING);
    CHECK(!zero_failed(zero_step(client, NULL, &result)) && result.step == 4);
    finish(&fake, client);
}

static void values_go_in_and_come_back(void)
{
    struct fake fake;
    float *values = malloc(BIG * sizeof *values), *got = malloc(BIG * sizeof *got);
    const struct zero_span all = { 0, 0, 0, BIG }, over = { 0, 0, 1, BIG }, none = { 0, 1, 0, 1 };

    fake_init(&fake);
    fake.registered.filled = false;
    fake.serve = keep_values;
    zero_client *client = start(&fake);
    for (int i = 0; i < BIG; i++)
        values[i] = (float)i * 0.5f;
    CHECK(!zero_failed(zero_fill(client, &all, values)));
    memset(got, 0xff, BIG * sizeof *got);
    CHECK(!zero_failed(zero_read(client, ZERO_MOMENT2, &all, got)));
    CHECK(same(got, values, BIG * sizeof *got));
    CHECK(zero_read(client, ZERO_MOMENT2, &over, got).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_read(client, ZERO_MOMENT2, &none, got).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_fill(client, &none, values).code == ZERO_INVALID_ARGUMENT);
    begun_reads_have_their_own_places(client, values);
    finish(&fake, client);
    free(values);
    free(got);
}

static void serve_nothing(struct fake *fake)
{
    (void)fake;
}

/* Who was told that the model has its values gives none; who was not may give them late. */
static void values_are_given_once(void)
{
    const struct zero_span span = { 0, 0, 0, 1 };
    const float value = 0.5f;
    struct fake fake;

    fake_init(&fake);
    fake.serve = serve_nothing;
    zero_client *client = start(&fake);
    CHECK(zero_client_info(client)->filled);
    CHECK(zero_fill_from(client, ZERO_FILL_EVERY_RANK).code == ZERO_INVALID_STATE);
    CHECK(zero_fill(client, &span, &value).code == ZERO_INVALID_STATE);
    finish(&fake, client);
}

int main(void)
{
    producers(count_entries);
    producers(count_when_full);
    answers_reach_who_asked();
    begun_calls_are_limited_and_waited_for_once();
    bad_answers_are_refused();
    an_op_is_waited_for_by_its_own_pair();
    nothing_is_written_through_null();
    scalars_have_names();
    a_sleeper_hears_of_the_end();
    a_closed_session_takes_no_calls();
    a_stopped_daemon_is_named();
    an_aborted_attempt_is_told_once();
    a_step_that_outlived_its_wait_is_not_lost();
    an_interrupted_step_goes_on();
    values_go_in_and_come_back();
    values_are_given_once();
    return check_done();
}
