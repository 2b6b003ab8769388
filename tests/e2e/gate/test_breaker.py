"""A store that stops answering: after two requests have waited in vain one request each half second asks it, and all
others are answered, or run, at once."""
import statistics
import time

import pytest

import gate as g
from conftest import wait_until
from redis_server import Redis
from test_gate_more import STATUS, server, status

TIMEOUT = 2  # seconds that a claim waits for its store
DEAD, BACK = "does not answer, and is asked by one request", "answers again"


@pytest.fixture
def redis():
    redis = Redis().start()
    yield redis
    redis.end()


@pytest.fixture
def redis_gate(folder, redis, api, gates):
    def make(lines):
        folder.chmod(0o755)
        patient = f"location /hold/ {{ hapax_timeout 30s; proxy_pass http://127.0.0.1:{api.port}; }}"
        gates.append(g.Gate(folder, f"hapax_store {redis.uri()}; {lines}\n" + server(api, STATUS + patient)).start())
        return gates[-1]

    return make


def timed(connection, key):
    """A request on a connection that stays: its response, and the seconds it took."""
    began = time.monotonic()
    connection.send(g.request("POST", "/ok", key))
    return connection.response(), time.monotonic() - began


def die(gate, redis):
    """Two requests wait for a store that stopped; then the gate has found it dead."""
    redis.stop()
    began = time.monotonic()
    first = [gate.later("/ok", f"first{i}") for i in range(2)]
    answers = [call() for call in first]
    assert time.monotonic() - began >= TIMEOUT
    assert DEAD in gate.log()
    wait_until(lambda: status(gate)["store_dead"] == 1 or not gate.post("/ok", "more"), "a gauge that says so")
    return answers


def check_log(gate):
    lines = [DEAD if DEAD in line else BACK for line in gate.log().splitlines() if DEAD in line or BACK in line]
    assert lines == [DEAD, BACK] * (len(lines) // 2) and lines, "each is logged once, in turn"


def test_a_dead_store_is_asked_by_one_request_and_no_other_waits(redis_gate, redis, api):
    """Of 1,000 requests to a dead store all are 503, half of them in a fortieth of what a request waited before, and at
    most one each half second asks. What ran as the store died is stored when it is back, and the gate serves again."""
    gate = redis_gate(f"hapax_timeout {TIMEOUT}s; hapax_save_wait 100ms;")
    running = gate.later("/hold/d", "running")
    wait_until(lambda: api.count("running") == 1, "the attempt")
    assert {answer.problem for answer in die(gate, redis)} == {"store-unavailable"}
    before, began = status(gate), time.monotonic()
    with gate.connect() as connection:
        answers = [timed(connection, f"k{i}") for i in range(1000)]
    # one after the other, so that a probe keeps all others waiting, too
    probes = (time.monotonic() - began) / 0.5 + 1
    assert {(answer.status, answer.problem, answer.get("Retry-After")) for answer, _ in answers} == {
        (503, "store-unavailable", "1")}
    assert statistics.median(seconds for _, seconds in answers) < TIMEOUT / 40
    assert 1000 - probes <= status(gate)["unasked"] - before["unasked"] <= 1000
    api.door("d").set()
    assert running().get("Idempotency-Recorded") == "false"
    assert api.count("first0") == api.count("k0") == api.count("k999") == 0
    redis.cont()
    wait_until(lambda: gate.post("/ok", "k0").status == 200, "service")
    wait_until(lambda: gate.post("/hold/d", "running").replayed == "true", "the outcome of what ran")
    wait_until(lambda: status(gate)["store_dead"] == 0, "the store being found")
    assert api.count("k0") == api.count("running") == 1
    check_log(gate)


def test_a_dead_store_that_nobody_asks_is_said_to_be_for_a_while(redis_gate, redis):
    """5 s after the last request that waited in vain nobody knows how the store is, and the gauge is 0 by itself."""
    gate = redis_gate(f"hapax_timeout {TIMEOUT}s; hapax_save_wait 100ms;")
    die(gate, redis)
    wait_until(lambda: status(gate)["store_dead"] == 0, "the end of the gauge")
    assert BACK not in gate.log()


def test_open_pays_no_timeout_for_a_dead_store(redis_gate, redis, api):
    """on_store_error=open: requests run at once, unprotected and marked so, and leave nothing behind; with the store
    back keys hold again."""
    gate = redis_gate(f"hapax_timeout {TIMEOUT}s; hapax_save_wait 100ms; hapax_on_store_error open;")
    answers = die(gate, redis)
    with gate.connect() as connection:
        timings = [timed(connection, f"k{i}") for i in range(200)]
    answers += [answer for answer, _ in timings]
    assert {(answer.status, answer.get("Idempotency-Protected")) for answer in answers} == {(200, "false")}
    assert statistics.median(seconds for _, seconds in timings) < TIMEOUT / 40
    assert all(api.count(f"k{i}") == 1 for i in range(200))
    redis.cont()
    wait_until(lambda: gate.post("/ok", "new").get("Idempotency-Protected") is None, "protection")
    ran = api.count("new")
    assert gate.post("/ok", "new").replayed == "true" and api.count("new") == ran
    wait_until(lambda: status(gate)["in_flight"] == 0, "the end of all calls")
    check_log(gate)
