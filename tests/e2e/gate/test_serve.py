"""hapax serve, end to end: the real binary, the real nginx, and an API that counts its effects."""
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import urllib.request

import pytest

import gate as g
from conftest import HAPAX, PATIENCE, end, wait_until
from served import processes_of


def alive(pid):
    """Whether it runs; one that only waits to be reaped does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


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
    master = processes_of(served.process.pid)[1]
    words = pathlib.Path(f"/proc/{master}/cmdline").read_bytes().decode()
    return pathlib.Path(re.search(r"/[^ \0]*hapax-serve-\w{6}", words).group())


# ---- serving ------------------------------------------------------------------------------


def test_one_line_says_that_it_is_ready_and_where_to_look(serve, api, store):
    """The port accepts by then; the status page and the command that lists operations are named."""
    served = serve()
    assert served.send("GET", "/ok").status == 200
    assert served.line.startswith(f"hapax serve: http://127.0.0.1:{served.port} stands before "
                                  f"http://127.0.0.1:{api.port} ")
    assert f"http://127.0.0.1:{served.port}/hapax-status" in served.line
    assert f"hapax list --store '{store}'" in served.line


def test_a_repeat_is_replayed_and_the_operation_is_listed(serve, api, hapax, store):
    """One effect for two requests; the command line sees it in the store that serve holds."""
    served = serve("--workers", "2")
    first, again = served.post("/ok", "k", b"x"), served.post("/ok", "k", b"x")
    assert (first.replayed, again.replayed, first.body) == ("false", "true", again.body)
    assert served.post("/ok", "k", b"other").problem == "fingerprint-mismatch"
    assert api.count("k") == 1
    assert [record["state"] for record in hapax("list", "--store", store, "--json").lines] == ["completed"]


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
    shutil.rmtree(folder)


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


def test_memory(serve, api):
    """--store memory: one store for all workers, while it runs."""
    served = serve("--workers", "3", store="memory:")
    assert served.post("/ok", "k").replayed == "false"
    assert {served.post("/ok", "k").replayed for _ in range(12)} == {"true"}


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
    assert served.post("/status/202,200", "n").status == 202
    assert served.post("/status/202,200", "n").status == 200
    first = served.post("/ok", body=b'{"order": {"id": "o-1"}}')
    again = served.post("/ok", body=b'{"order": {"id": "o-1"}}')
    assert (first.replayed, again.replayed) == ("false", "true")


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


def test_413_is_a_problem(serve, api):
    """A body over max_request is refused by the gate; without a key it passes."""
    served = serve("--max-request", "1k")
    assert served.post("/ok", "k", b"x" * 2000).problem == "request-too-large"
    assert served.post("/ok", None, b"x" * 20_000_000).body == b"effect=1 body=20000000"
    assert api.count("k") == 0


def test_traffic_without_keys_passes(serve, api):
    """Every method, an upgraded connection, a chunked response."""
    served = serve()
    for method in ("GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"):
        assert served.send(method, "/ok").status == 200
    assert b"2-chunk" in served.send("GET", "/chunked").body
    with g.Connection(served.port) as connection:
        connection.send(g.request("GET", "/upgrade", headers=[("Connection", "Upgrade"), ("Upgrade", "echo")]))
        assert connection.response().status == 101
        connection.send(b"hello\n")
        assert connection.file.readline() == b"hello\n"


def test_upstream_sees_the_host_and_keeps_its_connection(serve, api):
    """The client's Host and address are passed on, over connections that are kept."""
    served = serve("--workers", "1")
    for _ in range(3):
        served.send("GET", "/ok")
    headers = dict(api.seen[-1][2])
    assert headers["Host"] == "api.test" and headers["X-Forwarded-For"] == "127.0.0.1"
    assert "Connection" not in headers


def test_the_status_page_answers(serve):
    """Prometheus text, from this machine."""
    served = serve()
    served.post("/ok", "k")
    page = served.send("GET", "/hapax-status")
    assert page.status == 200 and b'hapax_answers_total{answer="fresh"} 1\n' in page.body


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


def test_reconcile_is_asked(serve, api):
    """--on-expired reconcile asks the URL before a stale operation runs again."""
    served = serve("--lease", "300ms", "--on-expired", "reconcile",
                   "--reconcile", f"http://127.0.0.1:{api.port}/created/happened")
    assert served.post("/drop", "k").status == 502
    wait_until(lambda: served.post("/drop", "k").status == 201, "the hook's answer")
    assert [path for _, path, _, _ in api.seen] == ["/drop", "/created/happened"]


