/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pg_execute URI: what hapax_pg_execute() answers and leaves behind, in a database where
 * `hapax init` was run. The business is a table of rows; after every case they are as many as
 * the completed operations that say 201, or the case says otherwise. Who dies when is in
 * test_pg_crash.py.
 */
#include <hapax/postgres.h>
#include <hapax/store.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../cases.h"
#include "pg_bed.h"

#define WAIT_MS 60000 /* no event of a test takes longer, on any machine */

static const char *uri;

/* ---- the bed ------------------------------------------------------------------------- */

struct bed {
    PGconn *conn;
    struct hapax_policy policy;
    char text[HAPAX_TEXT_MAX];
};

/* Nothing of the cases before is left. */
static void open_bed(struct bed *bed)
{
    bed->conn = connect_to(uri);
    sql(bed->conn, "SET client_min_messages = warning; DROP TABLE IF EXISTS lines, heads; "
                   "DELETE FROM hapax.operations; CREATE TABLE heads (n int PRIMARY KEY); "
                   "CREATE TABLE lines (text text, head int REFERENCES heads "
                   "DEFERRABLE INITIALLY DEFERRED)");
    hapax_policy_init(&bed->policy);
    bed->policy.timeout_ms = WAIT_MS;
}

static long lines(const struct bed *bed)
{
    return number(bed->conn, "SELECT count(*) FROM lines");
}

static long done(const struct bed *bed)
{
    return number(bed->conn,
                  "SELECT count(*) FROM hapax.operations WHERE state = 2 AND status = 201");
}

/* The rows are those of the completed operations, no more and no less. */
static void close_bed(struct bed *bed)
{
    assert_int_equal(PQtransactionStatus(bed->conn), PQTRANS_IDLE);
    assert_int_equal(lines(bed), done(bed));
    PQfinish(bed->conn);
}

struct script {
    enum hapax_class cls;
    int status;
    const char *first; /* a statement before the row is written, and one after */
    const char *then;
    const char *body;
    unsigned runs;
    uint32_t number;
    uint64_t fence;
    bool stale;
    struct gate *gate; /* entered, then waits */
};

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool entered;
    bool open;
};

static void gate_set(struct gate *gate, bool *what)
{
    pthread_mutex_lock(&gate->lock);
    *what = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static void gate_wait(struct gate *gate, const bool *what)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MS / 1000;
    pthread_mutex_lock(&gate->lock);
    while (!*what)
        must(pthread_cond_timedwait(&gate->changed, &gate->lock, &until) == 0);
    pthread_mutex_unlock(&gate->lock);
}

static enum hapax_class play(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    struct script *script = arg;

    script->runs++;
    script->number = hapax_attempt_number(attempt);
    script->fence = hapax_attempt_fence(attempt);
    script->stale = hapax_attempt_stale(attempt);
    if (script->first)
        PQclear(PQexec(conn, script->first));
    PQclear(PQexec(conn, "INSERT INTO lines (text) VALUES ('done')"));
    if (script->then)
        PQclear(PQexec(conn, script->then));
    if (script->gate) {
        gate_set(script->gate, &script->gate->entered);
        gate_wait(script->gate, &script->gate->open);
    }
    must(hapax_attempt_outcome(attempt, script->status, hapax_str("A: b\r\n"),
                               hapax_str(script->body)) == HAPAX_ERR_NONE);
    return script->cls;
}

static struct script final(void)
{
    return (struct script){.cls = HAPAX_CLASS_FINAL, .status = 201, .body = "receipt"};
}

static enum hapax_error call_on(PGconn *conn, struct bed *bed, const char *key,
                                struct script *script, struct hapax_answer *answer)
{
    struct hapax_request request = {.key = hapax_str(key)};

    return hapax_pg_execute(conn, &bed->policy, &request, play, script, answer, bed->text);
}

