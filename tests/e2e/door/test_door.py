"""hapax door: programs in any language, by the frames of docs/door.md."""
import base64
import concurrent.futures
import json
import re
import select
import signal
import struct

import pytest
from conftest import ROOT, end, read_line, wait_until
from door_client import KINDS, Client, encode
from process import stop


class Door:
    """A door that serves. .path is its socket."""

    def __init__(self, hapax, store, *words, **env):
        self.hapax, self.store, self.words, self.env = hapax, store, words, env
        self.path = f"{hapax.folder}/door.sock"
        self.start()

    def start(self):
        self.process = self.hapax.start("door", "--store", self.store, "--listen", f"unix:{self.path}",
                                        *self.words, **self.env)
        self.ready = read_line(self.process)
        assert "serving" in self.ready, self.ready + self.process.stderr.read()

    def client(self, **how):
        return Client(self.path, **how)

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def door(hapax, store):
    door = Door(hapax, store, "--drain", "100ms")
    yield door
    if door.process.poll() is None:
        end(door.process)  # not killed: a build for coverage writes down at its end what was run


@pytest.fixture
def client(door):
    with door.client() as client:
        yield client


# ---- once -----------------------------------------------------------------------------------


def test_runs_once_and_replays(client):
    """The first BEGIN runs; the second is given what the first has stored, bytes that are no UTF-8 included."""
    body = bytes(range(256))
    run = client.run("order-17", fingerprint=["refund"], body=b"[500]")
    assert run.attempt == 1 and run.fence > 0 and run.stale is False and run.key == "order-17"
    assert re.fullmatch("[0-9a-f]{64}", run.id) and len(run.ticket) <= 4096 and run.token is None
    fresh = client.finish(run.op, body=body, status=201, headers=[["X-A", "b"], ["X-A", "c"]])
    assert fresh.answer == "fresh" and fresh.own and fresh.recorded and fresh.body == b""
    assert fresh.meta["class"] == "final" and fresh.fence == run.fence
    replay = client.wait(client.begin("order-17", fingerprint=["refund"], body=b"[500]"), "ANSWER")
    assert replay.answer == "replay" and not replay.own and replay.body == body and replay.status == 201
    assert replay.headers == [["X-A", "b"], ["X-A", "c"]] and "class" not in replay.meta


def test_every_result_is_a_result(client):
    """Empty and false results are kept as any other is."""
    for key, result in enumerate((b"", b"null", b"false", b"0", b"x" * (1 << 20))):
        assert client.once(f"{key}", result).answer == "fresh"
        replay = client.once(f"{key}")
        assert replay.answer == "replay" and replay.body == result


def test_a_body_over_max_response_is_given_once(client):
    """16 MiB may be an outcome. What the policy does not keep is GONE at the next."""
    big = b"\xff" * (16 << 20)
    assert client.once("kept", big, policy={"max_response": "16m"}).answer == "fresh"
    assert client.once("kept", policy={"max_response": "16m"}).body == big
    assert client.once("gone", big).answer == "fresh"
    assert client.once("gone").answer == "gone"


def test_classes_say_what_a_retry_finds(client):
    """not_run and failed run again, the first without counting; unknown waits for its lease."""
    for cls, spent in (("not_run", None), ("failed", 1)):
        answer = client.finish(client.run(cls).op, cls)
        assert answer.answer == "fresh" and answer.meta["class"] == cls and answer.spent == spent
        assert client.run(cls).attempt == 2
    answer = client.finish(client.run("unknown").op, "unknown")
    assert answer.meta["class"] == "unknown" and not answer.recorded
    busy = client.once("unknown")
    assert busy.answer == "in_flight" and busy.retry_after_ms > 0 and busy.silent_ms is not None


def test_a_status_gives_the_class(client):
    """Without `class` the table for HTTP responses counts, as the policy chooses it."""
    for status, policy, cls in ((200, {}, "final"), (503, {}, "not_run"), (500, {}, "failed"),
                                (503, {"on_expired": "hold"}, "unknown")):
        op = client.run(f"{status}{policy}", policy=policy).op
        assert client.finish(op, None, status=status).meta["class"] == cls


def test_hold_answers_unknown(client):
    """Under hold an unknown end is an operator's."""
    hold = {"on_expired": "hold"}
    assert client.finish(client.run(policy=hold).op, "unknown").recorded
    answer = client.once(policy=hold)
    assert answer.answer == "unknown" and answer.retry_after_ms is None and answer.text


