/* SPDX-License-Identifier: Apache-2.0
 *
 * The header lines of the request to a handler: a CloudEvent in binary mode, the key, attempt and
 * fence of its operation, and the producer's other headers.
 *
 * The invariant: no byte of a message ends a line, or makes a line about the connection, the body,
 * the sender's rights or the operation. A header that could, or that does not fit, is left out
 * whole. The request goes out all the same: no producer can stop a queue. A message that is an
 * event itself (structured mode, batches) is passed on as it is.
 *
 * A message's own headers get a prefix, unless the settings name them. Rejected: a list of names
 * that are dangerous. Each framework and proxy trusts others.
 *
 * Rejected: headers cut or mended to fit. A handler cannot tell half of a value from the whole.
 */
#include "event.h"

#include "base/bytes.h"
#include "base/span.h"
#include "core/key.h"
#include "door/attempt.h"

#include <assert.h>
#include <curl/curl.h>
#include <inttypes.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define VALUE_MAX 4096u /* bytes of a value that is sent */
#define NAME_MAX_ 128u

/* ---- names ----------------------------------------------------------------------------- */

static bool begins(struct hapax_span s, const char *with)
{
    size_t len = strlen(with);

    return s.len >= len && strncasecmp((const char *)s.ptr, with, len) == 0;
}

bool hapax__event_attribute(struct hapax_span *attribute, bool *encoded, struct hapax_span name)
{
    static const char *const prefixes[] = {"ce-", "ce_", "cloudEvents:", "cloudEvents_"};

    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t len = strlen(prefixes[i]);

        if (!begins(name, prefixes[i]) || name.len == len || name.len > len + NAME_MAX_)
            continue;
        *attribute = (struct hapax_span){name.ptr + len, name.len - len};
        *encoded = i == 0;
        for (size_t at = 0; at < attribute->len; at++) {
            if (!hapax__is_alnum(attribute->ptr[at]))
                return false;
        }
        return true;
    }
    return false;
}

static int hex_of(uint8_t c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool hapax__event_decode(uint8_t *out, size_t size, size_t *len, struct hapax_span value)
{
    bool quoted = value.len > 1 && value.ptr[0] == '"' && value.ptr[value.len - 1] == '"';
    size_t at = quoted, end = value.len - quoted;

    *len = 0;
    while (at < end) {
        uint8_t c = value.ptr[at++];
        int high = end - at >= 2 ? hex_of(value.ptr[at]) : -1;
        int low = high >= 0 ? hex_of(value.ptr[at + 1]) : -1;

        if (quoted && c == '\\' && at < end) {
            c = value.ptr[at++];
        } else if (c == '%' && low >= 0) {
            c = (uint8_t)(high << 4 | low);
            at += 2;
        }
        if (*len == size)
            return false;
        out[(*len)++] = c;
    }
    return true;
}

bool hapax__event_structured(struct hapax_span content_type, bool json)
{
    const char *type = json ? "application/cloudevents+json" : "application/cloudevents";
    size_t len = strlen(type);

    if (!begins(content_type, type))
        return false;
    return content_type.len == len ||
           memchr(json ? "; \t" : "; \t+-", content_type.ptr[len], json ? 3 : 5);
}

static bool is_name(struct hapax_span name)
{
    return name.len <= NAME_MAX_ && hapax__is_field_name(name);
}

/* Names that say something of the request itself, and never pass. '_' counts as '-': some servers
 * read it so. */
static bool is_kept_back(struct hapax_span name)
{
    static const char *const whole[] = {
        "accept-encoding",
        "authorization",
        "connection",
        "cookie",
        "cookie2",
        "date",
        "expect",
        "forwarded",
        "host",
        "http2-settings",
        "keep-alive",
        "max-forwards",
        "proxy", /* HTTP_PROXY to a CGI program */
        "range",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "via",
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
        "x-real-ip",
    };
    static const char *const stems[] = {
        "access-control-", "ce-",  "cloudevents-", "content-",   "hapax-", "idempotency-", "if-",
        "proxy-",          "sec-", "x-forwarded-", "x-original-"};
    uint8_t plain[NAME_MAX_];
    struct hapax_span p = {plain, name.len};

    assert(name.len <= sizeof(plain));
    for (size_t i = 0; i < name.len; i++)
        plain[i] = name.ptr[i] == '_' ? '-' : name.ptr[i];
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        if (hapax__name_is(p, whole[i]))
            return true;
    }
    for (size_t i = 0; i < sizeof(stems) / sizeof(stems[0]); i++) {
        if (begins(p, stems[i]))
            return true;
    }
    return false;
}

