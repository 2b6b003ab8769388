# SPDX-License-Identifier: Apache-2.0
"""Middleware for Django, where owner or caller is known only after Django's own middleware (otherwise hapax.wsgi does).

    MIDDLEWARE = [..., "django.contrib.auth.middleware.AuthenticationMiddleware", "hapax.django.Idempotent"]
    HAPAX = {"scope": "payments", "on_expired": "hold", "owner": "shop.views.owner_of"}      # policies as everywhere

A view finds its Op in request.hapax. owner and caller are dotted names of functions of the request. `door` and
`connect_timeout` (seconds) are address and timeout of hapax.connect(); `timeout` is the policy. The
policy `key` is no setting: "profile": "payments", or the door's --policy, requires a key.
"""
from __future__ import annotations

from ._calls import connect, drive
from ._http import METHODS, checked, exchange, members, problem, whole
from .errors import HapaxError


class Idempotent:
    def __init__(self, get_response):
        from django.conf import settings
        from django.utils.module_loading import import_string

        options = dict(settings.HAPAX)
        self.get_response = get_response
        self.hapax = connect(options.pop("door", None), timeout=options.pop("connect_timeout", 10.0))
        self.methods = frozenset(options.pop("methods", METHODS))
        self.functions = {name: import_string(options.pop(name)) for name in ("owner", "caller") if name in options}
        self.options = checked(options)

    def __call__(self, request):
        if request.method not in self.methods:
            return self.get_response(request)
        asked = {**self.options, **{name: function(request) for name, function in self.functions.items()}}
        wanted = {"method": request.method, "host": request.META.get("HTTP_HOST", ""), "uri": request.get_full_path(),
                  "headers": list(request.headers.items())}

        def respond(op):
            request.hapax = op
            response = self.get_response(request)
            body = b"".join(response.streaming_content) if response.streaming else response.content
            pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.items()]
            pairs += [(b"Set-Cookie", morsel.OutputString().encode("latin-1")) for morsel in response.cookies.values()]
            return response.status_code, pairs, body

        try:
            given = whole(request.body, request.META.get("CONTENT_LENGTH"))
            status, headers, body = drive(exchange(self.hapax.door, members(asked, wanted), given, respond))
        except HapaxError as error:
            status, headers, body = problem(error)
        return self.made(status, headers, body)

    @staticmethod
    def made(status, headers, body):
        from django.http import HttpResponse

        response = HttpResponse(body, status=status)
        del response["Content-Type"]
        for name, value in headers:
            name, value = name.decode("latin-1"), value.decode("latin-1")
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            elif name.lower() != "content-length":
                response[name] = value
        return response
