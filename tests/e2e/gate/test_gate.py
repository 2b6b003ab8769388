"""The HTTP gate, end to end: nginx with the module, a keeper, and an API that counts its effects."""
import calendar
import contextlib
import itertools
import json
import os
import socket
import threading
import time

import pytest

import gate as g
from conftest import PATIENCE, at_some_pace, wait_until
from process import is_over, stop


def test_smoke(gate, api):
    """A second request with the key of the first is answered from the store."""
    first = gate.post("/ok", "k", b"hello")
    assert (first.status, first.body, first.replayed) == (200, b"effect=1 body=5", "false"), first
    again = gate.post("/ok", "k", b"hello")
    assert (again.status, again.body, again.replayed) == (200, b"effect=1 body=5", "true")
    assert api.count("k") == 1


# ---- the key -----------------------------------------------------------------------------


def test_a_quoted_key_is_the_bare_one(gate, api):
    """`"k"`, `k` and `"k";p=1` name one operation."""
    gate.post("/ok", '"k"')
    assert gate.post("/ok", "k").replayed == "true"
    assert gate.post("/ok", '"k";p=1').replayed == "true"
    assert gate.post("/ok", "k2").replayed == "false"


@pytest.mark.some(3)
@pytest.mark.parametrize("key", ["", '""', "a b", "a,b", '"a', "k" * 256, "ä", "a\x7f", "a;b c"])
def test_a_malformed_key_is_400(gate, api, key):
    """What is no key is refused, and nothing runs."""
    answer = gate.post("/ok", key)
    assert (answer.status, answer.problem) == (400, "bad-key")
    assert api.seen == []


def test_a_repeated_key_is_400(gate, api):
    """Two headers are refused, equal or not, and under any spelling."""
    for name in ("Idempotency-Key", "idempotency-key", "Idempotency_Key"):
        answer = gate.post("/ok", "k", headers=[(name, "k")])
        assert (answer.status, answer.problem) == (400, "bad-key")
    assert api.seen == []


def test_a_key_under_another_spelling_is_400(gate, api):
    """`Idempotency_Key`, where nginx lets it through, neither names an operation nor passes as none."""
    assert gate.post("/ok", headers=[("Idempotency_Key", "k")]).problem == "bad-key"
    assert api.seen == []


def test_a_folded_key_is_refused(gate, api):
    """A folded header never reaches the API."""
    with gate.connect() as connection:
        connection.send(b"POST /ok HTTP/1.1\r\nHost: a\r\nIdempotency-Key: a\r\n b\r\nContent-Length: 0\r\n\r\n")
        assert connection.response().status == 400
    assert api.seen == []


def test_a_problem_is_json(gate):
    """Also where what is wrong has to be escaped."""
    problem = json.loads(gate.post("/ok", '"a\\b"').body)
    assert problem["status"] == 400 and problem["type"].endswith("bad-key") and '\\"' in problem["detail"]


def test_a_bad_key_is_refused_before_the_body(gate, api):
    """400 comes without "100 Continue", and without waiting for the body."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", "a b", headers=[("Content-Length", "100000"),
                                                                ("Expect", "100-continue")], length=False))
        answer = connection.response()
        assert (answer.status, answer.problem) == (400, "bad-key")


def test_100_continue_is_sent_for_a_good_key(gate, api):
    """A client that expects "100 Continue" gets it, then its answer."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", "k", headers=[("Content-Length", "5"),
                                                              ("Expect", "100-continue")], length=False))
        assert connection.response().status == 100
        connection.send(b"hello")
        assert connection.response().body == b"effect=1 body=5"


def test_no_key_passes_as_through_plain_nginx(gate, api):
    """Optional keys: a request without one runs each time, unmarked."""
    for nth in (1, 2):
        answer = gate.post("/ok", body=b"x")
        assert (answer.body, answer.replayed) == (b"effect=%d body=1" % nth, None)


def test_required_and_missing_is_400(gate, api):
    """`hapax required` refuses a request without a key, with a link to what says so."""
    answer = gate.post("/required/ok")
    assert (answer.status, answer.problem) == (400, "missing-key")
    assert 'rel="describedby"' in answer.get("Link") and api.seen == []


def test_problems_are_named_under_the_base(gate):
    """hapax_problem_base stands before the slug, in type and in Link."""
    answer = gate.post("/base/ok")
    assert b'"type":"https://api.test/problems/missing-key"' in answer.body
    assert answer.get("Link") == '<https://api.test/problems/missing-key>; rel="describedby"'


def test_other_methods_are_not_operations(gate, api):
    """GET, PUT and DELETE with a key run each time unless hapax_methods names them."""
    for method in ("GET", "PUT", "DELETE"):
        gate.send(method, "/ok", method)
        assert gate.send(method, "/ok", method).replayed is None
        assert api.count(method) == 2
        gate.send(method, "/methods/ok", method + "2")
        assert gate.send(method, "/methods/ok", method + "2").replayed == "true"
        assert api.count(method + "2") == 1


def test_another_header_can_hold_the_key(gate, api):
    """hapax_key_header names it."""
    gate.post("/named/ok", headers=[("X-Request-Id", "k")])
    assert gate.post("/named/ok", headers=[("X-Request-Id", "k")]).replayed == "true"


def test_off_is_off(gate, api):
    """Under `hapax off` a key means nothing."""
    gate.post("/off/ok", "k")
    assert gate.post("/off/ok", "k").replayed is None and api.count("k") == 2


def test_a_key_from_the_payload(gate, api):
    """hapax_key_from: the field names the operation; a header beats it; null and absent are no key."""
    order = b'{"order": {"id": "o-1"}}'
    assert gate.post("/derived/ok", body=order).replayed == "false"
    assert gate.post("/derived/ok", body=order).replayed == "true"
    assert gate.post("/derived/ok", "k", body=order).replayed == "false"
    for body in (b"{}", b'{"order": {"id": null}}', b"no json"):
        assert gate.post("/derived/ok", body=body).replayed is None
    for body in (b'{"order": {"id": {}}}', b'{"order": {"id": ""}}', b'{"order": {"id": "%s"}}' % (b"x" * 256)):
        assert gate.post("/derived/ok", body=body).problem == "bad-key"


# Otherwise a client escapes the key in the body with a header of its own.
def test_the_key_of_the_body_counts_alone(gate, api):
    order = b'{"order": {"id": "o-2"}}'
    assert gate.post("/body-key/ok", "k1", body=order).replayed == "false"
    assert gate.post("/body-key/ok", "k2", body=order).replayed == "true"
    assert gate.post("/body-key/ok", "k1", body=b'{"order": {"id": "o-3"}}').replayed == "false"


def test_a_key_from_two_fields(gate, api):
    """Several pointers make one key, which no other pair makes; one missing is no key."""
    assert gate.post("/derived2/ok", body=b'{"shop": "a", "order": "bc"}').replayed == "false"
    assert gate.post("/derived2/ok", body=b'{"shop": "ab", "order": "c"}').replayed == "false"
    assert gate.post("/derived2/ok", body=b'{"shop": "a", "order": "bc"}').replayed == "true"
    assert gate.post("/derived2/ok", body=b'{"shop": "a"}').problem == "missing-key"


# ---- what names an operation ----------------------------------------------------------------


def test_another_body_is_422(gate, api):
    """The same key for another request is a client's mistake, and nothing runs."""
    gate.post("/ok", "k", b"a")
    for answer in (gate.post("/ok", "k", b"b"), gate.post("/ok?x", "k", b"a"), gate.send("PATCH", "/ok", "k", b"a")):
        assert (answer.status, answer.problem) == (422, "fingerprint-mismatch")
    assert api.count("k") == 1


def test_mismatch_beats_in_flight(gate, api):
    """422 is answered though the first attempt still runs."""
    first = gate.later("/hold/d", "k", b"a")
    wait_until(lambda: api.count("k") == 1, "the first attempt")
    assert gate.post("/hold/d", "k", b"b").status == 422
    api.door("d").set()
    assert first().status == 200


def test_another_caller_is_422(gate, api):
    """A key found by somebody else yields no byte of the first one's response."""
    gate.post("/ok", "k", b"a", [("Authorization", "alice")])
    answer = gate.post("/ok", "k", b"a", [("Authorization", "bob")])
    assert (answer.status, answer.problem) == (422, "caller-mismatch")
    assert b"effect" not in answer.body and api.count("k") == 1


def test_two_tenants_with_one_key(gate, api):
    """Scopes part them: two effects, two replays; a request without a scope is refused."""
    for tenant in ("a", "b"):
        assert gate.post("/tenant/ok", "k", headers=[("X-Tenant", tenant)]).replayed == "false"
        assert gate.post("/tenant/ok", "k", headers=[("X-Tenant", tenant)]).replayed == "true"
    assert api.count("k") == 2
    assert gate.post("/tenant/ok", "k").problem == "bad-key"
    assert gate.post("/tenant/ok", "k", headers=[("X-Tenant", "t" * 256)]).problem == "bad-key"


def test_json_fingerprints_see_through_spelling(gate, api):
    """Order, spaces and an excluded field do not count; values do."""
    gate.post("/json/ok", "k", b'{"a": 1, "b": 2, "at": 1}')
    assert gate.post("/json/ok", "k", b'{"b":2.0,"a":1,"at":2}').replayed == "true"
    assert gate.post("/json/ok", "k", b'{"a": 1, "b": 3, "at": 1}').status == 422


def test_a_fingerprint_can_be_off(gate, api):
    """hapax_fingerprint off: the key alone decides."""
    gate.post("/nofp/ok", "k", b"a")
    assert gate.post("/nofp/ok", "k", b"b").replayed == "true"


def test_a_large_body_counts_to_its_last_byte(gate, api):
    """1 MB, spooled to disk, chunked or not, is one fingerprint; another last byte is another."""
    body = b"x" * (1 << 20)
    assert gate.post("/ok", "k", body).body == b"effect=1 body=1048576"
    chunks = b"".join(b"%x\r\n%s\r\n" % (1 << 18, body[:1 << 18]) for _ in range(4)) + b"0\r\n\r\n"
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", "k", headers=[("Transfer-Encoding", "chunked")], length=False))
        connection.send(chunks)
        assert connection.response().replayed == "true"
    assert gate.post("/ok", "k", body[:-1] + b"y").status == 422


