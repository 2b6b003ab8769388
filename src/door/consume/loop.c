/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop. It waits for hands that are back, for the source, the sink, the stop, and the nearest timer, and brings
 * each to the course of the deliveries (course.c). It waits for events alone: there is no pause that an event does
 * not end, and no turn without one.
 *
 * What it keeps: source and sink are touched by this thread alone; hands are given no more than they can begin at
 * once, so that what has not begun is still the loop's to give back. The end is bounded but for handlers: those are
 * waited for, and told to hurry, for a thread cannot be taken back from foreign code.
 */
#include "loop.h"

#include "base/clock.h"
#include "base/time.h"
#include "course.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXTEND_US     (5000 * US_PER_MS)
#define GRACE_US      (5000 * US_PER_MS) /* for letters, when all else is over */
#define CLOSE_WAIT_MS 5000

enum broker_seen { NOT_SEEN, CONNECTED, AWAY };

struct loop {
    const struct hapax__loop_parts *parts;
    struct hapax__course course;
    struct hapax__hands *hands;
    int64_t extend_us;
    uint64_t voided; /* the source's count, as last seen */
    bool had_room; /* as the source was told at its last pump() */
    enum broker_seen broker;
    bool told_ready;
    int64_t drain_until_us; /* then handlers are told to hurry */
    int64_t quiet_us; /* draining: when the last hand came back */
    enum hapax_error error;
    char *text;
};

static void take_answers(struct loop *loop)
{
    struct hapax__entry *entry = hapax__hands_reap(loop->hands);

    while (entry) {
        struct hapax__entry *next = entry->next;

        hapax__course_answered(&loop->course, entry);
        loop->quiet_us = loop->course.now_us;
        entry = next;
    }
}

static void dispatch(struct loop *loop)
{
    struct hapax__entry *entry;

    while (loop->course.running < loop->parts->consumer->concurrency &&
           (entry = hapax__course_next(&loop->course)))
        hapax__hands_give(loop->hands, entry);
}

static void take(struct loop *loop)
{
    struct hapax__delivered *delivered;

    /* What the source was told at its last pump() is what it may be asked for. */
    for (size_t left = loop->had_room ? hapax__course_room(&loop->course) : 0; left > 0; left--) {
        delivered = loop->parts->source_type->take(loop->parts->source);
        if (!delivered)
            return;
        hapax__course_take(&loop->course, delivered);
    }
}

/* Once in its life. */
static void tell_ready(struct loop *loop)
{
    int fd = loop->parts->consumer->ready_fd;
    uint64_t one = 1;

    if (fd < 0 || loop->told_ready)
        return;
    loop->told_ready = true;
    if (write(fd, &one, sizeof(one)) < 0)
        hapax__course_say(&loop->course, "ready_fd cannot be written to: %s", strerror(errno));
}

static void see_source(struct loop *loop)
{
    const struct hapax__source *source = loop->parts->source;
    struct hapax_consumer_stats *stats = loop->course.stats;

    __atomic_store_n(&stats->connected, source->connected, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->reconnects, source->reconnects, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->voided, source->voided, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->lag, source->lag, __ATOMIC_RELAXED);
    if (source->connected && loop->broker != CONNECTED) {
        loop->broker = CONNECTED;
        tell_ready(loop);
        hapax__course_say(&loop->course, "connected, taking from \"%s\"", source->name);
    } else if (!source->connected &&
               (loop->broker == CONNECTED || (loop->broker == NOT_SEEN && source->text[0]))) {
        loop->broker = AWAY;
        hapax__course_say(&loop->course, "the broker is away: %s", source->text);
    }
    if (loop->voided != source->voided) {
        loop->voided = source->voided;
        hapax__course_voided(&loop->course);
    }
}

static void drain(struct loop *loop)
{
    if (loop->course.draining)
        return;
    __atomic_store_n(&loop->course.stats->draining, true, __ATOMIC_RELAXED);
    loop->quiet_us = loop->course.now_us;
    loop->drain_until_us = loop->course.now_us + loop->parts->consumer->drain_ms * US_PER_MS;
    hapax__course_say(
        &loop->course, "stopping: %u messages in hand, %llu of them with the handler",
        loop->course.inhand.count,
        (unsigned long long)__atomic_load_n(&loop->course.stats->running, __ATOMIC_RELAXED));
    hapax__course_drain(&loop->course);
}

