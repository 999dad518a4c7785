/* SPDX-License-Identifier: MIT */
/* bench_kernels: what the kernels take an element, beside the time that moving the same bytes
 * takes in the same run. Usage: bench_kernels [--params N] [--json FILE] */
#include "kernels/kernel_set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

/* In L2: 18 bytes a parameter stay there. Sums go block by block, as in a step. */
enum { CACHED = 32 << 10, ARRAYS = 5, REPEATS = 5, SUM_BLOCK = 8192, UNDO_CHUNK = 512 };

struct bench {
    float *array[ARRAYS]; /* p, m, v, g, and the 16-bit copy */
    double *squares;      /* of each chunk */
    size_t count;
    FILE *json;
    bool first;
};

/* goal: the ratio to the floor that must not be passed; 0: none is set. */
struct figure {
    const char *name, *set, *config;
    double value, floor, goal;
};

enum load { NORMAL, DENORMAL_M, DENORMAL_M_V, DENORMAL_ALL };
static const char *const load_names[] = { "normal", "denormal m", "denormal m, v",
                                          "denormal m, v, g" };

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void report(struct bench *b, const struct figure *f)
{
    const double ratio = f->value / f->floor;
    const bool met = f->goal <= 0 || ratio <= f->goal;

    printf("%-18s %-7s %-32s %8.3f %8.3f %6.2f", f->name, f->set, f->config, f->value, f->floor,
           ratio);
    if (f->goal > 0)
        printf("  %s %.2f", met ? "within" : "ABOVE", f->goal);
    putchar('\n');
    if (b->json == NULL)
        return;
    fprintf(b->json,
            "%s\n  {\"name\": \"%s\", \"config\": \"%s, %s\", \"value\": %.4f, \"unit\": "
            "\"ns/element\", \"floor\": %.4f, \"ratio\": %.3f, ",
            b->first ? "" : ",", f->name, f->set, f->config, f->value, f->floor, ratio);
    if (f->goal > 0)
        fprintf(b->json, "\"goal\": %.2f, \"met\": %s}", f->goal, met ? "true" : "false");
    else
        fprintf(b->json, "\"goal\": null, \"met\": null}");
    b->first = false;
}

static void fill(struct bench *b, size_t count, enum load load)
{
    for (size_t i = 0; i < count; i++) {
        const float x = (float)(i * 2654435761u % 1000 + 1);

        b->array[0][i] = x * 1e-3f;
        b->array[1][i] = load == NORMAL ? x * 1e-6f : x * 0x1p-149f;
        b->array[2][i] = load < DENORMAL_M_V ? x * 1e-9f : x * 0x1p-149f;
        b->array[3][i] = load == NORMAL ? x * 1e-5f : load == DENORMAL_ALL ? x * 0x1p-149f : 0.0f;
    }
}

/* The same streams without arithmetic: 16 bytes read and 14 written, each array once, with p, m and
 * v written where they were read, as they were. */
static volatile uint32_t no_bits;

static inline __attribute__((always_inline)) void move_streams(float *const *array, size_t count)
{
    uint16_t *half = (void *)array[4];
    const uint32_t none = no_bits;

    for (size_t at = 0; at < count; at += 64) {
        float *restrict p = array[0] + at, *restrict m = array[1] + at, *restrict v = array[2] + at;
        const float *restrict g = array[3] + at;

        _Pragma("omp simd") for (size_t i = 0; i < 64; i++)
        {
            uint32_t u[4];

            memcpy(&u[0], p + i, 4);
            memcpy(&u[1], m + i, 4);
            memcpy(&u[2], v + i, 4);
            memcpy(&u[3], g + i, 4);
            u[1] ^= u[3] & none;
            u[2] ^= u[3] & none;
            u[0] ^= u[3] & none;
            memcpy(p + i, &u[0], 4);
            memcpy(m + i, &u[1], 4);
            memcpy(v + i, &u[2], 4);
            half[at + i] = (uint16_t)(u[0] >> 16);
        }
    }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void move_avx2(float *const *array, size_t count)
{
    move_streams(array, count);
}
#endif

static void move_any(float *const *array, size_t count)
{
    move_streams(array, count);
}

/* Half the widest registers are enough to keep memory busy. */
static void (*mover(void))(float *const *, size_t)
{
#ifdef __x86_64__
    if (kernels_avx2.usable())
        return move_avx2;
#endif
    return move_any;
}

/* What an element takes at best, and what its bytes take: by turns, so that both see the same
 * machine. The floor is taken in memory only. */
struct pace {
    double ns, floor;
};

static double lesser(double a, double b)
{
    return a < b ? a : b;
}

static struct pace adam_pace(const struct bench *b, const struct kernel_set *set, size_t count)
{
    void (*const move)(float *const *, size_t) = mover();
    const size_t turns = count == CACHED ? 400 : 1;
    struct pace best = { 1e300, 1e300 };
    struct adam_op op = { .p = b->array[0],
                          .m = b->array[1],
                          .v = b->array[2],
                          .g = b->array[3],
                          .narrow = b->array[4],
                          .narrow_dtype = KERNEL_BF16,
                          .count = count,
                          .factor = 1,
                          .k = adam_constants(1e-3, 0.9, 0.999, 1e-8, 0.01, true, 1000) };

    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = now_ns();

        for (size_t i = 0; i < turns; i++)
            set->adam(&op);
        const double middle = now_ns();

        if (count != CACHED)
            move(b->array, count);
        best.floor = lesser(best.floor, (now_ns() - middle) / (double)count);
        best.ns = lesser(best.ns, (middle - start) / (double)(turns * count));
    }
    return best;
}

