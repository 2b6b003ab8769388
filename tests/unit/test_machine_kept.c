/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules about what is kept, and by whose word: retention, operators (RESOLVE) and LIST. Each
 * is a short history of one operation under the name of the rule.
 */
#include "core/record.h"
#include "world.h"

/* ---- retention ----------------------------------------------------------------------- */

/* Expired is absent: the next claim is a first one, of whatever request. */
static void an_expired_record_is_absent(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    complete(&world, 1);
    world.now_us = world.record.expires_us - 1;
    assert_int_equal(run(&world, op_of(HAPAX_OP_READ, 0)).verdict, HAPAX_FOUND);
    world.now_us++;
    assert_int_equal(run(&world, op_of(HAPAX_OP_READ, 0)).verdict, HAPAX_ABSENT);
    op = complete(&world, 1);
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(op.record.state, HAPAX_STATE_ABSENT);
    assert_int_equal(resolve(&world, 2, HAPAX_RESOLVE_FAIL, true).verdict, HAPAX_ABSENT);
    op = claim_otherwise(&world, 3, true);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_int_equal(op.record.attempt, 1);
}

/* However short its retention, a claim is there until its lease is over. */
static void a_live_claim_outlasts_its_retention(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);

    op.retention_ms = 1;
    run(&world, op);
    assert_int_equal(world.record.expires_us, START + LEASE_US);
    assert_int_equal(hapax__shown_until(&world.record), START + LEASE_US);
    world.now_us = START + LEASE_US - 1;
    run(&world, op_of(HAPAX_OP_RENEW, 1));
    assert_int_equal(world.record.expires_us, world.now_us + LEASE_US);
    complete(&world, 1);
    assert_int_equal(world.record.expires_us, world.now_us + 1000);
}

static struct hapax_op complete_for(struct world *world, uint8_t who, int64_t kept_ms,
                                    int64_t tombstone_ms)
{
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, who);

    op.kept_ms = kept_ms;
    op.tombstone_ms = tombstone_ms;
    return run(world, op);
}

/* A COMPLETE may say how long the record is kept from then on, and a FAIL of this one end alone. */
static void an_end_may_set_the_retention(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_FAIL, 1);

    claim(&world, 1);
    op.ran = true;
    op.kept_ms = 1;
    run(&world, op);
    assert_int_equal(world.record.expires_us, START + 1000);
    assert_int_equal(world.record.retention_ms, 86400000);
    claim(&world, 2);
    assert_int_equal(world.record.expires_us, START + 86400 * SECOND);
    complete_for(&world, 2, 1, 0);
    assert_int_equal(world.record.expires_us, START + 1000);
    assert_int_equal(world.record.retention_ms, 1);
    assert_int_equal(hapax__shown_until(&world.record), START + 1000);
}

/* Behind the retention a tombstone tells that it was done, and shows no outcome. A stranger learns
 * no more than before. Then the operation is new. */
static void a_tombstone_follows_the_record(void **state)
{
    struct world world = empty();
    struct hapax_op op;

    claim(&world, 1);
    complete_for(&world, 1, 1000, 5000);
    assert_int_equal(hapax__shown_until(&world.record), START + SECOND);
    world.now_us = START + SECOND - 1;
    assert_int_equal(claim(&world, 2).record.outcome.body.len, 4);
    assert_false(hapax__tombstone(&world.record, world.now_us));
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__KEEP);
    world.now_us++;
    op = claim(&world, 2);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_true(hapax__tombstone(&op.record, op.now_us));
    assert_int_equal(op.record.outcome.headers.len + op.record.outcome.body.len, 0);
    assert_false(op.record.outcome.body_kept);
    assert_int_equal(claim_otherwise(&world, 3, true).verdict, HAPAX_MISMATCH);
    world.now_us = START + 6 * SECOND - 1;
    assert_int_equal(run(&world, op_of(HAPAX_OP_READ, 0)).verdict, HAPAX_FOUND);
    world.now_us++;
    assert_int_equal(claim_otherwise(&world, 3, true).verdict, HAPAX_CLAIMED);
}

/* A sweep takes the outcome from a tombstone, once, and leaves the rest as it was. */
static void a_sweep_buries_an_outcome(void **state)
{
    struct world world = empty();
    struct hapax_record before;

    claim(&world, 1);
    complete_for(&world, 1, 1000, 5000);
    world.now_us += SECOND;
    before = world.record;
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__WRITE);
    assert_int_equal(world.record.outcome.headers.len + world.record.outcome.body.len, 0);
    assert_int_equal(world.record.outcome.status, 200);
    hapax__bury(&before);
    assert_null(record_diff(&world.record, &before));
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__KEEP);
    world.record.outcome.headers = world.record.outcome.body = hapax_str("A: b\r\n");
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__WRITE);
    assert_int_equal(hapax__swept(&world.record, world.now_us + 5 * SECOND, &world.record),
                     HAPAX__DELETE);
}

