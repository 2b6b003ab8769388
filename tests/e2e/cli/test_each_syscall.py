"""kill -9 before each system call of a claim and its outcome, in each thread of the process that makes them.

strace follows one thread at a time: it counts what the thread does for one operation, and then kills the process
before the first, second, ... call of each kind. Whatever was told before the kill must hold after it.

HAPAX_KILL_POINTS=N (30) is how many points of each kind of process are played, drawn at random; `make soak` plays all.
"""
import collections
import contextlib
import os
import pathlib
import random
import subprocess
import threading
import time

import pytest
import rabbit
from conftest import PATIENCE, read_line, wait_until
from door_client import Client
from effects import Effects
from pg import Database
from postgres_server import Postgres
from redis_server import Redis
from test_door import Door

POINTS = int(os.environ.get("HAPAX_KILL_POINTS", 30))
DEAD = (EOFError, OSError, AssertionError)  # an AssertionError: "the connection was closed without a response"


# ---- strace ---------------------------------------------------------------------------------


def threads_of(pid):
    """{name: id}. Threads of one name are told apart by their order."""
    found, seen = {}, collections.Counter()
    with contextlib.suppress(OSError):  # killed meanwhile
        for tid in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
            name = pathlib.Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
            seen[name] += 1
            found[f"{name}#{seen[name]}"] = tid
    return found


class Trace:
    """strace of one thread, while this lasts."""

    def __init__(self, tid, *words):
        self.process = subprocess.Popen(["strace", "-qq", *words, "-p", str(tid)], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

        def follows():
            if self.process.poll() is not None:  # the call came at once, and it has killed
                assert self.process.returncode == 0 or not os.path.exists(f"/proc/{tid}"), self.process.stderr.read()
                return True
            with contextlib.suppress(OSError):
                return f"TracerPid:\t{self.process.pid}\n" in pathlib.Path(f"/proc/{tid}/status").read_text()

        wait_until(follows, "strace")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE)


def calls_of(bed, key):
    """[(thread, call, count)]: what each thread does for one operation."""
    found = collections.Counter()
    with contextlib.ExitStack() as stack:
        for name, tid in threads_of(bed.pid).items():
            log = bed.folder / f"calls.{tid}"
            stack.callback(lambda name=name, log=log: found.update(
                (name, line.split("(")[0]) for line in log.read_text().splitlines()
                if line[:1].isalpha() and not line.startswith("restart_syscall")))
            stack.enter_context(Trace(tid, "-o", str(log)))
        bed.ask(key, bed.policies[0])
    return [(*which, count) for which, count in sorted(found.items())]


# ---- what is killed -------------------------------------------------------------------------


class Revived:
    """A program that is started again when it was killed, as init would; start() gives its process."""

    policies = ("hold", "rerun")

    def __init__(self, hapax):
        self.hapax, self.folder, self.over = hapax, hapax.folder, False
        self.victim = self.start()
        self.reviver = threading.Thread(target=self.revive, daemon=True)
        self.reviver.start()

    def revive(self):
        while self.victim.wait() is not None and not self.over:
            self.victim = self.start()

    @property
    def pid(self):
        return self.victim.pid

    def close(self):
        self.over = True
        self.victim.kill()
        self.reviver.join(PATIENCE)


class DoorBed(Revived):
    """hapax door, which claims and completes in its own process."""

    def __init__(self, hapax, store):
        self.effects, self.store, self.door = collections.Counter(), store, None
        super().__init__(hapax)

    def make(self, store):
        return Door(self.hapax, store, "--lease", "1s", "--timeout", "30s", "--save-wait", "30s")

    def start(self):
        if self.door:
            self.door.start()
        else:
            self.door = self.make(self.store)
        return self.door.process

    def ask(self, key, policy):
        """The answer and its body; whoever is told to run has the effect."""
        with Client(self.door.path) as client:
            frame = client.wait(client.begin(key, policy={"on_expired": policy}))
            if frame.kind == "RUN":
                self.effects[key] += 1
                body = f"{key} {frame.attempt}".encode()
                frame = client.finish(frame.op, body=body)
                return (frame.answer if frame.recorded else "lost"), body
            assert frame.kind == "ANSWER", frame
            return frame.answer, frame.body

    def count(self, key):
        return self.effects[key]


class KeeperBed(DoorBed):
    """hapax keep, behind a door that lives."""

    def start(self):
        keeper = self.hapax.keep(self.store)
        if not self.door:
            self.door = self.make(f"unix:{self.folder}/store/keeper.sock")
        return keeper


class ConsumeBed(Revived):
    """hapax consume between RabbitMQ and a handler; its records are in a Redis."""

    def __init__(self, hapax, redis, policy):
        self.policies, self.redis = (policy,), redis
        self.queue, self.effects = rabbit.Queue(rabbit.server()), Effects()
        super().__init__(hapax)

    def start(self):
        return rabbit.Consumer(self.hapax, self.queue.uri(), self.effects.url(), self.redis.uri(), "--key",
                               "message-id", "--lease", "1s", "--on-expired", *self.policies).process

    def ask(self, key, policy):
        """A message, until it has left the queue."""
        before, pid = self.count(key), self.pid
        self.queue.publish("{}", id=key)
        wait_until(lambda: self.pid != pid or self.queue.name not in self.queue.left(), "the message's end")
        if self.pid != pid:
            raise EOFError
        if self.queue.parked.ready() > 0:
            self.queue.parked.take()
            return "unknown", b""
        return ("fresh" if self.count(key) > before else "replay"), b""

    def count(self, key):
        return self.effects.counts().get(key, 0)

    def close(self):
        super().close()
        self.effects.close()


