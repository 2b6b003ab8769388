/* SPDX-License-Identifier: Apache-2.0
 *
 * What the core reads and writes as text: keys, ids, digests, derived keys, names. Hashes are
 * compared with ones made by another program; the line that made each stands beside it, with
 *     from hashlib import sha256; import hmac
 *     L = lambda b, n=4: len(b).to_bytes(n, 'big') + b
 */
#include "base/bytes.h"
#include "base/span.h"
#include "base/utf8.h"
#include "core/id.h"
#include "core/key.h"
#include "core/question.h"
#include "core/trace.h"

#include <hapax/store.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct hapax_span filled(uint8_t *bytes, uint8_t c, size_t len)
{
    memset(bytes, c, len);
    return (struct hapax_span){bytes, len};
}

static void assert_hex(const uint8_t *bytes, size_t len, const char *hex)
{
    char text[2 * 32 + 1] = "";

    assert_true(2 * len < sizeof(text));
    for (size_t i = 0; i < len; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(text, hex);
}

/* ---- keys -------------------------------------------------------------------------- */

/* Every character at every place: eight places are read at once, and those that are left one by
 * one. */
static void hex_is_read_in_small_letters_alone(void **state)
{
    char digits[2 * 7 + 1];
    uint8_t out[7];

    (void)state;
    for (size_t at = 0; at < 14; at++)
        for (unsigned c = 0; c < 256; c++) {
            const char *found = c ? strchr("0123456789abcdef", (int)c) : NULL;
            char expected[15];

            (void)snprintf(digits, sizeof(digits), "09af19bc07ed5a");
            digits[at] = (char)c;
            memcpy(expected, digits, sizeof(expected));
            assert_int_equal(hapax__unhex(out, (const uint8_t *)digits, 7), found != NULL);
            if (found)
                assert_hex(out, 7, expected);
        }
}

/* Every byte, and every length: sixteen bytes are written at once, then four, then one. */
static void hex_is_written_in_small_letters(void **state)
{
    uint8_t bytes[256];
    char expected[2 * sizeof(bytes) + 1], got[2 * sizeof(bytes) + 1];

    (void)state;
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)i;
        (void)snprintf(expected + 2 * i, 3, "%02zx", i);
    }
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        const uint8_t *from = bytes + sizeof(bytes) - len;

        memset(got, '!', sizeof(got));
        assert_ptr_equal(hapax__hex(got, from, len), got + 2 * len);
        assert_memory_equal(got, expected + 2 * (sizeof(bytes) - len), 2 * len);
        assert_int_equal(got[2 * len], '!');
    }
}

/* Parses in a block of exactly its size, so that a sanitizer sees a read beyond the end. */
static enum hapax_error parse(uint8_t out[HAPAX_KEY_MAX], size_t *len, struct hapax_span value,
                              const char **why)
{
    uint8_t *copy = malloc(value.len > 0 ? value.len : 1);
    enum hapax_error error;

    assert_non_null(copy);
    if (value.len > 0)
        memcpy(copy, value.ptr, value.len);
    error = hapax_key_parse(out, len, (struct hapax_span){copy, value.len}, why);
    free(copy);
    return error;
}

static void assert_key(const char *value, const char *key)
{
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 0;
    const char *why = "";

    if (parse(out, &len, hapax_str(value), &why) != HAPAX_ERR_NONE)
        fail_msg("%s: refused: %s", value, why);
    assert_null(why);
    assert_int_equal(len, strlen(key));
    assert_memory_equal(out, key, len);
}

static void assert_refused(struct hapax_span value, const char *reason)
{
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 0;
    const char *why = NULL;

    if (parse(out, &len, value, &why) != HAPAX_ERR_INVALID)
        fail_msg("%.*s: accepted", (int)value.len, (const char *)value.ptr);
    if (!strstr(why, reason))
        fail_msg("%.*s: \"%s\" does not say \"%s\"", (int)value.len, (const char *)value.ptr, why,
                 reason);
}

/* An RFC 8941 String and a bare token of the same characters are the same key. */
static void a_key_is_the_same_quoted_or_bare(void **state)
{
    assert_key("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", "8e03978e-40d5-43dd-bc93-6894a57f9324");
    assert_key("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324");
    assert_key("\"k\"", "k");
    assert_key("k", "k");
    assert_key("AZaz09_.:~+/=-", "AZaz09_.:~+/=-");
    assert_key("\"AZaz09_.:~+/=-\"", "AZaz09_.:~+/=-");
    assert_key("-", "-");
    assert_key("=", "=");
}

/* Quotes admit every printable character, spaces and commas too; backslash escapes two of them. */
static void a_quoted_key_holds_any_printable_character(void **state)
{
    assert_key("\"a b\"", "a b");
    assert_key("\" \"", " ");
    assert_key("\"a,b;c=d\"", "a,b;c=d");
    assert_key("\"\\\"\\\\\"", "\"\\");
    assert_key("\"!#$%&'()*+,-./:;<=>?@[]^_`{|}~\"", "!#$%&'()*+,-./:;<=>?@[]^_`{|}~");
}

/* White space around the value is the header's, not the key's. */
static void space_around_a_value_is_no_part_of_it(void **state)
{
    assert_key(" \t k \t ", "k");
    assert_key("\t\"k\" ", "k");
    assert_key(" \" k \" ", " k ");
    assert_key("\"k\";a \t", "k");
}

/* Every kind of bare item that RFC 8941 knows may be a parameter's value, and changes nothing. */
static void parameters_do_not_change_a_key(void **state)
{
    static const char *const values[] = {
        "\"k\";a",
        "\"k\";  a",
        "\"k\";*",
        "\"k\";*a0_-.*",
        "\"k\";a;b;c",
        "\"k\";a=1;a=2",
        "\"k\";a=0",
        "\"k\";a=-0",
        "\"k\";a=00001",
        "\"k\";a=999999999999999",
        "\"k\";a=-999999999999.999",
        "\"k\";a=1.5",
        "\"k\";a=token",
        "\"k\";a=*t!#$%&'*+-.^_`|~:/9",
        "\"k\";a=Zz",
        "\"k\";a=\"a string, with \\\"quotes\\\" and \\\\\"",
        "\"k\";a=\"\"",
        "\"k\";a=::",
        "\"k\";a=:aGFw+/8=:",
        "\"k\";a=:a:",
        "\"k\";a=?0;b=?1",
    };

    for (size_t i = 0; i < COUNT(values); i++)
        assert_key(values[i], "k");
}

