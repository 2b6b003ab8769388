"""hapax consume at SQS: what no other broker has. Visibility, groups, batches that fail in part, answers that are lost,
ten attributes. Against a stand-in, which has faults on request (tests/servers/sqs_server.mjs)."""
import collections
import json
import threading
import time

import pytest

import sqs  # it makes tests/servers known
from conftest import PATIENCE, at_some_pace, end, wait_until
from proxy import Proxy
from rabbit import Consumer, Handler


@pytest.fixture
def handler():
    handler = Handler()
    yield handler
    handler.close()


@pytest.fixture
def queue(hapax):
    queue = sqs.make_queue("sqs", hapax)
    yield queue
    queue.broker.faults()


@pytest.fixture
def fifo(hapax):
    hapax.env.update(sqs.KEYS)
    queue = sqs.Queue(sqs.server(), fifo=True)
    yield queue
    queue.broker.faults()


@pytest.fixture
def consume(hapax, handler, store):
    def start(queue, *words, visibility="30s", into=store):
        return Consumer(hapax, queue.uri(visibility=visibility), handler.url, into, *words)

    return start


def waits(queue):
    """Until nothing is anywhere."""
    wait_until(lambda: not queue.left(), lambda: f"an empty queue: {queue.left()}")


# ---- visibility --------------------------------------------------------------------------------


def test_a_handler_of_several_visibilities_runs_once(hapax, folder):
    """Twenty at once, so that more than a batch is extended; and those that wait behind them, too."""
    def runs_once(visibility_s):
        queue, handler, slow = sqs.make_queue("sqs", hapax), Handler(), threading.Event()
        handler.answers = lambda body: 200 if slow.wait(2 * PATIENCE) else 500
        try:
            queue.publish(*range(24))
            begun = time.monotonic()
            consumer = Consumer(hapax, queue.uri(visibility=f"{visibility_s}s"), handler.url,
                                f"rocksdb:{folder}/{visibility_s}", "--concurrency", "12")
            consumer.wait_metric("hapax_consumer_in_hand", 24)
            wait_until(lambda: time.monotonic() - begun > 2.25 * visibility_s, "two visibilities")
            assert queue.ready() == 0 and len(handler.bodies) == 12
            slow.set()
            consumer.wait_metric("hapax_consumer_acknowledged_total", 24)
            waits(queue)
            assert sorted(handler.bodies, key=int) == [str(n) for n in range(24)]
            assert consumer.metric("hapax_consumer_taken_total") == 24
            assert consumer.metric("hapax_consumer_voided_total") == 0
            assert consumer.metric('hapax_answers_total{answer="fresh"}') == 24
        finally:
            slow.set()
            handler.close()

    at_some_pace(runs_once, 2, 8, 20)


def test_what_cannot_be_hidden_any_longer_is_voided_and_replayed(consume, queue, handler):
    """SQS gives it to others while the first run goes on: that is all that runs."""
    slow = threading.Event()
    handler.answers = lambda body: 200 if slow.wait(PATIENCE) else 500
    queue.publish("one")
    queue.broker.faults({"op": "ChangeMessageVisibilityBatch", "how": "error",
                         "status": 500, "code": "InternalError", "times": 1000})
    consumer = consume(queue, visibility="2s")
    handler.wait_calls(1)
    wait_until(lambda: consumer.metric("hapax_consumer_voided_total") > 0, "that it is voided")
    queue.broker.faults()
    wait_until(lambda: consumer.metric('hapax_answers_total{answer="in_flight"}') > 0, "that it comes again")
    slow.set()
    waits(queue)
    assert handler.bodies == ["one"] and consumer.metric('hapax_answers_total{answer="replay"}') >= 1


def test_retries_are_left_with_the_queue_and_counted_by_the_record(consume, queue, handler):
    handler.answers = lambda body: 500
    queue.publish("one")
    consumer = consume(queue, "--retry", "1s..1s", "--attempts-max", "3")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    assert len(handler.bodies) == 3
    assert consumer.metric("hapax_consumer_taken_total") >= 3, "it was kept in hand between its attempts"
    (body, headers), = queue.dead.take()
    assert body == "one" and headers["hapax-reason"] == "failed"
    assert headers["hapax-attempts"] == headers["hapax-base"] == "3"
    assert headers["hapax-from"] == queue.name and headers["message-id"] == "id-one"
    waits(queue)


