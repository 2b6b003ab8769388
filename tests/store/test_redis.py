"""A Redis store that is slow, cut off, full, read-only, busy, loading or forbidden: what an op is told, that
the same op repeated finds out its result, and that the record knows of one attempt only. Then the command
line and hapax serve on Redis.
"""
import contextlib
import json
import sys
import threading
import time

import pytest

import gate as g
from conftest import OP, PATIENCE, ROOT, end, wait_until
from handle import Handle, patient

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import wait_for  # noqa: E402
from proxy import Proxy  # noqa: E402
import redis_server  # noqa: E402
from redis_server import RedisError, attempt  # noqa: E402
from served import Served  # noqa: E402

Redis, RedisCluster, Sentinels = map(patient, (redis_server.Redis, redis_server.RedisCluster, redis_server.Sentinels))
TIMEOUT_MS = 500  # of the store, where something is not to answer
LATE_S = 30  # longer than any op may take on a busy machine, its timeout included
PASSWORD = "correct-horse:battery/staple"
QUOTED = "correct-horse%3Abattery%2Fstaple"


@pytest.fixture
def redis():
    with Redis().start() as server:
        yield server


@pytest.fixture
def proxy(redis):
    with Proxy(redis.port) as proxy:
        yield proxy


def through(redis, proxy, **more):
    return redis.uri(**{"port": proxy.port, "timeout": f"{TIMEOUT_MS}ms", **more})


def attempts_of(hapax, uri, key):
    shown = hapax("show", "--store", uri, "--json", key)
    assert shown.code == 0, shown.err
    return shown.json["attempt"]


def timed(ask):
    began = time.monotonic()
    return ask(), time.monotonic() - began


# ---- the network ------------------------------------------------------------------------

# What happens to the call, and whether the server has carried it out by the time the error is given.
NETWORK = {
    "request cut before its last byte": (lambda p: p.cut("request", -1, containing=b"EVAL"), False),
    "request cut in its middle by fin": (lambda p: p.cut("request", 40, "fin", containing=b"EVAL"), False),
    "request cut after its last byte": (lambda p: p.cut("reply", 0, containing=b"EVAL"), True),
    "closed after its last byte": (lambda p: p.cut("reply", 0, "fin", containing=b"EVAL"), True),
    "reset mid-reply": (lambda p: p.cut("reply", 5, containing=b"EVAL"), True),
    "closed mid-reply": (lambda p: p.cut("reply", 5, "fin", containing=b"EVAL"), True),
    "request vanishes": (lambda p: p.blackhole("request", containing=b"EVAL"), False),
    "reply vanishes": (lambda p: p.blackhole("reply", containing=b"EVAL"), True),
    "half open": (lambda p: p.half_open(containing=b"EVAL"), False),
    "request late": (lambda p: p.delay("request", PATIENCE, containing=b"EVAL"), False),  # until heal()
    "reply late": (lambda p: p.delay("reply", PATIENCE, containing=b"EVAL"), True),
}


# A call of which a byte was sent may have been carried out; only its repeat can tell.
@pytest.mark.some(7)
@pytest.mark.parametrize("fault", NETWORK)
@pytest.mark.parametrize("reused", [False, True], ids=["new connection", "used connection"])
def test_a_claim_whose_answer_is_lost_is_indeterminate_and_its_repeat_gets_it(hapax, redis, proxy, fault, reused):
    redis.do("SCRIPT", "FLUSH", "SYNC")
    breaks, carried_out = NETWORK[fault]
    with Handle(through(redis, proxy)) as store:
        store.until("claimed", "claim", "before", "a")
        if not reused:
            proxy.cut_all()
        rule = breaks(proxy)
        rule.times = 0
        verdict, took = timed(lambda: store.sent(lambda: rule.used, "claim", "k", "a"))
        assert verdict == "indeterminate"
        assert rule.fired.wait(PATIENCE)
        assert took < LATE_S
        assert hapax.op(redis.uri(), "claim", "k", "b") == ("in_flight" if carried_out else "claimed")
        proxy.heal()
        if carried_out:
            store.until("claimed", "claim", "k", "a")
        else:
            store.until("in_flight", "claim", "k", "a")
        assert attempts_of(hapax, redis.uri(), "k") == 1