/* Calls, and says what the answer must be. */
static void expect(struct bed *bed, const char *key, struct script *script,
                   enum hapax_answer_kind kind, const char *body)
{
    struct hapax_answer answer;
    enum hapax_error error = call_on(bed->conn, bed, key, script, &answer);

    if (error != HAPAX_ERR_NONE)
        print_error("%s: %s\n", hapax_error_name(error), bed->text);
    assert_int_equal(error, HAPAX_ERR_NONE);
    assert_string_equal(hapax_answer_name(answer.kind), hapax_answer_name(kind));
    assert_int_equal(answer.outcome.body.len, strlen(body));
    if (*body)
        assert_memory_equal(answer.outcome.body.ptr, body, strlen(body));
    hapax_answer_release(&answer);
}

static void expect_error(struct bed *bed, const char *key, struct script *script,
                         enum hapax_error error, const char *word)
{
    struct hapax_answer answer;

    assert_string_equal(hapax_error_name(call_on(bed->conn, bed, key, script, &answer)),
                        hapax_error_name(error));
    if (!strstr(bed->text, word))
        print_error("no \"%s\" in: %s\n", word, bed->text);
    assert_non_null(strstr(bed->text, word));
    assert_int_equal(answer.kind, 0);
    assert_null(answer.memory);
}

/* The next PQexec() of a text that begins so fails, as one that an operator cancels. NULL: none. */
static const char *cancelled;

PGresult *__real_PQexec(PGconn *conn, const char *query);
PGresult *__wrap_PQexec(PGconn *conn, const char *query);

PGresult *__wrap_PQexec(PGconn *conn, const char *query)
{
    if (!cancelled || strncmp(query, cancelled, strlen(cancelled)) != 0)
        return __real_PQexec(conn, query);
    cancelled = NULL;
    return __real_PQexec(conn, "DO $$ BEGIN RAISE query_canceled; END $$");
}

/* ---- a transaction of Hapax's ---------------------------------------------------------- */

/* One row, one completed record, and every repeat has the same bytes. */
CASE(row_and_record_are_committed_together)
{
    struct script script = final();
    struct hapax_answer answer;
    struct bed bed;

    open_bed(&bed);
    assert_int_equal(call_on(bed.conn, &bed, "k", &script, &answer), HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
    assert_true(answer.recorded && answer.attempt == 1 && answer.fence == script.fence);
    assert_true(script.fence > 0 && !script.stale && script.number == 1);
    hapax_answer_release(&answer);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(call_on(bed.conn, &bed, "k", &script, &answer), HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, HAPAX_ANSWER_REPLAY);
        assert_true(answer.recorded && answer.outcome.status == 201);
        assert_int_equal(answer.outcome.headers.len, 6);
        assert_memory_equal(answer.outcome.headers.ptr, "A: b\r\n", 6);
        hapax_answer_release(&answer);
    }
    assert_int_equal(script.runs, 1);
    assert_int_equal(lines(&bed), 1);
    close_bed(&bed);
}

