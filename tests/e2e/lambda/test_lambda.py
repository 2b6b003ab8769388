"""hapax lambda between a function and a fake Runtime API (tests/servers/lambda_api.py): what the function gets, what
the service gets, and how often it took effect. Batches, kills and real clients have files of their own.
"""
import base64
import contextlib
import json
import os
import pathlib
import re
import signal
import time

import pytest

import lambda_bed as bed
import tenants
from conftest import at_some_pace, wait_until
from lambda_bed import HTTP, Function, agree, header_of, problem_of
from process import free_port
from proxy import Proxy


@pytest.fixture
def function(hapax, store):
    """Starts one: function(NAME, OPTION…); its key is /id unless it is said."""
    with contextlib.ExitStack() as stack:
        def start(name, *options, key="/id", store=store, **more):
            return stack.enter_context(Function(hapax, store, name, *(["--key", key] if key else []), *options, **more))

        yield start


@pytest.fixture
def redis():
    return bed.redis_server()


def refused(answer, word):
    """An invocation error of ours, of a type that says so, with no word of a key in it."""
    assert answer.kind == "error", answer
    assert answer.json["errorType"] == answer.error_type and answer.error_type == f"Hapax.{word}", answer
    assert answer.json["errorMessage"] and "secret-key" not in answer.body.decode(), answer
    return True


# ---- run, and repeat --------------------------------------------------------------------------


def test_the_fake_alone_runs_a_repeat_twice(function):
    """Without hapax both run: what the other tests see is not the fake's doing."""
    one = function("echo", bare=True)
    first, again = one.invoke({"id": "k"}), one.invoke({"id": "k"})
    assert first.body != again.body and one.effects() == {"k": 2}


@pytest.mark.parametrize("api", [{}, {"chunked": True}, {"lower": True}], ids=["plain", "chunked", "lower-case"])
def test_a_repeat_is_replayed_in_the_same_process_and_after_a_cold_start(function, api):
    """One effect, and the same bytes, three times; another key runs."""
    one = function("echo", api=bed.lambda_api.Api(**api))
    event = {"id": "k", "text": "grüße", "deep": {"a": [1, 2.50, None]}}
    first, again = one.invoke(event), one.invoke(event)
    assert first.json["event"] == event
    agree(first, again, one.cold().invoke(event))
    assert one.invoke({"id": "k2"}).json["event"] == {"id": "k2"}
    assert one.effects() == {"k": 1, "k2": 1}
    assert first.headers["content-type"] == "application/json"


def test_a_retry_with_the_same_request_id_is_a_repeat_too(function):
    """As Lambda retries asynchronous invocations."""
    one = function("echo")
    agree(one.invoke({"id": "k"}, id="r-1"), one.invoke({"id": "k"}, id="r-1"))
    assert one.effects() == {"k": 1}


def test_the_function_gets_the_event_and_its_headers_unchanged(function):
    """Each Lambda-Runtime-* header with its value, and the bytes of the event; the variable of the runtime is the only
    one that is changed."""
    one = function("seen", AWS_LAMBDA_FUNCTION_NAME="f", _HANDLER="app.handler", LAMBDA_TASK_ROOT="/var/task")
    context = base64.b64encode(b'{"custom":{"a":"b"}}').decode()
    event = b'{ "id" : "k",\n"n": 1.0 }\n'
    invocation = one.api.invoke(event, Lambda_Runtime_Client_Context=context,
                                Lambda_Runtime_Cognito_Identity='{"a":"b"}',
                                Lambda_Runtime_Something_New="odd: value")
    seen = invocation.wait().json
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert seen["length"] == len(event)
    assert headers["lambda-runtime-aws-request-id"] == invocation.id
    assert headers["lambda-runtime-client-context"] == context
    assert headers["lambda-runtime-cognito-identity"] == '{"a":"b"}'
    assert headers["lambda-runtime-something-new"] == "odd: value"
    assert headers["lambda-runtime-trace-id"].startswith("Root=1-")
    assert headers["lambda-runtime-invoked-function-arn"].startswith("arn:aws:lambda:")
    assert int(headers["lambda-runtime-deadline-ms"]) > 0
    env = seen["env"]
    assert env["AWS_LAMBDA_RUNTIME_API"] == f"127.0.0.1:{one.port}"
    assert (env["AWS_LAMBDA_FUNCTION_NAME"], env["_HANDLER"],
            env["LAMBDA_TASK_ROOT"]) == ("f", "app.handler", "/var/task")


def test_an_event_of_the_same_key_and_another_payload_is_a_mismatch(function):
    """Nothing runs, and the error tells which; the first answer stands."""
    one = function("echo")
    first = one.invoke({"id": "secret-key", "n": 1})
    assert refused(one.invoke({"id": "secret-key", "n": 2}), "FingerprintMismatch")
    agree(first, one.invoke({"id": "secret-key", "n": 1}))
    assert one.effects() == {"secret-key": 1}


def test_what_the_fingerprint_leaves_out_may_differ(function):
    """--fingerprint takes of the event what it says."""
    one = function("echo", "--fingerprint", "json -/sent")
    agree(one.invoke({"id": "k", "sent": 1}), one.invoke({"sent": 2, "id": "k"}))


def test_an_event_without_a_key_runs_unprotected(function):
    """Each time, and none of them is kept."""
    one = function("echo")
    assert one.invoke({"n": 1}).body != one.invoke({"n": 1}).body
    assert one.invoke([1, 2]).json["event"] == [1, 2]
    assert one.invoke(b"").kind in ("response", "error")
    assert one.effects()["none"] == 2


def test_scopes_part_keys_and_scopes_join_functions(function, redis):
    """Two functions of one scope are one; another scope is another operation."""
    uri = redis.uri()
    one, two = function("echo", "--scope", "a", store=uri), function("echo", "--scope", "a", store=uri)
    three = function("echo", "--scope", "b", store=uri)
    agree(one.invoke({"id": "k"}), two.invoke({"id": "k"}))
    assert three.invoke({"id": "k"}).kind == "response"
    assert one.effects() == {"k": 2}  # they share a folder


# ---- duplicates at the same time ----------------------------------------------------------------


