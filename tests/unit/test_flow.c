/* SPDX-License-Identifier: Apache-2.0
 *
 * The flow's rules (docs/design.md, "The flow"), each as a short play: what the store and the
 * handler say stands in the test, what the flow decides is compared as text. Claims and answers
 * here; what flows of one process share is in test_flow_mates.c.
 */
#include "../cases.h"
#include "flow_bench.h"

/* ---- the key --------------------------------------------------------------------------- */

/* Policy `key`: a request without one runs unprotected, or is refused. */
CASE(without_a_key_it_bypasses_or_is_refused)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[0].key = b->requests[1].key = HAPAX__KEY_NONE;
    b->policies[1].key = HAPAX_KEY_REQUIRED;
    begin(b, 0);
    expect(b, "0 RUN a0\n");
    stop(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ANSWER bypass 200\n0 END\n");
    begin(b, 1);
    expect(b, "1 ANSWER missing_key\n1 END\n");
}

/* What is malformed or too large is refused before the store is asked. */
CASE(a_bad_key_or_a_large_request_asks_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[0].key = HAPAX__KEY_BAD;
    b->requests[1].too_large = true;
    begin(b, 0);
    begin(b, 1);
    expect(b, "0 ANSWER bad_key\n0 END\n1 ANSWER too_large\n1 END\n");
}

/* A key of which nobody can tell whose it is runs nothing, and asks nothing. */
CASE(a_key_without_its_owner_asks_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[0].key = HAPAX__KEY_UNOWNED;
    begin(b, 0);
    expect(b, "0 ANSWER missing_owner\n0 END\n");
}

/* Policy key_min: a key of fewer bytes is BAD_KEY. The answer says the limit; nothing is asked. */
CASE(a_key_shorter_than_key_min_asks_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].key_min = b->policies[1].key_min = 16;
    b->requests[0].key_len = 15;
    b->requests[1].key_len = 16;
    begin(b, 0);
    begin(b, 1);
    expect(b, "0 ANSWER bad_key\n0 END\n1 ASK claim\n");
    assert_int_equal(b->flows[0].answer.key_min, 16);
}

/* Policy owner_required: a key that has no owner is MISSING_OWNER, and nothing is asked. */
CASE(a_key_without_an_owner_is_refused_where_owners_are_required)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].owner_required = b->policies[1].owner_required = true;
    b->requests[1].owner.bytes[0] = 1;
    begin(b, 0);
    begin(b, 1);
    expect(b, "0 ANSWER missing_owner\n0 END\n1 ASK claim\n");
}

/* ---- CLAIM ------------------------------------------------------------------------------ */

/* The whole way: claimed, run, stored, and only then answered. */
CASE(it_is_stored_first_and_sent_second)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    expect(b, "0 ASK claim\n");
    told_claimed(b, 0, 1, false);
    expect(b, "0 RUN a1\n");
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ASK complete 200\n");
    told_stored(b, 0);
    expect(b, "0 ANSWER fresh 200 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.retry_after_ms, -1);
}

/* While the secret is changed an op names the record under the old one as well. */
CASE(an_op_names_what_the_request_has_under_the_old_secret)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[1].has_old = true;
    b->requests[1].old.id.bytes[0] = 7;
    begin(b, 0);
    begin(b, 1);
    assert_null(b->flows[0].op.old);
    assert_non_null(b->flows[1].op.old);
    assert_int_equal(b->flows[1].op.old->id.bytes[0], 7);
}

/* A CLAIM says what the policy and the request say. */
CASE(a_claim_asks_by_its_policy)
{
    struct bench bench, *b = &bench;
    const struct hapax_op *op = &bench.flows[0].op;

    bench_init(b);
    b->policies[0].retention_ms = 4444;
    b->policies[0].attempts_max = 5;
    b->policies[0].rerun_completed = true;
    b->policies[0].on_expired = HAPAX_EXPIRED_HOLD;
    b->requests[0].owner.bytes[3] = 1;
    b->requests[0].fingerprint.bytes[4] = 1;
    b->requests[0].caller.bytes[5] = 1;
    b->requests[0].what = hapax_str("POST /pay");
    begin(b, 0);
    expect(b, "0 ASK claim hold\n");
    assert_int_equal(op->lease_ms, LEASE_MS);
    assert_int_equal(op->retention_ms, 4444);
    assert_int_equal(op->attempts_max, 5);
    assert_true(op->rerun_completed);
    assert_memory_equal(&op->id, &b->requests[0].id, sizeof(op->id));
    assert_memory_equal(&op->owner, &b->requests[0].owner, sizeof(op->owner));
    assert_memory_equal(&op->fingerprint, &b->requests[0].fingerprint, sizeof(op->fingerprint));
    assert_memory_equal(&op->caller, &b->requests[0].caller, sizeof(op->caller));
    assert_memory_equal(&op->token, &b->requests[0].token, sizeof(op->token));
    assert_ptr_equal(op->scope.ptr, b->requests[0].scope.ptr);
    assert_int_equal(op->scope.len, 7);
    assert_int_equal(op->what.len, 9);
}

/* What follows a CLAIM names the attempt that it was granted, and says nothing of what the CLAIM
 * said. */
CASE(the_ops_of_a_claim_name_its_attempt)
{
    struct bench bench, *b = &bench;
    const struct hapax_op *op = &bench.flows[0].op;

    bench_init(b);
    begin(b, 0);
    answered(b, 0, HAPAX_CLAIMED, HAPAX_STATE_STARTED)->record.created_us = STORE_US - MS;
    bench.flows[0].op.record.attempt = 4;
    told(b, 0);
    assert_int_equal(b->flows[0].created_us, STORE_US - MS);
    pass_ms(b, 0, LEASE_MS / 3);
    assert_int_equal(op->kind, HAPAX_OP_RENEW);
    assert_int_equal(op->verdict, HAPAX_NO_VERDICT);
    assert_int_equal(op->retention_ms, 0);
    assert_int_equal(op->lease_ms, LEASE_MS);
    assert_int_equal(op->if_attempt, 0);
    assert_int_equal(op->attempt, 4);
    assert_int_equal(op->fence, FENCE);
    answered(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    told(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    assert_int_equal(op->kind, HAPAX_OP_COMPLETE);
    assert_false(op->ran || op->as_unknown);
    assert_int_equal(op->attempt, 4);
    assert_int_equal(op->fence, FENCE);
}

/* Each verdict that ends a CLAIM has its answer. */
CASE(a_verdict_is_an_answer)
{
    static const bool recorded[] = {true, true, false, false, true, false};
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_state(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK claim\n0 ANSWER replay 201\n0 END\n");
    begin(b, 1);
    answered(b, 1, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED)->record.outcome.body_kept = false;
    told(b, 1);
    expect(b, "1 ASK claim\n1 ANSWER gone 201\n1 END\n");
    begin(b, 2);
    answered(b, 2, HAPAX_MISMATCH, HAPAX_STATE_STARTED)->differs = HAPAX_DIFFERS_CALLER;
    told(b, 2);
    expect(b, "2 ASK claim\n2 ANSWER mismatch caller\n2 END\n");
    begin(b, 3);
    told_state(b, 3, HAPAX_UNKNOWN, HAPAX_STATE_UNKNOWN);
    expect(b, "3 ASK claim\n3 ANSWER unknown\n3 END\n");
    begin(b, 4);
    answered(b, 4, HAPAX_FAILED, HAPAX_STATE_FAILED)->record.outcome = outcome_of(500);
    told(b, 4);
    expect(b, "4 ASK claim\n4 ANSWER failed 500\n4 END\n");
    begin(b, 5);
    told_state(b, 5, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    expect(b, "5 ASK claim\n5 ANSWER in_flight retry 900\n5 END\n");
    for (int i = 0; i < 6; i++) {
        assert_int_equal(b->flows[i].answer.recorded, recorded[i]);
        assert_int_equal(b->flows[i].answer.attempt, i == 2 ? 0 : 1);
    }
    assert_int_equal(b->flows[0].answer.fence, FENCE);
    assert_int_equal(b->flows[0].answer.retry_after_ms, -1);
}

/* A lost reply: the same CLAIM again, until a verdict comes. */
CASE(a_claim_without_a_reply_is_repeated)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    expect(b, "0 ASK claim\n");
    assert_int_equal(sleeps_ms(b, 0), 10);
    pass_ms(b, 0, 10);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    expect(b, "0 ASK claim\n");
    assert_int_equal(sleeps_ms(b, 0), 20);
    pass_ms(b, 0, 20);
    told_error(b, 0, HAPAX_ERR_NOMEM);
    pass_ms(b, 0, 40);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n0 ASK claim\n0 RUN a1\n");
}

/* The token's bytes shorten the pauses, each another one, by up to a half. */
CASE(equal_claims_do_not_march_in_step)
{
    struct bench bench, *b = &bench;
    const int64_t pauses_us[] = {10000, 20000 - 20000 * 255 / 512, 40000 - 40000 * 128 / 512};

    bench_init(b);
    b->requests[0].token.bytes[1] = 255;
    b->requests[0].token.bytes[2] = 128;
    begin(b, 0);
    for (size_t i = 0; i < 3; i++) {
        told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
        assert_int_equal(b->flows[0].wake_us - b->now_us, pauses_us[i]);
        b->now_us = b->flows[0].wake_us;
        go_on(b, 0);
    }
}

static bool will_not_act(struct hapax__flow *f, enum hapax__flow_do what, int64_t now_us)
{
    (void)f;
    (void)what;
    (void)now_us;
    return false;
}

/* A door that cannot go on says so, and so does the drive; the flows stay as they are. */
CASE(a_drive_ends_with_its_door)
{
    struct bench bench, *b = &bench;
    static const struct hapax__flow_door door = {bench_now, will_not_act};

    bench_init(b);
    hapax__flow_begin(&b->flows[0], &b->policies[0], &b->waiters, &b->requests[0], b->now_us);
    assert_false(hapax__flow_drive(&b->flows[0], &door));
}

/* The pauses stop growing, and the timeout ends them. */
CASE(a_store_that_is_not_reached_is_down)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].timeout_ms = 3600000;
    begin(b, 0);
    for (int i = 0; i < 20; i++) {
        told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
        assert_true(sleeps_ms(b, 0) <= 500);
        pass_ms(b, 0, sleeps_ms(b, 0));
    }
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    b->len = 0;
    pass_ms(b, 0, 3600000);
    expect(b, "0 ANSWER store_down unavailable retry 1000\n0 END\n");
}

/* What repeating does not cure is answered at once. */
CASE(a_lasting_error_is_not_repeated)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_CORRUPT);
    expect(b, "0 ASK claim\n0 ANSWER store_down corrupt\n0 END\n");
    assert_int_equal(b->flows[0].answer.retry_after_ms, -1);
}

