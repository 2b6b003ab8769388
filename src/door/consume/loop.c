/* SPDX-License-Identifier: Apache-2.0
 *
 * The loop. It waits for entries that come back from the hands, for the source, the sink, the stop
 * and the nearest timer, and brings each event to the deliveries (deliveries.c). It waits for
 * events alone: an event ends every pause, and no turn is without an event, but for one each second
 * while the store is dead.
 *
 * Invariant: only this thread touches the source and the sink. The hands get no more than they can
 * begin at once, so what has not begun is still the loop's to give back. The end is bounded, but
 * for handlers: the loop waits for them and tells them to hurry, since a thread cannot be taken
 * back from foreign code.
 */
#include "loop.h"

#include "base/clock.h"
#include "base/time.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXTEND_US     (5000 * US_PER_MS)
#define LOOK_US       (1000 * US_PER_MS) /* at a store that is dead, without an event */
#define GRACE_US      (5000 * US_PER_MS) /* for letters, when all else is over */
#define CLOSE_WAIT_MS 5000

enum broker_seen { NOT_SEEN, CONNECTED, AWAY };

struct loop {
    const struct hapax__loop_parts *parts;
    struct hapax__deliveries deliveries;
    struct hapax__hands *hands;
    int64_t extend_us;
    uint64_t voided; /* the source's count, as last seen */
    bool had_room; /* the source's last pump() was given room */
    enum broker_seen broker;
    bool told_ready;
    int64_t drain_until_us; /* after this, handlers are told to hurry */
    int64_t quiet_us; /* when the last entry came back from the hands */
    enum hapax_error error;
    char *text;
};

static void take_answers(struct loop *loop)
{
    struct hapax__entries back;
    struct hapax__entry *entry;

    hapax__hands_reap(loop->hands, &back);
    while ((entry = STAILQ_FIRST(&back))) {
        STAILQ_REMOVE_HEAD(&back, next);
        hapax__deliveries_answered(&loop->deliveries, entry);
        loop->quiet_us = loop->deliveries.now_us;
    }
}

static void dispatch(struct loop *loop)
{
    struct hapax__entry *entry;

    while (loop->deliveries.running < loop->parts->consumer->concurrency &&
           (entry = hapax__deliveries_next(&loop->deliveries)))
        hapax__hands_give(loop->hands, entry);
}

static void take(struct loop *loop)
{
    struct hapax__delivered *delivered;

    /* The source gives messages only where its last pump() was told of room. */
    for (size_t left = loop->had_room ? hapax__deliveries_room(&loop->deliveries) : 0; left > 0;
         left--) {
        delivered = loop->parts->source_type->take(loop->parts->source);
        if (!delivered)
            return;
        hapax__deliveries_take(&loop->deliveries, delivered);
    }
}

/* Once in the life of the loop. */
static void tell_ready(struct loop *loop)
{
    int fd = loop->parts->consumer->ready_fd;
    uint64_t one = 1;

    if (fd < 0 || loop->told_ready)
        return;
    loop->told_ready = true;
    if (write(fd, &one, sizeof(one)) < 0)
        hapax__deliveries_log(&loop->deliveries, "ready_fd cannot be written to: %s",
                              strerror(errno));
}

static void see_source(struct loop *loop)
{
    const struct hapax__source *source = loop->parts->source;
    struct hapax_consumer_stats *stats = loop->deliveries.stats;

    __atomic_store_n(&stats->connected, source->connected, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->reconnects, source->reconnects, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->voided, source->voided, __ATOMIC_RELAXED);
    __atomic_store_n(&stats->lag, source->lag, __ATOMIC_RELAXED);
    if (source->connected && loop->broker != CONNECTED) {
        loop->broker = CONNECTED;
        tell_ready(loop);
        hapax__deliveries_log(&loop->deliveries, "connected, taking from \"%s\"", source->name);
    } else if (!source->connected && loop->error == HAPAX_ERR_NONE &&
               (loop->broker == CONNECTED || (loop->broker == NOT_SEEN && source->text[0]))) {
        loop->broker = AWAY;
        hapax__deliveries_log(&loop->deliveries, "the broker is away: %s", source->text);
    }
    if (loop->voided != source->voided) {
        loop->voided = source->voided;
        hapax__deliveries_voided(&loop->deliveries);
    }
}

/* At each turn: a store dies while nothing is taken, and then nobody looks at the source. That it
 * is dead may pass without an event. */
