/* SPDX-License-Identifier: MIT */
#include "client/ctl/meter.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/text.h"

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *show(void *argument)
{
    const struct timespec tenth = { 0, 100000000 };
    struct meter *meter = argument;
    double start = now_s();

    while (!atomic_load(&meter->stop)) {
        uint64_t bytes, total;
        zero_progress_look(&meter->progress, &bytes, &total);
        double seconds = now_s() - start;
        if (total > 0)
            fprintf(stderr, "\r%s: %s of %s, %.2f GB/s\033[K", meter->what, text_bytes(bytes).text,
                    text_bytes(total).text, (double)bytes * 1e-9 / (seconds + 1e-9));
        nanosleep(&tenth, NULL);
    }
    fputs("\r\033[K", stderr);
    return NULL;
}

void meter_begin(struct meter *meter, const char *what)
{
    *meter = (struct meter){ .what = what };
    meter->running =
        isatty(STDERR_FILENO) && pthread_create(&meter->thread, NULL, show, meter) == 0;
}

void meter_end(struct meter *meter)
{
    atomic_store(&meter->stop, true);
    if (meter->running)
        pthread_join(meter->thread, NULL);
    meter->running = false;
}
