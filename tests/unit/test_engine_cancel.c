/* SPDX-License-Identifier: MIT */
/* A registration that is cancelled ends; one that has ended cannot be: a cancel that comes too late
 * must leave the group's next meeting alone. Ending the engine ends every meeting. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/comm/comm.h"
#include "daemon/device/device.h"
#include "daemon/step/step.h"
#include "tests/unit/check.h"

enum { MOST_MS = 20000 };

static struct comm_ops watched;
static atomic_bool cancelled;
static int bells[2];

static void watch_cancel(bool now)
{
    atomic_store(&cancelled, now);
    comm_shm.cancel(now);
}

static void notify(void *context)
{
    (void)context;
    CHECK(write(bells[1], "!", 1) == 1);
}

static struct engine *start(const char *dir, uint32_t world, struct device *device)
{
    struct engine *engine = NULL;
    struct engine_options options = {
        .world = world, .dir = dir, .device = device, .comm = &watched, .notify = notify
    };

    CHECK(!zero_failed(watched.listen(dir, 0, &options.peer_listener)));
    CHECK(!zero_failed(engine_create(&options, &engine)));
    return engine;
}

static void begin(struct engine *engine, uint32_t world, uint64_t token)
{
    static const char config[] = "{\"train_batch_size\": 2, \"optimizer\": {\"type\": \"Adam\"}}";
    const uint64_t shape[] = { 7 };
    const struct zero_tensor_spec tensor = { .name = "weight", .shape = shape, .dims = 1 };
    const struct zero_layer_spec layer = { .name = "layer", .tensors = &tensor, .tensor_count = 1 };
    const struct zero_layout_spec spec = { &layer, 1, world, ZERO_FP32 };
    struct engine_model model = { .description = -1 };
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(zero_layout_create(&spec, &model.layout, &detail)));
    CHECK(!zero_failed(zero_config_parse(config, strlen(config), world, &model.config, &detail)));
    engine_register(engine, &model, token);
}

static zero_status joined(struct engine *engine, uint64_t token)
{
    struct engine_event event;

    for (struct pollfd wait = { .fd = bells[0], .events = POLLIN }; poll(&wait, 1, MOST_MS) > 0;) {
        char byte;
        CHECK(read(bells[0], &byte, 1) == 1);
        while (engine_next_event(engine, &event))
            if (event.kind == ENGINE_JOINED && event.token == token)
                return event.status;
    }
    fputs("the registration never ended\n", stderr);
    check_failures++;
    return (zero_status){ ZERO_DEADLINE, "wait" };
}

static void check_late(const char *dir, struct device *device)
{
    struct engine *engine = start(dir, 1, device);

    begin(engine, 1, 1);
    CHECK(!zero_failed(joined(engine, 1)));
    engine_cancel_register(engine);
    CHECK(!atomic_load(&cancelled));
    engine_destroy(engine);
    CHECK(atomic_load(&cancelled));
    watch_cancel(false);
}

static void check_waiting(const char *dir, struct device *device)
{
    struct engine *engine = start(dir, 2, device);

    for (uint64_t token = 1; token <= 3; token++) { /* the one after is not cancelled by it */
        begin(engine, 2, token);
        usleep(10000);
        CHECK(!atomic_load(&cancelled));
        engine_cancel_register(engine);
        CHECK(joined(engine, token).code == ZERO_INVALID_STATE);
    }
    begin(engine, 2, 4);
    engine_destroy(engine); /* returns, though the other rank never comes */
}

int main(void)
{
    char dir[] = "/tmp/zero-cancel-XXXXXX", path[64];
    struct device *device = NULL;

    log_init(0, LOG_ERROR_LEVEL);
    watched = comm_shm;
    watched.cancel = watch_cancel;
    CHECK(pipe(bells) == 0 && mkdtemp(dir) != NULL);
    CHECK(!zero_failed(device_cpu.open(NULL, &device)));
    check_late(dir, device);
    check_waiting(dir, device);
    device->ops->close(device);
    snprintf(path, sizeof path, "%s/rank-0.peer", dir);
    unlink(path);
    CHECK(rmdir(dir) == 0);
    return check_done();
}
