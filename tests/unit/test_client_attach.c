/* SPDX-License-Identifier: MIT */
/* Attaching ends in a session whose memory is what the daemon says, or in an error that names the
 * cause, whatever the daemon says; and leaving gives everything back. */
#include <sys/stat.h>

#include "tests/unit/fake_daemon.h"

/* Fails to attach with that code and text; the client stays untouched. */
static void refused(const struct zero_attach_options *options, zero_code code, const char *wanted)
{
    zero_client *client = (zero_client *)options; /* anything */
    struct zero_detail detail = { "" };
    zero_status s = zero_attach(options, &client, &detail);

    CHECK(s.code == code);
    if (s.code != code)
        fprintf(stderr, "wanted %s, got %s: %s\n", zero_code_name(code), zero_code_name(s.code),
                detail.text);
    CHECK_CONTAINS(detail.text, wanted);
    CHECK(client == (const void *)options);
}

static void sockets_that_are_none(void)
{
    char path[300];
    struct fake fake;

    unsetenv("ZERO_SOCKET");
    refused(NULL, ZERO_INVALID_ARGUMENT, "ZERO_SOCKET");
    setenv("ZERO_SOCKET", "", 1);
    refused(NULL, ZERO_INVALID_ARGUMENT, "ZERO_SOCKET");
    memset(path, 'x', sizeof path);
    path[108] = '\0'; /* sun_path has 108 bytes, the last for the NUL */
    setenv("ZERO_SOCKET", path, 1);
    refused(NULL, ZERO_INVALID_ARGUMENT, "108 bytes, at most 107");
    unsetenv("ZERO_SOCKET");

    fake_init(&fake);
    struct zero_attach_options options = { .socket = fake.path, .deadline_ms = 30 };
    refused(&options, ZERO_DEADLINE, fake.path);
    options.role = (enum zero_role)7;
    refused(&options, ZERO_INVALID_ARGUMENT, "role 7");
    options.role = ZERO_TRAINER;
    fake_close(&fake);
}

/* Nobody will ever listen there, so there is nothing to wait for: the default deadline is a minute,
 * and a refusal that came with it would be DEADLINE. */
static void paths_that_stay_wrong(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct fake fake;
    char path[sizeof fake.path + 8];

    fake_init(&fake);
    struct zero_attach_options options = { .socket = fake.folder };
    refused(&options, ZERO_INVALID_ARGUMENT, "is a folder, not a daemon's socket: name the rank-R");
    options.socket = "/proc/version";
    refused(&options, ZERO_INVALID_ARGUMENT, "/proc/version is a file, not a daemon's socket");
    options.socket = "/proc/version/rank-0.sock"; /* below what is no folder */
    refused(&options, ZERO_SYSTEM, "Not a directory: name the rank-R.sock");
    snprintf(path, sizeof path, "%s.c", fake.path); /* as a rank-0.control */
    memcpy(address.sun_path, path, strlen(path) + 1);
    int stream = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(stream, (struct sockaddr *)&address, sizeof address) == 0 && listen(stream, 1) == 0);
    options.socket = path;
    refused(&options, ZERO_INVALID_ARGUMENT, "is a socket, but not one for trainers");
    close(stream);
    unlink(path);
    if (geteuid() != 0) { /* root may go everywhere */
        CHECK(chmod(fake.folder, 0) == 0);
        options.socket = fake.path;
        refused(&options, ZERO_PERMISSION, "Permission denied: run the trainer as the user");
        CHECK(chmod(fake.folder, 0700) == 0);
    }
    fake_close(&fake);
}

