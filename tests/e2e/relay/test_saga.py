"""examples/saga: every order is charged and shipped, or charged and refunded, once: also while all that takes part is
killed at random, RabbitMQ and PostgreSQL included (promise 41).

HAPAX_SAGA_SECONDS (4) is how long they are killed, HAPAX_SAGA_STORMS (1) how often all of it is done; HAPAX_SAGA_SEED:
of the first storm.
"""
import collections
import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time

import psycopg2
import psycopg2.errors
import pytest

import pg
import rabbit
from conftest import BUILD, HAPAX, PATIENCE, ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
from kafka_server import Kafka  # noqa: E402
from postgres_server import Postgres  # noqa: E402
from process import children_of, end_with_parent, family_of, free_port, is_over, wait_for  # noqa: E402
from rabbitmq_server import RabbitMQ  # noqa: E402

SECONDS = float(os.environ.get("HAPAX_SAGA_SECONDS", 4))
STORMS = int(os.environ.get("HAPAX_SAGA_STORMS", 1))
RATE = 25  # orders a second
PAGE = (ROOT / "docs/sagas.md").read_text()
STEPS = {"payments": "process-payment", "shipments": "ship", "refunds": "refund"}


def ports_in_a_row(count):
    """The first of so many, one behind the other."""
    found = set()
    while True:
        found.add(free_port())
        for first in found:
            if found.issuperset(range(first, first + count)):
                return first


class Saga:
    """examples/saga/run in a database of its own."""

    def __init__(self, folder, database, *words):
        self.database, self.printed = database, folder / "printed"
        env = {name: value for name, value in os.environ.items() if not name.startswith("HAPAX_")}
        with open(self.printed, "w") as printed:
            self.process = subprocess.Popen(
                [ROOT / "examples/saga/run", "--postgres", database,
                 "--port", str(ports_in_a_row(4)), *map(str, words)],
                cwd=folder, env={**env, "HAPAX_BUILD": str(BUILD)},
                stdin=subprocess.DEVNULL, stdout=printed, stderr=printed,
                preexec_fn=end_with_parent)

    @property
    def text(self):
        return self.printed.read_text(errors="replace")

    def pids(self):
        """The last of each name, if it lives."""
        found = {name: int(pid) for name, pid in re.findall(r"^(\S+): pid (\d+)$", self.text, re.M)}
        children = children_of(self.process.pid)
        return {name: pid for name, pid in found.items() if pid in children}

    def ask(self, statement):
        """The first column; none while the database is away."""
        with contextlib.suppress(psycopg2.Error), contextlib.closing(psycopg2.connect(self.database)) as conn:
            with conn.cursor() as cursor:
                cursor.execute(statement)
                return [row[0] for row in cursor.fetchall()]
        return []

    def numbers(self, table):
        return collections.Counter(self.ask(f"SELECT number FROM {table}"))

    @staticmethod
    def once(count):
        """What each table holds when each of the orders 1 to count has come to its end, once."""
        every = range(1, count + 1)
        return {"ordering.orders": every, "payment.charges": every, "payment.refunds": range(10, count + 1, 10),
                "shipping.shipments": [number for number in every if number % 10]}

    def has(self, count):
        return all(len(self.numbers(table)) >= len(expected) for table, expected in self.once(count).items())

    def check(self, count):
        for table, expected in self.once(count).items():
            assert self.numbers(table) == collections.Counter(expected), table

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.text


@pytest.fixture
def start(folder):
    started = []

    def starting(*words):
        started.append(Saga(folder, *words))
        return started[0]

    yield starting
    for saga in started:
        left = family_of(saga.process.pid)[1:] if saga.process.poll() is None else []
        saga.process.kill()
        saga.process.wait()
        wait_until(lambda: all(map(is_over, left)), "the end of what it started")


def finish(saga, count):
    assert saga.process.wait(4 * PATIENCE) == 0, saga.text
    assert f"{count} orders taken" in saga.text and "It fits" in saga.text, saga.text
    saga.check(count)


def test_every_order_comes_to_its_end(hapax, start):
    database = pg.server().uri(pg.server().database())
    finish(start(database, "--rabbitmq", rabbit.server().uri(), "--orders", 30), 30)

    def state(scope, key):
        return hapax("show", key, "--scope", scope, "--store", database, "--json").json["state"]

    # The path of one key, as docs/sagas.md tells it.
    assert state("orders", "order-10") == "completed"
    assert state("payments", "order-10:process-payment") == "completed"
    assert state("shipments", "order-10:process-payment:ship") == "completed"
    assert state("refunds", "order-10:process-payment:ship:refund") == "completed"


