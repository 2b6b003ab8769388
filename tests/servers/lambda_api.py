"""A fake of the Lambda Runtime API, and of the sandbox that a function runs in.

It is a fake: what AWS says of the API and what its runtime clients rely on, written down once more, and not AWS's own
code. One Api is one sandbox's: it hands out events one at a time, takes what is posted, and keeps every call in the
order of its coming. What no runtime may do is kept as `misuse`, which a test looks at in the end. A Sandbox is the
process group that is started on an Api; it is killed, frozen and thawed as a whole, as Lambda does between two
invocations.

    with Api() as api, Sandbox(api, [HAPAX, "lambda", …], folder, env) as sandbox:
        answer = api.invoke({"id": "k"}).wait()
        with api.hold("response") as held:      # what is posted is not taken until held.go()
            again = api.invoke({"id": "k"})
            held.wait()
            sandbox.kill()
"""
import contextlib
import itertools
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
import uuid

from process import PATIENCE, NotReady, family_of, minder, signal_each, wait_for

RESPONSE_MAX = 6 * 1024 * 1024 + 100  # bytes that are taken of a response; Lambda's limit
RUNTIME = "/2018-06-01/runtime/"
KINDS = [  # what a call is, by method and path
    ("next", "GET", RUNTIME + "invocation/next"),
    ("response", "POST", RUNTIME + "invocation/([^/]+)/response"),
    ("error", "POST", RUNTIME + "invocation/([^/]+)/error"),
    ("init_error", "POST", RUNTIME + "init/error"),
    ("restore_next", "GET", RUNTIME + "restore/next"),
    ("restore_error", "POST", RUNTIME + "restore/error"),
    ("register", "POST", "/2020-01-01/extension/register"),
    ("extension_next", "GET", "/2020-01-01/extension/event/next"),
]
REASONS = {200: "OK", 202: "Accepted", 400: "Bad Request", 403: "Forbidden", 404: "Not Found", 410: "Gone",
           413: "Payload Too Large", 500: "Internal Server Error"}


class Lost(Exception):
    """The connection ended amid a request, or is to end without an answer."""


class Died:
    """What becomes of an invocation whose sandbox is gone."""

    kind, body = "died", b""

    def __repr__(self):
        return "died"


class Call:
    """One request, from when its head was read. Body and trailers grow; `over` is set once it was answered."""

    def __init__(self, method, path, headers):
        self.method, self.path, self.fields, self.at = method, path, headers, time.monotonic()
        self.kind, self.id = "other", None
        for kind, verb, pattern in KINDS:
            found = re.fullmatch(pattern, path.partition("?")[0])
            if verb == method and found:
                self.kind, self.id = kind, (found.groups() or (None,))[0]
        self.headers = {name.lower(): value for name, value in headers}
        self.body, self.trailers, self.whole = b"", {}, False
        self.status, self.over = None, threading.Event()

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error_type(self):
        """Of an error: as its header says."""
        return self.headers.get("lambda-runtime-function-error-type")

    @property
    def streaming(self):
        return self.headers.get("lambda-runtime-function-response-mode") == "streaming"

    def __repr__(self):
        return f"<{self.kind} {self.id or self.path} {self.status} {self.body[:200]!r}>"


class Invocation:
    """An event on its way, and what became of it: the Call that answered, or Died."""

    def __init__(self, id, body, headers, deadline_s):
        self.id, self.body, self.headers, self.deadline_s = id, body, headers, deadline_s
        self.given, self.finished, self.answer = threading.Event(), threading.Event(), None
        self.given_at = self.finished_at = None

    def finish(self, answer):
        if not self.finished.is_set():
            self.answer, self.finished_at = answer, time.monotonic()
            self.finished.set()

    def wait(self, seconds=PATIENCE):
        assert self.finished.wait(seconds), f"the invocation {self.id} was not answered"
        return self.answer


class Hold:
    """A call of a kind that waits until it may go on: with nothing taken of what it says, or with `taken`, without an
    answer."""

    def __init__(self, times, taken):
        self.times, self.taken, self.reached, self.may = times, taken, threading.Event(), threading.Event()

    def __call__(self, _):
        self.reached.set()
        self.may.wait()

    def wait(self):
        assert self.reached.wait(PATIENCE), "no such call came"

    def go(self):
        self.may.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go()


