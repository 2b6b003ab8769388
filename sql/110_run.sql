-- SPDX-License-Identifier: Apache-2.0
--
-- hapax.run(): the machine (docs/design.md, section 3) over a batch of ops, in one statement.
--
-- Each op is judged on its committed record. An op that writes nothing is answered from that
-- record. An op that writes first tries the advisory lock of its id. Every writer keeps this lock
-- until its transaction ends. So an op never waits for a row that another open transaction has
-- written, and two batches cannot deadlock, in whatever order their ids come. The lock is taken
-- after the record is read. Therefore a row is only updated if it is still the version that was
-- judged (its ctid and xmin), and only inserted where there is still none. Ops judged on an old
-- record are judged again. (xmin is compared too: when a row has changed under an UPDATE, some
-- minor releases do not check the ctid again.)
--
-- In a store's batch three kinds come first, by leaner statements: CLAIMs of absent records,
-- COMPLETEs by the record's own token, and CLAIMs of what is completed. Most ops are of these
-- kinds, and most of the large statement is for others. The tables judge what the lean statements
-- leave. The lean statements, too, write nothing without the lock; a COMPLETE takes the lock before
-- it reads; what is completed is only read. All ops of the first two kinds are answered by one row
-- each with only what the store does not know: 32 columns for each op would take a twelfth of the
-- server's time for a batch, and more than one packet.
--
-- Rejected: a loop over the ops (0.7 of a bare statement, with far simpler rules); locking first
-- and judging in a second statement (each op is looked up twice); SELECT ... FOR UPDATE SKIP LOCKED
-- (a write per op, and nothing to lock where there is no row yet).
--
-- The plan is pinned: whatever the table's statistics say, ids are found by the primary key, one by
-- one. A plan made while the table was empty would read the table from end to end for ever after.
-- It would do so by a sequential scan, hence enable_seqscan; or by the whole index and a filter,
-- hence the lateral subquery with OFFSET 0, into which only the one id goes.

