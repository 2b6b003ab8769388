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
-- work. complete() raises HX001, too, where this token has completed the operation already. So a
-- transaction that is repeated after a lost reply to COMMIT, or that runs twice at once, cannot
-- commit its rows twice. With "raise" => false they return lost and completed instead.
-- Rejected: ok for a second complete() in one transaction. Only a mistake makes two, and the record
-- does not say which transaction has written it.
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
    IF (octet_length(p_token) = 64 AND p_token !~ '[^A-Za-z0-9_-]') IS NOT TRUE THEN
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

-- Whether headers are what hapax.check_headers() lets pass. The planner inlines it.
CREATE OR REPLACE FUNCTION hapax.good_headers(p_headers bytea) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT pg_catalog.octet_length($1) <= 65536 AND position(decode('00', 'hex') IN $1) = 0
        AND pg_catalog.encode($1, 'escape')
            ~ E'^(?:[!#$%&''*+.^_`|~0-9A-Za-z-]+:[^\r\n]*\r\n)*$'
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
    IF p_headers IS NULL OR hapax.good_headers(p_headers) THEN
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

-- What hapax.begin() and hapax.complete() answer. Rejected: OUT arguments. In each call the server
-- would make the type of their row anew, which took a third of the time of a repeat.
DO $$
BEGIN
    IF to_regtype('hapax.begun') IS NULL THEN
        CREATE TYPE hapax.begun AS (verdict text, status integer, headers bytea, body bytea,
            body_kept boolean, attempt integer, fence bigint, stale boolean, differs text,
            token text, lease_left interval);
        CREATE TYPE hapax.ended AS (verdict text, state text, status integer, headers bytea,
            body bytea, body_kept boolean, attempt integer, fence bigint);
        -- As they were before.
        DROP FUNCTION IF EXISTS
            hapax.begin(text, text, bytea, bytea, interval, interval, text, integer, text, boolean,
                text, text),
            hapax.begin(text, text, bytea, bytea, interval, interval, text, integer, text, boolean,
                text, text, integer),
            hapax.claim(text, text, bytea, bytea, interval, interval, text, integer, text, boolean,
                text, text, boolean),
            hapax.complete(text, integer, bytea, bytea, boolean);
    END IF;
END
$$;
COMMENT ON TYPE hapax.begun IS 'What hapax.begin() answers';
COMMENT ON TYPE hapax.ended IS 'What hapax.complete() answers';

-- hapax.begin(). Most operations are new or completed, and these are judged here as hapax.run()'s
-- tables judge them: its statement, made for batches of all kinds, takes long to prepare for one
-- op. Records are found by the primary key as there, for the plans are pinned.
--
-- PL/pgSQL prepares each expression anew in every transaction, with each function in it, and each
-- statement in every call. A call of another function in PL/pgSQL costs as much as five
-- expressions. So the common ways have few of all these, and what they do not know goes on below
-- them, where everything is checked by name. The first statement only reads: a repeat writes
-- nothing and locks nothing.
CREATE OR REPLACE FUNCTION hapax.begin(
    scope text, key text,
    fingerprint bytea DEFAULT pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'),
    caller bytea DEFAULT pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'),
    lease interval DEFAULT '30s', retention interval DEFAULT '24h', on_expired text DEFAULT 'rerun',
    attempts_max integer DEFAULT 0, step text DEFAULT NULL, wait boolean DEFAULT true,
    owner text DEFAULT NULL, what text DEFAULT NULL, key_min integer DEFAULT 0)
RETURNS hapax.begun
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    -- true in hapax.claim(), below: fingerprint and caller are as a record has them, under the
    -- secret already.
    c_kept CONSTANT boolean := false;
    v_scope CONSTANT bytea := convert_to(scope, 'UTF8');
    v_key CONSTANT bytea := convert_to(key, 'UTF8');
    v hapax.begun;
    v_secret bytea;
    v_id bytea;
    v_token bytea;
    v_now bigint;
    r record;