bool hapax__event_may_pass(struct hapax_span name)
{
    return is_name(name) && !is_kept_back(name);
}

static bool is_value(struct hapax_span value)
{
    return value.len <= VALUE_MAX && hapax__is_field_value(value);
}

/* ---- lines ----------------------------------------------------------------------------- */

struct lines {
    struct curl_slist *list;
    unsigned passed; /* of the message's own */
    size_t passed_bytes;
    unsigned left_out;
    bool nomem;
};

struct value {
    size_t len;
    char text[VALUE_MAX];
};

static struct hapax_span span_of(const struct value *value)
{
    return (struct hapax_span){(const uint8_t *)value->text, value->len};
}

static void add(struct lines *lines, const char *line)
{
    struct curl_slist *list = curl_slist_append(lines->list, line);

    if (list)
        lines->list = list;
    else
        lines->nomem = true;
}

static void put(struct lines *lines, const char *prefix, struct hapax_span name,
                struct hapax_span value)
{
    char line[VALUE_MAX + NAME_MAX_ + 32];
    int len;

    assert(is_value(value) && name.len <= NAME_MAX_);
    /* libcurl's spelling of a header without a value. */
    len =
        snprintf(line, sizeof(line), "%s%.*s%s%.*s", prefix, (int)name.len, (const char *)name.ptr,
                 value.len > 0 ? ": " : ";", (int)value.len, (const char *)value.ptr);
    assert(len > 0 && (size_t)len < sizeof(line));
    add(lines, line);
}

static void put_text(struct lines *lines, const char *name, const char *value)
{
    put(lines, "", hapax_str(name), hapax_str(value));
}

static void put_number(struct lines *lines, const char *name, uint64_t number)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, number);
    put_text(lines, name, text);
}

/* Passes on one of the message's own headers. False: there is no room. */
static bool pass(struct lines *lines, const char *prefix, struct hapax_span name,
                 struct hapax_span value)
{
    size_t bytes = strlen(prefix) + name.len + value.len + 4;

    if (lines->passed == HAPAX__PASSED_LINES_MAX ||
        lines->passed_bytes + bytes > HAPAX__PASSED_BYTES_MAX) {
        lines->left_out++;
        return false;
    }
    lines->passed++;
    lines->passed_bytes += bytes;
    put(lines, prefix, name, value);
    return true;
}

/* ---- the event ------------------------------------------------------------------------- */

static bool put_byte(struct value *value, uint8_t c, bool encode)
{
    static const char digits[] = "0123456789ABCDEF";

    if (value->len + 3 > sizeof(value->text))
        return false;
    if (!encode) {
        value->text[value->len++] = (char)c;
        return true;
    }
    value->text[value->len++] = '%';
    value->text[value->len++] = digits[c >> 4];
    value->text[value->len++] = digits[c & 15];
    return true;
}

/* The HTTP binding of CloudEvents, 3.1.3.2: space, '"', '%' and all that is not printable ASCII are
 * percent-encoded; in a value that is encoded already, '%' stays. False: too long. */
static bool encode(struct value *out, struct hapax_span bytes, bool encoded)
{
    out->len = 0;
    for (size_t i = 0; i < bytes.len; i++) {
        uint8_t c = bytes.ptr[i];
        bool must = c <= 0x20 || c > 0x7e || c == '"' || (c == '%' && !encoded);

        if (!put_byte(out, c, must))
            return false;
    }
    return true;
}

/* A path segment or more of a URI (RFC 3986). */
static bool encode_path(struct value *out, struct hapax_span bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        uint8_t c = bytes.ptr[i];

        if (!put_byte(out, c, !hapax__is_alnum(c) && !memchr("-._~/:@!$&'()*+,;=", c, 18)))
            return false;
    }
    return true;
}

enum { HAS_ID = 1, HAS_SOURCE = 2, HAS_TYPE = 4, HAS_VERSION = 8, HAS_TIME = 16, HAS_KEY = 32 };

static unsigned bit_of(struct hapax_span attribute)
{
    static const struct {
        const char *name;
        unsigned bit;
    } bits[] = {{"id", HAS_ID},     {"source", HAS_SOURCE},
                {"type", HAS_TYPE}, {"specversion", HAS_VERSION},
                {"time", HAS_TIME}, {"partitionkey", HAS_KEY}};

    for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
        if (hapax__name_is(attribute, bits[i].name))
            return bits[i].bit;
    }
    return 0;
}

