"""The outbox inside PostgreSQL (sql/150_outbox.sql): what is published with its transaction, in which order it is
taken, who may take it, and what becomes of what cannot be sent.

    HAPAX_BUILD=build /usr/bin/python3 -m pytest tests/store/test_outbox_sql.py
"""
import json
import random
import re
import select
import subprocess
import threading
import uuid

import pytest

import psycopg2
from conftest import BUILD
from postgres_server import Postgres
from process import PATIENCE
from sql_database import ROOT, ask, in_encoding, later, row, waits

ALL = list(range(64))
LEASE = 30000


def publish(conn, aggregate="a", key="k", step=None, payload=b"m", topic="t", headers=None):
    return ask(conn, "SELECT hapax.publish(%s, %s, %s, %s, %s, %s)", topic,
               aggregate, key, step, payload, json.dumps(headers or {}))[0][0]


def turn(conn, done=(), failed=(), parts=ALL, floor=0, limit=100, retry_ms=1000, tries_max=3, key=None):
    """What is to be published next, as numbers, once these have ended; with the key that they had when taken."""
    ended = [(seq, None) for seq in done] + [(seq, "no such queue") for seq in failed]
    was = [["t"] * len(ended), [key] * len(ended)] if key else []
    call = "outbox_next(%s::bigint[], %s::text[], %s, %s, " if was else "outbox_turn(%s::bigint[], %s::text[], "
    return [r[0] for r in ask(conn, f"SELECT * FROM hapax.{call}%s, %s, %s::smallint[], %s, %s)",
                              [e[0] for e in ended], [e[1] for e in ended], *was,
                              retry_ms, tries_max, list(parts), floor, limit)]


def lease(conn, relay, ms=LEASE):
    return ask(conn, "SELECT hapax.outbox_lease(%s, %s)", str(relay), ms)[0][0]


def state(conn, seq):
    return ask(conn, "SELECT state, tries, error FROM hapax.outbox WHERE seq = %s", seq)[0]


def due(conn):
    ask(conn, "UPDATE hapax.outbox SET due_us = 0")


# ---- publish ---------------------------------------------------------------------------------


def test_a_message_is_there_with_its_transaction_or_not_at_all(db):
    conn = db.connect(autocommit=False)
    gone = publish(conn)
    conn.rollback()
    stays = publish(conn)
    assert turn(db.connect()) == []
    conn.commit()
    assert turn(db.connect()) == [stays] and gone != stays


def test_its_key_is_derived_by_the_one_rule(db):
    conn = db.connect()
    seqs = [publish(conn, step=step, key=key) for key, step in (("k", None), ("k", "pay"), ("k" * 255, "pay"))]
    keys = [ask(conn, "SELECT key FROM hapax.outbox WHERE seq = %s", seq)[0][0] for seq in seqs]
    assert keys[:2] == ["k", "k:pay"] and keys[2] == ask(conn, "SELECT hapax.key_derive(%s, 'pay')", "k" * 255)[0][0]


@pytest.mark.some(5)
@pytest.mark.parametrize("what, values", [
    ("the topic has 0 bytes", {"topic": ""}),
    ("the topic has 256 bytes", {"topic": "t" * 256}),
    ("the aggregate has 0 bytes", {"aggregate": ""}),
    ("the aggregate has 510 bytes", {"aggregate": "é" * 255}),
    ("the key", {"key": ""}),
    ("the key", {"key": "k" * 256}),
    ("a payload of 16777217 bytes is over 16777216", {"payload": bytes(16777217)}),
    ("a header is no string", {"headers": {"a": 1}}),
    ("over 65536 bytes", {"headers": {"a": "b" * 65536}}),
    ('"CC" is refused', {"headers": {"a": "b", "CC": "x"}}),
    ('"BCC" is refused', {"headers": {"BCC": "x"}}),
    ('"amqp-reply-to" is refused', {"headers": {"amqp-reply-to": "amq.rabbitmq.reply-to"}}),
    ('"hapax-reason" is refused', {"headers": {"hapax-reason": "failed"}}),
    ('"Hapax-Base" is refused', {"headers": {"Hapax-Base": "9"}}),
])
def test_what_is_over_a_limit_is_refused_by_name(db, what, values):
    with pytest.raises(psycopg2.Error, match=what) as refused:
        publish(db.connect(), **values)
    assert refused.value.pgcode == "22023"


