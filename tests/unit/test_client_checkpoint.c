/* SPDX-License-Identifier: MIT */
/* The calls of zerocheckpoint.h with everything that may be left out, with what may not, cancelled,
 * and with a daemon that says anything. */
#include <sys/stat.h>

#include "client/zerocheckpoint.h"
#include "tests/unit/fake_daemon.h"
#include "tests/unit/store_sample.h"

static struct zero_detail detail;

static void expect(zero_status s, zero_code code, const char *part)
{
    CHECK(s.code == code);
    if (s.code != code)
        fprintf(stderr, "wanted %s, got %s\n", zero_code_name(code), zero_code_name(s.code));
    CHECK_CONTAINS(detail.text, part);
    detail.text[0] = '\0';
}

/* ---- arguments ---- */

static void what_is_missing_is_said(const char *dir)
{
    const char *const none[] = { NULL };
    struct zero_checkpoints list;
    struct zero_import_options import = { .files = none, .file_count = 1, .dir = dir };
    struct zero_export_options export = { .path = dir };
    uint64_t number = 0;

    expect(zero_checkpoint_list(NULL, &list, &detail), ZERO_INVALID_ARGUMENT, "dir is NULL");
    expect(zero_checkpoint_list(dir, NULL, &detail), ZERO_INVALID_ARGUMENT, "out is NULL");
    expect(zero_checkpoint_prune(NULL, 1, NULL, &detail), ZERO_INVALID_ARGUMENT, "dir is NULL");
    expect(zero_checkpoint_verify(NULL, NULL, NULL, &detail), ZERO_INVALID_ARGUMENT,
           "path is NULL");
    expect(zero_checkpoint_export(NULL, NULL, &detail), ZERO_INVALID_ARGUMENT, "options is NULL");
    expect(zero_checkpoint_export(&export, NULL, &detail), ZERO_INVALID_ARGUMENT, "dir is NULL");
    export.dir = dir;
    export.dtype = (zero_dtype)3;
    expect(zero_checkpoint_export(&export, NULL, &detail), ZERO_INVALID_ARGUMENT, "dtype 3");
    export.path = NULL;
    expect(zero_checkpoint_export(&export, NULL, &detail), ZERO_INVALID_ARGUMENT, "path is NULL");
    expect(zero_checkpoint_import(NULL, NULL, &detail), ZERO_INVALID_ARGUMENT, "options is NULL");
    expect(zero_checkpoint_import(&import, NULL, &detail), ZERO_INVALID_ARGUMENT, "one of");
    import.file_count = 0;
    expect(zero_checkpoint_import(&import, NULL, &detail), ZERO_INVALID_ARGUMENT, "no file");
    import.dir = NULL;
    expect(zero_checkpoint_import(&import, NULL, &detail), ZERO_INVALID_ARGUMENT, "dir is NULL");
    expect(zero_checkpoint_begin(NULL, NULL, &detail), ZERO_INVALID_ARGUMENT, "out is NULL");
    expect(zero_checkpoint_wait(NULL, 0, NULL, &detail), ZERO_INVALID_ARGUMENT, "saving is NULL");
    expect(zero_checkpoint_look(NULL, &number, &number, &detail), ZERO_INVALID_ARGUMENT,
           "saving is NULL");
    CHECK(zero_progress_create(NULL).code == ZERO_INVALID_ARGUMENT);
    CHECK(zero_checkpoint_list(dir, NULL, NULL).code == ZERO_INVALID_ARGUMENT);
    zero_checkpoint_leave(NULL);
    zero_progress_destroy(NULL);
}

/* ---- files ---- */

