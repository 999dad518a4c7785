/* SPDX-License-Identifier: MIT */
#include "daemon/store/safetensors.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"
#include "daemon/store/geometry.h"
#include "kernels/element.h"

enum { CHUNK = 1 << 16, LENGTH_BYTES = 8 };

/* ---- dtypes ---- */

static float from_f32(const unsigned char *at)
{
    float value;

    memcpy(&value, at, sizeof value);
    return value;
}

static float from_f64(const unsigned char *at)
{
    double value;

    memcpy(&value, at, sizeof value);
    return (float)value;
}

static float from_bf16(const unsigned char *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof half);
    return bf16_to_float(half);
}

static float from_f16(const unsigned char *at)
{
    uint16_t half;

    memcpy(&half, at, sizeof half);
    return fp16_to_float(half);
}

struct store_dtype {
    const char *name;
    unsigned size;
    float (*widen)(const unsigned char *at); /* NULL: no float that we take */
};

static const struct store_dtype dtypes[] = {
    { "F32", 4, from_f32 }, { "F64", 8, from_f64 }, { "BF16", 2, from_bf16 },
    { "F16", 2, from_f16 }, { "BOOL", 1, NULL },    { "U8", 1, NULL },
    { "I8", 1, NULL },      { "U16", 2, NULL },     { "I16", 2, NULL },
    { "U32", 4, NULL },     { "I32", 4, NULL },     { "U64", 8, NULL },
    { "I64", 8, NULL },     { "F8_E4M3", 1, NULL }, { "F8_E5M2", 1, NULL },
};

/* ---- a header ---- */

struct header {
    struct store_tensors *tensors;
    struct store_tensor *tensor; /* whose members are read */
    uint32_t file;
    unsigned offsets; /* read so far */
    uint32_t seen;    /* members of the tensor: 1 dtype, 2 shape, 4 data_offsets */
    uint32_t list;    /* which of them is read */
    bool about;       /* __metadata__ is read */
};

static zero_status add_tensor(struct header *h, const struct store_value *value,
                              struct zero_detail *detail)
{
    struct store_tensors *t = h->tensors;

    if (value->type != STORE_OBJECT)
        return store_refuse(detail, ZERO_CORRUPT, "%.200s is not an object", value->key);
    if (t->count == ZERO_MAX_TENSORS)
        return store_refuse(detail, ZERO_TOO_LARGE, "more than %d tensors", ZERO_MAX_TENSORS);
    if (t->count == t->room) {
        size_t room = t->room == 0 ? 64 : t->room * 2;
        struct store_tensor *more = reallocarray(t->tensors, room, sizeof *more);
        if (more == NULL)
            return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %zu tensors", room);
        t->tensors = more;
        t->room = room;
    }
    char *name = strdup(value->key);
    if (name == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a name");
    h->tensor = &t->tensors[t->count++];
    *h->tensor = (struct store_tensor){ .name = name, .file = h->file, .count = 1 };
    h->seen = 0;
    h->offsets = 0;
    return zero_success();
}

static zero_status take_dtype(struct header *h, const struct store_value *value,
                              struct zero_detail *detail)
{
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        if (store_value_is(value, dtypes[d].name))
            h->tensor->dtype = &dtypes[d];
    if (h->tensor->dtype != NULL)
        return zero_success();
    return store_refuse(detail, ZERO_UNSUPPORTED,
                        "tensor %.200s has the dtype %.*s, not known here", h->tensor->name,
                        value->type == STORE_TEXT && value->bytes < 40 ? (int)value->bytes : 0,
                        value->text);
}

static zero_status take_member(struct header *h, const struct store_value *value,
                               struct zero_detail *detail)
{
    uint32_t member = strcmp(value->key, "dtype") == 0          ? 1
                      : strcmp(value->key, "shape") == 0        ? 2
                      : strcmp(value->key, "data_offsets") == 0 ? 4
                                                                : 0;

    if (member == 0 || (h->seen & member) != 0 || (member != 1 && value->type != STORE_LIST))
        return store_refuse(detail, ZERO_CORRUPT,
                            "tensor %.200s: \"%.60s\" is not known, twice, or not a list",
                            h->tensor->name, value->key);
    h->seen |= member;
    h->list = member;
    return member == 1 ? take_dtype(h, value, detail) : zero_success();
}

static zero_status take_size(struct header *h, const struct store_value *value,
                             struct zero_detail *detail)
{
    struct store_tensor *tensor = h->tensor;
    uint64_t number = 0;
    zero_status s = store_take_count(value, INT64_MAX, &number, detail);

