/* SPDX-License-Identifier: Apache-2.0
 *
 * Ops as the arguments of hapax.run(), hapax.list() and hapax.purge(), and their rows as answers.
 * The columns are those of sql/, in the same order. hapax.run() gives its rows in no order, each
 * with the number of its op. CLAIMs of absent records, and COMPLETEs by the claim's own token,
 * share one row per kind. That row has only what the server knows; the machine computes the rest.
 *
 * hapax.run() is asked for one composite value per row. To look up and describe 32 columns for each
 * statement, and to split them by libpq, is slower on both sides (a microsecond of the server's
 * time for each op in a batch of 64).
 *
 * The invariant: an op gets a verdict only from its own row, or its own part of a row, in which
 * every value makes sense. A row that makes no sense never counts as "absent": its op keeps its
 * error.
 */
#include "postgres.h"

#include "base/arena.h"
#include "core/id.h"
#include "core/machine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

const char hapax__pg_run_sql[] =
    "SELECT hapax.run($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)";
const char hapax__pg_door_sql[] =
    "SELECT hapax.door($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17)";
const char hapax__pg_list_sql[] = "SELECT * FROM hapax.list($1,$2,$3,$4,$5,$6)";
const char hapax__pg_purge_sql[] = "SELECT * FROM hapax.purge($1,$2)";

#define OP_SIZE 360u /* of an op without the bytes of its spans */
/* A caller's open transaction has no lease; this is shown instead. */
#define TRANSACTION_US INT64_C(1000000)

enum flag { /* of p_flags; on_expired stands in the lowest two bits, resolve in the next two */
            FLAG_RERUN_COMPLETED = 16,
            FLAG_RECONCILED = 32,
            FLAG_RAN = 64,
            FLAG_AS_UNKNOWN = 128,
            FLAG_FORCE = 256,
            FLAG_BODY_KEPT = 512,
            FLAG_PACKED = 1024, /* rows for several ops are understood */
            FLAG_DIED = 2048
};

enum run_column {
    RUN_ORD,
    RUN_VERDICT,
    RUN_ERROR,
    RUN_DIFFERS,
    RUN_NOW_US,
    RUN_RECORD, /* the first of enum record_column */
    RUN_OUTCOME = 27,
    RUN_STATUS,
    RUN_BODY_KEPT,
    RUN_HEADERS,
    RUN_BODY,
    RUN_COLUMNS
};

enum record_column {
    RECORD_STATE,
    RECORD_HOLD,
    RECORD_STALE,
    RECORD_RAN,
    RECORD_RERUNS,
    RECORD_ATTEMPT,
    RECORD_SPENT,
    RECORD_FENCE,
    RECORD_FINGERPRINT,
    RECORD_CALLER,
    RECORD_OWNER,
    RECORD_SCOPE,
    RECORD_WHAT,
    RECORD_CREATED_US,
    RECORD_UPDATED_US,
    RECORD_LEASE_UNTIL_US,
    RECORD_EXPIRES_US,
    RECORD_RETENTION_MS,
    RECORD_RESOLVED_US,
    RECORD_RESOLVED_BY,
    RECORD_REPLACED_STATE,
    RECORD_REPLACED_STATUS,
    RECORD_COLUMNS
};

enum list_column {
    LIST_ID,
    LIST_RECORD,
    LIST_STATUS = LIST_RECORD + RECORD_COLUMNS,
    LIST_BODY_KEPT,
    LIST_NOW_US,
    LIST_MORE,
    LIST_COLUMNS
};

enum purge_column {
    PURGE_PURGED,
    PURGE_EXPIRED_CLAIMS,
    PURGE_MORE,
    PURGE_CURSOR,
    PURGE_NOW_US,
    PURGE_COLUMNS
};

_Static_assert((int)RUN_RECORD + RECORD_COLUMNS == RUN_OUTCOME,
               "the record ends where the outcome begins");

/* ---- ops ----------------------------------------------------------------------------- */

