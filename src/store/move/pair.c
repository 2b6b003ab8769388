/* SPDX-License-Identifier: Apache-2.0
 *
 * The order of the ops. A claim is asked for in the old half first and then in the new one. So
 * every two doors that may be there at once share a half in which both claim. An end is stored in
 * the old half first, too: what the new half has completed, the old one had completed before,
 * unless an N door did it.
 *
 * Before a CLAIM, a RENEW with its token looks at the new half. It finds a claim that an earlier
 * try has left, the outcome that an N door has stored, or the claim of one that runs. So a claim
 * that cannot be granted takes none in the old half. Rejected: a READ, which cannot tell whose
 * claim it shows. Rejected: no look. The claim in the old half would be given back, and its token
 * would be LOST from then on, so whoever waits for an N door would wait no longer.
 */
#include "pair.h"

#include "base/time.h"
#include "core/machine.h"

#include <assert.h>
#include <string.h>

#define MIRROR_LEASE_MS 10000
#define NEVER_US        1 /* no record was written then */

int64_t hapax__pair_together_us = 2 * US_PER_S;

/* ---- asking and answering ------------------------------------------------------------ */

static void ask(struct hapax__pair *p, enum hapax__half half, enum hapax_op_kind kind,
                hapax__pair_then *then)
{
    p->half = half;
    p->sub = *p->op;
    p->sub.kind = kind;
    p->sub.if_attempt = 0;
    p->sub.if_updated_us = 0;
    p->sub.reconciled = false;
    /* Attempt and fence are those of both halves, to which no outcome of one can be bound. */
    p->sub.attempt = 0;
    p->sub.fence = 0;
    p->sub.sealed = NULL;
    p->sub.old = NULL;
    /* An outcome is brought over with its time. A half that does not know such times must grant
     * nothing. */
    p->sub.says_kept = true;
    if (p->op->old && half == HAPAX__HALF_OLD) {
        p->sub.id = p->op->old->id;
        p->sub.owner = p->op->old->owner;
        p->sub.fingerprint = p->op->old->fingerprint;
        p->sub.caller = p->op->old->caller;
    }
    p->then = then;
}

static struct hapax__pair_shown *shown_by(struct hapax__pair *p)
{
    return p->half == HAPAX__HALF_OLD ? &p->old : &p->new;
}

static void end(struct hapax__pair *p, enum hapax_verdict verdict,
                const struct hapax__pair_shown *shown)
{
    p->op->verdict = verdict;
    p->op->error = HAPAX_ERR_NONE;
    p->op->record = shown->record;
    p->op->now_us = shown->now_us;
    p->then = NULL;
}

static bool unapplied(enum hapax_error error)
{
    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_NOMEM;
}

/* applied: another op of this pair may have changed something. Then only a repeat can tell. */
static void end_error(struct hapax__pair *p, enum hapax_error error, bool applied)
{
    p->op->verdict = HAPAX_NO_VERDICT;
    p->op->error = applied && (unapplied(error) || error == HAPAX_ERR_UNSUPPORTED)
                       ? HAPAX_ERR_INDETERMINATE
                       : error;
    p->then = NULL;
}

static bool repeatable(enum hapax_error error)
{
    return unapplied(error) || error == HAPAX_ERR_INDETERMINATE;
}

static bool completed(const struct hapax__pair_shown *shown)
{
    return shown->record.state == HAPAX_STATE_COMPLETED;
}

static bool live(const struct hapax__pair_shown *shown)
{
    return shown->record.state == HAPAX_STATE_STARTED &&
           shown->now_us < shown->record.lease_until_us;
}

static bool same(const struct hapax_digest *recorded, const struct hapax_digest *asked)
{
    return memcmp(recorded, asked, sizeof(*asked)) == 0 || hapax__any(recorded);
}

static bool same_request(const struct hapax__pair *p, const struct hapax__pair_shown *shown)
{
    return same(&shown->record.fingerprint, &p->op->fingerprint) &&
           same(&shown->record.caller, &p->op->caller);
}

/* What both have granted: the earlier beginning, from which steps are kept, the shorter lease, the
 * greater count, and the mean of the fences. The mean changes with either of the two, so that a
 * flow sees a claim that was lost and granted anew in one half; and it is off by half of what the
 * clocks differ. */
static struct hapax__pair_shown both(const struct hapax__pair *p)
{
    const struct hapax_record *old = &p->old.record;
    struct hapax__pair_shown shown = p->new;
    struct hapax_record *r = &shown.record;
    int64_t left_us = old->lease_until_us - p->old.now_us;