/* What is kept for ever leaves no tombstone, and neither does what another way ended. */
static void only_what_expires_leaves_a_tombstone(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);

    op.retention_ms = HAPAX_FOREVER_MS;
    run(&world, op);
    complete_for(&world, 1, 0, 5000);
    assert_int_equal(world.record.expires_us, 0);
    assert_int_equal(hapax__shown_until(&world.record), 0);
    assert_false(hapax__tombstone(&world.record, world.now_us + 1000000 * SECOND));
    world = empty();
    claim(&world, 1);
    assert_int_equal(hapax__shown_until(&world.record), world.record.expires_us);
    fail_with(&world, 1, true);
    assert_false(hapax__tombstone(&world.record, world.record.expires_us));
}

/* What an operator must decide stays until one does. */
static void unknown_and_held_records_do_not_expire(void **state)
{
    struct world world = empty();

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    world.now_us += 1000 * 86400 * SECOND;
    assert_int_equal(run(&world, op_of(HAPAX_OP_READ, 0)).verdict, HAPAX_FOUND);
    claim(&world, 2);
    world.now_us += 1000 * 86400 * SECOND;
    assert_int_equal(run(&world, op_of(HAPAX_OP_READ, 0)).record.state, HAPAX_STATE_UNKNOWN);
    resolve(&world, 3, HAPAX_RESOLVE_COMPLETE, false);
    assert_int_not_equal(world.record.expires_us, 0);
}

/* A sweep makes of a dead claim under hold what the next CLAIM would have made of it, to the
 * byte; its owner may still complete it. */
static void a_sweep_is_the_claim_that_never_came(void **state)
{
    struct world world = empty(), claimed;

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    world.now_us = world.record.lease_until_us - 1;
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__KEEP);
    world.now_us++;
    claimed = world;
    assert_int_equal(claim(&claimed, 2).verdict, HAPAX_UNKNOWN);
    assert_int_equal(hapax__swept(&world.record, world.now_us, &world.record), HAPAX__WRITE);
    assert_null(record_diff(&world.record, &claimed.record));
    assert_int_equal(hapax__swept(&world.record, world.now_us + SECOND, &world.record),
                     HAPAX__KEEP);
    assert_int_equal(run(&world, op_of(HAPAX_OP_RENEW, 1)).record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(fail_with(&world, 1, true).verdict, HAPAX_OK);
    assert_int_equal(world.record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(complete(&world, 1).verdict, HAPAX_OK);
    assert_int_equal(world.record.state, HAPAX_STATE_COMPLETED);
    assert_false(world.record.stale);
}

/* Where nothing ever ran the record is kept for a minute: within it a late copy of the CLAIM is
 * LOST, and a repeat of the FAIL is OK. After it the operation is new, with a higher fence. */
static void a_refusal_is_kept_for_a_minute(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);
    uint64_t fence;

    op.retention_ms = HAPAX_FOREVER_MS;
    op.on_expired = HAPAX_EXPIRED_HOLD;
    fence = run(&world, op).record.fence;
    fail_with(&world, 1, false);
    assert_int_equal(world.record.expires_us, START + 60 * SECOND);
    world.now_us = START + 60 * SECOND - 1;
    assert_int_equal(run(&world, op).verdict, HAPAX_LOST);
    assert_int_equal(fail_with(&world, 1, false).verdict, HAPAX_OK);
    world.now_us++;
    assert_int_equal(fail_with(&world, 1, false).verdict, HAPAX_LOST);
    op = claim(&world, 2);
    assert_int_equal(op.record.attempt, 1);
    assert_true(op.record.fence > fence);
    assert_false(op.record.hold);
}

/* A retention of less than a minute is kept. */
static void a_refusal_is_kept_for_no_longer_than_its_retention(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 1);

    op.retention_ms = 5000;
    run(&world, op);
    fail_with(&world, 1, false);
    assert_int_equal(world.record.expires_us, START + 5 * SECOND);
}

/* What ran, may have run or was decided by an operator is kept for its retention. */
static void a_failure_after_which_anything_may_have_run_is_kept(void **state)
{
    for (int how = 0; how < 3; how++) {
        struct world world = empty();

        claim(&world, 1);
        if (how == 0) {
            fail_with(&world, 1, true);
        } else if (how == 1) {
            let_the_lease_run_out(&world);
        } else {
            resolve(&world, 3, HAPAX_RESOLVE_FAIL, true);
        }
        claim(&world, 2);
        fail_with(&world, 2, false);
        assert_int_equal(world.record.expires_us, world.now_us + 86400 * SECOND);
    }
}

