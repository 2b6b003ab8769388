-- SPDX-License-Identifier: Apache-2.0
--
-- The version of this schema now. No role may call a function that it was not granted.

CREATE OR REPLACE FUNCTION hapax.version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$ SELECT max(version) FROM hapax.schema_version $$;
COMMENT ON FUNCTION hapax.version()
    IS 'The version of this schema; a program that knows another one does not use it';

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA hapax FROM PUBLIC;

INSERT INTO hapax.schema_version (version) VALUES (1), (2) ON CONFLICT DO NOTHING;
COMMIT;
