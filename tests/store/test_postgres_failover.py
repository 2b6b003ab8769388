"""PostgreSQL that is restarted, whose backends are ended, and that fails over to a synchronous standby, all under load.

tests/store/load.c keeps the ledger: no effect twice, no acknowledged completion lost, service back by itself.
HAPAX_FAILOVERS is how many failovers (`make soak`: 50). Each test prints its counts (pytest -s).
"""
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from conftest import HAPAX, PATIENCE, ROOT
from load import Load

sys.path.insert(0, str(ROOT / "tests/servers"))
from postgres_server import PgBouncer, Postgres, synchronous_pair  # noqa: E402

FAILOVERS = int(os.environ.get("HAPAX_FAILOVERS", "2"))
# Within which operations succeed again, from when a server can serve them: who waits for the kernel to give up a
# connection needs minutes. A few are counted among all other tests, any of whose processes may stand for seconds.
SERVICE_S = 5.0 if FAILOVERS > 2 else 20.0
TIMEOUT_MS = 2000


def init(uri):
    subprocess.run([HAPAX, "init", "--store", uri], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def judge(counts, waited=()):
    counts["longest_without_service_s"] = round(max(waited, default=0), 3)
    print("\n" + json.dumps(counts))
    assert counts["doubles"] == counts["lost"] == counts["changed"] == counts["wrong"] == counts["refused"] == 0
    assert counts["acknowledged"] > 0 and counts["replayed"] > 0
    assert counts["longest_run_us"] <= (TIMEOUT_MS + (2000 if FAILOVERS > 2 else 20000)) * 1000  # nothing hangs
    assert counts["longest_without_service_s"] <= SERVICE_S


def end_backends(server):
    return int(server.psql("SELECT count(*) FROM (SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                           " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()) t"))


# Every backend is ended at once, again and again: what is under way is asked for again, and answered as it was.
@pytest.mark.ci
@pytest.mark.parametrize("pooled", [True, False])
def test_ended_backends_lose_nothing(pooled):
    with Postgres() as server:
        server.start()
        with PgBouncer(server) as pooler:
            door = pooler.start() if pooled else server
            init(server.uri())
            with Load(door.uri(timeout=f"{TIMEOUT_MS}ms")) as load:
                ended = 0
                for _ in range(20):
                    load.wait_ops(50)
                    ended += end_backends(server)
                since_s = time.monotonic()
                waited = load.served_again(since_s)
                load.ask("look 5000")
                counts = load.end()
                counts["ended"] = ended
                judge(counts, [waited])
                assert ended >= 20


# Fast, and as a machine that dies.
@pytest.mark.ci
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.ci), signal.SIGKILL])
def test_a_restart_under_load_loses_nothing(number):
    with Postgres() as server:
        server.start()
        init(server.uri())
        with Load(server.uri(timeout=f"{TIMEOUT_MS}ms")) as load:
            waited = []
            for _ in range(3):
                load.wait_ops(300)
                server.restart(number)
                waited.append(load.served_again(time.monotonic()))
            load.ask("look 5000")
            judge(load.end(), waited)


def fail_over(primary, standby):
    """The primary dies and the standby takes its place; when it could serve."""
    primary.kill()
    standby.promote()
    return time.monotonic()


# The primary is killed while commits wait for its standby, and the standby is promoted: what was acknowledged is there,
# what was not is asked for again, and nobody had to tell a client.
def test_a_failover_to_a_synchronous_standby_loses_nothing():  # promise 23
    for _ in range(FAILOVERS):
        primary, standby = synchronous_pair()
        try:
            init(primary.uri())
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            uri = f"postgres://postgres@{hosts}/postgres?timeout={TIMEOUT_MS}ms"
            with Load(uri) as load:
                load.wait_ops(300)
                able_s = fail_over(primary, standby)
                waited = load.served_again(able_s)
                load.wait_ops(300)
                load.ask("look 5000")
                judge(load.end(), [waited])
        finally:
            standby.end()
            primary.end()