/* A lease or retention past the end of time ends there; it does not wrap into the past. */
static void the_far_future_does_not_wrap(void **state)
{
    struct world world = empty();

    world.now_us = INT64_MAX - 5;
    claim(&world, 1);
    assert_int_equal(world.record.lease_until_us, INT64_MAX);
    assert_int_equal(world.record.expires_us, INT64_MAX);
    assert_int_equal(claim(&world, 2).verdict, HAPAX_IN_FLIGHT);
}

/* ---- the operator -------------------------------------------------------------------- */

/* A live lease and a completed record are left alone unless forced; a zombie then is LOST. */
static void an_operator_needs_force_against_a_live_lease(void **state)
{
    struct world world = empty();
    struct hapax_op op;
    uint64_t fence;

    fence = claim(&world, 1).record.fence;
    assert_int_equal(resolve(&world, 2, HAPAX_RESOLVE_COMPLETE, false).verdict, HAPAX_IN_FLIGHT);
    op = resolve(&world, 2, HAPAX_RESOLVE_COMPLETE, true);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_int_equal(op.record.outcome.status, 202);
    assert_int_equal(op.record.resolved_us, START);
    assert_true(same_bytes(op.record.resolved_by, hapax_str("ann")));
    assert_int_equal(op.record.replaced_state, HAPAX_STATE_STARTED);
    assert_true(op.record.fence > fence);
    op = complete(&world, 1);
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(op.record.outcome.status, 202);
    assert_int_equal(resolve(&world, 3, HAPAX_RESOLVE_FAIL, false).verdict, HAPAX_COMPLETED);
}

/* The reply to a RESOLVE is lost: its repeat is OK and changes nothing. */
static void a_repeated_resolve_gives_the_same_answer(void **state)
{
    struct world world = empty();
    struct hapax_op first, again;

    claim(&world, 1);
    let_the_lease_run_out(&world);
    first = resolve(&world, 2, HAPAX_RESOLVE_COMPLETE, false);
    world.now_us += SECOND;
    again = resolve(&world, 2, HAPAX_RESOLVE_COMPLETE, false);
    assert_int_equal(again.verdict, HAPAX_OK);
    assert_null(record_diff(&again.record, &first.record));
}

/* An operator who looked at attempt 1 does not resolve attempt 2. */
static void an_operator_resolves_the_attempt_that_was_seen(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, 9);

    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    op.if_attempt = 1;
    claim(&world, 1);
    fail_with(&world, 1, true);
    claim(&world, 2);
    assert_int_equal(run(&world, op).verdict, HAPAX_LOST);
    op.if_attempt = 2;
    assert_int_equal(run(&world, op).verdict, HAPAX_OK);
    assert_false(world.present);
    assert_int_equal(claim(&world, 3).record.attempt, 1);
}

/* RESOLVE to failed asks for another attempt: it is granted, used up or not, held or not. */
static void an_operator_may_ask_for_another_attempt(void **state)
{
    struct world world = empty();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 4);

    claim_as(&world, 1, HAPAX_EXPIRED_HOLD);
    let_the_lease_run_out(&world);
    claim(&world, 2);
    resolve(&world, 3, HAPAX_RESOLVE_FAIL, false);
    assert_true(world.record.ran);
    assert_int_equal(world.record.spent, 0);
    op.attempts_max = 1;
    op = run(&world, op);
    assert_int_equal(op.verdict, HAPAX_CLAIMED);
    assert_false(op.record.stale);
    assert_true(op.record.hold);
}

/* ---- LIST ---------------------------------------------------------------------------- */

