-- SPDX-License-Identifier: Apache-2.0
--
-- Names: ids, digests and derived keys, equal to those of hapax_id(), hapax_digest() and
-- hapax_key_derive() (hapax.h). So an operation is one record through whichever door it comes.
--
-- The secret, where the doors have one (HAPAX_SECRET_FILE), is the setting hapax.secret, in hex.
-- Behind PgBouncer in transaction mode a SET would apply to another client too: use
-- SELECT set_config('hapax.secret', ..., true) in the transaction.
--
-- Every function of this schema names what it uses in full, or pins its search_path, or is called
-- only by functions that pin theirs. Every call of a function of this schema gives all arguments,
-- with their exact types. And where a search_path is not pinned, DECLARE names its types in full:
-- PL/pgSQL looks them up when it compiles, under the path of whoever is the session's first
-- caller, and keeps them. So nobody can slip another function, or a domain with a CHECK, under one
-- that runs with its owner's rights: neither by a schema that is searched first, nor by a better
-- match, made in this schema by a role that was given CREATE.
--
-- What a transaction calls is in PL/pgSQL, which keeps its plans for the session, and has a SET
-- only where programs call it. A function in SQL that the planner does not inline is parsed and
-- planned in each call, for 20 to 100 microseconds. It inlines none with a SET, none that says
-- IMMUTABLE over what is not (convert_to), and none that uses an argument twice which is given as
-- a call. pg_stat_user_functions counts those that are not inlined.

