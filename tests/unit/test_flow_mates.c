/* SPDX-License-Identifier: Apache-2.0
 *
 * What flows of one process share (src/core/waiters.h): one question, one run, one answer, and what
 * becomes of those who wait when the one they wait for fails, hangs, is lost or gives up.
 */
#include "../cases.h"
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
CASE(one_question_one_run_one_answer)
{
    struct bench bench, *b = &bench;

    start(b, 5000);
    begin(b, 0);
    begin(b, 1);
    told_claimed(b, 0, 3, false);
    begin(b, 2);
    expect(b, "0 ASK claim\n0 RUN a3\n");
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200\n1 ANSWER replay 200\n1 END\n2 ANSWER replay 200\n2 END\n"
              "0 ANSWER fresh 200 recorded\n0 END\n");
    for (int i = 0; i < 3; i++) {
        assert_true(b->flows[i].answer.recorded);
        assert_int_equal(b->flows[i].answer.attempt, 3);
        assert_int_equal(b->flows[i].answer.fence, FENCE);
    }
}

/* A verdict that answers the head answers its mates. */
CASE(mates_get_the_heads_verdict)
{
    struct bench bench, *b = &bench;

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
CASE(a_body_that_was_not_kept_is_gone_for_mates)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    for (int i = 0; i < 2; i++)
        begin(b, i);
    answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED)->record.outcome.body_kept = false;
    told(b, 0);
    expect(b, "0 ASK claim\n1 ANSWER gone 201\n1 END\n0 ANSWER gone 201\n0 END\n");
    assert_true(b->flows[0].answer.recorded && b->flows[1].answer.recorded);
    start(b, 1000);
    b->policies[0].max_response = 0;
    for (int i = 0; i < 2; i++)
        begin(b, i);
    told_claimed(b, 0, 1, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    expect(b, "0 ASK claim\n0 RUN a1\n0 ASK complete 200 bodiless\n1 ANSWER gone 200\n1 END\n"
              "0 ANSWER fresh 200 recorded\n0 END\n");
    assert_true(b->flows[1].answer.recorded);
}

/* A failure that is answered again is recorded for all; what is unknown is recorded for none. */
CASE(what_is_recorded_is_so_for_mates)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    for (int i = 0; i < 4; i++)
        begin(b, i);
    told_state(b, 0, HAPAX_FAILED, HAPAX_STATE_FAILED);
    assert_true(b->flows[0].answer.recorded && b->flows[3].answer.recorded);
    for (int i = 4; i < 6; i++)
        begin(b, i);
    told_state(b, 4, HAPAX_UNKNOWN, HAPAX_STATE_UNKNOWN);
    assert_false(b->flows[4].answer.recorded || b->flows[5].answer.recorded);
}

/* Those who do not wait are turned away as soon as one runs; those who come later as well. */
CASE(who_does_not_wait_is_turned_away)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    b->policies[2].wait_ms = 1000;
    for (int i = 0; i < 3; i++)
        begin(b, i);
    told_claimed(b, 0, 7, false);
    begin(b, 3);
    expect(b, "0 ASK claim\n1 ANSWER in_flight retry 900\n1 END\n0 RUN a7\n"
              "3 ANSWER in_flight retry 900\n3 END\n");
    assert_int_equal(b->flows[1].answer.attempt, 7);
    assert_int_equal(b->flows[3].answer.attempt, 7);
    pass_ms(b, 0, 300); /* the lease is that of the last RENEW */
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    begin(b, 4);
    expect(b, "0 ASK renew\n4 ANSWER in_flight retry 900\n4 END\n");
    pass_ms(b, 2, 700);
    expect(b, "2 ANSWER in_flight retry 200\n2 END\n");
}

