"""hapax serve, end to end: the real binary, the real nginx, and an API that counts its effects."""
import contextlib
import hmac
import http.server
import itertools
import json
import os
import pathlib
import pwd
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest

import gate as g
from conftest import HAPAX, PATIENCE, end, read_line, wait_until
from process import family_of, is_over, wait_for
from served import Served


def alive(pid):
    return not is_over(pid)


def port_is_free(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
        return True


def folder_of(served):
    master = family_of(served.process.pid)[1]
    words = pathlib.Path(f"/proc/{master}/cmdline").read_bytes().decode()
    return pathlib.Path(re.search(r"/[^ \0]*hapax-serve-\w{6}", words).group())


def remove_left(folder):
    """What a killed serve left. Any serve that starts on this machine meanwhile, another test's too, removes it."""
    shutil.rmtree(folder, ignore_errors=True)


# ---- serving ------------------------------------------------------------------------------


def test_one_line_says_that_it_is_ready_and_where_to_look(serve, api, store):
    """The port accepts by then; the status page and the command that lists operations are named."""
    served = serve()
    assert served.send("GET", "/ok").status == 200
    assert served.line.startswith(f"hapax serve: http://127.0.0.1:{served.port} stands before "
                                  f"http://127.0.0.1:{api.port} ")
    assert f"http://127.0.0.1:{served.port}/hapax-status" in served.line
    assert f"hapax list --store '{store}'" in served.line


def test_the_port_is_closed_until_the_gate_stands_behind_it(hapax, api, store):
    """Who probes the port from before the start on meets no connection that is accepted and then reset."""
    port, ends, over = g.free_port(), [], threading.Event()

    def probe():
        while not over.is_set() and len(ends) < 3:
            try:
                connection = g.Connection(port)
            except OSError:
                continue
            with connection:
                try:
                    connection.send(g.request("GET", "/ok"))
                    ends.append(connection.response().status)
                except (OSError, AssertionError) as error:
                    ends.append(error)

    probing = threading.Thread(target=probe, daemon=True)
    probing.start()
    try:
        process = hapax.start("serve", "--upstream", f"http://127.0.0.1:{api.port}", "--listen", f"127.0.0.1:{port}",
                              "--store", store, "--module", g.MODULE)
        read_line(process)
        probing.join(PATIENCE)
    finally:
        over.set()
    assert ends == [200, 200, 200]


def test_a_repeat_is_replayed_and_the_operation_is_listed(serve, api, hapax, store):
    """One effect for two requests; the command line sees it in the store that serve holds."""
    served = serve("--workers", "2")
    first, again = served.post("/ok", "k", b"x"), served.post("/ok", "k", b"x")
    assert (first.replayed, again.replayed, first.body) == ("false", "true", again.body)
    assert served.post("/ok", "k", b"other").problem == "fingerprint-mismatch"
    assert api.count("k") == 1
    assert served.post("/ok?card=4242", "k2").status == 200
    records = hapax("list", "--store", store, "--json").lines
    assert [(record["state"], record["what"]) for record in records] == [("completed", "POST /ok")] * 2


def test_records_outlive_it(serve, api):
    """What the first served is replayed by the second."""
    served = serve()
    assert served.post("/ok", "k").replayed == "false"
    assert end(served.process) == 0
    assert serve().post("/ok", "k").replayed == "true"
    assert api.count("k") == 1


def test_two_share_a_store_and_the_second_outlives_the_first(serve, api):
    """The second finds the store held, goes through its holder, and takes its place when that is killed."""
    one, two = serve("--workers", "1"), serve("--workers", "1")
    assert one.post("/ok", "k").replayed == "false"
    assert two.post("/ok", "k").replayed == "true"
    family, folder = one.family(), folder_of(one)
    one.process.kill()
    one.process.wait(PATIENCE)
    wait_until(lambda: two.post("/ok", "k").replayed == "true", "the second taking over")
    assert two.post("/ok", "k2").replayed == "false"
    assert (api.count("k"), api.count("k2")) == (1, 1)
    wait_until(lambda: not any(map(alive, family)), "nginx ending")
    remove_left(folder)


def test_a_relative_path_is_named_as_others_can_use_it(serve, hapax, folder):
    """--store rocksdb:here is that of the folder it was started in."""
    served = serve(store="rocksdb:here")
    assert served.post("/ok", "k").replayed == "false"
    assert f"--store 'rocksdb:{folder}/here'" in served.line


def test_a_keeper_of_its_own(serve, hapax, api, store, folder):
    """--store unix:PATH: workers go to that keeper."""
    folder.chmod(0o755)
    hapax.keep(store, *(["--group", "www-data"] if os.geteuid() == 0 else []))
    served = serve(store="unix:store/keeper.sock")
    assert served.post("/ok", "k").replayed == "false"
    assert served.post("/ok", "k").replayed == "true"


def test_memory(serve, api, hapax):
    """--store memory: one store for all workers, while it runs."""
    served = serve("--workers", "3", store="memory:")
    assert served.post("/ok", "k").replayed == "false"
    assert {served.post("/ok", "k").replayed for _ in range(12)} == {"true"}
    # memory: of another process is another store, so the line names the socket of this one
    named = re.search(r"operations: hapax list --store '(unix:[^']+)' \(while this process runs\)", served.line)
    assert [line["state"] for line in hapax("list", "--json", "--store", named[1]).lines] == ["completed"]


@pytest.mark.some(2)
@pytest.mark.parametrize("listen, url", [("{}", "http://127.0.0.1:{}"), ("0", r"http://127\.0\.0\.1:\d+"),
                                         ("localhost:0", r"http://localhost:\d+"),
                                         ("0.0.0.0:0", r"http://0\.0\.0\.0:\d+")])
def test_listen_at_a_port_alone_or_at_any_free_one(hapax, api, store, listen, url):
    port = g.free_port()
    process = hapax.start("serve", "--upstream", f"http://127.0.0.1:{api.port}", "--listen", listen.format(port),
                          "--store", store, "--module", g.MODULE, "--json")
    said = json.loads(read_line(process))
    assert re.fullmatch(url.format(port), said["serving"])
    taken = int(said["serving"].rsplit(":", 1)[1])
    with urllib.request.urlopen(f"http://127.0.0.1:{taken}/hapax-status", timeout=PATIENCE) as answer:
        assert answer.status == 200 and taken > 0


def test_a_store_that_cannot_be_reached(serve):
    """Exit 3 at the start, as every command."""
    served = serve(store="unix:/nonexistent/keeper.sock", ready=False)
    assert served.process.wait(PATIENCE) == 3
    assert "/nonexistent/keeper.sock" in served.process.stderr.read()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs workers as another user")
def test_a_keeper_that_would_turn_the_workers_away_is_found_at_the_start(hapax, store, serve):
    """Exit 2 and the option that mends it, not a 503 for every request."""
    hapax.keep(store)
    served = serve(store="unix:store/keeper.sock", ready=False)
    assert served.process.wait(PATIENCE) == 2
    assert "--group www-data" in served.process.stderr.read()


def run_as(hapax, user, *words):
    """A command, run as another user of the machine."""
    return hapax.run("setpriv", "--reuid", user, "--regid", user, "--clear-groups", HAPAX, *words)


@pytest.mark.some(1)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs workers as another user")
@pytest.mark.parametrize("user", ["www-data", "daemon"])
def test_the_workers_user_has_the_rights_of_a_door(serve, hapax, user):
    """Other processes of that user list, show and resolve nothing, and are told whose right it is; root may, and the
    gate works all the same. With --user www-data is nobody to it."""
    served = serve("--user", user, "--workers", "1") if user == "daemon" else serve("--workers", "1")
    assert served.post("/ok", "k").replayed == "false"
    assert pathlib.Path(f"/proc/{served.family()[-1]}").stat().st_uid == pwd.getpwnam(user).pw_uid
    store = f"unix:{folder_of(served)}/keeper.sock"
    acts = [["list"], ["show", "k"], ["resolve", "k", "--force", "--fail"], ["resolve", "k", "--force", "--forget"],
            ["purge"], ["check"]]
    for act in acts[:-1]:
        result = run_as(hapax, user, *act, "--store", store)
        assert result.code == 3 and "only the keeper's own user and root" in result.err, result.err
    assert run_as(hapax, user, *acts[-1], "--store", store).code == 0
    if user == "daemon":
        for act in acts:
            assert "no permission" in run_as(hapax, "www-data", *act, "--store", store).err
    assert served.post("/ok", "k").replayed == "true"
    assert hapax("show", "k", "--json", "--store", store).json["state"] == "completed"
    assert len(hapax("list", "--json", "--store", store).lines) == 1
    assert hapax("resolve", "k", "--force", "--forget", "--store", store).code == 0


@pytest.mark.parametrize("user, why", [("no-such-user", "there is no such user"), ("root", "every right on the store")])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs workers as another user")
def test_a_user_that_the_workers_cannot_have(serve, user, why):
    served = serve("--user", user, ready=False)
    assert served.process.wait(PATIENCE) == 2
    assert why in served.process.stderr.read()


def test_policies_by_flag(serve, api):
    """--on-failed replay keeps a failure, --key required wants a key, --scope tells tenants apart."""
    served = serve("--on-failed", "replay", "--key=required", "--scope", "$http_x_tenant")
    tenants = [[("X-Tenant", name)] for name in "ab"]
    for tenant in tenants:
        assert served.post("/status/500,200", "k", headers=tenant).replayed == "false"
        assert (again := served.post("/status/500,200", "k", headers=tenant)).status == again.status
        assert again.replayed == "true"
    assert api.count("k") == 2
    assert served.post("/ok", headers=tenants[0]).problem == "missing-key"


def test_words_of_the_request_by_flag(serve, api):
    """--key-header, --methods and --fingerprint reach the gate."""
    served = serve("--key-header", "X-Request-Id", "--methods", "PUT", "--fingerprint", "method json -/at")
    first = served.send("PUT", "/ok", body=b'{"a": 1, "at": 1}', headers=[("X-Request-Id", "k")])
    again = served.send("PUT", "/ok?other", body=b'{"at": 2, "a": 1}', headers=[("X-Request-Id", "k")])
    assert (first.replayed, again.replayed) == ("false", "true")
    assert served.post("/ok", headers=[("X-Request-Id", "k")]).replayed is None


def test_what_a_status_means_and_who_asks_by_flag(serve, api):
    """--class, --caller and --key-from reach the gate."""
    served = serve("--class", "500 final", "--class", "202 204 not_run", "--caller", "$http_x_user",
                   "--key-from", "/order/id")
    assert served.post("/status/500,200", "k", headers=[("X-User", "a")]).status == 500
    assert served.post("/status/500,200", "k", headers=[("X-User", "a")]).replayed == "true"
    assert served.post("/status/500,200", "k", headers=[("X-User", "b")]).problem == "caller-mismatch"
    assert served.post("/status/202,200", "n", headers=[("X-User", "a")]).status == 202
    assert served.post("/status/202,200", "n", headers=[("X-User", "a")]).status == 200
    assert served.post("/ok", "e").problem == "missing-owner"
    user = [("X-User", "a")]
    first = served.post("/ok", body=b'{"order": {"id": "o-1"}}', headers=user)
    again = served.post("/ok", body=b'{"order": {"id": "o-1"}}', headers=user)
    assert (first.replayed, again.replayed) == ("false", "true")


def test_a_repeat_waits_for_the_first(serve, api):
    """By default, and as --wait says; --wait 0 is told at once that an attempt is in flight."""
    served, hasty = serve(), serve("--wait", "0", "--scope", "hasty")
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(served.post("/ok", "k")), daemon=True)
               for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert [answer.status for answer in answers] == [200] * 8
    first = threading.Thread(target=hasty.post, args=("/hold/a", "k"), daemon=True)
    first.start()
    wait_until(lambda: api.count("k") == 2, "the attempt")
    assert hasty.post("/hold/a", "k").problem == "in-flight"
    api.door("a").set()
    first.join(PATIENCE)
    text = (folder_of(served) / "nginx.conf").read_text()
    assert "hapax_wait 5s;" in text and "hapax_run_max 5m;" in text and "proxy_read_timeout 300s;" in text


