/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection to PostgreSQL by libpq, and one statement at a time on it. It knows no ops.
 *
 * Nothing is kept in the session (no SET, no prepared statement, no advisory lock of the session),
 * so a pooler in transaction mode may stand between. Deadlines are µs of hapax__monotonic_us().
 */
#ifndef HAPAX_STORE_POSTGRES_LINK_H
#define HAPAX_STORE_POSTGRES_LINK_H

#include <hapax/store.h>
#include <libpq-fe.h>

#define HAPAX__PG_HOSTS_MAX  16u
#define HAPAX__PG_STATE_LEN  5u /* of an SQLSTATE */
#define HAPAX__PG_VERSION    6 /* of the schema: hapax.version() */
#define HAPAX__PG_TEXT(n)    #n
#define HAPAX__PG_CALL(n)    "hapax.version(" HAPAX__PG_TEXT(n) ")"
#define HAPAX__PG_ASK        HAPAX__PG_CALL(HAPAX__PG_VERSION) /* gives it where it serves us */
#define HAPAX__PG_PARAMS_MAX 17u /* of one statement */

struct hapax__pg_uri {
    PQconninfoOption *options; /* libpq's */
    size_t hosts; /* named by `host` or `hostaddr`; at least 1 */
    int64_t timeout_ms; /* `timeout=2s`: one run, connecting included; 10ms to 1m */
};

/* Reads a URI (docs/stores.md): libpq's own, and `timeout`. On success *out is to be released.
 * INVALID: text says what is wrong, and never shows a password. */
HAPAX__SHARED enum hapax_error hapax__pg_uri(struct hapax__pg_uri *out, const char *uri,
                                             char text[HAPAX_TEXT_MAX]);
HAPAX__SHARED void hapax__pg_uri_release(struct hapax__pg_uri *uri);

struct hapax__pg_link {
    struct hapax__pg_uri uri;
    PGconn *conn; /* NULL: not connected */
    size_t host; /* the one to try first */
    bool bare; /* asks neither for Hapax's schema nor for a primary */
    bool doomed; /* the server said that it ends the connection */
    /* A connection was taken, and ended before it was of use. The next one may succeed. */
    bool cut;
    bool door; /* this role may call hapax.door(), and not hapax.run() */
    int64_t pause_us; /* before the next try to connect; grows with each failure */
    int64_t not_before_us;
    uint64_t random;
    char at[HAPAX_TEXT_MAX / 2]; /* "postgres "HOST:PORT/DB"", for texts */
    char text[HAPAX_TEXT_MAX]; /* what failed last */
    char sqlstate[HAPAX__PG_STATE_LEN + 1]; /* of the last failure; "": none */
};

/* Connects, unless there is a connection. Tries each host once, the last good one first. With
 * `patient`, repeats this until the deadline; without, a few times where a connection was taken and
 * then cut. UNAVAILABLE: no server, or no primary. REFUSED: the login. UNSUPPORTED: no schema of
 * Hapax, or one of another version. text says why. */
HAPAX__SHARED enum hapax_error hapax__pg_connect(struct hapax__pg_link *link, int64_t deadline_us,
                                                 bool patient);

/* Drops the connection with all that is not sent yet. */
HAPAX__SHARED void hapax__pg_drop(struct hapax__pg_link *link);

/* How a statement ended. */
enum hapax__pg_end {
    HAPAX__PG_DONE = 1, /* it is committed */
    HAPAX__PG_ROLLED_BACK, /* surely not applied: the answer was an error (sqlstate, text) */
    HAPAX__PG_LOST, /* no certain answer: the connection is dropped */
    HAPAX__PG_LATE /* the same, and the time is over */
};

struct hapax__pg_params {
    int n;
    const Oid *types;
    const char *const *values; /* all binary */
    const int *lengths;
};

/* Runs one statement in a transaction of its own, on a connected link. On DONE *out has its rows,
 * in binary; the caller frees them by PQclear(). params NULL: `sql` may be several statements, and
 * *out has the rows of the last, as text. Notifications that have come by then are dropped. */
HAPAX__SHARED enum hapax__pg_end hapax__pg_exec(struct hapax__pg_link *link, const char *sql,
                                                const struct hapax__pg_params *params,
                                                int64_t deadline_us, PGresult **out);

/* The error of an op whose statement was rolled back with this SQLSTATE. */
HAPAX__SHARED enum hapax_error hapax__pg_error_of(const char *sqlstate);

/* Whether the same statement may succeed if it is repeated at once. */
HAPAX__SHARED bool hapax__pg_transient(const char *sqlstate);

/* After a statement that was rolled back: where the host takes no writes any more, drops the
 * connection, and the next connect begins with the next host. *left counts the hosts that one call
 * has left; the caller starts it at 0. True: there is a host that the call has not asked yet. */
HAPAX__SHARED bool hapax__pg_leave_host(struct hapax__pg_link *link, unsigned *left);

#endif
