/* SPDX-License-Identifier: Apache-2.0
 *
 * Canonical JSON: what is the same, what is not, what falls back to the bytes, and that no
 * failed allocation gives a wrong answer.
 */
#include "../cases.h"
#include "oom.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void assert_span(struct hapax_span body, const char *expected)
{
    uint8_t *text;
    size_t len;

    if (hapax__json_canonical(&text, &len, body) != HAPAX__JSON_OK)
        fail_msg("%.*s: not canonical", (int)body.len, (const char *)body.ptr);
    if (len != strlen(expected) || memcmp(text, expected, len) != 0)
        fail_msg("%.*s became %.*s", (int)body.len, (const char *)body.ptr, (int)len,
                 (const char *)text);
    free(text);
}

static void assert_canonical(const char *body, const char *expected)
{
    assert_span(hapax_str(body), expected);
    assert_span(hapax_str(expected), expected);
}

/* Parses in a block of exactly its size, so that a sanitizer sees a read beyond the end. */
static void assert_refused_span(struct hapax_span body)
{
    uint8_t *copy = malloc(body.len > 0 ? body.len : 1);
    uint8_t *text = copy;
    size_t len;

    assert_non_null(copy);
    if (body.len > 0)
        memcpy(copy, body.ptr, body.len);
    if (hapax__json_canonical(&text, &len, (struct hapax_span){copy, body.len}) !=
        HAPAX__JSON_NOT_CANONICAL)
        fail_msg("%.*s: taken", (int)body.len, (const char *)body.ptr);
    assert_null(text);
    free(copy);
}

static void assert_refused(const char *body)
{
    assert_refused_span(hapax_str(body));
}

/* ---- canonical form ---------------------------------------------------------------- */

/* The order of names and white space say nothing; the order of an array does. */
CASE(order_of_names_and_space_do_not_matter)
{
    assert_canonical(" { \"b\" : 1 ,\r\n\t\"a\" : [ 3 , 2 ] } ", "{\"a\":[3,2],\"b\":1}");
    assert_canonical("{\"b\":{\"d\":1,\"c\":{}},\"a\":[]}", "{\"a\":[],\"b\":{\"c\":{},\"d\":1}}");
    assert_canonical("[{\"b\":1,\"a\":2},{\"a\":3,\"b\":4}]",
                     "[{\"a\":2,\"b\":1},{\"a\":3,\"b\":4}]");
    assert_canonical("[true,false,null]", "[true,false,null]");
    assert_canonical("\"x\"", "\"x\"");
    assert_canonical(" null\n", "null");
}

/* Names are ordered by their bytes: a name before its extensions, UTF-8 after ASCII. */
CASE(names_are_ordered_by_their_bytes)
{
    assert_canonical("{\"ab\":1,\"a!\":2,\"a\":3,\"\":4,\"B\":5}",
                     "{\"\":4,\"B\":5,\"a\":3,\"a!\":2,\"ab\":1}");
    assert_canonical("{\"\\u00e9\":1,\"z\":2}", "{\"z\":2,\"\xc3\xa9\":1}");
    assert_canonical("{\"\\ud83d\\ude00\":1,\"\\uffff\":2}",
                     "{\"\xef\xbf\xbf\":2,\"\xf0\x9f\x98\x80\":1}");
}

/* Many members, so that the arrays behind them grow and the sort is a real one. */
CASE(a_large_object_is_ordered)
{
    enum { MEMBERS = 5000 };
    size_t size = MEMBERS * 16;
    char *body = malloc(size);
    char *expected = malloc(size);
    size_t at = 0;
    size_t expected_at = 0;

    assert_non_null(body);
    assert_non_null(expected);
    for (int i = 0; i < MEMBERS; i++) {
        at += (size_t)snprintf(body + at, size - at, "%c\"%05d\":%d", i ? ',' : '{',
                               i * 7 % MEMBERS, i);
        expected_at += (size_t)snprintf(expected + expected_at, size - expected_at, "%c\"%05d\":%d",
                                        i ? ',' : '{', i, i * 2143 % MEMBERS);
    }
    snprintf(body + at, size - at, "}");
    snprintf(expected + expected_at, size - expected_at, "}");
    assert_canonical(body, expected);
    free(body);
    free(expected);
}

