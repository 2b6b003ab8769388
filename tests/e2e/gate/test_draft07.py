"""What draft-ietf-httpapi-idempotency-key-header-07 asks of a server or of what stands before one: a case
for each rule in capitals, and for each practice of its section 5, against the real module.

Rules for clients alone (2.5.1, and the client's side of 2.2 and 2.7) have no case.
"""
import json
import re
import time
import uuid

import pytest

import gate as g
from conftest import ROOT, at_some_pace, wait_until


UUID = '"8e03978e-40d5-43e8-bc93-6894a57f9324"'


def documented(answer, status, slug):
    """A problem whose type, and whose Link, lead to the page that explains it."""
    page = "https://api.test/problems/" + slug
    assert (answer.status, answer.get("Content-Type")) == (status, "application/problem+json"), answer
    problem = json.loads(answer.body)
    assert (problem["type"], problem["status"]) == (page, status) and problem["title"] and problem["detail"]
    assert answer.get("Link") == f'<{page}>; rel="describedby"'
    assert (ROOT / "docs/problems" / (slug + ".md")).stat().st_size > 100


def in_flight(gate, api, path, key, body=b""):
    """The first attempt, still running."""
    first = gate.later(path, key, body)
    wait_until(lambda: api.count(key) == 1, "the first attempt")
    return first


# ---- 2.1 the value is a String -------------------------------------------------------------------


@pytest.mark.parametrize("key", [UUID, '"clkyoesmbgybucifusbbtdsbohtyuuwz"', '"a b,c;d"', r'"a\"b\\c"', '"k";v=1;w'])
def test_2_1_a_string_is_a_key(gate, api, key):
    """2.1, MUST: the value is a quoted String of Structured Fields; it may hold escapes, and carry parameters."""
    assert [gate.post("/ok", key).replayed for _ in range(2)] == ["false", "true"]
    assert api.count(key) == 1


def test_2_1_the_string_is_compared_and_not_its_spelling(gate, api):
    """2.1, MUST: what counts is the String that the value says; parameters and spaces around it are none of it."""
    assert gate.post("/ok", r'"a\"b"').replayed == "false"
    assert gate.post("/ok", r'  "a\"b";v=2 ').replayed == "true"
    assert gate.post("/ok", r'"a\\b"').replayed == "false"
    assert len(api.seen) == 2


@pytest.mark.parametrize("key", ['"a', 'a"', '"a"b', r'"a\b"', '"a\\"', '"ä"', '"a\tb"', '("a")', '"a" "b"',
                                 '"a";', '"a";V=1', '"a";v=', '?1 0', "'a'", ""])
def test_2_1_what_is_no_string_is_refused(gate, api, key):
    """2.1, MUST: a value that does not parse as a String is no key, and nothing runs for it."""
    answer = gate.post("/ok", key)
    assert (answer.status, answer.problem) == (400, "bad-key")
    assert api.seen == []


@pytest.mark.parametrize("headers", [[("Idempotency-Key", '"b"')], [("Idempotency-Key", '"a"')]])
def test_2_1_an_item_stands_once(gate, api, headers):
    """2.1: the field is one Item, and no list: two lines, or two members in one, are refused, equal or not."""
    assert gate.post("/ok", '"a"', headers=headers).problem == "bad-key"
    assert gate.post("/ok", '"a", ' + headers[0][1]).problem == "bad-key"
    assert api.seen == []


# ---- 2.2 uniqueness ------------------------------------------------------------------------------


def test_2_2_a_key_is_for_one_payload(gate, api):
    """2.2, MUST NOT: a key that comes with another payload does not run, and does not get the first one's result."""
    first = gate.post("/echo", UUID, b"secret one")
    answer = gate.post("/echo", UUID, b"another one")
    assert (answer.status, answer.problem) == (422, "fingerprint-mismatch")
    assert first.body not in answer.body and api.count(UUID) == 1


def test_2_2_the_owner_says_within_what_a_key_is_unique(gate, api):
    """2.2, MUST: the resource's owner defines the space of its keys: here a tenant's."""
    for tenant in ("a", "b"):
        assert gate.post("/tenant/ok", UUID, headers=[("X-Tenant", tenant)]).replayed == "false"
    assert api.count(UUID) == 2


def test_2_2_uuids_are_keys_as_they_are(gate, api):
    """2.2, RECOMMENDED: UUIDs and random strings are taken, and none is folded into another."""
    keys = [f'"{uuid.UUID(int=n)}"' for n in range(8)] + [UUID, UUID.upper()]
    assert [gate.post("/ok", key).replayed for key in keys] == ["false"] * 10
    assert [gate.post("/ok", key).replayed for key in keys] == ["true"] * 10


