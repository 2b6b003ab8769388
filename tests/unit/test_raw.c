/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader and the writer of JSON: what is taken for JSON, where its values are, what its strings
 * stand for, and that what is written is read back; base64 and UTF-8 beside them.
 */
#include "../cases.h"
#include "base/base64.h"
#include "base/utf8.h"
#include "json/raw.h"
#include "json/write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_json(const char *text)
{
    struct hapax_span value;

    return hapax__raw_check(&value, hapax_str(text));
}

static struct hapax_span root(const char *text)
{
    struct hapax_span value;

    if (!hapax__raw_check(&value, hapax_str(text)))
        fail_msg("no JSON: %s", text);
    return value;
}

#define assert_span(span, text)                                                                    \
    do {                                                                                           \
        assert_int_equal((span).len, strlen(text));                                                \
        assert_memory_equal((span).ptr, text, strlen(text));                                       \
    } while (0)

/* RFC 8259, and nothing that some readers add to it. */
CASE(what_is_json_and_what_is_not)
{
    static const char *const good[] = {
        "{}",
        "[]",
        " [ ] ",
        "null",
        "true",
        "0",
        "-0.5e+10",
        "\"\"",
        "\"\\u00e9\\n\\\"\"",
        "{\"a\":{\"b\":[1,2,{\"c\":null}]},\"d\":\"}\"}",
        "[[],{},\"]\"]",
        "\t{\n}\r ",
    };
    static const char *const bad[] = {
        "",        " ",        "{",           "}",       "[1,]", "{,}",
        "{\"a\"}", "{\"a\":}", "{\"a\":1,}",  "{a:1}",   "01",   "+1",
        ".5",      "1.",       "1e",          "--1",     "nul",  "True",
        "'a'",     "\"\\x\"",  "\"\\u12g4\"", "\"\t\"",  "\"",   "[1 2]",
        "1 2",     "[1}",      "{\"a\":1]",   "\"\\u00", "NaN",
    };

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        if (!is_json(good[i]))
            fail_msg("refused: %s", good[i]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (is_json(bad[i]))
            fail_msg("taken: %s", bad[i]);
}

/* A span without memory is an empty text. */
CASE(no_text_is_no_json)
{
    struct hapax_span value;

    assert_false(hapax__raw_check(&value, (struct hapax_span){NULL, 0}));
}

/* A NUL is no escape, though strchr() finds it. */
CASE(a_nul_behind_a_backslash_is_no_escape)
{
    struct hapax_span value;

    assert_false(hapax__raw_check(&value, (struct hapax_span){(const uint8_t *)"\"\\\0\"", 4}));
}

/* As deep as the limit, and not deeper. */
CASE(depth_has_a_limit)
{
    char text[2 * HAPAX__RAW_DEPTH_MAX + 3] = "";

    memset(text, '[', HAPAX__RAW_DEPTH_MAX);
    memset(text + HAPAX__RAW_DEPTH_MAX, ']', HAPAX__RAW_DEPTH_MAX);
    assert_true(is_json(text));
    memset(text, '[', HAPAX__RAW_DEPTH_MAX + 1);
    memset(text + HAPAX__RAW_DEPTH_MAX + 1, ']', HAPAX__RAW_DEPTH_MAX + 1);
    assert_false(is_json(text));
}

/* A value is found with every byte it has, and nothing around it. */
CASE(members_are_found_where_they_stand)
{
    struct hapax_span top =
        root(" { \"a\" : { \"b\" : [ 1 , \"x,]\" ] } , \"c\":-1.5e3,\"\\u0064\" : \"e\" , "
             "\"c\" : true } ");
    struct hapax_span value;

    assert_true(hapax__raw_member(&value, top, "a.b"));
    assert_span(value, "[ 1 , \"x,]\" ]");
    assert_true(hapax__raw_member(&value, top, "d"));
    assert_span(value, "\"e\"");
    assert_true(hapax__raw_member(&value, top, "c")); /* of several the last */
    assert_span(value, "true");
    assert_false(hapax__raw_member(&value, top, "a.c"));
    assert_false(hapax__raw_member(&value, top, "c.d"));
    assert_int_equal(value.len, 0);
}

CASE(elements_come_in_their_order)
{
    struct hapax_span top = root("[ {\"a\":\"]\"},2 , null,\"\\\"\" ]"), name, value;
    static const char *const expected[] = {"{\"a\":\"]\"}", "2", "null", "\"\\\"\""};
    struct hapax__raw_walk walk;
    size_t n = 0;

    hapax__raw_begin(&walk, top);
    for (; hapax__raw_next(&walk, &name, &value); n++)
        assert_span(value, expected[n]);
    assert_int_equal(n, 4);
    hapax__raw_begin(&walk, root("{}"));
    assert_false(hapax__raw_next(&walk, &name, &value));
    hapax__raw_begin(&walk, root("7"));
    assert_false(hapax__raw_next(&walk, &name, &value));
}

/* Escapes are what they stand for; half of a surrogate pair is no character. */
CASE(strings_say_what_their_escapes_stand_for)
{
    static const char *const cases[][2] = {
        {"\"a\\tb\\/\\\\\\\"\"", "a\tb/\\\""},
        {"\"\\u00e9\\u20ac\"", "\xc3\xa9\xe2\x82\xac"},
        {"\"\\ud83d\\ude00!\"", "\xf0\x9f\x98\x80!"},
        {"\"\\ud83dx\"", "\xef\xbf\xbdx"},
        {"\"\\ude00\"", "\xef\xbf\xbd"},
        {"\"\\ud83d\\u0041\"", "\xef\xbf\xbd"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t out[64];
        size_t len = hapax__raw_unescape(out, root(cases[i][0])), expected = strlen(cases[i][1]);

        assert_true(len >= expected && len <= strlen(cases[i][0]));
        assert_memory_equal(out, cases[i][1], expected);
    }
}

/* What is written is JSON and stands for the same bytes, in memory and in a file. */
CASE(a_string_that_is_written_is_read_back)
{
    static const char bytes[] = "a\"\\\n\x01\xc3\xa9/";
    struct hapax__json_out out = {0}, file = {0};
    uint8_t back[128];
    size_t len = 0;

    hapax__json_put_string(&out, hapax_str(bytes));
    hapax__json_put(&out, "");
    assert_false(out.failed);
    file.to = open_memstream(&file.bytes, &len);
    hapax__json_put_string(&file, hapax_str(bytes));
    assert_int_equal(fclose(file.to), 0);
    assert_int_equal(len, out.len);
    assert_memory_equal(file.bytes, out.bytes, len);
    assert_int_equal(hapax__raw_unescape(back, root(file.bytes)), strlen(bytes));
    assert_memory_equal(back, bytes, strlen(bytes));
    hapax__json_clear(&out);
    assert_int_equal(out.len, 0);
    assert_string_equal(out.bytes, "");
    hapax__json_free(&out);
    hapax__json_free(&file);
}

/* What would act on a terminal is escaped, and what is not UTF-8 replaced, byte by byte. */
CASE(a_string_that_is_shown_acts_on_no_terminal)
{
    static const char bytes[] =
        "\x1b[1m\x7f\xc2\x9b\xe2\x80\xae\xc3\xa9\xf0\x9f\x98\x80\xff\xe2\x82\"\\";
    static const char expected[] =
        "\"\\u001b[1m\\u007f\\u009b\\u202e\xc3\xa9\xf0\x9f\x98\x80\\ufffd\\ufffd\\ufffd\\\"\\\\\"";
    struct hapax__json_out out = {0};

    hapax__json_put_shown(&out, hapax_str(bytes));
    assert_span(out.bytes ? ((struct hapax_span){(uint8_t *)out.bytes, out.len}) : hapax_str(""),
                expected);
    hapax__json_free(&out);
}

CASE(base64_goes_both_ways)
{
    static const char *const cases[][2] = {
        {"", ""}, {"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foob", "Zm9vYg=="}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hapax_span bytes = hapax_str(cases[i][0]);
        char text[16] = "";
        uint8_t out[16];
        size_t n;

        hapax__base64_encode(text, bytes);
        assert_int_equal(HAPAX__BASE64_LEN(bytes.len), strlen(cases[i][1]));
        assert_string_equal(text, cases[i][1]);
        assert_true(hapax__base64_decode(out, &n, hapax_str(text)));
        assert_int_equal(n, bytes.len);
        assert_memory_equal(out, cases[i][0], n);
    }
}

/* Padding is there in whole or not at all; where it is wrong, a part of the text may be missing. */
CASE(what_is_not_base64_is_refused)
{
    static const char *const wrong[] = {
        "a",     "a-b_",  "Zg==Zg==", "=",        "==",   "====",    "Zg=",  "Zg===",
        "Zm8==", "Zm9v=", "Zm9v==",   "Zm9v====", "Z===", "Zm9vYg=", "Zg= ="};
    static const char *const bare[] = {"Zg", "Zm8", "Zm9v"};
    uint8_t out[16];
    size_t n = 99;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        if (hapax__base64_decode(out, &n, hapax_str(wrong[i])) || n != 99)
            fail_msg("%s: decoded", wrong[i]);
    for (size_t i = 0; i < sizeof(bare) / sizeof(bare[0]); i++) {
        assert_true(hapax__base64_decode(out, &n, hapax_str(bare[i])));
        assert_int_equal(n, i + 1);
        assert_memory_equal(out, "foo", n);
    }
}

/* A file gets base64 in pieces: the digits are those that memory gets. */
CASE(long_base64_is_the_same_in_a_file)
{
    uint8_t bytes[1000];
    struct hapax__json_out out = {0}, file = {0};
    size_t len = 0;

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    for (size_t n = 180; n < sizeof(bytes); n += 11) {
        hapax__json_clear(&out);
        hapax__json_put_base64(&out, (struct hapax_span){bytes, n});
        file.to = open_memstream(&file.bytes, &len);
        hapax__json_put_base64(&file, (struct hapax_span){bytes, n});
        assert_int_equal(fclose(file.to), 0);
        assert_int_equal(len, out.len);
        assert_memory_equal(file.bytes, out.bytes, len);
        hapax__json_free(&file);
    }
    hapax__json_free(&out);
}

CASE(utf8_is_known_from_other_bytes)
{
    static const char *const bad[] = {"\xc0\x80", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "\x80",     "\xff",     "a\xc3"};

    assert_true(hapax__is_utf8(hapax_str("only ASCII, and more than eight bytes")));
    assert_false(hapax__is_utf8(hapax_str("more than eight bytes\xc3(")));
    assert_true(hapax__is_utf8(hapax_str("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(hapax__is_utf8(hapax_str(bad[i])));
}