# A relay would get an error instead of it, with all that it takes, and end.
@pytest.mark.parametrize("encoding, refused, taken", [
    ("SQL_ASCII", {"headers": '{"a": "%"}'}, {"topic": "%", "aggregate": "%", "content_type": "%"}),
    ("WIN1252", {"topic": "%", "aggregate": "%", "headers": '{"a": "%"}', "content_type": "%"}, {}),
])
def test_what_a_relay_cannot_be_sent_is_refused(server, encoding, refused, taken):
    db = in_encoding(server, encoding)
    conn = db.connect()

    def send(name, text):
        words = {"topic": "t", "aggregate": "a", name: text.replace("%", "\\x81")}  # no character of either
        ask(conn, "SELECT hapax.publish(key => 'k', " + ", ".join(f"{n} => E'{w}'" for n, w in words.items()) + ")")

    for name, text in refused.items():
        with pytest.raises((psycopg2.errors.CharacterNotInRepertoire, psycopg2.errors.UntranslatableCharacter)):
            send(name, text)
    for name, text in taken.items():
        send(name, text)
    db.close()


# An earlier version took such a message. What the page says to do puts it aside, alone, and a relay gets the others.
def test_what_a_relay_cannot_be_sent_is_put_aside_by_hand(server):
    db = in_encoding(server, "WIN1252")
    conn = db.connect()
    bad, good = (publish(conn, aggregate) for aggregate in "ab")
    ask(conn, "UPDATE hapax.outbox SET headers = E'{\"a\": \"\\x81\"}' WHERE seq = %s", bad)
    with pytest.raises(psycopg2.errors.UntranslatableCharacter):
        turn(conn)
    ask(conn, re.search(r"```sql\n(DO .*?)```", (ROOT / "docs/sagas.md").read_text(), re.S)[1])
    assert turn(conn) == [good]
    assert [seq for seq, *_ in ask(conn, "SELECT * FROM hapax.outbox_aside(0, 10)")] == [bad]
    db.close()


def test_a_listener_is_woken(db):
    conn = db.connect()
    ask(conn, "LISTEN hapax_outbox")
    publish(db.connect())
    assert select.select([conn], [], [], PATIENCE)[0]
    conn.poll()
    assert [n.channel for n in conn.notifies] == ["hapax_outbox"]


# Who writes messages of one aggregate waits for the other; so numbers are in the order of commits.
def test_writers_of_one_aggregate_take_turns(db):
    first, second, other = (db.connect(autocommit=False) for _ in range(3))
    a = publish(first, "a")
    waiting = later(publish, second, "a")
    waits(db, second)
    b = publish(other, "b")
    other.commit()
    assert turn(db.connect()) == [b]
    first.commit()
    c = waiting.result(PATIENCE)
    assert turn(db.connect()) == [a, b]
    second.commit()
    assert turn(db.connect()) == [a, b, c]


# ---- taking and ending -----------------------------------------------------------------------


def test_what_commits_late_is_not_passed_over(db):
    late, conn = db.connect(autocommit=False), db.connect()
    a = publish(late, "late")
    b = publish(conn, "early")
    assert turn(conn) == [b] and turn(conn, done=[b]) == []
    late.commit()
    assert turn(conn) == [a] and turn(conn, floor=b) == []


def test_a_failed_one_holds_back_its_aggregate_and_no_other(db):
    conn = db.connect()
    a, b, c = publish(conn, "a"), publish(conn, "b"), publish(conn, "a")
    assert turn(conn) == [a, b, c]
    assert turn(conn, failed=[a], done=[b]) == []
    assert state(conn, a) == (0, 1, "no such queue")
    due(conn)
    assert turn(conn) == [a, c] and turn(conn, done=[a, c]) == []


# A row that commits late has a number under the floor, and the next of its aggregate one over it.
def test_one_that_commits_late_under_the_floor_holds_back_what_follows_it(db):
    late, conn = db.connect(autocommit=False), db.connect()
    a = publish(late, "a")
    b = publish(conn, "b")
    assert turn(conn) == [b]
    late.commit()
    c = publish(conn, "a")
    assert turn(conn, done=[b], floor=b) == [] and turn(conn) == [a, c]


