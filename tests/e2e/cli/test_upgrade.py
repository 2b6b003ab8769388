"""Upgrades without a stop, and back: doors of the Hapax before (tests/servers/older.py) and of this one, together on
one store, under load, while each of them is killed again and again. docs/upgrading.md says what is seen here."""
import collections
import contextlib
import http.client
import http.server
import itertools
import json
import os
import random
import subprocess
import tempfile
import threading
import time

import pytest
from conftest import BUILD, HAPAX, PATIENCE
from dynamodb_server import KEYS, DynamoDB
from gate import MODULE
from histories import Keeper
from older import Program, program_before
from postgres_server import Postgres
from process import end_with_parent, free_port, kill_family, wait_for
from redis_server import Redis
from test_cut_off import OfEffects

pytestmark = pytest.mark.ci
NEW = Program("new", BUILD)
NEW.hapax, NEW.module = HAPAX, MODULE
LEASE_S = 5  # of a claim: so long a key of a door that was killed is in flight, and longer than any process stands
KEYS_A_S = 10  # new ones
KILLS = int(os.environ.get("HAPAX_UPGRADE_KILLS", "1"))  # of each door, at each step
# What a door may say but an outcome; docs/problems has them.
PROBLEMS = {(409, "in-flight"), (409, "unknown-outcome"), (503, "store-unavailable")}


# ---- stores -------------------------------------------------------------------------------------------


class OfRedis:
    number, env = "schema", {}

    def __init__(self, stack):
        self.server = stack.enter_context(Redis(appendonly="yes", appendfsync="always")).start()
        self.uri = self.server.uri(timeout="1s")

    def init(self, program):
        pass


class OfPostgres:
    number, env = "schema", {}

    def __init__(self, stack):
        self.server = stack.enter_context(Postgres()).start()
        self.uri = self.server.uri(timeout="1s")

    def init(self, program):
        done = subprocess.run([program.hapax, "init", "--store", self.uri], capture_output=True, text=True,
                              timeout=PATIENCE, env={**os.environ, **self.env}, check=False)
        assert done.returncode == 0, done.stderr


class OfHybrid(OfPostgres):
    def __init__(self, stack):
        super().__init__(stack)
        self.uri = f"hybrid:{stack.enter_context(Redis()).start().uri()}+{self.uri}"


class OfDynamodb(OfPostgres):
    env = KEYS

    def __init__(self, stack):
        self.server = stack.enter_context(DynamoDB(kept=True)).start()
        self.uri = self.server.uri(timeout="2s", skew="1s")


class OfKeeper:
    number, env = "protocol", {}

    def __init__(self, stack):
        class OfVersion(Keeper):
            program = None

            def command(self):
                return [self.program.hapax, *super().command()[1:]]

        self.server = stack.enter_context(OfVersion())
        self.uri = f"unix:{self.server.folder}/socket?timeout=1s"

    def init(self, program):
        """A keeper of that version, in place of the one that there was, which is killed."""
        self.server.kill()
        (self.server.folder / "socket").unlink(missing_ok=True)
        self.server.program = program
        self.server.choose_ports()
        self.server.launch()


class OfFolder:
    """A folder that the doors share: whoever has it open is the keeper of the other."""

    number, env = "protocol", {}

    def __init__(self, stack):
        self.uri = f"rocksdb:{stack.enter_context(tempfile.TemporaryDirectory())}/store"

    def init(self, program):
        pass


# ---- doors --------------------------------------------------------------------------------------------


class Handler(OfEffects):
    takes_s = 0.2  # so that who kills a door mostly meets one that runs


