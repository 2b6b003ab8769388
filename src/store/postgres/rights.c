/* SPDX-License-Identifier: Apache-2.0
 *
 * Rights on the schema: what each use of it needs, which hapax init --role gives to a role. And
 * what nobody should have, which hapax check tells, and hapax init takes back (sql/900_commit.sql
 * says what, and why).
 *
 * A right is EXECUTE on functions that run with their owner's rights. No role but the owner has any
 * on the tables.
 */
#include "postgres.h"

#include "base/clock.h"
#include "base/fail.h"
#include "base/time.h"

#include <stdlib.h>
#include <string.h>

#define ROLE_MAX       63u /* bytes of a name; PostgreSQL cuts a longer one */
#define STATEMENTS_MAX 2048u

/* Only functions with a comment are for grants by name. So a role that may call another function
 * was given all functions. Rights of superusers are not told: they need none. Hapax makes no
 * trigger and no foreign key. Who made one that calls a superuser's function is not known. The
 * other table of a constraint trigger may be anybody's. First comes what hapax init takes back or
 * refuses to run for. */
static const char question[] =
    "SET LOCAL search_path = pg_catalog, pg_temp;"
    " WITH n AS (SELECT oid, nspowner, nspacl FROM pg_namespace WHERE nspname = 'hapax')"
    " SELECT CASE WHEN w.who = 0 THEN 'every role (PUBLIC)' WHEN w.who IS NULL THEN 'somebody'"
    "  ELSE format('the role \"%s\"', r.rolname) END, w.what, w.who IS NOT NULL"
    " FROM ("
    "  SELECT a.grantee, 'may make functions in the schema \"hapax\", which could run with its"
    " owner''s rights (run \"hapax init\")'"
    "  FROM n, aclexplode(n.nspacl) a"
    "  WHERE a.grantee <> n.nspowner AND a.privilege_type = 'CREATE'"
    "  UNION SELECT a.grantee, 'has rights on tables of the schema \"hapax\", where outcomes"
    " are (run \"hapax init\")'"
    "  FROM n JOIN pg_class c ON c.relnamespace = n.oid,"
    "   LATERAL (SELECT grantee FROM aclexplode(c.relacl) UNION SELECT x.grantee"
    "    FROM pg_attribute t, aclexplode(t.attacl) x WHERE t.attrelid = c.oid) a"
    "  WHERE a.grantee <> c.relowner"
    "  UNION SELECT a.grantee, 'was given all functions of the schema \"hapax\", also those of"
    " operators (run \"hapax init\", then grant by name)'"
    "  FROM n JOIN pg_proc p ON p.pronamespace = n.oid"
    "   JOIN pg_roles o ON o.oid = p.proowner AND (o.oid = n.nspowner OR o.rolsuper),"
    "   aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a"
    "  WHERE a.grantee <> p.proowner"
    "   AND (a.grantee = 0 OR obj_description(p.oid, 'pg_proc') IS NULL)"
    "  UNION SELECT o.owner, format('has made \"%s\" in the schema \"hapax\" (drop that)', o.name)"
    "  FROM n, LATERAL (SELECT p.proowner, p.proname FROM pg_proc p WHERE p.pronamespace = n.oid"
    "   UNION SELECT c.relowner, c.relname FROM pg_class c WHERE c.relnamespace = n.oid)"
    "   o(owner, name)"
    "  WHERE o.owner <> n.nspowner"
    "  UNION SELECT o.oid, format('has put the trigger or foreign key \"%s\" on the table \"%s\" of"
    " the schema \"hapax\" (drop that)', coalesce(k.conname, t.tgname), c.relname)"
    "  FROM n JOIN pg_class c ON c.relnamespace = n.oid JOIN pg_trigger t ON t.tgrelid = c.oid"
    "   JOIN pg_proc p ON p.oid = t.tgfoid LEFT JOIN pg_class f ON f.oid = t.tgconstrrelid"
    "   LEFT JOIN pg_constraint k ON k.oid = t.tgconstraint"
    "   LEFT JOIN pg_roles o ON o.oid IN (p.proowner, f.relowner) AND NOT o.rolsuper"
    "    AND o.oid <> n.nspowner) w(who, what)"
    " LEFT JOIN pg_roles r ON r.oid = w.who WHERE r.rolsuper IS NOT TRUE"
    " ORDER BY 3 DESC, 1, 2 LIMIT 20";

enum hapax_error hapax__pg_strangers(struct hapax__pg_link *link, int64_t deadline_us,
                                     PGresult **out)
{
    switch (hapax__pg_exec(link, question, NULL, deadline_us, out)) {
    case HAPAX__PG_DONE:
        return HAPAX_ERR_NONE;
    case HAPAX__PG_ROLLED_BACK:
        return hapax__pg_error_of(link->sqlstate);
    default:
        return HAPAX_ERR_UNAVAILABLE;
    }
}

/* ---- what each use needs ----------------------------------------------------------------- */

