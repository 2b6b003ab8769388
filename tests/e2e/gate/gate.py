"""What the tests of the HTTP gate share: an API behind it that counts its effects, nginx with the
module in a folder of its own, and a client that normalises nothing.

HAPAX_GATE_MODULE names the module; by default it is nginx/ngx_http_hapax_module.so of the build.
HAPAX_GATE_NGINX names the nginx it was built for; by default it is the one in PATH.
HAPAX_GATE_WRAPPER stands before nginx's command line, as "valgrind -q --trace-children=yes".
"""
import contextlib
import gzip
import http.server
import json
import os
import pathlib
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import urllib.parse
import uuid

from conftest import BUILD, PATIENCE, ROOT, wait_until

sys.path.insert(0, str(ROOT / "tests/servers"))
from process import free_port  # noqa: E402

MODULE = pathlib.Path(os.environ.get("HAPAX_GATE_MODULE", BUILD / "nginx/ngx_http_hapax_module.so"))
NGINX = os.environ.get("HAPAX_GATE_NGINX") or shutil.which("nginx") or "/usr/sbin/nginx"
COMMAND = [*os.environ.get("HAPAX_GATE_WRAPPER", "").split(), NGINX]


# ---- the API ----------------------------------------------------------------------------


class Api(http.server.ThreadingHTTPServer):
    """Counts what it was asked to do, by key; what it answers is in the path."""

    daemon_threads = True
    request_queue_size = 512

    def __init__(self):
        super().__init__(("127.0.0.1", 0), ApiHandler)
        self.lock = threading.Lock()
        self.effects = {}
        self.seen = []  # (method, path, headers as a list of pairs, body)
        self.doors = {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def count(self, key):
        with self.lock:
            return self.effects.get(key, 0)

    def door(self, name):
        """An event that requests to /hold/NAME wait for."""
        with self.lock:
            return self.doors.setdefault(name, threading.Event())

    def headers_of(self, key):
        with self.lock:
            return [headers for _, _, headers, _ in self.seen if dict(headers).get("Idempotency-Key") == key]

    def handle_error(self, request, client_address):
        pass  # clients go away in these tests

    def close(self):
        for door in list(self.doors.values()):
            door.set()
        self.shutdown()
        self.server_close()


class ApiHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def read_body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while True:
                size = int(self.rfile.readline(), 16)
                body += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self):
        body = self.read_body()
        url = urllib.parse.urlsplit(self.path)
        args = dict(urllib.parse.parse_qsl(url.query))
        key = self.headers.get("Idempotency-Key", "-")
        with self.server.lock:
            self.server.effects[key] = nth = self.server.effects.get(key, 0) + 1
            self.server.seen.append((self.command, self.path, list(self.headers.items()), body))
        action, _, rest = url.path.strip("/").partition("/")
        getattr(self, "do_" + action, self.do_ok)(rest, args, nth, body)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET = do_HEAD = answer

    def give(self, status, body, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)

    def do_ok(self, rest, args, nth, body):
        text = b"effect=%d body=%d" % (nth, len(body))
        if "len" in args:
            text = b"x" * int(args["len"])
        self.give(200, text, ("Content-Type", "text/plain"), ("X-A", "1"), ("X-A", "2"),
                  ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2"), ("ETag", '"abc"'),
                  ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"))

    def do_status(self, rest, args, nth, body):
        """/status/503,200: the first attempt's status, the second's, …; the last stays. ?h=Name:value adds a header,
        ?len=N makes the body long."""
        statuses = [int(s) for s in rest.split(",")]
        headers = [tuple(args["h"].split(":", 1))] if "h" in args else []
        text = b"x" * int(args["len"]) if "len" in args else b"effect=%d" % nth
        self.give(statuses[min(nth, len(statuses)) - 1], text, *headers)

    def do_hold(self, rest, args, nth, body):
        self.server.door(rest).wait(PATIENCE)
        self.give(200, b"effect=%d" % nth if "len" not in args else b"x" * int(args["len"]))

    def do_v1(self, rest, args, nth, body):
        """As Stripe's API: a charge, held or not; a card that is declined; or a connection that breaks."""
        form = dict(urllib.parse.parse_qsl(body.decode()))
        said = form["description"]
        if said == "locked once" and nth == 1:
            return self.give(409, b'{"error": {"type": "invalid_request_error", "code": "lock_timeout"}}',
                             ("Stripe-Should-Retry", "true"))
        if said == "dropped" or (said == "dropped once" and nth == 1):
            return self.cut()
        if said == "held":
            self.server.door("charge").wait(PATIENCE)
        charge = {"object": "charge", "id": f"ch_{self.headers['Idempotency-Key']}_{nth}", "amount": form["amount"]}
        error = {"error": {"type": "card_error", "code": "card_declined", "message": "Your card was declined."}}
        declined = said == "declined"
        return self.give(402 if declined else 200, json.dumps(error if declined else charge).encode(),
                         ("Content-Type", "application/json"))

    def do_created(self, rest, args, nth, body):
        self.give(201, b"", ("Location", f"/orders/{nth}"))

    def do_echo(self, rest, args, nth, body):
        self.give(200, body)

    def do_tagged(self, rest, args, nth, body):
        """Whose request it was, as it says itself, and what tells this run from any other."""
        self.give(200, f"{self.headers['X-Tag']} {uuid.uuid4()}".encode())

    def do_gzip(self, rest, args, nth, body):
        self.give(200, gzip.compress(b"zipped", mtime=0), ("Content-Encoding", "gzip"))

    def do_type(self, rest, args, nth, body):
        self.give(200, b"effect=%d" % nth, ("Content-Type", args["t"]))

    def do_many(self, rest, args, nth, body):
        self.give(200, b"effect=%d" % nth, *[(f"X-Many-{i}", "v" * 900) for i in range(80)])

    def do_chunked(self, rest, args, nth, body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(int(args.get("n", 3))):
            part = b"%d-chunk " % i * int(args.get("x", 1))
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def do_events(self, rest, args, nth, body):
        """A stream that ends when its door opens."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"data: 1\n\n")
        self.wfile.flush()
        self.server.door(rest).wait(PATIENCE)
        self.wfile.write(b"data: 2\n\n")
        self.close_connection = True

    def do_upgrade(self, rest, args, nth, body):
        self.send_response(101)
        self.send_header("Upgrade", "echo")
        self.send_header("Connection", "upgrade")
        self.end_headers()
        self.wfile.flush()
        self.wfile.write(self.rfile.readline())
        self.close_connection = True

    def cut(self):
        self.wfile.flush()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def do_byclose(self, rest, args, nth, body):
        """Neither a length nor chunks: whether this is all of it, nobody can tell."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"half of a rec")
        self.cut()

    def do_drop(self, rest, args, nth, body):
        self.cut()

    def do_droponce(self, rest, args, nth, body):
        self.cut() if nth == 1 else self.do_ok(rest, args, nth, body)

    def do_trunc(self, rest, args, nth, body):
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"half")
        self.cut()

    def do_truncchunked(self, rest, args, nth, body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"4\r\nhalf\r\n")
        self.cut()


class CgiHandler(socketserver.StreamRequestHandler):
    """SCGI and FastCGI, as much as a test needs."""

    def handle(self):
        first = self.rfile.read(1)
        if first == b"\x01":
            self.fastcgi(first)
        elif first:
            self.scgi(first)

    def reply(self):
        with self.server.lock:
            self.server.runs += 1
            return b"Status: 202 Accepted\r\nContent-Type: text/x-cgi\r\nX-Cgi: 1\r\n\r\nrun=%d" % self.server.runs

    def scgi(self, first):
        size = first
        while not size.endswith(b":"):
            byte = self.rfile.read(1)
            if not byte:  # nobody sends it any more
                return
            size += byte
        headers = self.rfile.read(int(size[:-1]) + 1)
        pairs = headers.rstrip(b",").split(b"\0")
        fields = dict(zip(pairs[::2], pairs[1::2]))
        self.rfile.read(int(fields[b"CONTENT_LENGTH"]))
        self.server.fields = fields
        self.wfile.write(self.reply())

    def fastcgi(self, first):
        fields = b""
        while True:
            _, kind, number, size, padding, _ = struct.unpack(">BBHHBB", first + self.rfile.read(7))
            data = self.rfile.read(size)
            self.rfile.read(padding)
            fields += data if kind == 4 else b""
            if kind == 5 and size == 0:
                break
            first = self.rfile.read(1)
        self.server.fields = fields
        body = self.reply()
        self.wfile.write(struct.pack(">BBHHBB", 1, 6, number, len(body), 0, 0) + body)
        self.wfile.write(struct.pack(">BBHHBB", 1, 6, number, 0, 0, 0))
        self.wfile.write(struct.pack(">BBHHBB8x", 1, 3, number, 8, 0, 0))


class Cgi(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), CgiHandler)
        self.lock, self.runs, self.fields = threading.Lock(), 0, None
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    def close(self):
        self.shutdown()
        self.server_close()


