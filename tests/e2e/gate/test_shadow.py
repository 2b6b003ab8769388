"""Requests that are only watched: each gets the service's own answer at once, and it is counted what the gate would
have done."""
import json
import re
import socket
import threading
import time

import pytest

import gate as g
from conftest import read_line, wait_until
from process import files_of
from redis_server import Redis
from test_gate_more import STATUS, status


def server(api, lines="", mode="shadow"):
    to = f"proxy_pass http://127.0.0.1:{api.port}/;"
    return f"""
    map $http_x_mode $mode {{ default $http_x_mode; }}
    log_format shadow '$hapax_shadow $hapax_shadow_id $hapax_key_id $hapax_answer';
    proxy_http_version 1.1;
    server {{
        LISTEN
        hapax {mode};
        access_log {{folder}}/shadow.log shadow;
        location / {{ {to} }}
        location /off/ {{ hapax off; {to} }}
        location /on/ {{ hapax on; {to} }}
        location /asked/ {{ hapax $mode; {to} }}
        location /required/ {{ hapax_key required; {to} }}
        location /holds/ {{ hapax_on_expired hold; {to} }}
        location /twice/ {{ hapax_attempts_max 2; {to} }}
        location /small/ {{ hapax_max_response 1k; {to} }}
        location /tiny/ {{ hapax_max_request 1k; {to} }}
        location /scoped/ {{ hapax_scope $http_x_scope; {to} }}
        location /onscoped/ {{ hapax on; hapax_scope $http_x_scope; {to} }}
        location /waits/ {{ hapax_wait 60s; {to} }}
        location /short/ {{ hapax_min_lease; {to} }}
        location /patient/ {{ hapax_timeout 30s; {to} }}
        location /bodykey/ {{ hapax_key_from /order/id; {to} }}
        location /dapr/ {{ hapax_push dapr; {to} }}
        location /zoned/ {{ hapax_zone pay; {to} }}
        location /try/ {{ try_files /nothing @api; }}
        location @api {{ rewrite ^/try(/.*)$ $1 break; proxy_pass http://127.0.0.1:{api.port}; }}
        location /ret {{ return 200 "ret"; }}
        {lines}
        {STATUS}
    }}""".replace("hapax_min_lease;", "hapax_lease 300ms;")


@pytest.fixture
def make(make_gate, api, folder):
    def start(*args, **more):
        return make_gate(server(api, *args).replace("{folder}", str(folder / "nginx")), **more).start()

    return start


@pytest.fixture
def gate(make):
    return make()


def counts(gate):
    """What rose above 0, of what would have been."""
    return {would: n for would, n in status(gate)["shadow"].items() if n}


def told(gate, expected):
    """Waits until just this was counted: the store is not waited for."""
    wait_until(lambda: counts(gate) == expected, lambda: f"{expected}, and not {counts(gate)},")


def stored(gate):
    """Waits until all that is to be stored is stored."""
    wait_until(lambda: status(gate)["in_flight"] == 0, "the end of all flows")


def without(response, *names):
    return sorted(h for h in response.headers if h[0].lower() not in ("date", *names))


# ---- nothing changes for the client --------------------------------------------------------------


PATHS = ("ok", "ok?len=300000", "status/500", "status/401", "status/204", "status/304", "created", "chunked?n=5",
         "gzip", "many", "type?t=application/json", "status/503?h=Retry-After:1", "trunc", "drop", "nothing?len=0")


@pytest.mark.some(5)
@pytest.mark.parametrize("path", PATHS)
def test_a_watched_request_gets_the_services_own_answer(gate, api, path):
    """First and repeat: status, headers and body are those without a gate, no header says that there is one, and the
    service sees what the client sent."""
    for nth in (1, 2):
        answers = []
        for prefix in ("off", "w"):
            try:
                at = f"/{prefix}/{path}" if prefix == "off" else f"/{path}"
                answers.append(gate.post(at, f"{prefix}-key", b"x" * 70000, [("Accept-Encoding", "gzip")]))
            except AssertionError as error:  # it was cut off, as without a gate
                answers.append(str(error))
        off, watched = answers
        if isinstance(off, str) or isinstance(watched, str):
            assert off == watched
            continue
        assert (watched.status, watched.body) == (off.status, off.body)
        assert without(watched) == without(off)
        assert watched.replayed is None and watched.get("Idempotency-TTL") is None
        assert api.count("w-key") == nth
    seen = [sorted(h for h in headers if h[0] not in ("Idempotency-Key", "Host")) for key in ("off-key", "w-key")
            for headers in api.headers_of(key)]
    assert all(headers == seen[0] for headers in seen)


