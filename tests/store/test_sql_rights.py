"""Who has rights on the schema: what init takes back, what it leaves, and what check tells of the rest."""
import contextlib
import functools
import os
import re
import subprocess

import psycopg2
import psycopg2.errors
import pytest

from conftest import BUILD, PATIENCE
from process import wait_for
from sql_database import (CLAIM, CLAIMED, COMPLETE, COMPLETED, FOREVER, FOUND, LOST, OK, READ, RENEW, RESOLVE, SCRIPT,
                          TYPES, Database, ask, begin, complete)

TEN_YEARS_MS = 315360000000
USES = ("door", "operator", "caller", "executor", "publisher", "relay")


def statements_for(use, role="r"):
    done = subprocess.run([BUILD / "hapax", "init", "--store", "postgres://x/x", "--role", f"{use}={role}", "--print"],
                          capture_output=True, text=True, timeout=PATIENCE, check=True)
    return done.stdout.removeprefix(SCRIPT)


@functools.cache
def granted():
    """All that is granted by name."""
    return {name for use in USES for names in re.findall(r"GRANT EXECUTE ON FUNCTION (.*?) TO", statements_for(use))
            for name in re.findall(r"hapax\.(\w+)", names)}


@pytest.fixture
def bare(server):
    """A database without the schema."""
    database = Database(server, script=None)
    yield database
    database.close()


@pytest.fixture
def role(server, request):
    """Makes roles that end with the test, with all that they own or were given in the test's database."""
    made, databases = [], []

    def make(db, name, options="LOGIN"):
        name = f"{name}_{db.name}"
        db.run(f"CREATE ROLE {name} {options}")
        made.append(name)
        databases.append(db)
        return name

    yield make
    for db, name in zip(databases, made):
        db.run(f"DROP OWNED BY {name} CASCADE")
    for db, name in zip(databases, made):
        db.run(f"DROP ROLE {name}")


def hapax(db, *words, user="postgres", store="--store", more=(), **environment):
    uri = db.server.uri(db.name).replace("postgres@", f"{user}@")
    done = subprocess.run([BUILD / "hapax", *words, store, uri, *more], capture_output=True, text=True,
                          timeout=PATIENCE, env=os.environ | environment)
    return done.returncode, done.stdout + done.stderr


def dangers(db):
    """What check tells of rights; the test's server has fsync off, which is a danger, too."""
    return [line for line in hapax(db, "check")[1].splitlines()
            if line.startswith("danger") and "fsync" not in line]


def use_everything(conn):
    """Each function that runs with its owner's rights."""
    token = begin(conn, "k")["token"]
    ask(conn, "SELECT hapax.renew(%s)", token)
    for step, end in (("a", "step_complete"), ("b", "step_fail")):
        ask(conn, f"SELECT hapax.{end}(b.step_token) FROM hapax.step_begin(%s, 'shop', 'k', %s) b", token, step)
    complete(conn, token)
    ask(conn, "SELECT hapax.fail(token, ran => false) FROM hapax.begin('shop', 'k2', retention => NULL)")
    ask(conn, "SELECT hapax.id('shop', 'k', 's'), hapax.key_derive('k', 's'), hapax.digest('x'), hapax.version()")
    ask(conn, "SELECT hapax.publish('t', 'a', 'k', 's', 'x')")
    ask(conn, "SELECT hapax.outbox_lease(gen_random_uuid(), 1000), hapax.outbox_lag(), hapax.outbox_sweep(1, 0)")
    ask(conn, "SELECT hapax.outbox_turn('{1}', '{NULL}', 1, 1, '{0}', 0, 10), hapax.outbox_aside(0, 10), "
              "hapax.outbox_put_back(NULL, 0)")
    ask(conn, "SELECT hapax.list(0, NULL, 0, 10, NULL), hapax.purge(NULL, 10)")