/* A parameter that RFC 8941 does not allow refuses the whole value. */
static void a_malformed_parameter_is_refused(void **state)
{
    static const char *const values[] = {
        "\"k\";",
        "\"k\"; ",
        "\"k\" ;a",
        "\"k\";A",
        "\"k\";1",
        "\"k\";\ta",
        "\"k\";a=",
        "\"k\";a= 1",
        "\"k\";a =1",
        "\"k\";a=-",
        "\"k\";a=-a",
        "\"k\";a=1.",
        "\"k\";a=.5",
        "\"k\";a=1.2345",
        "\"k\";a=+1",
        "\"k\";a=1234567890123456",
        "\"k\";a=1234567890123.1",
        "\"k\";a=\"b",
        "\"k\";a=\"\\b\"",
        "\"k\";a=\"\xc3\xa9\"",
        "\"k\";a=:YQ==",
        "\"k\";a=:Y Q:",
        "\"k\";a=?",
        "\"k\";a=?2",
        "\"k\";a=?11",
        "\"k\";a=@1",
        "\"k\";a=(1)",
        "\"k\"x",
        "\"k\"\"l\"",
        "\"k\" \"l\"",
        "\"k\";a=1x",
        "\"k\";a\"",
        "\"k\" k",
    };

    for (size_t i = 0; i < COUNT(values); i++)
        assert_refused(hapax_str(values[i]), "no valid parameter");
}

/* Each way to get a key wrong has its own reason. */
static void a_refused_key_is_told_why(void **state)
{
    static const struct {
        const char *value;
        const char *reason;
    } cases[] = {
        {"", "is empty"},
        {" \t ", "is empty"},
        {"\"\"", "is empty"},
        {"\"\";a", "is empty"},
        {"a,b", "repeated"},
        {",", "repeated"},
        {"a, \"b\"", "repeated"},
        {"\"a\",\"b\"", "repeated"},
        {"\"a\" , \"b\"", "repeated"},
        {"\"a\"\t \t,\"b\"", "repeated"},
        {"\"a\";p=1,\"b\"", "repeated"},
        {"\"a\",", "repeated"},
        {"caf\xc3\xa9", "not ASCII"},
        {"\"caf\xc3\xa9\"", "not ASCII"},
        {"\"\x80\"", "not ASCII"},
        {"\x80", "not ASCII"},
        {"a\x01", "control"},
        {"a\x7f", "control"},
        {"\"a\tb\"", "control"},
        {"\"a\x1f\"", "control"},
        {"\"a\x7f\"", "control"},
        {"\"a\nb\"", "control"},
        {"\"\\n\"", "backslash"},
        {"\"\\\xc3\"", "backslash"},
        {"\"k", "closing quote"},
        {"\"", "closing quote"},
        {"\"k\\", "closing quote"},
        {"\"k\\\"", "closing quote"},
        {"a b", "space outside quotes"},
        {"a\tb", "space outside quotes"},
        {"k;a=1", "parameters may follow a quoted key only"},
        {"k\"", "must be quoted"},
        {"'k'", "must be quoted"},
        {"k@home", "must be quoted"},
        {"{k}", "must be quoted"},
    };

    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(hapax_str(cases[i].value), cases[i].reason);
    assert_refused((struct hapax_span){(const uint8_t *)"a\0b", 3}, "control");
    assert_refused((struct hapax_span){(const uint8_t *)"\"a\0\"", 4}, "control");
    assert_refused((struct hapax_span){(const uint8_t *)"\"a\";\0", 5}, "no valid parameter");
    assert_refused((struct hapax_span){NULL, 0}, "is empty");
}

/* 255 bytes are a key and 256 are none; an escape counts as the one byte it stands for. */
static void a_key_has_at_most_255_bytes(void **state)
{
    char value[2 * 256 + 3];
    char key[256];

    memset(key, 'k', 255);
    key[255] = '\0';
    assert_key(key, key);
    snprintf(value, sizeof(value), "\"%s\"", key);
    assert_key(value, key);
    snprintf(value, sizeof(value), "%sk", key);
    assert_refused(hapax_str(value), "255 bytes");
    snprintf(value, sizeof(value), "\"%sk\"", key);
    assert_refused(hapax_str(value), "255 bytes");
    memset(key, '\\', 255);
    memset(value, '\\', 512);
    value[0] = value[511] = '"';
    value[512] = '\0';
    assert_key(value, key);
}

/* ---- ids --------------------------------------------------------------------------- */

static void assert_id(struct hapax_span scope, struct hapax_span key, struct hapax_span step,
                      struct hapax_span secret, const char *hex)
{
    struct hapax_id id;

    assert_int_equal(hapax_id(&id, scope, key, step, secret), HAPAX_ERR_NONE);
    assert_hex(id.bytes, sizeof(id.bytes), hex);
}

/* Ids are those another program computes from DESIGN's definition. */
static void an_id_is_the_documented_hash(void **state)
{
    const struct hapax_span none = {NULL, 0};
    uint8_t a[255];
    uint8_t b[255];
    uint8_t c[64];

    /* sha256(L(b'default') + L(b'k')).hexdigest() */
    assert_id(hapax_str("default"), hapax_str("k"), none, none,
              "ad936fb3bdc705c4e62ff6e49529a8f542a5ceb6bdcbdc469e05387cc386335e");
    /* sha256(L(b'default') + L(b'k') + L(b'charge')).hexdigest() */
    assert_id(hapax_str("default"), hapax_str("k"), hapax_str("charge"), none,
              "be645d39f90387bf4c40b5e887b2d43588f1e8530634135738bc55b160fcd5df");
    /* sha256(L(b's' * 255) + L(b'\0' * 255) + L(b't' * 64)).hexdigest() */
    assert_id(filled(a, 's', 255), filled(b, 0, 255), filled(c, 't', 64), none,
              "8bf128ad370dadce582293180a0ce5d8335a39b99caba825137d79efc2508036");
}

