/* SPDX-License-Identifier: Apache-2.0
 *
 * The door through a caller's PostgreSQL connection: a flow as at every other door, driven in the
 * caller's thread. Each of its ops runs in the transaction that has the handler's statements. What
 * a verdict means and what a class leads to is decided by the flow alone. A claim needs no renewal
 * here: the transaction has it, and when the transaction goes, the claim goes.
 *
 * The invariant: the handler's rows and the completion are committed together or not at all, and
 * nothing uncommitted is answered. Two brackets, one in the other, do it. The outer one (our
 * transaction, or a savepoint in the caller's) has claim and end. The inner one (a savepoint) has
 * what the handler did, and is rolled back unless the handler's class is final.
 *
 * Rejected: to call hapax.begin() and hapax.complete(). They take no class and no policy, so
 * on_failed, `hold` and the limits of an outcome would be written a second time.
 */
#include <hapax/postgres.h>

#include "attempt.h"
#include "base/clock.h"
#include "base/fail.h"
#include "base/span.h"
#include "base/time.h"
#include "core/drive.h"
#include "store/postgres/postgres.h"
#include "store/seal.h"
#include "store/types.h"

#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FOREVER_MS INT64_C(3600000) /* what a policy may say at most */
#define SECRET_MAX 4096u
#define LOOKUP     "SELECT current_setting('hapax.secret', true), " HAPAX__PG_ASK

struct pg_call {
    PGconn *conn;
    bool ours; /* the transaction */
    bool inside; /* of the outer bracket */
    bool over; /* the flow has ended */
    enum hapax_error error; /* that ends the drive; NONE */
    hapax_pg_handler *handler;
    void *arg;
    struct hapax_policy policy;
    struct hapax__flow_request request;
    struct hapax__call_names names;
    struct hapax__waiters waiters; /* a table for this flow alone */
    struct hapax__bucket bucket;
    struct hapax__flow flow;
    struct hapax_attempt attempt;
    struct hapax_digest check; /* of the secret */
    struct hapax_id check_id;
    struct hapax_arena arena; /* what the last ops' answers point into */
    struct hapax__pg_out out;
    struct hapax_answer *answer; /* the caller's, as is text */
    char *text;
};

/* ---- statements ---------------------------------------------------------------------- */

/* Whether the connection is lost. Then the result of a statement without an answer is not known. */
static bool gone(const struct pg_call *call)
{
    return PQstatus(call->conn) != CONNECTION_OK;
}

/* Fails with the server's own text, on one line, and the SQLSTATE; `what` failed. */
static enum hapax_error fail(struct pg_call *call, const char *what, const PGresult *result)
{
    const char *state = result ? PQresultErrorField(result, PG_DIAG_SQLSTATE) : NULL;
    const char *said = result ? PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY) : NULL;
    int len;

    if (said && state)
        return hapax__fail(call->text, hapax__pg_error_of(state), "cannot %s: %.180s [%s]", what,
                           said, state);
    said = PQerrorMessage(call->conn);
    len = (int)strcspn(said, "\n");
    return hapax__fail(call->text, HAPAX_ERR_UNAVAILABLE, "cannot %s: %.*s", what,
                       len < 180 ? len : 180, said);
}

/* Runs statements without parameters. *out, unless out is NULL, gets the last one's rows, which the
 * caller clears. */
static enum hapax_error run(struct pg_call *call, const char *what, const char *sql, PGresult **out)
{
    PGresult *result = PQexec(call->conn, sql);
    ExecStatusType status = PQresultStatus(result);
    enum hapax_error error = HAPAX_ERR_NONE;

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        error = fail(call, what, result);
    if (error == HAPAX_ERR_NONE && out)
        *out = result;
    else
        PQclear(result);
    return error;
}

/* ---- the outer bracket: claim and end ------------------------------------------------ */

/* Opens the bracket, and gives the session's secret, in hex, in *rows unless that is NULL. */
static enum hapax_error enter(struct pg_call *call, PGresult **rows)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    PGresult *result;
    const char *version;

    assert(!call->inside);
    /* By itself: where it fails, a savepoint of this name is that of a call around this one. */
    if (!call->ours)
        error = run(call, "begin", "SAVEPOINT hapax_call", NULL);
    if (error != HAPAX_ERR_NONE)
        return error;
    call->inside = true; /* it may be half open, too */
    error = run(call, "begin", call->ours ? "BEGIN; " LOOKUP : LOOKUP, &result);
    if (error != HAPAX_ERR_NONE)
        return error;
    version = PQgetvalue(result, 0, 1);
    if (strtol(version, NULL, 10) != HAPAX__PG_VERSION)
        error = hapax__fail(call->text, HAPAX_ERR_UNSUPPORTED,
                            "the schema \"hapax\" is of version %.20s, this is for version %d",
                            version, HAPAX__PG_VERSION);
    if (error == HAPAX_ERR_NONE && rows)
        *rows = result;
    else
        PQclear(result);
    return error;
}

