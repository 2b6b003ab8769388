/* SPDX-License-Identifier: Apache-2.0
 *
 * Invocations on the memory store: what each event asks, what is run, what is posted, and what a
 * batch makes of its records.
 */
#include "../cases.h"
#include "door/lambda/invocation.h"
#include "json/raw.h"

#include <stdlib.h>
#include <string.h>

/* ---- the bed ------------------------------------------------------------------------- */

struct bed {
    struct hapax_lambda lambda;
    struct hapax_lambda_stats stats;
    struct hapax__ask ask;
    struct hapax__function function;
    struct hapax__invocation *invocation; /* the last one to be run */
    char text[HAPAX_TEXT_MAX];
    char posted[4096]; /* what was posted last */
    bool error;
};

static void open_with(struct bed *bed, const char *key)
{
    struct hapax *h;

    memset(bed, 0, sizeof(*bed));
    hapax_lambda_init(&bed->lambda);
    bed->lambda.key = key;
    assert_int_equal(hapax_open(&h, "memory:", NULL, bed->text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__event_ask_read(&bed->ask, &bed->lambda, bed->text), HAPAX_ERR_NONE);
    bed->function =
        (struct hapax__function){.lambda = &bed->lambda, .ask = &bed->ask, .stats = &bed->stats};
    atomic_store(&bed->function.h, h);
}

static void close_bed(struct bed *bed)
{
    hapax_close(bed->function.h, 0);
}

static void take_reply(struct bed *bed, struct hapax__lambda_reply *reply)
{
    assert_true(reply->len < sizeof(bed->posted));
    memcpy(bed->posted, reply->text, reply->len);
    bed->posted[reply->len] = '\0';
    bed->error = reply->error;
    hapax__reply_release(reply);
}

/* Whether the invocation is to be run; otherwise it was answered. */
static bool begin(struct bed *bed, const char *event)
{
    struct hapax__got got = {.body = (uint8_t *)strdup(event), .len = strlen(event)};
    struct hapax__lambda_reply reply;
    bool run = false;

    hapax__lines_add(&got.head.lines, "Lambda-Runtime-Aws-Request-Id", "r-1");
    bed->invocation = hapax__invocation_begin(&bed->function, &got, &run, &reply);
    assert_non_null(bed->invocation);
    if (run)
        return true;
    take_reply(bed, &reply);
    hapax__invocation_free(bed->invocation);
    bed->invocation = NULL;
    return false;
}

static void end(struct bed *bed, bool error, const char *text)
{
    struct hapax__lambda_reply reply;

    assert_true(hapax__invocation_end(bed->invocation, error, hapax_str(error ? "Unlucky" : ""),
                                      hapax_str(text), &reply));
    take_reply(bed, &reply);
    hapax__invocation_free(bed->invocation);
    bed->invocation = NULL;
}

#define assert_event(bed, text)                                                                    \
    do {                                                                                           \
        struct hapax_span event_ = hapax__invocation_event((bed)->invocation);                     \
        assert_int_equal(event_.len, strlen(text));                                                \
        assert_memory_equal(event_.ptr, text, event_.len);                                         \
    } while (0)

/* ---- one event ----------------------------------------------------------------------- */

/* A repeat gets the same bytes, and nothing runs. */
CASE(a_response_is_replayed_byte_for_byte)
{
    static const char response[] = " {\"a\" : 1.50,\"b\":\"\\u00e9\"} ";
    struct bed bed;

    open_with(&bed, "/id");
    assert_true(begin(&bed, "{\"id\":\"k\"}"));
    end(&bed, false, response);
    assert_string_equal(bed.posted, response);
    assert_false(begin(&bed, "{ \"id\" : \"k\" }")); /* JSON that says the same is the same */
    assert_string_equal(bed.posted, response);
    assert_false(bed.error);
    assert_false(begin(&bed, "{\"id\":\"k\",\"more\":1}"));
    assert_true(bed.error);
    assert_non_null(strstr(bed.posted, "Hapax.FingerprintMismatch"));
    close_bed(&bed);
}

/* A function that dies leaves its claim to the lease. */
CASE(what_was_lost_is_in_flight)
{
    struct bed bed;

    open_with(&bed, "/id");
    assert_true(begin(&bed, "{\"id\":\"k\"}"));
    hapax__invocation_lost(bed.invocation);
    assert_false(begin(&bed, "{\"id\":\"k\"}"));
    assert_non_null(strstr(bed.posted, "Hapax.InFlight"));
    close_bed(&bed);
}

/* A stored error is an error again, never a response, even under `replay`. */
CASE(a_stored_error_is_an_error_again)
{
    struct bed bed;

    open_with(&bed, "/id");
    bed.lambda.policy.on_failed = HAPAX_FAILED_REPLAY;
    assert_true(begin(&bed, "{\"id\":\"k\"}"));
    end(&bed, true, "{\"errorType\":\"Unlucky\"}");
    assert_false(begin(&bed, "{\"id\":\"k\"}"));
    assert_true(bed.error);
    assert_string_equal(bed.posted, "{\"errorType\":\"Unlucky\"}");
    close_bed(&bed);
}

/* The key's sources: into a string that holds JSON, and into base64 of it. */
CASE(pointers_go_on_into_strings)
{
    static const char *const events[][2] = {
        {"/body/id", "{\"body\":\"{\\\"id\\\":\\\"k\\\"}\"}"},
        {"/data/id", "{\"data\":\"eyJpZCI6ImsifQ==\"}"},
        {"/a/0/b~1c", "{\"a\":[{\"b/c\":\"k\"}]}"},
    };
    struct bed bed;

    for (size_t i = 0; i < 3; i++) {
        open_with(&bed, events[i][0]);
        assert_true(begin(&bed, events[i][1]));
        assert_int_equal(bed.invocation->units[0].asked.request.key.len, 1);
        assert_int_equal(bed.invocation->units[0].asked.memory[0], 'k');
        end(&bed, false, "1");
        close_bed(&bed);
    }
}

/* Repeated names, and values that are none, give no key. */
CASE(a_doubtful_key_is_none_or_bad)
{
    struct bed bed;

    open_with(&bed, "/id");
    assert_true(begin(&bed, "{\"id\":\"a\",\"id\":\"b\"}"));
    assert_int_equal(bed.invocation->units[0].asked.request.key.len, 0);
    end(&bed, false, "1");
    assert_false(begin(&bed, "{\"id\":{}}"));
    assert_non_null(strstr(bed.posted, "Hapax.BadKey"));
    assert_false(begin(&bed, "{\"id\":\"\"}"));
    assert_non_null(strstr(bed.posted, "Hapax.BadKey"));
    close_bed(&bed);
}

/* ---- HTTP ---------------------------------------------------------------------------- */

static const char http[] = "{\"version\":\"2.0\",\"rawPath\":\"/a\",\"rawQueryString\":\"\","
                           "\"headers\":{\"idempotency-key\":\"k\"},"
                           "\"requestContext\":{\"http\":{\"method\":\"POST\"}},\"body\":\"b\"}";

/* Marks are put into the response; cookies are not stored; the body comes back. */
CASE(an_http_response_is_stored_as_it_is_on_the_wire)
{
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, http));
    assert_int_equal(bed.invocation->kind, HAPAX_LAMBDA_HTTP);
    end(&bed, false,
        "{\"statusCode\":201,\"headers\":{\"X-A\":\"b\",\"Set-Cookie\":\"s\"},\"body\":\"/w==\","
        "\"isBase64Encoded\":true}");
    assert_string_equal(bed.posted,
                        "{\"statusCode\":201,\"headers\":{\"Idempotency-Replayed\":\"false\","
                        "\"Idempotency-TTL\":\"86400\",\"X-A\":\"b\",\"Set-Cookie\":\"s\"},"
                        "\"body\":\"/w==\",\"isBase64Encoded\":true}");
    assert_false(begin(&bed, http));
    assert_non_null(strstr(bed.posted, "{\"statusCode\":201,\"headers\":{\"X-A\":\"b\","
                                       "\"Idempotency-Replayed\":\"true\",\"Age\":\"0\","
                                       "\"Idempotency-TTL\":\"86"));
    assert_non_null(strstr(bed.posted, "},\"body\":\"/w==\",\"isBase64Encoded\":true}"));
    close_bed(&bed);
}

