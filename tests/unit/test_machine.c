/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules that follow from the machine's tables, each as a short history of one operation under
 * the name of the rule. test_machine_table.c has the tables themselves; what is here is what a
 * reader of the tables may count on over several ops. test_machine_kept.c has the rules of
 * retention, operators and LIST.
 */
#include "world.h"

/* ---- leases and tokens --------------------------------------------------------------- */

/* The reply to a CLAIM is lost; its repeat gives attempt, fence and stale again, lease over or
 * not. */
static void a_repeated_claim_gives_the_same_answer(void **state)
{
    struct world world = empty();
    struct hapax_op first, again;

    claim(&world, 1);
    let_the_lease_run_out(&world);
    first = claim(&world, 2);
    for (int i = 0; i < 3; i++) {
        again = claim(&world, 2);
        assert_int_equal(again.verdict, HAPAX_CLAIMED);
        assert_null(record_diff(&again.record, &first.record));
        assert_true(again.record.stale);
        let_the_lease_run_out(&world);
    }
}

/* The reply to a COMPLETE is lost; the repeat finds the outcome stored, and so does everyone. */
static void a_lost_reply_does_not_strand_the_winner(void **state)
{
    struct world world = empty();
    struct hapax_op first, again;

    claim(&world, 1);
    first = complete(&world, 1);
    world.now_us += LEASE_US;
    again = complete(&world, 1);
    assert_int_equal(again.verdict, HAPAX_OK);
    assert_null(record_diff(&again.record, &first.record));
    assert_int_equal(claim(&world, 1).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&world, 2).verdict, HAPAX_COMPLETED);
}

/* A lease is live until its end, and over from then on. */
static void a_lease_ends_at_its_time_and_not_before(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    world.now_us = START + LEASE_US - 1;
    op = claim(&world, 2);
    assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(op.record.lease_until_us, START + LEASE_US);
    world.now_us++;
    assert_int_equal(claim(&world, 2).verdict, HAPAX_CLAIMED);
}

/* A RENEW whose lease would end sooner than the one there is leaves it. */
static void a_renewal_never_shortens_a_lease(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_RENEW, 1);

    claim(&world, 1);
    op.lease_ms = 1;
    assert_int_equal(run(&world, op).record.lease_until_us, START + LEASE_US);
    op.lease_ms = 2 * LEASE_MS;
    assert_int_equal(run(&world, op).record.lease_until_us, START + 2 * LEASE_US);
}

/* Nobody else came: an attempt whose lease is over may renew and complete. */
static void a_late_holder_may_still_finish(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    world.now_us += 10 * LEASE_US;
    assert_int_equal(run(&world, op_of(HAPAX_OP_RENEW, 1)).verdict, HAPAX_OK);
    assert_int_equal(claim(&world, 2).verdict, HAPAX_IN_FLIGHT);
    world.now_us += 10 * LEASE_US;
    assert_int_equal(complete(&world, 1).verdict, HAPAX_OK);
}

/* After a takeover the first holder's writes are LOST and leave the record alone. */
static void a_zombie_changes_nothing(void **state)
{
    struct world world = empty();
    struct hapax_record before;

    claim(&world, 1);
    let_the_lease_run_out(&world);
    claim(&world, 2);
    before = world.record;
    assert_int_equal(run(&world, op_of(HAPAX_OP_RENEW, 1)).verdict, HAPAX_LOST);
    assert_int_equal(complete(&world, 1).verdict, HAPAX_LOST);
    assert_int_equal(fail_with(&world, 1, true).verdict, HAPAX_LOST);
    assert_null(record_diff(&world.record, &before));
    assert_int_equal(complete(&world, 2).verdict, HAPAX_OK);
}

/* LOST to a completion shows that outcome; LOST to anything else shows none. */
static void a_zombie_learns_the_outcome_that_stands(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    let_the_lease_run_out(&world);
    claim(&world, 2);
    op = complete(&world, 1);
    assert_int_equal(op.record.state, HAPAX_STATE_STARTED);
    assert_false(shows_outcome(&op));
    complete(&world, 2);
    op = op_of(HAPAX_OP_COMPLETE, 1);
    op.outcome.status = 299;
    op = run(&world, op);
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(op.record.state, HAPAX_STATE_COMPLETED);
    assert_int_equal(op.record.outcome.status, 200);
}

