/* SPDX-License-Identifier: Apache-2.0
 *
 * Percent-decoding, parameters, and that a URI is shown without its passwords: of any store, in
 * a list, and where it is wrong.
 */
#include "../cases.h"
#include "base/uri.h"

/* What %XX gives, what is not two digits, a NUL, and the room to the byte. */
CASE(percent_signs_are_decoded)
{
    static const struct {
        const char *in, *out;
    } rows[] = {{"", ""},
                {"abc", "abc"},
                {"%41%62", "Ab"},
                {"%2f%2F", "//"},
                {"a+b", "a+b"},
                {"%25%32", "%2"},
                {"%", NULL},
                {"a%4", NULL},
                {"%4g", NULL},
                {"%g4", NULL},
                {"%00", NULL},
                {"%%41", NULL},
                {"1234567", "1234567"},
                {"12345678", NULL},
                {"123456%37", "1234567"}};
    char out[8];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool good = hapax__uri_decode(out, sizeof(out), rows[i].in, strlen(rows[i].in));

        assert_int_equal(good, rows[i].out != NULL);
        if (good)
            assert_string_equal(out, rows[i].out);
    }
    assert_true(hapax__uri_decode(out, sizeof(out), "a%41", 1));
    assert_string_equal(out, "a");
    assert_false(hapax__uri_decode(out, sizeof(out), "a%41", 3)); /* what follows is not its own */
}

/* Names and values, without '=', empty, and none. */
CASE(parameters_come_in_order)
{
    static const struct {
        const char *name, *value;
    } expected[] = {{"a", "1"}, {"b", ""}, {"c", ""}, {"", ""}, {"d", "x=y"}};
    const char *query = "a=1&b=&c&&d=x=y";
    struct hapax__uri_parameter p;

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_true(hapax__uri_parameter(&p, &query));
        assert_int_equal(p.name_len, strlen(expected[i].name));
        assert_memory_equal(p.name, expected[i].name, p.name_len);
        assert_int_equal(p.value_len, strlen(expected[i].value));
        assert_memory_equal(p.value, expected[i].value, p.value_len);
    }
    assert_false(hapax__uri_parameter(&p, &query));
}

static const struct {
    const char *uri, *shown;
} shown[] = {
    {"", ""},
    {"memory:", "memory:"},
    {"rocksdb:/var/lib/x", "rocksdb:/var/lib/x"},
    {"redis://h:6379/0?wait=1", "redis://h:6379/0?wait=1"},
    {"redis://:hush@h", "redis://:***@h"},
    {"redis://u:hush@h:1/2", "redis://u:***@h:1/2"},
    {"redis://hush@h", "redis://***@h"},
    {"redis://:@h", "redis://:@h"},
    {"postgres://u@h/d", "postgres://u@h/d"},
    {"https://hush@h/x", "https://***@h/x"},
    {"rocksdb:/srv/a:b@c", "rocksdb:/srv/a:b@c"},
    {"unix:/run/a:b@c.sock", "unix:/run/a:b@c.sock"},
    {"redis+cluster://u:hush@a:1,b:2", "redis+cluster://u:***@a:1,b:2"},
    {"redis+sentinel://:hu%40sh@a/m", "redis+sentinel://:***@a/m"},
    {"postgres://u:hush@h/d", "postgres://u:***@h/d"},
    {"postgresql://u:hush@h:5432,g/d?sslmode=require",
     "postgresql://u:***@h:5432,g/d?sslmode=require"},
    {"postgres://h/d?password=hush", "postgres://h/d?password=***"},
    {"postgres://h/d?password=hush&user=u", "postgres://h/d?password=***&user=u"},
    {"postgres://h/d?sslpassword=hush&a=b", "postgres://h/d?sslpassword=***&a=b"},
    {"postgres://u:hush@h/d?password=hush&sslpassword=hush",
     "postgres://u:***@h/d?password=***&sslpassword=***"},
    {"postgres://h/d?password=", "postgres://h/d?password="},
    {"redis://h?password_file=/etc/x", "redis://h?password_file=/etc/x"},
    {"hybrid:redis://:hush@h,redis://:hush@h2+postgres://u:hush@h/d",
     "hybrid:redis://:***@h,redis://:***@h2+postgres://u:***@h/d"},
    {"hybrid:redis://h:1,redis://:hush@h2+postgres://h/d?password=hush",
     "hybrid:redis://h:1,redis://:***@h2+postgres://h/d?password=***"},
    {"hybrid:redis://h,redis+sentinel://u:hush@a,b/m+postgresql://h/d",
     "hybrid:redis://h,redis+sentinel://u:***@a,b/m+postgresql://h/d"},
    {"hybrid:postgres://h/d?password=hush,redis://:hush@h", "hybrid:postgres://h/d?password=***"},

    /* Not encoded as it should be: more is hidden than there is. */
    {"redis://:hu@sh@h", "redis://:***@h"},
    {"redis://:hu/sh@h/0", "redis://:***@h/0"},
    {"redis://:hu?sh@h", "redis://:***@h"},
    {"redis://:hu://sh@h", "redis://:***@h"},
    {"redis://:hush,x://hush@h", "redis://:***@h"},
    {"redis://h:1/0?password_file=/a@b", "redis://h:***@b"},
    {"postgres://h:1/d?password=hu@sh&a=b", "postgres://h:***&a=b"},
    {"postgres://h/d?password=hu@sh", "postgres://h/d?password=***"},

    /* Not of a scheme we know, or of none. */
    {"redsi://u:hush@h", "redsi://u:***@h"},
    {"://u:hush@h", "://u:***@h"},
    {"redis:/u:hush@h", "redis:***@h"},
    {"redis:u:hush@h", "redis:***@h"},
    {"u:hush@h", "u:***@h"},
    {"nonsense?password=hush", "nonsense?password=***"},
    {"postgres://h/d?PASSWORD=hush", "postgres://h/d?PASSWORD=***"},
    {"postgres:host=h password=hush dbname=d", "postgres:host=h password=***"},
};