def test_mismatch_says_in_what(client):
    """Another body, or another caller, is no repeat."""
    assert client.once(body=b"a", caller=["ann"]).answer == "fresh"
    other = client.once(body=b"b", caller=["ann"])
    assert (other.answer, other.differs) == ("mismatch", "fingerprint")
    other = client.once(body=b"a", caller=["bob"])
    assert (other.answer, other.differs) == ("mismatch", "caller")
    assert client.once(body=b"a", caller=["bob"], owner="bob").answer == "fresh"


def test_the_body_counts_as_it_is_told(client):
    """`body` names what of the body is the fingerprint, in the words of every door."""
    for setting, same, other in (("json", b'{"a": 1.0, "b": 2}', b'{"a":1}'),
                                 ("+/a", b'{"a":1,"b":3}', b'{"a":2,"b":2}'),
                                 ("-/b", b'{"b":9,"a":1}', b'{"a":2,"b":2}'),
                                 ("off", b"anything", None)):
        op = client.wait(begin(client, setting, setting, b'{"b":2,"a":1}'), "RUN").op
        assert client.finish(op).answer == "fresh"
        assert client.wait(begin(client, setting, setting, same)).answer == "replay"
        if other is not None:
            assert client.wait(begin(client, setting, setting, other)).answer == "mismatch"


def begin(client, key, counts, body):
    client.op += 1
    client.send("BEGIN", client.op, {"scope": "test", "key": key, "body": counts}, body)
    return client.op


def test_policies_come_from_line_file_and_begin(hapax, store):
    """The line is the default, the file has its scopes, BEGIN has the last word."""
    policy = hapax.folder / "policy.json"
    policy.write_text('{"refunds": {"on_expired": "hold", "attempts_max": 1}, "other": {"key": "required"}}')
    door = Door(hapax, store, "--policy", policy, "--attempts-max", "3")
    with door.client() as client:
        hold = client.finish(client.run(scope="refunds").op, "failed")
        assert hold.recorded and client.once(scope="refunds").answer == "unknown"
        assert client.once(None, scope="other").answer == "missing_key"
        for attempt in (1, 2, 3):
            run = client.run("mine")
            assert run.attempt == attempt
            assert client.finish(run.op, "failed").answer == "fresh"
        assert client.once("mine").answer == "failed"
        assert client.run("mine", policy={"attempts_max": 9, "lease": "1s"}).attempt == 4
        # What stands beside a profile wins, before it and behind it.
        for key, beside in (("a" * 16, {"owner_required": "off", "profile": "payments"}),
                            ("b" * 16, {"profile": "payments", "owner_required": "off"})):
            assert client.once(key, policy=beside).answer == "fresh"


@pytest.mark.parametrize("text, words", [
    ("[]", "no JSON object"), ('{"a": 1}', 'scope "a" has no object'), ('{"": {}}', "1 to 255 bytes"),
    ('{"a": {"leas": "1s"}}', 'scope "a": no policy is named "leas"'), ('{"a": {}, "a": {}}', "twice"),
    ('{"a": {"lease": "1h", "run_max": "1m"}}', 'scope "a": policy "run_max"')])
def test_a_policy_file_that_is_none_is_refused(hapax, store, text, words):
    """By name, before anything listens."""
    policy = hapax.folder / "policy.json"
    policy.write_text(text)
    result = hapax("door", "--store", store, "--listen", f"unix:{hapax.folder}/d.sock", "--policy", policy)
    assert result.code == 2 and words in result.err


def test_keys_of_headers_are_read_as_at_the_gate(client):
    """key_header takes the header's values as they came."""
    assert client.once(None, key_header='"k-1"').answer == "fresh"
    assert client.once("k-1").answer == "replay"
    for bad in ('"k', ["a", "b"], ""):
        answer = client.once(None, key_header=bad)
        assert answer.answer == "bad_key" and answer.text, bad
    assert client.once(None, key_header=[]).answer == "bypass"


def test_without_a_key_nothing_is_protected(client):
    """The handler runs, and nothing can be resumed."""
    run = client.run(None)
    assert run.fence == 0 and run.id is None and run.ticket is None and run.key is None
    answer = client.finish(run.op)
    assert answer.answer == "bypass" and answer.own and not answer.recorded and answer.unprotected is None


