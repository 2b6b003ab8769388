/* SPDX-License-Identifier: Apache-2.0
 *
 * What is rare in a move from store to store, as stories: each op of a door with both stores is
 * played to its end, with a fault or another door's op before one of its steps. tests/sim/move.c
 * plays what is frequent.
 */
#include "../cases.h"
#include "core/record.h"
#include "store/move/pair.h"
#include "world.h"

enum { OLD, NEW };

/* The two stores, and what happens at a step of the next op. */
struct halves {
    struct world of[2];
    int steps; /* of the last op */
    int at; /* the step, from 1; 0: nothing happens */
    int times; /* for so many steps */
    enum fault { LOSE_OP, LOSE_REPLY, AWAY, BIG, OLDER, OTHER } fault;
    struct hapax_op other; /* another door's op, before the step; at the next steps: AWAY */
    int other_half;
};

static struct halves fresh(void)
{
    return (struct halves){.of = {empty(), empty()}};
}

static void answer_step(struct halves *h, struct hapax__pair *pair, bool meets)
{
    struct hapax_op asked = pair->sub;
    enum fault fault = h->fault == OTHER && h->steps > h->at ? AWAY : h->fault;

    assert_true(asked.says_kept); /* what a CLAIM of its own may end in */
    if (meets && fault == OTHER)
        (void)run(&h->of[h->other_half], h->other);
    if (!meets || fault == LOSE_REPLY || fault == OTHER)
        pair->sub = run(&h->of[pair->half], pair->sub);
    if (!meets || fault == OTHER)
        return;
    pair->sub = asked;
    pair->sub.verdict = HAPAX_NO_VERDICT;
    pair->sub.error = fault == AWAY    ? HAPAX_ERR_UNAVAILABLE
                      : fault == BIG   ? HAPAX_ERR_TOO_BIG
                      : fault == OLDER ? HAPAX_ERR_UNSUPPORTED
                                       : HAPAX_ERR_INDETERMINATE;
}

/* Plays an op of a door with both. The fault is over with it. */
static struct hapax_op play(struct halves *h, struct hapax_op op)
{
    struct hapax__pair pair;
    bool goes = true;

    hapax__pair_begin(&pair, &op);
    for (h->steps = 1; goes; h->steps += goes) {
        answer_step(h, &pair, h->at > 0 && h->steps >= h->at && h->steps < h->at + h->times);
        goes = hapax__pair_told(&pair);
    }
    h->at = 0;
    return op;
}

static struct hapax_op play_at(struct halves *h, int at, int times, enum fault fault,
                               struct hapax_op op)
{
    h->at = at;
    h->times = times;
    h->fault = fault;
    return play(h, op);
}

static struct hapax_op play_after(struct halves *h, int at, int half, struct hapax_op other,
                                  struct hapax_op op)
{
    h->other = other;
    h->other_half = half;
    return play_at(h, at, 1, OTHER, op);
}

static struct hapax_op op_m(enum hapax_op_kind kind)
{
    return op_of(kind, 1);
}

static void pass(struct halves *h, int64_t us)
{
    h->of[OLD].now_us += us;
    h->of[NEW].now_us += us;
}

/* Neither a door with the old store nor one with the new one runs what one with both runs. */
CASE(a_claim_of_both_is_one_in_each)
{
    struct halves h = fresh();

    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_CLAIMED);
    assert_int_equal(h.steps, 3);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_CLAIMED);
}

/* A half behind an older keeper, which cannot be told how long an outcome is kept, grants nothing.
 * So nothing runs, and the claim in the other half is given back. An operator's word that the old
 * half has taken is not over. */
CASE(a_half_that_does_not_know_an_op_lets_nothing_run)
{
    struct halves h = fresh();
    struct hapax_op op = op_m(HAPAX_OP_RESOLVE);

    assert_int_equal(play_at(&h, 3, 1, OLDER, op_m(HAPAX_OP_CLAIM)).error, HAPAX_ERR_UNSUPPORTED);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_CLAIMED);
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    op.force = true;
    assert_int_equal(play_at(&h, 2, 1, OLDER, op).error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(claim(&h.of[OLD], 3).verdict, HAPAX_COMPLETED);
}

/* Surely not applied is what neither half was told; all else has to be repeated. */
CASE(half_a_claim_is_not_known)
{
    struct halves h = fresh();
    struct hapax_op op = play_at(&h, 1, 1, AWAY, op_m(HAPAX_OP_CLAIM));

    assert_int_equal(op.error, HAPAX_ERR_UNAVAILABLE);
    op = play_at(&h, 2, 1, AWAY, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.error, HAPAX_ERR_UNAVAILABLE);
    op = play_at(&h, 3, 1, AWAY, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_CLAIMED);
    op = play_at(&h, 2, 1, AWAY, op_m(HAPAX_OP_COMPLETE));
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 2).verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(play(&h, op_m(HAPAX_OP_COMPLETE)).verdict, HAPAX_OK);
    assert_int_equal(claim(&h.of[NEW], 2).verdict, HAPAX_COMPLETED);
}

/* Another door was faster in the new store: the claim in the old one is given back, and the token
 * may ask again once that is known. */
CASE(a_claim_that_the_new_store_does_not_grant_goes_back)
{
    struct halves h = fresh();
    struct hapax_op op = play_after(&h, 3, NEW, op_of(HAPAX_OP_CLAIM, 3), op_m(HAPAX_OP_CLAIM));

    assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_CLAIMED);
    /* By then the look turns it away, and no claim is made. */
    assert_int_equal(play(&h, op_of(HAPAX_OP_CLAIM, 4)).verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(h.of[OLD].record.attempt, 2);
}

/* The reply to the release is lost twice. A late copy of the release could end a later claim of
 * this token, so the token has none. */
