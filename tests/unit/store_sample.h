/* SPDX-License-Identifier: MIT */
/* store_sample.h: a small model whose every value follows from its place, in arenas as a daemon
 * would have them, and saved. */
#ifndef TESTS_UNIT_STORE_SAMPLE_H
#define TESTS_UNIT_STORE_SAMPLE_H

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/catalogue.h"
#include "daemon/store/folder.h"
#include "daemon/store/save.h"
#include "daemon/store/store.h"
#include "kernels/element.h"
#include "tests/unit/check.h"

static const char sample_config[] = "{\n\t\"a\": \"\\\"quoted\\\" \xc3\xa4\"\n}\n";

static inline zero_status sample_layout(uint32_t world, zero_dtype dtype, struct zero_layout **out)
{
    static const uint64_t sizes[] = { 37, 41, 7, 1500, 300, 70001, 1 };
    static const struct zero_tensor_spec tensors[] = {
        { "embed \"quoted\\\" \xc3\xa4", sizes, 2, 1, NAN }, /* 37 x 41 */
        { "a@256", sizes + 2, 1, 0.5, 0.125 },               /* 7 */
        { "h.0/weight", sizes + 3, 2, 1, 0 },                /* 1500 x 300 */
        { "a", sizes + 5, 1, 1, NAN },                       /* 70001 */
        { "scalar", NULL, 0, 1, NAN },
        { "one", sizes + 6, 1, 1, NAN },
    };
    static const struct zero_layer_spec layers[] = {
        { "first", tensors, 2 },
        { "second", tensors + 2, 2 },
        { "last", tensors + 4, 2 },
    };
    const struct zero_layout_spec spec = { layers, 3, world, dtype };
    struct zero_detail detail;

    return zero_layout_create(&spec, out, &detail);
}

/* Of some KiB a rank, for what must be read thousands of times. */
static inline zero_status sample_tiny_layout(uint32_t world, zero_dtype dtype,
                                             struct zero_layout **out)
{
    static const uint64_t sizes[] = { 30, 90, 7 };
    static const struct zero_tensor_spec tensors[] = {
        { "a", sizes, 2, 1, NAN },
        { "b", sizes + 2, 1, 0.5, 0.125 },
    };
    static const struct zero_layer_spec layers[] = { { "only", tensors, 2 } };
    const struct zero_layout_spec spec = { layers, 1, world, dtype };
    struct zero_detail detail;

    return zero_layout_create(&spec, out, &detail);
}

/* Exact in every dtype: small integers over 256. */
static inline float sample_value(enum store_state state, uint32_t tensor, uint64_t element,
                                 uint64_t step)
{
    uint64_t mixed =
        (element * 2654435761u + tensor * UINT64_C(97) + (uint64_t)state * 31u + step) >> 7;
    return (float)(int64_t)(mixed % 255) / 256.0f - 0.5f;
}

static inline void sample_put(void *arena, zero_dtype dtype, uint64_t at, float value)
{
    if (dtype == ZERO_FP32)
        ((float *)arena)[at] = value;
    else
        ((uint16_t *)arena)[at] =
            dtype == ZERO_BF16 ? bf16_from_float(value) : fp16_from_float(value);
}

/* A state's whole flat vectors, one layer after another: freed by the caller. */
static inline unsigned char *sample_flat(const struct zero_layout *layout, enum store_state state,
                                         uint64_t step)
{
    zero_dtype dtype = store_state_dtype(layout->dtype, state);
    size_t bytes = layout->flat_total * zero_dtype_bytes(dtype);
    unsigned char *flat = aligned_alloc(ZERO_PAGE_BYTES, bytes);

    if (flat == NULL)
        abort();
    memset(flat, 0, bytes);
    for (uint32_t t = 0; t < layout->tensor_count; t++) {
        const struct zero_tensor *tensor = &layout->tensors[t];
        uint64_t at = layout->layers[tensor->layer].flat_offset + tensor->offset;
        for (uint64_t e = 0; e < tensor->count; e++)
            sample_put(flat, dtype, at + e, sample_value(state, t, e, step));
    }
    return flat;
}

struct sample {
    const struct zero_layout *layout;
    uint32_t states;
    uint32_t stage; /* 3: one piece a state, as a sharded arena; 0: one a layer, of the flat one */
    uint64_t step;
};

