/* SPDX-License-Identifier: Apache-2.0
 *
 * SQS messages, read and written. The invariant: a letter's names, values, id and content type are
 * read as they were written, whether its headers are attributes or packed. Only the order of
 * headers may change.
 *
 * A deduplication id is a hash of what makes a letter the same letter: its id, body and headers,
 * and its point in history (base, reason, time of a return, run of a redrive). SQS drops a second
 * message with the same id for five minutes. Rejected: the message's own id. A letter that fails
 * again after a redrive would be dropped, and lost. Rejected: a hash without the headers. They may
 * say whose key it is, and two owners may send one body under one key. Rejected: the MD5 sums of
 * replies. They prove no more than TLS does, and a FIPS build of OpenSSL cannot make them.
 */
#include "message.h"

#include "base/base64.h"
#include "base/bytes.h"
#include "base/span.h"
#include "base/utf8.h"

#include <assert.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#define MESSAGE_ID      "message-id"
#define CONTENT_TYPE    "content-type"
#define DEDUPLICATION   "MessageDeduplicationId"
#define NAME_MAX_BYTES  256u
#define GROUP_MAX_BYTES 128u
#define HEADERS_MAX     (2 * HAPAX__HEADERS_READ_MAX) /* of a letter, with our own */

static void hex(char out[2 * SHA256_DIGEST_LENGTH + 1], const uint8_t digest[SHA256_DIGEST_LENGTH])
{
    *hapax__hex(out, digest, SHA256_DIGEST_LENGTH) = '\0';
}

