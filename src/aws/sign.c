/* SPDX-License-Identifier: Apache-2.0
 *
 * SigV4: a canonical request is hashed as it is put together; the day's key signs a string that
 * names this hash.
 *
 * The invariant: what is signed is what is sent. So the three headers that all our requests have
 * are added here, and no caller names them twice.
 *
 * Rejected: keeping the day's key between calls. Four HMACs of 40 bytes cost microseconds; one more
 * secret in memory costs a thought whenever this is read.
 */
#include "sign.h"

#include "base/span.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define HASH 32u
#define ALL  (HAPAX__AWS_HEADERS_MAX + 3)

void hapax__aws_date(char out[HAPAX__AWS_DATE_SIZE], int64_t time_s)
{
    time_t time = (time_t)time_s;
    struct tm tm;
    size_t len;

    if (!gmtime_r(&time, &tm) || tm.tm_year < 70 || tm.tm_year > 9999 - 1900) {
        time = 0;
        gmtime_r(&time, &tm);
    }
    len = strftime(out, HAPAX__AWS_DATE_SIZE, "%Y%m%dT%H%M%SZ", &tm);
    assert(len == HAPAX__AWS_DATE_SIZE - 1);
}

static void hex(char out[2 * HASH + 1], const uint8_t bytes[HASH])
{
    *hapax__hex(out, bytes, HASH) = '\0';
}

static bool hmac(uint8_t out[HASH], const void *key, size_t key_len, const char *text)
{
    unsigned len = HASH;

    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, strlen(text), out,
                &len) &&
           len == HASH;
}

bool hapax__aws_signing_key(uint8_t out[32], const char *secret, const char *day,
                            const char *region, const char *service)
{
    char first[4 + HAPAX__AWS_SECRET_MAX + 1];
    size_t len = strlen(secret);
    bool done;

    if (len > HAPAX__AWS_SECRET_MAX)
        return false;
    memcpy(first, "AWS4", 4);
    memcpy(first + 4, secret, len + 1);
    done = hmac(out, first, 4 + len, day) && hmac(out, out, HASH, region) &&
           hmac(out, out, HASH, service) && hmac(out, out, HASH, "aws4_request");
    OPENSSL_cleanse(first, sizeof(first));
    return done;
}

/* ---- the canonical request ----------------------------------------------------------------- */

static bool add(EVP_MD_CTX *md, const char *text, size_t len)
{
    return EVP_DigestUpdate(md, text, len) == 1;
}

static bool add_text(EVP_MD_CTX *md, const char *text)
{
    return add(md, text, strlen(text));
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool add_lower(EVP_MD_CTX *md, const char *text)
{
    bool done = true;

    for (; *text && done; text++) {
        char c = lower(*text);

        done = add(md, &c, 1);
    }
    return done;
}

/* Without spaces at the ends, and with one where there are several. */
static bool add_value(EVP_MD_CTX *md, const char *value)
{
    size_t len;
    bool done = true;

    for (value += strspn(value, " "); *value && done; value += len) {
        len = strcspn(value, " ");
        done = add(md, value, len);
        value += len;
        len = strspn(value, " ");
        if (done && value[len])
            done = add(md, " ", 1);
    }
    return done;
}

static int compare_names(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b))
        a++, b++;
    return (unsigned char)lower(*a) - (unsigned char)lower(*b);
}

/* Sorts; there are few. */
static void put_header(struct hapax__aws_header *all, size_t *n, const char *name,
                       const char *value)
{
    size_t at = (*n)++;

    for (; at > 0 && compare_names(all[at - 1].name, name) > 0; at--)
        all[at] = all[at - 1];
    assert(at == 0 || compare_names(all[at - 1].name, name) != 0);
    all[at] = (struct hapax__aws_header){name, value};
}