def test_an_operations_response_is_stored_as_any_client_can_read_it(serve, api):
    """Accept-Encoding does not reach the API with a key, and does without one: a repeat may ask for no gzip."""
    served = serve()
    for key in ("k", None):
        served.post("/ok", key, headers=[("Accept-Encoding", "gzip")])
    encodings = [dict(headers).get("Accept-Encoding") for _, _, headers, _ in api.seen]
    assert encodings == [None, "gzip"]


def test_an_api_that_does_cors_keeps_its_own_headers(serve, api):
    """Its answers and their replays have no second Access-Control-Allow-Origin; refusals and others have ours."""
    served = serve("--cors", "https://shop.example")
    origin = [("Origin", "https://shop.example")]
    path = "/status/200?h=Access-Control-Allow-Origin:https://api.example"
    first, again = (served.post(path, "k", headers=origin) for _ in range(2))
    assert (again.replayed, first.get("Access-Control-Allow-Origin")) == ("true", "https://api.example")
    assert again.get("Access-Control-Allow-Origin") == "https://api.example"
    assert "Idempotency-Replayed" in again.get("Access-Control-Expose-Headers")
    refused = served.post(path, "k", b"other", headers=origin)
    assert (refused.status, refused.get("Access-Control-Allow-Origin")) == (422, "https://shop.example")
    assert (refused.get("Access-Control-Allow-Credentials"), refused.get("Vary")) == ("true", "Origin")
    assert served.post("/ok", "k2").get("Access-Control-Allow-Origin") is None
    stranger = served.post("/ok", "k3", headers=[("Origin", "https://b.example")])
    assert stranger.get("Access-Control-Allow-Origin") is None