def answers_at_once(listener):
    """A service that answers before it has heard all."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            data = b""
            while b"first" not in data:
                data += peer.recv(65536)
            peer.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nheard ")
            while b"0\r\n\r\n" not in data:
                data += peer.recv(65536)
            peer.sendall(b"all")


def test_a_request_that_flows_is_not_read_first(make):
    """The service answers before the client has sent all, as it would without a gate; the operation is known all the
    same. Where the key is in what flows by, the request passes and is not judged."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        to = "proxy_request_buffering off; proxy_buffering off; "
        to += f"proxy_pass http://127.0.0.1:{listener.getsockname()[1]}/;"
        gate = make(f"location /flows/ {{ {to} }} location /flowskey/ {{ hapax_key_from /order/id; {to} }}")
        threading.Thread(target=answers_at_once, args=(listener,), daemon=True).start()
        for path, key in (("/flows/", "k"), ("/flows/", "k"), ("/flowskey/", None)):
            with gate.connect() as connection:
                headers = [("Transfer-Encoding", "chunked"), ("Connection", "close")]
                head = g.request("POST", path, key, headers=headers, length=False)
                connection.send(head + b"5\r\nfirst\r\n")
                assert b" 200 " in connection.file.readline()
                connection.send(b"6\r\nsecond\r\n0\r\n\r\n")
                assert b"all" in connection.file.read()
            stored(gate)
        listener.shutdown(socket.SHUT_RDWR)
    told(gate, {"fresh": 1, "replay": 1, "not_judged": 1})


# ---- what is counted -----------------------------------------------------------------------------


def test_what_the_gate_would_have_done_is_counted(gate, api):
    """Each answer of the gate's has its count, while each request runs."""
    expected = {}

    def watched(would, path, key="key", *args, **more):
        response = gate.post(path, key, *args, **more)
        assert response.replayed is None
        expected[would] = expected.get(would, 0) + 1
        told(gate, expected)
        return response

    watched("fresh", "/ok", "a")
    stored(gate)
    watched("replay", "/ok", "a")
    watched("mismatch", "/ok", "a", b"other")
    watched("mismatch", "/ok", "a", headers=[("Authorization", "another")])
    watched("bypass", "/ok", None)
    assert watched("missing_key", "/required/ok", None).status == 200
    assert watched("bad_key", "/ok", '"').status == 200
    assert watched("too_large", "/tiny/ok", "b", b"x" * 2000).body == b"effect=1 body=2000"
    watched("fresh", "/status/503", "c")
    stored(gate)
    watched("fresh", "/status/500,200", "e")
    stored(gate)
    watched("run_again", "/status/500,200", "e")
    stored(gate)
    watched("replay", "/status/500,200", "e")
    watched("fresh", "/holds/status/500,200", "f")
    stored(gate)
    watched("unknown", "/holds/status/500,200", "f")
    for would in ("fresh", "run_again", "failed"):
        watched(would, "/twice/status/500", "g")
        stored(gate)
    watched("fresh", "/small/ok?len=5000", "h")
    stored(gate)
    watched("gone", "/small/ok?len=5000", "h")
    watched("fresh", "/bodykey/ok", None, b'{"order": {"id": 7}}')
    stored(gate)
    watched("replay", "/bodykey/ok", None, b'{"order": {"id": 7}}')
    watched("fresh", "/try/ok", "i")
    stored(gate)
    watched("replay", "/try/ok", "i")
    watched("fresh", "/zoned/ok", "j")
    page = gate.send("GET", "/hapax").body.decode()
    assert 'hapax_shadow_total{would="fresh",zone="pay"} 1\n' in page
    assert status(gate)["answers"] == dict.fromkeys(status(gate)["answers"], 0), "of its own it gave none"
    assert api.count("a") == 4 and api.count("e") == 3


def test_a_repeat_while_the_first_runs(gate, api):
    """It would be refused, or would wait and be replayed; here both run."""
    first = gate.later("/hold/x", "k")
    wait_until(lambda: api.count("k") == 1, "the first run")
    second = gate.later("/hold/x", "k")
    wait_until(lambda: api.count("k") == 2, "the second run")
    told(gate, {"fresh": 1, "in_flight": 1})
    waits = gate.later("/waits/hold/y", "w")
    wait_until(lambda: api.count("w") == 1, "the first run")
    again = gate.later("/waits/hold/y", "w")
    wait_until(lambda: api.count("w") == 2, "the second run")
    for door in "xy":
        api.door(door).set()
    assert {call().status for call in (first, second, waits, again)} == {200}
    told(gate, {"fresh": 2, "in_flight": 1, "replay": 1})
    stored(gate)


