/* SPDX-License-Identifier: MIT */
#include "daemon/shard/description.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/base/fail.h"

enum { MOST_BYTES = 256 << 20 };

#define MAGIC UINT64_C(0x5a45524f4d4f444c)

struct head {
    uint64_t magic, version;
    uint64_t bytes, hash; /* of what follows */
    uint64_t config_bytes, layers, tensors;
};

/* ---- out ------------------------------------------------------------------------------------ */

static void put(FILE *to, const void *from, size_t bytes)
{
    fwrite(from, 1, bytes, to); /* ferror tells at the end */
}

static void put_text(FILE *to, const char *text)
{
    uint32_t bytes = (uint32_t)strlen(text) + 1;

    put(to, &bytes, sizeof bytes);
    put(to, text, bytes);
}

static void put_layer(FILE *to, const struct zero_layout *layout, const struct zero_layer *layer)
{
    put_text(to, layer->name);
    put(to, &layer->tensor_count, sizeof layer->tensor_count);
    for (uint32_t t = 0; t < layer->tensor_count; t++) {
        const struct zero_tensor *tensor = &layout->tensors[layer->first_tensor + t];
        put_text(to, tensor->name);
        put(to, &tensor->dims, sizeof tensor->dims);
        put(to, tensor->shape, tensor->dims * sizeof *tensor->shape);
        put(to, &tensor->lr_scale, sizeof tensor->lr_scale);
        put(to, &tensor->weight_decay, sizeof tensor->weight_decay);
    }
}

static zero_status write_sealed(const struct head *head, const char *body, int *out_fd)
{
    int fd = memfd_create("zero-model", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t bytes = (size_t)head->bytes, done = 0;

    if (fd < 0)
        return FAIL(SYSTEM, "describe model", "memfd_create: %s", strerror(errno));
    ssize_t n = pwrite(fd, head, sizeof *head, 0);
    while (n > 0 && done < bytes) {
        n = pwrite(fd, body + done, bytes - done, (off_t)(sizeof *head + done));
        done += n > 0 ? (size_t)n : 0;
    }
    if (n <= 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)) {
        zero_status s = FAIL(NO_MEMORY, "describe model", "%zu bytes: %s", bytes, strerror(errno));
        close(fd);
        return s;
    }
    *out_fd = fd;
    return zero_success();
}

zero_status description_write(const struct zero_layout *layout, const char *config,
                              size_t config_bytes, int *out_fd)
{
    char *body = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&body, &bytes);

    if (to == NULL)
        return FAIL(NO_MEMORY, "describe model", "%s", strerror(errno));
    put(to, config, config_bytes);
    for (uint32_t l = 0; l < layout->layer_count; l++)
        put_layer(to, layout, &layout->layers[l]);
    zero_status s;
    if (ferror(to) | fclose(to)) {
        s = FAIL(NO_MEMORY, "describe model", "%u tensors", layout->tensor_count);
    } else {
        const struct head head = { .magic = MAGIC,
                                   .version = DESCRIPTION_VERSION,
                                   .bytes = bytes,
                                   .hash = XXH3_64bits(body, bytes),
                                   .config_bytes = config_bytes,
                                   .layers = layout->layer_count,
                                   .tensors = layout->tensor_count };
        s = write_sealed(&head, body, out_fd);
    }
    free(body);
    return s;
}

/* ---- in ------------------------------------------------------------------------------------- */

/* What is left to read; everything is checked although the hash was right. */
struct cursor {
    const char *at, *end;
    bool broken;
};

static const void *get(struct cursor *from, size_t bytes)
{
    if (from->broken || (size_t)(from->end - from->at) < bytes) {
        from->broken = true;
        return NULL;
    }
    const void *part = from->at;
    from->at += bytes;
    return part;
}

static void get_into(struct cursor *from, void *to, size_t bytes)
{
    const void *part = get(from, bytes);

    if (part != NULL)
        memcpy(to, part, bytes);
    else
        memset(to, 0, bytes);
}

static const char *get_text(struct cursor *from)
{
    uint32_t bytes;

    get_into(from, &bytes, sizeof bytes);
    const char *text = get(from, bytes);
    if (text == NULL || bytes == 0 || text[bytes - 1] != '\0') {
        from->broken = true;
        return "";
    }
    return text;
}

struct specs {
    struct zero_layer_spec *layers;
    struct zero_tensor_spec *tensors;
    uint64_t (*shapes)[ZERO_MAX_DIMS];
    size_t layer_count, tensor_count, next;
};

static void get_tensor(struct cursor *from, struct specs *specs)
{
    struct zero_tensor_spec *tensor = &specs->tensors[specs->next];
    uint64_t *shape = specs->shapes[specs->next++];

    tensor->name = get_text(from);
    get_into(from, &tensor->dims, sizeof tensor->dims);
    from->broken = from->broken || tensor->dims > ZERO_MAX_DIMS;
    if (!from->broken)
        get_into(from, shape, tensor->dims * sizeof *shape);
    tensor->shape = shape;
    get_into(from, &tensor->lr_scale, sizeof tensor->lr_scale);
    get_into(from, &tensor->weight_decay, sizeof tensor->weight_decay);
}

