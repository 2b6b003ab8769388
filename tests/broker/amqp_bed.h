/* SPDX-License-Identifier: Apache-2.0
 *
 * A RabbitMQ source and sink, driven as the loop drives them, and a connection of the test's own
 * that works on their queues. Any failure ends the program.
 */
#ifndef HAPAX_TESTS_BROKER_AMQP_BED_H
#define HAPAX_TESTS_BROKER_AMQP_BED_H

#include "../must.h"
#include "base/clock.h"
#include "broker/amqp/uri.h"
#include "broker/sink.h"
#include "broker/source.h"

#include "broker/amqp/library.h"
#include <poll.h>
#include <stdarg.h>
#include <string.h>

#define PATIENCE_MS 60000

/* ---- the test's own connection ----------------------------------------------------------- */

static inline amqp_connection_state_t admin_open(const char *where)
{
    amqp_connection_state_t state = amqp_new_connection();
    struct hapax__amqp_uri uri;
    char text[HAPAX_TEXT_MAX];

    must(hapax__amqp_uri(&uri, where, text) == HAPAX_ERR_NONE);
    must(amqp_socket_open(amqp_tcp_socket_new(state), uri.host, uri.port) == AMQP_STATUS_OK);
    must(amqp_login(state, uri.vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, uri.user, uri.password)
             .reply_type == AMQP_RESPONSE_NORMAL);
    must(amqp_channel_open(state, 1));
    return state;
}

static inline void admin_close(amqp_connection_state_t state)
{
    (void)amqp_connection_close(state, AMQP_REPLY_SUCCESS);
    (void)amqp_destroy_connection(state);
}

static inline amqp_table_entry_t argument(const char *name, const char *text)
{
    return (amqp_table_entry_t){
        .key = amqp_cstring_bytes(name),
        .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(text)}};
}

static inline amqp_table_entry_t argument_number(const char *name, int64_t number)
{
    return (amqp_table_entry_t){.key = amqp_cstring_bytes(name),
                                .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = number}};
}

static inline void make_queue(amqp_connection_state_t admin, const char *name,
                              amqp_table_entry_t *arguments, int count)
{
    amqp_table_t table = {.num_entries = count, .entries = arguments};

    must(amqp_queue_declare(admin, 1, amqp_cstring_bytes(name), 0, 1, 0, 0, table));
}

static inline void delete_queue(amqp_connection_state_t admin, const char *name)
{
    must(amqp_queue_delete(admin, 1, amqp_cstring_bytes(name), 0, 0));
}

/* How many messages wait in a queue. */
static inline uint32_t waiting(amqp_connection_state_t admin, const char *name)
{
    amqp_queue_declare_ok_t *ok =
        amqp_queue_declare(admin, 1, amqp_cstring_bytes(name), 1, 1, 0, 0, amqp_empty_table);

    must(ok);
    return ok->message_count;
}

/* Waits until so many messages wait in a queue. What a closed source had in its hands comes back
 * only when the broker has taken the source's channel down, which nobody is told of. */
static inline void wait_for(amqp_connection_state_t admin, const char *name, uint32_t count)
{
    int64_t end_us = hapax__monotonic_us() + PATIENCE_MS * 1000LL;

    while (waiting(admin, name) != count) {
        must(hapax__monotonic_us() < end_us);
        (void)poll(NULL, 0, 10);
    }
}

static inline void put_with(amqp_connection_state_t admin, const char *queue, const void *body,
                            size_t len, amqp_basic_properties_t *properties)
{
    amqp_bytes_t bytes = {.len = len, .bytes = (void *)(uintptr_t)body};

    properties->_flags |= AMQP_BASIC_DELIVERY_MODE_FLAG;
    properties->delivery_mode = 2;
    must(amqp_basic_publish(admin, 1, amqp_empty_bytes, amqp_cstring_bytes(queue), 0, 0, properties,
                            bytes) == AMQP_STATUS_OK);
}

static inline void put(amqp_connection_state_t admin, const char *queue, const char *body)
{
    amqp_basic_properties_t properties = {0};

    put_with(admin, queue, body, strlen(body), &properties);
}

/* ---- source and sink --------------------------------------------------------------------- */

