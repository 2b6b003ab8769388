/* SPDX-License-Identifier: Apache-2.0
 *
 * The rules of the machine that a caller leans on, each shown on a real store and its real clock
 * with one handle; and what hapax_store_run() promises for batches and limits. The tables
 * themselves are compared by store_histories.c. A case waits for the store's clock, never for ours.
 */
#include "store_test.h"

#include "../../src/core/record.h"
#include "../unit/record_diff.h"

#include <inttypes.h>
#include <stdlib.h>

#define MS       INT64_C(1000)
#define SEAL_MAX 96u /* at least what a seal takes of the headers */

static struct hapax_op claim(struct hapax_store *store, const struct suite *suite, unsigned n,
                             unsigned who)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, n, who);

    run_op(store, &op);
    return op;
}

static struct hapax_op claim_briefly(struct hapax_store *store, const struct suite *suite,
                                     unsigned n, unsigned who, enum hapax_on_expired on_expired)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, n, who);

    op.lease_ms = 20;
    op.on_expired = on_expired;
    run_op(store, &op);
    return op;
}

static struct hapax_op complete(struct hapax_store *store, const struct suite *suite, unsigned n,
                                unsigned who, int status)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, n, who);

    op.outcome.status = status;
    run_op(store, &op);
    return op;
}

static struct hapax_op fail(struct hapax_store *store, const struct suite *suite, unsigned n,
                            unsigned who, bool ran)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_FAIL, n, who);

    op.ran = ran;
    op.outcome.status = 500;
    run_op(store, &op);
    return op;
}

static struct hapax_op resolve(struct hapax_store *store, const struct suite *suite, unsigned n,
                               unsigned who, enum hapax_resolve what, bool force)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_RESOLVE, n, who);

    op.resolve = what;
    op.force = force;
    op.by = hapax_str("ann");
    op.outcome.status = 202;
    run_op(store, &op);
    return op;
}

static struct hapax_op reread(struct hapax_store *store, const struct suite *suite, unsigned n)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_READ, n, 0);

    run_op(store, &op);
    return op;
}

static void expect(const struct hapax_op *op, enum hapax_verdict verdict)
{
    CHECK(op->verdict == verdict, "op %d: verdict %s, not %s", (int)op->kind,
          hapax_verdict_name(op->verdict), hapax_verdict_name(verdict));
}

/* ---- tokens and leases --------------------------------------------------------------- */

/* Every byte of an outcome comes back, zeros and high bytes too. */
static void a_repeat_gets_the_first_outcome(const struct suite *suite) /* promise 3 */
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, 1, 1), again;
    uint8_t body[512];

    for (size_t i = 0; i < sizeof(body); i++)
        body[i] = (uint8_t)i;
    again = claim(store, suite, 1, 1);
    expect(&again, HAPAX_CLAIMED);
    op.outcome.body = (struct hapax_span){body, sizeof(body)};
    op.outcome.headers = hapax_str("A: \xff\r\nB: \x01\r\n");
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    again = claim(store, suite, 1, 2);
    expect(&again, HAPAX_COMPLETED);
    CHECK(!outcome_diff(&again.record.outcome, &op.outcome), "it differs");
    hapax_store_close(store);
}

/* Ends the claim as a door does, which names attempt and fence. */
static void end_claim(struct hapax_store *store, const struct hapax_op *claimed,
                      struct hapax_op *op)
{
    expect(claimed, HAPAX_CLAIMED);
    op->ran = true;
    op->attempt = claimed->record.attempt;
    op->fence = claimed->record.fence;
    op->fingerprint = claimed->fingerprint;
    op->caller = claimed->caller;
    op->outcome = (struct hapax_outcome){200, true, hapax_str("A: b\r\n"), hapax_str("whose")};
    run_op(store, op);
    expect(op, HAPAX_OK);
}

/* Each answer that shows an outcome names the attempt and the fence of its claim, which a sealed
 * outcome is bound to; and after an operator's word the outcome is that one's. */
static void an_outcome_goes_with_its_claim(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op first = claim(store, suite, 1, 1), again,
                    done = op_of(suite, HAPAX_OP_COMPLETE, 1, 1),
                    failed = op_of(suite, HAPAX_OP_FAIL, 2, 1);

    end_claim(store, &first, &done);
    run_op(store, &done);
    again = op_of(suite, HAPAX_OP_RENEW, 1, 2);
    run_op(store, &again);
    expect(&again, HAPAX_LOST);
    CHECK(!outcome_diff(&again.record.outcome, &done.outcome), "LOST shows another");
    again = claim(store, suite, 1, 2);
    expect(&again, HAPAX_COMPLETED);
    CHECK(!outcome_diff(&again.record.outcome, &done.outcome), "COMPLETED shows another");
    CHECK(again.record.attempt == first.record.attempt && again.record.fence == first.record.fence,
          "COMPLETED shows another claim");
    again = resolve(store, suite, 1, 3, HAPAX_RESOLVE_COMPLETE, true);
    again = reread(store, suite, 1);
    CHECK(again.record.outcome.status == 202, "status %d", again.record.outcome.status);

    first = claim(store, suite, 2, 1);
    end_claim(store, &first, &failed);
    run_op(store, &failed);
    expect(&failed, HAPAX_OK);
    again = op_of(suite, HAPAX_OP_CLAIM, 2, 2);
    again.attempts_max = 1;
    run_op(store, &again);
    expect(&again, HAPAX_FAILED);
    CHECK(!outcome_diff(&again.record.outcome, &failed.outcome), "FAILED shows another");
    hapax_store_close(store);
}

/* CLAIM, FAIL and COMPLETE, each sent again as after a lost reply. */
static void a_repeated_op_gives_the_same_answer(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op first = claim(store, suite, 1, 1), again = claim(store, suite, 1, 1);

    expect(&again, HAPAX_CLAIMED);
    CHECK(!record_diff(&first.record, &again.record), "%s",
          record_diff(&first.record, &again.record));
    fail(store, suite, 1, 1, true);
    again = fail(store, suite, 1, 1, true);
    expect(&again, HAPAX_OK);
    again = fail(store, suite, 1, 1, false);
    expect(&again, HAPAX_LOST);
    claim(store, suite, 1, 2);
    complete(store, suite, 1, 2, 200);
    again = complete(store, suite, 1, 2, 299);
    expect(&again, HAPAX_OK);
    CHECK(again.record.outcome.status == 200, "the stored outcome was replaced");
    again = claim(store, suite, 1, 2);
    expect(&again, HAPAX_COMPLETED);
    hapax_store_close(store);
}

