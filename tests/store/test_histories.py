"""Clients of one store, each behind a network of its own that breaks, and with a clock of its own. They are stopped and
killed, as is the server. What each asked and was answered is written down, and judged twice: by rules here, and by
Porcupine (tests/store/porcupine), a checker that others wrote. It looks for an order of the calls in which one record
for each key gives all the answers."""
import collections
import contextlib
import json
import os
import random
import subprocess
import time

import pytest
from conftest import BUILD, PATIENCE, ROOT
from histories import CLIENTS, KINDS, SECONDS, attack, newest_key
from process import end_with_parent, faketime
from wire import Wire

pytestmark = pytest.mark.ci
LEASE_MS = 600
SLACK_MS = 20  # of reading a clock
LATE_MS = 100  # a call that took longer may have been sent twice


class Client:
    """tests/store/history.c, behind one link of the wire; each life has a name of its own, and another clock."""

    lives = 0

    def __init__(self, kind, number, folder, policy, key):
        self.kind, self.number, self.folder, self.policy, self.key = kind, number, folder, policy, key
        self.begin()

    def begin(self):
        Client.lives += 1
        ahead_s = random.choice([0, random.uniform(-1, 1)]) * self.kind.clock_s
        env = {**os.environ, **self.kind.env, **faketime(ahead_s),
               "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        uri = self.kind.uri(self.kind.wire.address(self.number))
        enter = self.kind.wire.enter(self.number)

        def prepare():
            end_with_parent()
            enter()

        words = [BUILD / "tests/store/history", uri, f"c{Client.lives}", LEASE_MS, self.policy, self.key]
        with open(self.folder / f"{Client.lives}", "wb") as out:
            self.process = subprocess.Popen(list(map(str, words)), stdin=subprocess.PIPE, stdout=out, env=env,
                                            preexec_fn=prepare)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def pids(self):
        return [self.process.pid]

    def end(self, look):
        if look:
            self.process.stdin.write(b"look\n")
        self.process.stdin.close()
        assert self.process.wait(PATIENCE) == 0


def kinds_of(calls):
    return collections.Counter(answer["error"] if answer and answer["error"] != "none" else
                               answer["verdict"] if answer else "no answer" for _, answer in calls)


def shown(folder):
    """Whether enough was asked: where little is asked, little is shown."""
    kinds = kinds_of(read(folder))
    return kinds["claimed"] > SECONDS and kinds["completed"] > SECONDS


def play(kind, folder, policy):
    clients = [Client(kind, number, folder, policy, newest_key()) for number in range(CLIENTS)]
    try:
        counts = attack(kind, clients, lambda: shown(folder))
        time.sleep(LEASE_MS / 1000)  # no claim is live when all is read
        for client in clients:
            client.end(look=client is clients[0])
    finally:
        for client in clients:
            client.process.kill()
            client.process.wait()
    return counts


# ---- rules ---------------------------------------------------------------------------------


def read(folder):
    """Calls: what was asked, from when, and the answer with its time, or None."""
    asked, answers = [], {}
    for file in folder.iterdir():
        for text in file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # the last line of one that was killed
                line = json.loads(text)
                if "op" in line:
                    asked.append(line)
                else:
                    answers[line["who"], line["n"]] = line
    return [(line, answers.get((line["who"], line["n"]))) for line in asked]


def grants_of(of_key, told):
    """Of each token that was given the claim, in the order of their attempts: attempt, fence, the token, when it first
    asked, and when it first was told."""
    grants = {}
    for asked, answer in told:
        token = asked["token"]
        if answer["verdict"] == "claimed" and (token not in grants or answer["at"] < grants[token][-1]):
            began = min(other["at"] for other, _ in of_key if other["token"] == token)
            grants[token] = answer["attempt"], answer["fence"], token, began, answer["at"]
    return sorted(grants.values())


def judge(calls, policy, slack_ms):
    """Gives what contradicts a promise."""
    keys = collections.defaultdict(list)
    for asked, answer in calls:
        keys[asked["key"]].append((asked, answer))
    for key, of_key in keys.items():
        told = [(asked, answer) for asked, answer in of_key if answer and answer["error"] == "none"]
        completed = [answer for _, answer in told if answer["state"] == "completed"]
        outcomes = {answer["body"] for answer in completed}
        if len(outcomes) > 1:
            yield f"key {key} has outcomes {outcomes}"
        seen = min((answer["at"] for answer in completed), default=float("inf"))
        for asked, answer in told:
            if answer["verdict"] == "claimed" and asked["at"] > seen:
                yield f"key {key} was claimed after it was seen completed: {asked} {answer}"
        given = {asked["token"] for asked, _ in of_key if asked["op"] == "fail"}
        grants = grants_of(of_key, told)
        for (attempt, fence, token, began, _), (later, higher, other, _, came) in zip(grants, grants[1:]):
            if later == attempt or higher <= fence:
                yield f"key {key}: attempts {attempt} and {later} have fences {fence} and {higher}"
            lives = policy == "hold" or came < began + (LEASE_MS - slack_ms) * 1000
            if later == attempt + 1 and token not in given and lives:
                yield f"key {key}: {other} has the claim that is {token}'s"


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory):
    """The checker."""
    source = ROOT / "tests/store/porcupine"
    done = subprocess.run([ROOT / "tools/go/fetch", source], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    program = tmp_path_factory.mktemp("porcupine") / "porcupine"
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, check=True, timeout=600,
                   env={**os.environ, "GOPATH": done.stdout.strip(), "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"})
    return program