def test_a_preflight_is_answered_for_those_who_are_named(serve, api):
    """It carries no credentials, so --auth-request would refuse it. Those of others are the API's, like any OPTIONS."""
    served = serve("--cors", "https://shop.example", "--auth-request", f"http://127.0.0.1:{api.port}/status/401")

    def preflight(origin, *more):
        return served.send("OPTIONS", "/ok", headers=[("Origin", origin), *more])

    asks = [("Access-Control-Request-Method", "POST"), ("Access-Control-Request-Headers", "idempotency-key")]
    answer = preflight("https://shop.example", *asks)
    assert (answer.status, answer.get("Access-Control-Allow-Origin")) == (204, "https://shop.example")
    assert (answer.get("Access-Control-Allow-Methods"), answer.get("Access-Control-Allow-Headers")) == (
        "POST", "idempotency-key")
    assert preflight("https://b.example", *asks).status == 401
    refused = preflight("https://shop.example")  # no preflight
    assert (refused.status, refused.get("Access-Control-Allow-Origin")) == (401, "https://shop.example")
    assert [path for _, path, _, _ in api.seen] == ["/status/401"] * 2


def test_a_location_has_policies_of_its_own(serve, api):
    """--location: what it names differs there, and nowhere else; off is off."""
    served = serve("--location", "/status on_failed=replay key=required", "--location", "/echo off")
    assert served.post("/status/500,200", "k").status == 500
    assert (again := served.post("/status/500,200", "k")).status == 500 and again.replayed == "true"
    assert served.post("/status/200").problem == "missing-key"
    assert served.post("/ok").status == 200
    assert served.post("/echo", "e", b"1").replayed is None


def test_a_push_broker_by_flag(serve, api):
    """Its events are operations, and a location may have another broker, or none."""
    served = serve("--push", "dapr", "--location", "/sns push=sns scope=sns", "--location", "/api push=off")
    dapr = [("Content-Type", "application/cloudevents+json")]
    assert served.post("/ok", headers=dapr, body=b'{"id":"1","source":"/s","data":1}').replayed == "false"
    assert served.post("/ok", headers=dapr, body=b'{"id":"1","source":"/s","data":1,"time":"t"}').replayed == "true"
    assert served.post("/ok", headers=dapr, body=b'{"id":"1","source":"/s","data":2}').body == b'{"status":"DROP"}\n'
    assert served.post("/sns", headers=[("x-amz-sns-message-id", "1")], body=b"{}").replayed == "false"
    assert served.post("/sns", headers=[("x-amz-sns-message-id", "1")], body=b"{}").replayed == "true"
    assert served.post("/api", headers=dapr, body=b'{"id":"1","source":"/s"}').replayed is None


def test_idempotency_key_in_another_spelling_is_refused(serve, api):
    """Idempotency_Key is seen, not dropped."""
    assert serve().post("/ok", headers=[("Idempotency_Key", "k")]).problem == "bad-key"
    assert api.count("-") == 0


def chunked(body):
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def test_413_is_a_problem(serve, api):
    """A body over max_request is refused by the gate; without a key it may have --max-body."""
    served = serve("--max-request", "1k", "--max-body", "20m")
    assert served.post("/ok", "k", b"x" * 2000).problem == "request-too-large"
    assert served.post("/ok", None, b"x" * 20_000_000).body == b"effect=1 body=20000000"
    assert api.count("k") == 0


@pytest.mark.parametrize("key", ["k", None])
def test_no_body_is_larger_than_an_operations_unless_max_body_says_so(serve, api, key):
    """It is refused by its length before --auth-request is asked, and by its bytes where it has none; as a problem."""
    served = serve("--max-request", "1k", "--location", "/large max_request=3k",
                   "--auth-request", f"http://127.0.0.1:{api.port}/status/200")
    assert served.post("/large", key, b"x" * 3000).body == b"effect=2 body=3000"  # the question counts
    before = len(api.seen)
    refused = [served.post("/large", key and "k2", b"x" * 3100)]
    assert len(api.seen) == before
    with g.Connection(served.port) as connection:
        head = g.request("POST", "/large", key and "k3", headers=[("Transfer-Encoding", "chunked")], length=False)
        connection.send(head + chunked(b"x" * 3100))
        refused.append(connection.response())
    for response in refused:
        assert (response.status, response.get("Content-Type")) == (413, "application/problem+json")
        assert json.loads(response.body)["type"] == "/hapax-problems/request-too-large"
    assert not any(path == "/large" for _, path, _, _ in api.seen[before:])


def test_413_has_the_shape_of_other_problems(serve, folder):
    """Of --problem-template, whatever is in it; and bodies are written below the folder of its own."""
    (folder / "shape").write_text('{"cost": "$$1 \\\\ $$args", "code": "$code"}')
    served = serve("--max-body", "1k", "--problem-template", "shape", "--problem-base", "urn:$$:")
    refused = served.post("/ok", None, b"x" * 2000)
    assert json.loads(refused.body) == {"cost": "$1 \\ $args", "code": "request-too-large"}
    assert refused.get("Content-Type") == "application/json"
    assert f'client_body_temp_path "{folder_of(served)}/' in (folder_of(served) / "nginx.conf").read_text()


class From(g.Connection):
    """A connection from another address of this machine."""

    def __init__(self, port, address):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE, (address, 0))
        self.file = self.socket.makefile("rb")


def test_requests_per_second_by_flag(serve, api):
    """Above it they are 429 with Retry-After and nothing runs; another address is another client."""
    served = serve("--limit-requests", "2", "--workers", "2")
    with g.Connection(served.port) as connection:
        for i in range(1, 1000):
            connection.send(g.request("POST", "/ok", f"k{i}"))
            if (answer := connection.response()).status != 200:
                break
        assert (answer.status, answer.get("Retry-After")) == (429, "1")
        assert i > 2 and api.count(f"k{i}") == 0
    with From(served.port, "127.0.0.2") as other:
        other.send(g.request("POST", "/ok", f"k{i}"))
        assert (ran := other.response()).replayed == "false" and ran.get("Retry-After") is None


def test_requests_at_a_time_by_flag(serve, api):
    """One more from the address is 429; from another address it runs."""
    served = serve("--limit-connections", "1")
    with g.Connection(served.port) as connection:
        connection.send(g.request("POST", "/hold/d", "k"))
        wait_until(lambda: api.count("k") == 1, "the attempt")
        refused = served.post("/ok", "k2")
        assert (refused.status, refused.get("Retry-After")) == (429, "1")
        with From(served.port, "127.0.0.2") as other:
            other.send(g.request("POST", "/ok", "k2"))
            assert other.response().replayed == "false"
        api.door("d").set()
        assert connection.response().status == 200
    wait_until(lambda: served.post("/ok", "k2").replayed == "true", "the connection being counted no more")


def test_slow_clients_are_cut_off(hapax):
    """In seconds, not in minutes; and what nginx sends waits longer than an outcome may."""
    words = ["serve", "--config-only", *UP, "--module", g.MODULE]
    conf = hapax(*words).out
    for line in ("client_header_timeout 15s;", "client_body_timeout 30s;", "send_timeout 30s;",
                 "reset_timedout_connection on;", "client_max_body_size 1048576;"):
        assert line in conf
    for longer in ["--location", "/slow save_wait=1m"], ["--timeout", "60s"]:
        assert "send_timeout 70s;" in hapax(*words, *longer).out