size_t hapax__pg_op_size(const struct hapax_op *op)
{
    return OP_SIZE + op->scope.len + op->what.len + op->by.len + op->import.len +
           op->outcome.headers.len + op->outcome.body.len;
}

static int64_t flags_of(const struct hapax_op *op)
{
    return (op->kind == HAPAX_OP_CLAIM ? (int64_t)op->on_expired : 0) |
           (op->kind == HAPAX_OP_RESOLVE ? (int64_t)op->resolve << 2 : 0) |
           (op->rerun_completed ? FLAG_RERUN_COMPLETED : 0) |
           (op->reconciled ? FLAG_RECONCILED : 0) | (op->ran ? FLAG_RAN : 0) |
           (op->as_unknown ? FLAG_AS_UNKNOWN : 0) | (op->force ? FLAG_FORCE : 0) |
           (op->outcome.body_kept ? FLAG_BODY_KEPT : 0) | (op->died ? FLAG_DIED : 0) | FLAG_PACKED;
}

static int64_t limit_of(const struct hapax_op *op)
{
    return op->kind == HAPAX_OP_CLAIM ? op->attempts_max : op->if_attempt;
}

static int64_t retention_of(const struct hapax_op *op)
{
    if (op->kind == HAPAX_OP_CLAIM)
        return op->retention_ms;
    return op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ? op->kept_ms : 0;
}

static int64_t lease_of(const struct hapax_op *op)
{
    if (op->kind == HAPAX_OP_COMPLETE)
        return op->tombstone_ms;
    if (op->kind == HAPAX_OP_RESOLVE)
        return op->if_updated_us;
    return op->kind == HAPAX_OP_CLAIM || op->kind == HAPAX_OP_RENEW ? op->lease_ms : 0;
}

static bool has_outcome(const struct hapax_op *op)
{
    return op->kind == HAPAX_OP_COMPLETE || op->kind == HAPAX_OP_FAIL ||
           op->kind == HAPAX_OP_RESOLVE;
}

/* Adds an array of one field, or NULL where no op has the field. Of a batch of CLAIMs, or of
 * COMPLETEs, half of the arrays are NULL; the server would take each array apart. */
#define PUT_ARRAY(out, type, n, has, put_element)                                                  \
    do {                                                                                           \
        bool any = false;                                                                          \
                                                                                                   \
        for (size_t i = 0; i < (n) && !any; i++)                                                   \
            any = (has);                                                                           \
        hapax__pg_begin_array(out, type, any ? (n) : 0);                                           \
        for (size_t i = 0; any && i < (n); i++)                                                    \
            put_element;                                                                           \
    } while (0)

#define PUT_INTS(out, type, n, has, value)                                                         \
    PUT_ARRAY(out, type, n, has, hapax__pg_put_int(out, type, value))

#define PUT_SPANS(out, n, has, span)                                                               \
    PUT_ARRAY(out, HAPAX__PG_BYTEA, n, has,                                                        \
              (has) ? hapax__pg_put_bytes(out, span) : hapax__pg_put_null(out))

#define SPAN_OF(field) ((struct hapax_span){(field).bytes, sizeof((field).bytes)})

