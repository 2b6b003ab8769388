"""hapax door where somebody dies: clients, the door, the store."""
import base64
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import textwrap
import time
import types
import urllib.request

import pytest
from conftest import HAPAX, PATIENCE, at_some_pace, end, read_line, wait_until
from door_client import Client, encode
from postgres_server import Postgres
from redis_server import Redis
from test_door import Door

HOLD = {"on_expired": "hold"}


class Program:
    """A client in a process of its own, that was told to run `key` and does not end."""

    CODE = textwrap.dedent("""
        import sys, time
        sys.path[:0] = sys.argv[3].split(":")
        from door_client import Client
        client = Client(sys.argv[1])
        frame = client.wait(client.begin(sys.argv[2], policy=eval(sys.argv[4])))
        print(frame.kind, flush=True)
        if len(sys.argv) > 5:
            import os
            if pid := os.fork():
                print(pid, flush=True)
            else:
                time.sleep(1000)
        while True:
            client.beat()
            time.sleep(0.05)
        """)

    def __init__(self, door, key="k", policy=None, *more):
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, door.path, key, ":".join(sys.path), repr(policy or {}), *more],
            stdout=subprocess.PIPE, text=True)
        assert read_line(self.process) == "RUN\n"
        self.child = int(read_line(self.process)) if more else None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.ci)])
def away(request, hapax):
    """A store on a network, with its URI."""
    with (Redis() if request.param == "redis" else Postgres()) as server:
        server.start()
        server.store = server.uri()
        if request.param == "postgres":
            assert hapax("init", "--store", server.store).code == 0
        yield server


def answered(client, key, *kinds, **members):
    """Asks until the answer is one of these, or RUN; gives the frame."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        frame = client.wait(client.begin(key, **members))
        if (frame.kind if frame.kind != "ANSWER" else frame.answer) in kinds:
            return frame
        assert frame.kind == "ANSWER", frame
    raise AssertionError(f"{frame} and not {kinds}")


# ---- clients ----------------------------------------------------------------------------------


def test_under_hold_a_killed_handler_is_unknown_at_once(hapax, store):  # promise 5
    """The kernel tells of the death; operators see the operation long before the lease is over."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h")
    program = Program(door, policy=HOLD)
    program.kill()
    with door.client() as client:
        assert answered(client, "k", "unknown", policy=HOLD)
    assert hapax("list", "--store", store, "--state", "unknown").out.count("\n") >= 1


def test_under_rerun_a_killed_handler_is_followed_after_its_lease(hapax, store):
    """The next attempt is the second, and says that an earlier one died."""
    door = Door(hapax, store, "--lease", "1s")
    program = Program(door)
    program.kill()
    with door.client() as client:
        run = client.run(policy={"wait": "60s"})
        assert run.attempt == 2 and run.stale


def test_a_killed_client_gives_up_what_did_not_run(hapax, store):
    """A BEGIN that waited is no attempt."""
    door = Door(hapax, store)
    with door.client() as one:
        run = one.run()
        waiting = Client(door.path)
        waiting.begin(policy={"wait": "1h"})
        waiting.close()
        assert one.finish(run.op, "failed").answer == "fresh"
        assert one.run().attempt == 2


def test_a_stopped_client_loses_its_claim(hapax, store):  # promise 2
    """Without beats nothing is renewed. Woken, the process is told LOST, and its END changes nothing."""

    def is_lost(lease_s):
        key = f"k{lease_s}"
        with contextlib.ExitStack() as stack:
            door = Door(hapax, store, "--lease", f"{lease_s}s")
            stack.callback(door.kill)
            sleeper, client = (stack.enter_context(door.client()) for _ in range(2))
            beats = sleeper.welcome.beat_ms
            assert beats <= lease_s * 1000 / 3
            run = sleeper.run(key)
            deadline = time.monotonic() + 2 * lease_s  # it lives as long as it beats
            while time.monotonic() < deadline:
                sleeper.beat()
                assert client.once(key).answer == "in_flight"
                time.sleep(0.1)
            other = client.run(key, policy={"wait": "60s"})
            assert other.attempt == 2 and other.stale and other.fence > run.fence
            sleeper.beats = True
            sleeper.beat()
            assert sleeper.wait(run.op).kind == "LOST"
            late = sleeper.finish(run.op, body=b"late")
            assert late.answer == "in_flight" and late.meta["class"] == "final" and not late.own
            assert client.finish(other.op, body=b"right").recorded
            assert client.once(key).body == b"right"

    at_some_pace(is_lost, 2, 8, 20)