def better_matches(conn):
    """Statements that make, for each function, such as are a better match where a call leaves a type open: with
    another type at one place, and without the arguments that have a default. Each raises its own name."""
    other = {"bigint": ["integer", "text"], "smallint": ["integer", "text"], "text": []}
    trap = "LANGUAGE plpgsql AS $f$ BEGIN RAISE EXCEPTION 'hijacked: %s'; END $f$"
    for name, types, defaults in ask(conn, """
            SELECT p.proname, ARRAY(SELECT format_type(t, NULL) FROM unnest(p.proargtypes) WITH ORDINALITY a(t, n)
                ORDER BY n), p.pronargdefaults
            FROM pg_proc p WHERE p.pronamespace = 'hapax'::regnamespace"""):
        lists = {(*types[:i], changed, *types[i + 1:]) for i, type in enumerate(types)
                 for changed in other.get(type, ["text"])}
        lists |= {tuple(types[:len(types) - n]) for n in range(1, defaults + 1)}
        lists |= {("text",) * n for n in range(1, 4)} if name == "digest" else set()
        for words in lists - {tuple(types)}:
            with_names = ", ".join(words)
            yield f"CREATE FUNCTION hapax.{name}({with_names}) RETURNS text {trap % name}"


# ---- functions under ours ---------------------------------------------------------------------


# A role that was given CREATE makes a better match of every function: none of them is called by ours.
def test_no_function_of_a_stranger_is_called(db, role):
    stranger = role(db, "stranger")
    db.run(f"GRANT CREATE, USAGE ON SCHEMA hapax TO {stranger}")
    conn, made = db.connect(user=stranger), 0
    for statement in better_matches(db.connect()):
        with contextlib.suppress(psycopg2.errors.DuplicateFunction):
            ask(conn, statement)
            made += 1
    assert made > 150
    # From outside, named and with all types, as no call is ambiguous then.
    owner = db.connect()
    ask(owner, "SET client_min_messages = notice")
    token = ask(owner, "SELECT token FROM hapax.begin('shop'::text, 'k'::text, decode(repeat('00', 32), 'hex'), "
                       "decode(repeat('00', 32), 'hex'), interval '30s', interval '24h', 'rerun'::text, 0, NULL::text, "
                       "true, NULL::text, NULL::text, 0)")[0][0]
    ask(owner, "SELECT hapax.renew(%s::text, interval '30s', true)", token)
    for step, end in (("a", "step_complete(b.step_token, 200, ''::bytea, ''::bytea, true)"),
                      ("b", "step_fail(b.step_token, true, false, 0, ''::bytea, ''::bytea, true)")):
        ask(owner, f"SELECT hapax.{end} FROM hapax.step_begin(%s::text, 'shop'::text, 'k'::text, %s::text, "
                   "interval '30s', 0, true, NULL::text) b", token, step)
    ask(owner, "SELECT hapax.complete(%s::text, 200, ''::bytea, ''::bytea, true)", token)
    ask(owner, "SELECT hapax.id('shop'::text, 'k'::text, 's'::text, 'o'::text), hapax.owner('o'::text), "
               "hapax.key_derive('k'::text, 's'::text)")
    ask(owner, "SELECT hapax.publish('t'::text, 'a'::text, 'k'::text, 's'::text, 'x'::bytea, "
               "jsonb_build_object('a', 'b'), ''::text)")
    ask(owner, "SELECT hapax.outbox_lease(gen_random_uuid(), 1000::bigint), hapax.outbox_lag(), "
               "hapax.outbox_sweep(1::bigint, 0::bigint)")
    ask(owner, "SELECT hapax.list(0, NULL::bytea, 0::bigint, 10, NULL::bytea, NULL::bytea), "
               "hapax.purge(NULL::bytea, 10)")