def test_tls(serve, api, folder):
    """A self-signed certificate serves https."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-keyout",
                    folder / "key.pem", "-out", folder / "cert.pem"],
                   check=True, capture_output=True)
    served = serve("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    assert served.line.startswith("hapax serve: https://127.0.0.1:")
    trust = ssl.create_default_context(cafile=folder / "cert.pem")
    for replayed in ("false", "true"):
        request = urllib.request.Request(f"https://localhost:{served.port}/ok", b"x", {"Idempotency-Key": "k"})
        with urllib.request.urlopen(request, context=trust, timeout=PATIENCE) as response:
            assert response.headers["Idempotency-Replayed"] == replayed


def test_the_secret_is_the_one_of_the_command_line(serve, api, hapax, folder, store):
    """HAPAX_SECRET_FILE hashes keys as hapax show does."""
    (folder / "secret").write_text("a secret\n")
    (folder / "secret").chmod(0o600)
    served = serve(HAPAX_SECRET_FILE="secret")
    assert served.post("/ok", "k").replayed == "false"
    assert hapax("show", "--store", store, "k", HAPAX_SECRET_FILE="secret").code == 0


def test_json(serve, store):
    """--json: the ready line is an object."""
    ready = json.loads(serve("--json").line)
    assert ready["store"] == store and ready["status"].endswith("/hapax-status")


def test_the_access_log(serve, api):
    """--access-log: a line for each request, with its answer, on stderr."""
    served = serve("--access-log")
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


def test_sighup_reloads(serve):
    """New workers take over, and it goes on serving."""
    served = serve("--workers", "1")
    before = served.family()
    served.process.send_signal(g.signal.SIGHUP)
    wait_until(lambda: not alive(before[2]), "the old worker ending")
    assert served.post("/ok", "k").replayed == "false"
    assert end(served.process, g.signal.SIGQUIT) == 0


def test_kill_9_ends_nginx_too(serve):
    """No nginx outlives the store it uses: all processes end, and the port is free."""
    served = serve("--workers", "2")
    family, folder = served.family(2), folder_of(served)
    served.process.kill()
    served.process.wait(PATIENCE)
    wait_until(lambda: not any(map(alive, family)), "nginx ending")
    wait_until(lambda: port_is_free(served.port), "the port being free")
    shutil.rmtree(folder)


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


@pytest.mark.parametrize("words, said", [
    ([], "--upstream URL is missing"),
    (["--upstream", "127.0.0.1:9"], '--upstream "127.0.0.1:9": not a URL'),
    (["--upstream", "http://"], "no HOST"),
    (["--upstream", "http://a b"], "no HOST"),
    (["--upstream", "http://h:99999"], "no HOST or HOST:PORT"),
    (["--upstream", "http://h;evil"], "no HOST"),
    (["--upstream", "http://127.0.0.1:9/v1"], "it has a path"),
    ([*UP, "--listen", "nowhere:0"], '--listen "nowhere:0"'),
    ([*UP, "--listen", "203.0.113.1:8080"], 'cannot listen at "203.0.113.1:8080"'),
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
    ([*UP, "--class", "500 maybe"], "final, not_run, failed or unknown"),
    ([*UP, "--methods", "BREW"], '"hapax_methods" does not take "BREW"'),
    ([*UP, "--scope", "$nothing"], 'unknown "nothing" variable'),
    ([*UP, "--scope", "a\nb"], "control characters"),
    ([*UP, "--scope", 'a"; evil on; #'], None),
    ([*UP, "--tls-cert", "c"], "go together"),
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
    """One that is too old, or none at all, first in PATH."""
    (folder / "nginx").write_text(f"#!/bin/sh\necho 'nginx version: {version}' >&2\n")
    (folder / "nginx").chmod(0o755)
    result = hapax("serve", *UP, PATH=f"{folder}:/usr/bin:/bin")
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
    assert "nginx refuses this: dlopen()" in result.err


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


def certificate(folder):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a",
                    "-keyout", folder / "ca.key", "-out", folder / "ca.pem"], check=True, capture_output=True)
    return folder / "ca.pem"
