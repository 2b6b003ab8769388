#!/usr/bin/python3
"""What the HTTP gate costs beside a bare nginx, measured in one run. wrk, with 64 connections, runs against

    a  bare nginx before the upstream          d  the gate, replays of one key
    b  the gate, new keys, synced              e  bare nginx that answers `return 200`
    c  the same on a store with ?sync=off      f g h  requests without a key: bare nginx,
                                                      `hapax off` and `hapax on` in the gate
    i j  bare nginx, and the gate, at about half of the rate that b reached, ten times as long: for their p99

The gate reaches a store on disk through `hapax keep`. With --store redis it reaches two Redis instead: one with
`appendfsync always` (b, d) and one without a log (c); i and j are then at half of c. The upstream is an nginx that
returns 200 bytes. Every nginx has one worker.

The rows take turns, so that all see the same machine. A rate alone says more of the machine than of the gate, so only
ratios are judged. Printed are rates, latencies (the worst round's), and the CPU time for one request: the nginx
worker's, of that of all processes together (upstream, keeper and wrk too). Then comes the share of the machine that
others took meanwhile. With a large share the ratios favour the row with more processes.

Exits 1 if a ratio is under its bound or a request was not answered 2xx, 2 if nothing could be measured.

    bench/http.py [--seconds S] [--rounds N] [--records N] [--store rocksdb|redis]
    bench/http.py [--seconds S] [--rounds N] --gates DIRECTIVES… [--telling]

With --gates new keys go through a gate with each of these DIRECTIVES, unsynced. Printed are the best of the rounds,
which others disturbed least: the processor time of a request, of all processes, and the rate, beside those of the first
gate. The requests carry a token, a cookie and an account. Nothing is judged. --telling adds each once more, with spans
for a collector, whose own time is left out, events in a file, and the run's context for the upstream.
"""
import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[0] = str(HERE.parent / "tests")  # not this folder: http.py would stand for the library's http
sys.path.insert(1, str(HERE.parent / "tests/servers"))
from conftest import Command, end  # noqa: E402 - it is found only now
import gate as e2e  # noqa: E402
from redis_server import Redis  # noqa: E402

CONNECTIONS = 64
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
BOUNDS = {"rocksdb": (("b", "a", 0.22), ("c", "a", 0.30), ("d", "e", 0.60)), "redis": (("c", "a", 0.30),)}
HALVES = {"rocksdb": "b", "redis": "c"}  # the row whose half is looked at
WHO = {"Authorization": f"Bearer {'t' * 40}", "Cookie": f"session={'c' * 32}", "X-Account": "acct_0123456789"}
PROXY = 'proxy_pass http://api/; proxy_http_version 1.1; proxy_set_header Connection "";'


