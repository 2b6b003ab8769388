"""The users that `hapax init --print-acl` prints, at real servers: what each may do, what it may not, and that it needs
each of its rights: without one its commands fail, or Redis notes in its ACL LOG what it refused."""
import hashlib
import itertools
import pathlib
import re
import struct
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "servers"))
import postgres_server  # noqa: E402
import redis_server  # noqa: E402
from conftest import ROOT  # noqa: E402
from handle import patient  # noqa: E402

Redis, RedisCluster, Sentinels = map(patient, (redis_server.Redis, redis_server.RedisCluster, redis_server.Sentinels))
Postgres = patient(postgres_server.Postgres)
SAFE = {"appendonly": "yes", "appendfsync": "always"}
DAMAGED = "hapax:" + "d" * 64


def users_of(hapax, uri):
    """The printed lines, as words behind ACL SETUSER, by user."""
    lines = [line.split() for line in hapax("init", "--print-acl", "--store", uri).out.splitlines()]
    assert lines and all(words[:2] == ["ACL", "SETUSER"] for words in lines)
    return {words[2]: [">secret" if word == ">PASSWORD" else word for word in words[2:]] for words in lines}


def make(users, nodes):
    for words, node in itertools.product(users.values(), nodes):
        node.do("ACL", "SETUSER", *words)


def by(user, uri):
    scheme, rest = uri.split("://")
    return f"{scheme}://{user}:secret@{rest}"


class Acts:
    """What each user is for. Its commands end as they should; and Redis refuses it nothing meanwhile."""

    def __init__(self, hapax, uri, nodes):
        self.hapax, self.uri, self.nodes, self.keys = hapax, uri, nodes, (f"k{i}" for i in itertools.count())

    def door(self):
        key, uri = next(self.keys), by("hapax-door", self.uri)
        op = self.hapax.op
        return [op(uri, "claim", key, "1"), op(uri, "complete", key, "1", "200", "", "receipt"),
                op(uri, "claim", key, "2")] == ["claimed", "ok", "completed"]

    def operator(self):
        keys, own, uri = [next(self.keys) for _ in range(2)], self.uri, by("hapax-operator", self.uri)
        for key in keys:
            self.hapax.unknown(own, key)
        for act in (["show", keys[0]], ["resolve", keys[0], "--forget"], ["resolve", keys[1], "--complete", "201"],
                    ["list"], ["purge"]):
            if self.hapax(*act, "--store", uri).code != 0:
                return False
        return True

    def check(self):
        # With a secret the check value of the store's secret, a record, is not looked at.
        result = self.hapax("check", "--store", by("hapax-check", self.uri), HAPAX_SECRET_FILE="some")
        return result.code in (0, 1) and "cannot" not in result.out

    def sentinel(self):
        return self.check() and self.door()

    def go_well(self, user):
        for node in self.nodes:
            if node.name != "sentinel":
                node.do("SCRIPT", "FLUSH", "SYNC")
            node.do("ACL", "LOG", "RESET")
        well = getattr(self, user.removeprefix("hapax-"))()
        return well and not any(node.do("ACL", "LOG") for node in self.nodes)


def are_needed(acts, nodes, user, rights):
    for right in rights:
        for node in nodes:
            node.do("ACL", "SETUSER", user, "-" + right[1:])
        assert not acts.go_well(user), f"{user} does not need {right}"
        for node in nodes:
            node.do("ACL", "SETUSER", user, right)
    assert acts.go_well(user)


def rights(words):
    return [word for word in words if word.startswith("+")]


# With a database, a prefix and a replica to wait for: each user has enough, and nothing that it does not need. The key
# without bytes is where a list asks whether a record exists.
@pytest.mark.parametrize("user", ["hapax-door", "hapax-check", pytest.param("hapax-operator", marks=pytest.mark.ci)])
def test_each_right_is_enough_and_needed(hapax, user):
    with Redis(**SAFE).start() as redis, Redis(replica_of=redis).start() as replica:
        redis_server.wait_for(lambda: "online" in redis.info("replication").get("slave0", ""), "the replica")
        uri = redis.uri().split("?")[0] + "/3?wait=1&prefix=shop:"
        users = users_of(hapax, uri)
        make(users, [redis])
        assert f"~shop:{'check:' if user == 'hapax-check' else ''}*" in users[user] and replica.running
        acts = Acts(hapax, uri, [redis])
        if user == "hapax-operator":  # what forgets a damaged record is list's EXISTS and forget's UNLINK
            damaged = DAMAGED.replace("hapax:", "shop:")
            redis.do("SELECT", 3)
            list_, walk = acts.operator, ["list", "--store", by(user, uri)]

            def with_damage():
                redis.do("SET", damaged, "")
                told = hapax(*walk)
                redis.do("DEL", damaged)
                return told.code == 3 and "damaged" in told.out + told.err and list_()

            acts.operator = with_damage
        are_needed(acts, [redis], user, rights(users[user]))


