"""hapax consume and hapax redrive as commands: what they are told, what they say, how they begin and end. Against a
real RabbitMQ, some of them also a stand-in for SQS; what becomes of messages is told by other tests."""
import contextlib
import datetime
import decimal
import email.utils
import json
import re
import shlex
import signal
import socket
import subprocess
import threading
import time

import pika
import pytest

import rabbit  # it makes tests/servers known
import sqs
from conftest import PATIENCE, ROOT, end, read_line, wait_until
from process import faketime
from proxy import Proxy
from rabbit import Consumer, Handler, Queue


@pytest.fixture
def queue(request, hapax):
    return sqs.make_queue(getattr(request, "param", "rabbitmq"), hapax)


@pytest.fixture
def handler():
    handler = Handler()
    yield handler
    handler.close()


@pytest.fixture
def consume(hapax, queue, handler, store):
    def start(*words, to=handler.url, **more):
        return Consumer(hapax, queue.uri(), to, store, *words, **more)

    return start


@pytest.fixture
def gate(handler):
    """Holds calls of the handler until it is set."""
    gate = threading.Event()
    handler.answers = lambda body: 200 if gate.wait(PATIENCE) else 500
    yield gate
    gate.set()


def read_err(process):
    return process.stderr.readline()


# ---- settings ------------------------------------------------------------------------------

AMQP = "amqp://127.0.0.1:1/?queue=q"


@pytest.mark.parametrize("words, said", [
    ([], "--from URI is missing"),
    (["--from", AMQP], "--to URL is missing"),
    (["--from", "nats://h/q", "--to", "http://h/"], "--from"),
    (["--from", "amqp://u:geheim@h/", "--to", "http://h/"], "queue"),
    (["--from", "amqp://u:geheim@h/?queue=q&colour=red", "--to", "http://h/"], "colour"),
    (["--from", "kafka://127.0.0.1:1/t?group=g&max.in.flight=10", "--to", "http://h/"], "max.in.flight"),
    (["--from", "sqs://eu-central-1/", "--to", "http://h/"], "it names no queue"),
    (["--from", "sqs://u:geheim@h/q", "--to", "http://h/"], "'@'"),
    (["--from", "sqs://eu-central-1/q?endpoint=http://u:geheim@h", "--to", "http://h/"], '"endpoint"'),
    (["--from", "sqs://eu-central-1/q?visibility=1s", "--to", "http://h/"], '"visibility"'),
    (["--from", "sqs://eu-central-1/q?colour=geheim", "--to", "http://h/"], "colour"),
    (["--from", "sqs://eu-central-1/q", "--to", "http://h/", "--order", "key"], "--order"),
    (["--from", "sqs://eu-central-1/q.fifo", "--to", "http://h/", "--order", "partition"], "--order"),
    (["--from", "sqs://eu-central-1/q", "--to", "http://h/", "--no-key", "reject"], "--no-key"),
    (["--from", AMQP, "--to", "ftp://h/"], "--to is no http:// or https:// URL"),
    (["--from", AMQP, "--to", "http://h/", "--no-key", "guess"], '--no-key "guess" is not dead-letter, reject or run'),
    (["--from", AMQP, "--to", "http://h/", "--in-flight", "ack"], '--in-flight "ack" is not delay, wait or requeue'),
    (["--from", AMQP, "--to", "http://h/", "--in-flight", "wait"], "--in-flight"),
    (["--from", AMQP, "--to", "http://h/", "--unknown", "ack"], '--unknown "ack" is not park or dead-letter'),
    (["--from", AMQP, "--to", "http://h/", "--order", "time"], '--order "time" is not key, partition or none'),
    (["--from", AMQP, "--to", "http://h/", "--order", "key"], "--order"),
    (["--from", AMQP, "--to", "http://h/", "--key", "position"], "--key"),
    (["--from", AMQP, "--to", "http://h/", "--key", "/a~2"], "--key"),
    (["--from", AMQP, "--to", "http://h/", "--fingerprint", "colour"], "--fingerprint"),
    (["--from", AMQP, "--to", "http://h/", "--step", "a:b"], "--step"),
    (["--from", AMQP, "--to", "http://h/", "--scope", "s" * 256], "--scope"),
    (["--from", AMQP, "--to", "http://h/", "--retry", "1s"], '--retry "1s" is not MIN..MAX, as 1s..5m'),
    (["--from", AMQP, "--to", "http://h/", "--retry", "1s..later"], '--retry "1s..later" is not a duration'),
    (["--from", AMQP, "--to", "http://h/", "--retry", "5m..1s"], "--retry"),
    (["--from", AMQP, "--to", "http://h/", "--concurrency", "1025"], '--concurrency "1025" is not within 1 to 1024'),
    (["--from", AMQP, "--to", "http://h/", "--in-hand-max", "3"], "--in-hand-max"),
    (["--from", AMQP, "--to", "http://h/", "--drain", "soon"], '--drain "soon" is not a duration'),
    (["--from", AMQP, "--to", "http://h/", "--dead-letters", "q"], "--dead-letters"),
    (["--from", AMQP, "--to", "http://h/", "--parked", ""], "--parked"),
    (["--from", AMQP, "--to", "http://h/", "--ca", "/no/such"], '--ca "/no/such"'),
    (["--from", AMQP, "--to", "http://h/", "--pass-header", "X-A", "--pass-header", "Host"],
     '--pass-header "Host" is no header that a message may set'),
    (["--from", AMQP, "--to", "http://h/", "--metrics", "9464"], '"9464" is not HOST:PORT'),
    (["--from", AMQP, "--to", "http://h/", "--lease", "1ms"], "lease"),
    (["--from", AMQP, "--to", "http://h/", "--on-failed", "replay"], "--on-failed"),
    (["--from", AMQP, "--to", "http://h/", "--on-expired", "reconcile"], "no --reconcile URL to ask"),
    (["--from", AMQP, "--to", "http://h/", "--on-expired", "reconcile", "--reconcile", "x"], "--reconcile is no"),
    (["--from", AMQP, "--to", "http://h/", "--reconcile", "http://h/did"], "--on-expired is not reconcile"),
    (["--from", AMQP, "--to", "http://h/", "--attempts", "8"], 'no option "--attempts"'),
    (["--from", AMQP, "--to", "http://h/", "more"], '"more" is too much'),
])
def test_bad_settings_are_named(hapax, words, said):
    done = hapax("consume", "--store", "memory:", *words)
    assert done.code == 2
    assert done.err.startswith("hapax consume: ") and done.err.count("\n") == 1, done.err
    assert said in done.err and "geheim" not in done.err
    done = hapax("consume", "--store", "memory:", "--json", *words)
    assert done.code == 2 and done.err == "" and said in done.json["text"] and "geheim" not in done.out, done.out


