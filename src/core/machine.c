/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine. One function per kind of op, each a table of docs/design.md read from top to
 * bottom; the order of the tests is the order of the rows. The invariants it keeps: only the
 * token that holds a record writes to it; the fence and the attempt never fall while the record
 * exists; a completed outcome changes by an operator's force alone.
 */
#include "machine.h"

#include "base/bytes.h"
#include "base/time.h"
#include "record.h"

#include <assert.h>
#include <openssl/crypto.h>
#include <string.h>

static bool same_digest(const struct hapax_digest *a, const struct hapax_digest *b)
{
    return CRYPTO_memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}

static bool same_token(const struct hapax_record *record, const struct hapax_op *op)
{
    struct hapax_mark mark;

    hapax__mark(&mark, &op->token);
    return CRYPTO_memcmp(record->mark.bytes, mark.bytes, sizeof(mark.bytes)) == 0;
}

bool hapax__outcome_same(const struct hapax_outcome *a, const struct hapax_outcome *b)
{
    return a->status == b->status && a->body_kept == b->body_kept &&
           hapax__same(a->headers, b->headers) && hapax__same(a->body, b->body);
}

/* The time `ms` after now_us; INT64_MAX instead of an overflow. */
static int64_t later(int64_t now_us, int64_t ms)
{
    return ms > (INT64_MAX - now_us) / US_PER_MS ? INT64_MAX : now_us + ms * US_PER_MS;
}

static bool lease_live(const struct hapax_record *record, int64_t now_us)
{
    return record->state == HAPAX_STATE_STARTED && now_us < record->lease_until_us;
}

bool hapax__expired(const struct hapax_record *record, int64_t now_us)
{
    return record->expires_us != 0 && now_us >= record->expires_us;
}

/* When the retention of a completed record is over; only with a tombstone it is there longer. */
static int64_t retained_until(const struct hapax_record *record)
{
    return later(record->updated_us, record->retention_ms);
}

int64_t hapax__shown_until(const struct hapax_record *record)
{
    if (record->state != HAPAX_STATE_COMPLETED || record->expires_us == 0)
        return record->expires_us;
    return hapax__least(record->expires_us, retained_until(record));
}

bool hapax__tombstone(const struct hapax_record *record, int64_t now_us)
{
    return record->state == HAPAX_STATE_COMPLETED && record->expires_us != 0 &&
           now_us >= retained_until(record);
}

void hapax__bury(struct hapax_record *record)
{
    record->outcome = (struct hapax_outcome){.status = record->outcome.status};
}

int64_t hapax__listed_until(const struct hapax_op *op, int64_t now_us)
{
    return op->older_ms > 0 ? now_us - op->older_ms * US_PER_MS : INT64_MAX;
}

bool hapax__listed(const struct hapax_record *record, const struct hapax_op *op, int64_t now_us)
{
    if (hapax__expired(record, now_us))
        return false;
    if (op->states != 0 && !(op->states & 1u << record->state))
        return false;
    if (op->scope.len > 0 && !hapax__same(op->scope, record->scope))
        return false;
    if (hapax__owned(&op->owner) && !same_digest(&op->owner, &record->owner))
        return false;
    return record->updated_us <= hapax__listed_until(op, now_us);
}

bool hapax__unbound(const struct hapax_record *record)
{
    return record->state == HAPAX_STATE_FAILED && !record->ran && record->spent == 0 &&
           !record->stale && record->resolved_us == 0;
}

/* Whether a claim that was granted to ask about the attempts before it was given back unasked. The
 * next CLAIM under hold makes this `unknown`. */
static bool is_unanswered(const struct hapax_record *record)
{
    return record->state == HAPAX_STATE_FAILED && record->hold && record->stale;
}

/* Stamps the write and decides when the record goes, kept_ms after it: never for `unknown` and what
 * is unanswered, nor for `started` under hold; soon where nothing ever ran; and never before the
 * lease does. */
static void stamp(struct hapax_record *next, int64_t kept_ms, int64_t now_us)
{
    if (hapax__unbound(next))
        kept_ms = hapax__least(kept_ms, HAPAX__REFUSED_KEPT_MS);
    next->updated_us = now_us;
    if (next->state != HAPAX_STATE_STARTED)
        next->lease_until_us = 0;
    if (next->state == HAPAX_STATE_UNKNOWN || (next->state == HAPAX_STATE_STARTED && next->hold) ||
        is_unanswered(next) || kept_ms == HAPAX_FOREVER_MS) {
        next->expires_us = 0;
        return;
    }
    next->expires_us = later(now_us, kept_ms);
    if (next->expires_us < next->lease_until_us)
        next->expires_us = next->lease_until_us;
}