/* Takes back all that was done in the bracket, its locks too. Where this fails the connection is
 * gone, and all is taken back by the server. */
static void undo(struct pg_call *call)
{
    if (call->inside && !gone(call))
        PQclear(PQexec(call->conn,
                       call->ours
                           ? "ROLLBACK"
                           : "ROLLBACK TO SAVEPOINT hapax_call; RELEASE SAVEPOINT hapax_call"));
    call->inside = false;
}

/* Whether a result leaves open what became of the transaction: no answer was read (libpq had no
 * memory for it, for example), or the error is of class 08, a pooler's about its own connection. */
static bool says_nothing(const PGresult *result)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);

    return PQresultStatus(result) != PGRES_COMMAND_OK && (!state || strncmp(state, "08", 2) == 0);
}

/* The error of a statement, where a COMMIT may have been sent before it or by it: one that ends the
 * connection may have come after the commit. */
static enum hapax_error doubt(const struct pg_call *call, enum hapax_error error,
                              const PGresult *result)
{
    return error != HAPAX_ERR_NONE && (gone(call) || says_nothing(result)) ? HAPAX_ERR_INDETERMINATE
                                                                           : error;
}

/* Closes the bracket: what was done in it is durable, or the caller's to commit. */
static enum hapax_error keep(struct pg_call *call)
{
    enum hapax_error error;
    PGresult *result;

    if (!call->ours) {
        error = run(call, "leave the savepoint", "RELEASE SAVEPOINT hapax_call", NULL);
        call->inside = error != HAPAX_ERR_NONE;
        return error;
    }
    call->inside = false;
    if (gone(call))
        return fail(call, "commit", NULL);
    result = PQexec(call->conn, "COMMIT");
    if (PQresultStatus(result) == PGRES_COMMAND_OK && strcmp(PQcmdStatus(result), "COMMIT") == 0)
        error = HAPAX_ERR_NONE;
    else if (PQresultStatus(result) == PGRES_COMMAND_OK)
        error = hapax__fail(call->text, HAPAX_ERR_UNAVAILABLE,
                            "cannot commit: the transaction had failed");
    else
        error = fail(call, "commit", result);
    error = doubt(call, error, result);
    PQclear(result);
    return error;
}

/* ---- the inner bracket: what the handler does ---------------------------------------- */

static enum hapax_error overstepped(struct pg_call *call)
{
    return hapax__fail(call->text, HAPAX_ERR_INDETERMINATE,
                       "the handler ended the transaction: what it did may stand, and the "
                       "claim with it");
}

/* Closes the bracket. Only the server knows whether it is still there: that is the proof that the
 * handler has sent no COMMIT of its own. */
static enum hapax_error leave_handler(struct pg_call *call, bool rows_stay)
{
    PGresult *result;
    const char *state;
    enum hapax_error error;

    result = PQexec(call->conn, rows_stay ? "RELEASE SAVEPOINT hapax_handler"
                                          : "ROLLBACK TO SAVEPOINT hapax_handler; "
                                            "RELEASE SAVEPOINT hapax_handler");
    state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (PQresultStatus(result) == PGRES_COMMAND_OK) {
        error = HAPAX_ERR_NONE;
    } else if (state && (strcmp(state, "3B001") == 0 || strcmp(state, "25P01") == 0)) {
        error = overstepped(call);
    } else {
        (void)fail(call, "leave the handler's savepoint", result);
        error = HAPAX_ERR_INDETERMINATE; /* without the proof nobody knows */
    }
    PQclear(result);
    return error;
}

/* The handler's class is FINAL but its rows cannot stay: it becomes FAILED, without an outcome. */
static void disbelieve(struct pg_call *call, enum hapax_class *cls)
{
    enum hapax_error error;

    *cls = HAPAX_CLASS_FAILED;
    error = hapax_attempt_outcome(&call->attempt, 0, hapax_str(NULL), hapax_str(NULL));
    assert(error == HAPAX_ERR_NONE);
}