def is_history(porcupine, calls, policy, skew_ms=0, hinted=()):
    """Whether Porcupine finds an order; and what it said."""
    lines = "".join(json.dumps(line) + "\n" for both in calls for line in both if line)
    words = [policy, LEASE_MS * 1000, (SLACK_MS + 2 * skew_ms) * 1000, LATE_MS * 1000, PATIENCE, *hinted]
    done = subprocess.run([porcupine, *map(str, words)], input=lines, capture_output=True, text=True,
                          timeout=2 * PATIENCE)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("policy", ["rerun", "hold"])
@pytest.mark.parametrize("of", KINDS)
def test_a_history_is_one_records(of, policy, porcupine, tmp_path):  # promises 1, 3, 10
    folder = tmp_path / "calls"
    folder.mkdir()
    with Wire(CLIENTS) as wire, wire.at_server(), contextlib.ExitStack() as stack:
        kind = of(stack, wire)
        counts = play(kind, folder, policy)
    calls = read(folder)
    kinds = kinds_of(calls)
    print(len(calls), "calls", dict(kinds), dict(counts))
    assert set(kinds) <= {"claimed", "in_flight", "completed", "unknown", "ok", "lost", "found", "absent",
                          "unavailable", "indeterminate", "no answer"}
    assert list(judge(calls, policy, SLACK_MS + 2 * kind.skew_ms)) == []
    fits, said = is_history(porcupine, calls, policy, kind.skew_ms, kind.hinted)
    print(said)
    assert fits, said


def history(*rows):
    """Calls of one key, by rows of: client, from and to in ms, what is asked, its body, and words of the answer."""
    calls = []
    for n, (who, began_ms, ended_ms, what, token, body, answer) in enumerate(rows):
        asked = {"who": who, "n": n, "at": began_ms * 1000, "op": what, "key": 1, "token": token, "body": body}
        told = {"who": who, "n": n, "at": ended_ms * 1000, "error": "none", "verdict": "none", "state": "started",
                "attempt": 1, "fence": 10, "stale": False, "body": ""}
        calls.append((asked, answer and {**told, **answer}))
    return calls


CLAIM_A = ("a", 0, 5, "claim", "A", "", {"verdict": "claimed"})
DONE_A = ("a", 10, 15, "complete", "A", "x", {"verdict": "ok", "state": "completed", "body": "x"})
NOT_DONE_A = (*DONE_A[:6], {"error": "unavailable"})
AGAIN = {"verdict": "completed", "state": "completed", "body": "x"}
SECOND = {"verdict": "claimed", "attempt": 2, "fence": 20, "stale": True}
# Four clients repeat a claim six times, without an answer.
OPEN = [(who, 100 * n, 100 * n + 90, "claim", who.upper(), "", None) for n in range(6) for who in "abcd"]
THIRD = ("a", 700, 710, "claim", "A", "", {"verdict": "claimed", "attempt": 3, "fence": 20, "stale": True})
FINE = {
    "a claim and many of which one knows nothing": [*OPEN, THIRD],
    "a claim, an outcome, its repeat": [CLAIM_A, DONE_A, ("b", 20, 25, "claim", "B", "", AGAIN)],
    "a repeat beside the completion": [CLAIM_A, DONE_A, ("b", 12, 13, "claim", "B", "", AGAIN)],
    "an outcome whose reply was lost": [CLAIM_A, (*DONE_A[:6], None), ("b", 20, 25, "claim", "B", "", AGAIN)],
    "a claim after the lease": [CLAIM_A, ("b", 610, 615, "claim", "B", "", SECOND)],
}
WRONG = {
    "no fence of many rises": [*OPEN, THIRD, ("b", 1500, 1510, "claim", "B", "", {**THIRD[6], "attempt": 9})],
    "two outcomes": [CLAIM_A, DONE_A, ("b", 20, 25, "claim", "B", "", {**AGAIN, "body": "y"})],
    "a claim within the lease": [CLAIM_A, ("b", 400, 410, "claim", "B", "", SECOND)],
    "a claim within a renewed lease": [CLAIM_A, ("a", 500, 505, "renew", "A", "", {"verdict": "ok"}),
                                       ("b", 700, 710, "claim", "B", "", SECOND)],
    "a claim of what was seen completed": [CLAIM_A, DONE_A, ("b", 20, 25, "claim", "B", "", SECOND)],
    "a forgotten claim": [CLAIM_A, ("b", 20, 25, "read", "", "", {"verdict": "absent", "state": "absent"})],
    "a fence that does not rise": [CLAIM_A, ("b", 610, 615, "claim", "B", "", {**SECOND, "fence": 10})],
    "applied, though surely it was not": [CLAIM_A, NOT_DONE_A, ("b", 20, 25, "claim", "B", "", AGAIN)],
    "a claim that is held for too long": [CLAIM_A, ("b", 700, 705, "claim", "B", "", {"verdict": "in_flight"})],
}


@pytest.mark.parametrize("name", [*FINE, *WRONG])
def test_porcupine_tells_right_from_wrong(name, porcupine):
    fits, said = is_history(porcupine, history(*{**FINE, **WRONG}[name]), "rerun")
    assert fits == (name in FINE), said


def test_the_rules_tell_right_from_wrong():
    told = {name for name, rows in {**FINE, **WRONG}.items() if list(judge(history(*rows), "rerun", SLACK_MS))}
    assert told == {"two outcomes", "a claim within the lease", "a claim of what was seen completed",
                    "a fence that does not rise", "no fence of many rises"}
