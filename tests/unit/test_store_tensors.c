/* SPDX-License-Identifier: MIT */
/* What is exported is imported again to the same values, and no lie in a header is believed. */
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/store/export.h"
#include "daemon/store/import.h"
#include "daemon/store/models.h"
#include "tests/unit/store_sample.h"

static char dir[PATH_MAX];

/* ---- there and back ---- */

static uint64_t differences(struct store *store, const struct zero_layout *layout, uint64_t step)
{
    struct zero_detail detail = { "" };
    uint64_t bad = 0;

    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        uint64_t count = layout->tensors[t].count;
        const struct store_span span = { STORE_MASTER, t, 0, count };
        float *values = malloc(count * sizeof *values);
        CHECK(!zero_failed(store_read_fp32(store, &span, values, &detail)));
        for (uint64_t e = 0; e < count; e++)
            bad += values[e] != sample_value(STORE_MASTER, t, e, step);
        free(values);
    }
    return bad;
}

static void import_again(char *folder, const struct zero_layout *model, const char *to,
                         uint64_t step)
{
    struct zero_detail detail = { "" };
    struct zero_layout *layout = NULL;
    struct store_tensors tensors;
    struct store_imported imported = { .progress = NULL };
    struct store *store = NULL;

    zero_status s = store_tensors_open(&folder, 1, &tensors, &detail);
    CHECK(!zero_failed(s));
    if (zero_failed(s))
        return;
    CHECK(!zero_failed(store_layout_again(model, 1, ZERO_FP32, &layout, &detail)));
    CHECK(!zero_failed(store_import(&tensors, layout, to, &imported, &detail)));
    CHECK(imported.unused == 0);
    s = store_open(imported.path, &store, &detail);
    CHECK(!zero_failed(s));
    if (!zero_failed(s))
        CHECK(differences(store, layout, step) == 0 && store_facts(store)->info.step == 0);
    store_close(store);
    store_tensors_close(&tensors);
    zero_layout_destroy(layout);
}

static void there_and_back(zero_dtype kept, zero_dtype exported, uint64_t max_shard, uint32_t files)
{
    static uint64_t step;
    char path[PATH_MAX], out[PATH_MAX + 16], again[PATH_MAX + 16];
    struct zero_layout *layout = NULL;
    struct store *store = NULL;
    struct store_exported result = { .files = 0 };
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(sample_layout(3, kept, &layout)));
    const struct sample sample = { layout, sample_states(kept), 0, ++step };
    CHECK(!zero_failed(sample_save(&sample, dir, path, &detail)));
    CHECK(!zero_failed(store_open(path, &store, &detail)));
    snprintf(out, sizeof out, "%s/out-%d", dir, (int)step);
    snprintf(again, sizeof again, "%s/again-%d", dir, (int)step);
    const struct store_export options = { out, exported, max_shard, NULL };
    CHECK(!zero_failed(store_export(store, &options, &result, &detail)));
    CHECK(result.files == files);
    CHECK(store_export(store, &options, &result, &detail).code == ZERO_INVALID_STATE);
    CHECK_CONTAINS(detail.text, "already");
    import_again(out, layout, again, step);
    store_close(store);
    zero_layout_destroy(layout);
}

/* ---- lies ---- */

#define F32(name, shape, from, to) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":[" shape "],\"data_offsets\":[" #from "," #to "]}"

