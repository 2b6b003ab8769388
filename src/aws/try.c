/* SPDX-License-Identifier: Apache-2.0
 *
 * One request and its reply, by libcurl.
 *
 * What it keeps: a try goes out at most once. libcurl sends a request anew by itself where a
 * connection that was kept alive breaks before the first byte of the reply, although it may have
 * been carried out: on_request() forbids that, and the caller decides. `requests` is 0 only where
 * nothing of it was sent. Headers that are signed are headers that are sent: libcurl's own are
 * named none.
 *
 * Connections that were idle for IDLE_MAX_S are not used again: services close them about then.
 */
#include "try.h"

#include "answer.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <openssl/crypto.h>

#define IDLE_MAX_S 20L

struct hapax__aws_try *hapax__aws_try_new(void)
{
    struct hapax__aws_try *attempt = calloc(1, sizeof(*attempt));

    if (!attempt)
        return NULL;
    attempt->easy = curl_easy_init();
    if (!attempt->easy) {
        free(attempt);
        return NULL;
    }
    return attempt;
}

void hapax__aws_try_free(struct hapax__aws_try *attempt)
{
    hapax__aws_try_end(attempt);
    curl_easy_cleanup(attempt->easy);
    free(attempt);
}

/* ---- libcurl's questions ------------------------------------------------------------------- */

/* Before each request on a connection that stands, the one that libcurl would send anew
 * included. */
static int on_request(void *arg, char *to_ip, char *from_ip, int to_port, int from_port)
{
    struct hapax__aws_try *attempt = arg;

    (void)to_ip;
    (void)from_ip;
    (void)to_port;
    (void)from_port;
    return ++attempt->requests == 1 ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}

/* The value of a header line of this name, without the space around it, cut to size. */
static bool take_value(char *out, size_t size, const char *line, size_t len, const char *name)
{
    size_t at = strlen(name);

    if (len <= at || line[at] != ':' || strncasecmp(line, name, at) != 0)
        return false;
    for (at++; at < len && (line[at] == ' ' || line[at] == '\t'); at++)
        ;
    while (len > at && isspace((unsigned char)line[len - 1]))
        len--;
    if (len - at >= size)
        len = at + size - 1;
    memcpy(out, line + at, len - at);
    out[len - at] = '\0';
    return true;
}

/* At most ten digits; -1: it is no number. */
static int64_t number(const char *text)
{
    size_t len = strspn(text, "0123456789");

    return len >= 1 && len <= 10 && !text[len] ? strtoll(text, NULL, 10) : -1;
}

/* libcurl takes a head that breaks off for a whole one. */
static size_t on_header(char *line, size_t one, size_t n, void *arg)
{
    struct hapax__aws_try *attempt = arg;
    size_t len = one * n;
    char text[32];

    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        attempt->head = false;
        attempt->type[0] = attempt->date[0] = '\0';
        attempt->retry_after_s = attempt->crc32 = -1;
    } else if ((len == 2 && line[0] == '\r') || (len == 1 && line[0] == '\n')) {
        attempt->head = true;
    } else if (take_value(text, sizeof(text), line, len, "retry-after")) {
        attempt->retry_after_s = number(text);
    } else if (take_value(text, sizeof(text), line, len, "x-amz-crc32")) {
        attempt->crc32 = number(text);
    } else if (!take_value(attempt->type, sizeof(attempt->type), line, len, "x-amzn-errortype")) {
        take_value(attempt->date, sizeof(attempt->date), line, len, "date");
    }
    return len;
}

static bool make_room(struct hapax__aws_try *attempt, size_t more)
{
    size_t size = attempt->size > 0 ? attempt->size : 1024;
    uint8_t *body;

    while (size < attempt->len + more)
        size *= 2;
    if (size == attempt->size)
        return true;
    body = realloc(attempt->body, size);
    if (!body)
        return false;
    attempt->body = body;
    attempt->size = size;
    return true;
}

static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct hapax__aws_try *attempt = arg;
    size_t len = one * n;

    if (len > HAPAX__AWS_REPLY_MAX - attempt->len) {
        attempt->over = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (!make_room(attempt, len)) {
        attempt->nomem = true;
        return CURL_WRITEFUNC_ERROR;
    }
    if (len > 0)
        memcpy(attempt->body + attempt->len, bytes, len);
    attempt->len += len;
    return len;
}

/* ---- the request --------------------------------------------------------------------------- */

static bool add_line(struct hapax__aws_try *attempt, const char *name, const char *value)
{
    size_t size = strlen(name) + strlen(value) + 3;
    char *line = malloc(size);
    struct curl_slist *lines = NULL;

    if (!line)
        return false;
    snprintf(line, size, "%s: %s", name, value);
    lines = curl_slist_append(attempt->lines, line);
    OPENSSL_cleanse(line, size);
    free(line);
    if (lines)
        attempt->lines = lines;
    return lines != NULL;
}