def test_a_process_that_is_stopped_loses_its_claim(hapax, store):
    """SIGSTOP, past the lease."""
    door = Door(hapax, store, "--lease", "1s")
    program = Program(door)
    program.signal(signal.SIGSTOP)
    with door.client() as client:
        op = client.begin(policy={"wait": "60s"})
        assert client.wait(op, "RUN").attempt == 2
    program.kill()


def test_a_long_handler_keeps_its_claim(hapax, store):
    """Beats renew the lease, from the process, until run_max."""

    def keeps(lease_s):
        key = f"k{lease_s}"
        with contextlib.ExitStack() as stack:
            door = Door(hapax, store, "--lease", f"{lease_s}s")
            stack.callback(door.kill)
            stack.callback(Program(door, key).kill)
            client = stack.enter_context(door.client())
            deadline = time.monotonic() + 2 * lease_s
            while time.monotonic() < deadline:
                assert client.once(key).answer == "in_flight"
                time.sleep(0.1)

    at_some_pace(keeps, 2, 8, 20)


def test_with_now_a_killed_handler_is_followed_at_once(hapax, store):  # promise 44
    """--on-disconnect now: the kernel says that the process is dead, so nobody waits for its lease."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h", "--on-disconnect", "now")
    for held in ((), ("fork",)):  # a child that has the connection's copy is no handler
        key = f"k{held}"
        program = Program(door, key, None, *held)
        with door.client() as client:
            assert client.once(key).answer == "in_flight"
            program.kill()
            run = client.run(key, policy={"wait": "1h"})
            assert run.attempt == 2 and run.stale
            assert client.finish(run.op, "failed").spent == 2
        if program.child:
            os.kill(program.child, signal.SIGKILL)


def test_with_now_a_client_that_lives_is_not_dead(hapax, store):
    """Its connection has ended and its process has not: the claim is left to the lease."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h", "--on-disconnect", "now", "--metrics", "127.0.0.1:0")
    one = door.client()
    run = one.run()
    one.close()
    wait_until(lambda: metric(door, "hapax_door_deserted_total") == 1, "the end of the connection")
    with door.client() as two:
        assert two.once().answer == "in_flight"
        two.send("RESUME", 60, {"ticket": run.ticket})
        assert two.finish(60).recorded
        assert metric(door, "hapax_door_resumed_total") == 1 and metric(door, "hapax_door_connections") == 1
        assert metric(door, 'hapax_answers_total{answer="in_flight"}') == 1


