#!/usr/bin/python3
"""What a store does as it grows: filled to 10^4, 10^5, … operations, and measured at each size.

Operations are claimed and completed by `hapax bench` with bodies of 64 bytes and kept for a day, so that none expires
meanwhile. At each size, beside the smallest one, are printed: cycles a second, p99 and the longest time of one op; the
bytes on disk for each operation; how long `hapax list --state started` (which finds next to nothing) and `hapax purge`
(which removes nothing) take; the memory of the process that has the store; how long the store takes to open again.

The store is a `rocksdb:` that a keeper has open. It is filled in process and with `sync=off`: the files are the same,
and nobody waits for the disk. It is measured when RocksDB has merged what that left. With --store URI it is any
other, as it is: then there is no time to open it, and memory and disk are what Redis or PostgreSQL say of themselves
(by redis-cli, psql).

    bench/growth.py [--to N] [--seconds S] [--folder DIR] [--store URI] [--expire M]
    tests/servers/with.py redis bench/growth.py --to 100000 --store {uri}

--expire M: instead, M minutes of steady state. Records are kept for a minute; clients ask for about half of what the
store can do; every other span of 10 s a `hapax purge` runs. Printed are, of each span, the rate, p99 and the longest
time of one op, the bytes on disk, and the longest of a hundred small synced writes beside the store: what the disk
itself takes.

For 10^7 embedded operations give it 10 minutes and 6 GB, for 10^8 an hour and 60 GB.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HAPAX = pathlib.Path(os.environ.get("HAPAX_BUILD", "build")).resolve() / "hapax"
OPEN_S = 600
COLUMNS = ("operations", "cycles/s", "p99 ms", "max ms", "bytes/op", "list s", "purge s", "memory MiB", "open s")
SPANS = ("s", "cycles/s", "p99 ms", "max ms", "disk MiB", "longest sync ms", "purge s")
SPAN_S = 10


def hapax(*words):
    done = subprocess.run([HAPAX, *words], stdout=subprocess.PIPE, check=True)
    return done.stdout


def timed(*words):
    began = time.monotonic()
    hapax(*words)
    return time.monotonic() - began


def bench(uri, seconds, clients=64, retention="1d"):
    return json.loads(hapax("bench", "--json", "--store", uri, "--duplicates", "0", "--clients", str(clients), "--size",
                            "64", "--retention", retention, "--seconds", str(max(1, round(seconds)))))


class Embedded:
    """A keeper with a database of its own."""

    def __init__(self, folder):
        self.folder, self.keeper = pathlib.Path(folder) / "db", None
        self.uri = f"unix:{self.folder}/keeper.sock"
        self.open()

    def open(self):
        """Opens the store again; returns how long that took."""
        self.close()
        began = time.monotonic()
        self.keeper = subprocess.Popen([HAPAX, "keep", "--store", f"rocksdb:{self.folder}"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        while not (self.folder / "keeper.sock").exists():
            if self.keeper.poll() is not None or time.monotonic() - began > OPEN_S:
                sys.exit("growth: the keeper does not open its store")
            time.sleep(0.005)
        return time.monotonic() - began

    def close(self):
        if self.keeper:
            self.keeper.terminate()
            self.keeper.wait()
        self.keeper = None

    def fill(self, seconds):
        self.close()
        return bench(f"rocksdb:{self.folder}?sync=off", seconds)

    def processor_s(self):
        times = pathlib.Path(f"/proc/{self.keeper.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def wait_for_merges(self):
        """Waits until RocksDB merges nothing any more."""
        self.open()
        used = -1
        while self.processor_s() - used > 0.1:
            used = self.processor_s()
            time.sleep(5)

    def memory(self):
        status = pathlib.Path(f"/proc/{self.keeper.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def disk(self):
        return int(subprocess.check_output(["du", "-s", "--block-size=1", self.folder]).split()[0])


class Served:
    """A store that somebody else serves."""

    def __init__(self, uri):
        self.uri = uri

    def open(self):
        return None

    def wait_for_merges(self):
        pass

    def close(self):
        pass

    def fill(self, seconds):
        return bench(self.uri, seconds)

    def ask_redis(self, name):
        told = subprocess.check_output(["redis-cli", "-u", self.uri.split("?")[0], "info", "memory"], text=True)
        return int(told.split(name + ":")[1].split()[0])

    def memory(self):
        return self.ask_redis("used_memory_rss") if self.uri.startswith("redis:") else None

    def disk(self):
        if self.uri.startswith("redis:"):
            return self.ask_redis("used_memory")
        if self.uri.startswith("postgres"):
            return int(subprocess.check_output(["psql", self.uri.split("?")[0], "-tAc",
                                                "SELECT pg_database_size(current_database())"]))
        return None


def fill(store, have, size):
    """Fills the store from `have` operations to `size` or a little more; returns how many it has."""
    rate = 5000
    while have < size:
        seconds = min(max((size - have) / rate, 1), 60)
        cycles = store.fill(seconds)["cycles"]
        have, rate = have + cycles, max(cycles / seconds, 1)
    store.wait_for_merges()
    return have


def measure(store, have, seconds):
    run = bench(store.uri, seconds)
    have += run["cycles"]
    row = [have, run["cycles_per_second"], run["p99_us"] / 1000, run["max_us"] / 1000]
    disk = store.disk()
    row += [disk and disk / have, timed("list", "--store", store.uri, "--state", "started", "--json"),
            timed("purge", "--store", store.uri, "--json")]
    memory = store.memory()
    return have, [*row, memory and memory / 2**20, store.open()]


def longest_sync_s(folder, count=100):
    """Of so many small writes, spread over a span."""
    longest = 0
    with open(pathlib.Path(folder) / "probe", "wb", buffering=0) as file:
        for _ in range(count):
            file.write(bytes(4096))
            began = time.monotonic()
            os.fdatasync(file)
            longest = max(longest, time.monotonic() - began)
            time.sleep(SPAN_S / count)
    return longest


def expire(store, folder, minutes):
    """Prints a row for each span, and what they come to."""
    full, clients = bench(store.uri, SPAN_S, retention="1m")["cycles_per_second"], 64
    while clients > 1 and bench(store.uri, 2, clients, "1m")["cycles_per_second"] > full / 2:
        clients -= max(clients // 8, 1)
    print(f"{full:,.0f} cycles/s with 64 clients; {clients} from here on\n\n" + header(SPANS))
    rows, over = [], time.monotonic() + 60 * minutes
    with concurrent.futures.ThreadPoolExecutor() as pool:
        while time.monotonic() < over:
            began = time.monotonic()
            sync = pool.submit(longest_sync_s, folder)
            purge = pool.submit(timed, "purge", "--store", store.uri, "--json") if len(rows) % 2 else None
            run = bench(store.uri, SPAN_S, clients, "1m")
            rows.append([began - over + 60 * minutes, run["cycles_per_second"], run["p99_us"] / 1000,
                         run["max_us"] / 1000, store.disk() / 2**20, 1000 * sync.result(), purge and purge.result()])
            print(line(rows[-1]), flush=True)
    for what, some in (("with a purge", rows[1::2]), ("without", rows[::2])):
        print(f"{what}: {len(some)} spans, in {sum(row[3] > 50 for row in some)} an op over 50 ms, of which "
              f"{sum(row[3] > 50 and row[5] > 50 for row in some)} had a sync over 50 ms beside it")


def header(names):
    return "| " + " | ".join(names) + " |\n|" + "---|" * len(names)


def line(row):
    return "| " + " | ".join(map(show, row)) + " |"


def show(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=int, default=10**6, metavar="N", help="operations (default 1000000)")
    parser.add_argument("--seconds", type=int, default=5, metavar="S", help="of each measurement (default 5)")
    parser.add_argument("--expire", type=float, metavar="M", help="minutes of steady state instead")
    parser.add_argument("--folder", help="for the database (default: a temporary one)")
    parser.add_argument("--store", metavar="URI", help="a store that is served already")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="hapax-growth-") as folder:
        store = Served(args.store) if args.store else Embedded(folder)
        try:
            if args.expire:
                expire(store, folder, args.expire)
                return
            print(header(COLUMNS))
            have, size, least = 0, 10**4, None
            while size <= args.to:
                have = fill(store, have, size)
                have, row = measure(store, have, args.seconds)
                least = least or row
                print(line(row), flush=True)
                size *= 10
            print(f"rate beside the smallest {row[1] / least[1]:.2f}, p99 {row[2] / least[2]:.2f}")
        finally:
            store.close()


main()