class Answer:
    """A status in the place of the service's own; with `taken`, after it has done what it was asked."""

    def __init__(self, times, status, body, taken):
        self.times, self.status, self.body, self.taken = times, status, body, taken

    def __call__(self, _):
        return self.status, self.body


class Reset:
    """The connection ends by RST; with `taken`, after it has done what it was asked. wait(): until one did."""

    def __init__(self, times, taken):
        self.times, self.taken, self.done = times, taken, threading.Event()

    def __call__(self, _):
        self.done.set()
        raise Lost


class Api:
    """The Runtime API of one sandbox. chunked: events come so, as large ones do; lower: names of headers are in lower
    case; at_once: so many invocations run beside each other."""

    def __init__(self, chunked=False, lower=False, at_once=1):
        self.chunked, self.lower, self.at_once = chunked, lower, at_once
        self.lock = threading.Condition()
        self.queue, self.running, self.calls, self.misuse = [], {}, [], []
        self.rules, self.connections, self.incarnation = {}, {}, 0
        self.numbers = itertools.count(1)
        self.extension_events, self.extensions = [], []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(OSError):  # wakes accept(), which else may go on at whatever has its number next
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for rule in self.rules.values():
            if isinstance(rule, Hold):
                rule.go()
        self.forget()

    # ---- what a test does ---------------------------------------------------------------

    def invoke(self, event, id=None, deadline_s=30, **headers):
        """Queues an event: bytes as they are, else as JSON. A retry has the id of what it repeats."""
        body = event if isinstance(event, bytes) else json.dumps(event).encode()
        invocation = Invocation(id or str(uuid.uuid4()), body, headers, deadline_s)
        with self.lock:
            self.queue.append(invocation)
            self.lock.notify_all()
        return invocation

    def hold(self, kind, taken=False):
        return self.rule(kind, Hold(1, taken))

    def answer_with(self, kind, status, body=b'{"errorType":"Fake","errorMessage":"as told"}', times=1, taken=False):
        return self.rule(kind, Answer(times, status, body, taken))

    def reset(self, kind, times=1, taken=False):
        return self.rule(kind, Reset(times, taken))

    def rule(self, kind, rule):
        self.rules[kind] = rule
        return rule

    def forget(self):
        """The sandbox is gone: what ran has died, and its connections are closed."""
        with self.lock:
            self.incarnation += 1
            for invocation in self.running.values():
                invocation.finish(Died())
            self.running = {}
            connections = list(self.connections)
            self.lock.notify_all()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def of(self, *kinds):
        """The calls so far of some kinds."""
        with self.lock:
            return [call for call in self.calls if call.kind in kinds]

    def wait_calls(self, kind, count=1):
        wait_for(lambda: len(self.of(kind)) >= count, f"{count} calls of {kind}", pause=0.002)
        return self.of(kind)

    # ---- HTTP -----------------------------------------------------------------------------

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self.lock:
                    self.connections[connection] = self.incarnation
                threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection):
        incoming = connection.makefile("rb", 1 << 16)
        try:
            while call := self.read_head(incoming):
                self.one(connection, incoming, call)
        except (Lost, OSError, ValueError):
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        finally:
            with self.lock:
                self.connections.pop(connection, None)
            with contextlib.suppress(OSError):
                incoming.close()
                connection.close()

    def read_head(self, incoming):
        line = incoming.readline(65536)
        if not line:
            return None
        method, path, _ = line.decode("latin-1").split()
        headers = []
        while (line := incoming.readline(65536)) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        return Call(method, path, headers)

    def read_body(self, connection, incoming, call):
        if call.headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if call.headers.get("transfer-encoding", "").lower() != "chunked":
            length = int(call.headers.get("content-length", 0))
            call.body = incoming.read(length)
            if len(call.body) < length:
                raise Lost
        else:
            self.read_chunks(incoming, call)
        call.whole = True

    def read_chunks(self, incoming, call):
        call.body = bytearray()
        while True:
            line = incoming.readline(1024)
            if not line:
                raise Lost
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            piece = incoming.read(size + 2)
            if len(piece) < size + 2:
                raise Lost
            call.body += memoryview(piece)[:-2]
        call.body = bytes(call.body)
        while (line := incoming.readline(65536)) != b"\r\n":
            if not line:
                raise Lost
            name, _, value = line.decode("latin-1").partition(":")
            call.trailers[name.lower()] = value.strip()

    def take_rule(self, kind):
        with self.lock:
            rule = self.rules.get(kind)
            if rule is None:
                return None
            rule.times -= 1
            if rule.times <= 0:
                del self.rules[kind]
            return rule

    def one(self, connection, incoming, call):
        rule = self.take_rule(call.kind)
        if rule and isinstance(rule, Hold) and not rule.taken:
            self.keep(rule, call)
            rule = None
        with self.lock:
            self.calls.append(call)
        self.serve_body(connection, incoming, call)
        reply = self.handle(connection, call) if rule is None or rule.taken else None
        if isinstance(rule, Hold):
            self.keep(rule, call)
        elif rule:
            reply = rule(call)
        status, body, *headers = reply
        self.reply(connection, call, status, body, headers[0] if headers else [])

    def keep(self, hold, call):
        incarnation = self.incarnation
        hold(call)
        if incarnation != self.incarnation:
            raise Lost

    def serve_body(self, connection, incoming, call):
        """A streaming response that ends half-way is what the client has got of it."""
        try:
            self.read_body(connection, incoming, call)
        except (Lost, OSError):
            call.over.set()
            if call.kind == "response" and call.streaming:
                with self.lock:
                    if call.id in self.running:
                        self.running[call.id].finish(call)
            raise

    def reply(self, connection, call, status, body, headers):
        headers = [("Content-Type", "application/json"), *headers]
        chunked = self.chunked and call.kind == "next"
        headers.append(("Transfer-Encoding", "chunked") if chunked else ("Content-Length", len(body)))
        text = "".join(f"{name.lower() if self.lower else name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {status} {REASONS.get(status, 'Other')}\r\n{text}\r\n".encode("latin-1")
        if chunked:
            pieces = [body[i:i + 30000] for i in range(0, len(body), 30000)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        call.status = status
        connection.sendall(head + body)
        call.over.set()

    # ---- what the service does ------------------------------------------------------------

    def handle(self, connection, call):
        if call.kind == "next":
            return self.next(connection)
        if call.kind in ("response", "error"):
            return self.finish(connection, call)
        if call.kind == "register":
            identifier = str(uuid.uuid4())
            self.extensions.append(identifier)
            return 200, b'{"functionName":"f"}', [("Lambda-Extension-Identifier", identifier)]
        if call.kind == "extension_next":
            return self.extension_next(connection, call)
        if call.kind == "restore_next":
            return 200, b""
        if call.kind in ("init_error", "restore_error"):
            return 202, b'{"status":"OK"}'
        return 404, b'{"errorType":"the original endpoint knows no such path"}', [("X-From", "original")]

    @staticmethod
    def gone(connection):
        """Whether the client is, that waits for an answer."""
        readable, _, _ = select.select([connection], [], [], 0)
        try:
            return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def dead(self, connection):
        """Whether the sandbox that called is: what it asked is read only now."""
        return self.connections.get(connection) != self.incarnation or self.gone(connection)

    def next(self, connection):
        with self.lock:
            if len(self.running) >= self.at_once:
                if self.dead(connection):
                    raise Lost
                self.misuse.append(f"next while {list(self.running)} run")
                return 403, b'{"errorType":"InvalidStateTransition","errorMessage":"an invocation runs"}'
            incarnation = self.incarnation
            while not self.queue:
                self.lock.wait()
                if incarnation != self.incarnation:
                    raise Lost
            if self.gone(connection):
                raise Lost
            invocation = self.queue.pop(0)
            self.running[invocation.id] = invocation
        invocation.given_at = time.monotonic()
        invocation.given.set()
        headers = {
            "Lambda-Runtime-Aws-Request-Id": invocation.id,
            "Lambda-Runtime-Deadline-Ms": int((time.time() + invocation.deadline_s) * 1000),
            "Lambda-Runtime-Invoked-Function-Arn": "arn:aws:lambda:eu-west-1:000000000000:function:fake",
            "Lambda-Runtime-Trace-Id": "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1",
            **{name.replace("_", "-"): value for name, value in invocation.headers.items()},
        }
        return 200, invocation.body, list(headers.items())

    def finish(self, connection, call):
        with self.lock:
            if call.id not in self.running:
                if self.dead(connection):
                    raise Lost
                self.misuse.append(f"{call.kind} for {call.id}, which does not run")
                return 400, b'{"errorType":"InvalidRequestID","errorMessage":"Invalid request ID"}'
            if call.kind == "response" and not call.streaming and len(call.body) > RESPONSE_MAX:
                call.kind = "too_large"
            self.running.pop(call.id).finish(call)
        if call.kind == "too_large":
            return 413, b'{"errorType":"RequestEntityTooLarge","errorMessage":"Exceeded maximum allowed payload size"}'
        return 202, b'{"status":"OK"}'

    def extension_next(self, connection, call):
        with self.lock:
            incarnation = self.incarnation
            while not self.extension_events:
                self.lock.wait()
                if incarnation != self.incarnation:
                    raise Lost
            return 200, json.dumps(self.extension_events.pop(0)).encode()

    def tell_extensions(self, event):
        with self.lock:
            self.extension_events.append(event)
            self.lock.notify_all()


class Sandbox:
    """A process group on an Api, in a folder that is minded. Its first process is what the platform started."""

    def __init__(self, api, words, folder, env):
        self.api, self.words, self.folder = api, [str(word) for word in words], folder
        minder.tell(folder)
        self.env = {**env, "AWS_LAMBDA_RUNTIME_API": api.address}
        self.process, self.frozen, self.kin = None, False, []
        self.log = folder / "log"

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()

    def start(self):
        assert self.process is None
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.words, cwd=self.folder, env=self.env,
                                            stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True)
        return self

    def ready(self):
        """It asks for an event, and there is none."""
        seen = len(self.api.of("next")) + 1
        self.start()
        self.wait_for(lambda: len(self.api.of("next")) >= seen, "the first event being asked for")
        return self

    def wait_for(self, true, what):
        def now():
            if true():
                return True
            if self.process.poll() is not None:
                raise NotReady(f"{what}: it ended with {self.process.returncode}: {self.text()[-2000:]}")
            return False

        return wait_for(now, what, pause=0.002)

    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def family(self):
        return family_of(self.process.pid)

    def child(self):
        """The runtime that the first process started."""
        return wait_for(lambda: self.family()[1:2], "the runtime", pause=0.002)[0]

    def group(self):
        """All that is left of it: also those whose parent is gone."""
        found = set(self.family())
        for entry in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.getpgid(int(entry)) == self.process.pid:
                    found.add(int(entry))
        return list(found)

    def kill(self):
        """Ends all of it at once, and with it what runs."""
        if self.process is None:
            return
        signal_each(self.group(), signal.SIGKILL)
        self.process.wait(PATIENCE)
        wait_for(lambda: not [pid for pid in self.group() if alive(pid)], "the sandbox ending", pause=0.002)
        self.process, self.frozen = None, False
        self.api.forget()

    def wait(self):
        """Its end by itself; the first process's status. What it left is killed, as Lambda does."""
        status = self.process.wait(PATIENCE)
        self.kill()
        return status

    def freeze(self):
        """Stops every process, and waits until they stand."""
        self.frozen = True
        pids = self.group()
        signal_each(pids, signal.SIGSTOP)
        wait_for(lambda: all(state(pid) in "TZX" for pid in pids), "the sandbox standing still", pause=0.002)

    def thaw(self):
        self.frozen = False
        signal_each(self.group()[::-1], signal.SIGCONT)


def state(pid):
    """A letter; X for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as stat:
            return stat.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def alive(pid):
    return state(pid) not in "ZX"