def test_a_metrics_port_that_is_taken_is_named(hapax):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = hapax("consume", "--store", "memory:", "--from", AMQP, "--to", "http://h/", "--metrics",
                     f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.code == 2 and "already in use" in done.err


def test_every_flag_is_in_the_manual(hapax):
    """docs/consume.md names each option that the command has and that no other page tells of."""
    page = (ROOT / "docs/consume.md").read_text()
    for command in ("consume", "redrive"):
        options = [line.split()[0] for line in hapax("help", command).out.splitlines() if line.startswith("  --")]
        assert len(options) > 9
        missing = [option for option in options if option not in page and option not in ("--help", "--json")]
        assert not missing


# ---- beginning -----------------------------------------------------------------------------


def test_a_queue_that_is_not_there_ends_it(hapax, handler, store):
    done = hapax("consume", "--from", rabbit.server().uri(queue="no-such-queue"), "--to", handler.url, "--store", store)
    assert done.code == 1 and done.out == ""
    assert done.err.count("\n") == 1 and '"no-such-queue" does not exist' in done.err  # said once
    done = hapax("consume", "--from", rabbit.server().uri(vhost="nowhere", queue="q"),
                 "--to", handler.url, "--store", store)
    assert done.code == 1 and "nowhere" in done.err.splitlines()[-1]


def test_a_key_that_everybody_can_read_is_refused(hapax, handler, store, folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=me", "-keyout", "key.pem", "-out", "cert.pem"],
                   cwd=folder, check=True, capture_output=True)
    (folder / "key.pem").chmod(0o644)
    uri = f"amqps://127.0.0.1:1/?queue=q&tls_cert={folder}/cert.pem&tls_key={folder}/key.pem"
    done = hapax("consume", "--from", uri, "--to", handler.url, "--store", store)
    assert done.code == 1
    assert f'cannot use tls_key "{folder}/key.pem": everybody can read it' in done.err


def test_the_ready_line_and_the_pages_show_no_password(hapax, queue, handler, store):
    uri = queue.uri(prefetch=20).replace("guest:guest@", "guest:%67uest@")
    consumer = Consumer(hapax, uri, handler.url.replace("http://", "http://me:geheim@") + "?token=geheim", store)
    assert consumer.line.startswith(f"hapax consume: takes messages from "
                                    f"amqp://guest:***@127.0.0.1:{queue.broker.port}/?queue={queue.name} for "
                                    f"http://me:***@127.0.0.1:{handler.port}/messages (pid ")
    assert f"hapax list --store '{store}'" in consumer.line
    assert "prefetch" not in consumer.line  # parameters may be secrets, as properties of Kafka's are
    status, page = consumer.get("/metrics")
    assert status == 200 and "amqp://guest:***@" in page and "uest@" not in page.replace("***@", "")
    assert end(consumer.process) == 0
    assert "geheim" not in consumer.process.stderr.read()


def test_the_start_says_what_is_promised_and_what_is_dangerous(consume):
    """On the line after the first; dangers stand on stderr."""
    consumer = consume("--on-store-error", "open")
    assert "an effect may happen twice: without the store" in read_line(consumer.process)
    while "danger: on-store-error is open" not in (line := read_err(consumer.process)):
        assert line


def test_json_has_a_ready_line_and_log_lines(consume, queue):
    consumer = consume("--json")
    ready = json.loads(consumer.line)
    while "log" in ready:  # that of the connection may come first
        assert ready["time_us"] > 0
        ready = json.loads(read_line(consumer.process))
    assert ready["pid"] == consumer.process.pid and ready["consuming"].endswith(f"?queue={queue.name}")
    assert set(ready) == {"consuming", "to", "store", "metrics", "pid", "promise"}
    consumer.process.send_signal(signal.SIGTERM)
    out, err = consumer.process.communicate(timeout=PATIENCE)
    assert consumer.process.returncode == 0 and err == ""
    assert any("stopping" in json.loads(line)["log"] for line in out.splitlines())


@sqs.both
def test_a_broker_that_is_away_is_waited_for(hapax, queue, handler, store):
    with Proxy(queue.broker.port) as proxy:
        proxy.refuse()
        consumer = Consumer(hapax, queue.uri(port=proxy.port), handler.url, store, ready=False)
        assert "the broker is away" in read_err(consumer.process)
        queue.publish("one")
        proxy.heal()
        proxy.listen()
        assert "takes messages from" in read_line(consumer.process)
        handler.wait_calls(1)
        assert end(consumer.process) == 0
        assert "the broker is away" not in consumer.process.stderr.read()  # said once


def test_a_store_that_is_away_is_waited_for(hapax, queue, handler, folder):
    """Also by the pages, which tell of it; and a signal ends the waiting."""
    path = f"unix:{folder}/store/keeper.sock"
    consumer = Consumer(hapax, queue.uri(), handler.url, path, ready=False)
    assert "waiting for it" in read_err(consumer.process)
    assert end(consumer.process) == 0
    consumer = Consumer(hapax, queue.uri(), handler.url, path, ready=False)
    assert "waiting for it" in read_err(consumer.process)
    queue.publish("one")
    hapax.keep(f"rocksdb:{folder}/store")
    assert "takes messages from" in read_line(consumer.process)
    handler.wait_calls(1)
    assert end(consumer.process) == 0
    assert "waiting for it" not in consumer.process.stderr.read()


# ---- running -------------------------------------------------------------------------------


@sqs.both
def test_each_message_runs_once_and_is_counted(consume, queue, handler):
    for _ in range(3):
        queue.publish(*range(10))
    consumer = consume()
    consumer.wait_metric("hapax_consumer_acknowledged_total", 30)
    assert sorted(handler.bodies, key=int) == [str(n) for n in range(10)]
    assert consumer.metric('hapax_answers_total{answer="fresh"}') == 10
    assert consumer.metric('hapax_answers_total{answer="replay"}') == 20
    assert consumer.metric("hapax_consumer_run_total") == 10
    assert consumer.metric("hapax_consumer_taken_total") >= 30
    consumer.wait_metric("hapax_consumer_in_hand", 0)
    assert consumer.metric("hapax_consumer_handler_seconds_count") == 10
    assert consumer.metric("hapax_consumer_message_seconds_count") == 30
    assert consumer.get("/health") == (200, "ok\n")
    assert queue.ready() == 0


def test_the_secret_and_the_scope_are_those_of_other_commands(hapax, consume, queue, handler, store, folder):
    (folder / "secret").write_text("hush\n")
    (folder / "secret").chmod(0o600)
    queue.publish("one", id="order-1")
    consumer = consume(HAPAX_SECRET_FILE=str(folder / "secret"))
    consumer.wait_metric("hapax_consumer_acknowledged_total", 1)
    shown = hapax("show", "--store", store, "--scope", queue.name, "order-1", HAPAX_SECRET_FILE=str(folder / "secret"))
    assert shown.code == 0 and "completed" in shown.out
    assert end(consumer.process) == 0
    assert hapax("show", "--store", store, "--scope", queue.name, "order-1").code == 3
    done = hapax("consume", "--from", queue.uri(), "--to", handler.url, "--store", store)
    assert done.code == 3 and "secret" in done.err


def test_the_environment_has_the_login(hapax, queue, handler, store):
    uri = queue.uri().replace("guest:guest@", "")
    consumer = Consumer(hapax, uri, handler.url, store, HAPAX_AMQP_USER="guest", HAPAX_AMQP_PASSWORD="guest")
    assert end(consumer.process) == 0
    done = hapax("consume", "--from", uri, "--to", handler.url, "--store", store, HAPAX_AMQP_USER="guest",
                 HAPAX_AMQP_PASSWORD="geheim")
    assert done.code == 1 and "geheim" not in done.err


@sqs.both
def test_policies_have_their_names(hapax, queue, handler, store):
    """--attempts-max is the policy of every door; the third failure is a dead letter."""
    handler.answers = lambda body: 500
    consumer = Consumer(hapax, queue.uri(), handler.url, store, "--attempts-max", "3", "--retry", "10ms..20ms")
    queue.publish("one")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    assert len(handler.bodies) == 3
    (body, headers), = queue.dead.take()
    assert body == "one" and headers["hapax-reason"] == "failed" and headers["hapax-scope"] == queue.name
    shown = hapax("show", "--store", store, "--id", headers["hapax-id"], "--json")
    assert shown.code == 0 and shown.json["state"] == "failed"


# The first letter of a reason has its line at once; the others are counted, and have theirs at the end.
def test_dead_letters_are_in_the_log_by_reason(hapax, consume, queue, handler):
    handler.answers = lambda body: 422
    consumer = consume()
    queue.publish("body-1", id="key-1")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    queue.publish("body-2", "body-3", "body-4")
    queue.publish_keyless("body-5")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 5)
    assert end(consumer.process) == 0
    log = consumer.process.stderr.read()
    said = [line.partition(" letters to ")[2] for line in log.splitlines() if " letters to " in line]
    refused = f'"{queue.dead.name}": %d with hapax-reason refused, the last one: handler answered 422'
    keyless = f'"{queue.dead.name}": 1 with hapax-reason no_key, the last one: the message has no key'
    assert said == [refused % 1, keyless, refused % 3]
    assert "key-1" not in log and "body" not in log


