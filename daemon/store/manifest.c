/* SPDX-License-Identifier: MIT */
#include "daemon/store/manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"
#include "daemon/store/models.h"
#include "daemon/store/parse.h"
#include "daemon/store/part.h"

static const uint64_t most_manifest_bytes = UINT64_C(1) << 30;

/* ---- writing ---- */

static void write_tensor(FILE *to, const struct zero_tensor *tensor)
{
    fputs("\n  {\"name\": ", to);
    store_quote(to, tensor->name, strlen(tensor->name));
    fputs(", \"shape\": [", to);
    for (uint32_t d = 0; d < tensor->dims; d++)
        fprintf(to, "%s%" PRIu64, d == 0 ? "" : ", ", tensor->shape[d]);
    fputc(']', to);
    if (tensor->lr_scale != 1)
        fprintf(to, ", \"lr_scale\": %.17g", tensor->lr_scale);
    if (!isnan(tensor->weight_decay))
        fprintf(to, ", \"weight_decay\": %.17g", tensor->weight_decay);
    fputc('}', to);
}

static void write_layers(FILE *to, const struct zero_layout *layout)
{
    fputs(",\n\"layers\": [", to);
    for (uint32_t l = 0; l < layout->layer_count; l++) {
        const struct zero_layer *layer = &layout->layers[l];
        fputs(l == 0 ? "\n {\"name\": " : ",\n {\"name\": ", to);
        store_quote(to, layer->name, strlen(layer->name));
        fputs(", \"tensors\": [", to);
        for (uint32_t t = 0; t < layer->tensor_count; t++) {
            fputs(t == 0 ? "" : ",", to);
            write_tensor(to, &layout->tensors[layer->first_tensor + t]);
        }
        fputs("]}", to);
    }
    fputs("]", to);
}

static void write_head(FILE *to, const struct store_manifest *m)
{
    fprintf(to, "{\"format\": %d,\n\"zerod\": \"%s\",\n\"save\": \"%s\",\n", STORE_FORMAT, m->zerod,
            m->id);
    fprintf(to,
            "\"time\": %" PRIu64 ",\n\"step\": %" PRIu64 ",\n\"updates\": %" PRIu64
            ",\n\"skipped_in_row\": %" PRIu64 ",\n",
            m->time, m->step, m->updates, m->skipped_in_row);
    fprintf(to,
            "\"world\": %" PRIu32 ",\n\"stage\": %" PRIu32 ",\n\"dtype\": \"%s\",\n\"states\": ",
            m->world, m->stage, zero_dtype_name(m->dtype));
    store_write_states(to, m->states);
    fprintf(to,
            ",\n\"scaler\": {\"scale\": %.17g, \"hysteresis_left\": %" PRIu32
            ", \"iteration\": %" PRId64 ", \"last_overflow\": %" PRId64 "},\n\"config\": ",
            m->scaler.scale, m->scaler.hysteresis_left, m->scaler.iteration,
            m->scaler.last_overflow);
    store_quote(to, m->config, m->config_bytes);
}

zero_status store_manifest_write(int folder, const char *name,
                                 const struct store_manifest *manifest,
                                 struct zero_detail *out_detail)
{
    struct store_sealed sealed;
    zero_status s = store_sealed_create(folder, name, &sealed, out_detail);

    if (zero_failed(s))
        return s;
    write_head(sealed.to, manifest);
    write_layers(sealed.to, manifest->layout);
    fputs(",\n\"parts\": [", sealed.to);
    for (uint32_t r = 0; r < manifest->world; r++)
        fprintf(sealed.to, "%s\n \"%s\"", r == 0 ? "" : ",", manifest->parts[r].text);
    fputc(']', sealed.to);
    return store_sealed_finish(&sealed, out_detail);
}

/* ---- reading ---- */