def test_keys_and_owners_may_be_any_bytes(client):
    """Bytes that are not UTF-8 stand in base64, both ways."""
    raw = base64.b64encode(b"\xff\xfe").decode()
    run = client.run({"base64": raw}, owner={"base64": raw}, fingerprint=[{"base64": raw}, "a"])
    assert run.key == {"base64": raw}
    headers = [["X-Raw", {"base64": raw}], ["X-Text", "ü"]]
    assert client.finish(run.op, headers=headers).answer == "fresh"
    replay = client.wait(client.begin({"base64": raw}, owner={"base64": raw}, fingerprint=[{"base64": raw}, "a"]))
    assert replay.answer == "replay" and replay.headers == headers


def test_tokens_are_handed_on_where_the_policy_says_so(client):
    """pass_token."""
    assert len(client.run(policy={"pass_token": True}).token) == 64


# ---- two at once ------------------------------------------------------------------------------


def test_a_message_without_a_caller_is_nobodys(client):
    """As at hapax consume: what a request without credentials has stored is the message's outcome, too."""
    op = client.begin("m", b"doc", **{"as": "http", "request": {}})
    assert client.wait(op).kind == "RUN" and client.finish(op, None, body=b"ok", status=200).recorded
    answer = client.wait(client.begin("m", b"doc", **{"as": "message"}), "ANSWER")
    assert answer.answer == "replay" and answer.do == "ack" and answer.body == b"ok"


def test_a_body_that_cannot_be_sent_is_not_kept(client):
    """The operation has completed, and repeats are told that its body is gone."""
    run = client.run()
    fresh = client.finish(run.op, status=201, body_kept=False)
    assert fresh.answer == "fresh" and fresh.recorded
    assert client.once().answer == "gone" and client.once().status == 201
    client.end(client.run("both").op, body=b"it", body_kept=False)
    assert "body_kept" in client.wait(client.op, "FAULT").text


def test_a_repeat_waits_or_is_told(door):
    """Of two clients one runs; the other is answered, or waits for the outcome."""
    with door.client() as one, door.client() as two:
        run = one.run()
        assert two.once().answer == "in_flight"
        op = two.begin(policy={"wait": "60s"})
        assert one.finish(run.op, body=b"it").recorded
        answer = two.wait(op, "ANSWER")
        assert answer.answer == "replay" and answer.body == b"it"


def test_a_thousand_at_once(door):
    """Each key's handler runs once, for two clients with a thousand operations each."""
    with door.client() as one, door.client() as two:
        ran, answers = [], {1: {}, 2: {}}

        def serve(number, client):
            while len(answers[number]) < 1000:
                frame = client.receive()
                if frame.kind == "RUN":
                    ran.append(frame.key)
                    client.end(frame.op, body=frame.key.encode())
                else:
                    assert frame.kind == "ANSWER", frame
                    answers[number][frame.op] = frame.answer

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            served = [pool.submit(serve, number, client) for number, client in ((1, one), (2, two))]
            for key in range(1000):
                for client in (one, two):
                    client.begin(f"k{key}", policy={"wait": "60s"})
            for ended in served:
                ended.result()
        assert sorted(ran) == sorted(f"k{key}" for key in range(1000))
        assert sorted([*answers[1].values(), *answers[2].values()]) == ["fresh"] * 1000 + ["replay"] * 1000


def test_cancel_gives_up_what_does_not_run(door):
    """A BEGIN that waits is answered; one that runs goes on."""
    with door.client() as one, door.client() as two:
        run = one.run()
        op = two.begin(policy={"wait": "1h"})
        two.send("CANCEL", op)
        assert two.wait(op, "ANSWER").answer == "in_flight"
        one.send("CANCEL", run.op)
        one.send("CANCEL", 4711)
        assert one.finish(run.op).recorded


# ---- steps ------------------------------------------------------------------------------------


def test_steps_continue_where_the_last_attempt_ended(hapax, door):
    """A step that is done is replayed to the next attempt, and `hapax show` lists it."""
    with door.client() as client:
        run = client.run("order")
        charge = client.wait(client.step(run.op, "charge"), "RUN")
        assert charge.key == "order:charge" and charge.attempt == 1
        assert client.finish(charge.op, body=b"paid").recorded
        assert client.finish(run.op, "failed").answer == "fresh"
        run = client.run("order")
        again = client.wait(client.step(run.op, "charge"), "ANSWER")
        assert again.answer == "replay" and again.body == b"paid"
        mail = client.wait(client.step(run.op, "mail"), "RUN")
        assert client.finish(mail.op).answer == "fresh" and client.finish(run.op).recorded
    shown = hapax("show", "--store", door.store, "--scope", "test", "order", "--json").json
    assert [step["step"] for step in shown["steps"]] == ["charge", "mail"], shown


