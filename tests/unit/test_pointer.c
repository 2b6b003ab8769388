/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON Pointers: what they find, keys taken from a body, and fingerprints of what was selected.
 */
#include "../cases.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pointers ---------------------------------------------------------------------- */

static void assert_pointer(const char *pointer, const char *reason)
{
    const char *why = "";

    assert_int_equal(hapax__json_pointer_check(hapax_str(pointer), &why), reason == NULL);
    if (reason)
        assert_string_equal(why, reason);
    else
        assert_null(why);
}

/* The grammar of RFC 6901, and the limit on its length. */
CASE(a_pointer_is_checked_before_it_is_used)
{
    char text[1026];

    assert_pointer("", NULL);
    assert_pointer("/", NULL);
    assert_pointer("/a~0b~1c/0/-", NULL);
    assert_pointer("a", "a pointer is empty or begins with '/'");
    assert_pointer("#/a", "a pointer is empty or begins with '/'");
    assert_pointer("/~", "in a pointer '~' stands before 0 or 1");
    assert_pointer("/~2", "in a pointer '~' stands before 0 or 1");
    assert_pointer("/a~/b", "in a pointer '~' stands before 0 or 1");
    memset(text, '/', sizeof(text));
    text[1024] = '\0';
    assert_pointer(text, NULL);
    text[1024] = '/';
    text[1025] = '\0';
    assert_pointer(text, "a pointer may have 1024 bytes");
}

static enum hapax__json_result scalar(char text[16], const char *body, const char *pointer)
{
    size_t len = 0;
    enum hapax__json_result result =
        hapax__json_scalar((uint8_t *)text, 15, &len, hapax_str(body), hapax_str(pointer));

    assert_true(len <= 15);
    text[len] = '\0';
    return result;
}

static void assert_scalar(const char *body, const char *pointer, const char *expected)
{
    char text[16];

    if (scalar(text, body, pointer) != HAPAX__JSON_OK)
        fail_msg("%s finds no scalar in %s", pointer, body);
    assert_string_equal(text, expected);
}

static void assert_no_scalar(const char *body, const char *pointer, enum hapax__json_result result)
{
    char text[16];

    assert_int_equal(scalar(text, body, pointer), result);
}

/* The examples of RFC 6901, section 5. */
CASE(a_pointer_finds_what_the_rfc_says)
{
    const char *body = "{\"foo\":[\"bar\",\"baz\"],\"\":0,\"a/b\":1,\"c%d\":2,\"e^f\":3,\"g|h\":4,"
                       "\"i\\\\j\":5,\"k\\\"l\":6,\" \":7,\"m~n\":8}";

    assert_no_scalar(body, "", HAPAX__JSON_NOT_SCALAR);
    assert_no_scalar(body, "/foo", HAPAX__JSON_NOT_SCALAR);
    assert_scalar(body, "/foo/0", "bar");
    assert_scalar(body, "/", "0");
    assert_scalar(body, "/a~1b", "1");
    assert_scalar(body, "/c%d", "2");
    assert_scalar(body, "/e^f", "3");
    assert_scalar(body, "/g|h", "4");
    assert_scalar(body, "/i\\j", "5");
    assert_scalar(body, "/k\"l", "6");
    assert_scalar(body, "/ ", "7");
    assert_scalar(body, "/m~0n", "8");
}