def say_last(door, code):
    """Plays a client in a process of its own, which is killed after its last line."""
    code = "\n".join(["import os, signal, socket, sys", "sys.path[:0] = sys.argv[2].split(':')",
                      "from door_client import Client, encode", "client = Client(sys.argv[1])",
                      textwrap.dedent(code), "os.kill(os.getpid(), signal.SIGKILL)"])
    done = subprocess.run([sys.executable, "-c", code, door.path, ":".join(sys.path)], timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture(params=["lease", "now"])
def patient(request, hapax, store):
    """A door whose leases are never over."""
    return Door(hapax, store, "--lease", "1h", "--run-max", "2h", "--on-disconnect", request.param)


def test_what_a_client_said_before_its_death_counts(patient):
    """An END is taken, though what stands before it has answers that nobody reads any more."""
    say_last(patient, f"""
        op = client.run(policy={HOLD}).op
        client.socket.shutdown(socket.SHUT_RD)  # as its death does, but surely before the door writes
        client.socket.sendall(encode(99, 9, None, bytes(1000)) * 70 + encode("END", op, {{"class": "final"}}, b"done"))
        """)
    with patient.client() as client:
        assert client.once(policy={**HOLD, "wait": "60s"}).body == b"done"


def test_a_begin_that_nobody_would_hear_of_does_not_run(patient):
    """It is no attempt, and under hold nothing for an operator."""
    say_last(patient, f"""
        client.socket.shutdown(socket.SHUT_RD)
        client.socket.sendall(encode(99, 9, None, bytes(1000)) * 70)
        client.begin(policy={HOLD})
        """)
    with patient.client() as client:
        assert client.run(policy={**HOLD, "wait": "60s"}).attempt == 1


@pytest.mark.parametrize("on_disconnect", ["lease", "now"])
def test_what_a_client_resumed_before_its_death_ends_as_it_said(hapax, on_disconnect):
    """The END waits for its RESUME, longer than its process lives, and the door hears of that."""
    policy = {**HOLD, "lease": "1h", "run_max": "2h", "timeout": "60s"}
    with Redis() as server:
        server.start()
        door = Door(hapax, server.uri(), "--on-disconnect", on_disconnect)
        with door.client() as one:
            ticket = one.run(policy=policy).ticket
            door.kill()
        door.start()
        with door.client() as client:
            server.stop()
            say_last(door, f"""
                client.socket.sendall(encode("RESUME", 1, {{"ticket": {ticket!r}}}) +
                                      encode("END", 1, {{"class": "final"}}, b"done"))
                """)
            for number in range(1, 9):  # each in a round of the door's
                client.send(99, number)
                client.wait(number, "FAULT")
            server.cont()
            assert client.once(policy={**policy, "wait": "60s"}).body == b"done"


def fill(door, client):
    """Clients that have begun frames of 17 MiB, so that the door has no room for another long frame."""
    fillers = [door.client() for _ in range(8)]
    for part in struct.pack(">IBII", 17 << 20, 7, 1, 0), b"x":
        for filler in fillers:
            filler.socket.sendall(part)
        client.send(99, 1)  # what the door answers now it has read after these
        client.wait(1, "FAULT")
    return fillers


LONG = 100_000


def test_a_dead_client_whose_end_waits_for_memory_is_taken_at_its_word(patient):
    """Not sooner, and not as one that died within its handler."""
    with patient.client() as client:
        fillers = fill(patient, client)
        say_last(patient, f"client.end(client.run(policy={HOLD}).op, body=bytes({LONG}))")
        assert client.once(policy=HOLD).answer == "in_flight"
        for filler in fillers:
            filler.close()
        assert client.once(policy={**HOLD, "wait": "60s"}).body == bytes(LONG)


def test_a_client_that_waits_for_memory_and_is_gone_is_not_kept_alive(hapax, store):
    """Its lease runs out, and the door does not turn in circles meanwhile."""
    door = Door(hapax, store, "--lease", "1s")
    with door.client() as client:
        gone = door.client()
        run = gone.run()
        fillers = fill(door, client)
        gone.end(run.op, body=bytes(LONG))
        gone.close()
        began, busy = time.monotonic(), processor_time(door)
        assert client.run(policy={"wait": "25s"}).attempt == 2  # for 30 s the door bears with half frames
        assert processor_time(door) - busy < (time.monotonic() - began) / 2
        for filler in fillers:
            filler.close()


def processor_time(door):
    """Seconds."""
    with open(f"/proc/{door.process.pid}/stat") as stat:
        return sum(int(ticks) for ticks in stat.read().rpartition(")")[2].split()[11:13]) / os.sysconf("SC_CLK_TCK")


def metric(door, name):
    port = re.search(r"metrics at port (\d+)", door.ready)[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as page:
        return next(int(line.split()[-1]) for line in page.read().decode().splitlines() if line.startswith(name + " "))


# ---- the door ---------------------------------------------------------------------------------


def test_a_killed_door_loses_no_result(hapax, store):  # promise 43
    """RUN by one door, END by the next: fresh, and stored. Beside it a BEGIN that nobody had answered."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h")
    one = door.client()
    run = one.run("done")
    other = one.run("runs")
    nonce = os.urandom(16).hex()
    asked = {"scope": "test", "key": "asked", "nonce": nonce, "policy": HOLD}
    one.send("BEGIN", 77, asked)
    assert one.wait(77, "RUN")  # as if the client had not got it
    door.kill()
    door.start()
    with door.client() as two:
        two.send("RESUME", 9, {"ticket": run.ticket})
        two.send("END", 9, {"class": "final"}, b"result")
        fresh = two.wait(9, "ANSWER")
        assert fresh.answer == "fresh" and fresh.recorded and fresh.fence == run.fence and fresh.attempt == 1
        assert two.once("done").body == b"result"
        two.send("BEGIN", 10, asked)
        again = two.wait(10, "RUN")
        assert again.attempt == 1
        assert two.finish(10).recorded
        two.send("RESUME", 11, {"ticket": other.ticket})
        assert two.once("runs").answer == "in_flight"
        assert two.finish(11).recorded


def test_an_end_that_had_been_stored_is_fresh_again(hapax, store):
    """The door died between the store's answer and the client's."""
    door = Door(hapax, store)
    with door.client() as one:
        run = one.run()
        assert one.finish(run.op, body=b"result").recorded
        failed = one.run("failed")
        assert one.finish(failed.op, "failed").recorded
    door.kill()
    door.start()
    with door.client() as two:
        for op, ticket, cls in ((1, run.ticket, "final"), (2, failed.ticket, "failed")):
            two.op = op
            two.send("RESUME", op, {"ticket": ticket})
            two.end(op, cls, b"result" if op == 1 else b"")
            frame = two.wait(op)
            frame = two.wait(op) if frame.kind == "LOST" else frame
            assert frame.answer == "fresh" and frame.recorded, frame


@pytest.mark.parametrize("fast", [False, True], ids=["rocksdb", "memory"])
def test_a_claim_that_went_to_another_is_lost_at_the_resume(hapax, store, fast):  # promise 43
    """LOST, and the other's outcome. A store may say so before the door's own thread knows that the handler runs."""
    door = Door(hapax, "memory:" if fast else store, "--lease", "300ms")
    with door.client() as one:
        run = one.run()
    with door.client() as two:
        other = two.run(policy={"wait": "60s"})
        assert two.finish(other.op, body=b"theirs").recorded
        two.beats = True
        two.send("RESUME", 50, {"ticket": run.ticket})
        assert two.wait(50, "LOST")
        answer = two.finish(50, body=b"ours")
        assert answer.answer == "replay" and answer.body == b"theirs" and answer.meta["class"] == "final"


def test_a_resumed_handler_that_dies_is_unknown_as_any_other(hapax, store):
    """Under hold, at once."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h")
    with door.client() as one:
        run = one.run(policy=HOLD)
        door.kill()
    door.start()
    with door.client() as two:
        two.send("RESUME", 40, {"ticket": run.ticket})
        assert two.once("other").recorded  # what stands behind it was taken, so it was
    with door.client() as three:
        assert answered(three, "k", "unknown", policy=HOLD)


def told_before_a_kill(door):
    """The RUN of an operation and that of its step, by a door that was killed then; the next one serves."""
    with door.client() as client:
        run = client.run()
        step = client.wait(client.step(run.op, "charge"), "RUN")
        door.kill()
    door.start()
    return run, step


def test_steps_are_resumed_within_their_operation(hapax, store):
    """First the operation, then its step; a step by itself is refused."""
    door = Door(hapax, store)
    run, step = told_before_a_kill(door)
    with door.client() as two:
        two.send("RESUME", 2, {"ticket": step.ticket})
        assert "in" in two.wait(2, "FAULT").text
        two.send("RESUME", 1, {"ticket": run.ticket})
        two.send("RESUME", 2, {"ticket": step.ticket, "in": 1})
        two.op = 2
        frame = two.finish(2, body=b"paid")
        assert frame.answer == "fresh" and frame.recorded
        more = two.wait(two.step(1, "charge"), "ANSWER")
        assert more.answer == "replay" and more.body == b"paid"
        assert two.finish(1).recorded


def test_a_resumed_step_outlives_the_end_of_its_operation(hapax, store):
    """The END comes before the door knows that the step runs, and waits for the step's own END, as ever."""
    door = Door(hapax, store, "--lease", "1h", "--run-max", "2h")
    run, step = told_before_a_kill(door)
    with door.client() as two:
        two.socket.sendall(encode("RESUME", 1, {"ticket": run.ticket}) +
                           encode("RESUME", 2, {"ticket": step.ticket, "in": 1}) +
                           encode("END", 1, {"class": "failed"}) + encode(99, 3))
        two.wait(3, "FAULT")  # the END was taken
        charged = two.finish(2, body=b"paid")
        assert charged.answer == "fresh" and charged.recorded and charged.meta["class"] == "final"
        assert two.wait(1, "ANSWER").meta["class"] == "failed"


@pytest.mark.parametrize("ticket", ["", "AAAA", "AQID", "!", "A" * 3000, None],
                         ids=["empty", "zeros", "short", "no base64", "long", "null"])
def test_a_ticket_that_is_none_is_refused(hapax, store, ticket):
    """Whatever it is."""
    with Door(hapax, store).client() as client:
        client.send("RESUME", 1, {"ticket": ticket})
        fault = client.wait(1, "FAULT")
        assert "ticket" in fault.text and fault.error in ("invalid", "unsupported")


def test_a_ticket_with_a_rest_is_refused(hapax, store):
    """It is of another version, or damaged."""
    door = Door(hapax, store)
    with door.client() as client:
        ticket = base64.b64decode(client.run().ticket) + b"\0"
    with door.client() as client:
        client.send("RESUME", 1, {"ticket": base64.b64encode(ticket).decode()})
        frame = client.wait(1)
        assert frame.kind == "FAULT" and "ticket" in frame.text


def test_a_nonce_that_this_door_knows_is_no_claim_of_its_own(hapax, store):
    """The same BEGIN again at a door that lives is another attempt: it never shares a claim with the first."""
    with Door(hapax, store).client() as client:
        nonce = os.urandom(16).hex()
        run = client.run(nonce=nonce)
        assert client.once(nonce=nonce).answer == "in_flight"
        assert client.finish(run.op, "not_run").answer == "fresh"
        assert client.run(nonce=nonce).attempt == 2


def test_a_door_that_is_told_to_end_lets_handlers_finish(hapax, store):
    """SIGTERM: no new operation, no new connection; what runs may end."""
    door = Door(hapax, store, "--drain", "1h")
    with door.client() as client:
        run = client.run()
        door.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not os.path.exists(door.path), "the end of the socket")
        assert client.wait(client.begin("new"), "FAULT").error == "unavailable"
        assert client.finish(run.op, body=b"done").recorded
        assert door.process.wait(PATIENCE) == 0
    door.start()
    with door.client() as client:
        assert client.once().body == b"done"