/* Everything that may be NULL is. */
static void little_is_needed(const char *dir, const char *path)
{
    static const uint64_t shape[] = { 30, 90 }, seven[] = { 7 };
    static const struct zero_tensor_spec tensors[] = { { "b", seven, 1, 1, NAN },
                                                       { "a", shape, 2, 1, NAN } };
    static const struct zero_layer_spec layers[] = { { "mine", tensors, 2 } };
    char out[PATH_MAX + 8], in[PATH_MAX + 16];
    struct zero_checkpoints list = { NULL, 0 };

    snprintf(out, sizeof out, "%s/out", dir);
    snprintf(in, sizeof in, "%s/in", dir);
    const char *const files[] = { out };
    struct zero_export_options export = { .path = path, .dir = out };
    struct zero_import_options import = { .files = files, .file_count = 1, .dir = in };
    CHECK(!zero_failed(zero_checkpoint_verify(path, NULL, NULL, NULL)));
    CHECK(!zero_failed(zero_checkpoint_export(&export, NULL, NULL)));
    import.layers = layers;
    import.layer_count = 1;
    import.model = path;
    expect(zero_checkpoint_import(&import, NULL, &detail), ZERO_INVALID_ARGUMENT, "both");
    import.model = NULL;
    CHECK(!zero_failed(zero_checkpoint_import(&import, NULL, NULL)));
    CHECK(!zero_failed(zero_checkpoint_list(in, &list, NULL)));
    CHECK(list.count == 1 && list.entries[0].complete && list.entries[0].step == 0 &&
          list.entries[0].world == 1 && list.entries[0].why == NULL);
    zero_checkpoint_list_deinit(&list);
    CHECK(list.count == 0 && list.entries == NULL);
    zero_checkpoint_list_deinit(&list);

    struct store *store = NULL; /* in the order that was asked for */
    snprintf(in, sizeof in, "%s/in/step-0", dir);
    CHECK(!zero_failed(store_open(in, &store, &detail)));
    CHECK(strcmp(store_facts(store)->info.layout->tensors[0].name, "b") == 0);
    float value = -1;
    const struct store_span span = { STORE_MASTER, 1, 5, 1 };
    CHECK(!zero_failed(store_read_fp32(store, &span, &value, &detail)));
    CHECK(value == sample_value(STORE_MASTER, 0, 5, 1));
    store_close(store);
    CHECK(!zero_failed(zero_checkpoint_prune(dir, 1, NULL, NULL)));
}

static void progress_is_told(const char *dir, const char *path)
{
    char out[PATH_MAX + 8];
    zero_progress *progress = NULL;
    uint64_t bytes = 1, total = 1;
    struct zero_verified verified = { 0 };

    CHECK(!zero_failed(zero_progress_create(&progress)));
    zero_progress_look(progress, &bytes, &total);
    CHECK(bytes == 0 && total == 0);
    const struct zero_verify_watch watch = { .progress = progress };
    for (int again = 0; again < 2; again++) {
        CHECK(!zero_failed(zero_checkpoint_verify(path, &watch, &verified, NULL)));
        zero_progress_look(progress, &bytes, &total);
        CHECK(bytes == total && bytes == verified.bytes && bytes > 0);
    }
    snprintf(out, sizeof out, "%s/half", dir);
    struct zero_exported exported = { 0 };
    const struct zero_export_options export = {
        .path = path, .dir = out, .dtype = ZERO_BF16, .progress = progress
    };
    CHECK(!zero_failed(zero_checkpoint_export(&export, &exported, NULL)));
    zero_progress_look(progress, &bytes, &total);
    CHECK(bytes == total && bytes == exported.bytes && bytes == UINT64_C(2707) * 2);
    const char *const files[] = { out };
    struct zero_imported imported = { .parameters = 0 };
    const struct zero_import_options import = {
        .files = files, .file_count = 1, .dir = out, .progress = progress
    };
    CHECK(!zero_failed(zero_checkpoint_import(&import, &imported, NULL)));
    zero_progress_look(progress, &bytes, &total);
    CHECK(bytes == total && bytes >= imported.parameters * 4 && imported.parameters == 2707);
    zero_progress_destroy(progress);
}

static void what_is_cancelled_leaves_nothing(const char *dir, const char *path)
{
    char out[PATH_MAX + 8], file[PATH_MAX + 40];
    zero_progress *progress = NULL;
    struct stat what;

    CHECK(!zero_failed(zero_progress_create(&progress)));
    zero_progress_cancel(progress);
    const struct zero_verify_watch watch = { .progress = progress };
    expect(zero_checkpoint_verify(path, &watch, NULL, &detail), ZERO_INVALID_STATE, "cancelled");
    snprintf(out, sizeof out, "%s/not", dir);
    const struct zero_export_options export = { .path = path, .dir = out, .progress = progress };
    expect(zero_checkpoint_export(&export, NULL, &detail), ZERO_INVALID_STATE, "cancelled");
    CHECK(rmdir(out) == 0);
    snprintf(file, sizeof file, "%s/half/model.safetensors", dir);
    const char *const files[] = { file };
    const struct zero_import_options import = {
        .files = files, .file_count = 1, .dir = out, .progress = progress
    };
    expect(zero_checkpoint_import(&import, NULL, &detail), ZERO_INVALID_STATE, "cancelled");
    CHECK(rmdir(out) == 0 && stat(path, &what) == 0);
    zero_progress_destroy(progress);
}

