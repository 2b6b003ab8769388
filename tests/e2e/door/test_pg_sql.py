"""The caller's own transaction: the examples as they are printed, and what concurrent callers see."""
import re
import subprocess
import threading

import psycopg2
import psycopg2.errors
import psycopg2.extensions
import pytest

import pg
import postgres_server
from conftest import HAPAX, PATIENCE, ROOT, wait_until

BEGIN = "SELECT verdict, token, attempt, fence, body FROM hapax.begin('transfers', %s, wait => %s)"


@pytest.fixture
def db():
    return pg.Database(pg.server())


def shell(*words, code=0):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.strip()


# ---- the examples -------------------------------------------------------------------------


def promised(path, comment):
    """(words, what it prints) of each example line in a file's head."""
    head = path.read_text().split("\n\n" if path.suffix == ".py" else "BEGIN;")
    lines = re.findall(rf"^{comment}    +((?:psql|transfer).*?)   +(\S.*)$", "\n".join(head[:3]), re.M)
    assert len(lines) == 3
    return lines


def test_plain_sql_pays_once(db):
    """examples/payments.sql: a payment, its replay, a mismatch, in psql alone."""
    path = ROOT / "examples/payments.sql"
    for line, printed in promised(path, "--"):
        words = line.split()[1:]
        assert shell("psql", "-X", "-d", db.conninfo(), *words[:-1], path) == printed
    assert db.one("SELECT count(*) FROM payments") == db.completed("payments") == 1


@pytest.mark.parametrize("program, comment", [(pg.TRANSFER, r" \*"), (pg.TRANSFER_PY, "")])
def test_a_transfer_is_done_once(db, program, comment):
    """examples/transfer.c and transfer.py: what their heads say they print, they print."""
    source = ROOT / "examples" / ("transfer.c" if program == pg.TRANSFER else "transfer.py")
    for line, printed in promised(source, comment):
        words = line.split()[2:]
        assert shell(program, db.conninfo(), *words, code=1 if "mismatch" in printed else 0) == printed.strip()
    assert db.run("SELECT debit, credit, amount FROM transfers") == [("alice", "bob", 100)]
    assert db.run("SELECT balance FROM accounts ORDER BY name") == [(900,), (1100,)]
    assert db.completed("transfers") == 1


def test_both_programs_share_an_operation(db):
    """The same scope, key and fingerprint by SQL and by C are one record."""
    assert shell(pg.TRANSFER_PY, db.conninfo(), "k", "alice", "bob", "7") == "claimed: moved 7 from alice to bob"
    assert shell(pg.TRANSFER, db.conninfo(), "k", "alice", "bob", "7") == "replay: moved 7 from alice to bob"
    assert shell(pg.TRANSFER, db.conninfo(), "k2", "alice", "bob", "8") == "fresh: moved 8 from alice to bob"
    assert shell(pg.TRANSFER_PY, db.conninfo(), "k2", "alice", "bob", "8") == "completed: moved 8 from alice to bob"
    assert db.one("SELECT count(*) FROM transfers") == 2


def test_too_little_money_moves_none_and_may_be_repeated(db):
    """A constraint's refusal rolls the debit back; with the money there, the same key goes through."""
    assert shell(pg.TRANSFER, db.conninfo(), "k", "alice", "bob", "5000", code=1) == "fresh: not moved"
    shell(pg.TRANSFER_PY, db.conninfo(), "k", "alice", "bob", "5000", code=1)
    assert db.run("SELECT balance FROM accounts") == [(1000,), (1000,)]
    db.rich()
    assert shell(pg.TRANSFER, db.conninfo(), "k", "alice", "bob", "5000") == "fresh: moved 5000 from alice to bob"
    db.check([5000])


# ---- two callers --------------------------------------------------------------------------


class Later(threading.Thread):
    """A statement on a connection of its own, in a thread; .result() is its row or raises what it raised."""

    def __init__(self, conn, statement, values):
        super().__init__(daemon=True)
        self.conn, self.statement, self.values = conn, statement, values
        self.row = self.error = None
        self.start()

    def run(self):
        try:
            with self.conn.cursor() as cursor:
                cursor.execute(self.statement, self.values)
                self.row = cursor.fetchone()
        except psycopg2.Error as error:
            self.error = error

    def result(self):
        self.join(PATIENCE)
        assert not self.is_alive()
        if self.error:
            raise self.error
        return self.row


def begin(conn, key, wait=True):
    with conn.cursor() as cursor:
        cursor.execute(BEGIN, (key, wait))
        return cursor.fetchone()


def complete(conn, token, body=b"done"):
    with conn.cursor() as cursor:
        cursor.execute("SELECT verdict, state, body FROM hapax.complete(%s, 201, body => %s)", (token, body))
        return cursor.fetchone()