# The broker takes a message back after its second attempt: the consumer's own count of its attempts is lost.
def test_a_dead_letter_counts_the_attempts_before_the_channel_was_lost(hapax, queue, handler, gate, store):
    with Proxy(queue.broker.port) as proxy:
        consumer = Consumer(hapax, queue.uri(port=proxy.port), handler.url, store, "--attempts-max", "3",
                            "--run-max", "300ms", "--lease", "300ms")
        queue.publish("one")
        handler.wait_calls(2)
        proxy.cut_all()
        consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    (_, headers), = queue.dead.take()
    assert len(handler.calls) == 3
    assert headers["hapax-reason"] == "failed"
    assert headers["hapax-attempts"] == headers["hapax-base"] == "3"


# RabbitMQ closes the channel over a letter that is too large for it, and does not say which one it was.
def test_a_letter_that_closes_the_channel_holds_up_no_other(hapax, consume, queue, handler):
    handler.answers = lambda body: 422
    queue.publish("b" * 3000, id="b")
    queue.publish(*range(20))
    queue.publish("c" * 3000, id="c")
    with queue.broker.body_max(2000):
        consumer = consume()
        consumer.wait_metric("hapax_consumer_dead_lettered_total", 20)
        consumer.wait_metric("hapax_consumer_letters_refused", 2)
        assert {body for body, _ in queue.dead.take()} == {str(n) for n in range(20)}
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 22)
    assert {body[0] for body, _ in queue.dead.take()} >= {"b", "c"}
    assert len(handler.calls) == 22 and end(consumer.process) == 0
    log = consumer.process.stderr.read()
    assert f'letters to "{queue.dead.name}" are refused, their messages are kept: RabbitMQ closed the channel' in log
    assert f'letters to "{queue.dead.name}" are taken again' in log


