/* SPDX-License-Identifier: Apache-2.0
 *
 * What hapax_execute() answers, policy by policy and fault by fault, to one caller after another.
 * Callers at once are in test_execute_threads.c.
 */
#include "../cases.h"
#include "ahead.h"
#include "core/breaker.h"
#include "door/call.h"
#include "execute_bed.h"

#include <hapax/metrics.h>

/* ---- first call and repeats ---------------------------------------------------------- */

/* Status, headers and body come back byte for byte, and the handler is told who it is. */
CASE(the_first_call_runs_and_every_repeat_is_given_its_bytes)
{
    struct hapax_answer fresh, replay;
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 201, "receipt 1");
    script.headers = "Location: /1\r\n";
    fresh = execute(&bed, "k", &script);
    assert_int_equal(fresh.kind, HAPAX_ANSWER_FRESH);
    assert_int_equal(fresh.cls, HAPAX_CLASS_FINAL);
    assert_true(fresh.recorded && !fresh.unprotected);
    assert_int_equal(script.number, 1);
    assert_true(script.fence > 0 && script.fence == fresh.fence);
    assert_false(script.stale);
    for (int i = 0; i < 3; i++) {
        replay = execute(&bed, "k", &script);
        assert_int_equal(replay.kind, HAPAX_ANSWER_REPLAY);
        assert_true(replay.recorded);
        assert_int_equal(replay.attempt, 1);
        assert_int_equal(replay.outcome.status, 201);
        assert_true(body_is(&replay, "receipt 1"));
        assert_int_equal(replay.outcome.headers.len, strlen(script.headers));
        assert_memory_equal(replay.outcome.headers.ptr, script.headers, strlen(script.headers));
        hapax_answer_release(&replay);
    }
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
    assert_true(body_is(&fresh, "receipt 1")); /* an answer outlives its handle */
    hapax_answer_release(&fresh);
    hapax_answer_release(&fresh);
}

static enum hapax_class says_nothing(struct hapax_attempt *attempt, void *arg)
{
    (void)attempt;
    (void)arg;
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class corrects_itself(struct hapax_attempt *attempt, void *arg)
{
    static const char *const no_lines[] = {
        "A: b",        "A: b\n",       "\r\n",      "\n",           "A\r\n",
        ": b\r\n",     "A B: c\r\n",   "A : b\r\n", "A\x7f: b\r\n", "A: b\r\nB: c",
        "A: b\rc\r\n", "A: b\n c\r\n", " A: b\r\n", "A: b\r\n\r\n", "A: b\r\nB\r\n",
    };
    static uint8_t big[HAPAX_BODY_MAX + 1];
    struct hapax_span none = {NULL, 0};

    (void)arg;
    must(hapax_attempt_outcome(attempt, 500, none, hapax_str("first")) == HAPAX_ERR_NONE);
    must(hapax_attempt_outcome(attempt, 200, hapax_str("A:\r\nB: c:d\te\xc3\r\n"),
                               hapax_str("second")) == HAPAX_ERR_NONE);
    must(hapax_attempt_outcome(attempt, 1000, none, none) == HAPAX_ERR_INVALID);
    must(hapax_attempt_outcome(attempt, -1, none, none) == HAPAX_ERR_INVALID);
    must(hapax_attempt_outcome(attempt, 200, none, (struct hapax_span){big, sizeof(big)}) ==
         HAPAX_ERR_INVALID);
    must(hapax_attempt_outcome(attempt, 200, (struct hapax_span){big, HAPAX_HEADERS_MAX + 1},
                               none) == HAPAX_ERR_INVALID);
    must(hapax_attempt_outcome(attempt, 200, (struct hapax_span){(const uint8_t *)"A: \0\r\n", 6},
                               none) == HAPAX_ERR_INVALID);
    for (size_t i = 0; i < sizeof(no_lines) / sizeof(no_lines[0]); i++)
        must(hapax_attempt_outcome(attempt, 200, hapax_str(no_lines[i]), none) ==
             HAPAX_ERR_INVALID);
    return HAPAX_CLASS_FINAL;
}

/* No outcome is an empty one; of several the last valid one counts. */
CASE(the_last_outcome_set_is_the_outcome)
{
    struct hapax_request request = request_of("none");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "never");
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, says_nothing, NULL, NULL, &answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.outcome.status, 0);
    assert_true(answer.outcome.body_kept && body_is(&answer, ""));
    hapax_answer_release(&answer);
    expect(&bed, "none", &script, HAPAX_ANSWER_REPLAY, "");
    request = request_of("several");
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, corrects_itself, NULL, NULL, &answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.outcome.status, 200);
    assert_true(body_is(&answer, "second"));
    hapax_answer_release(&answer);
    expect(&bed, "several", &script, HAPAX_ANSWER_REPLAY, "second");
    assert_int_equal(script.runs, 0);
    bed_close(&bed);
}