def test_a_door_that_is_told_to_end_lets_clients_read(hapax, store):
    """An answer that is being written is written to its end."""
    door = Door(hapax, store, "--drain", "1h")
    long = {"max_response": "16m", "save_wait": "1h"}
    with door.client() as client:
        assert client.once(result=bytes(16 << 20), policy=long).recorded
        op = client.begin(policy=long)
        client.socket.recv(1, socket.MSG_PEEK)
        door.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not os.path.exists(door.path), "the end of the socket")
        assert client.wait(op, "ANSWER").body == bytes(16 << 20)
        assert door.process.wait(PATIENCE) == 0


def test_of_a_client_that_is_gone_nothing_stays_in_hand(hapax, store):
    """Its handler's operation is over: a door that is told to end waits for nothing."""
    door = Door(hapax, store, "--drain", "1h")
    with door.client() as client:
        client.run()
    door.process.send_signal(signal.SIGTERM)
    assert door.process.wait(PATIENCE) == 0


def test_a_door_that_ends_still_takes_steps_and_resumes(hapax, store):
    """A handler in hand goes on to its next step; a handler that lost its connection goes on, too."""
    door = Door(hapax, store, "--drain", "1h")
    with door.client() as one, door.client() as two:
        lost, run = one.run("lost", policy=HOLD), two.run()
        one.close()
        door.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not os.path.exists(door.path), "the end of the socket")
        step = two.wait(two.step(run.op, "charge"), "RUN")
        assert two.finish(step.op, body=b"paid").recorded
        two.send("RESUME", 60, {"ticket": lost.ticket})
        assert two.finish(60).recorded
        assert two.wait(two.begin("new"), "FAULT").error == "unavailable"
        assert two.finish(run.op).recorded
        assert door.process.wait(PATIENCE) == 0


