/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax check on PostgreSQL. A setting that can lose an answered operation is a danger; a setting
 * that only costs time or room is advice. One statement asks for all of it, so that the answers
 * belong to one server even behind a pooler. What a role may not read is not reported.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "base/tls.h"
#include "base/uri.h"
#include "postgres.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SKEW_MAX_US   (1 * US_PER_S)
#define TRANSACTION_S 300 /* a transaction open for longer keeps dead rows from being removed */
#define DEAD_MIN      10000

static const char question[] =
    "SET LOCAL search_path = pg_catalog, pg_temp;"
    " SELECT current_setting('server_version') AS server,"
    " hapax.version() AS version,"
    " obj_description(to_regnamespace('hapax'), 'pg_namespace') AS comment,"
    " current_setting('fsync') AS fsync,"
    " current_setting('full_page_writes') AS full_page_writes,"
    " current_setting('synchronous_commit') AS synchronous_commit,"
    " current_setting('synchronous_standby_names') AS standby_names,"
    " (SELECT count(*) FROM pg_catalog.pg_stat_replication) AS standbys,"
    " current_setting('transaction_read_only') AS read_only,"
    " current_setting('autovacuum') AS autovacuum,"
    " coalesce((SELECT bool_or(o = 'autovacuum_enabled=false') FROM pg_catalog.pg_class c,"
    "  unnest(c.reloptions) o WHERE c.oid = to_regclass('hapax.operations')), false) AS no_vacuum,"
    " coalesce((SELECT relpersistence FROM pg_catalog.pg_class"
    "  WHERE oid = to_regclass('hapax.operations')), 'p') AS persistence,"
    " coalesce((SELECT n_live_tup FROM pg_catalog.pg_stat_all_tables"
    "  WHERE relid = to_regclass('hapax.operations')), 0) AS live,"
    " coalesce((SELECT n_dead_tup FROM pg_catalog.pg_stat_all_tables"
    "  WHERE relid = to_regclass('hapax.operations')), 0) AS dead,"
    " coalesce((SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::bigint"
    "  FROM pg_catalog.pg_stat_activity WHERE pid <> pg_backend_pid()"
    "  AND backend_type = 'client backend'), 0) AS oldest,"
    " current_setting('max_locks_per_transaction')::bigint"
    "  * (current_setting('max_connections')::bigint"
    "  + current_setting('max_prepared_transactions')::bigint) AS locks,"
    " pg_backend_pid() AS pid,"
    " (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_catalog.pg_proc p"
    "  WHERE p.pronamespace = to_regnamespace('hapax')"
    "  AND p.proname IN ('run', 'list', 'purge')) AS permitted,"
    " (SELECT bool_and(has_function_privilege(p.oid, 'EXECUTE')) FROM pg_catalog.pg_proc p"
    "  WHERE p.pronamespace = to_regnamespace('hapax')"
    "  AND p.proname IN ('begin', 'complete')) AS caller,"
    " (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock";

/* A replica is who has not what was committed, if it takes over: so the log it has written down
 * counts, and neither who reads the log for changes nor a backup under way is one. A role without
 * pg_monitor sees how many there are, and not how far behind. A standby that reads only cannot say
 * where its own log ends. */
static const char vitals_question[] =
    "SET LOCAL search_path = pg_catalog, pg_temp;"
    " SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS clock,"
    " count(r.pid) AS replicas, max(pg_wal_lsn_diff(l.lsn, r.flush_lsn))::bigint AS lag,"
    " max(CASE WHEN r.flush_lsn < l.lsn"
    "  THEN (extract(epoch FROM clock_timestamp() - r.reply_time) * 1000000)::bigint"
    "  WHEN r.flush_lsn IS NOT NULL THEN 0 END) AS silent"
    " FROM (SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END AS lsn) l"
    " LEFT JOIN pg_stat_replication r ON coalesce(r.state, '') <> 'backup' AND NOT EXISTS"
    " (SELECT 1 FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')"
    " GROUP BY l.lsn";

struct checking {
    struct hapax__pg *pg;
    const PGresult *rows;
    hapax_say *say;
    void *arg;
};

static const char *value(const struct checking *c, const char *name)
{
    int column = PQfnumber(c->rows, name);

    return column >= 0 ? PQgetvalue(c->rows, 0, column) : "";
}

static int64_t number(const struct checking *c, const char *name)
{
    return strtoll(value(c, name), NULL, 10);
}

static bool is(const struct checking *c, const char *name, const char *text)
{
    return strcmp(value(c, name), text) == 0;
}

#define tell(c, ...) hapax__tell((c)->say, (c)->arg, __VA_ARGS__)

