/* SPDX-License-Identifier: Apache-2.0
 *
 * What flows of one process share (src/core/waiters.h): one question, one run, one answer, and what
 * becomes of those who wait when the one they wait for fails, hangs, is lost or gives up.
 */
#include "flow_bench.h"

static void start(struct bench *b, int64_t wait_ms)
{
    bench_init(b);
    for (int i = 0; i < FLOWS; i++) {
        b->policies[i].wait_ms = wait_ms;
        b->requests[i].id.bytes[31] = 0;
    }
}

/* Three ask the same: one CLAIM, one run, and its outcome for all. */
static void one_question_one_run_one_answer(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 5000);
    begin(b, 0);
    begin(b, 1);
    told_claimed(b, 0, 1, false);
    begin(b, 2);
    expect(b, "0 ASK claim\n0 RUN a1\n");
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200\n1 ANSWER replay 200\n1 END\n2 ANSWER replay 200\n2 END\n"
              "0 ANSWER fresh 200 recorded\n0 END\n");
}

/* A verdict that answers the head answers its mates. */
static void mates_get_the_heads_verdict(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    for (int i = 0; i < 3; i++)
        begin(b, i);
    answered(b, 0, HAPAX_MISMATCH, HAPAX_STATE_STARTED)->differs = HAPAX_DIFFERS_FINGERPRINT;
    told(b, 0);
    expect(b, "0 ASK claim\n1 ANSWER mismatch fingerprint\n1 END\n"
              "2 ANSWER mismatch fingerprint\n2 END\n0 ANSWER mismatch fingerprint\n0 END\n");
    for (int i = 3; i < 5; i++)
        begin(b, i);
    told_state(b, 3, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    expect(b, "3 ASK claim\n4 ANSWER replay 201\n4 END\n3 ANSWER replay 201\n3 END\n");
}

/* A body that was not kept is gone for all of them, and what is recorded is so for all. */
static void a_body_that_was_not_kept_is_gone_for_mates(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    for (int i = 0; i < 2; i++)
        begin(b, i);
    answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED)->record.outcome.body_kept = false;
    told(b, 0);
    expect(b, "0 ASK claim\n1 ANSWER gone 201\n1 END\n0 ANSWER gone 201\n0 END\n");
    assert_true(b->flows[0].answer.recorded && b->flows[1].answer.recorded);
}

/* Those who do not wait are turned away as soon as one runs; those who come later as well. */
static void who_does_not_wait_is_turned_away(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    b->policies[2].wait_ms = 1000;
    for (int i = 0; i < 3; i++)
        begin(b, i);
    told_claimed(b, 0, 1, false);
    begin(b, 3);
    expect(b, "0 ASK claim\n1 ANSWER in_flight retry 900\n1 END\n0 RUN a1\n"
              "3 ANSWER in_flight retry 900\n3 END\n");
    pass_ms(b, 2, 1000);
    expect(b, "2 ANSWER in_flight retry 0\n2 END\n");
}

/* After a FAIL the next runs, and the rest get its answer. */
static void after_a_fail_one_of_them_runs(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 5000);
    for (int i = 0; i < 4; i++)
        begin(b, i);
    told_claimed(b, 0, 1, false);
    handled(b, 0, HAPAX_CLASS_FAILED, 500);
    b->len = 0;
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "1 ASK claim\n0 ANSWER fresh 500 recorded\n0 END\n");
    told_claimed(b, 1, 2, false);
    handled(b, 1, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 1);
    expect(b, "1 RUN a2\n1 ASK complete 200\n2 ANSWER replay 200\n2 END\n"
              "3 ANSWER replay 200\n3 END\n1 ANSWER fresh 200 recorded\n1 END\n");
}

/* A head that gives up is followed by the next, which still has time. */
static void a_head_that_gives_up_is_replaced(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    b->policies[1].timeout_ms = 5000;
    begin(b, 0);
    begin(b, 1);
    stop(b, 0);
    expect(b, "0 ASK claim\n1 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    expect(b, "0 END\n");
    told_claimed(b, 1, 1, false);
    expect(b, "1 RUN a1\n");
}

/* A mate's own time is over, or its client gone, in the midst of the line. */
static void a_mate_leaves_the_line(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    for (int i = 0; i < 4; i++)
        begin(b, i);
    stop(b, 2);
    expect(b, "0 ASK claim\n2 ANSWER store_down indeterminate retry 1000\n2 END\n");
    told_state(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    expect(b, "1 ANSWER replay 201\n1 END\n3 ANSWER replay 201\n3 END\n"
              "0 ANSWER replay 201\n0 END\n");
}

/* One that waits for another process is asked anew when somebody joins it. */
static void a_newcomer_wakes_a_waiting_head(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 5000);
    b->policies[2].wait_ms = 0;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    begin(b, 1);
    expect(b, "0 ASK claim\n0 ASK claim\n");
    begin(b, 2); /* the question is out already */
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    expect(b, "2 ANSWER in_flight retry 900\n2 END\n");
    pass_ms(b, 1, 5000);
    expect(b, "1 ANSWER in_flight retry 0\n1 END\n");
}

/* A zombie, or a handler hung for longer than run_max, is nobody's head. */
static void nobody_waits_for_a_zombie(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 60000);
    run_flow(b, 0);
    begin(b, 1);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew\n1 ASK claim\n0 ABANDON\n");
    b->policies[1].run_max_ms = 10 * LEASE_MS;
    told_claimed(b, 1, 3, true);
    begin(b, 2);
    expect(b, "1 RUN a3 stale\n");
    pass_ms(b, 1, 10 * LEASE_MS);
    expect(b, "1 ASK renew\n2 ASK claim\n");
    told_state(b, 1, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "1 ABANDON\n");
}

