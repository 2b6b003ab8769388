/* SPDX-License-Identifier: Apache-2.0
 *
 * A hand takes an entry, asks what the message asks (ask.c), executes that with the policy, and gives the
 * answer back. It decides nothing and touches neither source nor sink: of the delivery it reads the bytes, which
 * stay while it has the entry.
 *
 * Rejected: a hand that goes on with what becomes of the message. Brokers' libraries want one thread for a
 * connection, and a handler that hangs would keep its acknowledgements.
 */
#include "hands.h"

#include "store/clock.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct line { /* by next */
    struct hapax__entry *first;
    struct hapax__entry **end;
};

struct hapax__hands {
    struct hapax__work *work;
    int done_fd;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t given;
    struct line waiting;
    struct line done;
    bool ending;
    uint32_t count;
    pthread_t threads[];
};

static void line_init(struct line *line)
{
    line->first = NULL;
    line->end = &line->first;
}

static void line_add(struct line *line, struct hapax__entry *entry)
{
    entry->next = NULL;
    *line->end = entry;
    line->end = &entry->next;
}

/* ---- what a handler sees --------------------------------------------------------------- */

const struct hapax_message *hapax_delivery_message(const struct hapax_delivery *delivery)
{
    return delivery->message;
}

void hapax_delivery_refuse(struct hapax_delivery *delivery, const char *why)
{
    delivery->refused = true;
    snprintf(delivery->why, sizeof(delivery->why), "%s", why ? why : "");
}

bool hapax_delivery_hurry(const struct hapax_delivery *delivery)
{
    return atomic_load_explicit(delivery->hurry, memory_order_relaxed);
}

/* ---- one message ----------------------------------------------------------------------- */

struct run {
    const struct hapax__hands *hands;
    struct hapax__work *work;
    struct hapax__entry *entry;
};

