"""hapax consume where everything dies: consumers, the broker and the store, by kill -9 under load; and where handlers
are slow, away, or want nothing of some. Against a real RabbitMQ and a real Kafka, and a stand-in for SQS
(tests/servers/sqs_server.py).

HAPAX_STORM_MESSAGES (500): how many of a storm; 30 % of them are repeats of another. tools/soak has 100,000.
"""
import collections
import contextlib
import itertools
import os
import random
import subprocess
import threading
import time

import pytest

import pg
import rabbit  # it makes tests/servers known
import sqs
import topics
from conftest import PATIENCE, end, tell_to_end, wait_until
from process import free_port
from effects import Effects
from rabbit import Consumer, Queue
from redis_server import Redis
from served import Served

MESSAGES = int(os.environ.get("HAPAX_STORM_MESSAGES", 500))
LEASE_S = 5
SAVED_S = 10  # an outcome is stored within this while its store is there, on a machine with other work


def wait_for_all(queue, effects, keys):
    wait_until(lambda: len(effects.done) >= len(keys), lambda: f"all keys ({len(effects.done)} of {len(keys)})")
    wait_until(lambda: not queue.left(), lambda: f"an empty queue ({queue.left()})")
    assert effects.done == set(keys)


@pytest.fixture
def effects():
    with contextlib.ExitStack() as stack:
        def start(*words, **more):
            started = Effects(*words, **more)
            stack.callback(started.close)
            return started

        yield start


def make_queue(kind, hapax, broker=None):
    """A queue, or topic, of each kind. kafka-none: what is to be tried again goes by way of a topic."""
    if not kind.startswith("kafka"):
        return sqs.make_queue(kind, hapax, broker)
    return topics.Topic(broker or topics.server(), order="none" if kind == "kafka-none" else "key")


@pytest.fixture
def queue(request, hapax):
    return make_queue(getattr(request, "param", "rabbitmq"), hapax)


each = pytest.mark.parametrize("queue", ["rabbitmq", "sqs", pytest.param("kafka", marks=pytest.mark.ci)], indirect=True)


def words_of(queue):
    """What a consumer of it is told besides."""
    return getattr(queue, "words", ())


# ---- the storm -------------------------------------------------------------------------------


class RedisStore:
    """With a log that is written before it answers: another may lose what it has acknowledged."""

    def __init__(self, hapax, folder):
        self.server = Redis(appendonly="yes", appendfsync="always").start()
        self.uri = self.server.uri()

    def restart(self):
        self.server.kill()
        self.server.launch()

    def end(self):
        self.server.end()


class PostgresStore(RedisStore):
    def __init__(self, hapax, folder):
        self.server = pg.postgres_server.Postgres().start()
        self.uri = pg.Database(self.server).uri


