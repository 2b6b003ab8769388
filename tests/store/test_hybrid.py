"""Redis in front of PostgreSQL, through the binaries: what each half's failure looks like, and rounds of failures under
load.

HAPAX_HYBRID_ROUNDS is how many rounds of a broken Redis there are (4; `make soak`: 500), a quarter of each kind;
HAPAX_HYBRID_RESTARTS, how many of PostgreSQL restarted (2; 200). Each prints its counts (pytest -s).
"""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import HAPAX, PATIENCE, ROOT
from handle import patient
from load import Load

sys.path.insert(0, str(ROOT / "tests/servers"))
import postgres_server  # noqa: E402
from process import wait_for  # noqa: E402
from redis_server import Redis  # noqa: E402

Postgres = patient(postgres_server.Postgres)
ROUNDS = int(os.environ.get("HAPAX_HYBRID_ROUNDS", "4"))
RESTARTS = int(os.environ.get("HAPAX_HYBRID_RESTARTS", "2"))
LEASE_MS = 1000


class Hybrid:
    """A PostgreSQL, and some Redis in front of it."""

    def __init__(self, nodes):
        self.redis, self.postgres = [], None
        try:
            self.postgres = Postgres().start()
            for _ in range(nodes):
                self.redis.append(Redis().start())
            self.database = self.postgres.database()
            subprocess.run([str(HAPAX), "init", "--store", self.uri()], check=True, capture_output=True)
        except BaseException:
            self.end()
            raise

    def end(self):
        for server in [*self.redis, *filter(None, [self.postgres])]:
            server.end()

    def uri(self, **parameters):
        return f"hybrid:{','.join(node.uri() for node in self.redis)}+{self.postgres.uri(self.database, **parameters)}"

    def hints(self, node=0):
        return self.redis[node].do("KEYS", "hapax:hint:*")

    def completed(self, hapax, key, **more):
        """Completed, and copied: which a process does that has asked PostgreSQL for more than this one op."""
        hapax.completed(self.uri(), key, **more)

        def copied():
            """Redis that takes its time is not waited for, and has no copy then."""
            assert hapax.op(self.uri(), "claim", key, "x") == "completed"
            return sum(bool(self.hints(node)) for node in range(len(self.redis))) > len(self.redis) // 2

        wait_for(copied, "a copy")


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.ci)], ids=["one", "three"])
def servers(request):
    hybrid = Hybrid(request.param)
    yield hybrid
    hybrid.end()


@pytest.fixture(scope="module")
def quorum():
    hybrid = Hybrid(3)
    yield hybrid
    hybrid.end()


def mended(servers):
    for node in servers.redis:
        node.do("FLUSHALL")
    yield servers
    for server in [*servers.redis, servers.postgres]:
        if server.stopped:
            server.cont()
        if not server.running:
            server.launch()


@pytest.fixture
def whole(servers):
    """Both halves, running and without hints; what a test breaks is mended after it."""
    yield from mended(servers)


@pytest.fixture
def whole_quorum(quorum):
    yield from mended(quorum)


# ---- the command line ------------------------------------------------------------------------


# check judges both halves and compares their clocks; init makes PostgreSQL's, and does nothing where it is there.
def test_check_and_init_know_both_halves(hapax, whole):
    def checked(code, *texts):
        """A node has a second to answer in; where it stood still meanwhile, it is asked again."""
        def told():
            done = hapax("check", "--store", whole.uri())
            assert done.code in (1, 3)
            return done.code == code and all(text in done.out for text in texts)

        wait_for(told, f"{code} and {texts}")

    def works():
        key = os.urandom(8).hex()
        hapax.completed(whole.uri(), key)
        return hapax.op(whole.uri(), "claim", key, "2") == "completed"

    nodes = range(1, len(whole.redis) + 1)
    answers = [f"redis node {number} answers; its clock agrees with PostgreSQL's" for number in nodes]
    checked(1, "PostgreSQL", *answers)  # fsync is off, for the test's sake
    assert hapax("init", "--store", whole.uri()).code == 0
    whole.redis[0].kill()
    away = ["danger  redis node 1 does not answer"]
    if len(whole.redis) == 1:
        away.append("danger  redis: 0 of 1 nodes answer, so every op goes to PostgreSQL: nothing is lost")
    checked(1, *away)
    assert works()
    whole.postgres.stop()
    assert hapax("check", "--store", whole.uri(timeout="500ms")).code == 3


