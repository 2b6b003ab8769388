/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves money once per key, however often it is called and whatever dies on the way:
 *     transfer CONNINFO order-17 alice bob 100      fresh: moved 100 from alice to bob
 *     transfer CONNINFO order-17 alice bob 100      replay: moved 100 from alice to bob
 *     transfer CONNINFO order-17 alice bob 999      mismatch:
 * Debit, credit and the record of the operation are one transaction. The tables are those of
 * transfer.sql. Exit code: 0 moved, 1 not, 2 usage or database.
 */
#include <hapax/postgres.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRIES 6

/* Debit, credit, and the line that says so: FROM, TO, AMOUNT. */
static const char *const statements[] = {
    "UPDATE accounts SET balance = balance - $3::bigint WHERE name = $1 AND name <> $2 RETURNING 1",
    "UPDATE accounts SET balance = balance + $3::bigint WHERE name = $2 AND name <> $1 RETURNING 1",
    "INSERT INTO transfers (debit, credit, amount) VALUES ($1, $2, $3::bigint) RETURNING 1",
};

/* Whether the statement changed its one row. */
static bool changed(PGconn *conn, const char *statement, char *const *words)
{
    const char *values[] = {words[0], words[1], words[2]};
    PGresult *result = PQexecParams(conn, statement, 3, NULL, values, NULL, NULL, 0);
    bool one = PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;

    PQclear(result);
    return one;
}

static enum hapax_class transfer(PGconn *conn, struct hapax_attempt *attempt, void *arg)
{
    char *const *words = arg;
    char receipt[200];

    for (size_t i = 0; i < sizeof(statements) / sizeof(statements[0]); i++)
        if (!changed(conn, statements[i], words)) {
            /* Too little money (a constraint), no such account, or a deadlock: all is undone. */
            hapax_attempt_outcome(attempt, 409, hapax_str(NULL), hapax_str("not moved"));
            return HAPAX_CLASS_NOT_RUN;
        }
    snprintf(receipt, sizeof(receipt), "moved %.20s from %.60s to %.60s", words[2], words[0],
             words[1]);
    hapax_attempt_outcome(attempt, 201, hapax_str(NULL), hapax_str(receipt));
    return HAPAX_CLASS_FINAL;
}

/* Nothing was done, or all was done and the reply was lost. In both cases the call is repeated. */
static bool worth_repeating(enum hapax_error error)
{
    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_INDETERMINATE;
}

static enum hapax_error try_once(const char *conninfo, const struct hapax_request *request,
                                 char **words, struct hapax_answer *answer,
                                 char text[HAPAX_TEXT_MAX])
{
    PGconn *conn = PQconnectdb(conninfo);
    struct hapax_policy policy;
    enum hapax_error error;

    hapax_policy_init(&policy);
    policy.wait_ms = 10000; /* a repeat waits for the attempt under way */
    error = hapax_pg_execute(conn, &policy, request, transfer, words, answer, text);
    PQfinish(conn);
    return error;
}

int main(int argc, char **argv)
{
    struct hapax_request request = {.scope = hapax_str("transfers")};
    struct hapax_span parts[3];
    struct hapax_answer answer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    int code;

    if (argc != 6)
        return fprintf(stderr, "usage: transfer CONNINFO KEY FROM TO AMOUNT\n"), 2;
    request.key = hapax_str(argv[2]);
    for (int i = 0; i < 3; i++)
        parts[i] = hapax_str(argv[3 + i]);
    hapax_digest(&request.fingerprint, parts, 3);
    for (unsigned i = 1;; i++) {
        error = try_once(argv[1], &request, argv + 3, &answer, text);
        if (!worth_repeating(error) || i == TRIES)
            break;
        usleep(100000u << i); /* 0.2 s, 0.4 s, … */
    }
    if (error != HAPAX_ERR_NONE)
        return fprintf(stderr, "transfer: %s\n", text), 2;
    code = answer.outcome.status == 201 ? 0 : 1;
    printf("%s: %.*s\n", hapax_answer_name(answer.kind), (int)answer.outcome.body.len,
           answer.outcome.body.len > 0 ? (const char *)answer.outcome.body.ptr : "");
    hapax_answer_release(&answer);
    return code;
}