/* A secret makes it an HMAC, whether it fills a block of the hash or is longer than one. */
static void an_id_under_a_secret_is_the_hmac(void **state)
{
    const struct hapax_span none = {NULL, 0};
    uint8_t secret[65];

    /* hmac.new(b's', L(b'default') + L(b'k'), 'sha256').hexdigest() */
    assert_id(hapax_str("default"), hapax_str("k"), none, filled(secret, 's', 1),
              "a80efed63c7638386cc1cac829ea3c749f3d73a4b1e808a5e8bb4385ea729e14");
    /* hmac.new(b's' * 64, L(b'default') + L(b'k'), 'sha256').hexdigest() */
    assert_id(hapax_str("default"), hapax_str("k"), none, filled(secret, 's', 64),
              "aff83c011dfc0a1ee083147c8273d79d5a270dd63228511af04166d4cfd28373");
    /* hmac.new(b's' * 65, L(b'default') + L(b'k') + L(b'charge'), 'sha256').hexdigest() */
    assert_id(hapax_str("default"), hapax_str("k"), hapax_str("charge"), filled(secret, 's', 65),
              "a041684e312f5dd2e6ccae3ec120941c15e98a2e461966139aa3ffc06c3d603c");
}

/* An owner's ids are its own, and differ from all ids without one. docs/keeper.md has them. */
static void an_owner_has_ids_of_its_own(void **state)
{
    const struct hapax_span none = {NULL, 0}, acme = hapax_str("acme"), k = hapax_str("k");
    const struct hapax_span scope = hapax_str("default"), s = hapax_str("s");
    struct hapax_id id, other;
    struct hapax_digest owner;

    /* sha256(L(b'') + L(b'acme') + L(b'default') + L(b'k')).hexdigest() */
    assert_int_equal(hapax_owned_id(&id, acme, scope, k, none, none), HAPAX_ERR_NONE);
    assert_hex(id.bytes, 32, "27f52045f4291f35f0c0c76304526991a3bed1a2dc979863a3b611535738ecc1");
    assert_int_equal(hapax_owned_id(&id, acme, scope, k, hapax_str("charge"), none),
                     HAPAX_ERR_NONE);
    assert_hex(id.bytes, 32, "745aed7a8b831111d418942b05813085ee25387060b283daf5c34713892d9967");
    assert_int_equal(hapax_owned_id(&id, acme, scope, k, none, s), HAPAX_ERR_NONE);
    assert_hex(id.bytes, 32, "5d1a6b9c7dd5ef6cc4ad2f37e3b17d749d0bb91af63c96218dda82be576f1537");
    assert_int_equal(hapax_owned_id(&id, none, scope, k, none, s), HAPAX_ERR_NONE);
    assert_int_equal(hapax_id(&other, scope, k, none, s), HAPAX_ERR_NONE);
    assert_memory_equal(&id, &other, sizeof(id));
    assert_int_equal(hapax_owner(&owner, acme, none), HAPAX_ERR_NONE);
    assert_hex(owner.bytes, 32, "611983f3442023dd35a95d72af857c0cda17c843641f69ac45de44dac747ea22");
    assert_int_equal(hapax_owner(&owner, acme, s), HAPAX_ERR_NONE);
    assert_hex(owner.bytes, 32, "3e4afd645e3d6c59630112a4f42a67c0c2cb325ef874a64618c5f0253f55707a");
}

/* A record keeps of a token the first half of its hash. */
static void a_mark_is_half_of_the_tokens_hash(void **state)
{
    struct hapax_token token;
    struct hapax_mark mark;

    for (uint8_t i = 0; i < sizeof(token.bytes); i++)
        token.bytes[i] = (uint8_t)(0xa0 + i);
    hapax__mark(&mark, &token);
    /* sha256(bytes(range(0xa0, 0xb0))).hexdigest()[:32] */
    assert_hex(mark.bytes, sizeof(mark.bytes), "503563c1bda45327ff4617750a06bd81");
}

static struct hapax__flow_request identified(struct hapax_span owner, struct hapax_span step,
                                             struct hapax_span secret)
{
    struct hapax__flow_request question = {.scope = hapax_str("default")};

    for (uint8_t i = 0; i < 32; i++) {
        question.fingerprint.bytes[i] = (uint8_t)(0x40 + i);
        question.caller.bytes[i] = (uint8_t)(0x80 + i);
    }
    assert_int_equal(hapax__identify(&question, owner, hapax_str("k"), step,
                                     &(const struct hapax__secrets){.now = secret}),
                     HAPAX_ERR_NONE);
    return question;
}

/* With a secret a record keeps HMACs of fingerprint and caller, each of its own kind. Without a
 * secret it keeps them as they are, and so it does in a list of steps, which is known by its
 * fingerprint. docs/keeper.md has them. */
static void fingerprint_and_caller_are_put_under_the_secret(void **state)
{
    const struct hapax_span none = {NULL, 0}, acme = hapax_str("acme"), s = hapax_str("s");
    const struct hapax__flow_request plain = identified(none, none, none);
    struct hapax__flow_request question = identified(acme, none, s);
    struct hapax_digest owner;
    struct hapax_id id;

    assert_int_equal(plain.fingerprint.bytes[0], 0x40);
    assert_int_equal(plain.caller.bytes[31], 0x9f);
    assert_int_equal(hapax_owned_id(&id, acme, hapax_str("default"), hapax_str("k"), none, s),
                     HAPAX_ERR_NONE);
    assert_memory_equal(&question.id, &id, sizeof(id));
    assert_int_equal(hapax_owner(&owner, acme, s), HAPAX_ERR_NONE);
    assert_memory_equal(&question.owner, &owner, sizeof(owner));
    /* hmac.new(b's', b'fingerprint' + bytes(range(0x40, 0x60)), 'sha256').hexdigest() */
    assert_hex(question.fingerprint.bytes, 32,
               "616a1718bc3eea485de82be1f65e19cc55f4ecc6831476eb60e2535b1e3f3be3");
    /* hmac.new(b's', b'caller' + bytes(range(0x80, 0xa0)), 'sha256').hexdigest() */
    assert_hex(question.caller.bytes, 32,
               "2b32f37db7f09a7fa18b391ad05909d0e61282ac1eae4aa7ae14e53f2437f291");
    question = identified(hapax_str("a"), none, s); /* the shortest owner */
    assert_int_equal(hapax_owner(&owner, hapax_str("a"), s), HAPAX_ERR_NONE);
    assert_memory_equal(&question.owner, &owner, sizeof(owner));
    question = identified(none, hapax_str("charge"), s);
    assert_hex(question.fingerprint.bytes, 32,
               "616a1718bc3eea485de82be1f65e19cc55f4ecc6831476eb60e2535b1e3f3be3");
    question = identified(none, hapax_str(".1"), s);
    assert_memory_equal(&question.fingerprint, &plain.fingerprint, sizeof(plain.fingerprint));
    assert_memory_equal(&question.caller, &plain.caller, sizeof(plain.caller));
}

