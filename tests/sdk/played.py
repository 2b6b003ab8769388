"""What stands between a client and a door in tests/sdk: it plays a door of a later version, a slow one, or bad luck."""
import contextlib
import json
import socket
import struct
import threading

HEAD = struct.Struct(">IBII")
BEGIN, RECONCILE, CANCEL, FAULT = 3, 6, 11, 12
NEW = {"future": {"list": [1, None, {"deep": True}]}, "vendor.member": "x" * 300, "again_and_again": None}


def take(connection, size):
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise OSError("over")
        got += more
    return got


def read(connection):
    """A frame: its kind, op, meta and body."""
    length, kind, op, meta_len = HEAD.unpack(take(connection, HEAD.size))
    meta = json.loads(take(connection, meta_len)) if meta_len else {}
    return kind, op, meta, take(connection, length - 9 - meta_len)


def say(to, kind, op, meta, body=b""):
    said = json.dumps(meta).encode()
    to.sendall(HEAD.pack(9 + len(said) + len(body), kind, op, len(said)) + said + body)


def newer(connection, to):
    """Each frame of the door with members that nobody knows, and behind it frames of kinds that nobody knows."""
    while True:
        kind, op, meta, body = read(connection)
        say(to, kind, op, {**NEW, **meta, "zz": 1}, body)
        for unknown, its_op in ((99, op), (200, 0), (77, 4000000000)):
            to.sendall(HEAD.pack(9 + 2 + 3, unknown, its_op, 2) + b"{}" + b"\xff\x00\xfe")


def by_bytes(connection, to):
    """Each byte by itself."""
    to.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    while True:
        more = connection.recv(65536)
        if not more:
            raise OSError("over")
        for byte in more:
            to.sendall(bytes([byte]))


def plain(connection, to):
    while True:
        more = connection.recv(65536)
        if not more:
            raise OSError("over")
        to.sendall(more)


class Crossing:
    """Each RECONCILE waits until the client has sent CANCEL, so that the two cross."""

    def __init__(self):
        self.held, self.cancelled = threading.Event(), threading.Event()

    def __call__(self, connection, to):
        while True:
            kind, *frame = read(connection)
            if kind == RECONCILE:
                self.held.set()
                self.cancelled.wait()
            say(to, kind, *frame)

    def back(self, connection, to):
        while True:
            kind, *frame = read(connection)
            say(to, kind, *frame)
            if kind == CANCEL:
                self.cancelled.set()


class Ending:
    """A door that ends: it takes no BEGIN."""

    def __call__(self, connection, to):
        plain(connection, to)

    def back(self, connection, to):
        while True:
            kind, op, meta, body = read(connection)
            if kind == BEGIN:
                say(connection, FAULT, op, {"error": "unavailable", "text": "the door ends", "kind": kind})
            else:
                say(to, kind, op, meta, body)


class Between:
    """Listens at `path`, and hands on to the door at `door` and back, changed by `how`."""

    def __init__(self, path, door, how):
        self.door, self.how = door, how
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                door = socket.socket(socket.AF_UNIX)
                door.connect(str(self.door))
                for args in ((getattr(self.how, "back", plain), client, door), (self.how, door, client)):
                    threading.Thread(target=self.hand_on, args=args, daemon=True).start()

    @staticmethod
    def hand_on(how, connection, to):
        with contextlib.suppress(OSError):
            how(connection, to)
        for one in (connection, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.close()


HOW = {"newer": lambda: newer, "bytes": lambda: by_bytes, "crossing": Crossing, "ending": Ending}
