"""hapax consume where its group has no rest: every second a consumer joins it, or leaves it in good order, under
traffic. Nothing is lost, and nothing comes twice. Against a real Kafka.

HAPAX_REBALANCES (8): how often one joins or leaves.
"""
import collections
import os
import random
import threading

import pytest

import topics
from conftest import PATIENCE, at_some_pace, tell_to_end, wait_until
from rabbit import Consumer, Handler
from effects import Effects
from topics import Topic, meanwhile

REBALANCES = int(os.environ.get("HAPAX_REBALANCES", 8))
MOST = 4  # at once


class Group:
    """Consumers that come and go."""

    def __init__(self, start, seed):
        self.start_one, self.draw, self.members, self.leaving = start, random.Random(seed), [], []
        self.joined = self.left = 0

    def join(self):
        self.members.append(self.start_one())
        self.joined += 1

    def leave(self):
        process = self.members.pop(self.draw.randrange(len(self.members)))
        tell_to_end(process)
        self.leaving.append(process)
        self.left += 1

    def change(self):
        if len(self.members) == 1 or (len(self.members) < MOST and self.draw.random() < .5):
            self.join()
        else:
            self.leave()

    def end(self):
        """All of them, at once."""
        for process in self.members:
            tell_to_end(process)
        for process in self.members + self.leaving:
            code = process.wait(PATIENCE)
            assert code == 0, f"exit status {code}: {process.stderr.read()}"


def storm(group, publish, pause_s=1):
    """Changes the group after each pause, while messages are published all the time; how many were."""
    second, over = threading.Event(), threading.Event()

    def traffic():
        n = 0
        while not over.is_set():
            publish(range(n, n + 20))
            n += 20
            over.wait(.1)
        return n

    group.join()
    published = meanwhile(traffic)
    try:
        for _ in range(REBALANCES):
            second.wait(pause_s)
            group.change()
    finally:
        over.set()
    return published.result()


@pytest.mark.parametrize("order", ["key", pytest.param("none", marks=pytest.mark.ci)])
def test_who_comes_and_goes_loses_and_repeats_nothing(hapax, store, order):
    """With keys: each is run once, wherever it is delivered, and all of it is committed."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    topic, draw = Topic(topics.server(), order=order), random.Random(seed)
    handler = Effects(takes=lambda key: draw.random() * .02)
    group = Group(lambda: Consumer(hapax, topic.uri(), handler.url(), store, *topic.words, ready=False).process, seed)
    try:
        n = storm(group, lambda numbers: topic.publish_keys([f"k-{i}" for i in numbers]))
        wait_until(lambda: len(handler.done) >= n, lambda: f"all keys ({len(handler.done)} of {n})")
        wait_until(lambda: not topic.left(), lambda: f"an empty topic ({topic.left()})")
        group.end()
        assert not topic.left()
        assert handler.counts() == {f"k-{i}": 1 for i in range(n)}
        print(f"{n} messages, {group.joined} joined, {group.left} left, order {order}")
    finally:
        handler.close()


def test_who_comes_and_goes_is_given_nothing_twice(hapax, store):
    """Without keys and records: what is run is what was delivered.

    Who leaves waits 5 s for its last commit. Where another member stands still for longer, the group is not joined
    within them, nothing can be committed, and what was done since the last second comes again."""
    at_some_pace(lambda pause_s: given_once(hapax, store, pause_s), 1, 3, 6)


def given_once(hapax, store, pause_s):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    topic, handler = Topic(topics.server()), Handler()
    group = Group(lambda: Consumer(hapax, topic.uri(), handler.url, store, "--no-key", "run", ready=False).process,
                  seed)
    try:
        n = storm(group, lambda numbers: topic.publish_keyless(*numbers), pause_s)
        wait_until(lambda: len(set(handler.bodies)) >= n, lambda: f"all messages ({len(set(handler.bodies))} of {n})")
        wait_until(lambda: not topic.left(), lambda: f"an empty topic ({topic.left()})")
        group.end()
        counts = collections.Counter(handler.bodies)
        twice = {body: count for body, count in counts.items() if count > 1}
        print(f"{n} messages without a key, {group.joined} joined, {group.left} left, {len(twice)} came again")
        assert not twice and not topic.left()
    finally:
        handler.close()
