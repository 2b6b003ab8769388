# SPDX-License-Identifier: Apache-2.0
"""An exchange of HTTP through the door (`as: http`), for middlewares. A response is stored before it is sent."""
from __future__ import annotations

import json

from ._calls import Begin, Handle, Json, Wait, did_nothing, kept, members_of
from ._door import ANSWER, text
from .errors import HapaxError, Indeterminate, Invalid, StoreDown, TooLarge

DROPPED = (b"idempotency-replayed", b"idempotency-recorded", b"idempotency-protected", b"idempotency-ttl")
METHODS = ("POST", "PATCH", "PUT", "DELETE")
NO_BODY = (204, 304)  # nor a length
NO_OPTIONS = {
    "key": """a request has its own; profile="payments", or the door's --policy, requires one""",
    "fingerprint": "it is the request", "codec": "a response is bytes",
    "reconcile": 'HTTP has no such hook; use on_expired="hold"',
}


def checked(options):
    """A middleware's options. Those that it cannot mean for all requests are Invalid."""
    for name, why in NO_OPTIONS.items():
        if options.get(name) is not None:
            raise Invalid(f"{name}: {why}")
    return options


def members(options, request):
    """BEGIN's members. request: method, host, uri and headers (pairs), all bytes or str."""
    asked = {**request, "headers": [[text(name), text(value)] for name, value in request["headers"]]}
    asked.update({name: text(request[name]) for name in ("method", "host", "uri")})
    return {**members_of(options), "as": "http", "request": asked}


class CutOff(HapaxError):
    """The client broke off in its request's body; nothing was run."""


def size_of(length):
    """A Content-Length's number of bytes; 0 where there is none, or it is no number."""
    try:
        return int(length)
    except (TypeError, ValueError):
        return 0


def whole(body, length):
    """A request's body, whose Content-Length, if it has one, is `length`."""
    if len(body) < size_of(length):
        raise CutOff(f"the request's body ended after {len(body)} of {length} bytes")
    return body


def raw(value):
    if isinstance(value, dict):
        import base64
        return base64.b64decode(value["base64"])
    return value.encode("utf-8")


def exchange(door, meta, body, handler):
    """handler(op) gives (status, [(name, value)] as bytes, body), or None where it stopped before its response ended.
    The same is returned, to be sent. What the handler raises is raised, and was a 500; in place of a HapaxError a
    problem is returned."""
    own = None
    begun = yield Begin(door, meta, body, None)
    while True:
        kind, meta, body = yield Wait()
        if kind is None:
            if own is None:
                raise meta
            return problem(meta, ran=True)
        if kind == ANSWER:
            added = [(raw(name), raw(value)) for name, value in meta.get("headers", ())]
            if not meta.get("own"):
                return meta["status"], added, b"" if meta["status"] in NO_BODY else body
            what, value = own
            if isinstance(value, HapaxError):
                return problem(value, ran=True)
            if what == "error":
                raise value
            status, headers, body = value
            return status, [pair for pair in headers if pair[0].lower() not in DROPPED] + added, body
        handle = Handle(handler, begun, Json(), meta)
        own = yield handle
        what, value = own
        if value is None:
            own = ("error", Indeterminate("the response was cut off"))
            begun.end({"class": "unknown"})
        elif what == "value":
            status, headers, said = value
            if status in NO_BODY:
                own = (what, (status, headers, said := b""))
            pairs = [[text(bytes(name)), text(bytes(of))] for name, of in headers]
            try:
                begun.end(*kept({"status": status, "headers": pairs}, said))
            except (Invalid, TooLarge) as error:
                own = ("error", error)
                begun.end({"class": "unknown"})
        elif did_nothing(value, handle.op):
            begun.end({"class": "not_run"})
        else:
            begun.end({"status": 500} if isinstance(value, Exception) else {"class": "unknown"})


def problem(error, ran=False):
    """The response for an exchange that failed with a HapaxError. ran: its handler has run, and nothing may deny it."""
    status = 502 if ran else {StoreDown: 503, TooLarge: 413, CutOff: 400}.get(type(error), 500)
    kind, title = {
        502: ("urn:hapax:problem:upstream-failed", "The service gave no response"),
        503: ("urn:hapax:problem:store-unavailable", "Nobody can tell whether this ran before"),
    }.get(status, ("about:blank", "Not run"))
    detail = f"The operation may have had its effect. Ask again with the same key. ({error})" if ran else str(error)
    headers = [(b"content-type", b"application/problem+json")]
    if status in (502, 503):
        headers.append((b"retry-after", b"1"))
    page = {"type": kind, "status": status, "title": title, "detail": detail}
    return status, headers, json.dumps(page).encode("utf-8")
