/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of id and token that a handler may complete its record with, and who is handed one. And
 * how a door keeps the nonces that become tokens.
 */
#include "../cases.h"
#include "core/token.h"
#include "door/socket/nonces.h"
#include "execute_bed.h"

/* Base64url of the id's 32 bytes and then the token's 16, as any other library decodes it. */
CASE(the_text_is_base64url_of_id_and_token)
{
    char text[HAPAX__TOKEN_TEXT + 1];
    struct hapax_token token;
    struct hapax_id id;

    for (size_t i = 0; i < sizeof(id.bytes); i++)
        id.bytes[i] = (uint8_t)(255 - i * 8);
    for (size_t i = 0; i < sizeof(token.bytes); i++)
        token.bytes[i] = (uint8_t)(i * 17);
    hapax__token_text(text, &id, &token);
    assert_string_equal(text, "__fv59_Xz8e_t6-nn5ePh393b2dfV09HPzcvJx8XDwcAESIzRFVmd4iZqrvM3e7_");
    memset(&id, 0, sizeof(id));
    memset(&token, 0, sizeof(token));
    hapax__token_text(text, &id, &token);
    assert_string_equal(text, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
}

struct handed {
    char text[HAPAX_TOKEN_TEXT_MAX];
    bool given;
};

static enum hapax_class keep_token(struct hapax_attempt *attempt, void *arg)
{
    struct handed *handed = arg;

    memset(handed->text, 'x', sizeof(handed->text));
    handed->given = hapax_attempt_token(attempt, handed->text);
    return HAPAX_CLASS_FAILED;
}

static struct handed run(struct bed *bed, const char *key)
{
    struct hapax_request request = request_of(key);
    struct hapax_answer answer;
    struct handed handed = {.given = false};
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(
        hapax_execute(bed->h, &bed->policy, &request, keep_token, NULL, &handed, &answer, text),
        HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
    return handed;
}

/* With pass_token each attempt has one of its own, behind the same id; without it there is none. */
CASE(an_attempt_hands_its_token_out_only_under_pass_token)
{
    struct handed first, second;
    char id_text[HAPAX__TOKEN_TEXT + 1];
    struct hapax_token none = {{0}};
    struct hapax_id id;
    struct bed bed;

    bed_open(&bed);
    first = run(&bed, "k");
    assert_false(first.given);
    assert_string_equal(first.text, "");
    bed.policy.pass_token = true;
    first = run(&bed, "k");
    second = run(&bed, "k");
    assert_true(first.given && second.given);
    assert_int_equal(strlen(first.text), HAPAX_TOKEN_TEXT_MAX - 1);
    assert_string_not_equal(first.text, second.text);
    assert_int_equal(
        hapax_id(&id, hapax_str("default"), hapax_str("k"), hapax_str(NULL), hapax_str(NULL)),
        HAPAX_ERR_NONE);
    hapax__token_text(id_text, &id, &none);
    assert_memory_equal(first.text, id_text, 42); /* 252 of the id's 256 bits */
    assert_memory_equal(second.text, id_text, 42);
    bed_close(&bed);
}

/* What runs without a key has claimed nothing, and has nothing to complete. */
CASE(without_a_key_there_is_no_token)
{
    struct handed handed;
    struct bed bed;

    bed_open(&bed);
    bed.policy.pass_token = true;
    handed = run(&bed, "");
    assert_false(handed.given);
    assert_string_equal(handed.text, "");
    bed_close(&bed);
}

/* A row holds few nonces: a client whose nonces differ in any one byte has all of them kept. */
CASE(nonces_that_are_alike_but_for_a_byte_are_kept)
{
    struct hapax__nonces nonces = {calloc(HAPAX__NONCES_ROWS, sizeof(*nonces.rows))};
    struct hapax_token nonce = {{0}};

    assert_non_null(nonces.rows);
    for (size_t at = 0; at < sizeof(nonce.bytes); at++)
        for (unsigned value = 1; value < 32; value++) {
            nonce.bytes[at] = (uint8_t)value;
            assert_true(hapax__nonces_add(&nonces, &nonce));
            nonce.bytes[at] = 0;
        }
    for (size_t at = 0; at < sizeof(nonce.bytes); at++)
        for (unsigned value = 1; value < 32; value++) {
            nonce.bytes[at] = (uint8_t)value;
            assert_false(hapax__nonces_add(&nonces, &nonce));
            nonce.bytes[at] = 0;
        }
    free(nonces.rows);
}