/* ---- ghosts ------------------------------------------------------------------------------ */

/* A CLAIM given up on has landed after all: it is found and failed as not run. */
CASE(a_ghost_is_chased_and_released)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].timeout_ms = 100;
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    b->len = 0;
    pass_ms(b, 0, 100);
    expect(b, "0 ANSWER store_down indeterminate retry 1000\n");
    for (int i = 0; i < 10; i++) {
        pass_ms(b, 0, sleeps_ms(b, 0));
        told_error(b, 0, i % 2 ? HAPAX_ERR_INDETERMINATE : HAPAX_ERR_UNAVAILABLE);
    }
    assert_true(sleeps_ms(b, 0) >= 2500); /* growing */
    b->len = 0;
    pass_ms(b, 0, 5000);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n0 ASK fail not-run\n");
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 20);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 ASK fail not-run\n0 END\n");
}

/* The reply is still out when the client is answered: what it says decides. */
CASE(a_claim_under_way_is_followed_up)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    pass_ms(b, 0, 2000);
    expect(b, "0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n");
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK fail not-run\n");
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 END\n");
    begin(b, 1);
    pass_ms(b, 1, 2000);
    told_error(b, 1, HAPAX_ERR_UNAVAILABLE);
    expect(b, "1 ASK claim\n1 ANSWER store_down indeterminate retry 1000\n1 END\n");
    begin(b, 2);
    pass_ms(b, 2, 2000);
    told_error(b, 2, HAPAX_ERR_CORRUPT);
    expect(b, "2 ASK claim\n2 ANSWER store_down indeterminate retry 1000\n2 END\n");
    begin(b, 3);
    pass_ms(b, 3, 2000);
    told_state(b, 3, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    expect(b, "3 ASK claim\n3 ANSWER store_down indeterminate retry 1000\n3 END\n");
    begin(b, 4);
    stop(b, 4);
    told_claimed(b, 4, 1, false);
    told_error(b, 4, HAPAX_ERR_CORRUPT);
    expect(b, "4 ASK claim\n4 ANSWER store_down indeterminate retry 1000\n"
              "4 ASK fail not-run\n4 END\n");
    begin(b, 5);
    stop(b, 5);
    told_error(b, 5, HAPAX_ERR_INDETERMINATE); /* it may have landed: asked again */
    pass_ms(b, 5, 20);
    expect(b, "5 ASK claim\n5 ANSWER store_down indeterminate retry 1000\n5 ASK claim\n");
}

/* A repeated CLAIM can find that its own ghost came and went. */
CASE(a_claim_lost_to_time_is_not_run)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_UNKNOWN);
    expect(b, "0 ASK claim\n0 ANSWER unknown\n0 END\n");
    b->policies[1].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[1].reconciles = true;
    begin(b, 1);
    told_state(b, 1, HAPAX_LOST, HAPAX_STATE_UNKNOWN);
    expect(b, "1 ASK claim reconcile\n1 ANSWER unknown retry 1000\n1 END\n");
    begin(b, 2);
    told_state(b, 2, HAPAX_LOST, HAPAX_STATE_FAILED);
    expect(b, "2 ASK claim\n2 ANSWER in_flight retry 0\n2 END\n");
}

/* ---- waiting for another process --------------------------------------------------------- */

/* Asks again with growing pauses, and not later than the lease's end; a FAIL there means a run
 * here. */
CASE(it_waits_for_one_in_flight)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = 5000;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    assert_int_equal(sleeps_ms(b, 0), 25);
    pass_ms(b, 0, 25);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(sleeps_ms(b, 0), 50);
    pass_ms(b, 0, 50);
    answered(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us = STORE_US + 3 * MS;
    told(b, 0);
    assert_int_equal(sleeps_ms(b, 0), 4);
    pass_ms(b, 0, 4);
    told_claimed(b, 0, 2, true);
    expect(b, "0 ASK claim\n0 ASK claim\n0 ASK claim\n0 ASK claim\n0 RUN a2 stale\n");
}

/* A store may tell of one in flight whose lease is over: on PostgreSQL, a caller's own
 * transaction keeps its record to itself. It is asked again with pauses all the same. */
CASE(a_lease_that_is_over_is_waited_for_with_pauses)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = 5000;
    begin(b, 0);
    answered(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us = STORE_US - MS;
    told(b, 0);
    assert_int_equal(sleeps_ms(b, 0), 25);
    pass_ms(b, 0, 25);
    answered(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us = 0;
    told(b, 0);
    assert_int_equal(sleeps_ms(b, 0), 50);
    pass_ms(b, 0, 50);
    told_claimed(b, 0, 2, true);
    begin(b, 1);
    answered(b, 1, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us = STORE_US - MS;
    told(b, 1);
    expect(b, "0 ASK claim\n0 ASK claim\n0 ASK claim\n0 RUN a2 stale\n"
              "1 ASK claim\n1 ANSWER in_flight retry 0\n1 END\n");
}

/* The end of a lease to the microsecond: where one is left it is waited for, and its millisecond
 * counts whole; where none is, nobody knows when to ask. */
CASE(a_lease_ends_at_its_microsecond)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = b->policies[1].wait_ms = 1000;
    for (int left = 0; left < 2; left++)
        for (int i = left; i < 4; i += 2) {
            begin(b, i);
            answered(b, i, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us =
                STORE_US + left;
            told(b, i);
        }
    assert_int_equal(sleeps_ms(b, 0), 25);
    assert_int_equal(sleeps_ms(b, 1), 2);
    expect(b, "0 ASK claim\n2 ASK claim\n2 ANSWER in_flight retry 0\n2 END\n"
              "1 ASK claim\n3 ASK claim\n3 ANSWER in_flight retry 1\n3 END\n");
    assert_int_equal(b->flows[2].answer.silent_ms, -1);
    assert_int_equal(b->flows[3].answer.silent_ms, LEASE_MS - 1);
    begin(b, 4);
    told_state(b, 4, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    assert_int_equal(b->flows[4].answer.silent_ms, 0);
}

/* The shortest wait is one. */
CASE(a_millisecond_is_waited)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = 1;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    expect(b, "0 ASK claim\n");
    pass_ms(b, 0, 1);
    expect(b, "0 ANSWER in_flight retry 899\n0 END\n");
}

/* Waiting ends: by time, or because the client is gone. */
CASE(waiting_has_an_end)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = b->policies[1].wait_ms = 100;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    pass_ms(b, 0, 100);
    expect(b, "0 ASK claim\n0 ANSWER in_flight retry 800\n0 END\n");
    assert_int_equal(b->flows[0].answer.silent_ms, b->policies[0].lease_ms - 800);
    begin(b, 1);
    told_state(b, 1, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    stop(b, 1);
    expect(b, "1 ASK claim\n1 ANSWER in_flight retry 900\n1 END\n");
}

/* A holder whose lease is longer than this flow's: nobody can say how long it was silent. */
CASE(a_longer_lease_tells_no_silence)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    answered(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED)->record.lease_until_us =
        STORE_US + (b->policies[0].lease_ms + 1000) * MS;
    told(b, 0);
    assert_int_equal(b->flows[0].answer.kind, HAPAX_ANSWER_IN_FLIGHT);
    assert_int_equal(b->flows[0].answer.silent_ms, -1);
}

/* While waiting the CLAIM's reply was lost: the flow follows the CLAIM up after the answer. */
CASE(a_waiters_ghost_is_chased_too)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = 40;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    pass_ms(b, 0, 25);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 15);
    expect(b, "0 ASK claim\n0 ASK claim\n0 ANSWER in_flight retry 860\n");
    stop(b, 0);
    expect(b, "0 END\n");
}

/* A verdict came after the lost reply: no CLAIM can land any more, so none is chased. */
CASE(a_verdict_ends_the_ghost)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].wait_ms = 40;
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 10);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    stop(b, 0);
    expect(b, "0 ASK claim\n0 ASK claim\n0 ANSWER in_flight retry 900\n0 END\n");
}

/* ---- a late claim ------------------------------------------------------------------------- */

static void claim_late(struct bench *b, int i, bool stale)
{
    begin(b, i);
    b->now_us += 450 * MS;
    told_claimed(b, i, 1, stale);
    b->len = 0;
}

/* Half of the lease has gone: a RENEW must say that the claim is still held. */
CASE(a_late_claim_is_confirmed_before_it_runs)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_late(b, 0, true);
    assert_int_equal(b->flows[0].op.kind, HAPAX_OP_RENEW);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 10);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew\n0 RUN a1\n");
    assert_int_equal(sleeps_ms(b, 0), 300);
}

