"""hapax lambda where sandboxes die and freeze: the function, hapax, or both, by kill -9 at each step of an invocation,
and SIGSTOP for longer than a lease. Whatever dies, no two answers of a key differ, and what is known to be done is not
run again.

HAPAX_LAMBDA_STORM (4): seconds of random kills.
"""
import collections
import contextlib
import itertools
import os
import random
import signal
import threading
import time

import pytest

import lambda_bed as bed
from conftest import PATIENCE, at_some_pace, wait_until
from lambda_bed import Function, agree
from process import signal_each
from proxy import Proxy

STORM_S = float(os.environ.get("HAPAX_LAMBDA_STORM", 4))
DEADLINE_S = 0.5  # of an invocation whose lease has to be waited for; it is a second longer


@pytest.fixture
def redis():
    return bed.redis_server()


@pytest.fixture
def function(hapax, redis):
    with contextlib.ExitStack() as stack:
        def start(name, *options, store=None, **more):
            return stack.enter_context(Function(hapax, store or redis.uri(), name, "--key", "/id", *options, **more))

        yield start


def kill(one, victim):
    """Only one of the two, or both at once; then Lambda ends the sandbox."""
    if victim == "function":
        os.kill(one.sandbox.child(), signal.SIGKILL)
        wait_until(lambda: not bed.lambda_api.alive(one.sandbox.process.pid), "hapax ending with its child")
    elif victim == "hapax":
        os.kill(one.sandbox.process.pid, signal.SIGKILL)
    one.sandbox.kill()


def finished(one, event):
    """The answer of retries that go on until there is one."""
    found = []

    def answered():
        answer = one.invoke(event)
        assert answer.kind == "response" or answer.error_type in ("Hapax.InFlight", "Hapax.StoreUnavailable"), answer
        found.append(answer)
        return answer.kind == "response"

    wait_until(answered, "an answer")
    return found[-1]


# ---- kill -9 at each step -----------------------------------------------------------------------

VICTIMS = ["function", "hapax", "both"]


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_while_it_waits_for_an_event(function, victim):
    """Nothing is in hand: what comes next runs once."""
    one = function("echo")
    first = one.invoke({"id": "a"})
    one.api.wait_calls("next", 2)
    kill(one, victim)
    one.sandbox.ready()
    agree(first, one.invoke({"id": "a"}))
    assert one.invoke({"id": "b"}).kind == "response"
    assert one.effects() == {"a": 1, "b": 1}


def test_killed_before_it_was_given_the_event(function, redis):  # promise 14
    """The function dies while the claim is under way. Surely nothing ran, so a retry runs under hold, too."""
    with Proxy(redis.port) as proxy:
        one = function("echo", "--on-expired", "hold", store=f"redis://127.0.0.1:{proxy.port}?timeout=30s")
        one.invoke({"id": "before"})
        claim, child = proxy.stall("reply"), one.sandbox.child()
        one.api.invoke({"id": "k"})
        assert claim.fired.wait(60)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not bed.lambda_api.alive(child), "the function's end")
        proxy.heal()
        assert one.sandbox.wait() == 128 + signal.SIGKILL
        one.sandbox.ready()
        agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
        assert one.effects() == {"before": 1, "k": 1}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_after_the_claim(function, redis, victim):
    """The store has it, and nobody was told: it runs once the lease is over, for the first time."""
    with Proxy(redis.port) as proxy:
        one = function("echo", store=f"redis://127.0.0.1:{proxy.port}")
        finished(one, {"id": "a"})
        claim = proxy.stall("reply")
        one.api.invoke({"id": "k"}, deadline_s=DEADLINE_S)
        assert claim.fired.wait(60)
        kill(one, victim)
        proxy.heal()
        one.sandbox.ready()
        agree(finished(one, {"id": "k"}), one.invoke({"id": "k"}))
        assert one.effects() == {"a": 1, "k": 1}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_after_the_effect(function, victim):
    """Nobody can tell: not run again while the lease lasts, and run again after it, for that is the policy."""
    one = function("slow")

    def killed(deadline_s):
        event = {"id": f"k{deadline_s}"}
        (one.folder / "go").unlink(missing_ok=True)
        one.api.invoke(event, deadline_s=deadline_s)
        one.sandbox.wait_for(lambda: one.effects()[event["id"]] == 1, "the effect")
        kill(one, victim)
        one.file("go")
        one.sandbox.ready()
        again = one.invoke(event)
        agree(finished(one, event), one.invoke(event))
        assert one.effects()[event["id"]] == 2
        assert again.error_type == "Hapax.InFlight"

    at_some_pace(killed, DEADLINE_S, 6, 25)


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_after_the_effect_and_held(function, hapax, redis, victim):
    """on_expired=hold: it never runs again by itself."""
    one = function("slow", "--on-expired", "hold", "--scope", "s")
    one.api.invoke({"id": "k"}, deadline_s=DEADLINE_S)
    one.wait_lines("effects", 1)
    kill(one, victim)
    one.file("go")
    one.sandbox.ready()
    wait_until(lambda: one.invoke({"id": "k"}).error_type == "Hapax.UnknownOutcome", "the lease's end")
    assert one.effects() == {"k": 1}
    assert hapax("resolve", "--store", redis.uri(), "--scope", "s", "k", "--fail").code == 0
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 2}


