/* SPDX-License-Identifier: MIT */
#include "daemon/store/part.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/store/error.h"
#include "daemon/store/parse.h"

enum { SUM_DIGITS = 16, MOST_REST = 2 * STORE_MOST_BLOB + 4096 /* bytes but for the sums */ };

struct store_name store_part_name(uint32_t rank, const char *ending)
{
    struct store_name name;

    snprintf(name.text, sizeof name.text, "rank-%" PRIu32 ".%s", rank, ending);
    return name;
}

uint64_t store_blocks_of(uint64_t file_bytes)
{
    return file_bytes / STORE_BLOCK_BYTES + (file_bytes % STORE_BLOCK_BYTES != 0);
}

/* ---- writing ---- */

void store_write_states(FILE *to, uint32_t states)
{
    const char *between = "";

    fputc('[', to);
    for (enum store_state s = 0; s < STORE_STATES; s++) {
        if (!STORE_HAS(states, s))
            continue;
        fprintf(to, "%s\"%s\"", between, store_state_names[s]);
        between = ", ";
    }
    fputc(']', to);
}

zero_status store_record_write(int folder, const struct store_record *record,
                               struct zero_detail *out_detail)
{
    struct store_name name = store_part_name(record->rank, "json");
    struct store_sealed sealed;
    zero_status s = store_sealed_create(folder, name.text, &sealed, out_detail);

    if (zero_failed(s))
        return s;
    fprintf(sealed.to,
            "{\"format\": %d,\n\"rank\": %" PRIu32 ",\n\"world\": %" PRIu32 ",\n\"step\": %" PRIu64
            ",\n\"save\": \"%s\",\n\"states\": ",
            STORE_FORMAT, record->rank, record->world, record->step, record->id);
    store_write_states(sealed.to, record->states);
    fprintf(sealed.to,
            ",\n\"header_bytes\": %" PRIu64 ",\n\"file_bytes\": %" PRIu64
            ",\n\"block_bytes\": %d,\n\"blob\": \"",
            record->header_bytes, record->file_bytes, STORE_BLOCK_BYTES);
    for (size_t i = 0; i < record->blob_bytes; i++)
        fprintf(sealed.to, "%02x", record->blob[i]);
    fprintf(sealed.to, "\",\n\"blocks\": \"");
    for (uint64_t i = 0; i < record->sum_count; i++)
        fprintf(sealed.to, "%016" PRIx64, record->sums[i]);
    fputc('"', sealed.to);
    return store_sealed_finish(&sealed, out_detail);
}

/* ---- reading ---- */

/* The members, each of which must be there once. */
enum member {
    FORMAT,
    RANK,
    WORLD,
    STEP,
    SAVE,
    STATES,
    HEADER,
    FILE_BYTES,
    BLOCK,
    BLOB,
    BLOCKS,
    CHECKSUM,
    MEMBERS
};
static const char *const members[MEMBERS] = {
    "format",       "rank",       "world",       "step", "save",   "states",
    "header_bytes", "file_bytes", "block_bytes", "blob", "blocks", "checksum",
};

struct reading {
    struct store_record *record;
    uint32_t seen;
};

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static zero_status take_blob(const struct store_value *value, struct store_record *record,
                             struct zero_detail *detail)
{
    size_t bytes = value->bytes / 2;

    if (value->type != STORE_TEXT || value->bytes % 2 != 0 || bytes > STORE_MOST_BLOB)
        return store_refuse(detail, ZERO_CORRUPT,
                            "\"blob\" is not a text of at most %d pairs of digits",
                            STORE_MOST_BLOB);
    record->blob = malloc(bytes + 1);
    if (record->blob == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %zu bytes", bytes);
    for (size_t i = 0; i < bytes; i++) {
        int high = digit_of(value->text[2 * i]), low = digit_of(value->text[2 * i + 1]);
        if (high < 0 || low < 0)
            return store_refuse(detail, ZERO_CORRUPT, "\"blob\" has what is not hexadecimal");
        record->blob[i] = (unsigned char)(high << 4 | low);
    }
    record->blob_bytes = bytes;
    return zero_success();
}

/* The text is at most as long as the file, whose size was checked. */
static zero_status take_blocks(const struct store_value *value, struct store_record *record,
                               struct zero_detail *detail)
{
    uint64_t count = value->bytes / SUM_DIGITS;