def in_seconds(seconds):
    return str(seconds)


def as_a_date(seconds):
    return email.utils.formatdate(time.time() + seconds + 1, usegmt=True)  # whole seconds


@pytest.mark.some(2)
@pytest.mark.parametrize("status, after", [(429, in_seconds), (503, in_seconds), (503, as_a_date), (423, in_seconds)])
def test_a_handler_says_when_to_come_again(consume, queue, handler, status, after):
    begun = []

    def answers(body):
        begun.append(time.monotonic())
        return (status, {"Retry-After": after(2)}) if len(begun) == 1 else 200

    handler.answers = answers
    consumer = consume("--retry", "10ms..10s")
    queue.publish("one")
    consumer.wait_metric("hapax_consumer_acknowledged_total", 1)
    assert len(begun) == 2 and begun[1] - begun[0] >= 1.9


def test_a_handler_that_says_tomorrow_is_asked_after_the_longest_pause(consume, queue, handler):
    handler.answers = lambda body: 200 if len(handler.bodies) > 1 else (429, {"Retry-After": "86400"})
    consumer = consume("--retry", "10ms..200ms")
    queue.publish("one")
    consumer.wait_metric("hapax_consumer_acknowledged_total", 1)


# It is connected, and its letter is not confirmed. Here a minute is over at once.
@pytest.mark.ci
def test_a_letter_that_an_alarm_keeps_back_is_told(hapax, handler, store, folder):
    clock = folder / "clock"
    clock.write_text("+0")
    handler.answers = lambda body: 422
    with rabbit.rabbitmq_server.RabbitMQ() as broker, (folder / "log").open("w") as log:
        queue = Queue(broker.start())
        queue.publish("one")
        broker.alarm(True)
        consumer = Consumer(hapax, queue.uri(heartbeat="60s"), handler.url, store, stderr=log,
                            FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1", **faketime())
        wait_until(broker.blocked, "the alarm")
        clock.write_text("+70")
        wait_until(lambda: "letters cannot be sent, their messages are kept: RabbitMQ has an alarm" in
                   (folder / "log").read_text(), lambda: f"the line in {(folder / 'log').read_text()}")
        broker.alarm(False)
        queue.dead.wait_ready(1)
        assert end(consumer.process) == 0


# ---- ending --------------------------------------------------------------------------------


@pytest.mark.parametrize("queue, number",
                         [("rabbitmq", signal.SIGTERM), ("rabbitmq", signal.SIGINT), ("sqs", signal.SIGTERM)],
                         indirect=["queue"])
def test_a_signal_lets_handlers_finish(hapax, consume, queue, handler, gate, store, number):
    consumer = consume("--concurrency", "1")
    queue.publish("one", "two", "three")
    handler.wait_calls(1)
    consumer.process.send_signal(number)
    wait_until(lambda: consumer.get("/health") == (503, "it is being stopped\n"), "draining")
    gate.set()
    assert consumer.process.wait(PATIENCE) == 0
    queue.wait_ready(2)  # what had not begun is the broker's again
    assert handler.bodies == ["one"]
    assert "completed" in hapax("list", "--store", store, "--scope", queue.name).out


def test_a_second_signal_does_not(hapax, consume, queue, handler, gate, store):
    """The handler's call is given up; its message comes again, and waits for the lease."""
    consumer = consume("--drain", "10m")
    queue.publish("one")
    handler.wait_calls(1)
    consumer.process.send_signal(signal.SIGTERM)
    wait_until(lambda: consumer.metric("hapax_consumer_draining") == 1, "draining")
    consumer.process.send_signal(signal.SIGTERM)
    assert consumer.process.wait(PATIENCE) == 0
    queue.wait_ready(1)
    assert "started" in hapax("list", "--store", store, "--scope", queue.name).out


def test_the_drain_has_an_end(consume, queue, handler, gate):
    consumer = consume("--drain", "100ms")
    queue.publish("one")
    handler.wait_calls(1)
    assert end(consumer.process) == 0
    queue.wait_ready(1)


# ---- redrive -------------------------------------------------------------------------------


@pytest.fixture
def dead(consume, queue, handler):
    """Five dead letters: refused 1 to 3, a mismatch, no key; and a handler that has been mended since."""
    handler.answers = lambda body: 200 if body == "good" else 422
    consumer = consume()
    queue.publish("good", id="good")
    handler.wait_calls(1)
    queue.publish("1", "2", "3")
    queue.publish("bad", id="good")
    queue.publish_keyless("keyless")
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 5)
    assert end(consumer.process) == 0
    handler.answers = lambda body: 200
    handler.calls.clear()
    queue.dead.wait_ready(5)
    return queue.dead


