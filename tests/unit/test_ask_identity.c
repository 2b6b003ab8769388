/* SPDX-License-Identifier: Apache-2.0
 *
 * What requests ask is part of what stores hold: a key or a fingerprint that changes makes every
 * repeat of an older request another operation, or a mismatch. Each row is a set of settings; its
 * digest is over the answers for all messages, or for all events. A row that differs is a change
 * of identity, never a row to be written anew.
 */
#include "../cases.h"
#include "door/consume/ask.h"
#include "door/lambda/event.h"
#include "json/raw.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

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
CASE(messages_ask_what_they_asked)
{
    int wrong = 0;

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
    {NULL, NULL, NULL, "ee18418ecacf4275"},
    {NULL, "off", NULL, "d1747f9810a0d072"},
    {NULL, "json", "pay", "ffbe59059f71c853"},
    {"Idempotency-Key", "method", NULL, "cab0b9cbffdab38f"},
    {"Idempotency-Key", "uri json", NULL, "7a49d4abc988b483"},
    {"x-idempotency-key,id", "method body", NULL, "952170c39b333c3b"},
    {"id,event-id", "body", "a-step", "b3600afc2a6b3723"},
    {"event-id", "json -/at", NULL, "77cf86f8a944b3b2"},
    {"request-id", "method uri +/id", NULL, "965ad8fd50bb33bf"},
    {"/id", NULL, NULL, "85be2d050c4ab3f3"},
    {"/id", "json /id", "s", "d3f1b6e8679002b3"},
    {"/id /line", "-/id", NULL, "0adbd495ba10c860"},
    {"/body/id", NULL, NULL, "7acad622246e15a9"},
    {"/body/id /body/line,/detail/id", NULL, NULL, "9a724e14b09b0db3"},
    {"/kinesis/data/id,/dynamodb/Keys/id/S", "json", NULL, "622af5e19ae35d9e"},
    {"/Sns/Message/id,/0/id", "body", NULL, "97a3039b54cfeac1"},
    {"/body/0,payload", NULL, NULL, "7d76c39f3a2da03c"},
    {"payload", "json", "s", "32d090902c1aaa6c"},
    {"payload", "off", NULL, "983d15fb7ef03027"},
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
    asked.request.caller = ask.nobody;
    add_request(md, asked.refused, &asked.request);
}

/* As above, without callers, which are compared and are no part of what an operation is. */
CASE(events_ask_what_they_asked)
{
    int wrong = 0;

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

static void assert_what(const struct hapax_request *request, const char *what)
{
    if (request->what.len != strlen(what) || memcmp(request->what.ptr, what, strlen(what)) != 0)
        fail_msg("it is \"%.*s\" and not \"%s\"", (int)request->what.len,
                 (const char *)request->what.ptr, what);
}

/* What an operation is, for operators: never a query, a key or a body. */
CASE(events_say_what_they_are)
{
    static const struct {
        const char *event, *what;
    } rows[] = {
        {"{\"version\":\"2.0\",\"rawPath\":\"/pay\",\"rawQueryString\":\"card=4\",\"headers\":"
         "{\"idempotency-key\":\"k\"},\"requestContext\":{\"http\":{\"method\":\"POST\"}}}",
         "POST /pay"},
        {"{\"httpMethod\":\"PUT\",\"path\":\"/a\\u00e9\",\"headers\":{\"Idempotency-Key\":\"k\"},"
         "\"requestContext\":{\"elb\":{}}}",
         "PUT /a\xc3\xa9"},
        {"{\"id\":\"1\",\"source\":\"shop\",\"detail-type\":\"Paid\",\"detail\":{}}", "shop Paid"},
        {"{\"id\":\"1\",\"specversion\":\"1.0\",\"source\":\"/shop\",\"type\":\"paid\"}",
         "/shop paid"},
        {"{\"id\":\"1\"}", ""},
    };

    for (size_t i = 0; i < ROWS(rows); i++) {
        struct hapax_span root = {NULL, 0};
        struct hapax_lambda lambda;
        struct hapax__asked asked;
        struct hapax__ask ask;
        char text[HAPAX_TEXT_MAX];

        hapax_lambda_init(&lambda);
        lambda.key = "Idempotency-Key,/id";
        assert_true(hapax__raw_check(&root, hapax_str(rows[i].event)));
        assert_int_equal(hapax__event_ask_read(&ask, &lambda, text), HAPAX_ERR_NONE);
        assert_true(hapax__event_ask(&asked, &ask, &lambda.policy, hapax__event_kind(root), root,
                                     hapax_str("r-1")));
        assert_int_equal(asked.refused, 0);
        assert_what(&asked.request, rows[i].what);
    }
}