/* The context of the run is given with each of its outcomes, and is no header of theirs. Of a
 * caller that has none, or one that is none, there is none. */
CASE(the_trace_of_the_run_is_given_with_its_outcome)
{
    static const char trace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    static const struct {
        const char *key, *given, *kept;
        hapax_handler *handler;
        enum hapax_class cls;
    } cases[] = {
        {"outcome", trace, trace, play, HAPAX_CLASS_FINAL},
        {"no outcome", trace, trace, says_nothing, HAPAX_CLASS_FINAL},
        {"none", NULL, "", play, HAPAX_CLASS_FINAL},
        {"bad", "00-0", "", play, HAPAX_CLASS_FINAL},
    };
    char text[HAPAX_TEXT_MAX];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 201, "x");
    script.headers = "A: b\r\n";
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int again = 0; again < 2; again++) {
            struct hapax_request request = request_of(cases[i].key);
            bool empty = cases[i].handler == says_nothing;
            struct hapax_answer answer;

            request.trace = again ? hapax_str(NULL) : hapax_str(cases[i].given);
            assert_int_equal(hapax_execute(bed.h, &bed.policy, &request, cases[i].handler, NULL,
                                           &script, &answer, text),
                             HAPAX_ERR_NONE);
            assert_int_equal(answer.kind, again ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_FRESH);
            assert_string_equal(answer.trace, cases[i].kept);
            assert_int_equal(answer.outcome.headers.len, empty ? 0 : strlen(script.headers));
            assert_true(body_is(&answer, empty ? "" : "x"));
            hapax_answer_release(&answer);
        }
    bed_close(&bed);
}

static enum hapax_class says_much(struct hapax_attempt *attempt, void *arg)
{
    must(hapax_attempt_outcome(attempt, 200, *(struct hapax_span *)arg, hapax_str(NULL)) ==
         HAPAX_ERR_NONE);
    return HAPAX_CLASS_FINAL;
}

/* Headers up to the limit are kept whole: there the trace is left out. */
CASE(headers_at_the_limit_leave_no_room_for_a_trace)
{
    static char bytes[HAPAX_HEADERS_MAX];
    struct hapax_span headers = {(const uint8_t *)bytes, sizeof(bytes)};
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct bed bed;

    memset(bytes, 'a', sizeof(bytes));
    memcpy(bytes, "A: ", 3);
    memcpy(bytes + sizeof(bytes) - 2, "\r\n", 2);
    bed_open(&bed);
    for (int again = 0; again < 2; again++) {
        struct hapax_request request = request_of("k");

        request.trace = hapax_str("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, says_much, NULL, &headers, &answer, text),
            HAPAX_ERR_NONE);
        assert_string_equal(answer.trace, "");
        assert_int_equal(answer.outcome.headers.len, sizeof(bytes));
        hapax_answer_release(&answer);
    }
    bed_close(&bed);
}

/* Another request or another caller under the same key is refused, and nothing of the answer
 * shows. */
