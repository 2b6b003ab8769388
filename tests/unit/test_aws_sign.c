/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures against the ones AWS has published: its test suite of Signature Version 4, and the key
 * of its documentation.
 */
#include "../cases.h"
#include "aws/sign.h"

#include <string.h>

#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define TIME   INT64_C(1440938160) /* 2015-08-30T12:36:00Z */
#define HOST   "host;x-amz-date"
#define FORM   "application/x-www-form-urlencoded"
#define ALL    "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

static const char token[] =
    "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPf"
    "IeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7W"
    "Z0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8F"
    "DrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

struct vector {
    const char *name;
    const char *method;
    const char *path;
    const char *query;
    struct hapax__aws_header headers[2];
    const char *body;
    const char *token;
    const char *signed_names;
    const char *signature;
};

static const struct vector vectors[] = {
    {"get-vanilla", "GET", "/", "", .signed_names = HOST,
     .signature = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
    {"get-vanilla-query-order-key-case", "GET", "/", "Param2=value2&Param1=value1",
     .signed_names = HOST,
     .signature = "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
    {"get-vanilla-query-order-key", "GET", "/", "Param1=value2&Param1=Value1", .signed_names = HOST,
     .signature = "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1"},
    {"get-vanilla-query-order-value", "GET", "/", "Param1=value2&Param1=value1",
     .signed_names = HOST,
     .signature = "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
    {"get-vanilla-query-order-encoded", "GET", "/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
     .signed_names = HOST,
     .signature = "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
    {"get-vanilla-query-unreserved", "GET", "/", ALL "=" ALL, .signed_names = HOST,
     .signature = "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
    {"get-vanilla-utf8-query", "GET", "/", "%E1%88%B4=bar", .signed_names = HOST,
     .signature = "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
    {"get-unreserved", "GET", "/" ALL, "", .signed_names = HOST,
     .signature = "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
    {"get-utf8", "GET", "/%E1%88%B4", "", .signed_names = HOST,
     .signature = "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
    {"get-header-value-trim",
     "GET",
     "/",
     "",
     {{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}},
     .signed_names = "host;my-header1;my-header2;x-amz-date",
     .signature = "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
    {"post-vanilla", "POST", "/", "", .signed_names = HOST,
     .signature = "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
    {"post-vanilla-query", "POST", "/", "Param1=value1", .signed_names = HOST,
     .signature = "28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
    {"post-header-key-sort",
     "POST",
     "/",
     "",
     {{"My-Header1", "value1"}},
     .signed_names = "host;my-header1;x-amz-date",
     .signature = "c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
    {"post-header-value-case",
     "POST",
     "/",
     "",
     {{"My-Header1", "VALUE1"}},
     .signed_names = "host;my-header1;x-amz-date",
     .signature = "cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
    {"post-x-www-form-urlencoded",
     "POST",
     "/",
     "",
     {{"Content-Type", FORM}},
     "Param1=value1",
     .signed_names = "content-type;host;x-amz-date",
     .signature = "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
    {"post-x-www-form-urlencoded-parameters",
     "POST",
     "/",
     "",
     {{"Content-Type", FORM "; charset=utf8"}},
     "Param1=value1",
     .signed_names = "content-type;host;x-amz-date",
     .signature = "1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe"},
    {"post-sts-header-before", "POST", "/", "", .token = token,
     .signed_names = "host;x-amz-date;x-amz-security-token",
     .signature = "85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"},
};

static struct hapax__aws_keys keys;

static void use_keys(const char *secret, const char *session)
{
    snprintf(keys.id, sizeof(keys.id), "%s", "AKIDEXAMPLE");
    snprintf(keys.secret, sizeof(keys.secret), "%s", secret);
    snprintf(keys.token, sizeof(keys.token), "%s", session ? session : "");
}

/* Requests of AWS's test suite are signed as it says. */
CASE(the_published_requests_are_signed_as_published)
{
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        const struct vector *v = &vectors[i];
        struct hapax__aws_request request = {.method = v->method,
                                             .host = "example.amazonaws.com",
                                             .path = v->path,
                                             .query = v->query,
                                             .headers = v->headers,
                                             .body = hapax_str(v->body)};
        char wanted[512], out[HAPAX__AWS_AUTHORIZATION_MAX];

        while (request.headers_n < 2 && v->headers[request.headers_n].name)
            request.headers_n++;
        use_keys(SECRET, v->token);
        snprintf(wanted, sizeof(wanted),
                 "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, "
                 "SignedHeaders=%s, Signature=%s",
                 v->signed_names, v->signature);
        assert_true(hapax__aws_sign(out, &request, &keys, "service", "us-east-1", TIME));
        if (strcmp(out, wanted) != 0)
            fail_msg("%s: %s", v->name, out);
    }
}

/* The order of headers as they are given does not matter, nor does their case. */
CASE(headers_are_sorted)
{
    static const struct hapax__aws_header one[] = {{"X-Amz-Target", "T.Op"}, {"Content-Type", "t"}},
                                          other[] = {{"content-type", "t"},
                                                     {"x-amz-target", "T.Op"}};
    struct hapax__aws_request request = {"POST", "h", "/", "", one, 2, hapax_str("{}")};
    char a[HAPAX__AWS_AUTHORIZATION_MAX], b[HAPAX__AWS_AUTHORIZATION_MAX];

    use_keys(SECRET, NULL);
    assert_true(hapax__aws_sign(a, &request, &keys, "dynamodb", "eu-central-1", TIME));
    request.headers = other;
    assert_true(hapax__aws_sign(b, &request, &keys, "dynamodb", "eu-central-1", TIME));
    assert_string_equal(a, b);
    assert_non_null(strstr(a, "SignedHeaders=content-type;host;x-amz-date;x-amz-target,"));
}

/* The documentation's example of a signing key. */
CASE(a_signing_key_is_derived_as_documented)
{
    static const uint8_t wanted[32] = {0xc4, 0xaf, 0xb1, 0xcc, 0x57, 0x71, 0xd8, 0x71,
                                       0x76, 0x3a, 0x39, 0x3e, 0x44, 0xb7, 0x03, 0x57,
                                       0x1b, 0x55, 0xcc, 0x28, 0x42, 0x4d, 0x1a, 0x5e,
                                       0x86, 0xda, 0x6e, 0xd3, 0xc1, 0x54, 0xa4, 0xb9};
    uint8_t key[32];

    assert_true(hapax__aws_signing_key(key, SECRET, "20150830", "us-east-1", "iam"));
    assert_memory_equal(key, wanted, 32);
}

CASE(dates_are_written_as_services_read_them)
{
    char out[HAPAX__AWS_DATE_SIZE];

    hapax__aws_date(out, TIME);
    assert_string_equal(out, "20150830T123600Z");
    hapax__aws_date(out, 0);
    assert_string_equal(out, "19700101T000000Z");
    hapax__aws_date(out, INT64_C(253402300799));
    assert_string_equal(out, "99991231T235959Z");
}

/* What is too long is not signed, and not cut. */
CASE(limits_hold)
{
    static const char *const many = "a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=&a=";
    struct hapax__aws_request request = {"GET", "h", "/", many, NULL, 0, hapax_str("")};
    char out[HAPAX__AWS_AUTHORIZATION_MAX], region[200], name[500];
    struct hapax__aws_header header = {name, "v"};

    use_keys(SECRET, NULL);
    assert_false(hapax__aws_sign(out, &request, &keys, "s", "r", TIME));
    request.query = many + 3;
    assert_true(hapax__aws_sign(out, &request, &keys, "s", "r", TIME));
    memset(region, 'r', sizeof(region));
    region[199] = '\0';
    assert_false(hapax__aws_sign(out, &request, &keys, "s", region, TIME));
    memset(name, 'n', sizeof(name));
    name[499] = '\0';
    request.headers = &header;
    request.headers_n = 1;
    assert_false(hapax__aws_sign(out, &request, &keys, "s", "r", TIME));
}
