"""What runs inside PostgreSQL (sql/): names, the caller's transaction, locks, plans, walks and migrations. That
hapax.run() judges as the machine does is the business of store_test.

    HAPAX_BUILD=build /usr/bin/python3 -m pytest tests/store/test_sql.py
"""
import base64
import concurrent.futures
import ctypes
import hashlib
import itertools
import os
import random
import re
import secrets
import subprocess
import threading
import time

import psycopg2
import pytest

import postgres_server
from process import PATIENCE, wait_for
from sql_database import (
    BUILD, ROOT, SCRIPT, CLAIM, RENEW, COMPLETE, READ, RESOLVE, CLAIMED,
    IN_FLIGHT, COMPLETED, OK, LOST, FOUND, ABSENT, RERUN, HOLD, FORGET, FORCE, PACKED, BUSY,
    FOREVER, LONG_MS, TYPES, Database, ask, row, begin, complete, in_encoding, op, answers, run, waits, later)

# ---- names ------------------------------------------------------------------------------------


class Span(ctypes.Structure):
    _fields_ = [("ptr", ctypes.c_char_p), ("len", ctypes.c_size_t)]


def span(data):
    return Span(data, len(data))


@pytest.fixture(scope="session")
def library():
    return ctypes.CDLL(str(BUILD / "libhapax.so"))


# An operation is one record through whichever door it comes: names of any size, with and without step and secret.
def test_ids_are_those_of_the_library(db, library):
    draw = random.Random(17)
    conn = db.connect()
    for length in (1, 2, 63, 64, 65, 254, 255):
        for secret in (b"", b"s", bytes(range(64)), bytes(range(200))):
            scope, key = ("".join(chr(draw.randrange(32, 127)) for _ in range(length)) for _ in range(2))
            step = "" if draw.random() < .5 else "st" * draw.randrange(1, 33)
            out = ctypes.create_string_buffer(32)
            assert library.hapax_id(out, span(scope.encode()), span(key.encode()),
                                    span(step.encode()), span(secret)) == 0
            ask(conn, "SELECT set_config('hapax.secret', %s, false)", secret.hex())
            assert bytes(ask(conn, "SELECT hapax.id(%s, %s, %s)", scope, key, step)[0][0]) == out.raw


# Fingerprints and callers are made alike on both sides, to the byte: parts do not run into each other.
def test_digests_and_derived_keys_are_those_of_the_library(db, library):
    conn = db.connect()
    for parts in ([], [b""], [b"ab", b"c"], [b"a", b"bc"], [bytes(range(256)) * 40]):
        out = ctypes.create_string_buffer(32)
        library.hapax_digest(out, (Span * len(parts))(*map(span, parts)), len(parts))
        assert bytes(ask(conn, "SELECT hapax.digest(VARIADIC %s::bytea[])", parts)[0][0]) == out.raw
    for key, step in (("k", "s"), ("k" * 240, "s" * 14), ("k" * 240, "s" * 15), ("k" * 255, "s" * 64)):
        out, length = ctypes.create_string_buffer(255), ctypes.c_size_t()
        assert library.hapax_key_derive(out, ctypes.byref(length), span(key.encode()), span(step.encode())) == 0
        assert ask(conn, "SELECT hapax.key_derive(%s, %s)", key, step)[0][0].encode() == out.raw[:length.value]


# What is over a limit is refused by name, and nothing is cut.
@pytest.mark.some(7)
@pytest.mark.parametrize("call, what", [
    ("hapax.begin('', 'k')", "the scope is empty"),
    ("hapax.begin('s', '')", "the key is empty"),
    ("hapax.begin('s', NULL)", "the key is empty"),
    ("hapax.begin(repeat('s', 256), 'k')", "the scope of 256 bytes is over 255"),
    ("hapax.begin('s', repeat('ä', 128))", "the key of 256 bytes is over 255"),
    ("hapax.begin('s', 'k', step => 'a:b')", 'the step "a:b" holds a colon'),
    ("hapax.begin('s', 'k', step => repeat('s', 65))", "the step of 65 bytes is over 64"),
    ("hapax.begin('s', 'k', lease => '0')", "lease is not between"),
    ("hapax.begin('s', 'k', lease => '11 years')", "lease is not between"),
    ("hapax.begin('s', 'k', on_expired => 'never')", "on_expired is not"),
    ("hapax.begin('s', 'k', attempts_max => -1)", "attempts_max is below 0"),
    ("hapax.begin('s', 'k', fingerprint => 'x')", "digests of 32 bytes"),
    ("hapax.begin('s', 'k', caller => decode(repeat('ff', 32), 'hex'))", "only an imported record"),
    ("hapax.complete('x')", "the token is not one"),
    ("hapax.complete(repeat('A', 64), 1000)", "status 1000 is not between"),
    ("hapax.complete(repeat('A', 64), 200, convert_to(repeat('h', 65537), 'UTF8'))", "headers of 65537 bytes are over"),
    ("hapax.headers('A')", "value is missing"),
    ("hapax.headers('A', E'b\\r\\nC: d')", "is no header"),
    ("hapax.headers('X(A)', 'b')", "is no header"),
    ("hapax.headers('', 'b')", "is no header"),
])
def test_a_limit_is_named(db, call, what):
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match=what):
        db.run(f"SELECT * FROM {call}")


# Headers that a replay would leave out, or read as others than were meant, are refused by what is wrong, and none of
# their values is shown.
def test_headers_that_are_none_are_refused(db):
    conn = db.connect()
    operation = begin(conn)["token"]
    step = ask(conn, "SELECT step_token FROM hapax.step_begin(%s, 'shop', 'k', 's')", operation)[0][0]
    for headers, what in (
            (b"not a header line", "line 1 of the headers has no name"),
            (b"secret\r\n", "line 1 of the headers has no name"),
            (b"A: b\r\n: secret\r\n", "line 2 of the headers has no name"),
            (b"A: b\r\n\r\n", "line 2 of the headers has no name"),
            (b"X A: secret\r\n", "line 1 of the headers has no name"),
            (b"X-A : secret\r\n", "line 1 of the headers has no name"),
            (b"X(A): secret\r\n", "line 1 of the headers has no name"),
            (b"X\\000: secret\r\n", "line 1 of the headers has no name"),
            ("Ä: secret\r\n".encode(), "line 1 of the headers has no name"),
            (b"A: b\r\n secret\r\n", "line 2 of the headers has no name"),
            (b"A: b\r\n" * 5000 + b"secret\r\n", "line 5001 of the headers has no name"),
            (b"X-A: secret", 'line 1 of the headers, "X-A", does not end with CR LF'),
            (b"A: b\r\nX-A: secret", 'line 2 of the headers, "X-A", does not end with CR LF'),
            (b"X-A: secret\r", 'line 1 of the headers, "X-A", does not end with CR LF'),
            (b"X-A: secret\nX-B: no\r\n", 'line 1 of the headers, "X-A", does not end with CR LF'),
            (b"A: b\r\nX-A: secret\rX-B: no\r\n", 'line 2 of the headers, "X-A", holds a CR'),
            (b"X-A: secret\r\r\n", 'line 1 of the headers, "X-A", holds a CR'),
            (b"X\x00A: secret\r\n", "the headers hold a NUL"),
            (b"X-A: secret\x00\r\n", "the headers hold a NUL")):
        for function, token in (("complete", operation), ("fail", operation),
                                ("step_complete", step), ("step_fail", step)):
            with pytest.raises(psycopg2.errors.InvalidParameterValue, match=what) as refused:
                ask(conn, f"SELECT * FROM hapax.{function}(%s, status => 200, headers => %s)", token, headers)
            assert refused.value.pgcode == "22023" and "secret" not in str(refused.value)
    assert [row(conn, "hapax.renew(%s)", token)["state"] for token in (operation, step)] == ["started", "started"]


# All that is a header is stored to the byte: any sign of a name, no value, any byte but CR, LF and NUL in one.
def test_headers_are_stored_to_the_byte(db):
    conn = db.connect()
    for i, headers in enumerate((
            None, b"", b"A:\r\n", b"A:b\r\n", b"!#$%&'*+-.^_`|~09azAZ: \r\n", b"Location: /a:b\r\nX-A: 1\r\nX-A: 2\r\n",
            b"X: " + bytes(set(range(1, 256)) - {10, 13}) + b"\r\n", b"X: \\000 \\\r\n", b"A: b\r\n" * 10922)):
        operation = begin(conn, str(i))["token"]
        step = ask(conn, "SELECT step_token FROM hapax.step_begin(%s, 'shop', %s, 's')", operation, str(i))[0][0]
        assert row(conn, "hapax.step_complete(%s, 200, %s)", step, headers)["headers"] == (headers or b"")
        assert row(conn, "hapax.fail(%s, status => 500, headers => %s)", operation, headers)["state"] == "failed"
        assert row(conn, "hapax.complete(%s, 200, %s)", begin(conn, str(i))["token"],
                   headers)["headers"] == (headers or b"")
        assert begin(conn, str(i))["headers"] == (headers or b"")


# ---- the caller's transaction -----------------------------------------------------------------


# Claim, effect and outcome are one commit, and each later caller gets that outcome, to the byte.
def test_a_transaction_that_commits_is_replayed(db):
    conn = db.connect(autocommit=False)
    ask(conn, "CREATE TABLE effects (n int)")
    claimed = begin(conn)
    assert (claimed["verdict"], claimed["attempt"], claimed["stale"]) == ("claimed", 1, False)
    assert len(base64.urlsafe_b64decode(claimed["token"])) == 48 and claimed["fence"] > 0
    ask(conn, "INSERT INTO effects VALUES (1)")
    body = bytes(range(256)) * 300
    done = complete(conn, claimed["token"], body)
    assert (done["verdict"], done["state"], done["status"], done["body"]) == ("ok", "completed", 200, body)
    conn.commit()
    again = begin(conn)
    assert (again["verdict"], again["status"], again["headers"], again["body"], again["body_kept"], again["token"]) == \
        ("completed", 200, b"A: b\r\n", body, True, None)
    again = complete(conn, claimed["token"], b"another", **{"raise": False})
    assert (again["verdict"], again["body"]) == ("completed", body)
    conn.commit()


