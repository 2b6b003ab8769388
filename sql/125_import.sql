-- SPDX-License-Identifier: Apache-2.0
--
-- hapax.import(): the op IMPORT (docs/design.md, section 3) over a batch: puts records as they were
-- in another store. A function of its own, since its arguments are a record's and not an op's, and
-- since only operators may call it.
--
-- Each record is judged under the advisory lock of its id, by a statement that sees what the lock's
-- last holder committed. An operator's own UPDATE takes no such lock: hence FOR UPDATE.
--
-- The contract. All arrays have one length, and no element is NULL. No id comes twice.
--   p_numbers: attempt << 32 | spent.
--   p_bits: state | hold 8 | stale 16 | ran 32 | reruns 64 | body_kept 128 | replaced_state << 8 |
--     status << 16 | replaced_status << 32.
--   p_request: fingerprint and caller, 64 bytes.
-- One row per op, in order: verdict 7 (it is there), or 9 and what is there in its place; or error
-- -4 and verdict 0: busy, another transaction is writing this id.
CREATE OR REPLACE FUNCTION hapax.import(
    p_id bytea[], p_created_us bigint[], p_updated_us bigint[], p_lease_until_us bigint[],
    p_expires_us bigint[], p_retention_ms bigint[], p_resolved_us bigint[], p_fence bigint[],
    p_numbers bigint[], p_bits bigint[], p_request bytea[], p_owner bytea[], p_scope bytea[],
    p_what bytea[], p_by bytea[], p_headers bytea[], p_body bytea[])
RETURNS TABLE (
    verdict smallint, error smallint, now_us bigint, state smallint, attempt integer, fence bigint,
    created_us bigint, updated_us bigint, lease_until_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    r hapax.operations%ROWTYPE;
    v_there boolean;
    c_no_mark CONSTANT bytea := decode(repeat('00', 16), 'hex');
BEGIN
    FOR i IN 1 .. coalesce(array_length(p_id, 1), 0) LOOP
        verdict := 0;
        error := -4;
        now_us := hapax.now_us();
        state := 0;
        attempt := 0;
        fence := 0;
        created_us := 0;
        updated_us := 0;
        lease_until_us := 0;
        IF pg_try_advisory_xact_lock(hapax.lock_of(p_id[i])) THEN
            error := 0;
            SELECT o.* INTO r FROM hapax.operations o WHERE o.id = p_id[i] FOR UPDATE;
            v_there := FOUND AND (r.expires_us = 0 OR now_us < r.expires_us);
            -- Each grant and each RESOLVE here leaves a mark.
            IF v_there AND (r.token <> c_no_mark OR r.state = 2
                OR r.state = 1 AND now_us < r.lease_until_us
                OR r.created_us <> p_created_us[i] OR p_fence[i] < r.fence
                OR p_updated_us[i] <= r.updated_us) THEN
                verdict := CASE WHEN r.created_us = p_created_us[i] AND r.fence = p_fence[i]
                    AND r.updated_us = p_updated_us[i] THEN 7 ELSE 9 END;
                state := r.state;
                attempt := r.attempt;
                fence := r.fence;
                created_us := r.created_us;
                updated_us := r.updated_us;
                lease_until_us := r.lease_until_us;
            ELSE
                verdict := 7;
                INSERT INTO hapax.operations AS o (created_us, updated_us, lease_until_us,
                    expires_us, retention_ms, resolved_us, fence, attempt, spent, state, status,
                    hold, stale, ran, reruns, body_kept, id, token, fingerprint, caller, scope,
                    resolved_by, headers, body, owner, what, replaced_state, replaced_status)
                VALUES (p_created_us[i], p_updated_us[i], p_lease_until_us[i],
                    p_expires_us[i], p_retention_ms[i], p_resolved_us[i], p_fence[i],
                    (p_numbers[i] >> 32)::integer, (p_numbers[i] & 4294967295)::integer,
                    (p_bits[i] & 7)::smallint, (p_bits[i] >> 16 & 65535)::smallint,
                    p_bits[i] & 8 <> 0, p_bits[i] & 16 <> 0, p_bits[i] & 32 <> 0,
                    p_bits[i] & 64 <> 0, p_bits[i] & 128 <> 0, p_id[i],
                    -- The mark of no token: its claim is not ended here.
                    c_no_mark,
                    substr(p_request[i], 1, 32), substr(p_request[i], 33), p_scope[i], p_by[i],
                    p_headers[i], p_body[i], p_owner[i], p_what[i],
                    (p_bits[i] >> 8 & 7)::smallint, (p_bits[i] >> 32)::smallint)
                ON CONFLICT (id) DO UPDATE SET (created_us, updated_us, lease_until_us,
                    expires_us, retention_ms, resolved_us, fence, attempt, spent, state, status,
                    hold, stale, ran, reruns, body_kept, token, fingerprint, caller, scope,
                    resolved_by, headers, body, owner, what, replaced_state, replaced_status)
                = (EXCLUDED.created_us, EXCLUDED.updated_us, EXCLUDED.lease_until_us,
                    EXCLUDED.expires_us, EXCLUDED.retention_ms, EXCLUDED.resolved_us,
                    EXCLUDED.fence, EXCLUDED.attempt, EXCLUDED.spent, EXCLUDED.state,
                    EXCLUDED.status, EXCLUDED.hold, EXCLUDED.stale, EXCLUDED.ran, EXCLUDED.reruns,
                    EXCLUDED.body_kept, EXCLUDED.token, EXCLUDED.fingerprint, EXCLUDED.caller,
                    EXCLUDED.scope, EXCLUDED.resolved_by, EXCLUDED.headers, EXCLUDED.body,
                    EXCLUDED.owner, EXCLUDED.what, EXCLUDED.replaced_state,
                    EXCLUDED.replaced_status);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;
COMMENT ON FUNCTION hapax.import
    IS 'Puts records of another store, as they are there; for hapax copy and hapax import';