/* Another token takes over when the lease is over, not before; the first one is LOST then. */
static void a_dead_attempt_is_taken_over(const struct suite *suite) /* promise 6 */
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op first = claim_briefly(store, suite, 1, 1, HAPAX_EXPIRED_RERUN), op;
    uint64_t fence;

    do {
        op = claim_briefly(store, suite, 1, 2, HAPAX_EXPIRED_RERUN);
        /* The shorter lease of two halves is shown, and IN_FLIGHT is until the longer one ends. */
        CHECK((op.verdict == HAPAX_IN_FLIGHT) == (op.now_us < first.record.lease_until_us) ||
                  (suite->halves && op.verdict == HAPAX_IN_FLIGHT),
              "%s at %" PRId64 ", lease until %" PRId64, hapax_verdict_name(op.verdict), op.now_us,
              first.record.lease_until_us);
    } while (op.verdict == HAPAX_IN_FLIGHT);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.attempt == 2 && op.record.stale && op.record.spent == 1, "a second attempt");
    CHECK(op.record.fence > first.record.fence, "the fence did not rise");
    fence = op.record.fence;
    op = op_of(suite, HAPAX_OP_RENEW, 1, 2);
    op.if_attempt = 2;
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    CHECK(op.record.attempt == 2 && op.record.spent == 1 && op.record.fence == fence &&
              op.record.stale,
          "RENEW does not show the attempt");
    op = complete(store, suite, 1, 1, 299);
    expect(&op, HAPAX_LOST);
    CHECK(op.record.state == HAPAX_STATE_STARTED, "LOST does not show the state");
    complete(store, suite, 1, 2, 201);
    op = fail(store, suite, 1, 1, true);
    expect(&op, HAPAX_LOST);
    CHECK(op.record.outcome.status == 201, "LOST does not show what stands");
    hapax_store_close(store);
}

/* False: this machine was too slow to renew in time, as the store's clock has it. */
static bool renewals_keep(struct hapax_store *store, const struct suite *suite, unsigned n,
                          int64_t lease_ms)
{
    struct hapax_op renewed = op_of(suite, HAPAX_OP_CLAIM, n, 1), op;
    int64_t end_us;

    renewed.lease_ms = lease_ms;
    run_op(store, &renewed);
    expect(&renewed, HAPAX_CLAIMED);
    end_us = renewed.record.lease_until_us + lease_ms * MS;
    do {
        renewed = op_of(suite, HAPAX_OP_RENEW, n, 1);
        renewed.lease_ms = lease_ms;
        run_op(store, &renewed);
        expect(&renewed, HAPAX_OK);
        op = claim(store, suite, n, 2);
        CHECK((op.verdict == HAPAX_IN_FLIGHT) == (op.now_us < renewed.record.lease_until_us),
              "%s at %" PRId64 ", lease until %" PRId64, hapax_verdict_name(op.verdict), op.now_us,
              renewed.record.lease_until_us);
        if (op.verdict != HAPAX_IN_FLIGHT)
            return false;
    } while (op.now_us < end_us);
    op = op_of(suite, HAPAX_OP_RENEW, n, 1);
    op.lease_ms = 1;
    run_op(store, &op);
    CHECK(op.record.lease_until_us >= renewed.record.lease_until_us, "a lease was shortened");
    return true;
}

/* Renewed again and again, a claim outlives its first lease, and no renewal shortens it. */
static void a_renewed_claim_is_not_taken_over(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    int64_t lease_ms = 300;
    unsigned n = 1;

    while (!renewals_keep(store, suite, n++, lease_ms)) {
        lease_ms *= 4;
        CHECK(lease_ms < 30000, "no lease is long enough");
    }
    hapax_store_close(store);
}

/* ---- failures, requests, unknown results ----------------------------------------------- */

/* Where nothing ever ran, a FAIL stores no outcome and keeps the record for a minute. */
static void a_refusal_leaves_next_to_nothing(const struct suite *suite) /* promise 14 */
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 1, 1), failed, again;

    op.retention_ms = HAPAX_FOREVER_MS;
    op.on_expired = HAPAX_EXPIRED_HOLD;
    run_op(store, &op);
    expect(&op, HAPAX_CLAIMED);
    failed = fail(store, suite, 1, 1, false);
    CHECK(failed.record.expires_us == failed.now_us + 60000000, "kept for %lld us",
          (long long)(failed.record.expires_us - failed.now_us));
    again = op_of(suite, HAPAX_OP_FAIL, 1, 1);
    run_op(store, &again);
    expect(&again, HAPAX_OK);
    run_op(store, &op);
    expect(&op, HAPAX_LOST);
    op = op_of(suite, HAPAX_OP_READ, 1, 1);
    run_op(store, &op);
    CHECK(op.record.outcome.status == 0 && op.record.outcome.headers.len == 0 &&
              op.record.outcome.body.len == 0 && !op.record.outcome.body_kept,
          "an outcome of status %d is kept", op.record.outcome.status);
    hapax_store_close(store);
}

/* A FAIL keeps count and fence; attempts that ran are used up, others are not (promise 7). */
static void a_failed_record_keeps_its_attempt_count_and_fence(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    uint64_t fence = claim(store, suite, 1, 1).record.fence;
    struct hapax_op op;

    fail(store, suite, 1, 1, false);
    op = op_of(suite, HAPAX_OP_CLAIM, 1, 2);
    op.attempts_max = 1;
    run_op(store, &op);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.attempt == 2 && op.record.fence > fence, "attempt %u", op.record.attempt);
    CHECK(op.record.spent == 0, "what did nothing is spent: %u", op.record.spent);
    fail(store, suite, 1, 2, true);
    op = op_of(suite, HAPAX_OP_CLAIM, 1, 3);
    op.attempts_max = 1;
    run_op(store, &op);
    expect(&op, HAPAX_FAILED);
    CHECK(op.record.outcome.status == 500, "the last failure is not shown");
    CHECK(op.record.spent == 1, "%u spent", op.record.spent);
    op = op_of(suite, HAPAX_OP_CLAIM, 1, 3);
    op.attempts_max = 2;
    run_op(store, &op);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.attempt == 3 && op.record.spent == 1, "%u spent", op.record.spent);
    fail(store, suite, 1, 3, true);
    op = op_of(suite, HAPAX_OP_CLAIM, 1, 4);
    op.attempts_max = 2;
    run_op(store, &op);
    expect(&op, HAPAX_FAILED);
    CHECK(op.record.spent == 2, "%u spent", op.record.spent);
    hapax_store_close(store);
}

static struct hapax_op die(struct hapax_store *store, const struct suite *suite, unsigned n,
                           unsigned who)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_FAIL, n, who);

    op.ran = op.as_unknown = op.died = true;
    op.outcome.status = 500;
    run_op(store, &op);
    return op;
}

/* A death that is known needs no lease: the next claim is granted at once, and is told; or under
 * hold nobody's is. Its repeat is OK, and no other FAIL is its repeat. */
static void a_known_death_needs_no_lease(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op;

    claim(store, suite, 1, 1);
    for (int i = 0; i < 2; i++) {
        op = die(store, suite, 1, 1);
        expect(&op, HAPAX_OK);
        CHECK(op.record.state == HAPAX_STATE_FAILED && op.record.stale && op.record.ran &&
                  op.record.spent == 1 && op.record.expires_us > op.now_us,
              "it is %s, %u spent", hapax_state_name(op.record.state), op.record.spent);
    }
    op = claim(store, suite, 1, 2);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.attempt == 2 && op.record.stale, "attempt %u", op.record.attempt);
    fail(store, suite, 1, 2, true);
    claim(store, suite, 2, 1);
    fail(store, suite, 2, 1, true);
    op = die(store, suite, 2, 1);
    expect(&op, HAPAX_LOST);
    claim_briefly(store, suite, 3, 1, HAPAX_EXPIRED_HOLD);
    for (int i = 0; i < 2; i++) {
        op = die(store, suite, 3, 1);
        expect(&op, HAPAX_OK);
        CHECK(op.record.state == HAPAX_STATE_UNKNOWN && op.record.stale && op.record.spent == 0,
              "it is %s, %u spent", hapax_state_name(op.record.state), op.record.spent);
    }
    op = claim(store, suite, 3, 2);
    expect(&op, HAPAX_UNKNOWN);
    hapax_store_close(store);
}