def test_repeats_are_compared_with_the_first_response(gate, api):
    """The service's own answer to a repeat is the first one again, or it is not: then something happened twice."""
    for key, path in (("same", "/status/200?len=9"), ("differs", "/ok")):
        gate.post(path, key)
        stored(gate)
        for _ in range(2):
            gate.post(path, key)
            stored(gate)
    assert status(gate)["shadow_repeats"] == {"same": 2, "differs": 2}


def test_a_repeat_is_compared_once_it_has_ended(folder, api, gates):
    """The store answers between the begin of a response and its end: it is counted once, by all of its body."""
    def do_halves(self, rest, args, nth, body):
        self.send_response(200)
        self.send_header("Content-Length", "8")
        self.end_headers()
        self.wfile.write(b"half")
        self.wfile.flush()
        self.server.door(f"{rest}{nth}").wait(60)
        self.wfile.write(b"half")

    api.RequestHandlerClass = type("Halves", (g.ApiHandler,), {"do_halves": do_halves})
    redis = Redis().start()
    folder.chmod(0o755)
    http = server(api, "proxy_buffering off;").replace("{folder}", str(folder / "nginx"))
    gate = g.Gate(folder, f"hapax_store {redis.uri()}; hapax_timeout 60s; hapax_save_wait 60s;\n" + http)
    gates.append(gate)
    gate.start()
    api.door("x1").set()
    gate.post("/halves/x", "k")
    stored(gate)
    redis.stop()
    with gate.connect() as connection:
        connection.send(g.request("POST", "/halves/x", "k"))
        assert b" 200 " in connection.file.readline()
        redis.cont()
        told(gate, {"fresh": 1, "replay": 1})
        api.door("x2").set()
        wait_until(lambda: status(gate)["shadow_repeats"] == {"same": 1, "differs": 0}, "the comparison")
    redis.end()


def test_scopes_of_shadows_are_nobody_elses(gate, api):
    """A scope that begins as a shadow's is refused; long scopes that differ at their end stay apart."""
    for path, refused in (("/onscoped/ok", True), ("/scoped/ok", False)):
        response = gate.post(path, "k", headers=[("X-Scope", "shadow/default")])
        assert response.status == (400 if refused else 200)
    for end in "ab":
        gate.post("/scoped/ok", "long", headers=[("X-Scope", "s" * 254 + end)])
        stored(gate)
    told(gate, {"bad_key": 1, "fresh": 2})


def test_dapr_is_understood(gate, api):
    """A subscriber's RETRY has the message run again; it is no answer that would be replayed."""
    api.RequestHandlerClass = type("Subscriber", (g.ApiHandler,), {
        "do_say": lambda self, rest, args, nth, body: self.give(200, b'{"status": "%s"}' % rest.encode())})
    event = json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": {}}).encode()
    for _ in range(2):
        gate.post("/dapr/say/RETRY", None, event, [("Content-Type", "application/cloudevents+json")])
        stored(gate)
    # what is not run binds no request and counts no attempt; but it is no replay
    assert "replay" not in counts(gate) and sum(counts(gate).values()) == 2


def test_a_line_tells_of_each_that_would_not_be_a_first_run(gate, api, hapax, uri):
    """In the log, by its id, which `hapax show` takes; and for an access log in variables."""
    gate.post("/ok", "k")
    stored(gate)
    gate.post("/ok", "k")
    told(gate, {"fresh": 1, "replay": 1})
    line, = [line for line in gate.log().splitlines() if "hapax: shadow:" in line]
    found = re.search("replay, operation ([0-9a-f]{64})", line)[1]
    assert hapax("show", "--id", found, "--store", uri, "--json").json["scope"] == "shadow/default"
    would, key_id, guarded, answer = gate.log("shadow.log").splitlines()[0].split()
    assert (would in ("fresh", "-"), key_id, guarded, answer) == (True, found, "-", "-")


# ---- what it leaves behind -----------------------------------------------------------------------


