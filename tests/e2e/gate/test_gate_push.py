"""The gate before subscribers to whom brokers push: what a message is known by, and what each broker is told.

A broker here is what its documentation says of it: it delivers, reads done, retry or drop out of the
response, and delivers again while it is told to."""
import json
import urllib.parse

import pytest

import gate as g
from conftest import wait_until


BROKERS = ("dapr", "knative", "sns")
every_broker = pytest.mark.parametrize("broker", BROKERS)


class Subscriber(g.ApiHandler):
    def do_say(self, rest, args, nth, body):
        """What the path lists: [[status, body], ...], one for each attempt; the last stays."""
        said = json.loads(args["r"])
        status, text = said[min(nth, len(said)) - 1]
        self.give(status, text.encode(), ("Content-Type", "application/json"))


@pytest.fixture
def api():
    api = g.Api()
    api.RequestHandlerClass = Subscriber
    yield api
    api.close()


def locations(api):
    """Per broker: one as it comes, and one for each answer that needs a setting."""
    more = {"": "", "hold": "hapax_on_failed hold;", "required": "hapax_key required;", "tiny": "hapax_max_request 1k;",
            "once": "hapax_on_expired hold;", "small": "hapax_max_response 1k;",
            "twice": "hapax_attempts_max 2;", "replays": "hapax_on_failed replay;",
            "final": "hapax_class 422 final;", "429": "hapax_in_flight_status 429;", "nofp": "hapax_fingerprint off;",
            "from": "hapax_key_from /data/order;", "same": "hapax_scope orders; hapax_fingerprint body;"}
    return "".join(f"location /{broker}{name}/ {{ hapax_push {broker}; {lines} proxy_pass "
                   f"http://127.0.0.1:{api.port}/; }}\n"
                   for broker in BROKERS for name, lines in more.items())


@pytest.fixture
def gate(make_gate, api):
    return make_gate(f"""server {{ LISTEN underscores_in_headers on; hapax on; {locations(api)}
        location /plain/ {{ hapax_scope orders; hapax_fingerprint body; proxy_pass http://127.0.0.1:{api.port}/; }}
        location = /hapax {{ hapax off; access_log off; hapax_status; }} }}""").start()


def say(*said):
    return "say?r=" + urllib.parse.quote(json.dumps(said))


def event(broker, name, data="d", structured=False, **more):
    """Headers and body of one delivery."""
    if broker == "sns":
        headers = [("x-amz-sns-message-type", "Notification"), ("x-amz-sns-message-id", name),
                   ("Content-Type", "text/plain; charset=UTF-8")]
        return headers, json.dumps({"Type": "Notification", "MessageId": name, "TopicArn": "arn:t", "Message": data,
                                    **more}).encode()
    if structured or broker == "dapr":
        return [("Content-Type", "application/cloudevents+json")], json.dumps(
            {"specversion": "1.0", "id": name, "source": "/shop", "type": "t", "data": data, **more}).encode()
    return [("ce-specversion", "1.0"), ("ce-id", name), ("ce-source", "/shop"), ("ce-type", "t"),
            ("Content-Type", "application/json"), *(("ce-" + k, v) for k, v in more.items())], json.dumps(data).encode()


def verdict(broker, response):
    """What the broker makes of it."""
    if 200 <= response.status < 300:
        if broker == "knative":
            assert response.body == b"" or response.replayed, "no event in reply"
        if broker != "dapr":
            return "done"
        try:
            said = json.loads(response.body)
        except ValueError:
            return "done"
        said = {k.lower(): v for k, v in said.items()}.get("status") if isinstance(said, dict) else None
        if not isinstance(said, str) or said in ("", "SUCCESS"):
            return "done"
        return "drop" if said == "DROP" else "retry"
    again = {"dapr": response.status != 404,
             "knative": response.status >= 500 or response.status in (404, 408, 409, 429),
             "sns": response.status >= 500 or response.status == 429}[broker]
    return "retry" if again else "drop"


def deliver(gate, broker, path, name="1", prefix="", headers=(), **more):
    own, body = event(broker, name, **more)
    return gate.post(f"/{broker}{prefix}/{path}", headers=[*own, *headers], body=body)