/* Numbers are exact decimals, however they are spelled. */
CASE(spelling_of_a_number_does_not_matter)
{
    assert_canonical("[1,1.0,1.000,10e-1,0.1e1,0.1E+1,100e-2,1e0,1e-0,1e00000000000000000000]",
                     "[1,1,1,1,1,1,1,1,1,1]");
    assert_canonical("[0,-0,0.0,-0.00,0e5,-0e-5,0.000e17]", "[0,0,0,0,0,0,0]");
    assert_canonical("[100,1e2,1E2,1.00e2,0.001e5]", "[100,100,100,100,100]");
    assert_canonical("[1.5,15e-1,1.50,0.15e1]", "[15e-1,15e-1,15e-1,15e-1]");
    assert_canonical("[-12.340e5,-1234000]", "[-1234000,-1234000]");
    assert_canonical("[0.001,1e-3,10e-4]", "[1e-3,1e-3,1e-3]");
    assert_canonical("7", "7");
}

/* 21 digits are written out and 22 are not, whichever way either was spelled. */
CASE(a_long_whole_number_has_one_form)
{
    assert_canonical("[1e20,100000000000000000000]",
                     "[100000000000000000000,100000000000000000000]");
    assert_canonical("[1e21,1000000000000000000000]", "[1e21,1e21]");
    assert_canonical("[123456789012345678901,1234567890123456789012]",
                     "[123456789012345678901,1234567890123456789012e0]");
}

/* What a double could not tell apart stays apart. */
CASE(numbers_beyond_a_double_differ)
{
    assert_canonical("[100000000000000000.01,100000000000000000.02]",
                     "[10000000000000000001e-2,10000000000000000002e-2]");
    assert_canonical("[9007199254740993,9007199254740992]", "[9007199254740993,9007199254740992]");
    assert_canonical("[1e400,1e401]", "[1e400,1e401]");
    assert_canonical("[1,-1]", "[1,-1]");
}

/* Exponents are exact as far as they go, and beyond that the bytes have to do. */
CASE(an_exponent_is_exact_or_refused)
{
    assert_canonical("1e99999999999999999", "1e99999999999999999");
    assert_canonical("-1e-99999999999999999", "-1e-99999999999999999");
    assert_canonical("0.1e100000000000000000", "1e99999999999999999");
    assert_refused("1e100000000000000000");
    assert_refused("1e-100000000000000000");
    assert_refused("10e99999999999999999");
    assert_refused("0.1e-99999999999999999");
    assert_refused("1e9223372036854775807");
    assert_refused("1e9223372036854775808");
    assert_refused("[1e-99999999999999999999999999]");
}

/* An escape and the character it stands for are one; only what must be escaped is. */
CASE(spelling_of_a_string_does_not_matter)
{
    assert_canonical("[\"\\u00e9\",\"\xc3\xa9\"]", "[\"\xc3\xa9\",\"\xc3\xa9\"]");
    assert_canonical("[\"\\u00E9\\/\",\"/\"]", "[\"\xc3\xa9/\",\"/\"]");
    assert_canonical("[\"\\ud83d\\ude00\",\"\\uD83D\\uDE00\"]",
                     "[\"\xf0\x9f\x98\x80\",\"\xf0\x9f\x98\x80\"]");
    assert_canonical("\"\\u0000\\b\\t\\n\\f\\r\\u001F\\u0022\\\\\\u005c\x7f\"",
                     "\"\\u0000\\u0008\\u0009\\u000a\\u000c\\u000d\\u001f\\\"\\\\\\\\\x7f\"");
    assert_canonical("\"\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\xe0\xa0\x80\xf0\x90\x80\x80\"",
                     "\"\xf4\x8f\xbf\xbf\xee\x80\x80\xed\x9f\xbf\xe0\xa0\x80\xf0\x90\x80\x80\"");
    assert_canonical("{\"\\u0061\":1}", "{\"a\":1}");
    /* the Unicode form of a string is the client's: e and an accent are not é */
    assert_canonical("\"e\\u0301\"", "\"e\xcc\x81\"");
}