-- lock_of() is the lock of an id. long_lock_of() is a second lock, taken too by a transaction that
-- is the caller's own and may stay open for long (hapax.begin() and what follows it).
CREATE OR REPLACE FUNCTION hapax.lock_of(id bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT pg_catalog.hashtextextended(pg_catalog.encode($1, 'hex'), 0) $$;

CREATE OR REPLACE FUNCTION hapax.long_lock_of(id bytea) RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT pg_catalog.hashtextextended(pg_catalog.encode($1, 'hex'), 1) $$;
COMMENT ON FUNCTION hapax.long_lock_of(bytea)
    IS 'The lock of an operation in a transaction of its caller''s; for hapax_pg_execute()';

-- Whether no other transaction has locked this row or is writing it. An operator's own UPDATE takes
-- no advisory lock.
CREATE OR REPLACE FUNCTION hapax.row_free(p_id bytea) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM hapax.operations o WHERE o.id = p_id FOR UPDATE SKIP LOCKED;
    RETURN FOUND;
END
$$;

CREATE OR REPLACE FUNCTION hapax.now_us() RETURNS bigint
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint $$;

-- Whether a record that is there is a tombstone: it was completed, and its retention is over. No
-- retention is too long for this: one row with which it failed would end every walk.
CREATE OR REPLACE FUNCTION hapax.is_tombstone(state smallint, updated_us bigint,
    retention_ms bigint, expires_us bigint, now_us bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN $1 <> 2 OR $4 = 0 THEN false ELSE ($5 - $2) / 1000 >= $3 END $$;

-- Called before ops of run() that were judged on an old record are judged again. Takes their locks,
-- in one order for all, where the caller may wait for locks.
CREATE OR REPLACE FUNCTION hapax.go_round(p_id bytea[], p_again integer[], p_wait boolean,
    p_round integer) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF (SELECT count(DISTINCT a.id) < count(*) FROM unnest(p_id) a(id)) THEN
        RAISE EXCEPTION 'hapax.run: an id comes twice in one batch'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF p_round >= 10 THEN
        RAISE EXCEPTION 'hapax.run: the records change as fast as they are read'
            USING ERRCODE = 'serialization_failure';
    END IF;
    IF p_wait THEN
        PERFORM pg_advisory_xact_lock(l.lock)
        FROM (SELECT hapax.lock_of(p_id[a.i]) AS lock FROM unnest(p_again) a(i)
            ORDER BY p_id[a.i] OFFSET 0) l;
    END IF;
END
$$;

-- What hapax.run() answers. Rejected: OUT arguments, as of hapax.begin(): the server would make the
-- type of their row anew, several times in each call.
DO $$
BEGIN
    IF to_regtype('hapax.judged') IS NULL THEN
        CREATE TYPE hapax.judged AS (
            ord integer, verdict smallint, error smallint, differs smallint, now_us bigint,
            state smallint, hold boolean, stale boolean, ran boolean, reruns boolean,
            attempt integer, spent integer, fence bigint, fingerprint bytea, caller bytea,
            owner bytea, scope bytea, what bytea, created_us bigint, updated_us bigint,
            lease_until_us bigint, expires_us bigint, retention_ms bigint, resolved_us bigint,
            resolved_by bytea, replaced_state smallint, replaced_status smallint,
            outcome smallint, status integer, body_kept boolean, headers bytea, body bytea);
        -- As they were before.
        DROP FUNCTION IF EXISTS
            hapax.run(smallint[], bytea[], bytea[], bytea[], bytea[], bytea[], bigint[], bigint[],
                integer[], bigint[], integer[], bytea[], bytea[], bytea[], bytea[], bytea[],
                boolean),
            hapax.door(smallint[], bytea[], bytea[], bytea[], bytea[], bytea[], bigint[], bigint[],
                integer[], bigint[], integer[], bytea[], bytea[], bytea[], bytea[], bytea[],
                boolean);
    END IF;
END
$$;
COMMENT ON TYPE hapax.judged IS 'What hapax.run() answers';

-- The contract. Numbers are those of the enums in include/hapax/store.h.
--   All arrays that are not NULL have one length. p_kind, p_id and p_flags have no NULL, nor has
--   p_token but of a READ, nor p_fingerprint and p_caller of a CLAIM, which names no 32 bytes 0xff
--   there. No id comes twice.
--   p_flags: on_expired | resolve << 2 | rerun_completed 16 | reconciled 32 | ran 64 | as_unknown
--     128 | force 256 | body_kept 512 | died 2048. In those of the first op, 1024: rows may be
--     packed.
--   p_lease_ms: of a COMPLETE, how long its tombstone stays behind retention; of a RESOLVE,
--     if_updated_us. p_retention_ms: of a COMPLETE or FAIL, from this write on. NULL and 0: none,
--     any, and as the CLAIM said. All are ten years at most, or a retention c_forever.
--   p_limit: attempts_max of a CLAIM, if_attempt of a RENEW or RESOLVE. NULL reads as 0, as the
--     fields of an outcome do.
--   p_wait: false for a store, whose transaction is this call: the call waits for no lock. true in
--     the caller's own transaction: the call waits for others'. NULL there: the call does not wait,
--     and a busy CLAIM is IN_FLIGHT.
-- One row per op, in no order: ord is the op's index in the arrays. NULL in a column is 0, false or
-- empty, except where it says otherwise.
--   error: 0, or -8 with verdict 0: see hapax.door(), below. Or -4 with verdict 0: busy, another
--     transaction is writing this id. Nothing was applied; ask again after the other has committed.
--     The verdict is not IN_FLIGHT: the other may be a copy of this very CLAIM, whose reply was
--     lost and which still waits for its standby. A CLAIM that meets a caller's own transaction is
--     IN_FLIGHT: that one made its token itself.
--   state 0: no record, and the columns after it say nothing. fingerprint, caller, owner, scope,
--     what NULL: the op's own.
--   outcome: 0 none; 1 as in the columns after it; 2 the op's own, which is now stored.
-- A packed row has ord NULL and stands for several ops. All columns are NULL but verdict, now_us
-- and body:
--   verdict 1, CLAIMs of absent records: body is the array of their ords, as array_send() writes
--     it. The records follow from the ops.
--   verdict 7, COMPLETEs of what was started. body has, one after the other, for each: ord (4
--     bytes, as all numbers the most significant first), created_us, fence, retention_ms (8 each),
--     attempt, spent (4), hold 1 | ran 2 | reruns 4 | owned 8 | length of scope << 8 | of what <<
--     16 (4), fingerprint, caller, owner if owned (32 each), scope, what. resolved_us is 0. The
--     rest follows from the op.
CREATE OR REPLACE FUNCTION hapax.run(
    p_kind smallint[], p_id bytea[], p_token bytea[], p_scope bytea[], p_fingerprint bytea[],
    p_caller bytea[],
    p_lease_ms bigint[], p_retention_ms bigint[], p_flags integer[], p_limit bigint[],
    p_status integer[], p_headers bytea[], p_body bytea[], p_by bytea[], p_owner bytea[],
    p_what bytea[], p_wait boolean)
RETURNS SETOF hapax.judged
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    v_left integer := coalesce(array_length(p_id, 1), 0);
    v_last CONSTANT integer := v_left;
    v_again integer[];
    v_round integer := 0;
    v_now bigint;
    v_done integer;
    v_locked integer[];
    v_finished integer[] := '{}';
    v_some integer[];
    v_packed bytea;
    v_row hapax.judged;
    v_packs CONSTANT boolean := p_wait IS FALSE AND p_flags[1] & 1024 <> 0;
    c_door CONSTANT boolean := false; -- true in hapax.door(), below
    -- In place of a fingerprint or caller that an imported table had not kept.
    c_any CONSTANT bytea := decode(repeat('ff', 32), 'hex');
    c_forever CONSTANT bigint := 9223372036854775807; -- a retention
    c_longest CONSTANT bigint := 315360000000; -- ten years: any other time
BEGIN
    IF c_door AND 8 = ANY (p_kind) THEN
        RAISE EXCEPTION 'hapax.door: only operators resolve (they need hapax.run)'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    -- Set by a SET of this session, or by another client of a pooler.
    IF current_setting('hapax.again', true) <> '' THEN
        PERFORM set_config('hapax.again', '', true);
    END IF;
    -- The lean statement for CLAIMs of absent records.
    IF v_packs AND 1 = ANY (p_kind) THEN
        v_locked := ARRAY(
            SELECT g.i FROM generate_series(1, v_last) g(i)
            WHERE CASE WHEN p_kind[g.i] = 1 AND octet_length(p_id[g.i]) = 32
                    AND num_nulls(p_flags[g.i], p_token[g.i]) = 0
                    AND octet_length(p_fingerprint[g.i]) = 32 AND p_fingerprint[g.i] <> c_any
                    AND octet_length(p_caller[g.i]) = 32 AND p_caller[g.i] <> c_any
                    AND octet_length(p_scope[g.i]) < 256
                    AND octet_length(coalesce(p_what[g.i], '')) < 256
                    AND octet_length(coalesce(p_owner[g.i], '')) IN (0, 32)
                    AND least(p_lease_ms[g.i], p_retention_ms[g.i]) >= 0
                    AND greatest(p_lease_ms[g.i], nullif(p_retention_ms[g.i], c_forever))
                        <= c_longest
                    AND NOT EXISTS (
                        SELECT FROM hapax.operations o WHERE o.id = p_id[g.i] OFFSET 0)
                THEN pg_try_advisory_xact_lock(hapax.lock_of(p_id[g.i])) END);
        -- Read with the locks taken: above the fence of any record that was there and is gone.
        v_now := hapax.now_us();
        BEGIN
            INSERT INTO hapax.operations (created_us, updated_us, lease_until_us, expires_us,
                retention_ms, resolved_us, fence, attempt, spent, state, status, hold, stale, ran,
                reruns, body_kept, id, token, fingerprint, caller, scope, resolved_by,
                headers, body, owner, what)
            SELECT v_now, v_now, v_now + p_lease_ms[g.i] * 1000,
                CASE WHEN p_flags[g.i] & 3 <> 1 OR p_retention_ms[g.i] = 9223372036854775807 THEN 0
                    ELSE v_now + greatest(p_retention_ms[g.i], p_lease_ms[g.i]) * 1000 END,
                p_retention_ms[g.i], 0, v_now, 1, 0, 1, 0, p_flags[g.i] & 3 <> 1, false, false,
                p_flags[g.i] & 16 <> 0, false,
                p_id[g.i], hapax.mark_of(p_token[g.i]), p_fingerprint[g.i], p_caller[g.i],
                p_scope[g.i], '', '', '', coalesce(p_owner[g.i], ''), coalesce(p_what[g.i], '')
            FROM unnest(v_locked) g(i);
        EXCEPTION WHEN unique_violation THEN -- a record came before its lock was taken
            v_locked := '{}';
        END;
        IF cardinality(v_locked) > 0 THEN
            v_row.verdict := 1;
            v_row.now_us := v_now;
            v_row.body := array_send(v_locked);
            RETURN NEXT v_row;
        END IF;
        v_left := v_left - cardinality(v_locked);
        v_finished := v_locked;
    END IF;
    -- The lean statement for COMPLETEs by the record's token. The id stands in an array, so that
    -- only a lookup of each by the primary key can be planned. The sum keeps the index of open
    -- records out.
    IF v_packs AND 3 = ANY (p_kind) THEN
        v_locked := ARRAY(
            SELECT g.i FROM generate_series(1, v_last) g(i)
            WHERE CASE WHEN p_kind[g.i] = 3 AND octet_length(p_id[g.i]) = 32
                    AND num_nulls(p_flags[g.i], p_token[g.i]) = 0
                    AND coalesce(p_status[g.i], 0) BETWEEN 0 AND 999
                    AND coalesce(nullif(p_retention_ms[g.i], c_forever), 0) BETWEEN 0 AND c_longest
                    AND coalesce(p_lease_ms[g.i], 0) BETWEEN 0 AND c_longest
                THEN pg_try_advisory_xact_lock(hapax.lock_of(p_id[g.i])) END);
        v_now := hapax.now_us();
        WITH done AS (
            UPDATE hapax.operations o SET updated_us = v_now, lease_until_us = 0, state = 2,
                stale = false,
                retention_ms = coalesce(nullif(p_retention_ms[g.i], 0), o.retention_ms),
                expires_us = CASE coalesce(nullif(p_retention_ms[g.i], 0), o.retention_ms)
                    WHEN 9223372036854775807 THEN 0
                    ELSE v_now + (coalesce(nullif(p_retention_ms[g.i], 0), o.retention_ms)
                        + coalesce(p_lease_ms[g.i], 0)) * 1000 END,
                status = coalesce(p_status[g.i], 0), body_kept = p_flags[g.i] & 512 <> 0,
                headers = coalesce(p_headers[g.i], ''), body = coalesce(p_body[g.i], '')
            FROM unnest(v_locked) g(i)
            WHERE o.id = ANY (ARRAY[p_id[g.i]]) AND o.token = hapax.mark_of(p_token[g.i])
                AND o.state + 0 = 1 AND (o.expires_us = 0 OR v_now < o.expires_us)
                AND o.resolved_us = 0 AND o.xmax = '0'::xid
                -- A damaged record is left to the large statement.
                AND octet_length(o.fingerprint) = 32 AND octet_length(o.caller) = 32
                AND least(o.attempt, o.fence, o.created_us) > 0 AND octet_length(o.scope) < 256
                AND octet_length(o.owner) IN (0, 32) AND octet_length(o.what) < 256
            RETURNING g.i, int4send(g.i) || int8send(o.created_us) || int8send(o.fence)
                || int8send(o.retention_ms) || int8send((o.attempt::bigint << 32) | o.spent)
                || int4send(CASE WHEN o.hold THEN 1 ELSE 0 END | CASE WHEN o.ran THEN 2 ELSE 0 END
                    | CASE WHEN o.reruns THEN 4 ELSE 0 END
                    | CASE WHEN o.owner <> '' THEN 8 ELSE 0 END
                    | (octet_length(o.scope) << 8) | (octet_length(o.what) << 16))
                || o.fingerprint || o.caller || o.owner || o.scope || o.what AS packed
        )
        SELECT coalesce(array_agg(d.i), '{}'), string_agg(d.packed, '') INTO v_some, v_packed
            FROM done d;
        IF cardinality(v_some) > 0 THEN
            v_row.verdict := 7;
            v_row.now_us := v_now;
            v_row.body := v_packed;
            RETURN NEXT v_row;
        END IF;
        v_left := v_left - cardinality(v_some);
        v_finished := v_finished || v_some;
        IF cardinality(v_some) < cardinality(v_locked) THEN
            PERFORM hapax.go_round(p_id, NULL::integer[], false, v_round);
        END IF;
    END IF;
    -- The lean statement for CLAIMs of what is completed, be it just now by another op on its id.
    IF v_packs AND v_left > 0 AND 1 = ANY (p_kind) THEN
        v_now := hapax.now_us();
        FOR v_row IN
            SELECT g.i, 3, 0, 0, v_now, r.state, r.hold, r.stale, r.ran, r.reruns, r.attempt,
                r.spent, r.fence, r.fingerprint, r.caller, r.owner, r.scope, r.what, r.created_us,
                r.updated_us, r.lease_until_us, r.expires_us, r.retention_ms, r.resolved_us,
                r.resolved_by, r.replaced_state, r.replaced_status, 1, r.status, r.body_kept,
                r.headers, r.body
            FROM generate_series(1, v_last) g(i) CROSS JOIN LATERAL (
                SELECT o.* FROM hapax.operations o WHERE o.id = p_id[g.i] OFFSET 0) r
            WHERE p_kind[g.i] = 1 AND g.i <> ALL (v_finished)
                AND r.state = 2 AND (r.expires_us = 0 OR v_now < r.expires_us)
                AND r.fingerprint = p_fingerprint[g.i] AND r.caller = p_caller[g.i]
                AND NOT (r.reruns AND p_flags[g.i] & 16 <> 0)
                AND num_nulls(p_flags[g.i], p_token[g.i]) = 0
                AND octet_length(r.fingerprint) = 32 AND r.fingerprint <> c_any
                AND octet_length(r.caller) = 32 AND r.caller <> c_any
                AND octet_length(r.id) = 32
        LOOP
            RETURN NEXT v_row;
            v_left := v_left - 1;
            v_finished := v_finished || v_row.ord;
        END LOOP;
    END IF;
    -- NULL is neither equal nor unequal, so no comparison below may meet one. What the lean
    -- statements have answered they have checked themselves, for less than this loop takes.
    FOR v_at IN 1 .. CASE WHEN v_left > 0 THEN v_last ELSE 0 END LOOP
        IF p_kind[v_at] IS NULL OR p_id[v_at] IS NULL OR p_flags[v_at] IS NULL
            OR p_kind[v_at] <> 5 AND p_token[v_at] IS NULL THEN
            RAISE EXCEPTION 'hapax.run: op % has no kind, id, flags or token', v_at
                USING ERRCODE = 'null_value_not_allowed';
        END IF;
        IF p_kind[v_at] = 1
            AND coalesce(p_fingerprint[v_at] = c_any OR p_caller[v_at] = c_any, true) THEN
            RAISE EXCEPTION 'hapax.run: op % claims for no request, or for any', v_at
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        -- Such a record would end every LIST that comes to it. So would a time over ten years end
        -- every batch that reckons with it.
        IF octet_length(p_id[v_at]) <> 32 OR p_kind[v_at] = 1
            AND (octet_length(p_fingerprint[v_at]) <> 32 OR octet_length(p_caller[v_at]) <> 32) THEN
            RAISE EXCEPTION 'hapax.run: op % has an id, fingerprint or caller not of 32 bytes', v_at
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF p_status[v_at] NOT BETWEEN 0 AND 999
            OR p_kind[v_at] IN (1, 3, 4)
                AND nullif(p_retention_ms[v_at], c_forever) NOT BETWEEN 0 AND c_longest
            OR p_kind[v_at] IN (1, 2, 3) AND p_lease_ms[v_at] NOT BETWEEN 0 AND c_longest
            OR p_kind[v_at] = 1 AND (octet_length(p_scope[v_at]) > 255
                OR octet_length(p_what[v_at]) > 255
                OR octet_length(p_owner[v_at]) NOT IN (0, 32)) THEN
            RAISE EXCEPTION 'hapax.run: op % has a time below 0 or over ten years, a status over '
                '999, a scope or a text over 255 bytes, or an owner not of 32', v_at
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    IF v_left > 0 AND v_left < v_last THEN
        v_again := ARRAY(SELECT generate_series(1, v_last) EXCEPT SELECT unnest(v_finished));
    END IF;
    WHILE v_left > 0 LOOP
        v_round := v_round + 1;
        RETURN QUERY
        WITH clock AS MATERIALIZED (
            -- Read after the snapshot, since the first planning of this statement takes long.
            SELECT hapax.now_us() AS now
        ),
        judged AS MATERIALIZED (
            -- What the record becomes (n_...), by the code that the tables below gave. Named
            -- constants would be parameters of this statement, and so unknown to its planner.
            --
            --   code     the record ...                          verdict
            --   < 100    stays                                  the code itself
            --   101      is new, `started`                      CLAIMED
            --   102      is `started` again: taken over         CLAIMED
            --   103      is `started` again after a failure     CLAIMED
            --   104      is `started` again after completion    CLAIMED
            --   105      becomes `unknown`: it died under hold  UNKNOWN
            --   106      becomes `failed`: it died once too     FAILED
            --            often
            --   107      is renewed                             OK
            --   108      becomes `completed`                    OK
            --   109      becomes `failed`; n_outcome says       OK
            --            whether with the op's outcome
            --   110      becomes `unknown` by a FAIL            OK
            --   111      is resolved: `completed`               OK
            --   112      is resolved: `failed`                  OK
            --   113      is resolved: forgotten                 OK
            --   99       is another request's (hapax.door)      none, and error -8
            --   200      is judged again, with its lock         none yet
            --   201      is busy                                none, and error -4
            SELECT l.i, l.now, l.code, l.row_ctid, l.row_xmin,
                l.live AND NOT (l.other AND l.code IN (6, 8, 99)) AS live,
                l.code > 100 OR l.live AND NOT (l.other AND l.code IN (6, 8, 99)) AS shown,
                CASE WHEN l.code < 101 OR l.code IN (107, 113, 201)
                    THEN CASE WHEN l.live AND NOT (l.other AND l.code IN (8, 99))
                        THEN l.state ELSE 0 END
                    WHEN l.code <= 104 THEN 1
                    WHEN l.code IN (108, 111) THEN 2
                    WHEN l.code IN (105, 110) THEN 4
                    ELSE 3 END AS n_state,
                CASE WHEN l.code BETWEEN 101 AND 104
                    THEN p_flags[l.i] & 3 <> 1 OR l.code <> 101 AND l.hold
                    ELSE l.hold END AS n_hold,
                CASE WHEN l.code IN (102, 105, 106, 110) THEN true
                    WHEN l.code IN (101, 108, 111, 112) THEN false
                    WHEN l.code = 107 THEN l.stale AND p_flags[l.i] & 32 = 0
                    WHEN l.code = 109 THEN l.stale OR p_flags[l.i] & 2048 <> 0
                    ELSE l.stale END AS n_stale,
                CASE WHEN l.code BETWEEN 101 AND 104 THEN false
                    WHEN l.code IN (106, 112) THEN true
                    WHEN l.code IN (109, 110) THEN p_flags[l.i] & 64 <> 0
                    ELSE l.ran END AS n_ran,
                CASE WHEN l.code BETWEEN 101 AND 104
                    THEN p_flags[l.i] & 16 <> 0 AND (l.code = 101 OR l.reruns)
                    ELSE l.reruns END AS n_reruns,
                CASE WHEN l.code = 101 THEN 1
                    WHEN l.code IN (102, 103, 104) THEN l.attempt + 1
                    ELSE l.attempt END AS n_attempt,
                CASE WHEN l.code IN (101, 104, 112) THEN 0
                    WHEN l.code IN (102, 106) THEN l.spent + 1
                    WHEN l.code = 109 THEN l.spent + (p_flags[l.i] >> 6 & 1)
                    ELSE l.spent END AS n_spent,
                CASE WHEN l.code = 101 THEN l.now
                    WHEN l.code IN (102, 103, 104, 111, 112) THEN greatest(l.fence + 1, l.now)
                    ELSE l.fence END AS n_fence,
                CASE WHEN l.code = 101 THEN l.now ELSE l.created_us END AS n_created_us,
                CASE WHEN l.code BETWEEN 101 AND 112 THEN l.now
                    ELSE l.updated_us END AS n_updated_us,
                CASE WHEN l.code < 101 OR l.code = 113 THEN l.lease_until_us
                    WHEN l.code <= 104 THEN l.now + p_lease_ms[l.i] * 1000
                    WHEN l.code = 107 AND l.state = 1
                    THEN greatest(l.lease_until_us, l.now + p_lease_ms[l.i] * 1000)
                    ELSE 0 END AS n_lease_until_us,
                CASE WHEN l.code BETWEEN 101 AND 104 THEN p_retention_ms[l.i]
                    WHEN l.code = 108 THEN l.kept_ms
                    ELSE l.retention_ms END AS n_retention_ms,
                CASE WHEN l.code IN (111, 112) THEN l.now
                    WHEN l.code = 101 THEN 0
                    ELSE l.resolved_us END AS n_resolved_us,
                CASE WHEN l.code IN (111, 112) THEN coalesce(p_by[l.i], '')
                    WHEN l.code = 101 THEN ''
                    ELSE l.resolved_by END AS n_resolved_by,
                CASE WHEN l.code IN (111, 112) THEN l.state
                    WHEN l.code = 101 THEN 0
                    ELSE l.replaced_state END AS n_replaced_state,
                CASE WHEN l.code IN (111, 112) THEN l.status
                    WHEN l.code = 101 THEN 0
                    ELSE l.replaced_status END AS n_replaced_status,
                CASE WHEN l.code IN (108, 111) THEN 2
                    WHEN l.live AND (l.code IN (4, 9, 106) OR l.state = 2
                        AND (l.code IN (3, 7, 113) OR l.code = 8 AND NOT l.other)) THEN 1
                    ELSE 0 END AS outcome,
                -- Where nothing ran no answer would ever show the outcome.
                CASE WHEN l.code = 109 AND p_flags[l.i] & 64 = 0 THEN 0
                    WHEN l.code BETWEEN 108 AND 112 THEN 2
                    WHEN l.code BETWEEN 105 AND 107 THEN 1
                    ELSE 0 END AS n_outcome,
                CASE WHEN l.code < 101 OR l.code >= 113 THEN l.expires_us
                    WHEN l.code = 109 AND p_flags[l.i] & 64 = 0 AND l.spent = 0 AND NOT l.stale
                        AND l.resolved_us = 0 THEN l.now + least(l.kept_ms, 60000) * 1000
                    WHEN l.code IN (105, 110) OR l.code = 107 AND (l.hold OR l.state = 4)
                        OR l.code = 109 AND l.hold AND l.stale
                        OR l.code <= 104 AND (p_flags[l.i] & 3 <> 1 OR l.code <> 101 AND l.hold)
                        OR CASE WHEN l.code <= 104 THEN p_retention_ms[l.i] ELSE l.kept_ms END
                            = 9223372036854775807 THEN 0
                    WHEN l.code <= 104
                    THEN l.now + greatest(p_retention_ms[l.i], p_lease_ms[l.i]) * 1000
                    WHEN l.code = 107 THEN greatest(l.lease_until_us,
                        l.now + greatest(l.retention_ms, p_lease_ms[l.i]) * 1000)
                    WHEN l.code = 108
                    THEN l.now + (l.kept_ms + coalesce(p_lease_ms[l.i], 0)) * 1000
                    ELSE l.now + l.kept_ms * 1000 END AS n_expires_us,
                l.fingerprint, l.caller, l.owner, l.scope, l.what, l.status, l.body_kept, l.headers,
                l.body
            FROM (
                SELECT b.*,
                    CASE WHEN p_kind[b.i] IN (3, 4) AND p_retention_ms[b.i] > 0
                        THEN p_retention_ms[b.i] ELSE b.retention_ms END AS kept_ms,
                    CASE WHEN b.wants = 9 AND b.other THEN 99
                        WHEN b.wants < 101 THEN b.wants
                        WHEN CASE WHEN pg_try_advisory_xact_lock(hapax.lock_of(p_id[b.i]))
                            THEN b.row_xmax IS NULL OR b.row_xmax = '0'::xid OR p_wait
                                OR hapax.row_free(p_id[b.i])
                            ELSE false END THEN b.wants
                        WHEN p_wait THEN 200
                        WHEN p_kind[b.i] = 1 AND (p_wait IS NULL OR NOT
                            pg_try_advisory_xact_lock_shared(hapax.long_lock_of(p_id[b.i]))) THEN 2
                        ELSE 201 END AS code
                FROM (
                    -- The tables of docs/design.md, from top to bottom.
                    SELECT g.i, c.now,
                        CASE WHEN r.id IS NULL OR r.expires_us <> 0 AND c.now >= r.expires_us
                        THEN CASE p_kind[g.i]
                            WHEN 1 THEN 101 WHEN 5 THEN 10 WHEN 8 THEN 10 ELSE 8 END
                        ELSE CASE p_kind[g.i]
                            WHEN 1 THEN CASE
                                WHEN r.token = hapax.mark_of(p_token[g.i])
                                THEN CASE r.state WHEN 1 THEN 1 WHEN 2 THEN 3 ELSE 8 END
                                WHEN (r.fingerprint NOT IN (p_fingerprint[g.i], c_any)
                                        OR r.caller NOT IN (p_caller[g.i], c_any))
                                    AND NOT (r.state = 3 AND NOT r.ran AND r.spent = 0
                                        AND NOT r.stale AND r.resolved_us = 0) THEN 6
                                WHEN r.state = 1 THEN CASE
                                    WHEN c.now < r.lease_until_us THEN 2
                                    WHEN p_flags[g.i] & 3 = 3 THEN 102
                                    WHEN r.hold OR p_flags[g.i] & 3 = 2 THEN 105
                                    WHEN p_limit[g.i] > 0 AND r.spent + 1 >= p_limit[g.i] THEN 106
                                    ELSE 102 END
                                WHEN r.state = 3 THEN CASE
                                    WHEN r.stale AND p_flags[g.i] & 3 <> 3
                                        AND (r.hold OR p_flags[g.i] & 3 = 2) THEN 105
                                    WHEN p_limit[g.i] > 0 AND r.spent >= p_limit[g.i]
                                        AND NOT (r.hold AND r.stale) THEN 4
                                    ELSE 103 END
                                WHEN r.state = 4
                                THEN CASE WHEN p_flags[g.i] & 3 = 3 THEN 102 ELSE 5 END
                                WHEN r.reruns AND p_flags[g.i] & 16 <> 0 THEN 104
                                ELSE 3 END
                            WHEN 5 THEN 9
                            WHEN 8 THEN CASE
                                WHEN r.token = hapax.mark_of(p_token[g.i]) THEN 7
                                WHEN p_limit[g.i] <> 0 AND p_limit[g.i] <> r.attempt
                                    OR p_lease_ms[g.i] > 0 AND p_lease_ms[g.i] <> r.updated_us
                                    THEN 8
                                WHEN p_flags[g.i] & 256 = 0 AND r.state = 1
                                    AND c.now < r.lease_until_us THEN 2
                                WHEN p_flags[g.i] & 256 = 0 AND r.state = 2 THEN 3
                                ELSE 110 + (p_flags[g.i] >> 2 & 3) END
                            ELSE CASE
                                WHEN r.token <> hapax.mark_of(p_token[g.i]) THEN 8
                                WHEN p_kind[g.i] = 3
                                THEN CASE r.state WHEN 2 THEN 7 WHEN 3 THEN 8 ELSE 108 END
                                WHEN p_kind[g.i] = 2 THEN CASE
                                    WHEN r.state IN (2, 3) OR p_limit[g.i] <> 0
                                        AND p_limit[g.i] <> r.attempt THEN 8
                                    ELSE 107 END
                                WHEN r.state = 1 THEN CASE
                                    WHEN p_flags[g.i] & 128 = 0 THEN 109
                                    WHEN p_flags[g.i] & 2048 <> 0 AND NOT r.hold THEN 109
                                    ELSE 110 END
                                WHEN r.state = 2 THEN 8
                                WHEN r.state = 4 THEN 7
                                WHEN r.ran = (p_flags[g.i] & 64 <> 0)
                                    AND CASE WHEN p_flags[g.i] & 2048 <> 0 AND NOT r.hold
                                        THEN r.stale ELSE p_flags[g.i] & 128 = 0 END
                                    AND (NOT r.ran OR r.status = coalesce(p_status[g.i], 0)
                                        AND r.body_kept = (p_flags[g.i] & 512 <> 0)
                                        AND r.headers = coalesce(p_headers[g.i], '')
                                        AND r.body = coalesce(p_body[g.i], '')) THEN 7
                                ELSE 8 END
                            END
                        END AS wants,
                        r.id IS NOT NULL AND (r.expires_us = 0 OR c.now < r.expires_us) AS live,
                        c_door AND NOT coalesce(r.fingerprint = p_fingerprint[g.i]
                            AND r.caller = p_caller[g.i], false) AS other,
                        r.row_ctid, r.row_xmin, r.row_xmax,
                        r.state, r.hold, r.stale, r.ran, r.reruns, r.attempt, r.spent, r.fence,
                        r.fingerprint, r.caller, r.owner, r.scope, r.what, r.created_us,
                        r.updated_us, r.lease_until_us, r.expires_us, r.retention_ms,
                        r.resolved_us, r.resolved_by, r.replaced_state, r.replaced_status,
                        r.status, r.body_kept, r.headers, r.body
                    FROM clock c CROSS JOIN generate_series(1, v_last) g(i)
                    LEFT JOIN LATERAL (
                        SELECT o.*, o.ctid AS row_ctid, o.xmin AS row_xmin, o.xmax AS row_xmax
                        FROM hapax.operations o WHERE o.id = p_id[g.i] OFFSET 0) r ON true
                    WHERE v_again IS NULL OR g.i = ANY (v_again)
                    OFFSET 0) b
                OFFSET 0) l
        ),
        inserted AS (
            INSERT INTO hapax.operations (created_us, updated_us, lease_until_us, expires_us,
                retention_ms, resolved_us, fence, attempt, spent, state, status, hold, stale, ran,
                reruns, body_kept, id, token, fingerprint, caller, scope, resolved_by,
                headers, body, owner, what)
            SELECT j.now, j.now, j.n_lease_until_us, j.n_expires_us, j.n_retention_ms, 0, j.now,
                1, 0, 1, 0, j.n_hold, false, false, j.n_reruns, false,
                p_id[j.i], hapax.mark_of(p_token[j.i]), p_fingerprint[j.i], p_caller[j.i],
                p_scope[j.i], '', '', '', coalesce(p_owner[j.i], ''), coalesce(p_what[j.i], '')
            FROM judged j WHERE j.code = 101 AND j.row_ctid IS NULL
            ON CONFLICT (id) DO NOTHING
            RETURNING id, token
        ),
        updated AS (
            -- A forgotten record stays as one that expired long ago, for hapax.purge().
            UPDATE hapax.operations o SET created_us = j.n_created_us, updated_us = j.now,
                lease_until_us = j.n_lease_until_us,
                expires_us = CASE WHEN j.code = 113 THEN 1 ELSE j.n_expires_us END,
                retention_ms = j.n_retention_ms, resolved_us = j.n_resolved_us, fence = j.n_fence,
                attempt = j.n_attempt, spent = j.n_spent,
                state = CASE WHEN j.code = 113 THEN 2 ELSE j.n_state END,
                hold = j.n_hold, stale = j.n_stale, ran = j.n_ran, reruns = j.n_reruns,
                resolved_by = j.n_resolved_by, replaced_state = j.n_replaced_state,
                replaced_status = j.n_replaced_status,
                token = CASE WHEN j.code <= 104 OR j.code >= 111 THEN hapax.mark_of(p_token[j.i])
                    ELSE o.token END,
                fingerprint = CASE WHEN j.code <= 104 THEN p_fingerprint[j.i]
                    ELSE o.fingerprint END,
                caller = CASE WHEN j.code <= 104 THEN p_caller[j.i] ELSE o.caller END,
                scope = CASE WHEN j.code = 101 THEN p_scope[j.i] ELSE o.scope END,
                owner = CASE WHEN j.code = 101 THEN coalesce(p_owner[j.i], '') ELSE o.owner END,
                what = CASE WHEN j.code <= 104 THEN coalesce(p_what[j.i], '') ELSE o.what END,
                status = CASE j.n_outcome WHEN 2 THEN coalesce(p_status[j.i], 0)
                    WHEN 1 THEN o.status ELSE 0 END,
                body_kept = CASE j.n_outcome WHEN 2 THEN p_flags[j.i] & 512 <> 0
                    WHEN 1 THEN o.body_kept ELSE false END,
                headers = CASE j.n_outcome WHEN 2 THEN coalesce(p_headers[j.i], '')
                    WHEN 1 THEN o.headers ELSE '' END,
                body = CASE j.n_outcome WHEN 2 THEN coalesce(p_body[j.i], '')
                    WHEN 1 THEN o.body ELSE '' END
            FROM judged j WHERE o.ctid = j.row_ctid AND o.xmin = j.row_xmin
                AND j.code BETWEEN 101 AND 113
            RETURNING j.i
        )
        SELECT j.i,
            CASE WHEN j.code < 99 THEN j.code
                WHEN j.code = 99 THEN 0
                WHEN j.code <= 104 THEN 1
                WHEN j.code = 105 THEN 5
                WHEN j.code = 106 THEN 4
                WHEN j.code <= 113 THEN 7
                ELSE 0 END::smallint,
            CASE j.code WHEN 201 THEN -4 WHEN 99 THEN -8 ELSE 0 END::smallint,
            CASE WHEN j.code <> 6 THEN 0
                WHEN j.caller NOT IN (p_caller[j.i], c_any) THEN 2
                ELSE 1 END::smallint,
            j.now, j.n_state::smallint,
            CASE WHEN j.shown THEN j.n_hold END, CASE WHEN j.shown THEN j.n_stale END,
            CASE WHEN j.shown THEN j.n_ran END, CASE WHEN j.shown THEN j.n_reruns END,
            CASE WHEN j.shown THEN j.n_attempt END, CASE WHEN j.shown THEN j.n_spent END,
            CASE WHEN j.shown THEN j.n_fence END,
            CASE WHEN j.live AND NOT j.code BETWEEN 101 AND 104 THEN j.fingerprint END,
            CASE WHEN j.live AND NOT j.code BETWEEN 101 AND 104 THEN j.caller END,
            CASE WHEN j.live THEN j.owner END,
            CASE WHEN j.live THEN j.scope END,
            CASE WHEN j.live AND NOT j.code BETWEEN 101 AND 104 THEN j.what END,
            CASE WHEN j.shown THEN j.n_created_us END, CASE WHEN j.shown THEN j.n_updated_us END,
            CASE WHEN j.shown THEN j.n_lease_until_us END,
            CASE WHEN j.shown THEN j.n_expires_us END, CASE WHEN j.shown THEN j.n_retention_ms END,
            CASE WHEN j.shown THEN j.n_resolved_us END, CASE WHEN j.shown THEN j.n_resolved_by END,
            CASE WHEN j.shown THEN j.n_replaced_state END::smallint,
            CASE WHEN j.shown THEN j.n_replaced_status END::smallint,
            j.outcome::smallint,
            CASE WHEN j.outcome = 1 THEN j.status END::integer,
                CASE WHEN j.outcome = 1 THEN j.body_kept END,
            CASE WHEN j.outcome = 1 THEN j.headers END, CASE WHEN j.outcome = 1 THEN j.body END
        FROM judged j
        WHERE CASE
            WHEN j.code = 200 THEN false
            WHEN j.code < 101 OR j.code = 201 THEN true
            WHEN (SELECT (SELECT count(*) FROM judged WHERE code BETWEEN 101 AND 113)
                = (SELECT count(*) FROM inserted) + (SELECT count(*) FROM updated)) THEN true
            ELSE EXISTS (SELECT FROM inserted w
                    WHERE w.id = p_id[j.i] AND w.token = hapax.mark_of(p_token[j.i]))
                OR EXISTS (SELECT FROM updated w WHERE w.i = j.i)
            END
            OR set_config('hapax.again', concat_ws(',',
                nullif(current_setting('hapax.again', true), ''), j.i), true) IS NULL;
        GET DIAGNOSTICS v_done = ROW_COUNT;
        v_left := v_left - v_done;
        EXIT WHEN v_left = 0;
        v_again := string_to_array(current_setting('hapax.again', true), ',')::integer[];
        PERFORM set_config('hapax.again', '', true);
        PERFORM hapax.go_round(p_id, v_again, p_wait, v_round);
    END LOOP;
    -- A forced RESOLVE can change a completed record, of which the hybrid store keeps copies. In
    -- the same transaction that store's epoch rises (docs/design.md, "Hybrid"): a record that
    -- exists where copies exist. Two such transactions wait for each other here, at the end.
    IF 8 = ANY (p_kind) THEN
        UPDATE hapax.operations o SET fence = greatest(o.fence + 1, hapax.now_us())
        WHERE o.id = decode(
                'a6fde3755f3a4f31973538c012786b2b7075441b73c1d0f2abee4484e3c188d3', 'hex')
            AND EXISTS (SELECT FROM unnest(p_kind, p_flags) a(kind, flags)
                WHERE a.kind = 8 AND a.flags & 256 <> 0);
    END IF;
END
$$;
COMMENT ON FUNCTION hapax.run
    IS 'Judges a batch of ops, as every store does; for operators'' commands';

-- hapax.door() is run() with the rights of a door. It does not RESOLVE, and shows a record only to
-- an op that names its fingerprint and caller: to others a READ is refused (error -8), LOST shows
-- no record, and MISMATCH only the state. What is not shown is NULL. p_fingerprint and p_caller are
-- read for each kind of op. It is made of run()'s own text, so that the two judge alike. Rejected:
-- one function that asks who calls it. In a SECURITY DEFINER function only session_user says that,
-- which knows no SET ROLE.
DO $$
BEGIN
    EXECUTE replace(replace(pg_get_functiondef('hapax.run'::regproc),
        'FUNCTION hapax.run(', 'FUNCTION hapax.door('),
        'c_door CONSTANT boolean := false', 'c_door CONSTANT boolean := true');
END
$$;
COMMENT ON FUNCTION hapax.door
    IS 'Judges a batch of ops, as every store does; for doors, which only run operations';
