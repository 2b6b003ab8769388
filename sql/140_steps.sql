-- SPDX-License-Identifier: Apache-2.0
--
-- Steps: named parts of an operation, each with a record of its own, so that a handler that runs
-- again does not repeat what it has done. Steps are for those who have the operation's token: from
-- hapax.begin(), or the gate's Idempotency-Token, or hapax_attempt_token().
--
--   BEGIN;
--   -- completed: go on with that outcome
--   SELECT * FROM hapax.step_begin(token, 'shop', 'order-17', 'charge');
--   COMMIT;
--   -- claimed: charge, with step_key as the key
--   SELECT * FROM hapax.step_complete(step_token, 201, body => receipt);
--
-- A step takes fingerprint, caller and retention from its operation's record, so that they are
-- given once. Where the operation was first claimed longer than its retention ago, an absent step
-- may be a forgotten one. The step is then `unknown`, and nothing may run.
--
-- A step's claim is committed or rolled back with its transaction. For effects that are rows, claim
-- and complete the step in one transaction. For an effect elsewhere, commit the claim before, as
-- above, so that the next attempt knows of it.
--
-- The list of steps (hapax show) is that of src/door/step.c: completed records under the steps
-- ".1", ".2", ... .

CREATE OR REPLACE FUNCTION hapax.step_listed(p_scope text, p_key text, p_step text, p_secret bytea,
    p_retention_ms bigint, p_owner text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    c_none CONSTANT pg_catalog.bytea := decode(repeat('00', 32), 'hex');
    c_ours CONSTANT pg_catalog.bytea := hapax.digest(VARIADIC ARRAY['hapax', 'step']::bytea[]);
    v_name CONSTANT pg_catalog.bytea := convert_to(p_step, 'UTF8');
    v_token CONSTANT pg_catalog.bytea := uuid_send(gen_random_uuid());
    v_id pg_catalog.bytea;
    r pg_catalog.record;
BEGIN
    FOR i IN 1 .. 64 LOOP
        v_id := hapax.id_of(p_scope, p_key, '.' || i, p_secret, p_owner);
        SELECT * INTO STRICT r FROM hapax.run('{1}'::smallint[], ARRAY[v_id], ARRAY[v_token],
            ARRAY[convert_to(p_scope, 'UTF8')], ARRAY[c_ours], ARRAY[c_none], '{10000}'::bigint[],
            ARRAY[p_retention_ms], '{1}'::integer[], '{0}'::bigint[], NULL::integer[],
            NULL::bytea[], NULL::bytea[], NULL::bytea[], ARRAY[hapax.owner_of(p_owner, p_secret)],
            NULL::bytea[], NULL::boolean);
        IF r.verdict = 1 THEN
            PERFORM FROM hapax.run('{3}'::smallint[], ARRAY[v_id], ARRAY[v_token], NULL::bytea[],
                NULL::bytea[], NULL::bytea[], NULL::bigint[], NULL::bigint[], '{512}'::integer[],
                NULL::bigint[], '{0}'::integer[], NULL::bytea[], ARRAY[v_name], NULL::bytea[],
                NULL::bytea[], NULL::bytea[], NULL::boolean);
            RETURN;
        END IF;
        EXIT WHEN r.verdict = 3 AND r.body = v_name;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION hapax.step_begin(
    token text, scope text, key text, step text,
    lease interval DEFAULT '30s', attempts_max integer DEFAULT 0, wait boolean DEFAULT true,
    owner text DEFAULT NULL,
    OUT verdict text, OUT status integer, OUT headers bytea, OUT body bytea, OUT body_kept boolean,
    OUT attempt integer, OUT fence bigint, OUT stale boolean, OUT differs text, OUT step_token text,
    OUT step_key text, OUT lease_left interval)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    c_forever CONSTANT bigint := 9223372036854775807;
    v_secret CONSTANT bytea := hapax.secret();
    t record;
    o record;
    b record;
    v record;
    v_what text;
BEGIN
    t := hapax.token_parts(token);
    IF t.id <> hapax.id_of(scope, key, NULL::text, v_secret, owner) THEN
        RAISE EXCEPTION 'hapax: the token is not that of this scope, key and owner'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    step_key := hapax.key_derive(key, step);
    SELECT x.fingerprint, x.caller, x.hold, x.attempt, x.created_us, x.retention_ms, x.what INTO o
    FROM hapax.operations x WHERE x.id = t.id AND x.token = hapax.mark_of(t.token)
        AND x.state = 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'hapax: the claim is lost: the step "%" is not to be begun', step
            USING ERRCODE = 'HX001', HINT = 'Another attempt has it. Roll back; '
                'nothing of this transaction may be committed.';
    END IF;
    BEGIN
        v_what := nullif(convert_from(o.what, 'UTF8'), '');
    EXCEPTION WHEN untranslatable_character THEN
        NULL; -- it has characters that this database has not
    END;
    SELECT * INTO STRICT b FROM hapax.claim(scope, key, o.fingerprint, o.caller, lease,
        CASE WHEN o.retention_ms < c_forever THEN o.retention_ms * interval '1 millisecond' END,
        CASE WHEN o.hold THEN 'hold' ELSE 'rerun' END::text, attempts_max, step, wait, owner,
        concat_ws(' ', v_what, 'step', step), 0);
    verdict := b.verdict;
    status := b.status;
    headers := b.headers;
    body := b.body;
    body_kept := b.body_kept;
    attempt := b.attempt;
    fence := b.fence;
    stale := b.stale;
    differs := b.differs;
    step_token := b.token;
    lease_left := b.lease_left;
    IF verdict <> 'claimed' THEN
        RETURN;
    END IF;
    SELECT x.created_us, x.resolved_us INTO STRICT v FROM hapax.operations x
        WHERE x.id = hapax.id_of(scope, key, step, v_secret, owner);
    IF o.attempt > 1 AND v.resolved_us = 0 AND o.retention_ms < c_forever
        AND v.created_us - o.created_us >= o.retention_ms * 1000 THEN
        PERFORM FROM hapax.fail(step_token, false, true, 0, ''::bytea, ''::bytea, true);
        verdict := 'unknown';
        step_token := NULL;
        lease_left := NULL;
        RETURN;
    END IF;
    PERFORM hapax.step_listed(scope, key, step, v_secret, o.retention_ms, owner);
END
$$;
COMMENT ON FUNCTION hapax.step_begin(text, text, text, text, interval, integer, boolean, text)
    IS 'Claims a step of the operation whose token this is, or tells what came of it; '
        'step_key is the key for the next service';

CREATE OR REPLACE FUNCTION hapax.step_complete(step_token text, OUT verdict text, OUT state text,
    INOUT status integer DEFAULT 0, INOUT headers bytea DEFAULT '', INOUT body bytea DEFAULT '',
    "raise" boolean DEFAULT true, OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO verdict, state, status, headers, body, body_kept, attempt, fence
    FROM hapax.complete(step_token, status, headers, body, "raise");
END
$$;
COMMENT ON FUNCTION hapax.step_complete(text, integer, bytea, bytea, boolean)
    IS 'Completes the step, as hapax.complete() does an operation';

CREATE OR REPLACE FUNCTION hapax.step_fail(step_token text, OUT verdict text, OUT state text,
    ran boolean DEFAULT true, as_unknown boolean DEFAULT false, INOUT status integer DEFAULT 0,
    INOUT headers bytea DEFAULT '', INOUT body bytea DEFAULT '', "raise" boolean DEFAULT true,
    OUT body_kept boolean, OUT attempt integer, OUT fence bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT * INTO verdict, state, status, headers, body, body_kept, attempt, fence
    FROM hapax.fail(step_token, ran, as_unknown, status, headers, body, "raise");
END
$$;
COMMENT ON FUNCTION hapax.step_fail(text, boolean, boolean, integer, bytea, bytea, boolean)
    IS 'Ends the attempt of the step, as hapax.fail() does an operation''s';
