"""hapax lambda and what is odd: events and answers that are not what they should be, runtimes that leave half-way, and
the service where it stumbles. What passes must pass as it was; what cannot be protected says so; nothing ends that need
not.
"""
import base64
import contextlib
import json
import pathlib
import re
import signal
import socket

import pytest

import lambda_bed as bed
from conftest import wait_until
from lambda_bed import HTTP, Function, agree, balancer, gateway_v1, gateway_v2, header_of, problem_of
from process import free_port


@pytest.fixture
def function(hapax):
    """On a store of its own memory: nothing here outlives a process."""
    with contextlib.ExitStack() as stack:
        def start(name, *options, store="memory:", **more):
            return stack.enter_context(Function(hapax, store, name, *options, **more))

        yield start


# ---- events ---------------------------------------------------------------------------------------

EVENTS = [b"", b" ", b"null", b"{", b"{\"id\":", b"\xff\xfe", b"[" * 100000, b'{"a":' * 100000 + b"1" + b"}" * 100000,
          b'"text"', b"1e999", b"0" * 1000, b'{"id":"a","id":"b"}', b'{"id":"\\ud800"}', b"\0" * 100]


def test_an_event_that_is_no_document_is_the_functions_matter_or_refused(function):
    """It is answered, and the next event is, too."""
    one = function("octets", "--key", "/id")
    for i, event in enumerate(EVENTS):
        assert one.invoke(event).kind in ("response", "error"), event[:20]
        assert one.invoke({"id": f"k{i}"}).body == one.invoke({"id": f"k{i}"}).body


IDS = [{"a": 1}, ["a"], "", "x" * 256, "x" * 257, "a\nb\0c", True,
       1.5, 12345678901234567890, 12345678901234567891, "ключ", None]


def test_what_a_pointer_finds_is_a_key_or_refused(function):
    """Never cut, never mixed up with another's, and the same again for a repeat."""
    one = function("octets", "--key", "/id", "--fingerprint", "off")
    ran = []
    for id in IDS:
        before = one.effects()["octets"]
        first, again = one.invoke({"id": id}), one.invoke({"id": id})
        runs = one.effects()["octets"] - before
        if first.kind == "error":
            assert first.error_type == again.error_type == "Hapax.BadKey" and runs == 0, id
        else:
            assert runs == (2 if id is None else 1), id
            ran.append(id)
    assert len(ran) >= 5


def test_two_pointers_are_one_key(function):
    """And neither part is the other's."""
    one = function("echo", "--key", "/a /b", "--fingerprint", "off")
    agree(one.invoke({"a": "x", "b": "yz", "n": 1}), one.invoke({"n": 2, "b": "yz", "a": "x"}))
    assert one.invoke({"a": "xy", "b": "z"}).json["event"] == {"a": "xy", "b": "z"}
    assert one.effects() == {"none": 2}


def test_no_key_may_be_a_failure(function):
    """--no-key fail: nothing runs unprotected."""
    one = function("http", "--no-key", "fail")
    missing = one.invoke(gateway_v2('{"id":"a"}'))
    assert (missing.json["statusCode"], problem_of(missing)) == (400, "missing-key")
    plain = one.invoke({"n": 1})
    assert (plain.kind, plain.error_type) == ("error", "Hapax.MissingKey")
    assert one.effects() == {}


def test_a_deadline_that_is_none_hinders_nobody(function):
    """A time that is past, far away or no time at all."""
    one = function("echo", "--key", "/id")
    for deadline in "", "garbage", "0", "-5", "99999999999999999999", "1":
        event = {"id": f"k{deadline}"}
        agree(*(one.invoke(event, Lambda_Runtime_Deadline_Ms=deadline) for _ in range(2)))
    assert set(one.effects().values()) == {1}


def test_the_key_of_a_rest_event_is_counted_over_all_its_values(function):
    """`headers` shows the last of several; multiValueHeaders all."""
    one = function("http")
    event = gateway_v1('{"id":"a"}', "k")
    event["multiValueHeaders"]["Idempotency-Key"] = ["j", "k"]
    answer = one.invoke(event)
    assert (answer.json["statusCode"], problem_of(answer)) == (400, "bad-key")
    assert one.effects() == {}