def test_an_operation_ends_after_its_steps(client):
    """END of the operation waits for a step that runs, and gives up one that does not."""
    run = client.run()
    step = client.wait(client.step(run.op, "a"), "RUN")
    client.end(run.op)
    assert client.finish(step.op).answer == "fresh"
    assert client.wait(run.op, "ANSWER").recorded


def test_the_end_gives_up_a_step_that_waits(hapax, store):
    """A step whose claim is still with the store does not run once its operation has ended."""
    keeper = hapax.keep(store)
    with Door(hapax, store).client() as client:
        run = client.run(policy={"timeout": "1m", "save_wait": "2m"})
        stop(keeper.pid)
        step = client.step(run.op, "a")
        client.end(run.op)
        assert client.wait(client.step(4711, "b")).kind == "FAULT"  # so both were read
        keeper.send_signal(signal.SIGCONT)
        assert client.wait(step).kind == "ANSWER"
        assert client.wait(run.op, "ANSWER").recorded


def test_what_is_no_step_is_refused(client):
    """A step of nothing, of a step, of what has ended; a name that is none."""
    run = client.run()
    step = client.wait(client.step(run.op, "a"), "RUN")
    for outer, name, words in ((4711, "b", "in"), (step.op, "b", "in"), (run.op, "a:b", "':'"), (run.op, ".1", "'.'"),
                               (run.op, "x" * 65, "64")):
        fault = client.wait(client.step(outer, name), "FAULT")
        assert fault.error == "invalid" and words in fault.text, fault
    assert client.finish(step.op).answer == "fresh" and client.finish(run.op).answer == "fresh"
    assert client.wait(client.step(run.op, "b"), "FAULT").error == "invalid"


# ---- reconcile --------------------------------------------------------------------------------


def stale(client, key="k"):
    """An attempt whose result nobody knows, and whose lease is over: the frame that asks the hook."""
    policy = {"on_expired": "reconcile", "lease": "500ms", "wait": "60s"}
    client.finish(client.run(key, policy=policy, reconciles=True).op, "unknown")
    return client.wait(client.begin(key, policy=policy, reconciles=True), "RECONCILE")


def test_the_hook_may_say_that_it_happened(client):
    """Its outcome is the operation's, and nothing runs."""
    ask = stale(client)
    assert ask.attempt == 2 and ask.stale and ask.ticket and ask.fence
    answer = client.finish(ask.op, body=b"found")
    assert answer.answer == "replay" and answer.body == b"found"


def test_the_hook_may_say_that_it_did_not_happen(client):
    """RUN follows, of the same attempt."""
    ask = stale(client)
    client.end(ask.op, "not_run")
    run = client.wait(ask.op, "RUN")
    assert run.attempt == 2
    answer = client.finish(ask.op)
    assert answer.answer in ("fresh", "replay")


def test_a_hook_that_cannot_tell_leaves_it_to_the_next(client):
    """UNKNOWN; without a hook the policy is refused."""
    ask = stale(client)
    assert client.finish(ask.op, "failed").answer == "unknown"
    fault = client.wait(client.begin(policy={"on_expired": "reconcile"}), "FAULT")
    assert fault.error == "invalid" and "reconcile" in fault.text


# ---- forms ------------------------------------------------------------------------------------


