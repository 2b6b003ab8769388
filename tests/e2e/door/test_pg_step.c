/* SPDX-License-Identifier: Apache-2.0
 *
 * test_pg_step URI: hapax_step() within hapax_pg_execute(), whose transaction its records are
 * in, and within hapax_execute() on a PostgreSQL store, where they are not.
 */
#include <hapax/postgres.h>
#include <hapax/store.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cases.h"
#include "pg_bed.h"

static const char *uri;
static char store_uri[512]; /* the same, where an op has the time that it takes on a busy machine */

#define LISTED                                                                                     \
    "SELECT count(*) FROM hapax.operations WHERE state = 2 AND fingerprint = "                     \
    "hapax.digest('hapax', 'step')"
#define RECORDS(state)                                                                             \
    "SELECT count(*) FROM hapax.operations WHERE scope = 'default' AND state = " #state            \
    " AND fingerprint <> hapax.digest('hapax', 'step')"
#define LINES "SELECT count(*) FROM lines"

struct order {
    PGconn *conn;
    enum hapax_class cls[2]; /* how its two steps end */
    enum hapax_class ends; /* and the handler, after them */
    enum hapax_answer_kind kinds[2];
    bool recorded;
    bool idle; /* fails before its first step */
    unsigned runs[2];
    size_t now;
};

static PGconn *open_bed(struct order *order)
{
    memset(order, 0, sizeof(*order));
    order->conn = connect_to(uri);
    sql(order->conn, "SET client_min_messages = warning; DROP TABLE IF EXISTS lines; "
                     "DELETE FROM hapax.operations; CREATE TABLE lines (key text)");
    order->cls[0] = order->cls[1] = order->ends = HAPAX_CLASS_FINAL;
    return order->conn;
}

/* A step: a row that has its key. */
static enum hapax_class write_line(struct hapax_attempt *attempt, void *arg)
{
    struct order *order = arg;
    struct hapax_span key = hapax_attempt_key(attempt);
    char text[64];
    const char *values[] = {text};

    order->runs[order->now]++;
    snprintf(text, sizeof(text), "%.*s", (int)key.len, (const char *)key.ptr);
    PQclear(
        PQexecParams(order->conn, "INSERT INTO lines VALUES ($1)", 1, NULL, values, NULL, NULL, 0));
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), key) == HAPAX_ERR_NONE);
    return order->cls[order->now];
}

static enum hapax_class do_steps(struct hapax_attempt *attempt, void *arg)
{
    static const char *const names[] = {"debit", "credit"};
    struct order *order = arg;

    if (order->idle)
        return HAPAX_CLASS_FAILED;
    for (order->now = 0; order->now < 2; order->now++) {
        struct hapax_answer answer;
        char text[HAPAX_TEXT_MAX];

        must(hapax_step(attempt, names[order->now], write_line, order, &answer, text) ==
             HAPAX_ERR_NONE);
        order->kinds[order->now] = answer.kind;
        order->recorded = answer.recorded;
        hapax_answer_release(&answer);
    }
    must(hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str("moved")) ==
         HAPAX_ERR_NONE);
    return order->ends;
}

static enum hapax_class handle(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    must(conn == ((struct order *)arg)->conn);
    return do_steps(attempt, arg);
}

static enum hapax_answer_kind execute(struct order *order)
{
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_policy policy;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_answer_kind kind;

    hapax_policy_init(&policy);
    must(hapax_pg_execute(order->conn, &policy, &request, handle, order, &answer, text) ==
         HAPAX_ERR_NONE);
    kind = answer.kind;
    hapax_answer_release(&answer);
    return kind;
}

static enum hapax_answer_kind execute_on(struct hapax *h, struct order *order)
{
    struct hapax_request request = {.key = hapax_str("k")};
    struct hapax_policy policy;
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_answer_kind kind;

    hapax_policy_init(&policy);
    policy.timeout_ms = policy.save_wait_ms = 60000;
    must(hapax_execute(h, &policy, &request, do_steps, NULL, order, &answer, text) ==
         HAPAX_ERR_NONE);
    kind = answer.kind;
    hapax_answer_release(&answer);
    return kind;
}

/* Rows and records of the steps, and their list, are committed with the operation. */
CASE(steps_are_committed_with_their_operation)
{
    struct order order;
    PGconn *conn = open_bed(&order);

    assert_int_equal(execute(&order), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[1], HAPAX_ANSWER_FRESH);
    assert_false(order.recorded); /* not before the operation's commit */
    assert_int_equal(number(conn, LINES), 2);
    assert_int_equal(number(conn, "SELECT count(*) FROM lines WHERE key = 'k:credit'"), 1);
    assert_int_equal(number(conn, RECORDS(2)), 3);
    assert_int_equal(number(conn, LISTED), 2);
    assert_int_equal(execute(&order), HAPAX_ANSWER_REPLAY);
    assert_int_equal(order.runs[0], 1);
    PQfinish(conn);
}

