/* SPDX-License-Identifier: Apache-2.0
 *
 * What no store may do. For each operation the checker keeps a shadow: what the verdicts so far
 * have promised. The checker sees every op when it is judged, before a reply can be lost, and
 * compares the verdict with those promises. Its rules are prohibitions. They are written from the
 * design's sentences and not from the machine's code, so that one mistake is not made twice. Only
 * at the end the record is compared with the shadow as a whole.
 *
 * A life of an operation is the time from its record's creation to its end: expiry, an operator's
 * forget or force, or a new claim under rerun_completed. Effects and answers are judged within a
 * life.
 */
#include "sim.h"

#include <string.h>

bool same_token(const struct hapax_token *a, const struct hapax_token *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

bool shadow_live(const struct sim *s, const struct shadow *shadow)
{
    return shadow->present && shadow->state == HAPAX_STATE_STARTED &&
           store_now_us(s) < shadow->lease_until_us;
}

static int variant_of(const struct hapax_op *op)
{
    if (op->fingerprint.bytes[0] != 0xf1)
        return 1;
    return op->caller.bytes[0] != 0xc1 ? 2 : 0;
}

/* What a claim of one variant is told of a record of another: the caller is compared first. */
static enum hapax_differs differs_in(int asked, int recorded)
{
    return (asked == 2) != (recorded == 2) ? HAPAX_DIFFERS_CALLER : HAPAX_DIFFERS_FINGERPRINT;
}

static bool strict(const struct hapax_op *op)
{
    return op->on_expired != HAPAX_EXPIRED_RERUN;
}

/* ---- what the shadow keeps --------------------------------------------------------- */

static bool unbound(const struct shadow *shadow)
{
    return shadow->state == HAPAX_STATE_FAILED && !shadow->any_ran && !shadow->stale &&
           !shadow->resolved;
}

/* A hook was to be asked about an attempt, and was not. */
static bool unanswered(const struct shadow *shadow)
{
    return shadow->state == HAPAX_STATE_FAILED && shadow->hold && shadow->stale;
}

static void written(struct sim *s, struct shadow *shadow)
{
    int64_t now_us = store_now_us(s);

    shadow->expires_us = now_us + shadow->retention_ms * MS;
    if (unbound(shadow) && shadow->retention_ms > MINUTE / MS)
        shadow->expires_us = now_us + MINUTE;
    if (shadow->state == HAPAX_STATE_UNKNOWN || unanswered(shadow) ||
        (shadow->state == HAPAX_STATE_STARTED && shadow->hold))
        shadow->expires_us = 0;
    else if (shadow->state == HAPAX_STATE_STARTED && shadow->expires_us < shadow->lease_until_us)
        shadow->expires_us = shadow->lease_until_us;
}

/* Of a completed operation nothing is left but that it was completed. */
static bool is_tombstone(struct sim *s, struct shadow *shadow)
{
    bool is = shadow->present && shadow->state == HAPAX_STATE_COMPLETED && shadow->gone_us > 0 &&
              store_now_us(s) >= shadow->gone_us;

    shadow->buried |= is;
    return is;
}

/* Whether an answer shows what was completed, or of a tombstone nothing. */
static bool shows_right(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    const struct hapax_outcome *shown = &op->record.outcome;

    if (!is_tombstone(s, shadow))
        return result_of(s, shown) == shadow->result;
    sim_mark(s, MARK_tombstone_met);
    return shown->headers.len == 0 && shown->body.len == 0 && !shown->body_kept;
}

static void forget_expired(struct sim *s, struct shadow *shadow)
{
    if (!shadow->present || shadow->expires_us == 0 || store_now_us(s) < shadow->expires_us)
        return;
    shadow->present = false;
    if (unbound(shadow))
        sim_mark(s, MARK_refusal_gone);
}

static void end_attempt(struct sim *s, struct shadow *shadow, enum hapax_state state, bool stale)
{
    shadow->state = state;
    shadow->stale = stale;
    written(s, shadow);
}

/* ---- CLAIM ------------------------------------------------------------------------- */

/* Rules on a claim that is granted over what there was. */
static void check_grant(struct sim *s, const struct shadow *shadow, const struct hapax_op *op)
{
    bool held = shadow->hold || strict(op);
    bool hook = op->on_expired == HAPAX_EXPIRED_RECONCILE;

    if (variant_of(op) != shadow->variant && !unbound(shadow))
        sim_fail(s, "h mismatch runs nothing", "a claim of another request was granted");
    if (shadow_live(s, shadow))
        sim_fail(s, "j one live claim", "attempt %u was granted over a live lease",
                 op->record.attempt);
    if (shadow->state == HAPAX_STATE_COMPLETED && !(shadow->reruns && op->rerun_completed))
        sim_fail(s, "c a result is not lost", "attempt %u was granted after completion",
                 op->record.attempt);
    if (shadow->state == HAPAX_STATE_UNKNOWN && !hook)
        sim_fail(s, "g unknown waits for an operator", "attempt %u was granted",
                 op->record.attempt);
    if (shadow->state == HAPAX_STATE_STARTED && held && !hook)
        sim_fail(s, "g hold is not undone", "attempt %u took over", op->record.attempt);
    if (shadow->state == HAPAX_STATE_FAILED && shadow->stale && held && !hook)
        sim_fail(s, "g hold is not undone", "attempt %u followed an unknown one",
                 op->record.attempt);
    if (shadow->state == HAPAX_STATE_FAILED && op->attempts_max > 0 &&
        shadow->spent >= op->attempts_max && !unanswered(shadow))
        sim_fail(s, "attempts_max", "attempt %u was granted", op->record.attempt);
    if (op->record.attempt != shadow->attempt + 1)
        sim_fail(s, "e attempts are counted", "attempt %u came after %u", op->record.attempt,
                 shadow->attempt);
}

/* The holder's own clock says that its lease is not over yet. */
static bool holder_disagrees(const struct sim *s, const struct shadow *shadow)
{
    const struct call *call = &s->calls[shadow->holder.bytes[15] - 1];

    return shadow->holder.bytes[14] == 0 && call->state == CALL_LIVE && call->claimed &&
           local_us(s, &s->procs[call->proc]) < call->flow.lease_end_us;
}

static void grant_over(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    shadow->held_before = shadow->hold || strict(op);
    switch (shadow->state) {
    case HAPAX_STATE_STARTED:
    case HAPAX_STATE_UNKNOWN:
        shadow->grant = GRANT_TAKEOVER;
        shadow->stale = true;
        shadow->any_ran = true;
        shadow->spent++;
        sim_mark(s, MARK_takeover);
        if (holder_disagrees(s, shadow))
            sim_mark(s, MARK_clock_mattered);
        break;
    case HAPAX_STATE_FAILED:
        shadow->grant = GRANT_AFTER_FAIL;
        if (variant_of(op) != shadow->variant)
            sim_mark(s, MARK_refingerprinted);
        shadow->variant = variant_of(op);
        break;
    default:
        shadow->grant = GRANT_RERUN;
        shadow->life++;
        shadow->spent = 0;
        sim_mark(s, MARK_rerun_completed);
    }
    shadow->reruns &= op->rerun_completed;
}

static void grant_new(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    if (op->record.attempt != 1 || op->record.stale)
        sim_fail(s, "e attempts are counted", "the first attempt is number %u", op->record.attempt);
    shadow->present = true;
    shadow->life++;
    shadow->hold = shadow->stale = shadow->any_ran = shadow->resolved = false;
    shadow->held_before = strict(op);
    shadow->spent = 0;
    shadow->reruns = op->rerun_completed;
    shadow->variant = variant_of(op);
    shadow->grant = GRANT_NEW;
}

static void claimed(struct sim *s, struct shadow *shadow, const struct hapax_op *op, uint32_t ask)
{
    if (shadow->present)
        check_grant(s, shadow, op);
    if (op->record.fence <= shadow->fence_max)
        sim_fail(s, "e fences rise", "fence %llu came after %llu",
                 (unsigned long long)op->record.fence, (unsigned long long)shadow->fence_max);
    if (shadow->present)
        grant_over(s, shadow, op);
    else
        grant_new(s, shadow, op);
    if (op->record.stale != shadow->stale)
        sim_fail(s, "a stale is known", "attempt %u was told stale %d", op->record.attempt,
                 op->record.stale);
    shadow->state = HAPAX_STATE_STARTED;
    shadow->stale_before = shadow->stale;
    shadow->holder = op->token;
    shadow->granted_ask = ask;
    shadow->hold |= strict(op);
    shadow->ran = false;
    if (shadow->grant == GRANT_RERUN)
        shadow->any_ran = false;
    shadow->attempt = op->record.attempt;
    shadow->fence = shadow->fence_max = op->record.fence;
    shadow->retention_ms = op->retention_ms;
    shadow->lease_until_us = store_now_us(s) + op->lease_ms * MS;
    written(s, shadow);
}

static void claim_repeated(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    bool right;

    switch (shadow->state) {
    case HAPAX_STATE_STARTED:
        right = op->verdict == HAPAX_CLAIMED && op->record.attempt == shadow->attempt &&
                op->record.fence == shadow->fence && op->record.stale == shadow->stale;
        sim_mark(s, MARK_repeated_claim);
        if (shadow->stale)
            sim_mark(s, MARK_repeated_stale_claim);
        break;
    case HAPAX_STATE_COMPLETED:
        right = op->verdict == HAPAX_COMPLETED && shows_right(s, shadow, op);
        break;
    default:
        right = op->verdict == HAPAX_LOST;
        if (unbound(shadow))
            sim_mark(s, MARK_refused_claim_late);
    }
    if (!right)
        sim_fail(s, "a repeated claim has the same answer", "got %s, attempt %u, stale %d",
                 hapax_verdict_name(op->verdict), op->record.attempt, op->record.stale);
}

/* A claim by a new token that was not granted. */
static void claim_refused(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    bool dead = shadow->state == HAPAX_STATE_STARTED && !shadow_live(s, shadow);

    switch (op->verdict) {
    case HAPAX_IN_FLIGHT:
        if (!shadow_live(s, shadow))
            sim_fail(s, "d a dead claim blocks nobody", "in_flight without a live claim");
        return;
    case HAPAX_COMPLETED:
        if (shadow->state != HAPAX_STATE_COMPLETED || !shows_right(s, shadow, op))
            sim_fail(s, "b one outcome", "completed with another outcome than was stored");
        return;
    case HAPAX_UNKNOWN:
        if (shadow_live(s, shadow) || shadow->state == HAPAX_STATE_COMPLETED)
            sim_fail(s, "j leases last", "unknown although %s",
                     shadow->state == HAPAX_STATE_COMPLETED ? "completed" : "live");
        if (dead)
            sim_mark(s, MARK_hold_to_unknown);
        end_attempt(s, shadow, HAPAX_STATE_UNKNOWN, shadow->stale || dead);
        return;
    case HAPAX_FAILED:
        sim_mark(s, dead ? MARK_attempts_used_up_by_deaths : MARK_attempts_used_up);
        if (op->attempts_max == 0 || shadow_live(s, shadow) || unanswered(shadow))
            sim_fail(s, "attempts_max", "used up without a limit, while live or unanswered");
        if (dead) {
            shadow->spent++;
            shadow->any_ran = true;
            shadow->ran = true;
            end_attempt(s, shadow, HAPAX_STATE_FAILED, true);
        }
        return;
    default:
        sim_fail(s, "verdicts", "a claim got %s", hapax_verdict_name(op->verdict));
    }
}

static void judged_claim(struct sim *s, struct shadow *shadow, const struct hapax_op *op,
                         uint32_t ask)
{
    static const struct hapax_outcome none;

    if (shadow->present && same_token(&shadow->holder, &op->token)) {
        claim_repeated(s, shadow, op);
    } else if (op->verdict == HAPAX_CLAIMED) {
        if (same_token(&shadow->holder, &op->token) && unbound(shadow))
            sim_mark(s, MARK_refused_claim_granted_anew);
        claimed(s, shadow, op, ask);
    } else if (!shadow->present) {
        sim_fail(s, "d an absent record blocks nobody", "a claim got %s",
                 hapax_verdict_name(op->verdict));
    } else if (variant_of(op) != shadow->variant && !unbound(shadow)) {
        sim_mark(s, variant_of(op) == 1 ? MARK_mismatch_fingerprint : MARK_mismatch_caller);
        if (op->verdict != HAPAX_MISMATCH || memcmp(&op->record.outcome, &none, sizeof(none)) != 0)
            sim_fail(s, "h mismatch comes first and shows nothing", "another request got %s",
                     hapax_verdict_name(op->verdict));
        if (op->differs != differs_in(variant_of(op), shadow->variant))
            sim_fail(s, "h another caller is told nothing of the request", "it is told %d",
                     (int)op->differs);
    } else {
        claim_refused(s, shadow, op);
    }
}

/* ---- by token ---------------------------------------------------------------------- */

static void completed(struct sim *s, struct shadow *shadow, int result)
{
    shadow->result = result;
    if (result >= 0) {
        s->results[result].completed = true;
        s->results[result].life = shadow->life;
        s->results[result].variant = shadow->variant;
    }
    end_attempt(s, shadow, HAPAX_STATE_COMPLETED, false);
    shadow->gone_us = shadow->expires_us;
}

static void judged_complete(struct sim *s, struct shadow *shadow, const struct hapax_op *op,
                            int call)
{
    if (shadow->state == HAPAX_STATE_FAILED) {
        sim_fail(s, "by token", "completed what had failed");
    } else if (shadow->state == HAPAX_STATE_COMPLETED) {
        if (!shows_right(s, shadow, op))
            sim_fail(s, "b one outcome", "a second completion changed it");
    } else {
        if (op->kept_ms > 0)
            shadow->retention_ms = op->kept_ms;
        completed(s, shadow, result_of(s, &op->outcome));
        shadow->expires_us += op->tombstone_ms * MS;
        if (call < 0)
            sim_mark(s, MARK_self_completed);
    }
}

/* Whom the service turned away, for that one nothing happened, and a retry runs. Under `rerun` 408
 * and 503 are the service's own words whatever stands beside them. */
static void check_turned_away(struct sim *s, const struct hapax_op *op, int call)
{
    const struct exec *exec =
        call >= 0 && s->calls[call].exec >= 0 ? &s->execs[s->calls[call].exec] : NULL;
    bool believed;

    if (!exec)
        return;
    believed = s->calls[call].policy.on_expired == HAPAX_EXPIRED_RERUN &&
               (exec->said_by_it->status == 408 || exec->said_by_it->status == 503);
    if ((exec->turned_away || believed) &&
        (op->kind == HAPAX_OP_COMPLETE || op->ran || op->as_unknown))
        sim_fail(s, "l who is turned away runs again", "call %d was answered %d", call,
                 exec->said_by_it->status);
}

static void judged_fail(struct sim *s, struct shadow *shadow, const struct hapax_op *op, int call)
{
    if (shadow->state == HAPAX_STATE_COMPLETED) {
        sim_fail(s, "c a result is not lost", "failed what had completed");
    } else if (shadow->state == HAPAX_STATE_STARTED) {
        const int64_t retention_ms = shadow->retention_ms;

        /* This one end is kept for as long as it says, and no later one. */
        if (op->kept_ms > 0) {
            sim_mark(s, MARK_kept_by_class);
            shadow->retention_ms = op->kept_ms;
        }
        shadow->ran = op->ran;
        if (op->died && !shadow->hold) {
            sim_mark(s, MARK_death_known);
            shadow->spent++;
            shadow->any_ran = true;
            end_attempt(s, shadow, HAPAX_STATE_FAILED, true);
        } else if (op->as_unknown) {
            sim_mark(s, MARK_failed_to_unknown);
            end_attempt(s, shadow, HAPAX_STATE_UNKNOWN, true);
        } else {
            shadow->spent += op->ran;
            shadow->any_ran |= op->ran;
            end_attempt(s, shadow, HAPAX_STATE_FAILED, shadow->stale);
        }
        shadow->retention_ms = retention_ms;
    }
    if (call >= 0 && s->calls[call].exec >= 0) {
        struct exec *exec = &s->execs[s->calls[call].exec];

        exec->said = true;
        exec->retried = shadow->state == HAPAX_STATE_FAILED;
    }
}

static void judged_renew(struct sim *s, struct shadow *shadow, const struct hapax_op *op, int call)
{
    int64_t until_us = store_now_us(s) + op->lease_ms * MS;

    if (shadow->state != HAPAX_STATE_STARTED && shadow->state != HAPAX_STATE_UNKNOWN) {
        sim_fail(s, "by token", "renewed what has ended");
        return;
    }
    if (op->reconciled) {
        if (op->if_attempt != shadow->attempt)
            sim_fail(s, "a only a hook's no clears stale", "it was about attempt %u",
                     op->if_attempt);
        if (call < 0 || !s->calls[call].hook_no)
            sim_fail(s, "a only a hook's no clears stale", "no hook said so");
        shadow->stale = false;
    }
    if (shadow->state == HAPAX_STATE_STARTED && until_us > shadow->lease_until_us)
        shadow->lease_until_us = until_us;
    written(s, shadow);
}

static void judged_by_token(struct sim *s, struct shadow *shadow, const struct hapax_op *op,
                            int call)
{
    bool own = shadow->present && same_token(&shadow->holder, &op->token);
    bool open =
        own && (shadow->state == HAPAX_STATE_STARTED || shadow->state == HAPAX_STATE_UNKNOWN);

    if (op->verdict == HAPAX_LOST) {
        if (!shadow->present && op->kind == HAPAX_OP_FAIL && unbound(shadow) &&
            same_token(&shadow->holder, &op->token))
            sim_mark(s, MARK_refusal_gone_to_its_fail);
        if (open && (op->if_attempt == 0 || op->if_attempt == shadow->attempt))
            sim_fail(s, "d the holder holds", "op%d of the holder was lost", (int)op->kind);
        if (shadow->present && shadow->state == HAPAX_STATE_COMPLETED &&
            !shows_right(s, shadow, op))
            sim_fail(s, "b one outcome", "lost to another outcome than was stored");
    } else if (op->verdict != HAPAX_OK) {
        sim_fail(s, "verdicts", "op%d got %s", (int)op->kind, hapax_verdict_name(op->verdict));
    } else if (!own) {
        sim_fail(s, "by token", "op%d of a foreign token was done", (int)op->kind);
    } else if (op->kind == HAPAX_OP_RENEW) {
        judged_renew(s, shadow, op, call);
    } else if (op->kind == HAPAX_OP_COMPLETE) {
        check_turned_away(s, op, call);
        judged_complete(s, shadow, op, call);
    } else {
        check_turned_away(s, op, call);
        judged_fail(s, shadow, op, call);
    }
}

/* ---- RESOLVE ----------------------------------------------------------------------- */

static void judged_resolve(struct sim *s, struct shadow *shadow, const struct hapax_op *op)
{
    if (shadow_live(s, shadow))
        sim_mark(s, MARK_resolve_raced);
    if (op->verdict != HAPAX_OK || same_token(&shadow->holder, &op->token))
        return;
    if (!op->force && (shadow_live(s, shadow) || shadow->state == HAPAX_STATE_COMPLETED))
        sim_fail(s, "an operator is refused unless by force", "resolved %s",
                 hapax_state_name(shadow->state));
    if (op->force) {
        sim_mark(s, MARK_resolve_forced);
        shadow->life++;
    }
    if (op->resolve == HAPAX_RESOLVE_FORGET) {
        sim_mark(s, MARK_resolve_forget);
        shadow->present = false;
        return;
    }
    shadow->holder = op->token;
    shadow->resolved = true;
    shadow->fence = ++shadow->fence_max;
    if (op->record.fence < shadow->fence)
        sim_fail(s, "e fences rise", "an operator left the fence");
    shadow->fence = shadow->fence_max = op->record.fence;
    if (op->resolve == HAPAX_RESOLVE_COMPLETE) {
        sim_mark(s, MARK_resolve_complete);
        completed(s, shadow, result_of(s, &op->outcome));
    } else {
        sim_mark(s, MARK_resolve_fail);
        shadow->ran = true;
        shadow->spent = 0;
        end_attempt(s, shadow, HAPAX_STATE_FAILED, false);
    }
}

/* ---- all of them ------------------------------------------------------------------- */

static void compare(struct sim *s, int id)
{
    static const struct hapax_outcome none;
    struct shadow *shadow = &s->shadows[id];
    const struct hapax_record *record = &s->store.records[id];
    bool present = s->store.present[id] && !hapax__expired(record, store_now_us(s));
    const char *what = NULL;

    if (present != shadow->present)
        what = "presence";
    else if (!present)
        return;
    else if (record->state != shadow->state)
        what = "state";
    else if (memcmp(&record->mark, &shadow->holder, sizeof(record->mark)) == 0)
        what = "what is to be the mark, and no token,";
    else if (record->hold != shadow->hold)
        what = "hold";
    else if (record->stale != shadow->stale)
        what = "stale";
    else if (record->attempt != shadow->attempt || record->fence != shadow->fence)
        what = "attempt or fence";
    else if (record->spent != shadow->spent)
        what = "spent";
    else if (record->state == HAPAX_STATE_STARTED &&
             record->lease_until_us != shadow->lease_until_us)
        what = "lease";
    else if (record->state == HAPAX_STATE_FAILED && !record->ran &&
             memcmp(&record->outcome, &none, sizeof(none)) != 0)
        what = "outcome";
    else if (record->state == HAPAX_STATE_COMPLETED && !is_tombstone(s, shadow) &&
             result_of(s, &record->outcome) != shadow->result)
        what = "what was completed";
    else if (record->expires_us != shadow->expires_us)
        what = "retention";
    if (what)
        sim_fail(s, "the record is what was promised", "%s of id %d differs", what, id);
}

void check_judged(struct sim *s, const struct hapax_op *op, int call, uint32_t ask)
{
    int id = op->id.bytes[31] - 1;
    struct shadow *shadow = &s->shadows[id];

    forget_expired(s, shadow);
    if (op->kind == HAPAX_OP_CLAIM && call >= 0 && s->calls[call].healing)
        check_claims_healed(s, &s->calls[call]);
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        judged_claim(s, shadow, op, ask);
        break;
    case HAPAX_OP_RESOLVE:
        if (shadow->present)
            judged_resolve(s, shadow, op);
        break;
    case HAPAX_OP_READ:
        break;
    default:
        judged_by_token(s, shadow, op, call);
    }
    if (!s->failed)
        compare(s, id);
    if (shadow_live(s, shadow))
        shadow->free_since_us = 0;
    else if (shadow->free_since_us == 0)
        shadow->free_since_us = s->now_us;
}