/* A 503 says that nothing ran, a 500 that the run failed: both run again. A 404 is final. */
CASE(a_status_says_whether_it_runs_again)
{
    static const struct {
        const char *status;
        bool again;
    } cases[] = {{"503", true}, {"500", true}, {"404", false}, {"\"302\"", false}, {"\"x\"", true}};
    struct bed bed;
    char response[64];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        open_with(&bed, NULL);
        assert_true(begin(&bed, http));
        (void)snprintf(response, sizeof(response), "{\"statusCode\":%s}", cases[i].status);
        end(&bed, false, response);
        assert_int_equal(begin(&bed, http), cases[i].again);
        if (bed.invocation)
            end(&bed, false, response);
        close_bed(&bed);
    }
}

/* ---- batches --------------------------------------------------------------------------- */

#define RECORD(id, more)                                                                           \
    "{\"messageId\":\"" id "\",\"body\":\"" id "\",\"eventSource\":\"aws:sqs\"" more "}"
#define FIFO(group)                                                                                \
    ",\"eventSourceARN\":\"arn:q.fifo\",\"attributes\":{\"MessageGroupId\":\"" group "\"}"
#define STREAM(id)                                                                                 \
    "{\"eventID\":\"" id "\",\"kinesis\":{\"sequenceNumber\":\"" id                                \
    "\",\"data\":\"eA==\"},\"eventSource\":\"aws:kinesis\"}"

