/* SPDX-License-Identifier: Apache-2.0
 *
 * Some flows of one process on a bench: a test plays the store, the handler and the clock, and
 * compares what the flows decide, written down line by line, with what it expects. Any number of
 * flows share the table of waiters, and are driven after each event, as doors do it.
 */
#ifndef HAPAX_TESTS_FLOW_BENCH_H
#define HAPAX_TESTS_FLOW_BENCH_H

#include "core/drive.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define FLOWS      6
#define MS         INT64_C(1000)
#define STORE_US   INT64_C(1700000000000000)
#define FENCE      900
#define LEASE_MS   900
#define TRACE_SIZE 4096

struct bench {
    struct hapax__flow flows[FLOWS];
    struct hapax_policy policies[FLOWS];
    struct hapax__flow_request requests[FLOWS];
    struct hapax__waiters waiters;
    struct hapax__bucket buckets[2];
    struct hapax__counts counts; /* of all flows */
    int64_t now_us;
    char trace[TRACE_SIZE];
    size_t len;
};

static inline void bench_init(struct bench *b)
{
    memset(b, 0, sizeof(*b));
    b->now_us = 1000 * MS;
    hapax__waiters_init(&b->waiters, b->buckets, 2);
    for (int i = 0; i < FLOWS; i++) {
        struct hapax__flow_request *r = &b->requests[i];

        hapax_policy_init(&b->policies[i]);
        b->policies[i].lease_ms = LEASE_MS;
        b->policies[i].run_max_ms = 10 * LEASE_MS;
        r->key = HAPAX__KEY_GIVEN;
        r->scope = hapax_str("default");
        memset(&r->token, 0, sizeof(r->token)); /* zeros: pauses are not shortened */
        r->token.bytes[15] = (uint8_t)(i + 1);
        memset(&r->id, 0xa1, sizeof(r->id));
        r->id.bytes[31] = (uint8_t)i; /* another operation each, in the same bucket */
        b->flows[i].door = b;
        b->flows[i].counts = &b->counts;
    }
}