class KeeperStore:
    def __init__(self, hapax, folder):
        self.hapax, self.path, self.uri = hapax, f"rocksdb:{folder}/store", f"unix:{folder}/store/keeper.sock"
        self.keeper = hapax.keep(self.path)

    def restart(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper = self.hapax.keep(self.path)

    def end(self):
        pass


class EmbeddedStore:
    """Held by one of the consumers: it dies with it, and the other takes over."""

    restart = None

    def __init__(self, hapax, folder):
        self.uri = f"rocksdb:{folder}/store"

    def end(self):
        pass


class Storm:
    """Two consumers, and who dies when: each death waits for so many keys to be done."""

    def __init__(self, hapax, queue, store, effects, seed):
        self.hapax, self.queue, self.store, self.effects, self.draw = hapax, queue, store, effects, random.Random(seed)
        self.killed = {}  # by who: when it was about to be
        self.outages = []  # (from, to) of the store
        self.consumers = [None, None]
        self.started = 0

    def start_both(self):
        for i in range(2):
            self.start(i)

    def start(self, i, mortal=True):
        self.started += 1
        who = f"c{self.started}"
        mortal = topics.MISSED_SOON if mortal and self.queue.kind == "kafka" else {}
        consumer = Consumer(self.hapax, self.queue.uri(**mortal), self.effects.url(who), self.store.uri, "--lease",
                            f"{LEASE_S}s", "--retry", "100ms..1s", *words_of(self.queue), ready=False)
        self.consumers[i] = (who, consumer.process)

    def kill_consumer(self):
        both = self.draw.random() < 0.25
        for i in range(2) if both else [self.draw.randrange(2)]:
            who, process = self.consumers[i]
            assert process.poll() is None, process.stderr.read()
            self.killed[who] = time.monotonic()
            process.kill()
            process.communicate()
            self.start(i)

    def kill_store(self):
        began = time.monotonic()
        self.store.restart()
        self.outages.append((began, time.monotonic()))

    def kill_broker(self):
        self.queue.stumble()

    def blow(self, keys, messages):
        least = 2 if self.queue.kind == "kafka" else 6  # Kafka misses a member when its session is over, not before
        acts = [self.kill_consumer] * (least + messages // 1000) + [self.kill_broker] * (1 + messages // 20000)
        if self.store.restart:
            acts += [self.kill_store] * (2 + messages // 4000)
        self.draw.shuffle(acts)
        for nth, act in enumerate(acts):
            most = len(keys) * (nth + 1) // (len(acts) + 1)
            wait_until(lambda: len(self.effects.done) >= most,
                       lambda: f"{most} keys (of them {len(self.effects.done)})")
            act()

    def calm(self):
        """Nobody dies any more. At Kafka two others take over: of those that are soon missed, one that is slow for as
        long has to join again, and commits nothing meanwhile."""
        for i in range(2) if self.queue.kind == "kafka" else ():
            _, process = self.consumers[i]
            assert end(process) == 0, process.stderr.read()
            self.start(i, mortal=False)

    def was_away(self, since, until):
        return any(begun < until + SAVED_S and over > since - SAVED_S for begun, over in self.outages)

    def check_repeat(self, call, again):
        """A key is asked for again only where the attempt before is surely or perhaps lost, and its lease over."""
        what = f"{call.key}: attempt {call.attempt} of {call.who}, then {again.attempt} of {again.who}"
        assert again.fence > call.fence and again.attempt > call.attempt, what
        if call.status == 500:
            return
        # From when the handler had it, which may be seconds after the claim.
        assert again.begun - call.begun > LEASE_S / 4, f"{what}: within its lease"
        if self.was_away(call.begun, again.begun):
            return
        assert call.who in self.killed and again.begun > self.killed[call.who], f"{what}: nobody was killed"
        assert call.ended is None or self.killed[call.who] - call.ended < SAVED_S, f"{what}: long since stored"

    def story(self, records):
        """What is not completed, and all that handlers heard of it: they know a record by the fence of an attempt that
        ran."""
        lines = [f"killed {self.killed}, store away {self.outages}"]
        for record in records:
            if record["state"] != "completed":
                lines += [str(record), *(str([vars(call) for call in calls]) for calls in self.effects.calls.values()
                                         if record["fence"] in [call.fence for call in calls])]
        return "\n".join(lines)

    def check(self):
        repeats = 0
        for calls in self.effects.calls.values():
            for call, again in zip(calls, calls[1:]):
                self.check_repeat(call, again)
                repeats += call.status != 500
        return repeats

    def end(self):
        for _, process in self.consumers:
            assert end(process) == 0, process.stderr.read()

    def tell(self):
        """What the consumers said, for who reads of a failure."""
        for who, process in filter(None, self.consumers):
            process.kill()
            print(f"{who}, exit status {process.wait()}: {process.stderr.read()}")


@pytest.fixture(scope="module")
def mortal():
    """A broker that may be killed."""
    with rabbit.rabbitmq_server.RabbitMQ() as broker:
        yield broker.start()


@pytest.fixture(scope="module")
def mortal_kafka():
    with topics.kafka_server.Kafka() as broker:
        yield broker.start()


MORTAL = {"rabbitmq": "mortal", "kafka": "mortal_kafka", "kafka-none": "mortal_kafka"}


def publish(queue, messages):
    """Kafka's producers go on where the broker comes back, so that half of them are published in the storm; what is
    given back is waited for."""
    if queue.kind != "kafka":
        queue.publish_keys(messages)
        return None
    queue.publish_keys(messages[::2])
    return topics.meanwhile(queue.publish_keys, messages[1::2])


@pytest.mark.parametrize("broker, kind",
                         [("rabbitmq", PostgresStore), ("sqs", RedisStore),
                          *(pytest.param(*pair, marks=pytest.mark.ci) for pair in [
                              ("rabbitmq", RedisStore), ("rabbitmq", EmbeddedStore), ("rabbitmq", KeeperStore),
                              ("kafka", EmbeddedStore), ("kafka", RedisStore), ("kafka-none", RedisStore)])])
def test_whoever_dies_nothing_is_lost_or_done_twice(request, hapax, effects, folder, broker, kind):  # promise 40
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    queue = make_queue(broker, hapax, request.getfixturevalue(MORTAL[broker]) if broker in MORTAL else None)
    store = kind(hapax, folder)
    handler = effects(takes=lambda key: draw.random() * .02,
                      answers=lambda key, nth: 500 if key.startswith("fails") and nth == 1 else 200)
    # Outcomes are sealed (docs/encryption.md), so each repeat opens what a consumer sealed that may be dead.
    (folder / "keys").write_text(f"k {draw.randbytes(32).hex()}\n")
    (folder / "keys").chmod(0o600)
    hapax.env["HAPAX_KEYS_FILE"] = str(folder / "keys")
    count = MESSAGES
    keys = [f"{'fails' if i % 50 == 0 else 'k'}-{i}" for i in range(count * 7 // 10)]
    messages = keys + [draw.choice(keys) for _ in range(count - len(keys))]
    draw.shuffle(messages)
    storm = Storm(hapax, queue, store, handler, seed)
    try:
        # What retries need is made while nobody dies: a kill may take a queue that was just made, with all that is in
        # it.
        if queue.kind == "rabbitmq":
            queue.make_retries(1, 2, 4, 8)
        queue.publish_keys(["fails-first"])
        storm.start_both()
        wait_for_all(queue, handler, ["fails-first"])
        storm.end()
        published = publish(queue, messages)
        begun = time.monotonic()
        storm.start_both()
        storm.blow(keys, count)
        storm.calm()
        if published:
            published.result()
        wait_for_all(queue, handler, keys + ["fails-first"])
        repeats = storm.check()
        print(f"{len(messages)} messages of {len(keys)} keys in {time.monotonic() - begun:.1f} s; {len(storm.killed)} "
              f"consumers, {len(storm.outages)} times the store killed: {repeats} repeated")
        storm.end()
        assert not queue.left()
        assert repeats <= 16 * (len(storm.killed) + 2 * len(storm.outages)), "more than were with handlers"
        listed = []
        wait_until(lambda: listed.append(hapax("list", "--store", store.uri, "--scope", queue.name,
                                               "--limit", 10 * count, "--json")) or listed[-1].code == 0,
                   lambda: f"a list: {listed[-1].out}")
        records = listed[-1].lines
        states = collections.Counter(record["state"] for record in records)
        assert states == {"completed": len(keys) + 1}, storm.story(records)
    except AssertionError:
        storm.tell()
        raise
    finally:
        store.end()


# ---- handlers that take long -------------------------------------------------------------------


@pytest.mark.ci
def test_a_handler_of_several_consumer_timeouts_runs_once(hapax, mortal, effects, store):
    """AMQP cannot ask for more time: the message comes again each time, waits for the first run, and none runs it. The
    first run lasts for longer than a lease, too."""
    queue, enough = Queue(mortal), threading.Event()
    handler = effects(takes=lambda key: enough.wait(2 * PATIENCE) and 0 if key == "slow" else 0)
    mortal.consumer_timeout(1000)
    try:
        consumer = Consumer(hapax, queue.uri(), handler.url(), store, "--lease", f"{LEASE_S}s")
        queue.publish("slow", id="slow")
        wait_until(lambda: handler.counts() == {"slow": 1}, "the slow one")
        for n in range(10):
            queue.publish(n, id=f"quick-{n}")
        wait_until(lambda: len(handler.done) == 10, "the quick ones, meanwhile")
        wait_until(lambda: consumer.metric("hapax_consumer_reconnects_total") > 2
                   and consumer.metric('hapax_answers_total{answer="in_flight"}') > 2
                   and time.monotonic() - handler.calls["slow"][0].begun > LEASE_S + 1, "the broker losing patience")
        enough.set()
        wait_until(lambda: not queue.left(), "an empty queue")
    finally:
        enough.set()
        mortal.consumer_timeout(1800000)
    assert set(handler.counts().values()) == {1} and consumer.metric("hapax_consumer_run_total") == 11
    timeouts = consumer.metric("hapax_consumer_reconnects_total")
    again = consumer.metric("hapax_consumer_taken_total") - 11
    slow, = handler.calls["slow"]
    assert timeouts <= time.monotonic() - slow.begun + 1, "the broker lost patience, once in a second at most"
    # What else was in hand when the channel was closed comes again, too: the quick ones, until they were done.
    quick_s = max(call.ended for key, (call,) in handler.calls.items() if key != "slow") - slow.begun
    assert 2 <= again <= timeouts + 10 * (quick_s + 1), f"{again} came again in {timeouts} timeouts"
    assert consumer.metric('hapax_answers_total{answer="fresh"}') == 11
    assert consumer.metric("hapax_consumer_dead_lettered_total") == consumer.metric("hapax_consumer_parked_total") == 0


# ---- one operation by two doors ------------------------------------------------------------------


class Shared:
    """The settings of docs/consume.md, "Sharing records with the HTTP door", and one operation as it comes by each."""

    def __init__(self, serve, consume, key=None, message=None, post=b'{"a": 1}', sent=None, headers=()):
        self.serve, self.consume, self.key, self.message = serve, consume, key, message or key
        self.post, self.sent, self.headers = post, sent or post, headers


SHARED = {
    "body": Shared(["--fingerprint", "body"], [], key="k-1"),
    "caller": Shared(["--fingerprint", "body", "--caller", "none"], [], key="k-1",
                     headers=[("Authorization", "Bearer x")]),
    "json": Shared(["--fingerprint", "json -/sent_at"], ["--fingerprint", "json -/sent_at"], key="k-1",
                   post=b'{"a": 1, "sent_at": 1}', sent=b'{"sent_at":2,"a":1}'),
    "pointers": Shared(["--key-from", "/order/id /line", "--fingerprint", "body"],
                       ["--key", "Idempotency-Key,/order/id /line"],
                       message="another", post=b'{"order": {"id": "o"}, "line": 1}'),
    "step": Shared(["--fingerprint", "body"], ["--step", "pay"], key="k-1:pay", message="k-1"),
}


@pytest.fixture
def doors(hapax, api, queue, effects, store):  # noqa: F811
    """Both doors of one scope and store: post(path), and send(), which gives the consumer that is done with it."""
    with contextlib.ExitStack() as stack:
        class Doors:
            def __init__(self, shared):
                self.shared, self.effects = shared, effects()
                self.served = Served(hapax, api, store, "--scope", "orders", *shared.serve)
                stack.callback(end, self.served.process)

            def post(self, path="/ok"):
                return self.served.post(path, self.shared.key, self.shared.post, self.shared.headers)

            def send(self):
                with queue.channel() as channel:
                    channel.basic_publish("", queue.name, self.shared.sent,
                                          rabbit.pika.BasicProperties(delivery_mode=2, message_id=self.shared.message))
                consumer = Consumer(hapax, queue.uri(), self.effects.url(), store,
                                    "--scope", "orders", *self.shared.consume)
                consumer.wait_metric("hapax_consumer_acknowledged_total", 1)
                return consumer

        yield Doors


@pytest.mark.parametrize("name", SHARED)
def test_a_message_is_a_repeat_of_a_request(doors, api, name):  # noqa: F811
    both = doors(SHARED[name])
    assert both.post().replayed == "false"
    consumer = both.send()
    assert consumer.metric('hapax_answers_total{answer="replay"}') == 1
    assert both.effects.counts() == {} and len(api.seen) == 1


@pytest.mark.parametrize("name", SHARED)
def test_a_request_is_a_repeat_of_a_message(doors, api, name):  # noqa: F811
    both = doors(SHARED[name])
    both.send()
    (key, times), = both.effects.counts().items()
    answer = both.post()
    assert (answer.status, answer.replayed, answer.get("Content-Type")) == (200, "true", "text/plain")
    assert answer.body == f"effect of {key}".encode() and times == 1 and not api.seen


def test_what_was_refused_for_good_by_http_is_done(doors, api):  # noqa: F811
    both = doors(SHARED["body"])
    assert both.post("/status/422").status == 422
    assert both.send().metric('hapax_answers_total{answer="replay"}') == 1
    assert both.effects.counts() == {}


# ---- dead letters --------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", ["sqs", *(pytest.param(kind, marks=pytest.mark.ci)
                                            for kind in ("rabbitmq", "kafka"))], indirect=True)
def test_dead_letters_of_every_kind_run_once_after_the_fix(hapax, queue, effects, store):
    """Those whose attempts were used up, and those refused, each with its repeats; and once in vain before the fix."""
    keys = [f"{kind}-{n}" for kind in ("failed", "refused") for n in range(10)]
    broken = {"failed": 500, "refused": 422}
    handler = effects(answers=lambda key, nth: broken.get(key.split("-")[0], 200))
    words = ("--attempts-max", "2", "--retry", "10ms..20ms")
    queue.publish_keys(keys * 2)
    consumer = Consumer(hapax, queue.uri(), handler.url(), store, *words)
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 40)
    before = handler.counts()

    def redrive():
        done = hapax("redrive", "--from", queue.dead.uri(), "--to", queue.uri(), "--json")
        assert done.code == 0 and done.json["put_back"] == 40, done.out

    redrive()
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 80)
    again = handler.counts()
    assert all(again[key] > before[key] for key in keys), "each had another chance"
    broken.clear()
    redrive()
    wait_for_all(queue, handler, keys)
    assert all(handler.counts()[key] == again[key] + 1 for key in keys)
    assert end(consumer.process) == 0


