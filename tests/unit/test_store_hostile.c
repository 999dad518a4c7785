/* SPDX-License-Identifier: MIT */
/* A manifest or record that was made to lie, with a right checksum, is refused by what it says; a
 * million tensors are read in bounded memory. */
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/manifest.h"
#include "daemon/store/part.h"
#include "tests/unit/store_sample.h"

static char dir[PATH_MAX], path[PATH_MAX];

static char *read_text(const char *name)
{
    char file[2 * PATH_MAX];
    char *text = calloc(1, 1 << 20);

    snprintf(file, sizeof file, "%s/%s", path, name);
    FILE *from = fopen(file, "r");
    if (text == NULL || from == NULL || fread(text, 1, (1 << 20) - 1, from) == 0)
        abort();
    fclose(from);
    return text;
}

/* The text with one passage replaced, without its seal. */
static char *replaced(const char *text, const char *passage, const char *by)
{
    const char *at = strstr(text, passage), *end = strstr(text, ",\n\"checksum\"");
    char *out = NULL;

    if (at == NULL || end == NULL) {
        fprintf(stderr, "no %s\n", passage);
        abort();
    }
    if (asprintf(&out, "%.*s%s%.*s", (int)(at - text), text, by,
                 (int)(end - at - (long)strlen(passage)), at + strlen(passage)) < 0)
        abort();
    return out;
}

/* Writes a text with a right seal. */
static void seal(const char *name, const char *text)
{
    struct store_sealed sealed = { .fd = -1 };
    struct zero_detail detail = { "" };
    int folder = open(path, O_RDONLY | O_DIRECTORY);

    if (zero_failed(store_sealed_create(folder, name, &sealed, &detail)))
        abort();
    fputs(text, sealed.to);
    CHECK(!zero_failed(store_sealed_finish(&sealed, &detail)));
    close(folder);
}

struct lie {
    const char *passage, *by;
    zero_code code;
    const char *says;
};

static const struct lie manifest_lies[] = {
    { "\"step\": 5", "\"step\": 5", ZERO_OK,
      "" }, /* to know that the others fail by what they say */
    { "\"format\": 1", "\"format\": 2", ZERO_VERSION, "format 2" },
    { "\"world\": 2", "\"world\": 0", ZERO_CORRUPT, "parts" },
    { "\"world\": 2", "\"world\": 3", ZERO_CORRUPT, "parts" },
    { "\"world\": 2", "\"world\": 1", ZERO_CORRUPT, "parts" },
    { "\"world\": 2", "\"world\": 129", ZERO_CORRUPT, "world" },
    { "\"world\": 2", "\"world\": -2", ZERO_CORRUPT, "world" },
    { "\"world\": 2", "\"world\": 2.0", ZERO_CORRUPT, "world" },
    { "\"world\": 2", "\"world\": \"2\"", ZERO_CORRUPT, "world" },
    { "\"world\": 2", "\"world\": [2]", ZERO_CORRUPT, "world" },
    { "\"stage\": 3", "\"stage\": 4", ZERO_CORRUPT, "stage" },
    { "\"dtype\": \"bf16\"", "\"dtype\": \"int8\"", ZERO_CORRUPT, "dtype" },
    { "\"dtype\": \"bf16\"", "\"dtype\": \"fp32\"", ZERO_CORRUPT, "states" },
    { "\"step\": 5", "\"step\": 6", ZERO_CORRUPT, "rank-0.json" },
    { "\"step\": 5", "\"step\": 18446744073709551616", ZERO_CORRUPT, "step" },
    { "\"step\": 5", "\"step\": 5,\n\"step\": 5", ZERO_CORRUPT, "twice" },
    { "\"step\": 5", "\"steps\": 5", ZERO_CORRUPT, "steps" },
    { "\"step\": 5,\n", "", ZERO_CORRUPT, "\"step\" is missing" },
    { "\"master\", ", "", ZERO_CORRUPT, "states" },
    { "\"master\", \"moment1\"", "\"moment1\", \"master\"", ZERO_CORRUPT, "states" },
    { "\"master\"", "\"mistress\"", ZERO_CORRUPT, "states" },
    { "\"shape\": [30, 90]", "\"shape\": [30, 91]", ZERO_OK, "" }, /* the same padded size */
    { "\"shape\": [30, 90]", "\"shape\": [30, 9000]", ZERO_CORRUPT, "rank-0.json" },
    { "\"shape\": [30, 90]", "\"shape\": [4294967296, 4294967296]", ZERO_TOO_LARGE, "2^50" },
    { "\"shape\": [30, 90]", "\"shape\": [0]", ZERO_INVALID_ARGUMENT, "is 0" },
    { "\"shape\": [30, 90]", "\"shape\": [1,1,1,1,1,1,1,1,1]", ZERO_TOO_LARGE, "8 dimensions" },
    { "\"shape\": [30, 90]", "\"shape\": [[30, 90]]", ZERO_CORRUPT, "whole number" },
    { "\"name\": \"b\"", "\"name\": \"a\"", ZERO_INVALID_ARGUMENT, "two tensors" },
    { "\"name\": \"b\"", "\"name\": \"../b\"", ZERO_OK, "" }, /* a name is never a path */
    { "\"name\": \"b\"", "\"name\": \"\\u0000\"", ZERO_CORRUPT, "name" },
    { "\"name\": \"b\"", "\"name\": \"\\u001b[31m\"", ZERO_INVALID_ARGUMENT, "control" },
    { "\"name\": \"b\", ", "", ZERO_INVALID_ARGUMENT, "name" },
    { "\"lr_scale\": 0.5", "\"lr_scale\": 1e999", ZERO_CORRUPT, "" },
    { "\"lr_scale\": 0.5", "\"lr_scale\": -1", ZERO_INVALID_ARGUMENT, "lr_scale" },
    { "\"lr_scale\": 0.5", "\"rm\": \"-rf\"", ZERO_CORRUPT, "rm" },
    { "\"scale\": ", "\"scale\": {}, \"scale\": ", ZERO_CORRUPT, "scale" },
    { "\"layers\": [", "\"layers\": [[],", ZERO_CORRUPT, "kind" },
    { "{\"format\"", "[{\"format\"", ZERO_CORRUPT, "not an object" },
};

