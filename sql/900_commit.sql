-- SPDX-License-Identifier: Apache-2.0
--
-- The version of this schema now, and who has rights on it.
--
-- Default privileges of the database give others rights on whatever is made. So does a GRANT ... ON
-- ALL TABLES or ON ALL FUNCTIONS. Whoever reads the table has every outcome.
-- Whoever may make functions here may slip one under ours. So each run of this script takes back
-- from all but the owner:
--   CREATE on the schema, every right on its tables, and every right of PUBLIC;
--   rights that default privileges gave during this run;
--   all functions, from a role that may call one without a comment. Only functions with a comment
--   are granted by name (docs/postgres.md). So this role was given all of them.
-- What an operator granted by name stays, also for a function that is made anew with other
-- arguments: a second run is an upgrade, and takes nothing from a service.
-- Rejected: to name the roles at init, and to take back all rights of the others. A second run
-- without the same names would lock services out.

-- A program tells the version that it was made for, and is told the same where this schema serves
-- it. The least number below is that of the oldest program which may call the functions as they are
-- now. It stays when a new version of the schema changes nothing that such a program calls.
DROP FUNCTION IF EXISTS hapax.version();
CREATE OR REPLACE FUNCTION hapax.version(program integer DEFAULT 0) RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN program BETWEEN 6 AND max(version) THEN program ELSE max(version) END
    FROM hapax.schema_version
$$;
COMMENT ON FUNCTION hapax.version(integer)
    IS 'The version of this schema; for a program of a version that it serves, the program''s own';

DO $$
DECLARE
    c_schema CONSTANT oid := 'hapax'::regnamespace;
    v_before CONSTANT jsonb := current_setting('hapax.granted'); -- 000_begin.sql
    r record;
BEGIN
    FOR r IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END AS who
        FROM (
            SELECT a.grantee, n.nspowner FROM pg_namespace n, aclexplode(n.nspacl) a
                WHERE n.oid = c_schema
            UNION SELECT a.grantee, c.relowner FROM pg_class c, aclexplode(c.relacl) a
                WHERE c.relnamespace = c_schema
            UNION SELECT a.grantee, c.relowner
                FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) a
                WHERE c.relnamespace = c_schema
            UNION SELECT a.grantee, p.proowner
                FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
                WHERE p.pronamespace = c_schema) a(grantee, owner)
        WHERE a.grantee <> a.owner
    LOOP
        EXECUTE format('REVOKE ALL ON SCHEMA hapax FROM %s CASCADE', r.who);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA hapax FROM %s CASCADE', r.who);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA hapax FROM %s CASCADE', r.who);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM %s CASCADE', r.who);
    END LOOP;
    FOR r IN
        WITH had AS (
            SELECT p.oid, g.role
            FROM pg_proc p, jsonb_array_elements_text(coalesce(v_before -> p.proname::text, '[]')
                -- Whoever may do more, and did so before there was a function for less.
                || CASE p.proname WHEN 'door' THEN coalesce(v_before -> 'run', '[]')
                    WHEN 'outbox_next' THEN coalesce(v_before -> 'outbox_turn', '[]')
                    ELSE '[]' END)
                g(role)
            WHERE p.pronamespace = c_schema)
        SELECT 'EXECUTE ON FUNCTION ' || h.oid::regprocedure AS what, h.role::oid::regrole AS who
        FROM had h
        WHERE h.role NOT IN (
            SELECT i.role FROM had i WHERE obj_description(i.oid, 'pg_proc') IS NULL)
        UNION ALL
        SELECT 'USAGE ON SCHEMA hapax', g.role::oid::regrole
        FROM jsonb_array_elements_text(v_before -> '') g(role)
    LOOP
        EXECUTE format('GRANT %s TO %s', r.what, r.who);
    END LOOP;
END
$$;

-- Whose functions these are: hapax init and hapax check compare the digest (tools/embed.py) with
-- that of their own script. An earlier script gives this comment without one.
COMMENT ON SCHEMA hapax IS 'Hapax: each logical request takes effect once; script @DIGEST@';

INSERT INTO hapax.schema_version (version) VALUES (1), (2), (3), (4), (5), (6)
    ON CONFLICT DO NOTHING;
COMMIT;