def test_http_answers_are_responses(client, hapax, store):
    """A stored response is replayed with its marks, and a problem is a problem as at the gate. What operators see of a
    request is its path without the query, which may have a token."""
    request = {"method": "POST", "host": "shop", "uri": "/pay?token=geheim",
               "headers": [["Idempotency-Key", '"p-1"'], ["authorization", "Bearer a"]]}

    def ask(body=b"{}", **changes):
        return client.wait(client.begin(None, body, **{"as": "http", "request": {**request, **changes}}))

    run = ask()
    headers = [["Content-Type", "text/plain"], ["Set-Cookie", "s=1"], ["Date", "now"]]
    client.end(run.op, None, b"paid", status=201, headers=headers)
    fresh = client.wait(run.op, "ANSWER")
    assert fresh.own and fresh.status == 201 and fresh.headers == [["Idempotency-Replayed", "false"],
                                                                      ["Idempotency-TTL", "86400"]]
    replay = ask()
    assert replay.answer == "replay" and replay.status == 201 and replay.body == b"paid"
    assert replay.headers[:3] == [["Content-Type", "text/plain"], ["Idempotency-Replayed", "true"], ["Age", "0"]]
    assert [name for name, _ in replay.headers[3:]] == ["Idempotency-TTL"] and 0 < int(replay.headers[3][1]) <= 86400
    for other, status, slug in ((ask(b"[]"), 422, "fingerprint-mismatch"),
                                (ask(uri="/pay?token=other"), 422, "fingerprint-mismatch"),
                                (ask(headers=[["Idempotency-Key", '"p-1"']]), 422, "caller-mismatch"),
                                (ask(headers=[["Idempotency-Key", '"p']]), 400, "bad-key"),
                                (ask(b"x" * ((1 << 20) + 1)), 413, "request-too-large")):
        assert other.kind == "ANSWER" and not other.own and other.status == status, other
        assert ["Content-Type", "application/problem+json"] in other.headers
        assert json.loads(other.body)["type"].endswith(slug)
    assert [record["what"] for record in hapax("list", "--store", store, "--json").lines] == ["POST /pay"]
    assert ask(headers=[]).kind == "RUN"


def test_who_is_named_and_empty_is_nobody(client):
    """An empty owner or caller is not another word for none: with a key it is refused, in each form."""
    http = {"as": "http", "request": {"method": "POST", "uri": "/", "headers": [["Authorization", "a"]]}}
    for nobody in ({"owner": ""}, {"caller": []}, {"caller": ["", ""]}, {"owner": "ann", "caller": [""]}):
        answer = client.wait(client.begin(**nobody), "ANSWER")
        assert answer.answer == "missing_owner" and not answer.own and "empty" in answer.text
        answer = client.wait(client.begin(**nobody, **http), "ANSWER")
        assert answer.status == 400 and json.loads(answer.body)["type"].endswith("missing-owner")
        answer = client.wait(client.begin(**nobody, **{"as": "message"}), "ANSWER")
        assert (answer.do, answer.reason) == ("dead", "bad_key") and "empty" in answer.line
        assert client.wait(client.begin(None, **nobody), "RUN").fence == 0
        answer = client.once(None, key_header="?", **nobody)
        assert answer.answer == "bad_key"
    assert client.once(owner="ann", caller=["", "ann"]).answer == "fresh"


@pytest.mark.some(1)
@pytest.mark.parametrize("owner, headers", [(None, ()), (None, [("Authorization", "Bearer a")]),
                                            ("ann", [("Authorization", "Bearer a"), ("X-User", "ann")])])
def test_what_the_gate_stored_is_replayed(client, door, serve, owner, headers):
    """The same request is the same operation at both doors: its caller is nobody, its credentials, or its owner's."""
    gate = serve(*(["--owner", "$http_x_user"] if owner else []), store=door.store)
    assert gate.post("/ok", "k", b"{}", headers).status == 200
    request = {"method": "POST", "host": "api.test", "uri": "/ok", "headers": list(headers)}
    answer = client.wait(client.begin(scope="default", body=b"{}", owner=owner, **{"as": "http", "request": request}))
    assert answer.answer == "replay" and answer.status == 200, answer


def test_without_an_outcome_http_needs_no_response(client):
    """Where RUN crosses a CANCEL nothing has run, and there is no response. An end that is stored is a response."""
    members = {"as": "http", "request": {"method": "POST", "uri": "/"}, "policy": {"on_expired": "hold"}}
    for cls in ("not_run", "not_run"):
        answer = client.finish(client.run(**members).op, cls)
        assert answer.answer == "fresh" and answer.own and answer.meta["class"] == cls, answer
    assert client.finish(client.run(**members).op, "unknown").meta["class"] == "unknown"
    assert client.wait(client.begin(**members), "ANSWER").answer == "unknown"
    for cls, more in (("final", {}), ("failed", {}), ("final", {"status": 99}), (None, {"status": 99}),
                      ("not_run", {"refuse": "no"})):
        run = client.run(f"{cls} {more}", **members)
        client.end(run.op, cls, **more)
        assert "status" in client.wait(run.op, "FAULT").text


