/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP content as a delivered message, and a letter as AMQP content. A delivery is one block of
 * memory, measured first and written then. So thousands of messages in hand take no memory beyond
 * their bytes, and each needs one free().
 *
 * A delivery stores kept headers in encoded form. They are decoded when a letter is sent.
 *
 * Rejected: keeping librabbitmq's decoded tables. Their pool belongs to the connection, not to the
 * message.
 */
#include "message.h"

#include "base/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 40u /* bytes of a number as text */
/* How deep tables and arrays may be nested in a kept header. */
#define DEPTH_MAX 32

/* Properties shown as headers. */
static const struct {
    const char *name;
    amqp_flags_t flag;
    size_t field; /* of amqp_basic_properties_t */
    enum { TEXT, BYTE, SECONDS } kind;
} shown[] = {
    {"amqp-content-encoding", AMQP_BASIC_CONTENT_ENCODING_FLAG,
     offsetof(amqp_basic_properties_t, content_encoding), TEXT},
    {"amqp-correlation-id", AMQP_BASIC_CORRELATION_ID_FLAG,
     offsetof(amqp_basic_properties_t, correlation_id), TEXT},
    {"amqp-reply-to", AMQP_BASIC_REPLY_TO_FLAG, offsetof(amqp_basic_properties_t, reply_to), TEXT},
    {"amqp-app-id", AMQP_BASIC_APP_ID_FLAG, offsetof(amqp_basic_properties_t, app_id), TEXT},
    {"amqp-priority", AMQP_BASIC_PRIORITY_FLAG, offsetof(amqp_basic_properties_t, priority), BYTE},
    {"amqp-timestamp", AMQP_BASIC_TIMESTAMP_FLAG, offsetof(amqp_basic_properties_t, timestamp),
     SECONDS},
};

#define SHOWN (sizeof(shown) / sizeof(shown[0]))

/* ---- from the broker ------------------------------------------------------------------- */

/* The shortest text that reads as the same number. */
static size_t write_double(char out[NUMBER_MAX], double value, int digits, int digits_max)
{
    int len;

    do
        len = snprintf(out, NUMBER_MAX, "%.*g", digits, value);
    while (digits++ < digits_max &&
           !(digits_max < 10 ? strtof(out, NULL) == (float)value : strtod(out, NULL) == value));
    return (size_t)len;
}

/* Writes a value as text into `number`, or points to the value's own bytes. False: a kind without a
 * text. */
static bool value_text(struct hapax_span *out, char number[NUMBER_MAX],
                       const amqp_field_value_t *field)
{
    int len = 0;

    switch (field->kind) {
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES:
        *out = (struct hapax_span){field->value.bytes.bytes, field->value.bytes.len};
        return true;
    case AMQP_FIELD_KIND_BOOLEAN:
        *out = hapax_str(field->value.boolean ? "true" : "false");
        return true;
    case AMQP_FIELD_KIND_I8:
        len = snprintf(number, NUMBER_MAX, "%d", field->value.i8);
        break;
    case AMQP_FIELD_KIND_U8:
        len = snprintf(number, NUMBER_MAX, "%u", field->value.u8);
        break;
    case AMQP_FIELD_KIND_I16:
        len = snprintf(number, NUMBER_MAX, "%d", field->value.i16);
        break;
    case AMQP_FIELD_KIND_U16:
        len = snprintf(number, NUMBER_MAX, "%u", field->value.u16);
        break;
    case AMQP_FIELD_KIND_I32:
        len = snprintf(number, NUMBER_MAX, "%" PRId32, field->value.i32);
        break;
    case AMQP_FIELD_KIND_U32:
        len = snprintf(number, NUMBER_MAX, "%" PRIu32, field->value.u32);
        break;
    case AMQP_FIELD_KIND_I64:
        len = snprintf(number, NUMBER_MAX, "%" PRId64, field->value.i64);
        break;
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_TIMESTAMP:
        len = snprintf(number, NUMBER_MAX, "%" PRIu64, field->value.u64);
        break;
    case AMQP_FIELD_KIND_F32:
        len = (int)write_double(number, (double)field->value.f32, 6, 9);
        break;
    case AMQP_FIELD_KIND_F64:
        len = (int)write_double(number, field->value.f64, 15, 17);
        break;
    default: /* tables, arrays, decimals, nothing */
        return false;
    }
    *out = (struct hapax_span){(const uint8_t *)number, (size_t)len};
    return true;
}