/* A record is listed if it is there, of a state and scope asked for, and as old as asked for. */
static void list_shows_what_was_asked_for(void **state)
{
    struct world world = empty();
    struct hapax_op op = {.kind = HAPAX_OP_LIST};
    const struct hapax_record *record = &world.record;

    claim(&world, 1);
    assert_true(hapax__listed(record, &op, START));
    op.states = HAPAX_STATES_ALL;
    assert_true(hapax__listed(record, &op, START));
    op.states = HAPAX_STATES_ALL & ~(1u << HAPAX_STATE_STARTED);
    assert_false(hapax__listed(record, &op, START));
    op.states = 1u << HAPAX_STATE_STARTED;
    op.scope = hapax_str("default");
    assert_true(hapax__listed(record, &op, START));
    op.scope = hapax_str("defaulT");
    assert_false(hapax__listed(record, &op, START));
    op.scope = hapax_str("def");
    assert_false(hapax__listed(record, &op, START));
    op.scope = hapax_str("d");
    assert_false(hapax__listed(record, &op, START));
    op.scope.len = 0;
    op.owner.bytes[31] = 1;
    assert_false(hapax__listed(record, &op, START));
    world.record.owner.bytes[31] = 1;
    assert_true(hapax__listed(record, &op, START));
    memset(&op.owner, 0, sizeof(op.owner));
    assert_true(hapax__listed(record, &op, START));
    assert_true(hapax__listed(record, &op, START - 1));
    op.older_ms = 1000;
    assert_false(hapax__listed(record, &op, START + SECOND - 1));
    assert_true(hapax__listed(record, &op, START + SECOND));
    assert_true(hapax__listed(record, &op, record->expires_us - 1));
    assert_false(hapax__listed(record, &op, record->expires_us));
}

/* ---- IMPORT -------------------------------------------------------------------------- */

static struct hapax_op import(struct world *world, struct hapax_record record)
{
    struct hapax_op op = op_of(HAPAX_OP_IMPORT, 0);
    uint8_t bytes[1024];

    op.outcome = record.outcome;
    record.outcome = (struct hapax_outcome){0};
    op.import = (struct hapax_span){bytes, hapax__record_size(&record)};
    assert_true(op.import.len <= sizeof(bytes));
    hapax__record_encode(bytes, &record);
    op.error = HAPAX_ERR_INDETERMINATE; /* as before each call of a store */
    op = run(world, op);
    assert_int_equal(op.error, HAPAX_ERR_NONE);
    world->record.scope = hapax_str("default"); /* it borrowed from bytes */
    return op;
}

/* What another store had is here as it was there, with its outcome, and without its mark. A repeat
 * is OK, whatever the record has become of by then is not. */
static void an_import_is_what_it_was(void **state)
{
    static const struct hapax_mark none;
    struct world there = empty(), here = empty();
    struct hapax_op op;

    claim(&there, 1);
    complete(&there, 1);
    op = import(&here, there.record);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_int_equal(op.record.state, HAPAX_STATE_COMPLETED);
    assert_false(shows_outcome(&op));
    assert_memory_equal(&here.record.mark, &none, sizeof(none));
    here.record.mark = there.record.mark;
    assert_null(record_diff(&here.record, &there.record));
    here.now_us += SECOND;
    op = import(&here, there.record);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_int_equal(op.record.state, HAPAX_STATE_COMPLETED);
    assert_false(shows_outcome(&op));
}

/* A record that goes on where it is from follows, and only such a one. */
static void an_import_follows_itself(void **state)
{
    struct world there = empty(), here = empty(), was;
    struct hapax_record other;

    claim(&there, 1);
    there.now_us++;
    fail_with(&there, 1, true);
    import(&here, there.record);
    other = there.record;
    other.updated_us--;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    other = there.record;
    other.created_us++;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    other.updated_us++;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    other = there.record;
    other.fence--;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    other.updated_us++;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    other = there.record;
    other.fence++;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
    was = here;
    other = there.record;
    other.updated_us++;
    assert_int_equal(import(&was, other).verdict, HAPAX_OK); /* of the same attempt */
    there.now_us++;
    claim(&there, 2);
    there.now_us++;
    complete(&there, 2);
    assert_int_equal(import(&here, there.record).verdict, HAPAX_OK);
    assert_int_equal(here.record.state, HAPAX_STATE_COMPLETED);
    other = there.record; /* forced there */
    other.fence++;
    other.updated_us++;
    assert_int_equal(import(&here, other).verdict, HAPAX_FOUND);
}

/* A claim that is live is not followed, though nothing ran here. */
static void an_import_waits_for_a_lease(void **state)
{
    struct world there = empty(), here = empty();

    claim(&there, 1);
    import(&here, there.record);
    there.now_us++;
    fail_with(&there, 1, true);
    assert_int_equal(import(&here, there.record).verdict, HAPAX_FOUND);
    let_the_lease_run_out(&here);
    assert_int_equal(import(&here, there.record).verdict, HAPAX_OK);
}

/* Equal times and a higher fence do not prove one line of history: what ran or was resolved here
 * stays. What only a sweep made of it gives way. */