# Nor does it once it is due, for a relay that looks only at what is behind it.
def test_a_failed_one_under_the_floor_holds_back_too(db):
    conn = db.connect()
    a, b = publish(conn, "a"), publish(conn, "a")
    turn(conn, failed=[a])
    due(conn)
    assert turn(conn, floor=a) == [] and turn(conn) == [a, b]


def test_headers_come_as_names_and_values(db):
    conn = db.connect()
    publish(conn, headers={"b": "é", "a": ""})
    publish(conn)
    assert [bytes(r[5] or b"")
            for r in ask(conn, "SELECT * FROM hapax.outbox_turn(NULL, NULL, 1, 1, %s::smallint[], 0, 9)", ALL)] \
        == [b"a\0\0b\0" + "é".encode() + b"\0", b""]


def test_pauses_grow_and_end_aside_where_those_behind_go_on(db):
    conn = db.connect()
    a, b = publish(conn, "a"), publish(conn, "a")
    for most_us in (10**6, 2 * 10**6):
        before = ask(conn, "SELECT hapax.now_us()")[0][0]
        assert turn(conn, failed=[a], tries_max=3) == []
        due_us, after = ask(conn, "SELECT due_us, hapax.now_us() FROM hapax.outbox WHERE seq = %s", a)[0]
        assert due_us - before > most_us - 10**6 and due_us - after <= most_us
        due(conn)
    assert turn(conn, failed=[a], tries_max=3) == [b]
    assert state(conn, a) == (2, 3, "no such queue")
    aside = row(conn, "hapax.outbox_aside(0, 10)")
    assert (aside["seq"], aside["key"], aside["error"]) == (a, "k", "no such queue")


# A relay that wakes up late says what others have said, or its opposite.
def test_what_has_ended_stays_so(db):
    conn = db.connect()
    a, b = publish(conn), publish(conn)
    turn(conn, done=[a])
    turn(conn, failed=[b], tries_max=1)
    turn(conn, failed=[a], done=[b], tries_max=1)
    assert state(conn, a)[0] == 1 and state(conn, b)[0] == 2


# As after a failover to a standby that was behind: what a relay says of a number is about another message.
def test_a_number_that_is_given_again_is_another_row(db):
    conn = db.connect()
    a = publish(conn, key="first")
    ask(conn, f"DELETE FROM hapax.outbox; ALTER TABLE hapax.outbox ALTER seq RESTART WITH {a}")
    assert publish(conn, key="second") == a
    assert turn(conn, done=[a], key="first") == turn(conn, failed=[a], key="first") == [a]
    assert state(conn, a) == (0, 0, "")
    assert turn(conn, failed=[a], key="second") == [] and state(conn, a)[1] == 1
    assert turn(conn, done=[a], key="second") == [] and state(conn, a)[0] == 1


def test_what_was_put_aside_can_be_put_back(db):
    conn = db.connect()
    seqs = [publish(conn, key=key) for key in ("x", "y", "x")]
    turn(conn, failed=seqs, tries_max=1)
    assert row(conn, "hapax.outbox_put_back('y', 0)") == {"count": 1, "last": seqs[1]}
    assert turn(conn) == [seqs[1]] and state(conn, seqs[1])[1] == 0
    assert row(conn, "hapax.outbox_put_back(NULL, %s)", seqs[0]) == {"count": 1, "last": seqs[2]}
    assert row(conn, "hapax.outbox_put_back('none', 0)") == {"count": 0, "last": None}


def test_only_rows_of_the_parts_are_taken_up_to_the_limit(db):
    conn = db.connect()
    seqs = [publish(conn, str(i)) for i in range(200)]
    of = dict(ask(conn, "SELECT seq, part FROM hapax.outbox"))
    assert set(of.values()) <= set(ALL) and len(set(of.values())) > 32
    assert turn(conn, parts=[7], limit=1000) == [seq for seq in seqs if of[seq] == 7]
    assert turn(conn, limit=50) == seqs[:50] and turn(conn, parts=[]) == []


# What a turn returns has to pass within the relay's timeout, and is held in memory.
def test_a_turn_takes_no_more_rows_behind_16_mib_and_always_one(db):
    conn, mib = db.connect(), 1 << 20
    seqs = [publish(conn, str(n), payload=bytes(size * mib)) for n, size in enumerate((16, 6, 6, 6, 1))]
    assert turn(conn) == seqs[:1]
    assert turn(conn, done=seqs[:1]) == seqs[1:4]
    assert turn(conn, done=seqs[1:4]) == seqs[4:]