/* In a name ~01 is ~1 and no slash; no name is found by a part of it. */
CASE(a_pointer_finds_no_other_name)
{
    const char *body = "{\"~1\":1,\"ab\":{\"cd\":2},\"a\":3,\"/\":4}";

    assert_scalar(body, "/~01", "1");
    assert_scalar(body, "/~1", "4");
    assert_scalar(body, "/ab/cd", "2");
    assert_scalar(body, "/a", "3");
    assert_no_scalar(body, "/abc", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/ab/c", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/a/cd", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/cd", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/ab/cd/", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/~1~1", HAPAX__JSON_ABSENT);
}

/* An element has one index, and only in an array. */
CASE(an_index_is_a_number_without_leading_zeros)
{
    const char *body = "[0,1,2,3,4,5,6,7,8,9,\"ten\",[\"deep\"]]";

    assert_scalar(body, "/0", "0");
    assert_scalar(body, "/9", "9");
    assert_scalar(body, "/10", "ten");
    assert_scalar(body, "/11/0", "deep");
    assert_no_scalar(body, "/12", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/00", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/01", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/-", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/-1", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/1e0", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/", HAPAX__JSON_ABSENT);
    assert_no_scalar(body, "/110", HAPAX__JSON_ABSENT);
    assert_scalar("{\"01\":\"x\",\"-\":\"y\"}", "/01", "x");
    assert_scalar("{\"01\":\"x\",\"-\":\"y\"}", "/-", "y");
}

/* A pointer may be as deep as a document, and one that is deeper finds nothing. */
CASE(a_deep_pointer_finds_as_deep_a_value)
{
    char body[3 * 64 + 1];
    char pointer[2 * 66 + 1];

    memset(body, '[', 64);
    body[64] = '7';
    memset(body + 65, ']', 64);
    body[129] = '\0';
    for (size_t i = 0; i < 66; i++)
        memcpy(pointer + 2 * i, "/0", 2);
    pointer[128] = '\0';
    assert_scalar(body, pointer, "7");
    pointer[128] = '/';
    pointer[130] = '\0';
    assert_no_scalar(body, pointer, HAPAX__JSON_ABSENT);
}

/* ---- keys in a body ---------------------------------------------------------------- */

/* A string gives its bytes, a number its canonical form; null names nothing. */
CASE(a_scalar_is_text)
{
    assert_scalar("\"caf\\u00e9\"", "", "caf\xc3\xa9");
    assert_scalar("{\"a\":\"\\\"q\\\"\"}", "/a", "\"q\"");
    assert_scalar("{\"a\":\"\"}", "/a", "");
    assert_scalar("{\"a\":1e3}", "/a", "1000");
    assert_scalar("{\"a\":-1.50}", "/a", "-15e-1");
    assert_scalar("[true,false]", "/0", "true");
    assert_scalar("[true,false]", "/1", "false");
    assert_no_scalar("{\"a\":null}", "/a", HAPAX__JSON_ABSENT);
    assert_no_scalar("{\"a\":{}}", "/a", HAPAX__JSON_NOT_SCALAR);
    assert_no_scalar("{\"a\":[1]}", "/a", HAPAX__JSON_NOT_SCALAR);
    assert_no_scalar("{}", "/a", HAPAX__JSON_ABSENT);
    assert_scalar("\"123456789012345\"", "", "123456789012345");
    assert_no_scalar("\"1234567890123456\"", "", HAPAX__JSON_TOO_LONG);
}

/* A body that is not certain gives no key, though the pointer found one in it. */
CASE(an_uncertain_body_gives_no_key)
{
    assert_no_scalar("{\"a\":1,\"a\":2}", "/a", HAPAX__JSON_NOT_CANONICAL);
    assert_no_scalar("{\"a\":1", "/a", HAPAX__JSON_NOT_CANONICAL);
    assert_no_scalar("{\"a\":1,\"b\":\"\\ud800\"}", "/a", HAPAX__JSON_NOT_CANONICAL);
}

/* ---- fingerprints ------------------------------------------------------------------ */

struct list {
    struct hapax_span pointers[HAPAX__JSON_POINTERS_MAX];
    size_t n;
};

/* The pointers of a text, one a word. */
static struct list list(const char *words)
{
    struct list list = {.n = 0};

    while (*words) {
        size_t len = strcspn(words, " ");

        list.pointers[list.n++] = (struct hapax_span){(const uint8_t *)words, len};
        words += len;
        words += *words == ' ';
    }
    return list;
}

static struct hapax_digest fingerprint(enum hapax__json_select select, const char *words,
                                       const char *body)
{
    struct list pointers = list(words);
    struct hapax_digest digest;

    if (hapax__json_fingerprint(&digest, hapax_str(body), select, pointers.pointers, pointers.n) !=
        HAPAX__JSON_OK)
        fail_msg("%s: not canonical", body);
    return digest;
}

static void assert_same(enum hapax__json_select select, const char *words, const char *a,
                        const char *b, bool same)
{
    struct hapax_digest x = fingerprint(select, words, a);
    struct hapax_digest y = fingerprint(select, words, b);

    if ((memcmp(&x, &y, sizeof(x)) == 0) != same)
        fail_msg("by \"%s\", %s and %s are %s", words, a, b, same ? "not the same" : "the same");
}

/* Only what was named counts, and all of it. */
CASE(only_included_fields_count)
{
    const enum hapax__json_select include = HAPAX__JSON_INCLUDE;

    assert_same(include, "/a", "{\"a\":1,\"b\":2}", "{\"b\":3,\"a\":1.0}", true);
    assert_same(include, "/a", "{\"a\":1,\"b\":2}", "{\"a\":2,\"b\":2}", false);
    assert_same(include, "/a", "{\"a\":{\"x\":1,\"y\":2}}", "{\"a\":{\"y\":2,\"x\":1}}", true);
    assert_same(include, "/a /b/0", "{\"a\":1,\"b\":[2,3]}", "{\"b\":[2,4],\"a\":1}", true);
    assert_same(include, "/a /b/0", "{\"a\":1,\"b\":[2,3]}", "{\"b\":[5,3],\"a\":1}", false);
    assert_same(include, "/a /a/x", "{\"a\":{\"x\":1}}", "{\"a\":{\"x\":1},\"b\":0}", true);
    assert_same(include, "/a /a", "{\"a\":1}", "{\"a\":2}", false);
}

/* Nothing, null, false and "" are four things; and a value knows by which pointer it was found. */
CASE(a_field_not_found_differs_from_null)
{
    const enum hapax__json_select include = HAPAX__JSON_INCLUDE;

    assert_same(include, "/a", "{}", "{\"a\":null}", false);
    assert_same(include, "/a", "{}", "{\"a\":\"\"}", false);
    assert_same(include, "/a", "{\"a\":false}", "{\"a\":null}", false);
    assert_same(include, "/a", "{}", "{\"b\":1}", true);
    assert_same(include, "/a /b", "{\"a\":1}", "{\"b\":1}", false);
    assert_same(include, "/a /b", "{\"a\":1,\"b\":2}", "{\"a\":2,\"b\":1}", false);
    assert_same(include, "/a/0", "{\"a\":[]}", "{\"a\":[null]}", false);
}

/* What was named does not count, nor whether it is there; all the rest does. */
CASE(excluded_fields_do_not_count)
{
    const enum hapax__json_select exclude = HAPAX__JSON_EXCLUDE;

    assert_same(exclude, "/b", "{\"a\":1,\"b\":2}", "{\"b\":{\"c\":[3]},\"a\":1}", true);
    assert_same(exclude, "/b", "{\"a\":1,\"b\":2}", "{\"a\":1}", true);
    assert_same(exclude, "/b", "{\"a\":1,\"b\":2}", "{\"a\":2,\"b\":2}", false);
    assert_same(exclude, "/b", "{\"b\":2}", "{}", true);
    assert_same(exclude, "/b /c", "{\"a\":1,\"b\":2,\"c\":3}", "{\"c\":9,\"a\":1}", true);
    assert_same(exclude, "/a/b", "{\"a\":{\"b\":1,\"c\":2}}", "{\"a\":{\"c\":2}}", true);
    assert_same(exclude, "/a/b", "{\"a\":{\"b\":1}}", "{}", false);
    assert_same(exclude, "/0", "[1,2,3]", "[9,2,3]", true);
    assert_same(exclude, "/2", "[1,2,3]", "[1,2]", true);
    assert_same(exclude, "/0 /1 /2", "[1,2,3]", "[]", true);
    assert_same(exclude, "/1", "[1,2,3]", "[1,2,4]", false);
    assert_same(exclude, "/0/x", "[{\"x\":1,\"y\":2}]", "[{\"y\":2}]", true);
    assert_same(exclude, "/a /a/b", "{\"a\":{\"b\":1}}", "{}", true);
}

/* Left out, a field is still read: twice in one object it makes the body uncertain. */
CASE(an_excluded_field_must_not_come_twice)
{
    const struct hapax_span b = hapax_str("/b");
    struct hapax_digest digest;

    assert_int_equal(hapax__json_fingerprint(&digest, hapax_str("{\"a\":1,\"b\":2,\"b\":3}"),
                                             HAPAX__JSON_EXCLUDE, &b, 1),
                     HAPAX__JSON_NOT_CANONICAL);
}

/* The document itself can be named: included it is all, excluded nothing is left. */
CASE(the_whole_can_be_named)
{
    const struct hapax_span whole = {NULL, 0};
    struct hapax_digest a;
    struct hapax_digest b;

    hapax__json_fingerprint(&a, hapax_str("{\"a\":1}"), HAPAX__JSON_EXCLUDE, &whole, 1);
    hapax__json_fingerprint(&b, hapax_str("[2]"), HAPAX__JSON_EXCLUDE, &whole, 1);
    assert_memory_equal(&a, &b, sizeof(a));
    hapax__json_fingerprint(&a, hapax_str("{\"a\":1}"), HAPAX__JSON_INCLUDE, &whole, 1);
    hapax__json_fingerprint(&b, hapax_str("[2]"), HAPAX__JSON_INCLUDE, &whole, 1);
    assert_memory_not_equal(&a, &b, sizeof(a));
}

/* No pointers is no selection, by either word: never a fingerprint that all bodies share. */
CASE(without_pointers_the_whole_counts)
{
    struct hapax_digest a = fingerprint(HAPAX__JSON_INCLUDE, "", "{\"a\":1,\"b\":2}");
    struct hapax_digest b = fingerprint(HAPAX__JSON_EXCLUDE, "", "{\"b\":2,\"a\":1}");

    assert_memory_equal(&a, &b, sizeof(a));
    assert_same(HAPAX__JSON_INCLUDE, "", "{\"a\":1}", "{\"a\":2}", false);
}

/* The fallback is the digest of the bytes, and never that of a canonical form. */
CASE(bytes_and_canonical_forms_do_not_meet)
{
    const struct hapax_span body = hapax_str("{\"a\":1}");
    const struct hapax_span twice = hapax_str("{\"a\":1,\"a\":1}");
    struct hapax_digest bytes;
    struct hapax_digest digest;

    hapax_digest(&bytes, &body, 1);
    assert_int_equal(hapax__json_fingerprint(&digest, body, HAPAX__JSON_EXCLUDE, NULL, 0),
                     HAPAX__JSON_OK);
    assert_memory_not_equal(&digest, &bytes, sizeof(bytes));
    hapax_digest(&bytes, &twice, 1);
    assert_int_equal(hapax__json_fingerprint(&digest, twice, HAPAX__JSON_EXCLUDE, NULL, 0),
                     HAPAX__JSON_NOT_CANONICAL);
    assert_memory_equal(&digest, &bytes, sizeof(bytes));
}

static void assert_hex(const struct hapax_digest *digest, const char *hex)
{
    char text[2 * 32 + 1];

    for (size_t i = 0; i < 32; i++)
        snprintf(text + 2 * i, 3, "%02x", digest->bytes[i]);
    assert_string_equal(text, hex);
}

/* Fingerprints lie in stores: these must come out the same in every later version. Made by another
 * program, with   from hashlib import sha256; L = lambda b: len(b).to_bytes(8, 'big') + b */
CASE(fingerprints_do_not_change)
{
    const char *body = "{\"b\":1.0,\"a\":0,\"t\":9}";
    struct hapax_digest whole = fingerprint(HAPAX__JSON_EXCLUDE, "/t", body);
    struct hapax_digest some = fingerprint(HAPAX__JSON_INCLUDE, "/a /c", body);

    /* sha256(L(b'json') + L(b'{"a":0,"b":1}')).hexdigest() */
    assert_hex(&whole, "3dc4a2d76a33019c01c7dfda39d807e7ac957055ac3cef0b7052cb54b3a0f915");
    /* sha256(L(b'json include') + L(b'/a') + L(sha256(L(b'0')).digest()) + L(b'/c') +
     *        L(b'')).hexdigest() */
    assert_hex(&some, "e6be2b0b5dc97bb9c322c6155298a419eff6db94f88deddffee5143e16f8284c");
}
