# SPDX-License-Identifier: Apache-2.0
"""Functions, their arguments and results, as what the door takes and gives. Each exchange is one generator, which a
sync and an asyncio driver run: what a handler's end means is said once."""
from __future__ import annotations

import asyncio
import dataclasses
import datetime
import decimal
import functools
import inspect
import json
import queue
import typing
import uuid
from collections.abc import Awaitable, Callable

from ._door import ANSWER, BODY_MAX, RUN, Door, plain, text
from .errors import BY_ANSWER, ClaimLost, Failed, HapaxError, Invalid, NotRun, NotRunElsewhere

T = typing.TypeVar("T")
NOT_POLICIES = "scope key owner caller fingerprint what traceparent codec reconcile args".split()


# ---- values --------------------------------------------------------------------------------------


class Json:
    """Results as JSON. What has no form in JSON is a TypeError, and the result is then not known to repeats."""
    type = "application/json"

    def encode(self, value):
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")

    def decode(self, body):
        return json.loads(body)


class Bytes:
    """Results that are bytes."""
    type = "application/octet-stream"

    def encode(self, value):
        return bytes(memoryview(value))  # a TypeError where it is none

    def decode(self, body):
        return body


class Dataclass(Json):
    """Results of one dataclass, whose fields are JSON."""

    def __init__(self, made):
        self.made = made

    def encode(self, value):
        return super().encode(dataclasses.asdict(value))

    def decode(self, body):
        return self.made(**super().decode(body))


def json_of(value):
    """Arguments that are no JSON, for a fingerprint: equal ones in equal forms."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (decimal.Decimal, uuid.UUID, datetime.date, datetime.time, datetime.timedelta)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    raise TypeError(f"an argument of type {type(value).__name__} has no form to compare: give fingerprint=")


def print_of(value):
    """The member `body` and the body that say what the request is."""
    if value is None:
        return "off", b""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "body", bytes(value)
    return "json", json.dumps(value, ensure_ascii=False, default=json_of).encode("utf-8")


# ---- an attempt ----------------------------------------------------------------------------------


class Op:
    """What a handler is given: its attempt of the operation, or of a step.

    attempt: counted from 1 · fence: hand it to what you write to, and refuse smaller ones there; 0: unprotected ·
    stale: an earlier attempt died, and may have had its effect · key: for the next service · token: with the policy
    pass_token, for hapax.postgres.complete(); a secret · id: 64 hex digits, for operators · traceparent: where this run
    stands among traces (W3C Trace Context), for what the handler calls; None: nowhere
    """

    def __init__(self, call, codec, told):
        self._call, self._codec, self._stepped = call, codec, False
        self.id, self.attempt, self.fence = told.get("id"), told["attempt"], told["fence"]
        self.stale, self.token, self.traceparent = told["stale"], told.get("token"), told.get("traceparent")
        self.key = plain(told["key"]) if told.get("key") is not None else None

    @property
    def lost(self):
        """Whether the claim is gone: another attempt may be running."""
        return self._call.lost.is_set()

    def check(self):
        """Raises ClaimLost where the claim is gone. Call it between effects."""
        if self.lost:
            raise ClaimLost("the claim is lost: another attempt may be running")

    def step(self, name: str, handler: Callable, *, codec=None) -> typing.Any:
        """Runs handler(op) at most once for this operation and name, and gives a later attempt its result.

        The name has 1 to 64 bytes without ":", and is the same in every run. In a coroutine: await it, and the handler
        may be a coroutine function. Raises what the handler raises, or a HapaxError."""
        self._stepped = True
        exchange = call(self._call.door, {"step": name}, b"", codec or self._codec, handler, None, self._call)
        return drive_async(exchange) if isinstance(self, AsyncOp) else drive(exchange)


class AsyncOp(Op):
    """The same in a coroutine. When the claim is lost the handler's task is cancelled."""


# ---- an exchange ---------------------------------------------------------------------------------


class Wait:
    """Asked of a driver: the next event of the call that was begun."""


class Begin:
    """Asked of a driver: begin this call, whose events go to notify()."""

    def __init__(self, *what):
        self.begin = functools.partial(Door.begin, *what)


class Handle:
    """Asked of a driver: run handler(op) and say ("value", V) or ("error", E). The handler Block is a block, which the
    driver's caller runs."""

    def __init__(self, handler, call, codec, told):
        self.handler, self.call, self.codec, self.told = handler, call, codec, told