/* rerun_completed means exclusion without replay: each runs, one after the other. */
static void reads_exclude_each_other_and_share_nothing(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 5000);
    for (int i = 0; i < 3; i++)
        b->policies[i].rerun_completed = true;
    for (int i = 0; i < 3; i++)
        begin(b, i);
    told_claimed(b, 0, 1, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    b->len = 0;
    told_stored(b, 0);
    expect(b, "1 ASK claim\n0 ANSWER fresh 200 recorded\n0 END\n");
    told_state(b, 1, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    expect(b, "2 ASK claim\n1 ANSWER replay 201\n1 END\n");
}

/* `open` is for a store that never answered: not for one that said that another attempt runs. */
static void open_does_not_run_beside_another(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 60000);
    for (int i = 0; i < 3; i++) {
        b->policies[i].on_store_error = HAPAX_STORE_OPEN;
        b->policies[i].timeout_ms = 100;
    }
    b->policies[2].timeout_ms = 5000;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    begin(b, 1);
    begin(b, 2);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    b->len = 0;
    pass_ms(b, 1, 100);
    expect(b, "1 ANSWER store_down indeterminate retry 1000\n1 END\n");
    stop(b, 0);
    b->len = 0;
    told_error(b, 2, HAPAX_ERR_UNAVAILABLE);
    b->len = 0;
    pass_ms(b, 2, 5000);
    expect(b, "2 ANSWER store_down unavailable retry 1000\n2 END\n");
}

/* Whatever differs in the question keeps flows apart, whichever bucket they share. */
static void another_question_is_asked_apart(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    for (int difference = 0; difference < 7; difference++) {
        start(b, 0);
        b->requests[1].id.bytes[0] ^= difference == 0 ? 2 : 0;
        b->requests[1].fingerprint.bytes[0] ^= difference == 1;
        b->requests[1].caller.bytes[0] ^= difference == 2;
        b->requests[1].reconciles = difference == 3;
        if (difference == 4)
            b->policies[1].on_expired = HAPAX_EXPIRED_HOLD;
        b->policies[1].attempts_max = difference == 5;
        b->policies[1].rerun_completed = difference == 6;
        begin(b, 0);
        b->len = 0;
        begin(b, 1);
        expect(b, difference == 4 ? "1 ASK claim hold\n" : "1 ASK claim\n");
        /* The first stands behind the second in its bucket. */
        told_state(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
        told_state(b, 1, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
        expect(b, "0 ANSWER replay 201\n0 END\n1 ANSWER replay 201\n1 END\n");
    }
}

/* A flow that two events gave something to do stands in the ready list once. */
static void a_flow_is_ready_once(void **state)
{
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 0);
    begin(b, 0);
    hapax__waiters_wake(&b->flows[0].waiter);
    hapax__waiters_wake(&b->flows[0].waiter);
    assert_ptr_equal(hapax__waiters_ready(&b->waiters), &b->flows[0].waiter);
    assert_null(hapax__waiters_ready(&b->waiters));
}

static bool fail_act(struct hapax__flow *f, enum hapax__flow_do what, int64_t now_us)
{
    (void)note_act(f, what, now_us);
    return false;
}

/* A door that fails ends the drive: what was ready stays so. */
static void a_failing_door_ends_the_drive(void **state)
{
    static const struct hapax__flow_door failing = {bench_now, fail_act};
    struct bench bench, *b = &bench;

    (void)state;
    start(b, 5000);
    begin(b, 0);
    begin(b, 1);
    answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    hapax__flow_told(&b->flows[0], b->now_us);
    assert_false(hapax__flow_drive(&b->flows[0], &failing));
    expect(b, "0 ASK claim\n1 ANSWER replay 201\n");
    assert_ptr_equal(hapax__waiters_ready(&b->waiters), &b->flows[0].waiter);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_question_one_run_one_answer),
        cmocka_unit_test(mates_get_the_heads_verdict),
        cmocka_unit_test(a_body_that_was_not_kept_is_gone_for_mates),
        cmocka_unit_test(who_does_not_wait_is_turned_away),
        cmocka_unit_test(after_a_fail_one_of_them_runs),
        cmocka_unit_test(a_head_that_gives_up_is_replaced),
        cmocka_unit_test(a_mate_leaves_the_line),
        cmocka_unit_test(a_newcomer_wakes_a_waiting_head),
        cmocka_unit_test(nobody_waits_for_a_zombie),
        cmocka_unit_test(reads_exclude_each_other_and_share_nothing),
        cmocka_unit_test(open_does_not_run_beside_another),
        cmocka_unit_test(another_question_is_asked_apart),
        cmocka_unit_test(a_flow_is_ready_once),
        cmocka_unit_test(a_failing_door_ends_the_drive),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
