/* SPDX-License-Identifier: Apache-2.0
 *
 * What a message asks: where its key is found, what it becomes, and which messages have the same
 * fingerprint.
 */
#include "../cases.h"
#include "door/consume/ask.h"
#include "oom.h"
#include "json/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the bed ------------------------------------------------------------------------- */

static const struct hapax__source_type with_positions = {.schemes = {"kafka"}, .positions = true};
static const struct hapax__source_type without = {.schemes = {"amqp"}};
static const struct hapax__source kafka = {.type = &with_positions, .name = "t.g", .group = "g"};
static const struct hapax__source amqp = {.type = &without, .name = "orders", .group = "orders"};

/* A message of at most 8 headers, given as "name", "value", …, NULL. */
struct bed {
    struct hapax_policy policy;
    struct hapax_message_header headers[8];
    struct hapax__delivered delivered;
    struct hapax__asked asked;
    char text[HAPAX_TEXT_MAX];
};

static void set_message(struct bed *bed, const char *body, const char *const *names)
{
    struct hapax_message *message = &bed->delivered.message;

    memset(&bed->delivered, 0, sizeof(bed->delivered));
    hapax_policy_init(&bed->policy);
    message->body = hapax_str(body);
    message->headers = bed->headers;
    for (size_t i = 0; names && names[i]; i += 2) {
        assert_true(message->header_count < 8);
        bed->headers[message->header_count].name = hapax_str(names[i]);
        bed->headers[message->header_count++].value = hapax_str(names[i + 1]);
    }
}

static void ask_with(struct bed *bed, const struct hapax_consumer *consumer,
                     const struct hapax__source *source)
{
    struct hapax__ask ask;

    if (hapax__message_ask_read(&ask, consumer, source, bed->text) != HAPAX_ERR_NONE)
        fail_msg("%s", bed->text);
    assert_int_equal(hapax__message_ask(&bed->asked, &ask, &bed->policy, &bed->delivered),
                     HAPAX_ERR_NONE);
}

static void ask(struct bed *bed, const char *key)
{
    const struct hapax_consumer consumer = {.key = key};

    ask_with(bed, &consumer, &kafka);
}

static void assert_key(const struct bed *bed, const char *expected)
{
    struct hapax_span key = bed->asked.request.key;

    if (bed->asked.refused)
        fail_msg("no key: %s", bed->asked.why);
    if (key.len != strlen(expected) || memcmp(key.ptr, expected, key.len) != 0)
        fail_msg("key is \"%.*s\" and not \"%s\"", (int)key.len, (const char *)key.ptr, expected);
}

static void assert_refused(const struct bed *bed, enum hapax_answer_kind kind)
{
    assert_int_equal(bed->asked.refused, kind);
    assert_int_equal(bed->asked.request.key.len, 0);
    assert_non_null(bed->asked.why);
}

#define MESSAGE(bed, body, ...) set_message(bed, body, (const char *const[]){__VA_ARGS__, NULL})

/* What the key of a message with these headers is, under a setting. */
#define KEY_OF(expected, key, ...)                                                                 \
    do {                                                                                           \
        struct bed bed_;                                                                           \
                                                                                                   \
        MESSAGE(&bed_, "{}", __VA_ARGS__);                                                         \
        ask(&bed_, key);                                                                           \
        assert_key(&bed_, expected);                                                               \
    } while (0)

#define NO_KEY(kind, key, ...)                                                                     \
    do {                                                                                           \
        struct bed bed_;                                                                           \
                                                                                                   \
        MESSAGE(&bed_, "{}", __VA_ARGS__);                                                         \
        ask(&bed_, key);                                                                           \
        assert_refused(&bed_, kind);                                                               \
    } while (0)

/* ---- keys in headers ------------------------------------------------------------------- */

