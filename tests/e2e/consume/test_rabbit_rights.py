"""The rights that a user of RabbitMQ needs, as the table of docs/consume-rabbitmq.md has them: enough for consume,
redrive and relay, and each of them needed."""
import itertools
import re

import psycopg2
import pytest

import pg
import rabbit
from conftest import ROOT, end, wait_until
from rabbit import Consumer, Handler, Queue

NONE = "^$"
ROWS = {use: [column.strip().strip("`").replace("\\|", "|") for column in columns] for use, *columns in
        re.findall(r"^\| `hapax (\w+)` \| (`.+?`) \| (`.+?`) \| (`.+?`) \|$",
                   (ROOT / "docs/consume-rabbitmq.md").read_text(), re.M)}
names = itertools.count()


@pytest.fixture
def queue():
    return Queue(rabbit.server())


def user(queue, permissions):
    """A user with these permissions; what stands for guest:guest in a URI."""
    name = f"user-{next(names)}-{queue.name}"
    words = ", ".join(f'<<"{text.replace("QUEUE", queue.name)}">>'.replace("\\", "\\\\") for text in permissions)
    queue.broker.eval(f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"secret">>, <<"test">>), '
                      f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"/">>, {words}, <<"test">>)')
    return f"{name}:secret"


def without(permissions):
    """The same, with one taken away; as many as there are."""
    for i, text in enumerate(permissions):
        if text != NONE:
            yield [*permissions[:i], NONE, *permissions[i + 1:]]


def by(login, uri):
    return uri.replace("guest:guest", login)


def consume(hapax, queue, handler, store, login):
    """A consumer of a message that fails twice; its log is in .log."""
    queue.publish("m")
    with open(hapax.folder / "log", "w+b") as log:
        consumer = Consumer(hapax, by(login, queue.uri()), handler.url, store, "--retry", "1s..1s", "--attempts-max",
                            "2", ready=False, stderr=log)
    consumer.log = hapax.folder / "log"
    return consumer


# A failed message waits in a queue that is made for it, and goes to another that is made for the dead; redrive puts it
# back from there.
def test_the_rights_of_the_page_are_enough(hapax, queue, store):
    handler = Handler(lambda body: 500)
    consumer = consume(hapax, queue, handler, store, user(queue, ROWS["consume"]))
    queue.dead.wait_ready(1)
    assert len(handler.bodies) == 2
    assert end(consumer.process) == 0 and "access to" not in consumer.log.read_text()
    login = user(queue, ROWS["redrive"])
    redriven = hapax("redrive", "--from", by(login, queue.dead.uri()), "--to", by(login, queue.uri()), "--all")
    assert redriven.code == 0, redriven.err
    queue.wait_ready(1)
    handler.close()


@pytest.mark.some(1)
@pytest.mark.parametrize("right", range(3), ids=["configure", "write", "read"])
def test_consume_needs_each_right(hapax, queue, store, right):
    permissions = list(without(ROWS["consume"]))[right]
    handler = Handler(lambda body: 500)
    consumer = consume(hapax, queue, handler, store, user(queue, permissions))
    wait_until(lambda: "access to" in consumer.log.read_text(), "a refusal")
    end(consumer.process)
    assert queue.dead.ready() <= 0
    handler.close()


def test_redrive_needs_each_right(hapax, queue):
    dead = Queue(queue.broker, f"{queue.name}.dead")
    dead.publish("m", **{"hapax-reason": "attempts"})
    for permissions in without(ROWS["redrive"]):
        login = user(queue, permissions)
        result = hapax("redrive", "--from", by(login, dead.uri()), "--to", by(login, queue.uri()), "--all")
        assert result.code != 0 and "access to" in result.out + result.err, (permissions, result.err)
    assert dead.ready() == 1


def test_relay_has_enough_and_needs_it(hapax, queue):
    database = pg.Database(pg.server())
    (needed,) = without(ROWS["relay"])

    def publish():
        conn = psycopg2.connect(database.uri)
        with conn, conn.cursor() as cursor:
            cursor.execute("SELECT hapax.publish(%s, 'a', 'k', 'pay')", (queue.name,))
        conn.close()

    publish()
    relay = hapax.start("relay", "--from", database.uri, "--to", by(user(queue, ROWS["relay"]), queue.broker.uri()))
    queue.wait_ready(1)
    assert end(relay) == 0
    publish()
    relay = hapax.start("relay", "--from", database.uri, "--to", by(user(queue, needed), queue.broker.uri()),
                        "--attempts-max", "1")
    wait_until(lambda: database.one("SELECT aside FROM hapax.outbox_lag()") == 1, "the message being put aside")
    assert queue.ready() == 1 and end(relay) == 0