    if (old->state == HAPAX_STATE_UNKNOWN) {
        r->state = HAPAX_STATE_UNKNOWN;
        r->lease_until_us = 0;
    } else if (r->state == HAPAX_STATE_STARTED) {
        r->lease_until_us = hapax__least(r->lease_until_us, shown.now_us + left_us);
    }
    r->created_us = hapax__least(r->created_us, shown.now_us - (p->old.now_us - old->created_us));
    r->hold |= old->hold;
    r->stale |= old->stale;
    r->attempt = old->attempt > r->attempt ? old->attempt : r->attempt;
    r->spent = old->spent > r->spent ? old->spent : r->spent;
    r->fence = r->fence / 2 + old->fence / 2 + (r->fence & old->fence & 1);
    if (r->resolved_us == 0)
        r->resolved_us = old->resolved_us;
    return shown;
}

/* ---- giving a claim back ------------------------------------------------------------- */

/* A FAIL whose answer is not known may land later, even after another. Then the token must not
 * claim again. */
static void told_given_back(struct hapax__pair *p)
{
    bool known = p->sub.verdict != HAPAX_NO_VERDICT;

    p->unheard |= !known && !unapplied(p->sub.error);
    if (!known && !p->gives_again && repeatable(p->sub.error)) {
        p->gives_again = true;
        ask(p, p->half, HAPAX_OP_FAIL, told_given_back);
    } else if (p->error != HAPAX_ERR_NONE) {
        end_error(p, p->error, false);
    } else if (!known && !p->unheard) {
        end_error(p, HAPAX_ERR_INDETERMINATE, true); /* asked again, it is given back then */
    } else {
        end(p, p->unheard ? HAPAX_LOST : p->verdict, &p->shown);
        p->op->differs = p->unheard ? HAPAX_DIFFERS_NOT : p->differs;
    }
}

/* Gives the claim in a half back, since the other half does not grant it, and answers what that
 * one says. */
static void give_back(struct hapax__pair *p, enum hapax__half half)
{
    p->verdict = p->sub.verdict;
    p->error = p->sub.error;
    p->differs = p->sub.differs;
    p->shown = *shown_by(p);
    p->gives_again = p->unheard = false;
    ask(p, half, HAPAX_OP_FAIL, told_given_back);
}

/* ---- bringing the new half to what the old one has completed ----------------------------- */

static bool keeps(const struct hapax__pair_shown *shown, const struct hapax_outcome *outcome)
{
    return completed(shown) && hapax__outcome_same(&shown->record.outcome, outcome);
}

/* The new half has completed. Where that is not what an operator gives, a forced word is asked
 * again: it is about what is there. */
static void end_resolved(struct hapax__pair *p)
{
    if (keeps(&p->new, &p->op->outcome))
        end(p, HAPAX_OK, &p->new);
    else if (p->op->force)
        end_error(p, HAPAX_ERR_INDETERMINATE, true);
    else
        end(p, HAPAX_COMPLETED, &p->new);
}

/* What an op answers once the new half shows what it has. */
static void end_mirrored(struct hapax__pair *p, enum hapax_verdict verdict)
{
    bool tombstone;

    switch (p->op->kind) {
    case HAPAX_OP_CLAIM:
        /* A tombstone begins in the new half once it has come there. */
        tombstone = verdict == HAPAX_COMPLETED && hapax__tombstone(&p->old.record, p->old.now_us);
        end(p, verdict, tombstone ? &p->old : &p->new);
        p->op->differs = p->sub.differs;
        return;
    case HAPAX_OP_READ:
        end(p, HAPAX_FOUND, &p->new);
        return;
    case HAPAX_OP_COMPLETE:
        /* The old half has stored this op's outcome, or another's. */
        end(p, p->verdict == HAPAX_OK && verdict == HAPAX_COMPLETED ? HAPAX_OK : HAPAX_LOST,
            &p->new);
        return;
    case HAPAX_OP_RESOLVE:
        if (p->sub.kind == HAPAX_OP_COMPLETE)
            end(p, HAPAX_OK, &p->new);
        else if (verdict == HAPAX_COMPLETED)
            end_resolved(p);
        else
            end_error(p, HAPAX_ERR_INDETERMINATE, true);
        return;
    default:
        end(p, HAPAX_LOST, &p->new);
    }
}

static void told_mirror(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_OK) {
        end_mirrored(p, HAPAX_COMPLETED);
    } else if (p->sub.error == HAPAX_ERR_TOO_BIG && p->sub.outcome.body_kept) {
        /* As a door does it whose own result is over the limit. */
        p->sub.outcome.body_kept = false;
        p->sub.outcome.body = hapax_str(NULL);
    } else {
        end_error(p, p->sub.verdict == HAPAX_LOST ? HAPAX_ERR_INDETERMINATE : p->sub.error, true);
    }
}

/* How long from now until then; 1 at least. */
static int64_t left_ms(int64_t until_us, int64_t now_us)
{
    return until_us > now_us ? (until_us - now_us + US_PER_MS - 1) / US_PER_MS : 1;
}