CASE(a_token_that_was_given_back_unheard_is_lost)
{
    struct halves h = fresh();
    struct hapax_op op;

    h.other = op_of(HAPAX_OP_CLAIM, 3);
    assert_int_equal(run(&h.of[NEW], h.other).verdict, HAPAX_CLAIMED);
    op = op_m(HAPAX_OP_CLAIM);
    assert_int_equal(run(&h.of[OLD], op).verdict, HAPAX_CLAIMED); /* what an earlier try has left */
    op = play_at(&h, 3, 2, LOSE_OP, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(h.steps, 4);
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(op.record.state, HAPAX_STATE_STARTED);
    /* So it is where a second release was heard. */
    op = play_at(&h, 3, 1, LOSE_OP, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.verdict, HAPAX_LOST);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_CLAIMED);
}

/* Of releases that surely have not landed none comes late: the claim is asked for again, and is
 * given back then. */
CASE(a_claim_that_cannot_be_given_back_is_not_known)
{
    struct halves h = fresh();
    struct hapax_op op;

    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_CLAIMED);
    assert_int_equal(claim(&h.of[OLD], 1).verdict, HAPAX_CLAIMED); /* of an earlier try */
    op = play_at(&h, 3, 2, AWAY, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    op = play_at(&h, 3, 1, AWAY, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_CLAIMED);
}

/* Though the new store's clock is ahead by more than a lease. */
CASE(a_claim_granted_anew_in_one_store_has_another_fence)
{
    struct halves h = fresh();
    struct hapax_op first;

    h.of[NEW].now_us += 10 * LEASE_US;
    first = play(&h, op_m(HAPAX_OP_CLAIM));
    h.of[OLD].now_us += LEASE_US;
    assert_int_equal(claim(&h.of[OLD], 2).verdict, HAPAX_CLAIMED);
    assert_int_equal(fail_with(&h.of[OLD], 2, true).verdict, HAPAX_OK);
    assert_int_equal(claim(&h.of[OLD], 1).verdict, HAPAX_CLAIMED); /* a late copy */
    assert_true(play(&h, op_m(HAPAX_OP_RENEW)).record.fence != first.record.fence);
    first.kind = HAPAX_OP_RENEW;
    first.if_attempt = first.record.attempt;
    first.fence = first.record.fence;
    first.reconciled = true;
    assert_int_equal(play(&h, first).verdict, HAPAX_LOST);
    assert_true(h.of[OLD].record.stale);
}

/* An attempt that ended is no death in either store, and what it said stands in both. */
CASE(a_fail_ends_the_claim_in_both)
{
    struct halves h = fresh();
    struct hapax_op op = op_m(HAPAX_OP_FAIL);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    for (int half = OLD; half <= NEW; half++) {
        op = claim(&h.of[half], 2);
        assert_int_equal(op.verdict, HAPAX_CLAIMED);
        assert_false(op.record.stale);
    }
}

/* A door with the old store took over and completed: whoever lost shows what the new store has by
 * then, which is the same. */
CASE(who_lost_to_a_completion_brings_it_over)
{
    struct halves h = fresh();
    struct hapax_op op, done = op_of(HAPAX_OP_COMPLETE, 2);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    (void)claim(&h.of[OLD], 2);
    done.outcome.status = 201;
    (void)run(&h.of[OLD], done);
    for (int kind = HAPAX_OP_RENEW; kind <= HAPAX_OP_FAIL; kind++) {
        struct halves at = h;

        op = play(&at, op_m((enum hapax_op_kind)kind));
        assert_int_equal(op.verdict, HAPAX_LOST);
        assert_int_equal(op.record.outcome.status, 201);
        assert_int_equal(at.of[NEW].record.state, HAPAX_STATE_COMPLETED);
        assert_int_equal(at.of[NEW].record.outcome.status, 201);
    }
    op = op_of(HAPAX_OP_READ, 3);
    op = play(&h, op);
    assert_int_equal(op.verdict, HAPAX_FOUND);
    assert_int_equal(h.of[NEW].record.outcome.status, 201);
}

/* The new store's record was forgotten under the attempt, as a copy does: the outcome is there all
 * the same. */
CASE(a_completion_outlives_its_claim_in_the_new_store)
{
    struct halves h = fresh();

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    h.of[NEW].present = false;
    assert_int_equal(play(&h, op_m(HAPAX_OP_COMPLETE)).verdict, HAPAX_OK);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
}

/* What is brought over is kept for as long as it was, and its tombstone too. */
CASE(an_outcome_that_is_brought_over_keeps_its_times)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, 2);

    (void)claim(&h.of[OLD], 2);
    op.kept_ms = 100000;
    op.tombstone_ms = 50000;
    (void)run(&h.of[OLD], op);
    pass(&h, 40 * SECOND);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_COMPLETED);
    assert_int_equal(hapax__shown_until(&h.of[NEW].record), hapax__shown_until(&h.of[OLD].record));
    assert_int_equal(h.of[NEW].record.expires_us, h.of[OLD].record.expires_us);
}

/* What the new store finds too big comes without its body: the old one keeps what it has. */
CASE(a_body_may_be_dropped_for_the_new_store)
{
    struct halves h = fresh();
    struct hapax_op op = op_m(HAPAX_OP_COMPLETE);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    (void)play_at(&h, 2, 1, AWAY, op);
    op.outcome.body_kept = false;
    op.outcome.body = hapax_str(NULL);
    op = play(&h, op);
    assert_int_equal(op.verdict, HAPAX_OK);
    assert_false(op.record.outcome.body_kept);
    assert_true(h.of[OLD].record.outcome.body_kept);
}