/* A rank's shard of a state in one piece, and where it came from in as many as layers. */
static inline void sample_pieces(const struct sample *sample, uint32_t rank, enum store_state state,
                                 unsigned char *flat, struct store_piece *out)
{
    const struct zero_layout *layout = sample->layout;
    size_t size = zero_dtype_bytes(store_state_dtype(layout->dtype, state));

    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        out[l].base = flat + (layer->flat_offset + rank * layer->shard) * size;
        out[l].bytes = layer->shard * size;
    }
}

static inline unsigned char *sample_shard(const struct store_piece *pieces, uint32_t count,
                                          size_t bytes)
{
    unsigned char *shard = aligned_alloc(ZERO_PAGE_BYTES, bytes), *to = shard;

    if (shard == NULL)
        abort();
    for (uint32_t p = 0; p < count; p++) {
        memcpy(to, pieces[p].base, pieces[p].bytes);
        to += pieces[p].bytes;
    }
    return shard;
}

static inline zero_status sample_write_part(const struct sample *sample,
                                            const struct store_save *save, uint32_t rank,
                                            struct zero_detail *detail)
{
    enum { MOST_LAYERS = 8 };
    const struct zero_layout *layout = sample->layout;
    struct store_piece pieces[STORE_STATES][MOST_LAYERS], whole[STORE_STATES];
    struct store_region regions[STORE_STATES];
    unsigned char *flats[STORE_STATES] = { 0 }, *shards[STORE_STATES] = { 0 };
    struct store_progress progress = { .bytes = 0 };
    struct store_written written = { .bytes = 0 };
    size_t count = 0;
    char blob[32];

    int blob_bytes = snprintf(blob, sizeof blob, "rank %" PRIu32 " blob", rank);
    for (enum store_state s = 0; s < STORE_STATES; s++) {
        if (!STORE_HAS(sample->states, s))
            continue;
        flats[s] = sample_flat(layout, s, sample->step);
        sample_pieces(sample, rank, s, flats[s], pieces[s]);
        regions[count] = (struct store_region){ s, pieces[s], layout->layer_count, NULL, NULL };
        if (sample->stage == 3) {
            whole[s].bytes = store_region_bytes(layout, s);
            whole[s].base = shards[s] =
                sample_shard(pieces[s], layout->layer_count, whole[s].bytes);
            regions[count] = (struct store_region){ s, &whole[s], 1, NULL, NULL };
        }
        count++;
    }
    const struct store_part part = { rank, layout, regions, count, blob, (size_t)blob_bytes };
    zero_status status = store_write_part(save, &part, &progress, &written, detail);
    if (!zero_failed(status))
        CHECK(written.bytes == atomic_load(&progress.bytes) && written.bytes > 0);
    for (enum store_state s = 0; s < STORE_STATES; s++) {
        free(flats[s]);
        free(shards[s]);
    }
    return status;
}

/* A whole checkpoint of the sample in dir. */
static inline zero_status sample_save(const struct sample *sample, const char *dir, char *out_path,
                                      struct zero_detail *detail)
{
    struct store_save save, joined;
    const struct store_info info = {
        .layout = sample->layout,
        .stage = sample->stage,
        .step = sample->step,
        .updates = sample->step + 1,
        .skipped_in_row = 2,
        .scaler = { 65536.5, 2, -7, INT64_MIN + 1 },
        .config = sample_config,
        .config_bytes = sizeof sample_config - 1,
    };
    zero_status s = store_begin(dir, sample->step, &save, detail);

    if (zero_failed(s))
        return s;
    for (uint32_t r = 0; r < sample->layout->world && !zero_failed(s); r++) {
        s = store_join(save.path, &joined, detail);
        if (zero_failed(s))
            break;
        s = sample_write_part(sample, &joined, r, detail);
        store_leave(&joined);
    }
    if (!zero_failed(s))
        s = store_commit(&save, &info, out_path, detail);
    if (zero_failed(s)) {
        struct zero_detail second;
        store_abandon(&save, &second);
    }
    return s;
}

/* All states that a dtype can have. */
static inline uint32_t sample_states(zero_dtype dtype)
{
    return (1u << STORE_STATES) - 1 - (dtype == ZERO_FP32 ? 1u << STORE_PARAM : 0);
}

/* A folder for a test, which removes it at its end. */
static inline void sample_dir(char out[PATH_MAX])
{
    const char *tmp = getenv("TMPDIR");

    snprintf(out, PATH_MAX, "%s/zero-store-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(out) == NULL)
        abort();
}

static inline void sample_remove(const char *dir)
{
    char command[PATH_MAX + 16];

    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (system(command) != 0)
        abort();
}

#endif
