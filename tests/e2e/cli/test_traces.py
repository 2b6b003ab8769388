"""Spans and events of every door (docs/traces.md), with a fake collector (tests/servers/collector.py)."""
import contextlib
import json
import os
import re
import time
from pathlib import Path

import gate as g
import pytest
from collector import Collector
from conftest import HAPAX, end, read_line, wait_until
from door_client import Client
from lambda_bed import Function, gateway_v2
from rabbit import Consumer, Handler, Queue, server
from served import Served

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CALLER}-01"
SECRETS = ("secret-key-4711", "secret-body", "secret-token")
EVENT = {"event", "time", "door", "id", "scope", "what", "attempt", "fence", "class", "answer", "recorded", "status",
         "ms", "handler_ms", "trace"}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.close()


# Each of these asks twice for the same, under PARENT, and gives what the handler saw as its traceparent (None: it
# cannot see one), how the operation's span is named, and its kind.


def by_command(hapax, store, options, collector):
    for _ in range(2):
        done = hapax.run("/usr/bin/env", f"TRACEPARENT={PARENT}", HAPAX, "run", "--store", store, *options,
                         SECRETS[0], "--", "sh", "-c", "echo $TRACEPARENT; : secret-body")
        assert done.code == 0, done.err
    return done.out.strip(), "command default", 1


def by_socket(hapax, store, options, collector):
    process = hapax.start("door", "--store", store, "--listen", f"unix:{hapax.folder}/d", *options)
    assert "serving" in read_line(process)
    with Client(f"{hapax.folder}/d") as client:
        run = client.run(SECRETS[0], body=b"secret-body", traceparent=PARENT, owner="secret-token")
        client.finish(run.op, body=b"secret-body")
        again = client.once(SECRETS[0], body=b"secret-body", traceparent=PARENT, owner="secret-token")
        assert again.answer == "replay" and again.headers == [] and again.traceparent == run.traceparent
    end(process)
    return run.traceparent, "call test", 1


def by_message(hapax, store, options, collector):
    queue, handler = Queue(server()), Handler()
    consumer = Consumer(hapax, queue.uri(), handler.url, store, *options)
    for acked in (1, 2):
        queue.publish("secret-body", id=SECRETS[0], traceparent=PARENT, authorization="secret-token")
        consumer.wait_metric("hapax_consumer_acknowledged_total", acked)
    if "--traces" in options:
        consumer.wait_metric("hapax_traces_sent_total", 2)
    end(consumer.process)
    handler.close()
    assert len(handler.calls) == 1
    return handler.calls[0][1]["traceparent"], f"process {queue.name}", 5


def by_lambda(hapax, store, options, collector):
    event = gateway_v2("secret-body", SECRETS[0])
    event["headers"].update(traceparent=PARENT, authorization="Bearer secret-token")
    with Function(hapax, store, "echo", *options, "--scope", "f") as function:
        assert function.invoke(event).kind == function.invoke(event).kind == "response"
        wait_until(lambda: len((hapax.folder / "events").read_text()) > 0 and len(collector.named("invoke f")) == 2,
                   "the spans")  # the sandbox is killed
    return None, "invoke f", 2


def by_http(hapax, store, options, collector):
    api = g.Api()
    served = Served(hapax, api, store, "--workers", "1", *options)
    headers = [("traceparent", PARENT), ("Authorization", "Bearer secret-token")]
    for replayed in ("false", "true"):
        answer = served.post("/ok?secret-body", SECRETS[0], b"secret-body", headers)
        assert answer.replayed == replayed and answer.get("Hapax-Trace") is None
    end(served.process)
    api.close()
    return dict(api.headers_of(SECRETS[0])[0])["traceparent"], "request default", 2


DOORS = {"command": by_command, "socket": by_socket, "message": by_message, "lambda": by_lambda, "http": by_http}