/* So does what the old store has completed by itself. */
CASE(a_body_that_is_too_big_for_the_new_store_stays_in_the_old_one)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, 2);

    (void)claim(&h.of[OLD], 2);
    op.outcome.status = 201;
    (void)run(&h.of[OLD], op);
    op = play_at(&h, 4, 1, BIG, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(h.steps, 5);
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.status, 201);
    assert_false(op.record.outcome.body_kept);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
    assert_true(h.of[OLD].record.outcome.body_kept);
    /* Headers that are too big cannot be left out. */
    h = fresh();
    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    assert_int_equal(play_at(&h, 4, 2, BIG, op_m(HAPAX_OP_CLAIM)).error, HAPAX_ERR_TOO_BIG);
}

/* The key is refused as expired, and not replayed as a response that was not kept. */
CASE(a_tombstone_of_the_old_store_is_shown_as_one)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_COMPLETE, 2);

    (void)claim(&h.of[OLD], 2);
    op.kept_ms = 40000;
    op.tombstone_ms = 3600000;
    (void)run(&h.of[OLD], op);
    pass(&h, 60 * SECOND);
    for (uint8_t who = 1; who < 3; who++) {
        op = play(&h, op_of(HAPAX_OP_CLAIM, who));
        assert_int_equal(op.verdict, HAPAX_COMPLETED);
        assert_true(hapax__tombstone(&op.record, op.now_us));
        pass(&h, SECOND);
    }
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_COMPLETED);
}

/* The attempt that an operator names is that of the half that was shown. */
CASE(an_operator_s_word_is_for_both)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, 9);

    for (uint8_t who = 2; who < 5; who++) {
        (void)claim(&h.of[OLD], who);
        (void)fail_with(&h.of[OLD], who, true);
    }
    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    op.resolve = HAPAX_RESOLVE_COMPLETE;
    assert_int_equal(play(&h, op).verdict, HAPAX_IN_FLIGHT);
    pass(&h, LEASE_US);
    op.if_attempt = 3;
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
    op.if_attempt = play(&h, op_of(HAPAX_OP_READ, 9)).record.attempt;
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_COMPLETED);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_COMPLETED);
    op.resolve = HAPAX_RESOLVE_FORGET;
    op.token = op_of(HAPAX_OP_READ, 10).token;
    op.if_attempt = 0;
    op.force = true;
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    assert_false(h.of[OLD].present || h.of[NEW].present);
    assert_int_equal(play(&h, op).verdict, HAPAX_ABSENT);
}

/* Steps of an operation are kept from its beginning on, which the old store knows. */
CASE(a_claim_begins_when_the_old_store_says)
{
    struct halves h = fresh();
    int64_t began_us = h.of[OLD].now_us;
    struct hapax__pair_shown old, new;

    (void)claim(&h.of[OLD], 2);
    (void)fail_with(&h.of[OLD], 2, true);
    h.of[NEW].now_us += 3 * SECOND;
    pass(&h, 3600 * SECOND);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).record.created_us, began_us + 3 * SECOND);
    assert_int_equal(play(&h, op_m(HAPAX_OP_RENEW)).record.created_us, began_us + 3 * SECOND);
    /* A copy brings that over, and what an operator has said. */
    (void)fail_with(&h.of[NEW], 1, true);
    old = (struct hapax__pair_shown){h.of[OLD].record, h.of[OLD].now_us};
    new = (struct hapax__pair_shown){h.of[NEW].record, h.of[NEW].now_us};
    assert_false(hapax__pair_covers(&old, &new, began_us + SECOND));
    new.record.created_us = began_us + 4 * SECOND;
    assert_true(hapax__pair_covers(&old, &new, began_us + SECOND));
    old.record.resolved_us = began_us + SECOND;
    assert_false(hapax__pair_covers(&old, &new, began_us + SECOND));
}

static struct hapax_op word(enum hapax_resolve what)
{
    struct hapax_op op = op_of(HAPAX_OP_RESOLVE, 9);

    op.resolve = what;
    op.outcome.status = 202;
    op.by = hapax_str("ann");
    return op;
}

/* The attempt died before it claimed in the new store, which so has nothing to resolve. */
CASE(a_completion_by_an_operator_comes_to_the_new_store)
{
    struct halves h = fresh();

    (void)claim_as(&h.of[OLD], 2, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, word(HAPAX_RESOLVE_COMPLETE)).verdict, HAPAX_OK);
    assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
    assert_int_equal(h.of[NEW].record.outcome.status, 202);
    assert_int_equal(play(&h, word(HAPAX_RESOLVE_COMPLETE)).verdict, HAPAX_OK);
}

/* A reply was lost. The word has made another write of the record by then, and names the one
 * before. */
CASE(a_repeated_word_is_known_as_one)
{
    for (int at = 3; at <= 4; at++) {
        for (int fault = LOSE_OP; fault <= LOSE_REPLY; fault++) {
            struct halves h = fresh();
            struct hapax_op op = word(HAPAX_RESOLVE_FAIL), shown;

            (void)play(&h, op_m(HAPAX_OP_CLAIM));
            pass(&h, LEASE_US);
            shown = play(&h, op_of(HAPAX_OP_READ, 9));
            op.if_attempt = shown.record.attempt;
            op.if_updated_us = shown.record.updated_us;
            pass(&h, SECOND);
            assert_int_equal(play_at(&h, at, 1, (enum fault)fault, op).error,
                             HAPAX_ERR_INDETERMINATE);
            assert_int_equal(play(&h, op).verdict, HAPAX_OK);
            for (int half = OLD; half <= NEW; half++)
                assert_int_equal(h.of[half].record.state, HAPAX_STATE_FAILED);
            op.token.bytes[0] ^= 1; /* another operator's */
            assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
        }
    }
}