/* COMPLETE on what is completed answers what is stored, not what it brought. */
static void a_stored_outcome_stands(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, 1);

    claim(&world, 1);
    complete(&world, 1);
    op.outcome.status = 299;
    op = run(&world, op);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_int_equal(op.record.outcome.status, 200);
}

/* The fence rises by every grant, whether the clock runs ahead of it or stands still. */
static void every_claim_raises_the_fence(void **state)
{
    struct world world = empty();
    uint64_t last;

    last = claim(&world, 1).record.fence;
    assert_int_equal(last, START);
    for (uint8_t who = 2; who < 9; who++) {
        struct hapax_op op;

        fail_with(&world, (uint8_t)(who - 1), false);
        op = claim(&world, who);
        assert_true(op.record.fence > last);
        assert_int_equal(op.record.attempt, who);
        last = op.record.fence;
    }
    fail_with(&world, 8, false);
    world.now_us += SECOND;
    assert_int_equal(claim(&world, 9).record.fence, START + SECOND);
}

/* ---- failures ------------------------------------------------------------------------ */

/* A FAIL does not delete: the next attempt is the second, and its fence is higher. */
static void a_failed_record_keeps_its_attempt_count_and_fence(void **state)
{
    struct world world = empty();
    uint64_t fence;

    fence = claim(&world, 1).record.fence;
    fail_with(&world, 1, false);
    assert_true(world.present);
    assert_int_equal(world.record.attempt, 1);
    assert_int_equal(world.record.fence, fence);
    assert_int_equal(claim(&world, 2).record.attempt, 2);
    assert_true(world.record.fence > fence);
}

/* Where nothing ran there is no outcome to tell one FAIL from another. */
static void a_repeated_refusal_is_ok_whatever_its_outcome(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_FAIL, 1);

    claim(&world, 1);
    fail_with(&world, 1, false);
    op.outcome.status = 401;
    assert_int_equal(run(&world, op).verdict, HAPAX_OK);
    assert_int_equal(world.record.outcome.status, 0);
    assert_int_equal(world.record.outcome.body.len, 0);
    op.ran = true;
    assert_int_equal(run(&world, op).verdict, HAPAX_LOST);
}

/* A FAIL repeated is OK; one that says something else is not. */
static void a_repeated_fail_gives_the_same_answer(void **state)
{
    struct world world = empty();
    struct hapax_op first, again;

    claim(&world, 1);
    first = fail_with(&world, 1, true);
    again = fail_with(&world, 1, true);
    assert_int_equal(again.verdict, HAPAX_OK);
    assert_null(record_diff(&again.record, &first.record));
    assert_int_equal(fail_with(&world, 1, false).verdict, HAPAX_LOST);
    assert_int_equal(complete(&world, 1).verdict, HAPAX_LOST);
}

/* attempts_max counts attempts that may have run; the last failure is the answer then. */
static void attempts_that_ran_are_used_up(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    assert_int_equal(claim_at_most(&world, 1, 2).verdict, HAPAX_CLAIMED);
    fail_with(&world, 1, true);
    assert_int_equal(claim_at_most(&world, 2, 2).verdict, HAPAX_CLAIMED);
    fail_with(&world, 2, true);
    op = claim_at_most(&world, 3, 2);
    assert_int_equal(op.verdict, HAPAX_FAILED);
    assert_int_equal(op.record.outcome.status, 500);
    assert_int_equal(claim_at_most(&world, 3, 3).verdict, HAPAX_CLAIMED);
}

/* What surely did nothing may be tried for ever. */
static void nothing_run_does_not_count(void **state)
{
    struct world world = empty();

    for (uint8_t who = 1; who < 50; who++) {
        assert_int_equal(claim_at_most(&world, who, 1).verdict, HAPAX_CLAIMED);
        fail_with(&world, who, false);
    }
    assert_int_equal(world.record.spent, 0);
}

