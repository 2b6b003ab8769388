#!/usr/bin/python3
"""What `hapax relay` publishes. An outbox of N rows of 1,000 aggregates is written by SELECT hapax.publish(...) in one
transaction, while the relays wait. It is emptied by

    one by one   a program of its own (Python, pika): take a row, publish it, wait for the confirm, mark it, commit
    1, 4         one relay, four relays
    1 old        one relay, while a transaction elsewhere in the database is open since before the rows were written

to a real RabbitMQ (classic and quorum queues, which keep all that is published) and a real Kafka. A rate is that of
the rows after the first tenth, by the relays' own counters. Then, at half of the rate of four relays, rows are written
every 10 ms. One of ten rows goes to a queue that is read, and the time from writing to reading is printed. Rounds take
turns; printed is their median.

    bench/relay_bench.py [--to classic,quorum,kafka] [--rows N] [--rounds N] [--seconds S]

Exits 1 if four relays publish fewer than 10,000 rows a second to a classic queue, or if the lag's p99 at half of that
is over 200 ms. A fifth less or more passes, since one run on a machine of two processors varies. PostgreSQL runs with
fsync off, as everywhere in the tests. HAPAX_BUILD names the build directory (default: build/).
"""
import argparse
import contextlib
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[0] = str(HERE.parent / "tests")  # not this folder: http.py would stand for the library's http
sys.path.insert(1, str(HERE.parent / "tests/servers"))
import urllib.request  # noqa: E402 - they are found only now

import pika  # noqa: E402
import psycopg2  # noqa: E402
from conftest import Command, end, read_line  # noqa: E402
from kafka_server import Kafka, have_kafka  # noqa: E402
from postgres_server import Postgres  # noqa: E402
from rabbitmq_server import RabbitMQ  # noqa: E402

AGGREGATES = 1000
RATE, LAG_MS, TOLERANCE = 10000, 200, 0.2
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
PUBLISH = """SELECT count(hapax.publish(%s, 'aggregate-' || i %% 1000, 'bench-' || i, NULL,
    convert_to(rpad('{"number":' || i || '}', 200), 'UTF8'))) FROM generate_series(%s, %s) i"""
STAMPED = """SELECT count(hapax.publish(CASE i %% 10 WHEN 0 THEN %s ELSE %s END, 'aggregate-' || i %% 1000,
    'bench-' || i, NULL, convert_to((extract(epoch FROM clock_timestamp()) * 1e6)::bigint::text, 'UTF8')))
    FROM generate_series(%s, %s) i"""