/* Both have the word, and a door with the new half has followed it by an attempt that died. */
CASE(a_repeated_word_is_not_about_a_later_attempt)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
    (void)play_at(&h, 4, 1, LOSE_REPLY, op);
    pass(&h, SECOND);
    (void)claim_as(&h.of[NEW], 3, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    assert_int_equal(claim(&h.of[NEW], 4).verdict, HAPAX_UNKNOWN);
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_UNKNOWN);
}

/* The new half alone knows the operation. */
CASE(a_repeated_word_is_known_in_the_new_half)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    (void)claim(&h.of[NEW], 3);
    pass(&h, LEASE_US);
    op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
    pass(&h, SECOND);
    assert_int_equal(play_at(&h, 4, 1, LOSE_REPLY, op).error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_FAILED);
    op.token.bytes[0] ^= 1; /* another operator's */
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
}

static struct hapax_op forced(uint32_t attempt)
{
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    op.if_attempt = attempt;
    op.force = true;
    return op;
}

/* The word is repeated after a lost reply. The new half has counted as far as the old one had by
 * the time of the first. */
CASE(a_repeated_word_does_not_end_a_later_claim)
{
    struct halves h = fresh();

    for (uint8_t who = 2; who < 5; who++) {
        (void)claim(&h.of[OLD], who);
        (void)fail_with(&h.of[OLD], who, true);
    }
    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(play(&h, op_of(HAPAX_OP_READ, 9)).record.attempt, 4);
    (void)play_at(&h, 5, 1, LOSE_REPLY, forced(4));
    for (uint8_t who = 5; who < 8; who++) {
        pass(&h, LEASE_US);
        assert_int_equal(play(&h, op_of(HAPAX_OP_CLAIM, who)).verdict, HAPAX_CLAIMED);
    }
    assert_int_equal(h.of[NEW].record.attempt, 4);
    assert_int_equal(play(&h, forced(4)).verdict, HAPAX_LOST);
    assert_int_equal(play(&h, op_of(HAPAX_OP_RENEW, 7)).verdict, HAPAX_OK);
}

/* One half has granted it, under the number that the other one's attempt had. */
CASE(a_word_does_not_end_a_claim_on_its_way)
{
    for (int half = OLD; half <= NEW; half++) {
        for (int at = 0; at <= 3; at += 3) {
            struct halves h = fresh();

            (void)claim(&h.of[!half], 2);
            pass(&h, LEASE_US);
            if (at == 0)
                (void)claim(&h.of[half], 3);
            assert_int_not_equal(
                play_after(&h, at, half, op_of(HAPAX_OP_CLAIM, 3), forced(1)).verdict, HAPAX_OK);
            assert_int_equal(run(&h.of[half], op_of(HAPAX_OP_RENEW, 3)).verdict, HAPAX_OK);
        }
    }
}

/* The new half alone had it. */
CASE(a_repeated_word_does_not_end_a_claim_on_its_way)
{
    struct halves h = fresh();

    (void)claim(&h.of[NEW], 2);
    pass(&h, LEASE_US);
    (void)play_at(&h, 4, 1, LOSE_REPLY, forced(1));
    (void)claim(&h.of[OLD], 3);
    assert_int_equal(play(&h, forced(1)).verdict, HAPAX_OK);
    assert_int_equal(run(&h.of[OLD], op_of(HAPAX_OP_RENEW, 3)).verdict, HAPAX_OK);
}

/* Both have an operator's word, and a door with the new half has followed it by an attempt of its
 * own. That is not the one that another operator was shown before. */
CASE(a_word_is_not_about_an_attempt_after_another_word)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    for (uint8_t who = 2; who < 4; who++) {
        (void)claim(&h.of[OLD], who);
        (void)fail_with(&h.of[OLD], who, true);
    }
    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    op.if_attempt = play(&h, op_of(HAPAX_OP_READ, 9)).record.attempt;
    assert_int_equal(op.if_attempt, 3);
    assert_int_equal(play(&h, word(HAPAX_RESOLVE_FAIL)).verdict, HAPAX_OK);
    (void)claim_as(&h.of[NEW], 3, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    op.token.bytes[0] ^= 1;
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_STARTED);
}

/* The later attempt has the number that the word names, since the old half was one ahead. */
CASE(a_repeated_word_is_not_about_a_later_attempt_of_its_number)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    (void)claim(&h.of[OLD], 2);
    (void)fail_with(&h.of[OLD], 2, true);
    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    op.if_attempt = 2;
    (void)play_at(&h, 4, 1, LOSE_REPLY, op);
    pass(&h, SECOND);
    (void)claim_as(&h.of[NEW], 3, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, op_of(HAPAX_OP_READ, 9)).record.attempt, 2);
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_STARTED);
    op.token.bytes[0] ^= 1; /* another operator's, who has seen it */
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
}

/* The door with both has lost its lease in the new half alone, where another has taken over. */
CASE(a_word_about_one_claim_does_not_end_another)
{
    struct halves h = fresh();

    (void)claim(&h.of[OLD], 2);
    (void)fail_with(&h.of[OLD], 2, true);
    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(play(&h, op_of(HAPAX_OP_READ, 9)).record.attempt, 2);
    pass(&h, LEASE_US);
    (void)run(&h.of[OLD], op_m(HAPAX_OP_RENEW));
    (void)claim(&h.of[NEW], 3);
    assert_int_equal(play(&h, forced(2)).verdict, HAPAX_LOST);
    assert_int_equal(run(&h.of[NEW], op_of(HAPAX_OP_RENEW, 3)).verdict, HAPAX_OK);
    assert_int_equal(run(&h.of[OLD], op_m(HAPAX_OP_RENEW)).verdict, HAPAX_OK);
}

