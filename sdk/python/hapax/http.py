# SPDX-License-Identifier: Apache-2.0
"""The client's side: one key for each call, the same in each try; back-off with jitter; Retry-After; problems as
exceptions. For urllib, httpx and requests. Needs no door.

    receipt = hapax.http.request("POST", url, body=json.dumps(order).encode(), key=f"order-{order.id}").json()
    client = httpx.Client(transport=hapax.http.httpx_transport(httpx.HTTPTransport()))
    session.mount("https://", hapax.http.requests_adapter())

A key names what is meant, not the try: store it with the order before the first try, and a try after a restart of the
program is a repeat, too. Without one each call has a random key.
"""
from __future__ import annotations

import dataclasses
import email.utils
import json
import random
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from typing import Any

from .errors import (BadKey, Expired, Failed, Gone, HapaxError, Indeterminate, InFlight, Limited, Mismatch, MissingKey,
                     MissingOwner, StoreDown, TooLarge, Unknown)

PROBLEMS = {
    "in-flight": InFlight, "unknown-outcome": Unknown, "fingerprint-mismatch": Mismatch, "caller-mismatch": Mismatch,
    "missing-key": MissingKey, "bad-key": BadKey, "missing-owner": MissingOwner, "limit-reached": Limited,
    "request-too-large": TooLarge, "store-unavailable": StoreDown, "response-not-kept": Gone,
    "expired-key": Expired,
    "attempts-used-up": Failed, "upstream-failed": Indeterminate, "upstream-timeout": Indeterminate,
    "upstream-unreachable": StoreDown, "response-truncated": Indeterminate,
}
METHODS = ("POST", "PATCH", "PUT", "DELETE")
AFTER_MAX_S = 60.0  # a longer Retry-After is left to the caller


@dataclasses.dataclass(frozen=True)
class Tries:
    """How often, and when.

    most: tries of one call · first_s, longest_s: the pause behind the first try, which doubles, and its limit ·
    statuses: that are tried again; a 409 is, where it has Retry-After. A Retry-After of over a minute ends the tries"""
    most: int = 5
    first_s: float = 0.5
    longest_s: float = 30.0
    statuses: tuple = (408, 425, 429, 500, 502, 503, 504)

    def pause(self, tried, status, headers, page=None):
        """Seconds until the next try, of which `tried` were made; None: there is none. status 0: no response."""
        after = retry_after(headers.get("Retry-After") or headers.get("retry-after")) if status else None
        again = status == 0 or status in self.statuses or (status == 409 and after is not None)
        slug = slug_of(page)
        final = slug == "attempts-used-up" or (slug == "unknown-outcome" and after is None)
        if tried >= self.most or not again or final or (after or 0) > AFTER_MAX_S:
            return None
        backed_off = min(self.longest_s, self.first_s * 2 ** (tried - 1)) * random.uniform(0.5, 1)  # noqa: S311
        return backed_off if after is None else max(after, backed_off)


def retry_after(value) -> float | None:
    """Seconds, of a header's seconds or date; None: it is neither, or there is none."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def page_of(headers, body):
    """The problem of a response; None where it is none."""
    kind = (headers.get("Content-Type") or headers.get("content-type") or "").split(";")[0].strip().lower()
    if kind != "application/problem+json":
        return None
    try:
        page = json.loads(body)
    except ValueError:
        return None
    return page if isinstance(page, dict) else None


def slug_of(page):
    """The last word of a problem's type; empty where there is none."""
    return str((page or {}).get("type", "")).rpartition(":")[2].rpartition("/")[2]


def error_of(status, headers, body):
    """The HapaxError of a response that is a problem of Hapax; None where it is none."""
    page = page_of(headers, body)
    slug = slug_of(page)
    if slug not in PROBLEMS:
        return None
    return PROBLEMS[slug](str(page.get("detail") or page.get("title") or slug),
                          retry_after=retry_after(headers.get("Retry-After") or headers.get("retry-after")),
                          differs={"fingerprint-mismatch": "fingerprint", "caller-mismatch": "caller"}.get(slug))


