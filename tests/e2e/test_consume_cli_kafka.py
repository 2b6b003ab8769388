"""hapax redrive on a topic, which takes nothing back: what is left is seen by a later run. Against a real Kafka."""
import pytest

import rabbit  # for its handler and consumer; it makes tests/servers known
from conftest import HAPAX, PATIENCE, end, wait_until
from kafka_server import Kafka, have_kafka
from rabbit import Consumer, Handler

confluent_kafka = pytest.importorskip("confluent_kafka")
pytestmark = pytest.mark.skipif(not (have_kafka() and HAPAX.exists()), reason="Kafka's jars or hapax are missing")


@pytest.fixture(scope="module")
def kafka():
    with Kafka() as kafka:
        kafka.start()
        kafka.make_topic("orders")
        yield kafka


def publish(kafka, topic, *keys):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address})
    for key in keys:
        producer.produce(topic, f"order {key}", key, headers={"message-id": f"id-{key}"})
    assert producer.flush(PATIENCE) == 0


def test_letters_that_are_left_are_seen_by_a_later_run(kafka, hapax, store):
    handler = Handler(lambda body: 422)
    dead = f"kafka://{kafka.address}/orders.billing.dead"
    orders = f"kafka://{kafka.address}/orders"

    def consume():
        return Consumer(hapax, kafka.uri("orders", group="billing"), handler.url, store)

    def redrive(*words):
        done = hapax("redrive", "--from", dead, "--to", orders, "--json", *words)
        return done.code, done.json

    try:
        publish(kafka, "orders", "1", "2", "3")
        consumer = consume()
        consumer.wait_metric("hapax_consumer_dead_lettered_total", 3)
        assert end(consumer.process) == 0
        handler.answers = lambda body: 200
        handler.calls.clear()
        assert redrive("--key", "id-9") == (1, {"put_back": 0, "left": 3, "failed_again": 0, "not_seen": 0})
        code, said = redrive("--key", "id-2", "--scope", "billing")
        assert (code, said["put_back"], said["left"]) == (0, 1, 2)
        code, said = redrive("--key", "id-2")  # it is there no more, and the others are
        assert (code, said["put_back"], said["left"]) == (1, 0, 2)
        consumer = consume()
        code, said = redrive()
        assert (code, said["put_back"], said["left"]) == (0, 2, 0)
        wait_until(lambda: len(handler.bodies) == 3, f"all orders: {handler.bodies}, {said}")
        assert sorted(handler.bodies) == ["order 1", "order 2", "order 3"]
        code, said = redrive()
        assert (code, said["put_back"], said["left"]) == (0, 0, 0)
        assert end(consumer.process) == 0
        assert sorted(handler.bodies) == ["order 1", "order 2", "order 3"]
    finally:
        handler.close()