/* A newer version that serves this one is not compared. */
static void check_functions(const struct checking *c)
{
    if (number(c, "version") == HAPAX__PG_VERSION && !hapax__pg_ours(value(c, "comment")))
        tell(c, true,
             "the functions of the schema \"hapax\" are not those of this build of Hapax, and may "
             "lack what was mended (run \"hapax init\" of the newest build)");
}

static void check_disk(const struct checking *c)
{
    if (is(c, "fsync", "off"))
        tell(c, true, "fsync is off: a power cut can lose any record, or the database");
    if (is(c, "full_page_writes", "off"))
        tell(c, true, "full_page_writes is off: a power cut can damage pages");
    if (is(c, "synchronous_commit", "off"))
        tell(c, true,
             "synchronous_commit is off: a crash of the server loses the last answered operations");
    if (is(c, "persistence", "u"))
        tell(c, true, "the table hapax.operations is UNLOGGED: a crash of the server empties it");
}

static void check_failover(const struct checking *c)
{
    bool names = !is(c, "standby_names", "");
    bool waits = !is(c, "synchronous_commit", "off") && !is(c, "synchronous_commit", "local");

    if (names && waits)
        tell(c, false, "commits wait for standbys (synchronous_standby_names \"%.100s\")",
             value(c, "standby_names"));
    else if (names)
        tell(c, true,
             "synchronous_commit is %s: commits do not wait for the standbys named, and a failover "
             "loses the last answered operations",
             value(c, "synchronous_commit"));
    else if (number(c, "standbys") > 0)
        tell(c, true,
             "it has standbys (%s), and none is synchronous: a failover to one loses the last "
             "answered operations (set synchronous_standby_names)",
             value(c, "standbys"));
}

static void check_room(const struct checking *c)
{
    int64_t live = number(c, "live"), dead = number(c, "dead");

    if (is(c, "autovacuum", "off") || is(c, "no_vacuum", "t"))
        tell(c, false, "autovacuum is off for hapax.operations: it grows with each operation");
    if (dead > DEAD_MIN && dead > live)
        tell(c, false,
             "hapax.operations has %" PRId64 " dead rows and %" PRId64 " live ones: is autovacuum "
             "held up?",
             dead, live);
    if (number(c, "oldest") > TRANSACTION_S)
        tell(c, false,
             "a transaction has been open for %s s: as long as it is, dead rows stay, and what it "
             "holds is busy",
             value(c, "oldest"));
    if (number(c, "locks") < 16 * (int64_t)HAPAX__PG_BATCH_MAX)
        tell(c, false,
             "the lock table has %s places, and a batch takes up to %u (raise "
             "max_locks_per_transaction)",
             value(c, "locks"), HAPAX__PG_BATCH_MAX);
}

static void check_line(const struct checking *c)
{
    PGconn *conn = c->pg->link.conn;
    const char *address = PQhostaddr(conn);
    bool near =
        !address || !*address || *address == '/' || hapax__host_is_near(address, strlen(address));

    if (number(c, "pid") != PQbackendPID(conn))
        tell(c, false, "there is a pooler (PgBouncer?) in front of it, which Hapax allows for");
    if (!near && !PQsslInUse(conn))
        tell(c, true,
             "the connection to %.100s is not encrypted: whoever can listen there reads outcomes "
             "and tokens (sslmode=verify-full encrypts it, and knows the server)",
             PQhost(conn));
}

static void check_clock(const struct checking *c, int64_t before_us, int64_t after_us)
{
    int64_t off_us = hapax__outside(number(c, "clock"), before_us, after_us);

    if (off_us > SKEW_MAX_US || off_us < -SKEW_MAX_US)
        tell(c, false,
             "its clock is %" PRId64
             " s %s this host's: leases follow its clock, so only a failover to "
             "another clock matters",
             (off_us > 0 ? off_us : -off_us) / US_PER_S, off_us > 0 ? "ahead of" : "behind");
}

static enum hapax_error check_rights(const struct checking *c, int64_t deadline_us)
{
    PGresult *rows;
    enum hapax_error error = hapax__pg_strangers(&c->pg->link, deadline_us, &rows);

    if (error != HAPAX_ERR_NONE)
        return hapax_store_fail(&c->pg->base, error, "%s", c->pg->link.text);
    for (int i = 0; i < PQntuples(rows); i++)
        tell(c, true, "%s %s", PQgetvalue(rows, i, 0), PQgetvalue(rows, i, 1));
    PQclear(rows);
    return HAPAX_ERR_NONE;
}

static enum hapax_error check_use(const struct checking *c)
{
    struct hapax__pg *pg = c->pg;

