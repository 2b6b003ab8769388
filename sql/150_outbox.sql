-- SPDX-License-Identifier: Apache-2.0
--
-- The transactional outbox: hapax.publish() in the business transaction, and what hapax relay asks.
--
--   BEGIN;
--   -- or behind the gate, or in a consumer's handler
--   SELECT * FROM hapax.begin('shop', 'order-17', ...);
--   INSERT INTO orders ...;
--   SELECT hapax.publish('payments', 'order-17', 'order-17', 'pay', payload);
--   SELECT hapax.complete(token, 201);
--   -- now it will be published: at least once, with the key order-17:pay each time
--   COMMIT;
--
-- Order: within an aggregate messages are published in the order of their commits. For this
-- publish() takes a lock of the aggregate to the end of the transaction, before it takes a number:
-- writers of one aggregate wait for each other. A transaction that publishes for several aggregates
-- does so in one order everywhere, as with rows. Between aggregates there is no order.
--
-- A relay leases parts. For the rows of its parts it calls outbox_next(): one short transaction
-- that ends the rows of the last turn and takes the next ones. What it took is published with no
-- transaction open. A row that fails is due later. Until then it keeps back its aggregate, and no
-- other. After so many tries it is put aside, and the rows behind it go on. A relay that dies, or
-- sleeps longer than its lease, leaves rows that are published twice: with one key, so that their
-- consumer replays them.
--
-- A relay needs hapax.version, hapax.outbox_lease, hapax.outbox_next, hapax.outbox_lag and
-- hapax.outbox_sweep; a publisher needs hapax.publish.