/* Whatever is not final leaves no row, and its record is what the policy says. */
CASE(a_handler_that_is_not_final_leaves_no_row)
{
    static const struct {
        enum hapax_class cls;
        enum hapax_on_failed on_failed;
        enum hapax_on_expired on_expired;
        enum hapax_answer_kind repeat;
        const char *body;
    } cases[] = {
        {HAPAX_CLASS_NOT_RUN, HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, HAPAX_ANSWER_FRESH,
         "receipt"},
        {HAPAX_CLASS_FAILED, HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, HAPAX_ANSWER_FRESH,
         "receipt"},
        {HAPAX_CLASS_FAILED, HAPAX_FAILED_REPLAY, HAPAX_EXPIRED_RERUN, HAPAX_ANSWER_REPLAY, "no"},
        {HAPAX_CLASS_FAILED, HAPAX_FAILED_HOLD, HAPAX_EXPIRED_RERUN, HAPAX_ANSWER_UNKNOWN, ""},
        {HAPAX_CLASS_UNKNOWN, HAPAX_FAILED_RETRY, HAPAX_EXPIRED_HOLD, HAPAX_ANSWER_UNKNOWN, ""},
        {HAPAX_CLASS_UNKNOWN, HAPAX_FAILED_RETRY, HAPAX_EXPIRED_RERUN, HAPAX_ANSWER_IN_FLIGHT, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct script bad = {.cls = cases[i].cls, .status = 500, .body = "no"}, good = final();
        struct bed bed;

        open_bed(&bed);
        bed.policy.on_failed = cases[i].on_failed;
        bed.policy.on_expired = cases[i].on_expired;
        expect(&bed, "k", &bad, HAPAX_ANSWER_FRESH, "no");
        assert_int_equal(lines(&bed), 0);
        expect(&bed, "k", &good, cases[i].repeat, cases[i].body);
        assert_int_equal(good.runs, cases[i].repeat == HAPAX_ANSWER_FRESH ? 1 : 0);
        close_bed(&bed);
    }
}

/* Unknown under `rerun`: the claim lives as long as its lease, then the next is told that it is
 * stale. */
CASE(an_unknown_end_is_left_to_the_lease)
{
    struct script bad = {.cls = HAPAX_CLASS_UNKNOWN}, good = final();
    struct bed bed;

    open_bed(&bed);
    bed.policy.lease_ms = bed.policy.run_max_ms = 300;
    expect(&bed, "k", &bad, HAPAX_ANSWER_FRESH, "");
    bed.policy.lease_ms = bed.policy.run_max_ms = bed.policy.wait_ms = WAIT_MS;
    expect(&bed, "k", &good, HAPAX_ANSWER_FRESH, "receipt");
    assert_true(good.stale && good.number == 2 && good.fence > bad.fence);
    close_bed(&bed);
}

/* attempts_max counts here as everywhere, and the last failure is what is told then. */
CASE(attempts_are_counted_across_transactions)
{
    struct script bad = {.cls = HAPAX_CLASS_FAILED, .status = 500, .body = "no"};
    struct bed bed;

    open_bed(&bed);
    bed.policy.attempts_max = 2;
    expect(&bed, "k", &bad, HAPAX_ANSWER_FRESH, "no");
    expect(&bed, "k", &bad, HAPAX_ANSWER_FRESH, "no");
    expect(&bed, "k", &bad, HAPAX_ANSWER_FAILED, "no");
    assert_int_equal(bad.runs, 2);
    close_bed(&bed);
}

/* Another request under the key, no key, a key that is required, an outcome too long to keep. */
CASE(the_rest_of_the_policy_is_that_of_every_door)
{
    struct script script = final();
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_answer answer;
    struct bed bed;

    open_bed(&bed);
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "receipt");
    request.fingerprint.bytes[0] = 1;
    assert_int_equal(
        hapax_pg_execute(bed.conn, &bed.policy, &request, play, &script, &answer, bed.text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_MISMATCH);
    assert_int_equal(answer.differs, HAPAX_DIFFERS_FINGERPRINT);
    hapax_answer_release(&answer);
    bed.policy.max_response = 3;
    expect(&bed, "long", &script, HAPAX_ANSWER_FRESH, "receipt");
    expect(&bed, "long", &script, HAPAX_ANSWER_GONE, "");
    assert_int_equal(script.runs, 2);
    bed.policy.key = HAPAX_KEY_REQUIRED;
    expect(&bed, "", &script, HAPAX_ANSWER_MISSING_KEY, "");
    bed.policy.key = HAPAX_KEY_OPTIONAL;
    expect(&bed, "", &script, HAPAX_ANSWER_BYPASS, "receipt");
    assert_int_equal(lines(&bed), 3);
    script.cls = HAPAX_CLASS_FAILED;
    expect(&bed, "", &script, HAPAX_ANSWER_BYPASS, "receipt");
    assert_int_equal(lines(&bed), 3);
    bed.policy.on_expired = HAPAX_EXPIRED_RECONCILE;
    expect_error(&bed, "k", &script, HAPAX_ERR_INVALID, "reconcile");
    /* The one without a record. */
    sql(bed.conn, "DELETE FROM lines WHERE ctid = (SELECT max(ctid) FROM lines)");
    close_bed(&bed);
}

/* ---- handlers that err --------------------------------------------------------------- */

/* FINAL after a statement's error nobody looked at, and FINAL with a foreign key that will not
 * hold: no row, no outcome, failed; and nothing of what it said is replayed. */
CASE(final_is_not_believed_where_the_rows_cannot_stay)
{
    static const char *const statements[] = {"SELECT 1/0", "INSERT INTO lines VALUES ('x', 7)"};

    for (size_t i = 0; i < 2; i++) {
        struct script bad = final(), good = final();
        struct hapax_answer answer;
        struct bed bed;

        open_bed(&bed);
        bad.then = statements[i];
        assert_int_equal(call_on(bed.conn, &bed, "k", &bad, &answer), HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
        assert_int_equal(answer.cls, HAPAX_CLASS_FAILED);
        assert_int_equal(answer.outcome.status, 0);
        assert_int_equal(answer.outcome.body.len, 0);
        hapax_answer_release(&answer);
        assert_int_equal(lines(&bed), 0);
        expect(&bed, "k", &good, HAPAX_ANSWER_FRESH, "receipt");
        assert_int_equal(good.number, 2);
        close_bed(&bed);
    }
}

/* COMMIT, ROLLBACK, or ROLLBACK and BEGIN: it is noticed, and never taken for an end. */
CASE(a_handler_that_ends_the_transaction_is_found_out)
{
    static const char *const statements[] = {"ROLLBACK", "ROLLBACK; BEGIN",
                                             "ROLLBACK; BEGIN; COMMIT",
                                             "RELEASE SAVEPOINT hapax_handler"};

    for (size_t i = 0; i < 4; i++) {
        struct script bad = final(), good = final();
        struct bed bed;

        open_bed(&bed);
        bad.then = statements[i];
        expect_error(&bed, "k", &bad, HAPAX_ERR_INDETERMINATE, "the handler ended the transaction");
        assert_int_equal(PQtransactionStatus(bed.conn), PQTRANS_IDLE);
        assert_int_equal(lines(&bed), 0);
        expect(&bed, "k", &good, HAPAX_ANSWER_FRESH, "receipt");
        close_bed(&bed);
    }
}

/* The server ends the connection in the handler, and nobody knows whether that sent COMMIT: another
 * connection runs it, as nothing was done. */
CASE(a_connection_lost_in_the_handler_leaves_nothing)
{
    struct script bad = final(), good = final();
    struct bed bed;

    open_bed(&bed);
    bad.then = "SELECT pg_terminate_backend(pg_backend_pid())";
    expect_error(&bed, "k", &bad, HAPAX_ERR_INDETERMINATE, "");
    expect_error(&bed, "k", &good, HAPAX_ERR_UNAVAILABLE, "");
    PQreset(bed.conn);
    expect(&bed, "k", &good, HAPAX_ANSWER_FRESH, "receipt");
    assert_int_equal(good.number, 1);
    close_bed(&bed);
}

/* The same behind a COMMIT of the handler's: its row stands, and nobody said that nothing was
 * done. */
CASE(a_commit_before_the_connection_is_lost_is_not_denied)
{
    struct script bad = final();
    struct bed bed;

    open_bed(&bed);
    bad.then = "COMMIT; SELECT pg_terminate_backend(pg_backend_pid())";
    expect_error(&bed, "k", &bad, HAPAX_ERR_INDETERMINATE, "");
    PQreset(bed.conn);
    assert_int_equal(lines(&bed), 1);
    sql(bed.conn, "DELETE FROM lines");
    close_bed(&bed);
}

/* A deferred check that fails for a moment tells nothing of a COMMIT before it. */
CASE(a_commit_before_a_check_that_fails_is_not_denied)
{
    struct hapax_answer answer;
    struct script bad = final();
    struct bed bed;

    open_bed(&bed);
    bad.then = "COMMIT; BEGIN; CREATE FUNCTION busy() RETURNS trigger LANGUAGE plpgsql AS "
               "$$ BEGIN RAISE 'x' USING ERRCODE = '40001'; END $$; "
               "CREATE CONSTRAINT TRIGGER t AFTER INSERT ON lines DEFERRABLE INITIALLY DEFERRED "
               "FOR EACH ROW EXECUTE FUNCTION busy(); INSERT INTO lines (text) VALUES ('b')";
    assert_int_equal(call_on(bed.conn, &bed, "k", &bad, &answer), HAPAX_ERR_INDETERMINATE);
    assert_int_equal(lines(&bed), 1);
    sql(bed.conn, "DELETE FROM lines");
    close_bed(&bed);
}

/* ---- the caller's transaction -------------------------------------------------------- */

/* Joined, an answer holds once the caller commits; rolled back, nothing ever happened. */
CASE(a_joined_answer_holds_with_the_callers_commit)
{
    struct script script = final();
    struct hapax_answer answer;
    struct bed bed;

    open_bed(&bed);
    for (int i = 0; i < 2; i++) {
        sql(bed.conn, "BEGIN; INSERT INTO heads VALUES (1)");
        assert_int_equal(call_on(bed.conn, &bed, "k", &script, &answer), HAPAX_ERR_NONE);
        assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
        assert_false(answer.recorded);
        assert_int_equal(script.number, 1);
        hapax_answer_release(&answer);
        assert_int_equal(PQtransactionStatus(bed.conn), PQTRANS_INTRANS);
        sql(bed.conn, i == 0 ? "ROLLBACK" : "COMMIT");
        assert_int_equal(lines(&bed), i);
    }
    sql(bed.conn, "BEGIN");
    expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "receipt");
    sql(bed.conn, "COMMIT");
    assert_int_equal(script.runs, 2);
    close_bed(&bed);
}

/* What the caller did before survives a handler that failed, and a call that was refused. */
CASE(the_callers_own_rows_survive_a_failed_handler)
{
    struct script bad = {.cls = HAPAX_CLASS_FAILED, .body = "no"}, overdone = final();
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn, "BEGIN; INSERT INTO heads VALUES (1)");
    bad.then = "SELECT 1/0";
    expect(&bed, "k", &bad, HAPAX_ANSWER_FRESH, "no");
    sql(bed.conn, "INSERT INTO heads VALUES (2)");
    overdone.then = "ROLLBACK TO SAVEPOINT hapax_handler; RELEASE SAVEPOINT hapax_handler";
    expect_error(&bed, "k2", &overdone, HAPAX_ERR_INDETERMINATE, "ended the transaction");
    assert_int_equal(PQtransactionStatus(bed.conn), PQTRANS_INTRANS);
    sql(bed.conn, "COMMIT");
    assert_int_equal(number(bed.conn, "SELECT count(*) FROM heads"), 2);
    assert_int_equal(number(bed.conn, "SELECT count(*) FROM hapax.operations WHERE state = 3"), 1);
    close_bed(&bed);
}