/* A name twice in one object, however it is spelled, has no one meaning. */
CASE(a_name_twice_is_refused)
{
    assert_refused("{\"a\":1,\"a\":1}");
    assert_refused("{\"a\":1,\"b\":2,\"a\":3}");
    assert_refused("{\"a\":1,\"\\u0061\":2}");
    assert_refused("[{\"x\":{\"\":1,\"\":2}}]");
    assert_canonical("{\"a\":{\"a\":1},\"b\":{\"a\":1}}", "{\"a\":{\"a\":1},\"b\":{\"a\":1}}");
}

/* Half of a pair stands for no character, wherever it stands. */
CASE(half_a_surrogate_pair_is_refused)
{
    assert_refused("\"\\ud83d\"");
    assert_refused("\"\\ude00\"");
    assert_refused("\"\\ud83d\\ud83d\"");
    assert_refused("\"\\ud83dx\\ude00\"");
    assert_refused("\"\\ud83d\\u0041\"");
    assert_refused("\"\\ud83d\\n\"");
    assert_refused("\"\\ud83d\\n12345\"");
    assert_refused("\"\\ud83d\\uffff\"");
    assert_refused("\"\\ud83d\\");
    assert_refused("\"\\ud83d\\u");
    assert_refused("{\"\\udfff\":1}");
}

/* Bytes that are no UTF-8 by RFC 3629. */
CASE(invalid_utf8_is_refused)
{
    static const char *const bodies[] = {
        "\"\x80\"",
        "\"\xff\"",
        "\"\xc3\"",
        "\"\xc0\xaf\"",
        "\"\xc1\xbf\"",
        "\"\xe0\x9f\xbf\"",
        "\"\xed\xa0\x80\"",
        "\"\xf0\x8f\xbf\xbf\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xe2\x82\"",
        "\"\xe2\x28\xa1\"",
        "\"\xe2\x82\xc0\"",
        "\xe2\x82",
        "\"\xf0\x9f\x98\x28\"",
        "\xef\xbb\xbf{}",
    };

    for (size_t i = 0; i < COUNT(bodies); i++)
        assert_refused(bodies[i]);
}

/* What RFC 8259 does not call JSON, and what some parsers let pass. */
CASE(what_is_no_json_is_refused)
{
    static const char *const bodies[] = {
        "",          " ",           "nul",         "True",        "01",      "-01",     "1.",
        ".5",        "-",           "+1",          "1e",          "1e+",     "1.e1",    "0x10",
        "NaN",       "Infinity",    "1 2",         "[1,]",        "[,1]",    "[1 2]",   "[",
        "]",         "{\"a\":1,}",  "{\"a\" 1}",   "{a:1}",       "{1:1}",   "{\"a\"}", "{",
        "}",         "\"a",         "\"a\nb\"",    "\"a\tb\"",    "'a'",     "\"\\x\"", "\"\\",
        "\"\\u00\"", "\"\\u00g0\"", "\"\\u00/0\"", "\"\\u00:0\"", "//x\n1",  "/**/1",   "1\x0b",
        "\x0c[1]",   "[1]]",        "nullx",       "2\"",         "null\"t", "[]\"",    "{} \"\\\"",
        "[] tru",    "[] -",        "[] /",        "[1}",         "\"\\u\"", "1e5.5",
    };
    uint8_t *text;
    size_t len;

    for (size_t i = 0; i < COUNT(bodies); i++)
        assert_refused(bodies[i]);
    /* not by a copy, which would have memory */
    assert_int_equal(hapax__json_canonical(&text, &len, (struct hapax_span){NULL, 0}),
                     HAPAX__JSON_NOT_CANONICAL);
    assert_refused_span((struct hapax_span){(const uint8_t *)"1\0", 2});
    assert_refused_span((struct hapax_span){(const uint8_t *)"\"a\0b\"", 5});
}

/* 64 containers in one another are taken and 65 are not, of either kind. */
CASE(depth_is_limited)
{
    char text[1024];

    for (size_t depth = 64; depth <= 65; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        text[2 * depth] = '\0';
        if (depth == 64)
            assert_canonical(text, text);
        else
            assert_refused(text);
        text[0] = '\0';
        for (size_t i = 0; i < depth; i++)
            memcpy(text + 5 * i, "{\"a\":", 5);
        text[5 * depth] = '0';
        memset(text + 5 * depth + 1, '}', depth);
        text[6 * depth + 1] = '\0';
        if (depth == 64)
            assert_canonical(text, text);
        else
            assert_refused(text);
    }
}

