"""The gate's own cases of draft-07 (tests/e2e/gate/test_draft07.py), before the middlewares of sdk/python, and
before those of sdk/go.

What is behind a middleware is an application that asks the same API as the gate does. Cases about settings of nginx are
left out, and the two of a header on two lines: what is before WSGI joins them.
"""
import asyncio
import http.client
import socketserver
import subprocess
import sys
import threading
import wsgiref.simple_server

import pytest

import gate as g
import test_go
from conftest import ROOT, read_line, wait_until
from doors import Door, Store
from process import end_with_parent
from test_draft07 import (  # noqa: F401  (run here)
    test_2_1_a_string_is_a_key, test_2_1_the_string_is_compared_and_not_its_spelling,
    test_2_1_what_is_no_string_is_refused, test_2_2_a_key_is_for_one_payload, test_2_2_uuids_are_keys_as_they_are,
    test_2_4_a_fingerprint_of_the_whole_payload, test_2_5_2_each_request_is_enforced,
    test_2_5_2_the_key_is_found_in_its_header, test_2_6_a_concurrent_request_is_a_conflict,
    test_2_7_a_conflict_needs_no_correction, test_2_7_other_errors_are_the_resources, test_5_keys_have_one_fixed_format,
    test_5_the_lookup_is_by_more_than_the_key)

sys.path.insert(0, str(ROOT / "sdk/python"))
import hapax.asgi  # noqa: E402
import hapax.wsgi  # noqa: E402

NOT_HANDED_ON = ("connection", "content-length", "date", "server", "transfer-encoding")


def asked_of(port, method, uri, headers, body):
    """What the API answers: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request(method, uri, body, {**headers, "Content-Length": str(len(body))})
        response = connection.getresponse()
        said = response.read()
        return response.status, [pair for pair in response.getheaders() if pair[0].lower() not in NOT_HANDED_ON], said
    finally:
        connection.close()


class Threads(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        pass


class Stand:
    """A server in the place of the gate."""
    connect, send, post, later = g.Gate.connect, g.Gate.send, g.Gate.post, g.Gate.later


class ByWsgi(Stand):
    def __init__(self, hx, api, address):
        def forward(environ, start_response):
            headers = {name[5:].replace("_", "-").title(): value for name, value in environ.items()
                       if name.startswith("HTTP_") and name != "HTTP_CONNECTION"}
            status, got, body = asked_of(api.port, environ["REQUEST_METHOD"], environ["PATH_INFO"], headers,
                                         environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0)))
            start_response(f"{status} -", got)
            return [body]

        self.server = wsgiref.simple_server.make_server("127.0.0.1", 0, hapax.wsgi.Idempotent(forward, hx), Threads,
                                                        Quiet)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class ByAsgi(Stand):
    def __init__(self, hx, api, address):
        import uvicorn

        async def forward(scope, receive, send):
            body, more = b"", True
            while more:
                message = await receive()
                body, more = body + message.get("body", b""), message.get("more_body")
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
                       if name != b"connection"}
            status, got, said = await asyncio.to_thread(asked_of, api.port, scope["method"], scope["path"], headers,
                                                        body)
            await send({"type": "http.response.start", "status": status,
                        "headers": [(name.encode(), value.encode()) for name, value in got]})
            await send({"type": "http.response.body", "body": said[:3], "more_body": True})
            await send({"type": "http.response.body", "body": said[3:]})

        self.server = uvicorn.Server(uvicorn.Config(hapax.asgi.Idempotent(forward, hx), port=0, log_level="error",
                                                    lifespan="off"))
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server.started, "uvicorn being ready")
        self.port = self.server.servers[0].sockets[0].getsockname()[1]

    def close(self):
        self.server.should_exit = True
        self.thread.join()


class ByGo(Stand):
    framework = "net/http"

    def __init__(self, hx, api, address):
        program = test_go.built(test_go.TESTS, "./proxy")
        self.process = subprocess.Popen([program, self.framework, f"http://127.0.0.1:{api.port}"],
                                        stdout=subprocess.PIPE, env={"HAPAX_DOOR": address},
                                        preexec_fn=end_with_parent)
        self.port = int(read_line(self.process))

    def close(self):
        self.process.terminate()
        self.process.communicate()


class ByGin(ByGo):
    framework = "gin"


# Each kind of request is sent through one of them in turn, and all cases through each by .ci/run.
pytestmark = pytest.mark.some()


@pytest.fixture(params=[ByWsgi, ByAsgi, ByGo, pytest.param(ByGin, marks=pytest.mark.ci)],
                ids=["wsgi", "asgi", "go", "gin"])
def gate(request, api, folder):
    door = Door(Store("memory", folder), folder)
    hx = hapax.connect(door.address)
    stand = request.param(hx, api, door.address)
    yield stand
    stand.close()
    hx.close()
    door.close()