def told(gate, broker, path, *args, **more):
    return verdict(broker, deliver(gate, broker, path, *args, **more))


def counted(gate):
    return json.loads(gate.send("GET", "/hapax?format=json").body)["push"]


def logged(gate):
    return [line for line in gate.log().splitlines() if "the broker is told" in line]


# ---- every answer, to every broker --------------------------------------------------------------


@every_broker
def test_a_message_that_comes_again_runs_once(gate, api, broker):
    """It is answered byte for byte as the first time, which every broker takes for done."""
    first = deliver(gate, broker, "ok")
    again = deliver(gate, broker, "ok")
    assert (first.status, first.replayed, again.replayed) == (200, "false", "true")
    assert (again.status, again.body, again.all("X-A")) == (first.status, first.body, ["1", "2"])
    assert len(api.seen) == 1 and verdict(broker, again) == "done"
    assert counted(gate) == {"done": 1, "retry": 0, "drop": 0}


@every_broker
def test_in_flight_is_retried_until_the_first_has_ended(gate, api, broker):
    """And then it is done, with one effect."""
    first = gate.later(f"/{broker}/hold/a", headers=event(broker, "1")[0], body=event(broker, "1")[1])
    wait_until(lambda: len(api.seen) == 1, "the first attempt")
    again = deliver(gate, broker, "hold/a")
    assert verdict(broker, again) == "retry" and int(again.get("Retry-After")) > 0
    assert again.status == {"dapr": 200, "knative": 409, "sns": 503}[broker]
    api.door("a").set()
    assert first().status == 200
    assert told(gate, broker, "hold/a") == "done" and len(api.seen) == 1
    assert counted(gate) == {"done": 1, "retry": 1, "drop": 0}


def test_knative_may_be_told_429(gate, api):
    """hapax_in_flight_status holds for the broker that knows both."""
    first = gate.later("/knative429/hold/a", headers=event("knative", "1")[0], body=event("knative", "1")[1])
    wait_until(lambda: len(api.seen) == 1, "the first attempt")
    assert deliver(gate, "knative", "hold/a", prefix="429").status == 429
    api.door("a").set()
    first()


@every_broker
def test_unknown_is_retried_until_an_operator_resolves_it(gate, hapax, uri, api, broker):
    """It is neither run again, nor given up."""
    assert told(gate, broker, "status/500", prefix="hold") == "retry"
    for _ in range(3):
        assert told(gate, broker, "status/500", prefix="hold") == "retry"
    assert len(api.seen) == 1
    wait_until(lambda: " unknown " in gate.log("access.log"), "the access log")
    key_id = gate.log("access.log").split()[2]
    assert f"operation {key_id}" in logged(gate)[-1] and "[warn]" in logged(gate)[-1]
    assert hapax("resolve", "--store", uri, "--id", key_id, "--complete", 200).code == 0
    assert told(gate, broker, "status/500", prefix="hold") == "done" and len(api.seen) == 1


@pytest.mark.some()
@every_broker
@pytest.mark.parametrize("answers", [503, 500, 408])
def test_under_hold_what_may_have_run_waits_for_an_operator(gate, api, broker, answers):
    """As behind the gate: 503 and 408 without Retry-After, and failures, run once."""
    for _ in range(3):
        told(gate, broker, f"status/{answers}", prefix="once")
    assert len(api.seen) == 1 and told(gate, broker, f"status/{answers}", prefix="once") == "retry"


def test_under_hold_a_dapr_retry_is_a_failure(gate, api):
    """Subscribers answer RETRY also to what was thrown half-way: then it is unknown, and is not run again."""
    path = say([200, '{"status":"RETRY"}'], [200, '{"status":"SUCCESS"}'])
    assert told(gate, "dapr", path, prefix="once") == "retry"
    assert told(gate, "dapr", path, prefix="once") == "retry" and len(api.seen) == 1