static void pump_source(struct loop *loop)
{
    size_t left = hapax__course_room(&loop->course);
    enum hapax_error error;

    loop->course.settled = false;
    loop->had_room = left > 0;
    error = loop->parts->source_type->pump(loop->parts->source, left);
    if (error != HAPAX_ERR_NONE && loop->error == HAPAX_ERR_NONE) {
        loop->error = error;
        snprintf(loop->text, HAPAX_TEXT_MAX, "%s", loop->parts->source->text);
        drain(loop);
    }
    see_source(loop);
}

/* What came free in the sink is filled at once: no event would tell of it. */
static void pump_sink(struct loop *loop)
{
    hapax__course_send(&loop->course);
    loop->course.sent = false;
    loop->parts->sink_type->pump(loop->parts->sink);
    hapax__course_reap(&loop->course);
    hapax__course_send(&loop->course);
}

static void extend(struct loop *loop)
{
    if (loop->course.now_us < loop->extend_us || !loop->parts->source_type->extend)
        return;
    loop->extend_us = loop->course.now_us + EXTEND_US;
    for (struct hapax__entry *entry = loop->course.inhand.all; entry; entry = entry->after_it)
        if (!entry->delivered->voided)
            loop->parts->source_type->extend(loop->parts->source, entry->delivered);
}

/* ---- events ---------------------------------------------------------------------------- */

struct events {
    struct pollfd fds[2 + 2 * HAPAX__POLLFDS_MAX];
    size_t source_fds, sink_fds;
    int64_t source_due_us, sink_due_us;
};

/* When there is something to do without any event. */
static int64_t due(const struct loop *loop, const struct events *events)
{
    int64_t due_us = hapax__least(events->source_due_us, events->sink_due_us);

    if (loop->course.settled || loop->course.sent)
        return 0;
    due_us = hapax__least(due_us, hapax__inhand_due(&loop->course.inhand));
    if (loop->parts->source_type->extend && loop->course.inhand.count > 0)
        due_us = hapax__least(due_us, loop->extend_us);
    if (!loop->course.draining)
        return due_us;
    if (loop->course.now_us < loop->drain_until_us)
        return hapax__least(due_us, loop->drain_until_us);
    if (loop->course.running > 0)
        return due_us;
    return hapax__least(
        due_us,
        GRACE_US + (loop->quiet_us > loop->drain_until_us ? loop->quiet_us : loop->drain_until_us));
}

static void wait_until(struct events *events, int64_t due_us)
{
    struct timespec timeout = hapax__timespec(due_us - hapax__monotonic_us());

    if (ppoll(events->fds, 2 + events->source_fds + events->sink_fds,
              due_us == INT64_MAX ? NULL : &timeout, NULL) < 0) {
        assert(errno == EINTR || errno == ENOMEM);
        for (size_t i = 0; i < 2 + events->source_fds + events->sink_fds; i++)
            events->fds[i].revents = 0;
    }
}

/* What the next word of the program's comes by: stop, then hurry. */
static int told_fd(const struct loop *loop)
{
    const struct hapax_consumer *consumer = loop->parts->consumer;

    if (!loop->course.draining)
        return consumer->stop_fd;
    return loop->course.now_us < loop->drain_until_us ? consumer->hurry_fd : -1;
}

static void wait_for_events(struct loop *loop, struct events *events)
{
    const struct hapax__loop_parts *parts = loop->parts;
    struct pollfd *fds = events->fds;

    memset(events, 0, sizeof(*events));
    events->source_due_us = events->sink_due_us = INT64_MAX;
    fds[0] = (struct pollfd){.fd = hapax__hands_fd(loop->hands), .events = POLLIN};
    fds[1] = (struct pollfd){.fd = told_fd(loop), .events = POLLIN};
    events->source_fds = parts->source_type->watch(parts->source, fds + 2, &events->source_due_us);
    assert(events->source_fds <= HAPAX__POLLFDS_MAX);
    events->sink_fds =
        parts->sink_type->watch(parts->sink, fds + 2 + events->source_fds, &events->sink_due_us);
    assert(events->sink_fds <= HAPAX__POLLFDS_MAX);
    wait_until(events, due(loop, events));
    loop->course.now_us = hapax__monotonic_us();
}

