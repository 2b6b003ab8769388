"""The examples of the message door, as docs/consume.md tells a newcomer to run them; and those that complete their
operations in a PostgreSQL transaction of their own, killed between its commit and the acknowledgement.

HAPAX_ROUNDS: how often they are killed (default 5; the long run is tools/soak's).
"""
import contextlib
import os
import signal
import subprocess

import pytest

import pg
import rabbit  # it makes tests/servers known
from conftest import BUILD, PATIENCE, ROOT, end, read_line, wait_until
from process import end_with_parent, free_port
from proxy import Proxy
from rabbit import Consumer, Queue

ROUNDS = int(os.environ.get("HAPAX_ROUNDS", "5"))
ACK = b"\x00\x3c\x00\x50"  # class and method of basic.ack


@pytest.fixture
def queue():
    return Queue(rabbit.server())


@pytest.fixture
def start(folder):
    """Starts a program in the test's folder; it ends with the test."""
    with contextlib.ExitStack() as stack:
        def starting(*words):
            process = stack.enter_context(subprocess.Popen([str(word) for word in words], cwd=folder, text=True,
                                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                                           preexec_fn=end_with_parent))
            stack.callback(process.kill)
            return process

        yield starting


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def publish_orders(queue):
    for _ in range(3):
        queue.publish("order 1", "order 2", "order 3")
    queue.publish("", id="empty")


def check_orders(queue, ledger):
    """Each order is there once, and the empty one is a dead letter."""
    wait_until(lambda: queue.ready() == 0 and queue.dead.ready() == 1 and len(lines(ledger)) >= 3, "all orders")
    assert sorted(lines(ledger)) == ["order 1", "order 2", "order 3"]
    assert [headers["hapax-reason"] for _, headers in queue.dead.take()] == ["refused"]


def test_the_consumer_in_c(queue, start, folder):
    publish_orders(queue)
    consumer = start(BUILD / "examples/consumer", queue.uri())
    check_orders(queue, folder / "ledger.txt")
    assert end(consumer) == 0
    assert sorted(lines(folder / "ledger.txt")) == ["order 1", "order 2", "order 3"]
    assert "connected" in consumer.stderr.read()


def test_the_consumer_in_c_says_what_is_wrong(start):
    missing = start(BUILD / "examples/consumer", rabbit.server().uri(queue="no-such-queue"))
    assert missing.wait(PATIENCE) == 1 and "no-such-queue" in missing.stderr.read()
    usage = start(BUILD / "examples/consumer")
    assert usage.wait(PATIENCE) == 2 and usage.stderr.read().startswith("usage: ")


def test_the_handler_in_python(hapax, queue, start, store, folder):
    publish_orders(queue)
    handler = start(ROOT / "examples/consumer.py", free_port(), folder / "ledger.txt")
    url = read_line(handler).split()[1]
    consumer = Consumer(hapax, queue.uri(), url, store)
    check_orders(queue, folder / "ledger.txt")
    assert end(consumer.process) == 0


def test_the_examples_are_short():
    for name in ("consumer.c", "consumer_pg.c", "consumer.py", "consumer_pg.py"):
        assert len(lines(ROOT / "examples" / name)) < 80


# ---- in one transaction ----------------------------------------------------------------------


@pytest.fixture
def database():
    return pg.Database(pg.server())


def count(database):
    return database.run("SELECT count(*) FROM payments")[0][0]


def finish(queue, process):
    """All that are not acknowledged come back, and each is replayed."""
    wait_until(lambda: queue.broker.queues().get(queue.name) == 0, "an empty queue")
    assert end(process) == 0
    process.stdout.close()
    process.stderr.close()


def rounds(queue, database, starting):
    """Lets no acknowledgement pass, and kills the consumer once its payments are committed; then lets one finish."""
    paid = 0
    with Proxy(queue.broker.port) as proxy:
        uri = queue.uri(port=proxy.port)
        for number in range(ROUNDS):
            rule = proxy.stall("request", containing=ACK, times=0)
            process = starting(uri)
            queue.publish(*range(paid + 1, paid + 11))
            paid += 10
            wait_until(lambda: count(database) >= paid and rule.fired.is_set(), f"payments of round {number}")
            process.send_signal(signal.SIGKILL)
            assert process.wait(PATIENCE) == -signal.SIGKILL
            process.stdout.close()
            process.stderr.close()
            proxy.cut_all()  # before it heals, which would let the acknowledgements through
            proxy.heal()
            if number % 5 == 4 or number == ROUNDS - 1:  # before they are all that a consumer takes at a time
                finish(queue, starting(uri))
    assert count(database) == paid
    done, = database.run("SELECT count(*) FILTER (WHERE state = %s), count(*) FROM hapax.operations WHERE scope = %s",
                         pg.COMPLETED, queue.name)
    assert done == (paid, paid)
    assert queue.dead.ready() in (-1, 0)


def test_rows_are_keys_in_c(queue, database, start):
    rounds(queue, database, lambda uri: start(BUILD / "examples/consumer_pg", uri, database.conninfo(), database.uri))


def test_rows_are_keys_in_python(hapax, queue, database, start):
    handler = start(ROOT / "examples/consumer_pg.py", free_port(), database.conninfo())
    url = read_line(handler).split()[1]
    rounds(queue, database, lambda uri: Consumer(hapax, uri, url, database.uri, "--pass-token", "on").process)