/* … and a microsecond before that none need. The time to confirm it in begins with the claim. */
CASE(a_claim_is_late_after_half_of_its_lease)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_late(b, 0, false);
    assert_int_equal(sleeps_ms(b, 0), b->policies[0].timeout_ms);
    begin(b, 1);
    b->now_us += 450 * MS - 1;
    told_claimed(b, 1, 1, false);
    expect(b, "1 ASK claim\n1 RUN a1\n1 ASK renew\n");
}

/* A repeated CLAIM shows what its first left of the lease. */
CASE(the_lease_left_is_what_the_store_says)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    answered(b, 0, HAPAX_CLAIMED, HAPAX_STATE_STARTED)->record.lease_until_us = STORE_US + 100 * MS;
    told(b, 0);
    expect(b, "0 ASK claim\n0 ASK renew\n");
}

/* … and where it is not, nothing runs. */
CASE(a_late_claim_that_is_lost_does_not_run)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_late(b, 0, false);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 ANSWER replay 201\n0 END\n");
    claim_late(b, 1, false);
    told_state(b, 1, HAPAX_LOST, HAPAX_STATE_ABSENT);
    expect(b, "1 ANSWER in_flight retry 0\n1 END\n");
    claim_late(b, 2, false);
    told_state(b, 2, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "2 ANSWER in_flight retry 900\n2 END\n");
    claim_late(b, 3, false);
    told_state(b, 3, HAPAX_OK, HAPAX_STATE_UNKNOWN);
    expect(b, "3 ANSWER unknown\n3 END\n");
    claim_late(b, 4, false);
    told_error(b, 4, HAPAX_ERR_REFUSED);
    expect(b, "4 ANSWER store_down refused\n4 ASK fail not-run\n");
    told_error(b, 4, HAPAX_ERR_REFUSED);
    pass_ms(b, 4, 2000);
    told_state(b, 4, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "4 ASK fail not-run\n4 END\n");
}

/* It cannot be confirmed in time: the claim is given back, whatever was under way. */
CASE(a_claim_not_confirmed_in_time_is_given_back)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_late(b, 0, false);
    pass_ms(b, 0, 2000);
    expect(b, "0 ANSWER store_down indeterminate retry 1000\n");
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    expect(b, "0 ASK fail not-run\n");
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 END\n");
    claim_late(b, 1, false);
    told_error(b, 1, HAPAX_ERR_UNAVAILABLE);
    stop(b, 1);
    expect(b, "1 ANSWER store_down unavailable retry 1000\n1 ASK fail not-run\n");
    stop(b, 1);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "1 END\n");
}

static uint32_t spent_of(struct bench *b, int i)
{
    assert_true(b->flows[i].answer.kind != 0);
    return b->flows[i].answer.spent;
}

static void claim_spent(struct bench *b, int i, uint32_t spent)
{
    begin(b, i);
    answered(b, i, HAPAX_CLAIMED, HAPAX_STATE_STARTED)->record.attempt = 9;
    b->flows[i].op.record.spent = spent;
    told(b, i);
}

/* The answer says what attempts_max limits: what may have run, this attempt with it, and nothing
 * else. */
CASE(an_answer_says_what_is_spent)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_spent(b, 0, 2);
    handled(b, 0, HAPAX_CLASS_FAILED, 500);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    assert_int_equal(spent_of(b, 0), 3);
    claim_spent(b, 1, 2);
    handled(b, 1, HAPAX_CLASS_NOT_RUN, 503);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_FAILED);
    assert_int_equal(spent_of(b, 1), 2);
    claim_spent(b, 2, 2);
    handled(b, 2, HAPAX_CLASS_UNKNOWN, 504);
    assert_int_equal(spent_of(b, 2), 3);
    b->requests[4].id = b->requests[3].id; /* asks the same */
    begin(b, 3);
    begin(b, 4);
    answered(b, 3, HAPAX_FAILED, HAPAX_STATE_FAILED)->record.spent = 5;
    told(b, 3);
    assert_int_equal(spent_of(b, 3), 5);
    assert_int_equal(spent_of(b, 4), 5);
    begin(b, 5);
    told_state(b, 5, HAPAX_MISMATCH, HAPAX_STATE_FAILED);
    assert_int_equal(spent_of(b, 5), 0);
}

/* A late copy of the CLAIM was granted anew: what runs knows the attempt it really is. */
CASE(a_claim_granted_anew_runs_as_the_new_attempt)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_late(b, 0, false);
    answered(b, 0, HAPAX_OK, HAPAX_STATE_STARTED)->record.fence = FENCE + 5;
    b->flows[0].op.record.attempt = 3;
    told(b, 0);
    expect(b, "0 RUN a3\n");
    assert_int_equal(b->flows[0].fence, FENCE + 5);
}

/* ---- the reconcile hook ------------------------------------------------------------------- */

static void claim_stale(struct bench *b, int i)
{
    b->policies[i].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[i].reconciles = true;
    begin(b, i);
    told_claimed(b, i, 2, true);
    b->len = 0;
}

/* The hook is asked before a stale operation runs; "it happened" is stored and replayed. */
CASE(the_hooks_yes_is_the_outcome)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[0].reconciles = true;
    begin(b, 0);
    told_claimed(b, 0, 2, true);
    expect(b, "0 ASK claim reconcile\n0 RECONCILE a2\n");
    stop(b, 0);
    hooked(b, 0, HAPAX_CLASS_FINAL, 204);
    assert_false(b->flows[0].op.ran || b->flows[0].op.as_unknown);
    told_stored(b, 0);
    expect(b, "0 ASK complete 204\n0 ANSWER replay 204\n0 END\n");
}

/* "It did not": `stale` is cleared in the store first, then the handler runs. */
CASE(after_the_hooks_no_it_runs)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_stale(b, 0);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    expect(b, "0 ASK renew reconciled\n");
    assert_int_equal(sleeps_ms(b, 0), b->policies[0].timeout_ms);
    answered(b, 0, HAPAX_OK, HAPAX_STATE_STARTED)->record.attempt = 2;
    told(b, 0);
    expect(b, "0 RUN a2\n");
}

/* Who cannot tell runs nothing. */
CASE(an_unsure_hook_leaves_it_unknown)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_stale(b, 0);
    hooked(b, 0, HAPAX_CLASS_FAILED, 500);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_UNKNOWN);
    expect(b, "0 ASK fail ran unknown\n0 ANSWER unknown retry 1000\n0 END\n");
    claim_stale(b, 1);
    hooked(b, 1, HAPAX_CLASS_FAILED, 500);
    told_state(b, 1, HAPAX_LOST, HAPAX_STATE_COMPLETED); /* another could */
    expect(b, "1 ASK fail ran unknown\n1 ANSWER replay 201\n1 END\n");
}

/* The hook's "no" was about the attempts before it: one granted since makes it worthless. */
CASE(a_no_from_before_a_new_grant_does_not_count)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_stale(b, 0);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    assert_int_equal(b->flows[0].op.if_attempt, b->flows[0].attempt);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew reconciled\n0 ASK fail ran unknown\n");
}

/* … and where the operation was completed meanwhile, that is the answer. */
CASE(a_no_that_comes_after_completion_runs_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_stale(b, 0);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK renew reconciled\n0 ANSWER replay 201\n0 END\n");
}

/* While the hook is asked the claim is renewed; lost, it is for the record to answer. */
CASE(a_claim_lost_while_the_hook_is_asked_runs_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    claim_stale(b, 0);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    expect(b, "0 ASK renew\n0 ABANDON\n0 ASK read\n");
    told_state(b, 0, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "0 ANSWER in_flight retry 0\n0 END\n");
}

/* With no hook to ask, the store is told to hold. */
CASE(reconcile_without_a_hook_is_hold)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    begin(b, 0);
    expect(b, "0 ASK claim hold\n");
}

/* ---- the handler runs ---------------------------------------------------------------------- */

/* A RENEW every third of the lease; an error is repeated sooner. */
CASE(a_running_handler_keeps_its_lease)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    stop(b, 0);
    assert_int_equal(sleeps_ms(b, 0), 300);
    pass_ms(b, 0, 300);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(sleeps_ms(b, 0), 10);
    pass_ms(b, 0, 10);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_UNKNOWN);
    assert_int_equal(sleeps_ms(b, 0), 300);
    expect(b, "0 ASK renew\n0 ASK renew\n");
    pass_ms(b, 0, 300);
    for (int ms = 10; ms < 320; ms *= 2) {
        told_error(b, 0, HAPAX_ERR_INDETERMINATE);
        assert_int_equal(sleeps_ms(b, 0), ms);
        pass_ms(b, 0, ms);
    }
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(sleeps_ms(b, 0), LEASE_MS / 3);
}

/* Renewing ends at run_max: with a reply, without one, and with one that comes later. */
CASE(a_hung_handler_is_not_renewed_for_ever)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].run_max_ms = b->policies[1].run_max_ms = LEASE_MS;
    run_flow(b, 0);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    assert_int_equal(sleeps_ms(b, 0), 300);
    pass_ms(b, 0, 300);
    expect(b, "0 ASK renew\n0 ASK renew\n");
    assert_true(b->flows[0].wake_us == INT64_MAX);
    run_flow(b, 1);
    pass_ms(b, 1, 300);
    b->now_us += (LEASE_MS - 300) * MS;
    told_error(b, 1, HAPAX_ERR_INDETERMINATE);
    expect(b, "1 ASK renew\n");
    assert_true(b->flows[1].wake_us == INT64_MAX);
}

/* The claim is lost: the handler is told, and its end is judged by the record. */
CASE(a_lost_claim_is_abandoned)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew\n0 ABANDON\n");
    handled(b, 0, HAPAX_CLASS_UNKNOWN, 504);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_STARTED);
    expect(b, "0 ASK read\n0 ANSWER in_flight retry 900\n0 END\n");
}

