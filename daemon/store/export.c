/* SPDX-License-Identifier: MIT */
#include "daemon/store/export.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/fail.h"
#include "daemon/store/error.h"
#include "daemon/store/folder.h"
#include "kernels/element.h"

#define INDEX "model.safetensors.index.json"

enum { CHUNK = 1 << 18 /* elements */, MOST_NAME = 64, MOST_FILES = 99999 };

struct exporting {
    struct store *store;
    const struct zero_layout *layout;
    const struct store_export *options;
    uint32_t *first; /* tensor of each file, and one more: the count of tensors */
    uint32_t files;
    int dir;
    char id[17];
    float *values; /* a chunk */
};

static uint64_t tensor_bytes(const struct exporting *e, uint32_t tensor)
{
    return e->layout->tensors[tensor].count * zero_dtype_bytes(e->options->dtype);
}

/* ---- which tensors go where ---- */

static zero_status plan_files(struct exporting *e, struct zero_detail *detail)
{
    uint64_t most = e->options->max_shard, filled = 0;

    e->first = malloc(((size_t)e->layout->tensor_count + 1) * sizeof *e->first);
    if (e->first == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for a list of files");
    for (uint32_t t = 0; t < e->layout->tensor_count; t++) {
        uint64_t bytes = tensor_bytes(e, t);
        if (t == 0 || (most != 0 && filled > 0 && filled + bytes > most)) {
            e->first[e->files++] = t;
            filled = 0;
        }
        filled += bytes;
    }
    e->first[e->files] = e->layout->tensor_count;
    if (e->files > MOST_FILES)
        return store_refuse(detail, ZERO_TOO_LARGE,
                            "%" PRIu32 " files, at most %d: let a file have more bytes", e->files,
                            MOST_FILES);
    return zero_success();
}

/* temporary: until all files are whole. */
static void name_file(const struct exporting *e, uint32_t file, bool temporary, char out[MOST_NAME])
{
    char name[MOST_NAME / 2 + 8];

    if (e->files == 1)
        snprintf(name, sizeof name, "model.safetensors");
    else
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", (file + 1) % 100000u,
                 e->files % 100000u);
    snprintf(out, MOST_NAME, "%s%s%.16s", name, temporary ? ".new-" : "", temporary ? e->id : "");
}