def test_a_twin_elsewhere_waits_at_the_queue(hapax, folder):
    """Two consumers and one operation: the second one's message is hidden for the lease that is left, and then
    replayed."""
    store = f"unix:{folder}/store/keeper.sock"
    hapax.keep(f"rocksdb:{folder}/store")

    def waits_there(lease_s):
        queue, handler, slow = sqs.make_queue("sqs", hapax), Handler(), threading.Event()
        handler.answers = lambda body: 200 if slow.wait(PATIENCE) else 500
        words = (handler.url, store, "--lease", f"{lease_s}s", "--scope", queue.name)
        try:
            queue.publish("one")
            first = Consumer(hapax, queue.uri(visibility="30s"), *words)
            handler.wait_calls(1)
            assert first.metric("hapax_consumer_in_hand") == 1
            second = Consumer(hapax, queue.uri(visibility="30s"), *words)
            queue.publish("one")
            # Either of them may get it: each finds it in flight, keeps it for some short pauses, and leaves it there.
            wait_until(lambda: first.metric("hapax_consumer_in_hand") + second.metric("hapax_consumer_in_hand") == 1
                       and len(queue.inside()["inflight"]) == 2, "the duplicate at the queue, in no hand")
            slow.set()
            waits(queue)
            assert handler.bodies == ["one"]
        finally:
            slow.set()
            handler.close()

    at_some_pace(waits_there, 4, 20)


# ---- groups ------------------------------------------------------------------------------------


class Ordered(Handler):
    """Fails each of `failing` so often, and notes what was done in which order."""

    def __init__(self, failing):
        self.left, self.done, self.lock2 = dict(failing), collections.defaultdict(list), threading.Lock()
        super().__init__(self.answer)

    def answer(self, body):
        order = json.loads(body)["order"]
        group, number = order.split(":")
        with self.lock2:
            if self.left.get(order, 0) > 0:
                self.left[order] -= 1
                return 500
            self.done[group].append(int(number))
        return 200


@pytest.mark.some(1)
@pytest.mark.parametrize("retry", ["10ms..50ms", "1s..1s"])
def test_groups_keep_their_order_while_some_fail(hapax, fifo, folder, retry):
    """In hand where pauses are short, at the queue where they are long: what is behind one that failed waits, and other
    groups go on. Two consumers share the queue, and one is killed."""
    store = f"unix:{folder}/store/keeper.sock"
    hapax.keep(f"rocksdb:{folder}/store")
    groups, count = ["a", "b", "c", "d"], 15
    handler = Ordered({"a:3": 2, "b:0": 1, "b:1": 1, "c:14": 1})
    try:
        fifo.publish_keys([f"{group}:{n}" for n in range(count) for group in groups])
        words = ("--retry", retry, "--attempts-max", "8", "--lease", "2s")
        consumers = [Consumer(hapax, fifo.uri(visibility="3s"), handler.url, store, *words) for _ in range(2)]
        wait_until(lambda: len(handler.done["d"]) > 4, "some of the group that never fails")
        consumers[0].process.kill()
        consumers[0].process.communicate()
        waits(fifo)
        for group in groups:
            once = list(dict.fromkeys(handler.done[group]))
            assert once == list(range(count)), f"{group}: {handler.done[group]}"
        assert sum(map(len, handler.done.values())) <= 4 * count + 16, "no more than were with the handler are repeated"
        assert end(consumers[1].process) == 0
    finally:
        handler.close()


def test_a_group_that_waits_holds_up_no_other(consume, fifo, handler):
    """With more messages of it than fit in hand."""
    closed = ["a"]
    handler.answers = lambda body: 500 if json.loads(body)["order"].split(":")[0] in closed else 200
    fifo.publish_keys([f"a:{n}" for n in range(30)])
    consumer = consume(fifo, "--retry", "2s..2s", "--attempts-max", "0", "--concurrency", "2")
    handler.wait_calls(1)
    wait_until(lambda: consumer.metric("hapax_consumer_in_hand") == 0, "that the rest of the group is given back")
    assert {json.loads(body)["order"] for body in handler.bodies} == {"a:0"}
    fifo.publish_keys([f"b:{n}" for n in range(30)])
    consumer.wait_metric("hapax_consumer_acknowledged_total", 30)
    closed.clear()
    consumer.wait_metric("hapax_consumer_acknowledged_total", 60)
    done = [json.loads(body)["order"] for body in handler.bodies]
    assert [one for one in done if one[0] == "b"] == [f"b:{n}" for n in range(30)]
    assert list(dict.fromkeys(one for one in done if one[0] == "a")) == [f"a:{n}" for n in range(30)]
    waits(fifo)


