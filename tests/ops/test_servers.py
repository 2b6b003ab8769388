"""Incidents of the servers that a store lives on: the alert of each fires within two scrapes, the page for operators
shows it, and what the runbook says mends it. Each has servers of its own, which it may spoil."""
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request

import psycopg2
import pytest

import gate as g
import rabbit
from conftest import HAPAX, end, read_line, wait_until
from door_client import Client
from pg import Database
from postgres_server import Postgres
from process import faketime, wait_for
from redis_server import Redis
from served import Served
from watched import Watched

GATE = "--lease", "600ms", "--timeout", "300ms", "--wait", "0", "--workers", "1"


@pytest.fixture
def bed(browser):
    folder = pathlib.Path(tempfile.mkdtemp(prefix="hapax-e2e-"))
    bed = Watched(folder, browser)
    bed.api = g.Api()
    yield bed
    bed.close()
    bed.api.close()
    shutil.rmtree(folder)


def ready(process, word):
    line = read_line(process)
    assert word in line, line + process.stderr.read()
    return process


def door_that_starts(bed, store, *options):
    return bed.hapax.start("door", "--store", store, "--listen", f"unix:{bed.hapax.folder}/d.sock", *options,
                           *bed.metrics("hapax-door"))


def door(bed, store, *options):
    """The least that watches a store."""
    return ready(door_that_starts(bed, store, *options), "d.sock")


# ---- a full disk ------------------------------------------------------------------------------------


