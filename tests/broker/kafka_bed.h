/* SPDX-License-Identifier: Apache-2.0
 *
 * A loop for tests of the Kafka source and sink: it drives members of a group together in one
 * thread, counts what they delivered, and publishes letters into a topic. The test's own `handle`
 * releases deliveries. Nothing of the door's loop is used.
 */
#ifndef HAPAX_TESTS_BROKER_KAFKA_BED_H
#define HAPAX_TESTS_BROKER_KAFKA_BED_H

#include "../must.h"
#include "base/clock.h"
#include "broker/sink.h"
#include "broker/source.h"

#include <poll.h>
#include <string.h>

#define MEMBERS  4
#define KEPT_MAX 20000
#define SECONDS  INT64_C(1000000)
#define DEADLINE (90 * SECONDS)
#define CLOSE_MS 60000
#define URI_MAX  1024
/* How often spin() asks `so` without an event. */
#define TICK (SECONDS / 50)

struct member {
    struct hapax__source *source; /* NULL: none */
    size_t room;
    enum hapax_error error;
    struct hapax__delivered *kept[KEPT_MAX]; /* taken, and not released */
    size_t kept_count;
    size_t taken, acked;
};

struct bed {
    const char *broker; /* kafka://HOST:PORT */
    struct member members[MEMBERS];
    struct hapax__sink *sink;
    size_t sent, ok, refused, lost;
    /* Takes a delivery: releases it, or leaves it in `kept`. */
    void (*handle)(struct bed *bed, struct member *member, struct hapax__delivered *delivered);
    void *arg;
};

typedef bool bed_until(struct bed *bed);

/* ---- members ------------------------------------------------------------------------------- */

static inline void log_line(void *arg, const char *line)
{
    (void)arg;
    fprintf(stderr, "# %s\n", line);
}

/* Adds a member of the group that has the topic's name. `more` is appended to the URI. */
static inline struct member *join(struct bed *bed, const char *topic, const char *more,
                                  enum hapax_order order)
{
    struct hapax_consumer consumer = {.order = order, .retry_max_ms = 300000, .log = log_line};
    char uri[URI_MAX], text[HAPAX_TEXT_MAX] = "";
    struct member *member = bed->members;

    while (member->source)
        member++;
    must(member < bed->members + MEMBERS);
    snprintf(uri, sizeof(uri), "%s/%s?group=%s%s", bed->broker, topic, topic, more);
    consumer.from = uri;
    memset(member, 0, sizeof(*member));
    member->room = 1000;
    if (hapax__source_kafka.open(&member->source, &consumer, text) != HAPAX_ERR_NONE)
        fprintf(stderr, "%s: %s\n", uri, text);
    must(member->source);
    return member;
}

static inline void release(struct member *member, size_t index, enum hapax__release how)
{
    struct hapax__delivered *delivered = member->kept[index];

    must(index < member->kept_count);
    memmove(member->kept + index, member->kept + index + 1,
            (member->kept_count - index - 1) * sizeof(member->kept[0]));
    member->kept_count--;
    member->acked += how == HAPAX__RELEASE_ACK && !delivered->voided;
    hapax__source_kafka.release(member->source, delivered, how);
}

static inline void release_all(struct member *member, enum hapax__release how)
{
    while (member->kept_count > 0)
        release(member, member->kept_count - 1, how);
}

static inline void quit(struct member *member, int64_t wait_ms)
{
    if (!member->source)
        return;
    release_all(member, HAPAX__RELEASE_RETURN);
    hapax__source_kafka.close(member->source, wait_ms);
    member->source = NULL;
}

static inline bool is_assigned(const struct member *member)
{
    return member->source->connected && member->source->lag >= 0;
}

/* The number that publish() wrote. */
static inline int number_of(const struct hapax__delivered *delivered)
{
    struct hapax_span body = delivered->message.body;
    int n = 0;

    must(body.len > 0 && body.len < 9);
    for (size_t i = 0; i < body.len; i++)
        n = n * 10 + (body.ptr[i] - '0');
    return n;
}

/* ---- the loop ------------------------------------------------------------------------------ */

static inline size_t room_of(const struct member *member)
{
    return member->kept_count < member->room ? member->room - member->kept_count : 0;
}