static void lose_track(struct hapax_record *next)
{
    next->state = HAPAX_STATE_UNKNOWN;
    next->stale = true;
}

static uint64_t next_fence(uint64_t previous, int64_t now_us)
{
    assert(now_us > 0 && previous < UINT64_MAX);
    return previous + 1 > (uint64_t)now_us ? previous + 1 : (uint64_t)now_us;
}

/* The record as this answer may show it: without its mark, and without its outcome unless the
 * answer is that outcome. */
static void show(struct hapax_op *op, const struct hapax_record *record, bool outcome)
{
    assert(&op->record != record);
    op->record = *record;
    memset(&op->record.mark, 0, sizeof(op->record.mark));
    if (hapax__tombstone(record, op->now_us))
        hapax__bury(&op->record);
    if (!outcome)
        op->record.outcome = (struct hapax_outcome){0};
}

static enum hapax__write say(struct hapax_op *op, enum hapax_verdict verdict,
                             const struct hapax_record *record)
{
    op->verdict = verdict;
    op->error = HAPAX_ERR_NONE;
    if (record)
        show(op, record,
             verdict == HAPAX_FOUND || verdict == HAPAX_FAILED ||
                 ((verdict == HAPAX_COMPLETED || verdict == HAPAX_LOST || verdict == HAPAX_OK) &&
                  record->state == HAPAX_STATE_COMPLETED));
    return HAPAX__KEEP;
}

static enum hapax__write write_for(struct hapax_op *op, enum hapax_verdict verdict,
                                   struct hapax_record *next, int64_t kept_ms, int64_t now_us)
{
    stamp(next, kept_ms, now_us);
    say(op, verdict, next);
    return HAPAX__WRITE;
}

static enum hapax__write write(struct hapax_op *op, enum hapax_verdict verdict,
                               struct hapax_record *next, int64_t now_us)
{
    return write_for(op, verdict, next, next->retention_ms, now_us);
}

/* ---- CLAIM ------------------------------------------------------------------------- */

static bool strict(const struct hapax_op *op)
{
    return op->on_expired != HAPAX_EXPIRED_RERUN;
}

/* Grants the claim on what *next already is: a fresh record, or the old one. Whatever row led here,
 * what the old one promised holds. */
static enum hapax__write grant(struct hapax_op *op, struct hapax_record *next, int64_t now_us)
{
    bool open = next->stale && next->state != HAPAX_STATE_COMPLETED;
    uint64_t fence = next->fence;

    /* promise 1 */
    assert(!lease_live(next, now_us));
    /* promise 3 */
    assert(next->state != HAPAX_STATE_COMPLETED || (next->reruns && op->rerun_completed));
    /* promise 5 */
    assert(!open || !next->hold || op->on_expired == HAPAX_EXPIRED_RECONCILE);
    /* promise 8 */
    assert(op->differs == HAPAX_DIFFERS_NOT);
    assert(next->attempt < UINT32_MAX);
    next->state = HAPAX_STATE_STARTED;
    next->hold |= strict(op);
    next->ran = false;
    next->reruns &= op->rerun_completed;
    next->attempt++;
    next->fence = next_fence(next->fence, now_us);
    hapax__mark(&next->mark, &op->token);
    next->fingerprint = op->fingerprint;
    next->caller = op->caller;
    next->lease_until_us = later(now_us, op->lease_ms);
    next->retention_ms = op->retention_ms;
    next->what = op->what;
    next->outcome = (struct hapax_outcome){0};
    /* promise 7 */
    assert(next->fence > fence);
    return write(op, HAPAX_CLAIMED, next, now_us);
}

static enum hapax__write claim_absent(struct hapax_op *op, int64_t now_us,
                                      struct hapax_record *next)
{
    memset(next, 0, sizeof(*next));
    next->id = op->id;
    next->owner = op->owner;
    next->scope = op->scope;
    next->created_us = now_us;
    next->reruns = op->rerun_completed;
    return grant(op, next, now_us);
}

static enum hapax__write claim_repeated(const struct hapax_record *record, struct hapax_op *op)
{
    switch (record->state) {
    case HAPAX_STATE_STARTED:
        return say(op, HAPAX_CLAIMED, record);
    case HAPAX_STATE_COMPLETED:
        return say(op, HAPAX_COMPLETED, record);
    default:
        return say(op, HAPAX_LOST, record);
    }
}