static void get_layers(struct cursor *from, struct specs *specs)
{
    for (size_t l = 0; l < specs->layer_count && !from->broken; l++) {
        struct zero_layer_spec *layer = &specs->layers[l];
        uint32_t count;
        layer->name = get_text(from);
        get_into(from, &count, sizeof count);
        if (count > specs->tensor_count - specs->next)
            from->broken = true;
        layer->tensors = &specs->tensors[specs->next];
        layer->tensor_count = count;
        for (uint32_t t = 0; t < count && !from->broken; t++)
            get_tensor(from, specs);
    }
    from->broken = from->broken || specs->next != specs->tensor_count || from->at != from->end;
}

static zero_status lay_out(const struct head *head, const char *body, uint32_t world,
                           zero_dtype dtype, struct zero_layout **out)
{
    struct cursor from = { body + head->config_bytes, body + head->bytes, false };
    struct specs specs = { .layer_count = (size_t)head->layers,
                           .tensor_count = (size_t)head->tensors };
    struct zero_detail detail = { "" };
    zero_status s;

    specs.layers = calloc(specs.layer_count + 1, sizeof *specs.layers);
    specs.tensors = calloc(specs.tensor_count + 1, sizeof *specs.tensors);
    specs.shapes = calloc(specs.tensor_count + 1, sizeof *specs.shapes);
    if (!specs.layers || !specs.tensors || !specs.shapes) {
        s = FAIL(NO_MEMORY, "read model", "%" PRIu64 " tensors", head->tensors);
        goto out;
    }
    get_layers(&from, &specs);
    if (from.broken) {
        s = FAIL(CORRUPT, "read model", "its layers do not fit what it says about them");
        goto out;
    }
    const struct zero_layout_spec spec = { specs.layers, specs.layer_count, world, dtype };
    s = zero_layout_create(&spec, out, &detail);
    if (zero_failed(s))
        s = FAIL(CORRUPT, "read model", "%s", detail.text);
out:
    free(specs.layers);
    free(specs.tensors);
    free(specs.shapes);
    return s;
}

static zero_status check(const struct head *head, size_t bytes)
{
    if (head->magic != MAGIC)
        return FAIL(CORRUPT, "read model", "this is no model of zerod");
    if (head->version != DESCRIPTION_VERSION)
        return FAIL(VERSION, "read model",
                    "a zerod with model version %" PRIu64 " wrote it, this one has version %d: "
                    "start the version that wrote it, or restore a checkpoint",
                    head->version, DESCRIPTION_VERSION);
    if (head->bytes != bytes - sizeof *head || head->config_bytes > head->bytes ||
        head->layers > ZERO_MAX_LAYERS || head->tensors > ZERO_MAX_TENSORS ||
        XXH3_64bits(head + 1, bytes - sizeof *head) != head->hash)
        return FAIL(CORRUPT, "read model", "it does not check out");
    return zero_success();
}

/* Maps a description that checks out, to be unmapped; NULL with the reason. */
static const struct head *open_description(int fd, size_t *out_bytes, zero_status *out_why)
{
    struct stat stat;

    if (fstat(fd, &stat) != 0 || stat.st_size < (off_t)sizeof(struct head) ||
        stat.st_size > MOST_BYTES) {
        *out_why = FAIL(CORRUPT, "read model", "what the holder kept is no model");
        return NULL;
    }
    size_t bytes = (size_t)stat.st_size;
    struct head *head = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (head == MAP_FAILED) {
        *out_why = FAIL(NO_MEMORY, "read model", "%zu bytes: %s", bytes, strerror(errno));
        return NULL;
    }
    *out_bytes = bytes;
    *out_why = check(head, bytes);
    if (!zero_failed(*out_why))
        return head;
    munmap(head, bytes);
    return NULL;
}

zero_status description_read(int fd, uint32_t world, struct zero_layout **out_layout,
                             struct zero_config *out_config)
{
    struct zero_detail detail = { "" };
    size_t bytes = 0;
    zero_status s;
    const struct head *head = open_description(fd, &bytes, &s);

    if (head == NULL)
        return s;
    const char *body = (const char *)(head + 1);
    s = zero_config_parse(body, (size_t)head->config_bytes, world, out_config, &detail);
    if (zero_failed(s)) {
        s = FAIL(CORRUPT, "read model", "its config: %s", detail.text);
        goto out;
    }
    s = lay_out(head, body, world, out_config->param_dtype, out_layout);
out:
    munmap((void *)(uintptr_t)head, bytes);
    return s;
}

zero_status description_config(int fd, char **out, size_t *out_bytes)
{
    size_t bytes = 0;
    zero_status s;
    const struct head *head = open_description(fd, &bytes, &s);

    if (head == NULL)
        return s;
    *out_bytes = (size_t)head->config_bytes;
    *out = malloc(*out_bytes + 1);
    if (*out == NULL)
        s = FAIL(NO_MEMORY, "read model", "%zu bytes of config", *out_bytes);
    else
        memcpy(*out, head + 1, *out_bytes);
    munmap((void *)(uintptr_t)head, bytes);
    return s;
}
