/* SPDX-License-Identifier: MIT */
/* No manifest, record or safetensors header makes the reader of checkpoints read or write where it
 * must not, or accept what it could not use. The first byte says which of the three it is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/store/manifest.h"
#include "daemon/store/part.h"
#include "daemon/store/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void demand(bool fact)
{
    if (!fact)
        abort();
}

static void check_detail(zero_status s, const struct zero_detail *detail)
{
    if (!zero_failed(s))
        return;
    demand(detail->text[0] != '\0');
    for (const char *at = detail->text; *at != '\0'; at++)
        demand(*at >= ' ' && *at < 0x7f); /* safe on a terminal */
}

static void manifest(const struct store_file *file)
{
    struct zero_detail detail = { "" };
    struct store_manifest m;
    zero_status s = store_manifest_parse(file, &m, &detail);

    check_detail(s, &detail);
    if (zero_failed(s))
        return;
    demand(m.layout != NULL && m.layout->world == m.world && m.world <= ZERO_MAX_WORLD);
    demand(m.config != NULL && strlen(m.config) == m.config_bytes);
    demand(store_states_allowed(m.dtype, m.states));
    store_manifest_deinit(&m);
}

/* Of a model whose record is small. */
static const struct zero_layout *small_layout(void)
{
    static const uint64_t shape[] = { 30, 90 };
    static const struct zero_tensor_spec tensor = { "a", shape, 2, 1, 0 };
    static const struct zero_layer_spec layer = { "only", &tensor, 1 };
    static const struct zero_layout_spec spec = { &layer, 1, 2, ZERO_BF16 };
    static struct zero_layout *layout;
    struct zero_detail detail;

    if (layout == NULL)
        demand(!zero_failed(zero_layout_create(&spec, &layout, &detail)));
    return layout;
}

static void record(const struct store_file *file)
{
    const struct zero_layout *layout = small_layout();
    struct store_record r = { .rank = 0 };
    struct zero_detail detail = { "" };
    zero_status s = store_record_parse(file, layout, &r, &detail);

    check_detail(s, &detail);
    if (!zero_failed(s)) {
        demand(r.rank == 0 && r.blob_bytes <= STORE_MOST_BLOB);
        demand(r.sum_count == store_blocks_of(r.file_bytes));
        demand(r.file_bytes == r.header_bytes + store_data_bytes(layout, r.states));
    }
    store_record_deinit(&r);
}

static void header(const struct store_file *file)
{
    struct zero_detail detail = { "" };
    struct store_tensors tensors = { .file_count = 1 };

    tensors.files = calloc(1, sizeof *tensors.files);
    demand(tensors.files != NULL);
    tensors.files[0].path = strdup("file");
    tensors.files[0].file = *file;
    tensors.files[0].file.fd = dup(file->fd);
    zero_status s = store_tensors_add(&tensors, 0, &detail);
    check_detail(s, &detail);
    uint64_t bytes = 0;
    for (size_t t = 0; t < tensors.count && !zero_failed(s); t++)
        bytes += tensors.tensors[t].end - tensors.tensors[t].begin;
    demand(zero_failed(s) || bytes == file->bytes - tensors.files[0].data);
    for (size_t t = 0; t < tensors.count && !zero_failed(s); t++) {
        struct zero_range all = { 0, tensors.tensors[t].count };
        float *values = malloc(all.end * sizeof *values + 1);
        demand(values != NULL);
        check_detail(store_tensors_read(&tensors, &tensors.tensors[t], all, values, &detail),
                     &detail);
        free(values);
    }
    store_tensors_close(&tensors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;

    if (size == 0)
        return 0;
    if (fd < 0)
        fd = memfd_create("fuzz", 0);
    demand(fd >= 0 && ftruncate(fd, 0) == 0);
    demand(pwrite(fd, data + 1, size - 1, 0) == (ssize_t)(size - 1));
    const struct store_file file = { fd, "file", size - 1 };
    switch (data[0] % 3) {
    case 0:
        manifest(&file);
        break;
    case 1:
        record(&file);
        break;
    default:
        header(&file);
        break;
    }
    return 0;
}
