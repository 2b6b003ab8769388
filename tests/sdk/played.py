"""What stands between a client and a door in tests/sdk: it plays a door of a later version, or a slow one."""
import contextlib
import json
import socket
import struct
import threading

HEAD = struct.Struct(">IBII")
NEW = {"future": {"list": [1, None, {"deep": True}]}, "vendor.member": "x" * 300, "again_and_again": None}


def take(connection, size):
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise OSError("over")
        got += more
    return got


def newer(connection, to):
    """Each frame of the door with members that nobody knows, and behind it frames of kinds that nobody knows."""
    while True:
        length, kind, op, meta_len = HEAD.unpack(take(connection, HEAD.size))
        meta = json.loads(take(connection, meta_len)) if meta_len else {}
        body = take(connection, length - 9 - meta_len)
        said = json.dumps({**NEW, **meta, "zz": 1}).encode()
        to.sendall(HEAD.pack(9 + len(said) + len(body), kind, op, len(said)) + said + body)
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
                for args in ((plain, client, door), (self.how, door, client)):
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


HOW = {"newer": newer, "bytes": by_bytes}