/* The token holds the record again, as another attempt: this handler's fence is refused by then. */
CASE(a_handler_whose_attempt_is_over_is_abandoned)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    pass_ms(b, 0, 300);
    answered(b, 0, HAPAX_OK, HAPAX_STATE_STARTED)->record.fence = FENCE + 1;
    told(b, 0);
    expect(b, "0 ASK renew\n0 ABANDON\n");
}

/* A handler that ends while a RENEW is out is stored once that has come back. */
CASE(an_end_waits_for_the_renewal_under_way)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    pass_ms(b, 0, 300);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    expect(b, "0 ASK renew\n");
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK complete 200\n");
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 ANSWER replay 201\n0 END\n");
}

/* ---- how it ended -------------------------------------------------------------------------- */

/* Each class, and each policy on failures, is stored as what it is. */
CASE(an_end_is_stored_by_its_class)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_NOT_RUN, 503);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 ASK fail not-run\n0 ANSWER fresh 503 recorded\n0 END\n");
    run_flow(b, 1);
    handled(b, 1, HAPAX_CLASS_FAILED, 500);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "1 ASK fail ran\n1 ANSWER fresh 500 recorded\n1 END\n");
    b->policies[2].on_failed = HAPAX_FAILED_REPLAY;
    run_flow(b, 2);
    handled(b, 2, HAPAX_CLASS_FAILED, 500);
    told_stored(b, 2);
    expect(b, "2 ASK complete 500\n2 ANSWER fresh 500 recorded\n2 END\n");
    b->policies[3].on_failed = HAPAX_FAILED_HOLD;
    run_flow(b, 3);
    handled(b, 3, HAPAX_CLASS_FAILED, 500);
    expect(b, "3 ASK fail ran unknown\n");
    b->policies[4].on_expired = HAPAX_EXPIRED_HOLD;
    run_flow(b, 4);
    handled(b, 4, HAPAX_CLASS_UNKNOWN, 504);
    expect(b, "4 ASK fail ran unknown\n");
    run_flow(b, 5);
    handled(b, 5, HAPAX_CLASS_UNKNOWN, 504);
    expect(b, "5 ANSWER fresh 504 unrecorded\n5 END\n");
}

/* A handler whose process surely died leaves nothing to its lease, whatever the policy: what
 * becomes of the record is the machine's to say. */
CASE(a_death_that_is_known_is_stored_at_once)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[1].on_expired = HAPAX_EXPIRED_HOLD;
    b->policies[2].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[2].reconciles = true;
    b->policies[3].pass_token = true;
    for (int i = 0; i < 4; i++) {
        run_flow(b, i);
        died(b, i);
        assert_int_equal(b->flows[i].op.outcome.status, 0);
    }
    expect(b, "3 ASK fail ran unknown died\n");
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 20);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    assert_int_equal(b->flows[0].answer.cls, HAPAX_CLASS_UNKNOWN);
    assert_int_equal(b->flows[0].answer.spent, 1);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_UNKNOWN);
    told_state(b, 3, HAPAX_LOST, HAPAX_STATE_COMPLETED); /* it had completed the record itself */
    expect(b, "0 ASK fail ran unknown died\n0 ANSWER fresh recorded\n0 END\n"
              "1 ANSWER fresh recorded\n1 END\n3 ANSWER replay 201\n3 END\n");
}

/* A hook whose process died cannot tell, as any other that ends without an answer. */
CASE(a_hook_that_died_cannot_tell)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[0].reconciles = true;
    begin(b, 0);
    told_claimed(b, 0, 2, true);
    died(b, 0);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_UNKNOWN);
    expect(b, "0 ASK claim reconcile\n0 RECONCILE a2\n0 ASK fail ran unknown\n"
              "0 ANSWER unknown retry 1000\n0 END\n");
}

/* Without protection nobody has a claim to give up, unless one may have landed. */
CASE(a_death_without_protection_is_stored_only_for_a_ghost)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[2].key = HAPAX__KEY_NONE;
    b->policies[0].on_store_error = b->policies[1].on_store_error = HAPAX_STORE_OPEN;
    for (int i = 0; i < 2; i++) {
        begin(b, i);
        told_error(b, i, i == 0 ? HAPAX_ERR_UNAVAILABLE : HAPAX_ERR_INDETERMINATE);
        b->now_us += b->policies[i].timeout_ms * MS;
        go_on(b, i);
        died(b, i);
    }
    expect(b, "0 ASK claim\n0 RUN a0\n0 ANSWER bypass unprotected\n0 END\n1 ASK claim\n1 RUN a0\n"
              "1 ANSWER bypass unprotected\n1 ASK fail ran unknown died\n");
    begin(b, 2);
    died(b, 2);
    expect(b, "2 RUN a0\n2 ANSWER bypass\n2 END\n");
}

/* The handler had the token: before its end counts as unknown, the record is read. */
CASE(a_handler_with_the_token_may_have_committed)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 4; i++)
        b->policies[i].pass_token = true;
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_UNKNOWN, 504);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK read\n0 ANSWER replay 201\n0 END\n");
    run_flow(b, 1);
    handled(b, 1, HAPAX_CLASS_UNKNOWN, 504);
    told_error(b, 1, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 1, 20);
    told_state(b, 1, HAPAX_FOUND, HAPAX_STATE_STARTED);
    expect(b, "1 ASK read\n1 ASK read\n1 ANSWER fresh 504 unrecorded\n1 END\n");
    run_flow(b, 2);
    handled(b, 2, HAPAX_CLASS_UNKNOWN, 504);
    pass_ms(b, 2, 2000);
    expect(b, "2 ASK read\n2 ANSWER fresh 504 unrecorded\n");
    told_error(b, 2, HAPAX_ERR_INDETERMINATE);
    expect(b, "2 END\n");
    run_flow(b, 3);
    handled(b, 3, HAPAX_CLASS_UNKNOWN, 504);
    stop(b, 3);
    told_error(b, 3, HAPAX_ERR_CORRUPT);
    expect(b, "3 ASK read\n3 ANSWER fresh 504 unrecorded\n3 END\n");
}

/* The upstream completed the record itself: what it stored is the answer, not what it sent. */
CASE(what_is_stored_stands)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK complete 200\n0 ANSWER replay 201\n0 END\n");
    for (int i = 1; i < 6; i++) {
        static const char *const answers[] = {"",
                                              "1 ANSWER gone 200\n1 END\n",
                                              "2 ANSWER replay 200\n2 END\n",
                                              "3 ANSWER replay 200\n3 END\n",
                                              "4 ANSWER fresh 200 recorded\n4 END\n",
                                              "5 ANSWER fresh 200 recorded\n5 END\n"};
        struct hapax_op *op;

        run_flow(b, i);
        handled(b, i, HAPAX_CLASS_FINAL, 200);
        b->len = 0;
        op = answered(b, i, HAPAX_OK, HAPAX_STATE_COMPLETED);
        op->record.outcome = outcome_of(200);
        if (i == 1)
            op->record.outcome.body_kept = false;
        else if (i == 2)
            op->record.outcome.headers = hapax_str("A: c\r\n");
        else if (i == 3)
            op->record.outcome.body = hapax_str("other");
        else if (i == 4)
            op->record.outcome.headers.len = op->outcome.headers.len = 0;
        told(b, i);
        expect(b, answers[i]);
    }
}

/* LOST after the handler ran: the record answers, and never the handler. */
CASE(a_zombie_keeps_its_answer_to_itself)
{
    struct bench bench, *b = &bench;
    static const struct {
        enum hapax_state state;
        const char *answer;
    } cases[] = {
        {HAPAX_STATE_COMPLETED, "0 ANSWER replay 201\n0 END\n"},
        {HAPAX_STATE_STARTED, "1 ANSWER in_flight retry 900\n1 END\n"},
        {HAPAX_STATE_FAILED, "2 ANSWER in_flight retry 0\n2 END\n"},
        {HAPAX_STATE_UNKNOWN, "3 ANSWER unknown\n3 END\n"},
        {HAPAX_STATE_ABSENT, "4 ANSWER fresh 200 unrecorded\n4 END\n"},
    };

    bench_init(b);
    for (int i = 0; i < 5; i++) {
        run_flow(b, i);
        handled(b, i, HAPAX_CLASS_FINAL, 200);
        b->len = 0;
        told_state(b, i, HAPAX_LOST, cases[i].state);
        expect(b, cases[i].answer);
        if (cases[i].state == HAPAX_STATE_STARTED)
            assert_int_equal(b->flows[i].answer.fence, 0);
    }
}

/* Its record was forgotten and the id belongs to another request: that one's outcome stays
 * hidden. */
CASE(a_zombie_never_sees_another_requests_outcome)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    answered(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED)->record.caller.bytes[0] ^= 1;
    told(b, 0);
    expect(b, "0 ASK complete 200\n0 ANSWER fresh 200 unrecorded\n0 END\n");
    run_flow(b, 1);
    handled(b, 1, HAPAX_CLASS_FINAL, 200);
    answered(b, 1, HAPAX_LOST, HAPAX_STATE_COMPLETED)->record.fingerprint.bytes[0] ^= 1;
    told(b, 1);
    expect(b, "1 ASK complete 200\n1 ANSWER fresh 200 unrecorded\n1 END\n");
}