# ---- being told to stop ---------------------------------------------------------------------------


@pytest.mark.parametrize("queue, kind", [
    ("rabbitmq", KeeperStore), pytest.param("rabbitmq", EmbeddedStore, marks=pytest.mark.ci), ("sqs", KeeperStore),
    pytest.param("kafka", KeeperStore, marks=pytest.mark.ci)], indirect=["queue"])
def test_sigterm_under_load_loses_and_repeats_nothing(hapax, queue, effects, folder, kind):  # promise 40
    keys, store = [f"k-{n}" for n in range(1500)], kind(hapax, folder).uri
    # So many are done by then, and those at work besides (48): whoever joins finds work. Not at Kafka, where nobody
    # joins while handlers wait.
    most = [150 if queue.kind != "kafka" else len(keys)]

    def takes(key):
        while len(handler.done) >= most[0]:
            time.sleep(.01)
        return .02

    # A keeper that stands still for longer than --save-wait would have what was done given back, and replayed.
    words = ["--save-wait", "60s"] if kind is KeeperStore else []
    handler = effects(takes=takes)
    queue.publish_keys(keys)
    numbers = itertools.count()

    def callers():
        with handler.lock:
            return {call.who for calls in handler.calls.values() for call in calls}

    def start():
        who = f"c{next(numbers)}"
        process = Consumer(hapax, queue.uri(), handler.url(who), store, *words).process
        if queue.kind != "kafka":  # where a member has no partitions before the group is joined anew
            wait_until(lambda: who in callers(), f"a call of {who}")
        return process

    def ended(process):
        """Whose last calls may have come after the others had used up what was to be done by then."""
        deadline, code = time.monotonic() + PATIENCE, None
        while code is None and time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(.5)
            most[0] = max(most[0], len(handler.done) + 48)
        assert code == 0, f"exit status {code}: {process.stderr.read()}"

    consumers = [start() for _ in range(3)]
    for n in range(1, 7):
        wait_until(lambda: len(handler.done) >= 150 * n, f"{150 * n} keys")
        most[0] = max(most[0], 150 * (n + 1))
        tell_to_end(consumers[0])
        ended(consumers.pop(0))
        consumers.append(start())
    if queue.kind != "kafka":
        most[0] = 1100
    wait_until(lambda: len(handler.done) >= 1100, "1100 keys")
    for process in consumers:  # all at once
        tell_to_end(process)
    most[0] = max(most[0], 1200)
    for process in consumers:
        ended(process)
    expected = len(keys) - len(handler.done)  # what was done is acknowledged, and all else is there
    wait_until(lambda: queue.ready() >= expected, f"{expected} messages")
    if kind is KeeperStore and queue.kind != "kafka":  # whose commits end before the first that is not done
        # A quorum queue takes acknowledgements in after the channel that brought them has ended.
        wait_until(lambda: queue.left() == {queue.name: expected}, f"{expected} messages and no more")
    # With the holder of an embedded store the others lose it for two seconds, which is all that --save-wait is: what
    # they finish then is given back, stored as they end, and replayed.
    most[0] = len(keys)
    last = start()
    wait_for_all(queue, handler, keys)
    assert end(last) == 0
    assert set(handler.counts().values()) == {1}


