"""A network between a server and its clients that a test can break. Each has a network namespace of its own, and the
packets between them go through this process. It drops, delays, reorders and doubles them as it is told, in each
direction by itself."""
import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import threading
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
PACKET_MAX = 65536
WAITING_MAX = 20000  # packets under way; further ones are lost, as in any network

libc = ctypes.CDLL(None, use_errno=True)


def call(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def here():
    """The namespace of this thread, as a file; what it starts is in the same one."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextlib.contextmanager
def inside(namespace):
    """This thread, and what it starts, in a namespace."""
    before = here()
    call(libc.setns(namespace, CLONE_NEWNET))
    try:
        yield
    finally:
        call(libc.setns(before, CLONE_NEWNET))
        os.close(before)


def new_namespace():
    before = here()
    call(libc.unshare(CLONE_NEWNET))
    try:
        ip("link set lo up")
        return here()
    finally:
        call(libc.setns(before, CLONE_NEWNET))
        os.close(before)


def ip(words):
    subprocess.run(["ip", *words.split()], check=True)


def tunnel(name, mine, other):
    """An interface in this thread's namespace; what is sent there can be read, and what is written there arrives."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    ip(f"addr add {mine} peer {other} dev {name}")
    ip(f"link set {name} up")
    return file


class Way:
    """One direction of a link."""

    def __init__(self, to):
        self.to = to
        self.heal()

    def heal(self):
        self.cut, self.delay_s, self.jitter_s, self.lost, self.doubled = False, 0, 0, 0, 0


class Wire:
    """with Wire(clients=3) as wire: with wire.at_server(): …; subprocess.Popen(…, preexec_fn=wire.enter(0))"""

    def __init__(self, clients):
        self.count = clients
        self.server, self.clients, self.ways, self.files = None, [], [], {}
        self.dropped = self.carried = 0

    def address(self, client):
        """The server's, for that client."""
        return f"10.9.{client}.1"

    def __enter__(self):
        self.server = new_namespace()
        for number in range(self.count):
            self.clients.append(new_namespace())
            with inside(self.server):
                near = tunnel(f"client{number}", f"10.9.{number}.1", f"10.9.{number}.2")
            with inside(self.clients[number]):
                far = tunnel("server", f"10.9.{number}.2", f"10.9.{number}.1")
            there, back = Way(near), Way(far)
            self.files[far], self.files[near] = there, back
            self.ways.append((there, back))
        self.end_out, self.end_in = os.pipe()
        self.thread = threading.Thread(target=self.carry, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        os.close(self.end_in)
        self.thread.join()
        for file in [*self.files, *self.clients, self.server, self.end_out]:
            os.close(file)

    def at_server(self):
        return inside(self.server)

    def enter(self, client):
        """For preexec_fn."""
        return lambda: call(libc.setns(self.clients[client], CLONE_NEWNET))

    def heal(self):
        for way in [way for both in self.ways for way in both]:
            way.heal()

    def send(self, way, packet):
        with contextlib.suppress(BlockingIOError):
            os.write(way.to, packet)
            self.carried += 1

    def take(self, way, packet, waiting):
        if way.cut or random.random() < way.lost or len(waiting) >= WAITING_MAX:
            self.dropped += 1
            return
        for _ in range(2 if random.random() < way.doubled else 1):
            wait_s = way.delay_s + random.random() * way.jitter_s
            if wait_s > 0:
                self.packets += 1
                heapq.heappush(waiting, (time.monotonic() + wait_s, self.packets, way, packet))
            else:
                self.send(way, packet)

    def carry(self):
        waiting, poll = [], select.poll()
        self.packets = 0
        for file in [*self.files, self.end_out]:
            poll.register(file, select.POLLIN)
        while True:
            wait_s = max(waiting[0][0] - time.monotonic(), 0) if waiting else None
            for file, _ in poll.poll(None if wait_s is None else wait_s * 1000):
                if file == self.end_out:
                    return
                with contextlib.suppress(BlockingIOError):
                    self.take(self.files[file], os.read(file, PACKET_MAX), waiting)
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, way, packet = heapq.heappop(waiting)
                self.send(way, packet)
