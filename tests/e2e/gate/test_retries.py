"""The retries of common clients, played: their schedules as docs/retries.md has them, before `hapax serve` with the
settings that stand beside them there. (Stripe's SDKs are the real ones, in test_sdks.py.) Time-outs, and leases after
a crash, are shorter than the page's, in the same order: lease < wait."""
import threading

import pytest

import gate as g
from conftest import PATIENCE, wait_until

# pauses in seconds, and the statuses after which the client tries again; it always does after a time-out
SCHEDULES = {
    "AWS SDKs, standard": ((0.5, 1), {429, 500, 502, 503, 504}),
    "gRPC, retryPolicy": ((0.1, 0.2, 0.4), {409, 502, 503, 504}),
    "go-retryablehttp": ((1, 2, 4, 8), {429, 500, 502, 503, 504}),
}


def play(served, api, schedule, path, timed_out):
    """The answer that the client ends with, and how many requests it took. The time of the first one begins when its
    handler has."""
    pauses, again = SCHEDULES[schedule]
    for n, pause in enumerate((0, *pauses), 1):
        threading.Event().wait(pause)  # the client's own pause
        with g.Connection(served.port) as connection:
            connection.send(g.request("POST", path, "k"))
            if n == 1:
                wait_until(lambda: api.count("k") == 1, "the handler")
            connection.socket.settimeout(1 if n == 1 else PATIENCE)
            try:
                answer = connection.response()
            except TimeoutError:
                timed_out()
                continue
        if answer.status not in again:
            break
    return answer, n


@pytest.mark.some(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_handler_that_outlasts_the_clients_timeout_is_replayed(serve, api, schedule):
    """The client gives its first request up, and its next one gets the first response: one effect."""
    served = serve("--wait", "60s", "--lease", "10s")
    answer, requests = play(served, api, schedule, "/hold/a", api.door("a").set)
    assert (answer.status, answer.body, requests) == (200, b"effect=1", 2)
    assert (answer.replayed, api.count("k")) == ("true", 1)


@pytest.mark.some(1)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_crash_is_outlived_by_the_next_request(serve, api, schedule):
    """The first attempt is cut off. The second request waits for its lease, and is run: no third is needed."""
    served = serve("--wait", "60s", "--lease", "1s")
    answer, requests = play(served, api, schedule, "/droponce", lambda: None)
    assert (answer.status, answer.replayed, requests, api.count("k")) == (200, "false", 2, 2)


def test_without_a_wait_the_retries_are_used_up(serve, api):
    """What the page warns of: go-retryablehttp does not try again after 409, though the handler runs to its end."""
    served = serve("--wait", "0")
    answer, requests = play(served, api, "go-retryablehttp", "/hold/a", lambda: None)
    assert (answer.status, answer.problem, requests) == (409, "in-flight", 2)
    api.door("a").set()
    wait_until(lambda: served.post("/hold/a", "k").status == 200, "the handler's end")
    assert api.count("k") == 1
