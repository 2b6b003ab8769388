"""What others that promise the same were seen to get wrong: each defect is a case against the real module.

First those measured under load, then those read in sources and reports. Of the latter these cannot happen
in a gate, and have no case: what a store with capacity units costs; replays inside a durable execution
taken for duplicates; a state rebuilt from the resource in the place of a kept response (a gate
knows no resources); client libraries that do not retry 409, or that replace their caller's key.
"""
import concurrent.futures
import json
import socket
import struct
import time

import pytest

import gate as g
from conftest import wait_until
from process import stop
from fake_http import FakeHttp


def begin(gate, api, path, key, body=b""):
    """A first attempt that runs."""
    first = gate.later(path, key, body)
    wait_until(lambda: api.count(key) == 1, "the first attempt")
    return first


def leave(gate, request, read=0):
    """Sends, reads a little, and resets the connection."""
    connection = gate.connect()
    connection.send(request)
    if read:
        assert len(connection.socket.recv(read)) > 0
    connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.file.close()
    connection.socket.close()


# ---- measured under load -------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/waits"])
def test_a_conflict_is_never_kept(make_gate, api, folder, path):
    """Duplicates that came as the first one ended left the 409 behind as the key's result, for ever."""
    gate = make_gate(g.locations(api, folder), workers=2).start()
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        for n in range(25):
            key, url = f"k{n}", f"{path}/hold/d{n}"
            first = begin(gate, api, url, key)
            opened = pool.submit(api.door(f"d{n}").set)
            answers = [call.result() for call in [pool.submit(gate.post, url, key) for _ in range(8)]]
            opened.result()
            assert first().replayed == "false"
            assert {answer.status for answer in answers} <= ({200} if path else {200, 409})
            for _ in range(2):
                again = gate.post(url, key)
                assert (again.status, again.body, again.replayed) == (200, b"effect=1", "true")
            assert api.count(key) == 1


@pytest.mark.parametrize("read", [0, 1000])
def test_an_aborted_replay_runs_nothing(gate, api, read):
    """A client that left while it was given a replay let the handler run again."""
    first = gate.post("/ok?len=900000", "k")
    for _ in range(10):
        leave(gate, g.request("POST", "/ok?len=900000", "k"), read)
    again = gate.post("/ok?len=900000", "k")
    assert (again.body, again.replayed) == (first.body, "true") and api.count("k") == 1


@pytest.mark.some(1)
@pytest.mark.parametrize("path", ["/hold/d?len=50000", "/nobuf/hold/d?len=50000", "/waits/hold/d?len=50000"])
def test_after_an_abort_the_response_is_whole(gate, api, path):
    """A client that left made its retry get 200 with an empty body, or 409 for a day."""
    connection = gate.connect()
    connection.send(g.request("POST", path, "k"))
    wait_until(lambda: api.count("k") == 1, "the attempt")
    connection.close()
    api.door("d").set()
    answers = []
    wait_until(lambda: answers.append(gate.post(path, "k")) or answers[-1].status != 409, "the end of the conflict")
    assert (answers[-1].status, answers[-1].body, answers[-1].replayed) == (200, b"x" * 50000, "true")
    assert api.count("k") == 1


