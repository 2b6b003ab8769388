/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules by which messages are decided, walked over every answer, class and setting: what is
 * true of all of them, and the rows of the table at the head of hapax/consume.h.
 */
#include "../cases.h"
#include "door/consume/decide.h"

#include <stdio.h>
#include <string.h>

struct asked {
    struct hapax_consumer consumer;
    struct hapax__ended ended;
    struct hapax__before before;
};

static void asked_init(struct asked *asked, enum hapax_answer_kind kind, enum hapax_class cls)
{
    memset(asked, 0, sizeof(*asked));
    hapax_consumer_init(&asked->consumer);
    asked->ended.kind = kind;
    asked->ended.cls = cls;
    asked->ended.recorded = true;
    asked->ended.retry_after_ms = -1;
}

static struct hapax__decision decide(const struct asked *asked)
{
    return hapax__decide(&asked->consumer, &asked->ended, &asked->before, 200);
}

static void expect(const struct asked *asked, enum hapax__act act, const char *reason)
{
    struct hapax__decision decision = decide(asked);

    assert_int_equal(decision.act, act);
    assert_string_equal(decision.reason ? hapax__reason_name(decision.reason) : "", reason);
}

static void expect_wait(const struct asked *asked, enum hapax__wait why, int64_t after_ms)
{
    struct hapax__decision decision = decide(asked);

    assert_int_equal(decision.wait, why);
    assert_int_equal(decision.after_ms, after_ms);
}

/* ---- all of them ----------------------------------------------------------------------- */

static bool is_pause(enum hapax__act act)
{
    return act == HAPAX__ACT_RETRY || act == HAPAX__ACT_WAIT || act == HAPAX__ACT_RETURN;
}

/* Which answers may ever be acknowledged, whatever the settings. */
static bool may_acknowledge(const struct hapax__ended *ended)
{
    switch (ended->kind) {
    case HAPAX_ANSWER_REPLAY:
    case HAPAX_ANSWER_GONE:
    case HAPAX_ANSWER_EXPIRED:
        return ended->recorded;
    case HAPAX_ANSWER_FRESH:
        return ended->recorded && ended->cls == HAPAX_CLASS_FINAL;
    case HAPAX_ANSWER_BYPASS:
        return ended->cls == HAPAX_CLASS_FINAL;
    default:
        return false;
    }
}

static bool may_run(enum hapax_answer_kind kind)
{
    return kind == HAPAX_ANSWER_FRESH || kind == HAPAX_ANSWER_BYPASS;
}

static void check_sound(const struct asked *asked)
{
    const struct hapax__ended *ended = &asked->ended;
    struct hapax__decision decision = decide(asked);
    bool given_up = decision.act == HAPAX__ACT_DEAD || decision.act == HAPAX__ACT_PARK;

    assert_in_range(decision.act, HAPAX__ACT_ACK, HAPAX__ACT_REJECT);
    assert_int_equal(decision.act == HAPAX__ACT_ACK, may_acknowledge(ended));
    assert_int_equal(given_up, decision.reason != HAPAX__REASON_NONE);
    assert_int_equal(is_pause(decision.act), decision.wait != HAPAX__WAIT_NOT);
    assert_int_equal(is_pause(decision.act), decision.after_ms > 0);
    assert_true(decision.after_ms <= asked->consumer.policy.lease_ms ||
                decision.after_ms <= asked->consumer.retry_max_ms * 12 / 10);
    assert_int_equal(decision.ran, ended->cls != 0 && ended->cls != HAPAX_CLASS_NOT_RUN);
    if (ended->kind == HAPAX_ANSWER_STORE_DOWN)
        assert_int_equal(given_up, ended->error == HAPAX_ERR_CORRUPT);
    if (ended->kind == HAPAX_ANSWER_STORE_DOWN && !given_up)
        assert_int_equal(decision.wait, HAPAX__WAIT_STORE);
    if (ended->error == HAPAX_ERR_CORRUPT || ended->error == HAPAX_ERR_SEALED) /* of one record */
        assert_true(decision.store != HAPAX__STORE_AWAY || ended->kind == HAPAX_ANSWER_BYPASS);
    if (decision.act == HAPAX__ACT_PARK)
        assert_int_equal(asked->consumer.unknown, HAPAX_UNKNOWN_PARK);
    if (decision.act == HAPAX__ACT_RETURN)
        assert_int_equal(asked->consumer.in_flight, HAPAX_IN_FLIGHT_REQUEUE);
    if (decision.act == HAPAX__ACT_REJECT)
        assert_int_equal(ended->kind, HAPAX_ANSWER_MISSING_KEY);
    if (decision.act == HAPAX__ACT_RETRY) /* never past the last attempt */
        assert_true(asked->before.attempts + 1 < asked->consumer.policy.attempts_max ||
                    asked->consumer.policy.attempts_max == 0);
}