/* Where the flow has no claim in the new half, the outcome is brought by another token. Otherwise a
 * late copy of its completion could end a claim of the flow's own, which was granted once the old
 * record had expired. It is made of the flow's token, so that a repeat is known for one. */
static void set_mirror_token(struct hapax__pair *p)
{
    const struct hapax_span parts[] = {hapax_str("mirror"),
                                       {p->op->token.bytes, sizeof(p->op->token.bytes)}};
    struct hapax_digest digest;

    if (p->op->kind != HAPAX_OP_CLAIM || p->ours)
        return;
    hapax_digest(&digest, parts, 2);
    memcpy(p->sub.token.bytes, digest.bytes, sizeof(p->sub.token.bytes));
}

static void mirror(struct hapax__pair *p)
{
    const struct hapax_record *record = &p->old.record;
    int64_t until_us = hapax__shown_until(record);
    int64_t claimed = p->sub.record.attempt;

    ask(p, HAPAX__HALF_NEW, HAPAX_OP_COMPLETE, told_mirror);
    set_mirror_token(p);
    p->sub.outcome = record->outcome;
    p->sub.fingerprint = p->new.record.fingerprint;
    p->sub.caller = p->new.record.caller;
    p->sub.attempt = (uint32_t)claimed;
    p->sub.fence = p->new.record.fence;
    p->sub.kept_ms = record->expires_us > 0 ? left_ms(until_us, p->old.now_us) : 0;
    p->sub.tombstone_ms =
        record->expires_us > until_us && record->expires_us > p->old.now_us
            ? (record->expires_us - (until_us > p->old.now_us ? until_us : p->old.now_us)) /
                  US_PER_MS
            : 0;
}

static void claim_mirror(struct hapax__pair *p, enum hapax_on_expired on_expired);

static void told_mirror_claim(struct hapax__pair *p)
{
    switch (p->sub.verdict) {
    case HAPAX_CLAIMED:
        mirror(p);
        return;
    case HAPAX_NO_VERDICT:
        end_error(p, p->sub.error, true);
        return;
    case HAPAX_LOST:
        if (p->sub.record.state == HAPAX_STATE_UNKNOWN) /* its token completes it all the same */
            mirror(p);
        else
            end_mirrored(p, p->sub.verdict);
        return;
    case HAPAX_UNKNOWN:
        if (p->sub.on_expired == HAPAX_EXPIRED_RERUN)
            claim_mirror(p, HAPAX_EXPIRED_RECONCILE);
        else
            end_mirrored(p, p->sub.verdict);
        return;
    default:
        end_mirrored(p, p->sub.verdict);
    }
}

/* The outcome is known, so the claim of an attempt that died is granted like that of a hook that
 * says yes. Only `reconcile` sets `hold`, so it is asked for where there is `hold` already. */
static void claim_mirror(struct hapax__pair *p, enum hapax_on_expired on_expired)
{
    const struct hapax_record *record = &p->old.record;

    ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_mirror_claim);
    set_mirror_token(p);
    p->sub.owner = record->owner;
    p->sub.scope = record->scope;
    p->sub.what = record->what;
    p->sub.fingerprint = record->fingerprint;
    p->sub.caller = record->caller;
    p->sub.lease_ms = p->op->lease_ms > 0 ? p->op->lease_ms : MIRROR_LEASE_MS;
    /* The completion says how long it is kept. If that is not reached, and the old record expires
     * meanwhile, this claim becomes one to run: then it has the retention that was asked for. */
    if (record->expires_us == 0)
        p->sub.retention_ms = HAPAX_FOREVER_MS;
    else if (p->op->kind != HAPAX_OP_CLAIM)
        p->sub.retention_ms = left_ms(hapax__shown_until(record), p->old.now_us);
    p->sub.on_expired = on_expired;
    p->sub.attempts_max = 0;
    p->sub.rerun_completed = false;
    p->sub.outcome = (struct hapax_outcome){0};
}

/* A result that may be run again, of which the new half has shown that it knows nothing. This claim
 * would make it one that is replayed for good. With a claim to rerun, what another door has
 * completed there meanwhile would be lost. */
static bool may_rerun(const struct hapax__pair *p)
{
    return p->old.record.reruns && p->new.record.state == HAPAX_STATE_ABSENT &&
           (p->op->kind == HAPAX_OP_CLAIM || p->op->kind == HAPAX_OP_READ);
}

/* The old half is completed, and the new one may not be. What answers any request was imported, and
 * comes over by a copy alone: a claim would make it one caller's. Of another request nobody here
 * knows what it would be under the new secret. */
static void begin_mirror(struct hapax__pair *p)
{
    const struct hapax_record *record = &p->old.record;

    if (hapax__any(&record->fingerprint) || hapax__any(&record->caller) || may_rerun(p) ||
        (p->op->old && !same_request(p, &p->old))) {
        p->new = p->old;
        end_mirrored(p, HAPAX_COMPLETED);
        return;
    }
    claim_mirror(p, record->hold || p->new.record.hold ? HAPAX_EXPIRED_RECONCILE
                                                       : HAPAX_EXPIRED_RERUN);
}

