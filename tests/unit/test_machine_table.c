/* SPDX-License-Identifier: Apache-2.0
 *
 * The machine against its tables. The rows below say docs/design.md, "The machine", a second
 * time: each names the facts that must hold and those that must not, and what then becomes of
 * the record; of the rows of one kind of op the first that fits counts. Every record (state,
 * bits, counts, lease, retention) meets every op, and each field of the next record and of the
 * answer is compared. A row that nothing reaches is a failure as well.
 *
 * Rejected: expectations worked out by code of the same shape as the machine's, which would
 * share its mistakes.
 */
#include "core/id.h"
#include "core/machine.h"
#include "record_diff.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define NOW      INT64_C(1700000000000000)
#define LEASE_MS 30000
#define MS       INT64_C(1000)

enum fact {
    ABSENT = 1 << 0, /* no record, or its retention is over */
    STARTED = 1 << 1,
    COMPLETED = 1 << 2,
    FAILED = 1 << 3,
    UNKNOWN = 1 << 4,
    LIVE = 1 << 5, /* started, and its lease is not over */
    OWN = 1 << 6, /* the op's token is the record's */
    OTHER_FINGERPRINT = 1 << 7,
    OTHER_CALLER = 1 << 8,
    HOLD = 1 << 9,
    STALE = 1 << 10,
    RAN = 1 << 11,
    RERUNS = 1 << 12,
    SPENT = 1 << 13, /* some attempt may have run */
    USED_UP = 1 << 14, /* no attempt is left */
    LAST = 1 << 15, /* no attempt is left if the one that died counts */
    SAYS_RERUN = 1 << 16, /* the op's on_expired */
    SAYS_HOLD = 1 << 17,
    SAYS_RECONCILE = 1 << 18,
    SAYS_RERUN_COMPLETED = 1 << 19,
    SAYS_RAN = 1 << 20,
    SAYS_UNKNOWN = 1 << 21,
    SAYS_RECONCILED = 1 << 22,
    SAME_OUTCOME = 1 << 23,
    FORCED = 1 << 24,
    OTHER_WRITE = 1 << 25, /* if_attempt or if_updated_us is given and is not the record's */
    TO_COMPLETE = 1 << 26,
    TO_FAIL = 1 << 27,
    TO_FORGET = 1 << 28,
    RESOLVED_ONCE = 1 << 29, /* an operator resolved it at some time */
    SAYS_DIED = 1 << 30
};

enum effect {
    FRESH = 1 << 0, /* nothing of an old record is left */
    ATTEMPT_UP = 1 << 1,
    FENCE_UP = 1 << 2,
    TAKES_TOKEN = 1 << 3,
    TAKES_IDENTITY = 1 << 4, /* fingerprint and caller */
    TAKES_RETENTION = 1 << 5,
    NEW_LEASE = 1 << 6,
    LONGER_LEASE = 1 << 7,
    NO_OUTCOME = 1 << 8,
    TAKES_OUTCOME = 1 << 9,
    STALE_ON = 1 << 10,
    STALE_OFF = 1 << 11,
    RAN_ON = 1 << 12,
    RAN_OFF = 1 << 13,
    SPENT_UP = 1 << 14,
    SPENT_ZERO = 1 << 15,
    MAY_SET_HOLD = 1 << 16,
    MAY_CLEAR_RERUNS = 1 << 17,
    RESOLVED = 1 << 18,
    SHOWS_OUTCOME = 1 << 19,
    KEPT_A_MINUTE = 1 << 20,
    SPENT_DOWN = 1 << 21
};

#define GRANT                                                                                      \
    (ATTEMPT_UP | FENCE_UP | TAKES_TOKEN | TAKES_RETENTION | NEW_LEASE | NO_OUTCOME | RAN_OFF |    \
     MAY_SET_HOLD | MAY_CLEAR_RERUNS)
#define TAKEOVER (GRANT | STALE_ON | SPENT_UP)
#define RESOLVE  (TAKES_TOKEN | FENCE_UP | STALE_OFF | RESOLVED | TAKES_OUTCOME)

struct row {
    const char *name;
    uint32_t all; /* facts */
    uint32_t none; /* facts */
    enum hapax_verdict verdict;
    enum hapax_differs differs;
    enum hapax_state state; /* of the next record; 0: it is kept as it is */
    uint32_t effects;
};

