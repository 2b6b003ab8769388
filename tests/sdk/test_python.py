"""sdk/python: what is Python's own. What all SDKs have in common is in test_cases.py."""
import asyncio
import contextlib
import dataclasses
import io
import json
import os
import pathlib
import queue
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import typing
import urllib.error
import wsgiref.util
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import played
import pytest
from conftest import HAPAX, PATIENCE, ROOT, wait_until
from doors import Door, Store, bytes_of
from process import children_of

sys.path.insert(0, str(ROOT / "sdk/python"))
import hapax  # noqa: E402
import hapax.asgi  # noqa: E402
import hapax.django  # noqa: E402
import hapax.flask  # noqa: E402
import hapax.http  # noqa: E402
import hapax.postgres  # noqa: E402
import hapax.wsgi  # noqa: E402


@pytest.fixture(scope="module")
def door(tmp_path_factory):
    running = Door(Store("memory", None), pathlib.Path(tmp_path_factory.mktemp("d")))
    yield running
    running.close()


@pytest.fixture
def hx(door):
    made = hapax.connect(door.address)
    yield made
    made.close()


names = iter(range(1, 1 << 30))


@pytest.fixture
def key():
    return f"key-{next(names)}"


# ---- calls ------------------------------------------------------------------------------------

@dataclasses.dataclass
class Receipt:
    order: str
    amount: int


# A decorated function is itself: with its name, its arguments in any form, its default values, its dataclass.
def test_once_of_a_function(hx, key):
    ran = []

    @hx.once(scope="once", key="order")
    def pay(order: str, amount: int = 5, *, op: hapax.Op) -> Receipt:
        """Pays."""
        ran.append(op.attempt)
        return Receipt(order, amount)

    assert (pay.__name__, pay.__doc__) == ("pay", "Pays.")
    assert pay(key) == pay(key, 5) == pay(amount=5, order=key) == Receipt(key, 5) and ran == [1]
    with pytest.raises(hapax.Mismatch) as failed:
        pay(key, 6)
    assert failed.value.differs == "fingerprint"
    with pytest.raises(TypeError):
        pay()
    for none in ("", None):
        with pytest.raises(hapax.Invalid, match="no key"):
            pay(none)
    assert ran == [1]


# A type checker knows what a handler, or a decorated function, gives.
def test_results_have_types():
    for call in (hapax.Hapax.run, hapax.Hapax.once, hapax.Hapax.run_async):
        hints = typing.get_type_hints(call)
        assert "T" in str(hints["return"]) and hints["scope"] is str
    assert typing.get_type_hints(hapax.connect)["return"] is hapax.Hapax


# The README names each error.
def test_the_errors_of_the_readme():
    listed = (ROOT / "sdk/python/README.md").read_text().partition("\nErrors, ")[2].partition("\n\n")[0]
    errors = {name for name, one in vars(hapax).items() if isinstance(one, type) and issubclass(one, hapax.HapaxError)}
    assert {name for name in errors if f"`{name}`" not in listed} == {"HapaxError"}


# A key, an owner and what is compared may be functions of the arguments.
def test_once_by_functions_of_the_arguments(hx, key):
    ran = []

    @hx.once(scope="once", key=lambda order: order["id"], owner=lambda order: order["shop"],
             fingerprint=lambda order: order["amount"])
    def pay(order):
        ran.append(order["id"])
        return len(ran)

    assert pay({"id": key, "shop": "a", "amount": 1}) == pay({"id": key, "shop": "a", "amount": 1, "at": 9}) == 1
    assert pay({"id": key, "shop": "b", "amount": 1}) == 2


# What run() takes for a caller and a fingerprint, a decorator takes, too.
def test_once_with_values_of_run(hx, key):
    @hx.once(scope="once", key="order", caller=["shop", "till"], fingerprint={"currency": "EUR"})
    def pay(order, amount):
        return amount

    assert pay(key, 5) == pay(key, 6) == 5
    with pytest.raises(hapax.Mismatch) as failed:
        hx.run(lambda op: 0, scope="once", key=key, caller=["shop", "web"], fingerprint={"currency": "EUR"})
    assert failed.value.differs == "caller"


# What only type checkers know, and the object of a method, are in nobody's way.
def test_once_of_a_method(hx, key):
    class Shop:
        @hx.once(scope="once", key="order")
        def pay(self, order) -> "OnlyForTypeCheckers":  # noqa: F821
            return id(self)

    assert Shop().pay(key) == Shop().pay(key)


# A call costs one BEGIN, encoded once. One over a limit of frames is refused, and nothing of it stays in hand.
def test_a_begin_is_encoded_once(hx, key, monkeypatch):
    hx.run(lambda op: 1, scope="encoded", key=key)  # which connects
    made, frame = [], hapax._door.frame

    def counted(kind, *args):
        made.append(kind)
        return frame(kind, *args)

    monkeypatch.setattr(hapax._door, "frame", counted)
    assert hx.run(lambda op: 1, scope="encoded", key=key) == 1
    assert made.count(hapax._door.BEGIN) == 1
    with pytest.raises(hapax.TooLarge):
        hx.run(lambda op: 1, scope="encoded", key=key, fingerprint=bytes(17 << 20))
    with pytest.raises(hapax.Invalid, match="members of"):
        hx.run(lambda op: 1, scope="encoded", key=key, owner="o" * (1 << 20))
    assert hx.door.calls == {}