void hapax__pg_put_ops(struct hapax__pg_out *out, struct hapax_op *const *ops, size_t n, bool door)
{
    hapax__pg_out_reset(out);
    PUT_INTS(out, HAPAX__PG_INT2, n, true, (int64_t)ops[i]->kind);
    PUT_SPANS(out, n, true, SPAN_OF(ops[i]->id));
    PUT_SPANS(out, n, ops[i]->kind != HAPAX_OP_READ, SPAN_OF(ops[i]->token));
    PUT_SPANS(out, n, ops[i]->kind == HAPAX_OP_CLAIM, ops[i]->scope);
    PUT_SPANS(out, n, door || ops[i]->kind == HAPAX_OP_CLAIM, SPAN_OF(ops[i]->fingerprint));
    PUT_SPANS(out, n, door || ops[i]->kind == HAPAX_OP_CLAIM, SPAN_OF(ops[i]->caller));
    PUT_INTS(out, HAPAX__PG_INT8, n, lease_of(ops[i]) > 0, lease_of(ops[i]));
    PUT_INTS(out, HAPAX__PG_INT8, n, retention_of(ops[i]) > 0, retention_of(ops[i]));
    PUT_INTS(out, HAPAX__PG_INT4, n, true, flags_of(ops[i]));
    PUT_INTS(out, HAPAX__PG_INT8, n, limit_of(ops[i]) != 0, limit_of(ops[i]));
    PUT_INTS(out, HAPAX__PG_INT4, n, has_outcome(ops[i]), ops[i]->outcome.status);
    PUT_SPANS(out, n, has_outcome(ops[i]) && ops[i]->outcome.headers.len > 0,
              ops[i]->outcome.headers);
    PUT_SPANS(out, n, has_outcome(ops[i]) && ops[i]->outcome.body.len > 0, ops[i]->outcome.body);
    PUT_SPANS(out, n, ops[i]->kind == HAPAX_OP_RESOLVE, ops[i]->by);
    PUT_SPANS(out, n, ops[i]->kind == HAPAX_OP_CLAIM && hapax__owned(&ops[i]->owner),
              SPAN_OF(ops[i]->owner));
    PUT_SPANS(out, n, ops[i]->kind == HAPAX_OP_CLAIM && ops[i]->what.len > 0, ops[i]->what);
    hapax__pg_put_value_int(out, HAPAX__PG_BOOL, false); /* p_wait: do not wait for others */
}

static uint32_t limit(const struct hapax_op *op)
{
    return op->limit > 0 ? op->limit : HAPAX_LIST_MAX;
}

void hapax__pg_put_list(struct hapax__pg_out *out, const struct hapax_op *op)
{
    hapax__pg_out_reset(out);
    hapax__pg_put_value_int(out, HAPAX__PG_INT4, op->states);
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA, op->scope);
    hapax__pg_put_value_int(out, HAPAX__PG_INT8, op->older_ms);
    hapax__pg_put_value_int(out, HAPAX__PG_INT4, limit(op));
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA, SPAN_OF(op->cursor));
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA,
                              hapax__owned(&op->owner) ? SPAN_OF(op->owner)
                                                       : (struct hapax_span){NULL, 0});
}

void hapax__pg_put_purge(struct hapax__pg_out *out, const struct hapax_op *op)
{
    hapax__pg_out_reset(out);
    hapax__pg_put_value_bytes(out, HAPAX__PG_BYTEA, SPAN_OF(op->cursor));
    hapax__pg_put_value_int(out, HAPAX__PG_INT4, limit(op));
}

/* ---- answers ------------------------------------------------------------------------- */

/* Reads a number from 0 to max; any other makes the row bad. */
static uint64_t get_within(struct hapax__pg_in *in, int column, enum hapax__pg_type type,
                           uint64_t max)
{
    uint64_t value = (uint64_t)hapax__pg_get_int(in, column, type);

    if (value <= max)
        return value;
    in->bad = true;
    return 0;
}

static bool get_bool(struct hapax__pg_in *in, int column)
{
    return get_within(in, column, HAPAX__PG_BOOL, 1) != 0;
}

static int64_t get_time(struct hapax__pg_in *in, int column)
{
    return (int64_t)get_within(in, column, HAPAX__PG_INT8, INT64_MAX);
}

static void get_fixed(struct hapax__pg_in *in, int column, uint8_t *out, size_t len)
{
    struct hapax_span bytes = hapax__pg_get_bytes(in, column);

    if (bytes.len == len)
        memcpy(out, bytes.ptr, len);
    else
        in->bad = true;
}

/* Reads a span within its limit; the span borrows from the row. */
static struct hapax_span get_span(struct hapax__pg_in *in, int column, size_t max)
{
    struct hapax_span bytes = hapax__pg_get_bytes(in, column);

