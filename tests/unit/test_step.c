/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax_step() over a memory store: what each answer means for a handler that is run again, what a
 * step is given, and what is refused. Threads, zombies and faults are in test_step_threads.c,
 * processes that die in tests/e2e/door/test_step_kill.c, transactions in test_pg_step.c.
 */
#include "../cases.h"
#include "step_bed.h"

/* ---- done once ------------------------------------------------------------------------- */

/* The classic: charged, not reserved, run again: the charge is replayed, and only then all is
 * done. */
CASE(what_is_done_is_not_done_again)
{
    struct order order;
    struct bed bed;

    bed_open(&bed);
    order_init(&order, &bed);
    order.steps[1].cls = HAPAX_CLASS_FAILED;
    order.steps[1].status = 503;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[1], HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[2], 0);
    order.steps[1].cls = HAPAX_CLASS_FINAL;
    order.steps[1].status = 200;
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_REPLAY);
    assert_string_equal(order.bodies[0], "charged");
    assert_int_equal(order.kinds[1], HAPAX_ANSWER_FRESH);
    assert_int_equal(order.steps[1].number, 2);
    assert_false(order.steps[1].stale);
    assert_int_equal(order.kinds[2], HAPAX_ANSWER_FRESH);
    assert_int_equal(run_order(&order, "k"), HAPAX_ANSWER_REPLAY);
    assert_int_equal(order.runs, 2);
    assert_int_equal(order.steps[0].runs, 1);
    assert_int_equal(order.steps[1].runs, 2);
    assert_int_equal(order.steps[2].runs, 1);
    bed_close(&bed);
}

/* What a failed or unknown step is for the next attempt, the policy says, as for an operation. */
CASE(the_policy_says_what_becomes_of_a_step)
{
    static const struct {
        enum hapax_on_failed on_failed;
        enum hapax_on_expired on_expired;
        uint32_t attempts_max;
        enum hapax_class cls;
        enum hapax_answer_kind then;
        unsigned runs;
    } rows[] = {
        {HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, 0, HAPAX_CLASS_FAILED, HAPAX_ANSWER_FRESH, 2},
        {HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, 0, HAPAX_CLASS_NOT_RUN, HAPAX_ANSWER_FRESH, 2},
        {HAPAX_FAILED_RETRY, HAPAX_EXPIRED_HOLD, 0, HAPAX_CLASS_UNKNOWN, HAPAX_ANSWER_UNKNOWN, 1},
        /* The lease is waited for, and then it is the next attempt's. */
        {HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, 0, HAPAX_CLASS_UNKNOWN, HAPAX_ANSWER_FRESH, 2},
    };
    struct bed bed;

    bed_open(&bed);
    bed.policy.lease_ms = 1500;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct order order;
        char key[16];

        order_init(&order, &bed);
        order.n = 1;
        order.steps[0].cls = rows[i].cls;
        order.steps[0].status = 500;
        bed.policy.on_failed = rows[i].on_failed;
        bed.policy.on_expired = rows[i].on_expired;
        bed.policy.attempts_max = rows[i].attempts_max;
        bed.policy.wait_ms = 0;
        snprintf(key, sizeof(key), "k%zu", i);
        assert_int_equal(run_order(&order, key), HAPAX_ANSWER_FRESH);
        assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
        /* The wait for the lease may be over before it is asked for the last time, where others
         * have the processor. */
        for (int tries = 0; tries < 3; tries++) {
            assert_int_equal(run_order(&order, key), HAPAX_ANSWER_FRESH);
            if (order.kinds[0] != HAPAX_ANSWER_IN_FLIGHT)
                break;
        }
        assert_int_equal(order.kinds[0], rows[i].then);
        assert_int_equal(order.steps[0].runs, rows[i].runs);
        assert_int_equal(order.steps[0].stale,
                         rows[i].cls == HAPAX_CLASS_UNKNOWN && rows[i].runs == 2);
    }
    bed_close(&bed);
}

static enum hapax_class see_answer(struct hapax_attempt *attempt, void *arg)
{
    struct order *order = arg;

    (void)do_step(order, 0, attempt);
    return HAPAX_CLASS_NOT_RUN;
}

