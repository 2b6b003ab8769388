/* SPDX-License-Identifier: Apache-2.0
 *
 * The flow: how it begins, what it asks, what it does next, and when it has waited enough. How a
 * claim is got is in flow_claim.c, what follows from it in flow_run.c. Three rules shape all three:
 *   - stored first, sent second: no answer that a retry could contradict leaves before told();
 *   - no reply is no news: an op without a reply is repeated with the same token, never taken
 *     for "absent" or "not done", and a CLAIM given up on is chased until it can do no harm;
 *   - LOST after the handler ran means that somebody else's answer stands, or will.
 * One op is under way at a time, so a verdict always belongs to the last ASK.
 */
#include "flow_parts.h"

#include "waiters.h"

#include <assert.h>
#include <string.h>

/* ---- small things -------------------------------------------------------------------- */

/* Doubles with each try; up to half is taken off by the token's bytes, so that equal flows do not
 * march in step. */
int64_t hapax__flow_pause_us(struct hapax__flow *f, int64_t min_us, int64_t max_us)
{
    int64_t pause = min_us << (f->tries < 16 ? f->tries : 16);
    uint8_t spread = f->request.token.bytes[f->tries % sizeof(f->request.token.bytes)];

    f->tries++;
    pause = hapax__least(pause, max_us);
    return pause - pause * spread / 512;
}

void hapax__flow_ask_at(struct hapax__flow *f, int64_t at_us)
{
    assert(f->ask != HAPAX__ASK_OUT);
    f->ask = HAPAX__ASK_DUE;
    f->ask_at_us = at_us;
}

void hapax__flow_enter(struct hapax__flow *f, enum hapax__flow_phase phase, int64_t limit_us)
{
    f->phase = phase;
    f->limit_us = limit_us;
    f->tries = 0;
}

bool hapax__flow_repeatable(enum hapax_error error)
{
    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_INDETERMINATE ||
           error == HAPAX_ERR_NOMEM;
}

enum hapax_on_expired hapax__flow_on_expired(const struct hapax__flow *f)
{
    if (f->policy->on_expired == HAPAX_EXPIRED_RECONCILE && !f->request.reconciles)
        return HAPAX_EXPIRED_HOLD;
    return f->policy->on_expired;
}

void hapax__flow_set_due(struct hapax__flow *f, enum hapax__flow_do due)
{
    assert(f->due == HAPAX__FLOW_PAUSE);
    f->due = due;
}

/* What FAIL adds to the record's, or whoever takes over what was left started. */
static uint32_t spent_of(const struct hapax__flow *f, enum hapax_answer_kind kind)
{
    bool ran = f->answer.cls == HAPAX_CLASS_FAILED || f->answer.cls == HAPAX_CLASS_UNKNOWN;

    switch (kind) {
    case HAPAX_ANSWER_FRESH:
        return f->spent + ran;
    case HAPAX_ANSWER_FAILED:
    case HAPAX_ANSWER_UNKNOWN:
        return f->spent;
    default:
        return 0;
    }
}

void hapax__flow_give(struct hapax__flow *f, enum hapax_answer_kind kind)
{
    assert(!f->answered);
    f->answered = true;
    f->answer.kind = kind;
    f->answer.attempt = f->attempt;
    f->answer.spent = spent_of(f, kind);
    f->answer.fence = f->fence;
    hapax__flow_set_due(f, HAPAX__FLOW_ANSWER);
}

void hapax__flow_over(struct hapax__flow *f, int64_t now_us)
{
    hapax__flow_promote(f, now_us);
    f->phase = HAPAX__FLOW_OVER;
    if (f->ask == HAPAX__ASK_DUE)
        f->ask = HAPAX__ASK_NONE;
}

void hapax__flow_end_with(struct hapax__flow *f, enum hapax_answer_kind kind, int64_t now_us)
{
    if (!f->answered)
        hapax__flow_give(f, kind);
    hapax__flow_over(f, now_us);
}

enum hapax_error hapax__flow_why_late(const struct hapax__flow *f)
{
    return f->answer.error != HAPAX_ERR_NONE ? f->answer.error : HAPAX_ERR_INDETERMINATE;
}

/* ---- begin --------------------------------------------------------------------------- */