/* The settings that rules look at, as the digits of a number. */
#define SETTINGS (3 * 2 * 2 * 3 * 3 * 3)

static void set(struct hapax_consumer *consumer, unsigned number)
{
    consumer->policy.on_expired = (enum hapax_on_expired)(1 + number % 3);
    number /= 3;
    consumer->policy.on_failed = number % 2 ? HAPAX_FAILED_HOLD : HAPAX_FAILED_RETRY;
    number /= 2;
    consumer->unknown = (enum hapax_unknown)(1 + number % 2);
    number /= 2;
    consumer->in_flight = (enum hapax_in_flight)(1 + number % 3);
    number /= 3;
    consumer->no_key = (enum hapax_no_key)(1 + number % 3);
    number /= 3;
    consumer->policy.attempts_max = number % 3;
}

/* And what else an answer holds. */
#define SHADES (2 * 2 * 2 * 4 * 3 * 2)

static void shade(struct asked *asked, unsigned number)
{
    static const enum hapax_error errors[] = {HAPAX_ERR_NONE, HAPAX_ERR_UNAVAILABLE,
                                              HAPAX_ERR_CORRUPT, HAPAX_ERR_SEALED};
    static const int64_t after_ms[] = {-1, 0, INT64_MAX - 1};

    asked->ended.recorded = number % 2;
    number /= 2;
    asked->ended.unprotected = number % 2;
    number /= 2;
    asked->ended.refused = number % 2 && asked->ended.cls == HAPAX_CLASS_FAILED;
    number /= 2;
    asked->ended.error = errors[number % 4];
    number /= 4;
    asked->ended.retry_after_ms = after_ms[number % 3];
    number /= 3;
    asked->before.attempts = number % 2 ? UINT32_MAX - 1 : 0;
    asked->before.wait = number % 2 ? HAPAX__WAIT_STORE : HAPAX__WAIT_NOT;
    asked->before.waits = number % 2 ? 1000000 : 0;
}

/* A message is acknowledged only when it is done, none is dropped, and every pause is bounded. */
CASE(every_answer_under_every_setting_is_decided_soundly)
{
    for (int kind = 0; kind <= HAPAX_ANSWER_EXPIRED; kind++)
        for (int cls = 0; cls <= HAPAX_CLASS_UNKNOWN; cls++)
            for (unsigned setting = 0; setting < SETTINGS; setting++)
                for (unsigned number = 0; number < SHADES; number++) {
                    struct asked asked;

                    if (kind == HAPAX_ANSWER_LIMITED || /* only the HTTP door has limits */
                        (may_run((enum hapax_answer_kind)kind) && cls == 0))
                        continue;
                    asked_init(&asked, (enum hapax_answer_kind)kind, (enum hapax_class)cls);
                    set(&asked.consumer, setting);
                    shade(&asked, number);
                    check_sound(&asked);
                }
}

/* ---- the rows ------------------------------------------------------------------------------ */

CASE(what_is_done_is_acknowledged)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FINAL);
    expect(&asked, HAPAX__ACT_ACK, "");
    asked_init(&asked, HAPAX_ANSWER_GONE, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_ACK, "");
    asked_init(&asked, HAPAX_ANSWER_REPLAY, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_ACK, "");
    asked_init(&asked, HAPAX_ANSWER_EXPIRED, (enum hapax_class)0); /* it met a tombstone */
    expect(&asked, HAPAX__ACT_ACK, "");
    assert_int_equal(decide(&asked).store, HAPAX__STORE_UP);
    asked_init(&asked, HAPAX_ANSWER_BYPASS, HAPAX_CLASS_FINAL);
    asked.ended.recorded = false;
    expect(&asked, HAPAX__ACT_ACK, "");
}