# Default privileges that give everybody all rights on schemas: CREATE is taken back before anybody has it.
def test_nobody_may_make_functions_by_default_privileges(bare, role):
    stranger = role(bare, "stranger")
    bare.run("ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO PUBLIC")
    bare.run(SCRIPT)
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        ask(bare.connect(user=stranger), "CREATE FUNCTION hapax.ms_of(text, interval, integer) RETURNS bigint "
                                         "LANGUAGE sql AS 'SELECT 1::bigint'")
    assert dangers(bare) == []


# What a stranger has made in the schema is told by check, and init goes no further.
def test_a_strangers_function_is_told(db, role):
    stranger = role(db, "stranger")
    db.run(f"GRANT CREATE, USAGE ON SCHEMA hapax TO {stranger}")
    ask(db.connect(user=stranger), "CREATE FUNCTION hapax.trap() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    told = dangers(db)
    assert len(told) == 2 and all(stranger in line for line in told)
    assert 'has made "trap"' in told[0] and "may make functions" in told[1]
    code, text = hapax(db, "init")
    assert code == 3 and stranger in text
    db.run("DROP FUNCTION hapax.trap")
    assert hapax(db, "init")[0] == 0 and dangers(db) == []


# A trigger runs in our functions, with their owner's rights; a foreign key keeps records from being purged. Both stay
# when the rights that they were made with are taken back. So check tells them, and init goes no further.
@pytest.mark.some(1)
@pytest.mark.parametrize("made, undo", [
    ("CREATE TRIGGER trap BEFORE UPDATE ON hapax.operations FOR EACH ROW EXECUTE FUNCTION {own}.t()",
     "DROP TRIGGER trap ON hapax.operations"),
    ("CREATE TABLE {own}.t (id bytea CONSTRAINT trap REFERENCES hapax.operations)", "DROP TABLE {own}.t"),
    ("CREATE CONSTRAINT TRIGGER trap AFTER UPDATE ON hapax.operations FROM hapax.outbox FOR EACH ROW EXECUTE FUNCTION "
     "{own}.t()", "DROP TRIGGER trap ON hapax.operations"),
])
def test_a_strangers_trigger_is_told(db, role, made, undo):
    own = stranger = role(db, "stranger")
    db.run(f"CREATE SCHEMA {own} AUTHORIZATION {stranger}; GRANT USAGE ON SCHEMA hapax TO {stranger}; "
           f"GRANT ALL ON ALL TABLES IN SCHEMA hapax TO {stranger}")
    conn = db.connect(user=stranger)
    ask(conn, f"CREATE FUNCTION {own}.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'")
    ask(conn, made.format(own=own))
    db.run(f"REVOKE ALL ON ALL TABLES IN SCHEMA hapax FROM {stranger}")
    (told,) = dangers(db)
    assert f'the role "{stranger}" has put' in told and '"trap" on the table "operations"' in told
    code, text = hapax(db, "init")
    assert code == 3 and f'foreign key on tables of the schema "hapax" belongs to "{stranger}" (drop that)' in text
    db.run(undo.format(own=own))
    assert hapax(db, "init")[0] == 0 and dangers(db) == []


# One that runs a superuser's function may be anybody's, or the owner's own: check tells it, and init leaves it alone.
def test_a_trigger_of_a_superusers_function_is_told(db, role):
    db.run("CREATE TRIGGER own BEFORE UPDATE ON hapax.outbox FOR EACH ROW EXECUTE FUNCTION "
           "suppress_redundant_updates_trigger()")
    (told,) = dangers(db)
    assert 'somebody has put' in told and '"own" on the table "outbox"' in told
    code, text = hapax(db, "init")
    assert code == 0 and "nothing had to be made" in text
    db.run(SCRIPT)


# However many of these there are, init still takes back what it can.
def test_what_stays_hides_no_right_that_is_taken_back(db, role):
    reader = role(db, "reader")
    db.run("".join(f"CREATE TRIGGER own{n} BEFORE UPDATE ON hapax.outbox FOR EACH ROW EXECUTE FUNCTION "
                   "suppress_redundant_updates_trigger();" for n in range(20)))
    db.run(f"GRANT SELECT ON hapax.operations TO {reader}")
    assert f'the role "{reader}" has rights on tables' in dangers(db)[0]
    code, text = hapax(db, "init")
    assert code == 0 and "took back rights" in text
    assert len(dangers(db)) == 20 and reader not in "".join(dangers(db))


# ---- readers ----------------------------------------------------------------------------------


# A reader who is given all tables and functions by default privileges reads no token and completes nothing.
def test_a_reader_by_default_privileges_has_no_right(bare, role):
    reader = role(bare, "reader")
    bare.run(f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {reader}; "
             f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON SEQUENCES TO {reader}; "
             f"ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO {reader}; "
             f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {reader}")
    bare.run(SCRIPT)
    conn = bare.connect(user=reader)
    for statement in ("SELECT token FROM hapax.operations", "SELECT hapax.complete('x')", "SELECT hapax.version()"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            ask(conn, statement)
    assert dangers(bare) == []
    bare.run(SCRIPT)
    assert bare.run("SELECT bool_or(has_function_privilege(%s, oid, 'EXECUTE')) FROM pg_proc WHERE pronamespace = "
                    "'hapax'::regnamespace", reader) == [(False,)]


# What somebody gave wholesale is a danger that check names, and init takes back, tables, columns and functions.
@pytest.mark.some(1)
@pytest.mark.parametrize("grant, told", [
    ("SELECT ON ALL TABLES IN SCHEMA hapax", "has rights on tables"),
    ("SELECT (token) ON hapax.operations", "has rights on tables"),
    ("EXECUTE ON ALL FUNCTIONS IN SCHEMA hapax", "was given all functions"),
    ("ALL ON SCHEMA hapax", "may make functions"),
])
def test_wholesale_grants_are_told_and_taken_back(db, role, grant, told):
    for reader in (role(db, "reader"), "PUBLIC"):
        db.run(f"GRANT {grant} TO {reader}")
        (line,) = dangers(db)
        assert told in line and f'the role "{reader}"' in line or "PUBLIC" in line
        code, text = hapax(db, "init")
        assert code == 0 and "took back rights" in text
        assert dangers(db) == []
        code, text = hapax(db, "init")
        assert code == 0 and "took back" not in text


# ---- what stays -------------------------------------------------------------------------------


# What was granted by name, as the pages say, stays at the second init: after an upgrade no service is locked out. So
# it does for a function that was made anew with other arguments.
def test_a_grant_by_name_stays(db, role):
    named = role(db, "named")
    db.run(f"GRANT USAGE ON SCHEMA hapax TO {named}; GRANT EXECUTE ON FUNCTION "
           f"{', '.join('hapax.' + name for name in granted() - {'publish'})} TO {named}")
    db.run("DROP FUNCTION hapax.publish; CREATE FUNCTION hapax.publish(integer) RETURNS integer LANGUAGE sql AS "
           f"'SELECT 1'; GRANT EXECUTE ON FUNCTION hapax.publish TO {named}")
    new = "CREATE OR REPLACE FUNCTION hapax.publish("
    assert new in SCRIPT
    db.run(SCRIPT.replace(new, f"DROP FUNCTION hapax.publish(integer); {new}"))
    assert {name for name, in db.run("SELECT proname FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND "
                                     "has_function_privilege(%s, oid, 'EXECUTE')", named)} == granted()
    use_everything(db.connect(user=named))
    assert dangers(db) == []


# Only what the pages tell to grant has a comment: by that the script tells a grant by name from one of all functions.
def test_functions_with_a_comment_are_those_of_the_pages(db):
    assert {name for name, in db.run("SELECT proname FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND "
                                     "obj_description(oid, 'pg_proc') IS NOT NULL")} == granted()


# ---- owners and callers -----------------------------------------------------------------------


# An owner that is no superuser, with CREATE on the database alone, sets up, upgrades and uses everything.
def test_the_owner_need_not_be_a_superuser(bare, role):
    owner = role(bare, "owner")
    bare.run(f"GRANT CREATE ON DATABASE {bare.name} TO {owner}")
    code, text = hapax(bare, "init", user=owner)
    assert code == 0 and "made the schema" in text
    use_everything(bare.connect(user=owner))
    bare.run(f"GRANT SELECT ON hapax.operations TO {role(bare, 'reader')}")
    code, text = hapax(bare, "init", user=owner)
    assert code == 0 and "took back rights" in text and dangers(bare) == []
    bare.run("CREATE FUNCTION public.t() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
             f"ALTER FUNCTION public.t OWNER TO {owner}; "
             "CREATE TRIGGER own BEFORE UPDATE ON hapax.operations FOR EACH ROW EXECUTE FUNCTION public.t()")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match=rf'"{owner}" \(do this as that role\)'):
        bare.run(SCRIPT)
    ask(bare.connect(user=owner), SCRIPT)
    bare.run("DROP FUNCTION public.t CASCADE")
    assert "danger" not in re.sub(r"danger +fsync.*", "", hapax(bare, "check", user=owner)[1])


# init with the secret ties the store to it: whoever calls begin() afterwards cannot tie it to another, nor to none.
def test_init_binds_the_store_before_anybody_else(bare, tmp_path):
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    assert hapax(bare, "init", HAPAX_SECRET_FILE=str(path))[0] == 0
    conn = bare.connect()
    for secret in ("aa", ""):
        ask(conn, "SELECT set_config('hapax.secret', %s, false)", secret)
        with pytest.raises(psycopg2.Error) as refused:
            begin(conn)
        assert refused.value.pgcode == "HX002"
    ask(conn, "SELECT set_config('hapax.secret', %s, false)", b"s3cret".hex())
    assert begin(conn)["verdict"] == "claimed"


# check works for a caller's role, and says what a store would need; without any right it says what is missing.
def test_check_as_a_caller(db, role):
    caller = role(db, "caller")
    db.run(f"GRANT USAGE ON SCHEMA hapax TO {caller}")
    code, text = hapax(db, "check", user=caller)
    assert code == 3 and "permission denied for function version" in text
    db.run(f"GRANT EXECUTE ON FUNCTION hapax.version TO {caller}")
    code, text = hapax(db, "check", user=caller)
    assert code == 3 and "no permission for hapax.door" in text and "hapax.begin" in text
    db.run(f"GRANT EXECUTE ON FUNCTION hapax.begin, hapax.complete TO {caller}")
    code, text = hapax(db, "check", user=caller)
    assert code == 1 and "is no store's" in text  # 1: fsync is off


# ---- roles by init ----------------------------------------------------------------------------


def op(db, user, *words):
    uri = db.server.uri(db.name).replace("postgres@", f"{user}@")
    return subprocess.run([BUILD / "tests/store/op", uri, *words], capture_output=True, text=True,
                          timeout=PATIENCE).stdout.strip()


@pytest.fixture
def roles(db, role):
    """A login for each use, and one that init knows nothing of; the owner is no superuser."""
    made = {use: role(db, use) for use in USES}
    words = [word for use, name in made.items() for word in ("--role", f"{use}={name}")]
    code, text = hapax(db, "init", more=words)
    assert code == 0 and all(f'the role "{name}" has the rights of: {use}' in text for use, name in made.items()), text
    return {**made, "stranger": role(db, "stranger")}


# A role that was not given the right to give its rights to others is told so. PostgreSQL itself only warns.
def test_a_role_gives_no_rights_that_are_not_its_own_to_give(db, roles):
    second = roles["stranger"]
    code, text = hapax(db, "init", user=roles["operator"], more=["--role", f"operator={second}"])
    assert code == 3 and "may not give rights" in text, text
    assert hapax(db, "list", user=second)[0] == 3


ACTS = (("list",), ("show", "k"), ("resolve", "k", "--force", "--fail"), ("resolve", "k", "--force", "--forget"),
        ("purge",), ("list", "--outbox"))


# A door runs operations, and neither lists, shows nor resolves; an operator does all of it; a stranger nothing; and
# none of them reads a table.
def test_doors_and_operators_have_rights_of_their_own(db, roles):
    conn = db.connect(user=roles["caller"])
    ((token,),) = ask(conn, "SELECT token FROM hapax.begin('default', 'k', fingerprint => hapax.digest('pay'))")
    complete(conn, token)
    for who in ("door", "executor"):
        key = f"k-{who}"
        assert op(db, roles[who], "claim", key, "1") == "claimed"
        assert op(db, roles[who], "complete", key, "1", "200", "", "receipt") == "ok"
        assert op(db, roles[who], "claim", key, "2") == "completed"
        for act in ACTS:
            code, text = hapax(db, *act, user=roles[who])
            assert code == 3 and re.search("permission denied for function|rights of a door|only operators", text), text
        assert "has the rights of a door" in hapax(db, "check", user=roles[who])[1]
    for act in ACTS:
        assert hapax(db, *act, user=roles["operator"])[0] == 0, act
    for user in ("stranger", "caller", "publisher", "relay"):
        assert op(db, roles[user], "claim", "k2", "1") == "refused"
        assert all(hapax(db, *act, user=roles[user])[0] == 3 for act in ACTS)
    for user in roles.values():
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            ask(db.connect(user=user), "SELECT FROM hapax.operations")
    assert dangers(db) == []


# Of each use's functions every one is needed: the door's and the operator's acts fail without it.
@pytest.mark.parametrize("use", ["door", pytest.param("operator", marks=pytest.mark.ci)])
def test_each_right_of_a_use_is_needed(db, roles, use, tmp_path):
    functions = re.search(r"GRANT EXECUTE ON FUNCTION (.*?) TO", statements_for(use))[1].split(", ")
    other = f"rocksdb:{tmp_path}/store"
    for word in ("claim", "complete"):
        subprocess.run([BUILD / "tests/store/op", other, word, "k", "1"], check=True, timeout=PATIENCE)
    for i, function in enumerate(functions):
        db.run(f"REVOKE EXECUTE ON FUNCTION {function} FROM {roles[use]}")
        told = [op(db, roles[use], "claim", f"{use}{i}", "1")]
        if use == "operator":
            told += [hapax(db, *act, user=roles[use])[1] for act in (("list",), ("purge",), ("list", "--outbox"))]
            told += [hapax(db, "redrive", user=roles[use], store="--from", more=["--key", "none"])[1]]
            told += [hapax(db, "copy", user=roles[use], store="--to", more=["--from", other])[1]]
        assert any("refused" in text or "permission denied" in text for text in told), (function, told)
        db.run(f"GRANT EXECUTE ON FUNCTION {function} TO {roles[use]}")


# What a door's function tells of another's operation, even to one who knows its id: nothing.
def test_a_door_reads_no_operation_but_by_its_request(db, roles):
    door, id = db.connect(user=roles["door"]), b"i" * 32
    prints, none = (b"f" * 32, b"c" * 32), (b"g" * 32, b"d" * 32)

    def run(kind, token, request, function="door", id=id,
            columns="verdict, error, state, body, fingerprint, caller, scope, what"):
        values = [[kind], [id], [token], [b"shop"], [request[0]], [request[1]], [30000], [86400000], [1 | 512],
                  [0], [200], [b""], [b"receipt"], None, None, [b"POST /"]]
        words = ", ".join(f"%s::{type}[]" for type in TYPES)
        (row,) = ask(door, f"SELECT {columns} FROM hapax.{function}({words}, false)", *values)
        return [bytes(value) if isinstance(value, memoryview) else value for value in row]

    assert run(CLAIM, b"1" * 16, prints)[:2] == [CLAIMED, 0]
    assert run(COMPLETE, b"1" * 16, prints)[:2] == [OK, 0]
    for kind, verdict in ((READ, FOUND), (COMPLETE, LOST), (CLAIM, COMPLETED)):
        assert run(kind, b"2" * 16, prints)[:4] == [verdict, 0, 2, b"receipt"], kind
    hidden = [None] * 5
    assert run(READ, b"2" * 16, none) == [0, -8, 0, *hidden]
    assert run(COMPLETE, b"2" * 16, none) == [LOST, 0, 0, *hidden]
    assert run(CLAIM, b"2" * 16, none)[:2] + run(CLAIM, b"2" * 16, none)[3:] == [6, 0, *hidden]
    rest = ("hold, stale, ran, reruns, attempt, spent, fence, owner, created_us, updated_us, lease_until_us, "
            "expires_us, retention_ms, resolved_us, resolved_by, replaced_state, replaced_status, status, body_kept, "
            "headers")
    for kind in (READ, COMPLETE, CLAIM):
        assert set(run(kind, b"2" * 16, none, columns=rest)) == {None}, kind
        assert None not in run(kind, b"2" * 16, prints, columns=rest), kind
    for kind, function in ((RESOLVE, "door"), (READ, "run")):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            run(kind, b"3" * 16, prints, function)
    # What is NULL is of no request, and no door claims for any.
    for request in ((None, None), (prints[0], None), (None, prints[1]), (b"\xff" * 32, prints[1]),
                    (prints[0], b"\xff" * 32)):
        with pytest.raises(psycopg2.errors.InvalidParameterValue):
            run(CLAIM, b"3" * 16, request)
    # What no LIST could read.
    for other, request in ((b"i", prints), (id, (b"f", prints[1])), (id, (prints[0], b"c" * 33))):
        with pytest.raises(psycopg2.errors.InvalidParameterValue):
            run(CLAIM, b"3" * 16, request, id=other)
    for kind in (CLAIM, COMPLETE, None):
        with pytest.raises(psycopg2.errors.NullValueNotAllowed):
            run(kind, None, prints)
    assert run(READ, None, (None, None))[:2] == [0, -8]
    assert run(READ, b"2" * 16, prints)[:4] == [FOUND, 0, 2, b"receipt"]


def door_op(kind, id, token, fingerprint=b"f" * 32, caller=b"c" * 32, scope=b"shop", lease_ms=30000,
            retention_ms=86400000, limit=0, status=200, owner=b"", what=b"POST /", packs=True):
    return [kind, id, token, scope, fingerprint, caller, lease_ms, retention_ms, 1 | 512 | 1024 * packs, limit, status,
            b"", b"receipt", b"", owner, what]


def ask_door(conn, *ops):
    words = ", ".join(f"%s::{type}[]" for type in TYPES)
    return ask(conn, f"SELECT verdict FROM hapax.door({words}, false)", *map(list, zip(*ops, strict=True)))


# The same where ops are packed: lean statements look at what they answer, and one bad op refuses all.
def test_a_door_writes_nothing_that_ends_a_list(db, roles):
    op, run = door_op, functools.partial(ask_door, db.connect(user=roles["door"]))

    def refused(*ops):
        with pytest.raises((psycopg2.errors.InvalidParameterValue, psycopg2.errors.NullValueNotAllowed)):
            run(*ops)

    done, live, new = (bytes([i]) * 32 for i in (1, 2, 3))
    token, other = b"1" * 16, b"2" * 16
    assert run(op(CLAIM, done, token)) == [(CLAIMED,)] and run(op(COMPLETE, done, token)) == [(OK,)]
    assert run(op(CLAIM, live, token)) == [(CLAIMED,)]
    any_of = b"\xff" * 32
    times = [{name: ms} for name in ("lease_ms", "retention_ms") for ms in (-1, TEN_YEARS_MS + 1, FOREVER - 1)]
    repeats = [{"fingerprint": None}, {"caller": None}, {"fingerprint": any_of}, {"caller": any_of}, {"caller": b"c"},
               {"fingerprint": b"f" * 33}, {"token": None}]
    claims = repeats + [{"id": b"i"}, {"id": None}, {"scope": b"s" * 256}, {"what": b"w" * 256}, {"owner": b"o"},
                        *times]
    ends = [{"token": None}, {"id": b"i"}, {"status": 1000}, {"status": -1}, *times]
    bad = [op(kind, **{"id": id, "token": given, **changed}, packs=packs) for packs in (True, False)
           for kind, id, given, changes in ((CLAIM, new, token, claims), (CLAIM, done, other, repeats),
                                            (COMPLETE, live, token, ends), (RENEW, live, token, times[:3]))
           for changed in changes]
    before = db.run("SELECT * FROM hapax.operations ORDER BY id")
    for one in bad:
        refused(one)
    for one in bad:
        for packs in (True, False):
            refused(op(CLAIM, b"n" * 32, token, packs=packs), op(COMPLETE, live, token), op(CLAIM, done, other), one)
    # Two ops on one id, which no store asks for, do not hide a third.
    refused(op(CLAIM, new, token), op(COMPLETE, new, token), op(CLAIM, b"n" * 32, None))
    assert db.run("SELECT * FROM hapax.operations ORDER BY id") == before
    # An imported record is of any request, and a door's request is none of them.
    db.run("UPDATE hapax.operations SET fingerprint = %s WHERE id = %s", any_of, done)
    refused(op(CLAIM, done, other, fingerprint=any_of))
    assert len(db.run("SELECT id FROM hapax.list(0, NULL, 0, 1000, NULL)")) == len(before) + 1
    for packs, retention_ms in enumerate((TEN_YEARS_MS, FOREVER)):
        id = bytes([4 + packs]) * 32
        assert run(op(CLAIM, id, token, lease_ms=TEN_YEARS_MS, retention_ms=retention_ms, packs=packs)) == [(CLAIMED,)]


# A retention of which the sum with the clock just fits, and does not a moment later, would then fail each batch with an
# op on its record: those of others, and each op in them.
def test_no_retention_fails_the_batches_of_others(db, roles):
    conn, id = db.connect(user=roles["door"]), b"i" * 32
    retention_ms = (FOREVER - db.run("SELECT hapax.now_us()")[0][0]) // 1000 - 500
    with contextlib.suppress(psycopg2.errors.InvalidParameterValue):
        ask_door(conn, door_op(CLAIM, id, b"1" * 16, lease_ms=1, retention_ms=retention_ms))
    wait_for(lambda: db.run("SELECT hapax.now_us() > %s", FOREVER - retention_ms * 1000) == [(True,)], "the moment")
    batch = [door_op(CLAIM, one, b"2" * 16, limit=1) for one in (b"n" * 32, id)]
    assert ask_door(conn, *batch) == [(CLAIMED,)]  # of both


# --print has the script and these statements, for those who migrate by hand. A role that is missing is made; a name
# that would need quotes is refused, and so is a use that is none.
def test_roles_are_made_and_named(db, role):
    name = f"new-role.{db.name}"
    code, text = hapax(db, "init", more=["--role", f"door={name}", "--role", f"publisher={name}"])
    assert code == 0, text
    assert db.run("SELECT rolcanlogin FROM pg_roles WHERE rolname = %s", name) == [(False,)]
    assert statements_for("door", name).count(f'"{name}"') == 3
    ask(db.connect(), statements_for("door", name))
    db.run(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')
    for word, why in (("door=a b", "no name of"), ('door=a"', "no name of"), ("door=", "no name of"),
                      ("doors=a", "there is no use"), ("shop", "there is no use")):
        code, text = hapax(db, "init", more=["--role", word])
        assert code == 2 and why in text, text
    code, text = hapax(db, "init", user=role(db, "stranger"), more=["--role", "door=somebody"])
    assert code == 3
