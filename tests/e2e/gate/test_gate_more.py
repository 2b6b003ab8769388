"""The HTTP gate, end to end, continued: callers, policies by their effect, stores that stop, what a replay
may hold, and the handlers and transports that test_gate.py leaves out."""
import base64
import json
import os
import socketserver
import struct
import subprocess
import threading
import time

import pytest

import gate as g
from fake_http import FakeHttp
from conftest import at_some_pace, wait_until
from process import end_with_parent, files_of, free_port, stop


class FakeUwsgi(socketserver.StreamRequestHandler):
    """The uwsgi protocol, as much as a test needs: one packet of variables, the body, an HTTP response."""

    def handle(self):
        modifier, size, _ = struct.unpack("<BHB", self.rfile.read(4))
        assert modifier == 0
        packet, at, words = self.rfile.read(size), 0, []
        while at < size:
            length, = struct.unpack_from("<H", packet, at)
            words.append(packet[at + 2:at + 2 + length])
            at += 2 + length
        self.server.fields = dict(zip(words[::2], words[1::2]))
        self.rfile.read(int(self.server.fields[b"CONTENT_LENGTH"] or 0))
        self.wfile.write(self.server.run())


def server(api, lines):
    """One server before the API, with settings of its own."""
    return f"server {{ LISTEN hapax on; {lines} location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}"


def status(gate):
    """The numbers of the status page."""
    return json.loads(gate.send("GET", "/hapax?format=json").body)


STATUS = "location = /hapax { hapax off; hapax_status; }"


# ---- zones ---------------------------------------------------------------------------------------


def test_a_zone_is_counted_under_its_name(make_gate, api):
    """What a location with hapax_zone does has the label; a location within has it, too, and all else has none."""
    zoned = f"location /pay/ {{ hapax_zone pay; proxy_pass http://127.0.0.1:{api.port}; }}"
    gate = make_gate(server(api, STATUS + zoned)).start()
    for path in ("/pay/ok", "/pay/ok", "/ok"):
        gate.post(path, "k" + path)
    page = gate.send("GET", "/hapax").body.decode()
    assert 'hapax_answers_total{answer="fresh"} 1\n' in page
    assert 'hapax_answers_total{answer="fresh",zone="pay"} 1\n' in page
    assert 'hapax_answers_total{answer="replay",zone="pay"} 1\n' in page
    assert 'hapax_handler_seconds_bucket{le="+Inf",zone="pay"} 1\n' in page
    assert status(gate)["answers"]["fresh"] == 2


# ---- what a refusal leaves behind ----------------------------------------------------------------


def test_refusals_do_not_fill_the_store(make_gate, api, hapax, folder, uri):
    """A stranger's requests with keys of their own, each refused with 900 kB: none of these bodies is stored, and their
    records are for a minute at most. Who is refused may try again at once, and what then runs is kept."""
    gate = make_gate(server(api, "")).start()
    for i in range(60):
        answer = gate.post("/status/401?len=900000", f"stranger-{i}")
        assert answer.status == 401 and len(answer.body) == 900000 and answer.get("Idempotency-Recorded") is None
    stored = sum(map(len, files_of(folder / "store").values()))
    assert stored < 1_000_000
    records = hapax("list", "--store", uri, "--json").lines
    assert {record["state"] for record in records} == {"failed"}
    assert all(record["expires_us"] - record["updated_us"] <= 60_000_000 for record in records)
    assert gate.post("/status/401,200", "known").status == 401
    first = gate.post("/status/401,200", "known")
    g.same(first, gate.post("/status/401,200", "known"))
    assert first.body == b"effect=2" and api.count("known") == 2


# ---- who asks ------------------------------------------------------------------------------------


def refused(answer, secret):
    """Another caller's request: told so, with no byte of the stored response."""
    assert (answer.status, answer.problem) == (422, "caller-mismatch")
    whole = repr(answer.headers).encode() + answer.body
    assert secret not in whole and answer.all("X-A") == [] and answer.get("ETag") is None


def unowned(answer, secret):
    """Nobody can tell whose key it is."""
    assert (answer.status, answer.problem) == (400, "missing-owner") and secret not in answer.body


def test_a_caller_is_what_hapax_caller_says(make_gate, api):
    """By a variable of one's own: its other value is refused; credentials that change are not."""
    gate = make_gate(server(api, "hapax_caller $http_x_user;")).start()
    first = gate.post("/ok", "k", headers=[("X-User", "ann"), ("Authorization", "Bearer 1")])
    assert first.replayed == "false"
    for headers in ([("X-User", "bob"), ("Authorization", "Bearer 1")], [("X-User", "ann ann")]):
        refused(gate.post("/ok", "k", headers=headers), first.body)
    for headers in ([("Authorization", "Bearer 1")], [("X-User", "")]):
        unowned(gate.post("/ok", "k", headers=headers), first.body)
    g.same(first, gate.post("/ok", "k", headers=[("X-User", "ann"), ("Authorization", "Bearer 2")]))
    assert api.count("k") == 1


