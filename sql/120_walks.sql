-- SPDX-License-Identifier: Apache-2.0
--
-- What is not about one id: listing records, and sweeping. A sweep removes records whose retention
-- is over, and makes dead claims under hold `unknown`. Both are bounded: a call reads some thousand
-- rows and then says where to go on.

-- Pages through the records by id. The last row is no record: its state is NULL, and its id is
-- where to go on.
--
-- Open records (all but completed) have an index of their own, which knows their age, but neither
-- their ids nor their states. So the index is read from end to end for each page, and the records
-- asked for are sorted, as long as these are few, however many others are open. Where they are
-- many, a walk over all records by id soon meets enough of them. Where more records are open than
-- can be read in the time of a call, there is no other way. The statistics say which of the two it
-- is. If they are wrong, the call takes longer and no more: both ways give the same order, and a
-- page of one may follow a page of the other.
-- Rejected: the index of open records by id, which costs a tenth of all throughput for what an
-- operator asks now and then.
CREATE OR REPLACE FUNCTION hapax.list(p_states integer, p_scope bytea, p_older_ms bigint,
    p_limit integer, p_cursor bytea, p_owner bytea DEFAULT NULL)
RETURNS TABLE (
    id bytea, state smallint, hold boolean, stale boolean, ran boolean, reruns boolean,
    attempt integer, spent integer, fence bigint, fingerprint bytea, caller bytea, owner bytea,
    scope bytea, what bytea, created_us bigint, updated_us bigint, lease_until_us bigint,
    expires_us bigint, retention_ms bigint, resolved_us bigint, resolved_by bytea,
    replaced_state smallint, replaced_status smallint, status integer, body_kept boolean,
    now_us bigint, more boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    c_few CONSTANT integer := 20000; -- records that are sorted for a page
    c_open CONSTANT integer := 200000; -- open records read to find them
    c_walk CONSTANT integer := 5000; -- records read for a page otherwise
    v_now CONSTANT bigint := hapax.now_us();
    -- Where no age is asked for, what a clock ahead of this one has written is listed, too.
    v_before CONSTANT bigint
        := coalesce(v_now - nullif(p_older_ms, 0) * 1000, 9223372036854775807);
    v_states CONSTANT integer := coalesce(nullif(p_states, 0), 30);
    v_scope CONSTANT bytea := nullif(p_scope, '');
    v_owner CONSTANT bytea := nullif(p_owner, '');
    -- The index of owners is made by a DBA (docs/database.md). While it is being made, or where
    -- that has failed, the index is there and not valid.
    v_by_owner CONSTANT boolean := v_owner IS NOT NULL AND EXISTS (
        SELECT FROM pg_index i
        WHERE i.indexrelid = to_regclass('hapax.operations_owner') AND i.indisvalid);
    v_limit CONSTANT integer := CASE WHEN p_limit BETWEEN 1 AND 1000 THEN p_limit ELSE 1000 END;
    v_cursor bytea := coalesce(p_cursor, decode(repeat('00', 32), 'hex'));
    v_ids bytea[];
    v_end bytea;
    v_found bytea[];
    v_few boolean := false;
BEGIN
    IF v_states & 4 = 0 AND (
        SELECT c.reltuples <= c_open FROM pg_class c
        WHERE c.oid = to_regclass('hapax.operations_open')) THEN
        -- The limits stop the scan. The inner limit lets one row more through, so that the outer
        -- query sees that the limit was met.
        SELECT array_agg(f.id), count(*) <= c_few AND bool_and(f.n <= c_open) IS NOT FALSE
            INTO v_found, v_few
        FROM (
            SELECT o.id, o.n FROM (
                SELECT id, state, owner, scope, updated_us, expires_us, row_number() OVER () AS n
                FROM hapax.operations WHERE state <> 2 AND created_us <= v_before
                LIMIT c_open + 1) o
            WHERE o.n > c_open OR o.id > v_cursor AND o.updated_us <= v_before
                AND v_states >> o.state & 1 = 1 AND (v_scope IS NULL OR o.scope = v_scope)
                AND (v_owner IS NULL OR o.owner = v_owner)
                AND (o.expires_us = 0 OR v_now < o.expires_us)
            LIMIT c_few + 1) f;
    END IF;
    IF v_few THEN
        v_ids := ARRAY(SELECT f.id FROM unnest(v_found) f(id) ORDER BY f.id LIMIT v_limit + 1);
    ELSE
        WITH come AS (
            (SELECT id, state, owner, scope, updated_us, expires_us FROM hapax.operations
                WHERE v_by_owner AND owner = v_owner AND id > v_cursor ORDER BY id LIMIT c_walk)
            UNION ALL
            (SELECT id, state, owner, scope, updated_us, expires_us FROM hapax.operations
                WHERE NOT v_by_owner AND id > v_cursor ORDER BY id LIMIT c_walk)),
        walked AS MATERIALIZED (
            SELECT o.id, v_states >> o.state & 1 = 1 AND (v_scope IS NULL OR o.scope = v_scope)
                AND (v_owner IS NULL OR o.owner = v_owner) AND o.updated_us <= v_before
                AND (o.expires_us = 0 OR v_now < o.expires_us) AS wanted
            FROM come o)
        SELECT ARRAY(SELECT w.id FROM walked w WHERE w.wanted ORDER BY w.id LIMIT v_limit + 1),
            (SELECT w.id FROM walked w ORDER BY w.id OFFSET c_walk - 1)
        INTO v_ids, v_end;
    END IF;
    IF cardinality(v_ids) > v_limit THEN
        v_ids := v_ids[1:v_limit];
        v_end := v_ids[v_limit];
    END IF;
    RETURN QUERY
    SELECT o.id, o.state, o.hold, o.stale, o.ran, o.reruns, o.attempt, o.spent, o.fence,
        o.fingerprint, o.caller, o.owner, o.scope, o.what, o.created_us, o.updated_us,
        o.lease_until_us, o.expires_us, o.retention_ms, o.resolved_us, o.resolved_by,
        o.replaced_state, o.replaced_status, o.status::integer, o.body_kept, v_now, true
    FROM unnest(v_ids) WITH ORDINALITY a(id, n),
        LATERAL (SELECT * FROM hapax.operations WHERE id = a.id OFFSET 0) o
    ORDER BY a.n;
    id := coalesce(v_end, v_ids[cardinality(v_ids)], v_cursor);
    now_us := v_now;
    more := v_end IS NOT NULL;
    RETURN NEXT;
END
$$;

-- Removes records whose time is over and the outcomes of tombstones, and makes claims under hold
-- whose lease is over `unknown`, as the next CLAIM would: at most p_limit of all (and 500).
-- A call walks over 256 pages of the table at most, in their order. Records written together expire
-- together, so the disk is read from end to end and no write needs an index. The same walk meets
-- the dead claims. p_cursor holds the number of the page to go on with.
-- A call never waits, and others wait for it no longer than one call: a record whose lock or row
-- another transaction has is left for the next sweep. One sweeper works at a time; another is told
-- that there is nothing to do.
CREATE OR REPLACE FUNCTION hapax.purge(p_cursor bytea, p_limit integer)
RETURNS TABLE (purged integer, settled integer, more boolean, cursor bytea, now_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    c_sweeper CONSTANT bigint := 5206439827364518178;
    c_pages CONSTANT bigint := 256;
    v_now CONSTANT bigint := hapax.now_us();
    v_limit CONSTANT integer := CASE WHEN p_limit BETWEEN 1 AND 500 THEN p_limit ELSE 500 END;
    v_pages CONSTANT bigint
        := pg_relation_size('hapax.operations') / current_setting('block_size')::bigint;
    v_first CONSTANT bigint
        := ('x' || encode(substr(coalesce(p_cursor, ''), 25, 8), 'hex'))::bit(64)::bigint;
    v_next bigint := v_first + c_pages;
    v_unknown integer;
    v_buried integer;
    v_ids bytea[];
    v_last tid;
BEGIN
    purged := 0;
    settled := 0;
    more := false;
    now_us := v_now;
    cursor := decode(repeat('00', 32), 'hex');
    IF v_first >= v_pages OR NOT pg_try_advisory_xact_lock(c_sweeper) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT array_agg(e.id) FILTER (WHERE pg_try_advisory_xact_lock(hapax.lock_of(e.id))),
        max(e.row_ctid) FILTER (WHERE e.n = v_limit)
    INTO v_ids, v_last
    FROM (
        SELECT o.id, o.ctid AS row_ctid, row_number() OVER () AS n FROM hapax.operations o
        WHERE o.ctid >= format('(%s,0)', v_first)::tid
            AND o.ctid < format('(%s,0)', least(v_next, 4294967295))::tid
            AND (o.expires_us <> 0 AND v_now >= o.expires_us
                OR o.state = 1 AND o.hold AND v_now >= o.lease_until_us
                OR o.state = 3 AND o.hold AND o.stale
                OR CASE WHEN hapax.is_tombstone(o.state, o.updated_us, o.retention_ms,
                    o.expires_us, v_now) THEN o.body_kept OR o.headers <> '' OR o.body <> '' END)
        LIMIT v_limit OFFSET 0) e;
    -- Judged again, by a statement that begins after the locks are taken: before its lock was
    -- taken, a record may have been claimed or renewed. The two writes are on two kinds of record:
    -- a record that has expired is not made `unknown`.
    DELETE FROM hapax.operations o
    WHERE o.id = ANY (v_ids) AND o.expires_us <> 0 AND v_now >= o.expires_us
        AND CASE WHEN o.xmax = '0'::xid THEN true ELSE hapax.row_free(o.id) END;
    GET DIAGNOSTICS purged = ROW_COUNT;
    UPDATE hapax.operations o SET body_kept = false, headers = '', body = ''
    WHERE o.id = ANY (v_ids)
        AND CASE WHEN NOT hapax.is_tombstone(o.state, o.updated_us, o.retention_ms, o.expires_us,
                    v_now) OR v_now >= o.expires_us THEN false
            WHEN o.xmax = '0'::xid THEN true ELSE hapax.row_free(o.id) END;
    GET DIAGNOSTICS v_buried = ROW_COUNT;
    purged := purged + v_buried;
    -- The condition stands in a CASE: otherwise the planner reads the whole index of open records.
    -- The death of the attempt in question was counted when the claim was granted. The next claim
    -- that asks about it counts it again.
    UPDATE hapax.operations o SET state = 4, stale = true, lease_until_us = 0, expires_us = 0,
        updated_us = v_now,
        spent = o.spent - CASE WHEN o.state = 3 AND o.spent > 0 THEN 1 ELSE 0 END
    WHERE o.id = ANY (v_ids)
        AND CASE WHEN NOT o.hold OR o.state <> 1 AND NOT (o.state = 3 AND o.stale)
                OR o.state = 1 AND v_now < o.lease_until_us
                OR o.expires_us <> 0 AND v_now >= o.expires_us THEN false
            WHEN o.xmax = '0'::xid THEN true ELSE hapax.row_free(o.id) END;
    GET DIAGNOSTICS v_unknown = ROW_COUNT;
    settled := v_unknown;
    IF v_last IS NOT NULL AND purged + v_unknown > 0 THEN
        v_next := split_part(trim(v_last::text, '()'), ',', 1)::bigint;
    END IF;
    IF v_next < v_pages THEN
        more := true;
        -- It begins with the share of the pages behind it, for whoever shows how far it is.
        cursor := substr(int4send((v_next * 65536 / v_pages)::integer), 3)
            || decode(repeat('00', 22), 'hex') || int8send(v_next);
    END IF;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION hapax.list
    IS 'A page of records in the order of their ids; its last row says where to go on';
COMMENT ON FUNCTION hapax.purge
    IS 'Removes some of the records whose retention is over, and makes some dead claims under hold '
        'unknown; its row says where to go on';
