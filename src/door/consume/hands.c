/* SPDX-License-Identifier: Apache-2.0
 *
 * A hand takes the next entry that waits for a hand. Either it finds the request of the message
 * (ask.c) and begins a call for it, or it runs the handler of a call that may run. A hand never
 * waits for a store: told() brings the call back, and an answer goes straight to the loop, without
 * a hand. So work changes threads once for a batch, and not once for each message. A hand decides
 * nothing, and touches neither source nor sink. It reads the bytes of a delivery, which stay while
 * the entry is out.
 *
 * Invariant: at most `concurrency` entries are out, so a call that may run finds a hand. While an
 * entry waits and a hand is idle, one hand is being woken. A hand that takes an entry while more
 * wait wakes the next hand.
 *
 * Rejected: a hand that blocks in hapax_execute(). Work changed threads three times for each
 * message, which was half of its cost on two processors.
 * Rejected: a hand that also releases the message. Libraries of brokers want one thread for a
 * connection, and a handler that hangs would keep its acknowledgements.
 */
#include "hands.h"

#include "ask.h"
#include "base/clock.h"
#include "base/thread.h"
#include "door/call.h"
#include "stats.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct hapax__hands {
    struct hapax__work *work;
    int done_fd;
    /* Rejected: a condition. A woken hand would wait for the lock, and a lost signal would never be
     * made up for. */
    sem_t wake;
    pthread_mutex_t lock; /* of the fields below */
    struct hapax__entries waiting; /* their calls are to begin, or may run */
    struct hapax__entries done; /* answered, or ended without a call */
    uint32_t idle;
    bool waking; /* `wake` is posted for an idle hand, or about to be */
    bool ending;
    uint32_t count;
    pthread_t threads[];
};

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

void hapax_delivery_retry_after(struct hapax_delivery *delivery, int64_t after_ms)
{
    assert(after_ms > 0);
    delivery->retry_after_ms = after_ms;
}

bool hapax_delivery_hurry(const struct hapax_delivery *delivery)
{
    return atomic_load_explicit(delivery->hurry, memory_order_relaxed);
}

/* ---- changes of threads ------------------------------------------------------------------ */