# Rolled back, in whole or to a savepoint, nothing ever happened.
def test_a_transaction_that_rolls_back_leaves_nothing(db):
    conn = db.connect(autocommit=False)
    begin(conn, "first")  # leaves what the first user of a store leaves
    conn.commit()
    before = db.run("SELECT count(*) FROM hapax.operations")
    complete(conn, begin(conn)["token"])
    conn.rollback()
    ask(conn, "SAVEPOINT here")
    complete(conn, begin(conn)["token"])
    ask(conn, "ROLLBACK TO here")
    conn.commit()
    assert db.run("SELECT count(*) FROM hapax.operations") == before
    assert begin(conn)["attempt"] == 1


# An open claim is nobody else's to see, but it is in flight for those who will not wait, at once.
def test_one_who_will_not_wait_is_told_in_flight(db):
    holder, other = db.connect(autocommit=False), db.connect()
    begin(other, "first")
    claimed = begin(holder)
    assert begin(other, wait=False)["verdict"] == "in_flight"
    assert run(other, [op(READ, bytes(ask(other, "SELECT hapax.id('shop', 'k')")[0][0]))])[0][0] == ABSENT
    complete(holder, claimed["token"])
    assert begin(other, wait=False)["verdict"] == "in_flight"
    holder.commit()
    assert begin(other, wait=False)["verdict"] == "completed"


# The second waits for the first and sees what came of it, although its statement is the older one.
@pytest.mark.parametrize("end, verdict", [("commit", "completed"), ("rollback", "claimed")])
def test_one_who_waits_sees_what_came_of_it(db, end, verdict):
    holder, other = db.connect(autocommit=False), db.connect()
    begin(other, "first")
    complete(holder, begin(holder)["token"], b"theirs")
    answer = later(begin, other)
    waits(db, other)
    assert not answer.done()
    getattr(holder, end)()
    answer = answer.result(PATIENCE)
    assert answer["verdict"] == verdict and answer["body"] == (b"theirs" if verdict == "completed" else None)


# A snapshot older than the other's commit cannot claim: 40001, and the repeat sees the outcome.
@pytest.mark.some(1)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_transaction_is_told_to_repeat(db, level):
    holder, other = db.connect(autocommit=False), db.connect(autocommit=False)
    begin(other, "first")
    other.commit()
    other.set_session(isolation_level=level)
    complete(holder, begin(holder)["token"], b"theirs")
    ask(other, "SELECT 1 FROM pg_class")  # the snapshot
    answer = later(begin, other)
    waits(db, other)
    holder.commit()
    with pytest.raises(psycopg2.errors.SerializationFailure):
        answer.result(PATIENCE)
    other.rollback()
    assert begin(other)["body"] == b"theirs"


# A new key and its completion go a short way of their own: what is answered and kept is what hapax.run()'s tables say,
# for the claim of a key whose record has expired, which goes by them, and the completion of that.
@pytest.mark.parametrize("more", [{}, {"on_expired": "hold", "owner": "anna", "what": "pay", "lease": "1 day"},
                                  {"retention": None, "on_expired": "reconcile", "step": "a"}])
def test_the_short_way_is_the_tables(db, more):
    conn, id_of = db.connect(), "hapax.id('shop', %s, %s, %s)"

    def kept(key):
        of = (key, more.get("step"), more.get("owner"))
        found = row(conn, f"hapax.operations WHERE id = {id_of}", *of)
        since = {name: found[name] and found[name] - found["updated_us"] for name in ("lease_until_us", "expires_us")}
        mark = ask(conn, "SELECT hapax.mark_of(t.token) FROM hapax.token_parts(%s) t", tokens[key])[0][0]
        return {**found, **since, "id": None, "token": found["token"] == bytes(mark), "created_us": None,
                "updated_us": None, "fence": found["fence"] - found["created_us"]}

    complete(conn, begin(conn, "expired", **more)["token"])
    ask(conn, f"UPDATE hapax.operations SET expires_us = 1 WHERE id = {id_of}", "expired", more.get("step"),
        more.get("owner"))
    told = {key: begin(conn, key, **more) for key in ("new", "expired")}
    tokens = {key: one.pop("token") for key, one in told.items()}
    assert abs(told["new"].pop("fence") - told["expired"].pop("fence")) < LONG_MS * 1000
    assert told["new"] == told["expired"] and kept("new") == kept("expired") and kept("new")["token"]
    short = complete(conn, tokens["new"], None)
    id, token = ask(conn, "SELECT id, token FROM hapax.token_parts(%s)", tokens["expired"])[0]
    ask(conn, f"SELECT hapax.run('{{3}}', ARRAY[%s::bytea], ARRAY[%s::bytea], {'NULL, ' * 5} '{{0}}', '{{0}}', "
              f"'{{200}}', ARRAY[%s::bytea], NULL, NULL, NULL, NULL, true)", id, token, b"A: b\r\n")
    assert kept("new") == kept("expired") and kept("new")["state"] == 2
    long = begin(conn, "expired", **more)
    again = begin(conn, "new", **more)
    assert {**again, "fence": 0} == {**long, "fence": 0}
    assert (again["verdict"], again["attempt"], again["stale"]) == ("completed", 1, False)
    for other in ("caller", "fingerprint"):
        answer = begin(conn, "new", **{**more, other: b"o" * 32})
        assert (answer["verdict"], answer["body"]) == ("mismatch", None)
    assert {name: short[name] for name in again if name in short and name != "verdict"} == \
        {name: again[name] for name in short if name in again and name != "verdict"}


# A repeat only reads: it is replayed where nothing may be written, and holds no lock. What is sealed, or is of any
# request and caller, goes no short way: the first is refused, the second replayed to all but those who name "any".
def test_a_repeat_writes_and_locks_nothing(db):
    conn, any_one = db.connect(autocommit=False), b"\xff" * 32
    complete(conn, begin(conn)["token"])
    conn.commit()
    conn.set_session(readonly=True)
    assert begin(conn)["verdict"] == "completed"
    assert ask(conn, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == [(0,)]
    conn.rollback()
    conn.set_session(readonly=False)
    db.run("UPDATE hapax.operations SET fingerprint = %s, caller = %s WHERE scope = 'shop'", any_one, any_one)
    assert begin(conn, caller=b"c" * 32)["verdict"] == "completed"
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="only an imported record"):
        begin(conn, fingerprint=any_one, caller=any_one)
    conn.rollback()
    db.run("UPDATE hapax.operations SET fingerprint = %s, caller = %s, headers = %s WHERE scope = 'shop'",
           bytes(32), bytes(32), b"\x00sealed")
    with pytest.raises(psycopg2.Error, match="sealed") as refused:
        begin(conn)
    assert refused.value.pgcode == "HX004"


# A zombie's transaction cannot commit: complete() raises, unless it is asked to return.
def test_a_zombie_cannot_commit(db):
    zombie, other = db.connect(), db.connect()
    ask(zombie, "CREATE TABLE effects (n int)")
    old = begin(zombie, lease="1 ms")
    new = wait_for(lambda: (lambda got: got if got["verdict"] == "claimed" else None)(begin(other)),
                   "the lease being over")
    assert (new["attempt"], new["stale"]) == (2, True) and new["fence"] > old["fence"]
    for call in ("complete(%s)", "fail(%s)", "renew(%s)"):
        zombie.autocommit = False
        ask(zombie, "INSERT INTO effects VALUES (1)")
        with pytest.raises(psycopg2.Error) as raised:
            row(zombie, "hapax." + call, old["token"])
        assert raised.value.pgcode == "HX001"
        with pytest.raises(psycopg2.errors.InFailedSqlTransaction):
            ask(zombie, "SELECT 1")
        zombie.commit()
    assert db.run("SELECT count(*) FROM effects") == [(0,)]
    lost = complete(zombie, old["token"], **{"raise": False})
    assert (lost["verdict"], lost["state"], lost["attempt"], lost["body"]) == ("lost", "started", 2, None)
    complete(other, new["token"], b"theirs")
    lost = complete(zombie, old["token"], **{"raise": False})
    assert (lost["verdict"], lost["state"], lost["body"]) == ("lost", "completed", None)
    assert begin(zombie)["body"] == b"theirs"


# A transaction that is repeated with its token, after one that was committed or beside it, cannot commit its rows
# too: complete() raises, or is asked to say `completed`. So it is within one transaction.
@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_a_repeated_transaction_cannot_commit(db, level):  # promise 24
    first, second = db.connect(), db.connect()
    ask(first, "CREATE TABLE effects (n int)")
    token = begin(first, on_expired="hold")["token"]
    for conn in (first, second):
        conn.set_session(isolation_level=level, autocommit=False)
        ask(conn, "INSERT INTO effects VALUES (1)")
    assert complete(first, token, b"first")["verdict"] == "ok"
    beside = later(complete, second, token, b"second")
    waits(db, second)
    first.commit()
    with pytest.raises(psycopg2.Error) as raised:
        beside.result(PATIENCE)
    assert raised.value.pgcode == ("HX001" if level == "READ COMMITTED" else "40001")
    second.rollback()
    ask(second, "INSERT INTO effects VALUES (1)")
    with pytest.raises(psycopg2.Error, match="is completed already") as raised:
        complete(second, token, b"second")
    assert raised.value.pgcode == "HX001"
    second.rollback()
    again = complete(second, token, b"second", **{"raise": False})
    assert (again["verdict"], again["state"], again["body"]) == ("completed", "completed", b"first")
    second.rollback()
    token = begin(second, "one")["token"]
    complete(second, token)
    with pytest.raises(psycopg2.Error, match="is completed already"):
        complete(second, token)
    second.rollback()
    assert db.run("SELECT count(*) FROM effects") == [(1,)]


# A step that is repeated so cannot commit its rows either. The operation goes on: step_begin() has the step's outcome.
def test_a_repeated_step_cannot_commit(db):  # promise 24
    conn = db.connect()
    ask(conn, "CREATE TABLE effects (n int)")
    token = begin(conn, on_expired="hold")["token"]
    step = "hapax.step_begin(%s, 'shop', 'k', 'debit')"
    step_token = row(conn, step, token)["step_token"]
    conn.autocommit = False
    for raised in (None, "HX001"):
        ask(conn, "INSERT INTO effects VALUES (1)")
        try:
            row(conn, "hapax.step_complete(%s, 201, body => 'receipt')", step_token)
            conn.commit()
        except psycopg2.Error as error:
            assert error.pgcode == raised and "step_begin()" in error.diag.message_hint
            conn.rollback()
    again = row(conn, step, token)
    assert (again["verdict"], again["body"]) == ("completed", b"receipt")
    assert complete(conn, token)["verdict"] == "ok"
    conn.commit()
    assert db.run("SELECT count(*) FROM effects") == [(1,)]


