/* SPDX-License-Identifier: MIT */
/* fake_daemon.h: the other side of libzeroclient, played by a thread of the test.
 *
 * A test sets what the daemon shall say, starts it, attaches, and stops it. The model is the same
 * everywhere: layer 0 has one tensor of BIG elements, layers 1 to LAYERS - 1 one of 1 element,
 * fp32; every layer's shard is whole blocks of 1024 elements (4 KiB).
 */
#ifndef TESTS_UNIT_FAKE_DAEMON_H
#define TESTS_UNIT_FAKE_DAEMON_H

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/zeroclient.h"
#include "proto/frame.h"
#include "proto/ring.h"
#include "proto/zero/v1/session.pb-c.h"
#include "tests/unit/check.h"

enum {
    LAYERS = 64,
    BIG = 300000,
    BIG_FLAT = 300032, /* 293 * 1024 */
    UNIT = 1024,
    FLAT = BIG_FLAT + (LAYERS - 1) * UNIT, /* elements of the whole model, one rank */
    FLAT_BYTES = FLAT * 4,
    STAGING = 1 << 20,
    FAKE_FDS = 8
};

struct fake {
    bool (*interrupted)(void *context); /* of the client's waits */
    void *context;                      /* an atomic_int of looks */
    /* what it says; fake_init gives an honest daemon of rank 0 of 1 at stage 0 */
    Zero__V1__Welcome welcome;
    Zero__V1__Registered registered;
    zero_code refuse;  /* instead of WELCOME */
    bool mute;         /* accepts and says nothing until the client goes */
    bool mute_later;   /* the same, after it has greeted */
    int fds[FAKE_FDS]; /* sent with REGISTERED */
    size_t fd_count;
    void (*model)(struct fake *fake); /* what it sends before REGISTERED */
    void (*serve)(struct fake *fake); /* what it does after REGISTERED, until it returns */
    bool (*save)(struct fake *fake, enum zero_frame_type type); /* SAVE_BEGIN, SAVE_LOOK; false:
                                                                   the talk is over */
    int clients; /* how many it serves, one after another */
    int served;  /* for serve to count with */

    char folder[64], path[96];
    int listener, socket;
    struct zero_ring *ring;
    struct zero_bell *bell;
    unsigned char *window, *staging;
    float *params;
    uint32_t head;
    pthread_t thread;
    atomic_bool stop;
};

/* Compares bytes: what a daemon hands over is the very same memory. */
static inline bool same(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static inline void *fake_map(int fd, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED);
    return base;
}

