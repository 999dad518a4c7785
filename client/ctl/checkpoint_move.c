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
#include "client/zerocheckpoint.h"

/* ---- export ---- */

int checkpoint_export(const struct checkpoint_options *o)
{
    struct zero_detail detail = { "" };
    struct zero_exported exported = { .files = 0 };
    struct meter meter;
    const struct zero_export_options options = { .path = o->words[0],
                                                 .dir = o->words[1],
                                                 .dtype = o->dtype,
                                                 .max_file_bytes = o->max_shard,
                                                 .progress = &meter.progress };

    meter_begin(&meter, "export");
    zero_status s = zero_checkpoint_export(&options, &exported, &detail);
    meter_end(&meter);
    if (zero_failed(s))
        return checkpoint_refuse(o->words[0], s, &detail);
    printf("%s: %s of %s in %" PRIu32 " file%s\n", o->words[1], text_bytes(exported.bytes).text,
           zero_dtype_name(o->dtype), exported.files, exported.files == 1 ? "" : "s");
    return EXIT_GOOD;
}

/* ---- import ---- */

static int read_layers(const char *path, struct layers *out)
{
    enum { MOST_BYTES = 16 << 20 };
    struct zero_detail detail = { "" };
    char *text = NULL;
    size_t bytes = 0;
    int code = file_read(path, MOST_BYTES, &text, &bytes);

    if (code != EXIT_GOOD)
        return code;
    zero_status s = layers_read(text, bytes, out, &detail);
    free(text);
    return zero_failed(s)
               ? complain(EXIT_BAD, "%s: %s: %s", path, zero_code_name(s.code), detail.text)
               : EXIT_GOOD;
}

static int import(struct zero_import_options options)
{
    struct zero_detail detail = { "" };
    struct zero_imported imported;
    struct meter meter;

    options.progress = &meter.progress;
    meter_begin(&meter, "import");
    zero_status s = zero_checkpoint_import(&options, &imported, &detail);
    meter_end(&meter);
    if (zero_failed(s))
        return checkpoint_complain(s, &detail);
    printf("%s: %" PRIu64 " parameters in %" PRIu32 " layers\n", imported.path.text,
           imported.parameters, imported.layers);
    if (imported.unused > 0)
        printf("%zu tensors of the files are not in the model and were left out\n",
               imported.unused);
    return EXIT_GOOD;
}

int checkpoint_import(const struct checkpoint_options *o)
{
    struct zero_import_options options = { .files = (const char *const *)o->words,
                                           .file_count = o->count,
                                           .dir = o->out };
    struct layers layers = { .count = 0 };
    struct stat what;

    if (o->out == NULL)
        return complain(EXIT_USAGE, "where to? --out DIR");
    if (o->model != NULL && stat(o->model, &what) == 0 && S_ISDIR(what.st_mode)) {
        options.model = o->model;
        return import(options);
    }
    int code = o->model != NULL ? read_layers(o->model, &layers) : EXIT_GOOD;
    options.layers = layers.specs;
    options.layer_count = layers.count;
    if (code == EXIT_GOOD)
        code = import(options);
    layers_deinit(&layers);
    return code;
}
