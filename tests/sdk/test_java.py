"""sdk/java: what it does without a door, its filter and its annotation in an application of Spring Boot and its example
behind a real door, its helper on a PostgreSQL, its jars.

What the SDKs have in common is in test_cases.py, which runs the driver of sdk/java too. ci_spring.py has what .ci/run
plays besides: brokers, the cases of draft-07, a storm.
"""
import concurrent.futures
import functools
import hashlib
import json
import pathlib
import subprocess

import pytest

import pg
from conftest import PATIENCE, ROOT, Command, wait_until
from doors import Door, Store
from played import HOW, Between
from test_go import Api

JVM = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@functools.cache
def spring():
    """The folder of Spring's jars."""
    done = subprocess.run([ROOT / "tools/spring/fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1000)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The jars, made and tried in a clean environment; and the programs of the tests. A classpath."""
    into = tmp_path_factory.mktemp("java")
    done = subprocess.run([ROOT / "sdk/java/package", into / "jars"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (into / "tests").mkdir()
    path = f"{into}/jars/*:{spring()}/*:/usr/share/java/postgresql.jar:{into}/tests"
    programs = [ROOT / f"tests/sdk/java/{name}.java" for name in ("Checks", "Complete", "Played", "Servlets", "Shop")]
    words = ["javac", *(f"-J{word}" for word in JVM[1:]), "-parameters", "-proc:none", "-Werror", "-cp", path,
             "-Xlint:all,-classfile,-processing", "-d", into / "tests", *programs]
    subprocess.run(words, check=True, timeout=PATIENCE)
    return path


def shop(made, **properties):
    """The words that start the application: nothing of it but what the properties ask for."""
    unused = "" if {"shop.kafka", "shop.rabbit"} & set(properties) else ",".join(
        f"org.springframework.boot.autoconfigure.{name}AutoConfiguration" for name in (
            "amqp.Rabbit", "kafka.Kafka", "jmx.Jmx", "task.TaskScheduling"))
    said = {"server.port": 0, "server.address": "127.0.0.1", "logging.level.root": "error",
            "spring.main.banner-mode": "off", "spring.autoconfigure.exclude": unused, **properties}
    return [*JVM, "-Xshare:auto", "-cp", made, "Shop", *(f"--{name}={value}" for name, value in said.items())]


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    command = Command(tmp_path_factory.mktemp("run"))
    yield command
    for process in command.processes:
        process.terminate()
        process.communicate()


def all_is_as_it_should_be(made, program, **hashed):
    said = [f"-D{name}={hashlib.sha256(text).hexdigest()}" for name, text in hashed.items()]
    done = subprocess.run([*JVM, *said, "-cp", made, program], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stdout + done.stderr


def test_without_a_door(made):
    """JSON, attempts, keys of steps, the client and its problems (Checks.java says each claim)."""
    all_is_as_it_should_be(made, "Checks", **{"long.key": b"k" * 250 + b":abcde", "key.128": b"\0\x80:debit",
                                              "key.129": b"\0\x81:debit"})


def test_with_a_played_door(made):
    """What is over a limit, refused or broken ends its own call, and says whether anything ran (Played.java)."""
    all_is_as_it_should_be(made, "Played")


@pytest.fixture(scope="module")
def api(made, command):
    """The application, with the filter before some of its paths."""
    return Api(command, *shop(made, **{
        "hapax.filter.url-patterns": "/payments,/odd/*,/orders/*", "hapax.filter.scope": "payments",
        "hapax.filter.policy.key": "required", "hapax.filter.policy.on_expired": "hold"}))


def test_a_filter_runs_once(api):
    """The first request runs; a repeat gets its response, byte for byte, and a mismatch a problem."""
    answers = [api("/payments", {"amount": 1999}, Idempotency_Key="order-1") for _ in range(2)]
    assert [a.status for a in answers] == [201, 201]
    assert [a.headers["Idempotency-Replayed"] for a in answers] == ["false", "true"]
    assert answers[0].text == answers[1].text == "charge order-1 ü (effect 1)\n"
    assert answers[1].headers["Location"] == "/payments/1"
    assert api("/payments", {"amount": 5}, Idempotency_Key="order-1").problem == "fingerprint-mismatch"
    assert api("/payments", {"amount": 1999}, Idempotency_Key="order-1", Cookie="a=b").problem == "caller-mismatch"
    assert api("/payments", {"amount": 5}).problem == "missing-key"
    assert api("/payments", {"amount": 5}, Idempotency_Key='"a').problem == "bad-key"
    refused = [api("/payments", {"amount": 0}, Idempotency_Key="zero") for _ in range(2)]
    assert [a.status for a in refused] == [400, 400] and refused[0].text == refused[1].text
    assert api("/payments", {"amount": 13}, Idempotency_Key="odd").status == 500
    assert api("/payments", {"amount": 13}, Idempotency_Key="odd").problem == "unknown-outcome"  # under hold


@pytest.mark.ci
def test_a_response_over_the_limit(api):
    """It is passed on whole, once, and then it is gone. A client that had a part of it alone leaves it unknown."""
    first = api("/payments", {"amount": 17}, Idempotency_Key="large")
    assert (first.status, first.headers["X-Part"], len(first.bytes)) == (200, "first", 17 << 20)
    assert api("/payments", {"amount": 17}, Idempotency_Key="large").problem == "response-not-kept"
    api.leave("/payments", {"amount": 17}, Idempotency_Key="cut")
    wait_until(lambda: api("/payments", {"amount": 17}, Idempotency_Key="cut").problem == "unknown-outcome",
               "the servlet's end")


PLAIN = "text/plain;charset=ISO-8859-1"


@pytest.mark.some(1)
@pytest.mark.parametrize("how, status, headers, body", [
    ("cookies", 200, {"Set-Cookie": ["card=7; HttpOnly; Max-Age=60; Path=/p; SameSite=Lax; Secure", "plain="]}, b"set"),
    ("dates", 200, {"Expires": ["Sun, 04 Jan 1970 00:00:00 GMT"], "X-Left": ["3", "4"], "Content-Length": ["0"],
                    "X-None": []}, b""),
    ("redirected", 302, {"Location": ["/elsewhere"], "X-Late": []}, b""),
    ("refused", 418, {"Content-Type": []}, b""),
    ("encoded", 200, {"Content-Type": ["text/html;charset=UTF-8"]}, "ü".encode()),
    ("encoded-late", 200, {"Content-Type": ["text/html;charset=ISO-8859-1"]}, "üö".encode("latin-1")),
    ("typed-twice", 200, {"Content-Type": ["text/plain;charset=utf-8"]}, "ü".encode()),
    ("flushed", 200, {"X-Late": ["1"]}, b"first, last"),
    ("begun-anew", 200, {"Content-Type": []}, b"yes"),
    ("none", 204, {"Content-Length": [], "Transfer-Encoding": []}, b""),
    ("unchanged", 304, {"Content-Length": [], "Transfer-Encoding": []}, b""),
    ("localized", 200, {"Content-Language": ["fr-FR"]}, b""),
    ("later", 202, {}, b"later"),
    ("later-at-once", 200, {}, b""),
    ("dispatched", 200, {"Content-Type": ["text/html;charset=UTF-8"]}, "ü".encode()),
    ("dispatched-and-late", 202, {}, b"later"),
    ("late-and-answered", 202, {}, b"in time"),
])
def test_a_filter_keeps_what_a_servlet_says(api, how, status, headers, body):
    """A response is what a servlet container would have made of it. Its repeat is the same but for cookies, which
    belong to one caller and are in no stored response of any door."""
    for replayed in ("false", "true"):
        if replayed == "true" and "Set-Cookie" in headers:
            headers = {"Set-Cookie": []}
        answer = api(f"/odd/{how}", {}, Idempotency_Key=how)
        said = {name: answer.headers.get_all(name, []) for name in headers}
        assert (answer.headers["Idempotency-Replayed"], answer.status, answer.bytes, said) == (
            replayed, status, body, headers)


def test_no_hook_for_requests(api):
    """An option with a reconcile hook is refused, and nothing runs."""
    answer = api("/odd/flushed", {}, Idempotency_Key="hook", X_Asks="1")
    assert (answer.status, answer.headers["Idempotency-Replayed"]) == (500, None) and b"first" not in answer.bytes


@pytest.mark.ci
def test_a_door_that_ends(made, command, folder):
    """It takes no request: 503 with Retry-After, and nothing runs."""
    door = Door(Store("memory", folder), folder)
    between = Between(folder / "between.sock", door.socket, HOW["ending"]())
    try:
        api = Api(command, *shop(made, **{"hapax.filter.url-patterns": "/payments",
                                          "hapax.address": f"unix:{folder}/between.sock"}))
        answer = api("/payments", {"amount": 5}, Idempotency_Key="k")
        assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (503, "store-unavailable", "1")
    finally:
        between.close()
        door.close()


def test_a_response_that_the_door_refuses(api):
    """It is lost, and its client is not told that nothing ran."""
    answer = api("/odd/many", {}, Idempotency_Key="many")
    assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (502, "upstream-failed", "1")
    wait_until(lambda: api("/odd/many", {}, Idempotency_Key="many").problem == "unknown-outcome", "the end of it")


@pytest.mark.parametrize("how", ["late", "late-and-thrown", "dispatched-elsewhere"])
def test_a_filter_keeps_no_response_that_never_comes(api, how):
    """Asynchronous handling that is over its time, whose begin fails, or that goes where no filter is, is 500. What it
    began may go on: the outcome is unknown, so nothing reruns under hold."""
    assert api(f"/odd/{how}", {}, Idempotency_Key=how).status == 500
    wait_until(lambda: api(f"/odd/{how}", {}, Idempotency_Key=how).problem == "unknown-outcome", "the end of it")


# ---- Spring ----------------------------------------------------------------------------


def test_the_starter_filters_by_properties(api):
    """A controller runs once; a repeat gets its response, a mismatch 422, and what throws counts as failed."""
    answers = [api("/orders", {"amount": 5}, Idempotency_Key="spring-1", Content_Type="application/json")
               for _ in range(2)]
    assert [(a.status, a.headers["Idempotency-Replayed"]) for a in answers] == [(201, "false"), (201, "true")]
    assert answers[0].text == answers[1].text and answers[1].headers["Location"] == "/orders/spring-1"
    answer = api("/orders", {"amount": 6}, Idempotency_Key="spring-1", Content_Type="application/json")
    assert (answer.status, answer.problem) == (422, "fingerprint-mismatch")
    effects = api("/effects", method="GET").text
    odd = [api("/orders", {"amount": 13}, Idempotency_Key="spring-2", Content_Type="application/json")
           for _ in range(2)]
    assert [a.status for a in odd] == [500, 409] and odd[1].problem == "unknown-outcome"  # under hold
    later = [api("/orders/later", {}, Idempotency_Key="spring-3") for _ in range(2)]
    assert [(a.status, a.headers["Idempotency-Replayed"]) for a in later] == [(200, "false"), (200, "true")]
    assert later[0].text == later[1].text == api("/effects", method="GET").text == str(int(effects) + 1)
    owned = [api("/orders", {"amount": 5}, Idempotency_Key="spring-1", Content_Type="application/json", X_Owner=owner)
             for owner in ("a", "b", "a")]
    assert [a.headers["Idempotency-Replayed"] for a in owned] == ["false", "false", "true"]


def test_a_method_runs_once(api):
    """@Idempotent: its result is kept in its own type; a mismatch and an attempt in flight are exceptions."""
    def call(amount, key="call-1", path="/calls"):
        return api(path, {"id": key, "amount": amount}, Content_Type="application/json")

    answers = [call(5) for _ in range(2)]
    assert [a.status for a in answers] == [200, 200] and answers[0].text == answers[1].text
    assert json.loads(answers[0].text)[0]["id"] == "call-1"  # the operation's key, by its Op
    assert call(6).text == "mismatch fingerprint"
    effects = int(api("/effects", method="GET").text)
    assert [call(13, "call-2").text for _ in range(2)] == ["thirteen"] * 2  # it failed, and runs again
    assert call(5, "").text.startswith("the key #order.id of ")
    assert call(5, "x", "/calls/later/x").text.startswith("a result that is not there yet cannot be kept")
    assert int(api("/effects", method="GET").text) == effects


def test_what_is_stored_was_committed(api):
    """@Idempotent is around @Transactional: where the commit fails nothing is stored, and the method runs again."""
    effects = int(api("/effects", method="GET").text)
    answers = [api("/calls/commit/c", {}) for _ in range(3)]
    assert [(a.status, a.text) for a in answers] == [(500, "no commit"), (200, ""), (200, "")]
    assert int(api("/effects", method="GET").text) == effects + 2


def test_requests_in_flight(api):
    """While one runs another with its key gets 409, by filter and by method; then both have its result."""
    def post(path):
        return api(path, {"id": "held", "amount": 77}, Idempotency_Key="held", Content_Type="application/json")

    effects = int(api("/effects", method="GET").text)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        sent = [pool.submit(post, path) for path in ("/orders", "/calls")]
        wait_until(lambda: int(api("/effects", method="GET").text) == effects + 2, "both being under way")
        again = [post(path) for path in ("/orders", "/calls")]
        api("/go", method="GET")
        first = [one.result() for one in sent]
    assert [(a.status, a.problem or a.text) for a in again] == [(409, "in-flight"), (409, "in_flight ")]
    assert [a.status for a in first] == [201, 200]
    again = [post(path) for path in ("/orders", "/calls")]
    assert [a.text for a in again] == [a.text for a in first]
    assert int(api("/effects", method="GET").text) == effects + 2


def test_the_example(made, command):
    """A refund has two steps, each once; a second call replays the whole."""
    api = Api(command, *JVM, "-cp", made, ROOT / "sdk/java/example/Payments.java", 0)
    first, second = (api("/refunds/order-9") for _ in range(2))
    assert first.status == 200 and first.text == second.text
    assert api("/effects", method="GET").text == "refund order-9:refund\nmail order-9:mail\n"


def test_complete_in_a_transaction(made):
    """Rows and outcome are committed together; after a lost claim neither is."""
    database = pg.Database(pg.server())
    database.run("CREATE TABLE IF NOT EXISTS payments (amount integer)")
    url = f"jdbc:postgresql://127.0.0.1:{database.server.port}/{database.name}?user=postgres"
    before = database.one("SELECT count(*) FROM payments")

    def complete(token):
        return subprocess.run([*JVM, "-cp", made, "Complete", url, token], capture_output=True, text=True,
                              timeout=PATIENCE).stdout

    assert complete(database.one("SELECT token FROM hapax.begin('shop', 'k', lease => '1 h')")) == "committed\n"
    assert complete("A" * 64) == "HX001\n"
    assert complete("").startswith("there is no token")
    assert database.one("SELECT count(*) FROM payments") == before + 1
    ((verdict, status, headers, body),) = database.run(
        "SELECT verdict, status, headers, body FROM hapax.begin('shop', 'k')")
    assert (verdict, status) == ("completed", 201)
    assert (bytes(headers), bytes(body)) == (b"Location: /payments/1\r\n", b"\0\xff r")


def test_the_library_has_no_dependency():
    """The core's sources name no package but the JDK's and their own."""
    for path in pathlib.Path(ROOT / "sdk/java/src/hapax").rglob("*.java"):
        if path.parent.name not in ("servlet", "spring", "messages"):
            imports = [line for line in path.read_text().splitlines() if line.startswith("import ")]
            assert all(line.split()[1].startswith(("java.", "hapax.")) for line in imports), path