/* A body over the limit of any store is not read at all. */
CASE(size_is_limited)
{
    uint8_t *body = malloc(HAPAX_BODY_MAX + 1);
    struct hapax_digest digest;

    assert_non_null(body);
    memset(body, ' ', HAPAX_BODY_MAX + 1);
    body[0] = '1';
    assert_int_equal(hapax__json_fingerprint(&digest, (struct hapax_span){body, HAPAX_BODY_MAX},
                                             HAPAX__JSON_EXCLUDE, NULL, 0),
                     HAPAX__JSON_OK);
    assert_int_equal(hapax__json_fingerprint(&digest, (struct hapax_span){body, HAPAX_BODY_MAX + 1},
                                             HAPAX__JSON_EXCLUDE, NULL, 0),
                     HAPAX__JSON_NOT_CANONICAL);
    free(body);
}

/* ---- memory ------------------------------------------------------------------------ */

/* A body that makes every array grow: long strings with escapes, many names. */
static char *large_body(void)
{
    size_t size = 400000;
    char *body = malloc(size);
    size_t at = 0;

    assert_non_null(body);
    at += (size_t)snprintf(body, size, "{\"s\":\"");
    for (size_t i = 0; i < 40000; i++)
        at += (size_t)snprintf(body + at, size - at, "\\n");
    at += (size_t)snprintf(body + at, size - at, "\"");
    for (size_t i = 2000; i > 0; i--)
        at += (size_t)snprintf(body + at, size - at,
                               ",\"%zu\":[%zue3,{\"b\":\"\\u00e9\",\"a\":[]}]", i, i);
    snprintf(body + at, size - at, "}");
    return body;
}

/* Fails every allocation in turn. Returns how many there are. */
static uint64_t fail_each(struct hapax_span body, enum hapax__json_select select,
                          const struct hapax_span *pointers, size_t n)
{
    struct hapax_digest digest;
    struct hapax_digest right;
    int64_t live = oom_live();
    uint64_t at;

    assert_int_equal(hapax__json_fingerprint(&right, body, select, pointers, n), HAPAX__JSON_OK);
    for (at = 1;; at++) {
        enum hapax__json_result result;

        oom_fail_at(at, at % 2);
        result = hapax__json_fingerprint(&digest, body, select, pointers, n);
        assert_true(oom_live() == live);
        if (oom_count() < at)
            break;
        assert_int_equal(result, HAPAX__JSON_NOMEM);
    }
    oom_fail_at(0, false);
    assert_memory_equal(&digest, &right, sizeof(right));
    return at - 1;
}

/* Whichever allocation fails, the answer is NOMEM, and nothing leaks. */
CASE(no_failed_allocation_gives_an_answer)
{
    const struct hapax_span pointers[] = {hapax_str("/s"), hapax_str("/1000/1/a")};
    char *body = large_body();

    assert_true(fail_each(hapax_str(body), HAPAX__JSON_INCLUDE, pointers, 2) > 20);
    assert_true(fail_each(hapax_str(body), HAPAX__JSON_EXCLUDE, pointers, 2) > 20);
    free(body);
}

/* The same where the text grows at any byte of a value: bodies of every length around there. The
 * longest allocates more often than the shortest, so the text does grow in between. */
CASE(no_place_to_grow_is_forgotten)
{
    static const char *const ends[] = {
        "null,true]", "12,1e-9]", "\"s\\n\"]", "[],[[]]]", "{\"b\":{},\"a\":0}]",
    };
    char body[300];

    for (size_t i = 0; i < COUNT(ends); i++) {
        uint64_t shortest = 0, allocations = 0;

        for (int pad = 200; pad < 256; pad++) {
            snprintf(body, sizeof(body), "[\"%0*d\",%s", pad, 0, ends[i]);
            allocations = fail_each(hapax_str(body), HAPAX__JSON_EXCLUDE, NULL, 0);
            shortest = pad == 200 ? allocations : shortest;
        }
        assert_true(allocations > shortest);
    }
}
