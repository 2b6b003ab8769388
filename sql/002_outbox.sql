-- SPDX-License-Identifier: Apache-2.0
--
-- Version 2: the outbox (150_outbox.sql): messages published if a transaction commits, and only
-- then.
--
-- hapax.publish() writes a row in the business transaction. A relay marks the row once the broker
-- has confirmed the message. The row is swept a day later. Messages that wait are found by number,
-- in an index of them alone. That index is as small as the backlog, but for entries of published
-- rows that no vacuum has removed yet. An index of its own finds the first waiting message of an
-- aggregate, which decides whether the others may go.
-- Rejected: a mark of what a relay has read up to. A transaction that commits late has a lower
-- number than those before it: its rows would be lost, or all behind any long transaction would
-- wait. Rejected: a table per partition (64 tables for a lease that is a row).

CREATE TABLE IF NOT EXISTS hapax.outbox (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    created_us bigint NOT NULL,
    due_us bigint NOT NULL,
    ended_us bigint NOT NULL,
    tries integer NOT NULL,
    part smallint NOT NULL,
    state smallint NOT NULL,
    topic text NOT NULL,
    aggregate text COLLATE "C" NOT NULL,
    key text NOT NULL,
    content_type text NOT NULL,
    headers jsonb NOT NULL,
    payload bytea NOT NULL,
    error text NOT NULL
);

DO $$
BEGIN
    IF pg_catalog.to_regclass('hapax.outbox_ended') IS NOT NULL THEN
        RETURN;
    END IF;
    CREATE INDEX outbox_pending ON hapax.outbox (seq) WHERE state = 0;
    CREATE INDEX outbox_heads ON hapax.outbox (aggregate, seq) WHERE state = 0;
    CREATE INDEX outbox_ended ON hapax.outbox (seq) WHERE state = 2;
    ALTER TABLE hapax.outbox SET (
        autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_threshold = 5000,
        autovacuum_analyze_scale_factor = 0.2,
        autovacuum_vacuum_cost_delay = 0,
        vacuum_truncate = false,
        toast.autovacuum_vacuum_cost_delay = 0
    );
END
$$;

COMMENT ON TABLE hapax.outbox
    IS 'Messages to be published: written by hapax.publish() in the business transaction, '
        'sent by hapax relay';
COMMENT ON INDEX hapax.outbox_pending IS 'What waits, in its order';
COMMENT ON INDEX hapax.outbox_heads
    IS 'What waits, by aggregate: the first one may hold back the others';
COMMENT ON INDEX hapax.outbox_ended IS 'What was put aside';
COMMENT ON COLUMN hapax.outbox.seq
    IS 'Its number; within an aggregate numbers rise in the order of commits';
COMMENT ON COLUMN hapax.outbox.created_us
    IS 'When it was written. All times are microseconds since 1970 by this server''s clock';
COMMENT ON COLUMN hapax.outbox.due_us IS 'After a failure: when it is tried again';
COMMENT ON COLUMN hapax.outbox.ended_us IS 'When it was published or put aside; 0: it waits';
COMMENT ON COLUMN hapax.outbox.tries IS 'How often it could not be published';
COMMENT ON COLUMN hapax.outbox.part
    IS 'Of 64, by a hash of its aggregate: one relay at a time sends a part';
COMMENT ON COLUMN hapax.outbox.state IS '0 waits, 1 published, 2 put aside';
COMMENT ON COLUMN hapax.outbox.topic IS 'The queue or topic it goes to';
COMMENT ON COLUMN hapax.outbox.aggregate
    IS 'What it is about: messages of one aggregate are published in their order';
COMMENT ON COLUMN hapax.outbox.key
    IS 'Its idempotency key: the same however often a relay sends it';
COMMENT ON COLUMN hapax.outbox.content_type IS 'Of the payload; empty: not said';
COMMENT ON COLUMN hapax.outbox.headers IS 'An object of strings';
COMMENT ON COLUMN hapax.outbox.payload IS 'The message''s body';
COMMENT ON COLUMN hapax.outbox.error IS 'Why it could not be published, the last time';

CREATE TABLE IF NOT EXISTS hapax.outbox_relays (
    relay uuid PRIMARY KEY,
    until_us bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE hapax.outbox_relays IS 'The relays that live: the parts are shared out among them';
COMMENT ON COLUMN hapax.outbox_relays.relay IS 'Made anew by each process';
COMMENT ON COLUMN hapax.outbox_relays.until_us IS 'When it counts as dead, unless it says more';

CREATE TABLE IF NOT EXISTS hapax.outbox_parts (
    part smallint PRIMARY KEY,
    relay uuid,
    until_us bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE hapax.outbox_parts IS 'Who sends the messages of a part';
COMMENT ON COLUMN hapax.outbox_parts.part IS '0 to 63';
COMMENT ON COLUMN hapax.outbox_parts.relay IS 'NULL: nobody';
COMMENT ON COLUMN hapax.outbox_parts.until_us IS 'When the lease is over, and another may have it';
INSERT INTO hapax.outbox_parts (part, until_us)
    SELECT g, 0 FROM pg_catalog.generate_series(0, 63) g ON CONFLICT DO NOTHING;