static inline int fake_memory(size_t bytes)
{
    int fd = memfd_create("fake", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    return fd;
}

static inline size_t fake_ring_bytes(void)
{
    return (sizeof(struct zero_ring) + 4095) / 4096 * 4096;
}

static inline void fake_fresh_ring(struct fake *fake)
{
    memset(fake->ring, 0, sizeof *fake->ring);
    memset(fake->bell, 0, sizeof *fake->bell);
    for (uint32_t i = 0; i < ZERO_RING_ENTRIES; i++)
        atomic_store(&fake->ring->entries[i].turn, i);
    atomic_store(&fake->ring->alive, 1);
    atomic_store(&fake->ring->resident, 1);
    atomic_store(&fake->ring->attempt, fake->registered.attempt);
    fake->head = 0;
}

static inline void fake_init(struct fake *fake)
{
    memset(fake, 0, sizeof *fake);
    fake->listener = fake->socket = -1;
    zero__v1__welcome__init(&fake->welcome);
    fake->welcome.protocol = 1;
    fake->welcome.world = 1;
    zero__v1__registered__init(&fake->registered);
    fake->registered.filled = 1;
    fake->registered.lr = 0.5;
    fake->registered.loss_scale = 1;
    fake->registered.deadline_ms = 60000;
    fake->registered.window_bytes = FLAT_BYTES;
    fake->registered.attempt = 7;
    fake->registered.step = 3;
    fake->clients = 1;
    const size_t sizes[] = { fake_ring_bytes(), 4096, FLAT_BYTES, STAGING, FLAT_BYTES };
    for (; fake->fd_count < 5; fake->fd_count++)
        fake->fds[fake->fd_count] = fake_memory(sizes[fake->fd_count]);
    fake->ring = fake_map(fake->fds[0], sizes[0]);
    fake->bell = fake_map(fake->fds[1], sizes[1]);
    fake->window = fake_map(fake->fds[2], sizes[2]);
    fake->staging = fake_map(fake->fds[3], sizes[3]);
    fake->params = fake_map(fake->fds[4], sizes[4]);
    fake_fresh_ring(fake);
    snprintf(fake->folder, sizeof fake->folder, "/tmp/zero-fake-XXXXXX");
    CHECK(mkdtemp(fake->folder) != NULL);
    snprintf(fake->path, sizeof fake->path, "%s/rank-0.sock", fake->folder);
}

static inline void fake_listen(struct fake *fake, int backlog)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    memcpy(address.sun_path, fake->path, strlen(fake->path) + 1);
    fake->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    CHECK(bind(fake->listener, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(listen(fake->listener, backlog) == 0);
}

static inline void fake_say(struct fake *fake, enum zero_frame_type type, const void *message)
{
    const struct zero_frame_fds fds = { fake->fds, fake->fd_count };
    bool with_fds = type == ZERO_FRAME_REGISTERED;

    (void)zero_frame_send(fake->socket, type, message, with_fds ? &fds : NULL, 10000);
}

/* The next frame of the client; false when it went. */
static inline bool fake_hear(struct fake *fake, enum zero_frame_type *out)
{
    struct zero_frame frame;
    struct zero_detail detail;

    if (zero_failed(zero_frame_receive(fake->socket, 0, 60000, &frame, &detail)))
        return false;
    *out = frame.type;
    zero_frame_release(&frame);
    return true;
}

static inline void fake_greet(struct fake *fake)
{
    Zero__V1__Error error = ZERO__V1__ERROR__INIT;
    char text[] = "rank 0 has a trainer already: pid 1";

    if (fake->refuse == ZERO_OK) {
        fake_say(fake, ZERO_FRAME_WELCOME, &fake->welcome);
        return;
    }
    error.code = (uint32_t)fake->refuse;
    error.text = text;
    fake_say(fake, ZERO_FRAME_ERROR, &error);
}

/* False when it has served: the talk is over. */
static inline bool fake_answer_register(struct fake *fake)
{
    if (fake->model != NULL)
        fake->model(fake);
    fake_say(fake, ZERO_FRAME_REGISTERED, &fake->registered);
    if (fake->serve != NULL)
        fake->serve(fake);
    return fake->serve == NULL;
}

static inline void fake_talk(struct fake *fake)
{
    enum zero_frame_type type;

    while (fake_hear(fake, &type)) {
        if (fake->mute)
            continue;
        if (type == ZERO_FRAME_HELLO)
            fake_greet(fake);
        else if (fake->mute_later)
            continue;
        else if (type == ZERO_FRAME_REGISTER_END && !fake_answer_register(fake))
            return;
        else if (fake->save != NULL && type != ZERO_FRAME_REGISTER_END && !fake->save(fake, type))
            return;
    }
}

static inline void *fake_run(void *context)
{
    struct fake *fake = context;

    for (int n = 0; n < fake->clients; n++) {
        fake->socket = accept4(fake->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fake->socket < 0)
            return NULL;
        fake_talk(fake);
        close(fake->socket);
    }
    return NULL;
}

static inline void fake_start(struct fake *fake)
{
    fake_listen(fake, 16);
    CHECK(pthread_create(&fake->thread, NULL, fake_run, fake) == 0);
}

/* Waits until it has served its clients. */
static inline void fake_join(struct fake *fake)
{
    atomic_store(&fake->stop, true);
    pthread_join(fake->thread, NULL);
}

static inline void fake_close(struct fake *fake)
{
    if (fake->listener >= 0)
        close(fake->listener);
    munmap(fake->ring, fake_ring_bytes());
    munmap(fake->bell, 4096);
    munmap(fake->window, FLAT_BYTES);
    munmap(fake->staging, STAGING);
    munmap(fake->params, FLAT_BYTES);
    for (size_t i = 0; i < FAKE_FDS; i++)
        if (fake->fds[i] > 0)
            close(fake->fds[i]);
    unlink(fake->path);
    rmdir(fake->folder);
}

/* Says at the second look that the caller wants no more. */
static inline bool fake_second_look(void *context)
{
    return atomic_fetch_add((atomic_int *)context, 1) == 1;
}

static inline zero_status fake_attach(const struct fake *fake, enum zero_role role,
                                      zero_client **out, struct zero_detail *out_detail)
{
    const struct zero_attach_options options = {
        .socket = fake->path,
        .role = role,
        .deadline_ms = 20000,
        .interrupted = fake->interrupted,
        .context = fake->context,
    };

    return zero_attach(&options, out, out_detail);
}

/* Registers the model above, whatever the daemon makes of it. */
static inline zero_status fake_register(zero_client *client)
{
    static const uint64_t big[] = { BIG }, one[] = { 1 };
    static char names[LAYERS][8];
    struct zero_tensor_spec tensors[LAYERS];
    struct zero_layer_spec layers[LAYERS];

    for (size_t l = 0; l < LAYERS; l++) {
        snprintf(names[l], sizeof names[l], "l%zu", l);
        tensors[l] = (struct zero_tensor_spec){ names[l], l == 0 ? big : one, 1, 1, NAN };
        layers[l] = (struct zero_layer_spec){ names[l], &tensors[l], 1 };
    }
    const struct zero_model_spec model = { layers, LAYERS, "{}", 2 };
    return zero_register(client, &model);
}

#endif