def quoted(key):
    """A key as the header has it. ValueError: it cannot stand there."""
    if not key or any(not " " <= c <= "~" for c in key):
        raise ValueError("a key for a header is visible ASCII, and not empty")
    return '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclasses.dataclass
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def replayed(self) -> bool:
        """Whether it is a stored response: an earlier try had taken effect."""
        return self.headers.get("Idempotency-Replayed", "").strip() in ("true", "?1")


def _tried(once, parts, network, tries):
    """Calls once() until its response is the answer; parts gives a response's status, headers and body. Raises what the
    last try met of the network, or the HapaxError that the response is."""
    tries, tried = tries or Tries(), 0
    while True:
        tried += 1
        failed, status, got, said = None, 0, {}, b""
        try:
            response = once()
            status, got, said = parts(response)
        except network as error:
            failed = error
        pause = tries.pause(tried, status, got, page_of(got, said))
        if pause is not None:
            time.sleep(pause)
            continue
        error = failed or error_of(status, got, said)
        if error:
            raise error
        return response


def request(method, url, *, body=None, headers=None, key=None, timeout=30.0, tries=None, opener=None):
    """A call over urllib.

    body: bytes · key: str, by default random · timeout: seconds for each try · opener: of urllib, for proxies and TLS
    Returns the Response, whatever its status, unless it is a problem of Hapax: then the HapaxError of that name is
    raised. OSError: no try got a response."""
    given = {**(headers or {}), "Idempotency-Key": quoted(key or str(uuid.uuid4()))}
    send = (opener or urllib.request.build_opener()).open

    def once():
        asked = urllib.request.Request(url, data=body, headers=given, method=method)
        try:
            with send(asked, timeout=timeout) as response:
                return Response(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Response(error.code, error.headers, error.read())

    return _tried(once, lambda response: (response.status, response.headers, response.body), OSError, tries)


def httpx_transport(inner, *, tries=None, methods=METHODS):
    """A transport for httpx.Client around another. A request without Idempotency-Key gets a random one. Problems of
    Hapax are raised as HapaxError."""
    import httpx

    class Transport(httpx.BaseTransport):
        def handle_request(self, request):
            if request.method not in methods:
                return inner.handle_request(request)
            request.headers.setdefault("Idempotency-Key", quoted(str(uuid.uuid4())))
            request.read()

            def once():
                response = inner.handle_request(request)
                response.read()
                return response

            return _tried(once, lambda response: (response.status_code, response.headers, response.content),
                          httpx.TransportError, tries)

        def close(self):
            inner.close()

    return Transport()


def requests_adapter(*, tries=None, methods=METHODS, **options):
    """An adapter for requests.Session.mount(); options are HTTPAdapter's. As httpx_transport(). A body that is read, as
    a file or a generator, is held in memory."""
    import requests
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def send(self, request, **more):
            if request.method not in methods:
                return super().send(request, **more)
            request.headers.setdefault("Idempotency-Key", quoted(str(uuid.uuid4())))
            if not isinstance(request.body, (bytes, bytearray, memoryview, str, type(None))):
                # A file, or what is made while it is sent. Each try sends the same bytes.
                parts = [request.body.read()] if hasattr(request.body, "read") else request.body
                request.body = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
                request._body_position = None  # of what was a file: a redirect has nothing to rewind
                request.headers.pop("Transfer-Encoding", None)
                request.headers["Content-Length"] = str(len(request.body))
            return _tried(lambda: super(Adapter, self).send(request, **more),
                          lambda response: (response.status_code, response.headers, response.content),
                          (requests.ConnectionError, requests.Timeout), tries)

    return Adapter(**options)


__all__ = ["HapaxError", "PROBLEMS", "Response", "Tries", "error_of", "httpx_transport", "quoted", "request",
           "requests_adapter", "retry_after"]