-- HMAC-SHA-256 (RFC 2104). bit_send() gives the bits after their number, which has 4 bytes.
CREATE OR REPLACE FUNCTION hapax.hmac(p_secret bytea, p_message bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
AS $$
DECLARE
    v_block CONSTANT bit(512) := ('x' || rpad(encode(CASE WHEN octet_length(p_secret) > 64
        THEN sha256(p_secret) ELSE p_secret END, 'hex'), 128, '0'))::bit(512);
BEGIN
    RETURN sha256(substr(bit_send(v_block # repeat('01011100', 64)::bit(512)), 5)
        || sha256(substr(bit_send(v_block # repeat('00110110', 64)::bit(512)), 5) || p_message));
END
$$;

-- The bytes, after their length as 4 bytes.
CREATE OR REPLACE FUNCTION hapax.part(p_bytes bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT pg_catalog.int4send(pg_catalog.octet_length($1)) OPERATOR(pg_catalog.||) $1 $$;

CREATE OR REPLACE FUNCTION hapax.check_size(p_what text, p_bytes bytea, p_max integer) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF p_bytes IS NULL OR octet_length(p_bytes) = 0 THEN
        RAISE EXCEPTION 'hapax: % is empty', p_what USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(p_bytes) > p_max THEN
        RAISE EXCEPTION 'hapax: % of % bytes is over %', p_what, octet_length(p_bytes), p_max
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN p_bytes;
END
$$;

-- The key, unless it has fewer bytes than the policy key_min wants.
CREATE OR REPLACE FUNCTION hapax.check_key(p_key text, p_min integer) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF p_min IS NULL OR p_min < 0 OR p_min > 255 THEN
        RAISE EXCEPTION 'hapax: key_min is not between 0 and 255'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF octet_length(convert_to(p_key, 'UTF8')) < p_min THEN
        RAISE EXCEPTION 'hapax: the key has fewer than % bytes', p_min
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN p_key;
END
$$;

CREATE OR REPLACE FUNCTION hapax.check_step(p_step text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF position(':' IN p_step) > 0 THEN
        RAISE EXCEPTION 'hapax: the step "%" holds a colon', p_step
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN hapax.check_size('the step'::text, convert_to(p_step, 'UTF8'), 64);
END
$$;

-- The beginning of what is hashed for an operation that has an owner: an empty part, which no scope
-- is, and the owner. Empty without one.
CREATE OR REPLACE FUNCTION hapax.owner_part(p_owner text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_owner pg_catalog.bytea;
BEGIN
    IF p_owner <> '' THEN
        v_owner := hapax.check_size('the owner'::text, convert_to(p_owner, 'UTF8'), 255);
        RETURN hapax.part(''::bytea) || hapax.part(v_owner);
    END IF;
    RETURN '';
END
$$;

-- p_secret NULL: without a secret.
CREATE OR REPLACE FUNCTION hapax.hash_names(p_names bytea, p_secret bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT CASE WHEN $2 IS NULL THEN sha256($1) ELSE hapax.hmac($2, $1) END $$;

-- What a record keeps of a token, as hapax__mark() makes it: 16 random bytes cannot be guessed from
-- their hash.
CREATE OR REPLACE FUNCTION hapax.mark_of(p_token bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
AS $$ SELECT pg_catalog.substr(pg_catalog.sha256($1), 1, 16) $$;

-- What a record keeps of a fingerprint or a caller, as hapax__identify() makes it. What is no
-- digest stays as it is.
CREATE OR REPLACE FUNCTION hapax.under(p_label text, p_digest bytea, p_secret bytea)
RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    IF p_secret IS NULL OR octet_length(p_digest) IS DISTINCT FROM 32 THEN
        RETURN p_digest;
    END IF;
    RETURN hapax.hmac(p_secret, convert_to(p_label, 'UTF8') || p_digest);
END
$$;

CREATE OR REPLACE FUNCTION hapax.id_of(p_scope text, p_key text, p_step text, p_secret bytea,
    p_owner text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_scope CONSTANT pg_catalog.bytea := convert_to(p_scope, 'UTF8');
    v_key CONSTANT pg_catalog.bytea := convert_to(p_key, 'UTF8');
    v_step pg_catalog.bytea;
    v_names pg_catalog.bytea;
BEGIN
    IF (octet_length(v_scope) BETWEEN 1 AND 255 AND octet_length(v_key) BETWEEN 1 AND 255)
        IS NOT TRUE THEN
        PERFORM hapax.check_size('the scope'::text, v_scope, 255);
        PERFORM hapax.check_size('the key'::text, v_key, 255);
    END IF;
    v_names := hapax.part(v_scope) || hapax.part(v_key);
    IF p_owner <> '' THEN
        v_names := hapax.owner_part(p_owner) || v_names;
    END IF;
    IF p_step <> '' THEN
        v_step := hapax.check_step(p_step);
        v_names := v_names || hapax.part(v_step);
    END IF;
    RETURN hapax.hash_names(v_names, p_secret);
END
$$;

-- The session's secret; NULL: none.
CREATE OR REPLACE FUNCTION hapax.secret() RETURNS bytea
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_hex CONSTANT pg_catalog.text := current_setting('hapax.secret', true);
BEGIN
    IF v_hex <> '' THEN
        BEGIN
            RETURN decode(v_hex, 'hex');
        EXCEPTION WHEN invalid_parameter_value OR data_exception THEN
            RAISE EXCEPTION 'hapax: the setting hapax.secret is not hex'
                USING ERRCODE = 'invalid_parameter_value';
        END;
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION hapax.id(scope text, key text, step text DEFAULT NULL,
    owner text DEFAULT NULL) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN hapax.id_of(scope, key, step, hapax.secret(), owner);
END
$$;
COMMENT ON FUNCTION hapax.id(text, text, text, text)
    IS 'The id of an operation, or of a step of it, under the session''s secret';

-- Empty where there is no owner, as in its column.
CREATE OR REPLACE FUNCTION hapax.owner_of(p_owner text, p_secret bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_names pg_catalog.bytea;
BEGIN
    IF p_owner <> '' THEN
        v_names := hapax.owner_part(p_owner);
        RETURN hapax.hash_names(v_names, p_secret);
    END IF;
    RETURN '';
END
$$;

CREATE OR REPLACE FUNCTION hapax.owner(owner text) RETURNS bytea
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN hapax.owner_of(owner, hapax.secret());
END
$$;
COMMENT ON FUNCTION hapax.owner(text)
    IS 'The digest by which the records of one owner are found, under the session''s secret';

-- What an operation is, as its record has it: as hapax_what() cuts it.
CREATE OR REPLACE FUNCTION hapax.what_of(p_what text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_what pg_catalog.bytea;
    v_cut pg_catalog.int4 := 252;
BEGIN
    IF p_what IS NULL THEN
        RETURN '';
    END IF;
    -- [:cntrl:] has 80 to 9f, which in SQL_ASCII are bytes of other characters.
    v_what := convert_to(regexp_replace(p_what, CASE getdatabaseencoding()
        WHEN 'SQL_ASCII' THEN E'[\\x01-\\x1f\\x7f]|\\xc2[\\x80-\\x9f]'
        ELSE '[[:cntrl:]]' END, '?', 'g'), 'UTF8');
    IF octet_length(v_what) <= 255 THEN
        RETURN v_what;
    END IF;
    WHILE get_byte(v_what, v_cut) & 192 = 128 LOOP -- within a character
        v_cut := v_cut - 1;
    END LOOP;
    RETURN substr(v_what, 1, v_cut) || decode('e280a6', 'hex'); -- an ellipsis
END
$$;

CREATE OR REPLACE FUNCTION hapax.digest(VARIADIC parts bytea[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    v_part pg_catalog.bytea;
    v_all pg_catalog.bytea := '';
BEGIN
    FOREACH v_part IN ARRAY parts LOOP
        v_all := v_all OPERATOR(pg_catalog.||) pg_catalog.int8send(coalesce(
            pg_catalog.octet_length(v_part), 0)) OPERATOR(pg_catalog.||) coalesce(v_part, '');
    END LOOP;
    RETURN pg_catalog.sha256(v_all);
END
$$;
COMMENT ON FUNCTION hapax.hmac(bytea, bytea) IS NULL; -- an earlier version had one
COMMENT ON FUNCTION hapax.digest(bytea[])
    IS 'A fingerprint or a caller: SHA-256 over the parts, each behind its length; '
        'NULL counts as empty';

CREATE OR REPLACE FUNCTION hapax.key_derive(key text, step text) RETURNS text
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_key bytea := hapax.check_size('the key'::text, convert_to(key, 'UTF8'), 255) || ':'::bytea
        || hapax.check_step(coalesce(step, ''::text));
BEGIN
    RETURN CASE WHEN octet_length(v_key) <= 255 THEN convert_from(v_key, 'UTF8')
        ELSE 'sha256-' || encode(sha256(v_key), 'hex') END;
END
$$;
COMMENT ON FUNCTION hapax.key_derive(text, text)
    IS 'The key to hand to the next service for one step: KEY:step';

CREATE OR REPLACE FUNCTION hapax.headers(VARIADIC names_and_values text[]) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_all text := '';
BEGIN
    IF array_ndims(names_and_values) > 1 OR array_position(names_and_values, NULL) > 0 THEN
        RAISE EXCEPTION 'hapax: a header''s name or value is NULL, or an array'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF cardinality(names_and_values) % 2 = 1 THEN
        RAISE EXCEPTION 'hapax: a header''s value is missing'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 1 .. cardinality(names_and_values) BY 2 LOOP
        -- The rules of check_headers().
        IF names_and_values[i] !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$'
            OR names_and_values[i + 1] ~ E'[\r\n]' THEN
            RAISE EXCEPTION 'hapax: "%" is no header', names_and_values[i]
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        v_all := v_all || names_and_values[i] || ': ' || names_and_values[i + 1] || E'\r\n';
    END LOOP;
    RETURN convert_to(v_all, 'UTF8');
END
$$;
COMMENT ON FUNCTION hapax.headers(text[]) IS 'An outcome''s headers of names and values in turn';