/* The pause doubles, up to the most; the last attempt ends it. */
CASE(what_failed_is_tried_again_with_growing_pauses)
{
    static const int64_t pauses_ms[] = {1000, 2000, 4000, 8000, 16000, 20000, 20000};
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FAILED);
    asked.consumer.retry_max_ms = 20000;
    for (asked.before.attempts = 0; asked.before.attempts < 7; asked.before.attempts++) {
        expect(&asked, HAPAX__ACT_RETRY, "");
        expect_wait(&asked, HAPAX__WAIT_FAILED, pauses_ms[asked.before.attempts]);
    }
    expect(&asked, HAPAX__ACT_DEAD, "failed");
    asked.consumer.policy.attempts_max = 0;
    expect(&asked, HAPAX__ACT_RETRY, "");
    asked.ended.refused = true;
    expect(&asked, HAPAX__ACT_DEAD, "refused");
}

CASE(what_failed_under_hold_is_unknown)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FAILED);
    asked.consumer.policy.on_failed = HAPAX_FAILED_HOLD;
    expect(&asked, HAPAX__ACT_PARK, "unknown");
    asked.consumer.unknown = HAPAX_UNKNOWN_DEAD_LETTER;
    expect(&asked, HAPAX__ACT_DEAD, "unknown");
    asked.ended.refused = true;
    expect(&asked, HAPAX__ACT_DEAD, "unknown");
    asked.consumer.policy.on_expired = HAPAX_EXPIRED_RECONCILE; /* the hook may tell */
    expect(&asked, HAPAX__ACT_DEAD, "refused");
    asked.ended.refused = false;
    expect(&asked, HAPAX__ACT_RETRY, "");
}

/* Its repeat would run again. There is no record to say so, and none that a hook is asked about. */
CASE(an_unprotected_attempt_is_held_as_any_other)
{
    static const enum hapax_class ends[] = {HAPAX_CLASS_FAILED, HAPAX_CLASS_UNKNOWN};
    static const enum hapax_on_expired held[] = {HAPAX_EXPIRED_HOLD, HAPAX_EXPIRED_RECONCILE};
    struct asked asked;

    for (size_t i = 0; i < 4; i++) {
        asked_init(&asked, HAPAX_ANSWER_BYPASS, ends[i / 2]);
        asked.ended.recorded = false;
        asked.consumer.policy.on_expired = held[i % 2];
        expect(&asked, HAPAX__ACT_PARK, "unknown");
        assert_true(decide(&asked).ran);
    }
    asked.ended.cls = HAPAX_CLASS_NOT_RUN;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 1000);
    asked.ended.cls = HAPAX_CLASS_FAILED;
    asked.ended.refused = true;
    expect(&asked, HAPAX__ACT_PARK, "unknown");
    asked.consumer.policy.on_failed = HAPAX_FAILED_RETRY;
    expect(&asked, HAPAX__ACT_DEAD, "refused");
    asked.ended.refused = false;
    expect(&asked, HAPAX__ACT_RETRY, "");
}

/* A hook may let the handler run again each time, and the record never gives up: a store that is
 * always late must not make it run without end. */
CASE(what_failed_for_good_under_a_hook_does_not_wait_for_the_store)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FAILED);
    asked.consumer.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    asked.ended.recorded = false;
    asked.before.attempts = 6;
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
    asked.before.attempts = 7;
    expect(&asked, HAPAX__ACT_DEAD, "failed");
    assert_int_equal(decide(&asked).store, HAPAX__STORE_AWAY);
    asked.before.attempts = 0;
    asked.ended.refused = true;
    expect(&asked, HAPAX__ACT_DEAD, "refused");
    asked.consumer.policy.on_failed = HAPAX_FAILED_RETRY; /* the record gives up */
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
}