/* A joined call whose last statement fails is taken back: the caller's transaction goes on. */
CASE(a_joined_call_that_cannot_be_left_is_undone)
{
    struct script script = final();
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn, "BEGIN; INSERT INTO heads VALUES (1)");
    cancelled = "RELEASE SAVEPOINT hapax_call";
    expect_error(&bed, "k", &script, HAPAX_ERR_UNAVAILABLE, "leave the savepoint");
    assert_int_equal(PQtransactionStatus(bed.conn), PQTRANS_INTRANS);
    sql(bed.conn, "COMMIT");
    assert_int_equal(number(bed.conn, "SELECT count(*) FROM heads"), 1);
    assert_int_equal(lines(&bed), 0);
    close_bed(&bed);
}

static enum hapax_class play_around(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    struct script script = final();

    cancelled = "SAVEPOINT hapax_call";
    expect_error(arg, "inner", &script, HAPAX_ERR_UNAVAILABLE, "cannot begin");
    return play(conn, attempt, &script);
}

/* A call within a handler that cannot begin takes back nothing of the call around it. */
CASE(a_call_that_cannot_begin_leaves_the_one_around_it)
{
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_answer answer;
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn, "BEGIN; INSERT INTO heads VALUES (1)");
    assert_int_equal(
        hapax_pg_execute(bed.conn, &bed.policy, &request, play_around, &bed, &answer, bed.text),
        HAPAX_ERR_NONE);
    assert_int_equal(answer.kind, HAPAX_ANSWER_FRESH);
    assert_int_equal(answer.cls, HAPAX_CLASS_FAILED); /* its transaction had failed */
    hapax_answer_release(&answer);
    sql(bed.conn, "COMMIT");
    assert_int_equal(number(bed.conn, "SELECT count(*) FROM heads"), 1);
    close_bed(&bed);
}