@every_broker
def test_another_payload_is_dropped(gate, api, broker):
    """It is never run, never retried, counted, and logged without its key."""
    assert told(gate, broker, "ok", "secret-id") == "done"
    answer = deliver(gate, broker, "ok", "secret-id", data="other")
    assert verdict(broker, answer) == "drop" and len(api.seen) == 1
    assert answer.status == (200 if broker == "dapr" else 400)
    if broker == "dapr":
        assert (json.loads(answer.body), answer.get("Content-Type")) == ({"status": "DROP"}, "application/json")
    else:
        assert answer.problem == "fingerprint-mismatch" and b'"status":400' in answer.body
    assert counted(gate)["drop"] == 1
    line, = logged(gate)
    assert "[error]" in line and "drop a message: mismatch, operation " in line and "secret-id" not in line


@every_broker
def test_a_bad_key_is_dropped(gate, api, broker):
    """Half an event, or one that is named twice, and a malformed Idempotency-Key."""
    assert told(gate, broker, "ok", headers=[("Idempotency-Key", '"')]) == "drop"
    if broker == "dapr":
        for name, source in (("", "/shop"), (None, "/shop"), ({}, "/shop"), ("1", ""), ("1", None), ("x" * 4097, "/s")):
            assert told(gate, broker, "ok", name, source=source) == "drop"
    if broker == "knative":
        for headers in ([("ce-id", "2")], [("ce_id", "1")], [("ce-source", "/shop")]):
            assert told(gate, broker, "ok", headers=headers) == "drop"
        assert verdict(broker, gate.post("/knative/ok", headers=[("ce-id", "1")])) == "drop"
        assert verdict(broker, gate.post("/knative/ok", headers=[("ce-source", "1")])) == "drop"
    if broker == "sns":
        assert told(gate, broker, "ok", headers=[("x-amz-sns-message-id", "2")]) == "drop"
        assert told(gate, broker, "ok", "x" * 256) == "drop"
    assert api.seen == []
    assert counted(gate)["drop"] == len(logged(gate)) > 0


@every_broker
def test_a_missing_key_is_dropped_where_one_is_required(gate, api, broker):
    """Where none is required what is no event passes, unprotected."""
    assert verdict(broker, gate.post(f"/{broker}required/ok", body=b"no event")) == "drop" and api.seen == []
    assert gate.post(f"/{broker}/ok", body=b"no event").status == 200
    assert gate.post(f"/{broker}/ok", body=b"no event").replayed is None and len(api.seen) == 2


@every_broker
def test_what_is_too_large_is_dropped(gate, api, broker):
    """With a length, and without one."""
    assert told(gate, broker, "ok", prefix="tiny", data="x" * 2000) == "drop"
    headers, body = event(broker, "2", data="x" * 2000)
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = gate.post(f"/{broker}tiny/ok", headers=[*headers, ("Transfer-Encoding", "chunked")],
                       body=chunked, length=False)
    assert verdict(broker, answer) == "drop" and api.seen == []


@every_broker
def test_a_store_that_is_away_makes_it_come_again(make_gate, hapax, store, api, broker):
    """Nothing runs meanwhile, nothing is lost, and then it runs once."""
    gate = make_gate(f"hapax_timeout 200ms; server {{ LISTEN hapax on; {locations(api)} }}").start()
    hapax.keeper.kill()
    hapax.keeper.wait()
    answer = deliver(gate, broker, "ok")
    assert verdict(broker, answer) == "retry" and answer.get("Retry-After") and api.seen == []
    assert answer.status == (200 if broker == "dapr" else 503)
    hapax.keeper = hapax.keep(store)

    def found():
        said = told(gate, broker, "ok")
        assert said in ("retry", "done"), said
        return said == "done"

    wait_until(found, "the store being found")
    wait_until(lambda: deliver(gate, broker, "ok").replayed == "true", "a replay")
    assert len(api.seen) == 1


@every_broker
def test_gone_is_done(gate, api, broker):
    """The operation completed; its response was not kept, and nobody waits for it."""
    assert len(deliver(gate, broker, "ok?len=5000", prefix="small").body) == 5000
    answer = deliver(gate, broker, "ok?len=5000", prefix="small")
    assert answer.status == 200 and len(api.seen) == 1
    assert json.loads(answer.body) == {"status": "SUCCESS"} if broker == "dapr" else answer.body == b""


