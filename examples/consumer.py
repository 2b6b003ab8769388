#!/usr/bin/python3
"""A handler of orders behind `hapax consume`. It knows nothing of brokers and nothing of idempotency:

    consumer.py PORT LEDGER
    hapax consume --from 'amqp://localhost/?queue=orders' --to http://127.0.0.1:PORT/orders

Each order is a line in LEDGER. 2xx: done. 4xx: a dead letter at once; 5xx: tried again; 503: not run, tried again.
While there is a file LEDGER.closed it refuses all orders.
"""
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        order = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not order.strip():
            return self.answer(422, b"the order is empty\n")
        if os.path.exists(f"{sys.argv[2]}.closed"):
            return self.answer(422, b"the shop is closed\n")
        ledger = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(ledger, order + b"\n")
        os.close(ledger)
        self.answer(201, b"taken by attempt " + self.headers.get("Idempotency-Attempt", "?").encode() + b"\n")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Orders) as server:
    print(f"orders: http://127.0.0.1:{server.server_address[1]}/orders", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