def test_http_in_flight_says_when(client):
    """Retry-After, and the same without a body."""
    members = {"as": "http", "request": {"method": "POST", "uri": "/"}}
    client.run(**members)
    busy = client.wait(client.begin(**members), "ANSWER")
    assert busy.status == 409 and any(name == "Retry-After" for name, _ in busy.headers)


def test_messages_are_told_what_becomes_of_them(client):
    """By the table of hapax/consume.h: done, again, dead, parked."""
    def ask(key, cls="final", message=None, **members):
        op = client.begin(key, **{"as": "message", "message": message or {}, **members})
        frame = client.wait(op)
        if frame.kind == "RUN":
            client.end(op, *([None] if cls is None else [cls]), **({"refuse": "no such order"} if cls is None else {}))
            frame = client.wait(op)
        assert frame.kind == "ANSWER", frame
        return frame

    assert ask("a").do == "ack" and ask("a").do == "ack"
    again = ask("b", "failed", {"retry_min": "2s", "retry_max": "3s"}, policy={"attempts_max": 2})
    assert again.do == "retry" and 1500 < again.after_ms < 3000 and again.again
    last = ask("b", "failed", {"again": again.again}, policy={"attempts_max": 2})
    assert last.do == "dead" and last.reason == "failed"
    away = ask("c", "not_run")
    assert away.do == "retry" and away.again["waits"] == 1
    assert ask("c", "not_run", {"again": away.again}).again["waits"] == 2
    refused = ask("d", None)
    assert refused.do == "dead" and refused.reason == "refused" and refused.line == "no such order"
    cut = client.run("u", **{"as": "message"})
    client.end(cut.op, None, refuse=600 * "ü")
    assert client.wait(cut.op, "ANSWER").line == 127 * "ü" + "\ufffd"
    answered = client.run("f", **{"as": "message"})
    client.end(answered.op, None, status=404)
    assert client.wait(answered.op, "ANSWER").do == "retry"
    hold = {"on_expired": "hold"}
    assert ask("e", "unknown", policy=hold).do == "park"
    assert ask("e", policy=hold, message={"unknown": "dead"}).do == "dead"


# ---- refusals ---------------------------------------------------------------------------------


BAD_MEMBERS = [
    ({"scope": "x" * 256}, "scope of 256 bytes is over 255"), ({"scope": 1}, '"scope" is no string'),
    ({"key": "x" * 256}, "key of 256 bytes is over 255"), ({"key": 1}, '"key" is neither'),
    ({"key": {"base64": "*"}}, "no base64"), ({"owner": "x" * 256}, "owner of 256 bytes"),
    ({"fingerprint": ["a"] * 17}, '"fingerprint" has over 16 parts'), ({"fingerprint": "a"}, "is no list"),
    ({"caller": [1]}, '"caller" is neither'), ({"body": "yaml"}, 'fingerprint has "yaml"'),
    ({"policy": []}, '"policy" is no object'), ({"policy": {"lease": "1ms"}}, "lease"),
    ({"policy": {"leas": "1s"}}, 'no policy is named "leas"'), ({"policy": {"wait": "soon"}}, "wait"),
    ({"reconciles": 1}, "neither true nor false"), ({"nonce": "00"}, "32 lowercase hex digits"),
    ({"nonce": "Z" * 32}, "32 lowercase hex digits"), ({"as": "post"}, "call, http or message"),
    ({"in": -1}, "whole number"), ({"as": "http", "request": {"headers": [["a"]]}}, "no pair"),
    ({"message": {"retry_min": "x"}}, "no duration"), ({"message": {"unknown": "x"}}, "park or dead"),
]


@pytest.mark.some(11)
@pytest.mark.parametrize("members, words", BAD_MEMBERS, ids=[words[:20] for _, words in BAD_MEMBERS])
def test_a_member_that_is_none_is_refused_by_name(client, members, words):
    """FAULT for the op alone: the connection and the next operation go on."""
    fault = client.wait(client.begin(**members), "FAULT")
    assert fault.error == "invalid" and words in fault.text and fault.meta["kind"] == 3, fault
    assert client.once("next").answer == "fresh"