CASE(another_fingerprint_or_caller_is_a_mismatch)
{
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "secret");
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "secret");
    for (int i = 0; i < 2; i++) {
        request = request_of("k");
        (i == 0 ? &request.fingerprint : &request.caller)->bytes[0] = 1;
        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, play, NULL, &script, &answer, text),
            HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, HAPAX_ANSWER_MISMATCH);
        assert_int_equal(answer.differs, i == 0 ? HAPAX_DIFFERS_FINGERPRINT : HAPAX_DIFFERS_CALLER);
        assert_int_equal(answer.outcome.body.len, 0);
        hapax_answer_release(&answer);
    }
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* An operation is known by scope and key; no scope is the scope `default`. */
CASE(one_key_in_two_scopes_is_two_operations)
{
    static const char *const scopes[] = {"", "default", "tenant 2"};
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    for (int i = 0; i < 3; i++) {
        struct hapax_request request = request_of("k");
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];

        request.scope = hapax_str(scopes[i]);
        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, play, NULL, &script, &answer, text),
            HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, i == 1 ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_FRESH);
        hapax_answer_release(&answer);
    }
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* Without a key the policy decides, and nothing is stored. */
CASE(a_missing_key_is_refused_or_bypassed)
{
    struct hapax_answer answer;
    struct script script;
    struct bed bed;
    uint64_t ops;

    bed_open(&bed);
    ops = hapax__plan_counts(&bed.plan).ops;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    bed.policy.key = HAPAX_KEY_REQUIRED;
    expect(&bed, "", &script, HAPAX_ANSWER_MISSING_KEY, "");
    assert_int_equal(script.runs, 0);
    bed.policy.key = HAPAX_KEY_OPTIONAL;
    expect(&bed, "", &script, HAPAX_ANSWER_BYPASS, "ran");
    answer = execute(&bed, "", &script);
    assert_int_equal(answer.kind, HAPAX_ANSWER_BYPASS);
    assert_false(answer.unprotected || answer.recorded);
    assert_int_equal(script.number, 1);
    assert_int_equal(script.fence, 0);
    hapax_answer_release(&answer);
    assert_int_equal(script.runs, 2);
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, ops);
    bed_close(&bed);
}

struct saga {
    struct bed *bed;
    struct script steps[2];
};

static enum hapax_class run_saga(struct hapax_attempt *attempt, void *arg)
{
    static const char *const names[] = {"reserve", "charge"};
    struct saga *saga = arg;
    char text[HAPAX_TEXT_MAX];

    for (int i = 0; i < 2; i++) {
        struct hapax_request request = request_of("order");
        struct hapax_answer answer;

        request.step = hapax_str(names[i]);
        must(hapax_execute(saga->bed->h, &saga->bed->policy, &request, play, NULL, &saga->steps[i],
                           &answer, text) == HAPAX_ERR_NONE);
        must(answer.kind == HAPAX_ANSWER_FRESH || answer.kind == HAPAX_ANSWER_REPLAY);
        hapax_answer_release(&answer);
        /* The first attempt fails between its steps. */
        if (i == 0 && hapax_attempt_number(attempt) == 1)
            return HAPAX_CLASS_FAILED;
    }
    return HAPAX_CLASS_FINAL;
}

/* A handler may execute steps of its operation; one that is done is not run again on a retry. */
CASE(steps_have_records_of_their_own_and_nest)
{
    struct hapax_request request = request_of("order");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct saga saga;
    struct bed bed;

    bed_open(&bed);
    saga.bed = &bed;
    script_init(&saga.steps[0], HAPAX_CLASS_FINAL, 200, "reserved");
    script_init(&saga.steps[1], HAPAX_CLASS_FINAL, 200, "charged");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, run_saga, NULL, &saga, &answer, text),
            HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, i < 2 ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_REPLAY);
        assert_int_equal(answer.attempt, i == 0 ? 1 : 2);
        hapax_answer_release(&answer);
    }
    assert_int_equal(saga.steps[0].runs, 1);
    assert_int_equal(saga.steps[1].runs, 1);
    bed_close(&bed);
}

/* ---- how a handler ends --------------------------------------------------------------- */

/* The caller sees the failure; the next one runs again, as the next attempt, with a higher
 * fence. */
CASE(after_a_failure_a_retry_runs)
{
    struct script script;
    struct bed bed;
    uint64_t fence;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FAILED, 500, "broken");
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "broken");
    fence = script.fence;
    script.cls = HAPAX_CLASS_FINAL;
    script.body = "mended";
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "mended");
    assert_int_equal(script.number, 2);
    assert_true(script.fence > fence);
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "mended");
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* `replay` keeps a failure as the outcome; `hold` leaves it to an operator. */
CASE(on_failed_may_replay_or_hold)
{
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FAILED, 500, "broken");
    bed.policy.on_failed = HAPAX_FAILED_REPLAY;
    expect(&bed, "replay", &script, HAPAX_ANSWER_FRESH, "broken");
    expect(&bed, "replay", &script, HAPAX_ANSWER_REPLAY, "broken");
    bed.policy.on_failed = HAPAX_FAILED_HOLD;
    expect(&bed, "hold", &script, HAPAX_ANSWER_FRESH, "broken");
    expect(&bed, "hold", &script, HAPAX_ANSWER_UNKNOWN, "");
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* Under `hold` and `reconcile` a failure is held unless `on_failed` says otherwise, and the hook is
 * asked where there is one. */
