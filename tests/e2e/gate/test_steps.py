"""Steps of an operation: as operators see them, from SQL behind the gate and a consumer, and by the keeper's
protocol."""
import base64
import hashlib
import hmac
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import urllib.parse
import urllib.request

import psycopg2
import psycopg2.errors
import pytest

import gate as g
import pg
import rabbit
from conftest import BUILD, PATIENCE, ROOT, end, read_line, wait_until

ORDER = BUILD / "examples/order"
with_embedded = pytest.mark.skipif(not ORDER.exists(), reason="built without RocksDB")


# ---- the command line ----------------------------------------------------------------------


def promised():
    """(words, what they print) of the lines in the head of examples/order.c."""
    head = (ROOT / "examples/order.c").read_text().split("#include")[0]
    lines = re.findall(r"^ \*     (order .*?)   +(\S.*)$", head, re.M)
    counts = re.findall(r"^ \*     (charged .*)$", head, re.M)
    assert len(lines) == len(counts) == 3
    return [(line.split()[1:], f"{printed}\n{count}\n") for (line, printed), count in zip(lines, counts)]


@with_embedded
def test_the_classic_partial_failure(hapax):
    """examples/order.c: charged, not reserved; the retry reserves and does not charge again. As its head says."""
    for words, printed in promised():
        assert hapax.run(ORDER, *words).out == printed
    assert (hapax.folder / "charges.txt").read_text() == "order-17:charge\n"


@with_embedded
def test_show_prints_an_operation_with_its_steps(hapax):
    """Below the operation, in the order they were first run; nested with --json; the list itself is nowhere."""
    for words, _ in promised():
        hapax.run(ORDER, *words)
    there = ("--store", "rocksdb:order.db", "--scope", "orders")
    shown = hapax("show", *there, "order-17").out.splitlines()
    assert shown[-4].split() == ["STATE", "ATTEMPT", "STATUS", "CREATED", "UPDATED", "STEP"]
    assert [(w[0], w[1], w[2], w[-1]) for w in map(str.split, shown[-3:])] == [
        ("completed", "1", "201", "charge"), ("completed", "2", "201", "reserve"), ("completed", "1", "201", "mail")]
    record = hapax("show", "--json", *there, "order-17").json
    assert [step["step"] for step in record["steps"]] == ["charge", "reserve", "mail"]
    assert record["steps"][0]["body"] == "order-17:charge"
    step = hapax("show", "--json", *there, "--step", "charge", "order-17").json
    assert step == {**{name: value for name, value in record["steps"][0].items() if name != "step"},
                    "steps": None, "now_us": step["now_us"]}
    assert hapax("show", "--json", "--store", "rocksdb:order.db", "--id", record["id"]).json["steps"] is None
    listed = hapax("list", "--json", "--store", "rocksdb:order.db").lines
    assert {line["id"] for line in listed} == {record["id"], *(step["id"] for step in record["steps"])}
    assert hapax("show", *there, "order-18").code == 1


@with_embedded
def test_an_operator_completes_a_step(hapax):
    """A step that cannot be done is resolved by an operator. The retry goes on behind it, with the given outcome."""
    hapax.run(ORDER, "k", 0)
    there = ("--store", "rocksdb:order.db", "--scope", "orders", "--step", "reserve", "k")
    assert hapax("resolve", *there, "--complete", 201, "--by", "ops").code == 0
    assert hapax.run(ORDER, "k", 0).out == ("fresh: ordered (charge replay, reserve replay, mail fresh)\n"
                                            "charged 1, reserved 0, mailed 1\n")
    assert hapax("show", "--json", *there).json["resolved_by"] == "ops"


# ---- SQL -----------------------------------------------------------------------------------


@pytest.fixture
def db():
    db = pg.Database(pg.server())
    db.run((ROOT / "examples/orders.sql").read_text())
    return db


def begin(db, key="k", scope="s", **more):
    words = "".join(f", {name} => %s" for name in more)
    return db.run(f"SELECT verdict, token FROM hapax.begin(%s, %s{words})", scope, key, *more.values())[0]


