"""A fake collector: takes OTLP over HTTP in its JSON form, and holds each span against what the protocol publishes
(opentelemetry-proto's trace.proto and the mapping of OTLP to JSON). Debian has no real one."""
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIELDS = {"traceId", "spanId", "traceState", "parentSpanId", "flags", "name", "kind", "startTimeUnixNano",
          "endTimeUnixNano", "attributes", "droppedAttributesCount", "events", "droppedEventsCount", "links",
          "droppedLinksCount", "status"}
VALUES = {"stringValue": str, "boolValue": bool, "intValue": str, "doubleValue": float}


def attributes_of(pairs):
    """A list of KeyValue as a dict. 64-bit numbers are decimal strings."""
    found = {}
    for pair in pairs:
        assert pair.keys() == {"key", "value"} and len(pair["value"]) == 1, pair
        (kind, value), = pair["value"].items()
        assert isinstance(value, VALUES[kind]) and pair["key"] not in found, pair
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


class Span:
    def __init__(self, span, service):
        assert span.keys() <= FIELDS, span.keys() - FIELDS
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"]), span
        assert int(span["traceId"], 16) and int(span["spanId"], 16)
        assert re.fullmatch("[0-9a-f]{16}", span.get("parentSpanId", "0" * 16)), span
        assert 1 <= span["kind"] <= 5 and 0 <= span.get("status", {}).get("code", 0) <= 2
        assert span["startTimeUnixNano"].isdigit() and span["endTimeUnixNano"].isdigit(), span
        self.trace, self.id, self.parent = span["traceId"], span["spanId"], span.get("parentSpanId")
        self.name, self.kind, self.service = span["name"], span["kind"], service
        self.begun, self.ended = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        assert self.name and self.begun <= self.ended, span
        self.attributes = attributes_of(span.get("attributes", []))
        self.links = [(link["traceId"], link["spanId"]) for link in span.get("links", [])]
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
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body):
        assert path == "/v1/traces" and headers["Content-Type"] == "application/json", path
        self.bodies.append(body)
        self.headers.append(headers)
        if self.answer != 200:
            return
        request = json.loads(body)
        assert request.keys() == {"resourceSpans"}
        for resource in request["resourceSpans"]:
            service = attributes_of(resource["resource"]["attributes"])["service.name"]
            for scope in resource["scopeSpans"]:
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