static void daemons_that_do_not_accept(void)
{
    struct fake fake;
    int fillers[64], count = 0;
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    fake_init(&fake);
    struct zero_attach_options options = { .socket = fake.path, .deadline_ms = 60 };
    fake_listen(&fake, 0);
    memcpy(address.sun_path, fake.path, strlen(fake.path) + 1);
    do
        fillers[count] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    while (connect(fillers[count++], (struct sockaddr *)&address, sizeof address) == 0 &&
           count < 64);
    CHECK(count < 64);
    refused(&options, ZERO_DEADLINE, "zerod running"); /* a full queue: it is stopped */
    while (count > 0)
        close(fillers[--count]);
    close(fake.listener);
    fake.listener = -1;
    refused(&options, ZERO_DEADLINE, "refused"); /* a stale socket */
    fake_close(&fake);
}

static void *attach_early(void *context)
{
    struct fake *fake = context;
    zero_client *client = NULL;

    CHECK(!zero_failed(fake_attach(fake, ZERO_TRAINER, &client, NULL)));
    zero_detach(client);
    return NULL;
}

static void a_daemon_may_come_later(void)
{
    struct fake fake;
    pthread_t thread;

    fake_init(&fake);
    CHECK(pthread_create(&thread, NULL, attach_early, &fake) == 0);
    fake_start(&fake);
    pthread_join(thread, NULL);
    fake_join(&fake);
    fake_close(&fake);
}

/* A daemon that differs from an honest one in what `change` changes. */
static void welcome_refused(void (*change)(struct fake *fake), zero_code code, const char *wanted)
{
    struct fake fake;

    fake_init(&fake);
    change(&fake);
    fake_start(&fake);
    struct zero_attach_options options = { .socket = fake.path,
                                           .deadline_ms = fake.mute ? 50 : 20000 };
    refused(&options, code, wanted);
    fake_join(&fake);
    fake_close(&fake);
}

static void busy(struct fake *fake)
{
    fake->refuse = ZERO_BUSY;
}
static void refuse_nothing(struct fake *fake)
{
    fake->refuse = (zero_code)99;
}
static void be_mute(struct fake *fake)
{
    fake->mute = true;
}
static void other_version(struct fake *fake)
{
    fake->welcome.protocol = 2;
}
static void no_world(struct fake *fake)
{
    fake->welcome.world = 0;
}
static void huge_world(struct fake *fake)
{
    fake->welcome.world = 129;
}
static void rank_outside(struct fake *fake)
{
    fake->welcome.rank = 1;
}

/* ---- registering ---- */

static void register_refused(void (*change)(struct fake *fake), zero_code code, const char *wanted)
{
    struct fake fake;
    zero_client *client = NULL;

    fake_init(&fake);
    change(&fake);
    fake_start(&fake);
    CHECK(!zero_failed(fake_attach(&fake, ZERO_TRAINER, &client, NULL)));
    zero_status s = fake.model ? zero_register(client, NULL) : fake_register(client);
    CHECK(s.code == code);
    if (s.code != code)
        fprintf(stderr, "wanted %s, got %s: %s (%s)\n", zero_code_name(code),
                zero_code_name(s.code), zero_error_text(client), wanted);
    CHECK_CONTAINS(zero_error_text(client), wanted);
    const void *weights = NULL;
    CHECK(zero_gather(client, 0, &weights).code == ZERO_INVALID_STATE);
    zero_detach(client);
    fake_join(&fake);
    fake_close(&fake);
}

static void replace(struct fake *fake, int which, int fd)
{
    close(fake->fds[which]);
    fake->fds[which] = fd;
}

static void stage_4(struct fake *fake)
{
    fake->registered.stage = 4;
}
static void dtype_3(struct fake *fake)
{
    fake->registered.param_dtype = 3;
}
static void dtype_max(struct fake *fake)
{
    fake->registered.grad_dtype = UINT32_MAX;
}
static void too_few_fds(struct fake *fake)
{
    close(fake->fds[--fake->fd_count]);
    fake->fds[4] = 0;
}
static void no_fds(struct fake *fake)
{
    while (fake->fd_count > 0)
        close(fake->fds[--fake->fd_count]);
    memset(fake->fds, 0, sizeof fake->fds);
}
static void too_many_fds(struct fake *fake)
{
    fake->fds[fake->fd_count++] = dup(fake->fds[0]);
}
static void small_ring(struct fake *fake)
{
    replace(fake, 0, fake_memory(4096));
}
static void small_staging(struct fake *fake)
{
    replace(fake, 3, fake_memory(STAGING - 4096));
}
static void small_params(struct fake *fake)
{
    replace(fake, 4, fake_memory(FLAT_BYTES - 4096));
}
static void small_window(struct fake *fake)
{
    fake->registered.window_bytes = FLAT_BYTES + 4096;
}
static void huge_window(struct fake *fake)
{
    fake->registered.window_bytes = UINT64_MAX;
}
static void bell_is_no_memory(struct fake *fake)
{
    replace(fake, 1, open("/dev/null", O_RDWR));
}