/* Nor may it READ it, where the store tells doors apart: for this request the record is gone. */
CASE(a_zombie_that_is_refused_anothers_record_passes_on_its_end)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    pass_ms(b, 0, 300);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_ABSENT);
    handled(b, 0, HAPAX_CLASS_UNKNOWN, 504);
    b->len = 0;
    told_error(b, 0, HAPAX_ERR_REFUSED);
    expect(b, "0 ANSWER fresh 504 unrecorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_REFUSED);
    b->policies[1].pass_token = true;
    run_flow(b, 1);
    handled(b, 1, HAPAX_CLASS_UNKNOWN, 504);
    told_error(b, 1, HAPAX_ERR_REFUSED);
    expect(b, "1 ASK read\n1 ANSWER fresh 504 unrecorded\n1 END\n");
    assert_int_equal(b->flows[1].answer.error, HAPAX_ERR_REFUSED);
    claim_stale(b, 2); /* a hook has no end to pass on */
    pass_ms(b, 2, 300);
    told_state(b, 2, HAPAX_LOST, HAPAX_STATE_ABSENT);
    hooked(b, 2, HAPAX_CLASS_NOT_RUN, 404);
    b->len = 0;
    told_error(b, 2, HAPAX_ERR_REFUSED);
    expect(b, "2 ANSWER store_down refused\n2 END\n");
}

/* The store says no more to one who lost the claim: then there is no answer but that. */
CASE(a_zombie_without_a_store_has_no_answer)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 3; i++) {
        run_flow(b, i);
        pass_ms(b, i, 300);
        told_state(b, i, HAPAX_LOST, HAPAX_STATE_STARTED);
        handled(b, i, i < 2 ? HAPAX_CLASS_FINAL : HAPAX_CLASS_UNKNOWN, 200);
        b->len = 0;
    }
    told_error(b, 0, HAPAX_ERR_CORRUPT);
    expect(b, "0 ANSWER store_down corrupt\n0 END\n");
    told_error(b, 1, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 1, 2000);
    expect(b, "1 ANSWER store_down unavailable retry 1000\n1 END\n");
    told_error(b, 2, HAPAX_ERR_CORRUPT);
    expect(b, "2 ANSWER store_down corrupt\n2 END\n");
}

/* ---- saving -------------------------------------------------------------------------------- */

/* The client is answered after save_wait, marked; the outcome is saved for as long as it takes. */
CASE(a_result_is_saved_after_its_answer)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    stop(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(sleeps_ms(b, 0), 20);
    pass_ms(b, 0, 2000);
    expect(b, "0 ASK complete 200\n0 ANSWER fresh 200 unrecorded\n0 ASK complete 200\n");
    for (int i = 0; i < 10; i++) {
        told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
        assert_true(sleeps_ms(b, 0) > 0 && sleeps_ms(b, 0) <= 300); /* a third of the lease */
        assert_true(i < 9 || sleeps_ms(b, 0) == 300);
        pass_ms(b, 0, 300);
    }
    b->len = 0;
    told_stored(b, 0);
    expect(b, "0 END\n");
}

/* The claim was granted: a store that refuses its end has keys that are being changed. */
CASE(a_result_that_is_refused_is_saved_later)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_error(b, 0, HAPAX_ERR_REFUSED);
    pass_ms(b, 0, 20);
    told_error(b, 0, HAPAX_ERR_REFUSED);
    pass_ms(b, 0, 2000);
    expect(b, "0 ASK complete 200\n0 ASK complete 200\n0 ANSWER fresh 200 unrecorded\n"
              "0 ASK complete 200\n");
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_REFUSED);
    told_stored(b, 0);
    expect(b, "0 END\n");
}

/* Where no reply came the answer says that, too. */
CASE(an_answer_says_why_it_is_not_recorded)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    pass_ms(b, 0, 2000);
    expect(b, "0 ASK complete 200\n0 ANSWER fresh 200 unrecorded\n");
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_INDETERMINATE);
}

/* An error that was got over is not in the answer. */
CASE(an_answer_does_not_remember_a_passing_error)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 0, 20);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_NONE);
    assert_int_equal(b->flows[0].answer.retry_after_ms, -1);
    expect(b, "0 ASK complete 200\n0 ASK complete 200\n0 ANSWER replay 201\n0 END\n");
}

/* Answered and not saved: another's completion, a lasting error or a stop ends it. */
CASE(late_saving_ends_without_a_second_answer)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 4; i++) {
        run_flow(b, i);
        handled(b, i, HAPAX_CLASS_FINAL, 200);
        pass_ms(b, i, 2000);
        b->len = 0;
    }
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_COMPLETED);
    expect(b, "0 END\n");
    told_state(b, 1, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "1 END\n");
    told_error(b, 2, HAPAX_ERR_CORRUPT);
    expect(b, "2 END\n");
    stop(b, 3);
    expect(b, "");
    told_error(b, 3, HAPAX_ERR_INDETERMINATE);
    expect(b, "3 END\n");
}

/* A body over the limit, ours or the store's, is not kept; the first answer has it whole. */
CASE(a_body_over_the_limit_is_not_kept)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[0].max_response = 2;
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200 bodiless\n0 ANSWER fresh 200 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.outcome.body.len, 4);
    run_flow(b, 1);
    handled(b, 1, HAPAX_CLASS_FINAL, 200);
    told_error(b, 1, HAPAX_ERR_TOO_BIG);
    expect(b, "1 ASK complete 200\n1 ASK complete 200 bodiless\n");
    told_error(b, 1, HAPAX_ERR_TOO_BIG); /* for its headers */
    expect(b, "1 ASK complete 200 bodiless\n");
    told_error(b, 1, HAPAX_ERR_TOO_BIG);
    expect(b, "1 ANSWER fresh 200 unrecorded\n1 END\n");
    run_flow(b, 2);
    {
        struct hapax_outcome stream = {.status = 200};

        hapax__flow_handled(&b->flows[2], HAPAX_CLASS_FINAL, &stream, b->now_us);
        go_on(b, 2);
    }
    expect(b, "2 ASK complete 200 bodiless\n");
    b->policies[3].max_response = 4; /* it has four bytes */
    run_flow(b, 3);
    handled(b, 3, HAPAX_CLASS_FINAL, 200);
    expect(b, "3 ASK complete 200\n");
}

/* Whatever an outcome has is left out where it does not fit: one byte, or as many as headers. */
CASE(an_outcome_of_any_size_may_be_too_big)
{
    static const struct hapax_outcome outcomes[] = {
        {.status = 200, .body = {(const uint8_t *)"x", 1}, .body_kept = true},
        {.status = 200,
         .headers = {(const uint8_t *)"A: b\r\n", 6},
         .body = {(const uint8_t *)"sixsix", 6},
         .body_kept = true},
    };
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 2; i++) {
        run_flow(b, i);
        hapax__flow_handled(&b->flows[i], HAPAX_CLASS_FINAL, &outcomes[i], b->now_us);
        go_on(b, i);
        b->len = 0;
        told_error(b, i, HAPAX_ERR_TOO_BIG);
        expect(b, i == 0 ? "0 ASK complete 200 bodiless\n" : "1 ASK complete 200 bodiless\n");
    }
}

/* Headers that do not fit are not kept either: what happened is stored all the same. */
CASE(headers_over_the_limit_are_not_kept)
{
    const struct hapax_outcome outcome = {.status = 200,
                                          .headers = hapax_str("A: b\r\n"),
                                          .body = hapax_str("body"),
                                          .body_kept = true};
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    hapax__flow_handled(&b->flows[0], HAPAX_CLASS_FINAL, &outcome, b->now_us);
    go_on(b, 0);
    told_error(b, 0, HAPAX_ERR_TOO_BIG);
    assert_int_equal(b->flows[0].op.outcome.headers.len, 6);
    told_error(b, 0, HAPAX_ERR_TOO_BIG);
    assert_int_equal(b->flows[0].op.outcome.headers.len, 0);
    told_stored(b, 0);
    expect(b, "0 ASK complete 200\n0 ASK complete 200 bodiless\n0 ASK complete 200 bodiless\n"
              "0 ANSWER fresh 200 recorded\n0 END\n");
    assert_int_equal(b->flows[0].answer.outcome.headers.len, 6);
    assert_int_equal(b->flows[0].answer.kept_ms, 0);
}

/* ---- without a store ------------------------------------------------------------------------ */

/* `open`: it runs unprotected, and is answered at once. It tries to save with its token where its
 * claim may have landed. */
CASE(open_runs_unprotected)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 5; i++) {
        b->policies[i].on_store_error = HAPAX_STORE_OPEN;
        b->policies[i].timeout_ms = 100;
    }
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    b->len = 0;
    pass_ms(b, 0, 100);
    expect(b, "0 RUN a0\n");
    assert_true(b->flows[0].wake_us == INT64_MAX);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_ABSENT);
    expect(b, "0 ANSWER bypass 200 unprotected\n0 ASK complete 200\n0 END\n");
    begin(b, 1);
    pass_ms(b, 1, 100);
    handled(b, 1, HAPAX_CLASS_FINAL, 200);
    expect(b, "1 ASK claim\n1 RUN a0\n1 ANSWER bypass 200 unprotected\n");
    assert_int_equal(b->flows[1].answer.error, HAPAX_ERR_INDETERMINATE);
    told_error(b, 1, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 1, 2000); /* save_wait has nobody to answer any more */
    told_stored(b, 1);
    expect(b, "1 ASK complete 200\n1 END\n");
    b->policies[2].pass_token = true;
    begin(b, 2);
    pass_ms(b, 2, 100);
    told_claimed(b, 2, 1, false);
    handled(b, 2, HAPAX_CLASS_UNKNOWN, 504);
    expect(b, "2 ASK claim\n2 RUN a0\n2 ANSWER bypass 504 unprotected\n2 END\n");
    begin(b, 3);
    told_error(b, 3, HAPAX_ERR_CORRUPT);
    expect(b, "3 ASK claim\n3 ANSWER store_down corrupt\n3 END\n");
    begin(b, 4);
    told_error(b, 4, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 4, 100);
    handled(b, 4, HAPAX_CLASS_FINAL, 200); /* surely no claim landed: nothing is saved */
    expect(b, "4 ASK claim\n4 RUN a0\n4 ANSWER bypass 200 unprotected\n4 END\n");
}

