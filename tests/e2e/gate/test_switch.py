"""hapax switch: a word in the store that lowers what gates do, while they run."""
import contextlib
import re
import threading
import uuid

import pytest

import gate as g
from conftest import wait_until
from redis_server import Redis
from test_gate_more import STATUS


def server(api, lines=""):
    to = f"proxy_pass http://127.0.0.1:{api.port}/;"
    return f"""server {{ LISTEN hapax on; keepalive_requests 1000000;
        add_header X-Mode $hapax_mode always;
        location / {{ {to} }}
        location /pay/ {{ hapax_scope payments; {to} }}
        location /tenant/ {{ hapax_scope $http_x_tenant; {to} }}
        location /watched/ {{ hapax shadow; {to} }}
        location /off/ {{ hapax off; {to} }}
        {lines} {STATUS} }}"""


def mode(gate, path="/ok"):
    """What the gate does now with a request."""
    return gate.post(path, str(uuid.uuid4())).get("X-Mode")


def becomes(gate, expected, path="/ok"):
    wait_until(lambda: mode(gate, path) == expected, f"the gate being {expected} at {path}")


@contextlib.contextmanager
def redis_store(request):
    redis = Redis().start()
    yield redis.uri()
    redis.end()


@contextlib.contextmanager
def postgres_store(request):
    server = request.getfixturevalue("server")
    yield f"postgres://postgres@127.0.0.1:{server.port}/{request.getfixturevalue('db').name}"


@contextlib.contextmanager
def keeper_store(request):
    yield request.getfixturevalue("uri")


@pytest.fixture(params=(keeper_store, redis_store, pytest.param(postgres_store, marks=pytest.mark.ci)),
                ids=("keeper", "redis", "postgres"))
def any_store(request):
    with request.param(request) as uri:
        yield uri


@pytest.fixture
def start(folder, api, gates):
    def make(uri, **more):
        folder.chmod(0o755)
        http = f"hapax_store {uri}; hapax_timeout 30s; hapax_save_wait 30s;\n" + server(api)
        gates.append(g.Gate(folder, http, **more).start())
        return gates[-1]

    return make


