"""Gates and consumers over a move from Redis to PostgreSQL (docs/moving.md), under load, while each of them is killed
again and again: they are given the old store, then both, and then the new one."""
import contextlib
import itertools
import random
import threading

import pytest
import rabbit  # it makes tests/servers known
from conftest import PATIENCE, end
from effects import Effects
from postgres_server import Postgres
from process import wait_for
from redis_server import Redis
from test_upgrade import LEASE_S, NEW, Door, Load, judge, kills

pytestmark = pytest.mark.ci
REPEATS_OF = 20  # the newest messages


class Given:
    """The store that a gate has."""

    env = {}

    def __init__(self, uri):
        self.uri = uri


class Shop:
    """A consumer, its queue, and a producer that never stops. A third of its messages are repeats."""

    def __init__(self, hapax, store):
        self.hapax, self.store, self.killed, self.process = hapax, store, 0, None
        self.queue = rabbit.Queue(rabbit.server())
        self.handler = Effects(takes=lambda key: .2)  # so that a kill mostly meets one that runs
        self.keys, self.over = [], threading.Event()
        self.start()
        self.thread = threading.Thread(target=self.produce, daemon=True)
        self.thread.start()

    def start(self):
        self.process = rabbit.Consumer(self.hapax, self.queue.uri(), self.handler.url(), self.store, "--on-expired",
                                       "hold", "--lease", f"{LEASE_S}s", "--scope", "shop", ready=False).process

    def produce(self):
        for n in itertools.count():
            if self.over.wait(.1):
                return
            new = f"m{n}" if n % 3 or not self.keys else random.choice(self.keys[-REPEATS_OF:])
            self.queue.publish_keys([new], at_once=1)
            if n % 3 or not self.keys:
                self.keys.append(new)

    def served(self):
        enough = len(self.handler.done) + 10
        wait_for(lambda: len(self.handler.done) >= enough, "ten messages more", 3 * PATIENCE)

    def give(self, store):
        self.process.kill()
        self.process.communicate()
        self.killed += 1
        self.store = store
        self.start()

    def judge(self):
        """Each message had its effect once. Those that a kill met wait for an operator, and are parked."""
        self.over.set()
        self.thread.join(PATIENCE)
        wait_for(lambda: not {name for name in self.queue.left() if name != self.queue.parked.name}, "an empty queue",
                 3 * PATIENCE)
        assert end(self.process) == 0
        counts = self.handler.counts()
        assert set(counts.values()) == {1}, counts
        parked = {body for body, _ in self.queue.parked.take()} if self.queue.left() else set()
        lost = [key for key in self.keys if key not in self.handler.done and f'{{"order": "{key}"}}' not in parked]
        assert not lost
        print(f"{len(counts)} messages of {len(self.keys)}, {len(parked)} parked, {self.killed} kills")

    def close(self):
        self.over.set()
        self.process.kill()
        self.process.communicate()
        self.handler.close()


def test_gates_and_consumers_are_moved(hapax, tmp_path):
    """No effect twice, and each repeat gets the first answer."""
    effects = tmp_path / "effects"
    effects.touch()
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Redis()).start().uri()
        new = stack.enter_context(Postgres()).start().uri()
        both = f"move:{old}+{new}"
        assert hapax("init", "--store", both).code == 0
        doors = [Door(Given(old), number, effects, "hold") for number in range(2)]
        for door in doors:
            stack.callback(door.end)
            door.start(NEW)
        shop = Shop(hapax, old)
        stack.callback(shop.close)
        load = Load(doors)
        kills(load, doors)
        for store in (both, new):
            for door in doors:
                load.served(*doors)
                door.kind.uri = store
                door.restart(NEW)
            for _ in range(3):
                shop.served()
                shop.give(store)
            if store == both:
                copied = hapax("copy", "--live", "--from", old, "--to", new, "--wait", "1m", "--json")
                assert copied.code == 0, copied.out + copied.err
            kills(load, doors)
            shop.served()
        judge(load, effects, "hold", doors[0])
        shop.judge()