# ---- what fails in part, and answers that are lost ------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("op",
                         ["ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch", "SendMessageBatch"])
def test_what_goes_wrong_with_calls_is_made_good(consume, queue, handler, op):
    """Each message runs once, and leaves; what was received and not heard of comes when it is visible again."""
    faults = [{"how": "lost"}, {"how": "partial", "entries": [0, 2, 9], "code": "InternalError"},
              {"how": "error", "status": 500, "code": "InternalError"},
              {"how": "error", "status": 400, "code": "ThrottlingException"}]
    slow = threading.Event()
    handler.answers = lambda body: 422 if int(body) >= 20 else 200 if slow.wait(PATIENCE) else 500
    queue.broker.faults(*({"op": op, "times": 2, **fault}
                          for fault in faults if op != "ReceiveMessage" or "entries" not in fault))
    queue.publish(*range(25))
    before = queue.broker.seen(op)
    # Only what was received and not heard of has to be waited for, and hidden messages hidden longer.
    short = op in ("ReceiveMessage", "ChangeMessageVisibilityBatch")
    consumer = consume(queue, "--concurrency", "25", visibility="2s" if short else "20s")
    handler.wait_calls(25)
    if op == "ChangeMessageVisibilityBatch":
        wait_until(lambda: queue.broker.seen(op) > before + 8, "that all are hidden longer")
    slow.set()
    wait_until(lambda: consumer.metric("hapax_consumer_dead_lettered_total") >= 5, "dead letters")
    wait_until(lambda: list(queue.left()) == [queue.dead.name], lambda: f"dead letters alone: {queue.left()}")
    assert sorted(map(int, handler.bodies)) == list(range(25))
    dead = queue.dead.take()
    assert {body for body, _ in dead} == {str(n) for n in range(20, 25)}
    # Where an answer is lost there is a second copy, of the same id; as where the consumer stood still before the
    # deletion.
    assert len(dead) == 5 or op == "SendMessageBatch" or consumer.metric("hapax_consumer_voided_total") > 0
    assert all(headers["message-id"] == f"id-{body}" for body, headers in dead)


def test_a_deletion_that_is_refused_is_no_trouble(consume, queue, handler):
    queue.broker.faults({"op": "DeleteMessageBatch", "how": "partial", "entries": list(range(10)), "sender": True,
                         "code": "ReceiptHandleIsInvalid", "times": 1})
    queue.publish("one")
    consumer = consume(queue, visibility="2s")
    wait_until(lambda: consumer.metric('hapax_answers_total{answer="replay"}') >= 1, "a replay")
    waits(queue)
    assert handler.bodies == ["one"]


def test_the_way_to_sqs_is_cut_again_and_again(hapax, queue, handler, store):
    """Connections end in the midst of calls."""
    keys = [f"k-{n}" for n in range(300)]
    handler.answers = lambda body: time.sleep(.01) or 200
    with Proxy(queue.broker.port) as proxy:
        consumer = Consumer(hapax, queue.uri(port=proxy.port, visibility="3s"), handler.url, store)
        queue.publish_keys(keys)
        for done in range(50, 300, 50):
            handler.wait_calls(done)
            proxy.cut_all()
        waits(queue)
        assert collections.Counter(json.loads(body)["order"] for body in handler.bodies) == collections.Counter(keys)
        assert end(consumer.process) == 0


def test_a_limit_is_told_and_waited_for(consume, queue, handler):
    queue.broker.faults({"op": "ReceiveMessage", "how": "error", "code": "OverLimit", "after": 1, "times": 1})
    consumer = consume(queue)
    assert "OverLimit" in next(line for line in consumer.process.stderr if "away" in line)
    queue.publish("one")
    handler.wait_calls(1)


