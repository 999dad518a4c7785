/* SPDX-License-Identifier: MIT */
#include "deploy/zerorun_overrides.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yajl/yajl_gen.h>
#include <yajl/yajl_tree.h>

enum { CONFIG_LARGEST_BYTES = 1 << 20, DEPTH_LARGEST = 64 };

/* One override on its way into a document. */
struct edit {
    yajl_gen gen;
    const char *text; /* the whole override, for messages */
    const char *path; /* what of the dotted path is still ahead; NULL at the value */
    yajl_val value;   /* NULL: `literal` is a string */
    const char *literal;
};

static bool write_text(yajl_gen gen, const char *text, size_t length)
{
    return yajl_gen_string(gen, (const unsigned char *)text, length) == yajl_gen_status_ok;
}

static bool copy_value(yajl_gen gen, yajl_val value, int depth);

static bool copy_object(yajl_gen gen, yajl_val value, int depth)
{
    bool ok = yajl_gen_map_open(gen) == yajl_gen_status_ok;

    for (size_t i = 0; ok && i < value->u.object.len; i++)
        ok = write_text(gen, value->u.object.keys[i], strlen(value->u.object.keys[i])) &&
             copy_value(gen, value->u.object.values[i], depth);
    return ok && yajl_gen_map_close(gen) == yajl_gen_status_ok;
}

static bool copy_array(yajl_gen gen, yajl_val value, int depth)
{
    bool ok = yajl_gen_array_open(gen) == yajl_gen_status_ok;

    for (size_t i = 0; ok && i < value->u.array.len; i++)
        ok = copy_value(gen, value->u.array.values[i], depth);
    return ok && yajl_gen_array_close(gen) == yajl_gen_status_ok;
}

/* Numbers keep their spelling, so that nothing is rounded. */
static bool copy_value(yajl_gen gen, yajl_val value, int depth)
{
    if (depth > DEPTH_LARGEST) {
        warnx("the config is nested more than %d deep", DEPTH_LARGEST);
        return false;
    }
    switch (value->type) {
    case yajl_t_object:
        return copy_object(gen, value, depth + 1);
    case yajl_t_array:
        return copy_array(gen, value, depth + 1);
    case yajl_t_string:
        return write_text(gen, value->u.string, strlen(value->u.string));
    case yajl_t_number:
        return yajl_gen_number(gen, value->u.number.r, strlen(value->u.number.r)) ==
               yajl_gen_status_ok;
    case yajl_t_true:
    case yajl_t_false:
        return yajl_gen_bool(gen, value->type == yajl_t_true) == yajl_gen_status_ok;
    case yajl_t_null:
    case yajl_t_any:
        break;
    }
    return yajl_gen_null(gen) == yajl_gen_status_ok;
}

/* Copies `value` (NULL: a missing one) with the edit made in it. */
static bool copy_edited(struct edit *edit, yajl_val value, int depth)
{
    if (edit->path == NULL)
        return edit->value != NULL ? copy_value(edit->gen, edit->value, depth)
                                   : write_text(edit->gen, edit->literal, strlen(edit->literal));
    if (value != NULL && value->type != yajl_t_object) {
        warnx("-o %s: \"%.*s\" is not an object, it has no keys to set", edit->text,
              (int)(edit->path - edit->text - (edit->path > edit->text)), edit->text);
        return false;
    }
    const char *key = edit->path;
    size_t length = strcspn(key, ".=");
    bool found = false;
    bool ok = yajl_gen_map_open(edit->gen) == yajl_gen_status_ok;

    edit->path = key[length] == '.' ? key + length + 1 : NULL;
    for (size_t i = 0; ok && value != NULL && i < value->u.object.len; i++) {
        const char *name = value->u.object.keys[i];
        bool here = !found && strlen(name) == length && memcmp(name, key, length) == 0;

        found = found || here;
        ok = write_text(edit->gen, name, strlen(name)) &&
             (here ? copy_edited(edit, value->u.object.values[i], depth + 1)
                   : copy_value(edit->gen, value->u.object.values[i], depth + 1));
    }
    if (ok && !found)
        ok = write_text(edit->gen, key, length) && copy_edited(edit, NULL, depth + 1);
    return ok && yajl_gen_map_close(edit->gen) == yajl_gen_status_ok;
}

/* Replaces *text, a JSON document, by the edited one. `from` names it in messages. */
static bool apply_one(char **text, const char *from, const char *override)
{
    char error[512];
    const char *literal = strchr(override, '=') + 1;
    struct edit edit = { .text = override, .path = override, .literal = literal };
    yajl_val root = yajl_tree_parse(*text, error, sizeof error);
    const unsigned char *made;
    size_t length;
    bool ok = false;

    if (root == NULL) {
        warnx("%s is not JSON: %s", from, error);
        return false;
    }
    if (literal[0] != '\0')
        edit.value = yajl_tree_parse(literal, error, sizeof error);
    edit.gen = yajl_gen_alloc(NULL);
    if (edit.gen != NULL) {
        yajl_gen_config(edit.gen, yajl_gen_beautify, 1);
        ok = copy_edited(&edit, root, 0) &&
             yajl_gen_get_buf(edit.gen, &made, &length) == yajl_gen_status_ok;
    }
    if (ok) {
        free(*text);
        *text = strndup((const char *)made, length);
        ok = *text != NULL;
    }
    if (edit.gen != NULL)
        yajl_gen_free(edit.gen);
    yajl_tree_free(edit.value);
    yajl_tree_free(root);
    return ok;
}

static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = malloc(CONFIG_LARGEST_BYTES + 1);
    size_t used = 0;
    ssize_t n = -1;

    while (fd >= 0 && text != NULL && used <= CONFIG_LARGEST_BYTES &&
           (n = read(fd, text + used, CONFIG_LARGEST_BYTES + 1 - used)) > 0)
        used += (size_t)n;
    if (n < 0 || used > CONFIG_LARGEST_BYTES) {
        warnx("cannot read the config %s: %s", path,
              n < 0 ? strerror(errno) : "it is larger than 1 MiB");
        free(text);
        text = NULL;
    } else {
        text[used] = '\0';
    }
    if (fd >= 0)
        close(fd);
    return text;
}

static bool write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t length = strlen(text);
    bool ok = fd >= 0 && write(fd, text, length) == (ssize_t)length;

    if (!ok)
        warn("cannot write %s", path);
    if (fd >= 0)
        close(fd);
    return ok;
}

bool overrides_apply(const char *base, const char *const *overrides, size_t count, const char *to)
{
    char *text = read_file(base);
    bool ok = text != NULL;

    for (size_t i = 0; ok && i < count; i++)
        ok = apply_one(&text, base, overrides[i]);
    ok = ok && write_file(to, text);
    free(text);
    return ok;
}