def test_lag_and_sweep(db):
    conn = db.connect()
    seqs = [publish(conn) for _ in range(5)]
    turn(conn, done=seqs[:3])
    turn(conn, failed=[seqs[3]], tries_max=1)
    lag = row(conn, "hapax.outbox_lag()")
    assert (lag["pending"], lag["aside"]) == (1, 1) and lag["age_us"] > 0
    assert row(conn, "hapax.outbox_sweep(3600000, 0)")["swept"] == 0
    assert row(conn, "hapax.outbox_sweep(0, 0)") == {"swept": 3, "last": seqs[4], "more": False}
    assert ask(conn, "SELECT seq FROM hapax.outbox ORDER BY 1") == [(seqs[3],), (seqs[4],)]


# What waits or was put aside is as old as it may be, and says nothing of what is behind it. Only what was published
# lately ends a sweep.
def test_a_sweep_goes_on_behind_rows_that_stay(db):
    conn = db.connect()
    ask(conn, "SELECT count(hapax.publish('t', 'a' || n % 7, 'k' || n)) FROM generate_series(1, 10001) n")
    seqs = [seq for seq, in ask(conn, "SELECT seq FROM hapax.outbox ORDER BY seq")]
    ask(conn, "UPDATE hapax.outbox SET state = 2, ended_us = 1 WHERE seq <= %s", seqs[4999])
    ask(conn, "UPDATE hapax.outbox SET state = 1, ended_us = 1 WHERE seq > %s", seqs[9998])
    assert row(conn, "hapax.outbox_sweep(3600000, 0)") == {"swept": 0, "last": seqs[4999], "more": True}
    assert row(conn, f"hapax.outbox_sweep(3600000, {seqs[4999]})") == {"swept": 1, "last": seqs[9999], "more": True}
    ask(conn, "UPDATE hapax.outbox SET state = 1, ended_us = hapax.now_us() WHERE seq = %s", seqs[0])
    assert row(conn, "hapax.outbox_sweep(3600000, 0)") == {"swept": 0, "last": seqs[4999], "more": False}
    assert row(conn, f"hapax.outbox_sweep(3600000, {seqs[9998]})") == {"swept": 1, "last": seqs[10000], "more": False}


# Nothing in hand is walked twice for what a long transaction keeps: the floor is a bound of the index.
def test_the_floor_bounds_the_walk(db):
    conn = db.connect()
    ask(conn, "SELECT hapax.publish('t', i::text, 'k') FROM generate_series(1, 2000) i")
    seqs = turn(conn, limit=2000)
    turn(conn, done=seqs[:-1])
    for setting in ask(conn, "SELECT unnest(proconfig) FROM pg_proc WHERE oid = 'hapax.outbox_next'::regproc"):
        ask(conn, "SELECT set_config(%s, %s, false)", *setting[0].split("=", 1))
    plan = "\n".join(r[0] for r in ask(conn, """EXPLAIN (COSTS OFF) SELECT w.seq FROM (
        SELECT t.*, sum(octet_length(t.payload)) OVER (ORDER BY t.seq) AS bytes FROM (
            SELECT o.seq, o.payload FROM hapax.outbox o, LATERAL (
                SELECT e.seq, e.due_us FROM hapax.outbox e
                WHERE e.state = 0 AND (e.aggregate, e.seq) >= (o.aggregate, 0::bigint)
                ORDER BY e.aggregate, e.seq LIMIT 1) head
            WHERE o.state = 0 AND o.seq > %s AND o.part = ANY (%s) AND head.seq > %s AND head.due_us <= 1
            ORDER BY o.seq LIMIT 10) t) w
        WHERE w.bytes - octet_length(w.payload) < 16777216 ORDER BY w.seq""", seqs[-2], ALL, seqs[-2]))
    assert "Index Scan using outbox_pending" in plan and "Index Cond: (seq >" in plan and "Sort" not in plan
    assert "using outbox_heads" in plan and "Index Cond: (ROW(aggregate, seq) >=" in plan


# ---- leases ----------------------------------------------------------------------------------


