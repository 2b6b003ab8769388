#!/usr/bin/python3
"""An orders API behind Hapax's gate or consumer. An order is charged, reserved and mailed, each once, whatever fails on
the way.

    order_pg.py PORT CONNINFO [LEASE]

POST /orders  {"item": "lamp"}   orders one; 500 while none is in stock, and then a retry goes on where it was
GET  /orders                     how often each service was called

The gate or consumer keeps its records in the same database and hands on a token. The scope is `default` here; a
consumer must be told so:

    hapax serve --upstream http://127.0.0.1:PORT --store postgres://… --pass-token on
    hapax consume --from 'amqp://localhost/?queue=orders' --to http://127.0.0.1:PORT/orders --scope default \
        --store postgres://… --pass-token on

The services stand for those of others: each would be called over the network, with the step's key. The tables are
those of orders.sql. LEASE (30s) is how long a step may take before its caller counts as dead.
"""
import json
import sys
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2

LEASE = sys.argv[3] if len(sys.argv) > 3 else "30s"


class NotNow(Exception):
    """(status, why): the order is not done, and a retry goes on with it."""


def connect():
    return psycopg2.connect(sys.argv[2])


def call(service, key, item):
    """Asks another service to do its part, with a key by which it knows a repeat."""
    conn = connect()
    with conn, conn.cursor() as cursor:
        cursor.execute("INSERT INTO calls VALUES (%s, %s)", (service, key))
        cursor.execute("INSERT INTO effects VALUES (%s, %s) ON CONFLICT DO NOTHING", (service, key))
        if service == "reserve" and cursor.rowcount == 1:
            cursor.execute("UPDATE stock SET left_over = left_over - 1 WHERE item = %s AND left_over > 0", (item,))
            if cursor.rowcount == 0:
                conn.rollback()
                raise NotNow(500, "out of stock")
    conn.close()
    return f"{service} of {item}: {key}"


def step(conn, token, key, name, item):
    """Does a step of the order, or returns the receipt of the attempt that did it. The claim is committed before the
    service is called, so that a later attempt at the order knows of the call."""
    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT verdict, body, step_token, step_key FROM"
                       " hapax.step_begin(%s, 'default', %s, %s, lease => %s)", (token, key, name, LEASE))
        verdict, body, step_token, step_key = cursor.fetchone()
    if verdict == "completed":
        return bytes(body).decode()
    if verdict != "claimed":  # in_flight: an attempt died a moment ago; unknown: an operator must decide
        raise NotNow(503, f"{name} is {verdict}")
    try:
        receipt = call(name, step_key, item)
    except NotNow:
        with conn, conn.cursor() as cursor:
            cursor.execute("SELECT FROM hapax.step_fail(%s, ran => false)", (step_token,))
        raise
    with conn, conn.cursor() as cursor:
        cursor.execute("SELECT FROM hapax.step_complete(%s, 201, body => %s)", (step_token, receipt.encode()))
    return receipt


def key_of(headers):
    """The operation's key. A consumer sends it percent-encoded, the gate as the client sent it."""
    key = headers.get("Hapax-Key")
    return headers.get("Idempotency-Key", "").strip('"') if key is None else urllib.parse.unquote(key)


class Orders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        body = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        conn = connect()
        with conn, conn.cursor() as cursor:
            cursor.execute("SELECT service, count(*) FROM calls GROUP BY service")
            self.answer(200, dict(cursor.fetchall()))
        conn.close()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token, key = self.headers.get("Idempotency-Token"), key_of(self.headers)
        if not token:
            return self.answer(400, "an Idempotency-Key is needed")
        conn = connect()
        try:
            item = json.loads(body)["item"]
            status, said = 201, [step(conn, token, key, name, item) for name in ("charge", "reserve", "mail")]
        except NotNow as why:
            status, said = why.args
        except psycopg2.Error as error:  # HX001: the order is another attempt's by now
            print(f"orders: {error}", file=sys.stderr, flush=True)
            status, said = 500, "not ordered"
        finally:
            conn.close()
        self.answer(status, said)

    def log_message(self, *args):
        pass


def main(handler=Orders):
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler) as server:
        print(f"orders: http://127.0.0.1:{server.server_address[1]}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