/* ---- CLAIM --------------------------------------------------------------------------- */

static void told_old_completed(struct hapax__pair *p)
{
    end(p, HAPAX_COMPLETED, &p->new);
}

/* An N door has completed it: the old half gets that outcome, if it can be had just now. */
static void complete_old(struct hapax__pair *p)
{
    const struct hapax_record *record = &p->new.record;

    ask(p, HAPAX__HALF_OLD, HAPAX_OP_COMPLETE, told_old_completed);
    p->sub.outcome = record->outcome;
    if (record->expires_us > 0)
        p->sub.kept_ms = left_ms(hapax__shown_until(record), p->new.now_us);
}

static void told_new_claim(struct hapax__pair *p)
{
    struct hapax__pair_shown shown;

    if (p->sub.verdict == HAPAX_CLAIMED) {
        shown = both(p);
        end(p, HAPAX_CLAIMED, &shown);
    } else if (p->sub.verdict == HAPAX_COMPLETED) {
        complete_old(p);
    } else if (p->sub.verdict == HAPAX_NO_VERDICT && repeatable(p->sub.error)) {
        end_error(p, p->sub.error, true);
    } else {
        give_back(p, HAPAX__HALF_OLD);
    }
}

/* The old half does not grant the claim: one that an earlier try has left in the new half goes
 * back. */
static void refused_in_old(struct hapax__pair *p)
{
    if (p->ours) {
        give_back(p, HAPAX__HALF_NEW);
    } else {
        end(p, p->sub.verdict, &p->old);
        p->op->differs = p->sub.differs;
    }
}

/* A hybrid: store may answer IN_FLIGHT by another's lock, though an earlier try has left a claim in
 * the old half. A RENEW is answered by the record. */
static void told_old_renewed(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, p->ours);
    } else if (p->sub.verdict == HAPAX_OK && p->old.record.state == HAPAX_STATE_STARTED) {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_new_claim);
    } else {
        p->sub.verdict = HAPAX_IN_FLIGHT;
        p->old = p->shown;
        refused_in_old(p);
    }
}

static void told_old_claim(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_CLAIMED) {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_CLAIM, told_new_claim);
    } else if (p->sub.verdict == HAPAX_COMPLETED) {
        begin_mirror(p);
    } else if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, p->ours);
    } else if (p->sub.verdict == HAPAX_IN_FLIGHT) {
        p->shown = p->old;
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_RENEW, told_old_renewed);
    } else {
        refused_in_old(p);
    }
}

/* Another runs in the new half. What an earlier try may have claimed in the old one goes back. */
static void told_old_look(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
        return;
    }
    if (p->sub.verdict != HAPAX_OK && completed(&p->old) && same_request(p, &p->old) &&
        !p->op->rerun_completed) {
        begin_mirror(p); /* an earlier try may have begun that */
        return;
    }
    if (p->sub.verdict != HAPAX_OK) {
        end(p, HAPAX_IN_FLIGHT, &p->new);
        return;
    }
    p->half = HAPAX__HALF_NEW;
    p->sub.verdict = HAPAX_IN_FLIGHT;
    give_back(p, HAPAX__HALF_OLD);
}

static void told_look(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
        return;
    }
    p->ours = p->sub.verdict == HAPAX_OK;
    if (!p->ours && same_request(p, &p->new) && completed(&p->new) &&
        !(p->op->rerun_completed && p->new.record.reruns))
        end(p, HAPAX_COMPLETED, &p->new);
    else if (!p->ours && same_request(p, &p->new) && live(&p->new))
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_RENEW, told_old_look);
    else
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_CLAIM, told_old_claim);
}

/* ---- RENEW --------------------------------------------------------------------------- */

/* LOST in the old half. What that has completed is shown only once the new one has it. */
static void lost_in_old(struct hapax__pair *p)
{
    if (completed(&p->old))
        begin_mirror(p);
    else
        end(p, HAPAX_LOST, &p->old);
}

static void told_new_renewal(struct hapax__pair *p)
{
    struct hapax__pair_shown shown;

    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, true);
    } else if (p->sub.verdict == HAPAX_LOST) {
        end(p, HAPAX_LOST, &p->new);
    } else {
        shown = both(p);
        end(p, HAPAX_OK, &shown);
    }
}

static void told_old_renewal(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
    } else if (p->sub.verdict == HAPAX_LOST) {
        lost_in_old(p);
    } else {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RENEW, told_new_renewal);
        p->sub.reconciled = p->op->reconciled;
        p->sub.if_attempt = p->op->if_attempt ? p->new.record.attempt : 0;
    }
}

