/* SPDX-License-Identifier: Apache-2.0
 *
 * A flow that goes on with a claim of a process that is gone: the handler runs already, and the
 * flow finds out whether the claim still stands.
 */
#include "../cases.h"
#include "flow_bench.h"

static void resume(struct bench *b, int i, bool reconciling)
{
    const struct hapax__flow_claim claim = {.attempt = 3,
                                            .spent = 1,
                                            .fence = FENCE,
                                            .stale = true,
                                            .resolved = true,
                                            .reconciling = reconciling,
                                            .created_us = STORE_US};

    hapax__flow_resume(&b->flows[i], &b->policies[i], &b->waiters, &b->requests[i], &claim,
                       b->now_us);
    assert_ptr_equal(b->flows[i].door, b);
    go_on(b, i);
}

/* The store answers a RENEW: the claim stands. */
static void told_renewed(struct bench *b, int i, uint64_t fence)
{
    struct hapax_op *op = answered(b, i, HAPAX_OK, HAPAX_STATE_STARTED);

    op->record.attempt = 3;
    op->record.fence = fence;
    told(b, i);
}

/* The handler runs at once, the claim is renewed, and its end is stored as that attempt's. */
CASE(a_claim_that_stands_is_renewed_and_completed)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n");
    told_renewed(b, 0, FENCE);
    expect(b, "");
    assert_int_equal(sleeps_ms(b, 0), LEASE_MS / 3);
    pass_ms(b, 0, LEASE_MS / 3);
    expect(b, "0 ASK renew\n");
    told_renewed(b, 0, FENCE);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ASK complete 200\n");
    told_stored(b, 0);
    expect(b, "0 ANSWER fresh 200 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.attempt, 3);
    assert_int_equal(b->flows[0].answer.fence, FENCE);
    assert_int_equal(b->flows[0].created_us, STORE_US);
    assert_true(b->flows[0].resolved);
}

/* An end that comes before the RENEW is answered waits for it. */
CASE(an_end_waits_for_the_renewal)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FAILED, 500);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n");
    told_renewed(b, 0, FENCE);
    expect(b, "0 ASK fail ran\n");
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 ANSWER fresh 500 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.spent, 2);
}

/* The RENEW of flow 0 is LOST: the operation was completed by the attempt of this fence. */
static void told_completed(struct bench *b, uint64_t fence, struct hapax_outcome outcome)
{
    struct hapax_op *op = answered(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);

    op->record.fence = fence;
    op->record.outcome = outcome;
    told(b, 0);
}

/* The end had been stored before: the RENEW is LOST, and the end is still this flow's. The store is
 * not asked again, and may be gone. */
CASE(an_end_that_was_stored_before_is_fresh)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_completed(b, FENCE, outcome_of(200));
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ANSWER fresh 200 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.kept_ms, b->policies[0].retention_ms);
    assert_int_equal(b->flows[0].answer.attempt, 3);
    b->policies[0].on_failed = HAPAX_FAILED_REPLAY;
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FAILED, 500);
    told_completed(b, FENCE, outcome_of(500));
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ANSWER fresh 500 recorded\n0 END\n");
}

/* Less of the end was stored, since all of it was too big: COMPLETE finds out how much. */
CASE(an_end_that_was_stored_in_part_is_asked_for)
{
    struct bench bench, *b = &bench;
    struct hapax_outcome part = outcome_of(200);

    part.body_kept = false;
    part.body.len = 0;
    bench_init(b);
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_completed(b, FENCE, part);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ASK complete 200\n");
    told_error(b, 0, HAPAX_ERR_TOO_BIG);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200 bodiless\n0 ANSWER fresh 200 recorded\n0 END\n");
}

/* Another attempt has completed the operation, or this one's handler by itself, before an end that
 * stores no outcome: the answer is the record's. */
CASE(an_end_that_comes_too_late_is_a_replay)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_completed(b, FENCE + 1, outcome_of(200));
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ANSWER replay 200\n0 END\n");
    assert_int_equal(b->flows[0].answer.fence, FENCE + 1);
    for (int cls = HAPAX_CLASS_NOT_RUN; cls <= HAPAX_CLASS_UNKNOWN; cls++) {
        resume(b, 0, false);
        handled(b, 0, (enum hapax_class)cls, 500);
        told_completed(b, FENCE, outcome_of(500));
        expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ANSWER replay 500\n0 END\n");
    }
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[0].reconciles = true;
    resume(b, 0, true);
    hooked(b, 0, HAPAX_CLASS_FINAL, 200);
    told_completed(b, FENCE, outcome_of(200));
    expect(b, "0 RECONCILE a3\n0 ASK renew\n0 ANSWER replay 200\n0 END\n");
    assert_int_equal(b->flows[0].answer.cls, 0);
}