/* 422 beats 409, names what differs, shows no outcome; nothing run frees the key. */
static void mismatch_is_found_before_in_flight(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op other = op_of(suite, HAPAX_OP_CLAIM, 1, 2), op;

    claim(store, suite, 1, 1);
    other.fingerprint.bytes[0] ^= 1;
    op = other;
    run_op(store, &op);
    expect(&op, HAPAX_MISMATCH);
    CHECK(op.differs == HAPAX_DIFFERS_FINGERPRINT, "it differs in the fingerprint");
    fail(store, suite, 1, 1, false);
    op = other;
    run_op(store, &op);
    expect(&op, HAPAX_CLAIMED);
    complete(store, suite, 1, 2, 200);
    op = other;
    op.caller.bytes[0] ^= 1;
    op.fingerprint.bytes[0] ^= 2;
    op.token.bytes[15]++;
    run_op(store, &op);
    expect(&op, HAPAX_MISMATCH);
    CHECK(op.differs == HAPAX_DIFFERS_CALLER, "it differs in the caller, which counts first");
    CHECK(op.record.outcome.status == 0 && op.record.outcome.body.len == 0, "an outcome is shown");
    hapax_store_close(store);
}

/* Under hold a dead attempt is UNKNOWN to every door, until a hook or an operator says more. */
static void a_held_operation_becomes_unknown(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = claim_briefly(store, suite, 1, 1, HAPAX_EXPIRED_HOLD);

    wait_until(store, suite, op.record.lease_until_us);
    op = claim(store, suite, 1, 2);
    expect(&op, HAPAX_UNKNOWN);
    CHECK(op.record.state == HAPAX_STATE_UNKNOWN && op.record.expires_us == 0, "it would expire");
    op = claim_briefly(store, suite, 1, 3, HAPAX_EXPIRED_RECONCILE);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.stale && op.record.attempt == 2, "the hook would not be asked");
    wait_until(store, suite, op.record.lease_until_us);
    op = claim(store, suite, 1, 4);
    expect(&op, HAPAX_UNKNOWN);
    op = complete(store, suite, 1, 3, 200);
    expect(&op, HAPAX_OK);
    op = claim(store, suite, 1, 5);
    expect(&op, HAPAX_COMPLETED);
    claim(store, suite, 2, 1);
    fail(store, suite, 2, 1, true);
    op = claim_briefly(store, suite, 2, 2, HAPAX_EXPIRED_HOLD);
    expect(&op, HAPAX_CLAIMED);
    wait_until(store, suite, op.record.lease_until_us);
    op = claim(store, suite, 2, 3);
    expect(&op, HAPAX_UNKNOWN);
    CHECK(op.record.spent == 1, "%u spent", op.record.spent);
    hapax_store_close(store);
}

/* Sweeps the store to its end; how many records it made unknown. */
static unsigned sweep(struct hapax_store *store)
{
    struct hapax_op op = {.kind = HAPAX_OP_PURGE, .limit = 2};
    unsigned expired = 0;

    do {
        run_op(store, &op);
        expect(&op, HAPAX_OK);
        CHECK(op.purged + op.expired_claims <= 2, "%u removed, %u expired claims", op.purged,
              op.expired_claims);
        expired += op.expired_claims;
        op.cursor = op.next_cursor;
    } while (op.more);
    return expired;
}

/* A claim that was given back before its hook was asked leaves the question open, which does not
 * expire: not with the retention of its op, nor with its own. */
static void an_open_question_does_not_expire(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = claim_briefly(store, suite, 1, 1, HAPAX_EXPIRED_RECONCILE);

    wait_until(store, suite, op.record.lease_until_us);
    op = claim_briefly(store, suite, 1, 2, HAPAX_EXPIRED_RECONCILE);
    expect(&op, HAPAX_CLAIMED);
    op = fail(store, suite, 1, 2, false);
    expect(&op, HAPAX_OK);
    op = reread(store, suite, 1);
    CHECK(op.record.state == HAPAX_STATE_FAILED && op.record.stale && op.record.expires_us == 0,
          "%s, it would expire", hapax_state_name(op.record.state));
    for (unsigned who = 3; who < 6; who++) { /* given back each time; what was swept was unknown */
        op = op_of(suite, HAPAX_OP_CLAIM, 1, who);
        op.on_expired = HAPAX_EXPIRED_RECONCILE;
        op.attempts_max = 1;
        run_op(store, &op);
        expect(&op, HAPAX_CLAIMED);
        CHECK(op.record.stale && op.record.spent == 1, "%u spent", op.record.spent);
        fail(store, suite, 1, who, false);
        if (who > 3)
            (void)sweep(store);
        op = reread(store, suite, 1);
        CHECK((op.record.state == HAPAX_STATE_UNKNOWN) == (who > 3 && !store->type->forgets), "%s",
              hapax_state_name(op.record.state));
    }
    op = claim(store, suite, 1, 6);
    expect(&op, HAPAX_UNKNOWN);
    hapax_store_close(store);
}

/* A scrub ends, and leaves every record as it was. It sweeps nothing. */
static void a_scrub_changes_no_record(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op scrub = {.kind = HAPAX_OP_PURGE, .scrub = true}, op;

    claim(store, suite, 1, 1);
    complete(store, suite, 1, 1, 201);
    claim_briefly(store, suite, 2, 1, HAPAX_EXPIRED_RERUN);
    do {
        run_op(store, &scrub);
        expect(&scrub, HAPAX_OK);
        CHECK(scrub.purged + scrub.expired_claims == 0, "%u removed", scrub.purged);
        scrub.cursor = scrub.next_cursor;
    } while (scrub.more);
    op = claim(store, suite, 1, 2);
    expect(&op, HAPAX_COMPLETED);
    CHECK(op.record.outcome.status == 201, "status %d", op.record.outcome.status);
    op = complete(store, suite, 2, 1, 200);
    expect(&op, HAPAX_OK);
    hapax_store_close(store);
}

/* A sweep makes unknown what was left unfinished under hold, and nothing else; where the store
 * forgets by itself and is not walked, the next CLAIM does. Its owner may still complete it. */