enum member {
    FORMAT,
    ZEROD,
    SAVE,
    TIME,
    STEP,
    UPDATES,
    SKIPPED,
    WORLD,
    STAGE,
    DTYPE,
    STATES,
    SCALER,
    CONFIG,
    LAYERS,
    PARTS,
    CHECKSUM,
    MEMBERS
};
static const char *const members[MEMBERS] = {
    "format", "zerod", "save",   "time",   "step",   "updates", "skipped_in_row", "world",
    "stage",  "dtype", "states", "scaler", "config", "layers",  "parts",          "checksum",
};

struct reading {
    struct store_manifest *manifest;
    struct store_model model;
    uint32_t seen;
    enum member in; /* the member of the whole whose insides are read */
    uint32_t parts; /* so far */
    bool in_shape;
};

static zero_status wrong(const struct store_value *value, struct zero_detail *detail)
{
    return store_refuse(detail, ZERO_CORRUPT, "\"%.60s\" is not expected there, or of that kind",
                        value->key);
}

static zero_status take_number(const struct store_value *value, uint32_t most, uint32_t *out,
                               struct zero_detail *detail)
{
    uint64_t count = 0;
    zero_status s = store_take_count(value, most, &count, detail);

    *out = (uint32_t)count;
    return s;
}

static zero_status take_format(const struct store_value *value, struct zero_detail *detail)
{
    uint32_t format = 0;
    zero_status s = take_number(value, UINT32_MAX, &format, detail);

    if (!zero_failed(s) && format != STORE_FORMAT)
        return store_refuse(detail, ZERO_VERSION,
                            "the checkpoint has format %" PRIu32
                            ", this zerod (%s) reads format %d: use the zerod that wrote it",
                            format, ZEROD_VERSION, STORE_FORMAT);
    return s;
}

static zero_status take_dtype(const struct store_value *value, zero_dtype *out,
                              struct zero_detail *detail)
{
    for (int d = 0; d < ZERO_DTYPES; d++) {
        if (store_value_is(value, zero_dtype_name((zero_dtype)d))) {
            *out = (zero_dtype)d;
            return zero_success();
        }
    }
    return store_refuse(detail, ZERO_CORRUPT, "\"dtype\" is not fp32, bf16 or fp16");
}

static zero_status take_config(const struct store_value *value, struct store_manifest *m,
                               struct zero_detail *detail)
{
    m->config = malloc(STORE_MOST_CONFIG + 1);
    if (m->config == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a config");
    zero_status s = store_take_text(value, m->config, STORE_MOST_CONFIG + 1, detail);
    m->config_bytes = zero_failed(s) ? 0 : value->bytes;
    return s;
}

static zero_status take_member(struct store_manifest *m, enum member member,
                               const struct store_value *value, struct zero_detail *detail)
{
    char sum[33];

    switch (member) {
    case FORMAT:
        return take_format(value, detail);
    case ZEROD:
        return store_take_text(value, m->zerod, sizeof m->zerod, detail);
    case SAVE:
        return store_take_text(value, m->id, sizeof m->id, detail);
    case TIME:
        return store_take_count(value, INT64_MAX, &m->time, detail);
    case STEP:
        return store_take_count(value, UINT64_MAX, &m->step, detail);
    case UPDATES:
        return store_take_count(value, UINT64_MAX, &m->updates, detail);
    case SKIPPED:
        return store_take_count(value, UINT64_MAX, &m->skipped_in_row, detail);
    case WORLD:
        return take_number(value, ZERO_MAX_WORLD, &m->world, detail);
    case STAGE:
        return take_number(value, 3, &m->stage, detail);
    case DTYPE:
        return take_dtype(value, &m->dtype, detail);
    case CONFIG:
        return take_config(value, m, detail);
    case CHECKSUM:
        return store_take_text(value, sum, sizeof sum, detail); /* checked already */
    default:                                                    /* what has insides */
        if (value->type != (member == SCALER ? STORE_OBJECT : STORE_LIST))
            return wrong(value, detail);
        return zero_success();
    }
}

/* A member of the whole. */
static zero_status take_top(struct reading *r, const struct store_value *value,
                            struct zero_detail *detail)
{
    enum member member = 0;