/* Whether an earlier header is the same attribute in another spelling: the first counts. */
static bool stands_before(const struct hapax_message *message, size_t at,
                          struct hapax_span attribute)
{
    struct hapax_span other;
    bool encoded;

    for (size_t i = 0; i < at; i++) {
        if (hapax__event_attribute(&other, &encoded, message->headers[i].name) &&
            other.len == attribute.len &&
            strncasecmp((const char *)other.ptr, (const char *)attribute.ptr, other.len) == 0)
            return true;
    }
    return false;
}

/* Passes on the message's own attributes; returns which of them went out. */
static unsigned pass_attributes(struct lines *lines, const struct hapax_message *message)
{
    struct hapax_span attribute;
    struct value value;
    unsigned has = 0;
    bool encoded;

    for (size_t i = 0; i < message->header_count; i++) {
        char name[NAME_MAX_];

        if (!hapax__event_attribute(&attribute, &encoded, message->headers[i].name) ||
            hapax__name_is(attribute, "datacontenttype") || stands_before(message, i, attribute))
            continue;
        if (message->headers[i].value.len == 0 ||
            !encode(&value, message->headers[i].value, encoded)) {
            lines->left_out++;
            continue;
        }
        for (size_t at = 0; at < attribute.len; at++) {
            uint8_t c = attribute.ptr[at];

            name[at] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
        }
        if (pass(lines, "ce-", (struct hapax_span){(const uint8_t *)name, attribute.len},
                 span_of(&value)))
            has |= bit_of(attribute);
    }
    return has;
}

static void put_type(struct lines *lines, struct hapax_span type)
{
    struct value value;

    if (type.len > 0 && encode(&value, type, false))
        put(lines, "", hapax_str("ce-type"), span_of(&value));
    else
        put_text(lines, "ce-type", "hapax.message");
}

/* A key may be of any length. */
static void pass_key(struct lines *lines, struct hapax_span key)
{
    struct value value;

    if (encode(&value, key, false))
        (void)pass(lines, "ce-", hapax_str("partitionkey"), span_of(&value));
    else
        lines->left_out++;
}

static void put_id(struct lines *lines, const struct hapax_message *message, struct hapax_span key)
{
    const struct hapax_span ids[] = {message->id, message->position, key, hapax_str("0")};
    struct value value;

    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        if (ids[i].len == 0 || !encode(&value, ids[i], false))
            continue;
        put(lines, "", hapax_str("ce-id"), span_of(&value));
        return;
    }
}

static void put_source(struct lines *lines, const struct hapax_message *message, const char *broker)
{
    struct value path = {.len = 0}, value;
    bool whole = put_byte(&path, '/', false) && encode_path(&path, hapax_str(broker)) &&
                 put_byte(&path, '/', false) && encode_path(&path, message->from);

    if (whole && encode(&value, span_of(&path), false))
        put(lines, "", hapax_str("ce-source"), span_of(&value));
    else
        put_text(lines, "ce-source", "/messages");
}

/* RFC 3339. */
static void put_time(struct lines *lines, int64_t time_us)
{
    time_t seconds = (time_t)(time_us / 1000000);
    char text[64];
    struct tm tm;
    size_t len;

    if (time_us <= 0 || !gmtime_r(&seconds, &tm) || tm.tm_year > 9999 - 1900)
        return;
    len = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text + len, sizeof(text) - len, ".%06dZ", (int)(time_us % 1000000));
    put_text(lines, "ce-time", text);
}

static void put_event(struct lines *lines, const struct hapax_message *message,
                      struct hapax_span key, const char *broker)
{
    unsigned has = pass_attributes(lines, message);

    if (!(has & HAS_VERSION))
        put_text(lines, "ce-specversion", "1.0");
    if (!(has & HAS_ID))
        put_id(lines, message, key);
    if (!(has & HAS_SOURCE))
        put_source(lines, message, broker);
    if (!(has & HAS_TYPE))
        put_type(lines, message->type);
    if (!(has & HAS_TIME))
        put_time(lines, message->time_us);
    if (!(has & HAS_KEY) && message->key.len > 0)
        pass_key(lines, message->key);
}

/* ---- the operation ----------------------------------------------------------------------- */

/* Puts the key as an RFC 8941 String; a key that no such string can hold, as its hash. */
static void put_key(struct lines *lines, struct hapax_span key)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    uint8_t text[HAPAX__KEY_QUOTED_MAX + 1], hashed[7 + 2 * SHA256_DIGEST_LENGTH];
    struct hapax__writer w = {hashed, sizeof(hashed)};
    size_t len;

    if (!hapax__key_quote(text, &len, key)) {
        SHA256(key.ptr, key.len, digest);
        hapax__put(&w, "sha256-", 7);
        hapax__put_hex(&w, digest, sizeof(digest));
        (void)hapax__key_quote(text, &len, (struct hapax_span){hashed, sizeof(hashed)});
    }
    text[len] = '\0';
    put_text(lines, "Idempotency-Key", (const char *)text);
}