static const struct row claim_rows[] = {
    {"absent: claimed", ABSENT, 0, HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED, FRESH | GRANT},

    {"repeated on started: the same again", OWN | STARTED, 0, HAPAX_CLAIMED, 0, 0, 0},
    {"repeated on failed: lost", OWN | FAILED, 0, HAPAX_LOST, 0, 0, 0},
    {"repeated on unknown: lost", OWN | UNKNOWN, 0, HAPAX_LOST, 0, 0, 0},
    {"repeated on completed: never a new claim", OWN | COMPLETED, 0, HAPAX_COMPLETED, 0, 0,
     SHOWS_OUTCOME},

    {"nothing ever ran: another fingerprint replaces it", FAILED | OTHER_FINGERPRINT,
     RAN | STALE | SPENT | RESOLVED_ONCE, HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED,
     GRANT | TAKES_IDENTITY},
    {"nothing ever ran: another caller replaces it", FAILED | OTHER_CALLER,
     RAN | STALE | SPENT | RESOLVED_ONCE, HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED,
     GRANT | TAKES_IDENTITY},
    {"another caller", OTHER_CALLER, 0, HAPAX_MISMATCH, HAPAX_DIFFERS_CALLER, 0, 0},
    {"another fingerprint", OTHER_FINGERPRINT, 0, HAPAX_MISMATCH, HAPAX_DIFFERS_FINGERPRINT, 0, 0},

    {"in flight", STARTED | LIVE, 0, HAPAX_IN_FLIGHT, 0, 0, 0},

    {"lease over, the op reconciles", STARTED | SAYS_RECONCILE, 0, HAPAX_CLAIMED, 0,
     HAPAX_STATE_STARTED, TAKEOVER},
    {"lease over, the op holds", STARTED | SAYS_HOLD, 0, HAPAX_UNKNOWN, 0, HAPAX_STATE_UNKNOWN,
     STALE_ON},
    {"lease over, the record holds", STARTED | HOLD, 0, HAPAX_UNKNOWN, 0, HAPAX_STATE_UNKNOWN,
     STALE_ON},
    {"lease over, that was the last attempt", STARTED | LAST, 0, HAPAX_FAILED, 0,
     HAPAX_STATE_FAILED, STALE_ON | RAN_ON | SPENT_UP | SHOWS_OUTCOME},
    {"lease over: taken over", STARTED, 0, HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED, TAKEOVER},

    {"failed and stale, the op holds", FAILED | STALE | SAYS_HOLD, 0, HAPAX_UNKNOWN, 0,
     HAPAX_STATE_UNKNOWN, 0},
    {"failed and stale, the record holds", FAILED | STALE | HOLD | SAYS_RERUN, 0, HAPAX_UNKNOWN, 0,
     HAPAX_STATE_UNKNOWN, 0},
    {"failed and stale, the record holds, the op reconciles", FAILED | STALE | HOLD, 0,
     HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED, GRANT},
    {"failed, attempts used up", FAILED | USED_UP, 0, HAPAX_FAILED, 0, 0, SHOWS_OUTCOME},
    {"failed: claimed again", FAILED, 0, HAPAX_CLAIMED, 0, HAPAX_STATE_STARTED, GRANT},

    {"unknown, the op reconciles", UNKNOWN | SAYS_RECONCILE, 0, HAPAX_CLAIMED, 0,
     HAPAX_STATE_STARTED, TAKEOVER},
    {"unknown", UNKNOWN, 0, HAPAX_UNKNOWN, 0, 0, 0},

    {"completed, both rerun", COMPLETED | RERUNS | SAYS_RERUN_COMPLETED, 0, HAPAX_CLAIMED, 0,
     HAPAX_STATE_STARTED, GRANT | SPENT_ZERO},
    {"completed", COMPLETED, 0, HAPAX_COMPLETED, 0, 0, SHOWS_OUTCOME},
};