/* Whether the error is not about the rows: a conflict with others, resources, an operator. */
static bool passing(const char *state)
{
    static const char *const classes[] = {"40", "53", "55", "57", "58"};

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
        if (strncmp(state, classes[i], 2) == 0)
            return true;
    return false;
}

/* Checks deferred constraints while the handler's class can still be changed. In a transaction of
 * the caller's they are the caller's: later statements may make them true. */
static enum hapax_error check_constraints(struct pg_call *call, enum hapax_class *cls)
{
    enum hapax_error error = HAPAX_ERR_NONE;
    PGresult *result;
    const char *state;

    if (!call->ours)
        return HAPAX_ERR_NONE;
    result = PQexec(call->conn, "SET CONSTRAINTS ALL IMMEDIATE");
    state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    if (PQresultStatus(result) != PGRES_COMMAND_OK && (gone(call) || !state || passing(state))) {
        error = doubt(call, fail(call, "check deferred constraints", result), result);
        if (!gone(call) && leave_handler(call, false) != HAPAX_ERR_NONE)
            error = HAPAX_ERR_INDETERMINATE; /* the handler may have ended our transaction */
    } else if (PQresultStatus(result) != PGRES_COMMAND_OK)
        disbelieve(call, cls);
    PQclear(result);
    return error;
}

/* Opens the bracket, and marks the id as claimed by a transaction that may take long, so that
 * others get IN_FLIGHT and do not wait. Who has that lock at this moment has it for a lookup. */
static enum hapax_error enter_handler(struct pg_call *call)
{
    const struct hapax_id *id = &call->request.id;
    char sql[256];
    size_t len;

    if (call->request.key != HAPAX__KEY_GIVEN)
        return run(call, "begin the handler's savepoint", "SAVEPOINT hapax_handler", NULL);
    len = (size_t)snprintf(sql, sizeof(sql),
                           "SELECT pg_catalog.pg_advisory_xact_lock(hapax.long_lock_of("
                           "pg_catalog.decode('");
    len = (size_t)(hapax__hex(sql + len, id->bytes, sizeof(id->bytes)) - sql);
    snprintf(sql + len, sizeof(sql) - len, "', 'hex'))); SAVEPOINT hapax_handler");
    return run(call, "begin the handler's savepoint", sql, NULL);
}

/* Runs the handler. *cls gets the handler's class, or FAILED where its rows cannot stay. */
static enum hapax_error run_handler(struct pg_call *call, enum hapax_class *cls)
{
    enum hapax_error error = enter_handler(call);

    if (error != HAPAX_ERR_NONE)
        return error;
    hapax__attempt_begin(&call->attempt, &call->flow);
    *cls = call->handler(call->conn, &call->attempt, call->arg);
    assert(*cls >= HAPAX_CLASS_FINAL && *cls <= HAPAX_CLASS_UNKNOWN);
    if (PQtransactionStatus(call->conn) == PQTRANS_IDLE)
        return overstepped(call);
    if (*cls == HAPAX_CLASS_FINAL && PQtransactionStatus(call->conn) == PQTRANS_INERROR) {
        disbelieve(call, cls);
    } else if (*cls == HAPAX_CLASS_FINAL) {
        error = check_constraints(call, cls);
        if (error != HAPAX_ERR_NONE)
            return error;
    }
    return leave_handler(call, *cls == HAPAX_CLASS_FINAL);
}

/* ---- ops ----------------------------------------------------------------------------- */

/* Runs ops in the outer bracket; each has its verdict or its own error when this returns NONE. */
static enum hapax_error run_ops(struct pg_call *call, struct hapax_op **ops, size_t n)
{
    static const int binary[HAPAX__PG_PARAMS_MAX] = {[0 ... HAPAX__PG_PARAMS_MAX - 1] = 1};
    struct hapax_store store = {.arena = &call->arena};
    struct hapax__pg_params params;
    enum hapax_error error;
    PGresult *rows;