# The same of a completion: its repeat is OK and there is one outcome.
@pytest.mark.some(4)
@pytest.mark.parametrize("fault", NETWORK)
def test_a_completion_whose_answer_is_lost_is_indeterminate_and_its_repeat_is_ok(hapax, redis, proxy, fault):
    breaks, carried_out = NETWORK[fault]
    complete = ("complete", "k", "a", 201, "A:1", "body")
    with Handle(through(redis, proxy)) as store:
        store.until("claimed", "claim", "k", "a")
        rule = breaks(proxy)
        rule.times = 0
        assert store.sent(lambda: rule.used, *complete) == "indeterminate"
        assert rule.fired.wait(PATIENCE)
        state = hapax("show", "--store", redis.uri(), "--json", "k").json["state"]
        assert state == ("completed" if carried_out else "started")
        proxy.heal()
        store.until("ok", *complete)
        shown = hapax("show", "--store", redis.uri(), "--json", "k").json
        assert (shown["state"], shown["status"], shown["body"], shown["attempt"]) == ("completed", 201, "body", 1)
        assert hapax.op(redis.uri(), "claim", "k", "b") == "completed"


# The store is gone when it is asked again. That error says nothing of the first try: the charge may be freed by now.
def test_an_operators_word_whose_answer_is_lost_is_not_called_undone(hapax, redis, proxy):
    hapax.unknown(redis.uri(), "k")
    rule = proxy.stall("reply", containing=b"zoe")
    word = hapax.start("resolve", "k", "--fail", "--by", "zoe", "--json", "--audit", "trail", "--store",
                       through(redis, proxy, timeout="5s"))
    assert rule.fired.wait(PATIENCE)
    proxy.refuse()
    out, _ = word.communicate(timeout=PATIENCE)
    assert word.returncode == 3 and json.loads(out)["error"] == "indeterminate"
    assert json.loads((hapax.folder / "trail").read_text().splitlines()[-1])["end"] == "indeterminate"
    assert hapax("show", "--store", redis.uri(), "--json", "k").json["state"] == "failed"


# Nothing was sent, so nothing was done: the only case in which that is known.
def test_a_connection_that_is_refused_is_unavailable(hapax, redis, proxy):
    with Handle(through(redis, proxy)) as store:
        proxy.refuse()
        assert store("claim", "k", "a") == "unavailable"
        assert hapax("show", "--store", redis.uri(), "k").code == 1
        proxy.heal()
        store.until("claimed", "claim", "k", "a")
        assert attempts_of(hapax, redis.uri(), "k") == 1


# A connection that the server closed while it was idle is found out before anything is sent on it.
def test_an_idle_connection_that_died_costs_nothing(redis, proxy):
    with Handle(through(redis, proxy, timeout="20s")) as store:
        assert store("claim", "before", "a") == "claimed"
        proxy.cut_all("fin")
        assert store("claim", "k", "a") == "claimed"
        redis.restart()
        store.until("claimed", "claim", "after", "a")


# The first try may have been carried out, so that the second one's "not now" says nothing of it.
def test_a_refused_repeat_does_not_make_a_lost_call_surely_undone(redis, proxy):
    with Handle(through(redis, proxy)) as store:
        store.until("claimed", "claim", "before", "a")
        rule = proxy.cut("reply", 0, containing=b"EVAL")
        store.begin("claim", "k", "a")
        for _ in range(4):
            if rule.fired.wait(LATE_S):
                break
            assert store.verdict() == "unavailable"  # its time was over before it had left
            store.begin("claim", "k", "a")
        assert rule.fired.is_set()
        proxy.refuse()
        assert store.verdict() in ("indeterminate", "claimed")
        proxy.heal()
        store.until("claimed", "claim", "k", "a")


# ---- a server that does not answer --------------------------------------------------------