/* Each name of the usual list, by itself and however it is written. */
CASE(the_usual_headers_hold_a_key)
{
    KEY_OF("k", NULL, "Idempotency-Key", "k");
    KEY_OF("k", NULL, "idempotency-key", "k");
    KEY_OF("k", NULL, "X-IDEMPOTENCY-KEY", "k");
    KEY_OF("k", NULL, "x-deduplication-header", "k");
    KEY_OF("k", NULL, "Nats-Msg-Id", "k");
    KEY_OF("k", NULL, "MessageDeduplicationId", "k");
    KEY_OF("k", NULL, "NServiceBus.MessageId", "k");
    KEY_OF("k", NULL, "message-id", "k");
    KEY_OF("k", NULL, "id", "k");
    KEY_OF("k", NULL, "ID", "k");
    KEY_OF("k", NULL, "_watermill_message_uuid", "k");
    NO_KEY(HAPAX_ANSWER_MISSING_KEY, NULL, "correlation-id", "k");
    NO_KEY(HAPAX_ANSWER_MISSING_KEY, NULL, "Idempotency-Keys", "k");
}

static void assert_owner(const char *setting, const char *owner, const char *body,
                         const char *const *headers)
{
    const struct hapax_consumer consumer = {.owner = setting};
    struct bed bed;

    set_message(&bed, body, headers);
    ask_with(&bed, &consumer, &kafka);
    if (owner) {
        assert_int_equal(bed.asked.refused, 0);
        assert_int_equal(bed.asked.request.owner.len, strlen(owner));
        assert_memory_equal(bed.asked.request.owner.ptr, owner, strlen(owner));
    } else {
        assert_int_equal(bed.asked.refused, HAPAX_ANSWER_MISSING_OWNER);
        assert_non_null(strstr(bed.asked.why, setting[0] == '/' ? "pointer" : "header"));
    }
}

#define OWNER_OF(owner, setting, body, ...)                                                        \
    assert_owner(setting, owner, body, (const char *const[]){"id", "k", __VA_ARGS__, NULL})

/* An owner is in a header or in the body. Where it is not, a message with a key is refused. */
CASE(an_owner_is_a_header_or_what_a_pointer_finds)
{
    OWNER_OF("acme", "tenant", "{}", "Tenant", "acme");
    OWNER_OF("acme", "/by/account", "{\"by\":{\"account\":\"acme\"}}", "tenant", "other");
    OWNER_OF(NULL, "tenant", "{}", "tenants", "acme");
    OWNER_OF(NULL, "tenant", "{}", "tenant", "");
    OWNER_OF(NULL, "tenant", "{}", "tenant", "acme", "Tenant", "other");
    OWNER_OF(NULL, "/by/account", "{}", "tenant", "acme");
}

/* The order of the list counts, not that of the headers. */
CASE(the_first_source_that_has_a_key_counts)
{
    KEY_OF("a", NULL, "id", "b", "Idempotency-Key", "a");
    KEY_OF("b", "id,Idempotency-Key", "id", "b", "Idempotency-Key", "a");
    KEY_OF("a", " none , Idempotency-Key ", "Idempotency-Key", "a");
    NO_KEY(HAPAX_ANSWER_MISSING_KEY, "none", "Idempotency-Key", "a");
}

/* The HTTP door and this one see the same key, or none, in the same header. */
CASE(the_key_header_is_read_as_the_http_door_reads_it)
{
    KEY_OF("a b", NULL, "Idempotency-Key", "\"a b\"");
    KEY_OF("a", NULL, "Idempotency-Key", " \"a\";v=1 ");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", "a b");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", "a,b");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", "");
    KEY_OF("a b", NULL, "id", "a b");
    KEY_OF("\"a\"", NULL, "id", "\"a\"");
}

/* A source that holds no key is not passed over: the next delivery would have another key. */
CASE(a_malformed_key_is_not_passed_over)
{
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", "a b", "id", "k");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "id", "");
}

/* Twice the same is once; twice another is nobody's key. */
CASE(a_name_given_twice_must_agree)
{
    KEY_OF("k", NULL, "id", "k", "ID", "k");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "id", "k", "ID", "l");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", "k", "idempotency-key", "l");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "id", "k", "x", "y", "id", "");
}

/* The property, and a header by its name. */
CASE(the_message_id_is_a_property_too)
{
    struct bed bed;

    MESSAGE(&bed, "", "x", "y");
    bed.delivered.message.id = hapax_str("m-1");
    ask(&bed, NULL);
    assert_key(&bed, "m-1");
    MESSAGE(&bed, "", "Message-Id", "m-1");
    bed.delivered.message.id = hapax_str("m-1");
    ask(&bed, NULL);
    assert_key(&bed, "m-1");
    bed.delivered.message.id = hapax_str("m-2");
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_BAD_KEY);
}