@every_broker
def test_used_up_attempts_are_dropped(gate, api, broker):
    """The failures themselves are passed on, and retried; what follows is not."""
    for _ in range(2):
        answer = deliver(gate, broker, "status/500", prefix="twice")
        assert (answer.status, verdict(broker, answer)) == (500, "retry")
    for _ in range(2):
        answer = deliver(gate, broker, "status/500", prefix="twice")
        assert verdict(broker, answer) == "drop" and answer.status in (200, 400)
    assert len(api.seen) == 2


@every_broker
def test_a_failure_that_is_kept_is_not_retried_for_ever(gate, api, broker):
    """It would be replayed each time: it has ended, and is dropped."""
    assert told(gate, broker, "status/500", prefix="replays") == "retry"
    answer = deliver(gate, broker, "status/500", prefix="replays")
    assert verdict(broker, answer) == "drop" and len(api.seen) == 1
    assert answer.status == 200 if broker == "dapr" else (answer.problem, b'"original_status":500' in answer.body) == \
        ("refused-before", True)


@every_broker
def test_a_refusal_that_is_kept_is_replayed_where_the_broker_takes_it_for_an_end(gate, api, broker):
    """A 422 is one for Knative and SNS; Dapr would retry it for ever."""
    first = deliver(gate, broker, "status/422", prefix="final")
    again = deliver(gate, broker, "status/422", prefix="final")
    assert first.status == 422 and verdict(broker, again) == "drop" and len(api.seen) == 1
    assert (again.status, again.body) == ((200, b'{"status":"DROP"}\n') if broker == "dapr" else (422, first.body))
    assert counted(gate)["drop"] == 1


# ---- what the handler says ----------------------------------------------------------------------


@pytest.mark.some()
@every_broker
@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
def test_what_a_handler_refused_runs_again_when_it_comes_again(gate, api, broker, status):  # promise 14
    """Its answer is passed on as it is; only what is done is kept."""
    for _ in range(2):
        answer = deliver(gate, broker, f"status/{status},{status},200")
        assert (answer.status, answer.replayed) == (status, "false")
    assert told(gate, broker, f"status/{status},{status},200") == "done"
    assert deliver(gate, broker, f"status/{status},{status},200").replayed == "true" and len(api.seen) == 3


@pytest.mark.some(2)
@pytest.mark.parametrize("body",
                         ['{"status":"RETRY"}', '{"Status":"RETRY","a":{"status":"SUCCESS"}}', '{"status":"HM"}',
                                  '{"status":"DROP"}', '{"A":"\\"}","status":"RETRY"}'])
def test_dapr_is_passed_a_status_that_is_no_success_and_it_runs_again(gate, api, body):
    """A stored RETRY would be given for ever."""
    path = say([200, body], [200, body], [200, '{"status":"SUCCESS"}'])
    for _ in range(2):
        assert deliver(gate, "dapr", path).body == body.encode()
    assert told(gate, "dapr", path) == "done" and len(api.seen) == 3
    assert deliver(gate, "dapr", path).body == b'{"status":"SUCCESS"}' and len(api.seen) == 3


@pytest.mark.some(4)
@pytest.mark.parametrize("body", ["", "{}", "[1]", '"RETRY"', "no JSON", '{"status":200}', '{"status":null}',
                                  '{"status":""}', '{"a":{"status":"RETRY"}}', '{"a":["status","RETRY"]}', "5",
                                  '{"a":"status","b":"RETRY"}', '{"statu":"RETRY","tatus":"RETRY"}'])
def test_dapr_takes_anything_else_for_a_success(gate, api, body):
    """So it is kept, and replayed."""
    for _ in range(2):
        answer = deliver(gate, "dapr", say([200, body]))
        assert (answer.body, verdict("dapr", answer)) == (body.encode(), "done")
    assert len(api.seen) == 1


