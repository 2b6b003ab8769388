# SPDX-License-Identifier: Apache-2.0
"""Flask: `hapax.flask.idempotent(app, hx, scope="payments", on_expired="hold")`; op() in a view is its Op."""
from __future__ import annotations

from . import wsgi


def idempotent(app, door, **options):
    """Puts hapax.wsgi.Idempotent, with these options, before a Flask application, and returns the application."""
    app.wsgi_app = wsgi.Idempotent(app.wsgi_app, door, **options)
    return app


def op():
    """The Op of the request in hand; None: its method does not count."""
    from flask import request

    return request.environ.get("hapax")
