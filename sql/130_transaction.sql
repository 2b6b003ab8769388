-- SPDX-License-Identifier: Apache-2.0
--
-- In the caller's own transaction: hapax.begin(), then the business writes, then hapax.complete().
-- COMMIT makes the record and the writes true together. After a rollback nothing has happened.
--
--   BEGIN;
--   -- claimed: go on; completed: answer with that outcome
--   SELECT * FROM hapax.begin('shop', 'order-17', fingerprint => hapax.digest(...));
--   INSERT INTO orders ...;
--   SELECT * FROM hapax.complete(token, 201, hapax.headers('Location', '/orders/17'), body);
--   COMMIT;
--
-- A call that claims or writes keeps its id's lock to the end of the transaction. So a second
-- caller of the key waits there and then gets the result (with wait => false: in_flight at once).
-- That is in READ COMMITTED, where each statement sees what has been committed. In REPEATABLE READ
-- and SERIALIZABLE the second caller gets 40001, to be repeated as any other. A transaction that
-- begins several keys begins them in one order everywhere, as with rows.
--
-- complete(), fail() and renew() raise HX001 where the claim is lost: a zombie cannot commit its
-- work. With "raise" => false they return lost instead.
--
-- The functions run with their owner's rights: a role that could read the table would see every
-- outcome, and a role that could write it could undo what was promised. Give a program what it
-- needs and no more: hapax init --role caller=NAME (src/store/postgres/rights.c).

-- The id and the token within the token that a handler was given.
CREATE OR REPLACE FUNCTION hapax.token_parts(p_token text, OUT id bytea, OUT token bytea)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_bytes pg_catalog.bytea;
BEGIN
    IF p_token IS NULL OR p_token !~ '^[A-Za-z0-9_-]{64}$' THEN
        RAISE EXCEPTION 'hapax: the token is not one (64 characters of base64url)'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_bytes := decode(translate(p_token, '-_', '+/'), 'base64');
    id := substr(v_bytes, 1, 32);
    token := substr(v_bytes, 33, 16);
END
$$;

