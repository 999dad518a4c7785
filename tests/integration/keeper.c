/* SPDX-License-Identifier: MIT */
/* keeper: libzeroclient's calls for checkpoints, one a line of stdin, for tests.
 *
 *   begin SLOT DIR MS   wait SLOT MS   look SLOT   leave SLOT   save DIR MS    ('-': no DIR)
 *   list DIR   prune DIR KEEP   verify PATH   export PATH DIR DTYPE BYTES   import DIR MODEL
 * FILE...
 *
 * Every line is answered with one JSON object, with the names that zeroctl's have.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/zerocheckpoint.h"

enum { SLOTS = 8, WORDS = 16 };

static zero_saving *slots[SLOTS];
static struct zero_detail detail;

static void print_text(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void print_status(zero_status s)
{
    printf("{\"code\":\"%s\",\"text\":", zero_failed(s) ? zero_code_name(s.code) : "OK");
    print_text(zero_failed(s) ? detail.text : "");
}

static zero_saving **slot(const char *word)
{
    return &slots[(unsigned)atoi(word) % SLOTS];
}

static const char *given(const char *word)
{
    return strcmp(word, "-") == 0 ? NULL : word;
}

static uint32_t number(const char *word)
{
    return (uint32_t)strtoul(word, NULL, 10);
}

/* ---- saves ---- */

static void do_begin(char **word)
{
    const struct zero_save_options options = { .dir = given(word[2]),
                                               .deadline_ms = number(word[3]) };
    print_status(zero_checkpoint_begin(&options, slot(word[1]), &detail));
}

static void do_wait(char **word)
{
    struct zero_path path = { "" };
    zero_status s = zero_checkpoint_wait(*slot(word[1]), number(word[2]), &path, &detail);

    print_status(s);
    printf(",\"path\":");
    print_text(path.text);
}

static void do_look(char **word)
{
    uint64_t bytes = 0, total = 0;

    print_status(zero_checkpoint_look(*slot(word[1]), &bytes, &total, &detail));
    printf(",\"bytes\":%" PRIu64 ",\"total\":%" PRIu64, bytes, total);
}

static void do_leave(char **word)
{
    zero_checkpoint_leave(*slot(word[1]));
    *slot(word[1]) = NULL;
    print_status(zero_success());
}

static void do_save(char **word)
{
    const struct zero_save_options options = { .dir = given(word[1]),
                                               .deadline_ms = number(word[2]) };
    struct zero_path path = { "" };

    print_status(zero_checkpoint_save(&options, &path, &detail));
    printf(",\"path\":");
    print_text(path.text);
}

/* ---- files ---- */

static void print_entry(const struct zero_checkpoint *entry)
{
    printf("{\"name\":\"%s\",\"step\":%" PRIu64 ",\"complete\":%s,\"busy\":%s,\"unread\":%s",
           entry->name, entry->step, entry->complete ? "true" : "false",
           entry->busy ? "true" : "false", entry->unread ? "true" : "false");
    if (entry->why != NULL) {
        printf(",\"why\":");
        print_text(entry->why);
    } else {
        printf(",\"time\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"world\":%" PRIu32, entry->time,
               entry->bytes, entry->world);
    }
    putchar('}');
}

static void do_list(char **word)
{
    struct zero_checkpoints list = { NULL, 0 };

    print_status(zero_checkpoint_list(word[1], &list, &detail));
    printf(",\"list\":[");
    for (size_t i = 0; i < list.count; i++) {
        printf("%s", i > 0 ? "," : "");
        print_entry(&list.entries[i]);
    }
    putchar(']');
    zero_checkpoint_list_deinit(&list);
}

static void do_prune(char **word)
{
    uint64_t removed = 0;

    print_status(zero_checkpoint_prune(word[1], number(word[2]), &removed, &detail));
    printf(",\"removed\":%" PRIu64, removed);
}

static void on_problem(void *context, const char *text)
{
    FILE *to = context;

    fprintf(to, "%s\n", text);
}

/* The problems come while it verifies: they are kept for the end of the answer. */
static void do_verify(char **word)
{
    char *texts = NULL, *line, *rest = NULL;
    size_t bytes = 0;
    FILE *problems = open_memstream(&texts, &bytes);
    const struct zero_verify_watch watch = { .problem = on_problem, .context = problems };
    struct zero_verified out = { 0 };
    zero_status s = zero_checkpoint_verify(word[1], &watch, &out, &detail);

    fclose(problems);
    print_status(s);
    printf(",\"bytes\":%" PRIu64 ",\"nonfinite\":%" PRIu64 ",\"problem_count\":%" PRIu64
           ",\"problems\":[",
           out.bytes, out.nonfinite, out.problems);
    for (line = strtok_r(texts, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        printf("%s", line != texts ? "," : "");
        print_text(line);
    }
    putchar(']');
    free(texts);
}

static void do_export(char **word)
{
    struct zero_export_options options = { .path = word[1], .dir = word[2] };
    struct zero_exported out = { 0 };

    for (int d = 0; d < ZERO_DTYPES; d++)
        if (strcmp(zero_dtype_name((zero_dtype)d), word[3]) == 0)
            options.dtype = (zero_dtype)d;
    options.max_file_bytes = number(word[4]);
    print_status(zero_checkpoint_export(&options, &out, &detail));
    printf(",\"files\":%" PRIu32 ",\"bytes\":%" PRIu64, out.files, out.bytes);
}

static void do_import(char **word)
{
    struct zero_import_options options = { .dir = word[1],
                                           .model = given(word[2]),
                                           .files = (const char *const *)&word[3] };
    struct zero_imported out = { .parameters = 0 };

    while (word[3 + options.file_count][0] != '\0')
        options.file_count++;
    print_status(zero_checkpoint_import(&options, &out, &detail));
    printf(",\"path\":");
    print_text(out.path.text);
    printf(",\"parameters\":%" PRIu64 ",\"layers\":%" PRIu32 ",\"unused\":%zu", out.parameters,
           out.layers, out.unused);
}

static const struct command {
    const char *name;
    void (*run)(char **word);
} commands[] = {
    { "begin", do_begin },   { "wait", do_wait },     { "look", do_look },
    { "leave", do_leave },   { "save", do_save },     { "list", do_list },
    { "prune", do_prune },   { "verify", do_verify }, { "export", do_export },
    { "import", do_import },
};

int main(void)
{
    static char nothing[] = "";
    char line[32768], *rest, *word[WORDS];

    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t count = 0;
        char *next = strtok_r(line, " \n", &rest);
        for (; next != NULL && count < WORDS - 1; next = strtok_r(NULL, " \n", &rest))
            word[count++] = next;
        while (count < WORDS)
            word[count++] = nothing;
        for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
            if (strcmp(commands[i].name, word[0]) == 0)
                commands[i].run(word);
        printf("}\n");
        fflush(stdout);
    }
    for (size_t i = 0; i < SLOTS; i++)
        zero_checkpoint_leave(slots[i]);
    return 0;
}