/* After a FAIL the next runs, and the rest get its answer. */
CASE(after_a_fail_one_of_them_runs)
{
    struct bench bench, *b = &bench;

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

/* A death that is known is no reason to wait: the next asks, and runs as a takeover does. */
CASE(after_a_death_one_of_them_runs_at_once)
{
    struct bench bench, *b = &bench;

    start(b, 5000);
    begin(b, 0);
    begin(b, 1);
    told_claimed(b, 0, 1, false);
    died(b, 0);
    b->len = 0;
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    told_claimed(b, 1, 2, true);
    expect(b, "1 ASK claim\n0 ANSWER fresh recorded\n0 END\n1 RUN a2 stale\n");
}

/* A head that gives up is followed by the next, which still has time. */
CASE(a_head_that_gives_up_is_replaced)
{
    struct bench bench, *b = &bench;

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
CASE(a_mate_leaves_the_line)
{
    struct bench bench, *b = &bench;

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
CASE(a_newcomer_wakes_a_waiting_head)
{
    struct bench bench, *b = &bench;

    start(b, 5000);
    b->policies[2].wait_ms = 0;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    begin(b, 1);
    expect(b, "0 ASK claim\n0 ASK claim\n");
    begin(b, 2); /* the question is out already */
    answered(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.attempt = 6;
    told(b, 0);
    expect(b, "2 ANSWER in_flight retry 900\n2 END\n");
    assert_int_equal(b->flows[2].answer.attempt, 6);
    pass_ms(b, 1, 5000);
    expect(b, "1 ANSWER in_flight retry 0\n1 END\n");
}

/* A zombie, or a handler hung for longer than run_max, is nobody's head. */
CASE(nobody_waits_for_a_zombie)
{
    struct bench bench, *b = &bench;

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
CASE(reads_exclude_each_other_and_share_nothing)
{
    struct bench bench, *b = &bench;

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
CASE(open_does_not_run_beside_another)
{
    struct bench bench, *b = &bench;

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

/* One that runs unprotected has no claim to wait for: its mates ask for themselves. */
CASE(nobody_waits_for_one_without_protection)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    b->policies[0].on_store_error = HAPAX_STORE_OPEN;
    b->policies[0].timeout_ms = 100;
    begin(b, 0);
    begin(b, 1);
    pass_ms(b, 0, 100);
    expect(b, "0 ASK claim\n0 RUN a0\n1 ASK claim\n");
}

/* Whatever differs in the question keeps flows apart, whichever bucket they share. */
CASE(another_question_is_asked_apart)
{
    struct bench bench, *b = &bench;

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
CASE(a_flow_is_ready_once)
{
    struct bench bench, *b = &bench;

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
CASE(a_failing_door_ends_the_drive)
{
    static const struct hapax__flow_door failing = {bench_now, fail_act};
    struct bench bench, *b = &bench;

    start(b, 5000);
    begin(b, 0);
    begin(b, 1);
    answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    hapax__flow_told(&b->flows[0], b->now_us);
    assert_false(hapax__flow_drive(&b->flows[0], &failing));
    expect(b, "0 ASK claim\n1 ANSWER replay 201\n");
    assert_ptr_equal(hapax__waiters_ready(&b->waiters), &b->flows[0].waiter);
}

/* Those who ask the same as one over its limit are told the same, whether they wait or not. */
CASE(mates_are_refused_with_their_head)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    limit(b, 0);
    b->policies[2].wait_ms = 1000;
    for (int i = 0; i < 3; i++)
        begin(b, i);
    told_state(b, 0, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "0 ASK read\n1 ANSWER limited keys retry 5000\n1 END\n"
              "2 ANSWER limited keys retry 5000\n2 END\n0 ANSWER limited keys retry 5000\n0 END\n");
    start(b, 1000);
    begin(b, 0);
    begin(b, 1);
    told_claimed(b, 0, 1, false);
    refused(b, 0);
    begin(b, 2);
    expect(b, "0 ASK claim\n0 RUN a1\n1 ANSWER limited in_flight retry 1000\n1 END\n"
              "0 ANSWER limited in_flight retry 1000\n0 ASK fail not-run\n2 ASK claim\n");
}

/* A mate over its limit is answered by a head that is not; and looks first if it has to go on. */
CASE(a_mate_over_its_limit_follows_its_head)
{
    struct bench bench, *b = &bench;

    start(b, 0);
    limit(b, 1);
    limit(b, 2);
    b->policies[2].wait_ms = 1000;
    begin(b, 0);
    begin(b, 1);
    begin(b, 2);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n1 ANSWER in_flight retry 900\n1 END\n0 RUN a1\n");
    start(b, 0);
    limit(b, 1);
    begin(b, 0);
    begin(b, 1);
    stop(b, 0);
    expect(b, "0 ASK claim\n1 ASK read\n0 ANSWER store_down indeterminate retry 1000\n");
}

/* A head that could not renew its claim until the lease was over has no answer to wait for: its
 * mates ask for themselves, and one of them may be granted the claim. */
CASE(mates_do_not_wait_for_a_lease_that_is_over)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[1].id = b->requests[0].id;
    b->policies[1].wait_ms = 60000;
    run_flow(b, 0);
    begin(b, 1);
    pass_ms(b, 0, LEASE_MS / 3);
    expect(b, "0 ASK renew\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    expect(b, "");
    b->now_us += (LEASE_MS - LEASE_MS / 3) * MS;
    go_on(b, 0);
    expect(b, "0 ASK renew\n");
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    expect(b, "1 ASK claim\n");
    told_claimed(b, 1, 2, true);
    expect(b, "1 RUN a2 stale\n");
    b->now_us += LEASE_MS * MS;
    go_on(b, 0);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew\n0 ABANDON\n");
}

/* Whatever its id begins with, an operation is found in the table, and in no place beside it. */
CASE(each_id_has_a_bucket_of_the_table)
{
    for (int first = 0; first < 256; first++) {
        struct bench bench, *b = &bench;

        bench_init(b);
        memset(&b->requests[0].id, first, sizeof(b->requests[0].id));
        b->requests[1].id = b->requests[0].id;
        begin(b, 0);
        begin(b, 1);
        expect(b, "0 ASK claim\n");
        told_claimed(b, 0, 1, false);
        expect(b, "1 ANSWER in_flight retry 900\n1 END\n0 RUN a1\n");
    }
}
