"""`hapax check` on Redis: what it says of real servers, and of scripted ones where no real one can be had."""
import contextlib
import json
import pathlib
import socketserver
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "servers"))
import redis_server  # noqa: E402
from handle import patient  # noqa: E402
from process import wait_for  # noqa: E402

Redis, RedisCluster, Sentinels = map(patient, (redis_server.Redis, redis_server.RedisCluster, redis_server.Sentinels))

SAFE = {"appendonly": "yes", "appendfsync": "always"}


def check(hapax, uri, code):
    result = hapax("check", "--store", uri)
    assert result.code == code, result.out + result.err
    lines = [line.split(None, 1) for line in result.out.splitlines()]
    assert {kind for kind, _ in lines} <= {"ok", "warning", "danger"}
    assert (code == 1) == any(kind == "danger" for kind, _ in lines) or code == 3
    return lines


def check_until(hapax, uri, code, kind, text):
    """The same where what is told hangs on how long it took: it is asked again until it has said so."""
    def told():
        result = hapax("check", "--store", uri)
        assert code != 0 or result.code == 0, result.out
        return result.code == code and [line for line in result.out.splitlines() if line.split()[0] == kind
                                        and text in line]

    wait_for(told, f"{kind}: {text}")


def said(lines, kind, text):
    found = [line for k, line in lines if text in line]
    assert found, f"nothing about {text!r} in {lines}"
    assert [line for k, line in lines if k == kind and text in line] == found, lines
    return found


# ---- one node ---------------------------------------------------------------------------

# A node that keeps what it acknowledges has nothing to fear of the check.
def test_a_safe_node_is_safe(hapax):
    with Redis(**SAFE, maxmemory="64mb").start() as redis:
        lines = check(hapax, redis.uri(), 0)
        said(lines, "ok", f"127.0.0.1:{redis.port}: redis ")
        said(lines, "ok", "maxmemory 64 MiB, noeviction")
        said(lines, "ok", "appendfsync always")
        said(lines, "ok", "its clock is within")
        assert redis.do("DBSIZE") == 0  # its own write is gone, and nobody saw it


# Each setting that can lose an acknowledged operation is named with what to set.
@pytest.mark.some(3)
@pytest.mark.parametrize("options, texts", [
    ({}, ["no append-only file and no snapshots"]),
    ({"save": "3600 1"}, ["since the last snapshot (save 3600 1)"]),
    ({"appendonly": "yes", "appendfsync": "everysec"}, ["the last second or two"]),
    ({"appendonly": "yes", "appendfsync": "no"}, ["half a minute and more"]),
    ({**SAFE, "no_appendfsync_on_rewrite": "yes"}, ["no-appendfsync-on-rewrite yes"]),
    ({**SAFE, "maxmemory": "64mb", "maxmemory_policy": "allkeys-lru"}, ["maxmemory-policy allkeys-lru"]),
    ({**SAFE, "maxmemory": "64mb", "maxmemory_policy": "volatile-ttl"}, ["maxmemory-policy volatile-ttl"]),
])
def test_what_can_be_lost_is_named(hapax, options, texts):
    with Redis(**options).start() as redis:
        lines = check(hapax, redis.uri(), 1)
        for text in texts:
            said(lines, "danger", text)
        assert len([kind for kind, _ in lines if kind == "danger"]) == len(texts), lines


# A policy that would drop records does so only where there is a limit; it is told all the same.
def test_without_maxmemory_a_policy_is_no_danger_yet(hapax):
    with Redis(**SAFE, maxmemory_policy="allkeys-lru").start() as redis:
        said(check(hapax, redis.uri(), 0), "ok", "in place of allkeys-lru")


# --json: one object per line, as for every store.
def test_json_says_the_same(hapax):
    with Redis().start() as redis:
        result = hapax("check", "--json", "--store", redis.uri())
        rows = [json.loads(line) for line in result.out.splitlines()]
        assert result.code == 1 and all(set(row) == {"danger", "level", "text"} for row in rows)
        assert any(row["danger"] and "no append-only file" in row["text"] for row in rows)


# A server that is full, or a replica, or away, is a failure and no advice.
def test_a_node_that_takes_no_writes_fails_the_check(hapax):
    with Redis(**SAFE, maxmemory="1mb").start() as redis:
        result = hapax("check", "--store", redis.uri())
        assert result.code == 3 and "OOM" in result.err, result
    with Redis(**SAFE).start() as primary, Redis(replica_of=primary, **SAFE).start() as replica:
        wait_for(lambda: replica.info("replication")["master_link_status"] == "up", "replication")
        result = hapax("check", "--store", replica.uri())
        assert result.code == 3 and "replica" in result.out + result.err, result
        primary.kill()
        result = hapax("check", "--store", primary.uri())
        assert result.code == 3 and result.out == "" and str(primary.port) in result.err