static enum hapax__write to_unknown(struct hapax_op *op, struct hapax_record *next, int64_t now_us)
{
    lose_track(next);
    return write(op, HAPAX_UNKNOWN, next, now_us);
}

/* An attempt whose result is not known is followed by another. */
static enum hapax__write take_over(struct hapax_op *op, struct hapax_record *next, int64_t now_us)
{
    next->stale = true;
    next->spent++;
    return grant(op, next, now_us);
}

static bool used_up(const struct hapax_op *op, uint32_t spent)
{
    return op->attempts_max > 0 && spent >= op->attempts_max;
}

static enum hapax__write claim_dead(struct hapax_op *op, struct hapax_record *next, int64_t now_us)
{
    if (op->on_expired == HAPAX_EXPIRED_RECONCILE)
        return take_over(op, next, now_us);
    if (next->hold || strict(op))
        return to_unknown(op, next, now_us);
    if (!used_up(op, next->spent + 1))
        return take_over(op, next, now_us);
    /* Each attempt so far died: a request that kills its handlers must not do so for ever. */
    next->state = HAPAX_STATE_FAILED;
    next->stale = true;
    next->ran = true;
    next->spent++;
    return write(op, HAPAX_FAILED, next, now_us);
}

static enum hapax__write claim_failed(struct hapax_op *op, struct hapax_record *next,
                                      int64_t now_us)
{
    if (next->stale && (next->hold || strict(op)) && op->on_expired != HAPAX_EXPIRED_RECONCILE)
        return to_unknown(op, next, now_us);
    if (used_up(op, next->spent) && !is_unanswered(next))
        return say(op, HAPAX_FAILED, next);
    return grant(op, next, now_us);
}

bool hapax__any(const struct hapax_digest *digest)
{
    struct hapax_digest any;

    memset(&any, HAPAX_ANY_BYTE, sizeof(any));
    return memcmp(digest, &any, sizeof(any)) == 0; /* 0xff is no secret */
}

static enum hapax_differs compare(const struct hapax_record *record, const struct hapax_op *op)
{
    if (!same_digest(&record->caller, &op->caller) && !hapax__any(&record->caller))
        return HAPAX_DIFFERS_CALLER;
    if (!same_digest(&record->fingerprint, &op->fingerprint) && !hapax__any(&record->fingerprint))
        return HAPAX_DIFFERS_FINGERPRINT;
    return HAPAX_DIFFERS_NOT;
}

static enum hapax__write claim(const struct hapax_record *record, struct hapax_op *op,
                               int64_t now_us, struct hapax_record *next)
{
    if (!record)
        return claim_absent(op, now_us, next);
    if (same_token(record, op))
        return claim_repeated(record, op);
    op->differs = compare(record, op);
    *next = *record;
    if (op->differs != HAPAX_DIFFERS_NOT) {
        if (!hapax__unbound(record))
            return say(op, HAPAX_MISMATCH, record);
        op->differs = HAPAX_DIFFERS_NOT;
    }
    if (lease_live(record, now_us))
        return say(op, HAPAX_IN_FLIGHT, record);
    switch (record->state) {
    case HAPAX_STATE_STARTED:
        return claim_dead(op, next, now_us);
    case HAPAX_STATE_FAILED:
        return claim_failed(op, next, now_us);
    case HAPAX_STATE_UNKNOWN:
        if (op->on_expired == HAPAX_EXPIRED_RECONCILE)
            return take_over(op, next, now_us);
        return say(op, HAPAX_UNKNOWN, record);
    default:
        assert(record->state == HAPAX_STATE_COMPLETED);
        if (!record->reruns || !op->rerun_completed)
            return say(op, HAPAX_COMPLETED, record);
        next->spent = 0;
        return grant(op, next, now_us);
    }
}

/* ---- RENEW, COMPLETE, FAIL --------------------------------------------------------- */

static enum hapax__write renew(const struct hapax_record *record, struct hapax_op *op,
                               int64_t now_us, struct hapax_record *next)
{
    int64_t until_us = later(now_us, op->lease_ms);

    if (record->state != HAPAX_STATE_STARTED && record->state != HAPAX_STATE_UNKNOWN)
        return say(op, HAPAX_LOST, record);
    if (op->if_attempt != 0 && op->if_attempt != record->attempt)
        return say(op, HAPAX_LOST, record);
    *next = *record;
    if (op->reconciled)
        next->stale = false;
    if (record->state == HAPAX_STATE_STARTED && until_us > record->lease_until_us)
        next->lease_until_us = until_us;
    return write(op, HAPAX_OK, next, now_us);
}