# A store is for one secret, through the hybrid too, and copies do not hide it.
def test_a_secret_is_bound_in_postgresql(hapax, servers):
    fresh = Hybrid(1)
    try:
        assert hapax.op(fresh.uri(), "bind", "first") == "none"
        for _ in range(3):
            assert hapax.op(fresh.uri(), "bind", "first") == "none"
            assert hapax.op(fresh.uri(), "bind", "second") == "refused"
    finally:
        fresh.end()


# Without a secret whoever can write to the Redis can forge answers: a danger, where that Redis is open to others.
def test_check_names_a_redis_that_others_can_forge_in(hapax, servers):
    fresh = Hybrid(1)
    try:
        assert "can forge answers" in hapax("check", "--store", fresh.uri()).out
        assert hapax.op(fresh.uri(), "bind", "first") == "none"
        told = hapax("check", "--store", fresh.uri()).out
        assert "forge" not in told and "copies are sealed" in told
        fresh.postgres.psql("CREATE ROLE door LOGIN")
        hapax("init", "--store", fresh.postgres.uri(fresh.database), "--role", "door=door")
        as_door = hapax("check", "--store", fresh.uri().replace("postgres@", "door@"))
        told = as_door.out + as_door.err
        assert as_door.code == 1 and "copies are sealed" in told, told  # 1: fsync is off, for the test's sake
    finally:
        fresh.end()


# `hapax resolve --force` of a completion that has a copy: whoever asks after it gets the operator's.
def test_an_operators_word_is_the_last(hapax, whole):
    key = f"resolved{time.monotonic_ns()}"
    whole.completed(hapax, key, body="first")
    assert hapax.op(whole.uri(), "claim", key, "2") == "completed"
    done = hapax("resolve", "--store", whole.uri(), key, "--complete", "201", "--force", "--by", "ann")
    assert done.code == 0, done.err
    assert hapax("show", "--store", whole.uri(), key, "--json").json["status"] == 201
    assert hapax.op(whole.uri(), "claim", key, "3") == "completed"
    done = hapax("resolve", "--store", whole.uri(), key, "--forget", "--force", "--by", "ann")
    assert done.code == 0, done.err
    assert hapax.op(whole.uri(), "claim", key, "4") == "claimed"


# ---- a half that is down ---------------------------------------------------------------------


def replayed(hapax, uri, key):
    def asked():
        given = hapax.op(uri, "claim", key, "2")
        assert given in ("completed", "unavailable", "indeterminate"), given
        return given == "completed"

    wait_for(asked, "its copy")


# PostgreSQL down: nothing is claimed, and replays only where the policy allows them.
def test_a_copy_is_replayed_without_postgresql_only_if_asked_for(hapax, whole):
    key = f"down{time.monotonic_ns()}"
    whole.completed(hapax, key, body="kept")
    whole.postgres.kill()
    assert hapax.op(whole.uri(), "claim", key, "2") == "unavailable"
    assert hapax.op(whole.uri(stale_replay="off"), "claim", key, "2") == "unavailable"
    replayed(hapax, whole.uri(stale_replay="on"), key)
    assert hapax.op(whole.uri(stale_replay="on"), "claim", key + "x", "2") == "unavailable"
    whole.postgres.launch()
    assert hapax.op(whole.uri(stale_replay="on"), "claim", key + "x", "2") == "claimed"


# The same where it hangs and says nothing; what was not sent to it is surely not applied.
def test_a_copy_is_replayed_while_postgresql_hangs(hapax, whole):
    key = f"hangs{time.monotonic_ns()}"
    whole.completed(hapax, key)
    whole.postgres.stop()
    replayed(hapax, whole.uri(stale_replay="on", timeout="500ms"), key)
    assert hapax.op(whole.uri(timeout="500ms"), "claim", key, "2") == "unavailable"


# All of Redis down, or hanging: PostgreSQL answers as ever.
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_without_redis_it_is_postgresql(hapax, whole, how):
    key = f"{how}{time.monotonic_ns()}"
    for node in whole.redis:
        getattr(node, how)()
    began = time.monotonic()
    assert hapax.op(whole.uri(), "claim", key, "1", 30000) == "claimed"
    assert hapax.op(whole.uri(), "claim", key, "2", 30000) == "in_flight"
    assert hapax.op(whole.uri(), "complete", key, "1", 200, "", "x") == "ok"
    assert hapax.op(whole.uri(), "claim", key, "2", 30000) == "completed"
    assert time.monotonic() - began < PATIENCE / 2