@pytest.mark.ci
def test_the_same_by_kafka(start):
    with Kafka() as kafka:
        kafka.start()
        for topic in STEPS:
            kafka.make_topic(topic, 2)
        finish(start(pg.server().uri(pg.server().database()), "--kafka", kafka.address, "--orders", 30), 30)


def test_a_database_that_is_not_there_is_named(start):
    saga = start("postgres://127.0.0.1:1/nowhere")
    assert saga.process.wait(PATIENCE) == 1 and "make run-saga" in saga.text
    assert "the database of --postgres cannot be used" in saga.text and "schemas" not in saga.text


@pytest.mark.parametrize("words, said", [
    (["--rabbitmq", "amqp://guest:geheim@127.0.0.1:1/"], "no RabbitMQ at 127.0.0.1:1 "),
    (["--kafka", "127.0.0.1:1"], "no Kafka at 127.0.0.1:1 "),
])
def test_a_broker_that_is_not_there_is_named(start, words, said):
    saga = start(pg.server().uri(pg.server().database()), *words)
    assert saga.process.wait(PATIENCE) == 1 and said in saga.text and "geheim" not in saga.text


# `make run-saga`, once it has built and installed what it needs.
@pytest.mark.ci
def test_one_command_starts_all_that_is_needed(folder):
    env = {name: value for name, value in os.environ.items() if not name.startswith("HAPAX_")}
    done = subprocess.run([ROOT / "tools/run-saga", "--orders", "20", "--port", str(ports_in_a_row(4))], cwd=folder,
                          env={**env, "HAPAX_BUILD": str(BUILD)}, stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=4 * PATIENCE)
    assert done.returncode == 0 and "20 orders taken" in done.stdout and "It fits" in done.stdout, done
    for name in ("payments", "refunds", "shipments"):
        assert f"consume-{name}: hapax consume: " in done.stderr
    recipe = (ROOT / "Makefile").read_text().partition("\nrun-saga: build\n")[2].partition("\n\n")[0]
    assert recipe.split() == ["@tools/install", "saga", "@tools/run-saga", "$(ARGS)"]


# ---- the pages ------------------------------------------------------------------------------


def test_the_page_shows_the_example_and_the_rule_as_they_are():
    shown = re.findall(r"from \[(examples/saga/services.py)\].*?\n\n```python\n(.*?)```$", PAGE, re.M | re.S)
    assert [path
            for path, _ in shown] == ["examples/saga/services.py"] and shown[0][1] in (ROOT / shown[0][0]).read_text()
    rule = {"hashlib": hashlib}
    exec(re.search(r"```python\n(def derive.*?)```", PAGE, re.S)[1], rule)
    with contextlib.closing(psycopg2.connect(pg.Database(pg.server()).uri)) as conn, conn.cursor() as cursor:
        for key in ("order-17", "schlüssel", "k" * 251, "k" * 252, "k" * 255, "sha256-" + "0" * 64):
            cursor.execute("SELECT hapax.key_derive(%s, 'pay')", (key,))
            assert cursor.fetchone() == (rule["derive"](key, "pay"),)


@pytest.fixture
def users():
    """A database, and its URI as seen by a user with each role for the outbox."""
    database, names = pg.Database(pg.server()), ("publisher", "relay", "operator")
    for name in names:
        subprocess.run([HAPAX, "init", "--store", database.uri, "--role", f"{name}=hapax_{name}"], check=True,
                       capture_output=True, timeout=PATIENCE)
        database.run(f"CREATE ROLE {name} LOGIN IN ROLE hapax_{name}")
    yield database, {name: database.uri.replace("postgres@", f"{name}@") for name in names}
    for name in names:
        database.run(f"DROP OWNED BY {name}, hapax_{name}; DROP ROLE {name}; DROP ROLE hapax_{name}")


