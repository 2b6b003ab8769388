/* SPDX-License-Identifier: Apache-2.0
 *
 * Statements of tests on a PostgreSQL connection. Whatever fails ends the program, with what the
 * server said.
 */
#ifndef HAPAX_TESTS_E2E_DOOR_PG_BED_H
#define HAPAX_TESTS_E2E_DOOR_PG_BED_H

#include <libpq-fe.h>

#include "../../must.h"

static inline PGconn *connect_to(const char *where)
{
    PGconn *conn = PQconnectdb(where);

    if (PQstatus(conn) != CONNECTION_OK)
        fprintf(stderr, "%s", PQerrorMessage(conn));
    must(PQstatus(conn) == CONNECTION_OK);
    return conn;
}

static inline void sql(PGconn *conn, const char *statement)
{
    PGresult *result = PQexec(conn, statement);

    if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
        fprintf(stderr, "%s: %s", statement, PQerrorMessage(conn));
    must(PQresultStatus(result) == PGRES_COMMAND_OK || PQresultStatus(result) == PGRES_TUPLES_OK);
    PQclear(result);
}

static inline long number(PGconn *conn, const char *query)
{
    PGresult *result = PQexec(conn, query);
    long value;

    must(PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1);
    value = strtol(PQgetvalue(result, 0, 0), NULL, 10);
    PQclear(result);
    return value;
}

#endif