def test_relays_share_the_parts_and_no_part_has_two(db):
    conn = db.connect()
    relays = [uuid.uuid4() for _ in range(5)]
    assert lease(conn, relays[0]) == ALL
    for _ in range(2):
        shares = {relay: lease(conn, relay) for relay in relays}
    shares = {relay: lease(conn, relay) for relay in relays}
    assert sorted(part for share in shares.values() for part in share) == ALL
    assert max(map(len, shares.values())) == 13
    assert lease(conn, relays[1], 0) == []
    for _ in range(2):
        shares = {relay: lease(conn, relay) for relay in relays if relay != relays[1]}
    assert sorted(part for share in shares.values() for part in share) == ALL and set(map(len, shares.values())) == {16}


def test_a_dead_relays_parts_are_taken_over(db):
    conn = db.connect()
    dead, heir = uuid.uuid4(), uuid.uuid4()
    assert lease(conn, dead) == ALL and lease(conn, heir) == []
    ask(conn,
        "UPDATE hapax.outbox_relays SET until_us = 1 WHERE relay = %s; UPDATE hapax.outbox_parts SET until_us = 1",
        str(dead))
    assert lease(conn, heir) == ALL
    assert lease(conn, dead) == []
    assert len(lease(conn, heir)) == 32 and len(lease(conn, dead)) == 32


# A server whose clock was a day ahead, and is put right.
def test_what_a_clock_ahead_has_left_is_over(db):
    conn, day_us = db.connect(), 24 * 3600 * 10**6
    a = publish(conn)
    assert lease(conn, uuid.uuid4()) == ALL and turn(conn, failed=[a]) == []
    ask(conn, f"UPDATE hapax.outbox_relays SET until_us = until_us + {day_us}")
    ask(conn, f"UPDATE hapax.outbox_parts SET until_us = until_us + {day_us}")
    ask(conn, f"UPDATE hapax.outbox SET due_us = due_us + {day_us}")
    assert lease(conn, uuid.uuid4(), 3600000) == ALL and lease(conn, uuid.uuid4()) == []
    assert turn(conn) == [a]


# ---- all at once -----------------------------------------------------------------------------


# Relays that die with rows in hand, writers that commit late and roll back: within an aggregate the first publication
# of each message is in the order of commits, and none is missing.
def test_a_storm_keeps_the_order_and_loses_nothing(db):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    committed, published, lock, over = {}, {}, threading.Lock(), threading.Event()

    def write(number):
        draw, conn = random.Random(seed + number), db.connect(autocommit=False)
        for i in range(60):
            names = sorted(draw.sample("abcdefgh", draw.choice([1, 1, 2])))
            seqs = [(name, publish(conn, name, f"{number}-{i}-{name}")) for name in names]
            if draw.random() < .2:
                conn.rollback()
                continue
            with lock:  # the order of commits, as nobody commits meanwhile
                conn.commit()
                for name, seq in seqs:
                    committed.setdefault(name, []).append(seq)

    def relay(number):
        draw, conn, name, parts, done = random.Random(seed - number), db.connect(), uuid.uuid4(), [], []
        while not over.is_set():
            if draw.random() < .2:
                turn(conn, done=done)
                done, parts = [], lease(conn, name, draw.choice([LEASE, LEASE, 0]))
            failed = [seq for seq in done[-1:] if draw.random() < .1]
            took = turn(conn, [seq for seq in done if seq not in failed], failed,
                        parts, limit=draw.randrange(1, 20), retry_ms=1, tries_max=1000)
            of = dict(ask(conn, "SELECT seq, aggregate FROM hapax.outbox WHERE seq = ANY (%s)", took))
            done = []
            for seq in took:
                with lock:
                    published.setdefault(of[seq], []).append(seq)
                done.append(seq)
                if draw.random() < .05:
                    break
            if draw.random() < .1:
                done = []  # it dies, and its heir has to wait for the lease; this one gives it back
        turn(conn, done=done)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    relays = [threading.Thread(target=relay, args=(n,)) for n in range(3)]
    for thread in writers + relays:
        thread.start()
    for thread in writers:
        thread.join(5 * PATIENCE)
    conn = db.connect()
    try:
        from process import wait_for
        wait_for(lambda: row(conn, "hapax.outbox_lag()")["pending"] == 0, "an empty outbox", 5 * PATIENCE)
    finally:
        over.set()
        for thread in relays:
            thread.join(PATIENCE)
    for name, seqs in committed.items():
        assert seqs == sorted(seqs), f"numbers of {name} are not in the order of commits"
        assert list(dict.fromkeys(published[name])) == seqs, f"{name} is out of order, or not whole (seed {seed})"


