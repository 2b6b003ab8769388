/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax init on PostgreSQL. sql/ is one script. It makes what is missing, may be run again at any
 * time, and is one transaction, so that a schema is seen whole or not at all. It runs where the
 * database has an older version than this one, or functions by another script of this version; a
 * newer version is left alone. It is sent as it is printed, for those who migrate by hand.
 *
 * Of two scripts of one version the digest does not say which is the newer. So the last one wins,
 * and says so. What an older script must not undo takes a new version. Rejected: a number that each
 * change of sql/ raises, which people forget, as they did to say "init once more".
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "postgres.h"

#include <stdlib.h>
#include <string.h>

#define SCRIPT_MS       INT64_C(70000) /* it waits for locks up to a minute */
#define SCRIPT_LINE_MAX 1024u
#define COMMENT_MAX     256u /* of the schema, with the statement that gives it */

/* Refuses a schema that another role, no superuser, has made. Such a schema is not even asked for
 * its version: the function that answers would run with our rights. Where the script is to run, one
 * that only others may change is refused, too. */
static enum hapax_error check_owner(struct hapax__pg_link *link, bool writes, int64_t deadline_us)
{
    static const char sql[] =
        "SELECT r.rolname FROM pg_catalog.pg_namespace n"
        " JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner"
        " WHERE n.nspname = 'hapax' AND r.rolname <> current_user AND NOT r.rolsuper";
    static const char of_writing[] =
        "SELECT r.rolname FROM pg_catalog.pg_namespace n"
        " JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner"
        " WHERE n.nspname = 'hapax' AND NOT pg_catalog.pg_has_role(n.nspowner, 'USAGE')";
    enum hapax_error error = HAPAX_ERR_NONE;
    PGresult *rows;

    switch (hapax__pg_exec(link, writes ? of_writing : sql, NULL, deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        if (PQntuples(rows) > 0)
            error = hapax__fail(link->text, HAPAX_ERR_REFUSED,
                                "%.100s: the schema \"hapax\" belongs to the role \"%.64s\" (run "
                                "\"hapax init\" as that role)",
                                link->at, PQgetvalue(rows, 0, 0));
        PQclear(rows);
        return error;
    case HAPAX__PG_ROLLED_BACK:
        return hapax__pg_error_of(link->sqlstate);
    default:
        return HAPAX_ERR_UNAVAILABLE;
    }
}

bool hapax__pg_ours(const char *comment)
{
    char line[COMMENT_MAX];

    (void)snprintf(line, sizeof(line), "COMMENT ON SCHEMA hapax IS '%s';", comment);
    return strstr(hapax__postgres_sql, line);
}

/* What the database has. */
struct schema {
    long version; /* 0: there is none */
    bool ours; /* its functions are those of this script */
    bool strangers; /* others have rights, which the script takes back */
};

static enum hapax_error read_schema(struct hapax__pg_link *link, int64_t deadline_us,
                                    struct schema *out)
{
    static const char sql[] = "SELECT hapax.version(), pg_catalog.obj_description("
                              "pg_catalog.to_regnamespace('hapax'), 'pg_namespace')";
    PGresult *rows;