/* 255 bytes stand as they are; 256 are `sha256-` and the hash, never the first 255. */
CASE(a_long_value_is_hashed_and_never_cut)
{
    char value[257];

    memset(value, 'a', sizeof(value));
    value[255] = '\0';
    KEY_OF(value, NULL, "id", value);
    value[255] = 'a';
    value[256] = '\0';
    KEY_OF("sha256-02d7160d77e18c6447be80c2e355c7ed4388545271702c50253b0914c65ce5fe", NULL, "id",
           value);
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "Idempotency-Key", value);
}

/* ---- CloudEvents ------------------------------------------------------------------------ */

/* Id and source in the spelling of any binding. */
CASE(an_event_is_named_by_its_id_and_source)
{
    KEY_OF("/s 1", NULL, "ce-id", "1", "ce-source", "/s");
    KEY_OF("/s 1", NULL, "ce_source", "/s", "ce_id", "1");
    KEY_OF("/s 1", NULL, "cloudEvents:id", "1", "cloudEvents:source", "/s");
    KEY_OF("/s 1", NULL, "cloudEvents_id", "1", "cloudEvents_source", "/s");
    KEY_OF("/s 1", NULL, "CE-ID", "1", "ce_source", "/s", "cloudevents:id", "1");
    KEY_OF("/s 1", NULL, "ce_id", "1", "ce_source", "/s", "id", "other");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_id", "1", "ce-id", "2", "ce_source", "/s");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_id", "", "ce_source", "/s");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_id", "1", "id", "other");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_source", "/s");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_source", "", "ce_id", "");
}

/* HTTP and NATS carry attributes encoded, Kafka and AMQP as they are: it is one event. */
CASE(an_encoded_attribute_is_the_one_it_was)
{
    KEY_OF("/s a b", NULL, "ce-id", "a%20b", "ce-source", "%2fs");
    KEY_OF("/s a b", NULL, "ce-id", "\"a%20\\b\"", "ce-source", "/s");
    KEY_OF("/s a b", NULL, "ce-id", "a%20b", "ce_id", "a b", "ce_source", "/s");
    KEY_OF("/s a b", NULL, "ce_id", "a b", "ce-id", "a%20b", "ce_source", "/s");
    KEY_OF("/s a%20b", NULL, "ce_id", "a%20b", "ce_source", "/s");
    KEY_OF("/s 100%", NULL, "ce-id", "100%", "ce-source", "/s");
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce-id", "a%20b", "ce_id", "a%20b", "ce_source", "/s");
}

static void assert_structured(const char *type, const char *body, const char *expected)
{
    struct bed bed;

    MESSAGE(&bed, body, "x", "y");
    bed.delivered.message.content_type = hapax_str(type);
    ask(&bed, NULL);
    if (expected)
        assert_key(&bed, expected);
    else
        assert_true(bed.asked.refused);
}

/* An event as one JSON document, and only where its type says so. */
CASE(a_structured_event_is_read_from_its_body)
{
    const char *event = "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\"}";

    assert_structured("application/cloudevents+json", event, "/s 1");
    assert_structured("Application/CloudEvents+JSON; charset=utf-8", event, "/s 1");
    assert_structured("application/cloudevents-batch+json", event, NULL);
    assert_structured("application/cloudevents+jsonx", event, NULL);
    assert_structured("application/json", event, NULL);
    assert_structured("application/cloudevents+json", "{\"id\":\"1\"}", NULL);
    assert_structured("application/cloudevents+json", "{\"id\":\"1\",\"source\":{}}", NULL);
    assert_structured("application/cloudevents+json", "{\"id\":\"\",\"source\":\"/s\"}", NULL);
    assert_structured("application/cloudevents+json", "{", NULL);
    assert_structured("application/cloudevents+json", "{}", NULL);
}