def call(door, meta, body, codec, handler, reconcile=None, outer=None):
    """A call whose handler gives a value. Yields what a driver is to do; returns the result."""
    own = None
    begun = yield Begin(door, meta, body, outer)
    while True:
        kind, meta, body = yield Wait()
        if kind is None:
            raise meta
        if kind == ANSWER:
            return result_of(meta, body, codec, own)
        handle = Handle(handler if kind == RUN else reconcile, begun, codec, meta)
        own = yield handle
        end, said, own = end_of(own, codec, handle.op) if kind == RUN else found_of(own, codec)
        begun.end(end, said)


def did_nothing(error, op):
    """Whether a handler's exception says that surely nothing was done. A NotRun counts for the first call that it ends.
    The caller that it is raised to may be another handler, which may have had an effect. So may a step."""
    mine = op._call.begin["nonce"]
    counts = isinstance(error, NotRun) and not isinstance(error, NotRunElsewhere)
    return counts and vars(error).setdefault("_hapax_call", mine) == mine and not op._stepped


def end_of(gave, codec, op=None):
    """Members and body of END, and what the call's own caller is given."""
    what, value = gave
    if what == "value":
        try:
            body = codec.encode(value)
        except Exception as error:  # it has run, and has no outcome that can be kept
            return {"class": "unknown"}, b"", ("error", error)
        return *kept({"class": "final", "status": 200, "headers": [["Content-Type", codec.type]]}, body), gave
    if did_nothing(value, op):
        return {"class": "not_run"}, b"", gave
    said = str(value).encode("utf-8", "replace")[:65536]
    if not isinstance(value, Exception):  # it was cut off: KeyboardInterrupt, CancelledError
        return {"class": "unknown"}, b"", gave
    return {"class": "failed", "status": 500, "headers": [["Content-Type", "text/plain"]]}, said, gave


def kept(meta, body):
    """Members and body of an END whose body may be over what the door takes: repeats are told that it is gone."""
    return ({**meta, "body_kept": False}, b"") if len(body) > BODY_MAX else (meta, body)


def found_of(gave, codec):
    """The same of a hook: it gives Happened(result) or False."""
    if isinstance(gave[1], Happened):
        return end_of(("value", gave[1].result), codec)
    return {"class": "not_run" if gave == ("value", False) else "unknown"}, b"", gave


class Happened:
    """What a reconcile hook returns where the effect happened, with the operation's result. It returns False where the
    effect did not happen, and raises, or returns anything else, where it cannot tell."""

    def __init__(self, result=None):
        self.result = result


def result_of(meta, body, codec, own):
    if meta.get("own"):
        if own[0] == "error":
            raise own[1]
        return own[1]
    if meta["answer"] not in ("fresh", "replay", "bypass"):
        raise error_of(meta, body)
    if meta.get("status", 0) >= 400:
        raise Failed(body.decode("utf-8", "replace"), attempt=meta.get("attempt", 0))
    return codec.decode(body)


def error_of(meta, body=b""):
    after = meta.get("retry_after_ms")
    said = meta.get("text") or body.decode("utf-8", "replace")
    return BY_ANSWER.get(meta["answer"], HapaxError)(
        said, retry_after=after / 1000 if after is not None else None, differs=meta.get("differs"),
        attempt=meta.get("attempt", 0))


# ---- drivers -------------------------------------------------------------------------------------


class Driver:
    """Runs an exchange in this thread, but for a block."""

    def __init__(self, exchange):
        self.exchange, self.events, self.begun, self.cancelled = exchange, queue.SimpleQueue(), None, False

    def advance(self, say):
        """Goes on until a block is to run: its Op. StopIteration has the result."""
        try:
            while True:
                asked = self.exchange.send(say)
                if isinstance(asked, Begin):
                    say = self.begun = asked.begin(self.events.put)
                    if self.cancelled:  # before there was anything to give up
                        raise asyncio.CancelledError
                elif isinstance(asked, Wait):
                    say = self.events.get()
                else:
                    asked.op = Op(asked.call, asked.codec, asked.told)
                    if asked.handler is Block:
                        return asked.op
                    asked.call.idle = False
                    try:
                        say = ("value", asked.handler(asked.op))
                    except BaseException as error:
                        say = ("error", error)
        except BaseException:
            if self.begun:
                self.begun.cancel()  # where it did not run; otherwise it is over
            raise

    def cancel(self):
        """From another thread: ends advance() with CancelledError, and gives up what did not run."""
        self.cancelled = True
        self.events.put((None, asyncio.CancelledError(), b""))
        if self.begun:
            self.begun.cancel()


def drive(exchange):
    """Runs an exchange in this thread, handlers included."""
    try:
        Driver(exchange).advance(None)
    except StopIteration as over:
        return over.value