static void see_breaker(struct loop *loop)
{
    __atomic_store_n(&loop->deliveries.stats->store_dead, hapax_store_dead(loop->parts->work->h),
                     __ATOMIC_RELAXED);
}

static void drain(struct loop *loop)
{
    if (loop->deliveries.draining)
        return;
    __atomic_store_n(&loop->deliveries.stats->draining, true, __ATOMIC_RELAXED);
    loop->quiet_us = loop->deliveries.now_us;
    loop->drain_until_us = loop->deliveries.now_us + loop->parts->consumer->drain_ms * US_PER_MS;
    if (loop->error == HAPAX_ERR_NONE || loop->deliveries.inhand.count > 0)
        hapax__deliveries_log(&loop->deliveries,
                              "stopping: %u messages in hand, %llu of them with the handler",
                              loop->deliveries.inhand.count,
                              (unsigned long long)__atomic_load_n(&loop->deliveries.stats->running,
                                                                  __ATOMIC_RELAXED));
    hapax__deliveries_drain(&loop->deliveries);
}

static void pump_source(struct loop *loop)
{
    size_t left = hapax__deliveries_room(&loop->deliveries);
    enum hapax_error error;

    loop->deliveries.released = false;
    loop->had_room = left > 0;
    error = loop->parts->source_type->pump(loop->parts->source, left);
    if (error != HAPAX_ERR_NONE && loop->error == HAPAX_ERR_NONE) {
        loop->error = error;
        snprintf(loop->text, HAPAX_TEXT_MAX, "%s", loop->parts->source->text);
        drain(loop);
    }
    see_source(loop);
}

/* Sends again after reaping: no event follows when the sink has room again. */
static void pump_sink(struct loop *loop)
{
    hapax__deliveries_send(&loop->deliveries);
    loop->deliveries.sent = false;
    loop->parts->sink_type->pump(loop->parts->sink);
    hapax__deliveries_reap(&loop->deliveries);
    hapax__deliveries_send(&loop->deliveries);
}

static void extend(struct loop *loop)
{
    struct hapax__entry *entry;

    if (loop->deliveries.now_us < loop->extend_us || !loop->parts->source_type->extend)
        return;
    loop->extend_us = loop->deliveries.now_us + EXTEND_US;
    TAILQ_FOREACH (entry, &loop->deliveries.inhand.all, in_hand)
        if (!entry->delivered->voided)
            loop->parts->source_type->extend(loop->parts->source, entry->delivered);
}

/* ---- events ---------------------------------------------------------------------------- */

struct events {
    struct pollfd fds[2 + 2 * HAPAX__POLLFDS_MAX];
    size_t source_fds, sink_fds;
    int64_t source_due_us, sink_due_us;
};