def test_a_duplicate_in_flight_elsewhere_is_refused_and_its_retry_replayed(function, redis):
    """Two sandboxes, one store: an error that lets the caller try again."""
    one, two = function("slow", store=redis.uri()), function("echo", store=redis.uri())
    running = one.begin({"id": "k"})
    one.wait_lines("effects", 1)
    assert refused(two.invoke({"id": "k"}), "InFlight")
    one.file("go")
    agree(running.wait(), two.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_a_duplicate_in_flight_waits_where_it_should(function, redis):
    """--wait: the answer of the one that runs, as soon as it is there."""
    one, two = function("slow", store=redis.uri()), function("echo", "--wait", "20s", store=redis.uri())
    running = one.begin({"id": "k"})
    one.wait_lines("effects", 1)
    waiting = two.begin({"id": "k"})
    assert not waiting.finished.wait(0.3)
    one.file("go")
    agree(running.wait(), waiting.wait())
    assert one.effects() == {"k": 1}


def test_waiting_ends_before_the_deadline(function, redis):
    """However long --wait is: an invocation that times out takes the sandbox with it."""
    one, two = function("slow", store=redis.uri()), function("echo", "--wait", "10m", store=redis.uri())
    one.begin({"id": "k"}, deadline_s=600)
    one.wait_lines("effects", 1)

    def ends(seconds):
        waiting = two.api.invoke({"id": "k"}, deadline_s=seconds)
        in_time = waiting.finished.wait(seconds)
        assert refused(waiting.wait(), "InFlight")
        assert in_time, "it waited past the deadline"

    at_some_pace(ends, 1.5, *[4] * 4)  # it ends a second before, at any length


def test_several_invocations_run_beside_each_other(function):
    """AWS_LAMBDA_MAX_CONCURRENCY: their answers do not mix, and two of one key run once."""
    one = function("forked", words=["4"], api=bed.lambda_api.Api(at_once=4), AWS_LAMBDA_MAX_CONCURRENCY="4")
    running = [one.begin({"id": f"k{i}"}) for i in range(3)]
    one.wait_lines("effects", 3)
    assert refused(one.invoke({"id": "k0"}), "InFlight")
    one.file("go")
    answers = [invocation.wait() for invocation in running]
    assert [answer.json["event"]["id"] for answer in answers] == ["k0", "k1", "k2"]
    again = [one.begin({"id": f"k{i}"}) for i in range(3)]
    for first, repeat in zip(answers, again):
        agree(first, repeat.wait())
    assert one.effects() == {"k0": 1, "k1": 1, "k2": 1}


def test_where_code_outlives_the_deadline_its_claim_is_renewed(function):
    """Managed Instances: Lambda answers the caller, and the function goes on. It must not have a second beside it."""
    one = function("forked", words=["4"], api=bed.lambda_api.Api(at_once=4), AWS_LAMBDA_MAX_CONCURRENCY="4")
    over = time.monotonic() + 3  # the lease of a sandbox that is killed would end after two seconds
    running = one.begin({"id": "k"}, deadline_s=1)
    one.wait_lines("effects", 1)
    while time.monotonic() < over:
        assert refused(one.invoke({"id": "k"}), "InFlight")
    one.file("go")
    agree(running.wait(), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


# ---- errors of the function ---------------------------------------------------------------------


def test_an_error_passes_and_a_retry_runs_again(function):
    """on_failed retry, the default: the error is the function's own, byte for byte."""
    one = function("fail")
    one.file("fails")
    failed = one.invoke({"id": "k"})
    assert (failed.kind, failed.error_type, failed.json["errorType"]) == ("error", "Unlucky", "Unlucky")
    one.gone("fails")
    done = one.invoke({"id": "k"})
    assert done.json["event"] == {"id": "k"}
    agree(done, one.cold().invoke({"id": "k"}))
    assert one.effects() == {"k": 2}


def test_on_failed_replay_gives_the_same_error_again(function):
    """The body and the type of the first; nothing runs."""
    one = function("fail", "--on-failed", "replay")
    one.file("fails")
    failed = one.invoke({"id": "k"})
    one.gone("fails")
    for again in one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}):
        assert (again.kind, again.error_type, again.body) == ("error", "Unlucky", failed.body)
    assert one.effects() == {"k": 1}


def test_on_failed_hold_waits_for_an_operator(function, hapax, store):
    """A failed operation is unknown until it is resolved, and runs again once it is."""
    one = function("fail", "--on-failed", "hold")
    one.file("fails")
    assert one.invoke({"id": "k"}).error_type == "Unlucky"
    one.gone("fails")
    assert refused(one.invoke({"id": "k"}), "UnknownOutcome")
    assert hapax("resolve", "--store", store, "k", "--fail").code == 0
    assert one.invoke({"id": "k"}).kind == "response"
    assert one.effects() == {"k": 2}


def test_attempts_used_up_give_the_last_error(function):
    """--attempts-max: after so many the function is not asked again."""
    one = function("fail", "--attempts-max", "2")
    one.file("fails")
    answers = [one.invoke({"id": "k"}) for _ in range(4)]
    assert [answer.kind for answer in answers] == ["error"] * 4
    assert one.effects() == {"k": 2}
    assert answers[0].body != answers[1].body
    assert answers[2].body == answers[3].body


def test_an_answer_of_any_bytes_is_replayed_as_it_was(function):
    """No JSON, with zeros, in chunks."""
    one = function("octets")
    first, again = one.invoke({"id": "k"}), one.cold().invoke({"id": "k"})
    assert first.body == again.body and first.body.startswith(bytes(range(256)))
    assert one.effects() == {"octets": 1}


