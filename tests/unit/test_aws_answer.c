/* SPDX-License-Identifier: Apache-2.0
 *
 * Replies of AWS read, and hosts of regions.
 */
#include "../cases.h"
#include "aws/answer.h"
#include "aws/endpoint.h"
#include "aws/keys.h"

#include <string.h>

/* One string of the outermost object, however it is written. */
CASE(strings_are_found_in_json)
{
    static const struct {
        const char *json;
        const char *value; /* NULL: none */
    } cases[] = {
        {"{\"a\":\"v\"}", "v"},
        {" {\n\"b\" : [1,{\"a\":\"no\"}], \"a\" : \"v\" } ", "v"},
        {"{\"b\":\"a\",\"a\":\"v\"}", "v"},
        {"{\"b\":{\"a\":\"no\"}}", NULL},
        {"{\"a\":\"\"}", ""},
        {"{\"a\":\"q\\\"\\\\\\/\\n\\u00e9\\u20ac\"}", "q\"\\/\n\xc3\xa9\xe2\x82\xac"},
        {"{\"a\":\"\\ud83d\"}", "\xef\xbf\xbd"},
        {"{\"a\":\"\\u0000\"}", NULL},
        {"{\"a\":\"\\u12\"}", NULL},
        {"{\"a\":\"\\x\"}", NULL},
        {"{\"a\":\"12345678901\"}", "12345678901"},
        {"{\"a\":\"123456789012\"}", NULL},
        {"{\"a\":1}", NULL},
        {"{\"a\":null,\"a\":\"v\"}", NULL},
        {"{\"a\":\"v", NULL},
        {"{\"a\":\"v\\", NULL},
        {"{\"a\"", NULL},
        {"{\"a\":", NULL},
        {"[\"a\",\"v\"]", NULL},
        {"}{\"a\":\"v\"}", NULL},
        {"{}{\"a\":\"v\"}", NULL},
        {"<a>v</a>", NULL},
        {"", NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char out[12] = "?";
        bool found = hapax__aws_json_string(out, sizeof(out), hapax_str(cases[i].json), "a");

        if (found != (cases[i].value != NULL) ||
            strcmp(out, cases[i].value ? cases[i].value : "") != 0)
            fail_msg("%s: %d \"%s\"", cases[i].json, found, out);
    }
}

CASE(texts_are_found_in_xml)
{
    struct hapax_span xml = hapax_str("<A><KeyIdx>no</KeyIdx><KeyId>A+/=</KeyId><B>&amp;</B><C>c");
    char out[8];

    assert_true(hapax__aws_xml_text(out, sizeof(out), xml, "KeyId"));
    assert_string_equal(out, "A+/=");
    assert_false(hapax__aws_xml_text(out, 4, xml, "KeyId"));
    assert_string_equal(out, "");
    assert_false(hapax__aws_xml_text(out, sizeof(out), xml, "B"));
    assert_false(hapax__aws_xml_text(out, sizeof(out), xml, "C"));
    assert_false(hapax__aws_xml_text(out, sizeof(out), xml, "D"));
    assert_false(hapax__aws_xml_text(out, sizeof(out), (struct hapax_span){NULL, 0}, "D"));
}

/* The name alone, from the header or the body. */
CASE(errors_are_named)
{
    static const struct {
        const char *type;
        const char *body;
        const char *name;
    } cases[] = {
        {"", "{\"__type\":\"com.amazonaws.dynamodb.v20120810#ThrottlingException\"}",
         "ThrottlingException"},
        {"", "{\"__type\":\"AccessDenied\"}", "AccessDenied"},
        {"", "{\"code\":\"X\"}", "X"},
        {"com.amazonaws.sqs#QueueDoesNotExist:http://internal", "{}", "QueueDoesNotExist"},
        {"", "<html>", ""},
        {"", "{\"__type\":\"a#B\\u0007C\"}", "B"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char name[32];

        hapax__aws_error_name(name, sizeof(name), cases[i].type, hapax_str(cases[i].body));
        assert_string_equal(name, cases[i].name);
    }
}

CASE(answers_mean_what_the_table_says)
{
    static const struct {
        int status;
        const char *name;
        const char *service;
        enum hapax__aws_meaning meaning;
    } cases[] = {
        {200, "", "sqs", HAPAX__AWS_DONE},
        {204, "", "sqs", HAPAX__AWS_DOUBT},
        {301, "", "sqs", HAPAX__AWS_DOUBT},
        {400, "", "sqs", HAPAX__AWS_DOUBT},
        {403, "", "sqs", HAPAX__AWS_NO},
        {400, "ConditionalCheckFailedException", "dynamodb", HAPAX__AWS_NO},
        {400, "TransactionCanceledException", "dynamodb", HAPAX__AWS_NO},
        {400, "TransactionInProgressException", "dynamodb", HAPAX__AWS_DOUBT},
        {400, "ThrottlingException", "dynamodb", HAPAX__AWS_LATER},
        {400, "ProvisionedThroughputExceededException", "dynamodb", HAPAX__AWS_LATER},
        {400, "LimitExceededException", "dynamodb", HAPAX__AWS_LATER},
        {400, "LimitExceededException", "sqs", HAPAX__AWS_NO},
        {400, "OverLimit", "sqs", HAPAX__AWS_NO},
        {403, "RequestThrottled", "sqs", HAPAX__AWS_LATER},
        {429, "", "sqs", HAPAX__AWS_LATER},
        {503, "ThrottlingException", "sqs", HAPAX__AWS_LATER},
        {500, "InternalServerError", "dynamodb", HAPAX__AWS_DOUBT},
        {503, "", "dynamodb", HAPAX__AWS_DOUBT},
        {408, "", "sqs", HAPAX__AWS_DOUBT},
        {400, "ExpiredTokenException", "dynamodb", HAPAX__AWS_KEYS},
        {403, "InvalidClientTokenId", "sqs", HAPAX__AWS_KEYS},
        {400, "AccessDeniedException", "dynamodb", HAPAX__AWS_NO},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum hapax__aws_meaning meaning =
            hapax__aws_meaning_of(cases[i].status, cases[i].name, cases[i].service);

        if (meaning != cases[i].meaning)
            fail_msg("%d %s: %d", cases[i].status, cases[i].name, (int)meaning);
    }
}

CASE(times_are_read)
{
    assert_int_equal(hapax__aws_time("2015-08-30T12:36:00Z"), 1440938160);
    assert_int_equal(hapax__aws_time("2015-08-30T12:36:00.123Z"), 1440938160);
    assert_int_equal(hapax__aws_time("2015-08-30T12:36:00+00:00"), 1440938160);
    assert_int_equal(hapax__aws_time("2015-08-30T12:36:00"), -1);
    assert_int_equal(hapax__aws_time("2015-08-30T12:36:00+02:00"), -1);
    assert_int_equal(hapax__aws_time("2015-13-30T12:36:00Z"), -1);
    assert_int_equal(hapax__aws_time("2015-08"), -1);
    assert_int_equal(hapax__aws_time(""), -1);
}

CASE(sums_are_of_the_standard)
{
    assert_int_equal(hapax__aws_crc32(hapax_str("123456789")), 0xcbf43926);
    assert_int_equal(hapax__aws_crc32(hapax_str("")), 0);
}

static void setup_environment(void)
{
    static const char *const names[] = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS",
                                        "AWS_USE_FIPS_ENDPOINT",
                                        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        unsetenv(names[i]);
}

CASE(hosts_are_of_their_partition)
{
    static const char *const cases[][2] = {
        {"eu-central-1", "https://sqs.eu-central-1.amazonaws.com/"},
        {"us-gov-west-1", "https://sqs.us-gov-west-1.amazonaws.com/"},
        {"cn-north-1", "https://sqs.cn-north-1.amazonaws.com.cn/"},
        {"us-iso-east-1", "https://sqs.us-iso-east-1.c2s.ic.gov/"},
        {"us-isob-east-1", "https://sqs.us-isob-east-1.sc2s.sgov.gov/"},
        {"eusc-de-east-1", "https://sqs.eusc-de-east-1.amazonaws.eu/"},
    };
    struct hapax__aws_endpoint out;
    char text[HAPAX_TEXT_MAX];

    setup_environment();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(hapax__aws_endpoint_find(&out, "sqs", cases[i][0], text), HAPAX_ERR_NONE);
        assert_string_equal(out.url, cases[i][1]);
        assert_true(out.tls);
    }
}

/* The host is written as it is signed and sent, and nothing that would be lost is taken. */
CASE(endpoints_are_a_host_and_a_port)
{
    static const char *const good[][2] = {
        {"http://localhost:8000", "localhost:8000"},
        {"http://h:80/", "h"},
        {"https://h:443", "h"},
        {"https://h:80", "h:80"},
        {"http://[::1]:8000", "[::1]:8000"},
    };
    static const char *const bad[] = {
        "h:8000",  "ftp://h", "http://u:geheim@h", "http://h/p", "http://h?geheim", "http://h#f",
        "http://", "",        "http://h:99999"};
    struct hapax__aws_endpoint out;
    char text[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(hapax__aws_endpoint_read(&out, good[i][0], "endpoint", text), 0);
        assert_string_equal(out.host, good[i][1]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (hapax__aws_endpoint_read(&out, bad[i], "endpoint", text) != HAPAX_ERR_INVALID)
            fail_msg("%s was taken", bad[i]);
        assert_null(strstr(text, "geheim"));
    }
}

/* Keys are asked for without TLS only where nobody listens. */
CASE(containers_are_asked_where_it_is_safe)
{
    static const char *const may[] = {"https://example.com/x",
                                      "http://127.0.0.1:5/x",
                                      "http://localhost/x",
                                      "http://127.9.9.9/",
                                      "http://[::1]:8/x",
                                      "http://169.254.170.2/x",
                                      "http://169.254.170.23/v1/credentials",
                                      "http://[fd00:ec2::23]/v1/credentials"};
    static const char *const may_not[] = {"http://example.com/x",
                                          "http://169.254.170.3/",
                                          "http://169.254.169.254/",
                                          "http://localhost.x/",
                                          "http://[fd00:ec2::24]/",
                                          "ftp://127.0.0.1/",
                                          "http://127.0.0.1@evil.com/",
                                          "nonsense://",
                                          ""};

    for (size_t i = 0; i < sizeof(may) / sizeof(may[0]); i++)
        if (!hapax__aws_container_may(may[i]))
            fail_msg("%s", may[i]);
    for (size_t i = 0; i < sizeof(may_not) / sizeof(may_not[0]); i++)
        if (hapax__aws_container_may(may_not[i]))
            fail_msg("%s", may_not[i]);
}