def process_us(pid):
    """CPU time of a process so far, in user and in kernel mode."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_US


def machine_us():
    """The same of all processes, and the time that the machine itself was denied."""
    fields = pathlib.Path("/proc/stat").read_text().split()
    return sum(int(fields[i]) for i in (1, 2, 3, 8)) * TICK_US


class Nginx(e2e.Gate):
    """An nginx of the tests, with one worker and a configuration that is only about speed."""

    def __init__(self, folder, name, servers, module=False):
        self.module = f"load_module {e2e.MODULE};" if module else ""
        super().__init__(folder, servers, name=name)

    def write(self):
        user = "user root;" if os.geteuid() == 0 else ""
        (self.folder / "nginx.conf").write_text(f"""
{self.module} {user}
daemon off; pid nginx.pid; error_log error.log warn; worker_processes 1;
events {{ worker_connections 2048; }}
http {{
    client_body_temp_path tmp/body; proxy_temp_path tmp/proxy; fastcgi_temp_path tmp/fastcgi;
    scgi_temp_path tmp/scgi; uwsgi_temp_path tmp/uwsgi;
    access_log off; keepalive_requests 1000000000; tcp_nodelay on;
    {self.http.replace("LISTEN", f"listen 127.0.0.1:{self.port};")}
}}
""")

    def worker_us(self):
        return process_us(self.workers()[0])


class Row:
    def __init__(self, bench, letter, text, nginx, script, path, *words):
        self.bench, self.letter, self.text, self.nginx = bench, letter, text, nginx
        self.script, self.words = script, (path, *words)
        self.requests = self.seconds = self.cpu_us = self.own_us = self.bad = self.foreign = self.runs = 0
        self.p50_ms = self.p99_ms = 0
        self.each = []  # of each run: µs of a request of all processes, and the rate

    def run(self, seconds, connections=CONNECTIONS, headers=()):
        before = self.nginx.worker_us()
        machine, own, begun = machine_us(), self.bench.own_us(), time.monotonic()
        done = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "-s", str(HERE / self.script),
             *(word for header in headers for word in ("-H", header)),
             f"http://127.0.0.1:{self.nginx.port}", "--", *self.words],
            capture_output=True, text=True, timeout=seconds + e2e.PATIENCE)
        sums = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("SUM ")]
        if done.returncode != 0 or not sums or int(sums[0][0]) == 0:
            raise RuntimeError(f"wrk measured nothing: {done.stdout}{done.stderr}")
        requests, took_us, p50_us, p99_us, bad = map(int, sums[0])
        self.cpu_us += self.nginx.worker_us() - before
        machine, own = machine_us() - machine, self.bench.own_us() - own
        self.own_us += own
        self.each.append((own / requests, requests * 1e6 / took_us))
        self.foreign += (machine - own) / ((time.monotonic() - begun) * 1e6 * os.cpu_count())
        self.runs += 1
        self.requests += requests
        self.seconds += took_us / 1e6
        self.bad += bad
        self.p50_ms, self.p99_ms = max(self.p50_ms, p50_us / 1e3), max(self.p99_ms, p99_us / 1e3)

    @property
    def rate(self):
        return self.requests / self.seconds

    @property
    def request_us(self):
        return self.cpu_us / self.requests

    def __str__(self):
        return (f"{self.letter}  {self.text:25} {self.rate:9.0f}/s   p50 {self.p50_ms:6.2f} ms"
                f"   p99 {self.p99_ms:7.2f} ms   {self.request_us:5.1f} µs of {self.own_us / self.requests:5.1f}"
                f"   others {max(0, self.foreign / self.runs):3.0%}" + (f"   {self.bad} bad" if self.bad else ""))


class Bench:
    def __init__(self, folder, stack, store):
        self.folder, self.stack, self.store = folder, stack, store
        self.hapax, self.gates, self.redis = Command(folder), [], {}
        stack.callback(self.end_keepers)  # after the gates
        upstream = self.nginx("upstream", f'server {{ LISTEN location / {{ return 200 "{"x" * 200}"; }} }}')
        self.api = f"upstream api {{ server 127.0.0.1:{upstream.port}; keepalive 512; keepalive_requests 1000000000; }}"

    def nginx(self, name, servers, module=False):
        nginx = Nginx(self.folder, name, servers, module)
        self.stack.callback(nginx.stop)
        self.gates.append(nginx)
        return nginx.start()

    def own_us(self):
        """CPU time of what this run started and has not ended, and of every wrk."""
        times = os.times()
        keepers = [keeper.pid for keeper in self.hapax.processes if keeper.poll() is None]
        workers = [worker for nginx in self.gates if nginx.process.poll() is None for worker in nginx.workers()]
        servers = [redis.process.pid for redis in self.redis.values()]
        return sum(map(process_us, keepers + workers + servers)) + sum(times[:4]) * 1e6

    def gate(self, name, store, directives="", collector=None):
        telling, proxy = "", PROXY
        if collector:
            telling = f"hapax_traces http://127.0.0.1:{collector}; hapax_events {self.folder}/{name}.events;"
            proxy += "proxy_set_header traceparent $hapax_traceparent;"
        uri = self.redis[store].uri() if self.redis else f"unix:{self.folder}/{store}/keeper.sock"
        return self.nginx(name, f"""hapax_store {uri}; {self.api} {telling}
            server {{ LISTEN location /on/ {{ hapax on; {directives} {proxy} }}
                      location /off/ {{ {PROXY} }} }}""", module=True)

    def keep(self, store, settings=""):
        return self.hapax.keep(f"rocksdb:{self.folder}/{store}{settings}")

    def compare(self, gates, telling, seconds, rounds):
        """Prints what a request costs at a gate with each of the directives."""
        self.keep("store", "?sync=off")
        to = (None,)
        if telling:
            collector = self.nginx("collector", "server { LISTEN location / { return 200; } }")
            self.gates.remove(collector)
            to = (None, collector.port)
        gates = [(directives, port) for directives in gates for port in to]
        rows = [Row(self, "", "", self.gate(f"gate{i}", "store", *gates[i]), "http_unique.lua", "/on/")
                for i in range(len(gates))]
        for _ in range(rounds):
            for row in rows:
                row.run(seconds, headers=[f"{name}: {value}" for name, value in WHO.items()])
        first = None
        for row, (directives, port) in zip(rows, gates):
            own_us, rate = min(run[0] for run in row.each), max(run[1] for run in row.each)
            first = first or (own_us, rate)
            print(f"{own_us:6.2f} µs, {own_us / first[0] - 1:+.1%}   {rate:7.0f}/s, {rate / first[1] - 1:+.1%}   "
                  f"{row.bad} bad: hapax on; {directives}{' and telling' if port else ''}")

    def serve(self):
        """What the gates' stores are behind: "synced" and "unsynced"."""
        if self.store == "rocksdb":
            self.keep("synced")
            self.keep("unsynced", "?sync=off")
            return
        synced = {"appendonly": "yes", "appendfsync": "always"}
        for name, log in (("synced", synced), ("unsynced", {"appendonly": "no"})):
            self.redis[name] = self.stack.enter_context(Redis(**log)).start()

    def end_keepers(self):
        for keeper in self.hapax.processes:
            if keeper.poll() is None:
                end(keeper)
            keeper.communicate()

    def fill(self, records):
        """Operations of the gate itself, unsynced; then the same files for both stores."""
        begun = time.monotonic()
        keeper, gate = self.keep("synced", "?sync=off"), self.gate("fill", "synced")
        row = Row(self, "", "", gate, "http_unique.lua", "/on/")
        while row.requests < records:
            row.run(2, 512)
        gate.stop()
        end(keeper)
        if row.bad:
            raise RuntimeError(f"{row.bad} operations of the fill failed")
        shutil.copytree(self.folder / "synced", self.folder / "unsynced", ignore=shutil.ignore_patterns("*.sock"))
        print(f"{row.requests} records were there before, filled in {time.monotonic() - begun:.0f} s")

    def at_half_load(self, rows):
        """The gate at about half of what it can do, and a bare nginx at the same rate."""
        of = {row.letter: row for row in rows}
        whole = HALVES[self.store]
        pause_ms = max(1, round(CONNECTIONS / (of[whole].rate / 2) * 1000 - of[whole].p50_ms / 2))
        return [Row(self, letter, text, of[like].nginx, "http_unique.lua", path, str(pause_ms))
                for letter, text, like, path in (("i", f"bare nginx, at half of {whole}", "a", "/off/"),
                                                 ("j", f"gate, at half of {whole}", whole, "/on/"))]

    def rows(self):
        self.serve()
        bare = self.nginx("bare", f"""{self.api} server {{ LISTEN location /off/ {{ {PROXY} }}
            location /return/ {{ return 200 "{"x" * 200}"; }} }}""")
        synced, unsynced = self.gate("gate", "synced"), self.gate("gate_unsynced", "unsynced")
        body = b'{"amount":1999,"currency":"eur","customer":"cus_0123456789abcd"}'
        for replayed in ("false", "true"):
            first = synced.post("/on/", "one", body, [("Host", "api"), ("Content-Type", "application/json")])
            if first.status != 200 or first.replayed != replayed or len(first.body) != 200:
                raise RuntimeError(f"the gate does not work: {first}")
        unique, same = "http_unique.lua", "http_one_key.lua"
        return [Row(self, "a", "bare nginx", bare, unique, "/off/"),
                Row(self, "b", "gate, keys of their own", synced, unique, "/on/"),
                Row(self, "c", "gate, sync=off" if self.store == "rocksdb" else "gate, no log", unsynced, unique,
                    "/on/"),
                Row(self, "d", "gate, replays of one key", synced, same, "/on/", "one"),
                Row(self, "e", "bare nginx, return 200", bare, same, "/return/", "one"),
                Row(self, "f", "no key, bare nginx", bare, same, "/off/"),
                Row(self, "g", "no key, hapax off", synced, same, "/off/"),
                Row(self, "h", "no key, hapax on", synced, same, "/on/")]