    if (bytes.len <= max)
        return bytes;
    in->bad = true;
    return (struct hapax_span){NULL, 0};
}

/* Reads the columns of a record from `at` on. The caller fills in what only the op knows. */
static void get_record(struct hapax__pg_in *in, int at, struct hapax_record *out)
{
    out->state =
        (enum hapax_state)get_within(in, at + RECORD_STATE, HAPAX__PG_INT2, HAPAX_STATE_UNKNOWN);
    out->hold = get_bool(in, at + RECORD_HOLD);
    out->stale = get_bool(in, at + RECORD_STALE);
    out->ran = get_bool(in, at + RECORD_RAN);
    out->reruns = get_bool(in, at + RECORD_RERUNS);
    out->attempt = (uint32_t)get_within(in, at + RECORD_ATTEMPT, HAPAX__PG_INT4, INT32_MAX);
    out->spent = (uint32_t)get_within(in, at + RECORD_SPENT, HAPAX__PG_INT4, INT32_MAX);
    out->fence = get_within(in, at + RECORD_FENCE, HAPAX__PG_INT8, INT64_MAX);
    if (!hapax__pg_is_null(in, at + RECORD_FINGERPRINT))
        get_fixed(in, at + RECORD_FINGERPRINT, out->fingerprint.bytes, sizeof(out->fingerprint));
    if (!hapax__pg_is_null(in, at + RECORD_CALLER))
        get_fixed(in, at + RECORD_CALLER, out->caller.bytes, sizeof(out->caller));
    if (hapax__pg_get_bytes(in, at + RECORD_OWNER).len > 0)
        get_fixed(in, at + RECORD_OWNER, out->owner.bytes, sizeof(out->owner));
    out->scope = get_span(in, at + RECORD_SCOPE, HAPAX_SCOPE_MAX);
    out->what = get_span(in, at + RECORD_WHAT, HAPAX_WHAT_MAX);
    out->created_us = get_time(in, at + RECORD_CREATED_US);
    out->updated_us = get_time(in, at + RECORD_UPDATED_US);
    out->lease_until_us = get_time(in, at + RECORD_LEASE_UNTIL_US);
    out->expires_us = get_time(in, at + RECORD_EXPIRES_US);
    out->retention_ms = get_time(in, at + RECORD_RETENTION_MS);
    out->resolved_us = get_time(in, at + RECORD_RESOLVED_US);
    out->resolved_by = get_span(in, at + RECORD_RESOLVED_BY, HAPAX_BY_MAX);
    out->replaced_state = (enum hapax_state)get_within(in, at + RECORD_REPLACED_STATE,
                                                       HAPAX__PG_INT2, HAPAX_STATE_UNKNOWN);
    out->replaced_status = (int)get_within(in, at + RECORD_REPLACED_STATUS, HAPAX__PG_INT2, 999);
}

static void get_outcome(struct hapax__pg_in *in, const struct hapax_op *op,
                        struct hapax_outcome *out)
{
    uint64_t which = get_within(in, RUN_OUTCOME, HAPAX__PG_INT2, 2);

    if (which == 2)
        *out = op->outcome;
    if (which != 1)
        return;
    out->status = (int)get_within(in, RUN_STATUS, HAPAX__PG_INT4, 999);
    out->body_kept = get_bool(in, RUN_BODY_KEPT);
    out->headers = get_span(in, RUN_HEADERS, HAPAX_HEADERS_MAX);
    out->body = get_span(in, RUN_BODY, HAPAX_BODY_MAX);
}

/* Fills in what a CLAIM itself put into its record: the server does not send it back. */
static void take_own(struct hapax__pg_in *in, const struct hapax_op *op, struct hapax_record *out)
{
    const int at = RUN_RECORD;
    if (op->kind != HAPAX_OP_CLAIM || out->state == HAPAX_STATE_ABSENT)
        return;
    if (hapax__pg_is_null(in, at + RECORD_FINGERPRINT))
        out->fingerprint = op->fingerprint;
    if (hapax__pg_is_null(in, at + RECORD_CALLER))
        out->caller = op->caller;
    if (hapax__pg_is_null(in, at + RECORD_OWNER))
        out->owner = op->owner;
    if (hapax__pg_is_null(in, at + RECORD_SCOPE))
        out->scope = op->scope;
    if (hapax__pg_is_null(in, at + RECORD_WHAT))
        out->what = op->what;
}

