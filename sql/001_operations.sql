-- SPDX-License-Identifier: Apache-2.0
--
-- Version 1: the table.
--
-- Every row is written twice and then only read, in random order of its id. Therefore:
--   nothing that changes is indexed, but rows that are not completed stand in a small index;
--   pages are filled whole: rows of one batch share a page, where their second versions would not
--   fit; dead versions, one per operation, are vacuumed early and without pauses;
--   no index finds expired rows: hapax.purge() walks the table's pages in order.
-- Rejected: partitions by hash (three times slower here); an index on expires_us (a third write to
-- the log per operation, read once a day); BRIN on expires_us (before PostgreSQL 16 a BRIN index
-- costs as much as any other).

CREATE SCHEMA IF NOT EXISTS hapax;

CREATE TABLE IF NOT EXISTS hapax.schema_version (
    version integer PRIMARY KEY,
    made_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE hapax.schema_version
    IS 'The versions of this schema, one row each; the highest is what stands here';
COMMENT ON COLUMN hapax.schema_version.version
    IS 'Compared with the program''s own; see hapax.version()';
COMMENT ON COLUMN hapax.schema_version.made_at IS 'When it was made here';

-- Columns of fixed width come first: they are read without a walk over the others.
CREATE TABLE IF NOT EXISTS hapax.operations (
    created_us bigint NOT NULL,
    updated_us bigint NOT NULL,
    lease_until_us bigint NOT NULL,
    expires_us bigint NOT NULL,
    retention_ms bigint NOT NULL,
    resolved_us bigint NOT NULL,
    fence bigint NOT NULL,
    attempt integer NOT NULL,
    spent integer NOT NULL,
    state smallint NOT NULL,
    status smallint NOT NULL,
    hold boolean NOT NULL,
    stale boolean NOT NULL,
    ran boolean NOT NULL,
    reruns boolean NOT NULL,
    body_kept boolean NOT NULL,
    id bytea NOT NULL PRIMARY KEY,
    token bytea NOT NULL,
    fingerprint bytea NOT NULL,
    caller bytea NOT NULL,
    scope bytea NOT NULL,
    resolved_by bytea NOT NULL,
    headers bytea NOT NULL,
    body bytea NOT NULL
) WITH (fillfactor = 100);

-- Done only once: a second run would wait for every open transaction that has written here, and all
-- that come after it would wait too.
-- Bodies over 2 kB are compressed. With LZ4 that is quicker than writing them as they are: 23
-- microseconds for 5 kB of JSON here, against 39 as they are and 87 with PostgreSQL's own method.
-- A server built without LZ4 keeps its own method.
DO $$
BEGIN
    IF pg_catalog.to_regclass('hapax.operations_open') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE INDEX operations_open ON hapax.operations (created_us) WHERE state <> 2;
    ALTER TABLE hapax.operations SET (
        autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_insert_scale_factor = 0.2,
        autovacuum_analyze_scale_factor = 0.2,
        autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false,
        toast.autovacuum_vacuum_cost_delay = 0,
        toast.vacuum_truncate = false
    );
    BEGIN
        ALTER TABLE hapax.operations ALTER COLUMN body SET COMPRESSION lz4,
            ALTER COLUMN headers SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN
        NULL;
    END;
END
$$;

COMMENT ON TABLE hapax.operations
    IS 'One record per operation. Written by the functions of this schema only: '
        'hapax.run() says how';
COMMENT ON INDEX hapax.operations_open
    IS 'The records that are not completed, for listing what is stuck';
COMMENT ON COLUMN hapax.operations.id
    IS 'SHA-256 (HMAC with a secret) over scope, key and step: hapax.id()';
COMMENT ON COLUMN hapax.operations.state IS '1 started, 2 completed, 3 failed, 4 unknown';
COMMENT ON COLUMN hapax.operations.hold
    IS 'An expired claim becomes unknown instead of running again';
COMMENT ON COLUMN hapax.operations.stale IS 'An attempt died, and its result is unknown';
COMMENT ON COLUMN hapax.operations.ran IS 'The last failed attempt may have run';
COMMENT ON COLUMN hapax.operations.reruns
    IS 'Every granted claim said that a completed operation may run again';
COMMENT ON COLUMN hapax.operations.attempt
    IS 'Number of the last attempt, counted from 1; never falls';
COMMENT ON COLUMN hapax.operations.spent
    IS 'How many attempts ended and may have run; attempts_max limits it';
COMMENT ON COLUMN hapax.operations.fence
    IS 'Rises with every attempt: what the handler writes to can refuse a smaller one';
COMMENT ON COLUMN hapax.operations.token
    IS 'The first 16 bytes of the SHA-256 of the token that has the claim: hapax.mark_of()';
COMMENT ON COLUMN hapax.operations.fingerprint
    IS 'Digest of the request: the same key with another is refused. With a secret an HMAC of it';
COMMENT ON COLUMN hapax.operations.caller
    IS 'Digest of who asked: another gets no outcome. With a secret an HMAC of it';
COMMENT ON COLUMN hapax.operations.scope IS 'Namespace of the key, 1 to 255 bytes';
COMMENT ON COLUMN hapax.operations.created_us
    IS 'First claim. All times are microseconds since 1970 by this server''s clock';
COMMENT ON COLUMN hapax.operations.updated_us IS 'Last write';
COMMENT ON COLUMN hapax.operations.lease_until_us
    IS 'When a started attempt counts as dead; 0 in every other state';
COMMENT ON COLUMN hapax.operations.expires_us
    IS 'From then on the record counts as absent and may be purged; 0: never';
COMMENT ON COLUMN hapax.operations.retention_ms
    IS 'How long it is kept after its last write; 9223372036854775807: for ever';
COMMENT ON COLUMN hapax.operations.status
    IS 'The outcome''s status, 0 to 999; 0 where there is none';
COMMENT ON COLUMN hapax.operations.body_kept
    IS 'false: completed, but the body was over the limit or a stream';
COMMENT ON COLUMN hapax.operations.headers
    IS 'The outcome''s headers, lines of Name: value and CR LF';
COMMENT ON COLUMN hapax.operations.body IS 'The outcome''s body';
COMMENT ON COLUMN hapax.operations.resolved_us IS 'When an operator decided about it; 0: never';
COMMENT ON COLUMN hapax.operations.resolved_by IS 'Which operator';