def step(db, token, name, key="k", scope="s", **more):
    columns = "verdict", "body", "attempt", "stale", "step_token", "step_key"
    row = db.run(f"SELECT {', '.join(columns)} FROM hapax.step_begin(%s, %s, %s, %s" +
                 "".join(f", {word} => %s" for word in more) + ")", token, scope, key, name, *more.values())[0]
    return dict(zip(columns, row))


def complete(db, token, body="done", what="step_complete"):
    return db.run(f"SELECT verdict, convert_from(body, 'UTF8') FROM hapax.{what}(%s, 201, body => %s)",
                  token, body.encode())[0]


def test_a_step_is_begun_and_completed_in_sql(db):
    """Claimed once, completed once; a later attempt of the operation is given the outcome; hapax show finds it."""
    _, token = begin(db)
    first = step(db, token, "charge")
    assert (first["verdict"], first["attempt"], first["step_key"]) == ("claimed", 1, "k:charge")
    assert step(db, token, "charge")["verdict"] == "in_flight"
    assert complete(db, first["step_token"], "receipt") == ("ok", "receipt")
    assert step(db, token, "reserve")["verdict"] == "claimed"
    db.run("SELECT FROM hapax.fail(%s)", token)
    verdict, again = begin(db)
    assert verdict == "claimed"
    assert bytes(step(db, again, "charge")["body"]) == b"receipt"
    assert db.run("SELECT convert_from(body, 'UTF8') FROM hapax.operations WHERE fingerprint = hapax.digest('hapax', "
                  "'step') ORDER BY created_us") == [("charge",), ("reserve",)]


def test_hapax_show_and_resolve_know_the_steps_of_sql(db, hapax):
    """The list that step_begin() writes is the one that the command line reads."""
    _, token = begin(db)
    complete(db, step(db, token, "charge")["step_token"], "receipt")
    held = step(db, token, "reserve")["step_token"]
    assert db.run("SELECT verdict FROM hapax.step_fail(%s, as_unknown => true)", held) == [("ok",)]
    record = hapax("show", "--json", "--store", db.uri, "--scope", "s", "k").json
    assert [(s["step"], s["state"]) for s in record["steps"]] == [("charge", "completed"), ("reserve", "unknown")]
    assert step(db, token, "reserve")["verdict"] == "unknown"
    assert hapax("resolve", "--store", db.uri, "--scope", "s", "--step", "reserve", "k", "--complete", 200).code == 0
    assert step(db, token, "reserve")["verdict"] == "completed"
    assert len(hapax("list", "--json", "--store", db.uri).lines) == 3


def test_a_zombie_begins_no_step(db):
    """Whose claim was lost is told so by HX001; so is nobody with another operation's token, or a name that is ours."""
    _, token = begin(db, lease="1ms")
    wait_until(lambda: begin(db)[0] == "claimed", "the lease being over")
    with pytest.raises(psycopg2.Error) as lost:
        step(db, token, "charge")
    assert lost.value.pgcode == "HX001"
    _, other = begin(db, "other")
    for key, name in (("k", "charge"), ("other", ".1"), ("other", ""), ("other", "a:b"), ("other", "s" * 65)):
        with pytest.raises(psycopg2.errors.InvalidParameterValue):
            step(db, other, name, key)
    with pytest.raises(psycopg2.errors.InvalidParameterValue):
        begin(db, step=".1")


def test_a_step_is_committed_with_its_transaction_or_not_at_all(db):
    """Begun and completed in one transaction that is rolled back: it never was, and is not listed."""
    _, token = begin(db)
    conn = db.connect()
    with conn.cursor() as cursor:
        cursor.execute("SELECT step_token FROM hapax.step_begin(%s, 's', 'k', 'charge')", (token,))
        cursor.execute("SELECT FROM hapax.step_complete(%s)", cursor.fetchone())
    conn.rollback()
    conn.close()
    assert db.one("SELECT count(*) FROM hapax.operations WHERE scope = 's'") == 1
    assert step(db, token, "charge")["attempt"] == 1