class Bench:
    def __init__(self, hapax, kind, postgres, broker):
        self.hapax, self.kind, self.postgres, self.broker = hapax, kind, postgres, broker
        self.count = 0

    def queue(self):
        """A new queue or topic."""
        self.count += 1
        name = f"bench{self.count}"
        if self.kind == "kafka":
            return self.broker.make_topic(name, 8)
        with self.channel() as channel:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": self.kind})
        return name

    def drop(self, name):
        if self.kind != "kafka":
            with self.channel() as channel:
                channel.queue_delete(name)

    @contextlib.contextmanager
    def channel(self):
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.broker.port, heartbeat=0))
        try:
            yield connection.channel()
        finally:
            with contextlib.suppress(pika.exceptions.AMQPError):
                connection.close()

    @contextlib.contextmanager
    def outbox(self):
        """A connection to a database of its own, with an empty outbox."""
        name = self.postgres.database()
        self.uri = self.postgres.uri(name)
        self.hapax("init", "--store", self.uri)
        connection = psycopg2.connect(self.uri)
        connection.autocommit = True
        try:
            yield connection
        finally:
            connection.close()
            self.postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")

    def fill(self, connection, topic, rows):
        """In one transaction: then all of them wait at once."""
        with connection.cursor() as cursor:
            cursor.execute(PUBLISH, (topic, 1, rows))

    @contextlib.contextmanager
    def relays(self, n):
        """n relays; what they have published together."""
        processes = []
        try:
            for _ in range(n):
                processes.append(self.hapax.start("relay", "--from", self.uri, "--to", self.broker.uri(),
                                                  "--metrics", "127.0.0.1:0"))
            ports = [read_line(process).split("port ")[1].strip() for process in processes]
            while any(metric(port, "parts") != 64 / n for port in ports):
                time.sleep(0.05)
            yield (lambda: sum(metric(port, "published_total") for port in ports),
                   [process.pid for process in processes])
        finally:
            for process in processes:
                end(process)

    def drained(self, connection, topic, relays, rows):
        """Rows a second after the first tenth, and the CPU time for one of them: of relays, database, broker."""
        with self.relays(relays) as (count, pids):
            self.fill(connection, topic, rows)
            groups = (pids, [self.postgres.process.pid], [self.broker.process.pid])
            begun, now = None, 0
            while now < rows:
                time.sleep(0.02)
                now = count()
                if not begun and now >= rows / 10:
                    begun = (time.monotonic(), now, [cpu_us(group) for group in groups])
            seconds = time.monotonic() - begun[0]
            rows = now - begun[1]
            return rows / seconds, [(cpu_us(group) - before) / rows for group, before in zip(groups, begun[2])]

    def one_by_one(self, connection, topic, rows):
        """What one writes without a relay."""
        begun = time.monotonic()
        with self.channel() as channel, connection.cursor() as cursor:
            channel.confirm_delivery()
            for _ in range(rows):
                cursor.execute("BEGIN")
                cursor.execute("SELECT seq, key, payload FROM hapax.outbox WHERE state = 0"
                               " ORDER BY seq LIMIT 1 FOR UPDATE")
                seq, key, payload = cursor.fetchone()
                channel.basic_publish("", topic, bytes(payload),
                                      pika.BasicProperties(message_id=key, delivery_mode=2), mandatory=True)
                cursor.execute("UPDATE hapax.outbox SET state = 1 WHERE seq = %s", (seq,))
                cursor.execute("COMMIT")
        return rows / (time.monotonic() - begun)

    def row(self, what, rows):
        """A rate, and CPU times."""
        with self.outbox() as connection:
            topic = self.queue()
            old = None
            if what == "1 old":
                old = psycopg2.connect(self.uri)
                old.cursor().execute("SELECT txid_current()")
            if what == "one by one":
                self.fill(connection, topic, rows // 20)
                rate = self.one_by_one(connection, topic, rows // 20), []
            else:
                rate = self.drained(connection, topic, int(what.split()[0]), rows)
            if old:
                old.close()
            self.drop(topic)
            return rate

    def lag(self, relays, rate, seconds):
        """Milliseconds from being written to being read, in order, and the rate that was reached."""
        with self.outbox() as connection, self.relays(relays):
            bulk, probe = self.queue(), self.queue()
            over, lags = threading.Event(), []
            reader = threading.Thread(target=self.read, args=(probe, over, lags))
            reader.start()
            begun, sent = time.monotonic(), 0
            with connection.cursor() as cursor:
                while (elapsed := time.monotonic() - begun) < seconds:
                    upto = min(int(rate * elapsed), sent + int(rate / 50))  # a late writer does not catch up at once
                    if upto > sent:
                        cursor.execute(STAMPED, (probe, bulk, sent + 1, upto))
                        sent = upto
                    if sent >= int(rate * elapsed):
                        time.sleep(0.01)
            reached, deadline = sent / (time.monotonic() - begun), time.monotonic() + 60
            while len(lags) < sent // 10 and time.monotonic() < deadline:
                time.sleep(0.05)
            over.set()
            reader.join()
            self.drop(bulk)
            self.drop(probe)
            return sorted(lags[len(lags) // 5:]), reached

    def read(self, topic, over, lags):
        def take(body):
            lags.append(time.time() * 1e3 - int(body) / 1e3)

        if self.kind == "kafka":
            from confluent_kafka import Consumer
            consumer = Consumer({"bootstrap.servers": self.broker.address, "group.id": topic,
                                 "auto.offset.reset": "earliest", "fetch.wait.max.ms": 5})
            consumer.subscribe([topic])
            while not over.is_set():
                message = consumer.poll(0.1)
                if message and not message.error():
                    take(message.value())
            consumer.close()
            return
        with self.channel() as channel:
            channel.basic_consume(topic, lambda *words: take(words[3]), auto_ack=True)
            while not over.is_set():
                channel.connection.process_data_events(0.1)


def cpu_us(pids):
    """CPU time so far of processes and all below them, the ended ones with their parents'."""
    parents, used = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents.setdefault(int(fields[1]), []).append(pid)
            used[pid] = sum(map(int, fields[11:15])) * TICK_US
    total, left = 0, list(pids)
    while left:
        pid = left.pop()
        total += used.get(pid, 0)
        left += parents.get(pid, [])
    return total


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"hapax_relay_{name} "):
                return int(line.split()[1])
    return 0


def measure(bench, args):
    """Whether the bounds hold."""
    whats = [what for what in ("one by one", "1", "4", "1 old") if bench.kind != "kafka" or what != "one by one"]
    rates = {what: [] for what in whats}
    for number in range(args.rounds):
        for what in whats[number % len(whats):] + whats[:number % len(whats)]:
            rates[what].append(bench.row(what, args.rows))
    medians = {what: statistics.median(rate for rate, _ in runs) for what, runs in rates.items()}
    for what, runs in rates.items():
        values = [rate for rate, _ in runs]
        cpu = [f"{statistics.median(times):.0f}" for times in zip(*(times for _, times in runs))]
        print(f"{bench.kind} | {what} | {medians[what]:.0f} rows/s ({min(values):.0f} to {max(values):.0f})"
              + (f" | CPU time for a row: relays {cpu[0]} us, database {cpu[1]} us, broker {cpu[2]} us" if cpu else ""),
              flush=True)
    good = bench.kind != "classic" or medians["4"] >= RATE * (1 - TOLERANCE)
    for relays in (1, 4):
        lags, reached = bench.lag(relays, min(RATE, medians[str(relays)]) / 2, args.seconds)
        p50, p99 = lags[len(lags) // 2], lags[len(lags) * 99 // 100]
        print(f"{bench.kind} | lag of {relays} at {reached:.0f} rows/s | p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
              f"most {lags[-1]:.0f} ms", flush=True)
        good = good and (bench.kind != "classic" or p99 <= LAG_MS * (1 + TOLERANCE))
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--to", default="classic,quorum,kafka")
    parser.add_argument("--rows", type=int, default=40000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10)
    args = parser.parse_args()
    good = True
    postgres = Postgres(max_connections=60).start()
    folder = tempfile.TemporaryDirectory(prefix="hapax-bench-")
    hapax = Command(pathlib.Path(folder.name))
    try:
        for kind in args.to.split(","):
            if kind == "kafka" and not have_kafka():
                print("kafka: skipped, there is no broker (tools/kafka/fetch)")
                continue
            broker = (Kafka() if kind == "kafka" else RabbitMQ()).start()
            try:
                good = measure(Bench(hapax, kind, postgres, broker), args) and good
            finally:
                broker.end()
    finally:
        postgres.end()
        folder.cleanup()
    print(f"# load {os.getloadavg()[0]:.1f} of {os.cpu_count()} processors")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