CASE(a_failure_under_hold_is_held)
{
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    script_init(&script, HAPAX_CLASS_FAILED, 500, "broken");
    expect(&bed, "by default", &script, HAPAX_ANSWER_FRESH, "broken");
    expect(&bed, "by default", &script, HAPAX_ANSWER_UNKNOWN, "");
    bed.policy.on_failed = HAPAX_FAILED_RETRY;
    expect(&bed, "retry", &script, HAPAX_ANSWER_FRESH, "broken");
    expect(&bed, "retry", &script, HAPAX_ANSWER_FRESH, "broken");
    assert_int_equal(script.runs, 3);
    bed_close(&bed);
}

/* What did not run is passed on, and does not count against attempts_max; what may have does. */
CASE(only_what_may_have_run_uses_attempts_up)
{
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.attempts_max = 2;
    script_init(&script, HAPAX_CLASS_NOT_RUN, 503, "busy");
    for (int i = 0; i < 3; i++)
        expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "busy");
    script.cls = HAPAX_CLASS_FAILED;
    script.body = "broken";
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "broken");
    script.body = "broken again";
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "broken again");
    expect(&bed, "k", &script, HAPAX_ANSWER_FAILED, "broken again");
    assert_int_equal(script.runs, 5);
    bed_close(&bed);
}

/* Nobody can tell what became of it: `hold` says so at once, `rerun` runs again after the lease. */
CASE(an_unknown_end_is_held_or_left_to_the_lease)
{
    struct script script;
    struct bed bed;
    int64_t begun_ms;

    bed_open(&bed);
    bed.policy.lease_ms = 100;
    script_init(&script, HAPAX_CLASS_UNKNOWN, 504, "");
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    expect(&bed, "hold", &script, HAPAX_ANSWER_FRESH, "");
    expect(&bed, "hold", &script, HAPAX_ANSWER_UNKNOWN, "");
    assert_int_equal(script.runs, 1);
    bed.policy.on_expired = HAPAX_EXPIRED_RERUN;
    begun_ms = now_ms();
    expect(&bed, "rerun", &script, HAPAX_ANSWER_FRESH, "");
    script.cls = HAPAX_CLASS_FINAL;
    script.body = "at last";
    expect(&bed, "rerun", &script, HAPAX_ANSWER_FRESH, "at last");
    assert_true(now_ms() - begun_ms >= 99);
    assert_true(script.stale);
    assert_int_equal(script.number, 2);
    bed_close(&bed);
}

struct hook {
    enum hapax_class says;
    struct script handler;
    unsigned asked;
};

static enum hapax_class ask_hook(struct hapax_attempt *attempt, void *arg)
{
    struct hook *hook = arg;

    must(hapax_attempt_stale(attempt) && hapax_attempt_number(attempt) == 2);
    hook->asked++;
    must(hapax_attempt_outcome(attempt, 200, hapax_str(NULL), hapax_str("it happened")) ==
         HAPAX_ERR_NONE);
    return hook->says;
}

static enum hapax_class run_hooked(struct hapax_attempt *attempt, void *arg)
{
    return play(attempt, &((struct hook *)arg)->handler);
}

static void reconciles(struct bed *bed, enum hapax_class first, enum hapax_class says,
                       enum hapax_answer_kind kind, const char *body)
{
    const char key[] = {(char)('a' + (int)first), (char)('a' + (int)says), '\0'};
    struct hapax_request request = request_of(key);
    struct hook hook = {.says = says};
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    script_init(&hook.handler, first, 504, "");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(hapax_execute(bed->h, &bed->policy, &request, run_hooked, ask_hook, &hook,
                                       &answer, text),
                         HAPAX_ERR_NONE);
        if (i == 0)
            hapax_answer_release(&answer);
        hook.handler.cls = HAPAX_CLASS_FINAL;
        hook.handler.body = "ran again";
    }
    assert_int_equal(hook.asked, 1);
    assert_int_equal(answer.kind, kind);
    assert_true(body_is(&answer, body));
    assert_int_equal(hook.handler.runs, says == HAPAX_CLASS_NOT_RUN ? 2 : 1);
    assert_true(kind != HAPAX_ANSWER_UNKNOWN || answer.retry_after_ms > 0);
    hapax_answer_release(&answer);
}

