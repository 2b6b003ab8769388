/* SPDX-License-Identifier: Apache-2.0
 *
 * A hand takes what waits: an entry, of which it asks what its message asks (ask.c) and begins that; or one that was begun and
 * is told to run, whose handler it runs. It waits for no store: what is begun is heard of again by way of the pulse's ear, and
 * an answer goes past the hands to the loop. So a message costs no change of threads of its own; they come by the batch. A
 * hand decides nothing and touches neither source nor sink: of the delivery it reads the bytes, which stay
 * while the entry is out.
 *
 * What it keeps: no more than `concurrency` are out, so that whoever is told to run finds a hand; while something
 * waits and a hand idles, one is being woken, and who takes something while more waits wakes the next.
 *
 * Rejected: a hand that blocks in hapax_execute(): three changes of threads for each message, which was half of its cost on
 * two processors. A hand that goes on with what becomes of the message: brokers' libraries want one thread for a
 * connection, and a handler that hangs would keep its acknowledgements.
 */
#include "hands.h"

#include "base/clock.h"
#include "door/call.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* An entry that is out. */
struct run {
    struct hapax__call *call; /* NULL: not begun, or answered */
    struct hapax__asked asked;
    struct hapax__hands *hands;
    struct hapax__entry *entry;
    struct run *next; /* of the line it stands in, or of those unused */
};

struct line { /* by next */
    struct run *first;
    struct run **end;
};

struct hapax__hands {
    struct hapax__work *work;
    int done_fd;
    struct run *runs;
    struct run *unused; /* the loop's */
    sem_t
        wake; /* not a condition, as in seats; and a signal that is lost would be missed for ever */
    pthread_mutex_t lock; /* of what follows */
    struct line waiting; /* to be begun, or told to run */
    struct line done; /* answered, or refused */
    uint32_t idle;
    bool waking; /* one that was idle: `wake` is posted, or about to be */
    bool ending;
    uint32_t count;
    pthread_t threads[];
};

static void line_init(struct line *line)
{
    line->first = NULL;
    line->end = &line->first;
}

