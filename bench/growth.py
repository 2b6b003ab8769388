#!/usr/bin/python3
"""What a store does as it grows: filled to 10^4, 10^5, … operations, and measured at each size.

Operations are claimed and completed by `hapax bench` with bodies of 64 bytes and kept for a day, so that none expires
meanwhile. At each size, beside the smallest one, are printed: cycles a second, p99 and the longest time of one op; the
memory of the process that has the store; the bytes on disk for each operation; how long the store takes to open again;
and how long `hapax list --state started` (which finds next to nothing) and `hapax purge` (which removes nothing) take.

The store is a `rocksdb:` that a keeper has open. With --store URI it is any other, as it is: then there is no time to
open it, and memory and disk are what Redis or PostgreSQL say of themselves (by redis-cli, psql).

    bench/growth.py [--to N] [--seconds S] [--folder DIR] [--store URI]

For 10^7 embedded operations give it an hour at most and 6 GB, for 10^8 a day and 60 GB.
    tests/servers/with.py redis bench/growth.py --to 100000 --store {uri}
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HAPAX = pathlib.Path(os.environ.get("HAPAX_BUILD", "build")).resolve() / "hapax"
OPEN_S = 600
COLUMNS = ("operations", "cycles/s", "p99 ms", "max ms", "memory MiB", "bytes/op", "open s", "list s", "purge s")


def hapax(*words):
    done = subprocess.run([HAPAX, *words], stdout=subprocess.PIPE, check=True)
    return done.stdout


def timed(*words):
    began = time.monotonic()
    hapax(*words)
    return time.monotonic() - began


def bench(uri, seconds):
    return json.loads(hapax("bench", "--json", "--store", uri, "--duplicates", "0", "--clients", "64", "--size", "64",
                            "--retention", "1d", "--seconds", str(max(1, round(seconds)))))


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

    def close(self):
        pass

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
        cycles = bench(store.uri, seconds)["cycles"]
        have, rate = have + cycles, max(cycles / seconds, 1)
    return have


def measure(store, have, seconds):
    run = bench(store.uri, seconds)
    have += run["cycles"]
    row = [have, run["cycles_per_second"], run["p99_us"] / 1000, run["max_us"] / 1000]
    disk, memory = store.disk(), store.memory()
    row += [memory and memory / 2**20, disk and disk / have]
    listed = timed("list", "--store", store.uri, "--state", "started", "--json")
    purged = timed("purge", "--store", store.uri, "--json")
    return have, [*row, store.open(), listed, purged]


def show(value):
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--to", type=int, default=10**6, metavar="N", help="operations (default 1000000)")
    parser.add_argument("--seconds", type=int, default=5, metavar="S", help="of each measurement (default 5)")
    parser.add_argument("--folder", help="for the database (default: a temporary one)")
    parser.add_argument("--store", metavar="URI", help="a store that is served already")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="hapax-growth-") as folder:
        store = Served(args.store) if args.store else Embedded(folder)
        try:
            print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS))
            have, size, least = 0, 10**4, None
            while size <= args.to:
                have = fill(store, have, size)
                have, row = measure(store, have, args.seconds)
                least = least or row
                print("| " + " | ".join(map(show, row)) + " |", flush=True)
                size *= 10
            print(f"rate beside the smallest {row[1] / least[1]:.2f}, p99 {row[2] / least[2]:.2f}")
        finally:
            store.close()


main()