static void params_may_shrink(struct fake *fake)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(ftruncate(fd, FLAT_BYTES) == 0);
    replace(fake, 4, fd);
}

/* A piece of a model: `tensors` tensors of one element. */
static void say_layer(struct fake *fake, uint32_t layer, size_t tensors)
{
    Zero__V1__RegisterTensors message = ZERO__V1__REGISTER_TENSORS__INIT;
    Zero__V1__Tensor tensor[4], *pointers[4];
    char names[4][16], name[16];

    snprintf(name, sizeof name, "l%u", layer);
    message.layer = layer;
    message.layer_name = name;
    message.tensors = pointers;
    for (size_t t = 0; t < tensors; t++) {
        zero__v1__tensor__init(&tensor[t]);
        snprintf(names[t], sizeof names[t], "l%u.%zu", layer, t);
        tensor[t].name = names[t];
        tensor[t].lr_scale = 1;
        pointers[message.n_tensors++] = &tensor[t];
    }
    fake_say(fake, ZERO_FRAME_REGISTER_TENSORS, &message);
}

static void end_model(struct fake *fake)
{
    Zero__V1__ModelEnd end = ZERO__V1__MODEL_END__INIT;
    fake_say(fake, ZERO_FRAME_MODEL_END, &end);
}

static void say_layer_max(struct fake *fake)
{
    say_layer(fake, UINT32_MAX, 1);
    end_model(fake);
}
static void say_layer_1_first(struct fake *fake)
{
    say_layer(fake, 1, 1);
    end_model(fake);
}
static void say_layer_0_later(struct fake *fake)
{
    say_layer(fake, 0, 1);
    say_layer(fake, 1, 1);
    say_layer(fake, 0, 2);
    end_model(fake);
}
static void say_no_tensors(struct fake *fake)
{
    say_layer(fake, 0, 0);
    end_model(fake);
}
static void say_same_twice(struct fake *fake)
{
    say_layer(fake, 0, 1);
    say_layer(fake, 0, 1);
    end_model(fake);
}
static void say_version(struct fake *fake)
{
    Zero__V1__VersionOpened opened = ZERO__V1__VERSION_OPENED__INIT;
    fake_say(fake, ZERO_FRAME_VERSION_OPENED, &opened);
}

static void model_of(struct fake *fake, void (*model)(struct fake *fake))
{
    fake->model = model;
}
static void layer_max(struct fake *fake)
{
    model_of(fake, say_layer_max);
}
static void layer_1_first(struct fake *fake)
{
    model_of(fake, say_layer_1_first);
}
static void layer_0_later(struct fake *fake)
{
    model_of(fake, say_layer_0_later);
}
static void no_tensors(struct fake *fake)
{
    model_of(fake, say_no_tensors);
}
static void same_twice(struct fake *fake)
{
    model_of(fake, say_same_twice);
}
static void empty_model(struct fake *fake)
{
    model_of(fake, end_model);
}
static void another_frame(struct fake *fake)
{
    model_of(fake, say_version);
}