def test_a_header_is_found_in_any_case(function):
    one = function("http")
    for spelled in "idempotency-key", "IDEMPOTENCY-KEY", "Idempotency-Key":
        for make in HTTP.values():
            assert one.invoke(make('{"id":"a"}', "k", header=spelled)).json["statusCode"] == 200
    assert one.effects() == {"a": 1}


def test_a_key_in_two_spellings_is_two(function):
    one = function("http")
    event = gateway_v2('{"id":"a"}', "k")
    event["headers"]["Idempotency-Key"] = "j"
    assert problem_of(one.invoke(event)) == "bad-key"


def test_the_query_is_of_the_fingerprint(function):
    """As it came, whatever order its members have in the event."""
    one = function("http")

    def rest(**query):
        return gateway_v1('{"id":"a"}', "k", queryStringParameters={k: v[-1] for k, v in query.items()},
                          multiValueQueryStringParameters=query)

    assert one.invoke(rest(a=["1"], b=["2"])).json["statusCode"] == 200
    assert header_of(one.invoke(rest(b=["2"], a=["1"])), "Idempotency-Replayed") == "true"
    assert problem_of(one.invoke(rest(a=["1"], b=["3"]))) == "fingerprint-mismatch"
    assert one.invoke(gateway_v2('{"id":"b"}', "q", rawQueryString="a=1")).json["statusCode"] == 200
    assert problem_of(one.invoke(gateway_v2('{"id":"b"}', "q", rawQueryString="a=2"))) == "fingerprint-mismatch"


def test_a_response_is_replayed_in_the_form_that_its_event_wants(function):
    """One request by way of three services: one operation, and each gets an answer that it can read."""
    one = function("http")
    first = one.invoke(gateway_v2('{"id":"a"}', "k"))
    rest, plain, many = (one.invoke(event) for event in (gateway_v1('{"id":"a"}', "k"), balancer('{"id":"a"}', "k"),
                                                         balancer('{"id":"a"}', "k", many=True)))
    for answer in rest, plain, many:
        assert (answer.json["statusCode"], answer.json["body"]) == (200, first.json["body"])
        assert header_of(answer, "X-Run") == header_of(first, "X-Run")
        assert header_of(answer, "Idempotency-Replayed") == "true"
    assert all(isinstance(value, list) for value in many.json["multiValueHeaders"].values())
    assert all(isinstance(value, str) for value in plain.json["headers"].values())
    assert one.effects() == {"a": 1}


# ---- answers ----------------------------------------------------------------------------------------

PROXY = ['{"statusCode":200}', '{"statusCode":"201","body":"x"}', '{"statusCode":200,"headers":null,"body":null}',
         '{"body":"x","statusCode":200,"headers":{}}', ' {\n "statusCode" : 200 , "headers" : { "A" : "b" } }\n',
         '{"statusCode":200,"headers":{"A":1,"B":true},"body":"x"}',
         '{"statusCode":200,"body":"\\ud83d\\ude00\\u0000 \\n"}',
         '{"statusCode":200,"multiValueHeaders":{"A":["1","2"]},"body":""}', '{"statusCode":204}',
         '{"statusCode":200,"isBase64Encoded":true,"body":"/w=="}',
         '{"statusCode":200,"body":"x","cookies":["a=b"],"more":1}']


@pytest.mark.parametrize("kind", HTTP)
def test_a_proxy_response_keeps_all_that_it_had(function, kind):
    """But for one header more; a repeat has status, headers and body of the first."""
    one = function("says")
    for i, text in enumerate(PROXY):
        one.file("report", text)
        keeps_all(kind, text, *(one.invoke(HTTP[kind]("{}", f"k{i}")) for _ in range(2)))
    assert one.effects() == {"says": len(PROXY)}


def keeps_all(kind, text, first, again):
    said = json.loads(text)
    for answer, replayed in (first, "false"), (again, "true"):
        assert str(answer.json["statusCode"]) == str(said["statusCode"])
        assert header_of(answer, "Idempotency-Replayed") == replayed, answer
        assert (answer.json.get("body") or "") == (said.get("body") or "")
        assert bool(answer.json.get("isBase64Encoded")) == bool(said.get("isBase64Encoded"))
        for name, value in (said.get("headers") or {}).items():
            assert header_of(answer, name) == (value if answer is first else str(value).lower()
                                               if value is True else str(value))
        for name, values in (said.get("multiValueHeaders") or {}).items():  # which only REST APIs read here
            assert kind != "v1" or answer.json["multiValueHeaders"][name] == values
    for name in "cookies", "more":
        assert first.json.get(name) == said.get(name)