# Nobody finds or reads what is another's: a door has no SCAN, check no key but its own, and neither sets rights.
def test_what_each_user_may_not(hapax):
    with Redis(**SAFE).start() as redis:
        make(users_of(hapax, redis.uri()), [redis])
        hapax.completed(redis.uri(), "k", body="receipt")
        acts = (["list"], ["resolve", "k", "--forget", "--force"])
        for user, act in itertools.product(("hapax-door", "hapax-check"), acts):
            result = hapax(*act, "--store", by(user, redis.uri()))
            assert result.code == 3 and re.search("permission|NOPERM|can.t run", result.err), (user, act, result.err)
        assert hapax("show", "k", "--store", by("hapax-check", redis.uri())).code == 3
        assert hapax.op(by("hapax-check", redis.uri()), "claim", "k2", "1") == "refused"
        for user in ("hapax-door", "hapax-operator", "hapax-check"):
            with redis_server.Wire(redis.port, "secret", user) as wire:
                for words in (["KEYS", "*"], ["FLUSHALL"], ["ACL", "LIST"], ["CONFIG", "SET", "save", ""],
                              ["GET", "other:key"]):
                    with pytest.raises(redis_server.RedisError, match="NOPERM|permissions"):
                        wire(*words)


def id_of(key):
    parts = (b"default", key.encode())
    return hashlib.sha256(b"".join(struct.pack(">I", len(part)) + part for part in parts)).hexdigest()


# In a cluster they also ask where slots are, and go to a slot that is just being moved.
@pytest.mark.ci
def test_the_users_in_a_cluster(hapax):
    with RedisCluster(**SAFE).start() as cluster:
        uri, nodes = cluster.uri(), cluster.nodes
        users = users_of(hapax, uri)
        make(users, nodes)
        acts = Acts(hapax, uri, nodes)
        for user in users:
            assert acts.go_well(user), user
        are_needed(acts, nodes, "hapax-door", ["+cluster|slots"])
        are_needed(acts, nodes, "hapax-check", ["+cluster|info"])
        slot = nodes[0].do("CLUSTER", "KEYSLOT", "hapax:" + id_of("moving"))
        source = next(node for node in nodes
                      for begin, end, owner, *_ in node.do("CLUSTER", "SLOTS")
                      if begin <= slot <= end and owner[1] == node.port)
        target = next(node for node in nodes if node is not source)
        target.do("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        source.do("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
        door = by("hapax-door", uri)
        for node in nodes:
            node.do("ACL", "SETUSER", "hapax-door", "-asking")
        assert hapax.op(door, "claim", "moving", "1") != "claimed"
        for node in nodes:
            node.do("ACL", "SETUSER", "hapax-door", "+asking")
        assert hapax.op(door, "claim", "moving", "1") == "claimed"


# With sentinels they also ask a node what it is; the sentinels have a user of their own.
@pytest.mark.ci
def test_the_users_with_sentinels(hapax):
    with Sentinels(replicas=1, **SAFE).start() as group:
        users = users_of(hapax, group.uri(wait=1))
        sentinel = users.pop("hapax-sentinel")
        make(users, group.nodes)
        make({"": sentinel}, group.sentinels)
        password = hapax.folder / "password"
        password.write_text("secret")
        password.chmod(0o600)
        uri = group.uri(wait=1, sentinel_user="hapax-sentinel", sentinel_password_file=password)
        acts = Acts(hapax, uri, [group.primary()])
        for user in users:
            assert acts.go_well(user), user
        are_needed(acts, group.nodes, "hapax-door", ["+role"])
        acts.nodes = group.sentinels  # whose ACL LOG tells
        are_needed(acts, group.sentinels, "hapax-sentinel", rights(sentinel))


# The rights that the page names for the hybrid store are enough behind sentinels and in a database. Without either of
# the two that are for these there are no hints.
@pytest.mark.ci
def test_the_user_of_the_hybrid_store(hapax):
    page = (ROOT / "docs/stores.md").read_text()
    granted, *more = re.findall("`(~hapax[^`]*|[+][^`]*)`", page[page.index("- A separate Redis user"):])[:3]
    assert more == ["+role", "+select"]
    with Postgres().start() as postgres, Sentinels(replicas=1).start() as group:
        primary, keys = group.primary(), (f"k{i}" for i in itertools.count())
        uri = f"hybrid:{by('cache', group.uri().split('?')[0])}/3+{postgres.uri(postgres.database())}"
        assert hapax("init", "--store", uri).code == 0
        primary.do("SELECT", 3)

        def hinted(*rights):
            """A Redis that takes its time is not waited for, and has no hint then."""
            make({"": ["cache", "reset", "on", ">secret", "resetchannels", *granted.split(), *rights]}, group.nodes)
            primary.do("ACL", "LOG", "RESET")
            assert hapax.op(uri, "claim", next(keys), "1") == "claimed"
            return primary.do("KEYS", "hapax:hint:*")

        assert not any(hinted(right) for right in more)
        redis_server.wait_for(lambda: hinted(*more), "a hint")
        assert not primary.do("ACL", "LOG")