# Connections stay open, and what is sent is carried out once it goes on.
def test_a_stopped_server_is_indeterminate_in_time_and_answers_the_repeat(hapax, redis):
    with Handle(redis.uri(timeout=f"{TIMEOUT_MS}ms")) as store:
        store.until("claimed", "claim", "before", "a")
        redis.stop()
        verdict, took = timed(lambda: store.until("indeterminate", "claim", "k", "a"))
        fresh = hapax.op(redis.uri(timeout=f"{TIMEOUT_MS}ms"), "claim", "k", "a")
        redis.cont()
        assert verdict == "indeterminate"
        assert fresh in ("indeterminate", "unavailable")
        assert TIMEOUT_MS / 1000 * 0.5 < took < LATE_S
        store.until("claimed", "claim", "k", "a")
        assert attempts_of(hapax, redis.uri(), "k") == 1


# The same of a server that one slow command holds.
def test_a_sleeping_server_is_indeterminate_in_time_and_answers_the_repeat(hapax, redis):
    with Handle(redis.uri(timeout=f"{TIMEOUT_MS}ms")) as store, redis.connect() as other:
        store.until("claimed", "claim", "before", "a")
        keys = (f"k{number}" for number in range(1000))

        def met_asleep():
            """One that comes late finds it awake, or has not left in its time."""
            key = next(keys)
            other.send("DEBUG", "SLEEP", 3)
            wait_for(lambda: not attempt(lambda: answers_soon(redis)), "the server sleeping")
            given = store("claim", key, "a")
            assert given in ("indeterminate", "unavailable", "claimed")
            assert other.reply() == "OK"
            store.until("claimed", "claim", key, "a")
            assert attempts_of(hapax, redis.uri(), key) == 1
            return given == "indeterminate"

        wait_for(met_asleep, "an op while the server sleeps")


def answers_soon(redis):
    with redis.connect(timeout=0.1) as wire:
        return wire("PING")


# ---- a server that refuses ------------------------------------------------------------------


class Refusal:
    """A server that refuses an op by a word of its own, and how it comes to take it again."""

    def loading(self, redis):
        redis.do("DEBUG", "POPULATE", 20000, "filler", 1000)
        redis.do("SAVE")
        redis.options.update(key_load_delay=1000, loading_process_events_interval_bytes=1024)
        redis.restart(ready=False)
        wait_for(lambda: "LOADING" in error_of(redis, "GET", "x"), "the server loading")
        return lambda: wait_for(lambda: attempt(lambda: redis.do("CONFIG", "SET", "key-load-delay", 0)), "CONFIG SET")

    def full(self, redis):
        redis.do("CONFIG", "SET", "maxmemory", 1)
        return lambda: redis.do("CONFIG", "SET", "maxmemory", 0)

    def busy(self, redis):
        redis.do("CONFIG", "SET", "busy-reply-threshold", 20)
        self.wire = redis.connect()
        self.wire.send("EVAL", "while true do end", 0)
        wait_for(lambda: "BUSY" in error_of(redis, "GET", "x"), "the server being busy")
        return lambda: redis.do("SCRIPT", "KILL")

    def misconfigured(self, redis):
        (redis.folder / "taken" / "x").mkdir(parents=True)
        redis.do("CONFIG", "SET", "dbfilename", "taken")
        redis.do("CONFIG", "SET", "save", "3600 1000000")
        redis.do("BGSAVE")
        wait_for(lambda: redis.info("persistence")["rdb_last_bgsave_status"] == "err", "BGSAVE failing")
        return lambda: redis.do("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")

    def without_replicas(self, redis):
        redis.do("CONFIG", "SET", "min-replicas-to-write", 1)
        return lambda: redis.do("CONFIG", "SET", "min-replicas-to-write", 0)

    def replica(self, redis):
        redis.do("REPLICAOF", "127.0.0.1", 1)
        return lambda: redis.do("REPLICAOF", "NO", "ONE")


def error_of(redis, *words):
    try:
        return str(redis.do(*words))
    except (RedisError, OSError) as error:
        return str(error)