/* Done records are cut out, and every other byte stays. */
CASE(done_records_are_cut_out_of_the_text)
{
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, "{\"Records\":[" RECORD("b", "") "]}"));
    end(&bed, false, "{\"batchItemFailures\":[]}");
    assert_true(begin(&bed, "{ \"x\" : 1, \"Records\" : [ " RECORD("a", "") " , " RECORD(
                                "b", "") " , " RECORD("c", "") " ] }"));
    assert_event(&bed, "{ \"x\" : 1, \"Records\" : [ " RECORD("a", "") "," RECORD("c", "") " ] }");
    end(&bed, false, "null");
    assert_string_equal(bed.posted, "null");
    assert_false(begin(&bed, "{\"Records\":[" RECORD("a", "") "," RECORD("c", "") "]}"));
    assert_string_equal(bed.posted, "{\"batchItemFailures\":[]}");
    close_bed(&bed);
}

/* A record in flight elsewhere is reported beside the function's own report. */
CASE(reports_are_merged)
{
    struct hapax__invocation *elsewhere;
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", "") "]}"));
    elsewhere = bed.invocation;
    assert_true(
        begin(&bed, "{\"Records\":[" RECORD("a", "") "," RECORD("b", "") "," RECORD("c", "") "]}"));
    end(&bed, false, "{\"batchItemFailures\": [{\"itemIdentifier\":\"b\"}]}");
    assert_string_equal(
        bed.posted,
        "{\"batchItemFailures\": [{\"itemIdentifier\":\"a\"},{\"itemIdentifier\":\"b\"}]}");
    assert_true(begin(&bed, "{\"Records\":[" RECORD("b", "") "," RECORD("c", "") "]}"));
    assert_event(&bed, "{\"Records\":[" RECORD("b", "") "]}");
    end(&bed, false, "");
    hapax__invocation_lost(elsewhere);
    close_bed(&bed);
}

/* Two records of a group that run elsewhere return the records behind both of them once. */
CASE(two_in_front_give_a_record_back_once)
{
    struct hapax__invocation *elsewhere[2];
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", FIFO("g")) "]}"));
    elsewhere[0] = bed.invocation;
    assert_true(begin(&bed, "{\"Records\":[" RECORD("b", FIFO("g")) "]}"));
    elsewhere[1] = bed.invocation;
    assert_false(begin(&bed, "{\"Records\":[" RECORD("a", FIFO("g")) "," RECORD(
                                 "b", FIFO("g")) "," RECORD("c", FIFO("g")) "]}"));
    assert_string_equal(bed.posted, "{\"batchItemFailures\":[{\"itemIdentifier\":\"a\"},"
                                    "{\"itemIdentifier\":\"b\"},{\"itemIdentifier\":\"c\"}]}");
    assert_true(begin(&bed, "{\"Records\":[" RECORD("c", "") "]}"));
    end(&bed, false, "");
    hapax__invocation_lost(elsewhere[0]);
    hapax__invocation_lost(elsewhere[1]);
    close_bed(&bed);
}

/* In a tumbling window the reply has the state of all records. So the event is one operation, known
 * by its bytes, whatever the key of a record would be; also the window's last, without records. */
CASE(a_window_is_one_operation)
{
    static const char *const events[] = {
        "{\"Records\":[" STREAM("1") "," STREAM("2") "],\"window\":{\"start\":\"a\"},\"state\":{},"
                                                     "\"shardId\":\"s\"}",
        "{\"Records\":[],\"window\":{\"start\":\"a\"},\"state\":{\"sum\":55},\"shardId\":\"s\"}"};
    struct bed bed;

    open_with(&bed, "/kinesis/data/id");
    bed.lambda.policy.key = HAPAX_KEY_REQUIRED;
    for (size_t i = 0; i < 2; i++) {
        assert_true(begin(&bed, events[i]));
        assert_event(&bed, events[i]);
        end(&bed, false, "{\"state\":{\"sum\":55}}");
        assert_false(begin(&bed, events[i]));
        assert_string_equal(bed.posted, "{\"state\":{\"sum\":55}}");
        assert_false(bed.error);
    }
    close_bed(&bed);
}

