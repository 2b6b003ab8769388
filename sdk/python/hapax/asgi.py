# SPDX-License-Identifier: Apache-2.0
"""Middleware for ASGI: FastAPI, Starlette, Litestar, Quart.

    app.add_middleware(hapax.asgi.Idempotent, door=hx, scope="payments", on_expired="hold",
                       caller=lambda scope: scope["user"].id)

A handler finds its Op in request.scope["hapax"]. Bodies are held in memory: what streams goes around it by `methods`.
The server's extensions of a response, as pathsend, are kept from a handler: it sends the file's bytes.
An application that stops before its response ends, as where its client has left, gives none: the outcome is unknown.
"""
from __future__ import annotations

from ._calls import drive_async
from ._door import BODY_MAX
from ._http import METHODS, NO_BODY, checked, exchange, members, problem
from .errors import HapaxError, TooLarge


class Idempotent:
    """door: of hapax.connect() · scope: of the keys · methods: of requests that count, the others pass by ·
    owner, caller: a text, or a function of the ASGI scope · others: policies, but for `key`: profile="payments", or
    the door's --policy, requires one"""

    def __init__(self, app, door, *, scope="default", methods=METHODS, **options):
        self.app, self.door, self.methods = app, door.door, frozenset(methods)
        self.options = checked(dict(options, scope=scope))

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] not in self.methods:
            return await self.app(scope, receive, send)
        try:
            body = await body_of(receive)
            if body is None:
                return None
            status, headers, said = await drive_async(exchange(
                self.door, members(self.asked(scope), request_of(scope)), body,
                lambda op: respond(self.app, dict(scope, hapax=op, extensions=extensions_of(scope)), body, receive)))
        except HapaxError as error:
            status, headers, said = problem(error)
        headers = [pair for pair in headers if pair[0].lower() not in (b"content-length", b"transfer-encoding")]
        if status not in NO_BODY:
            headers.append((b"content-length", str(len(said)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": said})

    def asked(self, scope):
        return {name: value(scope) if callable(value) and name in ("owner", "caller") else value
                for name, value in self.options.items()}


def extensions_of(scope):
    """The server's extensions but those by which a response has other messages than a start and its body."""
    return {name: value for name, value in (scope.get("extensions") or {}).items()
            if not name.startswith("http.response.")}


def request_of(scope):
    headers = scope["headers"]
    path = scope.get("raw_path") or scope["path"].encode("utf-8")
    query = scope.get("query_string", b"")
    return {"method": scope["method"], "headers": headers, "uri": path + b"?" + query if query else path,
            "host": next((value for name, value in headers if name.lower() == b"host"), b"")}


async def body_of(receive):
    """The request's body; None: the client is gone."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_MAX:
            raise TooLarge(f"the request's body is over {BODY_MAX} bytes")
        if not message.get("more_body"):
            return b"".join(parts)


async def respond(app, scope, body, receive):
    """What the application answers; None where it stops before its response ends, as where its client has left."""
    given, started, parts, more = [body], {}, [], True

    async def again():
        if given:
            return {"type": "http.request", "body": given.pop(), "more_body": False}
        return await receive()

    async def take(message):
        nonlocal more
        if message["type"] == "http.response.start":
            started.update(message)
        elif message["type"] == "http.response.body":
            parts.append(bytes(message.get("body", b"")))
            more = message.get("more_body", False)

    await app(scope, again, take)
    if more:
        return None
    return started["status"], [tuple(pair) for pair in started.get("headers", ())], b"".join(parts)