def test_an_end_that_is_none_ends_as_unknown(client):
    """The op is over, its number free; on_expired decides."""
    for members, words in (({"class": "good"}, "final, not_run"), ({"status": 1000}, "0 to 999"), ({}, "is missing"),
                           ({"class": "final", "headers": [["a b", "c"]]}, "cannot stand in a line"),
                           ({"class": "final", "headers": [["a", "x" * 65536]]}, "65536")):
        run = client.run(f"{words}", policy={"on_expired": "hold"})
        client.send("END", run.op, members)
        fault = client.wait(run.op, "FAULT")
        assert fault.error == "invalid" and words in fault.text and fault.meta["kind"] == 7, fault
        answer = client.once(f"{words}", policy={"on_expired": "hold", "wait": "60s"})
        assert answer.answer == "unknown"
    run = client.run("big")
    client.send("END", run.op, {"class": "final"}, bytes((16 << 20) + 1))
    assert "over 16777216" in client.wait(run.op, "FAULT").text


def test_unknown_members_and_kinds_are_passed_over(client):
    """A later client may say more than this door knows."""
    client.send(99, 5, {"a": 1}, b"body")
    fault = client.wait(5, "FAULT")
    assert fault.error == "unsupported" and fault.meta["kind"] == 99
    run = client.run(later={"a": [1]}, traceparent="00-…", what=None)
    assert client.finish(run.op, later=1).answer == "fresh"
    client.send("BEAT", 0, {"later": 1}, b"body")
    assert client.once().answer == "replay"


def test_a_number_in_hand_is_not_taken_twice(client):
    """The second BEGIN is refused, the first goes on; an END for nothing is refused, too."""
    run = client.run()
    client.send("BEGIN", run.op, {"key": "other"})
    assert "in hand" in client.wait(run.op, "FAULT").text
    assert client.finish(run.op).answer == "fresh"
    client.end(run.op)
    assert client.wait(run.op, "FAULT").meta["kind"] == 7