# At each door: the spans of a run under its caller's, a replay that links to the run's span, one event for the attempt,
# and the run's context with the outcome. Nothing of it has a key, a body or a credential in it.
@pytest.mark.parametrize("door", ["command", "socket", pytest.param("message", marks=pytest.mark.ci), "lambda", "http"])
def test_a_replay_links_to_the_run(hapax, store, collector, folder, door):
    seen, name, kind = DOORS[door](hapax, store, ["--traces", collector.url, "--events", folder / "events"], collector)
    wait_until(lambda: len(collector.named(name)) == 2, lambda: f"both operations: {collector.spans}")
    first, second = sorted(collector.named(name), key=lambda span: span.begun)
    assert {(span.trace, span.parent, span.kind) for span in (first, second)} == {(TRACE, CALLER, kind)}
    parts = {span.name: span for span in collector.spans if span.parent == first.id}
    assert parts.keys() == {"claim", "handler", "complete"}
    assert first.begun == parts["claim"].begun and parts["claim"].ended <= parts["handler"].begun
    assert parts["handler"].ended <= parts["complete"].begun and parts["complete"].ended == first.ended
    assert [span.name for span in collector.spans if span.parent == second.id] == ["replay"]
    run = parts["handler"].id
    assert first.links == [] and second.links == [(TRACE, run)]
    assert seen in (None, f"00-{TRACE}-{run}-01")
    told = first.attributes
    assert told["hapax.door"] == door and told["hapax.attempt"] == 1 and told["hapax.answer"] == "fresh"
    assert second.attributes["hapax.answer"] == "replay" and second.attributes["hapax.id"] == told["hapax.id"]

    line, = (folder / "events").read_text().splitlines()
    event = json.loads(line)
    assert event.keys() == EVENT and event["door"] == door and event["class"] == "final"
    assert event["id"] == told["hapax.id"] and event["trace"] == f"00-{TRACE}-{run}-01"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", event["time"]) and event["ms"] >= event["handler_ms"]
    for secret in SECRETS:
        assert secret not in line and not any(secret.encode() in body for body in collector.bodies)

    record = hapax("show", "--store", store, "--json", "--id", event["id"]).json
    assert record["trace"] == event["trace"] and not any("race" in header for header in record["headers"])
    assert f"trace         {event['trace']}" in hapax("show", "--store", store, "--id", event["id"]).out


# The environment's variables say where and with what headers; a value is decoded, and shown nowhere.
def test_the_environment_says_where(hapax, store, collector):
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"{collector.url}/", "OTEL_SERVICE_NAME": 'shop "1"',
           "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a%20b, authorization=Bearer%20t"}
    assert hapax("run", "--store", store, "k", "--", "true", **env).code == 0
    span, = collector.named("command default")
    assert span.service == 'shop "1"' and span.parent is None
    assert collector.headers[0]["x-tenant"] == "a b" and collector.headers[0]["authorization"] == "Bearer t"
    for more in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"},
                 {"TRACEPARENT": f"00-{TRACE}-{CALLER}-00"}):
        assert hapax("run", "--store", store, str(more), "--", "true", **env, **more).code == 0
    assert len(collector.bodies) == 1


# nginx clears the environment of its workers, but not of these.
def test_the_environment_reaches_the_gate(hapax, api, store, collector):
    served = Served(hapax, api, store, "--workers", "1", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
                    OTEL_EXPORTER_OTLP_HEADERS="x-tenant=a", OTEL_SERVICE_NAME="shop")
    assert served.post("/ok", "k").status == 200
    end(served.process)
    span, = collector.named("request default")
    assert span.service == "shop" and collector.headers[0]["x-tenant"] == "a"


@pytest.mark.parametrize("words, env, said", [
    (["--traces", "ftp://h/"], {}, "http://HOST:PORT"), (["--traces", "http://"], {}, "http://HOST:PORT"),
    ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "h:4317"}, "http://HOST:PORT"),
    (["--traces", "http://h"], {"OTEL_EXPORTER_OTLP_HEADERS": "a=b%0a, geheim"}, "list of name=value"),
    (["--events", "/no/such/folder/e"], {}, "cannot write events"),
])
def test_wrong_settings_are_named(hapax, store, words, env, said):
    done = hapax.run(HAPAX, "run", "--store", store, *words, "k", "--", "true", **env)
    assert done.code == 125 and said in done.err and "geheim" not in done.err


def busy_door(hapax, operations, *options):
    """A door that has run so many, and its page."""
    process = hapax.start("door", "--store", "memory:", "--listen", f"unix:{hapax.folder}/d", "--metrics",
                          "127.0.0.1:0", "--json", *options)
    page = f"http://127.0.0.1:{json.loads(read_line(process))['metrics_port']}/metrics"
    with Client(f"{hapax.folder}/d") as client:
        for _ in range(operations):
            client.begin(None)
            client.end(client.wait(client.op, "RUN").op)
            client.wait(client.op, "ANSWER")
    return process, page


# A collector that stands still, or refuses, holds up nobody: what does not fit is dropped, and counted. No event is.
def test_a_collector_that_stands_still_holds_up_nobody(hapax, collector, folder):
    collector.gate.clear()
    process, page = busy_door(hapax, 4400, "--traces", collector.url, "--events", folder / "events")
    wait_until(lambda: (folder / "events").read_text().count("\n") == 4400, "all events")
    assert metric(hapax, page, "hapax_events_dropped_total") == 0
    assert metric(hapax, page, "hapax_traces_dropped_total") >= 4400 - 4096
    collector.answer = 400  # not to be tried again
    collector.gate.set()
    wait_until(lambda: metric(hapax, page, "hapax_traces_dropped_total") > 4400 - 4096 + 256, "the refused batches")
    end(process)