class RelayBed(Revived):
    """hapax relay between PostgreSQL's outbox and RabbitMQ: each row at least once."""

    policies = ("rerun",)

    def __init__(self, hapax, database):
        self.database, self.queue, self.taken = database, rabbit.Queue(rabbit.server()), collections.Counter()
        super().__init__(hapax)

    def start(self):
        process = self.hapax.start("relay", "--from", self.database.uri, "--to", rabbit.server().uri(), "--lease", "1s")
        assert "publishes" in read_line(process)
        return process

    def ask(self, key, policy):
        """A row, until it has ended."""
        pid = self.pid
        if not self.database.run("SELECT 1 FROM hapax.outbox WHERE key = %s", key):
            self.database.run("SELECT hapax.publish(%s, 'a', %s, NULL, %s)", self.queue.name, key, key.encode())
        pending = "SELECT 1 FROM hapax.outbox WHERE state = 0"
        wait_until(lambda: self.pid != pid or not self.database.run(pending), "the row's end")
        if self.pid != pid:
            raise EOFError
        return "replay", b""

    def count(self, key):
        self.taken.update(body for body, _ in self.queue.take())
        return self.taken[key]


class GateBed:
    """The worker of nginx, before a keeper that lives."""

    policies = ("hold", "rerun")
    ANSWERS = {"unknown-outcome": "unknown", "in-flight": "in_flight"}

    def __init__(self, gate, api):
        self.gate, self.api, self.folder = gate, api, gate.folder

    @property
    def pid(self):
        wait_until(self.gate.workers, "a worker")
        return self.gate.workers()[0]

    def ask(self, key, policy):
        response = self.gate.post(("/holds" if policy == "hold" else "/short") + "/ok", key)
        if response.status == 200:
            return ("replay" if response.replayed == "true" else "fresh"), response.body
        return self.ANSWERS.get(response.problem, response.problem), b""

    def count(self, key):
        return self.api.count(key)

# ---- the rules ------------------------------------------------------------------------------


def ask_until_known(bed, key, policy):
    """Asks until there is more to be said than that it runs."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(DEAD):
            answer, body = bed.ask(key, policy)
            if answer in ("fresh", "replay", "unknown"):
                return answer, body
        time.sleep(0.05)  # the lease of who died
    raise AssertionError(f"{key} under {policy}: nothing is known")


def kill_at(bed, thread, call, nth, key, policy):
    """One operation, and a kill before this call, if it is made this time: whether it was."""
    pid, told = bed.pid, None
    tid = threads_of(pid).get(thread)
    if tid is None:  # it comes and goes
        return False
    with Trace(tid, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}"):
        with contextlib.suppress(DEAD):
            told = bed.ask(key, policy)
    ran = bed.count(key)
    answer, body = ask_until_known(bed, key, policy)
    where = f"{policy}, killed before {call} {nth} of {thread}: told {told}, ran {ran}, then {answer} {body}"
    if told and told[0] == "fresh":
        assert (answer, body) == ("replay", told[1]) and bed.count(key) == ran == 1, where
    elif policy == "hold":
        assert bed.count(key) <= 1, where
    else:  # an effect that was on its way at the kill may come after it was looked for
        assert answer != "unknown" and ran <= 1 <= bed.count(key) <= 2, where
    if answer != "unknown":
        assert ask_until_known(bed, key, policy) == ("replay", body), where
    print(where)
    return bed.pid != pid


def kill_at_each(bed):
    bed.ask("warm", bed.policies[0])
    points = [(thread, call, nth) for thread, call, count in calls_of(bed, "counted") for nth in range(1, count + 1)]
    plays = [(*point, policy) for point in points for policy in bed.policies]
    plays = random.sample(plays, min(POINTS, len(plays)))
    kills = 0
    for i, (thread, call, nth, policy) in enumerate(plays):
        kills += kill_at(bed, thread, call, nth, f"k{i}", policy)
    print(f"{kills} of {len(plays)} struck")
    assert kills >= len(plays) / 4


# ---- the cases ------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["rocksdb", "redis", "postgres"])
def test_a_door_killed_before_each_call(hapax, store, kind):  # promise 3
    with contextlib.ExitStack() as stack:
        if kind == "redis":
            store = stack.enter_context(Redis().start()).uri()
        elif kind == "postgres":
            server = stack.enter_context(Postgres().start())
            store = server.uri(server.database())
            assert hapax("init", "--store", store).code == 0
        kill_at_each(stack.enter_context(contextlib.closing(DoorBed(hapax, store))))


@pytest.mark.ci
def test_a_keeper_killed_before_each_call(hapax, store):  # promise 22
    with contextlib.closing(KeeperBed(hapax, store)) as bed:
        kill_at_each(bed)


@pytest.mark.ci
def test_a_worker_killed_before_each_call(gate, api):  # promise 3
    kill_at_each(GateBed(gate, api))


@pytest.mark.ci
@pytest.mark.parametrize("policy", ["hold", "rerun"])
def test_a_consumer_killed_before_each_call(hapax, policy):  # promise 40
    with Redis().start() as redis, contextlib.closing(ConsumeBed(hapax, redis, policy)) as bed:
        kill_at_each(bed)


@pytest.mark.ci
def test_a_relay_killed_before_each_call(hapax):  # promise 41
    with Postgres().start() as server, contextlib.closing(RelayBed(hapax, Database(server))) as bed:
        kill_at_each(bed)