CREATE OR REPLACE FUNCTION hapax.check_text(p_what text, p_text text, p_max integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF p_text IS NULL OR p_text = '' OR octet_length(p_text) > p_max THEN
        RAISE EXCEPTION 'hapax: % has % bytes, which is not between 1 and %', p_what,
            coalesce(octet_length(p_text), 0), p_max
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN p_text;
END
$$;

-- Why a message with this key may not have this header; NULL: it may. The names are those before
-- message-id among the sources where hapax consume looks for a key (docs/consume.md). A key of
-- printable ASCII goes out as Idempotency-Key, which precedes the names of an event.
CREATE OR REPLACE FUNCTION hapax.refused_header(p_name text, p_value text, p_key text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE
        WHEN lower(p_name COLLATE "C") IN ('idempotency-key', 'x-idempotency-key',
            'x-deduplication-header', 'nats-msg-id', 'messagededuplicationid',
            'nservicebus.messageid', 'message-id')
            OR p_key ~ '[^ -~]' COLLATE "C"
            AND p_name ~* '^(ce[-_]|cloudevents[:_])(id|source)$' COLLATE "C"
            THEN 'a consumer would take it for the key'
        WHEN p_name IN ('CC', 'BCC') THEN 'RabbitMQ would send the message elsewhere by it'
        WHEN lower(p_name COLLATE "C") = 'amqp-reply-to' AND p_value LIKE 'amq.%'
            THEN 'RabbitMQ gives such names itself'
        WHEN lower(p_name COLLATE "C") LIKE 'hapax-%' THEN 'such names are of Hapax alone'
    END
$$;

-- Where the database is set to hapax.outbox = 'debezium', messages go here and not to a relay:
-- columns as Debezium's outbox event router has them by default, and some more. A connector reads
-- the log, and no view is in it. So a row is written for the log alone, and removed in the same
-- statement's transaction: the table stays empty. Deletes are nothing to the router; they need the
-- primary key.
-- Rejected: these names in hapax.outbox. Each change of a row's state would be one more event, and
-- pgoutput leaves generated columns out. Rejected: the setting of the session. Whoever may publish
-- could have messages go where nobody reads them; so he could by a setting of his role.
CREATE TABLE IF NOT EXISTS hapax.outbox_events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    aggregatetype character varying(255) NOT NULL,
    aggregateid character varying(255) NOT NULL,
    type character varying(255) NOT NULL,
    payload bytea NOT NULL,
    key text NOT NULL,
    content_type text NOT NULL,
    headers jsonb NOT NULL
);
COMMENT ON TABLE hapax.outbox_events
    IS 'Messages for Debezium''s outbox event router, which reads them from the log: always empty';
COMMENT ON COLUMN hapax.outbox_events.seq IS 'Its number';
COMMENT ON COLUMN hapax.outbox_events.id
    IS 'Of the message: made of its key, so a repeat has it again';
COMMENT ON COLUMN hapax.outbox_events.aggregatetype IS 'The topic of hapax.publish()';
COMMENT ON COLUMN hapax.outbox_events.aggregateid IS 'What it is about: the key in Kafka';
COMMENT ON COLUMN hapax.outbox_events.type IS 'The step, or else the topic';
COMMENT ON COLUMN hapax.outbox_events.payload IS 'The message''s body';
COMMENT ON COLUMN hapax.outbox_events.key IS 'Its idempotency key';
COMMENT ON COLUMN hapax.outbox_events.content_type IS 'Of the payload; empty: not said';
COMMENT ON COLUMN hapax.outbox_events.headers IS 'An object of strings';

CREATE OR REPLACE FUNCTION hapax.publish(topic text, aggregate text, key text,
    step text DEFAULT NULL, payload bytea DEFAULT '', headers jsonb DEFAULT '{}',
    content_type text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_variable
DECLARE
    v_hash bigint;
    v_seq bigint;
    v_key text;
    v_name text;
    v_why text;
    v_reader text;
BEGIN
    PERFORM hapax.check_text('the topic'::text, topic, 255);
    PERFORM hapax.check_text('the aggregate'::text, aggregate, 255);
    PERFORM hapax.check_size('the key'::text, convert_to(key, 'UTF8'), 255);
    IF octet_length(coalesce(content_type, '')) > 255 THEN
        RAISE EXCEPTION 'hapax: the content type has % bytes, over 255', octet_length(content_type)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(payload) > 16777216 THEN
        RAISE EXCEPTION 'hapax: a payload of % bytes is over 16777216', octet_length(payload)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(coalesce(headers, '{}')) <> 'object' OR octet_length(headers::text) > 65536 THEN
        RAISE EXCEPTION 'hapax: the headers are not an object, or over 65536 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Headers go out as UTF-8. So do the other texts, but in SQL_ASCII as the bytes that they are.
    -- A relay would end at what cannot.
    PERFORM convert_to(concat(headers, CASE WHEN getdatabaseencoding() <> 'SQL_ASCII'
        THEN concat(topic, aggregate, content_type) END), 'UTF8');
    IF EXISTS (SELECT FROM jsonb_each(coalesce(headers, '{}')) h
        WHERE jsonb_typeof(h.value) <> 'string' OR h.key = '') THEN
        RAISE EXCEPTION 'hapax: a header is no string, or has no name'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_key := CASE WHEN step IS NULL THEN key ELSE hapax.key_derive(key, step) END;
    SELECT r.name, r.why INTO v_name, v_why
    FROM (SELECT h.key AS name, hapax.refused_header(h.key, h.value, v_key) AS why
        FROM jsonb_each_text(coalesce(headers, '{}')) h) r
    WHERE r.why IS NOT NULL LIMIT 1;
    IF v_why IS NOT NULL THEN
        RAISE EXCEPTION 'hapax: the header "%" is refused: %', v_name, v_why
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_key ~ '[^ -~]' COLLATE "C"
        AND content_type ~* '^application/cloudevents\+json' COLLATE "C" THEN
        RAISE EXCEPTION 'hapax: an event in JSON has a key that is not all printable ASCII: '
            'a consumer would take source and id of the event for the key'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_hash := hashtextextended(aggregate, 2);
    PERFORM pg_advisory_xact_lock(v_hash);
    SELECT substr(c.setting, 14) INTO v_reader
    FROM pg_database d JOIN pg_db_role_setting s ON s.setdatabase = d.oid AND s.setrole = 0
        CROSS JOIN unnest(s.setconfig) c(setting)
    WHERE d.datname = current_database() AND lower(c.setting) LIKE 'hapax.outbox=%';
    CASE coalesce(v_reader, '')
    WHEN '', 'relay' THEN
        NULL;
    WHEN 'debezium' THEN
        IF current_setting('wal_level') <> 'logical' THEN
            RAISE EXCEPTION 'hapax: no connector can read the log, for wal_level is not logical'
                USING ERRCODE = 'object_not_in_prerequisite_state';
        END IF;
        INSERT INTO hapax.outbox_events (id, aggregatetype, aggregateid, type, payload, key,
            content_type, headers)
        VALUES (substr(encode(sha256(convert_to(v_key, 'UTF8')), 'hex'), 1, 32)::uuid, topic,
            aggregate, coalesce(step, topic), coalesce(payload, ''), v_key,
            coalesce(content_type, ''), coalesce(headers, '{}'))
        RETURNING seq INTO v_seq;
        DELETE FROM hapax.outbox_events e WHERE e.seq = v_seq;
        RETURN v_seq;
    ELSE
        RAISE EXCEPTION 'hapax: hapax.outbox of this database is neither "relay" nor "debezium"'
            USING ERRCODE = 'invalid_parameter_value';
    END CASE;
    INSERT INTO hapax.outbox (created_us, due_us, ended_us, tries, part, state, topic, aggregate,
        key, content_type, headers, payload, error)
    VALUES (hapax.now_us(), 0, 0, 0, v_hash & 63, 0, topic, aggregate, v_key,
        coalesce(content_type, ''), coalesce(headers, '{}'), coalesce(payload, ''), '')
    RETURNING seq INTO v_seq;
    PERFORM pg_notify('hapax_outbox', '');
    RETURN v_seq;
END
$$;
COMMENT ON FUNCTION hapax.publish(text, text, text, text, bytea, jsonb, text)
    IS 'Has a message published once this transaction has committed, in the order of its '
        'aggregate; its key is KEY, or KEY:step';

-- Records that a relay lives, and gives it its share of the parts: an equal share among the living
-- relays. The relay keeps the parts it has, gives back what is too many, and takes free ones.
-- p_lease_ms 0: the relay ends, and gives back all. Call it with no message in hand. A lease is an
-- hour at most. One for more than two hours was made under a clock that was ahead, and is over.
CREATE OR REPLACE FUNCTION hapax.outbox_lease(p_relay uuid, p_lease_ms bigint) RETURNS smallint[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now bigint;
    v_far bigint;
    v_until bigint;
    v_share integer;
    v_mine smallint[];
BEGIN
    PERFORM pg_advisory_xact_lock(5206439827364518179); -- relays, one at a time
    v_now := hapax.now_us();
    v_far := v_now + 7200000000; -- twice the longest lease: a clock may be set back a little
    v_until := least(v_now + p_lease_ms * 1000, v_now + 3600000000);
    DELETE FROM hapax.outbox_relays r
    WHERE r.until_us <= v_now OR r.until_us > v_far OR r.relay = p_relay;
    IF p_lease_ms > 0 THEN
        INSERT INTO hapax.outbox_relays VALUES (p_relay, v_until);
        v_share := (SELECT (63 + count(*)) / count(*) FROM hapax.outbox_relays);
    ELSE
        v_share := 0;
    END IF;
    v_mine := ARRAY(
        SELECT p.part FROM hapax.outbox_parts p
        WHERE p.relay = p_relay OR p.relay IS NULL OR p.until_us <= v_now OR p.until_us > v_far
        ORDER BY p.relay = p_relay DESC NULLS LAST, p.part LIMIT v_share);
    UPDATE hapax.outbox_parts p SET relay = CASE WHEN p.part = ANY (v_mine) THEN p_relay END,
        until_us = CASE WHEN p.part = ANY (v_mine) THEN v_until ELSE 0 END
    WHERE p.part = ANY (v_mine) OR p.relay = p_relay;
    RETURN v_mine;
END
$$;
COMMENT ON FUNCTION hapax.outbox_lease(uuid, bigint) IS 'Leases a relay its share of the parts';

-- Takes the results of rows, and returns the next rows to publish.
-- p_seq: the numbers of the rows that are done. p_error, for each: NULL published, otherwise why
-- not. p_topic and p_key, for each: of the message that had this number when it was taken. After a
-- failover to a standby that was behind, and after a restore, numbers are given again. A row that
-- is another message by now is left alone.
-- p_limit: the most rows to return, in the order of their numbers, with numbers over p_floor, of
-- p_parts. No parts: no row is returned. Once payloads have 16 MiB (HAPAX__RELAY_BYTES) together,
-- no more rows are: they would have to pass within the relay's timeout, and be held in memory.
-- A row is left out while the first waiting row of its aggregate is not due, or is under the floor:
-- a row under the floor may have been committed after others with higher numbers.
-- A row that failed is due after p_retry_ms * 2^tries, an hour at most. If it seems due in more
-- than two hours, a clock was ahead, and it is due. After p_tries_max it is put aside. A row that
-- has ended stays ended, whatever is reported again.
-- headers: of each its name and its value, each followed by a zero byte.
-- (The first row of an aggregate is the first from (aggregate, 0) on. With an equality the planner
-- may walk all that waits. So may a join with the rows that are done, if planned while the table
-- was empty: each waiting row beside each of those.)
CREATE OR REPLACE FUNCTION hapax.outbox_next(p_seq bigint[], p_error text[], p_topic text[],
    p_key text[], p_retry_ms bigint, p_tries_max integer, p_parts smallint[], p_floor bigint,
    p_limit integer)
RETURNS TABLE (seq bigint, topic text, aggregate text, key text, content_type text, headers bytea,
    payload bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_material = off
SET enable_sort = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_now CONSTANT bigint := hapax.now_us();
    v_far CONSTANT bigint := v_now + 7200000000; -- twice the longest pause
    c_end CONSTANT bytea := decode('00', 'hex');
    -- In SQL_ASCII an earlier version took headers of any bytes.
    c_encoding CONSTANT name := CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII'
        ELSE 'UTF8' END;
    v_published bigint[];
    v_failed bigint[];
BEGIN
    IF p_key IS NOT NULL THEN
        SELECT array_agg(s.seq), array_agg(s.error) INTO p_seq, p_error
        FROM unnest(p_seq, p_error, p_topic, p_key) s(seq, error, topic, key)
        WHERE (s.topic, s.key) = (SELECT o.topic, o.key FROM hapax.outbox o WHERE o.seq = s.seq);
    END IF;
    v_published := ARRAY(SELECT s.seq FROM unnest(p_seq, p_error) s(seq, error)
        WHERE s.error IS NULL);
    IF cardinality(v_published) > 0 THEN
        UPDATE hapax.outbox o SET state = 1, ended_us = v_now
        WHERE o.seq = ANY (v_published) AND o.state = 0;
    END IF;
    v_failed := ARRAY(SELECT s.seq FROM unnest(p_seq, p_error) s(seq, error)
        WHERE s.error IS NOT NULL);
    IF cardinality(v_failed) > 0 THEN
        UPDATE hapax.outbox o SET
            state = CASE WHEN o.tries + 1 >= p_tries_max THEN 2 ELSE 0 END,
            tries = o.tries + 1,
            error = left(p_error[array_position(p_seq, o.seq)], 255),
            ended_us = CASE WHEN o.tries + 1 >= p_tries_max THEN v_now ELSE 0 END,
            due_us = v_now + least(p_retry_ms * (1 << least(o.tries, 20))::bigint, 3600000) * 1000
        WHERE o.seq = ANY (v_failed) AND o.state = 0;
    END IF;
    IF coalesce(cardinality(p_parts), 0) = 0 OR p_limit < 1 THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT w.seq, w.topic, w.aggregate, w.key, w.content_type,
        CASE WHEN w.headers <> '{}' THEN (
            SELECT string_agg(
                convert_to(h.key, c_encoding) || c_end || convert_to(h.value, c_encoding) || c_end,
                ''::bytea ORDER BY h.key)
            FROM jsonb_each_text(w.headers) h) END,
        w.payload
    FROM (
        SELECT t.*, sum(octet_length(t.payload)) OVER (ORDER BY t.seq) AS bytes
        FROM (
            SELECT o.seq, o.topic, o.aggregate, o.key, o.content_type, o.headers, o.payload
            FROM hapax.outbox o, LATERAL (
                SELECT e.seq, e.due_us FROM hapax.outbox e
                WHERE e.state = 0 AND (e.aggregate, e.seq) >= (o.aggregate, 0::bigint)
                ORDER BY e.aggregate, e.seq LIMIT 1) head
            WHERE o.state = 0 AND o.seq > p_floor AND o.part = ANY (p_parts) AND head.seq > p_floor
                AND (head.due_us <= v_now OR head.due_us > v_far)
            ORDER BY o.seq LIMIT p_limit) t) w
    WHERE w.bytes - octet_length(w.payload) < 16777216
    ORDER BY w.seq;
END
$$;
COMMENT ON FUNCTION hapax.outbox_next
    IS 'Ends what a relay has published, and takes the next';

-- For relays of before, which give neither topic nor key. It has a name of its own: an older script
-- makes only this one anew, and both kinds of relay go on.
CREATE OR REPLACE FUNCTION hapax.outbox_turn(p_seq bigint[], p_error text[], p_retry_ms bigint,
    p_tries_max integer, p_parts smallint[], p_floor bigint, p_limit integer)
RETURNS TABLE (seq bigint, topic text, aggregate text, key text, content_type text, headers bytea,
    payload bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'SELECT * FROM hapax.outbox_next($1, $2, NULL, NULL, $3, $4, $5, $6, $7)';
COMMENT ON FUNCTION hapax.outbox_turn IS 'As outbox_next, for relays of before';

-- How many messages wait, of all parts, counted up to a limit; the age of the oldest; and how many
-- were put aside.
CREATE OR REPLACE FUNCTION hapax.outbox_lag(OUT pending bigint, OUT age_us bigint, OUT aside bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT (SELECT count(*) FROM (
            SELECT FROM hapax.outbox o WHERE o.state = 0 ORDER BY o.seq LIMIT 100000) p),
        coalesce((SELECT greatest(hapax.now_us() - o.created_us, 0) FROM hapax.outbox o
            WHERE o.state = 0 ORDER BY o.seq LIMIT 1), 0),
        (SELECT count(*) FROM (
            SELECT FROM hapax.outbox o WHERE o.state = 2 ORDER BY o.seq LIMIT 100000) a)
$$;
COMMENT ON FUNCTION hapax.outbox_lag()
    IS 'How many messages wait (at most 100000), how old the oldest is, how many were put aside';

-- The messages that were put aside, in pages.
CREATE OR REPLACE FUNCTION hapax.outbox_aside(p_after bigint, p_limit integer)
RETURNS TABLE (seq bigint, topic text, aggregate text, key text, tries integer, error text,
    created_us bigint, ended_us bigint, size integer)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT o.seq, o.topic, o.aggregate, o.key, o.tries, o.error, o.created_us, o.ended_us,
        octet_length(o.payload)
    FROM hapax.outbox o WHERE o.state = 2 AND o.seq > p_after
    ORDER BY o.seq LIMIT least(p_limit, 1000)
$$;
COMMENT ON FUNCTION hapax.outbox_aside(bigint, integer)
    IS 'A page of the messages that were put aside';

-- Puts messages back that were put aside: those of a key, or (NULL) all after p_after, at most 1000
-- in the order of their numbers. Returns the last number and the count.
CREATE OR REPLACE FUNCTION hapax.outbox_put_back(p_key text, p_after bigint, OUT count integer,
    OUT last bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    v_seqs bigint[];
BEGIN
    v_seqs := ARRAY(
        SELECT o.seq FROM hapax.outbox o
        WHERE o.state = 2 AND o.seq > p_after AND (p_key IS NULL OR o.key = p_key)
        ORDER BY o.seq LIMIT 1000 FOR UPDATE);
    UPDATE hapax.outbox o SET state = 0, tries = 0, due_us = 0, ended_us = 0
    WHERE o.seq = ANY (v_seqs) AND o.state = 2;
    count := cardinality(v_seqs);
    last := v_seqs[count];
    IF count > 0 THEN
        PERFORM pg_notify('hapax_outbox', '');
    END IF;
END
$$;
COMMENT ON FUNCTION hapax.outbox_put_back(text, bigint)
    IS 'Has messages that were put aside published after all';

-- Removes published messages older than p_keep_ms, of the 5000 after p_after. One sweeper works at
-- a time. more: go on from last. A page with a published message that is younger, and with none to
-- remove, ends the sweep: those behind it are younger, too.
CREATE OR REPLACE FUNCTION hapax.outbox_sweep(p_keep_ms bigint, p_after bigint, OUT swept integer,
    OUT last bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
DECLARE
    v_before CONSTANT bigint := hapax.now_us() - p_keep_ms * 1000;
    v_seqs bigint[];
    v_seen bigint[];
    v_young boolean;
BEGIN
    swept := 0;
    more := false;
    last := p_after;
    IF NOT pg_try_advisory_xact_lock(5206439827364518180) THEN
        RETURN;
    END IF;
    SELECT array_agg(w.seq) FILTER (WHERE w.state = 1 AND w.ended_us <= v_before), array_agg(w.seq),
        bool_or(w.state = 1 AND w.ended_us > v_before)
    INTO v_seqs, v_seen, v_young
    FROM (
        SELECT o.seq, o.state, o.ended_us FROM hapax.outbox o WHERE o.seq > p_after
        ORDER BY o.seq LIMIT 5000) w;
    DELETE FROM hapax.outbox o WHERE o.seq = ANY (v_seqs) AND o.state = 1;
    GET DIAGNOSTICS swept = ROW_COUNT;
    last := coalesce(v_seen[cardinality(v_seen)], p_after);
    more := coalesce(cardinality(v_seen), 0) = 5000 AND (swept > 0 OR NOT v_young);
END
$$;
COMMENT ON FUNCTION hapax.outbox_sweep(bigint, bigint)
    IS 'Removes some of the messages that were published long ago; says where to go on';
