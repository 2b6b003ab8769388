/* SPDX-License-Identifier: Apache-2.0
 *
 * From the claim on: handler or hook starts, its lease is renewed, it ends, and its end is stored
 * and answered. With a claim it starts only while half of the lease is ahead, and an outcome is
 * answered as recorded only where the store took or showed it.
 *
 * An end waits for the RENEW that is out rather than overtake it: that one may say that the claim
 * is lost, and then the answer is the record's.
 */
#include "flow_parts.h"
#include "machine.h"

#include <assert.h>
#include <string.h>

/* ---- claimed, and until the handler ends --------------------------------------------- */

static int64_t lease_of(const struct hapax__flow *f)
{
    return f->policy->lease_ms * US_PER_MS;
}

static void plan_renewal(struct hapax__flow *f)
{
    int64_t at_us = f->lease_us + lease_of(f) / 3;

    if (at_us < f->run_until_us)
        hapax__flow_ask_at(f, at_us);
}

/* The handler may start only while half of its lease is still ahead. */
void hapax__flow_start(struct hapax__flow *f, int64_t now_us)
{
    if (now_us >= f->lease_us + lease_of(f) / 2) {
        f->phase = HAPAX__FLOW_CONFIRMING;
        hapax__flow_ask_at(f, now_us);
        return;
    }
    if (f->stale && hapax__flow_on_expired(f) == HAPAX_EXPIRED_RECONCILE) {
        hapax__flow_enter(f, HAPAX__FLOW_RECONCILING, f->run_until_us);
        hapax__flow_set_due(f, HAPAX__FLOW_RECONCILE);
    } else {
        hapax__flow_enter(f, HAPAX__FLOW_RUNNING, f->run_until_us);
        hapax__flow_set_due(f, HAPAX__FLOW_RUN);
    }
    plan_renewal(f);
}

/* A repeated CLAIM is answered with the lease of whichever copy of it was the first to land. */
void hapax__flow_claimed(struct hapax__flow *f, int64_t now_us)
{
    f->lease_end_us = f->asked_us + f->op.record.lease_until_us - f->op.now_us;
    f->lease_us = f->lease_end_us - lease_of(f);
    f->attempt = f->op.record.attempt;
    f->spent = f->op.record.spent;
    f->fence = f->op.record.fence;
    f->stale = f->op.record.stale;
    f->created_us = f->op.record.created_us;
    f->resolved = f->op.record.resolved_us > 0;
    f->run_until_us = now_us + f->policy->run_max_ms * US_PER_MS;
    f->limit_us = now_us + f->policy->timeout_ms * US_PER_MS;
    hapax__flow_mates_see_in_flight(f, now_us);
    hapax__flow_start(f, now_us);
}

void hapax__flow_renewed(struct hapax__flow *f)
{
    f->lease_us = f->asked_us;
    f->lease_end_us = f->lease_us + lease_of(f);
}

/* ---- it ended ------------------------------------------------------------------------ */

/* Who lost the claim has no answer of its own, so it waits for the store's as a claim does. */
static int64_t answer_by(const struct hapax__flow *f, int64_t now_us)
{
    return now_us + (f->lost ? f->policy->timeout_ms : f->policy->save_wait_ms) * US_PER_MS;
}

static void save(struct hapax__flow *f, int64_t now_us)
{
    hapax__flow_enter(f, HAPAX__FLOW_SAVING, answer_by(f, now_us));
    hapax__flow_ask_at(f, now_us);
    if (f->unprotected && !f->answered) {
        f->answer.outcome = f->outcome;
        f->answer.unprotected = true;
        hapax__flow_give(f, HAPAX_ANSWER_BYPASS);
    }
}

static void save_as(struct hapax__flow *f, enum hapax_op_kind kind, bool ran, bool as_unknown,
                    int64_t now_us)
{
    f->end.kind = kind;
    f->end.ran = ran;
    f->end.as_unknown = as_unknown;
    save(f, now_us);
}