@pytest.mark.parametrize("frame, words", [
    (struct.pack(">IBII", 8, 1, 0, 0), "below 9"), (struct.pack(">IBII", (17 << 20) + 1, 3, 1, 0), "over its limit"),
    (struct.pack(">IBII", 9, 3, 1, 1), "meta_len"), (encode("HELLO", 0, {"hapax": 1}), "second HELLO"),
    (encode("RUN", 1, {}), "only a door sends"), (encode("BEGIN", 0, {"key": "a"}), "op is 0"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_no_frame_ends_the_connection(client, frame, words):
    """With a FAULT that says why."""
    client.socket.sendall(frame)
    fault = client.wait(0, "FAULT")
    assert fault.error == "invalid" and words in fault.text
    assert client.ended()


@pytest.mark.parametrize("first, words", [
    (encode("BEGIN", 1, {"key": "a"}), "no HELLO"), (encode("HELLO", 0, {}), '"hapax"'),
    (encode("HELLO", 0, b"["), "no JSON object"), (encode("HELLO", 0, {"a": "x" * 5000}), "over its limit"),
    (b"GET / HTTP/1.1\r\n\r\n", "over its limit"),
], ids=["begin", "empty", "no json", "long", "http"])
def test_a_greeting_that_is_none_ends_the_connection(door, first, words):
    """Nothing is read on after it."""
    with door.client(hello=False) as client:
        client.socket.sendall(first)
        fault = client.wait(0, "FAULT")
        assert words in fault.text and client.ended()


def test_meta_that_is_no_json_is_refused(client):
    """For the op alone; so are bytes that are no UTF-8."""
    for meta in (b"{", b"[]", b'{"key":"\xff"}', b'{"key":"a"}x', b"[" * 300):
        client.op += 1
        client.send("BEGIN", client.op, meta)
        assert client.wait(client.op, "FAULT").error == "invalid"


def test_frames_may_be_cut_at_each_byte(door):
    """A frame is the same, however its bytes come; the end of the connection within one is no harm."""
    frames = encode("HELLO", 0, {"hapax": 1}) + encode("BEGIN", 1, {"key": "cut"}, b"body")
    for cut in range(1, len(frames)):
        with door.client(hello=False) as client:
            client.socket.sendall(frames[:cut])
            if cut % 3 == 0:
                continue
            client.socket.sendall(frames[cut:])
            assert client.wait(0).kind == "WELCOME"
            frame = client.wait(1)
            if frame.kind == "RUN":
                client.finish(1)
            else:
                assert frame.answer in ("replay", "in_flight"), frame


def test_too_many_operations_are_refused(client):
    """ops_max of one connection."""
    most = client.welcome.ops_max
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        over = pool.submit(client.wait, most + 1, "FAULT")
        for key in range(most + 1):
            client.begin(f"k{key}")
        fault = over.result()
    assert fault.error == "nomem" and str(most) in fault.text


def test_answers_that_nobody_reads_are_bounded(hapax, store):
    """Over half of the limit BEGINs wait, over the limit they are told to ask later; all goes on once it is read."""
    big, policy = bytes(16 << 20), {"max_response": "16m"}
    # A claim waits for its sync behind 16 MiB, which a busy disk has not written within the default's five seconds.
    door = Door(hapax, store, "--drain", "100ms", "--timeout", "60s", "--save-wait", "60s")
    with door.client() as one, door.client() as two:
        assert one.once("big", big, policy=policy).recorded
        many = b"".join(encode("BEGIN", 100 + i, {"scope": "test", "key": "big", "policy": policy}) for i in range(20))
        one.socket.sendall(many)

        def waits():
            op = two.begin(f"{two.op}")
            if not select.select([two.socket], [], [], 1)[0]:
                return True
            assert two.finish(two.wait(op, "RUN").op).recorded
            return False

        wait_until(waits, "a BEGIN that waits")
        answers = [one.wait(100 + i, "ANSWER") for i in range(20)]
        refused = [answer for answer in answers if answer.answer == "store_down"]
        assert refused and all(answer.error == "nomem" and "256 MiB" in answer.text for answer in refused)
        assert all(answer.body == big for answer in answers if answer not in refused)
        assert two.finish(two.wait(two.op, "RUN").op).recorded


# ---- the page ---------------------------------------------------------------------------------


def examples():
    """The frames of docs/door.md, by their names; their bytes, and what the remarks say of the first lines."""
    page = (ROOT / "docs/door.md").read_text()
    found = {}
    for name, block in re.findall(r"```hex (\w+)\n(.*?)```", page, re.S):
        lines = [line.partition(";") for line in block.splitlines()]
        data = bytes.fromhex("".join(digits for digits, _, _ in lines))
        said = re.fullmatch(r" length (\d+)\| (\w+), op (\d+)\| meta_len (\d+)",
                            "|".join(remark for _, _, remark in lines[:3]))
        text = "".join(remark[1:] for _, _, remark in lines[3:]).replace("body: ", "")
        found[name] = (data, said.groups(), text)
    return found


def test_the_page_shows_frames_as_they_are(door):
    """Every kind is there. What the client sends is taken, and what the door sends has the members that are shown."""
    frames = examples()
    for name, (data, (length, kind, op, meta_len), text) in frames.items():
        assert struct.unpack(">IBII", data[:13]) == (int(length), KINDS.index(kind) + 1, int(op), int(meta_len)), name
        assert len(data) == int(length) + 4 and data[13:].decode() == text, name
        json.loads(data[13:13 + int(meta_len)] or b"{}")
    assert {kind for _, (_, kind, _, _), _ in frames.values()} == set(KINDS)

    def shown(name):
        data, (_, _, op, meta_len), _ = frames[name]
        return json.loads(data[13:13 + int(meta_len)]), data[13 + int(meta_len):], int(op)

    def compare(frame, name, *drawn):
        meta, body, op = shown(name)
        assert (frame.op, frame.body, set(frame.meta)) == (op, body, set(meta)), name
        for member in meta:
            assert member in drawn or frame.meta[member] == meta[member], (name, member)

    with door.client(hello=False) as client:
        client.socket.sendall(frames["HELLO"][0])
        compare(client.receive(), "WELCOME")
        client.socket.sendall(frames["BEGIN"][0])
        compare(client.receive(), "RUN", "fence", "ticket")
        client.socket.sendall(frames["BEAT"][0] + frames["END"][0])
        compare(client.receive(), "ANSWER", "fence")
        meta, body, _ = shown("BEGIN")
        client.send("BEGIN", 2, meta, body)
        compare(client.receive(), "REPLAY", "fence")
        client.send(99, 3)
        compare(client.receive(), "FAULT")
        client.socket.sendall(frames["CANCEL"][0] + frames["RESUME"][0])
        assert client.wait(1, "FAULT").meta["kind"] == KINDS.index("RESUME") + 1
