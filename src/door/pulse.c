/* SPDX-License-Identifier: Apache-2.0
 *
 * The pulse waits for three things at once: the inbox, where callers put calls that begin and calls
 * whose handlers have ended; the lane's answers; and the nearest timer. Each is an event for one
 * flow. After each event the pulse does what that flow asks for next, and what every flow asks for
 * that the event made ready.
 *
 * Invariant: only this thread touches flows and calls, from their begin to END, except for the
 * attempt while its handler runs. The memory that an answered op points into is freed only after
 * all flows that share the op's verdict have given their answers. The pulse decides nothing: every
 * decision is made by a flow.
 *
 * Rejected: driving a flow in its caller's thread. Callers that share one question would have to
 * hand the claim over between threads. While a handler runs, its thread could not renew the lease.
 */
#include "pulse.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/thread.h"
#include "base/time.h"
#include "call.h"
#include "core/drive.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <time.h>
#include <unistd.h>

STAILQ_HEAD(call_list, hapax__call);

struct hapax__pulse {
    struct hapax__lane *lane; /* NULL once it is closed */
    struct hapax__waiters waiters;
    struct hapax__bucket *buckets;
    struct hapax__heap timers;
    /* Linked by `next`: jobs that the lane gets at the end of this turn, as one batch. */
    struct hapax__job *asked;
    struct hapax__job **asked_end;
    struct call_list told; /* have a new state; told() at the end of the turn */
    uint32_t calls_max;
    int64_t now_us; /* when the event came for which flows are driven */
    int inbox_fd;
    pthread_t thread;
    atomic_int_fast64_t dead_until_us; /* of the breaker: for other threads */
    atomic_bool leaving; /* hapax__claims_leave() */
    struct hapax__counts counts;
    struct hapax__lane_counts lane_counts;

    pthread_mutex_t lock; /* of all fields below */
    pthread_cond_t empty;
    struct call_list inbox; /* calls that begin, or whose handlers have ended */
    struct call_list stops; /* calls to give up; each has one owner more */
    uint32_t calls; /* begun and not over */
    uint32_t callers; /* begun and not left */
    bool ending;
    int64_t end_us; /* when `ending`: no saving after this */
};

/* ---- calls --------------------------------------------------------------------------- */

/* Lets go of a call for one of its two owners, the door or the pulse. The last one frees it. */
static void call_drop(struct hapax__call *call)
{
    if (atomic_fetch_sub(&call->owners, 1) > 1)
        return;
    if (call->saving)
        atomic_fetch_sub(call->saving, call->saving_size);
    hapax__attempt_release(&call->attempt);
    sem_destroy(&call->wake);
    explicit_bzero(call, sizeof(*call)); /* its token is a secret */
    free(call);
}

/* Gives a call a new state. Its told() is called at the end of the turn: a thread that is woken
 * earlier takes the processor from this one, while other calls still wait for their state. */
static void call_tell(struct hapax__pulse *pulse, struct hapax__call *call,
                      enum hapax__flow_do state)
{
    assert(call->state == HAPAX__FLOW_PAUSE);
    call->state = state;
    STAILQ_INSERT_TAIL(&pulse->told, call, next);
}

/* Calls told() for all calls with a new state. Neighbours with the same `told` and `owner` go in
 * one list. */
static void tell_doors(struct hapax__pulse *pulse)
{
    struct hapax__call *call = STAILQ_FIRST(&pulse->told);

    STAILQ_INIT(&pulse->told);
    while (call) {
        struct hapax__call *last = call, *next;

        while ((next = STAILQ_NEXT(last, next)) && next->told == call->told &&
               next->owner == call->owner)
            last = next;
        STAILQ_NEXT(last, next) = NULL;
        call->told(call);
        call = next;
    }
}

/* ---- flows --------------------------------------------------------------------------- */