/* A long source is hashed with all that goes into the key; one over 4096 bytes is refused. */
CASE(a_long_event_name_is_hashed)
{
    char source[4098], other[4098];
    struct bed a, b;

    memset(source, 's', sizeof(source));
    source[4096] = '\0';
    memcpy(other, source, sizeof(other));
    other[4095] = 't';
    MESSAGE(&a, "", "ce-id", "1", "ce-source", source);
    MESSAGE(&b, "", "ce-id", "1", "ce-source", other);
    ask(&a, NULL);
    ask(&b, NULL);
    assert_int_equal(a.asked.request.key.len, 71);
    assert_memory_equal(a.asked.request.key.ptr, "sha256-", 7);
    assert_memory_not_equal(a.asked.request.key.ptr, b.asked.request.key.ptr, 71);
    source[4096] = 's';
    source[4097] = '\0';
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce-id", "1", "ce-source", source);
    NO_KEY(HAPAX_ANSWER_BAD_KEY, NULL, "ce_id", "1", "ce_source", source);
}

/* ---- keys in the payload ------------------------------------------------------------------ */

static void assert_pointed(const char *key, const char *body, const char *expected,
                           enum hapax_answer_kind refused)
{
    struct bed bed;

    MESSAGE(&bed, body, "x", "from-header");
    ask(&bed, key);
    if (expected)
        assert_key(&bed, expected);
    else
        assert_refused(&bed, refused);
}

/* As hapax_key_from at the HTTP door: nothing is no key, what is no scalar is a bad one. */
CASE(a_pointer_finds_a_key_in_the_payload)
{
    assert_pointed("/order/id", "{\"order\":{\"id\":\"o-1\"}}", "o-1", 0);
    assert_pointed("/order/id", "{\"order\":{\"id\":17.0}}", "17", 0);
    assert_pointed("/order/id", "{\"order\":{}}", NULL, HAPAX_ANSWER_MISSING_KEY);
    assert_pointed("/order/id", "{\"order\":{\"id\":null}}", NULL, HAPAX_ANSWER_MISSING_KEY);
    assert_pointed("/order/id", "no json", NULL, HAPAX_ANSWER_MISSING_KEY);
    assert_pointed("/order/id", "{\"order\":{\"id\":[1]}}", NULL, HAPAX_ANSWER_BAD_KEY);
    assert_pointed("/order/id", "{\"order\":{\"id\":\"\"}}", NULL, HAPAX_ANSWER_BAD_KEY);
}

/* The first of header and pointer in the list counts. */
CASE(header_and_payload_count_in_the_order_of_the_list)
{
    assert_pointed("x,/id", "{\"id\":\"o-1\"}", "from-header", 0);
    assert_pointed("/id,x", "{\"id\":\"o-1\"}", "o-1", 0);
    assert_pointed("/none,x", "{\"id\":\"o-1\"}", "from-header", 0);
    assert_pointed("/id,x", "{\"id\":{}}", NULL, HAPAX_ANSWER_BAD_KEY);
}

/* Several pointers are one key, the digest that the HTTP door makes of them. */
CASE(pointers_together_make_one_key)
{
    const struct hapax_span parts[] = {hapax_str("o-1"), hapax_str("2")};
    struct hapax_digest digest;
    char expected[72] = "sha256-";

    hapax_digest(&digest, parts, 2);
    for (size_t i = 0; i < sizeof(digest.bytes); i++)
        snprintf(expected + 7 + 2 * i, 3, "%02x", digest.bytes[i]);
    assert_pointed("/id /line", "{\"id\":\"o-1\",\"line\":2}", expected, 0);
    assert_pointed("/id /line", "{\"id\":\"o-1\"}", NULL, HAPAX_ANSWER_MISSING_KEY);
}