def test_a_response_in_chunks_is_stored_as_one(function):
    """Transfer-Encoding is no streaming mode."""
    one = function("chunky")
    agree(one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


# ---- behind HTTP ----------------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", HTTP)
def test_a_request_with_a_key_is_answered_once(function, kind):
    """The gate's statuses and headers as a proxy response; cookies are of the first answer only."""
    one = function("http", key=None)
    make = HTTP[kind]
    first, again = one.invoke(make('{"id":"a"}', "k")), one.cold().invoke(make('{"id":"a"}', '"k"'))
    assert (header_of(first, "Idempotency-Replayed"), header_of(again, "Idempotency-Replayed")) == ("false", "true")
    assert (first.json["statusCode"], again.json["statusCode"]) == (200, 200)
    assert first.json["body"] == again.json["body"] and header_of(again, "X-Run") == header_of(first, "X-Run")
    assert "a=b" in first.body.decode() and "a=b" not in again.body.decode()
    assert "session=secret" in first.body.decode() and "session=secret" not in again.body.decode()
    assert one.effects() == {"a": 1}


@pytest.mark.some(1)
@pytest.mark.parametrize("kind", HTTP)
def test_requests_are_refused_as_the_gate_refuses_them(function, kind, hapax, store):
    """Problem documents with the gate's statuses: no key, a bad key, two keys, another body."""
    one = function("http", "--scope", "api", key=None)
    make = HTTP[kind]
    assert one.invoke(make('{"id":"a"}', "k")).json["statusCode"] == 200
    mismatch = one.invoke(make('{"id":"b"}', "k"))
    assert (mismatch.json["statusCode"], problem_of(mismatch)) == (422, "fingerprint-mismatch")
    assert header_of(mismatch, "Content-Type") == "application/problem+json"
    told = json.loads(mismatch.json["body"])
    assert (told["error"]["type"], told["error"]["code"]) == ("idempotency_error", "fingerprint-mismatch")
    shown = hapax("show", "--store", store, "--id", told["instance"], "--json")
    assert shown.json["state"] == "completed", shown.err
    for bad in "two words", '"open', "a, b", "":
        answer = one.invoke(make('{"id":"c"}', bad))
        assert (answer.json["statusCode"], problem_of(answer)) == (400, "bad-key"), bad
    unprotected = one.invoke(make('{"id":"d"}'))
    assert unprotected.json["statusCode"] == 200 and header_of(unprotected, "Idempotency-Replayed") is None
    assert one.effects() == {"a": 1, "d": 1}


def test_the_path_and_the_method_are_of_the_fingerprint(function):
    """As at the gate: the same key for another request is a mistake."""
    one = function("http", key=None)
    assert one.invoke(bed.gateway_v2('{"id":"a"}', "k")).json["statusCode"] == 200
    for other in ({"path": "/other"}, {"method": "PUT"}):
        assert problem_of(one.invoke(bed.gateway_v2('{"id":"a"}', "k", **other))) == "fingerprint-mismatch"


def put(event, path, value):
    """The event with a value at a path, as requestContext/identity/apiKeyId."""
    *names, last = path.split("/")
    at = event
    for name in names:
        at = at.setdefault(name, {})
    at[last] = value
    return event


CREDENTIALS = {
    "authorization": (bed.gateway_v2, "headers/authorization", "Bearer a", "Bearer b"),
    "a-list-of-values": (bed.gateway_v1, "multiValueHeaders/Authorization", ["Bearer a"], ["Bearer b"]),
    "cookie": (bed.gateway_v1, "multiValueHeaders/Cookie", ["session=a"], ["session=b"]),
    "cookies": (bed.gateway_v2, "cookies", ["theme=dark", "session=a"], ["theme=dark", "session=b"]),
    "x-api-key": (bed.balancer, "headers/x-api-key", "a", "b"),
    "api-key": (bed.gateway_v2, "headers/api-key", "a", "b"),
    "x-auth-token": (bed.gateway_v2, "headers/x-auth-token", "a", "b"),
    "x-access-token": (bed.gateway_v2, "headers/x-access-token", "a", "b"),
    "usage-plan": (bed.gateway_v1, "requestContext/identity/apiKeyId", "a", "b"),
    "simple-authorizer": (bed.gateway_v2, "requestContext/authorizer/lambda", {"tenant": "a"}, {"tenant": "b"}),
    "authorizer-s-context": (bed.gateway_v1, "requestContext/authorizer", {"principalId": "user", "tenant": "a"},
                             {"principalId": "user", "tenant": "b"}),
    "principal": (bed.gateway_v1, "requestContext/authorizer/principalId", "a", "b"),
    "jwt": (bed.gateway_v2, "requestContext/authorizer/jwt/claims/sub", "a", "b"),
    "claims": (bed.gateway_v1, "requestContext/authorizer/claims/sub", "a", "b"),
    "iam": (bed.gateway_v2, "requestContext/authorizer/iam/userArn", "arn:aws:iam::1:user/a", "arn:aws:iam::1:user/b"),
    "certificate": (bed.gateway_v1, "requestContext/identity/clientCert", {"serialNumber": "a"}, {"serialNumber": "b"}),
    "certificate-2.0": (bed.gateway_v2, "requestContext/authentication/clientCert", {"serialNumber": "a"},
                         {"serialNumber": "b"}),
    "certificate-balancer": (bed.balancer, "headers/x-amzn-mtls-clientcert-leaf", "a", "b"),
    "cognito": (bed.gateway_v1, "requestContext/identity/cognitoIdentityId", "eu-west-1:a", "eu-west-1:b"),
    "cognito-2.0": (bed.gateway_v2, "requestContext/authorizer/iam",
                     {"userArn": "arn:aws:sts::1:assumed-role/r/CognitoIdentityCredentials",
                      "cognitoIdentity": {"identityId": "a"}},
                     {"userArn": "arn:aws:sts::1:assumed-role/r/CognitoIdentityCredentials",
                      "cognitoIdentity": {"identityId": "b"}}),
    "balancer-s-login": (bed.balancer, "headers/x-amzn-oidc-identity", "a", "b"),
}


def test_two_tenants_never_get_each_others_answers(function):
    """Told apart by each credential in turn, with one key, path and body; and so from someone without credentials. The
    one whose key it is gets the answer again."""
    one = function("http", key=None)
    for key, (make, path, a, b) in CREDENTIALS.items():
        body = json.dumps({"id": key})
        assert header_of(one.invoke(put(make(body, key), path, a)), "Idempotency-Replayed") == "false", key
        for stranger in put(make(body, key), path, b), make(body, key):
            stolen = one.invoke(stranger)
            assert (stolen.json["statusCode"], problem_of(stolen)) == (422, "caller-mismatch"), key
        assert header_of(one.invoke(put(make(body, key), path, a)), "Idempotency-Replayed") == "true", key
        assert one.effects()[key] == 1


def test_two_owners_never_meet(function):
    """Each has its own run and its own answer under one key, and a token that is renewed changes nothing."""
    one = function("http", "--owner", "/owner", key=None)
    for key, (make, path, a, b) in CREDENTIALS.items():
        body = json.dumps({"id": key})
        event = [put(make(body, key), path, who) | {"owner": owner} for owner, who in (("a", a), ("b", b))]
        mine, theirs = one.invoke(event[0]), one.invoke(event[1])
        assert mine.json["body"] != theirs.json["body"], key
        assert one.invoke(event[0]).json["body"] == mine.json["body"], key
        assert one.invoke(event[1] | {"owner": "a"}).json["body"] == mine.json["body"], key
        assert one.effects()[key] == 2


@pytest.mark.ci
@pytest.mark.parametrize("owned", [True, pytest.param(False, marks=pytest.mark.ci)], ids=["owner", "caller"])
def test_two_tenants_with_equal_requests(function, owned):
    """Both at once, by each credential: no foreign tag, nothing run twice, and with an owner nothing swallowed."""
    one = function("tagged", *(["--owner", "/owner"] if owned else []), key=None)
    for name, (make, path, *whose) in CREDENTIALS.items():
        def send(tenant, key, text, make=make, path=path, whose=whose):
            event = put(make(json.dumps({"id": key, "text": text}), key), path, whose["ab".index(tenant)])
            answer = one.api.invoke(event | {"owner": tenant, "tag": tenant}).wait()
            if answer.json["statusCode"] != 200:
                return None, problem_of(answer)
            tag, _, run = answer.json["body"].partition(" ")
            return tag, run

        runs = tenants.play(name, owned, send, -(-tenants.REQUESTS // len(CREDENTIALS)))
        assert {key: count for key, count in one.effects().items() if key.rpartition("-")[0] == name} == runs


def test_payments_need_an_owner_and_long_keys(function):
    """--profile payments: a short key and a missing owner are refused before the function runs."""
    one = function("http", "--profile", "payments", "--owner", "/owner", key=None)
    for key, owner, said in (("0123456789abcde", "a", "bad-key"), ("0123456789abcdef", None, "missing-owner"),
                             (None, "a", "missing-key"), ("0123456789abcdef", "a", None)):
        event = bed.gateway_v2('{"id":"k"}', key) | ({"owner": owner} if owner else {})
        answer = one.invoke(event).json
        assert answer["statusCode"] == (400 if said else 200) and (not said or said in answer["body"])
        assert ("fewer than 16 bytes" in answer["body"]) == (said == "bad-key")
    assert one.effects()["k"] == 1


def test_an_owner_may_be_of_several_parts(function, hapax, redis):
    """As a key may; each has to be there. Operators find operations by their owner."""
    one = function("http", "--owner", "/requestContext/authorizer/jwt/claims/sub", key=None, store=redis.uri())
    event = put(bed.gateway_v2('{"id":"k"}', "k"), "requestContext/authorizer/jwt/claims/sub", "alice")
    assert one.invoke(event).json["statusCode"] == 200
    assert len(hapax("list", "--owner", "alice", "--store", redis.uri(), "--json").lines) == 1
    assert hapax("list", "--owner", "bob", "--store", redis.uri(), "--json").lines == []
    two = function("http", "--owner", "/a /b", key=None)
    parts = [two.invoke(bed.gateway_v2('{"id":"k"}', "k", **more)) for more in
             ({"a": "x", "b": "y"}, {"a": "xy", "b": ""}, {"a": "y", "b": "x"}, {"a": "x", "b": "y"}, {"a": "x"})]
    assert [answer.json["statusCode"] for answer in parts] == [200, 400, 200, 200, 400]
    assert parts[0].json["body"] == parts[3].json["body"] != parts[2].json["body"]


@pytest.mark.some()
@pytest.mark.parametrize("option", ["--owner", "--caller"])
@pytest.mark.parametrize("value", [None, "", {}, "x" * 256], ids=["absent", "empty", "an object", "long"])
def test_an_event_that_does_not_say_whose_key_it_has_is_refused(function, option, value):
    """And nothing runs; without a key it runs as ever. Other events and records say so in their way."""
    one = function("http", option, "/tenant", key="Idempotency-Key,/id")
    more = {} if value is None else {"tenant": value}
    answer = one.invoke(bed.gateway_v2('{"id":"k"}', "k", **more))
    assert (answer.json["statusCode"], problem_of(answer)) == (400, "missing-owner")
    assert refused(one.invoke({"id": "secret-key", **more}), "MissingOwner")
    assert one.effects() == {}
    assert one.invoke(bed.gateway_v2('{"id":"k"}', **more)).json["statusCode"] == 200


def test_a_caller_that_is_named_is_all_that_counts(function):
    """A token that is renewed changes nothing then; `none` says that all are one caller's."""
    def event(key, sub, token):
        event = put(bed.gateway_v2('{"id":"a"}', key), "requestContext/authorizer/jwt/claims/sub", sub)
        return put(event, "headers/authorization", token)

    one = function("http", "--caller", "/requestContext/authorizer/jwt/claims/sub", key=None)
    assert one.invoke(event("k", "a", "Bearer 1")).json["statusCode"] == 200
    assert header_of(one.invoke(event("k", "a", "Bearer 2")), "Idempotency-Replayed") == "true"
    assert problem_of(one.invoke(event("k", "b", "Bearer 1"))) == "caller-mismatch"
    one = function("http", "--caller", "none", key=None)
    assert one.invoke(event("k2", "a", "Bearer 1")).json["statusCode"] == 200
    assert header_of(one.invoke(event("k2", "b", "Bearer 2")), "Idempotency-Replayed") == "true"


def test_a_signature_counts_where_nobody_says_whose_it_is(function):
    """SigV4's differs with each request. Of a caller that IAM names it says nothing more."""
    one = function("http", key=None)

    def event(key, signature, **identity):
        event = put(bed.gateway_v2('{"id":"a"}', key), "headers/authorization", f"AWS4-HMAC-SHA256 {signature}")
        return put(event, "requestContext/authorizer", {"iam": identity}) if identity else event

    assert one.invoke(event("k", "1", userArn="a")).json["statusCode"] == 200
    assert header_of(one.invoke(event("k", "2", userArn="a")), "Idempotency-Replayed") == "true"
    assert one.invoke(event("k2", "1")).json["statusCode"] == 200
    assert problem_of(one.invoke(event("k2", "2"))) == "caller-mismatch"


def test_a_request_in_flight_is_refused_with_a_time_to_come_back(function, redis):
    """409 and Retry-After from the lease that is left, which is the invocation's deadline."""
    one, two = (function("http", key=None, store=redis.uri()) for _ in range(2))
    running = one.begin(bed.gateway_v2('{"id":"a","slow":1}', "k"))
    one.wait_lines("effects", 1)
    answer = two.invoke(bed.gateway_v2('{"id":"a","slow":1}', "k"))
    assert (answer.json["statusCode"], problem_of(answer)) == (409, "in-flight")
    assert 20 <= int(header_of(answer, "Retry-After")) <= 32
    one.file("go")
    assert running.wait().json["statusCode"] == 200


def test_a_status_is_classed_as_the_gate_classes_it(function):
    """Final ones are stored; those that did not run, failed, or say "try again", run again."""
    one = function("http", key=None)
    for status, runs in (200, 1), (404, 1), (302, 1), (429, 3), (503, 3), (401, 3), (500, 3):
        event = bed.gateway_v2(json.dumps({"id": str(status), "status": status}), f"k{status}")
        assert [one.invoke(event).json["statusCode"] for _ in range(3)] == [status] * 3
        assert one.effects()[str(status)] == runs
    for headers, runs in ({}, 1), ({"Retry-After": "1"}, 3), ({"Stripe-Should-Retry": "true"}, 3):
        key = f"409{''.join(headers)}"
        event = bed.gateway_v2(json.dumps({"id": key, "status": 409, "headers": headers}), key)
        assert [one.invoke(event).json["statusCode"] for _ in range(3)] == [409] * 3
        assert one.effects()[key] == runs


def test_bodies_in_base64_are_compared_and_replayed_as_they_are(function):
    """A binary request's fingerprint is of its bytes; a binary response stays base64."""
    one = function("http", key=None)
    coded = base64.b64encode(b'{"id":"a","binary":1}').decode()
    first = one.invoke(bed.gateway_v2(coded, "k", isBase64Encoded=True))
    again = one.cold().invoke(bed.gateway_v2('{"id":"a","binary":1}', "k"))
    assert first.json["isBase64Encoded"] is True and again.json["isBase64Encoded"] is True
    assert base64.b64decode(again.json["body"]) == base64.b64decode(first.json["body"])
    assert base64.b64decode(first.json["body"]).startswith(b"\x89PNG\0")
    assert one.effects() == {"a": 1}


def test_a_bare_answer_of_an_http_function_stays_what_it_was(function):
    """Behind API Gateway v2 and Function URLs an answer without statusCode is a body of 200."""
    one = function("http", key=None)
    first, again = (one.invoke(bed.gateway_v2('{"id":"a","bare":1}', "k")) for _ in range(2))
    assert "there" in first.body.decode() and "there" in again.body.decode()
    assert one.effects() == {"a": 1}


def test_a_balancer_with_many_values_is_answered_in_kind(function):
    """Where it sends multiValueHeaders it reads no others."""
    one = function("http", key=None)
    refusal = one.invoke(bed.balancer('{"id":"a"}', "two words", many=True))
    assert (refusal.json["statusCode"], problem_of(refusal)) == (400, "bad-key")
    assert refusal.json["multiValueHeaders"]


def test_a_function_behind_http_that_raises_is_tried_again(function):
    """The error is passed on as it is (the service makes 502 of it)."""
    one = function("http", key=None)
    one.file("fails")
    assert one.invoke(bed.gateway_v2('{"id":"a"}', "k")).error_type == "Unlucky"
    one.gone("fails")
    assert one.invoke(bed.gateway_v2('{"id":"a"}', "k")).json["statusCode"] == 200
    assert one.effects() == {"a": 2}


# ---- sizes ----------------------------------------------------------------------------------------


def test_six_megabytes_pass_both_ways(function):
    """The largest event and the largest response, whole; over the limit of what is kept, the repeat does not run."""
    one = function("echo", "--max-request", "8m", "--max-response", "8m")
    event = {"id": "k", "fill": "x" * (6 * 1024 * 1024 - 300)}
    first = one.invoke(event)
    assert first.json["event"] == event
    agree(first, one.cold().invoke(event))
    assert one.effects() == {"k": 1}


def test_a_response_over_the_limit_is_passed_and_not_kept(function):
    """The first caller gets it; a repeat is told that it is gone, and nothing runs."""
    one = function("big", "--max-response", "64k", words=["100000"])
    assert len(one.invoke({"id": "k"}).body) == 100000
    assert refused(one.cold().invoke({"id": "k"}), "ResponseNotKept")
    assert one.effects() == {"k": 1}


def test_an_event_over_the_limit_is_refused(function):
    one = function("echo", "--max-request", "64k")
    assert refused(one.invoke({"id": "k", "fill": "x" * 70000}), "RequestTooLarge")
    assert one.effects() == {}


def test_a_response_that_the_service_finds_too_large_is_its_matter(function):
    """413 reaches the runtime, which goes on."""
    one = function("big", "--max-response", "8m", words=[str(7 << 20)])
    assert one.invoke({"id": "k"}).kind == "too_large"
    assert "413" in one.wait_lines("posted", 1)[0]
    assert one.effects() == {"k": 1}


@pytest.mark.ci
def test_a_thousand_invocations_leave_nothing_behind(function, redis):
    """Descriptors and memory of hapax after 1,000 are what they were after 100; in a sanitized build nothing leaks."""
    one = function("echo", store=redis.uri())
    status = pathlib.Path(f"/proc/{one.sandbox.process.pid}")

    def size():
        kib = int(re.search(r"VmRSS:\s*(\d+)", (status / "status").read_text()).group(1))
        return len(os.listdir(status / "fd")), kib, len(os.listdir(status / "task"))

    def run(numbers):
        for i in numbers:
            assert one.api.invoke({"id": f"k{i // 2}", "fill": "x" * 4000}).wait().kind == "response"

    run(range(100))
    before = size()
    run(range(100, 1000))
    wait_until(lambda: size()[0] <= before[0] + 4 and size()[2] <= before[2], f"no more than {before}")
    after = size()
    if "ASAN_OPTIONS" not in os.environ:  # which keeps what was freed
        assert after[1] <= before[1] + 2048, (before, after)  # 900 events of 4 KB would be more
    assert set(one.effects().values()) == {1} and len(one.effects()) == 500
    os.kill(one.sandbox.child(), signal.SIGTERM)
    assert one.sandbox.wait() == 128 + signal.SIGTERM


# ---- the service's answers --------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("status", [400, 403, 500])
def test_what_the_service_says_to_a_response_reaches_the_runtime(function, status):
    """The outcome is stored by then; the retry of the event is replayed."""
    one = function("echo")
    one.api.answer_with("response", status, b'{"errorType":"Fake","errorMessage":"told"}')
    invocation = one.begin({"id": "k"})
    line = one.wait_lines("posted", 1)[0]
    assert str(status) in line and "Fake" in line
    told = one.api.of("response")[0].body
    assert one.sandbox.wait() == 9
    one.sandbox.ready()
    assert invocation.answer.kind == "died"
    assert one.invoke({"id": "k"}).body == told
    assert one.effects() == {"k": 1}


def test_a_response_whose_reply_is_lost_is_never_contradicted(function):
    """The service has it; whatever becomes of the sandbox, the retry gives the same."""
    one = function("echo")
    reset = one.api.reset("response", taken=True)
    invocation = one.api.invoke({"id": "k"})
    assert reset.done.wait(60)
    one.api.misuse.clear()  # a response posted again is what a lost reply leads to
    one.cold()
    agree(invocation.wait(), one.invoke({"id": "k"}))
    one.api.misuse.clear()
    assert one.effects() == {"k": 1}


def test_a_replay_that_the_service_refuses_ends_nothing(function):
    """hapax posts it itself, is told 500, and asks for the next event."""
    one = function("echo")
    first = one.invoke({"id": "k"})
    one.api.answer_with("response", 500, taken=True)
    again = one.invoke({"id": "k"})
    agree(first, again, one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_a_next_that_breaks_is_asked_again_or_ends_the_sandbox(function):
    """No event is lost by it: the one that comes after is answered."""
    one = function("echo")
    one.invoke({"id": "a"})
    one.api.wait_calls("next", 2)
    one.sandbox.freeze()
    one.api.forget()
    one.sandbox.thaw()
    invocation = one.api.invoke({"id": "b"})
    wait_until(lambda: invocation.finished.is_set() or one.sandbox.process.poll() is not None, "an end")
    if not invocation.finished.is_set():
        one.cold()
    assert invocation.wait().json["event"] == {"id": "b"}
    assert one.effects() == {"a": 1, "b": 1}


# ---- stores that are away -----------------------------------------------------------------------------


def test_a_store_that_is_away_runs_nothing_by_default(function, redis):
    """closed: an error for the caller; once it is back, the event runs. The log says both."""
    with Proxy(redis.port) as proxy:
        one = function("echo", "--timeout", "300ms", store=f"redis://127.0.0.1:{proxy.port}")
        patient = function("echo", store=redis.uri())

        def said():
            return [one.sandbox.text().count(line) for line in (
                "the store does not answer, and is asked by one operation",
                "the store is asked by each operation again")]

        first = patient.invoke({"id": "a"})
        wait_until(lambda: one.invoke({"id": "a"}).body == first.body, "the store being found")
        before = said()
        proxy.refuse()
        for _ in range(3):
            assert refused(one.invoke({"id": "k"}), "StoreUnavailable")
        assert one.effects() == {"a": 1}
        proxy.listen()
        wait_until(lambda: one.invoke({"id": "k"}).kind == "response", "the store being found again")
        agree(first, patient.invoke({"id": "a"}))
        assert one.effects() == {"a": 1, "k": 1}
        # More often where the machine stands still for 5 s: the store is no longer taken for dead then.
        assert all(now > n for now, n in zip(said(), before, strict=True))


def test_a_store_that_is_away_runs_all_where_it_may(function, redis):
    """open: unprotected, and protected again once it is back."""
    with Proxy(redis.port) as proxy:
        one = function("echo", "--timeout", "300ms", "--save-wait", "300ms", "--on-store-error", "open",
                       store=f"redis://127.0.0.1:{proxy.port}")
        proxy.refuse()
        assert one.invoke({"id": "k"}).kind == "response"
        assert one.effects() == {"k": 1}
        proxy.listen()
        wait_until(lambda: one.invoke({"id": "p"}).body == one.invoke({"id": "p"}).body, "protection")


def test_a_store_that_is_away_at_the_start_is_no_reason_to_end(function, redis):
    """A sandbox starts when it starts: events are refused, and run once the store is there."""
    with Proxy(redis.port) as proxy:
        proxy.refuse()
        one = function("echo", "--timeout", "300ms", store=f"redis://127.0.0.1:{proxy.port}")
        assert refused(one.invoke({"id": "k"}), "StoreUnavailable")
        proxy.listen()
        wait_until(lambda: one.invoke({"id": "k"}).kind == "response", "the store being found")
        assert one.effects() == {"k": 1}


def test_a_short_key_is_refused_without_a_store(function, redis):
    """Before the store is open, too, also where all may run."""
    with Proxy(redis.port) as proxy:
        proxy.refuse()
        one = function("http", "--profile", "payments", "--owner", "/owner", "--on-store-error", "open", key=None,
                       store=f"redis://127.0.0.1:{proxy.port}")
        short = one.invoke(bed.gateway_v2('{"id":"k"}', "0123456789abcde") | {"owner": "a"})
        assert problem_of(short) == "bad-key" and "fewer than 16 bytes" in short.json["body"]
        assert one.effects() == {}
        assert one.invoke(bed.gateway_v2('{"id":"k"}', "0123456789abcdef") | {"owner": "a"}).json["statusCode"] == 200


def test_an_outcome_that_cannot_be_stored_is_given_and_stored_later(function, redis):
    """The caller is not kept waiting for long, and the record is completed once the store is back."""
    with Proxy(redis.port) as proxy:
        one = function("slow", "--save-wait", "300ms", store=f"redis://127.0.0.1:{proxy.port}")
        running = one.begin({"id": "k"})
        one.wait_lines("effects", 1)
        proxy.refuse()
        one.file("go")
        first = running.wait()
        assert first.kind == "response" and "an outcome was not stored" in one.sandbox.text()
        proxy.listen()
        two = function("echo", store=redis.uri())
        wait_until(lambda: (again := two.invoke({"id": "k"})).kind == "response" and again.body == first.body,
                   "its storing")
        assert one.effects() == {"k": 1}


# ---- streaming ----------------------------------------------------------------------------------------


def test_a_stream_is_passed_on_as_it_comes_and_not_kept(function):
    """The first piece arrives while the function waits with the second; a repeat does not run."""
    one = function("stream")
    invocation = one.begin({"id": "k"})
    call = one.api.wait_calls("response")[0]
    one.sandbox.wait_for(lambda: call.body.startswith(b"first "), "the first piece")
    assert not invocation.finished.is_set()
    one.file("go")
    answer = invocation.wait()
    assert answer.streaming and answer.whole and answer.body.endswith(b" second")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert refused(one.cold().invoke({"id": "k"}), "ResponseNotKept")
    assert one.effects() == {"k": 1}


def test_a_stream_that_fails_half_way_says_so_in_its_trailers(function):
    """They reach the service; the operation is not taken for done without a word."""
    one = function("stream")
    one.file("fails")
    one.file("go")
    answer = one.invoke({"id": "k"})
    assert answer.trailers["lambda-runtime-function-error-type"] == "Unlucky"
    assert json.loads(base64.b64decode(answer.trailers["lambda-runtime-function-error-body"]))["errorType"] == "Unlucky"


# ---- what else a runtime says ---------------------------------------------------------------------------


def test_an_init_error_is_passed_on_and_the_status_is_the_childs(hapax, store):
    """The service reads the type from its header, and what the runtime ends with."""
    one = Function(hapax, store, "no_init")
    one.sandbox.start()
    assert one.sandbox.wait() == 7
    call = one.api.of("init_error")[0]
    assert (call.error_type, call.json["errorType"]) == ("Runtime.Import", "Runtime.ImportModuleError")
    assert one.lines("posted") == ["init 202"]
    one.end()


# ---- metrics ----------------------------------------------------------------------------------


def metrics_of(one):
    """What CloudWatch makes of each line of its embedded metric format: values by name. The rules are those of its
    specification."""
    found = []
    for line in one.sandbox.text().splitlines():
        if not line.startswith('{"_aws"'):
            continue
        event = json.loads(line)
        (directive,), at_ms = event["_aws"]["CloudWatchMetrics"], event["_aws"]["Timestamp"]
        assert set(event["_aws"]) == {"CloudWatchMetrics", "Timestamp"} and abs(at_ms / 1000 - time.time()) < 600
        assert directive["Namespace"] == "Shop/Once" and directive["Dimensions"] == [["FunctionName"]]
        assert event["FunctionName"] == "shop" and len(line) < 8192
        units = {metric["Name"]: metric["Unit"] for metric in directive["Metrics"]}
        values = {name: event[name] for name in event if name not in ("_aws", "FunctionName")}
        assert len(units) == len(directive["Metrics"]) <= 100 and set(units) == set(values)
        for name, value in values.items():
            assert units[name] == ("Seconds" if name.endswith("_seconds") else "Count") and value > 0, line
        found.append(values)
    return found


def test_metrics_are_lines_that_cloudwatch_reads(function):
    """One for each invocation, with what rose; none while nothing happens; and no key."""
    one = function("echo", "--emf", "Shop/Once", AWS_LAMBDA_FUNCTION_NAME="shop")
    for _ in range(2):
        one.invoke({"id": "secret-key"})
    one.sandbox.wait_for(lambda: len(metrics_of(one)) == 2, "two lines")
    first, again = metrics_of(one)
    counts = {name: value for name, value in first.items() if not name.endswith("_seconds")}
    assert counts == {"invocations": 1, "answers_fresh": 1, "attempts_final": 1, "store_ops_claim": 1,
                      "store_ops_complete": 1}
    assert {"handler_seconds", "waiting_seconds", "store_seconds"} <= set(first)
    assert (again["answers_replay"], again["short_cut"]) == (1, 1) and "attempts_final" not in again
    assert "secret-key" not in one.sandbox.text()


def test_metrics_are_told_without_a_store(function, redis):
    """What is refused while the store is not open counts, too."""
    away = f"redis://127.0.0.1:{free_port()}"
    one = function("echo", "--emf", "Shop/Once", store=away, AWS_LAMBDA_FUNCTION_NAME="shop", HAPAX_TIMEOUT="100ms")
    one.invoke({"id": "k"})
    one.sandbox.wait_for(lambda: any("answers_store_down" in line for line in metrics_of(one)), "a line")


@pytest.mark.parametrize("name", ["AWS/Lambda", "", "a b", "x" * 256])
def test_a_namespace_that_cloudwatch_refuses_is_refused(hapax, name):
    done = hapax("lambda", "--emf", name, "--", "true", AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
    assert done.code == 2 and "--emf" in done.err and "namespace of CloudWatch" in done.err


def test_without_a_namespace_there_are_no_metrics(function):
    one = function("echo")
    one.invoke({"id": "k"})
    assert "_aws" not in one.sandbox.text()



def test_restoring_a_snapshot_is_passed_on(function):
    one = function("restored")
    assert one.invoke({"id": "k"}).kind == "response"
    assert len(one.api.of("restore_next")) == 1 and one.lines("posted")[0] == "restore 200"


def test_a_restore_error_is_passed_on(hapax, store):
    one = Function(hapax, store, "not_restored")
    one.sandbox.start()
    assert one.sandbox.wait() == 8
    assert one.api.of("restore_error")[0].error_type == "Runtime.AfterRestore"
    one.end()


def test_paths_that_it_does_not_know_go_to_the_original_endpoint(function):
    """Method, path with its query, headers and body; and what comes back."""
    requests = ["GET /2018-06-01/runtime/something?x=1&y=%20 ", "PUT /2022-07-01/telemetry {\"a\":1}",
                "POST /2020-01-01/extension/register {\"events\":[]}"]
    one = function("asks", words=requests)
    others = one.api.of("other")
    assert [(call.method, call.path) for call in others] == [("GET", "/2018-06-01/runtime/something?x=1&y=%20"),
                                                             ("PUT", "/2022-07-01/telemetry")]
    assert others[1].body == b'{"a":1}' and others[1].headers["x-odd"] == "Yes"
    asked = [json.loads(line) for line in one.lines("asked")]
    assert [status for status, _, _ in asked] == [404, 404, 200]
    assert asked[0][1]["x-from"] == "original" and asked[2][1]["lambda-extension-identifier"] == one.api.extensions[0]
    assert one.api.of("register")[0].headers["lambda-extension-name"] == "inner"


def test_an_extension_that_waits_for_its_event_keeps_nobody(function):
    """Within the function: its long poll goes through the same listener, and invocations go on meanwhile."""
    one = function("extension")
    assert one.wait_lines("extension", 1) == ["registered 200"]
    one.api.wait_calls("extension_next")
    assert one.invoke({"id": "a"}).kind == "response"
    one.api.tell_extensions({"eventType": "INVOKE"})
    assert one.wait_lines("extension", 2)[1] == "200 INVOKE"
    agree(one.invoke({"id": "b"}), one.invoke({"id": "b"}))


# ---- how it is started ------------------------------------------------------------------------------------


def test_every_flag_has_a_variable(hapax, store, redis):
    """HAPAX_STORE, HAPAX_KEY, HAPAX_LISTEN, …: a layer cannot put flags on a command line."""
    port = free_port()
    with Function(hapax, store, "fail", HAPAX_KEY="/id", HAPAX_SCOPE="s", HAPAX_ON_FAILED="replay",
                  HAPAX_LISTEN=f"127.0.0.1:{port}", HAPAX_STORE=redis.uri()) as one:
        one.sandbox.kill()
        one.sandbox.words = [bed.HAPAX, "lambda", "--", *bed.PYTHON, "fail"]
        one.sandbox.ready()
        one.file("fails")
        first = one.invoke({"id": "k"})
        one.gone("fails")
        assert one.invoke({"id": "k"}).body == first.body
        assert [record["scope"] for record in hapax("list", "--store", redis.uri(), "--json").lines] == ["s"]


def test_a_flag_beats_its_variable(function):
    one = function("echo", key="/id", HAPAX_KEY="/other")
    agree(one.invoke({"id": "k", "other": 1}), one.invoke({"id": "k", "other": 1}))
    assert refused(one.invoke({"id": "k", "other": 2}), "FingerprintMismatch")


def test_the_scope_is_the_functions_name(function, hapax, redis):
    one = function("echo", store=redis.uri(), AWS_LAMBDA_FUNCTION_NAME="orders", AWS_LAMBDA_FUNCTION_VERSION="7")
    one.invoke({"id": "k"})
    assert [record["scope"] for record in hapax("list", "--store", redis.uri(), "--json").lines] == ["orders"]


def test_an_option_that_is_wrong_is_told_to_the_service(hapax, store):
    """As an error of the initialisation, where Lambda shows it; the runtime is not started."""
    one = Function(hapax, store, "echo", "--on-failed", "cry")
    one.sandbox.start()
    assert one.sandbox.wait() != 0
    call, = one.api.of("init_error")
    assert call.error_type.startswith("Hapax.") and "on-failed" in call.json["errorMessage"]
    assert one.api.of("next") == []
    one.end()


def test_a_wrapper_script_starts_it(hapax, store):
    """AWS_LAMBDA_EXEC_WRAPPER: a script that gets the runtime's command as its arguments and execs."""
    wrapper = hapax.folder / "wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec {bed.HAPAX} lambda -- "$@"\n')
    wrapper.chmod(0o755)
    with Function(hapax, store, "echo", HAPAX_KEY="/id", HAPAX_STORE=store,
                  command=[str(wrapper), *bed.PYTHON, "echo"], bare=True,
                  HAPAX_LISTEN=f"127.0.0.1:{free_port()}") as one:
        agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
        assert one.effects() == {"k": 1}


def test_the_endpoint_behind_it_may_be_named(hapax, store):
    """HAPAX_LAMBDA_RUNTIME_API beats the original variable: for chains of such proxies."""
    with bed.lambda_api.Api() as wrong:
        one = Function(hapax, store, "echo", "--key", "/id")
        one.sandbox.env.update(HAPAX_LAMBDA_RUNTIME_API=one.api.address, AWS_LAMBDA_RUNTIME_API=wrong.address)
        with one:
            agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
        assert wrong.calls == []


def test_two_of_them_in_a_row_work(hapax, store, redis):
    """A chain: hapax before hapax, each with a store of its own; both replay."""
    inner = [str(bed.HAPAX), "lambda", "--store", redis.uri(), "--key",
             "/id", "--listen", f"127.0.0.1:{free_port()}", "--",
             *bed.PYTHON, "echo"]
    with Function(hapax, store, "echo", "--key", "/id", command=inner) as one:
        agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}))
        assert one.effects() == {"k": 1}


def test_a_runtime_of_curl_and_a_shell_works(hapax, store):
    """As in AWS's documentation: a new connection for each call."""
    with Function(hapax, store, "", "--key", "/id", command=[str(bed.FUNCTIONS / "bootstrap")]) as one:
        agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}), one.cold().invoke({"id": "k"}))
        assert one.invoke({"id": "k2"}).json["event"] == {"id": "k2"}
        assert one.effects() == {"curl": 2}