/* Each attempt dies with its handler: takeovers count, and end. */
static void a_request_that_kills_its_handlers_is_given_up(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    for (uint8_t who = 1; who <= 3; who++) {
        assert_int_equal(claim_at_most(&world, who, 3).verdict, HAPAX_CLAIMED);
        let_the_lease_run_out(&world);
    }
    op = claim_at_most(&world, 4, 3);
    assert_int_equal(op.verdict, HAPAX_FAILED);
    assert_int_equal(world.record.state, HAPAX_STATE_FAILED);
    assert_true(world.record.stale);
    assert_true(world.record.ran);
    assert_int_equal(world.record.spent, 3);
    assert_int_equal(claim_at_most(&world, 5, 3).verdict, HAPAX_FAILED);
    assert_int_equal(claim(&world, 6).verdict, HAPAX_CLAIMED);
}

/* ---- whose request ------------------------------------------------------------------- */

/* 422 beats 409: another request under the key of one in flight is told so at once. */
static void mismatch_is_found_before_in_flight(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    op = claim_otherwise(&world, 2, false);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_FINGERPRINT);
    op = claim_otherwise(&world, 2, true);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_CALLER);
}

/* Who is another caller learns nothing of the request: the caller is compared first. */
static void another_caller_is_told_nothing_of_the_request(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    op = op_of(HAPAX_OP_CLAIM, 2);
    op.caller.bytes[0] ^= 1;
    op.fingerprint.bytes[0] ^= 1;
    op = run(&world, op);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_CALLER);
}

/* A stolen key yields no other caller's response, in no state. */
static void a_mismatch_shows_no_outcome(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    complete(&world, 1);
    op = claim_otherwise(&world, 2, true);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_false(shows_outcome(&op));
    resolve(&world, 3, HAPAX_RESOLVE_FAIL, true);
    op = claim_otherwise(&world, 4, true);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_false(shows_outcome(&op));
}

/* Corrected after a FAIL with nothing run, the request takes the key; the first one lost it. */
static void nothing_run_frees_the_key_for_another_request(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    fail_with(&world, 1, false);
    assert_int_equal(claim_otherwise(&world, 2, false).verdict, HAPAX_CLAIMED);
    assert_int_equal(claim(&world, 3).verdict, HAPAX_MISMATCH);
}

/* An earlier attempt ran, so a later "nothing run" does not free the key. */
static void what_ever_ran_binds_the_key(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    fail_with(&world, 1, true);
    assert_int_equal(claim_otherwise(&world, 2, false).verdict, HAPAX_MISMATCH);
    claim(&world, 2);
    fail_with(&world, 2, false);
    assert_false(world.record.ran);
    assert_int_equal(claim_otherwise(&world, 3, false).verdict, HAPAX_MISMATCH);
    claim(&world, 3);
    let_the_lease_run_out(&world);
    claim(&world, 4);
    fail_with(&world, 4, false);
    assert_int_equal(claim_otherwise(&world, 5, true).verdict, HAPAX_MISMATCH);
}

/* ---- unknown results ----------------------------------------------------------------- */