/* While the secret is changed it has both names, each as the secret alone would give it. */
static void a_question_has_a_name_under_each_secret(void **state)
{
    const struct hapax_span now = hapax_str("s"), old = hapax_str("t"), none = hapax_str(NULL);
    const struct hapax__flow_request of_now = identified(hapax_str("acme"), none, now);
    const struct hapax__flow_request of_old = identified(hapax_str("acme"), none, old);
    struct hapax__flow_request both = {.scope = hapax_str("default")};

    for (uint8_t i = 0; i < 32; i++) {
        both.fingerprint.bytes[i] = (uint8_t)(0x40 + i);
        both.caller.bytes[i] = (uint8_t)(0x80 + i);
    }
    assert_int_equal(hapax__identify(&both, hapax_str("acme"), hapax_str("k"), none,
                                     &(const struct hapax__secrets){.now = now, .old = old}),
                     HAPAX_ERR_NONE);
    assert_false(of_now.has_old);
    assert_true(both.has_old);
    assert_memory_equal(&both.id, &of_now.id, sizeof(both.id));
    assert_memory_equal(&both.old.id, &of_old.id, sizeof(both.id));
    assert_memory_equal(&both.old.owner, &of_old.owner, sizeof(both.owner));
    assert_memory_equal(&both.old.fingerprint, &of_old.fingerprint, sizeof(both.fingerprint));
    assert_memory_equal(&both.old.caller, &of_old.caller, sizeof(both.caller));
}

/* A name over its limit makes no question, and changes none. */
static void a_question_with_a_wrong_name_stays_as_it_was(void **state)
{
    struct hapax__flow_request question = {.scope = hapax_str("default")}, was = question;

    assert_int_equal(hapax__identify(&question, hapax_str(NULL), hapax_str(NULL), hapax_str(NULL),
                                     &(const struct hapax__secrets){.now = hapax_str("s")}),
                     HAPAX_ERR_INVALID);
    assert_memory_equal(&question.id, &was.id, sizeof(was.id));
    assert_memory_equal(&question.fingerprint, &was.fingerprint, sizeof(was.fingerprint));
}

/* No two of all the ways to cut a few bytes into owner, scope, key and step have one id. */
static void no_two_names_share_an_id(void **state)
{
    static const char *const texts[] = {"",
                                        "a",
                                        "b",
                                        "aa",
                                        "ab",
                                        "\x01",
                                        ("\x01"
                                         "a")};
    enum { N = sizeof(texts) / sizeof(texts[0]) };
    static struct hapax_id ids[N * N * N * N];
    const struct hapax_span none = {NULL, 0};
    size_t count = 0;

    for (size_t i = 0; i < (size_t)N * N * N * N; i++)
        count += hapax_owned_id(&ids[count], hapax_str(texts[i % N]), hapax_str(texts[i / N % N]),
                                hapax_str(texts[i / N / N % N]), hapax_str(texts[i / N / N / N]),
                                none) == HAPAX_ERR_NONE;
    assert_int_equal(count, N * (N - 1) * (N - 1) * N);
    for (size_t i = 0; i < count; i++)
        for (size_t j = i + 1; j < count; j++)
            assert_memory_not_equal(&ids[i], &ids[j], sizeof(ids[i]));
}

/* What an operation is, as a record keeps it. */
static void what_an_operation_is_can_be_shown(void **state)
{
    static const struct {
        const char *parts[3];
        const char *what;
    } cases[] = {
        {{"POST", "/payments", ""}, "POST /payments"},
        {{"", "", ""}, ""},
        {{"", "orders", ""}, "orders"},
        {{"POST /pay", "step", "charge"}, "POST /pay step charge"},
        {{"a\r\nb\x7f\x1b[31m", "\xc2\x9b", "\xff\xc3"}, "a??b??[31m ? ??"},
        {{"\xc3\xa9t\xc3\xa9", "\xf0\x9f\x98\x80", ""}, "\xc3\xa9t\xc3\xa9 \xf0\x9f\x98\x80"},
        {{"\xc2\x9f\xc2\xa0", "", ""}, "?\xc2\xa0"},
    };
    const struct hapax_span half = {(const uint8_t *)"a\xc3\xa9", 2};
    uint8_t shown[HAPAX_WHAT_MAX];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hapax_span parts[3];
        uint8_t out[HAPAX_WHAT_MAX];
        size_t len;

        for (size_t j = 0; j < 3; j++)
            parts[j] = hapax_str(cases[i].parts[j]);
        len = hapax_what(out, parts, 3);
        assert_int_equal(len, strlen(cases[i].what));
        assert_memory_equal(out, cases[i].what, len);
    }
    assert_int_equal(hapax_what(shown, &half, 1), 2);
    assert_memory_equal(shown, "a?", 2);
}

/* Where no room is left for the blank before a part, the part before it is cut. */
static void what_is_cut_at_a_part_that_does_not_fit(void **state)
{
    char first[HAPAX_WHAT_MAX + 1];
    const struct hapax_span parts[] = {{(uint8_t *)first, HAPAX_WHAT_MAX}, hapax_str("b")};
    uint8_t out[HAPAX_WHAT_MAX];

    memset(first, 'a', sizeof(first));
    assert_int_equal(hapax_what(out, parts, 2), HAPAX_WHAT_MAX);
    assert_memory_equal(out, first, HAPAX_WHAT_MAX - 3);
    assert_memory_equal(out + HAPAX_WHAT_MAX - 3, "\xe2\x80\xa6", 3);
}