/* A hook's "no" is about one attempt, whose number differs from half to half: they are asked
 * first. The fence tells whether it is that attempt in both. */
static void told_new_attempt(struct hapax__pair *p)
{
    struct hapax__pair_shown shown;

    if (p->sub.verdict != HAPAX_OK) {
        told_new_renewal(p);
        return;
    }
    shown = both(p);
    if (shown.record.attempt != p->op->if_attempt ||
        (p->op->fence != 0 && shown.record.fence != p->op->fence)) {
        end(p, HAPAX_LOST, &shown);
        return;
    }
    ask(p, HAPAX__HALF_OLD, HAPAX_OP_RENEW, told_old_renewal);
    p->sub.reconciled = p->op->reconciled;
    p->sub.if_attempt = p->old.record.attempt;
}

static void told_old_attempt(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_OK)
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RENEW, told_new_attempt);
    else
        told_old_renewal(p);
}

/* ---- COMPLETE ------------------------------------------------------------------------ */

static void told_new_completion(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, true);
    else if (p->sub.verdict == HAPAX_OK)
        end(p, HAPAX_OK, &p->new);
    else if (completed(&p->new) || live(&p->new))
        end(p, HAPAX_LOST, &p->new); /* an N door's attempt goes on, or has ended */
    else
        begin_mirror(p); /* nobody has that claim, and the outcome is known */
}

static void told_old_completion(struct hapax__pair *p)
{
    const struct hapax_outcome *stored = &p->old.record.outcome, *asked = &p->op->outcome;

    p->verdict = p->sub.verdict;
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
    } else if (p->sub.verdict == HAPAX_LOST) {
        lost_in_old(p);
    } else {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_COMPLETE, told_new_completion);
        /* What is stored stands; but what was too big for the new half comes once more, without
         * its body. */
        if (asked->body_kept || stored->status != asked->status)
            p->sub.outcome = *stored;
    }
}

/* ---- FAIL ---------------------------------------------------------------------------- */

static void told_new_failure(struct hapax__pair *p)
{
    bool lost = p->verdict == HAPAX_LOST; /* in the old half */

    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, true);
    else if (p->sub.verdict == HAPAX_LOST && (!lost || completed(&p->new)))
        end(p, HAPAX_LOST, &p->new);
    else
        end(p, p->verdict, lost ? &p->old : &p->new);
}

static void told_old_failure(struct hapax__pair *p)
{
    p->verdict = p->sub.verdict;
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else if (p->sub.verdict == HAPAX_LOST && completed(&p->old))
        begin_mirror(p);
    else
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_FAIL, told_new_failure);
}

/* ---- READ ---------------------------------------------------------------------------- */

/* How much is known: the half that knows more is shown. */
static int rank(const struct hapax__pair_shown *shown)
{
    switch (shown->record.state) {
    case HAPAX_STATE_COMPLETED:
        return 5;
    case HAPAX_STATE_STARTED:
        return live(shown) ? 4 : 2;
    case HAPAX_STATE_UNKNOWN:
        return 3;
    case HAPAX_STATE_FAILED:
        return hapax__unbound(&shown->record) ? 0 : 1;
    default:
        return -1;
    }
}

/* Whether a half has an attempt, whose result nobody knows yet, that began after that time of the
 * other half's clock. Its fence is about the time of its claim, and a door that claims in both does
 * so at once. Of a failure the fence says less: a claim that was given back leaves one, and an
 * operator's word does. The write that was named itself is not after it. */
static bool begun_after(const struct hapax__pair_shown *shown,
                        const struct hapax__pair_shown *other, int64_t other_us)
{
    int64_t age_us = shown->now_us - (int64_t)shown->record.fence;

    return rank(shown) > 1 && other_us > 0 && shown->record.updated_us != other_us &&
           age_us + hapax__pair_together_us < other->now_us - other_us;
}

/* What is over in one half is not shown before an attempt of the other that began after it, and
 * whose result nobody knows: an operator must see that one. Of an attempt that has not completed,
 * the greater number is shown, as of both(). Otherwise a later one would have the number of an
 * earlier one, where another half is shown by then. A half where that has failed does not count:
 * the other may have gone on by itself since. */
static struct hapax__pair_shown known_best(const struct hapax__pair *p)
{
    const struct hapax__pair_shown *best = rank(&p->old) > rank(&p->new) ? &p->old : &p->new;
    const struct hapax__pair_shown *other = best == &p->old ? &p->new : &p->old;
    struct hapax__pair_shown shown;

    if (!live(best) && !completed(best) && begun_after(other, best, best->record.updated_us)) {
        other = best;
        best = best == &p->old ? &p->new : &p->old;
    }
    shown = *best;
    if (!completed(best) && (rank(other) == rank(best) || rank(other) > 1) &&
        other->record.attempt > shown.record.attempt)
        shown.record.attempt = other->record.attempt;
    return shown;
}

