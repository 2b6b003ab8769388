#!/usr/bin/python3
"""Says whose token a request has: login.py PORT. `hapax serve --auth-request` asks it before each request.

A real one looks into a database, or verifies a JWT. This one knows two tokens.
"""
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TENANTS = {"Bearer t-acme": "acme", "Bearer t-globex": "globex"}


class Login(BaseHTTPRequestHandler):
    def do_GET(self):
        tenant = TENANTS.get(self.headers.get("Authorization"))
        self.send_response(204 if tenant else 401)
        if tenant:
            self.send_header("X-Tenant", tenant)
        self.end_headers()

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Login).serve_forever()
