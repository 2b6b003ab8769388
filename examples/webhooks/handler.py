#!/usr/bin/python3
"""A handler of webhooks that knows nothing of repeats: handler.py PORT LEDGER. Each event is a line in LEDGER.

A real one verifies the sender's signature first, and answers 401 where it is wrong: a 401 is never kept.
"""
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhooks(BaseHTTPRequestHandler):
    def do_POST(self):
        event = self.rfile.read(int(self.headers["Content-Length"]))
        with open(sys.argv[2], "ab") as ledger:
            ledger.write(event + b"\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"[accepted]")

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Webhooks).serve_forever()
