/* SPDX-License-Identifier: Apache-2.0
 *
 * Getting a claim: asked for, waited for, confirmed; given up on, it is chased and released. Of
 * those who ask the same only the head does. When it goes, its mates have their answer or one of
 * them is the next head, so nobody waits for a flow that is gone.
 *
 * A CLAIM given up on is repeated until its fate is known, rather than failed at once: a FAIL that
 * overtakes it finds nothing to release, and the operation is then held for a whole lease.
 */
#include "flow_parts.h"

#include "waiters.h"

#include <assert.h>

#define WAIT_PAUSE_MIN_US  (25 * US_PER_MS)
#define WAIT_PAUSE_MAX_US  (1000 * US_PER_MS)
#define CLAIM_PAUSE_MAX_US (500 * US_PER_MS)

/* ---- the others who asked the same --------------------------------------------------- */

static bool waits(const struct hapax__flow *f)
{
    return f->policy->wait_ms > 0;
}

static void wait_for(struct hapax__flow *f)
{
    hapax__flow_enter(f, HAPAX__FLOW_WAITING, f->begun_us + f->policy->wait_ms * US_PER_MS);
}

void hapax__flow_promote(struct hapax__flow *f, int64_t now_us)
{
    struct hapax__flow *next = hapax__waiters_leave(f);

    if (!next)
        return;
    next->tries = 0;
    next->seen |= f->seen;
    hapax__flow_ask_at(next, now_us);
    hapax__waiters_wake(next);
}

void hapax__flow_give_in_flight(struct hapax__flow *f, uint32_t attempt, int64_t lease_end_us,
                                int64_t now_us)
{
    int64_t left_us = lease_end_us > now_us ? lease_end_us - now_us : 0;

    f->attempt = attempt;
    f->fence = 0;
    f->answer.retry_after_ms = (left_us + US_PER_MS - 1) / US_PER_MS;
    hapax__flow_give(f, HAPAX_ANSWER_IN_FLIGHT);
}

void hapax__flow_mates_see_in_flight(struct hapax__flow *head, int64_t now_us)
{
    struct hapax__flow *next;

    for (struct hapax__flow *mate = head->next_mate; mate; mate = next) {
        next = mate->next_mate;
        if (mate->phase != HAPAX__FLOW_CLAIMING)
            continue;
        hapax__waiters_wake(mate);
        if (waits(mate)) {
            wait_for(mate);
            continue;
        }
        hapax__flow_give_in_flight(mate, head->attempt, head->lease_end_us, now_us);
        hapax__flow_over(mate, now_us);
    }
}

static bool is_stored(enum hapax_answer_kind kind)
{
    return kind == HAPAX_ANSWER_REPLAY || kind == HAPAX_ANSWER_GONE || kind == HAPAX_ANSWER_FAILED;
}

void hapax__flow_share(struct hapax__flow *head, enum hapax_answer_kind kind,
                       const struct hapax_outcome *outcome, int64_t now_us)
{
    struct hapax__flow *mate;

    while (head->head == head && (mate = head->next_mate)) {
        mate->attempt = head->attempt;
        mate->spent = head->spent;
        mate->fence = head->fence;
        mate->answer.differs = head->answer.differs;
        mate->answer.retry_after_ms = head->answer.retry_after_ms;
        mate->answer.recorded = is_stored(kind);
        mate->answer.outcome = *outcome;
        hapax__flow_give(mate, kind);
        hapax__flow_over(mate, now_us);
        hapax__waiters_wake(mate);
    }
}

static void ask_again(struct hapax__flow *head, int64_t now_us)
{
    if (head->ask == HAPAX__ASK_OUT)
        return;
    hapax__flow_ask_at(head, now_us);
    hapax__waiters_wake(head);
}