/* Shows a property as a header's value. False: the property is not set. */
static bool property_text(struct hapax_span *out, char number[NUMBER_MAX],
                          const amqp_basic_properties_t *properties, size_t i)
{
    const void *field = (const char *)properties + shown[i].field;
    int len;

    if (!(properties->_flags & shown[i].flag))
        return false;
    if (shown[i].kind == TEXT) {
        const amqp_bytes_t *bytes = field;

        *out = (struct hapax_span){bytes->bytes, bytes->len};
        return true;
    }
    len = shown[i].kind == BYTE
              ? snprintf(number, NUMBER_MAX, "%u", *(const uint8_t *)field)
              : snprintf(number, NUMBER_MAX, "%" PRIu64, *(const uint64_t *)field);
    *out = (struct hapax_span){(const uint8_t *)number, (size_t)len};
    return true;
}

/* A delivery that is written; or only measured, if `at` is NULL. */
struct block {
    uint8_t *at;
    size_t len;
    struct hapax_message_header *headers;
    size_t header_count;
    struct hapax_span *unread;
    size_t unread_count;
    struct hapax_span kept;
    const char *damaged;
};

static struct hapax_span put(struct block *block, struct hapax_span span)
{
    struct hapax_span copy = {block->at ? block->at + block->len : NULL, span.len};

    if (block->at && span.len > 0)
        memcpy(block->at + block->len, span.ptr, span.len);
    block->len += span.len;
    return copy;
}

static void put_header(struct block *block, struct hapax_span name, struct hapax_span value)
{
    struct hapax_message_header header;

    if (block->header_count == HAPAX__HEADERS_READ_MAX) {
        block->damaged = HAPAX__HEADERS_MANY;
        return;
    }
    header.name = put(block, name);
    header.value = put(block, value);
    if (block->headers)
        block->headers[block->header_count] = header;
    block->header_count++;
}

static void put_unread(struct block *block, struct hapax_span name)
{
    struct hapax_span copy;

    if (block->unread_count == HAPAX__HEADERS_READ_MAX) {
        block->damaged = HAPAX__HEADERS_MANY;
        return;
    }
    copy = put(block, name);
    if (block->unread)
        block->unread[block->unread_count] = copy;
    block->unread_count++;
}

static void put_headers(struct block *block, const amqp_basic_properties_t *properties)
{
    const amqp_table_t *table = &properties->headers;
    char number[NUMBER_MAX];
    struct hapax_span value;

    for (size_t i = 0; i < SHOWN; i++)
        if (property_text(&value, number, properties, i))
            put_header(block, hapax_str(shown[i].name), value);
    if (!(properties->_flags & AMQP_BASIC_HEADERS_FLAG))
        return;
    for (int i = 0; i < table->num_entries; i++) {
        const amqp_table_entry_t *entry = &table->entries[i];
        struct hapax_span name = {entry->key.bytes, entry->key.len};

        if (hapax__is(name, HAPAX__AMQP_LETTER))
            continue;
        if (value_text(&value, number, &entry->value))
            put_header(block, name, value);
        else
            put_unread(block, name);
    }
}

/* ---- what is kept of headers ------------------------------------------------------------- */

/* The encoded bytes of a value without parts, the same in every encoding. 0: an unknown kind. */
static size_t plain_size(const amqp_field_value_t *field)
{
    switch (field->kind) {
    case AMQP_FIELD_KIND_VOID:
        return 1;
    case AMQP_FIELD_KIND_BOOLEAN:
    case AMQP_FIELD_KIND_I8:
    case AMQP_FIELD_KIND_U8:
        return 2;
    case AMQP_FIELD_KIND_I16:
    case AMQP_FIELD_KIND_U16:
        return 3;
    case AMQP_FIELD_KIND_I32:
    case AMQP_FIELD_KIND_U32:
    case AMQP_FIELD_KIND_F32:
        return 5;
    case AMQP_FIELD_KIND_DECIMAL:
        return 6;
    case AMQP_FIELD_KIND_I64:
    case AMQP_FIELD_KIND_U64:
    case AMQP_FIELD_KIND_F64:
    case AMQP_FIELD_KIND_TIMESTAMP:
        return 9;
    case AMQP_FIELD_KIND_UTF8:
    case AMQP_FIELD_KIND_BYTES:
        return 5 + field->value.bytes.len;
    default:
        return 0;
    }
}