    if (value->type != STORE_TEXT || value->bytes % SUM_DIGITS != 0)
        return store_refuse(detail, ZERO_CORRUPT, "\"blocks\" is not a text of %d digits a block",
                            SUM_DIGITS);
    record->sums = malloc((count + 1) * sizeof *record->sums);
    if (record->sums == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for %" PRIu64 " sums", count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t sum = 0;
        for (size_t d = 0; d < SUM_DIGITS; d++) {
            int digit = digit_of(value->text[i * SUM_DIGITS + d]);
            if (digit < 0)
                return store_refuse(detail, ZERO_CORRUPT, "\"blocks\" has what is no digit");
            sum = sum << 4 | (uint64_t)digit;
        }
        record->sums[i] = sum;
    }
    record->sum_count = count;
    return zero_success();
}

zero_status store_take_state(const struct store_value *value, uint32_t *states,
                             struct zero_detail *out_detail)
{
    for (enum store_state s = 0; s < STORE_STATES; s++) {
        if (!store_value_is(value, store_state_names[s]))
            continue;
        if (*states >> s != 0)
            break;
        *states |= 1u << s;
        return zero_success();
    }
    return store_refuse(out_detail, ZERO_CORRUPT,
                        "\"states\" has what is no state, twice, or out of order");
}

static zero_status take_number(const struct store_value *value, uint32_t most, uint32_t *out,
                               struct zero_detail *detail)
{
    uint64_t count = 0;
    zero_status s = store_take_count(value, most, &count, detail);

    *out = (uint32_t)count;
    return s;
}

static zero_status take_exactly(const struct store_value *value, uint32_t want,
                                struct zero_detail *detail)
{
    uint32_t got = 0;
    zero_status s = take_number(value, UINT32_MAX, &got, detail);