async def drive_async(exchange):
    """The same on the loop of this coroutine."""
    loop, events, begun, say = asyncio.get_running_loop(), asyncio.Queue(), None, None

    try:
        while True:
            asked = exchange.send(say)
            if isinstance(asked, Begin):
                say = begun = asked.begin(functools.partial(loop.call_soon_threadsafe, events.put_nowait))
            elif isinstance(asked, Wait):
                say = await events.get()
            else:
                say = await handle_async(loop, asked)
    except StopIteration as over:
        return over.value
    except BaseException:
        if begun:
            begun.cancel()
        raise


async def handle_async(loop, asked):
    """The task of a handler is cancelled when the claim is lost, and when the caller is."""
    asked.op = AsyncOp(asked.call, asked.codec, asked.told)

    async def handler():
        if asked.call.cancelled:  # by an exception of a signal's handler, which left this task behind
            return None
        asked.call.idle = False
        value = asked.handler(asked.op)
        return await value if inspect.isawaitable(value) else value

    task = loop.create_task(handler())
    asked.call.on_lost = functools.partial(loop.call_soon_threadsafe, task.cancel)
    if asked.op.lost:
        task.cancel()
    cancelled = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
            task.cancel()
    del asked.call.on_lost
    if task.cancelled():
        return "error", cancelled or asyncio.CancelledError()
    if task.exception() is not None:
        return "error", task.exception()
    return "value", task.result()


# ---- the door, for users -------------------------------------------------------------------------


def named(value):
    """An owner, or a part of a caller. None is nobody, as the empty text is: the door refuses it."""
    return "" if value is None else text(value)


def members_of(options):
    """BEGIN's members of the options that all calls have. Other options are policies, which the door knows."""
    caller = options.get("caller")
    parts = [caller] if caller is None or isinstance(caller, (str, bytes)) else caller
    members = {
        "scope": options.get("scope"), "key": text(options.get("key")),
        "owner": named(options["owner"]) if "owner" in options else None,
        "caller": [named(part) for part in parts] if "caller" in options else None,
        "what": options.get("what"), "traceparent": options.get("traceparent"),
        "policy": {name: value for name, value in options.items() if name not in NOT_POLICIES},
        "reconciles": options.get("reconcile") is not None,
    }
    return {name: value for name, value in members.items() if value not in (None, {}, False)}


class Hapax:
    """A door. Made by connect(); safe from any thread, any task, and after fork()."""

    def __init__(self, address=None, *, timeout=10.0):
        self.door = Door(address, timeout)

    def close(self):
        """Takes no more calls. What is in hand goes on to its end."""
        self.door.close()

    def _call(self, handler, options):
        if not options.get("key"):
            raise Invalid("no key: an operation without one would run unprotected")
        part, body = print_of(options.get("fingerprint"))
        return call(self.door, {**members_of(options), "body": part}, body, options.get("codec") or Json(), handler,
                    options.get("reconcile"))

    def run(self, handler: Callable[[Op], T], *, scope: str, key: str | bytes, fingerprint=None, **options) -> T:
        """Runs handler(op) at most once for scope and key, and gives each caller its result.

        scope         str: the namespace of the keys ("refunds")
        key           str or bytes: the same whenever the same thing is meant ("order-17"); 1 to 255 bytes
        fingerprint   what makes the request this request: JSON, compared however it is spelled, or bytes
        owner         str: whose key it is; each owner has keys of its own
        caller        str, or a list: another caller's key is a Mismatch. Empty or None, as of an owner: MissingOwner
        what          str for operators, without keys and secrets
        codec         of the result: hapax.Json() (default), hapax.Bytes(), hapax.Dataclass(Receipt)
        reconcile     hook(op): hapax.Happened(result) or False, for on_expired="reconcile"
        others        policies: on_expired="hold", retention="7d", wait="10s", attempts_max=3, …

        The result is stored before run() returns it; None, 0 and "" are results too. Raises what the handler raised,
        or a HapaxError: InFlight (ask again after .retry_after), Unknown, Mismatch, Failed, Gone, StoreDown, Invalid,
        Indeterminate. A handler raises NotRun to say that surely nothing was done."""
        return drive(self._call(handler, dict(options, scope=scope, key=key, fingerprint=fingerprint)))

    async def run_async(self, handler: Callable[[AsyncOp], Awaitable[T] | T], *, scope: str, key: str | bytes,
                        fingerprint=None, **options) -> T:
        """run() in a coroutine; handler and hook may be coroutine functions."""
        return await drive_async(self._call(handler, dict(options, scope=scope, key=key, fingerprint=fingerprint)))

    def once(self, *, scope: str, key, **options) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """A decorator of functions and coroutine functions: run() for each call. The arguments are the fingerprint.

        key, owner, caller, fingerprint: the name of an argument where they are the text of one; or a function of the
        arguments. A parameter named `op` is given the Op. A function that is annotated to return a dataclass has its
        results stored as that.

            @hx.once(scope="refunds", key="order_id", retention="7d")
            def refund(order_id: str, amount: int, *, op: hapax.Op) -> dict: ...
        """
        return lambda function: Once(self, function, dict(options, scope=scope, key=key)).wrapper()

    def begin(self, *, scope: str, key: str | bytes, fingerprint=None, **options) -> Block:
        """A context manager for `with` and `async with`: run() where the handler is a block.

            with hx.begin(scope="nightly", key=str(day)) as op:
                if op.run:
                    op.complete(report(day))
            print(op.result)

        A reconcile hook is a plain function here, too: begin() asks it before the block."""
        return Block(self, dict(options, scope=scope, key=key, fingerprint=fingerprint))


