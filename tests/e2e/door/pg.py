"""What the tests of PostgreSQL share: one server for all of them, a database of its own for each, and
the statements by which they look at what happened."""
import atexit
import contextlib
import sys

import psycopg2

from conftest import BUILD, ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
import postgres_server  # noqa: E402

TRANSFER = BUILD / "examples/transfer"
TRANSFER_PY = ROOT / "examples/transfer.py"
COMPLETED = 2  # of hapax.operations.state

servers = []


def server():
    """The one server of this process; a test that breaks servers starts its own."""
    if not servers:
        servers.append(postgres_server.Postgres().start())
        atexit.register(servers[0].end)
    return servers[0]


def fill(server, name):
    server.initialised(name)
    server.psql((ROOT / "examples/transfer.sql").read_text(), name)


class Database:
    """A database with Hapax's schema and the tables of the examples."""

    def __init__(self, server):
        self.server, self.name = server, server.database(fill)

    @property
    def uri(self):
        return self.server.uri(self.name)

    def conninfo(self, port=None, **more):
        words = {"host": "127.0.0.1", "port": port or self.server.port, "dbname": self.name, "user": "postgres",
                 "sslmode": "disable", "gssencmode": "disable", **more}
        return " ".join(f"{name}='{value}'" for name, value in words.items())

    def connect(self, port=None, **more):
        return psycopg2.connect(self.conninfo(port, **more))

    def run(self, statement, *values):
        """In a transaction of its own; its rows, if it has any."""
        conn = self.connect()
        try:
            with conn, conn.cursor() as cursor:
                cursor.execute(statement, values or None)
                return cursor.fetchall() if cursor.description else []
        finally:
            conn.close()

    def one(self, statement, *values):
        return self.run(statement, *values)[0][0]

    def completed(self, scope):
        return self.one("SELECT count(*) FROM hapax.operations WHERE scope = %s AND state = %s",
                        scope.encode(), COMPLETED)

    def terminate(self):
        """Ends every other connection to this database."""
        with contextlib.suppress(psycopg2.OperationalError):
            self.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND "
                     "pid <> pg_backend_pid()", self.name)

    def idle(self):
        """Nobody else is in a transaction here: what was cut off has been rolled back."""
        return self.one("SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid() AND "
                        "backend_type = 'client backend' AND xact_start IS NOT NULL", self.name) == 0

    def check(self, acknowledged=()):
        """Business rows = completed operations, each key once, no money made or lost; what was acknowledged is
        there."""
        transfers = self.one("SELECT count(*) FROM transfers")
        assert transfers == self.completed("transfers")
        amounts = self.one("SELECT count(DISTINCT amount) FROM transfers")
        assert amounts == transfers, "each test key moves another amount"
        assert self.one("SELECT sum(balance) FROM accounts") == 2 * 10**9
        moved = {amount for amount, in self.run("SELECT amount FROM transfers")}
        assert moved >= set(acknowledged), f"lost: {set(acknowledged) - moved}"
        return moved

    def rich(self):
        self.run("UPDATE accounts SET balance = 1000000000")
        return self