/* The copy has put the word into the new half before the operator came there. */
CASE(a_word_that_a_copy_has_put_stands)
{
    for (int what = HAPAX_RESOLVE_COMPLETE; what <= HAPAX_RESOLVE_FAIL; what++) {
        struct halves h = fresh();
        struct hapax_op op = word((enum hapax_resolve)what);

        (void)claim_as(&h.of[OLD], 2, HAPAX_EXPIRED_HOLD);
        pass(&h, LEASE_US);
        op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
        (void)play_at(&h, 4, 1, LOSE_OP, op);
        h.of[NEW] = h.of[OLD];
        memset(&h.of[NEW].record.mark, 0, sizeof(h.of[NEW].record.mark));
        h.of[NEW].now_us -= 1; /* the READ of the new half comes first */
        assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    }
}

/* A copy that read before the word puts there what it has read, after it. The new half's clock is
 * behind, so that looks newer than the word. Once it is taken back the word stands. */
CASE(a_word_is_not_lost_by_what_a_copy_puts_there_late)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL), taken_back = word(HAPAX_RESOLVE_FORGET);
    struct hapax_record read;

    (void)claim_as(&h.of[OLD], 2, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    read = h.of[OLD].record;
    memset(&read.mark, 0, sizeof(read.mark));
    assert_int_equal(claim_as(&h.of[OLD], 3, HAPAX_EXPIRED_HOLD).verdict, HAPAX_UNKNOWN);
    op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
    assert_int_equal(play_at(&h, 4, 1, LOSE_OP, op).error, HAPAX_ERR_INDETERMINATE);
    pass(&h, 40 * SECOND);
    h.of[NEW].record = read;
    h.of[NEW].present = true;
    h.of[NEW].now_us -= 35 * SECOND;
    assert_int_equal(play(&h, op).error, HAPAX_ERR_INDETERMINATE);
    taken_back.token.bytes[0] ^= 1;
    taken_back.force = true;
    assert_int_equal(play_after(&h, 4, NEW, taken_back, op).verdict, HAPAX_OK);
    assert_false(h.of[NEW].present);
    assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_FAILED);
}

/* The operator has seen the old half's record. Then a door with the new half begins an attempt.
 * That one is shown from then on. The word does not end it, neither when it is given nor when it
 * is repeated. */
CASE(a_word_is_not_about_what_began_after_the_look)
{
    for (int repeats = 0; repeats <= 1; repeats++) {
        struct halves h = fresh();
        struct hapax_op op = word(HAPAX_RESOLVE_FAIL), shown;

        (void)claim_as(&h.of[OLD], 2, HAPAX_EXPIRED_HOLD);
        pass(&h, LEASE_US);
        (void)claim_as(&h.of[OLD], 3, HAPAX_EXPIRED_HOLD);
        op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
        pass(&h, 3 * SECOND);
        if (repeats)
            (void)play_at(&h, 4, 1, LOSE_OP, op);
        (void)claim_as(&h.of[NEW], 4, HAPAX_EXPIRED_HOLD);
        pass(&h, LEASE_US);
        op = play(&h, op);
        assert_int_equal(op.verdict, repeats ? HAPAX_NO_VERDICT : HAPAX_LOST);
        assert_int_equal(op.error, repeats ? HAPAX_ERR_INDETERMINATE : HAPAX_ERR_NONE);
        assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_STARTED);
        shown = play(&h, op_of(HAPAX_OP_READ, 9));
        assert_int_equal(shown.record.updated_us, h.of[NEW].record.updated_us);
        op = word(HAPAX_RESOLVE_FAIL);
        op.token.bytes[0] ^= 1;
        op.if_updated_us = shown.record.updated_us;
        assert_int_equal(play(&h, op).verdict, HAPAX_OK);
        assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_FAILED);
        assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_FAILED);
    }
}

/* What nobody has judged is shown, whatever came to the other half since: an operator's word that
 * got no further, and retries whose claims were given back. */
CASE(what_is_unknown_is_shown_beside_a_newer_failure)
{
    for (int retries = 0; retries <= 1; retries++) {
        struct halves h = fresh();
        struct hapax_op op = op_m(HAPAX_OP_CLAIM), shown;

        op.on_expired = HAPAX_EXPIRED_HOLD;
        (void)play(&h, op);
        if (retries) {
            op = op_m(HAPAX_OP_FAIL);
            op.ran = true;
            (void)play(&h, op);
            (void)claim_as(&h.of[NEW], 4, HAPAX_EXPIRED_HOLD);
        }
        pass(&h, LEASE_US);
        for (int half = OLD + retries; half <= NEW; half++)
            (void)claim_as(&h.of[half], 3, HAPAX_EXPIRED_HOLD);
        pass(&h, 3 * SECOND);
        if (retries) {
            op = op_of(HAPAX_OP_CLAIM, 5);
            op.on_expired = HAPAX_EXPIRED_HOLD;
            assert_int_equal(play(&h, op).verdict, HAPAX_UNKNOWN);
        } else {
            (void)play_at(&h, 4, 1, LOSE_OP, word(HAPAX_RESOLVE_FAIL));
        }
        assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_FAILED);
        shown = play(&h, op_of(HAPAX_OP_READ, 9));
        assert_int_equal(shown.record.state, HAPAX_STATE_UNKNOWN);
        op = word(HAPAX_RESOLVE_FAIL);
        op.token.bytes[0] ^= 1;
        op.if_updated_us = shown.record.updated_us;
        assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    }
}

/* The other way round: a door with the old half has followed the word that came there. */
CASE(a_repeated_word_is_not_about_what_began_in_the_old_half_since)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_FAIL);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    for (int half = OLD; half <= NEW; half++)
        (void)claim_as(&h.of[half], 3, HAPAX_EXPIRED_HOLD);
    op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
    (void)play_at(&h, 4, 1, LOSE_OP, op);
    pass(&h, 3 * SECOND);
    assert_int_equal(claim_as(&h.of[OLD], 4, HAPAX_EXPIRED_HOLD).verdict, HAPAX_CLAIMED);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, op).verdict, HAPAX_LOST);
    assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_STARTED);
    assert_int_equal(play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us,
                     h.of[OLD].record.updated_us);
}