REFUSALS = ["loading", "full", "busy", "misconfigured", "without_replicas", "replica"]


# Each refuses before the script writes: surely not carried out.
@pytest.mark.some(3)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_server_that_refuses_to_write_is_unavailable_and_takes_the_repeat(hapax, redis, refusal):
    with Handle(redis.uri(timeout=f"{TIMEOUT_MS}ms")) as store:
        recover = getattr(Refusal(), refusal)(redis)
        store.until("unavailable", "claim", "k", "a")
        wait_for(lambda: hapax.op(redis.uri(timeout=f"{TIMEOUT_MS}ms"), "claim", "k", "b") == "unavailable",
                 "a refusal")
        recover()
        store.until("claimed", "claim", "k", "a")
        assert attempts_of(hapax, redis.uri(), "k") == 1


# Memory is only needed by what writes: a repeat of what was done is answered.
def test_a_full_server_still_replays_and_completes_nothing(hapax, redis):
    with Handle(redis.uri()) as store:
        assert store("claim", "done", "a") == "claimed"
        assert store("complete", "done", "a", 200, "", "x") == "ok"
        assert store("claim", "open", "a") == "claimed"
        recover = Refusal().full(redis)
        assert store("claim", "done", "b") == "completed"
        assert store("complete", "open", "a", 200, "", "x") == "unavailable"
        recover()
        assert store("complete", "open", "a", 200, "", "x") == "ok"


# It is said in place of a greeting, before anything is read.
def test_too_many_clients_is_unavailable(hapax):
    with Redis(maxclients=1).start() as redis:
        redis.do("PING")
        assert hapax.op(redis.uri(), "claim", "k", "a") == "unavailable"
        redis.forget()
        wait_for(lambda: hapax.op(redis.uri(), "claim", "k", "a") == "claimed", "a free place")


# ---- permission ---------------------------------------------------------------------------


# Neither is a matter of trying again.
def test_no_password_and_a_wrong_one_are_refused_and_none_is_shown(hapax):
    with Redis(requirepass=PASSWORD).start() as redis:
        for login in ("", ":wrong-secret@", "nobody:wrong-secret@"):
            uri = f"redis://{login}127.0.0.1:{redis.port}"
            done = hapax.run(OP, uri, "claim", "k", "a")
            assert done.out.strip() == "refused", done.err
            check = hapax("check", "--store", uri)
            assert check.code in (1, 3) and "wrong-secret" not in done.err + check.out + check.err
        assert hapax.op(f"redis://:{QUOTED}@127.0.0.1:{redis.port}", "claim", "k", "a") == "claimed"


# The permission is asked for before the script runs, keys included.
def test_a_user_who_may_not_run_scripts_is_refused_and_nothing_is_written(hapax):
    acl = ["user default on nopass ~* &* +@all", f"user weak on >{PASSWORD} ~* +@all -@scripting",
           f"user elsewhere on >{PASSWORD} ~other:* +@all", f"user able on >{PASSWORD} ~hapax:* +@all -@dangerous"]
    with Redis(acl=acl).start() as redis:
        for user in ("weak", "elsewhere"):
            done = hapax.run(OP, f"redis://{user}:{QUOTED}@127.0.0.1:{redis.port}", "claim", "k", "a")
            assert done.out.strip() == "refused", done.err
            assert "battery" not in done.err  # as it is, or encoded
        assert redis.do("DBSIZE") == 0
        able = f"redis://able:{QUOTED}@127.0.0.1:{redis.port}"
        assert hapax.op(able, "claim", "k", "a") == "claimed"
        assert attempts_of(hapax, able, "k") == 1


# TLS verifies unless told not to.
def test_a_certificate_of_nobody_known_is_refused(hapax):
    with Redis(tls=True).start() as redis, Redis(tls=True).start() as other:
        assert hapax.op(redis.uri(), "claim", "k", "a") == "claimed"
        stranger = redis.uri(tls_ca=other.ca)
        assert hapax.op(stranger, "claim", "k", "b") in ("refused", "unavailable")
        assert hapax.op(redis.uri().split("?")[0], "claim", "k", "b") in ("refused", "unavailable")
        assert hapax.op(redis.uri().split("?")[0] + "?tls_verify=off", "claim", "k", "b") == "in_flight"