/* Under hold no second attempt is granted: the operator decides. The holder may still finish. */
static void a_held_operation_becomes_unknown(void **state)
{
    struct world world = empty();

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    let_the_lease_run_out(&world);
    assert_int_equal(claim_as(&world, 2, HAPAX_EXPIRED_HOLD).verdict, HAPAX_UNKNOWN);
    assert_int_equal(claim_as(&world, 2, HAPAX_EXPIRED_RERUN).verdict, HAPAX_UNKNOWN);
    assert_int_equal(run(&world, op_of(HAPAX_OP_RENEW, 1)).record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(complete(&world, 1).verdict, HAPAX_OK);
    assert_int_equal(claim(&world, 2).verdict, HAPAX_COMPLETED);
}

/* The stricter of record and op wins, and what one claim asked for stays. */
static void another_door_cannot_undo_hold(void **state)
{
    static const enum hapax_on_expired strict[] = {HAPAX_EXPIRED_HOLD, HAPAX_EXPIRED_RECONCILE};

    for (size_t i = 0; i < 2; i++) {
        struct world world = empty();

        claim(&world, 1);
        fail_with(&world, 1, true);
        claim_as(&world, 2, strict[i]);
        fail_with(&world, 2, true);
        claim(&world, 3);
        assert_true(world.record.hold);
        let_the_lease_run_out(&world);
        assert_int_equal(claim(&world, 4).verdict, HAPAX_UNKNOWN);
    }
}

/* A CLAIM that is refused does not make the record strict. */
static void a_refused_claim_sets_no_hold(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    assert_int_equal(claim_as(&world, 2, HAPAX_EXPIRED_HOLD).verdict, HAPAX_IN_FLIGHT);
    assert_false(world.record.hold);
    let_the_lease_run_out(&world);
    assert_int_equal(claim(&world, 3).verdict, HAPAX_CLAIMED);
}

/* `stale` passes through a FAIL to the next attempt, and under hold stops it. */
static void stale_outlives_a_fail(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    let_the_lease_run_out(&world);
    claim(&world, 2);
    fail_with(&world, 2, false);
    assert_true(claim(&world, 3).record.stale);
    fail_with(&world, 3, false);
    assert_int_equal(claim_as(&world, 4, HAPAX_EXPIRED_HOLD).verdict, HAPAX_UNKNOWN);
    assert_int_equal(world.record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(claim(&world, 4).verdict, HAPAX_UNKNOWN);
}

/* With a hook the operation is claimed, marked stale, and the hook's "no" clears the mark. */
static void a_reconciler_may_go_on(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_RENEW, 3);

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    let_the_lease_run_out(&world);
    claim_as(&world, 2, HAPAX_EXPIRED_HOLD);
    assert_int_equal(world.record.state, HAPAX_STATE_UNKNOWN);
    assert_true(claim_as(&world, 3, HAPAX_EXPIRED_RECONCILE).record.stale);
    assert_int_equal(world.record.attempt, 2);
    assert_int_equal(world.record.spent, 1);
    op.reconciled = true;
    assert_false(run(&world, op).record.stale);
    fail_with(&world, 3, false);
    assert_int_equal(claim_as(&world, 4, HAPAX_EXPIRED_HOLD).verdict, HAPAX_CLAIMED);
}

/* FAIL to `unknown` is an attempt whose result is not known; its repeat is OK. */
static void a_fail_may_end_in_unknown(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_FAIL, 1);

    op.ran = true;
    op.as_unknown = true;
    claim(&world, 1);
    assert_int_equal(run(&world, op).verdict, HAPAX_OK);
    assert_int_equal(run(&world, op).verdict, HAPAX_OK);
    op = claim(&world, 2);
    assert_int_equal(op.verdict, HAPAX_UNKNOWN);
    assert_true(op.record.stale);
    assert_false(shows_outcome(&op));
}

static struct hapax_op die(struct world *world, uint8_t who)
{
    struct hapax_op op = op_of(HAPAX_OP_FAIL, who);

    op.ran = op.as_unknown = op.died = true;
    op.outcome = (struct hapax_outcome){0};
    return run(world, op);
}

/* A process that surely died leaves no lease: the next claim is granted at once, and told. */
static void a_death_that_is_known_needs_no_lease(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    for (int i = 0; i < 2; i++) { /* the reply was lost: the repeat is OK */
        assert_int_equal(die(&world, 1).verdict, HAPAX_OK);
        assert_int_equal(world.record.state, HAPAX_STATE_FAILED);
        assert_int_equal(world.record.spent, 1);
    }
    assert_int_equal(claim(&world, 1).verdict, HAPAX_LOST); /* a late copy runs nothing */
    op = claim(&world, 2);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 2);
    assert_true(op.record.stale);
    assert_int_equal(die(&world, 1).verdict, HAPAX_LOST);
    assert_int_equal(world.record.state, HAPAX_STATE_STARTED);
}

/* Another request cannot take the place of one whose attempt died: it may have run. */
static void a_death_binds_its_request(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    die(&world, 1);
    assert_int_equal(claim_otherwise(&world, 2, false).verdict, HAPAX_MISMATCH);
    world.now_us += 3600 * SECOND; /* longer than a refusal is kept */
    assert_true(claim(&world, 2).record.stale);
}

/* attempts_max counts the deaths that are known, too. */
static void known_deaths_use_up_the_attempts(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim_at_most(&world, 1, 2);
    die(&world, 1);
    assert_int_equal(claim_at_most(&world, 2, 2).verdict, HAPAX_CLAIMED);
    die(&world, 2);
    op = claim_at_most(&world, 3, 2);
    assert_int_equal(op.verdict, HAPAX_FAILED);
    assert_int_equal(op.record.spent, 2);
    assert_false(shows_outcome(&op));
}

