#!/usr/bin/python3
"""A sample payments API that knows nothing of idempotency: every POST /payments charges.

    payments.py [HOST:]PORT

POST /payments  {"amount": 1999}   charges, and answers with a receipt; ?slow=SECONDS takes its time
GET  /payments                     how many charges there were
"""
import json
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
charges = []


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, document, **headers):
        body = json.dumps(document).encode() + b"\n"
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": len(body), **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200, {"charges": len(charges), "total": sum(charges)})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        try:
            amount = int(json.loads(body)["amount"])
            slow = float(dict(urllib.parse.parse_qsl(url.query)).get("slow", 0))
        except (ValueError, KeyError, TypeError):
            return self.answer(400, {"error": 'a body like {"amount": 1999} is needed'})
        with lock:
            charges.append(amount)
            number = len(charges)
        time.sleep(min(slow, 60))
        self.answer(201, {"receipt": f"r-{number}", "amount": amount}, Location=f"/payments/r-{number}")

    def log_message(self, *args):
        pass


ThreadingHTTPServer.request_queue_size = 512
host, _, port = sys.argv[1].rpartition(":")
with ThreadingHTTPServer((host or "127.0.0.1", int(port)), Payments) as server:
    print(f"payments: http://{server.server_address[0]}:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
