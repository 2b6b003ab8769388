"""A client of hapax door (docs/door.md), frame by frame: it says what a test tells it and nothing else."""
import contextlib
import json
import os
import socket
import struct
import time

from process import PATIENCE

KINDS = ("HELLO WELCOME BEGIN RESUME RUN RECONCILE END ANSWER BEAT LOST CANCEL FAULT").split()


class Frame:
    def __init__(self, kind, op, meta, body):
        self.kind, self.op, self.meta, self.body = kind, op, meta, body

    def __getattr__(self, name):
        """A member; None where there is none."""
        return self.meta.get(name)

    def __repr__(self):
        return f"{self.kind} {self.op} {self.meta} {self.body[:80]!r}"


def encode(kind, op=0, meta=None, body=b""):
    number = KINDS.index(kind) + 1 if isinstance(kind, str) else kind
    text = meta if isinstance(meta, bytes) else b"" if meta is None else json.dumps(meta).encode()
    return struct.pack(">IBII", 9 + len(text) + len(body), number, op, len(text)) + text + body


class Client:
    """One connection. begin(), end() … send a frame; wait() gives the next frame of an op."""

    def __init__(self, path, hello=True):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(str(path).removeprefix("unix:"))
        self.left, self.frames, self.op = b"", [], 0
        self.beats = False  # while it waits for a frame
        if hello:
            self.send("HELLO", 0, {"hapax": 1, "client": "test/1"})
            self.welcome = self.wait(0)
            assert self.welcome.kind == "WELCOME", self.welcome

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send(self, kind, op=0, meta=None, body=b""):
        self.socket.sendall(encode(kind, op, meta, body))

    def read(self, size):
        deadline = time.monotonic() + PATIENCE
        self.socket.settimeout(self.welcome.beat_ms / 1000 if self.beats else PATIENCE)
        while len(self.left) < size:
            try:
                more = self.socket.recv(max(65536, size - len(self.left)))
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
                self.beat()
                continue
            if not more:
                raise EOFError
            self.left += more
        taken, self.left = self.left[:size], self.left[size:]
        return taken

    def receive(self):
        length, kind, op, meta_len = struct.unpack(">IBII", self.read(13))
        assert 9 + meta_len <= length
        rest = self.read(length - 9)
        return Frame(KINDS[kind - 1], op, json.loads(rest[:meta_len] or b"{}"), rest[meta_len:])

    def wait(self, op, kind=None):
        """The next frame of this op. kind: it must be this."""
        frame = next((f for f in self.frames if f.op == op), None)
        if frame:
            self.frames.remove(frame)
        else:
            while (frame := self.receive()).op != op:
                self.frames.append(frame)
        assert kind in (None, frame.kind), frame
        return frame

    def ended(self):
        """Whether the door closes the connection, after the frames that it still sends."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self.frames.append(self.receive())
        return True

    def begin(self, key="k", body=b"", **members):
        """body: of the frame; where it is a text, the member of that name."""
        self.op += 1
        if isinstance(body, str):
            members["body"], body = body, b""
        meta = {"scope": "test", "nonce": os.urandom(16).hex(), **members}
        if key is not None:
            meta["key"] = key
        self.send("BEGIN", self.op, meta, body)
        return self.op

    def step(self, outer, name, **members):
        self.op += 1
        self.send("BEGIN", self.op, {"step": name, "in": outer, **members})
        return self.op

    def run(self, key="k", body=b"", **members):
        """BEGIN that is told to run: the RUN frame."""
        return self.wait(self.begin(key, body, **members), "RUN")

    def end(self, op, cls="final", body=b"", **members):
        self.send("END", op, {"class": cls, **members} if cls else members, body)

    def finish(self, op, cls="final", body=b"", **members):
        self.end(op, cls, body, **members)
        return self.wait(op, "ANSWER")

    def once(self, key="k", result=b"done", **members):
        """BEGIN, and where it may run END with this result: the ANSWER."""
        op = self.begin(key, **members)
        frame = self.wait(op)
        if frame.kind == "RUN":
            return self.finish(op, body=result)
        assert frame.kind == "ANSWER", frame
        return frame

    def beat(self):
        self.send("BEAT")