/* A handler with the token needs the key's own bytes: ids of steps are made of them. */
static void put_whole_key(struct lines *lines, struct hapax_span key)
{
    struct value value;
    bool whole = encode(&value, key, false);

    assert(whole); /* HAPAX_KEY_MAX is far below VALUE_MAX */
    put(lines, "", hapax_str("Hapax-Key"), span_of(&value));
}

static void put_operation(struct lines *lines, const struct hapax_attempt *attempt,
                          struct hapax_span key)
{
    char token[HAPAX_TOKEN_TEXT_MAX];

    if (key.len > 0)
        put_key(lines, key);
    if (hapax_attempt_fence(attempt) == 0)
        return;
    put_number(lines, "Idempotency-Attempt", hapax_attempt_number(attempt));
    put_number(lines, "Idempotency-Fence", hapax_attempt_fence(attempt));
    if (hapax_attempt_token(attempt, token)) {
        put_text(lines, "Idempotency-Token", token);
        put_whole_key(lines, key);
    }
    explicit_bzero(token, sizeof(token));
}

/* ---- the rest ---------------------------------------------------------------------------- */

static void put_content_type(struct lines *lines, const struct hapax_message *message, bool body)
{
    struct hapax_span type = message->content_type, attribute;
    bool encoded;

    for (size_t i = 0; i < message->header_count && type.len == 0; i++) {
        if (hapax__event_attribute(&attribute, &encoded, message->headers[i].name) &&
            hapax__name_is(attribute, "datacontenttype"))
            type = message->headers[i].value;
    }
    if (body && type.len > 0 && is_value(type)) {
        put(lines, "", hapax_str("Content-Type"), type);
        return;
    }
    lines->left_out += body && type.len > 0;
    add(lines, "Content-Type:"); /* otherwise libcurl would say it is a form */
}

/* The body is passed on as it is encoded. */
static bool keeps_name(struct hapax_span name, char *const *names)
{
    bool keeps = hapax__name_is(name, "traceparent") || hapax__name_is(name, "tracestate") ||
                 hapax__name_is(name, "content-encoding");

    for (; !keeps && *names; names++)
        keeps = hapax__name_is(name, *names);
    return keeps;
}

/* Headers that keep their names are passed first, so that they are the last to be left out. trace:
 * the run's own traceparent, which takes the place of the message's; "": none. */
static void pass_headers(struct lines *lines, const struct hapax_message *message,
                         const char *trace, char *const *names, bool named)
{
    struct hapax_span attribute;
    bool encoded;

    for (size_t i = 0; i < message->header_count; i++) {
        const struct hapax_message_header *header = &message->headers[i];

        if ((trace[0] && hapax__name_is(header->name, "traceparent")) ||
            keeps_name(header->name, names) != named ||
            hapax__event_attribute(&attribute, &encoded, header->name))
            continue;
        if (!is_name(header->name) || !is_value(header->value))
            lines->left_out++;
        else if (named || !is_kept_back(header->name))
            (void)pass(lines, named ? "" : HAPAX__HEADER_PREFIX, header->name, header->value);
    }
}

bool hapax__event_lines(struct curl_slist **out, const struct hapax_message *message,
                        const struct hapax_attempt *attempt, const char *broker, char *const *names,
                        bool body)
{
    struct hapax_span key = hapax_attempt_key(attempt);
    struct lines lines = {.list = NULL};

    put_operation(&lines, attempt, key);
    put_content_type(&lines, message, body);
    add(&lines, "Expect:");
    if (!message->body.ptr)
        put_text(&lines, "Hapax-Tombstone", "true");
    if (attempt->trace[0])
        put_text(&lines, "traceparent", attempt->trace);
    pass_headers(&lines, message, attempt->trace, names, true);
    if (!hapax__event_structured(message->content_type, false))
        put_event(&lines, message, key, broker);
    pass_headers(&lines, message, attempt->trace, names, false);
    if (lines.left_out > 0)
        put_number(&lines, "Hapax-Left-Out", lines.left_out);
    *out = lines.list;
    if (!lines.nomem)
        return true;
    curl_slist_free_all(lines.list);
    *out = NULL;
    return false;
}
