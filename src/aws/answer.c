/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading replies. Nothing is allocated, whatever the bytes. A reply that is not understood means
 * "may have been applied", never "was not applied".
 */
#include "answer.h"

#include "base/span.h"
#include "json/raw.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- meaning ------------------------------------------------------------------------------- */

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

#define IS_ONE_OF(name, names) is_one_of(name, names, sizeof(names) / sizeof((names)[0]))

enum hapax__aws_meaning hapax__aws_meaning_of(int status, const char *name, const char *service)
{
    static const char *const later[] = {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceededException",
        "TooManyRequestsException",
        "KmsThrottled",
        "KMS.ThrottlingException",
        "SlowDown",
    };
    static const char *const keys[] = {
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignature",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    };

    if (status == 200)
        return HAPAX__AWS_DONE;
    if (status < 400 || status > 599)
        return HAPAX__AWS_DOUBT;
    if (IS_ONE_OF(name, later) ||
        (strcmp(name, "LimitExceededException") == 0 && strcmp(service, "dynamodb") == 0) ||
        (status == 429 && !name[0]))
        return HAPAX__AWS_LATER;
    if (IS_ONE_OF(name, keys))
        return HAPAX__AWS_KEYS;
    /* Another call with the same token is under way: perhaps an earlier try of this one. */
    if (strcmp(name, "TransactionInProgressException") == 0)
        return HAPAX__AWS_DOUBT;
    /* The service names its refusals. Servers also send these two unasked, on a connection that
     * they want to end; then they do not answer the request. */
    if (status == 408 || (status == 400 && !name[0]))
        return HAPAX__AWS_DOUBT;
    return status >= 500 ? HAPAX__AWS_DOUBT : HAPAX__AWS_NO;
}

void hapax__aws_error_name(char *out, size_t size, const char *type, struct hapax_span body)
{
    char text[256];
    const char *begin = text, *hash;
    size_t len = 0;

    out[0] = '\0';
    if (type[0])
        snprintf(text, sizeof(text), "%s", type);
    else if (!hapax__aws_json_string(text, sizeof(text), body, "__type") &&
             !hapax__aws_json_string(text, sizeof(text), body, "code"))
        return;
    if ((hash = strchr(text, '#')))
        begin = hash + 1;
    /* Nothing but what names are made of: it goes into texts. */
    while (len + 1 < size &&
           ((begin[len] >= 'A' && begin[len] <= 'Z') || (begin[len] >= 'a' && begin[len] <= 'z') ||
            (begin[len] >= '0' && begin[len] <= '9') || begin[len] == '.' || begin[len] == '_')) {
        out[len] = begin[len];
        len++;
    }
    out[len] = '\0';
}

/* ---- JSON ---------------------------------------------------------------------------------- */

bool hapax__aws_json_string(char *out, size_t size, struct hapax_span json, const char *name)
{
    struct hapax_span root, at_name, value;
    struct hapax__raw_walk walk;

    out[0] = '\0';
    if (!hapax__raw_check(&root, json) || !hapax__raw_is_object(root))
        return false;
    hapax__raw_begin(&walk, root);
    while (hapax__raw_next(&walk, &at_name, &value))
        if (hapax__raw_says(at_name, name))
            return hapax__raw_copy(out, size, value);
    return false;
}

/* ---- XML ----------------------------------------------------------------------------------- */

bool hapax__aws_xml_text(char *out, size_t size, struct hapax_span xml, const char *name)
{
    char open[64];
    int open_len = snprintf(open, sizeof(open), "<%s>", name);
    const uint8_t *begin, *end;
    size_t len;

    out[0] = '\0';
    begin = xml.len > 0 ? memmem(xml.ptr, xml.len, open, (size_t)open_len) : NULL;
    if (!begin)
        return false;
    begin += open_len;
    end = memchr(begin, '<', (size_t)(xml.ptr + xml.len - begin));
    if (!end)
        return false;
    len = (size_t)(end - begin);
    if (len >= size || memchr(begin, '&', len) || memchr(begin, '\0', len))
        return false;
    memcpy(out, begin, len);
    out[len] = '\0';
    return true;
}

/* ---- times and sums ------------------------------------------------------------------------ */

static bool read_number(const char **at, size_t digits, char after, int *out)
{
    *out = 0;
    for (size_t i = 0; i < digits; i++, (*at)++) {
        if (**at < '0' || **at > '9')
            return false;
        *out = *out * 10 + (**at - '0');
    }
    if (after && *(*at)++ != after)
        return false;
    return true;
}

int64_t hapax__aws_time(const char *text)
{
    struct tm tm = {0};
    const char *at = text;

    if (!read_number(&at, 4, '-', &tm.tm_year) || !read_number(&at, 2, '-', &tm.tm_mon) ||
        !read_number(&at, 2, 'T', &tm.tm_mday) || !read_number(&at, 2, ':', &tm.tm_hour) ||
        !read_number(&at, 2, ':', &tm.tm_min) || !read_number(&at, 2, '\0', &tm.tm_sec))
        return -1;
    if (*at == '.')
        at += 1 + strspn(at + 1, "0123456789");
    if (strcmp(at, "Z") != 0 && strcmp(at, "+00:00") != 0)
        return -1;
    if (tm.tm_year < 1970 || tm.tm_mon < 1 || tm.tm_mon > 12 || tm.tm_mday < 1 || tm.tm_mday > 31 ||
        tm.tm_hour > 23 || tm.tm_min > 59 || tm.tm_sec > 60)
        return -1;
    tm.tm_year -= 1900;
    tm.tm_mon -= 1;
    return timegm(&tm);
}

uint32_t hapax__aws_crc32(struct hapax_span bytes)
{
    uint32_t table[256], crc = UINT32_MAX;

    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++)
            table[i] = table[i] >> 1 ^ (table[i] & 1 ? UINT32_C(0xedb88320) : 0);
    }
    for (size_t i = 0; i < bytes.len; i++)
        crc = crc >> 8 ^ table[(crc ^ bytes.ptr[i]) & 0xff];
    return ~crc;
}