static void read_first(struct hapax__flow *f, int64_t now_us)
{
    hapax__flow_enter(f, HAPAX__FLOW_READING, answer_by(f, now_us));
    hapax__flow_ask_at(f, now_us);
}

/* Our own end, which is not stored: marked, so that nobody relies on it. */
static void pass_on(struct hapax__flow *f, int64_t now_us)
{
    f->answer.outcome = f->outcome;
    f->answer.recorded = false;
    f->answer.unprotected = f->unprotected;
    hapax__flow_end_with(f, f->unprotected ? HAPAX_ANSWER_BYPASS : f->end.answer, now_us);
}

/* Nobody can tell what the handler did: the lease runs out, unless the record says more. */
static void leave_started(struct hapax__flow *f, int64_t now_us)
{
    if (hapax__flow_on_expired(f) == HAPAX_EXPIRED_HOLD)
        save_as(f, HAPAX_OP_FAIL, true, true, now_us);
    else if (f->lost || (f->policy->pass_token && !f->unprotected))
        read_first(f, now_us);
    else
        pass_on(f, now_us);
}

static void run_ended(struct hapax__flow *f, int64_t now_us)
{
    switch (f->answer.cls) {
    case HAPAX_CLASS_FINAL:
        save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        return;
    case HAPAX_CLASS_NOT_RUN:
        save_as(f, HAPAX_OP_FAIL, false, false, now_us);
        return;
    case HAPAX_CLASS_FAILED:
        if (f->policy->on_failed == HAPAX_FAILED_REPLAY)
            save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        else
            save_as(f, HAPAX_OP_FAIL, true, f->policy->on_failed == HAPAX_FAILED_HOLD, now_us);
        return;
    default:
        assert(f->answer.cls == HAPAX_CLASS_UNKNOWN);
        leave_started(f, now_us);
    }
}

void hapax__flow_cannot_tell(struct hapax__flow *f, int64_t now_us)
{
    f->outcome = (struct hapax_outcome){0};
    save_as(f, HAPAX_OP_FAIL, true, true, now_us);
    f->end.answer = HAPAX_ANSWER_UNKNOWN;
    f->answer.retry_after_ms = RETRY_AFTER_MS;
}

static enum hapax_answer_kind replay_of(const struct hapax_outcome *outcome)
{
    return outcome->body_kept ? HAPAX_ANSWER_REPLAY : HAPAX_ANSWER_GONE;
}

static void hook_ended(struct hapax__flow *f, int64_t now_us)
{
    enum hapax_class cls = f->answer.cls;

    f->answer.cls = (enum hapax_class)0;
    f->handled = false; /* the hook ended, the handler has not begun */
    if (f->lost) {
        read_first(f, now_us);
    } else if (cls == HAPAX_CLASS_FINAL) {
        save_as(f, HAPAX_OP_COMPLETE, false, false, now_us);
        f->end.answer = replay_of(&f->outcome);
    } else if (cls == HAPAX_CLASS_NOT_RUN) {
        f->reconciled = true;
        hapax__flow_enter(f, HAPAX__FLOW_CONFIRMING, now_us + f->policy->timeout_ms * US_PER_MS);
        hapax__flow_ask_at(f, now_us);
    } else {
        hapax__flow_cannot_tell(f, now_us);
    }
}

/* Handler or hook has ended and no RENEW is out any more. */
static void ended(struct hapax__flow *f, int64_t now_us)
{
    if (f->ask == HAPAX__ASK_OUT)
        return;
    f->ask = HAPAX__ASK_NONE;
    if (f->phase == HAPAX__FLOW_RECONCILING)
        hook_ended(f, now_us);
    else
        run_ended(f, now_us);
}