static void dishonest_daemons(void)
{
    welcome_refused(busy, ZERO_BUSY, "pid 1");
    welcome_refused(refuse_nothing, ZERO_PROTOCOL, "code 99");
    welcome_refused(be_mute, ZERO_DAEMON_SILENT, "stopped");
    welcome_refused(other_version, ZERO_VERSION, "protocol 2");
    welcome_refused(no_world, ZERO_PROTOCOL, "rank 0 of 0");
    welcome_refused(huge_world, ZERO_PROTOCOL, "129");
    welcome_refused(rank_outside, ZERO_PROTOCOL, "rank 1 of 1");

    register_refused(stage_4, ZERO_PROTOCOL, "stage");
    register_refused(dtype_3, ZERO_PROTOCOL, "dtype");
    register_refused(dtype_max, ZERO_PROTOCOL, "dtype");
    register_refused(too_few_fds, ZERO_PROTOCOL, "4 fds, not 5");
    register_refused(no_fds, ZERO_PROTOCOL, "0 fds, not 5");
    register_refused(too_many_fds, ZERO_PROTOCOL, "6 fds, not 5");
    register_refused(small_ring, ZERO_PROTOCOL, "ring");
    register_refused(small_staging, ZERO_PROTOCOL, "staging");
    register_refused(small_params, ZERO_PROTOCOL, "parameter arena");
    register_refused(small_window, ZERO_PROTOCOL, "gradient window");
    register_refused(huge_window, ZERO_PROTOCOL, "gradient window");
    register_refused(bell_is_no_memory, ZERO_PROTOCOL, "bell");
    register_refused(params_may_shrink, ZERO_PROTOCOL, "sealed");

    register_refused(layer_max, ZERO_PROTOCOL, "layer 4294967295");
    register_refused(layer_1_first, ZERO_PROTOCOL, "layer 1");
    register_refused(layer_0_later, ZERO_PROTOCOL, "layer 0");
    register_refused(no_tensors, ZERO_PROTOCOL, "without tensors");
    register_refused(same_twice, ZERO_INVALID_ARGUMENT, "l0.0");
    register_refused(empty_model, ZERO_INVALID_ARGUMENT, "layers");
    register_refused(another_frame, ZERO_PROTOCOL, "frame type 8");
}

static void models_are_checked_before_they_are_sent(void)
{
    struct fake fake;
    zero_client *client = NULL;
    static char large[60 * 1024 + 1];
    const struct zero_tensor_spec tensor = { "w", NULL, 0, 1, NAN };
    const struct zero_layer_spec layer = { "l", &tensor, 1 };
    struct zero_model_spec model = { &layer, 1, large, sizeof large };

    fake_init(&fake);
    fake_start(&fake);
    CHECK(!zero_failed(fake_attach(&fake, ZERO_TRAINER, &client, NULL)));
    CHECK(zero_register(client, &model).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(zero_error_text(client), "61441 bytes, at most 61440");
    model.config = NULL;
    CHECK(zero_register(client, &model).code == ZERO_INVALID_ARGUMENT);
    model.layer_count = 0;
    CHECK(zero_register(client, &model).code == ZERO_INVALID_ARGUMENT);
    CHECK(!zero_failed(fake_register(client))); /* none of it has been sent */
    CHECK(fake_register(client).code == ZERO_INVALID_STATE);
    zero_detach(client);
    fake_join(&fake);
    fake_close(&fake);
}

/* ---- what a session has ---- */

/* The line of /proc/self/smaps that begins with key, of the mapping that has the address. */
static void find_mapping(const void *address, const char *key, char *out, size_t room)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[512];
    unsigned long from, to;
    bool inside = false;

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            inside = from <= (unsigned long)address && (unsigned long)address < to;
            if (inside && key[0] == '\0')
                snprintf(out, room, "%s", line);
        } else if (inside && key[0] != '\0' && strncmp(line, key, strlen(key)) == 0) {
            snprintf(out, room, "%s", line);
        }
    }
    if (file != NULL)
        fclose(file);
}

