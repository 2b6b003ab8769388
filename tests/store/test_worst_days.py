"""Each store on its worst day, under load. What may be lost is counted and printed (pytest -s); what must not be lost,
or done twice, is asserted. docs/stores.md has both, in its table of worst days, with the tests that stand elsewhere."""
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import types

import pytest
from conftest import BUILD, HAPAX, PATIENCE, ROOT
from histories import Keeper
from load import Load
from test_dynamodb import Refusing

sys.path.insert(0, str(ROOT / "tests/servers"))
from disk import small_disk  # noqa: E402
from dynamodb_server import KEYS, DynamoDB  # noqa: E402
from postgres_server import PgBouncer, Postgres, synchronous_pair  # noqa: E402
from process import NotReady, wait_for  # noqa: E402
from proxy import Proxy  # noqa: E402
from redis_server import Redis  # noqa: E402

pytestmark = pytest.mark.ci
STANDS_S = 3  # for so long any process may stand still
TIMEOUT = {"timeout": "2s"}


def judge(what, load, lost_since_s=None, **more):
    """Ends the load, prints its counts with these, and looks at what holds on any day. lost_since_s: from what was told
    after that moment something may be missing; None: nothing may."""
    counts = load.end()
    since_s = load.lost_since_s()
    print(f"\n{what}: {json.dumps({**counts, **more})}")
    assert counts["wrong"] == counts["refused"] == 0, counts
    assert counts["acknowledged"] > 0 and counts["replayed"] > 0, counts
    if lost_since_s is None:
        assert counts["doubles"] == counts["lost"] == counts["forgotten"] == counts["changed"] == 0, counts
    assert since_s is None or since_s >= lost_since_s, (since_s, lost_since_s, counts)
    return counts


def slow(kind, sync_ms, below=""):
    """Such a server, each of whose syncs takes that long, of the files below that path of its folder."""
    class Slow(kind):
        def command(self):
            return ["env", f"LD_PRELOAD={BUILD}/tests/store/libfailing_io.so",
                    f"SLOW_IO={self.folder}{below}:{sync_ms}", *super().command()]

    return Slow


def init(uri):
    subprocess.run([HAPAX, "init", "--store", uri], check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)


def wait_until_refused(load, tries=50):
    """That so many more tries of ops were given no verdict."""
    def failed():
        counts = load.ask()
        return counts["unavailable"] + counts["indeterminate"]

    enough = failed() + tries
    wait_for(lambda: failed() >= enough, "ops without a verdict", 3 * PATIENCE)


# ---- Redis ---------------------------------------------------------------------------------------


# At its memory limit. allkeys: any record goes, that of a running claim as well. volatile: a completed record, which
# has an expiry; a claim under `hold` has none and stays. noeviction: nothing is written any more, and nothing goes.
@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "noeviction"])
def test_a_redis_at_its_memory_limit(policy):  # promise 29
    with Redis(maxmemory_policy=policy).start() as redis, Load(redis.uri(**TIMEOUT), pause_us=2000) as load:
        load.wait_ops(300)
        redis.do("CONFIG", "SET", "maxmemory", int(redis.info("memory")["used_memory"]) + (256 << 10))
        if policy == "noeviction":
            wait_until_refused(load)
            load.ask("look 300")  # what is completed can be read meanwhile
            redis.do("CONFIG", "SET", "maxmemory", 0)
            load.served_again(time.monotonic())
            load.wait_ops(300)
            judge(policy, load)
            return
        wait_for(lambda: int(redis.info("stats")["evicted_keys"]) > 1000, "evictions", 3 * PATIENCE)
        load.ask("look 5000")
        counts = judge(policy, load, 0, evicted=int(redis.info("stats")["evicted_keys"]))
        assert counts["lost"] > 0
        assert policy == "allkeys-lru" or counts["forgotten"] == 0


# kill -9, three times. appendfsync always: nothing is lost. everysec: what was told while a sync was late, for two
# seconds at most.
@pytest.mark.parametrize("appendfsync, sync_ms", [("everysec", 0), ("everysec", 1500), ("always", 50)])
def test_a_redis_is_killed(appendfsync, sync_ms):  # promise 28
    with slow(Redis, sync_ms)(appendonly="yes", appendfsync=appendfsync).start() as redis:
        with Load(redis.uri(**TIMEOUT)) as load:
            lost_s = []
            for _ in range(3):
                load.wait_ops(300)
                killed_s = time.monotonic()
                redis.kill()
                redis.launch()
                load.served_again(time.monotonic())
                load.ask("look 5000")
                lost_s.append(killed_s - (load.lost_since_s() or killed_s))
            load.wait_ops(300)
            what = f"kill -9, appendfsync {appendfsync}, each sync {sync_ms} ms"
            counts = judge(what, load, None if appendfsync == "always" else 0, lost_s=[round(s, 2) for s in lost_s])
            assert max(lost_s) <= 2 + STANDS_S + 1 and (max(lost_s) > 0 or counts["lost"] == 0)