/* An operation that fails takes its steps back with their rows, so that a retry runs them again. */
CASE(steps_go_back_with_their_operation)
{
    struct order order;
    PGconn *conn = open_bed(&order);

    order.ends = HAPAX_CLASS_FAILED;
    assert_int_equal(execute(&order), HAPAX_ANSWER_FRESH);
    assert_int_equal(number(conn, LINES), 0);
    assert_int_equal(number(conn, RECORDS(2)), 0);
    assert_int_equal(number(conn, RECORDS(3)), 1); /* the operation, failed */
    assert_int_equal(number(conn, LISTED), 0);
    order.ends = HAPAX_CLASS_FINAL;
    assert_int_equal(execute(&order), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.runs[0], 2);
    assert_int_equal(number(conn, LINES), 2);
    PQfinish(conn);
}

/* A step that fails goes back alone; what it was is in its record and in the list. */
CASE(a_failed_step_goes_back_alone)
{
    struct order order;
    PGconn *conn = open_bed(&order);

    order.cls[0] = HAPAX_CLASS_FAILED;
    assert_int_equal(execute(&order), HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
    assert_int_equal(number(conn, LINES), 1);
    assert_int_equal(number(conn, RECORDS(3)), 1);
    assert_int_equal(number(conn, RECORDS(2)), 2);
    assert_int_equal(number(conn, LISTED), 2);
    PQfinish(conn);
}

/* On a store, a step's record is its own: the operation's failure leaves it, and the retry
 * replays. */
CASE(on_a_store_steps_outlive_a_failed_operation)
{
    struct order order;
    PGconn *conn = open_bed(&order);
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;

    assert_int_equal(hapax_open(&h, store_uri, NULL, text), HAPAX_ERR_NONE);
    order.ends = HAPAX_CLASS_FAILED;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(execute_on(h, &order), HAPAX_ANSWER_FRESH);
        assert_int_equal(order.kinds[0], i == 0 ? HAPAX_ANSWER_FRESH : HAPAX_ANSWER_REPLAY);
    }
    assert_int_equal(order.runs[0], 1);
    assert_int_equal(number(conn, LISTED), 2);
    assert_int_equal(hapax_close(h, 60000), 0);
    PQfinish(conn);
}

static void resolve_as_failed(const char *step)
{
    struct hapax_op op = {
        .kind = HAPAX_OP_RESOLVE, .resolve = HAPAX_RESOLVE_FAIL, .by = hapax_str("ops")};
    struct hapax_store *store;
    char text[HAPAX_TEXT_MAX];

    memset(&op.token, 7, sizeof(op.token));
    must(hapax_id(&op.id, hapax_str("default"), hapax_str("k"), hapax_str(step), hapax_str(NULL)) ==
         HAPAX_ERR_NONE);
    must(hapax_store_open(&store, store_uri, text) == HAPAX_ERR_NONE);
    must(hapax_store_run(store, &op, 1) == HAPAX_ERR_NONE && op.verdict == HAPAX_OK);
    hapax_store_close(store);
}

/* An operation that is older than its steps are kept: what is not there may be forgotten, and is
 * not run until an operator says that it was never done. */
CASE(a_forgotten_step_waits_for_an_operator)
{
    struct order order;
    PGconn *conn = open_bed(&order);
    char text[HAPAX_TEXT_MAX];
    struct hapax *h;

    assert_int_equal(hapax_open(&h, store_uri, NULL, text), HAPAX_ERR_NONE);
    order.idle = true;
    execute_on(h, &order);
    sql(conn, "UPDATE hapax.operations SET created_us = created_us - 3 * 86400 * 1000000::bigint "
              "WHERE scope = 'default'");
    order.idle = false;
    order.ends = HAPAX_CLASS_FAILED;
    for (int i = 0; i < 2; i++) {
        execute_on(h, &order);
        assert_int_equal(order.kinds[0], HAPAX_ANSWER_UNKNOWN);
        assert_int_equal(order.runs[0], 0);
    }
    resolve_as_failed("debit");
    execute_on(h, &order);
    assert_int_equal(order.kinds[0], HAPAX_ANSWER_FRESH);
    assert_int_equal(order.kinds[1], HAPAX_ANSWER_UNKNOWN);
    assert_int_equal(hapax_close(h, 60000), 0);
    PQfinish(conn);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: test_pg_step URI\n"), 2;
    uri = argv[1];
    snprintf(store_uri, sizeof(store_uri), "%s?timeout=30s", uri);
    return cases_run(NULL, NULL);
}
