"""Limits of owners (hapax_limit): who is at a limit begins nothing new, and nobody else notices. Whatever has begun is
answered as always."""
import contextlib
import itertools
import json
import threading
import time

import gate as g
import pytest
from conftest import at_some_pace, wait_until
from test_gate_more import STATUS, status

BY_ACCOUNT = "hapax_owner $http_x_account;"


def server(api, lines):
    return (f"server {{ LISTEN hapax on; {lines} location / {{ proxy_pass http://127.0.0.1:{api.port}; }} {STATUS} "
            f"location /free/ {{ hapax_limit off; proxy_pass http://127.0.0.1:{api.port}/; }} }}")


def of(account):
    return {"headers": [("X-Account", account)]}


def limited(answer, why, later=True):
    """A request that is refused: told why, and when there may be room, if time helps. Nothing ran for it."""
    assert (answer.status, answer.problem) == (429, "limit-reached"), answer
    page = json.loads(answer.body)
    assert why in page["detail"] and page["error"]["type"] == "rate_limit_error"
    assert answer.get("Idempotency-Replayed") is None
    assert (answer.get("Retry-After") is not None) == later
    return int(answer.get("Retry-After") or 0)


def begin(gate, api, name, key, **more):
    """A request whose handler runs until api.door(name) opens."""
    answer = gate.later(f"/hold/{name}", key, **more)
    wait_until(lambda: api.count(key) == 1, "the handler")
    return answer


def test_in_flight(make_gate, api):
    """At its limit an owner begins nothing. Its repeats, and others, are answered as always; what ends makes room."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=2;")).start()
    done = gate.post("/ok", "done", **of("a"))
    first, second = (begin(gate, api, "d", key, **of("a")) for key in ("1", "2"))
    assert limited(gate.post("/ok", "3", **of("a")), "in flight") == 1
    g.same(done, gate.post("/ok", "done", **of("a")))
    assert gate.post("/hold/d", "1", **of("a")).problem == "in-flight"
    assert gate.post("/other", "1", **of("a")).problem == "fingerprint-mismatch"
    assert gate.post("/ok", "b", **of("b")).status == 200
    assert gate.post("/free/ok", "free", **of("a")).status == 200
    assert gate.post("/ok", **of("a")).status == 200  # no operation
    api.door("d").set()
    assert first().status == second().status == 200
    assert gate.post("/ok", "3", **of("a")).body == b"effect=1 body=0"
    assert status(gate)["limited"] == {"in_flight": 1, "keys": 0, "bytes": 0, "unknown": 0}
    assert b'hapax_limited_total{limit="in_flight"} 1\n' in gate.send("GET", "/hapax").body
    wait_until(lambda: "limited" in gate.log("access.log"), "the access log")


def test_a_failed_operation_runs_again_within_the_limit(make_gate, api, hapax, uri):
    """A known key that would run again is refused while too much is in flight, and is as it was before."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=1;")).start()
    assert gate.post("/status/500,200", "failed", **of("a")).status == 500
    first = begin(gate, api, "d", "1", **of("a"))
    limited(gate.post("/status/500,200", "failed", **of("a")), "in flight")
    assert len(hapax("list", "--store", uri, "--json", "--state", "failed").lines) == api.count("failed") == 1
    api.door("d").set()
    assert first().status == 200
    assert gate.post("/status/500,200", "failed", **of("a")).body == b"effect=2"


def test_new_keys(make_gate, api, hapax, uri):
    """New keys within an hour: one more is refused, and leaves no record; a known key is answered, or runs again."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit keys=3/h;")).start()
    assert gate.post("/status/500,200", "failed", **of("a")).status == 500
    done = gate.post("/ok", "done", **of("a"))
    assert gate.post("/status/401", "refused", **of("a")).status == 401
    retry_after = limited(gate.post("/ok", "more", **of("a")), "new keys")
    assert 3600 - 30 <= retry_after <= 3600 + 240
    limited(gate.post("/status/401,200", "refused", **of("a")), "new keys")  # it never ran
    g.same(done, gate.post("/ok", "done", **of("a")))
    assert gate.post("/status/500,200", "failed", **of("a")).body == b"effect=2"
    assert [gate.post("/ok", f"b{i}", **of("b")).status for i in range(3)] == [200, 200, 200]
    limited(gate.post("/ok", "b3", **of("b")), "new keys")
    assert api.count("more") == api.count("b3") == 0
    assert len(hapax("list", "--store", uri, "--json").lines) == 6


def test_a_burst_gets_no_further(make_gate, api, hapax, uri):
    """Many at once: as many run as may, whatever the order; those refused are not let in as known afterwards."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit keys=5/h;"), workers=2).start()
    answers = [gate.later("/ok", f"k{i}", **of("a")) for i in range(40)]
    assert sorted(answer().status for answer in answers) == [200] * 5 + [429] * 35
    assert sorted(gate.post("/ok", f"k{i}", **of("a")).status for i in range(40)) == [200] * 5 + [429] * 35
    assert sum(api.count(f"k{i}") for i in range(40)) == 5


