/* SPDX-License-Identifier: MIT */
/* zeroctl checkpoint export, import */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "client/ctl/checkpoint.h"
#include "client/ctl/file.h"
#include "client/ctl/layers.h"
#include "client/ctl/meter.h"
#include "client/ctl/text.h"
#include "daemon/store/export.h"
#include "daemon/store/import.h"
#include "daemon/store/models.h"

/* ---- export ---- */

int checkpoint_export(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    struct store_exported exported = { .files = 0 };
    struct store *store = NULL;
    struct meter meter;
    zero_status s = store_open(o->words[0], &store, &detail);

    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    const struct store_export options = { o->words[1], o->dtype, o->max_shard, &meter.progress };
    uint64_t bytes = store_facts(store)->info.layout->count * zero_dtype_bytes(o->dtype);
    meter_begin(&meter, "export", bytes);
    s = store_export(store, &options, &exported, &detail);
    meter_end(&meter);
    store_close(store);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    printf("%s: %s of %s in %" PRIu32 " file%s\n", o->words[1], text_bytes(exported.bytes).text,
           zero_dtype_name(o->dtype), exported.files, exported.files == 1 ? "" : "s");
    return EXIT_GOOD;
}

/* ---- import ---- */

/* Another checkpoint's layers, for one rank and in fp32. */
static zero_status layout_of_store(const char *path, struct zero_layout **out,
                                   struct zero_detail *detail)
{
    struct store *store = NULL;
    zero_status s = store_open(path, &store, detail);

    if (zero_failed(s))
        return s;
    s = store_layout_again(store_facts(store)->info.layout, 1, ZERO_FP32, out, detail);
    store_close(store);
    return s;
}

static int layout_of_file(const char *path, struct zero_layout **out)
{
    enum { MOST_BYTES = 16 << 20 };
    struct zero_detail detail = { "" };
    struct layers layers;
    char *text = NULL;
    size_t bytes = 0;
    int code = file_read(path, MOST_BYTES, &text, &bytes);

    if (code != EXIT_GOOD)
        return code;
    zero_status s = layers_read(text, bytes, &layers, &detail);
    if (!zero_failed(s)) {
        const struct zero_layout_spec spec = { layers.specs, layers.count, 1, ZERO_FP32 };
        s = zero_layout_create(&spec, out, &detail);
        layers_deinit(&layers);
    }
    free(text);
    return zero_failed(s)
               ? complain(EXIT_BAD, "%s: %s: %s", path, zero_code_name(s.code), detail.text)
               : EXIT_GOOD;
}

static int find_layout(const char *model, const struct store_tensors *tensors,
                       struct zero_layout **out)
{
    struct zero_detail detail = { "" };
    struct stat what;

    if (model != NULL && (stat(model, &what) != 0 || !S_ISDIR(what.st_mode)))
        return layout_of_file(model, out);
    zero_status s = model == NULL ? store_import_layout(tensors, out, &detail)
                                  : layout_of_store(model, out, &detail);
    return zero_failed(s) ? checkpoint_complain(s, &detail) : EXIT_GOOD;
}

static int import(const struct checkpoint_options *o, const struct store_tensors *tensors,
                  const struct zero_layout *layout)
{
    struct zero_detail detail = { "" };
    struct meter meter;
    struct store_imported imported = { .progress = &meter.progress };

    meter_begin(&meter, "import", layout->flat_total * sizeof(float));
    zero_status s = store_import(tensors, layout, o->out, &imported, &detail);
    meter_end(&meter);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    printf("%s: %" PRIu64 " parameters in %" PRIu32 " layers\n", imported.path, layout->count,
           layout->layer_count);
    if (imported.unused > 0)
        printf("%zu tensors of the files are not in the model and were left out\n",
               imported.unused);
    return EXIT_GOOD;
}

int checkpoint_import(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    struct zero_layout *layout = NULL;
    struct store_tensors tensors;

    if (o->out == NULL)
        return complain(EXIT_USAGE, "where to? --out DIR");
    zero_status s = store_tensors_open(o->words, o->count, &tensors, &detail);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    int code = find_layout(o->model, &tensors, &layout);
    if (code == EXIT_GOOD && layout != NULL)
        code = import(o, &tensors, layout);
    zero_layout_destroy(layout);
    store_tensors_close(&tensors);
    return code;
}