static bool has_token(const struct hapax_op *op)
{
    static const struct hapax_token none;

    return memcmp(&op->token, &none, sizeof(none)) != 0;
}

/* A READ without a token changes nothing: an operator's, or a flow's that may claim later. */
static void told_old_read(struct hapax__pair *p)
{
    struct hapax__pair_shown shown;

    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
        return;
    }
    if (completed(&p->old) && !completed(&p->new) && has_token(p->op)) {
        begin_mirror(p);
        return;
    }
    shown = known_best(p);
    end(p, shown.record.state == HAPAX_STATE_ABSENT ? HAPAX_ABSENT : HAPAX_FOUND, &shown);
}

static void told_new_read(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else if (completed(&p->new))
        end(p, HAPAX_FOUND, &p->new);
    else
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_READ, told_old_read);
}

/* ---- RESOLVE ------------------------------------------------------------------------- */

/* The new half says OK, and this is no repeat that meets the claim by which an earlier try has
 * begun to bring its outcome over. */
static bool resolved(const struct hapax__pair *p)
{
    return p->sub.verdict == HAPAX_OK &&
           (p->op->resolve != HAPAX_RESOLVE_COMPLETE || completed(&p->new));
}

/* To a new half that has nothing a FAIL or a FORGET says nothing: the next attempt may run. Under
 * another secret an outcome comes over with its next request, which alone knows its names there. */
static void told_new_resolve(struct hapax__pair *p)
{
    bool changed = p->verdict == HAPAX_OK; /* the old half */
    bool completes = p->op->resolve == HAPAX_RESOLVE_COMPLETE, done = resolved(p);

    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, true);
    else if (changed && completes && p->sub.verdict == HAPAX_COMPLETED)
        end_resolved(p);
    else if (!p->op->old && changed && completes && !done && completed(&p->old))
        begin_mirror(p);
    else if (p->sub.verdict == HAPAX_ABSENT)
        end(p, p->verdict, &p->old);
    else if (!done && (changed || p->sub.verdict == HAPAX_OK))
        end_error(p, HAPAX_ERR_INDETERMINATE, true);
    else
        end(p, p->sub.verdict, &p->new);
}

/* A RESOLVE of a half, which names what that half has shown, where the operator named anything. */
static void ask_resolve(struct hapax__pair *p, enum hapax__half half, hapax__pair_then *then)
{
    const struct hapax_record *record = half == HAPAX__HALF_OLD ? &p->old.record : &p->new.record;

    ask(p, half, HAPAX_OP_RESOLVE, then);
    p->sub.if_attempt = p->op->if_attempt ? record->attempt : 0;
    if (record->state == HAPAX_STATE_ABSENT && (p->op->if_attempt || p->op->if_updated_us))
        p->sub.if_updated_us = NEVER_US;
    else if (p->op->if_updated_us)
        p->sub.if_updated_us = record->updated_us;
}

static void told_old_resolve(struct hapax__pair *p)
{
    p->verdict = p->sub.verdict;
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
    } else if (p->sub.verdict == HAPAX_OK || p->sub.verdict == HAPAX_ABSENT) {
        ask_resolve(p, HAPAX__HALF_NEW, told_new_resolve);
    } else {
        end(p, p->sub.verdict, &p->old);
    }
}

/* As above, once the new half has taken this op's word. */
static void told_old_too(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, true);
    else
        told_old_resolve(p);
}

/* The new half has this op's outcome. It is this op's if an earlier try has stored it in the old
 * half, and somebody has brought it over since. */
static void told_old_same(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else
        end(p, p->sub.verdict == HAPAX_OK ? HAPAX_OK : HAPAX_COMPLETED, &p->new);
}

/* The new half was completed. That stands, unless an earlier try of this op has done it, or it has
 * changed since. */
static void told_new_completed(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
    } else if (p->sub.verdict == HAPAX_OK) {
        ask_resolve(p, HAPAX__HALF_OLD, told_old_too);
    } else if (p->op->resolve == HAPAX_RESOLVE_COMPLETE && keeps(&p->new, &p->op->outcome)) {
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_RESOLVE, told_old_same);
        p->sub.if_updated_us = NEVER_US;
    } else {
        end(p, p->sub.verdict, &p->new);
    }
}

static void told_new_repeat(struct hapax__pair *p)
{
    struct hapax__pair_shown best = known_best(p);

    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else if (resolved(p))
        end(p, HAPAX_OK, &p->new);
    else
        end(p, HAPAX_LOST, &best);
}

/* An import has put it there, and since then nothing has happened in either half. */
static bool same_version(const struct hapax_record *old, const struct hapax_record *new)
{
    return old->state == new->state && old->created_us == new->created_us &&
           old->updated_us == new->updated_us && old->fence == new->fence;
}

/* Perhaps a copy has put it there, which had read it before this op's word, and nobody has claimed
 * since. Then its times are of the other clock, and the copy takes it back. */
