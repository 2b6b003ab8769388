"""Failovers and resharding under load: what Redis forgets is counted, and what it must not, asserted.

HAPAX_FAILOVERS is how many of each kind (1; `make soak`: 50, 350 in all). Each prints its counts (pytest -s).
"""
import contextlib
import json
import os
import sys
import time

import pytest
from conftest import PATIENCE, ROOT

sys.path.insert(0, str(ROOT / "tests/servers"))
from load import Load  # noqa: E402
from process import wait_for  # noqa: E402
from redis_server import RedisCluster, RedisError, Sentinels, attempt  # noqa: E402

FAILOVERS = int(os.environ.get("HAPAX_FAILOVERS", "1"))
# Within which operations succeed again, from when a new primary can serve them: who waits for the kernel to give up a
# connection needs minutes. A single one is counted among all other tests, any of whose processes may stand for seconds.
SERVICE_S = 3.0 if FAILOVERS > 1 else 20.0
TIMEOUT_MS = 1000
# After which a node that says nothing is replaced, by wait: where nothing may be lost, a replica that stood still for
# some seconds has read what was sent to it before it can be chosen.
DOWN_MS = {0: 2000, 1: 5000}
LAG_S = 0.02  # of replicas that are far away


def sentinels(wait):
    return Sentinels(replicas=2, down_after_ms=DOWN_MS[wait]).start()


def far_sentinels(wait):
    return Sentinels(replicas=2, lags_s=[LAG_S] * 3, down_after_ms=DOWN_MS[wait]).start()


def uneven_sentinels(wait):
    return Sentinels(replicas=2, lags_s=[0.005, 0.005, 0.3], down_after_ms=DOWN_MS[wait]).start()


def cluster(wait):
    return RedisCluster(replicas=2 if wait else 1, node_timeout_ms=DOWN_MS[wait]).start()


KINDS = [(sentinels, 1), (cluster, 1), *(pytest.param(start, 0, marks=pytest.mark.ci)
                                         for start in (far_sentinels, sentinels, cluster))]
if FAILOVERS > 1:
    KINDS += [(far_sentinels, 1), (uneven_sentinels, 1)]


def fail_over(servers, how, wait):
    """Breaks a primary; it, and when another could serve in its place: elected, with the replicas it must ask."""
    before = wait_for(lambda: (found := servers.primaries()) and all(found) and found, "primaries")
    old = before[int(time.monotonic() * 1000) % len(before)]
    old.kill() if how == "kill" else old.stop()
    others = [node for node in servers.nodes if node not in before]
    new = wait_for(lambda: [node for node in others if servers.elected(node)], "an election", 2 * PATIENCE, 0.005)[0]
    elected_s = time.monotonic()
    wait_for(lambda: int(attempt(lambda: new.info("replication")["connected_slaves"], 0)) >= wait, "replicas following",
             2 * PATIENCE, 0.005)
    return old, new, elected_s, time.monotonic()


def come_back(servers, old, new, how):
    if how == "kill":
        servers.rejoin(old, new)
    else:
        old.cont()
    servers.wait_ready()


def tell(servers, n, old, new):
    """What the sentinels did, where service did not come back in time: they may have begun another failover."""
    print(f"\nfailover {n}: {old.port} was broken, {new.port} elected")
    for sentinel in getattr(servers, "sentinels", []):
        print(sentinel.log.read_text(errors="replace")[-5000:])


def run_failovers(servers, wait, how, count, usual_s=0.2):
    with servers, Load(servers.uri(timeout=f"{TIMEOUT_MS}ms", wait=wait)) as load:
        waited, elections = [], []
        for n in range(count):
            load.wait_ops(300)
            broken_s = time.monotonic()
            old, new, elected_s, able_s = fail_over(servers, how, wait)
            elections.append(able_s - broken_s)
            waited.append(load.served_again(able_s, usual_s))
            if waited[-1] > SERVICE_S:
                tell(servers, n, old, new)
            load.ask("look 5000")
            come_back(servers, old, new, how)
        load.wait_ops(1000)
        counts = load.end()
        counts.update(failovers=count, longest_without_service_s=round(max(waited), 3),
                      longest_election_s=round(max(elections), 3))
        return counts


def judge(counts, kind, wait, sure=True):
    print(f"\n{kind} wait={wait}: {json.dumps(counts)}")
    assert counts["wrong"] == 0 and counts["refused"] == 0
    assert counts["longest_without_service_s"] <= SERVICE_S
    assert counts["longest_run_us"] <= (TIMEOUT_MS + SERVICE_S * 1000) * 1000  # nothing hangs
    assert counts["acknowledged"] > 0 and counts["replayed"] > 0
    if wait and sure:
        assert counts["doubles"] == counts["lost"] == counts["changed"] == 0