class Once:
    """A decorated function."""

    def __init__(self, hapax, function, options):
        self.hapax, self.function, self.options = hapax, function, options
        self.signature = inspect.signature(function)
        self.takes_op = "op" in self.signature.parameters
        try:
            made = typing.get_type_hints(function).get("return")
        except Exception:  # a name that is known to type checkers alone
            made = None
        if options.get("codec") is None and dataclasses.is_dataclass(made):
            self.options["codec"] = Dataclass(made)

    def exchange(self, args, kwargs):
        bound = self.signature.bind(*args, **(dict(kwargs, op=None) if self.takes_op else kwargs))
        bound.apply_defaults()
        given = {name: value for name, value in bound.arguments.items() if name not in ("op", "self", "cls")}
        options = dict(self.options)
        for name in ("key", "owner", "caller", "fingerprint"):
            if callable(options.get(name)):
                options[name] = options[name](*args, **kwargs)
            elif isinstance(options.get(name), str) and options[name] in given:
                options[name] = given[options[name]]
        options["key"] = options["key"] if isinstance(options["key"], (bytes, type(None))) else str(options["key"])
        options.setdefault("fingerprint", given)
        options.setdefault("what", self.function.__qualname__)
        if hook := options.get("reconcile"):
            options["reconcile"] = lambda op: hook(*args, **kwargs, op=op)

        return self.hapax._call(
            lambda op: self.function(*args, **(dict(kwargs, op=op) if self.takes_op else kwargs)), options)

    def wrapper(self):
        if inspect.iscoroutinefunction(self.function):
            async def once(*args, **kwargs):
                return await drive_async(self.exchange(args, kwargs))
        else:
            def once(*args, **kwargs):
                return drive(self.exchange(args, kwargs))
        return functools.wraps(self.function)(once)


class Block:
    """A block as a handler: the exchange stands still while the block runs."""

    def __init__(self, hapax, options):
        self.driver = Driver(hapax._call(Block, options))
        self.run, self.result, self.over = False, None, False

    def __getattr__(self, name):
        if name.startswith("_") or "op" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.op, name)

    def complete(self, result):
        """The block's result; None where it is not called."""
        self.result = result

    def advance(self, say):
        """Goes on until the block is to run, or the operation is over."""
        try:
            self.op = self.driver.advance(say)
            self.run = True
        except StopIteration as over:
            self.result, self.over = over.value, True

    def __enter__(self):
        self.advance(None)
        self.driver.begun.idle = False
        return self

    def __exit__(self, kind, error, _):
        try:
            if not self.over:
                self.advance(("error", error) if error is not None else ("value", self.result))
        except BaseException as raised:
            if raised is not error:
                raise

    async def __aenter__(self):
        try:
            await asyncio.to_thread(self.advance, None)
        except asyncio.CancelledError:
            self.driver.cancel()
            raise
        self.driver.begun.idle = False
        return self

    async def __aexit__(self, kind, error, trace):
        return await asyncio.to_thread(self.__exit__, kind, error, trace)


def connect(address: str | None = None, *, timeout: float = 10.0) -> Hapax:
    """A door: `unix:PATH`; by default $HAPAX_DOOR, otherwise unix:/run/hapax/door.sock.

    Connects when it is first needed. timeout: seconds in which a door that is away may come (back); then calls that
    did not run raise StoreDown, and those that did raise Indeterminate."""
    return Hapax(address, timeout=timeout)