static void check_descriptions(const zero_client *client)
{
    struct zero_layer_info layer;
    struct zero_tensor_info tensor;

    CHECK(!zero_failed(zero_layer_describe(client, 0, &layer)));
    CHECK(layer.tensor_count == 1 && layer.elements == BIG_FLAT && strcmp(layer.name, "l0") == 0);
    CHECK(!zero_failed(zero_tensor_describe(client, 0, 0, &tensor)));
    CHECK(strcmp(tensor.name, "l0") == 0 && tensor.dims == 1 && tensor.shape[0] == BIG);
    CHECK(tensor.offset == 0 && tensor.count == BIG);
    CHECK(zero_layer_describe(client, LAYERS, &layer).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_tensor_describe(client, 0, 1, &tensor).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_layer_describe(client, 0, NULL).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_tensor_describe(client, 0, 0, NULL).code == ZERO_INVALID_ARGUMENT);
}

/* A wait that nothing ends but the caller's wish: who greets nobody, and who registers nobody. */
static void waits_of_a_session_can_be_interrupted(void)
{
    struct fake fake;
    zero_client *client = NULL;
    struct zero_detail detail = { "" };

    for (int at = 0; at < 2; at++) {
        atomic_int looks = 0;
        fake_init(&fake);
        fake.interrupted = fake_second_look;
        fake.context = &looks;
        fake.mute = at == 0;
        fake.mute_later = at == 1;
        fake_start(&fake);
        zero_status s = fake_attach(&fake, ZERO_TRAINER, &client, &detail);
        CHECK(s.code == (at == 0 ? ZERO_INTERRUPTED : ZERO_OK));
        if (!zero_failed(s))
            CHECK(fake_register(client).code == ZERO_INTERRUPTED);
        CHECK(looks == 2);
        zero_detach(client);
        client = NULL;
        fake_join(&fake);
        fake_close(&fake);
    }
}

static void parameters_are_read_only_and_not_for_children(void)
{
    struct fake fake;
    zero_client *client = NULL;
    const void *weights = NULL;
    uint64_t offset = 9, count = 9;
    char text[512];

    fake_init(&fake);
    fake.registered.deadline_ms = UINT32_MAX;
    fake.params[BIG_FLAT + 4 * UNIT] = 42;
    fake_start(&fake);
    CHECK(!zero_failed(fake_attach(&fake, ZERO_TRAINER, &client, NULL)));
    CHECK(!zero_failed(fake_register(client)));
    CHECK(zero_client_info(client)->layer_count == LAYERS && zero_client_info(client)->step == 3);
    CHECK(!zero_failed(zero_tensor_place(client, 5, 0, &offset, &count)));
    CHECK(offset == 0 && count == 1);
    check_descriptions(client);
    CHECK(zero_tensor_place(client, 5, 1, &offset, &count).code == ZERO_INVALID_ARGUMENT);
    CHECK(!zero_failed(zero_gather(client, 5, &weights)));
    CHECK(((const float *)weights)[0] >= 42 && ((const float *)weights)[0] <= 42);
    find_mapping(weights, "", text, sizeof text);
    CHECK_CONTAINS(text, "r--s");
    find_mapping(weights, "VmFlags:", text, sizeof text);
    CHECK_CONTAINS(text, " dc "); /* not copied by fork */
    zero_detach(client);
    fake_join(&fake);
    fake_close(&fake);
}