BARE = ['"text"', "42", "null", "[]", "[1]", "{}", "", "not json",
        '{"statusCode":', '{"statusCode":9999}', '{"statusCode":null}',
        '{"statusCode":{}}', '{"statusCode":200,"headers":[]}',
        '{"statusCode":200,"body":{"a":1}}', '{"statusCode":99}']


@pytest.mark.parametrize("kind", HTTP)
def test_an_answer_that_is_no_proxy_response_passes(function, kind):
    """What the service makes of it is its matter: it gets it; where that is a 502, the retry runs."""
    one = function("says")
    for i, text in enumerate(BARE):
        one.file("report", text)
        before = one.effects()["says"]
        first, again = (one.invoke(HTTP[kind]("{}", f"k{i}")) for _ in range(2))
        assert first.kind == "response", text
        if "Idempotency-Replayed" not in first.body.decode():
            assert first.body.decode() == text
        assert again.kind in ("response", "error")
        assert one.effects()["says"] - before in (1, 2), text


def test_six_megabytes_of_an_http_answer_pass(function):
    """Near the service's limit a header more must not be one too many."""
    one = function("says")
    body = json.dumps({"statusCode": 200, "body": "x" * (6 * 1024 * 1024 - 100)})
    one.file("report", body)
    assert one.invoke(gateway_v2("{}", "k")).kind == "response"
    assert one.effects() == {"says": 1}


# ---- runtimes that leave half-way ----------------------------------------------------------------------


def test_a_runtime_that_went_away_and_came_back_loses_no_event(function):
    """Connections that asked for an event and were closed: it goes to the one that still waits."""
    one = function("impatient", "--key", "/id")
    one.wait_lines("posted", 1)  # all of them are closed
    for i in range(5):
        assert one.invoke({"id": f"k{i}"}).json["event"] == {"id": f"k{i}"}
    assert set(one.effects().values()) == {1}


def test_half_an_answer_is_none(hapax, store):
    """The runtime dies amid its post: nothing of it is stored or told, and the lease decides."""
    with Function(hapax, store, "halves", "--key", "/id") as one:
        one.file("dies")
        invocation = one.api.invoke({"id": "k"}, deadline_s=0.3)
        assert one.sandbox.wait() == 128 + signal.SIGKILL
        assert invocation.answer.kind == "died" or not invocation.answer.whole
        one.gone("dies")
        one.sandbox.ready()
        wait_until(lambda: one.invoke({"id": "k"}).kind == "response", "the lease's end")
        assert one.effects() == {"k": 2}


def test_a_stream_that_breaks_does_not_end_well(function):
    """The service must see that it broke: no last chunk."""
    one = function("breaks", "--key", "/id")
    invocation = one.begin({"id": "k"})
    call = one.api.wait_calls("response")[0]
    one.sandbox.wait_for(lambda: call.body == b"first ", "the first piece")
    one.file("go")
    assert one.sandbox.process.wait(60) == 128 + signal.SIGKILL
    wait_until(call.over.is_set, "the end of the call")
    assert not call.whole
    assert not invocation.answer or not invocation.answer.whole


def test_a_long_stream_is_not_held_in_memory(function):
    """32 MiB pass, and hapax has grown by much less."""
    one = function("flood", "--key", "/id", words=["32"])
    status = pathlib.Path(f"/proc/{one.sandbox.process.pid}/status")

    def peak():
        return int(re.search(r"VmHWM:\s*(\d+)", status.read_text()).group(1))

    before = peak()
    assert len(one.invoke({"id": "k"}).body) == 32 << 20
    assert peak() < before + (12 << 10)


def test_a_child_inherits_nothing(function):
    """No descriptor of hapax, and no signal blocked or ignored, that it had not without."""
    seen, bare = (one.invoke({"id": "k"}).json for one in (function("inherited"), function("inherited", bare=True)))
    assert seen == bare