/* Each password of each row is hidden, and the rest is shown. */
CASE(passwords_are_hidden)
{
    char out[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++) {
        hapax_store_shown(out, shown[i].uri);
        assert_string_equal(out, shown[i].shown);
    }
}

/* What is not a login, the queue or the group is not shown, and of a password nothing is. */
CASE(of_a_source_the_queue_and_the_group_are_shown)
{
    static const struct {
        const char *uri, *shown;
    } rows[] = {
        {"amqp://u@mq/v?queue=q", "amqp://u@mq/v?queue=q"},
        {"amqp://u:hush@mq/?x=hush&queue=q", "amqp://u:***@mq/?queue=q"},
        {"kafka://a:1,b:2/t?group=g&sasl.password=hush", "kafka://a:1,b:2/t?group=g"},
        {"sqs://eu/q?queue=a&group=b", "sqs://eu/q?queue=a&group=b"},
        {"http://api:9/x?token=hush", "http://api:9/x"},
        {"https://hush@api/x?token=hush", "https://***@api/x"},
        {"http://api/password=hu?sh&token=hush", "http://api/password=***"},
        {"amqp://mq:1/?queue=q@eu", "amqp://***?queue=q@eu"},
        {"http://api:9/x?mail=a@hush", "http://***"},
        {"amqp://u:hu?sh@mq/", "amqp://***"},
        {"amqp://hu?sh://u@mq", "amqp://***"},
        {"u:hu?sh@mq", "***"},
    };
    char out[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        hapax__uri_shown(out, rows[i].uri);
        assert_string_equal(out, rows[i].shown);
    }
}

/* A URI that is too long is cut, and never inside of what hides a password. */
CASE(a_long_uri_is_cut)
{
    char uri[1024], out[HAPAX_TEXT_MAX];

    for (size_t len = 0; len < 600; len++) {
        size_t n = (size_t)snprintf(uri, sizeof(uri), "redis://");

        memset(uri + n, 'u', len);
        n += len;
        snprintf(uri + n, sizeof(uri) - n, ":hush@h?password=hush");
        memset(out, 'x', sizeof(out));
        hapax_store_shown(out, uri);
        assert_non_null(memchr(out, '\0', sizeof(out)));
        assert_null(strstr(out, "hu"));
        assert_null(strstr(out, "sh"));
        if (strlen(uri) < 200)
            assert_non_null(strstr(out, "?password=***"));
        snprintf(uri + n, sizeof(uri) - n, ":hush@h?queue=q");
        hapax__uri_shown(out, uri);
        assert_null(strstr(out, "hu"));
        if (strlen(uri) < 200)
            assert_non_null(strstr(out, "?queue=q"));
    }
}