/* Stage 3, two ranks: layer l is rank 0's shard l, then rank 1's. */
static void shards_stand_side_by_side(void)
{
    enum {
        SHARD_0 = 150528,
        SHARDS = SHARD_0 + (LAYERS - 1) * UNIT,
        SHARDS_BYTES = SHARDS * 4
    }; /* 147 * 1024 >= BIG / 2 */
    struct fake fake;
    zero_client *client = NULL;
    const void *weights = NULL;
    float *arena[2];

    fake_init(&fake);
    fake.welcome.world = 2;
    fake.welcome.rank = 1;
    fake.registered.stage = 3;
    for (int r = 0; r < 2; r++) {
        if (r == 0)
            replace(&fake, 4, fake_memory(SHARDS_BYTES));
        else
            fake.fds[fake.fd_count++] = fake_memory(SHARDS_BYTES);
        arena[r] = fake_map(fake.fds[4 + r], SHARDS_BYTES);
        for (int i = 0; i < SHARDS; i++)
            arena[r][i] = (float)(r * 1000000 + i);
    }
    fake_start(&fake);
    CHECK(!zero_failed(fake_attach(&fake, ZERO_TRAINER, &client, NULL)));
    CHECK(!zero_failed(fake_register(client)));
    for (uint32_t l = 0; l < LAYERS; l++) {
        size_t shard = l == 0 ? SHARD_0 : UNIT, at = l == 0 ? 0 : SHARD_0 + (l - 1) * UNIT;
        CHECK(!zero_failed(zero_gather(client, l, &weights)));
        for (size_t r = 0; r < 2; r++)
            CHECK(memcmp((const float *)weights + r * shard, arena[r] + at, shard * 4) == 0);
    }
    arena[1][SHARD_0] = 5; /* the same memory, no copy */
    CHECK(!zero_failed(zero_gather(client, 1, &weights)));
    CHECK(((const float *)weights)[UNIT] >= 5 && ((const float *)weights)[UNIT] <= 5);
    zero_detach(client);
    fake_join(&fake);
    for (int r = 0; r < 2; r++)
        munmap(arena[r], SHARDS_BYTES);
    fake_close(&fake);
}

