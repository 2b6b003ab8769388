#!/usr/bin/python3
"""Hapax beside what else runs a request once, in one run: middlewares of Node, Python, Go and Java, Powertools for AWS
Lambda, and the two that one writes oneself (SET NX and SET; INSERT … ON CONFLICT and UPDATE), on the same framework and
store.

    redis      one Redis without a log, for all; each framework also without anything in between
    postgres   one PostgreSQL with fsync; and for Hapax alone a `rocksdb:`, which syncs too
    dynamodb   DynamoDB Local in memory

wrk, with 64 connections, sends new keys, and then repeats of one key. The rows take turns, and medians of the rounds
are printed as tables of Markdown: requests a second, p50 and p99, and the processor time of a request, of all processes
(wrk, service, door, gate, store). The last is the figure to compare: others on the machine change it least. A service
is one process, of one thread or interpreter where it is Node's or Python's. The C door has no HTTP: 64 threads that
call it.

Then each is played with. Four requests come with one key at once, and twelve more until after the handler, which takes
20 ms, has ended. A client leaves amid the handler. The service is killed amid the handler, started again, and asked at
once and 31 s later; leases, and the time that a Lambda function has left, are 30 s. The handler writes to a file when
it runs.

With all stores it takes 5 minutes, or 7 where the machine has much else to do.

With --instructions a second table has thousands of instructions a request, the kernel's included, by `perf stat`. Other
work on the machine hardly changes them. The first round, in which programs warm up, is not counted.

    bench/peers.py [--seconds S] [--rounds N] [--stores NAME,…] [--only TEXT] [--instructions] [--no-rates] [--no-plays]

The peers come from package registries (tools/peers/fetch). HAPAX_BUILD names the build directory (default: build/).
"""
import argparse
import collections
import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.dont_write_bytecode = True
sys.path[0] = str(ROOT / "tests")  # not this folder: http.py would stand for the library's http
found = importlib.util.spec_from_file_location("bench_http", HERE / "http.py")
bench = importlib.util.module_from_spec(found)
found.loader.exec_module(bench)
from conftest import BUILD, HAPAX, PATIENCE, read_line, wait_until  # noqa: E402 - it is found only now
import dynamodb_server  # noqa: E402
import gate as e2e  # noqa: E402
from postgres_server import Postgres  # noqa: E402
from process import NotReady, end_with_parent, family_of, free_port, is_over  # noqa: E402

KEYS, LEFT = 12, 5  # of a race; clients that leave
RACE_MS = (0, 0, 0, 0, *range(10, 34, 2))  # when each request of a race comes
RACERS = len(RACE_MS)
BODY = b'{"amount":1999,"currency":"eur","customer":"cus_0123456789abcd"}'
HEADERS = [("Host", "api"), ("Content-Type", "application/json")]
LEASE_S = 31
STORES = ("redis", "postgres", "dynamodb")
PARTS = ("service", "door or gate", "store")  # whose instructions are counted
NODE, PYTHON, GO = ["node", HERE / "peers/app.cjs"], ["/usr/bin/python3", "-B", HERE / "peers/app.py"], ["peer"]
JAVA = ["java", "-XX:+UseSerialGC", "-Xmx512m"]