def test_purge_has_nothing_to_do_and_says_why(hapax):
    with Redis(**SAFE).start() as redis:
        for words in ([], ["--every", "60s"]):
            result = hapax("purge", "--store", redis.uri(), *words)
            assert (result.code, result.err) == (0, "")
            assert "this store drops expired records by itself" in result.out
        assert json.loads(hapax("purge", "--json", "--store", redis.uri()).out)["purged"] == 0


def test_init_has_nothing_to_make(hapax):
    with Redis(**SAFE).start() as redis:
        result = hapax("init", "--store", redis.uri())
        assert result.code == 0 and "nothing" in result.out


# ---- replicas, sentinels, clusters -------------------------------------------------------

# Without wait an acknowledged operation may be on the primary alone.
def test_replicas_without_wait_are_a_danger(hapax):
    with Redis(**SAFE).start() as primary, Redis(replica_of=primary, **SAFE).start() as replica:
        wait_for(lambda: "state=online" in primary.info("replication").get("slave0", ""), "a replica")
        lines = check(hapax, primary.uri(), 1)
        said(lines, "danger", "no wait: a failover loses")
        said(lines, "ok", f"replica 127.0.0.1:{replica.port} is behind by")
        said(lines, "danger", "min-replicas-to-write 0")
        said(check(hapax, primary.uri(wait=1), 0), "ok", "wait=1 of 1 replicas")
        for text in ("wait=2, but 1 of its replicas are online", "too few replicas acknowledged"):
            check_until(hapax, primary.uri(wait=2, timeout="300ms"), 1, "danger", text)


def test_sentinels_are_followed_to_the_primary(hapax):
    with Sentinels(**SAFE).start() as group:
        port = group.primary().port
        said(check(hapax, group.uri(), 1), "danger", "no wait: a failover loses")
        lines = check(hapax, group.uri(wait=1), 0)
        said(lines, "ok", "wait=1 of 2 replicas: what is acknowledged is lost only if another takes over")
        assert any(line.startswith(f"127.0.0.1:{port}: ") for _, line in lines)


# Hasty sentinels, and a primary that goes on by itself, lose what was acknowledged; the latter not where `wait` is set.
def test_what_a_failover_would_lose_is_named(hapax):
    with Sentinels(**SAFE).start() as group:
        hasty = group.sentinels[1]
        hasty.do("SENTINEL", "SET", group.master, "down-after-milliseconds", 2000)
        lines = check(hapax, group.uri(), 1)
        said(lines, "danger", "min-replicas-to-write 0")
        assert len(said(lines, "ok", "down-after-milliseconds 2000")) == 3
        said(check(hapax, group.uri(wait=1), 0), "ok", "min-replicas-to-write 0")
        group.primary().do("CONFIG", "SET", "min-replicas-to-write", 1)
        said(check(hapax, group.uri(), 1), "ok", "min-replicas-to-write 1")
        hasty.do("SENTINEL", "SET", group.master, "down-after-milliseconds", 1999)
        lines = check(hapax, group.uri(wait=1), 1)
        found = [line for kind, line in lines if kind == "danger"]
        assert len(found) == 1 and found[0].startswith(f"127.0.0.1:{hasty.port}: down-after-milliseconds 1999")
        hasty.do("ACL", "SETUSER", "default", "-sentinel|master")
        group.sentinels[2].kill()
        lines = check(hapax, group.uri(wait=1), 0)
        cannot = said(lines, "ok", "cannot look at this sentinel")
        assert len(cannot) == 2 and any("NOPERM" in line for line in cannot)


# Every primary of a cluster is looked at, and written to.
def test_each_primary_of_a_cluster_is_looked_at(hapax):
    with RedisCluster(replicas=1, **SAFE).start() as cluster:
        lines = check(hapax, cluster.uri(wait=1), 0)
        for node in cluster.primaries():
            said(lines, "ok", f"127.0.0.1:{node.port}: redis ")
        cluster.primaries()[1].do("CONFIG", "SET", "appendfsync", "everysec")
        said(check(hapax, cluster.uri(wait=1), 1), "danger", "appendfsync everysec")


# ---- what may not be looked at -----------------------------------------------------------