static bool copy(struct hapax_store *store, struct hapax_span *span)
{
    *span = hapax__arena_copy(store->arena, *span);
    return span->len == 0 || span->ptr;
}

/* Copies the record's spans out of the row, but for those that are the op's own. */
static bool keep(struct hapax_store *store, const struct hapax_op *op, struct hapax_record *record)
{
    struct hapax_outcome *outcome = &record->outcome;

    return (record->scope.ptr == op->scope.ptr || copy(store, &record->scope)) &&
           (record->what.ptr == op->what.ptr || copy(store, &record->what)) &&
           copy(store, &record->resolved_by) &&
           (outcome->headers.ptr == op->outcome.headers.ptr || copy(store, &outcome->headers)) &&
           (outcome->body.ptr == op->outcome.body.ptr || copy(store, &outcome->body));
}

/* Takes a row for one op. The op gets all of it or nothing. */
static enum hapax_error take_row(struct hapax_store *store, struct hapax_op *op,
                                 struct hapax__pg_in *in)
{
    int64_t error = hapax__pg_get_int(in, RUN_ERROR, HAPAX__PG_INT2);
    enum hapax_verdict verdict =
        (enum hapax_verdict)get_within(in, RUN_VERDICT, HAPAX__PG_INT2, HAPAX_ABSENT);
    enum hapax_differs differs =
        (enum hapax_differs)get_within(in, RUN_DIFFERS, HAPAX__PG_INT2, HAPAX_DIFFERS_CALLER);
    int64_t now_us = get_time(in, RUN_NOW_US);
    struct hapax_record record = {.id = op->id};

    if ((error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_REFUSED) &&
        verdict == HAPAX_NO_VERDICT && !in->bad) {
        op->error = (enum hapax_error)error;
        return HAPAX_ERR_NONE;
    }
    get_record(in, RUN_RECORD, &record);
    take_own(in, op, &record);
    get_outcome(in, op, &record.outcome);
    if (record.state == HAPAX_STATE_ABSENT) /* an expired record may be there */
        record = (struct hapax_record){.id = op->id};
    if (in->bad || error != 0 || verdict == HAPAX_NO_VERDICT || now_us == 0)
        return HAPAX_ERR_CORRUPT;
    if (verdict == HAPAX_IN_FLIGHT && record.lease_until_us <= now_us) {
        record.state = HAPAX_STATE_STARTED;
        record.lease_until_us = now_us + TRANSACTION_US;
    }
    if (!keep(store, op, &record))
        return HAPAX_ERR_NOMEM;
    if (verdict == HAPAX_ABSENT)
        memset(&record, 0, sizeof(record));
    op->record = record;
    op->differs = differs;
    op->now_us = now_us;
    op->verdict = verdict;
    op->error = HAPAX_ERR_NONE;
    return HAPAX_ERR_NONE;
}

/* ---- rows for several ops ------------------------------------------------------------ */

#define ORDS_HEAD  20u /* of an array: dimensions, NULLs or none, type, count, first index */
#define ORDS_EACH  8u /* a length and a number */
#define ORDS_COUNT 12u /* where the count stands */

#define DONE_SIZE 104u /* of a completion, without its owner, scope and what */

enum done { DONE_HOLD = 1, DONE_RAN = 2, DONE_RERUNS = 4, DONE_OWNED = 8 };

/* One op of a row for several. */
struct part {
    uint64_t ord; /* from 0 */
    struct hapax_record before; /* completed by it; spans borrow from the row */
};

