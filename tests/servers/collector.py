"""A fake collector: takes OTLP over HTTP in protobuf, and holds each message against what the protocol publishes
(opentelemetry-proto's trace.proto, common.proto and trace_service.proto). Debian has no real one."""
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VARINT, FIXED64, BYTES = 0, 1, 2
# Of each message, by the number of the field: its name, and what it is. A list may come more than once.
VALUE = {1: ("string", str), 2: ("bool", VARINT), 3: ("int", VARINT), 4: ("double", FIXED64)}
KEY_VALUE = {1: ("key", str), 2: ("value", VALUE)}
LINK = {1: ("trace_id", bytes), 2: ("span_id", bytes), 3: ("trace_state", str), 4: ("attributes", [KEY_VALUE])}
STATUS = {2: ("message", str), 3: ("code", VARINT)}
SPAN = {1: ("trace_id", bytes), 2: ("span_id", bytes), 3: ("trace_state", str), 4: ("parent_span_id", bytes),
        5: ("name", str), 6: ("kind", VARINT), 7: ("start", FIXED64), 8: ("end", FIXED64),
        9: ("attributes", [KEY_VALUE]), 13: ("links", [LINK]), 15: ("status", STATUS)}
SCOPE_SPANS = {1: ("scope", {1: ("name", str), 2: ("version", str)}), 2: ("spans", [SPAN])}
REQUEST = {1: ("resource_spans", [{1: ("resource", {1: ("attributes", [KEY_VALUE])}),
                                   2: ("scope_spans", [SCOPE_SPANS])}])}


def take_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def read(message, data):
    """A message of protobuf as a dict. A field that is unknown, of another kind or there twice is refused."""
    found, at = {}, 0
    while at < len(data):
        tag, at = take_varint(data, at)
        name, kind = message[tag >> 3]
        many = isinstance(kind, list)
        kind = kind[0] if many else kind
        if kind == FIXED64:
            (value,), at, wire = struct.unpack_from("<Q", data, at), at + 8, FIXED64
        elif kind == VARINT:
            (value, at), wire = take_varint(data, at), VARINT
        else:
            (size, at), wire = take_varint(data, at), BYTES
            value, at = data[at:at + size], at + size
            assert len(value) == size, "cut off"
            value = read(kind, value) if isinstance(kind, dict) else value.decode() if kind is str else value
        assert tag & 7 == wire, f"{name} has wire type {tag & 7}"
        assert many or name not in found, f"{name} is there twice"
        found[name] = [*found.get(name, []), value] if many else value
    return found


def attributes_of(pairs):
    """A list of KeyValue as a dict."""
    found = {}
    for pair in pairs:
        assert pair.keys() == {"key", "value"} and len(pair["value"]) == 1 and pair["key"] not in found, pair
        found[pair["key"]], = pair["value"].values()
    return found


class Span:
    def __init__(self, span, service):
        assert len(span["trace_id"]) == 16 and any(span["trace_id"]) and len(span["span_id"]) == 8, span
        assert any(span["span_id"]) and len(span.get("parent_span_id", bytes(8))) == 8, span
        assert 1 <= span["kind"] <= 5 and 0 <= span.get("status", {}).get("code", 0) <= 2
        self.trace, self.id = span["trace_id"].hex(), span["span_id"].hex()
        self.parent = span["parent_span_id"].hex() if "parent_span_id" in span else None
        self.name, self.kind, self.service = span["name"], span["kind"], service
        self.begun, self.ended = span["start"], span["end"]
        assert self.name and 0 < self.begun <= self.ended, span
        self.attributes = attributes_of(span.get("attributes", []))
        self.links = [(link["trace_id"].hex(), link["span_id"].hex()) for link in span.get("links", [])]
        self.failed = span.get("status", {}).get("code") == 2


class Collector:
    """.spans: what has come. answer: the status of each request from now on."""

    def __init__(self):
        self.spans, self.bodies, self.headers, self.problems = [], [], [], []
        self.answer, self.lock = 200, threading.Lock()
        self.gate = threading.Event()
        self.gate.set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.gate.wait()
                with collector.lock:
                    try:
                        collector.take(self.path, self.headers, body)
                    except Exception as error:  # shown where the test reads the spans
                        collector.problems.append(repr(error))
                self.send_response(collector.answer)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body):
        assert path == "/v1/traces" and headers["Content-Type"] == "application/x-protobuf", path
        self.bodies.append(body)
        self.headers.append(headers)
        if self.answer != 200:
            return
        for resource in read(REQUEST, body)["resource_spans"]:
            service = attributes_of(resource["resource"]["attributes"])["service.name"]
            for scope in resource["scope_spans"]:
                assert scope["scope"]["name"] == "hapax" and scope["spans"]
                self.spans += [Span(span, service) for span in scope["spans"]]

    def named(self, name):
        """The spans of this name, or whose name begins so."""
        with self.lock:
            assert not self.problems, self.problems
            return [span for span in self.spans if span.name == name or span.name.startswith(f"{name} ")]

    def close(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