# ---- the client -------------------------------------------------------------------------


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def all(self, name):
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name):
        values = self.all(name)
        assert len(values) < 2, f"{name} stands {len(values)} times"
        return values[0] if values else None

    @property
    def replayed(self):
        return self.get("Idempotency-Replayed")

    @property
    def problem(self):
        assert self.get("Content-Type") == "application/problem+json", self
        return self.get("Link").rpartition("/")[2].rpartition(":")[2].split(">")[0]

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:200]!r}"


class Connection:
    """One TCP connection; what is sent is what is written."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)

    def response(self, head=False):
        line = self.file.readline()
        assert line, "the connection was closed without a response"
        status = int(line.split()[1])
        headers = []
        while (line := self.file.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        response = Response(status, headers, b"")
        if head or status in (100, 101, 204, 304):
            return response
        length = response.get("Content-Length")
        if length is not None:
            response.body = self.file.read(int(length))
            assert len(response.body) == int(length), "the response was cut off"
        elif response.get("Transfer-Encoding") == "chunked":
            while (size := int(self.file.readline(), 16)) > 0:
                response.body += self.file.read(size)
                self.file.readline()
            self.file.readline()
        else:
            response.body = self.file.read()
        return response

    def close(self):
        # Not closed while the file still has it: the peer would see nothing.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.file.close()
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *args):
        self.close()


def request(method, path, key=None, body=b"", headers=(), version="1.1", length=True):
    lines = [f"{method} {path} HTTP/{version}"]
    if not any(name == "Host" for name, _ in headers):
        lines.append("Host: api.test")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    lines += [f"{name}: {value}" for name, value in headers]
    if length and (body or method in ("POST", "PUT", "PATCH")):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


# ---- the gate ---------------------------------------------------------------------------


class Gate:
    def __init__(self, folder, http, workers=1, name="nginx", listen="", extra="", daemon="off"):
        self.folder = folder / name
        for below in ("html", "tmp", "dav"):
            (self.folder / below).mkdir(parents=True, exist_ok=True)
        self.port, self.h2_port = free_port(), free_port()
        self.process = None
        self.http, self.workers_wanted, self.listen, self.extra = http, workers, listen, extra
        self.daemon = daemon
        self.write()

    def write(self):
        self.folder.chmod(0o755)
        user = "user root;" if os.geteuid() == 0 else ""
        temp = "\n".join(f"{kind}_temp_path tmp/{kind};" for kind in
                         ("client_body", "proxy", "fastcgi", "scgi", "uwsgi"))
        (self.folder / "nginx.conf").write_text(f"""