/* The outcome of another request is not this one's to see. */
CASE(the_outcome_of_another_request_is_none)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    answered(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED)->record.caller.bytes[0] ^= 1;
    told(b, 0);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ASK complete 200\n");
    answered(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED)->record.caller.bytes[0] ^= 1;
    told(b, 0);
    expect(b, "0 ANSWER fresh 200 unrecorded\n0 END\n");
}

/* Another attempt has the operation: the handler is told, and its end changes nothing. */
CASE(a_claim_that_is_gone_is_abandoned)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ABANDON\n");
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ASK complete 200\n");
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 ANSWER replay 201\n0 END\n");
}

/* Under its token stands another attempt, of a late copy of the CLAIM: so the claim is gone. */
CASE(another_fence_is_another_attempt)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    resume(b, 0, false);
    told_renewed(b, 0, FENCE + 1);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n0 ABANDON\n");
}

/* The hook was asked: its "no" is confirmed as ever, and the handler runs. */
CASE(a_hook_is_resumed_as_a_hook)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[0].reconciles = true;
    resume(b, 0, true);
    expect(b, "0 RECONCILE a3\n0 ASK renew\n");
    told_renewed(b, 0, FENCE);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 0);
    expect(b, "0 ASK renew reconciled\n");
    told_renewed(b, 0, FENCE);
    expect(b, "0 RUN a3\n");
}

/* Who asks the same waits for the resumed one. A head that was there before stays the head. */
CASE(others_wait_for_the_resumed_one)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 1; i < 3; i++)
        b->requests[i].id = b->requests[0].id;
    b->policies[1].wait_ms = 10000;
    resume(b, 0, false);
    begin(b, 1);
    begin(b, 2);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n2 ANSWER in_flight retry 900\n2 END\n");
    told_renewed(b, 0, FENCE);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200\n1 ANSWER replay 200\n1 END\n0 ANSWER fresh 200 recorded\n"
              "0 END\n");
    b->requests[4].id = b->requests[3].id;
    begin(b, 3);
    resume(b, 4, false);
    expect(b, "3 ASK claim\n4 RUN a3 stale\n4 ASK renew\n");
    told_state(b, 3, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    told_renewed(b, 4, FENCE);
    handled(b, 4, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 4);
    expect(b, "3 ANSWER in_flight retry 900\n3 END\n4 ASK complete 200\n"
              "4 ANSWER fresh 200 recorded\n4 END\n");
}

/* The claim was granted by a store that answered: `open` runs nothing beside it, and nothing beside
 * whoever waits for it. */
CASE(open_does_not_run_beside_a_resumed_one)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[1].id = b->requests[2].id = b->requests[0].id;
    b->policies[1].wait_ms = 10000;
    b->policies[2].on_store_error = HAPAX_STORE_OPEN;
    b->policies[2].timeout_ms = 100;
    resume(b, 0, false);
    begin(b, 1);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    begin(b, 2);
    pass_ms(b, 2, 100);
    expect(b, "0 RUN a3 stale\n0 ASK renew\n1 ASK claim\n0 ABANDON\n"
              "2 ANSWER store_down indeterminate retry 1000\n2 END\n");
}

/* A door that ends leaves a claim to whoever has its token: what was to give the claim back is not
 * asked. Whoever was not answered yet is told that an attempt runs. */
CASE(a_claim_is_left_to_its_lease)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    stop(b, 0);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n0 ASK fail not-run\n");
    hapax__flow_leave(&b->flows[0], b->now_us);
    go_on(b, 0);
    expect(b, "0 END\n");
    resume(b, 1, false);
    told_renewed(b, 1, FENCE);
    handled(b, 1, HAPAX_CLASS_NOT_RUN, 0);
    expect(b, "1 RUN a3 stale\n1 ASK renew\n1 ASK fail not-run\n");
    hapax__flow_leave(&b->flows[1], b->now_us);
    go_on(b, 1);
    expect(b, "1 ANSWER in_flight retry 900\n1 END\n");
    assert_int_equal(b->flows[1].answer.attempt, 3);
}