static const struct lie record_lies[] = {
    { "\"rank\": 0", "\"rank\": 1", ZERO_CORRUPT, "rank 1 of 2" },
    { "\"file_bytes\": ", "\"file_bytes\": 1", ZERO_CORRUPT, "does not hold" },
    { "\"file_bytes\": ", "\"file_bytes\": 9223372036854775807, \"x\": ", ZERO_CORRUPT, "x" },
    { "\"header_bytes\": 4096", "\"header_bytes\": 0", ZERO_CORRUPT, "does not hold" },
    { "\"header_bytes\": 4096", "\"header_bytes\": 100000001", ZERO_CORRUPT, "header_bytes" },
    { "\"block_bytes\": 1048576", "\"block_bytes\": 1", ZERO_VERSION, "block_bytes" },
    { "\"blocks\": \"", "\"blocks\": \"0000000000000000", ZERO_CORRUPT, "sums for" },
    { "\"blocks\": \"", "\"blocks\": \"0", ZERO_CORRUPT, "digits" },
    { "\"blocks\": \"", "\"blocks\": \"ABCDEFABCDEFABCD", ZERO_CORRUPT, "no digit" },
    { "\"blob\": \"", "\"blob\": \"zz", ZERO_CORRUPT, "hexadecimal" },
    { "\"blob\": \"", "\"blob\": \"0", ZERO_CORRUPT, "pairs" },
    { "\"step\": 5", "\"step\": 5 ", ZERO_CORRUPT, "the one that" }, /* other bytes, same sense */
};

static void tell(const char *name, const struct lie *lies, size_t count)
{
    char *text = read_text(name), file[2 * PATH_MAX];

    for (size_t i = 0; i < count; i++) {
        struct zero_detail detail = { "" };
        struct store *store = NULL;
        char *lie = replaced(text, lies[i].passage, lies[i].by);
        seal(name, lie);
        free(lie);
        zero_status s = store_open(path, &store, &detail);
        store_close(store);
        CHECK(s.code == lies[i].code);
        CHECK_CONTAINS(detail.text, lies[i].says);
        if (s.code != lies[i].code)
            fprintf(stderr, "  %s %s: %s %s\n", name, lies[i].by, zero_code_name(s.code),
                    detail.text);
    }
    snprintf(file, sizeof file, "%s/%s", path, name);
    FILE *to = fopen(file, "w");
    if (to == NULL)
        abort();
    fputs(text, to);
    fclose(to);
    free(text);
}