# ---- clusters -----------------------------------------------------------------------------


# A slot that nobody serves is unavailable, in time; the others are served if the cluster says so.
def test_a_cluster_with_a_slot_nobody_serves_is_unavailable(hapax):
    with RedisCluster(node_timeout_ms=2000).start() as cluster, Handle(cluster.uri(timeout="1s")) as store:
        store.until("claimed", "claim", "before", "a")
        dead = cluster.primaries()[0]
        dead.kill()
        wait_for(lambda: all(cluster.state(node)["cluster_state"] == "fail"
                             for node in cluster.nodes if node is not dead),
                 "the cluster noticing")
        given = [timed(lambda key=key: store.until("unavailable", "claim", f"k{key}", "a")) for key in range(4)]
        assert {verdict for verdict, _ in given} == {"unavailable"}
        assert max(took for _, took in given) < LATE_S
        dead.launch()
        cluster.wait_ready()
        for key in range(4):
            store.until("claimed", "claim", f"k{key}", "a")
            assert attempts_of(hapax, cluster.uri(), f"k{key}") == 1


# ---- what replicas hold -------------------------------------------------------------------


# A claim that too few replicas hold may die with its primary, so it is not granted; nor is a completion.
def test_wait_without_replicas_is_indeterminate_and_with_them_counts(hapax):
    with Redis().start() as redis, Handle(redis.uri(wait=1, timeout=f"{TIMEOUT_MS}ms")) as store:
        assert hapax.op(redis.uri(), "claim", "before", "a") == "claimed"  # the script is there from now on
        store.until("indeterminate", "claim", "k", "a")
        store.until("indeterminate", "claim", "k", "a")
        with Redis(replica_of=redis).start() as replica:
            store.until("claimed", "claim", "k", "a")
            replica.stop()
            _, took = timed(lambda: store.until("indeterminate", "complete", "k", "a", 200, "", "x"))
            store.until("indeterminate", "claim", "k", "b")
            replica.cont()
            assert took < LATE_S
            store.until("ok", "complete", "k", "a", 200, "", "x")
            store.until("completed", "claim", "k", "b")
            assert attempts_of(hapax, redis.uri(), "k") == 1


# ---- the command line -----------------------------------------------------------------------


@pytest.fixture(params=["one node", "cluster", "sentinel"])
def servers(request):
    made = {"one node": Redis, "cluster": RedisCluster, "sentinel": Sentinels}[request.param]()
    with made.start() as servers:
        yield servers


# The states, scopes and ages that list tells apart, and what an operator may do, on each kind of deployment.
@pytest.mark.some(1)
def test_every_command_works_on_redis(hapax, servers):
    uri = servers.uri()
    assert hapax("init", "--store", uri).code == 0
    check = hapax("check", "--store", uri)
    assert check.code in (0, 1) and "127.0.0.1" in check.out + check.err
    hapax.completed(uri, "done", 201, "A: 1\\r\\n", "body")
    hapax.completed(uri, "other", scope="shop")
    hapax.unknown(uri, "unknown")
    assert hapax.op(uri, "claim", "open", "1", 600000) == "claimed"
    assert hapax.op(uri, "claim", "failed", "1", 600000) == "claimed"
    assert hapax.op(uri, "fail", "failed", "1", "ran") == "ok"

    shown = hapax("show", "--store", uri, "--json", "done").json
    assert (shown["state"], shown["status"], shown["attempt"], shown["scope"]) == ("completed", 201, 1, "default")
    assert hapax("show", "--store", uri, "missing").code == 1

    def states(*words):
        return sorted(record["state"] for record in hapax("list", "--store", uri, "--json", *words).lines)

    assert states() == ["completed", "completed", "failed", "started", "unknown"]
    assert states("--state", "unknown") == ["unknown"]
    assert states("--scope", "shop") == ["completed"]
    assert states("--older", "1h") == []
    assert len(states("--limit", "2")) == 2

    assert hapax("resolve", "--store", uri, "open", "--fail").code == 1
    assert hapax("resolve", "--store", uri, "open", "--fail", "--force").code == 0
    assert hapax("resolve", "--store", uri, "unknown", "--complete", "204", "--by", "ann").code == 0
    assert hapax("resolve", "--store", uri, "failed", "--forget").code == 0
    assert hapax("show", "--store", uri, "--json", "unknown").json["resolved_by"] == "ann"
    assert states() == ["completed", "completed", "completed", "failed"]
    assert hapax("purge", "--store", uri).code == 0
    assert states() == ["completed", "completed", "completed", "failed"]
    bench = hapax("bench", "--store", uri, "--seconds", "1", "--clients", "4", "--json")
    assert bench.code == 0, bench.err


