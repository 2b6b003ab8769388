#!/usr/bin/python3
"""What `hapax lambda` adds to an invocation. The same small runtime (tests/e2e/lambda/functions) runs on the same fake
Runtime API, once by itself and once behind hapax, in turns. An invocation lasts from when the API hands out the event
until the response is on its way back. From what is added the store's own time is taken off: a claim and a completion
by one client (`hapax bench`) on that store. Events are new each time (fresh), or repeats of one (replay, which never
reaches the function).

    bench/lambda.py [--stores memory,rocksdb,redis,dynamodb] [--invocations N] [--rounds N] [--bytes N]

Exits 1 if with redis: or memory: a fresh one's p50, less the store's, is over 1 ms. All but hapax is in Python, on one
machine. Both sides of the difference have that cost, so it counts twice only if fewer than three processors are free.
HAPAX_BUILD names the build directory (default: build/).
"""
import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("HAPAX_BUILD", ROOT / "build")).resolve()
sys.dont_write_bytecode = True
sys.path[0] = str(ROOT / "tests/servers")
from dynamodb_server import KEYS, DynamoDB  # noqa: E402 - they are found only now
from lambda_api import Api, Sandbox  # noqa: E402
from process import free_port  # noqa: E402
from redis_server import Redis  # noqa: E402

RUNTIME = ["/usr/bin/python3", "-S", "-E", "-B", ROOT / "tests/e2e/lambda/functions/runtime.py", "nothing"]
BOUND_MS = 1.0
BOUNDED = ("memory", "redis")


@contextlib.contextmanager
def store(kind, folder):
    if kind == "redis":
        with Redis().start() as server:
            yield server.uri()
    elif kind == "dynamodb":
        os.environ.update(KEYS)
        with DynamoDB().start() as server:
            subprocess.run([BUILD / "hapax", "init", "--store", server.uri()], check=True, stdout=subprocess.DEVNULL)
            yield server.uri()
    elif kind in ("memory", "rocksdb"):
        yield "memory:" if kind == "memory" else f"rocksdb:{folder}/store"
    else:
        sys.exit(f"there is no store \"{kind}\"")


@contextlib.contextmanager
def running(folder, *before):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C", **KEYS}
    with Api() as api:
        sandbox = Sandbox(api, [*before, *RUNTIME], folder, env).ready()
        try:
            yield api
        finally:
            sandbox.kill()


class Measured:
    """Times of one kind of invocation, in ms."""

    def __init__(self, api, size):
        self.api, self.size, self.times, self.count = api, size, [], 0

    def run(self, times, fresh):
        for _ in range(times):
            self.count += fresh
            event = json.dumps({"id": f"k{self.count}", "fill": "x" * self.size}).encode()
            invocation = self.api.invoke(event)
            answer = invocation.wait()
            assert answer.kind == "response", answer
            self.times.append((answer.at - invocation.given_at) * 1000)

    def cut(self, share):
        return statistics.quantiles(self.times, n=1000)[int(share * 1000) - 1]


def store_ms(uri):
    """Of a claim and a completion: twice the p50 and the p99 of an op."""
    done = subprocess.run([BUILD / "hapax", "bench", "--store", uri, "--clients", "1", "--duplicates", "0",
                           "--seconds", "2", "--json"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    return [2 * said[cut] / 1000 for cut in ("p50_us", "p99_us")]


def measure(kind, args):
    """p50 that a fresh one adds over the store's own, in ms."""
    with tempfile.TemporaryDirectory(prefix="hapax-bench-") as name, contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        for part in "bare", "proxied":
            (folder / part).mkdir()
        uri = stack.enter_context(store(kind, folder))
        own = store_ms(uri)
        listen = f"127.0.0.1:{free_port()}"
        hapax = [BUILD / "hapax", "lambda", "--store", uri, "--key", "/id", "--listen", listen, "--"]
        bare_api = stack.enter_context(running(folder / "bare"))
        hapax_api = stack.enter_context(running(folder / "proxied", *hapax))
        bare, fresh, replay = (Measured(api, args.bytes) for api in (bare_api, hapax_api, hapax_api))
        for each in bare, fresh:
            each.run(50, True)
            each.times.clear()
        for _ in range(args.rounds):
            for measured, new in (bare, True), (fresh, True), (replay, False):
                measured.run(args.invocations // args.rounds, new)
        added = [fresh.cut(share) - bare.cut(share) - took for share, took in zip((0.5, 0.99), own)]
        print(f"{kind:8} bare {bare.cut(.5):6.3f} / {bare.cut(.99):6.3f}   "
              f"fresh {fresh.cut(.5):6.3f} / {fresh.cut(.99):6.3f}   "
              f"replay {replay.cut(.5):6.3f} / {replay.cut(.99):6.3f}   store {own[0]:6.3f} / {own[1]:6.3f}   "
              f"added over the store's {added[0]:6.3f} / {added[1]:6.3f}", flush=True)
        return added[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", default="memory,rocksdb,redis")
    parser.add_argument("--invocations", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--bytes", type=int, default=300)
    args = parser.parse_args()
    print("ms, p50 / p99")
    over = [kind for kind in args.stores.split(",") if measure(kind, args) > BOUND_MS and kind in BOUNDED]
    print(f"# load {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
