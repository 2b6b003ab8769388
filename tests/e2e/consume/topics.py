"""What the tests of the message door share for Kafka: one broker for all of them, and topics with the face of the
queues in rabbit.py, so that the same tests run on each."""
import atexit
import concurrent.futures
import itertools
import os
import signal
import sys
import threading
import time

from conftest import PATIENCE, ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
import confluent_kafka  # noqa: E402
import kafka_server  # noqa: E402

servers = []
numbers = itertools.count(1)


def server():
    """The one broker of this process; a test that breaks brokers starts its own."""
    if not servers:
        servers.append(kafka_server.Kafka().start())
        atexit.register(servers[0].end)
    return servers[0]


# Of a consumer whose group is to miss it soon after its death. Who is slow for as long is missed, too.
MISSED_SOON = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 300}


class Topic:
    """A topic that is there, with a group of the same name that consumes it."""

    keyless = "no_key"  # what a message that names no key of use is refused for
    kind = "kafka"

    def __init__(self, broker, name=None, partitions=6, order="key"):
        self.broker, self.name = broker, name or f"t{os.getpid()}-{next(numbers)}"
        self.words = ("--order", order)
        self.ends = Ends(broker)
        broker.make_topic(self.name, partitions)

    def uri(self, **parameters):
        return self.broker.uri(self.name,
                               **{"group": self.name, "session.timeout.ms": 45000, "heartbeat.interval.ms": 300,
                                             "reconnect.backoff.max.ms": 500, **parameters})

    @property
    def dead(self):
        return Letters(self, "dead")

    @property
    def parked(self):
        return Letters(self, "parked")

    def publish(self, *bodies, id=None, **headers):
        self.send([(str(body), {"message-id": id or f"id-{body}", **headers}, None) for body in bodies])

    def publish_keyless(self, *bodies):
        self.send([(str(body), None, None) for body in bodies])

    def publish_keys(self, keys):
        """Messages of these ids; each is confirmed when this returns, by all brokers. One in three has no key of
        Kafka's: its repeats are most often of another partition."""
        self.send([(f'{{"order": "{key}"}}', {"message-id": key}, key if n % 3 else None)
                   for n, key in enumerate(keys)])

    def send(self, messages):
        producer, failed = self.producer(), []

        def confirmed(error, message):
            if error:
                failed.append(error)

        for body, headers, key in messages:
            producer.produce(self.name, body, key, headers=headers, on_delivery=confirmed)
            producer.poll(0)
        assert producer.flush(2 * PATIENCE) == 0 and not failed, failed

    def producer(self):
        """One that goes on where the broker comes back; a partition of each message's own where there is no key."""
        return confluent_kafka.Producer({"bootstrap.servers": self.broker.address, "enable.idempotence": True,
                                         "sticky.partitioning.linger.ms": 0, "reconnect.backoff.max.ms": 500,
                                         "queue.buffering.max.messages": 1000000, "log_level": 0})

    def left(self):
        """What is anywhere: not committed of the topic or its retries, dead or parked."""
        base = f"{self.name}.{self.name}"
        counts = self.ends.behind({self.name: self.name, f"{base}.retry": self.name, f"{base}.dead": f"{base}.redrive",
                                   f"{base}.parked": f"{base}.redrive"})
        assert self.name in counts, counts
        return {name: n for name, n in counts.items() if n}

    def ready(self):
        """How many messages are not committed."""
        return self.ends.behind({self.name: self.name})[self.name]

    def wait_ready(self, n):
        wait_until(lambda: self.ready() == n, lambda: f"{n} messages in {self.name} (now {self.ready()})")

    def stumble(self):
        """What a broker does in the way of dying: it comes back with its data, where it was."""
        self.broker.restart(signal.SIGKILL)


class Letters:
    """A topic of letters that Hapax makes, or has made."""

    def __init__(self, topic, what):
        self.topic, self.name = topic, f"{topic.name}.{topic.name}.{what}"

    def uri(self):
        return self.topic.broker.uri(self.name)


class Ends:
    """How far groups are behind. Asked by clients that join nothing, one for each group."""

    def __init__(self, broker):
        self.broker, self.clients, self.lock = broker, {}, threading.Lock()

    def client(self, group):
        if group not in self.clients:
            self.clients[group] = confluent_kafka.Consumer({"bootstrap.servers": self.broker.address, "group.id": group,
                                                            "reconnect.backoff.max.ms": 500, "log_level": 0})
        return self.clients[group]

    def behind(self, groups):
        """{topic: messages that its group has not committed} of those topics that there are; groups: {topic: group}."""
        with self.lock:
            there = patiently(self.client(next(iter(groups.values()))).list_topics, timeout=10).topics
            return {topic: self.of(self.client(group), there[topic])
                    for topic, group in groups.items() if topic in there}

    @staticmethod
    def of(client, topic):
        asked = [confluent_kafka.TopicPartition(topic.topic, number) for number in topic.partitions]
        behind = 0
        for one in patiently(committed, client, asked):
            low, high = patiently(client.get_watermark_offsets, one, timeout=10)
            behind += high - max(one.offset, low)
        return behind


def committed(client, asked):
    """What a group has committed; an error of one partition is one of all."""
    found = client.committed(asked, timeout=10)
    for one in found:
        if one.error:
            raise confluent_kafka.KafkaException(one.error)
    return found


def patiently(ask, *words, **more):
    """Asks a broker that may have come back just now, and refuses some questions for a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return ask(*words, **more)
        except confluent_kafka.KafkaException:
            if time.monotonic() > deadline:
                raise


def meanwhile(work, *words):
    """Runs it beside what follows; the caller asks for its .result()."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    future = pool.submit(work, *words)
    pool.shutdown(wait=False)
    return future
