"""The ACLs that a user of Kafka needs, as the table of docs/consume-kafka.md has them: enough for consume, redrive and
relay, and each of them needed. Against a real Kafka that asks who may what."""
import re
import socket
import struct

import pytest

import pg
from conftest import PATIENCE, ROOT, end, wait_until
from kafka_server import PASSWORD, USER, Kafka
from rabbit import Consumer, Handler
from test_kafka_login import put_in_outbox
from topics import Topic

pytestmark = pytest.mark.ci
ROWS = re.findall(r"^\| `hapax (\w+)` \| (topic|group) `(\S+)` \| (\w+) \|$",
                  (ROOT / "docs/consume-kafka.md").read_text(), re.M)
LOGIN = {"HAPAX_KAFKA_USER": USER, "HAPAX_KAFKA_PASSWORD": PASSWORD}


@pytest.fixture(scope="module")
def kafka():
    with Kafka(logins=True, authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
               super_users="User:ANONYMOUS") as kafka:
        yield kafka.start()


@pytest.fixture
def topic(kafka):
    return Topic(kafka, partitions=1)


KINDS, OPERATIONS = {"topic": 2, "group": 3}, {"Read": 3, "Write": 4, "Create": 5}
LITERAL, PREFIXED, ALLOW = 3, 4, 3


def text(word):
    return struct.pack(">h", -1) if word is None else struct.pack(">h", len(word)) + word.encode()


def ask(kafka, api, body):
    """One request of Kafka's protocol, version 1, by the plain port, whose user may everything: the reply."""
    with socket.create_connection(("127.0.0.1", kafka.port), PATIENCE) as wire, wire.makefile("rb") as reply:
        request = struct.pack(">hhi", api, 1, 7) + text("test") + body
        wire.sendall(struct.pack(">i", len(request)) + request)
        return reply.read(struct.unpack(">i", reply.read(4))[0])[4:]


def allow(kafka, topic, rows):
    """Gives USER these rights; they are in force when this returns. Each test has names of its own."""
    for _, kind, name, operation in rows:
        name = name.replace("TOPIC", topic.name).replace("GROUP", topic.name)
        pattern, name = PREFIXED if name.endswith("*") else LITERAL, name.rstrip("*")
        head = struct.pack(">b", KINDS[kind]) + text(name) + struct.pack(">b", pattern)
        tail = struct.pack(">bb", OPERATIONS[operation], ALLOW)
        made = ask(kafka, 30, struct.pack(">i", 1) + head + text(f"User:{USER}") + text("*") + tail)
        assert struct.unpack(">ih", made[4:10]) == (1, 0), made
        wait_until(lambda: text(name) in ask(kafka, 29, head + text(None) + text(None) + tail), "the right")


def rows_of(use):
    found = [row for row in ROWS if row[0] == use]
    assert found, ROWS
    return found


def consume(hapax, topic, handler, store):
    topic.publish("bad")
    log = open(hapax.folder / "log", "w+b")
    consumer = Consumer(hapax, topic.broker.login_uri(topic.name, group=topic.name), handler.url, store, ready=False,
                        stderr=log, **LOGIN)
    log.close()
    return consumer


def put_letters(topic, *reasons):
    producer = topic.producer()
    for reason in reasons:
        producer.produce(topic.dead.name, "bad", headers={"hapax-reason": reason})
    assert producer.flush(PATIENCE) == 0


def redrive(hapax, topic):
    return hapax("redrive", "--from", topic.broker.login_uri(topic.dead.name), "--to",
                 topic.broker.login_uri(topic.name), "--json", **LOGIN)


def refused(text):
    return "uthoriz" in text


def test_the_acls_of_the_page_are_enough(hapax, kafka, topic, store):
    """A dead letter goes to a topic that is made for it, and redrive puts it back."""
    handler = Handler(lambda body: 422)
    allow(kafka, topic, rows_of("consume"))
    consumer = consume(hapax, topic, handler, store)
    wait_until(lambda: topic.left() == {topic.dead.name: 1}, "a dead letter")
    assert end(consumer.process) == 0 and not refused((hapax.folder / "log").read_text())
    allow(kafka, topic, rows_of("redrive"))
    done = redrive(hapax, topic)
    assert done.code == 0 and done.json["put_back"] == 1, done.out + done.err
    handler.close()


def test_without_create_the_topics_of_letters_must_be_there(hapax, kafka, topic, store):
    handler = Handler(lambda body: 422)
    kafka.make_topic(topic.dead.name)
    allow(kafka, topic, [row for row in rows_of("consume") if row[3] != "Create"])
    consumer = consume(hapax, topic, handler, store)
    wait_until(lambda: topic.left() == {topic.dead.name: 1}, "a dead letter")
    assert end(consumer.process) == 0
    handler.close()


@pytest.mark.parametrize("i", [i for i, row in enumerate(rows_of("consume")) if row[3] != "Create"])
def test_consume_needs_each_acl(hapax, kafka, topic, store, i):
    rows, handler = rows_of("consume"), Handler(lambda body: 422)
    allow(kafka, topic, rows[:i] + rows[i + 1:])
    consumer = consume(hapax, topic, handler, store)
    wait_until(lambda: refused((hapax.folder / "log").read_text()), f"a refusal without {rows[i]}")
    assert topic.dead.name not in topic.left()
    end(consumer.process)
    handler.close()


def test_redrive_needs_no_other_acls(hapax, kafka, topic):
    """Not those of consume. A letter that is left before another goes to the end of its topic."""
    kafka.make_topic(topic.dead.name)
    put_letters(topic, "mismatch", "failed")
    allow(kafka, topic, rows_of("redrive"))
    done = redrive(hapax, topic)
    assert (done.code, done.json["put_back"], done.json["left"]) == (0, 1, 1), done.out + done.err


@pytest.mark.parametrize("i", range(len(rows_of("redrive"))))
def test_redrive_needs_each_acl(hapax, kafka, topic, i):
    rows = rows_of("redrive")
    kafka.make_topic(topic.dead.name)
    put_letters(topic, "mismatch", "failed")
    allow(kafka, topic, rows[:i] + rows[i + 1:])
    done = redrive(hapax, topic)
    assert done.code != 0 and refused(done.out + done.err), (rows[i], done.out, done.err)


def test_relay_has_enough_and_needs_it(hapax, kafka, topic):
    database = pg.Database(pg.server())
    put_in_outbox(database, topic, "one")
    words = ["relay", "--from", database.uri, "--to", kafka.login_uri(), "--attempts-max", "1"]
    process = hapax.start(*words, **LOGIN)
    wait_until(lambda: database.one("SELECT aside FROM hapax.outbox_lag()") == 1, "the message being put aside")
    assert end(process) == 0
    allow(kafka, topic, rows_of("relay"))
    put_in_outbox(database, topic, "two")
    assert hapax("redrive", "--from", database.uri).code == 0
    process = hapax.start(*words, **LOGIN)
    wait_until(lambda: topic.ready() == 2, "two messages")
    assert end(process) == 0