static void put_asked(struct hapax__pulse *pulse, struct hapax__call *call)
{
    struct hapax__flow *flow = &call->flow;

    call->job.op = flow->op;
    /* The lane drops a CLAIM that it has not begun when the flow gives up. Such a CLAIM never
     * lands, so nobody has to look for it later. */
    call->job.deadline_us = 0;
    if (flow->op.kind == HAPAX_OP_CLAIM && flow->limit_us != INT64_MAX)
        call->job.deadline_us = flow->limit_us;
    call->job.next = NULL;
    *pulse->asked_end = &call->job;
    pulse->asked_end = &call->job.next;
}

static struct hapax__job *take_asked(struct hapax__pulse *pulse)
{
    struct hapax__job *jobs = pulse->asked;

    pulse->asked = NULL;
    pulse->asked_end = &pulse->asked;
    return jobs;
}

static void let_run(struct hapax__pulse *pulse, struct hapax__call *call, enum hapax__flow_do what)
{
    hapax__attempt_begin(&call->attempt, &call->flow);
    call_tell(pulse, call, what);
}

static void answer(struct hapax__pulse *pulse, struct hapax__call *call)
{
    if (call->traces)
        hapax__traces_answer(call->traces, &call->traced, &call->flow, hapax__boot_us());
    call->no_memory = !hapax__answer_take(&call->answer, &call->flow, &call->attempt);
    call_tell(pulse, call, HAPAX__FLOW_ANSWER);
}

static void end(struct hapax__pulse *pulse, struct hapax__call *call)
{
    assert(call->state == HAPAX__FLOW_ANSWER);
    hapax__heap_clear(&pulse->timers, &call->timer);
    call_drop(call);
    pthread_mutex_lock(&pulse->lock);
    assert(pulse->calls > 0);
    pulse->calls--;
    pthread_mutex_unlock(&pulse->lock);
}

/* Rejected: to read the clock at each step of a flow, four times for an event. */
static int64_t flow_now(const struct hapax__flow *flow)
{
    const struct hapax__call *call = flow->door;

    return call->pulse->now_us;
}

/* Whether the op is to renew a claim for a process that is not heard any more. */
static bool is_silent(const struct hapax__call *call)
{
    return call->heard_us && call->flow.op.kind == HAPAX_OP_RENEW &&
           hapax__boot_us() - atomic_load(call->heard_us) > call->silence_us;
}

/* Whether the op gives a claim back, or looks for one to give back. */
static bool gives_back(const struct hapax__call *call)
{
    switch (call->flow.phase) {
    case HAPAX__FLOW_READING:
    case HAPAX__FLOW_SAVING:
        return call->withdrawn;
    case HAPAX__FLOW_CHASING:
    case HAPAX__FLOW_RELEASING:
        return true;
    default: /* while handler or hook runs, `withdrawn` is the door's */
        return false;
    }
}

/* Whether whoever has the token may go on with the claim, so that it is not to be given back. */
static bool is_left(const struct hapax__call *call)
{
    return atomic_load(&call->left) ||
           (call->shared && atomic_load(&call->pulse->leaving) &&
            (call->flow.answer.kind != 0 || atomic_load(&call->deserted)));
}

/* Puts the op into this turn's batch. False: the claim is left. What waits in the lane when the
 * door is told to end is not sent, but comes here again. */
static bool put(struct hapax__pulse *pulse, struct hapax__call *call)
{
    bool back = gives_back(call);

    call->job.unless = NULL;
    if (back && call->shared && !atomic_load(&pulse->leaving))
        call->job.unless = &pulse->leaving;
    if (back && is_left(call))
        return false;
    put_asked(pulse, call);
    return true;
}