/* Of a text of any length as much is kept as fits, whole characters, and a mark where it is cut. */
static void what_is_too_long_is_cut_between_characters(void **state)
{
    uint8_t text[300], out[HAPAX_WHAT_MAX];

    for (size_t lead = 0; lead < 4; lead++)
        for (size_t len = 250; len < sizeof(text); len++) {
            struct hapax_span part = {text, len};
            size_t kept;

            memset(text, 'x', sizeof(text));
            for (size_t i = lead; i + 2 <= sizeof(text); i += 2)
                memcpy(text + i, "\xc3\xa9", 2);
            while (!hapax__is_utf8(part))
                part.len--;
            kept = hapax_what(out, &part, 1);
            assert_true(hapax__is_utf8((struct hapax_span){out, kept}));
            if (part.len <= HAPAX_WHAT_MAX) {
                assert_int_equal(kept, part.len);
                continue;
            }
            assert_in_range(kept, HAPAX_WHAT_MAX - 1, HAPAX_WHAT_MAX);
            assert_memory_equal(out, text, kept - 3);
            assert_memory_equal(out + kept - 3, "\xe2\x80\xa6", 3);
        }
}

/* Every limit of a name refuses it, and nothing else does. */
static void an_id_of_names_over_their_limits_is_refused(void **state)
{
    const struct hapax_span none = {NULL, 0};
    const struct hapax_span k = hapax_str("k");
    uint8_t bytes[256];
    struct hapax_span over = filled(bytes, 'x', 256);
    struct hapax_digest owner;
    struct hapax_id id;

    assert_int_equal(hapax_id(&id, none, k, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, over, k, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, none, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, over, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_owned_id(&id, over, k, k, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_owner(&owner, over, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_owner(&owner, none, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, k, (struct hapax_span){bytes, 65}, none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, k, hapax_str("a:b"), none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, k, hapax_str(":"), none), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_id(&id, k, k, (struct hapax_span){bytes, 64}, none), HAPAX_ERR_NONE);
    over.len = HAPAX_OWNER_MAX;
    assert_int_equal(hapax_owned_id(&id, over, k, k, none, none), HAPAX_ERR_NONE);
    assert_int_equal(hapax_owner(&owner, over, none), HAPAX_ERR_NONE);
}

/* A byte moved from one part to the next gives another digest. */
static void a_digest_knows_where_its_parts_end(void **state)
{
    const struct hapax_span ab_c[] = {hapax_str("ab"), hapax_str("c")};
    const struct hapax_span a_bc[] = {hapax_str("a"), hapax_str("bc")};
    const struct hapax_span empty[] = {hapax_str(NULL)};
    struct hapax_digest digest;

    /* sha256(L(b'ab', 8) + L(b'c', 8)).hexdigest() */
    hapax_digest(&digest, ab_c, 2);
    assert_hex(digest.bytes, 32,
               "601d5476e2ccfe2c87a2bba7a322659734a05749d5b5aa781f513e4912db0d5f");
    /* sha256(L(b'a', 8) + L(b'bc', 8)).hexdigest() */
    hapax_digest(&digest, a_bc, 2);
    assert_hex(digest.bytes, 32,
               "3fafa1cf2f19a7c1129beb20cf0983f73a489a221fc0dd2f16d1be292d089205");
    /* sha256(L(b'', 8)).hexdigest() */
    hapax_digest(&digest, empty, 1);
    assert_hex(digest.bytes, 32,
               "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc");
    /* sha256(b'').hexdigest() */
    hapax_digest(&digest, NULL, 0);
    assert_hex(digest.bytes, 32,
               "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

/* A span of a C string leaves its NUL out, and NULL is an empty one. */
static void a_span_of_a_string_has_its_bytes(void **state)
{
    assert_int_equal(hapax_str("abc").len, 3);
    assert_memory_equal(hapax_str("abc").ptr, "abc", 3);
    assert_int_equal(hapax_str("").len, 0);
    assert_int_equal(hapax_str(NULL).len, 0);
    assert_null(hapax_str(NULL).ptr);
}

/* ---- derived keys ------------------------------------------------------------------ */

/* `KEY:step` as long as it is a key, and a hash of it from the first byte over; never cut. */
static void a_derived_key_is_never_cut(void **state)
{
    uint8_t bytes[255];
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 0;

    assert_int_equal(hapax_key_derive(out, &len, hapax_str("k:1"), hapax_str("charge")),
                     HAPAX_ERR_NONE);
    assert_int_equal(len, 10);
    assert_memory_equal(out, "k:1:charge", 10);
    assert_int_equal(hapax_key_derive(out, &len, filled(bytes, 'k', 248), hapax_str("charge")),
                     HAPAX_ERR_NONE);
    assert_int_equal(len, 255);
    assert_memory_equal(out, bytes, 248);
    assert_memory_equal(out + 248, ":charge", 7);
    /* 'sha256-' + sha256(b'k' * 250 + b':charge').hexdigest() */
    assert_int_equal(hapax_key_derive(out, &len, filled(bytes, 'k', 250), hapax_str("charge")),
                     HAPAX_ERR_NONE);
    assert_int_equal(len, 71);
    assert_memory_equal(
        out, "sha256-faa0fc6789ea00ec385c95b7523f3afa59c928c34aa36b6af3dbb3a14f22bfed", 71);
    assert_int_equal(hapax_key_derive(out, &len, filled(bytes, 'k', 249), hapax_str("charge")),
                     HAPAX_ERR_NONE);
    assert_int_equal(len, 71);
}

/* A derived key is a key that the next service's door reads: quoted, or bare where it can be. */
static void a_derived_key_is_a_key_again(void **state)
{
    uint8_t bytes[255];
    uint8_t out[HAPAX_KEY_MAX];
    uint8_t parsed[HAPAX_KEY_MAX];
    size_t len = 0;
    size_t parsed_len = 0;
    const char *why;

    assert_int_equal(hapax_key_derive(out, &len, filled(bytes, 'k', 255), hapax_str("refund")),
                     HAPAX_ERR_NONE);
    assert_int_equal(parse(parsed, &parsed_len, (struct hapax_span){out, len}, &why),
                     HAPAX_ERR_NONE);
    assert_int_equal(parsed_len, len);
    assert_memory_equal(parsed, out, len);
}

/* Without a key or a step, or over a limit, nothing is derived. */
static void nothing_is_derived_from_invalid_names(void **state)
{
    uint8_t bytes[256];
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 7;
    struct hapax_span over = filled(bytes, 'k', 256);
    const struct hapax_span k = hapax_str("k");

    assert_int_equal(hapax_key_derive(out, &len, hapax_str(""), k), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_key_derive(out, &len, over, k), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_key_derive(out, &len, k, hapax_str("")), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_key_derive(out, &len, k, hapax_str("a:b")), HAPAX_ERR_INVALID);
    assert_int_equal(hapax_key_derive(out, &len, k, (struct hapax_span){bytes, 65}),
                     HAPAX_ERR_INVALID);
    assert_int_equal(len, 7);
}

/* ---- keys of events ----------------------------------------------------------------- */

static void assert_event_key(struct hapax_span source, struct hapax_span id, const char *key)
{
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 0;

    assert_int_equal(hapax__key_of_event(out, &len, source, id), HAPAX_ERR_NONE);
    assert_int_equal(len, strlen(key));
    assert_memory_equal(out, key, len);
}

/* As text where the one space tells them apart, and else as a hash of both; never cut. */
static void the_key_of_an_event_names_its_source_and_id(void **state)
{
    uint8_t bytes[HAPAX__EVENT_NAME_MAX];
    char key[HAPAX_KEY_MAX + 1] = "";

    assert_event_key(hapax_str("/orders"), hapax_str("A-1 x"), "/orders A-1 x");
    memset(key, 's', 253);
    memcpy(key + 253, " 1", 2);
    assert_event_key(filled(bytes, 's', 253), hapax_str("1"), key);
    /* 'sha256-' + sha256(L(b's' * 254, 8) + L(b'1', 8)).hexdigest(), and so on */
    assert_event_key(filled(bytes, 's', 254), hapax_str("1"),
                     "sha256-e15dbb46bec2938419191135bb03e37d83ec60658eb69e43aa803779beb093eb");
    assert_event_key(filled(bytes, 's', HAPAX__EVENT_NAME_MAX), hapax_str("1"),
                     "sha256-b874c6dd0c6dda7dfd88480d2d1d6859dda6cba37eb2cf19e2363b59aaf07583");
    assert_event_key(hapax_str("1"), filled(bytes, 's', HAPAX__EVENT_NAME_MAX),
                     "sha256-77f197b2ce0535eef8adafc9bf79c216f336c59b5d40833754a2127132785920");
    assert_event_key(hapax_str("/a b"), hapax_str("c"),
                     "sha256-41ed01389860015d62c3bee9f5d3add97a801bd919769f39fcba8da89bd2173b");
    assert_event_key(hapax_str("/a"), hapax_str("b c"), "/a b c");
    assert_event_key(hapax_str("/a"), hapax_str("\xc3\xa9"),
                     "sha256-00e57c2356c18d4c27304ab6d8adfdd86a62100d29bd01182f9286acf8491a1e");
    assert_event_key(hapax_str("/a"), hapax_str("1\n"),
                     "sha256-e7ed330021025e356c418ee912c46f41dfda1796a61ab07d3ba78228fc9a3994");
}

/* What the HTTP door is given in quotes is the key that it makes itself. */
static void the_key_of_an_event_can_be_quoted(void **state)
{
    uint8_t out[HAPAX_KEY_MAX];
    uint8_t parsed[HAPAX_KEY_MAX];
    size_t len = 0;
    size_t parsed_len = 0;
    const char *why;

    assert_int_equal(hapax__key_of_event(out, &len, hapax_str("/o"), hapax_str("a\"b")),
                     HAPAX_ERR_NONE);
    assert_int_equal(parse(parsed, &parsed_len, hapax_str("\"/o a\\\"b\""), &why), HAPAX_ERR_NONE);
    assert_int_equal(parsed_len, len);
    assert_memory_equal(parsed, out, len);
}

/* What the doors hand on is what a door reads; what no String holds is left to them. */
static void a_key_is_quoted_as_it_is_read(void **state)
{
    uint8_t out[HAPAX__KEY_QUOTED_MAX], parsed[HAPAX_KEY_MAX], bytes[HAPAX_KEY_MAX + 1];
    const struct hapax_span keys[] = {hapax_str("k"), hapax_str("a \"b\" \\ ~"),
                                      filled(bytes, '"', HAPAX_KEY_MAX)};
    size_t len = 7, parsed_len = 0;
    const char *why;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        assert_true(hapax__key_quote(out, &len, keys[i]));
        assert_int_equal(parse(parsed, &parsed_len, (struct hapax_span){out, len}, &why),
                         HAPAX_ERR_NONE);
        assert_int_equal(parsed_len, keys[i].len);
        assert_memory_equal(parsed, keys[i].ptr, parsed_len);
    }
    len = 7;
    assert_false(hapax__key_quote(out, &len, hapax_str("")));
    assert_false(hapax__key_quote(out, &len, hapax_str("\xc3\xa9")));
    assert_false(hapax__key_quote(out, &len, hapax_str("\t")));
    assert_false(hapax__key_quote(out, &len, filled(bytes, 'k', HAPAX_KEY_MAX + 1)));
    assert_int_equal(len, 7);
}

/* Bytes that are no header are the key, up to 255 of them; otherwise their hash is. */
static void a_key_of_bytes_is_never_cut(void **state)
{
    uint8_t out[HAPAX_KEY_MAX], bytes[HAPAX_KEY_MAX + 1];

    assert_int_equal(hapax__key_of_bytes(out, hapax_str(NULL)), 0);
    assert_int_equal(hapax__key_of_bytes(out, hapax_str("x")), 1);
    assert_int_equal(out[0], 'x');
    assert_int_equal(hapax__key_of_bytes(out, filled(bytes, 'k', HAPAX_KEY_MAX)), HAPAX_KEY_MAX);
    assert_memory_equal(out, bytes, HAPAX_KEY_MAX);
    /* 'sha256-' + sha256(b'k' * 256).hexdigest() */
    assert_int_equal(hapax__key_of_bytes(out, filled(bytes, 'k', HAPAX_KEY_MAX + 1)), 71);
    assert_memory_equal(
        out, "sha256-ce16fe78208a4e93f7158e62393680e025b2ad584f4e875ce903a654bb74cf93", 71);
}

/* A key says when it was made if it is a UUID of version 7 or begins with t and ten digits. */
static void a_key_may_say_when_it_was_made(void **state)
{
    static const struct {
        const char *key;
        int64_t ms;
    } keys[] = {
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", 1645557742000}, /* RFC 9562, A.6 */
        {"017F22E2-79B0-7CC3-B8C4-DC0C0C07398F", 1645557742000},
        {"00000000-0001-7abc-adef-dc0c0c07398f", 1},
        {"017f22e2-79b0-4cc3-98c4-dc0c0c07398f", 0}, /* another version */
        {"017f22e2-79b0-7cc3-c8c4-dc0c0c07398f", 0}, /* another variant */
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398g", 0},
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398/", 0},
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398@", 0},
        {"017f22e2079b0-7cc3-98c4-dc0c0c07398f", 0}, /* no dash */
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398f0", 0},
        {"t1645557742-order-7", 1645557742000},
        {"t1645557742-", 1645557742000},
        {"t1098765432-order", 1098765432000},
        {"t0000012345-order", 0}, /* a number with zeros before it */
        {"t0123456789-order", 0},
        {"t1645557742", 0},
        {"t16455577429-order", 0},
        {"t164555774a-order", 0},
        {"t164555774/-order", 0},
        {"x1645557742-order", 0},
        {"", 0},
    };

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_int_equal(hapax__key_made_ms(hapax_str(keys[i].key)), keys[i].ms);
    /* The `-` is behind the key. */
    assert_int_equal(hapax__key_made_ms((struct hapax_span){(const uint8_t *)"t1645557742-", 11}),
                     0);
}

/* Half an event names nothing. */
static void an_event_without_source_or_id_has_no_key(void **state)
{
    uint8_t bytes[HAPAX__EVENT_NAME_MAX + 1];
    uint8_t out[HAPAX_KEY_MAX];
    size_t len = 7;
    struct hapax_span over = filled(bytes, 'k', sizeof(bytes));

    assert_int_equal(hapax__key_of_event(out, &len, hapax_str(""), hapax_str("1")),
                     HAPAX_ERR_INVALID);
    assert_int_equal(hapax__key_of_event(out, &len, hapax_str("/o"), hapax_str("")),
                     HAPAX_ERR_INVALID);
    assert_int_equal(hapax__key_of_event(out, &len, over, hapax_str("1")), HAPAX_ERR_INVALID);
    assert_int_equal(hapax__key_of_event(out, &len, hapax_str("/o"), over), HAPAX_ERR_INVALID);
    assert_int_equal(len, 7);
}

/* ---- names ------------------------------------------------------------------------- */

/* Each value of an enum has its own name, and a foreign one has none. */
static void every_value_has_its_name(void **state)
{
    assert_string_equal(hapax_error_name(HAPAX_ERR_NONE), "none");
    assert_string_equal(hapax_error_name(HAPAX_ERR_INVALID), "invalid");
    assert_string_equal(hapax_error_name(HAPAX_ERR_NOMEM), "nomem");
    assert_string_equal(hapax_error_name(HAPAX_ERR_TOO_BIG), "too_big");
    assert_string_equal(hapax_error_name(HAPAX_ERR_UNAVAILABLE), "unavailable");
    assert_string_equal(hapax_error_name(HAPAX_ERR_INDETERMINATE), "indeterminate");
    assert_string_equal(hapax_error_name(HAPAX_ERR_CORRUPT), "corrupt");
    assert_string_equal(hapax_error_name(HAPAX_ERR_UNSUPPORTED), "unsupported");
    assert_string_equal(hapax_error_name(HAPAX_ERR_REFUSED), "refused");
    assert_string_equal(hapax_error_name(HAPAX_ERR_SEALED), "sealed");
    assert_string_equal(hapax_error_name((enum hapax_error) - 10), "?");
    assert_string_equal(hapax_error_name((enum hapax_error)1), "?");

    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_FRESH), "fresh");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_REPLAY), "replay");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_FAILED), "failed");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_MISSING_KEY), "missing_key");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_BAD_KEY), "bad_key");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_IN_FLIGHT), "in_flight");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_UNKNOWN), "unknown");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_MISMATCH), "mismatch");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_GONE), "gone");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_TOO_LARGE), "too_large");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_STORE_DOWN), "store_down");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_BYPASS), "bypass");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_MISSING_OWNER), "missing_owner");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_LIMITED), "limited");
    assert_string_equal(hapax_answer_name((enum hapax_answer_kind)0), "?");
    assert_string_equal(hapax_answer_name(HAPAX_ANSWER_EXPIRED), "expired");
    assert_string_equal(hapax_answer_name((enum hapax_answer_kind)16), "?");

    assert_string_equal(hapax_state_name(HAPAX_STATE_ABSENT), "absent");
    assert_string_equal(hapax_state_name(HAPAX_STATE_STARTED), "started");
    assert_string_equal(hapax_state_name(HAPAX_STATE_COMPLETED), "completed");
    assert_string_equal(hapax_state_name(HAPAX_STATE_FAILED), "failed");
    assert_string_equal(hapax_state_name(HAPAX_STATE_UNKNOWN), "unknown");
    assert_string_equal(hapax_state_name((enum hapax_state)5), "?");

    assert_string_equal(hapax_verdict_name(HAPAX_NO_VERDICT), "none");
    assert_string_equal(hapax_verdict_name(HAPAX_CLAIMED), "claimed");
    assert_string_equal(hapax_verdict_name(HAPAX_IN_FLIGHT), "in_flight");
    assert_string_equal(hapax_verdict_name(HAPAX_COMPLETED), "completed");
    assert_string_equal(hapax_verdict_name(HAPAX_FAILED), "failed");
    assert_string_equal(hapax_verdict_name(HAPAX_UNKNOWN), "unknown");
    assert_string_equal(hapax_verdict_name(HAPAX_MISMATCH), "mismatch");
    assert_string_equal(hapax_verdict_name(HAPAX_OK), "ok");
    assert_string_equal(hapax_verdict_name(HAPAX_LOST), "lost");
    assert_string_equal(hapax_verdict_name(HAPAX_FOUND), "found");
    assert_string_equal(hapax_verdict_name(HAPAX_ABSENT), "absent");
    assert_string_equal(hapax_verdict_name((enum hapax_verdict)11), "?");
}

