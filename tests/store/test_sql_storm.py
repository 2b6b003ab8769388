"""All kinds of callers at once on a few ids: stores' batches, callers' transactions at every isolation level, with
savepoints and prepared ones, operators' own statements, sweeps and vacuums, with leases of some milliseconds. What each
was told, and what was committed beside it, must be one history.

    HAPAX_STORM_SECONDS=300 HAPAX_BUILD=build /usr/bin/python3 -m pytest tests/store/test_sql_storm.py
"""
import base64
import collections
import contextlib
import os
import random
import secrets
import threading
import time

import pytest

import postgres_server
import psycopg2
from sql_database import (BUSY, CLAIM, CLAIMED, COMPLETE, FAIL, FORCE,
                          FORGET, OK, READ, RENEW, RESOLVE, SCRIPT, Database,
                      answers, ask, op)

SECONDS = float(os.environ.get("HAPAX_STORM_SECONDS", 6))
ROUND = 3  # seconds on one set of keys: what lasts is completed after a while, and then little happens
CALLERS = 10
LASTING, PASSING = ["a", "b", "c", "d"], ["p", "q", "r", "s"]  # the latter expire at once and may be forgotten
LEVELS = ["READ COMMITTED"] * 4 + ["REPEATABLE READ", "SERIALIZABLE"]
REPEAT = ("40001", "40P01")
Told = collections.namedtuple("Told", "start end what id token answer body")


@pytest.fixture(scope="module")
def server():
    running = postgres_server.Postgres(max_connections=40, max_prepared_transactions=20, autovacuum_naptime=1).start()
    yield running
    running.end()


def rows(conn, statement, *values):
    with conn.cursor() as cursor:
        cursor.execute(statement, values or None)
        return [{column.name: bytes(value) if isinstance(value, memoryview) else value
                 for column, value in zip(cursor.description, row)}
                for row in cursor.fetchall()]


def parts(token):
    whole = base64.urlsafe_b64decode(token)
    return whole[:32], whole[32:]