/* The hook's yes is the outcome, its no lets the handler run, and without either nothing runs. */
CASE(a_stale_operation_is_reconciled_before_it_runs)
{
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 100;
    bed.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    for (int i = 0; i < 2; i++) {
        enum hapax_class first = i == 0 ? HAPAX_CLASS_UNKNOWN : HAPAX_CLASS_FAILED;

        reconciles(&bed, first, HAPAX_CLASS_FINAL, HAPAX_ANSWER_REPLAY, "it happened");
        reconciles(&bed, first, HAPAX_CLASS_NOT_RUN, HAPAX_ANSWER_FRESH, "ran again");
        reconciles(&bed, first, HAPAX_CLASS_UNKNOWN, HAPAX_ANSWER_UNKNOWN, "");
    }
    bed_close(&bed);
}

/* Over max_response the runner still has its bytes; a repeat learns the status only. */
CASE(a_response_over_the_limit_is_gone_for_repeats)
{
    struct hapax_answer answer;
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.max_response = 4;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "12345");
    expect(&bed, "over", &script, HAPAX_ANSWER_FRESH, "12345");
    answer = execute(&bed, "over", &script);
    assert_int_equal(answer.kind, HAPAX_ANSWER_GONE);
    assert_int_equal(answer.outcome.status, 200);
    assert_false(answer.outcome.body_kept);
    assert_int_equal(answer.outcome.body.len, 0);
    hapax_answer_release(&answer);
    script.body = "1234";
    expect(&bed, "at", &script, HAPAX_ANSWER_FRESH, "1234");
    expect(&bed, "at", &script, HAPAX_ANSWER_REPLAY, "1234");
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* ---- a store that fails -------------------------------------------------------------- */

/* Closed: nothing runs without a claim, and the text has the store's reason. */
CASE(with_the_store_down_closed_runs_nothing)
{
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.timeout_ms = 50;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, play, NULL, &script, &answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_STORE_DOWN);
    assert_int_equal(answer.error, HAPAX_ERR_UNAVAILABLE);
    assert_true(answer.retry_after_ms > 0);
    assert_true(text[0] != '\0');
    hapax_answer_release(&answer);
    assert_int_equal(script.runs, 0);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed.policy.timeout_ms = WAIT_MS;
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "ran");
    bed_close(&bed);
}

/* Open: it runs unprotected and marked; and where the CLAIM had landed after all, its outcome
 * counts. */