static void take_end(struct hapax__flow *f, enum hapax_class cls,
                     const struct hapax_outcome *outcome)
{
    assert(!f->handled && cls >= HAPAX_CLASS_FINAL && cls <= HAPAX_CLASS_UNKNOWN);
    f->handled = true;
    f->answer.cls = cls;
    f->outcome = *outcome;
}

void hapax__flow_handled(struct hapax__flow *f, enum hapax_class cls,
                         const struct hapax_outcome *outcome, int64_t now_us)
{
    take_end(f, cls, outcome);
    if (f->phase == HAPAX__FLOW_BYPASSING) {
        f->answer.outcome = *outcome;
        hapax__flow_end_with(f, HAPAX_ANSWER_BYPASS, now_us);
        return;
    }
    assert(f->phase == HAPAX__FLOW_RUNNING);
    /* Without a verdict there is nothing to wait for: the answer goes out, saving is a try. */
    if (f->unprotected && f->ask == HAPAX__ASK_OUT) {
        f->answer.outcome = *outcome;
        f->answer.unprotected = true;
        hapax__flow_give(f, HAPAX_ANSWER_BYPASS);
    }
    ended(f, now_us);
}

void hapax__flow_reconciled(struct hapax__flow *f, enum hapax_class cls,
                            const struct hapax_outcome *outcome, int64_t now_us)
{
    assert(f->phase == HAPAX__FLOW_RECONCILING);
    take_end(f, cls, outcome);
    ended(f, now_us);
}

/* ---- answering from the record ------------------------------------------------------- */

void hapax__flow_replay(struct hapax__flow *f, int64_t now_us)
{
    struct hapax_outcome *outcome = &f->op.record.outcome;

    f->attempt = f->op.record.attempt;
    f->fence = f->op.record.fence;
    f->answer.recorded = true;
    f->answer.retry_after_ms = -1;
    if (!f->policy->rerun_completed)
        hapax__flow_share(f, replay_of(outcome), outcome, now_us);
    if (!f->answered)
        f->answer.outcome = *outcome;
    hapax__flow_end_with(f, replay_of(outcome), now_us);
}

/* Once its record was forgotten, another request may have taken the id: that one's outcome is not
 * this one's to see, and for this one the record is gone. */
static enum hapax_state state_for(const struct hapax__flow *f, const struct hapax_record *record)
{
    const struct hapax__flow_request *r = &f->request;

    if (memcmp(&record->fingerprint, &r->fingerprint, sizeof(r->fingerprint)) != 0 ||
        memcmp(&record->caller, &r->caller, sizeof(r->caller)) != 0)
        return HAPAX_STATE_ABSENT;
    return record->state;
}

void hapax__flow_answer_from_record(struct hapax__flow *f, int64_t now_us)
{
    const struct hapax_record *record = &f->op.record;
    enum hapax_state state = state_for(f, record);
    int64_t left_us = record->lease_until_us - f->op.now_us;

    if (state == HAPAX_STATE_COMPLETED) {
        hapax__flow_replay(f, now_us);
        return;
    }
    if (f->answered) {
        hapax__flow_over(f, now_us);
        return;
    }
    if (state == HAPAX_STATE_UNKNOWN) {
        if (hapax__flow_on_expired(f) == HAPAX_EXPIRED_RECONCILE)
            f->answer.retry_after_ms = RETRY_AFTER_MS;
        hapax__flow_end_with(f, HAPAX_ANSWER_UNKNOWN, now_us);
    } else if (state == HAPAX_STATE_ABSENT && f->handled) {
        pass_on(f, now_us);
    } else {
        hapax__flow_give_in_flight(f, record->attempt, now_us + left_us, now_us);
        hapax__flow_over(f, now_us);
    }
}

/* Who lost the claim has no answer of its own to pass on. */
void hapax__flow_end_untold(struct hapax__flow *f, int64_t now_us)
{
    if (f->lost) {
        hapax__flow_store_down(f, hapax__flow_why_late(f));
        hapax__flow_over(f, now_us);
    } else {
        pass_on(f, now_us);
    }
}

