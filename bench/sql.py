#!/usr/bin/python3
"""What hapax.begin() and hapax.complete() cost beside the textbook's INSERT … ON CONFLICT and UPDATE, in a warm session
of PostgreSQL without fsync: processor time and instructions of the backend, medians, with what `SELECT 1` costs.

    bench/sql.py [--rounds N] [FOLDER…]

A FOLDER is an sql/, perhaps of another version; they take turns (default: sql/). Compare the instructions: others on
the machine do not change them. They need Linux's counters (perf_event_open), for which the user may have to be root.
"""
import argparse
import contextlib
import ctypes
import os
import pathlib
import secrets
import statistics
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT / "tests/servers")  # not this folder: http.py would stand for the library's http
import psycopg2  # noqa: E402 - it is found only now
from postgres_server import Postgres  # noqa: E402

SAID, BODY = b"y" * 64, b'{"receipt":"%s"}' % (b"x" * 190)
SET_UP = """
CREATE TABLE idempotency (key text PRIMARY KEY, print text NOT NULL, status integer, body bytea,
    created timestamptz NOT NULL DEFAULT now());
PREPARE one AS SELECT 1;
PREPARE begin(text, bytea) AS SELECT verdict, token FROM hapax.begin('pay', $1, fingerprint => hapax.digest($2));
PREPARE complete(text, bytea) AS SELECT FROM hapax.complete($1, 201, body => $2);
PREPARE inserts(text) AS INSERT INTO idempotency (key, print) VALUES ($1, repeat('p', 64)) ON CONFLICT DO NOTHING;
PREPARE updates(text, bytea) AS UPDATE idempotency SET status = 201, body = $2 WHERE key = $1;
"""


def instructions_of(pid):
    """A function that tells how many instructions the process has run so far, its kernel's included."""
    attributes = ctypes.create_string_buffer(struct.pack("<IIQQQQQ", 0, 128, 1, 0, 0, 0, 1 << 6), 128)
    counter = ctypes.CDLL(None, use_errno=True).syscall(298, attributes, pid, -1, -1, 0)
    if counter < 0:
        raise OSError(ctypes.get_errno(), "perf_event_open")
    return lambda: struct.unpack("<Q", os.read(counter, 8))[0]


class Session:
    def __init__(self, server, stack, folder):
        self.folder, self.costs = folder, {}
        conn = stack.enter_context(contextlib.closing(psycopg2.connect(server.uri(server.database()))))
        conn.autocommit = True
        self.cursor = conn.cursor()
        self.cursor.execute("".join(path.read_text() for path in sorted(folder.glob("*.sql"))) + SET_UP)
        self.cursor.execute("SELECT * FROM hapax.begin('pay', 'first')")
        self.spent = pathlib.Path(f"/proc/{conn.info.backend_pid}/schedstat")
        self.instructions = instructions_of(conn.info.backend_pid)

    def ask(self, what, statement, *values):
        spent, counted = self.spent.read_text(), self.instructions()
        self.cursor.execute(statement, values)
        counted = self.instructions() - counted
        spent = int(self.spent.read_text().split()[0]) - int(spent.split()[0])
        self.costs.setdefault(what, []).append((spent / 1e3, counted / 1e3))
        return self.cursor.fetchone() if self.cursor.description else None

    def turn(self):
        for _ in range(40):
            key = secrets.token_hex(12)
            self.cursor.execute("BEGIN")
            _, token = self.ask("begin, a new key", "EXECUTE begin(%s, %s)", key, SAID)
            self.ask("complete", "EXECUTE complete(%s, %s)", token, BODY)
            self.cursor.execute("COMMIT; BEGIN")
            if self.ask("begin, a repeat", "EXECUTE begin(%s, %s)", key, SAID)[0] != "completed":
                raise RuntimeError("a repeat was not replayed")
            self.cursor.execute("COMMIT")
            self.ask("INSERT … ON CONFLICT", "EXECUTE inserts(%s)", key)
            self.ask("UPDATE", "EXECUTE updates(%s, %s)", key, BODY)
            self.ask("SELECT 1", "EXECUTE one")


def main():
    parser = argparse.ArgumentParser(description="what the functions of the SQL door cost")
    parser.add_argument("--rounds", type=int, default=5, help="of 40 operations each (5)")
    parser.add_argument("folders", nargs="*", type=pathlib.Path, default=[ROOT / "sql"], metavar="FOLDER")
    wanted = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = Postgres(shared_buffers="64MB")
        stack.callback(server.end)
        sessions = [Session(server.start() if i == 0 else server, stack, folder)
                    for i, folder in enumerate(wanted.folders)]
        for i in range(wanted.rounds + 1):
            for session in sessions:
                session.turn()
                if i == 0:
                    session.costs.clear()  # what is prepared once in a session
        for session in sessions:
            print(session.folder)
            for what, costs in session.costs.items():
                print(f"    {what:20} {statistics.median(us for us, _ in costs):6.0f} µs "
                      f"{statistics.median(kilo for _, kilo in costs):6.0f},000 instructions")


if __name__ == "__main__":
    main()