CASE(with_the_store_down_open_runs_unprotected)
{
    struct hapax_answer answer;
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.timeout_ms = 50;
    bed.policy.on_store_error = HAPAX_STORE_OPEN;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    hapax__plan_set(&bed.plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    answer = execute(&bed, "down", &script);
    assert_int_equal(answer.kind, HAPAX_ANSWER_BYPASS);
    assert_true(answer.unprotected && !answer.recorded && body_is(&answer, "ran"));
    assert_int_equal(script.fence, 0);
    hapax_answer_release(&answer);
    hapax__plan_set(&bed.plan, HAPAX__LOSE_REPLY, 1, HAPAX__FOR_EVER);
    expect(&bed, "deaf", &script, HAPAX_ANSWER_BYPASS, "ran");
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed.policy.timeout_ms = WAIT_MS;
    expect(&bed, "deaf", &script, HAPAX_ANSWER_REPLAY, "ran");
    assert_int_equal(script.runs, 2);
    bed_close(&bed);
}

/* The store dies: until it is said to be dead, and one was turned away. */
static void die(struct bed *bed, struct script *script)
{
    struct hapax_answer answer;
    unsigned asked = 0;
    bool unasked;

    bed->policy.timeout_ms = 10;
    assert_false(hapax_store_dead(bed->h));
    hapax__plan_set(&bed->plan, HAPAX__FAIL_BEFORE, 1, HAPAX__FOR_EVER);
    do { /* one each half second is a probe, and asks */
        answer = execute(bed, "k", script);
        assert_int_equal(answer.kind, HAPAX_ANSWER_STORE_DOWN);
        unasked = answer.unasked;
        hapax_answer_release(&answer);
        asked += !unasked;
    } while (!unasked || !hapax_store_dead(bed->h));
    assert_true(asked >= 2);
}

/* A store that answers nobody is not waited for: who is turned away is told so, and so is who asks
 * for the store alone; until it answers again. */
CASE(a_dead_store_is_said_to_be)
{
    struct hapax_answer answer;
    struct script script;
    struct bed bed;
    bool unasked;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    die(&bed, &script);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed.policy.timeout_ms = WAIT_MS;
    do {
        answer = execute(&bed, "k", &script);
        unasked = answer.unasked;
        hapax_answer_release(&answer);
    } while (unasked);
    assert_int_equal(answer.kind, 0);
    assert_false(hapax_store_dead(bed.h));
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* Where nobody asks it, nobody knows how it is: it is said to be dead no longer than the next claim
 * would be turned away. */
CASE(a_dead_store_that_nobody_asks_is_said_to_be_for_a_while)
{
    struct script script;
    struct bed bed;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    die(&bed, &script);
    atomic_fetch_add(&ahead_us, HAPAX__DEAD_US);
    assert_false(hapax_store_dead(bed.h));
    bed_close(&bed);
}

static enum hapax__fault lose_ends(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)arg;
    (void)number;
    return op->kind == HAPAX_OP_COMPLETE ? HAPAX__LOSE_OP : HAPAX__NO_FAULT;
}

/* The caller is answered after save_wait, marked; the outcome is stored as soon as that works. */
CASE(an_outcome_that_cannot_be_saved_is_saved_later)
{
    struct hapax_answer answer;
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.save_wait_ms = 50;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    hapax__plan_decide(&bed.plan, lose_ends, NULL);
    answer = execute(&bed, "k", &script);
    assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
    assert_int_equal(answer.error, HAPAX_ERR_INDETERMINATE);
    assert_true(!answer.recorded && body_is(&answer, "ran"));
    hapax_answer_release(&answer); /* the flow goes on with the same bytes */
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "ran");
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* What close() cannot have stored in time it counts; what it can it waits for. */
CASE(close_waits_for_outcomes_and_counts_the_unsaved)
{
    struct script script;
    struct bed bed;

    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    for (int i = 0; i < 2; i++) {
        bed_open(&bed);
        bed.policy.save_wait_ms = 20;
        hapax__plan_decide(&bed.plan, lose_ends, NULL);
        expect(&bed, "one", &script, HAPAX_ANSWER_FRESH, "ran");
        expect(&bed, "two", &script, HAPAX_ANSWER_FRESH, "ran");
        if (i == 1)
            hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
        assert_int_equal(hapax_close(bed.h, i == 0 ? 20 : WAIT_MS), i == 0 ? 2 : 0);
        hapax__plan_release(&bed.plan);
    }
    assert_int_equal(hapax_close(NULL, 0), 0);
}

/* ---- every fault at every op --------------------------------------------------------- */

/* `times` ops in a row from the n-th on meet a fault. False: there were fewer than n. */
static bool one_fault(struct bed *bed, enum hapax__fault fault, uint64_t n, uint64_t times,
                      enum hapax_class cls)
{
    bool final = cls == HAPAX_CLASS_FINAL;
    struct script script;
    char key[64];
    uint64_t from = hapax__plan_counts(&bed->plan).ops;

    snprintf(key, sizeof(key), "%d %u %u %d", (int)fault, (unsigned)n, (unsigned)times, (int)cls);
    script_init(&script, cls, 200, "once");
    hapax__plan_set(&bed->plan, fault, n, times);
    expect(bed, key, &script, HAPAX_ANSWER_FRESH, "once");
    assert_int_equal(script.runs, 1);
    from = hapax__plan_counts(&bed->plan).ops - from;
    hapax__plan_set(&bed->plan, HAPAX__NO_FAULT, 0, 0);
    expect(bed, key, &script, final ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_FRESH, "once");
    assert_int_equal(script.runs, final ? 1 : 2);
    assert_int_equal(script.number, final ? 1 : 2);
    return from >= n;
}

/* Lost, late or doubled: no reply that fails makes a handler run twice, or not at all. */
CASE(a_fault_at_any_op_never_runs_the_handler_twice)
{
    static const enum hapax__fault faults[] = {HAPAX__FAIL_BEFORE, HAPAX__LOSE_OP,
                                               HAPAX__LOSE_REPLY, HAPAX__DUPLICATE};
    struct bed bed;

    bed_open(&bed);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        for (uint64_t times = 1; times <= 3; times++)
            for (int cls = HAPAX_CLASS_FINAL; cls <= HAPAX_CLASS_FAILED; cls++) {
                uint64_t n = 1;

                while (one_fault(&bed, faults[i], n, times, (enum hapax_class)cls))
                    n++;
                assert_true(n > 2);
            }
    bed_close(&bed);
}

static enum hapax__fault lose_claims(void *arg, uint64_t number, const struct hapax_op *op)
{
    (void)arg;
    (void)number;
    return op->kind == HAPAX_OP_CLAIM ? HAPAX__LOSE_REPLY : HAPAX__NO_FAULT;
}

/* A CLAIM that was given up, but landed, is followed up: the key is free long before its lease is
 * over. */
CASE(a_claim_given_up_does_not_hold_the_key)
{
    struct script script;
    struct bed bed;

    bed_open(&bed);
    bed.policy.timeout_ms = 30;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    hapax__plan_decide(&bed.plan, lose_claims, NULL);
    expect(&bed, "k", &script, HAPAX_ANSWER_STORE_DOWN, "");
    assert_int_equal(script.runs, 0);
    hapax__plan_set(&bed.plan, HAPAX__NO_FAULT, 0, 0);
    bed.policy.timeout_ms = WAIT_MS;
    bed.policy.lease_ms = 4 * WAIT_MS;
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "ran");
    assert_int_equal(script.runs, 1);
    bed_close(&bed);
}