static bool next_granted(struct hapax_span *rest, struct part *out)
{
    if (rest->len < ORDS_EACH || hapax__pg_number(rest->ptr, 4) != 4)
        return false;
    out->ord = (uint64_t)hapax__pg_number(rest->ptr + 4, 4) - 1;
    *rest = (struct hapax_span){rest->ptr + ORDS_EACH, rest->len - ORDS_EACH};
    return true;
}

static bool next_done(struct hapax_span *rest, struct part *out)
{
    struct hapax_record *before = &out->before;
    const uint8_t *at = rest->ptr;
    int64_t bits, created_us, fence, retention_ms, attempt, spent;
    size_t owner_len, scope_len, what_len;

    if (rest->len < DONE_SIZE)
        return false;
    out->ord = (uint64_t)hapax__pg_number(at, 4) - 1;
    created_us = hapax__pg_number(at + 4, 8);
    fence = hapax__pg_number(at + 12, 8);
    retention_ms = hapax__pg_number(at + 20, 8);
    attempt = hapax__pg_number(at + 28, 4);
    spent = hapax__pg_number(at + 32, 4);
    bits = hapax__pg_number(at + 36, 4);
    owner_len = bits & DONE_OWNED ? sizeof(before->owner.bytes) : 0;
    scope_len = bits >> 8 & 0xff;
    what_len = bits >> 16 & 0xff;
    if (created_us <= 0 || fence <= 0 || retention_ms < 0 || attempt <= 0 || spent < 0 ||
        bits < 0 || bits >> 24 != 0 || owner_len + scope_len + what_len > rest->len - DONE_SIZE)
        return false;
    *before = (struct hapax_record){
        .state = HAPAX_STATE_STARTED,
        .hold = bits & DONE_HOLD,
        .ran = bits & DONE_RAN,
        .reruns = bits & DONE_RERUNS,
        .attempt = (uint32_t)attempt,
        .spent = (uint32_t)spent,
        .fence = (uint64_t)fence,
        .scope = {at + DONE_SIZE + owner_len, scope_len},
        .what = {at + DONE_SIZE + owner_len + scope_len, what_len},
        .created_us = created_us,
        .updated_us = created_us,
        .retention_ms = retention_ms,
    };
    memcpy(before->fingerprint.bytes, at + 40, 32);
    memcpy(before->caller.bytes, at + 72, 32);
    memcpy(before->owner.bytes, at + DONE_SIZE, owner_len);
    at += DONE_SIZE + owner_len + scope_len + what_len;
    *rest = (struct hapax_span){at, rest->len - (size_t)(at - rest->ptr)};
    return true;
}

/* Opens the parts of a row for several ops. False: the row is no such one. */
static bool open_parts(struct hapax__pg_in *in, struct hapax_span *rest)
{
    uint64_t verdict = get_within(in, RUN_VERDICT, HAPAX__PG_INT2, HAPAX_ABSENT);

    *rest = hapax__pg_get_bytes(in, RUN_BODY);
    if (in->bad || rest->len == 0 || get_time(in, RUN_NOW_US) == 0)
        return false;
    if (verdict == HAPAX_OK)
        return true;
    if (verdict != HAPAX_CLAIMED || rest->len < ORDS_HEAD || hapax__pg_number(rest->ptr, 4) != 1 ||
        hapax__pg_number(rest->ptr + ORDS_COUNT, 4) !=
            (int64_t)((rest->len - ORDS_HEAD) / ORDS_EACH))
        return false;
    *rest = (struct hapax_span){rest->ptr + ORDS_HEAD, rest->len - ORDS_HEAD};
    return true;
}

static bool next_part(struct hapax__pg_in *in, struct hapax_span *rest, struct part *out)
{
    out->before = (struct hapax_record){.state = HAPAX_STATE_ABSENT};
    return hapax__pg_get_int(in, RUN_VERDICT, HAPAX__PG_INT2) == HAPAX_CLAIMED
               ? next_granted(rest, out)
               : next_done(rest, out);
}

