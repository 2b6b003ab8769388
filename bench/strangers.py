#!/usr/bin/python3
"""What clients of `hapax serve` lose to a stranger with 1,000 connections and no credentials.

Clients (wrk, 32 connections from 127.0.0.1, each waits about 40 ms before a request) send operations of their own with
a token, alone and beside the stranger, in turns. The stranger's connections come from 127.0.0.2. Each sends a new key
without a token, waits about a second, and goes on; a tenth of them send half a request and then nothing. The service
has --auth-request, --limit-connections, --limit-requests and --limit; its store is a `rocksdb:` of its own. Clients
wait, so that the rate shows what the gate withholds, and not how much of one machine the stranger itself takes.

Printed are the clients' rate in each turn, the ratio, what the stranger was answered, and how much the memory of the
service grew meanwhile. A request that is not let in leaves no record.

Exits 1 where clients keep less than 0.9 of their rate, a request of theirs fails, the stranger is let in, or the memory
grows by more than 64 MB; 2 where nothing could be measured.

    bench/strangers.py [--seconds S] [--rounds N] [--connections N]
"""
import argparse
import asyncio
import collections
import contextlib
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import threading

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[0] = str(HERE.parent / "tests")  # not this folder: http.py would stand for the library's http
sys.path.insert(1, str(HERE.parent / "tests/servers"))
from conftest import Command, end  # noqa: E402 - it is found only now
import gate as e2e  # noqa: E402
from served import Served, processes_of  # noqa: E402

LIMITS = ("--limit-connections", "64", "--limit-requests", "5000", "--limit", "in_flight=1000 bytes=4g")
KEPT, GROWN_MB = 0.9, 64


class Upstream(e2e.Gate):
    """Answers 200; and to who asks for a login, 204 with a token and 401 without."""

    def __init__(self, folder):
        super().__init__(folder, """access_log off; keepalive_requests 1000000000; server { LISTEN
            location / { return 200 done; }
            location /login { if ($http_authorization = "") { return 401; } return 204; } }""", name="upstream")


class Stranger:
    """Its connections are open until stop()."""

    def __init__(self, port, connections):
        self.port, self.connections, self.answers = port, connections, collections.Counter()
        self.over, self.thread = asyncio.Event(), threading.Thread(target=lambda: asyncio.run(self.run()))
        self.thread.start()

    async def run(self):
        self.loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(self.one(i)) for i in range(self.connections)]
        await self.over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def one(self, i):
        for n in range(1 << 30):
            await asyncio.sleep(2 * random.random())
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=("127.0.0.2", 0))
                try:
                    while True:
                        await self.request(reader, writer, i, n)
                        n += 1
                        await asyncio.sleep(2 * random.random())
                finally:
                    writer.close()

    async def request(self, reader, writer, i, n):
        whole = e2e.request("POST", "/", f"stranger-{i}-{n}-{random.random()}", b"x" * 64)
        if i % 10 == 0:
            writer.write(whole[:-32])
            await reader.read()
            raise ConnectionResetError
        writer.write(whole)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.answers[head.split()[1]] += 1
        await reader.readexactly(int(re.search(r"(?i)content-length: *(\d+)", head)[1]))

    def stop(self):
        self.loop.call_soon_threadsafe(self.over.set)
        self.thread.join()


def clients(port, seconds):
    """Their requests in a second, and how many failed."""
    done = subprocess.run(
        ["wrk", "-t1", "-c32", f"-d{seconds}s", "-H", "Authorization: Bearer 1", "-s", str(HERE / "http_unique.lua"),
         f"http://127.0.0.1:{port}", "--", "/", "40"], capture_output=True, text=True, timeout=seconds + e2e.PATIENCE)
    sums = re.search(r"^SUM (\d+) (\d+) \d+ \d+ (\d+)$", done.stdout, re.M)
    if not sums or int(sums[1]) == 0:
        raise RuntimeError(f"wrk measured nothing: {done.stdout}{done.stderr}")
    return int(sums[1]) * 1e6 / int(sums[2]), int(sums[3])


def memory_mb(pid):
    """Of a process and all that it started: what is theirs alone."""
    return sum(int(re.search(r"RssAnon:\s+(\d+)", pathlib.Path(f"/proc/{one}/status").read_text())[1])
               for one in processes_of(pid)) / 1024


def main():
    parser = argparse.ArgumentParser(description="what clients lose to a stranger with many connections")
    parser.add_argument("--seconds", type=int, default=60, help="of each turn (60)")
    parser.add_argument("--rounds", type=int, default=1, help="turns without and with the stranger (1)")
    parser.add_argument("--connections", type=int, default=1000, help="of the stranger (1000)")
    wanted = parser.parse_args()
    if wanted.seconds < 1 or wanted.rounds < 1 or not 1 <= wanted.connections <= 10000:
        parser.error("--seconds and --rounds are at least 1, --connections 1 to 10000")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-bench-")))
        folder.chmod(0o755)
        upstream = Upstream(folder)
        stack.callback(upstream.stop)
        upstream.start()
        hapax, store = Command(folder), f"rocksdb:{folder}/store"
        log = stack.enter_context(open(folder / "serve.log", "wb"))  # a line for each request that is refused
        serve = Served(hapax, upstream, store, "--workers", "1", *LIMITS, "--auth-request",
                       f"http://127.0.0.1:{upstream.port}/login", stderr=log)
        stack.callback(end, serve.process)
        return measure(wanted, serve)


def measure(wanted, serve):
    rates, bad, answers, grown = {False: [], True: []}, 0, collections.Counter(), 0
    for _ in range(wanted.rounds):
        for beside in rates:
            stranger = Stranger(serve.port, wanted.connections) if beside else None
            try:
                before = memory_mb(serve.process.pid)
                rate, failed = clients(serve.port, wanted.seconds)
                grown = max(grown, memory_mb(serve.process.pid) - before) if beside else grown
            finally:
                if stranger:
                    stranger.stop()
                    answers += stranger.answers
            rates[beside].append(rate)
            bad += failed
            print(f"{'beside the stranger' if beside else 'alone':20} {rate:8.0f}/s   {failed} bad", flush=True)
    kept = sum(rates[True]) / sum(rates[False])
    print(f"clients keep {kept:.2f} of their rate (at least {KEPT})")
    print(f"the stranger was answered {dict(answers)}")
    print(f"the service's memory grew by {grown:.0f} MB (at most {GROWN_MB})")
    return 0 if kept >= KEPT and bad == 0 and grown <= GROWN_MB and answers and not answers["200"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(print(f"bench/strangers.py: {error}", file=sys.stderr) or 2)