static void wake_loop(const struct hapax__hands *hands)
{
    uint64_t one = 1;
    ssize_t written = write(hands->done_fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

static enum hapax_class run_handler(struct hapax_attempt *attempt, void *arg)
{
    const struct run *run = arg;
    struct hapax_consumer_stats *stats = run->work->stats;
    int64_t begun_us = hapax__monotonic_us();
    enum hapax_class cls;

    hapax__stats_add(&stats->running, 1);
    if (hapax_attempt_fence(attempt) > 0 && atomic_load(&run->work->store_away) &&
        atomic_exchange(&run->work->store_away, false))
        wake_loop(run->hands);
    cls = run->work->handler(attempt, &run->entry->delivery, run->work->arg);
    assert(cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    hapax__stats_time(stats->handler_us, &stats->handler_us_sum, hapax__monotonic_us() - begun_us);
    hapax__stats_sub(&stats->running, 1);
    hapax__stats_add(&stats->run, 1);
    return cls;
}

/* What it says by way of the delivery is the handler's to say. */
static enum hapax_class run_reconcile(struct hapax_attempt *attempt, void *arg)
{
    const struct run *run = arg;
    enum hapax_class cls = run->work->reconcile(attempt, &run->entry->delivery, run->work->arg);

    run->entry->delivery.refused = false;
    return cls;
}

static void take_answer(struct hapax__ended *ended, const struct hapax__entry *entry,
                        const struct hapax_answer *answer)
{
    *ended = (struct hapax__ended){
        .kind = answer->kind,
        .cls = answer->cls,
        .error = answer->error,
        .differs = answer->differs,
        .recorded = answer->recorded,
        .unprotected = answer->unprotected,
        .refused = answer->cls == HAPAX_CLASS_FAILED && entry->delivery.refused,
        .status = answer->outcome.status,
        .spent = answer->spent,
        .retry_after_ms = answer->retry_after_ms,
    };
}

static bool runs_without_key(const struct hapax__work *work, const struct hapax__asked *asked)
{
    return asked->refused == HAPAX_ANSWER_MISSING_KEY && work->consumer->no_key == HAPAX_NO_KEY_RUN;
}

static void execute(const struct hapax__hands *hands, struct hapax__entry *entry,
                    const struct hapax__asked *asked)
{
    struct hapax__work *work = hands->work;
    struct run run = {hands, work, entry};
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    error = hapax_execute(work->h, &entry->policy, &asked->request, run_handler,
                          work->reconcile ? run_reconcile : NULL, &run, &answer, text);
    /* The policy was checked when the consumer was, and the request when it was made. */
    assert(error == HAPAX_ERR_NONE || error == HAPAX_ERR_NOMEM);
    if (error == HAPAX_ERR_NONE)
        take_answer(&entry->ended, entry, &answer);
    hapax_answer_release(&answer);
}

static void work_on(const struct hapax__hands *hands, struct hapax__entry *entry)
{
    const struct hapax__work *work = hands->work;
    struct hapax__asked asked;
    enum hapax_error error;

    memset(&entry->ended, 0, sizeof(entry->ended));
    entry->operation = 0;
    entry->delivery.message = &entry->delivered->message;
    entry->delivery.hurry = &work->hurry;
    entry->delivery.refused = false;
    entry->delivery.why[0] = '\0';
    error = hapax__ask(&asked, work->ask, &entry->policy, entry->delivered);
    if (error != HAPAX_ERR_NONE) {
        assert(error == HAPAX_ERR_NOMEM);
        return;
    }
    if (asked.refused == 0 || runs_without_key(work, &asked)) {
        if (asked.refused == 0)
            entry->operation = hapax__operation_hash(&asked.request, work->seed);
        execute(hands, entry, &asked);
        return;
    }
    entry->ended.kind = asked.refused;
    entry->ended.why = asked.why;
    entry->ended.retry_after_ms = -1;
}

/* ---- threads ----------------------------------------------------------------------------- */

static struct hapax__entry *next_given(struct hapax__hands *hands)
{
    struct hapax__entry *entry;

    pthread_mutex_lock(&hands->lock);
    while (!hands->waiting.first && !hands->ending)
        pthread_cond_wait(&hands->given, &hands->lock);
    entry = hands->waiting.first;
    if (entry) {
        hands->waiting.first = entry->next;
        if (!entry->next)
            hands->waiting.end = &hands->waiting.first;
    }
    pthread_mutex_unlock(&hands->lock);
    return entry;
}

static void give_back(struct hapax__hands *hands, struct hapax__entry *entry)
{
    bool first;

    pthread_mutex_lock(&hands->lock);
    first = !hands->done.first;
    line_add(&hands->done, entry);
    pthread_mutex_unlock(&hands->lock);
    if (first)
        wake_loop(hands);
}

static void *hand_main(void *arg)
{
    struct hapax__hands *hands = arg;
    struct hapax__entry *entry;

    pthread_setname_np(pthread_self(), "hapax-hand");
    while ((entry = next_given(hands))) {
        work_on(hands, entry);
        give_back(hands, entry);
    }
    return NULL;
}

/* Signals are the program's: the threads take none. */
static bool start(struct hapax__hands *hands)
{
    uint32_t wanted = hands->work->consumer->concurrency;
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (hands->count < wanted &&
           pthread_create(&hands->threads[hands->count], NULL, hand_main, hands) == 0)
        hands->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return hands->count == wanted;
}

enum hapax_error hapax__hands_open(struct hapax__hands **out, struct hapax__work *work)
{
    struct hapax__hands *hands;

    *out = NULL;
    hands = calloc(1, sizeof(*hands) + work->consumer->concurrency * sizeof(hands->threads[0]));
    if (!hands)
        return HAPAX_ERR_NOMEM;
    hands->work = work;
    line_init(&hands->waiting);
    line_init(&hands->done);
    pthread_mutex_init(&hands->lock, NULL);
    pthread_cond_init(&hands->given, NULL);
    hands->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hands->done_fd < 0 || !start(hands)) {
        hapax__hands_close(hands);
        return HAPAX_ERR_NOMEM;
    }
    *out = hands;
    return HAPAX_ERR_NONE;
}

void hapax__hands_close(struct hapax__hands *hands)
{
    if (!hands)
        return;
    pthread_mutex_lock(&hands->lock);
    assert(!hands->waiting.first);
    hands->ending = true;
    pthread_cond_broadcast(&hands->given);
    pthread_mutex_unlock(&hands->lock);
    for (uint32_t i = 0; i < hands->count; i++)
        pthread_join(hands->threads[i], NULL);
    assert(!hands->done.first);
    if (hands->done_fd >= 0)
        close(hands->done_fd);
    pthread_cond_destroy(&hands->given);
    pthread_mutex_destroy(&hands->lock);
    free(hands);
}

void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry)
{
    pthread_mutex_lock(&hands->lock);
    line_add(&hands->waiting, entry);
    pthread_mutex_unlock(&hands->lock);
    pthread_cond_signal(&hands->given); /* who wakes up would wait for the lock */
}

int hapax__hands_fd(const struct hapax__hands *hands)
{
    return hands->done_fd;
}

struct hapax__entry *hapax__hands_reap(struct hapax__hands *hands)
{
    struct hapax__entry *first;
    uint64_t count;

    /* Cleared first: what comes after this is told of again. */
    if (read(hands->done_fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&hands->lock);
    first = hands->done.first;
    line_init(&hands->done);
    pthread_mutex_unlock(&hands->lock);
    return first;
}