# hapax: "door" or "gate", or "" where nothing of Hapax's takes part. keeps: False where nothing is stored, to show what
# the framework costs.
Way = collections.namedtuple("Way", "store text program way hapax keeps", defaults=("", True))
WAYS = [
    Way("redis", "nginx alone", None, "nginx", "", False),
    Way("redis", "**Hapax's gate**, nginx", None, "nginx", "gate"),
    Way("redis", "Fastify alone", NODE, "fastify", "", False),
    Way("redis", "node-idempotency, Fastify", NODE, "fastify-node-idempotency"),
    Way("redis", "**Hapax's middleware**, Fastify", NODE, "fastify-hapax", "door"),
    Way("redis", "**Hapax's gate** before Fastify", NODE, "fastify", "gate"),
    Way("redis", "Express alone", NODE, "express", "", False),
    Way("redis", "express-idempotency, Express", NODE, "express-idempotency"),
    Way("redis", "**Hapax's middleware**, Express", NODE, "express-hapax", "door"),
    Way("redis", "node:http alone", NODE, "http", "", False),
    Way("redis", "Powertools for TypeScript, node:http", NODE, "powertools-redis"),
    Way("redis", "**Hapax's function**, node:http", NODE, "http-hapax", "door"),
    Way("redis", "Python threads alone", PYTHON, "threads", "", False),
    Way("redis", "Powertools for Python, threads", PYTHON, "powertools-redis"),
    Way("redis", "**Hapax's function**, Python threads", PYTHON, "threads-hapax", "door"),
    Way("redis", "uvicorn alone", PYTHON, "asgi", "", False),
    Way("redis", "asgi-idempotency-header, uvicorn", PYTHON, "asgi-idempotency-header"),
    Way("redis", "**Hapax's middleware**, uvicorn", PYTHON, "asgi-hapax", "door"),
    Way("redis", "net/http alone", GO, "bare", "", False),
    Way("redis", "SET NX and SET, net/http", GO, "redis"),
    Way("redis", "**Hapax's middleware**, net/http", GO, "hapax", "door"),
    Way("redis", "Spring MVC alone", JAVA, "spring", "", False),
    Way("redis", "SET NX and SET, Spring MVC", JAVA, "spring-redis"),
    Way("redis", "**Hapax's filter**, Spring MVC", JAVA, "spring-hapax", "door"),
    Way("redis", "**Hapax's C door**", None, "execute"),
    Way("postgres", "INSERT … ON CONFLICT, UPDATE; net/http", GO, "postgres"),
    Way("postgres", "**Hapax's middleware**, net/http", GO, "hapax", "door"),
    Way("postgres", "**Hapax's SQL door**, net/http", GO, "sql"),
    Way("postgres", "**Hapax's gate** before net/http", GO, "bare", "gate"),
    Way("postgres", "**Hapax's C door**", None, "execute"),
    Way("rocksdb", "**Hapax's middleware**, net/http", GO, "hapax", "door"),
    Way("rocksdb", "**Hapax's gate** before net/http", GO, "bare", "gate"),
    Way("rocksdb", "**Hapax's C door**", None, "execute"),
    Way("dynamodb", "Powertools for TypeScript, node:http", NODE, "powertools-dynamodb"),
    Way("dynamodb", "**Hapax's function**, node:http", NODE, "http-hapax", "door"),
    Way("dynamodb", "Powertools for Python, threads", PYTHON, "powertools-dynamodb"),
    Way("dynamodb", "**Hapax's function**, Python threads", PYTHON, "threads-hapax", "door"),
    Way("dynamodb", "**Hapax's C door**", None, "execute"),
]