static void an_import_leaves_what_ran_here(void **state)
{
    struct world there = empty(), here = empty(), swept, resolved;
    struct hapax_record further;

    claim_as(&there, 1, HAPAX_EXPIRED_HOLD);
    let_the_lease_run_out(&there);
    here.now_us = there.now_us;
    import(&here, there.record);
    further = there.record;
    further.fence += 1000 * SECOND;
    further.updated_us += 1000 * SECOND;
    swept = resolved = here;
    assert_int_equal(hapax__swept(&swept.record, swept.now_us, &swept.record), HAPAX__WRITE);
    assert_int_equal(swept.record.state, HAPAX_STATE_UNKNOWN);
    assert_int_equal(import(&swept, further).verdict, HAPAX_OK);
    resolve(&resolved, 2, HAPAX_RESOLVE_FAIL, false);
    assert_int_equal(import(&resolved, further).verdict, HAPAX_FOUND);
    claim_as(&here, 2, HAPAX_EXPIRED_RECONCILE);
    fail_with(&here, 2, true);
    assert_int_equal(import(&here, further).verdict, HAPAX_FOUND);
    assert_int_equal(here.record.state, HAPAX_STATE_FAILED);
}

/* Neither a live claim nor an outcome gives way, however far the other is. */
static void an_import_takes_nothing_away(void **state)
{
    struct world here = empty();
    struct hapax_record further;

    claim(&here, 1);
    further = here.record;
    further.fence++;
    further.updated_us++;
    assert_int_equal(import(&here, further).verdict, HAPAX_FOUND);
    complete(&here, 1);
    assert_int_equal(import(&here, further).verdict, HAPAX_FOUND);
    assert_int_equal(here.record.state, HAPAX_STATE_COMPLETED);
    here.now_us = here.record.expires_us;
    assert_int_equal(import(&here, further).verdict, HAPAX_OK);
    assert_int_equal(here.record.fence, further.fence);
    let_the_lease_run_out(&here);
    further.fence++;
    further.updated_us++;
    assert_int_equal(import(&here, further).verdict, HAPAX_OK);
    assert_int_equal(here.record.fence, further.fence);
}

/* A record that was imported without its request is of any request; a claim binds it. */
static void an_import_may_be_of_any_request(void **state)
{
    struct world there = empty(), here = empty();
    struct hapax_op op;

    claim(&there, 1);
    complete(&there, 1);
    memset(&there.record.fingerprint, HAPAX_ANY_BYTE, sizeof(there.record.fingerprint));
    import(&here, there.record);
    assert_int_equal(claim(&here, 2).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim_otherwise(&here, 3, false).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim_otherwise(&here, 4, true).verdict, HAPAX_MISMATCH);
    memset(&here.record.caller, HAPAX_ANY_BYTE, sizeof(here.record.caller));
    assert_int_equal(claim_otherwise(&here, 5, true).verdict, HAPAX_COMPLETED);
    here.record.fingerprint = op_of(HAPAX_OP_CLAIM, 1).fingerprint;
    assert_int_equal(claim_otherwise(&here, 6, true).verdict, HAPAX_COMPLETED);
    op = claim_otherwise(&here, 7, false);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_FINGERPRINT);
    here.record.state = HAPAX_STATE_FAILED;
    here.record.ran = true;
    assert_int_equal(claim(&here, 8).verdict, HAPAX_CLAIMED);
    op = claim_otherwise(&here, 9, true);
    assert_int_equal(op.verdict, HAPAX_MISMATCH);
    assert_int_equal(op.differs, HAPAX_DIFFERS_CALLER);
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_expired_record_is_absent),
        T(a_live_claim_outlasts_its_retention),
        T(an_end_may_set_the_retention),
        T(a_tombstone_follows_the_record),
        T(a_sweep_buries_an_outcome),
        T(only_what_expires_leaves_a_tombstone),
        T(unknown_and_held_records_do_not_expire),
        T(a_sweep_is_the_claim_that_never_came),
        T(a_refusal_is_kept_for_a_minute),
        T(a_refusal_is_kept_for_no_longer_than_its_retention),
        T(a_failure_after_which_anything_may_have_run_is_kept),
        T(the_far_future_does_not_wrap),
        T(an_operator_needs_force_against_a_live_lease),
        T(a_repeated_resolve_gives_the_same_answer),
        T(an_operator_resolves_the_attempt_that_was_seen),
        T(an_operator_may_ask_for_another_attempt),
        T(list_shows_what_was_asked_for),
        T(an_import_is_what_it_was),
        T(an_import_follows_itself),
        T(an_import_waits_for_a_lease),
        T(an_import_leaves_what_ran_here),
        T(an_import_takes_nothing_away),
        T(an_import_may_be_of_any_request),
    };

    return cmocka_run_group_tests_name("machine kept", tests, NULL, NULL);
}