static bool flow_act(struct hapax__flow *flow, enum hapax__flow_do what, int64_t now_us)
{
    struct hapax__call *call = flow->door;
    struct hapax__pulse *pulse = call->pulse;

    switch (what) {
    case HAPAX__FLOW_PAUSE:
        hapax__heap_set(&pulse->timers, &call->timer, flow->wake_us);
        break;
    case HAPAX__FLOW_ASK:
        if (pulse->lane && !is_silent(call)) {
            if (!put(pulse, call))
                hapax__flow_leave(flow, now_us);
            break;
        }
        flow->op.verdict = HAPAX_NO_VERDICT;
        flow->op.error = HAPAX_ERR_UNAVAILABLE;
        hapax__flow_told(flow, now_us);
        break;
    case HAPAX__FLOW_RUN:
    case HAPAX__FLOW_RECONCILE:
        let_run(pulse, call, what);
        break;
    case HAPAX__FLOW_ABANDON:
        atomic_store(&call->attempt.lost, true);
        if (call->abandoned)
            call->abandoned(call);
        break;
    case HAPAX__FLOW_ANSWER:
        answer(pulse, call);
        break;
    case HAPAX__FLOW_END:
        end(pulse, call);
        break;
    }
    return true;
}

static void drive(struct hapax__call *call)
{
    static const struct hapax__flow_door door = {flow_now, flow_act};

    (void)hapax__flow_drive(&call->flow, &door);
}

/* ---- events -------------------------------------------------------------------------- */

static void take_call(struct hapax__pulse *pulse, struct hapax__call *call)
{
    const struct hapax_outcome *outcome = &call->attempt.outcome;
    int64_t now_us = pulse->now_us = hapax__boot_us();

    if (call->cls == 0) { /* it begins */
        call->flow.door = call;
        if (call->claim.fence > 0)
            hapax__flow_resume(&call->flow, &call->policy, &pulse->waiters, &call->request,
                               &call->claim, now_us);
        else
            hapax__flow_begin(&call->flow, &call->policy, &pulse->waiters, &call->request, now_us);
    } else if (call->died) {
        hapax__flow_died(&call->flow, now_us);
    } else if (call->flow.phase == HAPAX__FLOW_RECONCILING) {
        hapax__flow_reconciled(&call->flow, call->cls, outcome, now_us);
    } else {
        hapax__flow_handled(&call->flow, call->cls, outcome, now_us);
    }
    drive(call);
}

/* A flow that has answered goes on: it may have a claim to give back. */
static void take_stop(struct hapax__call *call)
{
    if (call->flow.answer.kind == 0) {
        call->pulse->now_us = hapax__boot_us();
        hapax__flow_stop(&call->flow, call->pulse->now_us);
        drive(call);
    }
    call_drop(call);
}

/* Takes what is there, knocked or not: whoever is to knock may be stopped before it does. */
static void take_inbox(struct hapax__pulse *pulse, bool knocked)
{
    struct hapax__call *call, *stop;
    uint64_t count;

    /* Cleared first: a call that is added after this makes it readable again. */
    if (knocked && read(pulse->inbox_fd, &count, sizeof(count)) < 0)
        assert(errno == EAGAIN);
    pthread_mutex_lock(&pulse->lock);
    call = STAILQ_FIRST(&pulse->inbox);
    STAILQ_INIT(&pulse->inbox);
    stop = STAILQ_FIRST(&pulse->stops);
    STAILQ_INIT(&pulse->stops);
    pthread_mutex_unlock(&pulse->lock);
    while (call) {
        struct hapax__call *next = STAILQ_NEXT(call, next);

        take_call(pulse, call);
        call = next;
    }
    while (stop) { /* behind their begin */
        struct hapax__call *next = STAILQ_NEXT(stop, stops);

        take_stop(stop);
        stop = next;
    }
}

static struct hapax__call *call_of(struct hapax__job *job)
{
    return (struct hapax__call *)((char *)job - offsetof(struct hapax__call, job));
}

static void take_answers(struct hapax__pulse *pulse, struct hapax__job *job)
{
    while (job) {
        struct hapax__job *next = job->next;
        struct hapax__call *call = call_of(job);
        void *memory = job->memory;

        call->flow.op = job->op;
        pulse->now_us = hapax__boot_us();
        hapax__flow_told(&call->flow, pulse->now_us);
        drive(call);
        free(memory);
        job = next;
    }
}