static void ask_step(struct order *order, const char *key, const char *request_as)
{
    struct hapax_request request = request_of(key);
    struct hapax_span part = hapax_str(request_as);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    hapax_digest(&request.fingerprint, &part, 1);
    assert_int_equal(hapax_execute(order->bed->h, &order->bed->policy, &request, see_answer, NULL,
                                   order, &answer, text),
                     HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
}

/* attempts_max, max_response and the fingerprint hold for a step as they do for an operation. */
CASE(limits_and_fingerprint_hold_for_a_step)
{
    struct order order;
    struct bed bed;

    bed_open(&bed);
    order_init(&order, &bed);
    bed.policy.attempts_max = 1;
    order.steps[0].cls = HAPAX_CLASS_FAILED;
    ask_step(&order, "used up", "a");
    ask_step(&order, "used up", "a");
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FAILED);
    assert_string_equal(order.bodies[0], "charged");
    order.steps[0].cls = HAPAX_CLASS_FINAL;
    bed.policy.max_response = 3;
    ask_step(&order, "gone", "a");
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
    ask_step(&order, "gone", "a");
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_GONE);
    /* The handler said that nothing ran, so the operation takes another request; its step did
     * run. */
    ask_step(&order, "gone", "b");
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_MISMATCH);
    assert_int_equal(order.steps[0].runs, 2);
    bed_close(&bed);
}

/* ---- what a step is given ---------------------------------------------------------------- */

struct seen {
    uint8_t key[HAPAX_KEY_MAX];
    size_t len;
    uint32_t number;
    uint64_t fence;
    enum hapax_error of_step; /* a step of the step */
};

static enum hapax_class see(struct hapax_attempt *attempt, void *arg)
{
    struct seen *seen = arg;
    struct hapax_span key = hapax_attempt_key(attempt);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    memcpy(seen->key, key.ptr, key.len);
    seen->len = key.len;
    seen->number = hapax_attempt_number(attempt);
    seen->fence = hapax_attempt_fence(attempt);
    seen->of_step = hapax_step(attempt, "part", see, seen, &answer, text);
    return HAPAX_CLASS_FINAL;
}

static enum hapax_class look_at_keys(struct hapax_attempt *attempt, void *arg)
{
    struct seen *seen = arg;
    struct hapax_span key = hapax_attempt_key(attempt);
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];

    memcpy(seen[0].key, key.ptr, key.len);
    seen[0].len = key.len;
    must(hapax_step(attempt, "charge", see, &seen[1], &answer, text) == HAPAX_ERR_NONE);
    must(answer.kind == HAPAX_ANSWER_FRESH && answer.recorded);
    hapax_answer_release(&answer);
    return HAPAX_CLASS_FINAL;
}

/* A step hands on KEY:step, or its hash where that is over the limit; it has a fence, and no
 * steps. */
CASE(a_step_is_given_the_key_to_hand_on)
{
    char longest[HAPAX_KEY_MAX + 1];
    const char *const keys[] = {"order-17", longest};
    struct bed bed;

    bed_open(&bed);
    memset(longest, 'k', HAPAX_KEY_MAX);
    longest[HAPAX_KEY_MAX] = '\0';
    for (size_t i = 0; i < 2; i++) {
        struct hapax_request request = request_of(keys[i]);
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];
        uint8_t derived[HAPAX_KEY_MAX];
        struct seen seen[2];
        size_t len;

        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, look_at_keys, NULL, seen, &answer, text),
            HAPAX_ERR_NONE);
        hapax_answer_release(&answer);
        assert_int_equal(seen[0].len, strlen(keys[i]));
        assert_memory_equal(seen[0].key, keys[i], seen[0].len);
        assert_int_equal(hapax_key_derive(derived, &len, request.key, hapax_str("charge")),
                         HAPAX_ERR_NONE);
        assert_int_equal(seen[1].len, len);
        assert_memory_equal(seen[1].key, derived, len);
        assert_int_equal(seen[1].number, 1);
        assert_true(seen[1].fence > 0);
        assert_int_equal(seen[1].of_step, HAPAX_ERR_INVALID);
    }
    bed_close(&bed);
}

struct naming {
    const char *name;
    enum hapax_error error;
    char text[HAPAX_TEXT_MAX];
    struct script script;
};

static enum hapax_class use_name(struct hapax_attempt *attempt, void *arg)
{
    struct naming *naming = arg;
    struct hapax_answer answer;

    naming->error = hapax_step(attempt, naming->name, play, &naming->script, &answer, naming->text);
    hapax_answer_release(&answer);
    return HAPAX_CLASS_NOT_RUN;
}

