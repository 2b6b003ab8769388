# SPDX-License-Identifier: Apache-2.0
"""The connection to `hapax door`, by docs/door.md. One connection for all threads of a process; it connects again when
the door was away, and says again what the new door has to know. It decides nothing about an operation."""
from __future__ import annotations

import base64
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
import weakref

from .errors import Indeterminate, Invalid, StoreDown, TooLarge

VERSION = "0.1.0"
HELLO, WELCOME, BEGIN, RESUME, RUN, RECONCILE, END, ANSWER, BEAT, LOST, CANCEL, FAULT = range(1, 13)
FRAME_MAX = 17 << 20
BODY_MAX = 16 << 20
AGAIN_S = 0.05  # between two tries to connect
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
    if length > FRAME_MAX:
        raise TooLarge(f"a frame of {length} bytes is over {FRAME_MAX}")
    return b"".join((HEAD.pack(length, kind, op, len(said)), said, body))


class Gone(Exception):
    """The connection is over."""


class Reader:
    """Frames out of what a socket gives."""

    def __init__(self):
        self.bytes = bytearray()

    def frames(self, more):
        self.bytes += more
        while len(self.bytes) >= 4:
            (length,) = struct.unpack_from(">I", self.bytes)
            if length < 9 or length > 2 * FRAME_MAX:
                raise Gone("the door sent no frame")
            if len(self.bytes) < 4 + length:
                return
            _, kind, op, meta_len = HEAD.unpack_from(self.bytes)
            if meta_len > length - 9:
                raise Gone("the door sent no frame")
            meta = json.loads(bytes(self.bytes[13:13 + meta_len])) if meta_len else {}
            body = bytes(self.bytes[13 + meta_len:4 + length])
            del self.bytes[:4 + length]
            yield kind, op, meta, body


