"""The RabbitMQ source and sink where the broker dies, is cut off, or loses patience."""
import os
import re
import subprocess
import sys
import time

import pika
import pytest
from conftest import BUILD, PATIENCE, ROOT, at_some_pace, read_line

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import end_with_parent, faketime, wait_for  # noqa: E402
from proxy import REPLY, REQUEST, Proxy  # noqa: E402
from rabbitmq_server import RabbitMQ  # noqa: E402

SOURCE = BUILD / "tests/broker/test_amqp_source"
TRAFFIC = BUILD / "tests/broker/amqp_traffic"


@pytest.fixture(scope="module")
def rabbitmq():
    with RabbitMQ(tls=True) as server:
        yield server.start()


@pytest.fixture
def traffic():
    """Starts tests/broker/amqp_traffic.c."""
    started = []

    def start(*words, **environment):
        process = subprocess.Popen([str(TRAFFIC), *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True, preexec_fn=end_with_parent, env={**os.environ, **environment})
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def counts_of(process):
    """Its last line, once it has ended as it should."""
    last = ""
    while line := read_line(process):
        last = line
    assert process.wait(PATIENCE) == 0, last
    return {name: int(count) for name, count in re.findall(r"([a-z ]+?) (\d+)(?:, |\n)", last)}


# Kill -9 of the broker amid letters: what was confirmed comes, and what was not is sent again. A proxy swallows
# confirmations until the kill, so that there is something to send again however fast the broker was. Without delays:
# a kill may lose a move out of a classic retry queue, which is not confirmed to that queue; a quorum queue of
# RabbitMQ 3.10 may keep a delayed letter until the next letter comes.
@pytest.mark.parametrize("kind", ["quorum", pytest.param("classic", marks=pytest.mark.ci)])
def test_a_killed_broker_loses_no_confirmed_letter(rabbitmq, traffic, kind):
    queue, letters, most = f"killed.{kind}", 6000, 120000
    maker = traffic(rabbitmq.uri(queue=queue, declare="on", type=kind))
    assert read_line(maker) == "connected\n"
    maker.stdin.close()
    assert maker.wait(PATIENCE) == 0
    rabbitmq.keep_queues()
    for _ in range(5):  # what the proxy swallowed may have been a heartbeat
        with Proxy(rabbitmq.port) as proxy:
            process = traffic(rabbitmq.uri(queue=queue), rabbitmq.uri(type=kind, port=proxy.port), letters, most)
            assert read_line(process) == "connected\n"
            assert read_line(process) == "half\n"
            assert proxy.blackhole(REPLY).fired.wait(PATIENCE)
            rabbitmq.restart()
            proxy.heal()
            assert read_line(process) == "lost\n"
            assert read_line(process) == "connected\n"
            counts = counts_of(process)
        assert counts["confirmed"] == counts["came"] >= letters
        assert wait_for(lambda: rabbitmq.queues().get(queue) == 0, "the queue being empty", pause=0.5)
        if counts["sent again"] > 0:
            return
    pytest.fail("no confirmation was lost in five rounds")


# What the tests that kill the broker rely on. Without it, five of five were lost at each try.
@pytest.mark.ci
def test_a_queue_that_was_just_made_outlives_a_kill_if_it_is_kept(rabbitmq):
    with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", rabbitmq.port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("young", durable=True, arguments={"x-queue-type": "quorum"})
        for _ in range(5):
            channel.basic_publish("", "young", b"x", pika.BasicProperties(delivery_mode=2), mandatory=True)
    rabbitmq.keep_queues()
    rabbitmq.restart()
    assert rabbitmq.queues()["young"] == 5


# A broker that is cut off without a word is noticed by its missing heartbeats, and found again when it is back.
@pytest.mark.some(1)
@pytest.mark.parametrize("sides", [(REPLY,), (REQUEST,), (REQUEST, REPLY)])
def test_a_broker_behind_a_black_hole_is_noticed(rabbitmq, traffic, sides):
    with Proxy(rabbitmq.port) as proxy:
        process = traffic(rabbitmq.uri(queue="hole", declare="on", port=proxy.port, heartbeat="1s"))
        assert read_line(process) == "connected\n"
        began = time.monotonic()
        for side in sides:
            proxy.blackhole(side)
        assert read_line(process) == "lost\n"
        assert time.monotonic() - began < 30  # of heartbeats every second
        proxy.heal()
        assert read_line(process) == "connected\n"


# A broker that is stopped (and not dead) is the same; one that comes back is used again.
def test_a_stopped_broker_is_noticed(rabbitmq, traffic):
    process = traffic(rabbitmq.uri(queue="stopped", declare="on", heartbeat="1s"))
    assert read_line(process) == "connected\n"
    rabbitmq.stop()
    try:
        assert read_line(process) == "lost\n"
    finally:
        rabbitmq.cont()
    assert read_line(process) == "connected\n"


# By TLS, to a certificate of its address; a broker that a CA we do not know has signed gets no password.
def test_tls_is_verified(rabbitmq, traffic):
    process = traffic(rabbitmq.uri(queue="tls", declare="on", tls=True), rabbitmq.uri(tls=True), 2000)
    counts = counts_of(process)
    assert counts["came"] == 2000
    process = traffic(rabbitmq.uri(queue="tls", tls=True).replace(f"tls_ca={rabbitmq.ca}&", ""))
    assert process.wait(PATIENCE) != 0  # refused
    process = traffic(rabbitmq.uri(queue="tls", tls=True).replace(f"tls_ca={rabbitmq.ca}", "tls_verify=off"))
    assert read_line(process) == "connected\n"


def ends_as_if_no_alarm_had_been(process):
    assert read_line(process) == "half\n"
    counts = counts_of(process)
    assert counts["reconnects"] == counts["sent again"] == 0, counts
    assert counts["came"] == counts["confirmed"] == 2000


# A memory alarm holds letters back and ends no connection; the letters go when it is over. The letters under way
# fill the broker's buffers, so that it leaves bytes unconfirmed for three heartbeats.
# A broker that stands still for two heartbeats is left, as it should be: then the same with longer ones.
def test_an_alarm_is_waited_out(rabbitmq, traffic):
    def waited_out(heartbeat_s):
        queue, heartbeat = f"alarm-{heartbeat_s}", f"{heartbeat_s}s"
        rabbitmq.alarm(True)
        try:
            process = traffic(rabbitmq.uri(queue=queue, declare="on", heartbeat=heartbeat),
                              rabbitmq.uri(heartbeat=heartbeat), 2000)
            assert read_line(process) == "connected\n"
            wait_for(rabbitmq.blocked, "the alarm")
            over = time.monotonic() + 4 * heartbeat_s
            wait_for(lambda: time.monotonic() > over or process.poll() is not None, "heartbeats", pause=0.1)
            assert process.poll() is None
        finally:
            rabbitmq.alarm(False)
        ends_as_if_no_alarm_had_been(process)

    at_some_pace(waited_out, 2, 10)


# An alarm may last longer than a broker has to confirm a letter (30 s), here by the clock of the program.
def test_a_long_alarm_is_waited_out(rabbitmq, traffic, tmp_path):
    clock = tmp_path / "clock"
    clock.write_text("+0")
    rabbitmq.alarm(True)
    try:
        process = traffic(rabbitmq.uri(queue="long-alarm", declare="on", heartbeat="120s"),
                          rabbitmq.uri(heartbeat="120s"), 2000,
                          FAKETIME_TIMESTAMP_FILE=str(clock), FAKETIME_NO_CACHE="1", **faketime())
        assert read_line(process) == "connected\n"
        wait_for(rabbitmq.blocked, "the alarm")
        clock.write_text("+40")
    finally:
        rabbitmq.alarm(False)
    ends_as_if_no_alarm_had_been(process)


# A message in hand for longer than the broker waits (test_amqp_source.c).
def test_the_consumer_timeout_is_survived(rabbitmq):
    rabbitmq.consumer_timeout(5000)
    try:
        done = subprocess.run([str(SOURCE), rabbitmq.uri(), "impatient"], capture_output=True, text=True,
                              timeout=PATIENCE)
    finally:
        rabbitmq.consumer_timeout(1800000)
    assert done.returncode == 0, done.stdout + done.stderr
