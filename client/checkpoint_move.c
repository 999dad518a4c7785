/* SPDX-License-Identifier: MIT */
/* Checkpoints and other people's files: export, import. */
#include <string.h>

#include "client/checkpoint.h"
#include "daemon/store/error.h"
#include "daemon/store/export.h"
#include "daemon/store/import.h"
#include "daemon/store/models.h"

/* ---- export --------------------------------------------------------------------------------- */

static zero_status check_export(const struct zero_export_options *options,
                                struct zero_detail *detail)
{
    zero_status s = checkpoint_need(options, "options", detail);

    if (!zero_failed(s))
        s = checkpoint_need(options->path, "options.path", detail);
    if (!zero_failed(s))
        s = checkpoint_need(options->dir, "options.dir", detail);
    if (!zero_failed(s) && (unsigned)options->dtype >= ZERO_DTYPES)
        s = store_refuse(detail, ZERO_INVALID_ARGUMENT,
                         "dtype %d is none of ZERO_FP32, ZERO_BF16 and ZERO_FP16",
                         (int)options->dtype);
    return s;
}

zero_status zero_checkpoint_export(const struct zero_export_options *options,
                                   struct zero_exported *out, struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    struct store_exported exported;
    struct store *store = NULL;
    zero_status s = check_export(options, detail);

    if (!zero_failed(s))
        s = store_open(options->path, &store, detail);
    if (zero_failed(s))
        return s;
    uint64_t bytes = store_facts(store)->info.layout->count * zero_dtype_bytes(options->dtype);
    const struct store_export wish = { options->dir, options->dtype, options->max_file_bytes,
                                       checkpoint_progress(options->progress, bytes) };
    s = store_export(store, &wish, &exported, detail);
    store_close(store);
    if (!zero_failed(s) && out != NULL)
        *out = (struct zero_exported){ exported.files, exported.bytes };
    return s;
}

/* ---- import --------------------------------------------------------------------------------- */

static zero_status check_import(const struct zero_import_options *options,
                                struct zero_detail *detail)
{
    zero_status s = checkpoint_need(options, "options", detail);

    if (!zero_failed(s))
        s = checkpoint_need(options->dir, "options.dir", detail);
    if (!zero_failed(s))
        s = checkpoint_need(options->files, "options.files", detail);
    for (size_t i = 0; !zero_failed(s) && i < options->file_count; i++)
        s = checkpoint_need(options->files[i], "one of options.files", detail);
    if (!zero_failed(s) && options->file_count == 0)
        s = store_refuse(detail, ZERO_INVALID_ARGUMENT, "no file to import");
    if (!zero_failed(s) && options->model != NULL && options->layers != NULL)
        s = store_refuse(detail, ZERO_INVALID_ARGUMENT,
                         "both model and layers are given: one is enough");
    return s;
}

/* Another checkpoint's layers, for one rank and in fp32. */
static zero_status layout_of_checkpoint(const char *path, struct zero_layout **out,
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

static zero_status find_layout(const struct zero_import_options *options,
                               const struct store_tensors *tensors, struct zero_layout **out,
                               struct zero_detail *detail)
{
    const struct zero_layout_spec spec = { options->layers, options->layer_count, 1, ZERO_FP32 };

    if (options->model != NULL)
        return layout_of_checkpoint(options->model, out, detail);
    if (options->layers != NULL)
        return zero_layout_create(&spec, out, detail);
    return store_import_layout(tensors, out, detail);
}

static zero_status import(const struct zero_import_options *options,
                          const struct store_tensors *tensors, struct zero_imported *out,
                          struct zero_detail *detail)
{
    struct zero_layout *layout = NULL;
    zero_status s = find_layout(options, tensors, &layout, detail);

    if (zero_failed(s))
        return s;
    struct store_imported imported = { .progress = checkpoint_progress(
                                           options->progress, layout->flat_total * sizeof(float)) };
    s = store_import(tensors, layout, options->dir, &imported, detail);
    if (!zero_failed(s) && out != NULL) {
        memcpy(out->path.text, imported.path, sizeof out->path.text);
        out->parameters = layout->count;
        out->layers = layout->layer_count;
        out->unused = imported.unused;
    }
    zero_layout_destroy(layout);
    return s;
}

zero_status zero_checkpoint_import(const struct zero_import_options *options,
                                   struct zero_imported *out, struct zero_detail *out_detail)
{
    struct zero_detail unheard, *detail = out_detail != NULL ? out_detail : &unheard;
    struct store_tensors tensors;
    zero_status s = check_import(options, detail);

    if (!zero_failed(s))
        s = store_tensors_open((char *const *)(uintptr_t)options->files, options->file_count,
                               &tensors, detail);
    if (zero_failed(s))
        return s;
    s = import(options, &tensors, out, detail);
    store_tensors_close(&tensors);
    return s;
}