/* A record that is longer than any of this model can be is not even read. */
static void long_record(void)
{
    struct zero_detail detail = { "" };
    struct store *store = NULL;
    char file[2 * PATH_MAX];

    snprintf(file, sizeof file, "%s/rank-1.json", path);
    CHECK(truncate(file, 1LL << 40) == 0);
    CHECK(store_open(path, &store, &detail).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "at most");
    snprintf(file, sizeof file, "%s/manifest.json", path);
    CHECK(truncate(file, 1LL << 40) == 0);
    CHECK(store_open(path, &store, &detail).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "at most");
}

static void write_many(uint32_t tensors)
{
    struct store_sealed sealed = { .fd = -1 };
    struct zero_detail detail = { "" };
    int folder = open(path, O_RDONLY | O_DIRECTORY);

    if (zero_failed(store_sealed_create(folder, STORE_MANIFEST, &sealed, &detail)))
        abort();
    fprintf(sealed.to,
            "{\"format\":1,\"zerod\":\"x\",\"save\":\"0\",\"time\":1,\"step\":1,\"updates\":1,"
            "\"skipped_in_row\":0,\"world\":1,\"stage\":0,\"dtype\":\"fp32\",\"states\":["
            "\"master\"],\"scaler\":{},\"config\":\"\",\"parts\":[\"0\"],\"layers\":[{\"name\":"
            "\"l\",\"tensors\":[");
    for (uint32_t t = 0; t < tensors; t++)
        fprintf(sealed.to, "%s{\"name\":\"model.layers.0.experts.%" PRIu32 "\",\"shape\":[1,1]}",
                t == 0 ? "" : ",", t);
    fputs("]}]", sealed.to);
    CHECK(!zero_failed(store_sealed_finish(&sealed, &detail)));
    close(folder);
}

static void many_tensors(void)
{
    struct zero_detail detail = { "" };
    struct store_manifest manifest;
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    struct rusage usage;

    write_many(ZERO_MAX_TENSORS);
    zero_status s = store_manifest_read(folder, &manifest, &detail);
    CHECK(!zero_failed(s));
    if (!zero_failed(s)) {
        CHECK(manifest.layout->tensor_count == ZERO_MAX_TENSORS);
        store_manifest_deinit(&manifest);
    }
    getrusage(RUSAGE_SELF, &usage);
    printf("a million tensors: %ld MiB\n", usage.ru_maxrss / 1024);
#ifndef __SANITIZE_ADDRESS__
    CHECK(usage.ru_maxrss < 2L << 20); /* KiB */
#endif
    write_many(ZERO_MAX_TENSORS + 1);
    CHECK(store_manifest_read(folder, &manifest, &detail).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "more than 1048576 tensors");
    close(folder);
}

/* A file whose header safetensors would refuse is not written. */
static void long_header(void)
{
    enum { TENSORS = 300000, NAME = 200 };
    struct zero_tensor_spec *tensors = calloc(TENSORS, sizeof *tensors);
    char *text = calloc(TENSORS, NAME + 1);
    static const uint64_t one = 1;
    struct zero_layout *layout = NULL;
    struct store_header header;
    struct zero_detail detail = { "" };

    if (tensors == NULL || text == NULL)
        abort();
    for (size_t t = 0; t < TENSORS; t++) {
        snprintf(text + t * (NAME + 1), NAME + 1, "%0*zu", NAME, t);
        tensors[t] = (struct zero_tensor_spec){ text + t * (NAME + 1), &one, 1, 1, NAN };
    }
    const struct zero_layer_spec layer = { "l", tensors, TENSORS };
    const struct zero_layout_spec spec = { &layer, 1, 1, ZERO_FP32 };
    CHECK(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    CHECK(store_header_create(layout, 0, sample_states(ZERO_FP32), &header, &detail).code ==
          ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "100000000 bytes");
    zero_layout_destroy(layout);
    free(tensors);
    free(text);
}

int main(void)
{
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };

    sample_dir(dir);
    CHECK(!zero_failed(sample_tiny_layout(2, ZERO_BF16, &layout)));
    const struct sample sample = { layout, sample_states(ZERO_BF16), 3, 5 };
    CHECK(!zero_failed(sample_save(&sample, dir, path, &detail)));
    zero_layout_destroy(layout);
    tell("manifest.json", manifest_lies, sizeof manifest_lies / sizeof *manifest_lies);
    tell("rank-0.json", record_lies, sizeof record_lies / sizeof *record_lies);
    long_record();
    many_tensors();
    long_header();
    sample_remove(dir);
    return check_done();
}