/* ---- a process that died --------------------------------------------------------------- */

/* Runs a call whose handler, in another process, sets an outcome and then dies. Meanwhile another
 * caller waits; what that one is answered is left in *waits. */
static void die_in_the_handler(struct bed *bed, struct caller *waits, struct script *script)
{
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    struct hapax__call *call;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__call_check(&bed->policy, &request, false, false, text), 0);
    call = hapax__call_new(bed->h, &bed->policy, &request, NULL, false, text);
    assert_non_null(call);
    call->told = hapax__call_wake;
    assert_int_equal(hapax__call_begin(call, text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__call_wait(call), HAPAX__FLOW_RUN);
    caller_start(waits, bed, "k", script);
    must(hapax_attempt_outcome(&call->attempt, 200, hapax_str(NULL), hapax_str("half")) ==
         HAPAX_ERR_NONE);
    hapax__call_died(call);
    assert_int_equal(hapax__call_wait(call), HAPAX__FLOW_ANSWER);
    assert_int_equal(hapax__call_leave(call, &answer, text), HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
    assert_int_equal(answer.cls, HAPAX_CLASS_UNKNOWN);
    assert_true(answer.recorded);
    assert_int_equal(answer.outcome.status, 0);
    assert_true(body_is(&answer, ""));
    hapax_answer_release(&answer);
    caller_join(waits);
}

/* The lease is longer than the test: who comes next runs at once, and knows of the death. */
CASE(a_death_that_is_known_lets_the_next_run_at_once)
{
    struct script script;
    struct caller waits;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 10 * WAIT_MS;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    die_in_the_handler(&bed, &waits, &script);
    assert_int_equal(waits.answer.kind, HAPAX_ANSWER_FRESH);
    assert_int_equal(waits.answer.attempt, 2);
    assert_int_equal(script.number, 2);
    assert_true(script.stale);
    hapax_answer_release(&waits.answer);
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "ran");
    bed_close(&bed);
}

/* Under hold nobody runs after a death, but it is known at once. */
CASE(a_death_that_is_known_is_unknown_at_once_under_hold)
{
    struct script script;
    struct caller waits;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 10 * WAIT_MS;
    bed.policy.on_expired = HAPAX_EXPIRED_HOLD;
    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    die_in_the_handler(&bed, &waits, &script);
    assert_int_equal(waits.answer.kind, HAPAX_ANSWER_UNKNOWN);
    assert_int_equal(script.runs, 0);
    hapax_answer_release(&waits.answer);
    bed_close(&bed);
}

/* ---- what a client may go on with elsewhere --------------------------------------------- */

/* key: NULL: none. */
static struct hapax__call *begin_call(struct bed *bed, const char *key)
{
    struct hapax_request request = request_of(key);
    struct hapax__call *call;
    char text[HAPAX_TEXT_MAX];

    call = hapax__call_new(bed->h, &bed->policy, &request, NULL, false, text);
    assert_non_null(call);
    call->told = hapax__call_wake;
    call->shared = true;
    assert_int_equal(hapax__call_begin(call, text), HAPAX_ERR_NONE);
    return call;
}

static void leave_call(struct hapax__call *call, enum hapax_answer_kind kind)
{
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__call_wait(call), HAPAX__FLOW_ANSWER);
    assert_int_equal(hapax__call_leave(call, &answer, text), HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, kind);
    hapax_answer_release(&answer);
}

/* The claim of a client that is away is not given back by a door that ends, though that was asked
 * before, where it still waits for an op of another's. */
