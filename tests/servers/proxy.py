"""A TCP proxy that fails as networks do, for any protocol of requests and replies.

Rules are set while it runs. A request is all that a client sends until the server answers, a
pipeline included; its reply is all that comes until the client sends again. A rule takes part in the
nth request that holds `containing` (any, if empty), and in `times` of them from then on (0: for ever);
what it does is done to the bytes of one side, `request` or `reply`:

    with Proxy(server.port) as proxy:
        rule = proxy.cut("reply", after=3, containing=b"EVALSHA")   # three bytes of the reply, then RST
        …
        assert rule.fired.wait(60)
        proxy.heal()

A reply that is cut was given: the server has carried out the request by then. A cut request has
reached the server up to the cut, and there the connection ends as if the client had closed it.
"""
import contextlib
import socket
import struct
import threading

from process import PATIENCE, free_port

REQUEST, REPLY = "request", "reply"


class Rule:
    def __init__(self, action, side, containing=b"", nth=1, times=1, after=0, how="rst", seconds=0.0,
                 lasting=False):
        self.action, self.side, self.containing, self.nth = action, side, containing, nth
        self.times, self.after, self.how, self.seconds = times, after, how, seconds
        self.lasting = lasting  # it stays for the requests that follow on that connection
        self.seen = self.used = 0
        self.fired = threading.Event()  # it has done what it does, once at least

    def takes(self, data):
        """Whether it takes part in the request that data belongs to; counts it."""
        if self.containing not in data:
            return False
        self.seen += 1
        if self.seen < self.nth or (self.times and self.used >= self.times):
            return False
        self.used += 1
        return True


class Link:
    """A client's connection, and ours to the server for it. One thread for each side."""

    def __init__(self, proxy, client):
        self.proxy, self.client = proxy, client
        self.server = socket.create_connection(("127.0.0.1", proxy.target), PATIENCE)
        self.server.settimeout(None)
        for end in (self.client, self.server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lock = threading.Lock()
        self.rules = []  # of the request under way
        self.answered = True
        self.passed = {REQUEST: 0, REPLY: 0}  # bytes, of the request under way
        self.silent = set()  # sides whose bytes vanish
        self.over = threading.Event()
        self.open = 2
        self.threads = [threading.Thread(target=self.pump, args=(side,), daemon=True) for side in (REQUEST, REPLY)]

    def start(self):
        for thread in self.threads:
            thread.start()

    def pump(self, side):
        source, sink = (self.client, self.server) if side == REQUEST else (self.server, self.client)
        with contextlib.suppress(OSError):
            while not self.over.is_set():
                data = source.recv(1 << 16)
                if not data and side == REPLY and REPLY in self.silent:
                    self.over.wait()  # half open: the client is not told
                if not data:
                    break
                self.handle(side, data, sink)
        self.leave(side, sink)

    def handle(self, side, data, sink):
        with self.lock:
            if side == REQUEST:
                self.begin(data)
            else:
                self.answered = True
            rules = [rule for rule in self.rules if rule.side == side]
        cut = None
        for rule in rules:
            if rule.action == "delay":
                rule.fired.set()
                self.proxy.healed.wait(rule.seconds)
            elif rule.action == "stall":
                rule.fired.set()
                self.proxy.healed.wait()
            elif rule.action == "blackhole":
                self.silent.add(side)
                rule.fired.set()
            elif rule.action == "half-open":
                self.silent |= {REQUEST, REPLY}
                rule.fired.set()
                self.server.shutdown(socket.SHUT_RDWR)
            elif rule.action == "cut":
                at = rule.after - self.passed[side] if rule.after >= 0 else len(data) + rule.after
                if at <= len(data):
                    cut, data = rule, data[:max(at, 0)]
        self.passed[side] += len(data)
        if data and side not in self.silent and not self.over.is_set():
            sink.sendall(data)
        if cut:
            self.cut(cut.how)
            cut.fired.set()

    def begin(self, data):
        """A part of a request has come: the first of one, or more of it."""
        if self.answered:
            self.answered = False
            self.rules = [rule for rule in self.rules if rule.lasting]
            self.passed = {REQUEST: 0, REPLY: 0}
        with self.proxy.lock:
            self.rules += [rule for rule in self.proxy.rules if rule not in self.rules and rule.takes(data)]
            self.proxy.requests.append(data)

    def cut(self, how):
        """Both sides see the end; the sockets are closed by whichever thread leaves last."""
        self.over.set()
        with contextlib.suppress(OSError):
            if how == "rst":
                self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.client.shutdown(socket.SHUT_WR)
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD)

    def leave(self, side, sink):
        """An end of one side is passed on; the other may still have something to say."""
        with self.lock:
            self.open -= 1
            last = self.open == 0
        if not last and side not in self.silent and not self.over.is_set():
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_WR)
        if last:
            self.over.set()
            self.client.close()
            self.server.close()
            self.proxy.forget(self)


class Proxy:
    def __init__(self, target):
        self.target, self.port = target, free_port()
        self.lock = threading.Lock()
        self.rules, self.links = [], set()
        self.requests = []  # what clients sent, in the pieces it came in
        self.connections = 0
        self.healed = threading.Event()
        self.listener = None
        self.listen()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def listen(self):
        if self.listener is not None:
            return
        self.listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def accept(self, listener):
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections += 1
            try:
                link = Link(self, client)
            except OSError:  # nobody behind us
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
                continue
            with self.lock:
                self.links.add(link)
            link.start()

    def forget(self, link):
        with self.lock:
            self.links.discard(link)

    def add(self, *words, **more):
        with self.lock:
            if self.healed.is_set():
                self.healed = threading.Event()
            self.rules.append(Rule(*words, **more))
            return self.rules[-1]

    # ---- rules ----

    def delay(self, side, seconds, **more):
        """Its bytes are passed on late."""
        return self.add("delay", side, seconds=seconds, **more)

    def stall(self, side, **more):
        """Nothing more is read of it, until heal()."""
        return self.add("stall", side, **more)

    def cut(self, side, after=0, how="rst", **more):
        """The connection ends after that many bytes of it (negative: that many before its end), by `rst` or `fin`."""
        return self.add("cut", side, after=after, how=how, **more)

    def blackhole(self, side, **more):
        """Its bytes vanish, from now on and for good, on that connection."""
        return self.add("blackhole", side, **more)

    def half_open(self, **more):
        """The server's end is gone, and the client is never told."""
        return self.add("half-open", REQUEST, **more)

    def refuse(self):
        """Connections are refused, and those there are cut."""
        self.close_listener()
        self.cut_all()

    def cut_all(self, how="rst"):
        with self.lock:
            links = list(self.links)
        for link in links:
            link.cut(how)

    def heal(self):
        """No rule is left, connections are accepted, and those that lost bytes are cut."""
        with self.lock:
            self.rules = []
            links = [link for link in self.links if link.silent]
        self.healed.set()
        for link in links:
            link.cut("rst")
        self.listen()

    def close_listener(self):
        if self.listener is not None:
            with contextlib.suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            self.listener.close()
            self.listener = None

    def end(self):
        self.close_listener()
        self.healed.set()
        self.cut_all()