class Storm:
    def __init__(self, db, seed):
        self.db, self.seed, self.until = db, seed, time.monotonic() + ROUND
        self.keys = {key: bytes(ask(db.connect(), "SELECT hapax.id('s', %s)", key)[0][0]) for key in LASTING + PASSING}
        self.lasting = {self.keys[key] for key in LASTING}
        self.tokens = collections.defaultdict(list)
        self.told, self.effects, self.faults = [], [], []

    def draw_op(self, draw, id):
        kind = draw.choices([CLAIM, RENEW, COMPLETE, FAIL, READ, RESOLVE], [10, 2, 3, 2, 2, .3])[0]
        known, token, flags = self.tokens[id][-6:], secrets.token_bytes(16), 0
        if known and (kind in (RENEW, COMPLETE, FAIL) or kind == CLAIM and draw.random() < .2):
            token = draw.choice(known)
        elif kind == CLAIM:
            self.tokens[id].append(token)
        if kind == CLAIM:
            flags = draw.choice([1, 1, 1, 1, 2, 3])
        elif kind == FAIL:
            flags = draw.choice([0, 64, 64, 128 | 64])
        elif kind == RESOLVE:  # what lasts is never undone
            flags = 2 << 2 if id in self.lasting else draw.choice([1 << 2, 2 << 2, FORGET]) | draw.choice([0, FORCE])
        return op(kind, id, token, flags | (0 if kind == CLAIM else 512), lease_ms=draw.choice([1, 2, 5, 20, 60]),
                  retention_ms=10**9 if id in self.lasting else draw.choice([1, 10, 50]),
                  body=secrets.token_hex(6).encode())

    def batch(self, conn, draw):
        ops = [self.draw_op(draw, id) for id in draw.sample(list(self.keys.values()), draw.randint(1, 6))]
        start = time.monotonic()
        told = answers(conn, ops, packed=draw.random() < .8)
        end = time.monotonic()
        for answer in told:
            asked = ops[answer["ord"] - 1]
            if answer["error"] != BUSY:
                self.told.append(Told(start, end, asked[0], asked[1], asked[2], answer, asked[12]))

    def one_key(self, conn, draw, key, level, told, effects):
        id, token = self.keys[key], None

        def say(what, call, *values):
            start = time.monotonic() if level == "READ COMMITTED" else 0  # else its snapshot may be older
            answer, = rows(conn, f"SELECT * FROM hapax.{call}", *values)
            told.append(Told(start, 0, what, id, parts(answer["token"])[1] if answer.get("token") else None,
                             answer, values[-1]))
            return answer

        if draw.random() < .75 or not self.tokens[id]:
            token = say(CLAIM,
                        "begin('s', %s, lease => %s::interval, on_expired => %s, wait => %s, retention => "
                        "%s::interval)", key,
                        draw.choice(["1 ms", "5 ms", "30 ms"]),
                        draw.choice(["rerun", "rerun", "hold"]), draw.random() < .6,
                        "100 h" if id in self.lasting else draw.choice(["1 ms", "20 ms"]))["token"]
            if token:
                self.tokens[id].append(parts(token)[1])
        else:
            token = base64.urlsafe_b64encode(id + draw.choice(self.tokens[id][-4:])).decode()
        if not token or draw.random() < .2:
            return
        time.sleep(draw.choice([0, 0, 0, .005, .02]))
        end, body = draw.choice(["complete"] * 3 + ["fail", "renew"]), secrets.token_hex(6).encode()
        if end == "renew":
            say(RENEW, "renew(%s, '3 ms', \"raise\" => false)", token)
        elif end == "fail":
            say(FAIL, "fail(%s, \"raise\" => false)", token)
        else:
            answer = say(COMPLETE, "complete(%s, \"raise\" => false, body => %s)", token, body)
            if answer["verdict"] == "ok" and answer["body"] == body:
                ask(conn, "INSERT INTO effects VALUES (%s, %s, %s)", id, answer["fence"], body)
                effects.append((id, answer["fence"], body))

    def transaction(self, conn, draw):
        level, told, effects = draw.choice(LEVELS), [], []
        conn.autocommit = False
        ask(conn, f"SET TRANSACTION ISOLATION LEVEL {level}")
        for key in sorted(draw.sample(list(self.keys), draw.choice([1, 1, 1, 2]))):
            inside = draw.random() < .3
            so_far = len(told), len(effects)
            if inside:
                ask(conn, "SAVEPOINT here")
            self.one_key(conn, draw, key, level, told, effects)
            if inside and draw.random() < .5:
                ask(conn, "ROLLBACK TO here")
                del told[so_far[0]:], effects[so_far[1]:]
        if draw.random() < .2:
            return conn.rollback()
        if draw.random() < .1:
            name = secrets.token_hex(8)
            ask(conn, f"PREPARE TRANSACTION '{name}'")
            conn.rollback()
            conn.autocommit = True
            time.sleep(draw.random() * .01)
            if draw.random() < .4:
                return ask(conn, f"ROLLBACK PREPARED '{name}'")
            ask(conn, f"COMMIT PREPARED '{name}'")
        else:
            conn.commit()
        end = time.monotonic()
        self.effects += effects
        self.told += [each._replace(end=end) for each in told]

    def operator(self, conn, draw):
        record = f"WHERE id = '\\x{draw.choice(list(self.keys.values())).hex()}'"
        alone = ["VACUUM hapax.operations", f"SELECT FROM hapax.purge(NULL, {draw.choice([1, 3, 500])})",
                 "DELETE FROM hapax.operations WHERE expires_us <> 0 AND expires_us <= hapax.now_us()"]
        held = [f"SELECT FROM hapax.operations {record} FOR UPDATE",
                f"SELECT FROM hapax.operations {record} FOR KEY SHARE",
                f"UPDATE hapax.operations SET updated_us = updated_us {record}",
                f"SAVEPOINT x; UPDATE hapax.operations SET id = id {record}; ROLLBACK TO x; SELECT FROM "
                f"hapax.operations {record} FOR SHARE"]
        if draw.random() < .4:
            return ask(conn, draw.choice(alone))
        conn.autocommit = False
        ask(conn, draw.choice(held))
        time.sleep(draw.random() * .005)
        return conn.commit() if draw.random() < .6 else conn.rollback()

    def caller(self, number):
        draw, conn = random.Random(self.seed * 1000 + number), self.db.connect()
        while time.monotonic() < self.until and not self.faults:
            try:
                draw.choices([self.batch, self.transaction, self.operator], [5, 4, .7])[0](conn, draw)
            except psycopg2.Error as error:
                if error.pgcode not in REPEAT:
                    self.faults.append(error)
                    return
                conn.rollback()
            except Exception as error:
                self.faults.append(error)
                return
            with contextlib.suppress(psycopg2.Error):
                conn.rollback()
                conn.autocommit = True

    def run(self):
        threads = [threading.Thread(target=self.caller, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not self.faults, self.faults
        for id in self.keys.values():
            self.look_at(id, [each for each in self.told if each.id == id])
        self.look_at_effects()

    def look_at(self, id, told):
        """One holder per fence; nobody is told of less than somebody was told before; one outcome, for ever; and what
        lasts is granted anew only where the attempt before it was over."""
        holders, outcomes, ended, until = {}, collections.defaultdict(set), set(), {}
        seen = sorted((each.end, each.answer["fence"]) for each in told if each.answer["fence"]
                      and each.answer.get("state") != 0)
        top = at = 0
        for each in sorted(told, key=lambda each: each.start):
            answer, verdict, fence = each.answer, each.answer["verdict"], each.answer["fence"]
            while each.start and at < len(seen) and seen[at][0] < each.start:
                top, at = max(top, seen[at][1]), at + 1
            assert not each.start or not fence or answer.get("state") == 0 or fence >= top, (each, top)
            if verdict in (CLAIMED, "claimed"):
                assert holders.setdefault(fence, each.token) == each.token, each
            if each.what in (COMPLETE, FAIL) and verdict in (OK, "ok"):
                ended.add(fence)
            if each.what in (CLAIM, RENEW) and verdict in (CLAIMED, OK) and answer["state"] == 1:
                until[fence] = max(until.get(fence, 0), answer["lease_until_us"])
            if each.what == COMPLETE and verdict in (OK, "ok"):
                outcomes[fence].add(each.body if answer.get("outcome") == 2 else answer["body"])
            elif verdict in (3, "completed") and each.what == CLAIM or verdict == 9 and answer["state"] == 2:
                outcomes[fence].add(answer["body"])
        # A tombstone, which a COMPLETE leaves for as long as another op's lease, has no body.
        assert all(len(bodies - {b""}) <= 1 for bodies in outcomes.values()), outcomes
        if id in self.lasting:
            assert len(outcomes) <= 1, outcomes
            for fence, later in zip(sorted(holders), sorted(holders)[1:]):
                assert fence in ended or later >= until.get(fence, 0), (fence, later)

    def look_at_effects(self):
        stored = {tuple(each.values()) for each in rows(self.db.connect(), "SELECT * FROM effects")}
        assert stored == set(self.effects) and len(stored) == len(self.effects)
        assert len({effect[:2] for effect in stored}) == len(stored), "two effects of one claim"
        lasting = [effect for effect in stored if effect[0] in self.lasting]
        assert len({effect[0] for effect in lasting}) == len(lasting), "two effects of one operation"
        for id, _, body in lasting:
            assert ask(self.db.connect(), "SELECT state, body FROM hapax.operations WHERE id = %s", id)[0][0] == 2
            assert bytes(ask(self.db.connect(), "SELECT body FROM hapax.operations WHERE id = %s", id)[0][0]) == body


# Whoever calls, and however it ends: one holder per fence, fences that rise, outcomes that stand, effects that happen
# once.
def test_callers_of_every_kind_make_one_history(server):
    told, seed, began = 0, random.randrange(10**6), time.monotonic()
    while time.monotonic() < began + SECONDS or told <= 500 and time.monotonic() < began + SECONDS + 120:
        db = Database(server, script=SCRIPT + "CREATE TABLE effects (id bytea, fence bigint, body bytea);")
        try:
            storm = Storm(db, seed)
            storm.run()
            told, seed = told + len(storm.told), seed + 1
        finally:
            db.close()
    assert told > 500