static enum hapax_class run_steps(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    struct bed *bed = arg;
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_answer answer;
    struct script script = final();

    (void)attempt;
    for (int i = 0; i < 2; i++) {
        request.step = hapax_str(i == 0 ? "debit" : "credit");
        must(hapax_pg_execute(conn, &bed->policy, &request, play, &script, &answer, bed->text) ==
             HAPAX_ERR_NONE);
        must(answer.kind == HAPAX_ANSWER_FRESH && !answer.recorded);
        hapax_answer_release(&answer);
    }
    return HAPAX_CLASS_FINAL;
}

/* A handler may call for its steps; all of them are one transaction. */
CASE(steps_join_the_operation)
{
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_answer answer;
    struct bed bed;

    open_bed(&bed);
    assert_int_equal(
        hapax_pg_execute(bed.conn, &bed.policy, &request, run_steps, &bed, &answer, bed.text),
        HAPAX_ERR_NONE);
    assert_true(answer.kind == HAPAX_ANSWER_FRESH && answer.recorded);
    hapax_answer_release(&answer);
    assert_int_equal(lines(&bed), 2);
    close_bed(&bed);
}

/* ---- two callers --------------------------------------------------------------------- */

struct caller {
    pthread_t thread;
    struct bed bed;
    struct script script;
    bool joined; /* and then rolled back */
    enum hapax_error error;
    struct hapax_answer answer;
};