static const struct row renew_rows[] = {
    {"absent", ABSENT, 0, HAPAX_LOST, 0, 0, 0},
    {"foreign, completed", COMPLETED, OWN, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
    {"foreign", 0, OWN, HAPAX_LOST, 0, 0, 0},
    {"another attempt", OTHER_WRITE | STARTED, 0, HAPAX_LOST, 0, 0, 0},
    {"another attempt, unknown", OTHER_WRITE | UNKNOWN, 0, HAPAX_LOST, 0, 0, 0},
    {"started, the hook said no", STARTED | SAYS_RECONCILED, 0, HAPAX_OK, 0, HAPAX_STATE_STARTED,
     LONGER_LEASE | STALE_OFF},
    {"started", STARTED, 0, HAPAX_OK, 0, HAPAX_STATE_STARTED, LONGER_LEASE},
    {"unknown, the hook said no", UNKNOWN | SAYS_RECONCILED, 0, HAPAX_OK, 0, HAPAX_STATE_UNKNOWN,
     STALE_OFF},
    {"unknown stays so", UNKNOWN, 0, HAPAX_OK, 0, HAPAX_STATE_UNKNOWN, 0},
    {"failed", FAILED, 0, HAPAX_LOST, 0, 0, 0},
    {"completed", COMPLETED, 0, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
};

static const struct row complete_rows[] = {
    {"absent", ABSENT, 0, HAPAX_LOST, 0, 0, 0},
    {"foreign, completed", COMPLETED, OWN, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
    {"foreign", 0, OWN, HAPAX_LOST, 0, 0, 0},
    {"started", STARTED, 0, HAPAX_OK, 0, HAPAX_STATE_COMPLETED,
     TAKES_OUTCOME | STALE_OFF | SHOWS_OUTCOME},
    {"unknown", UNKNOWN, 0, HAPAX_OK, 0, HAPAX_STATE_COMPLETED,
     TAKES_OUTCOME | STALE_OFF | SHOWS_OUTCOME},
    {"failed", FAILED, 0, HAPAX_LOST, 0, 0, 0},
    {"completed: what is stored stands", COMPLETED, 0, HAPAX_OK, 0, 0, SHOWS_OUTCOME},
};

static const struct row fail_rows[] = {
    {"absent", ABSENT, 0, HAPAX_LOST, 0, 0, 0},
    {"foreign, completed", COMPLETED, OWN, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
    {"foreign", 0, OWN, HAPAX_LOST, 0, 0, 0},
    {"started, died, but the record holds", STARTED | SAYS_DIED | HOLD, 0, HAPAX_OK, 0,
     HAPAX_STATE_UNKNOWN, TAKES_OUTCOME | RAN_ON | STALE_ON},
    {"started, died", STARTED | SAYS_DIED, 0, HAPAX_OK, 0, HAPAX_STATE_FAILED,
     TAKES_OUTCOME | RAN_ON | STALE_ON | SPENT_UP},
    {"started, to unknown, ran", STARTED | SAYS_UNKNOWN | SAYS_RAN, 0, HAPAX_OK, 0,
     HAPAX_STATE_UNKNOWN, TAKES_OUTCOME | RAN_ON | STALE_ON},
    {"started, to unknown", STARTED | SAYS_UNKNOWN, 0, HAPAX_OK, 0, HAPAX_STATE_UNKNOWN,
     TAKES_OUTCOME | RAN_OFF | STALE_ON},
    {"started, ran", STARTED | SAYS_RAN, 0, HAPAX_OK, 0, HAPAX_STATE_FAILED,
     TAKES_OUTCOME | RAN_ON | SPENT_UP},
    {"started, nothing run, ever", STARTED, STALE | SPENT | RESOLVED_ONCE, HAPAX_OK, 0,
     HAPAX_STATE_FAILED, NO_OUTCOME | RAN_OFF | KEPT_A_MINUTE},
    {"started, nothing run", STARTED, 0, HAPAX_OK, 0, HAPAX_STATE_FAILED, NO_OUTCOME | RAN_OFF},
    {"unknown stays so", UNKNOWN, 0, HAPAX_OK, 0, 0, 0},
    {"failed, the same: died", FAILED | SAYS_DIED | RAN | STALE | SAME_OUTCOME, HOLD, HAPAX_OK, 0,
     0, 0},
    {"failed, but to unknown now", FAILED | SAYS_UNKNOWN, 0, HAPAX_LOST, 0, 0, 0},
    {"failed, the same: ran", FAILED | RAN | SAYS_RAN | SAME_OUTCOME, 0, HAPAX_OK, 0, 0, 0},
    {"failed, the same: nothing run", FAILED, RAN | SAYS_RAN, HAPAX_OK, 0, 0, 0},
    {"failed, otherwise", FAILED, 0, HAPAX_LOST, 0, 0, 0},
    {"completed", COMPLETED, 0, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
};

static const struct row read_rows[] = {
    {"absent", ABSENT, 0, HAPAX_ABSENT, 0, 0, 0},
    {"found", 0, 0, HAPAX_FOUND, 0, 0, SHOWS_OUTCOME},
};

static const struct row resolve_rows[] = {
    {"absent", ABSENT, 0, HAPAX_ABSENT, 0, 0, 0},
    {"repeated on completed", OWN | COMPLETED, 0, HAPAX_OK, 0, 0, SHOWS_OUTCOME},
    {"repeated", OWN, 0, HAPAX_OK, 0, 0, 0},
    {"another write, completed", OTHER_WRITE | COMPLETED, 0, HAPAX_LOST, 0, 0, SHOWS_OUTCOME},
    {"another write", OTHER_WRITE, 0, HAPAX_LOST, 0, 0, 0},
    {"a live lease", STARTED | LIVE, FORCED, HAPAX_IN_FLIGHT, 0, 0, 0},
    {"completed", COMPLETED, FORCED, HAPAX_COMPLETED, 0, 0, SHOWS_OUTCOME},
    {"forgotten though completed", TO_FORGET | COMPLETED, 0, HAPAX_OK, 0, HAPAX_STATE_ABSENT,
     SHOWS_OUTCOME},
    {"forgotten", TO_FORGET, 0, HAPAX_OK, 0, HAPAX_STATE_ABSENT, 0},
    {"completed by an operator", TO_COMPLETE, 0, HAPAX_OK, 0, HAPAX_STATE_COMPLETED,
     RESOLVE | SHOWS_OUTCOME},
    {"failed by an operator", TO_FAIL, 0, HAPAX_OK, 0, HAPAX_STATE_FAILED,
     RESOLVE | RAN_ON | SPENT_ZERO},
};

static const struct row purge_rows[] = {
    {"expired: removed", ABSENT, 0, 0, 0, HAPAX_STATE_ABSENT, 0},
    {"a live lease", STARTED | LIVE, 0, 0, 0, 0, 0},
    {"lease over, the record holds", STARTED | HOLD, 0, 0, 0, HAPAX_STATE_UNKNOWN, STALE_ON},
    {"lease over: runs again", STARTED, 0, 0, 0, 0, 0},
    {"completed", COMPLETED, 0, 0, 0, 0, 0},
    {"failed and stale, the record holds", FAILED | HOLD | STALE, 0, 0, 0, HAPAX_STATE_UNKNOWN,
     STALE_ON | SPENT_DOWN},
    {"failed", FAILED, 0, 0, 0, 0, 0},
    {"unknown", UNKNOWN, 0, 0, 0, 0, 0},
};

#define ROWS(rows)                                                                                 \
    {                                                                                              \
        rows, sizeof(rows) / sizeof((rows)[0])                                                     \
    }

static const struct {
    const struct row *rows;
    size_t n;
} tables[] = {
    [HAPAX_OP_CLAIM] = ROWS(claim_rows),       [HAPAX_OP_RENEW] = ROWS(renew_rows),
    [HAPAX_OP_COMPLETE] = ROWS(complete_rows), [HAPAX_OP_FAIL] = ROWS(fail_rows),
    [HAPAX_OP_READ] = ROWS(read_rows),         [HAPAX_OP_RESOLVE] = ROWS(resolve_rows),
    [HAPAX_OP_PURGE] = ROWS(purge_rows),
};

static unsigned long hits[HAPAX_OP_RESOLVE + 1][32];

static const struct hapax_token own_token = {{0x51, 0x52, 0x53}};

static struct hapax_record some_record(void)
{
    struct hapax_record record = {.attempt = 7, .created_us = NOW - 5000, .updated_us = NOW - 3000};

    memset(&record.id, 0xa1, sizeof(record.id));
    hapax__mark(&record.mark, &own_token);
    memset(&record.fingerprint, 0xf1, sizeof(record.fingerprint));
    memset(&record.caller, 0xc1, sizeof(record.caller));
    memset(&record.owner, 0x0e, sizeof(record.owner));
    record.scope = hapax_str("old scope");
    record.what = hapax_str("POST /old");
    record.replaced_state = HAPAX_STATE_STARTED;
    record.replaced_status = 299;
    record.retention_ms = 3600000;
    record.resolved_us = NOW - 4000;
    record.resolved_by = hapax_str("ann");
    record.outcome.status = 200;
    record.outcome.body_kept = true;
    record.outcome.headers = hapax_str("A: b\r\n");
    record.outcome.body = hapax_str("body");
    return record;
}

/* ---- what is expected ---------------------------------------------------------------- */

static uint32_t facts_of_record(const struct hapax_record *record, const struct hapax_op *op)
{
    static const uint32_t states[] = {ABSENT, STARTED, COMPLETED, FAILED, UNKNOWN};
    struct hapax_mark mark;
    uint32_t facts;

    if (!record || (record->expires_us && record->expires_us <= NOW))
        return ABSENT;
    facts = states[record->state];
    facts |= record->state == HAPAX_STATE_STARTED && record->lease_until_us > NOW ? LIVE : 0;
    hapax__mark(&mark, &op->token);
    facts |= memcmp(&record->mark, &mark, sizeof(mark)) == 0 ? OWN : 0;
    facts |= record->fingerprint.bytes[31] != op->fingerprint.bytes[31] ? OTHER_FINGERPRINT : 0;
    facts |= record->caller.bytes[31] != op->caller.bytes[31] ? OTHER_CALLER : 0;
    facts |= (record->hold ? HOLD : 0) | (record->stale ? STALE : 0);
    facts |= (record->ran ? RAN : 0) | (record->reruns ? RERUNS : 0);
    facts |= record->spent > 0 ? SPENT : 0;
    facts |= record->resolved_us != 0 ? RESOLVED_ONCE : 0;
    facts |= op->attempts_max && record->spent >= op->attempts_max ? USED_UP : 0;
    facts |= op->attempts_max && record->spent + 1 >= op->attempts_max ? LAST : 0;
    facts |= op->if_attempt && op->if_attempt != record->attempt ? OTHER_WRITE : 0;
    facts |= op->if_updated_us && op->if_updated_us != record->updated_us ? OTHER_WRITE : 0;
    facts |= outcome_diff(&record->outcome, &op->outcome) ? 0 : SAME_OUTCOME;
    return facts;
}

static uint32_t facts_of_op(const struct hapax_op *op)
{
    static const uint32_t expired[] = {0, SAYS_RERUN, SAYS_HOLD, SAYS_RECONCILE};
    static const uint32_t resolves[] = {0, TO_COMPLETE, TO_FAIL, TO_FORGET};

    return expired[op->on_expired] | resolves[op->resolve] |
           (op->rerun_completed ? SAYS_RERUN_COMPLETED : 0) | (op->ran ? SAYS_RAN : 0) |
           (op->as_unknown ? SAYS_UNKNOWN : 0) | (op->reconciled ? SAYS_RECONCILED : 0) |
           (op->died ? SAYS_DIED : 0) | (op->force ? FORCED : 0);
}

static const struct row *row_of(enum hapax_op_kind kind, uint32_t facts)
{
    for (size_t i = 0; i < tables[kind].n; i++) {
        const struct row *row = &tables[kind].rows[i];

        if ((facts & row->all) == row->all && !(facts & row->none)) {
            hits[kind][i]++;
            return row;
        }
    }
    fail_msg("no row fits an op of kind %d, facts %#x", (int)kind, (unsigned)facts);
    return NULL;
}

static void expect_identity(struct hapax_record *r, const struct hapax_op *op, uint32_t effects)
{
    if (effects & FRESH) {
        memset(r, 0, sizeof(*r));
        r->id = op->id;
        r->owner = op->owner;
        r->scope = op->scope;
        r->created_us = NOW;
        r->reruns = true; /* and cleared below, unless this op says it too */
        effects |= TAKES_IDENTITY;
    }
    if (effects & TAKES_IDENTITY) {
        r->fingerprint = op->fingerprint;
        r->caller = op->caller;
    }
    if (effects & ATTEMPT_UP)
        r->attempt++;
    if (effects & FENCE_UP)
        r->fence = r->fence < (uint64_t)NOW ? (uint64_t)NOW : r->fence + 1;
    if (effects & TAKES_TOKEN)
        hapax__mark(&r->mark, &op->token);
    if (effects & ATTEMPT_UP)
        r->what = op->what;
    if (effects & RESOLVED) {
        r->replaced_state = r->state;
        r->replaced_status = r->outcome.status;
        r->resolved_us = NOW;
        r->resolved_by = op->by;
    }
}

static void expect_bits(struct hapax_record *r, const struct hapax_op *op, uint32_t effects)
{
    if (effects & MAY_SET_HOLD && op->on_expired != HAPAX_EXPIRED_RERUN)
        r->hold = true;
    if (effects & MAY_CLEAR_RERUNS && !op->rerun_completed)
        r->reruns = false;
    if (effects & (STALE_ON | STALE_OFF))
        r->stale = effects & STALE_ON;
    if (effects & (RAN_ON | RAN_OFF))
        r->ran = effects & RAN_ON;
    if (effects & SPENT_UP)
        r->spent++;
    if (effects & SPENT_ZERO)
        r->spent = 0;
    if (effects & SPENT_DOWN)
        r->spent -= r->spent > 0;
    if (effects & NO_OUTCOME)
        memset(&r->outcome, 0, sizeof(r->outcome));
    if (effects & TAKES_OUTCOME)
        r->outcome = op->outcome;
}

static void expect_times(struct hapax_record *r, const struct hapax_op *op, uint32_t effects)
{
    int64_t lease_us = NOW + op->lease_ms * MS;
    bool forever;

    r->updated_us = NOW;
    if (effects & TAKES_RETENTION)
        r->retention_ms = op->retention_ms;
    if (effects & NEW_LEASE || (effects & LONGER_LEASE && lease_us > r->lease_until_us))
        r->lease_until_us = lease_us;
    if (r->state != HAPAX_STATE_STARTED)
        r->lease_until_us = 0;
    forever = r->retention_ms == HAPAX_FOREVER_MS || r->state == HAPAX_STATE_UNKNOWN ||
              (r->state == HAPAX_STATE_STARTED && r->hold) ||
              (r->state == HAPAX_STATE_FAILED && r->hold && r->stale);
    r->expires_us = forever ? 0 : NOW + r->retention_ms * MS;
    if (effects & KEPT_A_MINUTE)
        r->expires_us = NOW + 60000 * MS;
    if (!forever && r->expires_us < r->lease_until_us)
        r->expires_us = r->lease_until_us;
}

/* ---- one case ------------------------------------------------------------------------ */

static void check(const struct row *row, const char *what, const char *diff, uint32_t facts)
{
    if (diff)
        fail_msg("row \"%s\": %s: %s differs (facts %#x)", row->name, what, diff, (unsigned)facts);
}

static void check_answer(const struct row *row, const struct hapax_op *op,
                         const struct hapax_record *shown, uint32_t facts)
{
    struct hapax_record expected = {0};

    if (!(facts & ABSENT) || row->state)
        expected = *shown;
    expected.id = op->record.id; /* where there is no record it says nothing */
    memset(&expected.mark, 0, sizeof(expected.mark));
    if (!(row->effects & SHOWS_OUTCOME))
        memset(&expected.outcome, 0, sizeof(expected.outcome));
    if (op->verdict != row->verdict)
        fail_msg("row \"%s\": verdict %d, not %d (facts %#x)", row->name, (int)op->verdict,
                 (int)row->verdict, (unsigned)facts);
    if (op->differs != row->differs || op->error != HAPAX_ERR_NONE || op->now_us != NOW)
        fail_msg("row \"%s\": differs, error or now_us (facts %#x)", row->name, (unsigned)facts);
    check(row, "answer", record_diff(&op->record, &expected), facts);
}

/* Judges once with a separate next record and once in place. */
static void judge(const struct hapax_record *record, const struct hapax_op *asked)
{
    uint32_t facts = facts_of_record(record, asked) | facts_of_op(asked);
    const struct row *row = row_of(asked->kind, facts);
    bool deletes = asked->kind == HAPAX_OP_RESOLVE && asked->resolve == HAPAX_RESOLVE_FORGET;
    bool forgets = deletes && row->verdict == HAPAX_OK && !(facts & OWN);
    enum hapax__write writes = forgets ? HAPAX__DELETE : (row->state ? HAPAX__WRITE : HAPAX__KEEP);
    struct hapax_record before = {0}, expected, next, place;

    if (record)
        before = *record;
    expected = before;
    place = before;
    if (writes == HAPAX__WRITE) {
        expect_identity(&expected, asked, row->effects);
        expected.state = row->state;
        expect_bits(&expected, asked, row->effects);
        expect_times(&expected, asked, row->effects);
    }
    for (int in_place = 0; in_place < (record ? 2 : 1); in_place++) {
        struct hapax_op op = *asked;
        struct hapax_record *to = in_place ? &place : &next;
        const struct hapax_record *from = record && in_place ? &place : record;

        op.error = HAPAX_ERR_INDETERMINATE; /* what an earlier answer left */
        op.differs = HAPAX_DIFFERS_CALLER;
        op.record = some_record();
        if (hapax__machine(from, &op, NOW, to) != writes)
            fail_msg("row \"%s\": write is not %d (facts %#x)", row->name, (int)writes,
                     (unsigned)facts);
        check_answer(row, &op, &expected, facts);
        if (writes == HAPAX__WRITE || in_place)
            check(row, "next record", record_diff(to, &expected), facts);
    }
    if (record)
        check(row, "the record judged", record_diff(record, &before), facts);
}

/* What PURGE makes of a record, with a separate next record and in place. */
static void sweep(const struct hapax_record *record, const struct hapax_op *purge)
{
    uint32_t facts = facts_of_record(record, purge);
    const struct row *row = row_of(HAPAX_OP_PURGE, facts);
    enum hapax__write writes =
        facts & ABSENT ? HAPAX__DELETE : (row->state ? HAPAX__WRITE : HAPAX__KEEP);
    struct hapax_record before = *record, place = *record, expected = *record, next;

    if (writes == HAPAX__WRITE) {
        expected.state = row->state;
        expect_bits(&expected, purge, row->effects);
        expect_times(&expected, purge, row->effects);
    }
    if (hapax__swept(record, NOW, &next) != writes || hapax__swept(&place, NOW, &place) != writes)
        fail_msg("row \"%s\": write is not %d (facts %#x)", row->name, (int)writes,
                 (unsigned)facts);
    if (writes == HAPAX__WRITE)
        check(row, "next record", record_diff(&next, &expected), facts);
    check(row, "next record in place", record_diff(&place, &expected), facts);
    check(row, "the record judged", record_diff(record, &before), facts);
}

/* ---- every record -------------------------------------------------------------------- */

static struct hapax_op some_op(enum hapax_op_kind kind, bool own)
{
    struct hapax_record record = some_record();
    struct hapax_op op = {.kind = kind, .id = record.id, .lease_ms = LEASE_MS};

    op.token = own_token;
    if (!own)
        op.token.bytes[15]++;
    op.fingerprint = record.fingerprint;
    op.caller = record.caller;
    memset(&op.owner, 0x0f, sizeof(op.owner));
    op.scope = hapax_str("scope of the op");
    op.what = hapax_str("PUT /new");
    op.by = hapax_str("bob");
    op.retention_ms = 7200000;
    op.on_expired = HAPAX_EXPIRED_RERUN;
    op.outcome.status = 201;
    op.outcome.headers = hapax_str("C: d\r\n");
    return op;
}

/* Every record of a state: bits, counts, fence behind and ahead of the clock, retention. */
static void each_of_state(enum hapax_state state, int64_t lease_until_us, const struct hapax_op *op)
{
    static const int64_t expiries[] = {0, NOW + 1, NOW, NOW - 1};
    struct hapax_record record = some_record();

    record.state = state;
    record.lease_until_us = lease_until_us;
    for (unsigned i = 0; i < 16 * 4 * 3 * 2 * 2; i++) {
        record.hold = i & 1;
        record.stale = i & 2;
        record.ran = i & 4;
        record.reruns = i & 8;
        record.expires_us = expiries[i / 16 % 4];
        record.spent = i / 64 % 3;
        record.fence = (uint64_t)(i / 192 % 2 ? NOW + 9 : NOW - 9);
        record.resolved_us = i / 384 ? NOW - 4000 : 0;
        (op->kind == HAPAX_OP_PURGE ? sweep : judge)(&record, op);
    }
}

static void each_record(const struct hapax_op *op)
{
    static const int64_t leases[] = {NOW - 1, NOW, NOW + 1, NOW + 2 * LEASE_MS * MS};

    if (op->kind != HAPAX_OP_PURGE)
        judge(NULL, op);
    for (size_t i = 0; i < sizeof(leases) / sizeof(leases[0]); i++)
        each_of_state(HAPAX_STATE_STARTED, leases[i], op);
    each_of_state(HAPAX_STATE_COMPLETED, 0, op);
    each_of_state(HAPAX_STATE_FAILED, 0, op);
    each_of_state(HAPAX_STATE_UNKNOWN, 0, op);
}

static void every_row_was_reached(enum hapax_op_kind kind)
{
    for (size_t i = 0; i < tables[kind].n; i++)
        if (hits[kind][i] == 0)
            fail_msg("row \"%s\" was never reached", tables[kind].rows[i].name);
}

/* ---- every op ------------------------------------------------------------------------ */

/* CLAIM: token, fingerprint, caller, on_expired, rerun_completed, attempts_max, retention. */
static void claim_follows_its_table(void **state)
{
    static const int64_t retentions[] = {7200000, HAPAX_FOREVER_MS, 1};

    for (unsigned i = 0; i < 2 * 2 * 2 * 2 * 4 * 3 * 3; i++) {
        struct hapax_op op = some_op(HAPAX_OP_CLAIM, i & 1);

        op.fingerprint.bytes[31] ^= i & 2 ? 1 : 0;
        op.caller.bytes[31] ^= i & 4 ? 1 : 0;
        op.rerun_completed = i & 8;
        op.attempts_max = i / 16 % 4;
        op.on_expired = (enum hapax_on_expired)(HAPAX_EXPIRED_RERUN + i / 64 % 3);
        op.retention_ms = retentions[i / 192];
        each_record(&op);
    }
    every_row_was_reached(HAPAX_OP_CLAIM);
}

/* RENEW: token, the hook's word, a lease longer and shorter than what is left, the attempt it is
 * of. */
static void renew_follows_its_table(void **state)
{
    for (unsigned i = 0; i < 8 * 3; i++) {
        struct hapax_op op = some_op(HAPAX_OP_RENEW, i & 1);

        op.reconciled = i & 2;
        op.lease_ms = i & 4 ? LEASE_MS : 3 * LEASE_MS;
        op.if_attempt = i / 8 == 0 ? 0 : 5 + i / 8; /* any, another, the record's */
        each_record(&op);
    }
    every_row_was_reached(HAPAX_OP_RENEW);
}

/* COMPLETE: token. */
static void complete_follows_its_table(void **state)
{
    for (unsigned i = 0; i < 2; i++) {
        struct hapax_op op = some_op(HAPAX_OP_COMPLETE, i & 1);

        each_record(&op);
    }
    every_row_was_reached(HAPAX_OP_COMPLETE);
}

/* FAIL: token, ran, as_unknown, died, and an outcome that is the stored one but for one field. */
static void fail_follows_its_table(void **state)
{
    for (unsigned i = 0; i < 2 * 5 * 7; i++) {
        struct hapax_op op = some_op(HAPAX_OP_FAIL, i & 1);
        unsigned how = i / 2 % 5, change = i / 10;

        op.died = how == 4;
        op.ran = how & 1 || op.died;
        op.as_unknown = how & 2 || op.died;
        op.outcome = some_record().outcome;
        op.outcome.status += change == 1;
        op.outcome.body_kept ^= change == 2;
        op.outcome.headers.len -= change == 3;
        op.outcome.headers = change == 4 ? hapax_str("A: c\r\n") : op.outcome.headers;
        op.outcome.body = change == 5 ? hapax_str("bode") : op.outcome.body;
        op.outcome.body = change == 6 ? hapax_str(NULL) : op.outcome.body;
        each_record(&op);
    }
    every_row_was_reached(HAPAX_OP_FAIL);
}

/* READ changes nothing, whatever its other fields say. */
static void read_follows_its_table(void **state)
{
    struct hapax_op op = some_op(HAPAX_OP_READ, false);

    each_record(&op);
    every_row_was_reached(HAPAX_OP_READ);
}

/* RESOLVE: token, what to do, force, if_attempt, if_updated_us. */
static void resolve_follows_its_table(void **state)
{
    static const uint32_t attempts[] = {0, 7, 6};
    const int64_t updated[] = {0, some_record().updated_us, NOW};

    for (unsigned i = 0; i < 2 * 2 * 3 * 3 * 3; i++) {
        struct hapax_op op = some_op(HAPAX_OP_RESOLVE, i & 1);

        op.force = i & 2;
        op.resolve = (enum hapax_resolve)(HAPAX_RESOLVE_COMPLETE + i / 4 % 3);
        op.if_attempt = attempts[i / 12 % 3];
        op.if_updated_us = updated[i / 36];
        each_record(&op);
    }
    every_row_was_reached(HAPAX_OP_RESOLVE);
}

/* PURGE removes what has expired and makes dead claims under hold unknown; all else stays. */
static void purge_follows_its_table(void **state)
{
    struct hapax_op op = some_op(HAPAX_OP_PURGE, false);

    each_record(&op);
    every_row_was_reached(HAPAX_OP_PURGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claim_follows_its_table),    cmocka_unit_test(renew_follows_its_table),
        cmocka_unit_test(complete_follows_its_table), cmocka_unit_test(fail_follows_its_table),
        cmocka_unit_test(read_follows_its_table),     cmocka_unit_test(resolve_follows_its_table),
        cmocka_unit_test(purge_follows_its_table),
    };

    return cmocka_run_group_tests_name("machine table", tests, NULL, NULL);
}