@functools.cache
def fetch(what):
    """The folder of what is not Hapax's."""
    done = subprocess.run([ROOT / "tools" / what / "fetch"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return pathlib.Path(done.stdout.strip())


def peers():
    return fetch("peers")


def environment(**more):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HAPAX_", "AWS_", "POWERTOOLS_"))}
    theirs = {"NODE_PATH": str(peers() / "node_modules"), "NODE_ENV": "production", "AWS_LAMBDA_FUNCTION_NAME": "pay",
              "PYTHONPATH": str(peers() / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    return {**env, **dynamodb_server.KEYS, **theirs, **more}


class Stores:
    """The servers of the stores, started when they are first asked for."""

    def __init__(self, folder, stack):
        self.folder, self.stack, self.servers, self.databases = folder, stack, {}, 0

    def server(self, name):
        if name not in self.servers:
            if name == "dynamodb":
                fetch("npm")
            made = {"redis": lambda: bench.Redis(appendonly="no"), "dynamodb": dynamodb_server.DynamoDB,
                    "postgres": lambda: Postgres(fsync="on", shared_buffers="256MB", max_connections=300)}[name]()
            self.servers[name] = self.stack.enter_context(made).start()
            if name == "dynamodb":
                made.ask("CreateTable", TableName="powertools", BillingMode="PAY_PER_REQUEST",
                         KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                         AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}])
            if name != "redis":
                self.init(made.uri())
        return self.servers[name]

    def init(self, uri):
        subprocess.run([HAPAX, "init", "--store", uri], check=True, capture_output=True, env=environment())

    def uri(self, name):
        """For Hapax."""
        if name == "rocksdb":
            self.databases += 1
            return f"rocksdb:{self.folder}/db{self.databases}"
        return self.server(name).uri()

    def theirs(self, name):
        server = self.server(name)
        return server.endpoint if name == "dynamodb" else server.uri()

    def pids(self, name):
        return [] if name == "rocksdb" else family_of(self.servers[name].process.pid)


class Subject:
    """A way that runs."""

    def __init__(self, number, way, stores, folder, stack, upstream):
        self.way, self.stores, self.stack = way, stores, stack
        self.folder = folder / f"s{number}"
        self.folder.mkdir()
        (self.folder / "effects").touch()
        self.service = self.nginx = None
        self.helpers, self.env = [], {"EFFECTS": str(self.folder)}
        self.port = self.own_port = free_port()
        self.upstream = upstream  # an nginx that answers by itself
        self.runs = {"new": [], "same": []}
        self.instructions = {"new": [], "same": []}
        self.counts = False
        if way.way == "execute":
            self.uri = stores.uri(way.store)
        elif way.hapax == "door":
            self.start_door()
        elif way.keeps and not way.hapax:
            self.env["STORE"] = stores.theirs(way.store)
        if way.program:
            self.start()
        if way.way == "nginx" or way.hapax == "gate":
            self.start_nginx()

    def process(self, words, **more):
        log = self.stack.enter_context(open(self.folder / "log", "ab"))
        started = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=log, env=environment(**self.env, **more), preexec_fn=end_with_parent)
        self.stack.callback(self.reap, started)
        return started

    def said(self):
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    @staticmethod
    def reap(process):
        if process.returncode is None:
            process.kill()
            process.communicate()

    def start_door(self, *options):
        address = f"unix:{self.folder}/door.sock"
        door = self.process([HAPAX, "door", "--store", self.stores.uri(self.way.store), "--listen", address, *options])
        if "serving" not in read_line(door):
            raise RuntimeError(f"no door: {self.said()}")
        self.helpers.append(door)
        self.env["HAPAX_DOOR"] = address

    def start(self):
        program = [peers() / "peer"] if self.way.program is GO else self.way.program
        if program is JAVA:
            program = [*JAVA, "-cp", f"{peers()}/java:{peers()}/jars/*", "Peer"]
        self.service = self.process([*program, self.way.way], PORT=str(self.own_port))
        if not read_line(self.service):
            raise RuntimeError(f"{self.way.text} did not start: {self.said()}")

    def start_nginx(self):
        port = self.own_port if self.service else self.upstream.port
        on, store = "", ""
        if self.way.hapax:
            uri = self.stores.uri(self.way.store)
            if uri.startswith("rocksdb:"):
                keeper = self.process([HAPAX, "keep", "--store", uri])
                if "holding" not in read_line(keeper):
                    raise RuntimeError("no keeper")
                self.helpers.append(keeper)
                uri = f"unix:{uri[8:]}/keeper.sock"
            on, store = "hapax on; hapax_wait 0;", f"hapax_store {uri};"
        api = f"upstream api {{ server 127.0.0.1:{port}; keepalive 512; keepalive_requests 1000000000; }}"
        proxy = bench.PROXY.replace("http://api/", "http://api")
        server = f"server {{ LISTEN location / {{ {on} {proxy} }} }}"
        self.nginx = bench.Nginx(self.folder, "nginx", f"{store} {api} {server}", module=bool(on))
        self.stack.callback(self.nginx.stop)
        self.nginx.start()
        self.port = self.nginx.port

    def parts(self):
        """All that works for a request, but for what sends it: ids of processes for each of PARTS."""
        services = [self.service.pid] if self.service else []
        services += [self.upstream.process.pid] if self.nginx and not self.service else []
        doors = [helper.pid for helper in self.helpers] + ([self.nginx.process.pid] if self.nginx else [])
        parts = [[pid for one in ones for pid in family_of(one)] for ones in (services, doors)]
        return [*parts, self.stores.pids(self.way.store) if self.way.keeps else []]

    def counters(self):
        """Words before a command that count the instructions of each part while the command runs."""
        return [word for part, pids in zip(PARTS, self.parts()) if pids and self.counts
                for word in ("perf", "stat", "-x,", "-e", "instructions", "-o", f"{self.folder}/{part}", "-p",
                             ",".join(map(str, pids)))]

    def counted(self):
        """What they counted, by part; 0 of one that is not there."""
        return [sum(int(line.partition(",")[0]) for line in (self.folder / part).read_text().splitlines()
                    if "instructions" in line) if pids else 0 for part, pids in zip(PARTS, self.parts())]

    # ---- rates ----------------------------------------------------------------------------

    def run(self, kind, seconds):
        if kind == "same" and not self.runs[kind] and self.way.way != "execute":
            told = self.ask("/pay", self.folder.name)
            if told is None or told[0] != 201:
                raise RuntimeError(f"{self.way.text} does not work: {told}, {self.said()}")
        pids = [pid for part in self.parts() for pid in part]
        before, machine, began = self.used_us(pids), bench.machine_us(), time.monotonic()
        done = self.execute(kind, seconds) if self.way.way == "execute" else self.wrk(kind, seconds)
        requests, took_us, p50_us, p99_us, bad = done
        if requests == 0:  # it takes longer than a turn, as on DynamoDB Local
            return
        used, took = self.used_us(pids) - before, (time.monotonic() - began) * 1e6
        others = min(1, max(0, (bench.machine_us() - machine - used) / (took * os.cpu_count())))
        if self.counts:
            self.instructions[kind].append([n / requests / 1000 for n in self.counted()])
        self.runs[kind].append((requests * 1e6 / took_us, p50_us / 1e3, p99_us / 1e3, used / requests, bad, others))

    @staticmethod
    def used_us(pids):
        return sum(bench.process_us(pid) for pid in pids if not is_over(pid)) + sum(os.times()[:4]) * 1e6

    def wrk(self, kind, seconds):
        script, words = ("http_unique.lua", []) if kind == "new" else ("http_one_key.lua", [self.folder.name])
        load = [*self.counters(), "wrk", "-t1", f"-c{bench.CONNECTIONS}", f"-d{seconds}s", "--latency", "-s",
                HERE / script]
        done = subprocess.run([*load, f"http://127.0.0.1:{self.port}", "--", "/pay", *words], capture_output=True,
                              text=True, timeout=seconds + PATIENCE)
        sums = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("SUM ")]
        if done.returncode != 0 or not sums:
            raise RuntimeError(f"{self.way.text}: wrk measured nothing: {done.stdout}{done.stderr}")
        return map(int, sums[0])

    def execute(self, kind, seconds):
        load = [BUILD / "bench/execute_bench", "--store", self.uri, "--seconds", str(seconds)]
        done = subprocess.run([*load, "--duplicates", "0" if kind == "new" else "99"], capture_output=True, text=True,
                              env=environment())
        said = re.fullmatch(r"\d+ threads: (\d+) calls/s, .* p50 ([\d.]+) us, p99 ([\d.]+) us\n", done.stdout)
        if not said:
            raise RuntimeError(f"the C door measured nothing: {done.stdout}{done.stderr}")
        rate, p50, p99 = map(float, said.groups())
        return rate * seconds, seconds * 1e6, p50, p99, 0

    def median(self, kind):
        """Rate, p50, p99, µs, bad; None where it was not measured."""
        runs = list(zip(*self.runs[kind]))
        return [statistics.median(one) for one in runs[:4]] + [sum(runs[4])] if runs else None

    # ---- plays ----------------------------------------------------------------------------

    def ask(self, path, key, patience=PATIENCE):
        """Status and receipt of a request; None: it got no answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), patience) as connection:
                connection.sendall(e2e.request("POST", path, key, BODY, HEADERS + [("Connection", "close")]))
                said = b""
                while part := connection.recv(65536):
                    said += part
                    length = re.search(rb"\r\ncontent-length: (\d+)\r\n", said, re.I)
                    if length and len(said.partition(b"\r\n\r\n")[2]) >= int(length[1]):
                        break
        except OSError:
            return None
        receipt = re.search(rb"receipt[^:]*:[^0-9]*(\d+-\d+)", said)
        return (int(said.split()[1]), receipt and receipt[1].decode()) if said else None

    def effects(self, key):
        return (self.folder / "effects").read_text().split().count(key)

    def later(self, path, key, seconds=3):
        """What a retry gets once nothing runs any more: asked until it is no conflict, or for so long."""
        until = time.monotonic() + seconds
        while True:
            told = self.ask(path, key, 3)
            if (told and told[0] not in (409, 503)) or time.monotonic() > until:
                return told
            time.sleep(0.02)

    def race(self):
        """How many of the keys ran more than once, got no answer, and have another result later."""
        twice = silent = other = kept = 0
        for number in range(KEYS):
            key, answers, line = f"{self.folder.name}-race{number}", [], threading.Barrier(RACERS)

            def one(nth, key=key, answers=answers, line=line):
                line.wait()
                time.sleep(RACE_MS[nth] / 1000)
                answers.append(self.ask("/slow", key, 3))

            racers = [threading.Thread(target=one, args=(nth,)) for nth in range(RACERS)]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            receipts = {told[1] for told in answers if told and told[0] == 201}
            silent += any(told is None for told in answers)
            told = self.later("/slow", key)
            kept += told is not None and told[0] in (409, 503)
            other += told is None or told[0] not in (409, 503) and told[1] not in receipts
            twice += self.effects(key) > 1
        parts = [f"{twice} of {KEYS} keys ran more than once" if twice else "once each"]
        parts += [f"{silent} with requests that got no answer"] if silent else []
        parts += [f"{kept} answer 409 for good"] if kept else []
        parts += [f"{other} have another result later"] if other else []
        return "; ".join(parts)

    def begin(self, key, path):
        """A request whose handler runs; its connection."""
        connection = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        connection.sendall(e2e.request("POST", path, key, BODY, HEADERS))
        wait_until(lambda: self.effects(key) > 0, f"the handler of {self.way.text} running")
        return connection

    def leave(self):
        """What clients that left amid the handler get by a retry."""
        seen = collections.Counter()
        for number in range(LEFT):
            key, path = f"{self.folder.name}-left{number}", f"/hold/l{number}"
            connection = self.begin(key, path)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            time.sleep(0.05)  # nobody says when the service has heard of it
            (self.folder / f"l{number}").touch()
            told = self.later(path, key)
            times = self.effects(key)
            if told is None:
                seen["no answer"] += 1
            elif told[0] in (409, 503):
                seen[f"{told[0]}, for good"] += 1
            elif told[1] is None:
                seen[f"{told[0]} without a body"] += 1
            else:
                seen["the first result" if times == 1 else f"ran {times} times"] += 1
        return "; ".join(text if n == LEFT else f"{n} of {LEFT}: {text}" for text, n in seen.most_common())

    def kill(self):
        """Kills the service in its handler and starts it again; what a retry gets at once."""
        self.killed = f"{self.folder.name}-killed"
        connection = self.begin(self.killed, "/hold/killed")
        self.service.send_signal(signal.SIGKILL)
        self.service.communicate()
        self.killed_at = time.monotonic()
        connection.close()
        (self.folder / "killed").touch()
        self.start()
        self.at_once = self.ask("/hold/killed", self.killed)

    def after_lease(self):
        """What a retry gets when every lease is over."""
        time.sleep(max(0, self.killed_at + LEASE_S - time.monotonic()))
        told = self.later("/hold/killed", self.killed, 1)
        runs = self.effects(self.killed)

        def say(said):
            return "no answer" if said is None else "it runs" if said[1] else str(said[0])

        first, then = say(self.at_once), say(told)
        if told and told[0] == 409:
            then += f" ({self.rest()})"
        return f"{first} at once" if first == "it runs" and runs == 2 else f"{first} at once, {then} after {LEASE_S} s"


    def rest(self):
        """How long a key that is taken stays so."""
        if self.way.store != "redis":
            return "no end"
        redis = self.stores.server("redis")
        seconds = max((redis.do("TTL", key) for key in redis.do("KEYS", f"*{self.killed}*")), default=-1)
        return f"{round(seconds / 3600)} h" if seconds > 0 else "no end"


def print_rates(subjects):
    for store in dict.fromkeys(subject.way.store for subject in subjects):
        print(f"\n| {store} | new keys /s | p50, p99 ms | µs | repeats /s | p50, p99 ms | µs |\n|" + "---|" * 7)
        for subject in subjects:
            if subject.way.store == store:
                cells = []
                for kind in ("new", "same"):
                    found = subject.median(kind)
                    cells += [f"{found[0]:,.0f}" + (f" ({found[4]} failed)" if found[4] else ""),
                              f"{found[1]:.1f}, {found[2]:.1f}", f"{found[3]:.0f}"] if found else ["", "", ""]
                print("| " + " | ".join([subject.way.text, *cells]) + " |")
    runs = [run[5] for subject in subjects for kind in subject.runs.values() for run in kind]
    print(f"\nOthers took {statistics.median(runs):.0%} of the machine (median), {max(runs):.0%} at most.")


def print_instructions(subjects):
    """Medians of each part; "all" is their sum."""
    for store in dict.fromkeys(subject.way.store for subject in subjects):
        head = f"{store}, thousands of instructions | new keys: {', '.join(PARTS)}"
        print(f"\n| {head} | all | repeats | all |\n|" + "---|" * 5)
        for subject in subjects:
            if subject.way.store == store:
                cells = []
                for kind in ("new", "same"):
                    medians = [statistics.median(part) for part in zip(*subject.instructions[kind])]
                    said = ", ".join(f"{part:.0f}" for part in medians)
                    cells += [said, f"{sum(medians):.0f}" if medians else ""]
                print("| " + " | ".join([subject.way.text, *cells]) + " |")


def print_plays(subjects):
    played = [one for one in subjects if one.way.keeps and one.service]
    for one in played:
        one.kill()
    rows = [[f"{one.way.store}: {one.way.text}", one.race(), one.leave()] for one in played]  # leases end meanwhile
    print(f"\n| | {RACERS} requests race, {KEYS} keys | the client leaves | the service is killed |\n|---|---|---|---|")
    for one, row in zip(played, rows):
        print("| " + " | ".join([*row, one.after_lease()]) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=1, help="of each row in each round (1)")
    parser.add_argument("--rounds", type=int, default=3, help="how often the rows take turns (3)")
    parser.add_argument("--stores", default=",".join(STORES), help="of these (all)")
    parser.add_argument("--only", default="", help="only rows with this text")
    parser.add_argument("--instructions", action="store_true", help="count them, too (needs perf, and 2 rounds)")
    parser.add_argument("--no-rates", action="store_true", help="only play")
    parser.add_argument("--no-plays", action="store_true", help="only measure")
    wanted = parser.parse_args()
    if not set(wanted.stores.split(",")) <= set(STORES):
        parser.error(f"stores are {', '.join(STORES)}")
    if wanted.seconds < 1 or wanted.rounds < 1 + wanted.instructions:
        parser.error("--seconds are at least 1, and --rounds 1, or 2 with --instructions")
    if not e2e.MODULE.exists() or not shutil.which("wrk"):
        parser.error("needs nginx, wrk (tools/install test) and a build (make build; HAPAX_BUILD says where)")
    subprocess.run(["ninja", "-C", BUILD, "--quiet", "bench/execute_bench"], check=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    ways = [way for way in WAYS if ("postgres" if way.store == "rocksdb" else way.store) in wanted.stores.split(",")
            and wanted.only in way.text]
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hapax-bench-")))
        upstream = bench.Nginx(folder, "upstream", f'server {{ LISTEN location / {{ return 201 "{"x" * 200}"; }} }}')
        stack.callback(upstream.stop)
        upstream.start()
        stores = Stores(folder, stack)
        subjects = [Subject(number, way, stores, folder, stack, upstream) for number, way in enumerate(ways)]
        if not wanted.no_rates:
            for number in range(wanted.rounds):
                for subject in subjects:
                    subject.counts = wanted.instructions and number > 0 and subject.way.way != "execute"
                    subject.run("new", wanted.seconds)
                    if subject.way.keeps:
                        subject.run("same", wanted.seconds)
            print_rates(subjects)
            if wanted.instructions:
                print_instructions(subjects)
        if not wanted.no_plays:
            print_plays(subjects)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, AssertionError, OSError, NotReady, subprocess.SubprocessError) as error:
        sys.exit(print(f"bench/peers.py: {error}", file=sys.stderr) or 2)
