"""A handler that counts its calls, and knows who made them."""
import collections
import contextlib
import socketserver
import threading
import time


class Call:
    """One that the handler was asked."""

    def __init__(self, who, key, headers):
        self.who, self.key, self.begun, self.ended, self.status = who, key, time.monotonic(), None, None
        self.attempt, self.fence = int(headers["idempotency-attempt"]), int(headers["idempotency-fence"])


class Effects(socketserver.ThreadingTCPServer):
    """A handler for thousands of calls, that knows who asks: each consumer is given a path of its own. answers(key,
    nth) is the status of the nth call for a key; takes(key) is how many seconds it is at work."""

    daemon_threads = allow_reuse_address = True
    request_queue_size = 512

    def __init__(self, answers=lambda key, nth: 200, takes=lambda key: 0, port=0):
        super().__init__(("127.0.0.1", port), Asked)
        self.answers, self.takes = answers, takes
        self.lock, self.calls, self.done = threading.Lock(), collections.defaultdict(list), set()
        self.port = self.server_address[1]
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def url(self, who="one"):
        return f"http://127.0.0.1:{self.port}/{who}"

    def counts(self):
        """How often each key was asked for."""
        with self.lock:
            return {key: len(calls) for key, calls in self.calls.items()}

    def handle_error(self, request, client_address):
        pass  # consumers die in these tests

    def close(self):
        self.shutdown()
        self.server_close()


class Asked(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True

    def handle(self):
        with contextlib.suppress(OSError):
            while line := self.rfile.readline():
                self.one(line.split()[1].decode().strip("/"))

    def one(self, who):
        headers = {}
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        self.rfile.read(int(headers.get("content-length", 0)))
        effects, key = self.server, headers["idempotency-key"].strip('"')
        call = Call(who, key, headers)
        with effects.lock:
            effects.calls[key].append(call)
            nth = len(effects.calls[key])
        time.sleep(effects.takes(key))
        call.status = effects.answers(key, nth)
        call.ended = time.monotonic()
        with effects.lock:
            if call.status == 200:
                effects.done.add(key)
        body = f"effect of {key}".encode()
        self.wfile.write(b"HTTP/1.1 %d Said\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s" %
                         (call.status, len(body), body))