/* A damaged record stays so, and says nothing of the store. */
CASE(one_whose_record_is_damaged_is_set_aside)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_STORE_DOWN, (enum hapax_class)0);
    asked.ended.error = HAPAX_ERR_CORRUPT;
    expect(&asked, HAPAX__ACT_PARK, "corrupt");
    assert_int_equal(decide(&asked).store, HAPAX__STORE_NOT_SEEN);
    asked.consumer.unknown = HAPAX_UNKNOWN_DEAD_LETTER;
    expect(&asked, HAPAX__ACT_DEAD, "corrupt");
}

/* No repeat mends a record that the keys do not open; and the store has shown it. */
CASE(one_whose_outcome_is_sealed_waits_alone)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_STORE_DOWN, (enum hapax_class)0);
    asked.ended.error = HAPAX_ERR_SEALED;
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_UP);
    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FINAL);
    asked.ended.recorded = false;
    asked.ended.error = HAPAX_ERR_SEALED;
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_UP);
}

CASE(what_did_not_run_is_not_counted)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_NOT_RUN);
    asked.before.attempts = 7;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 1000);
    assert_false(decide(&asked).ran);
    asked.before.wait = HAPAX__WAIT_AWAY;
    asked.before.waits = 3;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 8000);
    asked.before.waits = 40000;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 300000);
}

/* One tenant's messages, say, must not keep the place of all others. */
CASE(who_is_turned_away_by_a_status_goes_round_by_the_broker)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_NOT_RUN);
    asked.ended.status = 403;
    asked.before.wait = HAPAX__WAIT_AWAY;
    asked.before.waits = 2;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 4000);
    asked.before.waits = 3;
    expect(&asked, HAPAX__ACT_RETRY, "");
    assert_false(decide(&asked).ran);
    assert_in_range(decide(&asked).after_ms, 240000, 360000);
    asked.ended.status = 0;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 8000);
}

/* Within the limits of pauses, however often; and never sooner than told. */
CASE(a_handler_says_for_how_long)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_NOT_RUN);
    asked.ended.status = 429;
    asked.ended.retry_after_ms = 5000;
    expect_wait(&asked, HAPAX__WAIT_AWAY, 6000);
    assert_true(decide(&asked).told);
    asked.before.wait = HAPAX__WAIT_AWAY;
    asked.before.waits = 9;
    expect(&asked, HAPAX__ACT_RETRY, "");
    assert_int_equal(decide(&asked).after_ms, 6000);
    asked.ended.retry_after_ms = 1;
    assert_int_equal(decide(&asked).after_ms, 1200);
    asked.ended.retry_after_ms = 86400000;
    assert_int_equal(decide(&asked).after_ms, 360000);
}

CASE(an_unknown_end_waits_for_the_lease)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_UNKNOWN);
    asked.ended.recorded = false;
    expect_wait(&asked, HAPAX__WAIT_LEASE, 30000);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_NOT_SEEN);
    asked.consumer.policy.on_expired = HAPAX_EXPIRED_HOLD;
    expect_wait(&asked, HAPAX__WAIT_LEASE, 30000);
    asked.ended.recorded = true;
    expect(&asked, HAPAX__ACT_PARK, "unknown");
    /* Without a record to count it, it is counted here. */
    asked_init(&asked, HAPAX_ANSWER_BYPASS, HAPAX_CLASS_UNKNOWN);
    asked.before.attempts = 6;
    expect_wait(&asked, HAPAX__WAIT_LEASE, 30000);
    asked.before.attempts = 7;
    expect(&asked, HAPAX__ACT_PARK, "unknown");
}

/* Soon at first, then when the lease may be over. */
CASE(one_in_flight_is_asked_for_again)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_IN_FLIGHT, (enum hapax_class)0);
    asked.ended.retry_after_ms = 900;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 100);
    asked.before.wait = HAPAX__WAIT_DUPLICATE;
    asked.before.waits = 3;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 800);
    asked.before.waits = 4;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 901);
    asked.ended.retry_after_ms = 86400000;
    asked.before.waits = 60;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 30000);
    asked.consumer.in_flight = HAPAX_IN_FLIGHT_REQUEUE;
    expect(&asked, HAPAX__ACT_RETURN, "");
    expect_wait(&asked, HAPAX__WAIT_RETURN, 1000);
    asked.consumer.policy.lease_ms = 10; /* shorter than any pause */
    expect_wait(&asked, HAPAX__WAIT_RETURN, 10);
}