# A made-up token shows no outcome: only begin() does, which compares fingerprint and caller.
def test_a_made_up_token_shows_no_outcome(db):
    conn = db.connect()
    complete(conn, begin(conn, caller=b"c" * 32)["token"], b"a secret")
    ((id,),) = ask(conn, "SELECT hapax.id('shop', 'k')")
    token = base64.urlsafe_b64encode(bytes(id) + bytes(16)).decode()
    for call in ("complete", "fail", "renew"):
        lost = row(conn, f'hapax.{call}(%s, "raise" => false)', token)
        assert lost["verdict"] == "lost" and lost["status"] is lost["headers"] is lost["body"] is None
    assert begin(conn)["verdict"] == "mismatch"


# Who reads the table, its backup or its replica gets no token: by what stands there no claim can be ended.
def test_who_reads_the_table_cannot_complete(db):
    conn = db.connect()
    token = begin(conn)["token"]
    given = base64.urlsafe_b64decode(token)
    ((id, kept),) = db.run("SELECT id, token FROM hapax.operations WHERE scope = 'shop'")
    assert (bytes(id), bytes(kept)) == (given[:32], hashlib.sha256(given[32:]).digest()[:16])
    made_up = base64.urlsafe_b64encode(bytes(id) + bytes(kept)).decode()
    for call in ("complete", "fail", "renew"):
        assert row(conn, f'hapax.{call}(%s, "raise" => false)', made_up)["verdict"] == "lost"
    with pytest.raises(psycopg2.Error, match="the claim is lost"):
        row(conn, "hapax.step_begin(%s, 'shop', 'k', 'charge')", made_up)
    assert complete(conn, token)["verdict"] == "ok"


# With a secret fingerprint and caller are kept as HMACs, of a step too, as hapax__identify() makes them
# (tests/unit/test_text.c has the same numbers).
def test_fingerprint_and_caller_are_put_under_the_secret(db):
    conn, request = db.connect(), {"fingerprint": bytes(range(0x40, 0x60)), "caller": bytes(range(0x80, 0xa0))}
    ask(conn, "SET hapax.secret = '73'")
    token = begin(conn, **request)["token"]
    row(conn, "hapax.step_begin(%s, 'shop', 'k', 'charge')", token)
    kept = db.run("SELECT encode(fingerprint, 'hex'), encode(caller, 'hex') FROM hapax.operations WHERE scope = 'shop' "
                  "AND fingerprint <> hapax.digest('hapax', 'step')")
    assert kept == 2 * [("616a1718bc3eea485de82be1f65e19cc55f4ecc6831476eb60e2535b1e3f3be3",
                         "2b32f37db7f09a7fa18b391ad05909d0e61282ac1eae4aa7ae14e53f2437f291")]
    assert begin(conn, **request)["verdict"] == "in_flight"
    assert begin(conn, **request, step="charge")["verdict"] == "in_flight"
    assert begin(conn, **request | {"caller": bytes(32)})["differs"] == "caller"
    assert begin(conn, **request | {"fingerprint": bytes(32)})["differs"] == "fingerprint"


# A failure is recorded: the next runs again, with its attempt counted, and as_unknown is for an operator.
def test_a_failure_is_recorded(db):
    conn = db.connect()
    token = begin(conn)["token"]
    failed = row(conn, "hapax.fail(%s, status => 500)", token)
    assert (failed["verdict"], failed["state"]) == ("ok", "failed")
    assert row(conn, "hapax.fail(%s, status => 500)", token)["verdict"] == "ok"
    last = begin(conn, attempts_max=1)
    assert (last["verdict"], last["status"]) == ("failed", 500)
    again = begin(conn)
    assert (again["verdict"], again["attempt"]) == ("claimed", 2)
    assert row(conn, "hapax.fail(%s, as_unknown => true)", again["token"])["state"] == "unknown"
    assert begin(conn)["verdict"] == "unknown"
    assert begin(conn, fingerprint=bytes(31) + b"1")["differs"] == "fingerprint"
    assert begin(conn, caller=bytes(31) + b"1")["differs"] == "caller"


# A renewal lengthens the lease and never shortens it; a body of NULL is not kept; a retention of NULL never ends.
def test_leases_bodies_and_retentions(db):
    conn = db.connect()
    claimed = begin(conn, retention=None)
    until = "SELECT lease_until_us, expires_us FROM hapax.operations WHERE scope = 'shop'"
    (first, expires), = db.run(until)
    assert expires == 0
    row(conn, "hapax.renew(%s, '1 second')", claimed["token"])
    assert db.run(until) == [(first, 0)]
    row(conn, "hapax.renew(%s, '1 hour')", claimed["token"])
    assert db.run(until)[0][0] > first + 3000 * 10**6
    row(conn, "hapax.complete(%s, 200, body => NULL)", claimed["token"])
    gone = begin(conn)
    assert (gone["verdict"], gone["body_kept"], gone["body"]) == ("completed", False, b"")


# Another secret makes other ids: a store first used with one refuses all others.
def test_another_secret_is_refused(db):
    conn = db.connect()
    begin(conn)
    ask(conn, "SET hapax.secret = '0011'")
    with pytest.raises(psycopg2.Error, match="another secret, or with none") as raised:
        begin(conn)
    assert raised.value.pgcode == "HX002"
    ask(conn, "SET hapax.secret = 'no hex'")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="not hex"):
        begin(conn)


# The record that binds a store is the library's: bound by hapax here, SQL with that secret is let in.
def test_a_bound_store_is_one_for_both_doors(db):
    conn = db.connect()
    ask(conn, "SET hapax.secret = '73336372337430'")
    begin(conn)
    (check,), = db.run("SELECT fingerprint FROM hapax.operations WHERE id = hapax.digest('hapax', 'secret') AND state "
                       "= 2 AND expires_us = 0")
    assert bytes(check) == bytes(ask(conn, "SELECT hapax.id('hapax', 'secret')")[0][0])