static void on_problem(void *context, const char *text)
{
    (*(int *)context)++;
    CHECK_CONTAINS(text, "rank-");
}

/* The detail is the first problem; the rest is told one by one. */
static void damage_is_told(const char *path)
{
    char name[PATH_MAX + 40];
    int told = 0;
    const struct zero_verify_watch watch = { .problem = on_problem, .context = &told };
    struct zero_verified verified = { 0 };

    for (int rank = 0; rank < 2; rank++) {
        snprintf(name, sizeof name, "%s/rank-%d.safetensors", path, rank);
        FILE *file = fopen(name, "r+b");
        CHECK(file != NULL && fseek(file, 5000, SEEK_SET) == 0 && fputc(1, file) == 1);
        fclose(file);
    }
    expect(zero_checkpoint_verify(path, &watch, &verified, &detail), ZERO_CORRUPT, "rank-0");
    CHECK(told == 2 && verified.problems == 2 && verified.bytes > 0);
    CHECK(zero_checkpoint_verify(path, NULL, NULL, NULL).code == ZERO_CORRUPT);
}

static void files(void)
{
    char dir[PATH_MAX], path[PATH_MAX];
    struct zero_layout *layout = NULL;

    sample_dir(dir);
    CHECK(!zero_failed(sample_tiny_layout(2, ZERO_BF16, &layout)));
    const struct sample sample = { layout, sample_states(ZERO_BF16), 3, 1 };
    CHECK(!zero_failed(sample_save(&sample, dir, path, &detail)));
    what_is_missing_is_said(dir);
    little_is_needed(dir, path);
    progress_is_told(dir, path);
    what_is_cancelled_leaves_nothing(dir, path);
    damage_is_told(path);
    zero_layout_destroy(layout);
    sample_remove(dir);
}

/* ---- daemons ---- */

static bool ends_well(struct fake *fake, enum zero_frame_type type)
{
    static uint8_t path[] = "/ck/step-7";
    Zero__V1__SaveLook look = ZERO__V1__SAVE_LOOK__INIT;
    Zero__V1__SaveEnded ended = ZERO__V1__SAVE_ENDED__INIT;

    if (type == ZERO_FRAME_SAVE_BEGIN)
        return true;
    look.bytes = 5;
    look.total = 9;
    fake_say(fake, ZERO_FRAME_SAVE_LOOK, &look);
    if (++fake->served < 2)
        return true;
    ended.path.data = path;
    ended.path.len = sizeof path - 1;
    fake_say(fake, ZERO_FRAME_SAVE_ENDED, &ended);
    return true;
}

static bool names_nothing(struct fake *fake, enum zero_frame_type type)
{
    Zero__V1__SaveEnded ended = ZERO__V1__SAVE_ENDED__INIT;

    if (type == ZERO_FRAME_SAVE_LOOK)
        fake_say(fake, ZERO_FRAME_SAVE_ENDED, &ended);
    return true;
}

static bool says_something_else(struct fake *fake, enum zero_frame_type type)
{
    if (type == ZERO_FRAME_SAVE_LOOK)
        fake_say(fake, ZERO_FRAME_WELCOME, &fake->welcome);
    return true;
}

static bool refuses(struct fake *fake, enum zero_frame_type type)
{
    char text[] = "another save is on its way, into /ck";
    Zero__V1__Error error = ZERO__V1__ERROR__INIT;

    error.code = ZERO_BUSY;
    error.text = text;
    if (type == ZERO_FRAME_SAVE_BEGIN)
        fake_say(fake, ZERO_FRAME_ERROR, &error);
    return true;
}

static bool dies(struct fake *fake, enum zero_frame_type type)
{
    (void)fake;
    return type != ZERO_FRAME_SAVE_LOOK;
}