static void a_sweep_ends_what_was_left_under_hold(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    bool walks = !store->type->forgets;
    struct hapax_op held = claim_briefly(store, suite, 1, 1, HAPAX_EXPIRED_HOLD), op;
    unsigned expired;

    op = op_of(suite, HAPAX_OP_CLAIM, 3, 1);
    op.on_expired = HAPAX_EXPIRED_HOLD;
    run_op(store, &op);
    claim_briefly(store, suite, 4, 1, HAPAX_EXPIRED_RECONCILE);
    op = claim_briefly(store, suite, 2, 1, HAPAX_EXPIRED_RERUN);
    wait_until(store, suite, op.record.lease_until_us);
    expired = sweep(store);
    CHECK(!suite->fresh || expired == (walks ? 2 : 0), "%u expired claims", expired);
    op = reread(store, suite, 2);
    CHECK(op.record.state == HAPAX_STATE_STARTED && !op.record.stale, "it would not run again");
    op = reread(store, suite, 3);
    CHECK(op.record.state == HAPAX_STATE_STARTED, "a live claim was swept");
    op = reread(store, suite, 1);
    CHECK((op.record.state == HAPAX_STATE_UNKNOWN) == walks && op.record.stale == walks, "%s",
          hapax_state_name(op.record.state));
    CHECK(op.record.attempt == 1 && op.record.fence == held.record.fence && op.record.spent == 0 &&
              op.record.expires_us == 0,
          "more than its state was changed");
    held = op;
    expired = sweep(store);
    op = reread(store, suite, 1);
    CHECK(!record_diff(&op.record, &held.record), "it was swept twice");
    op = claim(store, suite, 1, 2);
    expect(&op, HAPAX_UNKNOWN);
    op = fail(store, suite, 1, 1, true);
    expect(&op, HAPAX_OK);
    CHECK(op.record.state == HAPAX_STATE_UNKNOWN, "its owner's failure frees it");
    op = complete(store, suite, 1, 1, 200);
    expect(&op, HAPAX_OK);
    op = claim_briefly(store, suite, 4, 2, HAPAX_EXPIRED_RECONCILE);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.stale && op.record.attempt == 2, "the hook would not be asked");
    hapax_store_close(store);
}

/* ---- retention and operators --------------------------------------------------------- */

/* When its retention is over a record is absent, and the next claim a first one. */
static void an_expired_record_is_absent(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 1, 1), seen;

    op.retention_ms = 30;
    run_op(store, &op);
    op = complete(store, suite, 1, 1, 200);
    do {
        seen = reread(store, suite, 1);
        CHECK((seen.verdict == HAPAX_FOUND) == (seen.now_us < op.record.expires_us),
              "%s at %" PRId64 ", expires at %" PRId64, hapax_verdict_name(seen.verdict),
              seen.now_us, op.record.expires_us);
    } while (seen.verdict == HAPAX_FOUND);
    seen = complete(store, suite, 1, 1, 200);
    expect(&seen, HAPAX_LOST);
    CHECK(seen.record.state == HAPAX_STATE_ABSENT, "LOST does not say that it is gone");
    seen = claim(store, suite, 1, 2);
    expect(&seen, HAPAX_CLAIMED);
    CHECK(seen.record.attempt == 1 && !seen.record.stale, "it is not a first claim");
    CHECK(seen.record.fence > op.record.fence, "a fence was given twice");
    hapax_store_close(store);
}

/* Whether the record and its tombstone were both met: a busy machine may sleep through either. */
static bool outlives(struct hapax_store *store, const struct suite *suite, unsigned n,
                     int64_t kept_ms)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, n, 1), seen;
    bool swept = false, whole = false;

    claim(store, suite, n, 1);
    op.outcome = (struct hapax_outcome){200, true, hapax_str("A: b\r\n"), hapax_str("done")};
    op.kept_ms = kept_ms;
    op.tombstone_ms = 5 * kept_ms;
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    do {
        bool buried;

        seen = claim(store, suite, n, 2);
        buried = seen.now_us >= op.now_us + kept_ms * MS;
        if (seen.verdict == HAPAX_CLAIMED)
            break;
        expect(&seen, HAPAX_COMPLETED);
        CHECK(seen.record.outcome.body.len == (buried ? 0 : 4) &&
                  (seen.record.outcome.headers.len > 0) == !buried &&
                  seen.record.outcome.body_kept == !buried,
              "it shows %zu bytes", seen.record.outcome.body.len);
        CHECK(seen.record.expires_us == op.now_us + 6 * kept_ms * MS &&
                  seen.record.retention_ms == kept_ms && seen.record.updated_us == op.now_us,
              "its times are others");
        whole |= !buried;
        if (buried && !swept)
            sweep(store);
        swept |= buried;
    } while (true);
    CHECK(seen.now_us >= op.now_us + 6 * kept_ms * MS && seen.record.attempt == 1,
          "it went too soon");
    seen = reread(store, suite, n);
    CHECK(seen.record.state == HAPAX_STATE_STARTED, "its tombstone is there");
    return swept && whole;
}

/* Behind the retention that its COMPLETE set stands a tombstone: the operation was completed, and
 * nobody is shown the outcome, before and after a sweep. Then a claim is a first one. */
static void a_tombstone_outlives_its_record(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    int64_t kept_ms = 60;
    unsigned n = 1;

    while (!outlives(store, suite, n, kept_ms)) {
        n++;
        kept_ms *= 8;
        CHECK(kept_ms < 60000, "it was not met");
    }
    hapax_store_close(store);
}

/* What an operator forgets leaves no tombstone, and what he decides anew has none of before. */
static void a_tombstone_goes_with_its_record(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);

    for (unsigned n = 1; n <= 2; n++) {
        struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, n, 1);

        claim(store, suite, n, 1);
        op.kept_ms = 40;
        op.tombstone_ms = 3600000;
        run_op(store, &op);
        if (n == 2) /* of the tombstone alone */
            wait_until(store, suite, op.now_us + 41000);
        op = resolve(store, suite, n, 9, HAPAX_RESOLVE_FORGET, true);
        expect(&op, HAPAX_OK);
        op = claim(store, suite, n, 2);
        expect(&op, HAPAX_CLAIMED);
        CHECK(op.record.attempt == 1, "it was not forgotten");
    }
    hapax_store_close(store);
}

/* RESOLVE: not against a live lease or a completion, unless forced; by name; and for good. */
static void an_operator_has_the_last_word(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = resolve(store, suite, 1, 9, HAPAX_RESOLVE_FAIL, true);
    uint64_t fence;

    expect(&op, HAPAX_ABSENT);
    fence = claim(store, suite, 1, 1).record.fence;
    op = resolve(store, suite, 1, 9, HAPAX_RESOLVE_COMPLETE, false);
    expect(&op, HAPAX_IN_FLIGHT);
    op = resolve(store, suite, 1, 9, HAPAX_RESOLVE_COMPLETE, true);
    expect(&op, HAPAX_OK);
    CHECK(op.record.fence > fence && op.record.resolved_us == op.now_us, "not written down");
    CHECK(same_bytes(op.record.resolved_by, hapax_str("ann")), "nobody did it");
    CHECK(op.record.replaced_state == HAPAX_STATE_STARTED && op.record.replaced_status == 0,
          "not said what it was");
    op = complete(store, suite, 1, 1, 299);
    expect(&op, HAPAX_LOST);
    CHECK(op.record.outcome.status == 202, "the operator's outcome does not stand");
    op = resolve(store, suite, 1, 7, HAPAX_RESOLVE_FAIL, true);
    expect(&op, HAPAX_OK);
    op = reread(store, suite, 1);
    CHECK(op.record.replaced_state == HAPAX_STATE_COMPLETED && op.record.replaced_status == 202,
          "the outcome that was replaced is forgotten");
    op = resolve(store, suite, 1, 9, HAPAX_RESOLVE_COMPLETE, false);
    expect(&op, HAPAX_OK);
    op = resolve(store, suite, 1, 8, HAPAX_RESOLVE_FORGET, false);
    expect(&op, HAPAX_COMPLETED);
    op = op_of(suite, HAPAX_OP_RESOLVE, 1, 8);
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    op.if_attempt = 2;
    run_op(store, &op);
    expect(&op, HAPAX_LOST);
    op.if_attempt = 1;
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    op = reread(store, suite, 1);
    expect(&op, HAPAX_ABSENT);
    hapax_store_close(store);
}