    if (!is(c, "permitted", "t") && !pg->link.door && !is(c, "caller", "t"))
        return hapax_store_fail(
            &pg->base, HAPAX_ERR_REFUSED,
            "%.100s: no permission for hapax.door, nor for hapax.run, hapax.list "
            "and hapax.purge, nor for hapax.begin and hapax.complete (run "
            "\"hapax init --role\")",
            pg->link.at);
    if (!is(c, "read_only", "off"))
        return hapax_store_fail(&pg->base, HAPAX_ERR_UNAVAILABLE,
                                "%.100s: it is read-only for this role or database", pg->link.at);
    tell(c, false, "%s is PostgreSQL %.40s: schema version %s, %s operations, about", pg->link.at,
         value(c, "server"), value(c, "version"), value(c, "live"));
    if (pg->link.door)
        tell(c, false,
             "this role has the rights of a door: it runs operations, and lists, shows and "
             "resolves none");
    else if (!is(c, "permitted", "t"))
        tell(c, false,
             "this role may call hapax.begin() and hapax.complete(), and is no store's: a gate "
             "would need hapax.door, an operator hapax.run, hapax.list and hapax.purge");
    else
        tell(c, false,
             "this role has the rights of an operator; a gate needs no more than those of a "
             "door (hapax init --role door=NAME)");
    return HAPAX_ERR_NONE;
}

/* Asks for one row, which the caller frees, and again where the connection was lost meanwhile. */
static enum hapax_error ask(struct hapax__pg *pg, const char *sql, int64_t deadline_us,
                            PGresult **rows, int64_t *before_us)
{
    enum hapax__pg_end end = HAPAX__PG_LOST;
    enum hapax_error error;

    for (int tries = 0; tries < 2 && end == HAPAX__PG_LOST; tries++) {
        error = hapax__pg_connect(&pg->link, deadline_us, false);
        if (error != HAPAX_ERR_NONE)
            return hapax_store_fail(&pg->base, error, "%s", pg->link.text);
        *before_us = hapax__wall_us();
        end = hapax__pg_exec(&pg->link, sql, NULL, deadline_us, rows);
    }
    if (end == HAPAX__PG_DONE)
        return HAPAX_ERR_NONE;
    error = end == HAPAX__PG_ROLLED_BACK ? hapax__pg_error_of(pg->link.sqlstate)
                                         : HAPAX_ERR_UNAVAILABLE;
    return hapax_store_fail(&pg->base, error, "%s", pg->link.text);
}

enum hapax_error hapax__pg_check(struct hapax_store *store, hapax_say *say, void *arg)
{
    struct hapax__pg *pg = (struct hapax__pg *)store;
    int64_t deadline_us = hapax__monotonic_us() + pg->link.uri.timeout_ms * US_PER_MS;
    int64_t before_us = 0;
    PGresult *rows = NULL;
    enum hapax_error error = ask(pg, question, deadline_us, &rows, &before_us);

    if (error != HAPAX_ERR_NONE)
        return error;
    {
        struct checking c = {pg, rows, say, arg};

        error = check_use(&c);
        if (error == HAPAX_ERR_NONE) {
            check_functions(&c);
            check_disk(&c);
            check_failover(&c);
            check_room(&c);
            check_line(&c);
            check_clock(&c, before_us, hapax__wall_us());
            error = check_rights(&c, deadline_us);
        }
    }
    PQclear(rows);
    return error;
}

/* ---- vitals --------------------------------------------------------------------------- */

static int64_t known(const struct checking *c, const char *name)
{
    int column = PQfnumber(c->rows, name);

    return column < 0 || PQgetisnull(c->rows, 0, column) ? HAPAX_NOT_KNOWN : number(c, name);
}

enum hapax_error hapax__pg_measure(struct hapax_store *store, struct hapax_vitals *out)
{
    struct hapax__pg *pg = (struct hapax__pg *)store;
    int64_t deadline_us = hapax__monotonic_us() + pg->link.uri.timeout_ms * US_PER_MS;
    struct checking c = {.pg = pg};
    int64_t before_us = 0;
    PGresult *rows = NULL;
    enum hapax_error error = ask(pg, vitals_question, deadline_us, &rows, &before_us);
    SSL *ssl;

    if (error != HAPAX_ERR_NONE)
        return error;
    c.rows = rows;
    out->clock_ahead_us = hapax__outside(number(&c, "clock"), before_us, hapax__wall_us());
    out->replicas = known(&c, "replicas");
    out->lag_bytes = known(&c, "lag");
    out->silent_us = known(&c, "silent");
    ssl = PQsslStruct(pg->link.conn, "OpenSSL"); /* NULL: not encrypted */
    if (ssl)
        hapax__tls_ends(ssl, &out->server_cert_us, &out->client_cert_us);
    PQclear(rows);
    return HAPAX_ERR_NONE;
}