    if (zero_failed(s))
        return store_refuse(detail, ZERO_CORRUPT, "tensor %.200s has what is no size",
                            tensor->name);
    if (h->list == 4) {
        if (h->offsets == 2)
            return store_refuse(detail, ZERO_CORRUPT, "tensor %.200s has more than two offsets",
                                tensor->name);
        *(h->offsets++ == 0 ? &tensor->begin : &tensor->end) = number;
        return zero_success();
    }
    if (tensor->dims == ZERO_MAX_DIMS ||
        __builtin_mul_overflow(tensor->count, number, &tensor->count))
        return store_refuse(detail, ZERO_TOO_LARGE,
                            "tensor %.200s has more than %d dimensions, or 2^64 elements",
                            tensor->name, ZERO_MAX_DIMS);
    tensor->shape[tensor->dims++] = number;
    return zero_success();
}

static zero_status end_tensor(const struct header *h, struct zero_detail *detail)
{
    const struct store_tensor *t = h->tensor;
    uint64_t bytes = 0;

    if (h->seen != 7 || h->offsets != 2)
        return store_refuse(detail, ZERO_CORRUPT,
                            "tensor %.200s lacks dtype, shape or data_offsets", t->name);
    if (t->end < t->begin || __builtin_mul_overflow(t->count, t->dtype->size, &bytes) ||
        bytes != t->end - t->begin)
        return store_refuse(detail, ZERO_CORRUPT,
                            "tensor %.200s: %" PRIu64
                            " elements of %s do not fill the bytes from %" PRIu64 " to %" PRIu64,
                            t->name, t->count, t->dtype->name, t->begin, t->end);
    return zero_success();
}

/* A rank's part of a checkpoint has shards and moments under names of its own. */
static zero_status check_about(const struct store_value *value, struct zero_detail *detail)
{
    static const char ours[] = "zerod ";
    const size_t bytes = sizeof ours - 1;

    if (value->type == STORE_TEXT && strcmp(value->key, "format") == 0 && value->bytes > bytes &&
        memcmp(value->text, ours, bytes) == 0)
        return store_refuse(detail, ZERO_UNSUPPORTED,
                            "a rank's part of a zerod checkpoint, not a model: give the checkpoint "
                            "to zerorun --restore, or import what 'zeroctl checkpoint export' "
                            "makes of it");
    return zero_success();
}

static zero_status take(void *context, const struct store_value *value, struct zero_detail *detail)
{
    struct header *h = context;
    bool closes = value->type == STORE_CLOSE;

    switch (value->depth) {
    case 0:
        return closes || value->type == STORE_OBJECT
                   ? zero_success()
                   : store_refuse(detail, ZERO_CORRUPT, "the header is not an object");
    case 1:
        if (closes && h->tensor != NULL) {
            zero_status s = end_tensor(h, detail);
            h->tensor = NULL;
            return s;
        }
        h->about = !closes && strcmp(value->key, "__metadata__") == 0;
        if (closes || h->about)
            return zero_success();
        return add_tensor(h, value, detail);
    case 2:
        if (!closes && h->about)
            return check_about(value, detail);
        return closes || h->tensor == NULL ? zero_success() : take_member(h, value, detail);
    default:
        if (closes || h->tensor == NULL)
            return zero_success();
        return value->depth == 3 ? take_size(h, value, detail)
                                 : store_refuse(detail, ZERO_CORRUPT,
                                                "tensor %.200s nests too deep", h->tensor->name);
    }
}

/* ---- a file ---- */

static int compare_begins(const void *a, const void *b)
{
    const struct store_tensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* The data is covered from its first byte to its last. */
static zero_status check_cover(struct store_tensor *tensors, size_t count, uint64_t bytes,
                               struct zero_detail *detail)
{
    uint64_t at = 0;

    if (count > 0)
        qsort(tensors, count, sizeof *tensors, compare_begins);
    for (size_t t = 0; t < count; t++) {
        if (tensors[t].begin != at)
            return store_refuse(detail, ZERO_CORRUPT,
                                "tensor %.200s begins at byte %" PRIu64 " of the data, %s",
                                tensors[t].name, tensors[t].begin,
                                tensors[t].begin < at ? "within another" : "behind a hole");
        at = tensors[t].end;
    }
    if (at != bytes)
        return store_refuse(detail, ZERO_CORRUPT,
                            "its tensors end at byte %" PRIu64 " of %" PRIu64 " bytes of data", at,
                            bytes);
    return zero_success();
}

static zero_status read_header(struct store_tensors *tensors, uint32_t file,
                               struct zero_detail *detail)
{
    struct store_source_file *from = &tensors->files[file];
    struct header h = { .tensors = tensors, .file = file };
    unsigned char length[LENGTH_BYTES];
    size_t before = tensors->count;
    uint64_t bytes = 0;

    if (from->file.bytes < LENGTH_BYTES)
        return store_refuse(detail, ZERO_CORRUPT, "it has only %" PRIu64 " bytes",
                            from->file.bytes);
    zero_status s = store_file_read(&from->file, 0, LENGTH_BYTES, length, detail);
    if (zero_failed(s))
        return s;
    for (int i = 0; i < LENGTH_BYTES; i++)
        bytes |= (uint64_t)length[i] << (8 * i);
    if (bytes > STORE_MOST_HEADER_BYTES)
        return store_refuse(detail, ZERO_TOO_LARGE,
                            "it is no safetensors file, or its header of %" PRIu64
                            " bytes is longer than the %d that are allowed",
                            bytes, STORE_MOST_HEADER_BYTES);
    if (bytes > from->file.bytes - LENGTH_BYTES)
        return store_refuse(detail, ZERO_CORRUPT, "its header ends behind its last byte");
    from->data = LENGTH_BYTES + bytes;
    const struct store_text text = { &from->file, LENGTH_BYTES, bytes };
    s = store_parse(&text, take, &h, detail);
    if (zero_failed(s))
        return s;
    size_t count = tensors->count - before; /* of a file without any there may be no table yet */
    return check_cover(count > 0 ? tensors->tensors + before : NULL, count,
                       from->file.bytes - from->data, detail);
}

zero_status store_tensors_add(struct store_tensors *tensors, uint32_t file,
                              struct zero_detail *out_detail)
{
    struct zero_detail why = { "" };
    zero_status s = read_header(tensors, file, &why);

    if (zero_failed(s))
        s = store_refuse(out_detail, s.code, "%.160s: %.340s", tensors->files[file].path, why.text);
    return s;
}

/* ---- by name ---- */

const struct store_tensor *store_tensors_find(const struct store_tensors *tensors, const char *name)
{
    size_t low = 0, high = tensors->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(tensors->by_name[middle]->name, name);
        if (order == 0)
            return tensors->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

zero_status store_tensors_read(const struct store_tensors *tensors,
                               const struct store_tensor *tensor, struct zero_range elements,
                               float *out, struct zero_detail *out_detail)
{
    const struct store_source_file *from = &tensors->files[tensor->file];
    unsigned size = tensor->dtype->size;
    unsigned char chunk[CHUNK];

    if (tensor->dtype->widen == NULL)
        return store_refuse(out_detail, ZERO_UNSUPPORTED,
                            "tensor %.200s has the dtype %s: only F32, BF16, F16 and F64 are read",
                            tensor->name, tensor->dtype->name);
    if (elements.begin > elements.end || elements.end > tensor->count)
        return store_refuse(out_detail, ZERO_INVALID_ARGUMENT,
                            "elements %" PRIu64 " to %" PRIu64 " of %.200s, which has %" PRIu64,
                            elements.begin, elements.end, tensor->name, tensor->count);
    for (uint64_t at = elements.begin, take; at < elements.end; at += take) {
        take = elements.end - at < CHUNK / size ? elements.end - at : CHUNK / size;
        zero_status s = store_file_read(&from->file, from->data + tensor->begin + at * size,
                                        take * size, chunk, out_detail);
        if (zero_failed(s))
            return s;
        for (uint64_t i = 0; i < take; i++)
            *out++ = tensor->dtype->widen(chunk + i * size);
    }
    return zero_success();
}

void store_tensors_close(struct store_tensors *tensors)
{
    for (size_t t = 0; t < tensors->count; t++)
        free(tensors->tensors[t].name);
    for (size_t f = 0; f < tensors->file_count; f++) {
        store_file_close(&tensors->files[f].file);
        free(tensors->files[f].path);
    }
    free(tensors->tensors);
    free(tensors->by_name);
    free(tensors->files);
    *tensors = (struct store_tensors){ .count = 0 };
}