/* Repeats by the machine what the server did with the op. */
static enum hapax_error take_part(struct hapax_store *store, struct hapax_op *op,
                                  struct hapax__pg_in *in, struct part *part)
{
    bool granted = part->before.state == HAPAX_STATE_ABSENT;
    struct hapax_op judged = *op;
    struct hapax_record next;

    if (op->kind != (granted ? HAPAX_OP_CLAIM : HAPAX_OP_COMPLETE))
        return HAPAX_ERR_CORRUPT;
    part->before.id = op->id;
    hapax__mark(&part->before.mark, &op->token);
    (void)hapax__machine(granted ? NULL : &part->before, &judged, get_time(in, RUN_NOW_US), &next);
    assert(judged.verdict == (granted ? HAPAX_CLAIMED : HAPAX_OK));
    if (!keep(store, op, &judged.record))
        return HAPAX_ERR_NOMEM;
    *op = judged;
    op->error = HAPAX_ERR_NONE;
    return HAPAX_ERR_NONE;
}

/* ---- all rows ------------------------------------------------------------------------ */

/* The answers to a batch: each of its ops stands once among the rows. */
struct answers {
    const PGresult *rows;
    struct hapax_op **ops;
    size_t n;
    bool told[HAPAX__PG_BATCH_MAX];
};

static bool tell(struct answers *answers, uint64_t ord)
{
    if (ord >= answers->n || answers->told[ord])
        return false;
    answers->told[ord] = true;
    return true;
}

/* Opens a row. *ord: the index of its op, or n for a row for several. */
static bool open_row(const struct answers *answers, int row, struct hapax__pg_in *in,
                     struct hapax_span fields[RUN_COLUMNS], uint64_t *ord)
{
    *in = (struct hapax__pg_in){.rows = answers->rows, .row = row};
    if (!hapax__pg_split(in, fields, RUN_COLUMNS))
        return false;
    *ord = answers->n;
    if (!hapax__pg_is_null(in, RUN_ORD))
        *ord = (uint64_t)hapax__pg_get_int(in, RUN_ORD, HAPAX__PG_INT4) - 1;
    return !in->bad;
}

/* Whether each op stands in one row, and no row has more. Asked before any row is taken. */
static bool all_told(struct answers *answers)
{
    for (int row = 0; row < PQntuples(answers->rows); row++) {
        struct hapax_span fields[RUN_COLUMNS], rest = {NULL, 0};
        struct hapax__pg_in in;
        struct part part;
        uint64_t ord;

        if (!open_row(answers, row, &in, fields, &ord))
            return false;
        if (!hapax__pg_is_null(&in, RUN_ORD)) {
            if (!tell(answers, ord))
                return false;
            continue;
        }
        if (!open_parts(&in, &rest))
            return false;
        while (rest.len > 0)
            if (!next_part(&in, &rest, &part) || !tell(answers, part.ord))
                return false;
    }
    for (size_t i = 0; i < answers->n; i++)
        if (!answers->told[i])
            return false;
    return true;
}

static enum hapax_error take_all(struct hapax_store *store, const struct answers *answers, int row)
{
    struct hapax_span fields[RUN_COLUMNS], rest;
    enum hapax_error worst = HAPAX_ERR_NONE;
    struct hapax__pg_in in;
    struct part part;
    uint64_t ord = 0;

    (void)open_row(answers, row, &in, fields, &ord); /* read once already, by the check */
    if (ord < answers->n)
        return take_row(store, answers->ops[ord], &in);
    (void)open_parts(&in, &rest);
    while (rest.len > 0 && next_part(&in, &rest, &part)) {
        enum hapax_error error = take_part(store, answers->ops[part.ord], &in, &part);

        if (error != HAPAX_ERR_NONE)
            worst = error;
    }
    return worst;
}