static bool may_be_put(const struct hapax_record *old, const struct hapax_record *new)
{
    return old->created_us == new->created_us && old->attempt >= new->attempt &&
           old->fence > new->fence;
}

/* The old half has this op's word from an earlier try, and the new half was written since: by that
 * try, or by an N door, whose attempt this word is not about. Where that is not sure, as the
 * attempt began before the word, the operator has to look again. */
static void told_later(struct hapax__pair *p)
{
    struct hapax__pair_shown best = known_best(p);

    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else if (p->op->resolve == HAPAX_RESOLVE_COMPLETE && completed(&p->new))
        end_resolved(p);
    else if (p->sub.verdict == HAPAX_OK || p->sub.verdict == HAPAX_ABSENT ||
             p->op->resolve == HAPAX_RESOLVE_COMPLETE)
        told_new_resolve(p); /* an outcome of the old half's comes over in any case */
    else if (same_version(&p->old.record, &p->new.record))
        end(p, HAPAX_OK, &p->new);
    else if (!p->later || may_be_put(&p->old.record, &p->new.record))
        end_error(p, HAPAX_ERR_INDETERMINATE, true);
    else
        end(p, HAPAX_LOST, &best);
}

/* The operator names what a READ has shown, which is that of one half. */
static bool names(const struct hapax_op *op, const struct hapax_record *record)
{
    return record->state == HAPAX_STATE_ABSENT ||
           ((op->if_attempt == 0 || op->if_attempt == record->attempt) &&
            (op->if_updated_us == 0 || op->if_updated_us == record->updated_us));
}

/* A claim that one half alone has granted so far, and whose number the other half has given before:
 * the operator may have named that one. */
static bool between(const struct hapax__pair_shown *claimed, const struct hapax__pair_shown *other)
{
    return live(claimed) && !live(other) && claimed->record.attempt <= other->record.attempt;
}

/* Two claims, of which the operator has seen one: a door that claims in both does so at once. The
 * fence of a claim is the time when that was granted. */
static bool apart(const struct hapax__pair *p)
{
    int64_t old_us = p->old.now_us - (int64_t)p->old.record.fence;
    int64_t new_us = p->new.now_us - (int64_t)p->new.record.fence;

    return live(&p->old) && live(&p->new) &&
           (old_us > new_us + hapax__pair_together_us || new_us > old_us + hapax__pair_together_us);
}

static bool names_another(const struct hapax__pair *p)
{
    const struct hapax__pair_shown best = known_best(p);

    return !names(p->op, &best.record) ||
           (p->op->force && p->op->if_attempt &&
            (between(&p->old, &p->new) || between(&p->new, &p->old) || apart(p)));
}

static void resolve_named(struct hapax__pair *p)
{
    if (!p->op->force && (live(&p->old) || live(&p->new))) {
        end(p, HAPAX_IN_FLIGHT, live(&p->new) ? &p->new : &p->old);
    } else if (!p->op->force && completed(&p->new)) {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RESOLVE, told_new_completed);
    } else {
        ask_resolve(p, HAPAX__HALF_OLD, told_old_resolve);
    }
}

/* An earlier try of this op may have changed the record that the operator named: in the old half,
 * or in the new one where that alone has it. */
static void told_old_repeat(struct hapax__pair *p)
{
    bool repeats = p->sub.verdict == HAPAX_OK;

    p->verdict = p->sub.verdict;
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
    } else if (repeats && !p->later && !begun_after(&p->new, &p->old, p->op->if_updated_us)) {
        told_old_resolve(p);
    } else if (repeats || names_another(p)) {
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RESOLVE, repeats ? told_later : told_new_repeat);
        p->sub.if_updated_us = NEVER_US;
    } else {
        resolve_named(p);
    }
}

/* The new half was asked first, so an age there that is not less is surely not less, by one clock.
 * A forced word may end what runs, so it allows for two. */
static bool written_later(const struct hapax__pair *p)
{
    int64_t old_us = p->old.now_us - p->old.record.updated_us;

    return p->old.record.state != HAPAX_STATE_ABSENT &&
           p->new.now_us - p->new.record.updated_us <
               old_us + (p->op->force ? hapax__pair_together_us : 0);
}

static void told_old_state(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT) {
        end_error(p, p->sub.error, false);
        return;
    }
    p->later = written_later(p);
    if (names_another(p) || (p->op->if_attempt && p->later)) {
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_RESOLVE, told_old_repeat);
        p->sub.if_updated_us = NEVER_US;
    } else {
        resolve_named(p);
    }
}

static void told_new_state(struct hapax__pair *p)
{
    if (p->sub.verdict == HAPAX_NO_VERDICT)
        end_error(p, p->sub.error, false);
    else
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_READ, told_old_state);
}

/* ---- what the new half knows --------------------------------------------------------- */