    hapax__arena_reset(&call->arena);
    for (size_t i = 0; i < n; i++) {
        ops[i]->verdict = HAPAX_NO_VERDICT;
        ops[i]->error = HAPAX_ERR_INDETERMINATE;
        if (!hapax__op_check(ops[i], HAPAX_BODY_MAX, call->text))
            return ops[i]->error;
    }
    hapax__pg_put_ops(&call->out, ops, n, true);
    if (!hapax__pg_out_params(&call->out, &params))
        return hapax__fail(call->text, HAPAX_ERR_NOMEM, "out of memory");
    rows = PQexecParams(call->conn, hapax__pg_door_sql, params.n, params.types, params.values,
                        params.lengths, binary, 1);
    if (PQresultStatus(rows) != PGRES_TUPLES_OK) {
        error = fail(call, "ask for the record", rows);
    } else {
        error = hapax__pg_take_ops(&store, ops, n, rows);
        if (error != HAPAX_ERR_NONE)
            error = hapax__fail(call->text, error, "the record\'s row is %s",
                                error == HAPAX_ERR_NOMEM ? "too large for the memory left"
                                                         : "not one of this version");
        for (size_t i = 0; i < n && error == HAPAX_ERR_NONE; i++)
            hapax__unseal(NULL, ops[i], &call->arena, call->text);
    }
    PQclear(rows);
    return error;
}

static void check_op(const struct pg_call *call, struct hapax_op *op, enum hapax_op_kind kind)
{
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    op->id = call->check_id;
    op->token = call->request.token;
    op->fingerprint = call->check;
    op->scope = hapax_str("hapax");
    op->lease_ms = call->policy.lease_ms;
    op->retention_ms = HAPAX_FOREVER_MS;
    op->on_expired = HAPAX_EXPIRED_RERUN;
}

/* The store is for one secret (bind.c). The first use binds it. `seen` was read together with the
 * claim. */
static enum hapax_error check_secret(struct pg_call *call, const struct hapax_op *seen)
{
    struct hapax_op op, *ops[] = {&op};
    enum hapax_error error = HAPAX_ERR_NONE;

    if (seen->verdict == HAPAX_FOUND && seen->record.state == HAPAX_STATE_COMPLETED)
        return HAPAX_ERR_NONE;
    if (seen->error == HAPAX_ERR_REFUSED) /* its fingerprint is not ours */
        return hapax__fail(call->text, HAPAX_ERR_REFUSED,
                           "the records were first made with another secret, or with none "
                           "(the setting hapax.secret)");
    check_op(call, &op, HAPAX_OP_CLAIM);
    error = run_ops(call, ops, 1);
    if (error == HAPAX_ERR_NONE && op.verdict == HAPAX_CLAIMED) {
        check_op(call, &op, HAPAX_OP_COMPLETE);
        error = run_ops(call, ops, 1);
    }
    if (error == HAPAX_ERR_NONE && op.verdict != HAPAX_OK && op.verdict != HAPAX_COMPLETED)
        error = hapax__fail(call->text, HAPAX_ERR_UNAVAILABLE,
                            "another transaction makes the first use of these records");
    return error;
}

/* Whether a CLAIM changed the record. Otherwise its locks are released at once. */
static bool changed(const struct hapax_op *op)
{
    return op->verdict == HAPAX_CLAIMED || op->verdict == HAPAX_UNKNOWN ||
           op->verdict == HAPAX_FAILED;
}

static enum hapax_error ask_claim(struct pg_call *call, struct hapax_op *op)
{
    struct hapax_op seen, *ops[] = {op, &seen};
    enum hapax_error error = HAPAX_ERR_NONE;

    if (!call->inside)
        error = enter(call, NULL);
    if (error != HAPAX_ERR_NONE)
        return error;
    check_op(call, &seen, HAPAX_OP_READ);
    error = run_ops(call, ops, 2);
    if (error == HAPAX_ERR_NONE && op->verdict == HAPAX_CLAIMED) {
        struct hapax_op claimed = *op;

        error = check_secret(call, &seen);
        *op = claimed;
    }
    if (error == HAPAX_ERR_NONE && !changed(op))
        undo(call);
    return error;
}

/* Asks an op of our own claim. The lock is ours, so no other statement can be in the way, unless
 * the handler has ended the claim itself. */
static enum hapax_error ask_own(struct pg_call *call, struct hapax_op *op)
{
    struct hapax_op *ops[] = {op};
    enum hapax_error error = run_ops(call, ops, 1);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (op->error == HAPAX_ERR_SEALED)
        return op->error;
    if (op->verdict == HAPAX_NO_VERDICT)
        return hapax__fail(call->text, op->error,
                           "the record is held by somebody else's statement");
    if (op->kind == HAPAX_OP_COMPLETE && op->verdict == HAPAX_LOST &&
        op->record.state != HAPAX_STATE_COMPLETED)
        return hapax__fail(call->text, HAPAX_ERR_UNAVAILABLE,
                           "the claim is gone: the handler failed it, and says that it is done");
    return HAPAX_ERR_NONE;
}

