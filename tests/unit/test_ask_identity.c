/* SPDX-License-Identifier: Apache-2.0
 *
 * What requests ask is part of what stores hold: a key or a fingerprint that changes makes every
 * repeat of an older request another operation, or a mismatch. Each row is a set of settings; its
 * digest is over the answers for all messages, or for all events. A row that differs is a change
 * of identity, never a row to be written anew.
 */
#include "door/consume/ask.h"
#include "door/lambda/event.h"
#include "json/raw.h"

#include <openssl/evp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- the bed ------------------------------------------------------------------------- */

struct row {
    const char *key, *fingerprint, *step;
    const char *digest; /* its first 16 digits */
};

#define ROWS(rows) (sizeof(rows) / sizeof((rows)[0]))

static void add(EVP_MD_CTX *md, const void *bytes, size_t len)
{
    uint64_t width = len;

    assert_int_equal(EVP_DigestUpdate(md, &width, sizeof(width)), 1);
    assert_int_equal(EVP_DigestUpdate(md, bytes, len), 1);
}

static void add_request(EVP_MD_CTX *md, enum hapax_answer_kind refused,
                        const struct hapax_request *request)
{
    uint8_t kind = (uint8_t)refused;

    add(md, &kind, 1);
    add(md, request->scope.ptr, request->scope.len);
    add(md, request->key.ptr, request->key.len);
    add(md, request->fingerprint.bytes, sizeof(request->fingerprint.bytes));
    add(md, request->caller.bytes, sizeof(request->caller.bytes));
}

static EVP_MD_CTX *begin(void)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();

    assert_non_null(md);
    assert_int_equal(EVP_DigestInit_ex(md, EVP_sha256(), NULL), 1);
    return md;
}