/* The bytes of an encoded value with its kind. 0: the value is not kept. */
static size_t value_size(const amqp_field_value_t *field, int depth)
{
    bool is_table = field->kind == AMQP_FIELD_KIND_TABLE;
    size_t size = 5, part;
    int n;

    if (!is_table && field->kind != AMQP_FIELD_KIND_ARRAY)
        return plain_size(field);
    if (depth == DEPTH_MAX)
        return 0;
    n = is_table ? field->value.table.num_entries : field->value.array.num_entries;
    for (int i = 0; i < n; i++) {
        const amqp_table_entry_t *entry = is_table ? &field->value.table.entries[i] : NULL;

        part = value_size(entry ? &entry->value : &field->value.array.entries[i], depth + 1);
        if (part == 0)
            return 0;
        size += part + (entry ? 1 + entry->key.len : 0);
    }
    return size;
}

/* Whether a letter has this header with its own type (message.h). */
static bool is_kept(const amqp_table_entry_t *entry)
{
    static const char *const brokers[] = {
        "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count", "x-received-from"};

    if (entry->value.kind == AMQP_FIELD_KIND_UTF8 ||
        (entry->key.len >= 6 && memcmp(entry->key.bytes, "hapax-", 6) == 0))
        return false;
    for (size_t i = 0; i < sizeof(brokers) / sizeof(brokers[0]); i++)
        if (hapax__is((struct hapax_span){entry->key.bytes, entry->key.len}, brokers[i]))
            return false;
    return true;
}

/* Encodes each kept header as a table of its own, one behind the other. */
static void put_kept(struct block *block, const amqp_table_t *table)
{
    struct hapax_span kept = {block->at ? block->at + block->len : NULL, 0};
    bool whole = true;

    for (int i = 0; i < table->num_entries; i++) {
        amqp_table_t one = {.num_entries = 1, .entries = &table->entries[i]};
        size_t size = value_size(&one.entries->value, 0), written = 0;
        amqp_bytes_t at;

        if (size == 0 || !is_kept(one.entries))
            continue;
        size += 4 + 1 + one.entries->key.len;
        if (block->at) {
            at = (amqp_bytes_t){.len = size, .bytes = block->at + block->len};
            whole &= amqp_encode_table(at, &one, &written) == AMQP_STATUS_OK && written == size;
        }
        block->len += size;
        kept.len += size;
    }
    if (whole)
        block->kept = kept;
}

static struct hapax_span property(const amqp_basic_properties_t *properties, amqp_flags_t flag,
                                  amqp_bytes_t bytes)
{
    if (!(properties->_flags & flag))
        return (struct hapax_span){NULL, 0};
    return (struct hapax_span){bytes.bytes, bytes.len};
}

static void put_message(struct block *block, struct hapax_message *out,
                        const struct hapax__amqp_coming *coming,
                        const amqp_basic_properties_t *properties)
{
    out->content_type =
        put(block, property(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, properties->content_type));
    out->id = put(block, property(properties, AMQP_BASIC_MESSAGE_ID_FLAG, properties->message_id));
    out->type = put(block, property(properties, AMQP_BASIC_TYPE_FLAG, properties->type));
    if (coming->key_len > 0) /* otherwise there is none: an empty key is a key to Kafka */
        out->key = put(block, (struct hapax_span){coming->key, coming->key_len});
    put_headers(block, properties);
    if (properties->_flags & AMQP_BASIC_HEADERS_FLAG)
        put_kept(block, &properties->headers);
}