# A disk that has lied about its syncs: the file ends in the middle of an entry. With `aof-load-truncated no` Redis does
# not start, and nothing runs; with `yes`, Redis' default, what was told before that place is there.
def test_an_aof_that_is_cut_loses_its_end_and_no_more():  # promise 28
    options = {"appendonly": "yes", "appendfsync": "always", "auto_aof_rewrite_percentage": 0}
    with Redis(**options).start() as redis, Load(redis.uri(**TIMEOUT)) as load:
        file = redis.folder / "appendonlydir/appendonly.aof.1.incr.aof"
        load.wait_ops(500)
        kept_s, kept = time.monotonic(), file.stat().st_size
        load.wait_ops(500)
        redis.kill()
        entries = file.read_bytes()
        cut = random.choice([at for at in range(kept, len(entries)) if entries[at - 1:at] != b"\n"])
        os.truncate(file, cut)
        redis.options["aof_load_truncated"] = "no"
        claimed = load.ask()["claimed"]
        with pytest.raises(NotReady):
            redis.launch()
        wait_until_refused(load)
        assert load.ask()["claimed"] == claimed
        redis.kill()
        redis.options["aof_load_truncated"] = "yes"
        redis.launch()
        load.served_again(time.monotonic())
        load.ask("look 5000")
        load.wait_ops(300)
        judge("a cut AOF", load, kept_s, bytes_lost=len(entries) - cut)


# The disk is full: with `always` Redis ends before it answers, with everysec it refuses writes. With everysec and a
# kill -9 meanwhile, what was told in the moment before the first write failed is in no file.
@pytest.mark.parametrize("appendfsync, killed", [("always", True), ("everysec", False), ("everysec", True)])
def test_the_disk_of_a_redis_is_full(appendfsync, killed):  # promise 28
    redis = Redis(appendonly="yes", appendfsync=appendfsync, auto_aof_rewrite_percentage=0)
    with small_disk(redis.folder, 16) as disk, redis:
        redis.start()
        with Load(redis.uri(**TIMEOUT)) as load:
            load.wait_ops(300)
            full_s = time.monotonic()
            disk.fill()
            wait_until_refused(load)
            if killed:
                redis.kill()
            disk.empty()
            if not redis.running:
                redis.kill()
                redis.launch()
            load.served_again(time.monotonic())
            load.ask("look 5000")
            load.wait_ops(300)
            judge(f"a full disk, appendfsync {appendfsync}{', killed' if killed else ''}", load,
                  full_s if killed and appendfsync == "everysec" else None)


# ---- the embedded store ----------------------------------------------------------------------------


# No room for another byte, and kill -9 of the keeper meanwhile.
@pytest.mark.parametrize("killed", [False, True])
def test_the_disk_of_a_keeper_is_full(killed):  # promise 20
    keeper = Keeper()
    with small_disk(keeper.folder, 64) as disk, keeper:
        keeper.start()
        with Load(f"unix:{keeper.folder}/socket?timeout=2s") as load:
            load.wait_ops(300)
            disk.fill()
            wait_until_refused(load)
            if killed:
                keeper.kill()
                disk.fill()
                with contextlib.suppress(NotReady):
                    keeper.launch()
                wait_until_refused(load)
                keeper.kill()
            disk.empty()
            if killed:
                keeper.launch()
            load.served_again(time.monotonic())
            load.ask("look 5000")
            load.wait_ops(300)
            judge(f"a full disk, keeper{', killed' if killed else ''}", load)


# Each sync takes 200 ms, and the keeper is killed amid them.
@pytest.mark.parametrize("options", ["", "?sync=off"])
def test_the_disk_of_a_keeper_is_slow(options):  # promise 20
    class Unsynced(Keeper):
        def command(self):
            return [f"{word}{options}" if str(word).startswith("rocksdb:") else word for word in super().command()]

    with slow(Unsynced, 200)().start() as keeper, Load(f"unix:{keeper.folder}/socket?timeout=2s") as load:
        for _ in range(5):
            load.wait_ops(60)
            keeper.kill()
            keeper.launch()
        load.served_again(time.monotonic(), 2)
        load.ask("look 5000")
        judge(f"each sync 200 ms, keeper{options}, five kills", load)


# ---- PostgreSQL ----------------------------------------------------------------------------------------


# The standby is 50 ms behind, and what is on its way dies with the primary: what had reached the standby is there.
def test_a_failover_to_an_asynchronous_standby_loses_what_had_not_reached_it():  # promise 30
    with Postgres().start() as primary, Proxy(primary.port) as line:
        with Postgres(standby_of=types.SimpleNamespace(port=line.port)).start() as standby:
            init(primary.uri())
            streams = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            wait_for(lambda: primary.psql(streams) == "1", "the standby following", pause=0.05)
            line.delay("reply", 0.05, times=0, lasting=True)
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            with Load(f"postgres://postgres@{hosts}/postgres?timeout=2s") as load:
                load.wait_ops(300)
                there_s, at = time.monotonic(), primary.psql("SELECT pg_current_wal_insert_lsn()")
                arrived = f"SELECT pg_last_wal_receive_lsn() >= '{at}'"
                wait_for(lambda: standby.psql(arrived) == "t", "the standby having it", pause=0.05)
                load.wait_ops(300)
                line.refuse()
                died_s = time.monotonic()
                primary.kill()
                standby.promote()
                load.served_again(time.monotonic())
                load.ask("look 5000")
                load.wait_ops(300)
                lost_s = died_s - (load.lost_since_us / 1e6 or died_s)
                judge("asynchronous failover, 50 ms behind", load, there_s, lost_s=round(lost_s, 3))