def test_traffic_without_keys_passes(serve, api):
    """Every method, an upgraded connection, a chunked response."""
    served = serve()
    for method in ("GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"):
        assert served.send(method, "/ok").status == 200
    assert b"2-chunk" in served.send("GET", "/chunked").body
    with g.Connection(served.port) as connection:
        connection.send(g.request("GET", "/upgrade", headers=[("Connection", "Upgrade"), ("Upgrade", "WebSocket")]))
        assert connection.response().status == 101
        connection.send(b"hello\n")
        assert connection.file.readline() == b"hello\n"


NEW_KEY = ["-newkey", "rsa:2048", "-nodes", "-days", "1"]


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def own_certificate(folder):
    openssl(folder, "req", "-x509", *NEW_KEY, "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", "key.pem", "-out", "cert.pem")


def post_tls(served, trust, key):
    request = urllib.request.Request(f"https://localhost:{served.port}/ok", b"x", {"Idempotency-Key": key})
    try:
        return urllib.request.urlopen(request, context=trust, timeout=PATIENCE)
    except urllib.error.HTTPError as refused:
        return refused


class Switching(socketserver.ThreadingTCPServer):
    """A fake: an upstream that answers every Upgrade with 101, and tells what it is sent."""

    daemon_threads = True
    allow_reuse_address = True

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            while lines := list(itertools.takewhile(bytes.strip, self.rfile)):
                head = b"".join(lines).decode()
                self.server.seen.append(head)
                fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:])
                self.rfile.read(int(fields.get("content-length", 0)))
                if head.startswith("GET /auth"):
                    status = "401 Unauthorized" if fields["x-original-uri"].startswith("/admin") else "200 OK"
                else:
                    status = "101 Switching Protocols" if "upgrade" in fields else "200 OK"
                upgrade = "Upgrade: any\r\nConnection: upgrade\r\n" if status[0] == "1" else "Content-Length: 0\r\n"
                self.wfile.write(f"HTTP/1.1 {status}\r\n{upgrade}\r\n".encode())

    def __init__(self):
        super().__init__(("127.0.0.1", 0), self.Handler)
        self.port, self.seen = self.server_address[1], []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass


@pytest.mark.some(3)
@pytest.mark.parametrize("method, key, protocol, status", [
    ("GET", None, "h2c", 200), ("GET", None, "websocket, h2c", 200), ("GET", None, "websocket", 101),
    ("POST", "k", "websocket", 200), ("POST", "k", "h2c", 200)])
def test_only_websocket_is_tunnelled_and_no_operation(hapax, store, method, key, protocol, status):
    """What follows an Upgrade to h2c would reach the API past --auth-request and past the gate."""
    with Switching() as upstream:
        served = Served(hapax, upstream, store, "--auth-request", f"http://127.0.0.1:{upstream.port}/auth")
        with g.Connection(served.port) as connection:
            connection.send(g.request(method, "/open", key, headers=[
                ("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", protocol), ("HTTP2-Settings", "AAMAAABk")]))
            assert connection.response().status == status
            if status == 200:  # what comes now is another request, and is asked about
                connection.send(g.request("POST", "/admin"))
                assert connection.response().status == 401
        upstream.shutdown()
    assert not any(head.startswith("POST /admin") for head in upstream.seen)


def test_upstream_sees_the_host_and_keeps_its_connection(serve, api):
    """The client's Host and address are passed on, over connections that are kept."""
    served = serve("--workers", "1")
    for _ in range(3):
        served.send("GET", "/ok", headers=[("X_Forwarded_For", "8.8.8.8"), ("x-forwarded_proto", "https")])
    headers = dict(api.seen[-1][2])
    assert headers["Host"] == "api.test" and headers["X-Forwarded-For"] == "127.0.0.1"
    assert not [name for name in headers if "_" in name]  # WSGI and CGI would take them for the gate's
    assert "Connection" not in headers


def test_the_status_page_answers(serve):
    """Prometheus text, from this machine."""
    served = serve()
    served.post("/ok", "k")
    page = served.send("GET", "/hapax-status")
    assert page.status == 200 and b'hapax_answers_total{answer="fresh"} 1\n' in page.body


def test_the_status_page_at_an_address_of_its_own(serve):
    """--status: beside the API it is for nobody, as what ends TLS on this machine asks for all the world."""
    port = g.free_port()
    served = serve("--status", f"127.0.0.1:{port}")
    served.post("/ok", "k")
    assert f"status: http://127.0.0.1:{port}/hapax-status;" in served.line
    assert served.send("GET", "/hapax-status").status == 404
    with g.Connection(port) as connection:
        connection.send(g.request("GET", "/hapax-status"))
        assert b'hapax_answers_total{answer="fresh"} 1\n' in connection.response().body
        connection.send(g.request("POST", "/ok", "k"))
        assert connection.response().status == 404


def test_auth_request_is_asked_on_every_request(serve, api):
    """Of the replay too; a refusal runs nothing and replays nothing."""
    # The API counts by key, and the question carries the key: the 1st, 3rd and 4th are the questions.
    served = serve("--auth-request", f"http://127.0.0.1:{api.port}/status/200,200,200,401")
    assert served.post("/ok", "k").replayed == "false"
    assert served.post("/ok", "k").replayed == "true"
    refused = served.post("/ok", "k")
    assert (refused.status, refused.replayed) == (401, None)
    assert [path for _, path, _, _ in api.seen].count("/ok") == 1
    assert served.send("GET", "/hapax-auth").status == 404


@pytest.mark.some(3)
@pytest.mark.parametrize("words, said", [
    ([], "an effect may happen twice: after a crash, a cut connection, a 500 or a 503 the next request runs again"),
    (["--on-expired", "hold", "--key", "required"], "no effect happens twice: after a crash, a cut connection or a 500 "
     "an operator decides (hapax list --state unknown); callers are told apart by their credentials (Authorization, "
     "Cookie, X-Api-Key and the like); an answer is kept for 1d; requests without a key are refused"),
    (["--on-expired", "hold", "--class", "403 unknown", "--caller", "none"], "(hapax list --state unknown), unless "
     "--class or --location differ; whoever has a key is given its answer; an answer is kept for 1d; requests without "
     "a key are not protected"),
    (["--profile", "payments", "--owner", "$http_x_user", "--retention", "forever"], "each owner ($http_x_user) has "
     "keys of its own; an answer is kept for ever; requests without a key are refused"),
    (["--on-expired", "reconcile", "--reconcile", "http://127.0.0.1:9/"], "a 500 the hook is asked;"),
    (["--on-expired", "hold", "--on-failed", "retry"], "an effect may happen twice where a 500 follows it"),
    (["--on-store-error", "open"], "an effect may happen twice: without the store"),
    (["--rerun-completed", "on"], "an effect may happen again once it is done"),
])
def test_the_start_says_what_the_settings_promise(serve, words, said):
    """One line, after the line that says that it is ready."""
    assert said in read_line(serve(*words).process)


def test_the_start_warns_of_dangers(serve):
    """Of those alone; `hapax check -- serve` says more."""
    served = serve("--profile", "payments", "--owner", "$http_x_user")
    assert "danger: --owner" in served.process.stderr.readline()


