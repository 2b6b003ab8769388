"""What tests/sdk shares: a store, `hapax door` on it, and programs that speak lines of JSON."""
import collections
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time

from conftest import HAPAX, PATIENCE, read_line
from postgres_server import Postgres
from process import end_with_parent, wait_for
from redis_server import Redis

STORES = ("memory", "rocksdb", "redis", "postgres")


class Store:
    """A store of one kind; its server, where it has one, is shared by all of this process."""

    servers = {}

    def __init__(self, kind, folder):
        self.kind = kind
        if kind == "memory":
            self.uri = "memory:"
        elif kind == "rocksdb":
            self.uri = f"rocksdb:{folder}/store"
        else:
            if kind not in self.servers:
                self.servers[kind] = (Redis if kind == "redis" else Postgres)().start()
            server = self.servers[kind]
            if kind == "redis":
                self.uri = server.uri()
                subprocess.run([HAPAX, "init", "--store", self.uri], check=True, capture_output=True, timeout=PATIENCE)
            else:
                self.uri = server.uri(server.database(Postgres.initialised))

    def hapax(self, *words, **more):
        return subprocess.run([HAPAX, words[0], "--store", self.uri, *words[1:]], capture_output=True, text=True,
                              timeout=PATIENCE, **more)


class Door:
    """`hapax door` on a store, at one address for all its lives."""

    def __init__(self, store, folder, *options):
        self.store, self.options, self.socket = store, options, folder / "door.sock"
        self.log = open(folder / "door.log", "ab")
        self.process = None
        self.start()

    @property
    def address(self):
        return f"unix:{self.socket}"

    def start(self):
        if self.process is not None:
            self.process.wait(PATIENCE)
            self.process.stdout.close()
        env = {name: value for name, value in os.environ.items() if not name.startswith("HAPAX_")}
        self.process = subprocess.Popen(
            [HAPAX, "door", "--store", self.store.uri, "--listen", self.address, *self.options], env=env,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log, text=True, preexec_fn=end_with_parent)
        line = read_line(self.process)
        assert "serving" in line, f"{line!r}; {pathlib.Path(self.log.name).read_text()}"

    def kill(self, number=signal.SIGKILL, wait=True):
        self.process.send_signal(number)
        if wait:
            self.process.wait(PATIENCE)

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()
        self.log.close()


class Lines:
    """A program that takes commands and gives events, as lines of JSON."""

    def __init__(self, words, env):
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(words, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, bufsize=1, preexec_fn=end_with_parent)
        self.came, self.left = queue.Queue(), collections.deque()
        threading.Thread(target=self.read, daemon=True).start()
        self.ready = self.next("ready")

    def read(self):
        for line in self.process.stdout:
            self.came.put(json.loads(line))
        self.came.put(None)

    def send(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def next(self, kind, fits=lambda event: True):
        """The first event of this kind that fits; the others are left for later."""
        for event in self.left:
            if kind in event and fits(event):
                self.left.remove(event)
                return event
        until = time.monotonic() + PATIENCE
        while True:
            try:
                event = self.came.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {kind!r} came, but {list(self.left)}; {self.said()}") from None
            assert event is not None, f"the driver ended with {self.process.wait(PATIENCE)}: {self.said()}"
            if kind in event and fits(event):
                return event
            self.left.append(event)

    def said(self):
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-4000:]

    def rest(self):
        """What has come and was not asked for."""
        while not self.came.empty():
            self.left.append(self.came.get())
        return [event for event in self.left if event is not None]

    def kill(self, number=signal.SIGKILL):
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(PATIENCE)

    def close(self):
        """Ends it as a user would: at the end of its input."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.stdin.close()
            code = self.process.wait(PATIENCE)
            assert code == 0, f"the driver ended with {code}: {self.said()}"
        self.process.stdout.close()
        self.errors.close()


def bytes_of(port, path, key):
    """All that comes for a request, whatever its head says: the head in small letters, and what follows it."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nIdempotency-Key: {key}\r\n"
                           "Content-Length: 0\r\n\r\n".encode())
        head, _, rest = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return head.lower(), rest


def state_is(store, scope, key, state):
    def same():
        done = store.hapax("show", "--scope", scope, "--json", key)
        return done.returncode == 0 and json.loads(done.stdout)["state"] == state

    wait_for(same, f"{key} being {state}")


