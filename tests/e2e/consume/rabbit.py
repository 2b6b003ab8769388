"""What the tests of the message door share: one RabbitMQ for all of them, queues of its own for each, a handler that
does as it is told, and `hapax consume` before it."""
import atexit
import concurrent.futures
import contextlib
import itertools
import os
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pika

from conftest import PATIENCE, ROOT, read_line, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
import rabbitmq_server  # noqa: E402

servers = []
numbers = itertools.count(1)


def server():
    """The one server of this process; a test that breaks servers starts its own."""
    if not servers:
        servers.append(rabbitmq_server.RabbitMQ().start())
        atexit.register(servers[0].end)
    return servers[0]


def connect(broker):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", broker.port, socket_timeout=PATIENCE,
                                                             stack_timeout=PATIENCE))


class Queue:
    """A queue that is there, and what a test does at it. Each call has a connection of its own. sqs.py has another with
    the same face."""

    keyless = "no_key"  # what a message that names no key of use is refused for
    kind = "rabbitmq"

    def __init__(self, broker, name=None, **arguments):
        self.broker, self.name = broker, name or f"q{os.getpid()}-{next(numbers)}"
        wait_until(lambda: self.declare({"x-queue-type": "quorum", **arguments}), f"queue {self.name}")

    def declare(self, arguments):
        """False where a quorum queue has not come about within RabbitMQ's five seconds: that may be asked for again."""
        try:
            with self.channel() as channel:
                return bool(channel.queue_declare(self.name, durable=True, arguments=arguments))
        except pika.exceptions.ConnectionClosedByBroker as error:
            if error.reply_code != 541:  # an internal error
                raise
            return False

    @contextlib.contextmanager
    def channel(self):
        connection = connect(self.broker)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    def uri(self, port=None, **parameters):
        return self.broker.uri(queue=self.name, port=port, **parameters)

    @property
    def dead(self):
        return self.beside(f"{self.name}.dead")

    @property
    def parked(self):
        return self.beside(f"{self.name}.parked")

    def beside(self, name):
        """A queue that Hapax makes, or has made."""
        queue = object.__new__(Queue)
        queue.broker, queue.name = self.broker, name
        return queue

    def publish(self, *bodies, id=None, **headers):
        with self.channel() as channel:
            for body in bodies:
                properties = pika.BasicProperties(delivery_mode=2, message_id=id or f"id-{body}",
                                                  headers=headers or None)
                channel.basic_publish("", self.name, str(body).encode(), properties, mandatory=True)

    def publish_keyless(self, body):
        with self.channel() as channel:
            channel.basic_publish("", self.name, str(body).encode())

    def publish_keys(self, keys, at_once=4):
        """Messages of these ids; each is confirmed when this returns."""

        def some(keys):
            with self.channel() as channel:
                for key in keys:
                    channel.basic_publish("", self.name, f'{{"order": "{key}"}}'.encode(),
                                          pika.BasicProperties(delivery_mode=2, message_id=key), mandatory=True)

        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            list(pool.map(some, [keys[i::at_once] for i in range(min(at_once, len(keys)))]))

    def left(self):
        """All messages: in the queue or not acknowledged, among its retries, dead or parked."""
        counts = {name: n for name, n in self.broker.queues().items() if f"{name}.".startswith(f"{self.name}.")}
        assert self.name in counts, counts
        return {name: n for name, n in counts.items() if n}

    def make_retries(self, *pauses_s):
        """As one makes them oneself, so that none is made just before the broker is killed (keep_queues() says why)."""
        with self.channel() as channel:
            for s in pauses_s:
                channel.queue_declare(f"{self.name}.retry.{s}", durable=True, arguments={
                    "x-queue-type": "quorum", "x-message-ttl": 1000 * s, "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": self.name, "x-dead-letter-strategy": "at-least-once",
                    "x-overflow": "reject-publish"})

    def stumble(self):
        """What a broker does in the way of dying."""
        self.broker.keep_queues()
        self.broker.restart()

    def missing(self):
        """The URI of a queue that is not there."""
        return self.broker.uri(queue="no-such-queue")

    def ready(self):
        """How many messages wait in it; -1: there is no such queue."""
        try:
            with self.channel() as channel:
                return channel.queue_declare(self.name, passive=True).method.message_count
        except pika.exceptions.ChannelClosedByBroker:
            return -1

    def wait_ready(self, n):
        wait_until(lambda: self.ready() == n, lambda: f"{n} messages in {self.name} (now {self.ready()})")

    def take(self):
        """All that is ready: (body, headers) of each."""
        found = []
        with self.channel() as channel:
            while True:
                method, properties, body = channel.basic_get(self.name, auto_ack=True)
                if method is None:
                    return found
                found.append((body.decode(), properties.headers or {}))


class Handler:
    """An HTTP service. answers(body) says the status, or the status and headers; None: it hangs up. Without it, 200."""

    def __init__(self, answers=lambda body: 200):
        self.answers = answers
        self.calls = []  # (body, headers) of each, when it came
        self.lock = threading.Lock()
        handler = self

        class Posts(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                with handler.lock:
                    handler.calls.append((body, dict(self.headers)))
                answer = handler.answers(body)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            do_GET = do_POST

            def log_message(self, *args):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512  # who does not fit is heard again a second later, or three

        self.server = Server(("127.0.0.1", 0), Posts)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/messages"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def bodies(self):
        with self.lock:
            return [body for body, _ in self.calls]

    def wait_calls(self, n):
        wait_until(lambda: len(self.bodies) >= n, f"{n} calls")

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def publish_as_a_proxy(queue):
    """A message with headers that proxies set, and handlers believe."""
    queue.publish("one", **{"X-Remote-User": "admin", "X-Client-Cert": "CN=admin", "X_Tenant": "1", "X-Tenant": "7",
                            "Authorization": "Bearer admin", "traceparent": "00-1-2-01"})


def assert_a_producer_is_nobody(handler):
    """After publish_as_a_proxy() and `hapax consume --pass-header x-tenant`."""
    handler.wait_calls(1)
    names = {name.lower(): value for name, value in handler.calls[0][1].items()}
    assert not {"x-remote-user", "x-client-cert", "x_tenant", "authorization"} & set(names)
    assert names["hapax-header-x-remote-user"] == "admin" and names["hapax-header-x-client-cert"] == "CN=admin"
    assert names["hapax-header-x_tenant"] == "1"
    assert names["x-tenant"] == "7" and names["traceparent"] == "00-1-2-01"
    assert "hapax-header-authorization" not in names


class Consumer:
    """A hapax consume that is connected."""

    def __init__(self, hapax, source, to, store, *words, ready=True, **env):
        self.process = hapax.start("consume", "--from", source, "--to", to, "--store", store, "--metrics",
                                   "127.0.0.1:0", *words, **env)
        self.line = read_line(self.process) if ready else ""
        assert self.line or not ready, self.process.stderr.read()
        for word in self.line.replace('"', " ").replace(";", " ").replace(",", " ").split():
            if word.endswith("/metrics"):
                self.base = word.removesuffix("/metrics")

    def get(self, path):
        try:
            with urllib.request.urlopen(self.base + path, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.split(" ")[0] == name:
                return float(line.split(" ")[1])
        return None

    def wait_metric(self, name, value):
        wait_until(lambda: self.metric(name) == value, lambda: f"{name} {value}: {self.metric(name)}")