/* ---- the flow ------------------------------------------------------------------------ */

static void nap(int64_t until_us)
{
    int64_t left_us = until_us - hapax__boot_us();
    struct timespec pause = {(time_t)(left_us / US_PER_S), (long)(left_us % US_PER_S * 1000)};

    assert(until_us != INT64_MAX);
    if (left_us > 0)
        nanosleep(&pause, NULL);
}

static enum hapax_error ask(struct pg_call *call)
{
    struct hapax__flow *flow = &call->flow;
    enum hapax_error error =
        flow->op.kind == HAPAX_OP_CLAIM ? ask_claim(call, &flow->op) : ask_own(call, &flow->op);

    if (error == HAPAX_ERR_NONE)
        hapax__flow_told(flow, hapax__boot_us());
    return error;
}

static enum hapax_error let_run(struct pg_call *call)
{
    enum hapax_class cls;
    enum hapax_error error = run_handler(call, &cls);

    if (error == HAPAX_ERR_NONE)
        hapax__flow_handled(&call->flow, cls, &call->attempt.outcome, hapax__boot_us());
    return error;
}

static enum hapax_error give(struct pg_call *call)
{
    if (!hapax__answer_take(call->answer, &call->flow, &call->attempt))
        return hapax__fail(call->text, HAPAX_ERR_NOMEM, "out of memory for the outcome");
    if (!call->ours && call->answer->kind == HAPAX_ANSWER_FRESH)
        call->answer->recorded = false; /* not yet */
    return HAPAX_ERR_NONE;
}

static int64_t flow_now(const struct hapax__flow *flow)
{
    (void)flow;
    return hapax__boot_us();
}

static bool flow_act(struct hapax__flow *flow, enum hapax__flow_do what, int64_t now_us)
{
    struct pg_call *call = flow->door;

    (void)now_us;
    switch (what) {
    case HAPAX__FLOW_PAUSE:
        nap(flow->wake_us);
        break;
    case HAPAX__FLOW_ASK:
        call->error = ask(call);
        break;
    case HAPAX__FLOW_RUN:
        call->error = let_run(call);
        break;
    case HAPAX__FLOW_ANSWER:
        call->error = give(call);
        break;
    default:
        assert(what == HAPAX__FLOW_END); /* no hook, and no RENEW while a handler runs */
        call->over = true;
    }
    return call->error == HAPAX_ERR_NONE;
}

/* Does what the flow says, to its end. */
static enum hapax_error drive(struct pg_call *call)
{
    static const struct hapax__flow_door door = {flow_now, flow_act};

    hapax__waiters_init(&call->waiters, &call->bucket, 1);
    call->flow.door = call;
    hapax__flow_begin(&call->flow, &call->policy, &call->waiters, &call->request, hapax__boot_us());
    while (!call->over && hapax__flow_drive(&call->flow, &door))
        continue;
    return call->error;
}

/* ---- the call ------------------------------------------------------------------------ */

static enum hapax_error check_connection(struct pg_call *call)
{
    switch (PQtransactionStatus(call->conn)) {
    case PQTRANS_IDLE:
        call->ours = true;
        break;
    case PQTRANS_INTRANS:
        break;
    case PQTRANS_INERROR:
        return hapax__fail(call->text, HAPAX_ERR_INVALID,
                           "the connection's transaction has failed: roll it back first");
    case PQTRANS_ACTIVE:
        return hapax__fail(call->text, HAPAX_ERR_INVALID, "the connection is busy");
    default:
        return fail(call, "use the connection", NULL);
    }
    if (PQpipelineStatus(call->conn) != PQ_PIPELINE_OFF)
        return hapax__fail(call->text, HAPAX_ERR_INVALID, "the connection is in pipeline mode");
    return HAPAX_ERR_NONE;
}

static int digit(char c)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    const char *at = c ? strchr(digits, c) : NULL;

    if (!at)
        return -1;
    return (int)(at - digits) - (at - digits > 15 ? 6 : 0);
}