def test_without_hapax_caller_credentials_are_the_caller(gate, api):
    """Who has none is a caller as well: not one who has, nor the other way round."""
    bearer = [("Authorization", "Bearer 1")]
    first = gate.post("/ok", "anonymous")
    refused(gate.post("/ok", "anonymous", headers=bearer), first.body)
    assert gate.post("/ok", "anonymous").replayed == "true"
    first = gate.post("/ok", "known", headers=bearer)
    refused(gate.post("/ok", "known"), first.body)
    refused(gate.post("/ok", "known", headers=[("Authorization", "bearer 1")]), first.body)
    assert gate.post("/ok", "known", headers=bearer).replayed == "true"
    assert api.count("anonymous") == 1 and api.count("known") == 1


CREDENTIALS = [("Authorization", "Bearer {}"), ("Cookie", "session={}"), ("X-Api-Key", "{}"), ("Api-Key", "{}"),
               ("X-Auth-Token", "{}"), ("X-Access-Token", "{}"), ("api_key", "{}")]


@pytest.mark.parametrize("name, value", CREDENTIALS)
def test_every_credential_tells_callers_apart(gate, api, name, value):
    """The same key, path and body: nobody is given the answer to another's credential, or to none."""
    key, alice, mallory = f"of-{name}", [(name, value.format("alice"))], [(name, value.format("mallory"))]
    first = gate.post("/ok", key, headers=alice)
    assert first.replayed == "false"
    for headers in (mallory, [], [("X-Other", value.format("alice"))]):
        refused(gate.post("/ok", key, headers=headers), first.body)
    g.same(first, gate.post("/ok", key, headers=[*alice, ("X-Request-Id", "2")]))
    assert api.count(key) == 1


def test_a_credential_is_not_another_one(gate, api):
    """What stands in one header is not what stands in another, nor are two what one is."""
    gate.post("/ok", "moved", headers=[("X-Api-Key", "a")])
    for headers in ([("Api-Key", "a")], [("X-Auth-Token", "a")], [("X-Api-Key", "a"), ("Api-Key", "")],
                    [("X-Api-Key", "a"), ("X-Api-Key", "a")]):
        assert gate.post("/ok", "moved", headers=headers).problem == "caller-mismatch"
    assert api.count("moved") == 1


def test_one_caller_is_said_aloud(make_gate, api):
    """hapax_caller none: credentials tell nobody apart."""
    gate = make_gate(server(api, "hapax_caller none;")).start()
    first = gate.post("/ok", "k", headers=[("Authorization", "Bearer 1")])
    g.same(first, gate.post("/ok", "k", headers=[("Cookie", "session=2")]))
    assert api.count("k") == 1


def test_an_owner_has_keys_of_its_own(make_gate, api):  # promise 9
    """Two owners with one key, path and body: two effects, and each is given its own answer, with any token."""
    gate = make_gate(server(api, "hapax_owner $http_x_account;")).start()

    def post(account, token):
        return gate.post("/ok", "k", headers=[("X-Account", account), ("Authorization", token)])

    first = {account: post(account, "Bearer 1") for account in "ab"}
    assert [answer.replayed for answer in first.values()] == ["false", "false"]
    assert first["a"].body != first["b"].body and api.count("k") == 2
    for account, answer in first.items():
        g.same(answer, post(account, "Bearer 2"))
    for headers in ([], [("X-Account", "")]):
        unowned(gate.post("/ok", "k", headers=headers), first["a"].body)
    assert gate.post("/ok", "k", headers=[("X-Account", "a" * 256)]).problem == "bad-key"
    assert gate.post("/ok").status == 200  # without a key it is nobody's
    assert api.count("k") == 2
    assert "hapax_owner is empty for this request" in gate.log()


PAYMENTS = "hapax_profile payments; hapax_owner $http_x_account;"
KEY = "0123456789abcdef"


@pytest.mark.some(4)
@pytest.mark.parametrize("lines, key, said", [
    (PAYMENTS, None, "missing-key"),
    (PAYMENTS, KEY[1:], "bad-key"),
    (PAYMENTS, KEY, None),
    (f"hapax_key_min 4; hapax_key optional; {PAYMENTS}", "abcd", None),  # wherever the profile stands in its level
    (f"hapax_key_min 4; hapax_key optional; {PAYMENTS}", None, None),
    ("hapax_key_min 16;", KEY[1:], "bad-key"),
    ("hapax_key_min 16;", None, None),
])
def test_a_profile_is_several_policies_and_single_ones_differ_from_it(make_gate, api, lines, key, said):
    """hapax_profile payments wants keys, of 16 bytes or more; a refusal names the limit, and nothing is run."""
    answer = make_gate(server(api, lines)).start().post("/ok", key, headers=[("X-Account", "a")])
    assert answer.status == (400 if said else 200) and len(api.seen) == (not said)
    assert not said or answer.problem == said
    assert (b"It has fewer than 16 bytes." in answer.body) == (said == "bad-key")