# A pipe that nobody reads holds up neither the spans nor the end. What is in it are whole lines.
def test_a_pipe_that_nobody_reads_holds_up_nobody(hapax, collector, folder):
    os.mkfifo(folder / "pipe")
    pipe = os.open(folder / "pipe", os.O_RDWR | os.O_NONBLOCK)
    process, page = busy_door(hapax, 1000, "--traces", collector.url, "--events", folder / "pipe")
    wait_until(lambda: metric(hapax, page, "hapax_traces_sent_total") == 1000, "the spans")
    wait_until(lambda: metric(hapax, page, "hapax_events_dropped_total") > 256, "dropped lines")
    begun = time.monotonic()
    end(process)
    assert time.monotonic() - begun < 20
    lines = os.read(pipe, 1 << 20).decode().splitlines()
    os.close(pipe)
    assert 100 < len(lines) < 1000 and all(json.loads(line).keys() == EVENT for line in lines)


def metric(hapax, page, name):
    text = hapax.run("/usr/bin/curl", "-s", page).out
    return int(re.search(rf"^{name} (\d+)$", text, re.M)[1])


# logrotate moves the file away, and another is there, or none: the next attempt's line is in a new one, with no signal.
@pytest.mark.parametrize("created", [True, False])
def test_a_file_that_was_moved_is_left(hapax, folder, created):
    process, page = busy_door(hapax, 2, "--events", folder / "events")
    wait_until(lambda: (folder / "events").read_text().count("\n") == 2, "two events")
    (folder / "events").rename(folder / "events.1")
    if created:
        (folder / "events").touch()
    with Client(f"{folder}/d") as client:
        client.begin(None)
        client.end(client.wait(client.op, "RUN").op)
    wait_until(lambda: (folder / "events").exists() and (folder / "events").read_text().count("\n") == 1, "the third")
    assert (folder / "events.1").read_text().count("\n") == 2
    assert metric(hapax, page, "hapax_events_dropped_total") == 0
    end(process)


# The same of nginx's workers, whose user may not make a file in this folder.
def test_a_file_of_the_workers_that_was_moved_is_left(hapax, api, store, folder):
    folder.chmod(0o711)
    served = Served(hapax, api, store, "--workers", "1", "--events", folder / "events")
    for n in (1, 2):
        assert served.post("/ok", f"k{n}").status == 200
        wait_until(lambda: (folder / "events").read_text().count("\n") == 1, "its event")
        (folder / "events").rename(folder / f"events.{n}")
        (folder / "events").touch()
        (folder / "events").chmod(0o666)  # logrotate's `create 0640 www-data adm`
    end(served.process)


# Workers of another user cannot open the pipe anew. The master has done it for them: none waits in it for another.
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts workers as another user")
def test_no_worker_waits_in_a_pipe(hapax, api, store):
    served = Served(hapax, api, store, "--workers", "2", "--events", "-")
    assert served.post("/ok", "k").status == 200
    pipe = os.fstat(served.process.stdout.fileno()).st_ino
    for worker in served.family(workers=2)[2:]:
        modes = list(modes_of(worker, pipe))
        assert any(mode & os.O_NONBLOCK for mode in modes), modes
    line = next(line for line in served.process.stdout if line.startswith("{"))
    assert json.loads(line)["event"] == "attempt"


def modes_of(pid, inode):
    """How the process has a file open, each time that it has. A process at work closes others meanwhile."""
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"/proc/{pid}/fd/{fd}").st_ino == inode:
                yield int(re.search(r"flags:\s+(\d+)", Path(f"/proc/{pid}/fdinfo/{fd}").read_text())[1], 8)


# An object for each request, with or without a key; what a client sends cannot break out of its text.
def test_the_access_log_in_json(serve):
    served = serve("--access-log", "json", "--workers", "1")  # each writes its own lines, when it comes to it
    served.post("/ok?token=geheim", "k", headers=[("traceparent", PARENT)])
    served.send("GET", "/ok/%22,%22x%22:%22")
    first, second = (json.loads(served.process.stderr.readline()) for _ in range(2))
    assert first.keys() == second.keys() and first["event"] == "request" and "geheim" not in str(first)
    assert (first["answer"], first["status"], first["path"], first["attempt"]) == ("fresh", 200, "/ok", "1")
    assert re.fullmatch("[0-9a-f]{64}", first["id"]) and first["trace"] == PARENT
    assert (second["id"], second["answer"], second["path"]) == ("", "", '/ok/","x":"')
