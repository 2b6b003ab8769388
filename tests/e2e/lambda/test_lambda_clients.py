"""hapax lambda behind AWS's own runtime clients, Node's and Python's, on a fake Runtime API. tools/lambda/fetch brings
the clients; that it cannot is a failure here.
"""
import contextlib
import pathlib
import shutil
import subprocess

import pytest

from conftest import ROOT
from lambda_bed import FUNCTIONS, Function, agree, gateway_v2, header_of, redelivered, reported, sqs


@pytest.fixture(scope="module")
def clients():
    done = subprocess.run([ROOT / "tools/lambda/fetch"], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stderr
    return pathlib.Path(done.stdout.strip())


def command_of(client, clients, handler):
    """The command, and what it needs in its environment."""
    if client == "node":
        found, = clients.glob("node-*/node_modules/aws-lambda-ric/bin/index.mjs")
        return [shutil.which("node"), str(found), f"handler.{handler}"], {}
    found, = clients.glob("python-*")
    return ["/usr/bin/python3", "-B", "-m", "awslambdaric", f"handler.{handler}"], {"PYTHONPATH": str(found)}


@pytest.fixture(params=["node", "python"])
def function(request, hapax, store, clients):
    with contextlib.ExitStack() as stack:
        def start(*options, handler="handle", key="/id", bare=False):
            for name in "handler.mjs", "handler.py":
                shutil.copy(FUNCTIONS / name, hapax.folder / name)
            command, env = command_of(request.param, clients, handler)
            env |= {"AWS_LAMBDA_FUNCTION_NAME": "f", "AWS_LAMBDA_FUNCTION_VERSION": "1", "AWS_REGION": "eu-west-1",
                    "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "128", "_HANDLER": f"handler.{handler}",
                    "LAMBDA_TASK_ROOT": str(hapax.folder),
                    "AWS_LAMBDA_LOG_GROUP_NAME": "g", "AWS_LAMBDA_LOG_STREAM_NAME": "s"}
            return stack.enter_context(Function(hapax, store, handler, *(["--key", key] if key else []), *options,
                                                command=command, bare=bare, **env))

        yield start


def test_the_client_alone_runs_a_repeat_twice(function):
    """That the fake is enough for it, and that hapax makes the difference."""
    one = function(bare=True)
    assert one.invoke({"id": "k"}).json["run"] != one.invoke({"id": "k"}).json["run"]
    assert one.effects() == {"k": 2}


def test_a_repeat_is_replayed_by_the_same_process_and_by_the_next(function):
    """One effect; what the client sees of the context is the service's."""
    one = function()
    first, again = one.invoke({"id": "k"}, id="r-1"), one.invoke({"id": "k"})
    assert (first.json["text"], first.json["id"], first.json["left"]) == ("grüße", "r-1", True)
    agree(first, again, one.cold().invoke({"id": "k"}))
    for i in range(20):
        agree(one.invoke({"id": f"k{i}"}), one.invoke({"id": f"k{i}"}))
    assert set(one.effects().values()) == {1} and len(one.effects()) == 21


def test_an_error_passes_and_runs_again(function):
    """With the type and the trace that the client gave it."""
    one = function()
    one.file("fails")
    failed = one.invoke({"id": "k"})
    assert failed.kind == "error" and failed.json["errorType"] == "Unlucky"
    assert failed.json.get("stackTrace") or failed.json.get("trace")
    assert "Unlucky" in failed.headers["lambda-runtime-function-xray-error-cause"]
    one.gone("fails")
    agree(one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}))
    assert one.effects() == {"k": 2}


def test_an_http_event_is_answered_once(function):
    one = function(key=None)
    first, again = (one.invoke(gateway_v2('{"id":"a"}', "k")) for _ in range(2))
    assert (first.json["statusCode"], again.json["statusCode"], again.json["body"]) == (201, 201, "grüße")
    assert header_of(first, "X-Run") == header_of(again, "X-Run")
    assert (header_of(first, "Idempotency-Replayed"), header_of(again, "Idempotency-Replayed")) == ("false", "true")
    assert one.effects() == {"a": 1}


def test_a_batch_is_taken_apart(function):
    one = function(key=None)
    assert reported(one.invoke(sqs("a", "b"))) == []
    assert redelivered(sqs("a", "b", "c"), one.invoke(sqs("a", "b", "c"))) is None
    assert one.effects() == {"a": 1, "b": 1, "c": 1}


def test_killed_between_storing_and_posting(function):
    """The new process of the same client answers from the store."""
    one = function()
    with one.api.hold("response") as held:
        one.api.invoke({"id": "k"})
        held.wait()
        one.sandbox.kill()
    one.sandbox.ready()
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


@pytest.mark.parametrize("function", ["node"], indirect=True)
def test_a_stream_of_the_client_is_passed_on(function):
    """Its chunks and its trailers; a repeat is not run."""
    one = function(handler="stream")
    answer = one.invoke({"id": "k"})
    assert answer.streaming and answer.whole and answer.body.startswith(b"first ") and answer.body.endswith(b" second")
    assert one.invoke({"id": "k"}).error_type == "Hapax.ResponseNotKept"
    assert one.effects() == {"k": 1}