BEGIN
    IF step IS NULL AND owner IS NULL AND key_min = 0
        AND coalesce(current_setting('hapax.secret', true), '') = '' THEN
        -- hapax.id_of(): array_send() puts its length before each part, and 20 bytes before all.
        -- What is too long for an id is never found.
        v_id := sha256(substr(array_send(ARRAY[v_scope, v_key]), 21));
    ELSE
        PERFORM hapax.check_key(key, key_min);
        v_secret := hapax.secret();
        v_id := hapax.id_of(scope, key, step, v_secret, owner);
        IF NOT c_kept THEN
            fingerprint := hapax.under('fingerprint'::text, fingerprint, v_secret);
            caller := hapax.under('caller'::text, caller, v_secret);
        END IF;
    END IF;
    -- What is live, completed, neither a tombstone nor sealed, and this request's. Only an imported
    -- record is of any request or caller.
    SELECT CASE WHEN o.state = 2 AND o.fingerprint = fingerprint AND o.caller = caller
            AND CASE WHEN o.expires_us = 0 THEN true ELSE hapax.now_us() < least(o.expires_us,
                o.updated_us + least(o.retention_ms, 1000000000000000) * 1000) END
            AND (o.headers = '' OR o.headers >= decode('01', 'hex'))
            AND fingerprint <> decode(repeat('ff', 32), 'hex')
            AND caller <> decode(repeat('ff', 32), 'hex')
        THEN 'completed' END,
        o.status::integer, o.headers, o.body, o.body_kept, o.attempt, o.fence, o.stale, NULL::text,
        NULL::text, NULL::interval
    INTO v FROM hapax.operations o WHERE o.id = v_id;
    IF v.verdict = 'completed' THEN
        RETURN v;
    END IF;
    v_token := uuid_send(gen_random_uuid());
    IF NOT FOUND THEN
        -- The clock is read with the lock taken: above the fence of any record that was there and
        -- is gone.
        SELECT hapax.now_us() INTO v_now FROM hapax.operations o
        WHERE o.id = hapax.bound_id() AND CASE
            WHEN o.fingerprint = hapax.bound_check(v_secret)
                AND octet_length(v_scope) BETWEEN 1 AND 255
                AND octet_length(v_key) BETWEEN 1 AND 255
                AND octet_length(fingerprint) = 32 AND octet_length(caller) = 32
                AND fingerprint <> decode(repeat('ff', 32), 'hex')
                AND caller <> decode(repeat('ff', 32), 'hex')
                AND date_part('epoch', lease) BETWEEN 0.001 AND 315360000
                AND (retention IS NULL
                    OR date_part('epoch', retention) BETWEEN 0.001 AND 315360000)
                AND on_expired IN ('rerun', 'hold', 'reconcile') AND attempts_max >= 0
                AND (step IS NULL OR step NOT LIKE '.%')
            THEN pg_try_advisory_xact_lock(hapax.lock_of(v_id)) END;
        IF FOUND THEN
            INSERT INTO hapax.operations (created_us, updated_us, lease_until_us, expires_us,
                retention_ms, resolved_us, fence, attempt, spent, state, status, hold, stale, ran,
                reruns, body_kept, id, token, fingerprint, caller, scope, resolved_by,
                headers, body, owner, what)
            VALUES (v_now, v_now, v_now + (date_part('epoch', lease) * 1000)::bigint * 1000,
                CASE WHEN on_expired <> 'rerun' OR retention IS NULL THEN 0
                    ELSE v_now + (greatest(date_part('epoch', retention),
                        date_part('epoch', lease)) * 1000)::bigint * 1000 END,
                CASE WHEN retention IS NULL THEN 9223372036854775807
                    ELSE (date_part('epoch', retention) * 1000)::bigint END,
                0, v_now, 1, 0, 1, 0, on_expired <> 'rerun', false, false, false, false, v_id,
                hapax.mark_of(v_token), fingerprint, caller, v_scope, '', '', '',
                CASE WHEN owner <> '' THEN hapax.owner_of(owner, v_secret) ELSE '' END,
                CASE WHEN what <> '' THEN hapax.what_of(what) ELSE '' END)
            ON CONFLICT (id) DO NOTHING;
            IF FOUND THEN
                IF NOT pg_try_advisory_xact_lock(hapax.long_lock_of(v_id)) THEN
                    PERFORM pg_advisory_xact_lock(hapax.long_lock_of(v_id));
                END IF;
                RETURN ROW('claimed', NULL, NULL, NULL, NULL, 1, v_now, false, NULL,
                    translate(encode(v_id || v_token, 'base64'), '+/', '-_'),
                    (date_part('epoch', lease) * 1000)::bigint * interval '1 millisecond'
                    )::hapax.begun;
            END IF;
        END IF;
    END IF;
    IF step LIKE '.%' THEN
        RAISE EXCEPTION 'hapax: the step "%" begins with a point', step
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF (on_expired IN ('rerun', 'hold', 'reconcile')) IS NOT TRUE THEN
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
    IF decode(repeat('ff', 32), 'hex') IN (fingerprint, caller) THEN
        RAISE EXCEPTION 'hapax: only an imported record is of any request or caller'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_id := hapax.id_of(scope, key, step, v_secret, owner);
    PERFORM hapax.bind(v_secret);
    SELECT * INTO STRICT r FROM hapax.run('{1}'::smallint[], ARRAY[v_id], ARRAY[v_token],
        ARRAY[v_scope], ARRAY[fingerprint], ARRAY[caller],
        ARRAY[hapax.ms_of('lease'::text, lease, 1::bigint)],
        ARRAY[CASE WHEN retention IS NULL THEN 9223372036854775807
            ELSE hapax.ms_of('retention'::text, retention, 1::bigint) END],
        ARRAY[array_position(ARRAY['rerun', 'hold', 'reconcile'], on_expired)],
        ARRAY[attempts_max::bigint], NULL::integer[], NULL::bytea[], NULL::bytea[], NULL::bytea[],
        ARRAY[hapax.owner_of(owner, v_secret)], ARRAY[hapax.what_of(what)],
        CASE WHEN wait IS NOT FALSE THEN true END);
    v := NULL;
    v.verdict := (ARRAY['claimed', 'in_flight', 'completed', 'failed', 'unknown', 'mismatch'])
        [r.verdict];
    IF r.state > 0 THEN
        v.attempt := r.attempt;
        v.fence := r.fence;
        v.stale := r.stale;
        IF hapax.is_tombstone(r.state, r.updated_us, r.retention_ms, r.expires_us, r.now_us)
            AND v.verdict = 'completed' THEN
            v.verdict := 'expired';
        ELSIF r.outcome = 1 THEN
            PERFORM hapax.check_sealed(r.headers);
            v.status := r.status;
            v.headers := r.headers;
            v.body := r.body;
            v.body_kept := r.body_kept;
        END IF;
        IF r.state = 1 THEN
            v.lease_left := greatest(r.lease_until_us - r.now_us, 0) * interval '1 microsecond';
        END IF;
    END IF;
    v.differs := (ARRAY['fingerprint', 'caller'])[r.differs];
    IF v.verdict = 'claimed' THEN
        v.token := translate(encode(v_id || v_token, 'base64'), '+/', '-_');
        PERFORM pg_advisory_xact_lock(hapax.long_lock_of(v_id));
    END IF;
    RETURN v;