/* Where two halves do not tell whether a word is applied, the error says so. Here a token comes
 * with another word than before. */
static void what_halves_do_not_tell_is_said(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op;

    claim(store, suite, 1, 1);
    op = resolve(store, suite, 1, 9, HAPAX_RESOLVE_FAIL, true);
    expect(&op, HAPAX_OK);
    op = op_of(suite, HAPAX_OP_RESOLVE, 1, 9);
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    op.outcome.status = 202;
    op.if_attempt = 2;
    if (suite->halves)
        CHECK(hapax_store_run(store, &op, 1) == HAPAX_ERR_INDETERMINATE &&
                  strstr(hapax_store_text(store), "ask again"),
              "%s: %s", hapax_error_name(op.error), hapax_store_text(store));
    hapax_store_close(store);
}

static struct hapax_op forget_written(struct hapax_store *store, const struct suite *suite,
                                      unsigned n, int64_t updated_us, bool force)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_RESOLVE, n, 9);

    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = force;
    op.if_attempt = 1;
    op.if_updated_us = updated_us;
    run_op(store, &op);
    return op;
}

/* What an erase has listed is forgotten as it was then, or not: neither what runs since as attempt
 * 1 anew, nor an attempt of which nobody knows the result any more. */
static void an_operator_names_the_write(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op = op_of(suite, HAPAX_OP_COMPLETE, 1, 1), now;
    int64_t listed_us;

    claim(store, suite, 1, 1);
    op.kept_ms = 40;
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    listed_us = op.now_us;
    wait_until(store, suite, listed_us + 41000);
    now = claim(store, suite, 1, 2);
    expect(&now, HAPAX_CLAIMED);
    CHECK(now.record.attempt == 1, "the attempt tells the two apart");
    op = forget_written(store, suite, 1, listed_us, true);
    expect(&op, HAPAX_LOST);
    now = claim(store, suite, 1, 3);
    expect(&now, HAPAX_IN_FLIGHT);

    op = claim_briefly(store, suite, 2, 1, HAPAX_EXPIRED_RERUN);
    listed_us = op.now_us;
    wait_until(store, suite, op.record.lease_until_us + 1000);
    now = claim_briefly(store, suite, 2, 2, HAPAX_EXPIRED_HOLD);
    expect(&now, HAPAX_UNKNOWN);
    op = forget_written(store, suite, 2, listed_us, false);
    expect(&op, HAPAX_LOST);
    now = reread(store, suite, 2);
    CHECK(now.record.state == HAPAX_STATE_UNKNOWN && now.record.attempt == 1,
          "it was forgotten, or the attempt tells the two apart");
    op = forget_written(store, suite, 2, now.record.updated_us, false);
    expect(&op, HAPAX_OK);
    now = reread(store, suite, 2);
    expect(&now, HAPAX_ABSENT);
    hapax_store_close(store);
}

/* What was answered is there when the store is opened again. */
static void a_reopened_store_has_every_record(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_op op, before;
    struct hapax_record kept;
    char scope[48];

    claim(store, suite, 1, 1);
    claim(store, suite, 2, 1);
    complete(store, suite, 2, 1, 207);
    before = reread(store, suite, 1);
    kept = before.record;
    snprintf(scope, sizeof(scope), "%s", suite->scope);
    kept.scope = hapax_str(scope);
    hapax_store_close(store);
    store = open_store(suite);
    op = reread(store, suite, 1);
    CHECK(op.verdict == HAPAX_FOUND && !record_diff(&op.record, &kept), "it changed");
    CHECK(op.now_us >= before.now_us, "the store's clock went back");
    op = claim(store, suite, 1, 1);
    expect(&op, HAPAX_CLAIMED);
    op = claim(store, suite, 2, 2);
    expect(&op, HAPAX_COMPLETED);
    CHECK(op.record.outcome.status == 207, "its outcome changed");
    hapax_store_close(store);
}

/* ---- batches and limits -------------------------------------------------------------- */

/* A whole life in one batch: ops on one id are judged in order. */
static void ops_on_one_id_keep_their_order(const struct suite *suite)
{
    static const enum hapax_verdict verdicts[] = {HAPAX_CLAIMED, HAPAX_IN_FLIGHT, HAPAX_OK,
                                                  HAPAX_OK,      HAPAX_COMPLETED, HAPAX_OK,
                                                  HAPAX_ABSENT,  HAPAX_CLAIMED};
    struct hapax_store *store = open_store(suite);
    struct hapax_op ops[] = {
        op_of(suite, HAPAX_OP_CLAIM, 1, 1), op_of(suite, HAPAX_OP_CLAIM, 1, 2),
        op_of(suite, HAPAX_OP_RENEW, 1, 1), op_of(suite, HAPAX_OP_COMPLETE, 1, 1),
        op_of(suite, HAPAX_OP_CLAIM, 1, 3), op_of(suite, HAPAX_OP_RESOLVE, 1, 4),
        op_of(suite, HAPAX_OP_READ, 1, 0),  op_of(suite, HAPAX_OP_CLAIM, 1, 5),
    };

    ops[5].resolve = HAPAX_RESOLVE_FORGET;
    ops[5].force = true;
    CHECK(hapax_store_run(store, ops, 8) == HAPAX_ERR_NONE, "%s", hapax_store_text(store));
    for (size_t i = 0; i < 8; i++)
        expect(&ops[i], verdicts[i]);
    CHECK(hapax_store_run(store, ops, 0) == HAPAX_ERR_NONE, "no ops are no failure");
    hapax_store_close(store);
}

/* More ops than any store takes at once: each is answered, half of them on ids used twice. */
static void a_batch_may_be_of_any_size(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    size_t n = 2 * HAPAX_BATCH_MAX + 500;
    struct hapax_op *ops = calloc(n, sizeof(*ops));

    CHECK(ops, "out of memory");
    for (unsigned i = 0; i < n; i++)
        ops[i] = op_of(suite, HAPAX_OP_CLAIM, i % 2000, i);
    CHECK(hapax_store_run(store, ops, n) == HAPAX_ERR_NONE, "%s", hapax_store_text(store));
    for (size_t i = 0; i < n; i++)
        expect(&ops[i], i < 2000 ? HAPAX_CLAIMED : HAPAX_IN_FLIGHT);
    free(ops);
    hapax_store_close(store);
}

static void refused(struct hapax_store *store, const struct suite *suite, struct hapax_op bad,
                    enum hapax_error error, const char *what)
{
    struct hapax_op ops[] = {op_of(suite, HAPAX_OP_READ, 1, 0), bad,
                             op_of(suite, HAPAX_OP_READ, 1, 0)};

    CHECK(hapax_store_run(store, ops, 3) == error, "%s", what);
    CHECK(ops[1].error == error && ops[1].verdict == HAPAX_NO_VERDICT, "%s", what);
    CHECK(hapax_store_text(store)[0] != '\0', "%s: no text", what);
    expect(&ops[0], HAPAX_ABSENT);
    expect(&ops[2], HAPAX_ABSENT);
}

