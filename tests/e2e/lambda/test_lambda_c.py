"""A function in C that is its own runtime (examples/lambda.c), and the layer that tools/lambda-layer packs."""
import json
import os
import subprocess

import pytest

import lambda_bed as bed
from conftest import BUILD, ROOT, wait_until
from process import free_port
from redis_server import Redis

EXAMPLE = BUILD / "examples/lambda"


@pytest.fixture
def redis():
    with Redis().start() as server:
        yield server


@pytest.fixture
def function(hapax, redis):
    """The example in sandboxes; all end with the test."""
    started = []

    def start(**env):
        one = bed.Function(hapax, "", "", command=[str(EXAMPLE)], bare=True, HAPAX_STORE=redis.uri(timeout="30s"),
                           LEDGER=str(hapax.folder / "ledger"), AWS_LAMBDA_FUNCTION_NAME="orders", **env)
        started.append(one)
        return one.__enter__()

    yield start
    for one in started:
        one.end()


def ledger(one):
    return one.lines("ledger")


def served(one, event):
    """The answer that it gives where the store answers in time: the example waits two seconds."""
    answers = []

    def reached():
        answers.append(one.invoke(event))
        return b"store-unavailable" not in answers[-1].body and answers[-1].error_type != "Hapax.StoreUnavailable"

    wait_until(reached, "the store being reached")
    return answers[-1]


def test_a_request_takes_effect_once(function):
    """Status, headers and body are the handler's; a repeat in a new sandbox is replayed."""
    one = function()
    event = bed.gateway_v2('{"id":"a"}', "k")
    first = served(one, event)
    assert first.json["statusCode"] == 201 and json.loads(first.json["body"]) == {"taken_by_attempt": 1}
    assert bed.header_of(first, "Idempotency-Replayed") == "false"
    again = served(one.cold(), event)
    assert again.json["body"] == first.json["body"] and bed.header_of(again, "Idempotency-Replayed") == "true"
    assert bed.header_of(again, "Content-Type") == "application/json"
    assert len(ledger(one)) == 1
    other = served(one, bed.gateway_v2('{"id":"b"}', "k"))
    assert (other.json["statusCode"], bed.problem_of(other)) == (422, "fingerprint-mismatch")


def test_records_run_one_by_one(function):
    """Each is an operation; those that are done are not run again beside new ones."""
    one = function()
    for event in bed.sqs("a", "b"), bed.sqs("b", "c", "a"):
        wait_until(lambda: one.invoke(event).json == {"batchItemFailures": []}, "all of them being done")
    assert [json.loads(line)["messageId"] for line in ledger(one)] == ["m-a", "m-b", "m-c"]


def test_a_handler_that_cannot_run_reports_its_records(function):
    """NOT_RUN: they come again, and run once it can; a plain event is an error of the invocation."""
    one = function()
    (one.folder / "ledger").mkdir()
    event = bed.sqs("a", "b")
    assert [item["itemIdentifier"] for item in one.invoke(event).json["batchItemFailures"]] == ["m-a", "m-b"]
    failed = served(one, {"id": "k"})
    assert failed.kind == "error" and failed.error_type == "Hapax.HandlerFailed"
    (one.folder / "ledger").rmdir()
    wait_until(lambda: one.invoke(event).json == {"batchItemFailures": []}, "all of them being done")
    assert len(ledger(one)) == 2


def test_it_ends_when_it_is_told_to(function):
    """SIGTERM while it waits for an event."""
    one = function()
    one.invoke({"id": "k"})
    one.sandbox.process.terminate()
    assert one.sandbox.wait() == 0


# ---- the layer --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("layer")
    subprocess.run([ROOT / "tools/lambda-layer", folder], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "HAPAX_BUILD": str(BUILD)})
    return folder


def test_a_function_behind_the_layer_runs_once(hapax, redis, layer):
    """AWS_LAMBDA_EXEC_WRAPPER with nothing but variables."""
    with bed.Function(hapax, "", "echo", command=[str(layer / "hapax-wrapper"), *bed.PYTHON, "echo"], bare=True,
                      HAPAX_STORE=redis.uri(), HAPAX_KEY="/id", HAPAX_LISTEN=f"127.0.0.1:{free_port()}") as one:
        bed.agree(one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}))
        assert one.effects() == {"k": 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="a new root is for root")
def test_the_layer_needs_nothing_of_its_system(layer):
    """In a root where there is nothing else: hapax starts, and so does its child."""
    loader = next((layer / "hapax/lib").glob("ld-linux*")).name
    hapax = [f"/hapax/lib/{loader}", "--library-path", "/hapax/lib", "/hapax/bin/hapax"]
    done = subprocess.run(["/usr/sbin/chroot", layer, *hapax, "lambda",
                           "--store", "memory:", "--", *hapax, "--version"],
                          capture_output=True, text=True, env={"AWS_LAMBDA_RUNTIME_API": "127.0.0.1:1"})
    assert done.returncode == 0 and done.stdout.startswith("hapax "), done
