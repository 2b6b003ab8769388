"""A database with the schema of sql/ in it, the calls of the tests there, and their fixtures (tests/conftest.py)."""
import concurrent.futures
import contextlib
import hashlib
import os
import pathlib
import struct
import sys

import psycopg2
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HAPAX_BUILD", ROOT / "build")).resolve()
sys.path.insert(0, str(ROOT / "tests/servers"))
import postgres_server  # noqa: E402
from process import wait_for  # noqa: E402

TEXT = "".join(path.read_text() for path in sorted((ROOT / "sql").glob("*.sql")))
SCRIPT = TEXT.replace("@DIGEST@", hashlib.sha256(TEXT.encode()).hexdigest())  # as tools/embed.py does
CLAIM, RENEW, COMPLETE, FAIL, READ, RESOLVE = 1, 2, 3, 4, 5, 8
CLAIMED, IN_FLIGHT, COMPLETED, UNKNOWN, OK, LOST, FOUND, ABSENT = 1, 2, 3, 5, 7, 8, 9, 10
RERUN, HOLD = 1, 2
FORGET, FORCE, PACKED = 3 << 2, 256, 1024
BUSY = -4
FOREVER = 2**63 - 1
LONG_MS = 3600000  # no test lasts as long
TYPES = ("smallint bytea bytea bytea bytea bytea bigint bigint integer bigint integer bytea bytea bytea "
         "bytea bytea").split()


@pytest.fixture(scope="session")
def server():
    running = postgres_server.Postgres(max_connections=60).start()
    yield running
    running.end()


def load(server, name):
    conn = psycopg2.connect(host="127.0.0.1", port=server.port, dbname=name, user="postgres")
    with contextlib.closing(conn), conn, conn.cursor() as cursor:
        cursor.execute(SCRIPT)


class Database:
    def __init__(self, server, script=SCRIPT):
        self.server, self.name, self.open = server, server.database(load if script == SCRIPT else None), []
        if script and script != SCRIPT:
            self.run(script)

    def connect(self, port=None, autocommit=True, **more):
        conn = psycopg2.connect(host="127.0.0.1", port=port or self.server.port,
                                dbname=self.name, user=more.pop("user", "postgres"), **more)
        conn.autocommit = autocommit
        self.open.append(conn)
        return conn

    def run(self, statement, *values):
        conn = self.connect()
        try:
            return ask(conn, statement, *values)
        finally:
            conn.close()

    def close(self):
        for conn in self.open:
            conn.close()


def in_encoding(server, encoding):
    """A database with the schema, in another encoding than UTF-8."""
    database = Database(server, script=None)
    server.psql(f"DROP DATABASE {database.name}")
    server.psql(f"CREATE DATABASE {database.name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' "
                "TEMPLATE template0")
    server.initialised(database.name)
    return database


@pytest.fixture
def db(server):
    database = Database(server)
    yield database
    database.close()


def ask(conn, statement, *values):
    with conn.cursor() as cursor:
        cursor.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []


def row(conn, call, *values):
    """The one row of a function, by the names of its columns."""
    with conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {call}", values)
        (values,) = cursor.fetchall()
        return {column.name: bytes(value) if isinstance(value, memoryview) else value
                for column, value in zip(cursor.description, values)}


def begin(conn, key="k", **more):
    names = "".join(f", {name} => %s" for name in more)
    return row(conn, f"hapax.begin('shop', %s{names})", key, *more.values())


def complete(conn, token, body=b"done", **more):
    names = "".join(f', "{name}" => %s' for name in more)
    return row(conn, f"hapax.complete(%s, 200, hapax.headers('A', 'b'), %s{names})", token, body, *more.values())


def op(kind, id, token=bytes(15) + b"1", flags=RERUN, lease_ms=30000,
       retention_ms=3600000, limit=0, body=b"", scope=b"s", owner=b"", what=b""):
    lease_ms *= kind != RESOLVE  # which has the time there that it names
    return (kind, id, token, scope, bytes(32), bytes(32), lease_ms, retention_ms, flags, limit, 200, b"", body, b"",
            owner, what)


def unpacked(ops, row):
    """The rows that a row of hapax.run() stands for: as dicts, with what follows from the ops filled in."""
    if row["ord"] is not None:
        return [row]
    now, body, told = row["now_us"], row["body"], []
    if row["verdict"] == CLAIMED:
        assert len(body) == 20 + 8 * int.from_bytes(body[12:16], "big")
        for at in range(24, len(body), 8):
            ord = int.from_bytes(body[at:at + 4], "big")
            told.append({"ord": ord, "state": 1, "attempt": 1, "spent": 0,
                         "fence": now, "created_us": now, "outcome": None,
                         "hold": ops[ord - 1][8] & 3 != RERUN, "lease_until_us": now + ops[ord - 1][6] * 1000})
    while row["verdict"] == OK and body:
        ord, created, fence, retention, attempt, spent, bits = struct.unpack(">iqqqiii", body[:40])
        owner_end = 104 + 32 * (bits >> 3 & 1)
        scope_end = owner_end + (bits >> 8 & 255)
        what_end = scope_end + (bits >> 16)
        told.append({"ord": ord, "state": 2, "attempt": attempt, "spent": spent,
                     "fence": fence, "created_us": created, "outcome": 2,
                     "hold": bits & 1 != 0, "fingerprint": body[40:72], "caller": body[72:104],
                     "owner": body[104:owner_end], "scope": body[owner_end:scope_end],
                     "what": body[scope_end:what_end]})
        body = body[what_end:]
    return [{**row, "error": 0, "updated_us": now, "body": None, **one} for one in told]


def answers(conn, ops, wait=False, packed=True):
    """hapax.run(); its rows in the order of the ops, as dicts."""
    ops = [ops[0][:8] + (ops[0][8] | PACKED * packed,) + ops[0][9:], *ops[1:]]
    words = ", ".join(f"%s::{type}[]" for type in TYPES)
    with conn.cursor() as cursor:
        cursor.execute(f"SELECT * FROM hapax.run({words}, %s)", [list(column) for column in zip(*ops)] + [wait])
        rows = [{column.name: bytes(value) if isinstance(value, memoryview) else value
                 for column, value in zip(cursor.description, row)}
                for row in cursor.fetchall()]
    rows = sorted((one for row in rows for one in unpacked(ops, row)), key=lambda row: row["ord"])
    assert [row["ord"] for row in rows] == list(range(1, len(ops) + 1))
    return rows


def run(conn, ops, wait=False, packed=True):
    """hapax.run(); its rows in the order of the ops, as (verdict, error, state, attempt)."""
    return [(row["verdict"], row["error"], row["state"], row["attempt"]) for row in answers(conn, ops, wait, packed)]


def waits(db, conn):
    """Until conn's backend waits for a lock."""
    wait_for(lambda: db.run("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                            conn.info.backend_pid),
             "a backend waiting for a lock")


def later(what, *args):
    """Runs it in a thread."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(what, *args)
    pool.shutdown(wait=False)
    return future