def keeper_on_a_disk(bed, disk):
    """A keeper whose store is on a disk of 64 MiB that no other process sees."""
    disk.mkdir()
    root = os.geteuid() == 0
    keep = f"exec {HAPAX} keep --store rocksdb:{disk}/store --listen unix:{bed.hapax.folder}/k.sock " + " ".join(
        [*(["--group www-data"] if root else []), *bed.metrics("hapax-keep")])
    process = subprocess.Popen(["unshare", "-m" if root else "-rm", "sh", "-c",
                                f"mount -t tmpfs -o size=64m none {disk} || exit 77; {keep}"], env=bed.hapax.env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    bed.hapax.processes.append(process)
    if not read_line(process):
        if process.wait() == 77:
            pytest.skip("this machine lets nobody mount a disk of his own")
        raise AssertionError(process.stderr.read())
    return process


def test_a_full_disk_is_seen_and_the_store_writes_again_once_there_is_room(bed):
    disk = bed.hapax.folder / "disk"
    keeper = keeper_on_a_disk(bed, disk)
    store = f"unix:{bed.hapax.folder}/k.sock"
    served = Served(bed.hapax, bed.api, store, *GATE, *bed.metrics("hapax-serve"))
    assert served.post("/ok", "before").status == 200
    bed.watch(store)
    filler = pathlib.Path(f"/proc/{keeper.pid}/root{disk}/filler")
    with open(filler, "wb", buffering=0) as file:
        with pytest.raises(OSError, match="No space left"):
            while True:
                file.write(bytes(1 << 20))
    statuses = [served.post("/ok", f"full-{i}", b"x" * 5000).status for i in range(300)]
    assert statuses[-1] == 503
    bed.fires("HapaxDisk", "HapaxStoreErrors")
    bed.shows(r"\bstore disk free \d+ B", r"\bstore errors \d")
    # What is stored is replayed, whenever the gate asks the store: it takes it for dead, and asks twice a second.
    wait_until(lambda: served.post("/ok", "before").replayed == "true", "a replay")
    checked = bed.hapax("check", "--store", store)
    assert checked.code == 1 and "soon nothing more can be stored" in checked.out, checked.out
    filler.unlink()
    wait_until(lambda: served.post("/ok", "after").status == 200, "that the store writes again")
    bed.quiet()


# ---- a blocked outbox -------------------------------------------------------------------------------


@pytest.fixture
def outbox(bed):
    """A database, a relay that publishes its outbox, and a queue that is not there yet."""
    with Postgres() as server:
        server.start()
        database = Database(server)
        queue = rabbit.Queue(rabbit.server())
        ready(bed.hapax.start("relay", "--from", database.uri, "--to", rabbit.server().uri(), "--retry", "100ms",
                              "--attempts-max", "7", *bed.metrics("hapax-relay")), "publishes")
        yield database, queue


def publish(database, topic, *payloads):
    for payload in payloads:
        database.run("SELECT hapax.publish(%s, 'a', %s, NULL, %s)", topic, f"k-{payload}", payload.encode())


# What the broker refuses keeps back its aggregate, until it is put aside; an operator has it published after all.
def test_a_message_that_the_broker_refuses_blocks_its_outbox_until_it_is_redriven(bed, outbox):
    database, queue = outbox
    missing = rabbit.Queue.beside(queue, f"{queue.name}.missing")
    bed.watch(database.uri)
    publish(database, missing.name, "refused")
    bed.fires("HapaxOutboxLate", more=1)
    bed.fires("HapaxOutboxAside", more=7)  # tries go on for six seconds
    bed.shows(r"\brelay held 1\b")
    bed.page.press("4")
    bed.shows(f'there is no queue "{missing.name}"')
    listed = bed.hapax("list", "--outbox", "--store", database.uri)
    assert f'there is no queue "{missing.name}"' in listed.out, listed.out
    missing.declare({"x-queue-type": "quorum"})
    assert bed.hapax("redrive", "--from", database.uri).code == 0
    wait_until(lambda: missing.ready() == 1, "that it is published")
    bed.quiet()


# The runbook's statement names the transaction.
def test_a_transaction_that_blocks_the_outbox_is_found_and_ended(bed, outbox):
    database, queue = outbox
    bed.watch(database.uri)
    blocker = psycopg2.connect(database.uri)
    with blocker.cursor() as cursor:
        cursor.execute("BEGIN")
        publish(database, queue.name + ".nowhere", "waits")  # it is tried again and again
        cursor.execute("LOCK TABLE hapax.outbox IN SHARE ROW EXCLUSIVE MODE")
    bed.fires("HapaxOutboxLate", more=4)
    bed.shows(r"\brelay lag \d+s")
    oldest = database.run("SELECT pid, query FROM pg_stat_activity WHERE xact_start IS NOT NULL "
                          "AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 5")
    pid, = [pid for pid, query in oldest if query.startswith("LOCK TABLE")]
    rabbit.Queue.beside(queue, queue.name + ".nowhere").declare({"x-queue-type": "quorum"})
    database.run("SELECT pg_terminate_backend(%s)", pid)
    blocker.close()
    wait_until(lambda: not database.run("SELECT FROM hapax.outbox WHERE state = 0"), "that it is published")
    bed.quiet()


# ---- a replica that is behind ------------------------------------------------------------------------


def test_a_standby_that_stands_still_is_seen_and_catches_up(bed):
    with Postgres() as primary:
        primary.start()
        database = Database(primary)
        with Postgres(standby_of=primary) as standby:
            standby.start()
            wait_for(lambda: primary.psql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1",
                     "the standby")
            door(bed, database.uri)
            bed.watch(database.uri)
            assert bed.value("hapax_store_replicas") == 1
            standby.stop()
            bed.hapax.unknown(database.uri, "lacked")
            # It is silent for two seconds before it is an incident, here.
            bed.fires("HapaxReplicaLag", more=2)
            assert bed.value("hapax_store_replica_lag_bytes") > 0
            bed.shows(r"\bstore replica lag \d+ B", r"\bstore replica silent \d+s")
            checked = bed.hapax("check", "--store", database.uri)
            assert "none is synchronous: a failover to one loses" in checked.out, checked.out
            standby.cont()
            wait_until(lambda: bed.value("hapax_store_replica_lag_bytes") == 0, "that it has all")
            assert bed.hapax("resolve", "lacked", "--store", database.uri, "--fail").code == 0
            bed.quiet()


# One that is gone is no longer there to be behind: that there were more, an hour ago, is what tells.
def test_a_replica_of_redis_that_is_gone_is_missed(bed):
    with Redis() as primary:
        primary.start()
        with Redis(replica_of=primary) as replica:
            replica.start()
            wait_for(lambda: "state=online" in primary.info("replication").get("slave0", ""), "the replica")
            door(bed, primary.uri())
            bed.watch(primary.uri())
            assert bed.value("hapax_store_replicas") == 1
            assert bed.value("hapax_store_replica_silent_seconds") < 2
            replica.kill()
            bed.fires("HapaxReplicaLag")
            bed.shows(r"\bstore replicas 0\b")
            replica.launch()
            bed.quiet()
            assert bed.value("hapax_store_replicas") == 1


# ---- a wrong clock -----------------------------------------------------------------------------------


class WrongPostgres(Postgres):
    """Its wall clock is set(SECONDS) ahead of this machine's, or behind it. (Redis does not start under faketime.)"""

    def command(self):
        env = {**faketime(), "FAKETIME_NO_CACHE": 1, "FAKETIME_TIMESTAMP_FILE": self.folder / "clock",
               "FAKETIME_DONT_FAKE_MONOTONIC": 1}
        return ["env", *(f"{name}={value}" for name, value in env.items()), *super().command()]

    def set(self, seconds):
        (self.folder / "clock.new").write_text(f"{seconds:+}s\n")
        (self.folder / "clock.new").chmod(0o644)
        (self.folder / "clock.new").rename(self.folder / "clock")


def test_a_clock_that_jumped_is_seen_until_it_is_set(bed):
    with WrongPostgres() as server:
        server.set(0)
        server.start()
        store = Database(server).uri
        door(bed, store)
        bed.watch(store)
        assert abs(bed.value("hapax_store_clock_ahead_seconds")) < 1
        for by in (30, -30):
            server.set(by)
            bed.fires("HapaxClockSkew")
            bed.shows(rf"\bstore clock ahead {'' if by > 0 else '−'}(29|30)s")
            # what a question took is in doubt, so one that was late tells less
            wait_until(lambda by=by: abs(bed.value("hapax_store_clock_ahead_seconds") - by) < 1, "that it is told")
            said = f"(29|30) s {'ahead of' if by > 0 else 'behind'} this host's"
            wait_until(lambda said=said: re.search(said, bed.hapax("check", "--store", store).out), said)
            server.set(0)
            bed.quiet()


# ---- certificates that end ------------------------------------------------------------------------------


def renew(redis, days, left_s=None):
    """A certificate for its key that ends in so many days; left_s: in so many seconds."""
    words = ["openssl", "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
             "-days", str(days), "-extfile", "names", "-out", "cert.new"]
    env = os.environ if left_s is None else {**os.environ, **faketime(left_s - days * 86400)}
    subprocess.run(words, cwd=redis.folder, check=True, capture_output=True, env=env)
    (redis.folder / "cert.new").rename(redis.folder / "cert.pem")


# The store's server and the gate show the same one. It ends while both have connections.
def test_a_certificate_is_told_before_it_ends_and_a_new_one_is_found(bed):
    with Redis(tls=True) as redis:
        renew(redis, 30)
        redis.start()
        redis.folder.chmod(0o755)  # the gate's workers read ca.pem
        served = Served(bed.hapax, bed.api, redis.uri(), "--tls-cert", redis.folder / "cert.pem", "--tls-key",
                        redis.folder / "key.pem", *GATE, *bed.metrics("hapax-serve"))
        trusts = ssl.create_default_context(cafile=redis.ca)

        def post(key):
            request = urllib.request.Request(f"https://127.0.0.1:{served.port}/ok", b"", {"Idempotency-Key": key})
            try:
                with urllib.request.urlopen(request, context=trusts, timeout=30) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        assert post("before") == 200
        bed.watch(redis.uri())
        assert 29 * 86400 < bed.value('hapax_store_certificate_seconds{of="server"}') < 30 * 86400

        def load():
            redis.do("CONFIG", "SET", "tls-cert-file", "cert.pem")
            redis.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            served.process.send_signal(signal.SIGHUP)

        renew(redis, 3, left_s=15)
        load()
        bed.fires("HapaxCertificate", "HapaxCertificateOver")
        bed.shows(r"\bstore certificate −?\d+s", r"\bgate certificate −?\d+s")
        wait_until(lambda: bed.prometheus.query('hapax_store_certificate_seconds{of="server"} < 0'), "its end")
        with pytest.raises(urllib.error.URLError, match="certificate has expired"):
            post("after")
        checked = bed.hapax("check", "--store", redis.uri())
        assert checked.code == 3 and "certificate has expired" in checked.err, checked.err
        renew(redis, 30)
        (redis.folder / "key.pem").rename(redis.folder / "key.away")
        served.process.send_signal(signal.SIGHUP)  # which fails
        while "cannot load certificate key" not in (line := served.process.stderr.readline()):
            assert line, "nginx does not say why"
        bed.shows(r"\bgate certificate −\d+s")
        with urllib.request.urlopen(f"http://127.0.0.1:{bed.ports['hapax-serve']}/metrics", timeout=30) as page:
            assert "\nhapax_gate_certificate_seconds -" in page.read().decode()
        (redis.folder / "key.away").rename(redis.folder / "key.pem")
        load()
        wait_until(lambda: bed.prometheus.query("hapax_gate_certificate_seconds > 29 * 86400"), "that the gate has it")
        wait_until(lambda: post("after") == 200, "that the gate finds its store")
        bed.quiet()


# ---- what a store does not tell ------------------------------------------------------------------------


# Nobody counts the operations of a Redis. The gate has seen a handler's end, and then a client who asked again.
def test_an_unknown_operation_of_a_redis_is_told_by_the_gate(bed):
    with Redis() as redis:
        redis.start()
        served = Served(bed.hapax, bed.api, redis.uri(), "--on-expired", "hold", *GATE, *bed.metrics("hapax-serve"))
        bed.watch(redis.uri())
        cut = []

        def fires(alert, key, status):
            assert served.post("/drop", key).status == status
            return alert in bed.prometheus.firing()

        def attempt_fires():
            cut.append(f"k-cut-{len(cut)}")
            return fires("HapaxUnknownAttempts", cut[-1], 502)

        # Each is done again until it is seen: a machine that stands still lets a window of 6 s pass.
        wait_until(attempt_fires, "an alert of attempts")
        assert "HapaxUnknownAnswers" not in bed.prometheus.firing()
        wait_until(lambda: fires("HapaxUnknownAnswers", cut[0], 409), "an alert of answers")
        assert len(bed.hapax("list", "--state", "unknown", "--json", "--store", redis.uri()).lines) == len(cut)
        for key in cut:
            assert bed.hapax("resolve", key, "--store", redis.uri(), "--fail").code == 0
        bed.quiet()


# One request in vain is not enough for `hapax_store_dead`. `store_up` tells of the last answer for as long as nobody
# asks; an alert of it would never end.
@pytest.mark.parametrize("rule, answer", [("closed", "store_down"), ("open", "bypass")])
def test_a_door_that_nobody_asks_again_is_quiet(bed, rule, answer):
    with Redis() as redis:
        redis.start()
        door(bed, redis.uri(), "--on-store-error", rule)
        bed.watch(redis.uri())
        redis.kill()
        with Client(bed.hapax.folder / "d.sock") as client:
            assert client.once("a").answer == answer
            bed.fires("HapaxStoreDown")
            redis.launch()
            bed.quiet()
            assert bed.value("hapax_door_store_up") == 0
            assert client.once("c").answer == "fresh"


# Nobody can ask it yet, so it has no answers to count.
def test_a_door_that_waits_for_its_store_is_told(bed):
    with Redis() as redis:
        redis.start()
        before = door(bed, redis.uri())
        bed.watch(redis.uri())
        end(before)
        redis.kill()
        waits = door_that_starts(bed, redis.uri())
        bed.fires("HapaxStoreDown")
        redis.launch()
        ready(waits, "d.sock")
        bed.quiet()