class Pooler(PgBouncer):
    """One whose operator sends it to another server."""

    def __init__(self, postgres):
        super().__init__(postgres, admin_users="postgres")

    def ask(self, command):
        return self.postgres.run("psql", "-X", "-A", "-t", "-h", "127.0.0.1", "-p", self.port, "-U", "postgres", "-d",
                                 "pgbouncer", "-c", command)

    def go_to(self, postgres):
        self.postgres = postgres
        self.command()
        self.ask("RELOAD")


# By plan, behind a PAUSE; after the primary's death; and, as nobody should, to a standby before it was promoted. All
# clients know only the pooler.
@pytest.mark.parametrize("how", ["planned", "killed", "early"])
def test_a_pooler_switches_servers(how):  # promise 30
    primary, standby = synchronous_pair()
    try:
        init(primary.uri())
        with Pooler(primary).start() as pooler, Load(pooler.uri(**TIMEOUT)) as load:
            load.wait_ops(300)
            if how == "planned":
                pooler.ask("PAUSE")
                primary.kill(signal.SIGINT)
                standby.promote()
                pooler.go_to(standby)
                pooler.ask("RESUME")
            elif how == "killed":
                primary.kill()
                standby.promote()
                pooler.go_to(standby)
            else:
                primary.kill()
                pooler.go_to(standby)
                wait_until_refused(load)
                standby.promote()
            load.served_again(time.monotonic())
            load.wait_ops(300)
            load.ask("look 5000")
            judge(f"a pooler goes over, {how}", load)
    finally:
        standby.end()
        primary.end()


# Out of room for its log PostgreSQL ends, and does not come up before there is room.
def test_the_disk_of_a_postgres_is_full():  # promise 30
    server = Postgres(max_wal_size="4MB", min_wal_size="2MB", wal_keep_size=0, wal_recycle="off", wal_init_zero="on")
    with small_disk(server.folder, 80) as disk, server:
        server.start()
        init(server.uri())
        with Load(server.uri(**TIMEOUT)) as load:
            load.wait_ops(300)
            disk.fill()
            wait_until_refused(load)
            with contextlib.suppress(RuntimeError):
                server.psql("SELECT pg_switch_wal()")  # so that the log needs another file
            disk.fill()
            wait_until_refused(load)
            ended = not server.answers()
            server.kill()
            disk.empty()
            server.launch()
            load.served_again(time.monotonic())
            load.ask("look 5000")
            load.wait_ops(300)
            judge("a full disk, PostgreSQL", load, ended=ended)


# Each sync takes 100 ms, and the server is killed amid them.
def test_the_disk_of_a_postgres_is_slow():  # promise 30
    with slow(Postgres, 100, "/data/pg_wal")(fsync="on").start() as server:
        init(server.uri())
        with Load(server.uri(**TIMEOUT)) as load:
            for _ in range(3):
                load.wait_ops(100)
                server.kill()
                server.launch()
            load.served_again(time.monotonic(), 2)
            load.ask("look 5000")
            judge("each sync 100 ms, PostgreSQL, three kills", load)


# ---- DynamoDB ------------------------------------------------------------------------------------------


class Throttling(Refusing):
    """A stand-in for a table whose capacity is used up: it refuses a share of the calls as DynamoDB does, and passes
    the others to DynamoDB Local, which never refuses any."""

    share, refused = 0.0, 0

    def take(self, operation):
        if random.random() >= self.share:
            return None
        self.refused += 1
        return [400, random.choice(["ProvisionedThroughputExceededException", "ThrottlingException"])]


# Half of the calls, then all of them, then none.
def test_a_table_that_is_throttled(monkeypatch):  # promise 27
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with DynamoDB().start() as server, Throttling(server.port) as throttling:
        init(server.uri())
        uri = f"dynamodb://eu-central-1/hapax?endpoint=http://127.0.0.1:{throttling.port}&timeout=2s"
        try:
            with Load(uri, workers=3) as load:
                load.wait_ops(60)
                throttling.share = 0.5
                load.wait_ops(60)
                throttling.share = 1
                wait_until_refused(load, 6)
                throttling.share = 0
                load.served_again(time.monotonic(), 2)
                load.wait_ops(60)
                load.ask("look 50")
                judge("throttled", load, calls_refused=throttling.refused)
                assert throttling.refused > 0
        finally:
            throttling.shutdown()