@sqs.both
def test_dead_letters_run_again_after_a_redrive(hapax, consume, queue, handler, dead):
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri())
    assert (done.code, done.out, done.err) == (0, "put back: 3, left: 2\n", "")
    dead.wait_ready(2)
    consumer = consume()
    consumer.wait_metric("hapax_consumer_acknowledged_total", 3)
    assert sorted(handler.bodies) == ["1", "2", "3"]
    assert end(consumer.process) == 0
    assert sorted(headers["hapax-reason"] for _, headers in dead.take()) == sorted(["mismatch", queue.keyless])


@sqs.both
def test_what_fails_again_does_not_go_round(hapax, consume, queue, handler, dead):
    """A consumer that still refuses makes dead letters as fast as they are put back."""
    handler.answers = lambda body: 422
    consume()
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--json")
    assert done.code == 0 and done.json["put_back"] == 3
    dead.wait_ready(5)
    assert sorted(handler.bodies) == ["1", "2", "3"]


@sqs.both
def test_one_letter_by_its_key(hapax, queue, dead):
    def redrive(*words):
        dead.wait_ready(5)  # the broker takes back what a run has left in its own time
        return hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--json", *words)

    missing = {"put_back": 0, "left": 5, "failed_again": 0, "not_seen": 0}
    done = redrive("--key", "id-9")
    assert done.code == 1 and done.json == missing
    done = redrive("--key", "id-2", "--scope", "elsewhere")
    assert done.code == 1 and done.json == missing
    done = redrive("--key", "2", "--key-from", "x-order")
    assert done.code == 1 and done.json == missing
    done = redrive("--key", "id-2", "--scope", queue.name)
    assert done.code == 0 and done.json == {**missing, "put_back": 1, "left": 4}
    assert [body for body, _ in queue.take()] == ["2"]
    dead.wait_ready(4)


# Such a letter was put there by another tool, or by the broker.
def test_a_letter_whose_copy_would_lack_headers_is_left(hapax, queue, dead):
    dead.publish("many", **{"hapax-reason": "failed"}, **{f"h{n}": "v" for n in range(300)})
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri())
    assert (done.code, done.out) == (1, "put back: 3, left: 3\n")
    assert "left, since a copy would lack headers: 1 " in done.err and done.err.count("\n") == 1
    dead.wait_ready(3)
    assert len(next(headers for body, headers in dead.take() if body == "many")) > 300


def test_all_and_limit(hapax, queue, dead):
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--limit", "2", "--json")
    assert done.code == 0 and done.json["put_back"] == 2
    dead.wait_ready(3)  # the broker takes back what is left in its own time
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--all", "--json")
    assert done.code == 0 and done.json["put_back"] == 3
    dead.wait_ready(0)
    back = queue.take()
    assert sorted(body for body, _ in back) == ["1", "2", "3", "bad", "keyless"]
    assert all(headers["hapax-reason"] and headers["hapax-redrive"] for _, headers in back)


def test_a_dry_run_changes_nothing(hapax, queue, dead):
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--dry-run", "--json")
    reasons = sorted(line["reason"] for line in done.lines)
    assert done.code == 0 and reasons == sorted(["mismatch", queue.keyless] + 3 * ["refused"])
    assert sum(line["put_back"] for line in done.lines) == 3
    assert all(line["from"] == queue.name and int(line["time_us"]) > 0 for line in done.lines)
    dead.wait_ready(5)
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.uri(), "--dry-run")
    assert done.code == 0 and len(done.out.splitlines()) == 5 and "reason=refused" in done.out
    dead.wait_ready(5)
    assert queue.ready() == 0