/* ---- the store answered -------------------------------------------------------------- */

/* The claim was lost, others came and went, and then a late copy of the CLAIM landed: the token holds
 * the record again, but another attempt than the one this flow knows. */
static bool granted_anew(const struct hapax__flow *f)
{
    return f->op.record.fence != f->fence;
}

static void told_renewal(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_OK && !granted_anew(f)) {
        f->tries = 0;
        hapax__flow_renewed(f);
        plan_renewal(f);
    } else if (f->op.verdict != HAPAX_NO_VERDICT) {
        f->lost = true;
        hapax__flow_promote(f, now_us); /* what the others wait for is somewhere else now */
        if (!f->handled)
            hapax__flow_set_due(f, HAPAX__FLOW_ABANDON);
    } else if (now_us < f->run_until_us) {
        hapax__flow_ask_at(f,
                           now_us + hapax__flow_pause_us(f, CLAIM_PAUSE_MIN_US, lease_of(f) / 3));
    }
}

void hapax__flow_told_while_running(struct hapax__flow *f, int64_t now_us)
{
    /* Unprotected, it was the CLAIM that was given up: COMPLETE will tell whether it landed. */
    if (!f->unprotected)
        told_renewal(f, now_us);
    if (f->handled)
        ended(f, now_us);
}

void hapax__flow_told_read(struct hapax__flow *f, int64_t now_us)
{
    f->answer.error = f->op.error;
    if (f->op.verdict == HAPAX_NO_VERDICT && hapax__flow_repeatable(f->op.error)) {
        hapax__flow_ask_at(f,
                           now_us + hapax__flow_pause_us(f, SAVE_PAUSE_MIN_US, SAVE_PAUSE_MAX_US));
    } else if (f->op.verdict == HAPAX_NO_VERDICT) {
        hapax__flow_end_untold(f, now_us);
    } else if (f->lost || f->op.record.state == HAPAX_STATE_COMPLETED) {
        hapax__flow_answer_from_record(f, now_us);
    } else {
        pass_on(f, now_us);
    }
}

/* Where what stands is ours, the handler's own outcome, whole, is the answer. */
static void told_saved_ok(struct hapax__flow *f, int64_t now_us)
{
    bool completed = f->op.kind == HAPAX_OP_COMPLETE;
    const struct hapax_outcome *stored = &f->op.record.outcome;
    bool ours = !completed || hapax__outcome_same(stored, &f->op.outcome);

    if (completed && !f->policy->rerun_completed)
        hapax__flow_share(f, replay_of(stored), stored, now_us);
    if (!f->answered) {
        f->answer.recorded = true;
        f->answer.outcome = ours ? f->outcome : *stored;
    }
    hapax__flow_end_with(f, ours ? f->end.answer : replay_of(stored), now_us);
}

void hapax__flow_told_saved(struct hapax__flow *f, int64_t now_us)
{
    if (f->op.verdict == HAPAX_OK) {
        told_saved_ok(f, now_us);
    } else if (f->op.verdict == HAPAX_LOST) {
        hapax__flow_answer_from_record(f, now_us);
    } else if (f->op.error == HAPAX_ERR_TOO_BIG && f->op.outcome.body.len > 0) {
        f->bodiless = true;
        hapax__flow_ask_at(f, now_us);
    } else if (hapax__flow_repeatable(f->op.error)) {
        /* Repeated at least every third of the lease, it is its own RENEW. */
        f->answer.error = f->op.error;
        hapax__flow_ask_at(
            f, now_us + hapax__flow_pause_us(f, SAVE_PAUSE_MIN_US,
                                             hapax__least(SAVE_PAUSE_MAX_US, lease_of(f) / 3)));
    } else {
        f->answer.error = f->op.error;
        hapax__flow_end_untold(f, now_us);
    }
}