static inline void turn(struct bed *bed, struct member *member)
{
    struct hapax__delivered *delivered;

    if (hapax__source_kafka.pump(member->source, room_of(member)) != HAPAX_ERR_NONE)
        member->error = HAPAX_ERR_REFUSED;
    while (room_of(member) > 0 && (delivered = hapax__source_kafka.take(member->source))) {
        must(!delivered->voided && member->kept_count < KEPT_MAX);
        member->taken++;
        member->kept[member->kept_count++] = delivered;
        bed->handle(bed, member, delivered);
    }
}

static inline void reap(struct bed *bed)
{
    enum hapax__sent sent;
    void *tag;

    if (!bed->sink)
        return;
    hapax__sink_kafka.pump(bed->sink);
    while ((sent = hapax__sink_kafka.reap(bed->sink, &tag)) != HAPAX__SENT_NOTHING) {
        bed->ok += sent == HAPAX__SENT_OK;
        bed->refused += sent == HAPAX__SENT_REFUSED;
        bed->lost += sent == HAPAX__SENT_LOST;
    }
}

static inline void wait_once(struct bed *bed, int64_t until_us)
{
    struct pollfd fds[(MEMBERS + 1) * HAPAX__POLLFDS_MAX];
    size_t n = 0;
    int64_t due_us =
        until_us < hapax__monotonic_us() + TICK ? until_us : hapax__monotonic_us() + TICK;

    for (struct member *member = bed->members; member < bed->members + MEMBERS; member++) {
        int64_t member_us = INT64_MAX;

        if (!member->source)
            continue;
        n += hapax__source_kafka.watch(member->source, fds + n, &member_us);
        due_us = member_us < due_us ? member_us : due_us;
    }
    if (bed->sink) {
        int64_t sink_us = INT64_MAX;

        n += hapax__sink_kafka.watch(bed->sink, fds + n, &sink_us);
        due_us = sink_us < due_us ? sink_us : due_us;
    }
    due_us -= hapax__monotonic_us();
    (void)poll(fds, (nfds_t)n, due_us > 0 ? (int)(due_us / 1000 + 1) : 0);
}

/* Drives all members until `so` is true. False: the time is over. */
static inline bool spin(struct bed *bed, bed_until *so, int64_t within_us)
{
    int64_t until_us = hapax__monotonic_us() + within_us;

    for (;;) {
        for (struct member *member = bed->members; member < bed->members + MEMBERS; member++)
            if (member->source)
                turn(bed, member);
        reap(bed);
        if (so && so(bed))
            return true;
        if (hapax__monotonic_us() >= until_us)
            return false;
        /* A release in the handler makes room at once. */
        wait_once(bed, until_us);
    }
}

/* ---- letters ------------------------------------------------------------------------------- */

static inline bool all_reported(struct bed *bed)
{
    return bed->ok + bed->refused + bed->lost == bed->sent;
}

static inline void open_sink(struct bed *bed, const char *more)
{
    char uri[URI_MAX], text[HAPAX_TEXT_MAX];

    snprintf(uri, sizeof(uri), "%s%s", bed->broker, more);
    must(hapax__sink_kafka.open(&bed->sink, uri, text) == HAPAX_ERR_NONE);
}

static inline void send_letter(struct bed *bed, const struct hapax__letter *letter)
{
    int64_t until_us = hapax__monotonic_us() + DEADLINE;

    while (!hapax__sink_kafka.send(bed->sink, letter)) {
        must(hapax__monotonic_us() < until_us);
        wait_once(bed, hapax__monotonic_us() + SECONDS / 100);
        reap(bed);
    }
    bed->sent++;
}

/* Publishes n letters whose bodies are the numbers from `first` on. `keys`: how many keys they
 * share (0: no keys). */
static inline void publish(struct bed *bed, const char *topic, int first, int n, int keys)
{
    for (int i = first; i < first + n; i++) {
        struct hapax__letter letter = {.to = topic};
        char body[16], key[16];

        snprintf(body, sizeof(body), "%d", i);
        snprintf(key, sizeof(key), "k%d", keys > 0 ? i % keys : 0);
        letter.body = hapax_str(body);
        if (keys > 0)
            letter.key = hapax_str(key);
        send_letter(bed, &letter);
    }
}

static inline void publish_and_wait(struct bed *bed, const char *topic, int first, int n, int keys)
{
    publish(bed, topic, first, n, keys);
    must(spin(bed, all_reported, DEADLINE));
    must(bed->refused == 0 && bed->lost == 0);
}

#endif