static inline void note(struct bench *b, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline void note(struct bench *b, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(b->trace + b->len, TRACE_SIZE - b->len, format, args);
    va_end(args);
    assert_true(n >= 0 && (size_t)n < TRACE_SIZE - b->len);
    b->len += (size_t)n;
}

static inline void note_ask(struct bench *b, int i)
{
    static const char *const names[] = {"", "claim", "renew", "complete", "fail", "read"};
    const struct hapax_op *op = &b->flows[i].op;

    note(b, "%d ASK %s", i, names[op->kind]);
    if (op->kind == HAPAX_OP_CLAIM && op->on_expired != HAPAX_EXPIRED_RERUN)
        note(b, op->on_expired == HAPAX_EXPIRED_HOLD ? " hold" : " reconcile");
    if (op->kind == HAPAX_OP_RENEW && op->reconciled)
        note(b, " reconciled");
    if (op->kind == HAPAX_OP_COMPLETE)
        note(b, " %d%s", op->outcome.status, op->outcome.body_kept ? "" : " bodiless");
    if (op->kind == HAPAX_OP_FAIL)
        note(b, "%s%s%s", op->ran ? " ran" : " not-run", op->as_unknown ? " unknown" : "",
             op->died ? " died" : "");
    note(b, "\n");
}

static inline void note_answer(struct bench *b, int i)
{
    const struct hapax_answer *a = &b->flows[i].answer;

    note(b, "%d ANSWER %s", i, hapax_answer_name(a->kind));
    if (a->outcome.status != 0)
        note(b, " %d", a->outcome.status);
    if (a->kind == HAPAX_ANSWER_FRESH)
        note(b, a->recorded ? " recorded" : " unrecorded");
    if (a->unprotected)
        note(b, " unprotected");
    if (a->kind == HAPAX_ANSWER_LIMITED)
        note(b, " %s", hapax__limit_name(b->flows[i].limited));
    if (a->differs != HAPAX_DIFFERS_NOT)
        note(b, a->differs == HAPAX_DIFFERS_CALLER ? " caller" : " fingerprint");
    if (a->kind == HAPAX_ANSWER_STORE_DOWN)
        note(b, " %s", hapax_error_name(a->error));
    if (a->retry_after_ms >= 0)
        note(b, " retry %lld", (long long)a->retry_after_ms);
    note(b, "\n");
}

static inline int64_t bench_now(const struct hapax__flow *f)
{
    const struct bench *b = f->door;

    return b->now_us;
}

static inline bool note_act(struct hapax__flow *f, enum hapax__flow_do what, int64_t now_us)
{
    struct bench *b = f->door;
    int i = (int)(f - b->flows);

    (void)now_us;
    switch (what) {
    case HAPAX__FLOW_PAUSE:
        break;
    case HAPAX__FLOW_END:
        note(b, "%d END\n", i);
        break;
    case HAPAX__FLOW_ASK:
        note_ask(b, i);
        break;
    case HAPAX__FLOW_RUN:
        note(b, "%d RUN a%u%s\n", i, f->attempt, f->stale ? " stale" : "");
        break;
    case HAPAX__FLOW_RECONCILE:
        note(b, "%d RECONCILE a%u\n", i, f->attempt);
        break;
    case HAPAX__FLOW_ABANDON:
        note(b, "%d ABANDON\n", i);
        break;
    case HAPAX__FLOW_ANSWER:
        note_answer(b, i);
        break;
    }
    return true;
}

static inline void go_on(struct bench *b, int i)
{
    static const struct hapax__flow_door door = {bench_now, note_act};

    assert_true(hapax__flow_drive(&b->flows[i], &door));
}

static inline void begin(struct bench *b, int i)
{
    hapax__flow_begin(&b->flows[i], &b->policies[i], &b->waiters, &b->requests[i], b->now_us);
    assert_ptr_equal(b->flows[i].door, b);
    go_on(b, i);
}

/* Time passes, and the flow is woken if it wanted to be by then. */
static inline void pass_ms(struct bench *b, int i, int64_t ms)
{
    b->now_us += ms * MS;
    assert_true(b->flows[i].wake_us <= b->now_us);
    go_on(b, i);
}

/* How long the flow wants to sleep. */
static inline int64_t sleeps_ms(const struct bench *b, int i)
{
    return (b->flows[i].wake_us - b->now_us + MS - 1) / MS;
}

static inline struct hapax_outcome outcome_of(int status)
{
    return (struct hapax_outcome){
        .status = status,
        .body_kept = true,
        .headers = hapax_str("A: b\r\n"),
        .body = hapax_str("body"),
    };
}

/* The store answers flow i with a record in this state, made by the request of flow i. */
static inline struct hapax_op *answered(struct bench *b, int i, enum hapax_verdict verdict,
                                        enum hapax_state state)
{
    struct hapax_op *op = &b->flows[i].op;

    op->verdict = verdict;
    op->error = HAPAX_ERR_NONE;
    op->now_us = STORE_US;
    op->record = (struct hapax_record){.state = state};
    if (state == HAPAX_STATE_ABSENT)
        return op;
    op->record.fingerprint = b->requests[i].fingerprint;
    op->record.caller = b->requests[i].caller;
    op->record.attempt = 1;
    op->record.fence = FENCE;
    if (state == HAPAX_STATE_STARTED)
        op->record.lease_until_us = STORE_US + LEASE_MS * MS;
    if (state == HAPAX_STATE_COMPLETED)
        op->record.outcome = outcome_of(201);
    return op;
}

static inline void told(struct bench *b, int i)
{
    hapax__flow_told(&b->flows[i], b->now_us);
    go_on(b, i);
}

static inline void told_state(struct bench *b, int i, enum hapax_verdict verdict,
                              enum hapax_state state)
{
    answered(b, i, verdict, state);
    told(b, i);
}

static inline void told_error(struct bench *b, int i, enum hapax_error error)
{
    b->flows[i].op.verdict = HAPAX_NO_VERDICT;
    b->flows[i].op.error = error;
    told(b, i);
}

static inline void told_claimed(struct bench *b, int i, uint32_t attempt, bool stale)
{
    struct hapax_op *op = answered(b, i, HAPAX_CLAIMED, HAPAX_STATE_STARTED);

    op->record.attempt = attempt;
    op->record.stale = stale;
    told(b, i);
}

/* OK to a COMPLETE: what was asked is stored. */
static inline void told_stored(struct bench *b, int i)
{
    struct hapax_op *op = answered(b, i, HAPAX_OK, HAPAX_STATE_COMPLETED);

    op->record.outcome = op->outcome;
    told(b, i);
}

static inline void handled(struct bench *b, int i, enum hapax_class cls, int status)
{
    struct hapax_outcome outcome = outcome_of(status);

    hapax__flow_handled(&b->flows[i], cls, &outcome, b->now_us);
    go_on(b, i);
}

static inline void died(struct bench *b, int i)
{
    hapax__flow_died(&b->flows[i], b->now_us);
    go_on(b, i);
}

static inline void hooked(struct bench *b, int i, enum hapax_class cls, int status)
{
    struct hapax_outcome outcome = outcome_of(status);

    hapax__flow_reconciled(&b->flows[i], cls, &outcome, b->now_us);
    go_on(b, i);
}

/* The owner of flow i is at a limit before it begins. */
static inline void limit(struct bench *b, int i)
{
    b->requests[i].over = (struct hapax__over){HAPAX__LIMIT_KEYS, 5000};
}

/* The owner of flow i is at a limit when it was to run. */
static inline void refused(struct bench *b, int i)
{
    hapax__flow_refused(&b->flows[i], (struct hapax__over){HAPAX__LIMIT_IN_FLIGHT, 1000},
                        b->now_us);
    go_on(b, i);
}

static inline void stop(struct bench *b, int i)
{
    hapax__flow_stop(&b->flows[i], b->now_us);
    go_on(b, i);
}

/* What was decided since the last look. */
#define expect(b, text)                                                                            \
    do {                                                                                           \
        assert_string_equal((b)->trace, text);                                                     \
        (b)->len = 0;                                                                              \
        (b)->trace[0] = '\0';                                                                      \
    } while (0)

/* Begins flow i and grants its claim. */
static inline void run_flow(struct bench *b, int i)
{
    begin(b, i);
    told_claimed(b, i, 1, false);
    b->len = 0;
    b->trace[0] = '\0';
}

#endif
