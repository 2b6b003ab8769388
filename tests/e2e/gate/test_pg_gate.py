"""The gate before an API that completes its operations in its own PostgreSQL transaction: wherever the API
dies, a retry gets what was committed, or runs. Payments in the database = completed operations, always."""
import contextlib
import os
import random
import signal
import subprocess
import sys

import pytest

import gate as g
import pg
from conftest import PATIENCE, ROOT, read_line, wait_until

GIVEN_UP = (502, 503, 504)  # behind /short/ the API has a second, and a busy machine may take it away
UPSTREAM = ROOT / "tests/e2e/gate/pg_upstream.py"


@pytest.fixture
def db():
    return pg.Database(pg.server())


class Upstream:
    """The API, on one port however often it dies."""

    def __init__(self, db, program=UPSTREAM):
        self.db, self.program, self.port, self.deaths = db, program, g.free_port(), 0
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen([sys.executable, self.program, str(self.port), self.db.conninfo()],
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert "payments:" in read_line(self.process)
        return self

    def died(self):
        """It killed itself; it is back when this returns."""
        assert self.process.wait(PATIENCE) == -signal.SIGKILL
        self.process.stdout.close()
        self.deaths += 1
        return self.start()

    def stop(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def api(db):
    api = Upstream(db)
    yield api
    api.stop()


@pytest.fixture
def gate(folder, db, api):
    folder.chmod(0o755)
    gate = g.Gate(folder, f"""
    hapax_store {db.uri}; hapax_timeout 10s; hapax_save_wait 10s; hapax_pass_token on;
    upstream api {{ server 127.0.0.1:{api.port} max_fails=0; }}
    server {{
        LISTEN
        hapax on; hapax_fingerprint body; proxy_next_upstream off;
        location / {{ proxy_pass http://api; }}
        location /short/ {{ hapax_lease 1s; hapax_run_max 1s; proxy_pass http://api/; }}
        location /hold/ {{ hapax_on_expired hold; proxy_pass http://api/; }}
    }}""").start()
    yield gate
    gate.stop()
    gate.check_log()


def pay(gate, key, query="", where="", amount=5):
    return gate.post(f"{where}/payments{query}", key, b'{"amount": %d}' % amount)


def payments(db):
    """How many there were; as many as operations are completed."""
    wait_until(db.idle, "the end of what was cut off")
    count = db.one("SELECT count(*) FROM payments")
    assert count == db.completed("default")
    return count


def check_receipt(response, replayed):
    assert (response.status, response.replayed) == (201, replayed), response
    assert b'"receipt": 1,' in response.body and response.get("Location") == "/payments/1"
    assert response.get("Content-Type") == "application/json"


def test_the_outcome_is_committed_with_the_payment(gate, api, db):
    """Payment and outcome are in the database together; the first answer and every repeat are that outcome."""
    first = pay(gate, "k")
    assert (first.status, first.get("Location")) == (201, "/payments/1") and b'"receipt": 1,' in first.body
    for _ in range(2):
        check_receipt(pay(gate, "k"), "true")
    assert payments(db) == 1
    assert pay(gate, "k", amount=6).status == 422


def test_a_crash_after_the_commit_is_answered_with_what_was_committed(gate, api, db):
    """kill -9 after COMMIT, before a byte of the answer: the very client that waited gets the committed outcome."""
    check_receipt(pay(gate, "k", "?die=after"), "true")
    api.died()
    check_receipt(pay(gate, "k", "?die=after"), "true")
    assert payments(db) == 1


def test_a_crash_amid_the_answer_is_answered_with_what_was_committed(gate, api, db):
    """The response was cut off: what goes to the client, and to every retry, is the record's outcome, whole."""
    check_receipt(pay(gate, "k", "?die=answering"), "true")
    api.died()
    check_receipt(pay(gate, "k", "?die=answering"), "true")
    assert payments(db) == 1


@pytest.mark.parametrize("where", ["begun", "before"])
def test_a_crash_before_the_commit_runs_again(gate, api, db, folder, where):
    """Nothing was committed, so a retry runs once the dead attempt's lease is over."""
    assert pay(gate, "k", f"?die={where}&once={folder}/once", "/short").status in GIVEN_UP
    api.died()
    assert payments(db) == 0
    answers = []
    wait_until(lambda: answers.append(pay(gate, "k", f"?die={where}&once={folder}/once", "/short")) or
               answers[-1].status not in (409, *GIVEN_UP), "the lease being over")
    assert answers[-1].status == 201
    assert answers[-1].replayed == "false" or set(GIVEN_UP) & {answer.status for answer in answers}
    check = pay(gate, "k", where="/short", query=f"?die={where}&once={folder}/once")
    assert check.status == 201 and check.body == answers[-1].body
    assert payments(db) == 1


def test_with_hold_a_crash_after_the_commit_is_no_unknown(gate, api, db):
    """on_expired=hold: the committed outcome wins over "nobody can tell"; a crash before it is for the operator."""
    check_receipt(pay(gate, "k", "?die=after", "/hold"), "true")
    api.died()
    assert pay(gate, "k2", "?die=before", "/hold").status == 502
    api.died()
    assert pay(gate, "k2", "?die=before", "/hold").problem == "unknown-outcome"
    assert payments(db) == 1


@pytest.mark.some(2)
@pytest.mark.parametrize("answer", ["500", "503", "200", "404", "none"])
def test_whatever_it_answers_the_committed_outcome_wins(gate, api, db, answer):
    """A late failure, another status, no answer: the client and every retry get what stands in the record."""
    check_receipt(pay(gate, "k", f"?answer={answer}"), "true")
    check_receipt(pay(gate, "k", f"?answer={answer}"), "true")
    assert payments(db) == 1


def test_what_it_did_not_commit_is_the_answer_as_always(gate, api, db):
    """A handler that completes nothing itself is classed as without a token."""
    assert gate.post("/payments", "k", b"{}").status == 400
    assert gate.post("/payments", "k", b"{}").replayed == "true"
    assert db.one("SELECT count(*) FROM payments") == 0


def test_a_zombie_cannot_commit_its_payment(gate, api, db, folder):  # promise 24
    """Its gate died and its claim was taken over: complete() raises, and only the second attempt's payment stands."""
    query = f"?once={folder}/once&hold={folder}/go"
    first = gate.later("/short/payments" + query, "k", b'{"amount": 5}')
    wait_until(lambda: (folder / "go.here").exists(), "the first attempt")
    for worker in gate.workers():
        os.kill(worker, signal.SIGKILL)
    answers = []

    def second():
        with contextlib.suppress(OSError, AssertionError):  # until nginx has a worker again
            answers.append(pay(gate, "k", query, "/short"))
        return answers and answers[-1].status == 201

    wait_until(second, "the second attempt")
    assert payments(db) == 1
    numbers = db.one("SELECT last_value FROM payments_number_seq")
    (folder / "go").touch()
    with pytest.raises((OSError, AssertionError)):
        first()
    wait_until(lambda: db.one("SELECT last_value FROM payments_number_seq") > numbers, "the zombie's try")
    wait_until(db.idle, "its end")
    assert payments(db) == 1
    assert pay(gate, "k", query, "/short").body == answers[-1].body


def test_hapax_serve_and_the_example_as_they_are_printed(hapax, db, folder):
    """The command in the example's head, before the example itself: crash of the gate included."""
    folder.chmod(0o755)
    api = Upstream(db, ROOT / "examples/payments_pg.py")
    port = g.free_port()
    words = ["serve", "--upstream", f"http://127.0.0.1:{api.port}", "--listen", f"127.0.0.1:{port}", "--store", db.uri,
             "--module", g.MODULE, "--pass-token", "on", "--timeout", "20s"]
    try:
        gate = hapax.start(*words)
        assert read_line(gate)

        def post():
            with g.Connection(port) as connection:
                connection.send(g.request("POST", "/payments", "k", b'{"amount": 5}'))
                return connection.response()

        first, second = post(), post()
        assert (first.status, second.replayed) == (201, "true") and first.body == second.body
        assert payments(db) == 1
        gate.terminate()
        assert gate.wait(PATIENCE) == 0
    finally:
        api.stop()


def test_random_deaths_of_the_api(gate, api, db, folder):  # promise 24
    """Payments with deaths, lies and silences drawn at random, each repeated until it is answered: one payment each."""
    rounds = int(os.environ.get("HAPAX_CRASH_ROUNDS", 40)) // 2
    seed = int(os.environ.get("HAPAX_CRASH_SEED", random.randrange(1 << 32)))
    draw = random.Random(seed)
    known = set()
    for number in range(rounds):
        what = draw.choice(["die=begun", "die=before", "die=after",
                            "die=answering", "answer=500", "answer=none", "x=y"])
        query, amount, answers = f"?{what}&once={folder}/{number}", number + 1, []

        def answered():
            with contextlib.suppress(OSError, AssertionError):  # an answer that was cut off is none
                answers.append(pay(gate, f"k{number}", query, "/short", amount))
            if api.process.poll() is not None:
                api.died()
            return answers and answers[-1].status == 201

        wait_until(answered, f"{what} (HAPAX_CRASH_SEED={seed})")
        known.add(amount)
        paid = {amount for amount, in db.run("SELECT amount FROM payments")}
        assert paid == known, f"{what} (HAPAX_CRASH_SEED={seed})"
    assert payments(db) == rounds
