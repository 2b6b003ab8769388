"""hapax consume and what only Kafka has: keys, values and headers that are NULL, which is not empty, and records of
transactions that no consumer is given. Against a real Kafka."""
import threading
import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

import rabbit
import topics
from conftest import PATIENCE, end, wait_until
from rabbit import Consumer, Handler
from topics import Topic

ODD = {  # by message-id: key, value
    "tombstone": ("k1", None),
    "empty": ("k2", b""),
    "empty key": (b"", b"v"),
    "no key": (None, b"v"),
    "nothing": (None, None),
}
HEADERS = [("nul", None), ("none", b""), ("x", b"1"), ("x", b"2"), ("bin", b"\xff\x00")]


@pytest.fixture
def handler():
    handler = Handler()
    yield handler
    handler.close()


@pytest.fixture
def topic():
    return Topic(topics.server())


def client(topic, **settings):
    return confluent_kafka.Consumer({"bootstrap.servers": topic.broker.address, "group.id": topic.name, "log_level": 0,
                                     "enable.auto.commit": False, **settings})


def everything(topic, name):
    """All messages of the topic of this name, from the first on."""
    reader = client(topic, **{"enable.partition.eof": True})
    try:
        asked = [confluent_kafka.TopicPartition(name, n, 0)
                 for n in reader.list_topics(name, timeout=PATIENCE).topics[name].partitions]
        reader.assign(asked)
        found, ends, deadline = [], set(), time.monotonic() + PATIENCE
        while len(ends) < len(asked):
            assert time.monotonic() < deadline, found
            message = reader.poll(.5)
            if message is None:
                continue
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ends.add(message.partition())
            else:
                found.append(message)
        return found
    finally:
        reader.close()


def is_as_sent(message):
    headers = [(name, value) for name, value in message.headers() if not name.startswith("hapax-")]
    key, value = ODD[dict(headers)["message-id"].decode()]
    assert message.key() == (key.encode() if isinstance(key, str) else key)
    assert message.value() == value
    assert [header for header in headers if header[0] != "message-id"] == HEADERS
    return dict(headers)["message-id"].decode()


# Where Kafka says NULL, so does each copy: among the retries, the dead and the parked, and what is put back from there.
# An empty key stays in its partition.
@pytest.mark.some(1)
@pytest.mark.parametrize("way", ["dead", "parked"])
def test_a_tombstone_stays_one(hapax, topic, handler, store, way):
    producer = confluent_kafka.Producer({"bootstrap.servers": topic.broker.address, "partitioner": "murmur2_random",
                                         "log_level": 0})
    for id, (key, value) in ODD.items():
        producer.produce(topic.name, value, key, headers=[("message-id", id), *HEADERS])
    assert producer.flush(PATIENCE) == 0
    handler.answers = lambda body: 500
    words = {"dead": ("--order", "none", "--attempts-max", 2, "--retry", "10ms..20ms"),
             "parked": ("--on-failed", "hold")}[way]
    letters = f"{topic.name}.{topic.name}.{way}"
    consumer = Consumer(hapax, topic.uri(**{"topic.metadata.refresh.interval.ms": 500}), handler.url, store, *words)
    count = {"dead": "hapax_consumer_dead_lettered_total", "parked": "hapax_consumer_parked_total"}[way]
    consumer.wait_metric(count, len(ODD))
    assert end(consumer.process) == 0
    times = 2 if way == "dead" else 1
    assert sorted(handler.bodies) == sorted(times * [(value or b"").decode() for _, value in ODD.values()])
    assert all((headers.get("Hapax-Tombstone") == "true") == (ODD[headers["Hapax-Header-message-id"]][1] is None)
               for _, headers in handler.calls)
    if way == "dead":
        assert sorted(map(is_as_sent, everything(topic, f"{topic.name}.{topic.name}.retry"))) == sorted(ODD)
    assert sorted(map(is_as_sent, everything(topic, letters))) == sorted(ODD)
    done = hapax("redrive", "--all", "--from", topic.broker.uri(letters),
                 "--to", topic.broker.uri(topic.name), "--json")
    assert (done.code, done.json["put_back"]) == (0, len(ODD)), done.json
    back = everything(topic, topic.name)
    assert sorted(map(is_as_sent, back)) == sorted([*ODD, *ODD])
    for key in b"k1", b"k2", b"":
        assert len({message.partition() for message in back if message.key() == key}) == 1, key


def test_a_producer_is_nobody_to_the_handler(hapax, single, handler, store):
    Consumer(hapax, single.uri(), handler.url, store, "--pass-header", "x-tenant")
    rabbit.publish_as_a_proxy(single)
    rabbit.assert_a_producer_is_nobody(handler)


def test_a_position_is_no_short_key(hapax, single, handler, store):
    """--key-min is about keys that clients choose."""
    consumer = Consumer(hapax, single.uri(), handler.url, store, "--key", "id,position", "--key-min", "255")
    single.publish("one", "two")
    consumer.wait_metric("hapax_consumer_acknowledged_total", 2)
    assert len(handler.calls) == 2


class Transactions:
    """One message in each, to the topic's only partition."""

    def __init__(self, topic):
        self.topic = topic
        self.producer = confluent_kafka.Producer({"bootstrap.servers": topic.broker.address,
                                                  "transactional.id": topic.name,
                                                 "log_level": 0})
        self.producer.init_transactions()

    def begin(self, body):
        self.producer.begin_transaction()
        self.producer.produce(self.topic.name, body, body, headers={"message-id": body})
        assert self.producer.flush(PATIENCE) == 0

    def send(self, *bodies):
        for body in bodies:
            self.begin(body)
            self.producer.commit_transaction()

    def abort(self, body):
        self.begin(body)
        self.producer.abort_transaction()