    while (member < MEMBERS && strcmp(members[member], value->key) != 0)
        member++;
    if (member == MEMBERS)
        return store_refuse(detail, ZERO_CORRUPT, "\"%.60s\" is not known", value->key);
    if ((r->seen >> member & 1u) != 0)
        return store_refuse(detail, ZERO_CORRUPT, "\"%s\" is given twice", value->key);
    r->seen |= 1u << member;
    r->in = member;
    return take_member(r->manifest, member, value, detail);
}

static zero_status take_signed(const struct store_value *value, int64_t *out,
                               struct zero_detail *detail)
{
    struct store_value magnitude = *value;
    bool negative = value->type == STORE_NUMBER && value->bytes > 0 && value->text[0] == '-';
    uint64_t count = 0;

    magnitude.text += negative;
    magnitude.bytes -= negative;
    zero_status s = store_take_count(&magnitude, INT64_MAX, &count, detail);
    *out = negative ? -(int64_t)count : (int64_t)count;
    return s;
}

static zero_status take_scaler(struct store_scaler *scaler, const struct store_value *value,
                               struct zero_detail *detail)
{
    if (strcmp(value->key, "scale") == 0)
        return store_take_real(value, &scaler->scale, detail);
    if (strcmp(value->key, "hysteresis_left") == 0)
        return take_number(value, UINT32_MAX, &scaler->hysteresis_left, detail);
    if (strcmp(value->key, "iteration") == 0)
        return take_signed(value, &scaler->iteration, detail);
    if (strcmp(value->key, "last_overflow") == 0)
        return take_signed(value, &scaler->last_overflow, detail);
    return wrong(value, detail);
}

static zero_status take_part(struct reading *r, const struct store_value *value,
                             struct zero_detail *detail)
{
    if (r->parts == ZERO_MAX_WORLD)
        return store_refuse(detail, ZERO_TOO_LARGE, "more than %d parts", ZERO_MAX_WORLD);
    struct store_sum *sum = &r->manifest->parts[r->parts++];
    return store_take_text(value, sum->text, sizeof sum->text, detail);
}

static zero_status take_name(struct reading *r, const struct store_value *value, bool of_tensor,
                             struct zero_detail *detail)
{
    char name[ZERO_MAX_NAME + 1];
    zero_status s = store_take_text(value, name, sizeof name, detail);

    return zero_failed(s) ? s : store_model_name(&r->model, name, of_tensor, detail);
}

static zero_status take_of_tensor(struct reading *r, const struct store_value *value,
                                  struct zero_detail *detail)
{
    struct zero_tensor_spec *tensor = &r->model.tensors[r->model.tensor_count - 1];

    r->in_shape = false;
    if (strcmp(value->key, "name") == 0)
        return take_name(r, value, true, detail);
    if (strcmp(value->key, "lr_scale") == 0)
        return store_take_real(value, &tensor->lr_scale, detail);
    if (strcmp(value->key, "weight_decay") == 0)
        return store_take_real(value, &tensor->weight_decay, detail);
    r->in_shape = strcmp(value->key, "shape") == 0 && value->type == STORE_LIST;
    return r->in_shape ? zero_success() : wrong(value, detail);
}

/* layers (1) · a layer (2) · its name, its tensors (3) · a tensor (4) · its parts (5) · sizes (6)
 */
static zero_status take_layers(struct reading *r, const struct store_value *value,
                               struct zero_detail *detail)
{
    uint64_t size = 0;
    zero_status s;