/* Equal payloads are one operation: by the bytes, or by what the fingerprint takes of them. */
CASE(the_payload_itself_can_be_the_key)
{
    const struct hapax_consumer json = {.key = "id,payload", .fingerprint = "json -/at"};
    struct bed a, b;

    assert_pointed("payload", "abc",
                   "sha256-ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 0);
    MESSAGE(&a, "{\"n\":1,\"at\":5}", "x", "y");
    MESSAGE(&b, "{\"at\":6, \"n\":1.0}", "x", "y");
    ask_with(&a, &json, &amqp);
    ask_with(&b, &json, &amqp);
    assert_int_equal(a.asked.request.key.len, 71);
    assert_memory_equal(a.asked.request.key.ptr, b.asked.request.key.ptr, 71);
    MESSAGE(&b, "{\"at\":6, \"n\":2}", "x", "y");
    ask_with(&b, &json, &amqp);
    assert_memory_not_equal(a.asked.request.key.ptr, b.asked.request.key.ptr, 71);
}

/* A copy among the retries or dead letters is the message it was made of. */
CASE(the_position_is_that_of_the_message_first_taken)
{
    struct bed bed;

    MESSAGE(&bed, "", "x", "y");
    bed.delivered.message.position = hapax_str("t/0/17");
    ask(&bed, "position");
    assert_true(bed.asked.by_position);
    assert_key(&bed, "t/0/17");
    MESSAGE(&bed, "", "hapax-position", "t/0/17");
    bed.delivered.message.position = hapax_str("t.g.retry/0/3");
    ask(&bed, "position");
    assert_key(&bed, "t/0/17");
}

/* ---- what is asked with it ------------------------------------------------------------------ */

/* The consumer's scope is always part of the identity: two that take the same message are two
 * operations. */
CASE(the_scope_is_the_group_unless_it_is_set)
{
    const struct hapax_consumer set = {.scope = "orders"};
    struct bed bed;

    MESSAGE(&bed, "", "id", "k");
    ask(&bed, NULL);
    assert_int_equal(bed.asked.request.scope.len, 1);
    assert_memory_equal(bed.asked.request.scope.ptr, "g", 1);
    ask_with(&bed, &set, &kafka);
    assert_int_equal(bed.asked.request.scope.len, 6);
}

/* A message that carries the order's key and one that carries `KEY:step` in words are the same
 * operation where the latter is consumed without a step. */
CASE(a_step_makes_the_key_that_is_handed_on)
{
    const struct hapax_consumer step = {.step = "process-payment"};
    uint8_t derived[HAPAX_KEY_MAX];
    char longest[256];
    struct bed bed;
    size_t len;

    MESSAGE(&bed, "", "id", "o-1");
    ask_with(&bed, &step, &amqp);
    assert_key(&bed, "o-1:process-payment");
    assert_int_equal(bed.asked.key_len, 3);
    assert_int_equal(bed.asked.request.step.len, 0);
    memset(longest, 'k', 255);
    longest[255] = '\0';
    MESSAGE(&bed, "", "id", longest);
    ask_with(&bed, &step, &amqp);
    assert_int_equal(
        hapax_key_derive(derived, &len, hapax_str(longest), hapax_str("process-payment")),
        HAPAX_ERR_NONE);
    assert_int_equal(bed.asked.request.key.len, len);
    assert_memory_equal(bed.asked.request.key.ptr, derived, len);
}

static void fingerprint_of(struct hapax_digest *out, const char *setting, const char *body)
{
    const struct hapax_consumer consumer = {.fingerprint = setting};
    struct bed bed;

    MESSAGE(&bed, body, "id", "k");
    ask_with(&bed, &consumer, &amqp);
    *out = bed.asked.request.fingerprint;
}

/* What nginx/ngx_http_hapax_identify.c makes under `hapax_fingerprint body`: one part, the SHA-256
 * of the body. */
CASE(the_fingerprint_is_that_of_the_http_door)
{
    static const uint8_t sha256_of_abc[32] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea,
                                              0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
                                              0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c,
                                              0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    struct hapax_span part = {sha256_of_abc, 32};
    struct hapax_span pointer = hapax_str("/at");
    struct hapax_digest got, expected, json;

    hapax_digest(&expected, &part, 1);
    fingerprint_of(&got, NULL, "abc");
    assert_memory_equal(got.bytes, expected.bytes, 32);
    fingerprint_of(&got, "body", "abc");
    assert_memory_equal(got.bytes, expected.bytes, 32);
    assert_int_equal(
        hapax__json_fingerprint(&json, hapax_str("{}"), HAPAX__JSON_EXCLUDE, &pointer, 1),
        HAPAX__JSON_OK);
    part.ptr = json.bytes;
    hapax_digest(&expected, &part, 1);
    fingerprint_of(&got, "json -/at", "{\"at\":1}");
    assert_memory_equal(got.bytes, expected.bytes, 32);
    hapax_digest(&expected, NULL, 0);
    fingerprint_of(&got, "off", "abc");
    assert_memory_equal(got.bytes, expected.bytes, 32);
}

/* Of a request without credentials, or with `hapax_caller none`. */
CASE(the_caller_is_nobody)
{
    const struct hapax_span nobody = {NULL, 0};
    struct hapax_digest expected;
    struct bed bed;

    hapax_digest(&expected, &nobody, 1);
    MESSAGE(&bed, "", "id", "k");
    ask(&bed, NULL);
    assert_memory_equal(bed.asked.request.caller.bytes, expected.bytes, 32);
}

/* Include and exclude, with `+` and without. */
CASE(pointers_say_what_counts)
{
    struct hapax_digest a, b;

    fingerprint_of(&a, "+/n", "{\"n\":1,\"at\":5}");
    fingerprint_of(&b, "json /n", "{\"at\":6,\"n\":1}");
    assert_memory_equal(a.bytes, b.bytes, 32);
    fingerprint_of(&b, "json /n", "{\"at\":6,\"n\":2}");
    assert_memory_not_equal(a.bytes, b.bytes, 32);
}

/* Without a key the rest is there all the same: no_key=run runs it. */
CASE(a_message_without_a_key_is_asked_for_without_one)
{
    struct hapax_digest zero = {{0}};
    struct bed bed;

    MESSAGE(&bed, "abc", "x", "y");
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_MISSING_KEY);
    assert_int_equal(bed.asked.request.scope.len, 1);
    assert_memory_not_equal(bed.asked.request.fingerprint.bytes, zero.bytes, 32);
}