@pytest.mark.parametrize("broker", ["knative", "sns"])
def test_a_status_in_a_body_is_nothing_to_others(gate, api, broker):
    deliver(gate, broker, say([200, '{"status":"RETRY"}']))
    assert deliver(gate, broker, say([200, '{"status":"RETRY"}'])).replayed == "true" and len(api.seen) == 1


def test_a_retry_that_dapr_is_given_runs_again_though_failures_are_kept(gate, api):
    """on_failed is about failures; RETRY is the handler's own wish, as a 503 is."""
    path = say([200, '{"status":"RETRY"}'], [200, ""])
    assert [told(gate, "dapr", path, prefix="replays") for _ in range(3)] == ["retry", "done", "done"]
    assert len(api.seen) == 2


# ---- what a message is known by ------------------------------------------------------------------


@pytest.mark.parametrize("broker", ["dapr", "knative"])
def test_an_event_is_the_same_in_binary_and_structured_mode(gate, api, broker):
    """Whatever is in its names: headers have them encoded."""
    for name, sent in (("1", "1"), ("a b", "a%20b"), ("a b", '"a b"'), ('é"%', "%C3%A9%22%25"), ("%zz", "%zz")):
        gate.post(f"/{broker}nofp/ok", headers=[("ce-id", sent), ("ce-source", "/shop")])
        structured = event("dapr", name)
        assert gate.post(f"/{broker}nofp/ok", headers=structured[0], body=structured[1]).replayed == "true"
    assert len(api.seen) == 4  # one name was sent in two ways


def test_source_and_id_are_told_apart(gate, api):
    """No two events run into one, wherever source ends and id begins."""
    for source, name in (("/a", "b c"), ("/a b", "c"), ("/a", "bc"), ("/ab", "c"),
                         ("/a" * 200, "c"), ("/a" * 200 + "c", "c")):
        assert deliver(gate, "dapr", "ok", name, source=source).replayed == "false"
        assert deliver(gate, "dapr", "ok", name, source=source).replayed == "true"
    assert len(api.seen) == 6


def test_the_key_is_the_documented_one(gate, hapax, uri):
    """`SOURCE ID` in the scope HOST/PATH is what the command line finds it by."""
    deliver(gate, "dapr", "ok", "order 1")
    assert hapax("show", "--store", uri, "--scope", "api.test/dapr/ok", "/shop order 1").code == 0


def test_what_changes_between_deliveries_does_not_count(gate, api):
    """Trace ids, times, signatures, the spelling of an envelope, and who delivers."""
    for i in range(3):
        who = [("Authorization", f"Bearer {i}"), ("traceparent", f"00-{i}")]
        assert told(gate, "dapr", "ok", headers=who, traceparent=f"00-{i}", time=f"t{i}") == "done"
        assert told(gate, "knative", "ok", headers=who, traceparent=f"00-{i}", knativearrivaltime=f"t{i}") == "done"
        assert told(gate, "knative", "ok", "2", headers=who, structured=True, tracestate=f"{i}") == "done"
        assert told(gate, "sns", "ok", headers=who, Signature=f"s{i}", SigningCertURL=f"u{i}", Timestamp="t") == "done"
    assert len(api.seen) == 4


def test_what_says_something_counts(gate, api):
    """The data of an event as base64; a message's subject and attributes."""
    assert told(gate, "dapr", "ok", data_base64="YQ==") == "done"
    assert told(gate, "dapr", "ok", data_base64="Yg==") == "drop"
    assert told(gate, "sns", "ok", Subject="a", MessageAttributes={"a": 1}) == "done"
    assert told(gate, "sns", "ok", Subject="b", MessageAttributes={"a": 1}) == "drop"
    assert told(gate, "sns", "ok", Subject="a", MessageAttributes={"a": 2}) == "drop"
    assert len(api.seen) == 2


def test_sns_may_deliver_raw(gate, api):
    """Then the body is the message, all of it."""
    raw = [("x-amz-sns-message-id", "1"), ("x-amz-sns-rawdelivery", "true")]
    assert gate.post("/sns/ok", headers=raw, body=b'{"a":1}').replayed == "false"
    assert gate.post("/sns/ok", headers=raw, body=b'{"a":1}').replayed == "true"
    assert gate.post("/sns/ok", headers=raw, body=b'{"a":2}').problem == "fingerprint-mismatch"


