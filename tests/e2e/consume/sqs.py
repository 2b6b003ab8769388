"""What the tests of the message door share for SQS: one stand-in for all of them (tests/servers/sqs_server.py), and
queues with the face of those in rabbit.py, so that the same tests run on both."""
import atexit
import itertools
import os
import sys
import time

import pytest

import rabbit
from conftest import ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
import sqs_server  # noqa: E402

KEYS = sqs_server.KEYS
servers = []
numbers = itertools.count(1)


def server():
    """The one server of this process; a test that breaks servers starts its own."""
    if not servers:
        servers.append(sqs_server.Sqs().start())
        atexit.register(servers[0].end)
    return servers[0]


def make_queue(kind, hapax, broker=None):
    """A queue of either kind, at the shared broker or another."""
    if kind == "rabbitmq":
        return rabbit.Queue(broker or rabbit.server())
    hapax.env.update(KEYS)
    return Queue(broker or server())


both = pytest.mark.parametrize("queue", ["rabbitmq", "sqs"], indirect=True)


def attribute(value):
    return {"DataType": "String", "StringValue": str(value)}


class Queue:
    """A queue that is there. Its polls are short, and so is the time for which messages are hidden."""

    keyless = "bad_key"  # what a message that names no key of use is refused for: each has an id here
    kind = "sqs"

    def __init__(self, broker, name=None, fifo=False, **attributes):
        self.broker, self.fifo = broker, fifo
        self.name = name or f"q{os.getpid()}-{next(numbers)}{'.fifo' if fifo else ''}"
        self.url = broker.make_queue(self.name, **attributes)

    def uri(self, port=None, **parameters):
        return self.broker.uri(self.name, port=port, **{"wait": "1s", "visibility": "6s", **parameters})

    def beside(self, what):
        """A queue that Hapax makes, or has made."""
        queue = object.__new__(Queue)
        stem = self.name.removesuffix(".fifo")
        queue.broker, queue.fifo, queue.name = self.broker, self.fifo, f"{stem}-{what}{'.fifo' if self.fifo else ''}"
        return queue

    @property
    def dead(self):
        return self.beside("dead")

    @property
    def parked(self):
        return self.beside("parked")

    def missing(self):
        return self.broker.uri("no-such-queue", wait="1s")

    def send(self, body, group=None, deduplication=None, **attributes):
        order = {"MessageGroupId": group or "g",
                 "MessageDeduplicationId": deduplication or f"d{next(numbers)}"} if self.fifo else {}
        return self.broker.ask("SendMessage", QueueUrl=self.url, MessageBody=str(body),
                               MessageAttributes={name: attribute(value) for name, value in attributes.items()},
                               **order)["MessageId"]

    def publish(self, *bodies, id=None, group=None, **headers):
        for body in bodies:
            self.send(body, group, **{"message-id": id or f"id-{body}", **headers})

    def publish_keyless(self, body):
        self.send(body, **{"Idempotency-Key": "k" * 300})

    def publish_keys(self, keys):
        for i in range(0, len(keys), 10):
            entries = [{"Id": str(n), "MessageBody": f'{{"order": "{key}"}}',
                        "MessageAttributes": {"message-id": attribute(key)}}
                       for n, key in enumerate(keys[i:i + 10])]
            if self.fifo:
                for entry, key in zip(entries, keys[i:i + 10]):
                    entry.update(MessageGroupId=key.split(":")[0], MessageDeduplicationId=f"d{next(numbers)}")
            answer = self.broker.ask("SendMessageBatch", QueueUrl=self.url, Entries=entries)
            assert not answer["Failed"], answer

    def inside(self):
        """Messages by state: ready, delayed, inflight; None: there is no such queue."""
        return self.broker.inside(self.name)

    def ready(self):
        """How many messages wait in it, those that are visible; -1: there is no such queue."""
        inside = self.inside()
        return len(inside["ready"]) + sum(one["visibilityDeadline"] < time.time() * 1000
                                          for one in inside["inflight"]) \
            if inside else -1

    def wait_ready(self, n):
        wait_until(lambda: self.ready() == n, lambda: f"{n} messages in {self.name} (now {self.ready()})")

    def take(self):
        """All that is ready: (body, headers) of each."""
        url, found = self.broker.ask("GetQueueUrl", QueueName=self.name)["QueueUrl"], []
        while taken := self.broker.ask("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10,
                                       MessageAttributeNames=["All"]).get("Messages"):
            for one in taken:
                self.broker.ask("DeleteMessage", QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
                found.append((one["Body"],
                              {name: value["StringValue"] for name, value in one.get("MessageAttributes", {}).items()}))
        return found

    def left(self):
        """What is anywhere: visible or in flight, dead or parked."""
        counts = {}
        for queue in (self, self.dead, self.parked):
            inside = queue.inside()
            if inside and any(inside.values()):
                counts[queue.name] = sum(map(len, inside.values()))
        return counts

    def stumble(self):
        """What a broker in memory can do in the way of dying: it stands still for a moment."""
        self.broker.stop()
        time.sleep(.5)
        self.broker.cont()