@pytest.mark.parametrize("victim", ["hapax", "both"])
def test_killed_before_it_knows_that_the_outcome_is_stored(function, redis, victim):
    """The COMPLETE is carried out and its reply lost: the retry is a repeat."""
    with Proxy(redis.port) as proxy:
        one = function("slow", store=f"redis://127.0.0.1:{proxy.port}?timeout=30s")
        one.api.invoke({"id": "k"})
        one.wait_lines("effects", 1)
        complete = proxy.stall("reply")
        one.file("go")
        assert complete.fired.wait(60)
        kill(one, victim)
        proxy.heal()
        one.sandbox.ready()
        agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
        assert one.effects() == {"k": 1}


@pytest.mark.parametrize("victim", ["hapax", "both"])
def test_killed_between_storing_and_posting(function, victim):  # promise 4
    """The service has nothing; its retry is answered from the store."""
    one = function("echo")
    with one.api.hold("response") as held:
        invocation = one.api.invoke({"id": "k"})
        held.wait()
        kill(one, victim)
    assert invocation.answer.kind == "died"
    one.sandbox.ready()
    agree(one.invoke({"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_a_function_killed_between_storing_and_posting(function):
    """hapax has all of its answer: whether the service still gets it or not, the retry gives the same."""
    one = function("echo")
    with one.api.hold("response") as held:
        invocation = one.api.invoke({"id": "k"})
        held.wait()
        os.kill(one.sandbox.child(), signal.SIGKILL)
    assert one.sandbox.wait() == 128 + signal.SIGKILL
    one.sandbox.ready()
    agree(one.invoke({"id": "k"}), *[answer for answer in [invocation.answer] if answer.kind != "died"])
    assert one.effects() == {"k": 1}


@pytest.mark.parametrize("victim", ["hapax", "both"])
def test_killed_after_posting(function, victim):
    """The service has the answer and the sandbox does not know: its retry gives the same."""
    one = function("echo")
    with one.api.hold("response", taken=True) as held:
        invocation = one.api.invoke({"id": "k"})
        held.wait()
        kill(one, victim)
    one.sandbox.ready()
    agree(invocation.wait(), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_what_a_function_posts_as_it_ends_is_heard(function):
    """Its end and its answer reach hapax at one moment, a few times. Under hold nobody could ask again."""
    one = function("post_and_leave", "--on-expired", "hold")
    for key in map(str, range(8)):
        invocation = one.begin({"id": key})
        child = one.sandbox.child()
        wait_until(lambda child=child: not bed.lambda_api.alive(child), "the function's end")
        os.kill(one.sandbox.process.pid, signal.SIGCONT)
        one.sandbox.wait()
        one.sandbox.ready()
        agree(invocation.wait(), one.invoke({"id": key}))
        assert one.effects()[key] == 1


@pytest.mark.parametrize("victim", ["hapax", "both"])
def test_killed_amid_a_replay(function, victim):
    """A repeat that hapax answers itself, held by the service."""
    one = function("echo")
    first = one.invoke({"id": "k"})
    with one.api.hold("response") as held:
        one.api.invoke({"id": "k"})
        held.wait()
        kill(one, victim)
    one.sandbox.ready()
    agree(first, one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_on_the_embedded_store(function, store, victim):
    """What was stored before a kill -9 is on disk."""
    one = function("echo", store=store)
    first = one.invoke({"id": "k"})
    kill(one, victim)
    one.sandbox.ready()
    agree(first, one.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_a_function_that_dies_by_itself_leaves_its_operation_to_the_lease(function):
    """It posts nothing; hapax ends with it, and the retry runs after the lease."""
    one = function("die")
    one.file("dies")
    one.api.invoke({"id": "k"}, deadline_s=DEADLINE_S)
    assert one.sandbox.wait() != 0
    one.gone("dies")
    one.sandbox.ready()
    agree(finished(one, {"id": "k"}), one.invoke({"id": "k"}))
    assert one.effects() == {"k": 2}


def test_a_lease_of_its_own_is_renewed(function):
    """--lease: shorter than the run, and still nobody else runs it; once the sandbox is dead, not for longer."""
    two = function("echo")

    def renewed(ms):
        event = {"id": f"k{ms}"}
        one = function("slow", "--lease", f"{ms}ms")
        one.begin(event, deadline_s=600)  # of which nobody could wait for the end
        one.sandbox.wait_for(lambda: one.effects()[event["id"]] == 1, "the effect")
        until, answers = time.monotonic() + ms * 2.5 / 1000, []
        while time.monotonic() < until:
            answers.append(two.invoke(event))
            time.sleep(0.05)
        kill(one, "both")
        agree(finished(two, event), two.invoke(event))
        assert {answer.error_type for answer in answers} == {"Hapax.InFlight"}
        assert one.effects()[event["id"]] == 2

    at_some_pace(renewed, 600, 4000, 15000)


# ---- frozen ---------------------------------------------------------------------------------------


def test_frozen_after_its_answer_for_longer_than_a_lease(function):
    """As between two invocations: thawed, it goes on as if nothing had been."""
    one = function("echo")
    first = one.invoke({"id": "k"}, deadline_s=0.2)
    one.api.wait_calls("next", 2)
    one.sandbox.freeze()
    again = one.api.invoke({"id": "k"})
    other = one.api.invoke({"id": "k2"})
    time.sleep(1.4)  # the lease is over: that is what it is about
    assert not again.finished.is_set()
    one.sandbox.thaw()
    agree(first, again.wait())
    assert other.wait().kind == "response"
    assert one.effects() == {"k": 1, "k2": 1}


def test_frozen_as_its_answer_goes_out(function):
    """Stored, and not yet posted: another sandbox answers it, and the frozen one says the same."""
    one, two = function("echo"), function("echo")
    with one.api.hold("response") as held:
        invocation = one.api.invoke({"id": "k"}, deadline_s=0.2)
        held.wait()
        one.sandbox.freeze()
        answer = two.invoke({"id": "k"})
    one.sandbox.thaw()
    agree(answer, invocation.wait())
    assert one.effects() == {"k": 1}


@pytest.mark.parametrize("name", ["slow", "stream_again"])
def test_a_zombie_does_not_answer_differently(function, name):
    """Frozen amid its run past the deadline; another runs it meanwhile. Thawed, its own answer is not given, nor when
    its first post breaks off and a second one comes."""
    one, two = function(name), function("echo")
    zombie = one.begin({"id": "k"}, deadline_s=DEADLINE_S)
    one.wait_lines("effects", 1)
    one.sandbox.freeze()
    answer = finished(two, {"id": "k"})
    one.file("go")
    one.sandbox.thaw()
    last = zombie.wait()
    if last.kind == "response":
        agree(answer, last)
    else:
        assert last.error_type.startswith("Hapax."), last
    agree(answer, two.invoke({"id": "k"}))
    assert one.effects() == {"k": 2}
    if name == "stream_again":  # once the answer that stands is posted, the second post is none of an event that runs
        one.wait_lines("posted", 1)
        assert all("which does not run" in said for said in one.api.misuse)
        one.api.misuse.clear()


def test_a_zombie_beside_its_successor_says_nothing_of_its_own(function):  # promise 2
    """The other is still at it: in flight, and later the other's answer."""
    one, two = function("slow"), function("slow")
    zombie = one.begin({"id": "k"}, deadline_s=DEADLINE_S)
    one.wait_lines("effects", 1)
    with one.api.hold("response") as held_response, one.api.hold("error") as held_error:
        one.sandbox.freeze()
        successor = None
        while one.effects()["k"] < 2:
            successor = two.api.invoke({"id": "k"})
            wait_until(lambda: successor.finished.is_set() or one.effects()["k"] == 2, "the takeover or a refusal")
        # Only the zombie sees its `go`: both share the folder, and the successor stands still meanwhile.
        two.sandbox.freeze()
        one.file("go")
        one.sandbox.thaw()
        wait_until(lambda: held_response.reached.is_set() or held_error.reached.is_set(), "the zombie's answer")
        two.sandbox.thaw()
    last = zombie.wait()
    answer = successor.wait()
    assert last.kind == "error" and last.error_type == "Hapax.InFlight", last
    agree(answer, two.invoke({"id": "k"}))


def test_a_zombie_that_nobody_took_over_completes(function):
    """on_expired=hold: unknown to others while it stands still; it was it that ran, so its answer counts."""
    one, two = function("slow", "--on-expired", "hold"), function("echo", "--on-expired", "hold")
    zombie = one.begin({"id": "k"}, deadline_s=DEADLINE_S)
    one.wait_lines("effects", 1)
    one.sandbox.freeze()
    wait_until(lambda: two.invoke({"id": "k"}).error_type == "Hapax.UnknownOutcome", "the lease's end")
    one.file("go")
    one.sandbox.thaw()
    agree(zombie.wait(), two.invoke({"id": "k"}))
    assert one.effects() == {"k": 1}


def test_an_error_of_a_zombie_undoes_nothing(function):
    """It fails where another was done: the other's outcome stands."""
    one, two = function("slow_fail"), function("echo")
    zombie = one.begin({"id": "k"}, deadline_s=DEADLINE_S)
    one.wait_lines("effects", 1)
    one.sandbox.freeze()
    answer = finished(two, {"id": "k"})
    one.file("go")
    one.sandbox.thaw()
    zombie.wait()
    agree(answer, two.invoke({"id": "k"}))
    assert one.effects() == {"k": 2}


# ---- a storm ----------------------------------------------------------------------------------------


class Storm:
    """A sandbox that works through keys, killed now and then: what was answered, and how often it died at what, or was
    not done with it as its lease ended. Each key comes a few times, at about the same time here and in the other
    one."""

    def __init__(self, function, count, seed, until):
        self.function, self.count, self.until, self.random = function, count, until, random.Random(seed)
        self.answers, self.died, self.late = collections.defaultdict(list), collections.Counter(), collections.Counter()
        self.kills = 0
        self.failure = None
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        try:
            while (time.monotonic() < self.until
                   or self.kills <= STORM_S / 2 and time.monotonic() < self.until + PATIENCE):
                self.one(f"k{next(self.count) // 4 + self.random.randrange(5)}")
        except BaseException as failure:
            self.failure = failure

    def one(self, key):
        dies = self.random.random() < 0.3
        pids = self.function.sandbox.family()[:2]
        invocation = self.function.api.invoke({"id": key}, deadline_s=DEADLINE_S)
        if dies:
            invocation.given.wait(60)
            invocation.finished.wait(self.random.random() * 0.012)
            signal_each(self.random.choice([pids[:1], pids[1:], pids]), signal.SIGKILL)
            self.function.sandbox.kill()
            self.kills += 1
            if invocation.given.is_set():
                self.died[key] += invocation.answer.kind == "died"
            self.function.sandbox.ready()
        answer = invocation.wait()
        self.late[key] += invocation.finished_at - invocation.given_at > DEADLINE_S + 0.9
        if answer.kind == "response":
            self.answers[key].append(answer)
        elif answer.kind == "error":
            assert answer.error_type == "Hapax.InFlight", answer

    def end(self):
        self.thread.join()
        if self.failure:
            raise self.failure


def test_a_storm_of_kills_contradicts_nothing(function):  # promise 3
    """Two sandboxes and one store; each key has one answer, and ran once more at most for each time that it died at it,
    or that it stood still for a lease."""
    count, until, seed = itertools.count(), time.monotonic() + STORM_S, random.randrange(1 << 32)
    print("seed", seed)
    storms = [Storm(function("work"), count, seed + i, until) for i in range(2)]
    for storm in storms:
        storm.end()
    effects = storms[0].function.effects()
    keys = set(effects).union(*(storm.died for storm in storms), *(storm.answers for storm in storms))
    last = {key: finished(storms[0].function, {"id": key}) for key in keys}
    effects = storms[0].function.effects()
    for key in keys:
        agree(last[key], *(answer for storm in storms for answer in storm.answers[key]))
        assert 1 <= effects[key] <= 1 + sum(storm.died[key] + storm.late[key] for storm in storms), key
    assert sum(storm.kills for storm in storms) > STORM_S
    print(sum(storm.kills for storm in storms), "kills,", len(keys), "keys,", sum(effects.values()), "effects")
