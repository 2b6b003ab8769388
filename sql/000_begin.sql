-- SPDX-License-Identifier: Apache-2.0
--
-- What Hapax keeps in a PostgreSQL database: the files of sql/, in the order of their names, are
-- one script. The script may be run again at any time, by psql -f or in one PQexec(). It makes what
-- is missing, replaces every function, and leaves the records alone. Two runs at once wait for each
-- other. A database made by a newer version is refused.
--
-- Tables are changed by one numbered file per version (001, 002, ...). Each file changes nothing
-- where it has been run before. Functions hold no state and are made anew. Rejected: guards of
-- procedural code around every version, which are hard to read.
--
-- A schema is refused if a role that is no superuser, and not the current one, has made something
-- in it, or a trigger or foreign key on its tables: Hapax would take that object for its own and
-- run it with the rights of the role that sets up. Backslashes stand in E'' alone:
-- standard_conforming_strings may be off.

BEGIN;
SET LOCAL client_min_messages = warning;
SET LOCAL lock_timeout = '60s';
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    found integer;
    stranger name;
    by_trigger boolean;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(5206439827364518177);
    IF pg_catalog.current_setting('server_version_num')::integer < 140000 THEN
        RAISE EXCEPTION 'cannot set up hapax: PostgreSQL % is too old (14 or newer)',
            pg_catalog.current_setting('server_version')
            USING ERRCODE = 'feature_not_supported';
    END IF;
    -- The other table of a constraint trigger may be anybody's: the function's owner counts, too.
    SELECT r.rolname, o.by_trigger INTO stranger, by_trigger
    FROM pg_catalog.pg_namespace n, LATERAL (
        SELECT n.nspowner, false
        UNION SELECT p.proowner, false FROM pg_catalog.pg_proc p WHERE p.pronamespace = n.oid
        UNION SELECT c.relowner, false FROM pg_catalog.pg_class c WHERE c.relnamespace = n.oid
        UNION SELECT p.proowner, true
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid
            JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE c.relnamespace = n.oid
        UNION SELECT f.relowner, true
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_trigger t ON t.tgrelid = c.oid
            JOIN pg_catalog.pg_class f ON f.oid = t.tgconstrrelid
        WHERE c.relnamespace = n.oid) o(owner, by_trigger)
    JOIN pg_catalog.pg_roles r ON r.oid = o.owner
    WHERE n.nspname = 'hapax' AND r.rolname <> current_user AND NOT r.rolsuper
    ORDER BY o.by_trigger LIMIT 1;
    IF by_trigger THEN
        RAISE EXCEPTION 'cannot set up hapax: a trigger or foreign key on tables of the schema '
            '"hapax" belongs to "%" (drop that)', stranger
            USING ERRCODE = 'insufficient_privilege';
    ELSIF stranger IS NOT NULL THEN
        RAISE EXCEPTION 'cannot set up hapax: the schema "hapax", or something in it, '
            'belongs to "%" (do this as that role)', stranger
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Who has USAGE on the schema (""), and who may call a function of each name: for
    -- 900_commit.sql.
    PERFORM set_config('hapax.granted', coalesce((
        SELECT jsonb_object_agg(g.name, g.roles) FROM (
            SELECT '', jsonb_agg(a.grantee::bigint) FROM pg_namespace n, aclexplode(n.nspacl) a
            WHERE n.nspname = 'hapax' AND a.grantee NOT IN (0, n.nspowner)
                AND a.privilege_type = 'USAGE'
            HAVING count(*) > 0
            UNION ALL
            SELECT p.proname, jsonb_agg(DISTINCT a.grantee::bigint)
            FROM pg_namespace n JOIN pg_proc p ON p.pronamespace = n.oid, aclexplode(p.proacl) a
            WHERE n.nspname = 'hapax' AND a.grantee NOT IN (0, p.proowner)
            GROUP BY p.proname) g(name, roles)), '{}')::text, true);
    IF pg_catalog.to_regclass('hapax.schema_version') IS NULL THEN
        IF pg_catalog.to_regclass('hapax.operations') IS NOT NULL THEN
            RAISE EXCEPTION 'cannot set up hapax: the schema "hapax" is not Hapax''s: it has a '
                'table "operations" and none "schema_version" (use another database)'
                USING ERRCODE = 'feature_not_supported';
        END IF;
        RETURN;
    END IF;
    EXECUTE 'SELECT max(version) FROM hapax.schema_version' INTO found;
    IF found > 6 THEN
        RAISE EXCEPTION 'cannot set up hapax: the schema "hapax" is of version %, '
            'this is version 6 (use a newer hapax)', found
            USING ERRCODE = 'HX003';
    END IF;
END
$$;