def test_a_handler_that_outlives_the_drain_goes_on_at_the_next_door(hapax, store):
    """Its claim is neither ended nor lost."""
    door = Door(hapax, store, "--drain", "0")
    client = door.client()
    run = client.run(policy=HOLD)
    assert end(door.process) == 0
    assert client.ended()
    door.start()
    with door.client() as two:
        assert two.once(policy=HOLD).answer == "in_flight"
        two.send("RESUME", 60, {"ticket": run.ticket})
        assert two.finish(60).recorded


def test_a_door_that_ends_leaves_a_claim_to_its_client(hapax, away):
    """The connection broke before the client was told to run. The next door is granted the same claim, by the nonce.
    Had the first door given it back, both the client and whoever comes next would run."""
    door = Door(hapax, away.uri(timeout="60s"), "--drain", "1h", "--save-wait", "1h", "--metrics", "127.0.0.1:0")
    begin = {"nonce": os.urandom(16).hex(), "policy": {"timeout": "1h", "lease": "1h", "run_max": "2h"}}
    client = door.client()
    away.stop()
    client.begin(**begin)
    wait_until(lambda: metric(door, "hapax_door_in_hand") == 1, "the BEGIN being taken")
    client.close()
    wait_until(lambda: metric(door, "hapax_door_in_hand") == 0, "the BEGIN being given up")
    door.process.send_signal(signal.SIGTERM)
    wait_until(lambda: not os.path.exists(door.path), "the end of the socket")
    assert door.process.poll() is None
    away.cont()
    assert door.process.wait(PATIENCE) == 0
    door.start()
    with door.client() as two:
        run = two.run(**begin)
        assert run.attempt == 1 and two.once(policy=HOLD).answer == "in_flight"
        assert two.finish(run.op).recorded