@every_broker
def test_each_subscriber_is_delivered_the_event(gate, api, broker):
    """One event to two paths, and to two hosts, is two operations: nobody's message is eaten."""
    assert deliver(gate, broker, "ok").replayed == "false"
    assert deliver(gate, broker, "other").replayed == "false"
    headers, body = event(broker, "1")
    other_host = g.request("POST", f"/{broker}/ok", body=body, headers=headers).replace(b"api.test", b"b.test")
    with gate.connect() as connection:
        connection.send(other_host)
        assert connection.response().replayed == "false"
    long = "x" * 400
    assert deliver(gate, broker, f"ok/{long}").replayed == "false"
    assert deliver(gate, broker, f"ok/{long}").replayed == "true"
    assert deliver(gate, broker, f"ok/{long}y").replayed == "false"
    assert len(api.seen) == 5


@every_broker
def test_an_idempotency_key_beats_the_event(gate, api, broker):
    """As does hapax_key_from; a scope of one's own is the scope."""
    for name in ("1", "2"):
        deliver(gate, broker, "ok", name, headers=[("Idempotency-Key", "k")])
    assert len(api.seen) == 1
    if broker != "sns":
        for name in ("1", "2", "3"):
            assert deliver(gate, broker, "ok", name, prefix="from", structured=True, data={"order": 7}).status == 200
        assert len(api.seen) == 2
    deliver(gate, broker, "ok", prefix="same")
    assert deliver(gate, broker, "status/200", prefix="same").replayed == "true"


def test_a_request_and_an_event_may_share_a_record(gate, api):
    """In one scope, with one fingerprint: the key of the event, quoted, names its operation."""
    headers, body = event("knative", "1")
    assert gate.post("/knativesame/ok", headers=headers, body=body).replayed == "false"
    assert gate.post("/plain/ok", '"/shop 1"', body=body).replayed == "true"
    assert gate.post("/plain/ok", '"/shop 2"', body=body).replayed == "false"
    assert deliver(gate, "knative", "ok", "2", prefix="same").replayed == "true" and len(api.seen) == 2


# ---- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines, said", [
    ("hapax_push kafka;", '"hapax_push" does not take "kafka": it takes off, dapr, knative or sns'),
    ("hapax_push;", "invalid number of arguments"),
    ("hapax_push dapr; hapax_push sns;", '"hapax_push" directive is duplicate'),
])
def test_a_malformed_setting_fails(folder, lines, said):
    """nginx -t names what it takes."""
    done = g.Gate(folder, f"server {{ LISTEN {lines} }}").nginx("-t")
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_push_is_inherited_and_can_be_off(make_gate, api):
    """And so are the defaults that go with it, either way."""
    gate = make_gate(f"""hapax_push dapr; server {{ LISTEN hapax on;
        location / {{ proxy_pass http://127.0.0.1:{api.port}; }}
        location /api/ {{ hapax_push off; proxy_pass http://127.0.0.1:{api.port}/; }} }}""").start()
    headers, body = event("dapr", "1")
    assert gate.post("/ok", headers=headers, body=body).replayed == "false"
    assert gate.post("/ok", headers=headers, body=body.replace(b'"t"', b'"u"')).replayed == "true"
    assert gate.post("/api/ok", headers=headers, body=body).replayed is None
    assert gate.post("/api/ok", "k", body=b"a").replayed == "false"
    assert gate.post("/api/ok", "k", body=b"b").problem == "fingerprint-mismatch"
    assert gate.post("/api/ok?x", "k", body=b"a").problem == "fingerprint-mismatch"


def test_the_page_counts_what_brokers_were_told(gate):
    deliver(gate, "knative", "ok")
    for data in ("d", "other", "third"):
        deliver(gate, "knative", "ok", data=data)
    page = gate.send("GET", "/hapax").body.decode()
    assert 'hapax_push_total{told="done"} 1\n' in page and 'hapax_push_total{told="retry"} 0\n' in page
    assert 'hapax_push_total{told="drop"} 2\n' in page