static void *call_main(void *arg)
{
    struct caller *caller = arg;

    caller->bed.conn = connect_to(uri);
    if (caller->joined)
        sql(caller->bed.conn, "BEGIN");
    caller->error = call_on(caller->bed.conn, &caller->bed, "k", &caller->script, &caller->answer);
    if (caller->joined)
        sql(caller->bed.conn, "ROLLBACK");
    PQfinish(caller->bed.conn);
    return NULL;
}

/* While the first one's transaction is open the second is told so at once, at this door and by
 * the store; or it waits, and replays what was committed, or runs where that was rolled back. */
CASE(the_second_waits_for_the_first_or_is_told_at_once)
{
    for (int rolled_back = 0; rolled_back < 2; rolled_back++) {
        struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, false};
        struct caller first = {.script = final()}, second = {.script = final()};
        struct hapax_op op = {.kind = HAPAX_OP_CLAIM,
                              .scope = hapax_str("default"),
                              .lease_ms = 1000,
                              .retention_ms = 100000,
                              .on_expired = HAPAX_EXPIRED_RERUN,
                              .token = {{1}}};
        struct hapax_store *store;
        struct script script = final();
        char store_uri[512];
        struct bed bed;

        open_bed(&bed);
        first.joined = rolled_back;
        first.script.gate = &gate;
        first.bed.policy = second.bed.policy = bed.policy;
        second.bed.policy.wait_ms = WAIT_MS;
        assert_int_equal(pthread_create(&first.thread, NULL, call_main, &first), 0);
        gate_wait(&gate, &gate.entered);
        expect(&bed, "k", &script, HAPAX_ANSWER_IN_FLIGHT, "");
        snprintf(store_uri, sizeof(store_uri), "%s?timeout=30s", uri);
        assert_int_equal(hapax_store_open(&store, store_uri, bed.text), HAPAX_ERR_NONE);
        assert_int_equal(
            hapax_id(&op.id, op.scope, hapax_str("k"), hapax_str(NULL), hapax_str(NULL)),
            HAPAX_ERR_NONE);
        assert_int_equal(hapax_store_run(store, &op, 1), HAPAX_ERR_NONE);
        assert_int_equal(op.verdict, HAPAX_IN_FLIGHT);
        hapax_store_close(store);
        assert_int_equal(pthread_create(&second.thread, NULL, call_main, &second), 0);
        gate_set(&gate, &gate.open);
        assert_int_equal(pthread_join(first.thread, NULL), 0);
        assert_int_equal(pthread_join(second.thread, NULL), 0);
        assert_int_equal(first.error, HAPAX_ERR_NONE);
        assert_int_equal(second.error, HAPAX_ERR_NONE);
        assert_int_equal(second.answer.kind,
                         rolled_back ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_REPLAY);
        assert_int_equal(second.script.runs, rolled_back);
        assert_int_equal(script.runs, 0);
        hapax_answer_release(&first.answer);
        hapax_answer_release(&second.answer);
        assert_int_equal(lines(&bed), 1);
        close_bed(&bed);
    }
}

