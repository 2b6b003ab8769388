"""Servers behind the gate whose answers are written down to the byte."""
import socketserver
import threading


class Fake(socketserver.ThreadingTCPServer):
    """A fake upstream: counts its runs, and answers each with the bytes that it was made with."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, handler, response):
        super().__init__(("127.0.0.1", 0), handler)
        self.lock, self.runs, self.response, self.fields = threading.Lock(), 0, response, {}
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def port(self):
        return self.server_address[1]

    def run(self):
        with self.lock:
            self.runs += 1
            return self.response.replace(b"RUN", b"%d" % self.runs)

    def handle_error(self, request, client_address):
        pass

    def close(self):
        self.shutdown()
        self.server_close()


class FakeHttp(socketserver.StreamRequestHandler):
    """HTTP whose response is written down to the byte."""

    def handle(self):
        length = 0
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        if line:
            self.rfile.read(length)
            self.wfile.write(self.server.run())