def test_turned_on_it_begins_with_nothing(gate, api, hapax, uri, folder):
    """The records of a shadow are in a scope of their own, without a body, and go by one command. A gate that is on
    knows nothing of them."""
    for _ in range(3):
        gate.post("/echo", "k", b"a marked body")
        stored(gate)
    gate.post("/holds/status/500", "u")
    stored(gate)
    records = hapax("list", "--state", "completed", "--state", "unknown", "--store", uri, "--json").lines
    assert sorted((record["scope"], record["state"]) for record in records) == [
        ("shadow/default", "completed"), ("shadow/default", "unknown")]
    held = b"".join(files_of(folder / "store").values())
    assert b"shadow/default" in held and b"a marked body" not in held
    first, again = (gate.post("/on/echo", "k", b"a marked body") for _ in range(2))
    assert (first.replayed, again.replayed) == ("false", "true")
    assert gate.post("/on/status/200", "u").replayed == "false"
    assert hapax("erase", "--scope", "shadow/default", "--unknown", "--store", uri).code == 0
    left = hapax("list", "--state", "completed", "--state", "unknown", "--store", uri, "--json").lines
    assert {record["scope"] for record in left} == {"default"}


def test_a_client_that_leaves_leaves_no_operator_work(gate, api, hapax, uri):
    """Under hold the gate that is on would have gone on without the client: the shadow's operation is not unknown."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/holds/hold/q", "left"))
        wait_until(lambda: api.count("left") == 1, "the run")
        told(gate, {"fresh": 1})
    stored(gate)
    assert hapax("list", "--state", "unknown", "--store", uri, "--json").lines == []
    api.door("q").set()
    gate.post("/holds/hold/q", "left")
    told(gate, {"fresh": 1, "run_again": 1})


def test_a_client_that_leaves_and_a_reload(gate, api):
    """A client that leaves ends its request as without a gate; a worker that is told to end finishes what it has."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/short/hold/z", "left"))
        wait_until(lambda: api.count("left") == 1, "the run")
    told(gate, {"fresh": 1})
    running = gate.later("/hold/z", "stays")
    wait_until(lambda: api.count("stays") == 1, "the run")
    before = gate.workers()
    gate.signal(1)
    wait_until(lambda: len(gate.workers()) == 2, "the reload")
    api.door("z").set()
    assert running().status == 200
    wait_until(lambda: not set(before) & set(gate.workers()), "the end of the old worker")
    gate.post("/hold/z", "stays")
    told(gate, {"fresh": 2, "replay": 1})


# ---- the store -----------------------------------------------------------------------------------


def test_clients_see_nothing_of_a_store_that_is_away(folder, api, gates):
    """A store that does not answer, and one that is gone: each request is answered by the service while the store is
    still away. What would have become of them is counted, and with the store back repeats are known again."""
    redis = Redis().start()
    folder.chmod(0o755)
    http = server(api).replace("{folder}", str(folder / "nginx"))
    gate = g.Gate(folder, f"hapax_store {redis.uri()}; hapax_timeout 2s; hapax_save_wait 500ms;\n" + http)
    gates.append(gate)
    gate.start()
    gate.post("/patient/ok", "before")
    told(gate, {"fresh": 1})
    stored(gate)
    redis.stop()
    calls = [gate.later("/ok", f"k{i}") for i in range(20)]
    assert {call().status for call in calls} == {200}
    with gate.connect() as connection:
        began = time.monotonic()
        for i in range(200):
            connection.send(g.request("POST", "/ok", f"s{i}"))
            assert connection.response().status == 200
        assert time.monotonic() - began < 30  # a wait for the store of each would take 400 s
    told(gate, {"fresh": 1, "store_down": 220})
    redis.cont()
    wait_until(lambda: gate.post("/patient/ok", "before").status == 200 and counts(gate).get("replay"), "a repeat")
    redis.end()
    assert gate.post("/ok", "gone").status == 200
    assert api.count("gone") == 1
    assert not [line for line in gate.log().splitlines() if "[error]" in line and "upstream" in line]


# ---- each request by itself ----------------------------------------------------------------------


def test_a_variable_says_of_each_request(gate, api):
    """off, shadow and on; a value that is empty or none of these guards the request, and the log says so."""
    def post(mode, key):
        return gate.post("/asked/ok", key, headers=[("X-Mode", mode)] if mode is not None else [])

    for mode, replayed in (("off", None), ("shadow", None), ("on", "true"), ("required", "true"), ("ON", "true"),
                           ("", "true"), (None, "true")):
        key = f"key-{mode}"
        post(mode, key)
        stored(gate)
        assert post(mode, key).replayed == replayed, mode
    told(gate, {"fresh": 1, "replay": 1})
    assert api.count("key-off") == api.count("key-shadow") == 2
    assert 'hapax: "hapax $mode" is "required" for this request, and none of off, shadow and on' in gate.log()