static void wake_loop(const struct hapax__hands *hands)
{
    uint64_t one = 1;
    ssize_t written = write(hands->done_fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

static void wake_hand(struct hapax__hands *hands)
{
    int failed = sem_post(&hands->wake);

    assert(failed == 0);
}

/* Whether the caller, who has the lock, must call wake_hand(). Do so after unlocking where
 * possible: the hand then need not wait for the lock. */
static bool wants_hand(struct hapax__hands *hands)
{
    if (STAILQ_EMPTY(&hands->waiting) || hands->idle == 0 || hands->waking)
        return false;
    hands->waking = true;
    return true;
}

static void idle(struct hapax__hands *hands)
{
    hands->idle++;
    pthread_mutex_unlock(&hands->lock);
    while (sem_wait(&hands->wake) != 0)
        assert(errno == EINTR);
    pthread_mutex_lock(&hands->lock);
    hands->idle--;
    hands->waking = false;
}

/* Returns the next entry, as soon as there is one. NULL: the hands are closed. */
static struct hapax__entry *next_waiting(struct hapax__hands *hands)
{
    struct hapax__entry *entry;
    bool wake;

    pthread_mutex_lock(&hands->lock);
    while (STAILQ_EMPTY(&hands->waiting) && !hands->ending)
        idle(hands);
    entry = STAILQ_FIRST(&hands->waiting);
    if (entry)
        STAILQ_REMOVE_HEAD(&hands->waiting, next);
    wake = wants_hand(hands);
    pthread_mutex_unlock(&hands->lock);
    if (wake)
        wake_hand(hands);
    return entry;
}

/* Gives an entry without a call back to the loop. */
static void give_back(struct hapax__hands *hands, struct hapax__entry *entry)
{
    bool first;

    pthread_mutex_lock(&hands->lock);
    first = STAILQ_EMPTY(&hands->done);
    STAILQ_INSERT_TAIL(&hands->done, entry, next);
    pthread_mutex_unlock(&hands->lock);
    if (first)
        wake_loop(hands);
}

/* The told() of all calls. It runs in the pulse's thread. */
static void told(struct hapax__call *calls)
{
    struct hapax__hands *hands = calls->owner;
    bool none_done;

    pthread_mutex_lock(&hands->lock);
    none_done = STAILQ_EMPTY(&hands->done);
    while (calls) {
        struct hapax__call *next = STAILQ_NEXT(calls, next);
        struct hapax__entry *entry = calls->data;

        if (calls->state == HAPAX__FLOW_ANSWER)
            STAILQ_INSERT_TAIL(&hands->done, entry, next);
        else
            STAILQ_INSERT_TAIL(&hands->waiting, entry, next);
        calls = next;
    }
    if (wants_hand(hands))
        wake_hand(hands);
    if (none_done && !STAILQ_EMPTY(&hands->done))
        wake_loop(hands);
    pthread_mutex_unlock(&hands->lock); /* last: after this the hands may be freed */
}

/* ---- one message ----------------------------------------------------------------------- */

/* A call that was given up here says nothing about the handler. */
static void see_handler(const struct hapax__hands *hands, const struct hapax_attempt *attempt,
                        enum hapax_class cls)
{
    bool ended = cls == HAPAX_CLASS_FINAL || cls == HAPAX_CLASS_FAILED;

    if (ended || !(hapax_attempt_lost(attempt) || atomic_load(&hands->work->hurry)))
        __atomic_store_n(&hands->work->stats->handler_up, ended || attempt->outcome.status > 0,
                         __ATOMIC_RELAXED);
}

static enum hapax_class run_handler(struct hapax__hands *hands, struct hapax__entry *entry)
{
    struct hapax_attempt *attempt = &entry->call->attempt;
    struct hapax__work *work = hands->work;
    struct hapax_consumer_stats *stats = work->stats;
    int64_t begun_us = hapax__monotonic_us();
    enum hapax_class cls;

    hapax__stats_add(&stats->running, 1);
    if (hapax_attempt_fence(attempt) > 0 && atomic_load(&work->store_away) &&
        atomic_exchange(&work->store_away, false))
        wake_loop(hands);
    cls = work->handler(attempt, &entry->delivery, work->arg);
    assert(cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    see_handler(hands, attempt, cls);
    hapax__stats_time(stats->handler_us, &stats->handler_us_sum, hapax__monotonic_us() - begun_us);
    hapax__stats_sub(&stats->running, 1);
    hapax__stats_add(&stats->run, 1);
    return cls;
}

/* Runs the hook. Only a handler may refuse the delivery, so a refusal by the hook is dropped. */
static enum hapax_class run_reconcile(const struct hapax__work *work, struct hapax__entry *entry)
{
    enum hapax_class cls = work->reconcile(&entry->call->attempt, &entry->delivery, work->arg);

    entry->delivery.refused = false;
    return cls;
}

static void run(struct hapax__hands *hands, struct hapax__entry *entry)
{
    enum hapax_class cls = entry->call->state == HAPAX__FLOW_RUN
                               ? run_handler(hands, entry)
                               : run_reconcile(hands->work, entry);

    hapax__call_ended(entry->call, cls);
}

/* Begins the call of an entry. False: no memory, and no call. */
static bool begin_call(struct hapax__hands *hands, struct hapax__entry *entry)
{
    const struct hapax__work *work = hands->work;
    const struct hapax_request *request = &entry->asked.request;
    bool reconciles = work->reconcile != NULL;
    char text[HAPAX_TEXT_MAX];

    /* The policy was checked with the consumer, and the request when it was made. */
    entry->call = hapax__call_new(work->h, &entry->policy, request, NULL, reconciles, text);
    if (!entry->call)
        return false;
    entry->call->request.key_len = entry->asked.key_len;
    entry->has_id = request->key.len > 0;
    entry->id = entry->call->request.id;
    entry->call->told = told;
    entry->call->owner = hands;
    entry->call->data = entry;
    if (hapax__call_begin(entry->call, text) == HAPAX_ERR_NONE)
        return true;
    entry->call = NULL;
    return false;
}

/* Finds the request of a message and begins its call. True: another thread may have the entry by
 * now. False: no call was begun; entry->ended says why. */
static bool begin(struct hapax__hands *hands, struct hapax__entry *entry)
{
    const struct hapax__work *work = hands->work;
    struct hapax__asked *asked = &entry->asked;
    enum hapax_error error = hapax__message_ask(asked, work->ask, &entry->policy, entry->delivered);

    if (error != HAPAX_ERR_NONE) {
        assert(error == HAPAX_ERR_NOMEM);
        return false;
    }
    if (asked->refused == 0) {
        entry->operation = hapax__operation_hash(&asked->request, work->seed);
        if (asked->by_position)
            entry->policy.key_min = 0;
        return begin_call(hands, entry);
    }
    if (asked->refused == HAPAX_ANSWER_MISSING_KEY && work->consumer->no_key == HAPAX_NO_KEY_RUN)
        return begin_call(hands, entry);
    entry->ended.kind = asked->refused;
    entry->ended.why = asked->why;
    entry->ended.retry_after_ms = -1;
    return false;
}

/* ---- threads ----------------------------------------------------------------------------- */

static void *hand_main(void *arg)
{
    struct hapax__hands *hands = arg;
    struct hapax__entry *entry;

    pthread_setname_np(pthread_self(), "hapax-hand");
    while ((entry = next_waiting(hands))) {
        if (entry->call)
            run(hands, entry);
        else if (!begin(hands, entry))
            give_back(hands, entry);
    }
    return NULL;
}

/* Starts the threads. */
static bool start(struct hapax__hands *hands)
{
    uint32_t wanted = hands->work->consumer->concurrency;

    while (hands->count < wanted &&
           hapax__thread_start(&hands->threads[hands->count], hand_main, hands))
        hands->count++;
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
    STAILQ_INIT(&hands->waiting);
    STAILQ_INIT(&hands->done);
    pthread_mutex_init(&hands->lock, NULL);
    (void)sem_init(&hands->wake, 0, 0);
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
    assert(STAILQ_EMPTY(&hands->waiting));
    hands->ending = true;
    pthread_mutex_unlock(&hands->lock);
    for (uint32_t i = 0; i < hands->count; i++)
        wake_hand(hands);
    for (uint32_t i = 0; i < hands->count; i++)
        pthread_join(hands->threads[i], NULL);
    assert(STAILQ_EMPTY(&hands->done));
    if (hands->done_fd >= 0)
        close(hands->done_fd);
    sem_destroy(&hands->wake);
    pthread_mutex_destroy(&hands->lock);
    free(hands);
}

/* ---- the loop's side ----------------------------------------------------------------------- */

void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry)
{
    bool wake;

    assert(!entry->call);
    memset(&entry->ended, 0, sizeof(entry->ended));
    entry->operation = 0;
    entry->delivery.message = &entry->delivered->message;
    entry->delivery.hurry = &hands->work->hurry;
    entry->delivery.refused = false;
    entry->delivery.retry_after_ms = 0;
    entry->delivery.why[0] = '\0';
    pthread_mutex_lock(&hands->lock);
    STAILQ_INSERT_TAIL(&hands->waiting, entry, next);
    wake = wants_hand(hands);
    pthread_mutex_unlock(&hands->lock);
    if (wake)
        wake_hand(hands);
}

int hapax__hands_fd(const struct hapax__hands *hands)
{
    return hands->done_fd;
}

static void take_answer(struct hapax__entry *entry)
{
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    if (hapax__call_leave(entry->call, &answer, text) == HAPAX_ERR_NONE)
        entry->ended = (struct hapax__ended){
            .kind = answer.kind,
            .cls = answer.cls,
            .error = answer.error,
            .differs = answer.differs,
            .recorded = answer.recorded,
            .unprotected = answer.unprotected,
            .unasked = answer.unasked,
            .refused = answer.cls == HAPAX_CLASS_FAILED && entry->delivery.refused,
            .status = answer.outcome.status,
            .spent = answer.spent,
            .retry_after_ms = answer.retry_after_ms,
            .key_min = answer.key_min,
        };
    if (entry->ended.cls == HAPAX_CLASS_NOT_RUN && entry->delivery.retry_after_ms > 0)
        entry->ended.retry_after_ms = entry->delivery.retry_after_ms;
    entry->call = NULL;
    hapax_answer_release(&answer);
}

void hapax__hands_reap(struct hapax__hands *hands, struct hapax__entries *back)
{
    struct hapax__entry *entry;
    uint64_t count;

    STAILQ_INIT(back);
    /* Cleared first: an entry that comes after this makes it readable again. */
    if (read(hands->done_fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&hands->lock);
    STAILQ_CONCAT(back, &hands->done);
    pthread_mutex_unlock(&hands->lock);
    STAILQ_FOREACH (entry, back, next)
        if (entry->call)
            take_answer(entry);
}
