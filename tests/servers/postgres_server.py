"""PostgreSQL for tests: a server, synchronous standbys, PgBouncer before it."""
import contextlib
import glob
import itertools
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import psycopg2

from process import PATIENCE, Server, becomes, wait_for

BUILD = pathlib.Path(os.environ.get("HAPAX_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build")).resolve()
BIN = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1] if glob.glob("/usr/lib/postgresql/*/bin") else "")


class Postgres(Server):
    """One server: TCP on 127.0.0.1 and a socket in .folder, superuser postgres, no password.

    Options are postgresql.conf's: Postgres(max_connections=50). fsync is off unless asked for: what a
    process wrote outlives the process, and these machines do not lose power in a test.
    """

    name = "postgres"
    user = "postgres"

    def __init__(self, standby_of=None, hba=None, **options):
        super().__init__()
        self.data = self.folder / "data"
        self.hba = hba
        self.options = {"fsync": "off", "shared_buffers": "32MB",
                        "max_connections": 100, "listen_addresses": "127.0.0.1",
                        "unix_socket_directories": self.folder, "dynamic_shared_memory_type": "mmap",
                        "max_wal_senders": 10, "wal_keep_size": "64MB", "log_checkpoints": "off",
                        "wal_init_zero": "off", **options}
        self.standby_of = standby_of
        self.numbers = itertools.count(1)
        self.forms = {}  # of databases, by what fills them

    def run(self, program, *words):
        """One of PostgreSQL's programs, as the user who owns the server; but psql may be anybody's, and a process that
        changes its user takes longer to start."""
        user = self.user if program != "psql" else None
        done = subprocess.run([str(BIN / program), *map(str, words)], cwd=self.folder, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, preexec_fn=becomes(user) if user else None,
                              timeout=3 * PATIENCE, env={**os.environ, "LC_ALL": "C"})
        if done.returncode != 0:
            raise RuntimeError(f"{program}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self):
        try:
            if self.standby_of:
                self.run("pg_basebackup", "-D", self.data, "-h", "127.0.0.1",
                         "-p", self.standby_of.port, "-U", "postgres",
                         "-R", "--no-sync", "-c", "fast", "-X", "stream")
            else:
                self.format()
            if self.hba:
                (self.data / "pg_hba.conf").write_text(self.hba)
        except BaseException:
            self.end()
            raise
        return super().start()

    def format(self):
        """Makes its empty data: by initdb once in each build directory, and copied from then on. Half of what would be
        copied is the log's first segment, but for its size."""
        form = BUILD / f"postgres-{BIN.parent.name}-small"
        if form.exists():
            subprocess.run(["cp", "-a", form, self.data], check=True)
            return
        self.run("initdb", "-D", self.data, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C",
                 "--wal-segsize=1")
        if BUILD.is_dir():
            new = form.with_name(f"{form.name}.{os.getpid()}")
            subprocess.run(["cp", "-a", self.data, new], check=True)
            with contextlib.suppress(OSError):  # another was faster
                new.rename(form)
            shutil.rmtree(new, ignore_errors=True)

    def command(self):
        lines = [f"{name} = '{value}'\n" for name, value in {**self.options, "port": self.port}.items()]
        (self.data / "postgresql.conf").write_text("".join(lines))
        return [BIN / "postgres", "-D", self.data]

    def answers(self):
        return subprocess.run([str(BIN / "pg_isready"), "-q", "-h", "127.0.0.1",
                               "-p", str(self.port), "-t", "5"]).returncode == 0

    def restart(self, number=signal.SIGINT, ready=True):
        """SIGTERM, SIGINT and SIGQUIT are smart, fast and immediate; SIGKILL takes its children with it, as a
        machine that dies would."""
        return super().restart(number, ready)

    def end(self):
        if self.running and not self.stopped:
            super().kill(signal.SIGQUIT)  # so that it removes its shared memory itself
        super().end()

    def psql(self, statement, database="postgres"):
        return self.run("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1",
                        "-h", self.folder, "-p", self.port, "-U",
                        "postgres", "-d", database, "-c", statement).strip()

    def database(self, fill=None):
        """A new database; its name. Empty, or a copy of what fill(server, name) has once made of an empty one. It is
        copied by files: through the log it takes half as much again of the processor's time."""
        name = f"hapax_{next(self.numbers)}_{os.getpid()}"
        if fill and fill not in self.forms:
            form = self.database()
            fill(self, form)
            self.forms[fill] = form
        where = {"host": self.folder, "port": self.port, "user": "postgres", "dbname": "postgres"}
        with contextlib.closing(psycopg2.connect(**where)) as connection:
            connection.autocommit = True
            connection.cursor().execute(f"CREATE DATABASE {name} STRATEGY file_copy"
                                        + (f" TEMPLATE {self.forms[fill]}" if fill else ""))
        return name

    def initialised(self, name):
        """For database(): with the schema of a store."""
        done = subprocess.run([str(BUILD / "hapax"), "init", "--store", self.uri(name)], capture_output=True,
                              text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr

    def uri(self, database="postgres", port=None, **parameters):
        words = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}" + (f"?{words}" if words else "")

    def promote(self):
        """Of a standby: it is the primary from now on."""
        self.psql("SELECT pg_promote(true, 60)")
        self.standby_of = None


def synchronous_pair(**options):
    """A primary, and a standby that holds each commit before it is answered."""
    primary = Postgres(**options).start()
    standby = None
    try:
        standby = Postgres(standby_of=primary, **options).start()
        primary.options["synchronous_standby_names"] = "*"
        primary.psql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.psql("SELECT pg_reload_conf()")
        wait_for(lambda: primary.psql("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1",
                 "the standby being synchronous", pause=0.05)
    except BaseException:
        if standby:
            standby.end()
        primary.end()
        raise
    return primary, standby


class PgBouncer(Server):
    """PgBouncer before a Postgres, in transaction mode. Options are pgbouncer.ini's. Ends alone."""

    name = "pgbouncer"
    user = "postgres"

    def __init__(self, postgres, **options):
        super().__init__()
        self.postgres = postgres
        self.options = {"listen_addr": "127.0.0.1", "unix_socket_dir": "", "auth_type": "trust",
                        "auth_file": self.folder / "users", "pool_mode": "transaction", "max_client_conn": 500,
                        "default_pool_size": 20, **options}

    def command(self):
        (self.folder / "users").write_text('"postgres" ""\n')
        lines = [f"{name} = {value}\n" for name, value in {**self.options, "listen_port": self.port}.items()]
        (self.folder / "ini").write_text(f"[databases]\n* = host=127.0.0.1 port={self.postgres.port}\n[pgbouncer]\n"
                                         + "".join(lines))
        return ["/usr/sbin/pgbouncer", self.folder / "ini"]

    def answers(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            return True
        except OSError:
            return False

    def uri(self, database="postgres", **parameters):
        return self.postgres.uri(database, port=self.port, **parameters)
