"""sdk/go: what its own tests say, its example and gin behind a real door, its helper on a PostgreSQL, its package.

What the SDKs have in common is in test_cases.py, which runs the driver of sdk/go too.
"""
import functools
import http.client
import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request

import pytest

import pg
from conftest import BUILD, PATIENCE, ROOT, Command, read_line, wait_until

SDK = ROOT / "sdk/go"
TESTS = ROOT / "tests/sdk/go"


@functools.cache
def environment():
    """Where the modules are; nothing is fetched by a test."""
    done = subprocess.run([ROOT / "tools/go/fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=1000)
    assert done.returncode == 0, done.stderr
    into = pathlib.Path(done.stdout.strip())
    return {**os.environ, "GOPATH": str(into), "GOTOOLCHAIN": "local", "GOPROXY": "off",
            "GOFLAGS": "-tags=nomsgpack"}


def go(*words, cwd=SDK):
    done = subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=10 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@functools.cache
def built(cwd, package):
    """A program, compiled."""
    into = BUILD / "sdk-go" / package.strip("./").replace("/", "-")
    go("go", "build", "-o", into, package, cwd=cwd)
    return into


def test_the_modules_are_formatted():
    """gofmt has nothing to change."""
    assert go("gofmt", "-l", SDK, TESTS) == ""


@pytest.mark.ci
def test_the_modules_are_vetted():
    """go vet has nothing to say. It compiles all of gin for that."""
    go("go", "vet", "./...")
    go("go", "vet", "./...", "hapax.example/hapax/hapaxgin", cwd=TESTS)


def test_its_own_tests():
    """The client against a played door, and the adapters."""
    go("go", "test", "./...")


@pytest.mark.ci
def test_its_own_tests_without_races():
    """The same with the race detector, for which all of Go's library is compiled anew."""
    go("go", "test", "-race", "./...")


@pytest.mark.ci
def test_its_package(folder):
    """The package is made, and a program with an empty cache and without a network installs it and runs."""
    done = subprocess.run([SDK / "package", folder / "proxy"], env=environment(), capture_output=True, text=True,
                          timeout=10 * PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr


class Stay(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer."""

    def redirect_request(self, *_):
        return None


class Api:
    """A program that a door has started, and the requests to it."""

    def __init__(self, hapax, *words):
        self.process = hapax.start("door", "--store", "memory:", "--", *words)
        line = read_line(self.process)
        while line and not line.startswith("payments: "):
            line = read_line(self.process)
        assert line, self.process.stderr.read()
        self.base = line.split()[1]

    def __call__(self, path, body=None, method="POST", **headers):
        request = urllib.request.Request(self.base + path, body and json.dumps(body).encode(), method=method,
                                         headers={name.replace("_", "-"): value for name, value in headers.items()})
        try:
            answer = urllib.request.build_opener(Stay).open(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            answer.bytes = answer.read()
        answer.text = answer.bytes.decode(errors="replace")
        answer.problem = None
        if answer.headers["Content-Type"] == "application/problem+json":
            answer.problem = json.loads(answer.text)["type"].removeprefix("urn:hapax:problem:")
        return answer

    def leave(self, path, body, **headers):
        """A client that goes away when it has a part of the response."""
        connection = http.client.HTTPConnection(self.base.removeprefix("http://"), timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body),
                           {name.replace("_", "-"): value for name, value in headers.items()})
        connection.getresponse().read(10)
        connection.close()


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    command = Command(tmp_path_factory.mktemp("go"))
    yield command
    for process in command.processes:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module", params=["net/http", pytest.param("gin", marks=pytest.mark.ci)])
def api(request, command):
    program = built(SDK, "./example") if request.param == "net/http" else built(TESTS, "./gin")
    return Api(command, program, "127.0.0.1:0")


def test_a_middleware_runs_once(api):
    """The first request runs; a repeat gets its response, byte for byte, and a mismatch a problem."""
    answers = [api("/payments", {"amount": 1999}, Idempotency_Key="order-1") for _ in range(2)]
    assert [a.status for a in answers] == [201, 201]
    assert [a.headers["Idempotency-Replayed"] for a in answers] == ["false", "true"]
    assert answers[0].text == answers[1].text and answers[0].text.startswith("charge order-1 ")
    assert api("/payments", {"amount": 5}, Idempotency_Key="order-1").problem == "fingerprint-mismatch"
    assert api("/payments", {"amount": 1999}, Idempotency_Key="order-1", Cookie="a=b").problem == "caller-mismatch"


def test_a_middleware_without_a_key(api):
    """The policy asks for a key, and gets one that can be read."""
    assert api("/payments", {"amount": 5}).problem == "missing-key"
    assert api("/payments", {"amount": 5}, Idempotency_Key='"a').problem == "bad-key"


def test_a_refusal_is_kept(api):
    """A 400 of the handler is its response, and is replayed."""
    answers = [api("/payments", {"amount": 0}, Idempotency_Key="zero") for _ in range(2)]
    assert [a.status for a in answers] == [400, 400] and answers[0].text == answers[1].text
    assert answers[1].headers["Idempotency-Replayed"] == "true"


def test_a_response_over_the_limit(command):
    """It is passed on whole, once, and then it is gone. A client that had a part of it alone leaves it unknown."""
    api = Api(command, built(TESTS, "./gin"), "127.0.0.1:0")
    first = api("/payments", {"amount": 17}, Idempotency_Key="large")
    assert (first.status, len(first.bytes)) == (201, 17 << 20)
    assert api("/payments", {"amount": 17}, Idempotency_Key="large").problem == "response-not-kept"
    api.leave("/payments", {"amount": 17}, Idempotency_Key="cut")
    wait_until(lambda: api("/payments", {"amount": 17}, Idempotency_Key="cut").problem == "unknown-outcome",
               "the handler's end")


def test_a_handler_of_gin_that_panics(command):
    """It has failed: its client gets what gin's recovery answers, and under hold an operator decides."""
    api = Api(command, built(TESTS, "./gin"), "127.0.0.1:0")
    assert api("/payments", {"amount": 13}, Idempotency_Key="odd").status == 500
    assert api("/payments", {"amount": 13}, Idempotency_Key="odd").problem == "unknown-outcome"


def test_no_hook_for_requests(command):
    """An option with a reconcile hook is refused, and nothing runs."""
    answer = Api(command, built(TESTS, "./gin"), "127.0.0.1:0")("/asks", {}, Idempotency_Key="k")
    assert (answer.status, answer.headers["Idempotency-Replayed"]) == (500, None) and "hapax.Reconcile" in answer.text


def test_steps_of_the_example(command):
    """A refund has two steps, each once; a second call replays the whole."""
    api = Api(command, built(SDK, "./example"), "127.0.0.1:0")
    first, second = (api("/refunds/order-9", method="POST") for _ in range(2))
    assert first.status == 200 and first.text == second.text
    assert json.loads(api("/effects", method="GET").text) == ["refund order-9:refund", "mail order-9:mail"]


@pytest.mark.parametrize("by", ["pgx", "sql"])
def test_complete_in_a_transaction(by):
    """Rows and outcome are committed together; after a lost claim neither is."""
    database = pg.Database(pg.server())
    database.run("CREATE TABLE IF NOT EXISTS payments (amount integer)")
    program, dsn = built(TESTS, "./pg"), database.server.uri(database.name, sslmode="disable")
    before = database.one("SELECT count(*) FROM payments")

    def complete(token):
        return subprocess.run([program, by, dsn, token], capture_output=True, text=True, timeout=PATIENCE).stdout

    token = database.one("SELECT token FROM hapax.begin('shop', %s, lease => '1 h')", by)
    assert complete(token) == "committed\n"
    assert complete("A" * 64).startswith("hapaxpg: the claim is lost")
    assert complete("").startswith("hapaxpg: there is no token")
    assert database.one("SELECT count(*) FROM payments") == before + 1
    ((verdict, status, headers, body),) = database.run(
        "SELECT verdict, status, headers, body FROM hapax.begin('shop', %s)", by)
    assert (verdict, status) == ("completed", 201)
    assert (bytes(headers), bytes(body)) == (b"Location: /payments/1\r\n", b"\x00\xff receipt")