def test_a_killed_holder_blocks_its_key_for_a_lease(gate, api):
    """A holder killed while its handler ran blocked the key for as long as responses are kept."""
    first = gate.later("/short/hold/d", "k")
    wait_until(lambda: api.count("k") == 1, "the attempt")
    g.os.kill(gate.workers()[0], g.signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises((AssertionError, OSError, g.http.client.HTTPException)):
        first()
    api.door("d").set()
    answers = []

    def through():
        with g.contextlib.suppress(OSError, AssertionError):  # until there is another worker
            answers.append(gate.post("/short/hold/d", "k"))
        return answers and answers[-1].status != 409

    wait_until(through, "the key being free")
    assert (answers[-1].body, answers[-1].replayed) == (b"effect=2", "false")
    assert time.monotonic() - killed < 25  # a lease of 300 ms, and not the usual one


@pytest.mark.parametrize("path", ["/hold/d", "/waits/hold/d"])
def test_no_loser_is_left_without_an_answer(gate, api, path):
    """Losers of a race got no answer at all: here at once, or with the winner's."""
    winner = begin(gate, api, path, "k")
    losers = [gate.later(path, "k") for _ in range(40)]
    if path == "/hold/d":
        assert [loser().status for loser in losers] == [409] * 40
        assert winner.thread.is_alive()
    api.door("d").set()
    assert winner().status == 200
    assert {loser().status for loser in losers} == ({409} if path == "/hold/d" else {200})
    assert api.count("k") == 1


def test_connections_to_the_api_are_kept(serve, api):  # noqa: F811
    """A proxy that made a connection for each request was at a quarter of its speed: `hapax serve` keeps them."""
    opened, accept = [], api.get_request
    api.get_request = lambda: opened.append(accept()) or opened[-1]
    served = serve("--workers", "1")
    for n in range(20):
        assert served.post("/ok", f"k{n}").replayed == "false"
    assert len(api.seen) == 20 and 1 <= len(opened) <= 3


# ---- read in sources and reports -----------------------------------------------------------------


def test_a_claim_and_a_response_have_times_of_their_own(gate, api):
    """One time for both meant that a dead attempt blocked for a day, or that a response was gone in a minute."""
    assert gate.post("/short/drop", "dead").status == 502
    wait_until(lambda: gate.post("/short/drop", "dead").status == 502, "the end of the lease")
    assert gate.post("/short/ok", "k").replayed == "false"
    time_after = time.monotonic() + 1  # three leases
    while time.monotonic() < time_after:
        assert gate.post("/short/ok", "k").replayed == "true"
    assert api.count("dead") == 2 and api.count("k") == 1


def test_a_late_holder_does_not_overwrite_its_successor(make_gate, api):
    """A holder whose lease was over still wrote, renewed or released what by then was another's."""
    gate = make_gate(f"""server {{ LISTEN hapax on; hapax_lease 200ms; hapax_run_max 400ms; hapax_fingerprint off;
                                   location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    first = begin(gate, api, "/hold/d", "k")
    wait_until(lambda: gate.post("/echo", "k", b"successor").status == 200, "the take-over")
    api.door("d").set()
    assert first().body == b"successor"
    again = gate.post("/echo", "k", b"successor")
    assert (again.body, again.replayed) == (b"successor", "true") and api.count("k") == 2


def test_a_claim_whose_reply_was_lost_is_not_a_rival(make_gate, api, hapax):
    """A claim landed, its reply was lost, and the retry took its own row for another's: nobody ran, all got 409."""
    gate = make_gate(f"""hapax_timeout 200ms; hapax_save_wait 200ms; hapax_lease 1h; server {{ LISTEN hapax on;
                         location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    wait_until(lambda: gate.post("/ok", "before").status == 200, "the keeper being found")
    stop(hapax.keeper.pid)
    try:
        assert [gate.post("/ok", "k").status for _ in range(3)] == [503] * 3
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    wait_until(lambda: gate.post("/ok", "k").status == 200, "the key being free, long before its lease is over")
    assert api.count("k") == 1


def test_claiming_is_one_step(make_gate, api, folder):
    """Look-up and reservation were two steps, and racing duplicates got between them."""
    gate = make_gate(g.locations(api, folder), workers=2).start()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for n in range(40):
            answers = [call.result() for call in [pool.submit(gate.post, "/waits/ok", f"k{n}") for _ in range(8)]]
            assert sorted(answer.replayed for answer in answers) == ["false"] + ["true"] * 7
            assert api.count(f"k{n}") == 1


@pytest.mark.some(3)
@pytest.mark.parametrize("path", ["/chunked", "/nobuf/chunked", "/gzip", "/status/204", "/created",
                                  "/type?t=image/png"])
def test_any_kind_of_response_is_kept(gate, api, path):
    """Responses that were no plain JSON (streamed, binary, empty, files) were kept as {}, or not at all."""
    first, again = gate.post(path, "k"), gate.post(path, "k")
    assert (again.status, again.body, again.replayed) == (first.status, first.body, "true")
    assert again.get("Content-Type") == first.get("Content-Type") and api.count("k") == 1


def test_headers_are_neither_split_nor_leaked(make_gate, fake):  # noqa: F811
    """Kept cookies and challenges went to others; values with commas came back cut in pieces."""
    upstream = fake(FakeHttp, b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nSet-Cookie: sid=1; Expires=Wed, 21 Oct 2065\r\n"
                              b"Content-Disposition: attachment; filename=\"a, b.txt\"\r\nVary: A, B\r\nVary: C\r\n"
                              b"WWW-Authenticate: Basic realm=x\r\nKeep-Alive: timeout=9\r\n\r\n1")
    gate = make_gate(f"""server {{ LISTEN hapax on;
                                   location / {{ proxy_pass http://127.0.0.1:{upstream.port}; }} }}""").start()
    first, again = gate.post("/x", "k"), gate.post("/x", "k")
    assert first.all("Set-Cookie") == ["sid=1; Expires=Wed, 21 Oct 2065"] and again.replayed == "true"
    assert again.all("Set-Cookie") == again.all("WWW-Authenticate") == again.all("Keep-Alive") == []
    assert again.get("Content-Disposition") == 'attachment; filename="a, b.txt"' and again.all("Vary") == ["A, B", "C"]
    assert again.get("Content-Length") == "1" and again.get("Transfer-Encoding") is None


def test_a_response_is_not_replayed_to_another(gate, api):
    """One user's response, secrets in it, was replayed to another who sent the same key."""
    first = gate.post("/echo", "k", b"secret", [("Authorization", "Bearer a")])
    assert first.body == b"secret"
    for headers in ([("Authorization", "Bearer b")], []):
        answer = gate.post("/echo", "k", b"secret", headers)
        assert answer.status == 422 and b"secret" not in answer.body
    assert api.count("k") == 1


def test_an_error_has_a_way_out(gate, api, hapax, store):
    """Errors that might pass were kept as results, and no retry nor operator could get rid of them."""
    for status in (401, 429, 500, 503):
        assert gate.post(f"/status/{status},200", f"k{status}").status == status
        assert gate.post(f"/status/{status},200", f"k{status}").status == 200
    assert gate.post("/failhold/status/500,200", "held").status == 500
    assert gate.post("/failhold/status/500,200", "held").problem == "unknown-outcome"
    done = hapax("resolve", "--store", store, "held", "--complete", "201")
    assert done.code == 0, done.err
    assert gate.post("/failhold/status/500,200", "held").status == 201 and api.count("held") == 1


def test_spelling_is_no_other_payload(gate, api):
    """The order of members, white space and a fresh timestamp made a faithful retry a conflict."""
    gate.post("/json/ok", "k", b'{"a": [1, {"b": 2, "c": 3}], "at": 1}')
    assert gate.post("/json/ok", "k", b'{"at":2,"a":[1,{"c":3,"b":2}]}').replayed == "true"
    assert gate.post("/json/ok", "k", b'{"at":2,"a":[{"c":3,"b":2},1]}').status == 422


@pytest.mark.some(3)
@pytest.mark.parametrize("body", [b"", b"null", b"0", b"false", b'""', b"{}", b"\0"])
def test_an_empty_result_is_a_result(gate, api, body):
    """Results that count as false were taken for none, and the handler ran again."""
    first = gate.post("/echo", "k", body)
    again = gate.post("/echo", "k", body)
    assert (first.body, again.body, again.replayed) == (body, body, "true") and api.count("k") == 1


def test_the_fingerprint_outlives_completion(gate, api):
    """When the response was written the payload's hash was dropped, so that any payload got it."""
    first = begin(gate, api, "/hold/d", "k", b"a")
    assert gate.post("/hold/d", "k", b"b").status == 422
    api.door("d").set()
    assert first().status == 200
    assert gate.post("/hold/d", "k", b"b").status == 422 and gate.post("/hold/d", "k", b"a").replayed == "true"


def test_an_operation_can_be_seen(gate, api, hapax, uri):  # noqa: F811
    """Nobody could count replays, or find, look at and free one stuck key."""
    first = begin(gate, api, "/hold/d", "k")
    assert hapax("show", "--store", uri, "--json", "k").json["state"] == "started"
    assert int(gate.post("/hold/d", "k").get("Retry-After")) > 0
    api.door("d").set()
    first()
    assert gate.post("/hold/d", "k").replayed == "true"
    assert hapax("show", "--store", uri, "--json", "k").json["state"] == "completed"
    answers = json.loads(gate.send("GET", "/hapax?format=json").body)["answers"]
    assert (answers["fresh"], answers["replay"], answers["in_flight"]) == (1, 1, 1)


def test_a_replay_says_that_it_is_one(gate):
    """Nothing told a replay from a run, nor an unprotected run from either."""
    assert [gate.post("/ok", "k").replayed for _ in range(2)] == ["false", "true"]
    assert gate.post("/ok").replayed is None


def test_a_large_request_is_refused_and_not_waved_through(gate, api):
    """Over a limit of size the protection was silently left out."""
    for _ in range(2):
        assert gate.post("/tiny/ok", "k", b"x" * 1025).status == 413
    assert api.count("k") == 0


def test_a_large_response_does_not_run_again(gate, api):
    """A response over the limit was not kept, so that each retry ran the handler; or the caller saw an error."""
    assert len(gate.post("/small/ok?len=5000", "k").body) == 5000
    for _ in range(2):
        assert gate.post("/small/ok?len=5000", "k").problem == "response-not-kept"
    assert api.count("k") == 1


def test_keys_are_not_folded_and_payloads_not_joined(gate, api):
    """Keys were lower-cased into each other; equal payloads under two keys were taken for one operation."""
    for key in ("key", "KEY", "Key"):
        assert gate.post("/ok", key, b"same").replayed == "false"
    assert len(api.seen) == 3


def test_an_api_that_is_down_leaves_no_claim(gate):
    """No hook was called when nothing could be connected to, and the key stayed pending."""
    for _ in range(3):
        answer = gate.post("/dead", "k")
        assert (answer.status, answer.replayed) == (502, "false")


def test_a_waiter_that_gives_up_frees_nothing(make_gate, api):
    """A waiter whose patience was over deleted the claim of the living holder, and a third one ran."""
    gate = make_gate(f"""server {{ LISTEN hapax on; hapax_wait 200ms;
                                   location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    first = begin(gate, api, "/hold/d", "k")
    for _ in range(3):
        assert gate.post("/hold/d", "k").problem == "in-flight"
    assert api.count("k") == 1
    api.door("d").set()
    assert first().replayed == "false" and gate.post("/hold/d", "k").replayed == "true" and api.count("k") == 1


def test_a_response_that_was_not_saved_says_so(make_gate, api, hapax):
    """A failed save was ignored: the client believed itself protected, and a retry ran again."""
    gate = make_gate(f"""hapax_timeout 10s; hapax_save_wait 200ms; server {{ LISTEN hapax on;
                         location / {{ proxy_pass http://127.0.0.1:{api.port}; }} }}""").start()
    first = begin(gate, api, "/hold/d", "k")
    stop(hapax.keeper.pid)
    try:
        api.door("d").set()
        answer = first()
        assert (answer.status, answer.get("Idempotency-Recorded")) == (200, "false")
    finally:
        hapax.keeper.send_signal(g.signal.SIGCONT)
    wait_until(lambda: gate.post("/hold/d", "k").replayed == "true", "the response being saved")
    assert api.count("k") == 1