def test_payments_are_held_after_a_500_and_for_each_owner(make_gate, api):
    """hapax_profile payments: after a 500 nothing runs again, each owner has keys of its own, and nobody has none. A
    profile of an inner level counts for more than single policies around it."""
    gate = make_gate(f"hapax_on_expired rerun; {server(api, PAYMENTS)}").start()

    def post(account):
        return gate.post("/status/500", KEY, headers=[("X-Account", account)])

    assert post("a").status == 500
    assert (post("a").status, post("a").problem) == (409, "unknown-outcome")
    assert post("b").status == 500
    assert post("").problem == "missing-owner"
    assert api.count(KEY) == 2


def test_an_owner_may_have_callers(make_gate, api):
    """hapax_owner and hapax_caller: within one owner, another caller is refused."""
    gate = make_gate(server(api, "hapax_owner $http_x_account; hapax_caller $http_x_user;")).start()
    first = gate.post("/ok", "k", headers=[("X-Account", "a"), ("X-User", "1")])
    refused(gate.post("/ok", "k", headers=[("X-Account", "a"), ("X-User", "2")]), first.body)
    assert gate.post("/ok", "k", headers=[("X-Account", "b"), ("X-User", "2")]).replayed == "false"


def test_the_host_and_headers_may_make_a_request_what_it_is(make_gate, api):
    """The host by default; a header if hapax_fingerprint names it."""
    named = server(api, "server_name with; hapax_fingerprint method header:X-Version body;")
    gate = make_gate(server(api, "") + named).start()
    assert gate.post("/ok", "h", headers=[("Host", "a.example")]).replayed == "false"
    assert gate.post("/ok", "h", headers=[("Host", "b.example")]).problem == "fingerprint-mismatch"
    assert gate.post("/ok", "v", headers=[("Host", "with"), ("X-Version", "1")]).replayed == "false"
    assert gate.post("/other", "v", headers=[("Host", "with"), ("x-version", "1")]).replayed == "true"
    for headers in ([("X-Version", "2")], [], [("X-Version", "1"), ("X-Version", "1")]):
        assert gate.post("/ok", "v", headers=[("Host", "with"), *headers]).problem == "fingerprint-mismatch"


def test_another_caller_is_refused_while_the_first_runs(gate, api):  # promise 8
    """A mismatch of callers is told before 409, and does not wait."""
    first = gate.later("/waits/hold/d", "k", headers=[("Authorization", "a")])
    wait_until(lambda: api.count("k") == 1, "the first attempt")
    refused(gate.post("/waits/hold/d", "k", headers=[("Authorization", "b")]), b"effect=1")
    api.door("d").set()
    assert first().body == b"effect=1" and api.count("k") == 1


def test_two_scopes_with_one_key_are_two_operations(make_gate, api):
    """Two effects, and each scope replays its own."""
    gate = make_gate(f"""server {{ LISTEN hapax on;
        location /a/ {{ hapax_scope a; proxy_pass http://127.0.0.1:{api.port}/; }}
        location /b/ {{ hapax_scope b; proxy_pass http://127.0.0.1:{api.port}/; }} }}""").start()
    bodies = [gate.post(path, "k").body for path in ("/a/ok", "/b/ok")]
    assert bodies == [b"effect=1 body=0", b"effect=2 body=0"]
    again = [gate.post(path, "k") for path in ("/a/ok", "/b/ok")]
    assert [a.body for a in again] == bodies and [a.replayed for a in again] == ["true", "true"]
    assert api.count("k") == 2


def test_revoked_credentials_get_no_replay(make_gate, api):
    """The same credentials, once refused by auth_request, get 401 and not the stored body."""
    gate = make_gate(f"""server {{ LISTEN
        location /auth/ {{ hapax on; auth_request /asks; proxy_pass http://127.0.0.1:{api.port}/; }}
        location = /asks {{ internal; proxy_method GET; proxy_pass_request_body off;
                            proxy_set_header Content-Length ""; proxy_set_header Idempotency-Key ASKS;
                            proxy_pass http://127.0.0.1:{api.port}/status/200,200,401; }} }}""").start()
    bearer = [("Authorization", "Bearer 1")]
    first = gate.post("/auth/ok", "k", headers=bearer)
    g.same(first, gate.post("/auth/ok", "k", headers=bearer))
    answer = gate.post("/auth/ok", "k", headers=bearer)
    assert answer.status == 401 and first.body not in answer.body and answer.replayed is None
    assert answer.all("X-A") == [] and api.count("k") == 1


