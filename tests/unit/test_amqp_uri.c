/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP URIs as a table: each mistake has its text, the environment fills gaps, and no text shows a
 * password.
 */
#include "../cases.h"
#include "broker/amqp/uri.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show(char out[1024], const struct hapax__amqp_uri *uri)
{
    int n = snprintf(out, 1024, "%s%s|%u %s:%s %s", uri->tls ? "tls " : "", uri->host, uri->port,
                     uri->user, uri->password, uri->vhost);

#define ADD(format, given, ...)                                                                    \
    if (given)                                                                                     \
    n += snprintf(out + n, 1024 - (size_t)n, " " format, __VA_ARGS__)
    ADD("queue=%s", uri->queue[0], uri->queue);
    ADD("type=%s", uri->classic, "classic");
    ADD("declare=%s", uri->declare, "on");
    ADD("prefetch=%u", uri->prefetch, uri->prefetch);
    ADD("heartbeat=%u", uri->heartbeat_s != 10, uri->heartbeat_s);
    ADD("timeout=%ld", uri->timeout_ms != 5000, (long)uri->timeout_ms);
    ADD("ca=%s", uri->tls_ca[0], uri->tls_ca);
    ADD("cert=%s", uri->tls_cert[0], uri->tls_cert);
    ADD("key=%s", uri->tls_key[0], uri->tls_key);
    ADD("verify=%s", !uri->tls_verify, "off");
#undef ADD
}

#define LONG_32  "abcdefghabcdefghabcdefghabcdefgh"
#define LONG_240 LONG_32 LONG_32 LONG_32 LONG_32 LONG_32 LONG_32 LONG_32 "abcdefghabcdefgh"

static const struct row {
    const char *uri;
    const char *expected; /* "!…": INVALID, with this in its text */
} rows[] = {
    {"amqp://h", "h|5672 guest:guest /"},
    {"amqp://h/", "h|5672 guest:guest /"},
    {"amqp://h:1/%2f", "h|1 guest:guest /"},
    {"amqp://h/orders?queue=q", "h|5672 guest:guest orders queue=q"},
    {"amqp://h?queue=a%26b%20c", "h|5672 guest:guest / queue=a&b c"},
    {"amqps://[::1]:7", "tls ::1|7 guest:guest /"},
    {"amqps://h", "tls h|5671 guest:guest /"},
    {"amqp://u:p%40%2f%3a@h/v%2Fw", "h|5672 u:p@/: v/w"},
    {"amqp://u:@h", "h|5672 u: /"},
    {"amqp://h?type=classic&declare=on&prefetch=65535",
     "h|5672 guest:guest / type=classic declare=on prefetch=65535"},
    {"amqp://h?type=quorum&declare=off&heartbeat=10m&timeout=100ms",
     "h|5672 guest:guest / heartbeat=600 timeout=100"},
    {"amqps://h?tls_ca=/a&tls_cert=/b&tls_key=/c&tls_verify=off",
     "tls h|5671 guest:guest / ca=/a cert=/b key=/c verify=off"},
    {"amqp://h?queue=" LONG_240, "h|5672 guest:guest / queue=" LONG_240},
    {"amqp://h?queue=" LONG_240 "x", "!\"queue\" is not a name of 1 to 240 bytes"},
    {"amqp:h", "!it begins with none of amqp://, amqps://"},
    {"amqp://", "!the host is empty"},
    {"amqp://u:p@", "!the host is empty"},
    {"amqp://h:0", "!the port is not 1 to 65535"},
    {"amqp://h:65536", "!the port is not 1 to 65535"},
    {"amqp://::1", "!the host is empty"},
    {"amqp://fe80::1", "!the port is not 1 to 65535"},
    {"amqp://[::1", "!a '[' has no ']'"},
    {"amqp://a b", "!the host is not a name or an address"},
    {"amqp://h#x", "!there is a '#' in it"},
    {"amqp://u@h", "!there is a user but no password"},
    {"amqp://:p@h", "!there is a password but no user"},
    {"amqp://u:p@q@h", "!there are two '@' in it"},
    {"amqp://u:p%4@h", "!the password is over 255 bytes, or has a '%'"},
    {"amqp://u:a/b@h", "!the port is not 1 to 65535"},
    {"amqp://h/a/b", "!there is a '/' in its vhost"},
    {"amqp://h/a@b", "!there is a '@' in its vhost"},
    {"amqp://h/%zz", "!the vhost is over 255 bytes, or has a '%'"},
    {"amqp://h?queue=", "!\"queue\" is not a name"},
    {"amqp://h?queue=a&queue=b", "!\"queue\" is given twice"},
    {"amqp://h?colour=red", "!parameter \"colour\" is not known"},
    {"amqp://h?colour=red@", "!a parameter is not known, or a '?' of the password"},
    {"amqp://h?type=stream", "!\"type\" is not classic or quorum"},
    {"amqp://h?declare=yes", "!\"declare\" is not on or off"},
    {"amqp://h?prefetch=0", "!\"prefetch\" is not a number of messages, 1 to 65535"},
    {"amqp://h?prefetch=65536", "!\"prefetch\" is not a number of messages, 1 to 65535"},
    {"amqp://h?heartbeat=0", "!\"heartbeat\" is not whole seconds, 1s to 10m"},
    {"amqp://h?heartbeat=1500ms", "!\"heartbeat\" is not whole seconds, 1s to 10m"},
    {"amqp://h?timeout=99ms", "!\"timeout\" is not a duration of 100ms to 1m"},
    {"amqp://h?tls_ca=/a", "!it has tls_ parameters, but its scheme is not amqps"},
    {"amqps://h?tls_cert=/a", "!\"tls_cert\" and \"tls_key\" go together"},
    {"amqps://h?tls_ca=", "!\"tls_ca\" names no file"},
};