def test_a_slow_queue_keeps_what_was_acknowledged_before_the_end(hapax, mortal, effects, store):
    """A quorum queue takes 32 acknowledgements of a channel at once. The channel keeps the others until the queue's log
    was written, and loses them where it is closed meanwhile."""
    queue, first, others = Queue(mortal), threading.Event(), threading.Event()

    def takes(key):
        assert (first if key == "k-0" else others).wait(PATIENCE)
        return 0

    handler = effects(takes=takes)
    keys = [f"k-{n}" for n in range(100)]
    queue.publish_keys(keys, at_once=1)
    consumer = Consumer(hapax, queue.uri(), handler.url(), store, "--concurrency", len(keys))
    wait_until(lambda: len(handler.counts()) == len(keys), "all at work")
    mortal.slow_log(2)
    others.set()  # each is acknowledged by itself, as the first one is still at work
    consumer.wait_metric("hapax_consumer_acknowledged_total", len(keys) - 1)
    consumer.process.terminate()
    first.set()
    assert consumer.process.wait(PATIENCE) == 0
    wait_until(lambda: not queue.left(), lambda: f"an empty queue ({queue.left()})")


# ---- handlers that are away, or want nothing of some ------------------------------------------------


@each
def test_a_handler_that_is_away_gets_all_once_it_is_back(hapax, queue, effects, store):
    keys = [f"k-{n}" for n in range(500)]
    queue.publish_keys(keys)
    port = free_port()
    consumer = Consumer(hapax, queue.uri(), f"http://127.0.0.1:{port}/late",
                        store, "--retry", "50ms..200ms", "--attempts-max", "2")
    wait_until(lambda: consumer.metric("hapax_consumer_retried_total") > 500, "many attempts in vain")
    assert consumer.metric("hapax_consumer_in_hand") <= 64  # it does not take what it cannot place
    assert consumer.metric("hapax_consumer_handler_up") == 0 and consumer.get("/health") == (200, "ok\n")
    handler = effects(port=port)
    wait_for_all(queue, handler, keys)
    assert set(handler.counts().values()) == {1} and consumer.metric("hapax_consumer_handler_up") == 1
    assert consumer.metric("hapax_consumer_dead_lettered_total") == consumer.metric("hapax_consumer_parked_total") == 0
    assert end(consumer.process) == 0