struct hapax__amqp_delivery *hapax__amqp_delivery(const struct hapax__amqp_coming *coming,
                                                  const amqp_basic_properties_t *properties,
                                                  size_t body_len, struct hapax_span from)
{
    struct hapax__amqp_delivery *delivery;
    struct hapax_message *message, measured;
    struct block block = {0};
    size_t headers, unread_len;

    put_message(&block, &measured, coming, properties);
    headers = block.header_count;
    unread_len = block.unread_count * sizeof(*block.unread);
    delivery = malloc(sizeof(*delivery) + headers * sizeof(*block.headers) + unread_len +
                      block.len + body_len);
    if (!delivery)
        return NULL;
    memset(delivery, 0, sizeof(*delivery));
    block = (struct block){.headers = (struct hapax_message_header *)(delivery + 1)};
    block.unread = (struct hapax_span *)(block.headers + headers);
    block.at = (uint8_t *)block.unread + unread_len;
    message = &delivery->shown.message;
    put_message(&block, message, coming, properties);
    delivery->tag = coming->tag;
    delivery->body = block.at + block.len;
    delivery->body_len = body_len;
    delivery->shown.damaged = block.damaged;
    delivery->shown.unread = block.unread;
    delivery->shown.unread_count = block.unread_count;
    delivery->shown.kept = block.kept;
    message->body = (struct hapax_span){delivery->body, body_len};
    message->headers = block.headers;
    message->header_count = block.header_count;
    message->from = from;
    message->redelivered = coming->redelivered;
    if (properties->_flags & AMQP_BASIC_TIMESTAMP_FLAG &&
        properties->timestamp < (uint64_t)INT64_MAX / 1000000)
        message->time_us = (int64_t)properties->timestamp * 1000000;
    return delivery;
}

/* ---- to the broker --------------------------------------------------------------------- */

static amqp_bytes_t bytes_of(struct hapax_span span)
{
    return (amqp_bytes_t){.len = span.len, .bytes = (void *)(uintptr_t)span.ptr};
}

/* Sets a property that is a short string. False: the text is too long. */
static bool set_text(amqp_basic_properties_t *out, amqp_flags_t flag, amqp_bytes_t *field,
                     struct hapax_span span)
{
    if (span.len == 0)
        return true;
    if (span.len > 255)
        return false;
    *field = bytes_of(span);
    out->_flags |= flag;
    return true;
}

static bool number_of(uint64_t *out, struct hapax_span span, uint64_t max)
{
    *out = 0;
    if (span.len == 0 || span.len > 18)
        return false;
    for (size_t i = 0; i < span.len; i++) {
        if (span.ptr[i] < '0' || span.ptr[i] > '9')
            return false;
        *out = *out * 10 + (uint64_t)(span.ptr[i] - '0');
    }
    return *out <= max;
}

/* Makes a property of a header. False: it stays a header. */
static bool make_property(amqp_basic_properties_t *out, const struct hapax_message_header *header)
{
    uint64_t number;

    for (size_t i = 0; i < SHOWN; i++) {
        void *field = (char *)out + shown[i].field;

        if (!hapax__is(header->name, shown[i].name))
            continue;
        /* RabbitMQ takes this one only from a channel that waits for replies. */
        if (hapax__is(header->value, "amq.rabbitmq.reply-to"))
            return false;
        if (shown[i].kind == TEXT)
            return header->value.len > 0 && set_text(out, shown[i].flag, field, header->value);
        if (!number_of(&number, header->value, shown[i].kind == BYTE ? UINT8_MAX : UINT64_MAX))
            return false;
        if (shown[i].kind == BYTE)
            *(uint8_t *)field = (uint8_t)number;
        else
            *(uint64_t *)field = number;
        out->_flags |= shown[i].flag;
        return true;
    }
    return false;
}

static bool is_own(const struct hapax__letter *letter, struct hapax_span name)
{
    if (hapax__is(name, HAPAX__AMQP_LETTER))
        return true;
    if (name.len < 6 || memcmp(name.ptr, "hapax-", 6) != 0)
        return false;
    for (size_t i = 0; i < letter->own_count; i++)
        if (letter->own[i].name.len == name.len &&
            memcmp(letter->own[i].name.ptr, name.ptr, name.len) == 0)
            return true;
    return false;
}

/* Whether RabbitMQ would route by the header. It closes the channel if the value is a text, as from
 * producers of other protocols. */
static bool routes(struct hapax_span name)
{
    return hapax__is(name, "CC") || hapax__is(name, "BCC");
}