def test_a_proxy_of_the_environment_is_not_asked(function):
    """http_proxy is for what the function calls, and not for the Runtime API."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    one = function("echo", http_proxy=nowhere, HTTP_PROXY=nowhere, all_proxy=nowhere, ALL_PROXY=nowhere)
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))


def test_a_second_answer_to_an_event_changes_nothing(function):
    """The first stands, at the service and in the store."""
    one = function("twice")
    first = one.invoke({"id": "k"})
    assert not one.wait_lines("posted", 2)[1].endswith("202")
    agree(first, one.invoke({"id": "k"}))
    one.api.misuse.clear()
    assert first.json["run"] != "second" and one.effects() == {"k": 1}


@pytest.mark.some(1)
@pytest.mark.parametrize("status", ["0", "3", "77"])
def test_the_childs_exit_status_is_its_own(function, status):
    one = function("leave", words=[status])
    one.api.invoke({"id": "k"})
    assert one.sandbox.wait() == int(status)


def test_a_child_that_is_killed_is_told_as_shells_tell_it(function):
    one = function("die")
    one.file("dies")
    one.api.invoke({"id": "k"})
    assert one.sandbox.wait() in (128 + signal.SIGKILL, -signal.SIGKILL)


def test_a_command_that_is_not_there(hapax, store):
    """127, as shells say, and a line that names it."""
    one = Function(hapax, store, "echo", command=["/nonexistent/runtime"])
    one.sandbox.start()
    assert one.sandbox.wait() == 127
    assert "/nonexistent/runtime" in one.sandbox.text()
    one.end()


def test_sigterm_ends_the_child_first(function):
    """It is passed on, and the status is the child's end."""
    one = function("echo")
    child = one.sandbox.child()
    os.kill(one.sandbox.process.pid, signal.SIGTERM)
    assert one.sandbox.process.wait(60) in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    assert not bed.lambda_api.alive(child)