/* Each URI is read as the table says, or is wrong for the reason in the table. */
CASE(each_uri_is_read_as_the_table_says)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *row = &rows[i];
        char text[HAPAX_TEXT_MAX] = "", shown[1024];
        struct hapax__amqp_uri out;
        enum hapax_error error = hapax__amqp_uri(&out, row->uri, text);

        if (row->expected[0] == '!') {
            if (error != HAPAX_ERR_INVALID || !strstr(text, row->expected + 1))
                fail_msg("%s: %d, %s", row->uri, error, text);
            continue;
        }
        if (error != HAPAX_ERR_NONE)
            fail_msg("%s: %s", row->uri, text);
        show(shown, &out);
        assert_string_equal(shown, row->expected);
    }
}

static void assert_login(const char *uri, const char *user, const char *password)
{
    char text[HAPAX_TEXT_MAX] = "";
    struct hapax__amqp_uri out;

    assert_int_equal(hapax__amqp_uri(&out, uri, text), HAPAX_ERR_NONE);
    assert_string_equal(out.user, user);
    assert_string_equal(out.password, password);
}

/* The environment gives what the URI does not have. No other user gets guest's password. */
CASE(the_environment_fills_the_gaps)
{
    char text[HAPAX_TEXT_MAX], over[300] = "";
    struct hapax__amqp_uri out;

    assert_int_equal(setenv("HAPAX_AMQP_PASSWORD", "Hu5h-Hu5h", 1), 0);
    assert_login("amqp://u@h", "u", "Hu5h-Hu5h");
    assert_login("amqp://u:p@h", "u", "p");
    assert_int_equal(hapax__amqp_uri(&out, "amqp://h", text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "no user"));
    assert_int_equal(setenv("HAPAX_AMQP_USER", "v", 1), 0);
    assert_login("amqp://h", "v", "Hu5h-Hu5h");
    assert_login("amqp://u@h", "u", "Hu5h-Hu5h");
    memset(over, 'x', sizeof(over) - 1);
    assert_int_equal(setenv("HAPAX_AMQP_PASSWORD", over, 1), 0);
    assert_int_equal(hapax__amqp_uri(&out, "amqp://h", text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "HAPAX_AMQP_PASSWORD is over 255 bytes"));
    assert_null(strstr(text, "xx"));
    assert_int_equal(unsetenv("HAPAX_AMQP_PASSWORD"), 0);
    assert_int_equal(hapax__amqp_uri(&out, "amqp://h", text), HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "a user but no password"));
    assert_int_equal(unsetenv("HAPAX_AMQP_USER"), 0);
    assert_login("amqp://h", "guest", "guest");
}

int main(void)
{
    (void)unsetenv("HAPAX_AMQP_USER");
    (void)unsetenv("HAPAX_AMQP_PASSWORD");
    return cases_run(NULL, NULL);
}