/* From hex. False: it is not hex, or too long. */
static bool read_secret(uint8_t secret[SECRET_MAX], size_t *len, const char *hex)
{
    size_t digits = strlen(hex);

    *len = digits / 2;
    if (digits % 2 != 0 || *len > SECRET_MAX)
        return false;
    for (size_t i = 0; i < *len; i++) {
        int high = digit(hex[i * 2]), low = digit(hex[i * 2 + 1]);

        if (high < 0 || low < 0)
            return false;
        secret[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* Enters, and fills in call->request, for which the session's secret is needed. */
static enum hapax_error begin(struct pg_call *call, const struct hapax_request *request)
{
    uint8_t secret[SECRET_MAX];
    struct hapax_span span = {secret, 0};
    enum hapax_error error;
    PGresult *rows;

    error = enter(call, &rows);
    if (error != HAPAX_ERR_NONE)
        return error;
    call->request.key = HAPAX__KEY_NONE;
    if (!read_secret(secret, &span.len, PQgetvalue(rows, 0, 0))) {
        error = hapax__fail(call->text, HAPAX_ERR_INVALID,
                            "the setting hapax.secret is not hex, or over %u bytes", SECRET_MAX);
    } else if (request->key.len > 0) {
        hapax__bind_check(&call->check_id, &call->check, span);
        if (!hapax__call_identify(&call->request, &call->names, request,
                                  &(const struct hapax__secrets){.now = span}))
            error = hapax__fail(call->text, HAPAX_ERR_NOMEM, "no random bytes");
        else if (!call->attempt.outer)
            call->request.key_age_ms = hapax__key_age_ms(&call->policy, request->key);
    }
    explicit_bzero(secret, sizeof(secret));
    PQclear(rows);
    return error;
}

static void release(struct pg_call *call)
{
    hapax__attempt_release(&call->attempt);
    hapax__arena_release(&call->arena);
    free(call->out.bytes);
    explicit_bzero(call, sizeof(*call)); /* its token is a secret */
    free(call);
}

static hapax__execute_inner execute_inner;

static struct pg_call *call_new(PGconn *conn, const struct hapax_policy *policy,
                                const struct hapax_request *request,
                                const struct hapax_attempt *outer)
{
    struct pg_call *call = calloc(1, sizeof(*call));

    if (!call)
        return NULL;
    call->conn = conn;
    call->attempt.execute_inner = execute_inner;
    call->attempt.door = conn;
    call->attempt.in_transaction = true;
    hapax__attempt_init(&call->attempt, policy, request, outer);
    call->policy = *policy;
    call->policy.on_store_error = HAPAX_STORE_CLOSED;
    call->policy.save_wait_ms = FOREVER_MS;
    return call;
}

/* A call that was checked; `outer` is NULL unless the call is an inner one. */
static enum hapax_error execute(PGconn *conn, const struct hapax_policy *policy,
                                const struct hapax_request *request,
                                const struct hapax_attempt *outer, hapax_pg_handler *handler,
                                void *arg, struct hapax_answer *answer, char text[HAPAX_TEXT_MAX])
{
    struct pg_call *call = call_new(conn, policy, request, outer);
    enum hapax_error error;

    if (!call)
        return hapax__fail(text, HAPAX_ERR_NOMEM, "out of memory");
    call->handler = handler;
    call->arg = arg;
    call->answer = answer;
    call->text = text;
    error = check_connection(call);
    if (error == HAPAX_ERR_NONE)
        error = begin(call, request);
    if (error == HAPAX_ERR_NONE)
        error = drive(call);
    if (error == HAPAX_ERR_NONE && call->inside)
        error = keep(call);
    if (error != HAPAX_ERR_NONE) {
        undo(call);
        hapax_answer_release(answer);
    }
    release(call);
    return error;
}

struct inner {
    hapax_handler *handler;
    void *arg;
};

static enum hapax_class run_inner(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    const struct inner *inner = arg;

    (void)conn;
    return inner->handler(attempt, inner->arg);
}

static enum hapax_error execute_inner(const struct hapax_attempt *outer,
                                      const struct hapax_policy *policy,
                                      const struct hapax_request *request, hapax_handler *handler,
                                      void *arg, struct hapax_answer *answer,
                                      char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error = hapax__call_check(policy, request, true, false, text);
    struct inner inner = {handler, arg};

    if (error != HAPAX_ERR_NONE)
        return error;
    return execute(outer->door, policy, request, outer, run_inner, &inner, answer, text);
}

enum hapax_error hapax_pg_execute(PGconn *conn, const struct hapax_policy *policy,
                                  const struct hapax_request *request, hapax_pg_handler *handler,
                                  void *arg, struct hapax_answer *answer, char text[HAPAX_TEXT_MAX])
{
    enum hapax_error error;

    assert(handler);
    memset(answer, 0, sizeof(*answer));
    text[0] = '\0';
    error = hapax__call_check(policy, request, false, false, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    return execute(conn, policy, request, NULL, handler, arg, answer, text);
}