# A node of three down: the quorum turns contention away; two down, and PostgreSQL is asked.
def test_a_quorum_bears_a_node_that_is_down(hapax, whole_quorum):
    for down in (0, 1):
        whole_quorum.redis[down].kill()
        key = f"quorum{down}{time.monotonic_ns()}"
        wait_for(lambda: hapax.op(whole_quorum.uri(), "claim", key, "1", 30000) == "claimed" and whole_quorum.hints(2),
                 "a lock")
        assert hapax.op(whole_quorum.uri(), "claim", key, "2", 30000) == "in_flight"
        assert hapax.op(whole_quorum.uri(), "complete", key, "1", 200, "", "x") == "ok"
        assert hapax.op(whole_quorum.uri(), "claim", key, "2", 30000) == "completed"


# A node that was stopped for ten leases comes back with what stood there then; nobody believes it.
def test_a_node_paused_for_ten_leases_is_not_believed(hapax, whole):  # promise 26
    key = f"paused{time.monotonic_ns()}"
    lease_ms = 200
    assert hapax.op(whole.uri(), "claim", key, "1", lease_ms) == "claimed"
    for node in whole.redis:
        node.stop()
    began = time.monotonic()
    wait_for(lambda: hapax.op(whole.uri(), "claim", key, "2", 30000) == "claimed", "a takeover")
    wait_for(lambda: time.monotonic() - began >= 10 * lease_ms / 1000, "ten leases", pause=0.05)
    for node in whole.redis:
        node.cont()
    assert hapax.op(whole.uri(), "complete", key, "1", 299, "", "late") == "lost"
    assert hapax.op(whole.uri(), "claim", key, "3", 30000) == "in_flight"
    assert hapax.op(whole.uri(), "complete", key, "2", 200, "", "second") == "ok"
    assert hapax.op(whole.uri(), "claim", key, "3", 30000) == "completed"


# ---- rounds under load -----------------------------------------------------------------------


def kill(node, load):
    (node.folder / "dump.rdb").unlink(missing_ok=True)
    node.kill()
    load.wait_ops(100)
    node.launch()


def flush(node, load):
    node.do("FLUSHALL")


def pause(node, load):
    node.stop()
    until = time.monotonic() + 10 * LEASE_MS / 1000
    load.wait_ops(100)
    wait_for(lambda: time.monotonic() >= until, "ten leases", pause=0.05)
    node.cont()


def put_back(node, load):
    """Restored from a dump that was made some hundred operations ago."""
    node.do("SAVE")
    load.wait_ops(400)
    node.kill()
    node.launch()


def judge(counts, what):
    print(f"\n{what}: {json.dumps(counts)}")
    assert counts["doubles"] == counts["lost"] == counts["changed"] == counts["wrong"] == counts["refused"] == 0
    assert counts["acknowledged"] > 0 and counts["replayed"] > 0 and counts["in_flight"] > 0


# Whatever happens to Redis, no effect happens twice and no acknowledged completion is lost.
@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.ci)])
def test_redis_may_break_under_load(nodes):  # promise 26
    hybrid = Hybrid(nodes)
    try:
        with Load(hybrid.uri(timeout="5s"), pause_us=5000, lease_ms=LEASE_MS) as load:
            for number in range(ROUNDS):
                load.wait_ops(300)
                victims = hybrid.redis[:1 + number % nodes]  # one, or a majority, or all
                for node in victims if number % 4 != 2 else victims[:1]:
                    (kill, flush, pause, put_back)[number % 4](node, load)
                if number % 10 == 9:
                    load.ask("look 5000")
            load.wait_ops(500)
            judge(load.end(), f"{ROUNDS} rounds of a broken Redis, {nodes} nodes")
    finally:
        hybrid.end()


# PostgreSQL restarted, gracefully or by kill -9, with the copies standing: what was answered stays so.
@pytest.mark.ci
def test_postgresql_may_restart_under_load():
    hybrid = Hybrid(1)
    try:
        with Load(hybrid.uri(timeout="5s"), pause_us=5000, lease_ms=300000) as load:
            for number in range(RESTARTS):
                load.wait_ops(300)
                hybrid.postgres.restart((signal.SIGINT, signal.SIGKILL)[number % 2])
                if number % 3 == 2:
                    hybrid.redis[0].do("FLUSHALL")
                load.ask("look 5000")
            load.wait_ops(500)
            judge(load.end(), f"{RESTARTS} restarts of PostgreSQL")
    finally:
        hybrid.end()