def test_the_gates_own_headers_are_no_clients(gate, api):
    """A service that reads the fence may be switched off and on: in each mode but a plain `hapax off` a client's own
    is taken out."""
    forged = [("Idempotency-Fence", "9"), ("Idempotency-Token", "t"), ("Idempotency-Attempt", "1")]
    for path, key, mode, left in (("/ok", "a", "-", 0), ("/asked/ok", "b", "off", 0), ("/off/ok", "c", "-", 3)):
        gate.post(path, key, headers=[*forged, ("X-Mode", mode)])
        headers, = api.headers_of(key)
        assert len([1 for name, _ in headers if name.startswith("Idempotency-") and name != "Idempotency-Key"]) == left


def test_a_share_of_the_keys(make_gate, api):
    """split_clients guards a share, and watches the rest: a key is always on the same side."""
    gate = make_gate(f"""split_clients $http_idempotency_key $share {{ 50% on; * shadow; }}
        server {{ LISTEN hapax $share; location / {{ proxy_pass http://127.0.0.1:{api.port}; }} {STATUS} }}""").start()
    sides = {}
    for i in range(60):
        gate.post("/ok", f"k{i}")
        stored(gate)
        sides[i] = gate.post("/ok", f"k{i}").replayed
    assert 0 < sum(side == "true" for side in sides.values()) < 60
    for i, side in sides.items():
        assert gate.post("/ok", f"k{i}").replayed == side
        assert api.count(f"k{i}") == (1 if side else 3)


@pytest.mark.parametrize("line, why", (("hapax maybe;", "it takes on, off, shadow, required, or a variable"),
                                       ("hapax $nobody_has_set_this;", "unknown"),
                                       ("hapax shadow; hapax on;", "duplicate"),
                                       ("hapax $mode; hapax on;", "duplicate")))
def test_a_wrong_directive_is_named(folder, line, why):
    """nginx does not start with it, and says what it takes."""
    folder.chmod(0o755)
    gate = g.Gate(folder, f"hapax_store unix:{folder}/s; map $uri $mode {{ default on; }} server {{ LISTEN {line} }}")
    tried = gate.nginx("-t")
    assert tried.returncode != 0 and why in tried.stderr


# ---- hapax serve ---------------------------------------------------------------------------------


def test_serve_watches_and_guards_a_share_of_the_keys(serve, api, hapax):
    """--mode shadow promises nothing and guards nothing; with --on-percent a share of the keys is guarded, and what
    has no key is told apart by chance. Locations differ by a word."""
    served = serve("--mode", "shadow", "--location", "/on on", "--location", "/plain off", "--access-log", "text")
    assert "nothing is guarded: requests are only counted" in read_line(served.process)
    assert [served.post("/ok", "k").replayed for _ in range(2)] == [None, None] and api.count("k") == 2
    assert served.post("/on/ok", "k").replayed == "false"
    shared = serve("--mode", "off", "--on-percent", "50", store="memory:")
    assert "of 100 keys 50 are guarded, the others are passed on: " in read_line(shared.process)
    sides = [[shared.post("/ok", f"s{i}").replayed for _ in range(2)] for i in range(40)]
    assert {tuple(side) for side in sides} == {("false", "true"), (None, None)}


def test_serve_guards_a_key_in_each_of_its_spellings_or_in_none(serve):
    """With --on-percent. Quoted, bare and with parameters it is one key; so is one that must be quoted."""
    served = serve("--mode", "off", "--on-percent", "50", store="memory:")
    guarded = set()
    for i in range(40):
        for spellings in [f'"s{i}"', f"s{i}", f'"s{i}";a="b"'], [f'"q {i} \\"x\\""', f'"q {i} \\"x\\"";a']:
            sides = [served.post("/ok", key).replayed for key in spellings]
            assert sides in (["false", *["true"] * (len(sides) - 1)], [None] * len(sides)), spellings
            guarded.add(sides[-1])
    assert guarded == {"true", None}


@pytest.mark.parametrize("words, why", ((["--mode", "maybe"], "not on, shadow or off"),
                                        (["--on-percent", "5"], "--on-percent needs --mode shadow or --mode off"),
                                        (["--mode", "off", "--on-percent", "5", "--key-from", "/id"],
                                         "goes by the key's header")))
def test_serve_refuses_what_says_nothing(hapax, words, why):
    """An option that could not be followed is named before anything is started."""
    refused = hapax("serve", "--upstream", "http://127.0.0.1:1", "--store", "memory:", *words)
    assert refused.code == 2 and why in refused.err