@pytest.mark.parametrize("timeout", ["1h", pytest.param("10s", marks=pytest.mark.ci)])
def test_the_end_of_a_connection_leaves_a_resumed_hook_alone(hapax, away, timeout):
    """What the first connection's flow does about its end comes after its hook, resumed, has said that nothing ran.
    With 10 s that flow has given up before, which its client has not read."""
    policy = {"on_expired": "reconcile", "lease": "1s", "wait": "60s", "timeout": timeout}
    door = Door(hapax, away.store, "--metrics", "127.0.0.1:0")
    client = door.client()
    client.finish(client.run(policy=policy, reconciles=True).op, "unknown")
    hook = client.wait(client.begin(policy={**policy, "lease": "1h", "run_max": "2h"}, reconciles=True), "RECONCILE")
    away.stop()
    client.end(hook.op, "not_run")
    wait_until(lambda: metric(door, "hapax_door_running") == 0, "the END being taken")
    if timeout == "1h":
        client.close()
    wait_until(lambda: metric(door, "hapax_door_in_hand") == 0, "its being given up")
    client.close()
    with door.client() as two:
        two.send("RESUME", 1 << 20, {"ticket": hook.ticket, "reconciles": True})
        away.cont()
        two.end(1 << 20, "not_run")
        two.wait(1 << 20, "RUN")
        until = time.monotonic() + (6 if timeout == "10s" else 0)  # what has no verdict is repeated after 5 s
        while time.monotonic() < until:
            time.sleep(0.1)
            assert two.once(policy=HOLD).answer == "in_flight"  # another question, so the store is asked
        assert two.finish(1 << 20).recorded