def test_it_turns_gates_while_they_run(any_store, start, api, hapax):
    """Down and up again, under load: each operation that began under a word ends under it, no request gets an error,
    and what was guarded before is replayed afterwards."""
    gate = start(any_store, workers=2)
    gate.post("/ok", "from-before")
    failures, stop, outcomes = [], threading.Event(), {}

    def load(name):
        with gate.connect() as connection:
            n = 0
            while not stop.is_set():
                key = f"{name}-{n}"
                n += 1
                try:
                    connection.send(g.request("POST", "/ok", key))
                    answer = connection.response()
                except (AssertionError, OSError) as error:
                    failures.append(error)
                    return
                if answer.status != 200 or answer.get("Idempotency-Recorded") == "false":
                    failures.append(answer)
                if answer.replayed == "false":
                    outcomes[key] = answer.body

    threads = [threading.Thread(target=load, args=(f"load{i}",), daemon=True) for i in range(3)]
    for thread in threads:
        thread.start()
    for word in ("on", "off", "shadow", "on"):
        done = hapax("switch", word, "--store", any_store, "--by", "zoe", "--json")
        assert (done.code, done.json["switch"], done.json["by"]) == (0, word, "zoe"), done.err
        becomes(gate, word)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures and outcomes
    assert gate.post("/ok", "from-before").replayed == "true"
    for key in list(outcomes)[::max(1, len(outcomes) // 50)]:
        again = gate.post("/ok", key)
        assert (again.replayed, again.body, api.count(key)) == ("true", outcomes[key], 1)
    said = [line.rpartition("is switched to ")[2].split(",")[0].strip() for line in gate.log().splitlines()
            if "is switched to" in line]
    assert said == ["off", "shadow", "on"], "each is logged once, by all workers together"


def test_it_takes_away_and_never_adds(make_gate, api, hapax, uri):
    """What a location says is the most that it does; of the words of the store and of the scope the lower one goes.
    A scope that differs between requests follows the store's word alone."""
    gate = make_gate(server(api)).start()
    tenant = [("X-Tenant", "payments")]
    for words, root, pay, watched in (
            ((), "on", "on", "shadow"),
            ((("off", "payments"),), "on", "off", "shadow"),
            ((("shadow", None),), "shadow", "off", "shadow"),
            ((("off", None), ("on", "payments")), "off", "off", "off"),
            ((("on", None),), "on", "on", "shadow")):
        for word, scope in words:
            assert hapax("switch", word, *(["--scope", scope] if scope else []), "--store", uri).code == 0
        becomes(gate, root)
        becomes(gate, pay, "/pay/ok")
        becomes(gate, watched, "/watched/ok")
        assert mode(gate, "/off/ok") == "off"
    assert hapax("switch", "off", "--scope", "payments", "--store", uri).code == 0
    becomes(gate, "off", "/pay/ok")
    assert [gate.post("/tenant/ok", "t", headers=tenant).replayed for _ in range(2)] == ["false", "true"]
    page = gate.send("GET", "/hapax").body.decode()
    assert "\nhapax_switch 0\n" in page


def test_a_gate_keeps_to_the_last_word(start, api, hapax):
    """Where the store is away the last word goes, also for new workers after a reload."""
    redis = Redis().start()
    gate = start(redis.uri())
    assert hapax("switch", "off", "--store", redis.uri()).code == 0
    becomes(gate, "off")
    redis.stop()
    before = gate.workers()
    gate.signal(1)
    wait_until(lambda: not set(before) & set(gate.workers()) and gate.workers(), "the new worker")
    assert [gate.post("/ok", "k").replayed for _ in range(2)] == [None, None] and api.count("k") == 2
    redis.cont()
    assert hapax("switch", "on", "--store", redis.uri()).code == 0
    becomes(gate, "on")
    redis.end()


def test_a_store_that_went_back_in_time_lowers_nothing(start, api, hapax):
    """A gate ignores a word that is older than the one it knows, and guards less. Said again, the word counts."""
    redis = Redis().start()
    gate = start(redis.uri())

    def reads():
        return sum(int(re.search("calls=([0-9]+)", said)[1]) for name, said in redis.info("commandstats").items()
                   if name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"))

    for word in ("off", "on"):
        assert hapax("switch", word, "--store", redis.uri()).code == 0
        becomes(gate, word)
        if word == "off":
            old = {key: redis.do("DUMP", key) for key in redis.do("KEYS", "*")}
    for key, value in old.items():
        redis.do("RESTORE", key, 0, value.encode("utf-8", "surrogateescape"), "REPLACE")
    assert hapax("switch", "--store", redis.uri(), "--json").json["switch"] == "off"
    before = reads()
    wait_until(lambda: reads() > before + 6, "the gate's next READs of both switches")
    assert mode(gate) == "on"
    assert hapax("switch", "off", "--store", redis.uri()).code == 0
    becomes(gate, "off")
    redis.end()


def test_what_is_said_can_be_looked_at(hapax, store, folder):
    """Without a word it prints what is said, and by whom; each act leaves two lines. The record is none of an
    operation's."""
    assert hapax("init", "--store", store).code == 0
    assert hapax("switch", "--store", store).out.startswith("on: gates do what their own settings say")
    trail = folder / "trail"
    first = hapax("switch", "shadow", "--store", store, "--by", "zoe", "--audit", trail)
    assert first.out.startswith("shadow: requests pass, and it is counted") and "(by zoe, " in first.out
    scoped = hapax("switch", "off", "--scope", "payments", "--store", store, "--by", "max", "--audit", trail, "--json")
    assert [(line["switch"], line.get("scope"), line["by"]) for line in scoped.lines] == [
        ("shadow", None, "zoe"), ("off", "payments", "max")]
    lines = hapax.run("cat", trail).lines
    assert [(line["act"], line.get("scope"), line["was"], line["to"], line["by"], line["end"]) for line in lines] == [
        ("switch", None, "on", "shadow", "zoe", "asked"), ("switch", None, "on", "shadow", "zoe", "ok"),
        ("switch", "payments", "on", "off", "max", "asked"), ("switch", "payments", "on", "off", "max", "ok")]
    assert hapax("list", "--state", "completed", "--store", store, "--json").lines == []
    assert hapax("switch", "maybe", "--store", store).code == 2
    assert hapax("switch", "off", "--scope", "", "--store", store).code == 2

