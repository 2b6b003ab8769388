"""Doors of one store, each behind a network of its own that breaks. They are stopped and killed, as is the server. Each
key has one outcome, whoever asks, and under `hold` one effect."""
import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import random
import subprocess
import threading
import time

import pytest
from conftest import HAPAX, PATIENCE
from gate import MODULE
from histories import CLIENTS, KINDS, SECONDS, OfPostgres, OfRedis, attack, newest_key
from process import end_with_parent, family_of, free_port, kill_family
from wire import Wire, inside

pytestmark = pytest.mark.ci


class Caller(threading.Thread):
    """Asks a door behind one link of the wire, again and again. What it says of a call: `done` and the body; `unsaved`
    where the door said that it is not stored; `open` where there was no answer; or how the door refused."""

    def __init__(self, kind, number, effects, policy, key):
        super().__init__(daemon=True)
        self.kind, self.number, self.effects, self.policy, self.key = kind, number, effects, policy, key
        self.uri = kind.uri(kind.wire.address(number))
        self.env = {**os.environ, **kind.env}
        self.calls, self.failure, self.over = [], None, threading.Event()
        self.begin()
        self.start()

    def enter(self):
        """For preexec_fn."""
        end_with_parent()
        self.kind.wire.enter(self.number)()

    def run(self):
        self.kind.wire.enter(self.number)()
        random_of_mine = random.Random()
        while not self.over.is_set():
            key = newest_key() - random_of_mine.randrange(8)
            if key < self.key:
                continue
            began = time.monotonic()
            try:
                said, body = self.ask(key)
            except Exception as error:  # noqa: BLE001, it is told by end()
                self.failure = error
                return
            self.calls.append((key, began, time.monotonic(), said, body))
            self.over.wait(random_of_mine.uniform(0, 0.1))

    def end(self):
        self.over.set()
        self.join(PATIENCE)
        assert not self.is_alive() and not self.failure, self.failure