/* Copies half as many bytes, so that reads and writes together are `bytes` an element. */
static double copy_ns(const struct bench *b, const struct kernel_set *set, double bytes)
{
    const size_t size = b->count * sizeof(float);
    double best = 1e300;

    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = now_ns();

        if (set)
            set->copy(b->array[0], b->array[1], size);
        else
            memcpy(b->array[0], b->array[1], size);
        best = lesser(best, (now_ns() - start) / (double)(2 * size) * bytes);
    }
    return best;
}

/* Sums and squares of two sources. An aligned sum goes past the caches, another does not. */
enum sum_way { TWO_STEPS, ONE_PASS, ONE_PASS_CACHED };

struct sum_load {
    enum sum_way way;
    enum kernel_dtype dtype;
};

static double sum_ns(const struct bench *b, const struct kernel_set *set, struct sum_load load)
{
    const size_t off = load.way == ONE_PASS_CACHED ? 8 : 0;
    const size_t width = load.dtype == KERNEL_FP32 ? sizeof(float) : sizeof(uint16_t);
    double best = 1e300;

    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = now_ns();
        size_t at = 0;

        for (; at + SUM_BLOCK < b->count; at += SUM_BLOCK) {
            const void *from[] = { (const char *)b->array[1] + at * width,
                                   (const char *)b->array[2] + at * width };
            double *squares = b->squares + at / KERNEL_NORM_CHUNK;
            const struct reduce_op op = { .sum = b->array[0] + at + off,
                                          .squares = load.way == TWO_STEPS ? NULL : squares,
                                          .sources = from,
                                          .source_count = 2,
                                          .dtype = load.dtype,
                                          .count = SUM_BLOCK };
            set->reduce(&op);
            if (load.way == TWO_STEPS)
                set->square_sum(op.sum, SUM_BLOCK / KERNEL_NORM_CHUNK, squares);
        }
        best = lesser(best, (now_ns() - start) / (double)at);
    }
    return best;
}

static double norm_ns(const struct bench *b, const struct kernel_set *set)
{
    const size_t chunks = b->count / KERNEL_NORM_CHUNK;
    double best = 1e300;

    for (int repeat = 0; repeat < REPEATS; repeat++) {
        const double start = now_ns();

        set->square_sum(b->array[3], chunks, b->squares);
        const double took = (now_ns() - start) / (double)(chunks * KERNEL_NORM_CHUNK);

        best = took < best ? took : best;
    }
    return best;
}

static void adam_cached(struct bench *b, const struct kernel_set *set)
{
    char config[64];
    double normal = 0;

    for (int load = NORMAL; load <= DENORMAL_ALL; load++) {
        fill(b, CACHED, (enum load)load);
        const double ns = adam_pace(b, set, CACHED).ns;

        normal = load == NORMAL ? ns : normal;
        snprintf(config, sizeof config, "L2, %s / normal", load_names[load]);
        report(b, &(struct figure){ .name = "adam bf16",
                                    .set = set->name,
                                    .config = config,
                                    .value = ns,
                                    .floor = normal,
                                    .goal = load == DENORMAL_M || load == DENORMAL_M_V ? 2.5 : 0 });
    }
}

static void adam_in_memory(struct bench *b, const struct kernel_set *set)
{
    char config[64];

    for (int load = NORMAL; load <= DENORMAL_ALL; load++) {
        fill(b, b->count, (enum load)load);
        const struct pace pace = adam_pace(b, set, b->count);

        snprintf(config, sizeof config, "memory, %s / streams", load_names[load]);
        report(b, &(struct figure){ .name = "adam bf16",
                                    .set = set->name,
                                    .config = config,
                                    .value = pace.ns,
                                    .floor = pace.floor,
                                    .goal = load == NORMAL && set != &kernels_scalar ? 1.25 : 0 });
    }
}

/* The update in the chunks of the journal; with the old p, m and v of each copied to one slot that
 * stays in cache before it is changed, or without. */
static double chunks_ns(const struct bench *b, const struct kernel_set *set, float *slot)
{
    const double start = now_ns();

    for (size_t at = 0; at < b->count; at += UNDO_CHUNK) {
        const size_t count = b->count - at < UNDO_CHUNK ? b->count - at : UNDO_CHUNK;
        const struct adam_op op = { .p = b->array[0] + at,
                                    .m = b->array[1] + at,
                                    .v = b->array[2] + at,
                                    .g = b->array[3] + at,
                                    .narrow = (char *)b->array[4] + at * 2,
                                    .narrow_dtype = KERNEL_BF16,
                                    .count = count,
                                    .factor = 1,
                                    .k = adam_constants(1e-3, 0.9, 0.999, 1e-8, 0.01, true, 1000) };
        for (size_t i = 0; slot != NULL && i < 3; i++)
            memcpy(slot + i * UNDO_CHUNK, b->array[i] + at, count * sizeof *slot);
        set->adam(&op);
    }
    return (now_ns() - start) / (double)b->count;
}

