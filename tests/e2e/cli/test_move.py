"""A move from store to store without a stop (docs/moving.md): programs run operations all the time, while the store
that they are given becomes both, and then the new one. They are killed at any time."""
import os
import random
import subprocess
import threading
import time

import pytest
from conftest import HAPAX, PATIENCE
from postgres_server import Postgres
from process import Workers, end_with_parent, wait_for
from proxy import Proxy
from redis_server import Redis
from test_erase import servers  # noqa: F401

WORKERS = 5
RUNS = int(os.environ.get("HAPAX_MOVE_RUNS", "12"))  # of each step
WINDOW = 8  # keys that are asked for at a time
NOT_NOW = (121, 122, 123, -9)  # unknown, in flight, the store is away; killed


class Moving(Workers):
    """Workers that run operations, and what they saw. Each operation's effect is a line in a file."""

    def __init__(self, hapax, folder, store):
        self.hapax, self.folder, self.stores = hapax, folder, [store] * WORKERS
        self.running, self.lock = [None] * WORKERS, threading.Lock()
        self.runs, self.shown, self.wrong, self.over = 0, {}, [], False
        (folder / "effects").write_text("")
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(WORKERS)]

    def key(self):
        """The newest ones, and sometimes one that was done long ago."""
        newest = self.runs // 3
        return f"key-{random.randint(0, newest) if random.random() < 0.3 else newest + random.randrange(WINDOW)}"

    def begin(self, store, key):
        script = f"echo {key} >> {self.folder}/effects; sleep 0.0{len(key)}; echo $$-$HAPAX_FENCE"
        words = [HAPAX, "run", "--store", store, "--on-expired", "hold", "--lease", "10s", key,
                 "--", "sh", "-c", script]
        return subprocess.Popen(list(map(str, words)), env=self.hapax.env, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent)

    def work(self, number):
        while not self.over:
            key = self.key()
            with self.lock:
                process = self.running[number] = self.begin(self.stores[number], key)
            out, err = process.communicate(timeout=PATIENCE)
            self.note(key, process.returncode, out, err)

    def note(self, key, code, out, err):
        with self.lock:
            self.runs += 1
            if code == 0 and self.shown.setdefault(key, out) != out:
                self.wrong.append(f"{key} has outcomes {self.shown[key]} and {out}")
            if code not in (0, *NOT_NOW):
                self.wrong.append(f"{key} ended with {code}: {err}")

    def give(self, number, store):
        """Kills what the worker runs, as a process that is stopped by force; it has the other store from then on."""
        with self.lock:
            if self.running[number]:
                self.running[number].kill()
            self.stores[number] = store

    def wait_runs(self, more=RUNS):
        enough = self.runs + more
        wait_for(lambda: self.runs >= enough or self.wrong, f"{more} runs", 6 * PATIENCE)

    def effects(self):
        lines = (self.folder / "effects").read_text().split()
        return {key: lines.count(key) for key in lines}


@pytest.fixture(params=["redis to postgres", pytest.param("postgres to redis", marks=pytest.mark.ci),
                        pytest.param("keeper to postgres", marks=pytest.mark.ci)])
def both(request, hapax, folder, servers):  # noqa: F811
    """The old store and the new one."""
    def keeper():
        hapax.keep(f"rocksdb:{folder}/store")
        return f"unix:{folder}/store/keeper.sock"

    make = {"redis": lambda: f"{servers(Redis).uri()}?prefix=t{os.urandom(4).hex()}:", "keeper": keeper,
            "postgres": lambda: servers(Postgres).uri(servers(Postgres).database())}
    old, new = (make[kind]() for kind in request.param.split(" to "))
    done = hapax("init", "--store", f"move:{old}+{new}")
    assert done.code == 0, done.err
    return old, new