# With wait=0 the primary answers before anybody else has the record: what dies with it is counted, no more.
# On one machine that is next to nothing, as the kernel still delivers what a dead process has sent;
# far_sentinels loses it, as when a machine dies.
# With wait=1 one of two replicas holds what was acknowledged. A new primary is chosen among both, by what the
# sentinels last heard of them: where one is well behind (uneven_sentinels) it might be that one. So that is counted
# only, while replicas that keep step must lose nothing. Until the killed one is back, each op there waits for the
# replica behind.
@pytest.mark.parametrize("start, wait", KINDS)
def test_service_comes_back_after_a_primary_is_killed_under_load(start, wait):  # promise 25
    uneven = start is uneven_sentinels
    counts = run_failovers(start(wait), wait, "kill", FAILOVERS, usual_s=TIMEOUT_MS / 1000 if uneven else 0.2)
    judge(counts, start.__name__, wait, sure=not uneven)


# Until it is told, it still takes itself for the primary, with its old records.
@pytest.mark.ci
def test_with_wait_a_primary_that_was_stopped_and_comes_back_is_not_believed():
    judge(run_failovers(sentinels(1), 1, "stop", max(1, FAILOVERS // 10)), "sentinels, stopped", 1)


def cut_off(node):
    """Its replicas and the sentinels lose it for good; who is connected otherwise still has it."""
    node.do("CONFIG", "SET", "requirepass", "nobody knows it")
    for line in node.do("CLIENT", "LIST").splitlines():
        peer = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if peer["flags"] == "S" or peer["name"].startswith("sentinel"):
            with contextlib.suppress(RedisError):  # it has gone by itself
                node.do("CLIENT", "KILL", "ID", peer["id"])


# It goes on answering those who are still connected to it, while another has taken over: what it takes is lost
# (10,687 of 11,185 in 8 s), unless replicas had to acknowledge it, or it may not write without them.
@pytest.mark.ci
@pytest.mark.parametrize("wait, options", [(1, {}), (0, {"min_replicas_to_write": 1, "min_replicas_max_lag": 1})])
def test_a_primary_that_is_cut_off_from_its_replicas_is_left(wait, options):  # promise 25
    with Sentinels(replicas=2, down_after_ms=DOWN_MS[wait], **options).start() as servers:
        with Load(servers.uri(timeout=f"{TIMEOUT_MS}ms", wait=wait)) as load:
            load.wait_ops(300)
            old = wait_for(servers.primary, "a primary")
            cut_off(old)
            new = wait_for(lambda: [node for node in servers.nodes if node is not old and servers.elected(node)],
                           "an election", 2 * PATIENCE, 0.005)[0]
            wait_for(lambda: int(attempt(lambda: new.info("replication")["connected_slaves"], 0)) >= 1,
                     "a replica following", 2 * PATIENCE, 0.005)
            counts = {"longest_without_service_s": round(load.served_again(time.monotonic()), 3)}
            load.wait_ops(300)
            old.do("CONFIG", "SET", "requirepass", "")
            servers.wait_ready()
            load.wait_ops(300)
            refused = {"refused": 0}  # by the password that keeps others out
            judge({**load.end(), **counts, **refused}, "a primary that is cut off", wait)


# Slots go back and forth with their keys; half-way a slot's keys are on two nodes.
@pytest.mark.ci
def test_resharding_under_load_loses_nothing():  # promise 25
    with RedisCluster().start() as servers, Load(servers.uri(timeout="20s")) as load:
        load.wait_ops(1000)
        first, second, third = servers.primaries()
        moves = [(first, second, 0), (second, third, 5462), (third, first, 10923)]
        moved = 0
        for _ in range(max(1, FAILOVERS // 2)):
            for source, target, low in moves:
                for there, back in ((source, target), (target, source)):
                    for slot in range(low, low + 100):
                        servers.move(slot, there, back)
                        moved += 1
            load.ask("look 5000")
        load.wait_ops(1000)
        counts = load.end()
        print(f"\nresharding, {moved} moves of a slot: {json.dumps(counts)}")
        assert counts["doubles"] == counts["lost"] == counts["changed"] == counts["wrong"] == 0
        assert counts["refused"] == counts["unavailable"] == counts["indeterminate"] == 0
        assert counts["acknowledged"] > 0