/* An import takes the beginning from the other clock as it is. */
static bool begun_with(const struct hapax__pair_shown *old, const struct hapax__pair_shown *new)
{
    int64_t later_us = new->record.created_us - old->record.created_us - hapax__pair_together_us;

    return later_us <= 0 || later_us <= new->now_us - old->now_us;
}

/* What is known of attempts that are over, and since when there are any. */
static bool covers_past(const struct hapax__pair_shown *old_shown,
                        const struct hapax__pair_shown *new_shown)
{
    const struct hapax_record *old = &old_shown->record, *new = &new_shown->record;

    return (new->hold || !old->hold) && (new->stale || !old->stale) && new->spent >= old->spent &&
           (new->resolved_us || !old->resolved_us) &&
           (hapax__unbound(old) || (!hapax__unbound(new) && begun_with(old_shown, new_shown)));
}

bool hapax__pair_covers(const struct hapax__pair_shown *old, const struct hapax__pair_shown *new,
                        int64_t since_us)
{
    if (old->record.state == HAPAX_STATE_ABSENT || completed(new) ||
        same_version(&old->record, &new->record))
        return true;
    if (old->record.created_us > since_us && !completed(old))
        return true;
    if (new->record.state == HAPAX_STATE_ABSENT)
        return hapax__unbound(&old->record);
    switch (old->record.state) {
    case HAPAX_STATE_COMPLETED:
        return false;
    case HAPAX_STATE_UNKNOWN:
        return new->record.state == HAPAX_STATE_UNKNOWN;
    case HAPAX_STATE_STARTED:
        /* An older claim is of an O door, or may be: the new half knows nothing of it. */
        return old->record.fence > (uint64_t)since_us && covers_past(old, new);
    default:
        return covers_past(old, new);
    }
}

bool hapax__pair_resolved(const struct hapax_record *put, const struct hapax_record *old)
{
    return old->state == HAPAX_STATE_ABSENT || old->created_us != put->created_us ||
           old->resolved_us != put->resolved_us;
}

/* A claim that is not granted may write as well: what died becomes unknown. */
bool hapax__pair_has_put(const struct hapax_record *put, const struct hapax_record *new)
{
    return put->created_us == new->created_us && put->fence == new->fence;
}

bool hapax__pair_left(const struct hapax_record *record, int64_t since_us, int64_t now_us)
{
    if (hapax__expired(record, now_us))
        return false;
    return record->created_us <= since_us + hapax__pair_together_us ||
           (record->state == HAPAX_STATE_COMPLETED && record->resolved_us > 0);
}

/* ---- the pair ------------------------------------------------------------------------ */

void hapax__pair_begin(struct hapax__pair *p, struct hapax_op *op)
{
    memset(p, 0, sizeof(*p));
    p->op = op;
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_RENEW, told_look);
        return;
    case HAPAX_OP_RENEW:
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_RENEW,
            op->if_attempt ? told_old_attempt : told_old_renewal);
        p->sub.reconciled = op->reconciled && !op->if_attempt;
        return;
    case HAPAX_OP_COMPLETE:
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_COMPLETE, told_old_completion);
        return;
    case HAPAX_OP_FAIL:
        ask(p, HAPAX__HALF_OLD, HAPAX_OP_FAIL, told_old_failure);
        return;
    case HAPAX_OP_READ:
        ask(p, HAPAX__HALF_NEW, HAPAX_OP_READ, told_new_read);
        return;
    default:
        assert(op->kind == HAPAX_OP_RESOLVE);
        if (op->force && !op->if_attempt && !op->if_updated_us)
            ask_resolve(p, HAPAX__HALF_OLD, told_old_resolve);
        else
            ask(p, HAPAX__HALF_NEW, HAPAX_OP_READ, told_new_state);
    }
}

static void rename_as(struct hapax_digest *shown, const struct hapax_digest *old,
                      const struct hapax_digest *now)
{
    if (memcmp(shown, old, sizeof(*shown)) == 0)
        *shown = *now;
}

/* What the old half shows under the old secret, as it is under the new one. */
static void rename_shown(struct hapax_record *record, const struct hapax_op *op)
{
    record->id = op->id;
    rename_as(&record->owner, &op->old->owner, &op->owner);
    rename_as(&record->fingerprint, &op->old->fingerprint, &op->fingerprint);
    rename_as(&record->caller, &op->old->caller, &op->caller);
}

bool hapax__pair_told(struct hapax__pair *p)
{
    struct hapax__pair_shown *shown = shown_by(p);

    if (p->sub.verdict != HAPAX_NO_VERDICT) {
        shown->record = p->sub.record;
        shown->now_us = p->sub.now_us;
        if (p->op->old && p->half == HAPAX__HALF_OLD)
            rename_shown(&shown->record, p->op);
    }
    p->then(p);
    return p->then != NULL;
}