/* Under hold, whoever said so, a death is for an operator: at once, or by the next door. */
static void a_known_death_under_hold_is_unknown(void **state)
{
    struct world world = empty();

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    assert_int_equal(die(&world, 1).verdict, HAPAX_OK);
    assert_int_equal(world.record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(world.record.spent, 0);
    assert_int_equal(die(&world, 1).verdict, HAPAX_OK);
    assert_int_equal(claim(&world, 2).verdict, HAPAX_UNKNOWN);
    world = empty();
    claim(&world, 1);
    die(&world, 1);
    assert_int_equal(claim_as(&world, 2, HAPAX_EXPIRED_HOLD).verdict, HAPAX_UNKNOWN);
    assert_int_equal(world.record.state, HAPAX_STATE_UNKNOWN);
}

/* A FAIL of another kind is no repeat of this one, and this one none of another. */
static void a_death_is_not_another_failure(void **state)
{
    struct world world = empty();

    claim(&world, 1);
    die(&world, 1);
    assert_int_equal(fail_with(&world, 1, true).verdict, HAPAX_LOST);
    assert_int_equal(fail_with(&world, 1, false).verdict, HAPAX_LOST);
    assert_int_equal(complete(&world, 1).verdict, HAPAX_LOST);
    claim(&world, 2);
    fail_with(&world, 2, true);
    assert_int_equal(die(&world, 2).verdict, HAPAX_LOST);
}

/* ---- reads --------------------------------------------------------------------------- */

static struct hapax_op claim_read(struct world *world, uint8_t who, bool rerun_completed)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, who);

    op.rerun_completed = rerun_completed;
    return run(world, op);
}

/* Exclusion without replay, until one claim asks for replay: then for good. */
static void reads_run_again_while_every_claim_says_so(void **state)
{
    struct world world = empty();

    claim_read(&world, 1, true);
    complete(&world, 1);
    assert_int_equal(claim_read(&world, 2, false).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim_read(&world, 2, true).verdict, HAPAX_CLAIMED);
    assert_int_equal(claim_read(&world, 3, true).verdict, HAPAX_IN_FLIGHT);
    fail_with(&world, 2, false);
    assert_int_equal(claim_read(&world, 3, false).verdict, HAPAX_CLAIMED);
    complete(&world, 3);
    assert_int_equal(claim_read(&world, 4, true).verdict, HAPAX_COMPLETED);
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_repeated_claim_gives_the_same_answer),
        T(a_lost_reply_does_not_strand_the_winner),
        T(a_lease_ends_at_its_time_and_not_before),
        T(a_renewal_never_shortens_a_lease),
        T(a_late_holder_may_still_finish),
        T(a_zombie_changes_nothing),
        T(a_zombie_learns_the_outcome_that_stands),
        T(a_stored_outcome_stands),
        T(every_claim_raises_the_fence),
        T(a_failed_record_keeps_its_attempt_count_and_fence),
        T(a_repeated_refusal_is_ok_whatever_its_outcome),
        T(a_repeated_fail_gives_the_same_answer),
        T(attempts_that_ran_are_used_up),
        T(nothing_run_does_not_count),
        T(a_request_that_kills_its_handlers_is_given_up),
        T(mismatch_is_found_before_in_flight),
        T(another_caller_is_told_nothing_of_the_request),
        T(a_mismatch_shows_no_outcome),
        T(nothing_run_frees_the_key_for_another_request),
        T(what_ever_ran_binds_the_key),
        T(a_held_operation_becomes_unknown),
        T(another_door_cannot_undo_hold),
        T(a_refused_claim_sets_no_hold),
        T(stale_outlives_a_fail),
        T(a_reconciler_may_go_on),
        T(a_fail_may_end_in_unknown),
        T(a_death_that_is_known_needs_no_lease),
        T(a_death_binds_its_request),
        T(known_deaths_use_up_the_attempts),
        T(a_known_death_under_hold_is_unknown),
        T(a_death_is_not_another_failure),
        T(reads_run_again_while_every_claim_says_so),
    };

    return cmocka_run_group_tests_name("machine", tests, NULL, NULL);
}
