"""examples/payments_pg.py, that dies, waits and lies where the request's query says so:

    die=begun|before|after|answering   kill -9 of itself: before anything, before COMMIT, after it, amid its answer
    hold=FILE                          before COMMIT it notes FILE.here and waits for FILE
    answer=STATUS                      what it answers, whatever it committed; `none`: it closes the connection

Each applies to the first such request of a folder named by `once=FOLDER`, and to none after it.
"""
import os
import pathlib
import signal
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
import payments_pg  # noqa: E402

local = threading.local()


def die_if(where):
    if local.args.get("die") == where:
        os.kill(os.getpid(), signal.SIGKILL)


class Connection(payments_pg.psycopg2.extensions.connection):
    def commit(self):
        die_if("before")
        super().commit()
        die_if("after")


class Payments(payments_pg.Payments):
    def do_POST(self):
        args = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        if "once" in args:
            try:
                os.mkdir(args["once"])
            except FileExistsError:
                args = {}
        local.args = args
        die_if("begun")
        if "hold" in args:
            pathlib.Path(args["hold"] + ".here").touch()
            while not os.path.exists(args["hold"]):
                time.sleep(0.01)
        super().do_POST()

    def answer(self, status, headers, body):
        what = local.args.get("answer") if hasattr(local, "args") else None
        if what == "none":
            self.close_connection = True
            return
        if local.args.get("die") == "answering":
            self.send_response(status)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
            self.wfile.flush()
            die_if("answering")
        if what:
            status, headers, body = int(what), {"X-Lie": "yes"}, b"a lie"
        super().answer(status, headers, body)


payments_pg.connect = lambda: payments_pg.psycopg2.connect(sys.argv[2], connection_factory=Connection)
payments_pg.Payments = Payments
payments_pg.main()