static enum hapax__write complete(const struct hapax_record *record, struct hapax_op *op,
                                  int64_t now_us, struct hapax_record *next)
{
    int64_t kept_ms = HAPAX_FOREVER_MS;

    if (record->state == HAPAX_STATE_COMPLETED)
        return say(op, HAPAX_OK, record);
    if (record->state == HAPAX_STATE_FAILED)
        return say(op, HAPAX_LOST, record);
    *next = *record;
    next->state = HAPAX_STATE_COMPLETED;
    next->stale = false;
    next->outcome = op->outcome;
    if (op->kept_ms > 0)
        next->retention_ms = op->kept_ms;
    if (next->retention_ms != HAPAX_FOREVER_MS)
        kept_ms = next->retention_ms + op->tombstone_ms;
    return write_for(op, HAPAX_OK, next, kept_ms, now_us);
}

static enum hapax__write fail(const struct hapax_record *record, struct hapax_op *op,
                              int64_t now_us, struct hapax_record *next)
{
    /* Nobody knows what the attempt did, and the next one may run all the same. */
    bool passes_on = op->died && !record->hold;

    if (record->state == HAPAX_STATE_COMPLETED)
        return say(op, HAPAX_LOST, record);
    if (record->state == HAPAX_STATE_UNKNOWN)
        return say(op, HAPAX_OK, record);
    if (record->state == HAPAX_STATE_FAILED) {
        bool same = record->ran == op->ran && (passes_on ? record->stale : !op->as_unknown) &&
                    (!op->ran || hapax__outcome_same(&record->outcome, &op->outcome));

        return say(op, same ? HAPAX_OK : HAPAX_LOST, record);
    }
    *next = *record;
    next->ran = op->ran;
    /* Where nothing ran no answer would ever show the outcome. */
    next->outcome = op->ran || op->as_unknown ? op->outcome : (struct hapax_outcome){0};
    if (op->as_unknown && !passes_on) {
        lose_track(next);
    } else {
        next->state = HAPAX_STATE_FAILED;
        next->spent += op->ran;
        next->stale |= passes_on;
    }
    /* The record goes on having its claim's retention, for what a RESOLVE makes of it. */
    return write_for(op, HAPAX_OK, next, op->kept_ms > 0 ? op->kept_ms : next->retention_ms,
                     now_us);
}

/* ---- RESOLVE ----------------------------------------------------------------------- */

static enum hapax__write resolve(const struct hapax_record *record, struct hapax_op *op,
                                 int64_t now_us, struct hapax_record *next)
{
    if (!record)
        return say(op, HAPAX_ABSENT, NULL);
    if (same_token(record, op))
        return say(op, HAPAX_OK, record);
    if (op->if_attempt != 0 && op->if_attempt != record->attempt)
        return say(op, HAPAX_LOST, record);
    if (op->if_updated_us != 0 && op->if_updated_us != record->updated_us)
        return say(op, HAPAX_LOST, record);
    if (!op->force && lease_live(record, now_us))
        return say(op, HAPAX_IN_FLIGHT, record);
    if (!op->force && record->state == HAPAX_STATE_COMPLETED)
        return say(op, HAPAX_COMPLETED, record);
    if (op->resolve == HAPAX_RESOLVE_FORGET) {
        say(op, HAPAX_OK, record);
        return HAPAX__DELETE;
    }
    *next = *record;
    hapax__mark(&next->mark, &op->token);
    next->fence = next_fence(record->fence, now_us);
    next->stale = false;
    next->resolved_us = now_us;
    next->resolved_by = op->by;
    next->replaced_state = record->state;
    next->replaced_status = record->outcome.status;
    next->outcome = op->outcome;
    if (op->resolve == HAPAX_RESOLVE_COMPLETE) {
        next->state = HAPAX_STATE_COMPLETED;
    } else {
        assert(op->resolve == HAPAX_RESOLVE_FAIL);
        next->state = HAPAX_STATE_FAILED;
        next->ran = true;
        next->spent = 0; /* the operator asks for another attempt, so it must be granted */
    }
    return write(op, HAPAX_OK, next, now_us);
}

/* ---- IMPORT ------------------------------------------------------------------------ */

