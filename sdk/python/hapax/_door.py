# SPDX-License-Identifier: Apache-2.0
"""The connection to `hapax door`, by docs/door.md. One connection for all threads of a process; it connects again when
the door was away, and says again what the new door has to know. It decides nothing about an operation."""
from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import socket
import struct
import threading
import time
import weakref
from queue import Empty, SimpleQueue

from .errors import Indeterminate, Invalid, StoreDown, TooLarge

VERSION = "0.1.0"
HELLO, WELCOME, BEGIN, RESUME, RUN, RECONCILE, END, ANSWER, BEAT, LOST, CANCEL, FAULT = range(1, 13)
FRAME_MAX = 17 << 20
META_MAX = (1 << 20) - (8 << 10)  # of what the door takes: 1 MiB, with room for the ticket of a RESUME
BODY_MAX = 16 << 20
AGAIN_S = 0.05  # between two tries to connect, and between two connections
HEAD = struct.Struct(">IBII")


def text(value):
    """Text or bytes, as a TEXT of the protocol."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def plain(value):
    """A TEXT as str, or as bytes where it is no UTF-8."""
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def frame(kind, op=0, meta=None, body=b""):
    said = json.dumps(meta, ensure_ascii=False, separators=(",", ":")).encode("utf-8") if meta else b""
    length = 9 + len(said) + len(body)
    if len(said) > META_MAX and kind != RESUME:  # the door would end the connection
        raise Invalid(f"members of {len(said)} bytes are over {META_MAX}")
    if length > FRAME_MAX:
        raise TooLarge(f"a frame of {length} bytes is over {FRAME_MAX}")
    return b"".join((HEAD.pack(length, kind, op, len(said)), said, body))


def read(reader):
    """A frame's kind, op, meta and body."""
    head = reader.read(HEAD.size) or b""
    if len(head) < HEAD.size:
        raise ConnectionError("the door closed the connection")
    length, kind, op, meta_len = HEAD.unpack(head)
    if not 9 + meta_len <= length <= 2 * FRAME_MAX:
        raise ConnectionError("the door sent no frame")
    rest = reader.read(length - 9)
    if len(rest) < length - 9:
        raise ConnectionError("the door closed the connection")
    return kind, op, json.loads(rest[:meta_len]) if meta_len else {}, rest[meta_len:]