@pytest.mark.parametrize("queue", ["rabbitmq", "sqs", pytest.param("kafka-none", marks=pytest.mark.ci)], indirect=True)
def test_a_tenant_that_is_turned_away_does_not_hold_up_the_others(hapax, queue, effects, store):
    """More messages of it than would fit in hand."""
    theirs, ours = [f"theirs-{n}" for n in range(40)], [f"ours-{n}" for n in range(200)]
    closed = ["theirs"]
    handler = effects(answers=lambda key, nth: 403 if key.split("-")[0] in closed else 200)
    queue.publish_keys(theirs)
    queue.publish_keys(ours[:100])
    consumer = Consumer(hapax, queue.uri(), handler.url(), store, "--concurrency", "4", "--retry", "50ms..200ms",
                        *words_of(queue))
    wait_until(lambda: len(handler.done) == 100, lambda: f"100 of others ({len(handler.done)})")
    queue.publish(*ours[100:])
    wait_until(lambda: len(handler.done) == 200, lambda: f"200 of others ({len(handler.done)})")
    assert consumer.metric("hapax_consumer_dead_lettered_total") == consumer.metric("hapax_consumer_parked_total") == 0
    closed.clear()
    wait_until(lambda: handler.done >= set(theirs), "those of the tenant")
    wait_until(lambda: not queue.left(), lambda: f"an empty queue ({queue.left()})")
    assert all(count == 1 for key, count in handler.counts().items() if "ours" in key)
    assert end(consumer.process) == 0