# A thread that is interrupted while it waits leaves no claim behind that is renewed for ever, and did nothing.
def test_a_wait_that_is_interrupted(hx, key, monkeypatch):
    class Interrupted(queue.SimpleQueue):
        def get(self):
            super().get()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(queue, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            hx.run(lambda op: 1, scope="stop", key=key, on_expired="hold")
    assert hx.run(lambda op: op.attempt, scope="stop", key=key, on_expired="hold", wait="1m") == 2
    assert hx.door.calls == {}


# Coroutines do not hold each other up, nor the loop.
def test_once_of_a_coroutine_function(hx, key):
    async def main():
        go, ran = asyncio.Event(), []

        @hx.once(scope="async", key="name", wait="1m")
        async def work(name, *, op):
            assert isinstance(op, hapax.AsyncOp)
            ran.append(name)
            await go.wait()
            return await op.step("inner", inner)

        async def inner(step):
            return step.key

        tasks = [asyncio.ensure_future(work(f"{key}-{i % 10}")) for i in range(100)]
        while len(ran) < 10:
            await asyncio.sleep(0.01)
        go.set()
        return await asyncio.gather(*tasks), ran

    results, ran = asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert results == [f"{key}-{i % 10}:inner" for i in range(100)] and len(ran) == 10


# 1,000 at once, in as many threads as it takes.
def test_a_thousand_at_once(hx, key):
    ran, results = [], []

    def work(i):
        results.append((i, hx.run(lambda op: ran.append(i) or i, scope="many", key=f"{key}-{i // 2}", wait="1m")))

    threads = [threading.Thread(target=work, args=[i]) for i in range(1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 1000 and len(ran) == 500
    assert all(result // 2 == i // 2 for i, result in results)


# When the claim is lost a coroutine is cancelled, and the other attempt's result is the operation's.
def test_a_coroutine_whose_claim_is_lost_is_cancelled(folder, key):
    store = Store("rocksdb", folder)
    door = Door(store, folder)

    async def main():
        hx, cancelled, begun = hapax.connect(door.address), [], asyncio.Event()

        async def handler(op):
            begun.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.append(op.lost)
                raise

        task = asyncio.ensure_future(hx.run_async(handler, scope="cases", key=key, lease="500ms"))
        await begun.wait()
        (folder / "body").write_text('"by hand"')
        done = await asyncio.to_thread(store.hapax, "resolve", "--scope", "cases", key, "--complete", "200", "--force",
                                       "--body", str(folder / "body"))
        assert done.returncode == 0, done.stderr
        return await asyncio.wait_for(task, PATIENCE), cancelled

    try:
        assert asyncio.run(main()) == ("by hand", [True])
    finally:
        door.close()


async def a_task(hx, key, ran):
    async def second(op):
        ran.append(1)

    await hx.run_async(second, scope="a", key=key, wait="1m", on_expired="hold")


async def a_block(hx, key, ran):
    async with hx.begin(scope="a", key=key, wait="1m", on_expired="hold"):
        ran.append(1)


# A caller who is cancelled before the handler, or the block, has begun runs nothing, and leaves nothing behind.
@pytest.mark.parametrize("second", [a_task, a_block])
def test_a_cancelled_task_gives_up_what_has_not_run(hx, key, second):
    async def main():
        go, begun, ran = asyncio.Event(), asyncio.Event(), []

        async def first(op):
            begun.set()
            await go.wait()
            raise hapax.NotRun("nothing")

        one = asyncio.ensure_future(hx.run_async(first, scope="a", key=key))
        await begun.wait()
        two = asyncio.ensure_future(second(hx, key, ran))
        while len(hx.door.calls) < 2:
            await asyncio.sleep(0.01)
        two.cancel()
        with pytest.raises(asyncio.CancelledError):
            await two
        go.set()
        with pytest.raises(hapax.NotRun):
            await one
        return ran, await hx.run_async(lambda op: "third", scope="a", key=key, wait="1m", on_expired="hold")

    assert soon(lambda: asyncio.run(main())) == ([], "third")


# So does one who is cancelled when it was told to run, at each turn of the loop before its first line.
@pytest.mark.parametrize("second, turns", [(a_task, 0), (a_task, 1), (a_block, 0)])
def test_a_task_that_is_cancelled_before_it_begins_did_nothing(hx, key, second, turns):
    async def main():
        ran = []
        task = asyncio.ensure_future(second(hx, key, ran))
        while not hx.door.calls:
            await asyncio.sleep(0)
        call = next(iter(hx.door.calls.values()))
        wait_until(lambda: call.told is not None, "a claim")  # while the loop stands still
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return ran, await hx.run_async(lambda op: op.attempt, scope="a", key=key, wait="1m", on_expired="hold")

    assert soon(lambda: asyncio.run(main())) == ([], 2)


# A signal's handler may raise where the handler's task was made and has not begun. Then it never begins.
def test_a_task_that_an_interrupt_left_behind_does_nothing(hx, key, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    ran = []
    with asyncio.Runner() as runner:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.get_loop().run_until_complete(a_task(hx, key, ran))
        runner.get_loop().run_until_complete(asyncio.sleep(0.01))
        assert ran == []
        assert hx.run(lambda op: op.attempt, scope="a", key=key, wait="1m", on_expired="hold") == 2


# A block is a handler: its exception is its failure, its result is replayed.
def test_a_block(hx, key):
    with pytest.raises(ZeroDivisionError):
        with hx.begin(scope="block", key=key) as block:
            assert block.run and block.attempt == 1
            1 / 0  # noqa: B018
    for attempt in (2, None):
        with hx.begin(scope="block", key=key) as block:
            assert block.run == (attempt is not None)
            if block.run:
                assert block.attempt == attempt
                block.complete({"n": 1})
        assert block.result == {"n": 1}

    async def main():
        async with hx.begin(scope="block", key=key) as block:
            assert not block.run
        return block.result

    assert asyncio.run(main()) == {"n": 1}


# A block's hook is asked of an attempt that was cut off. The block runs where the hook says that nothing was done.
@pytest.mark.parametrize("found", [hapax.Happened("found"), False, None])
def test_a_hook_of_a_block(hx, key, found):
    asked, ran = [], []

    def hook(op):
        asked.append(op.attempt)
        return found

    def ask():
        with hx.begin(scope="block", key=key, on_expired="reconcile", reconcile=hook, lease="300ms",
                      wait="1m") as block:
            if block.run:
                ran.append(block.attempt)
                block.complete("made")
                if len(ran) == 1:
                    raise KeyboardInterrupt
        return block.result

    with pytest.raises(KeyboardInterrupt):
        ask()
    if found is None:
        with pytest.raises(hapax.Unknown):
            ask()
    else:
        assert ask() == ask() == (found.result if found else "made")
    assert (len(asked), len(ran)) == (1, 2 if found is False else 1)


# A result that cannot be kept is no other's business than its caller's; nobody takes it for one that did not run.
def test_a_result_without_a_form_in_json(hx, key):
    with pytest.raises(TypeError):
        hx.run(lambda op: object(), scope="odd", key=key, on_expired="hold")
    with pytest.raises(hapax.Unknown):
        hx.run(lambda op: 1, scope="odd", key=key, on_expired="hold")
    with pytest.raises(TypeError, match="give fingerprint="):
        hx.run(lambda op: 1, scope="odd", key=key + "x", fingerprint=object())


# The child of a fork has a connection of its own, and none of its parent's claims.
def test_fork(hx, key):
    begun, go = threading.Event(), threading.Event()

    def handler(op):
        begun.set()
        assert go.wait(PATIENCE)
        return "parent"

    result = []
    thread = threading.Thread(target=lambda: result.append(hx.run(handler, scope="fork", key=key)))
    thread.start()
    assert begun.wait(PATIENCE)
    pid = os.fork()
    if pid == 0:  # what pytest would do at its end is not to be done here
        try:
            said = hx.run(lambda op: "child", scope="fork", key=key + "-child")
            try:
                hx.run(lambda op: "wrong", scope="fork", key=key)
            except hapax.InFlight:
                os._exit(0 if said == "child" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    go.set()
    thread.join(PATIENCE)
    assert result == ["parent"]
    assert hx.run(lambda op: "again", scope="fork", key=key + "-child") == "child"


def soon(function):
    """What function() gives or raises, in a thread of its own: where it hangs its test fails."""
    given = queue.SimpleQueue()

    def run():
        try:
            given.put((function(), None))
        except BaseException as error:
            given.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    value, error = given.get(timeout=PATIENCE)
    if error:
        raise error
    return value


@contextlib.contextmanager
def playing(folder, play):
    """A client of the door that play(listener) plays."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/played.sock")
        listener.listen()
        threading.Thread(target=play, args=(listener,), daemon=True).start()
        yield hapax.connect(f"unix:{folder}/played.sock", timeout=PATIENCE)


def greeted(listener):
    """The next connection, behind its WELCOME."""
    connection, _ = listener.accept()
    connection.settimeout(PATIENCE)
    played.read(connection)
    played.say(connection, 2, 0, {"version": 1, "beat_ms": 60000, "lease_ms": 60000})
    return connection


TOLD = {"attempt": 1, "fence": 1, "stale": False}
REPLAY = {"answer": "replay", "recorded": True, "status": 200}


# Without a door a call ends when its time is over, and says where it looked. A time that never ends is refused.
def test_without_a_door(folder):
    with pytest.raises(hapax.StoreDown, match="nobody.sock"):
        hapax.connect(f"unix:{folder}/nobody.sock", timeout=0.2).run(lambda op: 1, scope="s", key="k")
    with pytest.raises(hapax.Invalid, match="unix:PATH"):
        hapax.connect("tcp:localhost")
    for none in ("10s", None, float("nan"), float("inf")):
        with pytest.raises(hapax.Invalid, match="timeout"):
            hapax.connect(timeout=none)


# A door that refuses this process is not asked again, and the caller hears why.
def test_a_door_that_refuses(folder):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/played.sock")
        listener.listen()

        def play():
            connection, _ = listener.accept()
            said = b'{"error":"refused","text":"not you"}'
            connection.sendall(struct.pack(">IBII", 9 + len(said), 12, 0, len(said)) + said)
            connection.close()

        threading.Thread(target=play, daemon=True).start()
        with pytest.raises(hapax.Invalid, match="not you"):
            hapax.connect(f"unix:{folder}/played.sock", timeout=1).run(lambda op: 1, scope="s", key="k")


# A RESUME that was refused ends the op: the next door is not told of it, whatever its handler does. What became of it
# nobody knows, so its caller does not hear that nothing was run.
def test_what_a_door_refused_to_resume_is_not_resumed_again(folder):
    told, again = queue.Queue(), threading.Event()

    def play(listener):
        for kind, op, meta, body in ((5, 1, {**TOLD, "ticket": "t1"}, b""),
                                     (12, 1, {"error": "invalid", "text": "no ticket of this store", "kind": 4}, b""),
                                     (8, 2, REPLAY, b"2")):
            if kind == 8:
                again.set()
            with greeted(listener) as connection:
                told.put(played.read(connection)[:2])
                played.say(connection, kind, op, meta, body)

    def handler(op):
        assert again.wait(PATIENCE)
        assert hx.run(lambda op: 0, scope="s", key="k2") == 2
        return 1

    with playing(folder, play) as hx:
        with pytest.raises(hapax.Indeterminate, match="no ticket of this store"):
            hx.run(handler, scope="s", key="k1")
    assert [told.get(timeout=PATIENCE) for _ in range(3)] == [(3, 1), (4, 1), (3, 2)]


# Nor where the door refuses how it ended.
def test_an_end_that_was_refused(folder):
    def play(listener):
        with greeted(listener) as connection:
            played.read(connection)
            played.say(connection, 5, 1, {**TOLD, "ticket": "t"})
            played.read(connection)
            played.say(connection, 12, 1, {"error": "invalid", "text": "no such class", "kind": 7})

    with playing(folder, play) as hx, pytest.raises(hapax.Indeterminate, match="no such class"):
        hx.run(lambda op: 1, scope="s", key="k")


# A handler that ran unprotected has nobody but its caller, who gets its value though the door died: behind its END, or
# while it ran.
@pytest.mark.parametrize("ended", [True, False])
def test_an_unprotected_handler_whose_door_dies(folder, ended):
    gone = threading.Event()

    def play(listener):
        with greeted(listener) as connection:
            played.read(connection)
            played.say(connection, 5, 1, TOLD)
            if ended:
                played.read(connection)
        gone.set()

    def handler(op):
        assert ended or gone.wait(PATIENCE)
        return "ran"

    with playing(folder, play) as hx:
        assert soon(lambda: hx.run(handler, scope="s", key="k")) == "ran"


# A door that hangs up each time gets a rest between two connections.
def test_a_door_that_hangs_up_is_not_stormed(folder):
    times = []

    def play(listener):
        for _ in range(3):
            with greeted(listener) as connection:
                times.append(time.monotonic())
                played.read(connection)
        connection = greeted(listener)
        played.read(connection)
        times.append(time.monotonic())
        played.say(connection, 8, 1, REPLAY, b"1")

    with playing(folder, play) as hx:
        assert soon(lambda: hx.run(lambda op: 0, scope="s", key="k")) == 1
    assert times[-1] - times[0] >= 3 * hapax._door.AGAIN_S


# An answer that the reading thread has no memory for is asked for again: no caller waits for ever, no claim is renewed
# for nobody.
def test_an_answer_without_memory(folder, monkeypatch):
    told, spared = queue.SimpleQueue(), []

    def loads(said):
        if b"fresh" in said and not spared:
            spared.append(said)
            raise MemoryError
        return json.loads(said)

    def play(listener):
        with greeted(listener) as connection:
            told.put(played.read(connection)[0])
            played.say(connection, 5, 1, {**TOLD, "ticket": "t"})
            told.put(played.read(connection)[0])
            played.say(connection, 8, 1, {"answer": "fresh", "own": True})
            connection.recv(1)  # until it is shut
        connection = greeted(listener)
        for _ in range(2):
            told.put(played.read(connection)[0])
        played.say(connection, 8, 1, {"answer": "fresh", "own": True})

    monkeypatch.setattr(hapax._door, "json", types.SimpleNamespace(loads=loads, dumps=json.dumps))
    with playing(folder, play) as hx:
        assert soon(lambda: hx.run(lambda op: "ran", scope="s", key="k")) == "ran"
    assert [told.get(timeout=PATIENCE) for _ in range(4)] == [3, 7, 4, 7]


# A process that has no file left, or no thread, has no door until there is one again. Its calls do not wait for ever.
@pytest.mark.parametrize("lacks", ["file", "hapax-door", "hapax-door-writer"])
def test_a_process_without_files_or_threads(door, key, monkeypatch, lacks):
    start, limits = threading.Thread.start, resource.getrlimit(resource.RLIMIT_NOFILE)

    def refused(thread):
        if thread.name == lacks:
            raise RuntimeError("can't start new thread")
        start(thread)

    hx = hapax.connect(door.address, timeout=0.2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        if lacks == "file":
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(hapax.StoreDown, match="Too many open files|can't start new thread"):
                soon(lambda: hx.run(lambda op: 1, scope="lacks", key=key))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert hx.door.calls == {}
    hx.door.timeout = PATIENCE
    assert soon(lambda: hx.run(lambda op: 2, scope="lacks", key=key)) == 2
    hx.close()


# What comes for a call whose loop is closed is heard by nobody, and harms no other call: the connection stays. One that
# is told to run then is given up.
@pytest.mark.parametrize("late", ["ANSWER", "RUN", "LOST"])
def test_a_call_whose_loop_is_closed(folder, late):
    asked, closed, ended = threading.Event(), threading.Event(), queue.SimpleQueue()

    def play(listener):
        connection = greeted(listener)
        played.read(connection)
        if late == "LOST":
            played.say(connection, 5, 1, {**TOLD, "ticket": "t"})
        else:
            asked.set()
        assert closed.wait(PATIENCE)
        played.say(connection, *{"ANSWER": (8, 1, REPLAY, b"1"), "RUN": (5, 1, {**TOLD, "ticket": "t"}),
                                 "LOST": (10, 1, {})}[late])
        if late == "RUN":
            ended.put(played.read(connection))
        _, op, _, _ = played.read(connection)
        played.say(connection, 8, op, REPLAY, b"2")

    async def handler(op):
        asked.set()
        await asyncio.sleep(PATIENCE)

    async def until_asked():
        while not asked.is_set():
            await asyncio.sleep(0.01)

    with playing(folder, play) as hx:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # of the task that is never done
        task = loop.create_task(hx.run_async(handler, scope="s", key="k1"))
        loop.run_until_complete(asyncio.wait_for(until_asked(), PATIENCE))
        loop.close()
        closed.set()
        if late == "RUN":
            assert ended.get(timeout=PATIENCE)[:3] == (7, 1, {"class": "not_run"})
        assert soon(lambda: hx.run(lambda op: 0, scope="s", key="k2")) == 2
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()


# A door that reads no further until its answers are taken, and a large BEGIN: neither waits for the other.
def test_answers_are_taken_while_a_frame_is_sent(folder):
    asked = threading.Event()

    def play(listener):
        connection = greeted(listener)
        played.read(connection)
        asked.set()
        connection.recv(1, socket.MSG_PEEK)  # the first of 4 MiB; the rest is not read yet
        played.say(connection, 8, 1, REPLAY, b"1")
        played.say(connection, 8, 99, REPLAY, bytes(4 << 20))
        played.read(connection)
        played.say(connection, 8, 2, REPLAY, b"2")

    with playing(folder, play) as hx:
        first = []
        one = threading.Thread(target=lambda: first.append(hx.run(lambda op: 0, scope="s", key="k1")), daemon=True)
        one.start()
        assert asked.wait(PATIENCE)
        assert soon(lambda: hx.run(lambda op: 0, scope="s", key="k2", fingerprint=bytes(4 << 20))) == 2
        one.join(PATIENCE)
        assert first == [1]


# A signal's handler that raises, as Celery's for a task's time, leaves no half END that the next frames would fill.
def test_a_signal_while_a_result_is_sent(folder):
    class Struck(Exception):
        pass

    def strike(*_):
        if not hits:
            hits.append(1)
            struck.set()
            raise Struck

    hits, ends, struck, result = [], queue.SimpleQueue(), threading.Event(), os.urandom(4 << 20)

    def play(listener):
        connection = greeted(listener)
        played.read(connection)
        played.say(connection, 5, 1, {**TOLD, "ticket": "t"})
        connection.recv(1, socket.MSG_PEEK)  # the first of END; the rest is not read yet
        while not struck.wait(0.01):  # one that comes just before a wait is not seen in it
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        while True:
            kind, op, _, body = played.read(connection)
            if kind == 3:
                break
            ends.put((kind, op, body))
        played.say(connection, 8, 1, {"answer": "fresh", "own": True})
        played.say(connection, 8, op, REPLAY, b"2")

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with playing(folder, play) as hx:
            with pytest.raises(Struck):
                hx.run(lambda op: result, scope="s", key="k1", codec=hapax.Bytes())
            assert soon(lambda: hx.run(lambda op: 0, scope="s", key="k2")) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ends.get(timeout=PATIENCE) == (7, 1, result)


# A process of many files has sockets that select() cannot take.
def test_a_socket_of_a_high_number(door, key):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        if limits[0] < 2048:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        for _ in range(1100):
            stack.enter_context(open(os.devnull))
        hx = hapax.connect(door.address)
        assert soon(lambda: hx.run(lambda op: 1, scope="high", key=key)) == 1
        assert hx.door.socket.fileno() >= 1024
        hx.close()


# ---- HTTP -------------------------------------------------------------------------------------

def flask_app(hx, ran):
    import flask
    app = flask.Flask("payments")

    @app.post("/payments")
    def pay():
        ran.append(hapax.flask.op().attempt)
        if flask.request.json["amount"] == 13:
            return {"error": "no"}, 500
        answer = flask.jsonify(receipt=len(ran))
        answer.headers.add("Set-Cookie", "a=1")
        answer.headers.add("Set-Cookie", "b=2")
        return answer, 201

    @app.get("/payments")
    def look():
        return {"ran": len(ran)}

    client = hapax.flask.idempotent(app, hx, scope="flask", on_expired="hold").test_client(use_cookies=False)

    def ask(method, body, headers):
        got = client.open("/payments?x=1", method=method, data=body, headers=headers)
        return got.status_code, got.headers, got.data
    return ask


def fastapi_app(hx, ran):
    import fastapi
    import httpx
    app = fastapi.FastAPI()

    @app.post("/payments", status_code=201)
    async def pay(request: fastapi.Request, response: fastapi.Response):
        order = await request.json()
        ran.append(request.scope["hapax"].attempt)
        if order["amount"] == 13:
            raise fastapi.HTTPException(500, "no")
        response.headers.append("Set-Cookie", "a=1")
        response.headers.append("Set-Cookie", "b=2")
        return {"receipt": len(ran)}

    @app.get("/payments")
    async def look():
        return {"ran": len(ran)}

    app.add_middleware(hapax.asgi.Idempotent, door=hx, scope="fastapi", on_expired="hold")

    def ask(method, body, headers):
        async def main():
            async with httpx.AsyncClient(app=app, base_url="http://shop") as client:
                return await client.request(method, "/payments?x=1", content=body, headers=headers)
        got = asyncio.run(main())
        return got.status_code, got.headers, got.content
    return ask


@pytest.fixture(params=[flask_app, fastapi_app], ids=["flask", "fastapi"])
def app(request, hx):
    ran = []
    return request.param(hx, ran), ran


# A repeat gets the stored response, byte by byte and with its headers, and the handler does not run.
def test_a_repeated_request_gets_the_first_response(app, key):
    ask, ran = app
    headers = {"Idempotency-Key": f'"{key}"', "Content-Type": "application/json", "Authorization": "Bearer ann"}
    first, second = [ask("POST", b'{"amount": 5}', headers) for _ in range(2)]
    assert (first[0], first[2]) == (second[0], second[2]) and first[0] == 201 and json.loads(first[2]) == {"receipt": 1}
    assert first[1]["Content-Type"] == second[1]["Content-Type"] and ran == [1]
    assert [got[1]["Idempotency-Replayed"] for got in (first, second)] == ["false", "true"]
    cookies = [got[1].getlist("Set-Cookie") if hasattr(got[1], "getlist") else got[1].get_list("Set-Cookie")
               for got in (first, second)]
    assert cookies == [["a=1", "b=2"], []]  # a cookie is for the client that it was given to


# What another key, another body, another caller and no key get.
def test_other_requests(app, key):
    ask, ran = app
    headers = {"Idempotency-Key": key, "Content-Type": "application/json", "Authorization": "Bearer ann"}
    assert ask("POST", b'{"amount": 5}', headers)[0] == 201
    for body, more in ((b'{"amount": 6}', {}), (b'{"amount": 5}', {"Authorization": "Bearer bob"})):
        status, got, page = ask("POST", body, {**headers, **more})
        assert status == 422 and got["Content-Type"] == "application/problem+json"
        assert isinstance(hapax.http.error_of(status, got, page), hapax.Mismatch)
    assert len(ran) == 1
    keyless = {"Content-Type": "application/json"}
    assert [ask("POST", b'{"amount": 5}', keyless)[0] for _ in range(2)] == [201, 201] and len(ran) == 3
    assert ask("GET", None, {})[0] == 200
    assert ask("POST", b'{"amount": 5}', {**headers, "Idempotency-Key": '"open'})[0] == 400


# Under hold a 500 is not run again.
def test_a_failure_under_hold_waits_for_an_operator(app, key):
    ask, ran = app
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    assert ask("POST", b'{"amount": 13}', headers)[0] == 500
    status, got, page = ask("POST", b'{"amount": 13}', headers)
    assert status == 409 and isinstance(hapax.http.error_of(status, got, page), hapax.Unknown) and ran == [1]


class Busy(hapax.NotRun):
    """One of the application's own, which has members of its own."""

    def __init__(self, text):
        super().__init__(text)
        self._op = "charge"


def environ_of(key):
    environ = {"REQUEST_METHOD": "POST", **({"HTTP_IDEMPOTENCY_KEY": key} if key else {})}
    wsgiref.util.setup_testing_defaults(environ)
    return environ


# A handler that says that nothing was done is run by the next request. One that has begun a step has failed, and so
# has one that passes on what another operation said of itself.
@pytest.mark.parametrize("before", [None, "step", "other"])
def test_a_request_that_was_not_run(hx, key, before):
    ran, status = [], []

    def later(_op=None):
        raise Busy("later")

    def shop(environ, _start_response):
        ran.append(environ["hapax"].attempt)
        if before == "step":
            environ["hapax"].step("charge", lambda op: 1)
        elif before == "other":
            hx.run(later, scope="mails", key=key)
        later()

    def ask():
        return app(environ_of(key), lambda said, headers: status.append(said))

    app = hapax.wsgi.Idempotent(shop, hx, on_expired="hold")
    with pytest.raises(hapax.NotRun):
        ask()
    if before:
        assert b"unknown-outcome" in b"".join(ask()) and status == ["409 Conflict"] and ran == [1]
    else:
        with pytest.raises(hapax.NotRun):
            ask()
        assert ran == [1, 2] and not status


def asked_of(app, key, **more):
    """What an application of WSGI answers: status, headers, page."""
    said = []
    environ = {**environ_of(key), **more}
    page = b"".join(app(environ, lambda status, headers: said.extend((int(status.split()[0]), dict(headers)))))
    return *said, page


# A client that broke off in its request has asked for nothing: half a body is no handler's.
@pytest.mark.parametrize("terminated", [False, True])
def test_half_a_body(hx, key, terminated):
    bodies = []

    def shop(environ, start_response):
        bodies.append(environ["wsgi.input"].read())
        start_response("201 Created", [])
        return [b"paid"]

    def ask(body):
        return asked_of(app, key, **{"wsgi.input": io.BytesIO(body), "wsgi.input_terminated": terminated,
                                     "CONTENT_LENGTH": "8"})

    assert hapax.wsgi.body_of({"CONTENT_LENGTH": "no number"}) == b""
    app = hapax.wsgi.Idempotent(shop, hx, scope="half")
    status, headers, page = ask(b"half")
    assert (status, headers["content-type"], bodies) == (400, "application/problem+json", []) and b"4 of 8" in page
    assert ask(b"all of i")[0] == 201 and bodies == [b"all of i"]


# Once a request ran nobody is told that it did not: not where its response cannot be kept, nor where the application
# passes on what another operation said.
@pytest.mark.parametrize("given", [[("X-Large", "x" * (18 << 20))], [("X-Large", "x" * (2 << 20))],
                                   [(f"X-{i}", "1") for i in range(300)],
                                   hapax.StoreDown("another's"), hapax.TooLarge("another's")],
                         ids=["large", "members", "many", "store_down", "too_large"])
def test_a_request_that_ran_and_has_no_response(hx, key, given):
    ran = []

    def shop(environ, start_response):
        ran.append(1)
        if isinstance(given, Exception):
            raise given
        start_response("201 Created", given)
        return [b"paid"]

    app = hapax.wsgi.Idempotent(shop, hx, on_expired="hold", wait="1m")
    for status, slug in ((502, b"upstream-failed"), (409, b"unknown-outcome")):
        got = asked_of(app, key)
        assert got[0] == status and slug in got[2] and ran == [1], got


# Nor where the door dies behind its effect.
def test_a_request_whose_door_dies(folder, key):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/played.sock")
        listener.listen()
        connections = []

        def play():
            connections.append(listener.accept()[0])
            played.read(connections[0])
            played.say(connections[0], 2, 0, {"version": 1, "beat_ms": 60000, "lease_ms": 60000})
            played.read(connections[0])
            played.say(connections[0], 5, 1, {"attempt": 1, "fence": 1, "stale": False, "ticket": "t"})

        def shop(environ, start_response):
            listener.close()
            connections[0].close()
            start_response("201 Created", [])
            return [b"paid"]

        threading.Thread(target=play, daemon=True).start()
        hx = hapax.connect(f"unix:{folder}/played.sock", timeout=0.5)
        status, headers, page = asked_of(hapax.wsgi.Idempotent(shop, hx), key)
        assert (status, headers["retry-after"]) == (502, "1") and b"upstream-failed" in page


# An application of ASGI that stops before its response ends, as where its client has left, has given none.
@pytest.mark.parametrize("messages", [0, 1, 2])
def test_a_response_without_its_end(hx, key, messages):
    ran = []
    said = [{"type": "http.response.start", "status": 201, "headers": []},
            {"type": "http.response.body", "body": b"row 1", "more_body": True}]

    async def export(scope, receive, send):
        ran.append(1)
        for message in said[:messages]:
            await send(message)

    async def ask():
        sent = []

        async def receive():
            return {"type": "http.request", "body": b"{}"}

        async def send(message):
            sent.append(message)

        await hapax.asgi.Idempotent(export, hx, scope="cut", on_expired="hold")(
            {"type": "http", "method": "POST", "path": "/export", "headers": [(b"idempotency-key", key.encode())]},
            receive, send)
        return sent[0]["status"], sent[1]["body"]

    for status, slug in ((502, b"upstream-failed"), (409, b"unknown-outcome")):
        got = asyncio.run(ask())
        assert got[0] == status and slug in got[1] and ran == [1], got


# What a server can do with a response in place of its body, nobody can keep: an application is not told of it.
def test_extensions_of_a_response(hx, key):
    seen, sent = [], []

    async def export(scope, receive, send):
        seen.append(scope["extensions"])
        await send({"type": "http.response.start", "status": 201, "headers": []})
        if "http.response.pathsend" in scope["extensions"]:
            return await send({"type": "http.response.pathsend", "path": "/rows"})
        await send({"type": "http.response.body", "body": b"rows"})

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    async def send(message):
        sent.append(message)

    asyncio.run(hapax.asgi.Idempotent(export, hx, scope="files")(
        {"type": "http", "method": "POST", "path": "/export", "headers": [(b"idempotency-key", key.encode())],
         "extensions": {"http.response.pathsend": {}, "tls": {"client_cert_name": "zoe"}}},
        receive, send))
    assert (sent[0]["status"], sent[1]["body"]) == (201, b"rows") and seen == [{"tls": {"client_cert_name": "zoe"}}]


@contextlib.contextmanager
def served(kind, hx, status, **options):
    """A real server, whose application has a length and a body for each status; its port, and how often it ran."""
    ran, headers = [], [("X-Ran", "1"), ("Content-Length", "4")]

    def plain(environ, start_response):
        ran.append(1)
        start_response(f"{status} -", headers)
        return [b"told"]

    async def later(scope, receive, send):
        ran.append(1)
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": b"told"})

    if kind == "wsgi":
        from wsgiref.simple_server import WSGIRequestHandler, make_server
        guarded = hapax.wsgi.Idempotent(plain, hx, scope=f"{kind}-{status}", **options)
        with make_server("127.0.0.1", 0, guarded, handler_class=WSGIRequestHandler) as server:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            yield server.server_address[1], ran
            server.shutdown()
        return
    import uvicorn
    guarded = hapax.asgi.Idempotent(later, hx, scope=f"{kind}-{status}", **options)
    server = uvicorn.Server(uvicorn.Config(guarded, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "uvicorn being ready")
    yield server.servers[0].sockets[0].getsockname()[1], ran
    server.should_exit = True
    thread.join()


# 204 and 304 are their head alone, without a length, whatever the application gave; the repeat's is the same. wsgiref
# adds a length of 0 to any response without one.
@pytest.mark.parametrize("kind", ["wsgi", "asgi"])
@pytest.mark.parametrize("status", [204, 304])
def test_a_response_that_has_no_body(hx, key, kind, status):
    with served(kind, hx, status) as (port, ran):
        for replayed in (b"false", b"true"):
            head, rest = bytes_of(port, "/", key)
            assert (head.split()[1], rest) == (b"%d" % status, b"") and b"idempotency-replayed: " + replayed in head
            lengths = [line for line in head.split(b"\r\n") if line.startswith(b"content-length")]
            assert lengths == [b"content-length: 0"] * (kind == "wsgi"), head
            assert b"transfer-encoding" not in head and b"x-ran: 1" in head
    assert ran == [1]


# What no middleware can mean for all requests is refused when it is made: a key would be the one of them all.
@pytest.mark.parametrize("name, value", [("key", "required"), ("key", lambda environ: "k"), ("fingerprint", "amount"),
                                         ("codec", hapax.Bytes()), ("reconcile", lambda op: False)])
def test_options_of_no_middleware(hx, name, value, monkeypatch):
    import django.conf
    monkeypatch.setattr(django.conf, "settings", types.SimpleNamespace(HAPAX={name: value}))
    for make in (lambda: hapax.wsgi.Idempotent(None, hx, **{name: value}),
                 lambda: hapax.asgi.Idempotent(None, hx, **{name: value}), lambda: hapax.django.Idempotent(None)):
        with pytest.raises(hapax.Invalid, match=f"{name}: "):
            make()


# A key is asked for by the profile, or in the door's file of policies.
def test_a_middleware_that_requires_a_key(folder):
    (folder / "policies").write_text('{"refunds": {"key": "required"}}')
    door = Door(Store("memory", folder), folder, "--policy", str(folder / "policies"))
    try:
        hx = hapax.connect(door.address)
        for options in ({"scope": "refunds"}, {"scope": "payments", "profile": "payments"}):
            status, _, said = asked_of(hapax.wsgi.Idempotent(None, hx, **options), None)
            assert status == 400 and b"missing-key" in said
    finally:
        door.close()


# A door that is away lets no request run unseen.
def test_a_door_that_is_away_is_503(folder):
    app = flask_app(hapax.connect(f"unix:{folder}/nobody.sock", timeout=0.1), ran := [])
    status, got, _ = app("POST", b'{"amount": 5}', {"Idempotency-Key": "k", "Content-Type": "application/json"})
    assert (status, got["Retry-After"], ran) == (503, "1", [])


DJANGO = """
import io, sys, json, django
from django.conf import settings
settings.configure(DEBUG=True, SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["hapax.django.Idempotent"],
    HAPAX={"door": sys.argv[1], "connect_timeout": 10, "scope": "django", "owner": __name__ + ".owner_of",
           "timeout": "5m"})
from django.http import JsonResponse
from django.urls import path
ran = []
def owner_of(request):
    return request.headers.get("X-Shop", "nobody")
def pay(request):
    ran.append(request.hapax.attempt)
    response = JsonResponse({"receipt": len(ran), "body": request.body.decode()}, status=201)
    response.set_cookie("a", "1")
    return response
urlpatterns = [path("payments", pay)]
django.setup()
from django.core.handlers.wsgi import WSGIHandler
from django.test import Client
from wsgiref.util import setup_testing_defaults
def ask(shop, key):
    got = Client().post("/payments", data='{"amount": 5}', content_type="application/json",
                        HTTP_IDEMPOTENCY_KEY=key, HTTP_X_SHOP=shop)
    return [got.status_code, got.json(), got["Idempotency-Replayed"], list(got.cookies)]
asked, environ = [], {"REQUEST_METHOD": "POST", "PATH_INFO": "/payments", "HTTP_IDEMPOTENCY_KEY": "half",
                     "wsgi.input": io.BytesIO(b"half"), "CONTENT_LENGTH": "8"}
setup_testing_defaults(environ)
WSGIHandler()(environ, lambda status, headers: asked.append(status))
print(json.dumps([ask("s1", sys.argv[2]), ask("s1", sys.argv[2]), ask("s2", sys.argv[2]), asked]))
"""


# Django's middleware knows owners by what came before it, and takes policies, `timeout` too. It runs no half a body.
def test_django(door, key, folder):
    (folder / "shop.py").write_text(DJANGO.replace("__name__", "'shop'"))
    done = subprocess.run(["/usr/bin/python3", "-c", "import shop", door.address, key], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}/sdk/python"}, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    body = '{"amount": 5}'
    assert json.loads(done.stdout) == [[201, {"receipt": 1, "body": body}, "false", ["a"]],
                                       [201, {"receipt": 1, "body": body}, "true", []],
                                       [201, {"receipt": 2, "body": body}, "false", ["a"]], ["400 Bad Request"]]


# ---- Celery -----------------------------------------------------------------------------------

# A task that is delivered twice takes effect once, and gives its result again; one in flight is tried again later.
def test_celery(hx, key):
    import celery
    from celery.exceptions import Retry

    import hapax.celery

    app = celery.Celery("shop", task_cls=hapax.celery.once(hx))
    ran, inside = [], []

    @app.task(name="shop.pay", bind=True)
    def pay(self, order):
        ran.append(order)
        if order == "slow":
            inside.append(deliver(order))
        return {"paid": order}

    def deliver(order):
        """As a worker does: the broker delivers one message, of one id."""
        return pay.apply(args=[order], task_id=f"{key}-{order}", throw=False)

    assert deliver("a").get() == deliver("a").get() == {"paid": "a"} and ran == ["a"]
    with pytest.MonkeyPatch.context() as patch:
        retried = []
        patch.setattr(pay, "retry", lambda **how: retried.append(how) or Retry("later"))
        assert deliver("slow").get() == {"paid": "slow"} and ran == ["a", "slow"]
        assert inside[0].state == "RETRY" and retried[0]["countdown"] > 0 and retried[0]["max_retries"] is None
    assert pay("b") == {"paid": "b"}  # a plain call is one

    @app.task(name="shop.refund", base=hapax.celery.once(hx, key=lambda task, args, kwargs: args[0]))
    def refund(order):
        ran.append(order)

    for none in (None, ""):
        assert isinstance(refund.apply(args=[none]).result, hapax.Invalid) and none not in ran


# What is compared of a task may be a function of it, or a value, as in run(); the arguments otherwise.
@pytest.mark.parametrize("what, same", [({}, 1), ({"fingerprint": lambda task, args, kwargs: args[1]}, 2),
                                        ({"fingerprint": None}, 3)], ids=["arguments", "function", "none"])
def test_what_is_compared_of_a_task(hx, key, what, same):
    import celery

    import hapax.celery

    app = celery.Celery("shop", task_cls=hapax.celery.once(hx, key=lambda task, args, kwargs: args[0], **what))

    @app.task(name="shop.send")
    def send(order, amount, note):
        return [amount, note]

    answers = [send.apply(args=[key, *args], throw=False).result for args in ((5, "a"), (5, "b"), (6, "a"))]
    assert [answer for answer in answers if not isinstance(answer, hapax.Mismatch)] == [[5, "a"]] * same


# A backend of results keeps the type and the arguments of an error, and makes another of them. What a task says of
# itself says nothing there of the task that asked for it.
def test_a_task_that_was_not_run(hx, key):
    import celery

    import hapax.celery

    app = celery.Celery("shop", task_cls=hapax.celery.once(hx, on_expired="hold"))
    charged, ordered = [], []

    @app.task(name="shop.charge")
    def charge():
        charged.append(1)
        raise hapax.NotRun("busy", 7)

    @app.task(name="shop.order")
    def order():
        ordered.append(1)
        kept = app.backend.prepare_exception(deliver(charge), serializer="json")
        raise app.backend.exception_to_python(json.loads(json.dumps(kept)))

    def deliver(task):
        return task.apply(task_id=f"{key}-{task.name}", throw=False).result

    said = deliver(order)
    assert isinstance(said, hapax.NotRun) and said.args == ("busy", 7)
    assert isinstance(deliver(order), hapax.Unknown) and ordered == charged == [1]
    assert isinstance(deliver(charge), hapax.NotRun) and charged == [1, 1]


# ---- without a door ---------------------------------------------------------------------------

class Service(BaseHTTPRequestHandler):
    """Answers as `plays` says, one after the other, and keeps the keys and bodies that came."""
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.server.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        self.server.keys.append(self.headers["Idempotency-Key"])
        play = self.server.plays.pop(0)
        if play is None:
            self.close_connection = True
            return
        status, headers, body = play
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def service():
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        server.keys, server.bodies, server.plays = [], [], []
        server.url = f"http://127.0.0.1:{server.server_address[1]}/"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def by_urllib(url, tries):
    got = hapax.http.request("POST", url, body=b"{}", tries=tries)
    return got.status, got.body


def by_httpx(url, tries):
    import httpx
    with httpx.Client(transport=hapax.http.httpx_transport(httpx.HTTPTransport(), tries=tries)) as client:
        got = client.post(url, content=b"{}")
        return got.status_code, got.content


def by_requests(url, tries):
    import requests
    with requests.Session() as session:
        session.mount("http://", hapax.http.requests_adapter(tries=tries))
        got = session.post(url, data=b"{}")
        return got.status_code, got.content


def page(slug):
    return json.dumps({"type": f"urn:hapax:problem:{slug}", "detail": slug}).encode()


PROBLEM = {"Content-Type": "application/problem+json"}
TRIES = hapax.http.Tries(most=4, first_s=0.01, longest_s=0.05)


# One key for the call, the same in each try, whatever came between.
@pytest.mark.parametrize("call", [by_urllib, by_httpx, by_requests])
def test_tries_have_one_key(service, call):
    service.plays += [None, (503, {"Retry-After": "0"}, b""), (409, {**PROBLEM, "Retry-After": "0"}, page("in-flight")),
                      (201, {}, b"paid")]
    assert call(service.url, TRIES) == (201, b"paid")
    assert len(service.keys) == 4 and len(set(service.keys)) == 1
    service.plays += [(200, {}, b"")]
    call(service.url, TRIES)
    assert len(set(service.keys)) == 2


# A body that can be read only once is the same in each try.
@pytest.mark.parametrize("body", [lambda: (part for part in (b"pa", b"id")), lambda: io.BytesIO(b"paid")],
                         ids=["generator", "file"])
def test_tries_have_one_body(service, body):
    import requests
    service.plays += [None, (503, {"Retry-After": "0"}, b""), (201, {}, b"")]
    with requests.Session() as session:
        session.mount("http://", hapax.http.requests_adapter(tries=TRIES))
        assert session.post(service.url, data=body()).status_code == 201
    assert service.bodies == [b"paid"] * 3


# What no try mends is the error of its name, at once. An unknown outcome that time may help is asked for again.
@pytest.mark.parametrize("call", [by_urllib, by_httpx, by_requests])
def test_problems_are_errors(service, call):
    for status, slug, error in ((422, "fingerprint-mismatch", hapax.Mismatch), (409, "unknown-outcome", hapax.Unknown),
                                (500, "attempts-used-up", hapax.Failed), (400, "missing-key", hapax.MissingKey),
                                (410, "expired-key", hapax.Expired)):
        service.plays += [(status, PROBLEM, page(slug))]
        with pytest.raises(error):
            call(service.url, TRIES)
        assert service.plays == []
    service.plays += [(409, {**PROBLEM, "Retry-After": "0"}, page("in-flight"))] * 4
    with pytest.raises(hapax.InFlight) as failed:
        call(service.url, TRIES)
    assert failed.value.retry_after == 0 and service.plays == []
    service.plays += [(409, {**PROBLEM, "Retry-After": "0"}, page("unknown-outcome")), (201, {}, b"found")]
    assert call(service.url, TRIES) == (201, b"found")
    service.plays += [(404, {}, b"not ours")]
    assert call(service.url, TRIES) == (404, b"not ours")


# The pauses: at least Retry-After, otherwise doubled, with jitter, and limited. Over a minute is the caller's to wait.
def test_pauses():
    tries = hapax.http.Tries(most=20, first_s=1, longest_s=8)
    for tried, most in ((1, 1), (2, 2), (3, 4), (4, 8), (10, 8)):
        pauses = [tries.pause(tried, 503, {}) for _ in range(50)]
        assert most / 2 <= min(pauses) < max(pauses) <= most
    assert tries.pause(1, 503, {"Retry-After": "60"}) == 60 and tries.pause(20, 503, {}) is None
    assert tries.pause(1, 503, {"Retry-After": "61"}) is None and tries.pause(1, 409, {"Retry-After": "61"}) is None
    assert tries.pause(1, 409, {}) is None and tries.pause(1, 400, {}) is None and tries.pause(1, 0, {}) > 0
    assert 0 <= hapax.http.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") < 1 and hapax.http.retry_after("soon") is None
    assert hapax.http.quoted('a"\\b') == '"a\\"\\\\b"'
    with pytest.raises(ValueError):
        hapax.http.quoted("ä")


# A call with nobody there ends with the library's own error.
def test_nobody_there(service):
    service.plays += [None] * 4
    with pytest.raises((OSError, urllib.error.URLError)):
        by_urllib(service.url, TRIES)


# A key is what the gate took for it. A consumer's is percent-encoded, and may be any bytes.
@pytest.mark.parametrize("headers, found", [
    ({}, None), ({"Idempotency-Key": '"k"'}, "k"), ({"Idempotency-Key": "a:b"}, "a:b"),
    ({"Idempotency-Key": ' "a b";v=1 '}, "a b"), ({"HTTP_IDEMPOTENCY_KEY": r'"a\"b\\c"'}, 'a"b\\c'),
    ({"Hapax-Key": "a%20%C3%A4%25", "Idempotency-Key": '"sha256-…"'}, "a ä%"),
    ({"HTTP_HAPAX_KEY": "%ff%00"}, b"\xff\0")])
def test_keys_that_a_handler_is_told(headers, found):
    told = hapax.postgres.attempt_of({**headers, "Idempotency-Attempt": "2"})
    assert told == {"token": None, "fence": None, "attempt": 2, "key": found}
    assert not isinstance(found, bytes) or hapax.postgres.derived_key(found, "s") == found + b":s"


# The key of a step is that of hapax_key_derive().
def test_derived_keys(hx, key):
    assert hx.run(lambda op: op.step("charge", lambda step: step.key), scope="d", key=key) == \
        hapax.postgres.derived_key(key, "charge")
    long = key + "k" * (255 - len(key))
    assert hx.run(lambda op: op.step("charge", lambda step: step.key), scope="d", key=long) == \
        hapax.postgres.derived_key(long, "charge")
    assert hapax.postgres.is_newer(2, 1) and not hapax.postgres.is_newer(1, 2) and hapax.postgres.is_newer(1, None)


COMPLETE = """
import sys, hapax.postgres
kind, dsn, token = sys.argv[1:4]
headers = {"Location": "/payments/1"}
args = ({"Idempotency-Token": token}, 201, b"\\x00\\xff receipt", headers)
insert = "INSERT INTO rows VALUES (1)"
def both(conn):
    hapax.postgres.execute(conn, insert, ())
    hapax.postgres.complete(conn, *args)
if kind == "psycopg":
    import psycopg
    with psycopg.connect(dsn) as conn:
        both(conn)
elif kind == "psycopg2":
    import psycopg2
    with psycopg2.connect(dsn) as conn, conn.cursor() as cursor:
        both(cursor)
elif kind in ("engine", "session"):
    import sqlalchemy, sqlalchemy.orm
    engine = sqlalchemy.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    with (engine.begin() if kind == "engine" else sqlalchemy.orm.Session(engine).begin()) as conn:
        both(conn.session if hasattr(conn, "session") else conn)
else:
    import django, urllib.parse
    from django.conf import settings
    url = urllib.parse.urlsplit(dsn)
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:],
        "HOST": url.hostname, "PORT": url.port, "USER": url.username}})
    django.setup()
    from django.db import connection, transaction
    with transaction.atomic():
        both(connection)
"""


# Rows and outcome are committed together by each driver; a lost claim, or a repeat, takes the rows with it.
@pytest.mark.parametrize("kind", [
    "psycopg", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("session", "django", "psycopg2", "engine"))])
def test_complete_in_the_transaction(folder, key, kind):
    store = Store("postgres", folder)
    server = Store.servers["postgres"]
    database = store.uri.rpartition("/")[2]
    server.psql("CREATE TABLE rows (n integer)", database)
    fetched = subprocess.run([ROOT / "tools/drivers/fetch"], capture_output=True, text=True, timeout=400)
    assert fetched.returncode == 0, fetched.stderr
    env = {**os.environ, "PYTHONPATH": f"{ROOT}/sdk/python:{fetched.stdout.strip()}/python"}
    door = Door(store, folder, "--pass-token", "on")
    try:
        hx, said = hapax.connect(door.address), []

        def handler(op):
            for status, error in ((0, ""), (1, "ClaimLost"))[:2 if kind == "psycopg" else 1]:
                done = subprocess.run(["/usr/bin/python3", "-c", COMPLETE, kind, store.uri, op.token], env=env,
                                      capture_output=True, text=True, timeout=PATIENCE)
                assert done.returncode == status and error in done.stderr, done.stderr
            said.append(op.token)
            return b"the handler's own"

        for _ in range(2):  # what the transaction stored stands, whatever the handler returns
            assert hx.run(handler, scope="pg", key=key, codec=hapax.Bytes()) == b"\x00\xff receipt" and len(said) == 1
        assert int(server.psql("SELECT count(*) FROM rows", database)) == 1
        assert store.hapax("resolve", "--scope", "pg", key, "--forget", "--force").returncode == 0
        done = subprocess.run(["/usr/bin/python3", "-c", COMPLETE, kind, store.uri, said[0]], env=env,
                              capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 1 and "ClaimLost" in done.stderr
        assert int(server.psql("SELECT count(*) FROM rows", database)) == 1
    finally:
        door.close()


# ---- the example, and the package -----------------------------------------------------------

# kill -9 of the program between its two steps: the first is not done again, and the result is one.
def test_the_example_under_kill_9(folder):
    def run(*words):
        env = {name: value for name, value in os.environ.items() if not name.startswith("HAPAX_")}
        return subprocess.Popen([HAPAX, "door", "--store", f"rocksdb:{folder}/store", "--", "/usr/bin/python3",
                                 ROOT / "sdk/python/example.py", *words], cwd=folder, stdout=subprocess.PIPE, text=True,
                                stderr=subprocess.PIPE, env={**env, "PYTHONPATH": str(ROOT / "sdk/python")})

    def effects():
        path = folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    first = run("order-17", "500", "--slow", "600")
    wait_until(effects, "the first step")
    child, = [pid for pid in children_of(first.pid) if b"python" in pathlib.Path(f"/proc/{pid}/comm").read_bytes()]
    os.kill(child, signal.SIGKILL)
    first.communicate(timeout=PATIENCE)
    for _ in range(2):
        out, err = run("order-17", "500").communicate(timeout=PATIENCE)
        assert out.splitlines()[-1] == "{'refund': 're_order-17', 'attempt': 2}", err
    assert effects() == ["500 back for order-17, by the key order-17:charge", "mail for order-17"]
    other = run("order-17", "501")
    assert "with another amount" in other.communicate(timeout=PATIENCE)[1] and other.returncode == 1


# The wheel installs into a clean environment without a network, and has nothing but itself.
@pytest.mark.ci
def test_the_package(folder):
    done = subprocess.run([ROOT / "sdk/python/package", folder / "made"], capture_output=True, text=True,
                          timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert sorted(path.suffix for path in (folder / "made").iterdir()) == [".gz", ".whl"]
