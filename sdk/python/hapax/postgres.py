# SPDX-License-Identifier: Apache-2.0
"""For handlers behind a gate (`hapax serve --pass-token on`), a consumer or a door (policy pass_token): complete the
operation in the transaction that has its rows, in the PostgreSQL that is the store. Rows and record are then committed
together, or neither is. Needs no door.

`conn` is a connection of psycopg2, psycopg or Django, a cursor of one, or a Connection or Session of SQLAlchemy. The
caller commits.
"""
from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from .errors import ClaimLost

LOST = "HX001"  # the SQLSTATE of a lost claim, and of an operation that is completed already


def attempt_of(request):
    """The attempt that a handler is: {"token", "fence", "attempt", "key"}; what was not given is None. The key is a
    str, or bytes where it is no UTF-8.

    request: an Op, or a mapping of headers as Flask, Django and Starlette have it, or a WSGI environment."""
    if hasattr(request, "token") and hasattr(request, "fence"):
        return {name: getattr(request, name) for name in ("token", "fence", "attempt", "key")}
    headers = getattr(request, "headers", request)

    def header(name):
        return headers.get(name) or headers.get("HTTP_" + name.upper().replace("-", "_"))

    fence, attempt = header("Idempotency-Fence"), header("Idempotency-Attempt")
    return {"token": header("Idempotency-Token"), "fence": int(fence) if fence else None,
            "attempt": int(attempt) if attempt else None, "key": key_of(header("Hapax-Key"), header("Idempotency-Key"))}


def key_of(encoded, quoted):
    """A consumer sends the key percent-encoded; a gate sends the header as it came: a string in quotes, or a word."""
    if encoded:
        key = unquote_to_bytes(encoded)
        try:
            return key.decode("utf-8")
        except UnicodeDecodeError:
            return key
    inner = re.match(r'\s*"((?:[^"\\]|\\.)*)"', quoted or "")
    return re.sub(r"\\(.)", r"\1", inner[1]) if inner else quoted.strip() if quoted else None


def header_lines(headers):
    """Headers as the record keeps them: lines `Name: value` CR LF."""
    pairs = list(headers.items() if hasattr(headers, "items") else headers)
    for name, value in pairs:
        if set("\r\n\0") & set(name + value) or set(": ") & set(name) or not name:
            raise ValueError(f"{name!r} is no header that can be kept")
    return "".join(f"{name}: {value}\r\n" for name, value in pairs).encode("utf-8")


def complete(conn, request, status=200, body=b"", headers=()):
    """Writes the operation's outcome in the transaction of `conn`, and returns nothing.

    request   what attempt_of() takes, or the token itself
    status    0 to 999, the response's status
    body      bytes or str
    headers   pairs or a mapping, kept and replayed with the body

    Raises ClaimLost where the claim is another attempt's by now, or this token has completed the operation already, as
    in a transaction that is repeated after a lost reply to COMMIT: roll back. A gate, consumer or door answers with
    what was committed, whatever the handler says then. ValueError: the request has no token."""
    token = request if isinstance(request, str) else attempt_of(request)["token"]
    if not token:
        raise ValueError("the request has no Idempotency-Token: turn pass-token on at the gate, consumer or door")
    body = body.encode("utf-8") if isinstance(body, str) else bytes(body)
    execute(conn, "SELECT FROM hapax.complete({}, {}, {}, {})", (token, status, header_lines(headers), body))


def execute(conn, statement, values):
    try:
        if hasattr(conn, "exec_driver_sql") or hasattr(conn, "get_bind"):  # SQLAlchemy: a Connection, or a Session
            driver = conn if hasattr(conn, "exec_driver_sql") else conn.connection()
            return driver.exec_driver_sql(statement.format(*["%s"] * len(values)), values)
        if hasattr(conn, "mogrify") or not hasattr(conn, "cursor"):  # a cursor
            return conn.execute(statement.format(*["%s"] * len(values)), values)
        with conn.cursor() as cursor:
            return cursor.execute(statement.format(*["%s"] * len(values)), values)
    except Exception as error:
        if sqlstate_of(error) == LOST:
            raise ClaimLost("the claim is lost, or the operation is completed already: roll back") from error
        raise


def sqlstate_of(error):
    """The SQLSTATE of an error of psycopg2, psycopg, SQLAlchemy or Django; None where it has none."""
    for one in (error, getattr(error, "orig", None), error.__cause__):
        for name in ("sqlstate", "pgcode"):
            if getattr(one, name, None):
                return getattr(one, name)
    return None


def is_newer(fence, seen):
    """Whether a write of this fence may change what was last written with the fence `seen` (None: nothing was). In SQL:
    UPDATE … SET fence = %s WHERE id = %s AND fence <= %s, and look at the number of rows."""
    return seen is None or fence >= seen


def derived_key(key, step):
    """The key to hand to the next service for a step of an operation, as hapax_key_derive() makes it: KEY:step, or
    where that would have more than 255 bytes, "sha256-" and the hex SHA-256 of it. Of a key that is bytes: bytes. For
    handlers behind a gate or a consumer; an Op's key is derived already."""
    import hashlib

    raw = key if isinstance(key, bytes) else key.encode("utf-8")
    for what, value, most in (("key", raw, 255), ("step", step.encode("utf-8"), 64)):
        if not 1 <= len(value) <= most:
            raise ValueError(f"the {what} has 1 to {most} bytes")
    if ":" in step:
        raise ValueError("a step has no ':' in its name")
    whole = raw + b":" + step.encode("utf-8")
    if len(whole) > 255:
        return "sha256-" + hashlib.sha256(whole).hexdigest()
    return whole if isinstance(key, bytes) else whole.decode("utf-8")