/* A door brings the operator's outcome over, and is about to complete it there. */
CASE(a_word_that_is_brought_over_is_not_lost)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_COMPLETE), door = op_m(HAPAX_OP_CLAIM);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    pass(&h, LEASE_US);
    op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
    (void)play_at(&h, 4, 1, LOSE_OP, op);
    pass(&h, SECOND);
    door.token.bytes[0] ^= 1;
    (void)play_at(&h, 4, 1, LOSE_OP, door);
    assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_STARTED);
    assert_int_equal(play(&h, op).error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(play(&h, door).verdict, HAPAX_COMPLETED);
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
}

/* The machines of a DynamoDB have clocks of their own. */
CASE(a_repeated_forced_word_allows_for_two_clocks)
{
    struct halves h = fresh();

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    (void)play_at(&h, 5, 1, LOSE_REPLY, forced(1));
    pass(&h, SECOND / 2);
    h.of[NEW].now_us -= SECOND; /* this machine is behind */
    (void)claim(&h.of[NEW], 3);
    h.of[NEW].now_us += SECOND;
    pass(&h, SECOND / 2);
    assert_int_equal(play(&h, forced(1)).verdict, HAPAX_LOST);
    assert_int_equal(run(&h.of[NEW], op_of(HAPAX_OP_RENEW, 3)).verdict, HAPAX_OK);
}

/* What a door has brought over without its body is not what the operator has given. */
CASE(an_outcome_without_its_body_is_another)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_COMPLETE), bare = op_m(HAPAX_OP_COMPLETE);

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    bare.outcome = op.outcome;
    bare.outcome.body_kept = false;
    bare.outcome.body = hapax_str(NULL);
    pass(&h, LEASE_US);
    assert_int_equal(play_after(&h, 4, NEW, bare, op).verdict, HAPAX_COMPLETED);
}

/* Another door goes ahead in the new store once the old one has the operator's word. */
CASE(an_operator_is_told_ok_only_by_both)
{
    for (int what = HAPAX_RESOLVE_COMPLETE; what <= HAPAX_RESOLVE_FORGET; what++) {
        struct halves h = fresh();
        struct hapax_op op;

        (void)play(&h, op_m(HAPAX_OP_CLAIM));
        pass(&h, LEASE_US);
        op = play_after(&h, 4, NEW, op_of(HAPAX_OP_CLAIM, 3), word((enum hapax_resolve)what));
        assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
        assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
        op = play(&h, word((enum hapax_resolve)what));
        assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
    }
}

/* The new half was completed when the operator looked, and another one had it run again before the
 * word came there. So the new half takes the word, and the old half does not answer. */
CASE(a_word_that_the_new_half_alone_has_is_not_unapplied)
{
    struct halves h = fresh();

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    (void)play(&h, op_m(HAPAX_OP_COMPLETE));
    h.other = word(HAPAX_RESOLVE_FAIL);
    h.other.token = op_of(HAPAX_OP_READ, 8).token;
    h.other.force = true;
    h.other_half = NEW;
    (void)run(&h.of[OLD], h.other);
    assert_int_equal(play_at(&h, 3, 2, OTHER, word(HAPAX_RESOLVE_COMPLETE)).error,
                     HAPAX_ERR_INDETERMINATE);
    assert_int_equal(h.of[NEW].record.outcome.status, 202);
    assert_int_equal(play(&h, word(HAPAX_RESOLVE_COMPLETE)).verdict, HAPAX_OK);
    assert_int_equal(h.of[OLD].record.outcome.status, 202);
}

/* The claim by which the outcome is brought over was granted, and no reply came. Its token is the
 * operator's, so the new store takes the next try for a repeat. */
CASE(a_repeated_word_brings_its_outcome_over)
{
    for (int gone = 0; gone <= 1; gone++) {
        struct halves h = fresh();
        struct hapax_op op = word(HAPAX_RESOLVE_COMPLETE), other = word(HAPAX_RESOLVE_FAIL);

        (void)claim_as(&h.of[OLD], 2, HAPAX_EXPIRED_HOLD);
        pass(&h, LEASE_US);
        op.if_updated_us = play(&h, op_of(HAPAX_OP_READ, 9)).record.updated_us;
        assert_int_equal(play_at(&h, 5, 1, LOSE_REPLY, op).error, HAPAX_ERR_INDETERMINATE);
        assert_int_equal(h.of[NEW].record.state, HAPAX_STATE_STARTED);
        other.token.bytes[0] ^= 1;
        other.force = true;
        if (gone)
            (void)run(&h.of[OLD], other);
        assert_int_equal(play(&h, op).verdict, gone ? HAPAX_LOST : HAPAX_OK);
        assert_int_equal(h.of[NEW].record.state,
                         gone ? HAPAX_STATE_STARTED : HAPAX_STATE_COMPLETED);
    }
}

/* What a door has completed in the new store stands, and the old store does not get another. */
CASE(an_operator_does_not_change_what_the_new_store_has_completed)
{
    struct halves h = fresh();

    (void)play(&h, op_m(HAPAX_OP_CLAIM));
    (void)complete(&h.of[NEW], 1);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, word(HAPAX_RESOLVE_COMPLETE)).verdict, HAPAX_COMPLETED);
    assert_int_equal(h.of[OLD].record.state, HAPAX_STATE_STARTED);
}