def test_two_doors_do_not_share_a_socket(hapax, store):
    """The second is told who answers there; a file that nobody serves is replaced."""
    door = Door(hapax, store)
    second = hapax("door", "--store", "memory:", "--listen", f"unix:{door.path}")
    assert second.code == 3 and f"the door of process {door.process.pid}" in second.err
    door.kill()
    door.start()


# ---- its child --------------------------------------------------------------------------------


def test_a_door_is_the_parent_of_its_command(hapax):
    """HAPAX_DOOR is set, the status is the command's, and nothing is left of the socket."""
    code = ("import os, sys; sys.path[:0] = sys.argv[1].split(':'); from door_client import Client; "
            "path = os.environ['HAPAX_DOOR']; print(path, Client(path).once().answer); sys.exit(7)")
    done = hapax.run(HAPAX, "door", "--store", "memory:", "--", sys.executable, "-c", code, ":".join(sys.path))
    ready, said = done.out.splitlines()
    path = said.split()[0].removeprefix("unix:")
    assert done.code == 7 and said.endswith("fresh") and path in ready, done.err
    assert not os.path.exists(path) and not os.path.exists(os.path.dirname(path))


def test_a_door_of_one_command_has_no_successor(hapax, away):
    """What its command leaves behind is given back, though the door ends: nobody follows at its place."""
    code = ("import os, signal, sys; sys.path[:0] = sys.argv[1].split(':'); from door_client import Client; "
            "client = Client(os.environ['HAPAX_DOOR']); print('there', flush=True); open(sys.argv[2]).close(); "
            "client.begin(policy=dict(timeout='1h', lease='1h', run_max='2h')); signal.pause()")
    command = (sys.executable, "-c", code, ":".join(sys.path), "go")
    os.mkfifo(f"{hapax.folder}/go")
    process = hapax.start("door", "--store", away.uri(timeout="60s"), "--save-wait", "1h", "--metrics", "127.0.0.1:0",
                          "--", *command)
    door = types.SimpleNamespace(process=process, ready=read_line(process))
    assert "serving" in door.ready and read_line(door.process) == "there\n"
    away.stop()
    with open(f"{hapax.folder}/go", "w"):
        pass
    wait_until(lambda: metric(door, "hapax_door_in_hand") == 1, "the BEGIN being taken")
    door.process.send_signal(signal.SIGTERM)
    path = re.search(r"unix:(\S+)", door.ready)[1]
    wait_until(lambda: not os.path.exists(path), "the end of the socket")
    away.cont()
    door.process.wait(PATIENCE)
    with Door(hapax, away.store).client() as client:
        assert client.run().attempt == 2


def test_signals_go_to_the_command(hapax):
    """SIGTERM ends the command, and the door with it."""
    script = "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"
    process = hapax.start("door", "--store", "memory:", "--", "sh", "-c", script)
    assert "serving" in read_line(process) and read_line(process) == "up\n"
    assert end(process) == 9


