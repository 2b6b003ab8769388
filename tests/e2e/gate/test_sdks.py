"""The gate's own answers, as SDKs that nobody here wrote understand them: Stripe's for Node and Python, gRPC's for
Python. tools/clients/fetch brings them; that it cannot is a failure here.
"""
import json
import pathlib
import shutil
import subprocess

import pytest

import gate as g
from conftest import PATIENCE, ROOT, read_line, wait_until

SCRIPTS = pathlib.Path(__file__).with_name("clients")


@pytest.fixture(scope="module")
def clients():
    done = subprocess.run([ROOT / "tools/clients/fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          check=False)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def python(clients, script, *words):
    found, = clients.glob("python-*")
    return ["env", f"PYTHONPATH={found}", "/usr/bin/python3", "-B", SCRIPTS / script, *map(str, words)]


# ---- Stripe's ------------------------------------------------------------------------------------


@pytest.fixture(params=["node", "python"])
def shop(request, clients):
    """Begins a shop on the SDK, which makes calls; what it returns waits for the results."""
    def begin(port, *calls, retries=0):
        words = [str(port), json.dumps(calls), str(retries)]
        if request.param == "python":
            command = python(clients, "stripe_shop.py", *words)
        else:
            module, = clients.glob("node-*/node_modules/stripe/esm/stripe.esm.node.js")
            command = [shutil.which("node"), SCRIPTS / "stripe_shop.mjs", module, *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

        def results():
            out, err = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, err
            return json.loads(out)

        return results

    begin.name = request.param
    return begin


def stripes(api, uri, template):
    """A gate before an API of Stripe's kind, and one whose store is away."""
    return f"""
        hapax on; {template}
        server {{ LISTEN hapax_on_expired hold; location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}
        server {{ listen 127.0.0.1:DOWN; hapax_store {uri}.away; hapax_timeout 200ms;
                  location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}"""


@pytest.mark.parametrize("template", ["hapax_problem_template stripe;", pytest.param("", marks=pytest.mark.ci)])
def test_stripes_sdks_see_errors(shop, make_gate, api, uri, template):
    """402, 409 (in flight, unknown), 422, 502 and 503 are exceptions with status, type and code; one charge for each
    key that was charged."""
    down = g.free_port()
    gate = make_gate(stripes(api, uri, template).replace("DOWN", str(down))).start()
    first = shop(gate.port, [100, "held", "held"])
    wait_until(lambda: api.count("held") == 1, "the charge")
    calls = [(100, "ok", "k"), (100, "ok", "k"), (200, "ok", "k"), (100, "declined", "d"), (100, "declined", "d"),
             (100, "held", "held"), (100, "dropped", "u"), (100, "dropped", "u")]
    told = shop(gate.port, *calls)()
    assert told[:2] == [{"id": "ch_k_1"}, {"id": "ch_k_1"}]
    kind = {"node": "StripeIdempotencyError", "python": "APIError"}[shop.name]
    broken = {"node": "StripeAPIError", "python": "APIError"}[shop.name]
    card = {"node": "StripeCardError", "python": "CardError"}[shop.name]
    expected = [(422, kind, "idempotency_error", "fingerprint-mismatch"), (402, card, "card_error", "card_declined"),
                (402, card, "card_error", "card_declined"), (409, kind, "idempotency_error", "in-flight"),
                (502, broken, "api_error", "upstream-failed"), (409, kind, "idempotency_error", "unknown-outcome")]
    assert [(t["status"], t["name"], t["type"], t["code"]) for t in told[2:]] == expected
    assert told[2]["message"] == ("Idempotency key was used for another request. The key names an operation whose "
                                  "request was another.")
    away, = shop(down, [100, "ok", "away"])()
    assert (away["status"], away["name"], away["code"]) == (503, broken, "store-unavailable")
    api.door("charge").set()
    assert first() == [{"id": "ch_held_1"}]
    assert {key: api.count(key) for key in ("k", "d", "held", "u", "away")} == {"k": 1, "d": 1, "held": 1, "u": 1,
                                                                               "away": 0}


@pytest.mark.some(1)
def test_a_lock_that_asks_for_a_retry_is_tried_again(shop, make_gate, api, uri):
    """409 with Stripe-Should-Retry, as Stripe's API answers a lock: the SDK's own retry makes the charge."""
    gate = make_gate(stripes(api, uri, "").replace("DOWN", str(g.free_port()))).start()
    assert shop(gate.port, (100, "locked once", "k"), retries=2)() == [{"id": "ch_k_2"}]
    assert api.count("k") == 2


@pytest.mark.some(1)
def test_stripes_retries_outlive_a_crash(shop, serve, api):
    """With the SDKs' two retries, and a wait over the lease as docs/retries.md has it: the first attempt is cut off,
    and the SDK's next request waits for its lease and is run."""
    served = serve("--lease", "1s", "--wait", "30s")
    assert shop(served.port, (100, "dropped once", "k"), retries=2)() == [{"id": "ch_k_2"}]
    assert api.count("k") == 2


# ---- gRPC -----------------------------------------------------------------------------------------


@pytest.fixture
def calls(make_gate, clients, hapax, uri):
    """Runs a case of clients/grpc_calls.py through a gate."""
    upstream = g.free_port()
    gate = make_gate(f"""
        hapax on;
        server {{ LISTEN
            location / {{ grpc_pass grpc://127.0.0.1:{upstream}; }}
            location /shop.Keyed/ {{ hapax required; grpc_pass grpc://127.0.0.1:{upstream}; }}
            location /shop.Slow/ {{ grpc_read_timeout 300ms; grpc_pass grpc://127.0.0.1:{upstream}; }}
            location /shop.Dead/ {{ grpc_pass grpc://127.0.0.1:1; }}
            location /shop.Down/ {{ hapax_store {uri}.away; hapax_timeout 200ms;
                                    grpc_pass grpc://127.0.0.1:{upstream}; }}
            location = /status {{ hapax off; hapax_status; }}
        }}""").start()

    def begin(case):
        begin.process = subprocess.Popen(python(clients, "grpc_calls.py", case, gate.h2_port, upstream), text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        return begin

    def result():
        out, err = begin.process.communicate(timeout=PATIENCE)
        assert begin.process.returncode == 0, err
        return json.loads(out)

    begin.result, begin.gate = result, gate
    yield begin
    begin.process.kill()
    begin.process.communicate()


def test_grpc_clients_see_a_status(calls):
    """What the gate answers by itself has a status of gRPC's and a message; calls without a key pass."""
    told = calls("refusals").result()
    assert told.pop("again") == ["OK", "1:1", "true"]
    assert told.pop("no key")[:2] == ["OK", "1:1"]
    assert {name: code for name, (code, _) in told.items()} == {
        "mismatch": "INVALID_ARGUMENT", "malformed": "INVALID_ARGUMENT", "missing": "INVALID_ARGUMENT",
        "in flight": "ABORTED", "dead": "UNAVAILABLE", "late": "UNAVAILABLE", "down": "UNAVAILABLE"}
    assert told["mismatch"][1].startswith("Idempotency key was used for another request. ")
    assert told["dead"][1].endswith("Nothing was run.") and told["late"][1].startswith("The service took too long. ")


def test_a_grpc_deadline_does_not_end_what_runs_once(calls):
    """The client gives up; the handler has no deadline, runs to its end, and the next call gets its response. Without a
    key the deadline is passed on."""
    told = calls("deadline").result()
    assert told["first"][0] == "DEADLINE_EXCEEDED"
    assert (told["deadlines"], told["active"], told["without a key"]) == (False, True, True)
    assert (told["again"][0], told["again"][2], told["runs"]) == ("OK", "true", 1)


def test_a_retry_policy_of_grpc_heeds_in_flight(calls):
    """A client whose policy retries ABORTED sees one successful call, and the operation ran once."""
    def refused():
        page = json.loads(calls.gate.send("GET", "/status?format=json").body)
        return page["answers"]["in_flight"] > 0

    case = calls("retry")
    assert read_line(case.process) == "held\n"
    wait_until(refused, "a refusal of the repeat")
    case.process.stdin.write("\n")
    case.process.stdin.flush()
    told = calls.result()
    assert (told["first"], told["again"], told["runs"]) == (["OK", "1:hold", "false"], ["OK", "1:hold", "true"], 1)


def test_a_grpc_stream_of_responses_is_replayed(calls):
    """A call with one request and many responses is an operation like any other."""
    told = calls("stream").result()
    assert told == {"first": [["1:0", "1:1", "1:2"], "false"], "again": [["1:0", "1:1", "1:2"], "true"], "runs": 1}