@sqs.both
def test_a_target_that_is_not_there_loses_nothing(hapax, queue, dead):
    done = hapax("redrive", "--from", dead.uri(), "--to", queue.missing())
    assert done.code == 1 and "no-such-queue" in done.err
    dead.wait_ready(5)


# The line that HapaxParked tells to type. Without --all it would leave what is unknown.
def test_the_runbook_puts_parked_letters_back(hapax, queue):
    page = (ROOT / "docs/runbook.md").read_text()
    (line,) = re.findall(r"^hapax (redrive .*orders\.parked.*)$", page, re.M)
    parked = Queue(rabbit.server(), queue.parked.name)
    parked.publish("one", **{"hapax-reason": "unknown"})
    at = {"amqp://localhost/?queue=orders.parked": parked.uri(), "amqp://localhost/?queue=orders": queue.uri()}
    done = hapax(*(at.get(word, word) for word in shlex.split(line)))
    assert (done.code, done.out) == (0, "put back: 1, left: 0\n")
    queue.wait_ready(1)


@pytest.mark.parametrize("words, code, said", [
    ([], 2, "--from URI is missing"),
    (["--from", AMQP], 2, "--to URI is missing"),
    (["--from", AMQP, "--to", AMQP], 2, "are the same"),
    (["--from", "nats://h", "--to", AMQP], 2, "--from is of no scheme"),
    (["--from", AMQP, "--to", "nats://h"], 2, "--to: is of no scheme"),
    (["--from", "amqp://127.0.0.1:1/", "--to", AMQP], 2, "--from: "),
    (["--from", AMQP, "--to", "amqp://127.0.0.1:1/"], 2, "--to: names no queue or topic"),
    (["--from", AMQP, "--to", "amqp://h/?queue=r", "--key", "k", "--key-from", "/a~2"], 2, "--key-from"),
    (["--from", AMQP, "--to", "amqp://h/?queue=r", "--limit", "0"], 2, "--limit"),
    (["--from", AMQP, "--to", "amqp://h/?queue=r", "--store", "memory:"], 2, 'no option "--store"'),
])
def test_bad_settings_of_a_redrive_are_named(hapax, words, code, said):
    done = hapax("redrive", *words)
    assert done.code == code and said in done.err and done.err.count("\n") == 1


def fill(queue, count, confirmed):
    """Letters that are left, but for one to be put back, which is behind them. A quorum queue may lose letters that are
    not confirmed when their channel ends: what its leader did not take at once, nobody sends again."""
    with contextlib.closing(rabbit.connect(queue.broker)) as connection:
        channel = connection.channel()
        if confirmed:
            channel.confirm_delivery()
        for n in range(count + 1):
            reason, key = ("failed", "last") if n == count else ("mismatch", f"left-{n}")
            channel.basic_publish("", queue.name, b"x", pika.BasicProperties(
                delivery_mode=2, message_id=key, headers={"hapax-reason": reason}))
    queue.wait_ready(count + 1)


# What is left stands before what was not seen: nobody is to take that for not there.
@pytest.mark.some(1)
@pytest.mark.parametrize("words, said", [
    ([], "put back: 0, left: 10, not seen: 11\n"),
    (["--key", "last"], "put back: 0, left: 10, not seen: 11\n"),
    (["--dry-run"], 10 * "would be left: reason=mismatch\n"),
])
def test_letters_behind_a_prefetch_are_told_as_not_seen(hapax, queue, words, said):
    letters = Queue(rabbit.server(), queue.dead.name)
    fill(letters, 20, confirmed=True)
    done = hapax("redrive", "--from", letters.uri(prefetch=10), "--to", queue.uri(), *words)
    assert (done.code, done.out) == (1, said)
    assert "not all letters were seen: the broker gives no more" in done.err and done.err.count("\n") == 1
    letters.wait_ready(21)
    assert queue.ready() == 0


# The most that one run holds; and when it is over, the broker has all of them again at once.
@pytest.mark.ci
def test_letters_behind_all_that_a_run_holds_are_told_as_not_seen(hapax, queue):
    letters = Queue(rabbit.server(), queue.dead.name, **{"x-queue-type": "classic"})
    fill(letters, 65540, confirmed=False)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--key", "last")
    assert (done.code, done.out) == (1, "put back: 0, left: 65535, not seen: 6\n")
    assert "not all letters were seen: those that are left before them" in done.err and "--limit" in done.err
    letters.wait_ready(65541)  # one nack for each would keep the queue busy for minutes
    with letters.channel() as channel:
        method, properties, _ = channel.basic_get(letters.name)
        assert properties.message_id == "left-0"
        channel.basic_nack(method.delivery_tag)
    letters.wait_ready(65541)
    aside = Queue(rabbit.server(), f"{queue.name}.aside")
    done = hapax("redrive", "--from", letters.uri(), "--to", aside.uri(), "--all", "--limit", "100")
    assert done.code == 0 and done.out.startswith("put back: 100, ")
    letters.wait_ready(65441)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--key", "last")
    assert (done.code, done.out) == (0, "put back: 1, left: 65440\n")