# ---- Debezium ---------------------------------------------------------------------------------


@pytest.fixture
def logged(request):
    """A database whose log can be decoded, as a connector does; asks it what has been committed since."""
    server = Postgres(wal_level="logical").start()
    request.addfinalizer(server.stop)
    name = server.database()
    uri = server.uri(name)
    subprocess.run([BUILD / "hapax", "init", "--store", uri], check=True, timeout=PATIENCE, capture_output=True)
    conn = psycopg2.connect(uri)
    request.addfinalizer(conn.close)
    ask(conn, f"ALTER DATABASE {name} SET hapax.outbox = 'debezium'")
    conn.commit()
    ask(conn, "SELECT pg_create_logical_replication_slot('events', 'test_decoding')")
    conn.commit()

    def changes():
        told = [r[0] for r in ask(conn, "SELECT data FROM pg_logical_slot_get_changes('events', NULL, NULL)")]
        conn.commit()
        return [re.fullmatch(r"table hapax\.(\w+): (\w+): (.*)", line, re.S).groups() for line in told
                if line.startswith("table")]
    return conn, changes


# The columns that the router's documentation has, with their types, in the log once the transaction has committed, and
# in no table; none of what was rolled back.
def test_debezium_reads_rows_by_the_names_it_has(logged):
    conn, changes = logged
    columns = dict(ask(conn, """SELECT a.attname, format_type(a.atttypid, a.atttypmod) || CASE WHEN a.attnotnull
        THEN ' not null' ELSE '' END FROM pg_attribute a WHERE a.attrelid = 'hapax.outbox_events'::regclass
        AND a.attnum > 0"""))
    texts = dict.fromkeys(("aggregatetype", "aggregateid", "type"), "character varying(255)")
    for name, kind in {"id": "uuid", **texts, "payload": "bytea"}.items():
        assert columns[name] == f"{kind} not null"
    publish(conn, topic="gone")
    conn.rollback()
    publish(conn, "order-17", "k", "pay", b"\x00paid", topic="payments", headers={"A": "b"})
    publish(conn, "order-17", "k2", topic="payments")
    conn.commit()
    told = [(table, kind, dict(re.findall(r"(\w+)\[[^]]*\]:('(?:[^']|'')*'|\w+)", row)))
            for table, kind, row in changes()]
    assert [(table, kind) for table, kind, _ in told] == [("outbox_events", "INSERT"), ("outbox_events", "DELETE")] * 2
    first, second = told[0][2], told[2][2]
    assert first == {"seq": first["seq"], "id": first["id"], "aggregatetype": "'payments'", "aggregateid": "'order-17'",
                     "type": "'pay'", "payload": "'\\x0070616964'", "key": "'k:pay'", "content_type": "''",
                     "headers": "'{\"A\": \"b\"}'"}
    assert second["type"] == "'payments'" and int(second["seq"]) > int(first["seq"]) and second["id"] != first["id"]
    publish(conn, "order-17", "k", "pay", topic="payments")
    conn.commit()
    assert changes()[0][2].split("id[uuid]:")[1].startswith(first["id"])
    assert ask(conn, "SELECT FROM hapax.outbox") == ask(conn, "SELECT FROM hapax.outbox_events") == []


# The database's setting says who, at once. Without one, or with "relay", a relay has it; one that says neither is
# refused, and so is Debezium where no log could tell it. What a session or a role sets for itself is nothing.
def test_who_publishes_is_said_by_a_setting_of_the_database(db):
    conn = db.connect()

    def setting(value):
        ask(conn, f"ALTER DATABASE {db.name} SET hapax.outbox = '{value}'")

    ask(conn, "SET hapax.outbox = 'debezium'")
    publish(conn)
    setting("relay")
    publish(conn)
    assert len(turn(conn)) >= 1
    setting("kafka")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="neither"):
        publish(conn)
    setting("debezium")
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState, match="wal_level"):
        publish(conn)
    ask(conn, f"ALTER DATABASE {db.name} RESET hapax.outbox")
    publish(conn)
