"""Stores whose clients are behind a network of their own that breaks, and what is done to them, for test_histories.py
and tests/e2e/cli/test_cut_off.py.

HAPAX_HISTORY_S is for how long each case is attacked: 8 s, and longer until each fault was there; in `make soak` a
minute."""
import collections
import contextlib
import os
import random
import signal
import subprocess
import time

from conftest import HAPAX, PATIENCE
from dynamodb_server import KEYS, DynamoDB
from postgres_server import Postgres
from process import Server, signal_each, wait_for
from redis_server import Redis

SECONDS = float(os.environ.get("HAPAX_HISTORY_S", "8"))
CLIENTS = 5
KEY_MS = 500  # for so long a key is the newest (history.c)
SKEW_MS = 1000  # DynamoDB's, where the clients' clocks judge
HOUR_S = 3600

# ---- servers -------------------------------------------------------------------------------


class NetPostgres(Postgres):
    """Reached over the wire."""

    def format(self):
        super().format()
        with open(self.data / "pg_hba.conf", "a", encoding="utf-8") as file:
            file.write("host all all 10.9.0.0/16 trust\n")


class Keeper(Server):
    """The gate's workers are doors at it."""

    name = "keeper"

    def __init__(self):
        super().__init__()
        self.folder.chmod(0o711)

    def choose_ports(self):
        self.port = 0

    def command(self):
        return [HAPAX, "keep", "--store", f"rocksdb:{self.folder}/store", "--listen", f"unix:{self.folder}/socket",
                *(["--group", "www-data"] if os.geteuid() == 0 else [])]

    def answers(self):
        return (self.folder / "socket").exists()


class Kind:
    """A store: its servers, which are killed and stopped, and its URI for a client."""

    clock_s = HOUR_S  # by how much a client's clock may be off
    skew_ms = 0
    hinted = []  # IN_FLIGHT may come from a hint (docs/design.md)
    env = {}

    def __init__(self, stack, wire):
        self.wire, self.servers = wire, self.start(stack)

    def local(self):
        return self.uri("127.0.0.1")

    def init(self):
        patient = self.local().replace("timeout=500ms", "timeout=30s")  # no client is to be cut off yet
        subprocess.run([HAPAX, "init", "--store", patient], check=True, capture_output=True, timeout=PATIENCE,
                       env={**os.environ, **self.env})


class OfRedis(Kind):
    def start(self, stack):
        return [stack.enter_context(Redis(bind="0.0.0.0", appendonly="yes", appendfsync="always")).start()]

    def uri(self, host):
        return f"redis://{host}:{self.servers[0].port}?timeout=500ms"


class OfPostgres(Kind):
    def start(self, stack):
        self.servers = [stack.enter_context(NetPostgres(listen_addresses="*")).start()]
        self.init()
        return self.servers

    def uri(self, host):
        return f"postgresql://postgres@{host}:{self.servers[0].port}/postgres?timeout=500ms"


class OfHybrid(OfPostgres):
    hinted = ["hinted"]

    def start(self, stack):
        self.cache = stack.enter_context(Redis(bind="0.0.0.0")).start()
        return [*super().start(stack), self.cache]

    def uri(self, host):
        return f"hybrid:redis://{host}:{self.cache.port}+{super().uri(host)}"


class OfDynamodb(Kind):
    clock_s, skew_ms, env = SKEW_MS / 1000 / 2 - 0.1, SKEW_MS, KEYS

    def start(self, stack):
        self.servers = [stack.enter_context(DynamoDB(kept=True)).start()]
        self.init()
        return self.servers

    def uri(self, host):
        endpoint = f"http://{host}:{self.servers[0].port}"
        return f"dynamodb://eu-central-1/hapax?endpoint={endpoint}&timeout=500ms&skew={SKEW_MS}ms"


class OfKeeper(Kind):
    """No network is between: its clients and itself are killed and stopped."""

    def start(self, stack):
        return [stack.enter_context(Keeper()).start()]

    def uri(self, _):
        return f"unix:{self.servers[0].folder}/socket?timeout=500ms"


KINDS = [OfRedis, OfPostgres, OfHybrid, OfDynamodb, OfKeeper]

# ---- faults --------------------------------------------------------------------------------------


@contextlib.contextmanager
def standing(server):
    server.stop()
    try:
        yield
    finally:
        server.cont()


@contextlib.contextmanager
def stopped(client):
    pids = client.pids()
    signal_each(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_each(pids, signal.SIGCONT)


@contextlib.contextmanager
def killed_server(server):
    server.kill()
    yield
    server.launch()


@contextlib.contextmanager
def killed(client):
    client.kill()
    yield
    client.begin()


@contextlib.contextmanager
def network(wire, ways, **faults):
    for way in ways:
        vars(way).update(faults)
    try:
        yield
    finally:
        wire.heal()


def faults(kind, clients):
    """Names, and what makes each a context, anew for each time."""
    wire, one = kind.wire, lambda: random.choice(clients)
    every = [way for both in wire.ways for way in both]
    found = {
        "a client killed, and one with another clock begun": lambda: killed(one()),
        "a client stopped": lambda: stopped(one()),
        "the server killed": lambda: killed_server(random.choice(kind.servers)),
        "the server stopped": lambda: standing(random.choice(kind.servers)),
    }
    if not isinstance(kind, OfKeeper):
        found |= {
            "a client cut off": lambda: network(wire, wire.ways[one().number], cut=True),
            "requests cut off": lambda: network(wire, wire.ways[one().number][:1], cut=True),
            "replies cut off": lambda: network(wire, wire.ways[one().number][1:], cut=True),
            "all cut off": lambda: network(wire, every, cut=True),
            "packets lost and doubled": lambda: network(wire, every, lost=0.2, doubled=0.1),
            "packets late, and out of order": lambda: network(wire, every, delay_s=0.02, jitter_s=0.2),
        }
    return found


def attack(kind, clients, shown):
    """Each fault in turn, in an order of chance, again and again; how often each was there. Then all is well until
    shown() says that enough was asked: a store that starts anew answers little while its process is slow."""
    ends = time.monotonic() + SECONDS
    left, counts = [], collections.Counter()
    while time.monotonic() < ends or left:
        if not left:
            left = list(faults(kind, clients).items())
            random.shuffle(left)
        name, begin = left.pop()
        with begin():
            counts[name] += 1
            time.sleep(random.uniform(0.1, 1.2))
        time.sleep(random.uniform(0.1, 0.5))
    wait_for(shown, "enough answers", pause=0.2)
    return counts


def newest_key():
    return int(time.monotonic() * 1000) // KEY_MS
