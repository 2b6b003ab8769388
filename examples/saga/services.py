#!/usr/bin/python3
"""The three services of the saga. Each does its part in one transaction of its own schema: its rows, the message to the
next service, and the record that says it was done. No service knows a broker, and no service looks for repeats itself.

    services.py order|payment|shipping PORT CONNINFO

An order is charged and then shipped; shipping takes no order whose number ends in 0, and has its charge refunded.

    POST /orders    {"number": 17, "amount": 1999}    order, behind hapax serve:     writes to `payments`
    POST /payments  the same                          payment, behind hapax consume: writes to `shipments`
    POST /shipments the same                          shipping, behind another:      perhaps writes to `refunds`
    POST /refunds   the same                          payment, behind a third
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2


def order(cursor, order):
    cursor.execute("INSERT INTO ordering.orders VALUES (%s, %s)", (order["number"], order["amount"]))
    return "payments"


def pay(cursor, order):
    cursor.execute("INSERT INTO payment.charges VALUES (%s, %s)", (order["number"], order["amount"]))
    return "shipments"


def ship(cursor, order):
    if order["number"] % 10 == 0:
        return "refunds"
    cursor.execute("INSERT INTO shipping.shipments VALUES (%s)", (order["number"],))
    return None


def refund(cursor, order):
    cursor.execute("INSERT INTO payment.refunds VALUES (%s, %s)", (order["number"], order["amount"]))
    return None


SERVICES = {"order": {"/orders": order}, "payment": {"/payments": pay, "/refunds": refund},
            "shipping": {"/shipments": ship}}


def run(step, conninfo, key, token, body):
    """Commits a step and its record together, or neither. The message goes to the topic that the step names, with this
    step's own key. Its consumer makes KEY:STEP of that key, so each repeat finds what was done before."""
    order, conn = json.loads(body), psycopg2.connect(conninfo)
    try:
        with conn, conn.cursor() as cursor:  # commits, or rolls back on any exception
            topic = step(cursor, order)
            if topic:
                cursor.execute("SELECT hapax.publish(%s, %s, %s, payload => %s, content_type => 'application/json')",
                               (topic, f"order {order['number']}", key, body))
            # Raises HX001 where another attempt has the claim by now: then nothing is committed.
            cursor.execute("SELECT FROM hapax.complete(%s, 201, body => %s)", (token, b"done\n"))
    finally:
        conn.close()


class Service(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key, token = self.headers.get("Idempotency-Key", "").strip('"'), self.headers.get("Idempotency-Token")
        step = SERVICES[sys.argv[1]].get(self.path)
        if not step or not token:
            return self.answer(404 if token else 400, b"no such step\n" if token else b"an Idempotency-Key is needed\n")
        try:
            run(step, sys.argv[3], key, token, body)
            self.answer(201, b"done\n")
        except psycopg2.Error as error:  # rolled back, or nobody knows: Hapax looks at the record either way
            print(f"{sys.argv[1]}: {error}".strip(), file=sys.stderr, flush=True)
            self.answer(503 if isinstance(error, psycopg2.OperationalError) else 500, b"not done\n")
        except (ValueError, KeyError, TypeError):
            self.answer(422, b"no order\n")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Service) as server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