# The broker has given all by then, and counts none that waits.
@pytest.mark.ci
def test_letters_behind_the_bytes_that_a_run_holds_are_told_as_not_seen(hapax, queue):
    letters = Queue(rabbit.server(), queue.dead.name, **{"x-queue-type": "classic"})
    body = bytes(10 << 20)
    with letters.channel() as channel:
        for n in range(27):
            channel.basic_publish("", letters.name, body if n < 26 else b"x", pika.BasicProperties(
                message_id=f"{n}", headers={"hapax-reason": "mismatch" if n < 26 else "failed"}))
    letters.wait_ready(27)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--json")
    assert done.code == 1 and done.lines[0] == {"put_back": 0, "left": 26, "failed_again": 0, "not_seen": None}
    assert "not all letters were seen: those that are left before them are as many" in done.lines[1]["text"]
    letters.wait_ready(27)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--all", "--limit", "1")
    assert (done.code, done.err) == (0, "")
    letters.wait_ready(26)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--key", "26")
    assert (done.code, done.out) == (0, "put back: 1, left: 25\n")


# Headers are bytes in memory, too: here they are nearly all of a letter.
def test_headers_count_among_the_bytes_that_a_run_holds(hapax, queue):
    letters = Queue(rabbit.server(), queue.dead.name)
    with letters.channel() as channel:
        for _ in range(60):
            channel.basic_publish("", letters.name, b"x", pika.BasicProperties(
                delivery_mode=2, headers={"hapax-reason": "mismatch", "x-large": 8192 * "h"}))
    letters.wait_ready(60)
    done = hapax("redrive", "--from", letters.uri(), "--to", queue.uri(), "--in-hand-max", "100")
    assert (done.code, done.out) == (1, "put back: 0, left: 50\n")
    assert "not all letters were seen: those that are left before them are as many as one run holds" in done.err
    letters.wait_ready(60)


# Those of a group stand behind ten that are left, and what SQS counts is no more than about right.
def test_letters_behind_their_group_may_not_have_been_seen(hapax):
    hapax.env.update(sqs.KEYS)
    letters = sqs.Queue(sqs.server(), fifo=True)
    target = sqs.Queue(sqs.server(), fifo=True)
    for n in range(12):
        letters.send("x", **{"message-id": f"{n}", "hapax-reason": "failed" if n == 11 else "mismatch"})
    done = hapax("redrive", "--from", letters.uri(visibility="30s"), "--to", target.uri())
    assert (done.code, done.out) == (1, "put back: 0, left: 10\n")
    assert "perhaps not all letters were seen: SQS still counts some" in done.err and done.err.count("\n") == 1
    letters.wait_ready(12)


def test_the_environment_has_the_login_of_the_handler(hapax, queue, handler, store):
    Consumer(hapax, queue.uri(), handler.url, store, HAPAX_TO_USER="me", HAPAX_TO_PASSWORD="geheim")
    queue.publish("one")
    handler.wait_calls(1)
    assert handler.calls[0][1]["Authorization"] == "Basic bWU6Z2VoZWlt"
    done = hapax("consume", "--from", queue.uri(), "--to", handler.url, "--store", store, HAPAX_TO_PASSWORD="geheim")
    assert done.code == 2 and "HAPAX_TO_USER" in done.err and "geheim" not in done.err


@sqs.both
def test_a_producer_is_nobody_to_the_handler(consume, queue, handler):
    consume("--pass-header", "x-tenant")
    rabbit.publish_as_a_proxy(queue)
    rabbit.assert_a_producer_is_nobody(handler)


# ---- headers of RabbitMQ's ------------------------------------------------------------------

HEADERS = {
    "text": "t", "bytes": b"\xff\x00", "empty": "", "number": 5,
    "long": pika.compat.long(1 << 40), "negative": -1, "true": True, "false": False,
    "decimal": decimal.Decimal("1.5"), "none": None,
    "time": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "table": {"x": 1, "deep": {"list": [1, "two", {"three": 3}]}}, "array": [1, "b", True, [2]],
}


def properties_of(queue):
    """Of the one message in it, which stays there."""
    queue.wait_ready(1)
    with queue.channel() as channel:
        method, properties, _ = channel.basic_get(queue.name)
        channel.basic_nack(method.delivery_tag)
    return properties


def test_headers_keep_their_types_in_retries_letters_and_redrives(hapax, consume, queue, handler):
    handler.answers = lambda body: 500
    consumer = consume("--attempts-max", "2", "--retry", "1s..1s")
    other = Queue(queue.broker, f"{queue.name}-other")
    with queue.channel() as channel:
        channel.basic_publish("", queue.name, b"one", pika.BasicProperties(
            delivery_mode=2, message_id="a", headers={**HEADERS, "CC": [other.name]}))
    queue.dead.wait_ready(1)
    assert end(consumer.process) == 0
    assert len(handler.calls) == 2 and other.ready() == 1
    for _, headers in handler.calls:
        names = {name.lower(): value for name, value in headers.items()}
        assert names["hapax-header-number"] == "5" and names["hapax-header-true"] == "true"
        assert not {f"hapax-header-{name}" for name in ("table", "array", "decimal", "none")} & set(names)

    def kept(properties):
        assert not {"CC", "x-death"} & set(properties.headers)
        return {name: (value, type(value)) for name, value in properties.headers.items() if name in HEADERS}

    expected = {name: (value, type(value)) for name, value in HEADERS.items()}
    expected["time"] = (HEADERS["time"].replace(tzinfo=None), datetime.datetime)
    letter = properties_of(queue.dead)
    assert kept(letter) == expected and letter.headers["hapax-reason"] == "failed"
    assert hapax("redrive", "--from", queue.dead.uri(), "--to", queue.uri()).code == 0
    assert kept(properties_of(queue)) == expected