@pytest.mark.parametrize("op", ["DeleteMessageBatch", "ReceiveMessage"])
def test_a_right_that_is_missing_is_named(hapax, queue, handler, store, op):
    queue.broker.faults({"op": op, "how": "error", "code": "AccessDenied", "times": 1000})
    queue.publish("one")
    done = hapax("consume", "--from", queue.uri(), "--to", handler.url, "--store", store)
    assert done.code == 1 and f"may not be used: {op}" in done.err, done.err


def test_a_queue_that_is_deleted_ends_it(consume, queue):
    consumer = consume(queue)
    queue.broker.ask("DeleteQueue", QueueUrl=queue.url)
    assert consumer.process.wait(PATIENCE) == 1
    assert f'queue "{queue.name}" is no longer' in consumer.process.stderr.read()


def test_nothing_is_polled_while_the_store_is_away(hapax, queue, handler, folder):
    keeper = hapax.keep(f"rocksdb:{folder}/store")
    consumer = Consumer(hapax, queue.uri(), handler.url, f"unix:{folder}/store/keeper.sock", "--timeout", "300ms")
    keeper.kill()
    keeper.wait()
    queue.publish("one")
    consumer.wait_metric("hapax_consumer_store_up", 0)
    queue.publish(*range(50))
    polls = queue.broker.seen("ReceiveMessage")
    wait_until(lambda: consumer.metric('hapax_answers_total{answer="store_down"}') > 2, "that it asks the store again")
    assert queue.broker.seen("ReceiveMessage") <= polls + 1 and queue.ready() >= 40
    hapax.keep(f"rocksdb:{folder}/store")
    waits(queue)
    assert len(handler.bodies) == 51


def test_what_waits_is_counted(consume, queue, handler):
    gate = threading.Event()
    handler.answers = lambda body: 200 if gate.wait(PATIENCE) else 500
    queue.publish(*range(8))
    consumer = consume(queue, "--concurrency", "1", "--in-hand-max", "1")
    consumer.wait_metric("hapax_consumer_lag", 7)
    gate.set()


# ---- dead letters ------------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", ["standard", "fifo"])
def test_a_kill_between_copy_and_deletion_is_seen_by_the_id(hapax, folder, kind):
    """A second copy has the id of the first, and a FIFO queue takes none; a redrive runs the operation once."""
    hapax.env.update(sqs.KEYS)

    def is_seen(visibility_s):
        one, handler = sqs.Queue(sqs.server(), fifo=kind == "fifo"), Handler(lambda body: 500)
        try:
            one.broker.faults({"op": "DeleteMessageBatch", "how": "error",
                               "status": 500, "code": "InternalError", "times": 1000})
            mine = one.send("one")
            words = (one.uri(visibility=f"{visibility_s}s"), handler.url,
                     f"rocksdb:{folder}/{visibility_s}", "--attempts-max", "2",
                     "--retry", "10ms..20ms", "--lease", "2s")
            consumer = Consumer(hapax, *words)
            consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
            consumer.process.kill()
            consumer.process.communicate()
            one.broker.faults()
            consumer = Consumer(hapax, *words)
            consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
            wait_until(lambda: list(one.left()) == [one.dead.name], lambda: f"dead letters alone: {one.left()}")
            assert len(handler.bodies) == 2, "its attempts were used up"
            dead = one.dead.inside()["ready"]
            assert len(dead) == (1 if kind == "fifo" else 2)
            assert {letter["messageAttributes"]["message-id"]["StringValue"] for letter in dead} == {mine}
            handler.answers = lambda body: 200
            done = hapax("redrive", "--from", one.dead.uri(), "--to", one.uri(), "--json")
            assert done.code == 0 and done.json["put_back"] == len(dead)
            waits(one)
            assert handler.bodies == ["one"] * 3
            assert end(consumer.process) == 0
        finally:
            one.broker.faults()
            handler.close()

    at_some_pace(is_seen, 2, 10, 30)