#define REFUSED(kind, error, change)                                                               \
    do {                                                                                           \
        struct hapax_op bad = op_of(suite, kind, 1, 1);                                            \
        change;                                                                                    \
        refused(store, suite, bad, error, #change);                                                \
    } while (0)

/* An op over a limit is refused with a text, and touches neither its id nor its neighbours. */
static void an_op_over_a_limit_is_refused_alone(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    static const uint8_t bytes[HAPAX_HEADERS_MAX + 1];
    uint8_t *big = calloc(1, HAPAX_BODY_MAX + 1);
    enum hapax_error invalid = HAPAX_ERR_INVALID, too_big = HAPAX_ERR_TOO_BIG;
    struct hapax_span huge = {big, store->type->body_max + 1};

    CHECK(big && store->type->body_max <= HAPAX_BODY_MAX, "a body of %zu bytes", huge.len);
    REFUSED((enum hapax_op_kind)0, invalid, (void)bad);
    REFUSED((enum hapax_op_kind)99, invalid, (void)bad);
    REFUSED(HAPAX_OP_CLAIM, invalid, memset(&bad.token, 0, sizeof(bad.token)));
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.scope = hapax_str(NULL));
    REFUSED(HAPAX_OP_CLAIM, invalid, (bad.scope = (struct hapax_span){bytes, 256}));
    REFUSED(HAPAX_OP_CLAIM, invalid, memset(&bad.fingerprint, 0xff, sizeof(bad.fingerprint)));
    REFUSED(HAPAX_OP_CLAIM, invalid, memset(&bad.caller, 0xff, sizeof(bad.caller)));
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.lease_ms = 0);
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.lease_ms = HAPAX_DURATION_MAX_MS + 1);
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.retention_ms = 0);
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.retention_ms = HAPAX_FOREVER_MS - 1);
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.on_expired = (enum hapax_on_expired)0);
    REFUSED(HAPAX_OP_CLAIM, invalid, bad.on_expired = (enum hapax_on_expired)4);
    REFUSED(HAPAX_OP_RENEW, invalid, bad.lease_ms = -1);
    REFUSED(HAPAX_OP_COMPLETE, invalid, bad.outcome.status = 1000);
    REFUSED(HAPAX_OP_COMPLETE, invalid, bad.outcome.status = -1);
    REFUSED(HAPAX_OP_COMPLETE, too_big,
            (bad.outcome.headers = (struct hapax_span){bytes, HAPAX_HEADERS_MAX + 1}));
    REFUSED(HAPAX_OP_COMPLETE, too_big, bad.outcome.body = huge);
    REFUSED(HAPAX_OP_FAIL, too_big, bad.outcome.body = huge);
    REFUSED(HAPAX_OP_IMPORT, invalid, (void)bad);
    REFUSED(HAPAX_OP_RESOLVE, invalid, bad.resolve = (enum hapax_resolve)0);
    REFUSED(HAPAX_OP_RESOLVE, invalid,
            (bad.resolve = HAPAX_RESOLVE_FAIL, bad.by = (struct hapax_span){bytes, 65}));
    REFUSED(HAPAX_OP_LIST, invalid, bad.limit = HAPAX_LIST_MAX + 1);
    REFUSED(HAPAX_OP_LIST, invalid, bad.states = 1);
    REFUSED(HAPAX_OP_LIST, invalid, bad.older_ms = -1);
    REFUSED(HAPAX_OP_PURGE, invalid, bad.limit = HAPAX_LIST_MAX + 1);
    free(big);
    hapax_store_close(store);
}

/* Everything at its limit at once is stored and comes back. */
static void the_largest_record_comes_back(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    static uint8_t headers[HAPAX_HEADERS_MAX], scope[HAPAX_SCOPE_MAX], by[HAPAX_BY_MAX];
    static uint8_t what[HAPAX_WHAT_MAX];
    size_t body_max = store->type->body_max;
    size_t len = sizeof(headers) - (suite->sealed ? SEAL_MAX : 0);
    uint8_t *body = malloc(body_max);
    struct hapax_op op = op_of(suite, HAPAX_OP_CLAIM, 1, 1);
    uint64_t state = suite->seed;

    CHECK(body, "out of memory");
    for (size_t i = 0; i < body_max; i++)
        body[i] = (uint8_t)(next_random(&state) >> 32);
    memcpy(headers, body, sizeof(headers));
    headers[0] = 'A'; /* no line of headers begins with a zero byte */
    headers[0] = 'A'; /* no line of headers begins with a zero byte */
    memset(scope, 's', sizeof(scope));
    memset(by, 'b', sizeof(by));
    memset(what, 'w', sizeof(what));
    memset(&op.owner, 0x0e, sizeof(op.owner));
    op.what = (struct hapax_span){what, sizeof(what)};
    op.scope = (struct hapax_span){scope, sizeof(scope)};
    op.lease_ms = HAPAX_DURATION_MAX_MS;
    op.retention_ms = HAPAX_DURATION_MAX_MS;
    run_op(store, &op);
    op = op_of(suite, HAPAX_OP_RESOLVE, 1, 2);
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    op.force = true;
    op.by = (struct hapax_span){by, sizeof(by)};
    op.outcome = (struct hapax_outcome){999, true, {headers, len}, {body, body_max}};
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    op = reread(store, suite, 1);
    CHECK(op.record.outcome.status == 999 && op.record.outcome.body_kept, "status");
    CHECK(same_bytes(op.record.outcome.body, (struct hapax_span){body, body_max}), "body");
    CHECK(same_bytes(op.record.outcome.headers, (struct hapax_span){headers, len}), "headers");
    CHECK(same_bytes(op.record.scope, (struct hapax_span){scope, sizeof(scope)}), "scope");
    CHECK(same_bytes(op.record.resolved_by, (struct hapax_span){by, sizeof(by)}), "by");
    CHECK(same_bytes(op.record.what, (struct hapax_span){what, sizeof(what)}), "what");
    CHECK(op.record.owner.bytes[31] == 0x0e, "owner");
    op = op_of(suite, HAPAX_OP_RESOLVE, 1, 3);
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.force = true;
    run_op(store, &op);
    expect(&op, HAPAX_OK);
    free(body);
    hapax_store_close(store);
}

/* Puts a record as it is, but for its mark. */
static struct hapax_op import(struct hapax_store *store, const struct suite *suite, unsigned n,
                              const struct hapax_record *record)
{
    struct hapax_op op = op_of(suite, HAPAX_OP_IMPORT, n, 0);
    struct hapax_record bare = *record;
    uint8_t bytes[2048];

    bare.id = op.id;
    bare.outcome = (struct hapax_outcome){0};
    op.import = (struct hapax_span){bytes, hapax__record_size(&bare)};
    CHECK(op.import.len <= sizeof(bytes), "%zu bytes", op.import.len);
    hapax__record_encode(bytes, &bare);
    op.outcome = record->outcome;
    op.attempt = record->attempt;
    op.fence = record->fence;
    op.fingerprint = record->fingerprint;
    op.caller = record->caller;
    run_op(store, &op);
    return op;
}