/* An import of any request is no one caller's. */
CASE(an_outcome_of_any_request_is_shown_from_the_old_store)
{
    struct halves h = fresh();
    struct hapax_op op;

    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    memset(&h.of[OLD].record.caller, HAPAX_ANY_BYTE, sizeof(h.of[OLD].record.caller));
    op = play(&h, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_int_equal(op.record.outcome.status, 200);
    op = op_of(HAPAX_OP_CLAIM, 3);
    op.caller.bytes[0] ^= 1;
    assert_int_equal(play(&h, op).verdict, HAPAX_COMPLETED);
    assert_int_equal(play(&h, op_of(HAPAX_OP_READ, 4)).verdict, HAPAX_FOUND);
    assert_false(h.of[NEW].present);
}

/* A door dies after the first half of bringing an outcome over. Under rerun that is no reason to
 * wait for an operator. */
CASE(bringing_an_outcome_over_does_not_hold_the_new_store)
{
    struct halves h = fresh();
    struct hapax_op op;

    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    op = play_at(&h, 4, 1, LOSE_OP, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.error, HAPAX_ERR_INDETERMINATE);
    pass(&h, LEASE_US);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_CLAIMED);
    /* The repeat of who still lives does not wait for the lease. */
    h = fresh();
    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    (void)play_at(&h, 4, 1, LOSE_OP, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
    /* What is under hold there already is completed all the same. */
    h = fresh();
    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    (void)claim_as(&h.of[NEW], 2, HAPAX_EXPIRED_HOLD);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
}

/* The new store will not run it again, so the old one's outcome stays. */
CASE(a_result_that_the_new_store_keeps_is_not_run_again)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 2);

    op.rerun_completed = true;
    (void)run(&h.of[OLD], op);
    (void)complete(&h.of[OLD], 2);
    (void)claim(&h.of[NEW], 2);
    (void)complete(&h.of[NEW], 2);
    op.token = op_m(HAPAX_OP_CLAIM).token;
    assert_int_equal(play(&h, op).verdict, HAPAX_COMPLETED);
    assert_int_equal(h.of[OLD].record.attempt, 1);
}

/* A door with the old store has completed it, as one that may be run again. */
static struct hapax_op rerun(struct halves *h)
{
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 2);

    *h = fresh();
    op.rerun_completed = true;
    (void)run(&h->of[OLD], op);
    (void)complete(&h->of[OLD], 2);
    op.token = op_of(HAPAX_OP_CLAIM, 3).token;
    return op;
}

/* A door that does not run it again shows it, and takes that from nobody. */
CASE(a_result_that_may_be_run_again_stays_one)
{
    const enum hapax_op_kind kinds[] = {HAPAX_OP_CLAIM, HAPAX_OP_READ};

    for (int i = 0; i < 2; i++) {
        struct halves h;
        struct hapax_op again = rerun(&h);

        assert_int_equal(play(&h, op_m(kinds[i])).record.outcome.status, 200);
        assert_int_equal(play(&h, again).verdict, HAPAX_CLAIMED);
        assert_true(h.of[OLD].record.reruns && h.of[NEW].record.reruns);
    }
}

/* An attempt has died there, which a door with the new half alone would follow by another. */
CASE(a_result_that_may_be_run_again_ends_what_died)
{
    struct halves h;
    struct hapax_op again = rerun(&h);

    (void)run(&h.of[NEW], again);
    pass(&h, LEASE_US);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 4).verdict, HAPAX_COMPLETED);
}

/* ---- a change of the secret ------------------------------------------------------------- */

/* What op_m() is under the old secret. */
static struct hapax_identity under_old(void)
{
    struct hapax_identity old;

    memset(&old, 0x77, sizeof(old));
    memset(&old.owner, 0, sizeof(old.owner));
    return old;
}

/* The op of a door with the old secret alone. */
static struct hapax_op op_o(enum hapax_op_kind kind, uint8_t who)
{
    const struct hapax_identity old = under_old();
    struct hapax_op op = op_of(kind, who);

    op.id = old.id;
    op.fingerprint = old.fingerprint;
    op.caller = old.caller;
    return op;
}

static struct hapax_op play_renamed(struct halves *h, struct hapax_op op)
{
    const struct hapax_identity old = under_old();

    op.old = &old;
    op = play(h, op);
    op.old = NULL;
    return op;
}

/* What a door with the old secret has stored is replayed to who asks by the new one, under the new
 * names; and from then on a door with the new secret has it. */
CASE(an_outcome_under_the_old_secret_comes_over)
{
    struct halves h = fresh();
    struct hapax_op op;

    (void)run(&h.of[OLD], op_o(HAPAX_OP_CLAIM, 2));
    (void)run(&h.of[OLD], op_o(HAPAX_OP_COMPLETE, 2));
    op = play_renamed(&h, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.verdict, HAPAX_COMPLETED);
    assert_memory_equal(&op.record.fingerprint, &op.fingerprint, sizeof(op.fingerprint));
    assert_memory_equal(&op.record.id, &op.id, sizeof(op.id));
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
}