/* left: how much of HAPAX__AMQP_HEADERS_MAX is left. */
static bool add_header(amqp_table_t *table, const struct hapax_message_header *header, size_t *left)
{
    amqp_table_entry_t *entry = &table->entries[table->num_entries];
    size_t around = 6; /* two lengths and a kind */

    if (header->name.len > 255 || header->value.len > *left ||
        header->name.len + header->value.len + around > *left ||
        table->num_entries == (int)HAPAX__AMQP_ENTRIES_MAX)
        return false;
    table->num_entries++;
    *left -= header->name.len + header->value.len + around;
    *entry = (amqp_table_entry_t){.key = bytes_of(header->name)};
    entry->value.kind = AMQP_FIELD_KIND_UTF8;
    entry->value.value.bytes = bytes_of(header->value);
    return true;
}

/* The header that shows a kept one as text. NULL: it was left out, or became a property. */
static amqp_table_entry_t *text_of(amqp_table_t *table, const amqp_table_entry_t *kept,
                                   struct hapax_span text)
{
    for (int i = 0; i < table->num_entries; i++) {
        amqp_table_entry_t *entry = &table->entries[i];
        const amqp_bytes_t *value = &entry->value.value.bytes;

        if (entry->value.kind == AMQP_FIELD_KIND_UTF8 && entry->key.len == kept->key.len &&
            memcmp(entry->key.bytes, kept->key.bytes, kept->key.len) == 0 &&
            value->len == text.len &&
            (text.len == 0 || memcmp(value->bytes, text.ptr, text.len) == 0))
            return entry;
    }
    return NULL;
}

/* Puts a kept header in place of its text, or behind all others if there is no text. size: the
 * encoded bytes, with the name. */
static void keep_header(amqp_table_t *table, const amqp_table_entry_t *kept, size_t size,
                        size_t *left)
{
    char number[NUMBER_MAX];
    struct hapax_span text;
    bool has_text = value_text(&text, number, &kept->value);
    amqp_table_entry_t *entry = has_text ? text_of(table, kept, text) : NULL;
    size_t had = entry ? 6 + entry->key.len + text.len : 0;

    if (size > *left + had || (has_text && !entry) ||
        (!has_text && table->num_entries == (int)HAPAX__AMQP_ENTRIES_MAX))
        return;
    if (!entry)
        entry = &table->entries[table->num_entries++];
    *entry = *kept;
    *left = *left + had - size;
}

/* False: out of memory. */
static bool keep_headers(amqp_table_t *table, struct hapax_span kept, amqp_pool_t *pool,
                         size_t left)
{
    size_t at = 0, before;
    amqp_table_t one;

    while (at < kept.len) {
        before = at;
        if (amqp_decode_table(bytes_of(kept), pool, &one, &at) != AMQP_STATUS_OK ||
            one.num_entries != 1)
            return false;
        keep_header(table, &one.entries[0], at - before - 4, &left);
    }
    return true;
}

bool hapax__amqp_properties(amqp_basic_properties_t *out, amqp_table_entry_t *entries,
                            const struct hapax__letter *letter, uint64_t number, amqp_pool_t *pool)
{
    amqp_table_t *table = &out->headers;
    size_t left = HAPAX__AMQP_HEADERS_MAX;

    recycle_amqp_pool(pool);
    *out =
        (amqp_basic_properties_t){._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG,
                                  .delivery_mode = AMQP_DELIVERY_PERSISTENT};
    table->entries = entries;
    entries[0] = (amqp_table_entry_t){.key = amqp_cstring_bytes(HAPAX__AMQP_LETTER)};
    entries[0].value.kind = AMQP_FIELD_KIND_I64;
    entries[0].value.value.i64 = (int64_t)number;
    table->num_entries = 1;
    for (size_t i = 0; i < letter->own_count; i++)
        if (!add_header(table, &letter->own[i], &left))
            return false;
    for (size_t i = 0; i < letter->header_count; i++)
        if (!is_own(letter, letter->headers[i].name) && !routes(letter->headers[i].name) &&
            !make_property(out, &letter->headers[i]) &&
            !add_header(table, &letter->headers[i], &left))
            return false;
    return keep_headers(table, letter->kept, pool, left) &&
           set_text(out, AMQP_BASIC_CONTENT_TYPE_FLAG, &out->content_type, letter->content_type) &&
           set_text(out, AMQP_BASIC_MESSAGE_ID_FLAG, &out->message_id, letter->id) &&
           set_text(out, AMQP_BASIC_TYPE_FLAG, &out->type, letter->type);
}