# ---- policies, by their effect -------------------------------------------------------------------


def test_run_max_ends_the_renewing(make_gate, api):
    """A hung handler holds its key for run_max and a lease; whoever takes over is the one believed."""
    def ends(ms):
        gate = make_gate(server(api, f"hapax_lease {ms}ms; hapax_run_max {4 * ms}ms; hapax_fingerprint off;"),
                         name=f"of-{ms}").start()
        key, begun = f"k{ms}", time.monotonic()
        first = gate.later(f"/hold/{ms}", key)
        wait_until(lambda: api.count(key) == 1, "the first attempt")
        answers = [gate.post("/ok", key)]
        while answers[-1].status == 409:
            assert time.monotonic() < begun + g.PATIENCE, "nobody took over"
            answers.append(gate.post("/ok", key))
        took = time.monotonic() - begun
        assert (answers[-1].body, answers[-1].replayed) == (b"effect=2 body=0", "false")
        api.door(str(ms)).set()
        late = first()
        assert (late.body, late.replayed) == (b"effect=2 body=0", "true")
        assert took > ms * 3 / 1000

    at_some_pace(ends, 200, 2000, 8000)


def test_retention_ends(make_gate, api):
    """A response is replayed for as long as it is kept; after that the key is new."""
    def ends(ms):
        gate = make_gate(server(api, f"hapax_lease 100ms; hapax_retention {ms}ms;"), name=f"of-{ms}").start()
        key, begun = f"k{ms}", time.monotonic()
        assert gate.post("/ok", key).replayed == "false"
        assert gate.post("/ok", key).replayed == "true"
        wait_until(lambda: gate.post("/ok", key).replayed == "false", "the end of retention")
        assert time.monotonic() - begun > 0.7 * ms / 1000
        assert api.count(key) == 2

    at_some_pace(ends, 700, 5000, 20000)


def test_rerun_completed_excludes_and_does_not_replay(make_gate, api):
    """One after the other both run; at the same time only one does."""
    gate = make_gate(server(api, "hapax_rerun_completed on;")).start()
    answers = [gate.post("/ok", "k") for _ in range(2)]
    assert [(a.body, a.replayed) for a in answers] == [(b"effect=1 body=0", "false"), (b"effect=2 body=0", "false")]
    first = gate.later("/hold/d", "k2")
    wait_until(lambda: api.count("k2") == 1, "the first attempt")
    assert gate.post("/hold/d", "k2").problem == "in-flight"
    api.door("d").set()
    assert first().status == 200 and api.count("k2") == 1