void hapax__flow_begin(struct hapax__flow *f, const struct hapax_policy *policy,
                       struct hapax__waiters *waiters, const struct hapax__flow_request *request,
                       int64_t now_us)
{
    void *door = f->door;

    assert(now_us >= 0);
    memset(f, 0, sizeof(*f));
    f->door = door;
    f->policy = policy;
    f->waiters = waiters;
    f->request = *request;
    f->begun_us = now_us;
    f->answer.retry_after_ms = -1;
    f->end.answer = HAPAX_ANSWER_FRESH;
    hapax__flow_enter(f, HAPAX__FLOW_CLAIMING, now_us + policy->timeout_ms * US_PER_MS);
    if (request->key == HAPAX__KEY_BAD) {
        hapax__flow_end_with(f, HAPAX_ANSWER_BAD_KEY, now_us);
    } else if (request->key == HAPAX__KEY_NONE && policy->key == HAPAX_KEY_REQUIRED) {
        hapax__flow_end_with(f, HAPAX_ANSWER_MISSING_KEY, now_us);
    } else if (request->key == HAPAX__KEY_NONE) {
        hapax__flow_enter(f, HAPAX__FLOW_BYPASSING, INT64_MAX);
        hapax__flow_set_due(f, HAPAX__FLOW_RUN);
    } else if (request->too_large) {
        hapax__flow_end_with(f, HAPAX_ANSWER_TOO_LARGE, now_us);
    } else {
        hapax__flow_join(f, now_us);
    }
}

/* ---- what to ask --------------------------------------------------------------------- */

static void make_claim(struct hapax__flow *f)
{
    f->op.kind = HAPAX_OP_CLAIM;
    f->op.scope = f->request.scope;
    f->op.fingerprint = f->request.fingerprint;
    f->op.caller = f->request.caller;
    f->op.lease_ms = f->policy->lease_ms;
    f->op.retention_ms = f->policy->retention_ms;
    f->op.on_expired = hapax__flow_on_expired(f);
    f->op.attempts_max = f->policy->attempts_max;
    f->op.rerun_completed = f->policy->rerun_completed;
}

static bool body_fits(const struct hapax__flow *f)
{
    return f->outcome.body_kept && !f->bodiless && f->outcome.body.len <= f->policy->max_response;
}

static void make_end(struct hapax__flow *f)
{
    f->op.kind = f->end.kind;
    f->op.ran = f->end.ran;
    f->op.as_unknown = f->end.as_unknown;
    f->op.outcome = f->outcome;
    if (!body_fits(f)) {
        f->op.outcome.body_kept = false;
        f->op.outcome.body = (struct hapax_span){NULL, 0};
    }
}

static void make_op(struct hapax__flow *f)
{
    memset(&f->op, 0, sizeof(f->op));
    f->op.id = f->request.id;
    f->op.token = f->request.token;
    switch (f->phase) {
    case HAPAX__FLOW_CONFIRMING:
    case HAPAX__FLOW_RECONCILING:
    case HAPAX__FLOW_RUNNING:
        f->op.kind = HAPAX_OP_RENEW;
        f->op.lease_ms = f->policy->lease_ms;
        f->op.reconciled = f->reconciled;
        /* A hook's "no" speaks of the attempts before this one, and of no later one. */
        f->op.if_attempt = f->reconciled ? f->attempt : 0;
        break;
    case HAPAX__FLOW_READING:
        f->op.kind = HAPAX_OP_READ;
        break;
    case HAPAX__FLOW_SAVING:
        make_end(f);
        break;
    case HAPAX__FLOW_RELEASING:
        f->op.kind = HAPAX_OP_FAIL;
        break;
    default:
        assert(f->phase == HAPAX__FLOW_CLAIMING || f->phase == HAPAX__FLOW_WAITING ||
               f->phase == HAPAX__FLOW_CHASING);
        make_claim(f);
    }
}

static enum hapax__flow_do ask(struct hapax__flow *f, int64_t now_us)
{
    make_op(f);
    f->ask = HAPAX__ASK_OUT;
    f->asked_us = now_us;
    return HAPAX__FLOW_ASK;
}

/* ---- the store answered -------------------------------------------------------------- */

