#!/usr/bin/python3
"""A payments API behind Hapax's gate that completes its operations itself: payment and outcome are one transaction.

    payments_pg.py PORT CONNINFO

POST /payments  {"amount": 1999}   takes the payment, and answers with a receipt
GET  /payments                     how many there were

The gate in front of it keeps its records in the same database and hands on a token:

    hapax serve --upstream http://127.0.0.1:PORT --store postgres://… --pass-token on

Wherever this process dies, a retry gets the outcome that was committed. If none was committed, the retry runs. The
tables are those of transfer.sql.
"""
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2


def connect():
    return psycopg2.connect(sys.argv[2])


def pay(conn, token, amount):
    """Takes the payment and completes the operation; (status, headers, body) of the response."""
    with conn.cursor() as cursor:
        cursor.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING number", (amount,))
        number, = cursor.fetchone()
        headers = {"Content-Type": "application/json", "Location": f"/payments/{number}"}
        body = json.dumps({"receipt": number, "amount": amount}).encode() + b"\n"
        if token:  # raises HX001 where the claim is another's by now: then nothing is committed
            pairs = [part for pair in headers.items() for part in pair]
            cursor.execute("SELECT FROM hapax.complete(%s, 201, hapax.headers(VARIADIC %s), %s)", (token, pairs, body))
    conn.commit()
    return 201, headers, body


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        conn = connect()
        with conn.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM payments")
            count, = cursor.fetchone()
        conn.close()
        self.answer(200, {"Content-Type": "application/json"}, json.dumps({"payments": count}).encode() + b"\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            amount = int(json.loads(body)["amount"])
        except (ValueError, KeyError, TypeError):
            return self.answer(400, {}, b'a body like {"amount": 1999} is needed\n')
        conn = connect()
        try:
            response = pay(conn, self.headers.get("Idempotency-Token"), amount)
        except psycopg2.Error as error:  # rolled back, or nobody knows: the gate looks at the record either way
            print(f"payments: {error}", file=sys.stderr, flush=True)
            response = 500, {}, b"not paid\n"
        finally:
            conn.close()
        self.answer(*response)

    def log_message(self, *args):
        pass


def main():
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Payments) as server:
        print(f"payments: http://127.0.0.1:{server.server_address[1]}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