static int compare_spans(struct hapax_span a, struct hapax_span b)
{
    int order = memcmp(a.ptr, b.ptr, a.len < b.len ? a.len : b.len);

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static size_t name_len(struct hapax_span parameter)
{
    const uint8_t *at = memchr(parameter.ptr, '=', parameter.len);

    return at ? (size_t)(at - parameter.ptr) : parameter.len;
}

/* By name, then by value: '=' is no character of either and must not be compared with one. */
static int compare_parameters(struct hapax_span a, struct hapax_span b)
{
    size_t a_name = name_len(a), b_name = name_len(b);
    int order =
        compare_spans((struct hapax_span){a.ptr, a_name}, (struct hapax_span){b.ptr, b_name});

    return order != 0 ? order : compare_spans(a, b);
}

static bool add_query(EVP_MD_CTX *md, const char *query)
{
    struct hapax_span all[HAPAX__AWS_QUERY_MAX];
    size_t n = 0;
    bool done = true;

    while (*query) {
        struct hapax_span one = {(const uint8_t *)query, strcspn(query, "&")};
        size_t at = n++;

        if (at == HAPAX__AWS_QUERY_MAX)
            return false;
        for (; at > 0 && compare_parameters(all[at - 1], one) > 0; at--)
            all[at] = all[at - 1];
        all[at] = one;
        query += one.len + (query[one.len] == '&');
    }
    for (size_t i = 0; i < n && done; i++)
        done = (i == 0 || add(md, "&", 1)) && add(md, (const char *)all[i].ptr, all[i].len);
    return done;
}

static bool add_names(EVP_MD_CTX *md, const struct hapax__aws_header *all, size_t n)
{
    bool done = true;

    for (size_t i = 0; i < n && done; i++)
        done = (i == 0 || add(md, ";", 1)) && add_lower(md, all[i].name);
    return done;
}

static bool add_request(EVP_MD_CTX *md, const struct hapax__aws_request *request,
                        const struct hapax__aws_header *all, size_t n)
{
    uint8_t digest[HASH];
    char text[2 * HASH + 1];
    bool done = add_text(md, request->method) && add(md, "\n", 1) && add_text(md, request->path) &&
                add(md, "\n", 1) && add_query(md, request->query) && add(md, "\n", 1);

    for (size_t i = 0; i < n && done; i++)
        done = add_lower(md, all[i].name) && add(md, ":", 1) && add_value(md, all[i].value) &&
               add(md, "\n", 1);
    done = done && add(md, "\n", 1) && add_names(md, all, n) && add(md, "\n", 1);
    if (!done || EVP_Digest(request->body.len > 0 ? (const void *)request->body.ptr : "",
                            request->body.len, digest, NULL, EVP_sha256(), NULL) != 1)
        return false;
    hex(text, digest);
    return add_text(md, text);
}

static bool hash_request(char out[2 * HASH + 1], const struct hapax__aws_request *request,
                         const struct hapax__aws_header *all, size_t n)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t digest[HASH];
    bool done = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
                add_request(md, request, all, n) && EVP_DigestFinal_ex(md, digest, NULL) == 1;

    if (done)
        hex(out, digest);
    EVP_MD_CTX_free(md);
    return done;
}

/* ---- the signature ------------------------------------------------------------------------- */

static bool sign_text(char out[2 * HASH + 1], const char *text, const char *secret, const char *day,
                      const char *region, const char *service)
{
    uint8_t key[HASH], digest[HASH];
    bool done =
        hapax__aws_signing_key(key, secret, day, region, service) && hmac(digest, key, HASH, text);

    if (done)
        hex(out, digest);
    OPENSSL_cleanse(key, sizeof(key));
    return done;
}

/* "host;x-amz-date"; false: too long. */
static bool write_names(char *out, size_t size, const struct hapax__aws_header *all, size_t n)
{
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        if (at + strlen(all[i].name) + 2 > size)
            return false;
        if (i > 0)
            out[at++] = ';';
        for (const char *c = all[i].name; *c; c++)
            out[at++] = lower(*c);
    }
    out[at] = '\0';
    return true;
}

bool hapax__aws_sign(char out[HAPAX__AWS_AUTHORIZATION_MAX],
                     const struct hapax__aws_request *request, const struct hapax__aws_keys *keys,
                     const char *service, const char *region, int64_t time_s)
{
    struct hapax__aws_header all[ALL];
    char date[HAPAX__AWS_DATE_SIZE], day[9], scope[160], text[384], names[384];
    char digest[2 * HASH + 1], signature[2 * HASH + 1];
    size_t n = 0;
    int len;

    if (request->headers_n > HAPAX__AWS_HEADERS_MAX)
        return false;
    hapax__aws_date(date, time_s);
    snprintf(day, sizeof(day), "%.8s", date);
    put_header(all, &n, "host", request->host);
    put_header(all, &n, "x-amz-date", date);
    if (keys->token[0])
        put_header(all, &n, "x-amz-security-token", keys->token);
    for (size_t i = 0; i < request->headers_n; i++)
        put_header(all, &n, request->headers[i].name, request->headers[i].value);

    len = snprintf(scope, sizeof(scope), "%s/%s/%s/aws4_request", day, region, service);
    if (len < 0 || (size_t)len >= sizeof(scope) || !hash_request(digest, request, all, n) ||
        !write_names(names, sizeof(names), all, n))
        return false;
    snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", date, scope, digest);
    if (!sign_text(signature, text, keys->secret, day, region, service))
        return false;
    len = snprintf(out, HAPAX__AWS_AUTHORIZATION_MAX,
                   "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", keys->id,
                   scope, names, signature);
    return len > 0 && (size_t)len < HAPAX__AWS_AUTHORIZATION_MAX;
}