/* A record of another store, with every field set. */
static struct hapax_record foreign(struct hapax_store *store, const struct suite *suite, unsigned n)
{
    struct hapax_op like = op_of(suite, HAPAX_OP_CLAIM, n, 1);
    int64_t now_us = reread(store, suite, n).now_us;
    struct hapax_record record = {
        .id = like.id,
        .state = HAPAX_STATE_UNKNOWN,
        .hold = true,
        .stale = true,
        .ran = true,
        .reruns = true,
        .attempt = 7,
        .spent = 5,
        .fence = (uint64_t)now_us - 10,
        .fingerprint = like.fingerprint,
        .caller = like.caller,
        .scope = like.scope,
        .what = hapax_str("POST /payments"),
        .created_us = now_us - 5000 * MS,
        .updated_us = now_us - 1000 * MS,
        .retention_ms = 7200000,
        .outcome = {502, true, hapax_str("A: b\r\n"), hapax_str("a body")},
        .resolved_us = now_us - 2000 * MS,
        .resolved_by = hapax_str("ann"),
        .replaced_state = HAPAX_STATE_FAILED,
        .replaced_status = 503,
    };

    memset(&record.owner, 0x0e, sizeof(record.owner));
    return record;
}

static void stands(struct hapax_store *store, const struct suite *suite, unsigned n,
                   const struct hapax_record *record)
{
    struct hapax_op op = reread(store, suite, n);

    expect(&op, HAPAX_FOUND);
    CHECK(!record_diff(&op.record, record), "%s", record_diff(&op.record, record));
}

/* A record of another store is here what it was there, and goes on here; a repeat changes nothing.
 */
static void an_imported_record_is_what_it_was(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_record record = foreign(store, suite, 1), late;
    struct hapax_op op = import(store, suite, 1, &record);

    expect(&op, HAPAX_OK);
    stands(store, suite, 1, &record);
    op = import(store, suite, 1, &record);
    expect(&op, HAPAX_OK);
    op = claim(store, suite, 1, 3);
    expect(&op, HAPAX_UNKNOWN);
    /* It was resolved there since. */
    record.state = HAPAX_STATE_COMPLETED;
    record.stale = false;
    record.updated_us += MS;
    record.expires_us = record.updated_us + record.retention_ms * 1000;
    record.fence++;
    op = import(store, suite, 1, &record);
    expect(&op, HAPAX_OK);
    stands(store, suite, 1, &record);
    op = claim(store, suite, 1, 3);
    expect(&op, HAPAX_COMPLETED);
    CHECK(!outcome_diff(&op.record.outcome, &record.outcome), "another outcome");
    /* A claim that was dead there is dead here. */
    record = foreign(store, suite, 2);
    record.state = HAPAX_STATE_STARTED;
    record.lease_until_us = record.updated_us + MS;
    record.outcome = (struct hapax_outcome){0};
    record.retention_ms = HAPAX_FOREVER_MS;
    op = import(store, suite, 2, &record);
    expect(&op, HAPAX_OK);
    stands(store, suite, 2, &record);
    op = claim_briefly(store, suite, 2, 1, HAPAX_EXPIRED_RECONCILE);
    expect(&op, HAPAX_CLAIMED);
    CHECK(op.record.attempt == 8 && op.record.fence > record.fence, "the attempt fell");
    /* A claim that lives stays, whatever became of it there. */
    record = foreign(store, suite, 3);
    record.state = HAPAX_STATE_STARTED;
    record.lease_until_us = record.updated_us + 3600000 * MS;
    record.outcome = (struct hapax_outcome){0};
    record.retention_ms = HAPAX_FOREVER_MS;
    op = import(store, suite, 3, &record);
    expect(&op, HAPAX_OK);
    late = record;
    late.state = HAPAX_STATE_UNKNOWN;
    late.lease_until_us = 0;
    late.updated_us += MS;
    op = import(store, suite, 3, &late);
    expect(&op, HAPAX_FOUND);
    stands(store, suite, 3, &record);
    hapax_store_close(store);
}

/* A record leaves its tombstone here as it would have there, and a tombstone is one here. */
static void an_imported_record_leaves_its_tombstone(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);

    for (unsigned n = 1; n <= 2; n++) {
        struct hapax_record record = foreign(store, suite, n);
        struct hapax_op op;

        record.state = HAPAX_STATE_COMPLETED;
        record.stale = record.reruns = false;
        record.retention_ms = n == 1 ? 1 : 1060;
        record.expires_us = record.updated_us + 3600000 * MS;
        op = import(store, suite, n, &record);
        expect(&op, HAPAX_OK);
        wait_until(store, suite, record.updated_us + (record.retention_ms + 1) * MS);
        op = claim(store, suite, n, 1);
        expect(&op, HAPAX_COMPLETED);
        CHECK(op.record.outcome.headers.len + op.record.outcome.body.len == 0 &&
                  op.record.outcome.status == 502 && op.record.expires_us == record.expires_us &&
                  op.record.updated_us == record.updated_us,
              "no tombstone");
        op = import(store, suite, n, &record);
        expect(&op, HAPAX_OK);
    }
    hapax_store_close(store);
}

/* What has gone on here, or began here, stays as it is. */
static void an_import_takes_nothing_away(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_record record = foreign(store, suite, 1), older;
    struct hapax_op op = claim(store, suite, 1, 1);

    expect(&op, HAPAX_CLAIMED);
    record.created_us = op.record.created_us;
    record.updated_us = op.now_us + 1000 * MS;
    record.fence = op.record.fence + 1;
    op = import(store, suite, 1, &record);
    expect(&op, HAPAX_FOUND);
    CHECK(op.record.state == HAPAX_STATE_STARTED && op.record.attempt == 1 &&
              op.record.fence == record.fence - 1 && op.record.created_us == record.created_us &&
              op.record.updated_us < record.updated_us && op.record.lease_until_us > op.now_us,
          "what is shown");
    op = complete(store, suite, 1, 1, 201);
    expect(&op, HAPAX_OK);
    record.state = HAPAX_STATE_COMPLETED;
    op = import(store, suite, 1, &record);
    expect(&op, HAPAX_FOUND);
    op = reread(store, suite, 1);
    CHECK(op.record.outcome.status == 201, "the outcome changed");

    record = foreign(store, suite, 2);
    op = import(store, suite, 2, &record);
    expect(&op, HAPAX_OK);
    older = record;
    older.created_us--;
    older.updated_us += MS;
    op = import(store, suite, 2, &older);
    expect(&op, HAPAX_FOUND);
    older = record;
    older.fence--;
    older.updated_us += MS;
    op = import(store, suite, 2, &older);
    expect(&op, HAPAX_FOUND);
    older = record;
    older.updated_us -= MS;
    op = import(store, suite, 2, &older);
    expect(&op, HAPAX_FOUND);
    stands(store, suite, 2, &record);

    /* What ran here stays, however far the other is. */
    record = foreign(store, suite, 4);
    record.state = HAPAX_STATE_FAILED;
    record.stale = false;
    op = import(store, suite, 4, &record);
    expect(&op, HAPAX_OK);
    op = claim(store, suite, 4, 1);
    expect(&op, HAPAX_CLAIMED);
    op = fail(store, suite, 4, 1, true);
    expect(&op, HAPAX_OK);
    record.fence = op.record.fence + 1000 * MS;
    record.updated_us = op.now_us + 1000 * MS;
    op = import(store, suite, 4, &record);
    expect(&op, HAPAX_FOUND);

    /* What expired here makes room. */
    record = foreign(store, suite, 3);
    record.state = HAPAX_STATE_COMPLETED;
    record.expires_us = record.updated_us + 1;
    op = import(store, suite, 3, &record);
    expect(&op, HAPAX_OK);
    op = reread(store, suite, 3);
    expect(&op, HAPAX_ABSENT);
    record.created_us--;
    record.expires_us = 0;
    op = import(store, suite, 3, &record);
    expect(&op, HAPAX_OK);
    stands(store, suite, 3, &record);
    hapax_store_close(store);
}