/* max_request to the byte; headers that are too many, or cannot be read. The position is none of a
 * message's own. */
CASE(what_is_too_large_is_said_to_be)
{
    static struct hapax_message_header headers[258];
    struct bed bed;

    MESSAGE(&bed, "abcd", "id", "k");
    bed.policy.max_request = 4;
    ask(&bed, NULL);
    assert_key(&bed, "k");
    bed.policy.max_request = 3;
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_TOO_LARGE);
    bed.policy.max_request = 4;
    bed.delivered.damaged = HAPAX__HEADERS_UNREAD;
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_TOO_LARGE);
    for (size_t i = 0; i < 258; i++)
        headers[i].name = headers[i].value = hapax_str(i == 255 ? "id" : "x");
    MESSAGE(&bed, "", "id", "k");
    bed.delivered.message.headers = headers;
    bed.delivered.message.header_count = 256;
    ask(&bed, NULL);
    assert_key(&bed, "id");
    bed.delivered.message.header_count = 257;
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_TOO_LARGE);
    headers[0].name = hapax_str("hapax-position");
    ask(&bed, NULL);
    assert_key(&bed, "id");
    bed.delivered.message.header_count = 258;
    ask(&bed, NULL);
    assert_refused(&bed, HAPAX_ANSWER_TOO_LARGE);
    headers[0].name = hapax_str("hapax-base"); /* a copy, which has our own beside its message's */
    ask(&bed, NULL);
    assert_key(&bed, "id");
}

/* ---- settings ------------------------------------------------------------------------------- */

static void assert_setting(const struct hapax_consumer *consumer,
                           const struct hapax__source *source, const char *expected)
{
    struct hapax__ask ask;
    char text[HAPAX_TEXT_MAX] = "";

    if (!expected) {
        assert_int_equal(hapax__message_ask_read(&ask, consumer, source, text), HAPAX_ERR_NONE);
        return;
    }
    assert_int_equal(hapax__message_ask_read(&ask, consumer, source, text), HAPAX_ERR_INVALID);
    assert_string_equal(text, expected);
}

#define SETTING(source, expected, ...)                                                             \
    assert_setting(&(const struct hapax_consumer){__VA_ARGS__}, source, expected)