/* Names over a limit, with ':', or that begin as Hapax's own do, are refused, and nothing runs. */
CASE(a_name_is_checked)
{
    char longest[HAPAX_STEP_MAX + 1], longer[HAPAX_STEP_MAX + 2];
    const struct {
        const char *name, *says;
    } rows[] = {{"", "0 bytes"},
                {".1", "begins with"},
                {"a:b", "':'"},
                {longer, "65 bytes"},
                {longest, NULL}};
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    struct naming naming;
    char text[HAPAX_TEXT_MAX];
    struct bed bed;

    memset(longest, 's', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    memset(longer, 's', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    bed_open(&bed);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        memset(&naming, 0, sizeof(naming));
        naming.name = rows[i].name;
        script_init(&naming.script, HAPAX_CLASS_FINAL, 200, "");
        assert_int_equal(
            hapax_execute(bed.h, &bed.policy, &request, use_name, NULL, &naming, &answer, text),
            HAPAX_ERR_NONE);
        hapax_answer_release(&answer);
        assert_int_equal(naming.error, rows[i].says ? HAPAX_ERR_INVALID : HAPAX_ERR_NONE);
        assert_int_equal(naming.script.runs, rows[i].says ? 0 : 1);
        assert_true(!rows[i].says || strstr(naming.text, rows[i].says));
    }
    request.step = hapax_str(".1");
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, use_name, NULL, &naming, &answer, text),
        HAPAX_ERR_INVALID);
    assert_non_null(strstr(text, "\".1\" begins with"));
    bed_close(&bed);
}

/* ---- without protection ------------------------------------------------------------------- */

/* No key: each step runs, and says BYPASS. */
CASE(without_a_key_steps_run_unprotected)
{
    struct order order;
    struct bed bed;
    uint64_t ops;

    bed_open(&bed);
    order_init(&order, &bed);
    ops = hapax__plan_counts(&bed.plan).ops;
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(run_order(&order, NULL), HAPAX_ANSWER_BYPASS);
        assert_int_equal(order.kinds[2], HAPAX_ANSWER_BYPASS);
        assert_int_equal(order.steps[2].runs, i);
        assert_int_equal(order.steps[2].fence, 0);
    }
    assert_int_equal(hapax__plan_counts(&bed.plan).ops, ops);
    bed_close(&bed);
}

static enum hapax__fault fail_until_told(void *arg, uint64_t number, const struct hapax_op *op)
{
    const atomic_bool *failing = arg;

    (void)number;
    (void)op;
    return atomic_load(failing) ? HAPAX__FAIL_BEFORE : HAPAX__NO_FAULT;
}

struct outage {
    struct bed *bed;
    struct order *order;
    atomic_bool failing;
};

/* Asks about other operations until the store is found again. */
static void find_store(struct bed *bed)
{
    struct script script;

    script_init(&script, HAPAX_CLASS_FINAL, 200, "");
    for (bool found = false; !found;) {
        struct hapax_answer answer = execute(bed, "other", &script);

        found = answer.kind != HAPAX_ANSWER_BYPASS;
        hapax_answer_release(&answer);
    }
}

static enum hapax_class mend_amid(struct hapax_attempt *attempt, void *arg)
{
    struct outage *outage = arg;
    bool done = do_step(outage->order, 0, attempt);

    atomic_store(&outage->failing, false);
    find_store(outage->bed);
    return done && do_step(outage->order, 1, attempt) ? HAPAX_CLASS_FINAL : HAPAX_CLASS_FAILED;
}

/* `open` without a store: the operation runs unprotected, its steps too, until the store is
 * back. */
CASE(under_open_each_step_asks_for_itself)
{
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    struct outage outage;
    struct order order;
    struct bed bed;

    bed_open(&bed);
    order_init(&order, &bed);
    bed.policy.on_store_error = HAPAX_STORE_OPEN;
    bed.policy.timeout_ms = 1000; /* within which the second step is claimed */
    outage.bed = &bed;
    outage.order = &order;
    atomic_init(&outage.failing, true);
    hapax__plan_decide(&bed.plan, fail_until_told, &outage.failing);
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, mend_amid, NULL, &outage, &answer, text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_BYPASS);
    hapax_answer_release(&answer);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_BYPASS);
    assert_int_equal(order.kinds[1], HAPAX_ANSWER_FRESH);
    bed_close(&bed);
}

/* Each step takes a call of its own, and one to be listed: calls_max counts them. */
CASE(without_a_call_to_spare_no_step_runs)
{
    const struct hapax_options options = {.calls_max = 2};
    struct hapax_request request = request_of("k");
    struct hapax_answer answer;
    struct naming naming;
    char text[HAPAX_TEXT_MAX];
    struct bed bed;

    bed_open_with(&bed, &options);
    memset(&naming, 0, sizeof(naming));
    naming.name = "charge";
    script_init(&naming.script, HAPAX_CLASS_FINAL, 200, "");
    assert_int_equal(
        hapax_execute(bed.h, &bed.policy, &request, use_name, NULL, &naming, &answer, text),
        HAPAX_ERR_NONE);
    hapax_answer_release(&answer);
    assert_int_equal(naming.error, HAPAX_ERR_NOMEM);
    assert_non_null(strstr(naming.text, "calls_max"));
    assert_int_equal(naming.script.runs, 0);
    bed_close(&bed);
}