class ByRun(Caller):
    """hapax run: each call is a process."""

    process = None
    refusals = {"121", "122", "123", "124"}
    script = 'read up _ </proc/uptime; echo "$HAPAX_KEY $up $CALL" >>"$EFFECTS"; sleep 0.02; echo "$CALL"'

    def begin(self):
        pass

    def ask(self, key):
        call = f"{self.number}.{len(self.calls)}"
        self.process = subprocess.Popen(
            [HAPAX, "run", "--store", self.uri, "--json", "--lease", "1s", "--timeout", "500ms", "--save-wait", "300ms",
             "--on-expired", self.policy, "--scope", "history", f"k{key}", "--", "sh", "-c", self.script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=self.enter,
            env={**self.env, "CALL": call, "EFFECTS": str(self.effects)})
        out, told = self.process.communicate()
        if self.process.returncode == -9:
            return "open", None
        if self.process.returncode != 0:
            return str(self.process.returncode), told
        answer = json.loads(out)
        return "done" if answer["recorded"] or answer["answer"] == "replay" else "unsaved", answer["output"].strip()

    def kill(self):
        if self.process:
            self.process.kill()

    def pids(self):
        return [self.process.pid] if self.process else []


class OfEffects(http.server.BaseHTTPRequestHandler):
    """An API whose each answer is another."""

    protocol_version = "HTTP/1.1"
    takes_s = 0.02

    def do_POST(self):
        body = f"{self.server.name}.{next(self.server.numbers)}"
        with open(self.server.effects, "a", encoding="utf-8") as file:
            file.write(f"{self.headers['Idempotency-Key']} {time.monotonic()} {body}\n")
        time.sleep(self.takes_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


class ByGate(Caller):
    """hapax serve before an API, both beside the client."""

    gate = api = None
    refusals = {"409", "503", "502", "500"}

    def begin(self):
        with inside(self.kind.wire.clients[self.number]):
            if not self.api:
                self.port = free_port()
                self.api = http.server.ThreadingHTTPServer(("127.0.0.1", 0), OfEffects)
                self.api.daemon_threads = True
                self.api.name, self.api.effects, self.api.numbers = str(self.number), self.effects, itertools.count()
                threading.Thread(target=self.api.serve_forever, args=[0.05], daemon=True).start()
        self.gate = subprocess.Popen(
            [HAPAX, "serve", "--upstream", f"http://127.0.0.1:{self.api.server_address[1]}", "--listen",
             f"127.0.0.1:{self.port}", "--store", self.uri, "--module", MODULE, "--workers", "1", "--lease", "1s",
             "--run-max", "5s", "--timeout", "500ms", "--save-wait", "300ms", "--wait", "0", "--drain", "1s",
             "--on-expired", self.policy, "--scope", "history"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=self.env, preexec_fn=self.enter)

    def ask(self, key):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            with contextlib.closing(connection):
                connection.request("POST", "/", headers={"Idempotency-Key": f"k{key}"})
                reply = connection.getresponse()
                body = reply.read().decode()
        except (OSError, http.client.HTTPException):
            return "open", None
        if reply.status != 200:
            return str(reply.status), body
        return "unsaved" if reply.getheader("Idempotency-Recorded") == "false" else "done", body

    def kill(self):
        kill_family(self.gate.pid)
        self.gate.wait()
        self.gate.stderr.close()

    def pids(self):
        return family_of(self.gate.pid)

    def end(self):
        super().end()
        self.gate.terminate()
        self.gate.wait(PATIENCE)
        self.gate.stderr.close()
        self.api.shutdown()
        self.api.server_close()


def shown(callers, effects):
    """Whether enough was asked: where little is asked, little is shown."""
    done = sum(said == "done" for caller in callers for _, _, _, said, _ in list(caller.calls))
    keys = {line.split()[0] for line in effects.read_text(encoding="utf-8").splitlines()}
    return done > SECONDS and len(keys) > SECONDS


@pytest.mark.parametrize("of, policy", [(of, "hold") for of in KINDS] + [(OfRedis, "rerun"), (OfPostgres, "rerun")])
@pytest.mark.parametrize("by", [ByRun, ByGate])
def test_doors_give_one_outcome(by, of, policy, tmp_path):  # promises 3, 5
    effects = tmp_path / "effects"
    effects.touch()
    with Wire(CLIENTS) as wire, wire.at_server(), contextlib.ExitStack() as stack:
        kind = of(stack, wire)
        callers = [by(kind, number, effects, policy, newest_key()) for number in range(CLIENTS)]
        try:
            counts = attack(kind, callers, lambda: shown(callers, effects))
        finally:
            for caller in callers:
                caller.end()
    calls = [call for caller in callers for call in caller.calls]
    kinds = collections.Counter(said for _, _, _, said, _ in calls)
    done = collections.defaultdict(list)
    for line in effects.read_text(encoding="utf-8").splitlines():
        key, at, body = line.split()
        done[key.strip('"')].append((float(at), body))
    print(len(calls), "calls", dict(kinds), sum(map(len, done.values())), "effects of", len(done), "keys", dict(counts))
    assert set(kinds) <= {"done", "unsaved", "open"} | by.refusals, [call for call in calls if call[3] not in kinds]
    for key, effects_of_key in done.items():
        answers = [call for call in calls if f"k{call[0]}" == key and call[3] == "done"]
        assert len({body for *_, body in answers}) <= 1, (key, answers, effects_of_key)
        assert {body for *_, body in answers} <= {body for _, body in effects_of_key}, (key, answers, effects_of_key)
        assert policy == "rerun" or len(effects_of_key) == 1, (key, effects_of_key)
        told = min((ended for _, _, ended, *_ in answers), default=float("inf"))
        assert all(at < told + 0.02 for at, _ in effects_of_key), (key, answers, effects_of_key)
    assert {f"k{call[0]}" for call in calls if call[3] == "done"} <= set(done)
