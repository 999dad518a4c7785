/* SPDX-License-Identifier: MIT */
#include "daemon/store/geometry.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"

const char *const store_state_names[STORE_STATES] = { "param", "master", "moment1", "moment2",
                                                      "max_moment2" };

bool store_states_allowed(zero_dtype dtype, uint32_t states)
{
    bool narrow = dtype != ZERO_FP32;

    return states >> STORE_STATES == 0 && STORE_HAS(states, STORE_MASTER) &&
           (narrow || !STORE_HAS(states, STORE_PARAM));
}

zero_dtype store_state_dtype(zero_dtype param_dtype, enum store_state state)
{
    return state == STORE_PARAM ? param_dtype : ZERO_FP32;
}

uint64_t store_region_bytes(const struct zero_layout *layout, enum store_state state)
{
    return layout->shard_total * zero_dtype_bytes(store_state_dtype(layout->dtype, state));
}

uint64_t store_region_offset(const struct zero_layout *layout, uint32_t states,
                             enum store_state state)
{
    uint64_t offset = 0;

    for (enum store_state s = 0; s < state; s++)
        offset += STORE_HAS(states, s) ? store_region_bytes(layout, s) : 0;
    return offset;
}

uint64_t store_data_bytes(const struct zero_layout *layout, uint32_t states)
{
    return store_region_offset(layout, states, STORE_STATES);
}

void store_quote(FILE *to, const char *text, size_t bytes)
{
    fputc('"', to);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            fprintf(to, "\\u%04x", c);
        else if (c == '"' || c == '\\')
            fprintf(to, "\\%c", c);
        else
            fputc(c, to);
    }
    fputc('"', to);
}

/* ---- the header ---- */

struct listing {
    FILE *to;
    const struct zero_layout *layout;
    uint64_t at;       /* bytes of data that are named */
    uint64_t pads;     /* so far */
    long most;         /* bytes of text, or the text ends */
    const char *dtype; /* safetensors' name for the region's */
    unsigned size;     /* bytes of an element */
};

static void list_pad(struct listing *list, uint64_t until)
{
    if (until == list->at)
        return;
    fprintf(list->to,
            ",\"~pad/%" PRIu64 "\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64
            "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
            list->pads++, until - list->at, list->at, until);
    list->at = until;
}

static void list_extent(struct listing *list, const char *state, const struct zero_segment *segment)
{
    const struct zero_tensor *tensor = segment->tensor;
    uint64_t count = segment->end - segment->begin, first = segment->begin - tensor->offset;
    uint64_t end = list->at + count * list->size;
    char name[ZERO_MAX_NAME + 64];
    int bytes = snprintf(name, sizeof name, "%s/%s", state, tensor->name);

    if (count != tensor->count || strchr(tensor->name, '@') != NULL)
        bytes += snprintf(name + bytes, sizeof name - (size_t)bytes, "@%" PRIu64, first);
    fputc(',', list->to);
    store_quote(list->to, name, (size_t)bytes);
    fprintf(list->to,
            ":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64
            "]}",
            list->dtype, count, list->at, end);
    list->at = end;
}

/* The rank's shard of every layer; false when the text grows too long. */
static bool list_region(struct listing *list, uint32_t rank, enum store_state state)
{
    static const char *const names[ZERO_DTYPES] = { "F32", "BF16", "F16" };
    const struct zero_layout *layout = list->layout;
    zero_dtype dtype = store_state_dtype(layout->dtype, state);
    uint64_t start = list->at;

    list->dtype = names[dtype];
    list->size = (unsigned)zero_dtype_bytes(dtype);
    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        struct zero_range mine = { rank * layer->shard, (rank + 1) * layer->shard };
        struct zero_segment segment;
        uint32_t cursor = 0;
        while (zero_layout_segment(layout, l, mine, &cursor, &segment)) {
            uint64_t within = layer->shard_offset + segment.begin - mine.begin;
            list_pad(list, start + within * list->size);
            list_extent(list, store_state_names[state], &segment);
            if (ftell(list->to) > list->most)
                return false;
        }
    }
    list_pad(list, start + layout->shard_total * list->size);
    return true;
}

static zero_status write_header(struct listing *list, uint32_t rank, uint32_t states,
                                struct zero_detail *detail)
{
    fprintf(list->to,
            "{\"__metadata__\":{\"format\":\"zerod %d\",\"rank\":\"%" PRIu32
            "\",\"world\":\"%" PRIu32 "\"}",
            STORE_FORMAT, rank, list->layout->world);
    for (enum store_state s = 0; s < STORE_STATES; s++)
        if (STORE_HAS(states, s) && !list_region(list, rank, s))
            return store_refuse(detail, ZERO_TOO_LARGE,
                                "the header of rank-%" PRIu32
                                ".safetensors would have more than %d bytes, which "
                                "safetensors does not allow: the model has %" PRIu32
                                " tensors; register fewer and larger ones, or use more ranks",
                                rank, STORE_MOST_HEADER_BYTES, list->layout->tensor_count);
    fputc('}', list->to);
    return zero_success();
}

zero_status store_header_create(const struct zero_layout *layout, uint32_t rank, uint32_t states,
                                struct store_header *out, struct zero_detail *out_detail)
{
    char *text = NULL;
    size_t bytes = 0;
    struct listing list = { .layout = layout, .most = STORE_MOST_HEADER_BYTES - ZERO_PAGE_BYTES };
    zero_status s = zero_success();

    list.to = open_memstream(&text, &bytes);
    if (list.to != NULL)
        s = write_header(&list, rank, states, out_detail);
    bool broken = list.to == NULL || ferror(list.to) != 0;
    if (list.to != NULL)
        broken |= fclose(list.to) != 0;
    if (zero_failed(s))
        goto out;
    size_t all = (8 + bytes + ZERO_PAGE_BYTES - 1) / ZERO_PAGE_BYTES * ZERO_PAGE_BYTES;
    unsigned char *header = broken ? NULL : aligned_alloc(ZERO_PAGE_BYTES, all);
    if (header == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a header of %zu bytes", bytes);
        goto out;
    }
    for (int i = 0; i < 8; i++)
        header[i] = (unsigned char)((uint64_t)(all - 8) >> (8 * i));
    memcpy(header + 8, text, bytes);
    memset(header + 8 + bytes, ' ', all - 8 - bytes);
    *out = (struct store_header){ header, all };
out:
    free(text);
    return s;
}