CREATE OR REPLACE FUNCTION hapax.ms_of(p_what text, p_span interval, p_min_ms bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_ms CONSTANT double precision := date_part('epoch', p_span) * 1000;
BEGIN
    IF v_ms IS NULL OR v_ms < p_min_ms OR v_ms > 315360000000 THEN
        RAISE EXCEPTION 'hapax: % is not between % ms and ten years', p_what, p_min_ms
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN v_ms::bigint;
END
$$;

-- Refuses headers: names and line ends by the rules of hapax resolve --header, values by the rules
-- of all that replay them (ngx_http_hapax_is_line(), src/door/lambda/lines.c). Those leave out a
-- line that is not valid, and the caller who stored it would not be told; an LF in one value would
-- end its line. Values may be secrets, so an error shows none. The text of escape format differs
-- from the bytes only in NUL, backslash and bytes that are not ASCII.
CREATE OR REPLACE FUNCTION hapax.check_headers(p_headers bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    c_name CONSTANT pg_catalog.text := '[!#$%&''*+.^_`|~0-9A-Za-z-]+';
    c_good CONSTANT pg_catalog.text := '^(?:' || c_name || E':[^\r\n]*\r\n)*';
    v_text pg_catalog.text;
    v_bad pg_catalog.text;
    v_line integer;
    v_name pg_catalog.text;
BEGIN
    IF p_headers IS NULL OR p_headers = '' THEN
        RETURN;
    END IF;
    v_text := encode(p_headers, 'escape');
    IF octet_length(p_headers) > 65536 THEN
        RAISE EXCEPTION 'hapax: headers of % bytes are over 65536', octet_length(p_headers)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF position(decode('00', 'hex') IN p_headers) > 0 THEN
        RAISE EXCEPTION 'hapax: the headers hold a NUL' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_text ~ (c_good || '$') THEN
        RETURN;
    END IF;
    v_bad := regexp_replace(v_text, c_good, '');
    v_line := 1 + length(v_text) - length(replace(v_text, E'\n', ''))
        - length(v_bad) + length(replace(v_bad, E'\n', ''));
    v_name := substring(v_bad FROM '^(' || c_name || '):');
    v_bad := split_part(v_bad, E'\n', 1)
        || CASE WHEN position(E'\n' IN v_bad) > 0 THEN E'\n' ELSE '' END;
    IF v_name IS NULL THEN
        RAISE EXCEPTION 'hapax: line % of the headers has no name, or what no name may hold, '
            'before a colon', v_line
            USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Each line is Name: value and CR LF; hapax.headers() makes them.';
    END IF;
    RAISE EXCEPTION 'hapax: line % of the headers, "%", %', v_line, v_name,
        CASE WHEN right(v_bad, 2) = E'\r\n' THEN 'holds a CR' ELSE 'does not end with CR LF' END
        USING ERRCODE = 'invalid_parameter_value',
        HINT = 'Each line is Name: value and CR LF; hapax.headers() makes them.';
END
$$;

CREATE OR REPLACE FUNCTION hapax.check_outcome(p_status integer, p_headers bytea, p_body bytea)
    RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF p_status IS NULL OR p_status < 0 OR p_status > 999 THEN
        RAISE EXCEPTION 'hapax: status % is not between 0 and 999', p_status
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM hapax.check_headers(p_headers);
    IF octet_length(p_body) > 16777216 THEN
        RAISE EXCEPTION 'hapax: a body of % bytes is over 16777216', octet_length(p_body)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- A store is for one secret. The first user leaves a check value under a fixed id
-- (src/store/bind.c); all others are compared with that. What does not hang on the secret is
-- computed when an expression is planned.
CREATE OR REPLACE FUNCTION hapax.bound_id() RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT hapax.digest(VARIADIC ARRAY['hapax', 'secret']::bytea[]) $$;

CREATE OR REPLACE FUNCTION hapax.bound_check(p_secret bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN $1 IS NULL
        THEN hapax.id_of('hapax'::text, 'secret'::text, NULL::text, NULL::bytea, NULL::text)
        ELSE hapax.id_of('hapax'::text, 'secret'::text, NULL::text, $1, NULL::text) END
$$;

CREATE OR REPLACE FUNCTION hapax.bind(p_secret bytea) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    c_zero CONSTANT pg_catalog.bytea := decode(repeat('00', 32), 'hex');
    v_id CONSTANT pg_catalog.bytea := hapax.bound_id();
    v_check CONSTANT pg_catalog.bytea := hapax.bound_check(p_secret);
    v_token pg_catalog.bytea;
    v_found pg_catalog.bytea;
    v_verdict integer;
BEGIN
    SELECT o.fingerprint INTO v_found FROM hapax.operations o WHERE o.id = v_id;
    IF NOT FOUND THEN
        v_token := uuid_send(gen_random_uuid());
        SELECT r.verdict INTO v_verdict FROM hapax.run('{1}'::smallint[], ARRAY[v_id],
            ARRAY[v_token], ARRAY['hapax'::bytea], ARRAY[v_check], ARRAY[c_zero],
            '{10000}'::bigint[], '{9223372036854775807}'::bigint[], '{1}'::integer[],
            '{0}'::bigint[], NULL::integer[], NULL::bytea[], NULL::bytea[], NULL::bytea[],
            NULL::bytea[], NULL::bytea[], NULL::boolean) r;
        IF v_verdict = 1 THEN
            PERFORM FROM hapax.run('{3}'::smallint[], ARRAY[v_id], ARRAY[v_token], NULL::bytea[],
                NULL::bytea[], NULL::bytea[], NULL::bigint[], NULL::bigint[], '{0}'::integer[],
                NULL::bigint[], '{0}'::integer[], NULL::bytea[], NULL::bytea[], NULL::bytea[],
                NULL::bytea[], NULL::bytea[], NULL::boolean);
        END IF;
        v_found := CASE v_verdict WHEN 6 THEN NULL ELSE v_check END;
    END IF;
    IF v_found IS DISTINCT FROM v_check THEN
        RAISE EXCEPTION 'hapax: the store was first used with %',
            CASE WHEN p_secret IS NULL THEN 'a secret, and none is given (hapax.secret)'
                ELSE 'another secret, or with none' END
            USING ERRCODE = 'HX002';
    END IF;
END
$$;

-- Refuses an outcome that a program has sealed (src/store/seal.h): its headers begin with a zero
-- byte, which no others do. Nothing here has the key, and nothing may run.
CREATE OR REPLACE FUNCTION hapax.check_sealed(p_headers bytea) RETURNS void
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF octet_length(p_headers) > 0 AND get_byte(p_headers, 0) = 0 THEN
        RAISE EXCEPTION 'hapax: the outcome is sealed, and SQL has no key' USING ERRCODE = 'HX004',
            HINT = 'Only a program with the keys file can show it: docs/encryption.md.';
    END IF;
END
$$;

-- hapax.begin(). kept: fingerprint and caller are as a record has them, under the secret already.
-- Most operations are new or completed, and these are judged here as hapax.run()'s tables judge
-- them: its statement, made for batches of all kinds, takes long to prepare for one op. Records are
-- found by the primary key as there, for the callers of this function pin the plans.
CREATE OR REPLACE FUNCTION hapax.claim(
    scope text, key text, fingerprint bytea, caller bytea, lease interval, retention interval,
    on_expired text, attempts_max integer, step text, wait boolean, owner text, what text,
    kept boolean,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT body_kept boolean,
    OUT attempt integer, OUT fence bigint, OUT stale boolean, OUT differs text, OUT token text,
    OUT lease_left interval)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
    v_secret CONSTANT pg_catalog.bytea := hapax.secret();
    v_id CONSTANT pg_catalog.bytea := hapax.id_of(scope, key, step, v_secret, owner);
    v_token CONSTANT pg_catalog.bytea := uuid_send(gen_random_uuid());
    v_expired CONSTANT integer := array_position(ARRAY['rerun', 'hold', 'reconcile'], on_expired);
    v_lease_ms CONSTANT bigint := hapax.ms_of('lease'::text, lease, 1::bigint);
    v_retention_ms CONSTANT bigint := CASE WHEN retention IS NULL THEN 9223372036854775807
        ELSE hapax.ms_of('retention'::text, retention, 1::bigint) END;
    v_now bigint;
    v_bound pg_catalog.record;
    v_row pg_catalog.record;
    r pg_catalog.record;
BEGIN
    IF step LIKE '.%' THEN
        RAISE EXCEPTION 'hapax: the step "%" begins with a point', step
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_expired IS NULL THEN
        RAISE EXCEPTION 'hapax: on_expired is not rerun, hold or reconcile'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF attempts_max IS NULL OR attempts_max < 0 THEN
        RAISE EXCEPTION 'hapax: attempts_max is below 0' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(fingerprint) IS DISTINCT FROM 32
        OR octet_length(caller) IS DISTINCT FROM 32 THEN
        RAISE EXCEPTION 'hapax: fingerprint and caller are digests of 32 bytes (hapax.digest)'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT kept AND v_secret IS NOT NULL THEN
        fingerprint := hapax.under('fingerprint'::text, fingerprint, v_secret);
        caller := hapax.under('caller'::text, caller, v_secret);
    END IF;
    IF decode(repeat('ff', 32), 'hex') IN (fingerprint, caller) THEN
        RAISE EXCEPTION 'hapax: only an imported record is of any request or caller'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT o.fingerprint INTO v_bound FROM hapax.operations o WHERE o.id = hapax.bound_id();
    IF v_bound.fingerprint IS DISTINCT FROM hapax.bound_check(v_secret) THEN
        PERFORM hapax.bind(v_secret);
    END IF;
    SELECT o.state, o.fingerprint, o.caller, o.updated_us, o.retention_ms, o.expires_us, o.attempt,
        o.fence, o.stale, o.status, o.headers, o.body, o.body_kept
        INTO v_row FROM hapax.operations o WHERE o.id = v_id;
    IF NOT FOUND THEN
        IF pg_try_advisory_xact_lock(hapax.lock_of(v_id)) THEN
            v_now := hapax.now_us();
            INSERT INTO hapax.operations (created_us, updated_us, lease_until_us, expires_us,
                retention_ms, resolved_us, fence, attempt, spent, state, status, hold, stale, ran,
                reruns, body_kept, id, token, fingerprint, caller, scope, resolved_by,
                headers, body, owner, what)
            VALUES (v_now, v_now, v_now + v_lease_ms * 1000,
                CASE WHEN v_expired <> 1 OR retention IS NULL THEN 0
                    ELSE v_now + greatest(v_retention_ms, v_lease_ms) * 1000 END,
                v_retention_ms, 0, v_now, 1, 0, 1, 0, v_expired <> 1, false, false, false, false,
                v_id, hapax.mark_of(v_token), fingerprint, caller, convert_to(scope, 'UTF8'), '',
                '', '', hapax.owner_of(owner, v_secret), hapax.what_of(what))
            ON CONFLICT (id) DO NOTHING;
            IF FOUND THEN
                verdict := 'claimed';
                attempt := 1;
                fence := v_now;
                stale := false;
                lease_left := v_lease_ms * interval '1 millisecond';
            END IF;
        END IF;
    ELSIF v_row.state = 2 AND v_row.fingerprint = fingerprint AND v_row.caller = caller
        AND (v_row.expires_us = 0 OR hapax.now_us() < v_row.expires_us) THEN
        attempt := v_row.attempt;
        fence := v_row.fence;
        stale := v_row.stale;
        IF hapax.is_tombstone(v_row.state, v_row.updated_us, v_row.retention_ms, v_row.expires_us,
            hapax.now_us()) THEN
            verdict := 'expired';
            RETURN;
        END IF;
        verdict := 'completed';
        status := v_row.status;
        headers := v_row.headers;
        body := v_row.body;
        body_kept := v_row.body_kept;
        IF octet_length(headers) > 0 AND get_byte(headers, 0) = 0 THEN
            PERFORM hapax.check_sealed(headers);
        END IF;
        RETURN;
    END IF;
    IF verdict IS NULL THEN
        SELECT * INTO STRICT r FROM hapax.run('{1}'::smallint[], ARRAY[v_id], ARRAY[v_token],
            ARRAY[convert_to(scope, 'UTF8')], ARRAY[fingerprint], ARRAY[caller],
            ARRAY[v_lease_ms], ARRAY[v_retention_ms], ARRAY[v_expired], ARRAY[attempts_max::bigint],
            NULL::integer[], NULL::bytea[], NULL::bytea[], NULL::bytea[],
            ARRAY[hapax.owner_of(owner, v_secret)], ARRAY[hapax.what_of(what)],
            CASE WHEN wait IS NOT FALSE THEN true END);
        verdict := (ARRAY['claimed', 'in_flight', 'completed', 'failed', 'unknown', 'mismatch'])
            [r.verdict];
        IF r.state > 0 THEN
            attempt := r.attempt;
            fence := r.fence;
            stale := r.stale;
            IF hapax.is_tombstone(r.state, r.updated_us, r.retention_ms, r.expires_us, r.now_us)
                AND verdict = 'completed' THEN
                verdict := 'expired';
            ELSIF r.outcome = 1 THEN
                PERFORM hapax.check_sealed(r.headers);
                status := r.status;
                headers := r.headers;
                body := r.body;
                body_kept := r.body_kept;
            END IF;
            IF r.state = 1 THEN
                lease_left := greatest(r.lease_until_us - r.now_us, 0) * interval '1 microsecond';
            END IF;
        END IF;
        differs := (ARRAY['fingerprint', 'caller'])[r.differs];
    END IF;
    IF verdict = 'claimed' THEN
        token := translate(encode(v_id || v_token, 'base64'), E'+/\n', '-_');
        IF NOT pg_try_advisory_xact_lock(hapax.long_lock_of(v_id)) THEN
            PERFORM pg_advisory_xact_lock(hapax.long_lock_of(v_id));
        END IF;
    END IF;
END
$$;

-- As it was before it took key_min.
DROP FUNCTION IF EXISTS hapax.begin(text, text, bytea, bytea, interval, interval, text, integer,
    text, boolean, text, text);

CREATE OR REPLACE FUNCTION hapax.begin(
    scope text, key text,
    fingerprint bytea DEFAULT pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'),
    caller bytea DEFAULT pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'),
    lease interval DEFAULT '30s', retention interval DEFAULT '24h', on_expired text DEFAULT 'rerun',
    attempts_max integer DEFAULT 0, step text DEFAULT NULL, wait boolean DEFAULT true,
    owner text DEFAULT NULL, what text DEFAULT NULL, key_min integer DEFAULT 0,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT body_kept boolean,
    OUT attempt integer, OUT fence bigint, OUT stale boolean, OUT differs text, OUT token text,
    OUT lease_left interval)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    r CONSTANT record := hapax.claim(scope, hapax.check_key(key, key_min), fingerprint, caller,
        lease, retention, on_expired, attempts_max, step, wait, owner, what, false);
BEGIN
    verdict := r.verdict;
    status := r.status;
    headers := r.headers;
    body := r.body;
    body_kept := r.body_kept;
    attempt := r.attempt;
    fence := r.fence;
    stale := r.stale;
    differs := r.differs;
    token := r.token;
    lease_left := r.lease_left;
END
$$;

-- A RENEW, COMPLETE or FAIL by token. Where the claim is lost there is no outcome: a made-up token
-- proves nothing about fingerprint and caller. hapax.begin() compares them.
CREATE OR REPLACE FUNCTION hapax.by_token(p_kind smallint, p_token text, p_lease_ms bigint,
    p_flags integer, p_status integer, p_headers bytea, p_body bytea, p_raise boolean,
    OUT verdict text, OUT state text, OUT status integer, OUT headers bytea, OUT body bytea,
    OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
    t pg_catalog.record;
    r pg_catalog.record;
    v_row pg_catalog.record;
    v_now bigint;
BEGIN
    t := hapax.token_parts(p_token);
    IF p_status IS NULL OR p_status NOT BETWEEN 0 AND 999 OR p_headers <> ''
        OR octet_length(p_body) > 16777216 THEN
        PERFORM hapax.check_outcome(p_status, p_headers, p_body);
    END IF;
    -- The completion of a claim that stands is judged here, as a new operation in hapax.claim().
    IF p_kind = 3 THEN
        SELECT o.ctid AS row_ctid, o.xmin AS row_xmin, o.token, o.state, o.expires_us, o.attempt,
            o.fence INTO v_row FROM hapax.operations o WHERE o.id = t.id;
        v_now := hapax.now_us();
        IF FOUND AND v_row.state = 1 AND v_row.token = hapax.mark_of(t.token)
            AND (v_row.expires_us = 0 OR v_now < v_row.expires_us)
            AND pg_try_advisory_xact_lock(hapax.lock_of(t.id)) THEN
            UPDATE hapax.operations o SET updated_us = v_now, lease_until_us = 0, state = 2,
                stale = false,
                expires_us = CASE WHEN o.retention_ms = 9223372036854775807 THEN 0
                    ELSE v_now + o.retention_ms * 1000 END,
                status = p_status, body_kept = p_flags & 512 <> 0,
                headers = coalesce(p_headers, ''), body = coalesce(p_body, '')
            WHERE o.ctid = v_row.row_ctid AND o.xmin = v_row.row_xmin;
            IF FOUND THEN
                IF NOT pg_try_advisory_xact_lock(hapax.long_lock_of(t.id)) THEN
                    PERFORM pg_advisory_xact_lock(hapax.long_lock_of(t.id));
                END IF;
                verdict := 'ok';
                state := 'completed';
                status := p_status;
                headers := coalesce(p_headers, '');
                body := coalesce(p_body, '');
                body_kept := p_flags & 512 <> 0;
                attempt := v_row.attempt;
                fence := v_row.fence;
                RETURN;
            END IF;
        END IF;
    END IF;
    SELECT * INTO STRICT r FROM hapax.run(ARRAY[p_kind], ARRAY[t.id], ARRAY[t.token],
        NULL::bytea[], NULL::bytea[], NULL::bytea[], ARRAY[p_lease_ms], NULL::bigint[],
        ARRAY[p_flags], '{0}'::bigint[], ARRAY[p_status], ARRAY[p_headers], ARRAY[p_body],
        NULL::bytea[], NULL::bytea[], NULL::bytea[], true);
    state := (ARRAY['absent', 'started', 'completed', 'failed', 'unknown'])[r.state + 1];
    IF r.verdict <> 7 AND coalesce(p_raise, true) THEN
        RAISE EXCEPTION 'hapax: the claim is lost: the operation is %', state
            USING ERRCODE = 'HX001', HINT = 'Another attempt has it. Roll back; '
                'nothing of this transaction may be committed.';
    END IF;
    verdict := CASE r.verdict WHEN 7 THEN 'ok' ELSE 'lost' END;
    IF r.state > 0 THEN
        attempt := r.attempt;
        fence := r.fence;
    END IF;
    IF r.outcome = 1 AND verdict = 'ok' THEN
        PERFORM hapax.check_sealed(r.headers);
        status := r.status;
        headers := r.headers;
        body := r.body;
        body_kept := r.body_kept;
    ELSIF r.outcome = 2 THEN
        status := p_status;
        headers := coalesce(p_headers, '');
        body := coalesce(p_body, '');
        body_kept := p_flags & 512 <> 0;
    END IF;
    IF verdict = 'ok' THEN
        PERFORM pg_advisory_xact_lock(hapax.long_lock_of(t.id));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION hapax.complete(token text, OUT verdict text, OUT state text,
    INOUT status integer DEFAULT 0, INOUT headers bytea DEFAULT '', INOUT body bytea DEFAULT '',
    "raise" boolean DEFAULT true, OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
BEGIN
    SELECT * INTO verdict, state, status, headers, body, body_kept, attempt, fence
    FROM hapax.by_token(3::smallint, token, NULL::bigint,
        CASE WHEN body IS NULL THEN 0 ELSE 512 END, status, headers, body, "raise");
END
$$;
COMMENT ON FUNCTION hapax.complete(text, integer, bytea, bytea, boolean)
    IS 'Completes the operation; a body of NULL is not kept. What is stored already stands, '
        'and is returned. Headers are lines of Name: value and CR LF, or 22023: '
        'hapax.headers() makes them';

CREATE OR REPLACE FUNCTION hapax.fail(token text, OUT verdict text, OUT state text,
    ran boolean DEFAULT true, as_unknown boolean DEFAULT false, INOUT status integer DEFAULT 0,
    INOUT headers bytea DEFAULT '', INOUT body bytea DEFAULT '', "raise" boolean DEFAULT true,
    OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO verdict, state, status, headers, body, body_kept, attempt, fence
    FROM hapax.by_token(4::smallint, token, NULL::bigint,
        CASE WHEN coalesce(ran, true) THEN 64 ELSE 0 END + CASE WHEN as_unknown THEN 128 ELSE 0 END
        + CASE WHEN body IS NULL THEN 0 ELSE 512 END, status, headers, body, "raise");
END
$$;
COMMENT ON FUNCTION hapax.fail(text, boolean, boolean, integer, bytea, bytea, boolean)
    IS 'Ends the attempt: the next caller runs again, or with as_unknown an operator decides. '
        'ran false: surely nothing happened. Headers as in hapax.complete()';

CREATE OR REPLACE FUNCTION hapax.renew(token text, OUT verdict text, OUT state text,
    lease interval DEFAULT '30s', "raise" boolean DEFAULT true, OUT status integer,
    OUT headers bytea, OUT body bytea, OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO verdict, state, status, headers, body, body_kept, attempt, fence
    FROM hapax.by_token(2::smallint, token, hapax.ms_of('lease'::text, lease, 1::bigint),
        0, 0, NULL::bytea, NULL::bytea, "raise");
END
$$;
COMMENT ON FUNCTION hapax.renew(text, interval, boolean)
    IS 'Renews the lease; it is never shortened';

COMMENT ON FUNCTION hapax.begin(text, text, bytea, bytea, interval, interval, text, integer,
    text, boolean, text, text, integer)
    IS 'Claims the operation in this transaction, or tells what came of it';