def test_one_that_fails_again_after_a_redrive_is_not_swallowed(hapax, fifo, handler, store):
    """A FIFO queue swallows for five minutes what has the same deduplication id: a second life has another."""
    handler.answers = lambda body: 422
    consumer = Consumer(hapax, fifo.uri(visibility="30s"), handler.url, store)
    fifo.send("one")
    for lives in range(1, 4):
        consumer.wait_metric("hapax_consumer_dead_lettered_total", lives)
        wait_until(lambda: list(fifo.left().items()) == [(fifo.dead.name, 1)],
                   lambda: f"one dead letter: {fifo.left()}")
        assert len(handler.bodies) == lives
        done = hapax("redrive", "--from", fifo.dead.uri(), "--to", fifo.uri(), "--json")
        assert done.code == 0 and done.json["put_back"] == 1, done.out


def test_a_copy_is_the_same_operation_as_its_message(hapax, queue, fifo, handler, store):
    """The deduplication id of a copy is the sink's, and no key where the message had none that says something."""
    hashed = sqs.Queue(fifo.broker, fifo=True, ContentBasedDeduplication="true")
    mine = fifo.broker.ask("SendMessage", QueueUrl=hashed.url, MessageBody="two", MessageGroupId="g")["MessageId"]
    handler.answers = lambda body: 422
    consumer = Consumer(hapax, hashed.uri(visibility="30s"), handler.url, store)
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    handler.answers = lambda body: 200
    done = hapax("redrive", "--from", hashed.dead.uri(), "--to", hashed.uri(), "--json")
    assert done.code == 0 and done.json["put_back"] == 1, done.out
    consumer.wait_metric("hapax_consumer_acknowledged_total", 1)
    assert keys_of(handler) == [mine] * 2 and end(consumer.process) == 0


def test_ten_attributes_and_more_come_through(hapax, queue, handler, store):
    """A message that has as many as SQS takes: the copy's rest is in one, and a redrive gives all back."""
    handler.answers = lambda body: 422
    mine = {f"a{n}": f"value {n}" for n in range(10)}
    queue.send("one", **mine)
    consumer = Consumer(hapax, queue.uri(visibility="30s"), handler.url, store, "--scope", "s")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    letter, = queue.dead.inside()["ready"]
    attributes = {name: value["StringValue"] for name, value in letter["messageAttributes"].items()}
    packed = json.loads(attributes.pop("hapax-headers"))
    assert len(attributes) == 9 and packed["hapax-reason"] == "refused" and packed["hapax-scope"] == "s"
    message_id = {**attributes, **packed}["message-id"]
    assert {name: value for name, value in {**attributes, **packed}.items() if name in mine} == mine
    handler.answers = lambda body: 200
    assert hapax("redrive", "--from", queue.dead.uri(), "--to", queue.uri(),
                 "--scope", "s", "--json").json["put_back"] == 1
    consumer.wait_metric("hapax_consumer_acknowledged_total", 1)
    assert len(handler.bodies) == 2 and end(consumer.process) == 0
    assert "completed" in hapax("show", "--store", store, "--scope", "s", message_id).out


# ---- keys --------------------------------------------------------------------------------------


def keys_of(handler):
    return [headers["Idempotency-Key"].strip('"') for _, headers in handler.calls]


def test_the_usual_sources_of_keys(consume, queue, fifo, handler):
    """An attribute before the message's own id; a deduplication id that somebody chose, and not one that is a hash."""
    own = queue.send("own")
    queue.send("said", **{"idempotency-key": "chosen"})
    consume(queue)
    handler.wait_calls(2)
    assert set(keys_of(handler)) == {own, "chosen"}
    handler.calls.clear()
    hashed = sqs.Queue(fifo.broker, fifo=True, ContentBasedDeduplication="true")
    fifo.send("one", deduplication="order-7")
    mine = fifo.broker.ask("SendMessage", QueueUrl=hashed.url, MessageBody="two", MessageGroupId="g")["MessageId"]
    consume(fifo, into="memory:")
    consume(hashed, into="memory:")
    handler.wait_calls(2)
    assert set(keys_of(handler)) == {"order-7", mine}


def test_a_key_within_what_sns_wraps_around_a_message(consume, queue, handler):
    for n in range(2):
        queue.send(json.dumps({"Type": "Notification", "MessageId": "sns-1",
                               "Message": '{"order": 1}', "Timestamp": f"t{n}"}))
    consumer = consume(queue, "--key", "/MessageId", "--fingerprint", "json +/Message")
    consumer.wait_metric("hapax_consumer_acknowledged_total", 2)
    assert keys_of(handler) == ["sns-1"]
