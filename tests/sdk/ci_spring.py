"""sdk/java in an application of Spring Boot (tests/sdk/java/Shop.java), as .ci/run plays it: the gate's own cases of
draft-07, listeners on real brokers, and kill -9 of the application and of the door with its store, again and again.

HAPAX_SPRING_STORM=60 pytest -s tests/sdk/ci_spring.py -k storm storms for a minute each, and prints what became of it.
"""
import collections
import os
import pathlib
import subprocess
import tempfile

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import gate as g
import rabbit
from conftest import PATIENCE, read_line, wait_until
from doors import Door, Store
from kafka_server import Kafka
from process import end_with_parent, free_port
from rabbitmq_server import RabbitMQ
from storms import takes_effect_once
from test_draft07 import (  # noqa: F401  (run here)
    test_2_1_a_string_is_a_key, test_2_1_an_item_stands_once, test_2_1_the_string_is_compared_and_not_its_spelling,
    test_2_1_what_is_no_string_is_refused, test_2_2_a_key_is_for_one_payload, test_2_2_uuids_are_keys_as_they_are,
    test_2_4_a_fingerprint_of_the_whole_payload, test_2_5_2_each_request_is_enforced,
    test_2_5_2_the_key_is_found_in_its_header, test_2_6_a_concurrent_request_is_a_conflict,
    test_2_7_a_conflict_needs_no_correction, test_2_7_other_errors_are_the_resources, test_5_keys_have_one_fixed_format,
    test_5_the_lookup_is_by_more_than_the_key)
from test_java import made, shop  # noqa: F401  (a fixture)
from topics import confluent_kafka

SECONDS = float(os.environ.get("HAPAX_SPRING_STORM", "8"))


class Application:
    """The application, at the door of a folder."""

    def __init__(self, made, folder, **properties):  # noqa: F811
        self.words, self.folder = shop(made, **properties), folder
        self.start()

    def start(self):
        env = {**os.environ, "HAPAX_DOOR": f"unix:{self.folder}/door.sock", "EFFECTS": f"{self.folder}/effects"}
        self.process = subprocess.Popen(self.words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, preexec_fn=end_with_parent)
        said = [read_line(self.process)]
        while said[-1] and not said[-1].startswith("payments: "):
            said.append(read_line(self.process))
        assert said[-1], "".join(said)
        self.port = int(said[-1].rpartition(":")[2])

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()

    def effects(self):
        path = self.folder / "effects"
        return collections.Counter(path.read_text().split()) if path.exists() else collections.Counter()


# ---- draft-07 ----------------------------------------------------------------------------


class Stand(Application):
    """The application in the place of the gate."""
    connect, send, post, later = g.Gate.connect, g.Gate.send, g.Gate.post, g.Gate.later


@pytest.fixture(scope="module")
def stand(made):  # noqa: F811
    with tempfile.TemporaryDirectory(prefix="hapax-java-") as folder:
        stand = Stand(made, pathlib.Path(folder), **{"hapax.filter.url-patterns": "/*", "shop.forward": "true"})
        yield stand
        stand.kill()


@pytest.fixture
def gate(api, stand):
    """Each case has a door of its own, to which the application connects again."""
    line = f"http://127.0.0.1:{api.port}\n"
    stand.process.stdin.write(line)
    stand.process.stdin.flush()
    assert read_line(stand.process) == line
    door = Door(Store("memory", stand.folder), stand.folder)
    yield stand
    door.close()


# ---- messages ----------------------------------------------------------------------------