@pytest.mark.some(5)
@pytest.mark.parametrize("words, named", [
    (["--store", "memory:", "--listen", "0.0.0.0:1", "--", "true"], "listen"),
    (["--store", "nonsense:x", "--", "true"], "nonsense"),
    (["--store", "memory:", "--on-failed", "cry", "--", "true"], "on-failed"),
    (["--store", "memory:", "--on-expired", "reconcile", "--", "true"], "on-expired"),
    (["--store", "memory:", "--batch-report", "perhaps", "--", "true"], "batch-report"),
    (["--store", "memory:", "--owner", "sub", "--", "true"], "owner"),
    (["--store", "memory:", "--owner", " ", "--", "true"], "owner is empty"),
    (["--store", "memory:", "--caller", "", "--", "true"], "caller is empty"),
    (["--store", "memory:"], "COMMAND"),
    (["--", "true"], "HAPAX_STORE"),
])
def test_what_is_wrong_is_named(hapax, words, named):
    """Usage: status 2, and the option that is meant; nothing is started."""
    done = hapax.run(bed.HAPAX, "lambda", *words, AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
    assert done.code == 2 and named.lower() in done.err.lower(), done.err


def test_without_a_runtime_api_it_says_so(hapax, store):
    done = hapax.run(bed.HAPAX, "lambda", "--store", store, "--", "true")
    assert done.code == 2 and "AWS_LAMBDA_RUNTIME_API" in done.err


def test_keys_are_never_logged(function):
    """Not in errors, and not in what it prints."""
    one = function("fail", "--emf", "Shop/Once", AWS_LAMBDA_FUNCTION_NAME="shop")
    one.file("fails")
    for n in 1, 2:
        one.invoke({"id": "secret-key", "n": n})
    one.gone("fails")
    one.invoke({"id": "secret-key", "n": 3})
    one.sandbox.wait_for(lambda: len(metrics_of(one)) == 3, "three lines")
    assert "secret-key" not in one.sandbox.text()