def start(name, target, *args):
    thread = threading.Thread(target=target, name=name, args=args, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # too many threads
        raise StoreDown(str(error), retry_after=1) from error
    return thread


class Call:
    """An operation or a step in hand. What comes for it is given to `notify` as (kind, meta, body); an error as
    (None, error, b"")."""

    def __init__(self, door, meta, body, outer, notify):
        self.door, self.outer, self.notify = door, outer, notify
        self.begin = {**meta, "nonce": secrets.token_hex(16)}
        self.body = body
        self.op = 0
        self.told = None  # the members of the last RUN or RECONCILE
        self.idle = False  # told to run, and surely nothing of it has begun: a driver says when it does
        self.ended = None  # the frame of END
        self.cancelled = False
        self.over = None  # what `notify` is given when the handler has ended: no ANSWER will come
        self.lost = threading.Event()

    def end(self, meta, body=b""):
        """Says how the handler, or the hook, ended."""
        end = frame(END, self.op, meta, body)  # one that is too large is refused here, before the call has ended
        with self.door.lock:
            over = self.over
            if over is None and self.ended is None:  # otherwise it was cancelled meanwhile
                self.door.send(end)
                self.ended = end
        if over is not None:
            self.tell(over)

    def cancel(self):
        """Gives up what has not begun to run. Nothing comes any more. What has begun is `unknown`."""
        with self.door.lock:
            self.cancelled = True
            if self.door.calls.get(self.op) is not self or self.ended:
                return  # it is over, or will be
            if self.told is not None:
                self.give_up()
            elif self.door.queue is not None:
                self.door.send(frame(CANCEL, self.op))
            else:
                self.door.drop(self.op)

    def give_up(self):
        """With the lock. It was told to run, and nobody does."""
        self.ended = frame(END, self.op, {"class": "not_run" if self.idle else "unknown"})
        self.door.send(self.ended)

    def frame(self):
        """What a new door has to be told first."""
        inside = {"in": self.outer.op} if self.outer else {}
        if self.told is None:
            return frame(BEGIN, self.op, {**self.begin, **inside}, self.body)
        meta = {"ticket": self.told["ticket"], "reconciles": self.begin.get("reconciles", False), **inside}
        if "request" in self.begin:
            meta["as"] = self.begin["as"]
            meta["request"] = {name: value for name, value in self.begin["request"].items() if name != "headers"}
        return frame(RESUME, self.op, meta)

    def tell(self, event):
        if not self.cancelled:
            try:
                self.notify(event)
            except RuntimeError:  # the caller's loop is closed
                self.cancel()

    def lose(self):
        if not self.lost.is_set():
            self.lost.set()
            with contextlib.suppress(RuntimeError):  # the handler's loop is closed
                self.on_lost()

    def on_lost(self):
        """Called once, in the connection's thread. A handler's task sets its own while it runs."""


class Door:
    """The connection, and the calls in hand. Safe from any thread, and after fork()."""

    all = weakref.WeakSet()

    def __init__(self, address, timeout):
        address = address or os.environ.get("HAPAX_DOOR") or "unix:/run/hapax/door.sock"
        if not address.startswith("unix:") or len(address) == 5:
            raise Invalid(f'"{address}" is no address of a door: unix:PATH')
        if not isinstance(timeout, (int, float)) or not 0 <= timeout <= threading.TIMEOUT_MAX:
            raise Invalid(f"timeout: {timeout!r} is no number of seconds")
        self.address, self.path, self.timeout = address, address[5:], timeout
        Door.all.add(self)
        self.reset()

    def reset(self):
        """At first, and in the child of a fork: the parent's connection and calls are the parent's."""
        self.lock = threading.Lock()
        self.calls = {}  # by op, in the order of their begin: a step behind its operation
        self.last = 0
        self.thread = None
        self.socket = self.queue = None  # of a connection that was greeted; what its writer is to send
        self.closed = False

    def begin(self, meta, body, outer, notify):
        """Asks for an operation, or with `outer` for a step of that call."""
        call = Call(self, meta, body, outer, notify)
        with self.lock:
            if self.closed:
                raise StoreDown("the connection to the door is closed")
            while call.op == 0 or call.op in self.calls:
                call.op = self.last = self.last % 0xffffffff + 1
            begin = call.frame()  # one that is too large is refused here, before the call is in hand
            if self.thread is None:
                self.thread = start("hapax-door", self.run)
            self.calls[call.op] = call
            self.send(begin)
        return call

    def send(self, one):
        """With the lock. Without a connection the frame is dropped: a new one is told what matters."""
        if self.queue is not None:
            self.queue.put(one)

    def drop(self, op):
        """With the lock. The call, if it is one, is in hand no more."""
        self.calls.pop(op, None)
        if self.closed and not self.calls and self.socket:
            self.socket.shutdown(socket.SHUT_RDWR)

    def leave(self, call, error=None):
        """No ANSWER will come. The caller is given the error, or without one what its handler gave: at once, or when
        the handler that runs has ended."""
        if error and call.told is not None:
            error = Indeterminate(f"{error}; the handler ran, and its result may be stored or not")
        with self.lock:
            self.drop(call.op)
            call.over = (None, error, b"") if error else (ANSWER, {"answer": "bypass", "own": True}, b"")
            now = call.told is None or call.ended
        if error:
            call.lose()
        if now:
            call.tell(call.over)

    def close(self):
        """Takes no more calls. Those in hand go on to their end."""
        with self.lock:
            self.closed = True
            self.drop(0)

    # ---- the threads --------------------------------------------------------------------------

    def run(self):
        while True:
            try:
                connection, reader, frames = self.connect()
            except (StoreDown, Invalid) as error:
                with self.lock:
                    calls, self.calls, self.thread = self.calls, {}, None
                for call in calls.values():
                    self.leave(call, error)
                return
            with contextlib.suppress(Exception), reader:  # whatever fails, the calls go on with the next connection
                with self.lock:
                    self.socket, self.queue = connection, frames
                    calls = self.calls.values()  # ENDs last: the door would end one whose steps it does not know
                    for one in [*[call.frame() for call in calls], *[call.ended for call in calls if call.ended]]:
                        self.send(one)
                while True:
                    self.take(*read(reader))
            with self.lock:
                self.socket = self.queue = None
                alone = [call for call in self.calls.values() if call.told is not None and "ticket" not in call.told]
            with contextlib.suppress(OSError):  # the writer may have closed it
                connection.shutdown(socket.SHUT_RDWR)
            frames.put(None)
            for call in alone:  # it runs, or ran, unprotected: no other door knows of it
                self.leave(call)
            with self.lock:
                if not self.calls:
                    self.thread = None
                    return
            time.sleep(AGAIN_S)  # a door that hangs up each time is not asked for ever without a rest

    def write(self, connection, frames, beat_s):
        """The thread that alone waits for a door that does not read. No caller does so with the lock, which the reader
        needs; and no signal leaves half a frame behind."""
        with connection:
            while True:
                try:
                    one = frames.get(timeout=beat_s)
                except Empty:  # any frame counts as a beat
                    one = frame(BEAT) if self.calls else b""
                if one is None:
                    return
                try:
                    connection.sendall(one)
                except OSError:  # the reader still reads what the door said last
                    connection.shutdown(socket.SHUT_WR)

    def connect(self):
        """A connection that was greeted, its reader, and the queue of its writer. Raises StoreDown when the time is
        over, Invalid where no time helps."""
        until, why = time.monotonic() + self.timeout, "nobody listens"
        while True:
            try:
                with contextlib.ExitStack() as opened:
                    connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                    reader = opened.enter_context(connection.makefile("rb"))
                    connection.settimeout(self.timeout)
                    connection.connect(self.path)
                    beat_s, frames = self.greet(connection, reader)["beat_ms"] / 1000, SimpleQueue()
                    start("hapax-door-writer", self.write, connection, frames, beat_s)
                    opened.pop_all()
                    return connection, reader, frames
            except Invalid:
                raise
            except Exception as failed:
                why = str(failed) or why
            if time.monotonic() >= until:
                raise StoreDown(f"no door at {self.address}: {why}", retry_after=1)
            time.sleep(AGAIN_S)

    def greet(self, connection, reader):
        with contextlib.suppress(OSError):  # it may have been turned away, and then the reason is to be read
            connection.sendall(frame(HELLO, 0, {"hapax": 1, "client": f"python/{VERSION}", "pid": os.getpid()}))
        while True:
            kind, _, meta, _ = read(reader)
            if kind == WELCOME and meta.get("version") == 1:
                connection.settimeout(None)
                return meta
            if kind == WELCOME:
                raise Invalid(f"the door speaks version {meta.get('version')}, and not 1")
            if kind == FAULT and meta.get("error") in ("refused", "unsupported", "invalid"):
                raise Invalid(f"the door refuses this process: {meta.get('text')}")
            if kind == FAULT:
                raise ConnectionError(meta.get("text"))

    def take(self, kind, op, meta, body):
        if kind == FAULT and op == 0:
            raise ConnectionError(meta.get("text"))
        with self.lock:
            call = self.calls.get(op)
            if call is None:
                return
            if kind in (RUN, RECONCILE):
                call.told, call.ended, call.idle = meta, None, kind == RUN
                if call.cancelled:
                    call.give_up()
            elif kind == ANSWER:
                self.drop(call.op)
        if kind == LOST:
            call.lose()
        elif kind == FAULT:
            self.leave(call, error_of(meta))
        elif kind in (RUN, RECONCILE, ANSWER):
            call.tell((kind, meta, body))


def error_of(fault):
    return (Invalid if fault.get("error") in ("invalid", "unsupported") else StoreDown)(fault.get("text", ""))


def after_fork():
    for door in list(Door.all):
        connection = door.socket
        door.reset()
        if connection:
            os.close(connection.detach())  # this copy of it alone


os.register_at_fork(after_in_child=after_fork)