class Call:
    """An operation or a step in hand. What comes for it is given to `notify` as (kind, meta, body); an error as
    (None, error, b"")."""

    def __init__(self, door, meta, body, outer, notify):
        self.door, self.outer, self.notify = door, outer, notify
        self.begin = {**meta, "nonce": secrets.token_hex(16)}
        self.body = body
        self.op = 0
        self.told = None  # the members of the last RUN or RECONCILE
        self.ended = None  # (meta, body) of END
        self.cancelled = False
        self.over = None  # the error that END will be answered with: the door knows nothing of the call
        self.lost = threading.Event()
        self.on_lost = None  # called once, in the connection's thread

    def end(self, meta, body=b""):
        """Says how the handler, or the hook, ended."""
        self.door.end(self, meta, body)

    def cancel(self):
        """Gives up what was not told to run. Nothing comes any more. What was told to run is `unknown`."""
        self.door.cancel(self)

    def frame(self):
        """What a new door has to be told first."""
        if self.told is None:
            meta = {**self.begin, "in": self.outer.op} if self.outer else self.begin
            return frame(BEGIN, self.op, meta, self.body)
        meta = {"ticket": self.told["ticket"], "reconciles": self.begin.get("reconciles", False)}
        if "request" in self.begin:
            meta["as"] = self.begin["as"]
            meta["request"] = {name: value for name, value in self.begin["request"].items() if name != "headers"}
        if self.outer:
            meta["in"] = self.outer.op
        return frame(RESUME, self.op, meta)

    def lose(self):
        if not self.lost.is_set():
            self.lost.set()
            if self.on_lost:
                self.on_lost()


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
        self.socket = self.thread = None  # the socket of a connection that was greeted
        self.closed = False

    def begin(self, meta, body, outer, notify):
        """Asks for an operation, or with `outer` for a step of that call."""
        call = Call(self, meta, body, outer, notify)
        with self.lock:
            if self.closed:
                raise StoreDown("the connection to the door is closed")
            self.last = self.last % 0xffffffff + 1
            while self.last in self.calls:
                self.last = self.last % 0xffffffff + 1
            call.op = self.last
            begin = call.frame()  # one that is too large is refused here, before the call is in hand
            self.calls[call.op] = call
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="hapax-door", daemon=True)
                self.thread.start()
            elif self.socket:
                self.send(begin)
        return call

    def end(self, call, meta, body):
        with self.lock:
            if call.over is None and "ticket" not in call.told and call.told.get("_at") is not self.socket:
                # It ran unprotected, at a door that is gone.
                call.over = (ANSWER, {"answer": "bypass", "own": True, "class": meta.get("class")}, b"")
            if call.over is not None:
                self.calls.pop(call.op, None)
            else:
                call.ended = (meta, body)
                if self.socket:
                    self.send(frame(END, call.op, meta, body))
        if call.over is not None:
            call.notify(call.over)

    def cancel(self, call):
        with self.lock:
            call.cancelled = True
            if self.calls.get(call.op) is not call or call.ended:
                return  # it is over, or will be
            if call.told is not None:
                call.ended = ({"class": "unknown"}, b"")
            if self.socket:
                self.send(frame(END, call.op, *call.ended) if call.ended else frame(CANCEL, call.op))
            elif call.told is None:
                del self.calls[call.op]

    def send(self, one):
        """With the lock. A failure is seen by the thread, too, which connects again."""
        try:
            self.socket.sendall(one)
        except OSError:
            pass

    def close(self):
        """Takes no more calls. Those in hand go on to their end."""
        with self.lock:
            self.closed = True
            if not self.calls and self.socket:
                self.socket.shutdown(socket.SHUT_RDWR)

    # ---- the thread ---------------------------------------------------------------------------

    def run(self):
        while True:
            try:
                connection, welcome, reader = self.connect()
            except (StoreDown, Invalid) as error:
                with self.lock:
                    calls, self.calls, self.thread = self.calls, {}, None
                return self.give_up(calls.values(), error)
            with self.lock:
                self.socket = connection
                calls = [call for call in self.calls.values()
                         if call.over is None and (call.told is None or "ticket" in call.told)]
                for call in calls:
                    self.send(call.frame())
                for call in calls:  # the door would end an operation before it knows of its steps
                    if call.ended:
                        self.send(frame(END, call.op, *call.ended))
            try:
                self.serve(connection, welcome["beat_ms"] / 1000, reader)
            except (OSError, Gone, ValueError):
                pass
            with self.lock:
                self.socket = None
                connection.close()
                if not self.calls:
                    self.thread = None
                    return

    def connect(self):
        """A connection that was greeted. Raises StoreDown when the time is over, Invalid where no time helps."""
        until, why = time.monotonic() + self.timeout, "nobody listens"
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                connection.settimeout(self.timeout)
                connection.connect(self.path)
                return (connection, *self.greet(connection))
            except Exception as failed:
                connection.close()
                if isinstance(failed, Invalid):
                    raise
                why = str(failed) or why
            if time.monotonic() >= until:
                raise StoreDown(f"no door at {self.address}: {why}", retry_after=1)
            time.sleep(AGAIN_S)

    def greet(self, connection):
        try:
            connection.sendall(frame(HELLO, 0, {"hapax": 1, "client": f"python/{VERSION}", "pid": os.getpid()}))
        except OSError:
            pass  # it may have been turned away, and then the reason is to be read
        reader = Reader()
        while True:
            more = connection.recv(65536)
            if not more:
                raise Gone("the door closed the connection")
            for kind, _, meta, _ in reader.frames(more):
                if kind == WELCOME and meta.get("version") == 1:
                    connection.settimeout(None)
                    return meta, reader
                if kind == WELCOME:
                    raise Invalid(f"the door speaks version {meta.get('version')}, and not 1")
                if kind == FAULT and meta.get("error") in ("refused", "unsupported", "invalid"):
                    raise Invalid(f"the door refuses this process: {meta.get('text')}")
                if kind == FAULT:
                    raise Gone(meta.get("text"))

    def serve(self, connection, beat_s, reader):
        due = time.monotonic() + beat_s
        for one in reader.frames(b""):  # behind WELCOME nothing is due, but it may have come
            self.take(connection, *one)
        while True:
            ready, _, _ = select.select([connection], [], [], max(0, due - time.monotonic()))
            if ready:
                more = connection.recv(1 << 20)
                if not more:
                    raise Gone("the door closed the connection")
                for one in reader.frames(more):
                    self.take(connection, *one)
            if time.monotonic() >= due:
                due = time.monotonic() + beat_s
                if self.calls and self.lock.acquire(blocking=False):  # else a frame is being sent, which counts
                    self.send(frame(BEAT))
                    self.lock.release()

    def take(self, connection, kind, op, meta, body):
        if kind == FAULT and op == 0:
            raise Gone(meta.get("text"))
        with self.lock:
            call = self.calls.get(op)
            if call is None:
                return
            if kind in (RUN, RECONCILE):
                call.told, call.ended = {**meta, "_at": connection}, None
                if call.cancelled:
                    call.ended = ({"class": "not_run" if kind == RUN else "unknown"}, b"")
                    self.send(frame(END, op, *call.ended))
            elif kind in (ANSWER, FAULT):
                if kind == FAULT and call.told is not None and call.ended is None:
                    call.over = (None, error_of(meta), b"")  # the door does not know it; the handler still runs
                else:
                    del self.calls[op]
            elif kind != LOST:
                return
            if self.closed and not self.calls:
                connection.shutdown(socket.SHUT_RDWR)
        if kind == LOST or call.over is not None:
            call.lose()
        elif kind == FAULT:
            call.notify((None, error_of(meta), b""))
        elif not call.cancelled:
            call.notify((kind, meta, body))

    def give_up(self, calls, error):
        for call in calls:
            if call.told is None:
                call.notify((None, error, b""))
                continue
            call.over = (None, Indeterminate(f"{error}; the handler ran, and its result may be stored or not"), b"")
            call.lose()
            if call.ended:
                call.notify(call.over)


def error_of(fault):
    return (Invalid if fault.get("error") in ("invalid", "unsupported") else StoreDown)(fault.get("text", ""))


def after_fork():
    for door in list(Door.all):
        connection = door.socket
        door.reset()
        if connection:
            connection.close()  # this copy of it alone


os.register_at_fork(after_in_child=after_fork)