    switch (hapax__pg_exec(link, sql, NULL, deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        out->version = strtol(PQgetvalue(rows, 0, 0), NULL, 10);
        out->ours = hapax__pg_ours(PQgetvalue(rows, 0, 1));
        PQclear(rows);
        return HAPAX_ERR_NONE;
    case HAPAX__PG_ROLLED_BACK:
        if (strcmp(link->sqlstate, "3F000") == 0 || strcmp(link->sqlstate, "42883") == 0)
            return HAPAX_ERR_NONE;
        return hapax__pg_error_of(link->sqlstate);
    default:
        return HAPAX_ERR_UNAVAILABLE;
    }
}

static enum hapax_error make(struct hapax__pg_link *link, const struct schema *had, hapax_say *say,
                             void *arg)
{
    int64_t deadline_us = hapax__monotonic_us() + SCRIPT_MS * US_PER_MS;
    PGresult *rows;

    switch (hapax__pg_exec(link, hapax__postgres_sql, NULL, deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        PQclear(rows);
        break;
    case HAPAX__PG_ROLLED_BACK:
        return hapax__pg_error_of(link->sqlstate);
    default:
        return HAPAX_ERR_INDETERMINATE;
    }
    if (had->version == 0)
        hapax__tell(say, arg, false,
                    "made the schema \"hapax\", version %d, in the database \"%.64s\" of %s",
                    HAPAX__PG_VERSION, PQdb(link->conn), link->at);
    else if (had->version < HAPAX__PG_VERSION)
        hapax__tell(say, arg, false, "brought the schema \"hapax\" from version %ld to %d in %s",
                    had->version, HAPAX__PG_VERSION, link->at);
    else if (!had->ours)
        hapax__tell(say, arg, false,
                    "replaced the functions of the schema \"hapax\" in %s: they were of another "
                    "build of Hapax",
                    link->at);
    if (had->strangers)
        hapax__tell(say, arg, false,
                    "took back rights that others had on the schema \"hapax\" in %s", link->at);
    return HAPAX_ERR_NONE;
}

/* Whether others have rights on the schema, which the script takes back. */
static enum hapax_error find_strangers(struct hapax__pg_link *link, int64_t deadline_us,
                                       bool *found)
{
    PGresult *rows;
    enum hapax_error error = hapax__pg_strangers(link, deadline_us, &rows);

    if (error == HAPAX_ERR_NONE) {
        for (int i = 0; i < PQntuples(rows); i++)
            *found |= PQgetvalue(rows, i, 2)[0] == 't';
        PQclear(rows);
    }
    return error;
}

static enum hapax_error init(struct hapax__pg_link *link, hapax_say *say, void *arg)
{
    int64_t deadline_us = hapax__monotonic_us() + link->uri.timeout_ms * US_PER_MS;
    enum hapax_error error = hapax__pg_connect(link, deadline_us, false);
    struct schema had = {.version = 0};

    if (error == HAPAX_ERR_NONE)
        error = check_owner(link, false, deadline_us);
    if (error == HAPAX_ERR_NONE)
        error = read_schema(link, deadline_us, &had);
    if (error == HAPAX_ERR_NONE && had.version == HAPAX__PG_VERSION)
        error = find_strangers(link, deadline_us, &had.strangers);
    if (error != HAPAX_ERR_NONE || (had.version == HAPAX__PG_VERSION && had.ours && !had.strangers))
        return error;
    if (had.version > HAPAX__PG_VERSION)
        return hapax__fail(link->text, HAPAX_ERR_UNSUPPORTED,
                           "%.100s: its schema \"hapax\" is of version %ld, this is for version %d "
                           "(use a newer Hapax)",
                           link->at, had.version, HAPAX__PG_VERSION);
    if (!link->conn) /* lost by a question */
        error = hapax__pg_connect(link, deadline_us, false);
    if (error == HAPAX_ERR_NONE)
        error = check_owner(link, true, deadline_us);
    return error == HAPAX_ERR_NONE ? make(link, &had, say, arg) : error;
}

static void print_script(hapax_say *say, void *arg)
{
    const char *at = hapax__postgres_sql;

    while (*at != '\0') {
        size_t len = strcspn(at, "\n");
        char line[SCRIPT_LINE_MAX];

        (void)snprintf(line, sizeof(line), "%.*s", (int)len, at);
        say(arg, false, line);
        at += len + (at[len] == '\n');
    }
}

enum hapax_error hapax__pg_init(const char *uri, bool print, hapax_say *say, void *arg,
                                char text[HAPAX_TEXT_MAX])
{
    struct hapax__pg_link link = {.bare = true};
    enum hapax_error error = hapax__pg_uri(&link.uri, uri, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    if (print) {
        print_script(say, arg);
    } else {
        error = init(&link, say, arg);
        if (error != HAPAX_ERR_NONE)
            hapax__fail(text, error, "%s", link.text);
    }
    hapax__pg_drop(&link);
    hapax__pg_uri_release(&link.uri);
    return error;
}
