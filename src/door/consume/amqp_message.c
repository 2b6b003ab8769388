/* SPDX-License-Identifier: Apache-2.0
 *
 * AMQP content as a delivered message, and a letter as AMQP content. A delivery is one block of memory: it is
 * measured first, then written, so that thousands in hand cost what they hold and one free() each.
 *
 * Rejected: keeping librabbitmq's decoded tables, whose pool belongs to the connection and not to the message.
 */
#include "amqp_message.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 40u /* bytes of a number as text */

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

/* A value as text, in number or where it stands. False: of a kind that has none. */
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
    default: /* tables, arrays, nothing, and decimals, which nobody sends */
        return false;
    }
    *out = (struct hapax_span){(const uint8_t *)number, (size_t)len};
    return true;
}

static bool is_named(amqp_bytes_t key, const char *name)
{
    return key.len == strlen(name) && memcmp(key.bytes, name, key.len) == 0;
}

/* A property as a header's value. False: it is not set. */
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

/* Where a delivery is written, or only measured where at is NULL. */
struct block {
    uint8_t *at;
    size_t len;
    struct hapax_message_header *headers;
    size_t header_count;
    bool damaged;
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

    if (block->header_count == HAPAX_MESSAGE_HEADERS_MAX) {
        block->damaged = true;
        return;
    }
    header.name = put(block, name);
    header.value = put(block, value);
    if (block->headers)
        block->headers[block->header_count] = header;
    block->header_count++;
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

        if (!is_named(entry->key, HAPAX__AMQP_LETTER) && value_text(&value, number, &entry->value))
            put_header(block, (struct hapax_span){entry->key.bytes, entry->key.len}, value);
    }
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
    out->key = put(block, (struct hapax_span){coming->key, coming->key_len});
    put_headers(block, properties);
}

struct hapax__amqp_delivery *hapax__amqp_delivery(const struct hapax__amqp_coming *coming,
                                                  const amqp_basic_properties_t *properties,
                                                  size_t body_len, struct hapax_span from)
{
    struct hapax__amqp_delivery *delivery;
    struct hapax_message *message, measured;
    struct block block = {0};
    size_t table_len;

    put_message(&block, &measured, coming, properties);
    table_len = block.header_count * sizeof(*block.headers);
    delivery = malloc(sizeof(*delivery) + table_len + block.len + body_len);
    if (!delivery)
        return NULL;
    memset(delivery, 0, sizeof(*delivery));
    block = (struct block){.headers = (struct hapax_message_header *)(delivery + 1)};
    block.at = (uint8_t *)block.headers + table_len;
    message = &delivery->shown.message;
    put_message(&block, message, coming, properties);
    delivery->tag = coming->tag;
    delivery->body = block.at + block.len;
    delivery->body_len = body_len;
    delivery->shown.damaged = block.damaged;
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

/* A short string. False: it is too long for one. */
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

/* Whether a header becomes a property; one that cannot stays a header. */
static bool make_property(amqp_basic_properties_t *out, const struct hapax_message_header *header)
{
    uint64_t number;

    for (size_t i = 0; i < SHOWN; i++) {
        void *field = (char *)out + shown[i].field;

        if (!is_named(bytes_of(header->name), shown[i].name))
            continue;
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
    if (is_named(bytes_of(name), HAPAX__AMQP_LETTER))
        return true;
    if (name.len < 6 || memcmp(name.ptr, "hapax-", 6) != 0)
        return false;
    for (size_t i = 0; i < letter->own_count; i++)
        if (letter->own[i].name.len == name.len &&
            memcmp(letter->own[i].name.ptr, name.ptr, name.len) == 0)
            return true;
    return false;
}

/* left: of HAPAX__AMQP_HEADERS_MAX. */
static bool add_header(amqp_table_t *table, const struct hapax_message_header *header, size_t *left)
{
    amqp_table_entry_t *entry = &table->entries[table->num_entries];
    size_t around = 6; /* two lengths and a kind */

    if (header->name.len == 0 || header->name.len > 255 || header->value.len > *left ||
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

bool hapax__amqp_properties(amqp_basic_properties_t *out, amqp_table_entry_t *entries,
                            const struct hapax__letter *letter, uint64_t number)
{
    amqp_table_t *table = &out->headers;
    size_t left = HAPAX__AMQP_HEADERS_MAX;

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
        if (!is_own(letter, letter->headers[i].name) && !make_property(out, &letter->headers[i]) &&
            !add_header(table, &letter->headers[i], &left))
            return false;
    return set_text(out, AMQP_BASIC_CONTENT_TYPE_FLAG, &out->content_type, letter->content_type) &&
           set_text(out, AMQP_BASIC_MESSAGE_ID_FLAG, &out->message_id, letter->id) &&
           set_text(out, AMQP_BASIC_TYPE_FLAG, &out->type, letter->type);
}