def test_kept_bytes(make_gate, api):
    """What is stored counts until the retention ends: then, and as Retry-After says, there is room."""

    def ends(retention_s):
        lines = f"hapax_limit bytes=20k; hapax_lease 1s; hapax_retention {retention_s}s;"
        gate = make_gate(server(api, BY_ACCOUNT + lines), name=f"keeps{retention_s}").start()
        assert gate.post("/ok?len=30000", f"large{retention_s}", **of("a")).status == 200
        at = time.monotonic()
        retry_after = limited(gate.post("/ok", f"more{retention_s}", **of("a")), "bytes")
        assert 1 <= retry_after <= retention_s + 1
        assert gate.post("/ok", f"b{retention_s}", **of("b")).status == 200
        wait_until(lambda: time.monotonic() >= at + retry_after, "the time in Retry-After")
        assert gate.post("/ok", f"more{retention_s}", **of("a")).status == 200

    at_some_pace(ends, 2, 8, 20)


def test_unknown_outcomes(make_gate, api, hapax, uri):
    """Who leaves operations of unknown outcome begins no more. Where nothing is forgotten no time helps, and resolving
    them does not. A higher limit does: a reload takes it, and keeps the count."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit unknown=1; hapax_on_expired hold; hapax_retention forever;")
                     ).start()
    assert gate.post("/drop", "1", **of("a")).status == 502
    limited(gate.post("/ok", "2", **of("a")), "unknown", later=False)
    assert gate.post("/drop", "1", **of("a")).problem == "unknown-outcome"
    assert gate.post("/ok", "2", **of("b")).status == 200
    hapax("resolve", "1", "--owner", "a", "--store", uri, "--complete", "200")
    limited(gate.post("/ok", "2", **of("a")), "unknown", later=False)
    old = gate.workers()
    gate.http = gate.http.replace("unknown=1", "unknown=2")
    gate.write()
    gate.signal(g.signal.SIGHUP)
    wait_until(lambda: gate.workers() and old[0] not in gate.workers(), "the new worker alone")
    assert gate.post("/ok", "2", **of("a")).status == 200
    assert gate.post("/drop", "3", **of("a")).status == 502
    limited(gate.post("/ok", "4", **of("a")), "unknown", later=False)


def test_without_an_owner_the_scope_has_the_limit(make_gate, api):
    """Anonymous requests of a scope share its limit; an owner of the same name has another."""
    lines = "hapax_caller none; hapax_limit keys=1/h; hapax_scope $http_x_shop;"
    owned = "server_name owned; hapax_owner $http_x_shop; hapax_limit keys=1/h;"
    gate = make_gate(server(api, lines) + server(api, owned)).start()
    assert gate.post("/ok", "1", headers=[("X-Shop", "a")]).status == 200
    limited(gate.post("/ok", "2", headers=[("X-Shop", "a")]), "new keys")
    assert gate.post("/ok", "1", headers=[("X-Shop", "b")]).status == 200
    assert gate.post("/ok", "1", headers=[("Host", "owned"), ("X-Shop", "a")]).status == 200


def test_kill_9_of_a_worker_frees_what_it_had(make_gate, api):
    """What a dead worker had in flight no longer counts; its window does."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=1 keys=2/h; hapax_on_expired hold;")).start()
    first = begin(gate, api, "d", "1", **of("a"))
    limited(gate.post("/ok", "2", **of("a")), "in flight")
    old = gate.workers()
    g.os.kill(old[0], g.signal.SIGKILL)
    with pytest.raises(AssertionError):
        first()
    api.door("d").set()
    wait_until(lambda: gate.workers() and gate.workers() != old, "a new worker")
    wait_until(lambda: gate.post("/ok", "2", **of("a")).status == 200, "room")
    limited(gate.post("/ok", "3", **of("a")), "new keys")