@pytest.fixture
def single():
    return Topic(topics.server(), partitions=1)


def committed(topic):
    reader = client(topic)
    try:
        return reader.committed([confluent_kafka.TopicPartition(topic.name, 0)], timeout=PATIENCE)[0].offset
    finally:
        reader.close()


# What ends a transaction is a record that no consumer is given: it is no message that waits, and what is committed is
# behind it. So are the messages of a transaction that was aborted.
@pytest.mark.ci
def test_the_end_of_a_transaction_does_not_wait(hapax, single, handler, store):
    transactions = Transactions(single)
    transactions.send("a", "b")
    transactions.abort("c")
    consumer = Consumer(hapax, single.uri(), handler.url, store)
    single.wait_ready(0)
    consumer.wait_metric("hapax_consumer_lag", 0)
    transactions.abort("d")  # nothing at all is handed out
    single.wait_ready(0)
    consumer.wait_metric("hapax_consumer_lag", 0)
    transactions.begin("e")
    consumer.wait_metric("hapax_consumer_lag", 1)
    transactions.producer.commit_transaction()
    single.wait_ready(0)
    consumer.wait_metric("hapax_consumer_lag", 0)
    assert sorted(handler.bodies) == ["a", "b", "e"]
    assert end(consumer.process) == 0
    assert committed(single) == 10


# The end of a partition is behind its messages in hand: it is not committed before they are released.
def test_the_end_of_a_partition_commits_nothing_that_is_in_hand(hapax, single, handler, store):
    transactions, free = Transactions(single), threading.Event()
    handler.answers = lambda body: 200 if body != "stuck" or free.wait(PATIENCE) else 500
    transactions.send("first", "stuck")
    words = "--drain", "100ms", "--lease", "1s"
    uri = single.uri(**{"fetch.wait.max.ms": 10})
    consumer = Consumer(hapax, uri, handler.url, store, *words)
    try:
        handler.wait_calls(2)
        for n in range(10):  # the end is met after each
            transactions.send(f"m{n}")
            handler.wait_calls(3 + n)
        wait_until(lambda: committed(single) >= 1, "a commit")
        assert end(consumer.process) == 0
        assert 1 <= committed(single) <= 2  # the offset of "stuck" is 2
    finally:
        free.set()
    consumer = Consumer(hapax, uri, handler.url, store, *words)
    single.wait_ready(0)
    consumer.wait_metric("hapax_consumer_lag", 0)
    assert end(consumer.process) == 0
    assert sorted(set(handler.bodies)) == sorted(["first", "stuck", *(f"m{n}" for n in range(10))])


# Its offsets begin again. A consumer that misses the topic for more than a second ends: then it is played again.
def test_a_topic_that_was_made_anew_is_read_from_its_beginning(hapax, handler, store):
    for _ in range(5):
        single, free = Topic(topics.server(), partitions=1), threading.Event()
        handler.answers = lambda body, free=free: 200 if body != "stuck" or free.wait(PATIENCE) else 500
        handler.calls.clear()
        single.publish("a", "b", "stuck", "c")
        consumer = Consumer(hapax, single.uri(**{"topic.metadata.refresh.interval.ms": 200}), handler.url, store)
        try:
            handler.wait_calls(4)
            admin = AdminClient({"bootstrap.servers": single.broker.address})
            admin.delete_topics([single.name])[single.name].result(PATIENCE)
            wait_until(lambda: single.name not in admin.list_topics(timeout=PATIENCE).topics, "the topic is gone")
            single.broker.make_topic(single.name, 1)
            single.publish("d", "e")
        finally:
            free.set()
        wait_until(lambda: len(handler.bodies) >= 6 or consumer.process.poll() is not None, "6 calls")
        if consumer.process.poll() is None:
            single.wait_ready(0)
            assert sorted(handler.bodies) == ["a", "b", "c", "d", "e", "stuck"]
            assert end(consumer.process) == 0
            assert committed(single) == 2
            return
        assert consumer.process.returncode == 1 and "there is no such topic" in consumer.process.stderr.read()
    pytest.fail("the topic was missing for too long in five rounds")


# What is committed may lie behind the end of a log that was cut off, or is another's of that name: less is committed
# then.
@pytest.mark.some(1)
@pytest.mark.parametrize("count", [10, 0])
def test_what_is_committed_behind_the_end_is_taken_back(hapax, single, handler, store, count):
    setter = client(single)
    setter.commit(offsets=[confluent_kafka.TopicPartition(single.name, 0, 500)], asynchronous=False)
    setter.close()
    single.publish(*map(str, range(count)))
    consumer = Consumer(hapax, single.uri(), handler.url, store)
    handler.wait_calls(count)
    wait_until(lambda: committed(single) == count, "what is there is committed")
    assert end(consumer.process) == 0
    single.publish(*map(str, range(count, 520)))
    consumer = Consumer(hapax, single.uri(), handler.url, store)
    handler.wait_calls(520)
    assert end(consumer.process) == 0
    assert sorted(map(int, handler.bodies)) == list(range(520))


# A group that begins at the end keeps its place from its start on: what comes while nobody is there is not passed over.
def test_a_group_that_begins_at_the_end_has_its_place_at_once(hapax, single, handler, store):
    single.publish("before")
    uri = single.uri(**{"auto.offset.reset": "latest"})
    consumer = Consumer(hapax, uri, handler.url, store)
    wait_until(lambda: committed(single) == 1, "the place is committed")
    assert end(consumer.process) == 0
    single.publish("meanwhile")
    consumer = Consumer(hapax, uri, handler.url, store)
    single.wait_ready(0)
    assert end(consumer.process) == 0
    assert handler.bodies == ["meanwhile"]
