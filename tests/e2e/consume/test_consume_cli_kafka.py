"""hapax redrive on a topic, which takes nothing back: what is left is seen by a later run. Against a real Kafka."""
import confluent_kafka
import pytest

import topics
from conftest import PATIENCE, end, wait_until
from rabbit import Consumer, Handler


@pytest.fixture(scope="module")
def kafka():
    kafka = topics.server()
    kafka.make_topic("orders")
    return kafka


def publish(kafka, topic, *keys):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address})
    for key in keys:
        producer.produce(topic, f"order {key}", key, headers={"message-id": f"id-{key}"})
    assert producer.flush(PATIENCE) == 0


def fill(kafka, topic, *parts, body="x"):
    """Letters as (how many, reason), one behind the other."""
    kafka.make_topic(topic, 1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.address})
    for count, reason in parts:
        for n in range(count):
            producer.produce(topic, body, headers={"hapax-reason": reason, "message-id": f"{reason}-{n}"})
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


# Of a partition a run sees what its window takes, and says that there may be more.
def test_letters_behind_a_window_are_told_as_not_seen(kafka, hapax):
    said = ("hapax redrive: not all letters were seen: a run sees 16384 letters of a partition from the first that "
            "it leaves: run it again;")

    def redrive(*words):
        return hapax("redrive", "--from", f"kafka://{kafka.address}/window.dead",
                     "--to", f"kafka://{kafka.address}/orders", *words)

    fill(kafka, "window.dead", (1, "mismatch"), (17000, "failed"))
    done = redrive("--dry-run")
    assert done.code == 1 and len(done.out.splitlines()) == 16384
    assert done.err.startswith(said) and done.err.count("\n") == 1
    done = redrive()
    assert (done.code, done.out) == (1, "put back: 16383, left: 1\n")
    assert done.err.startswith(said) and done.err.count("\n") == 1
    done = redrive()  # the one that is left was moved to the end
    assert (done.code, done.out, done.err) == (0, "put back: 617, left: 1\n", "")


@pytest.mark.ci
def test_letters_behind_a_window_of_those_left_are_told_as_not_seen(kafka, hapax):
    def redrive(*words, to="orders"):
        return hapax("redrive", "--from", f"kafka://{kafka.address}/left.dead",
                     "--to", f"kafka://{kafka.address}/{to}", *words)

    fill(kafka, "left.dead", (17000, "mismatch"), (1, "failed"))
    for words in ((), ("--key", "failed-0")):
        done = redrive(*words)
        assert (done.code, done.out) == (1, "put back: 0, left: 16384\n")
        assert "not all letters were seen: a run sees 16384" in done.err and done.err.count("\n") == 1
        assert done.err.endswith("put some aside with --all --limit N and another topic for --to\n")
    kafka.make_topic("aside")
    done = redrive("--all", "--limit", "1000", to="aside")
    assert (done.code, done.err) == (0, "") and done.out.startswith("put back: 1000, left: ")
    done = redrive("--key", "failed-0")
    assert (done.code, done.out, done.err) == (0, "put back: 1, left: 16000\n", "")


# As many as the window takes, and none behind them: all were seen.
def test_a_window_that_is_just_full_hides_nothing(kafka, hapax):
    fill(kafka, "full.dead", (16384, "mismatch"))
    done = hapax("redrive", "--from", f"kafka://{kafka.address}/full.dead",
                 "--to", f"kafka://{kafka.address}/orders", "--json")
    assert (done.code, done.json) == (0, {"put_back": 0, "left": 16384, "failed_again": 0, "not_seen": 0})


def test_a_target_that_is_not_there_is_found_without_letters(kafka, hapax):
    fill(kafka, "none.dead", (1, "mismatch"))
    done = hapax("redrive", "--from", f"kafka://{kafka.address}/none.dead",
                 "--to", f"kafka://{kafka.address}/no-such-topic")
    assert done.code == 1 and "no-such-topic" in done.err and done.err.count("\n") == 1


# What is left before one that was put back goes to the topic's end, and is then held no more.
@pytest.mark.ci
def test_a_run_that_held_all_it_can_says_so_when_it_let_go(kafka, hapax):
    fill(kafka, "big.dead", (170, "mismatch"), (1, "failed"), (170, "mismatch"), body=bytes(900000))
    done = hapax("redrive", "--from", f"kafka://{kafka.address}/big.dead", "--to", f"kafka://{kafka.address}/orders")
    assert (done.code, done.out) == (1, "put back: 1, left: 299\n")
    assert "not all letters were seen: those that are left before them are as many" in done.err
    assert done.err.count("\n") == 1
