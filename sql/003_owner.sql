-- SPDX-License-Identifier: Apache-2.0
--
-- Version 3: a record has an owner, what its operation is, and what an operator replaced. Records
-- of before have none of these. In place of a token stands its mark (hapax.mark_of()), so that who
-- reads the table cannot complete an operation. Tokens of completed records stay as they are: they
-- end nothing. A column with a constant default costs no rewrite of the table; but
-- it waits for every open transaction that has used the table, so it is added only once.
--
-- Functions whose arguments or columns have changed are dropped, for CREATE OR REPLACE would refuse
-- them or leave the old ones beside the new. What was granted on them is granted again (900).

DO $$
DECLARE
    f record;
BEGIN
    IF EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = 'hapax.operations'::regclass AND a.attname = 'what') THEN
        RETURN;
    END IF;
    ALTER TABLE hapax.operations
        ADD COLUMN owner bytea NOT NULL DEFAULT '',
        ADD COLUMN what bytea NOT NULL DEFAULT '',
        ADD COLUMN replaced_state smallint NOT NULL DEFAULT 0,
        ADD COLUMN replaced_status smallint NOT NULL DEFAULT 0;
    UPDATE hapax.operations SET token = substr(sha256(token), 1, 16) WHERE state <> 2;
    FOR f IN
        SELECT p.oid::regprocedure AS was FROM pg_proc p
        WHERE p.pronamespace = 'hapax'::regnamespace
            AND p.proname IN ('id_of', 'id', 'run', 'list', 'begin', 'step_listed', 'step_begin')
    LOOP
        EXECUTE format('DROP FUNCTION %s', f.was);
    END LOOP;
END
$$;

COMMENT ON COLUMN hapax.operations.owner
    IS 'Digest of whose key it is: hapax.owner(); empty: it has no owner';
COMMENT ON COLUMN hapax.operations.what
    IS 'What the operation is, for people: method and path, or queue and type; empty: not said';
COMMENT ON COLUMN hapax.operations.replaced_state
    IS 'The state that an operator replaced; 0: none has';
COMMENT ON COLUMN hapax.operations.replaced_status
    IS 'The status of the outcome that an operator replaced; 0: there was none';