void hapax__flow_told(struct hapax__flow *f, int64_t now_us)
{
    assert(f->ask == HAPAX__ASK_OUT);
    assert((f->op.verdict == HAPAX_NO_VERDICT) == (f->op.error != HAPAX_ERR_NONE));
    f->ask = HAPAX__ASK_NONE;
    if (f->op.verdict != HAPAX_NO_VERDICT && !f->unprotected)
        f->answer.error = HAPAX_ERR_NONE; /* what was repeated has come through */
    switch (f->phase) {
    case HAPAX__FLOW_CLAIMING:
    case HAPAX__FLOW_WAITING:
        hapax__flow_told_claim(f, now_us);
        return;
    case HAPAX__FLOW_CONFIRMING:
        hapax__flow_told_confirm(f, now_us);
        return;
    case HAPAX__FLOW_RECONCILING:
    case HAPAX__FLOW_RUNNING:
        hapax__flow_told_while_running(f, now_us);
        return;
    case HAPAX__FLOW_READING:
        hapax__flow_told_read(f, now_us);
        return;
    case HAPAX__FLOW_SAVING:
        hapax__flow_told_saved(f, now_us);
        return;
    case HAPAX__FLOW_CHASING:
        hapax__flow_told_chased(f, now_us);
        return;
    case HAPAX__FLOW_RELEASING:
        hapax__flow_told_released(f, now_us);
        return;
    default:
        assert(f->phase == HAPAX__FLOW_OVER);
    }
}

/* ---- time ---------------------------------------------------------------------------- */

/* Nothing ran for a claim that is held: it is given back. */
static void release(struct hapax__flow *f, int64_t now_us)
{
    hapax__flow_promote(f, now_us);
    hapax__flow_enter(f, HAPAX__FLOW_RELEASING, INT64_MAX);
    if (f->ask != HAPAX__ASK_OUT)
        hapax__flow_ask_at(f, now_us);
}

static void answer_is_late(struct hapax__flow *f, int64_t now_us)
{
    f->limit_us = INT64_MAX;
    if (f->answered)
        return;
    if (f->lost || f->phase == HAPAX__FLOW_READING) {
        hapax__flow_end_untold(f, now_us);
        return;
    }
    f->answer.error = hapax__flow_why_late(f);
    f->answer.recorded = false;
    f->answer.outcome = f->outcome;
    hapax__flow_give(f, f->end.answer);
}

static void limit_reached(struct hapax__flow *f, int64_t now_us)
{
    switch (f->phase) {
    case HAPAX__FLOW_CLAIMING:
        hapax__flow_give_up_claim(f, hapax__flow_why_late(f), now_us);
        return;
    case HAPAX__FLOW_WAITING:
        hapax__flow_give_in_flight(f, f->head->attempt, f->head->lease_end_us, now_us);
        hapax__flow_chase(f, now_us);
        return;
    case HAPAX__FLOW_CONFIRMING:
        hapax__flow_store_down(f, hapax__flow_why_late(f));
        release(f, now_us);
        return;
    case HAPAX__FLOW_RECONCILING:
    case HAPAX__FLOW_RUNNING:
        /* Renewing ends here, and with it what others can expect of this attempt. */
        f->limit_us = INT64_MAX;
        hapax__flow_promote(f, now_us);
        return;
    default:
        assert(f->phase == HAPAX__FLOW_READING || f->phase == HAPAX__FLOW_SAVING);
        answer_is_late(f, now_us);
    }
}

void hapax__flow_stop(struct hapax__flow *f, int64_t now_us)
{
    switch (f->phase) {
    case HAPAX__FLOW_CLAIMING:
        hapax__flow_store_down(f, hapax__flow_why_late(f));
        hapax__flow_chase(f, now_us);
        return;
    case HAPAX__FLOW_WAITING:
    case HAPAX__FLOW_CONFIRMING:
        limit_reached(f, now_us);
        return;
    case HAPAX__FLOW_SAVING:
    case HAPAX__FLOW_CHASING:
    case HAPAX__FLOW_RELEASING:
        if (f->answered)
            hapax__flow_over(f, now_us);
        return;
    default:
        return;
    }
}

enum hapax__flow_do hapax__flow_next(struct hapax__flow *f, int64_t now_us)
{
    if (f->due == HAPAX__FLOW_PAUSE && f->phase != HAPAX__FLOW_OVER && now_us >= f->limit_us)
        limit_reached(f, now_us);
    if (f->due != HAPAX__FLOW_PAUSE) {
        enum hapax__flow_do due = f->due;

        f->due = HAPAX__FLOW_PAUSE;
        return due;
    }
    if (f->ask == HAPAX__ASK_DUE && now_us >= f->ask_at_us)
        return ask(f, now_us);
    if (f->phase == HAPAX__FLOW_OVER && f->ask != HAPAX__ASK_OUT) {
        assert(f->answered && !f->head && !f->ready);
        return HAPAX__FLOW_END;
    }
    f->wake_us = f->phase == HAPAX__FLOW_OVER ? INT64_MAX : f->limit_us;
    if (f->ask == HAPAX__ASK_DUE)
        f->wake_us = hapax__least(f->wake_us, f->ask_at_us);
    return HAPAX__FLOW_PAUSE;
}
