/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax init on PostgreSQL. sql/ is one script. It makes what is missing, may be run again at any
 * time, and is one transaction, so that a schema is seen whole or not at all. It runs where the
 * database has another version than this one; a newer version is left alone. It is sent as it is
 * printed, for those who migrate by hand.
 */
#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"
#include "postgres.h"

#include <stdlib.h>
#include <string.h>

#define SCRIPT_MS       INT64_C(70000) /* it waits for locks up to a minute */
#define SCRIPT_LINE_MAX 1024u

/* Refuses a schema that another role, no superuser, has made. Such a schema is not even asked for
 * its version: the function that answers would run with our rights. */
static enum hapax_error check_owner(struct hapax__pg_link *link, int64_t deadline_us)
{
    static const char sql[] =
        "SELECT r.rolname FROM pg_catalog.pg_namespace n"
        " JOIN pg_catalog.pg_roles r ON r.oid = n.nspowner"
        " WHERE n.nspname = 'hapax' AND r.rolname <> current_user AND NOT r.rolsuper";
    enum hapax_error error = HAPAX_ERR_NONE;
    PGresult *rows;

    switch (hapax__pg_exec(link, sql, NULL, deadline_us, &rows)) {
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

/* Reads the version in the database; 0: there is none. */
static enum hapax_error read_version(struct hapax__pg_link *link, int64_t deadline_us,
                                     long *version)
{
    PGresult *rows;

    *version = 0;
    switch (hapax__pg_exec(link, "SELECT hapax.version()", NULL, deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        *version = strtol(PQgetvalue(rows, 0, 0), NULL, 10);
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

static enum hapax_error make(struct hapax__pg_link *link, long version, hapax_say *say, void *arg)
{
    int64_t deadline_us = hapax__monotonic_us() + SCRIPT_MS * US_PER_MS;
    char line[HAPAX_TEXT_MAX];
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
    if (version == 0)
        hapax__fail(line, HAPAX_ERR_NONE,
                    "made the schema \"hapax\", version %d, in the database \"%.64s\" of %s",
                    HAPAX__PG_VERSION, PQdb(link->conn), link->at);
    else if (version == HAPAX__PG_VERSION)
        hapax__fail(line, HAPAX_ERR_NONE,
                    "took back rights that others had on the schema \"hapax\" in %s", link->at);
    else
        hapax__fail(line, HAPAX_ERR_NONE,
                    "brought the schema \"hapax\" from version %ld to %d in %s", version,
                    HAPAX__PG_VERSION, link->at);
    say(arg, false, line);
    return HAPAX_ERR_NONE;
}

/* Whether others have rights on the schema, which the script takes back. */
static enum hapax_error find_strangers(struct hapax__pg_link *link, int64_t deadline_us,
                                       bool *found)
{
    PGresult *rows;
    enum hapax_error error = hapax__pg_strangers(link, deadline_us, &rows);

    if (error == HAPAX_ERR_NONE) {
        *found = PQntuples(rows) > 0;
        PQclear(rows);
    }
    return error;
}

static enum hapax_error init(struct hapax__pg_link *link, hapax_say *say, void *arg)
{
    int64_t deadline_us = hapax__monotonic_us() + link->uri.timeout_ms * US_PER_MS;
    enum hapax_error error = hapax__pg_connect(link, deadline_us, false);
    long version = 0;
    bool found = false;

    if (error == HAPAX_ERR_NONE)
        error = check_owner(link, deadline_us);
    if (error == HAPAX_ERR_NONE)
        error = read_version(link, deadline_us, &version);
    if (error == HAPAX_ERR_NONE && version == HAPAX__PG_VERSION)
        error = find_strangers(link, deadline_us, &found);
    if (error != HAPAX_ERR_NONE || (version == HAPAX__PG_VERSION && !found))
        return error;
    if (version > HAPAX__PG_VERSION)
        return hapax__fail(link->text, HAPAX_ERR_UNSUPPORTED,
                           "%.100s: its schema \"hapax\" is of version %ld, this is for version %d "
                           "(use a newer Hapax)",
                           link->at, version, HAPAX__PG_VERSION);
    if (!link->conn) /* lost by a question */
        error = hapax__pg_connect(link, deadline_us, false);
    return error == HAPAX_ERR_NONE ? make(link, version, say, arg) : error;
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