struct bed {
    struct hapax__source *source;
    struct hapax__sink *sink;
    size_t room;
    enum hapax_error error; /* of the last pump() */
};

/* One turn of the loop: waits until something is ready or due, for 100 ms at most. */
static inline void turn(struct bed *bed)
{
    struct pollfd fds[2 * HAPAX__POLLFDS_MAX];
    int64_t due_us = hapax__monotonic_us() + 100000, at_us, left_us;
    size_t n = 0;

    if (bed->source) {
        n += bed->source->type->watch(bed->source, fds, &at_us);
        due_us = at_us < due_us ? at_us : due_us;
    }
    if (bed->sink) {
        n += bed->sink->type->watch(bed->sink, fds + n, &at_us);
        due_us = at_us < due_us ? at_us : due_us;
    }
    left_us = due_us - hapax__monotonic_us();
    (void)poll(fds, (nfds_t)n, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
    if (bed->source)
        bed->error = bed->source->type->pump(bed->source, bed->room);
    if (bed->sink)
        bed->sink->type->pump(bed->sink);
}

/* Turns until the claim holds, or the source is refused. */
#define turn_until(bed, claim)                                                                     \
    do {                                                                                           \
        int64_t turn_end_us = hapax__monotonic_us() + PATIENCE_MS * INT64_C(1000);                 \
        while (!(claim)) {                                                                         \
            must(hapax__monotonic_us() < turn_end_us);                                             \
            turn(bed);                                                                             \
        }                                                                                          \
    } while (0)

static inline struct hapax__source *source_at(uint32_t in_hand_max, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static inline struct hapax__source *source_at(uint32_t in_hand_max, const char *format, ...)
{
    static char uri[8][512]; /* texts are borrowed */
    static unsigned next;
    struct hapax_consumer consumer = {.from = uri[next % 8], .in_hand_max = in_hand_max};
    struct hapax__source *source;
    char text[HAPAX_TEXT_MAX] = "";
    va_list args;

    va_start(args, format);
    (void)vsnprintf(uri[next++ % 8], sizeof(uri[0]), format, args);
    va_end(args);
    if (hapax__source_amqp.open(&source, &consumer, text) != HAPAX_ERR_NONE)
        fprintf(stderr, "%s\n", text);
    must(text[0] == '\0');
    return source;
}

static inline struct hapax__sink *sink_at(const char *uri)
{
    struct hapax__sink *sink;
    char text[HAPAX_TEXT_MAX] = "";

    must(hapax__sink_amqp.open(&sink, uri, text) == HAPAX_ERR_NONE);
    return sink;
}

/* Waits for the next message. */
static inline struct hapax__delivered *take(struct bed *bed)
{
    struct hapax__delivered *delivered = NULL;

    turn_until(bed, (delivered = bed->source->type->take(bed->source)) != NULL);
    return delivered;
}

static inline bool is_text(struct hapax_span span, const char *text)
{
    return span.len == strlen(text) && memcmp(span.ptr, text, span.len) == 0;
}

/* The value of a header. An empty span with a NULL pointer: the header is missing. */
static inline struct hapax_span header(const struct hapax__delivered *delivered, const char *name)
{
    for (size_t i = 0; i < delivered->message.header_count; i++)
        if (is_text(delivered->message.headers[i].name, name))
            return delivered->message.headers[i].value;
    return (struct hapax_span){NULL, 0};
}

/* Sends a letter and waits for its result. */
static inline enum hapax__sent send_letter(struct bed *bed, const struct hapax__letter *letter)
{
    enum hapax__sent sent = HAPAX__SENT_NOTHING;
    void *tag;

    must(bed->sink->type->send(bed->sink, letter));
    turn_until(bed, (sent = bed->sink->type->reap(bed->sink, &tag)) != HAPAX__SENT_NOTHING);
    must(tag == letter->tag);
    return sent;
}

static inline enum hapax__sent send_text(struct bed *bed, const char *to, const char *body,
                                         int64_t delay_ms)
{
    struct hapax__letter letter = {.to = to, .body = hapax_str(body), .delay_ms = delay_ms};

    return send_letter(bed, &letter);
}

#endif
