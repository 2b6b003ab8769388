#!/usr/bin/python3
"""A handler of payments behind `hapax consume` that completes its operations itself. Payment and record are one
transaction. So wherever a process dies, the rows are exactly the completed operations.

    consumer_pg.py PORT CONNINFO
    hapax consume --from 'amqp://localhost/?queue=payments' --to http://127.0.0.1:PORT/ --store postgres://… \\
        --pass-token on

The body is the amount. `hapax init` was run in that database; the table is that of transfer.sql.
"""
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg2


def pay(conn, token, amount):
    """Takes the payment and completes the operation; its receipt."""
    with conn, conn.cursor() as cursor:  # commits, or rolls back on any exception
        cursor.execute("INSERT INTO payments (amount) VALUES (%s) RETURNING number", (amount,))
        receipt = f"payment {cursor.fetchone()[0]}\n".encode()
        # Raises HX001 where the claim is another's by now: then nothing is committed.
        cursor.execute("SELECT FROM hapax.complete(%s, 201, body => %s)", (token, receipt))
    return receipt


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not body.isdigit():
            return self.answer(422, b"a body like 1999 is needed\n")  # a dead letter
        try:
            conn = psycopg2.connect(sys.argv[2])
        except psycopg2.Error:
            return self.answer(503, b"no database\n")  # surely not paid: tried again, and not counted
        try:
            self.answer(201, pay(conn, self.headers["Idempotency-Token"], int(body)))
        except psycopg2.Error as error:  # rolled back, or nobody knows: the record is looked at either way
            print(f"payments: {error}", file=sys.stderr, flush=True)
            self.answer(500, b"not paid\n")
        finally:
            conn.close()

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Payments) as server:
    print(f"payments: http://127.0.0.1:{server.server_address[1]}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