@pytest.mark.some(2)
@pytest.mark.parametrize("headers", [
    {"Idempotency-Key": {"a": 1}}, {"Idempotency-Key": [1]},
    {"Idempotency-Key": None}, {"x-deduplication-header": {"a": 1}},
    {"ce-id": [1], "ce-source": "s"},
])
def test_a_key_that_is_a_table_is_a_bad_key(consume, queue, handler, headers):
    consumer = consume()
    with queue.channel() as channel:
        channel.basic_publish("", queue.name, b"one", pika.BasicProperties(
            delivery_mode=2, message_id="zz", headers={**headers, "other": {"a": 1}}))
    letter = properties_of(queue.dead)
    assert letter.headers["hapax-reason"] == "bad_key" and letter.headers["other"] == {"a": 1}
    assert all(letter.headers[name] == value for name, value in headers.items())
    assert end(consumer.process) == 0 and not handler.calls


def test_payments_by_message(consume, queue, handler, hapax, store):
    """--profile payments: two owners with one key are two operations, a short key and a message without its owner are
    dead letters that say so, and what failed waits for an operator."""
    handler.answers = lambda body: 500 if "fails" in str(body) else 200
    consumer = consume("--profile", "payments", "--owner", "tenant")
    for owner in "abb":
        queue.publish("one", id="0123456789abcdef", tenant=owner)
    consumer.wait_metric("hapax_consumer_acknowledged_total", 3)
    assert len(handler.calls) == 2
    queue.publish("short", id="0123456789abcde", tenant="a")
    queue.publish("nobody", id="0123456789abcdef")
    queue.dead.wait_ready(2)
    with queue.channel() as channel:
        errors = {channel.basic_get(queue.dead.name, auto_ack=True)[1].headers["hapax-error"] for _ in range(2)}
    assert errors == {"its key has fewer than 16 bytes", "the header of its owner is missing, twice there, or empty"}
    queue.publish("fails", id="fedcba9876543210", tenant="a")
    consumer.wait_metric("hapax_consumer_parked_total", 1)
    assert end(consumer.process) == 0 and len(handler.calls) == 3
    assert len(hapax("list", "--store", store, "--owner", "a", "--state", "unknown", "--json").lines) == 1
    done = hapax("consume", "--from", queue.uri(), "--to", handler.url, "--store", store, "--profile", "payments")
    assert done.code == 2 and "--owner is missing" in done.err


# In structured mode, with the content type of the data: so the Python SDK of CloudEvents writes events to Kafka.
def test_an_event_that_does_not_say_that_it_is_one(hapax, queue, handler, store):
    def publish():
        with queue.channel() as channel:
            channel.basic_publish("", queue.name, json.dumps({"specversion": "1.0", "id": "1", "source": "/shop",
                                                              "type": "order", "data": {}}).encode(),
                                  pika.BasicProperties(content_type="application/json"))

    publish()
    consumer = Consumer(hapax, queue.uri(), handler.url, store)
    consumer.wait_metric("hapax_consumer_dead_lettered_total", 1)
    assert end(consumer.process) == 0 and not handler.calls
    consumer = Consumer(hapax, queue.uri(), handler.url, store, "--key", "cloudevents,/source /id")
    publish()
    publish()
    consumer.wait_metric("hapax_consumer_acknowledged_total", 2)
    assert len(handler.calls) == 1


def test_a_letter_says_which_limit_its_headers_are_over(consume, queue, handler):
    consumer = consume()
    queue.publish("one", **{f"h{n}": "v" for n in range(257)})
    letter = properties_of(queue.dead)
    assert (letter.headers["hapax-reason"], letter.headers["hapax-error"]) == ("too_large", "it has over 256 headers")
    assert end(consumer.process) == 0 and not handler.calls


def test_a_redrive_from_what_is_not_there(hapax, queue):
    done = hapax("redrive", "--from", rabbit.server().uri(queue="no-such-queue"), "--to", queue.uri())
    assert done.code == 1 and "no-such-queue" in done.err
    Queue(rabbit.server(), queue.dead.name)
    done = hapax("redrive", "--from", queue.dead.uri(), "--to", queue.uri())
    assert (done.code, done.out) == (0, "put back: 0, left: 0\n")


# A typo is found on the day it is made, and not on the day it matters.
@sqs.both
@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_a_target_that_is_not_there_is_found_without_letters(hapax, queue, words):
    source = Queue(rabbit.server(), queue.dead.name) if queue.kind == "rabbitmq" else sqs.Queue(sqs.server())
    done = hapax("redrive", "--from", source.uri(), "--to", queue.missing(), *words)
    assert done.code == 1 and "no-such-queue" in done.err and done.err.count("\n") == 1