# A program gets the functions it needs, and neither the table, where outcomes are, nor an operator's powers.
def test_a_program_gets_no_more_than_it_is_granted(db):
    db.run("DROP ROLE IF EXISTS shop; CREATE ROLE shop LOGIN; GRANT USAGE ON SCHEMA hapax TO shop;"
           "GRANT EXECUTE ON FUNCTION hapax.begin, hapax.complete, hapax.fail, hapax.renew, hapax.headers, hapax.id TO "
           "shop")
    conn = db.connect(user="shop")
    complete(conn, begin(conn)["token"])
    assert begin(conn)["verdict"] == "completed" and ask(conn, "SELECT hapax.id('a', 'b')")
    for forbidden in ("SELECT token FROM hapax.operations",
                      "DELETE FROM hapax.operations", "SELECT * FROM hapax.purge(NULL, 1)",
                      "SELECT * FROM hapax.list(0, NULL, 0, 1, NULL)",
                      "SELECT * FROM hapax.run('{5}', '{x}', NULL, NULL, NULL, NULL, NULL, NULL, '{0}', NULL, NULL, "
                      "NULL, NULL, NULL, NULL, NULL, false)"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            ask(conn, forbidden)
    conn.close()
    db.run("DROP OWNED BY shop; DROP ROLE shop")


# ---- locks ------------------------------------------------------------------------------------


def ids(n):
    return [secrets.token_bytes(32) for _ in range(n)]


# One operation held by an open transaction, and one row by an operator's own UPDATE, delay nobody else.
def test_a_held_row_delays_no_other(db):
    holder, operator, conn = db.connect(autocommit=False), db.connect(autocommit=False), db.connect()
    many = ids(1000)
    run(conn, [op(CLAIM, many[7], b"t" * 16)])
    run(holder, [op(CLAIM, many[500])])
    ask(operator, "UPDATE hapax.operations SET spent = spent WHERE id = %s", many[7])
    ask(conn, "SET statement_timeout = '30s'")
    verdicts = [verdict for at in range(0, 1000, 100)
                for verdict in run(conn, [op(CLAIM, id) for id in many[at:at + 100]])]
    assert [v[0] for v in verdicts].count(CLAIMED) == 998
    assert verdicts[500][:2] == (0, BUSY) and verdicts[7][0] == IN_FLIGHT
    done = [verdict for at in range(0, 1000, 100)
            for verdict in run(conn, [op(COMPLETE, id, b"t" * 16 if id == many[7] else bytes(15) + b"1")
                                      for id in many[at:at + 100]])]
    assert [v[0] for v in done].count(OK) == 998
    assert done[7][:2] == (0, BUSY) and done[500][0] == LOST
    holder.commit()
    operator.rollback()
    assert run(conn, [op(COMPLETE, many[500]), op(COMPLETE, many[7], b"t" * 16)]) == [(OK, 0, 2, 1)] * 2


# A store's CLAIM that meets a caller's transaction is IN_FLIGHT at once; what meets another batch is busy, since that
# may be its own ghost.
def test_who_is_met_decides_the_answer(db):
    holder, conn = db.connect(autocommit=False), db.connect()
    begin(conn, "first")
    begin(holder)
    id = bytes(ask(conn, "SELECT hapax.id('shop', 'k')")[0][0])
    other, = ids(1)
    run(holder, [op(CLAIM, other)])
    assert run(conn, [op(CLAIM, id), op(CLAIM, other)]) == [(IN_FLIGHT, 0, 0, None), (0, BUSY, 0, None)]
    holder.rollback()
    assert [r[0] for r in run(conn, [op(CLAIM, id), op(CLAIM, other)])] == [CLAIMED, CLAIMED]


# Who was told in_flight holds nothing for it: his transaction, however long, is in nobody's way.
def test_one_who_was_turned_away_holds_nothing(db):
    batch, turned_away, conn = db.connect(autocommit=False), db.connect(autocommit=False), db.connect()
    begin(conn, "first")
    id = bytes(ask(conn, "SELECT hapax.id('shop', 'k')")[0][0])
    run(batch, [op(CLAIM, id)])
    assert begin(turned_away, wait=False)["verdict"] == "in_flight"
    batch.rollback()
    ask(conn, "SET statement_timeout = '30s'")
    assert begin(conn)["verdict"] == "claimed"
    assert ask(turned_away,
               "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == [(0,)]


# Batches that overlap in any order neither deadlock nor wait, and each operation has one winner.
def test_overlapping_batches_do_not_deadlock(db):
    many, won, lock, faults = ids(40), {}, threading.Lock(), []

    def work(seed):
        draw, conn = random.Random(seed), db.connect()
        try:
            while len(won) < len(many):
                some = draw.sample(many, 24)
                token = secrets.token_bytes(16)
                for id, answer in zip(some, run(conn, [op(CLAIM, id, token) for id in some])):
                    if answer[0] == CLAIMED:
                        with lock:
                            faults.extend([id] if id in won else [])
                            won[id] = token
                    elif answer[0] != IN_FLIGHT and answer[1] != BUSY:
                        faults.append(answer)
        except psycopg2.Error as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENCE)
    assert not faults and len(won) == 40
    assert db.run("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


# What commits between the look and the lock is seen: under eight who race for every key, none is claimed twice,
# and no completion is written over.
def test_a_record_that_changed_is_judged_again(db):
    ends, faults = {}, []

    def work(seed):
        draw, conn = random.Random(seed), db.connect()
        try:
            for n in range(150):
                some = [n.to_bytes(32, "big") for n in draw.sample(range(n, n + 8), 4)]
                token = secrets.token_bytes(16)
                won = [id for id, answer in zip(some, run(conn, [op(CLAIM, id, token) for id in some]))
                       if answer[0] == CLAIMED]
                for id, answer in zip(won,
                                      run(conn, [op(COMPLETE, id, token, body=token) for id in won]) if won else []):
                    if answer[0] == OK and ends.setdefault(id, token) != token:
                        faults.append(id)
        except psycopg2.Error as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENCE)
    assert not faults
    stored = {bytes(id): bytes(body) for id, body in db.run("SELECT id, body FROM hapax.operations WHERE state = 2")}
    assert all(stored[id] == token for id, token in ends.items()) and len(ends) > 50


# A row that is rewritten by hand, without the lock, while an op on it is under way, is not written over with what was
# judged before.
def test_a_row_that_was_rewritten_is_judged_again(db):
    operator, conn = db.connect(autocommit=False), db.connect()
    token = begin(conn)["token"]
    ask(operator, "UPDATE hapax.operations SET hold = true, spent = 7 WHERE scope = 'shop'")
    done = later(complete, conn, token)
    waits(db, conn)
    operator.commit()
    assert done.result(PATIENCE)["verdict"] == "ok"
    assert db.run("SELECT state, hold, spent FROM hapax.operations WHERE scope = 'shop'") == [(2, True, 7)]
    # The same by the tables, which a FAIL asks.
    token = begin(conn, "other")["token"]
    ask(operator, "UPDATE hapax.operations SET spent = 7 WHERE state = 1")
    done = later(ask, conn, "SELECT hapax.fail(%s)", token)
    waits(db, conn)
    operator.commit()
    done.result(PATIENCE)
    assert db.run("SELECT state, spent FROM hapax.operations WHERE state <> 2") == [(3, 8)]


# A row that is inserted by hand while a claim of its id is under way is found, not lost, and not claimed.
def test_a_row_that_was_inserted_is_judged_again(db):
    operator, conn = db.connect(autocommit=False), db.connect()
    ask(operator,
        "INSERT INTO hapax.operations SELECT 1, 1, 0, 0, 1, 0, 1, 1, 0, 2, 204, false, false, false, false, true, "
        "hapax.id('shop', 'k'),substr(sha256(''), 1, 16), decode(repeat('00', 32), 'hex'), decode(repeat('00', 32), "
        "'hex'), 'shop', '', '', 'by hand'")
    answer = later(begin, conn)
    waits(db, conn)
    operator.commit()
    assert answer.result(PATIENCE)["body"] == b"by hand"


# Claims of what is new and completions by their own token go another way than the rest, where rows may be packed: each
# op of a mixed batch is answered once, by the same rules.
@pytest.mark.parametrize("packed", [True, False])
def test_a_mixed_batch_answers_each_op_once(db, packed):
    conn = db.connect()

    def run(conn, ops):
        return [(row["verdict"], row["error"]) for row in answers(conn, ops, packed=packed)]

    ids = [secrets.token_bytes(32) for _ in range(40)]
    other = b"2" * 16
    assert {r[0] for r in run(conn, [op(CLAIM, id) for id in ids[:30]])} == {CLAIMED}
    assert {r[0] for r in run(conn, [op(COMPLETE, id, body=b"x") for id in ids[:10]])} == {OK}
    wanted = ([(op(CLAIM, id, other), COMPLETED) for id in ids[:5]] + [(op(COMPLETE, id), OK) for id in ids[5:10]]
              + [(op(COMPLETE, id), OK) for id in ids[10:15]] + [(op(COMPLETE, id, other), LOST) for id in ids[15:20]]
              + [(op(CLAIM, id, other), IN_FLIGHT)
                 for id in ids[20:24]] + [(op(CLAIM, id), CLAIMED) for id in ids[24:26]]
              + [(op(READ, id), FOUND) for id in ids[26:30]] + [(op(CLAIM, id), CLAIMED) for id in ids[30:35]]
              + [(op(COMPLETE, id), LOST) for id in ids[35:38]] + [(op(READ, id), ABSENT) for id in ids[38:]])
    random.shuffle(wanted)
    assert [r[:2] for r in run(conn, [w[0] for w in wanted])] == [(w[1], 0) for w in wanted]
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="twice"):
        run(conn, [op(COMPLETE, ids[30]), op(COMPLETE, ids[30]), op(COMPLETE, ids[31])])
    assert [r[0] for r in run(conn, [op(COMPLETE, ids[30]), op(COMPLETE, ids[31])])] == [OK, OK]


# What a packed row says of an op, and what follows from it, is what its record says.
@pytest.mark.some()
@pytest.mark.parametrize("flags", [RERUN, HOLD, RERUN | 16])
@pytest.mark.parametrize("owner, what", [(b"", b""), (b"o" * 32, b"w" * 255), (b"", b"POST /pay")])
def test_a_packed_row_says_what_the_record_does(db, flags, owner, what):
    conn, some = db.connect(), ids(3)
    more = {"scope": b"s" * 255, "owner": owner, "what": what}
    call = "SELECT ord, verdict FROM hapax.run(" + ", ".join(f"%s::{type}[]" for type in TYPES) + ", false)"

    def check(told, *more):
        for id, packed in zip(some, told):
            read, = answers(conn, [op(READ, id)])
            for name in ("state", "hold", "attempt", "spent", "fence", "created_us", "updated_us", *more):
                assert packed[name] == read[name], name

    check(answers(conn, [op(CLAIM, id, flags=flags, **more) for id in some]), "lease_until_us")
    db.run("UPDATE hapax.operations SET attempt = 3, spent = 2, ran = true, fence = fence + 7, created_us = created_us "
           "- 5")
    check(answers(conn, [op(COMPLETE, id, flags=512, body=b"b") for id in some]), "scope", "fingerprint", "caller",
          "owner", "what")
    told = answers(conn, [op(COMPLETE, id, flags=512, body=b"other") for id in some])  # what stands is told
    assert [(row["outcome"], row["body"]) for row in told] == [(1, b"b")] * 3
    for kind, verdict in (CLAIM, CLAIMED), (COMPLETE, OK):
        ops = [op(kind, id, flags=RERUN | PACKED) for id in (b"1" * 32, b"2" * 32)]
        assert ask(conn, call, *[list(column) for column in zip(*ops)]) == [(None, verdict)]


# What is completed is told alike by the lean statement and by the tables, one that an operator completed among it.
def test_a_replay_is_told_alike(db):
    conn, some = db.connect(), ids(3)
    run(conn, [op(CLAIM, id, owner=b"o" * 32, what=b"pay") for id in some])
    run(conn, [op(COMPLETE, id, flags=512, body=b"x") for id in some[:2]])
    assert run(conn, [op(RESOLVE, some[2], b"n" * 16, 1 << 2 | FORCE)])[0][0] == OK
    again = [op(CLAIM, id, b"2" * 16) for id in some]
    lean, tables = ([{**row, "now_us": 0} for row in answers(conn, again, packed=packed)] for packed in (True, False))
    assert lean == tables and [row["verdict"] for row in lean] == [COMPLETED] * 3


# A record that an operator has decided about is no common one: its completion is judged by the tables, and tells of it.
def test_a_resolved_record_is_not_packed(db):
    conn, (id,) = db.connect(), ids(1)
    run(conn, [op(CLAIM, id)])
    db.run("UPDATE hapax.operations SET resolved_us = 17, resolved_by = 'ann'")
    row, = answers(conn, [op(COMPLETE, id)])
    assert (row["verdict"], row["resolved_us"], row["resolved_by"], row["attempt"]) == (OK, 17, b"ann", 1)


# The same id twice in one batch is the seam's mistake, and is told, not written.
def test_an_id_comes_once_in_a_batch(db):
    same, = ids(1)
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="twice"):
        run(db.connect(), [op(CLAIM, same, b"a" * 16), op(CLAIM, same, b"b" * 16)])
    assert db.run("SELECT count(*) FROM hapax.operations") == [(0,)]


# ---- plans ------------------------------------------------------------------------------------


def scans(db):
    """Sequential scans of the table so far, as counted once the statistics have arrived."""
    return db.run("SELECT seq_scan FROM pg_stat_all_tables WHERE relid = 'hapax.operations'::regclass")[0][0] or 0