static void line_add(struct line *line, struct run *run)
{
    run->next = NULL;
    *line->end = run;
    line->end = &run->next;
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

/* Under the lock. True: a hand is to be woken, once it is free: who wakes up would wait for it. */
static bool wants_hand(struct hapax__hands *hands)
{
    if (!hands->waiting.first || hands->idle == 0 || hands->waking)
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

static struct run *next_waiting(struct hapax__hands *hands)
{
    struct run *run;
    bool wake;

    pthread_mutex_lock(&hands->lock);
    while (!hands->waiting.first && !hands->ending)
        idle(hands);
    run = hands->waiting.first;
    if (run) {
        hands->waiting.first = run->next;
        if (!run->next)
            hands->waiting.end = &hands->waiting.first;
    }
    wake = wants_hand(hands);
    pthread_mutex_unlock(&hands->lock);
    if (wake)
        wake_hand(hands);
    return run;
}

/* Without an answer: nothing was begun. */
static void give_back(struct hapax__hands *hands, struct run *run)
{
    bool first;

    pthread_mutex_lock(&hands->lock);
    first = !hands->done.first;
    line_add(&hands->done, run);
    pthread_mutex_unlock(&hands->lock);
    if (first)
        wake_loop(hands);
}

/* In the pulse's thread. */
static void told(struct hapax__call *calls)
{
    struct hapax__hands *hands = calls->owner;
    bool none_done;

    pthread_mutex_lock(&hands->lock);
    none_done = !hands->done.first;
    while (calls) {
        struct hapax__call *next = STAILQ_NEXT(calls, next);

        line_add(calls->state == HAPAX__FLOW_ANSWER ? &hands->done : &hands->waiting, calls->data);
        calls = next;
    }
    if (wants_hand(hands))
        wake_hand(hands);
    if (none_done && hands->done.first)
        wake_loop(hands);
    pthread_mutex_unlock(&hands->lock); /* last: after it, the hands may be gone */
}

/* ---- one message ----------------------------------------------------------------------- */

static enum hapax_class run_handler(struct hapax_attempt *attempt, const struct run *run)
{
    struct hapax__work *work = run->hands->work;
    struct hapax_consumer_stats *stats = work->stats;
    int64_t begun_us = hapax__monotonic_us();
    enum hapax_class cls;

    hapax__stats_add(&stats->running, 1);
    if (hapax_attempt_fence(attempt) > 0 && atomic_load(&work->store_away) &&
        atomic_exchange(&work->store_away, false))
        wake_loop(run->hands);
    cls = work->handler(attempt, &run->entry->delivery, work->arg);
    assert(cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    hapax__stats_time(stats->handler_us, &stats->handler_us_sum, hapax__monotonic_us() - begun_us);
    hapax__stats_sub(&stats->running, 1);
    hapax__stats_add(&stats->run, 1);
    return cls;
}

/* What it says by way of the delivery is the handler's to say. */
static enum hapax_class run_reconcile(struct hapax_attempt *attempt, const struct run *run)
{
    const struct hapax__work *work = run->hands->work;
    enum hapax_class cls = work->reconcile(attempt, &run->entry->delivery, work->arg);

    run->entry->delivery.refused = false;
    return cls;
}

static void go_on(struct run *run)
{
    struct hapax__call *call = run->call;

    hapax__call_ended(call, call->state == HAPAX__FLOW_RUN ? run_handler(&call->attempt, run)
                                                           : run_reconcile(&call->attempt, run));
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

/* False: nothing was begun, for there is no memory. */
static bool begin_request(struct run *run)
{
    const struct hapax__work *work = run->hands->work;
    const struct hapax_request *request = &run->asked.request;
    const struct hapax_policy *policy = &run->entry->policy;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    /* The policy was checked when the consumer was, and the request when it was made. */
    error = hapax__call_check(policy, request, false, work->reconcile != NULL, text);
    assert(error == HAPAX_ERR_NONE);
    run->call = hapax__call_new(work->h, policy, request, NULL, work->reconcile != NULL, text);
    if (!run->call)
        return false;
    run->call->told = told;
    run->call->owner = run->hands;
    run->call->data = run;
    if (hapax__call_begin(run->call, text) == HAPAX_ERR_NONE)
        return true;
    run->call = NULL;
    return false;
}

/* False: it is over already. True: it may be anybody's. */
static bool begin(struct run *run)
{
    struct hapax__work *work = run->hands->work;
    struct hapax__entry *entry = run->entry;
    enum hapax_error error;

    error = hapax__message_ask(&run->asked, work->ask, &entry->policy, entry->delivered);
    if (error != HAPAX_ERR_NONE) {
        assert(error == HAPAX_ERR_NOMEM);
        return false;
    }
    if (run->asked.refused == 0) {
        entry->operation = hapax__operation_hash(&run->asked.request, work->seed);
        return begin_request(run);
    }
    if (runs_without_key(work, &run->asked))
        return begin_request(run);
    entry->ended.kind = run->asked.refused;
    entry->ended.why = run->asked.why;
    entry->ended.retry_after_ms = -1;
    return false;
}

/* ---- threads ----------------------------------------------------------------------------- */

static void *hand_main(void *arg)
{
    struct hapax__hands *hands = arg;
    struct run *run;

    pthread_setname_np(pthread_self(), "hapax-hand");
    while ((run = next_waiting(hands))) {
        if (run->call)
            go_on(run);
        else if (!begin(run))
            give_back(hands, run);
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

static bool runs_open(struct hapax__hands *hands)
{
    uint32_t count = hands->work->consumer->concurrency;

    hands->runs = calloc(count, sizeof(*hands->runs));
    for (uint32_t i = 0; hands->runs && i < count; i++) {
        hands->runs[i].hands = hands;
        hands->runs[i].next = hands->unused;
        hands->unused = &hands->runs[i];
    }
    return hands->runs;
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
    (void)sem_init(&hands->wake, 0, 0);
    hands->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hands->done_fd < 0 || !runs_open(hands) || !start(hands)) {
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
    pthread_mutex_unlock(&hands->lock);
    for (uint32_t i = 0; i < hands->count; i++)
        wake_hand(hands);
    for (uint32_t i = 0; i < hands->count; i++)
        pthread_join(hands->threads[i], NULL);
    assert(!hands->done.first);
    if (hands->done_fd >= 0)
        close(hands->done_fd);
    sem_destroy(&hands->wake);
    pthread_mutex_destroy(&hands->lock);
    free(hands->runs);
    free(hands);
}

/* ---- the loop's side ----------------------------------------------------------------------- */

void hapax__hands_give(struct hapax__hands *hands, struct hapax__entry *entry)
{
    struct run *run = hands->unused;
    bool wake;

    assert(run && !run->call);
    hands->unused = run->next;
    run->entry = entry;
    memset(&entry->ended, 0, sizeof(entry->ended));
    entry->operation = 0;
    entry->delivery.message = &entry->delivered->message;
    entry->delivery.hurry = &hands->work->hurry;
    entry->delivery.refused = false;
    entry->delivery.why[0] = '\0';
    pthread_mutex_lock(&hands->lock);
    line_add(&hands->waiting, run);
    wake = wants_hand(hands);
    pthread_mutex_unlock(&hands->lock);
    if (wake)
        wake_hand(hands);
}

int hapax__hands_fd(const struct hapax__hands *hands)
{
    return hands->done_fd;
}

static void leave(struct run *run)
{
    struct hapax__entry *entry = run->entry;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    if (hapax__call_leave(run->call, &answer, text) == HAPAX_ERR_NONE)
        take_answer(&entry->ended, entry, &answer);
    run->call = NULL;
    hapax_answer_release(&answer);
}

struct hapax__entry *hapax__hands_reap(struct hapax__hands *hands)
{
    struct hapax__entry *first = NULL, **end = &first;
    struct run *run;
    uint64_t count;

    /* Cleared first: what comes after this is told of again. */
    if (read(hands->done_fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&hands->lock);
    run = hands->done.first;
    line_init(&hands->done);
    pthread_mutex_unlock(&hands->lock);
    while (run) {
        struct run *next = run->next;

        if (run->call)
            leave(run);
        *end = run->entry;
        end = &run->entry->next;
        run->next = hands->unused;
        hands->unused = run;
        run = next;
    }
    *end = NULL;
    return first;
}