#define RACERS 8

/* Eight at once, new keys: each key runs once, everybody has its outcome. */
CASE(racers_of_a_key_have_one_outcome)
{
    struct caller racers[RACERS];
    struct bed bed;
    unsigned runs;

    open_bed(&bed);
    for (int round = 0; round < 5; round++) {
        sql(bed.conn, "DELETE FROM lines; DELETE FROM hapax.operations");
        runs = 0;
        memset(racers, 0, sizeof(racers));
        for (int i = 0; i < RACERS; i++) {
            racers[i].script = final();
            racers[i].bed.policy = bed.policy;
            racers[i].bed.policy.wait_ms = WAIT_MS;
            racers[i].bed.policy.timeout_ms = WAIT_MS;
            assert_int_equal(pthread_create(&racers[i].thread, NULL, call_main, &racers[i]), 0);
        }
        for (int i = 0; i < RACERS; i++) {
            assert_int_equal(pthread_join(racers[i].thread, NULL), 0);
            if (racers[i].error != HAPAX_ERR_NONE)
                print_error("%s\n", racers[i].bed.text);
            assert_int_equal(racers[i].error, HAPAX_ERR_NONE);
            assert_int_equal(racers[i].answer.outcome.body.len, 7);
            hapax_answer_release(&racers[i].answer);
            runs += racers[i].script.runs;
        }
        assert_int_equal(runs, 1);
        assert_int_equal(lines(&bed), 1);
    }
    close_bed(&bed);
}

/* At the stricter levels a snapshot from before another's commit is 40001: nothing done, and a new
 * transaction has the answer. */
CASE(an_old_snapshot_is_40001_and_a_retry_works)
{
    static const char *const levels[] = {"repeatable read", "serializable"};

    for (size_t i = 0; i < 2; i++) {
        struct script script = final(), other = final();
        struct hapax_answer answer;
        char begin[100];
        PGconn *conn;
        struct bed bed;

        open_bed(&bed);
        snprintf(begin, sizeof(begin), "BEGIN ISOLATION LEVEL %s; SELECT count(*) FROM lines",
                 levels[i]);
        sql(bed.conn, begin);
        conn = connect_to(uri);
        assert_int_equal(call_on(conn, &bed, "k", &other, &answer), HAPAX_ERR_NONE);
        hapax_answer_release(&answer);
        PQfinish(conn);
        expect_error(&bed, "k", &script, HAPAX_ERR_UNAVAILABLE, "[40001]");
        sql(bed.conn, "ROLLBACK");
        sql(bed.conn, begin);
        expect(&bed, "k", &script, HAPAX_ANSWER_REPLAY, "receipt");
        sql(bed.conn, "COMMIT");
        assert_int_equal(script.runs, 0);
        close_bed(&bed);
    }
}