# A plan that was made while the table was empty, or just analyzed so, still finds ids one by one when it is large.
@pytest.mark.some(1)
@pytest.mark.parametrize("before", ["", "VACUUM ANALYZE hapax.operations", "full"])
def test_a_plan_made_on_an_empty_table_stays_right(db, before):
    conn = db.connect()
    if before != "full":
        if before:
            ask(conn, before)
        run(conn, [op(CLAIM, id) for id in ids(8)])
        complete(conn, begin(conn)["token"])
        ask(conn, "SELECT * FROM hapax.list(26, NULL, 0, 10, NULL)")
        ask(conn, "SELECT * FROM hapax.purge(NULL, 10)")
    db.run("INSERT INTO hapax.operations SELECT 1, 1, 0, 0, 1, 0, 1, 1, 0, 2, 200, false, false, false, false, true, "
           "sha256(int4send(i)),substr(sha256(int4send(i)), 1, 16), sha256(''), sha256(''), 's', '', '', 'x' FROM "
           "generate_series(1, 60000) i")
    if before == "full":
        db.run("ANALYZE hapax.operations")
    start = scans(db)
    for _ in range(10):
        some = ids(64)
        assert all(r[0] == CLAIMED for r in run(conn, [op(CLAIM, id) for id in some]))
        assert all(r[0] == OK for r in run(conn, [op(COMPLETE, id) for id in some]))
        assert all(r[0] == FOUND for r in run(conn, [op(READ, id) for id in some]))
        assert all(r[0] == OK for r in run(conn, [op(RESOLVE, id, b"new" * 5 + b"1", FORGET | FORCE) for id in some]))
        complete(conn, begin(conn, some[0].hex())["token"])
    ask(conn, "SELECT * FROM hapax.list(26, NULL, 0, 10, NULL)")
    ask(conn, "SELECT * FROM hapax.list(0, NULL, 0, 10, NULL)")
    ask(conn, "SELECT * FROM hapax.purge(NULL, 10)")
    conn.close()  # tells its statistics
    wait_for(lambda: db.run("SELECT idx_scan >= 2560 FROM pg_stat_all_tables WHERE relid = "
                            "'hapax.operations'::regclass")[0][0],
             "the statistics")
    assert scans(db) == start


# ---- walks ------------------------------------------------------------------------------------


def page_through(conn, states=0, scope=None, older_ms=0, limit=1000):
    cursor, found, more = None, [], True
    while more:
        rows = ask(conn, "SELECT id, state, more FROM hapax.list(%s, %s, %s, %s, %s)",
                   states, scope, older_ms, limit, cursor)
        assert len(rows) <= limit + 1
        found += [bytes(r[0]) for r in rows[:-1]]
        last, state, more = rows[-1]
        assert state is None and (cursor is None or bytes(last) > bytes(cursor) or not more)
        cursor = last
    return found


# Pages are in the order of ids, hold each record once, and filter by state, scope and age, few or many.
def test_a_list_holds_each_record_once(db):
    conn = db.connect()
    db.run("INSERT INTO hapax.operations SELECT i, 1000 + i, 0, CASE WHEN i %% 10 = 0 THEN 1 ELSE 0 END, 1, 0, 1, 1, "
           "0, 1 + i %% 4, 200, false, false, false, false, true, sha256(int4send(i)), substr(sha256(int4send(i)), 1, "
           "16), sha256(''), sha256(''),CASE WHEN i %% 3 = 0 THEN 'a' ELSE 'b' END::bytea, '', '', 'x' FROM "
           "generate_series(1, %s) i", 22000)
    for states, scope in ((0, None), (0, b"a"), (4, b"b"), (26, b"a"), (8, None), (2, b"b")):
        want = db.run("SELECT id FROM hapax.operations WHERE (%s = 0 OR %s >> state & 1 = 1) AND (%s IS NULL OR scope "
                      "= %s) AND expires_us = 0 ORDER BY id", states, states, scope, scope)
        assert page_through(conn, states, scope, limit=700) == [bytes(id) for id, in want]
    assert page_through(conn, older_ms=10**13) == []
    db.run("UPDATE hapax.operations SET updated_us = hapax.now_us() WHERE updated_us % 2 = 0")
    for states in (0, 26):
        want = db.run("SELECT id FROM hapax.operations WHERE updated_us < 10^9 AND (%s = 0 OR state <> 2) AND "
                      "expires_us = 0 ORDER BY id", states)
        assert page_through(conn, states, older_ms=3600000) == [bytes(id) for id, in want] and want
    # more open ones than are sorted for a page, until few are left behind the cursor
    db.run("UPDATE hapax.operations SET state = 3")
    db.run("VACUUM hapax.operations")
    for scope in (None, b"a"):
        want = [bytes(id)
                for id, in db.run("SELECT id FROM hapax.operations WHERE expires_us = 0 AND (%s IS NULL OR scope = %s) "
                                  "ORDER BY id", scope, scope)]
        assert page_through(conn, 8, scope) == want


def some_records(db, first, last, state):
    """Old records of one state; their ids, in order."""
    db.run("INSERT INTO hapax.operations SELECT i, 1000 + i, 0, 0, 1, 0, 1, 1, 0, %s, 200, false, false, false, false, "
           "true, sha256(int4send(i)), substr(sha256(int4send(i)), 1, 16), sha256(''), sha256(''), 's', '', '', 'x' "
           "FROM generate_series(%s, %s) i", state, first, last)
    return sorted(hashlib.sha256(i.to_bytes(4, "big")).digest() for i in range(first, last + 1))


def pages_of(conn, states, limit=1000, owner=None):
    """How many pages a list of what is old has; its ids."""
    calls, found, cursor, more = 0, [], None, True
    while more:
        *rows, (cursor, more) = ask(conn, "SELECT id, more FROM hapax.list(%s, NULL, 300000, %s, %s, %s)",
                                    states, limit, cursor, owner)
        calls, found = calls + 1, found + [bytes(id) for id, _ in rows]
    return calls, found


def test_a_list_by_owner_takes_an_index_of_owners(db):
    """The line of docs/database.md. With it a page holds the owner's records; without, those among some thousand."""
    line, = re.findall(r"^(CREATE INDEX CONCURRENTLY .*;)$", (ROOT / "docs/database.md").read_text(), re.M)
    owner, conn = b"\5" * 32, db.connect()
    some_records(db, 1, 30000, 2)
    db.run("UPDATE hapax.operations SET owner = sha256(id)")
    db.run("UPDATE hapax.operations SET owner = %s WHERE id IN (SELECT sha256(int4send(i)) FROM "
           "generate_series(3000, 30000, 3000) i)", owner)
    db.run("ANALYZE hapax.operations")
    want = [bytes(id) for id, in db.run("SELECT id FROM hapax.operations WHERE owner = %s ORDER BY id", owner)]
    assert len(want) == 10

    assert pages_of(conn, 4, owner=owner) == (7, want)  # and one that has come to the end
    db.run(line)
    assert pages_of(conn, 4, owner=owner) == (1, want)
    assert pages_of(conn, 0, 3, owner) == (4, want) and pages_of(conn, 8, owner=owner) == (1, [])
    assert sorted(page_through(conn, 4)) == sorted(bytes(id) for id, in db.run("SELECT id FROM hapax.operations"))
    # Left behind by a CREATE INDEX CONCURRENTLY that was ended, it is there, and serves nobody.
    db.run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'hapax.operations_owner'::regclass")
    assert pages_of(conn, 4, owner=owner) == (7, want)
    db.run("DROP INDEX hapax.operations_owner")


def read_for_a_page(db, states):
    """How many entries the first page of a list reads: of the index of what is open, and of that of all ids."""
    conn = db.connect(autocommit=False)
    ask(conn, "SELECT FROM hapax.list(%s, NULL, 300000, 1000, NULL)", states)
    return ask(conn, "SELECT pg_stat_get_xact_tuples_returned('hapax.operations_open'::regclass),"
                     "pg_stat_get_xact_tuples_returned('hapax.operations_pkey'::regclass)")[0]


# Few of one state are found by the index, all in one page, however many failed ones are there besides; what has
# completed is not looked at.
def test_many_of_another_state_hide_no_index(db):
    conn = db.connect()
    some_records(db, 1, 22000, 3)
    stuck = some_records(db, 22001, 22003, 1)
    some_records(db, 22004, 45000, 2)
    db.run("VACUUM ANALYZE hapax.operations")
    assert pages_of(conn, 2) == (1, stuck)
    assert pages_of(conn, 2, limit=2) == (2, stuck)
    assert read_for_a_page(db, 2) == (22003, 3)


