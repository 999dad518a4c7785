/* SPDX-License-Identifier: MIT */
/* store: how fast a rank's part of a checkpoint gets to the disk, and is read and checked again.
 *
 * Three fp32 states of one rank, of incompressible numbers, through the functions that the daemon
 * calls, fsync and all. Prints one JSON object: seconds and bytes of each.
 */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/store/save.h"
#include "daemon/store/store.h"

static struct settings {
    uint64_t bytes; /* of all states together */
    const char *dir;
} settings = { UINT64_C(1) << 30, "." };

static struct zero_detail detail;

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void must(zero_status s, const char *what)
{
    if (!zero_failed(s))
        return;
    fprintf(stderr, "%s: %s: %s\n", what, zero_code_name(s.code), detail.text);
    exit(10);
}

static void fill(uint64_t *words, size_t count)
{
    uint64_t state = 88172645463325252u;

    for (size_t i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        words[i] = state & UINT64_C(0xbfffffffbfffffff); /* two finite floats */
    }
}

static struct zero_layout *make_layout(void)
{
    static uint64_t shape[2] = { 0, 1024 };
    static const struct zero_tensor_spec tensor = { "w", shape, 2, 1, NAN };
    static const struct zero_layer_spec layer = { "layer", &tensor, 1 };
    const struct zero_layout_spec spec = { &layer, 1, 1, ZERO_FP32 };
    struct zero_layout *layout = NULL;

    shape[0] = settings.bytes / 3 / sizeof(float) / 1024 + 1;
    must(zero_layout_create(&spec, &layout, &detail), "layout");
    return layout;
}

static void write_part(const struct store_save *save, const struct zero_layout *layout,
                       struct store_written *written)
{
    uint64_t bytes = store_region_bytes(layout, STORE_MASTER);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        fprintf(stderr, "no memory for %" PRIu64 " bytes\n", bytes);
        exit(10);
    }
    fill(memory, bytes / sizeof(uint64_t));
    const struct store_piece piece = { memory, bytes };
    const struct store_region regions[] = { { STORE_MASTER, &piece, 1, NULL, NULL },
                                            { STORE_MOMENT1, &piece, 1, NULL, NULL },
                                            { STORE_MOMENT2, &piece, 1, NULL, NULL } };
    const struct store_part part = { 0, layout, regions, 3, "", 0 };
    double start = now_s();
    must(store_write_part(save, &part, NULL, written, &detail), "write");
    printf("{\"write_s\":%.4f,\"bytes\":%" PRIu64 ",\"engine\":\"%s\",\"direct\":%s,",
           now_s() - start, written->bytes, store_engine_names[written->engine],
           written->direct ? "true" : "false");
    munmap(memory, bytes);
}

static void check(const char *path)
{
    struct store *store = NULL;
    struct store_findings findings;

    must(store_open(path, &store, &detail), "open");
    double start = now_s();
    must(store_verify(store, NULL, &findings, &detail), "verify");
    printf("\"verify_s\":%.4f,\"problems\":%" PRIu64 "}\n", now_s() - start, findings.problems);
    store_close(store);
    if (findings.problems > 0)
        exit(10);
}

static error_t parse_option(int key, char *argument, struct argp_state *state)
{
    (void)state;
    if (key == 'b')
        settings.bytes = strtoull(argument, NULL, 10);
    else if (key == 'd')
        settings.dir = argument;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        { "bytes", 'b', "N", 0, "to be written", 0 },
        { "dir", 'd', "DIR", 0, "where step-0 is made, and stays", 0 },
        { 0 },
    };
    static const struct argp parser = { .options = options, .parser = parse_option };
    struct store_written written = { .bytes = 0 };
    struct store_save save;
    char path[PATH_MAX];

    argp_parse(&parser, argc, argv, 0, NULL, NULL);
    struct zero_layout *layout = make_layout();
    const struct store_info info = { .layout = layout, .config = "" };
    must(store_begin(settings.dir, 0, &save, &detail), "begin");
    write_part(&save, layout, &written);
    double start = now_s();
    must(store_commit(&save, &info, path, &detail), "commit");
    printf("\"commit_s\":%.4f,", now_s() - start);
    check(path);
    zero_layout_destroy(layout);
    return 0;
}