static bool is_silent(struct fake *fake, enum zero_frame_type type)
{
    (void)fake;
    (void)type;
    return true;
}

static zero_saving *begin(struct fake *fake,
                          bool (*save)(struct fake *fake, enum zero_frame_type type))
{
    zero_saving *saving = NULL;

    fake_init(fake);
    fake->save = save;
    fake_start(fake);
    const struct zero_save_options options = { .socket = fake->path, .dir = "/ck" };
    CHECK(!zero_failed(zero_checkpoint_begin(&options, &saving, &detail)));
    return saving;
}

static void finish(struct fake *fake, zero_saving *saving)
{
    zero_checkpoint_leave(saving);
    fake_join(fake);
    fake_close(fake);
}

static void a_save_that_ends_well(void)
{
    struct fake fake;
    struct zero_path path = { "untouched" };
    zero_saving *saving = begin(&fake, ends_well);
    uint64_t bytes = 0, total = 0;

    expect(zero_checkpoint_wait(saving, 10, &path, &detail), ZERO_DEADLINE, "10 ms");
    CHECK(strcmp(path.text, "untouched") == 0);
    CHECK(!zero_failed(zero_checkpoint_look(saving, &bytes, &total, NULL)));
    CHECK(bytes == 5 && total == 9);
    for (int again = 0; again < 2; again++) {
        CHECK(!zero_failed(zero_checkpoint_wait(saving, 60000, &path, NULL)));
        CHECK(strcmp(path.text, "/ck/step-7") == 0);
        CHECK(!zero_failed(zero_checkpoint_look(saving, &bytes, &total, NULL)));
        CHECK(bytes == 0 && total == 0);
    }
    finish(&fake, saving);
}

static void saves_that_do_not(void)
{
    static const struct {
        bool (*save)(struct fake *fake, enum zero_frame_type type);
        zero_code code;
        const char *part;
    } rows[] = { { names_nothing, ZERO_PROTOCOL, "not what" },
                 { says_something_else, ZERO_PROTOCOL, "no answer" },
                 { refuses, ZERO_BUSY, "another save is on its way, into /ck" },
                 { dies, ZERO_DAEMON_LOST, "save again" } };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fake fake;
        zero_saving *saving = begin(&fake, rows[i].save);
        for (int again = 0; again < 2; again++)
            expect(zero_checkpoint_wait(saving, 60000, NULL, &detail), rows[i].code, rows[i].part);
        finish(&fake, saving);
    }
}

static void daemons_that_are_silent(void)
{
    struct fake fake;
    zero_saving *saving = NULL;

    fake_init(&fake);
    fake.save = is_silent;
    fake.clients = 2;
    fake_start(&fake);
    const struct zero_save_options options = { fake.path, "/ck", 100 };
    expect(zero_checkpoint_begin(&options, &saving, &detail), ZERO_DAEMON_SILENT, "stopped");
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_DAEMON_SILENT, "stopped");
    CHECK(saving == NULL);
    fake_join(&fake);
    fake_close(&fake);
}

/* Rank 0 is asked, whichever rank's socket is known; a folder is named as the program sees it. */
static void places(void)
{
    static char path[ZERO_PATH_BYTES + 40];
    struct zero_save_options options = { .socket = path, .dir = "/ck", .deadline_ms = 20 };

    snprintf(path, sizeof path, "/nowhere/rank-7.sock");
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_DEADLINE, "/nowhere/rank-0.sock");
    snprintf(path, sizeof path, "rank-7.sock");
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_DEADLINE, "rank-0.sock");
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 3] = '/';
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_INVALID_ARGUMENT, "too long");
    options.socket = "/nowhere/rank-0.sock";
    options.dir = "";
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_INVALID_ARGUMENT, "dir is empty");
    path[1024] = '\0';
    path[0] = '/';
    options.dir = path;
    expect(zero_checkpoint_save(&options, NULL, &detail), ZERO_INVALID_ARGUMENT, "at most 1023");
    unsetenv("ZERO_SOCKET");
    expect(zero_checkpoint_save(NULL, NULL, &detail), ZERO_INVALID_ARGUMENT, "ZERO_SOCKET");
}

int main(void)
{
    files();
    a_save_that_ends_well();
    saves_that_do_not();
    daemons_that_are_silent();
    places();
    return check_done();
}