static const struct use {
    const char *name;
    const char *functions;
} uses[] = {
    {"door", "hapax.version, hapax.door"},
    {"operator", "hapax.version, hapax.run, hapax.list, hapax.purge, hapax.import, "
                 "hapax.outbox_aside, "
                 "hapax.outbox_put_back"},
    {"caller", "hapax.version, hapax.begin, hapax.complete, hapax.fail, hapax.renew, "
               "hapax.headers, hapax.digest, hapax.id, hapax.owner, hapax.key_derive, "
               "hapax.step_begin, hapax.step_complete, hapax.step_fail"},
    {"executor", "hapax.version, hapax.door, hapax.long_lock_of"},
    {"publisher", "hapax.publish"},
    {"relay", "hapax.version, hapax.outbox_lease, hapax.outbox_next, hapax.outbox_turn, "
              "hapax.outbox_lag, hapax.outbox_sweep"},
};

static const struct use *find_use(const char *name)
{
    for (size_t i = 0; i < sizeof(uses) / sizeof(uses[0]); i++)
        if (name && strcmp(uses[i].name, name) == 0)
            return &uses[i];
    return NULL;
}

/* Only names that need no escapes, neither between quotes nor in a statement that is printed. */
static bool is_role(const char *name)
{
    static const char good[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-@";
    size_t len = name ? strlen(name) : 0;

    return len > 0 && len <= ROLE_MAX && name[strspn(name, good)] == '\0';
}

static void write_statements(char out[STATEMENTS_MAX], const struct use *use, const char *role)
{
    (void)snprintf(out, STATEMENTS_MAX,
                   "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles"
                   " WHERE rolname = '%s') THEN CREATE ROLE \"%s\" NOLOGIN; END IF; END $$;\n"
                   "GRANT USAGE ON SCHEMA hapax TO \"%s\";\n"
                   "GRANT EXECUTE ON FUNCTION %s TO \"%s\";",
                   role, role, role, use->functions, role);
}

/* Whoever may not give a right to others gets no more than a warning from the server. */
static void add_proof(char statements[STATEMENTS_MAX], const struct use *use, const char *role)
{
    size_t len = strlen(statements);

    (void)snprintf(
        statements + len, STATEMENTS_MAX - len,
        "\nDO $$ BEGIN IF NOT (SELECT pg_catalog.has_schema_privilege('%s', 'hapax', 'USAGE')"
        " AND pg_catalog.bool_and(pg_catalog.has_function_privilege('%s',"
        " f.name::pg_catalog.regproc, 'EXECUTE'))"
        " FROM pg_catalog.unnest(pg_catalog.string_to_array('%s', ', ')) f(name)) THEN"
        " RAISE EXCEPTION 'this role may not give rights on the schema \"hapax\" (run this as its"
        " owner)' USING ERRCODE = 'insufficient_privilege'; END IF; END $$;",
        role, role, use->functions);
}

static enum hapax_error run(struct hapax__pg_link *link, const char *statements)
{
    int64_t deadline_us = hapax__monotonic_us() + link->uri.timeout_ms * US_PER_MS;
    enum hapax_error error = hapax__pg_connect(link, deadline_us, false);
    PGresult *rows;

    if (error != HAPAX_ERR_NONE)
        return error;
    switch (hapax__pg_exec(link, statements, NULL, deadline_us, &rows)) {
    case HAPAX__PG_DONE:
        PQclear(rows);
        return HAPAX_ERR_NONE;
    case HAPAX__PG_ROLLED_BACK:
        return hapax__pg_error_of(link->sqlstate);
    default:
        return HAPAX_ERR_INDETERMINATE;
    }
}

static enum hapax_error grant(const char *uri, const char *statements, char text[HAPAX_TEXT_MAX])
{
    struct hapax__pg_link link = {.bare = true};
    enum hapax_error error = hapax__pg_uri(&link.uri, uri, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    error = run(&link, statements);
    if (error != HAPAX_ERR_NONE)
        hapax__fail(text, error, "%s", link.text);
    hapax__pg_drop(&link);
    hapax__pg_uri_release(&link.uri);
    return error;
}

enum hapax_error hapax__pg_rights(const char *uri, const char *use_name, const char *role,
                                  bool print, hapax_say *say, void *arg, char text[HAPAX_TEXT_MAX])
{
    const struct use *use = find_use(use_name);
    char statements[STATEMENTS_MAX];
    enum hapax_error error = HAPAX_ERR_NONE;

    if (!use_name && !role)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "the rights of PostgreSQL are given to roles: --role door=NAME");
    if (!use)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "there is no use \"%.40s\": door, operator, caller, executor, publisher "
                           "or relay",
                           use_name ? use_name : "");
    if (!is_role(role))
        return hapax__fail(
            text, HAPAX_ERR_INVALID,
            "\"%.64s\" is no name of a role: 1 to %u of a-z, A-Z, 0-9, '_', '.', '-' "
            "and '@'",
            role ? role : "", ROLE_MAX);
    write_statements(statements, use, role);
    if (print) {
        say(arg, false, statements);
        return HAPAX_ERR_NONE;
    }
    add_proof(statements, use, role);
    error = grant(uri, statements, text);
    if (error == HAPAX_ERR_NONE)
        hapax__tell(say, arg, false, "the role \"%s\" has the rights of: %s", role, use->name);
    return error;
}