load_module {MODULE};
{user}
daemon {self.daemon}; pid {self.folder}/nginx.pid; error_log {self.folder}/error.log info;
worker_processes {self.workers_wanted};
{self.extra}
events {{ worker_connections 1024; }}
http {{
    {temp}
    log_format gate '$status $hapax_answer $hapax_key_id $hapax_attempt $hapax_fence $hapax_time';
    access_log {self.folder}/access.log gate;
    client_max_body_size 64m;
    {self.http.replace("LISTEN", f"listen 127.0.0.1:{self.port} {self.listen};"
                                 f" listen 127.0.0.1:{self.h2_port} http2;")}
}}
""")

    def nginx(self, *words):
        return subprocess.run([*COMMAND, "-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log", *words],
                              capture_output=True, text=True, timeout=PATIENCE)

    def start(self):
        self.process = subprocess.Popen([*COMMAND, "-p", str(self.folder), "-c", "nginx.conf", "-e", "error.log"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_until(self.listens, "nginx listening")
        return self

    def listens(self):
        assert self.process.poll() is None, self.process.stderr.read().decode()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return len(self.workers()) > 0
        return False

    def workers(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def connect(self):
        return Connection(self.port)

    def send(self, method, path, key=None, body=b"", headers=(), **more):
        with self.connect() as connection:
            connection.send(request(method, path, key, body, headers, **more))
            return connection.response(head=method == "HEAD")

    def post(self, path, key=None, body=b"", headers=(), **more):
        return self.send("POST", path, key, body, headers, **more)

    def later(self, *args, **more):
        """Sends from a thread of its own; call what it returns to get the response."""
        box = []

        def run():
            try:
                box.append(self.post(*args, **more))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                box.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def result():
            thread.join(PATIENCE)
            assert box, "no response came"
            if isinstance(box[0], Exception):
                raise box[0]
            return box[0]

        result.thread = thread
        return result

    def signal(self, number):
        os.kill(self.process.pid, number)

    def log(self, name="error.log"):
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                for worker in self.workers():
                    os.kill(worker, signal.SIGKILL)
                self.process.kill()
                self.process.wait(PATIENCE)
        self.process.stderr.close()

    def check_log(self):
        """Nothing that nginx calls a bug was written."""
        bad = [line for line in self.log().splitlines()
               if ("[alert]" in line or "[emerg]" in line or "[crit]" in line) and "signal 9" not in line]
        assert not bad, bad


def locations(api, folder, cgi_port=1):
    """The server most tests use: a location for each kind of handler."""
    return f"""
    upstream api {{ server 127.0.0.1:{api.port}; keepalive 16; }}
    proxy_http_version 1.1; proxy_set_header Connection "";
    server {{
        LISTEN
        underscores_in_headers on;
        hapax on;
        location / {{ proxy_pass http://api; }}
        location /required/ {{ hapax required; proxy_pass http://api/; }}
        location /off/ {{ hapax off; proxy_pass http://api/; }}
        location /nobuf/ {{ proxy_buffering off; proxy_request_buffering off; proxy_pass http://api/; }}
        location /small/ {{ hapax_max_response 1k; proxy_pass http://api/; }}
        location /bighead/ {{ proxy_buffer_size 128k; proxy_buffers 4 128k; proxy_busy_buffers_size 128k;
                              proxy_pass http://api/; }}
        location /waits/ {{ hapax_wait 20s; proxy_pass http://api/; }}
        location /short/ {{ hapax_lease 300ms; proxy_pass http://api/; }}
        location /holds/ {{ hapax_lease 300ms; hapax_on_expired hold; proxy_pass http://api/; }}
        location /operated/ {{ hapax_on_expired hold; proxy_pass http://api/; }}
        location /ruled/ {{ hapax_on_expired hold; hapax_on_failed retry; hapax_class 503 not_run;
                            hapax_class 403 unknown; proxy_pass http://api/; }}
        location /replays/ {{ hapax_on_failed replay; proxy_pass http://api/; }}
        location /failhold/ {{ hapax_on_failed hold; proxy_pass http://api/; }}
        location /twice/ {{ hapax_attempts_max 2; proxy_pass http://api/; }}
        location /429/ {{ hapax_in_flight_status 429; proxy_pass http://api/; }}
        location /tiny/ {{ hapax_max_request 1k; proxy_pass http://api/; }}
        location /token/ {{ hapax_pass_token on; proxy_pass http://api/; }}
        location /class/ {{ hapax_class 418 5xx final; proxy_pass http://api/; }}
        location /mesh/ {{ hapax_class 503+retry-after 500+X-Result=NOT-RUN not_run; hapax_class 503 5xx unknown;
                           hapax_class 409+retry-after final; proxy_pass http://api/; }}
        location /json/ {{ hapax_fingerprint json -/at; proxy_pass http://api/; }}
        location /nofp/ {{ hapax_fingerprint off; proxy_pass http://api/; }}
        location /derived/ {{ hapax_key_from /order/id; proxy_pass http://api/; }}
        location /body-key/ {{ hapax_key_header off; hapax_key_from /order/id; proxy_pass http://api/; }}
        location /derived2/ {{ hapax_key_from /shop /order; hapax required; proxy_pass http://api/; }}
        location /tenant/ {{ hapax_scope $http_x_tenant; proxy_pass http://api/; }}
        location /cookies/ {{ hapax_store_header Set-Cookie; hapax_hide_header X-A; proxy_pass http://api/; }}
        location /base/ {{ hapax required; hapax_problem_base https://api.test/problems/; proxy_pass http://api/; }}
        location /named/ {{ hapax_key_header X-Request-Id; proxy_pass http://api/; }}
        location /methods/ {{ hapax_methods GET HEAD PUT DELETE POST; proxy_pass http://api/; }}
        location /edge/ {{ add_header X-Edge yes always; add_header X-Answer $hapax_answer always;
                           proxy_pass http://api/; }}
        location /gz/ {{ gzip on; gzip_types *; gzip_min_length 1; proxy_pass http://api/; }}
        location /sub/ {{ sub_filter effect EFFECT; sub_filter_types *; proxy_pass http://api/; }}
        location /static/ {{ hapax_methods GET HEAD; alias {folder}/nginx/html/; error_page 404 /error.html; }}
        location = /error.html {{ root {folder}/nginx/html; }}
        location /dav/ {{ hapax_methods PUT; dav_methods PUT; create_full_put_path on; client_body_in_file_only clean;
                          alias {folder}/nginx/dav/; }}
        location /icept/ {{ proxy_intercept_errors on; error_page 500 /error.html; proxy_pass http://api/; }}
        location /dead {{ proxy_pass http://127.0.0.1:1; }}
        location /dead_named {{ error_page 502 = @fallback; proxy_pass http://127.0.0.1:1; }}
        location @fallback {{ return 503 "fallback"; }}
        location /slowdead/ {{ proxy_read_timeout 200ms; proxy_pass http://api/; }}
        location /ssi/ {{ hapax_methods GET; ssi on; alias {folder}/nginx/html/; }}
        location /upgrade {{ proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;
                             proxy_pass http://127.0.0.1:{api.port}; }}
        location /ret {{ return 200 "ret"; }}
        location /try/ {{ try_files /nothing @api; }}
        location @api {{ rewrite ^/try(/.*)$ $1 break; proxy_pass http://api; }}
        location /mirrored/ {{ mirror /mirror; proxy_pass http://api/; }}
        location = /mirror {{ internal; proxy_pass http://api/ok;
                              proxy_set_header Idempotency-Key MIRROR-$http_idempotency_key; }}
        location /auth/ {{ auth_request /authenticate; proxy_pass http://api/; }}
        location = /authenticate {{ internal; hapax off; proxy_method GET; proxy_pass_request_body off;
                                    proxy_set_header Content-Length ""; proxy_set_header Idempotency-Key AUTH;
                                    if ($http_authorization = revoked) {{ return 401; }} proxy_pass http://api/ok; }}
        location /scgi/ {{ scgi_pass 127.0.0.1:{cgi_port}; scgi_param CONTENT_LENGTH $content_length;
                           scgi_param SCGI 1; }}
        location /fcgi/ {{ fastcgi_pass 127.0.0.1:{cgi_port}; fastcgi_param CONTENT_LENGTH $content_length;
                           fastcgi_param REQUEST_METHOD $request_method; }}
        location = /hapax {{ hapax off; access_log off; hapax_status; }}
    }}"""


def same(first, again):
    """What a replay repeats: status, body, and every header but those of one response."""
    own = ("age", "date", "idempotency-replayed", "idempotency-ttl", "set-cookie", "connection", "accept-ranges")

    def kept(response):
        return sorted(h for h in response.headers if h[0].lower() not in own)

    assert (again.status, again.body) == (first.status, first.body)
    assert kept(again) == kept(first)
