# SPDX-License-Identifier: Apache-2.0
"""Middleware for WSGI: Flask, Django, Pyramid, Bottle.

    app.wsgi_app = hapax.wsgi.Idempotent(app.wsgi_app, hx, scope="payments", on_expired="hold")       # Flask
    application = hapax.wsgi.Idempotent(get_wsgi_application(), hx, scope="payments")                 # Django

A handler finds its Op in environ["hapax"] (Flask: request.environ["hapax"]; Django: request.META["hapax"]).
"""
from __future__ import annotations

import io
from http.client import responses
from urllib.parse import quote

from ._calls import drive
from ._door import BODY_MAX
from ._http import METHODS, NO_BODY, checked, exchange, members, problem, size_of, whole
from .errors import HapaxError, TooLarge


class Idempotent:
    """app: the application · door: of hapax.connect() · scope: of the keys · methods: of requests that count, the
    others pass by · owner, caller: a text, or a function of the environ · others: policies, but for `key`:
    profile="payments", or the door's --policy, requires one"""

    def __init__(self, app, door, *, scope="default", methods=METHODS, **options):
        self.app, self.door, self.methods = app, door.door, frozenset(methods)
        self.options = checked(dict(options, scope=scope))

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] not in self.methods:
            return self.app(environ, start_response)
        try:
            body = body_of(environ)
            asked = {name: value(environ) if callable(value) and name in ("owner", "caller") else value
                     for name, value in self.options.items()}
            status, headers, said = drive(exchange(
                self.door, members(asked, request_of(environ)), body,
                lambda op: respond(self.app, environ, op, body)))
        except HapaxError as error:
            status, headers, said = problem(error)
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers
                 if name.lower() not in (b"content-length", b"transfer-encoding")]
        if status not in NO_BODY:
            pairs.append(("Content-Length", str(len(said))))
        start_response(f"{status} {responses.get(status, '-')}", pairs)
        return [said]


def body_of(environ):
    size, body = size_of(environ.get("CONTENT_LENGTH")), b""
    if environ.get("wsgi.input_terminated"):
        body = environ["wsgi.input"].read(BODY_MAX + 1)
    elif 0 < size <= BODY_MAX:
        body = environ["wsgi.input"].read(size)
    if len(body) > BODY_MAX or not 0 <= size <= BODY_MAX:
        raise TooLarge(f"the request's body is over {BODY_MAX} bytes")
    return whole(body, size)


def request_of(environ):
    headers = [(name[5:].replace("_", "-").title(), value.encode("latin-1")) for name, value in environ.items()
               if name.startswith("HTTP_")]
    headers += [(name.replace("_", "-").title(), environ[name].encode("latin-1"))
                for name in ("CONTENT_TYPE", "CONTENT_LENGTH") if environ.get(name)]
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    path = quote(path.encode("latin-1"), safe="/%:@!$&'()*+,;=~")
    query = environ.get("QUERY_STRING", "")
    return {"method": environ["REQUEST_METHOD"], "headers": headers, "uri": f"{path}?{query}" if query else path,
            "host": environ.get("HTTP_HOST", "")}


def respond(app, environ, op, body):
    """What the application answers."""
    started, parts = [], []

    def start_response(status, headers, exc_info=None):
        started[:] = [int(status.split(" ", 1)[0]), headers]
        return parts.append

    environ = dict(environ, **{"hapax": op, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))})
    given = app(environ, start_response)
    try:
        parts.extend(given)
    finally:
        if hasattr(given, "close"):
            given.close()
    if not started:
        raise RuntimeError("the application gave no response")
    status, headers = started
    return status, [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers], b"".join(parts)