/* The client is gone before anything ran. */
CASE(a_client_that_leaves_early_runs_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    stop(b, 0);
    stop(b, 0);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n0 END\n");
    begin(b, 1);
    told_error(b, 1, HAPAX_ERR_UNAVAILABLE);
    stop(b, 1);
    expect(b, "1 ASK claim\n1 ANSWER store_down unavailable retry 1000\n1 END\n");
}

/* ---- limits --------------------------------------------------------------------------------- */

/* At a limit the store is asked, and nothing is claimed: what it does not know is refused, and so
 * is what never ran. */
CASE(at_a_limit_nothing_new_is_claimed)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 2; i++)
        limit(b, i);
    begin(b, 0);
    told_state(b, 0, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "0 ASK read\n0 ANSWER limited keys retry 5000\n0 END\n");
    begin(b, 1);
    told_state(b, 1, HAPAX_FOUND, HAPAX_STATE_FAILED);
    expect(b, "1 ASK read\n1 ANSWER limited keys retry 5000\n1 END\n");
}

/* What the store knows is claimed as always: it is replayed, or runs again. */
CASE(at_a_limit_what_is_known_goes_on)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 2; i++)
        limit(b, i);
    begin(b, 0);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    told_state(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK read\n0 ASK claim\n0 ANSWER replay 201\n0 END\n");
    begin(b, 1);
    answered(b, 1, HAPAX_FOUND, HAPAX_STATE_FAILED)->record.spent = 1;
    told(b, 1);
    told_claimed(b, 1, 2, false);
    expect(b, "1 ASK read\n1 ASK claim\n1 RUN a2\n");
}

/* A door may not READ another request's record: it is known, and the CLAIM says MISMATCH. */
CASE(at_a_limit_another_requests_key_is_a_mismatch)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    limit(b, 0);
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_REFUSED);
    told_state(b, 0, HAPAX_MISMATCH, HAPAX_STATE_COMPLETED);
    expect(b, "0 ASK read\n0 ASK claim\n0 ANSWER mismatch 201\n0 END\n");
}

/* The store has answered the look: `open` is over, though no CLAIM is answered. */
CASE(at_a_limit_open_ends_with_the_look)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    limit(b, 0);
    b->policies[0].on_store_error = HAPAX_STORE_OPEN;
    b->policies[0].timeout_ms = 100;
    begin(b, 0);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    pass_ms(b, 0, 100);
    expect(b, "0 ASK read\n0 ASK claim\n0 ANSWER store_down indeterminate retry 1000\n");
}

/* Without the store nobody can tell what is known. No look can have landed, so none is chased. */
CASE(at_a_limit_a_look_is_repeated_and_not_chased)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 4; i++) {
        limit(b, i);
        b->policies[i].timeout_ms = 100;
    }
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 0, 10);
    told_state(b, 0, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "0 ASK read\n0 ASK read\n0 ANSWER limited keys retry 5000\n0 END\n");
    begin(b, 1);
    told_error(b, 1, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 1, 100);
    expect(b, "1 ASK read\n1 ANSWER store_down indeterminate retry 1000\n1 END\n");
    begin(b, 2);
    stop(b, 2);
    told_error(b, 2, HAPAX_ERR_INDETERMINATE);
    expect(b, "2 ASK read\n2 ANSWER store_down indeterminate retry 1000\n2 END\n");
    begin(b, 3);
    pass_ms(b, 3, 100);
    told_state(b, 3, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    expect(b, "3 ASK read\n3 ANSWER store_down indeterminate retry 1000\n3 END\n");
}

/* In a move from store to store a READ with a token would claim: the look has none. */
CASE(at_a_limit_a_look_has_no_token)
{
    static const struct hapax_token none;
    struct bench bench, *b = &bench;

    bench_init(b);
    limit(b, 0);
    begin(b, 0);
    assert_memory_equal(&b->flows[0].op.token, &none, sizeof(none));
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    assert_memory_equal(&b->flows[0].op.token, &b->requests[0].token, sizeof(none));
    expect(b, "0 ASK read\n0 ASK claim\n");
}

/* A claim that was granted and is over the limit is given back: nothing ran. */
CASE(a_claim_over_the_limit_is_given_back)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[1].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[1].reconciles = true;
    begin(b, 0);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK claim\n0 RUN a1\n");
    refused(b, 0);
    expect(b, "0 ANSWER limited in_flight retry 1000\n0 ASK fail not-run\n");
    assert_int_equal(b->flows[0].answer.fence, 0);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 END\n");
    begin(b, 1);
    told_claimed(b, 1, 2, true);
    refused(b, 1);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "1 ASK claim reconcile\n1 RECONCILE a2\n1 ANSWER limited in_flight retry 1000\n"
              "1 ASK fail not-run\n1 END\n");
}

/* `open` runs nothing over a limit either. A CLAIM that may have landed is followed up. */
CASE(open_runs_nothing_over_the_limit)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 2; i++) {
        b->policies[i].on_store_error = HAPAX_STORE_OPEN;
        b->policies[i].timeout_ms = 100;
    }
    limit(b, 0);
    begin(b, 0);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    b->len = 0;
    pass_ms(b, 0, 100);
    refused(b, 0);
    expect(b, "0 RUN a0\n0 ANSWER limited in_flight retry 1000\n0 END\n");
    assert_int_equal(b->flows[0].answer.error, HAPAX_ERR_NONE);
    begin(b, 1);
    pass_ms(b, 1, 100);
    refused(b, 1);
    told_claimed(b, 1, 1, false);
    told_state(b, 1, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "1 ASK claim\n1 RUN a0\n1 ANSWER limited in_flight retry 1000\n1 ASK fail not-run\n"
              "1 END\n");
}

/* ---- keys that carry their time -------------------------------------------------------------- */

/* Flow i has a key that was made longer ago than outcomes are kept. */
static void make_old(struct bench *b, int i)
{
    b->policies[i].key_expires = true;
    b->requests[i].key_age_ms = b->policies[i].retention_ms + 1;
}

/* A key that has outlived the retention runs nothing: what the store does not know is refused, and
 * so is what never ran. */
CASE(a_key_that_is_too_old_runs_nothing)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    for (int i = 0; i < 3; i++)
        make_old(b, i);
    limit(b, 1);
    b->requests[2].key_age_ms--;
    begin(b, 0);
    told_state(b, 0, HAPAX_ABSENT, HAPAX_STATE_ABSENT);
    expect(b, "0 ASK read\n0 ANSWER expired\n0 END\n");
    begin(b, 1);
    told_state(b, 1, HAPAX_FOUND, HAPAX_STATE_FAILED);
    expect(b, "1 ASK read\n1 ANSWER expired\n1 END\n");
    begin(b, 2);
    expect(b, "2 ASK claim\n");
    make_old(b, 3);
    b->policies[3].key_expires = false;
    begin(b, 3);
    expect(b, "3 ASK claim\n");
}

/* What the store still knows of an old key is answered from it, or runs again, as ever. */
CASE(an_old_key_that_is_known_goes_on)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    make_old(b, 0);
    make_old(b, 1);
    begin(b, 0);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_UNKNOWN);
    told_state(b, 0, HAPAX_UNKNOWN, HAPAX_STATE_UNKNOWN);
    expect(b, "0 ASK read\n0 ASK claim\n0 ANSWER unknown\n0 END\n");
    begin(b, 1);
    answered(b, 1, HAPAX_FOUND, HAPAX_STATE_FAILED)->record.spent = 1;
    told(b, 1);
    answered(b, 1, HAPAX_CLAIMED, HAPAX_STATE_STARTED)->record.spent = 1;
    told(b, 1);
    expect(b, "1 ASK read\n1 ASK claim\n1 RUN a1\n");
}

/* The record that was seen expires before the CLAIM: the claim is given back, and nothing ran. */
CASE(a_record_that_expires_meanwhile_is_not_begun_anew)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    make_old(b, 0);
    b->requests[1].id = b->requests[0].id;
    make_old(b, 1);
    b->policies[1].wait_ms = 1000;
    begin(b, 0);
    begin(b, 1);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK read\n0 ASK claim\n1 ANSWER expired\n1 END\n0 ANSWER expired\n"
              "0 ASK fail not-run\n");
    assert_int_equal(b->flows[0].answer.fence, 0);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_FAILED);
    expect(b, "0 END\n");
}

/* Where what has completed is run again, an old key's is, too. */
CASE(an_old_key_that_is_completed_runs_again_where_all_do)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    make_old(b, 0);
    b->policies[0].rerun_completed = true;
    begin(b, 0);
    told_state(b, 0, HAPAX_FOUND, HAPAX_STATE_COMPLETED);
    told_claimed(b, 0, 1, false);
    expect(b, "0 ASK read\n0 ASK claim\n0 RUN a1\n");
}

/* `open` runs nothing for an old key either: without the store nobody knows whether it ran. */
CASE(open_runs_nothing_for_an_old_key)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    make_old(b, 0);
    b->policies[0].on_store_error = HAPAX_STORE_OPEN;
    b->policies[0].timeout_ms = 100;
    begin(b, 0);
    pass_ms(b, 0, 100);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    expect(b, "0 ASK read\n0 ANSWER store_down indeterminate retry 1000\n0 END\n");
}

/* ---- tombstones ------------------------------------------------------------------------------ */

/* The next answer to flow i shows a tombstone. */
static struct hapax_op *answered_tombstone(struct bench *b, int i, enum hapax_verdict verdict)
{
    struct hapax_op *op = answered(b, i, verdict, HAPAX_STATE_COMPLETED);