    if (!zero_failed(s) && got != want)
        return store_refuse(detail, ZERO_VERSION,
                            "\"%s\" is %" PRIu32 ", this zerod reads %" PRIu32, value->key, got,
                            want);
    return s;
}

static zero_status take_member(struct store_record *r, enum member member,
                               const struct store_value *value, struct zero_detail *detail)
{
    char sum[33];

    switch (member) {
    case FORMAT:
        return take_exactly(value, STORE_FORMAT, detail);
    case RANK:
        return take_number(value, ZERO_MAX_WORLD, &r->rank, detail);
    case WORLD:
        return take_number(value, ZERO_MAX_WORLD, &r->world, detail);
    case STEP:
        return store_take_count(value, UINT64_MAX, &r->step, detail);
    case SAVE:
        return store_take_text(value, r->id, sizeof r->id, detail);
    case HEADER:
        return store_take_count(value, STORE_MOST_HEADER_BYTES, &r->header_bytes, detail);
    case FILE_BYTES:
        return store_take_count(value, INT64_MAX, &r->file_bytes, detail);
    case BLOCK:
        return take_exactly(value, STORE_BLOCK_BYTES, detail);
    case BLOB:
        return take_blob(value, r, detail);
    case BLOCKS:
        return take_blocks(value, r, detail);
    case STATES:
        return value->type == STORE_LIST
                   ? zero_success()
                   : store_refuse(detail, ZERO_CORRUPT, "\"states\" is not a list");
    default:
        return store_take_text(value, sum, sizeof sum, detail); /* checked already */
    }
}

static zero_status take(void *context, const struct store_value *value, struct zero_detail *detail)
{
    struct reading *reading = context;
    enum member member = 0;

    if (value->type == STORE_CLOSE)
        return zero_success();
    if (value->depth == 0)
        return value->type == STORE_OBJECT ? zero_success()
                                           : store_refuse(detail, ZERO_CORRUPT, "not an object");
    if (value->depth > 1)
        return store_take_state(value, &reading->record->states, detail);
    while (member < MEMBERS && strcmp(members[member], value->key) != 0)
        member++;
    if (member == MEMBERS)
        return store_refuse(detail, ZERO_CORRUPT, "\"%.60s\" is not known", value->key);
    if ((reading->seen >> member & 1u) != 0)
        return store_refuse(detail, ZERO_CORRUPT, "\"%s\" is given twice", value->key);
    reading->seen |= 1u << member;
    return take_member(reading->record, member, value, detail);
}

static zero_status check_record(const struct store_record *r, const struct zero_layout *layout,
                                uint32_t rank, struct zero_detail *detail)
{
    if (r->rank != rank || r->world != layout->world)
        return store_refuse(detail, ZERO_CORRUPT,
                            "it is of rank %" PRIu32 " of %" PRIu32 ", not of rank %" PRIu32
                            " of %" PRIu32,
                            r->rank, r->world, rank, layout->world);
    if (!store_states_allowed(layout->dtype, r->states))
        return store_refuse(detail, ZERO_CORRUPT,
                            "its states cannot stand together: there is a master, and a param only "
                            "where parameters are not fp32");
    uint64_t data = store_data_bytes(layout, r->states);
    if (r->header_bytes == 0 || r->header_bytes % ZERO_PAGE_BYTES != 0 ||
        r->file_bytes != r->header_bytes + data)
        return store_refuse(detail, ZERO_CORRUPT,
                            "a file of %" PRIu64 " bytes with a header of %" PRIu64
                            " does not hold %" PRIu64 " bytes of state",
                            r->file_bytes, r->header_bytes, data);
    if (r->sum_count != store_blocks_of(r->file_bytes))
        return store_refuse(detail, ZERO_CORRUPT, "it has %" PRIu64 " sums for %" PRIu64 " blocks",
                            r->sum_count, store_blocks_of(r->file_bytes));
    return zero_success();
}

/* No record of this model is longer. */
static uint64_t most_bytes(const struct zero_layout *layout)
{
    uint64_t data = layout->shard_total * (zero_dtype_bytes(ZERO_FP32) * STORE_STATES);

    return SUM_DIGITS * store_blocks_of(data + STORE_MOST_HEADER_BYTES) + MOST_REST;
}

zero_status store_record_parse(const struct store_file *file, const struct zero_layout *layout,
                               struct store_record *out, struct zero_detail *out_detail)
{
    struct reading reading = { .record = out };
    const struct store_text text = { .file = file, .bytes = file->bytes };
    uint32_t rank = out->rank;
    struct zero_detail why = { "" };
    zero_status s = store_parse(&text, take, &reading, &why);

    if (!zero_failed(s) && reading.seen != (1u << MEMBERS) - 1)
        s = store_refuse(&why, ZERO_CORRUPT, "\"%s\" is missing",
                         members[__builtin_ctz(~reading.seen)]);
    if (!zero_failed(s))
        s = check_record(out, layout, rank, &why);
    if (zero_failed(s))
        s = store_refuse(out_detail, s.code, "%s: %.400s", file->name, why.text);
    return s;
}

zero_status store_record_read(int folder, const struct zero_layout *layout, uint32_t rank,
                              struct store_record *out, struct zero_detail *out_detail)
{
    struct store_name name = store_part_name(rank, "json");
    struct store_record record = { .rank = rank };
    struct store_file file = { .fd = -1 };
    zero_status s = store_file_open(folder, name.text, &file, out_detail);

    if (zero_failed(s))
        return s;
    if (file.bytes > most_bytes(layout))
        s = store_refuse(out_detail, ZERO_TOO_LARGE,
                         "%s has %" PRIu64 " bytes: for this model it has at most %" PRIu64,
                         name.text, file.bytes, most_bytes(layout));
    if (!zero_failed(s))
        s = store_sealed_check(&file, &record.self, out_detail);
    if (!zero_failed(s))
        s = store_record_parse(&file, layout, &record, out_detail);
    store_file_close(&file);
    if (zero_failed(s))
        store_record_deinit(&record);
    else
        *out = record;
    return s;
}

void store_record_deinit(struct store_record *record)
{
    free(record->blob);
    free(record->sums);
    record->blob = NULL;
    record->sums = NULL;
}
