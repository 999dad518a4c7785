/* SPDX-License-Identifier: MIT */
/* Tensors are found by their names in whatever layers they are; every difference is told. */
#include <math.h>
#include <stdlib.h>

#include "daemon/store/match.h"
#include "tests/unit/check.h"

enum { MANY = 1000 };

static uint32_t told;
static char last[512];

static void tell(void *context, const char *text)
{
    CHECK(context == &told);
    told++;
    snprintf(last, sizeof last, "%s", text);
}

static struct zero_tensor_spec tensor(const char *name, const uint64_t *shape, uint32_t dims)
{
    return (struct zero_tensor_spec){ name, shape, dims, 1, NAN };
}

static struct zero_layout *lay_out(const struct zero_layer_spec *layers, size_t count,
                                   uint32_t world)
{
    const struct zero_layout_spec spec = { layers, count, world, ZERO_BF16 };
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };

    CHECK(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    return layout;
}

static const uint64_t sizes[] = { 3, 4, 3 };

/* a [3,4], b [4], c [] in two layers; for other worlds, other layers, another order. */
static void same_model(void)
{
    const struct zero_tensor_spec have_tensors[] = { tensor("a", sizes, 2),
                                                     tensor("b", sizes + 1, 1),
                                                     tensor("c", NULL, 0) };
    const struct zero_tensor_spec want_tensors[] = { tensor("c", NULL, 0), tensor("a", sizes, 2),
                                                     tensor("b", sizes + 1, 1) };
    const struct zero_layer_spec have_layers[] = { { "x", have_tensors, 2 },
                                                   { "y", have_tensors + 2, 1 } };
    const struct zero_layer_spec want_layers[] = { { "z", want_tensors, 3 } };
    struct zero_layout *have = lay_out(have_layers, 2, 4), *want = lay_out(want_layers, 1, 3);
    const struct store_match match = { have, want, tell, &told };
    struct zero_detail detail = { "" };
    uint32_t from[3] = { 9, 9, 9 };

    CHECK(!zero_failed(store_match(&match, from, &detail)));
    CHECK(from[0] == 2 && from[1] == 0 && from[2] == 1 && told == 0);
    zero_layout_destroy(have);
    zero_layout_destroy(want);
}

/* a is turned round, b is gone, d is new. */
static void other_model(void)
{
    const struct zero_tensor_spec have_tensors[] = { tensor("a", sizes, 2),
                                                     tensor("b", sizes + 1, 1) };
    const struct zero_tensor_spec want_tensors[] = { tensor("d", sizes, 1),
                                                     tensor("a", sizes + 1, 2) };
    const struct zero_layer_spec have_layer = { "x", have_tensors, 2 };
    const struct zero_layer_spec want_layer = { "x", want_tensors, 2 };
    struct zero_layout *have = lay_out(&have_layer, 1, 1), *want = lay_out(&want_layer, 1, 1);
    const struct store_match match = { have, want, tell, &told };
    const struct store_match silent = { have, want, NULL, NULL };
    struct zero_detail detail = { "" };
    uint32_t from[2];

    told = 0;
    CHECK(store_match(&match, from, &detail).code == ZERO_MISMATCH);
    CHECK(told == 3);
    CHECK_CONTAINS(last, "b [4] is not in the model");
    CHECK_CONTAINS(detail.text, "d [3] is not in the checkpoint; "
                                "a is [3,4] in the checkpoint and [4,3] in the model; "
                                "b [4] is not in the model");
    CHECK(store_match(&silent, from, &detail).code == ZERO_MISMATCH && told == 3);
    zero_layout_destroy(have);
    zero_layout_destroy(want);
}

/* More differences than a detail has room for are counted; names may be as long as any. */
static void many(void)
{
    static char names[2 * MANY][ZERO_MAX_NAME + 1];
    struct zero_tensor_spec *tensors = calloc(2 * (size_t)MANY, sizeof *tensors);
    struct zero_detail detail = { "" };
    uint32_t from[MANY];

    if (tensors == NULL)
        abort();
    for (int t = 0; t < 2 * MANY; t++) {
        snprintf(names[t], sizeof names[t], "%0*d", t % 2 ? ZERO_MAX_NAME : 8, t);
        tensors[t] = tensor(names[t], sizes, 1);
    }
    const struct zero_layer_spec have_layer = { "x", tensors, MANY };
    const struct zero_layer_spec want_layer = { "x", tensors + MANY, MANY };
    struct zero_layout *have = lay_out(&have_layer, 1, 1), *want = lay_out(&want_layer, 1, 1);
    const struct store_match match = { have, want, tell, &told };
    told = 0;
    CHECK(store_match(&match, from, &detail).code == ZERO_MISMATCH);
    CHECK(told == 2 * MANY);
    CHECK_CONTAINS(detail.text, "00001000 [3] is not in the checkpoint; and 1999 more");
    zero_layout_destroy(have);
    zero_layout_destroy(want);
    free(tensors);
}

int main(void)
{
    same_model();
    other_model();
    many();
    return check_done();
}