def rights_without(hapax, uri, *names):
    """The user for hapax check that --print-acl prints, with a password for the test and without some rights."""
    (line,) = [line for line in hapax("init", "--print-acl", "--store", uri).out.splitlines() if "hapax-check" in line]
    words = line.removeprefix("ACL SETUSER ").replace(">PASSWORD", ">secret").split()
    assert set(names) <= set(words)
    return " ".join(word for word in words if word not in (*names, "reset"))


# A managed Redis gives no CONFIG, and little else: told, and no failure.
def test_what_is_forbidden_is_said_and_fails_nothing(hapax):
    rights = rights_without(hapax, "redis://x", "+config|get", "+info", "+scan")
    with Redis(**SAFE, acl=["user default on nopass ~* &* +@all", "user " + rights]).start() as redis:
        lines = check(hapax, redis.uri().replace("redis://", "redis://hapax-check:secret@"), 0)
        said(lines, "ok", "cannot look at its version, memory, log and replicas")
        said(lines, "ok", "cannot list: SCAN is refused")


# Without what every op needs there is no store.
@pytest.mark.some(1)
@pytest.mark.parametrize("right", ["+evalsha", "+set", "+setrange", "+get", "+time"])
def test_without_a_right_that_every_op_needs_the_check_fails(hapax, right):
    acl = ["user default on nopass ~* &* +@all", "user " + rights_without(hapax, "redis://x", right)]
    with Redis(**SAFE, acl=acl).start() as redis:
        uri = redis.uri().replace("redis://", "redis://hapax-check:secret@")
        result = hapax("check", "--json", "--store", uri)
        assert result.code == 3 and result.lines[-1]["error"] == "refused", result.out


# ---- scripted servers --------------------------------------------------------------------

class Scripted:
    """Answers as it is told, by the first word or two of a command; the rest with an error."""

    def __init__(self, info="", clock_s=0.0, **answers):
        self.info = "".join(f"{line}\r\n" for line in
                            ("redis_version:7.0.15", "role:master", "connected_slaves:0", "maxmemory:0",
                             "maxmemory_policy:noeviction", "aof_enabled:1", "aof_last_write_status:ok"))
        for line in info.splitlines():
            name = line.split(":")[0]
            self.info = "".join(old + "\r\n" for old in self.info.splitlines() if old.split(":")[0] != name)
            self.info += line + "\r\n"
        self.answers, self.clock_s = answers, clock_s
        this = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                with contextlib.suppress(OSError, ValueError):
                    while line := self.rfile.readline():
                        words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                        self.wfile.write(this.answer([word.decode("latin-1") for word in words]))

        class Threads(socketserver.ThreadingTCPServer):
            daemon_threads = allow_reuse_address = True

        self.server = Threads(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, words):
        name = words[0].upper() + (" " + words[2] if words[0].upper() == "CONFIG" else "")
        if name in self.answers:
            return self.answers[name].encode()
        now = time.time() + self.clock_s
        return {"INFO": bulk(self.info), "TIME": array(str(int(now)), str(int(now % 1 * 1e6))), "PING": b"+PONG\r\n",
                "EVALSHA": b":1\r\n", "SCAN": b"*2\r\n$1\r\n0\r\n*0\r\n", "WAIT": b":0\r\n",
                "CONFIG appendfsync": array("appendfsync", "always"), "CONFIG save": array("save", ""),
                "CONFIG no-appendfsync-on-rewrite": array("no-appendfsync-on-rewrite", "no"),
                }.get(name, b"-ERR unknown command '" + words[0].encode() + b"'\r\n")

    def uri(self, host="127.0.0.1"):
        return f"redis://{host}:{self.port}?timeout=20s"


def bulk(text):
    return f"${len(text)}\r\n{text}\r\n".encode()


def array(*words):
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))


# Versions: 7.0 and later are tested, others are told.
@pytest.mark.parametrize("info, code, text", [
    ("redis_version:7.4.1", 0, "redis 7.4.1"),
    ("redis_version:6.2.14", 1, "redis 6.2.14 is older than what this is tested with"),
    ("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.0.1", 0, "valkey 8.0.1, which says"),
])
def test_the_version_is_told(hapax, info, code, text):
    with Scripted(info) as server:
        said(check(hapax, server.uri(), code), "danger" if code else "ok", text)


