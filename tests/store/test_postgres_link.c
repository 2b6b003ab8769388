/* SPDX-License-Identifier: Apache-2.0
 *
 * A link to a PostgreSQL server, by itself: test_postgres_link URI.
 */
#include "../cases.h"
#include "store/postgres/postgres.h"

static const char *uri;

static void run(struct hapax__pg_link *link, const char *sql)
{
    PGresult *rows = NULL;

    assert_int_equal(hapax__pg_exec(link, sql, NULL, INT64_MAX, &rows), HAPAX__PG_DONE);
    PQclear(rows);
}

/* As in a session of a pooler's, where another client has listened. */
CASE(a_link_keeps_no_notifications)
{
    struct hapax__pg_link link = {.bare = true};
    char text[HAPAX_TEXT_MAX];

    assert_int_equal(hapax__pg_uri(&link.uri, uri, text), HAPAX_ERR_NONE);
    assert_int_equal(hapax__pg_connect(&link, INT64_MAX, true), HAPAX_ERR_NONE);
    run(&link, "LISTEN x");
    run(&link, "NOTIFY x");
    run(&link, "NOTIFY x");
    assert_null(PQnotifies(link.conn));
    hapax__pg_drop(&link);
    hapax__pg_uri_release(&link.uri);
}

int main(int argc, char **argv)
{
    assert_int_equal(argc, 2);
    uri = argv[1];
    return cases_run(NULL, NULL);
}
