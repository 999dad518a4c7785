/* SPDX-License-Identifier: MIT */
/* saver: a process that writes a checkpoint of a model whose every value follows from its place, or
 * checks the newest one against the same rule.
 *
 *   saver save DIR STEP WORLD DTYPE STAGE tiny|small     exit 0: DIR/step-STEP was committed
 *   saver check DIR                                      prints the newest step; exit 0: all is
 * right
 */
#include <stdlib.h>

#include "tests/unit/store_sample.h"

static int save(char **words)
{
    struct zero_layout *layout = NULL;
    struct zero_detail detail = { "" };
    uint32_t world = (uint32_t)strtoul(words[2], NULL, 10);
    zero_dtype dtype = ZERO_FP32;
    char path[PATH_MAX];

    for (int d = 0; d < ZERO_DTYPES; d++)
        if (strcmp(words[3], zero_dtype_name((zero_dtype)d)) == 0)
            dtype = (zero_dtype)d;
    zero_status s = strcmp(words[5], "tiny") == 0 ? sample_tiny_layout(world, dtype, &layout)
                                                  : sample_layout(world, dtype, &layout);
    if (zero_failed(s))
        return 2;
    const struct sample sample = { layout, sample_states(dtype),
                                   (uint32_t)strtoul(words[4], NULL, 10),
                                   strtoull(words[1], NULL, 10) };
    s = sample_save(&sample, words[0], path, &detail);
    zero_layout_destroy(layout);
    if (zero_failed(s)) {
        fprintf(stderr, "%s: %s\n", zero_code_name(s.code), detail.text);
        return 1;
    }
    puts(path);
    return check_done();
}

static void check_tensor(struct store *store, uint32_t tensor, enum store_state state)
{
    const struct store_facts *facts = store_facts(store);
    const struct store_span span = { state, tensor, 0, facts->info.layout->tensors[tensor].count };
    struct zero_detail detail = { "" };
    float *values = malloc(span.count * sizeof *values);

    if (values == NULL)
        abort();
    zero_status s = store_read_fp32(store, &span, values, &detail);
    CHECK(!zero_failed(s));
    for (uint64_t e = 0; e < span.count && !zero_failed(s); e++)
        CHECK(values[e] == sample_value(state, tensor, e, facts->info.step));
    free(values);
}

static int check(const char *dir)
{
    struct zero_detail detail = { "" };
    struct store_findings findings = { .problems = 0 };
    struct store *store = NULL;
    char *path = NULL;
    zero_status s = store_newest(dir, &path, &detail);

    if (!zero_failed(s))
        s = store_open(path, &store, &detail);
    if (!zero_failed(s))
        s = store_verify(store, NULL, &findings, &detail);
    if (zero_failed(s)) {
        fprintf(stderr, "%s: %s\n", zero_code_name(s.code), detail.text);
        return 1;
    }
    CHECK(findings.problems == 0);
    for (uint32_t t = 0; t < store_facts(store)->info.layout->tensor_count; t++)
        for (enum store_state k = 0; k < STORE_STATES; k++)
            if (STORE_HAS(store_facts(store)->states, k))
                check_tensor(store, t, k);
    printf("%" PRIu64 "\n", store_facts(store)->info.step);
    store_close(store);
    free(path);
    return check_done();
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[1], "save") == 0)
        return save(argv + 2);
    if (argc == 3 && strcmp(argv[1], "check") == 0)
        return check(argv[2]);
    fputs("saver save DIR STEP WORLD DTYPE STAGE tiny|small, or saver check DIR\n", stderr);
    return 2;
}
