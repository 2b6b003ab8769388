"""docs/postgres-drivers.md: each of its snippets, as it stands, against PostgreSQL and through PgBouncer.

A snippet is run by a program of its language (drivers/drive.*), which takes commands from the test, a line each:
pay KEY AMOUNT, storm N KEY AMOUNT (N connections at once, with the retries of the page), complete TOKEN.
"""
import functools
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import pg
import postgres_server
from conftest import BUILD, PATIENCE, ROOT, read_line, wait_until

PAGE = (ROOT / "docs/postgres-drivers.md").read_text()
HERE = pathlib.Path(__file__).parent / "drivers"
STORM = 20
FOREIGN_TOKEN = "A" * 64
# Ends a transaction only when nobody has the lock 1, so that a test can end its backend in COMMIT.
SLOW_COMMIT = """
CREATE FUNCTION wait_for_it() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait_for_it();
"""


def block(heading, language):
    part = PAGE[PAGE.index(f"\n## {heading}\n"):]
    return re.search(rf"```{language}\n(.*?)```", part, re.S)[1]


@functools.cache
def fetched(what="drivers"):
    """The folder of the drivers that no package has, or of Go's modules."""
    done = subprocess.run([ROOT / f"tools/{what}/fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1000)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def compiled(name, files, *command, **env):
    """A folder below build/ that has the files (texts by name), compiled there by the command, once."""
    into = BUILD / "driver-pages" / f"{name}-{hashlib.sha256(repr((files, command)).encode()).hexdigest()[:12]}"
    if not into.exists():
        into.parent.mkdir(exist_ok=True)
        new = pathlib.Path(tempfile.mkdtemp(dir=into.parent))
        for file, text in files.items():
            (new / file).write_text(text)
        subprocess.run(command, cwd=new, check=True, timeout=4 * PATIENCE, env={**os.environ, **env})
        for old in into.parent.glob(f"{name}-*"):
            shutil.rmtree(old)
        new.rename(into)
    return into


def python(module):
    def command(folder, db, port, bouncer):
        (folder / "snippet.py").write_text(block(*module[1:], "python"))
        shutil.copy(HERE / "drive.py", folder)
        return (["/usr/bin/python3", folder / "drive.py", module[0], db.server.uri(db.name, port)],
                {"PYTHONPATH": f"{folder}:{fetched() / 'python'}"})
    return command


def node(heading):
    def command(folder, db, port, bouncer):
        (folder / "snippet.js").write_text(block(heading, "js"))
        shutil.copy(HERE / "drive.js", folder)
        return ["node", folder / "drive.js", db.server.uri(db.name, port)], {"NODE_PATH": fetched() / "node_modules"}
    return command


def go(folder, db, port, bouncer):
    files = {file.name: file.read_text() for file in (HERE / "drive.go", *(ROOT / "tools/drivers").glob("go.*"))}
    made = compiled("pgx", {"snippet.go": block("pgx", "go"), **files}, "go", "build", "-o", "drive", ".",
                    GOPATH=str(fetched("go")), GOTOOLCHAIN="local", GOPROXY="off")
    more = {"default_query_exec_mode": "exec"} if bouncer else {}
    return [made / "drive", db.server.uri(db.name, port, sslmode="disable", **more)], {}


def java(folder, db, port, bouncer):
    files = {"Payments.java": block("JDBC", "java"), "Drive.java": (HERE / "Drive.java").read_text()}
    made = compiled("jdbc", files, "javac", *files)
    url = f"jdbc:postgresql://127.0.0.1:{port}/{db.name}?user=postgres" + ("&prepareThreshold=0" if bouncer else "")
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{made}:/usr/share/java/postgresql.jar", "Drive", url], {}


def ruby(folder, db, port, bouncer):
    (folder / "snippet.rb").write_text(block("Ruby pg", "ruby"))
    return ["/usr/bin/ruby", HERE / "drive.rb", db.server.uri(db.name, port)], {}


def php(folder, db, port, bouncer):
    (folder / "snippet.php").write_text(block("PHP PDO", "php"))
    dsn = f"pgsql:host=127.0.0.1;port={port};dbname={db.name};user=postgres"
    return ["/usr/bin/php", HERE / "drive.php", dsn], {}


DRIVERS = {
    "psycopg": python(("psycopg", "psycopg 3")), "asyncpg": python(("asyncpg", "asyncpg")),
    "sqlalchemy": python(("sqlalchemy", "SQLAlchemy")), "django": python(("django", "Django")),
    "node-postgres": node("node-postgres"), "postgres.js": node("postgres.js"), "pgx": go, "jdbc": java, "ruby": ruby,
    "php": php,
}


class Program:
    def __init__(self, words, env, folder):
        self.errors = open(folder / "errors", "w+")
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, cwd=folder, text=True,
                                        env={**os.environ, **{name: str(value) for name, value in env.items()}})

    def send(self, *words):
        print(*words, file=self.process.stdin, flush=True)

    def answer(self):
        line = read_line(self.process)
        self.errors.seek(0)
        assert line, f"the program has ended: {self.errors.read()[-2000:]}"
        return line.rstrip("\n").split(" ", 2)

    def __call__(self, *words):
        self.send(*words)
        return self.answer()

    def storm(self, *words):
        self.send("storm", STORM, *words)
        return [self.answer() for _ in range(STORM)]

    def end(self):
        self.process.kill()
        self.process.communicate()
        self.errors.close()


@pytest.fixture(scope="module")
def bouncer():
    with postgres_server.PgBouncer(pg.server(), default_pool_size=5,
                                   ignore_startup_parameters="extra_float_digits") as bouncer:
        bouncer.start()
        yield bouncer


@pytest.fixture(scope="module")
def db():
    database = pg.Database(pg.server())
    database.run("DROP TABLE payments;" + re.search(r"```sql\n(.*?)```", PAGE, re.S)[1] + SLOW_COMMIT)
    return database


def payments(db, amount):
    return db.one("SELECT count(*) FROM payments WHERE amount = %s", amount)


@pytest.mark.parametrize("behind", ["direct", pytest.param("pgbouncer", marks=pytest.mark.ci)])
@pytest.mark.parametrize("driver", [
    driver if driver in ("psycopg", "node-postgres") else pytest.param(driver, marks=pytest.mark.ci)
    for driver in DRIVERS])
def test_a_driver_pays_once(db, bouncer, folder, driver, behind):
    """The page's snippet: fresh, replay, mismatch, HX001, a rollback, an ended backend, duplicates at once."""
    db.run("TRUNCATE payments, hapax.operations")
    words, env = DRIVERS[driver](folder, db, bouncer.port if behind == "pgbouncer" else db.server.port,
                                 behind == "pgbouncer")
    run = Program(words, env, folder)
    try:
        play(db, run, driver, behind)
    finally:
        run.end()


def play(db, run, driver, behind):
    first = run("pay", "k", 1)
    assert first[:2] == ["ok", "fresh"] and first[2].startswith("receipt ")
    assert run("pay", "k", 1) == ["ok", "completed", first[2]]
    assert run("pay", "k", 2)[:2] == ["ok", "mismatch"]
    assert run("complete", FOREIGN_TOKEN)[:2] == ["error", "HX001"]

    db.run("ALTER TABLE payments ADD CONSTRAINT closed CHECK (amount <> 3)")
    try:
        assert run("pay", "back", 3)[:2] == ["error", "23514"]
    finally:
        db.run("ALTER TABLE payments DROP CONSTRAINT closed")
    assert run("pay", "back", 3)[:2] == ["ok", "fresh"]

    for amount, lock in ((4, "LOCK TABLE payments IN SHARE MODE"), (5, "SELECT pg_advisory_xact_lock(1)")):
        with db.connect() as conn, conn.cursor() as cursor:
            cursor.execute(lock)
            run.send("pay", f"ended-{amount}", amount)
            waiting = ("SELECT pid FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", db.name)
            wait_until(lambda: db.run(*waiting), "a payment that waits")
            db.run(f"SELECT pg_terminate_backend(pid) FROM ({waiting[0]}) w", db.name)
            assert run.answer()[0] == "error"
        conn.close()
        assert payments(db, amount) == 0
        assert run("pay", f"ended-{amount}", amount)[:2] == ["ok", "fresh"]

    storm(db, run.storm("dup", 6), 6)
    if behind == "direct":
        for amount, level in ((7, "repeatable read"), (8, "serializable")):
            db.run(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'")
            try:
                storm(db, run.storm(f"dup-{amount}", amount), amount)
            finally:
                db.run(f"ALTER DATABASE {db.name} RESET default_transaction_isolation")
    assert db.one("SELECT count(*) FROM payments") == db.completed("pay")


def storm(db, answers, amount):
    """One has paid, and all have its receipt."""
    assert sorted(answer[:2] for answer in answers) == [["ok", "completed"]] * (STORM - 1) + [["ok", "fresh"]], answers
    assert len({answer[2] for answer in answers}) == 1
    assert payments(db, amount) == 1


def test_the_snippet_of_plpgsql(db):
    """A refused effect goes back, the attempt is ended as not run, other rows stay; the next call of the key runs."""
    db.run("TRUNCATE payments, hapax.operations; DROP TABLE IF EXISTS log; CREATE TABLE log (said text)")
    db.run(block("PL/pgSQL", "sql"))
    pay = "SELECT verdict, receipt FROM pay('k', 1)"
    db.run("ALTER TABLE payments ADD CONSTRAINT closed CHECK (amount <> 1)")
    ((verdict, receipt),) = db.run(f"INSERT INTO log VALUES ('asked'); {pay}")
    assert verdict == "refused" and "closed" in receipt
    assert db.run("SELECT attempt, spent, state FROM hapax.operations WHERE scope = 'pay'") == [(1, 0, 3)]
    assert payments(db, 1) == 0 and db.one("SELECT count(*) FROM log") == 1
    db.run("ALTER TABLE payments DROP CONSTRAINT closed")
    ((verdict, receipt),) = db.run(pay)
    assert verdict == "fresh" and db.run(pay) == [("completed", receipt)]
    assert db.run("SELECT verdict FROM pay('k', 2)") == [("mismatch",)]
    assert payments(db, 1) == db.completed("pay") == 1


def test_the_page_names_each_switch_and_sqlstate():
    """The table's word for each driver stands in its snippet, or in how this test connects."""
    for driver in ("psycopg 3", "SQLAlchemy"):
        assert "prepare_threshold" in block(driver, "python")
    assert "statement_cache_size=0" in block("asyncpg", "python")
    assert "prepare: false" in block("postgres.js", "js")
    assert "DISABLE_PREPARES" in block("PHP PDO", "php")
    assert ".on('error'" in block("node-postgres", "js")
    rows = re.findall(r"^\| \[.*?\]\(#(.*?)\) \|", PAGE, re.M)
    assert len(rows) == len(DRIVERS)
    other = (ROOT / "docs/postgres.md").read_text()
    assert re.search(r"The retry, in psycopg 3.*?```python\n(.*?)```", other, re.S)[1] in block("psycopg 3", "python")
