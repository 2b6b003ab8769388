/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes payments from a queue into a table. Payment and record of the operation are one
 * transaction. So wherever the process dies, the rows are exactly the completed operations:
 *     consumer_pg 'amqp://localhost/?queue=payments' CONNINFO postgres://…
 * The body is the amount. `hapax init` was run in that database; the table is that of transfer.sql.
 */
#include <hapax/consume.h>
#include <libpq-fe.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>

/* The same statement compares the claim. If another has it by now, the statement fails with HX001
 * and nothing is committed. */
static const char statement[] =
    "WITH paid AS (INSERT INTO payments (amount) VALUES ($1) RETURNING number)"
    " SELECT hapax.complete($2, 201, body => convert_to('payment ' || number, 'UTF8')) FROM paid";

static enum hapax_class pay(struct hapax_attempt *attempt, struct hapax_delivery *delivery,
                            void *conninfo)
{
    const struct hapax_message *message = hapax_delivery_message(delivery);
    char token[HAPAX_TOKEN_TEXT_MAX], amount[24];
    const char *values[] = {amount, token};
    PGconn *conn = PQconnectdb(conninfo);
    enum hapax_class cls = HAPAX_CLASS_NOT_RUN; /* no connection: it is tried again */
    PGresult *result;

    snprintf(amount, sizeof(amount), "%.*s",
             (int)(message->body.len < sizeof(amount) ? message->body.len : sizeof(amount) - 1),
             (const char *)message->body.ptr);
    hapax_attempt_token(attempt, token);
    if (PQstatus(conn) == CONNECTION_OK) {
        result = PQexecParams(conn, statement, 2, NULL, values, NULL, NULL, 0);
        if (PQresultStatus(result) == PGRES_TUPLES_OK)
            cls = HAPAX_CLASS_FINAL; /* the outcome is the one that was committed */
        else if (PQstatus(conn) != CONNECTION_OK)
            cls = HAPAX_CLASS_UNKNOWN; /* committed or not: the record knows */
        else
            cls = HAPAX_CLASS_FAILED; /* rolled back: the body is no amount, for instance */
        PQclear(result);
    }
    PQfinish(conn);
    return cls;
}

static int stop_fd(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    return signalfd(-1, &set, SFD_CLOEXEC);
}

int main(int argc, char **argv)
{
    struct hapax_consumer consumer;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    struct hapax *h;

    if (argc != 4)
        return fprintf(stderr, "usage: consumer_pg URI CONNINFO STORE-URI\n"), 2;
    hapax_consumer_init(&consumer);
    consumer.from = argv[1];
    consumer.policy.pass_token = true;
    consumer.stop_fd = stop_fd();
    if (hapax_open(&h, argv[3], NULL, text) != HAPAX_ERR_NONE)
        return fprintf(stderr, "consumer_pg: %s\n", text), 2;
    error = hapax_consumer_run(h, &consumer, pay, NULL, argv[2], NULL, text);
    if (error != HAPAX_ERR_NONE)
        fprintf(stderr, "consumer_pg: %s\n", text);
    hapax_close(h, consumer.policy.save_wait_ms);
    return error == HAPAX_ERR_NONE ? 0 : 1;
}