END
$$;
COMMENT ON FUNCTION hapax.begin(text, text, bytea, bytea, interval, interval, text, integer,
    text, boolean, text, text, integer)
    IS 'Claims the operation in this transaction, or tells what came of it';

-- hapax.claim() is begin() for a step, made of its text as hapax.door() is of run()'s. Whoever
-- calls it has pinned the search_path.
DO $$
BEGIN
    EXECUTE replace(replace(pg_get_functiondef('hapax.begin'::regproc),
        'FUNCTION hapax.begin(', 'FUNCTION hapax.claim('),
        'c_kept CONSTANT boolean := false', 'c_kept CONSTANT boolean := true');
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
    v_again pg_catalog.bool;
BEGIN
    t := hapax.token_parts(p_token);
    IF p_status IS NULL OR p_status NOT BETWEEN 0 AND 999 OR p_headers <> ''
        OR octet_length(p_body) > 16777216 THEN
        PERFORM hapax.check_outcome(p_status, p_headers, p_body);
    END IF;
    SELECT * INTO STRICT r FROM hapax.run(ARRAY[p_kind], ARRAY[t.id], ARRAY[t.token],
        NULL::bytea[], NULL::bytea[], NULL::bytea[], ARRAY[p_lease_ms], NULL::bigint[],
        ARRAY[p_flags], '{0}'::bigint[], ARRAY[p_status], ARRAY[p_headers], ARRAY[p_body],
        NULL::bytea[], NULL::bytea[], NULL::bytea[], true);
    state := (ARRAY['absent', 'started', 'completed', 'failed', 'unknown'])[r.state + 1];
    -- The COMPLETE of a repeated transaction: what was stored is of the first one, as its rows are.
    v_again := p_kind = 3 AND r.verdict = 7 AND r.outcome <> 2;
    IF v_again AND coalesce(p_raise, true) THEN
        RAISE EXCEPTION 'hapax: what this token began is completed already'
            USING ERRCODE = 'HX001', HINT = 'This is a repeat. Roll back. What was committed '
                'stands: of an operation the gate answers it, of a step hapax.step_begin() '
                'returns it.';
    ELSIF r.verdict <> 7 AND coalesce(p_raise, true) THEN
        RAISE EXCEPTION 'hapax: the claim is lost: the operation is %', state
            USING ERRCODE = 'HX001', HINT = 'Another attempt has it. Roll back; '
                'nothing of this transaction may be committed.';
    END IF;
    verdict := CASE WHEN r.verdict <> 7 THEN 'lost' WHEN v_again THEN 'completed' ELSE 'ok' END;
    IF r.state > 0 THEN
        attempt := r.attempt;
        fence := r.fence;
    END IF;
    IF r.outcome = 1 AND r.verdict = 7 THEN
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