static bool make_lines(struct hapax__aws_try *attempt, const struct hapax__aws_service *place,
                       const struct hapax__aws_keys *keys, int64_t now_s)
{
    char target[192], date[HAPAX__AWS_DATE_SIZE], authorization[HAPAX__AWS_AUTHORIZATION_MAX];
    const struct hapax__aws_header headers[] = {{"content-type", "application/x-amz-json-1.0"},
                                                {"x-amz-target", target}};
    const struct hapax__aws_request request = {.method = "POST",
                                               .host = place->endpoint->host,
                                               .path = "/",
                                               .query = "",
                                               .headers = headers,
                                               .headers_n = 2,
                                               .body = attempt->call->body};
    struct curl_slist *first;

    snprintf(target, sizeof(target), "%s.%s", place->target, attempt->call->operation);
    hapax__aws_date(date, now_s);
    if (!hapax__aws_sign(authorization, &request, keys, place->service, place->region, now_s))
        return false;
    first = curl_slist_append(NULL, "Expect:"); /* libcurl asks first where a body is long */
    attempt->lines = first;
    return first && add_line(attempt, "Host", place->endpoint->host) &&
           add_line(attempt, headers[0].name, headers[0].value) &&
           add_line(attempt, headers[1].name, headers[1].value) &&
           add_line(attempt, "x-amz-date", date) &&
           (!keys->token[0] || add_line(attempt, "x-amz-security-token", keys->token)) &&
           add_line(attempt, "Authorization", authorization);
}

/* Without on_request() nobody would know what was sent. */
static bool set_callbacks(struct hapax__aws_try *attempt)
{
    CURL *easy = attempt->easy;

    curl_easy_setopt(easy, CURLOPT_PRIVATE, attempt);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, attempt->why);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, attempt);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, attempt);
    return curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request) == CURLE_OK &&
           curl_easy_setopt(easy, CURLOPT_PREREQDATA, attempt) == CURLE_OK;
}

static bool set_options(struct hapax__aws_try *attempt, const struct hapax__aws_service *place,
                        long timeout_ms)
{
    struct hapax_span body = attempt->call->body;
    CURL *easy = attempt->easy;

    curl_easy_setopt(easy, CURLOPT_URL, place->endpoint->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT,
                     1L); /* or a timeout waits for the name to be found */
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "hapax/" HAPAX_VERSION);
    curl_easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    if (!place->endpoint->tls)
        curl_easy_setopt(easy, CURLOPT_PROXY, "");
    if (place->ca)
        curl_easy_setopt(easy, CURLOPT_CAINFO, place->ca);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     place->connect_ms < timeout_ms ? place->connect_ms : timeout_ms);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, IDLE_MAX_S);
    curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, attempt->lines);
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body.len > 0 ? (const char *)body.ptr : "");
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body.len);
    return set_callbacks(attempt);
}

bool hapax__aws_try_begin(struct hapax__aws_try *attempt, const struct hapax__aws_service *place,
                          struct hapax__aws_call *call, const struct hapax__aws_keys *keys,
                          int64_t now_s, long timeout_ms)
{
    attempt->call = call;
    attempt->requests = 0;
    attempt->head = attempt->over = attempt->nomem = false;
    attempt->len = attempt->size = 0;
    attempt->type[0] = attempt->date[0] = attempt->why[0] = '\0';
    attempt->retry_after_s = attempt->crc32 = -1;
    if (make_lines(attempt, place, keys, now_s) && set_options(attempt, place, timeout_ms))
        return true;
    hapax__aws_try_end(attempt);
    return false;
}

/* ---- the reply ----------------------------------------------------------------------------- */

static int fail(struct hapax__aws_try *attempt, const char *why)
{
    snprintf(attempt->why, sizeof(attempt->why), "%s", why);
    return 0;
}

int hapax__aws_try_status(struct hapax__aws_try *attempt, CURLcode code)
{
    struct hapax_span body = {attempt->body, attempt->len};
    long status = 0;

    if (attempt->over)
        return fail(attempt, "the reply is over 24 MiB");
    if (attempt->nomem)
        return fail(attempt, "no memory for the reply");
    if (attempt->requests > 1)
        return fail(attempt, "the connection broke before the reply");
    if (code != CURLE_OK)
        return attempt->why[0] ? 0 : fail(attempt, curl_easy_strerror(code));
    if (!attempt->head)
        return fail(attempt, "the reply broke off");
    if (attempt->crc32 >= 0 && (uint32_t)attempt->crc32 != hapax__aws_crc32(body))
        return fail(attempt, "the reply is not what x-amz-crc32 says");
    curl_easy_getinfo(attempt->easy, CURLINFO_RESPONSE_CODE, &status);
    return status >= 100 && status <= 599 ? (int)status : fail(attempt, "the reply is no HTTP");
}

void hapax__aws_try_end(struct hapax__aws_try *attempt)
{
    curl_easy_reset(attempt->easy);
    for (struct curl_slist *line = attempt->lines; line; line = line->next)
        OPENSSL_cleanse(line->data, strlen(line->data));
    curl_slist_free_all(attempt->lines);
    attempt->lines = NULL;
    free(attempt->body);
    attempt->body = NULL;
    attempt->len = attempt->size = 0;
    attempt->call = NULL;
}