def test_a_command_that_waits_for_the_store_is_not_done(hapax, store):
    """A signal ends the wait as it would have ended the command; the end of a child that is not the door's does not."""
    words = "door", "--store", f"unix:{store.removeprefix('rocksdb:')}/keeper.sock", "--", "sh", "-c", "echo up; exit 9"
    process = hapax.start(*words)
    assert "waiting for it" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 128 + signal.SIGTERM and process.stdout.read() == ""
    process = hapax.start(*words)
    assert "waiting for it" in process.stderr.readline()
    process.send_signal(signal.SIGCHLD)
    hapax.keep(store)
    assert "serving" in read_line(process) and read_line(process) == "up\n" and process.wait(PATIENCE) == 9


def test_a_command_that_is_not_there(hapax):
    """A shell's status, and a line."""
    done = hapax.run(HAPAX, "door", "--store", "memory:", "--", "/no/such/command")
    assert done.code == 127 and "/no/such/command" in done.err


# ---- who may connect --------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="needs other users")
def test_others_are_turned_away(hapax):
    """The kernel says who connects. Members of --group may come in."""
    folder = hapax.folder
    folder.chmod(0o755)
    for group, told in (((), "not permitted for uid 65534"), (("--group", "nogroup"), "WELCOME")):
        door = Door(hapax, "memory:", *group)
        os.chmod(door.path, 0o777)
        code = ("import sys; sys.path[:0] = sys.argv[2].split(':'); from door_client import Client; "
                "frame = Client(sys.argv[1], hello=False).receive() if sys.argv[3] == '0' else None; "
                "print(frame or Client(sys.argv[1]).welcome.kind)")
        done = subprocess.run([sys.executable, "-c", code, door.path, ":".join(sys.path), str(len(group))],
                              preexec_fn=lambda: (os.setgroups([]), os.setgid(65534), os.setuid(65534)),
                              capture_output=True, text=True, timeout=PATIENCE)
        assert told in done.stdout, done.stderr
        door.kill()


# ---- the store --------------------------------------------------------------------------------


def test_other_stores_are_served_as_well(hapax, away):
    """Once, replayed, resumed at another door, held, and followed at once."""
    door = Door(hapax, away.store, "--on-disconnect", "now")
    with door.client() as one:
        run = one.run("resumed")
        assert one.once("stored").recorded
        door.kill()
    door.start()
    with door.client() as two:
        two.send("RESUME", 70, {"ticket": run.ticket})
        assert two.finish(70, body=b"result").recorded
        assert two.once("resumed").body == b"result" and two.once("stored").answer == "replay"
        Program(door, "held", HOLD).kill()
        assert answered(two, "held", "unknown", policy=HOLD)
        Program(door, "rerun").kill()
        assert answered(two, "rerun", "RUN").attempt == 2


def test_a_store_that_is_away_is_said_to_be(hapax, away):
    """Nothing runs; an outcome is given, and stored once the store is back."""
    patient = {"save_wait": "200ms", "lease": "1h", "run_max": "2h", "timeout": "60s"}
    short = patient | {"timeout": "200ms"}
    door = Door(hapax, away.store, "--metrics", "127.0.0.1:0")
    with door.client() as client:
        run = client.run(policy=patient)
        away.stop()
        down = client.once("new", policy=short)
        assert down.answer == "store_down" and down.error and down.text and down.retry_after_ms == 1000
        fresh = client.finish(run.op, body=b"kept" * 65536)
        assert fresh.answer == "fresh" and not fresh.recorded and fresh.error
        assert metric(door, "hapax_door_saving_bytes") == 4 * 65536
        assert metric(door, "hapax_unrecorded_total") == 1 and metric(door, "hapax_door_store_up") == 0
        assert client.once(None).answer == "bypass" and client.once(None, key_header="?").answer == "bad_key"
        assert metric(door, "hapax_door_store_up") == 0
        away.cont()
        assert answered(client, "k", "replay", policy={"timeout": "60s"}).body == b"kept" * 65536
        wait_until(lambda: metric(door, "hapax_door_saving_bytes") == 0, "the outcome being stored")
        assert answered(client, "new", "RUN", policy={"timeout": "60s"})