/* ---- what is refused ----------------------------------------------------------------- */

/* A connection that is not in a state to be used: refused before anything is sent, and left as
 * it was. */
CASE(a_connection_in_a_wrong_state_is_refused)
{
    struct script script = final();
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn, "BEGIN");
    PQclear(PQexec(bed.conn, "SELECT 1/0"));
    expect_error(&bed, "k", &script, HAPAX_ERR_INVALID, "has failed");
    sql(bed.conn, "ROLLBACK");
    PQclear(PQexec(bed.conn, "COPY heads FROM STDIN"));
    expect_error(&bed, "k", &script, HAPAX_ERR_INVALID, "busy");
    must(PQputCopyEnd(bed.conn, "no") == 1);
    for (PGresult *result; (result = PQgetResult(bed.conn)) != NULL;)
        PQclear(result);
    must(PQenterPipelineMode(bed.conn) == 1);
    expect_error(&bed, "k", &script, HAPAX_ERR_INVALID, "pipeline");
    must(PQexitPipelineMode(bed.conn) == 1);
    assert_int_equal(script.runs, 0);
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "receipt");
    close_bed(&bed);
}

/* No schema, no rights: said so, and nothing runs. */
CASE(a_database_without_hapax_is_said_to_be_one)
{
    struct script script = final();
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn,
        "DROP ROLE IF EXISTS nobody_special; CREATE ROLE nobody_special; SET ROLE nobody_special");
    expect_error(&bed, "k", &script, HAPAX_ERR_REFUSED, "[42501]");
    sql(bed.conn, "RESET ROLE; DROP ROLE nobody_special; ALTER SCHEMA hapax RENAME TO elsewhere");
    expect_error(&bed, "k", &script, HAPAX_ERR_UNSUPPORTED, "[3F000]");
    sql(bed.conn, "ALTER SCHEMA elsewhere RENAME TO hapax");
    assert_int_equal(script.runs, 0);
    close_bed(&bed);
}

/* The records are for one secret: with another, or with none, each key would be a new one. */
CASE(another_secret_is_refused)
{
    struct script script = final();
    struct hapax_id id;
    char query[200] = "SELECT count(*) FROM hapax.operations WHERE id = '\\x";
    struct bed bed;

    open_bed(&bed);
    sql(bed.conn, "SET hapax.secret = '73657372'");
    expect(&bed, "k", &script, HAPAX_ANSWER_FRESH, "receipt");
    assert_int_equal(
        hapax_id(&id, hapax_str("default"), hapax_str("k"), hapax_str(NULL), hapax_str("sesr")),
        HAPAX_ERR_NONE);
    for (size_t i = 0; i < sizeof(id.bytes); i++)
        snprintf(query + strlen(query), 3, "%02x", id.bytes[i]);
    snprintf(query + strlen(query), 2, "'");
    assert_int_equal(number(bed.conn, query), 1);
    sql(bed.conn, "SET hapax.secret = '00'");
    expect_error(&bed, "k", &script, HAPAX_ERR_REFUSED, "another secret");
    sql(bed.conn, "SET hapax.secret = 'xyz'");
    expect_error(&bed, "k", &script, HAPAX_ERR_INVALID, "hapax.secret");
    sql(bed.conn, "RESET hapax.secret");
    expect_error(&bed, "k", &script, HAPAX_ERR_REFUSED, "another secret");
    assert_int_equal(script.runs, 1);
    close_bed(&bed);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: test_pg_execute URI\n"), 2;
    uri = argv[1];
    return cases_run(NULL, NULL);
}