GARBAGE = [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
           b"\x16\x03\x01" * 50, b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
           b"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
           b"GET /" + b"x" * 100000 + b" HTTP/1.1\r\n\r\n",
           b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
           b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
           b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
           b"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           b"POST /2018-06-01/runtime/invocation/none/response HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
           b"POST /2018-06-01/runtime/invocation//response HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"]


def test_garbage_at_its_door_ends_nothing(function):
    """Each on a connection of its own; the function is served before, between and after."""
    one = function("echo", "--key", "/id")
    for i, garbage in enumerate(GARBAGE):
        with socket.create_connection(("127.0.0.1", one.port), 10) as guest, contextlib.suppress(OSError):
            guest.sendall(garbage)
            guest.shutdown(socket.SHUT_WR)
            while guest.recv(65536):
                pass
        agree(one.invoke({"id": f"k{i}"}), one.invoke({"id": f"k{i}"}))
    one.api.misuse.clear()


# ---- the service stumbles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [403, 500])
def test_what_the_service_says_to_next_reaches_the_runtime_or_is_asked_again(function, status):
    one = function("echo", "--key", "/id")
    one.invoke({"id": "a"})
    one.api.wait_calls("next", 2)
    one.api.answer_with("next", status)
    first = one.api.invoke({"id": "b"})
    wait_until(lambda: "next" not in one.api.rules, "the rule being used")
    wait_until(lambda: one.sandbox.process.poll() is not None or len(one.api.of("next")) >= 4, "what follows")
    if one.sandbox.process.poll() is not None:
        one.cold()
    assert first.wait().kind == "response" and one.invoke({"id": "c"}).kind == "response"


def test_a_service_that_is_not_there_ends_the_runtime_in_its_own_way(hapax):
    """The runtime is told, by a status or a closed connection; hapax does not hang."""
    one = Function(hapax, "memory:", "echo", "--key", "/id")
    one.sandbox.env["AWS_LAMBDA_RUNTIME_API"] = f"127.0.0.1:{free_port()}"
    one.sandbox.start()
    assert one.sandbox.process.wait(60) != 0
    one.end()


def test_a_port_that_is_taken_is_named(hapax):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = hapax.run(bed.HAPAX, "lambda", "--store", "memory:", "--listen", f"127.0.0.1:{port}", "--", "true",
                         AWS_LAMBDA_RUNTIME_API="127.0.0.1:1")
    assert done.code != 0 and str(port) in done.err


def test_an_error_at_the_end_of_a_stream_comes_too_late(function):
    """It was completed before its first byte left, so it does not run again."""
    one = function("stream", "--key", "/id")
    one.file("fails")
    one.file("go")
    assert one.invoke({"id": "k"}).trailers
    one.gone("fails")
    assert one.invoke({"id": "k"}).error_type == "Hapax.ResponseNotKept"
    assert one.effects() == {"k": 1}


@pytest.mark.parametrize("status, runs", [("201", 1), ("503", 2), ("500", 2), ("404", 1)])
def test_the_prelude_of_a_stream_classes_it(function, status, runs):
    """Of a function URL that streams: status and headers first, eight zeros, the body."""
    one = function("prelude", words=[status])
    first = one.invoke(gateway_v2('{"id":"a"}', "k"))
    head, _, body = first.body.partition(bytes(8))
    assert (first.streaming, str(json.loads(head)["statusCode"]), body) == (True, status, b"the body")
    again = one.invoke(gateway_v2('{"id":"a"}', "k"))
    assert again.streaming == (runs == 2) and (again.streaming or again.json["statusCode"] == 410)
    assert one.effects() == {"a": runs}


def test_a_binary_event_in_base64_is_what_it_says(function):
    """Bytes that are no text: compared as bytes."""
    one = function("says")
    one.file("report", '{"statusCode":200}')
    coded = base64.b64encode(bytes(range(256))).decode()
    for replayed in "false", "true":
        assert header_of(one.invoke(gateway_v2(coded, "k", isBase64Encoded=True)), "Idempotency-Replayed") == replayed
    assert problem_of(one.invoke(gateway_v2(coded, "k"))) == "fingerprint-mismatch"