static bool any(const struct pollfd *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i].revents)
            return true;
    return false;
}

static void take_events(struct loop *loop, const struct events *events)
{
    const struct pollfd *source_fds = events->fds + 2;

    take_answers(loop);
    hapax__course_see_claims(&loop->course);
    if (events->fds[1].revents && loop->course.draining)
        loop->drain_until_us = loop->course.now_us;
    else if (events->fds[1].revents)
        drain(loop);
    hapax__course_wake(&loop->course);
    dispatch(loop);
    if (loop->course.settled || any(source_fds, events->source_fds) ||
        events->source_due_us <= loop->course.now_us ||
        loop->had_room != (hapax__course_room(&loop->course) > 0))
        pump_source(loop);
    take(loop);
    dispatch(loop);
    if (loop->course.sent || loop->course.to_send.first ||
        any(source_fds + events->source_fds, events->sink_fds) ||
        events->sink_due_us <= loop->course.now_us)
        pump_sink(loop);
    extend(loop);
}

/* Whether there is nothing left to wait for; handlers are waited for however long they take. */
static bool over(struct loop *loop)
{
    if (!loop->course.draining || loop->course.running > 0)
        return false;
    return loop->course.inhand.count == 0 ||
           (loop->course.now_us >= loop->drain_until_us + GRACE_US &&
            loop->course.now_us >= loop->quiet_us + GRACE_US);
}

static void run(struct loop *loop)
{
    struct events events;

    memset(&events, 0, sizeof(events));
    while (!over(loop)) {
        wait_for_events(loop, &events);
        take_events(loop, &events);
        if (loop->course.draining && loop->course.now_us >= loop->drain_until_us)
            atomic_store(&loop->parts->work->hurry, true);
    }
}

/* ---- beginning and end ------------------------------------------------------------------- */

/* Letters that are not confirmed may be published all the same: their messages are delivered again, and find their
 * records. The sink goes first, for it borrows what the source keeps. */
static void close_all(struct loop *loop)
{
    const struct hapax__loop_parts *parts = loop->parts;

    hapax__hands_close(loop->hands);
    parts->sink_type->close(parts->sink);
    if (loop->course.inhand.count > 0)
        hapax__course_say(&loop->course,
                          "stopped with %u letters not confirmed: their messages will come again",
                          loop->course.inhand.count);
    hapax__course_end(&loop->course);
    hapax__inhand_close(&loop->course.inhand);
    parts->source_type->close(parts->source, CLOSE_WAIT_MS);
    __atomic_store_n(&loop->course.stats->connected, false, __ATOMIC_RELAXED);
}

enum hapax_error hapax__loop_run(const struct hapax__loop_parts *parts, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_consumer *consumer = parts->consumer;
    struct loop loop = {
        .parts = parts,
        .course = {.parts = parts, .stats = parts->work->stats, .random = parts->work->seed},
        .text = text,
    };
    enum hapax_error error = HAPAX_ERR_NOMEM;

    loop.course.now_us = hapax__monotonic_us();
    loop.extend_us = loop.course.now_us + EXTEND_US;
    loop.course.settled = true; /* pump first of all */
    loop.course.sent = true;
    loop.course.by_broker = parts->source_type->delays && consumer->order == HAPAX_ORDER_NONE;
    if (hapax__inhand_open(&loop.course.inhand, consumer->in_hand_max, parts->work->seed) ==
        HAPAX_ERR_NONE)
        error = hapax__hands_open(&loop.hands, parts->work);
    if (error == HAPAX_ERR_NONE) {
        parts->sink_type->make(parts->sink, parts->dead_letters);
        if (consumer->unknown == HAPAX_UNKNOWN_PARK)
            parts->sink_type->make(parts->sink, parts->parked);
        if (consumer->in_flight == HAPAX_IN_FLIGHT_REQUEUE)
            hapax__course_say(
                &loop.course,
                "in_flight is requeue: each message given back counts for a delivery limit of "
                "the queue, which then drops it or dead-letters it: let it have none");
        run(&loop);
        error = loop.error;
    } else {
        snprintf(text, HAPAX_TEXT_MAX, "cannot start the consumer: out of memory or threads");
    }
    close_all(&loop);
    return error;
}