/* A version as a daemon hands it over, but for the seals; its contents are fp16. */
static int version_memory(int seals)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const uint16_t halves[] = { 0x3c00, 0xc000, 0x0001 }; /* 1, -2, 2^-24 */

    CHECK(fd >= 0 && ftruncate(fd, FLAT_BYTES) == 0);
    CHECK(pwrite(fd, halves, sizeof halves, 2000) == sizeof halves);
    CHECK(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

enum { WHOLE = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Answers every open with a version of step 9, in turn: without memory, unsealed, whole. */
static void serve_versions(struct fake *fake)
{
    Zero__V1__VersionOpened opened = ZERO__V1__VERSION_OPENED__INIT;
    Zero__V1__VersionSteps list = ZERO__V1__VERSION_STEPS__INIT;
    uint64_t steps[] = { 4, 9 };
    enum zero_frame_type type;
    int n = fake->served++;

    opened.step = 9;
    list.steps = steps;
    list.n_steps = 2;
    while (fake_hear(fake, &type)) {
        int fd = type == ZERO_FRAME_VERSION_OPEN && n > 0
                     ? version_memory(n > 1 ? WHOLE | F_SEAL_WRITE : WHOLE)
                     : -1;
        const struct zero_frame_fds fds = { &fd, fd >= 0 };
        if (type == ZERO_FRAME_VERSION_LIST)
            (void)zero_frame_send(fake->socket, ZERO_FRAME_VERSION_STEPS, &list, NULL, 10000);
        else
            (void)zero_frame_send(fake->socket, ZERO_FRAME_VERSION_OPENED, &opened, &fds, 10000);
        if (fd >= 0)
            close(fd);
    }
}

static void check_version(zero_client *client)
{
    const struct zero_span span = { 0, 0, 1000, 3 };
    const float wanted[] = { 1, -2, 0x1p-24f };
    const void *weights = NULL;
    uint64_t step = 0, steps[1] = { 0 };
    size_t count = 0;
    float got[3] = { 0 };

    CHECK(!zero_failed(zero_version_open(client, ZERO_LATEST, &step)) && step == 9);
    CHECK(zero_client_info(client)->step == 9);
    CHECK(zero_version_open(client, ZERO_LATEST, NULL).code == ZERO_INVALID_STATE);
    CHECK(!zero_failed(zero_read(client, ZERO_PARAM, &span, got)));
    CHECK(same(got, wanted, sizeof got));
    CHECK(!zero_failed(zero_versions(client, steps, 1, &count)) && count == 2 && steps[0] == 4);
    CHECK(!zero_failed(zero_gather(client, 1, &weights)));
    CHECK(mprotect((void *)((uintptr_t)weights & ~UINT64_C(4095)), 4096, PROT_READ | PROT_WRITE) !=
          0);
    CHECK(!zero_failed(zero_release(client, 1)));
    CHECK(!zero_failed(zero_version_close(client)));
    CHECK(zero_gather(client, 1, &weights).code == ZERO_INVALID_STATE);
    CHECK(zero_version_close(client).code == ZERO_INVALID_STATE);
}

static void observers_read_versions_only(void)
{
    struct fake fake;
    zero_client *client = NULL;
    float got[3] = { 0 };
    const struct zero_span span = { 0, 0, 1000, 3 };
    void *window = NULL;

    fake_init(&fake);
    fake.registered.param_dtype = ZERO_FP16;
    fake.registered.layers = LAYERS;
    fake.fd_count = 0; /* an observer gets no memory when it registers */
    fake.serve = serve_versions;
    fake.clients = 3;
    fake_start(&fake);
    CHECK(!zero_failed(fake_attach(&fake, ZERO_OBSERVER, &client, NULL)));
    CHECK(zero_version_open(client, ZERO_LATEST, NULL).code == ZERO_INVALID_STATE);
    CHECK(!zero_failed(fake_register(client)));
    CHECK(zero_read(client, ZERO_PARAM, &span, got).code == ZERO_INVALID_STATE);
    CHECK(zero_read(client, ZERO_MASTER, &span, got).code == ZERO_UNSUPPORTED);
    CHECK(zero_window(client, 0, &window).code == ZERO_PERMISSION);
    CHECK(zero_fill(client, &span, got).code == ZERO_PERMISSION);
    CHECK(zero_fill_end(client).code == ZERO_INVALID_STATE);
    for (int n = 0; n < 2; n++) /* what is no version ends the session: the next call renews it */
        CHECK(zero_version_open(client, ZERO_LATEST, NULL).code == ZERO_PROTOCOL);
    check_version(client);
    zero_detach(client);
    fake_join(&fake);
    fake_close(&fake);
}

/* ---- giving back ---- */

struct usage {
    int fds, mappings;
};

static struct usage measure(void)
{
    struct usage usage = { 0, 0 };
    FILE *file = fopen("/proc/self/maps", "re");
    char line[512];

    while (fgets(line, sizeof line, file) != NULL)
        usage.mappings += strstr(line, "memfd:fake") != NULL;
    fclose(file);
    for (int fd = 0; fd < 1024; fd++)
        usage.fds += fcntl(fd, F_GETFD) >= 0;
    return usage;
}

static void a_thousand_sessions_leave_nothing(void)
{
    struct fake fake;
    zero_client *client = NULL;
    const void *weights = NULL;

    fake_init(&fake);
    fake.clients = 1000;
    fake_start(&fake);
    struct usage before = measure();
    for (int n = 0; n < 1000; n++) {
        CHECK(!zero_failed(fake_attach(&fake, ZERO_TRAINER, &client, NULL)));
        if (n % 10 != 0) {
            CHECK(!zero_failed(fake_register(client)));
            CHECK(n % 5 == 0 || !zero_failed(zero_gather(client, 3, &weights)));
        }
        zero_detach(client);
    }
    fake_join(&fake);
    struct usage after = measure();
    CHECK(before.fds == after.fds && before.mappings == after.mappings);
    zero_detach(NULL);
    fake_close(&fake);
}

int main(void)
{
    sockets_that_are_none();
    paths_that_stay_wrong();
    daemons_that_do_not_accept();
    a_daemon_may_come_later();
    dishonest_daemons();
    models_are_checked_before_they_are_sent();
    parameters_are_read_only_and_not_for_children();
    shards_stand_side_by_side();
    observers_read_versions_only();
    waits_of_a_session_can_be_interrupted();
    a_thousand_sessions_leave_nothing();
    return check_done();
}