class Accounts(http.server.BaseHTTPRequestHandler):
    """Says whose each session is. Two users of one account have a session each; one session is nobody's."""

    accounts = {"session=1": "acme", "session=2": "acme", "session=3": "other"}

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        if account := self.accounts.get(self.headers["Cookie"]):
            self.send_header("X-Account", account)
        self.end_headers()


def test_an_owner_is_whom_the_auth_service_names(serve, api, hapax, store):
    """--owner auth:NAME: the key space of an account, whichever session of it asks; nobody's key is refused."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Accounts) as accounts:
        threading.Thread(target=accounts.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        served = serve("--auth-request", f"http://127.0.0.1:{accounts.server_port}/", "--owner", "auth:X-Account")
        answers = [served.post("/ok", "k", headers=[("Cookie", f"session={n}")]) for n in (1, 2, 3, 4)]
        accounts.shutdown()
    assert [a.replayed for a in answers[:3]] == ["false", "true", "false"]
    assert answers[0].body == answers[1].body != answers[2].body and api.count("k") == 2
    assert (answers[3].status, answers[3].problem) == (400, "missing-owner")
    assert len(hapax("list", "--store", store, "--owner", "acme", "--json").lines) == 1


def test_reconcile_is_asked(serve, api):
    """--on-expired reconcile asks the URL before a stale operation runs again."""
    served = serve("--lease", "300ms", "--on-expired", "reconcile",
                   "--reconcile", f"http://127.0.0.1:{api.port}/created/happened")
    assert served.post("/drop", "k").status == 502
    wait_until(lambda: served.post("/drop", "k").status == 201, "the hook's answer")
    assert [path for _, path, _, _ in api.seen] == ["/drop", "/created/happened"]


def test_the_hooks_answer_is_one_that_any_client_can_read(serve, api):
    """Whole and not compressed, whatever the request accepts for whose sake the hook is asked: others get it, too."""
    served = serve("--lease", "300ms", "--on-expired", "reconcile",
                   "--reconcile", f"http://127.0.0.1:{api.port}/created/happened")
    date = "Wed, 21 Oct 2015 07:28:00 GMT"
    wants = [("Accept-Encoding", "gzip"), ("Range", "bytes=0-0"), ("If-Range", '"a"'), ("If-Match", '"a"'),
             ("If-None-Match", "*"), ("If-Modified-Since", date), ("If-Unmodified-Since", date)]
    assert served.post("/drop", "k", headers=wants).status == 502
    wait_until(lambda: served.post("/drop", "k", headers=wants).status == 201, "the hook's answer")
    asked = dict(next(headers for _, path, headers, _ in api.seen if path == "/created/happened"))
    assert asked["Idempotency-Key"] == "k" and not set(asked) & set(dict(wants))


def test_tls(serve, api, folder):
    """A self-signed certificate serves https."""
    own_certificate(folder)
    served = serve("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert served.line.startswith("hapax serve: https://127.0.0.1:")
    trust = ssl.create_default_context(cafile=folder / "cert.pem")
    for replayed in ("false", "true"):
        assert post_tls(served, trust, "k").headers["Idempotency-Replayed"] == replayed


def test_client_certificates(serve, api, folder):
    """--client-ca: who has none, or one of another authority, is refused; --caller tells the others apart."""
    own_certificate(folder)
    openssl(folder, "req", "-x509", *NEW_KEY, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, "req", "-x509", *NEW_KEY, "-subj", "/CN=alice", "-keyout", "eve.key", "-out", "eve.pem")
    for name in ("alice", "bob"):
        openssl(folder, "req", *NEW_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(folder, "x509", "-req", "-days", "1", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                "-CAcreateserial", "-out", f"{name}.pem")
    served = serve("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--client-ca", "ca.pem",
                   "--caller", "$ssl_client_s_dn")

    def post(name=None):
        trust = ssl.create_default_context(cafile=folder / "cert.pem")
        if name:
            trust.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
        return post_tls(served, trust, "k")

    assert post("alice").headers["Idempotency-Replayed"] == "false"
    assert post("alice").headers["Idempotency-Replayed"] == "true"
    assert post("bob").status == 422
    assert post("eve").status == post().status == 400
    assert api.count("k") == 1


def test_the_secret_is_the_one_of_the_command_line(serve, api, hapax, folder, store):
    """HAPAX_SECRET_FILE hashes keys as hapax show does."""
    (folder / "secret").write_text("a secret\n")
    (folder / "secret").chmod(0o600)
    served = serve(HAPAX_SECRET_FILE="secret")
    assert served.post("/ok", "k").replayed == "false"
    assert hapax("show", "--store", store, "k", HAPAX_SECRET_FILE="secret").code == 0


def test_a_secret_hides_what_could_be_guessed(serve, hapax, folder):
    """With a secret, fingerprint and caller of a record are HMACs of what they are without one."""
    (folder / "secret").write_text("a secret\n")
    (folder / "secret").chmod(0o600)
    shown = []
    for more in ({}, {"HAPAX_SECRET_FILE": "secret"}):
        store = f"rocksdb:{folder}/{len(shown)}"
        served = serve(store=store, **more)
        assert served.post("/ok", "k", headers=[("Authorization", "Basic dTpodW50ZXIy")]).replayed == "false"
        assert served.post("/ok", "k", headers=[("Authorization", "Basic dTpodW50ZXIy")]).replayed == "true"
        shown.append(hapax("show", "--store", store, "--json", "k", **more).json)
    for field in ("fingerprint", "caller"):
        plain = bytes.fromhex(shown[0][field])
        assert shown[1][field] == hmac.new(b"a secret", field.encode() + plain, "sha256").hexdigest()


def test_json(serve, store):
    """--json: the ready line is an object."""
    ready = json.loads(serve("--json").line)
    assert ready["store"] == store and ready["status"].endswith("/hapax-status")


def test_the_access_log(serve, api):
    """--access-log: a line for each request, with its answer, on stderr."""
    served = serve("--access-log", "text")
    served.post("/ok", "k")
    assert re.match(r'127\.0\.0\.1 "POST /ok HTTP/1\.1" 200 \d+ fresh [0-9a-f]{64} ', served.process.stderr.readline())


# ---- ending --------------------------------------------------------------------------------


def test_sigterm_lets_requests_in_hand_finish_and_ends_all(serve, api):
    """The answer under way arrives and is stored; then no process and no folder is left."""
    served = serve("--workers", "2")
    family, folder = served.family(2), folder_of(served)
    assert folder.stat().st_mode & 0o067 == 0
    with g.Connection(served.port) as connection:
        connection.send(g.request("POST", "/hold/d", "k"))
        wait_until(lambda: api.count("k") == 1, "the attempt")
        served.process.terminate()
        wait_until(lambda: port_is_free(served.port), "the port being free")
        api.door("d").set()
        assert connection.response().body == b"effect=1"
    assert served.process.wait(PATIENCE) == 0
    assert not any(map(alive, family)) and not folder.exists()
    assert serve().post("/hold/d", "k").replayed == "true"


def test_a_second_signal_does_not_wait(serve, api):
    """Ctrl-C twice ends it with a request still in hand."""
    served = serve()
    with g.Connection(served.port) as connection:
        connection.send(g.request("POST", "/hold/d", "k"))
        wait_until(lambda: api.count("k") == 1, "the attempt")
        served.process.send_signal(g.signal.SIGINT)
        wait_until(lambda: port_is_free(served.port), "the port being free")
        assert end(served.process, g.signal.SIGINT) == 0


def test_sigterm_waits_for_no_longer_than_drain(serve, api):
    """A handler that goes on for longer is cut off, and its claim is left to its lease."""
    served = serve("--drain", "300ms")
    with g.Connection(served.port) as connection:
        connection.send(g.request("POST", "/hold/d", "k"))
        wait_until(lambda: api.count("k") == 1, "the attempt")
        assert end(served.process) == 0


def test_a_reload_leaves_handlers_their_time(serve, api):
    """The old worker has as long as its handlers may take, far beyond what SIGTERM allows; then SIGTERM ends it."""
    served = serve("--workers", "1", "--drain", "300ms")
    old = served.family()[2]
    with g.Connection(served.port) as one, g.Connection(served.port) as other:
        for connection, name in (one, "a"), (other, "b"):
            connection.send(g.request("POST", f"/hold/{name}", name))
            wait_until(lambda key=name: api.count(key) == 1, "the attempt")
        served.process.send_signal(g.signal.SIGHUP)
        wait_until(lambda: len(family_of(served.process.pid)) == 4, "the new worker")
        reloaded = time.monotonic()
        wait_until(lambda: time.monotonic() > reloaded + 1, "the drain being over")
        api.door("a").set()
        assert one.response().body == b"effect=1"
        assert served.post("/hold/a", "a").replayed == "true" and alive(old)
        assert end(served.process) == 0
        assert not alive(old)


def test_a_reload_waits_for_the_longest_policy(hapax):
    """What a location allows counts, with the time that a repeat waits and an outcome may need."""
    words = [*UP, "--module", g.MODULE, "--wait", "1s", "--timeout", "2s", "--save-wait", "3s", "--run-max", "60s"]
    for more, seconds in ([], 66), (["--location", "/slow run_max=1h"], 3606):
        assert f"worker_shutdown_timeout {seconds}s;" in hapax("serve", "--config-only", *words, *more).out


def test_sighup_reloads(serve):
    """New workers take over, and it goes on serving."""
    served = serve("--workers", "1")
    before = served.family()
    served.process.send_signal(g.signal.SIGHUP)
    wait_until(lambda: not alive(before[2]), "the old worker ending")
    assert served.post("/ok", "k").replayed == "false"
    assert end(served.process, g.signal.SIGQUIT) == 0


def turn(link, target):
    """A link to the target, in place of the one that is there."""
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


def shown_certificate(served):
    return ssl.get_server_certificate(("127.0.0.1", served.port), timeout=PATIENCE)


def test_a_reload_follows_a_link_to_the_renewed_certificate(serve, folder):
    """As certbot renews: the names are links, which lead to other files by then."""
    links = [folder / "cert.pem", folder / "key.pem"]
    for version in "v1", "v2":
        (folder / version).mkdir()
        own_certificate(folder / version)
    for link in links:
        turn(link, f"v1/{link.name}")
    served = serve("--tls-cert", "cert.pem", "--tls-key", "key.pem", "--workers", "1")
    old = served.family()[2]
    assert shown_certificate(served) == (folder / "v1/cert.pem").read_text()
    for link in links:
        turn(link, f"v2/{link.name}")
    served.process.send_signal(g.signal.SIGHUP)
    wait_until(lambda: not alive(old), "the old worker ending")
    assert shown_certificate(served) == (folder / "v2/cert.pem").read_text()


def test_a_reload_finds_a_secret_whose_folder_was_replaced(serve, folder):
    """As Kubernetes renews: the link to the folder is turned, and the folder of before removed."""
    for version in "v1", "v2":
        (folder / version).mkdir()
        (folder / version / "secret").write_text("a secret\n")
        (folder / version / "secret").chmod(0o600)
    turn(folder / "data", "v1")
    turn(folder / "secret", "data/secret")
    served = serve("--workers", "1", HAPAX_SECRET_FILE="secret")
    assert served.post("/ok", "k").replayed == "false"
    old = served.family()[2]
    turn(folder / "data", "v2")
    shutil.rmtree(folder / "v1")
    served.process.send_signal(g.signal.SIGHUP)
    wait_until(lambda: not alive(old), "the old worker ending")
    assert served.post("/ok", "k").replayed == "true"


def test_kill_9_ends_nginx_too(serve):
    """No nginx outlives the store it uses: all processes end, and the port is free."""
    served = serve("--workers", "2")
    family, folder = served.family(2), folder_of(served)
    served.process.kill()
    served.process.wait(PATIENCE)
    wait_until(lambda: not any(map(alive, family)), "nginx ending")
    wait_until(lambda: port_is_free(served.port), "the port being free")
    remove_left(folder)


def test_what_kill_9_left_is_removed_by_the_next(serve):
    """The folder of a killed serve holds the store's password: the next one removes it, once no nginx has it any more.
    A folder whose serve lives stays, and so does one that is just being made."""
    other, killed = serve(), serve("--workers", "1")
    family, left = killed.family(), folder_of(killed)
    making = left.with_name("hapax-serve-tests0")
    making.mkdir()
    try:
        assert (left / "nginx.conf").stat().st_mode & 0o777 == 0o600
        killed.process.kill()
        killed.process.wait(PATIENCE)
        wait_until(lambda: not any(map(alive, family)), "nginx ending")
        third = serve()  # or a serve of another test, which was faster
        assert not left.exists() and making.exists() and folder_of(other).exists()
        assert third.post("/ok", "k").status == other.post("/ok", "k").status == 200
    finally:
        making.rmdir()


def users_of(*folders):
    """Processes that have a file or a socket of these folders open: nginx has the lock of its folder from its start."""
    found = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it ends meanwhile
            for link in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(link).startswith(tuple(f"{folder}/" for folder in folders)):
                        found.add(int(process))
    return found


@pytest.mark.some(2)
@pytest.mark.parametrize("moment", ["folder", "lock", "conf", "socket", "ready", "request", "reload", "end"])
def test_kill_9_leaves_nothing_that_the_next_start_does_not_clear(hapax, api, folder, moment):
    """hapax serve and nginx's master are killed together: no worker lives on. The next one starts on the same port and
    store, replays, and after its end no process, no folder and no socket is there."""
    port, run, store = g.free_port(), folder / "run", folder / "store"
    user = ("setpriv", "--reuid", "www-data", "--regid", "www-data", "--clear-groups") if os.geteuid() == 0 else ()
    folder.chmod(0o755)
    for made in run, store:  # root's serve would make its folder in /tmp, among those of others
        made.mkdir()
        shutil.chown(made, *(("www-data", "www-data") if user else (os.getuid(), os.getgid())))

    def start():
        process = subprocess.Popen([*user, HAPAX, "serve", "--upstream", f"http://127.0.0.1:{api.port}", "--listen",
                                    f"127.0.0.1:{port}", "--store", f"rocksdb:{store}/db", "--module", g.MODULE,
                                    "--workers", "2"], cwd=folder, env={**hapax.env, "XDG_RUNTIME_DIR": str(run)},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        hapax.processes.append(process)
        return process

    def post(key):
        with g.Connection(port) as connection:
            connection.send(g.request("POST", "/ok", key))
            return connection.response()

    killed = start()
    stages = {"folder": "hapax-serve-*", "lock": "hapax-serve-*/lock", "conf": "hapax-serve-*/nginx.conf",
              "socket": "hapax-serve-*/keeper.sock"}
    with contextlib.ExitStack() as held:
        if moment in stages:
            wait_for(lambda: list(run.glob(stages[moment])), moment, pause=0)
        else:
            assert "stands before" in read_line(killed)
            assert post("done").replayed == "false"
        if moment in ("request", "reload", "end"):
            connection = held.enter_context(g.Connection(port))
            connection.send(g.request("POST", "/hold/d", "k", b"x" * 200000))  # too large for memory
            wait_until(lambda: api.count("k") == 1, "the attempt")
            killed.send_signal({"reload": g.signal.SIGHUP, "end": g.signal.SIGTERM}.get(moment, g.signal.SIGCONT))
        if moment == "reload":
            wait_until(lambda: len(family_of(killed.pid)) == 2 + 3, "new workers beside the old one")
        if moment == "end":
            wait_until(lambda: port_is_free(port), "the port being free")
        for number in g.signal.SIGSTOP, g.signal.SIGKILL:  # neither may see the other's end
            for pid in family_of(killed.pid)[:2]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        killed.wait(PATIENCE)
        wait_until(lambda: not users_of(run, store), "the workers' end")
        api.door("d").set()
    for left in run.iterdir():
        if not (left / "lock").exists():  # it might be one that is just being made, for a minute
            os.utime(left, (time.time() - 61, time.time() - 61))
    again = start()
    assert "stands before" in read_line(again), again.stderr.read()
    assert post("done").replayed == ("false" if moment in stages else "true")
    assert len(list(run.iterdir())) == 1
    assert end(again) == 0
    assert list(run.iterdir()) == [] and not (store / "db/keeper.sock").exists()
    assert not users_of(run, store)


def test_kill_9_of_nginx_ends_it(serve):
    """Workers without a master are ended too; exit 3, with a line."""
    served = serve("--workers", "2")
    family = served.family(2)
    os.kill(family[1], g.signal.SIGKILL)
    assert served.process.wait(PATIENCE) == 3
    assert "nginx was ended by signal 9" in served.process.stderr.read()
    wait_until(lambda: not any(map(alive, family)), "the workers ending")
    assert port_is_free(served.port)


# ---- what is wrong is said ----------------------------------------------------------------------


UP = ("--upstream", "http://127.0.0.1:9")


@pytest.mark.some(35)
@pytest.mark.parametrize("words, said", [
    ([], "--upstream URL is missing"),
    (["--upstream", "127.0.0.1:9"], '--upstream "127.0.0.1:9": not a URL'),
    (["--upstream", "http://"], "no HOST"),
    (["--upstream", "http://a b"], "no HOST"),
    (["--upstream", "http://h:99999"], "its port is not a number of 1 to 65535"),
    (["--upstream", "http://h;evil"], "no HOST"),
    (["--upstream", "http://127.0.0.1:9/v1"], "it has a path"),
    ([*UP, "--listen", "a..b:0"], 'cannot listen at "a..b:0": '),
    ([*UP, "--listen", "99999"], '--listen "99999": its port is not a number of 0 to 65535'),
    ([*UP, "--listen", "127.0.0.1:99999"], "its port is not a number of 0 to 65535"),
    ([*UP, "--listen", "127.0.0.1:http"], "its port is not a number"),
    ([*UP, "--listen", ":8080"], "no HOST in it: 127.0.0.1 is this machine alone, 0.0.0.0 is every address"),
    ([*UP, "--listen", "::1"], "an IPv6 address stands in brackets, as [::1]:8080"),
    ([*UP, "--listen", "a b"], "not HOST:PORT or PORT"),
    ([*UP, "--listen", "0", "--config-only"], "--config-only needs a port"),
    ([*UP, "--listen", "203.0.113.1:8080"], 'cannot listen at "203.0.113.1:8080"'),
    ([*UP, "--cors", "shop.example"], '--cors "shop.example": not an origin'),
    ([*UP, "--cors", "https://shop.example/"], "not an origin"),
    ([*UP, "--cors", "https://Shop.example;"], "not an origin"),
    ([*UP, "--cors", "null"], "not an origin"),
    ([*UP, "--lease", "soon"], '--lease: cannot set "lease" to "soon"'),
    ([*UP, "--lease", "1ms"], '"lease" is out of its limits'),
    ([*UP, "--on-expired", "explode"], "must be rerun, hold or reconcile"),
    ([*UP, "--on-expired", "reconcile"], "there is no --reconcile URL"),
    ([*UP, "--reconcile", "http://127.0.0.1:9/did"], "nobody asks: on_expired is not reconcile"),
    ([*UP, "--location", "v1"], "does not begin with a path"),
    ([*UP, "--location", "/v1;"], "does not begin with a path"),
    ([*UP, "--location", "/v1 lease"], "after the path come POLICY=VALUE"),
    ([*UP, "--location", "/v1 leas=5s"], '"leas"'),
    ([*UP, "--location", "/v1 lease=1ms"], '--location "/v1 lease=1ms"'),
    ([*UP, "--push", "kafka"], '--push "kafka": not dapr, knative or sns'),
    ([*UP, "--location", "/v1 push=kafka"], '"push"'),
    ([*UP, "--class", "200 final", "--class", "500 maybe"], '--class "500 maybe": does not take "maybe": it takes'),
    ([*UP, "--class", "5 final"], '--class "5 final": does not take "5": it takes statuses from 200 to 599'),
    ([*UP, "--class", "500"], '--class "500": it has too few words'),
    ([*UP, "--key-from", "order"], '--key-from "order": takes JSON pointers, as /order/id: "order": '),
    ([*UP, "--key-header", "a b"], '--key-header "a b": does not take "a b": it takes the name of a header'),
    ([*UP, "--fingerprint", "all"], '--fingerprint "all": does not take "all": it takes method, host, uri'),
    ([*UP, "--fingerprint", "off body"], '--fingerprint "off body": takes "off" alone'),
    ([*UP, "--methods", "POST BREW"], '--methods "POST BREW": does not take "BREW": it takes POST, PATCH'),
    ([*UP, "--methods", " "], '--methods " ": it has too few words'),
    ([*UP, "--scope", "$nothing"], '--scope "$nothing": unknown "nothing" variable'),
    ([*UP, "--caller", "a-${nothing}-b"], '--caller "a-${nothing}-b": unknown "nothing" variable'),
    ([*UP, "--location", "/v1 scope=$nothing"], '--location "/v1 scope=$nothing": unknown "nothing" variable'),
    ([*UP, "--location", "/v1 scope=$"], '--location "/v1 scope=$": invalid variable name'),
    ([*UP, "--location", "/v1 run_max=1m run_max=2m"], '2m": run-max is given twice'),
    ([*UP, "--location", "/v1", "--location", "/v1 off"], '--location "/v1 off": duplicate location "/v1"'),
    ([*UP, "--location", "/v1 scope=a\nb"], "control characters"),
    ([*UP, "--cors", "https://a.b", "--cors", "https://a.b"], '--cors "https://a.b": is given twice'),
    (["--upstream", "http://a..b"], '--upstream "http://a..b": host not found'),
    ([*UP, "--auth-request", "http://a..b/"], '--auth-request "http://a..b/": host not found'),
    ([*UP, "--tls-cert", __file__, "--tls-key", __file__], f'--tls-cert "{__file__}": cannot load certificate'),
    ([*UP, "--store", "mysql://x"], 'store "mysql://x" is of no known scheme (rocksdb:, unix:, redis://, postgres://'),
    ([*UP, "--store", "mysql://x", "--config-only"], 'store "mysql://x" is of no known scheme'),
    ([*UP, "--store", "dynamodb://x"], "the DynamoDB URI is wrong"),
    ([*UP, "--owner", "auth:X-User"], "--auth-request, which is missing"),
    ([*UP, "--auth-request", "http://127.0.0.1:9/", "--owner", "auth:"], "the name of a header"),
    ([*UP, "--auth-request", "http://127.0.0.1:9/", "--owner", "auth:a b"], "the name of a header"),
    ([*UP, "--owner", ""], '--owner "": it is empty'),
    ([*UP, "--caller", ""], '--caller "": it is empty'),
    ([*UP, "--scope", "a\nb"], "control characters"),
    ([*UP, "--scope", 'a"; evil on; #'], None),
    ([*UP, "--tls-cert", "c"], "go together"),
    ([*UP, "--client-ca", "c"], "it needs --tls-cert"),
    ([*UP, "--status", "nowhere:x"], '--status "nowhere:x": its port is not a number'),
    ([*UP, "--tls-cert", "c", "--tls-key", "k"], '--tls-cert "c": No such file'),
    ([*UP, "--nginx", "nowhere"], 'cannot find nginx at "nowhere"'),
    ([*UP, "--module", "nowhere.so"], 'cannot find the module at "nowhere.so"'),
    ([*UP, "--store", "ftp:x"], "ftp"),
    ([*UP, "--workers", "0"], "--workers"),
])
def test_one_line_and_exit_2(hapax, folder, words, said):
    """Whatever is wrong is named in one line before anything is served, and nothing is left behind."""
    more = [] if "--module" in words else ["--module", g.MODULE]
    if "--listen" not in words:
        more += ["--listen", f"127.0.0.1:{g.free_port()}"]
    if said is None:  # quoting: it is one word of nginx's, and serves
        result = hapax("serve", "--config-only", *words, *more)
        assert result.code == 0 and 'hapax_scope "a\\"; evil on; #";\n' in result.out
        return
    result = hapax("serve", *words, *more)
    assert (result.code, result.out) == (2, ""), result.err
    assert said in result.err and result.err.count("\n") == 1, result.err
    assert result.err.startswith("hapax serve: ")


def test_a_taken_port(hapax, api, store):
    """Exit 2, with the port."""
    result = hapax("serve", *UP, "--listen", f"127.0.0.1:{api.port}", "--store", store, "--module", g.MODULE)
    assert (result.code, result.err) == (2,
                                         f'hapax serve: cannot listen at "127.0.0.1:{api.port}": the port is taken\n')


@pytest.mark.parametrize("version, said", [("nginx/1.18.0", "is nginx 1.18.0: 1.22 or newer is needed"),
                                           ("something", "does not say that it is an nginx")])
def test_an_nginx_of_another_time(hapax, folder, version, said):
    """One that is too old, or none at all, first in PATH: a folder of that name is no program."""
    (folder / "build/nginx").mkdir(parents=True)
    (folder / "nginx").write_text(f"#!/bin/sh\necho 'nginx version: {version}' >&2\n")
    (folder / "nginx").chmod(0o755)
    result = hapax("serve", *UP, PATH=f"{folder}/build:{folder}:/usr/bin:/bin")
    assert result.code == 2 and said in result.err


def test_no_nginx_anywhere(hapax, folder):
    """PATH is empty, and there is none where Debian has it (in a mount namespace, it is hidden)."""
    script = """for at in /usr/sbin/nginx /usr/local/sbin/nginx /usr/local/nginx/sbin/nginx; do
                    [ ! -e "$at" ] || mount --bind "$1/nothing" "$at" || exit 77
                done; PATH=; shift; exec "$@" """
    (folder / "nothing").touch(mode=0o644)
    result = hapax.run("unshare", "-rm", "sh", "-c", script, "sh", folder, HAPAX, "serve", *UP)
    if result.code == 77 or "unshare" in result.err:
        pytest.skip("no mount namespace to be had")
    assert (result.code, result.err.count("\n")) == (2, 1) and "cannot find nginx in PATH" in result.err


def test_a_module_of_another_nginx(hapax, folder):
    """What nginx says of it is the line."""
    (folder / "module.so").write_text("no library")
    result = hapax("serve", *UP, "--listen", f"127.0.0.1:{g.free_port()}", "--module", "module.so")
    assert result.code == 2 and result.err.count("\n") == 1
    assert f'--module "{folder}/module.so": dlopen()' in result.err


# ---- the configuration -----------------------------------------------------------------------------


def test_config_only_prints_what_nginx_takes(hapax, folder, store):
    """It passes nginx -t as it is, but for where a test may write."""
    result = hapax("serve", "--config-only", "--upstream", "https://api.test:8443", "--store", store, "--wait", "5s",
                   "--location", "/v1 lease=5s on_failed=hold run_max=10m", "--methods", "POST PUT", "--workers", "3",
                   "--auth-request", "http://127.0.0.1:9/auth?a=1",
                   "--module", g.MODULE, "--upstream-ca", certificate(folder))
    assert (result.code, result.err) == (0, "")
    assert f"hapax keep --store 'rocksdb:{folder}/store'" in result.out
    assert "hapax_wait 5s;" in result.out and "proxy_read_timeout 600s;" in result.out
    kinds = "".join(f"{kind}_temp_path {folder}/{kind};"
                    for kind in ("client_body", "proxy", "fastcgi", "scgi", "uwsgi"))
    text = result.out.replace("http {", f"pid {folder}/nginx.pid; http {{ {kinds}", 1).replace("api.test", "127.0.0.1")
    (folder / "nginx.conf").write_text(text)
    done = subprocess.run([*g.COMMAND, "-t", "-p", folder, "-c", folder / "nginx.conf", "-e", "stderr"],
                          capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert not (folder / "store").exists()


@pytest.mark.parametrize("words, user", [([], "www-data"), (["--user", "daemon"], "daemon")])
def test_config_only_names_the_user_whom_the_keeper_will_let_in(hapax, store, words, user):
    """Workers of another user would get 503 for every request."""
    printed = hapax("serve", "--config-only", *UP, "--module", g.MODULE, "--store", store, *words).out
    assert printed.splitlines()[0].endswith(f" --group {user}") and f"\nuser {user} {user};\n" in printed


def certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a",
                    "-keyout", folder / "ca.key", "-out", folder / "ca.pem"], check=True, capture_output=True)
    return folder / "ca.pem"