# A page ends where the limit says, not the listing: none is given twice or left out.
def test_a_long_list_is_whole(hapax, redis):
    with Handle(redis.uri()) as store:
        for key in range(1500):
            assert store("claim", f"k{key}", "a") == "claimed"
    ids = [record["id"] for record in hapax("list", "--store", redis.uri(), "--json", "--limit", "5000").lines]
    assert len(ids) == len(set(ids)) == 1500


# Redis forgets by itself what has expired; what an operator has to see stays.
def test_records_expire_by_themselves_but_not_what_is_unknown(hapax, redis):
    uri = redis.uri()
    hapax.completed(uri, "short", retention_ms=1000)
    hapax.op(uri, "claim", "held", "1", 10, "hold", 1000)
    hapax.unknown(uri, "unknown")
    wait_until(lambda: hapax("show", "--store", uri, "short").code == 1, "the record expiring")
    assert len(hapax("list", "--store", uri, "--json").lines) == 2
    assert redis.do("DBSIZE") == 2


# A record that leaves a tombstone has two keys, here and where it is copied to. The outcome is in the one that goes
# with the retention. A list shows the record once; within a second of its end twice at most.
def test_a_record_with_a_tombstone_is_one_record(hapax, redis):
    uri = redis.uri()
    done = hapax("run", "--store", uri, "--retention", "2h", "--tombstone", "3h", "k", "--", "echo", "MARKED")
    assert (done.code, done.out) == (0, "MARKED\n"), done.err
    wait_until(lambda: len(hapax("list", "--store", uri, "--json").lines) == 1, "a list that shows it once")
    assert hapax("copy", "--from", uri, "--to", redis.uri(prefix="b:")).code == 0
    for prefix in ("hapax:", "b:"):
        grave, = (name for name in redis.do("KEYS", f"{prefix}*") if name.endswith("}"))
        key = grave[len(prefix) + 1:-1]
        assert 7_100_000 < redis.do("PTTL", key) <= 7_200_000 and 17_900_000 < redis.do("PTTL", grave) <= 18_000_000
        assert "MARKED" in redis.do("GET", key) and "MARKED" not in redis.do("GET", grave)


# A danger is exit 1: eviction, no log. A log that is synced once a second is told, and a good set-up passes.
def test_check_tells_what_can_be_lost(hapax):
    def check(redis):
        result = hapax("check", "--store", redis.uri())
        return result.code, result.out + result.err

    with Redis(maxmemory_policy="allkeys-lru", maxmemory="50mb").start() as redis:
        code, text = check(redis)
        assert code == 1 and "noeviction" in text and "append" in text.lower()
    with Redis(appendonly="yes", appendfsync="always").start() as redis:
        code, text = check(redis)
        assert code == 0, text
    with Redis(appendonly="yes", appendfsync="everysec").start() as redis:
        code, text = check(redis)
        assert "everysec" in text


