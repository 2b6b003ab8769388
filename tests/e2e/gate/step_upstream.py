"""examples/order_pg.py, that dies where the request's query says so: die=STEP:WHERE, where WHERE is `begun` (the step's
claim is committed, its service not called) or `called` (called, and its outcome not stored); once=FOLDER: only the
first such request."""
import os
import pathlib
import signal
import sys
import threading
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
import order_pg  # noqa: E402

local = threading.local()
real_call = order_pg.call


def call(service, key, item):
    if local.die == f"{service}:begun":
        os.kill(os.getpid(), signal.SIGKILL)
    receipt = real_call(service, key, item)
    if local.die == f"{service}:called":
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


class Orders(order_pg.Orders):
    def do_POST(self):
        args = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        local.die = args.get("die")
        if local.die and "once" in args:
            try:
                os.mkdir(args["once"])
            except FileExistsError:
                local.die = None
        super().do_POST()


order_pg.call = call
order_pg.main(Orders)