def test_held_max_refuses_what_is_new(make_gate, api, hapax):
    """While held responses fill hapax_held_max a new operation is 503 and nothing runs; then it does."""
    gate = make_gate("hapax_held_max 16k; hapax_timeout 10s; hapax_save_wait 30s; proxy_buffer_size 64k;"
                     "proxy_buffers 4 64k; proxy_busy_buffers_size 64k;" + server(api, STATUS)).start()
    first = gate.later("/hold/d?len=16384", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    stop(hapax.keeper.pid)
    try:
        api.door("d").set()
        wait_until(lambda: status(gate)["held_bytes"] >= 16384, "the response being held")
        answer = gate.post("/ok", "new")
        assert (answer.status, answer.problem, answer.get("Retry-After")) == (503, "store-unavailable", "1")
        assert b"as many responses as it may" in answer.body and api.count("new") == 0
        assert gate.post("/ok").status == 200  # no key, nothing held
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    assert first().get("Idempotency-Recorded") is None
    wait_until(lambda: status(gate)["held_bytes"] == 0, "the memory being free")
    assert gate.post("/ok", "new").replayed == "false"
    assert gate.post("/hold/d?len=16384", "k").body == b"x" * 16384 and api.count("k") == 1


# ---- a store that stops --------------------------------------------------------------------------


def test_open_is_saved_when_the_store_is_back(make_gate, api, hapax, uri):  # noqa: F811
    """on_store_error=open: marked as not protected, and recorded later, so that the key replays."""
    gate = make_gate("hapax_timeout 200ms; hapax_save_wait 200ms; hapax_on_store_error open;"
                     + server(api, STATUS)).start()
    patient = make_gate(server(api, ""), name="patient").start()
    wait_until(lambda: gate.post("/ok", "before").replayed == "true", "the keeper being found")
    stop(hapax.keeper.pid)
    try:
        answer = gate.post("/ok", "k")
        assert (answer.status, answer.get("Idempotency-Protected"), answer.replayed) == (200, "false", None)
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    wait_until(lambda: hapax("show", "--store", uri, "--json", "k").json.get("state") == "completed",
               "the outcome being saved")
    again = patient.post("/ok", "k")
    assert (again.status, again.body, again.replayed) == (200, answer.body, "true")
    assert again.get("Idempotency-Protected") is None and api.count("k") == 1
    wait_until(lambda: status(gate)["in_flight"] == 0, "the end of all calls")


def test_open_without_any_store_is_served_when_it_is_back(make_gate, api, hapax, store):
    """A claim that surely never landed: each request runs and says so; with the store back keys hold again."""
    gate = make_gate("hapax_timeout 200ms; hapax_save_wait 200ms; hapax_on_store_error open;"
                     + server(api, STATUS)).start()
    patient = make_gate(server(api, ""), name="patient").start()
    hapax.keeper.kill()
    hapax.keeper.wait()
    answer = gate.post("/ok", "k")
    assert (answer.status, answer.get("Idempotency-Protected"), answer.replayed) == (200, "false", None)
    hapax.keeper = hapax.keep(store)
    wait_until(lambda: gate.post("/ok", "k").replayed == "true", "the key holding again")
    runs = api.count("k")
    assert patient.post("/ok", "k").get("Idempotency-Protected") is None and api.count("k") == runs
    wait_until(lambda: status(gate)["in_flight"] == 0, "the end of all calls")


def test_a_store_that_stops_for_seconds_under_load(make_gate, api, hapax):  # promise 11
    """20 clients at a time, each with up to 20 requests a second: 503 though it stays away, nothing runs, service is
    back by itself, no ghost keeps a key for its lease."""
    gate = make_gate("hapax_timeout 300ms; hapax_save_wait 300ms; hapax_lease 1h;" + server(api, STATUS),
                     workers=2).start()
    patient = make_gate(server(api, ""), name="patient").start()
    assert patient.post("/ok", "before").status == 200
    wait_until(lambda: gate.post("/ok", "before").replayed == "true", "the keeper being found")
    keys, times, faults, lock, pause = [], [], [], threading.Lock(), threading.Event()
    stop(hapax.keeper.pid)
    try:
        end = time.monotonic() + int(os.environ.get("HAPAX_STOP_SECONDS", 3))

        def client(n):
            i = 0
            while time.monotonic() < end or i == 0 or (min(times, default=9) >= 2 and i < 10):
                key, begun = f"c{n}-{i}", time.monotonic()
                i += 1
                try:
                    answer = gate.post("/ok", key)
                    took = time.monotonic() - begun
                    good = (answer.status == 503 and answer.problem == "store-unavailable"
                            and int(answer.get("Retry-After")) > 0 and took < 20)
                except Exception as error:  # noqa: BLE001 - told below
                    answer, took, good = error, 0, False
                with lock:
                    keys.append(key)
                    times.append(took)
                    if not good:
                        faults.append((key, took, answer))
                pause.wait(.05)  # each key is asked for once more in the end

        clients = [threading.Thread(target=client, args=(n,), daemon=True) for n in range(20)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join(2 * g.PATIENCE)
        assert faults == [] and len(keys) >= 20
        assert min(times) < 2, "nobody was told in time, ten times"
        assert sum(api.effects.values()) == 1, "something ran without the store"
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    back = time.monotonic()
    wait_until(lambda: gate.post("/ok", "after").status == 200, "service")
    assert time.monotonic() - back < 20
    for key in keys:
        wait_until(lambda: gate.post("/ok", key).status == 200, f"key {key} being free")
        assert api.count(key) == 1
    wait_until(lambda: status(gate)["in_flight"] == 0, "the end of all calls")


@pytest.mark.some(3)
@pytest.mark.parametrize("hook", ["trunc", "truncchunked", "drop", "dead", "status/204", "ok?len=5000"])
def test_a_hook_is_believed_only_whole(make_gate, api, hook):
    """A hook's response that was cut off tells nothing; one without a body, or over the limit, that it happened."""
    port = 1 if hook == "dead" else api.port
    gate = make_gate(f"""server {{ LISTEN
        location / {{ hapax on; hapax_lease 300ms; hapax_on_expired reconcile; hapax_reconcile /did;
                      hapax_max_response 1k; proxy_pass http://127.0.0.1:{api.port}; }}
        location = /did {{ internal; proxy_pass http://127.0.0.1:{port}/{hook}; proxy_method GET;
                           proxy_pass_request_body off; proxy_set_header Content-Length "";
                           proxy_set_header Idempotency-Key ASKED; }}
        {STATUS} }}""").start()
    assert gate.post("/drop", "k").status == 502
    answer = gate.post("/drop", "k")
    deadline = time.monotonic() + g.PATIENCE
    while answer.status == 409 and answer.problem == "in-flight":
        assert time.monotonic() < deadline, "the lease did not end"
        answer = gate.post("/drop", "k")
    if hook == "status/204":
        assert (answer.status, answer.replayed) == (204, "true")
    elif hook.startswith("ok"):
        assert (answer.status, answer.problem) == (410, "response-not-kept")
    else:
        assert (answer.status, answer.problem, answer.get("Retry-After")) == (409, "unknown-outcome", "1")
        assert b"half" not in answer.body
    assert api.count("k") == 1
    wait_until(lambda: status(gate)["in_flight"] == 0 and status(gate)["held_bytes"] == 0, "the end of all calls")


# ---- what a replay holds -------------------------------------------------------------------------

BIG_HEAD = "proxy_buffer_size 16k; proxy_buffers 4 16k; proxy_busy_buffers_size 16k;"
RESPONSE = (b"HTTP/1.1 201 Made\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 401\r\n"
            b"Date: Wed, 21 Oct 2015 07:28:00 GMT\r\nX-A: 1\r\nX-A: 2\r\nx-a: 1\r\nVary: Accept\r\nVary: Origin\r\n"
            b"Link: <a>; rel=a\r\nLink: <b>; rel=b\r\nCache-Control: private\r\nCache-Control: max-age=5\r\n"
            b"Expires: Wed, 21 Oct 2065 07:28:00 GMT\r\nETag: W/\"a\xc3\xa9\"\r\nLocation: ../orders/RUN?a=b#c\r\n"
            b"Content-Disposition: attachment; filename=\"a:b\"\r\nX-Empty:\r\nX-Long: " + b"v" * 3000 + b"\r\n"
            b"Set-Cookie: sid=secret\r\nSet-Cookie2: old=secret\r\nAuthorization: Bearer secret\r\n"
            b"WWW-Authenticate: Basic realm=secret\r\nKeep-Alive: timeout=5\r\nConnection: close\r\n\r\n"
            b"RUN" + b"\x00\xff\r\n" * 100)


# promise 3
def test_a_replay_has_the_same_bytes_and_headers(make_gate, fake, hapax, uri):  # noqa: F811
    """Repeated headers in their order, ETag, Location and bytes of any kind; none that is one response's own."""
    upstream = fake(FakeHttp, RESPONSE)
    gate = make_gate(server(upstream, BIG_HEAD)).start()
    first, again = gate.post("/x", "k"), gate.post("/x", "k")
    assert (first.status, first.body, first.all("Set-Cookie")) == (201, b"1" + b"\x00\xff\r\n" * 100, ["sid=secret"])
    assert (again.status, again.body, again.replayed) == (first.status, first.body, "true")

    def values(response):
        gone = ("age", "date", "set-cookie", "set-cookie2", "authorization", "www-authenticate", "idempotency-replayed",
                    "idempotency-ttl")
        return {name.lower(): response.all(name) for name, _ in response.headers if name.lower() not in gone}

    assert values(again) == values(first)
    assert again.all("X-A") == ["1", "2", "1"] and again.all("Cache-Control") == ["private", "max-age=5"]
    assert again.get("Location") == "../orders/1?a=b#c" and again.get("ETag") == 'W/"a\xc3\xa9"'
    assert "secret" not in repr(again.headers) and again.get("Date") != "Wed, 21 Oct 2015 07:28:00 GMT"
    stored = hapax("show", "--store", uri, "--json", "k").out
    assert "secret" not in stored and "orders/1" in stored
    assert upstream.runs == 1


BODILESS = {  # as Django, PHP and others send them
    "204": b"204 No Content\r\nContent-Type: text/html; charset=utf-8\r\nX-A: 1\r\n",
    "204 with a length": b"204 No Content\r\nContent-Length: 0\r\nContent-Type: text/html\r\n"
                         b"Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n",
    "205": b"205 Reset Content\r\nContent-Type: text/html\r\nContent-Length: 0\r\n",
    "301": b"301 Moved Permanently\r\nLocation: https://elsewhere.test/a\r\nContent-Type: text/html\r\n"
           b"Content-Length: 0\r\n",
    "304": b"304 Not Modified\r\nETag: \"a\"\r\nContent-Type: text/html\r\nCache-Control: max-age=1\r\n",
    "304 with a length": b"304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 7\r\n",
}


@pytest.mark.some(3)
@pytest.mark.parametrize("head", BODILESS.values(), ids=BODILESS.keys())
def test_a_replay_without_a_body_keeps_each_header(make_gate, fake, head):
    """What the first response had stands in the replay, Content-Type and length too."""
    upstream = fake(FakeHttp, b"HTTP/1.1 " + head + b"Connection: close\r\n\r\n")
    gate = make_gate(server(upstream, "")).start()
    with gate.connect() as connection:  # one connection: nothing may follow either response
        connection.send(g.request("POST", "/", "k"))
        first = connection.response()
        connection.send(g.request("POST", "/", "k"))
        again = connection.response()
    assert (first.replayed, again.replayed, upstream.runs) == ("false", "true", 1)
    g.same(first, again)
    assert {line.partition(":")[0] for line in head.decode().split("\r\n")[1:-1]} <= {h for h, _ in again.headers}


def test_a_204_of_php_is_replayed_with_its_type(make_gate, folder):
    """PHP itself: with 204 it sends the Content-Type that it sends with anything."""
    (folder / "api.php").write_text("<?php file_put_contents('runs', '1', FILE_APPEND); http_response_code(204);")
    port = free_port()
    with subprocess.Popen(["/usr/bin/php", "-S", f"127.0.0.1:{port}", "api.php"], cwd=folder,
                          stderr=subprocess.PIPE, text=True, preexec_fn=end_with_parent) as php:
        try:
            assert "started" in php.stderr.readline()
            upstream = f"location / {{ proxy_pass http://127.0.0.1:{port}; }}"
            gate = make_gate(f"server {{ LISTEN hapax on; {upstream} }}").start()
            first, again = gate.post("/", "k"), gate.post("/", "k")
        finally:
            php.kill()
    assert (first.status, first.replayed, again.replayed) == (204, "false", "true")
    assert first.get("Content-Type") == again.get("Content-Type") == "text/html; charset=UTF-8"
    g.same(first, again)
    assert (folder / "runs").read_text() == "1"


def test_what_nginx_adds_is_the_same_on_a_replay(make_gate, fake):
    """Types with a charset, expires: filters look at a replay as they did at the first response."""
    upstream = fake(FakeHttp, b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 8\r\n"
                              b"Cache-Control: private\r\nExpires: Wed, 21 Oct 2065 07:28:00 GMT\r\n\r\neffect=RUN")
    gate = make_gate(server(upstream, "sub_filter effect EFFECT; sub_filter_types text/plain; expires 1h;")).start()
    first, again = gate.post("/x", "k"), gate.post("/x", "k")
    assert (first.body, first.get("Content-Type")) == (b"EFFECT=1", "text/plain; charset=utf-8")
    assert (again.body, again.get("Content-Type"), again.replayed) == (first.body, first.get("Content-Type"), "true")
    assert again.all("Cache-Control") == first.all("Cache-Control")
    assert len(first.all("Expires")) == len(again.all("Expires")) == 1


def test_a_stored_date_stands_once(make_gate, fake):
    """hapax_store_header Date: the replay has that one, and not nginx's own beside it."""
    upstream = fake(FakeHttp, RESPONSE)
    gate = make_gate(server(upstream, "hapax_store_header Date; proxy_pass_header Date;" + BIG_HEAD)).start()
    first, again = gate.post("/x", "k"), gate.post("/x", "k")
    assert first.all("Date") == again.all("Date") == ["Wed, 21 Oct 2015 07:28:00 GMT"]


@pytest.mark.parametrize("length", [b"Content-Length: 0\r\n", b"Connection: close\r\n"])
def test_what_a_handler_redirects_to_is_replayed(make_gate, fake, length):
    """X-Accel-Redirect: the file is the response, with the handler's type; a replay needs neither of them. Under hold
    it is whole, too: where the upstream's own response ended proves nothing about the file."""
    upstream = fake(FakeHttp, b"HTTP/1.1 200 OK\r\n" + length + b"Content-Type: text/x-made\r\n"
                              b"X-Accel-Redirect: /files/made.txt\r\nSet-Cookie: sid=secret\r\n\r\n")
    gate = make_gate(server(upstream, "hapax_on_expired hold; location /files/ { internal; hapax off; root html; }"))
    (gate.folder / "html/files").mkdir()
    (gate.folder / "html/files/made.txt").write_text("RUN made")
    first = gate.start().post("/x", "k")
    assert (first.status, first.body, first.get("Content-Type")) == (200, b"RUN made", "text/x-made")
    (gate.folder / "html/files/made.txt").unlink()
    again = gate.post("/x", "k")
    g.same(first, again)
    assert again.replayed == "true" and again.all("Set-Cookie") == [] and upstream.runs == 1


def complete(hapax, uri, api, key, headers, body="done"):  # noqa: F811
    """Completes what runs under KEY as its handler could, with the token that it was handed."""
    token = base64.urlsafe_b64decode(dict(api.headers_of(key)[-1])["Idempotency-Token"])[32:]
    assert hapax.op(uri, "complete", key, token.hex(), 200, headers, body) == "ok"


@pytest.mark.parametrize("line", [r"X-Bad: a\rX-Injected: 1", r"X-Bad: a\x00b", r"X Bad: a",
                                  r"X-Bad\r: a", r"\x00: a", r"Content-Type: a\rX-Injected: 1"])
def test_a_stored_line_that_is_no_header_is_left_out(gate, api, hapax, uri, line):  # noqa: F811
    """A record may be completed by others: no CR, LF or NUL of theirs gets into a response."""
    first = gate.later("/token/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    complete(hapax, uri, api, "k", r"X-Good: 1\r\n" + line + r"\r\nX-Last: 2\r\n")
    api.door("d").set()
    for answer in (first(), gate.post("/token/hold/d", "k")):
        assert (answer.status, answer.body, answer.get("X-Good"), answer.get("X-Last")) == (200, b"done", "1", "2")
        head = repr(answer.headers).lower()
        assert "injected" not in head and "bad" not in head and "\\x00" not in head


def test_headers_that_are_never_replayed(gate, api, hapax, uri):  # noqa: F811
    """Whoever completed the record: cookies, credentials, dates, hop-by-hop headers and our marks stay out."""
    first = gate.later("/token/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    bad = ("Set-Cookie: sid=foreign", "Authorization: foreign", "WWW-Authenticate: foreign", "Date: foreign",
           "Keep-Alive: foreign", "Upgrade: foreign", "Proxy-Authenticate: foreign", "Transfer-Encoding: foreign",
           "Connection: foreign", "Content-Length: 1", "Idempotency-Replayed: foreign",
           "Idempotency-Recorded: foreign", "Idempotency-Protected: foreign", "TE: foreign",
           "Age: foreign", "Idempotency-TTL: foreign")
    complete(hapax, uri, api, "k", "".join(line + r"\r\n" for line in bad) + r"X-Good: 1\r\n")
    api.door("d").set()
    for answer in (first(), gate.post("/token/hold/d", "k")):
        assert (answer.body, answer.get("X-Good"), answer.replayed) == (b"done", "1", "true")
        assert "foreign" not in repr(answer.headers) and answer.get("Content-Length") == "4"


# ---- handlers and transports ---------------------------------------------------------------------


def test_uwsgi(make_gate, fake):
    """A uwsgi application is run once; it gets the key, the fence and the attempt."""
    upstream = fake(FakeUwsgi, b"HTTP/1.1 202 Accepted\r\nContent-Type: text/x-u\r\nX-U: 1\r\nX-U: 2\r\n\r\nrun=RUN")
    gate = make_gate(f"""server {{ LISTEN hapax on; location / {{ uwsgi_pass 127.0.0.1:{upstream.port};
        uwsgi_param CONTENT_LENGTH $content_length; uwsgi_param REQUEST_METHOD $request_method; }} }}""").start()
    first, again = gate.post("/u", "k", b"body"), gate.post("/u", "k", b"body")
    assert (first.status, first.body, first.replayed) == (202, b"run=1", "false")
    g.same(first, again)
    assert again.replayed == "true" and again.all("X-U") == ["1", "2"] and upstream.runs == 1
    assert upstream.fields[b"HTTP_IDEMPOTENCY_KEY"] == b"k" and upstream.fields[b"HTTP_IDEMPOTENCY_ATTEMPT"] == b"1"
    assert int(upstream.fields[b"HTTP_IDEMPOTENCY_FENCE"]) > 0
    assert gate.post("/u", "k", b"other").problem == "fingerprint-mismatch"


def test_tls_and_http2(make_gate, api, folder):
    """Over TLS by HTTP/2 and HTTP/1.1 one operation runs once; problems and bodies come whole."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj",
                    "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    port = g.free_port()
    make_gate(server(api, f"listen 127.0.0.1:{port} ssl http2; ssl_certificate {folder}/cert.pem;"
                     f"ssl_certificate_key {folder}/key.pem;")).start()

    def curl(version, key, *words, path="/ok?len=100000"):
        done = subprocess.run(["curl", "-sS", version, "-i", "-m", "30", "--cacert", folder / "cert.pem", "--resolve",
                               f"localhost:{port}:127.0.0.1", "-X", "POST", "-H", f"Idempotency-Key: {key}", *words,
                               f"https://localhost:{port}{path}"], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        pairs = [tuple(line.split(": ", 1)) for line in lines[1:]]
        return lines[0].split()[0], g.Response(int(lines[0].split()[1]), pairs, body)

    kind, first = curl("--http2", "k", "-d", "x")
    assert kind == "HTTP/2" and (first.status, len(first.body), first.replayed) == (200, 100000, "false")
    for version, kind in (("--http2", "HTTP/2"), ("--http1.1", "HTTP/1.1")):
        got, again = curl(version, "k", "-d", "x")
        assert got == kind and (again.status, again.body, again.replayed) == (200, first.body, "true")
        assert again.all("x-a") == ["1", "2"] and again.get("etag") == '"abc"' and again.all("set-cookie") == []
    assert curl("--http2", "k", "-d", "y")[1].status == 422
    assert curl("--http2", "a b")[1].status == 400
    kind, made = curl("--http2", "k2", path="/created")
    assert (made.status, made.get("location")) == (201, "/orders/1")
    assert curl("--http1.1", "k2", path="/created")[1].get("location") == made.get("location")
    assert api.count("k") == 1 and api.count("k2") == 1