def judge(rows, store):
    """Prints what was measured; whether it is good enough."""
    of = {row.letter: row for row in rows}
    good = not any(row.bad for row in rows)
    print(*rows, sep="\n")
    for over, under, bound in BOUNDS[store]:
        ratio = of[over].rate / of[under].rate
        good = good and ratio >= bound
        print(f"{over}/{under} {ratio:.2f} (at least {bound:.2f}{'' if ratio >= bound else ': MISSED'})")
    print(f"the worker's CPU for a request without a key: bare {of['f'].request_us:.1f} µs, hapax off "
          f"{of['g'].request_us - of['f'].request_us:+.1f}, hapax on {of['h'].request_us - of['f'].request_us:+.1f}")
    print(f"the p99 that the gate adds at half load: {of['j'].p99_ms - of['i'].p99_ms:.2f} ms"
          " (users expect less than 5)")
    return good


def main():
    parser = argparse.ArgumentParser(description="what the HTTP gate costs beside a bare nginx")
    parser.add_argument("--seconds", type=int, default=3, help="of each row in each round (3)")
    parser.add_argument("--rounds", type=int, default=2, help="how often the rows take turns (2)")
    parser.add_argument("--records", type=int, default=0, help="that the stores hold before (0)")
    parser.add_argument("--store", choices=BOUNDS, default="rocksdb", help="behind the gate (rocksdb)")
    parser.add_argument("--gates", nargs="+", metavar="DIRECTIVES", help="compare gates with these")
    parser.add_argument("--telling", action="store_true", help="with --gates: each again, with spans and events")
    wanted = parser.parse_args()
    if wanted.seconds < 1 or wanted.rounds < 1 or wanted.records < 0:
        parser.error("--seconds and --rounds are at least 1, --records at least 0")
    if wanted.records and wanted.store != "rocksdb":
        parser.error("--records is for rocksdb")
    if not e2e.MODULE.exists() or not shutil.which("wrk"):
        parser.error("needs nginx, wrk (tools/install test) and a build (make build; HAPAX_BUILD says where)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-bench-")))
        bench = Bench(folder, stack, wanted.store)
        if wanted.gates:
            return bench.compare(wanted.gates, wanted.telling, wanted.seconds, wanted.rounds)
        if wanted.records:
            bench.fill(wanted.records)
        rows = bench.rows()
        for _ in range(wanted.rounds):
            for row in rows:
                row.run(wanted.seconds)
        halves = bench.at_half_load(rows)
        for row in halves:
            row.run(10 * wanted.seconds)  # each few seconds the store flushes its buffer, and that is its p99
        return 0 if judge(rows + halves, wanted.store) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, AssertionError, OSError, subprocess.SubprocessError) as error:
        sys.exit(print(f"bench/http.py: {error}", file=sys.stderr) or 2)