static void undo_cost(struct bench *b, const struct kernel_set *set)
{
    static float slot[3 * UNDO_CHUNK];
    double with = 1e300, without = 1e300;

    fill(b, b->count, NORMAL);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        with = lesser(with, chunks_ns(b, set, slot));
        without = lesser(without, chunks_ns(b, set, NULL));
    }
    report(b, &(struct figure){ .name = "adam bf16",
                                .set = set->name,
                                .config = "memory, undo journal / without",
                                .value = with,
                                .floor = without,
                                .goal = set == &kernels_scalar ? 0 : 1.05 });
}

static void sums(struct bench *b, const struct kernel_set *set)
{
    static const char *const ways[] = { "two steps", "one pass", "one pass, cached" };
    static const char *const dtypes[] = { "fp32", "bf16" };

    fill(b, b->count, NORMAL);
    const double copy = copy_ns(b, set, 1), byte = lesser(copy, copy_ns(b, NULL, 1));
    char config[64];

    for (int dtype = KERNEL_FP32; dtype <= KERNEL_BF16; dtype++)
        for (int way = TWO_STEPS; way <= ONE_PASS_CACHED; way++) {
            const struct sum_load load = { (enum sum_way)way, (enum kernel_dtype)dtype };

            snprintf(config, sizeof config, "memory, %s, %s / copy", dtypes[dtype], ways[way]);
            report(b, &(struct figure){ .name = "reduce 2, squares",
                                        .set = set->name,
                                        .config = config,
                                        .value = sum_ns(b, set, load),
                                        .floor = byte * (dtype == KERNEL_FP32 ? 12 : 8) });
        }
    report(b, &(struct figure){ .name = "square_sum",
                                .set = set->name,
                                .config = "memory, fp32 / copy",
                                .value = norm_ns(b, set),
                                .floor = byte * 4 });
    report(b, &(struct figure){ .name = "copy",
                                .set = set->name,
                                .config = "memory, 4 bytes / memcpy",
                                .value = copy * 8,
                                .floor = copy_ns(b, NULL, 8) });
}

static void run(struct bench *b)
{
    static const char *const names[] = { "avx512", "avx2", "scalar" };

    fill(b, b->count, NORMAL);
    const double byte = copy_ns(b, NULL, 1);

    printf("%zu parameters; memcpy %.1f GB/s, read and written\n", b->count, 1 / byte);
    printf("%-18s %-7s %-32s %8s %8s %6s\n", "what", "set", "config", "ns", "floor", "ratio");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kernel_set *set = kernel_set_find(names[i], NULL);

        if (set == NULL)
            continue;
        adam_cached(b, set);
        adam_in_memory(b, set);
        undo_cost(b, set);
        sums(b, set);
    }
}

static bool open_bench(struct bench *b)
{
    for (int i = 0; i < ARRAYS; i++) {
        void *memory = mmap(NULL, b->count * sizeof(float), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        if (memory == MAP_FAILED) {
            fprintf(stderr, "bench_kernels: %zu parameters need %zu bytes of memory: %s\n",
                    b->count, ARRAYS * b->count * sizeof(float), strerror(errno));
            return false;
        }
        b->array[i] = memory;
    }
    b->squares = calloc(b->count / KERNEL_NORM_CHUNK, sizeof *b->squares);
    return b->squares != NULL;
}

static bool parse_count(const char *text, struct bench *b)
{
    char *end = NULL;

    b->count = strtoull(text, &end, 10) / 1024 * 1024;
    return *end == '\0' && b->count >= CACHED;
}

static bool parse_json(const char *path, struct bench *b)
{
    b->json = fopen(path, "w");
    if (b->json == NULL)
        fprintf(stderr, "bench_kernels: open %s: %s\n", path, strerror(errno));
    return b->json != NULL;
}

static bool parse(int argc, char **argv, struct bench *b)
{
    bool ok = argc % 2 == 1;

    for (int i = 1; ok && i < argc; i += 2)
        if (strcmp(argv[i], "--params") == 0)
            ok = parse_count(argv[i + 1], b);
        else
            ok = strcmp(argv[i], "--json") == 0 && parse_json(argv[i + 1], b);
    return ok;
}

int main(int argc, char **argv)
{
    struct bench b = { .count = 64u << 20, .first = true };

    if (!parse(argc, argv, &b)) {
        fprintf(stderr, "usage: bench_kernels [--params N, at least %d] [--json FILE]\n", CACHED);
        return 2;
    }
    if (!open_bench(&b))
        return 1;
    if (b.json)
        fputs("[", b.json);
    run(&b);
    if (b.json) {
        fputs("\n]\n", b.json);
        return fclose(b.json) != 0;
    }
    return 0;
}