void check_purged(struct sim *s, int id)
{
    struct shadow *shadow = &s->shadows[id];

    if (shadow_live(s, shadow))
        sim_fail(s, "i no live claim is purged", "id %d was", id);
    else if (shadow->present && (shadow->expires_us == 0 || store_now_us(s) < shadow->expires_us))
        sim_fail(s, "i retention is kept", "id %d was purged %s", id,
                 hapax_state_name(shadow->state));
    shadow->present = false;
}

void check_swept(struct sim *s, int id)
{
    struct shadow *shadow = &s->shadows[id];

    forget_expired(s, shadow);
    if (!shadow->present || (shadow->state != HAPAX_STATE_STARTED && !unanswered(shadow)))
        sim_fail(s, "i a sweep ends what was left", "id %d was not started", id);
    else if (shadow_live(s, shadow))
        sim_fail(s, "j leases last", "id %d was swept to unknown although live", id);
    else if (!shadow->hold)
        sim_fail(s, "i a sweep ends what was left", "id %d runs again: nobody said hold", id);
    if (!s->failed) {
        shadow->spent -= unanswered(shadow) && shadow->spent > 0;
        end_attempt(s, shadow, HAPAX_STATE_UNKNOWN, true);
        compare(s, id);
    }
}

void check_buried(struct sim *s, int id)
{
    struct shadow *shadow = &s->shadows[id];

    if (!is_tombstone(s, shadow))
        sim_fail(s, "i retention is kept", "id %d lost its outcome", id);
    if (!s->failed)
        compare(s, id);
}