class OnKafka:
    properties = {"shop.kafka": "true", "spring.kafka.listener.ack-mode": "manual_immediate",
                  "spring.kafka.consumer.auto-offset-reset": "earliest",
                  "spring.kafka.consumer.properties.session.timeout.ms": 3000,
                  "spring.kafka.consumer.properties.heartbeat.interval.ms": 500}

    def __init__(self):
        self.broker = Kafka().start()
        self.address = f"127.0.0.1:{self.broker.port}"
        self.properties = {**self.properties, "spring.kafka.bootstrap-servers": self.address}
        admin = AdminClient({"bootstrap.servers": self.address})  # its results end with it
        for created in admin.create_topics([NewTopic(name, 1, 1) for name in ("payments", "aside")]).values():
            created.result(PATIENCE)
        self.producer = confluent_kafka.Producer({"bootstrap.servers": self.address})
        self.reader = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": "test",
                                                "auto.offset.reset": "earliest"})
        self.reader.subscribe(["aside"])
        self.letters = []

    def send(self, key, text, **headers):
        self.producer.produce("payments", text, key, headers=headers)
        assert self.producer.flush(PATIENCE) == 0

    def aside(self):
        message = self.reader.poll(0.1)
        if message is not None and not message.error():
            self.letters.append(message.value().decode().partition(" ")[2])
        return sorted(self.letters)

    def is_done(self):
        """All that was sent is acknowledged."""
        place = confluent_kafka.TopicPartition("payments", 0)
        reader = confluent_kafka.Consumer({"bootstrap.servers": self.address, "group.id": "shop"})
        try:
            return reader.committed([place], PATIENCE)[0].offset == reader.get_watermark_offsets(place, PATIENCE)[1]
        finally:
            reader.close()

    def close(self):
        self.reader.close()
        self.broker.end()


class OnRabbit:
    def __init__(self):
        self.broker = RabbitMQ().start()
        self.properties = {"shop.rabbit": "true", "spring.rabbitmq.port": self.broker.port}
        self.connection = rabbit.connect(self.broker)
        self.channel = self.connection.channel()
        self.channel.queue_declare("aside", durable=True)
        self.channel.queue_declare("payments", durable=True, arguments={
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "aside"})
        self.letters = []

    def send(self, key, text, **headers):
        self.channel.basic_publish("", "payments", text.encode(), rabbit.pika.BasicProperties(
            message_id=key, delivery_mode=2, headers=headers))

    def aside(self):
        self.letters += [body.decode() for _, _, body in [self.channel.basic_get("aside", auto_ack=True)] if body]
        return sorted(self.letters)

    def is_done(self):
        return self.broker.queues()["payments"] == 0

    def close(self):
        self.connection.close()
        self.broker.end()


@pytest.mark.parametrize("of", [OnKafka, OnRabbit])
def test_a_listener_takes_a_message_once(made, folder, of):  # noqa: F811
    """A repeat runs nothing. What fails is tried again, and put aside in the end; what is refused is, at once; so is
    what has no key, and what a worker had that was killed, since nobody can tell. All are acknowledged then, and not
    before."""
    queue = of()
    door = Door(Store("rocksdb", folder), folder, "--on-expired", "hold", "--on-failed", "retry",
                "--on-disconnect", "now")
    application = Application(made, folder, **queue.properties)
    try:
        for key, text in (("a", "a 5"), ("b", "b 13"), ("a", "a 5"), ("c", "c 14"), ("d", "d 5"), ("d", "d 6"),
                          (None, "n 5")):
            queue.send(key, text)
        queue.send("another", "a 5", **{"Idempotency-Key": '"a"'})
        wait_until(lambda: queue.aside() == ["b 13", "c 14", "d 6", "n 5"], lambda: f"four letters; {queue.letters}")
        wait_until(queue.is_done, "the end of all messages")
        assert application.effects() == {"a": 1, "d": 1}
        queue.send("e", "e 77")
        wait_until(lambda: application.effects()["e"] == 1, "a message in the hands of a worker")
        assert not queue.is_done()
        application.kill()
        application.start()
        wait_until(lambda: queue.aside() == ["b 13", "c 14", "d 6", "e 77", "n 5"],
                   lambda: f"five letters; {queue.letters}")
        wait_until(queue.is_done, "the end of all messages")
        assert application.effects() == {"a": 1, "d": 1, "e": 1}
    finally:
        application.kill()
        door.close()
        queue.close()


# ---- a storm -----------------------------------------------------------------------------


@pytest.mark.parametrize("on_expired", ["rerun", "hold"])
def test_a_storm_takes_effect_once(made, folder, on_expired):  # noqa: F811
    """Whoever dies, as takes_effect_once() says; by the filter and by the method."""
    door = Door(Store("rocksdb", folder), folder, "--on-expired", on_expired, "--lease", "1s")
    application = Application(made, folder, **{"hapax.filter.url-patterns": "/orders", "server.port": free_port()})
    takes_effect_once(application, door, ["/orders", "/calls"], on_expired, SECONDS)