static bool is_listed(struct hapax_store *store, const struct hapax_record *record,
                      int64_t older_ms)
{
    struct hapax_op op = {.kind = HAPAX_OP_LIST,
                          .states = 1u << record->state,
                          .scope = record->scope,
                          .older_ms = older_ms};
    bool listed = false;

    do {
        run_op(store, &op);
        for (uint32_t i = 0; i < op.count; i++)
            listed |= memcmp(&op.records[i].id, &record->id, sizeof(record->id)) == 0;
        op.cursor = op.next_cursor;
    } while (op.more);
    return listed;
}

/* What a clock ahead of the store's has written is listed, but where an age is asked for. */
static void what_is_ahead_of_the_clock_is_listed(const struct suite *suite)
{
    static const enum hapax_state states[] = {HAPAX_STATE_UNKNOWN, HAPAX_STATE_COMPLETED};
    struct hapax_store *store = open_store(suite);

    for (unsigned n = 0; n < 2; n++) {
        struct hapax_record record = foreign(store, suite, n);
        struct hapax_op op;

        record.state = states[n];
        record.created_us = record.updated_us += 3600000 * MS;
        op = import(store, suite, n, &record);
        expect(&op, HAPAX_OK);
        CHECK(is_listed(store, &record, 0), "%s", hapax_state_name(record.state));
        CHECK(!is_listed(store, &record, 1), "%s", hapax_state_name(record.state));
    }
    hapax_store_close(store);
}

/* Where the table that a record is from did not keep the request, any request is answered with it;
 * the first claim that is granted binds it. */
static void an_imported_record_may_be_of_any_request(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    struct hapax_record record = foreign(store, suite, 1);
    struct hapax_op op;

    record.state = HAPAX_STATE_COMPLETED;
    record.reruns = false;
    memset(&record.fingerprint, HAPAX_ANY_BYTE, sizeof(record.fingerprint));
    op = import(store, suite, 1, &record);
    expect(&op, HAPAX_OK);
    op = claim(store, suite, 1, 1);
    expect(&op, HAPAX_COMPLETED);
    CHECK(!outcome_diff(&op.record.outcome, &record.outcome), "another outcome");
    op = op_of(suite, HAPAX_OP_CLAIM, 1, 2);
    op.caller.bytes[0] ^= 1;
    run_op(store, &op);
    expect(&op, HAPAX_MISMATCH);
    CHECK(op.differs == HAPAX_DIFFERS_CALLER, "differs %d", (int)op.differs);
    record.created_us--;
    memset(&record.caller, HAPAX_ANY_BYTE, sizeof(record.caller));
    op = import(store, suite, 2, &record);
    expect(&op, HAPAX_OK);
    op = op_of(suite, HAPAX_OP_CLAIM, 2, 2);
    op.caller.bytes[0] ^= 1;
    run_op(store, &op);
    expect(&op, HAPAX_COMPLETED);

    record.state = HAPAX_STATE_FAILED;
    record.stale = record.hold = false;
    op = import(store, suite, 3, &record);
    expect(&op, HAPAX_OK);
    op = claim(store, suite, 3, 1);
    expect(&op, HAPAX_CLAIMED);
    op = op_of(suite, HAPAX_OP_CLAIM, 3, 2);
    op.caller.bytes[0] ^= 1;
    run_op(store, &op);
    expect(&op, HAPAX_MISMATCH);
    hapax_store_close(store);
}

static void count_line(void *arg, bool danger, const char *line)
{
    (void)danger;
    CHECK(line[0] != '\0', "advice without words");
    ++*(unsigned *)arg;
}

/* A store that works says so, with or without advice. */
static void a_healthy_store_checks_out(const struct suite *suite)
{
    struct hapax_store *store = open_store(suite);
    unsigned lines = 0;

    CHECK(hapax_store_check(store, count_line, &lines) == HAPAX_ERR_NONE, "%s",
          hapax_store_text(store));
    printf("# %u lines of advice\n", lines);
    hapax_store_close(store);
}

const struct test_case rule_cases[] = {
    {"a_repeat_gets_the_first_outcome", a_repeat_gets_the_first_outcome, false, false},
    {"an_outcome_goes_with_its_claim", an_outcome_goes_with_its_claim, false, false},
    {"a_repeated_op_gives_the_same_answer", a_repeated_op_gives_the_same_answer, false, false},
    {"a_dead_attempt_is_taken_over", a_dead_attempt_is_taken_over, false, false},
    {"a_renewed_claim_is_not_taken_over", a_renewed_claim_is_not_taken_over, false, false},
    {"a_refusal_leaves_next_to_nothing", a_refusal_leaves_next_to_nothing, false, false},
    {"a_failed_record_keeps_its_attempt_count_and_fence",
     a_failed_record_keeps_its_attempt_count_and_fence, false, false},
    {"a_known_death_needs_no_lease", a_known_death_needs_no_lease, false, false},
    {"mismatch_is_found_before_in_flight", mismatch_is_found_before_in_flight, false, false},
    {"a_held_operation_becomes_unknown", a_held_operation_becomes_unknown, false, false},
    {"an_open_question_does_not_expire", an_open_question_does_not_expire, false, false},
    {"a_scrub_changes_no_record", a_scrub_changes_no_record, false, false},
    {"a_sweep_ends_what_was_left_under_hold", a_sweep_ends_what_was_left_under_hold, false, false},
    {"an_expired_record_is_absent", an_expired_record_is_absent, false, false},
    {"a_tombstone_outlives_its_record", a_tombstone_outlives_its_record, false, false},
    {"a_tombstone_goes_with_its_record", a_tombstone_goes_with_its_record, false, false},
    {"what_halves_do_not_tell_is_said", what_halves_do_not_tell_is_said, false, false},
    {"an_operator_has_the_last_word", an_operator_has_the_last_word, false, false},
    {"an_operator_names_the_write", an_operator_names_the_write, false, false},
    {"a_reopened_store_has_every_record", a_reopened_store_has_every_record, false, true},
    {"ops_on_one_id_keep_their_order", ops_on_one_id_keep_their_order, false, false},
    {"a_batch_may_be_of_any_size", a_batch_may_be_of_any_size, false, false},
    {"an_op_over_a_limit_is_refused_alone", an_op_over_a_limit_is_refused_alone, false, false},
    {"the_largest_record_comes_back", the_largest_record_comes_back, false, false},
    {"an_imported_record_is_what_it_was", an_imported_record_is_what_it_was, false, false},
    {"an_imported_record_leaves_its_tombstone", an_imported_record_leaves_its_tombstone, false,
     false},
    {"an_import_takes_nothing_away", an_import_takes_nothing_away, false, false},
    {"what_is_ahead_of_the_clock_is_listed", what_is_ahead_of_the_clock_is_listed, false, false},
    {"an_imported_record_may_be_of_any_request", an_imported_record_may_be_of_any_request, false,
     false},
    {"a_healthy_store_checks_out", a_healthy_store_checks_out, false, false},
    {NULL, NULL, false, false},
};