# ---- 2.3 expiry ----------------------------------------------------------------------------------


def test_2_3_keys_expire_by_a_policy(make_gate, api):
    """2.3, SHOULD: there is a time for which a key is kept, set by the owner; afterwards the key is new."""
    def expires(ms):
        gate = make_gate(f"""server {{ LISTEN hapax on; hapax_lease 100ms; hapax_retention {ms}ms;
                                       location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""",
                         name=f"of-{ms}").start()
        key = f'"{uuid.UUID(int=ms)}"'
        assert [gate.post("/ok", key).replayed for _ in range(2)] == ["false", "true"]
        wait_until(lambda: gate.post("/ok", key).replayed == "false", "the end of retention")
        assert api.count(key) == 2

    at_some_pace(expires, 500, 5000, 20000)


def test_2_3_answers_tell_their_expiry(make_gate, api):
    """For how long a retry is safe, and how old a replay is. Nothing of the kind of what runs again."""
    gate = make_gate(f"""
        server {{ LISTEN hapax on; location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
                  location /ever/ {{ hapax_retention forever; proxy_pass http://127.0.0.1:{api.port}/; }} }}
        """).start()
    first, again = (gate.post("/ok", UUID) for _ in range(2))
    assert (first.get("Idempotency-TTL"), first.get("Age")) == ("86400", None)
    assert 86000 < int(again.get("Idempotency-TTL")) <= 86400 and 0 <= int(again.get("Age")) < 400
    wait_until(lambda: int(gate.post("/ok", UUID).get("Age")) > int(again.get("Age")), "a replay to grow older")
    for replayed in ("false", "true"):
        answer = gate.post("/ever/ok", '"for-ever"')
        assert (answer.replayed, answer.get("Idempotency-TTL")) == (replayed, None)
    assert gate.post("/status/503", '"not-run"').get("Idempotency-TTL") is None


def test_2_3_time_based_keys_expire_without_a_record(make_gate, api):
    """2.3, MAY: a key that carries its time runs nothing once it is older than its record could be."""
    def expires(ms):
        gate = make_gate(f"""server {{ LISTEN hapax on; hapax_lease 100ms; hapax_retention {ms}ms;
                                       hapax_key_expires on; hapax_fingerprint method;
                                       location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
                                       location /any/ {{ hapax_key_expires off;
                                                         proxy_pass http://127.0.0.1:{api.port}/; }} }}""",
                         name=f"timed-{ms}").start()
        made = int(time.time() * 1000)
        key = f'"{uuid.UUID(int=made << 80 | 7 << 76 | 2 << 62 | ms)}"'
        assert [gate.post("/ok", key).replayed for _ in range(2)] == ["false", "true"]
        wait_until(lambda: gate.post("/ok", key).status == 410, "the end of retention")
        assert gate.post("/ok", key).problem == "expired-key" and api.count(key) == 1
        old = f'"t{made // 1000 - 60}-order-{ms}"'
        assert (gate.post("/ok", old).status, api.count(old)) == (410, 0)
        assert gate.post("/any/ok", old).status == 200
        assert gate.post("/ok", old).replayed == "true" and api.count(old) == 1  # what is known is replayed

    at_some_pace(expires, 500, 5000, 20000)