/* Returns 1 where a row is not what it was. */
static int differs(const char *door, const struct row *row, EVP_MD_CTX *md)
{
    uint8_t digest[EVP_MAX_MD_SIZE];
    char text[17];

    assert_int_equal(EVP_DigestFinal_ex(md, digest, NULL), 1);
    EVP_MD_CTX_free(md);
    for (size_t i = 0; i < 8; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", digest[i]);
    if (strcmp(text, row->digest) == 0)
        return 0;
    print_error("%s: key %s, fingerprint %s, step %s: %s and not %s\n", door,
                row->key ? row->key : "-", row->fingerprint ? row->fingerprint : "-",
                row->step ? row->step : "-", text, row->digest);
    return 1;
}

/* ---- messages -------------------------------------------------------------------------- */

struct message {
    const char *id, *type, *position, *body;
    const char *headers[12]; /* name, value, … */
};

#define TEN "0123456789"
#define LONG                                                                                       \
    TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN    \
        TEN TEN TEN TEN

static const struct message messages[] = {
    {.body = ""},
    {.body = "abc", .headers = {"Idempotency-Key", "k"}},
    {.body = "{\"id\":\"1\"}", .headers = {"idempotency-key", "\"a b\";x=1"}},
    {.body = "{\"id\":17.0,\"at\":5}", .headers = {"x-idempotency-key", "k"}},
    {.body = "{\"at\":6, \"id\": 17}", .headers = {"X-Deduplication-Header", "k"}},
    {.body = "{\"id\":null}", .headers = {"Nats-Msg-Id", "n-1", "id", "other"}},
    {.body = "{\"id\":[1]}", .headers = {"id", "k", "ID", "k"}},
    {.body = "{\"id\":\"\"}", .headers = {"id", "k", "ID", "l"}},
    {.body = "{\"id\":\"a\",\"id\":\"b\"}", .headers = {"MessageDeduplicationId", "d"}},
    {.body = "{\"id\":\"\\u00e9\",\"line\":2}", .headers = {"id", LONG}},
    {.body = "{\"id\":\"" LONG "\"}", .headers = {"Idempotency-Key", LONG}},
    {.body = "[1,2,{\"id\":true}]", .headers = {"Idempotency-Key", "a b", "id", "k"}},
    {.body = "\xff\xfe", .headers = {"Idempotency-Key", "", "id", "k"}},
    {.body = "{", .id = "m-1"},
    {.body = "x", .id = "m-1", .headers = {"Message-Id", "m-1"}},
    {.body = "x", .id = "m-1", .headers = {"message-id", "m-2"}},
    {.body = "x", .position = "t/0/17"},
    {.body = "x", .position = "t.g.retry/0/3", .headers = {"hapax-position", "t/0/17"}},
    {.body = "x", .headers = {"ce-id", "a%20b", "ce-source", "%2fs"}},
    {.body = "x", .headers = {"ce_id", "a b", "ce_source", "/s", "ce-id", "a%20b"}},
    {.body = "x", .headers = {"ce_id", "1", "ce-id", "2", "ce_source", "/s"}},
    {.body = "x", .headers = {"cloudEvents:id", "1", "cloudEvents:source", LONG}},
    {.body = "x", .headers = {"ce_id", "1", "id", "other"}},
    {.body = "{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"/s\",\"type\":\"t\"}",
     .type = "application/cloudevents+json; charset=utf-8"},
    {.body = "{\"id\":7,\"source\":\"/s\"}", .type = "application/cloudevents+json"},
    {.body = "{\"id\":{},\"source\":\"/s\"}", .type = "application/cloudevents+json"},
    {.body = "{\"id\":\"1\",\"line\":2.50,\"at\":\"now\"}", .type = "application/json"},
};

static const struct row message_rows[] = {
    {NULL, NULL, NULL, "22c4c73c669ff081"},
    {NULL, "off", NULL, "d800cd0cc277ef89"},
    {NULL, "json", "pay", "42ebedb4a2ed0ac3"},
    {"Idempotency-Key", "json -/at", NULL, "7f4dc8b6d1dbac0c"},
    {"x-idempotency-key,id", "+/id +/line", NULL, "b65446702f3a0914"},
    {"id,message-id", "body", "a-step", "47e3fda249b3fbe5"},
    {"cloudevents", "json /id", NULL, "2bb7b5d9543471c0"},
    {"cloudevents,/id", NULL, NULL, "144638a69d148cfa"},
    {"/id", "json -/at -/line", NULL, "47ff8cc37282241b"},
    {"/id /line", "-/id", "s", "4f04a7ec522b3f75"},
    {"/line,/id,payload", "json", NULL, "933bf6b18522167b"},
    {"/2/id,position", "off", NULL, "9174947062752348"},
    {"payload", NULL, NULL, "766543d3b8fe28f3"},
    {"payload", "json -/at", NULL, "a5b235dddb8c5d3d"},
    {"id , position", "body body", NULL, "d816d8a9c7a1a637"},
    {"position", NULL, "s", "aeb74c155a5f1965"},
};

static void add_message(EVP_MD_CTX *md, const struct row *row, const struct message *message)
{
    static const struct hapax__source_type type = {.schemes = {"kafka"}, .positions = true};
    static const struct hapax__source source = {.type = &type, .name = "t.g", .group = "g"};
    const struct hapax_consumer consumer = {
        .key = row->key, .fingerprint = row->fingerprint, .step = row->step};
    struct hapax_message_header headers[6];
    struct hapax__delivered delivered = {.message = {.id = hapax_str(message->id),
                                                     .content_type = hapax_str(message->type),
                                                     .position = hapax_str(message->position),
                                                     .body = hapax_str(message->body),
                                                     .headers = headers}};
    struct hapax_policy policy;
    struct hapax__asked asked;
    struct hapax__ask ask;
    char text[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < 6 && message->headers[2 * i]; i++) {
        headers[i].name = hapax_str(message->headers[2 * i]);
        headers[i].value = hapax_str(message->headers[2 * i + 1]);
        delivered.message.header_count = i + 1;
    }
    hapax_policy_init(&policy);
    assert_int_equal(hapax__message_ask_read(&ask, &consumer, &source, text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__message_ask(&asked, &ask, &policy, &delivered), HAPAX_ERR_NONE);
    add_request(md, asked.refused, &asked.request);
}

/* Every source of keys, every kind of fingerprint, and what the message door refuses. */
static void messages_ask_what_they_asked(void **state)
{
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < ROWS(message_rows); i++) {
        EVP_MD_CTX *md = begin();

        for (size_t j = 0; j < ROWS(messages); j++)
            add_message(md, &message_rows[i], &messages[j]);
        wrong += differs("message", &message_rows[i], md);
    }
    assert_int_equal(wrong, 0);
}

/* ---- events ---------------------------------------------------------------------------- */

#define V1                                                                                         \
    "\"requestContext\":{\"authorizer\":{\"principalId\":\"me\"}},"                                \
    "\"httpMethod\":\"POST\",\"path\":\"/o\""
#define V2                                                                                         \
    "\"version\":\"2.0\",\"rawPath\":\"/o\",\"rawQueryString\":\"a=1\","                           \
    "\"requestContext\":{\"http\":{\"method\":\"PUT\"}}"
#define ALB "\"requestContext\":{\"elb\":{}},\"httpMethod\":\"POST\",\"path\":\"/o\""

static const char *const events[] = {
    "",
    "no json",
    "null",
    "{}",
    "{\"id\":\"1\",\"at\":5}",
    "{\"at\":6, \"id\":\"1\"}",
    "{\"id\":17.0,\"line\":2.50}",
    "{\"id\":null}",
    "{\"id\":[]}",
    "{\"id\":\"\"}",
    "{\"id\":\"1\",\"id\":\"2\"}",
    "{\"id\":\"\\u00e9\\ud83d\\ude00\"}",
    "{\"id\":\"" LONG "\"}",
    "[{\"id\":true}]",
    "{\"body\":\"{\\\"id\\\":\\\"1\\\",\\\"line\\\":3}\"}",
    "{\"body\":\"eyJpZCI6IjEifQ==\"}",
    "{" V1 ",\"headers\":{\"Idempotency-Key\":\"k\"},\"body\":\"{\\\"id\\\":\\\"1\\\"}\"}",
    "{" V1 ",\"headers\":{\"Idempotency-Key\":\"k\",\"idempotency-key\":\"k\"},\"body\":\"\"}",
    "{" V1
    ",\"headers\":{\"id\":\"k\"},\"multiValueHeaders\":{\"id\":[\"k\",\"l\"]},\"body\":null}",
    "{" V1 ",\"headers\":{\"Authorization\":\"me\",\"Idempotency-Key\":\"a b\"},"
    "\"multiValueQueryStringParameters\":{\"b\":[\"2\"],\"a\":[\"1\"]},\"body\":\"x\"}",
    "{" V1 ",\"queryStringParameters\":{\"a\":\"1\"},\"isBase64Encoded\":true,\"body\":\"YWJj\","
    "\"headers\":{\"x-idempotency-key\":\"\\\"k\\\"\",\"id\":\"i\\u00e9\"}}",
    "{" V2 ",\"headers\":{\"idempotency-key\":\"k\",\"authorization\":\"Bearer x\"},"
    "\"body\":\"{\\\"id\\\":1}\"}",
    "{" V2 ",\"headers\":{\"idempotency-key\":\"\",\"id\":\"k\"},\"body\":\"[{}]\"}",
    "{" ALB ",\"multiValueHeaders\":{\"idempotency-key\":[\"k\"]},\"body\":\"abc\"}",
    "{" ALB
    ",\"headers\":{\"idempotency-key\":\"k2\"},\"queryStringParameters\":{},\"body\":\"abc\"}",
    "{\"Records\":[{\"EventSource\":\"aws:sns\",\"Sns\":{\"MessageId\":\"n-1\","
    "\"Message\":\"{\\\"id\\\":\\\"1\\\"}\","
    "\"MessageAttributes\":{\"id\":{\"Type\":\"String\",\"Value\":\"at\"}}}}]}",
    "{\"specversion\":\"1.0\",\"source\":\"/s\",\"id\":\"1\",\"type\":\"t\"}",
    "{\"specversion\":\"1.0\",\"source\":\"\",\"id\":\"1\",\"type\":\"t\"}",
    "{\"detail-type\":\"t\",\"source\":\"s\",\"id\":\"e-1\",\"detail\":{\"id\":9}}",
};

/* Records of batches, each by itself. */
static const struct {
    enum hapax_lambda_kind kind;
    const char *text;
} records[] = {
    {HAPAX_LAMBDA_SQS, "{\"messageId\":\"m-1\",\"body\":\"{\\\"id\\\":\\\"1\\\"}\"}"},
    {HAPAX_LAMBDA_SQS,
     "{\"messageId\":\"m-2\",\"body\":\"abc\",\"messageAttributes\":"
     "{\"Idempotency-Key\":{\"stringValue\":\"k\"},\"id\":{\"stringValue\":\"i\"}}}"},
    {HAPAX_LAMBDA_KINESIS, "{\"eventID\":\"e-1\",\"kinesis\":{\"data\":\"eyJpZCI6IjEifQ==\"}}"},
    {HAPAX_LAMBDA_KINESIS, "{\"eventID\":\"e-2\",\"kinesis\":{\"data\":\"***\"}}"},
    {HAPAX_LAMBDA_DYNAMODB, "{\"eventID\":\"e-1\",\"dynamodb\":{\"Keys\":{\"id\":{\"S\":\"1\"}}}}"},
    {HAPAX_LAMBDA_DYNAMODB, "{\"eventID\":\"\"}"},
};

static const struct row event_rows[] = {
    {NULL, NULL, NULL, "a31c13f871b4f672"},
    {NULL, "off", NULL, "ff4bed8db2c2a34c"},
    {NULL, "json", "pay", "81139639dcfc2a33"},
    {"Idempotency-Key", "method", NULL, "9629da3921b2ef09"},
    {"Idempotency-Key", "uri json", NULL, "c13167ca6196e774"},
    {"x-idempotency-key,id", "method body", NULL, "6616093462fe4035"},
    {"id,event-id", "body", "a-step", "be230297d93d04d6"},
    {"event-id", "json -/at", NULL, "22181d6e911b42e4"},
    {"request-id", "method uri +/id", NULL, "7004469710a26021"},
    {"/id", NULL, NULL, "b5b9e48fe28fe727"},
    {"/id", "json /id", "s", "f8442e32bc827c88"},
    {"/id /line", "-/id", NULL, "06c9261257a205fb"},
    {"/body/id", NULL, NULL, "d3077c1c02887c82"},
    {"/body/id /body/line,/detail/id", NULL, NULL, "7d13781a57879898"},
    {"/kinesis/data/id,/dynamodb/Keys/id/S", "json", NULL, "249e646c0f295db7"},
    {"/Sns/Message/id,/0/id", "body", NULL, "6e0c77511ae111b0"},
    {"/body/0,payload", NULL, NULL, "427c749336319f21"},
    {"payload", "json", "s", "2c8ad7a711554730"},
    {"payload", "off", NULL, "99769f4ffe13a31d"},
};

static void add_event(EVP_MD_CTX *md, const struct row *row, enum hapax_lambda_kind kind,
                      const char *event)
{
    struct hapax_span root = {NULL, 0};
    struct hapax__asked asked;
    struct hapax__ask ask;
    struct hapax_lambda lambda;
    char text[HAPAX_TEXT_MAX];

    hapax_lambda_init(&lambda);
    lambda.key = row->key;
    lambda.fingerprint = row->fingerprint;
    lambda.step = row->step;
    (void)hapax__raw_check(&root, hapax_str(event));
    assert_int_equal(hapax__event_ask_read(&ask, &lambda, text), HAPAX_ERR_NONE);
    assert_true(hapax__event_ask(&asked, &ask, &lambda.policy,
                                 kind ? kind : hapax__event_kind(root), root, hapax_str("r-1")));
    add_request(md, asked.refused, &asked.request);
}

/* As above, with the callers that authorizers name. */
static void events_ask_what_they_asked(void **state)
{
    int wrong = 0;

    (void)state;
    for (size_t i = 0; i < ROWS(event_rows); i++) {
        EVP_MD_CTX *md = begin();

        for (size_t j = 0; j < ROWS(events); j++)
            add_event(md, &event_rows[i], 0, events[j]);
        for (size_t j = 0; j < ROWS(records); j++)
            add_event(md, &event_rows[i], records[j].kind, records[j].text);
        wrong += differs("event", &event_rows[i], md);
    }
    assert_int_equal(wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_ask_what_they_asked),
        cmocka_unit_test(events_ask_what_they_asked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