class Api(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """Its callers are killed."""


class Door:
    """hapax serve before an API of its own, on a port that stays. The API's each answer is another."""

    def __init__(self, kind, number, effects, policy):
        self.kind, self.policy, self.port, self.process = kind, policy, free_port(), None
        self.more = []  # options
        self.log = tempfile.TemporaryFile()
        self.api = Api(("127.0.0.1", 0), Handler)
        self.api.name, self.api.effects, self.api.numbers = str(number), effects, itertools.count()
        threading.Thread(target=self.api.serve_forever, args=[0.05], daemon=True).start()

    def begin(self, program):
        self.program = program
        self.process = subprocess.Popen(
            [program.hapax, "serve", "--upstream", f"http://127.0.0.1:{self.api.server_address[1]}", "--listen",
             f"127.0.0.1:{self.port}", "--store", self.kind.uri, "--module", program.module, "--workers", "1",
             "--lease", f"{LEASE_S}s", "--run-max", "30s", "--timeout", "1s", "--save-wait", "1s", "--wait", "0",
             "--drain", "5s", "--on-expired", self.policy, "--scope", "upgrade", *self.more],
            stdout=subprocess.DEVNULL, stderr=self.log, env={**os.environ, **self.kind.env},
            preexec_fn=end_with_parent)

    def start(self, program):
        self.begin(program)

        def serves():
            assert self.process.poll() is None, self.said()
            return self.ask("probe", "GET")[0] != "open"

        wait_for(serves, "the door")

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()

    def ask(self, key, method="POST"):
        """`done` and the body; `unsaved` where the outcome is not stored; `open` without an answer; or (status,
        problem)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            with contextlib.closing(connection):
                connection.request(method, "/", headers={"Idempotency-Key": key})
                reply = connection.getresponse()
                body = reply.read().decode()
        except (OSError, http.client.HTTPException):
            return "open", None
        if reply.status == 200:
            return "unsaved" if reply.getheader("Idempotency-Recorded") == "false" else "done", body
        with contextlib.suppress(ValueError, KeyError):
            return (reply.status, json.loads(body)["type"].replace(":", "/").rpartition("/")[2]), body
        return (reply.status, None), body

    def kill(self):
        if self.process:
            kill_family(self.process.pid)
            self.process.wait()
            self.process = None

    def restart(self, program):
        self.kill()
        self.start(program)

    def end(self):
        self.kill()
        self.log.close()
        self.api.shutdown()
        self.api.server_close()


class Load:
    """Clients of two doors, who all ask for the newest keys, and for those of the last two leases."""

    def __init__(self, doors, clients=3):
        self.doors, self.first = doors, self.newest()
        self.lock, self.over = threading.Lock(), threading.Event()
        self.calls = []  # (door, its program, key, began, ended, said, body)
        self.threads = [threading.Thread(target=self.run, args=[door], daemon=True)
                        for door in doors for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    @staticmethod
    def newest():
        return int(time.monotonic() * KEYS_A_S)

    def run(self, door):
        mine = random.Random()
        while not self.over.is_set():
            key = max(self.newest() - mine.randrange(mine.choice([8, 2 * LEASE_S * KEYS_A_S])), self.first)
            began, program = time.monotonic(), door.program
            said, body = door.ask(f"k{key}")
            with self.lock:
                self.calls.append((door, program, f"k{key}", began, time.monotonic(), said, body))
            self.over.wait(mine.uniform(0, 0.05))

    def said_by(self, door, since_s):
        with self.lock:
            return collections.Counter(call[5] for call in self.calls if call[0] is door and call[3] > since_s)

    def wait(self, door, said, times=40):
        """That a door says that so often from now on."""
        since_s = time.monotonic()
        wait_for(lambda: self.said_by(door, since_s)[said] >= times, f"{said} from {door.program}", 3 * PATIENCE)

    def served(self, *doors):
        for door in doors:
            self.wait(door, "done")

    def refused(self, door, times=40):
        """That it says no more than that its store is away, once what ran has ended; from when on."""
        began_s = time.monotonic()

        def only_refused():
            with self.lock:
                last = [call for call in self.calls if call[0] is door and call[3] > began_s][-times:]
            return len(last) == times and {call[5] for call in last} == {(503, "store-unavailable")} and last[0][3]

        return wait_for(only_refused, f"{door.program} being refused", 3 * PATIENCE)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@contextlib.contextmanager
def bed(of, policy, tmp_path):
    """A store, two doors of it that are not started, and a load that begins with the first step."""
    effects = tmp_path / "effects"
    effects.touch()
    with contextlib.ExitStack() as stack:
        kind = of(stack)
        doors = [Door(kind, number, effects, policy) for number in range(2)]
        try:
            yield kind, doors, effects
        finally:
            for door in doors:
                door.end()


def effects_of(effects):
    done = collections.defaultdict(list)
    for line in effects.read_text(encoding="utf-8").splitlines():
        key, at, body = line.split()
        done[key.strip('"')].append((float(at), body))
    return done


def judge(load, effects, policy, door):
    """Each key has one outcome, which is still there; and one effect, but under `rerun` a second where a door was
    killed amid the first."""
    load.end()
    calls, done = load.calls, effects_of(effects)
    counts = collections.Counter((program.name, str(said)) for _, program, _, _, _, said, _ in calls)
    again = [key for key, of_key in done.items() if len(of_key) > 1]
    print(f"\n{len(calls)} calls of {len(done)} keys, {len(again)} run again: {dict(counts)}")
    told = {said for *_, said, _ in calls if isinstance(said, tuple)}
    assert told <= PROBLEMS, [call[2:] for call in calls if call[5] in told - PROBLEMS][:5]
    outcomes = collections.defaultdict(list)
    for _, _, key, _, ended, said, body in calls:
        if said == "done":
            outcomes[key].append((ended, body))
    assert outcomes.keys() <= done.keys()
    for key, of_key in done.items():
        given = outcomes.get(key, [])
        bodies = {body for _, body in given}
        assert len(bodies) <= 1 and bodies <= {body for _, body in of_key}, (key, given, of_key)
        assert policy == "rerun" or len(of_key) == 1, (key, of_key)
        first_s = min((ended for ended, _ in given), default=float("inf"))
        assert all(at < first_s + 0.02 for at, _ in of_key), (key, given, of_key)
    for key in again:  # nobody was told of the first: its door died, or could not store it
        assert any(call[2] == key and call[5] in ("open", "unsaved") for call in calls), (key, done[key])
    for key, given in outcomes.items():
        def replayed(key=key, given=given):
            said, body = door.ask(key)
            assert said == (503, "store-unavailable") or (said, body) == ("done", given[0][1]), (key, said, body, given)
            return said == "done"

        wait_for(replayed, f"the outcome of {key}")
    return counts


def kills(load, doors):
    """Each door killed and started again, as it was, in turn."""
    for door in doors * KILLS:
        load.wait(door, "done", 10)
        door.restart(door.program)


def check(program, kind):
    return subprocess.run([program.hapax, "check", "--store", kind.uri], capture_output=True, text=True,
                          timeout=PATIENCE, env={**os.environ, **kind.env}, check=False)


# ---- what is played --------------------------------------------------------------------------------------


# Stores in which both versions write the same: doors are exchanged one by one, there and back. A folder that they share
# changes hands with each kill, from one version to the other.
@pytest.mark.parametrize("policy", ["hold", "rerun"])
@pytest.mark.parametrize("of", [OfRedis, OfDynamodb, OfFolder])
def test_doors_are_exchanged_one_by_one_and_back(of, policy, tmp_path):  # promise 47
    old = program_before(of.number)
    with bed(of, policy, tmp_path) as (kind, (one, other), effects):
        kind.init(old)
        one.start(old)
        other.start(old)
        load = Load([one, other])
        load.served(one, other)
        kind.init(NEW)
        for program in (NEW, old):
            other.restart(program)
            kills(load, [one, other])
            one.restart(program)
            load.served(one, other)
        judge(load, effects, policy, one)


# PostgreSQL's schema is made new under the old doors. Those that are connected go on, beside new ones. One that
# connects anew is refused, and so is a new one before the schema is new. There is no way back: the old stays refused.
@pytest.mark.parametrize("policy", ["hold", "rerun"])
@pytest.mark.parametrize("of", [OfPostgres, OfHybrid])
def test_a_schema_is_brought_up_to_date_under_load(of, policy, tmp_path):  # promise 47
    old = program_before(of.number)
    with bed(of, policy, tmp_path) as (kind, (one, other), effects):
        kind.init(old)
        one.start(old)
        other.start(old)
        load = Load([one, other])
        load.served(one, other)
        other.restart(NEW)
        early_s = load.refused(other)
        refusing = [(early_s, time.monotonic(), other)]
        said = check(NEW, kind)
        assert said.returncode != 0 and 'run "hapax init"' in said.stderr, said
        kind.init(NEW)
        load.served(one, other)
        kills(load, [other])
        load.served(one, other)
        one.restart(old)
        late_s = load.refused(one)
        refusing.append((late_s, time.monotonic(), one))
        said = check(old, kind)
        assert said.returncode != 0 and "use a newer Hapax" in said.stderr, said
        again = subprocess.run([old.hapax, "init", "--store", kind.uri], capture_output=True, text=True,
                               timeout=PATIENCE, check=False)
        assert again.returncode == 2, again
        one.restart(NEW)
        kills(load, [one, other])
        load.served(one, other)
        judge(load, effects, policy, other)
        for since_s, until_s, door in refusing:
            assert not [body for of_key in effects_of(effects).values() for at, body in of_key
                        if since_s < at < until_s and body.startswith(f"{door.api.name}.")]


# A keeper serves doors of both versions, and a door of the new version goes on at an old keeper. So they are exchanged
# one by one, in the order of the page, back, and against it. What the old keeper does not know is refused, and runs
# nothing; it is served once the keeper is new. The folder is read by both.
@pytest.mark.parametrize("policy", ["hold", "rerun"])
def test_a_keeper_and_its_doors_are_exchanged_one_by_one_and_back(policy, tmp_path):  # promise 47
    old = program_before(OfKeeper.number)
    with bed(OfKeeper, policy, tmp_path) as (kind, (one, other), effects):
        kind.init(old)
        one.start(old)
        other.start(old)
        load = Load([one, other])
        load.served(one, other)
        # there: the keeper, then the doors; and back: the doors, then the keeper
        for whose, program in ((kind.init, NEW), (other.restart, NEW), (one.restart, NEW),
                               (other.restart, old), (one.restart, old), (kind.init, old)):
            whose(program)
            kills(load, [one, other])
            load.served(one, other)
        # against the order: a new door first
        other.restart(NEW)
        kills(load, [one, other])
        kind.init(old)
        load.served(one, other)
        said = check(NEW, kind)
        assert said.returncode != 3 and "restart the keeper with this Hapax" in said.stdout, said
        # with a policy that the old keeper does not know
        other.more = ["--tombstone", "1h"]
        other.restart(NEW)
        since_s = load.refused(other)
        load.served(one)
        until_s = time.monotonic()
        kind.init(NEW)
        load.served(one, other)
        kills(load, [one, other])
        load.served(one, other)
        judge(load, effects, policy, one)
        assert not [body for of_key in effects_of(effects).values() for at, body in of_key
                    if since_s < at < until_s and body.startswith(f"{other.api.name}.")]


# A gate stands before the folder with a keeper of its own, which passes on what the end of a claim may need. So a
# policy that the folder's holder does not know runs nothing here either, until the gate holds the folder itself.
def test_a_policy_that_the_holder_of_a_folder_does_not_know_runs_nothing(tmp_path):
    old = program_before(OfFolder.number)
    with bed(OfFolder, "rerun", tmp_path) as (_, (one, other), effects):
        one.start(old)
        other.more = ["--tombstone", "1h"]
        other.start(NEW)
        assert other.ask("k1")[0] == (503, "store-unavailable")
        assert not effects.read_text(encoding="utf-8")
        one.kill()
        wait_for(lambda: other.ask("k1")[0] == "done", "the folder's next holder")
