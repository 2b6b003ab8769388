/* SPDX-License-Identifier: Apache-2.0
 *
 * SQS URIs as a table: each mistake has its text, and no text shows a value.
 */
#include "broker/sqs/uri.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define LONG_16 "abcdefghabcdefgh"
#define LONG_75 LONG_16 LONG_16 LONG_16 LONG_16 "abcdefghabc"

static const struct row {
    const char *uri;
    const char *expected; /* "!…": INVALID, with this in its text */
} rows[] = {
    {"sqs://eu-central-1/orders", "eu-central-1 orders   20 30"},
    {"sqs://eu-central-1", "eu-central-1    20 30"},
    {"sqs://eu-central-1/", "eu-central-1    20 30"},
    {"sqs://us-gov-west-1/Or_d-1.fifo?wait=0s&visibility=12h",
     "us-gov-west-1 Or_d-1.fifo   0 43200"},
    {"sqs://r/q?endpoint=http://127.0.0.1:4566/&account=000000000000&profile=a%20b",
     "r q http://127.0.0.1:4566 000000000000 20 30"},
    {"sqs://r/q?endpoint=https%3A%2F%2Fh&visibility=2s", "r q https://h  20 2"},
    {"sqs://r/" LONG_75 ".fifo", "r " LONG_75 ".fifo   20 30"},
    {"sqs://r/" LONG_75 "a.fifo", "!1 to 80 bytes"},
    {"amqp://r/q", "!begin with sqs://"},
    {"sqs:///q", "!the region is not 1 to 63 bytes"},
    {"sqs://EU/q", "!the region is not of a-z"},
    {"sqs://h:1/q", "!the region is not of a-z"},
    {"sqs://r/a.b", "!letters, digits"},
    {"sqs://r/.fifo", "!letters, digits"},
    {"sqs://r/a/b", "!letters, digits"},
    {"sqs://r/a%20", "!letters, digits"},
    {"sqs://hush:hush@r/q", "!there is a '@'"},
    {"sqs://r/q?colour=hush", "!parameter \"colour\" is not known"},
    {"sqs://r/q?wait=1s&wait=2s", "!\"wait\" is given twice"},
    {"sqs://r/q?wait=hush", "!\"wait\" is not whole seconds"},
    {"sqs://r/q?wait=21s", "!0s to 20s"},
    {"sqs://r/q?wait=500ms", "!whole seconds"},
    {"sqs://r/q?visibility=1s", "!2s to 12h"},
    {"sqs://r/q?visibility=13h", "!2s to 12h"},
    {"sqs://r/q?account=1234", "!12 digits"},
    {"sqs://r/q?account=12345678901x", "!12 digits"},
    {"sqs://r/q?profile=", "!1 to 128 bytes"},
    {"sqs://r/q?profile=%zz", "!two hex digits"},
    {"sqs://r/q?endpoint=hush", "!no http:// or https:// URL"},
    {"sqs://r/q?endpoint=http://", "!no http:// or https:// URL"},
    {"sqs://r/q?endpoint=http://hush:hush@h", "!more than scheme, host and port"},
    {"sqs://r/q?endpoint=http://h/path", "!more than scheme, host and port"},
};

static void each_uri_says_what_it_says(void **state)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[HAPAX_TEXT_MAX] = "", shown[512];
        struct hapax__sqs_uri uri;
        enum hapax_error error = hapax__sqs_uri(&uri, rows[i].uri, text);

        if (rows[i].expected[0] == '!') {
            assert_int_equal(error, HAPAX_ERR_INVALID);
            if (!strstr(text, rows[i].expected + 1))
                fail_msg("%s: %s", rows[i].uri, text);
            assert_null(strstr(text, "hush"));
            continue;
        }
        assert_int_equal(error, HAPAX_ERR_NONE);
        (void)snprintf(shown, sizeof(shown), "%s %s %s %s %d %d", uri.region, uri.queue,
                       uri.endpoint, uri.account, uri.wait_s, uri.visibility_s);
        assert_string_equal(shown, rows[i].expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_uri_says_what_it_says)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
