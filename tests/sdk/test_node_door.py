"""sdk/node with a real door: the middleware of each framework, BullMQ, the example, and programs that are killed."""
import contextlib
import gzip
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile

import pytest

from conftest import HAPAX, PATIENCE, ROOT, read_line, wait_until
from doors import bytes_of
from redis_server import Redis
from test_node import HERE, NODE, Program, env

numbers = itertools.count(1)
FRAMEWORKS = ["express", "parsed", "fastify", "nest", "hono"]
ON_NODES_OWN = ["express", "parsed", "nest"]  # their handlers write to Node's own response


class Door:
    """`hapax door` in the folder, which may die and come back."""

    def __init__(self, folder, store="memory:", *options):
        self.address = f"unix:{folder}/door.sock"
        self.words = [HAPAX, "door", "--store", store, "--listen", self.address, *options]
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        assert "serving" in read_line(self.process)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def make_door(folder):
    doors = []

    def make(*words):
        doors.append(Door(folder, *words))
        return doors[-1]

    yield make
    for door in doors:
        door.kill()


class App:
    """A service on a framework (app.js), and what one test does with it: its keys are told apart by their beginning."""

    begins = ""

    def __init__(self, framework, door, **more):
        self.program = Program(HERE / "app.js", framework, HAPAX_DOOR=door.address, **more)
        self.port = int(read_line(self.program.process))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.program.__exit__()

    def go_on(self):
        self.program.send()

    def begin(self, path, key=None, body=b'{"a": 1}', type="application/json", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        named = {"Idempotency-Key": re.sub('^"?', rf"\g<0>{self.begins}", key)} if key else {}
        connection.request("POST", path, body, {"Content-Type": type, **headers, **named})
        return connection

    def post(self, *words, **more):
        return answer_of(self.begin(*words, **more))

    def effects(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request("GET", "/effects")
        counts = json.loads(answer_of(connection).body)
        return {what.replace(self.begins, "", 1): count for what, count in counts.items()
                if what.partition(" ")[2].startswith(self.begins)}


class Answer:
    def __init__(self, response):
        self.status, self.reason, self.body = response.status, response.reason, response.read()
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.cookies = [value for name, value in response.getheaders() if name.lower() == "set-cookie"]
        self.replayed = self.headers.get("idempotency-replayed")

    @property
    def problem(self):
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        return json.loads(self.body)["type"].rpartition(":")[2]

    def same(self):
        """What a replay has to have in common with the first response."""
        dropped = ("age", "date", "idempotency-replayed", "idempotency-ttl", "set-cookie", "connection",
                   "keep-alive", "transfer-encoding", "etag")
        return self.status, self.reason, self.body, {n: v for n, v in self.headers.items() if n not in dropped}


def answer_of(connection):
    with contextlib.closing(connection):
        return Answer(connection.getresponse())


@pytest.fixture(scope="module")
def apps():
    """A service on each framework, before one door; those that were asked for."""
    with contextlib.ExitStack() as stack:
        door = Door(stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-node-")))
        stack.callback(door.kill)
        made = {}

        def make(framework):
            if framework not in made:
                made[framework] = stack.enter_context(App(framework, door))
            return made[framework]

        yield make


@pytest.fixture
def app(request, apps):
    app = apps(request.param)
    app.begins = f"{next(numbers)}-"
    return app


each = pytest.mark.parametrize("app", FRAMEWORKS, indirect=True)


@each
def test_a_repeat_gets_the_first_response(app):
    """Status, headers and bytes, whether written at once, in parts or as the framework's users do; no cookie twice."""
    for number, path in enumerate(("/pay", "/pay?currency=eur", "/json", "/stream", "/empty", "/bytes")):
        first, again = app.post(path, f"k{number}"), app.post(path, f"k{number}")
        assert (first.replayed, again.replayed) == ("false", "true"), path
        assert first.same() == again.same() and first.headers["x-before"] == "yes", path
        assert again.cookies == [] and (path in ("/json", "/empty", "/bytes") or ", ".join(first.cookies) == "a=1, b=2")
    assert set(app.effects().values()) == {1} and len(app.effects()) == 6
    assert app.post("/bytes", "b").body == b"\xff\x00\x01" and app.post("/bytes", "b").headers["x-latin"] == "caf\xe9"


@pytest.mark.parametrize("app", ["express", "nest"], indirect=True)
def test_what_a_handler_changes_after_its_end(app):
    """It is neither sent nor stored."""
    first, again = app.post("/late", "k"), app.post("/late", "k")
    assert (first.status, first.headers["x-number"], first.headers["location"]) == (201, "1", "/payments/1")
    assert first.same() == again.same() and "x-late" not in first.headers and again.replayed == "true"


@each
def test_a_response_that_has_no_body(app):
    """204 and 304 are their head alone, without a length, whatever the handler gave; the repeat's is the same."""
    for path, status in (("/none", 204), ("/unchanged", 304)):
        for replayed in (b"false", b"true"):
            head, rest = bytes_of(app.port, path, f"{app.begins}{path[1:]}")
            assert (head.split()[1], rest) == (b"%d" % status, b"") and b"idempotency-replayed: " + replayed in head
            assert b"content-length" not in head and b"transfer-encoding" not in head, head
    assert set(app.effects().values()) == {1}


@pytest.mark.parametrize("app", ["parsed"], indirect=True)
def test_middlewares_between(app):
    """A middleware behind the guard that wraps the response has its say once: what it made is stored, and sent."""
    for path in ("/pay", "/stream", "/json"):
        answers = [app.post(path, path[1:], X_Zip="1") for _ in range(2)]
        assert [json.loads(gzip.decompress(a.body))["number"] for a in answers] == [1, 1], path
        assert [(a.headers["x-heads"], a.headers["content-encoding"]) for a in answers] == [("1", "gzip")] * 2
        assert answers[0].same() == answers[1].same() and answers[1].replayed == "true"
    assert len(gzip.decompress(app.post("/huge", "h", X_Zip="1").body)) == 17 << 20
    assert app.effects()["/huge h"] == 1


@each
def test_the_handler_knows_its_operation(app):
    """Key, attempt and fence; and the body, which the middleware has read too."""
    told = json.loads(app.post("/pay", '"order 17"').body)
    assert (told["key"], told["attempt"], told["fenced"]) == (f"{app.begins}order 17", 1, True)
    assert told["body"] in ({"a": 1}, '{"a": 1}')
    large = json.loads(app.post("/pay", "l", b"x" * 90000, "text/plain").body)
    assert large["body"] == "x" * 90000
    assert json.loads(app.post("/pay", "e", b"", "text/plain").body)["key"] == f"{app.begins}e"


@each
def test_another_request_is_a_mismatch(app):
    """Body, path and query count; so do credentials, as another caller."""
    app.post("/pay", "k", Authorization="Bearer a")
    for more in ({"body": b'{"a": 2}'}, {"path": "/json"}, {"path": "/pay?x=1"}):
        answer = app.post(**{"path": "/pay", "key": "k", "Authorization": "Bearer a", **more})
        assert (answer.status, answer.problem) == (422, "fingerprint-mismatch")
    answer = app.post("/pay", "k", Authorization="Bearer b")
    assert (answer.status, answer.problem, answer.headers["x-before"]) == (422, "caller-mismatch", "yes")
    assert app.post("/pay", "k", X_Scope="another").replayed == "false"
    assert sum(app.effects().values()) == 2


@each
def test_without_a_key_nothing_is_kept(app):
    """Each request runs. A bad key is told so."""
    first, second = (json.loads(app.post("/pay").body)["number"] for _ in range(2))
    assert second == first + 1
    assert app.post("/pay", '"a').problem == "bad-key"


@pytest.mark.parametrize("app", [*ON_NODES_OWN, "hono"], indirect=True)
def test_a_large_request(app):
    """With a key it is refused, and nothing runs. Without one it is no operation, and no limit of one is its own."""
    for size in (2 << 20, (16 << 20) + 1, 32 << 20):
        answer = app.post("/pay", "k", b"x" * size, "application/octet-stream")
        assert (answer.status, answer.problem) == (413, "request-too-large"), size
    assert app.effects() == {}
    assert app.post("/pay", body=b"x" * (17 << 20), type="application/octet-stream").status == 201


@each
def test_an_attempt_in_flight(app):
    """Whoever asks meanwhile gets 409 with Retry-After, and then the response."""
    first = app.begin("/slow", "k")
    wait_until(lambda: app.effects().get("/slow k") == 1, "the handler")
    answer = app.post("/slow", "k")
    assert (answer.status, answer.problem) == (409, "in-flight") and int(answer.headers["retry-after"]) > 0
    app.go_on()
    first = answer_of(first)
    assert first.same() == app.post("/slow", "k").same() and app.effects() == {"/slow k": 1}


@each
def test_a_client_that_leaves_changes_nothing(app):
    """The handler runs to its end, and what it said is kept."""
    app.begin("/slow", "k").close()
    wait_until(lambda: app.effects().get("/slow k") == 1, "the handler")
    app.go_on()
    wait_until(lambda: app.post("/slow", "k").status == 201, "the response being kept")
    assert app.effects() == {"/slow k": 1}


@pytest.mark.parametrize("app", ON_NODES_OWN, indirect=True)
def test_a_client_that_leaves_before_a_large_response(app):
    """Nobody got it, and it cannot be kept: the result is unknown."""
    held = {"X_On_Expired": "hold"}
    app.begin("/left", "k", **held).close()
    wait_until(lambda: app.post("/left", "k", **held).problem == "unknown-outcome", "the handler's end")
    assert app.effects() == {"/left k": 1}


@each
def test_failures_run_again_and_under_hold_do_not(app):
    """500, 503 and an exception run again under rerun. Under hold a 500 is for an operator, a 503 that says
    Retry-After runs again."""
    for path, status in (("/fail", 500), ("/busy", 503), ("/throw", 500)):
        assert [app.post(path, path.strip("/")).status for _ in range(2)] == [status] * 2
    held = {"X_On_Expired": "hold", "X_Scope": "held"}
    assert app.post("/fail", "h", **held).status == 500
    assert app.post("/fail", "h", **held).problem == "unknown-outcome"
    assert [app.post("/busy", "b", **held).status for _ in range(2)] == [503] * 2
    assert app.effects() == {"/fail fail": 2, "/busy busy": 2, "/throw throw": 2, "/fail h": 1, "/busy b": 2}


@pytest.mark.some(1)
@each
def test_large_responses(app):
    """Over max_response a response is given once, and is gone; so it is over 16 MiB, where it passes."""
    for path, size in (("/large", 2 << 20), ("/huge", 17 << 20)):
        held = {"X_On_Expired": "hold"}
        assert len(app.post(path, path[1:], **held).body) == size
        wait_until(lambda: app.post(path, path[1:], **held).problem == "response-not-kept", f"{path} being gone")
    assert set(app.effects().values()) == {1}


@each
def test_a_response_that_cannot_be_kept(app):
    """The door takes 256 headers. The client is told so, and the result is unknown."""
    held = {"X_On_Expired": "hold"}
    answer = app.post("/odd", "k", **held)
    assert (answer.status, answer.problem) == (502, "upstream-failed") and b"256" in answer.body
    wait_until(lambda: app.post("/odd", "k", **held).problem == "unknown-outcome", "the result being unknown")
    assert app.effects() == {"/odd k": 1}


@pytest.mark.parametrize("app", ["express", "hono"], indirect=True)
def test_a_response_that_another_operation_breaks_off(app):
    """The error of a handler's inner operation says nothing of the outer one, which ran."""
    held = {"X_On_Expired": "hold"}
    answer = app.post("/nested", "k", **held)
    assert (answer.status, answer.problem) == (502, "upstream-failed")
    wait_until(lambda: app.post("/nested", "k", **held).problem == "unknown-outcome", "the result being unknown")
    assert app.effects() == {"/nested k": 1}


@pytest.mark.parametrize("app, path", [*((name, "/destroy") for name in FRAMEWORKS if name != "hono"),
                                       ("express", "/part"), ("parsed", "/part")], indirect=["app"])
def test_a_response_that_is_broken_off(app, path):
    """The client's connection is, too, and the result is unknown. Express does so where an error follows a part."""
    held = {"X_On_Expired": "hold"}
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        app.post(path, "k", **held)
    wait_until(lambda: app.post(path, "k", **held).problem == "unknown-outcome", "the result being unknown")
    assert app.effects() == {f"{path} k": 1}


@pytest.mark.some(1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_door_dies_under_a_handler(framework, make_door, store):
    """Nothing is lost: the handler's response is stored at the next door, and sent."""
    door = make_door(store)
    with App(framework, door) as app:
        first = app.begin("/slow", "k")
        wait_until(lambda: app.effects().get("/slow k") == 1, "the handler")
        door.kill()
        app.go_on()
        door.start()
        first = answer_of(first)
        assert (first.status, first.replayed) == (201, "false") and first.same() == app.post("/slow", "k").same()
        assert app.effects() == {"/slow k": 1}


@pytest.mark.some(1)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_door(framework, make_door):
    """503 with Retry-After, and nothing runs."""
    door = make_door()
    with App(framework, door, HAPAX_TIMEOUT="200") as app:
        door.kill()
        answer = app.post("/pay", "k")
        assert (answer.status, answer.problem, answer.headers["retry-after"]) == (503, "store-unavailable", "1")
        assert app.effects() == {}


@pytest.mark.parametrize("framework", ["express", "hono"])
def test_no_hook_for_requests(framework, make_door):
    """The option `reconcile` is refused, and nothing runs."""
    with App(framework, make_door(), HAPAX_RECONCILE="1", NODE_ENV="production") as app:
        answer = app.post("/pay", "k")
        assert answer.status == 500 and app.effects() == {}


# ---- jobs ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis():
    with Redis() as server:
        server.start()
        yield server


def test_jobs_of_bullmq(redis, make_door):
    """A job runs once per key; a failure is retried as the door says; what is hopeless or unknown fails for good."""
    door = make_door(redis.uri())
    with Program(HERE / "jobs.js", redis.port, HAPAX_DOOR=door.address) as jobs:
        told = jobs(jobs=[["pay", "a"], ["pay", "a"], ["refuse", "b"], ["flaky", "c"], ["unrecoverable", "d"],
                          ["pay", None]])
    results = {key: [(one["state"], one.get("value") or one.get("reason")) for one in told["jobs"] if one["key"] == key]
               for key in (*"abcd", None)}
    assert results["a"] == [("completed", {"paid": "a"})] * 2
    assert results["c"] == [("completed", {"paid": "c"})]
    for key, text in (("b", "hopeless"), ("d", "for good")):
        (state, reason), = results[key]
        assert state == "failed" and reason.startswith("dead: refused") and text in reason
    (state, reason), = results[None]  # its own id is no key of an operation that asks for another
    assert state == "failed" and "no_key" in reason
    assert told["effects"] == {"pay a": 1, "refuse b": 1, "flaky c": 2, "unrecoverable d": 1}


def test_a_worker_of_bullmq_is_killed(redis, make_door):
    """kill -9 of a worker in its handler: under hold the job is parked and its effect happens once; under rerun the
    next worker runs it."""
    door = make_door(redis.uri())
    for policy, effects in (("hold", 1), ("rerun", 2)):
        words = (HERE / "jobs.js", redis.port, f"killed-{policy}", policy)
        with Program(*words, HAPAX_DOOR=door.address) as worker:
            worker.send(jobs=[["hang", "k"]], wait=False)
            assert worker.answer() == {"effect": "hang k"}
            worker.process.send_signal(signal.SIGKILL)
            worker.process.wait(PATIENCE)
        with Program(*words, HAPAX_DOOR=door.address) as worker:
            worker.send(watch=1)
            said = [worker.answer() for _ in range(effects)]
        if policy == "hold":
            assert said[0]["state"] == "failed" and said[0]["reason"].startswith("park: unknown"), said
        else:
            assert said[0] == {"effect": "hang k"} and said[1]["state"] == "completed", said


KEYS, KILLS = (int(os.environ.get(f"HAPAX_NODE_{name}", default)) for name, default in (("KEYS", 60), ("KILLS", 6)))


@pytest.mark.ci
@pytest.mark.parametrize("policy", ["hold", "rerun"])
def test_a_storm_on_bullmq(redis, make_door, folder, policy):
    """kill -9 of workers and of the door at random moments: under hold no effect happens twice, and what is not known
    is parked; under rerun every job completes, and an effect is repeated by a later attempt alone."""
    door, effects, kills = make_door(redis.uri()), folder / "effects", {"worker": 0, "door": 0}
    words = [NODE, HERE / "storm.js", str(redis.port), f"storm-{policy}", policy, effects]
    effects.touch()
    with contextlib.ExitStack() as stack:
        def start(*more, **how):
            process = subprocess.Popen([*words, *more], text=True, env=env(HAPAX_DOOR=door.address), **how)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        watch = start(str(KEYS), stdout=subprocess.PIPE)
        assert read_line(watch) == "added\n"
        workers = [start(), start()]
        for number in range(KILLS):
            before = effects.stat().st_size
            wait_until(lambda: effects.stat().st_size > before or watch.poll() is not None, "another effect")
            if number % 3 == 2:
                kills["door"] += 1
                door.kill()
                door.start()
            else:
                kills["worker"] += 1
                workers[number % 2].kill()
                workers[number % 2] = start()
        told = json.loads(read_line(watch))
    seen = [line.split() for line in effects.read_text().splitlines()]
    twice = len(seen) - len({key for key, _ in seen})
    print(f"{policy}: {kills}, {len(seen)} effects, {twice} of them again, {len(told['reasons'])} jobs failed")
    if policy == "hold":
        assert twice == 0 and all(reason.startswith("park: unknown") for reason in told["reasons"]), told
        assert told["completed"] + len(told["reasons"]) == 2 * KEYS
    else:
        assert told == {"completed": 2 * KEYS, "reasons": []} and len({key for key, _ in seen}) == KEYS
        assert len({(key, attempt) for key, attempt in seen}) == len(seen) and twice <= 5 * sum(kills.values())


# ---- the example ---------------------------------------------------------------------------------


def test_the_example_runs_below_a_door(hapax, store):
    """sdk/node/example.mjs with `hapax door -- node`: a refund happens once, however often it is asked for."""
    done = hapax.run(HAPAX, "door", "--store", store, "--listen", f"unix:{hapax.folder}/door.sock", "--", NODE,
                     ROOT / "sdk/node/example.mjs", "order-17", "500")
    assert done.code == 0, done.err
    assert done.out.splitlines()[1:] == ["re_1 for order-17", "re_1 for order-17", "1 refund was made"]
    again = hapax.run(HAPAX, "door", "--store", store, "--listen", f"unix:{hapax.folder}/door.sock", "--", NODE,
                      ROOT / "sdk/node/example.mjs", "order-17", "600")
    assert "order-17 was asked for with another amount" in again.out, again.err + again.out


def test_the_readme_shows_what_runs():
    """The code of the README's first minute is the example's."""
    page = (ROOT / "sdk/node/README.md").read_text()
    example = (ROOT / "sdk/node/example.mjs").read_text()
    first = page.split("```js\n")[1].split("```")[0]
    assert [line for line in first.splitlines() if line and line not in example] == []