/* Gives the lane all that this turn asked, as one batch. A flow whose job the lane refused may ask
 * for something else, which is the next batch. */
static void submit_asked(struct hapax__pulse *pulse)
{
    while (pulse->asked)
        take_answers(pulse, hapax__lane_submit_all(pulse->lane, take_asked(pulse)));
}

static void take_timers(struct hapax__pulse *pulse)
{
    struct hapax__timer *timer;

    pulse->now_us = hapax__boot_us();
    while ((timer = hapax__heap_take(&pulse->timers, pulse->now_us))) {
        drive(HAPAX__TIMED(timer, struct hapax__call, timer));
        pulse->now_us = hapax__boot_us();
    }
}

/* ---- the thread ---------------------------------------------------------------------- */

enum { INBOX, ANSWERS, EVENTS };

/* Waits for an event, until `until_us` at most. */
static void wait_for_events(struct hapax__pulse *pulse, struct pollfd fds[EVENTS], int64_t until_us)
{
    struct timespec timeout;

    until_us = hapax__least(until_us, hapax__heap_due_us(&pulse->timers));
    if (until_us != INT64_MAX)
        timeout = hapax__timespec(until_us - hapax__boot_us());
    if (ppoll(fds, EVENTS, until_us == INT64_MAX ? NULL : &timeout, NULL) < 0) {
        assert(errno == EINTR || errno == ENOMEM);
        fds[INBOX].revents = fds[ANSWERS].revents = POLLIN;
    }
}

/* Until when the thread waits for events; 0: the thread ends. */
static int64_t until(struct hapax__pulse *pulse)
{
    int64_t until_us = INT64_MAX;

    pthread_mutex_lock(&pulse->lock);
    if (pulse->ending)
        until_us = pulse->calls > 0 && hapax__boot_us() < pulse->end_us ? pulse->end_us : 0;
    pthread_mutex_unlock(&pulse->lock);
    return until_us;
}

static void *pulse_main(void *arg)
{
    struct hapax__pulse *pulse = arg;
    struct pollfd fds[EVENTS] = {[INBOX] = {.fd = pulse->inbox_fd, .events = POLLIN},
                                 [ANSWERS] = {.fd = hapax__lane_fd(pulse->lane), .events = POLLIN}};
    int64_t until_us;

    pthread_setname_np(pthread_self(), "hapax-pulse");
    while ((until_us = until(pulse)) > 0) {
        wait_for_events(pulse, fds, until_us);
        take_inbox(pulse, fds[INBOX].revents != 0);
        if (fds[ANSWERS].revents)
            take_answers(pulse, hapax__lane_reap(pulse->lane));
        take_timers(pulse);
        submit_asked(pulse);
        atomic_store(&pulse->dead_until_us, hapax__breaker_until(&pulse->waiters.breaker));
        tell_doors(pulse);
    }
    return NULL;
}

static void pulse_free(struct hapax__pulse *pulse)
{
    if (pulse->inbox_fd >= 0)
        close(pulse->inbox_fd);
    pthread_cond_destroy(&pulse->empty);
    pthread_mutex_destroy(&pulse->lock);
    hapax__heap_release(&pulse->timers);
    free(pulse->buckets);
    free(pulse);
}

