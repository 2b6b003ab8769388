#!/usr/bin/python3
"""What the store costs a PostgreSQL: room, log and commits for each operation; room that is used again, and how a
transaction that stays open prevents that; locks of a caller's transaction.

    tests/servers/with.py postgres bench/database.py {uri} [--seconds S]

The database is a test's own: hapax.operations is emptied. Operations are those of `hapax bench`, whose bodies are one
letter repeated; so that PostgreSQL does not compress them, the column is set to be stored as it is.
"""
import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import time

import psycopg2

HAPAX = pathlib.Path(os.environ.get("HAPAX_BUILD", "build")).resolve() / "hapax"
SIZES = (0, 64, 1024, 8192)


def bench(uri, seconds, size, retention="1d"):
    words = ("--json", "--duplicates", "0", "--clients", "64", "--size", str(size), "--retention", retention,
             "--seconds", str(seconds))
    return json.loads(subprocess.check_output([HAPAX, "bench", "--store", uri, *words]))["cycles"]


class Database:
    def __init__(self, uri):
        self.conn = psycopg2.connect(uri)
        self.conn.autocommit = True

    def ask(self, statement, *values):
        with self.conn.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchone() if cursor.description else None

    def empty(self):
        self.ask("TRUNCATE hapax.operations")
        self.ask("CHECKPOINT")

    def sizes(self):
        """Bytes of the rows, of what stands beside them (TOAST), of the primary key, of the index of open records."""
        return self.ask("SELECT pg_relation_size(c.oid), pg_total_relation_size(c.reltoastrelid),"
                        " pg_relation_size('hapax.operations_pkey'), pg_relation_size('hapax.operations_open')"
                        " FROM pg_class c WHERE c.oid = 'hapax.operations'::regclass")

    def counted(self):
        return self.ask("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, xact_commit FROM pg_stat_database"
                        " WHERE datname = current_database()")


def rows(db, uri, seconds):
    print("| body | operations | rows | beside | primary key | open | packed: rows | beside | primary key | log"
          " | commits |\n|" + "---|" * 11)
    for size in SIZES:
        db.empty()
        before = db.counted()
        cycles = bench(uri, seconds, size)
        time.sleep(1)  # statistics of connections that ended are added up by then
        log, commits = (after - was for after, was in zip(db.counted(), before))
        filled = db.sizes()
        db.ask("VACUUM FULL hapax.operations")
        parts = [f"{part / cycles:.0f}" for part in (*filled, *db.sizes()[:3], log)]
        print(f"| {size} | {cycles:,} | {' | '.join(parts)} | {commits / cycles:.2f} |", flush=True)


def room(db, uri, seconds, held):
    """Rounds of operations that are kept for half a minute, and swept."""
    db.empty()
    with contextlib.ExitStack() as stack:
        if held:
            other = stack.enter_context(contextlib.closing(psycopg2.connect(uri)))
            other.set_session(isolation_level="REPEATABLE READ")
            other.cursor().execute("SELECT count(*) FROM hapax.operations")
        sweeper = subprocess.Popen([HAPAX, "purge", "--every", "1s", "--store", uri], stdout=subprocess.DEVNULL)
        stack.callback(sweeper.wait)
        stack.callback(sweeper.terminate)
        total = 0
        for _ in range(6):
            total += bench(uri, seconds, 64, "30s")
            table, _, key, _ = db.sizes()
            vacuums = db.ask("SELECT autovacuum_count, n_live_tup, n_dead_tup FROM pg_stat_user_tables"
                             " WHERE relid = 'hapax.operations'::regclass")
            print(f"| {'yes' if held else 'no'} | {total:,} | {table / 2**20:.1f} | {key / 2**20:.1f} "
                  f"| {' | '.join(f'{n:,}' for n in vacuums)} |", flush=True)


def locks(uri):
    with contextlib.closing(psycopg2.connect(uri)) as conn:
        cursor = conn.cursor()
        cursor.execute("SELECT token FROM hapax.begin('locks', %s)", (str(time.time()),))
        cursor.execute("SELECT hapax.complete(%s, 201)", cursor.fetchone())
        cursor.execute("SELECT locktype, coalesce(relation::regclass::text, ''), mode, count(*) FROM pg_locks"
                       " WHERE pid = pg_backend_pid() AND locktype IN ('relation', 'advisory', 'tuple')"
                       " AND coalesce(relation::regclass::text, '') !~ '^pg_' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3")
        print("| lock | on | mode | how many |\n|---|---|---|---|")
        for row in cursor.fetchall():
            print("| " + " | ".join(map(str, row)) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("uri")
    parser.add_argument("--seconds", type=int, default=5, metavar="S", help="of each run (default 5)")
    args = parser.parse_args()
    db = Database(args.uri)
    print(db.ask("SELECT version()")[0])
    db.ask("ALTER TABLE hapax.operations ALTER COLUMN body SET STORAGE EXTERNAL")
    rows(db, args.uri, args.seconds)
    began = time.monotonic()
    db.ask("VACUUM hapax.operations")
    print(f"VACUUM of that table: {time.monotonic() - began:.2f} s")
    print("\n| a transaction stays open | operations so far | table MiB | key MiB | autovacuums | live | dead |\n|"
          + "---|" * 7)
    for held in (False, True):
        room(db, args.uri, 4 * args.seconds, held)
    print()
    locks(args.uri)


main()