def test_a_dead_worker_that_nobody_follows_is_found(make_gate, api):
    """A worker that is killed while it quits leaves nothing behind either: the others see that it is gone."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=1; hapax_on_expired hold;")).start()
    first = begin(gate, api, "d", "1", **of("a"))
    old = gate.workers()
    gate.signal(g.signal.SIGHUP)
    wait_until(lambda: [worker for worker in gate.workers() if worker not in old], "a new worker")
    wait_until(lambda: gate.post("/ok", "other", **of("b")).status == 200, "the new worker")
    limited(gate.post("/ok", "2", **of("a")), "in flight")
    g.os.kill(old[0], g.signal.SIGKILL)
    with pytest.raises(AssertionError):
        first()
    wait_until(lambda: gate.post("/ok", "2", **of("a")).status == 200, "room")


def test_workers_that_die_under_load(make_gate, api):
    """Workers are killed wherever they are, ten times over: nothing stays in flight, and nothing is counted twice."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=8;"), workers=2).start()
    over = threading.Event()

    def ask(n):
        for i in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
            with contextlib.suppress(OSError, AssertionError):
                gate.post("/ok", f"{n}-{i}", **of("a"))

    threads = [threading.Thread(target=ask, args=[n]) for n in range(6)]
    for thread in threads:
        thread.start()
    try:
        for i in range(10):
            runs = sum(api.effects.values())
            wait_until(lambda: sum(api.effects.values()) > runs + 20, "operations")  # noqa: B023
            old = gate.workers()
            g.os.kill(old[i % 2], g.signal.SIGKILL)
            wait_until(lambda: len(gate.workers()) == 2 and gate.workers() != old, "a new worker")  # noqa: B023
    finally:
        over.set()
        for thread in threads:
            thread.join()
    # once it has its name, a worker has let go what the one before it had in flight
    wait_until(lambda: all("worker" in g.pathlib.Path(f"/proc/{worker}/cmdline").read_text()
                           for worker in gate.workers()), "the last worker")
    answers = [begin(gate, api, "d", f"last-{i}", **of("a")) for i in range(8)]
    limited(gate.post("/ok", "more", **of("a")), "in flight")
    api.door("d").set()
    assert [answer().status for answer in answers] == [200] * 8