/* ---- traces ------------------------------------------------------------------------ */

#define TRACE "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

/* W3C Trace Context: of a later version as much as is known is read; anything else is none. */
static void a_traceparent_is_read_as_the_standard_says(void **state)
{
    static const struct {
        const char *text, *read; /* NULL: it is none */
    } cases[] = {
        {TRACE, TRACE},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00",
         "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"},
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", TRACE},
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", TRACE},
        {"cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.what", NULL},
        {"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-comes", TRACE},
        {"", NULL},
        {TRACE "-", NULL},
        {"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x", NULL},
        {"0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"g0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", NULL},
        {"00-00000000000000000000000000000000-b7ad6b7169203331-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333-001", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x", NULL},
        {"00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331-01", NULL},
        {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331_01", NULL},
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct hapax__trace trace;
        char text[HAPAX_TRACE_MAX];
        bool is = hapax__trace_read(&trace, hapax_str(cases[i].text));

        assert_int_equal(is, cases[i].read != NULL);
        if (!is)
            continue;
        hapax__trace_write(text, &trace);
        assert_string_equal(text, cases[i].read);
    }
}

/* Only a whole first line is taken off; all else is a header like any other. */
static void a_trace_is_taken_off_an_outcomes_headers(void **state)
{
    static const struct {
        const char *headers, *trace, *left;
    } cases[] = {
        {"Hapax-Trace: " TRACE "\r\nA: b\r\n", TRACE, "A: b\r\n"},
        {"Hapax-Trace: " TRACE "\r\n", TRACE, ""},
        {"", "", ""},
        {"A: b\r\n", "", "A: b\r\n"},
        {"A: b\r\nHapax-Trace: " TRACE "\r\n", "", "A: b\r\nHapax-Trace: " TRACE "\r\n"},
        {"Hapax-Trace: " TRACE "-1\r\n", "", "Hapax-Trace: " TRACE "-1\r\n"},
        {"Hapax-Trace: " TRACE "\n\n", "", "Hapax-Trace: " TRACE "\n\n"},
        {"Other-Trace: " TRACE "\r\n", "", "Other-Trace: " TRACE "\r\n"},
        {"Hapax-Trace:\t" TRACE "\r\n", "", "Hapax-Trace:\t" TRACE "\r\n"},
        {"Hapax-Trace: cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", TRACE, ""},
        {"Hapax-Trace: x0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n", "",
         "Hapax-Trace: x0-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"},
    };
    uint8_t line[HAPAX__TRACE_LINE + 1] = {0};

    (void)state;
    line[HAPAX__TRACE_LINE] = 'x';
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct hapax_span headers = hapax_str(cases[i].headers);
        char trace[HAPAX_TRACE_MAX + 1] = {0};

        memset(trace, 'x', HAPAX_TRACE_MAX);
        hapax__trace_take(trace, &headers);
        assert_string_equal(trace, cases[i].trace);
        assert_true(hapax__is(headers, cases[i].left));
    }
    hapax__trace_line(line, TRACE);
    assert_memory_equal(line, "Hapax-Trace: " TRACE "\r\nx", sizeof(line));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_the_same_quoted_or_bare),
        cmocka_unit_test(a_quoted_key_holds_any_printable_character),
        cmocka_unit_test(space_around_a_value_is_no_part_of_it),
        cmocka_unit_test(parameters_do_not_change_a_key),
        cmocka_unit_test(a_malformed_parameter_is_refused),
        cmocka_unit_test(hex_is_read_in_small_letters_alone),
        cmocka_unit_test(hex_is_written_in_small_letters),
        cmocka_unit_test(a_refused_key_is_told_why),
        cmocka_unit_test(a_key_has_at_most_255_bytes),
        cmocka_unit_test(an_id_is_the_documented_hash),
        cmocka_unit_test(an_id_under_a_secret_is_the_hmac),
        cmocka_unit_test(an_id_of_names_over_their_limits_is_refused),
        cmocka_unit_test(an_owner_has_ids_of_its_own),
        cmocka_unit_test(a_mark_is_half_of_the_tokens_hash),
        cmocka_unit_test(fingerprint_and_caller_are_put_under_the_secret),
        cmocka_unit_test(a_question_has_a_name_under_each_secret),
        cmocka_unit_test(a_question_with_a_wrong_name_stays_as_it_was),
        cmocka_unit_test(no_two_names_share_an_id),
        cmocka_unit_test(what_an_operation_is_can_be_shown),
        cmocka_unit_test(what_is_cut_at_a_part_that_does_not_fit),
        cmocka_unit_test(what_is_too_long_is_cut_between_characters),
        cmocka_unit_test(a_digest_knows_where_its_parts_end),
        cmocka_unit_test(a_span_of_a_string_has_its_bytes),
        cmocka_unit_test(a_derived_key_is_never_cut),
        cmocka_unit_test(a_derived_key_is_a_key_again),
        cmocka_unit_test(nothing_is_derived_from_invalid_names),
        cmocka_unit_test(the_key_of_an_event_names_its_source_and_id),
        cmocka_unit_test(the_key_of_an_event_can_be_quoted),
        cmocka_unit_test(a_key_is_quoted_as_it_is_read),
        cmocka_unit_test(a_key_of_bytes_is_never_cut),
        cmocka_unit_test(a_key_may_say_when_it_was_made),
        cmocka_unit_test(an_event_without_source_or_id_has_no_key),
        cmocka_unit_test(every_value_has_its_name),
        cmocka_unit_test(a_traceparent_is_read_as_the_standard_says),
        cmocka_unit_test(a_trace_is_taken_off_an_outcomes_headers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