# Over a second of skew is a danger in both directions, and less is none.
@pytest.mark.parametrize("clock_s, code, text", [
    (3600, 1, "its clock is 3600.0 s ahead of this host's"),
    (-90, 1, "its clock is 90.0 s behind this host's"),
    (0.5, 0, "its clock is within 50"),
])
def test_a_clock_that_is_off_is_told(hapax, clock_s, code, text):
    with Scripted(clock_s=clock_s) as server:
        check_until(hapax, server.uri(), code, "danger" if code else "ok", text)


class Half(Scripted):
    """One of the two nodes of a cluster, whose answers to TIME are late_s old when they come."""

    def __init__(self, clock_s=0.0, late_s=0.0):
        super().__init__(clock_s=clock_s)
        self.halves, self.late_s = [self], late_s

    def answer(self, words):
        if words[:2] == ["CLUSTER", "SLOTS"]:
            return b"*2\r\n" + b"".join(
                b"*3\r\n:%d\r\n:%d\r\n*3\r\n" % (8192 * n, 8192 * n + 8191) + bulk("127.0.0.1")
                + b":%d\r\n" % half.port + bulk(f"{n:040}") for n, half in enumerate(self.halves))
        if words[:2] == ["CLUSTER", "INFO"]:
            return bulk("cluster_state:ok\r\ncluster_slots_assigned:16384\r\ncluster_slots_ok:16384\r\n")
        answer = super().answer(words)
        if words[0] == "TIME":
            threading.Event().wait(self.late_s)
        return answer


# How long an answer took is no difference of two clocks.
@pytest.mark.parametrize("clock_s, late_s, apart", [(0, 2.5, False), (3600, 2.5, True), (-3600, 0, True)])
def test_the_clocks_of_two_nodes_are_compared(hapax, clock_s, late_s, apart):
    with Half() as one, Half(clock_s, late_s) as other:
        one.halves = other.halves = [one, other]
        lines = check(hapax, f"redis+cluster://127.0.0.1:{one.port}?timeout=20s", 1)
        assert any("the clocks of its nodes are" in text for _, text in lines) == apart, lines


# As managed services answer: unknown command, not a missing right.
def test_without_config_the_check_says_what_it_could_not_see(hapax):
    denied = "-ERR unknown command 'config', with args beginning with: 'get'\r\n"
    with Scripted(**{"CONFIG appendfsync": denied, "CONFIG no-appendfsync-on-rewrite": denied}) as server:
        said(check(hapax, server.uri(), 0), "ok", "cannot look at appendfsync (ERR unknown command")


# A replica far behind loses that much when it takes over.
def test_a_replica_that_lags_is_a_danger(hapax):
    info = ("master_repl_offset:100000000\nconnected_slaves:2\nslave0:ip=10.0.0.2,port=6379,state=online,"
            "offset=1000,lag=1\nslave1:ip=10.0.0.3,port=6379,state=wait_bgsave,offset=0,lag=0")
    with Scripted(info) as server:
        lines = check(hapax, server.uri(), 1)
        said(lines, "danger", "replica 10.0.0.2:6379 is behind, by 99999000 bytes")
        said(lines, "ok", "replica 10.0.0.3:6379 is not online yet")


# Nonsense in place of answers is told or refused, and ends nothing but the check.
@pytest.mark.parametrize("name, answer", [
    ("INFO", "*0\r\n"), ("INFO", "$0\r\n\r\n"), ("INFO", ":1\r\n"), ("TIME", "*0\r\n"), ("TIME", "+x\r\n"),
    ("TIME", "*2\r\n$1\r\nx\r\n:1\r\n"), ("CONFIG appendfsync", "*0\r\n"), ("CONFIG appendfsync", "$-1\r\n"),
    ("SCAN", "-NOPERM no\r\n"),
])
def test_nonsense_is_no_news(hapax, name, answer):
    with Scripted(**{name: answer}) as server:
        assert hapax("check", "--store", server.uri()).code in (0, 1)


# Plain text to another machine; an address that is not the loopback one stands for it.
def test_plain_text_over_a_network_is_a_danger(hapax):
    with Scripted() as server:
        lines = check(hapax, server.uri("0.0.0.0"), 1)
        said(lines, "danger", 'not encrypted on the way to "0.0.0.0"')


def test_a_node_that_asks_for_no_password_is_a_danger_on_a_network(hapax):
    """On this machine it is told, too: each of its processes can change records."""
    with Scripted() as server:
        said(check(hapax, server.uri("0.0.0.0"), 1), "danger", "no password: whoever reaches it")
        said(check(hapax, server.uri(), 0), "ok", "no password: each process of this machine")