/* ---- effects ----------------------------------------------------------------------- */

int effect_of(const struct sim *s, int id, int life)
{
    for (int i = 0; i < s->execs_count; i++) {
        const struct exec *exec = &s->execs[i];

        if (exec->effected && exec->id == id && exec->life == life)
            return exec->self == SELF_NO ? exec->result : exec->self_result;
    }
    return -1;
}

/* Whether the door's own policy asked for another run after such an answer. */
static bool asked_for_more(const struct sim *s, const struct exec *exec)
{
    const struct hapax_policy *policy = &s->calls[exec->call].policy;
    bool rerun = policy->on_expired == HAPAX_EXPIRED_RERUN;

    switch (exec->said_by_it->status) {
    case 408:
    case 503:
        return rerun;
    case 500:
    case 507:
        return policy->on_failed == HAPAX_FAILED_RETRY || (policy->on_failed == 0 && rerun);
    default:
        return false;
    }
}

/* Judges two effects of one life by how the later of the two claims was granted. */
static void check_pair(struct sim *s, const struct exec *a, const struct exec *b)
{
    const struct exec *first = a->fence < b->fence ? a : b, *second = first == a ? b : a;

    sim_mark(s, MARK_second_effect);
    if (first->retried && asked_for_more(s, first))
        return;
    if (second->held)
        sim_fail(s, "a hold means once", "calls %d and %d both had their effect", first->call,
                 second->call);
    else if (!second->stale)
        sim_fail(s, "a one effect unless a result is unknown",
                 "calls %d and %d both had their effect", first->call, second->call);
}

void check_effect(struct sim *s, int n)
{
    const struct exec *exec = &s->execs[n];

    for (int i = 0; i < s->execs_count; i++) {
        const struct exec *other = &s->execs[i];

        if (i != n && other->effected && other->id == exec->id && other->fence != 0 &&
            exec->fence != 0 && other->life >= 0 && other->life == exec->life)
            check_pair(s, exec, other);
    }
}