CASE(what_waits_in_the_lane_when_a_door_ends_is_left)
{
    struct hapax__call *call, *other, *none;
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 10 * WAIT_MS;
    bed.policy.key = HAPAX_KEY_OPTIONAL;
    bed.policy.wait_ms = 0;
    call = begin_call(&bed, "k");
    assert_int_equal(hapax__call_wait(call), HAPAX__FLOW_RUN);
    hapax__plan_set(&bed.plan, HAPAX__DELAY, 1, 1);
    other = begin_call(&bed, "other");
    assert_true(hapax__plan_wait(&bed.plan, 1, WAIT_MS));
    atomic_store(&call->deserted, true);
    hapax__call_withdraw(call);
    none = begin_call(&bed, NULL);
    assert_int_equal(hapax__call_wait(none), HAPAX__FLOW_RUN); /* by then `call` has asked */
    hapax__claims_leave(bed.h);
    hapax__plan_go(&bed.plan);
    leave_call(call, HAPAX_ANSWER_IN_FLIGHT);
    assert_int_equal(hapax__call_wait(other), HAPAX__FLOW_RUN);
    hapax__call_ended(other, HAPAX_CLASS_NOT_RUN); /* whose client is there */
    leave_call(other, HAPAX_ANSWER_FRESH);
    hapax__call_ended(none, HAPAX_CLASS_NOT_RUN);
    leave_call(none, HAPAX_ANSWER_BYPASS);
    leave_call(begin_call(&bed, "k"), HAPAX_ANSWER_IN_FLIGHT);
    bed_close(&bed);
}

/* ---- what is refused ----------------------------------------------------------------- */

static void refused(struct bed *bed, const struct hapax_request *request, const char *names)
{
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct script script;

    script_init(&script, HAPAX_CLASS_FINAL, 200, "ran");
    memset(&answer, 0xff, sizeof(answer));
    assert_int_equal(
        hapax_execute(bed->h, &bed->policy, request, play, NULL, &script, &answer, text),
        HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, names));
    assert_int_equal(answer.kind, 0);
    assert_null(answer.memory);
    assert_int_equal(script.runs, 0);
}

/* What is over a limit is refused before anything is asked, by a text that names it. */
CASE(what_is_over_a_limit_is_refused_by_name)
{
    static const uint8_t long_text[HAPAX_KEY_MAX + 1] = {'x'};
    struct hapax_request request;
    struct bed bed;
    uint64_t ops;

    bed_open(&bed);
    ops = hapax__plan_counts(&bed.plan).ops;
    request = request_of(NULL);
    request.key = (struct hapax_span){long_text, HAPAX_KEY_MAX + 1};
    refused(&bed, &request, "key");
    request = request_of("k");
    request.scope = (struct hapax_span){long_text, HAPAX_SCOPE_MAX + 1};
    refused(&bed, &request, "scope");
    request = request_of("k");
    request.step = (struct hapax_span){long_text, HAPAX_STEP_MAX + 1};
    refused(&bed, &request, "step");
    request.step = hapax_str("a:b");
    refused(&bed, &request, "step");
    request = request_of("k");
    bed.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    refused(&bed, &request, "reconcile");
    hapax_policy_init(&bed.policy);
    bed.policy.lease_ms = 1;
    refused(&bed, &request, "lease");
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, ops);
    bed_close(&bed);
}

/* ---- metrics ---------------------------------------------------------------------------- */

/* A program reads out what its handle has counted. */
CASE(a_handle_s_counts_are_read_out)
{
    struct script script;
    struct bed bed;
    char *page = NULL;
    size_t len = 0;
    FILE *out;

    bed_open(&bed);
    script_init(&script, HAPAX_CLASS_FINAL, 200, "done");
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "done");
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "done");
    out = open_memstream(&page, &len);
    hapax_metrics(out, bed.h);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(page, "\nhapax_build_info{door=\"c\",version=\""));
    assert_non_null(strstr(page, "\nhapax_answers_total{answer=\"fresh\"} 1\n"));
    assert_non_null(strstr(page, "\nhapax_answers_total{answer=\"replay\"} 1\n"));
    assert_non_null(strstr(page, "\nhapax_attempts_total{class=\"final\"} 1\n"));
    assert_non_null(strstr(page, "\nhapax_store_ops_total{op=\"claim\"} 2\n"));
    assert_non_null(strstr(page, "\nhapax_store_dead 0\n"));
    free(page);
    bed_close(&bed);
}