def test_the_roles_for_the_outbox_are_enough(users, hapax):
    (database, uri), queue = users, rabbit.Queue(rabbit.server())
    with contextlib.closing(psycopg2.connect(uri["publisher"])) as conn, conn, conn.cursor() as cursor:
        cursor.execute("SELECT hapax.publish(%s, 'a', 'k', 'pay'), hapax.publish('no-such-queue', 'b', 'bad')",
                       (queue.name,))
    hapax.start("relay", "--from", uri["relay"], "--to", rabbit.server().uri(), "--attempts-max", "1", "--keep", "0")
    queue.wait_ready(1)
    wait_until(lambda: database.one("SELECT aside FROM hapax.outbox_lag()") == 1, "one put aside")
    listed = hapax("list", "--outbox", "--store", uri["operator"])
    assert "no-such-queue  b" in listed.out, listed.err
    assert "put back: 1" in hapax("redrive", "--from", uri["operator"], "--key", "bad").out
    for name in uri:
        with (pytest.raises(psycopg2.errors.InsufficientPrivilege),
              contextlib.closing(psycopg2.connect(uri[name])) as conn):
            conn.cursor().execute("SELECT FROM hapax.outbox")


# ---- the storm ------------------------------------------------------------------------------


def make_retry_queues(broker):
    """As the consumers would, which make each when they have need of it: a kill may take a queue that was just made."""
    for name in STEPS:
        for seconds in (1, 2, 4):
            rabbit.Queue(broker, f"{name}.retry.{seconds}", **{
                "x-message-ttl": seconds * 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": name,
                "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"})


class Servers:
    """The broker and the database, killed and started again in turn: each once, and then as long as the storm goes
    on."""

    def __init__(self, broker, server, draw):
        self.broker, self.server, self.draw, self.over, self.kills = broker, server, draw, threading.Event(), 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while self.kills < 2 or not self.over.is_set():
            (self.broker, self.server)[self.kills % 2].restart(signal.SIGKILL)
            self.kills += 1
            self.over.wait(self.draw.uniform(1, 3) if self.kills < 2 else self.draw.uniform(4, 12))

    def end(self):
        self.over.set()
        self.thread.join()


def kill_one(saga, draw, counts):
    """One of the saga's processes or of their children, or it is stopped for longer than its lease and wakes up a
    zombie."""
    pids = saga.pids()
    if not pids:
        return
    name = draw.choice(sorted(pids))
    with contextlib.suppress(ProcessLookupError):  # it may be dying of the last kill
        if draw.random() < 0.15:
            os.kill(pids[name], signal.SIGSTOP)
            threading.Event().wait(1.5)
            os.kill(pids[name], signal.SIGCONT)
            counts["stops"] += 1
        else:
            os.kill(draw.choice(family_of(pids[name])), signal.SIGKILL)
            counts[name] += 1
    threading.Event().wait(draw.uniform(0, 0.5))


def quiet(saga, broker, count):
    """All has come to its end, and nothing waits anywhere: what is there now stays. The outbox and the queues alone do
    not show it: between a look at the one and at the other, a message may be done and its row be written."""
    def ended():
        assert saga.process.poll() is None, saga.text[-4000:]
        return (saga.has(count) and saga.ask("SELECT count(*) FROM hapax.outbox WHERE state = 0") == [0]
                and not any(broker.queues().values()))

    deadline = time.monotonic() + 3 * PATIENCE
    while not ended():
        assert time.monotonic() < deadline, f"not quiet: {broker.queues()}\n{saga.text[-4000:]}"
        threading.Event().wait(0.2)


@pytest.mark.ci
@pytest.mark.parametrize("storm", range(STORMS))
def test_a_storm_loses_no_order_and_does_nothing_twice(start, storm):
    seed = int(os.environ.get("HAPAX_SAGA_SEED", random.randrange(1 << 30))) + storm
    print("seed", seed)
    draw, counts, count = random.Random(seed), collections.Counter(), int(RATE * SECONDS)
    with Postgres().start() as server, RabbitMQ().start() as broker:
        make_retry_queues(broker)
        saga = start(server.uri(server.database()), "--rabbitmq", broker.uri(),
                     "--orders", count, "--rate", RATE, "--relays", 2,
                     "--lease", "1s", "--stay")
        wait_for(lambda: saga.numbers("payment.refunds"), "a first refund", 3 * PATIENCE)
        broker.keep_queues()
        servers, deadline = Servers(broker, server, random.Random(seed + 1)), time.monotonic() + SECONDS
        try:
            while time.monotonic() < deadline:
                kill_one(saga, draw, counts)
        finally:
            servers.end()
        quiet(saga, broker, count)
        saga.check(count)
        print(f"{count} orders; killed: {dict(counts)}, servers {servers.kills}")
        saga.end()
        saga.check(count)
