/* SPDX-License-Identifier: MIT */
/* A layout covers every element of every tensor exactly once, whatever the world and remainder. */
#include <math.h>
#include <stdlib.h>

#include "proto/layout.h"
#include "tests/unit/check.h"

static struct zero_detail detail;

static struct zero_tensor_spec tensor(const char *name, const uint64_t *shape, uint32_t dims)
{
    return (struct zero_tensor_spec){
        .name = name, .shape = shape, .dims = dims, .lr_scale = 1, .weight_decay = NAN
    };
}

/* Marks what the segments of a range cover; each element may be marked once. */
static uint64_t mark(const struct zero_layout *layout, uint32_t layer, struct zero_range range,
                     unsigned char *marks)
{
    struct zero_segment segment;
    uint64_t covered = 0;
    uint32_t cursor = 0;

    while (zero_layout_segment(layout, layer, range, &cursor, &segment)) {
        CHECK(segment.begin >= range.begin && segment.end <= range.end);
        CHECK(segment.begin < segment.end && segment.layer == layer);
        for (uint64_t i = segment.begin; i < segment.end; i++)
            CHECK(marks[i]++ == 0);
        covered += segment.end - segment.begin;
    }
    return covered;
}

/* Every element that some rank's shard holds of some tensor is found once, in pieces of odd size.
 */
static void check_cover(const struct zero_layout *layout, uint32_t layer)
{
    const struct zero_layer *l = &layout->layers[layer];
    unsigned char *marks = calloc(l->flat, 1);
    uint64_t covered = 0;

    for (uint32_t r = 0; r < layout->world; r++) {
        uint64_t last = (r + 1) * l->shard;
        for (uint64_t at = r * l->shard; at < last; at += 777) {
            struct zero_range range = { at, at + 777 < last ? at + 777 : last };
            covered += mark(layout, layer, range, marks);
        }
    }
    CHECK(covered == l->count);
    free(marks);
}

static void check_layout(uint32_t world, zero_dtype dtype)
{
    static const uint64_t one[] = { 1 }, odd[] = { 7, 37 }, big[] = { 3, 5, 1001 };
    struct zero_tensor_spec first[] = { tensor("a", one, 1), tensor("b", odd, 2),
                                        tensor("c", big, 3), tensor("scalar", NULL, 0) };
    struct zero_tensor_spec second[] = { tensor("d", one, 1) };
    struct zero_layer_spec layers[] = { { "first", first, 4 }, { "second", second, 1 } };
    const struct zero_layout_spec spec = { layers, 2, world, dtype };
    struct zero_layout *layout = NULL;

    CHECK(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    CHECK(layout->count == 1 + 7 * 37 + 3 * 5 * 1001 + 1 + 1);
    for (uint32_t l = 0; l < 2; l++) {
        CHECK(layout->layers[l].shard % 256 == 0);
        CHECK(layout->layers[l].shard * zero_dtype_bytes(dtype) % 4096 == 0);
        CHECK(layout->layers[l].shard % ZERO_NORM_CHUNK == 0);
        CHECK(layout->layers[l].flat == layout->layers[l].shard * world);
        check_cover(layout, l);
    }
    for (uint32_t t = 0; t < layout->tensor_count; t++)
        CHECK(layout->tensors[t].offset % 256 == 0);
    zero_layout_destroy(layout);
}

static void check_refused(const struct zero_tensor_spec *spec, size_t count, zero_code code,
                          const char *part)
{
    struct zero_layer_spec layer = { "layer", spec, count };
    const struct zero_layout_spec all = { &layer, 1, 2, ZERO_FP32 };
    struct zero_layout *layout = NULL;

    CHECK(zero_layout_create(&all, &layout, &detail).code == code);
    CHECK(layout == NULL);
    CHECK_CONTAINS(detail.text, part);
}

static void check_mistakes(void)
{
    static const uint64_t huge[] = { UINT64_C(1) << 40, UINT64_C(1) << 40 }, zero[] = { 4, 0 },
                          one[] = { 1 }, wide[] = { UINT64_C(1) << 50 };
    struct zero_tensor_spec twice[] = { tensor("a", one, 1), tensor("a", one, 1) };
    struct zero_tensor_spec sum[] = { tensor("a", wide, 1), tensor("b", wide, 1) };
    struct zero_tensor_spec spec = tensor("x", huge, 2);

    check_refused(&spec, 1, ZERO_TOO_LARGE, "tensor x");
    spec = tensor("x", zero, 2);
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "dimension 1 of tensor x is 0");
    spec = tensor("", one, 1);
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "name");
    spec = tensor("line\nbreak", one, 1);
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "control characters");
    spec = tensor("caf\xe9", one, 1);
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "UTF-8");
    spec = tensor("x", one, 9);
    check_refused(&spec, 1, ZERO_TOO_LARGE, "9 dimensions");
    spec = tensor("x", NULL, 1);
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "its shape is NULL");
    spec = tensor("x", one, 1);
    spec.lr_scale = NAN;
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "lr_scale of tensor x");
    spec.lr_scale = 1;
    spec.weight_decay = -1;
    check_refused(&spec, 1, ZERO_INVALID_ARGUMENT, "weight_decay of tensor x");
    check_refused(twice, 2, ZERO_INVALID_ARGUMENT, "two tensors are named a");
    check_refused(sum, 2, ZERO_TOO_LARGE, "layer layer");
    check_refused(NULL, 0, ZERO_INVALID_ARGUMENT, "no tensors");
    check_refused(NULL, 1, ZERO_INVALID_ARGUMENT, "no tensors");
}

static void check_text(void)
{
    static const uint64_t shape[] = { 2, 3 };
    struct zero_tensor_spec spec = tensor("w", shape, 2);
    struct zero_layer_spec layer = { "block 0", &spec, 1 };
    const struct zero_layout_spec all = { &layer, 1, 3, ZERO_BF16 };
    struct zero_layout *layout = NULL;

    spec.lr_scale = 0.5;
    spec.weight_decay = 0;
    CHECK(!zero_failed(zero_layout_create(&all, &layout, &detail)));
    char *text = zero_layout_text(layout);
    CHECK(text &&
          strcmp(text, "layer block 0\n  tensor w [2,3] lr_scale 0.5 weight_decay 0\n") == 0);
    free(text);
    zero_layout_destroy(layout);
}

int main(void)
{
    static const uint32_t worlds[] = { 1, 2, 3, 5, 8, 64 };

    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        for (int dtype = 0; dtype < ZERO_DTYPES; dtype++)
            check_layout(worlds[i], (zero_dtype)dtype);
    check_mistakes();
    check_text();
    return check_done();
}