enum hapax_error hapax__pulse_open(struct hapax__pulse **out, struct hapax__lane *lane,
                                   uint32_t calls_max)
{
    struct hapax__pulse *pulse = calloc(1, sizeof(*pulse));
    size_t size = 1;

    assert(calls_max > 0 && calls_max <= HAPAX__CALLS_MAX);
    *out = NULL;
    if (!pulse)
        return HAPAX_ERR_NOMEM;
    while (size < calls_max)
        size *= 2;
    pulse->lane = lane;
    pulse->calls_max = calls_max;
    pulse->asked_end = &pulse->asked;
    STAILQ_INIT(&pulse->inbox);
    STAILQ_INIT(&pulse->stops);
    STAILQ_INIT(&pulse->told);
    pthread_mutex_init(&pulse->lock, NULL);
    pthread_cond_init(&pulse->empty, NULL);
    pulse->buckets = calloc(size, sizeof(struct hapax__bucket));
    pulse->inbox_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (pulse->buckets)
        hapax__waiters_init(&pulse->waiters, pulse->buckets, size);
    if (!pulse->buckets || pulse->inbox_fd < 0 ||
        hapax__heap_init(&pulse->timers, calls_max) != HAPAX_ERR_NONE ||
        !hapax__thread_start(&pulse->thread, pulse_main, pulse)) {
        pulse_free(pulse);
        return HAPAX_ERR_NOMEM;
    }
    hapax__lane_count(lane, &pulse->lane_counts);
    *out = pulse;
    return HAPAX_ERR_NONE;
}

/* ---- for the door -------------------------------------------------------------------- */

bool hapax__pulse_store_dead(const struct hapax__pulse *pulse)
{
    return hapax__boot_us() < atomic_load(&pulse->dead_until_us);
}

void hapax__pulse_leave_claims(struct hapax__pulse *pulse)
{
    atomic_store(&pulse->leaving, true);
}

struct hapax__counts *hapax__pulse_counts(struct hapax__pulse *pulse)
{
    return &pulse->counts;
}

const struct hapax__lane_counts *hapax__pulse_lane_counts(const struct hapax__pulse *pulse)
{
    return &pulse->lane_counts;
}

static void knock(struct hapax__pulse *pulse)
{
    uint64_t one = 1;
    ssize_t written = write(pulse->inbox_fd, &one, sizeof(one));

    assert(written == (ssize_t)sizeof(one));
}

enum hapax_error hapax__call_begin(struct hapax__call *call, char text[HAPAX_TEXT_MAX])
{
    struct hapax__pulse *pulse = call->pulse;
    bool taken, first = false;

    assert(call->told);
    pthread_mutex_lock(&pulse->lock);
    assert(!pulse->ending); /* no call begins once hapax_close() was called */
    taken = pulse->calls < pulse->calls_max;
    if (taken) {
        first = STAILQ_EMPTY(&pulse->inbox);
        atomic_store(&call->owners, 2);
        STAILQ_INSERT_TAIL(&pulse->inbox, call, next);
        pulse->calls++;
        pulse->callers++;
    }
    pthread_mutex_unlock(&pulse->lock);
    if (first)
        knock(pulse);
    if (taken)
        return HAPAX_ERR_NONE;
    call_drop(call);
    return hapax__fail(text, HAPAX_ERR_NOMEM, "calls_max of %u calls in hand is reached",
                       pulse->calls_max);
}

void hapax__call_wake(struct hapax__call *calls)
{
    while (calls) {
        struct hapax__call *next = STAILQ_NEXT(calls, next);
        int failed = sem_post(&calls->wake);

        assert(failed == 0);
        calls = next;
    }
}

enum hapax__flow_do hapax__call_wait(struct hapax__call *call)
{
    assert(call->told == hapax__call_wake);
    while (sem_wait(&call->wake) != 0)
        assert(errno == EINTR);
    return call->state;
}

void hapax__call_died(struct hapax__call *call)
{
    call->died = true;
    hapax__call_ended(call, HAPAX_CLASS_UNKNOWN);
}

void hapax__call_withdraw(struct hapax__call *call)
{
    bool asked = call->state == HAPAX__FLOW_RECONCILE;

    call->withdrawn = true;
    /* Of a hook that has not answered nobody knows what it would say. */
    hapax__call_ended(call, asked ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_NOT_RUN);
}

