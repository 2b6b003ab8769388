/* SPDX-License-Identifier: Apache-2.0
 *
 * An SQS source and sink, driven as the loop drives them. The sink makes and fills the queues. Any
 * failure ends the program.
 */
#ifndef HAPAX_TESTS_BROKER_SQS_BED_H
#define HAPAX_TESTS_BROKER_SQS_BED_H

#include "../must.h"
#include "base/clock.h"
#include "broker/sink.h"
#include "broker/source.h"

#include <string.h>

#define PATIENCE_US INT64_C(60000000)

struct bed {
    char where[512]; /* the source's URI, borrowed by the source */
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
    n += bed->sink->type->watch(bed->sink, fds + n, &at_us);
    due_us = at_us < due_us ? at_us : due_us;
    left_us = due_us - hapax__monotonic_us();
    (void)poll(fds, (nfds_t)n, left_us > 0 ? (int)((left_us + 999) / 1000) : 0);
    if (bed->source)
        bed->error = bed->source->type->pump(bed->source, bed->room);
    bed->sink->type->pump(bed->sink);
}

#define turn_until(bed, claim)                                                                     \
    do {                                                                                           \
        int64_t turn_end_us = hapax__monotonic_us() + PATIENCE_US;                                 \
        while (!(claim)) {                                                                         \
            must(hapax__monotonic_us() < turn_end_us);                                             \
            turn(bed);                                                                             \
        }                                                                                          \
    } while (0)

static inline void turn_for(struct bed *bed, int64_t us)
{
    int64_t end_us = hapax__monotonic_us() + us;

    turn_until(bed, hapax__monotonic_us() >= end_us);
}

/* base: "sqs://REGION?endpoint=…". more: parameters of the source, each with its '&'. */
static inline void open_source(struct bed *bed, const char *base, const char *queue,
                               const char *more)
{
    struct hapax_consumer consumer = {.from = bed->where, .in_hand_max = 40};
    char text[HAPAX_TEXT_MAX] = "";
    size_t len = strcspn(base, "?");

    (void)snprintf(bed->where, sizeof(bed->where), "%.*s/%s%s&wait=1s%s", (int)len, base, queue,
                   base + len, more);
    if (hapax__source_sqs.open(&bed->source, &consumer, text) != HAPAX_ERR_NONE)
        fprintf(stderr, "%s\n", text);
    must(text[0] == '\0');
    bed->room = 40;
}

static inline struct hapax__sink *sink_at(const char *base)
{
    struct hapax__sink *sink;
    char text[HAPAX_TEXT_MAX] = "";

    must(hapax__sink_sqs.open(&sink, base, text) == HAPAX_ERR_NONE);
    return sink;
}

static inline void open_sink(struct bed *bed, const char *base)
{
    memset(bed, 0, sizeof(*bed));
    bed->sink = sink_at(base);
}

static inline void close_source(struct bed *bed)
{
    bed->source->type->close(bed->source, PATIENCE_US / 1000);
    bed->source = NULL;
}

static inline void close_bed(struct bed *bed)
{
    if (bed->source)
        close_source(bed);
    bed->sink->type->close(bed->sink);
}

/* Waits for the next message. */
static inline struct hapax__delivered *take(struct bed *bed)
{
    struct hapax__delivered *delivered = NULL;

    turn_until(bed, (delivered = bed->source->type->take(bed->source)) != NULL);
    return delivered;
}

static inline void release(struct bed *bed, struct hapax__delivered *delivered,
                           enum hapax__release how)
{
    bed->source->type->release(bed->source, delivered, how);
}

static inline bool is_text(struct hapax_span span, const char *text)
{
    return span.len == strlen(text) && memcmp(span.ptr, text, span.len) == 0;
}

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

static inline enum hapax__sent send_text(struct bed *bed, const char *to, const char *group,
                                         const char *body)
{
    struct hapax__letter letter = {
        .to = to, .body = hapax_str(body), .id = hapax_str(body), .key = hapax_str(group)};

    return send_letter(bed, &letter);
}

#endif