    switch (value->depth) {
    case 2:
        return value->type == STORE_OBJECT ? store_model_layer(&r->model, detail)
                                           : wrong(value, detail);
    case 3:
        if (strcmp(value->key, "name") == 0)
            return take_name(r, value, false, detail);
        return strcmp(value->key, "tensors") == 0 && value->type == STORE_LIST
                   ? zero_success()
                   : wrong(value, detail);
    case 4:
        return value->type == STORE_OBJECT ? store_model_tensor(&r->model, detail)
                                           : wrong(value, detail);
    case 5:
        return take_of_tensor(r, value, detail);
    default:
        if (!r->in_shape)
            return wrong(value, detail);
        s = store_take_count(value, UINT64_MAX, &size, detail);
        return zero_failed(s) ? s : store_model_size(&r->model, size, detail);
    }
}

static zero_status take(void *context, const struct store_value *value, struct zero_detail *detail)
{
    struct reading *r = context;

    if (value->type == STORE_CLOSE)
        return zero_success();
    if (value->depth == 0)
        return value->type == STORE_OBJECT ? zero_success()
                                           : store_refuse(detail, ZERO_CORRUPT, "not an object");
    if (value->depth == 1)
        return take_top(r, value, detail);
    if (r->in == LAYERS)
        return take_layers(r, value, detail);
    if (value->depth > 2)
        return wrong(value, detail);
    if (r->in == SCALER)
        return take_scaler(&r->manifest->scaler, value, detail);
    if (r->in == STATES)
        return store_take_state(value, &r->manifest->states, detail);
    return r->in == PARTS ? take_part(r, value, detail) : wrong(value, detail);
}

static zero_status complete(struct reading *r, struct zero_detail *detail)
{
    struct store_manifest *m = r->manifest;

    if (r->seen != (1u << MEMBERS) - 1)
        return store_refuse(detail, ZERO_CORRUPT, "\"%s\" is missing",
                            members[__builtin_ctz(~r->seen)]);
    if (!store_states_allowed(m->dtype, m->states))
        return store_refuse(detail, ZERO_CORRUPT,
                            "its states cannot stand together: there is a master, and a param only "
                            "where parameters are not fp32");
    if (r->parts != m->world)
        return store_refuse(detail, ZERO_CORRUPT, "%" PRIu32 " parts for a world of %" PRIu32,
                            r->parts, m->world);
    return store_model_layout(&r->model, m->world, m->dtype, &m->layout, detail);
}

zero_status store_manifest_parse(const struct store_file *file, struct store_manifest *out,
                                 struct zero_detail *out_detail)
{
    struct store_manifest manifest = { .parts = calloc(ZERO_MAX_WORLD, sizeof(struct store_sum)) };
    struct reading reading = { .manifest = &manifest };
    const struct store_text text = { .file = file, .bytes = file->bytes };
    struct zero_detail why = { "" };

    if (manifest.parts == NULL)
        return store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a manifest");
    zero_status s = store_parse(&text, take, &reading, &why);
    if (!zero_failed(s))
        s = complete(&reading, &why);
    store_model_deinit(&reading.model);
    if (zero_failed(s)) {
        store_manifest_deinit(&manifest);
        return store_refuse(out_detail, s.code, STORE_MANIFEST ": %.400s", why.text);
    }
    *out = manifest;
    return s;
}

zero_status store_manifest_read(int folder, struct store_manifest *out,
                                struct zero_detail *out_detail)
{
    struct store_file file = { .fd = -1 };
    struct store_sum sum;
    zero_status s = store_file_open(folder, STORE_MANIFEST, &file, out_detail);

    if (zero_failed(s))
        return s;
    if (file.bytes > most_manifest_bytes)
        s = store_refuse(out_detail, ZERO_TOO_LARGE,
                         STORE_MANIFEST " has %" PRIu64 " bytes, at most %" PRIu64 " are read",
                         file.bytes, most_manifest_bytes);
    if (!zero_failed(s))
        s = store_sealed_check(&file, &sum, out_detail);
    if (!zero_failed(s))
        s = store_manifest_parse(&file, out, out_detail);
    store_file_close(&file);
    return s;
}

void store_manifest_deinit(struct store_manifest *manifest)
{
    free(manifest->config);
    free(manifest->parts);
    zero_layout_destroy(manifest->layout);
    *manifest = (struct store_manifest){ .config = NULL };
}