/* Whether the record is what an earlier import put there, and has gone on since where it is from.
 * Each grant and each RESOLVE here leaves a mark; without one, no attempt of this store is lost. A
 * completed one never gives way. */
static bool follows(const struct hapax_record *in, const struct hapax_record *record,
                    int64_t now_us)
{
    static const struct hapax_mark none;

    return memcmp(&record->mark, &none, sizeof(none)) == 0 &&
           record->state != HAPAX_STATE_COMPLETED && !lease_live(record, now_us) &&
           in->created_us == record->created_us && in->fence >= record->fence &&
           in->updated_us > record->updated_us;
}

static bool same_version(const struct hapax_record *in, const struct hapax_record *record)
{
    return in->created_us == record->created_us && in->updated_us == record->updated_us &&
           in->fence == record->fence;
}

static enum hapax__write import(const struct hapax_record *record, struct hapax_op *op,
                                int64_t now_us, struct hapax_record *next)
{
    struct hapax_record in;
    enum hapax_error error = hapax__record_decode(&in, &op->id, op->import);

    assert(error == HAPAX_ERR_NONE);
    op->error = error;
    if (record && !follows(&in, record, now_us)) {
        op->verdict = same_version(&in, record) ? HAPAX_OK : HAPAX_FOUND;
        show(op, record, false);
        return HAPAX__KEEP;
    }
    memset(&in.mark, 0, sizeof(in.mark));
    in.outcome = op->outcome;
    *next = in;
    op->verdict = HAPAX_OK;
    show(op, next, false);
    return HAPAX__WRITE;
}

/* ---- PURGE ------------------------------------------------------------------------- */

enum hapax__write hapax__swept(const struct hapax_record *record, int64_t now_us,
                               struct hapax_record *next)
{
    assert(now_us > 0);
    if (hapax__expired(record, now_us))
        return HAPAX__DELETE;
    if (hapax__tombstone(record, now_us)) {
        bool buried = !record->outcome.body_kept &&
                      record->outcome.headers.len + record->outcome.body.len == 0;

        *next = *record;
        hapax__bury(next);
        return buried ? HAPAX__KEEP : HAPAX__WRITE;
    }
    if (!is_unanswered(record) &&
        (record->state != HAPAX_STATE_STARTED || !record->hold || lease_live(record, now_us)))
        return HAPAX__KEEP;
    *next = *record;
    /* The death of the attempt in question was counted when the claim was granted. The next claim
     * that asks about it counts it again. */
    next->spent -= is_unanswered(record) && record->spent > 0;
    lose_track(next);
    stamp(next, next->retention_ms, now_us);
    assert(next->expires_us == 0);
    return HAPAX__WRITE;
}

/* ------------------------------------------------------------------------------------ */

static enum hapax__write lost_to_absence(struct hapax_op *op)
{
    struct hapax_record none = {.id = op->id, .state = HAPAX_STATE_ABSENT};

    return say(op, HAPAX_LOST, &none);
}

enum hapax__write hapax__machine(const struct hapax_record *record, struct hapax_op *op,
                                 int64_t now_us, struct hapax_record *next)
{
    enum hapax__write (*by_token)(const struct hapax_record *, struct hapax_op *, int64_t,
                                  struct hapax_record *);

    assert(now_us > 0);
    assert(!record || memcmp(&record->id, &op->id, sizeof(op->id)) == 0);
    op->now_us = now_us;
    op->differs = HAPAX_DIFFERS_NOT;
    memset(&op->record, 0, sizeof(op->record));
    if (record && hapax__expired(record, now_us))
        record = NULL;
    switch (op->kind) {
    case HAPAX_OP_CLAIM:
        return claim(record, op, now_us, next);
    case HAPAX_OP_RESOLVE:
        return resolve(record, op, now_us, next);
    case HAPAX_OP_IMPORT:
        return import(record, op, now_us, next);
    case HAPAX_OP_READ:
        return say(op, record ? HAPAX_FOUND : HAPAX_ABSENT, record);
    case HAPAX_OP_RENEW:
        by_token = renew;
        break;
    case HAPAX_OP_COMPLETE:
        by_token = complete;
        break;
    default:
        assert(op->kind == HAPAX_OP_FAIL);
        by_token = fail;
    }
    if (!record)
        return lost_to_absence(op);
    if (!same_token(record, op))
        return say(op, HAPAX_LOST, record);
    return by_token(record, op, now_us, next);
}