/* The lease is over, and its outcome is still being stored: nobody can tell for how long. */
CASE(one_in_flight_whose_lease_is_over_is_asked_for_with_growing_pauses)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_IN_FLIGHT, (enum hapax_class)0);
    asked.ended.retry_after_ms = 0;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 100);
    asked.before.wait = HAPAX__WAIT_DUPLICATE;
    asked.before.waits = 3;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 800);
    asked.before.waits = 60;
    expect_wait(&asked, HAPAX__WAIT_DUPLICATE, 30000);
}

CASE(an_unknown_operation_is_given_up_unless_a_hook_may_tell)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_UNKNOWN, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_PARK, "unknown");
    asked.consumer.unknown = HAPAX_UNKNOWN_DEAD_LETTER;
    expect(&asked, HAPAX__ACT_DEAD, "unknown");
    asked.ended.retry_after_ms = 1000;
    expect_wait(&asked, HAPAX__WAIT_HOOK, 1000);
    asked.before.wait = HAPAX__WAIT_HOOK;
    asked.before.waits = 7;
    expect(&asked, HAPAX__ACT_DEAD, "unknown");
}

CASE(what_cannot_be_asked_for_is_given_up)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_FAILED, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "failed");
    asked_init(&asked, HAPAX_ANSWER_MISMATCH, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "mismatch");
    asked_init(&asked, HAPAX_ANSWER_BAD_KEY, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "bad_key");
    asked_init(&asked, HAPAX_ANSWER_MISSING_OWNER, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "bad_key");
    asked_init(&asked, HAPAX_ANSWER_EXPIRED, (enum hapax_class)0); /* its key is too old */
    asked.ended.recorded = false;
    expect(&asked, HAPAX__ACT_DEAD, "bad_key");
    asked_init(&asked, HAPAX_ANSWER_TOO_LARGE, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "too_large");
    asked_init(&asked, HAPAX_ANSWER_MISSING_KEY, (enum hapax_class)0);
    expect(&asked, HAPAX__ACT_DEAD, "no_key");
    asked.consumer.no_key = HAPAX_NO_KEY_REJECT;
    expect(&asked, HAPAX__ACT_REJECT, "");
}

/* The store's state is told by answers that come from it; an outcome too big is not a store that is
 * away. */
CASE(the_store_is_seen_by_its_answers)
{
    struct asked asked;

    asked_init(&asked, HAPAX_ANSWER_STORE_DOWN, (enum hapax_class)0);
    asked.ended.error = HAPAX_ERR_UNAVAILABLE;
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_AWAY);
    asked.before.wait = HAPAX__WAIT_STORE;
    asked.before.waits = 10;
    expect_wait(&asked, HAPAX__WAIT_STORE, 5000);
    asked.ended.error = HAPAX_ERR_TOO_BIG;
    assert_int_equal(decide(&asked).store, HAPAX__STORE_NOT_SEEN);
    asked_init(&asked, HAPAX_ANSWER_FRESH, HAPAX_CLASS_FINAL);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_UP);
    asked.ended.recorded = false;
    expect_wait(&asked, HAPAX__WAIT_STORE, 100);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_AWAY);
    asked_init(&asked, HAPAX_ANSWER_BYPASS, HAPAX_CLASS_FINAL);
    assert_int_equal(decide(&asked).store, HAPAX__STORE_NOT_SEEN);
    asked.ended.unprotected = true;
    assert_int_equal(decide(&asked).store, HAPAX__STORE_AWAY);
}

CASE(pauses_grow_within_their_jitter)
{
    assert_int_equal(hapax__pause_ms(1000, 300000, 0, 0), 800);
    assert_int_equal(hapax__pause_ms(1000, 300000, 0, 200), 1000);
    assert_int_equal(hapax__pause_ms(1000, 300000, 0, 400), 1200);
    assert_int_equal(hapax__pause_ms(1, 1, 0, 0), 1);
    for (unsigned n = 0; n < 100; n++)
        for (uint32_t random = 0; random < 1000; random++) {
            int64_t pause_ms = hapax__pause_ms(1000, 300000, n, random * 4294967);

            assert_in_range(pause_ms, 800, 360000);
        }
}