def test_a_step_that_may_be_forgotten_is_unknown(db, hapax):
    """An operation older than its steps are kept: an absent step is not run, until an operator says that it was not."""
    _, token = begin(db)
    db.run("SELECT FROM hapax.fail(%s)", token)
    _, token = begin(db)
    db.run("UPDATE hapax.operations SET created_us = created_us - 86401 * 1000000::bigint")
    assert step(db, token, "charge")["verdict"] == "unknown"
    assert step(db, token, "charge")["verdict"] == "unknown"
    assert hapax("resolve", "--store", db.uri, "--scope", "s", "--step", "charge", "k", "--fail").code == 0
    assert step(db, token, "charge")["verdict"] == "claimed"


# ---- behind the gate -----------------------------------------------------------------------


class Upstream:
    """The orders API, on one port however often it dies."""

    def __init__(self, db, program, lease="1s"):
        self.db, self.program, self.port, self.lease = db, program, g.free_port(), lease
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, self.program, str(self.port), self.db.conninfo(), self.lease],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "orders:" in read_line(self.process)

    def revive(self):
        if self.process.poll() is not None:
            assert self.process.returncode == -signal.SIGKILL
            self.process.stdout.close()
            self.start()

    def stop(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def served(hapax, db, folder, request):
    """(post(key, query), the API) behind hapax serve as the example's head says; the parameter is the leases'
    length."""
    folder.chmod(0o755)
    lease = getattr(request, "param", "30s")
    api = Upstream(db, ROOT / "tests/e2e/gate/step_upstream.py", lease)
    port = g.free_port()
    serve = hapax.start("serve", "--upstream", f"http://127.0.0.1:{api.port}",
                        "--listen", f"127.0.0.1:{port}", "--store",
                        db.uri, "--module", g.MODULE, "--pass-token", "on",
                        "--lease", lease, "--run-max", "1h", "--timeout", "30s",
                        stderr=subprocess.DEVNULL)
    assert read_line(serve)

    def post(key, query=""):
        with g.Connection(port) as connection:
            connection.send(g.request("POST", f"/orders{query}", key, b'{"item": "lamp"}'))
            return connection.response()

    yield post, api
    serve.terminate()
    assert serve.wait(PATIENCE) == 0
    api.stop()


def calls(db):
    return dict(db.run("SELECT service, count(*) FROM calls GROUP BY service"))


def test_an_order_goes_on_where_it_was(served, db, hapax):
    """examples/order_pg.py: charged, out of stock; the retry reserves and mails, and does not charge again."""
    post, _ = served
    assert post("order-17").status == 500
    assert calls(db) == {"charge": 1}
    db.run("UPDATE stock SET left_over = 1")
    first, second = post("order-17"), post("order-17")
    assert (first.status, second.status, second.replayed) == (201, 201, "true") and first.body == second.body
    assert calls(db) == {"charge": 1, "reserve": 1, "mail": 1}
    steps = hapax("show", "--json", "--store", db.uri, "order-17").json["steps"]
    assert [s["step"] for s in steps] == ["charge", "reserve", "mail"]


# each death is waited out; nobody else asks, so that none is too short
@pytest.mark.parametrize("served", ["1s"], indirect=True, ids=["killed"])
def test_an_api_killed_between_and_inside_steps(served, db, folder):  # promise 42
    """kill -9 at points drawn at random, each order repeated until it is answered: each service has done its part once,
    and was called again only where the API died between the call and its completion."""
    post, api = served
    rounds = max(int(os.environ.get("HAPAX_CRASH_ROUNDS", 24)) // 4, 6)
    seed = int(os.environ.get("HAPAX_CRASH_SEED", random.randrange(1 << 32)))
    draw = random.Random(seed)
    db.run("UPDATE stock SET left_over = %s", rounds)
    again = {"charge": 0, "reserve": 0, "mail": 0}
    for number in range(rounds):
        name, where = draw.choice(list(again)), draw.choice(["begun", "called"])
        again[name] += where == "called"
        query, answers = f"?die={name}:{where}&once={folder}/{number}", []

        def answered():
            answers.append(post(f"k{number}", query))
            if answers[-1].status == 502:
                api.process.wait(PATIENCE)
            api.revive()
            return answers[-1].status == 201

        wait_until(answered, f"{query} (HAPAX_CRASH_SEED={seed})")
    assert dict(db.run("SELECT service, count(*) FROM effects GROUP BY service")) == dict.fromkeys(again, rounds), seed
    assert calls(db) == {name: rounds + more for name, more in again.items()}, seed


# ---- behind a consumer ---------------------------------------------------------------------


def test_an_order_behind_a_consumer(hapax, db):
    """The worked example of docs/steps.md: the API and the command that are started there, and the counts it shows."""
    page = (ROOT / "docs/steps.md").read_text().split("## Behind a consumer")[1].split("\n## ")[0]
    command = re.search(r"^\$ hapax consume (.*) &$", page, re.M).group(1)
    charged, whole = map(json.loads, re.findall(r"^{.*}$", page, re.M))
    assert re.search(r"```python\n(.*?)```", page, re.S).group(1) in (ROOT / "examples/order_pg.py").read_text()
    queue, port = rabbit.Queue(rabbit.server()), g.free_port()
    api = subprocess.Popen([ROOT / "examples/order_pg.py", str(port), db.conninfo()], stdout=subprocess.PIPE, text=True)

    def counts():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/orders", timeout=PATIENCE) as answer:
            return json.load(answer)

    try:
        assert read_line(api) == f"orders: http://127.0.0.1:{port}\n"
        for word, ours in [("'amqp://localhost/?queue=orders'", queue.uri()), (":9000", f":{port}"),
                           ("postgres://localhost/shop", db.uri)]:
            assert command.count(word) == 1
            command = command.replace(word, ours)
        assert read_line(hapax.start("consume", *command.split(), stderr=subprocess.DEVNULL))
        queue.publish('{"item": "lamp"}', id="order-17")
        wait_until(lambda: hapax("show", "--store", db.uri, "order-17").out.count("failed") >= 2,
                   "the order, and the step reserve, failing")
        assert counts() == charged
        db.run("UPDATE stock SET left_over = 1")
        wait_until(lambda: not queue.left(), "the message being done")
        assert counts() == whole
    finally:
        api.kill()
        api.communicate()


@pytest.mark.parametrize("key", [
    pytest.param('a"b\\c%41', id="quotes"), pytest.param("order-17", id="plain", marks=pytest.mark.ci),
    pytest.param("h\u00e9llo", id="utf8", marks=pytest.mark.ci),
    pytest.param("\u00e9" * 127, id="long", marks=pytest.mark.ci)])
def test_a_redelivered_message_goes_on_where_it_was(hapax, db, folder, key):
    """examples/order_pg.py behind hapax consume, whatever bytes the key has: killed between two steps, and the consumer
    with it; the redelivered message finds what was done, and each service is called once. A repeat calls none."""
    queue, api = rabbit.Queue(rabbit.server()), Upstream(db, ROOT / "tests/e2e/gate/step_upstream.py")
    to = f"http://127.0.0.1:{api.port}/orders?die=reserve:begun&once={folder}/died"

    def consumer():
        return rabbit.Consumer(hapax, queue.uri(), to, db.uri, "--scope",
                               "default", "--pass-token", "on", "--lease", "3s",
                               "--retry", "1s..1s", stderr=subprocess.DEVNULL)

    try:
        db.run("UPDATE stock SET left_over = 1")
        first = consumer()
        queue.publish('{"item": "lamp"}', id=key)
        assert api.process.wait(PATIENCE) == -signal.SIGKILL
        assert calls(db) == {"charge": 1}
        assert end(first.process, signal.SIGKILL) == -signal.SIGKILL
        api.revive()
        second = consumer()
        wait_until(lambda: not queue.left(), "the message being done")
        queue.publish('{"item": "lamp"}', id=key)
        second.wait_metric("hapax_consumer_acknowledged_total", 2)
        assert second.metric('hapax_answers_total{answer="replay"}') == 1
        assert end(second.process) == 0
    finally:
        api.stop()
    wait_until(lambda: not queue.left(), "the last acknowledgement being taken in")
    assert dict(db.run("SELECT service, key FROM calls")) == {name: step_key(key, name)
                                                              for name in ("charge", "reserve", "mail")}
    assert calls(db) == {"charge": 1, "reserve": 1, "mail": 1}
    record = hapax("show", "--json", "--store", db.uri, key).json
    assert record["state"] == "completed" and record["attempt"] > 1
    assert [(s["step"], s["attempt"]) for s in record["steps"]] == [("charge", 1), ("reserve", 2), ("mail", 1)]


def step_key(key, name):
    text = f"{key}:{name}".encode()
    return text.decode() if len(text) <= 255 else "sha256-" + hashlib.sha256(text).hexdigest()


# ---- the keeper's protocol -----------------------------------------------------------------


def part(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack(">I", len(data)) + data


def step_id(scope, key, name=""):
    """As docs/keeper.md, "Steps", says."""
    return hashlib.sha256(part(scope) + part(key) + (part(name) if name else b"")).digest()


class Keeper:
    """A client of the keeper's protocol, in as little as it takes: docs/keeper.md."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path))
        self.seq = 0
        self.send(1, b"hpxk" + struct.pack(">HI", 4, 20 << 20))
        assert self.receive()[0] == 2

    def send(self, kind, payload):
        self.socket.sendall(struct.pack(">IB", 1 + len(payload), kind) + payload)

    def exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.socket.recv(n - len(data))
            assert more
            data += more
        return data

    def receive(self):
        length, kind = struct.unpack(">IB", self.exactly(5))
        return kind, self.exactly(length - 1)

    def run(self, kind, fields):
        """One op: (verdict, the record's body)."""
        self.seq += 1
        op = struct.pack(">IB", 1 + len(fields), kind) + fields
        self.send(3, struct.pack(">IIH", self.seq, 10000, 1) + op)
        kind, reply = self.receive()
        seq, first, count, length, verdict, error, differs, parts, now = struct.unpack(">IHHIBBBBQ", reply[:24])
        assert (kind, seq, first, count, error) == (4, self.seq, 0, 1, 0)
        body = b""
        if parts & 1 and not parts & 16:
            record = reply[24 + 32 + 4:]
            self.fingerprint, self.caller = record[85:117], record[117:149]
            at = 5 + 8 + 8 + 6 * 8 + 16 + 32 + 32
            for width in (1, 1, 1, 4, 4):
                size = int.from_bytes(record[at:at + width], "big")
                body, at = record[at + width:at + width + size], at + width + size
        self.answer = reply[24:]
        return {1: "claimed", 2: "in_flight", 3: "completed", 7: "ok"}.get(verdict, verdict), body

    def claim(self, id, token, fingerprint, caller, scope, retention_ms=86400000):
        return self.run(1, id + token + fingerprint + caller + struct.pack(">QQBIB", 30000, retention_ms, 1, 0, 0) +
                        bytes([len(scope)]) + scope.encode() + b"\0")

    def complete(self, id, token, body, status=201):
        return self.run(3, id + token + bytes(64) + struct.pack(">HBI", status, 1, 0) + struct.pack(">I", len(body)) +
                        body)

    def renew(self, id, token):
        return self.run(2, id + token + bytes(64) + struct.pack(">QBI", 30000, 0, 0))[0]


@with_embedded
def test_a_step_by_the_keepers_protocol(hapax):
    """A client in another language: claims an operation and a step of it, lists and completes it; hapax shows them, and
    a second client is given the step's outcome."""
    keeper = hapax.start("keep", "--store", "rocksdb:s")
    assert read_line(keeper)
    client = Keeper(hapax.folder / "s/keeper.sock")
    fingerprint, nobody = hashlib.sha256(b"an order").digest(), bytes(32)
    ours = hashlib.sha256(struct.pack(">Q", 5) + b"hapax" + struct.pack(">Q", 4) + b"step").digest()
    tokens = [os.urandom(16) for _ in range(3)]
    charge, place = step_id("default", "order-17", "charge"), step_id("default", "order-17", ".1")
    assert client.claim(step_id("default", "order-17"), tokens[0], fingerprint, nobody, "default") == ("claimed", b"")
    assert client.claim(charge, tokens[1], fingerprint, nobody, "default") == ("claimed", b"")
    assert client.claim(place, tokens[2], ours, nobody, "default") == ("claimed", b"")
    assert client.complete(place, tokens[2], b"charge", 0)[0] == "ok"
    assert client.complete(charge, tokens[1], b"receipt")[0] == "ok"
    for states, count in [(0, 3), (2, 1), (4, 2), (8, 0), (16, 0), (2 + 4, 3)]:
        client.run(6, struct.pack(">BQH", states, 0, 1000) + bytes(32) + b"\0\0")
        assert struct.unpack(">H", client.answer[32:34]) == (count,)
    assert Keeper(hapax.folder / "s/keeper.sock").claim(charge, os.urandom(16), fingerprint, nobody, "default") == (
        "completed", b"receipt")
    shown = hapax("show", "--json", "--store", "rocksdb:s", "order-17").json
    assert (shown["state"], [(s["step"], s["body"]) for s in shown["steps"]]) == ("started", [("charge", "receipt")])


@with_embedded
def test_a_step_behind_a_consumer_by_the_keepers_protocol(hapax):
    """A handler in another language, told no more than docs/steps.md says, of a key that is no text: its first attempt
    does the step and fails, its second is given what came of it."""
    queue, scope, key, verdicts = rabbit.Queue(rabbit.server()), "orders", b"\xff\x00k", []

    def answers(_):
        headers = handler.calls[-1][1]
        both = base64.urlsafe_b64decode(headers["Idempotency-Token"])
        client, id, token = Keeper(hapax.folder / "s/keeper.sock"), both[:32], both[32:]
        assert id == step_id(scope, urllib.parse.unquote_to_bytes(headers["Hapax-Key"])) == step_id(scope, key)
        assert client.renew(id, token) == "ok"
        charge, ours = step_id(scope, key, "charge"), os.urandom(16)
        verdicts.append(client.claim(charge, ours, client.fingerprint, client.caller, scope))
        if verdicts[-1][0] == "completed":
            return 200
        assert client.renew(id, token) == "ok"
        assert client.complete(charge, ours, b"receipt")[0] == "ok"
        return 500

    handler = rabbit.Handler(answers)
    try:
        consumer = rabbit.Consumer(hapax, queue.uri(), handler.url, "rocksdb:s", "--scope", scope, "--key", "x-key",
                                   "--pass-token", "on", "--retry", "1s..1s", stderr=subprocess.DEVNULL)
        queue.publish("m", **{"x-key": key})
        wait_until(lambda: not queue.left(), "the message being done")
        assert verdicts == [("claimed", b""), ("completed", b"receipt")]
        shown = hapax("show", "--json", "--store", "rocksdb:s", "--id", step_id(scope, key, "charge").hex()).json
        assert (shown["state"], shown["attempt"], shown["body"]) == ("completed", 1, "receipt")
        assert end(consumer.process) == 0
    finally:
        handler.close()


def test_the_ids_in_the_keepers_page():
    """docs/keeper.md shows the id of a step byte by byte; they are what its own rule gives."""
    page = (ROOT / "docs/keeper.md").read_text()
    text = re.search(r"```hex STEP\n(.*?)```", page, re.S).group(1)
    lines = [re.sub(r";.*", "", line).replace(" ", "") for line in text.splitlines()]
    data = bytes.fromhex("".join(lines[:-2]))
    assert data == part("orders") + part("order-17") + part("charge")
    assert "".join(lines[-2:]) == hashlib.sha256(data).hexdigest()
    text = re.search(r"```hex OWNED\n(.*?)```", page, re.S).group(1)
    lines = [re.sub(r";.*", "", line).replace(" ", "") for line in text.splitlines()]
    data = bytes.fromhex("".join(lines[:-2]))
    assert data == part("") + part("acme") + part("default") + part("k")
    assert "".join(lines[-2:]) == hashlib.sha256(data).hexdigest()
    text = re.search(r"```hex UNDER\n(.*?)```", page, re.S).group(1)
    lines = [re.sub(r";.*", "", line).replace(" ", "") for line in text.splitlines()]
    data = bytes.fromhex("".join(lines[:-2]))
    assert data == b"fingerprint" + bytes(range(0x40, 0x60))
    assert "".join(lines[-2:]) == hmac.new(b"s", data, "sha256").hexdigest()