def test_2_3_a_tombstone_refuses_what_was_done(make_gate, api):
    """Behind the retention, which may depend on the status, a key that was used up is 410, and then new. Another
    request under it is 422 as ever; what is sent with the answers speaks of the retention alone."""
    def expires(ms):
        gate = make_gate(f"""server {{ LISTEN hapax on; hapax_lease 100ms; hapax_retention 1h; hapax_tombstone {ms}ms;
                                       hapax_retention_4xx {ms}ms; hapax_retention_failed {ms}ms;
                                       location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""",
                         name=f"tomb-{ms}").start()
        good, gone, failed = (f'"{name}-{ms}"' for name in ("good", "gone", "failed"))
        first, again = (gate.post("/status/404", gone) for _ in range(2))
        assert (first.replayed, again.replayed) == ("false", "true")
        assert first.get("Idempotency-TTL") == str(ms // 1000) and gate.post("/ok", good).replayed == "false"
        wait_until(lambda: gate.post("/status/404", gone).status == 410, "the end of retention")
        late = gate.post("/status/404", gone)
        assert late.problem == "expired-key" and api.count(gone) == 1 and late.get("Age") is None
        assert gate.post("/ok", gone).problem == "fingerprint-mismatch"
        wait_until(lambda: gate.post("/status/404", gone).replayed == "false", "the end of the tombstone")
        assert api.count(gone) == 2 and gate.post("/ok", good).replayed == "true"

    at_some_pace(expires, 1000, 5000, 20000)


def test_2_3_the_policy_is_published():
    """2.3, SHOULD, and 2.5.2, MUST: the documentation names the expiry and its default."""
    lines = (ROOT / "docs/nginx.md").read_text().splitlines()
    line, = [line for line in lines if line.startswith("| `hapax_retention TIME")]
    assert "`24h`" in line


# ---- 2.4 the fingerprint -------------------------------------------------------------------------


def test_2_4_a_fingerprint_of_the_whole_payload(gate):
    """2.4, MAY: a checksum of the payload tells requests apart, to its last byte."""
    gate.post("/ok", UUID, b"x" * 5000)
    assert gate.post("/ok", UUID, b"x" * 5000).replayed == "true"
    assert gate.post("/ok", UUID, b"x" * 4999 + b"y").status == 422


def test_2_4_a_fingerprint_of_chosen_elements(gate):
    """2.4, MAY: chosen elements of the payload can decide alone."""
    gate.post("/json/ok", UUID, b'{"amount": 5, "at": 1}')
    assert gate.post("/json/ok", UUID, b'{"amount": 5, "at": 2}').replayed == "true"
    assert gate.post("/json/ok", UUID, b'{"amount": 6, "at": 1}').status == 422


# ---- 2.5.2 what a resource does ------------------------------------------------------------------


def test_2_5_2_a_specification_is_published():
    """2.5.2, MUST: each problem that the gate can tell has a page, and the format of a key is written down."""
    source = (ROOT / "src/http/problem.c").read_text()
    slugs = set(re.findall(r'\b\d{3},\s+[A-Z_]+,\s+"([a-z-]+)",', source))
    assert {"missing-key", "bad-key", "in-flight", "fingerprint-mismatch", "caller-mismatch"} <= slugs
    assert slugs - {page.stem for page in (ROOT / "docs/problems").glob("*.md")} == set()
    assert "1 to 255 bytes" in (ROOT / "docs/problems/bad-key.md").read_text()


@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key", "IDEMPOTENCY-KEY"])
def test_2_5_2_the_key_is_found_in_its_header(gate, api, name):
    """2.5.2, SHOULD: the key is read from Idempotency-Key, whatever the case of the field's name, and passed on."""
    gate.post("/ok", headers=[(name, UUID)])
    assert gate.post("/ok", headers=[(name, UUID)]).replayed == "true"
    assert len(api.seen) == 1 and {k.lower(): v for k, v in api.seen[0][2]}["idempotency-key"] == UUID


def test_2_5_2_each_request_is_enforced(gate, api):
    """2.5.2, SHOULD: key, fingerprint and enforcement hold for every request of POST and PATCH."""
    for method in ("POST", "PATCH"):
        answers = [gate.send(method, "/ok", f'"{method}"', b"x") for _ in range(3)]
        assert [a.replayed for a in answers] == ["false", "true", "true"]
        assert gate.send(method, "/ok", f'"{method}"', b"y").status == 422
        assert api.count(f'"{method}"') == 1


# ---- 2.6 enforcement -----------------------------------------------------------------------------


@pytest.mark.some(2)
@pytest.mark.parametrize("path, status", [("/ok", 200), ("/created", 201), ("/status/204", 204), ("/status/404", 404)])
def test_2_6_a_first_request_is_processed(gate, api, path, status):
    """2.6, SHOULD: what was not seen before runs as it would without the gate, and has its own status."""
    answer = gate.post(path, UUID, b"in")
    assert (answer.status, answer.replayed) == (status, "false")
    g.same(answer, gate.post("/off" + path, '"plain"', b"in"))
    assert api.seen[0][3] == b"in"


@pytest.mark.some(2)
@pytest.mark.parametrize("path", ["/ok", "/created", "/status/404", "/status/422", "/replays/status/500"])
def test_2_6_a_retry_gets_the_result(gate, api, path):
    """2.6, SHOULD: after the first has ended a retry gets its result, a success or an error (a 5xx where
    hapax_on_failed says replay), and nothing runs."""
    first = gate.post(path, UUID, b"in")
    again = gate.post(path, UUID, b"in")
    g.same(first, again)
    assert again.replayed == "true" and api.count(UUID) == 1


def test_2_6_a_concurrent_request_is_a_conflict(gate, api):
    """2.6, SHOULD: while the first runs a second is told of the conflict, at once, and does not run."""
    first = in_flight(gate, api, "/hold/d", UUID)
    assert gate.post("/hold/d", UUID).status == 409
    assert first.thread.is_alive() and api.count(UUID) == 1
    api.door("d").set()
    assert first().status == 200 and api.count(UUID) == 1


# ---- 2.7 errors ----------------------------------------------------------------------------------


def test_2_7_a_missing_key_is_400(gate, api):
    """2.7, SHOULD: where a key is required a request without one gets 400 and a link to what explains it."""
    documented(gate.post("/base/ok"), 400, "missing-key")
    assert api.seen == []


def test_2_7_a_reused_key_is_422(gate, api):
    """2.7, SHOULD: a key with another payload gets 422 and a link to what explains it."""
    gate.post("/base/ok", UUID, b"a")
    documented(gate.post("/base/ok", UUID, b"b"), 422, "fingerprint-mismatch")
    assert api.count(UUID) == 1


def test_2_7_an_outstanding_request_is_409(gate, api):
    """2.7, SHOULD: a retry that comes too early gets 409, a problem that explains it, and when to come again."""
    first = in_flight(gate, api, "/base/hold/d", UUID)
    answer = gate.post("/base/hold/d", UUID)
    documented(answer, 409, "in-flight")
    assert int(answer.get("Retry-After")) > 0
    api.door("d").set()
    first()


def test_2_7_what_was_not_corrected_fails_again(gate, api):
    """2.7, MUST: a refused request that comes again unchanged fails with the same error; corrected, it runs."""
    gate.post("/required/ok", UUID, b"a")
    for _ in range(3):
        assert gate.post("/required/ok").problem == "missing-key"
        assert gate.post("/required/ok", '"a').problem == "bad-key"
        assert gate.post("/required/ok", UUID, b"b").problem == "fingerprint-mismatch"
    assert len(api.seen) == 1
    assert gate.post("/required/ok", '"other"', b"b").replayed == "false"
    assert gate.post("/required/ok", UUID, b"a").replayed == "true"


def test_2_7_a_conflict_needs_no_correction(gate, api):
    """2.7, MUST: after 409 the very same request succeeds, once the first has ended."""
    first = in_flight(gate, api, "/hold/d", UUID)
    assert gate.post("/hold/d", UUID).status == 409
    api.door("d").set()
    g.same(first(), gate.post("/hold/d", UUID))


@pytest.mark.parametrize("status", [401, 403, 429, 500, 502, 503, 504])
def test_2_7_other_errors_are_the_resources(gate, api, status):
    """2.7: any other error reaches the client as the resource said it, for the client to act by."""
    answer = gate.post(f"/status/{status}", UUID)
    assert (answer.status, answer.body, answer.replayed) == (status, b"effect=1", "false")


# ---- 5 security ----------------------------------------------------------------------------------


def test_5_keys_have_one_fixed_format(gate, api):
    """5: the format is fixed, and published: 1 to 255 bytes; both ends are kept exactly."""
    assert gate.post("/ok", '"' + "k" * 255 + '"').replayed == "false"
    assert gate.post("/ok", '"' + "k" * 256 + '"').problem == "bad-key"
    assert gate.post("/ok", '"k"').replayed == "false"
    assert gate.post("/ok", '""').problem == "bad-key"
    assert len(api.seen) == 2


def test_5_keys_are_validated_before_anything_else(gate, api):
    """5: a key is validated before any processing: the answer comes though no body has."""
    with gate.connect() as connection:
        connection.send(g.request("POST", "/ok", '"a', headers=[("Content-Length", "9999")], length=False))
        assert connection.response().problem == "bad-key"
    assert api.seen == []


@pytest.mark.some(3)
@pytest.mark.parametrize("key", ["'; DROP TABLE keys; --", "../../../etc/passwd", "%00%0d%0aX-Injected: 1",
                                 "{$gt: 0}", "k*?[a-z]", "<script>", "$(id)"])
def test_5_a_key_injects_nothing(gate, api, hapax, uri, key):  # noqa: F811
    """5: a key is data: what means something to a shell, a path, a query or a header means nothing here."""
    first, again = gate.post("/ok", f'"{key}"'), gate.post("/ok", f'"{key}"')
    g.same(first, again)
    assert again.replayed == "true" and "Injected" not in repr(again.headers)
    assert gate.post("/ok", '"k"').replayed == "false"
    assert hapax("show", "--store", uri, "--json", "--", key).json["state"] == "completed"


def test_5_the_lookup_is_by_more_than_the_key(gate, api):
    """5: a record is found by its key and by what only the resource knows of the client: guessing a key yields none."""
    bearer = [("Authorization", "Bearer 1")]
    first = gate.post("/ok", UUID, b"x", bearer)
    for headers in ([("Authorization", "Bearer 2")], []):
        answer = gate.post("/ok", UUID, b"x", headers)
        assert (answer.status, answer.problem) == (422, "caller-mismatch")
        assert first.body not in answer.body and answer.get("ETag") is None
    assert gate.post("/ok", UUID, b"x", bearer).replayed == "true" and api.count(UUID) == 1