def test_a_request_over_the_limit_is_413(gate, api):
    """Over max_request nothing runs, with a length or chunked; without a key it passes."""
    answer = gate.post("/tiny/ok", "k", b"x" * 1025)
    assert (answer.status, answer.problem) == (413, "request-too-large")
    with gate.connect() as connection:
        connection.send(g.request("POST", "/tiny/ok", "k", headers=[("Transfer-Encoding", "chunked")], length=False))
        connection.send(b"800\r\n" + b"x" * 0x800 + b"\r\n0\r\n\r\n")
        assert connection.response().problem == "request-too-large"
        connection.send(g.request("POST", "/tiny/ok", "k", b"x"))
        assert connection.response().replayed == "false"
    assert api.count("k") == 1
    assert gate.post("/tiny/ok", body=b"x" * 1025).status == 200


def test_20_mb_without_a_key_pass(gate, api):
    """Uploads without a key are not the gate's business."""
    body = b"x" * (20 << 20)
    assert gate.post("/ok", body=body).body == b"effect=1 body=20971520"


# ---- headers to the API -----------------------------------------------------------------------


def test_the_api_gets_fence_and_attempt(gate, api):
    """The key as it came in, a fence that grows with each attempt, and its number."""
    gate.post("/status/500", '"k"')
    gate.post("/status/500", '"k"')
    first, second = (dict(headers) for headers in api.headers_of('"k"'))
    assert (first["Idempotency-Attempt"], second["Idempotency-Attempt"]) == ("1", "2")
    assert 0 < int(first["Idempotency-Fence"]) < int(second["Idempotency-Fence"])
    assert "Idempotency-Token" not in first


@pytest.mark.parametrize("key", ["k", None])
def test_headers_of_the_gate_cannot_be_forged(gate, api, key):
    """A client's fence, attempt and token are stripped in every spelling, without a key too."""
    forged = [(name, "666") for name in ("Idempotency-Fence", "idempotency-FENCE", "Idempotency_Fence",
                                         "Idempotency-Attempt", "Idempotency-Token", "Idempotency_Token")]
    many = [(f"X-{i}", str(i)) for i in range(40)]
    assert gate.post("/ok", key, headers=forged[:3] + many + forged[3:]).status == 200
    headers = api.seen[0][2]
    assert "666" not in [value for _, value in headers]
    assert [pair for pair in headers if pair[0].startswith("X-")] == many
    assert dict(headers).get("Idempotency-Attempt") == ("1" if key else None)


def test_headers_of_the_gate_are_stripped_from_other_methods(gate, api):
    """GET, which is no operation, cannot carry a fence either."""
    gate.send("GET", "/ok", headers=[("Idempotency-Fence", "666")])
    assert "Idempotency-Fence" not in dict(api.seen[0][2])


def test_a_token_is_handed_over_on_demand(gate, api):
    """hapax_pass_token: base64url of id and token, 64 characters."""
    gate.post("/token/ok", "k")
    token = dict(api.headers_of("k")[0])["Idempotency-Token"]
    assert len(token) == 64 and set(token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


# ---- replays ----------------------------------------------------------------------------------


def test_a_replay_is_the_first_response(gate, api):
    """Status, body and headers are the same, several of one name in their order; cookies never."""
    first = gate.post("/edge/ok", "k")
    again = gate.post("/edge/ok", "k")
    g.same(first, g.Response(again.status, [h if h[0] != "X-Answer" else ("X-Answer", "fresh") for h in again.headers],
                           again.body))
    assert again.all("X-A") == ["1", "2"] and again.get("ETag") == '"abc"' and again.get("X-Edge") == "yes"
    assert first.all("Set-Cookie") == ["a=1", "b=2"] and again.all("Set-Cookie") == []
    assert (first.get("X-Answer"), again.get("X-Answer")) == ("fresh", "replay")


def test_which_headers_are_stored_can_be_said(gate):
    """hapax_store_header keeps Set-Cookie, hapax_hide_header drops X-A."""
    gate.post("/cookies/ok", "k")
    again = gate.post("/cookies/ok", "k")
    assert again.all("Set-Cookie") == ["a=1", "b=2"] and again.all("X-A") == []


@pytest.mark.some(5)
@pytest.mark.parametrize("path", ["/chunked", "/nobuf/chunked", "/nobuf/ok", "/created", "/gzip", "/status/204",
                                  "/status/304", "/status/404", "/echo", "/ok?len=0", "/ok?len=1048576",
                                  "/type?t=text/x", "/try/ok", "/sub/ok", "/replays/status/500"])
def test_each_kind_of_response_is_replayed(gate, api, path):
    """Chunked, empty, gzipped, without a body, an error that is final, 1 MB: all come back as they were."""
    first = gate.post(path, "k", b"in")
    assert first.replayed == "false"
    again = gate.post(path, "k", b"in")
    assert again.replayed == "true"
    first.headers = [h for h in first.headers if h[0] != "Transfer-Encoding"]
    again.headers = [h for h in again.headers if h[0] != "Transfer-Encoding"]
    g.same(first, again)
    assert api.count("k") == 1


def test_head_is_replayed_with_its_length(gate, api):
    """HEAD under hapax_methods: no body, the length that it would have."""
    for replayed in ("false", "true"):
        answer = gate.send("HEAD", "/methods/ok?len=55", "k")
        assert (answer.replayed, answer.get("Content-Length")) == (replayed, "55")
    assert api.count("k") == 1


def test_a_replay_is_gzipped_for_who_takes_it(gate):
    """Stored is what the API said: each client gets it in its own encoding."""
    accept = [("Accept-Encoding", "gzip")]
    first = gate.post("/gz/ok", "k", headers=accept)
    assert first.get("Content-Encoding") == "gzip"
    assert gate.post("/gz/ok", "k").body == b"effect=1 body=0"
    again = gate.post("/gz/ok", "k", headers=accept)
    assert again.get("Content-Encoding") == "gzip" and g.gzip.decompress(again.body) == b"effect=1 body=0"


def test_static_files(gate):
    """A file is held and stored as a whole: no ranges, no 304."""
    ranged = [("Range", "bytes=0-2"), ("If-Modified-Since", "Fri, 01 Jan 2100 00:00:00 GMT")]
    for replayed in ("false", "true"):
        answer = gate.send("GET", "/static/file.txt", "k", headers=ranged)
        assert (answer.status, answer.body, answer.replayed) == (200, b"the file", replayed)
        assert answer.get("Last-Modified")
    (gate.folder / "html/file.txt").write_text("changed")
    assert gate.send("GET", "/static/file.txt", "k").body == b"the file"
    assert gate.send("GET", "/static/none", "k2").body == b"the error page"
    assert gate.send("GET", "/static/none", "k2").replayed == "true"


def test_a_file_put_by_dav(gate):
    """PUT of a file, whose 201 has no body and a Location that nginx makes absolute."""
    first = gate.send("PUT", "/dav/a/b", "k", b"content")
    assert (first.status, first.replayed) == (201, "false")
    assert (gate.folder / "dav/a/b").read_bytes() == b"content"
    (gate.folder / "dav/a/b").unlink()
    again = gate.send("PUT", "/dav/a/b", "k", b"content")
    assert again.replayed == "true" and not (gate.folder / "dav/a/b").exists()
    g.same(first, again)
    assert first.get("Location").startswith("http://api.test")


@pytest.mark.parametrize("kind", ["scgi", "fcgi"])
def test_scgi_and_fastcgi(gate, cgi, kind):
    """Handlers of other protocols are held and replayed alike, and get the fence."""
    first = gate.post(f"/{kind}/x", "k", b"12345")
    assert (first.status, first.body, first.replayed) == (202, b"run=1", "false")
    again = gate.post(f"/{kind}/x", "k", b"12345")
    assert again.replayed == "true" and cgi.runs == 1
    g.same(first, again)
    fields = cgi.fields
    assert (b"HTTP_IDEMPOTENCY_FENCE" in fields)


def test_an_error_page_is_part_of_the_response(gate, api):
    """error_page under a claim: its page is held, stored where the status is final, and runs nothing twice."""
    assert gate.post("/icept/status/500", "k").body == b"the error page"
    assert gate.post("/icept/status/500", "k").body == b"the error page"
    assert api.count("k") == 2  # 500 failed: a retry runs


def test_return_is_before_the_gate(gate):
    """What the rewrite phase answers is not an operation."""
    gate.post("/ret", "k")
    assert gate.post("/ret", "k").replayed is None


def test_a_mirror_sees_each_operation_once(gate, api):
    """Replays are not mirrored."""
    gate.post("/mirrored/ok", "k")
    wait_until(lambda: api.count("MIRROR-k") == 1, "the mirror")
    gate.post("/mirrored/ok", "k")
    gate.post("/mirrored/ok", "k2")
    wait_until(lambda: api.count("MIRROR-k2") == 1, "the mirror")
    assert api.count("MIRROR-k") == 1


def test_replays_are_authorised(gate, api):
    """auth_request is asked for a replay too; revoked credentials get 401, not the stored response."""
    assert gate.post("/auth/ok", "k").replayed == "false"
    assert gate.post("/auth/ok", "k").replayed == "true"
    assert api.count("AUTH") == 2
    assert gate.post("/auth/ok", "k", headers=[("Authorization", "revoked")]).status == 401


def test_a_response_over_the_limit_is_gone(gate, api):
    """It passes whole, with or without a length; a repeat is told 410, and what the status was."""
    for path in ("/small/ok?len=3000", "/small/chunked?n=30&x=100", "/ok?len=5000000", "/nobuf/chunked?n=30&x=10000",
                 "/chunked?n=40&x=10000"):
        first = gate.post(path, path.replace("?", ":").replace("&", ":"))
        assert (first.status, first.replayed) == (200, "false") and len(first.body) > 2000
        again = gate.post(path, path.replace("?", ":").replace("&", ":"))
        assert (again.status, again.problem) == (410, "response-not-kept")
        assert b'"original_status":200' in again.body
    assert len(gate.post("/chunked?n=40&x=10000", "k2").body) == sum(len(b"%d-chunk " % i) * 10000 for i in range(40))


def test_headers_over_the_limit_are_gone(gate, api):
    """80 headers of 900 bytes are over 64k: the response passes, a repeat is GONE."""
    first = gate.post("/bighead/many", "k")
    assert (first.status, first.body) == (200, b"effect=1") and len(first.headers) > 80
    assert gate.post("/bighead/many", "k").problem == "response-not-kept"


def test_an_event_stream_passes_at_once(gate, api):
    """Its first event comes while it still runs; a repeat is GONE."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/nobuf/events/d", "k"))
        assert connection.file.readline().startswith(b"HTTP/1.1 200")
        while connection.file.readline() != b"\r\n":
            pass
        assert b"data: 1" in connection.file.readline() + connection.file.readline()
        assert gate.post("/nobuf/events/d", "k").problem == "response-not-kept"
        api.door("d").set()
        assert any(b"data: 2" in connection.file.readline() for _ in range(6))
    assert api.count("k") == 1


def test_ssi_is_done_again_for_a_replay(gate, api):
    """Stored is the page; what it includes is fetched each time."""
    (gate.folder / "html/page.html").write_text('<!--#include virtual="/off/ok" -->!')
    assert gate.send("GET", "/ssi/page.html", "k").body == b"effect=1 body=0!"
    (gate.folder / "html/page.html").write_text("changed")
    again = gate.send("GET", "/ssi/page.html", "k")
    assert (again.body, again.replayed) == (b"effect=2 body=0!", "true")


def test_an_upgraded_connection_passes(gate, api):
    """After 101 bytes go through as they are; a repeat is GONE."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/upgrade", "k", headers=[("Upgrade", "echo"), ("Connection", "upgrade")]))
        assert connection.response().status == 101
        connection.send(b"ping\n")
        assert connection.file.readline() == b"ping\n"
    wait_until(lambda: gate.post("/upgrade", "k").problem == "response-not-kept", "the end being stored")
    assert api.count("k") == 1