void hapax__flow_join(struct hapax__flow *f, int64_t now_us)
{
    struct hapax__flow *head = hapax__waiters_head(f->waiters, f);

    if (!head) {
        hapax__waiters_lead(f);
        hapax__flow_ask_at(f, now_us);
    } else if (head->phase == HAPAX__FLOW_CLAIMING) {
        hapax__waiters_follow(f, head);
    } else if (head->phase == HAPAX__FLOW_WAITING) {
        hapax__waiters_follow(f, head);
        ask_again(head, now_us); /* what the head knows may be a second old */
    } else if (waits(f)) {
        wait_for(f);
        hapax__waiters_follow(f, head);
    } else {
        hapax__flow_give_in_flight(f, head->attempt, head->lease_end_us, now_us);
        hapax__flow_over(f, now_us);
    }
}

/* ---- given up on --------------------------------------------------------------------- */

void hapax__flow_store_down(struct hapax__flow *f, enum hapax_error error)
{
    f->answer.error = error;
    f->answer.retry_after_ms = hapax__flow_repeatable(error) ? RETRY_AFTER_MS : -1;
    hapax__flow_give(f, HAPAX_ANSWER_STORE_DOWN);
}

void hapax__flow_chase(struct hapax__flow *f, int64_t now_us)
{
    hapax__flow_promote(f, now_us);
    if (f->ask != HAPAX__ASK_OUT && !f->ghost) {
        hapax__flow_over(f, now_us);
        return;
    }
    hapax__flow_enter(f, HAPAX__FLOW_CHASING, INT64_MAX);
    if (f->ask != HAPAX__ASK_OUT)
        hapax__flow_ask_at(f,
                           now_us + hapax__flow_pause_us(f, SAVE_PAUSE_MIN_US, SAVE_PAUSE_MAX_US));
}

void hapax__flow_give_up_claim(struct hapax__flow *f, enum hapax_error error, int64_t now_us)
{
    if (f->policy->on_store_error == HAPAX_STORE_OPEN && !f->head->seen &&
        hapax__flow_repeatable(error)) {
        hapax__flow_promote(f, now_us);
        f->unprotected = true;
        f->answer.error = error;
        hapax__flow_enter(f, HAPAX__FLOW_RUNNING, INT64_MAX);
        if (f->ask == HAPAX__ASK_DUE)
            f->ask = HAPAX__ASK_NONE;
        hapax__flow_set_due(f, HAPAX__FLOW_RUN);
        return;
    }
    hapax__flow_store_down(f, error);
    hapax__flow_chase(f, now_us);
}

/* ---- the store answered -------------------------------------------------------------- */

static void claim_failed(struct hapax__flow *f, int64_t now_us)
{
    enum hapax_error error = f->op.error;
    bool waiting = f->phase == HAPAX__FLOW_WAITING;

    f->ghost |= error == HAPAX_ERR_INDETERMINATE;
    f->answer.error = error;
    if (!hapax__flow_repeatable(error))
        hapax__flow_give_up_claim(f, error, now_us);
    else
        hapax__flow_ask_at(
            f, now_us + hapax__flow_pause_us(f, waiting ? WAIT_PAUSE_MIN_US : CLAIM_PAUSE_MIN_US,
                                             waiting ? WAIT_PAUSE_MAX_US : CLAIM_PAUSE_MAX_US));
}

static void told_in_flight(struct hapax__flow *f, int64_t now_us)
{
    int64_t left_us = f->op.record.lease_until_us - f->op.now_us;
    int64_t pause_us;

    f->attempt = f->op.record.attempt;
    f->lease_end_us = left_us > 0 ? now_us + left_us : now_us;
    hapax__flow_mates_see_in_flight(f, now_us);
    if (!waits(f)) {
        hapax__flow_give_in_flight(f, f->attempt, f->lease_end_us, now_us);
        hapax__flow_over(f, now_us);
        return;
    }
    if (f->phase != HAPAX__FLOW_WAITING)
        wait_for(f);
    pause_us = hapax__flow_pause_us(f, WAIT_PAUSE_MIN_US, WAIT_PAUSE_MAX_US);
    if (left_us > 0) /* else nobody knows when it ends */
        pause_us = hapax__least(pause_us, left_us + US_PER_MS);
    hapax__flow_ask_at(f, now_us + pause_us);
}