# Where the index is left, since much is asked for or more is open than one page looks through, and where it is taken
# again, the list is the same. It is left without a look where the statistics are right, and after one where they are
# not.
def test_a_list_is_the_same_by_the_index_and_by_a_walk(server):
    script = SCRIPT
    for name, value, small in (("few", 20000, 200), ("open", 200000, 1000), ("walk", 5000, 50)):
        line = f"c_{name} CONSTANT integer := %d;"
        assert script.count(line % value) == 1
        script = script.replace(line % value, line % small)
    db = Database(server, script=script)
    conn = db.connect()
    db.run("ALTER TABLE hapax.operations SET (autovacuum_enabled = off)")
    failed, stuck = some_records(db, 1, 500, 3), some_records(db, 501, 520, 1)
    some_records(db, 521, 1000, 2)
    assert pages_of(conn, 2) == (1, stuck) and pages_of(conn, 2, limit=7) == (3, stuck)
    calls, found = pages_of(conn, 10)
    assert found == sorted(failed + stuck) and 8 < calls < 1000 // 50  # a walk, until 200 are left
    failed += some_records(db, 1001, 1800, 3)
    for looked in (1001, 0):  # before the statistics know, and after
        assert pages_of(conn, 2) == (1 + 1800 // 50, stuck) and pages_of(conn, 8)[1] == sorted(failed)
        read, walked = read_for_a_page(db, 2)
        assert read == looked and 50 <= walked <= 100
        db.run("ANALYZE hapax.operations")
    db.close()


def sweep(conn, limit=500):
    """Purges until nothing is left to do: how many records were forgotten, how many became unknown."""
    cursor, total, more = None, (0, 0), True
    while more:
        (purged, expired, more, cursor, _), = ask(conn, "SELECT * FROM hapax.purge(%s, %s)", cursor, limit)
        assert purged + expired <= limit
        total = total[0] + purged, total[1] + expired
    return total


# Who meets a tombstone in his own transaction is told that it was done, before and after a sweep took the outcome, by
# either of the ways that a claim is judged; a sweep takes the outcome alone, and another request is told nothing.
def test_a_tombstone_is_expired_to_begin(db):
    conn = db.connect()
    complete(conn, begin(conn, retention="1h")["token"])
    assert begin(conn)["verdict"] == "completed"
    db.run("UPDATE hapax.operations SET updated_us = updated_us - 3600000000 WHERE scope = 'shop'")
    for swept in (True, False):
        for more in ({}, {"attempts_max": 1}):
            row = begin(conn, **more)
            assert (row["verdict"], row["status"], row["body"]) == ("expired", None, None)
        assert begin(conn, fingerprint=b"\1" * 32)["verdict"] == "mismatch"
        assert sweep(conn, 7) == (int(swept), 0)
    assert db.run("SELECT octet_length(headers || body), body_kept, status FROM hapax.operations "
                  "WHERE scope = 'shop'") == [(0, False, 200)]


# A sweep takes what has expired, all of it, in bounded steps, and nothing else.
def test_a_sweep_takes_the_expired_alone(db):
    conn = db.connect()
    db.run("INSERT INTO hapax.operations SELECT i, i, 0, CASE WHEN i %% 3 = 0 THEN 1 WHEN i %% 3 = 1 THEN 0 ELSE %s "
           "END, %s, 0, 1, 1, 0, 2, 200, false, false, false, false, true, sha256(int4send(i)), "
           "substr(sha256(int4send(i)), 1, 16), sha256(''), sha256(''),'s', '', '', repeat('x', 500)::bytea FROM "
           "generate_series(1, 9000) i", FOREVER, FOREVER // 1000 - 1000)
    assert sweep(conn, 7) == (3000, 0)
    assert db.run("SELECT count(*), min(expires_us) FROM hapax.operations") == [(6000, 0)]
    assert sweep(conn) == (0, 0)


# Dead claims under hold become unknown, all of them, in bounded steps; those that live, or may run again, stay as they
# are.
def test_a_sweep_makes_dead_claims_under_hold_unknown(db):
    conn, some = db.connect(), ids(60)
    run(conn, [op(CLAIM, id, lease_ms=60000 if n % 3 == 2 else 1,
                  flags=RERUN if n % 3 == 0 else HOLD) for n, id in enumerate(some)])
    wait_for(lambda: db.run("SELECT count(*) FROM hapax.operations WHERE lease_until_us < hapax.now_us()") == [(40,)],
             "the leases being over")
    before = db.run("SELECT * FROM hapax.operations WHERE NOT hold OR lease_until_us > hapax.now_us() ORDER BY id")
    assert sweep(conn, 7) == (0, 20)
    assert db.run("SELECT * FROM hapax.operations WHERE state = 1 ORDER BY id") == before and len(before) == 40
    assert db.run("SELECT count(*) FROM hapax.operations WHERE state = 4 AND stale AND hold AND lease_until_us = 0 AND "
                  "expires_us = 0 AND updated_us > created_us AND attempt = 1 AND spent = 0") == [(20,)]
    assert sweep(conn) == (0, 0)


# A holder that renews or completes in a transaction still open is neither swept nor waited for, though its lease is
# over; nor is a row that somebody has locked. A renewed claim lives on.
def test_a_sweep_leaves_a_holder_that_is_late(db):
    renewer, completer, operator, conn = *(db.connect(autocommit=False) for _ in range(3)), db.connect()
    some = ids(4)
    run(conn, [op(CLAIM, id, lease_ms=1, flags=HOLD) for id in some])
    wait_for(lambda: db.run("SELECT max(lease_until_us) < hapax.now_us() FROM hapax.operations")[0][0],
             "the leases being over")
    assert run(renewer, [op(RENEW, some[0], lease_ms=60000)])[0][0] == OK
    assert run(completer, [op(COMPLETE, some[1])])[0][0] == OK
    ask(operator, "SELECT FROM hapax.operations WHERE id = %s FOR UPDATE", some[2])
    ask(conn, "SET statement_timeout = '30s'")
    assert sweep(conn) == (0, 1)
    for each in (renewer, completer):
        each.commit()
    operator.rollback()
    assert sweep(conn) == (0, 1)
    assert [answer[2] for answer in run(conn, [op(READ, id) for id in some])] == [1, 2, 4, 4]
    assert run(conn, [op(COMPLETE, some[3])])[0][0] == OK


# A claim that is under way is not swept, nor waited for; nor is a row that somebody has locked.
def test_a_sweep_leaves_what_is_being_claimed(db):
    holder, operator, conn = db.connect(autocommit=False), db.connect(autocommit=False), db.connect()
    some = ids(3)
    run(conn, [op(CLAIM, id, retention_ms=1, lease_ms=1) for id in some])
    wait_for(lambda: run(conn, [op(READ, some[0])])[0][0] == ABSENT, "the records being expired")
    assert run(holder, [op(CLAIM, some[0], b"n" * 16)])[0][0] == CLAIMED
    ask(operator, "SELECT FROM hapax.operations WHERE id = %s FOR UPDATE", some[1])
    ask(conn, "SET statement_timeout = '30s'")
    assert sweep(conn) == (1, 0)
    holder.commit()
    operator.rollback()
    assert sweep(conn) == (1, 0)
    assert run(conn, [op(READ, id) for id in some])[0][2] == 1
    assert db.run("SELECT count(*) FROM hapax.operations") == [(1,)]


# One sweeper at a time; a second is told that nothing is left, and does not wait.
def test_one_sweeper_at_a_time(db):
    first, second = db.connect(autocommit=False), db.connect()
    run(second, [op(CLAIM, id, retention_ms=1, lease_ms=1) for id in ids(10)])
    wait_for(lambda: db.run("SELECT bool_and(expires_us < hapax.now_us()) FROM hapax.operations")[0][0],
             "the records being expired")
    assert sweep(first, 3) == (10, 0)
    assert ask(second, "SELECT purged, more FROM hapax.purge(NULL, 10)") == [(0, False)]
    first.rollback()
    assert sweep(second) == (10, 0)


# Sweeps and claims that race for the same expired records: every claim that was granted is still there.
def test_a_sweep_never_takes_a_claim(db):
    stop, claimed, faults, many = threading.Event(), {}, [], ids(60)

    def claim(seed):
        draw, conn = random.Random(seed), db.connect()
        try:
            for _ in range(60):
                some, token = draw.sample(many, 16), secrets.token_bytes(16)
                last = draw.random() < .2
                answers = run(conn, [op(CLAIM, id, token, lease_ms=LONG_MS if last else 1,
                                        retention_ms=LONG_MS if last else 1) for id in some])
                claimed.update({id: token for id, answer in zip(some, answers) if answer[0] == CLAIMED and last})
        except psycopg2.Error as error:
            faults.append(error)

    def purge():
        conn = db.connect()
        while not stop.is_set():
            assert sweep(conn, 20)[1] == 0

    threads = [threading.Thread(target=claim, args=(seed,)) for seed in range(4)]
    sweeper = threading.Thread(target=purge)
    for thread in [*threads, sweeper]:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENCE)
    stop.set()
    sweeper.join(PATIENCE)
    assert not faults and len(claimed) > 10
    stored = {bytes(id): bytes(token) for id, token in db.run("SELECT id, token FROM hapax.operations")}
    assert all(stored.get(id) == hashlib.sha256(token).digest()[:16] for id, token in claimed.items())


# Sweeps and late holders that race for the same dead claims: whoever was told that the claim is renewed and still
# started has it.
def test_a_sweep_never_takes_a_renewed_claim(db):
    stop, kept, swept, faults, until = threading.Event(), set(), [], [], time.monotonic() + PATIENCE

    def hold(first):
        conn = db.connect()
        try:
            for n in itertools.count(first, 12):
                if n >= first + 600 and kept and sum(swept) or time.monotonic() > until:
                    break
                some = [n.to_bytes(32, "big") for n in range(n + 1, n + 13)]
                run(conn, [op(CLAIM, id, lease_ms=1, flags=HOLD) for id in some])
                time.sleep(random.random() * .01)
                answers = run(conn, [op(RENEW, id, lease_ms=LONG_MS) for id in some])
                kept.update(id for id, (verdict, _, state, _) in zip(some, answers) if verdict == OK and state == 1)
        except psycopg2.Error as error:
            faults.append(error)

    def purge():
        conn = db.connect()
        while not stop.is_set():
            purged, expired = sweep(conn, 20)
            assert purged == 0
            swept.append(expired)

    threads = [threading.Thread(target=hold, args=(10**6 * n,)) for n in range(3)]
    sweeper = threading.Thread(target=purge)
    for thread in [*threads, sweeper]:
        thread.start()
    for thread in threads:
        thread.join(5 * PATIENCE)
    stop.set()
    sweeper.join(PATIENCE)
    states = {bytes(id): state for id, state in db.run("SELECT id, state FROM hapax.operations")}
    assert not faults and kept and sum(swept) and all(states[id] == 1 for id in kept)
    assert sum(swept) == sum(state == 4 for state in states.values())


# ---- migrations -------------------------------------------------------------------------------


# What a role, or another client of a pooler, has set does not change what a batch does.
@pytest.mark.some(4)
@pytest.mark.parametrize("setting", ["hapax.again = '1'", "hapax.again = 'x'",
                                     "standard_conforming_strings = off", "search_path = ''",
                                     "bytea_output = escape", "transform_null_equals = on",
                                     "plan_cache_mode = force_custom_plan",
                                     "IntervalStyle = sql_standard",
                                     "DateStyle = 'German'", "TimeZone = 'Europe/Berlin'"])
def test_no_setting_is_in_the_way(db, setting):
    conn, by_hand = db.connect(), db.connect(autocommit=False)
    ask(conn, f"SET {setting}")
    some = ids(3)
    run(db.connect(), [op(CLAIM, some[2])])
    ask(by_hand, "DELETE FROM hapax.operations WHERE id = %s", some[2])
    ask(by_hand,
        "INSERT INTO hapax.operations SELECT "
        "1,1,0,0,3600000,0,1,1,0,2,0,false,false,false,false,false,%s,'',%s,%s,'s','','',''",
        some[0], bytes(32), bytes(32))
    answers = later(run, conn, [op(CLAIM, id) for id in some])  # the first meets that row, and goes round again
    waits(db, conn)
    by_hand.commit()
    assert [answer[0] for answer in answers.result(PATIENCE)][:2] == [COMPLETED, CLAIMED]
    held = begin(conn, "order", lease="1 day")
    assert str(held["lease_left"]) == "1 day, 0:00:00"
    assert complete(conn, held["token"])["headers"] == b"A: b\r\n"
    ask(conn, "SELECT hapax.headers('Transfers', 's')")
    assert run(conn, [op(RESOLVE, some[1], flags=FORGET | FORCE)])[0][0] == OK


# A second run changes nothing that is kept, and two at once wait for each other.
def test_the_script_may_be_run_again(server):
    db = Database(server, script=None)
    runs = [later(db.run, SCRIPT) for _ in range(2)]
    for each in runs:
        each.result(PATIENCE)
    conn = db.connect()
    complete(conn, begin(conn)["token"])
    db.run(SCRIPT)
    assert begin(conn)["verdict"] == "completed" and db.run("SELECT hapax.version()") == [(6,)]
    assert db.run("SELECT version FROM hapax.schema_version ORDER BY 1") == [(1,), (2,), (3,), (4,), (5,), (6,)]
    db.close()


# A second run waits for no open transaction that has written here, and holds up nobody.
def test_the_script_waits_for_no_caller(db):
    holder = db.connect(autocommit=False)
    begin(holder)
    db.run(SCRIPT.replace("lock_timeout = '60s'", "lock_timeout = '20s'"))
    holder.commit()


# A schema of that name with other tables is refused by name, by init and by check; init names the database.
def test_a_schema_that_is_not_ours_is_refused(server):
    def hapax(command):
        return subprocess.run([BUILD / "hapax", command, "--store", server.uri(db.name)],
                              capture_output=True, text=True, timeout=PATIENCE)

    db = Database(server, script=None)
    db.run("CREATE SCHEMA hapax; CREATE TABLE hapax.operations (x int)")
    for command, text in (("init", "it has a table"), ("check", "has no function")):
        done = hapax(command)
        assert done.returncode in (2, 3) and text in done.stderr and "not Hapax's" in done.stderr
    db.run("DROP SCHEMA hapax CASCADE")
    assert f'in the database "{db.name}" of' in hapax("init").stdout
    db.close()


# Whoever may make schemas cannot lay traps for the one who sets Hapax up: a schema of his is not taken for ours.
def test_a_schema_of_another_role_is_refused(server):
    db = Database(server, script=None)
    stranger = f"stranger_{os.getpid()}"
    db.run(f"CREATE ROLE {stranger} LOGIN; GRANT CREATE ON DATABASE {db.name} TO {stranger}")
    trap = f"LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE {stranger} SUPERUSER'; RETURN NULL; END $$"
    try:
        conn = db.connect(user=stranger)
        ask(conn,
            "CREATE SCHEMA hapax; GRANT USAGE ON SCHEMA hapax TO public; CREATE TABLE hapax.schema_version (version "
            "integer PRIMARY KEY)")
        ask(conn,
            f"CREATE FUNCTION hapax.version() RETURNS integer {trap}; CREATE FUNCTION hapax.t() RETURNS trigger {trap}")
        ask(conn, "CREATE TRIGGER t BEFORE INSERT ON hapax.schema_version FOR EACH ROW EXECUTE FUNCTION hapax.t()")
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            db.run(SCRIPT)
        done = subprocess.run([BUILD / "hapax", "init", "--store", server.uri(db.name)],
                              capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode != 0 and f'belongs to the role "{stranger}"' in done.stderr and "drop" not in done.stderr
        assert db.run("SELECT rolsuper FROM pg_roles WHERE rolname = %s", stranger) == [(False,)]
        ask(conn, "DROP SCHEMA hapax CASCADE; CREATE SCHEMA hapax AUTHORIZATION CURRENT_USER")
        ask(conn, SCRIPT)
        assert begin(conn)["verdict"] == "claimed"
        ask(conn, SCRIPT)
    finally:
        db.close()
        db.run(f"DROP OWNED BY {stranger} CASCADE; DROP ROLE {stranger}")


# psql runs it as it is printed; what an older version made is brought here with its records; a newer one's is left
# alone.
def test_older_is_brought_here_and_newer_is_refused(server):
    db = Database(server, script=None)
    path = server.folder / "script.sql"
    path.write_text(SCRIPT)
    path.chmod(0o644)
    server.run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", server.folder,
               "-p", server.port, "-U", "postgres", "-d", db.name, "-f", path)
    conn = db.connect()
    begin(conn)
    db.run("DELETE FROM hapax.schema_version WHERE version > 1; DROP TABLE hapax.outbox; DROP FUNCTION hapax.headers")
    db.run(SCRIPT)
    assert db.run("SELECT hapax.version(), to_regclass('hapax.outbox_ended') IS NOT NULL") == [(6, True)]
    assert begin(conn)["verdict"] == "in_flight"
    db.run("INSERT INTO hapax.schema_version VALUES (7)")
    with pytest.raises(psycopg2.Error, match="version 7, this is version 6") as refused:
        db.run(SCRIPT)
    assert refused.value.pgcode == "HX003" and db.run("SELECT hapax.version()") == [(7,)]
    db.close()


# Records of version 2 stay as they are, without owner and what, but that marks take the place of tokens: who has the
# token of a claim ends it afterwards. And who might call a function whose arguments have changed may do so afterwards,
# and nobody else.
def test_records_and_grants_of_version_2_are_kept(server):
    db = Database(server)
    conn, role = db.connect(), f"caller_{os.getpid()}"
    complete(conn, begin(conn, "old")["token"])
    begin(conn, "held")
    token = begin(conn, "running")["token"]
    db.run("UPDATE hapax.operations SET token = %s WHERE id = hapax.id('shop', 'running')",
           base64.urlsafe_b64decode(token)[32:])
    db.run("ALTER TABLE hapax.operations DROP COLUMN owner, DROP COLUMN what, DROP COLUMN replaced_state, "
           "DROP COLUMN replaced_status; DELETE FROM hapax.schema_version WHERE version > 2")
    db.run("DROP FUNCTION hapax.id(text, text, text, text); CREATE FUNCTION hapax.id(scope text, key text, step text "
           "DEFAULT NULL) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea'; "
           "REVOKE ALL ON FUNCTION hapax.id FROM PUBLIC")
    # It had OUT arguments.
    db.run("DROP TYPE hapax.begun, hapax.ended CASCADE; CREATE FUNCTION hapax.begin(scope text, key text, fingerprint "
           "bytea, caller bytea, lease interval, retention interval, on_expired text, attempts_max integer, step text, "
           "wait boolean, owner text, what text, key_min integer, OUT verdict text, OUT status integer) "
           "LANGUAGE sql AS 'SELECT NULL, 1'")
    db.run(f'CREATE ROLE "{role}" LOGIN; GRANT USAGE ON SCHEMA hapax TO "{role}"; '
           f'GRANT EXECUTE ON FUNCTION hapax.id, hapax.begin TO "{role}"')
    try:
        db.run(SCRIPT)
        assert begin(conn, "old")["verdict"] == "completed" and begin(conn, "held")["verdict"] == "in_flight"
        assert complete(conn, token)["verdict"] == "ok" and begin(conn, "running")["body"] == b"done"
        assert db.run("SELECT DISTINCT owner, what, replaced_state, replaced_status FROM hapax.operations") == [
            (b"", b"", 0, 0)]
        assert db.run("SELECT p.proname FROM pg_proc p, aclexplode(p.proacl) a "
                      "WHERE p.pronamespace = 'hapax'::regnamespace AND a.grantee <> p.proowner ORDER BY 1") == [
            ("begin",), ("id",)]
        caller = db.connect(user=role)
        assert begin(caller, "new", what="POST /pay", owner="acme")["verdict"] == "claimed"
        db.run(SCRIPT)
        assert begin(caller, "new", owner="acme")["verdict"] == "in_flight"
    finally:
        db.close()
        db.run(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


# Where hapax.run() and hapax.door() have OUT arguments, init gives them a named type, keeps their grants, and a session
# that called them before goes on.
def test_functions_that_had_out_arguments_are_made_anew(server):
    db = Database(server)
    conn, role = db.connect(), f"door_{os.getpid()}"
    begin(conn, "held")
    asked = ("smallint[], bytea[], bytea[], bytea[], bytea[], bytea[], bigint[], bigint[], integer[], bigint[], "
             "integer[], bytea[], bytea[], bytea[], bytea[], bytea[], boolean")
    columns = db.run("SELECT string_agg(format('OUT %I %s', attname, atttypid::regtype), ', ' ORDER BY attnum) "
                     "FROM pg_attribute WHERE attrelid = 'hapax.judged'::regclass")[0][0]
    db.run("DROP TYPE hapax.judged CASCADE; " + "".join(
        f"CREATE FUNCTION hapax.{name}({asked}, {columns}) RETURNS SETOF record LANGUAGE plpgsql AS "
        f"'BEGIN verdict := 4; state := 4; attempt := 7; RETURN NEXT; END'; "
        f"REVOKE ALL ON FUNCTION hapax.{name} FROM PUBLIC; " for name in ("run", "door")))
    assert begin(conn, "held")["attempt"] == 7  # so the session has planned a call of the old function
    db.run(f'CREATE ROLE "{role}" LOGIN; GRANT USAGE ON SCHEMA hapax TO "{role}"; '
           f'GRANT EXECUTE ON FUNCTION hapax.door TO "{role}"')
    try:
        db.run(SCRIPT)
        assert begin(conn, "held")["verdict"] == "in_flight" and begin(conn, "new")["verdict"] == "claimed"
        assert db.run("SELECT prorettype::regtype::text, count(*) FROM pg_proc WHERE pronamespace = "
                      "'hapax'::regnamespace AND proname IN ('run', 'door') GROUP BY 1") == [("hapax.judged", 2)]
        nothing = ", ".join(["NULL"] * 16)
        assert db.connect(user=role).cursor().execute(f"SELECT hapax.door({nothing}, false)") is None
    finally:
        db.close()
        db.run(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


# Each owner's keys are its own; their ids and digests are those of the C functions (tests/unit/test_text.c).
def test_an_owner_has_keys_of_its_own(db):
    conn = db.connect()
    tokens = [begin(conn, owner=owner)["token"] for owner in (None, "acme", "other")]
    assert all(tokens) and begin(conn, owner="acme")["verdict"] == "in_flight"
    complete(conn, tokens[1], b"acme's")
    assert begin(conn, owner="acme")["body"] == b"acme's" and begin(conn, owner="")["verdict"] == "in_flight"
    names = db.run("SELECT encode(hapax.id('default', 'k', owner => 'acme'), 'hex'), "
                   "encode(hapax.id('default', 'k', 'charge', 'acme'), 'hex'), encode(hapax.owner('acme'), 'hex')")
    assert names == [("27f52045f4291f35f0c0c76304526991a3bed1a2dc979863a3b611535738ecc1",
                      "745aed7a8b831111d418942b05813085ee25387060b283daf5c34713892d9967",
                      "611983f3442023dd35a95d72af857c0cda17c843641f69ac45de44dac747ea22")]
    ask(conn, "SELECT set_config('hapax.secret', '73', false)")
    assert ask(conn, "SELECT encode(hapax.id('default', 'k', owner => 'acme'), 'hex'), "
                     "encode(hapax.owner('acme'), 'hex')") == [
        ("5d1a6b9c7dd5ef6cc4ad2f37e3b17d749d0bb91af63c96218dda82be576f1537",
         "3e4afd645e3d6c59630112a4f42a67c0c2cb325ef874a64618c5f0253f55707a")]
    ask(conn, "SELECT set_config('hapax.secret', '', false)")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="the owner of 256 bytes is over 255"):
        begin(conn, owner="o" * 256)
    step = row(conn, "hapax.step_begin(%s, 'shop', 'k', 'charge', owner => 'other')", tokens[2])
    assert step["verdict"] == "claimed"
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="not that of this scope, key and owner"):
        row(conn, "hapax.step_begin(%s, 'shop', 'k', 'charge')", tokens[2])


# What an operation is is kept as hapax_what() cuts it, and set anew by each claim that is granted.
def test_what_an_operation_is_is_kept(db):
    conn = db.connect()
    for key, given, kept in (("a", "POST /pay", "POST /pay"), ("b", None, ""), ("c", "a\r\nb\x7f", "a??b?"),
                             ("d", "x" * 255, "x" * 255), ("e", "x" * 256, "x" * 252 + "…"),
                             ("f", "é" * 128, "é" * 126 + "…"), ("g", "x" + "é" * 127, "x" + "é" * 127)):
        token = begin(conn, key, what=given)["token"]
        assert db.run("SELECT convert_from(what, 'UTF8') FROM hapax.operations WHERE id = hapax.id('shop', %s)",
                      key) == [(kept,)], key
    row(conn, "hapax.fail(%s)", token)
    assert begin(conn, "g", what="PUT /pay")["verdict"] == "claimed"
    assert db.run("SELECT convert_from(what, 'UTF8') FROM hapax.operations WHERE id = hapax.id('shop', 'g')") == [
        ("PUT /pay",)]
    row(conn, "hapax.step_begin(%s, 'shop', 'h', 'charge')", begin(conn, "h", what="POST /h")["token"])
    assert db.run("SELECT convert_from(what, 'UTF8') FROM hapax.operations "
                  "WHERE id = hapax.id('shop', 'h', 'charge')") == [("POST /h step charge",)]


# A database need not have the characters of what an operation is: a step of it begins all the same. What is too long is
# cut between two characters.
@pytest.mark.parametrize("encoding, given, kept", [
    ("LATIN1", "POST /pay " + "x" * 242 + "…", "step charge"),
    ("LATIN1", "POST /é", "POST /é step charge"),
    ("SQL_ASCII", "POST /" + "x" * 245 + "…", "POST /" + "x" * 245 + "…"),
    ("SQL_ASCII", "POST /é", "POST /é step charge"),
])
def test_a_step_begins_in_any_encoding(server, encoding, given, kept):
    db = in_encoding(server, encoding)
    conn, what = db.connect(), "SELECT what FROM hapax.operations WHERE id = hapax.id('shop', 'k', %s)"
    id, token = bytes(ask(conn, "SELECT hapax.id('shop', 'k')")[0][0]), secrets.token_bytes(16)
    assert run(conn, [op(CLAIM, id, token, what=given.encode())])[0][0] == CLAIMED
    step = row(conn, "hapax.step_begin(%s, 'shop', 'k', 'charge')", base64.urlsafe_b64encode(id + token).decode())
    assert step["verdict"] == "claimed"
    assert bytes(ask(conn, what, "charge")[0][0]).decode() == kept
    ask(conn, "SELECT hapax.begin('shop', 'k2', what => 'x' || repeat(convert_from('\\xc3a9', 'UTF8'), 128))")
    db.close()


# Every column and what anybody calls is commented, and nobody is granted anything by the script.
def test_the_schema_explains_itself(db):
    assert db.run("SELECT attname FROM pg_attribute WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = "
                  "'hapax'::regnamespace AND relkind = 'r')AND attnum > 0 AND col_description(attrelid, attnum) IS "
                  "NULL") == []
    assert db.run("SELECT proname FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND obj_description(oid) IS "
                  "NULL AND proname IN('run', 'list', 'purge', 'begin', 'complete', 'fail', 'renew', 'id', 'digest', "
                  "'key_derive', 'headers', 'version', 'publish','outbox_lease', 'outbox_turn', 'outbox_next', "
                  "'outbox_lag', "
                  "'outbox_aside', 'outbox_put_back', 'outbox_sweep')") == []
    db.run("DROP ROLE IF EXISTS nobody_yet; CREATE ROLE nobody_yet")
    assert db.run("SELECT proname FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND "
                  "has_function_privilege('nobody_yet', oid, 'EXECUTE')") == []
    assert db.run("SELECT proname FROM pg_proc WHERE pronamespace = 'hapax'::regnamespace AND prosecdef AND "
                  "proconfig::text NOT LIKE '%%search_path%%'",
                  ) == []
    db.run("DROP ROLE nobody_yet")
    # Types of DECLARE are looked up under the path of the session's first caller.
    for name, text in db.run("SELECT proname, prosrc FROM pg_proc JOIN pg_language l ON l.oid = prolang WHERE "
                             "pronamespace = 'hapax'::regnamespace AND lanname = 'plpgsql' AND "
                             "coalesce(proconfig::text, '') NOT LIKE '%%search_path%%'"):
        declared = text.partition("DECLARE")[2].partition("\nBEGIN")[0]
        types = re.findall(r"^ {4}\w+(?: CONSTANT)? ([\w.]+)", declared, re.M)
        own = [type for type in types if type not in ("integer", "bigint", "bit", "double")]
        assert all(type.startswith("pg_catalog.") for type in own), (name, own)


# A domain under the name of a type, found first by who compiles a function first, would run its CHECK as the owner.
@pytest.mark.parametrize("granted, first", [
    ("hapax.digest(bytea[])", "hapax.digest('x')"),
    ("ALL FUNCTIONS IN SCHEMA hapax", "hapax.secret()"),
    ("ALL FUNCTIONS IN SCHEMA hapax", "hapax.id_of('s', 'k', NULL, NULL, NULL)"),
])
def test_nobody_slips_a_type_under_what_runs_with_the_owners_rights(db, granted, first):
    db.run("DROP ROLE IF EXISTS evil; CREATE ROLE evil; GRANT USAGE ON SCHEMA hapax TO evil; GRANT EXECUTE ON " +
           ("" if granted.startswith("ALL") else "FUNCTION ") + granted + " TO evil; "
           "GRANT EXECUTE ON FUNCTION hapax.begin TO evil")
    conn = db.connect()
    conn.autocommit = True
    cursor = conn.cursor()
    cursor.execute("CREATE TABLE public.ran_as (who text); GRANT INSERT ON public.ran_as TO public; "
                   "SET SESSION AUTHORIZATION evil")
    for type in "bytea", "text":
        cursor.execute(f"CREATE FUNCTION pg_temp.f(v pg_catalog.{type}) RETURNS bool LANGUAGE plpgsql AS "
                       "'BEGIN INSERT INTO public.ran_as VALUES (current_user); RETURN true; END'; "
                       f"CREATE DOMAIN pg_temp.{type} AS pg_catalog.{type} CHECK (pg_temp.f(VALUE))")
    cursor.execute(f"SET search_path = pg_temp, pg_catalog; SELECT {first}")
    cursor.execute("SELECT hapax.begin('s', 'k')")
    conn.close()
    assert ("postgres",) not in db.run("SELECT who FROM public.ran_as")
    db.run("DROP OWNED BY evil; DROP ROLE evil; DROP TABLE public.ran_as")


# What is not there locks nothing: another session may begin it at once.
def test_a_completion_of_what_is_absent_takes_no_lock(db):
    with db.connect() as conn, conn.cursor() as cursor:
        cursor.execute("SELECT token FROM hapax.begin('s', 'k')")
        token = cursor.fetchone()[0]
        conn.rollback()
        cursor.execute('SELECT verdict FROM hapax.complete(%s, "raise" => false)', (token,))
        assert cursor.fetchone() == ("lost",)
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchone() == (0,)


# ---- PgBouncer --------------------------------------------------------------------------------


# In transaction mode, where each statement may meet another backend: batches and whole transactions.
def test_pgbouncer_in_transaction_mode(server, db):
    bouncer = postgres_server.PgBouncer(server, default_pool_size=3).start()
    try:
        def work(seed):
            conn = db.connect(port=bouncer.port)
            some = ids(20)
            assert all(r[0] == CLAIMED for r in run(conn, [op(CLAIM, id) for id in some]))
            assert all(r[0] == OK for r in run(conn, [op(COMPLETE, id) for id in some]))
            conn.autocommit = False
            for n in range(10):
                answer = begin(conn, f"key-{n}")
                if answer["verdict"] == "claimed":
                    complete(conn, answer["token"])
                conn.commit()
            conn.close()

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            list(pool.map(work, range(6)))
        assert db.run("SELECT count(*) FROM hapax.operations WHERE state = 2") == [(6 * 20 + 10 + 1,)]
        assert db.run("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    finally:
        bouncer.end()