@pytest.mark.parametrize("path", ["/hold/d", "/small/hold/d?len=5000"])
def test_an_outcome_stored_by_another_is_the_answer(gate, api, hapax, store, path):
    """Who resolved the operation while it ran is believed, and not the handler's own end."""
    first = gate.later(path, "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    resolved = hapax("resolve", "--store", store, "k", "--complete", "207", "--header", "X-By: operator", "--force")
    assert resolved.code == 0, resolved.err
    api.door("d").set()
    for answer in (first(), gate.post(path, "k")):
        assert (answer.status, answer.replayed, answer.get("X-By")) == (207, "true", "operator")


# ---- outcomes -----------------------------------------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("status", [401, 403, 408, 425, 429, 503])
def test_a_refusal_is_passed_on_and_a_retry_runs(gate, api, status):
    """Nothing ran: the answer is the API's, and the same key runs again, with refreshed credentials too."""
    assert gate.post(f"/status/{status},200", "k", headers=[("Authorization", "old")]).status == status
    answer = gate.post(f"/status/{status},200", "k", headers=[("Authorization", "new")])
    assert (answer.status, answer.body, answer.replayed) == (200, b"effect=2", "false")


@pytest.mark.parametrize("status", [400, 404, 409, 422, 301])
def test_a_final_error_is_replayed(gate, api, status):
    """Other 4xx and 3xx are the operation's outcome."""
    for replayed in ("false", "true"):
        answer = gate.post(f"/status/{status}", "k")
        assert (answer.status, answer.replayed) == (status, replayed)


@pytest.mark.some()
@pytest.mark.parametrize("status", [409, 423, 429])
@pytest.mark.parametrize("header", ["Retry-After:1", "Stripe-Should-Retry:true"])
def test_an_answer_that_says_try_again_is_not_final(gate, api, status, header):
    """A lock that somebody else has, and the like: passed on, and a retry runs."""
    path = f"/status/{status},201?h={header}"
    first, second = gate.post(path, "k"), gate.post(path, "k")
    assert (first.status, first.replayed, second.status, second.replayed) == (status, "false", 201, "false")
    assert gate.post(path, "k").replayed == "true"
    assert api.count("k") == 2


@pytest.mark.some(2)
@pytest.mark.parametrize("status, header", [(409, "Stripe-Should-Retry:false"), (423, "X-Retry:true"),
                                            (400, "Retry-After:1"), (422, "Stripe-Should-Retry:true")])
def test_no_other_answer_is_made_a_refusal_by_a_header(gate, api, status, header):
    """The header must say it, and the status must be one that can."""
    path = f"/status/{status},201?h={header}"
    assert gate.post(path, "k").status == status
    assert (again := gate.post(path, "k")).status == status and again.replayed == "true"
    assert api.count("k") == 1


def test_a_class_may_have_a_condition_on_a_header(gate, api):
    """Rules count in their order: 503 is not run with Retry-After, and unknown without; the built-in ones come last."""
    def ends(status, header):
        path = f"/mesh/status/{status},200" + (f"?h={header}" if header else "")
        key = f"{status}{header}"
        assert gate.post(path, key).status == status
        again = gate.post(path, key)
        return again.problem if again.replayed is None else (again.status, again.replayed)

    assert ends(503, "Retry-After:1") == (200, "false")
    assert ends(503, None) == "in-flight"  # for its lease: nobody can tell
    assert ends(500, "X-Result:not-run") == (200, "false")
    assert ends(500, "X-Result:not-run-at-all") == "in-flight"
    assert ends(409, "Retry-After:1") == (409, "true")
    assert ends(423, "Retry-After:1") == (200, "false")


def test_a_failure_by_policy(gate, api):
    """500: `retry` runs again, `replay` keeps it, `hold` leaves it to an operator."""
    assert gate.post("/status/500,200", "a").status == 500
    assert gate.post("/status/500,200", "a").status == 200
    assert gate.post("/replays/status/500,200", "b").status == 500
    again = gate.post("/replays/status/500,200", "b")
    assert (again.status, again.replayed) == (500, "true")
    assert gate.post("/failhold/status/500,200", "c").status == 500
    again = gate.post("/failhold/status/500,200", "c")
    assert (again.status, again.problem) == (409, "unknown-outcome")
    assert [api.count(k) for k in "abc"] == [2, 1, 1]


# How an API answers each time after it has charged, and how often three requests with one key charge: what is said to
# be unknown or final once, what the API itself says of the request as often as it says so.
AFTER_THE_CHARGE = [
    ("status/401", 3), ("status/403", 3), ("status/425", 3), ("status/429", 3),
    ("status/408", 1), ("status/408?h=Retry-After:1", 3), ("status/503", 1), ("status/503?h=Retry-After:1", 3),
    ("status/409", 1), ("status/409?h=Retry-After:1", 3), ("status/423?h=Stripe-Should-Retry:true", 3),
    ("status/500", 1), ("status/500?h=Retry-After:1", 1), ("status/502", 1), ("status/504", 1), ("status/507", 1),
    ("drop", 1), ("trunc", 1), ("truncchunked", 1), ("status/200", 1), ("status/422", 1), ("status/302", 1),
]


def test_under_hold_no_answer_after_the_charge_charges_twice(gate, api):  # promise 5
    """Unless the API itself says that it did nothing: 408 and 503 count as its word with Retry-After only."""
    for nth, (path, charges) in enumerate(AFTER_THE_CHARGE):
        answers = [gate.post(f"/operated/{path}", f"k{nth}") for _ in range(3)]
        assert api.count(f"k{nth}") == charges, (path, answers)
        final = path in ("status/409", "status/200", "status/422", "status/302")
        if charges == 1 and not final:
            assert [again.problem for again in answers[1:]] == ["unknown-outcome"] * 2, (path, answers)
        else:
            assert [again.replayed for again in answers] == ["false", *[str(final).lower()] * 2], (path, answers)


@pytest.mark.parametrize("path, runs", [("/tried/status/503", 1), ("/caught/status/503", 1), ("/pushed/echo", 3)])
def test_the_location_that_met_a_request_judges_its_response(make_gate, api, path, runs):
    """Wherever try_files and error_page lead: under hold a 503 is unknown, and what Dapr has to retry runs again."""
    gate = make_gate(f"""server {{ LISTEN
        location /tried/ {{ hapax on; hapax_on_expired hold; try_files /nothing @api; }}
        location /caught/ {{ hapax on; hapax_on_expired hold; proxy_intercept_errors on; error_page 503 /busy.html;
                             proxy_pass http://127.0.0.1:{api.port}/; }}
        location = /busy.html {{ }}
        location /pushed/ {{ hapax on; hapax_push dapr; try_files /nothing @api; }}
        location @api {{ rewrite ^/[a-z]+(/.*)$ $1 break; proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    (gate.folder / "html/busy.html").write_text("busy")
    for _ in range(3):
        gate.post(path, "k", b'{"status":"RETRY"}')
    assert api.count("k") == runs


@pytest.mark.parametrize("path, runs", [("/caught/drop", 0), ("/accel/status/200?h=X-Accel-Redirect:/busy", 1),
                                        ("/ruled/drop", 0), ("/ruled/status/200?h=X-Accel-Redirect:/busy", 3),
                                        ("/accel/status/200?h=X-Accel-Redirect:@gone", 0),
                                        ("/accel/status/200?h=X-Accel-Redirect:@left", 0),
                                        ("/dead/x", 3), ("/missing/x", 3), ("/tried/x", 3)])
def test_under_hold_another_location_cannot_say_that_nothing_ran(make_gate, api, path, runs):
    """Once the service was asked, no other is, unless the service itself leads there. A 503 with Retry-After from there
    is unknown, unless a rule says what it means. Where nobody was asked before, it is the word of the service."""
    gate = make_gate(f"""server {{ LISTEN hapax on; hapax_on_expired hold;
        location /caught/ {{ error_page 502 = @busy; proxy_pass http://127.0.0.1:{api.port}/; }}
        location /accel/ {{ proxy_pass http://127.0.0.1:{api.port}/; }}
        location /ruled/ {{ hapax_class 503 not_run; error_page 502 = @busy; proxy_pass http://127.0.0.1:{api.port}/; }}
        location /dead/ {{ error_page 502 = @busy; proxy_pass http://127.0.0.1:1; }}
        location /missing/ {{ error_page 404 = @busy; }}
        location /tried/ {{ try_files /nothing @busy; }}
        location = /busy {{ internal; try_files /nothing @busy; }}
        location @gone {{ error_page 404 405 = @busy; }}
        location @left {{ error_page 404 = @busy; return 404; }}
        location @busy {{ rewrite ^ /status/503?h=Retry-After:1? break; proxy_method POST;
                          proxy_set_header Idempotency-Key BUSY; proxy_pass http://127.0.0.1:{api.port}; }} }}""")
    gate.start()
    answers = [gate.post(path, "k") for _ in range(3)]
    assert api.count("BUSY") == runs, answers
    assert [answer.status for answer in answers] == ([503] * 3 if runs == 3 else [503 if runs else 500, 409, 409])


def test_under_hold_an_end_by_close_is_no_proof(make_gate, api):
    """A response without a length or chunks may be half of one. Under rerun it is kept; under hold the operation
    waits for an operator, unless a rule says that such responses are whole."""
    gate = make_gate(f"""proxy_http_version 1.1; server {{ LISTEN hapax on;
        location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
        location /hold/ {{ hapax_on_expired hold; proxy_pass http://127.0.0.1:{api.port}/; }}
        location /trust/ {{ hapax_on_expired hold; hapax_class 2xx final;
                            proxy_pass http://127.0.0.1:{api.port}/; }} }}""")
    gate.start()
    for path, problem in (("/byclose", None), ("/hold/byclose", "unknown-outcome"), ("/trust/byclose", None),
                          ("/hold/ok", None), ("/hold/chunked", None)):
        first, again = (gate.post(path, path[1:].replace("/", "-")) for _ in range(2))
        assert (first.status, api.count(path[1:].replace("/", "-"))) == (200, 1), (path, first, again)
        if problem:
            assert again.problem == problem, (path, again)
        else:
            assert (again.replayed, again.body) == ("true", first.body), (path, again)


def test_an_upstream_that_cannot_be_evaluated(make_gate, api):
    """proxy_pass of a variable without a URL is nginx's own 500, and the worker lives on."""
    gate = make_gate("""server { LISTEN hapax on; hapax_on_expired hold;
        location / { set $nowhere ""; proxy_pass $nowhere; } }""")
    workers = gate.start().workers()
    assert gate.post("/x", "k").status == 500
    assert gate.workers() == workers


def test_under_hold_a_rule_of_the_operator_wins(gate, api):
    """hapax_class and hapax_on_failed give back what hold takes away, and may take more."""
    for path, charges in (("status/503", 3), ("status/500", 3), ("status/403", 1), ("status/408", 1)):
        for _ in range(3):
            gate.post(f"/ruled/{path}", path.replace("/", "-"))
        assert api.count(path.replace("/", "-")) == charges, path


def test_attempts_run_out(gate, api):
    """After attempts_max the last failure is the answer."""
    gate.post("/twice/status/500", "k")
    gate.post("/twice/status/500", "k")
    answer = gate.post("/twice/status/500", "k")
    assert (answer.status, answer.body, answer.replayed) == (500, b"effect=2", "true")
    assert api.count("k") == 2


def test_classes_can_be_set(gate, api):
    """hapax_class 5xx final: a 500 is kept."""
    gate.post("/class/status/500", "k")
    assert gate.post("/class/status/500", "k").replayed == "true"


def test_nothing_was_sent_so_a_retry_runs(gate):
    """An upstream that cannot be connected to leaves no claim, with error_page or without."""
    for path, status in (("/dead", 502), ("/dead_named", 503)):
        for _ in range(2):
            answer = gate.post(path, "k" + path[1:])
            assert (answer.status, answer.replayed) == (status, "false")


def test_a_name_that_does_not_resolve_runs_nothing(make_gate):
    """No resolver answers, so nothing was sent: under hold each retry may run."""
    gate = make_gate("""resolver 127.0.0.1:1; resolver_timeout 100ms;
        server { LISTEN hapax on; hapax_on_expired hold;
                 location / { set $name nosuch.invalid; proxy_pass http://$name; } }""").start()
    for _ in range(2):
        answer = gate.post("/x", "k")
        assert (answer.status, answer.problem, answer.replayed) == (502, "upstream-unreachable", "false")


@pytest.mark.some(3)
@pytest.mark.parametrize("path", ["/drop", "/trunc", "/truncchunked", "/nobuf/trunc", "/slowdead/hold/never"])
def test_a_cut_response_is_an_honest_error(gate, api, path):
    """Dropped, truncated or timed out after it was sent: 502 or 504, not recorded, in flight for its lease."""
    answer = gate.post(path, "k")
    assert answer.status in (502, 504), answer
    assert answer.get("Idempotency-Recorded") == "false"
    again = gate.post(path, "k")
    assert (again.status, again.problem) == (409, "in-flight")
    assert 1 <= int(again.get("Retry-After")) <= 30
    assert "cut off" in json.loads(again.body)["detail"]
    wait_until(lambda: api.count("k") > 0, "the attempt")  # which the gate may have given up before it was read
    assert api.count("k") == 1


def test_a_truncated_response_says_so(gate):
    """The client never gets half of a body under a 200, and what was cut is no outcome."""
    assert gate.post("/trunc", "k").problem == "response-truncated"
    assert gate.post("/operated/trunc", "held").problem == "response-truncated"
    assert gate.post("/operated/trunc", "held").problem == "unknown-outcome"


def test_unknown_under_hold_is_left_to_an_operator(gate, api):
    """With on_expired=hold a cut response is unknown at once, long before the lease is over, and never runs again."""
    assert gate.post("/operated/drop", "k").status == 502
    answer = gate.post("/operated/drop", "k")
    assert (answer.status, answer.problem, answer.get("Retry-After")) == (409, "unknown-outcome", None)
    assert api.count("k") == 1


def test_unknown_under_rerun_runs_again(gate, api):
    """When the lease of a cut attempt is over the next one takes over."""
    assert gate.post("/short/drop", "k").status == 502
    wait_until(lambda: gate.post("/short/drop", "k").status == 502, "a second attempt")
    assert api.count("k") == 2


# ---- at the same time -----------------------------------------------------------------------------


def test_in_flight_is_409(gate, api):
    """While the first runs a second gets 409 and the lease that is left; then the replay."""
    began = time.time()
    first = gate.later("/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the first attempt")
    second = gate.post("/hold/d", "k")
    assert (second.status, second.problem) == (409, "in-flight")
    assert 10 <= int(second.get("Retry-After")) <= 30  # it is renewed when 20 are left
    since = calendar.timegm(time.strptime(json.loads(second.body)["since"], "%Y-%m-%dT%H:%M:%SZ"))
    assert began - 2 <= since <= time.time()
    api.door("d").set()
    assert first().body == b"effect=1"
    assert gate.post("/hold/d", "k").replayed == "true"


def test_in_flight_can_be_429(gate, api):
    """hapax_in_flight_status."""
    first = gate.later("/429/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the first attempt")
    assert gate.post("/429/hold/d", "k").status == 429
    api.door("d").set()
    first()


def test_waiters_get_the_answer(gate, api):
    """With hapax_wait repeats wait for the first and are given its response."""
    first = gate.later("/waits/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the first attempt")
    others = [gate.later("/waits/hold/d", "k") for _ in range(5)]
    wait_until(lambda: '"in_flight":6' in gate.send("GET", "/hapax?format=json").body.decode(), "waiting")
    api.door("d").set()
    assert first().replayed == "false"
    assert [other().replayed for other in others] == ["true"] * 5
    assert api.count("k") == 1


def test_a_lease_is_renewed_while_the_handler_runs(make_gate, api):
    """An attempt several times as long as its lease is not taken over."""
    leases_ms = (300, 2000, 10000)
    gate = make_gate("server { LISTEN hapax on;" + "".join(
        f"location /{ms}/ {{ hapax_lease {ms}ms; proxy_pass http://127.0.0.1:{api.port}/; }}"
        for ms in leases_ms) + "}").start()

    def renewed(ms):
        path, key = f"/{ms}/hold/{ms}", f"k{ms}"
        first = gate.later(path, key)
        try:
            wait_until(lambda: api.count(key) == 1, "the first attempt")
            end = time.monotonic() + ms * 4 / 1000
            while time.monotonic() < end:
                again = gate.post(path, key)
                assert again.status == 409 and again.problem == "in-flight"
        finally:
            api.door(str(ms)).set()
        assert first().status == 200 and api.count(key) == 1

    at_some_pace(renewed, *leases_ms)


@pytest.mark.parametrize("path, rest", [("/waits/hold/d", "true"), ("/hold/d", None)])
def test_200_racing_duplicates_run_once(make_gate, api, folder, path, rest):  # promise 1
    """Over 4 workers and 2 gates on one store: 1 effect; all equal answers, or one and 199 × 409."""
    gates = [make_gate(g.locations(api, folder), workers=4, name=name).start() for name in ("one", "two")]
    calls = [gates[i % 2].later(path, "k", b"body") for i in range(200)]
    if rest is None:
        # the losers are turned away at once, and the winner waits for them
        wait_until(lambda: sum(not thread.is_alive() for thread in (call.thread for call in calls)) == 199,
                   "199 answers")
    else:
        wait_until(lambda: api.count("k") == 1, "the winner")
    api.door("d").set()
    answers = [call() for call in calls]
    fresh = [answer for answer in answers if answer.replayed == "false"]
    assert len(fresh) == 1 and fresh[0].body == b"effect=1" and api.count("k") == 1
    if rest is None:
        assert sorted(answer.status for answer in answers) == [200] + [409] * 199
    else:
        assert {(answer.status, answer.body) for answer in answers} == {(200, b"effect=1")}
        assert sorted(answer.replayed for answer in answers) == ["false"] + ["true"] * 199


def test_the_next_in_line_runs_after_a_failure(gate, api):
    """Of those who wait one runs when the first failed; the others get its answer."""
    first = gate.later("/waits/status/500,200", "k")
    assert first().status == 500
    assert gate.post("/waits/status/500,200", "k").status == 200
    assert api.count("k") == 2


# ---- protocols ----------------------------------------------------------------------------------


def test_http_1_0(gate):
    """No chunks are sent to HTTP/1.0."""
    for replayed in ("false", "true"):
        answer = gate.post("/chunked", "k", b"x", version="1.0")
        assert (answer.body, answer.replayed) == (b"0-chunk 1-chunk 2-chunk ", replayed)


def test_keepalive_and_pipelining(gate, api):
    """Requests on one connection, sent at once, are answered in order."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", "a", b"x") + g.request("POST", "/ok", "b", b"xy")
                        + g.request("POST", "/ok", "a", b"x") + g.request("POST", "/required/ok")
                        + g.request("POST", "/ok", "c", b""))
        answers = [connection.response() for _ in range(5)]
    assert [a.status for a in answers] == [200, 200, 200, 400, 200]
    assert [a.replayed for a in answers] == ["false", "false", "true", None, "false"]
    assert [a.body for a in answers if a.status == 200] == [b"effect=1 body=1", b"effect=1 body=2",
                                                           b"effect=1 body=1", b"effect=1 body=0"]


def curl(gate, path, key, *words):
    done = g.subprocess.run(["curl", "-sS", "--http2-prior-knowledge", "-i", "-m", "30", "-X", "POST", "-H",
                             f"Idempotency-Key: {key}", "-H", "Host: api.test", *words,
                             f"http://127.0.0.1:{gate.h2_port}{path}"],
                            capture_output=True, timeout=60)
    return done.stdout.decode("latin-1").replace("\r", "")


def test_http2(gate, api):
    """One record serves HTTP/2 and HTTP/1.1; large bodies, over the limit, problems."""
    body = "x" * 100000
    (gate.folder / "body").write_text(body)
    first = curl(gate, "/ok", "k", "--data-binary", f"@{gate.folder}/body")
    assert first.startswith("HTTP/2 200") and "idempotency-replayed: false" in first
    assert gate.post("/ok", "k", body.encode()).replayed == "true"
    assert "idempotency-replayed: true" in curl(gate, "/ok", "k", "--data-binary", f"@{gate.folder}/body")
    assert curl(gate, "/required/ok", "a b").startswith("HTTP/2 400")
    over = curl(gate, "/chunked?n=40&x=10000", "k2", "-d", "x")
    assert over.startswith("HTTP/2 200") and over.count("39-chunk ") == 10000
    assert curl(gate, "/chunked?n=40&x=10000", "k2", "-d", "x").startswith("HTTP/2 410")
    assert curl(gate, "/status/204", "k3", "-d", "x").startswith("HTTP/2 204")


def test_a_client_that_leaves_http2(gate, api):
    """A stream that is reset leaves its outcome recorded."""
    process = g.subprocess.Popen(["curl", "-sS", "--http2-prior-knowledge", "-X", "POST", "-H", "Idempotency-Key: k",
                                  "-H", "Host: api.test", f"http://127.0.0.1:{gate.h2_port}/hold/d"],
                                 stdout=-3, stderr=-3)
    wait_until(lambda: api.count("k") == 1, "the attempt")
    process.kill()
    process.wait()
    api.door("d").set()
    wait_until(lambda: gate.post("/hold/d", "k").replayed == "true", "the outcome being stored")
    assert api.count("k") == 1


# The gRPC statuses whose class hold changes: 8 and 14 are the service's own word with a pushback only.
@pytest.mark.some(3)
@pytest.mark.parametrize("status, trailer, runs_again", [
    (7, "", True), (16, "", True), (8, "", False), (14, "", False), (13, "", False),
    (8, "grpc-retry-pushback-ms 100", True), (14, "grpc-retry-pushback-ms 0", True),
    (14, "grpc-retry-pushback-ms -1", False)])
def test_grpc_under_hold(make_gate, status, trailer, runs_again):
    """What a proxy may have said, or a server that could not send its answer, is unknown."""
    port = g.free_port()
    more = f"add_trailer {trailer} always;" if trailer else ""
    gate = make_gate(f"""
        server {{ listen 127.0.0.1:{port} http2; location / {{ default_type application/grpc; return 200 "message";
                  add_trailer grpc-status {status} always; {more} }} }}
        server {{ LISTEN hapax on; hapax_on_expired hold; location / {{ grpc_pass grpc://127.0.0.1:{port}; }} }}
        """).start()
    answers = [curl(gate, "/service/method", "k", "-d", "x", "-H", "TE: trailers") for _ in range(2)]
    assert "idempotency-replayed: false" in answers[0]
    assert ("idempotency-replayed: false" in answers[1]) == runs_again, answers[1]


def test_grpc_over_the_limit_is_unknown(make_gate):
    """Its status comes after bytes that go out before: under hold an operator decides."""
    port = g.free_port()
    gate = make_gate(f"""
        server {{ listen 127.0.0.1:{port} http2; location / {{ default_type application/grpc; return 200 "a message";
                  add_trailer grpc-status 0 always; }} }}
        server {{ LISTEN hapax on; hapax_on_expired hold; hapax_max_response 5;
                  location / {{ grpc_pass grpc://127.0.0.1:{port}; }} }}
        """).start()
    first, again = (curl(gate, "/service/method", "k", "-d", "x", "-H", "Content-Type: application/grpc")
                    for _ in range(2))
    assert "a message" in first and "a message" not in again
    assert "grpc-status: 9\n" in again


@pytest.mark.some(3)
@pytest.mark.parametrize("status, replayed", [(0, "true"), (5, "true"), (13, "false"), (14, "false"), (16, "false")])
def test_grpc(make_gate, status, replayed):
    """Unary calls are classed by grpc-status; a replay has the trailers of the first response."""
    port = g.free_port()
    gate = make_gate(f"""
        server {{ listen 127.0.0.1:{port} http2; location / {{ default_type application/grpc; return 200 "message";
                  add_trailer grpc-status {status} always; add_trailer grpc-message text always;
                  add_trailer set-cookie s=1 always; add_trailer x-secret s always; }} }}
        server {{ LISTEN hapax on; hapax_hide_header X-Secret; location / {{ grpc_pass grpc://127.0.0.1:{port}; }} }}
        """).start()
    first = curl(gate, "/service/method", "k", "-d", "x", "-H", "TE: trailers")
    again = curl(gate, "/service/method", "k", "-d", "x", "-H", "TE: trailers")
    assert "idempotency-replayed: false" in first and f"idempotency-replayed: {replayed}" in again
    for response in (first, again):
        assert "content-type: application/grpc" in response and "message" in response
        assert f"grpc-status: {status}\n" in response and "grpc-message: text\n" in response
    if replayed == "true":  # what is never stored in a header is not in a trailer
        assert "s=1" in first and "s=1" not in again and "x-secret" not in again.lower()


# ---- clients that leave -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/hold/d", "/nobuf/hold/d"])
def test_a_client_that_leaves_is_recorded(gate, api, path):
    """Its operation runs to its end, and a retry gets the response."""
    with gate.connect() as connection:
        connection.send(g.request("POST", path, "k"))
        wait_until(lambda: api.count("k") == 1, "the attempt")
    assert gate.post(path, "k").problem == "in-flight"
    api.door("d").set()
    wait_until(lambda: gate.post(path, "k").replayed == "true", "the outcome being stored")
    assert gate.post(path, "k").body == b"effect=1" and api.count("k") == 1


def test_a_client_that_leaves_a_replay_runs_nothing(gate, api):
    """An aborted replay changes nothing."""
    gate.post("/ok?len=1000000", "k")
    for _ in range(10):
        with gate.connect() as connection:
            connection.send(g.request("POST", "/ok?len=1000000", "k"))
    assert gate.post("/ok?len=1000000", "k").replayed == "true" and api.count("k") == 1


def test_a_client_that_leaves_its_upload_claims_nothing(gate, api):
    """Half of a body is no request."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", "k", headers=[("Content-Length", "100")], length=False) + b"half")
    assert gate.post("/ok", "k", b"x" * 100).replayed == "false" and api.count("k") == 1


# ---- processes ----------------------------------------------------------------------------------


def test_reload_with_requests_in_flight(gate, api):  # promise 46
    """The old worker ends its operation, the new one replays it."""
    first = gate.later("/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    old = gate.workers()
    gate.signal(g.signal.SIGHUP)
    wait_until(lambda: [w for w in gate.workers() if w not in old], "a new worker")
    wait_until(lambda: gate.post("/ok", "other").status == 200, "the new worker")
    assert gate.post("/hold/d", "k").problem == "in-flight"
    api.door("d").set()
    assert first().body == b"effect=1"
    wait_until(lambda: old[0] not in gate.workers(), "the old worker leaving")
    assert gate.post("/hold/d", "k").replayed == "true" and api.count("k") == 1


def test_a_reload_waits_for_what_is_being_saved(make_gate, api, folder, hapax, store):  # promise 46
    """The client was answered, and the store hangs for longer than one try: the old worker tries again."""
    gate = make_gate(f"""server {{ LISTEN hapax on; hapax_on_expired hold; hapax_lease 5m; hapax_save_wait 100ms;
        hapax_store unix:{folder}/store/keeper.sock?timeout=1s; hapax_timeout 30s;
        location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
        location /short/ {{ hapax_timeout 1500ms; proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    first = gate.later("/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    stop(hapax.keeper.pid)
    api.door("d").set()
    assert first().get("Idempotency-Recorded") == "false"
    gate.signal(g.signal.SIGHUP)
    wait_until(lambda: "gracefully shutting down" in gate.log(), "the old worker quitting")
    assert gate.post("/short/ok", "other").problem == "store-unavailable"
    hapax.keeper.kill()
    hapax.keeper.wait()
    hapax.keep(store)
    wait_until(lambda: gate.post("/hold/d", "k").status == 200, "the outcome")
    assert api.count("k") == 1


def test_a_graceful_quit_answers_first(gate, api):
    """SIGQUIT waits for the handler and its outcome; a new gate replays it."""
    first = gate.later("/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    gate.signal(g.signal.SIGQUIT)
    api.door("d").set()
    assert first().body == b"effect=1"
    assert gate.process.wait(g.PATIENCE) == 0
    gate.process.stderr.close()
    gate.start()
    assert gate.post("/hold/d", "k").replayed == "true"


@pytest.mark.parametrize("path, runs", [("/short/hold/d", 2), ("/holds/hold/d", 1)])
def test_kill_9_of_a_worker(gate, api, path, runs):
    """Its claim runs out with its lease: `rerun` runs again, `hold` never twice."""
    first = gate.later(path, "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    old = gate.workers()
    g.os.kill(old[0], g.signal.SIGKILL)
    with pytest.raises(AssertionError):
        first()
    api.door("d").set()
    wait_until(lambda: gate.workers() and gate.workers() != old, "a new worker")
    wait_until(lambda: (answer := gate.post(path, "k")).status != 409 or answer.problem == "unknown-outcome",
               "the end of the lease")
    assert api.count("k") == runs
    assert gate.post(path, "k").status == (200 if runs == 2 else 409)
    assert gate.post("/ok", "other").status == 200


@pytest.mark.parametrize("step", ["reading", "claiming", "saving"])
def test_kill_9_of_a_worker_at_each_step(gate, api, hapax, step):
    """Wherever a worker dies, under `hold` no effect happens twice, and the key gets a last word."""
    path, old = "/holds/hold/d", gate.workers()
    if step == "reading":
        connection = gate.connect()
        connection.send(g.request("POST", path, "k", headers=[("Content-Length", "9")], length=False) + b"half")
        api.door("d").set()
    else:
        if step == "claiming":
            stop(hapax.keeper.pid)
            api.door("d").set()
        connection = gate.connect()
        connection.send(g.request("POST", path, "k", b"whole", headers=[]))
        if step == "claiming":
            wait_until(lambda: b'"in_flight":1' in gate.send("GET", "/hapax?format=json").body, "the claim")
        else:
            wait_until(lambda: api.count("k") == 1, "the attempt")
            stop(hapax.keeper.pid)
            api.door("d").set()
            wait_until(lambda: b'"held_bytes":0' not in gate.send("GET", "/hapax?format=json").body, "the response")
    try:
        g.os.kill(old[0], g.signal.SIGKILL)
        wait_until(lambda: gate.workers() and gate.workers() != old, "a new worker")
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    connection.close()
    answers = [gate.post(path, "k", b"whole")]
    while answers[-1].status != 200 and answers[-1].problem in ("in-flight", "store-unavailable"):
        answers.append(gate.post(path, "k", b"whole"))
    assert answers[-1].status == 200 or answers[-1].problem == "unknown-outcome"
    assert api.count("k") <= 1


def test_binary_upgrade(make_gate, api, folder):  # promise 46
    """SIGUSR2 and SIGQUIT: the old binary ends what it has in hand, the new one replays it."""
    gate = make_gate(g.locations(api, folder), daemon="on")  # a child of the test would not be upgraded
    pid_file = gate.folder / "nginx.pid"
    masters = []

    def new_master():
        pid = ""
        with g.contextlib.suppress(FileNotFoundError):  # it is renamed, and written anew
            pid = pid_file.read_text().strip()
        return pid and int(pid) not in masters and not masters.append(int(pid))

    assert gate.nginx().returncode == 0
    try:
        wait_until(new_master, "the master")
        first = gate.later("/hold/d", "k")
        wait_until(lambda: api.count("k") == 1, "the attempt")
        g.os.kill(masters[0], g.signal.SIGUSR2)
        wait_until(new_master, "the new master")
        g.os.kill(masters[0], g.signal.SIGQUIT)
        api.door("d").set()
        assert first().body == b"effect=1"
        wait_until(lambda: gate.post("/hold/d", "k").replayed == "true", "the new worker")
        wait_until(lambda: is_over(masters[0]), "the old master ending")
        assert api.count("k") == 1
    finally:
        g.os.kill(masters[-1], g.signal.SIGTERM)
        wait_until(lambda: not pid_file.exists(), "the master ending")


def test_kill_9_of_the_keeper(make_gate, api, folder, hapax, store):  # promise 4
    """503 while it is away, nothing runs; service and records are back with the next keeper."""
    gate = make_gate("hapax_timeout 500ms;" + g.locations(api, folder)).start()
    patient = make_gate(g.locations(api, folder), name="patient").start()
    assert patient.post("/ok", "before").status == 200
    wait_until(lambda: gate.post("/ok", "before").replayed == "true", "the keeper being found")
    hapax.keeper.kill()
    hapax.keeper.wait()
    answer = gate.post("/ok", "k")
    assert (answer.status, answer.problem) == (503, "store-unavailable") and int(answer.get("Retry-After")) > 0
    assert api.count("k") == 0
    hapax.keep(store)
    wait_until(lambda: gate.post("/ok", "before").replayed == "true", "the keeper being found again")
    wait_until(lambda: gate.post("/ok", "k").status == 200, "service")
    assert api.count("k") == 1 and api.count("before") == 1


def test_a_store_that_is_down_at_the_start(folder, api, hapax, store):
    """nginx starts, refuses with 503, and serves by itself once the store is there."""
    folder.chmod(0o755)
    gate = g.Gate(folder,
                  f"hapax_store unix:{folder}/store/keeper.sock; hapax_timeout 200ms;" + g.locations(api, folder))
    try:
        gate.start()
        assert gate.post("/ok", "k").problem == "store-unavailable"
        assert gate.post("/ok").status == 200  # no key, no store
        hapax.keep(store)
        wait_until(lambda: gate.post("/ok", "k").status == 200, "service")
        assert api.count("k") == 1
    finally:
        gate.stop()
    assert "keeper.sock" in gate.log()
    gate.check_log()


def test_a_stopped_store_blocks_nobody(make_gate, api, folder, hapax):
    """SIGSTOP of the keeper: claims get 503 in time, nothing runs, no ghost blocks a key, service resumes."""
    # begins while all is well
    held = f"location /hold/ {{ hapax_timeout 30s; proxy_pass http://127.0.0.1:{api.port}; }}"
    gate = make_gate("hapax_timeout 300ms; hapax_save_wait 300ms;"
                     + g.locations(api, folder).replace("LISTEN", "LISTEN " + held)).start()
    running = gate.later("/hold/d", "running")
    wait_until(lambda: api.count("running") == 1, "the attempt")
    stop(hapax.keeper.pid)
    try:
        calls = [gate.later("/ok", f"k{i}") for i in range(20)]
        assert {call().problem for call in calls} == {"store-unavailable"}
        api.door("d").set()
        late = running()
        assert (late.status, late.body, late.get("Idempotency-Recorded")) == (200, b"effect=1", "false")
        assert api.count("k0") == 0
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    for i in range(20):
        wait_until(lambda: gate.post("/ok", f"k{i}").status == 200, "service")
        assert api.count(f"k{i}") == 1
    wait_until(lambda: gate.post("/hold/d", "running").replayed == "true", "the late outcome")
    assert api.count("running") == 1


def test_whatever_becomes_of_the_keeper_nothing_runs_twice(make_gate, api, folder, hapax, store):
    """Under load its keeper is killed, is stopped, and the gate is reloaded: under `hold` no effect happens twice, and
    each key gets its answer."""
    gate = make_gate(g.locations(api, folder)).start()
    over, answers = threading.Event(), {}

    def ask(who):
        for n in itertools.count():
            key = f"{who}-{n}"
            while answers.get(key) != "done":
                with contextlib.suppress(OSError, AssertionError):  # a worker that ends closes what is idle
                    answer = gate.post("/operated/ok", key)
                    answers[key] = "done" if answer.status == 200 else answer.problem
                if answers.get(key) not in (None, "done", "in-flight", "store-unavailable"):
                    return
            if over.is_set():
                return

    threads = [threading.Thread(target=ask, args=(who,), daemon=True) for who in range(12)]
    for thread in threads:
        thread.start()

    def goes_on():
        before = len(answers)
        wait_until(lambda: len(answers) > before + 60, "service")

    for _ in range(3):
        goes_on()
        hapax.keeper.kill()
        hapax.keeper.wait()
        hapax.keeper = hapax.keep(store)
        goes_on()
        old = gate.workers()
        gate.signal(g.signal.SIGHUP)
        stop(hapax.keeper.pid)
        try:
            wait_until(lambda: [w for w in gate.workers() if w not in old], "a new worker")
        finally:
            hapax.keeper.send_signal(g.signal.SIGCONT)
        wait_until(lambda: not set(old) & set(gate.workers()), "the old worker leaving")
    over.set()
    for thread in threads:
        thread.join(g.PATIENCE)
        assert not thread.is_alive()
    assert set(answers.values()) == {"done"}
    assert {api.count(key) for key in answers} == {1}


def test_an_embedded_store_is_reached_through_its_holder(make_gate, api, folder, store):
    """hapax_store rocksdb:PATH means the keeper there."""
    gate = make_gate(f"server {{ LISTEN hapax on; hapax_store {store}; location / {{ proxy_pass "
                     f"http://127.0.0.1:{api.port}; }} }}")
    gate.start()
    assert gate.post("/ok", "k").replayed == "false"
    assert gate.post("/ok", "k").replayed == "true"


def test_open_runs_without_protection(folder, api, hapax, store):
    """on_store_error=open: the API is reached, and the response says that nothing protects it."""
    folder.chmod(0o755)
    gate = g.Gate(folder, f"hapax_store unix:{folder}/store/keeper.sock; hapax_timeout 100ms; hapax_save_wait 100ms;"
                          "hapax_on_store_error open;" + g.locations(api, folder))
    try:
        gate.start()
        answer = gate.post("/ok", "k")
        assert (answer.status, answer.get("Idempotency-Protected"), answer.replayed) == (200, "false", None)
        assert api.count("k") == 1
    finally:
        gate.stop()
    gate.check_log()


# ---- secrets, limits ------------------------------------------------------------------------------


def test_another_secret_is_refused(make_gate, api, folder, hapax):
    """A store used under one secret serves no gate with another."""
    def start(name):
        (folder / name).write_text(f"secret {name}\n")
        (folder / name).chmod(0o600)
        return make_gate(f"hapax_secret {folder}/{name};" + g.locations(api, folder), name="nginx-" + name).start()

    first = start("one")
    wait_until(lambda: first.post("/ok", "k").status == 200, "service")  # the store is the first secret's now
    second = start("two")
    answer = second.post("/ok", "k2")
    assert (answer.status, answer.get("Retry-After")) == (503, None)
    wait_until(lambda: "another secret" in second.log(), "a line of it")
    assert api.count("k2") == 0


def test_held_bytes_are_limited(make_gate, api, folder):
    """Over hapax_held_max nothing new is begun, and what runs passes unkept."""
    gate = make_gate("hapax_held_max 64k;" + g.locations(api, folder)).start()
    first = gate.post("/ok?len=200000", "k")
    assert len(first.body) == 200000
    assert gate.post("/ok?len=200000", "k").problem == "response-not-kept"
    wait_until(lambda: b"hapax_held_bytes 0\n" in gate.send("GET", "/hapax").body, "the memory being free")
    assert gate.post("/ok", "k2").status == 200


@pytest.mark.parametrize("again", [False, True])
def test_clients_that_do_not_read_take_no_room_from_others(make_gate, api, folder, again):
    """Of 24 megabytes that nobody reads, in first answers or in replays, at most hapax_held_max stays in memory; other
    clients' operations run and are kept. Who has read nothing for longest is closed, and gets it by a repeat."""
    gate = make_gate("hapax_held_max 3m; hapax_max_response 2m; proxy_buffers 4 64k; proxy_busy_buffers_size 64k;"
                     + g.locations(api, folder), listen="sndbuf=16k").start()

    def page():
        return json.loads(gate.send("GET", "/hapax?format=json").body)

    size = 1_000_000
    if again:
        assert all(len(gate.post(f"/ok?len={size}", f"slow{i}").body) == size for i in range(4))
    with contextlib.ExitStack() as stack:
        slow = []
        for i in range(24):
            slow.append(stack.enter_context(NotReading(gate.port)))
            slow[-1].send(g.request("POST", f"/ok?len={size}", f"slow{i % 4 if again else i}"))
            wait_until(lambda i=i: again or api.count(f"slow{i}") == 1, "the attempt")
            assert gate.post("/ok?len=200000", f"other{i}").status == 200
            assert gate.post("/ok?len=200000", f"other{i}").replayed == "true"
        wait_until(lambda: size <= page()["unread_bytes"] <= 3 << 20 and page()["held_bytes"] == 0, "memory being free")
        wait_until(lambda: sum(page()["answers"][kind] for kind in ("fresh", "replay")) == 72 + 4 * again, "answers")
        with pytest.raises((AssertionError, OSError)):
            slow[0].response()
        assert len(slow[-1].response().body) == size
    assert len(gate.post(f"/ok?len={size}", "slow0").body) == size and api.count("slow0") == 1
    wait_until(lambda: page()["unread_bytes"] == 0, "the memory being free")


def resident_bytes(gate):
    return int(g.pathlib.Path(f"/proc/{gate.workers()[0]}/statm").read_text().split()[1]) * 4096


def test_a_body_is_not_kept_while_its_handler_runs(gate, api):
    """One that is in a file is gathered for its fingerprint, and no longer."""
    before, body = resident_bytes(gate), b'{"a":"' + b"x" * 1000000 + b'"}'
    later = [gate.later("/json/hold/gathered", f"k{i}", body) for i in range(30)]
    wait_until(lambda: all(api.count(f"k{i}") for i in range(30)), "the handlers")
    assert resident_bytes(gate) - before < 15 << 20
    api.door("gathered").set()
    assert [answer().status for answer in later] == [200] * 30


def test_memory_and_descriptors_stay_flat(gate, api):
    """Thousands of first runs, replays, refusals and aborts leave nothing behind in the worker."""
    def measure():
        wait_until(lambda: b'"in_flight":0,' in gate.send("GET", "/hapax?format=json").body, "all calls ending")
        return resident_bytes(gate), len(list(g.pathlib.Path(f"/proc/{gate.workers()[0]}/fd").iterdir()))

    def work(name, n):
        with gate.connect() as connection:
            for i in range(n):
                key = f"{name}-{i // 2}"  # each twice
                connection.send(g.request("POST", "/ok?len=5000", key) + g.request("POST", "/ok", "a b")
                                + g.request("POST", "/small/ok?len=5000", key + "s"))
                assert [connection.response().status for _ in range(3)] == [200, 400, 410 if i % 2 else 200]
        for i in range(n // 20):
            with gate.connect() as connection:
                connection.send(g.request("POST", "/ok?len=5000", f"{name}-abort-{i}"))

    work("warm", 300)
    before, descriptors = measure()
    for n in range(int(os.environ.get("HAPAX_SOAK_ROUNDS", 4))):
        work(f"round{n}", 300)
    after, _ = measure()
    assert after - before < 2 << 20
    # What the upstream may keep alive; 60 were aborted, and the worker closes them in its own time.
    wait_until(lambda: measure()[1] <= descriptors + 16, "the descriptors being closed")
    wait_until(lambda: b'"in_flight":0,"lane_queue":0,"held_bytes":0,"unread_bytes":0}\n'
               in gate.send("GET", "/hapax?format=json").body,
               "all memory being free")


class NotReading(g.Connection):
    """A client with little room for what it does not read."""

    def __init__(self, port):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")


# ---- what it shows ----------------------------------------------------------------------------------


def test_status_page(gate, api):
    """Prometheus text and JSON count answers and the store's time; nothing is left in hand."""
    gate.post("/ok", "k")
    gate.post("/ok", "k")
    gate.post("/required/ok")
    wait_until(lambda: b'"in_flight":0' in gate.send("GET", "/hapax?format=json").body, "all calls ending")
    text = gate.send("GET", "/hapax").body.decode()
    for line in ('hapax_answers_total{answer="fresh"} 1', 'hapax_answers_total{answer="replay"} 1',
                 'hapax_answers_total{answer="missing_key"} 1', 'hapax_store_seconds_count 3', 'hapax_in_flight 0'):
        assert line + "\n" in text, text
    page = gate.send("GET", "/hapax?format=json")
    assert page.get("Content-Type") == "application/json"
    assert json.loads(page.body)["answers"]["replay"] == 1


def test_variables_are_logged(gate, api):
    """$hapax_answer, _key_id, _attempt, _fence and _time, of fresh, replayed and bypassed requests."""
    for key in ("k", "k", None):
        gate.post("/ok", key)
    wait_until(lambda: gate.log("access.log").count("\n") == 3, "the log")
    fresh, replay, bypass = (line.split() for line in gate.log("access.log").splitlines())
    assert fresh[:2] == ["200", "fresh"] and replay[:2] == ["200", "replay"] and bypass[:2] == ["200", "bypass"]
    assert fresh[2] == replay[2] and len(fresh[2]) == 64 and bypass[2] == "-"
    assert fresh[3] == "1" and int(fresh[4]) > 0 and float(fresh[5]) > 0 and bypass[3:5] == ["-", "-"]


# ---- next upstream, reconcile -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET"])
@pytest.mark.parametrize("path", ["/drop", "/dead"])
def test_nginx_runs_an_operation_once(make_gate, api, method, path):
    """After bytes were sent no next server gets the request, whatever its method, and after a redirect, too."""
    other = g.Api()
    try:
        gate = make_gate(f"""
            upstream both {{ server 127.0.0.1:{api.port}; server 127.0.0.1:{other.port}; }}
            server {{ LISTEN hapax on; hapax_methods POST PUT DELETE GET;
                      location / {{ proxy_pass http://both; }}
                      location /dead {{ error_page 502 = @both; proxy_pass http://127.0.0.1:1; }}
                      location @both {{ rewrite ^ /drop break; proxy_pass http://both; }} }}
            """).start()
        assert gate.send(method, path, "k").status == 502
        assert api.count("k") + other.count("k") == 1
    finally:
        other.close()


@pytest.mark.parametrize("path, again", [("/tried/ok", None), ("/caught/drop", "unknown-outcome")])
def test_an_operation_is_redirected_to_no_two_servers(make_gate, api, path, again):
    """Where a redirect leads to non_idempotent none is asked. If none was before, a retry runs once that is mended."""
    gate = make_gate(f"""
        upstream both {{ server 127.0.0.1:{api.port}; server 127.0.0.1:{api.port}; }}
        server {{ LISTEN hapax on; hapax_on_expired hold;
                  location /tried/ {{ try_files /nothing @both; }}
                  location /caught/ {{ error_page 502 = @both; proxy_pass http://127.0.0.1:{api.port}/; }}
                  location @both {{ hapax off; proxy_next_upstream error non_idempotent; proxy_pass http://both; }} }}
        """).start()
    assert gate.post(path, "k").status == 500
    assert api.count("k") == (1 if again else 0)
    assert '"proxy_next_upstream ... non_idempotent" in location "@both"' in gate.log()
    gate.http = gate.http.replace("non_idempotent", "")
    gate.write()
    gate.signal(g.signal.SIGHUP)
    if again:
        assert gate.post(path, "k").problem == again
    else:
        wait_until(lambda: gate.post(path, "k").status == 200, "the new worker")
    assert api.count("k") == 1


@pytest.mark.parametrize("policy, runs", [("hold", 1), ("rerun", 2)])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_under_hold_no_second_server_gets_the_operation(make_gate, api, method, policy, runs):  # promise 5
    """error_page to a named location keeps method and body: under hold an operator decides instead."""
    gate = make_gate(f"""
        server {{ LISTEN hapax on; hapax_methods GET POST; hapax_on_expired {policy};
                  location /drop {{ error_page 502 = @backup; proxy_pass http://127.0.0.1:{api.port}; }}
                  location @backup {{ rewrite ^ /ok break; proxy_pass http://127.0.0.1:{api.port}; }} }}
        """).start()
    first, again = (gate.send(method, "/drop", "k") for _ in range(2))
    assert api.count("k") == runs
    assert (first.status, again.status) == ((500, 409) if runs == 1 else (200, 200)), (first, again)
    assert ("could run it a second time" in gate.log()) == (runs == 1)


@pytest.mark.parametrize("chunk, status", [(b"zz\r\n", 400), (b"800\r\n" + b"x" * 0x800 + b"\r\n0\r\n\r\n", 413)],
                         ids=["no chunk", "too large"])
def test_the_page_for_a_body_that_cannot_be_read_is_sent(make_gate, api, chunk, status):
    """nginx leads to it amid the reading; the request must not wait for the body for ever."""
    gate = make_gate(f"""
        server {{ LISTEN hapax on; client_max_body_size 1k; error_page 400 413 /err.html;
                  location = /err.html {{ }}
                  location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
                  location /backed/ {{ error_page 400 413 = @backup; proxy_pass http://127.0.0.1:{api.port}/; }}
                  location @backup {{ proxy_pass http://127.0.0.1:{api.port}; }} }}
        """).start()
    (gate.folder / "html/err.html").write_text("a page")
    for later, path in ((False, "/ok"), (True, "/ok"), (True, "/backed/ok")):
        with gate.connect() as connection:
            head = g.request("POST", path, "k", headers=[("Transfer-Encoding", "chunked")], length=False)
            if later:  # begun, and then read by events
                connection.send(head + b"1\r\nx\r\n")
                connection.send(chunk)
            else:
                connection.send(head + chunk)
            answer = connection.response()
            if path == "/ok":
                assert (answer.status, answer.body) == (status, b"a page")
            else:  # no server gets half of it
                assert answer.status == 500
    assert api.count("k") == 0 and gate.post("/ok", "k").replayed == "false"


def test_an_error_page_takes_the_clients_method(make_gate, folder):
    """What keeps PUT from a next server is gone in the location that an error leads to."""
    gate = make_gate(f"""
        server {{ LISTEN hapax on; hapax_methods PUT;
            location / {{ error_page 502 = @dav; client_body_in_file_only clean; proxy_pass http://127.0.0.1:1; }}
            location @dav {{ dav_methods PUT; root {folder}/nginx; }} }}
        """).start()
    assert gate.send("PUT", "/put", "k", b"body").status == 201
    assert (folder / "nginx/put").read_bytes() == b"body"


@pytest.mark.parametrize("hook, runs", [("status/200", 1), ("status/204", 1), ("status/404", 2),
                                        ("status/500", 1), ("byclose", 1)])
def test_reconcile_asks_before_a_stale_operation_runs(make_gate, api, folder, hook, runs):
    """A whole 2xx is the outcome, 404 runs, anything else leaves it unknown with a Retry-After."""
    gate = make_gate(f"""
        server {{ LISTEN
            location / {{ hapax on; hapax_lease 300ms; hapax_on_expired reconcile; hapax_reconcile /did;
                          proxy_pass http://127.0.0.1:{api.port}; }}
            location = /did {{ internal; proxy_pass http://127.0.0.1:{api.port}/{hook};
                               proxy_method GET; proxy_pass_request_body off; proxy_set_header Content-Length "";
                               proxy_set_header Idempotency-Key ASKED; }} }}
        """).start()
    assert gate.post("/drop", "k").status == 502
    answers = [gate.post("/drop", "k")]
    while answers[-1].status == 409 and answers[-1].problem == "in-flight":
        answers.append(gate.post("/drop", "k"))
    answer = answers[-1]
    assert api.count("ASKED") == 1
    if hook in ("status/200", "status/204"):
        assert (answer.body, answer.replayed) == (b"effect=1" if hook == "status/200" else b"", "true")
        assert gate.post("/drop", "k").replayed == "true"
    elif hook in ("status/500", "byclose"):
        assert (answer.status, answer.problem, answer.get("Retry-After")) == (409, "unknown-outcome", "1")
    else:
        assert (answer.status, answer.replayed) == (502, "false")
    assert api.count("k") == runs


def test_a_hooks_outcome_is_sent_once(make_gate, api):
    """Without any wait for the store the answer comes with the hook's last byte. A large one is sent whole."""
    gate = make_gate(f"""
        server {{ LISTEN hapax_max_response 16m;
            location / {{ hapax on; hapax_lease 300ms; hapax_on_expired reconcile; hapax_reconcile /did;
                          hapax_save_wait 0s; proxy_pass http://127.0.0.1:{api.port}; }}
            location = /did {{ internal; proxy_pass http://127.0.0.1:{api.port}/ok?len=16000000; proxy_method GET;
                               proxy_pass_request_body off; proxy_set_header Content-Length ""; }} }}
        """).start()
    answer = gate.post("/drop", "k")
    while answer.status != 200:
        answer = gate.post("/drop", "k")
    assert len(answer.body) == 16000000


# ---- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize("lines, said", [
    ("hapax maybe;", '"hapax" does not take "maybe": it takes on, off, shadow, required, or a variable'),
    ("hapax on;", 'there is no "hapax_store"'),
    ("hapax_store nowhere;", '"hapax_store" does not take "nowhere"'),
    ("hapax_store ftp:x;", "no known scheme"),
    ('hapax_zone "a b";', '"hapax_zone" does not take "a b": it takes a name of 1 to 64 letters'),
    ("hapax_methods BREW;", '"hapax_methods" does not take "BREW": it takes POST'),
    ("hapax_lease soon;", '"hapax_lease": cannot set "lease" to "soon"'),
    ("hapax_lease 1ms;", '"lease" is out of its limits'),
    ("hapax_on_expired explode;", "must be rerun, hold or reconcile"),
    ("hapax_on_expired reconcile;", 'needs "hapax_reconcile URI"'),
    ("hapax_profile payment;", 'cannot set "profile" to "payment": must be payments'),
    ("hapax_profile payments; hapax_profile payments;", '"hapax_profile" directive is duplicate'),
    ("hapax_store unix:/x; hapax on; hapax_profile payments;", '"hapax_profile payments") needs "hapax_owner VALUE"'),
    ("hapax_key_min 256;", '"key_min" is out of its limits, 0 to 255'),
    ("hapax_fingerprint body json;", '"body" or JSON, not both'),
    ('hapax_caller "";', 'say "none" if all requests are one caller'),
    ("hapax_fingerprint nose;", '"hapax_fingerprint" does not take "nose"'),
    ("hapax_fingerprint +/a -/b;", "not both"),
    ("hapax_key_from order;", '"hapax_key_from" takes JSON pointers'),
    ("hapax_class 99 final;", "statuses from 200 to 599"),
    ("hapax_class 409+ final;", "statuses from 200 to 599"),
    ("hapax_class 409+a+b final;", "409+retry-after"),
    ("hapax_class 500 maybe;", "final, not_run, failed or unknown"),
    ("hapax_in_flight_status 400;", "409 or 429"),
    ("hapax_limit keys=10;", '"hapax_limit" does not take "keys=10": it takes in_flight=N, keys=N/h, bytes=SIZE and'),
    ("hapax_limit unknown=1 unknown=2;", '"hapax_limit" does not take "unknown=2"'),
    ("hapax_limit off keys=10/h;", '"hapax_limit" does not take "off"'),
    ("hapax_limit keys=1/h; hapax_limit off;", '"hapax_limit" directive is duplicate'),
    ("hapax_store_header Connection;", '"hapax_store_header" does not take "connection"'),
    ("hapax_secret /nonexistent;", '"hapax_secret": cannot open "/nonexistent"'),
    ("hapax_secret_old /nonexistent;", '"hapax_secret_old": cannot open "/nonexistent"'),
    ("hapax_store unix:/x; hapax on; hapax_secret_old none;", '"hapax_secret_old", and no "hapax_secret"'),
    ("hapax_secret_old none; hapax_secret_old none;", "is duplicate"),
    ("hapax_keys /nonexistent;", '"hapax_keys": cannot open "/nonexistent"'),
    ("hapax_keys /dev/null;", '"hapax_keys": cannot use "/dev/null"'),
    ("hapax_key_header Key:;", '"hapax_key_header" does not take "Key:"'),
    ("hapax_wait 1s; hapax_wait 2s;", '"hapax_wait" directive is duplicate'),
    ("hapax_store unix:/x; hapax on; proxy_next_upstream error non_idempotent;", "would run an operation twice"),
])
def test_malformed_configuration_fails(folder, lines, said):
    """nginx -t names the directive and what it takes."""
    gate = g.Gate(folder, f"server {{ LISTEN location / {{ {lines} proxy_pass http://127.0.0.1:1; }} }}")
    done = gate.nginx("-t")
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_a_secret_of_its_own_has_no_older_one(folder):
    """A location with another secret, for another store, takes no part in the server's rotation."""
    for name in "new", "own":
        (folder / name).write_text(name * 10)
        (folder / name).chmod(0o600)
    gate = g.Gate(folder, f"""hapax_store unix:/x; hapax_secret {folder}/new; hapax_secret_old none; hapax on;
        server {{ LISTEN location / {{ hapax_secret {folder}/own; hapax_pass_token on;
                                       proxy_pass http://127.0.0.1:1; }} }}""")
    done = gate.nginx("-t")
    assert done.returncode == 0, done.stderr


def test_settings_are_inherited(make_gate, api, folder):
    """A location takes what it does not set from its server, and the server from http."""
    gate = make_gate(f"""
        hapax_max_response 10; hapax required;
        server {{ LISTEN hapax_in_flight_status 429; proxy_set_header Host $host;
                  location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
                  location /more/ {{ hapax_max_response 1k; hapax on; proxy_pass http://127.0.0.1:{api.port}/; }} }}
        """).start()
    assert gate.post("/ok").problem == "missing-key"
    gate.post("/ok", "a")
    assert gate.post("/ok", "a").problem == "response-not-kept"
    gate.post("/more/ok", "b")
    assert gate.post("/more/ok", "b").replayed == "true"
    assert gate.post("/more/ok").status == 200