/* A setting that cannot be is named, with what it may be. */
CASE(a_setting_that_cannot_be_is_named)
{
    SETTING(&kafka, NULL, .key = "position");
    SETTING(&amqp, "key is position, and messages of \"amqp\" have none", .key = "position");
    SETTING(&amqp, "key has an empty source", .key = "");
    SETTING(&amqp, "key has an empty source", .key = "id,,x");
    SETTING(&amqp, "key has an empty source", .key = "id,");
    SETTING(&amqp, NULL, .key = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p");
    SETTING(&amqp, "key has over 16 sources", .key = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q");
    SETTING(&amqp, "key has a source behind payload, which is never missing", .key = "payload,id");
    SETTING(&amqp, "key \"/a~2\": in a pointer '~' stands before 0 or 1", .key = "id,/a~2");
    SETTING(&amqp, "key has over 32 pointers",
            .key = "/a /a /a /a /a /a /a /a /a /a /a /a /a /a /a /a /a,"
                   "/a /a /a /a /a /a /a /a /a /a /a /a /a /a /a /a");
    SETTING(&amqp, "fingerprint is empty", .fingerprint = " ");
    SETTING(&amqp, "fingerprint has \"xml\", and takes body, json, +/POINTER, -/POINTER, or off",
            .fingerprint = "xml");
    SETTING(&amqp, "fingerprint takes body, JSON, or off", .fingerprint = "body /a");
    SETTING(&amqp, "fingerprint takes pointers with + or with -, not both",
            .fingerprint = "json /a -/b");
    SETTING(&amqp, "step \"a:b\" holds a ':'", .step = "a:b");
    SETTING(&amqp, "step \".1\" begins with a '.'", .step = ".1");
    SETTING(&amqp, "step of 0 bytes is not 1 to 64", .step = "");
    SETTING(&amqp, "scope is empty", .scope = "");
}

/* Names of queues may be longer than a scope. */
CASE(a_long_group_needs_a_scope)
{
    struct hapax__source source = kafka;
    char group[257];

    memset(group, 'g', sizeof(group));
    group[256] = '\0';
    source.group = group;
    SETTING(&source, "scope of 256 bytes is over 255: it is what messages come from, set another",
            0);
    SETTING(&source, NULL, .scope = "g");
}

/* No allocation that fails is taken for an answer. */
CASE(no_memory_is_no_answer)
{
    const struct hapax_consumer consumer = {.key = "/id", .fingerprint = "json"};
    struct bed bed;
    int64_t live = oom_live();

    MESSAGE(&bed, "{\"id\":\"k\"}", "x", "y");
    for (uint64_t n = 1;; n++) {
        struct hapax__ask ask;
        enum hapax_error error;

        oom_fail_at(n, false);
        error = hapax__message_ask_read(&ask, &consumer, &amqp, bed.text);
        if (error == HAPAX_ERR_NONE)
            error = hapax__message_ask(&bed.asked, &ask, &bed.policy, &bed.delivered);
        if (oom_count() < n) {
            oom_fail_at(0, false);
            assert_int_equal(error, HAPAX_ERR_NONE);
            assert_key(&bed, "k");
            break;
        }
        oom_fail_at(0, false);
        assert_int_equal(error, HAPAX_ERR_NOMEM);
    }
    assert_int_equal(oom_live(), live);
}

/* A header that holds a table is there: the next source would make of the same message another
 * operation. */
CASE(a_header_without_a_text_is_a_bad_key)
{
    static const char *const names[] = {"idempotency-key", "id", "message-id", "ce-id",
                                        "cloudEvents:source"};
    const struct hapax_consumer settings = {0};
    struct hapax_span unread[2] = {{(const uint8_t *)"other", 5}};
    struct bed bed;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        set_message(&bed, "body", NULL);
        bed.delivered.message.id = hapax_str("m-1");
        bed.delivered.unread = unread;
        bed.delivered.unread_count = 1;
        ask_with(&bed, &settings, &amqp);
        assert_int_equal(bed.asked.refused, 0);
        unread[1] = hapax_str(names[i]);
        bed.delivered.unread_count = 2;
        ask_with(&bed, &settings, &amqp);
        /* What stands behind the one that has a key is not looked at. */
        assert_int_equal(bed.asked.refused, strcmp(names[i], "id") == 0 ? 0 : HAPAX_ANSWER_BAD_KEY);
    }
}

static void assert_what(const struct bed *bed, const char *what)
{
    assert_int_equal(bed->asked.request.what.len, strlen(what));
    assert_memory_equal(bed->asked.request.what.ptr, what, strlen(what));
}

/* What a message is, for operators: where it comes from, and its type or its event's. */
CASE(a_message_says_what_it_is)
{
    struct bed bed;

    MESSAGE(&bed, "x", "id", "k", "ce_type", "order.paid");
    bed.delivered.message.from = hapax_str("orders");
    ask(&bed, "id");
    assert_what(&bed, "orders order.paid");
    bed.delivered.message.type = hapax_str("Order");
    ask(&bed, "id");
    assert_what(&bed, "orders Order");
    MESSAGE(&bed, "x", "id", "k");
    ask(&bed, "id");
    assert_what(&bed, "");
}