bool hapax__sqs_is_text(struct hapax_span span)
{
    for (size_t i = 0, len; i < span.len; i += len) {
        uint32_t c;

        len = hapax__utf8_read(&c, span.ptr + i, span.len - i);
        if (len == 0 || (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0xfffe ||
            c == 0xffff)
            return false;
    }
    return span.len > 0;
}

/* ---- from SQS ---------------------------------------------------------------------------- */

struct reading {
    struct hapax_arena *arena;
    struct hapax_message_header headers[HAPAX__HEADERS_READ_MAX];
    size_t count;
    const char *damaged; /* struct hapax__delivered */
    bool nomem;
};

bool hapax__sqs_read(struct hapax_span *root, struct hapax_span reply)
{
    return hapax__raw_check(root, reply) && hapax__is_utf8(*root);
}

/* The text of a JSON string; empty if the value is no string. */
static struct hapax_span text_of(struct reading *r, struct hapax_span value)
{
    struct hapax_span text;

    r->nomem |= !hapax__raw_text(&text, r->arena, value);
    return text;
}

static struct hapax_span member_text(struct reading *r, struct hapax_span object, const char *path)
{
    (void)hapax__raw_member(&object, object, path);
    return text_of(r, object);
}

static struct hapax_span bytes_of(struct reading *r, struct hapax_span value)
{
    struct hapax_span text = text_of(r, value);
    uint8_t *bytes = text.len > 0 ? hapax__arena_alloc(r->arena, text.len) : NULL;
    size_t len = 0;

    if (!bytes)
        r->nomem |= text.len > 0;
    else if (text.len % 4 != 0 || !hapax__base64_decode(bytes, &len, text))
        r->damaged = HAPAX__HEADERS_UNREAD;
    return (struct hapax_span){bytes, len};
}

static const struct hapax_message_header *find(const struct reading *r, const char *name)
{
    for (size_t i = 0; i < r->count; i++)
        if (hapax__is(r->headers[i].name, name))
            return &r->headers[i];
    return NULL;
}

static void add_header(struct reading *r, struct hapax_span name, struct hapax_span value)
{
    if (r->count == HAPAX__HEADERS_READ_MAX)
        r->damaged = HAPAX__HEADERS_MANY;
    else
        r->headers[r->count++] = (struct hapax_message_header){name, value};
}

/* {"name": "text", "name": ["base64"], …} */
static void unpack(struct reading *r, struct hapax_span packed)
{
    struct hapax_span root, name, value, none, element;
    struct hapax__raw_walk walk, list;

    if (!hapax__raw_check(&root, packed) || !hapax__raw_is_object(root)) {
        r->damaged = HAPAX__HEADERS_UNREAD;
        return;
    }
    hapax__raw_begin(&walk, root);
    while (hapax__raw_next(&walk, &name, &value)) {
        hapax__raw_begin(&list, value);
        if (hapax__raw_is_array(value) && hapax__raw_next(&list, &none, &element) &&
            hapax__raw_is_string(element)) {
            value = bytes_of(r, element);
        } else {
            if (!hapax__raw_is_string(value))
                r->damaged = HAPAX__HEADERS_UNREAD;
            value = text_of(r, value);
        }
        add_header(r, text_of(r, name), value);
    }
}

static void read_attribute(struct reading *r, struct hapax_span name, struct hapax_span attribute)
{
    struct hapax_span value = member_text(r, attribute, "StringValue"), binary;

    if (hapax__raw_member(&binary, attribute, "BinaryValue") && hapax__raw_is_string(binary))
        value = bytes_of(r, binary);
    if (hapax__raw_says(name, HAPAX__SQS_PACKED))
        unpack(r, value);
    else
        add_header(r, text_of(r, name), value);
}

static bool is_hash_of(struct hapax_span id, struct hapax_span body)
{
    uint8_t digest[SHA256_DIGEST_LENGTH];
    char text[2 * SHA256_DIGEST_LENGTH + 1];

    if (id.len != 2 * sizeof(digest))
        return false;
    SHA256(body.len > 0 ? body.ptr : (const uint8_t *)"", body.len, digest);
    hex(text, digest);
    return hapax__is(id, text);
}

static void read_headers(struct reading *r, struct hapax_span message, struct hapax_span body)
{
    struct hapax_span deduplication = member_text(r, message, "Attributes." DEDUPLICATION);
    struct hapax_span attributes, name, value;
    struct hapax__raw_walk walk;

    if (hapax__raw_member(&attributes, message, "MessageAttributes") &&
        hapax__raw_is_object(attributes)) {
        hapax__raw_begin(&walk, attributes);
        while (hapax__raw_next(&walk, &name, &value))
            read_attribute(r, name, value);
    }
    /* The id of a copy was made by the sink. The message's own id is among its headers. */
    if (find(r, HAPAX__HEADER_BASE) || find(r, HAPAX__HEADER_REDRIVE))
        return;
    if (deduplication.len > 0 && !find(r, DEDUPLICATION) && !is_hash_of(deduplication, body))
        add_header(r, hapax_str(DEDUPLICATION), deduplication);
}

static int64_t number_of(struct hapax_span span)
{
    int64_t number = 0;

    if (span.len > 15)
        return 0;
    for (size_t i = 0; i < span.len; i++) {
        if (span.ptr[i] < '0' || span.ptr[i] > '9')
            return 0;
        number = number * 10 + (span.ptr[i] - '0');
    }
    return number;
}

static struct hapax_span copy(uint8_t **at, struct hapax_span span)
{
    uint8_t *to = *at;

    if (span.len > 0)
        memcpy(to, span.ptr, span.len);
    *at += span.len;
    return (struct hapax_span){to, span.len};
}

/* Makes one block of the delivery, the table of headers and all bytes. `from` is borrowed. */
static struct hapax__sqs_delivery *build(const struct reading *r, const struct hapax_message *shown,
                                         struct hapax_span receipt)
{
    size_t table = r->count * sizeof(r->headers[0]);
    size_t len = table + shown->body.len + shown->id.len + shown->content_type.len +
                 shown->key.len + receipt.len;
    struct hapax__sqs_delivery *delivery;
    struct hapax_message_header *headers;
    struct hapax_message *message;
    uint8_t *at;

    for (size_t i = 0; i < r->count; i++)
        len += r->headers[i].name.len + r->headers[i].value.len;
    delivery = malloc(sizeof(*delivery) + len);
    if (!delivery)
        return NULL;
    memset(delivery, 0, sizeof(*delivery));
    headers = (struct hapax_message_header *)(delivery + 1);
    at = (uint8_t *)headers + table;
    message = &delivery->shown.message;
    *message = *shown;
    message->headers = headers;
    message->header_count = r->count;
    for (size_t i = 0; i < r->count; i++) {
        headers[i].name = copy(&at, r->headers[i].name);
        headers[i].value = copy(&at, r->headers[i].value);
    }
    message->body = copy(&at, shown->body);
    message->id = copy(&at, shown->id);
    message->content_type = copy(&at, shown->content_type);
    message->key = (struct hapax_span){NULL, 0}; /* an empty key is a key to Kafka */
    if (shown->key.len > 0)
        message->key = copy(&at, shown->key);
    delivery->receipt = copy(&at, receipt);
    delivery->shown.damaged = r->damaged;
    return delivery;
}

struct hapax__sqs_delivery *hapax__sqs_delivery(struct hapax_span message,
                                                struct hapax_arena *arena, struct hapax_span from,
                                                bool ordered)
{
    struct reading reading = {.arena = arena};
    struct hapax_span receipt = member_text(&reading, message, "ReceiptHandle");
    struct hapax_message shown = {
        .body = member_text(&reading, message, "Body"),
        .id = member_text(&reading, message, "MessageId"),
        .key = member_text(&reading, message, "Attributes.MessageGroupId"),
        .from = from,
    };
    const struct hapax_message_header *said;
    struct hapax__sqs_delivery *delivery;

    if (receipt.len == 0)
        return NULL;
    read_headers(&reading, message, shown.body);
    said = find(&reading, MESSAGE_ID);
    if (said && said->value.len > 0)
        shown.id = said->value;
    said = find(&reading, CONTENT_TYPE);
    if (said)
        shown.content_type = said->value;
    shown.time_us = number_of(member_text(&reading, message, "Attributes.SentTimestamp")) * 1000;
    shown.redelivered =
        number_of(member_text(&reading, message, "Attributes.ApproximateReceiveCount")) > 1;
    if (reading.nomem)
        return NULL;
    delivery = build(&reading, &shown, receipt);
    if (delivery && ordered)
        delivery->shown.order = delivery->shown.message.key;
    return delivery;
}

/* ---- to SQS ------------------------------------------------------------------------------ */

/* Letters, digits, '_', '-' and '.'; no '.' at an end, no two in a row, and no name reserved by
 * AWS. */
static bool is_attribute_name(struct hapax_span name)
{
    if (name.len == 0 || name.len > NAME_MAX_BYTES || name.ptr[0] == '.' ||
        name.ptr[name.len - 1] == '.' || hapax__is(name, HAPAX__SQS_PACKED))
        return false;
    for (size_t i = 0; i < name.len; i++) {
        uint8_t c = name.ptr[i];

        if (!((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' ||
              c == '-' || (c == '.' && name.ptr[i - 1] != '.')))
            return false;
    }
    return !(name.len >= 4 && strncasecmp((const char *)name.ptr, "aws.", 4) == 0) &&
           !(name.len >= 7 && strncasecmp((const char *)name.ptr, "amazon.", 7) == 0);
}

/* The headers of a letter. Headers that may be packed come last. */
struct writing {
    struct hapax_message_header all[HEADERS_MAX];
    size_t count;
    size_t plain; /* so many are attributes of their own */
};

static bool has(const struct hapax_message_header *headers, size_t n, struct hapax_span name)
{
    for (size_t i = 0; i < n; i++)
        if (hapax__same(headers[i].name, name))
            return true;
    return false;
}

static bool take(struct writing *w, struct hapax_span name, struct hapax_span value)
{
    if (w->count == sizeof(w->all) / sizeof(w->all[0]))
        return false;
    w->all[w->count++] = (struct hapax_message_header){name, value};
    return true;
}

static bool is_plain(const struct hapax_message_header *header)
{
    return is_attribute_name(header->name) && header->value.len > 0;
}

/* SQS takes one attribute of a name. If a letter has two headers of one name, the later one is
 * packed. */
static bool take_some(struct writing *w, const struct hapax__letter *letter, bool plain)
{
    for (size_t i = 0; i < letter->header_count; i++) {
        const struct hapax_message_header *header = &letter->headers[i];
        bool can = is_plain(header) && !has(letter->headers, i, header->name);

        if (hapax__begins(header->name, "hapax-") &&
            has(letter->own, letter->own_count, header->name))
            continue;
        if (can == plain && !take(w, header->name, header->value))
            return false;
    }
    return true;
}

static bool take_all(struct writing *w, const struct hapax__letter *letter)
{
    static const struct hapax_span id = {(const uint8_t *)MESSAGE_ID, sizeof(MESSAGE_ID) - 1};
    static const struct hapax_span type = {(const uint8_t *)CONTENT_TYPE, sizeof(CONTENT_TYPE) - 1};
    bool taken = true;
    size_t fit, own_from;

    if (letter->id.len > 0 && !has(letter->headers, letter->header_count, id))
        taken = take(w, id, letter->id);
    if (letter->content_type.len > 0 && !has(letter->headers, letter->header_count, type))
        taken = taken && take(w, type, letter->content_type);
    taken = taken && take_some(w, letter, true);
    own_from = fit = w->count;
    for (size_t i = 0; i < letter->own_count; i++)
        taken = taken && take(w, letter->own[i].name, letter->own[i].value);
    for (size_t i = own_from; i < w->count && fit == i; i++)
        fit += is_plain(&w->all[i]);
    taken = taken && take_some(w, letter, false);
    if (fit == w->count && fit <= HAPAX__SQS_ATTRIBUTES_MAX)
        w->plain = fit;
    else
        w->plain = own_from < HAPAX__SQS_ATTRIBUTES_MAX ? own_from : HAPAX__SQS_ATTRIBUTES_MAX - 1;
    return taken;
}

static void put_name(struct hapax__json_out *out, struct hapax_span name, bool *first)
{
    hapax__json_put(out, *first ? "" : ",");
    hapax__json_put_string(out, name);
    hapax__json_put(out, ":");
    *first = false;
}

/* Writes an attribute. size grows by what SQS counts: name, type and value. */
static void put_attribute(struct hapax__json_out *out, struct hapax_span name,
                          struct hapax_span value, bool *first, size_t *size)
{
    put_name(out, name, first);
    if (hapax__sqs_is_text(value)) {
        hapax__json_put(out, "{\"DataType\":\"String\",\"StringValue\":");
        hapax__json_put_string(out, value);
    } else {
        hapax__json_put(out, "{\"DataType\":\"Binary\",\"BinaryValue\":");
        hapax__json_put_base64(out, value);
    }
    hapax__json_put(out, "}");
    *size += name.len + 6 + value.len;
}

static bool put_packed(struct hapax__json_out *out, const struct writing *w, bool *first,
                       size_t *size)
{
    struct hapax__json_out packed = {0};
    bool first_packed = true;

    hapax__json_put(&packed, "{");
    for (size_t i = w->plain; i < w->count; i++) {
        struct hapax_span name = w->all[i].name, value = w->all[i].value;

        if (!hapax__sqs_is_text(name))
            continue; /* neither SQS nor JSON can carry it */
        put_name(&packed, name, &first_packed);
        if (value.len == 0 || hapax__sqs_is_text(value)) {
            hapax__json_put_string(&packed, value);
        } else {
            hapax__json_put(&packed, "[");
            hapax__json_put_base64(&packed, value);
            hapax__json_put(&packed, "]");
        }
    }
    hapax__json_put(&packed, "}");
    if (!packed.failed)
        put_attribute(out, hapax_str(HAPAX__SQS_PACKED),
                      (struct hapax_span){(const uint8_t *)packed.bytes, packed.len}, first, size);
    out->failed |= packed.failed;
    hapax__json_free(&packed);
    return !out->failed;
}

/* ---- groups and deduplication --------------------------------------------------------------- */

static bool is_group(struct hapax_span key)
{
    if (key.len == 0 || key.len > GROUP_MAX_BYTES)
        return false;
    for (size_t i = 0; i < key.len; i++)
        if (key.ptr[i] <= ' ' || key.ptr[i] > '~')
            return false;
    return true;
}

static int compare(struct hapax_span a, struct hapax_span b)
{
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.ptr, b.ptr, len) : 0;

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int by_name(const void *a, const void *b)
{
    const struct hapax_message_header *one = a, *other = b;
    int order = compare(one->name, other->name);

    return order != 0 ? order : compare(one->value, other->value);
}

/* The headers that Hapax itself puts on a letter count where they say whose letter it is, or tell
 * two points in its history apart. */
static bool makes_another(struct hapax_span name)
{
    return !hapax__begins(name, "hapax-") || hapax__is(name, HAPAX__HEADER_ID) ||
           hapax__is(name, HAPAX__HEADER_BASE) || hapax__is(name, HAPAX__HEADER_REASON) ||
           hapax__is(name, HAPAX__HEADER_SCOPE) || hapax__is(name, HAPAX__HEADER_FROM) ||
           hapax__is(name, HAPAX__HEADER_REDRIVE);
}

/* Sorts the headers, since SQS does not keep their order. */
static void deduplication_of(char out[2 * SHA256_DIGEST_LENGTH + 1],
                             const struct hapax__letter *letter, struct writing *w,
                             struct hapax_span chance)
{
    struct hapax_span parts[3 + 2 * HEADERS_MAX] = {letter->id.len > 0 ? letter->id : chance,
                                                    letter->body, letter->life};
    struct hapax_digest digest;
    size_t n = 3;

    qsort(w->all, w->count, sizeof(w->all[0]), by_name);
    for (size_t i = 0; i < w->count; i++)
        if (makes_another(w->all[i].name)) {
            parts[n++] = w->all[i].name;
            parts[n++] = w->all[i].value;
        }
    hapax_digest(&digest, parts, n);
    hex(out, digest.bytes);
}

/* A letter without a key gets a group of its own. A key that cannot name a group is hashed. */
static void put_order(struct hapax__json_out *out, const struct hapax__letter *letter,
                      struct writing *w, struct hapax_span chance)
{
    char deduplication[2 * SHA256_DIGEST_LENGTH + 1], group[2 * SHA256_DIGEST_LENGTH + 1];
    uint8_t digest[SHA256_DIGEST_LENGTH];
    struct hapax_span name = letter->key;

    deduplication_of(deduplication, letter, w, chance);
    if (letter->key.len == 0) {
        name = hapax_str(deduplication);
    } else if (!is_group(letter->key)) {
        SHA256(letter->key.ptr, letter->key.len, digest);
        hex(group, digest);
        name = hapax_str(group);
    }
    hapax__json_put(out, ",\"MessageGroupId\":");
    hapax__json_put_string(out, name);
    hapax__json_put(out, ",\"MessageDeduplicationId\":");
    hapax__json_put_string(out, hapax_str(deduplication));
}

static enum hapax_error no_entry(const char **why, enum hapax_error error, const char *what)
{
    *why = what;
    return error;
}

enum hapax_error hapax__sqs_entry(struct hapax__json_out *out, size_t *size,
                                  const struct hapax__letter *letter, unsigned id, bool fifo,
                                  struct hapax_span chance, const char **why)
{
    struct writing *w = calloc(1, sizeof(*w));
    bool first = true, whole = w && take_all(w, letter);

    *size = letter->body.len;
    *why = "there is no memory for it";
    hapax__json_put(out, "{\"Id\":\"");
    hapax__json_put_number(out, id);
    hapax__json_put(out, "\",\"MessageBody\":");
    hapax__json_put_string(out, letter->body);
    hapax__json_put(out, ",\"MessageAttributes\":{");
    for (size_t i = 0; w && i < w->plain; i++)
        put_attribute(out, w->all[i].name, w->all[i].value, &first, size);
    if (w && w->plain < w->count)
        (void)put_packed(out, w, &first, size);
    hapax__json_put(out, "}");
    if (fifo && w)
        put_order(out, letter, w, chance);
    hapax__json_put(out, "}");
    out->failed |= !w;
    free(w);
    if (out->failed)
        return HAPAX_ERR_NOMEM;
    if (!whole)
        return no_entry(why, HAPAX_ERR_TOO_BIG, "it has too many headers");
    if (!hapax__sqs_is_text(letter->body))
        return no_entry(why, HAPAX_ERR_INVALID,
                        "its body is empty, or no text that SQS takes (UTF-8 without control "
                        "characters)");
    if (*size > HAPAX__SQS_MESSAGE_MAX)
        return no_entry(why, HAPAX_ERR_TOO_BIG, "it is over 1 MiB with its attributes");
    return HAPAX_ERR_NONE;
}

/* ---- batches ----------------------------------------------------------------------------- */

/* The result that an element of a batch's reply is about: `Id` is one digit. NULL: an unknown
 * Id. */
static struct hapax__sqs_result *result_of(struct hapax__sqs_result *all, size_t n,
                                           struct hapax_span element)
{
    struct hapax_span value;
    char id[2];

    if (!hapax__raw_member(&value, element, "Id") || !hapax__raw_copy(id, sizeof(id), value) ||
        id[0] < '0' || (size_t)(id[0] - '0') >= n)
        return NULL;
    return &all[id[0] - '0'];
}

static void read_failed(struct hapax__sqs_result *result, struct hapax_span element)
{
    struct hapax_span value;
    char code[256] = "";

    (void)hapax__raw_member(&value, element, "Code");
    (void)hapax__raw_copy(code, sizeof(code), value);
    for (size_t i = 0; i < sizeof(result->code) - 1 && code[i]; i++)
        result->code[i] = code[i] > ' ' && code[i] <= '~' ? code[i] : '?';
    result->kind = HAPAX__SQS_AGAIN;
    if (!hapax__raw_member(&value, element, "SenderFault") ||
        (value.ptr[0] != 't' && !hapax__raw_says(value, "true")) || strstr(code, "Throttl"))
        return;
    result->kind = HAPAX__SQS_NEVER;
}

bool hapax__sqs_batch(struct hapax__sqs_result out[HAPAX__SQS_BATCH_MAX], size_t n,
                      struct hapax_span reply)
{
    struct hapax__sqs_result *result;
    struct hapax_span root, list, none, element;
    struct hapax__raw_walk walk;

    assert(n <= HAPAX__SQS_BATCH_MAX);
    memset(out, 0, n * sizeof(*out));
    if (!hapax__sqs_read(&root, reply) || !hapax__raw_is_object(root))
        return false;
    (void)hapax__raw_member(&list, root, "Successful");
    hapax__raw_begin(&walk, list);
    while (hapax__raw_next(&walk, &none, &element))
        if ((result = result_of(out, n, element)))
            result->kind = HAPAX__SQS_DONE;
    (void)hapax__raw_member(&list, root, "Failed");
    hapax__raw_begin(&walk, list);
    while (hapax__raw_next(&walk, &none, &element))
        if ((result = result_of(out, n, element)))
            read_failed(result, element);
    return true;
}