def test_a_move_without_a_stop(hapax, folder, both):
    """No effect twice, no outcome lost or changed."""
    old, new = both
    with Moving(hapax, folder, old) as moving:
        moving.wait_runs()
        for number in range(WORKERS):
            moving.give(number, f"move:{old}+{new}")
            moving.wait_runs(RUNS // WORKERS)
        copied = hapax("copy", "--live", "--from", old, "--to", new, "--wait", "1m", "--json")
        assert copied.code == 0, copied.out + copied.err
        for number in range(WORKERS):
            moving.give(number, new)
            moving.wait_runs(RUNS // WORKERS)
        moving.wait_runs()
    assert moving.wrong == []
    twice = {key: count for key, count in moving.effects().items() if count > 1}
    assert not twice
    assert len(moving.shown) > RUNS // 3
    for key, out in moving.shown.items():
        process = moving.begin(new, key)
        assert process.communicate(timeout=PATIENCE)[0] == out and process.returncode == 0, key
    assert moving.effects() == {key: 1 for key in moving.effects()}


def test_check_names_both_halves(hapax, both):
    """And what walks or imports says which store to name."""
    old, new = both
    uri = f"move:{old}+{new}"
    done = hapax("check", "--store", uri)
    assert "the old store: " in done.out and "the new store: " in done.out
    for words in (["list", "--store", uri], ["purge", "--store", uri]):
        done = hapax(*words)
        assert done.code == 2 and "with the URI of the old store" in done.err
    assert hapax("list", "--store", f"move:{old}").code == 2
    assert "is not move:OLD-URI+NEW-URI" in hapax("list", "--store", f"move:{old}").err


def test_an_operator_resolves_in_both(hapax, folder, both):
    old, new = both
    uri = f"move:{old}+{new}"

    def once(store, script="echo done"):
        return hapax.run(HAPAX, "run", "--store", store, "--on-expired", "hold", "k1", "--", "sh", "-c", script)

    assert once(uri, "kill -9 $$").code == 137
    assert hapax("resolve", "--store", uri, "k1", "--complete", "0").code == 0
    for store in (old, new):
        assert hapax("show", "--store", store, "k1", "--json").json["state"] == "completed"


def test_a_word_of_the_switch_is_heard_in_both(hapax, both):
    """Also where the old store has a word already, and the new one has none."""
    old, new = both
    uri = f"move:{old}+{new}"
    for store, word in ((old, "on"), (uri, "off")):
        assert hapax("switch", word, "--store", store).code == 0
    for store in (old, new, uri):
        assert hapax("switch", "--store", store, "--json").json["switch"] == "off", store


def test_another_attempt_with_that_number_is_left_alone(hapax, both):
    """The halves count attempts apart. The operator has seen the dead one of the old store, and a program that has only
    the new store has begun another first attempt there."""
    old, new = both
    uri = f"move:{old}+{new}"
    hapax.unknown(old, "k1")
    assert hapax.op(new, "claim", "k1", "2", 3600000) == "claimed"
    refused = hapax("resolve", "--store", uri, "k1", "--fail", "--force", "--if-attempt", "1", "--json")
    assert (refused.code, refused.json["resolved"], refused.json["attempt"]) == (1, False, 1)
    assert refused.json["text"] == "another attempt with this number has begun"
    assert hapax.op(new, "complete", "k1", "2", 200) == "ok"


@pytest.mark.parametrize("state, word, then", [
    ("unknown", ["--fail"], "failed"), ("unknown", ["--forget"], "absent"), ("unknown", ["--complete", "7"], 7),
    ("signal", ["--forget"], "absent"),
    ("completed", ["--fail", "--force"], "failed"), ("completed", ["--forget", "--force"], "absent"),
    ("completed", ["--complete", "7", "--force"], 7)])
def test_an_operator_s_word_is_not_lost_beside_a_copy(hapax, servers, state, word, then):  # noqa: F811
    """The copy has read the operation, and puts it into the new store once the operator has found nothing there. Nor is
    the word lost where a signal ends the copy just then."""
    redis, name = servers(Redis), os.urandom(4).hex()
    old, new = (redis.uri(prefix=f"{half}{name}:", timeout="30s") for half in ("old", "new"))
    assert hapax("init", "--store", f"move:{old}+{new}").code == 0
    hapax.run(HAPAX, "run", "--store", old, "--on-expired", "hold", "--scope", "shop", "k1", "--", "sh", "-c",
              "true" if state == "completed" else "kill -9 $$")
    with Proxy(redis.port) as proxy:
        put = proxy.stall("request", containing=b"shop")
        slow = redis.uri(proxy.port, prefix=f"new{name}:", timeout="60s")
        copying = hapax.start("copy", "--live", "--from", old, "--to", slow, "--json")
        assert put.fired.wait(PATIENCE)
        since = time.monotonic()
        done = hapax("resolve", "--store", f"move:{old}+{new}", "--scope", "shop", "k1", *word)
        assert done.code == 0, done.err
        wait_for(lambda: time.monotonic() > since + 1.1, "the copy waits no longer for what runs")
        if state == "signal":
            copying.terminate()
        proxy.heal()
        out, err = copying.communicate(timeout=PATIENCE)
    assert (copying.returncode == 0) != (state == "signal"), out + err
    for store in (old, new):
        shown = hapax("show", "--store", store, "--scope", "shop", "k1", "--json").json
        assert then in (shown["state"], shown.get("status")), store


def test_a_death_is_not_hidden_by_an_attempt_that_begins_beside_a_copy(hapax, servers):  # noqa: F811
    """The copy has made room where an attempt had claimed that is dead by now. The next one begins between its two
    READs, and finds nothing in the new store, which so does not know of the death."""
    redis, name, key = servers(Redis), os.urandom(4).hex(), "k1"
    old, new = (redis.uri(prefix=f"{half}{name}:", timeout="30s") for half in ("old", "new"))
    both = f"move:{old}+{new}"
    assert hapax("init", "--store", both).code == 0
    with Proxy(redis.port) as from_old, Proxy(redis.port) as to_new:
        listing = from_old.stall("request", containing=b"SCAN")
        slow = [redis.uri(proxy.port, prefix=f"{half}{name}:", timeout="60s")
                for proxy, half in ((from_old, "old"), (to_new, "new"))]
        since = time.monotonic()
        copying = hapax.start("copy", "--live", "--from", slow[0], "--to", slow[1], "--json")
        assert listing.fired.wait(PATIENCE)
        wait_for(lambda: time.monotonic() > since + 1.5, "a record that is copied, and not old")
        assert (hapax.op(old, "claim", key, "1"), hapax.op(old, "fail", key, "1", "ran")) == ("claimed", "ok")
        wait_for(lambda: time.monotonic() > since + 2.2, "whoever begins from now on has both")
        assert hapax.op(both, "claim", key, "2", 1) == "claimed"
        assert hapax("resolve", "--store", new, key, "--forget").code == 0
        looking = to_new.stall("request", containing=f"new{name}:".encode())
        from_old.heal()
        assert looking.fired.wait(PATIENCE)
        assert (hapax.op(both, "claim", key, "3"), hapax.op(both, "fail", key, "3", "ran")) == ("claimed", "ok")
        to_new.heal()
        out, err = copying.communicate(timeout=PATIENCE)
    assert copying.returncode == 0, out + err
    for store in (old, new):
        assert hapax("show", "--store", store, key, "--json").json["stale"], store
