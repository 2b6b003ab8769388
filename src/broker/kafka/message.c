/* SPDX-License-Identifier: Apache-2.0
 *
 * A fetched message, as the loop sees it. librdkafka owns the bytes of key, body and headers, and
 * frees them with the message. What is made here (the table of headers, the position, the order) is
 * in one block with the item. A NULL stays NULL: a copy of a tombstone with an empty value would
 * delete nothing, and a message with an empty key has a partition of its own.
 *
 * With the order NONE a message has a header with its first position, and its copies keep the
 * header: in the retry topic, among the dead letters, and put back from there. So its position is
 * the same at each delivery, although the copy stands elsewhere. `from` is the topic, of a retry
 * too: it is part of the name that a handler knows the message by (ce-source).
 */
#include "source.h"

#include "base/span.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define POSITION_MAX (HAPAX__KAFKA_TOPIC_MAX + 1 + 11 + 1 + 20 + 1)

static struct hapax_span span_of(const void *ptr, size_t len)
{
    return (struct hapax_span){ptr, ptr ? len : 0};
}

static const struct hapax_message_header *find(const struct hapax_message *message,
                                               const char *name)
{
    for (size_t i = 0; i < message->header_count; i++)
        if (hapax__is(message->headers[i].name, name))
            return &message->headers[i];
    return NULL;
}

static void set_headers(struct hapax__kafka_item *item, struct hapax_message_header *out,
                        const rd_kafka_headers_t *from, size_t count, const char *except)
{
    struct hapax_message *m = &item->delivered.message;
    const char *name;
    const void *value;
    size_t len;

    m->headers = out;
    for (size_t i = 0; i < count; i++) {
        if (rd_kafka_header_get_all(from, i, &name, &value, &len) != RD_KAFKA_RESP_ERR_NO_ERROR)
            break;
        if (except && strcmp(name, except) == 0)
            continue;
        out[m->header_count++] =
            (struct hapax_message_header){hapax_str(name), span_of(value, len)};
    }
}

/* Sets where the message stands, or where the message stood that it is a copy of. */
static void set_position(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part,
                         struct hapax__kafka_item *item, char *text,
                         struct hapax_message_header *slot)
{
    struct hapax_message *m = &item->delivered.message;
    rd_kafka_headers_t *headers = NULL;
    const void *before = NULL;
    size_t len = 0;

    if (rd_kafka_message_headers(item->raw, &headers) == RD_KAFKA_RESP_ERR_NO_ERROR)
        (void)rd_kafka_header_get_last(headers, HAPAX__KAFKA_POSITION, &before, &len);
    if (before && len < POSITION_MAX)
        memcpy(text, before, len);
    else
        len = (size_t)snprintf(text, POSITION_MAX, "%s/%" PRId32 "/%" PRId64,
                               hapax__kafka_topic_of(s, part), part->number, item->raw->offset);
    m->position = span_of(text, len);
    if (s->order == HAPAX_ORDER_NONE) {
        *slot = (struct hapax_message_header){hapax_str(HAPAX__KAFKA_POSITION), m->position};
        m->header_count++;
    }
}

/* Messages without a key have no order: producers spread them over the partitions. */
static void set_order(const struct hapax__kafka_source *s, const struct hapax__kafka_part *part,
                      struct hapax__kafka_item *item, uint8_t *bytes)
{
    size_t key_len = s->order == HAPAX_ORDER_KEY ? item->raw->key_len : 0;

    if (s->order == HAPAX_ORDER_NONE || (s->order == HAPAX_ORDER_KEY && !item->raw->key))
        return;
    memcpy(bytes, &part->number, sizeof(part->number));
    if (key_len > 0)
        memcpy(bytes + sizeof(part->number), item->raw->key, key_len);
    item->delivered.order = (struct hapax_span){bytes, sizeof(part->number) + key_len};
}

static void set_rest(const struct hapax__kafka_source *s, struct hapax__kafka_item *item)
{
    const rd_kafka_message_t *raw = item->raw;
    struct hapax_message *m = &item->delivered.message;
    const struct hapax_message_header *header;
    rd_kafka_timestamp_type_t kind;
    int64_t ms = rd_kafka_message_timestamp(raw, &kind);

    m->body = span_of(raw->payload, raw->len);
    m->key = span_of(raw->key, raw->key_len);
    m->from = hapax_str(s->uri.topic);
    if (kind != RD_KAFKA_TIMESTAMP_NOT_AVAILABLE && ms > 0 && ms < INT64_MAX / 1000)
        m->time_us = ms * 1000;
    header = find(m, "content-type");
    m->content_type = header ? header->value : hapax_str("");
    header = find(m, "message-id");
    m->id = header ? header->value : hapax_str("");
    m->type = hapax_str("");
}

struct hapax__kafka_item *hapax__kafka_item_new(const struct hapax__kafka_source *s,
                                                struct hapax__kafka_part *part,
                                                rd_kafka_message_t *raw)
{
    rd_kafka_headers_t *headers = NULL;
    size_t count = 0, table, order_max = sizeof(part->number) + raw->key_len;
    struct hapax_message_header *out;
    struct hapax__kafka_item *item;
    const char *damaged = NULL;

    switch (rd_kafka_message_headers(raw, &headers)) {
    case RD_KAFKA_RESP_ERR_NO_ERROR:
        count = rd_kafka_header_cnt(headers);
        break;
    case RD_KAFKA_RESP_ERR__NOENT:
        break;
    default:
        damaged = HAPAX__HEADERS_UNREAD;
    }
    if (count > HAPAX__HEADERS_READ_MAX) {
        damaged = HAPAX__HEADERS_MANY;
        count = HAPAX__HEADERS_READ_MAX;
    }
    table = (count + 1) * sizeof(*out);
    item = calloc(1, sizeof(*item) + table + POSITION_MAX + order_max);
    if (!item)
        return NULL;
    out = (struct hapax_message_header *)(item + 1);
    item->part = part;
    item->raw = raw;
    item->delivered.damaged = damaged;
    set_headers(item, out, headers, count,
                s->order == HAPAX_ORDER_NONE ? HAPAX__KAFKA_POSITION : NULL);
    set_position(s, part, item, (char *)out + table, out + item->delivered.message.header_count);
    set_order(s, part, item, (uint8_t *)out + table + POSITION_MAX);
    set_rest(s, item);
    return item;
}

void hapax__kafka_item_free(struct hapax__kafka_item *item)
{
    assert(!item->lent);
    rd_kafka_message_destroy(item->raw);
    free(item);
}

int64_t hapax__kafka_item_due(const struct hapax__kafka_item *item)
{
    const struct hapax_message_header *header = find(&item->delivered.message, HAPAX__KAFKA_DUE);
    int64_t due_ms = 0;

    if (!header || header->value.len == 0 || header->value.len > 15)
        return 0;
    for (size_t i = 0; i < header->value.len; i++) {
        if (header->value.ptr[i] < '0' || header->value.ptr[i] > '9')
            return 0;
        due_ms = due_ms * 10 + (header->value.ptr[i] - '0');
    }
    return due_ms;
}