    op->now_us = 5000000;
    op->record.updated_us = 1000000;
    op->record.retention_ms = 4000;
    op->record.expires_us = 9000000;
    return op;
}

/* Who meets a tombstone gets EXPIRED, with the word that it was done, and so does who shares the
 * answer. Who may rerun what has completed asks on his own. */
CASE(a_tombstone_is_answered_expired)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->requests[1].id = b->requests[0].id;
    b->policies[1].wait_ms = 1000;
    b->requests[3].id = b->requests[2].id;
    b->policies[2].rerun_completed = b->policies[3].rerun_completed = true;
    b->policies[3].wait_ms = 1000;
    begin(b, 0);
    begin(b, 1);
    answered_tombstone(b, 0, HAPAX_COMPLETED);
    told(b, 0);
    assert_true(b->flows[0].answer.recorded && b->flows[1].answer.recorded);
    expect(b, "0 ASK claim\n1 ANSWER expired\n1 END\n0 ANSWER expired\n0 END\n");
    begin(b, 2);
    begin(b, 3);
    answered_tombstone(b, 2, HAPAX_COMPLETED);
    told(b, 2);
    expect(b, "2 ASK claim\n3 ASK claim\n2 ANSWER expired\n2 END\n");
}

/* A microsecond before the retention is over the outcome is replayed, and its time left is that of
 * the retention alone. */
CASE(a_record_before_its_tombstone_is_replayed)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    answered_tombstone(b, 0, HAPAX_COMPLETED)->now_us = 4999000;
    told(b, 0);
    expect(b, "0 ASK claim\n0 ANSWER replay 201\n0 END\n");
    assert_int_equal(b->flows[0].answer.kept_ms, 1);
}

/* A handler that lost its claim learns that another one's outcome was kept, and is gone. */
CASE(a_loser_may_meet_a_tombstone)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    answered_tombstone(b, 0, HAPAX_LOST);
    told(b, 0);
    expect(b, "0 ASK complete 200\n0 ANSWER expired\n0 END\n");
    assert_int_equal(b->flows[0].answer.fence, 0);
}

/* A COMPLETE whose reply took longer than the retention: the handler's own outcome is all there is,
 * and others ask on their own. */
CASE(an_end_that_was_stored_long_ago_is_passed_on)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    run_flow(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    answered_tombstone(b, 0, HAPAX_OK);
    told(b, 0);
    expect(b, "0 ASK complete 200\n0 ANSWER fresh 200 unrecorded\n0 END\n");
}

/* ---- how old, and how long kept -------------------------------------------------------------- */

/* A replay says how old it is and how long it is kept; whoever shares it says the same. */
CASE(a_replay_tells_its_age)
{
    struct bench bench, *b = &bench;
    struct hapax_op *op;

    bench_init(b);
    b->requests[1].id = b->requests[0].id;
    begin(b, 0);
    begin(b, 1);
    op = answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    op->record.updated_us = STORE_US - 1500 * MS;
    op->record.retention_ms = 4000;
    op->record.expires_us = STORE_US + 2500 * MS;
    told(b, 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(b->flows[i].answer.age_ms, 1500);
        assert_int_equal(b->flows[i].answer.kept_ms, 2500);
    }
    begin(b, 2); /* kept for ever; a store whose clock went back a little */
    op = answered(b, 2, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    op->record.updated_us = STORE_US + MS;
    told(b, 2);
    assert_int_equal(b->flows[2].answer.age_ms, 0);
    assert_int_equal(b->flows[2].answer.kept_ms, 0);
    begin(b, 3); /* a store that tells no times */
    told_state(b, 3, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    assert_int_equal(b->flows[3].answer.age_ms, 0);
    begin(b, 4); /* the first microsecond of a store's clock */
    op = answered(b, 4, HAPAX_FAILED, HAPAX_STATE_FAILED);
    op->record.updated_us = 1;
    told(b, 4);
    assert_int_equal(b->flows[4].answer.age_ms, STORE_US / MS - 1);
    begin(b, 5); /* what is unknown has no outcome, so none is old */
    answered(b, 5, HAPAX_UNKNOWN, HAPAX_STATE_UNKNOWN)->record.updated_us = STORE_US - 5 * MS;
    told(b, 5);
    assert_int_equal(b->flows[5].answer.age_ms, 0);
}

/* A first answer says how long it is kept, where it is replayed and not for ever. */
CASE(a_first_answer_tells_how_long_it_is_kept)
{
    static const int64_t kept[] = {86400000, 0, 0, 0};
    struct bench bench, *b = &bench;

    bench_init(b);
    b->policies[1].retention_ms = HAPAX_FOREVER_MS;
    b->policies[2].rerun_completed = true;
    for (int i = 0; i < 4; i++) {
        run_flow(b, i);
        handled(b, i, i == 3 ? HAPAX_CLASS_NOT_RUN : HAPAX_CLASS_FINAL, 200);
        if (i == 3)
            told_state(b, i, HAPAX_OK, HAPAX_STATE_FAILED);
        else
            told_stored(b, i);
        assert_int_equal(b->flows[i].answer.kept_ms, kept[i]);
    }
}

/* An end says how long it is kept, by its class and its status; and a completion asks for its
 * tombstone. */
CASE(an_end_is_kept_by_its_class)
{
    static const struct {
        enum hapax_class cls;
        int status;
        enum hapax_on_failed on_failed;
        int64_t kept_ms, tombstone_ms;
    } rows[] = {
        {HAPAX_CLASS_FINAL, 200, 0, 0, 9000},
        {HAPAX_CLASS_FINAL, 399, 0, 0, 9000},
        {HAPAX_CLASS_FINAL, 400, 0, 1, 9000},
        {HAPAX_CLASS_FINAL, 499, 0, 1, 9000},
        {HAPAX_CLASS_FINAL, 500, 0, 0, 9000},
        {HAPAX_CLASS_FAILED, 500, HAPAX_FAILED_RETRY, 5000, 0},
        {HAPAX_CLASS_FAILED, 400, HAPAX_FAILED_REPLAY, 5000, 9000},
        {HAPAX_CLASS_NOT_RUN, 503, 0, 0, 0},
    };
    struct bench bench, *b = &bench;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bench_init(b);
        b->policies[0].retention_4xx_ms = 1;
        b->policies[0].retention_failed_ms = 5000;
        b->policies[0].tombstone_ms = 9000;
        b->policies[0].on_failed = rows[i].on_failed;
        run_flow(b, 0);
        handled(b, 0, rows[i].cls, rows[i].status);
        assert_int_equal(b->flows[0].op.kept_ms, rows[i].kept_ms);
        assert_int_equal(b->flows[0].op.tombstone_ms, rows[i].tombstone_ms);
        if (b->flows[0].op.kind == HAPAX_OP_COMPLETE) {
            assert_false(b->flows[0].op.ran || b->flows[0].op.as_unknown);
            told_stored(b, 0);
            assert_int_equal(b->flows[0].answer.kept_ms,
                             rows[i].kept_ms > 0 ? rows[i].kept_ms : 86400000);
        }
    }
}

/* A CLAIM says that its end may be kept otherwise, whichever policy has it so. */
CASE(a_claim_says_what_its_end_may_need)
{
    struct bench bench, *b = &bench;

    for (int i = 0; i < 4; i++) {
        bench_init(b);
        b->policies[0].retention_4xx_ms = i == 1;
        b->policies[0].retention_failed_ms = i == 2;
        b->policies[0].tombstone_ms = i == 3;
        begin(b, 0);
        assert_int_equal(b->flows[0].op.kind, HAPAX_OP_CLAIM);
        assert_int_equal(b->flows[0].op.says_kept, i > 0);
        told_claimed(b, 0, 1, false);
        handled(b, 0, HAPAX_CLASS_FINAL, 200);
        told_stored(b, 0);
    }
}

/* New is what nothing has run for: no attempt, or none that may have had its effect. */
CASE(new_is_what_has_not_run)
{
    struct bench bench, *b = &bench;

    for (int known = 0; known < 4; known++) {
        struct hapax_op *op;

        bench_init(b);
        begin(b, 0);
        op = answered(b, 0, HAPAX_CLAIMED, HAPAX_STATE_STARTED);
        op->record.spent = known == 1;
        op->record.stale = known == 2;
        op->record.resolved_us = known == 3;
        told(b, 0);
        assert_int_equal(hapax__flow_is_new(&b->flows[0]), known == 0);
    }
}

/* ---- traces ----------------------------------------------------------------------------- */

/* A flow notes when it began to wait, when it was told to run, and when the handler had ended. */
CASE(a_flow_notes_its_times)
{
    struct bench bench, *b = &bench;
    const struct hapax__flow *f = bench.flows;

    bench_init(b);
    b->policies[0].wait_ms = 5000;
    b->policies[0].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[0].reconciles = true;
    begin(b, 0);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    pass_ms(b, 0, 25);
    told_state(b, 0, HAPAX_IN_FLIGHT, HAPAX_STATE_STARTED);
    pass_ms(b, 0, 50);
    told_claimed(b, 0, 2, true);
    assert_int_equal(f->wait_us, 1000 * MS);
    assert_int_equal(f->run_us, 1075 * MS); /* of the hook */
    b->now_us += 10 * MS;
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    told_state(b, 0, HAPAX_OK, HAPAX_STATE_STARTED);
    b->now_us += 100 * MS;
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    b->now_us += 5 * MS;
    told_stored(b, 0);
    assert_int_equal(f->run_us, 1085 * MS);
    assert_int_equal(f->handled_us, 1185 * MS);
    run_flow(b, 1);
    assert_int_equal(b->flows[1].wait_us, 0);
}

/* The trace of a run is taken off the headers that its answer has. */
CASE(a_replay_tells_the_trace_of_its_run)
{
    static const char headers[] =
        "Hapax-Trace: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nA: b\r\n";
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    answered(b, 0, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED)->record.outcome.headers =
        hapax_str(headers);
    told(b, 0);
    assert_string_equal(b->flows[0].answer.trace,
                        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_int_equal(b->flows[0].answer.outcome.headers.len, 6);
}

/* ---- counting --------------------------------------------------------------------------- */

static uint64_t sum_of(const struct hapax__times *times)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < HAPAX__TIMES; i++)
        n += times->n[i];
    return n;
}