# A password is in the URI and in what goes to Redis, and nowhere else.
def test_the_password_is_in_no_output(hapax, api):
    with Redis(requirepass=PASSWORD).start() as redis:
        good = f"redis://:{QUOTED}@127.0.0.1:{redis.port}"
        texts = []
        for uri in (good, f"redis://:{QUOTED}@127.0.0.1:1", f"redis://:{QUOTED}@127.0.0.1:{redis.port}/99",
                    f"redis://:{QUOTED}@127.0.0.1:{redis.port}?nonsense=1", f"redis://:{QUOTED}@:x/y"):
            for words in (["init"], ["check"], ["list"], ["show", "k"], ["purge"], ["bench", "--seconds", "1"]):
                for form in ([], ["--json"]):
                    result = hapax(*words, *form, "--store", uri)
                    texts.append(result.out + result.err)
        served = Served(hapax, api, good)
        wait_until(lambda: served.post("/ok", "k", b"x").status == 200, "service")
        texts.append(served.line)
        redis.kill()
        served.post("/ok", "k2", b"x")
        end(served.process)
        texts += served.process.communicate()
        assert not [text for text in texts if "battery" in text]


# ---- serving ------------------------------------------------------------------------------


@pytest.fixture
def api():
    api = g.Api()
    yield api
    api.close()


class Clients:
    """Threads that post with new keys, and repeat what was not final, until told to stop."""

    def __init__(self, served, count=8):
        self.served, self.over, self.lock = served, threading.Event(), threading.Lock()
        self.answers = []  # (when, status, seconds)
        self.keys = []  # answered 200
        self.threads = [threading.Thread(target=self.run, args=(number,)) for number in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        turn = 0
        while not self.over.is_set():
            key = f"c{number}.{turn}"
            while not self.over.is_set():
                began = time.monotonic()
                with contextlib.suppress(OSError, AssertionError):
                    status = self.served.post("/ok", key, b"x").status
                    with self.lock:
                        self.answers.append((time.monotonic(), status, time.monotonic() - began))
                    if status == 200:
                        with self.lock:
                            self.keys.append(key)
                        break
                    time.sleep(0.05)
            turn += 1

    def count(self, status, since=0.0):
        with self.lock:
            return sum(1 for when, given, _ in self.answers if given == status and when > since)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join(PATIENCE)


# While Redis is down every claim is 503 in time; nothing ran twice, and what was answered is replayed after.
def test_serve_replays_and_rides_out_a_restart_of_redis(hapax, api):
    with Redis(appendonly="yes", appendfsync="always").start() as redis:
        served = Served(hapax, api, redis.uri(timeout=f"{TIMEOUT_MS}ms"), "--timeout", "1s", "--lease", "60s")
        keys = (f"k{number}" for number in range(1000))

        def replays():
            """What has no time in its second is 503, in flight, or given without having been kept; then another is
            asked for."""
            nonlocal key, first
            key = next(keys)
            first, again = served.post("/ok", key, b"x"), served.post("/ok", key, b"x")
            assert {first.status, again.status} <= {200, 409, 503} and first.replayed != "true"
            return (first.status, again.status) == (200, 200) and again.replayed == "true" and first.body == again.body

        key = first = None
        wait_until(replays, "a replay")
        assert api.count(key) == 1
        clients = Clients(served)
        try:
            wait_until(lambda: clients.count(200) > 50, "service")
            redis.kill()
            down = time.monotonic()
            wait_until(lambda: clients.count(503, down) > 20, "503 while Redis is down")
            redis.launch()
            up = time.monotonic()
            wait_until(lambda: clients.count(200, up) > 50, "service again")
        finally:
            clients.stop()
        assert {status for _, status, _ in clients.answers} <= {200, 409, 503}
        assert max(seconds for _, _, seconds in clients.answers) < LATE_S
        answers = []
        wait_until(lambda: answers.append(served.post("/ok", key, b"x")) or answers[-1].status == 200, "its answer")
        again = answers[-1]
        assert (again.replayed, again.body, api.count(key)) == ("true", first.body, 1)
        assert all(api.count(key) == 1 for key in clients.keys)
        assert end(served.process) == 0