def blocked(db, conn):
    return db.one("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", conn.info.backend_pid) > 0


def test_a_short_key_is_refused(db):
    """key_min: a key of fewer bytes is refused and leaves nothing; a step's name makes it no longer."""
    claim = "SELECT verdict FROM hapax.begin('transfers', %s, step => %s, key_min => %s)"
    for key, step, least, why in (("x" * 15, None, 16, "the key has fewer than 16 bytes"),
                                  ("x" * 15, "debit", 16, "the key has fewer than 16 bytes"),
                                  ("k", None, 256, "key_min is not between 0 and 255"),
                                  ("k", None, -1, "key_min is not between 0 and 255"),
                                  ("k", None, None, "key_min is not between 0 and 255")):
        with pytest.raises(psycopg2.errors.InvalidParameterValue, match=why):
            db.one(claim, key, step, least)
    assert db.one("SELECT count(*) FROM hapax.operations WHERE scope = 'transfers'") == 0
    assert db.one(claim, "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 8, None, 16) == "claimed"
    assert db.one(claim, "k", None, 0) == "claimed"


@pytest.mark.parametrize("commit", [True, False])
def test_the_second_waits_for_the_first_transaction(db, commit):
    """Committed: completed, with the outcome. Rolled back: nothing ever happened, and it is the first attempt."""
    first, second = db.connect(), db.connect()
    verdict, token, attempt, _, _ = begin(first, "k")
    assert (verdict, attempt) == ("claimed", 1)
    assert begin(second, "k", wait=False)[0] == "in_flight"
    second.rollback()
    waiting = Later(second, BEGIN, ("k", True))
    wait_until(lambda: blocked(db, second), "the second waiting")
    complete(first, token)
    first.commit() if commit else first.rollback()
    verdict, _, attempt, _, body = waiting.result()
    assert (verdict, attempt) == (("completed", 1) if commit else ("claimed", 1))
    assert bytes(body or b"") == (b"done" if commit else b"")


@pytest.mark.some(1)
@pytest.mark.parametrize("level", [psycopg2.extensions.ISOLATION_LEVEL_REPEATABLE_READ,
                                   psycopg2.extensions.ISOLATION_LEVEL_SERIALIZABLE])
def test_a_stricter_level_gives_40001_and_a_retry_loop_works(db, level):
    """The second of two begun at once is told to repeat, and then gets the first one's outcome."""
    first, second = db.connect(), db.connect()
    for conn in (first, second):
        conn.set_session(isolation_level=level)
    token = begin(first, "k")[1]
    waiting = Later(second, BEGIN, ("k", True))
    wait_until(lambda: blocked(db, second), "the second waiting")
    complete(first, token)
    first.commit()
    with pytest.raises(psycopg2.errors.SerializationFailure):
        waiting.result()
    second.rollback()
    assert begin(second, "k")[0] == "completed"


@pytest.mark.some(1)
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_eight_clients_with_a_retry_loop_move_the_money_once(db, level):
    """transfer.py and transfer at each isolation level, all for one key: one row, one outcome, everybody told."""
    conninfo = db.rich().conninfo()
    db.run(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'")
    processes = [subprocess.Popen([pg.TRANSFER if i % 2 else pg.TRANSFER_PY, conninfo, "k", "alice", "bob", "3"],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for i in range(8)]
    for process in processes:
        out, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert out.strip().endswith(": moved 3 from alice to bob")
    db.check([3])


# ---- zombies ------------------------------------------------------------------------------


def test_a_zombie_cannot_commit(db):
    """Its lease over and its claim taken over by another, complete() raises HX001 and its rows go back."""
    claim = "SELECT token, attempt, stale FROM hapax.begin('transfers', 'k', lease => '10ms')"
    token = db.one(claim)  # committed, and then the process stalls
    wait_until(lambda: db.run("SELECT 1 FROM hapax.operations WHERE scope = 'transfers' AND lease_until_us < "
                              "hapax.now_us()"),
               "the lease being over")
    (taken, attempt, stale), = db.run(claim)
    assert (attempt, stale) == (2, True)
    zombie = db.connect()
    with zombie.cursor() as cursor:
        cursor.execute("INSERT INTO transfers (debit, credit, amount) VALUES ('alice', 'bob', 1)")
    with pytest.raises(psycopg2.Error) as raised:
        complete(zombie, token)
    assert raised.value.pgcode == "HX001"
    zombie.commit()  # which PostgreSQL makes a rollback
    assert db.one("SELECT count(*) FROM transfers") == 0
    assert db.run("SELECT verdict, state FROM hapax.complete(%s, 201, \"raise\" => false)",
                  token) == [("lost", "started")]
    assert db.run("SELECT verdict, state FROM hapax.complete(%s, 201)", taken) == [("ok", "completed")]


def test_a_completion_under_way_is_not_taken_over(db):
    """From complete() to COMMIT the claim is held, its lease over or not: others are in flight, and then replayed."""
    token = db.one("SELECT token FROM hapax.begin('transfers', 'k', lease => '10ms')")
    slow, other = db.connect(), db.connect()
    complete(slow, token)
    wait_until(lambda: db.run("SELECT 1 FROM hapax.operations WHERE scope = 'transfers' AND lease_until_us < "
                              "hapax.now_us()"),
               "the lease being over")
    assert begin(other, "k", wait=False)[0] == "in_flight"
    other.rollback()
    slow.commit()
    assert begin(other, "k", wait=False)[0] == "completed"


# ---- PgBouncer ----------------------------------------------------------------------------


def test_everything_works_behind_pgbouncer_in_transaction_mode(db):
    """Both examples and begin/complete over two server connections for many clients; nothing is left in a session."""
    db.rich()
    with postgres_server.PgBouncer(db.server, default_pool_size=2) as bouncer:
        bouncer.start()
        conninfo = db.conninfo(port=bouncer.port)
        processes = [subprocess.Popen([pg.TRANSFER if i % 2 else pg.TRANSFER_PY, conninfo, f"k{i // 4}", "alice", "bob",
                                       str(i // 4 + 1)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                     for i in range(16)]
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
        db.check([1, 2, 3, 4])
        assert db.one("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


# ---- the page -----------------------------------------------------------------------------

PAGE = (ROOT / "docs/postgres.md").read_text()


def test_the_page_shows_the_examples_as_they_are():
    """Each block that is said to come from a file stands there, letter for letter."""
    shown = re.findall(r"^From \[(examples/\S+)\].*?\n\n```\w+\n(.*?)```$", PAGE, re.M | re.S)
    assert [path for path, _ in shown] == ["examples/payments_pg.py", "examples/payments.sql", "examples/transfer.py",
                                           "examples/transfer.c"]
    for path, block in shown:
        assert block in (ROOT / path).read_text(), path


@pytest.mark.parametrize("function", ["begin", "complete", "fail", "renew", "digest", "headers", "id", "key_derive"])
def test_the_page_names_every_argument_and_column(db, function):
    """Signatures as the server has them; an argument nobody wrote down, or one that is gone, is found here."""
    names, modes, columns = db.run(
        "SELECT proargnames, proargmodes, ARRAY(SELECT attname::text FROM pg_attribute a JOIN pg_type t ON "
        "a.attrelid = t.typrelid WHERE t.oid = prorettype AND attnum > 0 ORDER BY attnum) FROM pg_proc WHERE "
        "pronamespace = 'hapax'::regnamespace AND proname = %s", function)[0]
    names, modes = names + columns, (modes or ["i"] * len(names)) + ["t"] * len(columns)
    part = PAGE[PAGE.index("### hapax.begin"):PAGE.index("### Steps")]
    if function == "begin":
        part = part[:part.index("### hapax.complete")]
        written = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| \w+", part, re.M)
        assert [name for cell in written for name in re.findall(r"\w+", cell)] == names
    else:
        line = next(line for line in part.splitlines() if f"| `hapax.{function}" in line)
        for name, mode in zip(names, modes):
            assert re.search(rf"\b{name}\b", line if mode in "ivb" else part), name


def test_the_roles_of_the_page_are_enough_and_no_more(db):
    """The roles that "Roles" makes; then the examples as such a user, and what it may not do."""
    for use, program, more in zip(("caller", "executor"), (pg.TRANSFER_PY, pg.TRANSFER), ("run", "list")):
        role = f"hapax_{use}"
        assert f"--role {use}={role}" in PAGE
        db.run(f"DROP ROLE IF EXISTS {role}; DROP ROLE IF EXISTS {role}_user")
        shell(HAPAX, "init", "--store", db.uri, "--role", f"{use}={role}")
        db.run(f"CREATE ROLE {role}_user LOGIN IN ROLE {role};"
               f"GRANT SELECT, INSERT, UPDATE ON accounts, transfers TO {role}_user")
        try:
            out = shell(program, db.conninfo(user=f"{role}_user"), role, "alice", "bob", "1")
            assert out.endswith(": moved 1 from alice to bob")
            assert not db.one(f"SELECT has_table_privilege('{role}_user', 'hapax.operations', "
                              f"'SELECT,INSERT,UPDATE,DELETE')")
            assert db.one("SELECT bool_and(has_function_privilege(%s, oid, 'EXECUTE')) FROM pg_proc WHERE pronamespace "
                          "= 'hapax'::regnamespace AND proname = %s", f"{role}_user", more) is False
        finally:
            db.run(f"DROP OWNED BY {role}, {role}_user; DROP ROLE {role}_user; DROP ROLE {role}")