-- The completion of a claim that stands is judged here, as a new operation in hapax.begin(). The
-- lock is taken for such a record alone, and before the record is written.
CREATE OR REPLACE FUNCTION hapax.complete(token text, status integer DEFAULT 0,
    headers bytea DEFAULT '', body bytea DEFAULT '', "raise" boolean DEFAULT true)
RETURNS hapax.ended
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    v hapax.ended;
    v_bytes bytea;
    v_now bigint;
    v_attempt integer;
    v_fence bigint;
BEGIN
    IF octet_length(token) = 64 AND token !~ '[^A-Za-z0-9_-]' THEN
        v_bytes := decode(translate(token, '-_', '+/'), 'base64');
        v_now := hapax.now_us();
        UPDATE hapax.operations o SET updated_us = v_now, lease_until_us = 0, state = 2,
            stale = false,
            expires_us = CASE WHEN o.retention_ms = 9223372036854775807 THEN 0
                ELSE v_now + o.retention_ms * 1000 END,
            status = status, body_kept = body IS NOT NULL,
            headers = coalesce(headers, ''), body = coalesce(body, '')
        WHERE o.id = substr(v_bytes, 1, 32)
            AND CASE WHEN o.state = 1 AND o.token = hapax.mark_of(substr(v_bytes, 33))
                    AND (o.expires_us = 0 OR v_now < o.expires_us)
                    AND status BETWEEN 0 AND 999
                    AND (headers IS NULL OR hapax.good_headers(headers))
                    AND (body IS NULL OR octet_length(body) <= 16777216)
                THEN pg_try_advisory_xact_lock(hapax.lock_of(o.id)) END
        RETURNING o.attempt, o.fence INTO v_attempt, v_fence;
        IF FOUND THEN
            IF NOT pg_try_advisory_xact_lock(hapax.long_lock_of(substr(v_bytes, 1, 32))) THEN
                PERFORM pg_advisory_xact_lock(hapax.long_lock_of(substr(v_bytes, 1, 32)));
            END IF;
            RETURN ROW('ok', 'completed', status, coalesce(headers, ''), coalesce(body, ''),
                body IS NOT NULL, v_attempt, v_fence)::hapax.ended;
        END IF;
    END IF;
    SELECT * INTO v FROM hapax.by_token(3::smallint, token, NULL::bigint,
        CASE WHEN body IS NULL THEN 0 ELSE 512 END, status, headers, body, "raise");
    RETURN v;
END
$$;
COMMENT ON FUNCTION hapax.complete(text, integer, bytea, bytea, boolean)
    IS 'Completes the operation; a body of NULL is not kept. Raises HX001 where it is completed '
        'already, or the claim is lost. Headers are lines of Name: value and CR LF, or 22023: '
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