/* When there is something to do without an event. */
static int64_t due(const struct loop *loop, const struct events *events)
{
    int64_t due_us = hapax__least(events->source_due_us, events->sink_due_us);

    if (loop->deliveries.released || loop->deliveries.sent)
        return 0;
    due_us = hapax__least(due_us, hapax__deliveries_due(&loop->deliveries));
    if (loop->deliveries.stats->store_dead)
        due_us = hapax__least(due_us, loop->deliveries.now_us + LOOK_US);
    if (loop->parts->source_type->extend && loop->deliveries.inhand.count > 0)
        due_us = hapax__least(due_us, loop->extend_us);
    if (!loop->deliveries.draining)
        return due_us;
    if (loop->deliveries.now_us < loop->drain_until_us)
        return hapax__least(due_us, loop->drain_until_us);
    if (loop->deliveries.running > 0)
        return due_us;
    return hapax__least(due_us, GRACE_US + hapax__most(loop->quiet_us, loop->drain_until_us));
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

/* Where the program's next command comes from: stop, then hurry. */
static int command_fd(const struct loop *loop)
{
    const struct hapax_consumer *consumer = loop->parts->consumer;

    if (!loop->deliveries.draining)
        return consumer->stop_fd;
    return loop->deliveries.now_us < loop->drain_until_us ? consumer->hurry_fd : -1;
}

static void wait_for_events(struct loop *loop, struct events *events)
{
    const struct hapax__loop_parts *parts = loop->parts;
    struct pollfd *fds = events->fds;

    memset(events, 0, sizeof(*events));
    events->source_due_us = events->sink_due_us = INT64_MAX;
    fds[0] = (struct pollfd){.fd = hapax__hands_fd(loop->hands), .events = POLLIN};
    fds[1] = (struct pollfd){.fd = command_fd(loop), .events = POLLIN};
    events->source_fds = parts->source_type->watch(parts->source, fds + 2, &events->source_due_us);
    assert(events->source_fds <= HAPAX__POLLFDS_MAX);
    events->sink_fds =
        parts->sink_type->watch(parts->sink, fds + 2 + events->source_fds, &events->sink_due_us);
    assert(events->sink_fds <= HAPAX__POLLFDS_MAX);
    wait_until(events, due(loop, events));
    loop->deliveries.now_us = hapax__monotonic_us();
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
    see_breaker(loop);
    hapax__deliveries_see_claims(&loop->deliveries);
    if (events->fds[1].revents && loop->deliveries.draining)
        loop->drain_until_us = loop->deliveries.now_us;
    else if (events->fds[1].revents)
        drain(loop);
    hapax__deliveries_wake(&loop->deliveries);
    dispatch(loop);
    if (loop->deliveries.released || any(source_fds, events->source_fds) ||
        events->source_due_us <= loop->deliveries.now_us ||
        loop->had_room != (hapax__deliveries_room(&loop->deliveries) > 0))
        pump_source(loop);
    take(loop);
    dispatch(loop);
    if (loop->deliveries.sent || !STAILQ_EMPTY(&loop->deliveries.to_send) ||
        any(source_fds + events->source_fds, events->sink_fds) ||
        events->sink_due_us <= loop->deliveries.now_us)
        pump_sink(loop);
    extend(loop);
}

/* Whether there is nothing left to wait for. Handlers are waited for, however long they take. */
static bool over(struct loop *loop)
{
    if (!loop->deliveries.draining || loop->deliveries.running > 0)
        return false;
    return loop->deliveries.inhand.count == 0 ||
           (loop->deliveries.now_us >= loop->drain_until_us + GRACE_US &&
            loop->deliveries.now_us >= loop->quiet_us + GRACE_US);
}

static void run(struct loop *loop)
{
    struct events events;

    memset(&events, 0, sizeof(events));
    while (!over(loop)) {
        wait_for_events(loop, &events);
        take_events(loop, &events);
        if (loop->deliveries.draining && loop->deliveries.now_us >= loop->drain_until_us)
            atomic_store(&loop->parts->work->hurry, true);
    }
}

/* ---- beginning and end ------------------------------------------------------------------- */

/* A letter that is not confirmed may have been published. Its message is delivered again, and finds
 * its record. The sink is closed first, since it borrows from the source. */
static void close_all(struct loop *loop)
{
    const struct hapax__loop_parts *parts = loop->parts;

    hapax__hands_close(loop->hands);
    parts->sink_type->close(parts->sink);
    if (loop->deliveries.inhand.count > 0)
        hapax__deliveries_log(
            &loop->deliveries,
            "stopped with %u letters not confirmed: their messages will come again",
            loop->deliveries.inhand.count);
    hapax__deliveries_close(&loop->deliveries);
    parts->source_type->close(parts->source, CLOSE_WAIT_MS);
    __atomic_store_n(&loop->deliveries.stats->connected, false, __ATOMIC_RELAXED);
}

enum hapax_error hapax__loop_run(const struct hapax__loop_parts *parts, char text[HAPAX_TEXT_MAX])
{
    const struct hapax_consumer *consumer = parts->consumer;
    struct loop loop = {
        .parts = parts,
        .deliveries = {.parts = parts, .stats = parts->work->stats, .random = parts->work->seed},
        .text = text,
    };
    enum hapax_error error = HAPAX_ERR_NOMEM;

    loop.deliveries.now_us = hapax__monotonic_us();
    loop.extend_us = loop.deliveries.now_us + EXTEND_US;
    loop.deliveries.released = true; /* pump first of all */
    loop.deliveries.sent = true;
    loop.deliveries.by_broker = parts->source_type->delays && consumer->order == HAPAX_ORDER_NONE;
    if (hapax__deliveries_open(&loop.deliveries) == HAPAX_ERR_NONE)
        error = hapax__hands_open(&loop.hands, parts->work);
    if (error == HAPAX_ERR_NONE) {
        parts->sink_type->make(parts->sink, parts->dead_letters);
        if (consumer->unknown == HAPAX_UNKNOWN_PARK)
            parts->sink_type->make(parts->sink, parts->parked);
        if (consumer->in_flight == HAPAX_IN_FLIGHT_REQUEUE)
            hapax__deliveries_log(
                &loop.deliveries,
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
