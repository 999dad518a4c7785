/* SPDX-License-Identifier: MIT */
/* Every key and value of a JSON text knows its line, and what is not strict JSON is refused with
 * line, column and reason. */
#include <stdlib.h>

#include "proto/json.h"
#include "tests/unit/check.h"

static struct zero_detail detail;

static zero_status parse(const char *text, size_t bytes, struct json **out)
{
    memset(&detail, 0, sizeof detail);
    *out = NULL;
    return json_parse(text, bytes, out, &detail);
}

static void check_tree(void)
{
    static const char text[] = "{\n \"a\": 1.5e3,\n\n \"b\":\n  [true,\n   null, \"x\\u00e9\\\"\"],"
                               "\n \"c\": {\"d\": -0.25},\r\n \"e\": {}, \"f\": []\n}\n";
    struct json *root;

    CHECK(!zero_failed(parse(text, strlen(text), &root)));
    const struct json *a = json_member(root, "a"), *b = json_member(root, "b");
    CHECK(root->type == JSON_OBJECT && root->line == 1 && root->key == NULL);
    CHECK(a && a->type == JSON_NUMBER && a->number == 1500 && a->line == 2);
    CHECK(a && strcmp(a->text, "1.5e3") == 0);
    CHECK(b && b->type == JSON_ARRAY && b->line == 4);
    const struct json *item = b ? b->first : NULL;
    CHECK(item && item->type == JSON_BOOL && item->truth && item->line == 5);
    item = item ? item->next : NULL;
    CHECK(item && item->type == JSON_NULL && item->line == 6);
    item = item ? item->next : NULL;
    CHECK(item && item->type == JSON_TEXT && strcmp(item->text, "x\xc3\xa9\"") == 0);
    CHECK(item && item->next == NULL);
    const struct json *d = json_member(json_member(root, "c"), "d");
    CHECK(d && d->number == -0.25 && d->line == 7);
    CHECK(json_member(root, "e") && json_member(root, "e")->first == NULL);
    CHECK(json_member(root, "f") && json_member(root, "f")->line == 8);
    CHECK(json_member(root, "g") == NULL && json_member(b, "a") == NULL);
    CHECK(json_member(NULL, "a") == NULL);
    json_free(root);
    json_free(NULL);
}

static const struct mistake {
    const char *text, *part;
} mistakes[] = {
    { "", "line 1: the text is empty" },
    { " \n\t", "line 1: the text is empty" },
    { "{", "line 1, column 2: the text ends in the middle" },
    { "{\"a\": 1,\n", "line 2, column 1: the text ends in the middle" },
    { "[1,\n2,\n]", "line 3, column 1: a comma before } or ]" },
    { "{\"a\": 1,\n }", "line 2, column 2: a comma before } or ]" },
    { "{\"a\": 1}\n{}", "line 2, column 1: trailing text" },
    { "{\"a\": 1} x", "line 1, column 10: trailing text" },
    { "{\n\"a\": 1 // one\n}", "a comment, which JSON does not have" },
    { "{\n\"a\": /* one */ 1}", "line 2, column" },
    { "{a: 1}", "line 1, column 2" },
    { "{'a': 1}", "line 1, column 2" },
    { "{1: 1}", "a key in double quotes is missing" },
    { "{\"a\" 1}", "line 1, column 6" },
    { "[1 2]", "line 1, column 4" },
    { "[01]", "line 1, column 3" },
    { "[+1]", "line 1, column 2" },
    { "[.5]", "line 1, column 2" },
    { "[1.]", "line 1, column" },
    { "[0x10]", "line 1, column" },
    { "[NaN]", "line 1, column" },
    { "[Infinity]", "line 1, column" },
    { "[True]", "line 1, column" },
    { "[1e999]", "line 1: 1e999 is too large for a number" },
    { "[\n-1e400]", "line 2: -1e400 is too large for a number" },
    { "[1e-999]", "line 1: 1e-999 is too small for a number" },
    { "{\"a\": 1,\n\"b\": 2,\n\"a\": 3}", "line 3: \"a\" is given again; it is on line 1 already" },
    { "{\"x\": {\"a\": 1, \"\\u0061\": 2}}", "\"a\" is given again" },
    { "[\"a\\u0000b\"]", "line 1: a text has \\u0000 in it" },
    { "{\"a\\u0000b\": 1}", "line 1: a text has \\u0000 in it" },
    { "[\"\\u001b[31m\"]", "line 1: a text has a control character in it" },
    { "[\"\\u009b31m\"]", "line 1: a text has a control character in it" },
    { "[\"two\nlines\"]", "line 1, column" },
    { "[\"\xff\"]", "line 1, column 3: a text that is not UTF-8" },
    { "[\"\xc0\xaf\"]", "line 1: a text has a character that is not Unicode" },
    { "[\"\xed\xa0\x80\"]", "line 1" },
    { "[\"\\udc00\"]", "a character that is not Unicode" },
    { "[\"\\x\"]", "line 1, column" },
    { "\xef\xbb\xbf{}", "line 1, column" },
};

static void check_mistakes(void)
{
    struct json *root;

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        zero_status s = parse(mistakes[i].text, strlen(mistakes[i].text), &root);
        if (s.code != ZERO_CONFIG)
            fprintf(stderr, "%s gave %s\n", mistakes[i].text, zero_code_name(s.code));
        CHECK(s.code == ZERO_CONFIG);
        CHECK(root == NULL);
        CHECK_CONTAINS(detail.text, mistakes[i].part);
    }
    CHECK(parse("[\"a\0\"]", 6, &root).code == ZERO_CONFIG);
    CHECK(parse("{}\0", 3, &root).code == ZERO_CONFIG);
}

/* The first bytes of a text are the whole of it, whatever lies behind them. */
static void check_bounds(void)
{
    static const char text[7] = { '[', '1', ',', ' ', '2', '3', ']' };
    char *exact = malloc(sizeof text);
    struct json *root;

    memcpy(exact, text, sizeof text);
    CHECK(!zero_failed(parse(exact, 7, &root)));
    json_free(root);
    for (size_t bytes = 0; bytes < 7; bytes++)
        CHECK(parse(exact, bytes, &root).code == ZERO_CONFIG);
    free(exact);
}

static void check_caps(void)
{
    static char deep[2 * (JSON_MAX_DEPTH + 1) + 1], many[2 * JSON_MAX_NODES + 8];
    struct json *root;

    for (int depth = JSON_MAX_DEPTH; depth <= JSON_MAX_DEPTH + 1; depth++) {
        memset(deep, '[', (size_t)depth);
        memset(deep + depth, ']', (size_t)depth);
        zero_status s = parse(deep, 2 * (size_t)depth, &root);
        CHECK(s.code == (depth > JSON_MAX_DEPTH ? ZERO_TOO_LARGE : ZERO_OK));
        json_free(root);
    }
    CHECK_CONTAINS(detail.text, "line 1: nested more than 32 deep");
    many[0] = '[';
    size_t end = (size_t)2 * JSON_MAX_NODES;
    for (size_t i = 1; i < end; i++)
        many[i] = i % 2 ? '1' : ',';
    many[end] = ']';
    CHECK(parse(many, end + 1, &root).code == ZERO_TOO_LARGE);
    CHECK_CONTAINS(detail.text, "more than 65536 values");
}

int main(void)
{
    check_tree();
    check_mistakes();
    check_bounds();
    check_caps();
    return check_done();
}