enum hapax_error hapax__pg_take_ops(struct hapax_store *store, struct hapax_op **ops, size_t n,
                                    const PGresult *rows)
{
    struct answers answers = {.rows = rows, .ops = ops, .n = n};
    enum hapax_error worst = HAPAX_ERR_NONE;

    assert(n <= HAPAX__PG_BATCH_MAX);
    if (PQnfields(rows) != 1 || !all_told(&answers))
        return HAPAX_ERR_CORRUPT;
    for (int row = 0; row < PQntuples(rows); row++) {
        enum hapax_error error = take_all(store, &answers, row);

        if (error != HAPAX_ERR_NONE)
            worst = error;
    }
    return worst;
}

/* ---- walks --------------------------------------------------------------------------- */

static enum hapax_error take_listed(struct hapax_store *store, struct hapax__pg_in *in,
                                    struct hapax_record *out)
{
    static const struct hapax_op none;

    memset(out, 0, sizeof(*out));
    get_fixed(in, LIST_ID, out->id.bytes, sizeof(out->id));
    get_record(in, LIST_RECORD, out);
    out->outcome.status = (int)get_within(in, LIST_STATUS, HAPAX__PG_INT4, 999);
    out->outcome.body_kept = get_bool(in, LIST_BODY_KEPT);
    if (in->bad || out->state == HAPAX_STATE_ABSENT)
        return HAPAX_ERR_CORRUPT;
    return keep(store, &none, out) ? HAPAX_ERR_NONE : HAPAX_ERR_NOMEM;
}

enum hapax_error hapax__pg_take_list(struct hapax_store *store, struct hapax_op *op,
                                     const PGresult *rows)
{
    int count = PQntuples(rows) - 1; /* the last is no record */
    struct hapax__pg_in last = {.rows = rows, .row = count};
    enum hapax_error error = HAPAX_ERR_NONE;
    struct hapax_record *records;

    if (PQnfields(rows) != LIST_COLUMNS || count < 0 || count > (int)limit(op) ||
        !hapax__pg_is_null(&last, LIST_RECORD))
        return HAPAX_ERR_CORRUPT;
    records = hapax_store_memory(store, (size_t)(count > 0 ? count : 1) * sizeof(*records));
    if (!records)
        return HAPAX_ERR_NOMEM;
    for (int row = 0; row < count && error == HAPAX_ERR_NONE; row++) {
        struct hapax__pg_in in = {.rows = rows, .row = row};

        error = take_listed(store, &in, &records[row]);
    }
    if (error != HAPAX_ERR_NONE)
        return error;
    op->more = get_bool(&last, LIST_MORE);
    op->now_us = get_time(&last, LIST_NOW_US);
    if (op->more)
        get_fixed(&last, LIST_ID, op->next_cursor.bytes, sizeof(op->next_cursor));
    if (last.bad || op->now_us == 0)
        return HAPAX_ERR_CORRUPT;
    op->records = records;
    op->count = (uint32_t)count;
    op->verdict = HAPAX_FOUND;
    op->error = HAPAX_ERR_NONE;
    return HAPAX_ERR_NONE;
}

enum hapax_error hapax__pg_take_purge(struct hapax_op *op, const PGresult *rows)
{
    struct hapax__pg_in in = {.rows = rows, .row = 0};

    if (PQnfields(rows) != PURGE_COLUMNS || PQntuples(rows) != 1)
        return HAPAX_ERR_CORRUPT;
    op->purged = (uint32_t)get_within(&in, PURGE_PURGED, HAPAX__PG_INT4, HAPAX_LIST_MAX);
    op->expired_claims = (uint32_t)get_within(&in, PURGE_EXPIRED_CLAIMS, HAPAX__PG_INT4,
                                              HAPAX_LIST_MAX - op->purged);
    op->more = get_bool(&in, PURGE_MORE);
    op->now_us = get_time(&in, PURGE_NOW_US);
    if (op->more)
        get_fixed(&in, PURGE_CURSOR, op->next_cursor.bytes, sizeof(op->next_cursor));
    if (in.bad || op->now_us == 0)
        return HAPAX_ERR_CORRUPT;
    op->verdict = HAPAX_OK;
    op->error = HAPAX_ERR_NONE;
    return HAPAX_ERR_NONE;
}
