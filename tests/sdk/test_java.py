"""sdk/java: what it does without a door, its filter in a Tomcat and its example behind a real door, its helper on a
PostgreSQL, its jars.

What the SDKs have in common is in test_cases.py, which runs the driver of sdk/java too.
"""
import hashlib
import pathlib
import subprocess

import pytest

import pg
from conftest import PATIENCE, ROOT, Command
from test_go import Api

JARS = [f"/usr/share/java/{name}.jar" for name in ("tomcat10-embed-core", "tomcat10-annotations-api", "postgresql")]
JVM = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The jars, made and tried in a clean environment; and the programs of the tests. A classpath."""
    into = tmp_path_factory.mktemp("java")
    done = subprocess.run([ROOT / "sdk/java/package", into / "jars"], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    (into / "tests").mkdir()
    path = ":".join(map(str, [*(into / "jars").glob("*.jar"), *JARS, into / "tests"]))
    programs = [ROOT / f"tests/sdk/java/{name}.java" for name in ("Checks", "Servlets", "Complete")]
    words = ["javac", "-Xlint:all", "-Werror", "-cp", path, "-d", into / "tests", *programs]
    subprocess.run(words, check=True, timeout=PATIENCE)
    return path


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    command = Command(tmp_path_factory.mktemp("run"))
    yield command
    for process in command.processes:
        process.terminate()
        process.communicate()


def test_without_a_door(made):
    """JSON, attempts, keys of steps, the client and its problems (Checks.java says each claim)."""
    long_key = hashlib.sha256(b"k" * 250 + b":abcde").hexdigest()
    done = subprocess.run([*JVM, f"-Dlong.key={long_key}", "-cp", made, "Checks"], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert (done.returncode, done.stdout) == (0, "all as it should be\n"), done.stdout + done.stderr


@pytest.fixture(scope="module")
def api(made, command):
    return Api(command, *JVM, "-cp", made, "Servlets", command.folder)


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
    assert api("/payments", {"amount": 17}, Idempotency_Key="large").status == 500  # over 16 MiB: never half of it
    assert api("/payments", {"amount": 17}, Idempotency_Key="large").problem == "unknown-outcome"


PLAIN = "text/plain;charset=ISO-8859-1"


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
    ("localized", 200, {"Content-Language": ["fr-FR"]}, b""),
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


def test_a_filter_keeps_no_response_that_is_not_there_yet(api):
    """Asynchronous handling is refused, and what it may have begun counts as unknown, so nothing reruns under hold."""
    assert api("/odd/later", {}, Idempotency_Key="later").status == 500
    assert api("/odd/later", {}, Idempotency_Key="later").problem == "unknown-outcome"


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
        if path.parent.name != "servlet":
            imports = [line for line in path.read_text().splitlines() if line.startswith("import ")]
            assert all(line.split()[1].startswith(("java.", "hapax.")) for line in imports), path
