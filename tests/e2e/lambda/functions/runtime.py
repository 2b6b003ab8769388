"""A small Lambda runtime for functions in Python: runtime.py NAME [WORD…], where NAME is one of functions.py.

It says what a runtime must say, byte by byte, on one connection of its own, so that a test sees what stands between it
and the Runtime API and nothing of a client library. In the working directory:
  effects   a line for each effect, `KEY NONCE`, appended by one write
  go        where a function waits, it waits until this file is there
"""
import json
import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
BASE = "/2018-06-01/runtime/"


class Connection:
    """One to the API that AWS_LAMBDA_RUNTIME_API names, made anew where it was closed."""

    def __init__(self):
        host, _, port = os.environ["AWS_LAMBDA_RUNTIME_API"].rpartition(":")
        self.where, self.socket = (host, int(port)), None

    def open(self):
        if self.socket is None:
            self.socket = socket.create_connection(self.where)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.incoming = self.socket.makefile("rb")

    def close(self):
        if self.socket:
            self.incoming.close()
            self.socket.close()
            self.socket = None

    def ask(self, method, path, body=b"", **headers):
        """Status, headers, body of the answer."""
        self.begin(method, path, **headers, Content_Length=len(body))
        self.socket.sendall(body)
        return self.answer()

    def begin(self, method, path, **headers):
        self.open()
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        line = f"{method} {path} HTTP/1.1\r\nHost: {self.where[0]}:{self.where[1]}\r\n"
        self.socket.sendall((line + head + "\r\n").encode("latin-1"))

    def chunk(self, data):
        self.socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def trailers(self, **trailers):
        text = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in trailers.items())
        self.socket.sendall(f"0\r\n{text}\r\n".encode())

    def answer(self):
        line = self.incoming.readline()
        if not line:
            raise ConnectionError("the connection was closed")
        status, headers = int(line.split()[1]), []
        while (line := self.incoming.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        lower = {name.lower(): value for name, value in headers}
        if lower.get("transfer-encoding") == "chunked":
            body = b""
            while size := int(self.incoming.readline(), 16):
                body += self.incoming.read(size)
                self.incoming.readline()
            while self.incoming.readline() not in (b"\r\n", b""):
                pass
        else:
            body = self.incoming.read(int(lower.get("content-length", 0)))
        if lower.get("connection") == "close":
            self.close()
        return status, headers, body


class Context:
    def __init__(self, connection, headers):
        self.connection, self.fields = connection, headers
        self.headers = {name.lower(): value for name, value in headers}
        self.id = self.headers["lambda-runtime-aws-request-id"]


class Answered(Exception):
    """The function has posted its answer itself."""


def effect(key):
    """Leaves a mark; gives what tells this run from any other."""
    nonce = os.urandom(6).hex()
    mark("effects", f"{key} {nonce}")
    return nonce


def mark(file, line):
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def wait_for_file(name="go"):
    while not os.path.exists(name):
        time.sleep(0.002)


def serve(function, words):
    connection = Connection()
    while True:
        status, headers, event = connection.ask("GET", BASE + "invocation/next")
        if status != 200:
            raise SystemExit(f"next: {status} {event[:500]!r}")
        context = Context(connection, headers)
        kind, more = "response", {"Content_Type": "application/json"}
        try:
            body = function(event, context, *words)
        except Answered:
            continue
        except Exception as error:  # as runtimes do
            kind, more["Lambda_Runtime_Function_Error_Type"] = "error", type(error).__name__
            body = {"errorMessage": str(error), "errorType": type(error).__name__, "stackTrace": []}
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
        status, _, said = connection.ask("POST", f"{BASE}invocation/{context.id}/{kind}", body, **more)
        mark("posted", f"{kind} {status} {said[:200].decode('latin-1')!r}")
        if status not in (202, 413):  # as AWS's own clients do
            raise SystemExit(9)


if __name__ == "__main__":
    sys.modules["runtime"] = sys.modules["__main__"]
    import functions  # noqa: E402 - it needs this module's name

    start = getattr(functions, "start_" + sys.argv[1], None)
    if start:
        start(Connection(), *sys.argv[2:])
    serve(getattr(functions, sys.argv[1]), sys.argv[2:])