/* Each answer, attempt, hook and op is counted once, by its kind, and its time is. */
CASE(what_happens_is_counted_once)
{
    struct bench bench, *b = &bench;
    const struct hapax__counts *c = &b->counts;

    bench_init(b);
    begin(b, 0); /* 30 ms at the store, and a handler of 100 ms */
    b->now_us += 10 * MS;
    told_claimed(b, 0, 1, false);
    b->now_us += 100 * MS;
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    b->now_us += 20 * MS;
    told_stored(b, 0);
    assert_int_equal(c->answers[HAPAX_ANSWER_FRESH], 1);
    assert_int_equal(c->attempts[HAPAX_CLASS_FINAL], 1);
    assert_int_equal(c->ops[HAPAX_OP_CLAIM] + c->ops[HAPAX_OP_COMPLETE], 2);
    assert_int_equal(c->op.us, 30 * MS);
    assert_int_equal(c->handler.us, 100 * MS);
    assert_int_equal(c->waiting.us, 30 * MS);
    assert_int_equal(c->waiting.n[15], 1); /* 16.4 to 32.8 ms */
    assert_int_equal(c->takeovers + c->lost + c->unrecorded, 0);

    b->policies[1].key = HAPAX_KEY_OPTIONAL; /* without a key: no attempt, and no op */
    b->requests[1].key = HAPAX__KEY_NONE;
    begin(b, 1);
    b->now_us += 100 * MS;
    handled(b, 1, HAPAX_CLASS_FINAL, 200);
    assert_int_equal(c->answers[HAPAX_ANSWER_BYPASS], 1);
    assert_int_equal(c->waiting.us, 30 * MS);
    assert_int_equal(sum_of(&c->handler), 1);
    assert_int_equal(sum_of(&c->op), 2);

    /* A dead attempt, a hook, then a handler. */
    b->policies[2].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[2].reconciles = true;
    begin(b, 2);
    told_claimed(b, 2, 2, true);
    hooked(b, 2, HAPAX_CLASS_NOT_RUN, 0);
    assert_int_equal(c->takeovers, 1);
    assert_int_equal(c->reconciles[HAPAX_CLASS_NOT_RUN], 1);
    told_state(b, 2, HAPAX_OK, HAPAX_STATE_STARTED);
    handled(b, 2, HAPAX_CLASS_FAILED, 500);
    told_state(b, 2, HAPAX_LOST, HAPAX_STATE_STARTED);
    assert_int_equal(c->attempts[HAPAX_CLASS_FAILED], 1);
    assert_int_equal(c->lost, 1);
    assert_int_equal(sum_of(&c->handler), 3);

    begin(b, 3); /* no reply, and then an error that is final */
    told_error(b, 3, HAPAX_ERR_INDETERMINATE);
    pass_ms(b, 3, 10);
    told_error(b, 3, HAPAX_ERR_CORRUPT);
    assert_int_equal(c->errors[-HAPAX_ERR_INDETERMINATE], 1);
    assert_int_equal(c->errors[-HAPAX_ERR_CORRUPT], 1);
    assert_int_equal(c->answers[HAPAX_ANSWER_STORE_DOWN], 1);
    assert_int_equal(c->unasked, 0);
}

/* A claim that is lost is counted once, though both RENEW and COMPLETE find it gone. */
CASE(a_lost_claim_is_counted_once)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_claimed(b, 0, 1, false);
    pass_ms(b, 0, LEASE_MS / 3);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    assert_int_equal(b->counts.lost, 1);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    assert_int_equal(b->counts.lost, 1);
}

/* A door that counts nothing is told what would have become of the request all the same. */
CASE(a_shadow_may_go_uncounted)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->flows[0].shadow = true;
    b->flows[0].counts = NULL;
    begin(b, 0);
    told_claimed(b, 0, 1, false);
    assert_int_equal(b->flows[0].would, HAPAX_ANSWER_FRESH);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
}

/* A shadow counts what would have become of its request, once, and nothing as an answer or an
 * attempt. What it asks the store is counted as ever. */
CASE(a_shadow_is_counted_apart)
{
    struct bench bench, *b = &bench;
    const struct hapax__counts *c = &b->counts;
    uint64_t answers = 0;

    bench_init(b);
    for (int i = 0; i < FLOWS; i++)
        b->flows[i].shadow = true;
    begin(b, 0);
    assert_int_equal(b->flows[0].would, 0);
    told_claimed(b, 0, 1, false);
    assert_int_equal(b->flows[0].would, HAPAX_ANSWER_FRESH);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_stored(b, 0);
    begin(b, 1);
    told_state(b, 1, HAPAX_COMPLETED, HAPAX_STATE_COMPLETED);
    begin(b, 2); /* after a failure, which may run again */
    told_claimed(b, 2, 2, false);
    handled(b, 2, HAPAX_CLASS_FAILED, 500);
    told_state(b, 2, HAPAX_OK, HAPAX_STATE_FAILED);
    b->policies[3].on_expired = HAPAX_EXPIRED_RECONCILE;
    b->requests[3].reconciles = true;
    begin(b, 3);
    told_claimed(b, 3, 2, true);
    hooked(b, 3, HAPAX_CLASS_NOT_RUN, 404);
    told_state(b, 3, HAPAX_OK, HAPAX_STATE_STARTED);
    handled(b, 3, HAPAX_CLASS_FINAL, 200);
    told_state(b, 3, HAPAX_LOST, HAPAX_STATE_STARTED);
    b->policies[4].on_store_error = HAPAX_STORE_OPEN;
    begin(b, 4);
    told_error(b, 4, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 4, b->policies[4].timeout_ms);
    assert_int_equal(b->flows[4].would, HAPAX_ANSWER_BYPASS);
    handled(b, 4, HAPAX_CLASS_FINAL, 200);
    b->requests[5].key = HAPAX__KEY_BAD;
    begin(b, 5);
    assert_int_equal(c->would[HAPAX_ANSWER_FRESH], 1);
    assert_int_equal(c->would[HAPAX_ANSWER_REPLAY], 1);
    assert_int_equal(c->would[HAPAX__WOULD_RUN_AGAIN], 1);
    assert_int_equal(c->would[HAPAX__WOULD_ASK], 1);
    assert_int_equal(c->would[HAPAX_ANSWER_BYPASS], 1);
    assert_int_equal(c->would[HAPAX_ANSWER_BAD_KEY], 1);
    for (size_t i = 0; i < sizeof(c->answers) / sizeof(c->answers[0]); i++)
        answers += c->answers[i];
    for (size_t i = 0; i < sizeof(c->attempts) / sizeof(c->attempts[0]); i++)
        answers += c->attempts[i] + c->reconciles[i];
    assert_int_equal(answers, 0);
    assert_int_equal(c->takeovers + c->lost + sum_of(&c->waiting), 0);
    assert_true(c->ops[HAPAX_OP_CLAIM] >= 5 && c->ops[HAPAX_OP_COMPLETE] == 2);
}

/* A flow that is not counted goes the same way. */
CASE(a_flow_may_count_nowhere)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    b->flows[0].counts = NULL;
    claim_stale(b, 0);
    hooked(b, 0, HAPAX_CLASS_NOT_RUN, 404);
    answered(b, 0, HAPAX_OK, HAPAX_STATE_STARTED)->record.attempt = 2;
    told(b, 0);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_state(b, 0, HAPAX_LOST, HAPAX_STATE_STARTED);
    expect(b, "0 ASK renew reconciled\n0 RUN a2\n0 ASK complete 200\n"
              "0 ANSWER in_flight retry 900\n0 END\n");
    assert_int_equal(b->counts.lost + b->counts.reconciles[HAPAX_CLASS_NOT_RUN], 0);
}

/* An outcome that is given before it is stored counts. An end that leaves none does not. */
CASE(what_is_given_before_it_is_stored_is_counted)
{
    struct bench bench, *b = &bench;

    bench_init(b);
    begin(b, 0);
    told_claimed(b, 0, 1, false);
    handled(b, 0, HAPAX_CLASS_FINAL, 200);
    told_error(b, 0, HAPAX_ERR_UNAVAILABLE);
    pass_ms(b, 0, 2000);
    assert_int_equal(b->counts.unrecorded, 1);
    begin(b, 1);
    told_claimed(b, 1, 1, false);
    handled(b, 1, HAPAX_CLASS_UNKNOWN, 504);
    assert_int_equal(b->counts.answers[HAPAX_ANSWER_FRESH], 2);
    assert_int_equal(b->counts.unrecorded, 1);
}

/* A time is counted in the bucket of its power of two; the last has all that is longer. */
CASE(each_time_has_a_bucket)
{
    static const struct {
        int64_t us;
        unsigned at;
    } times[] = {{0, 0},
                 {1, 1},
                 {2, 2},
                 {3, 2},
                 {4, 3},
                 {1023, 10},
                 {1024, 11},
                 {INT64_C(1) << 29, 30},
                 {INT64_C(1) << 30, 31},
                 {INT64_C(1) << 40, 31}};

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        assert_int_equal(hapax__time_at(times[i].us), times[i].at);
}