static const struct {
    const char *header;
    unsigned data; /* bytes */
    zero_code code;
    const char *says;
} lies[] = {
    { "{" F32("a", "2", 0, 8) "}", 8, ZERO_OK, "" },
    { "{\"__metadata__\":{\"a\":\"b\"}," F32("a", "2,1", 0, 8) "," F32("b", "", 8, 12) "}   ", 12,
      ZERO_OK, "" },
    { "{" F32("a", "0", 0, 0) "}", 0, ZERO_OK, "" },
    { "{\"__metadata__\":{\"format\":\"zerod 1\",\"rank\":\"0\"}," F32("a", "2", 0, 8) "}", 8,
      ZERO_UNSUPPORTED, "zerorun --restore" },
    { "{\"__metadata__\":{\"format\":\"zerod\"},\"format\":" /* nor is a tensor's name one */
      "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
      4, ZERO_OK, "" },
    { "{" F32("a", "2", 0, 8) "," F32("b", "1", 4, 8) "}", 8, ZERO_CORRUPT, "b begins" },
    { "{" F32("a", "2", 0, 8) "," F32("b", "1", 12, 16) "}", 16, ZERO_CORRUPT, "a hole" },
    { "{" F32("a", "2", 0, 8) "}", 12, ZERO_CORRUPT, "12 bytes of data" },
    { "{" F32("a", "2", 0, 8) "}", 4, ZERO_CORRUPT, "4 bytes of data" },
    { "{" F32("a", "3", 0, 8) "}", 8, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "2", 8, 0) "}", 8, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "4294967296,4294967296,4", 0, 0) "}", 0, ZERO_TOO_LARGE, "tensor a" },
    { "{" F32("a", "4611686018427387905", 0, 4) "}", 4, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "1,1,1,1,1,1,1,1,1", 0, 4) "}", 4, ZERO_TOO_LARGE, "tensor a" },
    { "{" F32("a", "-1", 0, 4) "}", 4, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "1.0", 0, 4) "}", 4, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "1e0", 0, 4) "}", 4, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "1", 0, 18446744073709551616) "}", 4, ZERO_CORRUPT, "tensor a" },
    { "{" F32("a", "1", 0, 4) "," F32("a", "1", 4, 8) "}", 8, ZERO_CORRUPT, "comes twice" },
    { "{\"a\":{\"dtype\":\"Q9\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ZERO_UNSUPPORTED,
      "Q9" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ZERO_CORRUPT, "lacks" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, ZERO_CORRUPT, "lacks" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}", 4, ZERO_CORRUPT,
      "no size" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, ZERO_CORRUPT,
      "not a list" },
    { "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"x\":[1],\"data_offsets\":[0,4]}}", 4, ZERO_CORRUPT,
      "x" },
    { "{\"a\":[1]}", 0, ZERO_CORRUPT, "not an object" },
    { "[]", 0, ZERO_CORRUPT, "not an object" },
    { "{" F32("a", "1", 0, 4), 4, ZERO_CORRUPT, "not JSON" },
    { "", 0, ZERO_CORRUPT, "not JSON" },
};

static void write_file(const char *path, uint64_t length, const char *header, unsigned data)
{
    static const char zeros[64];
    FILE *to = fopen(path, "w");

    if (to == NULL)
        abort();
    for (int i = 0; i < 8; i++)
        fputc((int)(length >> (8 * i) & 0xff), to);
    fputs(header, to);
    fwrite(zeros, 1, data, to);
    fclose(to);
}

static void expect(char *path, zero_code code, const char *says)
{
    struct store_tensors tensors;
    struct zero_detail detail = { "" };
    zero_status s = store_tensors_open(&path, 1, &tensors, &detail);

    CHECK(s.code == code);
    if (s.code != code)
        fprintf(stderr, "  %s: %s, wanted \"%s\"\n", zero_code_name(s.code), detail.text, says);
    if (zero_failed(s))
        CHECK_CONTAINS(detail.text, says);
    else
        store_tensors_close(&tensors);
}

static void tell_lies(void)
{
    char path[PATH_MAX + 32], deep[64];

    snprintf(path, sizeof path, "%s/lie.safetensors", dir);
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        write_file(path, strlen(lies[i].header), lies[i].header, lies[i].data);
        expect(path, lies[i].code, lies[i].says);
    }
    write_file(path, UINT64_MAX, "{}", 0);
    expect(path, ZERO_TOO_LARGE, "longer than the 100000000");
    write_file(path, 3, "{}", 0);
    expect(path, ZERO_CORRUPT, "behind its last byte");
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    write_file(path, strlen(deep), deep, 0);
    expect(path, ZERO_CORRUPT, "not an object");
    CHECK(truncate(path, 7) == 0);
    expect(path, ZERO_CORRUPT, "only 7 bytes");
    CHECK(unlink(path) == 0 && mkdir(path, 0700) == 0);
    expect(path, ZERO_NOT_FOUND, "no *.safetensors");
}

int main(void)
{
    sample_dir(dir);
    there_and_back(ZERO_FP32, ZERO_FP32, 0, 1);
    there_and_back(ZERO_BF16, ZERO_BF16, 0, 1);
    there_and_back(ZERO_FP16, ZERO_FP16, 1000000, 2);
    there_and_back(ZERO_BF16, ZERO_FP32, 1, 6);
    tell_lies();
    sample_remove(dir);
    return check_done();
}