static void share_and_end(struct hapax__flow *f, enum hapax_answer_kind kind, int64_t now_us)
{
    const struct hapax_outcome *outcome = &f->op.record.outcome;

    if (kind != HAPAX_ANSWER_MISMATCH) { /* the record is another's, and none of its business */
        f->attempt = f->op.record.attempt;
        f->spent = f->op.record.spent;
        f->fence = f->op.record.fence;
    }
    f->answer.recorded = is_stored(kind);
    f->answer.outcome = *outcome;
    hapax__flow_share(f, kind, outcome, now_us);
    hapax__flow_end_with(f, kind, now_us);
}

void hapax__flow_told_claim(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_NO_VERDICT) {
        claim_failed(f, now_us);
        return;
    }
    f->ghost = false;
    f->seen = true;
    f->answer.differs = f->op.differs;
    switch (f->op.verdict) {
    case HAPAX_CLAIMED:
        hapax__flow_claimed(f, now_us);
        return;
    case HAPAX_IN_FLIGHT:
        told_in_flight(f, now_us);
        return;
    case HAPAX_COMPLETED:
        hapax__flow_replay(f, now_us);
        return;
    case HAPAX_FAILED:
        share_and_end(f, HAPAX_ANSWER_FAILED, now_us);
        return;
    case HAPAX_MISMATCH:
        share_and_end(f, HAPAX_ANSWER_MISMATCH, now_us);
        return;
    case HAPAX_UNKNOWN:
        share_and_end(f, HAPAX_ANSWER_UNKNOWN, now_us);
        return;
    default:
        assert(f->op.verdict == HAPAX_LOST);
        hapax__flow_answer_from_record(f, now_us);
    }
}

void hapax__flow_told_confirm(struct hapax__flow *f, int64_t now_us)
{
    bool lost = f->op.verdict == HAPAX_LOST;

    if (lost && f->reconciled && f->op.record.state == HAPAX_STATE_STARTED) {
        /* Whoever holds it: the hook's "no" was about those before. */
        hapax__flow_cannot_tell(f, now_us);
    } else if (lost || (f->op.verdict == HAPAX_OK && f->op.record.state == HAPAX_STATE_UNKNOWN)) {
        /* `unknown` has no lease: another door's hook may take it over while we would run. */
        hapax__flow_answer_from_record(f, now_us);
    } else if (f->op.verdict == HAPAX_OK) {
        f->attempt = f->op.record.attempt;
        f->spent = f->op.record.spent;
        f->fence = f->op.record.fence;
        f->stale = f->op.record.stale;
        hapax__flow_renewed(f);
        hapax__flow_start(f, now_us);
    } else if (hapax__flow_repeatable(f->op.error)) {
        f->answer.error = f->op.error;
        hapax__flow_ask_at(f, now_us +
                                  hapax__flow_pause_us(f, CLAIM_PAUSE_MIN_US, CLAIM_PAUSE_MAX_US));
    } else {
        hapax__flow_store_down(f, f->op.error);
        hapax__flow_over(f, now_us);
    }
}

void hapax__flow_told_chased(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_CLAIMED) {
        hapax__flow_enter(f, HAPAX__FLOW_RELEASING, INT64_MAX);
        hapax__flow_ask_at(f, now_us);
    } else if (f->op.verdict == HAPAX_NO_VERDICT && hapax__flow_repeatable(f->op.error)) {
        f->ghost |= f->op.error == HAPAX_ERR_INDETERMINATE;
        if (f->ghost)
            hapax__flow_ask_at(
                f, now_us + hapax__flow_pause_us(f, SAVE_PAUSE_MIN_US, SAVE_PAUSE_MAX_US));
        else
            hapax__flow_over(f, now_us);
    } else {
        hapax__flow_over(f, now_us);
    }
}

void hapax__flow_told_released(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.kind != HAPAX_OP_FAIL)
        hapax__flow_ask_at(f, now_us); /* what was under way when the claim was given up */
    else if (f->op.verdict == HAPAX_NO_VERDICT && hapax__flow_repeatable(f->op.error))
        hapax__flow_ask_at(f,
                           now_us + hapax__flow_pause_us(f, SAVE_PAUSE_MIN_US, SAVE_PAUSE_MAX_US));
    else
        hapax__flow_over(f, now_us);
}