def test_a_reload_keeps_counts(make_gate, api):
    """SIGHUP: the new workers go on counting, and what the old one has in flight counts until it ends."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit in_flight=2 keys=3/h;")).start()
    first, second = (begin(gate, api, "d", key, **of("a")) for key in ("1", "2"))
    old = gate.workers()
    gate.signal(g.signal.SIGHUP)
    wait_until(lambda: [worker for worker in gate.workers() if worker not in old], "a new worker")
    wait_until(lambda: gate.post("/ok", "other", **of("b")).status == 200, "the new worker")
    limited(gate.post("/ok", "3", **of("a")), "in flight")
    api.door("d").set()
    assert first().status == second().status == 200
    wait_until(lambda: old[0] not in gate.workers(), "the old worker leaving")
    assert gate.post("/ok", "3", **of("a")).status == 200
    limited(gate.post("/ok", "4", **of("a")), "new keys")


def test_many_owners(make_gate, api):
    """The table is bounded: who was not seen for longest gives way, and the page says so."""
    gate = make_gate("hapax_limit_zone 256k;" + server(api, BY_ACCOUNT + "hapax_limit keys=1/h;")).start()
    with gate.connect() as connection:
        for i in range(600):
            connection.send(g.request("POST", "/ok", "k", headers=[("X-Account", f"a{i}")]))
            assert connection.response().status == 200
    shown = status(gate)
    assert 50 < shown["limit_owners"] < 600
    assert shown["limit_owners"] + shown["limit_forgotten"] == 600
    limited(gate.post("/ok", "2", **of("a599")), "new keys")
    assert gate.post("/ok", "2", **of("a0")).status == 200


def test_who_is_refused(make_gate, api, hapax, uri):
    """The page names the last who were refused by the beginning of their digests, how often, and why."""
    gate = make_gate(server(api, BY_ACCOUNT + "hapax_limit keys=1/h;")).start()
    assert status(gate)["refused"] == []
    for i in range(10):
        assert gate.post("/ok", "1", **of(f"a{i}")).status == 200
        limited(gate.post("/ok", "2", **of(f"a{i}")), "new keys")
    limited(gate.post("/ok", "2", **of("a9")), "new keys")
    refused = status(gate)["refused"]
    digest = hapax("list", "--store", uri, "--owner", "a9", "--json").lines[0]["owner"]
    last = [entry for entry in refused if digest.startswith(entry["owner"])]
    assert len({entry["owner"] for entry in refused}) == 8 and len(last) == 1 and len(last[0]["owner"]) == 16
    earlier = hapax("list", "--store", uri, "--owner", "a2", "--json").lines[0]["owner"]
    assert any(earlier.startswith(entry["owner"]) for entry in refused)
    assert (last[0]["limit"], last[0]["times"]) == ("keys", 2) and 0 <= last[0]["seconds_ago"] < g.PATIENCE
    assert b"a9" not in gate.send("GET", "/hapax").body


def test_a_store_that_is_away(make_gate, api, hapax):
    """At a limit and without the store nobody can tell what is known: 503; or 429, where it would run unprotected."""
    limit = "hapax_limit keys=1/h;" + BY_ACCOUNT
    lines = "hapax_timeout 300ms;" + limit
    gate = make_gate(server(api, lines) + server(api, "server_name open; hapax_on_store_error open;" + lines)
                     + server(api, "server_name patient; hapax_timeout 30s;" + limit)).start()
    assert gate.post("/ok", "1", headers=[("Host", "patient"), ("X-Account", "a")]).status == 200
    hapax.keeper.kill()
    hapax.keeper.wait(g.PATIENCE)
    assert gate.post("/ok", "1", **of("a")).problem == "store-unavailable"
    limited(gate.post("/ok", "1", headers=[("Host", "open"), ("X-Account", "a")]), "new keys")
    assert gate.post("/ok", "2", headers=[("Host", "open"), ("X-Account", "b")]).get("Idempotency-Protected") == "false"


def test_a_zone_that_is_too_small(folder):
    """hapax_limit_zone has a lower limit."""
    done = g.Gate(folder, "hapax_limit_zone 64k;").nginx("-t")
    assert done.returncode == 1 and '"hapax_limit_zone" takes 256k at least' in done.stderr, done.stderr


def test_serve(serve):
    """hapax serve --limit; the page about the problem is served beside the API."""
    served = serve("--owner", "$http_x_account", "--limit", "in_flight=5 keys=1/h")
    assert served.post("/ok", "1", **of("a")).status == 200
    answer = served.post("/ok", "2", **of("a"))
    limited(answer, "new keys")
    assert b"# limit-reached (429)" in served.send("GET", json.loads(answer.body)["type"]).body
    assert served.post("/ok", "2", **of("b")).status == 200


@pytest.mark.some(1)
@pytest.mark.parametrize("words", [["--limit-requests", "1"], ["--limit-connections", "1"], ["--limit", "in_flight=1"]],
                         ids=["requests", "connections", "owner"])
def test_what_is_refused_fills_no_log(serve, api, words):
    """A stranger over a limit writes nothing into the log of hapax serve: where nobody reads it, nginx would stand
    still. Only notices tell of such requests, which serve does not log."""
    served = serve("--owner", "$http_x_account", *words)
    with g.Connection(served.port) as connection:
        connection.send(g.request("POST", "/hold/d", "first", **of("a")))
        wait_until(lambda: api.count("first") == 1, "the attempt")
        assert sum(served.post("/ok", f"k{i}", **of("a")).status == 429 for i in range(40)) >= 20
        api.door("d").set()
        assert connection.response().status == 200
    served.process.terminate()
    log = served.process.communicate(timeout=g.PATIENCE)[1]
    assert not [line for line in log.splitlines() if "limit" in line or "[error]" in line or "[warn]" in line], log


def test_a_broker_is_told_to_send_it_again(make_gate, api):
    """A message that is over a limit is not lost: the broker delivers it again."""
    gate = make_gate(server(api, "hapax_push dapr; hapax_scope s; hapax_limit keys=1/h;")).start()

    def push(number):
        event = {"specversion": "1.0", "id": str(number), "source": "/s", "type": "t", "data": number}
        return gate.post("/ok", None, json.dumps(event).encode(),
                         headers=[("Content-Type", "application/cloudevents+json")])

    assert push(1).status == 200
    assert json.loads(push(2).body) == {"status": "RETRY"}