void hapax__call_ended(struct hapax__call *call, enum hapax_class cls)
{
    struct hapax__pulse *pulse = call->pulse;
    bool first;

    assert(call->state == HAPAX__FLOW_RUN || call->state == HAPAX__FLOW_RECONCILE);
    assert(cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    call->state = HAPAX__FLOW_PAUSE;
    call->cls = cls;
    pthread_mutex_lock(&pulse->lock);
    first = STAILQ_EMPTY(&pulse->inbox);
    STAILQ_INSERT_TAIL(&pulse->inbox, call, next);
    pthread_mutex_unlock(&pulse->lock);
    if (first)
        knock(pulse);
}

void hapax__call_stop(struct hapax__call *call)
{
    struct hapax__pulse *pulse = call->pulse;

    if (call->stopped)
        return;
    call->stopped = true;
    atomic_fetch_add(&call->owners, 1);
    pthread_mutex_lock(&pulse->lock);
    STAILQ_INSERT_TAIL(&pulse->stops, call, stops);
    pthread_mutex_unlock(&pulse->lock);
    knock(pulse);
}

enum hapax_error hapax__call_leave(struct hapax__call *call, struct hapax_answer *answer,
                                   char text[HAPAX_TEXT_MAX])
{
    struct hapax__pulse *pulse = call->pulse;
    bool no_memory = call->no_memory;

    assert(call->state == HAPAX__FLOW_ANSWER);
    *answer = call->answer;
    call_drop(call);
    text[0] = '\0';
    if (answer->error != HAPAX_ERR_NONE)
        hapax__lane_text(pulse->lane, text);
    pthread_mutex_lock(&pulse->lock);
    assert(pulse->callers > 0);
    pulse->callers--;
    if (pulse->callers == 0)
        pthread_cond_signal(&pulse->empty);
    pthread_mutex_unlock(&pulse->lock);
    if (!no_memory)
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_NOMEM,
                       "out of memory for an outcome that is stored; ask again");
}

/* ---- the end ------------------------------------------------------------------------- */

/* Ends all calls that are left. The thread is gone, and all callers have their answers. Ops that
 * the lane still had may have stored an outcome. Any other outcome is not stored. Returns how
 * many. */
static uint32_t stop_all(struct hapax__pulse *pulse)
{
    struct hapax__job *rest = hapax__lane_close(pulse->lane);
    struct hapax__timer *timer;
    uint32_t unsaved = 0;

    pulse->lane = NULL;
    take_answers(pulse, rest);
    while ((timer = hapax__heap_take(&pulse->timers, INT64_MAX))) {
        struct hapax__call *call = HAPAX__TIMED(timer, struct hapax__call, timer);

        if (call->flow.phase == HAPAX__FLOW_SAVING)
            unsaved++;
        pulse->now_us = hapax__boot_us();
        hapax__flow_stop(&call->flow, pulse->now_us);
        drive(call);
    }
    assert(pulse->calls == 0);
    return unsaved;
}

uint32_t hapax__pulse_close(struct hapax__pulse *pulse, int64_t save_wait_ms)
{
    uint32_t unsaved;

    assert(save_wait_ms >= 0);
    if (save_wait_ms > HAPAX_DURATION_MAX_MS)
        save_wait_ms = HAPAX_DURATION_MAX_MS;
    pthread_mutex_lock(&pulse->lock);
    while (pulse->callers > 0)
        pthread_cond_wait(&pulse->empty, &pulse->lock);
    pulse->ending = true;
    pulse->end_us = hapax__boot_us() + save_wait_ms * US_PER_MS;
    pthread_mutex_unlock(&pulse->lock);
    knock(pulse);
    pthread_join(pulse->thread, NULL);
    for (struct hapax__call *stop = STAILQ_FIRST(&pulse->stops), *next; stop; stop = next) {
        next = STAILQ_NEXT(stop, stops);
        call_drop(stop);
    }
    unsaved = stop_all(pulse);
    pulse_free(pulse);
    return unsaved;
}