/* The second record of a key is neither run nor reported: it ends as the first does. */
CASE(duplicates_share_their_end)
{
    static const char event[] = "{\"Records\":[" RECORD("a", "") "," RECORD("a", "") "]}";
    struct bed bed;

    open_with(&bed, NULL);
    bed.lambda.policy.wait_ms = 60000; /* the duplicate itself must not wait for it */
    assert_true(begin(&bed, event));
    assert_event(&bed, "{\"Records\":[" RECORD("a", "") "]}");
    end(&bed, true, "{}");
    assert_true(begin(&bed, event));
    end(&bed, false, "");
    assert_string_equal(bed.posted, "");
    assert_false(begin(&bed, event));
    close_bed(&bed);
}

/* In a group nothing runs behind a record that has to come again; in another group it does. */
CASE(a_group_keeps_its_order)
{
    struct hapax__invocation *elsewhere;
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", FIFO("g")) "]}"));
    elsewhere = bed.invocation;
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", FIFO("g")) "," RECORD(
                                "b", FIFO("h")) "," RECORD("c", FIFO("g")) "]}"));
    assert_event(&bed, "{\"Records\":[" RECORD("b", FIFO("h")) "]}");
    end(&bed, false, "");
    assert_string_equal(
        bed.posted,
        "{\"batchItemFailures\":[{\"itemIdentifier\":\"a\"},{\"itemIdentifier\":\"c\"}]}");
    hapax__invocation_lost(elsewhere);
    assert_true(begin(&bed, "{\"Records\":[" RECORD("c", FIFO("g")) "]}")); /* it was returned */
    end(&bed, false, "");
    close_bed(&bed);
}

/* Behind a record that a function reports, it is unknown what the function did. */
CASE(a_stream_comes_again_from_the_first_that_is_reported)
{
    static const char event[] = "{\"Records\":[" STREAM("1") "," STREAM("2") "," STREAM("3") "]}";
    struct bed bed;

    open_with(&bed, NULL);
    assert_true(begin(&bed, event));
    end(&bed, false, "{\"batchItemFailures\":[{\"itemIdentifier\":\"2\"}]}");
    assert_true(begin(&bed, event));
    assert_event(&bed, "{\"Records\":[" STREAM("2") "," STREAM("3") "]}");
    end(&bed, false, "");
    assert_false(begin(&bed, event));
    close_bed(&bed);
}

/* Where an answer means the whole batch, one record that is not done makes it an error. */
CASE(without_reports_it_is_all_or_an_error)
{
    struct hapax__invocation *elsewhere;
    struct bed bed;

    open_with(&bed, NULL);
    bed.lambda.batch_report = false;
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", "") "]}"));
    elsewhere = bed.invocation;
    assert_true(begin(&bed, "{\"Records\":[" RECORD("a", "") "," RECORD("b", "") "]}"));
    end(&bed, false, "1");
    assert_true(bed.error);
    assert_non_null(strstr(bed.posted, "Hapax.InFlight"));
    bed.invocation = elsewhere;
    end(&bed, false, "1");
    assert_false(begin(&bed, "{\"Records\":[" RECORD("a", "") "," RECORD("b", "") "]}"));
    assert_false(bed.error);
    close_bed(&bed);
}

/* ---- settings -------------------------------------------------------------------------- */

CASE(settings_that_cannot_be_are_named)
{
    static const struct {
        struct hapax_lambda lambda;
        const char *named;
    } cases[] = {
        {{.key = "a,,b"}, "key"},
        {{.key = "payload,a"}, "key"},
        {{.key = "/~x"}, "key"},
        {{.key = "a b"}, "key"},
        {{.fingerprint = ""}, "finger"},
        {{.fingerprint = "body json"}, "finger"},
        {{.fingerprint = "+/a -/b"}, "finger"},
        {{.scope = ""}, "scope"},
        {{.step = "a:b"}, "step"},
        {{.step = ".a"}, "step"},
    };
    struct hapax__ask ask;
    char text[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(hapax__event_ask_read(&ask, &cases[i].lambda, text), HAPAX_ERR_INVALID);
        assert_non_null(strstr(text, cases[i].named));
    }
}