/* Of another request under the same key nobody knows the new names: it is not brought over. */
CASE(another_request_stays_under_the_old_secret)
{
    struct halves h = fresh();
    struct hapax_op op = op_o(HAPAX_OP_CLAIM, 2);

    op.fingerprint.bytes[0] ^= 1;
    (void)run(&h.of[OLD], op);
    (void)run(&h.of[OLD], op_o(HAPAX_OP_COMPLETE, 2));
    assert_int_equal(play_renamed(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_MISMATCH);
    assert_int_equal(play_renamed(&h, op_m(HAPAX_OP_READ)).verdict, HAPAX_FOUND);
    assert_false(h.of[NEW].present);
}

/* An operator who knows the key does not know the request. The outcome stays in the old half, is
 * shown to the next request, and counts as left until it expires. */
CASE(an_outcome_of_an_operator_waits_for_its_request)
{
    struct halves h = fresh();
    struct hapax_op claim_op = op_o(HAPAX_OP_CLAIM, 2), resolve = op_m(HAPAX_OP_RESOLVE);
    struct hapax_record *record = &h.of[OLD].record;
    int64_t after_us = START - 60 * SECOND; /* since then all doors had both */

    claim_op.on_expired = HAPAX_EXPIRED_HOLD;
    (void)run(&h.of[OLD], claim_op);
    assert_true(hapax__pair_left(record, START, START));
    assert_false(hapax__pair_left(record, after_us, START));
    pass(&h, LEASE_US);
    resolve.resolve = HAPAX_RESOLVE_COMPLETE;
    memset(&resolve.fingerprint, 0, sizeof(resolve.fingerprint));
    assert_int_equal(play_renamed(&h, resolve).verdict, HAPAX_OK);
    assert_false(h.of[NEW].present);
    assert_true(hapax__pair_left(record, after_us, START + LEASE_US));
    assert_false(hapax__pair_left(record, after_us, record->expires_us));
    assert_int_equal(play_renamed(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_COMPLETED);
    assert_int_equal(claim(&h.of[NEW], 3).verdict, HAPAX_COMPLETED);
}

/* The new half was claimed to bring an outcome over, and no reply came. The outcome expires, and
 * the claim becomes one to run. Then it is kept for as long as was asked for, in both halves. */
CASE(a_claim_to_bring_over_may_become_one_to_run)
{
    struct halves h = fresh();
    struct hapax_op op = op_of(HAPAX_OP_CLAIM, 2);

    (void)run(&h.of[OLD], op);
    (void)run(&h.of[OLD], op_of(HAPAX_OP_COMPLETE, 2));
    pass(&h, 86400 * SECOND - SECOND / 2);
    op = play_at(&h, 4, 1, LOSE_REPLY, op_m(HAPAX_OP_CLAIM));
    assert_int_equal(op.verdict, HAPAX_NO_VERDICT);
    pass(&h, SECOND);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_CLAIMED);
    assert_int_equal(play(&h, op_m(HAPAX_OP_COMPLETE)).verdict, HAPAX_OK);
    assert_true(h.of[NEW].record.expires_us >= h.of[OLD].record.expires_us);
}

/* A flow looks before it claims, at a limit: without a token, so that it claims nothing by that.
 * Otherwise its claim would be kept for as long as the outcome that it looked at. */
CASE(a_look_claims_nothing)
{
    struct halves h = fresh();
    struct hapax_op op = op_m(HAPAX_OP_READ);

    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    pass(&h, 86400 * SECOND - 3 * SECOND);
    memset(&op.token, 0, sizeof(op.token));
    assert_int_equal(play_at(&h, 4, 1, LOSE_OP, op).verdict, HAPAX_FOUND);
    assert_false(h.of[NEW].present);
    pass(&h, 4 * SECOND);
    assert_int_equal(play(&h, op_m(HAPAX_OP_CLAIM)).verdict, HAPAX_CLAIMED);
    assert_int_equal(play(&h, op_m(HAPAX_OP_COMPLETE)).verdict, HAPAX_OK);
    assert_true(h.of[NEW].record.expires_us >= h.of[OLD].record.expires_us);
}

/* A door brings the operator's outcome to the new half before the operator does, who asked for just
 * that; also where the reply was lost, and under another secret. Another outcome there stands. */
CASE(an_outcome_that_a_door_has_brought_over_is_the_operator_s)
{
    for (int variant = 0; variant < 8; variant++) {
        bool renamed = variant & 1, lost = variant & 2, other = variant & 4;
        struct hapax_op op = word(HAPAX_RESOLVE_COMPLETE), done = op_m(HAPAX_OP_COMPLETE);
        struct hapax_op (*play_as)(struct halves *, struct hapax_op) =
            renamed ? play_renamed : play;
        struct halves h = fresh();

        done.outcome.status = other ? 201 : 202;
        (void)play_as(&h, op_m(HAPAX_OP_CLAIM));
        pass(&h, LEASE_US);
        h.at = 4;
        h.times = 1;
        h.fault = lost ? LOSE_OP : OTHER;
        h.other = done;
        h.other_half = NEW;
        if (lost) {
            assert_int_equal(play_as(&h, op).error, HAPAX_ERR_INDETERMINATE);
            (void)run(&h.of[NEW], done);
        }
        assert_int_equal(play_as(&h, op).verdict, other ? HAPAX_COMPLETED : HAPAX_OK);
        assert_int_equal(h.of[NEW].record.outcome.status, done.outcome.status);
    }
}

/* A copy puts what was there before a forced word, after the word has found nothing there. */
CASE(a_forced_word_that_the_new_half_does_not_have_is_not_known)
{
    struct halves h = fresh();
    struct hapax_op op = word(HAPAX_RESOLVE_COMPLETE), put = {.kind = HAPAX_OP_IMPORT};
    uint8_t encoded[512];

    (void)claim(&h.of[OLD], 2);
    (void)complete(&h.of[OLD], 2);
    put.id = h.of[OLD].record.id;
    put.outcome = h.of[OLD].record.outcome;
    h.of[OLD].record.outcome = (struct hapax_outcome){0};
    put.import = (struct hapax_span){encoded, hapax__record_size(&h.of[OLD].record)};
    assert_true(put.import.len <= sizeof(encoded));
    hapax__record_encode(encoded, &h.of[OLD].record);
    pass(&h, SECOND);
    op.force = true;
    assert_int_equal(play_after(&h, 3, NEW, put, op).error, HAPAX_ERR_INDETERMINATE);
    assert_int_equal(play(&h, op).verdict, HAPAX_OK);
    assert_int_equal(h.of[NEW].record.outcome.status, op.outcome.status);
}