static zero_status check_free(const struct exporting *e, struct zero_detail *detail)
{
    char name[MOST_NAME];

    for (uint32_t f = 0; f <= e->files; f++) {
        if (f < e->files)
            name_file(e, f, false, name);
        else
            snprintf(name, sizeof name, INDEX);
        if (faccessat(e->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return store_refuse(detail, ZERO_INVALID_STATE,
                                "%.300s has a file %s already: export to an empty folder",
                                e->options->dir, name);
    }
    return zero_success();
}

/* ---- a file ---- */

static char *make_header(const struct exporting *e, uint32_t file, size_t *out_bytes)
{
    static const char *const dtypes[ZERO_DTYPES] = { "F32", "BF16", "F16" };
    char *text = NULL;
    uint64_t at = 0;
    FILE *to = open_memstream(&text, out_bytes);

    if (to == NULL)
        return NULL;
    fwrite("        {\"__metadata__\":{\"format\":\"pt\"}", 1, 39, to);
    for (uint32_t t = e->first[file]; t < e->first[file + 1]; t++) {
        const struct zero_tensor *tensor = &e->layout->tensors[t];
        fputc(',', to);
        store_quote(to, tensor->name, strlen(tensor->name));
        fprintf(to, ":{\"dtype\":\"%s\",\"shape\":[", dtypes[e->options->dtype]);
        for (uint32_t d = 0; d < tensor->dims; d++)
            fprintf(to, "%s%" PRIu64, d == 0 ? "" : ",", tensor->shape[d]);
        fprintf(to, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + tensor_bytes(e, t));
        at += tensor_bytes(e, t);
    }
    fputc('}', to);
    while (ftell(to) % 8 != 0)
        fputc(' ', to);
    if (ferror(to) | fclose(to)) {
        free(text);
        return NULL;
    }
    for (int i = 0; i < 8; i++)
        text[i] = (char)((uint64_t)(*out_bytes - 8) >> (8 * i));
    return text;
}

/* In place: what is narrowed is behind what is to be read. */
static void narrow(float *values, uint64_t count, zero_dtype dtype)
{
    unsigned char *to = (unsigned char *)values;

    for (uint64_t i = 0; i < count && dtype != ZERO_FP32; i++) {
        uint16_t half =
            dtype == ZERO_BF16 ? bf16_from_float(values[i]) : fp16_from_float(values[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

static zero_status write_tensor(struct exporting *e, int fd, const char *name, uint32_t tensor,
                                struct zero_detail *detail)
{
    uint64_t count = e->layout->tensors[tensor].count;
    struct store_progress *progress = e->options->progress;

    for (uint64_t at = 0, take; at < count; at += take) {
        take = count - at < CHUNK ? count - at : CHUNK;
        const struct store_span span = { STORE_MASTER, tensor, at, take };
        zero_status s = store_read_fp32(e->store, &span, e->values, detail);
        if (zero_failed(s))
            return s;
        narrow(e->values, take, e->options->dtype);
        size_t bytes = take * zero_dtype_bytes(e->options->dtype);
        if (!store_write_all(fd, e->values, bytes))
            return store_refuse_errno(detail, "%s/%s cannot be written", e->options->dir, name);
        if (progress == NULL)
            continue;
        atomic_fetch_add(&progress->bytes, bytes);
        if (atomic_load(&progress->cancel))
            return store_refuse(detail, ZERO_INVALID_STATE, "the export was cancelled");
    }
    return zero_success();
}

static zero_status write_tensors(struct exporting *e, int fd, const char *name, uint32_t file,
                                 struct zero_detail *detail)
{
    size_t bytes = 0;
    char *header = make_header(e, file, &bytes);
    zero_status s = zero_success();

    if (header == NULL)
        return store_refuse(detail, ZERO_NO_MEMORY, "no memory for the header of %s", name);
    if (bytes - 8 > STORE_MOST_HEADER_BYTES)
        s = store_refuse(detail, ZERO_TOO_LARGE,
                         "the header of %s has more than %d bytes, which safetensors does not "
                         "allow: let a file have fewer bytes of tensors",
                         name, STORE_MOST_HEADER_BYTES);
    else if (!store_write_all(fd, header, bytes))
        s = store_refuse_errno(detail, "%s/%s cannot be written", e->options->dir, name);
    free(header);
    for (uint32_t t = e->first[file]; t < e->first[file + 1] && !zero_failed(s); t++)
        s = write_tensor(e, fd, name, t, detail);
    return s;
}

static zero_status make_file(const struct exporting *e, const char *name, int *out_fd,
                             struct zero_detail *detail)
{
    *out_fd = openat(e->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*out_fd < 0)
        return store_refuse_errno(detail, "%s/%s cannot be made", e->options->dir, name);
    return zero_success();
}

/* On the disk, or an error. */
static zero_status end_file(int fd, const char *name, zero_status s, struct zero_detail *detail)
{
    if (!zero_failed(s))
        s = store_sync(fd, name, detail);
    if (close(fd) != 0 && errno != EINTR && !zero_failed(s))
        s = store_refuse_errno(detail, "%s cannot be closed", name);
    return s;
}

static zero_status write_file(struct exporting *e, uint32_t file, struct zero_detail *detail)
{
    char name[MOST_NAME];
    int fd = -1;

    name_file(e, file, true, name);
    zero_status s = make_file(e, name, &fd, detail);
    if (zero_failed(s))
        return s;
    s = write_tensors(e, fd, name, file, detail);
    return end_file(fd, name, s, detail);
}

static zero_status write_index(const struct exporting *e, uint64_t bytes,
                               struct zero_detail *detail)
{
    char name[MOST_NAME], file_name[MOST_NAME];
    int fd = -1;

    snprintf(name, sizeof name, INDEX ".new-%.16s", e->id);
    zero_status s = make_file(e, name, &fd, detail);
    if (zero_failed(s))
        return s;
    FILE *to = fdopen(dup(fd), "w");
    if (to == NULL)
        return end_file(
            fd, name, store_refuse(detail, ZERO_NO_MEMORY, "no memory to write %s", name), detail);
    fprintf(to, "{\"metadata\": {\"total_size\": %" PRIu64 "},\n\"weight_map\": {", bytes);
    for (uint32_t f = 0; f < e->files; f++) {
        name_file(e, f, false, file_name);
        for (uint32_t t = e->first[f]; t < e->first[f + 1]; t++) {
            fputs(t == 0 ? "\n" : ",\n", to);
            store_quote(to, e->layout->tensors[t].name, strlen(e->layout->tensors[t].name));
            fprintf(to, ": \"%s\"", file_name);
        }
    }
    fputs("}}\n", to);
    if (ferror(to) | fclose(to))
        s = store_refuse_errno(detail, "%s/%s cannot be written", e->options->dir, name);
    return end_file(fd, name, s, detail);
}

/* ---- all of it ---- */

static zero_status rename_all(const struct exporting *e, struct zero_detail *detail)
{
    char from[MOST_NAME], to[MOST_NAME];

    for (uint32_t f = 0; f < e->files + (e->files > 1); f++) {
        name_file(e, f, true, from);
        name_file(e, f, false, to);
        if (f == e->files) {
            snprintf(from, sizeof from, INDEX ".new-%.16s", e->id);
            snprintf(to, sizeof to, INDEX);
        }
        if (renameat2(e->dir, from, e->dir, to, RENAME_NOREPLACE) != 0)
            return store_refuse_errno(detail, "%s/%s cannot be renamed", e->options->dir, from);
    }
    return store_sync(e->dir, e->options->dir, detail);
}

/* What a failure leaves; those that are not there are no matter. */
static void remove_all(const struct exporting *e)
{
    char name[MOST_NAME];

    for (uint32_t f = 0; f < e->files; f++) {
        name_file(e, f, true, name);
        unlinkat(e->dir, name, 0);
    }
    snprintf(name, sizeof name, INDEX ".new-%.16s", e->id);
    unlinkat(e->dir, name, 0);
}

static zero_status write_all(struct exporting *e, uint64_t bytes, struct zero_detail *detail)
{
    zero_status s = zero_success();

    for (uint32_t f = 0; f < e->files && !zero_failed(s); f++)
        s = write_file(e, f, detail);
    if (!zero_failed(s) && e->files > 1)
        s = write_index(e, bytes, detail);
    if (!zero_failed(s))
        s = rename_all(e, detail);
    if (zero_failed(s))
        remove_all(e);
    return s;
}

zero_status store_export(struct store *store, const struct store_export *options,
                         struct store_exported *out, struct zero_detail *out_detail)
{
    struct exporting e = { .store = store,
                           .layout = store_facts(store)->info.layout,
                           .options = options,
                           .dir = -1,
                           .values = malloc(CHUNK * sizeof(float)) };
    uint64_t bytes = e.layout->count * zero_dtype_bytes(options->dtype);
    zero_status s;

    if (e.values == NULL) {
        s = store_refuse(out_detail, ZERO_NO_MEMORY, "no memory for a chunk");
        goto out;
    }
    TRY(s, plan_files(&e, out_detail));
    TRY(s, store_random_id(e.id, out_detail));
    TRY(s, store_make_dir(options->dir, out_detail));
    e.dir = open(options->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (e.dir < 0) {
        s = store_refuse_errno(out_detail, "%s cannot be opened", options->dir);
        goto out;
    }
    TRY(s, check_free(&e, out_detail));
    TRY(s, write_all(&e, bytes, out_detail));
    *out = (struct store_exported){ e.files, bytes };
out:
    if (e.dir >= 0)
        close(e.dir);
    free(e.first);
    free(e.values);
    return s;
}
